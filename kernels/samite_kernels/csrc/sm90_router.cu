// The sigmoid router after its product: choice and weights of every token, the counts that balance the experts, and the gradient.
//
//   score = sigmoid(logit)     chosen = top-k of score + bias     weight = chosen scores / (their sum + 1e-20) * factor
//   threshold = (k+1)-th largest score + bias                     margin = threshold - score, counted in bins per expert
//
// Arithmetic that decides between experts or bins is the plain float32 of the reference, with the same operations in the same order: no fast
// exponentials or divisions. Equal values go to the expert with the lower number. Counts are integers, so their order does not matter.
// Who calls it: router/sm90.py.

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

namespace router {

constexpr int kWarps = 8;
constexpr int kMostExperts = 1024;
constexpr int kQuads = kMostExperts / 128;  // a lane holds the experts 128 j + 4 lane + 0 .. 3
constexpr int kListPitch = 33;              // a lane's list is read across lanes, and written along them, without bank conflicts
constexpr int kCountThreads = 512;
constexpr int kSlice = 32;                  // experts that one block counts: one for each lane
constexpr int kTokensAhead = 4;
constexpr unsigned kAll = ~0u;

struct Arguments {
    const float* logits;         // [tokens, experts]
    const float* bias;           // [experts]
    const float* d_weight;       // [tokens, k]
    const unsigned char* padding;  // [tokens], not zero: not counted; or null
    int64_t* chosen;             // [tokens, k], best first
    float* weight;               // [tokens, k]
    float* threshold;            // [tokens]
    float* d_logits;             // [tokens, experts]
    int32_t* counts;             // [experts, bins + 1], the last column is the load; added to
    int64_t num_tokens;
    int32_t num_experts;
    int32_t top_k;
    int32_t num_bins;
    int32_t num_segments;        // of the tokens, for counting
    float factor;
};

namespace {

__device__ __forceinline__ float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }

// Floats as integers of the same order; never 0, which stands for what has been taken.
__device__ __forceinline__ uint32_t to_key(float x) {
    const uint32_t bits = __float_as_uint(x);
    return max(bits ^ ((bits >> 31) ? ~0u : 0x80000000u), 1u);
}
__device__ __forceinline__ float from_key(uint32_t key) { return __uint_as_float((key >> 31) ? key ^ 0x80000000u : ~key); }

__device__ __forceinline__ float sum_of_warp(float x) {
#pragma unroll
    for (int distance = 16; distance > 0; distance >>= 1) x += __shfl_xor_sync(kAll, x, distance);
    return x;
}

// The largest values of a warp's token, one after another: lane i receives the i-th. A lane keeps the best of its own list; when that is
// taken, all lanes look through the list together.
struct Picks {
    uint32_t expert;
    uint32_t key;

    __device__ __forceinline__ Picks(uint32_t* lists, uint32_t best, uint32_t best_expert, int length, int count) : expert(0), key(0) {
        const int lane = threadIdx.x & 31;
        for (int i = 0; i < count; ++i) {
            const uint32_t largest = __reduce_max_sync(kAll, best);
            const uint32_t taken = __reduce_min_sync(kAll, best == largest ? best_expert : kAll);
            if (lane == i) {
                expert = taken;
                key = largest;
            }
            const int owner = (taken >> 2) & 31, place = static_cast<int>((taken >> 7) * 4 + (taken & 3));
            uint32_t* mine = &lists[lane * kListPitch + owner];
            if (lane == place) *mine = 0;
            const uint32_t candidate = lane < length ? *mine : 0;
            const uint32_t next = __reduce_max_sync(kAll, candidate);
            const int at = __ffs(__ballot_sync(kAll, candidate == next)) - 1;
            if (lane == owner) {
                best = next;
                best_expert = (at >> 2) * 128 + owner * 4 + (at & 3);
            }
        }
    }
};

__global__ void __launch_bounds__(kWarps * 32) choose(const __grid_constant__ Arguments arguments) {
    __shared__ uint32_t lists[kWarps][32 * kListPitch];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int64_t token = static_cast<int64_t>(blockIdx.x) * kWarps + warp;
    if (token >= arguments.num_tokens) return;
    const int quads = arguments.num_experts / 128, k = arguments.top_k;
    const float* logits = arguments.logits + token * arguments.num_experts;
    float4 raw[kQuads];
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
        if (j < quads) raw[j] = __ldg(reinterpret_cast<const float4*>(logits) + j * 32 + lane);
    }
    uint32_t best = 0, best_expert = 0;
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
        if (j < quads) {
            const float4 bias = __ldg(reinterpret_cast<const float4*>(arguments.bias) + j * 32 + lane);
            const uint32_t keys[4] = {to_key(sigmoid(raw[j].x) + bias.x), to_key(sigmoid(raw[j].y) + bias.y),
                                      to_key(sigmoid(raw[j].z) + bias.z), to_key(sigmoid(raw[j].w) + bias.w)};
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                lists[warp][(j * 4 + c) * kListPitch + lane] = keys[c];
                if (keys[c] > best) {
                    best = keys[c];
                    best_expert = j * 128 + lane * 4 + c;
                }
            }
        }
    }
    __syncwarp();
    const Picks picks(lists[warp], best, best_expert, quads * 4, k + 1);
    const float score = lane < k ? sigmoid(__ldg(logits + picks.expert)) : 0.f;
    const float sum = sum_of_warp(score) + 1e-20f;
    if (lane < k) {
        arguments.chosen[token * k + lane] = picks.expert;
        arguments.weight[token * k + lane] = score / sum * arguments.factor;
    } else if (lane == k) {
        arguments.threshold[token] = from_key(picks.key);
    }
}

// Margins of 32 experts over one segment of the tokens, in 16-bit counters in shared memory, then added to the counts of the step.
__global__ void __launch_bounds__(kCountThreads, 3) count(const __grid_constant__ Arguments arguments) {
    extern __shared__ __align__(16) unsigned char raw_shared[];
    uint32_t* pairs = reinterpret_cast<uint32_t*>(raw_shared);  // two bins a word
    __shared__ float extremes[2][kCountThreads / 32];
    __shared__ int loads[kMostExperts];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, bins = arguments.num_bins;
    const int slices = arguments.num_experts / kSlice;
    const int slice = static_cast<int>(blockIdx.x % slices), segment = static_cast<int>(blockIdx.x / slices);
    const int64_t length = (arguments.num_tokens + arguments.num_segments - 1) / arguments.num_segments;
    const int64_t first = segment * length, stop = min(first + length, arguments.num_tokens);

    const int words = (kSlice * bins + 1) / 2;
    for (int i = threadIdx.x; i < words; i += kCountThreads) pairs[i] = 0;
    for (int i = threadIdx.x; i < kMostExperts; i += kCountThreads) loads[i] = 0;
    float low = INFINITY, high = -INFINITY;
    for (int i = threadIdx.x; i < arguments.num_experts; i += kCountThreads) {
        low = fminf(low, arguments.bias[i]);
        high = fmaxf(high, arguments.bias[i]);
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance >>= 1) {
        low = fminf(low, __shfl_xor_sync(kAll, low, distance));
        high = fmaxf(high, __shfl_xor_sync(kAll, high, distance));
    }
    if (lane == 0) {
        extremes[0][warp] = low;
        extremes[1][warp] = high;
    }
    __syncthreads();
    for (int i = 0; i < kCountThreads / 32; ++i) {
        low = fminf(low, extremes[0][i]);
        high = fmaxf(high, extremes[1][i]);
    }
    low -= 1.f;
    const float width = (high + 1.f - low) / static_cast<float>(bins);

    const float* logits = arguments.logits + slice * kSlice + lane;
    for (int64_t base = first + warp; base < stop; base += kTokensAhead * (kCountThreads / 32)) {
        float logit[kTokensAhead], threshold[kTokensAhead];
        bool counted[kTokensAhead];
#pragma unroll
        for (int i = 0; i < kTokensAhead; ++i) {
            const int64_t token = base + i * (kCountThreads / 32);
            counted[i] = token < stop && !(arguments.padding && arguments.padding[token]);
            logit[i] = counted[i] ? __ldg(logits + token * arguments.num_experts) : 0.f;
            threshold[i] = counted[i] ? __ldg(arguments.threshold + token) : 0.f;
        }
#pragma unroll
        for (int i = 0; i < kTokensAhead; ++i) {
            if (counted[i]) {
                const float margin = threshold[i] - sigmoid(logit[i]);
                const int bin = min(max(__float2int_rz((margin - low) / width), 0), bins - 1);
                const int index = lane * bins + bin;
                atomicAdd(&pairs[index >> 1], (index & 1) ? 0x10000u : 1u);
            }
        }
    }
    if (slice == 0) {
        const int k = arguments.top_k;
        for (int64_t i = first * k + threadIdx.x; i < stop * k; i += kCountThreads) {
            if (!(arguments.padding && arguments.padding[i / k])) atomicAdd(&loads[arguments.chosen[i]], 1);
        }
    }
    __syncthreads();
    for (int expert = 0; expert < kSlice; ++expert) {
        int32_t* row = arguments.counts + static_cast<int64_t>(slice * kSlice + expert) * (bins + 1);
        for (int bin = threadIdx.x; bin < bins; bin += kCountThreads) {
            const int index = expert * bins + bin;
            const int found = static_cast<int>((pairs[index >> 1] >> ((index & 1) * 16)) & 0xffffu);
            if (found) atomicAdd(row + bin, found);
        }
    }
    if (slice == 0) {
        for (int i = threadIdx.x; i < arguments.num_experts; i += kCountThreads) {
            if (loads[i]) atomicAdd(arguments.counts + static_cast<int64_t>(i) * (bins + 1) + bins, loads[i]);
        }
    }
}

// d_logits, every element written once: a token's row is put together in shared memory.
__global__ void __launch_bounds__(kWarps * 32) backward(const __grid_constant__ Arguments arguments) {
    __shared__ float4 rows[kWarps][kMostExperts / 4];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int64_t token = static_cast<int64_t>(blockIdx.x) * kWarps + warp;
    if (token >= arguments.num_tokens) return;
    const int quads = arguments.num_experts / 128, k = arguments.top_k;
    const int expert = lane < k ? static_cast<int>(arguments.chosen[token * k + lane]) : 0;
    const float score = lane < k ? sigmoid(__ldg(arguments.logits + token * arguments.num_experts + expert)) : 0.f;
    const float d_weight = lane < k ? __ldg(arguments.d_weight + token * k + lane) : 0.f;
    for (int j = 0; j < quads; ++j) rows[warp][j * 32 + lane] = make_float4(0.f, 0.f, 0.f, 0.f);
    const float sum = sum_of_warp(score) + 1e-20f;
    const float along = sum_of_warp(score * d_weight) / sum;
    __syncwarp();
    if (lane < k) {
        reinterpret_cast<float*>(rows[warp])[expert] = arguments.factor * (d_weight - along) / sum * score * (1.f - score);
    }
    __syncwarp();
    float4* out = reinterpret_cast<float4*>(arguments.d_logits + token * arguments.num_experts);
    for (int j = 0; j < quads; ++j) out[j * 32 + lane] = rows[warp][j * 32 + lane];
}

unsigned blocks_of_tokens(const Arguments& arguments) { return static_cast<unsigned>((arguments.num_tokens + kWarps - 1) / kWarps); }

}  // namespace
}  // namespace router

// Called by router/sm90.py. Return a cudaError_t; never throw, synchronise or allocate. Experts: a multiple of 128 up to 1024; k up to 31.
extern "C" int sm90_router_choose(const router::Arguments* arguments, cudaStream_t stream) {
    if (arguments->num_tokens == 0) return 0;
    router::choose<<<router::blocks_of_tokens(*arguments), router::kWarps * 32, 0, stream>>>(*arguments);
    return static_cast<int>(cudaGetLastError());
}
extern "C" int sm90_router_count(const router::Arguments* arguments, cudaStream_t stream) {
    if (arguments->num_tokens == 0) return 0;
    const size_t bytes = static_cast<size_t>((router::kSlice * arguments->num_bins + 1) / 2) * 4;
    const cudaError_t error = cudaFuncSetAttribute(router::count, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return static_cast<int>(error);
    const unsigned blocks = arguments->num_experts / router::kSlice * arguments->num_segments;
    router::count<<<blocks, router::kCountThreads, bytes, stream>>>(*arguments);
    return static_cast<int>(cudaGetLastError());
}
extern "C" int sm90_router_backward(const router::Arguments* arguments, cudaStream_t stream) {
    if (arguments->num_tokens == 0) return 0;
    router::backward<<<router::blocks_of_tokens(*arguments), router::kWarps * 32, 0, stream>>>(*arguments);
    return static_cast<int>(cudaGetLastError());
}
