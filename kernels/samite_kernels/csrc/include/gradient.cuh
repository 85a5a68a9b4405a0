// The pieces of the gradient kernel: its shared memory, its operands, its 16 x 16 tile products. The story is in sm90_kda_gradient.cu.
#pragma once

#include "arguments.cuh"
#include "decay.cuh"
#include "registers.cuh"

namespace kda {

constexpr int kGradientThreads = 512;
constexpr int kGradientGroups = kGradientThreads / 128;     // warpgroups
constexpr int kGroupChannels = kDim / kGradientGroups;      // channels of a [64, 128] result that a warpgroup owns
constexpr int kRows = 8;                                    // rows per thread of the elementwise pass
static_assert(kGroupChannels == 32 && kGradientThreads == (kDim / 2) * (kChunk / kRows));

struct GradientShared {
    union {
        unsigned char states[kStateImageBytes];
        float fall[kChunk * kDim];                // 2^(G - R), permuted by fall_index
    };
    union {
        unsigned char d_states[kStateImageBytes];
        struct {
            unsigned char d_w[kTokenImageBytes];
            unsigned char k_beta_grown[kTokenImageBytes];  // beta k e^G
        };
        struct {
            unsigned char q_raw[kTokenImageBytes];         // then dq
            unsigned char k_raw[kTokenImageBytes];         // then dk
        };
    };
    unsigned char q_rows[kTokenImageBytes];       // raw q, then scale q 2^(G - R)
    unsigned char k_rows[kTokenImageBytes];       // raw k, then beta k 2^(G - R)
    unsigned char k_columns[kTokenImageBytes];    // raw g, then k 2^(R - G)
    unsigned char v[kTokenImageBytes];
    unsigned char d_o[kTokenImageBytes];          // then dV
    unsigned char d_v_new[kTokenImageBytes];      // then raw g, then dg
    union {
        unsigned char v_new[kTokenImageBytes];
        struct {
            unsigned char d_inverse[kSquareImageBytes];
            unsigned char d_a_kk[kSquareImageBytes];
        };
    };
    unsigned char inverse[kSquareImageBytes];
    unsigned char d_scores[kSquareImageBytes];
    uint32_t between[6][2][kDim];                 // 2^(R_I - R_J), two factors, each doubled to a bfloat16 pair
    float totals[kChunk / kRows][kDim];           // log2-decay over each group of rows
    float anchors[kNumTiles][kDim];
    float grow[kNumTiles][kDim];                  // 2^R
    float half_keep[kNumTiles][kDim];
    float state_product[kDim];                    // e^G_last times the sum over v of S dS', per key channel
    float column_sums[2][kNumTiles][kDim];
    float later[kNumTiles][kDim];
    float row_sums[3][kGradientGroups][kChunk];
    float d_beta_v[2][kChunk];
    float q_norm[kChunk];
    float k_norm[kChunk];
    float beta[kChunk];
    float a_log_parts[kGradientThreads / 32];
    uint64_t landed;
};
static_assert(sizeof(GradientShared) <= 232448, "227 KiB a block");

// Pairs of channels are permuted so that eight rows read by a warp fall into different banks.
__device__ __forceinline__ int fall_index(int row, int pair) { return row * kDim + ((pair ^ ((row & 3) << 2)) << 1); }

// Byte offset, in a token image, of the pair of elements that accumulator tile `n` of this thread's `row` holds.
__device__ __forceinline__ uint32_t pair_offset(int group, int row, int n) {
    return (group >> 1) * kPanelBytes + piece_offset(row, (group & 1) * 4 + n) + (threadIdx.x & 3) * 4;
}

__device__ __forceinline__ void start_loads(GradientShared& shared, const GradientArguments& arguments, const Chunk& chunk, int head,
                                            int64_t tile) {
    if (threadIdx.x == 0) {
        const uint32_t landed = ptx::shared_address(&shared.landed);
        ptx::barrier_init(landed, 1);
        ptx::barrier_init_fence();
        ptx::barrier_expect_bytes(landed, 2 * kStateImageBytes + 2 * kTokenImageBytes + kSquareImageBytes);
        ptx::bulk_load(ptx::shared_address(shared.states), arguments.states + tile * kStateImageBytes, kStateImageBytes, landed);
        ptx::bulk_load(ptx::shared_address(shared.d_states), arguments.d_states + tile * kStateImageBytes, kStateImageBytes, landed);
        ptx::bulk_load(ptx::shared_address(shared.d_v_new), arguments.d_v_new + tile * kTokenImageBytes, kTokenImageBytes, landed);
        ptx::bulk_load(ptx::shared_address(shared.v_new), arguments.v_new + tile * kTokenImageBytes, kTokenImageBytes, landed);
        ptx::bulk_load(ptx::shared_address(shared.inverse), arguments.inverse + tile * kSquareImageBytes, kSquareImageBytes, landed);
    }
    load_tokens<kGradientThreads>(shared.q_rows, arguments.q, chunk, head, arguments.num_heads);
    load_tokens<kGradientThreads>(shared.k_rows, arguments.k, chunk, head, arguments.num_heads);
    load_tokens<kGradientThreads>(shared.k_columns, arguments.g, chunk, head, arguments.num_heads);
    load_tokens<kGradientThreads>(shared.d_o, arguments.d_o, chunk, head, arguments.num_heads);
    load_tokens<kGradientThreads>(shared.v, arguments.v, chunk, head, arguments.num_heads);
    ptx::copy_async_commit();
}

// Sums over v of S dS' per key channel: the diagonal of a product that nobody needs else. A warp makes 8 channels.
__device__ __forceinline__ void multiply_states(GradientShared& shared) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const uint32_t states = ptx::shared_address(shared.states), d_states = ptx::shared_address(shared.d_states);
    const uint32_t panel = (warp >> 3) * kPanelBytes;  // 64 key channels
    const int first_piece = (warp >> 1 & 3) * 2, half = warp & 1;
    float d[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
    for (int two_steps = 0; two_steps < kDim / 32; ++two_steps) {
        const uint32_t from = (two_steps >> 1) * 2 * kPanelBytes + panel;
        const int v = (two_steps & 1) * 32;
        uint32_t b[4];
        ptx::load_matrix_x4_transposed(b, d_states + from + piece_offset(v + lane, first_piece + half));
#pragma unroll
        for (int step = 0; step < 2; ++step) {
            uint32_t a[4];
            ptx::load_matrix_x4_transposed(
                a, states + from + piece_offset(v + step * 16 + (lane >> 4) * 8 + (lane & 7), first_piece + ((lane >> 3) & 1)));
            ptx::mma_bf16(d, a, b[2 * step], b[2 * step + 1]);
        }
    }
    const int row = lane >> 2, column = (lane & 3) * 2;
    if ((row & ~1) == column) {
        const float first = half ? d[2] : d[0], second = half ? d[3] : d[1];
        shared.state_product[warp * 8 + row] = row & 1 ? second : first;
    }
}

// The operands of the tile products, in place; 2^(G - R) and beta k e^G beside them. Two channels of eight rows per thread.
__device__ __forceinline__ void scale_by_decay(GradientShared& shared, const PairAnchors<kRows>& at_tile, const float (&fall)[kRows][2],
                                               int row_group, int pair, float scale) {
    const int row_tile = row_group * kRows / kTile;
    if (row_group % (kTile / kRows) == 0) {
        *reinterpret_cast<float2*>(&shared.anchors[row_tile][pair * 2]) = make_float2(at_tile.own[0], at_tile.own[1]);
        *reinterpret_cast<float2*>(&shared.half_keep[row_tile][pair * 2]) = make_float2(at_tile.half_keep[0], at_tile.half_keep[1]);
        *reinterpret_cast<float2*>(&shared.grow[row_tile][pair * 2]) = make_float2(ptx::exp2_fast(at_tile.own[0]), ptx::exp2_fast(at_tile.own[1]));
#pragma unroll
        for (int t = 0; t < kNumTiles - 1; ++t) {
            if (t < row_tile) {
                const int index = row_tile * (row_tile - 1) / 2 + t;
                const PowerPair left(at_tile.own[0] - at_tile.all[0][t]), right(at_tile.own[1] - at_tile.all[1][t]);
                *reinterpret_cast<uint2*>(&shared.between[index][0][pair * 2]) = make_uint2(left.first * 0x10001u, right.first * 0x10001u);
                *reinterpret_cast<uint2*>(&shared.between[index][1][pair * 2]) = make_uint2(left.second * 0x10001u, right.second * 0x10001u);
            }
        }
    }
    const float grow[2] = {ptx::exp2_fast(at_tile.own[0]), ptx::exp2_fast(at_tile.own[1])};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        const int row = row_group * kRows + r;
        const uint32_t at = element_offset(row, pair * 2);
        const uint32_t q_raw = *reinterpret_cast<const uint32_t*>(shared.q_rows + at);
        const uint32_t k_raw = *reinterpret_cast<const uint32_t*>(shared.k_rows + at);
        const float q_norm = shared.q_norm[row] * scale, k_norm = shared.k_norm[row], beta = shared.beta[row];
        float q_row[2], k_row[2], k_column[2], down[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            const float exponent = fall[r][c] + at_tile.offset[c];
            down[c] = ptx::exp2_fast(exponent);
            const float k = (c ? ptx::high_bf16(k_raw) : ptx::low_bf16(k_raw)) * k_norm;
            q_row[c] = (c ? ptx::high_bf16(q_raw) : ptx::low_bf16(q_raw)) * q_norm * down[c];
            k_row[c] = k * down[c] * beta;
            k_column[c] = k * ptx::exp2_fast(-exponent);
        }
        *reinterpret_cast<uint32_t*>(shared.q_rows + at) = ptx::pack_bf16(q_row[0], q_row[1]);
        *reinterpret_cast<uint32_t*>(shared.k_rows + at) = ptx::pack_bf16(k_row[0], k_row[1]);
        *reinterpret_cast<uint32_t*>(shared.k_columns + at) = ptx::pack_bf16(k_column[0], k_column[1]);
        *reinterpret_cast<uint32_t*>(shared.k_beta_grown + at) = ptx::pack_bf16(k_row[0] * grow[0], k_row[1] * grow[1]);
        *reinterpret_cast<float2*>(&shared.fall[fall_index(row, pair)]) = make_float2(down[0], down[1]);
    }
}

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

}  // namespace kda
