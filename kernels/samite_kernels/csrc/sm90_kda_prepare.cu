// Everything of a chunk that doesn't need the state, one block per (chunk, head), all chunks in parallel.
//
//   raw q, k, g, beta -> norms, log-decay, cumulative decay
//                     -> score tiles A_kk, A_qk (16 x 16, one anchor per row tile)
//                     -> inverse of I + A_kk (16 x 16 by substitution in float32, then block doubling)
//                     -> -W, U (forward) or the inverse itself (backward), q e^G, k e^(G_last - G), A_qk, e^G_last
//
// Exponents. G is the cumulative log2-decay of the chunk and R_I the integer nearest to G just before tile I. A row of tile I carries
// 2^(G - R_I), a column 2^(R_I - G): with the bound of -5 both stay within 2^+-116. Between tiles I > J the columns of J are scaled by
// 2^(R_I - R_J), a power of two and therefore exact in bfloat16, applied as two factors so that neither flushes.

#include "include/arguments.cuh"
#include "include/decay.cuh"
#include "include/registers.cuh"

namespace kda {
namespace {

constexpr int kThreads = 256;
constexpr int kInversePitch = 72;            // halves per row: 144 bytes keep ldmatrix free of conflicts
constexpr int kDiagonalPitch = kTile * kTile + 4;

struct PrepareShared {
    unsigned char q[kTokenImageBytes];       // raw, then q 2^(G - R); at last U transposed
    unsigned char k[kTokenImageBytes];       // raw, then k 2^(G - R); then the inverse; at last -W
    unsigned char g[kTokenImageBytes];       // raw, then k 2^(R - G); then the inverse times beta
    unsigned char v[kTokenImageBytes];
    unsigned char k_grown[kTokenImageBytes]; // k 2^G
    unsigned char scores[kSquareImageBytes];
    __half a_off[kChunk * kInversePitch];    // A_kk below the diagonal tiles
    float a_diagonal[kNumTiles * kDiagonalPitch];
    float tile_total[kNumTiles][kDim];
    uint32_t between[6][2][kDim / 2];        // 2^(R_I - R_J) as two packed bfloat16 factors per channel pair
    float q_norm[kChunk];
    float k_norm[kChunk];
    float beta[kChunk];
};
static_assert(sizeof(PrepareShared) <= 113 * 1024, "two blocks per multiprocessor");
static_assert(kChunk * kInversePitch * 2 <= kTokenImageBytes, "the inverse replaces an operand");

// Turns the raw tile into operands, in place. A thread owns two channels of one 16-row tile.
__device__ __forceinline__ void scale_by_decay(PrepareShared& shared, const PrepareArguments& arguments, const Chunk& chunk, int head,
                                               int64_t tile) {
    const int pair = threadIdx.x & 63, row_tile = threadIdx.x >> 6;
    const Gate gate(arguments.a_log, arguments.dt_bias, arguments.lower_bound, head, pair);
    float fall[kTile][2];
    decay_within<kTile>(shared.g, gate, chunk.rows, row_tile, pair, fall, shared.tile_total);
    __syncthreads();
    const PairAnchors<kTile> at_tile(shared.tile_total, row_tile, pair);
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
        *reinterpret_cast<uint32_t*>(shared.k_grown + at) = ptx::pack_bf16(k_row[0] * grow[0], k_row[1] * grow[1]);
        *reinterpret_cast<uint32_t*>(q_grown + at) = ptx::pack_bf16(q_row[0] * grow[0], q_row[1] * grow[1]);
        *reinterpret_cast<uint32_t*>(k_kept + at) = ptx::pack_bf16(k_column[0] * at_tile.half_keep[0] * at_tile.half_keep[0],
                                                                   k_column[1] * at_tile.half_keep[1] * at_tile.half_keep[1]);
    }
}

// The ten lower 16 x 16 tiles of both score matrices, in twenty units of 8 columns over the 8 warps.
__device__ __forceinline__ void score_tiles(PrepareShared& shared) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const uint32_t q_rows = ptx::shared_address(shared.q), k_rows = ptx::shared_address(shared.k);
    const uint32_t k_columns = ptx::shared_address(shared.g);
    for (int unit = warp; unit < 20; unit += kThreads / 32) {
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
__device__ __forceinline__ void invert_diagonal(const PrepareShared& shared, __half* inverse) {
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

// inverse[rows, columns] = -inverse[rows, rows] a_off[rows, columns] inverse[columns, columns] for one strip of 8 columns.
// `Blocks` 16-row blocks on each side: 1 joins 16 to 32, 2 joins 32 to 64.
template <int Blocks>
__device__ __forceinline__ void join_strip(const PrepareShared& shared, __half* inverse, int first_row, int first_column, int strip) {
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
__device__ __forceinline__ void inverse_to_operand(const PrepareShared& shared, const __half* inverse, unsigned char* with_beta,
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

template <bool Backward>
__global__ void __launch_bounds__(kThreads, 2) prepare(const __grid_constant__ PrepareArguments arguments) {
    extern __shared__ __align__(1024) unsigned char raw_shared[];
    PrepareShared& shared = *reinterpret_cast<PrepareShared*>(raw_shared);
    const int64_t tile = blockIdx.x;
    const int index = static_cast<int>(blockIdx.x / static_cast<unsigned>(arguments.num_heads));
    const int head = static_cast<int>(blockIdx.x) - index * arguments.num_heads;
    const Chunk chunk = arguments.chunks[index];

    load_tokens<kThreads>(shared.q, arguments.q, chunk, head, arguments.num_heads);
    load_tokens<kThreads>(shared.k, arguments.k, chunk, head, arguments.num_heads);
    load_tokens<kThreads>(shared.g, arguments.g, chunk, head, arguments.num_heads);
    ptx::copy_async_commit();
    if (!Backward) load_tokens<kThreads>(shared.v, arguments.v, chunk, head, arguments.num_heads);
    ptx::copy_async_commit();
    if (threadIdx.x < kChunk) shared.beta[threadIdx.x] = write_strength(arguments.beta, chunk, head, arguments.num_heads, threadIdx.x);
    for (int i = threadIdx.x; i < kSquareImageBytes / 16; i += kThreads) {
        reinterpret_cast<uint4*>(shared.scores)[i] = make_uint4(0, 0, 0, 0);
    }
    ptx::copy_async_wait<1>();
    __syncthreads();
    row_norms<kThreads>(shared.q, shared.k, shared.q_norm, shared.k_norm);
    scale_by_decay(shared, arguments, chunk, head, tile);
    __syncthreads();
    score_tiles(shared);
    ptx::fence_async_shared();
    __syncthreads();

    // The row and column operands of the scores are spent: their places take the inverse, and at last U and W.
    __half* inverse = reinterpret_cast<__half*>(shared.k);
    unsigned char* inverse_beta = shared.g;
    const int warp = threadIdx.x >> 5;
    if (threadIdx.x == 0) {
        ptx::bulk_store(arguments.scores + tile * kSquareImageBytes, ptx::shared_address(shared.scores), kSquareImageBytes);
        ptx::bulk_store_commit();
    }
    if (warp < 2) {
        invert_diagonal(shared, inverse);
    } else {
        // The six tiles above the diagonal, two pieces of 16 bytes a row.
        const int index = threadIdx.x - 64, piece = index & 1, row = (index >> 1) & 15, place = index >> 5;
        const int row_tile = place < 3 ? 0 : place < 5 ? 1 : 2;
        const int column_tile = place < 3 ? place + 1 : place < 5 ? place - 1 : 3;
        *reinterpret_cast<uint4*>(&inverse[(row_tile * kTile + row) * kInversePitch + column_tile * kTile + piece * 8]) =
            make_uint4(0, 0, 0, 0);
    }
    __syncthreads();
    if (warp < 4) join_strip<1>(shared, inverse, (warp >> 1) * 32 + 16, (warp >> 1) * 32, warp & 1);
    __syncthreads();
    if (warp < 4) join_strip<2>(shared, inverse, 32, 0, warp);
    __syncthreads();
    inverse_to_operand(shared, inverse, inverse_beta, Backward ? arguments.inverse + tile * kSquareImageBytes : nullptr);
    ptx::copy_async_wait<0>();
    ptx::fence_async_shared();
    __syncthreads();

    const int group = threadIdx.x >> 7;
    const Operand left(inverse_beta), grown(shared.k_grown + group * kPanelBytes), values(shared.v + group * kPanelBytes);
    float w[32], u[32];
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kChunk / 16; ++step) {
        ptx::wgmma_ss<0, 1>(w, left.along(step), grown.down(step), step > 0);
        if (!Backward) {
            ptx::wgmma_ss<1, 0>(u, values.down(step), left.along(step), step > 0);
        }
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(w);
    store_panel(shared.k + group * kPanelBytes, 0, 0, w, -1.f);
    if (!Backward) {
        ptx::wgmma_pin(u);
        store_panel(shared.q, group * kHalf, 0, u, 1.f);
    }
    ptx::fence_async_shared();
    __syncthreads();
    if (threadIdx.x == 0) {
        ptx::bulk_store(arguments.minus_w + tile * kTokenImageBytes, ptx::shared_address(shared.k), kTokenImageBytes);
        if (!Backward) {
            ptx::bulk_store(arguments.u_transposed + tile * kTokenImageBytes, ptx::shared_address(shared.q), kTokenImageBytes);
        }
        ptx::bulk_store_commit();
        ptx::bulk_store_wait_read<0>();
    }
}

template <bool Backward>
int launch(const PrepareArguments* arguments, cudaStream_t stream) {
    const int64_t tiles = static_cast<int64_t>(arguments->num_chunks) * arguments->num_heads;
    if (tiles == 0) return 0;
    const cudaError_t error =
        cudaFuncSetAttribute(prepare<Backward>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(PrepareShared));
    if (error != cudaSuccess) return static_cast<int>(error);
    prepare<Backward><<<static_cast<unsigned>(tiles), kThreads, sizeof(PrepareShared), stream>>>(*arguments);
    return static_cast<int>(cudaGetLastError());
}

}  // namespace
}  // namespace kda

// Called by kda/sm90_launch.py. Returns a cudaError_t; never throws, synchronises or allocates.
extern "C" int sm90_kda_prepare_forward(const kda::PrepareArguments* arguments, cudaStream_t stream) {
    return kda::launch<false>(arguments, stream);
}
extern "C" int sm90_kda_prepare_backward(const kda::PrepareArguments* arguments, cudaStream_t stream) {
    return kda::launch<true>(arguments, stream);
}
