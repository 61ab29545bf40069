// Where rows that stay on the card are, for the kernels that keep them and for attention.
#pragma once
#include "state.cuh"

// Frames of a set at most: a row's state has twelve bits for its frame, plus 1.
#define MOST_FRAMES 4095

#define COUNTER 0
#define FIFO 1
#define LRU 2

// What kernels count.
enum Told { ATTENDED, PAST, BROUGHT, IN_PLACE, HITS, EVICTIONS, STAGE_WANTED, SAMPLES, MISSED };

struct Kept {
    u16* state;    // [kv_head][page][16] of a layer: uses << 12 | frame in its set, plus 1; null: nothing is kept
    u32* holders;  // [set][frames]: the slot that a frame has, plus 1; 0: it is free
    u32* stamps;   // [set][frames]: the step that brought it (fifo) or used it last (lru); null: by uses
    u32 kv_heads, pages, groups, frames, eviction;
};

__device__ __forceinline__ u32 set_of(const Kept& kept, u32 head, u32 page) { return head * kept.groups + page % kept.groups; }

// The frame of a stage's i-th row: layers take turns in filling the stage from either end.
__device__ __forceinline__ u32 stage_frame(u32 stage, u32 capacity, u32 turned, u32 i) { return stage + (turned ? capacity - 1 - i : i); }

// A row that is written anew: what was kept of its slot is another one's.
__device__ __forceinline__ void drop(const Kept& kept, u32 head, u32 slot) {
    u16* own = kept.state + (u64)head * kept.pages * 16 + slot;
    const u32 frame = *own & MOST_FRAMES;
    if (frame) kept.holders[set_of(kept, head, slot / 16) * kept.frames + frame - 1] = 0;
    *own = 0;
}
