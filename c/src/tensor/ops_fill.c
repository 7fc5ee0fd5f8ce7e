// ops_fill.c - operators that make tensors from numbers: FILL, ARANGE, TIMESTEP_EMBEDDING. The
// derivative of FILL is 0. The others have none.
#include <math.h>

#include "tensor/ops.h"
#include "tensor/rule.h"

// ---------------------------------------------------------------------------------------------------------------- FILL

// op_params[0] is the value. The elements of a are not read.
static struct ggml_tensor * fill(struct ggml_context * ctx, const char * func, struct ggml_tensor * a, float value,
    bool inplace) {
    if (!(inplace ? gb_check_1(func, a) : gb_check_no_grad(func, a))) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_like(ctx, func, GGML_OP_FILL, a, inplace);
    gb_op_set_param_f32(node, 0, value);
    return gb_op_sources(ctx, node, GB_GRAD_NONE, a, NULL, NULL);
}

struct ggml_tensor * ggml_fill(struct ggml_context * ctx, struct ggml_tensor * a, float c) {
    return fill(ctx, __func__, a, c, false);
}

struct ggml_tensor * ggml_fill_inplace(struct ggml_context * ctx, struct ggml_tensor * a, float c) {
    return fill(ctx, __func__, a, c, true);
}

// -------------------------------------------------------------------------------------------------------------- ARANGE

// The number of values, computed in float, as the interface specifies. -1: not finite, or too many.
static int64_t count_of(float start, float stop, float step) {
    const float n = ceilf((stop - start) / step);
    return n >= 0 && n < 0x1p48f ? (int64_t) n : -1;
}

// func NULL: checks a built node
static bool check_arange(const char * func, float start, float stop, float step) {
    const bool right = step > 0 ? stop > start : step < 0 && stop < start;
    if (right && count_of(start, stop, step) >= 1) {
        return true;
    }
    if (func != NULL) {
        gb_fail(GGML_STATUS_INVALID_ARGUMENT, "%s: no values between start %g and stop %g with step %g", func,
            (double) start, (double) stop, (double) step);
    }
    return false;
}

// op_params: start, stop, step
struct ggml_tensor * ggml_arange(struct ggml_context * ctx, float start, float stop, float step) {
    if (!check_arange(__func__, start, stop, step)) {
        return NULL;
    }
    const int64_t n = count_of(start, stop, step);
    struct ggml_tensor * node = gb_op_new(ctx, __func__, GGML_OP_ARANGE, GGML_TYPE_F32, gb_shape_of(n, 1, 1, 1));
    const float params[] = { start, stop, step };
    gb_op_set_params(node, params, sizeof(params));
    gb_op_set_ndim(node, 1);
    return gb_op_sources(ctx, node, GB_GRAD_NONE, NULL, NULL, NULL);
}

// -------------------------------------------------------------------------------------------------- TIMESTEP_EMBEDDING

static bool check_timestep(const char * func, gb_ct timesteps, int dim, int max_period) {
    const struct gb_call c = GB_CALL(func, GB_OPERAND(timesteps));
    return gb_rule_given(&c) && gb_rule_no_grad(&c) && gb_rule_max_dims(&c, 0, 1) &&
           gb_rule_at_least(&c, "dim", dim, 1) && gb_rule_at_least(&c, "max_period", max_period, 1);
}

static struct gb_shape shape_timestep(gb_ct timesteps, int dim) { return gb_shape_of(dim, timesteps->ne[0], 1, 1); }

// op_params: dim, max_period
struct ggml_tensor * ggml_timestep_embedding(struct ggml_context * ctx, struct ggml_tensor * timesteps, int dim,
    int max_period) {
    if (!check_timestep(__func__, timesteps, dim, max_period)) {
        return NULL;
    }
    struct ggml_tensor * node =
        gb_op_new(ctx, __func__, GGML_OP_TIMESTEP_EMBEDDING, GGML_TYPE_F32, shape_timestep(timesteps, dim));
    const int32_t params[] = { dim, max_period };
    gb_op_set_params(node, params, sizeof(params));
    gb_op_set_ndim(node, 2);
    return gb_op_sources(ctx, node, GB_GRAD_NONE, timesteps, NULL, NULL);
}

// ----------------------------------------------------------------------------------------------- checks of built nodes

bool gb_built_fill(gb_ct t) { return gb_check_1(NULL, t->src[0]) && gb_is_like(t, t->src[0]); }

bool gb_built_arange(gb_ct t) {
    const float start = gb_op_param_f32(t, 0), stop = gb_op_param_f32(t, 1), step = gb_op_param_f32(t, 2);
    return check_arange(NULL, start, stop, step) && gb_is_shape(t, gb_shape_of(count_of(start, stop, step), 1, 1, 1));
}

bool gb_built_timestep_embedding(gb_ct t) {
    return check_timestep(NULL, t->src[0], t->op_params[0], t->op_params[1]) &&
           gb_is_shape(t, shape_timestep(t->src[0], t->op_params[0]));
}
