// fusions.h - the kinds of fused steps and their shared functions. Private to this folder and
// tests.
#ifndef GB_CPU_FUSE_FUSIONS_H
#define GB_CPU_FUSE_FUSIONS_H

#include "cpu/fuse/fuse.h"

// columns and convolution are in conv.c, each other kind is in the file of its name.
extern const struct gb_fusion gb_fusion_attention, gb_fusion_products, gb_fusion_product, gb_fusion_columns,
    gb_fusion_convolution, gb_fusion_rope, gb_fusion_rows;

// True if the tensors share no byte (memory.c).
bool gb_fuse_is_disjoint(const struct ggml_tensor * a, const struct ggml_tensor * b);

// True if a write to an element of `out` changes at most the same element of t: t has exactly the
// memory and shape of `out`, or shares no byte with it (memory.c).
bool gb_fuse_is_apart(const struct ggml_tensor * out, const struct ggml_tensor * t);

// True if `next` may join the group of n nodes (rows.c). n >= 1, and each node of the group has
// joined the nodes before it.
bool gb_fuse_joins(struct ggml_tensor * const * group, int n, const struct ggml_tensor * next);

#endif // GB_CPU_FUSE_FUSIONS_H
