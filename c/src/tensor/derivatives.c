// derivatives.c - the derivative of each operator that has one: the table, and the rules of elementary
// operators. The column `derivative` of ops.def names the rule of each operator. derivatives_rules.h
// explains rules.
#include <math.h>
#include <stdio.h>

#include "tensor/derivatives_rules.h"

#include "tensor/check.h"

typedef bool (*rule)(struct gb_sweep * s, struct ggml_tensor * y, struct ggml_tensor * g);

// -------------------------------------------------------------------------------------------------------------- shapes

// g with the shape and type of `like`, which has as many elements.
static struct ggml_tensor * shaped(const struct gb_sweep * s, struct ggml_tensor * g, struct ggml_tensor * like) {
    if (g != NULL && g->type != like->type && !s->in_f32 && !ggml_is_quantized(like->type)) {
        g = ggml_cast(s->ctx, g, like->type);
    }
    return g == NULL || ggml_are_same_shape(g, like) ? g : ggml_reshape(s->ctx, gb_grad_contiguous(s->ctx, g), like);
}

// --------------------------------------------------------------------------------------------------------- elementwise

RULE(copy) { // DUP, CPY, CONT
    return ADD(y->src[0], shaped(s, g, y->src[0]));
}

// y = a + b: da = g, db = g, summed where b was repeated.
RULE(add) { return ADD(y->src[0], g) && ADD(y->src[1], gb_grad_unrepeated(s->ctx, g, y->src[1])); }

// b is a single number. Its gradient is the sum of all elements of g.
RULE(add1) { return ADD(y->src[0], g) && ADD(y->src[1], ggml_sum(s->ctx, g)); }

// y = a - b: da = g, db = -g.
RULE(sub) { return ADD(y->src[0], g) && ADD(y->src[1], gb_grad_unrepeated(s->ctx, ggml_neg(s->ctx, g), y->src[1])); }

// y = a b: da = g b, db = g a.
RULE(mul) {
    struct ggml_tensor *a = y->src[0], *b = y->src[1];
    return ADD(a, ggml_mul(s->ctx, g, b)) && ADD(b, gb_grad_unrepeated(s->ctx, ggml_mul(s->ctx, g, a), b));
}

RULE(div) { // db = -g y / b
    struct ggml_tensor *a = y->src[0], *b = y->src[1];
    return ADD(a, ggml_div(s->ctx, g, b)) &&
           ADD(b, gb_grad_unrepeated(s->ctx, ggml_neg(s->ctx, ggml_mul(s->ctx, g, ggml_div(s->ctx, y, b))), b));
}

// da = 2 g a.
RULE(sqr) { return ADD(y->src[0], ggml_scale(s->ctx, ggml_mul(s->ctx, g, y->src[0]), 2.0f)); }

// da = g / (2 y).
RULE(sqrt) { return ADD(y->src[0], ggml_scale(s->ctx, ggml_div(s->ctx, g, y), 0.5f)); }

// da = g / a.
RULE(log) { return ADD(y->src[0], ggml_div(s->ctx, g, y->src[0])); }

// y = s a: da = s g.
RULE(scale) { return ADD(y->src[0], ggml_scale(s->ctx, g, gb_op_param_f32(y, 0))); }

// The rule of operators without a derivative.
RULE(none) {
    (void) g;
    return gb_grad_underivable(s, y);
}

// The derivative is zero wherever it exists.
RULE(flat) {
    (void) s;
    (void) y;
    (void) g;
    return true;
}

// y = cond ? a : b. The selected source gets g, the other source 0. A number is never less than
// itself, which gives the zeros. A product of g and 0 would be NaN if g is infinite.
RULE(where) {
    struct ggml_tensor *cond = y->src[0], *a = y->src[1], *b = y->src[2];
    if (!gb_grad_wanted(s, a) && !gb_grad_wanted(s, b)) {
        return true;
    }
    struct ggml_tensor * zeros = ggml_compare(s->ctx, cond, cond, GGML_COMPARE_LESS);
    if (zeros != NULL && zeros->type != g->type) {
        zeros = ggml_cast(s->ctx, zeros, g->type);
    }
    return ADD(a, gb_grad_unrepeated(s->ctx, ggml_where(s->ctx, cond, g, zeros), a)) &&
           ADD(b, gb_grad_unrepeated(s->ctx, ggml_where(s->ctx, cond, zeros, g), b));
}

// The functions of UNARY.

// da = g sgn(a).
RULE(unary_abs) { return ADD(y->src[0], ggml_mul(s->ctx, g, ggml_sgn(s->ctx, y->src[0]))); }

// da = g y.
RULE(unary_exp) { return ADD(y->src[0], ggml_mul(s->ctx, g, y)); }

// da = g (y - y^2).
RULE(unary_sigmoid) { return ADD(y->src[0], ggml_mul(s->ctx, g, ggml_sub(s->ctx, y, ggml_sqr(s->ctx, y)))); }

// da = g cos(a).
RULE(unary_sin) { return ADD(y->src[0], ggml_mul(s->ctx, g, ggml_cos(s->ctx, y->src[0]))); }

// da = -g sin(a).
RULE(unary_cos) { return ADD(y->src[0], ggml_neg(s->ctx, ggml_mul(s->ctx, g, ggml_sin(s->ctx, y->src[0])))); }

// da = g (y + 1).
RULE(unary_expm1) { return ADD(y->src[0], ggml_mul(s->ctx, g, ggml_scale_bias(s->ctx, y, 1.0f, 1.0f))); }

// da = g sigmoid(a).
RULE(unary_softplus) { return ADD(y->src[0], ggml_mul(s->ctx, g, ggml_sigmoid(s->ctx, y->src[0]))); }

RULE(unary_neg) { return ADD(y->src[0], ggml_neg(s->ctx, g)); }

// da = g if a > 0, else 0.
RULE(unary_relu) { return ADD(y->src[0], ggml_mul(s->ctx, g, ggml_step(s->ctx, y->src[0]))); }

// SILU_BACK computes g silu'(a) in one step.
RULE(unary_silu) { return ADD(y->src[0], ggml_silu_back(s->ctx, gb_grad_contiguous(s->ctx, y->src[0]), g)); }

RULE(unary) {
    static const rule functions[GGML_UNARY_OP_COUNT] = {
#define GB_UNARY_OP(id, stem, tolerance, forms, derivative) [GGML_UNARY_OP_##id] = gb_derive_unary_##derivative,
#include "tensor/ops.def"
    };
    const uint32_t function = (uint32_t) y->op_params[0];
    return (function < GGML_UNARY_OP_COUNT ? functions[function] : gb_derive_none)(s, y, g);
}

// ---------------------------------------------------------------------------------------------------- sums and repeats

// SUM, SUM_ROWS, REPEAT_BACK
RULE(sum) { return ADD(y->src[0], ggml_repeat(s->ctx, g, y->src[0])); }

// y = sums / n: da = g / n.
RULE(mean) {
    struct ggml_tensor * a = y->src[0];
    return ADD(a, ggml_scale(s->ctx, ggml_repeat(s->ctx, g, a), 1.0f / (float) a->ne[0]));
}

// An element has a share in its own sum and in all later ones: da = sum of g - running sum of g + g.
RULE(cumsum) {
    struct ggml_tensor * a = y->src[0];
    if (!gb_grad_wanted(s, a)) {
        return true;
    }
    struct ggml_tensor * total = ggml_repeat(s->ctx, ggml_sum_rows(s->ctx, g), g);
    return gb_grad_add(s, a, ggml_add(s->ctx, ggml_sub(s->ctx, total, ggml_cumsum(s->ctx, g)), g));
}

RULE(tri) { return ADD(y->src[0], ggml_tri(s->ctx, g, (enum ggml_tri_type) y->op_params[0])); }

RULE(repeat) { return ADD(y->src[0], gb_grad_unrepeated(s->ctx, g, y->src[0])); }

// ------------------------------------------------------------------------------------------------------------- regions

static struct ggml_tensor * region_of(struct ggml_context * ctx, struct ggml_tensor * g, const struct ggml_tensor * y) {
    const struct ggml_tensor * b = y->src[1];
    const int32_t * p = y->op_params; // nb1, nb2, nb3, offset
    return ggml_cont(ctx, ggml_view_4d(ctx, g, b->ne[0], b->ne[1], b->ne[2], b->ne[3], (size_t) p[0], (size_t) p[1],
                              (size_t) p[2], (size_t) p[3]));
}

// The gradient of b is its region of g.
RULE(acc) { return ADD(y->src[0], g) && ADD(y->src[1], region_of(s->ctx, g, y)); }

// The overwritten values do not contribute, so their gradient is 0.
RULE(set) {
    const int32_t * p = y->op_params;
    return ADD(y->src[0], ggml_set(s->ctx, g, ggml_scale(s->ctx, region_of(s->ctx, g, y), 0.0f), (size_t) p[0],
                              (size_t) p[1], (size_t) p[2], (size_t) p[3])) &&
           ADD(y->src[1], region_of(s->ctx, g, y));
}

// A view's gradient goes into the region of the view. The strides agree only if the source is
// contiguous.
RULE(view) {
    struct ggml_tensor * a = y->src[0];
    if (!gb_grad_wanted(s, a)) {
        return true;
    }
    char text[640];
    GB_FAIL_IF_RETURNING(!ggml_is_contiguous(a), false, GGML_STATUS_UNSUPPORTED,
        "%s: %s: a view has a derivative only if its source is contiguous", s->func,
        gb_describe_node(y, text, sizeof(text)));
    size_t offset, nb[4];
    memcpy(&offset, y->op_params, sizeof(offset));
    const size_t from = ggml_type_size(a->type), to = s->in_f32 ? sizeof(float) : from;
    for (int i = 0; i < 4; i++) {
        nb[i] = y->nb[i] / from * to;
    }
    return gb_grad_add_region(s, a, g, nb, offset / from * to);
}

// The gradient gets a's shape back.
RULE(reshape) { return ADD(y->src[0], shaped(s, g, y->src[0])); }

// Dimension d went to axis op_params[d], so the gradient goes back.
RULE(permute) {
    int from[GGML_MAX_DIMS];
    for (int d = 0; d < GGML_MAX_DIMS; d++) {
        const int32_t axis = y->op_params[d];
        if (axis < 0 || axis >= GGML_MAX_DIMS) {
            return gb_grad_underivable(s, y);
        }
        from[axis] = d;
    }
    return ADD(y->src[0], ggml_permute(s->ctx, g, from[0], from[1], from[2], from[3]));
}

// Transposing is its own inverse.
RULE(transpose) { return ADD(y->src[0], ggml_transpose(s->ctx, g)); }

// The numbers of rows in all matrices of a together, as a vector. They are computed as floats, which are exact up to
// 2^24.
static struct ggml_tensor * flat_places(struct ggml_context * ctx, struct ggml_tensor * places, int64_t rows) {
    const int64_t k = places->ne[0], batches = places->ne[1] * places->ne[2];
    struct ggml_tensor * first = ggml_scale(ctx, ggml_arange(ctx, 0, (float) batches, 1), (float) rows);
    struct ggml_tensor * all = ggml_cast(ctx, gb_grad_contiguous(ctx, places), GGML_TYPE_F32);
    all = ggml_add(ctx, ggml_reshape_2d(ctx, all, k, batches), ggml_reshape_2d(ctx, first, 1, batches));
    return ggml_reshape_1d(ctx, ggml_cast(ctx, all, GGML_TYPE_I32), k * batches);
}

// Gradients of picked rows are added at their origin. A row that was picked twice gets the sum.
RULE(get_rows) {
    struct ggml_tensor *a = y->src[0], *places = y->src[1];
    const int64_t rows = ggml_nrows(a), batches = places->ne[1] * places->ne[2];
    if (batches == 1 || !gb_grad_wanted(s, a)) {
        return ADD(a, ggml_get_rows_back(s->ctx, g, places, a));
    }
    if (batches == 0 || a->ne[3] != places->ne[2] || rows > 1 << 24) {
        return gb_grad_underivable(s, y);
    }
    struct ggml_tensor shape = { .type = GGML_TYPE_F32, .ne = { a->ne[0], rows, 1, 1 } }; // only its shape is read
    struct ggml_tensor * flat = ggml_reshape_2d(s->ctx, g, a->ne[0], places->ne[0] * batches);
    struct ggml_tensor * back = ggml_get_rows_back(s->ctx, flat, flat_places(s->ctx, places, a->ne[1]), &shape);
    return back != NULL && gb_grad_add(s, a, ggml_reshape(s->ctx, back, a));
}

// y = a + rows of b: da = g. A row of b gets the sum of its uses.
RULE(add_id) {
    struct ggml_tensor *b = y->src[1], *ids = y->src[2];
    if (!ADD(y->src[0], g)) {
        return false;
    }
    if (!gb_grad_wanted(s, b)) {
        return true;
    }
    const int64_t n = g->ne[1] * g->ne[2];
    struct ggml_tensor * rows = ggml_reshape_2d(s->ctx, g, g->ne[0], n);
    struct ggml_tensor * places = gb_grad_contiguous(s->ctx, ids);
    places = places != NULL ? ggml_reshape_1d(s->ctx, places, n) : NULL;
    return rows != NULL && places != NULL && gb_grad_add(s, b, ggml_get_rows_back(s->ctx, rows, places, b));
}

// ------------------------------------------------------------------------------------------- products, rows, attention

RULE(mul_mat) { return gb_grad_of_product(s, y->src[0], y->src[1], g); }

RULE(rms_norm) { return ADD(y->src[0], ggml_rms_norm_back(s->ctx, y->src[0], g, gb_op_param_f32(y, 0))); }

// Masked elements contribute nothing.
RULE(diag_mask) { return ADD(y->src[0], ggml_diag_mask_zero(s->ctx, g, y->op_params[0])); }

// A sink takes the share 1 - sum(y) of a row, and all of y falls with it: dsink = -(1 - sum(y)) (g . y),
// summed over the rows of its head.
struct ggml_tensor * gb_grad_of_sinks(struct ggml_context * ctx, struct ggml_tensor * y, struct ggml_tensor * g,
    struct ggml_tensor * sinks) {
    struct ggml_tensor heads = { .type = GGML_TYPE_F32, .ne = { 1, 1, y->ne[2], 1 } }; // only its shape is read
    struct ggml_tensor * share = ggml_scale_bias(ctx, ggml_sum_rows(ctx, y), 1, -1);
    struct ggml_tensor * rows = ggml_mul(ctx, share, gb_grad_row_dot(ctx, g, y));
    rows = rows ? ggml_repeat_back(ctx, rows, &heads) : NULL;
    return rows ? ggml_reshape(ctx, rows, sinks) : NULL;
}

// The powers 2^(exponent k) of the odd or all k from 1 on, one for each head.
static struct ggml_tensor * powers_of_two(struct ggml_context * ctx, double exponent, int64_t n_heads, int step) {
    struct ggml_tensor * k = ggml_arange(ctx, 1, (float) (1 + step * n_heads), (float) step);
    struct ggml_tensor * powers = ggml_exp(ctx, ggml_scale(ctx, k, (float) (exponent * log(2))));
    return powers ? ggml_reshape_3d(ctx, powers, 1, 1, n_heads) : NULL;
}

// ALiBi's slopes [1, 1, heads] (Press et al. 2021, arXiv:2108.12409). Heads beyond the largest power of two have the
// odd powers of the finer base.
static struct ggml_tensor * alibi_slopes(struct ggml_context * ctx, int64_t n_heads, float max_bias) {
    int64_t floor = 1;
    while (floor <= n_heads / 2) {
        floor *= 2;
    }
    struct ggml_tensor * slopes = powers_of_two(ctx, -(double) max_bias / (double) floor, floor, 1);
    if (slopes == NULL || n_heads <= floor) { // one slope repeats over no heads, too
        return slopes;
    }
    struct ggml_tensor * rest = powers_of_two(ctx, -(double) max_bias / (2.0 * (double) floor), n_heads - floor, 2);
    return rest ? ggml_concat(ctx, slopes, rest) : NULL;
}

struct ggml_tensor * gb_grad_of_mask(struct ggml_context * ctx, struct ggml_tensor * logits, struct ggml_tensor * mask,
    float max_bias) {
    if (logits != NULL && max_bias > 0) {
        struct ggml_tensor * slopes = alibi_slopes(ctx, logits->ne[2], max_bias);
        logits = slopes ? ggml_mul(ctx, logits, slopes) : NULL;
    }
    if (logits == NULL || mask->ne[1] <= logits->ne[1]) {
        return gb_grad_unrepeated(ctx, logits, mask);
    }
    struct ggml_tensor read = { .type = GGML_TYPE_F32 }; // only its shape is read
    memcpy(read.ne, mask->ne, sizeof(read.ne));
    read.ne[1] = logits->ne[1];
    logits = gb_grad_unrepeated(ctx, logits, &read);
    return logits != NULL ? ggml_pad(ctx, logits, 0, (int) (mask->ne[1] - read.ne[1]), 0, 0) : NULL;
}

RULE(soft_max) { // of scale a + mask
    const float scale = gb_op_param_f32(y, 0);
    struct ggml_tensor *a = y->src[0], *mask = y->src[1], *sinks = y->src[2];
    if (!ADD(sinks, gb_grad_of_sinks(s->ctx, y, g, sinks))) {
        return false;
    }
    if (!gb_grad_wanted(s, a) && !gb_grad_wanted(s, mask)) {
        return true;
    }
    struct ggml_tensor * inner = ggml_soft_max_back(s->ctx, g, y);
    return ADD(a, scale == 1.0f ? inner : ggml_scale(s->ctx, inner, scale)) &&
           ADD(mask, gb_grad_of_mask(s->ctx, inner, mask, gb_op_param_f32(y, 1)));
}

// A rotation's derivative is the rotation back, with the same parameters. For modes of 2026 no
// builder takes all their parameters, so the node gets the parameters directly.
static struct ggml_tensor * rope_other_way(struct gb_sweep * s, const struct ggml_tensor * y, struct ggml_tensor * g) {
    const struct gb_rope * p = (const struct gb_rope *) (const void *) y->op_params;
    struct ggml_tensor * c = y->src[2];
    const int mode = p->mode & ~GGML_ROPE_EXACT, *sections = p->sections;
    const bool forward = y->op == GGML_OP_ROPE_BACK;
    struct ggml_tensor * node;
    if (gb_rope_has_sections(p->mode)) {
        node = (forward ? ggml_rope_multi : ggml_rope_multi_back)(s->ctx, g, y->src[1], c, p->n_dims, sections, mode,
            p->n_orig_ctx, p->freq_base, p->freq_scale, p->ext_factor, p->attn_factor, p->beta_fast, p->beta_slow);
    } else {
        node = (forward ? ggml_rope_ext : ggml_rope_ext_back)(s->ctx, g, y->src[1], c, p->n_dims, mode, p->n_orig_ctx,
            p->freq_base, p->freq_scale, p->ext_factor, p->attn_factor, p->beta_fast, p->beta_slow);
    }
    return node != NULL ? ggml_rope_set_offset(node, p->n_offs) : NULL;
}

// True if the node has parameters that only ggml's functions of 2026 make.
static bool has_parameters_of_2026(const struct ggml_tensor * y, const struct gb_rope * p) {
    return gb_rope_has_sections(p->mode) || y->src[2] != NULL || ((p->mode & GGML_ROPE_EXACT) != 0 && p->n_offs != 0);
}

RULE(rope) {
    struct gb_rope p;
    memcpy(&p, y->op_params, sizeof(p));
    if (has_parameters_of_2026(y, &p)) {
        return ADD(y->src[0], rope_other_way(s, y, g));
    }
    return ADD(y->src[0],
        ggml_rope_back(s->ctx, g, y->src[1], p.n_dims, p.mode, p.n_ctx, p.n_orig_ctx, p.freq_base, p.freq_scale,
            p.ext_factor, p.attn_factor, p.beta_fast, p.beta_slow, p.xpos_base, p.xpos_down));
}

RULE(rope_back) {
    struct gb_rope p;
    memcpy(&p, y->op_params, sizeof(p));
    if (has_parameters_of_2026(y, &p)) {
        return ADD(y->src[0], rope_other_way(s, y, g));
    }
    if (p.xpos_base != 0.0f) { // no builder rotates forward with these parameters out of place
        return gb_grad_underivable(s, y);
    }
    return ADD(y->src[0], ggml_rope_custom(s->ctx, g, y->src[1], p.n_dims, p.mode, p.n_ctx, p.n_orig_ctx, p.freq_base,
                              p.freq_scale, p.ext_factor, p.attn_factor, p.beta_fast, p.beta_slow));
}

// The part of FLASH_ATTN_BACK's result at `offset`, with the shape of t. Moves the offset past it.
static struct ggml_tensor * attention_part(struct ggml_context * ctx, struct ggml_tensor * parts,
    const struct ggml_tensor * t, size_t * offset) {
    const size_t nb1 = (size_t) t->ne[0] * sizeof(float), nb2 = nb1 * (size_t) t->ne[1], nb3 = nb2 * (size_t) t->ne[2];
    const size_t at = *offset;
    *offset += GGML_PAD(nb3 * (size_t) t->ne[3], (size_t) GGML_MEM_ALIGN);
    return ggml_view_4d(ctx, parts, t->ne[0], t->ne[1], t->ne[2], t->ne[3], nb1, nb2, nb3, at);
}

// One operator computes the gradients of q, k and v together.
RULE(attention) {
    struct ggml_tensor * parts = ggml_flash_attn_back(s->ctx, y->src[0], y->src[1], y->src[2], g, y->op_params[0] != 0);
    size_t at = 0;
    for (int i = 0; i < 3; i++) {
        struct ggml_tensor * part = parts ? attention_part(s->ctx, parts, y->src[i], &at) : NULL;
        if (part == NULL || !ADD(y->src[i], part)) {
            return false;
        }
    }
    return true;
}

// Uses the eps of the loss. If the loss has none, uses the form of early 2024.
RULE(loss) {
    float eps;
    memcpy(&eps, y->op_params + 1, sizeof(eps));
    return ADD(y->src[0], y->op_params[0] != 0 ? ggml_cross_entropy_loss_eps_back(s->ctx, y->src[0], y->src[1], g, eps)
                                               : ggml_cross_entropy_loss_back(s->ctx, y->src[0], y->src[1], g));
}

// ------------------------------------------------------------------------------------------- gradients of gradients
// The nodes of these rules are gradients themselves. h is the gradient of such a node, g the first one.

// y = g silu'(x): dg = h silu'(x), dx = h g silu''(x). With s = sigmoid(x), silu'' is
// (s - s^2) (2 + x (1 - 2 s)).
bool gb_derive_silu_back(struct gb_sweep * s, struct ggml_tensor * y, struct ggml_tensor * h) {
    struct ggml_context * ctx = s->ctx;
    struct ggml_tensor *x = y->src[0], *g = y->src[1];
    if (!gb_grad_wanted(s, x)) {
        return ADD(g, ggml_silu_back(ctx, x, h));
    }
    struct ggml_tensor * sigmoid = ggml_sigmoid(ctx, x);
    struct ggml_tensor * slope = ggml_sub(ctx, sigmoid, ggml_sqr(ctx, sigmoid));
    struct ggml_tensor * inner = ggml_mul(ctx, x, ggml_scale_bias(ctx, sigmoid, -2.0f, 1.0f));
    struct ggml_tensor * second = ggml_mul(ctx, slope, ggml_scale_bias(ctx, inner, 1.0f, 2.0f));
    return ADD(g, ggml_silu_back(ctx, x, h)) && ADD(x, ggml_mul(ctx, ggml_mul(ctx, h, g), second));
}

// y = p (g - sum(g p)) of each row. It is symmetric in g and h, so dg has the same form.
// dp = h (g - sum(g p)) - g sum(h p).
bool gb_derive_soft_max_back(struct gb_sweep * s, struct ggml_tensor * y, struct ggml_tensor * h) {
    struct ggml_context * ctx = s->ctx;
    struct ggml_tensor *g = y->src[0], *p = y->src[1];
    if (!ADD(g, ggml_soft_max_back(ctx, h, p))) {
        return false;
    }
    if (!gb_grad_wanted(s, p)) {
        return true;
    }
    struct ggml_tensor * first = ggml_mul(ctx, h, ggml_sub(ctx, g, gb_grad_row_dot(ctx, g, p)));
    return ADD(p, ggml_sub(ctx, first, ggml_mul(ctx, g, gb_grad_row_dot(ctx, h, p))));
}

// y = r g - r^3 x (g . x) / n of each row, with m = mean(x^2) + eps and r = 1 / sqrt(m). It is symmetric in
// g and h, so dg has the same form.
// dx = x (3 (h . x) (g . x) r^5 / n - (h . g) r^3) / n - (h (g . x) + g (h . x)) r^3 / n.
bool gb_derive_rms_norm_back(struct gb_sweep * s, struct ggml_tensor * y, struct ggml_tensor * h) {
    struct ggml_context * ctx = s->ctx;
    struct ggml_tensor *x = y->src[0], *g = y->src[1];
    const float eps = gb_op_param_f32(y, 0), n = (float) x->ne[0];
    if (!ADD(g, ggml_rms_norm_back(ctx, x, h, eps))) {
        return false;
    }
    if (!gb_grad_wanted(s, x) || x->ne[0] == 0) {
        return true;
    }
    struct ggml_tensor * m = ggml_scale_bias(ctx, gb_grad_row_dot(ctx, x, x), 1.0f / n, eps);
    struct ggml_tensor * cube = ggml_scale(ctx, ggml_mul(ctx, m, ggml_sqrt(ctx, m)), n); // n / r^3
    struct ggml_tensor * hg = ggml_div(ctx, gb_grad_row_dot(ctx, h, g), cube);
    struct ggml_tensor * hx = ggml_div(ctx, gb_grad_row_dot(ctx, h, x), cube);
    struct ggml_tensor * gx = gb_grad_row_dot(ctx, g, x);
    struct ggml_tensor * of_x = ggml_sub(ctx, ggml_scale(ctx, ggml_div(ctx, ggml_mul(ctx, hx, gx), m), 3.0f / n), hg);
    struct ggml_tensor * rest = ggml_add(ctx, ggml_mul(ctx, h, ggml_div(ctx, gx, cube)), ggml_mul(ctx, g, hx));
    return ADD(x, ggml_sub(ctx, ggml_mul(ctx, x, of_x), rest));
}

// y = a b^T of each slice: da = h b, db = h^T a. Slices of a that OUT_PROD repeats get the sum.
bool gb_derive_out_prod(struct gb_sweep * s, struct ggml_tensor * y, struct ggml_tensor * h) {
    struct ggml_context * ctx = s->ctx;
    struct ggml_tensor *a = y->src[0], *b = y->src[1];
    return ADD(a, gb_grad_unbroadcast(ctx, ggml_out_prod(ctx, h, ggml_transpose(ctx, b)), a)) &&
           ADD(b, ggml_transpose(ctx, ggml_mul_mat(ctx, gb_grad_contiguous(ctx, a), h)));
}

// The rows that were added up at one place all get its gradient.
bool gb_derive_get_rows_back(struct gb_sweep * s, struct ggml_tensor * y, struct ggml_tensor * h) {
    return ADD(y->src[0], ggml_get_rows(s->ctx, h, y->src[1]));
}

// y = (p - b) c / rows, where c is the gradient of the loss and p = softmax(a) (1 - e) + e. With eps 0,
// y = (softmax(a) sum(b) - b) c / rows. Any other eps has no second derivative here.
bool gb_derive_loss_back(struct gb_sweep * s, struct ggml_tensor * y, struct ggml_tensor * h) {
    struct ggml_context * ctx = s->ctx;
    struct ggml_tensor *a = y->src[0], *b = y->src[1], *c = y->src[2];
    const bool is_given = y->op_params[0] != 0;
    if (gb_grad_wanted(s, b) || (is_given && gb_op_param_f32(y, 1) != 0.0f)) {
        return gb_grad_underivable(s, y);
    }
    const float e = is_given ? 0.0f : 1e-9f, rows = (float) ggml_nrows(a);
    struct ggml_tensor * p = ggml_soft_max(ctx, a);
    struct ggml_tensor * weighted = is_given ? ggml_mul(ctx, h, ggml_sum_rows(ctx, gb_grad_contiguous(ctx, b))) : h;
    struct ggml_tensor * of_a = ggml_soft_max_back(ctx, ggml_mul(ctx, weighted, c), p);
    struct ggml_tensor * without_c = ggml_sub(ctx, ggml_scale_bias(ctx, ggml_mul(ctx, weighted, p), 1.0f - e, 0.0f),
        ggml_mul(ctx, h, e == 0.0f ? b : ggml_scale_bias(ctx, b, 1.0f, -e)));
    return ADD(a, ggml_scale(ctx, of_a, (1.0f - e) / rows)) &&
           ADD(c, ggml_scale(ctx, ggml_sum(ctx, without_c), 1.0f / rows));
}

// --------------------------------------------------------------------------------------------------------------- table

static const rule rules[GGML_OP_COUNT] = {
#define GB_OP(id, stem, sources, work, cost, inplace, unit, derivative, symbol) [GGML_OP_##id] = gb_derive_##derivative,
#include "tensor/ops.def"
};

// An invalid operator has no derivative.
// A builder that a rule calls names its own operands, so its message gets the node.
bool gb_derive(struct gb_sweep * sweep, struct ggml_tensor * node, struct ggml_tensor * grad) {
    const rule derive = (unsigned) node->op < GGML_OP_COUNT ? rules[node->op] : gb_derive_none;
    const bool ok = derive(sweep, node, grad);
    if (!ok && ggml_last_status() == GGML_STATUS_INVALID_ARGUMENT) {
        char text[640], message[GB_ERROR_SIZE];
        snprintf(message, sizeof(message), "%s", gb_last_message());
        gb_fail(GGML_STATUS_INVALID_ARGUMENT, "%s: the gradient of %s cannot be built: %s", sweep->func,
            gb_describe_node(node, text, sizeof(text)), message);
    }
    return ok;
}
