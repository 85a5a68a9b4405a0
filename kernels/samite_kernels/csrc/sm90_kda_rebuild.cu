// The factors of the backward once more, from the inputs and the inverse that the forward kept: -W, q e^G, k e^(G_last - G), e^G_last.
//
// No scores and no inversion, so neither tiles nor anchors: every exponent here is a sum of decays, never positive. One block per
// (chunk, head), bound by the bytes it moves. The other half of the story is in sm90_kda_prepare.cu.

#include "include/arguments.cuh"
#include "include/decay.cuh"
#include "include/registers.cuh"

namespace kda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 3;
constexpr int kMultiprocessorBytes = 228 * 1024, kBlockReserve = 1024;

struct RebuildShared {
    unsigned char q[kTokenImageBytes];
    unsigned char k[kTokenImageBytes];       // raw, then k e^G
    unsigned char g[kTokenImageBytes];       // raw, then -W
    unsigned char inverse[kSquareImageBytes];  // times beta of its column
    float totals[kNumTiles][kDim];
    float q_norm[kChunk];
    float k_norm[kChunk];
    float beta[kChunk];
};
static_assert(kBlocks * (sizeof(RebuildShared) + kBlockReserve) <= kMultiprocessorBytes, "three blocks per multiprocessor");

// The thread's quarter row of the inverse, two pieces of 16 bytes.
struct QuarterRow {
    uint32_t at[2];
    uint4 words[2];

    __device__ __forceinline__ explicit QuarterRow(const unsigned char* image) {
#pragma unroll
        for (int p = 0; p < 2; ++p) {
            at[p] = piece_offset(threadIdx.x >> 2, (threadIdx.x & 3) * 2 + p);
            words[p] = *reinterpret_cast<const uint4*>(image + at[p]);
        }
    }
    __device__ __forceinline__ void store_scaled(unsigned char* image, const float* beta) const {
#pragma unroll
        for (int p = 0; p < 2; ++p) {
            const float* strength = beta + (threadIdx.x & 3) * 16 + p * 8;
            const uint32_t plain[4] = {words[p].x, words[p].y, words[p].z, words[p].w};
            uint32_t scaled[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                scaled[i] = ptx::pack_bf16(ptx::low_bf16(plain[i]) * strength[2 * i], ptx::high_bf16(plain[i]) * strength[2 * i + 1]);
            }
            *reinterpret_cast<uint4*>(image + at[p]) = make_uint4(scaled[0], scaled[1], scaled[2], scaled[3]);
        }
    }
};

// Two channels of one 16-row tile per thread: k e^G in place, the other two to global memory.
__device__ __forceinline__ void scale_rows(RebuildShared& shared, const RebuildArguments& arguments, const float (&fall)[kTile][2], int pair,
                                           int row_tile, int64_t tile) {
    float before[2] = {0.f, 0.f}, total[2] = {0.f, 0.f};
#pragma unroll
    for (int t = 0; t < kNumTiles; ++t) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            if (t == row_tile) before[c] = total[c];
            total[c] += shared.totals[t][pair * 2 + c];
        }
    }
    if (row_tile == 0) {
        *reinterpret_cast<float2*>(&arguments.keep[tile * kDim + pair * 2]) = make_float2(ptx::exp2_fast(total[0]), ptx::exp2_fast(total[1]));
    }
    unsigned char* q_grown = arguments.q_grown + tile * kTokenImageBytes;
    unsigned char* k_kept = arguments.k_kept + tile * kTokenImageBytes;
#pragma unroll
    for (int r = 0; r < kTile; ++r) {
        const int row = row_tile * kTile + r;
        const uint32_t at = element_offset(row, pair * 2);
        const uint32_t q_raw = *reinterpret_cast<const uint32_t*>(shared.q + at);
        const uint32_t k_raw = *reinterpret_cast<const uint32_t*>(shared.k + at);
        const float q_norm = shared.q_norm[row] * arguments.scale, k_norm = shared.k_norm[row];
        float grown[2], down[2], rest[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            const float sum = before[c] + fall[r][c];
            const float k = (c ? ptx::high_bf16(k_raw) : ptx::low_bf16(k_raw)) * k_norm;
            grown[c] = ptx::exp2_fast(sum);
            down[c] = k * grown[c];
            rest[c] = k * ptx::exp2_fast(total[c] - sum);
            grown[c] *= (c ? ptx::high_bf16(q_raw) : ptx::low_bf16(q_raw)) * q_norm;
        }
        *reinterpret_cast<uint32_t*>(shared.k + at) = ptx::pack_bf16(down[0], down[1]);
        *reinterpret_cast<uint32_t*>(q_grown + at) = ptx::pack_bf16(grown[0], grown[1]);
        *reinterpret_cast<uint32_t*>(k_kept + at) = ptx::pack_bf16(rest[0], rest[1]);
    }
}

__global__ void __launch_bounds__(kThreads, kBlocks) rebuild(const __grid_constant__ RebuildArguments arguments) {
    extern __shared__ __align__(1024) unsigned char raw_shared[];
    RebuildShared& shared = *reinterpret_cast<RebuildShared*>(raw_shared);
    const int64_t tile = blockIdx.x;
    const int index = static_cast<int>(blockIdx.x / static_cast<unsigned>(arguments.num_heads));
    const int head = static_cast<int>(blockIdx.x) - index * arguments.num_heads;
    const Chunk chunk = arguments.chunks[index];
    const int pair = threadIdx.x & 63, row_tile = threadIdx.x >> 6;

    load_tokens<kThreads>(shared.q, arguments.q, chunk, head, arguments.num_heads);
    load_tokens<kThreads>(shared.k, arguments.k, chunk, head, arguments.num_heads);
    load_tokens<kThreads>(shared.g, arguments.g, chunk, head, arguments.num_heads);
    ptx::copy_async_commit();
    const QuarterRow inverse(arguments.inverse + tile * kSquareImageBytes);
    if (threadIdx.x < kChunk) shared.beta[threadIdx.x] = write_strength(arguments.beta, chunk, head, arguments.num_heads, threadIdx.x);
    ptx::copy_async_wait<0>();
    __syncthreads();
    inverse.store_scaled(shared.inverse, shared.beta);
    Silent silent;
    row_norms<kThreads>(shared.q, shared.k, shared.q_norm, shared.k_norm, silent);
    const Gate gate(arguments.a_log, arguments.dt_bias, arguments.lower_bound, head, pair);
    float fall[kTile][2];
    decay_within<kTile>(shared.g, gate, chunk.rows, row_tile, pair, fall, shared.totals, silent);
    __syncthreads();
    scale_rows(shared, arguments, fall, pair, row_tile, tile);
    ptx::fence_async_shared();
    __syncthreads();

    // A shuffle tells the compiler that the role is the same across the warp.
    const int group = __shfl_sync(~0u, threadIdx.x >> 7, 0);
    const Operand left(shared.inverse), grown(shared.k + group * kPanelBytes);
    float w[32];
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kChunk / 16; ++step) ptx::wgmma_ss<0, 1>(w, left.along(step), grown.down(step), step > 0);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(w);
    store_panel(shared.g + group * kPanelBytes, 0, 0, w, -1.f);
    ptx::fence_async_shared();
    __syncthreads();
    if (threadIdx.x == 0) {
        ptx::bulk_store(arguments.minus_w + tile * kTokenImageBytes, ptx::shared_address(shared.g), kTokenImageBytes);
        ptx::bulk_store_commit();
        ptx::bulk_store_wait_read<0>();
    }
}

}  // namespace
}  // namespace kda

// Called by kda/sm90_launch.py. Returns a cudaError_t; never throws, synchronises or allocates.
extern "C" int sm90_kda_rebuild(const kda::RebuildArguments* arguments, cudaStream_t stream) {
    using namespace kda;
    const int64_t tiles = static_cast<int64_t>(arguments->num_chunks) * arguments->num_heads;
    if (tiles == 0) return 0;
    const cudaError_t error = cudaFuncSetAttribute(rebuild, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(RebuildShared));
    if (error != cudaSuccess) return static_cast<int>(error);
    rebuild<<<static_cast<unsigned>(tiles), kThreads, sizeof(RebuildShared), stream>>>(*arguments);
    return static_cast<int>(cudaGetLastError());
}
