// All gradients of a chunk, one block per (chunk, head), all chunks in parallel: one read of every operand, one write of every gradient.
//
//   products   dQ = dO S'  dW = -dVn S'  dKt = Vn dS'  dA_qk = tril(dO Vn')  dVn V'                        tensor cores, both warpgroups
//   operands   q, k by the decay as in the forward (decay.cuh)                                             ordinary arithmetic
//   inverse    dT = (dVn V') beta + dW (beta k e^G)'   dA = -stril(T' dT T')   [warpgroup 1]
//              tu = T' dVn -> dV, part of dbeta        [warpgroup 0]           tw = T' dW                  [both]
//   tiles      rows: dA_qk k, dA k     columns: dA_qk' q, dA' beta k           16 x 16 tiles, anchored as in the forward
//   gate       dG = q dq + k dk_rows - k dk_columns - k dkt, summed from the end; sigmoid, norms and sums over tokens
//
// A warp owns 16 rows and a warpgroup 64 channels of every [64, 128] result, so that everything of one element meets in one thread.
// dG is formed from the very bfloat16 operands that the tile products used: rows and columns then cancel as they do on paper.

#include "include/arguments.cuh"
#include "include/decay.cuh"
#include "include/registers.cuh"

namespace kda {
namespace {

constexpr int kThreads = 256;

struct GradientShared {
    union {
        unsigned char states[kStateImageBytes];
        float exponents[kChunk * kDim];           // G - R, permuted by exponent_index
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
    unsigned char v_new[kTokenImageBytes];        // then dT and dA
    unsigned char inverse[kSquareImageBytes];
    unsigned char d_scores[kSquareImageBytes];
    uint32_t between[6][2][kDim];                 // 2^(R_I - R_J), two factors, each doubled to a bfloat16 pair
    float tile_total[kNumTiles][kDim];
    float anchors[kNumTiles][kDim];
    float state_product[kDim];                    // sum over v of S dS' per key channel
    float column_sums[2][kNumTiles][kDim];
    float row_sums[3][2][kChunk];
    float d_beta_v[kChunk];
    float q_norm[kChunk];
    float k_norm[kChunk];
    float beta[kChunk];
    float a_log_parts[kThreads / 32];
    uint64_t landed;
};
static_assert(sizeof(GradientShared) <= 232448, "227 KiB a block");
static_assert(offsetof(GradientShared, between) % 16 == 0);

// Pairs of exponents are permuted so that eight rows read by a warp fall into different banks.
__device__ __forceinline__ int exponent_index(int row, int pair) { return row * kDim + ((pair ^ ((row & 3) << 2)) << 1); }

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
    load_tokens<kThreads>(shared.q_rows, arguments.q, chunk, head, arguments.num_heads);
    load_tokens<kThreads>(shared.k_rows, arguments.k, chunk, head, arguments.num_heads);
    load_tokens<kThreads>(shared.k_columns, arguments.g, chunk, head, arguments.num_heads);
    load_tokens<kThreads>(shared.d_o, arguments.d_o, chunk, head, arguments.num_heads);
    load_tokens<kThreads>(shared.v, arguments.v, chunk, head, arguments.num_heads);
    ptx::copy_async_commit();
}

// Partial sums over v of S dS' for 8 key channels and 8 rows of v, to `parts` [16][128].
__device__ __forceinline__ void multiply_states(const GradientShared& shared, float* parts) {
    const int piece = threadIdx.x & 15, group = threadIdx.x >> 4;
    float sums[8] = {};
#pragma unroll
    for (int r = 0; r < 8; ++r) {
        const int v = group + 16 * r;
        const uint32_t at = (v >> 6) * 2 * kPanelBytes + (piece >> 3) * kPanelBytes + piece_offset(v & 63, piece & 7);
        const uint4 a = *reinterpret_cast<const uint4*>(shared.states + at);
        const uint4 b = *reinterpret_cast<const uint4*>(shared.d_states + at);
        const uint32_t x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            sums[2 * i] += ptx::low_bf16(x[i]) * ptx::low_bf16(y[i]);
            sums[2 * i + 1] += ptx::high_bf16(x[i]) * ptx::high_bf16(y[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) parts[group * kDim + piece * 8 + i] = sums[i];
}

// The operands of the tile products, in place; exponents and beta k e^G beside them. Two channels of a tile per thread.
__device__ __forceinline__ void scale_by_decay(GradientShared& shared, const PairAnchors& at_tile, const float (&fall)[kTile][2],
                                               int row_tile, int pair, float scale) {
    *reinterpret_cast<float2*>(&shared.anchors[row_tile][pair * 2]) = make_float2(at_tile.own[0], at_tile.own[1]);
#pragma unroll
    for (int t = 0; t < kNumTiles - 1; ++t) {
        if (t < row_tile) {
            const int index = row_tile * (row_tile - 1) / 2 + t;
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                const PowerPair power(at_tile.own[c] - at_tile.all[c][t]);
                shared.between[index][0][pair * 2 + c] = power.first | power.first << 16;
                shared.between[index][1][pair * 2 + c] = power.second | power.second << 16;
            }
        }
    }
    const float grow[2] = {ptx::exp2_fast(at_tile.own[0]), ptx::exp2_fast(at_tile.own[1])};
#pragma unroll
    for (int r = 0; r < kTile; ++r) {
        const int row = row_tile * kTile + r;
        const uint32_t at = element_offset(row, pair * 2);
        const uint32_t q_raw = *reinterpret_cast<const uint32_t*>(shared.q_rows + at);
        const uint32_t k_raw = *reinterpret_cast<const uint32_t*>(shared.k_rows + at);
        const float q_norm = shared.q_norm[row] * scale, k_norm = shared.k_norm[row], beta = shared.beta[row];
        float q_row[2], k_row[2], k_column[2], exponent[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            exponent[c] = fall[r][c] + at_tile.offset[c];
            const float down = ptx::exp2_fast(exponent[c]);
            const float k = (c ? ptx::high_bf16(k_raw) : ptx::low_bf16(k_raw)) * k_norm;
            q_row[c] = (c ? ptx::high_bf16(q_raw) : ptx::low_bf16(q_raw)) * q_norm * down;
            k_row[c] = k * down * beta;
            k_column[c] = k * ptx::exp2_fast(-exponent[c]);
        }
        *reinterpret_cast<uint32_t*>(shared.q_rows + at) = ptx::pack_bf16(q_row[0], q_row[1]);
        *reinterpret_cast<uint32_t*>(shared.k_rows + at) = ptx::pack_bf16(k_row[0], k_row[1]);
        *reinterpret_cast<uint32_t*>(shared.k_columns + at) = ptx::pack_bf16(k_column[0], k_column[1]);
        *reinterpret_cast<uint32_t*>(shared.k_beta_grown + at) = ptx::pack_bf16(k_row[0] * grow[0], k_row[1] * grow[1]);
        *reinterpret_cast<float2*>(&shared.exponents[exponent_index(row, pair)]) = make_float2(exponent[0], exponent[1]);
    }
}

// A [64, 64] accumulator to a square image, keeping row > column (or row >= column), times `sign`.
__device__ __forceinline__ void store_lower(unsigned char* image, float (&d)[32], bool with_diagonal, float sign) {
    const int lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) & 3;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
        const int row = warp * 16 + (lane >> 2) + ((i >> 1) & 1) * 8, column = (i >> 2) * 8 + (lane & 3) * 2 + (i & 1);
        d[i] = row > column || (with_diagonal && row == column) ? d[i] : 0.f;
    }
    store_panel(image, 0, d, sign);
}

// dT and dA, by warpgroup 1. `d` holds dVn V' on entry.
__device__ __forceinline__ void differentiate_inverse(GradientShared& shared, float (&d)[32]) {
    const int lane = threadIdx.x & 31;
    const uint32_t d_w = ptx::shared_address(shared.d_w), k = ptx::shared_address(shared.k_beta_grown);
    const uint32_t inverse = ptx::shared_address(shared.inverse), d_t = ptx::shared_address(shared.v_new);
#pragma unroll
    for (int i = 0; i < 32; ++i) d[i] *= shared.beta[(i >> 2) * 8 + (lane & 3) * 2 + (i & 1)];
    ptx::wgmma_pin(d);
    ptx::wgmma_fence();
#pragma unroll
    for (int s = 0; s < 8; ++s) ptx::wgmma_ss<0, 0>(d, descriptor(along_row(d_w, s)), descriptor(along_row(k, s)));
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(d);
    store_panel(shared.v_new, 0, d, 1.f);
    ptx::fence_async_shared();
    ptx::named_barrier(1, 128);
    ptx::wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; ++s) {
        ptx::wgmma_ss<1, 1>(d, descriptor(inverse + s * kDownRows), descriptor(d_t + s * kDownRows), s > 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(d);
    uint32_t x[16];
    to_operand(x, d);
    ptx::wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; ++s) {
        ptx::wgmma_rs<0>(d, x[4 * s], x[4 * s + 1], x[4 * s + 2], x[4 * s + 3], descriptor(inverse + s * kAlongRow), s > 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(d);
    store_lower(shared.v_new + kSquareImageBytes, d, false, -1.f);
}

// dV and the part of dbeta that comes with it, by warpgroup 0.
__device__ __forceinline__ void differentiate_values(GradientShared& shared) {
    const int lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) & 3;
    const uint32_t inverse = ptx::shared_address(shared.inverse), d_v_new = ptx::shared_address(shared.d_v_new);
    const float beta[2] = {shared.beta[warp * 16 + (lane >> 2)], shared.beta[warp * 16 + (lane >> 2) + 8]};
    float sums[2] = {0.f, 0.f};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float d[32];
        ptx::wgmma_fence();
#pragma unroll
        for (int s = 0; s < 4; ++s) {
            ptx::wgmma_ss<1, 0>(d, descriptor(inverse + s * kDownRows), descriptor(d_v_new + half * kPanelBytes + s * kAlongRow), s > 0);
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
        store_panel(shared.d_o + half * kPanelBytes, 0, d, 1.f);
    }
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
        sums[upper] += __shfl_xor_sync(~0u, sums[upper], 1);
        sums[upper] += __shfl_xor_sync(~0u, sums[upper], 2);
        if ((lane & 3) == 0) shared.d_beta_v[warp * 16 + (lane >> 2) + upper * 8] = sums[upper];
    }
}

// d [16, 64] += a b over one 16-row tile; b from an image, scaled between tiles when `between` >= 0.
__device__ __forceinline__ void tile_product(const GradientShared& shared, const unsigned char* image, int tile, int group, int between,
                                             const uint32_t (&a)[4], float (&d)[32], const uint32_t (*second_a)[4], float (*second_d)[32]) {
    const int lane = threadIdx.x & 31;
    const uint32_t base = ptx::shared_address(image) + group * kPanelBytes;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        uint32_t b[4];
        ptx::load_matrix_x4_transposed(b, base + piece_offset(tile * kTile + (lane & 15), 2 * n + (lane >> 4)));
        if (between >= 0) {
            const int channel = group * kHalf + n * 16 + (lane >> 2);
#pragma unroll
            for (int factor = 0; factor < 2; ++factor) {
                const uint32_t low = shared.between[between][factor][channel], high = shared.between[between][factor][channel + 8];
                b[0] = ptx::multiply_bf16x2(b[0], low);
                b[1] = ptx::multiply_bf16x2(b[1], low);
                b[2] = ptx::multiply_bf16x2(b[2], high);
                b[3] = ptx::multiply_bf16x2(b[3], high);
            }
        }
        ptx::mma_bf16(d + 8 * n, a, b[0], b[1]);
        ptx::mma_bf16(d + 8 * n + 4, a, b[2], b[3]);
        if (second_d) {
            ptx::mma_bf16(*second_d + 8 * n, *second_a, b[0], b[1]);
            ptx::mma_bf16(*second_d + 8 * n + 4, *second_a, b[2], b[3]);
        }
    }
}

// Adds the products of this warp's row tile: dA_qk k to `d_q`, dA k to `d_k`.
__device__ __forceinline__ void row_products(const GradientShared& shared, int row_tile, int group, float (&d_q)[32], float (&d_k)[32]) {
    const int lane = threadIdx.x & 31;
    const uint32_t scores = ptx::shared_address(shared.d_scores), a_kk = ptx::shared_address(shared.v_new) + kSquareImageBytes;
    for (int tile = 0; tile <= row_tile; ++tile) {
        const uint32_t at = piece_offset(row_tile * kTile + (lane & 15), 2 * tile + (lane >> 4));
        uint32_t a_q[4], a_k[4];
        ptx::load_matrix_x4(a_q, scores + at);
        ptx::load_matrix_x4(a_k, a_kk + at);
        const int between = tile < row_tile ? row_tile * (row_tile - 1) / 2 + tile : -1;
        tile_product(shared, shared.k_columns, tile, group, between, a_q, d_q, &a_k, &d_k);
    }
}

// The products of this warp's column tile, without the outer 2^(R - G): dA_qk' q + dA' beta k.
__device__ __forceinline__ void column_products(const GradientShared& shared, int column_tile, int group, float (&d)[32]) {
    const int lane = threadIdx.x & 31;
    const uint32_t scores = ptx::shared_address(shared.d_scores), a_kk = ptx::shared_address(shared.v_new) + kSquareImageBytes;
#pragma unroll
    for (int i = 0; i < 32; ++i) d[i] = 0.f;
    for (int tile = kNumTiles - 1; tile >= column_tile; --tile) {
        if (tile == column_tile && tile < kNumTiles - 1) {
            // So far relative to the next tile's anchor, where nothing that matters can flush.
#pragma unroll
            for (int i = 0; i < 32; ++i) {
                const int channel = group * kHalf + (i >> 2) * 8 + (lane & 3) * 2 + (i & 1);
                d[i] *= ptx::exp2_fast(shared.anchors[column_tile + 1][channel] - shared.anchors[column_tile][channel]);
            }
        }
        const uint32_t at = piece_offset(tile * kTile + (lane >> 4) * 8 + (lane & 7), 2 * column_tile + ((lane >> 3) & 1));
        uint32_t a_q[4], a_k[4];
        ptx::load_matrix_x4_transposed(a_q, scores + at);
        ptx::load_matrix_x4_transposed(a_k, a_kk + at);
        const int between = tile > column_tile + 1 ? tile * (tile - 1) / 2 + column_tile + 1 : -1;
        tile_product(shared, shared.q_rows, tile, group, between, a_q, d, nullptr, nullptr);
        tile_product(shared, shared.k_rows, tile, group, between, a_k, d, nullptr, nullptr);
    }
}

// Sum of rows `row`.. 15 of a tile for one channel: `first` is row lane / 4, `second` the row 8 below. Returns the tile's total.
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

__device__ __forceinline__ float sum_over_rows(float x) {
#pragma unroll
    for (int mask = 4; mask < 32; mask <<= 1) x += __shfl_xor_sync(~0u, x, mask);
    return x;
}

__device__ __forceinline__ void store_tokens(__nv_bfloat16* tokens, const unsigned char* image, const Chunk& chunk, int head, int num_heads) {
    const int64_t row_stride = static_cast<int64_t>(num_heads) * kDim;
    __nv_bfloat16* start = tokens + static_cast<int64_t>(chunk.first_token) * row_stride + static_cast<int64_t>(head) * kDim;
#pragma unroll
    for (int n = 0; n < kChunk * 16 / kThreads; ++n) {
        const int index = threadIdx.x + n * kThreads;
        const int row = index >> 4, piece = index & 15;
        if (row < chunk.rows) {
            *reinterpret_cast<uint4*>(start + row * row_stride + piece * 8) =
                *reinterpret_cast<const uint4*>(image + (piece >> 3) * kPanelBytes + piece_offset(row, piece & 7));
        }
    }
}

// From accumulators to gradients. On entry d_q, d_k (rows), d_column and d_kept lack their decay factors; see the formulas inside.
__device__ __forceinline__ void finish(GradientShared& shared, const GradientArguments& arguments, const Chunk& chunk, int head, int64_t tile,
                                       int group, float (&d_q)[32], float (&d_k)[32], const float (&d_column)[32], float (&d_kept)[32]) {
    const int lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) & 3;
    const int first_row = warp * 16 + (lane >> 2);
    const float beta[2] = {shared.beta[first_row], shared.beta[first_row + 8]};
    const float k_norm[2] = {shared.k_norm[first_row], shared.k_norm[first_row + 8]};
    float q_dot[2] = {0.f, 0.f}, k_dot[2] = {0.f, 0.f}, beta_dot[2] = {0.f, 0.f};
#pragma unroll
    for (int n = 0; n < 8; ++n) {
        const int channel = group * kHalf + n * 8 + (lane & 3) * 2;
        const float2 anchor = *reinterpret_cast<const float2*>(&shared.anchors[warp][channel]);
        float total[2], kept_sum[2] = {0.f, 0.f};
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            total[c] = 0.f;
#pragma unroll
            for (int t = 0; t < kNumTiles; ++t) total[c] += shared.tile_total[t][channel + c];
        }
        const float half_keep[2] = {ptx::exp2_fast(0.5f * (total[0] - anchor.x)), ptx::exp2_fast(0.5f * (total[1] - anchor.y))};
#pragma unroll
        for (int upper = 0; upper < 2; ++upper) {
            const int row = first_row + upper * 8;
            const uint32_t at = group * kPanelBytes + piece_offset(row, n) + (lane & 3) * 4;
            const uint32_t q_row = *reinterpret_cast<const uint32_t*>(shared.q_rows + at);
            const uint32_t k_row = *reinterpret_cast<const uint32_t*>(shared.k_rows + at);
            const uint32_t k_column = *reinterpret_cast<const uint32_t*>(shared.k_columns + at);
            const uint32_t k_raw = *reinterpret_cast<const uint32_t*>(shared.k_raw + at);
            const float2 exponents = *reinterpret_cast<const float2*>(&shared.exponents[exponent_index(row, channel >> 1)]);
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                const int i = 4 * n + 2 * upper + c;
                const float exponent = c ? exponents.y : exponents.x;
                const float down = ptx::exp2_fast(exponent), up = ptx::exp2_fast(-exponent);
                const float column = c ? ptx::high_bf16(k_column) : ptx::low_bf16(k_column);
                const float from_q = (c ? ptx::high_bf16(q_row) : ptx::low_bf16(q_row)) * d_q[i];
                const float from_row = (c ? ptx::high_bf16(k_row) : ptx::low_bf16(k_row)) * d_k[i];
                const float from_column = column * d_column[i];
                const float from_kept = column * half_keep[c] * half_keep[c] * d_kept[i];
                q_dot[upper] += from_q;
                k_dot[upper] += from_row + from_column + from_kept;
                beta_dot[upper] += (c ? ptx::high_bf16(k_raw) : ptx::low_bf16(k_raw)) * k_norm[upper] * down * d_k[i];
                kept_sum[c] += from_kept;
                d_q[i] *= arguments.scale * down;
                d_k[i] = beta[upper] * down * d_k[i] + up * d_column[i] + up * half_keep[c] * half_keep[c] * d_kept[i];
                d_kept[i] = from_q + from_row - from_column - from_kept;  // dG
            }
        }
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            const float tile_sum = sum_from_end(d_kept[4 * n + c], d_kept[4 * n + 2 + c]);
            kept_sum[c] = sum_over_rows(kept_sum[c]);
            if (lane < 4) {
                shared.column_sums[0][warp][channel + c] = tile_sum;
                shared.column_sums[1][warp][channel + c] = kept_sum[c];
            }
        }
    }
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
#pragma unroll
        for (int mask = 1; mask < 4; mask <<= 1) {
            q_dot[upper] += __shfl_xor_sync(~0u, q_dot[upper], mask);
            k_dot[upper] += __shfl_xor_sync(~0u, k_dot[upper], mask);
            beta_dot[upper] += __shfl_xor_sync(~0u, beta_dot[upper], mask);
        }
        if ((lane & 3) == 0) {
            shared.row_sums[0][group][first_row + upper * 8] = q_dot[upper];
            shared.row_sums[1][group][first_row + upper * 8] = k_dot[upper];
            shared.row_sums[2][group][first_row + upper * 8] = beta_dot[upper];
        }
    }
    __syncthreads();

    if (threadIdx.x < chunk.rows) {
        const int row = threadIdx.x;
        const float strength = shared.beta[row];
        const float d_beta = shared.d_beta_v[row] + shared.row_sums[2][0][row] + shared.row_sums[2][1][row];
        arguments.d_beta[static_cast<int64_t>(chunk.first_token + row) * arguments.num_heads + head] =
            __float2bfloat16_rn(d_beta * strength * (1.f - strength));
    }
    float d_a_log = 0.f, bias_sums[16];
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
        q_dot[upper] = shared.row_sums[0][0][first_row + upper * 8] + shared.row_sums[0][1][first_row + upper * 8];
        k_dot[upper] = shared.row_sums[1][0][first_row + upper * 8] + shared.row_sums[1][1][first_row + upper * 8];
    }
    const float q_norm[2] = {shared.q_norm[first_row], shared.q_norm[first_row + 8]};
#pragma unroll
    for (int n = 0; n < 8; ++n) {
        const int channel = group * kHalf + n * 8 + (lane & 3) * 2;
        const Gate gate(arguments.a_log, arguments.dt_bias, arguments.lower_bound, head, channel >> 1);
        float later[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            float total = 0.f;
            later[c] = 0.f;
#pragma unroll
            for (int t = 0; t < kNumTiles; ++t) {
                total += shared.tile_total[t][channel + c];
                later[c] += shared.column_sums[1][t][channel + c];
                if (t > warp) later[c] += shared.column_sums[0][t][channel + c];
            }
            later[c] += ptx::exp2_fast(total) * shared.state_product[channel + c];
            bias_sums[2 * n + c] = 0.f;
        }
#pragma unroll
        for (int upper = 0; upper < 2; ++upper) {
            const int row = first_row + upper * 8;
            const uint32_t at = group * kPanelBytes + piece_offset(row, n) + (lane & 3) * 4;
            const uint32_t q_raw = *reinterpret_cast<const uint32_t*>(shared.q_raw + at);
            const uint32_t k_raw = *reinterpret_cast<const uint32_t*>(shared.k_raw + at);
            const uint32_t g_raw = *reinterpret_cast<const uint32_t*>(shared.d_v_new + at);
            float d_g[2];
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                const int i = 4 * n + 2 * upper + c;
                const float pre_activation = (c ? ptx::high_bf16(g_raw) + gate.bias.y : ptx::low_bf16(g_raw) + gate.bias.x);
                const float open = gate.sigmoid(pre_activation);
                d_g[c] = (d_kept[i] + later[c]) * gate.bound * open * (1.f - open) * gate.steepness;
                if (row >= chunk.rows) d_g[c] = 0.f;
                d_a_log += d_g[c] * pre_activation;
                bias_sums[2 * n + c] += d_g[c];
                const float q_unit = (c ? ptx::high_bf16(q_raw) : ptx::low_bf16(q_raw)) * q_norm[upper];
                const float k_unit = (c ? ptx::high_bf16(k_raw) : ptx::low_bf16(k_raw)) * k_norm[upper];
                d_q[i] = q_norm[upper] * (d_q[i] - q_unit * q_dot[upper]);
                d_k[i] = k_norm[upper] * (d_k[i] - k_unit * k_dot[upper]);
            }
            // Each thread overwrites just what it read.
            *reinterpret_cast<uint32_t*>(shared.q_raw + at) = ptx::pack_bf16(d_q[4 * n + 2 * upper], d_q[4 * n + 2 * upper + 1]);
            *reinterpret_cast<uint32_t*>(shared.k_raw + at) = ptx::pack_bf16(d_k[4 * n + 2 * upper], d_k[4 * n + 2 * upper + 1]);
            *reinterpret_cast<uint32_t*>(shared.d_v_new + at) = ptx::pack_bf16(d_g[0], d_g[1]);
        }
    }
    __syncthreads();
    store_tokens(arguments.d_q, shared.q_raw, chunk, head, arguments.num_heads);
    store_tokens(arguments.d_k, shared.k_raw, chunk, head, arguments.num_heads);
    store_tokens(arguments.d_v, shared.d_o, chunk, head, arguments.num_heads);
    store_tokens(arguments.d_g, shared.d_v_new, chunk, head, arguments.num_heads);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        const float sum = sum_over_rows(bias_sums[i]);
        if (lane < 4) shared.column_sums[0][warp][group * kHalf + (i >> 1) * 8 + lane * 2 + (i & 1)] = sum;
    }
    d_a_log += __shfl_xor_sync(~0u, d_a_log, 1);
    d_a_log += __shfl_xor_sync(~0u, d_a_log, 2);
    d_a_log = sum_over_rows(d_a_log);
    if (lane == 0) shared.a_log_parts[threadIdx.x >> 5] = d_a_log;
    __syncthreads();
    if (threadIdx.x < kDim) {
        float sum = 0.f;
#pragma unroll
        for (int t = 0; t < kNumTiles; ++t) sum += shared.column_sums[0][t][threadIdx.x];
        arguments.d_dt_bias_parts[tile * kDim + threadIdx.x] = sum;
    } else if (threadIdx.x == kDim) {
        float sum = 0.f;
#pragma unroll
        for (int w = 0; w < kThreads / 32; ++w) sum += shared.a_log_parts[w];
        arguments.d_a_log_parts[tile] = sum;
    }
}

__global__ void __launch_bounds__(kThreads, 1) gradient(const __grid_constant__ GradientArguments arguments) {
    extern __shared__ __align__(1024) unsigned char raw_shared[];
    GradientShared& shared = *reinterpret_cast<GradientShared*>(raw_shared);
    const int64_t tile = blockIdx.x;
    const int head = static_cast<int>(tile % arguments.num_heads);
    const Chunk chunk = arguments.chunks[tile / arguments.num_heads];
    const int pair = threadIdx.x & 63, row_tile = threadIdx.x >> 6;
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

    const uint32_t states = ptx::shared_address(shared.states) + group * kPanelBytes;
    const uint32_t d_states = ptx::shared_address(shared.d_states) + group * kPanelBytes;
    const uint32_t d_o = ptx::shared_address(shared.d_o), v = ptx::shared_address(shared.v);
    const uint32_t v_new = ptx::shared_address(shared.v_new), d_v_new = ptx::shared_address(shared.d_v_new);
    float d_q[32], d_w[32], d_kept[32], square[32];
    ptx::wgmma_fence();
#pragma unroll
    for (int s = 0; s < 8; ++s) {
        const uint32_t down = (s >> 2) * 2 * kPanelBytes + (s & 3) * kDownRows;
        ptx::wgmma_ss<0, 1>(d_q, descriptor(along_row(d_o, s)), descriptor(states + down), s > 0);
        ptx::wgmma_ss<1, 1>(d_w, descriptor(d_v_new + s * kDownRows), descriptor(states + down), s > 0);
        ptx::wgmma_ss<1, 1>(d_kept, descriptor(v_new + s * kDownRows), descriptor(d_states + down), s > 0);
    }
    if (group == 0) {
#pragma unroll
        for (int s = 0; s < 8; ++s) {
            ptx::wgmma_ss<0, 1>(square, descriptor(along_row(d_o, s)), descriptor(v_new + s * kDownRows), s > 0);
        }
    } else {
#pragma unroll
        for (int s = 0; s < 8; ++s) {
            ptx::wgmma_ss<1, 0>(square, descriptor(d_v_new + s * kDownRows), descriptor(along_row(v, s)), s > 0);
        }
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(d_q);
    ptx::wgmma_pin(d_w);
    ptx::wgmma_pin(d_kept);
    ptx::wgmma_pin(square);

    row_norms(shared.q_rows, shared.k_rows, shared.q_norm, shared.k_norm);
    float* parts = reinterpret_cast<float*>(shared.d_scores);  // 8 KiB, not yet in use
    static_assert(sizeof(shared.d_scores) >= 16 * kDim * sizeof(float));
    multiply_states(shared, parts);
    const Gate gate(arguments.a_log, arguments.dt_bias, arguments.lower_bound, head, pair);
    float fall[kTile][2];
    decay_within_tile(shared.k_columns, gate, chunk.rows, row_tile, pair, fall, shared.tile_total);
    __syncthreads();
    if (threadIdx.x < kDim) {
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < 16; ++i) sum += parts[i * kDim + threadIdx.x];
        shared.state_product[threadIdx.x] = sum;
    }
    const PairAnchors at_tile(shared.tile_total, row_tile, pair);
    scale_by_decay(shared, at_tile, fall, row_tile, pair, arguments.scale);
    store_panel(shared.d_w + group * kPanelBytes, 0, d_w, -1.f);
    __syncthreads();
    if (group == 0) store_lower(shared.d_scores, square, true, 1.f);
    ptx::fence_async_shared();
    __syncthreads();

    float d_k[32];
    const uint32_t inverse = ptx::shared_address(shared.inverse), d_w_panel = ptx::shared_address(shared.d_w) + group * kPanelBytes;
    ptx::wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; ++s) {
        ptx::wgmma_ss<1, 1>(d_k, descriptor(inverse + s * kDownRows), descriptor(d_w_panel + s * kDownRows), s > 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(d_k);
    if (group == 0) {
        differentiate_values(shared);
    } else {
        differentiate_inverse(shared, square);
    }
    __syncthreads();
    // Raw inputs once more, from L2, where the spent operands were.
    load_tokens<kThreads>(shared.q_raw, arguments.q, chunk, head, arguments.num_heads);
    load_tokens<kThreads>(shared.k_raw, arguments.k, chunk, head, arguments.num_heads);
    load_tokens<kThreads>(shared.d_v_new, arguments.g, chunk, head, arguments.num_heads);
    ptx::copy_async_commit();

    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
        const float grow = ptx::exp2_fast(shared.anchors[warp][group * kHalf + (i >> 2) * 8 + (lane & 3) * 2 + (i & 1)]);
        d_q[i] *= grow;
        d_k[i] *= grow;
    }
    row_products(shared, warp, group, d_q, d_k);
    float d_column[32];
    column_products(shared, warp, group, d_column);
    ptx::copy_async_wait<0>();
    __syncthreads();
    finish(shared, arguments, chunk, head, tile, group, d_q, d_k, d_column, d_kept);
}

// Sums the parts of all chunks in a fixed order, one block per head.
__global__ void __launch_bounds__(1024, 1) reduce(const __grid_constant__ ReduceArguments arguments) {
    __shared__ float sums[8][kDim + 1];
    const int head = blockIdx.x, channel = threadIdx.x & (kDim - 1), lane_group = threadIdx.x >> 7;
    float bias = 0.f, a_log = 0.f;
#pragma unroll 4
    for (int chunk = lane_group; chunk < arguments.num_chunks; chunk += 8) {
        const int64_t tile = static_cast<int64_t>(chunk) * arguments.num_heads + head;
        bias += arguments.d_dt_bias_parts[tile * kDim + channel];
        if (channel == 0) a_log += arguments.d_a_log_parts[tile];
    }
    sums[lane_group][channel] = bias;
    if (channel == 0) sums[lane_group][kDim] = a_log;
    __syncthreads();
    if (threadIdx.x <= kDim) {
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < 8; ++i) sum += sums[i][threadIdx.x];
        if (threadIdx.x < kDim) {
            arguments.d_dt_bias[static_cast<int64_t>(head) * kDim + threadIdx.x] = sum;
        } else {
            arguments.d_a_log[head] = sum;
        }
    }
}

}  // namespace
}  // namespace kda

// Called by kda/sm90_launch.py. Return a cudaError_t; never throw, synchronise or allocate.
extern "C" int sm90_kda_gradient(const kda::GradientArguments* arguments, cudaStream_t stream) {
    using namespace kda;
    const int64_t tiles = static_cast<int64_t>(arguments->num_chunks) * arguments->num_heads;
    if (tiles == 0) return 0;
    const cudaError_t error = cudaFuncSetAttribute(gradient, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(GradientShared));
    if (error != cudaSuccess) return static_cast<int>(error);
    gradient<<<static_cast<unsigned>(tiles), kThreads, sizeof(GradientShared), stream>>>(*arguments);
    return static_cast<int>(cudaGetLastError());
}
extern "C" int sm90_kda_reduce(const kda::ReduceArguments* arguments, cudaStream_t stream) {
    if (arguments->num_heads == 0) return 0;
    kda::reduce<<<arguments->num_heads, 1024, 0, stream>>>(*arguments);
    return static_cast<int>(cudaGetLastError());
}
