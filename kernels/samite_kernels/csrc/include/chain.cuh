// One step of the chain that passes a state through a chunk, shared by the forward scan and the maps of pieces.
//
// The state is held transposed, [64 columns, 128 k], in float32 accumulators of a warpgroup; its bfloat16 copy is the register operand of the
// next product, so the serial chain touches shared memory only to read factors:
//
//   Vn' = U' + S' (-W)'        S' = e^G_last S' + Vn' kt
#pragma once

#include "registers.cuh"

namespace kda {

constexpr int kGroup = 128;                   // threads of a warpgroup
constexpr int kHalfImageBytes = kHalf * 128;  // 64 rows of v, 64 tokens

// The factors of a chunk, and the barriers that say when they have landed and when their place is free.
struct ChainStage {
    unsigned char minus_w[kTokenImageBytes];
    unsigned char k_kept[kTokenImageBytes];
    unsigned char u[kHalfImageBytes];
    float keep[kDim];
    uint64_t full;
    uint64_t empty;
    uint64_t spare[62];
};
constexpr uint32_t kChainBytes = 2 * kTokenImageBytes + kHalfImageBytes + kDecayBytes;
static_assert(sizeof(ChainStage) % 1024 == 0);

// By one thread, once the stage is free. `Arguments` name the factors as ScanArguments do.
template <class Arguments>
__device__ __forceinline__ void load_stage(ChainStage& stage, const Arguments& arguments, int64_t tile, int half) {
    const uint32_t full = ptx::shared_address(&stage.full);
    ptx::barrier_expect_bytes(full, kChainBytes);
    ptx::bulk_load(ptx::shared_address(stage.minus_w), arguments.minus_w + tile * kTokenImageBytes, kTokenImageBytes, full);
    ptx::bulk_load(ptx::shared_address(stage.u), arguments.u_transposed + tile * kTokenImageBytes + half * kHalfImageBytes, kHalfImageBytes,
                   full);
    ptx::bulk_load(ptx::shared_address(stage.keep), arguments.keep + tile * kDim, kDecayBytes, full);
    ptx::bulk_load(ptx::shared_address(stage.k_kept), arguments.k_kept + tile * kTokenImageBytes, kTokenImageBytes, full);
}

// Where accumulator 0 of this thread lies in a state [128 k, 128 columns], of which the warpgroup has one half of the columns; and
// how much further accumulator i.
__device__ __forceinline__ int first_element(int half) {
    const int lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) & 3;
    return (lane & 3) * 2 * kDim + half * kHalf + warp * 16 + (lane >> 2);
}
__host__ __device__ constexpr int further_element(int i) { return ((i >> 2) * 8 + (i & 1)) * kDim + ((i >> 1) & 1) * 8; }

// Starts S' (-W)'.
__device__ __forceinline__ void start_new_values(float (&v_new)[32], const uint32_t (&state)[32], const Operand& w) {
    ptx::wgmma_fence();
#pragma unroll
    for (int s = 0; s < 8; ++s) {
        ptx::wgmma_rs<0>(v_new, state[4 * s], state[4 * s + 1], state[4 * s + 2], state[4 * s + 3], w.along(s), s > 0);
    }
    ptx::wgmma_commit();
}

__device__ __forceinline__ void read_values(uint32_t (&u)[16], const ChainStage& stage) {
    const int lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) & 3;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        const int row = warp * 16 + (lane >> 2) + (i & 1) * 8;
        u[i] = *reinterpret_cast<const uint32_t*>(stage.u + piece_offset(row, i >> 1) + (lane & 3) * 4);
    }
}

// Waits for S' (-W)' and adds U': Vn' as an operand.
__device__ __forceinline__ void finish_new_values(uint32_t (&operand)[16], float (&v_new)[32], const uint32_t (&u)[16]) {
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(v_new);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        operand[i] = ptx::pack_bf16(v_new[2 * i] + ptx::low_bf16(u[i]), v_new[2 * i + 1] + ptx::high_bf16(u[i]));
    }
}

// Decays the state and starts to add Vn' kt to it.
__device__ __forceinline__ void start_next_state(float (&state)[64], const uint32_t (&v_new)[16], const ChainStage& stage, const Operand& k) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int t = 0; t < 16; ++t) {
        const float2 keep = *reinterpret_cast<const float2*>(stage.keep + t * 8 + (lane & 3) * 2);
        state[4 * t] *= keep.x;
        state[4 * t + 1] *= keep.y;
        state[4 * t + 2] *= keep.x;
        state[4 * t + 3] *= keep.y;
    }
    ptx::wgmma_pin(state);
    ptx::wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; ++s) ptx::wgmma_rs<1>(state, v_new[4 * s], v_new[4 * s + 1], v_new[4 * s + 2], v_new[4 * s + 3], k.down(s));
    ptx::wgmma_commit();
}

__device__ __forceinline__ void finish_next_state(float (&state)[64], const ChainStage& stage) {
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(state);
    ptx::barrier_arrive(ptx::shared_address(&stage.empty));
}

}  // namespace kda
