// The forward scan: passes the state through the chunks of a document and writes the outputs, one block per (document, head, half of V).
//
//   chain     Vn' = U' + S' (-W)'        S' = e^G_last S' + Vn' kt      the first warpgroup, see chain.cuh
//   output    O' = S' (s q e^G)' + Vn' A_qk'         the second warpgroup, one chunk behind, from bfloat16 copies of S' and Vn'
//   load      one thread streams the factors of both through two rings of bulk copies
//
// The copies that the output warpgroup reads are tile images: bulk copies save them for the backward. With few chains the device is mostly
// idle and only the chain's own speed counts: without `o`, the second warpgroup just saves, and sm90_kda_output.cu makes the outputs.

#include "include/arguments.cuh"
#include "include/chain.cuh"

namespace kda {
namespace {

constexpr int kThreads = 3 * kGroup;
struct OutputStage {
    unsigned char q_grown[kTokenImageBytes];
    unsigned char scores[kSquareImageBytes];
};
struct Copies {
    unsigned char state[2 * kPanelBytes];
    unsigned char v_new[kHalfImageBytes];
};
constexpr int kChainStages = 3;
constexpr int kOutputStages = 2;
constexpr uint32_t kOutputBytes = kTokenImageBytes + kSquareImageBytes;
static_assert(sizeof(OutputStage) % 1024 == 0 && sizeof(Copies) % 1024 == 0);

struct ScanShared {
    ChainStage chain[kChainStages];
    OutputStage output[kOutputStages];
    Copies copies[2];
    unsigned char o[4][kChunk * 32];  // per warp: 64 tokens, 16 values
};
static_assert(sizeof(ScanShared) <= 232448, "227 KiB a block");

// The barriers of the output ring and of the copies live in the slack of the first chain stage.
__device__ __forceinline__ uint32_t output_full(ScanShared& shared, int slot) { return ptx::shared_address(&shared.chain[0].spare[slot]); }
__device__ __forceinline__ uint32_t output_empty(ScanShared& shared, int slot) { return ptx::shared_address(&shared.chain[0].spare[2 + slot]); }
__device__ __forceinline__ uint32_t copies_full(ScanShared& shared, int slot) { return ptx::shared_address(&shared.chain[0].spare[4 + slot]); }
__device__ __forceinline__ uint32_t copies_empty(ScanShared& shared, int slot) { return ptx::shared_address(&shared.chain[0].spare[6 + slot]); }

__device__ __forceinline__ void load_chunks(ScanShared& shared, const ScanArguments& arguments, int64_t first_tile, int num_chunks, int half) {
    for (int n = 0; n < num_chunks; ++n) {
        const int64_t tile = first_tile + static_cast<int64_t>(n) * arguments.num_heads;
        ChainStage& stage = shared.chain[n % kChainStages];
        ptx::barrier_wait(ptx::shared_address(&stage.empty), ((n / kChainStages) & 1) ^ 1);
        load_stage(stage, arguments, tile, half);

        if (!arguments.o) continue;
        OutputStage& output = shared.output[n % kOutputStages];
        const uint32_t full = output_full(shared, n % kOutputStages);
        ptx::barrier_wait(output_empty(shared, n % kOutputStages), ((n / kOutputStages) & 1) ^ 1);
        ptx::barrier_expect_bytes(full, kOutputBytes);
        ptx::bulk_load(ptx::shared_address(output.q_grown), arguments.q_grown + tile * kTokenImageBytes, kTokenImageBytes, full);
        ptx::bulk_load(ptx::shared_address(output.scores), arguments.scores + tile * kSquareImageBytes, kSquareImageBytes, full);
    }
}

__device__ __forceinline__ void run_chain(ScanShared& shared, const ScanArguments& arguments, int num_chunks, int64_t state_offset, int half) {
    float state[64];
#pragma unroll
    for (int i = 0; i < 64; ++i) state[i] = 0.f;
    if (arguments.initial_state) {
#pragma unroll
        for (int i = 0; i < 64; ++i) state[i] = arguments.initial_state[state_offset + first_element(half) + further_element(i)];
    }
    for (int n = 0; n < num_chunks; ++n) {
        const ChainStage& stage = shared.chain[n % kChainStages];
        Copies& copies = shared.copies[n & 1];
        const Operand w(stage.minus_w), k(stage.k_kept);
        uint32_t state_operand[32];
        to_operand(state_operand, state);
        ptx::barrier_wait(ptx::shared_address(&stage.full), (n / kChainStages) & 1);
        __syncwarp();  // the compiler serialises products that it finds on a divergent path

        float v_new[32];
        start_new_values(v_new, state_operand, w);
        ptx::barrier_wait(copies_empty(shared, n & 1), ((n >> 1) & 1) ^ 1);
        __syncwarp();
        store_rows<8>(copies.state, state_operand);
        uint32_t u[16], v_operand[16];
        read_values(u, stage);
        finish_new_values(v_operand, v_new, u);
        start_next_state(state, v_operand, stage, k);
        store_rows<4>(copies.v_new, v_operand);
        ptx::fence_async_shared();
        ptx::barrier_arrive(copies_full(shared, n & 1));
        finish_next_state(state, stage);
    }
    if (arguments.final_state) {
#pragma unroll
        for (int i = 0; i < 64; ++i) arguments.final_state[state_offset + first_element(half) + further_element(i)] = state[i];
    }
}

// One chunk's outputs of this warp, 16 values of 64 tokens as packed accumulators, through its own corner of shared memory.
__device__ __forceinline__ void write_chunk(unsigned char* warp_o, const uint32_t (&packed)[16], __nv_bfloat16* o, int64_t row_stride, int rows) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int t = 0; t < 8; t += 2) {
        const int i = 8 * (t + (lane >> 4)) + (lane & 7), piece = (lane >> 3) & 1;
        ptx::store_matrix_x4_transposed(ptx::shared_address(warp_o) + i * 32 + ((piece ^ ((i >> 2) & 1)) << 4), packed[2 * t],
                                        packed[2 * t + 1], packed[2 * t + 2], packed[2 * t + 3]);
    }
    __syncwarp();
#pragma unroll
    for (int it = 0; it < 4; ++it) {
        const int i = it * 16 + (lane >> 1), piece = lane & 1;
        const uint4 values = *reinterpret_cast<const uint4*>(warp_o + i * 32 + ((piece ^ ((i >> 2) & 1)) << 4));
        if (i < rows) *reinterpret_cast<uint4*>(o + i * row_stride + piece * 8) = values;
    }
    __syncwarp();
}

// Each warp saves its 16 rows of a chunk's copies.
__device__ __forceinline__ void save_copies(const Copies& copies, const ScanArguments& arguments, int64_t tile, int half) {
    const int warp = (threadIdx.x >> 5) & 3;
    const bool first_lane = (threadIdx.x & 31) == 0;
    unsigned char* states = arguments.states + tile * kStateImageBytes + half * 2 * kPanelBytes + warp * 2048;
    const uint32_t from = ptx::shared_address(copies.state) + warp * 2048;
    ptx::bulk_store_if(first_lane, states, from, 2048);
    ptx::bulk_store_if(first_lane, states + kPanelBytes, from + kPanelBytes, 2048);
    ptx::bulk_store_if(first_lane, arguments.v_new + tile * kTokenImageBytes + half * kHalfImageBytes + warp * 2048,
                       ptx::shared_address(copies.v_new) + warp * 2048, 2048);
    ptx::bulk_store_commit();
}

__device__ __forceinline__ void save_all(ScanShared& shared, const ScanArguments& arguments, int first_chunk, int num_chunks, int head, int half) {
    for (int n = 0; n < num_chunks; ++n) {
        ptx::barrier_wait(copies_full(shared, n & 1), (n >> 1) & 1);
        __syncwarp();
        save_copies(shared.copies[n & 1], arguments, (static_cast<int64_t>(first_chunk) + n) * arguments.num_heads + head, half);
        ptx::bulk_store_wait_read<0>();
        __syncwarp();
        ptx::barrier_arrive(copies_empty(shared, n & 1));
    }
}

template <bool Save>
__device__ __forceinline__ void write_outputs(ScanShared& shared, const ScanArguments& arguments, int first_chunk, int num_chunks, int head,
                                              int half) {
    const int warp = (threadIdx.x >> 5) & 3;
    const int64_t row_stride = static_cast<int64_t>(arguments.num_heads) * kDim;
    __nv_bfloat16* heads_o = arguments.o + static_cast<int64_t>(head) * kDim + half * kHalf + warp * 16;
    uint32_t packed[16];
    Chunk before{};
    for (int n = 0; n < num_chunks; ++n) {
        const OutputStage& stage = shared.output[n % kOutputStages];
        const Copies& copies = shared.copies[n & 1];
        const Chunk chunk = arguments.chunks[first_chunk + n];
        const int64_t tile = (static_cast<int64_t>(first_chunk) + n) * arguments.num_heads + head;
        const Operand state(copies.state), v_new(copies.v_new), q(stage.q_grown), scores(stage.scores);
        ptx::barrier_wait(output_full(shared, n % kOutputStages), (n / kOutputStages) & 1);
        ptx::barrier_wait(copies_full(shared, n & 1), (n >> 1) & 1);
        __syncwarp();

        float out[32];
        ptx::wgmma_fence();
#pragma unroll
        for (int s = 0; s < 8; ++s) ptx::wgmma_ss<0, 0>(out, state.along(s), q.along(s), s > 0);
#pragma unroll
        for (int s = 0; s < 4; ++s) ptx::wgmma_ss<0, 0>(out, v_new.along(s), scores.along(s));
        ptx::wgmma_commit();
        if (Save) save_copies(copies, arguments, tile, half);
        // The outputs of the chunk before, while these are in flight. Packed: accumulators must not be touched now.
        write_chunk(shared.o[warp], packed, heads_o + before.first_token * row_stride, row_stride, before.rows);
        if (Save) ptx::bulk_store_wait_read<0>();
        ptx::wgmma_wait<0>();
        ptx::wgmma_pin(out);
        __syncwarp();
        ptx::barrier_arrive(copies_empty(shared, n & 1));
        ptx::barrier_arrive(output_empty(shared, n % kOutputStages));
#pragma unroll
        for (int i = 0; i < 16; ++i) packed[i] = ptx::pack_bf16(out[2 * i], out[2 * i + 1]);
        before = chunk;
    }
    write_chunk(shared.o[warp], packed, heads_o + before.first_token * row_stride, row_stride, before.rows);
}

template <bool Save>
__global__ void __launch_bounds__(kThreads, 1) scan(const __grid_constant__ ScanArguments arguments) {
    extern __shared__ __align__(1024) unsigned char raw_shared[];
    ScanShared& shared = *reinterpret_cast<ScanShared*>(raw_shared);
    const int half = blockIdx.x & 1;
    const int head = (blockIdx.x >> 1) % arguments.num_heads;
    const int document = (blockIdx.x >> 1) / arguments.num_heads;
    const int first_chunk = arguments.first_chunk[document];
    const int num_chunks = arguments.first_chunk[document + 1] - first_chunk;
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < kChainStages; ++slot) {
            ptx::barrier_init(ptx::shared_address(&shared.chain[slot].full), 1);
            ptx::barrier_init(ptx::shared_address(&shared.chain[slot].empty), kGroup);
        }
        for (int slot = 0; slot < 2; ++slot) {
            ptx::barrier_init(output_full(shared, slot), 1);
            ptx::barrier_init(output_empty(shared, slot), kGroup);
            ptx::barrier_init(copies_full(shared, slot), kGroup);
            ptx::barrier_init(copies_empty(shared, slot), kGroup);
        }
        ptx::barrier_init_fence();
    }
    __syncthreads();
    // A shuffle tells the compiler that the role is the same across the warp.
    const int role = __shfl_sync(~0u, threadIdx.x / kGroup, 0);
    if (role == 0) {
        ptx::registers_up_to<240>();
        const int64_t state_offset = (static_cast<int64_t>(document) * arguments.num_heads + head) * kDim * kDim;
        run_chain(shared, arguments, num_chunks, state_offset, half);
    } else if (role == 1) {
        ptx::registers_down_to<152>();
        if (Save && !arguments.o) {
            save_all(shared, arguments, first_chunk, num_chunks, head, half);
        } else {
            write_outputs<Save>(shared, arguments, first_chunk, num_chunks, head, half);
        }
    } else {
        ptx::registers_down_to<40>();
        if (threadIdx.x == 2 * kGroup) {
            load_chunks(shared, arguments, static_cast<int64_t>(first_chunk) * arguments.num_heads + head, num_chunks, half);
        }
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

// Called by kda/sm90_schedule.py. Saves states and new values when their pointers are given. Returns a cudaError_t; never throws,
// synchronises or allocates.
extern "C" int sm90_kda_scan(const kda::ScanArguments* arguments, cudaStream_t stream) {
    return arguments->states ? kda::launch<true>(arguments, stream) : kda::launch<false>(arguments, stream);
}
