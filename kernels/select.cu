// Attention over selected tokens (InfiniGen): partial keys, guessed scores, the choice, the union of what the rows chose,
// its gathering from the host tier, and attention to that alone. Everything stays on the card: no step waits for the host.
//
// A layer's steps, for the rows of a step that select; G query heads to each of the K/V heads, d numbers to a head,
// c columns to a partial key, two of them in a byte:
//
//   put_partial      new keys in the skewed basis, four bits a column
//   project_queries  queries in the same basis
//   expand           which slot each position of a row's path has; once a step
//   score            expected scores, partial query times partial key
//   head_tops        each head's largest score, and how many lie within alpha of it
//   pick             what each token is worth to a K/V head, as a number that orders; the n best tokens of a row and K/V head, by position, and a bit for each in the union
//   (settle)         a frame for every bit, of those that are kept or of the stage (keep.cu)
//   gather_rows      K and V of what is to be brought, from the host tier; or once for each row that wants it
//   attend_picked    attention of a row to its tokens, wherever they lie, and to itself; merge_picked joins its parts
//   sample_full      now and then attention of a row and K/V head to all tokens; sample_missed says what was missed
//
// K/V is [page][kv_head][K|V][16][d] in both tiers, a slot page * 16 + offset; frames are [K|V][d].
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

struct Select {
    const u16* q;          // [batch rows][kv_heads * G][d]: whose scores are guessed
    const float* basis;    // [kv_head][d][c]
    const unsigned char* codes;  // [page][kv_head][pairs][16]
    const u16* scales;     // [page][kv_head][16], float16
    float* projected;      // [rows][kv_heads * G][c]
    const Run* runs;       // of all selecting rows, in order
    u32* slot_of;          // [rows][stride]
    float* scores;         // [rows][kv_heads * G][stride]
    float* tops;           // [rows][kv_heads * G]
    u32* within;           // [rows][kv_heads * G]
    u32* keys;             // [rows][kv_heads][stride]
    const u32* batch_row;  // [rows]
    const u32* positions;  // [rows]: a row chooses among so many tokens before it
    const u32* caps;       // [rows]: the most it may take
    u32* lists;            // [rows][kv_heads][list_stride]: slots by position
    u32* counts;           // [rows][kv_heads]
    u32* bits;             // [kv_head][page]: tokens that any row wants, and the two numbers of Keep's total
    u64* told;             // see Told
    float alpha, scale;
    u32 rows, run_count, group, kv_heads, head_size, columns, pairs, pages, stride, list_stride, all;
    u32 clears;            // whether the bits are to be zeros at first
};

// A number's place in the order of all: larger for larger ones.
__device__ __forceinline__ u32 ordered(float x) {
    const u32 bits = __float_as_uint(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Float16 from a float that is not negative, to nearest.
__device__ __forceinline__ u16 half_of(float x) { return (u16)pack<F16>(x, 0.0f); }

struct Put {
    const u16* kv;         // where the step's keys lie
    const u32* from_slots; // [n]
    const u32* to_slots;   // [n]
    const float* basis;    // [kv_head][d][c]
    const float* centre;   // [kv_head][c]: the mean key's, which all keys are told without
    unsigned char* codes;
    u16* scales;
    u32 kv_heads, head_size, columns, pairs;
    Kept kept;
};

// A block of 128 threads a new token, a warp a K/V head at a time, lanes over columns.
extern "C" __global__ void put_partial(const __grid_constant__ Put a) {
    __shared__ float keys[4][128];
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, d = a.head_size, c = a.columns;
    const u32 from = a.from_slots[blockIdx.x], to = a.to_slots[blockIdx.x];
    for (u32 head = warp; head < a.kv_heads; head += 4) {
        const u16* key = a.kv + (((u64)(from / 16) * a.kv_heads + head) * 2 * 16 + from % 16) * d;
        for (u32 i = lane; i < d; i += 32) keys[warp][i] = widen<T>(key[i]);
        __syncwarp();
        float sums[4], most = 0.0f;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const u32 column = lane + 32 * k;
            sums[k] = 0.0f;
            if (column < c) {
                const float* basis = a.basis + (u64)head * d * c + column;
#pragma unroll 16
                for (u32 i = 0; i < d; i++) sums[k] += keys[warp][i] * basis[(u64)i * c];
                sums[k] -= a.centre[head * c + column];
            }
            most = fmaxf(most, fabsf(sums[k]));
        }
#pragma unroll
        for (int s = 16; s; s /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, s));
        const u16 scale = half_of(most / 7.0f);
        const float wide = widen<F16>(scale), inverse = wide == 0.0f ? 0.0f : 1.0f / wide;
        const u64 at = ((u64)(to / 16) * a.kv_heads + head) * 16;
        if (lane == 0) {
            a.scales[at + to % 16] = scale;
            if (a.kept.state) drop(a.kept, head, to);
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const u32 column = lane + 32 * k;
            const u32 code = (u32)(int)fminf(fmaxf(roundf(sums[k] * inverse), -7.0f), 7.0f) & 15;
            const u32 odd = __shfl_xor_sync(~0u, code, 1);
            if (lane % 2 == 0 && column < c) a.codes[(at / 16 * a.pairs + column / 2) * 16 + to % 16] = (unsigned char)(code | odd << 4);
        }
        __syncwarp();
    }
}

// A block of 128 threads a (row, K/V head), a warp a query head at a time, lanes over columns.
extern "C" __global__ void project_queries(const __grid_constant__ Select a) {
    __shared__ float query[4][128];
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.x, head = blockIdx.y;
    const u32 heads = a.kv_heads * a.group, d = a.head_size, c = a.columns;
    const float* basis = a.basis + (u64)head * d * c;
    if (a.clears) {
        for (u32 i = (row * a.kv_heads + head) * 128 + threadIdx.x; i < a.kv_heads * a.pages + 2; i += gridDim.x * a.kv_heads * 128) a.bits[i] = 0;
    }
    for (u32 g = warp; g < a.group; g += 4) {
        const u16* q = a.q + ((u64)a.batch_row[row] * heads + head * a.group + g) * d;
        for (u32 i = lane; i < d; i += 32) query[warp][i] = widen<T>(q[i]) * a.scale;
        __syncwarp();
        for (u32 column = lane; column < c; column += 32) {
            float sum = 0.0f;
#pragma unroll 16
            for (u32 i = 0; i < d; i++) sum += query[warp][i] * basis[(u64)i * c + column];
            a.projected[((u64)row * heads + head * a.group + g) * c + column] = sum;
        }
        __syncwarp();
    }
}

// A thread a (run, token).
extern "C" __global__ void expand(const __grid_constant__ Select a) {
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i / 16 >= a.run_count) return;
    const Run run = a.runs[i / 16];
    const u32 t = i % 16;
    if (t < run.len) a.slot_of[(u64)run.row * a.stride + run.start + t] = run.page * 16 + run.start % 16 + t;
}

// A warp a (run, K/V head): 16 lanes over tokens, two halves over pairs of columns. Grid (runs / 8, kv_heads), 256 threads.
extern "C" __global__ void score(const __grid_constant__ Select a) {
    const u32 lane = threadIdx.x % 32, r = blockIdx.x * 8 + threadIdx.x / 32, head = blockIdx.y;
    if (r >= a.run_count) return;
    const Run run = a.runs[r];
    const u32 offset = run.start % 16, t = lane % 16, half = lane / 16, c = a.columns, heads = a.kv_heads * a.group;
    const bool real = t < run.len;
    const u64 at = ((u64)run.page * a.kv_heads + head) * 16;
    const unsigned char* codes = a.codes + at * a.pairs + offset + t;
    const float scale = real ? widen<F16>(a.scales[at + offset + t]) : 0.0f;
    const bool seen = real && run.start + t < a.positions[run.row];
    for (u32 first = 0; first < a.group; first += 4) {
        const float* query = a.projected + ((u64)run.row * heads + head * a.group + first) * c;
        const u32 many = a.group - first < 4 ? a.group - first : 4;
        float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        for (u32 pair = half; pair < a.pairs; pair += 2) {
            const u32 two = real ? codes[pair * 16] : 0;
            const float even = (float)((int)(two << 28) >> 28), odd = (float)((int)(two << 24) >> 28);
            const bool both = 2 * pair + 1 < c;
#pragma unroll
            for (int g = 0; g < 4; g++) {
                if (g >= many) break;
                sums[g] += even * query[g * c + 2 * pair] + (both ? odd * query[g * c + 2 * pair + 1] : 0.0f);
            }
        }
#pragma unroll
        for (int g = 0; g < 4; g++) {
            sums[g] += __shfl_xor_sync(~0u, sums[g], 16);
            if (half == 0 && seen && g < many)
                a.scores[((u64)run.row * heads + head * a.group + first + g) * a.stride + run.start + t] = sums[g] * scale;
        }
    }
}

#define TOPPERS 512

// A block of TOPPERS threads a (row, query head), four scores at once: rows begin at multiples of four.
extern "C" __global__ void __launch_bounds__(TOPPERS) head_tops(const __grid_constant__ Select a) {
    __shared__ float tops[TOPPERS / 32];
    __shared__ u32 found;
    const u32 row = blockIdx.x, head = blockIdx.y, past = a.positions[row], at = row * a.kv_heads * a.group + head;
    const float4* scores = (const float4*)(a.scores + (u64)at * a.stride);
    // What lies past the end is nothing.
    auto four = [&](u32 i) {
        float4 v = scores[i];
        if (i * 4 + 1 >= past) v.y = NEG_INF;
        if (i * 4 + 2 >= past) v.z = NEG_INF;
        if (i * 4 + 3 >= past) v.w = NEG_INF;
        return v;
    };
    if (threadIdx.x == 0) found = 0;
    float top = NEG_INF;
#pragma unroll 4
    for (u32 i = threadIdx.x; i * 4 < past; i += TOPPERS) {
        const float4 v = four(i);
        top = fmaxf(top, fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w)));
    }
#pragma unroll
    for (int s = 16; s; s /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, s));
    if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = top;
    __syncthreads();
    for (int w = 0; w < TOPPERS / 32; w++) top = fmaxf(top, tops[w]);
    const float bound = top - a.alpha;
    u32 count = 0;
#pragma unroll 4
    for (u32 i = threadIdx.x; i * 4 < past; i += TOPPERS) {
        const float4 v = four(i);
        count += (v.x > bound) + (v.y > bound) + (v.z > bound) + (v.w > bound);
    }
#pragma unroll
    for (int s = 16; s; s /= 2) count += __shfl_xor_sync(~0u, count, s);
    if (threadIdx.x % 32 == 0) atomicAdd(&found, count);
    __syncthreads();
    if (threadIdx.x == 0) a.tops[at] = top, a.within[at] = found;
}

#define PICKERS 1024

// A block of PICKERS threads a (row, K/V head): keys, then the n-th best key by radix, a byte at a time, then all better ones
// and as many equal ones as are left to take, the newest of them. Each warp has a stretch of the path. A key is what the
// token is worth to the query head of the group that wants it most, counted from that head's own largest score.
extern "C" __global__ void __launch_bounds__(PICKERS) pick(const __grid_constant__ Select a) {
    __shared__ u32 histogram[256], better[PICKERS / 32], equals[PICKERS / 32], prefix, left;
    const u32 row = blockIdx.x, head = blockIdx.y, heads = a.kv_heads * a.group, past = a.positions[row];
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u32 n = a.caps[row] < past ? a.caps[row] : past;
    if (!a.all) {
        u32 total = 0;
        for (u32 h = 0; h < heads; h++) total += a.within[row * heads + h];
        const u32 mean = (total + heads - 1) / heads;
        n = mean < n ? mean : n;
    }
    u32* keys = a.keys + ((u64)row * a.kv_heads + head) * a.stride;
    for (u32 first = threadIdx.x * 4; first < past && n > 0; first += PICKERS * 4) {
        float best[4] = {NEG_INF, NEG_INF, NEG_INF, NEG_INF};
        for (u32 g = 0; g < a.group; g++) {
            const u32 at = row * heads + head * a.group + g;
            const float4 v = *(const float4*)(a.scores + (u64)at * a.stride + first);
            const float top = a.tops[at];
            best[0] = fmaxf(best[0], v.x - top), best[1] = fmaxf(best[1], v.y - top);
            best[2] = fmaxf(best[2], v.z - top), best[3] = fmaxf(best[3], v.w - top);
        }
        // What lies past the end is never looked at.
        *(uint4*)(keys + first) = make_uint4(ordered(best[0]), ordered(best[1]), ordered(best[2]), ordered(best[3]));
    }
    if (threadIdx.x == 0) prefix = 0, left = n;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (u32 i = threadIdx.x; i < 256; i += PICKERS) histogram[i] = 0;
        __syncthreads();
        const u32 known = prefix;
        auto count = [&](u32 k, u32 t) {
            if (t < past && (shift == 24 || k >> (shift + 8) == known >> (shift + 8))) atomicAdd(&histogram[k >> shift & 255], 1);
        };
#pragma unroll 2
        for (u32 t = threadIdx.x * 4; t < past && n > 0; t += PICKERS * 4) {
            const uint4 k = *(const uint4*)(keys + t);
            count(k.x, t), count(k.y, t + 1), count(k.z, t + 2), count(k.w, t + 3);
        }
        __syncthreads();
        // The byte of the bound: a lane has eight, and one of them all that are missing from the top.
        if (warp == 0 && n > 0) {
            u32 own = 0, wanted = left;
#pragma unroll
            for (int k = 0; k < 8; k++) own += histogram[lane * 8 + k];
            u32 sum = own;
#pragma unroll
            for (int s = 1; s < 32; s *= 2) {
                const u32 other = __shfl_down_sync(~0u, sum, s);
                if (lane + s < 32) sum += other;
            }
            if (sum - own < wanted && wanted <= sum) {
                u32 byte = lane * 8 + 7;
                wanted -= sum - own;
                while (byte > lane * 8 && histogram[byte] < wanted) wanted -= histogram[byte--];
                left = wanted, prefix = known | byte << shift;
            }
        }
        __syncthreads();
    }
    // `left` of the `equal` ones that have the bound itself are taken.
    const u32 bound = prefix, equal = histogram[bound & 255], skipped = equal - (left < equal ? left : equal);
    const u32 stretch = (past + PICKERS - 1) / PICKERS * 32, begin = warp * stretch;
    u32 above = 0, ties = 0;
#pragma unroll 4
    for (u32 i = 0; i < stretch; i += 32) {
        const u32 t = begin + i + lane, k = t < past && n > 0 ? keys[t] : 0;
        above += __popc(__ballot_sync(~0u, k > bound));
        ties += __popc(__ballot_sync(~0u, k == bound && t < past));
    }
    if (lane == 0) better[warp] = above, equals[warp] = ties;
    __syncthreads();
    u32 taken = 0, rank = 0, all = 0;
    for (u32 w = 0; w < PICKERS / 32; w++) {
        if (w == warp) taken = all + (rank > skipped ? rank - skipped : 0);
        if (w < warp) rank += equals[w];
        all += better[w];
    }
    u32* list = a.lists + ((u64)row * a.kv_heads + head) * a.list_stride;
    const u32* slot_of = a.slot_of + (u64)row * a.stride;
    for (u32 i = 0; i < stretch && n > 0; i += 32) {
        const u32 t = begin + i + lane, k = t < past ? keys[t] : 0;
        const u32 below = (1u << lane) - 1;
        const u32 tied = __ballot_sync(~0u, k == bound && t < past);
        const bool chosen = t < past && (k > bound || (k == bound && rank + __popc(tied & below) >= skipped));
        const u32 votes = __ballot_sync(~0u, chosen), at = taken + __popc(votes & below);
        taken += __popc(votes);
        rank += __popc(tied);
        if (chosen && at < a.list_stride) {
            const u32 slot = slot_of[t];
            list[at] = slot;
            atomicOr(&a.bits[head * a.pages + slot / 16], 1u << slot % 16);
        }
    }
    if (threadIdx.x == 0) {
        a.counts[row * a.kv_heads + head] = n;
        atomicAdd(&a.told[ATTENDED], (u64)n);
        atomicAdd(&a.told[PAST], (u64)past);
    }
}

struct Gather {
    const uint4* host;     // the layer in the host tier
    uint4* pool;           // [frames][K|V][d]; for gather_alone the stage
    const u32* total;      // how many are to be brought, and how many frames of the stage were asked for
    const uint2* brought;  // slot * kv_heads + kv_head, frame
    u64* told;
    u32 capacity, kv_heads, pieces;  // capacity: frames of the stage; pieces: of 16 bytes, of d numbers
};

#define DEPTH 8
#define GATHERERS 512

// Grid-stride over pieces of 16 bytes, many on their way at once: a piece comes from far, the farther the more
// the step itself reads, and few blocks are to be busy.
extern "C" __global__ void __launch_bounds__(GATHERERS) gather_rows(const __grid_constant__ Gather a) {
    const u32 count = a.total[0], all = count * 2 * a.pieces, step = gridDim.x * blockDim.x;
    for (u32 first = blockIdx.x * blockDim.x + threadIdx.x; first < all; first += DEPTH * step) {
        uint2 items[DEPTH];
        uint4 v[DEPTH];
#pragma unroll
        for (int k = 0; k < DEPTH; k++) {
            const u32 i = first + k * step;
            items[k] = i < all ? a.brought[i / a.pieces / 2] : make_uint2(0, 0);
        }
#pragma unroll
        for (int k = 0; k < DEPTH; k++) {
            const u32 i = first + k * step;
            if (i >= all) break;
            const u32 run = i / a.pieces, head = items[k].x % a.kv_heads, slot = items[k].x / a.kv_heads;
            const u64 from = (((u64)(slot / 16) * a.kv_heads + head) * 2 + run % 2) * 16 + slot % 16;
            v[k] = a.host[from * a.pieces + i % a.pieces];
        }
#pragma unroll
        for (int k = 0; k < DEPTH; k++) {
            const u32 i = first + k * step;
            if (i >= all) break;
            a.pool[(u64)items[k].y * 2 * a.pieces + i % (2 * a.pieces)] = v[k];
        }
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        atomicAdd(&a.told[BROUGHT], (u64)count);
        atomicMax(&a.told[STAGE_WANTED], (u64)a.total[1]);
    }
}

struct Attend {
    const u16* q;          // [batch rows][kv_heads * G][d]
    u16* out;
    const u32* batch_row;
    const u32* lists;
    const u32* counts;
    const u32* bits;
    const u32* starts;
    const u16* pool;       // null: all tokens lie in `layer`
    const u16* layer;      // the layer's K/V by slot: in the host tier, or in an arena of the card
    const u16* own;        // K/V that the step made
    const u32* own_slots;  // [batch rows]
    u64* told;
    float* part;           // [rows][kv_heads * G][parts][2 + d]: largest score, sum, weighted values; where parts > 1
    float* sums;           // [rows][kv_heads * G][2]: largest score and sum of what the row attended to
    Kept kept;             // of the layer
    u32 first, stage;      // frames of the pool: the first of the layer's, and of the stage's
    u32 group, kv_heads, head_size, pages, list_stride, capacity, parts;
    float scale_log2;      // log2(e) / sqrt(d)
};

#define ATTENDERS 8        // warps
#define NOWHERE (~0u)

// A block of ATTENDERS warps a (row, K/V head, four of its query heads, part of its tokens). Warps go over the row's tokens four at a time,
// lanes over pairs of numbers; the warps' states are merged in shared memory.
extern "C" __global__ void __launch_bounds__(ATTENDERS * 32) attend_picked(const __grid_constant__ Attend a) {
    __shared__ float ml[ATTENDERS][4][2];
    __shared__ float sums[ATTENDERS][4][128];
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.x, head = blockIdx.y, first_head = blockIdx.z / a.parts * 4;
    const u32 part = blockIdx.z % a.parts, d = a.head_size, many = a.group - first_head < 4 ? a.group - first_head : 4, batch = a.batch_row[row];
    const u64 query = (u64)batch * a.kv_heads * a.group + head * a.group + first_head;
    float2 q[4][2], o[4][2];
    float m[4], l[4];
    u32 in_place = 0;
#pragma unroll
    for (int g = 0; g < 4; g++) {
        m[g] = NEG_INF, l[g] = 0.0f;
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const u32 column = (c * 32 + lane) * 2;
            q[g][c] = o[g][c] = make_float2(0.0f, 0.0f);
            if (g < many && column < d) {
                const u32 pair = *(const u32*)(a.q + (query + g) * d + column);
                q[g][c] = make_float2(widen<T>((u16)pair) * a.scale_log2, widen<T>((u16)(pair >> 16)) * a.scale_log2);
            }
        }
    }
    const u32* list = a.lists + ((u64)row * a.kv_heads + head) * a.list_stride;
    const u32 picked = a.counts[row * a.kv_heads + head];
    auto by_slot = [&](const u16* kv, u32 slot) { return kv + (((u64)(slot / 16) * a.kv_heads + head) * 2 * 16 + slot % 16) * d; };
    // The row's own token is the last.
    for (u32 first = (part * ATTENDERS + warp) * 4; first <= picked; first += a.parts * ATTENDERS * 4) {
        float2 k[4][2], v[4][2];
#pragma unroll
        for (int t = 0; t < 4; t++) {
            const u16* at = nullptr;
            u64 to_v = 16 * d;
            if (first + t < picked) {
                const u32 slot = list[first + t];
                at = by_slot(a.layer, slot);
                if (a.pool) {
                    const u32 page = head * a.pages + slot / 16, staged = a.bits[page] >> 16;
                    u32 frame = NOWHERE;
                    if (staged >> slot % 16 & 1) {
                        const u32 of_stage = a.starts[page] + __popc(staged & ((1u << slot % 16) - 1));
                        if (of_stage < a.capacity) frame = a.stage + of_stage;
                    } else if (a.kept.state) {
                        const u32 own = a.kept.state[page * 16 + slot % 16] & MOST_FRAMES;
                        if (own) frame = a.first + set_of(a.kept, head, slot / 16) * a.kept.frames + own - 1;
                    }
                    if (frame != NOWHERE) at = a.pool + (u64)frame * 2 * d, to_v = d;
                    else in_place++;
                }
            } else if (first + t == picked) {
                at = by_slot(a.own, a.own_slots[batch]);
            }
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const u32 column = (c * 32 + lane) * 2;
                k[t][c] = v[t][c] = make_float2(0.0f, 0.0f);
                if (at && column < d) {
                    const u32 key = *(const u32*)(at + column), value = *(const u32*)(at + to_v + column);
                    k[t][c] = make_float2(widen<T>((u16)key), widen<T>((u16)(key >> 16)));
                    v[t][c] = make_float2(widen<T>((u16)value), widen<T>((u16)(value >> 16)));
                }
            }
        }
#pragma unroll
        for (int g = 0; g < 4; g++) {
            if (g >= many) break;
            float s[4], higher = m[g];
#pragma unroll
            for (int t = 0; t < 4; t++) {
                s[t] = q[g][0].x * k[t][0].x + q[g][0].y * k[t][0].y + q[g][1].x * k[t][1].x + q[g][1].y * k[t][1].y;
#pragma unroll
                for (int x = 16; x; x /= 2) s[t] += __shfl_xor_sync(~0u, s[t], x);
                if (first + t > picked) s[t] = NEG_INF;
                higher = fmaxf(higher, s[t]);
            }
            const float w = weight(m[g], higher);
            m[g] = higher;
            l[g] *= w;
#pragma unroll
            for (int c = 0; c < 2; c++) o[g][c].x *= w, o[g][c].y *= w;
#pragma unroll
            for (int t = 0; t < 4; t++) {
                const float e = weight(s[t], higher);
                l[g] += e;
#pragma unroll
                for (int c = 0; c < 2; c++) o[g][c].x += e * v[t][c].x, o[g][c].y += e * v[t][c].y;
            }
        }
    }
    if (lane == 0 && in_place) atomicAdd(&a.told[IN_PLACE], (u64)in_place);
#pragma unroll
    for (int g = 0; g < 4; g++) {
        if (lane == 0) ml[warp][g][0] = m[g], ml[warp][g][1] = l[g];
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const u32 column = (c * 32 + lane) * 2;
            if (column < d) sums[warp][g][column] = o[g][c].x, sums[warp][g][column + 1] = o[g][c].y;
        }
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < many * d / 2; i += ATTENDERS * 32) {
        const u32 g = i / (d / 2), column = i % (d / 2) * 2;
        float top = NEG_INF, all = 0.0f, x = 0.0f, y = 0.0f;
        for (int w = 0; w < ATTENDERS; w++) top = fmaxf(top, ml[w][g][0]);
        for (int w = 0; w < ATTENDERS; w++) {
            const float share = weight(ml[w][g][0], top);
            all += ml[w][g][1] * share, x += sums[w][g][column] * share, y += sums[w][g][column + 1] * share;
        }
        if (a.parts > 1) {
            float* to = a.part + (((u64)row * a.kv_heads * a.group + head * a.group + first_head + g) * a.parts + part) * (2 + d);
            if (column == 0) to[0] = top, to[1] = all;
            to[2 + column] = x, to[3 + column] = y;
            continue;
        }
        if (column == 0) {
            float* to = a.sums + ((u64)row * a.kv_heads * a.group + head * a.group + first_head + g) * 2;
            to[0] = top, to[1] = all;
        }
        const float inverse = all > 0.0f ? 1.0f / all : 0.0f;
        *(u32*)(a.out + (query + g) * d + column) = pack<T>(x * inverse, y * inverse);
    }
}

// A block of 64 threads a (row, query head): joins the parts, a pair of columns a thread.
extern "C" __global__ void merge_picked(const __grid_constant__ Attend a) {
    const u32 row = blockIdx.x, head = blockIdx.y, d = a.head_size, column = threadIdx.x * 2, heads = a.kv_heads * a.group;
    if (column >= d) return;
    const float* from = a.part + ((u64)row * heads + head) * a.parts * (2 + d);
    float top = NEG_INF, all = 0.0f, x = 0.0f, y = 0.0f;
    for (u32 p = 0; p < a.parts; p++) top = fmaxf(top, from[p * (2 + d)]);
    for (u32 p = 0; p < a.parts; p++) {
        const float* own = from + p * (2 + d);
        const float share = weight(own[0], top);
        all += own[1] * share, x += own[2 + column] * share, y += own[3 + column] * share;
    }
    if (column == 0) {
        float* to = a.sums + ((u64)row * heads + head) * 2;
        to[0] = top, to[1] = all;
    }
    const float inverse = all > 0.0f ? 1.0f / all : 0.0f;
    *(u32*)(a.out + ((u64)a.batch_row[row] * heads + head) * d + column) = pack<T>(x * inverse, y * inverse);
}

// 16 bytes from where they are, whatever a cache has of them: a copy of its own for every row.
__device__ __forceinline__ uint4 past_caches(const uint4* from) {
    uint4 v;
    asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from) : "memory");
    return v;
}

// For rows that fetch each by itself: what a row wants crosses the link though another has brought it. A block a (row, K/V
// head); what has no frame is read by attention anyway.
extern "C" __global__ void gather_alone(const __grid_constant__ Gather a, const u32* lists, const u32* counts, const u32* bits, const u32* starts, u32 list_stride, u32 pages) {
    const u32 row = blockIdx.x, head = blockIdx.y, n = counts[row * a.kv_heads + head];
    const u32* list = lists + ((u64)row * a.kv_heads + head) * list_stride;
    u32 found = 0;
    for (u32 i = threadIdx.x; i < n * 2 * a.pieces; i += blockDim.x) {
        const u32 run = i / a.pieces, slot = list[run / 2], page = head * pages + slot / 16;
        const u32 frame = starts[page] + __popc(bits[page] >> 16 & ((1u << slot % 16) - 1));
        if (frame >= a.capacity) continue;
        const u64 from = (((u64)(slot / 16) * a.kv_heads + head) * 2 + run % 2) * 16 + slot % 16;
        const uint4 v = past_caches(a.host + from * a.pieces + i % a.pieces);
        a.pool[((u64)frame * 2 + run % 2) * a.pieces + i % a.pieces] = v;
        found += i % (2 * a.pieces) == 0;
    }
    if (found) atomicAdd(&a.told[BROUGHT], (u64)found);
}

struct Sample {
    const u16* q;          // as Attend
    const u32* batch_row;
    const Run* runs;       // of the row's path, its own token included
    const u16* layer;
    const u16* own;
    const u32* own_slots;
    const float* sums;     // as Attend
    float* part;           // [G][blocks][2]: largest score and sum
    u64* told;
    u32 row, head, position, run_count, group, kv_heads, head_size, blocks;
    float scale_log2;
};

#define SAMPLERS 8         // warps

// All tokens of a row's path for one K/V head, keys read where they lie. Grid (blocks, G / 4), a warp a run, lanes over pairs of
// numbers, four tokens on their way at once.
extern "C" __global__ void __launch_bounds__(SAMPLERS * 32) sample_full(const __grid_constant__ Sample a) {
    __shared__ float ml[SAMPLERS][4][2];
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, d = a.head_size, first_head = blockIdx.y * 4;
    const u32 many = a.group - first_head < 4 ? a.group - first_head : 4, batch = a.batch_row[a.row];
    float2 q[4][2];
    float m[4], l[4];
#pragma unroll
    for (int g = 0; g < 4; g++) {
        m[g] = NEG_INF, l[g] = 0.0f;
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const u32 column = (c * 32 + lane) * 2;
            q[g][c] = make_float2(0.0f, 0.0f);
            if (g < many && column < d) {
                const u64 query = (u64)batch * a.kv_heads * a.group + a.head * a.group + first_head + g;
                const u32 pair = *(const u32*)(a.q + query * d + column);
                q[g][c] = make_float2(widen<T>((u16)pair) * a.scale_log2, widen<T>((u16)(pair >> 16)) * a.scale_log2);
            }
        }
    }
    for (u32 r = blockIdx.x * SAMPLERS + warp; r < a.run_count; r += gridDim.x * SAMPLERS) {
        const Run run = a.runs[r];
        for (u32 first = 0; first < run.len; first += 4) {
            float2 k[4][2];
#pragma unroll
            for (int t = 0; t < 4; t++) {
                const u32 position = run.start + first + t;
                const bool real = first + t < run.len, itself = position == a.position;
                const u32 slot = !real ? 0 : itself ? a.own_slots[batch] : run.page * 16 + position % 16;
                const u16* at = (itself ? a.own : a.layer) + (((u64)(slot / 16) * a.kv_heads + a.head) * 2 * 16 + slot % 16) * d;
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    const u32 column = (c * 32 + lane) * 2;
                    k[t][c] = make_float2(0.0f, 0.0f);
                    if (real && column < d) {
                        const u32 key = *(const u32*)(at + column);
                        k[t][c] = make_float2(widen<T>((u16)key), widen<T>((u16)(key >> 16)));
                    }
                }
            }
#pragma unroll
            for (int g = 0; g < 4; g++) {
                if (g >= many) break;
                float s[4], higher = m[g];
#pragma unroll
                for (int t = 0; t < 4; t++) {
                    s[t] = q[g][0].x * k[t][0].x + q[g][0].y * k[t][0].y + q[g][1].x * k[t][1].x + q[g][1].y * k[t][1].y;
#pragma unroll
                    for (int x = 16; x; x /= 2) s[t] += __shfl_xor_sync(~0u, s[t], x);
                    if (first + t >= run.len) s[t] = NEG_INF;
                    higher = fmaxf(higher, s[t]);
                }
                l[g] *= weight(m[g], higher);
                m[g] = higher;
#pragma unroll
                for (int t = 0; t < 4; t++) l[g] += weight(s[t], higher);
            }
        }
    }
#pragma unroll
    for (int g = 0; g < 4; g++) {
        if (lane == 0) ml[warp][g][0] = m[g], ml[warp][g][1] = l[g];
    }
    __syncthreads();
    if (threadIdx.x < many) {
        const u32 g = threadIdx.x;
        float top = NEG_INF, all = 0.0f;
        for (int w = 0; w < SAMPLERS; w++) top = fmaxf(top, ml[w][g][0]);
        for (int w = 0; w < SAMPLERS; w++) all += ml[w][g][1] * weight(ml[w][g][0], top);
        float* to = a.part + ((u64)(first_head + g) * a.blocks + blockIdx.x) * 2;
        to[0] = top, to[1] = all;
    }
}

// A warp: of each query head the share of all weight that lies on tokens which the row did not attend to.
extern "C" __global__ void sample_missed(const __grid_constant__ Sample a) {
    float missed = 0.0f;
    for (u32 g = threadIdx.x; g < a.group; g += 32) {
        const float* part = a.part + (u64)g * a.blocks * 2;
        const float* own = a.sums + ((u64)a.row * a.kv_heads * a.group + a.head * a.group + g) * 2;
        float top = own[0], all = 0.0f;
        for (u32 b = 0; b < a.blocks; b++) top = fmaxf(top, part[2 * b]);
        for (u32 b = 0; b < a.blocks; b++) all += part[2 * b + 1] * weight(part[2 * b], top);
        missed += fminf(fmaxf(1.0f - own[1] * weight(own[0], top) / all, 0.0f), 1.0f);
    }
#pragma unroll
    for (int s = 16; s; s /= 2) missed += __shfl_xor_sync(~0u, missed, s);
    if (threadIdx.x == 0) {
        atomicAdd(&a.told[SAMPLES], (u64)a.group);
        atomicAdd(&a.told[MISSED], (u64)((double)missed * 4294967296.0));
    }
}
