// What the kernels of a selection know of each other: select.cu chooses, picked.cu brings and attends.
#pragma once
#include "bounded.cuh"
#include "keep.cuh"

#ifndef KERNEL_TYPE
#define KERNEL_TYPE F16
#endif
typedef KERNEL_TYPE T;

// Tokens of a path that lie in one page.
struct Run {
    u32 row, start, len, page;
};
