// The phases of the prepare kernel, from raw tiles in shared memory to the inverse as an operand. `Shared` is the kernel's layout.
#pragma once

#include <type_traits>

#include "arguments.cuh"
#include "decay.cuh"
#include "registers.cuh"
#include "tally.cuh"

namespace kda {

constexpr int kPrepareThreads = 256;
constexpr int kInversePitch = 72;            // halves per row: 144 bytes keep ldmatrix free of conflicts
constexpr int kDiagonalPitch = kTile * kTile + 4;

// 2^R of a row tile for two channels, as two packed bfloat16 factors, so that neither flushes.
struct Grow {
    uint32_t first;
    uint32_t second;

    __device__ __forceinline__ Grow(float low, float high) {
        const PowerPair a(low), b(high);
        first = a.first | b.first << 16;
        second = a.second | b.second << 16;
    }
};

// Turns the raw tile into operands, in place. A thread owns two channels of one 16-row tile. Returns what grows a row of k in place.
template <class Shared, class Watch>
__device__ __forceinline__ Grow scale_by_decay(Shared& shared, const PrepareArguments& arguments, const Chunk& chunk, int head, int64_t tile,
                                               Watch watch) {
    const int pair = threadIdx.x & 63, row_tile = threadIdx.x >> 6;
    const Gate gate(arguments.a_log, arguments.dt_bias, arguments.lower_bound, head, pair);
    float fall[kTile][2];
    if constexpr (Watch::kElements) watch.set_gate(gate, arguments.saturated_logit, arguments.open_logit);
    decay_within<kTile>(shared.g, gate, chunk.rows, row_tile, pair, fall, shared.tile_total, watch);
    if constexpr (Watch::kOn) {
        if (Tally::is_rare(fall[kTile - 1][0], fall[kTile - 1][1])) {
            auto gates = [&](int r) { return *reinterpret_cast<const uint32_t*>(shared.g + element_offset(row_tile * kTile + r, pair * 2)); };
            watch.tally.see_rare(count_rare(gates, gate, filled_rows(chunk.rows, row_tile)));
        }
    }
    __syncthreads();
    const PairAnchors<kTile> at_tile(shared.tile_total, row_tile, pair);
    if constexpr (Watch::kElements) {
        if (row_tile == 0) watch.tally.see_chunk(shared.tile_total, pair, at_tile.total);
    }
    float grow[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
        grow[c] = ptx::exp2_fast(at_tile.own[c]);
        if (row_tile == 0) arguments.keep[tile * kDim + pair * 2 + c] = ptx::exp2_fast(at_tile.total[c]);
    }
#pragma unroll
    for (int t = 0; t < kNumTiles - 1; ++t) {
        if (t < row_tile) {
            uint32_t factors[2] = {0, 0};
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                const PowerPair power(at_tile.own[c] - at_tile.all[c][t]);
                factors[0] |= power.first << (16 * c);
                factors[1] |= power.second << (16 * c);
            }
            const int index = row_tile * (row_tile - 1) / 2 + t;
            shared.between[index][0][pair] = factors[0];
            shared.between[index][1][pair] = factors[1];
        }
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
        float q_row[2], k_row[2], k_column[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            const float exponent = fall[r][c] + at_tile.offset[c];
            const float down = ptx::exp2_fast(exponent), up = ptx::exp2_fast(-exponent);
            q_row[c] = (c ? ptx::high_bf16(q_raw) : ptx::low_bf16(q_raw)) * q_norm * down;
            const float k = (c ? ptx::high_bf16(k_raw) : ptx::low_bf16(k_raw)) * k_norm;
            k_row[c] = k * down;
            k_column[c] = k * up;
        }
        *reinterpret_cast<uint32_t*>(shared.q + at) = ptx::pack_bf16(q_row[0], q_row[1]);
        *reinterpret_cast<uint32_t*>(shared.k + at) = ptx::pack_bf16(k_row[0], k_row[1]);
        *reinterpret_cast<uint32_t*>(shared.g + at) = ptx::pack_bf16(k_column[0], k_column[1]);
        const uint32_t grown = ptx::pack_bf16(q_row[0] * grow[0], q_row[1] * grow[1]);
        const uint32_t kept = ptx::pack_bf16(k_column[0] * at_tile.half_keep[0] * at_tile.half_keep[0],
                                             k_column[1] * at_tile.half_keep[1] * at_tile.half_keep[1]);
        *reinterpret_cast<uint32_t*>(q_grown + at) = grown;
        *reinterpret_cast<uint32_t*>(k_kept + at) = kept;
        watch.see_operand(q_raw, grown);
        watch.see_operand(k_raw, kept);
    }
    if constexpr (Watch::kElements) watch.finish(min(max((row_tile + 1) * kTile - chunk.rows, 0), kTile), chunk.rows, 4 * kTile);
    return Grow(at_tile.own[0], at_tile.own[1]);
}

// The same, and the decay signals if asked for.
template <class Shared>
__device__ __forceinline__ Grow scale_and_count(Shared& shared, const PrepareArguments& arguments, const Chunk& chunk, int head, int64_t tile,
                                                Tally& tally) {
    const Grow grow = (chunk.place + head) % kSampleEvery == 0
                          ? scale_by_decay(shared, arguments, chunk, head, tile, Watch<true>(tally))
                          : scale_by_decay(shared, arguments, chunk, head, tile, Watch<false>(tally));
    tally.finish();
    return grow;
}
template <class Shared>
__device__ __forceinline__ Grow scale_and_count(Shared& shared, const PrepareArguments& arguments, const Chunk& chunk, int head, int64_t tile,
                                                Silent& silent) {
    return scale_by_decay(shared, arguments, chunk, head, tile, silent);
}

// The ten lower 16 x 16 tiles of both score matrices, in twenty units of 8 columns over the 8 warps.
template <class Shared>
__device__ __forceinline__ void score_tiles(Shared& shared) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const uint32_t q_rows = ptx::shared_address(shared.q), k_rows = ptx::shared_address(shared.k);
    const uint32_t k_columns = ptx::shared_address(shared.g);
    for (int unit = warp; unit < 20; unit += kPrepareThreads / 32) {
        const int index = unit >> 1, column_half = unit & 1;
        const int row_tile = index < 1 ? 0 : index < 3 ? 1 : index < 6 ? 2 : 3;
        const int column_tile = index - row_tile * (row_tile + 1) / 2;
        const bool diagonal = row_tile == column_tile;
        const int between = row_tile * (row_tile - 1) / 2 + column_tile;
        float kk[4] = {0.f, 0.f, 0.f, 0.f}, qk[4] = {0.f, 0.f, 0.f, 0.f};
        const int a_row = row_tile * kTile + (lane & 15);
        const int b_row = column_tile * kTile + column_half * 8 + (lane & 7);
#pragma unroll
        for (int two_steps = 0; two_steps < kDim / 32; ++two_steps) {
            uint32_t b[4];
            ptx::load_matrix_x4(b, k_columns + element_offset(b_row, two_steps * 32 + (lane >> 3) * 8));
            if (!diagonal) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int pair = two_steps * 16 + i * 4 + (lane & 3);
                    b[i] = ptx::multiply_bf16x2(b[i], shared.between[between][0][pair]);
                    if (row_tile > column_tile + 1) b[i] = ptx::multiply_bf16x2(b[i], shared.between[between][1][pair]);
                }
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const uint32_t at = element_offset(a_row, two_steps * 32 + half * 16 + (lane >> 4) * 8);
                uint32_t a[4];
                ptx::load_matrix_x4(a, k_rows + at);
                ptx::mma_bf16(kk, a, b[half * 2], b[half * 2 + 1]);
                ptx::load_matrix_x4(a, q_rows + at);
                ptx::mma_bf16(qk, a, b[half * 2], b[half * 2 + 1]);
            }
        }
        const int column = column_half * 8 + (lane & 3) * 2;
#pragma unroll
        for (int upper = 0; upper < 2; ++upper) {
            const int row = (lane >> 2) + upper * 8;
            const float beta = shared.beta[row_tile * kTile + row];
            float a0 = kk[upper * 2] * beta, a1 = kk[upper * 2 + 1] * beta, s0 = qk[upper * 2], s1 = qk[upper * 2 + 1];
            if (diagonal) {
                a0 = row > column ? a0 : 0.f;
                a1 = row > column + 1 ? a1 : 0.f;
                s0 = row >= column ? s0 : 0.f;
                s1 = row >= column + 1 ? s1 : 0.f;
                *reinterpret_cast<float2*>(&shared.a_diagonal[row_tile * kDiagonalPitch + row * kTile + column]) = make_float2(a0, a1);
            } else {
                *reinterpret_cast<uint32_t*>(
                    &shared.a_off[(row_tile * kTile + row) * kInversePitch + column_tile * kTile + column]) = ptx::pack_half(a0, a1);
            }
            const int global_column = column_tile * kTile + column;
            *reinterpret_cast<uint32_t*>(shared.scores + piece_offset(row_tile * kTile + row, global_column >> 3) +
                                         (global_column & 7) * 2) = ptx::pack_bf16(s0, s1);
        }
    }
}

// Rows 0..15 of the inverse of a unit lower triangular tile, one column per thread of the first two warps.
template <class Shared>
__device__ __forceinline__ void invert_diagonal(const Shared& shared, __half* inverse) {
    const int tile = threadIdx.x >> 4, column = threadIdx.x & 15;
    const float* a = shared.a_diagonal + tile * kDiagonalPitch;
    float x[kTile];
#pragma unroll
    for (int i = 0; i < kTile; ++i) {
        float sums[4] = {i == column ? 1.f : 0.f, 0.f, 0.f, 0.f};
#pragma unroll
        for (int j = 0; j < i; j += 4) {
            const float4 row = *reinterpret_cast<const float4*>(a + i * kTile + j);
            sums[0] -= row.x * x[j];
            if (j + 1 < i) sums[1] -= row.y * x[j + 1];
            if (j + 2 < i) sums[2] -= row.z * x[j + 2];
            if (j + 3 < i) sums[3] -= row.w * x[j + 3];
        }
        x[i] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
        inverse[(tile * kTile + i) * kInversePitch + tile * kTile + column] = __float2half_rn(x[i]);
    }
}

// The six tiles above the diagonal, two pieces of 16 bytes a row: `index` of 192 threads.
__device__ __forceinline__ void clear_above_diagonal(__half* inverse, int index) {
    const int piece = index & 1, row = (index >> 1) & 15, place = index >> 5;
    const int row_tile = place < 3 ? 0 : place < 5 ? 1 : 2;
    const int column_tile = place < 3 ? place + 1 : place < 5 ? place - 1 : 3;
    *reinterpret_cast<uint4*>(&inverse[(row_tile * kTile + row) * kInversePitch + column_tile * kTile + piece * 8]) =
        make_uint4(0, 0, 0, 0);
}

// inverse[rows, columns] = -inverse[rows, rows] a_off[rows, columns] inverse[columns, columns] for one strip of 8 columns.
// `Blocks` 16-row blocks on each side: 1 joins 16 to 32, 2 joins 32 to 64.
template <int Blocks, class Shared>
__device__ __forceinline__ void join_strip(const Shared& shared, __half* inverse, int first_row, int first_column, int strip) {
    const int lane = threadIdx.x & 31;
    const uint32_t a_base = ptx::shared_address(shared.a_off), t_base = ptx::shared_address(inverse);
    auto address = [&](uint32_t base, int row, int column) { return base + (row * kInversePitch + column) * 2; };
    uint32_t b[Blocks][2];
#pragma unroll
    for (int k = 0; k < Blocks; ++k) {
        ptx::load_matrix_x2_transposed(b[k], address(t_base, first_column + k * 16 + (lane & 15), first_column + strip * 8));
    }
    uint32_t x[Blocks][2];
#pragma unroll
    for (int m = 0; m < Blocks; ++m) {
        float sum[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
        for (int k = 0; k < Blocks; ++k) {
            uint32_t a[4];
            ptx::load_matrix_x4(a, address(a_base, first_row + m * 16 + (lane & 15), first_column + k * 16 + (lane >> 4) * 8));
            ptx::mma_half(sum, a, b[k][0], b[k][1]);
        }
        x[m][0] = ptx::transpose_8x8(ptx::pack_half(sum[0], sum[1]));
        x[m][1] = ptx::transpose_8x8(ptx::pack_half(sum[2], sum[3]));
    }
#pragma unroll
    for (int m = 0; m < Blocks; ++m) {
        float sum[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
        for (int k = 0; k <= m; ++k) {
            uint32_t a[4];
            ptx::load_matrix_x4(a, address(t_base, first_row + m * 16 + (lane & 15), first_row + k * 16 + (lane >> 4) * 8));
            ptx::mma_half(sum, a, x[k][0], x[k][1]);
        }
        const int row = first_row + m * 16 + (lane >> 2), column = first_column + strip * 8 + (lane & 3) * 2;
        *reinterpret_cast<uint32_t*>(&inverse[row * kInversePitch + column]) = ptx::pack_half(-sum[0], -sum[1]);
        *reinterpret_cast<uint32_t*>(&inverse[(row + 8) * kInversePitch + column]) = ptx::pack_half(-sum[2], -sum[3]);
    }
}

// The inverse (times beta of its column) as a bfloat16 operand; `plain` receives it without beta.
template <class Shared>
__device__ __forceinline__ void inverse_to_operand(const Shared& shared, const __half* inverse, unsigned char* with_beta,
                                                   unsigned char* plain) {
    const int row = threadIdx.x >> 2, first = (threadIdx.x & 3) * 16;
#pragma unroll
    for (int p = 0; p < 2; ++p) {
        const int column = first + p * 8;
        const uint4 halves = *reinterpret_cast<const uint4*>(&inverse[row * kInversePitch + column]);
        const uint32_t words[4] = {halves.x, halves.y, halves.z, halves.w};
        uint32_t scaled[4], unscaled[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 x = __half22float2(*reinterpret_cast<const __half2*>(&words[i]));
            scaled[i] = ptx::pack_bf16(x.x * shared.beta[column + 2 * i], x.y * shared.beta[column + 2 * i + 1]);
            unscaled[i] = ptx::pack_bf16(x.x, x.y);
        }
        const uint32_t at = piece_offset(row, column >> 3);
        *reinterpret_cast<uint4*>(with_beta + at) = make_uint4(scaled[0], scaled[1], scaled[2], scaled[3]);
        if (plain) *reinterpret_cast<uint4*>(plain + at) = make_uint4(unscaled[0], unscaled[1], unscaled[2], unscaled[3]);
    }
}

}  // namespace kda
