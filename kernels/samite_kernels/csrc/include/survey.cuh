// The decay signals, counted by four warps of the prepare kernel that have nothing to do while the other four join the inverse.
//
// The phases before run as if nothing was counted. What they left in shared memory (norms, beta, the decay of each tile) says whether a value
// is not finite; elements are read again from global memory, where the block itself has just read or written them, in every 64th chunk of a
// head. `Shared` is the kernel's layout.
#pragma once

#include "tally.cuh"

namespace kda {

constexpr int kSurveyThreads = 128;
constexpr int kSurveyElementsEvery = 64;

__device__ __forceinline__ const __nv_bfloat16* token_row(const __nv_bfloat16* tokens, const Chunk& chunk, int head, int num_heads, int row) {
    return tokens + (static_cast<int64_t>(chunk.first_token + row) * num_heads + head) * kDim;
}

// Alarms and beta everywhere, the decay of channels over the chunk in every sixteenth. `index` counts the threads that survey.
template <class Shared>
__device__ __forceinline__ void survey_chunk(const Shared& shared, const PrepareArguments& arguments, const Chunk& chunk, int head, int index) {
    Tally tally(arguments, head);
    if (index < kChunk) {
        if (index < chunk.rows) {
            auto pairs_of = [&](const __nv_bfloat16* tokens) {
                const __nv_bfloat16* row = token_row(tokens, chunk, head, arguments.num_heads, index);
                return [row](int column) { return *reinterpret_cast<const uint32_t*>(row + column); };
            };
            tally.see_beta(shared.beta[index]);
            tally.see_norm(pairs_of(arguments.q), shared.q_norm[index]);
            tally.see_norm(pairs_of(arguments.k), shared.k_norm[index]);
        }
    } else {
        const int pair = index - kChunk;
        float total[2] = {0.f, 0.f};
#pragma unroll
        for (int t = 0; t < kNumTiles; ++t) {
            const float2 fall = *reinterpret_cast<const float2*>(&shared.tile_total[t][pair * 2]);
            total[0] += fall.x;
            total[1] += fall.y;
            if (Tally::is_rare(fall.x, fall.y)) {
                auto gates = [&](int r) {
                    return *reinterpret_cast<const uint32_t*>(token_row(arguments.g, chunk, head, arguments.num_heads, t * kTile + r) + pair * 2);
                };
                const Gate gate(arguments.a_log, arguments.dt_bias, arguments.lower_bound, head, pair);
                tally.see_rare(count_rare(gates, gate, filled_rows(chunk.rows, t)));
            }
        }
        if ((chunk.place + head) % kSampleEvery == 0) {
            tally.see_chunk(shared.tile_total, pair, total);
            if (pair == 0) tally.add(kChunks, 1);
        }
    }
    tally.finish();
}

// Counts of one piece, 8 channels of a row: how many of its raw values are zero, and how many of the scaled ones below the normal numbers.
__device__ __forceinline__ void see_operands(const uint4& before, const uint4& after, uint32_t& zeros, uint32_t& small) {
    const uint32_t raw[4] = {before.x, before.y, before.z, before.w}, scaled[4] = {after.x, after.y, after.z, after.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        zeros = ptx::add_bf16x2(zeros, ptx::magnitude_below_bf16x2(raw[i], 0x00010001u));
        small = ptx::add_bf16x2(small, ptx::magnitude_below_bf16x2(scaled[i], 0x00800080u));
    }
}

// Gates that are saturated or open, and operands that flushed: of one chunk, all elements. Packed counts of a thread stay below 256.
__device__ __forceinline__ void survey_elements(const PrepareArguments& arguments, const Chunk& chunk, int head, int64_t tile, int index) {
    constexpr int kPieces = 16, kRowsAtOnce = kSurveyThreads / kPieces;
    const int piece = index % kPieces;
    uint32_t saturated_from[4], open_to[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const Gate gate(arguments.a_log, arguments.dt_bias, arguments.lower_bound, head, piece * 4 + i);
        saturated_from[i] = least_gates(gate, arguments.saturated_logit);
        open_to[i] = largest_gates(gate, arguments.open_logit);
    }
    uint32_t saturated = 0, open = 0, zeros = 0, small = 0;
    int operands = 0;
#pragma unroll 2
    for (int row = index / kPieces; row < chunk.rows; row += kRowsAtOnce) {
        auto raw = [&](const __nv_bfloat16* tokens) {
            return *reinterpret_cast<const uint4*>(token_row(tokens, chunk, head, arguments.num_heads, row) + piece * 8);
        };
        auto made = [&](const unsigned char* images) {
            return *reinterpret_cast<const uint4*>(images + tile * kTokenImageBytes + element_offset(row, piece * 8));
        };
        const uint4 g = raw(arguments.g);
        const uint32_t gates[4] = {g.x, g.y, g.z, g.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            saturated = ptx::add_bf16x2(saturated, ptx::at_least_bf16x2(gates[i], saturated_from[i]));
            open = ptx::add_bf16x2(open, ptx::at_most_bf16x2(gates[i], open_to[i]));
        }
        see_operands(raw(arguments.q), made(arguments.q_grown), zeros, small);
        see_operands(raw(arguments.k), made(arguments.k_kept), zeros, small);
        operands += 2 * 8;
    }
    const Tally tally(arguments, head);
    const uint32_t gates = __reduce_add_sync(~0u, static_cast<uint32_t>(both(saturated) | both(open) << 16));
    const uint32_t lost = __reduce_add_sync(~0u, static_cast<uint32_t>((operands - both(zeros)) | (both(small) - both(zeros)) << 16));
    if (index % 32 == 0) {
        tally.add(kGates, spread(gates));
        tally.add(kOperands, spread(lost));
    }
    if (index == 0) tally.add(kRows, chunk.rows);
}

}  // namespace kda
