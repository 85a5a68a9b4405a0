// Block attention residual, with the norm in front of the sublayer that reads it, forward and backward.
//
//   score_i = r_i <query, v_i>      r_i = 1 / rms(v_i)      h = sum_i softmax(score)_i v_i      y = h / rms(h) * norm_weight, or h
//
// A block takes one token after another. One warp does nothing but load: rows of the sources go into a ring in shared memory by bulk copies,
// as far ahead as the ring allows, so that memory is busy while the other warps work. They read a token's rows two or three times from there
// and give a place back when they are done with it. h is never written; the backward makes it again from the sources it reads anyway, and
// adds to a source's gradient in place when asked to. Who calls it: residual/sm90.py.

#include "include/residual.cuh"

namespace residual {
namespace {

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
