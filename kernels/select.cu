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
//   pick             the n best tokens of a row and K/V head, by position, and a bit for each in the union
//   place            a frame of the stage for every bit; what has none is read from the host tier in place
//   gather_rows      K and V of what has a frame, from the host tier; or once for each row that wants it
//   attend_picked    attention of a row to its tokens, wherever they lie, and to itself
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
    const u32* batch_row;  // [rows]
    const u32* positions;  // [rows]: a row chooses among so many tokens before it
    const u32* caps;       // [rows]: the most it may take
    u32* lists;            // [rows][kv_heads][list_stride]: slots by position
    u32* counts;           // [rows][kv_heads]
    u32* bits;             // [kv_head][page]: tokens that any row wants
    u32* starts;           // [kv_head][page]: frame of the first of them
    u32* total;            // their number; zero at first, as the bits are
    u32* items;            // [capacity]: slot * kv_heads + kv_head of each frame
    u64* told;             // tokens attended to, tokens before them, rows brought to the stage, rows read in place
    float alpha, scale;
    u32 rows, run_count, group, kv_heads, head_size, columns, pairs, pages, stride, list_stride, capacity, all;
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
    unsigned char* codes;
    u16* scales;
    u32 kv_heads, head_size, columns, pairs;
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
                for (u32 i = 0; i < d; i++) sums[k] += keys[warp][i] * basis[(u64)i * c];
            }
            most = fmaxf(most, fabsf(sums[k]));
        }
#pragma unroll
        for (int s = 16; s; s /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, s));
        const u16 scale = half_of(most / 7.0f);
        const float wide = widen<F16>(scale), inverse = wide == 0.0f ? 0.0f : 1.0f / wide;
        const u64 at = ((u64)(to / 16) * a.kv_heads + head) * 16;
        if (lane == 0) a.scales[at + to % 16] = scale;
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
    for (u32 g = warp; g < a.group; g += 4) {
        const u16* q = a.q + ((u64)a.batch_row[row] * heads + head * a.group + g) * d;
        for (u32 i = lane; i < d; i += 32) query[warp][i] = widen<T>(q[i]) * a.scale;
        __syncwarp();
        for (u32 column = lane; column < c; column += 32) {
            float sum = 0.0f;
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

// A block of 256 threads a (row, query head).
extern "C" __global__ void head_tops(const __grid_constant__ Select a) {
    __shared__ float tops[8];
    __shared__ u32 found;
    const u32 row = blockIdx.x, head = blockIdx.y, past = a.positions[row], at = row * a.kv_heads * a.group + head;
    const float* scores = a.scores + (u64)at * a.stride;
    if (threadIdx.x == 0) found = 0;
    float top = NEG_INF;
    for (u32 t = threadIdx.x; t < past; t += 256) top = fmaxf(top, scores[t]);
#pragma unroll
    for (int s = 16; s; s /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, s));
    if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = top;
    __syncthreads();
    for (int w = 0; w < 8; w++) top = fmaxf(top, tops[w]);
    u32 count = 0;
    for (u32 t = threadIdx.x; t < past; t += 256) count += scores[t] > top - a.alpha;
#pragma unroll
    for (int s = 16; s; s /= 2) count += __shfl_xor_sync(~0u, count, s);
    if (threadIdx.x % 32 == 0) atomicAdd(&found, count);
    __syncthreads();
    if (threadIdx.x == 0) a.tops[at] = top, a.within[at] = found;
}

#define PICKERS 512

// How many threads before this one say so, and how many of all. Every thread of the block calls it.
__device__ __forceinline__ u32 before(bool says, u32* sums, u32* all) {
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, votes = __ballot_sync(~0u, says);
    __syncthreads();
    if (lane == 0) sums[warp] = __popc(votes);
    __syncthreads();
    u32 own = 0, total = 0;
    for (u32 w = 0; w < PICKERS / 32; w++) {
        own += w < warp ? sums[w] : 0;
        total += sums[w];
    }
    *all = total;
    return own + __popc(votes & ((1u << lane) - 1));
}

// A block of PICKERS threads a (row, K/V head): the n-th best key by radix, a byte at a time, then all better ones and as
// many equal ones as are left to take, the newest of them. A key is what the token is worth to the query head of the group
// that wants it most, counted from that head's own largest score.
extern "C" __global__ void __launch_bounds__(PICKERS) pick(const __grid_constant__ Select a) {
    __shared__ u32 histogram[256], sums[PICKERS / 32], prefix, left;
    const u32 row = blockIdx.x, head = blockIdx.y, heads = a.kv_heads * a.group, past = a.positions[row];
    u32 n = a.caps[row] < past ? a.caps[row] : past;
    if (!a.all) {
        u32 total = 0;
        for (u32 h = 0; h < heads; h++) total += a.within[row * heads + h];
        const u32 mean = (total + heads - 1) / heads;
        n = mean < n ? mean : n;
    }
    const float* scores = a.scores + ((u64)row * heads + head * a.group) * a.stride;
    const float* tops = a.tops + row * heads + head * a.group;
    auto key = [&](u32 t) {
        float best = NEG_INF;
        for (u32 g = 0; g < a.group; g++) best = fmaxf(best, scores[(u64)g * a.stride + t] - tops[g]);
        return ordered(best);
    };
    if (threadIdx.x == 0) prefix = 0, left = n;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (u32 i = threadIdx.x; i < 256; i += PICKERS) histogram[i] = 0;
        __syncthreads();
        const u32 known = prefix;
        for (u32 t = threadIdx.x; t < past && n > 0; t += PICKERS) {
            const u32 k = key(t);
            if (shift == 24 || k >> (shift + 8) == known >> (shift + 8)) atomicAdd(&histogram[k >> shift & 255], 1);
        }
        __syncthreads();
        if (threadIdx.x == 0 && n > 0) {
            u32 byte = 255;
            while (byte > 0 && histogram[byte] < left) left -= histogram[byte--];
            prefix = known | byte << shift;
        }
        __syncthreads();
    }
    // `left` of the `equal` ones that have the bound itself are taken.
    const u32 bound = prefix, equal = histogram[bound & 255], skipped = equal - (left < equal ? left : equal);
    u32* list = a.lists + ((u64)row * a.kv_heads + head) * a.list_stride;
    const u32* slot_of = a.slot_of + (u64)row * a.stride;
    u32 taken = 0, ties = 0;
    for (u32 first = 0; first < past && n > 0; first += PICKERS) {
        const u32 t = first + threadIdx.x;
        const u32 k = t < past ? key(t) : 0;
        const bool tie = t < past && k == bound;
        u32 all;
        const u32 rank = ties + before(tie, sums, &all);
        ties += all;
        const bool chosen = t < past && (k > bound || (tie && rank >= skipped));
        const u32 at = taken + before(chosen, sums, &all);
        taken += all;
        if (chosen && at < a.list_stride) {
            const u32 slot = slot_of[t];
            list[at] = slot;
            atomicOr(&a.bits[head * a.pages + slot / 16], 1u << slot % 16);
        }
    }
    if (threadIdx.x == 0) {
        a.counts[row * a.kv_heads + head] = taken;
        atomicAdd(&a.told[0], (u64)taken);
        atomicAdd(&a.told[1], (u64)past);
    }
}

// A thread a (K/V head, page). Frames of a warp's pages are neighbours, so that what is read of the host tier is too.
extern "C" __global__ void place(const __grid_constant__ Select a) {
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
    const bool real = i < a.kv_heads * a.pages;
    u32 bits = real ? a.bits[i] : 0;
    const u32 own = __popc(bits);
    u32 sum = own;
#pragma unroll
    for (int s = 1; s < 32; s *= 2) {
        const u32 other = __shfl_up_sync(~0u, sum, s);
        if (lane >= s) sum += other;
    }
    u32 base = 0;
    if (lane == 31 && sum > 0) base = atomicAdd(a.total, sum);
    base = __shfl_sync(~0u, base, 31);
    u32 frame = base + sum - own;
    if (!real) return;
    a.starts[i] = frame;
    const u32 head = i / a.pages, page = i % a.pages;
    for (; bits; bits &= bits - 1, frame++) {
        if (frame < a.capacity) a.items[frame] = (page * 16 + __ffs(bits) - 1) * a.kv_heads + head;
    }
}

struct Gather {
    const uint4* host;     // the layer in the host tier
    uint4* stage;          // [capacity][K|V][d]
    const u32* total;
    const u32* items;
    u64* told;
    u32 capacity, kv_heads, pieces;  // pieces: of 16 bytes, of d numbers
};

// Grid-stride over pieces of 16 bytes, four on their way at once.
extern "C" __global__ void gather_rows(const __grid_constant__ Gather a) {
    const u32 wanted = *a.total, count = wanted < a.capacity ? wanted : a.capacity;
    const u64 all = (u64)count * 2 * a.pieces, step = (u64)gridDim.x * blockDim.x;
    for (u64 first = blockIdx.x * (u64)blockDim.x + threadIdx.x; first < all; first += 4 * step) {
        uint4 v[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const u64 i = first + k * step;
            if (i >= all) break;
            const u32 run = (u32)(i / a.pieces), item = a.items[run / 2], head = item % a.kv_heads, slot = item / a.kv_heads;
            const u64 from = (((u64)(slot / 16) * a.kv_heads + head) * 2 + run % 2) * 16 + slot % 16;
            v[k] = a.host[from * a.pieces + i % a.pieces];
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if (first + k * step >= all) break;
            a.stage[first + k * step] = v[k];
        }
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) atomicAdd(&a.told[2], (u64)count);
}

struct Attend {
    const u16* q;          // [batch rows][kv_heads * G][d]
    u16* out;
    const u32* batch_row;
    const u32* lists;
    const u32* counts;
    const u32* bits;
    const u32* starts;
    const u16* stage;      // null: all tokens lie in `layer`
    const u16* layer;      // the layer's K/V by slot: in the host tier, or in an arena of the card
    const u16* own;        // K/V that the step made
    const u32* own_slots;  // [batch rows]
    u64* told;
    u32 group, kv_heads, head_size, pages, list_stride, capacity;
    float scale_log2;      // log2(e) / sqrt(d)
};

#define ATTENDERS 8        // warps

// A block of ATTENDERS warps a (row, K/V head, four of its query heads). Warps go over the row's tokens four at a time,
// lanes over pairs of numbers; the warps' states are merged in shared memory.
extern "C" __global__ void __launch_bounds__(ATTENDERS * 32) attend_picked(const __grid_constant__ Attend a) {
    __shared__ float ml[ATTENDERS][4][2];
    __shared__ float sums[ATTENDERS][4][128];
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.x, head = blockIdx.y, first_head = blockIdx.z * 4;
    const u32 d = a.head_size, many = a.group - first_head < 4 ? a.group - first_head : 4, batch = a.batch_row[row];
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
    for (u32 first = warp * 4; first <= picked; first += ATTENDERS * 4) {
        float2 k[4][2], v[4][2];
#pragma unroll
        for (int t = 0; t < 4; t++) {
            const u16* at = nullptr;
            u64 to_v = 16 * d;
            if (first + t < picked) {
                const u32 slot = list[first + t];
                at = by_slot(a.layer, slot);
                if (a.stage) {
                    const u32 page = head * a.pages + slot / 16;
                    const u32 frame = a.starts[page] + __popc(a.bits[page] & ((1u << slot % 16) - 1));
                    if (frame < a.capacity) at = a.stage + (u64)frame * 2 * d, to_v = d;
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
    if (lane == 0 && in_place) atomicAdd(&a.told[3], (u64)in_place);
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
        const float inverse = all > 0.0f ? 1.0f / all : 0.0f;
        *(u32*)(a.out + (query + g) * d + column) = pack<T>(x * inverse, y * inverse);
    }
}

// For rows that fetch each by itself: what a row wants crosses the link though another has brought it. A block a (row, K/V
// head); what has no frame is read by attention anyway.
extern "C" __global__ void gather_alone(const __grid_constant__ Gather a, const u32* lists, const u32* counts, const u32* bits, const u32* starts, u32 list_stride, u32 pages) {
    const u32 row = blockIdx.x, head = blockIdx.y, n = counts[row * a.kv_heads + head];
    const u32* list = lists + ((u64)row * a.kv_heads + head) * list_stride;
    u32 found = 0;
    for (u32 i = threadIdx.x; i < n * 2 * a.pieces; i += blockDim.x) {
        const u32 run = i / a.pieces, slot = list[run / 2], page = head * pages + slot / 16;
        const u32 frame = starts[page] + __popc(bits[page] & ((1u << slot % 16) - 1));
        if (frame >= a.capacity) continue;
        const u64 from = (((u64)(slot / 16) * a.kv_heads + head) * 2 + run % 2) * 16 + slot % 16;
        // Past the caches: a copy of its own for every row.
        const volatile uint4* source = a.host + from * a.pieces + i % a.pieces;
        const uint4 v = {source->x, source->y, source->z, source->w};
        a.stage[((u64)frame * 2 + run % 2) * a.pieces + i % a.pieces] = v;
        found += i % (2 * a.pieces) == 0;
    }
    if (found) atomicAdd(&a.told[2], (u64)found);
}
