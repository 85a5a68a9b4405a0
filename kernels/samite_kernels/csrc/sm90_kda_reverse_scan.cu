// The reverse scan: passes the gradient of the state back through the chunks of a document, one block per (document, head, half of V).
//
// The mirror of the forward scan. dS' is the gradient of the transposed state after the chunk, [64 v, 128 k] in accumulators:
//
//   dVn' = dS' kt' + dO' A_qk                   saved, with dS' itself, for the gradient kernel
//   dS'  = e^G_last dS' + dO' (s q e^G) + dVn' (-W)
//
// The fifth warp streams factors by bulk copies and this half of dO, whose rows lie apart, by 16-byte copies.

#include "include/arguments.cuh"
#include "include/registers.cuh"

namespace kda {
namespace {

constexpr int kMathThreads = 128;
constexpr int kThreads = kMathThreads + 32;
constexpr int kStages = 3;
constexpr int kHalfImageBytes = kHalf * 128;

struct Stage {
    unsigned char minus_w[kTokenImageBytes];
    unsigned char q_grown[kTokenImageBytes];
    unsigned char k_kept[kTokenImageBytes];
    unsigned char scores[kSquareImageBytes];
    unsigned char d_o[kPanelBytes];  // 64 tokens, this half of V
    float keep[kDim];
    uint64_t full;
    uint64_t empty;
    unsigned char unused[496];
};
static_assert(sizeof(Stage) % 1024 == 0);
constexpr uint32_t kBulkBytes = 3 * kTokenImageBytes + kSquareImageBytes + kDecayBytes;

struct ReverseShared {
    Stage stages[kStages];
    unsigned char d_state[2 * kPanelBytes];
    unsigned char d_v_new[kHalfImageBytes];
};
static_assert(sizeof(ReverseShared) <= 232448, "227 KiB a block");

// All 32 lanes.
__device__ __forceinline__ void load_chunks(ReverseShared& shared, const ReverseScanArguments& arguments, int first_chunk, int num_chunks,
                                            int head, int half) {
    const int lane = threadIdx.x & 31;
    for (int n = 0; n < num_chunks; ++n) {
        const int slot = n % kStages;
        Stage& stage = shared.stages[slot];
        const int index = first_chunk + num_chunks - 1 - n;
        const Chunk chunk = arguments.chunks[index];
        ptx::barrier_wait(ptx::shared_address(&stage.empty), ((n / kStages) & 1) ^ 1);
        if (lane == 0) {
            const uint32_t full = ptx::shared_address(&stage.full);
            const int64_t tile = static_cast<int64_t>(index) * arguments.num_heads + head;
            ptx::barrier_expect_bytes(full, kBulkBytes);
            ptx::bulk_load(ptx::shared_address(stage.k_kept), arguments.k_kept + tile * kTokenImageBytes, kTokenImageBytes, full);
            ptx::bulk_load(ptx::shared_address(stage.scores), arguments.scores + tile * kSquareImageBytes, kSquareImageBytes, full);
            ptx::bulk_load(ptx::shared_address(stage.keep), arguments.keep + tile * kDim, kDecayBytes, full);
            ptx::bulk_load(ptx::shared_address(stage.q_grown), arguments.q_grown + tile * kTokenImageBytes, kTokenImageBytes, full);
            ptx::bulk_load(ptx::shared_address(stage.minus_w), arguments.minus_w + tile * kTokenImageBytes, kTokenImageBytes, full);
        }
        const int64_t row_stride = static_cast<int64_t>(arguments.num_heads) * kDim;
        const __nv_bfloat16* start = arguments.d_o + chunk.first_token * row_stride + static_cast<int64_t>(head) * kDim + half * kHalf;
        const uint32_t target = ptx::shared_address(stage.d_o);
#pragma unroll
        for (int i = 0; i < kChunk * 8 / 32; ++i) {
            const int row = i * 4 + (lane >> 3), piece = lane & 7;
            const bool valid = row < chunk.rows;
            ptx::copy_async_16(target + piece_offset(row, piece), start + (valid ? row * row_stride : 0) + piece * 8, valid);
        }
        ptx::barrier_arrive_after_copies(ptx::shared_address(&stage.full));
    }
}

// The part of dVn that doesn't wait for the state, begun as soon as a stage has landed: dO' A_qk.
__device__ __forceinline__ void wait_and_start(const Stage& stage, int parity, float (&d_v)[32]) {
    const Operand d_o(stage.d_o), scores(stage.scores);
    ptx::barrier_wait(ptx::shared_address(&stage.full), parity);
    ptx::fence_async_shared();  // the 16-byte copies were ordinary writes
    __syncwarp();               // the compiler serialises products that it finds on a divergent path
    ptx::wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; ++s) ptx::wgmma_ss<1, 1>(d_v, d_o.down(s), scores.down(s), s > 0);
    ptx::wgmma_commit();
}

__device__ __forceinline__ void run_chunks(ReverseShared& shared, const ReverseScanArguments& arguments, int document, int head, int half) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int first_chunk = arguments.first_chunk[document];
    const int num_chunks = arguments.first_chunk[document + 1] - first_chunk;
    const int v_row = half * kHalf + warp * 16 + (lane >> 2);
    const int64_t state_offset = (static_cast<int64_t>(document) * arguments.num_heads + head) * kDim * kDim;

    float d_state[64];
#pragma unroll
    for (int i = 0; i < 64; ++i) d_state[i] = 0.f;
    if (arguments.d_final_state) {
#pragma unroll
        for (int i = 0; i < 64; ++i) {
            const int k = (i >> 2) * 8 + (lane & 3) * 2 + (i & 1), v = v_row + ((i >> 1) & 1) * 8;
            d_state[i] = arguments.d_final_state[state_offset + k * kDim + v];
        }
    }
    float d_v[32];
    if (num_chunks > 0) wait_and_start(shared.stages[0], 0, d_v);
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(d_v);
    for (int n = 0; n < num_chunks; ++n) {
        const Stage& stage = shared.stages[n % kStages];
        const int64_t tile = (static_cast<int64_t>(first_chunk) + num_chunks - 1 - n) * arguments.num_heads + head;
        const Operand w(stage.minus_w), q(stage.q_grown), k(stage.k_kept), d_o(stage.d_o);
        uint32_t state_operand[32];
        to_operand(state_operand, d_state);
#pragma unroll
        for (int t = 0; t < 16; ++t) {
            const float2 keep = *reinterpret_cast<const float2*>(stage.keep + t * 8 + (lane & 3) * 2);
            d_state[4 * t] *= keep.x;
            d_state[4 * t + 1] *= keep.y;
            d_state[4 * t + 2] *= keep.x;
            d_state[4 * t + 3] *= keep.y;
        }
        ptx::wgmma_pin(d_state);
        ptx::wgmma_fence();
#pragma unroll
        for (int s = 0; s < 8; ++s) {
            ptx::wgmma_rs<0>(d_v, state_operand[4 * s], state_operand[4 * s + 1], state_operand[4 * s + 2], state_operand[4 * s + 3],
                             k.along(s));
        }
        ptx::wgmma_commit();
#pragma unroll
        for (int s = 0; s < 4; ++s) ptx::wgmma_ss<1, 1>(d_state, d_o.down(s), q.down(s));
        ptx::wgmma_commit();
        ptx::bulk_store_wait_read<0>();
        __syncwarp();
        store_rows<8>(shared.d_state, state_operand);
        ptx::wgmma_wait<1>();
        ptx::wgmma_pin(d_v);
        uint32_t v_operand[16];
        to_operand(v_operand, d_v);
        ptx::wgmma_fence();
#pragma unroll
        for (int s = 0; s < 4; ++s) {
            ptx::wgmma_rs<1>(d_state, v_operand[4 * s], v_operand[4 * s + 1], v_operand[4 * s + 2], v_operand[4 * s + 3], w.down(s));
        }
        ptx::wgmma_commit();
        store_rows<4>(shared.d_v_new, v_operand);
        ptx::fence_async_shared();
        __syncwarp();
        unsigned char* states = arguments.d_states + tile * kStateImageBytes + half * 2 * kPanelBytes + warp * 2048;
        ptx::bulk_store_if(lane == 0, states, ptx::shared_address(shared.d_state) + warp * 2048, 2048);
        ptx::bulk_store_if(lane == 0, states + kPanelBytes, ptx::shared_address(shared.d_state) + kPanelBytes + warp * 2048, 2048);
        ptx::bulk_store_if(lane == 0, arguments.d_v_new + tile * kTokenImageBytes + half * kHalfImageBytes + warp * 2048,
                           ptx::shared_address(shared.d_v_new) + warp * 2048, 2048);
        ptx::bulk_store_commit();
        if (n + 1 < num_chunks) wait_and_start(shared.stages[(n + 1) % kStages], ((n + 1) / kStages) & 1, d_v);
        ptx::wgmma_wait<0>();
        ptx::wgmma_pin(d_state);
        ptx::wgmma_pin(d_v);
        ptx::barrier_arrive(ptx::shared_address(&stage.empty));
    }
    if (arguments.d_initial_state) {
#pragma unroll
        for (int i = 0; i < 64; ++i) {
            const int k = (i >> 2) * 8 + (lane & 3) * 2 + (i & 1), v = v_row + ((i >> 1) & 1) * 8;
            arguments.d_initial_state[state_offset + k * kDim + v] = d_state[i];
        }
    }
    ptx::bulk_store_wait_read<0>();
}

__global__ void __launch_bounds__(kThreads, 1) reverse_scan(const __grid_constant__ ReverseScanArguments arguments) {
    extern __shared__ __align__(1024) unsigned char raw_shared[];
    ReverseShared& shared = *reinterpret_cast<ReverseShared*>(raw_shared);
    const int half = blockIdx.x & 1;
    const int head = (blockIdx.x >> 1) % arguments.num_heads;
    const int document = (blockIdx.x >> 1) / arguments.num_heads;
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < kStages; ++slot) {
            ptx::barrier_init(ptx::shared_address(&shared.stages[slot].full), 33);  // the bulk copies, and each lane of the loader
            ptx::barrier_init(ptx::shared_address(&shared.stages[slot].empty), kMathThreads);
        }
        ptx::barrier_init_fence();
    }
    __syncthreads();
    // A shuffle tells the compiler that the role is the same across the warp.
    const int role = __shfl_sync(~0u, threadIdx.x / kMathThreads, 0);
    if (role == 0) {
        run_chunks(shared, arguments, document, head, half);
    } else {
        const int first_chunk = arguments.first_chunk[document];
        load_chunks(shared, arguments, first_chunk, arguments.first_chunk[document + 1] - first_chunk, head, half);
    }
}

}  // namespace
}  // namespace kda

// Called by kda/sm90_launch.py. Returns a cudaError_t; never throws, synchronises or allocates.
extern "C" int sm90_kda_reverse_scan(const kda::ReverseScanArguments* arguments, cudaStream_t stream) {
    using namespace kda;
    const int64_t blocks = int64_t{2} * arguments->num_documents * arguments->num_heads;
    if (blocks == 0) return 0;
    const cudaError_t error = cudaFuncSetAttribute(reverse_scan, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(ReverseShared));
    if (error != cudaSuccess) return static_cast<int>(error);
    reverse_scan<<<static_cast<unsigned>(blocks), kThreads, sizeof(ReverseShared), stream>>>(*arguments);
    return static_cast<int>(cudaGetLastError());
}
