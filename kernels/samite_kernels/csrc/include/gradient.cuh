// The pieces of the gradient kernel: its shared memory, its loads, its operands. The story is in sm90_kda_gradient.cu.
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

}  // namespace kda
