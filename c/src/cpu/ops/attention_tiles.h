// attention_tiles.h - attention for many queries at a time, for FLASH_ATTN (attention.c) and for
// fused chains of products and a softmax (fuse/attention.c).
#ifndef GB_CPU_OPS_ATTENTION_TILES_H
#define GB_CPU_OPS_ATTENTION_TILES_H

#include "cpu/ops/elements.h"

enum gb_score_edit_kind {
    GB_SCORE_SCALE, // x value
    // + t, f32 with dense rows: query, head and batch use the row of t with their index modulo t's
    // sizes
    GB_SCORE_ADD,
};

struct gb_score_edit { // a change of the scores before the softmax
    enum gb_score_edit_kind kind;
    float value;
    const struct ggml_tensor * t;
};

enum { GB_SCORE_EDITS = 4 };

// The tensors, the edits of the scores and the place of the results, for one node or for a chain.
struct gb_attention {
    const struct ggml_tensor *q, *k, *v; // q f32, f16 or bf16; k and v too
    // query head h uses key head h mod the number of key heads; otherwise h / (heads that share a
    // key head)
    bool in_turn;
    float scale; // of the scores, before anything else
    bool causal; // query i sees keys 0 .. past + i; else all
    int64_t past;
    int causal_at; // index of the edit before which hidden scores become -inf
    int n_edits;
    struct gb_score_edit edits[GB_SCORE_EDITS];
    enum ggml_type type; // of the results
    char * out; // result 0 of query 0, head 0, batch 0
    size_t nb[4]; // from one result, query, head, batch to the next
};

// True if tiles pay for the number of queries, and panels can be packed from the layouts. Depends
// on shapes, types and strides only.
bool gb_attention_is_tiled(const struct gb_attention * a);
bool gb_attention_is_aligned(const struct gb_attention * a); // needs data, so only for runs
int64_t gb_attention_tiled_floats(const struct gb_attention * a); // scratch of a thread
int64_t gb_attention_tiled_units(const struct gb_attention * a); // indivisible shares
// Computes this thread's share of the units. Both checks above must be true. The work memory holds
// gb_attention_tiled_floats for each thread.
void gb_attention_run_tiled(const struct gb_cpu_call * call, const struct gb_attention * a);

#endif // GB_CPU_OPS_ATTENTION_TILES_H
