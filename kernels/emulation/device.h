// A block of CUDA threads on one CPU thread: enough of the language for the kernels of this library to run in tests without a GPU.
//
// Every CUDA thread is a fiber. It runs until a barrier, shuffle or wait that isn't satisfied, then the next one runs; the order can be
// turned round, so that a missing barrier shows as a changed result. Shared memory is filled with NaN before each block, asynchronous copies
// land late, and a block in which nothing can move any more is reported as a failed launch. What it can't show: memory ordering between
// proxies, speed, and what the compiler for the device makes of the code.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __forceinline__ inline
#define __noinline__
#define __align__(n) alignas(n)
#define __launch_bounds__(...)
#define __grid_constant__

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct alignas(8) uint2 { uint32_t x, y; };
struct alignas(16) uint4 { uint32_t x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) longlong2 { long long x, y; };
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

using cudaStream_t = void*;
using cudaError_t = int;
constexpr cudaError_t cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorMisalignedAddress = 716, cudaErrorLaunchFailure = 719;
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };

namespace emulated {

constexpr size_t kSharedBytes = 232448, kStackBytes = 128 * 1024;
constexpr int kMaxThreads = 1024;
alignas(1024) inline unsigned char shared[kSharedBytes];
inline cudaError_t last_error = cudaSuccess;
inline bool reversed = false;

struct Barrier { int arrived = 0; uint64_t generation = 0; };
struct CopyBarrier { int wanted = 0, pending = 0; int64_t bytes = 0; uint32_t phase = 0; };
using Copy = std::function<void()>;

struct Thread {
    ucontext_t context;
    dim3 index;
    int number = 0;
    bool done = false;
    std::vector<Copy> open;                 // asynchronous copies that no group holds yet
    std::vector<std::vector<Copy>> groups;  // oldest first
};

struct Block {
    std::vector<Thread> threads;
    std::map<int, Barrier> barriers;
    std::vector<Barrier> warps;
    std::vector<std::array<uint64_t, 32>> slots;
    std::map<uint32_t, CopyBarrier> copy_barriers;
    std::vector<Copy> in_flight;
    uint64_t progress = 0;
};
inline Block* block = nullptr;
inline Thread* current = nullptr;
inline ucontext_t scheduler;
inline std::function<void()> body;

inline void yield() { swapcontext(&current->context, &scheduler); }
inline void moved() { ++block->progress; }

inline void wait_at(Barrier& barrier, int count) {
    const uint64_t generation = barrier.generation;
    moved();
    if (++barrier.arrived == count) {
        barrier.arrived = 0;
        ++barrier.generation;
        return;
    }
    while (barrier.generation == generation) yield();
}

inline int lane() { return current->number & 31; }
inline int warp() { return current->number >> 5; }
inline void warp_sync(uint32_t mask) { wait_at(block->warps[warp()], __builtin_popcount(mask)); }

// Every lane gives a value and reads all of them.
template <class Value, class Read>
auto across_warp(uint32_t mask, Value value, Read read) {
    static_assert(sizeof(Value) <= 8);
    auto& slots = block->slots[warp()];
    std::memcpy(&slots[lane()], &value, sizeof(Value));
    warp_sync(mask);
    auto result = read([&](int from) {
        Value other;
        std::memcpy(&other, &slots[from & 31], sizeof(Value));
        return other;
    });
    warp_sync(mask);
    return result;
}

inline void enter() {
    body();
    current->done = true;
    moved();
    swapcontext(&current->context, &scheduler);
}

// Runs all threads of a block; false when they wait for each other for ever.
inline bool run_block(dim3 size) {
    static std::vector<std::unique_ptr<char[]>> stacks;
    Block now;
    const int count = static_cast<int>(size.x * size.y * size.z);
    while (static_cast<int>(stacks.size()) < count) stacks.emplace_back(new char[kStackBytes]);
    now.threads.resize(count);
    now.warps.resize((count + 31) / 32);
    now.slots.resize((count + 31) / 32);
    std::memset(shared, 0xff, kSharedBytes);
    block = &now;
    for (int n = 0; n < count; ++n) {
        Thread& thread = now.threads[n];
        thread.number = n;
        thread.index = dim3(n % size.x, n / size.x % size.y, n / (size.x * size.y));
        getcontext(&thread.context);
        thread.context.uc_stack.ss_sp = stacks[n].get();
        thread.context.uc_stack.ss_size = kStackBytes;
        thread.context.uc_link = nullptr;
        makecontext(&thread.context, enter, 0);
    }
    int left = count;
    while (left > 0) {
        const uint64_t before = now.progress;
        for (int n = 0; n < count; ++n) {
            Thread& thread = now.threads[reversed ? count - 1 - n : n];
            if (thread.done) continue;
            current = &thread;
            swapcontext(&scheduler, &thread.context);
            left -= thread.done;
        }
        std::vector<Copy> landing;
        landing.swap(now.in_flight);
        for (const Copy& copy : landing) copy();
        if (now.progress == before && landing.empty()) return false;
    }
    for (const Copy& copy : now.in_flight) copy();
    return true;
}

}  // namespace emulated

inline dim3 blockIdx, blockDim, gridDim;
#define threadIdx (emulated::current->index)

namespace emulated {

template <class... Parameters, class... Values>
void launch_named(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 size, size_t shared_bytes, cudaStream_t, Values... values) {
    if (size.x * size.y * size.z > kMaxThreads || size.x * size.y * size.z == 0 || shared_bytes > kSharedBytes || grid.x * grid.y * grid.z == 0) {
        std::fprintf(stderr, "%s: a launch that no device would accept\n", name);
        last_error = cudaErrorInvalidValue;
        return;
    }
    gridDim = grid;
    blockDim = size;
    body = [&] { kernel(values...); };
    for (unsigned z = 0; z < grid.z; ++z)
        for (unsigned y = 0; y < grid.y; ++y)
            for (unsigned x = 0; x < grid.x; ++x) {
                blockIdx = dim3(x, y, z);
                if (!run_block(size)) {
                    std::fprintf(stderr, "%s: block (%u, %u, %u) waits for ever\n", name, x, y, z);
                    last_error = cudaErrorLaunchFailure;
                    return;
                }
            }
}

}  // namespace emulated
#define EMULATED_LAUNCH(kernel, ...) emulated::launch_named(#kernel, kernel, __VA_ARGS__)

inline cudaError_t cudaGetLastError() { return std::exchange(emulated::last_error, cudaSuccess); }
inline const char* cudaGetErrorString(cudaError_t code) {
    return code == cudaErrorLaunchFailure ? "unspecified launch failure" : code == cudaErrorMisalignedAddress ? "misaligned address" : "invalid argument";
}
template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel*, cudaFuncAttribute, size_t bytes) {
    return bytes <= emulated::kSharedBytes ? cudaSuccess : cudaErrorInvalidValue;
}

inline void __syncthreads() { emulated::wait_at(emulated::block->barriers[0], static_cast<int>(emulated::block->threads.size())); }
inline void __syncwarp(uint32_t mask = ~0u) { emulated::warp_sync(mask); }
template <class T>
T __shfl_sync(uint32_t mask, T value, int from) {
    return emulated::across_warp(mask, value, [&](auto of) { return of(from); });
}
template <class T>
T __shfl_xor_sync(uint32_t mask, T value, int distance) {
    return emulated::across_warp(mask, value, [&](auto of) { return of(emulated::lane() ^ distance); });
}
template <class T>
T __shfl_down_sync(uint32_t mask, T value, int distance) {
    return emulated::across_warp(mask, value, [&](auto of) { return emulated::lane() + distance < 32 ? of(emulated::lane() + distance) : value; });
}
inline uint32_t __ballot_sync(uint32_t mask, int predicate) {
    return emulated::across_warp(mask, predicate, [&](auto of) {
        uint32_t votes = 0;
        for (int lane = 0; lane < 32; ++lane) votes |= ((mask >> lane & 1) && of(lane)) ? 1u << lane : 0u;
        return votes;
    });
}
template <class T, class Join>
T emulated_reduce(uint32_t mask, T value, Join join) {
    return emulated::across_warp(mask, value, [&](auto of) {
        T result = value;
        for (int lane = 0; lane < 32; ++lane) {
            if (mask >> lane & 1) result = lane == emulated::lane() ? result : join(result, of(lane));
        }
        return result;
    });
}
template <class T>
T __reduce_max_sync(uint32_t mask, T value) { return emulated_reduce(mask, value, [](T a, T b) { return std::max(a, b); }); }
template <class T>
T __reduce_min_sync(uint32_t mask, T value) { return emulated_reduce(mask, value, [](T a, T b) { return std::min(a, b); }); }
template <class T>
T __reduce_add_sync(uint32_t mask, T value) { return emulated_reduce(mask, value, [](T a, T b) { return static_cast<T>(a + b); }); }

template <class T>
T atomicAdd(T* to, std::common_type_t<T> value) { T old = *to; *to = old + value; return old; }
template <class T>
T atomicMax(T* to, std::common_type_t<T> value) { T old = *to; *to = std::max(old, value); return old; }
template <class T>
T atomicMin(T* to, T value) { T old = *to; *to = std::min(old, value); return old; }
template <class T>
T __ldg(const T* from) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (reinterpret_cast<uintptr_t>(from) % alignof(T) != 0) {
        std::fprintf(stderr, "a misaligned load\n");
        emulated::last_error = cudaErrorMisalignedAddress;
    }
    return *from;
}
template <class T>
T __ldcs(const T* from) { return __ldg(from); }
template <class T>
void __stcs(T* to, T value) { *to = value; }

inline float __uint_as_float(uint32_t x) { float y; std::memcpy(&y, &x, 4); return y; }
inline uint32_t __float_as_uint(float x) { uint32_t y; std::memcpy(&y, &x, 4); return y; }
inline int __float_as_int(float x) { return static_cast<int>(__float_as_uint(x)); }
inline float __int_as_float(int x) { return __uint_as_float(static_cast<uint32_t>(x)); }
inline float rsqrtf(float x) { return 1.f / std::sqrt(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline int __popc(uint32_t x) { return __builtin_popcount(x); }
inline int __ffs(uint32_t x) { return __builtin_ffs(static_cast<int>(x)); }
inline int __clz(uint32_t x) { return x ? __builtin_clz(x) : 32; }
inline int __float2int_rn(float x) { return x != x ? 0 : static_cast<int>(std::llrint(static_cast<double>(x))); }
inline int __any_sync(uint32_t mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __float2int_rz(float x) { return x != x ? 0 : x >= 2147483648.f ? INT32_MAX : x <= -2147483648.f ? INT32_MIN : static_cast<int>(x); }
template <class A, class B>
std::common_type_t<A, B> min(A a, B b) { return b < a ? b : a; }
template <class A, class B>
std::common_type_t<A, B> max(A a, B b) { return a < b ? b : a; }

struct __nv_bfloat16 { uint16_t bits; };
inline float __bfloat162float(__nv_bfloat16 x) { return __uint_as_float(static_cast<uint32_t>(x.bits) << 16); }
inline uint16_t emulated_bf16(float x) {
    uint32_t bits = __float_as_uint(x);
    if (x != x) return 0x7fff;
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return {emulated_bf16(x)}; }
inline __nv_bfloat16 __float2bfloat16(float x) { return {emulated_bf16(x)}; }
struct __half { _Float16 value; };
struct __half2 { __half x, y; };
inline __half __float2half_rn(float x) { return {static_cast<_Float16>(x)}; }
inline float2 __half22float2(__half2 x) { return {static_cast<float>(x.x.value), static_cast<float>(x.y.value)}; }
