// The prepare kernel in 75 KiB of shared memory, so that three blocks fit on a multiprocessor instead of two: the same factors as
// sm90_kda_prepare.cu, by the same phases (include/prepare.cuh), in a tighter layout.
//
//   q place   raw q -> q 2^(G - R) -> raw v, loaded while the inverse is made
//   k place   raw k -> k 2^(G - R) -> k 2^G, grown in place by powers of two, which bfloat16 does exactly -> at last U transposed
//   g place   raw g -> k 2^(R - G) -> the inverse -> at last -W
//   a_off     A_kk below the diagonal tiles -> the inverse times beta
//
// Chosen over the other by SAMITE_KERNELS_KDA_PREPARE=slim. Who calls it: kda/sm90_launch.py.

#include "include/prepare.cuh"

namespace kda {
namespace {

constexpr int kThreads = kPrepareThreads;
constexpr int kBlocks = 3;
constexpr int kMultiprocessorBytes = 228 * 1024, kBlockReserve = 1024;

struct SlimShared {
    static constexpr bool kKeepsGrown = false;
    unsigned char q[kTokenImageBytes];
    unsigned char k[kTokenImageBytes];
    unsigned char g[kTokenImageBytes];
    unsigned char scores[kSquareImageBytes];
    __half a_off[kChunk * kInversePitch];
    float a_diagonal[kNumTiles * kDiagonalPitch];
    float tile_total[kNumTiles][kDim];
    uint32_t between[6][2][kDim / 2];
    float q_norm[kChunk];
    float k_norm[kChunk];
    float beta[kChunk];
};
static_assert(kBlocks * (sizeof(SlimShared) + kBlockReserve) <= kMultiprocessorBytes, "three blocks per multiprocessor");
static_assert(offsetof(SlimShared, a_off) % 1024 == 0, "an operand begins here");
static_assert(sizeof(SlimShared::a_off) >= kSquareImageBytes && sizeof(SlimShared::a_off) <= kTokenImageBytes, "each replaces the other");

// k 2^(G - R) to k 2^G, by the thread that made it.
__device__ __forceinline__ void grow_in_place(SlimShared& shared, const Grow& grow) {
    const int pair = threadIdx.x & 63, row_tile = threadIdx.x >> 6;
#pragma unroll
    for (int r = 0; r < kTile; ++r) {
        uint32_t* word = reinterpret_cast<uint32_t*>(shared.k + element_offset(row_tile * kTile + r, pair * 2));
        *word = ptx::multiply_bf16x2(ptx::multiply_bf16x2(*word, grow.first), grow.second);
    }
}

template <bool Backward>
__global__ void __launch_bounds__(kThreads, kBlocks) prepare_slim(const __grid_constant__ PrepareArguments arguments) {
    extern __shared__ __align__(1024) unsigned char raw_shared[];
    SlimShared& shared = *reinterpret_cast<SlimShared*>(raw_shared);
    const int64_t tile = blockIdx.x;
    const int index = static_cast<int>(blockIdx.x / static_cast<unsigned>(arguments.num_heads));
    const int head = static_cast<int>(blockIdx.x) - index * arguments.num_heads;
    const Chunk chunk = arguments.chunks[index];

    load_tokens<kThreads>(shared.q, arguments.q, chunk, head, arguments.num_heads);
    load_tokens<kThreads>(shared.k, arguments.k, chunk, head, arguments.num_heads);
    load_tokens<kThreads>(shared.g, arguments.g, chunk, head, arguments.num_heads);
    ptx::copy_async_commit();
    if (threadIdx.x < kChunk) shared.beta[threadIdx.x] = write_strength(arguments.beta, chunk, head, arguments.num_heads, threadIdx.x);
    for (int i = threadIdx.x; i < kSquareImageBytes / 16; i += kThreads) {
        reinterpret_cast<uint4*>(shared.scores)[i] = make_uint4(0, 0, 0, 0);
    }
    ptx::copy_async_wait<0>();
    __syncthreads();
    row_norms<kThreads>(shared.q, shared.k, shared.q_norm, shared.k_norm);
    const Grow grow = scale_by_decay(shared, arguments, chunk, head, tile);
    __syncthreads();
    score_tiles(shared);
    ptx::fence_async_shared();
    __syncthreads();

    if (!Backward) {
        load_tokens<kThreads>(shared.q, arguments.v, chunk, head, arguments.num_heads);
        ptx::copy_async_commit();
    }
    __half* inverse = reinterpret_cast<__half*>(shared.g);
    unsigned char* inverse_beta = reinterpret_cast<unsigned char*>(shared.a_off);
    const int warp = threadIdx.x >> 5;
    if (threadIdx.x == 0) {
        ptx::bulk_store(arguments.scores + tile * kSquareImageBytes, ptx::shared_address(shared.scores), kSquareImageBytes);
        ptx::bulk_store_commit();
    }
    if (warp < 2) {
        invert_diagonal(shared, inverse);
    } else {
        clear_above_diagonal(inverse, threadIdx.x - 64);
    }
    grow_in_place(shared, grow);
    __syncthreads();
    if (warp < 4) join_strip<1>(shared, inverse, (warp >> 1) * 32 + 16, (warp >> 1) * 32, warp & 1);
    __syncthreads();
    if (warp < 4) join_strip<2>(shared, inverse, 32, 0, warp);
    __syncthreads();
    inverse_to_operand(shared, inverse, inverse_beta, Backward ? arguments.inverse + tile * kSquareImageBytes : nullptr);
    ptx::copy_async_wait<0>();
    ptx::fence_async_shared();
    __syncthreads();

    // One product after the other: both sets of accumulators at once would not fit into the registers of three blocks.
    const int group = threadIdx.x >> 7;
    const Operand left(inverse_beta), grown(shared.k + group * kPanelBytes), values(shared.q + group * kPanelBytes);
    {
        float w[32];
        ptx::wgmma_fence();
#pragma unroll
        for (int step = 0; step < kChunk / 16; ++step) ptx::wgmma_ss<0, 1>(w, left.along(step), grown.down(step), step > 0);
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
        ptx::wgmma_pin(w);
        store_panel(shared.g + group * kPanelBytes, 0, 0, w, -1.f);
    }
    if (!Backward) {
        float u[32];
        ptx::wgmma_fence();
#pragma unroll
        for (int step = 0; step < kChunk / 16; ++step) ptx::wgmma_ss<1, 0>(u, values.down(step), left.along(step), step > 0);
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
        ptx::wgmma_pin(u);
        __syncthreads();  // every warp is done with k 2^G, whose place U takes
        store_panel(shared.k, group * kHalf, 0, u, 1.f);
    }
    ptx::fence_async_shared();
    __syncthreads();
    if (threadIdx.x == 0) {
        ptx::bulk_store(arguments.minus_w + tile * kTokenImageBytes, ptx::shared_address(shared.g), kTokenImageBytes);
        if (!Backward) {
            ptx::bulk_store(arguments.u_transposed + tile * kTokenImageBytes, ptx::shared_address(shared.k), kTokenImageBytes);
        }
        ptx::bulk_store_commit();
        ptx::bulk_store_wait_read<0>();
    }
}

template <bool Backward>
int launch(const PrepareArguments* arguments, cudaStream_t stream) {
    const int64_t tiles = static_cast<int64_t>(arguments->num_chunks) * arguments->num_heads;
    if (tiles == 0) return 0;
    const cudaError_t error =
        cudaFuncSetAttribute(prepare_slim<Backward>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(SlimShared));
    if (error != cudaSuccess) return static_cast<int>(error);
    prepare_slim<Backward><<<static_cast<unsigned>(tiles), kThreads, sizeof(SlimShared), stream>>>(*arguments);
    return static_cast<int>(cudaGetLastError());
}

}  // namespace
}  // namespace kda

// Return a cudaError_t; never throw, synchronise or allocate.
extern "C" int sm90_kda_prepare_slim_forward(const kda::PrepareArguments* arguments, cudaStream_t stream) {
    return kda::launch<false>(arguments, stream);
}
extern "C" int sm90_kda_prepare_slim_backward(const kda::PrepareArguments* arguments, cudaStream_t stream) {
    return kda::launch<true>(arguments, stream);
}
