// What stands between the products of a step: embedding rows, residual and norm, rotation and K/V write, gating.
//
// All of them are bound by memory and small beside the products; sums of split products are taken here, in the order of
// the splits, so that no product needs a second pass. n rows, H hidden, d head size. Numbers of width 16 unless said.
#include "bounded.cuh"

#ifndef KERNEL_TYPE
#define KERNEL_TYPE F16
#endif
typedef KERNEL_TYPE T;

// x[row] = table[tokens[row]] in float32. A block a row; H is a multiple of 8.
extern "C" __global__ void embed(const u16* table, const u32* tokens, float* x, u32 hidden) {
    next_may_begin();
    after_previous();
    const u32* from = (const u32*)(table + (u64)tokens[blockIdx.x] * hidden);
    float2* to = (float2*)(x + (u64)blockIdx.x * hidden);
    for (u32 i = threadIdx.x; i < hidden / 2; i += blockDim.x) {
        const u32 pair = from[i];
        to[i] = make_float2(widen<T>((u16)pair), widen<T>((u16)(pair >> 16)));
    }
}

struct Norm {
    float* x;            // [n][H]
    const float* part;   // [splits][n][H], added to x first
    const float* shift;  // [H], added to what is normed alone; may be null
    const float* weight; // [H]
    const u32* rows;     // which row of x each block takes; null: its own number, and x is written back
    u16* out;            // [blocks][H]
    u32 hidden, n, splits;
    float eps;
};

// x += the parts; out = y / sqrt(mean(y^2) + eps) * weight with y = x + shift. A block a row; shared memory: H float32. Blocks of 512
// threads fit beside two of a product: taller ones would keep the next product from beginning early.
extern "C" __global__ void residual_norm(const __grid_constant__ Norm a) {
    extern __shared__ __align__(16) float4 kept[];
    __shared__ float sums[32];
    next_may_begin();
    after_previous();
    const u32 row = a.rows ? a.rows[blockIdx.x] : blockIdx.x, quads = a.hidden / 4;
    float4* x = (float4*)(a.x + (u64)row * a.hidden);
    const float4* part = (const float4*)(a.part + (u64)row * a.hidden);
    float sum = 0.0f;
    for (u32 i = threadIdx.x; i < quads; i += blockDim.x) {
        float4 v = x[i];
#pragma unroll 8
        for (u32 s = 0; s < a.splits; s++) {
            const float4 p = part[(u64)s * a.n * quads + i];
            v.x += p.x, v.y += p.y, v.z += p.z, v.w += p.w;
        }
        if (a.splits && !a.rows) x[i] = v;
        if (a.shift) {
            const float4 p = ((const float4*)a.shift)[i];
            v.x += p.x, v.y += p.y, v.z += p.z, v.w += p.w;
        }
        kept[i] = v;
        sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
#pragma unroll
    for (int s = 16; s; s /= 2) sum += __shfl_xor_sync(~0u, sum, s);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = threadIdx.x % 32 < blockDim.x / 32 ? sums[threadIdx.x % 32] : 0.0f;
#pragma unroll
    for (int s = 16; s; s /= 2) sum += __shfl_xor_sync(~0u, sum, s);
    const float scale = rsqrtf(sum / (float)a.hidden + a.eps);
    uint2* out = (uint2*)(a.out + (u64)blockIdx.x * a.hidden);
    for (u32 i = threadIdx.x; i < quads; i += blockDim.x) {
        const float4 v = kept[i], w = ((const float4*)a.weight)[i];
        out[i] = make_uint2(pack<T>(bounded<T>(v.x * scale * w.x), bounded<T>(v.y * scale * w.y)),
                            pack<T>(bounded<T>(v.z * scale * w.z), bounded<T>(v.w * scale * w.w)));
    }
}

struct Rotate {
    const float* part;         // [splits][n][(heads + 2 * kv_heads) * d]: queries, keys, values
    const double* frequencies; // [d / 2], radians a position
    const u32* positions;      // [n]
    const u32* slots;          // [n]: page * 16 + offset
    u16* q;                    // [n][heads][d]
    u16* kv;                   // [page][kv_head][K|V][16][d]
    u32 n, splits, heads, kv_heads, head_size;
};

// Turns queries and keys by their positions, pairs (2i, 2i + 1), and writes keys and values at the rows' slots.
// A thread a pair: grid (n, pairs / 256). Angles in float64: a float32 angle of position 100,000 is off by 0.008. They, and
// the slots, stand since the step began, so they are there before the sums are.
extern "C" __global__ void rotate(const __grid_constant__ Rotate a) {
    next_may_begin();
    const u32 d = a.head_size, row = blockIdx.x, pair = blockIdx.y * blockDim.x + threadIdx.x;
    const u32 width = (a.heads + 2 * a.kv_heads) * d;
    const bool real = pair * 2 < width;
    const u32 head = pair * 2 / d, column = pair * 2 % d;
    float sine = 0.0f, cosine = 1.0f;
    if (real && head < a.heads + a.kv_heads) {
        const double turns = a.frequencies[column / 2] * (double)a.positions[row] * 0.15915494309189533577;
        sincospif((float)(2.0 * (turns - rint(turns))), &sine, &cosine);
    }
    const u32 slot = a.slots[row];
    after_previous();
    if (!real) return;
    const float2* from = (const float2*)(a.part + (u64)row * width) + pair;
    float2 v = make_float2(0.0f, 0.0f);
#pragma unroll 8
    for (u32 s = 0; s < a.splits; s++) {
        const float2 p = from[(u64)s * a.n * (width / 2)];
        v.x += p.x, v.y += p.y;
    }
    if (head < a.heads + a.kv_heads) v = make_float2(v.x * cosine - v.y * sine, v.x * sine + v.y * cosine);
    const u32 both = pack<T>(bounded<T>(v.x), bounded<T>(v.y));
    if (head < a.heads) {
        *(u32*)(a.q + ((u64)row * a.heads + head) * d + column) = both;
    } else {
        const u32 other = head - a.heads;
        const u32 value = other >= a.kv_heads, kv_head = value ? other - a.kv_heads : other;
        *(u32*)(a.kv + ((((u64)(slot / 16) * a.kv_heads + kv_head) * 2 + value) * 16 + slot % 16) * d + column) = both;
    }
}

// out[row][f] = silu(gate) * up, y[row][2 F] holding 8 gates and their 8 ups in turn. A thread a number.
extern "C" __global__ void gate(const float* y, u16* out, u32 features, u64 all) {
    next_may_begin();
    after_previous();
    const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= all) return;
    const u64 row = i / features;
    const u32 f = (u32)(i - row * features);
    const float* from = y + row * 2 * features + f / 8 * 16 + f % 8;
    const float g = from[0];
    out[i] = (u16)pack<T>(bounded<T>(g / (1.0f + __expf(-g)) * from[8]), 0.0f);
}
