// fusions.h - the kinds of fused steps, for fuse.c, and what they share. Outside of this folder only tests need it.
#ifndef GB_CPU_FUSE_FUSIONS_H
#define GB_CPU_FUSE_FUSIONS_H

#include "cpu/fuse/fuse.h"

// One definition each, in the file of that name.
extern const struct gb_fusion gb_fusion_attention, gb_fusion_product, gb_fusion_rope, gb_fusion_rows;

// The bytes that the tensors lie in have none in common (memory.c).
bool gb_fuse_is_disjoint(const struct ggml_tensor * a, const struct ggml_tensor * b);

// Writing some elements of `out` leaves all others of t alone: t is the same elements, or other bytes (memory.c).
bool gb_fuse_is_apart(const struct ggml_tensor * out, const struct ggml_tensor * t);

// May `next` join the group of the n nodes (n >= 1, in order; each has joined those before it)? (rows.c)
bool gb_fuse_joins(struct ggml_tensor * const * group, int n, const struct ggml_tensor * next);

#endif // GB_CPU_FUSE_FUSIONS_H
