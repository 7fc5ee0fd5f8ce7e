// recurrent.c - pieces of states, and chunks of tokens.
#include "cpu/ops/recurrent.h"

const char * gb_recurrent_unsupported(const struct ggml_tensor * node, int n_src) {
    const char * why = gb_need_f32(node, n_src);
    for (int i = 0; i < n_src && why == NULL; i++) {
        const struct ggml_tensor * t = node->src[i];
        if ((t->nb[0] != sizeof(float) && t->ne[0] > 1) || ((t->nb[1] | t->nb[2] | t->nb[3]) % sizeof(float)) != 0) {
            return "rows of sources must be dense";
        }
    }
    return why != NULL || ggml_is_contiguous(node) ? why : "the result must be contiguous";
}

bool gb_recurrent_is_aligned(const struct gb_cpu_call * call, const struct ggml_tensor * node) {
    for (int i = 0; i < GGML_MAX_SRC && node->src[i] != NULL; i++) {
        if ((uintptr_t) node->src[i]->data % sizeof(float) != 0) {
            gb_cpu_fail(call, node, GGML_STATUS_INVALID_ARGUMENT, "the data of source %d must be aligned to 4 bytes",
                i);
            return false;
        }
    }
    return true;
}

struct gb_piece gb_piece_at(int64_t u, int64_t rows, int64_t heads) {
    const int64_t pieces = gb_div_up(rows, GB_LANES), head = u / pieces;
    const int64_t first = u % pieces * GB_LANES;
    return (struct gb_piece){ head % heads, head / heads, first, GB_MIN(rows - first, (int64_t) GB_LANES) };
}

void gb_to_lanes(const struct gb_cpu_call * call, float * s, const float * rows, int64_t n, int64_t size) {
    if (n < GB_LANES) {
        memset(s, 0, (size_t) size * GB_LANES * sizeof(float));
    }
    call->k->transpose_32(n, size, (uint32_t *) (void *) s, GB_LANES * sizeof(float),
        (const uint32_t *) (const void *) rows, (size_t) size * sizeof(float));
}

void gb_from_lanes(const struct gb_cpu_call * call, float * rows, const float * s, int64_t n, int64_t size) {
    call->k->transpose_32(size, n, (uint32_t *) (void *) rows, (size_t) size * sizeof(float),
        (const uint32_t *) (const void *) s, GB_LANES * sizeof(float));
}

void gb_clear_lanes(float * lanes, int rows, int64_t n) {
    if (n < GB_LANES) {
        memset(lanes, 0, (size_t) rows * GB_LANES * sizeof(float));
    }
}

void gb_lanes_of(float * lanes, const float * values, int64_t n) {
    gb_clear_lanes(lanes, 1, n);
    memcpy(lanes, values, (size_t) n * sizeof(float));
}

int64_t gb_unit_pieces(int64_t pieces, int64_t lists, int n_threads) {
    return GB_MAX((int64_t) 1, GB_MIN((int64_t) GB_UNIT_PIECES, GB_MIN(pieces, pieces * lists / (4 * n_threads))));
}

int gb_chunk_size(int64_t t, int64_t tokens, int64_t n_states) {
    const int64_t until = GB_MAX(tokens - n_states + 1, t + 1); // tokens before the first kept state
    return (int) GB_MIN((int64_t) GB_CHUNK, GB_MIN(until, tokens) - t);
}

void gb_prefetch_rows(const struct ggml_tensor * t, int64_t i1, int64_t first, int64_t i3, int64_t n) {
    for (int i = 0; i < GB_CHUNK; i++) {
        gb_prefetch(gb_row_floats(t, i1, first + i, i3), (size_t) n * sizeof(float));
    }
}

struct gb_token_rows gb_rows_of_chunk(const struct ggml_tensor * t, int64_t i1, int64_t first, int64_t i3, int n,
    float * copy) {
    const int64_t size = t->ne[0];
    for (int i = 0; i < n; i++) {
        memcpy(copy + i * size, gb_row_floats(t, i1, first + i, i3), (size_t) size * sizeof(float));
    }
    memset(copy + n * size, 0, (size_t) ((GB_CHUNK - n) * size) * sizeof(float));
    gb_prefetch_rows(t, i1, first + n, i3, size);
    return (struct gb_token_rows){ copy, size };
}

void gb_products_of_rows(const struct gb_cpu_call * call, int64_t size, struct gb_token_rows x, int nx,
    struct gb_token_rows k, int n, float (*y)[GB_CHUNK]) {
    static_assert(GB_CHUNK <= GB_ROWS_W, "the columns of a call");
    for (int t = 0; t < nx; t += call->k->rows_x) {
        call->k->rows_columns_f32(&(struct gb_rows_columns){
            .k = size,
            .nw = n,
            .nx = GB_MIN(nx - t, call->k->rows_x),
            .w = k.p,
            .nb_w = (size_t) k.ld * sizeof(float),
            .x = x.p + t * x.ld,
            .ldx = (size_t) x.ld,
            .y = y[t],
            .ldy = GB_CHUNK,
        });
    }
}
