// All gradients of a chunk, one block per (chunk, head), all chunks in parallel: one read of every operand, one write of every gradient.
//
//   products   dQ = dO S'  dW = -dVn S'  dKt = Vn dS'  dA_qk = tril(dO Vn')  dVn V'                        tensor cores
//   operands   q, k by the decay as in the forward (decay.cuh)                                             ordinary arithmetic
//   inverse    dT = (dVn V') beta + dW (beta k e^G)'   dA = -stril(T' dT T')   [warpgroups 2, 3]
//              tu = T' dVn -> dV, part of dbeta        [warpgroups 0, 1]       tw = T' dW    [all]
//   tiles      rows: dA_qk k, dA k     columns: dA_qk' q, dA' beta k           16 x 16 tiles, anchored as in the forward
//   gate       dG = q dq + k dk_rows - k dk_columns - k dkt, summed from the end; sigmoid, norms and sums over tokens
//
// A warp owns 16 rows and a warpgroup 32 channels of every [64, 128] result, so that everything of one element meets in one thread.
// dG is formed from the very bfloat16 operands that the tile products used: rows and columns then cancel as they do on paper.

#include "include/gradient_finish.cuh"
#include "include/gradient_tiles.cuh"

namespace kda {
namespace {

// dT for 32 of its columns. `d` holds dVn V' on entry.
__device__ __forceinline__ void differentiate_solution(GradientShared& shared, int half, float (&d)[16]) {
    const int lane = threadIdx.x & 31;
    const Operand d_w(shared.d_w), k(shared.k_beta_grown + half * 32 * 128);
#pragma unroll
    for (int i = 0; i < 16; ++i) d[i] *= shared.beta[half * 32 + (i >> 2) * 8 + (lane & 3) * 2 + (i & 1)];
    ptx::wgmma_pin(d);
    ptx::wgmma_fence();
#pragma unroll
    for (int s = 0; s < 8; ++s) ptx::wgmma_ss<0, 0>(d, d_w.along(s), k.along(s));
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(d);
    store_panel(shared.d_inverse, 0, half * 4, d, 1.f);
}

// dA = -stril(T' dT T') for 32 of its columns.
__device__ __forceinline__ void differentiate_inverse(GradientShared& shared, int half) {
    const Operand inverse(shared.inverse), inverse_rows(shared.inverse + half * 32 * 128), d_inverse(shared.d_inverse);
    float d[32];
    ptx::wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; ++s) {
        ptx::wgmma_ss<1, 1>(d, inverse.down(s), d_inverse.down(s), s > 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(d);
    uint32_t x[16];
    to_operand(x, d);
    float d_a[16];
    ptx::wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; ++s) {
        ptx::wgmma_rs<0>(d_a, x[4 * s], x[4 * s + 1], x[4 * s + 2], x[4 * s + 3], inverse_rows.along(s), s > 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(d_a);
    keep_lower(d_a, half * 32, false);
    store_panel(shared.d_a_kk, 0, half * 4, d_a, -1.f);
}

// dV for 64 of its channels, and the part of dbeta that comes with it.
__device__ __forceinline__ void differentiate_values(GradientShared& shared, int half) {
    const int lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) & 3;
    const Operand inverse(shared.inverse), d_v_new(shared.d_v_new + half * kPanelBytes);
    const float beta[2] = {shared.beta[warp * 16 + (lane >> 2)], shared.beta[warp * 16 + (lane >> 2) + 8]};
    float sums[2] = {0.f, 0.f};
    float d[32];
    ptx::wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; ++s) {
        ptx::wgmma_ss<1, 0>(d, inverse.down(s), d_v_new.along(s), s > 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(d);
#pragma unroll
    for (int i = 0; i < 32; i += 2) {
        const int upper = (i >> 1) & 1, row = warp * 16 + (lane >> 2) + upper * 8;
        const uint32_t v = *reinterpret_cast<const uint32_t*>(shared.v + half * kPanelBytes + piece_offset(row, i >> 2) + (lane & 3) * 4);
        sums[upper] += d[i] * ptx::low_bf16(v) + d[i + 1] * ptx::high_bf16(v);
        d[i] *= beta[upper];
        d[i + 1] *= beta[upper];
    }
    store_panel(shared.d_o + half * kPanelBytes, 0, 0, d, 1.f);
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
        sums[upper] += __shfl_xor_sync(~0u, sums[upper], 1);
        sums[upper] += __shfl_xor_sync(~0u, sums[upper], 2);
        if ((lane & 3) == 0) shared.d_beta_v[half][warp * 16 + (lane >> 2) + upper * 8] = sums[upper];
    }
}

__global__ void __launch_bounds__(kGradientThreads, 1) gradient(const __grid_constant__ GradientArguments arguments) {
    extern __shared__ __align__(1024) unsigned char raw_shared[];
    GradientShared& shared = *reinterpret_cast<GradientShared*>(raw_shared);
    const int64_t tile = blockIdx.x;
    const int index = static_cast<int>(blockIdx.x / static_cast<unsigned>(arguments.num_heads));
    const int head = static_cast<int>(blockIdx.x) - index * arguments.num_heads;
    const Chunk chunk = arguments.chunks[index];
    const int pair = threadIdx.x & 63, row_group = threadIdx.x >> 6;
    // A shuffle tells the compiler that the role is the same across the warp.
    const int group = __shfl_sync(~0u, threadIdx.x >> 7, 0);
    const int warp = __shfl_sync(~0u, (threadIdx.x >> 5) & 3, 0);

    start_loads(shared, arguments, chunk, head, tile);
    if (threadIdx.x < kChunk) shared.beta[threadIdx.x] = write_strength(arguments.beta, chunk, head, arguments.num_heads, threadIdx.x);
    ptx::copy_async_wait<0>();
    ptx::fence_async_shared();
    __syncthreads();
    ptx::barrier_wait(ptx::shared_address(&shared.landed), 0);
    __syncwarp();

    const uint32_t quarter = (group >> 1) * kPanelBytes + (group & 1) * 64;  // this warpgroup's 32 channels in a row of an image
    const Operand states(shared.states + quarter), d_states(shared.d_states + quarter), d_o(shared.d_o);
    const Operand v_new(shared.v_new), d_v_new(shared.d_v_new);
    float d_q[16], d_w[16], d_kept[16], square[16];
    ptx::wgmma_fence();
#pragma unroll
    for (int s = 0; s < 8; ++s) {
        const uint32_t half = (s >> 2) * 2 * kPanelBytes;
        ptx::wgmma_ss<0, 1>(d_q, d_o.along(s), states.plus(half).down(s & 3), s > 0);
        ptx::wgmma_ss<1, 1>(d_w, d_v_new.down(s), states.plus(half).down(s & 3), s > 0);
        ptx::wgmma_ss<1, 1>(d_kept, v_new.down(s), d_states.plus(half).down(s & 3), s > 0);
    }
    if (group < 2) {
        const Operand columns(shared.v_new + group * 64);
#pragma unroll
        for (int s = 0; s < 8; ++s) ptx::wgmma_ss<0, 1>(square, d_o.along(s), columns.down(s), s > 0);
    } else {
        const Operand rows(shared.v + (group - 2) * 32 * 128);
#pragma unroll
        for (int s = 0; s < 8; ++s) ptx::wgmma_ss<1, 0>(square, d_v_new.down(s), rows.along(s), s > 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(d_q);
    ptx::wgmma_pin(d_w);
    ptx::wgmma_pin(d_kept);
    ptx::wgmma_pin(square);

    Silent silent;
    row_norms<kGradientThreads>(shared.q_rows, shared.k_rows, shared.q_norm, shared.k_norm, silent);
    multiply_states(shared);
    const Gate gate(arguments.a_log, arguments.dt_bias, arguments.lower_bound, head, pair);
    float fall[kRows][2];
    decay_within<kRows>(shared.k_columns, gate, chunk.rows, row_group, pair, fall, shared.totals, silent);
    __syncthreads();
    const PairAnchors<kRows> at_tile(shared.totals, row_group, pair);
    if (row_group == 0) {
#pragma unroll
        for (int c = 0; c < 2; ++c) shared.state_product[pair * 2 + c] *= ptx::exp2_fast(at_tile.total[c]);
    }
    scale_by_decay(shared, at_tile, fall, row_group, pair, arguments.scale);
    store_panel(shared.d_w + (group >> 1) * kPanelBytes, 0, (group & 1) * 4, d_w, -1.f);
    ptx::fence_async_shared();
    __syncthreads();

    float d_k[16];
    const Operand inverse(shared.inverse), d_w_columns(shared.d_w + quarter);
    ptx::wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; ++s) {
        ptx::wgmma_ss<1, 1>(d_k, inverse.down(s), d_w_columns.down(s), s > 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(d_k);
    if (group < 2) {
        keep_lower(square, group * 32, true);
        store_panel(shared.d_scores, 0, group * 4, square, 1.f);
    } else {
        differentiate_solution(shared, group - 2, square);
        ptx::fence_async_shared();
    }
    __syncthreads();
    if (group < 2) {
        differentiate_values(shared, group);
    } else {
        differentiate_inverse(shared, group - 2);
    }
    __syncthreads();
    // Raw inputs once more, from L2, to where the spent operands were.
    load_tokens<kGradientThreads>(shared.q_raw, arguments.q, chunk, head, arguments.num_heads);
    load_tokens<kGradientThreads>(shared.k_raw, arguments.k, chunk, head, arguments.num_heads);
    load_tokens<kGradientThreads>(shared.d_v_new, arguments.g, chunk, head, arguments.num_heads);
    ptx::copy_async_commit();

    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        const float grow = shared.grow[warp][group * kGroupChannels + (i >> 2) * 8 + (lane & 3) * 2 + (i & 1)];
        d_q[i] *= grow;
        d_k[i] *= grow;
    }
    row_products(shared, warp, group, d_q, d_k);
    float d_column[16];
    column_products(shared, warp, group, d_column);
    ptx::copy_async_wait<0>();
    __syncthreads();
    finish(shared, arguments, chunk, head, tile, group, d_q, d_k, d_column, d_kept);
}

}  // namespace
}  // namespace kda

// Called by kda/sm90_launch.py. Returns a cudaError_t; never throws, synchronises or allocates.
extern "C" int sm90_kda_gradient(const kda::GradientArguments* arguments, cudaStream_t stream) {
    using namespace kda;
    const int64_t tiles = static_cast<int64_t>(arguments->num_chunks) * arguments->num_heads;
    if (tiles == 0) return 0;
    const cudaError_t error = cudaFuncSetAttribute(gradient, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(GradientShared));
    if (error != cudaSuccess) return static_cast<int>(error);
    gradient<<<static_cast<unsigned>(tiles), kGradientThreads, sizeof(GradientShared), stream>>>(*arguments);
    return static_cast<int>(cudaGetLastError());
}
