// ops_gates.c - GLU: gated linear units. One half of the rows gates the other half, or one tensor
// gates the other.
//
// op_params: [0] the function; [1] whether it is applied to the second half; [2], [3] alpha and
// limit of SWIGLU_OAI.
#include "tensor/ops.h"
#include "tensor/rule.h"

// With one source the result has half of its row length.
static struct gb_shape shape_glu(gb_ct a, gb_ct b) {
    return b != NULL ? gb_shape_like(a) : gb_shape_of(a->ne[0] / 2, a->ne[1], a->ne[2], a->ne[3]);
}

static bool check_glu(const char * func, gb_ct a, enum ggml_glu_op op) {
    const struct gb_call c = GB_CALL_1(func, a);
    return gb_rule_given(&c) && gb_rule_in_range(&c, "op", (int) op, 0, GGML_GLU_OP_COUNT - 1) &&
           (a->ne[0] % 2 == 0 || GB_BROKEN(&c, SIZE_ODD, .a = "a", .number = { a->ne[0] }));
}

static bool check_glu_split(const char * func, gb_ct a, gb_ct b, enum ggml_glu_op op) {
    const struct gb_call c = GB_CALL_2(func, a, b);
    return gb_rule_given(&c) && gb_rule_in_range(&c, "op", (int) op, 0, GGML_GLU_OP_COUNT - 1) &&
           gb_rule_same_type(&c, 0, 1) && gb_rule_same_shape(&c, 0, 1);
}

// The caller has checked the operands; b may be NULL.
static struct ggml_tensor * glu(struct ggml_context * ctx, const char * func, struct ggml_tensor * a,
    struct ggml_tensor * b, enum ggml_glu_op op, bool swapped) {
    struct ggml_tensor * node = gb_op_new(ctx, func, GGML_OP_GLU, a->type, shape_glu(a, b));
    const int32_t params[] = { (int32_t) op, swapped };
    gb_op_set_params(node, params, sizeof(params));
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, b, NULL);
}

struct ggml_tensor * ggml_glu(struct ggml_context * ctx, struct ggml_tensor * a, enum ggml_glu_op op, bool swapped) {
    return check_glu(__func__, a, op) ? glu(ctx, __func__, a, NULL, op, swapped) : NULL;
}

struct ggml_tensor * ggml_glu_split(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    enum ggml_glu_op op) {
    return check_glu_split(__func__, a, b, op) ? glu(ctx, __func__, a, b, op, false) : NULL;
}

// The three short forms of a function.
#define FORMS(stem, id)                                                                                                \
    struct ggml_tensor * ggml_##stem(struct ggml_context * ctx, struct ggml_tensor * a) {                              \
        return check_glu(__func__, a, GGML_GLU_OP_##id) ? glu(ctx, __func__, a, NULL, GGML_GLU_OP_##id, false) : NULL; \
    }                                                                                                                  \
    struct ggml_tensor * ggml_##stem##_swapped(struct ggml_context * ctx, struct ggml_tensor * a) {                    \
        return check_glu(__func__, a, GGML_GLU_OP_##id) ? glu(ctx, __func__, a, NULL, GGML_GLU_OP_##id, true) : NULL;  \
    }                                                                                                                  \
    struct ggml_tensor * ggml_##stem##_split(struct ggml_context * ctx, struct ggml_tensor * a,                        \
        struct ggml_tensor * b) {                                                                                      \
        return check_glu_split(__func__, a, b, GGML_GLU_OP_##id) ? glu(ctx, __func__, a, b, GGML_GLU_OP_##id, false)   \
                                                                 : NULL;                                               \
    }
FORMS(reglu, REGLU)
FORMS(geglu, GEGLU)
FORMS(swiglu, SWIGLU)
FORMS(geglu_erf, GEGLU_ERF)
FORMS(geglu_quick, GEGLU_QUICK)

struct ggml_tensor * ggml_swiglu_oai(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    float alpha, float limit) {
    const enum ggml_glu_op op = GGML_GLU_OP_SWIGLU_OAI;
    if (b != NULL ? !check_glu_split(__func__, a, b, op) : !check_glu(__func__, a, op)) {
        return NULL;
    }
    struct ggml_tensor * node = glu(ctx, __func__, a, b, op, false);
    gb_op_set_param_f32(node, 2, alpha);
    gb_op_set_param_f32(node, 3, limit);
    return node;
}

// ----------------------------------------------------------------------------------------------- checks of built nodes

bool gb_built_glu(gb_ct t) {
    gb_ct a = t->src[0], b = t->src[1];
    const enum ggml_glu_op op = (enum ggml_glu_op) t->op_params[0];
    return (b != NULL ? check_glu_split(NULL, a, b, op) : check_glu(NULL, a, op)) && gb_is_shape(t, shape_glu(a, b));
}
