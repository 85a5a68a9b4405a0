// Everything of a chunk that doesn't need the state, one block per (chunk, head), all chunks in parallel.
//
//   raw q, k, g, beta -> norms, log-decay, cumulative decay
//                     -> score tiles A_kk, A_qk (16 x 16, one anchor per row tile)
//                     -> inverse of I + A_kk (16 x 16 by substitution in float32, then block doubling)
//                     -> -W, U, q e^G, k e^(G_last - G), A_qk, e^G_last; the inverse itself if the backward wants it
//
// Exponents. G is the cumulative log2-decay of the chunk and R_I the integer nearest to G just before tile I. A row of tile I carries
// 2^(G - R_I), a column 2^(R_I - G): with the bound of -5 both stay within 2^+-116. Between tiles I > J the columns of J are scaled by
// 2^(R_I - R_J), a power of two and therefore exact in bfloat16, applied as two factors so that neither flushes.

//
// Shared memory, 75 KiB so that three blocks fit on a multiprocessor:
//
//   q place   raw q -> q 2^(G - R) -> raw v, loaded while the inverse is made
//   k place   raw k -> k 2^(G - R) -> k 2^G, grown in place by powers of two, which bfloat16 does exactly -> at last U transposed
//   g place   raw g -> k 2^(R - G) -> the inverse -> at last -W
//   a_off     A_kk below the diagonal tiles -> the inverse times beta

#include "include/prepare.cuh"
#include "include/survey.cuh"

namespace kda {
namespace {

constexpr int kThreads = kPrepareThreads;
constexpr int kBlocks = 3;
constexpr int kMultiprocessorBytes = 228 * 1024, kBlockReserve = 1024;

struct PrepareShared {
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
static_assert(kBlocks * (sizeof(PrepareShared) + kBlockReserve) <= kMultiprocessorBytes, "three blocks per multiprocessor");
static_assert(offsetof(PrepareShared, a_off) % 1024 == 0, "an operand begins here");
static_assert(sizeof(PrepareShared::a_off) >= kSquareImageBytes && sizeof(PrepareShared::a_off) <= kTokenImageBytes, "each replaces the other");

// k 2^(G - R) to k 2^G, by the thread that made it.
__device__ __forceinline__ void grow_in_place(PrepareShared& shared, const Grow& grow) {
    const int pair = threadIdx.x & 63, row_tile = threadIdx.x >> 6;
#pragma unroll
    for (int r = 0; r < kTile; ++r) {
        uint32_t* word = reinterpret_cast<uint32_t*>(shared.k + element_offset(row_tile * kTile + r, pair * 2));
        *word = ptx::multiply_bf16x2(ptx::multiply_bf16x2(*word, grow.first), grow.second);
    }
}

// Who counts the decay signals, if anyone.
enum Counting : int { kNothing, kBeside, kIdleWarps };

template <int Count>
__global__ void __launch_bounds__(kThreads, kBlocks) prepare(const __grid_constant__ PrepareArguments arguments) {
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
    std::conditional_t<Count == kBeside, Tally, Silent> tally(arguments, head);
    if (threadIdx.x < kChunk) {
        const float beta = write_strength(arguments.beta, chunk, head, arguments.num_heads, threadIdx.x);
        shared.beta[threadIdx.x] = beta;
        if constexpr (Count == kBeside) {
            if (threadIdx.x < chunk.rows) tally.see_beta(beta);
        }
    }
    for (int i = threadIdx.x; i < kSquareImageBytes / 16; i += kThreads) {
        reinterpret_cast<uint4*>(shared.scores)[i] = make_uint4(0, 0, 0, 0);
    }
    ptx::copy_async_wait<0>();
    __syncthreads();
    row_norms<kThreads>(shared.q, shared.k, shared.q_norm, shared.k_norm, tally);
    const Grow grow = scale_and_count(shared, arguments, chunk, head, tile, tally);
    __syncthreads();
    score_tiles(shared);
    ptx::fence_async_shared();
    __syncthreads();

    load_tokens<kThreads>(shared.q, arguments.v, chunk, head, arguments.num_heads);
    ptx::copy_async_commit();
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
    if (warp < 4) {
        join_strip<1>(shared, inverse, (warp >> 1) * 32 + 16, (warp >> 1) * 32, warp & 1);
    } else if constexpr (Count == kIdleWarps) {
        survey_chunk(shared, arguments, chunk, head, threadIdx.x - kSurveyThreads);
    }
    __syncthreads();
    if (warp < 4) {
        join_strip<2>(shared, inverse, 32, 0, warp);
    } else if constexpr (Count == kIdleWarps) {
        if ((chunk.place + head) % kSurveyElementsEvery == 0) survey_elements(arguments, chunk, head, tile, threadIdx.x - kSurveyThreads);
    }
    __syncthreads();
    inverse_to_operand(shared, inverse, inverse_beta, arguments.inverse ? arguments.inverse + tile * kSquareImageBytes : nullptr);
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
    {
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
        ptx::bulk_store(arguments.u_transposed + tile * kTokenImageBytes, ptx::shared_address(shared.k), kTokenImageBytes);
        ptx::bulk_store_commit();
        ptx::bulk_store_wait_read<0>();
    }
}

template <int Count>
int launch(const PrepareArguments* arguments, cudaStream_t stream) {
    const int64_t tiles = static_cast<int64_t>(arguments->num_chunks) * arguments->num_heads;
    if (tiles == 0) return 0;
    const cudaError_t error =
        cudaFuncSetAttribute(prepare<Count>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(PrepareShared));
    if (error != cudaSuccess) return static_cast<int>(error);
    prepare<Count><<<static_cast<unsigned>(tiles), kThreads, sizeof(PrepareShared), stream>>>(*arguments);
    return static_cast<int>(cudaGetLastError());
}

}  // namespace
}  // namespace kda

// Called by kda/sm90_launch.py. Returns a cudaError_t; never throws, synchronises or allocates.
extern "C" int sm90_kda_prepare(const kda::PrepareArguments* arguments, cudaStream_t stream) {
    using namespace kda;
    if (!arguments->counts) return launch<kNothing>(arguments, stream);
    return arguments->idle_count ? launch<kIdleWarps>(arguments, stream) : launch<kBeside>(arguments, stream);
}
