// What a plan looks like in device memory, and the two steps that all kernels end with: the meeting of a K/V head's CTAs
// and the merge of their partials. The same structures as src/attention/cuda_plan.rs.
#pragma once
#include "tensor.cuh"

#define TILE 64

// Marks of a profiling build.
#ifndef TRACE
#define TRACE(n)
#endif

// 64 tokens: four groups of 16 with consecutive slots each.
struct Tile {
    u32 group[4];              // slot of the first token
    u32 rows[TILE];            // query rows that see each token: first | end << 16; 0: no token
    u16 some_first, some_end;  // rows that see any of them
    u16 all_first, all_end;    // rows that see all 64
    u32 whole;                 // the 64 tokens are neighbours in memory
    u32 unused;
};

// Query rows against tiles, for one CTA and every K/V head.
struct Item {
    u32 row, rows;
    u32 tile, tiles;
    u32 partial;               // of the first row; ~0: write the final rows
    u32 kind;                  // 0..3: up to 16, 32, 64, 128 packed rows
    u32 unused[2];
};

struct Args {
    const u16* q;              // [row][kv_heads * G][D]
    const u16* k;              // slot s, head h at (s / 16) * page_stride + (s % 16) * token_stride + h * head_stride
    const u16* v;
    u16* out;                  // [row][kv_heads * G][D]
    float* part_o;             // [kv_heads][partials][G][D]
    float* part_lse;           // [kv_heads][partials][G], log2
    u32* barrier;              // [kv_heads][32], the first of each is used; zero before the plan's first launch
    const Item* items;
    const u32* cta_items;      // [ctas + 1]
    const Tile* tiles;
    const u32* batch_row;      // [rows]: where the row stands in q and out; null: as it is numbered
    const u32* merge_row;      // [merges]
    const u32* merge_first;    // [merges + 1]
    const u32* merge;          // partials
    u64 page_stride;
    u32 token_stride, head_stride;
    u32 group, kv_heads, ctas, partials, merges;
    float scale_log2;          // log2(e) / sqrt(D)
    // Hopper: slot s, head h stands at s - (s / 16) * page_skip + h * head_rows of the tensor maps' second dimension, and at
    // (s / 16) * page_coord + h * head_coord of their third.
    u32 page_skip, page_coord, head_rows, head_coord;
};

__device__ __forceinline__ u32 batch_row(const Args& a, u32 row) { return a.batch_row ? a.batch_row[row] : row; }

// Waits until all CTAs of this K/V head have come. The count only grows, by `ctas` a launch, so a captured launch can be
// replayed; the host zeroes it with a new plan. Needs all CTAs resident at once.
template <int MEETING> __device__ __forceinline__ void meet(u32* count, u32 ctas) {
    asm volatile("bar.sync 1, %0;" ::"n"(MEETING) : "memory");
    if (threadIdx.x == 0) {
        u32 before, now;
        asm volatile("fence.acq_rel.gpu;" ::: "memory");
        asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : "=r"(before) : "l"(count) : "memory");
        const u32 target = (before / ctas + 1) * ctas;
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(count) : "memory");
        } while ((int)(now - target) < 0);
    }
    asm volatile("bar.sync 1, %0;" ::"n"(MEETING) : "memory");
}

// Merges the rows of this head whose path was cut, once all CTAs have written their partials: one warp a packed row, lanes
// over the columns. What the plan says is read before the meeting, so that only the partials are waited for after it.
template <class T, int D, int MERGING> __device__ __forceinline__ void merge(const Args& a, u32 head, u32 cta) {
    const u32 lane = threadIdx.x % 32, G = a.group, step = a.ctas * (MERGING / 32), all = a.merges * G;
    constexpr int PAIRS = (D / 2 + 31) / 32, BATCH = 8;
    // Neighbouring rows go to different CTAs.
    u32 n = threadIdx.x / 32 * a.ctas + cta;
    u32 i = 0, g = 0, first = 0, end = 0, mine = 0, row = 0;
    auto read_plan = [&] {
        if (n >= all) return;
        i = n / G, g = n - i * G;
        first = a.merge_first[i], end = a.merge_first[i + 1];
        row = batch_row(a, a.merge_row[i]);
        mine = first + lane < end ? a.merge[first + lane] : 0;
    };
    read_plan();
    meet<MERGING>(a.barrier + head * 32, a.ctas);
    TRACE(4);
    while (n < all) {
        float m_all = NEG_INF, l_all = 0.0f, x[PAIRS], y[PAIRS];
#pragma unroll
        for (int c = 0; c < PAIRS; c++) x[c] = y[c] = 0.0f;
        const float* part_lse = a.part_lse + (u64)head * a.partials * G + g;
        const float* part_o = a.part_o + ((u64)head * a.partials * G + g) * D;
        for (u32 at = first; at < end; at += 32) {
            if (at != first) mine = at + lane < end ? a.merge[at + lane] : 0;
            float own = at + lane < end ? __ldcg(part_lse + (u64)mine * G) : NEG_INF;
            const u32 many = end - at < 32 ? end - at : 32;
            float higher = m_all, w_own = 0.0f;
            for (u32 k = 0; k < many; k += BATCH) {
                float2 v[BATCH][PAIRS];
#pragma unroll
                for (int b = 0; b < BATCH; b++) {
                    u32 part = __shfl_sync(~0u, mine, (k + b) & 31);
#pragma unroll
                    for (int c = 0; c < PAIRS; c++) {
                        u32 column = (c * 32 + lane) * 2;
                        v[b][c] = k + b < many && column < D ? __ldcg((const float2*)(part_o + (u64)part * G * D + column)) : make_float2(0.0f, 0.0f);
                    }
                }
                if (k == 0) {  // the weights, while the partials are on their way
                    float top = own;
#pragma unroll
                    for (int s = 16; s; s /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, s));
                    higher = fmaxf(m_all, top);
                    float w_old = weight(m_all, higher);
                    w_own = weight(own, higher);
                    m_all = higher;
                    l_all *= w_old;
#pragma unroll
                    for (int c = 0; c < PAIRS; c++) { x[c] *= w_old; y[c] *= w_old; }
                }
#pragma unroll
                for (int b = 0; b < BATCH; b++) {
                    float w = __shfl_sync(~0u, w_own, (k + b) & 31);
                    if (k + b < many) {
                        l_all += w;
#pragma unroll
                        for (int c = 0; c < PAIRS; c++) { x[c] += w * v[b][c].x; y[c] += w * v[b][c].y; }
                    }
                }
            }
        }
        float inv = l_all > 0.0f ? 1.0f / l_all : 0.0f;
        u64 to = ((u64)row * a.kv_heads + head) * G + g;
#pragma unroll
        for (int c = 0; c < PAIRS; c++) {
            u32 column = (c * 32 + lane) * 2;
            if (column < D) *(u32*)(a.out + to * D + column) = pack<T>(x[c] * inv, y[c] * inv);
        }
        n += step;
        read_plan();
    }
}
