// ops_loss.c - losses.
#include "tensor/ops.h"

struct ggml_tensor * ggml_cross_entropy_loss(struct ggml_context * ctx, struct ggml_tensor * a,
                                             struct ggml_tensor * b) {
    if (!gb_check_cross_entropy_loss(__func__, a, b)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_new(ctx, __func__, GGML_OP_CROSS_ENTROPY_LOSS, a->type, 1, 1, 1, 1);
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, b, NULL);
}

struct ggml_tensor * ggml_cross_entropy_loss_back(struct ggml_context * ctx, struct ggml_tensor * a,
                                                  struct ggml_tensor * b, struct ggml_tensor * c) {
    if (!gb_check_cross_entropy_loss_back(__func__, a, b, c)) {
        return NULL;
    }
    return gb_op_sources(ctx, gb_op_like(ctx, __func__, GGML_OP_CROSS_ENTROPY_LOSS_BACK, a, false), GB_GRAD_NONE, a, b,
                         c);
}
