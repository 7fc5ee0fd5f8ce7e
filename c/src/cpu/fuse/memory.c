// fuse/memory.c - checks whether tensors of fused steps share memory.
#include "cpu/fuse/fusions.h"
#include "cpu/ops/elements.h"

bool gb_fuse_is_disjoint(const struct ggml_tensor * a, const struct ggml_tensor * b) {
    const uintptr_t p = (uintptr_t) a->data, q = (uintptr_t) b->data;
    return p + ggml_nbytes(a) <= q || q + ggml_nbytes(b) <= p;
}

bool gb_fuse_is_apart(const struct ggml_tensor * out, const struct ggml_tensor * t) {
    return (t->data == out->data && gb_same_ne(t, out)) || gb_fuse_is_disjoint(t, out);
}
