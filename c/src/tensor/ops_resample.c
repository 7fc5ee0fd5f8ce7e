// ops_resample.c - INTERPOLATE, PAD_EXT, PAD_REFLECT_1D, ROLL: today's forms of resizing and padding. UPSCALE and PAD
// of 2024 are in ops_pool.c. Only PAD_EXT with zeros and ROLL have a derivative.
#include "tensor/ops.h"
#include "tensor/rule.h"

enum { SCALE_MODE_BITS = 0xff, SCALE_FLAGS = GGML_SCALE_FLAG_ALIGN_CORNERS | GGML_SCALE_FLAG_ANTIALIAS };

static const char * const sizes[4] = { "ne0", "ne1", "ne2", "ne3" };

// --------------------------------------------------------------------------------------------------------- INTERPOLATE

static bool rule_mode(const struct gb_call * c, uint32_t mode) {
    const uint32_t kind = mode & SCALE_MODE_BITS;
    if (kind >= GGML_SCALE_MODE_COUNT || (mode & ~(uint32_t) (SCALE_MODE_BITS | SCALE_FLAGS)) != 0) {
        return GB_BROKEN(c, NO_SCALE_MODE, .number = { mode });
    }
    if ((mode & GGML_SCALE_FLAG_ANTIALIAS) == 0) {
        return true;
    }
    return (kind == GGML_SCALE_MODE_BILINEAR && (mode & GGML_SCALE_FLAG_ALIGN_CORNERS) == 0) ||
           gb_rule_fail(c, GGML_STATUS_INVALID_ARGUMENT, &(const struct gb_fault){ .kind = GB_FAULT_ANTIALIAS });
}

// A result with elements needs a source with elements.
static bool check_interpolate(const char * func, gb_ct a, const int64_t ne[4], uint32_t mode) {
    const struct gb_call c = GB_CALL_1(func, a);
    bool ok = gb_rule_given(&c) && gb_rule_no_grad(&c) && rule_mode(&c, mode);
    for (int d = 0; d < 4 && ok; d++) {
        ok = gb_rule_at_least(&c, sizes[d], ne[d], 0) &&
             (a->ne[d] > 0 || ne[d] == 0 || GB_BROKEN(&c, NO_ELEMENTS, .a = "a", .a_dim = d));
    }
    return ok;
}

static struct ggml_tensor * interpolate(struct ggml_context * ctx, const char * func, struct ggml_tensor * a,
    const int64_t ne[4], uint32_t mode) {
    if (!check_interpolate(func, a, ne, mode)) {
        return NULL;
    }
    struct ggml_tensor * node =
        gb_op_new(ctx, func, GGML_OP_INTERPOLATE, a->type, gb_shape_of(ne[0], ne[1], ne[2], ne[3]));
    gb_op_set_params(node, &mode, sizeof(mode));
    return gb_op_sources(ctx, node, GB_GRAD_NONE, a, NULL, NULL);
}

struct ggml_tensor * ggml_interpolate(struct ggml_context * ctx, struct ggml_tensor * a, int64_t ne0, int64_t ne1,
    int64_t ne2, int64_t ne3, uint32_t mode) {
    const int64_t ne[] = { ne0, ne1, ne2, ne3 };
    return interpolate(ctx, __func__, a, ne, mode);
}

struct ggml_tensor * ggml_upscale_mode(struct ggml_context * ctx, struct ggml_tensor * a, int scale_factor,
    enum ggml_scale_mode mode) {
    if (!gb_check_upscale(__func__, a, scale_factor)) {
        return NULL;
    }
    const int64_t ne[] = { a->ne[0] * scale_factor, a->ne[1] * scale_factor, a->ne[2], a->ne[3] };
    return interpolate(ctx, __func__, a, ne, (uint32_t) mode);
}

// ------------------------------------------------------------------------------------------------------------- PAD_EXT

// p: numbers of elements before and behind each dimension
static bool check_pad_ext(const char * func, gb_ct a, const int32_t p[8], bool circular) {
    static const char * const names[8] = { "lp0", "rp0", "lp1", "rp1", "lp2", "rp2", "lp3", "rp3" };
    const struct gb_call c = GB_CALL_1(func, a);
    bool ok = gb_rule_given(&c);
    for (int i = 0; i < 8 && ok; i++) {
        ok = gb_rule_at_least(&c, names[i], p[i], 0) &&
             (!circular || p[i] == 0 || a->ne[i / 2] > 0 || GB_BROKEN(&c, NO_ELEMENTS, .a = "a", .a_dim = i / 2));
    }
    return ok;
}

static int64_t padded(gb_ct a, const int32_t p[8], int d) {
    return gb_size_sum(gb_size_sum(a->ne[d], p[2 * d]), p[2 * d + 1]);
}

static struct gb_shape shape_pad_ext(gb_ct a, const int32_t p[8]) {
    return gb_shape_of(padded(a, p, 0), padded(a, p, 1), padded(a, p, 2), padded(a, p, 3));
}

// op_params: [0 .. 7] the amounts, [8] whether padding is circular
static struct ggml_tensor * pad_ext(struct ggml_context * ctx, const char * func, struct ggml_tensor * a,
    const int32_t p[8], bool circular) {
    if (!check_pad_ext(func, a, p, circular)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_new(ctx, func, GGML_OP_PAD_EXT, a->type, shape_pad_ext(a, p));
    const int32_t params[] = { p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], circular };
    gb_op_set_params(node, params, sizeof(params));
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, NULL, NULL);
}

struct ggml_tensor * ggml_pad_ext(struct ggml_context * ctx, struct ggml_tensor * a, int lp0, int rp0, int lp1, int rp1,
    int lp2, int rp2, int lp3, int rp3) {
    return pad_ext(ctx, __func__, a, (const int32_t[]){ lp0, rp0, lp1, rp1, lp2, rp2, lp3, rp3 }, false);
}

struct ggml_tensor * ggml_pad_circular(struct ggml_context * ctx, struct ggml_tensor * a, int p0, int p1, int p2,
    int p3) {
    return pad_ext(ctx, __func__, a, (const int32_t[]){ 0, p0, 0, p1, 0, p2, 0, p3 }, true);
}

struct ggml_tensor * ggml_pad_ext_circular(struct ggml_context * ctx, struct ggml_tensor * a, int lp0, int rp0, int lp1,
    int rp1, int lp2, int rp2, int lp3, int rp3) {
    return pad_ext(ctx, __func__, a, (const int32_t[]){ lp0, rp0, lp1, rp1, lp2, rp2, lp3, rp3 }, true);
}

// ------------------------------------------------------------------------------------------------------ PAD_REFLECT_1D

static bool check_pad_reflect(const char * func, gb_ct a, int p0, int p1) {
    const struct gb_call c = GB_CALL_1(func, a);
    return gb_rule_given(&c) && gb_rule_no_grad(&c) && gb_rule_size_in_range(&c, 0, 0, 1, INT64_MAX) &&
           gb_rule_in_range(&c, "p0", p0, 0, a->ne[0] - 1) && gb_rule_in_range(&c, "p1", p1, 0, a->ne[0] - 1);
}

static struct gb_shape shape_pad_reflect(gb_ct a, int p0, int p1) {
    return gb_shape_of(gb_size_sum(gb_size_sum(a->ne[0], p0), p1), a->ne[1], a->ne[2], a->ne[3]);
}

// op_params: the amounts before and behind
struct ggml_tensor * ggml_pad_reflect_1d(struct ggml_context * ctx, struct ggml_tensor * a, int p0, int p1) {
    if (!check_pad_reflect(__func__, a, p0, p1)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_new(ctx, __func__, GGML_OP_PAD_REFLECT_1D, a->type, shape_pad_reflect(a, p0, p1));
    const int32_t params[] = { p0, p1 };
    gb_op_set_params(node, params, sizeof(params));
    return gb_op_sources(ctx, node, GB_GRAD_NONE, a, NULL, NULL);
}

// ---------------------------------------------------------------------------------------------------------------- ROLL

// A shift is less than the size of its dimension, in either direction.
static bool check_roll(const char * func, gb_ct a, const int32_t shift[4]) {
    static const char * const names[4] = { "shift0", "shift1", "shift2", "shift3" };
    const struct gb_call c = GB_CALL_1(func, a);
    bool ok = gb_rule_given(&c);
    for (int d = 0; d < 4 && ok; d++) {
        ok = shift[d] == 0 || gb_rule_in_range(&c, names[d], shift[d], 1 - a->ne[d], a->ne[d] - 1);
    }
    return ok;
}

// op_params: the shift along each dimension
struct ggml_tensor * ggml_roll(struct ggml_context * ctx, struct ggml_tensor * a, int shift0, int shift1, int shift2,
    int shift3) {
    const int32_t shift[] = { shift0, shift1, shift2, shift3 };
    if (!check_roll(__func__, a, shift)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_like(ctx, __func__, GGML_OP_ROLL, a, false);
    gb_op_set_params(node, shift, sizeof(shift));
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, NULL, NULL);
}

// ----------------------------------------------------------------------------------------------- checks of built nodes

bool gb_built_interpolate(gb_ct t) { return check_interpolate(NULL, t->src[0], t->ne, (uint32_t) t->op_params[0]); }

bool gb_built_pad_ext(gb_ct t) {
    return check_pad_ext(NULL, t->src[0], t->op_params, t->op_params[8] != 0) &&
           gb_is_shape(t, shape_pad_ext(t->src[0], t->op_params));
}

bool gb_built_pad_reflect_1d(gb_ct t) {
    const int32_t * p = t->op_params;
    return check_pad_reflect(NULL, t->src[0], p[0], p[1]) && gb_is_shape(t, shape_pad_reflect(t->src[0], p[0], p[1]));
}

bool gb_built_roll(gb_ct t) { return check_roll(NULL, t->src[0], t->op_params) && gb_is_like(t, t->src[0]); }
