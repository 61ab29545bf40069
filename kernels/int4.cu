// K/V in four bits a number (FlexGen): packed on the card and widened there again, so that the link carries a quarter.
//
// A row, K or V of one token and head, becomes a record: of each group of 64 numbers the smallest and a fifteenth of their
// range, in float16, then d / 2 bytes of codes, the first of two in the lower bits. Records lie as rows of K/V do,
// [page][kv_head][K|V][16]. The arithmetic is that of device/cpu/int4.rs, number for number.
#include "bounded.cuh"

#ifndef KERNEL_TYPE
#define KERNEL_TYPE F16
#endif
typedef KERNEL_TYPE T;

struct Pack {
    u16* kv;               // a layer by slot
    u32* records;          // likewise
    const u32* from_slots; // [rows]
    const u32* to_slots;   // [rows]
    u32 kv_heads, head_size, words;  // words: of 4 bytes, of a record
    u32 rounds;            // whether kv has what the record keeps from now on
};

// A block a token, a warp a row of K or V at a time, a lane two numbers of a group.
extern "C" __global__ void pack_int4(const __grid_constant__ Pack a) {
    const u32 lane = threadIdx.x % 32, pairs = a.head_size / 2, groups = (a.head_size + 63) / 64, runs = 2 * a.kv_heads;
    const u32 from = a.from_slots[blockIdx.x], to = a.to_slots[blockIdx.x];
    for (u32 run = threadIdx.x / 32; run < runs; run += blockDim.x / 32) {
        u32* row = (u32*)a.kv + (((u64)(from / 16) * runs + run) * 16 + from % 16) * pairs;
        u32* record = a.records + (((u64)(to / 16) * runs + run) * 16 + to % 16) * a.words;
        for (u32 group = 0; group < groups; group++) {
            const u32 pair = group * 32 + lane;
            const bool real = pair < pairs;
            const u32 both = real ? row[pair] : 0;
            const float x = widen<T>((u16)both), y = widen<T>((u16)(both >> 16));
            float low = real ? fminf(x, y) : -NEG_INF, most = real ? fmaxf(x, y) : NEG_INF;
#pragma unroll
            for (int s = 16; s; s /= 2) {
                low = fminf(low, __shfl_xor_sync(~0u, low, s));
                most = fmaxf(most, __shfl_xor_sync(~0u, most, s));
            }
            const u32 low_bits = pack<F16>(bounded<F16>(low), 0.0f);
            const float least = widen<F16>((u16)low_bits);
            const u32 step_bits = pack<F16>(bounded<F16>((most - least) / 15.0f), 0.0f);
            const float step = widen<F16>((u16)step_bits);
            auto code = [&](float number) { return step > 0.0f ? fminf(fmaxf(roundf((number - least) / step), 0.0f), 15.0f) : 0.0f; };
            const float first = code(x), second = code(y);
            u32 word = ((u32)first | (u32)second << 4) << lane % 4 * 8;
            word |= __shfl_xor_sync(~0u, word, 1);
            word |= __shfl_xor_sync(~0u, word, 2);
            if (lane == 0) record[group] = (low_bits & 0xffff) | step_bits << 16;
            if (real && lane % 4 == 0) record[groups + pair / 4] = word;
            if (real && a.rounds) row[pair] = pack<T>(least + first * step, least + second * step);
        }
    }
}

struct Unpack {
    const u32* records;
    u16* kv;
    const u32* pages;      // their numbers are the same in both
    u32 count, kv_heads, head_size, words;
};

// Grid-stride, a thread eight numbers.
extern "C" __global__ void unpack_int4(const __grid_constant__ Unpack a) {
    const u32 eighths = a.head_size / 8, groups = (a.head_size + 63) / 64, page_rows = 32 * a.kv_heads;
    const u64 all = (u64)a.count * page_rows * eighths;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < all; i += (u64)gridDim.x * blockDim.x) {
        const u32 eighth = (u32)(i % eighths);
        const u64 row = i / eighths, at = (u64)a.pages[row / page_rows] * page_rows + row % page_rows;
        const u32* record = a.records + at * a.words;
        const u32 scale = record[eighth / 8], codes = record[groups + eighth];
        const float least = widen<F16>((u16)scale), step = widen<F16>((u16)(scale >> 16));
        u32 out[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const u32 two = codes >> k * 8;
            out[k] = pack<T>(least + (float)(two & 15) * step, least + (float)(two >> 4 & 15) * step);
        }
        ((uint4*)a.kv)[at * eighths + eighth] = make_uint4(out[0], out[1], out[2], out[3]);
    }
}

struct Records {
    const u32* from;       // records by slot
    u32* to;               // a layer of the host tier
    const u32* from_slots; // [rows]
    const u32* to_slots;
    u32 kv_heads, words;
};

// Writes the step's records through to the host tier. A block a token.
extern "C" __global__ void write_records(const __grid_constant__ Records a) {
    const u32 from = a.from_slots[blockIdx.x], to = a.to_slots[blockIdx.x], runs = 2 * a.kv_heads;
    for (u32 i = threadIdx.x; i < runs * a.words; i += blockDim.x) {
        const u32 run = i / a.words, word = i % a.words;
        const u64 from_run = ((u64)(from / 16) * runs + run) * 16 + from % 16, to_run = ((u64)(to / 16) * runs + run) * 16 + to % 16;
        a.to[to_run * a.words + word] = a.from[from_run * a.words + word];
    }
}
