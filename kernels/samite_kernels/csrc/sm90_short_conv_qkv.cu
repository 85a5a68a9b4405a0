// The short causal convolutions of q, k and v in one launch, forward and backward: one read and one write of each token.
//
//   z[t] = sum_j weight[j] x[t - 3 + j]      y = silu(z)
//   dz   = dy silu'(z)                       dx[t] = sum_j weight[j] dz[t + 3 - j]      dweight[j] = sum_t dz[t] x[t - 3 + j]
//
// A thread owns four channels of a strip of up to 256 tokens of one document. The next rows are on their way while the present ones are
// worked on: 8 bytes a row and thread keep the registers few, so that enough threads wait for memory at once. The three tokens before a
// strip come from the strip before, the initial state (the halo of context parallelism), or are zero; the three after it are computed again
// for dx. Streams may have different widths and row strides. Who calls it: conv/qkv_sm90.py.

#include "include/layout.cuh"

namespace qkv {

constexpr int kStreams = 3;
constexpr int kTaps = 4;
constexpr int kHistory = kTaps - 1;
constexpr int kChannels = 4;      // per thread: 8 bytes
constexpr int kThreads = 128;
constexpr int kForwardRows = 8;   // rows in flight
constexpr int kBackwardRows = 4;  // of two tensors
constexpr int kSumValues = 32, kSumGroups = 8;

struct Arguments {
    const __nv_bfloat16* x[kStreams];              // [tokens, channels], rows x_stride apart
    const float* weight[kStreams];                 // [channels, 4]
    const __nv_bfloat16* initial_state[kStreams];  // [documents, 3, channels], all or none null
    const __nv_bfloat16* d_y[kStreams];            // rows d_y_stride apart
    __nv_bfloat16* y[kStreams];                    // [tokens, channels]
    __nv_bfloat16* d_x[kStreams];                  // [tokens, channels]
    __nv_bfloat16* d_initial_state[kStreams];      // as initial_state
    float* d_weight[kStreams];                     // [channels, 4]
    float* d_weight_parts;                         // [strips, channels of all streams, 4]
    const kda::Chunk* strips;
    int64_t x_stride[kStreams];
    int64_t d_y_stride[kStreams];
    int32_t num_channels[kStreams];
    int32_t num_strips;
    int32_t activation;
};

namespace {

struct Four {
    float at[kChannels];
};

__device__ __forceinline__ Four unpack(uint2 words) {
    return {{ptx::low_bf16(words.x), ptx::high_bf16(words.x), ptx::low_bf16(words.y), ptx::high_bf16(words.y)}};
}
__device__ __forceinline__ uint2 pack(const Four& x) { return make_uint2(ptx::pack_bf16(x.at[0], x.at[1]), ptx::pack_bf16(x.at[2], x.at[3])); }
__device__ __forceinline__ uint2 load(const __nv_bfloat16* from) { return __ldg(reinterpret_cast<const uint2*>(from)); }
__device__ __forceinline__ float sigmoid(float z) { return ptx::reciprocal_fast(1.f + ptx::exp2_fast(-kda::kLog2E * z)); }
__device__ __forceinline__ float product(const float4& weight, float a, float b, float c, float d) {
    return weight.x * a + weight.y * b + weight.z * c + weight.w * d;
}

__host__ __device__ inline int blocks_of(int num_channels) { return (num_channels + kThreads * kChannels - 1) / (kThreads * kChannels); }
__host__ __device__ inline int blocks_of_all(const Arguments& arguments) {
    return blocks_of(arguments.num_channels[0]) + blocks_of(arguments.num_channels[1]) + blocks_of(arguments.num_channels[2]);
}

// What a thread works on. Neighbouring blocks take neighbouring channels of the same tokens.
struct Work {
    kda::Chunk strip;
    int strip_index;
    int stream;
    int channel;
    int width;
    bool valid;

    __device__ __forceinline__ explicit Work(const Arguments& arguments) {
        const unsigned blocks = blocks_of_all(arguments);
        strip_index = static_cast<int>(blockIdx.x / blocks);
        int block = static_cast<int>(blockIdx.x - strip_index * blocks);
        stream = 0;
        while (block >= blocks_of(arguments.num_channels[stream])) block -= blocks_of(arguments.num_channels[stream++]);
        strip = arguments.strips[strip_index];
        width = arguments.num_channels[stream];
        channel = (block * kThreads + static_cast<int>(threadIdx.x)) * kChannels;
        valid = channel < width;
    }
};

// The inputs of the three tokens before a strip, oldest first.
__device__ __forceinline__ void load_history(const Arguments& arguments, const Work& work, Four (&history)[kHistory]) {
    const __nv_bfloat16* state = arguments.initial_state[work.stream];
    const int64_t stride = arguments.x_stride[work.stream];
#pragma unroll
    for (int i = 0; i < kHistory; ++i) {
        uint2 words = make_uint2(0, 0);
        if (work.strip.place > 0) {
            words = load(arguments.x[work.stream] + (work.strip.first_token - kHistory + i) * stride + work.channel);
        } else if (state) {
            words = load(state + (static_cast<int64_t>(work.strip.document) * kHistory + i) * work.width + work.channel);
        }
        history[i] = unpack(words);
    }
}

__device__ __forceinline__ void load_weight(const Arguments& arguments, const Work& work, float4 (&weight)[kChannels]) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) weight[c] = __ldg(reinterpret_cast<const float4*>(arguments.weight[work.stream]) + work.channel + c);
}

// The next rows of a tensor, of which `left` are there; the others are zero. Moves the pointer behind them.
template <int Rows>
__device__ __forceinline__ void load_rows(const __nv_bfloat16*& next, int64_t stride, int left, uint2 (&words)[Rows]) {
#pragma unroll
    for (int i = 0; i < Rows; ++i) {
        words[i] = i < left ? load(next) : make_uint2(0, 0);
        next += stride;
    }
}

template <bool Activation>
__global__ void __launch_bounds__(kThreads, 6) forward(const __grid_constant__ Arguments arguments) {
    const Work work(arguments);
    if (!work.valid) return;
    const int rows = work.strip.rows;
    const int64_t stride = arguments.x_stride[work.stream];
    const __nv_bfloat16* x = arguments.x[work.stream] + work.strip.first_token * stride + work.channel;
    __nv_bfloat16* y = arguments.y[work.stream] + static_cast<int64_t>(work.strip.first_token) * work.width + work.channel;
    uint2 ahead[kForwardRows];
    load_rows(x, stride, rows, ahead);
    float4 weight[kChannels];
    load_weight(arguments, work, weight);
    Four history[kHistory];
    load_history(arguments, work, history);
    for (int row = 0; row < rows; row += kForwardRows) {
        uint2 words[kForwardRows];
#pragma unroll
        for (int i = 0; i < kForwardRows; ++i) words[i] = ahead[i];
        load_rows(x, stride, rows - row - kForwardRows, ahead);
#pragma unroll
        for (int i = 0; i < kForwardRows; ++i) {
            const Four now = unpack(words[i]);
            Four out;
#pragma unroll
            for (int c = 0; c < kChannels; ++c) {
                const float z = product(weight[c], history[0].at[c], history[1].at[c], history[2].at[c], now.at[c]);
                out.at[c] = Activation ? z * sigmoid(z) : z;
            }
            if (row + i < rows) *reinterpret_cast<uint2*>(y) = pack(out);
            y += work.width;
            history[0] = history[1];
            history[1] = history[2];
            history[2] = now;
        }
    }
}

template <bool Activation>
__global__ void __launch_bounds__(kThreads, 4) backward(const __grid_constant__ Arguments arguments) {
    const Work work(arguments);
    if (!work.valid) return;
    const int rows = work.strip.rows;
    int following = 0;
    if (work.strip_index + 1 < arguments.num_strips) {
        const kda::Chunk next = arguments.strips[work.strip_index + 1];
        if (next.document == work.strip.document) following = min(next.rows, kHistory);
    }
    const int limit = rows + following;
    const int64_t x_stride = arguments.x_stride[work.stream], d_y_stride = arguments.d_y_stride[work.stream];
    const __nv_bfloat16* x = arguments.x[work.stream] + work.strip.first_token * x_stride + work.channel;
    const __nv_bfloat16* d_y = arguments.d_y[work.stream] + work.strip.first_token * d_y_stride + work.channel;
    // Row r of the output belongs to token r - 3 of the strip; before the first token of a document it belongs to the initial state.
    __nv_bfloat16* d_x = arguments.d_x[work.stream] + (static_cast<int64_t>(work.strip.first_token) - kHistory) * work.width + work.channel;
    __nv_bfloat16* d_state = arguments.d_initial_state[work.stream];
    const bool gives_state = d_state && work.strip.place == 0;
    d_state += static_cast<int64_t>(work.strip.document) * kHistory * work.width + work.channel;
    uint2 x_ahead[kBackwardRows], d_y_ahead[kBackwardRows];
    load_rows(x, x_stride, limit, x_ahead);
    load_rows(d_y, d_y_stride, limit, d_y_ahead);
    float4 weight[kChannels];
    load_weight(arguments, work, weight);
    Four history[kHistory], d_z[kHistory];  // of the three tokens before, oldest first
    load_history(arguments, work, history);
#pragma unroll
    for (int i = 0; i < kHistory; ++i) d_z[i] = unpack(make_uint2(0, 0));
    float4 d_weight[kChannels];
#pragma unroll
    for (int c = 0; c < kChannels; ++c) d_weight[c] = make_float4(0.f, 0.f, 0.f, 0.f);
    for (int row = 0; row < rows + kHistory; row += kBackwardRows) {
        uint2 x_words[kBackwardRows], d_y_words[kBackwardRows];
#pragma unroll
        for (int i = 0; i < kBackwardRows; ++i) {
            x_words[i] = x_ahead[i];
            d_y_words[i] = d_y_ahead[i];
        }
        load_rows(x, x_stride, limit - row - kBackwardRows, x_ahead);
        load_rows(d_y, d_y_stride, limit - row - kBackwardRows, d_y_ahead);
#pragma unroll
        for (int i = 0; i < kBackwardRows; ++i) {
            const Four now = unpack(x_words[i]);
            Four slope = unpack(d_y_words[i]), out;
            const bool inside = row + i < rows;
#pragma unroll
            for (int c = 0; c < kChannels; ++c) {
                if (Activation) {
                    const float z = product(weight[c], history[0].at[c], history[1].at[c], history[2].at[c], now.at[c]);
                    const float s = sigmoid(z);
                    slope.at[c] *= s + z * s * (1.f - s);
                }
                const float counted = inside ? slope.at[c] : 0.f;  // a select: branches would keep channels from overlapping
                d_weight[c].x += counted * history[0].at[c];
                d_weight[c].y += counted * history[1].at[c];
                d_weight[c].z += counted * history[2].at[c];
                d_weight[c].w += counted * now.at[c];
                out.at[c] = product(weight[c], slope.at[c], d_z[2].at[c], d_z[1].at[c], d_z[0].at[c]);
            }
            if (row + i < kHistory ? gives_state : row + i < rows + kHistory) {
                *reinterpret_cast<uint2*>(row + i < kHistory ? d_state + static_cast<int64_t>(row + i) * work.width : d_x) = pack(out);
            }
            d_x += work.width;
            history[0] = history[1];
            history[1] = history[2];
            history[2] = now;
            d_z[0] = d_z[1];
            d_z[1] = d_z[2];
            d_z[2] = slope;
        }
    }
    int64_t channel = work.channel;
    for (int stream = 0; stream < work.stream; ++stream) channel += arguments.num_channels[stream];
    const int64_t all = arguments.num_channels[0] + arguments.num_channels[1] + arguments.num_channels[2];
    float4* parts = reinterpret_cast<float4*>(arguments.d_weight_parts) + work.strip_index * all + channel;
#pragma unroll
    for (int c = 0; c < kChannels; ++c) parts[c] = d_weight[c];
}

// Sums the parts of all strips in a fixed order, eight groups of threads for 32 values each.
__global__ void __launch_bounds__(kSumValues* kSumGroups) reduce(const __grid_constant__ Arguments arguments) {
    __shared__ float sums[kSumGroups][kSumValues];
    const int lane = threadIdx.x & 31, group = threadIdx.x >> 5;
    const int64_t all = int64_t{kTaps} * (arguments.num_channels[0] + arguments.num_channels[1] + arguments.num_channels[2]);
    int64_t value = static_cast<int64_t>(blockIdx.x) * kSumValues + lane;
    float sum = 0.f;
    if (value < all) {
#pragma unroll 4
        for (int strip = group; strip < arguments.num_strips; strip += kSumGroups) sum += __ldg(arguments.d_weight_parts + strip * all + value);
    }
    sums[group][lane] = sum;
    __syncthreads();
    if (group > 0 || value >= all) return;
    float total = 0.f;
#pragma unroll
    for (int i = 0; i < kSumGroups; ++i) total += sums[i][lane];
    int stream = 0;
    while (value >= int64_t{kTaps} * arguments.num_channels[stream]) value -= int64_t{kTaps} * arguments.num_channels[stream++];
    arguments.d_weight[stream][value] = total;
}

unsigned grid_of(const Arguments& arguments) { return static_cast<unsigned>(arguments.num_strips) * blocks_of_all(arguments); }

}  // namespace
}  // namespace qkv

// Called by conv/qkv_sm90.py. Return a cudaError_t; never throw, synchronise or allocate. Channels and strides: multiples of 4.
extern "C" int sm90_short_conv_qkv_forward(const qkv::Arguments* arguments, cudaStream_t stream) {
    if (arguments->num_strips == 0) return 0;
    if (arguments->activation) {
        qkv::forward<true><<<qkv::grid_of(*arguments), qkv::kThreads, 0, stream>>>(*arguments);
    } else {
        qkv::forward<false><<<qkv::grid_of(*arguments), qkv::kThreads, 0, stream>>>(*arguments);
    }
    return static_cast<int>(cudaGetLastError());
}
extern "C" int sm90_short_conv_qkv_backward(const qkv::Arguments* arguments, cudaStream_t stream) {
    if (arguments->num_strips > 0 && arguments->activation) {
        qkv::backward<true><<<qkv::grid_of(*arguments), qkv::kThreads, 0, stream>>>(*arguments);
    } else if (arguments->num_strips > 0) {
        qkv::backward<false><<<qkv::grid_of(*arguments), qkv::kThreads, 0, stream>>>(*arguments);
    }
    const int values = qkv::kTaps * (arguments->num_channels[0] + arguments->num_channels[1] + arguments->num_channels[2]);
    qkv::reduce<<<(values + qkv::kSumValues - 1) / qkv::kSumValues, qkv::kSumValues * qkv::kSumGroups, 0, stream>>>(*arguments);
    return static_cast<int>(cudaGetLastError());
}
