// gradients.c - the gradients that a sweep adds up (derivatives.h), and the algebra that rules share
// (derivatives_rules.h).
#include "tensor/derivatives_rules.h"

// ------------------------------------------------------------------------------------------------------------ the sums

struct gb_grad_entry * gb_sweep_entry(const struct gb_sweep * sweep, const struct ggml_tensor * tensor) {
    const int64_t i = tensor ? gb_ptrmap_get(&sweep->ids, tensor) : GB_PTRMAP_ABSENT;
    return i == GB_PTRMAP_ABSENT ? NULL : &sweep->entries.data[i];
}

bool gb_grad_wanted(const struct gb_sweep * sweep, const struct ggml_tensor * tensor) {
    return gb_sweep_entry(sweep, tensor) != NULL;
}

bool gb_sweep_add(struct gb_sweep * sweep, struct gb_grad_entry entry) {
    return gb_vec_push(&sweep->entries, entry) &&
           gb_ptrmap_set(&sweep->ids, entry.tensor, (int64_t) sweep->entries.n - 1);
}

struct ggml_tensor * gb_grad_zeros(struct ggml_context * ctx, struct ggml_tensor * like) {
    struct ggml_tensor * zero = ggml_arange(ctx, 0.0f, 1.0f, 1.0f);
    return zero ? ggml_repeat(ctx, zero, like) : NULL;
}

// Makes `sum` the current gradient, contiguous as rules expect. False: `sum` is NULL or could not
// be copied (reported).
static bool set_current(struct gb_sweep * sweep, struct ggml_tensor * tensor, struct ggml_tensor * sum) {
    struct gb_grad_entry * entry = gb_sweep_entry(sweep, tensor);
    if (sum != NULL && !ggml_is_contiguous(sum)) {
        sum = ggml_cont(sweep->ctx, sum);
    }
    if (sum == NULL) {
        return false;
    }
    entry->current = sum;
    entry->is_zero = false;
    return true;
}

// NULL passes through.
static struct ggml_tensor * converted(const struct gb_sweep * sweep, struct ggml_tensor * expr) {
    const bool is_wide = expr == NULL || !sweep->in_f32 || expr->type == GGML_TYPE_F32;
    return is_wide ? expr : ggml_cast(sweep->ctx, expr, GGML_TYPE_F32);
}

// The first contribution replaces a zero, so the graph has no additions to zeros.
bool gb_grad_add(struct gb_sweep * sweep, struct ggml_tensor * tensor, struct ggml_tensor * expr) {
    expr = converted(sweep, expr);
    if (expr == NULL) {
        return false;
    }
    char of[GB_DESCRIBE_SIZE], is[GB_DESCRIBE_SIZE];
    GB_FAIL_IF_RETURNING(!ggml_are_same_shape(tensor, expr), false, GGML_STATUS_UNSUPPORTED,
        "%s: the gradient of %s came out as %s", sweep->func, gb_describe(tensor, of), gb_describe(expr, is));
    const struct gb_grad_entry * entry = gb_sweep_entry(sweep, tensor);
    return set_current(sweep, tensor, entry->is_zero ? expr : ggml_add(sweep->ctx, entry->current, expr));
}

// The first contribution is added to zeros: the initial gradient times 0, or a new tensor if there is none.
bool gb_grad_add_region(struct gb_sweep * sweep, struct ggml_tensor * tensor, struct ggml_tensor * expr,
    const size_t nb[4], size_t offset) {
    const struct gb_grad_entry * entry = gb_sweep_entry(sweep, tensor);
    struct ggml_tensor * base = entry->current;
    expr = converted(sweep, expr);
    if (base == NULL) {
        base = gb_grad_zeros(sweep->ctx, tensor);
    } else if (entry->is_zero) {
        base = ggml_scale(sweep->ctx, base, 0.0f);
    }
    return set_current(sweep, tensor,
        base && expr ? ggml_acc(sweep->ctx, base, expr, nb[1], nb[2], nb[3], offset) : NULL);
}

bool gb_sweep_has_source(const struct gb_sweep * sweep, const struct ggml_tensor * node) {
    for (int k = 0; k < GGML_MAX_SRC; k++) {
        if (node->src[k] != node && gb_grad_wanted(sweep, node->src[k])) {
            return true;
        }
    }
    return false;
}

void gb_sweep_free(struct gb_sweep * sweep) {
    gb_vec_free(&sweep->entries);
    gb_ptrmap_free(&sweep->ids);
}

// ------------------------------------------------------------------------------------------------------- for the rules

struct ggml_tensor * gb_grad_contiguous(struct ggml_context * ctx, struct ggml_tensor * t) {
    return t == NULL || ggml_is_contiguous(t) ? t : ggml_cont(ctx, t);
}

struct ggml_tensor * gb_grad_unrepeated(struct ggml_context * ctx, struct ggml_tensor * expr,
    struct ggml_tensor * like) {
    return expr == NULL || ggml_are_same_shape(expr, like) ? expr : ggml_repeat_back(ctx, expr, like);
}

// [n, r, m, k] -> [n, 1, m, k]. REPEAT_BACK reads only the shape of its second operand, so a local
// struct suffices.
static struct ggml_tensor * sum_over_dim1(struct ggml_context * ctx, struct ggml_tensor * t, int64_t n, int64_t r,
    int64_t m, int64_t k) {
    struct ggml_tensor shape = { .type = GGML_TYPE_F32, .ne = { n, 1, m, k } };
    t = ggml_reshape_4d(ctx, t, n, r, m, k);
    return t ? ggml_repeat_back(ctx, t, &shape) : NULL;
}

// MUL_MAT broadcasts a over b in groups: it multiplies slice i2 of b with slice i2 / r2 of a. The
// gradient has b's slices and is summed over these groups.
struct ggml_tensor * gb_grad_unbroadcast(struct ggml_context * ctx, struct ggml_tensor * t, struct ggml_tensor * a) {
    if (t == NULL || ggml_are_same_shape(t, a)) {
        return t;
    }
    const int64_t n = a->ne[0] * a->ne[1], r2 = t->ne[2] / a->ne[2], r3 = t->ne[3] / a->ne[3], b3 = t->ne[3];
    t = sum_over_dim1(ctx, t, n, r2, a->ne[2], b3);
    t = t ? sum_over_dim1(ctx, t, n * a->ne[2], r3, a->ne[3], 1) : NULL;
    return t ? ggml_reshape(ctx, t, a) : NULL;
}

struct ggml_tensor * gb_grad_row_dot(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b) {
    return ggml_sum_rows(ctx, gb_grad_contiguous(ctx, ggml_mul(ctx, a, b)));
}

// Both gradients are outer products. The first is of b with g, summed over a's broadcast slices.
// The second is of a with g transposed.
bool gb_grad_of_product(struct gb_sweep * s, struct ggml_tensor * a, struct ggml_tensor * b, struct ggml_tensor * g) {
    return ADD(a, gb_grad_unbroadcast(s->ctx,
                      ggml_out_prod(s->ctx, ggml_is_transposed(b) ? ggml_cont(s->ctx, b) : b, g), a)) &&
           ADD(b, ggml_out_prod(s->ctx, a, ggml_transpose(s->ctx, g)));
}

bool gb_grad_underivable(const struct gb_sweep * s, const struct ggml_tensor * y) {
    char text[640];
    gb_fail(GGML_STATUS_UNSUPPORTED, "%s: %s: the operator has no derivative", s->func,
        gb_describe_node(y, text, sizeof(text)));
    return false;
}
