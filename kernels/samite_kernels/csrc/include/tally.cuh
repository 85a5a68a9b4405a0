// The decay signals of kda/signals.py, counted by the prepare kernels beside their work: integer sums and maxima per head.
//
// What raises an alarm is looked for everywhere: a tile that overflows or a NaN can't happen within the bound, so one comparison per thread
// screens for them and a slow path counts. What is a share, a mean or a trend is taken in every sixteenth chunk of a head, the next head in
// others. There elements go two at a time, as packed bfloat16, in which sums up to 256 are exact.
#pragma once

#include "arguments.cuh"
#include "decay.cuh"

namespace kda {

constexpr int kSampleEvery = 16;

// Columns of a head's row of counts. Maxima are bits of a float that is not negative.
enum TallyColumn : int {
    kGates,           // saturated, and in the upper half open
    kOperands,        // not zero, and in the upper half flushed
    kForgetNormal,
    kForgetBfloat16,
    kForgetFloat32,
    kBetaSaturated,
    kNonfinite,
    kLossy,
    kRows,            // in the chunks that were sampled
    kChunks,
    kSpanMax,         // nats
    kChunkFallMax,    // nats
    kDecaySums = 16,  // from here: the chunks' decay of each channel, in nats * 2^20
};
constexpr int kTallyRow = kDecaySums + kDim;
constexpr float kNats = 0.6931471805599453f;
constexpr float kSpanScreen = 125.5f;  // log2: below, both factors of every product in a tile are normal numbers
constexpr float kSmallestNormalLog = -87.3365f, kLargestLog = 88.7228f, kNegligibleLog = -16.6f;
constexpr float kFixedPoint = 1048576.f;

// Rows of a tile that hold tokens.
__device__ __forceinline__ int filled_rows(int rows, int row_tile) { return min(max(rows - row_tile * kTile, 0), kTile); }

struct Rare {
    int lossy;
    int nonfinite;
};

// Exact counts for two channels of a tile that left the range or holds a NaN. `gates(r)`: the raw pair in its row r, of which `filled` are.
template <class Gates>
__device__ __forceinline__ Rare count_rare(Gates gates, Gate gate, int filled) {
    Rare rare = {0, 0};
#pragma unroll 1
    for (int c = 0; c < 2; ++c) {
        auto step = [&](int r) {
            const uint32_t raw = gates(r);
            return gate.bound * (c ? gate.open_high(ptx::high_bf16(raw)) : gate.open_low(ptx::low_bf16(raw)));
        };
        auto lost = [](float exponent) { return exponent < kSmallestNormalLog || exponent > kLargestLog; };
        float row_sum = 0.f;
#pragma unroll 1
        for (int i = 0; i < filled; ++i) {
            const float decay = step(i);
            if (!(fabsf(decay) <= 3e38f)) ++rare.nonfinite;
            row_sum += decay;
            float column_sum = 0.f;
#pragma unroll 1
            for (int j = 0; j <= i; ++j) {
                column_sum += step(j);
                if (row_sum - column_sum > kNegligibleLog && (lost(row_sum) || lost(-column_sum))) ++rare.lossy;
            }
        }
    }
    return rare;
}

// The least bfloat16 that is not below x, and the largest that is not above.
__device__ __forceinline__ uint32_t bf16_upward(float x) {
    const uint32_t bits = __float_as_uint(x);
    return (x > 0.f ? bits + 0xffffu : bits) >> 16;
}
__device__ __forceinline__ uint32_t bf16_downward(float x) {
    const uint32_t bits = __float_as_uint(x);
    return (x < 0.f ? bits + 0xffffu : bits) >> 16;
}
// The least and the largest raw gates of two channels that reach a logit, or stay at it, as packed bfloat16.
__device__ __forceinline__ uint32_t least_gates(const Gate& gate, float logit) {
    const float slow = 1.f / gate.steepness;
    return bf16_upward(fmaf(logit, slow, -gate.bias.x)) | bf16_upward(fmaf(logit, slow, -gate.bias.y)) << 16;
}
__device__ __forceinline__ uint32_t largest_gates(const Gate& gate, float logit) {
    const float slow = 1.f / gate.steepness;
    return bf16_downward(fmaf(logit, slow, -gate.bias.x)) | bf16_downward(fmaf(logit, slow, -gate.bias.y)) << 16;
}
// Sum of two packed counts, and two 16-bit counts as two 32-bit ones.
__device__ __forceinline__ int both(uint32_t packed) { return static_cast<int>(ptx::low_bf16(packed) + ptx::high_bf16(packed)); }
__device__ __forceinline__ long long spread(uint32_t halves) {
    return static_cast<long long>(halves & 0xffffu) | static_cast<long long>(halves >> 16) << 32;
}

// What a thread knows of its tile, chunk and rows.
class Tally {
public:
    __device__ __forceinline__ Tally(const PrepareArguments& arguments, int head)
        : row_(arguments.counts + static_cast<int64_t>(head) * kTallyRow) {}

    // A row of q or k whose norm is not a positive number: elements that are not finite once normalised. `pairs(column)`: of its raw values.
    template <class Pairs>
    __device__ __forceinline__ void see_norm(Pairs pairs, float norm) {
        if (norm > 0.f && norm <= 3e38f) return;
        for (int column = 0; column < kDim; column += 2) {
            const uint32_t pair = pairs(column);
            rare_.nonfinite += !(fabsf(ptx::low_bf16(pair) * norm) <= 3e38f);
            rare_.nonfinite += !(fabsf(ptx::high_bf16(pair) * norm) <= 3e38f);
        }
    }
    __device__ __forceinline__ void see_row(const unsigned char* image, int row, float norm) {
        see_norm([=](int column) { return *reinterpret_cast<const uint32_t*>(image + element_offset(row, column)); }, norm);
    }
    __device__ __forceinline__ void see_beta(float beta) {
        beta_saturated_ = beta < 1e-3f || beta > 0.999f;
        rare_.nonfinite += beta != beta;
    }
    // Whether a fall over a tile, of both channels in log2, is such that `see_rare` must look closer.
    __device__ __forceinline__ static bool is_rare(float low, float high) { return !(-low <= kSpanScreen && -high <= kSpanScreen); }
    __device__ __forceinline__ void see_rare(const Rare& rare) {
        rare_.lossy += rare.lossy;
        rare_.nonfinite += rare.nonfinite;
    }
    // The decay of two channels over the tiles and the chunk, in log2; whole warps.
    __device__ __forceinline__ void see_chunk(const float (*tiles)[kDim], int pair, const float (&total)[2]) const {
        constexpr float kForget[3] = {-87.34f, -92.19f, -103.28f};
        const float nats[2] = {kNats * total[0], kNats * total[1]};
        int forget = 0;
#pragma unroll
        for (int c = 0; c < 2; ++c) {
#pragma unroll
            for (int i = 0; i < 3; ++i) forget += nats[c] < kForget[i] ? 1 << (10 * i) : 0;
            add(kDecaySums + pair * 2 + c, __float2int_rn(nats[c] * kFixedPoint));
        }
        float span = 0.f;
#pragma unroll
        for (int t = 0; t < kNumTiles; ++t) span = fmaxf(span, fmaxf(-tiles[t][pair * 2], -tiles[t][pair * 2 + 1]));
        const uint32_t widest = __reduce_max_sync(~0u, __float_as_uint(kNats * span));
        const uint32_t fall = __reduce_max_sync(~0u, __float_as_uint(fmaxf(fmaxf(-nats[0], -nats[1]), 0.f)));
        forget = __reduce_add_sync(~0u, forget);
        if ((threadIdx.x & 31) != 0) return;
        grow_to(kSpanMax, widest);
        grow_to(kChunkFallMax, fall);
        if (forget == 0) return;
#pragma unroll
        for (int i = 0; i < 3; ++i) add(kForgetNormal + i, forget >> (10 * i) & 1023);
    }
    // Adds up what is seldom there.
    __device__ __forceinline__ void finish() const {
        if (!__any_sync(~0u, rare_.nonfinite | rare_.lossy | beta_saturated_)) return;
        const int sums[3] = {__reduce_add_sync(~0u, beta_saturated_), __reduce_add_sync(~0u, rare_.nonfinite), __reduce_add_sync(~0u, rare_.lossy)};
        if ((threadIdx.x & 31) != 0) return;
#pragma unroll
        for (int i = 0; i < 3; ++i) add(kBetaSaturated + i, sums[i]);
    }
    __device__ __forceinline__ void add(int column, long long value) const {
        atomicAdd(reinterpret_cast<unsigned long long*>(row_ + column), static_cast<unsigned long long>(value));
    }

private:
    __device__ __forceinline__ void grow_to(int column, uint32_t bits) const {
        atomicMax(reinterpret_cast<unsigned long long*>(row_ + column), static_cast<unsigned long long>(bits));
    }

    int64_t* row_;
    Rare rare_ = {0, 0};
    int beta_saturated_ = 0;
};

// What the phases see while they scale: the tally alone, or in a sampled chunk every element.
template <bool Elements>
class Watch {
public:
    static constexpr bool kOn = true, kElements = Elements;
    Tally& tally;

    __device__ __forceinline__ explicit Watch(Tally& tally) : tally(tally) {}

    // From where the raw gates of this thread's two channels are saturated, and to where they are open, as packed bfloat16.
    __device__ __forceinline__ void set_gate(const Gate& gate, float saturated_logit, float open_logit) {
        saturated_ = least_gates(gate, saturated_logit);
        open_ = largest_gates(gate, open_logit);
    }
    __device__ __forceinline__ void see_gate(uint32_t raw) {
        if constexpr (Elements) {
            gates_saturated_ = ptx::add_bf16x2(gates_saturated_, ptx::at_least_bf16x2(raw, saturated_));
            gates_open_ = ptx::add_bf16x2(gates_open_, ptx::at_most_bf16x2(raw, open_));
        }
    }
    __device__ __forceinline__ void see_operand(uint32_t before, uint32_t after) {
        if constexpr (Elements) {
            constexpr uint32_t kSmallestNormal = 0x00800080u;
            zeros_ = ptx::add_bf16x2(zeros_, ptx::magnitude_below_bf16x2(before, 0x00010001u));
            small_ = ptx::add_bf16x2(small_, ptx::magnitude_below_bf16x2(after, kSmallestNormal));
        }
    }
    // `padding` of this thread's rows lie past the end: they hold zeros. `operands`: elements shown to see_operand. Whole warps.
    __device__ __forceinline__ void finish(int padding, int rows, int operands) const {
        int saturated = both(gates_saturated_), open = both(gates_open_);
        if (padding > 0) {
            saturated -= padding * both(ptx::at_least_bf16x2(0u, saturated_));
            open -= padding * both(ptx::at_most_bf16x2(0u, open_));
        }
        const int zeros = both(zeros_);
        // A warp has 1024 gates and 2048 operands.
        const uint32_t gates = __reduce_add_sync(~0u, static_cast<uint32_t>(saturated | open << 16));
        const uint32_t lost = __reduce_add_sync(~0u, static_cast<uint32_t>((operands - zeros) | (both(small_) - zeros) << 16));
        if ((threadIdx.x & 31) == 0) {
            tally.add(kGates, spread(gates));
            tally.add(kOperands, spread(lost));
        }
        if (threadIdx.x == 0) {
            tally.add(kRows, rows);
            tally.add(kChunks, 1);
        }
    }

private:
    uint32_t saturated_ = 0, open_ = 0, gates_saturated_ = 0, gates_open_ = 0, zeros_ = 0, small_ = 0;
};

}  // namespace kda
