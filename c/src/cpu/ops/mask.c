// mask.c - DIAG_MASK_INF and DIAG_MASK_ZERO (replace elements right of a diagonal) and ALIBI (adds
// a slope per head).
#include <math.h>

#include "cpu/ops/elements.h"

// ----------------------------------------------------------------------------------------------------------- DIAG_MASK

// Elements with i0 > n_past + i1 become `value`, all others are those of src[0].
static void run_mask(const struct gb_cpu_call * call, struct ggml_tensor * node, float value) {
    const struct ggml_tensor * a = node->src[0];
    const int64_t n_past = gb_op_param_i32(node, 0);
    const size_t size = ggml_type_size(node->type);
    char fill[sizeof(float)];
    int64_t first, last;
    gb_set(node->type, fill, value);
    gb_cpu_share(call, gb_rows(node), &first, &last);
    for (int64_t i = first; i < last; i++) {
        const struct gb_row r = gb_row_at(node, i);
        char * d = gb_row_of(node, r);
        const int64_t kept = GB_MAX((int64_t) 0, GB_MIN(n_past + r.i1 + 1, node->ne[0]));
        gb_move(size, kept, d, node->nb[0], gb_row_of(a, r), a->nb[0]);
        char * rest = d + (size_t) kept * node->nb[0];
        if (gb_is_direct(node, rest, node->ne[0] - kept)) {
            for (int64_t j = 0; j < node->ne[0] - kept; j++) {
                ((float *) (void *) rest)[j] = value;
            }
        } else {
            gb_move(size, node->ne[0] - kept, rest, node->nb[0], fill, 0);
        }
        if (gb_cpu_stopped(call, node->ne[0])) {
            return;
        }
    }
}

// For scores before a softmax, so that later positions get no weight.
static void run_diag_mask_inf(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    run_mask(call, node, -INFINITY);
}

// For gradients, because the gradients of masked scores are 0.
static void run_diag_mask_zero(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    run_mask(call, node, 0.0f);
}

// Unmasked values are copied, so both types must be the same float type.
static const char * mask_unsupported(const struct ggml_tensor * node) {
    const char * why = gb_need_float(node, 1);
    return why != NULL ? why : gb_need_same(node, 1);
}

// --------------------------------------------------------------------------------------------------------------- ALIBI

// Heads beyond the largest power of two use the odd powers of the finer base.
float gb_alibi_slope(int64_t head, int n_head, float bias_max) {
    int floor = 1; // the largest power of two <= n_head
    while (floor <= n_head / 2) {
        floor *= 2;
    }
    if (head < floor) {
        return (float) exp2(-(double) bias_max / floor * (double) (head + 1));
    }
    return (float) exp2(-(double) bias_max / (2.0 * floor) * (double) (2 * (head - floor) + 1));
}

// y[i] = x[i] + i slope(head), where i is the key's position in the row. The head is the index over
// dims 2 and 3 together. "Train Short, Test Long", Press et al.
static void run_alibi(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const struct ggml_tensor * a = node->src[0];
    const int n_head = gb_op_param_i32(node, 1);
    const float bias_max = gb_op_param_f32(node, 2);
    float buf[GB_RUN];
    int64_t first, last;
    gb_cpu_share(call, gb_rows(node), &first, &last);
    for (int64_t i = first; i < last; i++) {
        const struct gb_row r = gb_row_at(node, i);
        const float slope = gb_alibi_slope(r.i2 + r.i3 * node->ne[2], n_head, bias_max);
        for (int64_t i0 = 0; i0 < node->ne[0]; i0 += GB_RUN) {
            const int64_t n = GB_MIN(node->ne[0] - i0, (int64_t) GB_RUN);
            char * p = gb_row_of(node, r) + (size_t) i0 * node->nb[0];
            const float * x = gb_in(call->k, a, gb_row_of(a, r) + (size_t) i0 * a->nb[0], n, buf);
            float * y = gb_out(node, p, n, buf);
            for (int64_t j = 0; j < n; j++) {
                y[j] = (float) (i0 + j) * slope + x[j];
            }
            gb_put(call->k, node, p, n, y);
        }
        if (gb_cpu_stopped(call, node->ne[0])) {
            return;
        }
    }
}

// Slopes are defined for one head or more.
static const char * alibi_unsupported(const struct ggml_tensor * node) {
    return gb_op_param_i32(node, 1) < 1 ? "the number of heads must be positive" : gb_need_float(node, 1);
}

const struct gb_cpu_op gb_cpu_op_diag_mask_inf = {
    .unsupported = mask_unsupported, .n_tasks = gb_tasks_dst_rows, .run = run_diag_mask_inf
};
const struct gb_cpu_op gb_cpu_op_diag_mask_zero = {
    .unsupported = mask_unsupported, .n_tasks = gb_tasks_dst_rows, .run = run_diag_mask_zero
};
const struct gb_cpu_op gb_cpu_op_alibi = {
    .unsupported = alibi_unsupported, .n_tasks = gb_tasks_dst_rows, .run = run_alibi
};
