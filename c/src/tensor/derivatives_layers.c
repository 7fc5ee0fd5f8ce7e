// derivatives_layers.c - the derivatives of activations, norms, gates, experts, attention, resizing and pooling
// (derivatives_rules.h).
#include "tensor/derivatives_rules.h"

#include "tensor/check.h"
#include "tensor/numbers.h"

// NULL passes through.
static struct ggml_tensor * in_f32(struct ggml_context * ctx, struct ggml_tensor * t) {
    return t == NULL || t->type == GGML_TYPE_F32 ? t : ggml_cast(ctx, t, GGML_TYPE_F32);
}

// --------------------------------------------------------------------------------------------------------- activations
// A slope function returns g f'(x) for a function f.

static struct ggml_tensor * slope_relu(struct ggml_context * ctx, struct ggml_tensor * g, struct ggml_tensor * x) {
    return ggml_mul(ctx, g, ggml_step(ctx, x));
}

// silu; SILU_BACK computes it in one step
static struct ggml_tensor * slope_silu(struct ggml_context * ctx, struct ggml_tensor * g, struct ggml_tensor * x) {
    return ggml_silu_back(ctx, gb_grad_contiguous(ctx, x), gb_grad_contiguous(ctx, g));
}

// f = x p, where p = sigmoid(z) and `bend` is x dz/dx: f' = p + bend (p - p^2).
static struct ggml_tensor * slope_sigmoid(struct ggml_context * ctx, struct ggml_tensor * g, struct ggml_tensor * z,
    struct ggml_tensor * bend) {
    struct ggml_tensor * p = ggml_sigmoid(ctx, z);
    struct ggml_tensor * slope = ggml_add(ctx, p, ggml_mul(ctx, bend, ggml_sub(ctx, p, ggml_sqr(ctx, p))));
    return ggml_mul(ctx, g, slope);
}

// f = x sigmoid(alpha x)
static struct ggml_tensor * slope_swish(struct ggml_context * ctx, struct ggml_tensor * g, struct ggml_tensor * x,
    float alpha) {
    struct ggml_tensor * z = ggml_scale(ctx, x, alpha);
    return slope_sigmoid(ctx, g, z, z);
}

// gelu in its tanh form is x sigmoid(2 k (x + c x^3)) with k = sqrt(2 / pi).
static struct ggml_tensor * slope_gelu(struct ggml_context * ctx, struct ggml_tensor * g, struct ggml_tensor * x) {
    const float k = 0.79788456080286535588f, c = 0.044715f;
    struct ggml_tensor * q = ggml_sqr(ctx, x);
    return slope_sigmoid(ctx, g, ggml_mul(ctx, x, ggml_scale_bias(ctx, q, 2 * k * c, 2 * k)),
        ggml_mul(ctx, x, ggml_scale_bias(ctx, q, 6 * k * c, 2 * k)));
}

static struct ggml_tensor * slope_gelu_quick(struct ggml_context * ctx, struct ggml_tensor * g,
    struct ggml_tensor * x) {
    return slope_swish(ctx, g, x, 1.702f);
}

// A scalar.
static struct ggml_tensor * number(struct ggml_context * ctx, float value) {
    return ggml_arange(ctx, value, value + 1, 1);
}

// The distribution function of the normal distribution, P(x) = gelu_erf(x) / x. Near 0 its series is used
// up to x^7, whose error is below that of the rounding. There the quotient is computed for 1 instead of x.
static struct ggml_tensor * normal(struct ggml_context * ctx, struct ggml_tensor * x) {
    struct ggml_tensor * q = ggml_sqr(ctx, x);
    struct ggml_tensor * is_near = ggml_compare(ctx, q, number(ctx, 0.0625f), GGML_COMPARE_LESS);
    struct ggml_tensor * far = ggml_where(ctx, is_near, number(ctx, 1), x);
    struct ggml_tensor * t = ggml_scale_bias(ctx, q, -1.0f / 336, 1.0f / 40);
    t = ggml_scale_bias(ctx, ggml_mul(ctx, t, q), 1, -1.0f / 6);
    t = ggml_scale_bias(ctx, ggml_mul(ctx, t, q), 1, 1);
    t = ggml_scale_bias(ctx, ggml_mul(ctx, t, x), 0.39894228040143267794f, 0.5f);
    return ggml_where(ctx, is_near, t, ggml_div(ctx, ggml_gelu_erf(ctx, far), far));
}

// f = x P(x): f' = P + x p, where p is the density e^(-x^2 / 2) / sqrt(2 pi).
static struct ggml_tensor * slope_gelu_erf(struct ggml_context * ctx, struct ggml_tensor * g, struct ggml_tensor * x) {
    struct ggml_tensor * wide = in_f32(ctx, x);
    struct ggml_tensor * density = ggml_exp(ctx, ggml_scale(ctx, ggml_sqr(ctx, wide), -0.5f));
    struct ggml_tensor * bend = ggml_scale(ctx, ggml_mul(ctx, wide, density), 0.39894228040143267794f);
    return ggml_mul(ctx, g, ggml_add(ctx, normal(ctx, wide), bend));
}

// da = g (1 - y^2)
RULE(unary_tanh) { return ADD(y->src[0], ggml_mul(s->ctx, g, ggml_scale_bias(s->ctx, ggml_sqr(s->ctx, y), -1, 1))); }

// da = g (1 + min(y, 0)): below 0, y + 1 is e^a.
RULE(unary_elu) {
    return ADD(y->src[0], ggml_mul(s->ctx, g, ggml_scale_bias(s->ctx, ggml_relu(s->ctx, ggml_neg(s->ctx, y)), -1, 1)));
}

RULE(unary_gelu) { return ADD(y->src[0], slope_gelu(s->ctx, g, y->src[0])); }

RULE(unary_gelu_quick) { return ADD(y->src[0], slope_gelu_quick(s->ctx, g, y->src[0])); }

RULE(unary_gelu_erf) { return ADD(y->src[0], slope_gelu_erf(s->ctx, g, y->src[0])); }

// 1 where -3 < x < 3, else 0 (or 1 at one of the ends)
static struct ggml_tensor * within_3(struct ggml_context * ctx, struct ggml_tensor * x) {
    return ggml_sub(ctx, ggml_step(ctx, ggml_scale_bias(ctx, x, 1, 3)), ggml_step(ctx, ggml_scale_bias(ctx, x, 1, -3)));
}

// da = g / 6 between -3 and 3.
RULE(unary_hardsigmoid) {
    return ADD(y->src[0], ggml_mul(s->ctx, g, ggml_scale(s->ctx, within_3(s->ctx, y->src[0]), 1.0f / 6)));
}

// y = a hardsigmoid(a): da = g (hardsigmoid(a) + a / 6 between -3 and 3).
RULE(unary_hardswish) {
    struct ggml_tensor * a = y->src[0];
    if (!gb_grad_wanted(s, a)) {
        return true;
    }
    struct ggml_tensor * bend = ggml_scale(s->ctx, ggml_mul(s->ctx, a, within_3(s->ctx, a)), 1.0f / 6);
    return gb_grad_add(s, a, ggml_mul(s->ctx, g, ggml_add(s->ctx, ggml_hardsigmoid(s->ctx, a), bend)));
}

// da = g if a > 0, else slope g.
RULE(leaky_relu) {
    const float slope = gb_op_param_f32(y, 0);
    return ADD(y->src[0], ggml_mul(s->ctx, g, ggml_scale_bias(s->ctx, ggml_step(s->ctx, y->src[0]), 1 - slope, slope)));
}

// Reads y alone, because the node is in place. The derivative at the limits themselves is 0.
RULE(clamp) {
    struct ggml_tensor * above = ggml_step(s->ctx, ggml_scale_bias(s->ctx, y, 1, -gb_op_param_f32(y, 0)));
    struct ggml_tensor * below = ggml_step(s->ctx, ggml_scale_bias(s->ctx, y, -1, gb_op_param_f32(y, 1)));
    return ADD(y->src[0], ggml_mul(s->ctx, g, ggml_mul(s->ctx, above, below)));
}

// With the numbers n, p and beta: da = g (2 p a + beta) above 0, else g (n (e^a - 1) + beta).
RULE(xielu) {
    struct ggml_context * ctx = s->ctx;
    struct ggml_tensor * a = y->src[0];
    const float n = gb_op_param_f32(y, 0), p = gb_op_param_f32(y, 1), beta = gb_op_param_f32(y, 2);
    if (!gb_grad_wanted(s, a)) {
        return true;
    }
    struct ggml_tensor * low = ggml_expm1(ctx, ggml_neg(ctx, ggml_relu(ctx, ggml_neg(ctx, a))));
    struct ggml_tensor * slope = ggml_add(ctx, ggml_scale(ctx, ggml_relu(ctx, a), 2 * p), ggml_scale(ctx, low, n));
    return gb_grad_add(s, a, ggml_mul(ctx, g, ggml_scale_bias(ctx, slope, 1, beta)));
}

// --------------------------------------------------------------------------------------------------------------- gates

// The function f of a gate, and g f'(x).
static struct ggml_tensor * gate_of(struct ggml_context * ctx, int op, struct ggml_tensor * x) {
    switch (op) {
        case GGML_GLU_OP_REGLU: return ggml_relu(ctx, x);
        case GGML_GLU_OP_GEGLU: return ggml_gelu(ctx, x);
        case GGML_GLU_OP_SWIGLU: return ggml_silu(ctx, x);
        case GGML_GLU_OP_GEGLU_ERF: return ggml_gelu_erf(ctx, x);
        default: return ggml_gelu_quick(ctx, x);
    }
}

static struct ggml_tensor * gate_slope(struct ggml_context * ctx, int op, struct ggml_tensor * g,
    struct ggml_tensor * x) {
    switch (op) {
        case GGML_GLU_OP_REGLU: return slope_relu(ctx, g, x);
        case GGML_GLU_OP_GEGLU: return slope_gelu(ctx, g, x);
        case GGML_GLU_OP_SWIGLU: return slope_silu(ctx, g, x);
        case GGML_GLU_OP_GEGLU_ERF: return slope_gelu_erf(ctx, g, x);
        default: return slope_gelu_quick(ctx, g, x);
    }
}

// min(x, limit). The sum of x and a large limit would lose digits of x, so WHERE selects.
static struct ggml_tensor * at_most(struct ggml_context * ctx, struct ggml_tensor * x, float limit) {
    struct ggml_tensor * is_above = ggml_step(ctx, ggml_scale_bias(ctx, x, 1, -limit));
    struct ggml_tensor * most = ggml_scale(ctx, number(ctx, 1), limit); // ARANGE makes no large numbers
    return ggml_where(ctx, is_above, most, x);
}

// 1 where x < limit, else 0
static struct ggml_tensor * below(struct ggml_context * ctx, struct ggml_tensor * x, float limit) {
    return ggml_step(ctx, ggml_scale_bias(ctx, x, -1, limit));
}

// The gradients of the two halves x and w of a gate; *dx or *dw NULL: a builder failed.
static void derive_gate(struct ggml_context * ctx, const struct ggml_tensor * y, struct ggml_tensor * g,
    struct ggml_tensor * x, struct ggml_tensor * w, struct ggml_tensor ** dx, struct ggml_tensor ** dw) {
    const int op = y->op_params[0];
    if (op != GGML_GLU_OP_SWIGLU_OAI) {
        *dx = gate_slope(ctx, op, ggml_mul(ctx, g, w), x);
        *dw = ggml_mul(ctx, g, gate_of(ctx, op, x));
        return;
    }
    // y = u sigmoid(alpha u) (v + 1), u = min(x, limit), v = w cut to [-limit, limit]
    const float alpha = gb_op_param_f32(y, 2), limit = gb_op_param_f32(y, 3);
    x = in_f32(ctx, x), w = in_f32(ctx, w);
    struct ggml_tensor * u = at_most(ctx, x, limit);
    struct ggml_tensor * v = ggml_neg(ctx, at_most(ctx, ggml_neg(ctx, at_most(ctx, w, limit)), limit));
    struct ggml_tensor * of_u = slope_swish(ctx, ggml_mul(ctx, g, ggml_scale_bias(ctx, v, 1, 1)), u, alpha);
    *dx = ggml_mul(ctx, of_u, below(ctx, x, limit));
    struct ggml_tensor * swish = ggml_mul(ctx, u, ggml_sigmoid(ctx, ggml_scale(ctx, u, alpha)));
    *dw = ggml_mul(ctx, ggml_mul(ctx, g, swish),
        ggml_mul(ctx, below(ctx, w, limit), below(ctx, ggml_neg(ctx, w), limit)));
}

static struct ggml_tensor * half_of(struct ggml_context * ctx, struct ggml_tensor * a, int i) {
    const int64_t n = a->ne[0] / 2;
    return gb_grad_contiguous(ctx, ggml_view_4d(ctx, a, n, a->ne[1], a->ne[2], a->ne[3], a->nb[1], a->nb[2], a->nb[3],
                                       (size_t) (i * n) * a->nb[0]));
}

// Of two sources, or of the halves of the rows of one.
RULE(glu) {
    struct ggml_tensor *a = y->src[0], *b = y->src[1], *dx, *dw;
    if (b != NULL) {
        derive_gate(s->ctx, y, g, a, b, &dx, &dw);
        return ADD(a, dx) && ADD(b, dw);
    }
    const int swapped = y->op_params[1] != 0;
    derive_gate(s->ctx, y, g, half_of(s->ctx, a, swapped), half_of(s->ctx, a, !swapped), &dx, &dw);
    size_t nb[4] = { sizeof(float) };
    for (int i = 1; i < 4; i++) {
        nb[i] = nb[i - 1] * (size_t) a->ne[i - 1];
    }
    const size_t half = (size_t) y->ne[0] * sizeof(float);
    return gb_grad_add_region(s, a, dx, nb, swapped ? half : 0) && gb_grad_add_region(s, a, dw, nb, swapped ? 0 : half);
}

// --------------------------------------------------------------------------------------------------------------- norms

// The rows minus their means.
static struct ggml_tensor * centred(struct ggml_context * ctx, struct ggml_tensor * t) {
    t = gb_grad_contiguous(ctx, t);
    return ggml_sub(ctx, t, ggml_mean(ctx, t));
}

// y is RMS_NORM of the centred rows, and centring is its own transpose.
static struct ggml_tensor * norm_back(struct ggml_context * ctx, struct ggml_tensor * x, struct ggml_tensor * g,
    float eps) {
    return centred(ctx, ggml_rms_norm_back(ctx, centred(ctx, x), g, eps));
}

RULE(norm) { return ADD(y->src[0], norm_back(s->ctx, y->src[0], g, gb_op_param_f32(y, 0))); }

// The groups as rows. All groups have equally many channels, or the node has no derivative here.
RULE(group_norm) {
    struct ggml_tensor * a = y->src[0];
    const int64_t groups = y->op_params[0];
    const float eps = gb_op_param_f32(y, 1);
    if (!gb_grad_wanted(s, a)) {
        return true;
    }
    if (groups < 1 || a->ne[2] % groups != 0) {
        return gb_grad_underivable(s, y);
    }
    const int64_t n = a->ne[0] * a->ne[1] * (a->ne[2] / groups);
    struct ggml_tensor * rows = ggml_reshape_3d(s->ctx, gb_grad_contiguous(s->ctx, a), n, groups, a->ne[3]);
    struct ggml_tensor * back =
        norm_back(s->ctx, rows, ggml_reshape_3d(s->ctx, g, n, groups, a->ne[3]), eps != 0 ? eps : GB_GROUP_NORM_EPS);
    return back != NULL && gb_grad_add(s, a, ggml_reshape(s->ctx, back, a));
}

// y = a / n, where n is the length of the row, at least eps: da = (g - y (g . y)) / n. The second term is 0 for
// rows shorter than eps, where n is constant.
RULE(l2_norm) {
    struct ggml_context * ctx = s->ctx;
    struct ggml_tensor * a = y->src[0];
    const float eps = gb_op_param_f32(y, 0);
    if (!gb_grad_wanted(s, a)) {
        return true;
    }
    struct ggml_tensor * excess = ggml_scale_bias(ctx, ggml_sqrt(ctx, gb_grad_row_dot(ctx, a, a)), 1, -eps);
    struct ggml_tensor * n = ggml_scale_bias(ctx, ggml_relu(ctx, excess), 1, eps);
    struct ggml_tensor * along = ggml_mul(ctx, y, ggml_mul(ctx, gb_grad_row_dot(ctx, g, y), ggml_step(ctx, excess)));
    return gb_grad_add(s, a, ggml_div(ctx, ggml_sub(ctx, g, along), n));
}

// ----------------------------------------------------------------------------------------------------- parts and moves

// The part of g with the shape of t that begins at an offset in bytes.
static struct ggml_tensor * part_of(struct ggml_context * ctx, struct ggml_tensor * g, const struct ggml_tensor * t,
    size_t offset) {
    return gb_grad_contiguous(ctx,
        ggml_view_4d(ctx, g, t->ne[0], t->ne[1], t->ne[2], t->ne[3], g->nb[1], g->nb[2], g->nb[3], offset));
}

RULE(concat) {
    struct ggml_tensor *a = y->src[0], *b = y->src[1];
    return ADD(a, part_of(s->ctx, g, a, 0)) && ADD(b, part_of(s->ctx, g, b, (size_t) a->ne[2] * g->nb[2]));
}

RULE(pad) { return ADD(y->src[0], part_of(s->ctx, g, y->src[0], 0)); }

// Only padding with zeros has a derivative here.
RULE(pad_ext) {
    const int32_t * p = y->op_params;
    if (p[8] != 0) {
        return gb_grad_underivable(s, y);
    }
    size_t offset = 0;
    for (int d = 0; d < 4; d++) {
        offset += (size_t) p[2 * d] * g->nb[d];
    }
    return ADD(y->src[0], part_of(s->ctx, g, y->src[0], offset));
}

RULE(roll) {
    const int32_t * p = y->op_params;
    return ADD(y->src[0], ggml_roll(s->ctx, g, -p[0], -p[1], -p[2], -p[3]));
}

// The gradient of an element is the sum of the n x n gradients of its copies: their mean times n^2.
RULE(upscale) {
    struct ggml_context * ctx = s->ctx;
    struct ggml_tensor * a = y->src[0];
    const int n = y->op_params[0];
    if (!gb_grad_wanted(s, a)) {
        return true;
    }
    struct ggml_tensor * planes = ggml_reshape_3d(ctx, g, g->ne[0], g->ne[1], g->ne[2] * g->ne[3]);
    planes = ggml_scale(ctx, ggml_pool_2d(ctx, planes, GGML_OP_POOL_AVG, n, n, n, n, 0, 0), (float) n * (float) n);
    return planes != NULL && gb_grad_add(s, a, ggml_reshape(ctx, planes, a));
}

// Only for square windows next to each other, without padding. If several elements of a window are its maximum,
// each gets the window's whole gradient.
RULE(pool_2d) {
    struct ggml_context * ctx = s->ctx;
    struct ggml_tensor * a = y->src[0];
    const int32_t * p = y->op_params; // op, k0, k1, s0, s1, p0, p1
    const int n = p[1];
    const int64_t rest0 = a->ne[0] - y->ne[0] * n, rest1 = a->ne[1] - y->ne[1] * n;
    if (!gb_grad_wanted(s, a)) {
        return true;
    }
    if (p[2] != n || p[3] != n || p[4] != n || p[5] != 0 || p[6] != 0 || rest0 < 0 || rest1 < 0) {
        return gb_grad_underivable(s, y);
    }
    const bool is_mean = p[0] == GGML_OP_POOL_AVG;
    struct ggml_tensor * share = is_mean ? ggml_scale(ctx, g, 1.0f / ((float) n * (float) n)) : g;
    struct ggml_tensor * all = ggml_pad(ctx, ggml_upscale(ctx, share, n), (int) rest0, (int) rest1, 0, 0);
    if (!is_mean) {
        struct ggml_tensor * most = ggml_pad(ctx, ggml_upscale(ctx, y, n), (int) rest0, (int) rest1, 0, 0);
        all = ggml_mul(ctx, all, ggml_compare(ctx, a, most, GGML_COMPARE_EQUAL));
    }
    return gb_grad_add(s, a, all);
}

// Rows that were written hand their gradient to b, the others to the tensor that was written to.
RULE(set_rows) {
    struct ggml_context * ctx = s->ctx;
    struct ggml_tensor *b = y->src[0], *places = y->src[1], *a = y->src[2];
    const bool whole = places->ne[1] == b->ne[2] && places->ne[2] == b->ne[3];
    if (gb_grad_wanted(s, b) && (places->type != GGML_TYPE_I32 || !whole)) {
        return gb_grad_underivable(s, y);
    }
    return ADD(b, ggml_get_rows(ctx, g, places)) &&
           ADD(a, ggml_set_rows(ctx, ggml_dup(ctx, g), gb_grad_zeros(ctx, b), places));
}

// ------------------------------------------------------------------------------------------------------------- experts

// The gradient of an expert's matrix is a product with all rows, in which the rows of other experts are 0. So it takes
// as long as if each row used each expert.

// da = b g^T over the rows of each expert, db = a g with the matrix of each row. The whole stack is transposed, as F32.
RULE(mul_mat_experts) {
    struct ggml_context * ctx = s->ctx;
    struct ggml_tensor *a = y->src[0], *b = y->src[1], *ids = y->src[2];
    const int64_t k = a->ne[0], m = a->ne[1], experts = a->ne[2], used = ids->ne[0], n = used * ids->ne[1];
    if (gb_grad_wanted(s, b)) {
        struct ggml_tensor * back = ggml_cont(ctx, ggml_transpose(ctx, in_f32(ctx, a)));
        back = back != NULL ? ggml_mul_mat_experts(ctx, back, g, ids) : NULL;
        if (back == NULL || ggml_mul_mat_set_prec(back, GGML_PREC_F32) != GGML_STATUS_SUCCESS ||
            !gb_grad_add(s, b, gb_grad_unrepeated(ctx, back, b))) {
            return false;
        }
    }
    if (!gb_grad_wanted(s, a)) {
        return true;
    }
    struct ggml_tensor each = { .type = GGML_TYPE_F32, .ne = { k, used, ids->ne[1], 1 } }; // only shapes are read
    struct ggml_tensor all = { .type = GGML_TYPE_F32, .ne = { 1, n, experts, 1 } };
    struct ggml_tensor * rows = b->ne[1] == used ? gb_grad_contiguous(ctx, b) : ggml_repeat(ctx, b, &each);
    struct ggml_tensor * named = ggml_cast(ctx, gb_grad_contiguous(ctx, ids), GGML_TYPE_F32); // exact to 2^24
    named = named != NULL ? ggml_repeat(ctx, ggml_reshape_2d(ctx, named, 1, n), &all) : NULL;
    struct ggml_tensor * numbers = ggml_reshape_3d(ctx, ggml_arange(ctx, 0, (float) experts, 1), 1, 1, experts);
    struct ggml_tensor * is_used = ggml_compare(ctx, named, numbers, GGML_COMPARE_EQUAL);
    struct ggml_tensor * of_y = ggml_where(ctx, is_used, ggml_reshape_2d(ctx, g, m, n), number(ctx, 0));
    return rows != NULL && gb_grad_add(s, a, ggml_out_prod(ctx, ggml_reshape_2d(ctx, rows, k, n), of_y));
}

RULE(mul_mat_id) {
    struct ggml_context * ctx = s->ctx;
    struct ggml_tensor *ids = y->src[0], *b = y->src[1];
    const int32_t id = y->op_params[0], experts = y->op_params[1];
    struct ggml_tensor * named = ggml_view_2d(ctx, ids, 1, ids->ne[1], ids->nb[1], (size_t) id * ids->nb[0]);
    named = named != NULL ? ggml_cast(ctx, ggml_cont(ctx, named), GGML_TYPE_F32) : NULL;
    for (int32_t i = 0; i < experts; i++) {
        struct ggml_tensor * a = y->src[2 + i];
        if (gb_grad_wanted(s, a) || gb_grad_wanted(s, b)) {
            struct ggml_tensor * is_used = ggml_compare(ctx, named, number(ctx, (float) i), GGML_COMPARE_EQUAL);
            struct ggml_tensor * of_y = ggml_where(ctx, is_used, g, number(ctx, 0));
            if (of_y == NULL || !gb_grad_of_product(s, a, b, of_y)) {
                return false;
            }
        }
    }
    return true;
}

// ----------------------------------------------------------------------------------------------------------- attention

struct attention {  // of a FLASH_ATTN_EXT node, computed again
    struct ggml_tensor * p;     // softmax [M, N, H, B]
    struct ggml_tensor * slope; // of the logits by the products of q and k, besides the scale; NULL: 1
    float scale;                // of the products
};

// A query without a visible key has the result 0, where softmax gives NaN.
static struct ggml_tensor * without_nan(struct ggml_context * ctx, struct ggml_tensor * p) {
    return ggml_where(ctx, ggml_compare(ctx, p, p, GGML_COMPARE_EQUAL), p, number(ctx, 0));
}

// False: a builder failed (reported).
static bool attend(struct ggml_context * ctx, const struct ggml_tensor * y, struct ggml_tensor * q,
    struct attention * r) {
    struct ggml_tensor *k = y->src[1], *mask = y->src[3], *sinks = y->src[4];
    const float max_bias = gb_op_param_f32(y, 1), cap = gb_op_param_f32(y, 2);
    r->scale = gb_op_param_f32(y, 0);
    r->slope = NULL;
    struct ggml_tensor * logits = ggml_mul_mat(ctx, k, q);
    if (cap != 0) { // cap tanh(scale x / cap)
        struct ggml_tensor * t = ggml_tanh(ctx, ggml_scale(ctx, logits, r->scale / cap));
        r->slope = ggml_scale_bias(ctx, ggml_sqr(ctx, t), -1, 1);
        logits = t;
    }
    const float factor = cap != 0 ? cap : r->scale;
    r->p = max_bias > 0 ? ggml_soft_max_bias(ctx, logits, mask, factor, max_bias)
                        : ggml_soft_max_ext(ctx, logits, mask, factor);
    if (r->p == NULL || (sinks != NULL && ggml_soft_max_add_sinks(r->p, sinks) != GGML_STATUS_SUCCESS)) {
        return false;
    }
    r->p = mask != NULL ? without_nan(ctx, r->p) : r->p;
    return r->p != NULL && (cap == 0 || r->slope != NULL);
}

// With the logits x = scale k^T q + mask, p = softmax(x) and y = v p: dv = g p^T, dp = v^T g, dx = softmax_back(dp, p),
// dq = k dx, dk = q dx^T.
RULE(attention_ext) {
    struct ggml_context * ctx = s->ctx;
    struct ggml_tensor *q = y->src[0], *k = y->src[1], *v = y->src[2], *mask = y->src[3], *sinks = y->src[4];
    struct attention r;
    struct ggml_tensor * of_y = ggml_cont(ctx, ggml_permute(ctx, g, 0, 2, 1, 3)); // [Dv, N, H, B]
    struct ggml_tensor * wide = in_f32(ctx, q);
    if (of_y == NULL || wide == NULL || !attend(ctx, y, wide, &r) ||
        !ADD(v, gb_grad_unbroadcast(ctx, ggml_out_prod(ctx, of_y, r.p), v))) {
        return false;
    }
    const bool wants_logits = gb_grad_wanted(s, q) || gb_grad_wanted(s, k) || gb_grad_wanted(s, mask);
    if (!wants_logits && !gb_grad_wanted(s, sinks)) {
        return true;
    }
    struct ggml_tensor * of_p = ggml_mul_mat(ctx, v, of_y);
    if (of_p == NULL || !ADD(sinks, gb_grad_of_sinks(ctx, r.p, of_p, sinks))) {
        return false;
    }
    if (!wants_logits) {
        return true;
    }
    struct ggml_tensor * of_x = ggml_soft_max_back(ctx, of_p, r.p);
    if (!ADD(mask, gb_grad_of_mask(ctx, of_x, mask, gb_op_param_f32(y, 1)))) {
        return false;
    }
    of_x = ggml_scale(ctx, r.slope != NULL ? ggml_mul(ctx, of_x, r.slope) : of_x, r.scale);
    return ADD(q, ggml_out_prod(ctx, k, ggml_transpose(ctx, of_x))) &&
           ADD(k, gb_grad_unbroadcast(ctx, ggml_out_prod(ctx, wide, of_x), k));
}
