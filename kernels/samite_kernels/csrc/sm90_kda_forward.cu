// The forward scan: passes the state through the chunks of a document and writes the outputs, one block per (document, head, half of V).
//
// The state is held transposed, [64 v, 128 k], in float32 wgmma accumulators of one warpgroup: its bfloat16 copy is the register operand
// of the next product, so the serial chain of a chunk never touches shared memory:
//
//   Vn' = U' + S' (-W)'          the state scaled by e^G_last meanwhile
//   S'  = e^G_last S' + Vn' kt
//   O'  = S' (s q e^G)' + Vn' A_qk'          off the chain
//
// A fifth warp streams the chunk's factors through a ring of bulk copies.

#include "include/arguments.cuh"
#include "include/registers.cuh"

namespace kda {
namespace {

constexpr int kMathThreads = 128;
constexpr int kThreads = kMathThreads + 32;
constexpr int kStages = 3;
constexpr int kHalfImageBytes = kHalf * 128;  // 64 rows of v, 64 tokens

struct Stage {
    unsigned char minus_w[kTokenImageBytes];
    unsigned char q_grown[kTokenImageBytes];
    unsigned char k_kept[kTokenImageBytes];
    unsigned char scores[kSquareImageBytes];
    unsigned char u[kHalfImageBytes];
    float keep[kDim];
    uint64_t full;
    uint64_t empty;
    unsigned char unused[496];
};
static_assert(sizeof(Stage) % 1024 == 0);
constexpr uint32_t kStageBytes = 3 * kTokenImageBytes + kSquareImageBytes + kHalfImageBytes + kDecayBytes;

struct ScanShared {
    Stage stages[kStages];
    unsigned char state[2 * kPanelBytes];
    unsigned char v_new[kHalfImageBytes];
    unsigned char o[4][kChunk * 32];  // per warp: 64 tokens, 16 values
};
static_assert(sizeof(ScanShared) <= 232448, "227 KiB a block");

__device__ __forceinline__ void load_chunks(ScanShared& shared, const ScanArguments& arguments, int64_t first_tile, int num_chunks, int half) {
    for (int n = 0; n < num_chunks; ++n) {
        const int slot = n % kStages;
        Stage& stage = shared.stages[slot];
        const uint32_t full = ptx::shared_address(&shared.stages[slot].full);
        ptx::barrier_wait(ptx::shared_address(&shared.stages[slot].empty), ((n / kStages) & 1) ^ 1);
        const int64_t tile = first_tile + static_cast<int64_t>(n) * arguments.num_heads;
        ptx::barrier_expect_bytes(full, kStageBytes);
        ptx::bulk_load(ptx::shared_address(stage.minus_w), arguments.minus_w + tile * kTokenImageBytes, kTokenImageBytes, full);
        ptx::bulk_load(ptx::shared_address(stage.u), arguments.u_transposed + tile * kTokenImageBytes + half * kHalfImageBytes,
                       kHalfImageBytes, full);
        ptx::bulk_load(ptx::shared_address(stage.keep), arguments.keep + tile * kDim, kDecayBytes, full);
        ptx::bulk_load(ptx::shared_address(stage.k_kept), arguments.k_kept + tile * kTokenImageBytes, kTokenImageBytes, full);
        ptx::bulk_load(ptx::shared_address(stage.q_grown), arguments.q_grown + tile * kTokenImageBytes, kTokenImageBytes, full);
        ptx::bulk_load(ptx::shared_address(stage.scores), arguments.scores + tile * kSquareImageBytes, kSquareImageBytes, full);
    }
}

template <bool Save>
__device__ __forceinline__ void run_chunks(ScanShared& shared, const ScanArguments& arguments, int document, int head, int half) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int first_chunk = arguments.first_chunk[document];
    const int num_chunks = arguments.first_chunk[document + 1] - first_chunk;
    const int v_row = half * kHalf + warp * 16 + (lane >> 2);
    const int64_t state_offset = (static_cast<int64_t>(document) * arguments.num_heads + head) * kDim * kDim;

    float state[64];
#pragma unroll
    for (int i = 0; i < 64; ++i) state[i] = 0.f;
    if (arguments.initial_state) {
#pragma unroll
        for (int i = 0; i < 64; ++i) {
            const int k = (i >> 2) * 8 + (lane & 3) * 2 + (i & 1), v = v_row + ((i >> 1) & 1) * 8;
            state[i] = arguments.initial_state[state_offset + k * kDim + v];
        }
    }
    uint32_t state_operand[32];
    to_operand(state_operand, state);

    for (int n = 0; n < num_chunks; ++n) {
        const int slot = n % kStages;
        const Stage& stage = shared.stages[slot];
        const Chunk chunk = arguments.chunks[first_chunk + n];
        const int64_t tile = (static_cast<int64_t>(first_chunk) + n) * arguments.num_heads + head;
        const uint32_t w = ptx::shared_address(stage.minus_w), q = ptx::shared_address(stage.q_grown);
        const uint32_t k = ptx::shared_address(stage.k_kept), scores = ptx::shared_address(stage.scores);
        ptx::barrier_wait(ptx::shared_address(&shared.stages[slot].full), (n / kStages) & 1);
        __syncwarp();  // the compiler serialises products that it finds on a divergent path

        // Not while a product is in flight: the compiler would wait for it.
#pragma unroll
        for (int t = 0; t < 16; ++t) {
            const float2 keep = *reinterpret_cast<const float2*>(stage.keep + t * 8 + (lane & 3) * 2);
            state[4 * t] *= keep.x;
            state[4 * t + 1] *= keep.y;
            state[4 * t + 2] *= keep.x;
            state[4 * t + 3] *= keep.y;
        }
        float v_new[32], out[32];
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            const int row = warp * 16 + (lane >> 2) + (i & 1) * 8;
            const uint32_t pair = *reinterpret_cast<const uint32_t*>(stage.u + piece_offset(row, i >> 1) + (lane & 3) * 4);
            v_new[(i >> 1) * 4 + (i & 1) * 2] = ptx::low_bf16(pair);
            v_new[(i >> 1) * 4 + (i & 1) * 2 + 1] = ptx::high_bf16(pair);
        }
        ptx::wgmma_pin(v_new);
        ptx::wgmma_fence();
#pragma unroll
        for (int s = 0; s < 8; ++s) {
            ptx::wgmma_rs<0>(v_new, state_operand[4 * s], state_operand[4 * s + 1], state_operand[4 * s + 2], state_operand[4 * s + 3],
                             descriptor(along_row(w, s)));
        }
        ptx::wgmma_commit();
#pragma unroll
        for (int s = 0; s < 8; ++s) {
            ptx::wgmma_rs<0>(out, state_operand[4 * s], state_operand[4 * s + 1], state_operand[4 * s + 2], state_operand[4 * s + 3],
                             descriptor(along_row(q, s)), s > 0);
        }
        ptx::wgmma_commit();
        if (Save) {
            ptx::bulk_store_wait_read<0>();
            __syncwarp();
            store_rows<8>(shared.state, state_operand);
        }
        ptx::wgmma_wait<1>();
        ptx::wgmma_pin(v_new);
        uint32_t v_operand[16];
        to_operand(v_operand, v_new);
        ptx::wgmma_pin(state);
        ptx::wgmma_fence();
#pragma unroll
        for (int s = 0; s < 4; ++s) {
            ptx::wgmma_rs<1>(state, v_operand[4 * s], v_operand[4 * s + 1], v_operand[4 * s + 2], v_operand[4 * s + 3],
                             descriptor(k + s * kDownRows));
        }
        ptx::wgmma_commit();
#pragma unroll
        for (int s = 0; s < 4; ++s) {
            ptx::wgmma_rs<0>(out, v_operand[4 * s], v_operand[4 * s + 1], v_operand[4 * s + 2], v_operand[4 * s + 3],
                             descriptor(scores + s * kAlongRow));
        }
        ptx::wgmma_commit();
        if (Save) {
            store_rows<4>(shared.v_new, v_operand);
            ptx::fence_async_shared();
            __syncwarp();
            unsigned char* states = arguments.states + tile * kStateImageBytes + half * 2 * kPanelBytes + warp * 2048;
            ptx::bulk_store_if(lane == 0, states, ptx::shared_address(shared.state) + warp * 2048, 2048);
            ptx::bulk_store_if(lane == 0, states + kPanelBytes, ptx::shared_address(shared.state) + kPanelBytes + warp * 2048, 2048);
            ptx::bulk_store_if(lane == 0, arguments.v_new + tile * kTokenImageBytes + half * kHalfImageBytes + warp * 2048,
                            ptx::shared_address(shared.v_new) + warp * 2048, 2048);
            ptx::bulk_store_commit();
        }
        ptx::wgmma_wait<1>();
        ptx::wgmma_pin(state);
        to_operand(state_operand, state);
        ptx::wgmma_wait<0>();
        ptx::wgmma_pin(out);
        __syncwarp();
        ptx::barrier_arrive_if(lane == 0, ptx::shared_address(&shared.stages[slot].empty));
        __syncwarp();

        const uint32_t warp_o = ptx::shared_address(shared.o[warp]);
#pragma unroll
        for (int t = 0; t < 8; t += 2) {
            const int i = 8 * (t + (lane >> 4)) + (lane & 7), piece = (lane >> 3) & 1;
            ptx::store_matrix_x4_transposed(warp_o + i * 32 + ((piece ^ ((i >> 2) & 1)) << 4), ptx::pack_bf16(out[4 * t], out[4 * t + 1]),
                                            ptx::pack_bf16(out[4 * t + 2], out[4 * t + 3]), ptx::pack_bf16(out[4 * t + 4], out[4 * t + 5]),
                                            ptx::pack_bf16(out[4 * t + 6], out[4 * t + 7]));
        }
        __syncwarp();
#pragma unroll
        for (int it = 0; it < 4; ++it) {
            const int i = it * 16 + (lane >> 1), piece = lane & 1;
            const uint4 values = *reinterpret_cast<const uint4*>(shared.o[warp] + i * 32 + ((piece ^ ((i >> 2) & 1)) << 4));
            if (i < chunk.rows) {
                const int64_t at = (static_cast<int64_t>(chunk.first_token + i) * arguments.num_heads + head) * kDim;
                *reinterpret_cast<uint4*>(arguments.o + at + half * kHalf + warp * 16 + piece * 8) = values;
            }
        }
        __syncwarp();
    }
    if (arguments.final_state) {
#pragma unroll
        for (int i = 0; i < 64; ++i) {
            const int k = (i >> 2) * 8 + (lane & 3) * 2 + (i & 1), v = v_row + ((i >> 1) & 1) * 8;
            arguments.final_state[state_offset + k * kDim + v] = state[i];
        }
    }
    if (Save) ptx::bulk_store_wait_read<0>();
}

template <bool Save>
__global__ void __launch_bounds__(kThreads, 1) scan(const __grid_constant__ ScanArguments arguments) {
    extern __shared__ __align__(1024) unsigned char raw_shared[];
    ScanShared& shared = *reinterpret_cast<ScanShared*>(raw_shared);
    const int half = blockIdx.x & 1;
    const int head = (blockIdx.x >> 1) % arguments.num_heads;
    const int document = (blockIdx.x >> 1) / arguments.num_heads;
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < kStages; ++slot) {
            ptx::barrier_init(ptx::shared_address(&shared.stages[slot].full), 1);
            ptx::barrier_init(ptx::shared_address(&shared.stages[slot].empty), kMathThreads / 32);
        }
        ptx::barrier_init_fence();
    }
    __syncthreads();
    // A shuffle tells the compiler that the role is the same across the warp.
    const int role = __shfl_sync(~0u, threadIdx.x / kMathThreads, 0);
    if (role == 0) {
        run_chunks<Save>(shared, arguments, document, head, half);
    } else if (threadIdx.x == kMathThreads) {
        const int first_chunk = arguments.first_chunk[document];
        const int64_t first_tile = static_cast<int64_t>(first_chunk) * arguments.num_heads + head;
        load_chunks(shared, arguments, first_tile, arguments.first_chunk[document + 1] - first_chunk, half);
    }
}

template <bool Save>
int launch(const ScanArguments* arguments, cudaStream_t stream) {
    const int64_t blocks = int64_t{2} * arguments->num_documents * arguments->num_heads;
    if (blocks == 0) return 0;
    const cudaError_t error = cudaFuncSetAttribute(scan<Save>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(ScanShared));
    if (error != cudaSuccess) return static_cast<int>(error);
    scan<Save><<<static_cast<unsigned>(blocks), kThreads, sizeof(ScanShared), stream>>>(*arguments);
    return static_cast<int>(cudaGetLastError());
}

}  // namespace
}  // namespace kda

// Called by kda/sm90_launch.py. Saves states and new values when their pointers are given. Returns a cudaError_t; never throws,
// synchronises or allocates.
extern "C" int sm90_kda_scan(const kda::ScanArguments* arguments, cudaStream_t stream) {
    return arguments->states ? kda::launch<true>(arguments, stream) : kda::launch<false>(arguments, stream);
}
