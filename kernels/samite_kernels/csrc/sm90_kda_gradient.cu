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

#include "include/gradient.cuh"

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

// From accumulators to gradients. On entry d_q, d_k (rows), d_column and d_kept lack their decay factors.
//
// With x the operand of a product and d its accumulator: of q, from_q = q_row d_q; of k as a row, k_row d_k, which holds beta, so that its
// sum over channels is also beta times the gradient of beta. As a column, k goes by 2^(R - G) into the tiles and by e^(G_last - G) into the
// state; both together are d_side. The norms' gradients need the sums over channels, dG the differences, summed from the end.
__device__ __forceinline__ void finish(GradientShared& shared, const GradientArguments& arguments, const Chunk& chunk, int head, int64_t tile,
                                       int group, float (&d_q)[16], float (&d_k)[16], const float (&d_column)[16], float (&d_kept)[16]) {
    const int lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) & 3;
    const int first_row = warp * 16 + (lane >> 2);
    const float beta[2] = {shared.beta[first_row], shared.beta[first_row + 8]};
    const int summed_channel = group * kGroupChannels + (summed_index() >> 1) * 8 + (lane & 3) * 2 + (summed_index() & 1);
    float q_dot[2] = {0.f, 0.f}, row_dot[2] = {0.f, 0.f}, side_dot[2] = {0.f, 0.f};
    {
        float kept_sums[8];
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            const int channel = group * kGroupChannels + n * 8 + (lane & 3) * 2;
            const float2 half_keep = *reinterpret_cast<const float2*>(&shared.half_keep[warp][channel]);
            kept_sums[2 * n] = kept_sums[2 * n + 1] = 0.f;
#pragma unroll
            for (int upper = 0; upper < 2; ++upper) {
                const int row = first_row + upper * 8;
                const uint32_t at = pair_offset(group, row, n);
                const uint32_t q_row = *reinterpret_cast<const uint32_t*>(shared.q_rows + at);
                const uint32_t k_row = *reinterpret_cast<const uint32_t*>(shared.k_rows + at);
                const uint32_t k_column = *reinterpret_cast<const uint32_t*>(shared.k_columns + at);
                const float2 fall = *reinterpret_cast<const float2*>(&shared.fall[fall_index(row, channel >> 1)]);
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    const int i = 4 * n + 2 * upper + c;
                    const float down = c ? fall.y : fall.x, up = ptx::reciprocal_fast(down);
                    const float keep = c ? half_keep.y : half_keep.x;
                    const float q = c ? ptx::high_bf16(q_row) : ptx::low_bf16(q_row);
                    const float k = c ? ptx::high_bf16(k_row) : ptx::low_bf16(k_row);
                    const float unit = (c ? ptx::high_bf16(k_column) : ptx::low_bf16(k_column)) * down;
                    const float d_kept_unit = up * (keep * d_kept[i]) * keep;  // in this order nothing that matters flushes
                    const float d_side = fmaf(up, d_column[i], d_kept_unit);
                    const float from_q = q * d_q[i], from_side = unit * d_side;
                    kept_sums[2 * n + c] = fmaf(unit, d_kept_unit, kept_sums[2 * n + c]);
                    q_dot[upper] += from_q;
                    row_dot[upper] = fmaf(k, d_k[i], row_dot[upper]);
                    side_dot[upper] += from_side;
                    d_kept[i] = fmaf(k, d_k[i], from_q) - from_side;  // dG
                    d_q[i] *= down;
                    d_k[i] = fmaf(beta[upper] * down, d_k[i], d_side);
                }
            }
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                const float tile_sum = sum_from_end(d_kept[4 * n + c], d_kept[4 * n + 2 + c]);
                if (lane < 4) shared.column_sums[0][warp][channel + c] = tile_sum;
            }
        }
        shared.column_sums[1][warp][summed_channel] = sum_over_rows(kept_sums);
    }
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
#pragma unroll
        for (int mask = 1; mask < 4; mask <<= 1) {
            q_dot[upper] += __shfl_xor_sync(~0u, q_dot[upper], mask);
            row_dot[upper] += __shfl_xor_sync(~0u, row_dot[upper], mask);
            side_dot[upper] += __shfl_xor_sync(~0u, side_dot[upper], mask);
        }
        if ((lane & 3) == 0) {
            shared.row_sums[0][group][first_row + upper * 8] = q_dot[upper];
            shared.row_sums[1][group][first_row + upper * 8] = row_dot[upper] + side_dot[upper];
            shared.row_sums[2][group][first_row + upper * 8] = row_dot[upper];
        }
    }
    __syncthreads();
    {
        const int channel = threadIdx.x & (kDim - 1), own = threadIdx.x >> 7;
        float later = shared.state_product[channel];
#pragma unroll
        for (int t = 0; t < kNumTiles; ++t) {
            later += shared.column_sums[1][t][channel];
            if (t > own) later += shared.column_sums[0][t][channel];
        }
        shared.later[own][channel] = later;
    }
    if (threadIdx.x < chunk.rows) {
        const int row = threadIdx.x;
        const float strength = shared.beta[row];
        float d_beta = strength * (shared.d_beta_v[0][row] + shared.d_beta_v[1][row]);
#pragma unroll
        for (int i = 0; i < kGradientGroups; ++i) d_beta += shared.row_sums[2][i][row];
        arguments.d_beta[static_cast<int64_t>(chunk.first_token + row) * arguments.num_heads + head] =
            __float2bfloat16_rn(d_beta * (1.f - strength));
    }
    // dq = norm (d - unit q_dot), with what is the same for all channels multiplied first.
    const float steepness = ptx::exp2_fast(fminf(arguments.a_log[head], 20.f) * kLog2E);
    float q_take[2], q_less[2], k_take[2], k_less[2], slope[2];
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
        const int row = first_row + upper * 8;
        auto dot = [&](int which) {
            const auto& sums = shared.row_sums[which];
            return (sums[0][row] + sums[1][row]) + (sums[2][row] + sums[3][row]);
        };
        const float q_norm = shared.q_norm[row], k_norm = shared.k_norm[row];
        q_take[upper] = q_norm * arguments.scale;
        q_less[upper] = q_norm * (q_norm * dot(0));
        k_take[upper] = k_norm;
        k_less[upper] = k_norm * (k_norm * dot(1));
        slope[upper] = row < chunk.rows ? arguments.lower_bound * steepness : 0.f;
    }
    __syncthreads();

    float d_a_log = 0.f;
    float bias_sums[8];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        const int channel = group * kGroupChannels + n * 8 + (lane & 3) * 2;
        const Gate gate(steepness, arguments.dt_bias, arguments.lower_bound, head, channel >> 1);
        const float2 later = *reinterpret_cast<const float2*>(&shared.later[warp][channel]);
        bias_sums[2 * n] = bias_sums[2 * n + 1] = 0.f;
#pragma unroll
        for (int upper = 0; upper < 2; ++upper) {
            const int row = first_row + upper * 8;
            const uint32_t at = pair_offset(group, row, n);
            const uint32_t q_raw = *reinterpret_cast<const uint32_t*>(shared.q_raw + at);
            const uint32_t k_raw = *reinterpret_cast<const uint32_t*>(shared.k_raw + at);
            const uint32_t g_raw = *reinterpret_cast<const uint32_t*>(shared.d_v_new + at);
            float d_g[2];
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                const int i = 4 * n + 2 * upper + c;
                const float raw = c ? ptx::high_bf16(g_raw) : ptx::low_bf16(g_raw);
                const float open = c ? gate.open_high(raw) : gate.open_low(raw);
                const float sloped = open * slope[upper];
                d_g[c] = (d_kept[i] + (c ? later.y : later.x)) * fmaf(-open, sloped, sloped);
                d_a_log = fmaf(d_g[c], raw, d_a_log);
                bias_sums[2 * n + c] += d_g[c];
                d_q[i] = fmaf(-q_less[upper], c ? ptx::high_bf16(q_raw) : ptx::low_bf16(q_raw), q_take[upper] * d_q[i]);
                d_k[i] = fmaf(-k_less[upper], c ? ptx::high_bf16(k_raw) : ptx::low_bf16(k_raw), k_take[upper] * d_k[i]);
            }
            // Each thread overwrites just what it read.
            *reinterpret_cast<uint32_t*>(shared.q_raw + at) = ptx::pack_bf16(d_q[4 * n + 2 * upper], d_q[4 * n + 2 * upper + 1]);
            *reinterpret_cast<uint32_t*>(shared.k_raw + at) = ptx::pack_bf16(d_k[4 * n + 2 * upper], d_k[4 * n + 2 * upper + 1]);
            *reinterpret_cast<uint32_t*>(shared.d_v_new + at) = ptx::pack_bf16(d_g[0], d_g[1]);
        }
        d_a_log = fmaf(bias_sums[2 * n], gate.bias.x, fmaf(bias_sums[2 * n + 1], gate.bias.y, d_a_log));
    }
    shared.column_sums[0][warp][summed_channel] = sum_over_rows(bias_sums);
    d_a_log += __shfl_xor_sync(~0u, d_a_log, 1);
    d_a_log += __shfl_xor_sync(~0u, d_a_log, 2);
    d_a_log = sum_over_rows(d_a_log);
    if (lane == 0) shared.a_log_parts[threadIdx.x >> 5] = d_a_log;
    __syncthreads();
    store_tokens(arguments.d_q, shared.q_raw, chunk, head, arguments.num_heads);
    store_tokens(arguments.d_k, shared.k_raw, chunk, head, arguments.num_heads);
    store_tokens(arguments.d_v, shared.d_o, chunk, head, arguments.num_heads);
    store_tokens(arguments.d_g, shared.d_v_new, chunk, head, arguments.num_heads);
    if (threadIdx.x < kDim) {
        float sum = 0.f;
#pragma unroll
        for (int t = 0; t < kNumTiles; ++t) sum += shared.column_sums[0][t][threadIdx.x];
        arguments.d_dt_bias_parts[tile * kDim + threadIdx.x] = sum;
    } else if (threadIdx.x == kDim) {
        float sum = 0.f;
#pragma unroll
        for (int w = 0; w < kGradientThreads / 32; ++w) sum += shared.a_log_parts[w];
        arguments.d_a_log_parts[tile] = sum;
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
