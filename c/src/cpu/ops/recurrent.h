// recurrent.h - pieces of states and chunks of tokens, which all recurrent layers share.
//
// The rows of a state do not depend on each other. A piece is GB_LANES rows of one head and sequence. A thread computes
// it for all tokens while the piece is in the nearest caches, one row per lane (kernels/contracts/recurrent.h). With
// few tokens, converting the piece to lanes and back does not pay. Rows are then computed one by one, from the old
// state to the new one.
//
// SSM_SCAN with one decay for a head, and GATED_DELTA_NET, compute GB_CHUNK tokens in one pass over the state. What the
// tokens of a chunk do to each other depends on products of their keys. All pieces of a unit share those.
#ifndef GB_CPU_OPS_RECURRENT_H
#define GB_CPU_OPS_RECURRENT_H

#include "cpu/ops/elements.h"

enum {
    GB_FEW_TOKENS = 3, // maximum number of tokens for which rows are computed one by one
    GB_UNIT_PIECES = 4, // maximum number of pieces of a unit, whose states stay in the second-level cache
};

// NULL if the sources are F32 with dense and aligned rows, and the result is contiguous. Else the reason.
const char * gb_recurrent_unsupported(const struct ggml_tensor * node, int n_src);

// Views may begin at any byte. False: a source is not aligned, which is reported.
bool gb_recurrent_is_aligned(const struct gb_cpu_call * call, const struct ggml_tensor * node);

static inline const float * gb_row_floats(const struct ggml_tensor * t, int64_t i1, int64_t i2, int64_t i3) {
    return (const float *) (const void *) gb_row_ptr(t, i1, i2, i3);
}

// -------------------------------------------------------------------------------------------------------------- pieces

// Rows [first, first + n) of a state, each of `size` elements.
struct gb_piece {
    int64_t head, sequence, first, n;
};

struct gb_piece gb_piece_at(int64_t u, int64_t rows, int64_t heads);

// Converts rows of a state to lanes and back. Lanes beyond the last row are 0.
void gb_to_lanes(const struct gb_cpu_call * call, float * s, const float * rows, int64_t n, int64_t size);
void gb_from_lanes(const struct gb_cpu_call * call, float * rows, const float * s, int64_t n, int64_t size);

// Clears rows of lanes, if n lanes do not fill a row.
void gb_clear_lanes(float * lanes, int rows, int64_t n);

// Puts n values into lanes. The remaining lanes get 0.
void gb_lanes_of(float * lanes, const float * values, int64_t n);

// -------------------------------------------------------------------------------------------------------------- chunks

// Pieces of a unit, if `lists` lists have `pieces` pieces each. Threads get several units, so that they end together.
int64_t gb_unit_pieces(int64_t pieces, int64_t lists, int n_threads);

// Tokens of the chunk that begins at token t. A chunk ends with each state that is kept.
int gb_chunk_size(int64_t t, int64_t tokens, int64_t n_states);

// Rows of GB_CHUNK tokens, `ld` floats apart.
struct gb_token_rows {
    const float * p;
    int64_t ld;
};

// Prefetches n elements of the rows of GB_CHUNK tokens, from row (i1, first, i3) on. The rows need not exist.
void gb_prefetch_rows(const struct ggml_tensor * t, int64_t i1, int64_t first, int64_t i3, int64_t n);

// Copies the rows of n tokens of t, from row (i1, first, i3) on, to `copy`, with zeros behind, and prefetches the next
// rows. In t, rows of neighbouring tokens are often a multiple of 4 KiB apart. They would then share the same few
// places of the nearest cache.
struct gb_token_rows gb_rows_of_chunk(const struct ggml_tensor * t, int64_t i1, int64_t first, int64_t i3, int n,
    float * copy);

// y[t][i] = row t of x times row i of k, for nx and n rows of `size` floats
void gb_products_of_rows(const struct gb_cpu_call * call, int64_t size, struct gb_token_rows x, int nx,
    struct gb_token_rows k, int n, float (*y)[GB_CHUNK]);

#endif // GB_CPU_OPS_RECURRENT_H
