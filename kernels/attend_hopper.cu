// Tree attention for Hopper (sm_90a): the same plan as attend.cu, with the bulk tensor copy engine and wgmma.
//
// A CTA, one to a multiprocessor, is two warpgroups that compute and one warp that copies. The copying warp runs ahead
// through all tiles of all the CTA's items, STAGES deep, so that items start without a pause. An item of up to 64 packed
// rows gives its even tiles to one warpgroup and its odd tiles to the other, which merge at the end in shared memory; a
// taller one gives 64 rows to each warpgroup, for every tile. Products take K and V straight from shared memory: S = Q K^T
// with Q there too, O += P V with P in registers.
//
// Grid: ctas * kv_heads blocks of 288 threads, all resident at once (a cooperative launch, or a grid of at most one block a multiprocessor). Shared memory: Shared<D>::BYTES.
// Bytes read: groups of 16 tokens are copied whole, so a group's tokens that no row sees are read too.
#include "plan.cuh"

#define THREADS 384  // two warpgroups compute, one warp of the third copies
#define STAGES 5

struct __align__(64) TensorMap { u64 opaque[16]; };

template <int D> struct Shared {
    static constexpr int HALVES = D / 64;            // 64 columns of 16 bits are one 128-byte swizzled row
    static constexpr int HALF = TILE * 128;          // bytes of a tile's half
    static constexpr int V = HALVES * HALF;
    static constexpr int STAGE = 2 * V;
    static constexpr int Q_HALF = 128 * 128;
    static constexpr int Q = STAGES * STAGE;         // [HALVES][128 rows][128 bytes]; also the merge of two warpgroups
    static constexpr int Q_BYTES = HALVES * Q_HALF;
    static constexpr int META = Q + Q_BYTES;         // Tile [STAGES]
    static constexpr int STATE = META + STAGES * (int)sizeof(Tile);  // (m, l) of the second warpgroup's threads: [128][4]
    static constexpr int BARRIERS = STATE + 128 * 16;
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

// Matrix descriptors: 128-byte swizzle, 8-row groups 1024 bytes apart, 64-column halves `half` bytes apart.
__device__ __forceinline__ u64 describe(u32 at, u32 half) {
    return (u64)((at & 0x3ffff) >> 4) | (u64)(half >> 4) << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }

#define R8(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define LIST32 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}"
#define LIST64 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}"

// s[64 x 64] (+)= Q[64 x 16] K[64 x 16]^T, both in shared memory; o[64 x D] += P[64 x 16] V[16 x D], P in registers.
template <class T> struct Wgmma;
#define WGMMA(T, NAME) \
    template <> struct Wgmma<T> { \
        static __device__ __forceinline__ void scores(float (&d)[32], u64 a, u64 b, int add) { \
            asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." NAME "." NAME " " LIST32 ", %32, %33, p, 1, 1, 0, 0;}" \
                         : R8(d, 0), R8(d, 8), R8(d, 16), R8(d, 24) : "l"(a), "l"(b), "r"(add)); \
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
            const u32 stage = n % STAGES, use = n / STAGES, bar = full + stage * 8;
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
            if (whole) {
                if (copies && group == 0) copy_box(to + stage * S::STAGE, which ? &maps.v64 : &maps.k64, half * 64, c1, c2, bar);
            } else {
                if (copies) copy_box(to + stage * S::STAGE, which ? &maps.v16 : &maps.k16, half * 64, c1, c2, bar);
            }
            slot = next;
            whole = next_whole;
        }
    }
}

__device__ __forceinline__ void warpgroups_meet() { asm volatile("bar.sync 1, 256;" ::: "memory"); }

template <class T, int D>
__device__ __forceinline__ void compute_item(const Args& a, const Item& item, u32 head, u32& n, char* smem) {
    using S = Shared<D>;
    constexpr int NO = D / 8;
    const u32 thread = threadIdx.x % 128, lane = threadIdx.x % 32, warp = thread / 32, wg = threadIdx.x / 128;
    const u32 G = a.group, packed = item.rows * G;
    const bool tall = packed > 64;
    const u32 full = shared_address(smem + S::BARRIERS), empty = full + STAGES * 8;
    const u32 q_at = shared_address(smem + S::Q);

    // Q, by both warpgroups; rows past the end are zeros. 16-byte pieces are swizzled as the tensor cores expect.
    for (u32 x = threadIdx.x; x < (tall ? 128 : 64) * (D / 8); x += 256) {
        u32 row = x / (D / 8), piece = x % (D / 8);
        uint4 value = make_uint4(0, 0, 0, 0);
        if (row < packed) {
            u32 query = row / G, g = row - query * G;
            u64 at = ((u64)batch_row(a, item.row + query) * a.kv_heads + head) * G + g;
            value = *(const uint4*)(a.q + at * D + piece * 8);
        }
        *(uint4*)(smem + S::Q + piece / 8 * S::Q_HALF + row * 128 + ((piece % 8) ^ (row % 8)) * 16) = value;
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    warpgroups_meet();

    const u32 base = tall ? wg * 64 : 0;
    const u32 q_base = q_at + base * 128;
    const u32 row0 = base + warp * 16 + lane / 4;
    const u32 query[2] = {item.row + row0 / G, item.row + (row0 + 8) / G};
    const bool live = base < packed;
    const u32 top_row = base + 63 < packed ? base + 63 : packed - 1;
    const u32 first_query = item.row + base / G, last_query = item.row + top_row / G;

    float o[NO * 4], m_run[2] = {NEG_INF, NEG_INF}, l_run[2] = {0.0f, 0.0f};
#pragma unroll
    for (int x = 0; x < NO * 4; x++) o[x] = 0.0f;

    // The next tile that has something for this warpgroup, at most `skips` further on; tiles that have nothing are released.
    u32 t = 0;
    auto next_tile = [&](u32& stage, u32 skips) {
        for (; t < item.tiles; skips--) {
            stage = n % STAGES;
            barrier_wait(full + stage * 8, (n / STAGES) & 1);
            const Tile* tile = (const Tile*)(smem + S::META) + stage;
            const bool mine = live && (tall || (t & 1) == wg) && first_query < tile->some_end && last_query >= tile->some_first;
            t++, n++;
            if (mine) return true;
            __syncwarp();
            if (lane == 0) barrier_arrive(empty + stage * 8);
            if (skips == 0) return false;
        }
        return false;
    };
    auto start_scores = [&](float (&s)[32], u32 stage) {
        const u32 k_at = shared_address(smem) + stage * S::STAGE;
        wgmma_fence();
#pragma unroll
        for (int x = 0; x < D / 16; x++)
            Wgmma<T>::scores(s, describe(q_base + x / 4 * S::Q_HALF + x % 4 * 32, S::Q_HALF), describe(k_at + x / 4 * S::HALF + x % 4 * 32, S::HALF), x);
        wgmma_commit();
    };
    // Softmax of a tile's scores, and o += P V; waits for all products that were started.
    auto add_tile = [&](float (&s)[32], u32 stage) {
        const Tile* tile = (const Tile*)(smem + S::META) + stage;
        if (!(first_query >= tile->all_first && last_query < tile->all_end)) {
#pragma unroll
            for (int x = 0; x < 8; x++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    u32 rows = tile->rows[x * 8 + lane % 4 * 2 + e], first = rows & 0xffff, end = rows >> 16;
                    if (query[0] < first || query[0] >= end) s[x * 4 + e] = NEG_INF;
                    if (query[1] < first || query[1] >= end) s[x * 4 + 2 + e] = NEG_INF;
                }
        }
        float top[2] = {NEG_INF, NEG_INF};
#pragma unroll
        for (int x = 0; x < 8; x++) {
            top[0] = fmaxf(top[0], fmaxf(s[x * 4], s[x * 4 + 1]));
            top[1] = fmaxf(top[1], fmaxf(s[x * 4 + 2], s[x * 4 + 3]));
        }
        bool grows = false;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 1));
            top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 2));
            top[r] *= a.scale_log2;
            grows |= top[r] > m_run[r];
        }
        if (__any_sync(~0u, grows)) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float higher = fmaxf(m_run[r], top[r]), w = weight(m_run[r], higher);
                m_run[r] = higher;
                l_run[r] *= w;
#pragma unroll
                for (int x = 0; x < NO; x++) {
                    o[x * 4 + 2 * r] *= w;
                    o[x * 4 + 2 * r + 1] *= w;
                }
            }
        }
        const float shift[2] = {finite(m_run[0]), finite(m_run[1])};
        u32 p[16];
#pragma unroll
        for (int x = 0; x < 8; x++) {
            float e0 = exp2_fast(s[x * 4] * a.scale_log2 - shift[0]), e1 = exp2_fast(s[x * 4 + 1] * a.scale_log2 - shift[0]);
            float e2 = exp2_fast(s[x * 4 + 2] * a.scale_log2 - shift[1]), e3 = exp2_fast(s[x * 4 + 3] * a.scale_log2 - shift[1]);
            l_run[0] += e0 + e1;
            l_run[1] += e2 + e3;
            p[x * 2] = pack<T>(e0, e1);
            p[x * 2 + 1] = pack<T>(e2, e3);
        }
        const u32 v_at = shared_address(smem) + stage * S::STAGE + S::V;
        wgmma_fence();
#pragma unroll
        for (int x = 0; x < 4; x++) Wgmma<T>::values(o, p + x * 4, describe(v_at + x * 2048, S::HALF));
        wgmma_commit();
        wgmma_wait<0>();
        if (lane == 0) barrier_arrive(empty + stage * 8);
    };

    TRACE(1);
    // A tile's scores are started before the softmax of the one before, so that the tensor cores have work meanwhile. A
    // tile is held for at most two others: the stage of a held tile cannot be filled again.
    u32 held;
    while (next_tile(held, ~0u)) {
        float fresh[32], s[32];
        start_scores(fresh, held);
        wgmma_wait<0>();
        for (;;) {
#pragma unroll
            for (int x = 0; x < 32; x++) s[x] = fresh[x];
            u32 next;
            if (!next_tile(next, 1)) break;
            start_scores(fresh, next);
            add_tile(s, held);
            held = next;
        }
        add_tile(s, held);
    }
    TRACE(2);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        l_run[r] += __shfl_xor_sync(~0u, l_run[r], 1);
        l_run[r] += __shfl_xor_sync(~0u, l_run[r], 2);
    }

    if (!tall) {
        // The second warpgroup hands its state to the first, thread by thread.
        float4* theirs = (float4*)(smem + S::Q) + thread;
        float4* state = (float4*)(smem + S::STATE) + thread;
        warpgroups_meet();
        if (wg == 1) {
#pragma unroll
            for (int x = 0; x < NO; x++) theirs[x * 128] = make_float4(o[x * 4], o[x * 4 + 1], o[x * 4 + 2], o[x * 4 + 3]);
            *state = make_float4(m_run[0], m_run[1], l_run[0], l_run[1]);
        }
        warpgroups_meet();
        if (wg == 0) {
            float4 other = *state;
            float m_all[2] = {fmaxf(m_run[0], other.x), fmaxf(m_run[1], other.y)};
            float w[2] = {weight(m_run[0], m_all[0]), weight(m_run[1], m_all[1])};
            float v[2] = {weight(other.x, m_all[0]), weight(other.y, m_all[1])};
            l_run[0] = l_run[0] * w[0] + other.z * v[0];
            l_run[1] = l_run[1] * w[1] + other.w * v[1];
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
            u32 qr = row / G, g = row - qr * G;
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
    warpgroups_meet();  // Q is free for the next item
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
    // Registers go where they are needed: 40 for the copying warpgroup, 232 for the others.
    if (threadIdx.x >= 256) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x < 288) copy_tiles<D>(a, maps, head, cta, smem);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        u32 n = 0;
        const u32 begin = a.cta_items[cta], end = a.cta_items[cta + 1];
        after_previous();
        for (u32 i = begin; i < end; i++) compute_item<T, D>(a, a.items[i], head, n, smem);
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
