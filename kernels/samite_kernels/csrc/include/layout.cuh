// Sizes, tile images and argument blocks shared by the KDA kernels and, through ctypes, by kda/sm90.py.
//
// A tile image is the exact picture of a tile in shared memory, so that one bulk copy moves it: panels of 64 columns, each row of a
// panel 128 bytes, its 16-byte pieces permuted by (row mod 8), which is the 128-byte swizzle of the tensor cores.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ptx.cuh"

namespace kda {

constexpr int kChunk = 64;      // rows of a chunk
constexpr int kTile = 16;       // rows that share an anchor: 16 steps at -5 nats stay within float32 and bfloat16
constexpr int kDim = 128;       // key and value channels of a head
constexpr int kHalf = 64;       // value channels of one scan, columns of a panel
constexpr int kNumTiles = kChunk / kTile;

constexpr int kPanelBytes = kChunk * 128;             // 64 rows of one panel
constexpr int kTokenImageBytes = 2 * kPanelBytes;     // [64, 128] bf16
constexpr int kSquareImageBytes = kPanelBytes;        // [64, 64] bf16
constexpr int kStateImageBytes = 4 * kPanelBytes;     // [128 v, 128 k] bf16: two halves of v, each two panels of k
constexpr int kDecayBytes = kDim * 4;

static_assert(kTokenImageBytes == kChunk * kDim * 2);
static_assert(kStateImageBytes == kDim * kDim * 2);

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kNormEpsilon = 1e-6f;

// One row of the chunk table.
struct Chunk {
    int32_t first_token;
    int32_t rows;
    int32_t document;
    int32_t place;  // of the chunk within its document
};
static_assert(sizeof(Chunk) == 16);

// Byte offset of the 16-byte piece `piece` (0..7) of `row` within a panel.
__host__ __device__ constexpr uint32_t piece_offset(int row, int piece) {
    return static_cast<uint32_t>(row * 128 + ((piece ^ (row & 7)) << 4));
}
// Byte offset of element (row, column) of a [64, 128] image; the pair (column, column + 1) is one aligned word for even columns.
__host__ __device__ constexpr uint32_t element_offset(int row, int column) {
    return static_cast<uint32_t>((column >> 6) * kPanelBytes) + piece_offset(row, (column & 63) >> 3) + (column & 7) * 2;
}

// A 128-byte-swizzled operand of the tensor cores in shared memory: the low word of its descriptor, which holds the address. Steps are
// plain additions to that word, so that a product costs one instruction beside itself.
struct Operand {
    uint32_t low;

    // `panel_stride`: bytes between groups of 64 elements of an operand that is read down its rows.
    __device__ __forceinline__ explicit Operand(uint32_t shared_address, uint32_t panel_stride = kPanelBytes)
        : low(((shared_address & 0x3ffff) >> 4) | (panel_stride >> 4) << 16) {}
    __device__ __forceinline__ explicit Operand(const void* shared) : Operand(ptx::shared_address(shared)) {}

    __device__ __forceinline__ Operand plus(uint32_t bytes) const {
        Operand moved = *this;
        moved.low += bytes >> 4;
        return moved;
    }
    // Step `step` (16 elements) of the summed dimension: within rows that lie in two panels, or down the rows.
    __device__ __forceinline__ uint64_t along(int step) const { return plus((step >> 2) * kPanelBytes + (step & 3) * 32).descriptor(); }
    __device__ __forceinline__ uint64_t down(int step) const { return plus(step * 16 * 128).descriptor(); }
    __device__ __forceinline__ uint64_t descriptor() const {
        constexpr uint32_t kGroupStride = 1024;  // 8 rows of 128 bytes
        constexpr uint32_t kHigh = (kGroupStride >> 4) | 1u << 30;
        return static_cast<uint64_t>(kHigh) << 32 | low;
    }
};

}  // namespace kda
