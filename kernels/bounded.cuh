// Numbers of a step before they are stored in 16 bits.
#pragma once
#include "tensor.cuh"

template <class T> __device__ __forceinline__ float bounded(float x) { return x; }
// float16 ends at 65504: beyond it a product would turn to NaN.
template <> __device__ __forceinline__ float bounded<F16>(float x) { return fminf(fmaxf(x, -65504.0f), 65504.0f); }
