// unary.c - operators of this family; being written.
#include "cpu/ops/ops.h"

static const char * pending(const struct ggml_tensor * node) {
    (void) node;
    return "not implemented yet";
}

static void run_nothing(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    (void) call;
    (void) node;
}

const struct gb_cpu_op gb_cpu_op_sqr = { .unsupported = pending, .run = run_nothing };
const struct gb_cpu_op gb_cpu_op_sqrt = { .unsupported = pending, .run = run_nothing };
const struct gb_cpu_op gb_cpu_op_log = { .unsupported = pending, .run = run_nothing };
const struct gb_cpu_op gb_cpu_op_unary = { .unsupported = pending, .run = run_nothing };
const struct gb_cpu_op gb_cpu_op_leaky_relu = { .unsupported = pending, .run = run_nothing };
const struct gb_cpu_op gb_cpu_op_clamp = { .unsupported = pending, .run = run_nothing };
const struct gb_cpu_op gb_cpu_op_scale = { .unsupported = pending, .run = run_nothing };
const struct gb_cpu_op gb_cpu_op_silu_back = { .unsupported = pending, .run = run_nothing };
