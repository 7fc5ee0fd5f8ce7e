// rows.c - GET_ROWS, GET_ROWS_BACK (rows chosen by an index tensor) and DIAG.
//
// Indices are data: they are checked when they are read. A bad one is reported, its row is left alone, nothing outside
// is touched.
#include <inttypes.h>

#include "cpu/ops/elements.h"

// ------------------------------------------------------------------------------------------------------------ GET_ROWS

static const char * get_rows_unsupported(const struct ggml_tensor * node) {
    const struct ggml_tensor *a = node->src[0], *b = node->src[1];
    if (a == NULL || b == NULL) {
        return "a source is missing";
    }
    if (b->type != GGML_TYPE_I32) {
        return "type of src[1] must be i32";
    }
    if (a->type == node->type && !ggml_is_quantized(a->type)) {
        return NULL;
    }
    if (ggml_is_quantized(a->type) && gb_is_float(node->type)) {
        return gb_can_load(a) ? NULL : "src[0] cannot be dequantized: its format, or rows that are not whole blocks";
    }
    return gb_need_float(node, 1);
}

// n elements of row s of a, to d.
static void take_row(const struct gb_cpu_call * call, struct ggml_tensor * dst, char * d, const struct ggml_tensor * a,
                     const char * s, int64_t n) {
    if (dst->type == a->type) {
        gb_move(ggml_type_size(a->type), n, d, dst->nb[0], s, a->nb[0]);
        return;
    }
    float buf[GB_RUN];
    for (int64_t i = 0; i < n; i += GB_RUN) {
        const int64_t m = GB_MIN(n - i, (int64_t) GB_RUN);
        char *        p = d + (size_t) i * dst->nb[0];
        float *       y = gb_out(dst, p, m, buf);
        gb_load(call->k, a->type, m, y, s + gb_offset(a, i), a->nb[0]);
        gb_put(call->k, dst, p, m, y);
    }
}

static void run_get_rows(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const struct ggml_tensor *a = node->src[0], *b = node->src[1];
    int64_t                   first, last;
    gb_cpu_share(call, gb_rows(node), &first, &last);
    for (int64_t u = first; u < last; u++) {
        const struct gb_row r = gb_row_at(node, u); // element (i1, i2, i3) of b
        const int32_t index = gb_get_i32((const char *) b->data + (size_t) r.i1 * b->nb[0] + (size_t) r.i2 * b->nb[1] +
                                         (size_t) r.i3 * b->nb[2]);
        if (index < 0 || index >= a->ne[1]) {
            gb_cpu_fail(call, node, GGML_STATUS_INVALID_ARGUMENT,
                        "index %" PRId32 " at [%" PRId64 ",%" PRId64 ",%" PRId64 "] out of range 0..%" PRId64, index,
                        r.i1, r.i2, r.i3, a->ne[1] - 1);
            return;
        }
        take_row(call, node, gb_row_of(node, r), a, gb_row_ptr(a, index, r.i2, r.i3), node->ne[0]);
        if (gb_cpu_stopped(call, 2 * node->ne[0])) {
            return;
        }
    }
}

// ------------------------------------------------------------------------------------------------------- GET_ROWS_BACK

// Rows may be hit several times, so threads share the columns: each adds its columns of all rows, in the order of the
// indices.
enum { COLUMNS = 64 };

static void run_get_rows_back(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const struct ggml_tensor *a = node->src[0], *b = node->src[1];
    float                     x_buf[COLUMNS], y_buf[COLUMNS];
    int64_t                   first, last;
    gb_cpu_share(call, gb_div_up(node->ne[0], COLUMNS), &first, &last);
    for (int64_t u = first; u < last; u++) {
        const int64_t i0 = u * COLUMNS;
        const int64_t n  = GB_MIN(node->ne[0] - i0, (int64_t) COLUMNS);
        for (int64_t i = 0; i < gb_rows(node); i++) {
            gb_clear(ggml_type_size(node->type), n, gb_row_of(node, gb_row_at(node, i)) + (size_t) i0 * node->nb[0],
                     node->nb[0]);
        }
        for (int64_t i = 0; i < a->ne[1]; i++) {
            const int32_t index = gb_get_i32((const char *) b->data + (size_t) i * b->nb[0]);
            if (index < 0 || index >= node->ne[1]) {
                gb_cpu_fail(call, node, GGML_STATUS_INVALID_ARGUMENT,
                            "index %" PRId32 " at [%" PRId64 "] out of range 0..%" PRId64, index, i, node->ne[1] - 1);
                return;
            }
            char *        p = gb_row_ptr(node, index, 0, 0) + (size_t) i0 * node->nb[0];
            const float * y = gb_in(call->k, node, p, n, y_buf);
            float *       z = gb_out(node, p, n, y_buf);
            call->k->add_f32(n, z, y, gb_in(call->k, a, gb_row_ptr(a, i, 0, 0) + (size_t) i0 * a->nb[0], n, x_buf));
            gb_put(call->k, node, p, n, z);
            if (i % COLUMNS == COLUMNS - 1 && gb_cpu_stopped(call, n * COLUMNS)) {
                return;
            }
        }
        if (gb_cpu_stopped(call, n * (gb_rows(node) + COLUMNS))) {
            return;
        }
    }
}

static const char * get_rows_back_unsupported(const struct ggml_tensor * node) {
    const char * why = gb_need_float(node, 1);
    if (why != NULL) {
        return why;
    }
    return node->src[1] != NULL && node->src[1]->type == GGML_TYPE_I32 ? NULL : "type of src[1] must be i32";
}

static int get_rows_back_tasks(const struct ggml_tensor * node, int n_threads) {
    return gb_tasks_for((double) gb_count(node) + (double) gb_count(node->src[0]), gb_div_up(node->ne[0], COLUMNS),
                        n_threads);
}

// ---------------------------------------------------------------------------------------------------------------- DIAG

static void run_diag(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const struct ggml_tensor * a    = node->src[0];
    const size_t               size = ggml_type_size(node->type);
    int64_t                    first, last;
    gb_cpu_share(call, gb_rows(node), &first, &last);
    for (int64_t i = first; i < last; i++) {
        const struct gb_row r = gb_row_at(node, i);
        char *              d = gb_row_of(node, r);
        gb_clear(size, node->ne[0], d, node->nb[0]);
        memcpy(d + (size_t) r.i1 * node->nb[0], gb_row_ptr(a, 0, r.i2, r.i3) + (size_t) r.i1 * a->nb[0], size);
        if (gb_cpu_stopped(call, node->ne[0])) {
            return;
        }
    }
}

static const char * diag_unsupported(const struct ggml_tensor * node) {
    return gb_need_same(node, 1);
}

const struct gb_cpu_op gb_cpu_op_get_rows      = { .unsupported = get_rows_unsupported,
                                                   .n_tasks     = gb_tasks_dst_rows,
                                                   .run         = run_get_rows };
const struct gb_cpu_op gb_cpu_op_get_rows_back = {
    .unsupported = get_rows_back_unsupported,
    .n_tasks     = get_rows_back_tasks,
    .run         = run_get_rows_back,
};
const struct gb_cpu_op gb_cpu_op_diag = { .unsupported = diag_unsupported,
                                          .n_tasks     = gb_tasks_dst_rows,
                                          .run         = run_diag };
