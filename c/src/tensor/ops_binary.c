// ops_binary.c - two operands, element by element: b repeats over a, and the result has the shape of a. ACC and SET
// change a region of a. WHERE has three operands, each of which repeats over the result.
//
// The in-place forms of ADD1 and SET have a gradient if a source has one. The in-place forms of the
// other operators have none.
#include "tensor/ops.h"
#include "tensor/rule.h"

// The builder of ADD, SUB, MUL and DIV.
static struct ggml_tensor * binary(struct ggml_context * ctx, const char * func, enum ggml_op op,
    struct ggml_tensor * a, struct ggml_tensor * b, bool inplace) {
    if (!gb_check_binary(func, a, b)) {
        return NULL;
    }
    return gb_op_sources(ctx, gb_op_like(ctx, func, op, a, inplace), gb_grad_unless(inplace), a, b, NULL);
}

struct ggml_tensor * ggml_add(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b) {
    return binary(ctx, __func__, GGML_OP_ADD, a, b, false);
}

struct ggml_tensor * ggml_add_inplace(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b) {
    return binary(ctx, __func__, GGML_OP_ADD, a, b, true);
}

struct ggml_tensor * ggml_sub(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b) {
    return binary(ctx, __func__, GGML_OP_SUB, a, b, false);
}

struct ggml_tensor * ggml_sub_inplace(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b) {
    return binary(ctx, __func__, GGML_OP_SUB, a, b, true);
}

struct ggml_tensor * ggml_mul(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b) {
    return binary(ctx, __func__, GGML_OP_MUL, a, b, false);
}

struct ggml_tensor * ggml_mul_inplace(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b) {
    return binary(ctx, __func__, GGML_OP_MUL, a, b, true);
}

struct ggml_tensor * ggml_div(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b) {
    return binary(ctx, __func__, GGML_OP_DIV, a, b, false);
}

struct ggml_tensor * ggml_div_inplace(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b) {
    return binary(ctx, __func__, GGML_OP_DIV, a, b, true);
}

// The node has the requested type. Kernels add in float.
struct ggml_tensor * ggml_add_cast(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    enum ggml_type type) {
    if (!gb_check_add_cast(__func__, a, b, type)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_new(ctx, __func__, GGML_OP_ADD, type, gb_shape_like(a));
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, b, NULL);
}

static struct ggml_tensor * add1(struct ggml_context * ctx, const char * func, struct ggml_tensor * a,
    struct ggml_tensor * b, bool inplace) {
    if (!gb_check_add1(func, a, b)) {
        return NULL;
    }
    return gb_op_sources(ctx, gb_op_like(ctx, func, GGML_OP_ADD1, a, inplace), GB_GRAD_INHERIT, a, b, NULL);
}

struct ggml_tensor * ggml_add1(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b) {
    return add1(ctx, __func__, a, b, false);
}

struct ggml_tensor * ggml_add1_inplace(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b) {
    return add1(ctx, __func__, a, b, true);
}

// --------------------------------------------------------------------------------------------------- COMPARE and WHERE

static bool is_integer(gb_ct t) { return t->type == GGML_TYPE_I32; }

static bool check_compare(const char * func, gb_ct a, gb_ct b, int comparison) {
    const struct gb_call c = GB_CALL_2(func, a, b);
    return gb_rule_given(&c) && gb_rule_repeats(&c, 1, 0) &&
           gb_rule_in_range(&c, "comparison", comparison, 0, GGML_COMPARE_COUNT - 1) &&
           (func == NULL || is_integer(a) == is_integer(b) ||
               GB_BROKEN(&c, MIXED_TYPES, .a = "a", .b = "b", .t = a->type, .u = b->type));
}

// The result is a mask: F32 for operands of any type.
struct ggml_tensor * ggml_compare(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    enum ggml_comparison comparison) {
    if (!check_compare(__func__, a, b, (int) comparison)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_new(ctx, __func__, GGML_OP_COMPARE, GGML_TYPE_F32, gb_shape_like(a));
    const int32_t params = (int32_t) comparison;
    gb_op_set_params(node, &params, sizeof(params));
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, b, NULL);
}

// The largest size of each dimension. 0 if one operand is empty there.
static struct gb_shape shape_where(gb_ct cond, gb_ct a, gb_ct b) {
    struct gb_shape shape;
    for (int d = 0; d < GGML_MAX_DIMS; d++) {
        const int64_t x = cond->ne[d], y = a->ne[d], z = b->ne[d];
        shape.ne[d] = x == 0 || y == 0 || z == 0 ? 0 : GB_MAX(x, GB_MAX(y, z));
    }
    return shape;
}

static bool check_where(const char * func, gb_ct cond, gb_ct a, gb_ct b) {
    const struct gb_call c = GB_CALL_3(func, cond, a, b);
    if (!gb_rule_given(&c) || !gb_rule_same_type(&c, 1, 2)) {
        return false;
    }
    const struct gb_shape shape = shape_where(cond, a, b);
    for (int d = 0; d < GGML_MAX_DIMS; d++) {
        for (int i = 0; i < c.n; i++) {
            if (!gb_size_divides(c.list[i].t->ne[d], shape.ne[d])) {
                return GB_BROKEN(&c, NO_DIVISOR, .a = c.list[i].role, .a_dim = d,
                    .number = { c.list[i].t->ne[d], shape.ne[d] });
            }
        }
    }
    return true;
}

struct ggml_tensor * ggml_where(struct ggml_context * ctx, struct ggml_tensor * cond, struct ggml_tensor * a,
    struct ggml_tensor * b) {
    if (!check_where(__func__, cond, a, b)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_new(ctx, __func__, GGML_OP_WHERE, a->type, shape_where(cond, a, b));
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, cond, a, b);
}

// ------------------------------------------------------------------------------------------------------------- regions

// A number in the node's 32-bit form. gb_check_acc and gb_check_set have checked all numbers that
// are used. The strides of dimensions that b does not have may be anything.
static int32_t kept(size_t bytes) { return bytes > INT32_MAX ? INT32_MAX : (int32_t) bytes; }

// op_params: nb1, nb2, nb3, offset, and whether the node is in place.
static void set_region(struct ggml_tensor * node, const struct gb_region * r, bool inplace) {
    const int32_t params[] = { kept(r->nb1), kept(r->nb2), kept(r->nb3), kept(r->offset), inplace };
    gb_op_set_params(node, params, sizeof(params));
}

// ACC adds b to a region of a. SET writes b there. The rest of the result is a.
static struct ggml_tensor * acc(struct ggml_context * ctx, const char * func, struct ggml_tensor * a,
    struct ggml_tensor * b, const struct gb_region * region, bool inplace) {
    if (!gb_check_acc(func, a, b, region, inplace)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_like(ctx, func, GGML_OP_ACC, a, inplace);
    set_region(node, region, inplace);
    return gb_op_sources(ctx, node, gb_grad_unless(inplace), a, b, NULL);
}

static struct ggml_tensor * set(struct ggml_context * ctx, const char * func, struct ggml_tensor * a,
    struct ggml_tensor * b, const struct gb_region * region, bool inplace) {
    if (!gb_check_set(func, a, b, region, inplace)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_like(ctx, func, GGML_OP_SET, a, inplace);
    set_region(node, region, inplace);
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, a, b, NULL);
}

struct ggml_tensor * ggml_acc(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b, size_t nb1,
    size_t nb2, size_t nb3, size_t offset) {
    return acc(ctx, __func__, a, b, &(const struct gb_region){ nb1, nb2, nb3, offset }, false);
}

struct ggml_tensor * ggml_acc_inplace(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    size_t nb1, size_t nb2, size_t nb3, size_t offset) {
    return acc(ctx, __func__, a, b, &(const struct gb_region){ nb1, nb2, nb3, offset }, true);
}

struct ggml_tensor * ggml_set(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b, size_t nb1,
    size_t nb2, size_t nb3, size_t offset) {
    return set(ctx, __func__, a, b, &(const struct gb_region){ nb1, nb2, nb3, offset }, false);
}

struct ggml_tensor * ggml_set_inplace(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    size_t nb1, size_t nb2, size_t nb3, size_t offset) {
    return set(ctx, __func__, a, b, &(const struct gb_region){ nb1, nb2, nb3, offset }, true);
}

// SET with the strides of a. nb1 NULL: with a's own nb1 as well.
static struct ggml_tensor * set_like(struct ggml_context * ctx, const char * func, struct ggml_tensor * a,
    struct ggml_tensor * b, const size_t * nb1, size_t offset, bool inplace) {
    if (!gb_check_2(func, a, b)) {
        return NULL;
    }
    const struct gb_region region = { nb1 != NULL ? *nb1 : a->nb[1], a->nb[2], a->nb[3], offset };
    return set(ctx, func, a, b, &region, inplace);
}

struct ggml_tensor * ggml_set_1d(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    size_t offset) {
    return set_like(ctx, __func__, a, b, NULL, offset, false);
}

struct ggml_tensor * ggml_set_1d_inplace(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    size_t offset) {
    return set_like(ctx, __func__, a, b, NULL, offset, true);
}

struct ggml_tensor * ggml_set_2d(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b, size_t nb1,
    size_t offset) {
    return set_like(ctx, __func__, a, b, &nb1, offset, false);
}

struct ggml_tensor * ggml_set_2d_inplace(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    size_t nb1, size_t offset) {
    return set_like(ctx, __func__, a, b, &nb1, offset, true);
}

// ----------------------------------------------------------------------------------------------- checks of built nodes

static bool is_binary(gb_ct t) { return gb_check_binary(NULL, t->src[0], t->src[1]) && gb_is_like(t, t->src[0]); }

bool gb_built_add(gb_ct t) { return is_binary(t); }

bool gb_built_sub(gb_ct t) { return is_binary(t); }

bool gb_built_mul(gb_ct t) { return is_binary(t); }

bool gb_built_div(gb_ct t) { return is_binary(t); }

bool gb_built_compare(gb_ct t) {
    return check_compare(NULL, t->src[0], t->src[1], t->op_params[0]) && gb_is_like(t, t->src[0]);
}

bool gb_built_where(gb_ct t) {
    return check_where(NULL, t->src[0], t->src[1], t->src[2]) &&
           gb_is_shape(t, shape_where(t->src[0], t->src[1], t->src[2]));
}

bool gb_built_add1(gb_ct t) { return gb_check_add1(NULL, t->src[0], t->src[1]) && gb_is_like(t, t->src[0]); }

static struct gb_region region_of(gb_ct t) {
    return (struct gb_region){ (size_t) t->op_params[0], (size_t) t->op_params[1], (size_t) t->op_params[2],
        (size_t) t->op_params[3] };
}

bool gb_built_acc(gb_ct t) {
    const struct gb_region r = region_of(t);
    return gb_check_acc(NULL, t->src[0], t->src[1], &r, t->op_params[4] != 0) && gb_is_like(t, t->src[0]);
}

bool gb_built_set(gb_ct t) {
    const struct gb_region r = region_of(t);
    return gb_check_set(NULL, t->src[0], t->src[1], &r, t->op_params[4] != 0) && gb_is_like(t, t->src[0]);
}
