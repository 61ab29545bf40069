// What was chosen (select.cu, keep.cu) is gathered from the host tier, and attention reads that alone.
//
//   gather_rows    K and V of what is to be brought, from the host tier; or once for each row that wants it (gather_alone)
//   attend_picked  attention of a row to its tokens, wherever they lie, and to itself; merge_picked joins its parts
//   sample_full    now and then attention of a row and K/V head to all tokens; sample_missed says what was missed
//
// K/V is [page][kv_head][K|V][16][d] in both tiers, a slot page * 16 + offset; frames are [K|V][d].
#include "select.cuh"

struct Gather {
    const uint4* host;     // the layer in the host tier
    uint4* pool;           // [frames][K|V][d]
    const u32* total;      // see Keep
    const uint2* brought;  // see Keep
    const uint2* chunks;   // see Keep
    u64* told;
    u32 capacity, kv_heads, pieces;  // capacity: frames of the stage; pieces: of 16 bytes, of d numbers
    u32 own, stage, turned;          // see Keep
    u32 chunk_count;
    u32 late;              // whether it is the turn of what lies where the layer before has its rows
};

// Rows of the stage that are brought at once: as many as are free of the layer before's.
__device__ __forceinline__ u32 free_of(const u32* total, u32 capacity) { return capacity - (total[2] < capacity ? total[2] : capacity); }

#define DEPTH 8
#define GATHERERS 512
#define NO_FRAME (~0u)

// Chunks of the stage that are taken in turns: each goes through the pages in order, so that together they sweep the host tier once.
#define MOST_CHUNKS GATHERERS

// Grid-stride over pieces of 16 bytes, many on their way at once: a piece comes from far, the farther the more
// the step itself reads, and few blocks are to be busy. So where the next ones lie is asked for while the last are on their way,
// and no place among them is left to a chunk that has ended.
extern "C" __global__ void __launch_bounds__(GATHERERS) gather_rows(const __grid_constant__ Gather a) {
    __shared__ uint2 chunks[MOST_CHUNKS];
    __shared__ u32 before[GATHERERS / 32], longest;
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u32 wanted = a.total[1] < a.capacity ? a.total[1] : a.capacity, free = free_of(a.total, a.capacity), early = wanted < free ? wanted : free;
    const u32 begin = a.late ? early : 0, end = a.late ? wanted : early, stays = a.late ? 0 : a.total[0];
    if (threadIdx.x == 0) longest = 0;
    // A thread a chunk: what of it is brought now; too many are one.
    uint2 own = make_uint2(0, 0);
    if (a.chunk_count > MOST_CHUNKS) {
        if (threadIdx.x == 0) own = make_uint2(begin, end);
    } else if (threadIdx.x < a.chunk_count) {
        const uint2 chunk = a.chunks[threadIdx.x];
        own = make_uint2(chunk.x > begin ? chunk.x : begin, chunk.x + chunk.y < end ? chunk.x + chunk.y : end);
    }
    const bool any = own.x < own.y;
    const u32 votes = __ballot_sync(~0u, any);
    if (lane == 0) before[warp] = __popc(votes);
    __syncthreads();
    u32 active = 0, at = __popc(votes & ((1u << lane) - 1));
    for (u32 w = 0; w < GATHERERS / 32; w++) at += w < warp ? before[w] : 0, active += before[w];
    if (any) chunks[at] = make_uint2(own.x, own.y - own.x), atomicMax(&longest, own.y - own.x);
    __syncthreads();
    const u32 row_pieces = 2 * a.pieces, all = (stays + active * longest) * row_pieces, step = gridDim.x * blockDim.x;
    u32 next = blockIdx.x * blockDim.x + threadIdx.x;
    // The next pieces of this thread: which row each belongs to, and which of its pieces it is. Every round of the chunks begins
    // with another one, so that long ones are not left to the same threads.
    auto find = [&](uint2 (&items)[DEPTH], u32 (&piece)[DEPTH]) {
#pragma unroll
        for (int k = 0; k < DEPTH; k++) {
            u32 place = NO_FRAME;
            for (; next < all && place == NO_FRAME; next += step) {
                const u32 item = next / row_pieces, of_chunk = item < stays ? 0 : (item - stays) / active;
                piece[k] = next % row_pieces;
                if (item < stays) {
                    place = item;
                } else {
                    const uint2 chunk = chunks[(item - stays + of_chunk) % active];
                    if (of_chunk < chunk.y) place = a.own + chunk.x + of_chunk;
                }
            }
            items[k] = place == NO_FRAME ? make_uint2(0, NO_FRAME) : a.brought[place];
        }
    };
    uint2 items[DEPTH], coming[DEPTH];
    u32 piece[DEPTH], coming_piece[DEPTH];
    find(coming, coming_piece);
    while (coming[0].y != NO_FRAME) {
        uint4 v[DEPTH];
#pragma unroll
        for (int k = 0; k < DEPTH; k++) items[k] = coming[k], piece[k] = coming_piece[k];
#pragma unroll
        for (int k = 0; k < DEPTH; k++) {
            if (items[k].y == NO_FRAME) continue;
            const u32 head = items[k].x % a.kv_heads, slot = items[k].x / a.kv_heads;
            const u64 from = (((u64)(slot / 16) * a.kv_heads + head) * 2 + piece[k] / a.pieces) * 16 + slot % 16;
            v[k] = a.host[from * a.pieces + piece[k] % a.pieces];
        }
        find(coming, coming_piece);
#pragma unroll
        for (int k = 0; k < DEPTH; k++) {
            if (items[k].y == NO_FRAME) continue;
            a.pool[(u64)items[k].y * row_pieces + piece[k]] = v[k];
        }
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        if (stays + end > begin) atomicAdd(&a.told[BROUGHT], (u64)(stays + end - begin));
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
    const u32* total;      // see Keep
    const u16* pool;       // null: all tokens lie in `layer`
    const u16* layer;      // the layer's K/V by slot: in the host tier, or in an arena of the card
    const u16* own;        // K/V that the step made
    const u32* own_slots;  // [batch rows]
    u64* told;
    float* part;           // [rows][kv_heads * G][parts][2 + d]: largest score, sum, weighted values; where parts > 1
    float* sums;           // [rows][kv_heads * G][2]: largest score and sum of what the row attended to
    Kept kept;             // of the layer
    u32 first, stage, turned;  // frames of the pool: the first of the layer's, and of the stage's; see Keep
    u32 group, kv_heads, head_size, pages, list_stride, capacity;
    u32 in_parts;          // whether rows were brought where the layer before had its own
    u32 parts;
    float scale_log2;      // log2(e) / sqrt(d)
};

#define ATTENDERS 8        // warps

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
    const u32 brought = !a.pool ? 0 : a.in_parts ? a.capacity : free_of(a.total, a.capacity);
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
                    u32 frame = NO_FRAME;
                    if (staged >> slot % 16 & 1) {
                        const u32 of_stage = a.starts[page] + __popc(staged & ((1u << slot % 16) - 1));
                        if (of_stage < brought) frame = stage_frame(a.stage, a.capacity, a.turned, of_stage);
                    } else if (a.kept.state) {
                        const u32 own = a.kept.state[page * 16 + slot % 16] & MOST_FRAMES;
                        if (own) frame = a.first + set_of(a.kept, head, slot / 16) * a.kept.frames + own - 1;
                    }
                    if (frame != NO_FRAME) at = a.pool + (u64)frame * 2 * d, to_v = d;
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
    const u32 row = blockIdx.x, head = blockIdx.y, n = counts[row * a.kv_heads + head], free = free_of(a.total, a.capacity);
    const u32* list = lists + ((u64)row * a.kv_heads + head) * list_stride;
    u32 found = 0;
    for (u32 i = threadIdx.x; i < n * 2 * a.pieces; i += blockDim.x) {
        const u32 run = i / a.pieces, slot = list[run / 2], page = head * pages + slot / 16;
        const u32 of_stage = starts[page] + __popc(bits[page] >> 16 & ((1u << slot % 16) - 1));
        if (of_stage >= a.capacity || (of_stage >= free) != (a.late != 0)) continue;
        const u32 frame = stage_frame(a.stage, a.capacity, a.turned, of_stage);
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
