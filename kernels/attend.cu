// Tree attention, one launch: partial attention of all units, then their merge.
//
// Parallel over: (K/V head, CTA of the plan). Every CTA walks the items that the plan gave it. An item is a range of
// query rows (all G query heads of the K/V head for each, packed: packed row = query * G + head) against a run of tiles
// of 64 K/V tokens. K and V of a tile are read once into shared memory for all packed rows of the item, by asynchronous
// copies two tiles ahead of the tensor cores. Tokens are named by slot, so paged and unpaged memory are the same to it.
// Which rows see a key is a range of query rows per key (rows are in depth-first order), 4 bytes a key, and only tiles
// that some row sees in part are masked.
//
// Bytes read: K/V of the item's tokens (2 * D * 2 bytes each), 528 bytes of tile description a tile and head, Q once an
// item. Written: per item and packed row either the final row (2 * D bytes) or a partial of 4 * (D + 1) bytes.
//
// Grid: ctas * kv_heads blocks of 128 threads, all resident at once (cooperative launch), two to a multiprocessor.
// The CTAs of one K/V head meet at a barrier in device memory, then share the merge of that head's rows.
// Shared memory: SMEM(D) bytes, three stages of (K tile, V tile, row ranges); rows are padded by 16 bytes against bank
// conflicts. Empty input: a row with no item is written by nobody; the plan gives every row at least its own token.
#include "plan.cuh"

#define THREADS 128

template <int D> struct Layout {
    static constexpr int ROW = D * 2 + 16;                 // bytes of a padded row
    static constexpr int K = TILE * ROW;
    static constexpr int META = TILE * 4 + 16;
    static constexpr int STAGE = 2 * K + META;
    static constexpr int RING = 3 * STAGE;                 // slots and rows of the tiles to come: [4]
    static constexpr int ENTRY = 16 + TILE * 4;
    static constexpr int SMEM = RING + 4 * ENTRY;
    static constexpr int CHUNKS = D / 8;                   // of 16 bytes in a row
};

// Starts the copies of one tile into `stage`. `group` is its first ENTRY bytes, in shared or device memory.
template <int D>
__device__ __forceinline__ void fetch_tile(const Args& a, u32 head, const Tile* tile, const u32* group, char* stage) {
    using L = Layout<D>;
    const u16* k = a.k + (u64)head * a.head_stride;
    const u16* v = a.v + (u64)head * a.head_stride;
    u32 to = shared_address(stage);
#pragma unroll
    for (int i = 0; i < TILE * L::CHUNKS / THREADS; i++) {
        int n = threadIdx.x + i * THREADS;
        int key = n / L::CHUNKS, chunk = n % L::CHUNKS;
        u32 slot = group[key / 16] + key % 16;
        u32 bytes = group[4 + key] ? 16 : 0;
        u64 at = bytes ? (u64)(slot >> 4) * a.page_stride + (slot & 15) * a.token_stride + chunk * 8 : 0;
        copy_async(to + key * L::ROW + chunk * 16, k + at, bytes);
        copy_async(to + L::K + key * L::ROW + chunk * 16, v + at, bytes);
    }
    if (threadIdx.x < L::META / 16) copy_async(to + 2 * L::K + threadIdx.x * 16, tile->rows + threadIdx.x * 4, 16);
}

__device__ __forceinline__ void fetch_slots(const Tile* tile, char* ring) {
    if (threadIdx.x >= 64 && threadIdx.x < 64 + 17) {
        int n = threadIdx.x - 64;
        copy_async(shared_address(ring) + n * 16, tile->group + n * 4, 16);
    }
}

// One item. Warps are WR over rows times 4 / WR over the keys of a tile; each warp has MT row tiles of 16.
// KEEP_Q: Q stays in the third stage's memory (MT = 2: registers would not hold it), so two stages are left.
template <class T, int D, int MT, int WR, bool KEEP_Q>
__device__ __forceinline__ void run_item(const Args& a, const Item& item, u32 head, char* smem) {
    using L = Layout<D>;
    constexpr int WK = 4 / WR, KEYS = TILE / WK;            // keys of a tile for each warp
    constexpr int NS = KEYS / 8, NO = D / 8, KS = D / 16;
    constexpr int STAGES = KEEP_Q ? 2 : 3;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int wr = warp % WR, wk = warp / WR;
    const u32 G = a.group, packed = item.rows * G;
    const Tile* tiles = a.tiles + item.tile;
    char* q_smem = smem + 2 * L::STAGE;
    char* ring = smem + L::RING;

    // Q: rows past the end are zeros.
    {
        u32 to = shared_address(q_smem);
        for (int n = threadIdx.x; n < MT * WR * 16 * L::CHUNKS; n += THREADS) {
            u32 row = n / L::CHUNKS, chunk = n % L::CHUNKS;
            bool real = row < packed;
            u32 query = real ? row / G : 0, g = real ? row - query * G : 0;
            u64 at = ((u64)batch_row(a, item.row + query) * a.kv_heads + head) * G + g;
            copy_async(to + row * L::ROW + chunk * 16, a.q + at * D + chunk * 8, real ? 16 : 0);
        }
        copy_commit();
    }
#pragma unroll
    for (int t = 0; t < 2; t++) {
        if (t < item.tiles) fetch_tile<D>(a, head, tiles + t, tiles[t].group, smem + t * L::STAGE);
        if (t + 2 < item.tiles) fetch_slots(tiles + t + 2, ring + ((t + 2) & 3) * L::ENTRY);
        copy_commit();
    }

    // Row tile m of this warp starts at packed row (wr + WR * m) * 16; lane holds rows lane / 4 and lane / 4 + 8 of it.
    u32 query[MT][2], tile_first[MT], tile_last[MT];
    bool live[MT];
#pragma unroll
    for (int m = 0; m < MT; m++) {
        u32 base = (wr + WR * m) * 16;
        live[m] = base < packed;
        tile_first[m] = item.row + base / G;
        u32 last = base + 15 < packed ? base + 15 : packed - 1;
        tile_last[m] = item.row + last / G;
        query[m][0] = item.row + (base + lane / 4) / G;
        query[m][1] = item.row + (base + lane / 4 + 8) / G;
    }

    float o[MT][NO][4], m_run[MT][2], l_run[MT][2];
#pragma unroll
    for (int m = 0; m < MT; m++) {
        m_run[m][0] = m_run[m][1] = NEG_INF;
        l_run[m][0] = l_run[m][1] = 0.0f;
#pragma unroll
        for (int n = 0; n < NO; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) o[m][n][e] = 0.0f;
    }

    // Addresses of this lane's matrix rows inside a tile.
    const u32 q_lane = shared_address(q_smem) + (wr * 16 + lane % 16) * L::ROW + (lane / 16) * 16;
    const u32 k_lane = (wk * KEYS + (lane / 16) * 8 + lane % 8) * L::ROW + ((lane / 8) % 2) * 16;
    const u32 v_lane = L::K + (wk * KEYS + lane % 16) * L::ROW + (lane / 16) * 16;

    u32 q[KEEP_Q ? 1 : KS][4];
    copy_wait<2>();
    __syncthreads();
    if constexpr (!KEEP_Q) {
#pragma unroll
        for (int s = 0; s < KS; s++) load_matrix(q[s], q_lane + s * 32);
    }

    for (u32 t = 0; t < item.tiles; t++) {
        copy_wait<1>();
        __syncthreads();
        if constexpr (!KEEP_Q) {
            u32 next = t + 2;
            if (next < item.tiles) {
                fetch_tile<D>(a, head, tiles + next, (u32*)(ring + (next & 3) * L::ENTRY), smem + (next % STAGES) * L::STAGE);
                if (next + 2 < item.tiles) fetch_slots(tiles + next + 2, ring + ((next + 2) & 3) * L::ENTRY);
            }
            copy_commit();
        }
        char* stage = smem + (t % STAGES) * L::STAGE;
        const u32 stage_at = shared_address(stage);
        const u32* key_rows = (const u32*)(stage + 2 * L::K);
        const u16* seen = (const u16*)(stage + 2 * L::K + TILE * 4);
        bool some = false, masked = false;
#pragma unroll
        for (int m = 0; m < MT; m++) {
            bool touched = live[m] && tile_first[m] < seen[1] && tile_last[m] >= seen[0];
            some |= touched;
            masked |= live[m] && !(tile_first[m] >= seen[2] && tile_last[m] < seen[3]);
        }
        if (some) {
            float s[MT][NS][4];
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int n = 0; n < NS; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++) s[m][n][e] = 0.0f;
#pragma unroll
            for (int x = 0; x < KS; x++) {
                u32 qa[MT][4];
                if constexpr (KEEP_Q) {
#pragma unroll
                    for (int m = 0; m < MT; m++) load_matrix(qa[m], q_lane + m * WR * 16 * L::ROW + x * 32);
                } else {
#pragma unroll
                    for (int e = 0; e < 4; e++) qa[0][e] = q[x][e];
                }
#pragma unroll
                for (int n = 0; n < NS / 2; n++) {
                    u32 b[4];
                    load_matrix(b, stage_at + k_lane + n * 16 * L::ROW + x * 32);
#pragma unroll
                    for (int m = 0; m < MT; m++) {
                        mma<T>(s[m][2 * n], qa[m], b[0], b[1]);
                        mma<T>(s[m][2 * n + 1], qa[m], b[2], b[3]);
                    }
                }
            }
            if (masked) {
#pragma unroll
                for (int n = 0; n < NS; n++) {
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        u32 rows = key_rows[wk * KEYS + n * 8 + (lane % 4) * 2 + e];
                        u32 first = rows & 0xffff, end = rows >> 16;
#pragma unroll
                        for (int m = 0; m < MT; m++) {
                            if (query[m][0] < first || query[m][0] >= end) s[m][n][e] = NEG_INF;
                            if (query[m][1] < first || query[m][1] >= end) s[m][n][e + 2] = NEG_INF;
                        }
                    }
                }
            }
            u32 p[MT][NS][2];
#pragma unroll
            for (int m = 0; m < MT; m++) {
                float top[2] = {NEG_INF, NEG_INF};
#pragma unroll
                for (int n = 0; n < NS; n++) {
                    top[0] = fmaxf(top[0], fmaxf(s[m][n][0], s[m][n][1]));
                    top[1] = fmaxf(top[1], fmaxf(s[m][n][2], s[m][n][3]));
                }
                float shift[2];
                bool grows = false;
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 1));
                    top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 2));
                    top[r] *= a.scale_log2;
                    grows |= top[r] > m_run[m][r];
                }
                if (__any_sync(~0u, grows)) {
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        float higher = fmaxf(m_run[m][r], top[r]);
                        float w = weight(m_run[m][r], higher);
                        m_run[m][r] = higher;
                        l_run[m][r] *= w;
#pragma unroll
                        for (int n = 0; n < NO; n++) {
                            o[m][n][2 * r] *= w;
                            o[m][n][2 * r + 1] *= w;
                        }
                    }
                }
#pragma unroll
                for (int r = 0; r < 2; r++) shift[r] = finite(m_run[m][r]);
#pragma unroll
                for (int n = 0; n < NS; n++) {
                    float e0 = exp2_fast(s[m][n][0] * a.scale_log2 - shift[0]);
                    float e1 = exp2_fast(s[m][n][1] * a.scale_log2 - shift[0]);
                    float e2 = exp2_fast(s[m][n][2] * a.scale_log2 - shift[1]);
                    float e3 = exp2_fast(s[m][n][3] * a.scale_log2 - shift[1]);
                    l_run[m][0] += e0 + e1;
                    l_run[m][1] += e2 + e3;
                    p[m][n][0] = pack<T>(e0, e1);
                    p[m][n][1] = pack<T>(e2, e3);
                }
            }
#pragma unroll
            for (int x = 0; x < KEYS / 16; x++) {
#pragma unroll
                for (int n = 0; n < NO / 2; n++) {
                    u32 b[4];
                    load_matrix_transposed(b, stage_at + v_lane + x * 16 * L::ROW + n * 32);
#pragma unroll
                    for (int m = 0; m < MT; m++) {
                        u32 pa[4] = {p[m][2 * x][0], p[m][2 * x][1], p[m][2 * x + 1][0], p[m][2 * x + 1][1]};
                        mma<T>(o[m][2 * n], pa, b[0], b[1]);
                        mma<T>(o[m][2 * n + 1], pa, b[2], b[3]);
                    }
                }
            }
        }
        if constexpr (KEEP_Q) {
            __syncthreads();
            u32 next = t + 2;
            if (next < item.tiles) {
                fetch_tile<D>(a, head, tiles + next, (u32*)(ring + (next & 3) * L::ENTRY), stage);
                if (next + 2 < item.tiles) fetch_slots(tiles + next + 2, ring + ((next + 2) & 3) * L::ENTRY);
            }
            copy_commit();
        }
    }
    copy_wait<0>();

#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            l_run[m][r] += __shfl_xor_sync(~0u, l_run[m][r], 1);
            l_run[m][r] += __shfl_xor_sync(~0u, l_run[m][r], 2);
        }
    __syncthreads();

    // Where packed row `row` of this item goes.
    const bool final_rows = item.partial == ~0u;
    auto store_pair = [&](u32 row, int column, float x, float y) {
        u32 qr = row / G, g = row - qr * G;
        if (final_rows) {
            u64 at = ((u64)batch_row(a, item.row + qr) * a.kv_heads + head) * G + g;
            *(u32*)(a.out + at * D + column) = pack<T>(x, y);
        } else {
            u64 at = ((u64)head * a.partials + item.partial + qr) * G + g;
            *(float2*)(a.part_o + at * D + column) = make_float2(x, y);
        }
    };
    auto store_lse = [&](u32 row, float m, float l) {
        u32 qr = row / G, g = row - qr * G;
        if (!final_rows) a.part_lse[((u64)head * a.partials + item.partial + qr) * G + g] = lse(m, l);
    };

    if constexpr (WK == 1) {
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                u32 row = (wr + WR * m) * 16 + lane / 4 + 8 * r;
                if (row < packed) {
                    float inv = l_run[m][r] > 0.0f ? 1.0f / l_run[m][r] : 0.0f;
#pragma unroll
                    for (int n = 0; n < NO; n++)
                        store_pair(row, n * 8 + (lane % 4) * 2, o[m][n][2 * r] * inv, o[m][n][2 * r + 1] * inv);
                    if (lane % 4 == 0) store_lse(row, m_run[m][r], l_run[m][r]);
                }
            }
    } else {
        // Warps that shared rows merge through shared memory: [WK][WR * 16] rows of (m, l), then of o.
        constexpr int ROWS = WR * 16, PITCH = D + 8;
        float* ml = (float*)smem;
        float* os = ml + WK * ROWS * 2;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = wr * 16 + lane / 4 + 8 * r;
            if (lane % 4 == 0) {
                ml[(wk * ROWS + row) * 2] = m_run[0][r];
                ml[(wk * ROWS + row) * 2 + 1] = l_run[0][r];
            }
#pragma unroll
            for (int n = 0; n < NO; n++)
                *(float2*)(os + (wk * ROWS + row) * PITCH + n * 8 + (lane % 4) * 2) = make_float2(o[0][n][2 * r], o[0][n][2 * r + 1]);
        }
        __syncthreads();
        for (int n = threadIdx.x; n < ROWS * D / 2; n += THREADS) {
            u32 row = n / (D / 2);
            int column = n % (D / 2) * 2;
            if (row >= packed) break;
            float m_all = NEG_INF, l_all = 0.0f, x = 0.0f, y = 0.0f;
#pragma unroll
            for (int k = 0; k < WK; k++) m_all = fmaxf(m_all, ml[(k * ROWS + row) * 2]);
#pragma unroll
            for (int k = 0; k < WK; k++) {
                float w = weight(ml[(k * ROWS + row) * 2], m_all);
                float2 part = *(float2*)(os + (k * ROWS + row) * PITCH + column);
                l_all += ml[(k * ROWS + row) * 2 + 1] * w;
                x += part.x * w;
                y += part.y * w;
            }
            float inv = l_all > 0.0f ? 1.0f / l_all : 0.0f;
            store_pair(row, column, x * inv, y * inv);
            if (column == 0) store_lse(row, m_all, l_all);
        }
    }
    __syncthreads();
}

template <class T, int D> __device__ __forceinline__ void attend(const Args& a) {
    extern __shared__ __align__(128) char smem[];
    const u32 head = blockIdx.x % a.kv_heads, cta = blockIdx.x / a.kv_heads;
    const u32 end = a.cta_items[cta + 1];
    for (u32 i = a.cta_items[cta]; i < end; i++) {
        const Item item = a.items[i];
        if (item.kind == 0) run_item<T, D, 1, 1, false>(a, item, head, smem);
        else if (item.kind == 1) run_item<T, D, 1, 2, false>(a, item, head, smem);
        else if (item.kind == 2) run_item<T, D, 1, 4, false>(a, item, head, smem);
        else run_item<T, D, 2, 4, true>(a, item, head, smem);
    }
    if (a.merges) merge<T, D, THREADS>(a, head, cta);
}

// build.sh compiles one PTX file a number type and head size, so that a start compiles one kernel only.
#ifndef KERNEL_TYPE
#define KERNEL_TYPE F16
#define KERNEL_SIZE 128
#endif
#ifndef KERNEL_NAME
#define KERNEL_NAME attend_tree
#endif
extern "C" __global__ void __launch_bounds__(THREADS, 2) KERNEL_NAME(const __grid_constant__ Args a) { attend<KERNEL_TYPE, KERNEL_SIZE>(a); }
