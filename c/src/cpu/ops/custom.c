// custom.c - operators of this family; being written.
#include "cpu/ops/ops.h"

static const char * pending(const struct ggml_tensor * node) {
    (void) node;
    return "not implemented yet";
}

static void run_nothing(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    (void) call;
    (void) node;
}

const struct gb_cpu_op gb_cpu_op_map_unary = { .unsupported = pending, .run = run_nothing };
const struct gb_cpu_op gb_cpu_op_map_binary = { .unsupported = pending, .run = run_nothing };
const struct gb_cpu_op gb_cpu_op_map_custom1_f32 = { .unsupported = pending, .run = run_nothing };
const struct gb_cpu_op gb_cpu_op_map_custom2_f32 = { .unsupported = pending, .run = run_nothing };
const struct gb_cpu_op gb_cpu_op_map_custom3_f32 = { .unsupported = pending, .run = run_nothing };
const struct gb_cpu_op gb_cpu_op_map_custom1 = { .unsupported = pending, .run = run_nothing };
const struct gb_cpu_op gb_cpu_op_map_custom2 = { .unsupported = pending, .run = run_nothing };
const struct gb_cpu_op gb_cpu_op_map_custom3 = { .unsupported = pending, .run = run_nothing };
