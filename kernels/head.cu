// Logits in short: each row's largest with their tokens, and the sums of its exponentials, so that sampling needs neither
// the vocabulary on the host nor a second look at it. Also the logits of tokens that are asked for by name.
//
// A token's place in the order (logit falling, then token rising) is one number: the logit's bits, turned so that they
// order as unsigned numbers, above the inverted token. No two are equal, so "the TOP largest" are always the same ones.
//
//   glance_chunk: a block takes CHUNK logits of a row, EACH a thread. At most TOP threads can hold one of the TOP largest:
//                 those whose own largest is among the TOP largest of these. What they hold that reaches the TOP-th of
//                 these is sorted. Grid (chunks, rows). Bytes read: the logits, once.
//   glance_row:   a block a row merges its chunks. Grid (rows). Shared memory: chunks * TOP * 8 bytes, to a power of two.
//   asked:        a thread a token.
#include "state.cuh"

#define TOP 128
#define THREADS 512
#define EACH 16
#define CHUNK (THREADS * EACH)

struct Glance {
    const float* logits;   // [rows][vocab]
    const float* cold;     // [rows]: 1 / temperature
    u64* best;             // [rows][chunks][TOP], falling; 0: none
    float4* sums;          // [rows][chunks]: largest, sum of exp(l - largest), sum of exp((l - largest) / temperature)
    double* out;           // [rows][2 + TOP]: ln of the sum of exp(l), sum of exp((l - largest) / temperature), best
    u32 vocab, chunks;
};

__device__ __forceinline__ u64 place(float logit, u32 token) {
    const u32 bits = __float_as_uint(logit + 0.0f);  // 0 and -0 are equal
    return (u64)(bits & 0x80000000u ? ~bits : bits | 0x80000000u) << 32 | (u32)~token;
}

// Sorts `size` numbers (a power of two) so that they fall. All threads of the block.
__device__ __forceinline__ void sort(u64* x, u32 size) {
    for (u32 run = 2; run <= size; run *= 2)
        for (u32 step = run / 2; step; step /= 2) {
            __syncthreads();
            for (u32 i = threadIdx.x; i < size / 2; i += blockDim.x) {
                const u32 low = i / step * 2 * step + i % step, high = low + step;
                const u64 a = x[low], b = x[high];
                if ((a < b) == ((low & run) == 0)) {
                    x[low] = b;
                    x[high] = a;
                }
            }
        }
    __syncthreads();
}

template <class F> __device__ __forceinline__ float over_block(float x, float* scratch, F merge) {
#pragma unroll
    for (int s = 16; s; s /= 2) x = merge(x, __shfl_xor_sync(~0u, x, s));
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
    __syncthreads();
    x = scratch[threadIdx.x % (THREADS / 32)];
#pragma unroll
    for (int s = THREADS / 64; s; s /= 2) x = merge(x, __shfl_xor_sync(~0u, x, s));
    return x;
}

extern "C" __global__ void __launch_bounds__(THREADS) glance_chunk(const __grid_constant__ Glance a) {
    __shared__ u64 kept[TOP * EACH];
    __shared__ float scratch[THREADS / 32];
    __shared__ u32 count;
    const u32 chunk = blockIdx.x, row = blockIdx.y, first = chunk * CHUNK + threadIdx.x;
    const float* logits = a.logits + (u64)row * a.vocab;
    float x[EACH], top = NEG_INF;
    u64 own = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const u32 token = first + i * THREADS;
        x[i] = token < a.vocab ? logits[token] : NEG_INF;
        top = fmaxf(top, x[i]);
        if (token < a.vocab) own = max(own, place(x[i], token));
    }
    if (threadIdx.x == 0) count = 0;
    kept[threadIdx.x] = own;
    sort(kept, THREADS);
    const u64 bar = kept[TOP - 1];  // 0 where fewer threads than TOP hold a token: then all are kept
    __syncthreads();
    for (u32 i = threadIdx.x; i < TOP * EACH; i += THREADS) kept[i] = 0;
    __syncthreads();
    if (own >= bar && own) {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const u32 token = first + i * THREADS;
            if (token < a.vocab && place(x[i], token) >= bar) kept[atomicAdd(&count, 1)] = place(x[i], token);
        }
    }
    __syncthreads();
    u32 size = TOP;
    while (size < count) size *= 2;
    sort(kept, size);
    u64* best = a.best + ((u64)row * a.chunks + chunk) * TOP;
    if (threadIdx.x < TOP) best[threadIdx.x] = kept[threadIdx.x];

    // A NaN spoils the sums, which is how the host hears of it; so does an infinity.
    top = over_block(top, scratch, [](float x, float y) { return fmaxf(x, y); });
    const float cold = a.cold[row], shift = finite(top);
    float sum = 0.0f, warm = 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        sum += expf(x[i] - shift);
        warm += expf((x[i] - shift) * cold);
    }
    auto add = [](float x, float y) { return x + y; };
    sum = over_block(sum, scratch, add);
    warm = over_block(warm, scratch, add);
    if (threadIdx.x == 0) a.sums[(u64)row * a.chunks + chunk] = make_float4(top, sum, warm, 0.0f);
}

extern "C" __global__ void __launch_bounds__(1024) glance_row(const __grid_constant__ Glance a) {
    extern __shared__ u64 merged[];
    const u32 row = blockIdx.x, count = a.chunks * TOP;
    u32 size = TOP;
    while (size < count) size *= 2;
    const u64* best = a.best + (u64)row * count;
    for (u32 i = threadIdx.x; i < size; i += blockDim.x) merged[i] = i < count ? best[i] : 0;
    sort(merged, size);
    double* out = a.out + (u64)row * (2 + TOP);
    if (threadIdx.x < TOP) ((u64*)out)[2 + threadIdx.x] = merged[threadIdx.x];
    if (threadIdx.x >= 32) return;
    const float4* sums = a.sums + (u64)row * a.chunks;
    float top = NEG_INF;
    for (u32 i = threadIdx.x; i < a.chunks; i += 32) top = fmaxf(top, sums[i].x);
#pragma unroll
    for (int s = 16; s; s /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, s));
    const double cold = a.cold[row];
    double sum = 0.0, warm = 0.0;
    for (u32 i = threadIdx.x; i < a.chunks; i += 32) {
        const float4 chunk = sums[i];
        // Sums of an empty chunk are zeros above a shift of 0, not of minus infinity.
        const double off = (double)finite(chunk.x) - (double)finite(top);
        if (chunk.x != NEG_INF || chunk.y != 0.0f) {
            sum += chunk.y * exp(off);
            warm += chunk.z * exp(off * cold);
        }
    }
#pragma unroll
    for (int s = 16; s; s /= 2) {
        sum += __shfl_xor_sync(~0u, sum, s);
        warm += __shfl_xor_sync(~0u, warm, s);
    }
    if (threadIdx.x == 0) {
        out[0] = (double)top + log(sum);
        out[1] = warm;
    }
}

// out[i] = logits[rows[i]][tokens[i]].
extern "C" __global__ void asked(const float* logits, const u32* rows, const u32* tokens, float* out, u32 vocab, u32 count) {
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = logits[(u64)rows[i] * vocab + tokens[i]];
}
