// rope.h - the rotation of ROPE for who wants its result elsewhere (fuse/rope.c).
#ifndef GB_CPU_OPS_ROPE_H
#define GB_CPU_OPS_ROPE_H

#include "cpu/ops/ops.h"

// Rotates node->src[0] as the node says and stores it in `out`: the node's shape, any float type, strides and memory.
void gb_rope_run_to(const struct gb_cpu_call * call, const struct ggml_tensor * node, struct ggml_tensor * out);

#endif // GB_CPU_OPS_ROPE_H
