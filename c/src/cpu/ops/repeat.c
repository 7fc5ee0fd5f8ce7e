// repeat.c - operators of this family; being written.
#include "cpu/ops/ops.h"

static const char * pending(const struct ggml_tensor * node) {
    (void) node;
    return "not implemented yet";
}

static void run_nothing(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    (void) call;
    (void) node;
}

const struct gb_cpu_op gb_cpu_op_repeat = { .unsupported = pending, .run = run_nothing };
const struct gb_cpu_op gb_cpu_op_repeat_back = { .unsupported = pending, .run = run_nothing };
const struct gb_cpu_op gb_cpu_op_concat = { .unsupported = pending, .run = run_nothing };
const struct gb_cpu_op gb_cpu_op_pad = { .unsupported = pending, .run = run_nothing };
const struct gb_cpu_op gb_cpu_op_upscale = { .unsupported = pending, .run = run_nothing };
