// What both passes of the block attention residual share: arguments, the ring of rows, a thread's channels, sums over the block. The story is in
// sm90_attention_residual.cu.
#pragma once

#include "ptx.cuh"

namespace residual {

constexpr int kMaxSources = 16;
constexpr int kPieces = 2;            // of 8 channels, for each thread
constexpr int kMostConsumers = 448;   // 7168 channels
constexpr int kMostWarps = kMostConsumers / 32;
constexpr int kSumThreads = 128;
constexpr unsigned kAll = ~0u;

struct Arguments {
    const __nv_bfloat16* values[kMaxSources];  // [tokens, width]
    __nv_bfloat16* d_values[kMaxSources];
    const float* query;        // [width]
    const float* norm_weight;  // [width] or null: no norm
    const __nv_bfloat16* d_y;  // [tokens, width]
    __nv_bfloat16* y;
    float* weights;            // [tokens, sources]: softmax
    float* scores;             // the same
    float* inverses;           // the same: r
    float* norm_inverse;       // [tokens]: 1 / rms(h)
    float* parts;              // [blocks, 2, width]: sums for query and norm weight
    float* d_query;            // [width]
    float* d_norm_weight;      // [width] or null
    int64_t num_tokens;
    int32_t width;
    int32_t num_sources;
    int32_t num_slots;
    int32_t num_consumers;     // threads, a multiple of 32
    int32_t num_blocks;
    int32_t accumulate;        // bit i: add to d_values[i] instead of writing it
    float eps;
};


__device__ __forceinline__ float sum_of_warp(float x) {
#pragma unroll
    for (int distance = 16; distance > 0; distance >>= 1) x += __shfl_xor_sync(kAll, x, distance);
    return x;
}
__device__ __forceinline__ float largest_of_warp(float x) {
#pragma unroll
    for (int distance = 16; distance > 0; distance >>= 1) x = fmaxf(x, __shfl_xor_sync(kAll, x, distance));
    return x;
}

// Rows in shared memory, taken in turn by the loading warp and the others.
struct Ring {
    unsigned char* rows;
    uint32_t full, empty;  // barriers of 8 bytes a slot
    uint32_t row_bytes;
    int slots;
    int slot = 0;
    uint32_t turn = 0;

    __device__ __forceinline__ Ring(unsigned char* shared, const Arguments& arguments)
        : rows(shared), row_bytes(arguments.width * 2), slots(arguments.num_slots) {
        full = ptx::shared_address(shared) + slots * row_bytes;
        empty = full + slots * 8;
    }
    __device__ __forceinline__ void advance() {
        if (++slot == slots) {
            slot = 0;
            turn ^= 1;
        }
    }
    __device__ __forceinline__ void put(const __nv_bfloat16* row) {
        ptx::barrier_wait(empty + slot * 8, turn ^ 1);
        ptx::barrier_expect_bytes(full + slot * 8, row_bytes);
        ptx::bulk_load(ptx::shared_address(rows) + slot * row_bytes, row, row_bytes, full + slot * 8);
        advance();
    }
    __device__ __forceinline__ void wait() const { ptx::barrier_wait(full + slot * 8, turn); }
    // This warp needs the row no more. The fence keeps the copy that comes next behind the reads: without it a row now and then came too soon.
    __device__ __forceinline__ void release() const {
        ptx::fence_async_shared();
        __syncwarp();
        if ((threadIdx.x & 31) == 0) ptx::barrier_arrive(empty + slot * 8);
    }
    __device__ __forceinline__ uint4 piece(int index) const { return *reinterpret_cast<const uint4*>(rows + slot * row_bytes + index * 16); }
};

// What a thread holds of a row: pieces of 8 channels, zero past the width.
struct Channels {
    float at[kPieces][8];
};

struct Mine {
    int piece[kPieces];
    bool valid[kPieces];

    __device__ __forceinline__ explicit Mine(const Arguments& arguments) {
#pragma unroll
        for (int p = 0; p < kPieces; ++p) {
            piece[p] = p * arguments.num_consumers + static_cast<int>(threadIdx.x);
            valid[p] = piece[p] * 8 < arguments.width;
        }
    }
    __device__ __forceinline__ Channels from_floats(const float* row) const {
        Channels out;
#pragma unroll
        for (int p = 0; p < kPieces; ++p) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float4 x = valid[p] ? __ldg(reinterpret_cast<const float4*>(row) + piece[p] * 2 + half) : make_float4(0.f, 0.f, 0.f, 0.f);
                out.at[p][half * 4] = x.x;
                out.at[p][half * 4 + 1] = x.y;
                out.at[p][half * 4 + 2] = x.z;
                out.at[p][half * 4 + 3] = x.w;
            }
        }
        return out;
    }
    __device__ __forceinline__ void to_floats(float* row, const Channels& x) const {
#pragma unroll
        for (int p = 0; p < kPieces; ++p) {
            if (!valid[p]) continue;
            float4* out = reinterpret_cast<float4*>(row) + piece[p] * 2;
            out[0] = make_float4(x.at[p][0], x.at[p][1], x.at[p][2], x.at[p][3]);
            out[1] = make_float4(x.at[p][4], x.at[p][5], x.at[p][6], x.at[p][7]);
        }
    }
};

__device__ __forceinline__ void unpack(uint4 words, float (&x)[8]) {
    const uint32_t w[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        x[2 * i] = ptx::low_bf16(w[i]);
        x[2 * i + 1] = ptx::high_bf16(w[i]);
    }
}
__device__ __forceinline__ uint4 pack(const float (&x)[8]) {
    return make_uint4(ptx::pack_bf16(x[0], x[1]), ptx::pack_bf16(x[2], x[3]), ptx::pack_bf16(x[4], x[5]), ptx::pack_bf16(x[6], x[7]));
}
__device__ __forceinline__ uint4 nothing() { return make_uint4(0, 0, 0, 0); }

// Sums of two numbers per source over all working warps; two sets, by turns, so that one barrier a token is enough.
struct Sums {
    float2 at[2][kMaxSources][kMostWarps];
    float norm[2][kMostWarps];
};

__device__ __forceinline__ void give(Sums& sums, int turn, int source, float first, float second) {
    first = sum_of_warp(first);
    second = sum_of_warp(second);
    if ((threadIdx.x & 31) == 0) sums.at[turn][source][threadIdx.x >> 5] = make_float2(first, second);
}
// Lane i receives the sums of source i.
__device__ __forceinline__ float2 take(const Sums& sums, int turn, int num_sources, int num_warps) {
    const int lane = threadIdx.x & 31;
    float2 total = make_float2(0.f, 0.f);
    for (int w = 0; lane < num_sources && w < num_warps; ++w) {
        total.x += sums.at[turn][lane][w].x;
        total.y += sums.at[turn][lane][w].y;
    }
    return total;
}

// The loading warp's work: `d_y`, if any, and the sources of every token of this block.
__device__ __forceinline__ void load_all(const Arguments& arguments, Ring ring, const __nv_bfloat16* d_y) {
    for (int64_t token = blockIdx.x; token < arguments.num_tokens; token += arguments.num_blocks) {
        const int64_t row = token * arguments.width;
        if (d_y) ring.put(d_y + row);
        for (int i = 0; i < arguments.num_sources; ++i) ring.put(arguments.values[i] + row);
    }
}

__device__ __forceinline__ void prepare_ring(const Ring& ring, int num_warps) {
    if (threadIdx.x == 0) {
        for (int i = 0; i < ring.slots; ++i) {
            ptx::barrier_init(ring.full + i * 8, 1);
            ptx::barrier_init(ring.empty + i * 8, num_warps);
        }
        ptx::barrier_init_fence();
    }
    __syncthreads();
}

}  // namespace residual
