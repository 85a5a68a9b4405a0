// Block attention residual, with the norm in front of the sublayer that reads it, forward and backward.
//
//   score_i = r_i <query, v_i>      r_i = 1 / rms(v_i)      h = sum_i softmax(score)_i v_i      y = h / rms(h) * norm_weight, or h
//
// A block takes one token after another. One warp does nothing but load: rows of the sources go into a ring in shared memory by bulk copies,
// as far ahead as the ring allows, so that memory is busy while the other warps work. They read a token's rows two or three times from there
// and give a place back when they are done with it. h is never written; the backward makes it again from the sources it reads anyway, and
// adds to a source's gradient in place when asked to. Who calls it: residual/sm90.py.

#include "include/ptx.cuh"

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

namespace {

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

__global__ void __launch_bounds__(kMostConsumers + 32, 1) forward(const __grid_constant__ Arguments arguments) {
    extern __shared__ __align__(1024) unsigned char raw_shared[];
    __shared__ Sums sums;
    Ring ring(raw_shared, arguments);
    const int consumers = arguments.num_consumers, warps = consumers / 32, sources = arguments.num_sources;
    prepare_ring(ring, warps);
    if (static_cast<int>(threadIdx.x) >= consumers) {
        if (static_cast<int>(threadIdx.x) == consumers) load_all(arguments, ring, nullptr);
        return;
    }
    const Mine mine(arguments);
    const Channels query = mine.from_floats(arguments.query);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const float per_width = 1.f / static_cast<float>(arguments.width);
    int turn = 0;
    for (int64_t token = blockIdx.x; token < arguments.num_tokens; token += arguments.num_blocks, turn ^= 1) {
        Ring again = ring;
        for (int i = 0; i < sources; ++i, ring.advance()) {
            ring.wait();
            float along = 0.f, square = 0.f;
#pragma unroll
            for (int p = 0; p < kPieces; ++p) {
                float v[8];
                unpack(mine.valid[p] ? ring.piece(mine.piece[p]) : nothing(), v);
#pragma unroll
                for (int c = 0; c < 8; ++c) {
                    along += query.at[p][c] * v[c];
                    square += v[c] * v[c];
                }
            }
            give(sums, turn, i, along, square);
        }
        ptx::named_barrier(1, consumers);
        const float2 total = take(sums, turn, sources, warps);
        const float inverse = rsqrtf(total.y * per_width + arguments.eps);
        const float score = lane < sources ? total.x * inverse : -INFINITY;
        const float grown = lane < sources ? expf(score - largest_of_warp(score)) : (largest_of_warp(score), 0.f);
        const float weight = grown / sum_of_warp(grown);
        if (warp == 0 && lane < sources) {
            const int64_t at = token * sources + lane;
            arguments.weights[at] = weight;
            arguments.scores[at] = score;
            arguments.inverses[at] = inverse;
        }
        Channels h = {};
        for (int i = 0; i < sources; ++i, again.advance()) {
            const float a = __shfl_sync(kAll, weight, i);
#pragma unroll
            for (int p = 0; p < kPieces; ++p) {
                float v[8];
                unpack(mine.valid[p] ? again.piece(mine.piece[p]) : nothing(), v);
#pragma unroll
                for (int c = 0; c < 8; ++c) h.at[p][c] += a * v[c];
            }
            again.release();
        }
        if (arguments.norm_weight) {
            float square = 0.f;
#pragma unroll
            for (int p = 0; p < kPieces; ++p) {
#pragma unroll
                for (int c = 0; c < 8; ++c) square += h.at[p][c] * h.at[p][c];
            }
            square = sum_of_warp(square);
            if (lane == 0) sums.norm[turn][warp] = square;
            ptx::named_barrier(1, consumers);
            float whole = 0.f;
            for (int w = 0; w < warps; ++w) whole += sums.norm[turn][w];
            const float norm_inverse = rsqrtf(whole * per_width + arguments.eps);
            if (threadIdx.x == 0) arguments.norm_inverse[token] = norm_inverse;
            const Channels gain = mine.from_floats(arguments.norm_weight);
#pragma unroll
            for (int p = 0; p < kPieces; ++p) {
#pragma unroll
                for (int c = 0; c < 8; ++c) h.at[p][c] *= norm_inverse * gain.at[p][c];
            }
        }
#pragma unroll
        for (int p = 0; p < kPieces; ++p) {
            if (mine.valid[p]) reinterpret_cast<uint4*>(arguments.y + token * arguments.width)[mine.piece[p]] = pack(h.at[p]);
        }
    }
}

// With u_i = <g dy, v_i> and p_i = <h, v_i>: dh = R g dy - k h, k = R^3 / width sum_i a_i u_i, so <dh, v_i> = R u_i - k p_i, and
//   ds_i = a_i (<dh, v_i> - sum_j a_j <dh, v_j>)      dv_i = a_i dh + ds_i r_i query - (ds_i r_i^2 score_i / width) v_i
__global__ void __launch_bounds__(kMostConsumers + 32, 1) backward(const __grid_constant__ Arguments arguments) {
    extern __shared__ __align__(1024) unsigned char raw_shared[];
    __shared__ Sums sums;
    Ring ring(raw_shared, arguments);
    const int consumers = arguments.num_consumers, warps = consumers / 32, sources = arguments.num_sources;
    prepare_ring(ring, warps);
    if (static_cast<int>(threadIdx.x) >= consumers) {
        if (static_cast<int>(threadIdx.x) == consumers) load_all(arguments, ring, arguments.d_y);
        return;
    }
    const Mine mine(arguments);
    const Channels query = mine.from_floats(arguments.query);
    const int lane = threadIdx.x & 31;
    const float per_width = 1.f / static_cast<float>(arguments.width);
    const bool normed = arguments.norm_weight != nullptr;
    Channels d_query = {}, d_gain = {};
    int turn = 0;
    for (int64_t token = blockIdx.x; token < arguments.num_tokens; token += arguments.num_blocks, turn ^= 1) {
        const int64_t at = token * sources + lane;
        const float weight = lane < sources ? arguments.weights[at] : 0.f, score = lane < sources ? arguments.scores[at] : 0.f;
        const float inverse = lane < sources ? arguments.inverses[at] : 0.f;
        const float norm_inverse = normed ? arguments.norm_inverse[token] : 1.f;
        uint4 d_y[kPieces];
        Channels d_h;  // first g dy, then dh
        ring.wait();
#pragma unroll
        for (int p = 0; p < kPieces; ++p) {
            d_y[p] = mine.valid[p] ? ring.piece(mine.piece[p]) : nothing();
            unpack(d_y[p], d_h.at[p]);
        }
        ring.release();
        ring.advance();
        if (normed) {
            const Channels gain = mine.from_floats(arguments.norm_weight);
#pragma unroll
            for (int p = 0; p < kPieces; ++p) {
#pragma unroll
                for (int c = 0; c < 8; ++c) d_h.at[p][c] *= gain.at[p][c];
            }
        }
        const Ring start = ring;
        Channels h = {};
        for (int i = 0; i < sources; ++i, ring.advance()) {
            ring.wait();
            const float a = __shfl_sync(kAll, weight, i);
            float towards = 0.f;
#pragma unroll
            for (int p = 0; p < kPieces; ++p) {
                float v[8];
                unpack(mine.valid[p] ? ring.piece(mine.piece[p]) : nothing(), v);
#pragma unroll
                for (int c = 0; c < 8; ++c) {
                    towards += d_h.at[p][c] * v[c];
                    h.at[p][c] += a * v[c];
                }
            }
            give(sums, turn, i, towards, 0.f);
        }
        if (normed) {
            Ring again = start;
            for (int i = 0; i < sources; ++i, again.advance()) {
                float shared_part = 0.f;
#pragma unroll
                for (int p = 0; p < kPieces; ++p) {
                    float v[8];
                    unpack(mine.valid[p] ? again.piece(mine.piece[p]) : nothing(), v);
#pragma unroll
                    for (int c = 0; c < 8; ++c) shared_part += h.at[p][c] * v[c];
                }
                shared_part = sum_of_warp(shared_part);
                if (lane == 0) sums.at[turn][i][threadIdx.x >> 5].y = shared_part;
            }
        }
        ptx::named_barrier(1, consumers);
        const float2 total = take(sums, turn, sources, warps);
        const float keep = normed ? norm_inverse * norm_inverse * norm_inverse * per_width * sum_of_warp(weight * total.x) : 0.f;
        const float towards = norm_inverse * total.x - keep * total.y;
        const float d_score = weight * (towards - sum_of_warp(weight * towards));
        const float pull = d_score * inverse, shrink = pull * score * inverse * per_width;
#pragma unroll
        for (int p = 0; p < kPieces; ++p) {
            float d_out[8];
            unpack(d_y[p], d_out);
#pragma unroll
            for (int c = 0; c < 8; ++c) {
                d_gain.at[p][c] += d_out[c] * h.at[p][c] * norm_inverse;
                d_h.at[p][c] = norm_inverse * d_h.at[p][c] - keep * h.at[p][c];
            }
        }
        Ring last = start;
        for (int i = 0; i < sources; ++i, last.advance()) {
            const float a = __shfl_sync(kAll, weight, i), b = __shfl_sync(kAll, pull, i), s = __shfl_sync(kAll, shrink, i);
            uint4* d_row = reinterpret_cast<uint4*>(arguments.d_values[i] + token * arguments.width);
            const bool adds = arguments.accumulate >> i & 1;
            uint4 before[kPieces];
#pragma unroll
            for (int p = 0; p < kPieces; ++p) before[p] = adds && mine.valid[p] ? d_row[mine.piece[p]] : nothing();
#pragma unroll
            for (int p = 0; p < kPieces; ++p) {
                float v[8], d_v[8];
                unpack(mine.valid[p] ? last.piece(mine.piece[p]) : nothing(), v);
                unpack(before[p], d_v);
#pragma unroll
                for (int c = 0; c < 8; ++c) {
                    d_v[c] += a * d_h.at[p][c] + b * query.at[p][c] - s * v[c];
                    d_query.at[p][c] += b * v[c];
                }
                if (mine.valid[p]) d_row[mine.piece[p]] = pack(d_v);
            }
            last.release();
        }
    }
    mine.to_floats(arguments.parts + static_cast<int64_t>(blockIdx.x) * 2 * arguments.width, d_query);
    mine.to_floats(arguments.parts + (static_cast<int64_t>(blockIdx.x) * 2 + 1) * arguments.width, d_gain);
}

// Sums the parts of all blocks in their order.
__global__ void __launch_bounds__(kSumThreads) reduce(const __grid_constant__ Arguments arguments) {
    const int channel = static_cast<int>(blockIdx.x) * kSumThreads + static_cast<int>(threadIdx.x);
    if (channel >= 2 * arguments.width) return;
    float total = 0.f;
#pragma unroll 8
    for (int block = 0; block < arguments.num_blocks; ++block) total += __ldg(arguments.parts + static_cast<int64_t>(block) * 2 * arguments.width + channel);
    if (channel < arguments.width) arguments.d_query[channel] = total;
    else if (arguments.d_norm_weight) arguments.d_norm_weight[channel - arguments.width] = total;
}

size_t ring_bytes(const Arguments& arguments) { return static_cast<size_t>(arguments.num_slots) * (arguments.width * 2 + 16); }

}  // namespace
}  // namespace residual

// Called by residual/sm90.py. Return a cudaError_t; never throw, synchronise or allocate. Width: a multiple of 8 up to 7168. The ring must
// hold a token's rows: as many slots as sources, one more backward.
extern "C" int sm90_attention_residual_forward(const residual::Arguments* arguments, cudaStream_t stream) {
    if (arguments->num_tokens == 0) return 0;
    const size_t bytes = residual::ring_bytes(*arguments);
    const cudaError_t error = cudaFuncSetAttribute(residual::forward, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return static_cast<int>(error);
    residual::forward<<<arguments->num_blocks, arguments->num_consumers + 32, bytes, stream>>>(*arguments);
    return static_cast<int>(cudaGetLastError());
}
extern "C" int sm90_attention_residual_backward(const residual::Arguments* arguments, cudaStream_t stream) {
    const size_t bytes = residual::ring_bytes(*arguments);
    const cudaError_t error = cudaFuncSetAttribute(residual::backward, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return static_cast<int>(error);
    residual::backward<<<arguments->num_blocks, arguments->num_consumers + 32, bytes, stream>>>(*arguments);
    const unsigned blocks = (2 * arguments->width + residual::kSumThreads - 1) / residual::kSumThreads;
    residual::reduce<<<blocks, residual::kSumThreads, 0, stream>>>(*arguments);
    return static_cast<int>(cudaGetLastError());
}
