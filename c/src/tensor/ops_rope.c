// ops_rope.c - rotary position embedding. A node keeps struct gb_rope (check.h) as its parameters; the assertion below
// fixes the layout that kernels and files rely on.
#include <math.h>
#include <stddef.h>

#include "tensor/ops.h"

_Static_assert(offsetof(struct gb_rope, n_dims) == 1 * sizeof(int32_t) &&
                   offsetof(struct gb_rope, freq_base) == 5 * sizeof(int32_t) &&
                   offsetof(struct gb_rope, xpos_down) == 12 * sizeof(int32_t) &&
                   sizeof(struct gb_rope) <= GGML_MAX_OP_PARAMS,
    "gb_rope is the layout of op_params");

static const float freq_base_default = 10000.0f;

// Leaves out the padding of the struct, which may hold anything: op_params are compared and hashed
// as bytes.
static void set_params(struct ggml_tensor * node, const struct gb_rope * params) {
    gb_op_set_params(node, params, offsetof(struct gb_rope, xpos_down) + sizeof(params->xpos_down));
}

static struct ggml_tensor * rope(struct ggml_context * ctx, const char * func, struct ggml_tensor * a,
    struct ggml_tensor * b, const struct gb_rope * params, bool inplace) {
    if (!gb_check_rope(func, a, b, params)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_like(ctx, func, GGML_OP_ROPE, a, inplace);
    set_params(node, params);
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, b, NULL);
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
    return rope(ctx, __func__, a, b, &params, false);
}

struct ggml_tensor * ggml_rope_inplace(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    int n_dims, int mode, int n_ctx) {
    const struct gb_rope params = plain_rope(n_dims, mode, n_ctx);
    return rope(ctx, __func__, a, b, &params, true);
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
    return rope(ctx, __func__, a, b, &params, false);
}

struct ggml_tensor * ggml_rope_custom_inplace(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    int n_dims, int mode, int n_ctx, int n_orig_ctx, float freq_base, float freq_scale, float ext_factor,
    float attn_factor, float beta_fast, float beta_slow) {
    const struct gb_rope params = custom_rope(n_dims, mode, n_ctx, n_orig_ctx, freq_base, freq_scale, ext_factor,
        attn_factor, beta_fast, beta_slow);
    return rope(ctx, __func__, a, b, &params, true);
}

// xPos multiplies the rotated values by a factor that depends on the position. `down` divides by
// it.
struct ggml_tensor * ggml_rope_xpos_inplace(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    int n_dims, float base, bool down) {
    struct gb_rope params = plain_rope(n_dims, 0, 0);
    params.xpos_base = base;
    params.xpos_down = down;
    return rope(ctx, __func__, a, b, &params, true);
}

// ROPE with the same parameters in the other direction.
struct ggml_tensor * ggml_rope_back(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    int n_dims, int mode, int n_ctx, int n_orig_ctx, float freq_base, float freq_scale, float ext_factor,
    float attn_factor, float beta_fast, float beta_slow, float xpos_base, bool xpos_down) {
    struct gb_rope params = custom_rope(n_dims, mode, n_ctx, n_orig_ctx, freq_base, freq_scale, ext_factor, attn_factor,
        beta_fast, beta_slow);
    params.xpos_base = xpos_base;
    params.xpos_down = xpos_down;
    if (!gb_check_rope_back(__func__, a, b, &params)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_like(ctx, __func__, GGML_OP_ROPE_BACK, a, false);
    set_params(node, &params);
    return gb_op_sources(ctx, node, GB_GRAD_NONE, a, b, NULL);
}

// The pair of dimensions whose wavelength makes `beta` turns over the original context.
static float turning_dim(int n_dims, int n_orig_ctx, float freq_base, float beta) {
    const float two_pi = 6.283185307179586f;
    return (float) n_dims * logf((float) n_orig_ctx / (beta * two_pi)) / (2 * logf(freq_base));
}

// Between these two pairs of dimensions YaRN changes from extrapolation to interpolation.
void ggml_rope_yarn_corr_dims(int n_dims, int n_orig_ctx, float freq_base, float beta_fast, float beta_slow,
    float dims[2]) {
    GB_CHECK_ARG_RETURNING(dims, );
    dims[0] = fmaxf(0, floorf(turning_dim(n_dims, n_orig_ctx, freq_base, beta_fast)));
    dims[1] = fminf((float) ((int64_t) n_dims - 1), ceilf(turning_dim(n_dims, n_orig_ctx, freq_base, beta_slow)));
}

// ------------------------------------------------------------------------------------------------------------ as built

// The parameters that the node keeps.
static struct gb_rope rope_of(gb_ct t) {
    struct gb_rope r = { 0 };
    // without xpos_down: no rule uses it, and any byte may be stored there
    memcpy(&r, t->op_params, offsetof(struct gb_rope, xpos_down));
    return r;
}

bool gb_built_rope(gb_ct t) {
    const struct gb_rope r = rope_of(t);
    return gb_check_rope(NULL, t->src[0], t->src[1], &r) && gb_is_like(t, t->src[0]);
}

bool gb_built_rope_back(gb_ct t) {
    const struct gb_rope r = rope_of(t);
    return gb_check_rope_back(NULL, t->src[0], t->src[1], &r) && gb_is_like(t, t->src[0]);
}
