// repeat.c - REPEAT, CONCAT, PAD and UPSCALE, whose results are elements of the sources (or 0), and
// REPEAT_BACK, which adds the repetitions.
//
// The first four move bytes, and so work for every plain type. Each thread fills its share of the
// rows of the result.
#include "cpu/ops/elements.h"

// Elements are moved as bytes, so source and result must have one plain type.
static const char * move_unsupported(const struct ggml_tensor * node) { return gb_need_same(node, 1); }

// -------------------------------------------------------------------------------------------------------------- REPEAT

// Element i of the result is element i mod ne of src[0], in each dim.
static void repeat_row(const struct ggml_tensor * node, struct gb_row r, char * d) {
    const struct ggml_tensor * a = node->src[0];
    const size_t size = ggml_type_size(node->type);
    const char * s = gb_row_ptr(a, r.i1 % a->ne[1], r.i2 % a->ne[2], r.i3 % a->ne[3]);
    if (a->ne[0] == 1) { // a stride of 0 repeats the one element
        gb_move(size, node->ne[0], d, node->nb[0], s, 0);
        return;
    }
    for (int64_t i0 = 0; i0 < node->ne[0]; i0 += a->ne[0]) {
        gb_move(size, a->ne[0], d + (size_t) i0 * node->nb[0], node->nb[0], s, a->nb[0]);
    }
}

static void run_repeat(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    if (!gb_is_empty(node->src[0])) {
        gb_run_rows(call, node, repeat_row);
    }
}

// --------------------------------------------------------------------------------------------------------- REPEAT_BACK

// Sums the sources of one row of the result, in the order of the source's dimensions.
static void add_repeats(const struct gb_cpu_call * call, const struct ggml_tensor * node, struct gb_row r, int64_t i0,
    int64_t n, float * sum) {
    const struct ggml_tensor * a = node->src[0];
    float buf[GB_RUN];
    memset(sum, 0, (size_t) n * sizeof(*sum));
    if (gb_count(a) == 0) {
        return; // even for many rows without elements
    }
    for (int64_t i3 = r.i3; i3 < a->ne[3]; i3 += node->ne[3]) {
        for (int64_t i2 = r.i2; i2 < a->ne[2]; i2 += node->ne[2]) {
            for (int64_t i1 = r.i1; i1 < a->ne[1]; i1 += node->ne[1]) {
                for (int64_t at = i0; at < a->ne[0]; at += node->ne[0]) {
                    call->k->add_f32(n, sum, sum,
                        gb_in(call->k, a, gb_row_ptr(a, i1, i2, i3) + (size_t) at * a->nb[0], n, buf));
                    if (gb_cpu_stopped(call, n)) {
                        return;
                    }
                }
            }
        }
    }
}

// The same for rows of one element: each source row becomes one number.
static double sum_repeats(const struct gb_cpu_call * call, const struct ggml_tensor * node, struct gb_row r) {
    const struct ggml_tensor * a = node->src[0];
    float buf[GB_RUN];
    double sum = 0;
    if (gb_count(a) == 0) {
        return 0; // even for many rows without elements
    }
    for (int64_t i3 = r.i3; i3 < a->ne[3]; i3 += node->ne[3]) {
        for (int64_t i2 = r.i2; i2 < a->ne[2]; i2 += node->ne[2]) {
            for (int64_t i1 = r.i1; i1 < a->ne[1]; i1 += node->ne[1]) {
                for (int64_t i0 = 0; i0 < a->ne[0]; i0 += GB_RUN) {
                    const int64_t n = GB_MIN(a->ne[0] - i0, (int64_t) GB_RUN);
                    sum += call->k->sum_f32(n,
                        gb_in(call->k, a, gb_row_ptr(a, i1, i2, i3) + (size_t) i0 * a->nb[0], n, buf));
                    if (gb_cpu_stopped(call, n)) {
                        return sum;
                    }
                }
            }
        }
    }
    return sum;
}

// Each thread adds up whole runs of the result, so no two threads add to the same element.
static void run_repeat_back(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const int64_t runs = gb_div_up(node->ne[0], GB_RUN);
    float sum[GB_RUN];
    int64_t first, last;
    gb_cpu_share(call, runs * gb_rows(node), &first, &last);
    for (int64_t u = first; u < last; u++) {
        const struct gb_row r = gb_row_at(node, u / runs);
        const int64_t i0 = u % runs * GB_RUN;
        const int64_t n = GB_MIN(node->ne[0] - i0, (int64_t) GB_RUN);
        if (node->ne[0] == 1) {
            sum[0] = (float) sum_repeats(call, node, r);
        } else {
            add_repeats(call, node, r, i0, n, sum);
        }
        gb_store(call->k, node->type, n, gb_row_of(node, r) + (size_t) i0 * node->nb[0], node->nb[0], sum);
        if (gb_cpu_stopped(call, n)) {
            return;
        }
    }
}

static const char * repeat_back_unsupported(const struct ggml_tensor * node) { return gb_need_float(node, 1); }

// The work is the size of the source. A run of the result is indivisible.
static int repeat_back_tasks(const struct ggml_tensor * node, int n_threads) {
    return gb_tasks_for((double) gb_count(node->src[0]), gb_div_up(node->ne[0], GB_RUN) * gb_rows(node), n_threads);
}

// --------------------------------------------------------------------------------------------------------- CONCAT, PAD

// Along dim 2: planes of src[0], then those of src[1].
static void concat_row(const struct ggml_tensor * node, struct gb_row r, char * d) {
    const struct ggml_tensor * a = node->src[0];
    const bool in_a = r.i2 < a->ne[2];
    const struct ggml_tensor * s = in_a ? a : node->src[1];
    const char * p = gb_row_ptr(s, r.i1, in_a ? r.i2 : r.i2 - a->ne[2], r.i3);
    gb_move(ggml_type_size(node->type), node->ne[0], d, node->nb[0], p, s->nb[0]);
}

static void run_concat(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    gb_run_rows(call, node, concat_row);
}

static const char * concat_unsupported(const struct ggml_tensor * node) { return gb_need_same(node, 2); }

// src[0] is at the origin of the result. Elements beyond it in any dim are 0.
static void pad_row(const struct ggml_tensor * node, struct gb_row r, char * d) {
    const struct ggml_tensor * a = node->src[0];
    const size_t size = ggml_type_size(node->type);
    const bool in_a = r.i1 < a->ne[1] && r.i2 < a->ne[2] && r.i3 < a->ne[3];
    const int64_t n = in_a ? a->ne[0] : 0;
    if (n > 0) {
        gb_move(size, n, d, node->nb[0], gb_row_of(a, r), a->nb[0]);
    }
    gb_clear(size, node->ne[0] - n, d + (size_t) n * node->nb[0], node->nb[0]);
}

static void run_pad(const struct gb_cpu_call * call, struct ggml_tensor * node) { gb_run_rows(call, node, pad_row); }

// ------------------------------------------------------------------------------------------------------------- UPSCALE

// Each element becomes factor x factor elements of the plane: nearest neighbour.
static void upscale_row(const struct ggml_tensor * node, struct gb_row r, char * d) {
    const struct ggml_tensor * a = node->src[0];
    const int64_t factor = gb_op_param_i32(node, 0);
    const char * s = gb_row_ptr(a, r.i1 / factor, r.i2, r.i3);
    for (int64_t f = 0; f < factor; f++) {
        char * p = d + (size_t) f * node->nb[0];
        gb_move(ggml_type_size(node->type), a->ne[0], p, (size_t) factor * node->nb[0], s, a->nb[0]);
    }
}

static void run_upscale(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    gb_run_rows(call, node, upscale_row);
}

static const char * upscale_unsupported(const struct ggml_tensor * node) {
    return gb_op_param_i32(node, 0) < 1 ? "the factor must be positive" : gb_need_same(node, 1);
}

const struct gb_cpu_op gb_cpu_op_repeat = {
    .unsupported = move_unsupported, .n_tasks = gb_tasks_dst_rows, .run = run_repeat
};
const struct gb_cpu_op gb_cpu_op_repeat_back = {
    .unsupported = repeat_back_unsupported, .n_tasks = repeat_back_tasks, .run = run_repeat_back
};
const struct gb_cpu_op gb_cpu_op_concat = {
    .unsupported = concat_unsupported, .n_tasks = gb_tasks_dst_rows, .run = run_concat
};
const struct gb_cpu_op gb_cpu_op_pad = {
    .unsupported = move_unsupported, .n_tasks = gb_tasks_dst_rows, .run = run_pad
};
const struct gb_cpu_op gb_cpu_op_upscale = {
    .unsupported = upscale_unsupported, .n_tasks = gb_tasks_dst_rows, .run = run_upscale
};
