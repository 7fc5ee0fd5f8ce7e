// attention.h - attention, for FLASH_ATTN (attention.c), FLASH_ATTN_EXT (attention_ext.c) and fused chains of products
// and a softmax (fuse/attention.c).
//
// A row is a query of a head. A group is the consecutive heads that share a head of keys and a head of values. Its rows
// are numbered query by query. A plane is a group of a batch.
//
// attention_tiles.c computes many rows at a time, from packed blocks of keys and values. attention_few.c computes up to
// GB_ATTENTION_FEW rows, and reads keys and values in place. Both process the keys in blocks. A block adds its
// exponentials, relative to the largest score so far, and its weighted values to the sums of a row
// (attention_rows.c). So the full score matrix is never stored.
//
// If there are few units of work, the keys are divided into parts. Each unit then stores the sums of its rows over one
// part in memory that all threads share. After a barrier, the sums of all parts are added in order.
#ifndef GB_CPU_OPS_ATTENTION_H
#define GB_CPU_OPS_ATTENTION_H

#include "cpu/ops/elements.h"

enum gb_score_edit_kind {
    GB_SCORE_SCALE, // x value
    GB_SCORE_CAP, // value tanh(x)
    // + t, f32 with dense rows: query, head and batch use the row of t with their index modulo t's
    // sizes
    GB_SCORE_ADD,
    // + slope t, f32 or f16 with any strides, rows as above. An element of -inf hides the key, even if the key is NaN.
    // `value` is the maximum of ALiBi, or 0 for the slope 1. It is the last edit.
    GB_SCORE_MASK,
};

struct gb_score_edit { // a change of the scores before the softmax
    enum gb_score_edit_kind kind;
    float value;
    const struct ggml_tensor * t;
};

enum { GB_SCORE_EDITS = 4 };

// The tensors, the edits of the scores and the place of the results, for one node or for a chain.
struct gb_attention {
    const struct ggml_tensor *q, *k, *v; // q f32, f16 or bf16
    const struct ggml_tensor * sinks; // f32, one for each head; NULL: none
    // v has a row for each key. Else it has a row for each element of the result, over all keys.
    bool rows_of_values;
    // query head h uses key head h mod the number of key heads; otherwise h / (heads that share a
    // key head)
    bool in_turn;
    float scale; // of the scores, before anything else
    bool causal; // query i sees keys 0 .. past + i; else all
    int64_t past;
    int causal_at; // index of the edit before which hidden scores become -inf
    int n_edits;
    struct gb_score_edit edits[GB_SCORE_EDITS];
    bool exact; // attention_few.c must not round queries
    int64_t group; // heads of a group
    enum ggml_type type; // of the results
    char * out; // result 0 of query 0, head 0, batch 0
    size_t nb[4]; // from one result, query, head, batch to the next
    int64_t part, parts; // keys of a part; number of parts, 0 or 1: undivided
};

// ---------------------------------------------------------------------------------------------------------------- rows

struct gb_attention_row {
    struct gb_row at; // query, head, batch
    bool plain; // as in gb_attention_view
    float max; // largest score so far
    double sum; // of exponentials relative to max
    float * out; // weighted values so far
};

void gb_attention_set_group(struct gb_attention * a); // from q, k, v and in_turn
int64_t gb_attention_planes(const struct gb_attention * a);

static inline int64_t gb_attention_rows(const struct gb_attention * a) { return a->q->ne[1] * a->group; } // of a plane

// Elements of a result.
static inline int64_t gb_attention_width(const struct gb_attention * a) { return a->v->ne[a->rows_of_values ? 0 : 1]; }

struct gb_row gb_attention_row_at(const struct gb_attention * a, int64_t plane, int64_t row);

// The row after `at`, with the number `next` in its plane. Divisions are too slow for each row.
static inline struct gb_row gb_attention_next_row(const struct gb_attention * a, struct gb_row at, int64_t next) {
    const bool same_query = next < (at.i1 + 1) * a->group;
    return (struct gb_row) { at.i1 + !same_query, same_query ? at.i2 + 1 : at.i2 + 1 - a->group, at.i3 };
}

// The heads of keys and values that a row uses.
struct gb_attention_heads {
    int64_t k2, k3, v2, v3;
    int64_t number; // of this combination
};
struct gb_attention_heads gb_attention_heads_of(const struct gb_attention * a, struct gb_row at);

// Divides the keys so that there are about `wanted` units, if `units` units compute all rows. A part has at least
// `least` keys, and a multiple of `least`.
void gb_attention_divide(struct gb_attention * a, int64_t units, int64_t wanted, int64_t least);
size_t gb_attention_parts_size(const struct gb_attention * a); // bytes that all threads share

// The keys that a row sees lie in [first, end). Keys after `end` are hidden by the causal mask or by the tensors of
// edits. Keys before `first` are hidden by a GB_SCORE_MASK.
struct gb_attention_view {
    int64_t first, end;
    bool masks_hide; // the tensors of GB_SCORE_ADD hold -inf or finite numbers for hidden keys
    bool plain; // all tensors of edits hold zeros in this range
};

// Narrows the range in `view`, which begins with all keys, or with those of a part.
void gb_attention_look(const struct gb_attention * a, struct gb_row at, struct gb_attention_view * view);

// A thread's state for editing scores. Heads often share a mask, so its last piece that was converted is kept.
struct gb_attention_scores {
    const struct gb_kernels * k;
    const struct gb_attention * a;
    float * mask; // scratch for as many keys as a block has
    const char * from; // source of `mask`, n keys
    int64_t n;
};

// Applies the edits to n scores, from key0 on. With `all_count`, hidden keys are computed, so the causal mask is
// applied, too. Then converts scores to exponentials, and scales the sums of the row down if its largest score rises.
void gb_attention_weigh(struct gb_attention_scores * s, struct gb_attention_row * row, bool all_count, int64_t key0,
    int64_t n, float * score);
// Stores the results of row `number` of a plane, or its sums over a part. `convert`: scratch for a
// result. `parts`: the memory that all threads share.
void gb_attention_close(const struct gb_kernels * k, const struct gb_attention * a, const struct gb_attention_row * row,
    int64_t plane, int64_t number, int64_t part, float * convert, float * parts);
// Adds the parts of this thread's share of all rows. All threads call it after their units. `out`: scratch for a
// result.
void gb_attention_combine(const struct gb_cpu_call * call, const struct gb_attention * a, float * out, float * parts);

// --------------------------------------------------------------------------------------------------------------- tiles

// True if tiles pay for the number of queries, and panels can be packed from the layouts. Depends
// on shapes, types and strides only. FLASH_ATTN_EXT needs no packable layouts.
bool gb_attention_is_tiled(const struct gb_attention * a);
bool gb_attention_is_aligned(const struct gb_attention * a); // needs data, so only for runs
int64_t gb_attention_tiled_floats(const struct gb_attention * a); // scratch of a thread
int64_t gb_attention_tiled_units(const struct gb_attention * a); // units if the keys are not divided
// Computes this thread's share of the units. Both checks above must be true, or v has rows of values. The work memory
// holds gb_attention_tiled_floats for each thread, then the memory of parts.
void gb_attention_run_tiled(const struct gb_cpu_call * call, const struct gb_attention * a);

// ------------------------------------------------------------------------------------------------------------ few rows

enum { GB_ATTENTION_FEW = 8 };

// Scratch of a thread for at most GB_ATTENTION_FEW rows a group. v has rows of values.
int64_t gb_attention_few_floats(const struct gb_attention * a);
// Computes this thread's share. A plane and a part are a unit. The work memory is as above.
void gb_attention_run_few(const struct gb_cpu_call * call, const struct gb_attention * a);

#endif // GB_CPU_OPS_ATTENTION_H
