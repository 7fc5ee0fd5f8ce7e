// rope.h - the rotation of ROPE into another tensor (fuse/rope.c).
#ifndef GB_CPU_OPS_ROPE_H
#define GB_CPU_OPS_ROPE_H

#include "cpu/ops/ops.h"

// Rotates node->src[0] with the node's parameters and stores the result in `out`. `out` has the
// node's shape, any float type, any strides.
void gb_rope_run_to(const struct gb_cpu_call * call, const struct ggml_tensor * node, struct ggml_tensor * out);

#endif // GB_CPU_OPS_ROPE_H
