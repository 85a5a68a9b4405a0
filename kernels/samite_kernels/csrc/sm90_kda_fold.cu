// The state that enters each piece of a document, S' = M S + b from piece to piece in float32: one block per (document, head, 8 columns).
//
// Columns of a state never mix, so blocks need nothing of each other. The next M is on its way while the present one is used; a thread owns 4
// columns of one row and sums in a fixed order.

#include "include/arguments.cuh"

namespace kda {
namespace {

constexpr int kThreads = 256;
constexpr int kColumns = 8;
constexpr int kGroups = kDim / kColumns;
constexpr int kPitch = kDim + 4;  // floats per row of M: rows that a warp reads together lie in different banks

struct FoldShared {
    float map[2][kDim * kPitch];
    float4 state[kDim][kColumns / 4];
};

__device__ __forceinline__ void load_map(float* to, const float* from) {
    constexpr int kPieces = kDim / 4;
#pragma unroll
    for (int n = 0; n < kDim * kPieces / kThreads; ++n) {
        const int index = threadIdx.x + n * kThreads;
        const int row = index / kPieces, piece = index % kPieces;
        ptx::copy_async_16(ptx::shared_address(to + row * kPitch + piece * 4), from + row * kDim + piece * 4, true);
    }
    ptx::copy_async_commit();
}

__device__ __forceinline__ void add_scaled(float4& sum, float m, const float4& x) {
    sum.x = fmaf(m, x.x, sum.x);
    sum.y = fmaf(m, x.y, sum.y);
    sum.z = fmaf(m, x.z, sum.z);
    sum.w = fmaf(m, x.w, sum.w);
}

__global__ void __launch_bounds__(kThreads, 1) fold(const __grid_constant__ FoldArguments arguments) {
    extern __shared__ __align__(1024) unsigned char raw_shared[];
    FoldShared& shared = *reinterpret_cast<FoldShared*>(raw_shared);
    const int group = blockIdx.x % kGroups;
    const int head = blockIdx.x / kGroups % arguments.num_heads;
    const int document = blockIdx.x / kGroups / arguments.num_heads;
    const int first = arguments.first_piece[document], last = arguments.first_piece[document + 1] - 1;
    const int row = threadIdx.x >> 1, quad = threadIdx.x & 1;
    const int own = row * kDim + group * kColumns + quad * 4;
    auto state_of = [&](int place) { return (static_cast<int64_t>(place) * arguments.num_heads + head) * kDim * kDim; };

    float4 state = make_float4(0.f, 0.f, 0.f, 0.f);
    if (arguments.initial_state) state = *reinterpret_cast<const float4*>(arguments.initial_state + state_of(document) + own);
    if (first < last) load_map(shared.map[0], arguments.maps + state_of(first));
    for (int piece = first; piece < last; ++piece) {
        *reinterpret_cast<float4*>(arguments.starts + state_of(piece) + own) = state;
        shared.state[row][quad] = state;
        state = *reinterpret_cast<const float4*>(arguments.ends + state_of(piece) + own);
        if (piece + 1 < last) {
            load_map(shared.map[(piece - first + 1) & 1], arguments.maps + state_of(piece + 1));
            ptx::copy_async_wait<1>();
        } else {
            ptx::copy_async_wait<0>();
        }
        __syncthreads();
        const float* map = shared.map[(piece - first) & 1] + row * kPitch;
#pragma unroll 4
        for (int k = 0; k < kDim; k += 4) {
            const float4 m = *reinterpret_cast<const float4*>(map + k);
            add_scaled(state, m.x, shared.state[k][quad]);
            add_scaled(state, m.y, shared.state[k + 1][quad]);
            add_scaled(state, m.z, shared.state[k + 2][quad]);
            add_scaled(state, m.w, shared.state[k + 3][quad]);
        }
        __syncthreads();  // every thread is done with this map and this state
    }
    *reinterpret_cast<float4*>(arguments.starts + state_of(last) + own) = state;
}

}  // namespace
}  // namespace kda

// Called by kda/sm90_pieces.py; every document has a piece, be it empty. Returns a cudaError_t; never throws, synchronises or allocates.
extern "C" int sm90_kda_fold(const kda::FoldArguments* arguments, cudaStream_t stream) {
    using namespace kda;
    const int64_t blocks = int64_t{kGroups} * arguments->num_documents * arguments->num_heads;
    if (blocks == 0) return 0;
    const cudaError_t error = cudaFuncSetAttribute(fold, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(FoldShared));
    if (error != cudaSuccess) return static_cast<int>(error);
    fold<<<static_cast<unsigned>(blocks), kThreads, sizeof(FoldShared), stream>>>(*arguments);
    return static_cast<int>(cudaGetLastError());
}
