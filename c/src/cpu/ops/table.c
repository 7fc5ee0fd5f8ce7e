// table.c - maps enum ggml_op to drivers. Every operator except views has a driver. A missing
// definition is a link error.
#include "cpu/ops/ops.h"

// Made from ops.def, so it has every operator.
static const struct gb_cpu_op * const drivers[GGML_OP_COUNT] = {
#define GB_OP(id, stem, sources, work, ...) [GGML_OP_##id] = GB_UNLESS_VIEW(work, &gb_cpu_op_##stem),
#include "tensor/ops.def"
};

// NULL for an invalid number, so that a node of a newer program is refused.
const struct gb_cpu_op * gb_cpu_op_of(const struct ggml_tensor * node) {
    return node != NULL && (unsigned) node->op < GGML_OP_COUNT ? drivers[node->op] : NULL;
}
