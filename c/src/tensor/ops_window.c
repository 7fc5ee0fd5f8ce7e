// ops_window.c - windows over images, and relative positions within them. WIN_PART stores the
// numbers of windows along both axes and their size. WIN_UNPART stores the size.
#include "tensor/ops.h"

struct ggml_tensor * ggml_win_part(struct ggml_context * ctx, struct ggml_tensor * a, int w) {
    if (!gb_check_win_part(__func__, a, w)) {
        return NULL;
    }
    const int32_t params[] = { (int32_t) gb_windows(a->ne[1], w), (int32_t) gb_windows(a->ne[2], w), w };
    struct ggml_tensor * node = gb_op_new(ctx, __func__, GGML_OP_WIN_PART, a->type, gb_shape_win_part(a, w));
    gb_op_set_params(node, params, sizeof(params));
    return gb_op_sources(ctx, node, GB_GRAD_NONE, a, NULL, NULL);
}

struct ggml_tensor * ggml_win_unpart(struct ggml_context * ctx, struct ggml_tensor * a, int w0, int h0, int w) {
    if (!gb_check_win_unpart(__func__, a, w0, h0, w)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_new(ctx, __func__, GGML_OP_WIN_UNPART, a->type, gb_shape_win_unpart(a, w0, h0));
    const int32_t params = w;
    gb_op_set_params(node, &params, sizeof(params));
    return gb_op_sources(ctx, node, GB_GRAD_NONE, a, NULL, NULL);
}

struct ggml_tensor * ggml_get_rel_pos(struct ggml_context * ctx, struct ggml_tensor * a, int qh, int kh) {
    if (!gb_check_get_rel_pos(__func__, a, qh, kh)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_new(ctx, __func__, GGML_OP_GET_REL_POS, a->type, gb_shape_get_rel_pos(a, qh, kh));
    return gb_op_sources(ctx, node, GB_GRAD_NONE, a, NULL, NULL);
}

// op_params[0]: whether the node is in place.
static struct ggml_tensor * add_rel_pos(struct ggml_context * ctx, const char * func, struct ggml_tensor * a,
    struct ggml_tensor * pw, struct ggml_tensor * ph, bool inplace) {
    if (!gb_check_add_rel_pos(func, a, pw, ph)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_like(ctx, func, GGML_OP_ADD_REL_POS, a, inplace);
    const int32_t params = inplace;
    gb_op_set_params(node, &params, sizeof(params));
    return gb_op_sources(ctx, node, gb_grad_unless(inplace), a, pw, ph);
}

struct ggml_tensor * ggml_add_rel_pos(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * pw,
    struct ggml_tensor * ph) {
    return add_rel_pos(ctx, __func__, a, pw, ph, false);
}

struct ggml_tensor * ggml_add_rel_pos_inplace(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * pw, struct ggml_tensor * ph) {
    return add_rel_pos(ctx, __func__, a, pw, ph, true);
}

// ----------------------------------------------------------------------------------------------- checks of built nodes

bool gb_built_win_part(gb_ct t) {
    const int w = t->op_params[2];
    return gb_check_win_part(NULL, t->src[0], w) && gb_is_shape(t, gb_shape_win_part(t->src[0], w));
}

bool gb_built_win_unpart(gb_ct t) {
    const int w0 = (int) t->ne[1], h0 = (int) t->ne[2];
    return gb_check_win_unpart(NULL, t->src[0], w0, h0, t->op_params[0]) &&
           gb_is_shape(t, gb_shape_win_unpart(t->src[0], w0, h0));
}

bool gb_built_get_rel_pos(gb_ct t) {
    const int qh = (int) t->ne[2], kh = (int) t->ne[1];
    return gb_check_get_rel_pos(NULL, t->src[0], qh, kh) && gb_is_shape(t, gb_shape_get_rel_pos(t->src[0], qh, kh));
}

bool gb_built_add_rel_pos(gb_ct t) {
    return gb_check_add_rel_pos(NULL, t->src[0], t->src[1], t->src[2]) && gb_is_like(t, t->src[0]);
}
