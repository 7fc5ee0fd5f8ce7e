// attention_tiles.h - attention for many queries at once: for FLASH_ATTN (attention.c) and for chains of products and a
// softmax that the plan takes together (fuse/attention.c).
//
//     out = softmax(edits(scale (k q))) v
//
// Keys are rows of d elements; values are transposed: for each of dv results a row of m elements.
#ifndef GB_CPU_OPS_ATTENTION_TILES_H
#define GB_CPU_OPS_ATTENTION_TILES_H

#include "cpu/ops/elements.h"

enum gb_score_edit_kind {
    GB_SCORE_SCALE, // x value
    GB_SCORE_ADD, // + t, f32 with dense rows, repeated over the scores of a query, head and batch
    // the same, where t's rows go with the scores' rows counted through all heads, modulo (SOFT_MAX's mask)
    GB_SCORE_ADD_ROW,
};

struct gb_score_edit { // what happens to scores before the softmax
    enum gb_score_edit_kind kind;
    float value;
    const struct ggml_tensor * t;
};

enum { GB_SCORE_EDITS = 4 };

// The tensors, the edits of the scores and where the results go: everything a driver needs, for one node or for a
// chain.
struct gb_attention {
    const struct ggml_tensor *q, *k, *v; // q f32, f16 or bf16; k and v too
    // query head h uses key head h mod the number of them; else h div the heads that share one
    bool in_turn;
    float scale; // of the scores, before anything else
    bool causal; // query i sees keys 0 .. past + i; else all
    int64_t past;
    int causal_at; // before which edit: the others' scores become -inf there
    int n_edits;
    struct gb_score_edit edits[GB_SCORE_EDITS];
    enum ggml_type type; // of the results
    char * out; // result 0 of query 0, head 0, batch 0
    size_t nb[4]; // from one result, query, head, batch to the next
};

// Are there enough queries, and layouts that panels can be packed from? Types and strides only.
bool gb_attention_is_tiled(const struct gb_attention * a);
bool gb_attention_is_aligned(const struct gb_attention * a); // asked at run time: data must be there
int64_t gb_attention_tiled_floats(const struct gb_attention * a); // scratch of a thread
int64_t gb_attention_tiled_units(const struct gb_attention * a); // indivisible shares
// Computes this thread's share of the units. Needs both checks above, and gb_attention_tiled_floats of work for each
// thread.
void gb_attention_run_tiled(const struct gb_cpu_call * call, const struct gb_attention * a);

#endif // GB_CPU_OPS_ATTENTION_TILES_H
