// How accumulators and operands of a warpgroup lie in registers, and their way to tile images.
//
// A thread of warp w holds, for each 8-column tile t, elements 4 t .. 4 t + 3: row 16 w + lane / 4 (+ 8 for the last two), column
// 8 t + 2 (lane mod 4) and the next. Two tiles packed to bfloat16 are one step of a row operand.
#pragma once

#include "layout.cuh"

namespace kda {

// Row operand registers of a transposed state or value block: step s covers accumulators 8 s .. 8 s + 7.
template <int N>
__device__ __forceinline__ void to_operand(uint32_t (&a)[N / 2], const float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N / 2; ++i) a[i] = ptx::pack_bf16(d[2 * i], d[2 * i + 1]);
}

// Writes this warp's 16 rows of an operand to an image of 64 rows, `Steps` steps of 16 columns.
template <int Steps>
__device__ __forceinline__ void store_rows(unsigned char* image, const uint32_t (&a)[Steps * 4]) {
    const int lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) & 3;
    const int row = warp * 16 + ((lane >> 3) & 1) * 8 + (lane & 7);
    const uint32_t base = ptx::shared_address(image);
#pragma unroll
    for (int s = 0; s < Steps; ++s) {
        ptx::store_matrix_x4(base + (s >> 2) * kPanelBytes + piece_offset(row, 2 * (s & 3) + (lane >> 4)), a[4 * s], a[4 * s + 1],
                             a[4 * s + 2], a[4 * s + 3]);
    }
}

// Accumulators of one warpgroup, [64, N], as bfloat16 to a panel: rows from `first_row`, columns from 8 * `first_piece`.
template <int Registers>
__device__ __forceinline__ void store_panel(unsigned char* panel, int first_row, int first_piece, const float (&d)[Registers], float sign) {
    const int lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) & 3;
    const int row = first_row + warp * 16 + ((lane >> 3) & 1) * 8 + (lane & 7);
    const uint32_t base = ptx::shared_address(panel);
#pragma unroll
    for (int n = 0; n < Registers / 4; n += 2) {
        ptx::store_matrix_x4(base + piece_offset(row, first_piece + n + (lane >> 4)), ptx::pack_bf16(sign * d[4 * n], sign * d[4 * n + 1]),
                             ptx::pack_bf16(sign * d[4 * n + 2], sign * d[4 * n + 3]),
                             ptx::pack_bf16(sign * d[4 * n + 4], sign * d[4 * n + 5]),
                             ptx::pack_bf16(sign * d[4 * n + 6], sign * d[4 * n + 7]));
    }
}

}  // namespace kda
