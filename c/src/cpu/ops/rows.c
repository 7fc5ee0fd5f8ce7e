// rows.c - operators of this family; being written.
#include "cpu/ops/ops.h"

static const char * pending(const struct ggml_tensor * node) {
    (void) node;
    return "not implemented yet";
}

static void run_nothing(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    (void) call;
    (void) node;
}

const struct gb_cpu_op gb_cpu_op_get_rows = { .unsupported = pending, .run = run_nothing };
const struct gb_cpu_op gb_cpu_op_get_rows_back = { .unsupported = pending, .run = run_nothing };
const struct gb_cpu_op gb_cpu_op_diag = { .unsupported = pending, .run = run_nothing };
