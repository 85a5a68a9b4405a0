// Everything of a chunk that doesn't need the state, one block per (chunk, head), all chunks in parallel.
//
//   raw q, k, g, beta -> norms, log-decay, cumulative decay
//                     -> score tiles A_kk, A_qk (16 x 16, one anchor per row tile)
//                     -> inverse of I + A_kk (16 x 16 by substitution in float32, then block doubling)
//                     -> -W, U (forward) or the inverse itself (backward), q e^G, k e^(G_last - G), A_qk, e^G_last
//
// Exponents. G is the cumulative log2-decay of the chunk and R_I the integer nearest to G just before tile I. A row of tile I carries
// 2^(G - R_I), a column 2^(R_I - G): with the bound of -5 both stay within 2^+-116. Between tiles I > J the columns of J are scaled by
// 2^(R_I - R_J), a power of two and therefore exact in bfloat16, applied as two factors so that neither flushes.

#include "include/prepare.cuh"

namespace kda {
namespace {

constexpr int kThreads = kPrepareThreads;

struct PrepareShared {
    static constexpr bool kKeepsGrown = true;
    unsigned char q[kTokenImageBytes];       // raw, then q 2^(G - R); at last U transposed
    unsigned char k[kTokenImageBytes];       // raw, then k 2^(G - R); then the inverse; at last -W
    unsigned char g[kTokenImageBytes];       // raw, then k 2^(R - G); then the inverse times beta
    unsigned char v[kTokenImageBytes];
    unsigned char k_grown[kTokenImageBytes]; // k 2^G
    unsigned char scores[kSquareImageBytes];
    __half a_off[kChunk * kInversePitch];    // A_kk below the diagonal tiles
    float a_diagonal[kNumTiles * kDiagonalPitch];
    float tile_total[kNumTiles][kDim];
    uint32_t between[6][2][kDim / 2];        // 2^(R_I - R_J) as two packed bfloat16 factors per channel pair
    float q_norm[kChunk];
    float k_norm[kChunk];
    float beta[kChunk];
};
static_assert(sizeof(PrepareShared) <= 113 * 1024, "two blocks per multiprocessor");
static_assert(kChunk * kInversePitch * 2 <= kTokenImageBytes, "the inverse replaces an operand");

template <bool Backward>
__global__ void __launch_bounds__(kThreads, 2) prepare(const __grid_constant__ PrepareArguments arguments) {
    extern __shared__ __align__(1024) unsigned char raw_shared[];
    PrepareShared& shared = *reinterpret_cast<PrepareShared*>(raw_shared);
    const int64_t tile = blockIdx.x;
    const int index = static_cast<int>(blockIdx.x / static_cast<unsigned>(arguments.num_heads));
    const int head = static_cast<int>(blockIdx.x) - index * arguments.num_heads;
    const Chunk chunk = arguments.chunks[index];

    load_tokens<kThreads>(shared.q, arguments.q, chunk, head, arguments.num_heads);
    load_tokens<kThreads>(shared.k, arguments.k, chunk, head, arguments.num_heads);
    load_tokens<kThreads>(shared.g, arguments.g, chunk, head, arguments.num_heads);
    ptx::copy_async_commit();
    if (!Backward) load_tokens<kThreads>(shared.v, arguments.v, chunk, head, arguments.num_heads);
    ptx::copy_async_commit();
    if (threadIdx.x < kChunk) shared.beta[threadIdx.x] = write_strength(arguments.beta, chunk, head, arguments.num_heads, threadIdx.x);
    for (int i = threadIdx.x; i < kSquareImageBytes / 16; i += kThreads) {
        reinterpret_cast<uint4*>(shared.scores)[i] = make_uint4(0, 0, 0, 0);
    }
    ptx::copy_async_wait<1>();
    __syncthreads();
    row_norms<kThreads>(shared.q, shared.k, shared.q_norm, shared.k_norm);
    scale_by_decay(shared, arguments, chunk, head, tile);
    __syncthreads();
    score_tiles(shared);
    ptx::fence_async_shared();
    __syncthreads();

    // The row and column operands of the scores are spent: their places take the inverse, and at last U and W.
    __half* inverse = reinterpret_cast<__half*>(shared.k);
    unsigned char* inverse_beta = shared.g;
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
    __syncthreads();
    if (warp < 4) join_strip<1>(shared, inverse, (warp >> 1) * 32 + 16, (warp >> 1) * 32, warp & 1);
    __syncthreads();
    if (warp < 4) join_strip<2>(shared, inverse, 32, 0, warp);
    __syncthreads();
    inverse_to_operand(shared, inverse, inverse_beta, Backward ? arguments.inverse + tile * kSquareImageBytes : nullptr);
    ptx::copy_async_wait<0>();
    ptx::fence_async_shared();
    __syncthreads();

    const int group = threadIdx.x >> 7;
    const Operand left(inverse_beta), grown(shared.k_grown + group * kPanelBytes), values(shared.v + group * kPanelBytes);
    float w[32], u[32];
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kChunk / 16; ++step) {
        ptx::wgmma_ss<0, 1>(w, left.along(step), grown.down(step), step > 0);
        if (!Backward) {
            ptx::wgmma_ss<1, 0>(u, values.down(step), left.along(step), step > 0);
        }
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(w);
    store_panel(shared.k + group * kPanelBytes, 0, 0, w, -1.f);
    if (!Backward) {
        ptx::wgmma_pin(u);
        store_panel(shared.q, group * kHalf, 0, u, 1.f);
    }
    ptx::fence_async_shared();
    __syncthreads();
    if (threadIdx.x == 0) {
        ptx::bulk_store(arguments.minus_w + tile * kTokenImageBytes, ptx::shared_address(shared.k), kTokenImageBytes);
        if (!Backward) {
            ptx::bulk_store(arguments.u_transposed + tile * kTokenImageBytes, ptx::shared_address(shared.q), kTokenImageBytes);
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
        cudaFuncSetAttribute(prepare<Backward>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(PrepareShared));
    if (error != cudaSuccess) return static_cast<int>(error);
    prepare<Backward><<<static_cast<unsigned>(tiles), kThreads, sizeof(PrepareShared), stream>>>(*arguments);
    return static_cast<int>(cudaGetLastError());
}

}  // namespace
}  // namespace kda

// Called by kda/sm90_launch.py. Returns a cudaError_t; never throws, synchronises or allocates.
extern "C" int sm90_kda_prepare_forward(const kda::PrepareArguments* arguments, cudaStream_t stream) {
    return kda::launch<false>(arguments, stream);
}
extern "C" int sm90_kda_prepare_backward(const kda::PrepareArguments* arguments, cudaStream_t stream) {
    return kda::launch<true>(arguments, stream);
}
