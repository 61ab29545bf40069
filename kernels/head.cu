// Logits in short: each row's largest with their tokens, and the sums of its exponentials, so that sampling needs neither
// the vocabulary on the host nor a second look at it. Also the logits of tokens that are asked for by name.
//
// A token's place in the order (logit falling, then token rising) is one number: the logit's bits, turned so that they
// order as unsigned numbers, above the inverted token. No two are equal, so "the TOP largest" are always the same ones.
//
//   glance_chunk: a block takes CHUNK logits of a row, EACH a thread. At most TOP threads can hold one of the TOP largest:
//                 those whose own largest is among the TOP largest of these. What they hold that reaches the TOP-th of
//                 these is looked at again. Grid (chunks, rows). Bytes read: the logits, once.
//   glance_row:   a block a row finds the largest of its chunks', and sorts them. Grid (rows).
//   asked:        a thread a token.
#include "state.cuh"

#define TOP 128
#define THREADS 512
#define EACH 16
#define CHUNK (THREADS * EACH)
#define MOST_CHUNKS 32

struct Glance {
    const float* logits;   // [rows][vocab]
    const float* cold;     // [rows]: 1 / temperature
    u64* best;             // [rows][chunks][TOP], in no order; 0: none
    float4* sums;          // [rows][chunks]: largest, sum of exp(l - largest), sum of exp((l - largest) / temperature)
    double* out;           // [rows][2 + TOP]: ln of the sum of exp(l), sum of exp((l - largest) / temperature), best
    u32 vocab, chunks;
};

__device__ __forceinline__ u64 place(float logit, u32 token) {
    const u32 bits = __float_as_uint(logit + 0.0f);  // 0 and -0 are equal
    return (u64)(bits & 0x80000000u ? ~bits : bits | 0x80000000u) << 32 | (u32)~token;
}

// Sorts `size` numbers (a power of two) so that they fall. All threads of the block. Up to a step of 32, what a warp
// compares is what it compared before.
__device__ __forceinline__ void sort(u64* x, u32 size) {
    u32 before = size;
    for (u32 run = 2; run <= size; run *= 2)
        for (u32 step = run / 2; step; step /= 2) {
            if (step > 32 || before > 32) __syncthreads();
            else __syncwarp();
            before = step;
            for (u32 i = threadIdx.x; i < size / 2; i += blockDim.x) {
                const u32 low = 2 * i - (i & (step - 1)), high = low + step;
                const u64 a = x[low], b = x[high];
                if ((a < b) == ((low & run) == 0)) {
                    x[low] = b;
                    x[high] = a;
                }
            }
        }
    __syncthreads();
}

// A number that exactly TOP of the block's numbers reach, which are different; 0 where there are no more than TOP. The
// numbers' bits are settled from the highest on, by counting.
template <int OWN> __device__ __forceinline__ u64 bar_of(const u64 (&own)[OWN]) {
    u64 bar = 0;
    for (int bit = 63; bit >= 0; bit--) {
        const u64 raised = bar | 1ull << bit;
        u32 count = 0;
#pragma unroll
        for (int i = 0; i < OWN; i++) count += __syncthreads_count(own[i] >= raised);
        if (count >= TOP) bar = raised;
        if (count == TOP) break;
    }
    return bar;
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
    __shared__ u32 count, written;
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
    if (threadIdx.x == 0) count = written = 0;
    const u64 bar = bar_of<1>({own});
    if (own >= bar && own) {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const u32 token = first + i * THREADS;
            if (token < a.vocab && place(x[i], token) >= bar) kept[atomicAdd(&count, 1)] = place(x[i], token);
        }
    }
    __syncthreads();
    u64 mine[TOP * EACH / THREADS];
#pragma unroll
    for (u32 i = 0; i < TOP * EACH / THREADS; i++) mine[i] = i * THREADS + threadIdx.x < count ? kept[i * THREADS + threadIdx.x] : 0;
    const u64 last = count <= THREADS ? bar_of<1>({mine[0]}) : bar_of(mine);
    u64* best = a.best + ((u64)row * a.chunks + chunk) * TOP;
#pragma unroll
    for (u32 i = 0; i < TOP * EACH / THREADS; i++)
        if (mine[i] && mine[i] >= last) best[atomicAdd(&written, 1)] = mine[i];
    __syncthreads();
    if (threadIdx.x < TOP && threadIdx.x >= written) best[threadIdx.x] = 0;

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
    __shared__ u64 found[TOP];
    __shared__ u32 written;
    const u32 row = blockIdx.x, count = a.chunks * TOP;
    const u64* best = a.best + (u64)row * count;
    u64 mine[MOST_CHUNKS * TOP / 1024];
#pragma unroll
    for (u32 i = 0; i < MOST_CHUNKS * TOP / 1024; i++) mine[i] = i * 1024 + threadIdx.x < count ? best[i * 1024 + threadIdx.x] : 0;
    if (threadIdx.x == 0) written = 0;
    if (threadIdx.x < TOP) found[threadIdx.x] = 0;
    const u64 last = bar_of(mine);
#pragma unroll
    for (u32 i = 0; i < MOST_CHUNKS * TOP / 1024; i++)
        if (mine[i] && mine[i] >= last) found[atomicAdd(&written, 1)] = mine[i];
    __syncthreads();
    sort(found, TOP);
    double* out = a.out + (u64)row * (2 + TOP);
    if (threadIdx.x < TOP) ((u64*)out)[2 + threadIdx.x] = found[threadIdx.x];
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
