// The choice of what rows attend to (InfiniGen): partial keys, guessed scores, and the union of what the rows chose. Everything
// stays on the card: no step waits for the host.
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
//
// Then settle (keep.cu) gives every bit a frame, and picked.cu brings and attends.
#include "select.cuh"

struct Select {
    const u16* q;          // [batch rows][kv_heads * G][d]: whose scores are guessed
    const float* basis;    // [kv_head][d][c]
    const unsigned char* codes;  // [page][kv_head][pairs][16]
    const u16* scales;     // [page][kv_head][16], float16
    float* projected;      // [rows][kv_heads * G][2 * pairs]
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
    u32* bits;             // [kv_head][page]: tokens that any row wants, and the three numbers of Keep's total
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

#define SLICES 8           // warps: each sums over an eighth of the d numbers, which is four at least

// A block of SLICES warps a (new token, K/V head), lanes over columns.
extern "C" __global__ void __launch_bounds__(SLICES * 32) put_partial(const __grid_constant__ Put a) {
    __shared__ float key[128], part[SLICES][128];
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.y, d = a.head_size, c = a.columns, many = d / SLICES;
    const u32 from = a.from_slots[blockIdx.x], to = a.to_slots[blockIdx.x];
    const u16* numbers = a.kv + (((u64)(from / 16) * a.kv_heads + head) * 2 * 16 + from % 16) * d;
    if (threadIdx.x < d) key[threadIdx.x] = widen<T>(numbers[threadIdx.x]);
    __syncthreads();
    for (u32 column = lane; column < c; column += 32) {
        const float* basis = a.basis + ((u64)head * d + warp * many) * c + column;
        float sum = 0.0f;
#pragma unroll 16
        for (u32 i = 0; i < many; i++) sum += key[warp * many + i] * basis[(u64)i * c];
        part[warp][column] = sum;
    }
    __syncthreads();
    if (warp > 0) return;
    float sums[4], most = 0.0f;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const u32 column = lane + 32 * k;
        sums[k] = column < c ? -a.centre[head * c + column] : 0.0f;
#pragma unroll
        for (int w = 0; w < SLICES; w++) sums[k] += column < c ? part[w][column] : 0.0f;
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
}

// A block of SLICES warps a (row, K/V head), lanes over columns, four query heads at a time.
extern "C" __global__ void __launch_bounds__(SLICES * 32) project_queries(const __grid_constant__ Select a) {
    __shared__ float query[4][128], part[SLICES][4][128];
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.x, head = blockIdx.y;
    const u32 heads = a.kv_heads * a.group, d = a.head_size, c = a.columns, many = d / SLICES;
    if (a.clears) {
        const u32 step = gridDim.x * a.kv_heads * blockDim.x;
        for (u32 i = (row * a.kv_heads + head) * blockDim.x + threadIdx.x; i < a.kv_heads * a.pages + 3; i += step) a.bits[i] = 0;
    }
    for (u32 first = 0; first < a.group; first += 4) {
        const u32 fours = a.group - first < 4 ? a.group - first : 4;
        const u16* q = a.q + ((u64)a.batch_row[row] * heads + head * a.group + first) * d;
        for (u32 i = threadIdx.x; i < 4 * d; i += blockDim.x) query[i / d][i % d] = i < fours * d ? widen<T>(q[i]) * a.scale : 0.0f;
        __syncthreads();
        for (u32 column = lane; column < c; column += 32) {
            const float* basis = a.basis + ((u64)head * d + warp * many) * c + column;
            float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 16
            for (u32 i = 0; i < many; i++) {
                const float b = basis[(u64)i * c];
#pragma unroll
                for (int g = 0; g < 4; g++) sums[g] += query[g][warp * many + i] * b;
            }
#pragma unroll
            for (int g = 0; g < 4; g++) part[warp][g][column] = sums[g];
        }
        __syncthreads();
        // A last column without a neighbour has a zero.
        for (u32 i = threadIdx.x; i < fours * 2 * a.pairs; i += blockDim.x) {
            const u32 g = i / (2 * a.pairs), column = i % (2 * a.pairs);
            float sum = 0.0f;
#pragma unroll
            for (int w = 0; w < SLICES; w++) sum += column < c ? part[w][g][column] : 0.0f;
            a.projected[((u64)row * heads + head * a.group + first) * 2 * a.pairs + i] = sum;
        }
        __syncthreads();
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

// A warp a (run, K/V head): eight pairs of columns at once, four lanes to each, which have four tokens of the page; then the lanes
// share the sums out. Grid (runs / 8, kv_heads), 256 threads.
extern "C" __global__ void score(const __grid_constant__ Select a) {
    const u32 lane = threadIdx.x % 32, r = blockIdx.x * 8 + threadIdx.x / 32, head = blockIdx.y;
    if (r >= a.run_count) return;
    const Run run = a.runs[r];
    const u32 heads = a.kv_heads * a.group, offset = run.start % 16, base = run.start - offset;
    const u64 at = ((u64)run.page * a.kv_heads + head) * 16;
    const u32* codes = (const u32*)(a.codes + at * a.pairs) + lane % 4;
    // The tokens and the head of four whose sums this lane has in the end.
    const u32 token = lane % 4 * 4 + (lane / 4 & 1) * 2, own = lane / 16 * 2 + (lane / 8 & 1);
    const u32 scales = *(const u32*)(a.scales + at + token);
    const u32 past = a.positions[run.row];
    for (u32 first = 0; first < a.group; first += 4) {
        const float2* query = (const float2*)a.projected + ((u64)run.row * heads + head * a.group + first) * a.pairs;
        const u32 many = a.group - first < 4 ? a.group - first : 4;
        float sums[4][4];
#pragma unroll
        for (int g = 0; g < 4; g++) sums[g][0] = sums[g][1] = sums[g][2] = sums[g][3] = 0.0f;
#pragma unroll 4
        for (u32 pair = lane / 4; pair < a.pairs; pair += 8) {
            const u32 eight = codes[pair * 4];
            float2 q[4];
#pragma unroll
            for (int g = 0; g < 4; g++) q[g] = g < many ? query[g * a.pairs + pair] : make_float2(0.0f, 0.0f);
#pragma unroll
            for (int t = 0; t < 4; t++) {
                const float even = (float)((int)(eight << (28 - 8 * t)) >> 28), odd = (float)((int)(eight << (24 - 8 * t)) >> 28);
#pragma unroll
                for (int g = 0; g < 4; g++) sums[g][t] += even * q[g].x + odd * q[g].y;
            }
        }
        float half[2][4], quarter[4], last[2];
        const bool upper = lane & 16, middle = lane & 8, lower = lane & 4;
#pragma unroll
        for (int g = 0; g < 2; g++) {
#pragma unroll
            for (int t = 0; t < 4; t++) {
                const float other = __shfl_xor_sync(~0u, upper ? sums[g][t] : sums[g + 2][t], 16);
                half[g][t] = (upper ? sums[g + 2][t] : sums[g][t]) + other;
            }
        }
#pragma unroll
        for (int t = 0; t < 4; t++) quarter[t] = (middle ? half[1][t] : half[0][t]) + __shfl_xor_sync(~0u, middle ? half[0][t] : half[1][t], 8);
#pragma unroll
        for (int t = 0; t < 2; t++) last[t] = (lower ? quarter[t + 2] : quarter[t]) + __shfl_xor_sync(~0u, lower ? quarter[t] : quarter[t + 2], 4);
        float* to = a.scores + ((u64)run.row * heads + head * a.group + first + own) * a.stride + base;
#pragma unroll
        for (int t = 0; t < 2; t++) {
            const u32 i = token + t;
            if (own < many && i >= offset && i < offset + run.len && base + i < past) to[i] = last[t] * widen<F16>((u16)(scales >> (16 * t)));
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
