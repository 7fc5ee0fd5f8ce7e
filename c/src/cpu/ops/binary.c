// binary.c - operators of this family; being written.
#include "cpu/ops/ops.h"

static const char * pending(const struct ggml_tensor * node) {
    (void) node;
    return "not implemented yet";
}

static void run_nothing(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    (void) call;
    (void) node;
}

const struct gb_cpu_op gb_cpu_op_add = { .unsupported = pending, .run = run_nothing };
const struct gb_cpu_op gb_cpu_op_add1 = { .unsupported = pending, .run = run_nothing };
const struct gb_cpu_op gb_cpu_op_acc = { .unsupported = pending, .run = run_nothing };
const struct gb_cpu_op gb_cpu_op_sub = { .unsupported = pending, .run = run_nothing };
const struct gb_cpu_op gb_cpu_op_mul = { .unsupported = pending, .run = run_nothing };
const struct gb_cpu_op gb_cpu_op_div = { .unsupported = pending, .run = run_nothing };
const struct gb_cpu_op gb_cpu_op_set = { .unsupported = pending, .run = run_nothing };
