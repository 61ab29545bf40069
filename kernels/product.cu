// Products y = W x on tensor cores, for 1 to some hundred rows: every weight is read once for all rows of a tile.
//
// W is [rows][cols], x is [n][cols], 16-bit numbers, float32 accumulation. W is the left operand, so its rows fill the
// 16-high side of the tensor instruction and few x rows waste little: tiles are 128 rows of W by 16, 32, 64 or 128 of x.
// A step with few rows is bound by reading W: its columns are split over blockIdx.z, so that all multiprocessors read.
//
// Parallel over: (x tile, W tile, split of the columns). Bytes read: W once a column of x tiles, x once a row of W tiles.
// Shared memory: STAGES of (W tile, x tile) by 64 columns, filled by asynchronous copies; 16-byte pieces are swizzled
// against bank conflicts. The first stages' weights are asked for while the launch before still runs. Rows and columns past the end are zeros and are not written. cols is a multiple of 8.
//
// Kinds of result:
//   partial: part[split][n][rows] in float32; the reader adds the splits, in order.
//   gated:   out[n][rows / 2] = silu(gate) * up, where each 16 rows of W are 8 gate rows, then their 8 up rows. No splits.
#include "bounded.cuh"

#define DEPTH 64   // columns of a stage

struct Product {
    const u16* w;
    const u16* x;
    float* part;
    u16* out;
    u32 rows, cols, n;
    u32 split;     // stages of one split
};

// One 16-byte piece of weights; asks the L2 cache for the rest of its 256 bytes.
__device__ __forceinline__ void copy_weights(u32 to, const void* from, u32 bytes) {
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

template <class T, int WM, int WN, int MT, int NT, int STAGES, bool GATED>
__device__ __forceinline__ void product(const Product& a) {
    constexpr int BM = WM * MT * 16, BN = WN * NT * 8, THREADS = WM * WN * 32;
    constexpr int STAGE = (BM + BN) * DEPTH * 2;
    extern __shared__ __align__(128) char smem[];
    const u32 base = shared_address(smem);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int wm = warp % WM, wn = warp / WM;
    const u32 n0 = blockIdx.x * BN, m0 = blockIdx.y * BM;
    const u32 stages = (a.cols + DEPTH - 1) / DEPTH;
    const u32 first = blockIdx.z * a.split;
    const u32 end = first + a.split < stages ? first + a.split : stages;

    auto fetch_w = [&](u32 s) {
        const u32 to = base + (s - first) % STAGES * STAGE;
#pragma unroll
        for (int i = 0; i < BM * 8 / THREADS; i++) {
            const u32 at = threadIdx.x + i * THREADS, row = at / 8, piece = at % 8, column = s * DEPTH + piece * 8;
            const bool real = m0 + row < a.rows && column < a.cols;
            copy_weights(to + row * 128 + ((piece ^ (row & 7)) << 4), a.w + (real ? (u64)(m0 + row) * a.cols + column : 0), real ? 16 : 0);
        }
    };
    auto fetch_x = [&](u32 s) {
        const u32 to = base + (s - first) % STAGES * STAGE;
#pragma unroll
        for (int i = 0; i < BN * 8 / THREADS; i++) {
            const u32 at = threadIdx.x + i * THREADS, row = at / 8, piece = at % 8, column = s * DEPTH + piece * 8;
            const bool real = n0 + row < a.n && column < a.cols;
            copy_async(to + (BM + row) * 128 + ((piece ^ (row & 7)) << 4), a.x + (real ? (u64)(n0 + row) * a.cols + column : 0), real ? 16 : 0);
        }
    };

    float d[MT][NT][4];
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) d[m][n][e] = 0.0f;

    next_may_begin();
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++)
        if (first + s < end) fetch_w(first + s);
    after_previous();
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (first + s < end) fetch_x(first + s);
        copy_commit();
    }
    const u32 w_row = wm * MT * 16 + lane % 16, w_piece = lane / 16;
    const u32 x_row = wn * NT * 8 + lane % 8 + lane / 16 * 8, x_piece = lane / 8 % 2;
    for (u32 s = first; s < end; s++) {
        copy_wait<STAGES - 2>();
        __syncthreads();
        if (s + STAGES - 1 < end) {
            fetch_w(s + STAGES - 1);
            fetch_x(s + STAGES - 1);
        }
        copy_commit();
        const u32 from = base + (s - first) % STAGES * STAGE;
#pragma unroll
        for (int k = 0; k < DEPTH / 16; k++) {
            u32 w[MT][4], x[NT / 2][4];
#pragma unroll
            for (int m = 0; m < MT; m++) {
                const u32 row = w_row + m * 16;
                load_matrix(w[m], from + row * 128 + (((k * 2 + w_piece) ^ (row & 7)) << 4));
            }
#pragma unroll
            for (int n = 0; n < NT / 2; n++) {
                const u32 row = x_row + n * 16;
                load_matrix(x[n], from + (BM + row) * 128 + (((k * 2 + x_piece) ^ (row & 7)) << 4));
            }
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int n = 0; n < NT; n++) mma<T>(d[m][n], w[m], x[n / 2][n % 2 * 2], x[n / 2][n % 2 * 2 + 1]);
        }
    }

    // d[m][n]: W rows lane / 4 and lane / 4 + 8, x rows lane % 4 * 2 and the next.
#pragma unroll
    for (int m = 0; m < MT; m++) {
        const u32 row = m0 + (wm * MT + m) * 16 + lane / 4;
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const u32 column = n0 + (wn * NT + n) * 8 + lane % 4 * 2 + e;
                if (column >= a.n) continue;
                const float lower = d[m][n][e], upper = d[m][n][2 + e];
                if (GATED) {
                    // row is 16 i + lane / 4 with i the group of 8 features.
                    const u32 feature = (row & ~15u) / 2 + (row & 7);
                    if (row < a.rows) {
                        const float y = lower / (1.0f + __expf(-lower)) * upper;
                        a.out[(u64)column * (a.rows / 2) + feature] = (u16)pack<T>(bounded<T>(y), 0.0f);
                    }
                } else {
                    float* to = a.part + ((u64)blockIdx.z * a.n + column) * a.rows;
                    if (row < a.rows) to[row] = lower;
                    if (row + 8 < a.rows) to[row + 8] = upper;
                }
            }
    }
}

#ifndef KERNEL_TYPE
#define KERNEL_TYPE F16
#endif

// Names say how many rows of x a tile has. Stages so many that two blocks fill a multiprocessor's shared memory: a third
// one somewhere would leave another place idle.
#define NARROW(NAME, NT, STAGES, GATED) \
    extern "C" __global__ void __launch_bounds__(128, 2) NAME(const __grid_constant__ Product a) { product<KERNEL_TYPE, 4, 1, 2, NT, STAGES, GATED>(a); }
#define WIDE(NAME, GATED) \
    extern "C" __global__ void __launch_bounds__(256, 2) NAME(const __grid_constant__ Product a) { product<KERNEL_TYPE, 2, 4, 4, 4, 3, GATED>(a); }
NARROW(product_16, 2, 5, false)
NARROW(product_32, 4, 5, false)
NARROW(product_64, 8, 4, false)
WIDE(product_128, false)
NARROW(gated_16, 2, 5, true)
NARROW(gated_32, 4, 5, true)
NARROW(gated_64, 8, 4, true)
WIDE(gated_128, true)
