// The 16 x 16 tile products of the gradient kernel, rows and columns, anchored as in the forward. The story is in sm90_kda_gradient.cu.
#pragma once

#include "gradient.cuh"

namespace kda {

// Keeps row > column (or >=) of accumulators whose columns begin at `first_column`.
__device__ __forceinline__ void keep_lower(float (&d)[16], int first_column, bool with_diagonal) {
    const int lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) & 3;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        const int row = warp * 16 + (lane >> 2) + ((i >> 1) & 1) * 8;
        const int column = first_column + (i >> 2) * 8 + (lane & 3) * 2 + (i & 1);
        d[i] = row > column || (with_diagonal && row == column) ? d[i] : 0.f;
    }
}

// Sixteen rows of an operand image as right-hand registers for 16 channels; scaled between tiles when `between` >= 0.
__device__ __forceinline__ void tile_operand(const GradientShared& shared, const unsigned char* image, int tile, int group, int n, int between,
                                             bool apart, uint32_t (&b)[4]) {
    const int lane = threadIdx.x & 31;
    const uint32_t base = ptx::shared_address(image) + (group >> 1) * kPanelBytes;
    ptx::load_matrix_x4_transposed(b, base + piece_offset(tile * kTile + (lane & 15), (group & 1) * 4 + 2 * n + (lane >> 4)));
    if (between >= 0) {
        const int channel = group * kGroupChannels + n * 16 + (lane >> 2);
        const uint32_t low = shared.between[between][0][channel], high = shared.between[between][0][channel + 8];
        b[0] = ptx::multiply_bf16x2(b[0], low);
        b[1] = ptx::multiply_bf16x2(b[1], low);
        b[2] = ptx::multiply_bf16x2(b[2], high);
        b[3] = ptx::multiply_bf16x2(b[3], high);
        if (apart) {
            const uint32_t low2 = shared.between[between][1][channel], high2 = shared.between[between][1][channel + 8];
            b[0] = ptx::multiply_bf16x2(b[0], low2);
            b[1] = ptx::multiply_bf16x2(b[1], low2);
            b[2] = ptx::multiply_bf16x2(b[2], high2);
            b[3] = ptx::multiply_bf16x2(b[3], high2);
        }
    }
}

// Adds the products of this warp's row tile: dA_qk k to `d_q`, dA k to `d_k`.
__device__ __forceinline__ void row_products(const GradientShared& shared, int row_tile, int group, float (&d_q)[16], float (&d_k)[16]) {
    const int lane = threadIdx.x & 31;
    const uint32_t scores = ptx::shared_address(shared.d_scores), a_kk = ptx::shared_address(shared.d_a_kk);
    for (int tile = 0; tile <= row_tile; ++tile) {
        const uint32_t at = piece_offset(row_tile * kTile + (lane & 15), 2 * tile + (lane >> 4));
        uint32_t a_q[4], a_k[4];
        ptx::load_matrix_x4(a_q, scores + at);
        ptx::load_matrix_x4(a_k, a_kk + at);
        const int between = tile < row_tile ? row_tile * (row_tile - 1) / 2 + tile : -1;
#pragma unroll
        for (int n = 0; n < kGroupChannels / 16; ++n) {
            uint32_t b[4];
            tile_operand(shared, shared.k_columns, tile, group, n, between, row_tile > tile + 1, b);
            ptx::mma_bf16(d_q + 8 * n, a_q, b[0], b[1]);
            ptx::mma_bf16(d_q + 8 * n + 4, a_q, b[2], b[3]);
            ptx::mma_bf16(d_k + 8 * n, a_k, b[0], b[1]);
            ptx::mma_bf16(d_k + 8 * n + 4, a_k, b[2], b[3]);
        }
    }
}

// The products of this warp's column tile, without the outer 2^(R - G): dA_qk' q + dA' beta k.
__device__ __forceinline__ void column_products(const GradientShared& shared, int column_tile, int group, float (&d)[16]) {
    const int lane = threadIdx.x & 31;
    const uint32_t scores = ptx::shared_address(shared.d_scores), a_kk = ptx::shared_address(shared.d_a_kk);
#pragma unroll
    for (int i = 0; i < 16; ++i) d[i] = 0.f;
    for (int tile = kNumTiles - 1; tile >= column_tile; --tile) {
        if (tile == column_tile && tile < kNumTiles - 1) {
            // So far relative to the next tile's anchor, where nothing that matters can flush.
#pragma unroll
            for (int i = 0; i < 16; ++i) {
                const int channel = group * kGroupChannels + (i >> 2) * 8 + (lane & 3) * 2 + (i & 1);
                d[i] *= ptx::exp2_fast(shared.anchors[column_tile + 1][channel] - shared.anchors[column_tile][channel]);
            }
        }
        const uint32_t at = piece_offset(tile * kTile + (lane >> 4) * 8 + (lane & 7), 2 * column_tile + ((lane >> 3) & 1));
        uint32_t a_q[4], a_k[4];
        ptx::load_matrix_x4_transposed(a_q, scores + at);
        ptx::load_matrix_x4_transposed(a_k, a_kk + at);
        const int between = tile > column_tile + 1 ? tile * (tile - 1) / 2 + column_tile + 1 : -1;
#pragma unroll
        for (int n = 0; n < kGroupChannels / 16; ++n) {
            uint32_t b[4];
            tile_operand(shared, shared.q_rows, tile, group, n, between, tile > column_tile + 2, b);
            ptx::mma_bf16(d + 8 * n, a_q, b[0], b[1]);
            ptx::mma_bf16(d + 8 * n + 4, a_q, b[2], b[3]);
            tile_operand(shared, shared.k_rows, tile, group, n, between, tile > column_tile + 2, b);
            ptx::mma_bf16(d + 8 * n, a_k, b[0], b[1]);
            ptx::mma_bf16(d + 8 * n + 4, a_k, b[2], b[3]);
        }
    }
}

}  // namespace kda
