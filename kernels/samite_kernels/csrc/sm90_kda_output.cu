// The outputs of a chunk from saved states, one block per (chunk, head), all chunks in parallel: O = (s q e^G) S + A_qk Vn.
//
// The companion of a scan that ran without outputs. A warpgroup for each half of V; every operand is one bulk copy.

#include "include/arguments.cuh"
#include "include/registers.cuh"

namespace kda {
namespace {

constexpr int kThreads = 256;

struct OutputShared {
    unsigned char states[kStateImageBytes];
    unsigned char q_grown[kTokenImageBytes];  // then O
    unsigned char v_new[kTokenImageBytes];
    unsigned char scores[kSquareImageBytes];
    uint64_t landed;
};
static_assert(sizeof(OutputShared) <= 113 * 1024, "two blocks per multiprocessor");

__global__ void __launch_bounds__(kThreads, 2) output(const __grid_constant__ OutputArguments arguments) {
    extern __shared__ __align__(1024) unsigned char raw_shared[];
    OutputShared& shared = *reinterpret_cast<OutputShared*>(raw_shared);
    const int64_t tile = blockIdx.x;
    const int index = static_cast<int>(blockIdx.x / static_cast<unsigned>(arguments.num_heads));
    const int head = static_cast<int>(blockIdx.x) - index * arguments.num_heads;
    const uint32_t landed = ptx::shared_address(&shared.landed);
    if (threadIdx.x == 0) {
        ptx::barrier_init(landed, 1);
        ptx::barrier_init_fence();
        ptx::barrier_expect_bytes(landed, kStateImageBytes + 2 * kTokenImageBytes + kSquareImageBytes);
        ptx::bulk_load(ptx::shared_address(shared.q_grown), arguments.q_grown + tile * kTokenImageBytes, kTokenImageBytes, landed);
        ptx::bulk_load(ptx::shared_address(shared.states), arguments.states + tile * kStateImageBytes, kStateImageBytes, landed);
        ptx::bulk_load(ptx::shared_address(shared.scores), arguments.scores + tile * kSquareImageBytes, kSquareImageBytes, landed);
        ptx::bulk_load(ptx::shared_address(shared.v_new), arguments.v_new + tile * kTokenImageBytes, kTokenImageBytes, landed);
    }
    const Chunk chunk = arguments.chunks[index];
    const int half = __shfl_sync(~0u, threadIdx.x >> 7, 0);
    __syncthreads();
    ptx::barrier_wait(landed, 0);
    __syncwarp();
    const Operand q(shared.q_grown), states(shared.states + half * 2 * kPanelBytes), scores(shared.scores);
    const Operand v_new(shared.v_new + half * kPanelBytes);
    float o[32];
    ptx::wgmma_fence();
#pragma unroll
    for (int s = 0; s < 8; ++s) ptx::wgmma_ss<0, 0>(o, q.along(s), states.along(s), s > 0);
#pragma unroll
    for (int s = 0; s < 4; ++s) ptx::wgmma_ss<0, 0>(o, scores.along(s), v_new.along(s));
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(o);
    __syncthreads();
    store_panel(shared.q_grown + half * kPanelBytes, 0, 0, o, 1.f);
    __syncthreads();
    const int64_t row_stride = static_cast<int64_t>(arguments.num_heads) * kDim;
    __nv_bfloat16* start = arguments.o + chunk.first_token * row_stride + static_cast<int64_t>(head) * kDim;
#pragma unroll
    for (int n = 0; n < kChunk * 16 / kThreads; ++n) {
        const int position = threadIdx.x + n * kThreads;
        const int row = position >> 4, piece = position & 15;
        if (row < chunk.rows) {
            *reinterpret_cast<uint4*>(start + row * row_stride + piece * 8) =
                *reinterpret_cast<const uint4*>(shared.q_grown + (piece >> 3) * kPanelBytes + piece_offset(row, piece & 7));
        }
    }
}

}  // namespace
}  // namespace kda

// Called by kda/sm90_schedule.py. Returns a cudaError_t; never throws, synchronises or allocates.
extern "C" int sm90_kda_output(const kda::OutputArguments* arguments, cudaStream_t stream) {
    using namespace kda;
    const int64_t tiles = static_cast<int64_t>(arguments->num_chunks) * arguments->num_heads;
    if (tiles == 0) return 0;
    const cudaError_t error = cudaFuncSetAttribute(output, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(OutputShared));
    if (error != cudaSuccess) return static_cast<int>(error);
    output<<<static_cast<unsigned>(tiles), kThreads, sizeof(OutputShared), stream>>>(*arguments);
    return static_cast<int>(cudaGetLastError());
}
