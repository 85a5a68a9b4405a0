// Short causal depthwise convolution with SiLU over packed documents, forward and backward, one read and one write of each token.
//
//   z[t] = sum_j weight[j] x[t - 3 + j]      y = silu(z)
//   dz   = dy silu'(z)                       dx[t] = sum_j weight[j] dz[t + 3 - j]      dweight[j] = sum_t dz[t] x[t - 3 + j]
//
// A thread owns eight channels of a chunk of up to 64 tokens of one document and slides over them; the three tokens before come from the
// chunk before, the initial state, or are zero, the three after are computed again for dx. Who calls it: conv/sm90.py.

#include "include/layout.cuh"

namespace conv {

constexpr int kTaps = 4;
constexpr int kHistory = kTaps - 1;
constexpr int kChannels = 8;   // per thread: 16 bytes
constexpr int kThreads = 128;
constexpr int kAhead = 4;      // tokens loaded before the first is used

struct Arguments {
    const __nv_bfloat16* x;              // [tokens, channels]
    const float* weight;                 // [channels, 4]
    const __nv_bfloat16* initial_state;  // [documents, 3, channels] or null
    const __nv_bfloat16* d_y;
    __nv_bfloat16* y;
    __nv_bfloat16* d_x;
    __nv_bfloat16* d_initial_state;      // the same, or null
    float* d_weight_parts;               // [chunks, channels, 4]
    float* d_weight;                     // [channels, 4]
    const kda::Chunk* chunks;
    int32_t num_chunks;
    int32_t num_channels;
    int32_t activation;
};

namespace {

struct Eight {
    float at[kChannels];
};

__device__ __forceinline__ Eight unpack(uint4 words) {
    const uint32_t w[4] = {words.x, words.y, words.z, words.w};
    Eight out;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        out.at[2 * i] = ptx::low_bf16(w[i]);
        out.at[2 * i + 1] = ptx::high_bf16(w[i]);
    }
    return out;
}

__device__ __forceinline__ uint4 pack(const Eight& x) {
    return make_uint4(ptx::pack_bf16(x.at[0], x.at[1]), ptx::pack_bf16(x.at[2], x.at[3]), ptx::pack_bf16(x.at[4], x.at[5]),
                      ptx::pack_bf16(x.at[6], x.at[7]));
}

__device__ __forceinline__ uint4 load(const __nv_bfloat16* from) { return __ldg(reinterpret_cast<const uint4*>(from)); }

// The inputs of the three tokens before a chunk, oldest first.
__device__ __forceinline__ void load_history(const Arguments& arguments, const kda::Chunk& chunk, int channel, Eight (&history)[kHistory]) {
#pragma unroll
    for (int i = 0; i < kHistory; ++i) {
        uint4 words = make_uint4(0, 0, 0, 0);
        if (chunk.place > 0) {
            words = load(arguments.x + static_cast<int64_t>(chunk.first_token - kHistory + i) * arguments.num_channels + channel);
        } else if (arguments.initial_state) {
            words = load(arguments.initial_state + (static_cast<int64_t>(chunk.document) * kHistory + i) * arguments.num_channels + channel);
        }
        history[i] = unpack(words);
    }
}

__device__ __forceinline__ void load_weight(const Arguments& arguments, int channel, float4 (&weight)[kChannels]) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) weight[c] = __ldg(reinterpret_cast<const float4*>(arguments.weight) + channel + c);
}

__device__ __forceinline__ float sigmoid(float z) { return ptx::reciprocal_fast(1.f + ptx::exp2_fast(-kda::kLog2E * z)); }

__device__ __forceinline__ float product(const float4& weight, float a, float b, float c, float d) {
    return weight.x * a + weight.y * b + weight.z * c + weight.w * d;
}

__global__ void __launch_bounds__(kThreads) forward(const __grid_constant__ Arguments arguments) {
    const kda::Chunk chunk = arguments.chunks[blockIdx.x];
    const int channel = (blockIdx.y * kThreads + threadIdx.x) * kChannels;
    if (channel >= arguments.num_channels) return;
    float4 weight[kChannels];
    load_weight(arguments, channel, weight);
    Eight history[kHistory];
    load_history(arguments, chunk, channel, history);
    const int64_t start = static_cast<int64_t>(chunk.first_token) * arguments.num_channels + channel;
    for (int row = 0; row < chunk.rows; row += kAhead) {
        uint4 words[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            if (row + i < chunk.rows) words[i] = load(arguments.x + start + static_cast<int64_t>(row + i) * arguments.num_channels);
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            if (row + i >= chunk.rows) break;
            const Eight now = unpack(words[i]);
            Eight out;
#pragma unroll
            for (int c = 0; c < kChannels; ++c) {
                const float z = product(weight[c], history[0].at[c], history[1].at[c], history[2].at[c], now.at[c]);
                out.at[c] = arguments.activation ? z * sigmoid(z) : z;
            }
            *reinterpret_cast<uint4*>(arguments.y + start + static_cast<int64_t>(row + i) * arguments.num_channels) = pack(out);
            history[0] = history[1];
            history[1] = history[2];
            history[2] = now;
        }
    }
}

__global__ void __launch_bounds__(kThreads) backward(const __grid_constant__ Arguments arguments) {
    const kda::Chunk chunk = arguments.chunks[blockIdx.x];
    const int channel = (blockIdx.y * kThreads + threadIdx.x) * kChannels;
    if (channel >= arguments.num_channels) return;
    int following = 0;
    if (static_cast<int>(blockIdx.x) + 1 < arguments.num_chunks) {
        const kda::Chunk next = arguments.chunks[blockIdx.x + 1];
        if (next.document == chunk.document) following = min(next.rows, kHistory);
    }
    float4 weight[kChannels];
    load_weight(arguments, channel, weight);
    Eight x[kHistory], d_z[kHistory];  // of the three tokens before, oldest first
    load_history(arguments, chunk, channel, x);
#pragma unroll
    for (int i = 0; i < kHistory; ++i) d_z[i] = unpack(make_uint4(0, 0, 0, 0));
    float4 d_weight[kChannels] = {};
    const int64_t start = static_cast<int64_t>(chunk.first_token) * arguments.num_channels + channel;
    for (int row = 0; row < chunk.rows + kHistory; ++row) {
        const int64_t at = start + static_cast<int64_t>(row) * arguments.num_channels;
        Eight now = unpack(make_uint4(0, 0, 0, 0)), slope = now;
        if (row < chunk.rows + following) {
            now = unpack(load(arguments.x + at));
            slope = unpack(load(arguments.d_y + at));
        }
        Eight out;
#pragma unroll
        for (int c = 0; c < kChannels; ++c) {
            if (arguments.activation) {
                const float z = product(weight[c], x[0].at[c], x[1].at[c], x[2].at[c], now.at[c]);
                const float s = sigmoid(z);
                slope.at[c] *= s * (1.f + z * (1.f - s));
            }
            if (row < chunk.rows) {
                d_weight[c].x += slope.at[c] * x[0].at[c];
                d_weight[c].y += slope.at[c] * x[1].at[c];
                d_weight[c].z += slope.at[c] * x[2].at[c];
                d_weight[c].w += slope.at[c] * now.at[c];
            }
            out.at[c] = product(weight[c], slope.at[c], d_z[2].at[c], d_z[1].at[c], d_z[0].at[c]);
        }
        if (row >= kHistory) {
            *reinterpret_cast<uint4*>(arguments.d_x + at - int64_t{kHistory} * arguments.num_channels) = pack(out);
        } else if (arguments.d_initial_state && chunk.place == 0) {
            *reinterpret_cast<uint4*>(arguments.d_initial_state +
                                      (static_cast<int64_t>(chunk.document) * kHistory + row) * arguments.num_channels + channel) = pack(out);
        }
        x[0] = x[1];
        x[1] = x[2];
        x[2] = now;
        d_z[0] = d_z[1];
        d_z[1] = d_z[2];
        d_z[2] = slope;
    }
    float4* parts = reinterpret_cast<float4*>(arguments.d_weight_parts) + static_cast<int64_t>(blockIdx.x) * arguments.num_channels + channel;
#pragma unroll
    for (int c = 0; c < kChannels; ++c) parts[c] = d_weight[c];
}

// Sums the parts of all chunks in a fixed order, eight groups of threads for 16 values each.
__global__ void __launch_bounds__(kThreads) reduce(const __grid_constant__ Arguments arguments) {
    __shared__ float sums[8][16];
    const int value = blockIdx.x * 16 + (threadIdx.x & 15), group = threadIdx.x >> 4;
    const int64_t stride = int64_t{kTaps} * arguments.num_channels;
    float sum = 0.f;
    for (int chunk = group; chunk < arguments.num_chunks; chunk += 8) sum += arguments.d_weight_parts[chunk * stride + value];
    sums[group][threadIdx.x & 15] = sum;
    __syncthreads();
    if (threadIdx.x < 16) {
        float total = 0.f;
#pragma unroll
        for (int i = 0; i < 8; ++i) total += sums[i][threadIdx.x];
        arguments.d_weight[value] = total;
    }
}

dim3 grid_of(const Arguments& arguments) {
    const int per_block = kThreads * kChannels;
    return dim3(arguments.num_chunks, (arguments.num_channels + per_block - 1) / per_block);
}

}  // namespace
}  // namespace conv

// Called by conv/sm90.py. Return a cudaError_t; never throw, synchronise or allocate. Channels: a multiple of 8.
extern "C" int sm90_short_conv_forward(const conv::Arguments* arguments, cudaStream_t stream) {
    if (arguments->num_chunks == 0) return 0;
    conv::forward<<<conv::grid_of(*arguments), conv::kThreads, 0, stream>>>(*arguments);
    return static_cast<int>(cudaGetLastError());
}
extern "C" int sm90_short_conv_backward(const conv::Arguments* arguments, cudaStream_t stream) {
    if (arguments->num_chunks > 0) conv::backward<<<conv::grid_of(*arguments), conv::kThreads, 0, stream>>>(*arguments);
    conv::reduce<<<arguments->num_channels / 4, conv::kThreads, 0, stream>>>(*arguments);
    return static_cast<int>(cudaGetLastError());
}
