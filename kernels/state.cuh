// The online-softmax algebra, used by every kernel here.
//
// A state over a set of keys: m = max of the scores (in units of log2, so that exp2 serves), l = sum of 2^(s - m),
// o = sum of 2^(s - m) v. Merging states is associative and commutative up to rounding. An empty set has m = -inf and
// l = 0; it must contribute exactly zero, never NaN, so differences from m go through `finite`.
#pragma once

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;

#define NEG_INF (__int_as_float(0xff800000))

// A maximum that may be subtracted: -inf - (-inf) would be NaN.
__device__ __forceinline__ float finite(float m) { return m == NEG_INF ? 0.0f : m; }

// exp2, flushed at 0 for -inf.
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The weight of a state with maximum m inside a merged state with maximum m_all (not below m).
__device__ __forceinline__ float weight(float m, float m_all) { return exp2_fast(m - finite(m_all)); }

// log2 of the sum of 2^s over the set; -inf for an empty set.
__device__ __forceinline__ float lse(float m, float l) { return l > 0.0f ? m + __log2f(l) : NEG_INF; }
