// Gradients of A_log and dt_bias: sums the parts of all chunks in a fixed order, one block per head.

#include "include/arguments.cuh"

namespace kda {
namespace {

constexpr int kGroups = 8;

__global__ void __launch_bounds__(kGroups* kDim, 1) reduce(const __grid_constant__ ReduceArguments arguments) {
    __shared__ float sums[kGroups][kDim + 1];
    const int head = blockIdx.x, channel = threadIdx.x & (kDim - 1), group = threadIdx.x >> 7;
    float bias = 0.f, a_log = 0.f;
#pragma unroll 4
    for (int chunk = group; chunk < arguments.num_chunks; chunk += kGroups) {
        const int64_t tile = static_cast<int64_t>(chunk) * arguments.num_heads + head;
        bias += arguments.d_dt_bias_parts[tile * kDim + channel];
        if (channel == 0) a_log += arguments.d_a_log_parts[tile];
    }
    sums[group][channel] = bias;
    if (channel == 0) sums[group][kDim] = a_log;
    __syncthreads();
    if (threadIdx.x <= kDim) {
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < kGroups; ++i) sum += sums[i][threadIdx.x];
        if (threadIdx.x < kDim) {
            arguments.d_dt_bias[static_cast<int64_t>(head) * kDim + threadIdx.x] = sum;
        } else {
            arguments.d_a_log[head] = sum;
        }
    }
}

}  // namespace
}  // namespace kda

// Called by kda/sm90_launch.py. Returns a cudaError_t; never throws, synchronises or allocates.
extern "C" int sm90_kda_reduce(const kda::ReduceArguments* arguments, cudaStream_t stream) {
    if (arguments->num_heads == 0) return 0;
    kda::reduce<<<arguments->num_heads, kda::kGroups * kda::kDim, 0, stream>>>(*arguments);
    return static_cast<int>(cudaGetLastError());
}
