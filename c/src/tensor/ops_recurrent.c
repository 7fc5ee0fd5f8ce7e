// ops_recurrent.c - recurrent layers: SSM_CONV, SSM_SCAN, RWKV_WKV6, RWKV_WKV7, GATED_LINEAR_ATTN, GATED_DELTA_NET.
//
// All but SSM_CONV return the outputs and then the states in one tensor, and have no derivative.
#include "tensor/ops.h"
#include "tensor/rule.h"

enum { SOURCES_MAX = 7 };

// For operators with more sources than gb_op_sources takes. ndim: of the result
static struct ggml_tensor * with_sources(struct ggml_context * ctx, struct ggml_tensor * node, int ndim,
    const struct gb_call * c) {
    gb_op_set_ndim(node, ndim);
    if (gb_op_sources(ctx, node, GB_GRAD_NONE, NULL, NULL, NULL) != NULL) {
        for (int i = 0; i < c->n; i++) {
            node->src[i] = (struct ggml_tensor *) c->list[i].t;
        }
    }
    return node;
}

// The first n sources are F32.
static bool rule_f32(const struct gb_call * c, int n) {
    for (int i = 0; i < n; i++) {
        if (!gb_rule_type(c, i, GGML_TYPE_F32)) {
            return false;
        }
    }
    return true;
}

// All sources exist and have no gradient, and the first n are F32.
static bool rule_sources(const struct gb_call * c, int n) {
    return gb_rule_given(c) && gb_rule_no_grad(c) && rule_f32(c, n);
}

static bool rule_dims(const struct gb_call * c, int i, struct gb_shape s) {
    return gb_rule_size(c, i, 0, s.ne[0]) && gb_rule_size(c, i, 1, s.ne[1]) && gb_rule_size(c, i, 2, s.ne[2]) &&
           gb_rule_size(c, i, 3, s.ne[3]);
}

static struct gb_shape shape_flat(int64_t n) { return gb_shape_of(n, 1, 1, 1); }

// ------------------------------------------------------------------------------------------------------------ SSM_CONV

static bool check_ssm_conv(const char * func, gb_ct sx, gb_ct c) {
    const struct gb_call call = GB_CALL(func, GB_OPERAND(sx), GB_OPERAND(c));
    return gb_rule_given(&call) && rule_f32(&call, 2) && gb_rule_max_dims(&call, 0, 3) &&
           gb_rule_max_dims(&call, 1, 2) && gb_rule_equal(&call, 0, 1, 1, 1) &&
           gb_rule_size_in_range(&call, 1, 0, 1, INT32_MAX) &&
           gb_rule_size_in_range(&call, 0, 0, c->ne[0] - 1, INT64_MAX);
}

static struct gb_shape shape_ssm_conv(gb_ct sx, gb_ct c) {
    return gb_shape_of(sx->ne[1], sx->ne[0] - c->ne[0] + 1, sx->ne[2], 1);
}

struct ggml_tensor * ggml_ssm_conv(struct ggml_context * ctx, struct ggml_tensor * sx, struct ggml_tensor * c) {
    if (!check_ssm_conv(__func__, sx, c)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_new(ctx, __func__, GGML_OP_SSM_CONV, GGML_TYPE_F32, shape_ssm_conv(sx, c));
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, sx, c, NULL);
}

// ------------------------------------------------------------------------------------------------------------ SSM_SCAN

// s [N, P, H, R], x [P, H, T, S], dt [H, T, S], A [1 or N, H], B and C [N, G, T, S], ids [S]
static bool rule_ssm_scan(const struct gb_call * c, int64_t k) {
    gb_ct s = c->list[0].t, x = c->list[1].t, A = c->list[3].t, B = c->list[4].t;
    const int64_t heads = x->ne[1], groups = B->ne[1];
    if (!gb_rule_type(c, 6, GGML_TYPE_I32) || !gb_rule_equal(c, 1, 0, 0, 1) || !gb_rule_equal(c, 1, 1, 0, 2) ||
        !rule_dims(c, 2, gb_shape_of(heads, x->ne[2], x->ne[3], 1)) || !gb_rule_max_dims(c, 3, 2) ||
        !gb_rule_equal(c, 3, 1, 1, 1) || !rule_dims(c, 4, gb_shape_of(s->ne[0], groups, x->ne[2], x->ne[3])) ||
        !gb_rule_same_shape(c, 5, 4) || !rule_dims(c, 6, gb_shape_of(x->ne[3], 1, 1, 1))) {
        return false;
    }
    if (A->ne[0] != 1 && A->ne[0] != s->ne[0]) {
        return GB_BROKEN(c, NEITHER_ONE_NOR, .a = "A", .number = { s->ne[0], A->ne[0] });
    }
    if (groups < 1 || heads % groups != 0) {
        return GB_BROKEN(c, GROUPS_OF_HEADS, .a = "B", .a_dim = 1, .number = { groups, heads });
    }
    return gb_rule_in_range(c, "n_states", k, 1, INT32_MAX);
}

static struct gb_shape shape_ssm_scan(gb_ct s, gb_ct x, int64_t k) {
    const int64_t state = gb_size_product(gb_size_product(s->ne[0], s->ne[1]), gb_size_product(s->ne[2], x->ne[3]));
    return shape_flat(gb_size_sum(ggml_nelements(x), gb_size_product(k, state)));
}

#define SSM_SCAN_CALL(func)                                                                                  \
    GB_CALL(func, GB_OPERAND(s), GB_OPERAND(x), GB_OPERAND(dt), GB_OPERAND(A), GB_OPERAND(B), GB_OPERAND(C), \
        GB_OPERAND(ids))

struct ggml_tensor * ggml_ssm_scan(struct ggml_context * ctx, struct ggml_tensor * s, struct ggml_tensor * x,
    struct ggml_tensor * dt, struct ggml_tensor * A, struct ggml_tensor * B, struct ggml_tensor * C,
    struct ggml_tensor * ids, int64_t n_states) {
    const struct gb_call call = SSM_SCAN_CALL(__func__);
    if (!rule_sources(&call, 6) || !rule_ssm_scan(&call, n_states)) {
        return NULL;
    }
    struct ggml_tensor * node =
        gb_op_new(ctx, __func__, GGML_OP_SSM_SCAN, GGML_TYPE_F32, shape_ssm_scan(s, x, n_states));
    const int32_t params = (int32_t) n_states;
    gb_op_set_params(node, &params, sizeof(params));
    return with_sources(ctx, node, 1, &call);
}

// ----------------------------------------------------------------------------- RWKV_WKV6, RWKV_WKV7, GATED_LINEAR_ATTN

// Inputs [S, H, T] have all sequences one after the other. The state is [S S H, sequences]. The
// first `n` sources are inputs, the last one is the state.
static bool rule_heads(const struct gb_call * c, int n) {
    gb_ct k = c->list[0].t, state = c->list[c->n - 1].t;
    const int64_t sequences = state->ne[1];
    for (int i = 0; i < n; i++) {
        if (!rule_dims(c, i, gb_shape_of(k->ne[0], k->ne[1], k->ne[2], 1)) || !gb_rule_contiguous(c, i)) {
            return false;
        }
    }
    if (!rule_dims(c, c->n - 1,
            gb_shape_of(gb_size_product(gb_size_product(k->ne[0], k->ne[0]), k->ne[1]), sequences, 1, 1)) ||
        !gb_rule_contiguous(c, c->n - 1)) {
        return false;
    }
    return (sequences > 0 && k->ne[2] % sequences == 0) ||
           GB_BROKEN(c, SEQUENCES, .a = "state", .number = { sequences, k->ne[2] });
}

// A row for each token, then the rows of the states.
static struct gb_shape shape_heads(gb_ct k, gb_ct state) {
    return gb_shape_of(gb_size_product(k->ne[0], k->ne[1]),
        gb_size_sum(k->ne[2], gb_size_product(k->ne[0], state->ne[1])), 1, 1);
}

// tf has one row for each head, for all tokens.
static bool rule_wkv6(const struct gb_call * c) {
    gb_ct k = c->list[0].t, v = c->list[1].t, r = c->list[2].t, td = c->list[4].t;
    const struct gb_call inputs = GB_CALL(c->func, { "k", k }, { "v", v }, { "r", r }, { "td", td }, c->list[5]);
    return rule_heads(&inputs, 4) && rule_dims(c, 3, gb_shape_of(k->ne[0], k->ne[1], 1, 1)) && gb_rule_contiguous(c, 3);
}

struct ggml_tensor * ggml_rwkv_wkv6(struct ggml_context * ctx, struct ggml_tensor * k, struct ggml_tensor * v,
    struct ggml_tensor * r, struct ggml_tensor * tf, struct ggml_tensor * td, struct ggml_tensor * state) {
    const struct gb_call call = GB_CALL(__func__, GB_OPERAND(k), GB_OPERAND(v), GB_OPERAND(r), GB_OPERAND(tf),
        GB_OPERAND(td), GB_OPERAND(state));
    if (!rule_sources(&call, 6) || !rule_wkv6(&call)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_new(ctx, __func__, GGML_OP_RWKV_WKV6, GGML_TYPE_F32, shape_heads(k, state));
    return with_sources(ctx, node, 2, &call);
}

struct ggml_tensor * ggml_rwkv_wkv7(struct ggml_context * ctx, struct ggml_tensor * r, struct ggml_tensor * w,
    struct ggml_tensor * k, struct ggml_tensor * v, struct ggml_tensor * a, struct ggml_tensor * b,
    struct ggml_tensor * state) {
    const struct gb_call call = GB_CALL(__func__, GB_OPERAND(r), GB_OPERAND(w), GB_OPERAND(k), GB_OPERAND(v),
        GB_OPERAND(a), GB_OPERAND(b), GB_OPERAND(state));
    if (!rule_sources(&call, 7) || !rule_heads(&call, 6)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_new(ctx, __func__, GGML_OP_RWKV_WKV7, GGML_TYPE_F32, shape_heads(k, state));
    return with_sources(ctx, node, 2, &call);
}

// op_params[0] is the scale of the outputs.
struct ggml_tensor * ggml_gated_linear_attn(struct ggml_context * ctx, struct ggml_tensor * k, struct ggml_tensor * v,
    struct ggml_tensor * q, struct ggml_tensor * g, struct ggml_tensor * state, float scale) {
    const struct gb_call call =
        GB_CALL(__func__, GB_OPERAND(k), GB_OPERAND(v), GB_OPERAND(q), GB_OPERAND(g), GB_OPERAND(state));
    if (!rule_sources(&call, 5) || !rule_heads(&call, 4)) {
        return NULL;
    }
    struct ggml_tensor * node =
        gb_op_new(ctx, __func__, GGML_OP_GATED_LINEAR_ATTN, GGML_TYPE_F32, shape_heads(k, state));
    gb_op_set_param_f32(node, 0, scale);
    return with_sources(ctx, node, 2, &call);
}

// ----------------------------------------------------------------------------------------------------- GATED_DELTA_NET

// q, k [S, Hk, T, B'], v [S, H, T, B], g [1 or S, H, T, B], beta [1, H, T, B], state [S, S, H, B]
static bool rule_delta_net(const struct gb_call * c, int64_t n_states) {
    gb_ct v = c->list[2].t, g = c->list[3].t;
    const int64_t size = v->ne[0], heads = v->ne[1], tokens = v->ne[2], sequences = v->ne[3];
    if (!gb_rule_same_shape(c, 1, 0) || !gb_rule_equal(c, 0, 0, 2, 0) || !gb_rule_equal(c, 0, 2, 2, 2) ||
        !gb_rule_divides(c, 0, 2, 1) || !gb_rule_divides(c, 0, 2, 3)) {
        return false;
    }
    if (g->ne[0] != 1 && g->ne[0] != size) {
        return GB_BROKEN(c, NEITHER_ONE_NOR, .a = "g", .number = { size, g->ne[0] });
    }
    return rule_dims(c, 3, gb_shape_of(g->ne[0], heads, tokens, sequences)) &&
           rule_dims(c, 4, gb_shape_of(1, heads, tokens, sequences)) &&
           rule_dims(c, 5, gb_shape_of(size, size, heads, sequences)) && gb_rule_contiguous(c, 3) &&
           gb_rule_contiguous(c, 4) && gb_rule_contiguous(c, 5) &&
           gb_rule_in_range(c, "n_states", n_states, 1, INT32_MAX);
}

// A row for each token, then the rows of the states.
static struct gb_shape shape_delta_net(gb_ct v, int64_t n_states) {
    const int64_t rows = gb_size_product(gb_size_product(n_states, v->ne[0]), v->ne[3]);
    return gb_shape_of(gb_size_product(v->ne[0], v->ne[1]), gb_size_sum(gb_size_product(v->ne[2], v->ne[3]), rows), 1,
        1);
}

struct ggml_tensor * ggml_gated_delta_net(struct ggml_context * ctx, struct ggml_tensor * q, struct ggml_tensor * k,
    struct ggml_tensor * v, struct ggml_tensor * g, struct ggml_tensor * beta, struct ggml_tensor * state,
    int64_t n_states) {
    const struct gb_call call = GB_CALL(__func__, GB_OPERAND(q), GB_OPERAND(k), GB_OPERAND(v), GB_OPERAND(g),
        GB_OPERAND(beta), GB_OPERAND(state));
    if (!rule_sources(&call, 6) || !rule_delta_net(&call, n_states)) {
        return NULL;
    }
    struct ggml_tensor * node =
        gb_op_new(ctx, __func__, GGML_OP_GATED_DELTA_NET, GGML_TYPE_F32, shape_delta_net(v, n_states));
    const int32_t params = (int32_t) n_states;
    gb_op_set_params(node, &params, sizeof(params));
    return with_sources(ctx, node, 2, &call);
}

// ----------------------------------------------------------------------------------------------- checks of built nodes

bool gb_built_ssm_conv(gb_ct t) {
    return check_ssm_conv(NULL, t->src[0], t->src[1]) && gb_is_shape(t, shape_ssm_conv(t->src[0], t->src[1]));
}

bool gb_built_ssm_scan(gb_ct t) {
    gb_ct s = t->src[0], x = t->src[1], dt = t->src[2], A = t->src[3], B = t->src[4], C = t->src[5], ids = t->src[6];
    const struct gb_call call = SSM_SCAN_CALL(NULL);
    return rule_sources(&call, 6) && rule_ssm_scan(&call, t->op_params[0]) &&
           gb_is_shape(t, shape_ssm_scan(s, x, t->op_params[0]));
}

// The first sources of a node as a call with n operands.
#define SOURCES_OF(t)       \
    {                       \
        { "a", t->src[0] }, \
        { "b", t->src[1] }, \
        { "c", t->src[2] }, \
        { "d", t->src[3] }, \
        { "e", t->src[4] }, \
        { "f", t->src[5] }, \
        { "g", t->src[6] }, \
    }

bool gb_built_rwkv_wkv6(gb_ct t) {
    const struct gb_operand list[SOURCES_MAX] = SOURCES_OF(t);
    const struct gb_call call = { NULL, 6, list };
    return rule_sources(&call, 6) && rule_wkv6(&call) && gb_is_shape(t, shape_heads(t->src[0], t->src[5]));
}

bool gb_built_rwkv_wkv7(gb_ct t) {
    const struct gb_operand list[SOURCES_MAX] = SOURCES_OF(t);
    const struct gb_call call = { NULL, 7, list };
    return rule_sources(&call, 7) && rule_heads(&call, 6) && gb_is_shape(t, shape_heads(t->src[0], t->src[6]));
}

bool gb_built_gated_linear_attn(gb_ct t) {
    const struct gb_operand list[SOURCES_MAX] = SOURCES_OF(t);
    const struct gb_call call = { NULL, 5, list };
    return rule_sources(&call, 5) && rule_heads(&call, 4) && gb_is_shape(t, shape_heads(t->src[0], t->src[4]));
}

bool gb_built_gated_delta_net(gb_ct t) {
    const struct gb_operand list[SOURCES_MAX] = SOURCES_OF(t);
    const struct gb_call call = { NULL, 6, list };
    return rule_sources(&call, 6) && rule_delta_net(&call, t->op_params[0]) &&
           gb_is_shape(t, shape_delta_net(t->src[2], t->op_params[0]));
}
