// From raw q, k, g, beta of one chunk in shared memory to norms, log-decays and the anchors of the score tiles.
//
// G is the cumulative log2-decay of the chunk and R_I the integer nearest to G just before tile I. A row of tile I carries
// 2^(G - R_I), a column 2^(R_I - G): with the bound of -5 both stay within 2^+-116. Between tiles I > J the columns of J are scaled by
// 2^(R_I - R_J), a power of two and therefore exact in bfloat16, applied as two factors so that neither flushes.
#pragma once

#include "layout.cuh"

namespace kda {

// Starts the copy of one tensor's rows [64, 128] into a token image; rows past the end become zero.
template <int Threads>
__device__ __forceinline__ void load_tokens(unsigned char* image, const __nv_bfloat16* tokens, const Chunk& chunk, int head, int num_heads) {
    const int64_t row_stride = static_cast<int64_t>(num_heads) * kDim;
    const __nv_bfloat16* start = tokens + static_cast<int64_t>(chunk.first_token) * row_stride + static_cast<int64_t>(head) * kDim;
    const uint32_t target = ptx::shared_address(image);
#pragma unroll
    for (int n = 0; n < kChunk * 16 / Threads; ++n) {
        const int index = threadIdx.x + n * Threads;
        const int row = index >> 4, piece = index & 15;
        const bool valid = row < chunk.rows;
        ptx::copy_async_16(target + (piece >> 3) * kPanelBytes + piece_offset(row, piece & 7),
                           start + (valid ? row * row_stride : 0) + piece * 8, valid);
    }
}

__device__ __forceinline__ float write_strength(const __nv_bfloat16* beta, const Chunk& chunk, int head, int num_heads, int row) {
    if (row >= chunk.rows) return 0.f;
    const float logit = __bfloat162float(beta[static_cast<int64_t>(chunk.first_token + row) * num_heads + head]);
    return 1.f / (1.f + ptx::exp2_fast(-kLog2E * logit));
}

// Watches what the phases see, for the decay signals. This one looks away; the other is in tally.cuh.
struct Silent {
    static constexpr bool kOn = false, kElements = false;
    template <class... Anything>
    __device__ __forceinline__ explicit Silent(const Anything&...) {}
    __device__ __forceinline__ void see_gate(uint32_t) {}
    __device__ __forceinline__ void see_row(const unsigned char*, int, float) {}
    __device__ __forceinline__ void see_operand(uint32_t, uint32_t) {}
};

// 1 / |row| of q and k, several neighbouring threads a row.
template <int Threads, class Tally>
__device__ __forceinline__ void row_norms(const unsigned char* q_image, const unsigned char* k_image, float* q_norm, float* k_norm, Tally& tally) {
    constexpr int kPerRow = Threads / kChunk;
    constexpr int kPieces = 16 / kPerRow;
    const int row = threadIdx.x / kPerRow, part = threadIdx.x % kPerRow;
    float q_sum = 0.f, k_sum = 0.f;
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
        const int piece = part * kPieces + p;
        const uint32_t offset = (piece >> 3) * kPanelBytes + piece_offset(row, piece & 7);
        const uint4 q = *reinterpret_cast<const uint4*>(q_image + offset);
        const uint4 k = *reinterpret_cast<const uint4*>(k_image + offset);
        const uint32_t qs[4] = {q.x, q.y, q.z, q.w}, ks[4] = {k.x, k.y, k.z, k.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            q_sum += ptx::low_bf16(qs[i]) * ptx::low_bf16(qs[i]) + ptx::high_bf16(qs[i]) * ptx::high_bf16(qs[i]);
            k_sum += ptx::low_bf16(ks[i]) * ptx::low_bf16(ks[i]) + ptx::high_bf16(ks[i]) * ptx::high_bf16(ks[i]);
        }
    }
#pragma unroll
    for (int mask = 1; mask < kPerRow; mask <<= 1) {
        q_sum += __shfl_xor_sync(~0u, q_sum, mask);
        k_sum += __shfl_xor_sync(~0u, k_sum, mask);
    }
    if (part == 0) {
        q_norm[row] = rsqrtf(q_sum + kNormEpsilon);
        k_norm[row] = rsqrtf(k_sum + kNormEpsilon);
        tally.see_row(q_image, row, q_norm[row]);
        tally.see_row(k_image, row, k_norm[row]);
    }
}

// The gate of two neighbouring channels: decay = bound * sigmoid(steepness * (g + bias)), as bound / (1 + 2^(slope g + shift)).
struct Gate {
    float steepness;
    float bound;
    float slope;
    float2 bias;
    float2 shift;

    __device__ __forceinline__ Gate(const float* a_log, const float* dt_bias, float lower_bound, int head, int pair)
        : Gate(ptx::exp2_fast(fminf(a_log[head], 20.f) * kLog2E), dt_bias, lower_bound, head, pair) {}
    __device__ __forceinline__ Gate(float steepness, const float* dt_bias, float lower_bound, int head, int pair)
        : steepness(steepness),
          bound(lower_bound),
          slope(-kLog2E * steepness),
          bias(*reinterpret_cast<const float2*>(dt_bias + static_cast<int64_t>(head) * kDim + pair * 2)),
          shift(make_float2(bias.x * slope, bias.y * slope)) {}

    __device__ __forceinline__ float open_low(float g) const { return ptx::reciprocal_fast(1.f + ptx::exp2_fast(fmaf(g, slope, shift.x))); }
    __device__ __forceinline__ float open_high(float g) const { return ptx::reciprocal_fast(1.f + ptx::exp2_fast(fmaf(g, slope, shift.y))); }
};

// Running log2-decay of two channels over `Rows` rows (16, a tile, or 8), and their total to `totals`.
template <int Rows, class Tally>
__device__ __forceinline__ void decay_within(const unsigned char* g_image, const Gate& gate, int rows, int row_group, int pair,
                                             float (&fall)[Rows][2], float (*totals)[kDim], Tally& tally) {
    float sum[2] = {0.f, 0.f};
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
        const int row = row_group * Rows + r;
        const uint32_t raw = *reinterpret_cast<const uint32_t*>(g_image + element_offset(row, pair * 2));
        const float bound = row < rows ? gate.bound * kLog2E : 0.f;
        tally.see_gate(raw);
        sum[0] += bound * gate.open_low(ptx::low_bf16(raw));
        sum[1] += bound * gate.open_high(ptx::high_bf16(raw));
        fall[r][0] = sum[0];
        fall[r][1] = sum[1];
    }
    *reinterpret_cast<float2*>(&totals[row_group][pair * 2]) = make_float2(sum[0], sum[1]);
}

// Anchors of two channels for a group of rows, from the totals of all groups of `Rows` rows.
template <int Rows>
struct PairAnchors {
    float all[2][kNumTiles];  // R of every tile
    float own[2];             // R of this tile
    float offset[2];          // G just before the group, minus R
    float total[2];           // G of the chunk's last row
    float half_keep[2];       // 2^((total - R) / 2): squared, it takes a column 2^(R - G) to 2^(total - G) without a flush between

    __device__ __forceinline__ PairAnchors(const float (*totals)[kDim], int row_group, int pair) {
        constexpr int kPerTile = kTile / Rows;
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            float before = 0.f, mine = 0.f;
            own[c] = 0.f;
#pragma unroll
            for (int group = 0; group < kChunk / Rows; ++group) {
                if (group % kPerTile == 0) {
                    all[c][group / kPerTile] = rintf(before);
                    if (group / kPerTile == row_group / kPerTile) own[c] = rintf(before);
                }
                if (group == row_group) mine = before;
                before += totals[group][pair * 2 + c];
            }
            offset[c] = mine - own[c];
            total[c] = before;
            half_keep[c] = ptx::exp2_fast(0.5f * (before - own[c]));
        }
    }
};

// 2^distance, distance an integer <= 0, as the bits of two bfloat16 factors. Between neighbouring tiles the second is 1.
struct PowerPair {
    uint32_t first;
    uint32_t second;

    __device__ __forceinline__ explicit PowerPair(float distance) {
        const int whole = max(static_cast<int>(distance), -252);
        const int half = max(whole, -126);
        first = static_cast<uint32_t>((half + 127) << 7);
        second = static_cast<uint32_t>((whole - half + 127) << 7);
    }
};

}  // namespace kda
