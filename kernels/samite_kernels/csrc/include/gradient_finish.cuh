// The last phase of the gradient kernel: from accumulators to the gradients of tokens, gate and parameters. The story is in sm90_kda_gradient.cu.
#pragma once

#include "gradient.cuh"

namespace kda {

__device__ __forceinline__ float sum_over_rows(float x) {
#pragma unroll
    for (int mask = 4; mask < 32; mask <<= 1) x += __shfl_xor_sync(~0u, x, mask);
    return x;
}

// The same for eight values at once, of which each lane receives one: that of index `summed_index()`.
__device__ __forceinline__ float sum_over_rows(const float (&x)[8]) {
    const int lane = threadIdx.x & 31;
    float four[4], two[2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float own = lane & 16 ? x[i + 4] : x[i], other = lane & 16 ? x[i] : x[i + 4];
        four[i] = own + __shfl_xor_sync(~0u, other, 16);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float own = lane & 8 ? four[i + 2] : four[i], other = lane & 8 ? four[i] : four[i + 2];
        two[i] = own + __shfl_xor_sync(~0u, other, 8);
    }
    return (lane & 4 ? two[1] : two[0]) + __shfl_xor_sync(~0u, lane & 4 ? two[0] : two[1], 4);
}
__device__ __forceinline__ int summed_index() {
    const int lane = threadIdx.x & 31;
    return (lane >> 4 & 1) * 4 + (lane >> 3 & 1) * 2 + (lane >> 2 & 1);
}

// Sum of rows from each row to the end of a tile, for one channel: `first` is row lane / 4, `second` the row 8 below. Returns the total.
__device__ __forceinline__ float sum_from_end(float& first, float& second) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int distance = 4; distance < 32; distance <<= 1) {
        const float a = __shfl_down_sync(~0u, first, distance), b = __shfl_down_sync(~0u, second, distance);
        if (lane + distance < 32) {
            first += a;
            second += b;
        }
    }
    first += __shfl_sync(~0u, second, lane & 3);
    return first;
}

__device__ __forceinline__ void store_tokens(__nv_bfloat16* tokens, const unsigned char* image, const Chunk& chunk, int head, int num_heads) {
    const int64_t row_stride = static_cast<int64_t>(num_heads) * kDim;
    __nv_bfloat16* start = tokens + static_cast<int64_t>(chunk.first_token) * row_stride + static_cast<int64_t>(head) * kDim;
#pragma unroll
    for (int n = 0; n < kChunk * 16 / kGradientThreads; ++n) {
        const int index = threadIdx.x + n * kGradientThreads;
        const int row = index >> 4, piece = index & 15;
        if (row < chunk.rows) {
            *reinterpret_cast<uint4*>(start + row * row_stride + piece * 8) =
                *reinterpret_cast<const uint4*>(image + (piece >> 3) * kPanelBytes + piece_offset(row, piece & 7));
        }
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

}  // namespace kda
