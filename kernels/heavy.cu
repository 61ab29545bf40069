// H2O (NeurIPS 2023) on the card: of every path a share is kept, half of it the newest tokens, the rest those that had the most
// attention so far; what goes is gone for good, for all branches that pass it. The rules are those of device/cpu/heavy.rs: rows
// go one after the other, since what one of them lets go is gone for the next.
//
// A layer's steps, G query heads to each of the K/V heads, d numbers to a head; work rows in order:
//
//   spread_paths     which slot each position of a row's path has
//   begin_sums       tokens of the step have had no attention yet
//   list_kept        what a row's path still has, by position, and a frame of the stage for each token that any row has
//   gather_kept      K and V of what has a frame, from the host tier; all else is read there in place
//   score_kept       scores of what was listed, or of a whole path
//   keep_heavy       row by row: lets tokens go, turns scores into weights, adds them to what tokens have had
//   sum_kept         a row's attention: its weights times V
//   weigh_all, add_all   for rows that let nothing go: weights of a whole path, added up row by row
//
// K/V is [page][kv_head][K|V][16][d] in both tiers, a slot page * 16 + offset; frames of the stage are [K|V][d].
#include "bounded.cuh"

#ifndef KERNEL_TYPE
#define KERNEL_TYPE F16
#endif
typedef KERNEL_TYPE T;

// Tokens of a path that lie in one page.
struct Run {
    u32 row, start, len, page;
};

struct Heavy {
    const u16* q;          // [batch rows][kv_heads * G][d]
    u16* out;
    float* sums;           // [kv_head][slot]: attention that a token has had; GONE once it is gone
    const Run* runs;       // of all rows, own tokens included
    u32* slot_of;          // [rows][stride]
    const u32* batch_row;  // [rows]
    const u32* positions;  // [rows]
    const u32* budgets;    // [rows]: tokens before it that a row keeps
    u32* lists;            // [rows][kv_heads][stride]: slots by position
    u32* counts;           // [rows][kv_heads]: their number; the row's own token comes after them
    float* weights;        // [rows][kv_heads * G][stride]: scores, then weights, of the list and the own token; of a path where `whole`
    u32* keys;             // [kv_head][stride]: room to work in
    u32* frame_of;         // [kv_head][slot]: NO_FRAME at first; null where all tokens lie in `layer`
    u32* total;            // frames that were asked for; 0 at first
    u32* items;            // [capacity]: slot * kv_heads + kv_head of each frame
    const u16* stage;      // [capacity][K|V][d]
    const u16* layer;      // the layer's K/V by slot: in the host tier, or in an arena of the card
    const u16* own;        // K/V that the step made
    const u32* own_slots;  // [batch rows]
    u64* told;             // tokens attended to, tokens before them, rows brought to the stage, halves of rows read in place
    u32 rows, run_count, group, kv_heads, head_size, slots, stride, capacity, whole;
    float scale;           // 1 / sqrt(d)
};

#define GONE (-1.0f)
#define NO_FRAME 0xffffffffu
// Asked for, and not told yet which.
#define CLAIMED 0xfffffffeu

// A thread a (run, token).
extern "C" __global__ void spread_paths(const __grid_constant__ Heavy a) {
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i / 16 >= a.run_count) return;
    const Run run = a.runs[i / 16];
    if (i % 16 < run.len) a.slot_of[(u64)run.row * a.stride + run.start + i % 16] = run.page * 16 + run.start % 16 + i % 16;
}

// A block a row, a thread a K/V head.
extern "C" __global__ void begin_sums(const __grid_constant__ Heavy a) {
    const u32 slot = a.slot_of[(u64)blockIdx.x * a.stride + a.positions[blockIdx.x]];
    for (u32 head = threadIdx.x; head < a.kv_heads; head += blockDim.x) a.sums[(u64)head * a.slots + slot] = 0.0f;
}

#define LISTERS 1024
#define LIST_WARPS (LISTERS / 32)

// The sum over the warps before this one, and over all.
__device__ __forceinline__ u32 before(const u32* counts, u32 warp, u32& all) {
    u32 sum = 0;
    all = 0;
    for (u32 w = 0; w < LIST_WARPS; w++) {
        if (w < warp) sum += counts[w];
        all += counts[w];
    }
    return sum;
}

// A block of LISTERS threads a (row, K/V head); each warp has a stretch of the path.
extern "C" __global__ void __launch_bounds__(LISTERS) list_kept(const __grid_constant__ Heavy a) {
    __shared__ u32 counts[LIST_WARPS];
    const u32 row = blockIdx.x, head = blockIdx.y, past = a.positions[row], warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u32* slot_of = a.slot_of + (u64)row * a.stride;
    const float* sums = a.sums + (u64)head * a.slots;
    u32* frame_of = a.frame_of ? a.frame_of + (u64)head * a.slots : nullptr;
    u32* list = a.lists + ((u64)row * a.kv_heads + head) * a.stride;
    const u32 stretch = (past + LISTERS - 1) / LISTERS * 32, begin = warp * stretch;
    u32 own = 0;
    for (u32 i = 0; i < stretch; i += 32) {
        const u32 t = begin + i + lane;
        own += __popc(__ballot_sync(~0u, t < past && sums[slot_of[t]] >= 0.0f));
    }
    if (lane == 0) counts[warp] = own;
    __syncthreads();
    u32 all, at = before(counts, warp, all);
    for (u32 i = 0; i < stretch; i += 32) {
        const u32 t = begin + i + lane, slot = t < past ? slot_of[t] : 0;
        const bool kept = t < past && sums[slot] >= 0.0f;
        const u32 votes = __ballot_sync(~0u, kept);
        if (kept) list[at + __popc(votes & ((1u << lane) - 1))] = slot;
        at += __popc(votes);
        if (!frame_of) continue;
        const bool first = kept && atomicCAS(&frame_of[slot], NO_FRAME, CLAIMED) == NO_FRAME;
        const u32 claims = __ballot_sync(~0u, first);
        u32 base = 0;
        if (lane == 0 && claims) base = atomicAdd(a.total, __popc(claims));
        base = __shfl_sync(~0u, base, 0);
        if (!first) continue;
        const u32 frame = base + __popc(claims & ((1u << lane) - 1));
        frame_of[slot] = frame;
        if (frame < a.capacity) a.items[frame] = slot * a.kv_heads + head;
    }
    if (threadIdx.x == 0) a.counts[row * a.kv_heads + head] = all;
}

// Grid-stride over pieces of 16 bytes, eight on their way at once: a piece comes from far, and few blocks are to be busy.
extern "C" __global__ void __launch_bounds__(512) gather_kept(const __grid_constant__ Heavy a) {
    const u32 pieces = a.head_size / 8, wanted = *a.total, count = wanted < a.capacity ? wanted : a.capacity;
    const u32 all = count * 2 * pieces, step = gridDim.x * blockDim.x;
    const uint4* host = (const uint4*)a.layer;
    for (u32 first = blockIdx.x * blockDim.x + threadIdx.x; first < all; first += 8 * step) {
        u32 items[8];
        uint4 v[8];
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const u32 i = first + k * step;
            items[k] = i < all ? a.items[i / pieces / 2] : 0;
        }
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const u32 i = first + k * step;
            if (i >= all) break;
            const u32 head = items[k] % a.kv_heads, slot = items[k] / a.kv_heads;
            v[k] = host[((((u64)(slot / 16) * a.kv_heads + head) * 2 + i / pieces % 2) * 16 + slot % 16) * pieces + i % pieces];
        }
#pragma unroll
        for (int k = 0; k < 8; k++) {
            if (first + k * step >= all) break;
            ((uint4*)a.stage)[first + k * step] = v[k];
        }
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) atomicAdd(&a.told[2], (u64)count);
}

// Where K (and `to_v` after it V) of a row's i-th token lies; the `count`-th is its own.
__device__ __forceinline__ const u16* token(const Heavy& a, u32 head, u32 batch, u32 slot, bool own, u64& to_v, bool& in_place) {
    const u16* kv = own ? a.own : a.layer;
    if (own) slot = a.own_slots[batch];
    to_v = 16 * a.head_size;
    in_place = false;
    if (a.frame_of && !own) {
        const u32 frame = a.frame_of[(u64)head * a.slots + slot];
        in_place = frame >= a.capacity;
        if (!in_place) {
            to_v = a.head_size;
            return a.stage + (u64)frame * 2 * a.head_size;
        }
    }
    return kv + (((u64)(slot / 16) * a.kv_heads + head) * 2 * 16 + slot % 16) * a.head_size;
}

#define WARPS 8
#define TILE 64            // tokens of a block

// A block of WARPS warps a (TILE tokens, K/V head, row and four of its query heads). Lanes over pairs of numbers, four tokens at once.
extern "C" __global__ void __launch_bounds__(WARPS * 32) score_kept(const __grid_constant__ Heavy a) {
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, d = a.head_size, head = blockIdx.y;
    const u32 fours = (a.group + 3) / 4, row = blockIdx.z / fours, first_head = blockIdx.z % fours * 4;
    const u32 many = a.group - first_head < 4 ? a.group - first_head : 4, batch = a.batch_row[row];
    const u32 count = a.whole ? a.positions[row] : a.counts[row * a.kv_heads + head];
    if (blockIdx.x * TILE > count) return;
    const u64 query = (u64)batch * a.kv_heads * a.group + head * a.group + first_head;
    float2 q[4][2];
#pragma unroll
    for (int g = 0; g < 4; g++) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const u32 column = (c * 32 + lane) * 2;
            q[g][c] = make_float2(0.0f, 0.0f);
            if (g < many && column < d) {
                const u32 pair = *(const u32*)(a.q + (query + g) * d + column);
                q[g][c] = make_float2(widen<T>((u16)pair), widen<T>((u16)(pair >> 16)));
            }
        }
    }
    const u32* list = a.whole ? a.slot_of + (u64)row * a.stride : a.lists + ((u64)row * a.kv_heads + head) * a.stride;
    float* scores = a.weights + ((u64)row * a.kv_heads * a.group + head * a.group + first_head) * a.stride;
    u32 halves = 0;
#pragma unroll
    for (u32 batch_of = 0; batch_of < TILE / WARPS; batch_of += 4) {
        const u32 first = blockIdx.x * TILE + warp * (TILE / WARPS) + batch_of;
        float2 k[4][2];
        bool gone[4];
#pragma unroll
        for (int t = 0; t < 4; t++) {
            const u32 i = first + t;
            const u16* at = nullptr;
            gone[t] = false;
            if (i <= count) {
                const u32 slot = i < count || a.whole ? list[i] : 0;
                gone[t] = a.whole && !(a.sums[(u64)head * a.slots + slot] >= 0.0f);
                u64 to_v;
                bool in_place;
                if (!gone[t]) {
                    at = token(a, head, batch, slot, i == count, to_v, in_place);
                    halves += in_place;
                }
            }
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const u32 column = (c * 32 + lane) * 2;
                k[t][c] = make_float2(0.0f, 0.0f);
                if (at && column < d) {
                    const u32 key = *(const u32*)(at + column);
                    k[t][c] = make_float2(widen<T>((u16)key), widen<T>((u16)(key >> 16)));
                }
            }
        }
#pragma unroll
        for (int g = 0; g < 4; g++) {
            if (g >= many) break;
#pragma unroll
            for (int t = 0; t < 4; t++) {
                float s = q[g][0].x * k[t][0].x + q[g][0].y * k[t][0].y + q[g][1].x * k[t][1].x + q[g][1].y * k[t][1].y;
#pragma unroll
                for (int x = 16; x; x /= 2) s += __shfl_xor_sync(~0u, s, x);
                if (lane == 0 && first + t <= count) scores[(u64)g * a.stride + first + t] = gone[t] ? NEG_INF : s * a.scale;
            }
        }
    }
    if (lane == 0 && halves) atomicAdd(&a.told[3], (u64)halves);
}

// The largest of each of four numbers over the block, or their sums; `shared` has room for four numbers a warp.
template <bool SUM> __device__ __forceinline__ void reduce(float (&x)[4], float4* shared, u32 warps) {
    const u32 lane = threadIdx.x % 32;
    auto over_warp = [&]() {
#pragma unroll
        for (int g = 0; g < 4; g++) {
#pragma unroll
            for (int s = 16; s; s /= 2) {
                const float other = __shfl_xor_sync(~0u, x[g], s);
                x[g] = SUM ? x[g] + other : fmaxf(x[g], other);
            }
        }
    };
    over_warp();
    __syncthreads();
    if (lane == 0) shared[threadIdx.x / 32] = make_float4(x[0], x[1], x[2], x[3]);
    __syncthreads();
    const float none = SUM ? 0.0f : NEG_INF;
    const float4 of_warp = lane < warps ? shared[lane] : make_float4(none, none, none, none);
    x[0] = of_warp.x, x[1] = of_warp.y, x[2] = of_warp.z, x[3] = of_warp.w;
    over_warp();
}

// Room of a block that lets tokens go.
struct Going {
    u32 counts[LIST_WARPS], histogram[256], prefix, left;
};

// Of a row's n listed tokens, `past` of which it still has, all but `budget` go: of those before the newest budget / 2 the ones with
// the smallest sums, the older of equal ones. By radix, a byte of the sums at a time; each warp has a stretch of the list.
__device__ __noinline__ void let_go(const u32* list, float* sums, u32* keys, u32 n, u32 past, u32 budget, Going& room) {
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, below = (1u << lane) - 1;
    const u32 stretch = (n + LISTERS - 1) / LISTERS * 32, begin = warp * stretch, gone = past - budget, old = past - budget / 2;
    u32 own = 0, all;
    for (u32 i = 0; i < stretch; i += 32) {
        const u32 t = begin + i + lane;
        own += __popc(__ballot_sync(~0u, t < n && sums[list[t]] >= 0.0f));
    }
    __syncthreads();
    if (lane == 0) room.counts[warp] = own;
    __syncthreads();
    u32 rank = before(room.counts, warp, all);
    for (u32 i = 0; i < stretch; i += 32) {
        const u32 t = begin + i + lane;
        const float sum = t < n ? sums[list[t]] : GONE;
        const u32 votes = __ballot_sync(~0u, sum >= 0.0f);
        const bool may_go = sum >= 0.0f && rank + __popc(votes & below) < old;
        rank += __popc(votes);
        if (t < n) keys[t] = may_go ? __float_as_uint(sum) : ~0u;
    }
    if (threadIdx.x == 0) room.prefix = 0, room.left = gone;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (u32 i = threadIdx.x; i < 256; i += LISTERS) room.histogram[i] = 0;
        __syncthreads();
        const u32 known = room.prefix, wanted = room.left;
        for (u32 t = threadIdx.x; t < n; t += LISTERS) {
            const u32 key = keys[t];
            if (key != ~0u && (shift == 24 || key >> (shift + 8) == known >> (shift + 8))) atomicAdd(&room.histogram[key >> shift & 255], 1);
        }
        __syncthreads();
        if (warp == 0) {
            u32 sum = 0;
            for (u32 k = 0; k < 8; k++) sum += room.histogram[lane * 8 + k];
            u32 upto = sum;
#pragma unroll
            for (int s = 1; s < 32; s *= 2) {
                const u32 other = __shfl_up_sync(~0u, upto, s);
                if (lane >= s) upto += other;
            }
            // The lane whose eight bins have the wanted one.
            if (upto >= wanted && upto - sum < wanted) {
                u32 rest = wanted - (upto - sum), bin = lane * 8;
                while (room.histogram[bin] < rest) rest -= room.histogram[bin++];
                room.prefix = known | bin << shift, room.left = rest;
            }
        }
        __syncthreads();
    }
    // All with smaller sums go, and the first `left` of those with this one.
    const u32 bound = room.prefix, equal = room.left;
    own = 0;
    for (u32 i = 0; i < stretch; i += 32) {
        const u32 t = begin + i + lane;
        own += __popc(__ballot_sync(~0u, t < n && keys[t] == bound));
    }
    if (lane == 0) room.counts[warp] = own;
    __syncthreads();
    u32 tie = before(room.counts, warp, all);
    for (u32 i = 0; i < stretch; i += 32) {
        const u32 t = begin + i + lane, key = t < n ? keys[t] : ~0u;
        const u32 tied = __ballot_sync(~0u, key == bound);
        if (key < bound || (key == bound && tie + __popc(tied & below) < equal)) sums[list[t]] = GONE;
        tie += __popc(tied);
    }
    __syncthreads();
}

#define HELD 4             // tokens of a row that a thread has in its registers
#define FEW 8              // tokens that go one by one

// A block of LISTERS threads a K/V head: its rows one after the other, since what one lets go is gone for the next. A row of up to
// HELD * LISTERS tokens is read once, every LISTERS-th token by a thread.
extern "C" __global__ void __launch_bounds__(LISTERS) keep_heavy(const __grid_constant__ Heavy a) {
    __shared__ float4 shared[LIST_WARPS];
    __shared__ Going room;
    __shared__ u32 counts[HELD][LIST_WARPS];
    __shared__ u64 smallest[2][LIST_WARPS];
    const u32 head = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32, below = (1u << lane) - 1;
    float* sums = a.sums + (u64)head * a.slots;
    u32* keys = a.keys + (u64)head * a.stride;
    u64 attended = 0, before_them = 0;
    for (u32 row = 0; row < a.rows; row++) {
        const u32 n = a.counts[row * a.kv_heads + head], budget = a.budgets[row];
        const u32* list = a.lists + ((u64)row * a.kv_heads + head) * a.stride;
        float* weights = a.weights + ((u64)row * a.kv_heads * a.group + head * a.group) * a.stride;
        // The own token is kept, and comes last.
        const u32 own_slot = a.slot_of[(u64)row * a.stride + a.positions[row]];
        before_them += a.positions[row];
        if (n < HELD * LISTERS) {
            u32 slot[HELD];
            float sum[HELD], w[HELD][4];
            bool kept[HELD];
#pragma unroll
            for (int e = 0; e < HELD; e++) {
                const u32 t = e * LISTERS + threadIdx.x;
                slot[e] = t < n ? list[t] : own_slot;
#pragma unroll
                for (int g = 0; g < 4; g++) w[e][g] = t <= n && g < a.group ? weights[(u64)g * a.stride + t] : NEG_INF;
            }
            u32 past = 0;
#pragma unroll
            for (int e = 0; e < HELD; e++) {
                const u32 t = e * LISTERS + threadIdx.x;
                sum[e] = t <= n ? sums[slot[e]] : GONE;
                kept[e] = t < n && sum[e] >= 0.0f;
                const u32 votes = __ballot_sync(~0u, kept[e]);
                if (lane == 0) counts[e][warp] = __popc(votes);
            }
            __syncthreads();
            // How many are kept before a thread's own.
            u32 rank[HELD];
#pragma unroll
            for (int e = 0; e < HELD; e++) {
                u32 upto = counts[e][lane];
#pragma unroll
                for (int s = 1; s < 32; s *= 2) {
                    const u32 other = __shfl_up_sync(~0u, upto, s);
                    if (lane >= s) upto += other;
                }
                const u32 warps_before = __shfl_sync(~0u, upto, (warp + 31) % 32);
                rank[e] = past + (warp ? warps_before : 0) + __popc(__ballot_sync(~0u, kept[e]) & below);
                past += __shfl_sync(~0u, upto, 31);
            }
            if (past > budget) {
                const u32 gone = past - budget, old = past - budget / 2;
                if (gone > FEW) {
                    let_go(list, sums, keys, n, past, budget, room);
#pragma unroll
                    for (int e = 0; e < HELD; e++) kept[e] = kept[e] && sums[slot[e]] >= 0.0f;
                } else {
                    for (u32 k = 0; k < gone; k++) {
                        u64 least = ~0ull;
#pragma unroll
                        for (int e = 0; e < HELD; e++) {
                            const u64 key = (u64)__float_as_uint(sum[e]) << 32 | (e * LISTERS + threadIdx.x);
                            if (kept[e] && rank[e] < old && key < least) least = key;
                        }
                        for (int round = 0; round < 2; round++) {
#pragma unroll
                            for (int s = 16; s; s /= 2) {
                                const u64 other = __shfl_xor_sync(~0u, least, s);
                                least = other < least ? other : least;
                            }
                            if (round) break;
                            if (lane == 0) smallest[k % 2][warp] = least;
                            __syncthreads();
                            least = smallest[k % 2][lane];
                        }
                        const u32 goes = (u32)least;
#pragma unroll
                        for (int e = 0; e < HELD; e++) {
                            if (goes == e * LISTERS + threadIdx.x) kept[e] = false, sums[slot[e]] = GONE;
                        }
                    }
                }
                past = budget;
            }
            attended += past;
#pragma unroll
            for (int e = 0; e < HELD; e++) kept[e] = kept[e] || e * LISTERS + threadIdx.x == n;
            for (u32 first = 0; first < a.group; first += 4) {
                float* to = weights + (u64)first * a.stride;
                float top[4] = {NEG_INF, NEG_INF, NEG_INF, NEG_INF}, all[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
                for (int e = 0; e < HELD; e++) {
#pragma unroll
                    for (int g = 0; g < 4; g++) {
                        const u32 t = e * LISTERS + threadIdx.x;
                        if (first) w[e][g] = t <= n && first + g < a.group ? to[(u64)g * a.stride + t] : NEG_INF;
                        if (kept[e]) top[g] = fmaxf(top[g], w[e][g]);
                    }
                }
                reduce<false>(top, shared, LIST_WARPS);
#pragma unroll
                for (int e = 0; e < HELD; e++) {
#pragma unroll
                    for (int g = 0; g < 4; g++) {
                        w[e][g] = kept[e] && first + g < a.group ? expf(w[e][g] - top[g]) : 0.0f;
                        all[g] += w[e][g];
                    }
                }
                reduce<true>(all, shared, LIST_WARPS);
#pragma unroll
                for (int e = 0; e < HELD; e++) {
                    const u32 t = e * LISTERS + threadIdx.x;
#pragma unroll
                    for (int g = 0; g < 4; g++) {
                        if (t > n || first + g >= a.group) continue;
                        const float share = w[e][g] / all[g];
                        to[(u64)g * a.stride + t] = share;
                        sum[e] += share;
                    }
                }
            }
#pragma unroll
            for (int e = 0; e < HELD; e++) {
                if (kept[e]) sums[slot[e]] = sum[e];
            }
            __syncthreads();
            continue;
        }
        u32 past = 0;
        for (u32 t = threadIdx.x; t < n; t += LISTERS) past += sums[list[t]] >= 0.0f;
#pragma unroll
        for (int s = 16; s; s /= 2) past += __shfl_xor_sync(~0u, past, s);
        if (lane == 0) room.counts[warp] = past;
        __syncthreads();
        before(room.counts, 0, past);
        if (past > budget) {
            let_go(list, sums, keys, n, past, budget, room);
            past = budget;
        }
        __syncthreads();
        attended += past;
        for (u32 first = 0; first < a.group; first += 4) {
            const u32 many = a.group - first < 4 ? a.group - first : 4;
            float* w = weights + (u64)first * a.stride;
            float top[4] = {NEG_INF, NEG_INF, NEG_INF, NEG_INF}, all[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            for (u32 t = threadIdx.x; t <= n; t += LISTERS) {
                if (t < n && !(sums[list[t]] >= 0.0f)) continue;
#pragma unroll
                for (int g = 0; g < 4; g++) if (g < many) top[g] = fmaxf(top[g], w[(u64)g * a.stride + t]);
            }
            reduce<false>(top, shared, LIST_WARPS);
            for (u32 t = threadIdx.x; t <= n; t += LISTERS) {
                const bool kept = t == n || sums[list[t]] >= 0.0f;
#pragma unroll
                for (int g = 0; g < 4; g++) {
                    if (g >= many) break;
                    const float e = kept ? expf(w[(u64)g * a.stride + t] - top[g]) : 0.0f;
                    w[(u64)g * a.stride + t] = e;
                    all[g] += e;
                }
            }
            reduce<true>(all, shared, LIST_WARPS);
            for (u32 t = threadIdx.x; t <= n; t += LISTERS) {
                float* sum = &sums[t < n ? list[t] : own_slot];
                const bool kept = t == n || *sum >= 0.0f;
                float had = *sum;
#pragma unroll
                for (int g = 0; g < 4; g++) {
                    if (g >= many) break;
                    const float share = w[(u64)g * a.stride + t] / all[g];
                    w[(u64)g * a.stride + t] = share;
                    had += share;
                }
                if (kept) *sum = had;
            }
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        atomicAdd(&a.told[0], attended);
        atomicAdd(&a.told[1], before_them);
    }
}

// A block of WARPS warps a (row, K/V head, four of its query heads): warps over tokens, lanes over pairs of numbers.
extern "C" __global__ void __launch_bounds__(WARPS * 32) sum_kept(const __grid_constant__ Heavy a) {
    __shared__ float sums[WARPS][4][128];
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, d = a.head_size, row = blockIdx.x, head = blockIdx.y, first_head = blockIdx.z * 4;
    const u32 many = a.group - first_head < 4 ? a.group - first_head : 4, batch = a.batch_row[row], n = a.counts[row * a.kv_heads + head];
    const u32* list = a.lists + ((u64)row * a.kv_heads + head) * a.stride;
    const float* w = a.weights + ((u64)row * a.kv_heads * a.group + head * a.group + first_head) * a.stride;
    float2 o[4][2];
#pragma unroll
    for (int g = 0; g < 4; g++) o[g][0] = o[g][1] = make_float2(0.0f, 0.0f);
    u32 halves = 0;
    for (u32 first = warp * 4; first <= n; first += WARPS * 4) {
        float2 v[4][2];
        float share[4][4];
#pragma unroll
        for (int t = 0; t < 4; t++) {
            const u32 i = first + t;
            bool any = false;
#pragma unroll
            for (int g = 0; g < 4; g++) {
                share[t][g] = g < many && i <= n ? w[(u64)g * a.stride + i] : 0.0f;
                any = any || share[t][g] > 0.0f;
            }
            const u16* at = nullptr;
            if (any) {
                u64 to_v;
                bool in_place;
                at = token(a, head, batch, i < n ? list[i] : 0, i == n, to_v, in_place);
                at += to_v;
                halves += in_place;
            }
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const u32 column = (c * 32 + lane) * 2;
                v[t][c] = make_float2(0.0f, 0.0f);
                if (at && column < d) {
                    const u32 value = *(const u32*)(at + column);
                    v[t][c] = make_float2(widen<T>((u16)value), widen<T>((u16)(value >> 16)));
                }
            }
        }
#pragma unroll
        for (int t = 0; t < 4; t++) {
#pragma unroll
            for (int g = 0; g < 4; g++) {
#pragma unroll
                for (int c = 0; c < 2; c++) o[g][c].x += share[t][g] * v[t][c].x, o[g][c].y += share[t][g] * v[t][c].y;
            }
        }
    }
    if (lane == 0 && halves) atomicAdd(&a.told[3], (u64)halves);
#pragma unroll
    for (int g = 0; g < 4; g++) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const u32 column = (c * 32 + lane) * 2;
            if (column < d) sums[warp][g][column] = o[g][c].x, sums[warp][g][column + 1] = o[g][c].y;
        }
    }
    __syncthreads();
    const u64 query = (u64)batch * a.kv_heads * a.group + head * a.group + first_head;
    for (u32 i = threadIdx.x; i < many * d / 2; i += WARPS * 32) {
        const u32 g = i / (d / 2), column = i % (d / 2) * 2;
        float x = 0.0f, y = 0.0f;
        for (int of = 0; of < WARPS; of++) x += sums[of][g][column], y += sums[of][g][column + 1];
        *(u32*)(a.out + (query + g) * d + column) = pack<T>(x, y);
    }
}

// A block of 256 threads a (row, query head): scores of a whole path become weights; tokens that are gone have none.
extern "C" __global__ void __launch_bounds__(256) weigh_all(const __grid_constant__ Heavy a) {
    __shared__ float4 shared[8];
    const u32 row = blockIdx.x, past = a.positions[row];
    float* w = a.weights + ((u64)row * a.kv_heads * a.group + blockIdx.y) * a.stride;
    float top[4] = {NEG_INF, NEG_INF, NEG_INF, NEG_INF}, all[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (u32 t = threadIdx.x; t <= past; t += 256) top[0] = fmaxf(top[0], w[t]);
    reduce<false>(top, shared, 8);
    for (u32 t = threadIdx.x; t <= past; t += 256) {
        const float e = expf(w[t] - top[0]);
        w[t] = e;
        all[0] += e;
    }
    reduce<true>(all, shared, 8);
    for (u32 t = threadIdx.x; t <= past; t += 256) w[t] /= all[0];
}

// A thread a (position, K/V head) adds the weights of all rows in order: a token has one position, so a sum has one thread.
extern "C" __global__ void __launch_bounds__(256) add_all(const __grid_constant__ Heavy a) {
    const u32 t = blockIdx.x * 256 + threadIdx.x, head = blockIdx.y;
    float* sums = a.sums + (u64)head * a.slots;
    for (u32 row = 0; row < a.rows; row++) {
        if (t > a.positions[row]) continue;
        float* sum = &sums[a.slot_of[(u64)row * a.stride + t]];
        float had = *sum;
        if (!(had >= 0.0f)) continue;
        const float* w = a.weights + ((u64)row * a.kv_heads * a.group + head * a.group) * a.stride + t;
        for (u32 g = 0; g < a.group; g++) had += w[(u64)g * a.stride];
        *sum = had;
    }
}
