// fill.c - operators that make tensors from numbers: FILL, ARANGE, TIMESTEP_EMBEDDING.
#include <math.h>

#include "cpu/ops/elements.h"

// ---------------------------------------------------------------------------------------------------------------- FILL

// Threads share rows. One run of equal values is stored repeatedly.
static void run_fill(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const float value = gb_op_param_f32(node, 0);
    float run[GB_RUN];
    for (int i = 0; i < GB_RUN; i++) {
        run[i] = value;
    }
    int64_t first, last;
    gb_cpu_share(call, gb_rows(node), &first, &last);
    for (int64_t r = first; r < last; r++) {
        char * row = gb_row_of(node, gb_row_at(node, r));
        for (int64_t i = 0; i < node->ne[0]; i += GB_RUN) {
            const int64_t n = GB_MIN(node->ne[0] - i, (int64_t) GB_RUN);
            gb_store(call->k, node->type, n, row + (size_t) i * node->nb[0], node->nb[0], run);
            if (gb_cpu_stopped(call, n)) {
                return;
            }
        }
    }
}

static const char * float_result(const struct ggml_tensor * node) { return gb_need_float(node, 0); }

// -------------------------------------------------------------------------------------------------------------- ARANGE

// Computes in double and rounds once. Threads share the elements.
static void run_arange(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const double start = (double) gb_op_param_f32(node, 0), step = (double) gb_op_param_f32(node, 2);
    int64_t first, last;
    gb_cpu_share(call, gb_count(node), &first, &last);
    for (int64_t i = first; i < last; i++) {
        gb_set(node->type, (char *) node->data + (size_t) i * node->nb[0], (float) (start + step * (double) i));
        if (i % GB_RUN == GB_RUN - 1 && gb_cpu_stopped(call, GB_RUN)) {
            return;
        }
    }
}

// -------------------------------------------------------------------------------------------------- TIMESTEP_EMBEDDING

// Computes angles in double. Threads share the rows.
static void run_timestep_embedding(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const struct ggml_tensor * t = node->src[0];
    const int64_t dim = node->ne[0], half = dim / 2;
    const double base = log((double) gb_op_param_i32(node, 1));
    int64_t first, last;
    gb_cpu_share(call, gb_rows(node), &first, &last);
    for (int64_t r = first; r < last; r++) {
        char * row = gb_row_ptr(node, r, 0, 0);
        const double time = (double) gb_get(t->type, (const char *) t->data + (size_t) r * t->nb[0]);
        for (int64_t j = 0; j < half; j++) {
            const double angle = time * exp(-base * (double) j / (double) half);
            gb_set(node->type, row + (size_t) j * node->nb[0], (float) cos(angle));
            gb_set(node->type, row + (size_t) (half + j) * node->nb[0], (float) sin(angle));
            if (j % 64 == 63 && gb_cpu_stopped(call, 64 * 100)) {
                return;
            }
        }
        if (dim % 2 != 0) {
            gb_set(node->type, row + (size_t) (dim - 1) * node->nb[0], 0.0f);
        }
        if (gb_cpu_stopped(call, 64 * 100)) {
            return;
        }
    }
}

static const char * timestep_unsupported(const struct ggml_tensor * node) { return gb_need_float(node, 1); }

const struct gb_cpu_op gb_cpu_op_fill = { .unsupported = float_result, .n_tasks = gb_tasks_dst_rows, .run = run_fill };
const struct gb_cpu_op gb_cpu_op_arange = { .unsupported = float_result, .run = run_arange };
const struct gb_cpu_op gb_cpu_op_timestep_embedding = {
    .unsupported = timestep_unsupported, .n_tasks = gb_tasks_dst_rows, .run = run_timestep_embedding
};
