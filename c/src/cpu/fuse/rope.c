// fuse/rope.c - fuses a rotation with the copy of its result, so that keys go directly into the
// cache.
//
//     ROPE [RESHAPE | PERMUTE] CPY or CONT
//
// The rotated tensor is not stored, so no other code may read it. The copy holds the same bits as
// without fusion: each row is rotated in floats and then stored as the copy would store it.
#include "cpu/fuse/fusions.h"
#include "cpu/ops/elements.h"
#include "cpu/ops/rope.h"
#include "ggml-backend-impl.h"

// Describes the copy's memory with the shape of the rotated tensor. False: no strides can express
// the order of the elements.
static bool target_of(struct ggml_tensor * out, const struct ggml_tensor * rope, const struct ggml_tensor * copy) {
    const struct ggml_tensor * view = copy->src[0];
    const bool permuted = view != rope && view->op == GGML_OP_PERMUTE, same = gb_same_ne(copy, view);
    const size_t size = ggml_type_size(copy->type);
    if (!same && !ggml_is_contiguous(copy)) {
        return false;
    }
    *out = *rope;
    for (int i = 0; i < 4; i++) {
        const int dim = permuted ? gb_op_param_i32(view, i) : i; // its new place
        size_t stride = size;
        for (int j = 0; j < dim; j++) {
            stride *= (size_t) view->ne[j];
        }
        out->nb[i] = same ? copy->nb[dim] : stride;
    }
    out->type = copy->type;
    out->data = copy->data;
    return out->nb[0] == size;
}

static bool is_view_of(const struct ggml_tensor * view, const struct ggml_tensor * rope) {
    if (view->op == GGML_OP_PERMUTE) {
        bool valid = view->src[0] == rope && gb_op_param_i32(view, 0) == 0;
        for (int i = 0; i < 4 && valid; i++) {
            valid = gb_op_param_i32(view, i) >= 0 && gb_op_param_i32(view, i) < 4;
        }
        return valid;
    }
    return view == rope || (view->op == GGML_OP_RESHAPE && view->src[0] == rope);
}

static int rope_length(struct ggml_tensor * const * nodes, int n) {
    const struct ggml_tensor *rope = nodes[0], *copy = n > 1 ? nodes[1] : NULL;
    struct ggml_tensor out;
    if (rope->op != GGML_OP_ROPE || rope->type != GGML_TYPE_F32 || !ggml_is_contiguous(rope) || gb_is_empty(rope) ||
        copy == NULL || (copy->op != GGML_OP_CPY && copy->op != GGML_OP_CONT) || !gb_is_float(copy->type) ||
        !is_view_of(copy->src[0], rope)) {
        return 0;
    }
    // all tensors are contiguous, so the shapes in between do not matter
    if (copy->src[0]->op == GGML_OP_RESHAPE && copy->src[0] != rope) {
        return ggml_is_contiguous(copy) ? 2 : 0;
    }
    return target_of(&out, rope, copy) ? 2 : 0;
}

static struct ggml_tensor target(struct ggml_tensor * const * nodes) {
    struct ggml_tensor out, flat = *nodes[1];
    if (nodes[1]->src[0]->op == GGML_OP_RESHAPE && nodes[1]->src[0] != nodes[0]) {
        memcpy(flat.ne, nodes[0]->ne, sizeof(flat.ne));
        flat.nb[0] = ggml_type_size(flat.type);
        for (int i = 1; i < 4; i++) {
            flat.nb[i] = flat.nb[i - 1] * (size_t) flat.ne[i - 1];
        }
        flat.src[0] = nodes[0];
    }
    target_of(&out, nodes[0], &flat);
    return out;
}

static int rope_tasks(struct ggml_tensor * const * nodes, int n, int n_threads) {
    (void) n;
    return gb_cpu_op_of(nodes[0])->n_tasks(nodes[0], n_threads);
}

static size_t rope_work(struct ggml_tensor * const * nodes, int n, int n_tasks) {
    (void) n;
    return gb_cpu_op_of(nodes[0])->work_size(nodes[0], n_tasks);
}

static bool rope_is_safe(struct ggml_tensor * const * nodes, int n) {
    const struct ggml_tensor *rope = nodes[0], *copy = nodes[n - 1], *view = copy->src[0];
    return ggml_backend_may_leave_out(rope) && (view == rope || ggml_backend_may_leave_out(view)) &&
           gb_fuse_is_disjoint(copy, rope->src[0]) && gb_fuse_is_disjoint(copy, rope->src[1]) &&
           (rope->src[2] == NULL || gb_fuse_is_disjoint(copy, rope->src[2]));
}

static bool rope_leaves_out(struct ggml_tensor * const * nodes, int n) {
    (void) nodes;
    return n > 0;
}

static void run_rope(const struct gb_cpu_call * call, struct ggml_tensor * const * nodes, int n) {
    (void) n;
    struct ggml_tensor out = target(nodes);
    gb_rope_run_to(call, nodes[0], &out);
}

const struct gb_fusion gb_fusion_rope = {
    .length = rope_length,
    .n_tasks = rope_tasks,
    .work_size = rope_work,
    .is_safe = rope_is_safe,
    .run = run_rope,
    .leaves_out = rope_leaves_out,
};
