// What benchmarks need on the card: numbers to attend to, a reference in float64, a cold read, a flush.
#include "tensor.cuh"

// Uniform numbers of 16 bits in [-amplitude, amplitude], from a counter: grid-stride over `n` pairs.
template <class T> __device__ __forceinline__ void fill(u32* to, u64 n, u32 seed, float amplitude) {
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x) {
        u64 x = i * 0x9E3779B97F4A7C15ull + seed;
        x ^= x >> 31;
        x *= 0xBF58476D1CE4E5B9ull;
        x ^= x >> 29;
        float lo = ((u32)(x & 0xffff) / 65536.0f * 2.0f - 1.0f) * amplitude;
        float hi = ((u32)(x >> 20 & 0xffff) / 65536.0f * 2.0f - 1.0f) * amplitude;
        to[i] = pack<T>(lo, hi);
    }
}
extern "C" __global__ void fill_f16(u32* to, u64 n, u32 seed, float amplitude) { fill<F16>(to, n, seed, amplitude); }
extern "C" __global__ void fill_bf16(u32* to, u64 n, u32 seed, float amplitude) { fill<Bf16>(to, n, seed, amplitude); }

// Attention of every row along its path, one block of 128 threads a (row, query head): scores in float32, sums in float64.
// Path of row r: runs path[2 i], path[2 i + 1] = (first slot index, tokens) for i in path_first[r] .. path_first[r + 1].
template <class T>
__device__ __forceinline__ void reference(const u16* q, const u16* k, const u16* v, float* out, const u32* path_first, const u32* path, const u32* slots,
                                          u64 page_stride, u32 token_stride, u32 head_stride, u32 group, u32 size) {
    const u32 row = blockIdx.x, head = blockIdx.y / group;
    __shared__ float query[128], score[128];
    __shared__ float top;
    const u16* from = q + ((u64)row * gridDim.y + blockIdx.y) * size;
    if (threadIdx.x < size) query[threadIdx.x] = widen<T>(from[threadIdx.x]);
    __syncthreads();
    float m = NEG_INF;
    double l = 0.0, o = 0.0;
    const float scale = rsqrtf((float)size);
    auto place = [&](u32 slot) { return (u64)(slot >> 4) * page_stride + (slot & 15) * token_stride + (u64)head * head_stride; };
    for (u32 i = path_first[row]; i < path_first[row + 1]; i++) {
        for (u32 at = 0; at < path[2 * i + 1]; at += 128) {
            const u32 tokens = path[2 * i + 1] - at < 128 ? path[2 * i + 1] - at : 128;
            float s = NEG_INF;
            if (threadIdx.x < tokens) {
                const u16* key = k + place(slots[path[2 * i] + at + threadIdx.x]);
                s = 0.0f;
                for (u32 c = 0; c < size; c++) s += query[c] * widen<T>(key[c]);
                s *= scale;
            }
            score[threadIdx.x] = s;
            __syncthreads();
            if (threadIdx.x == 0) {
                float x = m;
                for (u32 t = 0; t < tokens; t++) x = fmaxf(x, score[t]);
                top = x;
            }
            __syncthreads();
            const double w = exp((double)m - top);
            m = top;
            l *= w;
            o *= w;
            for (u32 t = 0; t < tokens; t++) {
                const float e = expf(score[t] - m);
                l += e;
                if (threadIdx.x < size) o += e * (double)widen<T>(v[place(slots[path[2 * i] + at + t]) + threadIdx.x]);
            }
            __syncthreads();
        }
    }
    if (threadIdx.x < size) out[((u64)row * gridDim.y + blockIdx.y) * size + threadIdx.x] = (float)(o / l);
}
#define REFERENCE(NAME, T) \
    extern "C" __global__ void NAME(const u16* q, const u16* k, const u16* v, float* out, const u32* path_first, const u32* path, const u32* slots, \
                                    u64 page_stride, u32 token_stride, u32 head_stride, u32 group, u32 size) { \
        reference<T>(q, k, v, out, path_first, path, slots, page_stride, token_stride, head_stride, group, size); \
    }
REFERENCE(reference_f16, F16)
REFERENCE(reference_bf16, Bf16)

// Reads n pieces of 16 bytes once: the floor of anything that must read as much.
extern "C" __global__ void read_all(const uint4* from, u64 n, u32* sink) {
    u32 x = 0;
    const u64 step = (u64)gridDim.x * blockDim.x;
    u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x;
    for (; i + 3 * step < n; i += 4 * step) {
        uint4 a = __ldcs(from + i), b = __ldcs(from + i + step), c = __ldcs(from + i + 2 * step), d = __ldcs(from + i + 3 * step);
        x ^= a.x ^ b.y ^ c.z ^ d.w ^ a.w ^ b.x;
    }
    for (; i < n; i += step) x ^= __ldcs(from + i).x;
    if (x == 0x9e3779b9) *sink = x;
}
