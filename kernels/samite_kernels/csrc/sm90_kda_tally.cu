// Sums the tallies of all heads (include/tally.cuh) into the numbers of kda/sm90_counts.py: one block, a warp a head at a time.

#include "include/tally.cuh"

namespace kda {
namespace {

constexpr int kWarps = 32;
constexpr int kColumns = kDecaySums;
constexpr float kMemorylessLog = -6.907755f;  // ln 1e-3

__global__ void __launch_bounds__(kWarps * 32, 1) tally(const __grid_constant__ TallyArguments arguments) {
    __shared__ long long low[kWarps][kColumns], high[kWarps][kColumns];
    __shared__ int memoryless[kWarps];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const bool is_maximum = lane == kSpanMax || lane == kChunkFallMax, is_pair = lane == kGates || lane == kOperands;
    long long first = 0, second = 0;
    int forgetful = 0;
    for (int head = warp; head < arguments.num_heads; head += kWarps) {
        const int64_t* row = arguments.rows + static_cast<int64_t>(head) * kTallyRow;
        const long long value = lane < kColumns ? row[lane] : 0;
        first = is_maximum ? max(first, value) : first + (is_pair ? value & 0xffffffffll : value);
        second += is_pair ? value >> 32 : 0;
        const long long limit = static_cast<long long>(kMemorylessLog * kFixedPoint) * row[kChunks];
        bool forgets = true;
        for (int channel = lane; channel < kDim; channel += 32) forgets = forgets && row[kDecaySums + channel] < limit;
        forgetful += __ballot_sync(~0u, forgets) == ~0u;
    }
    if (lane < kColumns) {
        low[warp][lane] = first;
        high[warp][lane] = second;
    }
    if (lane == 0) memoryless[warp] = forgetful;
    __syncthreads();
    if (warp > 0) return;
    first = second = forgetful = 0;
    for (int w = 0; w < kWarps; ++w) {
        if (lane < kColumns) {
            first = is_maximum ? max(first, low[w][lane]) : first + low[w][lane];
            second += high[w][lane];
        }
        forgetful += memoryless[w];
    }
    int64_t* sums = arguments.sums;
    if (is_pair) {
        sums[lane] = first;
        sums[lane + 2] = second;
    } else if (lane < kRows) {
        sums[lane + 2] = first;
    } else if (lane == kRows || lane == kChunks) {
        sums[lane + 2] = first * kDim;
    } else if (is_maximum) {
        const float nats = __uint_as_float(static_cast<uint32_t>(first));
        if (lane == kSpanMax) {
            arguments.extremes[0] = nats;
            arguments.extremes[1] = kLargestLog - nats;
        } else {
            arguments.extremes[2] = -nats;
        }
    } else if (lane == 31) {
        sums[kChunks + 3] = forgetful;
    }
}

}  // namespace
}  // namespace kda

// Called by kda/sm90_counts.py. Returns a cudaError_t; never throws, synchronises or allocates.
extern "C" int sm90_kda_tally(const kda::TallyArguments* arguments, cudaStream_t stream) {
    if (arguments->num_heads == 0) return 0;
    kda::tally<<<1, kda::kWarps * 32, 0, stream>>>(*arguments);
    return static_cast<int>(cudaGetLastError());
}
