// table.c - from enum ggml_op to its driver. Every operator has one, but for views, which compute nothing: without its
// definition nothing links.
#include "cpu/ops/ops.h"

// By the column `work` of tensor/ops.def.
#define DRIVER_VIEW(stem)    NULL
#define DRIVER_EACH(stem)    &gb_cpu_op_##stem
#define DRIVER_PRODUCT(stem) &gb_cpu_op_##stem
#define DRIVER_OUTER(stem)   &gb_cpu_op_##stem
#define DRIVER_EXPERTS(stem) &gb_cpu_op_##stem
#define DRIVER_ATTEND(stem)  &gb_cpu_op_##stem
#define DRIVER_PICK(stem)    &gb_cpu_op_##stem
#define DRIVER_TARGET(stem)  &gb_cpu_op_##stem
#define DRIVER_CUSTOM(stem)  &gb_cpu_op_##stem

static const struct gb_cpu_op * const drivers[GGML_OP_COUNT] = {
#define GB_OP(id, stem, sources, work, ...) [GGML_OP_##id] = DRIVER_##work(stem),
#include "tensor/ops.def"
};

const struct gb_cpu_op * gb_cpu_op_of(const struct ggml_tensor * node) {
    return node != NULL && (unsigned) node->op < GGML_OP_COUNT ? drivers[node->op] : NULL;
}
