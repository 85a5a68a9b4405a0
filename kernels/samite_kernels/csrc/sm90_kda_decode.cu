// Recurrent KDA for decoding: one token after another, from raw inputs, the state in registers from the first token to the last.
//
//   S <- Diag(e^g) S      error = v - S^T k      S <- S + beta k error^T      o = scale S^T q        S in [K, V], float32
//
// A block owns one head of one document; its eight warps hold 16 rows of k each, a lane four columns of v. Both products with the state
// before the write, S^T k and S^T q, are made at once, since o = scale (S^T q + (q k) beta error). A step of one token reads and writes the
// state once, which is all that costs time. No gradient. Who calls it: kda/decode_sm90.py.

#include "include/layout.cuh"

namespace decode {

constexpr int kDim = kda::kDim;
constexpr int kWarps = 8;
constexpr int kRows = kDim / kWarps;  // of k, in a warp
constexpr int kColumns = kDim / 32;   // of v, in a lane
constexpr unsigned kAll = ~0u;

struct Arguments {
    const __nv_bfloat16* q;      // [tokens, heads, 128], raw
    const __nv_bfloat16* k;
    const __nv_bfloat16* v;
    const __nv_bfloat16* g;      // before dt_bias
    const __nv_bfloat16* beta;   // [tokens, heads], before the sigmoid
    const float* a_log;          // [heads]
    const float* dt_bias;        // [heads, 128]
    const float* initial_state;  // [documents, heads, 128 k, 128 v] or null
    const int32_t* offsets;      // [documents + 1], tokens
    float* final_state;          // the same layout; may be the initial state itself
    __nv_bfloat16* o;            // [tokens, heads, 128]
    int32_t num_documents;
    int32_t num_heads;
    float scale;
    float lower_bound;
};

namespace {

struct Four {
    float at[kColumns];
};

__device__ __forceinline__ Four load_four(const __nv_bfloat16* from) {
    const uint2 words = __ldg(reinterpret_cast<const uint2*>(from));
    return {{ptx::low_bf16(words.x), ptx::high_bf16(words.x), ptx::low_bf16(words.y), ptx::high_bf16(words.y)}};
}

__device__ __forceinline__ float dot(const Four& a, const Four& b) {
    float sum = a.at[0] * b.at[0] + a.at[1] * b.at[1] + a.at[2] * b.at[2] + a.at[3] * b.at[3];
#pragma unroll
    for (int distance = 16; distance > 0; distance >>= 1) sum += __shfl_xor_sync(kAll, sum, distance);
    return sum;
}

__global__ void __launch_bounds__(kWarps * 32, 2) decode(const __grid_constant__ Arguments arguments) {
    __shared__ float4 towards_k[2][kWarps][32], towards_q[2][kWarps][32];  // S^T k and S^T q of each warp's rows, by turns
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int document = static_cast<int>(blockIdx.x / static_cast<unsigned>(arguments.num_heads));
    const int head = static_cast<int>(blockIdx.x) - document * arguments.num_heads;
    const int first = arguments.offsets[document], stop = arguments.offsets[document + 1];
    const int64_t place = (static_cast<int64_t>(blockIdx.x) * kDim + warp * kRows) * kDim + lane * kColumns;

    float4 state[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        state[r] = arguments.initial_state ? *reinterpret_cast<const float4*>(arguments.initial_state + place + r * kDim)
                                           : make_float4(0.f, 0.f, 0.f, 0.f);
    }
    const float slope = -kda::kLog2E * ptx::exp2_fast(fminf(arguments.a_log[head], 20.f) * kda::kLog2E);
    const float4 bias = __ldg(reinterpret_cast<const float4*>(arguments.dt_bias + static_cast<int64_t>(head) * kDim) + lane);
    const float bound = arguments.lower_bound * kda::kLog2E;
    const float biases[kColumns] = {bias.x, bias.y, bias.z, bias.w};

    for (int token = first; token < stop; ++token) {
        // Every warp prepares all 128 channels, four to a lane; rows are handed to whole warps below.
        const int64_t row = static_cast<int64_t>(token) * arguments.num_heads + head, at = row * kDim + lane * kColumns;
        Four q = load_four(arguments.q + at), k = load_four(arguments.k + at), decay = load_four(arguments.g + at);
        const Four v = load_four(arguments.v + at);
        const float beta = 1.f / (1.f + ptx::exp2_fast(-kda::kLog2E * __bfloat162float(arguments.beta[row])));
        const float q_norm = rsqrtf(dot(q, q) + kda::kNormEpsilon) * arguments.scale, k_norm = rsqrtf(dot(k, k) + kda::kNormEpsilon);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
            q.at[c] *= q_norm;
            k.at[c] *= k_norm;
            decay.at[c] = ptx::exp2_fast(bound * ptx::reciprocal_fast(1.f + ptx::exp2_fast((decay.at[c] + biases[c]) * slope)));
        }
        const float q_k = dot(q, k);

        float4 along_k = make_float4(0.f, 0.f, 0.f, 0.f), along_q = along_k;
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            const int from = warp * (kRows / kColumns) + r / kColumns;
            const float d = __shfl_sync(kAll, decay.at[r % kColumns], from), k_row = __shfl_sync(kAll, k.at[r % kColumns], from);
            const float q_row = __shfl_sync(kAll, q.at[r % kColumns], from);
            state[r] = make_float4(state[r].x * d, state[r].y * d, state[r].z * d, state[r].w * d);
            along_k = make_float4(along_k.x + state[r].x * k_row, along_k.y + state[r].y * k_row, along_k.z + state[r].z * k_row,
                                  along_k.w + state[r].w * k_row);
            along_q = make_float4(along_q.x + state[r].x * q_row, along_q.y + state[r].y * q_row, along_q.z + state[r].z * q_row,
                                  along_q.w + state[r].w * q_row);
        }
        const int turn = (token - first) & 1;
        towards_k[turn][warp][lane] = along_k;
        towards_q[turn][warp][lane] = along_q;
        __syncthreads();  // by turns: who is one token ahead writes the other half, and can't be two ahead
        float4 seen = make_float4(0.f, 0.f, 0.f, 0.f), out = seen;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) {
            const float4 a = towards_k[turn][w][lane], b = towards_q[turn][w][lane];
            seen = make_float4(seen.x + a.x, seen.y + a.y, seen.z + a.z, seen.w + a.w);
            out = make_float4(out.x + b.x, out.y + b.y, out.z + b.z, out.w + b.w);
        }
        const float4 error = make_float4(beta * (v.at[0] - seen.x), beta * (v.at[1] - seen.y), beta * (v.at[2] - seen.z),
                                         beta * (v.at[3] - seen.w));
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            const float k_row = __shfl_sync(kAll, k.at[r % kColumns], warp * (kRows / kColumns) + r / kColumns);
            state[r] = make_float4(state[r].x + k_row * error.x, state[r].y + k_row * error.y, state[r].z + k_row * error.z,
                                   state[r].w + k_row * error.w);
        }
        if (warp == 0) {
            *reinterpret_cast<uint2*>(arguments.o + at) = make_uint2(ptx::pack_bf16(out.x + q_k * error.x, out.y + q_k * error.y),
                                                                     ptx::pack_bf16(out.z + q_k * error.z, out.w + q_k * error.w));
        }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) *reinterpret_cast<float4*>(arguments.final_state + place + r * kDim) = state[r];
}

}  // namespace
}  // namespace decode

// Called by kda/decode_sm90.py. Returns a cudaError_t; never throws, synchronises or allocates.
extern "C" int sm90_kda_decode(const decode::Arguments* arguments, cudaStream_t stream) {
    const unsigned blocks = static_cast<unsigned>(arguments->num_documents) * arguments->num_heads;
    if (blocks == 0) return 0;
    decode::decode<<<blocks, decode::kWarps * 32, 0, stream>>>(*arguments);
    return static_cast<int>(cudaGetLastError());
}
