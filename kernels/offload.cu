// What moves K/V between the host tier (pinned, mapped memory that kernels read and write in place) and the card.
//
// All of them are bound by the link. Few blocks are enough for that, and leave the multiprocessors to the step.
// K/V of a layer is [page][kv_head][K|V][16][d] in both tiers, so a page is one run of bytes, and a token of a K/V head
// two runs of d numbers.
#include "state.cuh"

// Copies pages, whose numbers are the same in both tiers: grid-stride over pieces of 16 bytes, four on their way at once.
extern "C" __global__ void gather_pages(const uint4* host, uint4* arena, const u32* pages, u32 count, u32 page_pieces) {
    const u64 all = (u64)count * page_pieces, step = (u64)gridDim.x * blockDim.x;
    for (u64 first = blockIdx.x * (u64)blockDim.x + threadIdx.x; first < all; first += 4 * step) {
        uint4 v[4];
        u64 at[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const u64 i = first + k * step;
            if (i >= all) break;
            at[k] = (u64)pages[i / page_pieces] * page_pieces + i % page_pieces;
            v[k] = host[at[k]];
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if (first + k * step >= all) break;
            arena[at[k]] = v[k];
        }
    }
}

struct WriteBack {
    const uint4* from;     // a layer of the card's tier
    uint4* to;             // the same layer of the host tier
    const u32* from_slots; // [rows]: page * 16 + offset
    const u32* to_slots;
    u32 kv_heads, pieces;  // pieces: 16 bytes each, of d numbers
};

// Writes K and V of the step's tokens through to the host tier. A block a row.
extern "C" __global__ void write_back(const __grid_constant__ WriteBack a) {
    const u32 from = a.from_slots[blockIdx.x], to = a.to_slots[blockIdx.x], runs = 2 * a.kv_heads;
    for (u32 i = threadIdx.x; i < runs * a.pieces; i += blockDim.x) {
        const u32 run = i / a.pieces, piece = i % a.pieces;
        const u64 from_run = ((u64)(from / 16) * runs + run) * 16 + from % 16, to_run = ((u64)(to / 16) * runs + run) * 16 + to % 16;
        a.to[to_run * a.pieces + piece] = a.from[from_run * a.pieces + piece];
    }
}
