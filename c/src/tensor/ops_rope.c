// ops_rope.c - rotary position embedding. A node stores struct gb_rope (check.h) as its parameters.
// The assertion below fixes the layout that kernels and files rely on.
#include <math.h>
#include <stddef.h>

#include "tensor/ops.h"
#include "tensor/rule.h"

_Static_assert(offsetof(struct gb_rope, n_dims) == 1 * sizeof(int32_t) &&
                   offsetof(struct gb_rope, freq_base) == 5 * sizeof(int32_t) &&
                   offsetof(struct gb_rope, xpos_down) == 12 * sizeof(int32_t) &&
                   offsetof(struct gb_rope, sections) == 11 * sizeof(int32_t) &&
                   offsetof(struct gb_rope, n_offs) == 15 * sizeof(int32_t) &&
                   sizeof(struct gb_rope) <= GGML_MAX_OP_PARAMS,
    "gb_rope is the layout of op_params");

static const float freq_base_default = 10000.0f;

// Does not copy the padding after xpos_down, which may hold anything, because op_params are
// compared and hashed as bytes.
static void set_params(struct ggml_tensor * node, const struct gb_rope * params) {
    const bool has_sections = gb_rope_has_sections(params->mode);
    gb_op_set_params(node, params,
        has_sections ? sizeof(*params) : offsetof(struct gb_rope, xpos_down) + sizeof(params->xpos_down));
}

// c: factors of the frequencies, or NULL.
static struct ggml_tensor * rope(struct ggml_context * ctx, const char * func, struct ggml_tensor * a,
    struct ggml_tensor * b, struct ggml_tensor * c, const struct gb_rope * params, bool inplace) {
    if (!gb_check_rope(func, a, b, c, params)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_like(ctx, func, GGML_OP_ROPE, a, inplace);
    set_params(node, params);
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, b, c);
}

static struct ggml_tensor * rope_back(struct ggml_context * ctx, const char * func, struct ggml_tensor * a,
    struct ggml_tensor * b, struct ggml_tensor * c, const struct gb_rope * params) {
    if (!gb_check_rope_back(func, a, b, c, params)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_like(ctx, func, GGML_OP_ROPE_BACK, a, false);
    set_params(node, params);
    return gb_op_sources(ctx, node, GB_GRAD_NONE, a, b, c);
}

// Parameters without scaling of frequencies or positions.
static struct gb_rope plain_rope(int n_dims, int mode, int n_ctx) {
    struct gb_rope params = { 0 };
    params.n_dims = n_dims;
    params.mode = mode;
    params.n_ctx = n_ctx;
    params.freq_base = freq_base_default;
    params.freq_scale = 1.0f;
    params.attn_factor = 1.0f;
    return params;
}

struct ggml_tensor * ggml_rope(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b, int n_dims,
    int mode, int n_ctx) {
    const struct gb_rope params = plain_rope(n_dims, mode, n_ctx);
    return rope(ctx, __func__, a, b, NULL, &params, false);
}

struct ggml_tensor * ggml_rope_inplace(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    int n_dims, int mode, int n_ctx) {
    const struct gb_rope params = plain_rope(n_dims, mode, n_ctx);
    return rope(ctx, __func__, a, b, NULL, &params, true);
}

// Parameters with scaling of frequencies (YaRN).
static struct gb_rope custom_rope(int n_dims, int mode, int n_ctx, int n_orig_ctx, float freq_base, float freq_scale,
    float ext_factor, float attn_factor, float beta_fast, float beta_slow) {
    struct gb_rope params = plain_rope(n_dims, mode, n_ctx);
    params.n_orig_ctx = n_orig_ctx;
    params.freq_base = freq_base;
    params.freq_scale = freq_scale;
    params.ext_factor = ext_factor;
    params.attn_factor = attn_factor;
    params.beta_fast = beta_fast;
    params.beta_slow = beta_slow;
    return params;
}

struct ggml_tensor * ggml_rope_custom(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    int n_dims, int mode, int n_ctx, int n_orig_ctx, float freq_base, float freq_scale, float ext_factor,
    float attn_factor, float beta_fast, float beta_slow) {
    const struct gb_rope params = custom_rope(n_dims, mode, n_ctx, n_orig_ctx, freq_base, freq_scale, ext_factor,
        attn_factor, beta_fast, beta_slow);
    return rope(ctx, __func__, a, b, NULL, &params, false);
}

struct ggml_tensor * ggml_rope_custom_inplace(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    int n_dims, int mode, int n_ctx, int n_orig_ctx, float freq_base, float freq_scale, float ext_factor,
    float attn_factor, float beta_fast, float beta_slow) {
    const struct gb_rope params = custom_rope(n_dims, mode, n_ctx, n_orig_ctx, freq_base, freq_scale, ext_factor,
        attn_factor, beta_fast, beta_slow);
    return rope(ctx, __func__, a, b, NULL, &params, true);
}

// xPos multiplies the rotated values by a factor that depends on the position. With `down` it
// divides by the factor.
struct ggml_tensor * ggml_rope_xpos_inplace(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    int n_dims, float base, bool down) {
    struct gb_rope params = plain_rope(n_dims, 0, 0);
    params.xpos_base = base;
    params.xpos_down = down;
    return rope(ctx, __func__, a, b, NULL, &params, true);
}

// ROPE with the same parameters in the opposite direction.
struct ggml_tensor * ggml_rope_back(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    int n_dims, int mode, int n_ctx, int n_orig_ctx, float freq_base, float freq_scale, float ext_factor,
    float attn_factor, float beta_fast, float beta_slow, float xpos_base, bool xpos_down) {
    struct gb_rope params = custom_rope(n_dims, mode, n_ctx, n_orig_ctx, freq_base, freq_scale, ext_factor, attn_factor,
        beta_fast, beta_slow);
    params.xpos_base = xpos_base;
    params.xpos_down = xpos_down;
    return rope_back(ctx, __func__, a, b, NULL, &params);
}

// ------------------------------------------------------------------------------------------------ ggml's modes of 2026

// Parameters of ggml_rope_ext (sections NULL) or ggml_rope_multi, whose modes are stored with
// GGML_ROPE_EXACT. The mode is -1 if that function does not have it: check_mode reports it.
static struct gb_rope exact_rope(int n_dims, const int * sections, int mode, int n_ctx_orig, float freq_base,
    float freq_scale, float ext_factor, float attn_factor, float beta_fast, float beta_slow) {
    const bool fits = sections != NULL ? mode == GGML_ROPE_TYPE_MROPE || mode == GGML_ROPE_TYPE_VISION ||
                                             mode == GGML_ROPE_TYPE_IMROPE
                                       : mode == GGML_ROPE_TYPE_NORMAL || mode == GGML_ROPE_TYPE_NEOX;
    struct gb_rope params = custom_rope(n_dims, fits ? mode | GGML_ROPE_EXACT : -1, 0, n_ctx_orig, freq_base,
        freq_scale, ext_factor, attn_factor, beta_fast, beta_slow);
    for (int i = 0; sections != NULL && i < 4; i++) {
        params.sections[i] = sections[i];
    }
    return params;
}

// `mode` is what the caller gave. False (reported) if exact_rope refused it.
static bool check_mode(const char * func, const struct gb_rope * params, int mode, bool multi) {
    const struct gb_call c = { func, 0, NULL };
    if (params->mode >= 0) {
        return true;
    }
    return multi ? GB_BROKEN(&c, ROPE_MODE_OF, .name = "mode",
                       .number = { GGML_ROPE_TYPE_MROPE, GGML_ROPE_TYPE_VISION, GGML_ROPE_TYPE_IMROPE, mode })
                 : GB_BROKEN(&c, ROPE_MODE_OF_TWO, .name = "mode",
                       .number = { GGML_ROPE_TYPE_NORMAL, GGML_ROPE_TYPE_NEOX, mode });
}

static bool check_sections(const char * func, const int * sections) {
    const struct gb_call c = { func, 0, NULL };
    return sections != NULL || gb_rule_missing(&c, "sections");
}

#define SCALING n_ctx_orig, freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow

struct ggml_tensor * ggml_rope_ext(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    struct ggml_tensor * c, int n_dims, int mode, int n_ctx_orig, float freq_base, float freq_scale, float ext_factor,
    float attn_factor, float beta_fast, float beta_slow) {
    const struct gb_rope params = exact_rope(n_dims, NULL, mode, SCALING);
    return check_mode(__func__, &params, mode, false) ? rope(ctx, __func__, a, b, c, &params, false) : NULL;
}

struct ggml_tensor * ggml_rope_ext_inplace(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    struct ggml_tensor * c, int n_dims, int mode, int n_ctx_orig, float freq_base, float freq_scale, float ext_factor,
    float attn_factor, float beta_fast, float beta_slow) {
    const struct gb_rope params = exact_rope(n_dims, NULL, mode, SCALING);
    return check_mode(__func__, &params, mode, false) ? rope(ctx, __func__, a, b, c, &params, true) : NULL;
}

struct ggml_tensor * ggml_rope_ext_back(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    struct ggml_tensor * c, int n_dims, int mode, int n_ctx_orig, float freq_base, float freq_scale, float ext_factor,
    float attn_factor, float beta_fast, float beta_slow) {
    const struct gb_rope params = exact_rope(n_dims, NULL, mode, SCALING);
    return check_mode(__func__, &params, mode, false) ? rope_back(ctx, __func__, a, b, c, &params) : NULL;
}

struct ggml_tensor * ggml_rope_multi(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    struct ggml_tensor * c, int n_dims, const int sections[4], int mode, int n_ctx_orig, float freq_base,
    float freq_scale, float ext_factor, float attn_factor, float beta_fast, float beta_slow) {
    if (!check_sections(__func__, sections)) {
        return NULL;
    }
    const struct gb_rope params = exact_rope(n_dims, sections, mode, SCALING);
    return check_mode(__func__, &params, mode, true) ? rope(ctx, __func__, a, b, c, &params, false) : NULL;
}

struct ggml_tensor * ggml_rope_multi_inplace(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    struct ggml_tensor * c, int n_dims, const int sections[4], int mode, int n_ctx_orig, float freq_base,
    float freq_scale, float ext_factor, float attn_factor, float beta_fast, float beta_slow) {
    if (!check_sections(__func__, sections)) {
        return NULL;
    }
    const struct gb_rope params = exact_rope(n_dims, sections, mode, SCALING);
    return check_mode(__func__, &params, mode, true) ? rope(ctx, __func__, a, b, c, &params, true) : NULL;
}

struct ggml_tensor * ggml_rope_multi_back(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    struct ggml_tensor * c, int n_dims, const int sections[4], int mode, int n_ctx_orig, float freq_base,
    float freq_scale, float ext_factor, float attn_factor, float beta_fast, float beta_slow) {
    if (!check_sections(__func__, sections)) {
        return NULL;
    }
    const struct gb_rope params = exact_rope(n_dims, sections, mode, SCALING);
    return check_mode(__func__, &params, mode, true) ? rope_back(ctx, __func__, a, b, c, &params) : NULL;
}

struct ggml_tensor * ggml_rope_set_offset(struct ggml_tensor * a, int n_offs) {
    GB_CHECK_ARG_RETURNING(a, NULL);
    char text[GB_DESCRIBE_SIZE];
    const bool is_rope = (a->op == GGML_OP_ROPE || a->op == GGML_OP_ROPE_BACK) && a->src[0] != NULL &&
                         (gb_op_param_i32(a, 2) & GGML_ROPE_EXACT) != 0;
    GB_FAIL_IF_RETURNING(!is_rope, NULL, GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'a': needs a node of ggml_rope_ext or ggml_rope_multi, has %s", __func__, gb_describe(a, text));
    const int64_t most = gb_rope_is_vision(gb_op_param_i32(a, 2)) ? 0 : a->ne[0] - gb_op_param_i32(a, 1);
    GB_FAIL_IF_RETURNING(n_offs < 0 || n_offs % 2 != 0 || n_offs > most, NULL, GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'n_offs' must be even and from 0 to %lld, is %d", __func__, (long long) most, n_offs);
    a->op_params[offsetof(struct gb_rope, n_offs) / sizeof(int32_t)] = n_offs;
    return a;
}

// The dimension pair whose angle makes `beta` full turns over the original context.
static float turning_dim(int n_dims, int n_orig_ctx, float freq_base, float beta) {
    const float two_pi = 6.283185307179586f;
    return (float) n_dims * logf((float) n_orig_ctx / (beta * two_pi)) / (2 * logf(freq_base));
}

// YaRN changes from extrapolation to interpolation between these two dimension pairs.
void ggml_rope_yarn_corr_dims(int n_dims, int n_orig_ctx, float freq_base, float beta_fast, float beta_slow,
    float dims[2]) {
    GB_CHECK_ARG_RETURNING(dims, );
    dims[0] = fmaxf(0, floorf(turning_dim(n_dims, n_orig_ctx, freq_base, beta_fast)));
    dims[1] = fminf((float) ((int64_t) n_dims - 1), ceilf(turning_dim(n_dims, n_orig_ctx, freq_base, beta_slow)));
}

// ----------------------------------------------------------------------------------------------- checks of built nodes

// The parameters that the node stores.
static struct gb_rope rope_of(gb_ct t) {
    struct gb_rope r = { 0 };
    // Without xpos_down's padding, which no rule uses and which may hold any bytes.
    memcpy(&r, t->op_params, offsetof(struct gb_rope, xpos_down));
    if (gb_rope_has_sections(r.mode)) {
        memcpy(r.sections, &t->op_params[offsetof(struct gb_rope, sections) / sizeof(int32_t)], sizeof(r.sections));
    }
    r.n_offs = t->op_params[offsetof(struct gb_rope, n_offs) / sizeof(int32_t)];
    return r;
}

bool gb_built_rope(gb_ct t) {
    const struct gb_rope r = rope_of(t);
    return gb_check_rope(NULL, t->src[0], t->src[1], t->src[2], &r) && gb_is_like(t, t->src[0]);
}

bool gb_built_rope_back(gb_ct t) {
    const struct gb_rope r = rope_of(t);
    return gb_check_rope_back(NULL, t->src[0], t->src[1], t->src[2], &r) && gb_is_like(t, t->src[0]);
}
