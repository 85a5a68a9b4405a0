// What a piece of a document does to the state that enters it: S -> M S + b, one block per (piece, head, half of the columns).
//
// Both follow from the chain of the forward scan: b from no state with the values, M from the identity without them. They read the same -W and
// kt, so a block carries half the columns of each, on two warpgroups that share every load:
//
//   values   Vn' = U' + S' (-W)'        S' = e^G_last S' + Vn' kt        from 0, to b
//   map      Vn' =      S' (-W)'        the same                         from 1, to M
//
// sm90_kda_fold.cu joins the pieces of a document, after which all pieces run through the scan beside each other.

#include "include/arguments.cuh"
#include "include/chain.cuh"

namespace kda {
namespace {

constexpr int kThreads = 3 * kGroup;
constexpr int kStages = 5;
static_assert(kStages * sizeof(ChainStage) <= 232448, "227 KiB a block");

__device__ __forceinline__ void load_chunks(ChainStage* stages, const MapsArguments& arguments, int64_t first_tile, int num_chunks, int half) {
    for (int n = 0; n < num_chunks; ++n) {
        const int64_t tile = first_tile + static_cast<int64_t>(n) * arguments.num_heads;
        ChainStage& stage = stages[n % kStages];
        ptx::barrier_wait(ptx::shared_address(&stage.empty), ((n / kStages) & 1) ^ 1);
        load_stage(stage, arguments, tile, half);
    }
}

// From no state, or for the map from the identity, to `to`.
template <bool Values>
__device__ __forceinline__ void run_chain(const ChainStage* stages, float* to, int num_chunks, int half) {
    float state[64];
#pragma unroll
    for (int i = 0; i < 64; ++i) {
        const int element = first_element(half) + further_element(i);
        state[i] = !Values && element / kDim == element % kDim ? 1.f : 0.f;
    }
    for (int n = 0; n < num_chunks; ++n) {
        const ChainStage& stage = stages[n % kStages];
        const Operand w(stage.minus_w), k(stage.k_kept);
        uint32_t state_operand[32];
        to_operand(state_operand, state);
        ptx::barrier_wait(ptx::shared_address(&stage.full), (n / kStages) & 1);
        __syncwarp();  // the compiler serialises products that it finds on a divergent path
        float v_new[32];
        start_new_values(v_new, state_operand, w);
        uint32_t u[16] = {}, v_operand[16];
        if (Values) read_values(u, stage);
        finish_new_values(v_operand, v_new, u);
        start_next_state(state, v_operand, stage, k);
        ptx::fence_async_shared();  // what was read by ordinary loads before the copy engine writes there again
        finish_next_state(state, stage);
    }
#pragma unroll
    for (int i = 0; i < 64; ++i) to[first_element(half) + further_element(i)] = state[i];
}

__global__ void __launch_bounds__(kThreads, 1) maps(const __grid_constant__ MapsArguments arguments) {
    extern __shared__ __align__(1024) unsigned char raw_shared[];
    ChainStage* stages = reinterpret_cast<ChainStage*>(raw_shared);
    const int half = blockIdx.x & 1;
    const int head = (blockIdx.x >> 1) % arguments.num_heads;
    const int piece = (blockIdx.x >> 1) / arguments.num_heads;
    const int first_chunk = arguments.first_chunk[piece];
    const int num_chunks = arguments.first_chunk[piece + 1] - first_chunk;
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < kStages; ++slot) {
            ptx::barrier_init(ptx::shared_address(&stages[slot].full), 1);
            ptx::barrier_init(ptx::shared_address(&stages[slot].empty), 2 * kGroup);
        }
        ptx::barrier_init_fence();
    }
    __syncthreads();
    // A shuffle tells the compiler that the role is the same across the warp.
    const int role = __shfl_sync(~0u, threadIdx.x / kGroup, 0);
    const int64_t state_offset = (static_cast<int64_t>(piece) * arguments.num_heads + head) * kDim * kDim;
    if (role == 0) {
        ptx::registers_up_to<232>();
        run_chain<true>(stages, arguments.ends + state_offset, num_chunks, half);
    } else if (role == 1) {
        ptx::registers_up_to<232>();
        run_chain<false>(stages, arguments.maps + state_offset, num_chunks, half);
    } else {
        ptx::registers_down_to<40>();
        if (threadIdx.x == 2 * kGroup) {
            load_chunks(stages, arguments, static_cast<int64_t>(first_chunk) * arguments.num_heads + head, num_chunks, half);
        }
    }
}

}  // namespace
}  // namespace kda

// Called by kda/sm90_pieces.py. Returns a cudaError_t; never throws, synchronises or allocates.
extern "C" int sm90_kda_maps(const kda::MapsArguments* arguments, cudaStream_t stream) {
    using namespace kda;
    const int64_t blocks = int64_t{2} * arguments->num_pieces * arguments->num_heads;
    if (blocks == 0) return 0;
    constexpr size_t kSharedBytes = kStages * sizeof(ChainStage);
    const cudaError_t error = cudaFuncSetAttribute(maps, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
    if (error != cudaSuccess) return static_cast<int>(error);
    maps<<<static_cast<unsigned>(blocks), kThreads, kSharedBytes, stream>>>(*arguments);
    return static_cast<int>(cudaGetLastError());
}
