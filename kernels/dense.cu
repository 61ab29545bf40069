// Attention as Medusa's tree attention does it, for comparison: the whole tree, a dense mask, three products unfused. Scores
// and weights of all (row, token) pairs are written to device memory and read back.
//
// Tokens stand in tiles of 64 as in the plan; `keys` = 64 * tiles. Packed row = query * G + head, padded to 64.
//   scores:  s[kv_head][row][key] = q k / sqrt(d) in float32.    Grid (tiles, row blocks, kv_heads), 128 threads.
//   weights: p = softmax(s + mask), 16 bits, in place of s's first half. Grid (rows, kv_heads), 256 threads.
//   values:  out32 += p v, atomically over key splits.           Grid (splits, row blocks, kv_heads), 128 threads.
//   finish:  out = out32 as 16 bits.
#include "plan.cuh"

#ifndef KERNEL_TYPE
#define KERNEL_TYPE F16
#endif
#ifndef KERNEL_SIZE
#define KERNEL_SIZE 128
#endif
typedef KERNEL_TYPE T;
#define D KERNEL_SIZE  // a multiple of 16

struct Dense {
    Args a;
    float* scores;      // [kv_heads][padded rows][keys]
    const float* mask;  // [rows][keys]: 0 or -inf
    float* sums;        // [rows][kv_heads * G][D]
    u32 rows, tiles, split_tiles;
};

#define PITCH (D + 8)

// A tile of K or V, or of Q rows, into shared memory.
__device__ __forceinline__ void load_tile(const Args& a, const u16* from, u32 head, const Tile& tile, u16* to) {
    for (u32 n = threadIdx.x; n < TILE * D / 8; n += blockDim.x) {
        u32 key = n / (D / 8), piece = n % (D / 8), slot = tile.group[key / 16] + key % 16;
        const u16* at = from + (u64)(slot >> 4) * a.page_stride + (slot & 15) * a.token_stride + (u64)head * a.head_stride + piece * 8;
        copy_async(shared_address(to + key * PITCH + piece * 8), at, tile.rows[key] ? 16 : 0);
    }
}

extern "C" __global__ void scores(const __grid_constant__ Dense x) {
    __shared__ __align__(16) u16 q[64 * PITCH], k[64 * PITCH];
    const Args& a = x.a;
    const u32 tile = blockIdx.x, block = blockIdx.y, head = blockIdx.z, G = a.group, packed = x.rows * G;
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (u32 n = threadIdx.x; n < 64 * D / 8; n += 128) {
        u32 row = block * 64 + n / (D / 8), piece = n % (D / 8);
        bool real = row < packed;
        u64 at = real ? ((u64)(row / G) * a.kv_heads + head) * G + row % G : 0;
        copy_async(shared_address(q + n / (D / 8) * PITCH + piece * 8), a.q + at * D + piece * 8, real ? 16 : 0);
    }
    load_tile(a, a.k, head, a.tiles[tile], k);
    copy_commit();
    copy_wait<0>();
    __syncthreads();
    float s[8][4] = {};
    for (u32 c = 0; c < D / 16; c++) {
        u32 qa[4];
        load_matrix(qa, shared_address(q + (warp * 16 + lane % 16) * PITCH + c * 16 + lane / 16 * 8));
#pragma unroll
        for (u32 n = 0; n < 4; n++) {
            u32 b[4];
            load_matrix(b, shared_address(k + (n * 16 + lane / 16 * 8 + lane % 8) * PITCH + c * 16 + lane / 8 % 2 * 8));
            mma<T>(s[2 * n], qa, b[0], b[1]);
            mma<T>(s[2 * n + 1], qa, b[2], b[3]);
        }
    }
    const u64 keys = (u64)x.tiles * TILE, padded = gridDim.y * 64;
    const float scale = a.scale_log2 * 0.6931471805599453f;
#pragma unroll
    for (u32 n = 0; n < 8; n++)
#pragma unroll
        for (u32 r = 0; r < 2; r++) {
            u32 row = block * 64 + warp * 16 + lane / 4 + 8 * r;
            *(float2*)(x.scores + ((u64)head * padded + row) * keys + tile * TILE + n * 8 + lane % 4 * 2) = make_float2(s[n][2 * r] * scale, s[n][2 * r + 1] * scale);
        }
}

__device__ __forceinline__ float reduce(float x, bool maximum, float* scratch) {
#pragma unroll
    for (int s = 16; s; s /= 2) {
        float y = __shfl_xor_sync(~0u, x, s);
        x = maximum ? fmaxf(x, y) : x + y;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
    __syncthreads();
    x = scratch[0];
    for (u32 w = 1; w < blockDim.x / 32; w++) x = maximum ? fmaxf(x, scratch[w]) : x + scratch[w];
    return x;
}

extern "C" __global__ void weights(const __grid_constant__ Dense x) {
    __shared__ float scratch[8];
    const u64 keys = (u64)x.tiles * TILE, padded = (x.rows * x.a.group + 63) / 64 * 64;
    const u32 row = blockIdx.x, head = blockIdx.y;
    float* s = x.scores + ((u64)head * padded + row) * keys;
    const float* mask = x.mask + (u64)(row / x.a.group) * keys;
    float top = NEG_INF, sum = 0.0f;
    for (u64 c = threadIdx.x; c < keys; c += blockDim.x) {
        float y = s[c] + mask[c];
        s[c] = y;
        top = fmaxf(top, y);
    }
    top = finite(reduce(top, true, scratch));
    for (u64 c = threadIdx.x; c < keys; c += blockDim.x) sum += __expf(s[c] - top);
    const float inv = 1.0f / reduce(sum, false, scratch);
    // The weights take the place of the scores: a block's row is read to its end before a step overwrites it.
    for (u64 at = 0; at < keys; at += blockDim.x * 2) {
        u64 c = at + threadIdx.x * 2;
        float lo = 0.0f, hi = 0.0f;
        if (c < keys) {
            lo = __expf(s[c] - top) * inv;
            hi = __expf(s[c + 1] - top) * inv;
        }
        __syncthreads();
        if (c < keys) ((u32*)s)[c / 2] = pack<T>(lo, hi);
    }
}

extern "C" __global__ void values(const __grid_constant__ Dense x) {
    __shared__ __align__(16) u16 p[64 * (TILE + 8)], v[64 * PITCH];
    const Args& a = x.a;
    const u32 block = blockIdx.y, head = blockIdx.z, G = a.group, packed = x.rows * G;
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u64 keys = (u64)x.tiles * TILE, padded = gridDim.y * 64;
    const u32 end = min((blockIdx.x + 1) * x.split_tiles, x.tiles);
    float o[D / 8][4] = {};
    for (u32 tile = blockIdx.x * x.split_tiles; tile < end; tile++) {
        __syncthreads();
        for (u32 n = threadIdx.x; n < 64 * 8; n += 128) {
            u32 row = block * 64 + n / 8;
            const u16* from = (const u16*)(x.scores + ((u64)head * padded + row) * keys) + tile * TILE + n % 8 * 8;
            copy_async(shared_address(p + n / 8 * (TILE + 8) + n % 8 * 8), from, row < packed ? 16 : 0);
        }
        load_tile(a, a.v, head, a.tiles[tile], v);
        copy_commit();
        copy_wait<0>();
        __syncthreads();
#pragma unroll
        for (u32 c = 0; c < 4; c++) {
            u32 pa[4];
            load_matrix(pa, shared_address(p + (warp * 16 + lane % 16) * (TILE + 8) + c * 16 + lane / 16 * 8));
#pragma unroll
            for (u32 n = 0; n < D / 16; n++) {
                u32 b[4];
                load_matrix_transposed(b, shared_address(v + (c * 16 + lane % 16) * PITCH + n * 16 + lane / 16 * 8));
                mma<T>(o[2 * n], pa, b[0], b[1]);
                mma<T>(o[2 * n + 1], pa, b[2], b[3]);
            }
        }
    }
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        u32 row = block * 64 + warp * 16 + lane / 4 + 8 * r;
        if (row >= packed) continue;
        float* to = x.sums + (((u64)(row / G) * a.kv_heads + head) * G + row % G) * D + lane % 4 * 2;
#pragma unroll
        for (u32 n = 0; n < D / 8; n++) {
            atomicAdd(to + n * 8, o[n][2 * r]);
            atomicAdd(to + n * 8 + 1, o[n][2 * r + 1]);
        }
    }
}

// Also clears the sums for the next call.
extern "C" __global__ void finish(const __grid_constant__ Dense x) {
    u64 n = blockIdx.x * (u64)blockDim.x + threadIdx.x;
    if (n >= (u64)x.rows * x.a.kv_heads * x.a.group * D / 2) return;
    float2* from = (float2*)x.sums + n;
    ((u32*)x.a.out)[n] = pack<T>(from->x, from->y);
    *from = make_float2(0.0f, 0.0f);
}
