// Rows of the host tier that stay on the card from step to step: which of them are there, which go for others, and where what
// a step wants beside them is brought. Everything stays on the card: no step waits for the host to be told.
//
// Rows (K and V of one token and K/V head) lie in frames of one pool. A selecting layer has frames of its own, in *sets*: a
// set serves one K/V head and every `groups`-th page, so a block can settle it alone. What finds no frame of its layer is
// brought to a *stage*, and is gone after the layer; what finds no frame there is read in place. Layers take turns in filling the
// stage from either end, so that one comes while the one before is read, and where the two meet waits until that is done.
//
//   settle     a layer's choice: which rows are here, which come, which go for them; the list of what is to be brought
//   forget     rows of pages leave
//   bring_back rows of pages that were wanted before come to frames that are free
//   count_here how many rows of each page are here
//
// A row's uses are counted wherever it is: one is added in every step that wants it; when one of a set has MOST_USES, all of
// the set are halved. By the counter, rows that were used more take the frames of those that were used less; by fifo and lru
// every row that comes takes the frame of the oldest that is not wanted now. Ties go by number: the same steps give
// the same frames.
#include "keep.cuh"

#define SETTLERS 512
#define PAGES (SETTLERS / 16)  // pages of a set that its block has a thread for each token of
#define AT_ONCE 4
#define MOST_USES 15
// Places in the order in which frames go: 0 is free, then by uses or by age.
#define LEVELS 256
#define NEVER (~0u)

struct Keep {
    u32* bits;      // [kv_head][page]: tokens that any row wants; in the upper half those of them that get a frame of the stage
    u32* starts;    // [kv_head][page]: the first of these frames
    Kept kept;
    u32* total;     // rows to be brought to the layer's frames, frames of the stage that were asked for (zeros at first), and those of the layer before
    const u32* other;  // which stand there
    uint2* brought; // [all frames of the layer, then capacity]: slot * kv_heads + kv_head, frame of the pool
    uint2* chunks;  // [set][tiles]: the first row of the stage that SETTLERS of the set's pages have, and how many they have
    u32* moved;     // [page]: rows that cross the link in this step
    u64* told;      // see Told
    u32 first;      // frame of the pool of the layer's first
    u32 stage;      // and of the stage's
    u32 capacity;   // frames of the stage
    u32 turned;     // whether it is filled from its end
    u32 own;        // frames of the layer
    u32 tiles;      // chunks of a set
    u32 step;
};

// Sums of the threads before, and of all; every thread of the block comes here.
__device__ __forceinline__ u32 before(u32 n, u32* sums, u32& all) {
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u32 sum = n;
#pragma unroll
    for (int s = 1; s < 32; s *= 2) {
        const u32 other = __shfl_up_sync(~0u, sum, s);
        if (lane >= s) sum += other;
    }
    __syncthreads();
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    u32 first = 0;
    all = 0;
    for (u32 w = 0; w < SETTLERS / 32; w++) {
        if (w < warp) first += sums[w];
        all += sums[w];
    }
    return first + sum - n;
}

// The first n bits that are set.
__device__ __forceinline__ u32 first_bits(u32 bits, u32 n) {
    u32 taken = 0;
    for (; bits && n; bits &= bits - 1, n--) taken |= bits & (0u - bits);
    return taken;
}

// A block of SETTLERS threads a set. Shared memory: frames that are given, in order.
extern "C" __global__ void __launch_bounds__(SETTLERS) settle(const __grid_constant__ Keep a) {
    __shared__ u32 misses[MOST_USES + 1], victims[LEVELS], sums[SETTLERS / 32];
    __shared__ u32 worn, count, level_bound, level_left, uses_bound, uses_left, stage_first, list_first;
    __shared__ u16 given[MOST_FRAMES], better[SETTLERS], tied[SETTLERS], worse[SETTLERS];
    __shared__ u32 stay_first[SETTLERS], pass_first[SETTLERS];
    const Kept& kept = a.kept;
    const u32 set = blockIdx.x, head = set / kept.groups, group = set % kept.groups, pages = kept.pages;
    const u32 words = pages > group ? (pages - group - 1) / kept.groups + 1 : 0, n = kept.frames;
    u32* holders = kept.holders + set * n;
    u32* stamps = kept.stamps ? kept.stamps + set * n : nullptr;
    u16* state = kept.state ? kept.state + (u64)head * pages * 16 : nullptr;
    u32* bits = a.bits + head * pages;
    for (u32 i = threadIdx.x; i < LEVELS; i += SETTLERS) {
        victims[i] = 0;
        if (i <= MOST_USES) misses[i] = 0;
    }
    if (threadIdx.x == 0) worn = 0;
    if (set == 0 && threadIdx.x == 0) a.total[2] = *a.other;
    for (u32 i = threadIdx.x; i < a.tiles; i += SETTLERS) a.chunks[set * a.tiles + i] = make_uint2(0, 0);
    __syncthreads();

    // What is wanted has been used once more, here or not. Sixteen threads a page, a token each; several pages on their way at once.
    const u32 warp = threadIdx.x / 32, token = threadIdx.x % 16;
    u32 hits = 0;
    for (u32 first = threadIdx.x / 16; first < words; first += AT_ONCE * PAGES) {
        u32 wanted[AT_ONCE], own[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const u32 j = first + k * PAGES;
            wanted[k] = j < words ? bits[group + j * kept.groups] >> token & 1 : 0;
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) own[k] = wanted[k] && state ? state[(group + (first + k * PAGES) * kept.groups) * 16 + token] : 0;
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            if (!wanted[k]) continue;
            u32 uses = 0;
            if (state) {
                const u32 frame = own[k] & MOST_FRAMES;
                uses = (own[k] >> 12) + 1;
                if (uses >= MOST_USES) uses = MOST_USES, worn = 1;
                state[(group + (first + k * PAGES) * kept.groups) * 16 + token] = (u16)(uses << 12 | frame);
                if (frame) {
                    hits++;
                    if (stamps && kept.eviction == LRU) stamps[frame - 1] = a.step;
                    continue;
                }
            }
            atomicAdd(&misses[uses], 1);
        }
    }
    // Uses are there for all threads.
    __syncthreads();

    auto level = [&](u32 frame) -> u32 {
        if (frame >= n) return NEVER;
        const u32 holder = holders[frame];
        if (holder == 0) return 0;
        const u32 slot = holder - 1;
        if (bits[slot / 16] >> slot % 16 & 1) return NEVER;
        if (!stamps) return 1 + (state[slot] >> 12);
        const u32 age = a.step - stamps[frame];
        return LEVELS - 1 - (age < LEVELS - 2 ? age : LEVELS - 2);
    };
    for (u32 f = threadIdx.x; f < n; f += SETTLERS) {
        const u32 l = level(f);
        if (l != NEVER) atomicAdd(&victims[l], 1);
    }
    __syncthreads();

    // As many change as have been used more than those that go for them.
    if (threadIdx.x == 0) {
        u32 above = 0, below = victims[0], k = 0;
        for (u32 uses = 0; uses <= MOST_USES; uses++) above += misses[uses];
        if (stamps) {
            for (u32 l = 1; l < LEVELS; l++) below += victims[l];
            k = above < below ? above : below;
        } else {
            k = above < below ? above : below;
            for (u32 uses = 0; uses <= MOST_USES; uses++) {
                above -= misses[uses], below += victims[1 + uses];
                const u32 both = above < below ? above : below;
                k = k > both ? k : both;
            }
        }
        u32 l = 0, left = k;
        while (l < LEVELS - 1 && victims[l] < left) left -= victims[l++];
        level_bound = l, level_left = left;
        u32 uses = MOST_USES;
        left = k;
        while (uses > 0 && misses[uses] < left) left -= misses[uses--];
        uses_bound = uses, uses_left = left;
    }
    __syncthreads();

    // Frames that are given, in order.
    u32 ties = 0, taken = 0, evicted = 0, all;
    for (u32 first = 0; first < n; first += SETTLERS) {
        const u32 f = first + threadIdx.x, l = level(f), tied = l == level_bound;
        const u32 rank = ties + before(tied, sums, all);
        ties += all;
        const u32 goes = l < level_bound || (tied && rank < level_left);
        const u32 at = taken + before(goes, sums, all);
        taken += all;
        if (goes) {
            given[at] = (u16)f;
            const u32 holder = holders[f];
            if (holder) state[holder - 1] &= 0xf000, evicted++;
        }
    }
    __syncthreads();

    ties = taken = 0;
    for (u32 first = 0; first < words; first += SETTLERS) {
        // What is not here, by uses.
        const u32 tile = words - first < SETTLERS ? words - first : SETTLERS;
        for (u32 i = warp * 2; i < tile; i += AT_ONCE * PAGES) {
            u32 own[AT_ONCE];
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) {
                const u32 j = i + k * PAGES + threadIdx.x / 16 % 2, page = group + (first + j) * kept.groups;
                own[k] = NEVER;
                if (j < tile && bits[page] >> token & 1) own[k] = state ? state[page * 16 + token] : 0;
            }
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) {
                const u32 j = i + k * PAGES + threadIdx.x / 16 % 2, shift = threadIdx.x & 16, uses = own[k] >> 12;
                const bool lacks = own[k] != NEVER && !(own[k] & MOST_FRAMES);
                const u32 all_better = __ballot_sync(~0u, lacks && uses > uses_bound), all_tied = __ballot_sync(~0u, lacks && uses == uses_bound);
                const u32 all_worse = __ballot_sync(~0u, lacks && uses < uses_bound);
                if (token == 0 && j < tile) {
                    better[j] = (u16)(all_better >> shift), tied[j] = (u16)(all_tied >> shift), worse[j] = (u16)(all_worse >> shift);
                }
            }
        }
        __syncthreads();
        const u32 j = threadIdx.x, page = group + (first + j) * kept.groups;
        u32 stays = 0, passes = 0;
        const u32 ranked = j < tile ? tied[j] : 0, rank = ties + before(__popc(ranked), sums, all);
        ties += all;
        if (j < tile) {
            stays = better[j] | first_bits(ranked, uses_left > rank ? uses_left - rank : 0);
            passes = (better[j] | ranked | worse[j]) & ~stays;
        }
        u32 all_stay, all_pass;
        const u32 own_stay = before(__popc(stays), sums, all_stay), own_pass = before(__popc(passes), sums, all_pass);
        if (threadIdx.x == 0) {
            stage_first = all_pass ? atomicAdd(&a.total[1], all_pass) : 0;
            const u32 room = a.capacity > stage_first ? a.capacity - stage_first : 0;
            count = all_pass < room ? all_pass : room;
            a.chunks[set * a.tiles + first / SETTLERS] = make_uint2(stage_first, count);
            list_first = all_stay ? atomicAdd(&a.total[0], all_stay) : 0;
        }
        __syncthreads();
        if (j < tile && bits[page]) {
            const u32 fit = count > own_pass ? count - own_pass : 0, all_own = __popc(passes), moved = __popc(stays) + (all_own < fit ? all_own : fit);
            a.starts[head * pages + page] = stage_first + own_pass;
            bits[page] |= passes << 16;
            if (moved) atomicAdd(&a.moved[page], moved);
        }
        if (j < tile) better[j] = (u16)stays, tied[j] = (u16)passes, stay_first[j] = own_stay, pass_first[j] = own_pass;
        __syncthreads();
        // A frame for each, and a place in the list.
        for (u32 i = threadIdx.x / 16; i < tile; i += PAGES) {
            const u32 below = (1u << token) - 1, slot = (group + (first + i) * kept.groups) * 16 + token;
            if (better[i] >> token & 1) {
                const u32 at = stay_first[i] + __popc(better[i] & below), frame = given[taken + at];
                holders[frame] = slot + 1;
                if (stamps) stamps[frame] = a.step;
                state[slot] = (u16)((state[slot] & 0xf000) | (frame + 1));
                a.brought[list_first + at] = make_uint2(slot * kept.kv_heads + head, a.first + set * n + frame);
            } else if (tied[i] >> token & 1) {
                const u32 at = pass_first[i] + __popc(tied[i] & below);
                const u32 frame = stage_frame(a.stage, a.capacity, a.turned, stage_first + at);
                if (at < count) a.brought[a.own + stage_first + at] = make_uint2(slot * kept.kv_heads + head, frame);
            }
        }
        taken += all_stay;
        __syncthreads();
    }

    if (worn) {
        for (u32 j = threadIdx.x; j < words * 8; j += SETTLERS) {
            u32* two = (u32*)(state + (group + j / 8 * kept.groups) * 16) + j % 8;
            *two = (*two >> 1 & 0x70007000) | (*two & 0x0fff0fff);
        }
    }
    if (hits) atomicAdd(&a.told[HITS], (u64)hits);
    if (evicted) atomicAdd(&a.told[EVICTIONS], (u64)evicted);
}

// A block a (page of the list, layer). What is gone for good is not known any more; what waits keeps its uses.
extern "C" __global__ void forget(const __grid_constant__ Kept kept, const u32* list, u32 gone, u32 layer_sets, u32* moved) {
    const u32 page = list[blockIdx.x], layer = blockIdx.y, rows = kept.kv_heads * 16;
    u16* state = kept.state + (u64)layer * kept.pages * rows;
    u32* holders = kept.holders + layer * layer_sets * kept.frames;
    u32 left = 0;
    for (u32 i = threadIdx.x; i < rows; i += blockDim.x) {
        const u32 head = i / 16;
        u16* own = state + (head * kept.pages + page) * 16 + i % 16;
        const u32 frame = *own & MOST_FRAMES;
        if (frame) holders[set_of(kept, head, page) * kept.frames + frame - 1] = 0, left++;
        *own = gone ? 0 : *own & 0xf000;
    }
    if (left && moved) atomicAdd(&moved[page], left);
}

struct BringBack {
    Kept kept;
    const u32* list;   // [pages]
    const uint4* host; // the first selecting layer of the host tier
    uint4* pool;
    u32* moved;
    u64* told;
    u64 layer_pieces;  // of 16 bytes, of a layer of the host tier
    u32 listed, layer_sets, pieces, step;
};

// A block of SETTLERS threads a (set, layer): rows that were wanted take frames that are free, as far as there are some.
extern "C" __global__ void __launch_bounds__(SETTLERS) bring_back(const __grid_constant__ BringBack a) {
    __shared__ u32 sums[SETTLERS / 32], taken;
    __shared__ u16 given[MOST_FRAMES];
    __shared__ u32 slots[MOST_FRAMES];
    const Kept& kept = a.kept;
    const u32 set = blockIdx.x, layer = blockIdx.y, head = set / kept.groups, group = set % kept.groups, n = kept.frames;
    u16* state = kept.state + ((u64)layer * kept.kv_heads + head) * kept.pages * 16;
    u32* holders = kept.holders + (layer * a.layer_sets + set) * n;
    u32* stamps = kept.stamps ? kept.stamps + (layer * a.layer_sets + set) * n : nullptr;
    u32 room = 0, all;
    for (u32 first = 0; first < n; first += SETTLERS) {
        const u32 f = first + threadIdx.x, free = f < n && holders[f] == 0;
        const u32 at = room + before(free, sums, all);
        if (free) given[at] = (u16)f;
        room += all;
    }
    if (threadIdx.x == 0) taken = 0;
    __syncthreads();
    u32 used = 0;
    for (u32 first = 0; first < a.listed * 16 && used < room; first += SETTLERS) {
        const u32 i = first + threadIdx.x, page = i < a.listed * 16 ? a.list[i / 16] : 0, slot = page * 16 + i % 16;
        const u32 own = i < a.listed * 16 && page % kept.groups == group ? state[slot] : 0;
        const u32 comes = own >> 12 && !(own & MOST_FRAMES);
        const u32 at = used + before(comes, sums, all);
        if (comes && at < room) {
            slots[at] = slot;
            holders[given[at]] = slot + 1;
            state[slot] = (u16)((own & 0xf000) | (given[at] + 1));
            if (stamps) stamps[given[at]] = a.step;
            atomicAdd(&a.moved[page], 1);
        }
        used += all;
    }
    used = used < room ? used : room;
    __syncthreads();
    const u32 row = 2 * a.pieces;
    const uint4* host = a.host + layer * a.layer_pieces;
    uint4* frames = a.pool + (u64)(layer * a.layer_sets + set) * n * row;
    for (u32 i = threadIdx.x; i < used * row; i += SETTLERS) {
        const u32 slot = slots[i / row], part = i % row / a.pieces, piece = i % a.pieces;
        const u64 from = ((((u64)(slot / 16) * kept.kv_heads + head) * 2 + part) * 16 + slot % 16) * a.pieces + piece;
        frames[given[i / row] * row + i % row] = host[from];
    }
    if (threadIdx.x == 0 && used) atomicAdd(&a.told[BROUGHT], (u64)used);
}

// A block a page: rows of it that are here, over all layers.
extern "C" __global__ void count_here(const __grid_constant__ Kept kept, u32 layers, u32* counts) {
    __shared__ u32 all;
    const u32 page = blockIdx.x, rows = kept.kv_heads * 16;
    if (threadIdx.x == 0) all = 0;
    __syncthreads();
    u32 here = 0;
    for (u32 i = threadIdx.x; i < layers * rows; i += blockDim.x) {
        const u32 line = i / 16;
        here += (kept.state[((u64)line * kept.pages + page) * 16 + i % 16] & MOST_FRAMES) != 0;
    }
    if (here) atomicAdd(&all, here);
    __syncthreads();
    if (threadIdx.x == 0) counts[page] = all;
}
