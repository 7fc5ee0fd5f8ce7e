// ops_mul_mat.c - matrix products: MUL_MAT, the forms that select an expert for each row, and
// OUT_PROD. ADD_ID adds the biases of experts.
//
// op_params: MUL_MAT and MUL_MAT_EXPERTS have the precision in [0]. MUL_MAT_ID has id, n_as and the
// precision. Its sources are ids, b, and then the experts.
#include "tensor/ops.h"

struct ggml_tensor * ggml_mul_mat(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b) {
    if (!gb_check_mul_mat(__func__, a, b)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_new(ctx, __func__, GGML_OP_MUL_MAT, GGML_TYPE_F32, gb_shape_mul_mat(a, b));
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, b, NULL);
}

// Sets the lowest precision that backends may use.
enum ggml_status ggml_mul_mat_set_prec(struct ggml_tensor * a, enum ggml_prec prec) {
    GB_CHECK_ARG(a);
    GB_FAIL_IF(prec != GGML_PREC_DEFAULT && prec != GGML_PREC_F32 && prec != GGML_PREC_F16,
        GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'prec': %d is not a precision", __func__, (int) prec);
    char text[GB_DESCRIBE_SIZE];
    GB_FAIL_IF(a->op != GGML_OP_MUL_MAT && a->op != GGML_OP_MUL_MAT_ID && a->op != GGML_OP_MUL_MAT_EXPERTS,
        GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'a': needs a MUL_MAT, MUL_MAT_ID or MUL_MAT_EXPERTS node, has %s %s", __func__,
        ggml_op_name(a->op), gb_describe(a, text));
    a->op_params[a->op == GGML_OP_MUL_MAT_ID ? 2 : 0] = (int32_t) prec; // MUL_MAT_ID has id and n_as before it
    return GGML_STATUS_SUCCESS;
}

struct ggml_tensor * ggml_mul_mat_id(struct ggml_context * ctx, struct ggml_tensor * const as[], int n_as,
    struct ggml_tensor * ids, int id, struct ggml_tensor * b) {
    if (!gb_check_mul_mat_id(__func__, as, n_as, ids, id, b)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_new(ctx, __func__, GGML_OP_MUL_MAT_ID, GGML_TYPE_F32, gb_shape_mul_mat(as[0], b));
    if (node == NULL) {
        return NULL;
    }
    const int32_t params[] = { id, n_as };
    gb_op_set_params(node, params, sizeof(params));
    for (int i = 1; i < n_as; i++) {
        node->src[2 + i] = as[i];
    }
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, ids, b, as[0]);
}

struct ggml_tensor * ggml_mul_mat_experts(struct ggml_context * ctx, struct ggml_tensor * as, struct ggml_tensor * b,
    struct ggml_tensor * ids) {
    if (!gb_check_mul_mat_experts(__func__, as, b, ids)) {
        return NULL;
    }
    struct ggml_tensor * node =
        gb_op_new(ctx, __func__, GGML_OP_MUL_MAT_EXPERTS, GGML_TYPE_F32, gb_shape_mul_mat_experts(as, ids));
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, as, b, ids);
}

struct ggml_tensor * ggml_add_id(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    struct ggml_tensor * ids) {
    if (!gb_check_add_id(__func__, a, b, ids)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_new(ctx, __func__, GGML_OP_ADD_ID, a->type, gb_shape_like(a));
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, b, ids);
}

struct ggml_tensor * ggml_out_prod(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b) {
    if (!gb_check_out_prod(__func__, a, b)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_new(ctx, __func__, GGML_OP_OUT_PROD, GGML_TYPE_F32, gb_shape_out_prod(a, b));
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, b, NULL);
}

// ----------------------------------------------------------------------------------------------- checks of built nodes

bool gb_built_mul_mat(gb_ct t) {
    return gb_check_mul_mat(NULL, t->src[0], t->src[1]) && gb_is_shape(t, gb_shape_mul_mat(t->src[0], t->src[1]));
}

bool gb_built_mul_mat_id(gb_ct t) {
    const int n = gb_op_param_i32(t, 1);
    return n >= 1 && n <= GGML_MAX_SRC - 2 &&
           gb_check_mul_mat_id(NULL, t->src + 2, n, t->src[0], gb_op_param_i32(t, 0), t->src[1]) &&
           gb_is_shape(t, gb_shape_mul_mat(t->src[2], t->src[1]));
}

bool gb_built_out_prod(gb_ct t) {
    return gb_check_out_prod(NULL, t->src[0], t->src[1]) && gb_is_shape(t, gb_shape_out_prod(t->src[0], t->src[1]));
}

bool gb_built_mul_mat_experts(gb_ct t) {
    return gb_check_mul_mat_experts(NULL, t->src[0], t->src[1], t->src[2]) &&
           gb_is_shape(t, gb_shape_mul_mat_experts(t->src[0], t->src[2]));
}

bool gb_built_add_id(gb_ct t) {
    return gb_check_add_id(NULL, t->src[0], t->src[1], t->src[2]) && gb_is_like(t, t->src[0]);
}
