// csrc/include/ptx.cuh for the emulation: the same names, in plain C++. Addresses in shared memory are offsets into its emulated arena.
#pragma once

#include "device.h"

namespace ptx {

inline uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(static_cast<const unsigned char*>(pointer) - emulated::shared);
}
template <class T>
T& shared_at(uint32_t address) {
    return *reinterpret_cast<T*>(emulated::shared + address);
}

// ---- math ----

inline float flush(float x) { return std::fabs(x) < 1.17549435e-38f ? std::copysign(0.f, x) : x; }
inline float exp2_fast(float x) { return flush(std::exp2(flush(x))); }
inline float reciprocal_fast(float x) { return flush(1.f / flush(x)); }
inline uint32_t pack_bf16(float low, float high) { return emulated_bf16(low) | static_cast<uint32_t>(emulated_bf16(high)) << 16; }
inline float low_bf16(uint32_t pair) { return __uint_as_float(pair << 16); }
inline float high_bf16(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }
inline uint32_t multiply_bf16x2(uint32_t a, uint32_t b) { return pack_bf16(low_bf16(a) * low_bf16(b), high_bf16(a) * high_bf16(b)); }
inline uint32_t add_bf16x2(uint32_t a, uint32_t b) { return pack_bf16(low_bf16(a) + low_bf16(b), high_bf16(a) + high_bf16(b)); }
inline uint32_t at_least_bf16x2(uint32_t a, uint32_t b) { return pack_bf16(low_bf16(a) >= low_bf16(b), high_bf16(a) >= high_bf16(b)); }
inline uint32_t at_most_bf16x2(uint32_t a, uint32_t b) { return pack_bf16(low_bf16(a) <= low_bf16(b), high_bf16(a) <= high_bf16(b)); }
inline uint32_t magnitude_below_bf16x2(uint32_t a, uint32_t b) {
    return pack_bf16(std::fabs(low_bf16(a)) < low_bf16(b), std::fabs(high_bf16(a)) < high_bf16(b));
}
inline uint32_t half_bits(float x) {
    const _Float16 half = static_cast<_Float16>(x);
    uint16_t bits;
    std::memcpy(&bits, &half, 2);
    return bits;
}
inline uint32_t pack_half(float low, float high) { return half_bits(low) | half_bits(high) << 16; }
inline float half_value(uint16_t bits) {
    _Float16 half;
    std::memcpy(&half, &bits, 2);
    return static_cast<float>(half);
}

// ---- copies: what is started lands later, and its target is NaN until then ----

// As the device, which faults: both ends at a multiple of the width.
inline void check_alignment(const void* pointer, uint32_t address, int width) {
    if (reinterpret_cast<uintptr_t>(pointer) % width == 0 && address % width == 0) return;
    std::fprintf(stderr, "a misaligned copy\n");
    emulated::last_error = cudaErrorMisalignedAddress;
}
inline void copy_async(uint32_t to, const void* from, int bytes, bool valid) {
    check_alignment(from, to, bytes);
    std::memset(emulated::shared + to, 0xff, bytes);
    emulated::current->open.push_back([=] {
        if (valid) std::memcpy(emulated::shared + to, from, bytes);
        else std::memset(emulated::shared + to, 0, bytes);
    });
}
inline void copy_async_16(uint32_t to, const void* from, bool valid) { copy_async(to, from, 16, valid); }
inline void copy_async_commit() { emulated::current->groups.push_back(std::move(emulated::current->open)), emulated::current->open.clear(); }
template <int Pending>
void copy_async_wait() {
    auto& groups = emulated::current->groups;
    while (groups.size() > Pending) {
        for (const auto& copy : groups.front()) copy();
        groups.erase(groups.begin());
    }
}

inline void barrier_check(emulated::CopyBarrier& barrier) {
    emulated::moved();
    if (barrier.pending == 0 && barrier.bytes == 0) {
        ++barrier.phase;
        barrier.pending = barrier.wanted;
    }
}
inline void bulk_load(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
    check_alignment(from, to, 16);
    std::memset(emulated::shared + to, 0xff, bytes);
    emulated::block->in_flight.push_back([=] {
        std::memcpy(emulated::shared + to, from, bytes);
        auto& at = emulated::block->copy_barriers[barrier];
        at.bytes -= bytes;
        barrier_check(at);
    });
}
inline void bulk_store(void* to, uint32_t from, uint32_t bytes) {
    check_alignment(to, from, 16);
    emulated::block->in_flight.push_back([=] { std::memcpy(to, emulated::shared + from, bytes); });
}
inline void bulk_store_if(bool issue, void* to, uint32_t from, uint32_t bytes) {
    if (issue) bulk_store(to, from, bytes);
}
inline void bulk_store_commit() {}
template <int Pending>
void bulk_store_wait_read() {
    while (!emulated::block->in_flight.empty()) emulated::yield();
}
inline void fence_async_shared() {}

// ---- barriers ----

inline void barrier_init(uint32_t barrier, uint32_t count) {
    emulated::block->copy_barriers[barrier] = {static_cast<int>(count), static_cast<int>(count), 0, 0};
}
inline void barrier_init_fence() {}
inline void barrier_arrive(uint32_t barrier) {
    auto& at = emulated::block->copy_barriers.at(barrier);
    --at.pending;
    barrier_check(at);
}
inline void barrier_arrive_after_copies(uint32_t barrier) {
    copy_async_commit();
    copy_async_wait<0>();
    barrier_arrive(barrier);
}
inline void barrier_expect_bytes(uint32_t barrier, uint32_t bytes) {
    emulated::block->copy_barriers.at(barrier).bytes += bytes;
    barrier_arrive(barrier);
}
inline void barrier_wait(uint32_t barrier, uint32_t parity) {
    while ((emulated::block->copy_barriers.at(barrier).phase & 1) == parity) emulated::yield();
}
inline void named_barrier(int id, int threads) { emulated::wait_at(emulated::block->barriers[id], threads); }
template <int Count>
void registers_up_to() {}
template <int Count>
void registers_down_to() {}

// ---- matrix loads and stores, warp products ----

// Row `row` (16 bytes) of the 8 x 8 matrix `matrix` is at the address that lane 8 matrix + row gave.
inline std::array<uint32_t, 32> addresses_of_warp(uint32_t address) {
    return emulated::across_warp(~0u, address, [](auto of) {
        std::array<uint32_t, 32> all;
        for (int lane = 0; lane < 32; ++lane) all[lane] = of(lane);
        return all;
    });
}
template <int Matrices>
void load_matrix(uint32_t* r, uint32_t address, bool transposed) {
    const auto rows = addresses_of_warp(address);
    const int lane = emulated::lane(), row = lane >> 2, column = (lane & 3) * 2;
    for (int m = 0; m < Matrices; ++m) {
        if (transposed) {
            r[m] = shared_at<uint16_t>(rows[8 * m + column] + 2 * row) |
                   static_cast<uint32_t>(shared_at<uint16_t>(rows[8 * m + column + 1] + 2 * row)) << 16;
        } else {
            r[m] = shared_at<uint32_t>(rows[8 * m + row] + 2 * column);
        }
    }
    __syncwarp();
}
inline void load_matrix_x4(uint32_t (&r)[4], uint32_t address) { load_matrix<4>(r, address, false); }
inline void load_matrix_x4_transposed(uint32_t (&r)[4], uint32_t address) { load_matrix<4>(r, address, true); }
inline void load_matrix_x2_transposed(uint32_t (&r)[2], uint32_t address) { load_matrix<2>(r, address, true); }
inline void store_matrix_x4(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    const auto rows = addresses_of_warp(address);
    const int lane = emulated::lane();
    const uint32_t words[4] = {a, b, c, d};
    for (int m = 0; m < 4; ++m) shared_at<uint32_t>(rows[8 * m + (lane >> 2)] + (lane & 3) * 4) = words[m];
    __syncwarp();
}
inline void store_matrix_x4_transposed(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    const auto rows = addresses_of_warp(address);
    const int lane = emulated::lane(), row = lane >> 2, column = (lane & 3) * 2;
    const uint32_t words[4] = {a, b, c, d};
    for (int m = 0; m < 4; ++m) {
        for (int half = 0; half < 2; ++half) {
            shared_at<uint16_t>(rows[8 * m + column + half] + 2 * row) = static_cast<uint16_t>(words[m] >> (16 * half));
        }
    }
    __syncwarp();
}
inline uint32_t transpose_8x8(uint32_t x) {
    const int lane = emulated::lane(), row = lane >> 2, column = (lane & 3) * 2;
    return emulated::across_warp(~0u, x, [&](auto of) {
        auto element = [&](int r, int c) { return (of(r * 4 + c / 2) >> (16 * (c & 1))) & 0xffffu; };
        return element(column, row) | element(column + 1, row) << 16;
    });
}
template <class Value>
void mma(float* d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Value value) {
    struct Pair { uint32_t first, second; };
    const int lane = emulated::lane();
    float rows[2][16], columns[2][16];
    auto spread = [&](float* into, auto of, int group, int first) {  // lanes 4 group .. + 3 hold columns first + 2 (lane mod 4) of two words
        for (int i = 0; i < 4; ++i) {
            const Pair pair = of(group * 4 + i);
            for (int half = 0; half < 2; ++half) {
                into[first + 2 * i + half] = value(static_cast<uint16_t>(pair.first >> (16 * half)));
                into[first + 8 + 2 * i + half] = value(static_cast<uint16_t>(pair.second >> (16 * half)));
            }
        }
        return 0;
    };
    emulated::across_warp(~0u, Pair{a[0], a[2]}, [&](auto of) { return spread(rows[0], of, lane >> 2, 0); });
    emulated::across_warp(~0u, Pair{a[1], a[3]}, [&](auto of) { return spread(rows[1], of, lane >> 2, 0); });
    emulated::across_warp(~0u, Pair{b0, b1}, [&](auto of) {
        spread(columns[0], of, (lane & 3) * 2, 0);
        return spread(columns[1], of, (lane & 3) * 2 + 1, 0);
    });
    for (int r = 0; r < 2; ++r)
        for (int c = 0; c < 2; ++c)
            for (int k = 0; k < 16; ++k) d[2 * r + c] += rows[r][k] * columns[c][k];
}
inline void mma_bf16(float* d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    mma(d, a, b0, b1, [](uint16_t bits) { return low_bf16(bits); });
}
inline void mma_half(float* d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { mma(d, a, b0, b1, half_value); }

// ---- warpgroup products: each thread makes its own elements from the 128-byte-swizzled operands ----

inline void wgmma_fence() {}
inline void wgmma_commit() {}
template <int Pending>
void wgmma_wait() {}
template <int N>
void wgmma_pin(float (&)[N]) {}

// Element (outer, k) of an operand: rows of 64 k, or, transposed, rows of 64 outer that run along k.
inline float operand_element(uint64_t descriptor, int outer, int k, int transposed) {
    const uint32_t start = (static_cast<uint32_t>(descriptor) & 0x3fff) << 4;
    const uint32_t panel = (static_cast<uint32_t>(descriptor) >> 16 & 0x3fff) << 4;
    const uint32_t group = (static_cast<uint32_t>(descriptor >> 32) & 0x3fff) << 4;
    const uint32_t linear = transposed ? start + (outer >> 6) * panel + (k >> 3) * group + (k & 7) * 128 + (outer & 63) * 2
                                       : start + (outer >> 3) * group + (outer & 7) * 128 + k * 2;
    return low_bf16(shared_at<uint16_t>(linear ^ (linear >> 3 & 0x70)));
}
template <int TransposedA, int TransposedB, int N>
void wgmma_ss(float (&d)[N], uint64_t a, uint64_t b, int accumulate = 1) {
    const int lane = emulated::lane(), warp = emulated::warp() & 3;
    for (int i = 0; i < N; ++i) {
        const int row = warp * 16 + (lane >> 2) + ((i >> 1) & 1) * 8, column = (i >> 2) * 8 + (lane & 3) * 2 + (i & 1);
        float sum = accumulate ? d[i] : 0.f;
        for (int k = 0; k < 16; ++k) sum += operand_element(a, row, k, TransposedA) * operand_element(b, column, k, TransposedB);
        d[i] = sum;
    }
}
// A from registers: a thread holds four pairs of its two rows, four lanes a row.
template <int TransposedB, int N>
void wgmma_rs(float (&d)[N], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint64_t b, int accumulate = 1) {
    struct Pair { uint32_t first, second; };
    const int lane = emulated::lane();
    float rows[2][16];
    for (int upper = 0; upper < 2; ++upper) {
        emulated::across_warp(~0u, upper ? Pair{a1, a3} : Pair{a0, a2}, [&](auto of) {
            for (int i = 0; i < 4; ++i) {
                const Pair pair = of((lane & ~3) + i);
                rows[upper][2 * i] = low_bf16(pair.first), rows[upper][2 * i + 1] = high_bf16(pair.first);
                rows[upper][8 + 2 * i] = low_bf16(pair.second), rows[upper][9 + 2 * i] = high_bf16(pair.second);
            }
            return 0;
        });
    }
    for (int i = 0; i < N; ++i) {
        const int column = (i >> 2) * 8 + (lane & 3) * 2 + (i & 1);
        float sum = accumulate ? d[i] : 0.f;
        for (int k = 0; k < 16; ++k) sum += rows[(i >> 1) & 1][k] * operand_element(b, column, k, TransposedB);
        d[i] = sum;
    }
}

}  // namespace ptx
