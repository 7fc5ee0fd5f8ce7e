// fuse.h - neighbouring nodes that can be computed together, rows by rows, for compute.c.
#ifndef GB_CPU_FUSE_H
#define GB_CPU_FUSE_H

#include "cpu/ops/ops.h"

enum { GB_FUSE_MAX = 6 }; // nodes of a group

// Plans made from now on fuse or not. At first as GGML_CPU_FUSE says ("0": not), else on.
bool gb_fuse_is_on(void);
void gb_fuse_set(bool on);

// May `next` join the group of the n nodes (n >= 1, in order; each has joined those before it)? Looks at operators, types and
// shapes only.
bool gb_fuse_joins(struct ggml_tensor * const * group, int n, const struct ggml_tensor * next);

// Memory is known: does computing the group rows by rows give what computing node by node gives?
bool gb_fuse_is_safe(struct ggml_tensor * const * group, int n);

// This thread's rows of all nodes. call->work holds slices of gb_fuse_slice bytes, one a thread.
size_t gb_fuse_slice(struct ggml_tensor * const * group, int n);
void   gb_fuse_run(const struct gb_cpu_call * call, struct ggml_tensor * const * group, int n);

#endif // GB_CPU_FUSE_H
