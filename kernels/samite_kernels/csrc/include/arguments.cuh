// Argument blocks of the C entry points, mirrored by ctypes structures in kda/sm90_launch.py (a test compares sizes and offsets).
// Token tensors are contiguous [tokens, heads, 128]; images are described in layout.cuh; a tile is chunk * heads + head.
#pragma once

#include "layout.cuh"

namespace kda {

struct PrepareArguments {
    const __nv_bfloat16* q;
    const __nv_bfloat16* k;
    const __nv_bfloat16* v;
    const __nv_bfloat16* g;
    const __nv_bfloat16* beta;    // [tokens, heads], before the sigmoid
    const float* a_log;           // [heads]
    const float* dt_bias;         // [heads, 128]
    const Chunk* chunks;          // [num_chunks]
    unsigned char* minus_w;       // token image per tile: -W
    unsigned char* q_grown;       // token image per tile: scale q e^G
    unsigned char* k_kept;        // token image per tile: k e^(G_last - G)
    unsigned char* u_transposed;  // [128 v, 64 i] image per tile: U transposed
    unsigned char* inverse;       // square image per tile, for the backward: (I + A_kk)^-1; or null
    unsigned char* scores;        // square image per tile: A_qk
    float* keep;                  // [128] per tile: e^G_last
    int64_t* counts;              // [heads, kTallyRow], see tally.cuh; or null
    int32_t num_chunks;
    int32_t num_heads;
    int32_t idle_count;           // 1: warps that idle count (survey.cuh), 0: all do beside their work (tally.cuh)
    float scale;
    float lower_bound;
    float saturated_logit;        // of the gate's sigmoid, from which it counts as saturated
    float open_logit;             // to which it counts as open
};

// The factors of the backward, from the inputs and what the forward kept.
struct RebuildArguments {
    const __nv_bfloat16* q;
    const __nv_bfloat16* k;
    const __nv_bfloat16* g;
    const __nv_bfloat16* beta;
    const float* a_log;
    const float* dt_bias;
    const Chunk* chunks;
    const unsigned char* inverse;
    unsigned char* minus_w;
    unsigned char* q_grown;
    unsigned char* k_kept;
    float* keep;
    int32_t num_chunks;
    int32_t num_heads;
    float scale;
    float lower_bound;
};

struct ScanArguments {
    const unsigned char* minus_w;
    const unsigned char* q_grown;
    const unsigned char* k_kept;
    const unsigned char* u_transposed;
    const unsigned char* scores;
    const float* keep;
    const Chunk* chunks;
    const int32_t* first_chunk;   // [documents + 1]
    const float* initial_state;   // [documents, heads, 128 k, 128 v] or null
    float* final_state;           // the same, or null
    __nv_bfloat16* o;             // [tokens, heads, 128]; null: states and v_new are saved and outputs left to sm90_kda_output
    unsigned char* states;        // state image per tile (S transposed, before the chunk), or null
    unsigned char* v_new;         // [128 v, 64 i] image per tile, or null
    int32_t num_documents;
    int32_t num_heads;
};

// Maps S -> M S + b of the pieces of documents; a piece is a run of chunks, `first_chunk` counts them through all documents.
struct MapsArguments {
    const unsigned char* minus_w;
    const unsigned char* k_kept;
    const unsigned char* u_transposed;
    const float* keep;
    const int32_t* first_chunk;  // [pieces + 1]
    float* maps;                 // M: [pieces, heads, 128 k, 128 k]
    float* ends;                 // b: [pieces, heads, 128 k, 128 v]
    int32_t num_pieces;
    int32_t num_heads;
};

struct FoldArguments {
    const float* maps;
    const float* ends;
    const float* initial_state;  // [documents, heads, 128 k, 128 v] or null
    const int32_t* first_piece;  // [documents + 1]
    float* starts;               // [pieces, heads, 128 k, 128 v]
    int32_t num_documents;
    int32_t num_heads;
};

struct OutputArguments {
    const unsigned char* q_grown;
    const unsigned char* scores;
    const unsigned char* states;
    const unsigned char* v_new;
    const Chunk* chunks;
    __nv_bfloat16* o;
    int32_t num_chunks;
    int32_t num_heads;
};

struct ReverseScanArguments {
    const unsigned char* minus_w;
    const unsigned char* q_grown;
    const unsigned char* k_kept;
    const unsigned char* scores;
    const float* keep;
    const Chunk* chunks;
    const int32_t* first_chunk;
    const __nv_bfloat16* d_o;           // [tokens, heads, 128]
    const float* d_final_state;         // [documents, heads, 128 k, 128 v] or null
    float* d_initial_state;             // the same, or null
    unsigned char* d_states;            // state image per tile: gradient of the state after the chunk, transposed
    unsigned char* d_v_new;             // [128 v, 64 i] image per tile
    int32_t num_documents;
    int32_t num_heads;
};

struct GradientArguments {
    const __nv_bfloat16* q;
    const __nv_bfloat16* k;
    const __nv_bfloat16* v;
    const __nv_bfloat16* g;
    const __nv_bfloat16* beta;
    const float* a_log;
    const float* dt_bias;
    const Chunk* chunks;
    const __nv_bfloat16* d_o;
    const unsigned char* states;
    const unsigned char* d_states;
    const unsigned char* v_new;
    const unsigned char* d_v_new;
    const unsigned char* inverse;
    __nv_bfloat16* d_q;
    __nv_bfloat16* d_k;
    __nv_bfloat16* d_v;
    __nv_bfloat16* d_g;
    __nv_bfloat16* d_beta;
    float* d_a_log_parts;    // [1] per tile
    float* d_dt_bias_parts;  // [128] per tile
    int32_t num_chunks;
    int32_t num_heads;
    float scale;
    float lower_bound;
};

struct TallyArguments {
    const int64_t* rows;  // [heads, kTallyRow]
    int64_t* sums;        // over heads, in the order of kda/sm90_counts.py
    float* extremes;      // [3], in nats
    int32_t num_heads;
};

struct ReduceArguments {
    const float* d_a_log_parts;
    const float* d_dt_bias_parts;
    float* d_a_log;          // [heads]
    float* d_dt_bias;        // [heads, 128]
    int32_t num_chunks;
    int32_t num_heads;
};

}  // namespace kda
