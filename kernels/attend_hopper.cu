// Tree attention for Hopper (sm_90a): the same plan as attend.cu, with the bulk tensor copy engine and wgmma.
//
// A CTA, one to a multiprocessor, is two warpgroups that compute and one warp that copies. The copying warp runs ahead
// through all tiles of all the CTA's items, STAGES deep, so that items start without a pause. An item of up to 64 packed
// rows gives its even tiles to one warpgroup and its odd tiles to the other, which merge at the end in shared memory; a
// taller one gives 64 rows to each warpgroup, for every tile. Products take K and V straight from shared memory:
// S = Q K^T and O += P V with Q and P in registers. While the values of one tile are added, the next one is weighted.
//
// Grid: ctas * kv_heads blocks of 384 threads, all resident at once (a cooperative launch, or a grid of at most one block a
// multiprocessor). Shared memory: Shared<D>::BYTES.
// Bytes read: groups of 16 tokens are copied whole, so a group's tokens that no row sees are read too.
#include "plan.cuh"

#define THREADS 384  // two warpgroups compute, one warp of the third copies
#define STAGES 6
#define SEEN (16 + TILE * 4)  // where `some_first` stands in a Tile

struct __align__(64) TensorMap { u64 opaque[16]; };

template <int D> struct Shared {
    static constexpr int HALVES = D / 64;            // 64 columns of 16 bits are one 128-byte swizzled row
    static constexpr int HALF = TILE * 128;          // bytes of a tile's half
    static constexpr int V = HALVES * HALF;          // of a stage: K, then V
    static constexpr int STAGE = 2 * V;
    static constexpr int MERGE = STAGES * STAGE;     // the merge of two warpgroups: [D / 8][128 threads] of 16 bytes
    static constexpr int META = MERGE + HALVES * 128 * 128;  // Tile [STAGES]
    static constexpr int STATE = META + STAGES * (int)sizeof(Tile);  // (m, l) of the second warpgroup's rows
    static constexpr int BARRIERS = STATE + 64 * 8;
    static constexpr int BYTES = BARRIERS + 2 * STAGES * 8;
};

__device__ __forceinline__ void barrier_init(u32 at, u32 count) { asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory"); }
__device__ __forceinline__ void barrier_expect(u32 at, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(u32 at) { asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(at) : "memory"); }
__device__ __forceinline__ void barrier_wait(u32 at, u32 parity) {
    asm volatile("{\n.reg .pred p;\nwait:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@p bra done;\nbra wait;\ndone:\n}" ::"r"(at), "r"(parity) : "memory");
}
__device__ __forceinline__ void copy_box(u32 to, const TensorMap* map, u32 c0, u32 c1, u32 c2, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
                 ::"r"(to), "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(barrier) : "memory");
}
__device__ __forceinline__ void copy_bulk(u32 to, const void* from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

// Matrix descriptors: 128-byte swizzle, 8-row groups 1024 bytes apart, 64-column halves `half` bytes apart. The lower half
// counts 16 bytes: that of a matrix `bytes` further on is bytes / 16 more.
__device__ __forceinline__ u32 describe(u32 at, u32 half) { return (at & 0x3ffff) >> 4 | (half >> 4) << 16; }
__device__ __forceinline__ u64 descriptor(u32 lower) { return (u64)(1024 >> 4 | 1 << 30) << 32 | lower; }
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }

#define R8(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define LIST32 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}"
#define LIST64 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}"

// s[64 x 64] (+)= Q[64 x 16] K[64 x 16]^T; o[64 x D] += P[64 x 16] V[16 x D]; Q and P in registers, K and V in shared memory.
template <class T> struct Wgmma;
#define WGMMA(T, NAME) \
    template <> struct Wgmma<T> { \
        static __device__ __forceinline__ void scores(float (&d)[32], const u32* a, u64 b, int add) { \
            asm volatile("{.reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." NAME "." NAME " " LIST32 ", {%32,%33,%34,%35}, %36, p, 1, 1, 0;}" \
                         : R8(d, 0), R8(d, 8), R8(d, 16), R8(d, 24) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add)); \
        } \
        static __device__ __forceinline__ void values(float (&d)[64], const u32* a, u64 b) { \
            asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." NAME "." NAME " " LIST64 ", {%64,%65,%66,%67}, %68, 1, 1, 1, 1;" \
                         : R8(d, 0), R8(d, 8), R8(d, 16), R8(d, 24), R8(d, 32), R8(d, 40), R8(d, 48), R8(d, 56) \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)); \
        } \
        static __device__ __forceinline__ void values(float (&d)[32], const u32* a, u64 b) { \
            asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." NAME "." NAME " " LIST32 ", {%32,%33,%34,%35}, %36, 1, 1, 1, 1;" \
                         : R8(d, 0), R8(d, 8), R8(d, 16), R8(d, 24) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)); \
        } \
    };
WGMMA(F16, "f16")
WGMMA(Bf16, "bf16")

// The four views of K and V: boxes of 16 tokens, and of 64 where a tile's tokens are neighbours in memory.
struct Maps { TensorMap k16, v16, k64, v64; };

// All tiles of all items of this CTA, in order.
template <int D>
__device__ __forceinline__ void copy_tiles(const Args& a, const Maps& maps, u32 head, u32 cta, char* smem) {
    using S = Shared<D>;
    const u32 lane = threadIdx.x % 32;
    const u32 full = shared_address(smem + S::BARRIERS), empty = full + STAGES * 8;
    // Lane: (group, half, K or V).
    const bool copies = lane < 4 * 2 * S::HALVES;
    const u32 which = lane % 2, half = lane / 2 % S::HALVES, group = lane / (2 * S::HALVES) % 4;
    const u32 to = shared_address(smem) + which * S::V + half * S::HALF + group * 2048;
    const TensorMap *map16 = which ? &maps.v16 : &maps.k16, *map64 = which ? &maps.v64 : &maps.k64;
    u32 n = 0;
    const u32 end = a.cta_items[cta + 1];
    bool begun = false;
    for (u32 i = a.cta_items[cta]; i < end; i++) {
        const Tile* tile = a.tiles + a.items[i].tile;
        const u32 tiles = a.items[i].tiles;
        u32 slot = tile->group[group], whole = tile->whole;
        // The plan stands since the step began; K/V does not.
        if (!begun) after_previous();
        begun = true;
        for (u32 t = 0; t < tiles; t++, n++, tile++) {
            const u32 stage = n % STAGES, use = n / STAGES, bar = full + stage * 8, at = to + stage * S::STAGE;
            u32 next = slot, next_whole = whole;
            if (t + 1 < tiles) {
                next = tile[1].group[group];
                next_whole = tile[1].whole;
            }
            if (use) barrier_wait(empty + stage * 8, (use - 1) & 1);
            if (lane == 0) {
                barrier_expect(bar, S::STAGE + sizeof(Tile));
                copy_bulk(shared_address(smem + S::META) + stage * sizeof(Tile), tile, sizeof(Tile), bar);
            }
            __syncwarp();
            const u32 c1 = slot - (slot >> 4) * a.page_skip + head * a.head_rows, c2 = (slot >> 4) * a.page_coord + head * a.head_coord;
            const bool mine = copies && (!whole || group == 0);
            if (mine) copy_box(at, whole ? map64 : map16, half * 64, c1, c2, bar);
            slot = next;
            whole = next_whole;
        }
    }
}

__device__ __forceinline__ void warpgroups_meet() { asm volatile("bar.sync 1, 256;" ::: "memory"); }

// Registers that products in flight write: what reads them must not be moved before the wait.
template <int N> __device__ __forceinline__ void settled(float (&d)[N]) {
#pragma unroll
    for (int x = 0; x < N; x++) asm volatile("" : "+f"(d[x])::"memory");
}

// A row's maximum follows the scores only when they exceed it by more than this (in units of log2), so that the sums are
// seldom scaled: until then weights are up to 2^8, which 16 bits hold as precisely as 1.
#define LAG 8.0f

// Where a warpgroup stands in the ring of stages.
struct Turn { u32 stage, parity; };

// row / G for the packed rows of an item.
__device__ __forceinline__ u32 query_of(u32 row, u32 inverse) { return row * inverse >> 16; }

// An item's queries as the tensor cores want them; rows past the end are zeros.
template <int D>
__device__ __forceinline__ void load_queries(const Args& a, const Item& item, u32 head, u32 inverse, u32 (&q)[D / 4]) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32, wg = threadIdx.x / 128;
    const u32 G = a.group, packed = item.rows * G, row0 = (packed > 64 ? wg * 64 : 0) + warp * 16 + lane / 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const u32 row = row0 + 8 * r, query = query_of(row, inverse);
        const u16* from = a.q;
        if (row < packed) from += (((u64)batch_row(a, item.row + query) * a.kv_heads + head) * G + row - query * G) * D + lane % 4 * 2;
#pragma unroll
        for (int x = 0; x < D / 16; x++)
#pragma unroll
            for (int h = 0; h < 2; h++) q[x * 4 + h * 2 + r] = row < packed ? *(const u32*)(from + x * 16 + h * 8) : 0;
    }
}

// `q`: the item's queries; leaves those of the next there, unless `last`.
template <class T, int D>
__device__ __forceinline__ void compute_item(const Args& a, const Item item, const Item next_item, bool last, u32 head, u32 inverse, u32 (&q)[D / 4],
                                             Turn& turn, char* smem, u32 smem_at) {
    using S = Shared<D>;
    constexpr int NO = D / 8;
    const u32 thread = threadIdx.x % 128, lane = threadIdx.x % 32, warp = thread / 32, wg = threadIdx.x / 128;
    const u32 G = a.group, packed = item.rows * G;
    const bool tall = packed > 64;
    const u32 full = smem_at + S::BARRIERS, empty = full + STAGES * 8;
    const u32 base = tall ? wg * 64 : 0;
    const u32 row0 = base + warp * 16 + lane / 4;
    const u32 query[2] = {item.row + query_of(row0, inverse), item.row + query_of(row0 + 8, inverse)};
    const bool live = base < packed;
    const u32 top_row = base + 63 < packed ? base + 63 : packed - 1;
    const u32 first_query = item.row + query_of(base, inverse), last_query = item.row + query_of(top_row, inverse);

    float o[NO * 4], m_run[2] = {NEG_INF, NEG_INF}, l_run[2] = {0.0f, 0.0f};
#pragma unroll
    for (int x = 0; x < NO * 4; x++) o[x] = 0.0f;

    // A tile that this warpgroup computes: its stage, and whether some rows do not see some tokens.
    struct Held { u32 stage; bool masked; };
    auto release = [&](u32 stage) {
        if (lane == 0) barrier_arrive(empty + stage * 8);
    };
    // The next tile that has something for this warpgroup, at most `skips` further on; tiles that have nothing are released.
    u32 t = 0;
    auto next_tile = [&](Held& held, u32 skips) {
        for (; t < item.tiles; skips--) {
            const u32 stage = turn.stage;
            barrier_wait(full + stage * 8, turn.parity);
            // The rows that see any of the tokens, and those that see all.
            const uint2 seen = *(const uint2*)(smem + S::META + stage * sizeof(Tile) + SEEN);
            const bool some = first_query < seen.x >> 16 & last_query >= (seen.x & 0xffff);
            const bool mine = live & some & (tall | (t & 1) == wg);
            held.stage = stage;
            held.masked = !(first_query >= (seen.y & 0xffff) & last_query < seen.y >> 16);
            const bool wraps = stage == STAGES - 1;
            turn.stage = wraps ? 0 : stage + 1;
            turn.parity ^= wraps;
            t++;
            if (mine) return true;
            __syncwarp();
            release(stage);
            if (skips == 0) return false;
        }
        return false;
    };
    auto start_scores = [&](float (&s)[32], const Held& tile) {
        const u32 k = describe(smem_at + tile.stage * S::STAGE, S::HALF);
        wgmma_fence();
#pragma unroll
        for (int x = 0; x < D / 16; x++) Wgmma<T>::scores(s, q + x * 4, descriptor(k + (x / 4 * S::HALF + x % 4 * 32) / 16), x);
        wgmma_commit();
    };
    auto start_values = [&](const u32 (&p)[16], const Held& tile) {
        const u32 v = describe(smem_at + tile.stage * S::STAGE + S::V, S::HALF);
        wgmma_fence();
#pragma unroll
        for (int x = 0; x < 4; x++) Wgmma<T>::values(o, p + x * 4, descriptor(v + x * 2048 / 16));
        wgmma_commit();
    };
    // A tile's scores as weights, in place; the sums so far are scaled by `w` where a maximum grows.
    auto weigh = [&](float (&s)[32], const Held& held, float (&w)[2]) {
        if (held.masked) {
            const Tile* tile = (const Tile*)(smem + S::META) + held.stage;
#pragma unroll
            for (int x = 0; x < 8; x++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    u32 rows = tile->rows[x * 8 + lane % 4 * 2 + e], first = rows & 0xffff, end = rows >> 16;
                    if (query[0] < first || query[0] >= end) s[x * 4 + e] = NEG_INF;
                    if (query[1] < first || query[1] >= end) s[x * 4 + 2 + e] = NEG_INF;
                }
        }
        float top[2] = {fmaxf(s[0], s[1]), fmaxf(s[2], s[3])};
#pragma unroll
        for (int x = 1; x < 8; x++) {
            top[0] = fmaxf(top[0], fmaxf(s[x * 4], s[x * 4 + 1]));
            top[1] = fmaxf(top[1], fmaxf(s[x * 4 + 2], s[x * 4 + 3]));
        }
        bool grows = false;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 1));
            top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 2));
            top[r] *= a.scale_log2;
            grows |= top[r] > m_run[r] + LAG;
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float higher = top[r] > m_run[r] + LAG ? top[r] : m_run[r];
            w[r] = weight(m_run[r], higher);
            m_run[r] = higher;
            l_run[r] *= w[r];
        }
        const float shift[2] = {finite(m_run[0]), finite(m_run[1])};
#pragma unroll
        for (int x = 0; x < 8; x++) {
            s[x * 4] = exp2_fast(s[x * 4] * a.scale_log2 - shift[0]), s[x * 4 + 1] = exp2_fast(s[x * 4 + 1] * a.scale_log2 - shift[0]);
            s[x * 4 + 2] = exp2_fast(s[x * 4 + 2] * a.scale_log2 - shift[1]), s[x * 4 + 3] = exp2_fast(s[x * 4 + 3] * a.scale_log2 - shift[1]);
            l_run[0] += s[x * 4] + s[x * 4 + 1];
            l_run[1] += s[x * 4 + 2] + s[x * 4 + 3];
        }
        return __any_sync(~0u, grows);
    };
    auto scale = [&](const float (&w)[2]) {
#pragma unroll
        for (int x = 0; x < NO; x++) {
            o[x * 4] *= w[0];
            o[x * 4 + 1] *= w[0];
            o[x * 4 + 2] *= w[1];
            o[x * 4 + 3] *= w[1];
        }
    };

    TRACE(1);
    // Each part stands in the loop once: where little is computed, fetching the code is much of the time.
    Held held, next;
    float s[32], w[2];
    u32 p[16];
    bool adding = false;
    for (;;) {
        if (!next_tile(next, adding ? 1 : ~0u)) {
            if (!adding) break;
            start_values(p, held);
            wgmma_wait<0>();
            settled(o);
            release(held.stage);
            adding = false;
            continue;
        }
        if (!adding) {  // no weights so far: the first tile adds its own values, weighted with nothing
            held = next;
#pragma unroll
            for (int x = 0; x < 16; x++) p[x] = 0;
        }
        start_scores(s, next);
        start_values(p, held);
        wgmma_wait<1>();
        settled(s);
        // Two waits, so that the weights are computed before either.
        if (weigh(s, next, w)) {
            wgmma_wait<0>();
            settled(o);
            scale(w);
        } else {
            wgmma_wait<0>();
        }
        if (adding) release(held.stage);
#pragma unroll
        for (int x = 0; x < 16; x++) p[x] = pack<T>(s[x * 2], s[x * 2 + 1]);
        held = next;
        adding = true;
    }
    TRACE(2);
    if (!last) load_queries<D>(a, next_item, head, inverse, q);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        l_run[r] += __shfl_xor_sync(~0u, l_run[r], 1);
        l_run[r] += __shfl_xor_sync(~0u, l_run[r], 2);
    }

    if (!tall) {
        // The second warpgroup hands its state to the first, thread by thread.
        float4* theirs = (float4*)(smem + S::MERGE) + thread;
        float2* state = (float2*)(smem + S::STATE) + row0;
        warpgroups_meet();
        if (wg == 1) {
#pragma unroll
            for (int x = 0; x < NO; x++) theirs[x * 128] = make_float4(o[x * 4], o[x * 4 + 1], o[x * 4 + 2], o[x * 4 + 3]);
            if (lane % 4 == 0) state[0] = make_float2(m_run[0], l_run[0]), state[8] = make_float2(m_run[1], l_run[1]);
        }
        warpgroups_meet();
        if (wg == 0) {
            const float2 other[2] = {state[0], state[8]};
            float m_all[2] = {fmaxf(m_run[0], other[0].x), fmaxf(m_run[1], other[1].x)};
            float w[2] = {weight(m_run[0], m_all[0]), weight(m_run[1], m_all[1])};
            float v[2] = {weight(other[0].x, m_all[0]), weight(other[1].x, m_all[1])};
            l_run[0] = l_run[0] * w[0] + other[0].y * v[0];
            l_run[1] = l_run[1] * w[1] + other[1].y * v[1];
#pragma unroll
            for (int x = 0; x < NO; x++) {
                float4 part = theirs[x * 128];
                o[x * 4] = o[x * 4] * w[0] + part.x * v[0];
                o[x * 4 + 1] = o[x * 4 + 1] * w[0] + part.y * v[0];
                o[x * 4 + 2] = o[x * 4 + 2] * w[1] + part.z * v[1];
                o[x * 4 + 3] = o[x * 4 + 3] * w[1] + part.w * v[1];
            }
            m_run[0] = m_all[0];
            m_run[1] = m_all[1];
        }
    }
    if (tall || wg == 0) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            u32 row = row0 + 8 * r;
            if (row >= packed) continue;
            u32 qr = query_of(row, inverse), g = row - qr * G;
            float inv = l_run[r] > 0.0f ? 1.0f / l_run[r] : 0.0f;
            if (item.partial == ~0u) {
                u16* to = a.out + (((u64)batch_row(a, item.row + qr) * a.kv_heads + head) * G + g) * D + lane % 4 * 2;
#pragma unroll
                for (int x = 0; x < NO; x++) *(u32*)(to + x * 8) = pack<T>(o[x * 4 + 2 * r] * inv, o[x * 4 + 2 * r + 1] * inv);
            } else {
                u64 at = ((u64)head * a.partials + item.partial + qr) * G + g;
                float* to = a.part_o + at * D + lane % 4 * 2;
#pragma unroll
                for (int x = 0; x < NO; x++) *(float2*)(to + x * 8) = make_float2(o[x * 4 + 2 * r] * inv, o[x * 4 + 2 * r + 1] * inv);
                if (lane % 4 == 0) a.part_lse[at] = lse(m_run[r], l_run[r]);
            }
        }
    }
    TRACE(3);
}

template <class T, int D>
__device__ __forceinline__ void attend(const Args& a, const Maps& maps) {
    TRACE(0);
    extern __shared__ __align__(1024) char smem[];
    using S = Shared<D>;
    const u32 head = blockIdx.x % a.kv_heads, cta = blockIdx.x / a.kv_heads;
    if (threadIdx.x == 0) {
        u32 full = shared_address(smem + S::BARRIERS), empty = full + STAGES * 8;
        for (int s = 0; s < STAGES; s++) {
            barrier_init(full + s * 8, 1);
            barrier_init(empty + s * 8, 8);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    next_may_begin();
    __syncthreads();
    // Registers go where they are needed: 56 for the copying warpgroup, 224 for the others.
    if (threadIdx.x >= 256) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
        if (threadIdx.x < 288) copy_tiles<D>(a, maps, head, cta, smem);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
        // Not to be computed anew at every use: the address of shared memory takes a special register.
        const u32 smem_at = __shfl_sync(~0u, shared_address(smem), 0);
        Turn turn = {0, 0};
        const u32 begin = a.cta_items[cta], end = a.cta_items[cta + 1], inverse = 65536 / a.group + 1;
        // Items are copied, since what stands in memory would be read again at every tile.
        Item item;
        if (begin < end) item = a.items[begin];
        after_previous();
        u32 q[D / 4];
        if (begin < end) load_queries<D>(a, item, head, inverse, q);
        for (u32 i = begin; i < end; i++) {
            const bool last = i + 1 == end;
            const Item next = a.items[last ? i : i + 1];
            compute_item<T, D>(a, item, next, last, head, inverse, q, turn, smem, smem_at);
            item = next;
        }
        if (a.merges) merge<T, D, 256>(a, head, cta);
        TRACE(5);
    }
}

#ifndef KERNEL_TYPE
#define KERNEL_TYPE F16
#define KERNEL_SIZE 128
#endif
#ifndef KERNEL_NAME
#define KERNEL_NAME attend_tree
#endif
extern "C" __global__ void __launch_bounds__(THREADS, 1) KERNEL_NAME(const __grid_constant__ Args a, const __grid_constant__ Maps maps) {
    attend<KERNEL_TYPE, KERNEL_SIZE>(a, maps);
}
