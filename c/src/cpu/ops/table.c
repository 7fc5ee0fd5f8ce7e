// table.c - from enum ggml_op to the operator.
#include "cpu/ops/ops.h"

static const struct gb_cpu_op * const table[GGML_OP_COUNT] = {
#define GB_CPU_OP(OP, name) [GGML_OP_##OP] = &gb_cpu_op_##name,
#include "ops.def"
#undef GB_CPU_OP
};

const struct gb_cpu_op * gb_cpu_op_of(const struct ggml_tensor * node) {
    return node != NULL && node->op > GGML_OP_NONE && node->op < GGML_OP_COUNT ? table[node->op] : NULL;
}
