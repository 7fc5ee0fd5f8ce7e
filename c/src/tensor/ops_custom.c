// ops_custom.c - operators whose kernel is the caller's function.
//
// The node stores the function's address as bytes in op_params. Nodes of the newer forms also store
// the number of tasks and the user data. op_params are aligned to 4 bytes only, so all code uses
// memcpy.
#include <stddef.h>

#include "tensor/ops.h"

// The node of the older forms. params is the function's address.
static struct ggml_tensor * map(struct ggml_context * ctx, const char * func, enum ggml_op op, struct ggml_tensor * a,
    struct ggml_tensor * b, struct ggml_tensor * c, const void * params, size_t size, bool inplace) {
    struct ggml_tensor * node = gb_op_like(ctx, func, op, a, inplace);
    gb_op_set_params(node, params, size);
    return gb_op_sources(ctx, node, gb_grad_unless(inplace), a, b, c);
}

// -------------------------------------------------------------- older forms: rows of floats, or one call on one thread

// Functions that get one row at a time.
static struct ggml_tensor * map_unary(struct ggml_context * ctx, const char * func, struct ggml_tensor * a,
    ggml_unary_op_f32_t fun, bool inplace) {
    return gb_check_map_rows(func, a, NULL, 1, fun != NULL)
               ? map(ctx, func, GGML_OP_MAP_UNARY, a, NULL, NULL, &fun, sizeof(fun), inplace)
               : NULL;
}

static struct ggml_tensor * map_binary(struct ggml_context * ctx, const char * func, struct ggml_tensor * a,
    struct ggml_tensor * b, ggml_binary_op_f32_t fun, bool inplace) {
    return gb_check_map_rows(func, a, b, 2, fun != NULL)
               ? map(ctx, func, GGML_OP_MAP_BINARY, a, b, NULL, &fun, sizeof(fun), inplace)
               : NULL;
}

// Functions that get whole tensors and are called once, on one thread.
static struct ggml_tensor * map_custom1_f32(struct ggml_context * ctx, const char * func, struct ggml_tensor * a,
    ggml_custom1_op_f32_t fun, bool inplace) {
    return gb_check_map_custom(func, a, NULL, NULL, 1, fun != NULL, 1)
               ? map(ctx, func, GGML_OP_MAP_CUSTOM1_F32, a, NULL, NULL, &fun, sizeof(fun), inplace)
               : NULL;
}

static struct ggml_tensor * map_custom2_f32(struct ggml_context * ctx, const char * func, struct ggml_tensor * a,
    struct ggml_tensor * b, ggml_custom2_op_f32_t fun, bool inplace) {
    return gb_check_map_custom(func, a, b, NULL, 2, fun != NULL, 1)
               ? map(ctx, func, GGML_OP_MAP_CUSTOM2_F32, a, b, NULL, &fun, sizeof(fun), inplace)
               : NULL;
}

static struct ggml_tensor * map_custom3_f32(struct ggml_context * ctx, const char * func, struct ggml_tensor * a,
    struct ggml_tensor * b, struct ggml_tensor * c, ggml_custom3_op_f32_t fun, bool inplace) {
    return gb_check_map_custom(func, a, b, c, 3, fun != NULL, 1)
               ? map(ctx, func, GGML_OP_MAP_CUSTOM3_F32, a, b, c, &fun, sizeof(fun), inplace)
               : NULL;
}

struct ggml_tensor * ggml_map_unary_f32(struct ggml_context * ctx, struct ggml_tensor * a, ggml_unary_op_f32_t fun) {
    return map_unary(ctx, __func__, a, fun, false);
}

struct ggml_tensor * ggml_map_unary_inplace_f32(struct ggml_context * ctx, struct ggml_tensor * a,
    ggml_unary_op_f32_t fun) {
    return map_unary(ctx, __func__, a, fun, true);
}

struct ggml_tensor * ggml_map_binary_f32(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    ggml_binary_op_f32_t fun) {
    return map_binary(ctx, __func__, a, b, fun, false);
}

struct ggml_tensor * ggml_map_binary_inplace_f32(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, ggml_binary_op_f32_t fun) {
    return map_binary(ctx, __func__, a, b, fun, true);
}

struct ggml_tensor * ggml_map_custom1_f32(struct ggml_context * ctx, struct ggml_tensor * a,
    ggml_custom1_op_f32_t fun) {
    return map_custom1_f32(ctx, __func__, a, fun, false);
}

struct ggml_tensor * ggml_map_custom1_inplace_f32(struct ggml_context * ctx, struct ggml_tensor * a,
    ggml_custom1_op_f32_t fun) {
    return map_custom1_f32(ctx, __func__, a, fun, true);
}

struct ggml_tensor * ggml_map_custom2_f32(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    ggml_custom2_op_f32_t fun) {
    return map_custom2_f32(ctx, __func__, a, b, fun, false);
}

struct ggml_tensor * ggml_map_custom2_inplace_f32(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, ggml_custom2_op_f32_t fun) {
    return map_custom2_f32(ctx, __func__, a, b, fun, true);
}

struct ggml_tensor * ggml_map_custom3_f32(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    struct ggml_tensor * c, ggml_custom3_op_f32_t fun) {
    return map_custom3_f32(ctx, __func__, a, b, c, fun, false);
}

struct ggml_tensor * ggml_map_custom3_inplace_f32(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, struct ggml_tensor * c, ggml_custom3_op_f32_t fun) {
    return map_custom3_f32(ctx, __func__, a, b, c, fun, true);
}

// --------------------------------------------------------------------------------------------------------- newer forms

// The layout of op_params, which kernels use. All function pointers have one size. CUSTOM stores
// GB_CUSTOM_N_SRC after it.
struct map_params {
    void (*fun)(void);
    int n_tasks;
    void * userdata;
};

// Sets the parameters of the node (NULL: none) field by field. Padding may hold anything, but
// op_params are compared and hashed as bytes.
static void set_params(struct ggml_tensor * node, const void * fun, int n_tasks, void * userdata) {
    if (node != NULL) {
        char * params = (char *) node->op_params;
        memcpy(params + offsetof(struct map_params, fun), fun, sizeof(void (*)(void)));
        memcpy(params + offsetof(struct map_params, n_tasks), &n_tasks, sizeof(n_tasks));
        memcpy(params + offsetof(struct map_params, userdata), &userdata, sizeof(userdata));
    }
}

static struct ggml_tensor * map_tasks(struct ggml_context * ctx, const char * func, enum ggml_op op,
    struct ggml_tensor * a, struct ggml_tensor * b, struct ggml_tensor * c, const void * fun, int n_tasks,
    void * userdata, bool inplace) {
    struct ggml_tensor * node = gb_op_like(ctx, func, op, a, inplace);
    set_params(node, fun, n_tasks, userdata);
    return gb_op_sources(ctx, node, gb_grad_unless(inplace), a, b, c);
}

// Functions that get whole tensors and are called by n_tasks tasks, with the number of the task.
static struct ggml_tensor * map_custom1(struct ggml_context * ctx, const char * func, struct ggml_tensor * a,
    ggml_custom1_op_t fun, int n_tasks, void * userdata, bool inplace) {
    if (!gb_check_map_custom(func, a, NULL, NULL, 1, fun != NULL, n_tasks)) {
        return NULL;
    }
    return map_tasks(ctx, func, GGML_OP_MAP_CUSTOM1, a, NULL, NULL, &fun, n_tasks, userdata, inplace);
}

static struct ggml_tensor * map_custom2(struct ggml_context * ctx, const char * func, struct ggml_tensor * a,
    struct ggml_tensor * b, ggml_custom2_op_t fun, int n_tasks, void * userdata, bool inplace) {
    if (!gb_check_map_custom(func, a, b, NULL, 2, fun != NULL, n_tasks)) {
        return NULL;
    }
    return map_tasks(ctx, func, GGML_OP_MAP_CUSTOM2, a, b, NULL, &fun, n_tasks, userdata, inplace);
}

static struct ggml_tensor * map_custom3(struct ggml_context * ctx, const char * func, struct ggml_tensor * a,
    struct ggml_tensor * b, struct ggml_tensor * c, ggml_custom3_op_t fun, int n_tasks, void * userdata, bool inplace) {
    if (!gb_check_map_custom(func, a, b, c, 3, fun != NULL, n_tasks)) {
        return NULL;
    }
    return map_tasks(ctx, func, GGML_OP_MAP_CUSTOM3, a, b, c, &fun, n_tasks, userdata, inplace);
}

struct ggml_tensor * ggml_map_custom1(struct ggml_context * ctx, struct ggml_tensor * a, ggml_custom1_op_t fun,
    int n_tasks, void * userdata) {
    return map_custom1(ctx, __func__, a, fun, n_tasks, userdata, false);
}

struct ggml_tensor * ggml_map_custom1_inplace(struct ggml_context * ctx, struct ggml_tensor * a, ggml_custom1_op_t fun,
    int n_tasks, void * userdata) {
    return map_custom1(ctx, __func__, a, fun, n_tasks, userdata, true);
}

struct ggml_tensor * ggml_map_custom2(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    ggml_custom2_op_t fun, int n_tasks, void * userdata) {
    return map_custom2(ctx, __func__, a, b, fun, n_tasks, userdata, false);
}

struct ggml_tensor * ggml_map_custom2_inplace(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    ggml_custom2_op_t fun, int n_tasks, void * userdata) {
    return map_custom2(ctx, __func__, a, b, fun, n_tasks, userdata, true);
}

struct ggml_tensor * ggml_map_custom3(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    struct ggml_tensor * c, ggml_custom3_op_t fun, int n_tasks, void * userdata) {
    return map_custom3(ctx, __func__, a, b, c, fun, n_tasks, userdata, false);
}

struct ggml_tensor * ggml_map_custom3_inplace(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    struct ggml_tensor * c, ggml_custom3_op_t fun, int n_tasks, void * userdata) {
    return map_custom3(ctx, __func__, a, b, c, fun, n_tasks, userdata, true);
}

// --------------------------------------------------------------------------------------- any sources and any result

// The sizes of dimensions that are not given are 1.
struct ggml_tensor * ggml_custom(struct ggml_context * ctx, enum ggml_type type, const int64_t * ne, int n_dims,
    struct ggml_tensor * const sources[], int n_src, ggml_custom_op_t fun, int n_tasks, void * userdata) {
    if (!gb_check_result(__func__, type, ne, n_dims) ||
        !gb_check_custom(__func__, sources, n_src, fun != NULL, n_tasks)) {
        return NULL;
    }
    struct gb_shape shape = gb_shape_scalar();
    memcpy(shape.ne, ne, (size_t) n_dims * sizeof(*ne));
    struct ggml_tensor * node = gb_op_new(ctx, __func__, GGML_OP_CUSTOM, type, shape);
    if (node == NULL) {
        return NULL;
    }
    gb_op_set_ndim(node, n_dims);
    set_params(node, &fun, n_tasks, userdata);
    node->op_params[GB_CUSTOM_N_SRC] = n_src;
    struct ggml_tensor * first[3] = { NULL };
    for (int i = 0; i < n_src; i++) {
        *(i < 3 ? &first[i] : &node->src[i]) = sources[i];
    }
    return gb_op_sources(ctx, node, GB_GRAD_INHERIT, first[0], first[1], first[2]);
}

// ----------------------------------------------------------------------------------------------- checks of built nodes

static bool has_fun(gb_ct t) {
    void (*fun)(void) = NULL;
    memcpy(&fun, t->op_params, sizeof(fun));
    return fun != NULL;
}

static int tasks_of(gb_ct t) {
    int n_tasks;
    memcpy(&n_tasks, (const char *) t->op_params + offsetof(struct map_params, n_tasks), sizeof(n_tasks));
    return n_tasks;
}

// True if the node has n operands, a function and the shape of the first operand. has_tasks: a node
// of the newer forms.
static bool is_map(gb_ct t, int n, bool has_tasks) {
    return gb_check_map_custom(NULL, t->src[0], t->src[1], t->src[2], n, has_fun(t), has_tasks ? tasks_of(t) : 1) &&
           gb_is_like(t, t->src[0]);
}

static bool is_map_of_rows(gb_ct t, int n) {
    return is_map(t, n, false) && gb_check_map_rows(NULL, t->src[0], t->src[1], n, true);
}

bool gb_built_map_unary(gb_ct t) { return is_map_of_rows(t, 1); }

bool gb_built_map_binary(gb_ct t) { return is_map_of_rows(t, 2); }

bool gb_built_map_custom1_f32(gb_ct t) { return is_map(t, 1, false); }

bool gb_built_map_custom2_f32(gb_ct t) { return is_map(t, 2, false); }

bool gb_built_map_custom3_f32(gb_ct t) { return is_map(t, 3, false); }

bool gb_built_map_custom1(gb_ct t) { return is_map(t, 1, true); }

bool gb_built_map_custom2(gb_ct t) { return is_map(t, 2, true); }

bool gb_built_map_custom3(gb_ct t) { return is_map(t, 3, true); }

bool gb_built_custom(gb_ct t) {
    return gb_check_custom(NULL, t->src, gb_op_param_i32(t, GB_CUSTOM_N_SRC), has_fun(t), tasks_of(t));
}
