// select.c - COMPARE (src[1] repeats over src[0]), which makes masks, and WHERE, which selects by a
// mask.
//
// The drivers of elementwise operators move floats. They move integers as bits of tensors of type
// F32. Only the comparison and the test whether a condition is 0 use them as integers.
#include "cpu/ops/elements.h"

// The tensor, as F32 with the same bits if it is I32.
static struct ggml_tensor as_floats(const struct ggml_tensor * t) {
    struct ggml_tensor view = *t;
    view.type = t->type == GGML_TYPE_I32 ? GGML_TYPE_F32 : t->type;
    return view;
}

static bool is_i32(const struct ggml_tensor * t) { return t->type == GGML_TYPE_I32; }

static inline int32_t bits_at(const float * p, int64_t i) { return gb_get_i32((const char *) (p + i)); }

// ------------------------------------------------------------------------------------------------------------- COMPARE

static void map_compare(const struct gb_cpu_call * call, const struct ggml_tensor * node, int64_t n, float * z,
    const float * x, const float * y) {
    switch (gb_op_param_i32(node, 0)) {
        case GGML_COMPARE_EQUAL: call->k->equal_f32(n, z, x, y); break;
        case GGML_COMPARE_NOT_EQUAL: call->k->not_equal_f32(n, z, x, y); break;
        case GGML_COMPARE_LESS: call->k->less_f32(n, z, x, y); break;
        case GGML_COMPARE_LESS_EQUAL: call->k->less_equal_f32(n, z, x, y); break;
        case GGML_COMPARE_GREATER: call->k->less_f32(n, z, y, x); break;
        default: call->k->less_equal_f32(n, z, y, x); break;
    }
}

// z may be x or y: each element is read before it is written.
#define EACH_INTEGER(OP)                                     \
    for (int64_t i = 0; i < n; i++) {                        \
        z[i] = bits_at(x, i) OP bits_at(y, i) ? 1.0f : 0.0f; \
    }

static void map_compare_i32(const struct gb_cpu_call * call, const struct ggml_tensor * node, int64_t n, float * z,
    const float * x, const float * y) {
    (void) call;
    switch (gb_op_param_i32(node, 0)) {
        case GGML_COMPARE_EQUAL: EACH_INTEGER(==) break;
        case GGML_COMPARE_NOT_EQUAL: EACH_INTEGER(!=) break;
        case GGML_COMPARE_LESS: EACH_INTEGER(<) break;
        case GGML_COMPARE_LESS_EQUAL: EACH_INTEGER(<=) break;
        case GGML_COMPARE_GREATER: EACH_INTEGER(>) break;
        default: EACH_INTEGER(>=) break;
    }
}

static void run_compare(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    if (!is_i32(node->src[0])) {
        gb_run_map2(call, node, map_compare);
        return;
    }
    struct ggml_tensor x = as_floats(node->src[0]), y = as_floats(node->src[1]), z = *node;
    z.src[0] = &x;
    z.src[1] = &y;
    gb_run_map2(call, &z, map_compare_i32);
}

static const char * compare_unsupported(const struct ggml_tensor * node) {
    const int32_t comparison = gb_op_param_i32(node, 0);
    if (comparison < 0 || comparison >= GGML_COMPARE_COUNT) {
        return "unknown comparison";
    }
    if (node->type != GGML_TYPE_F32) {
        return "the result must be f32";
    }
    if (!is_i32(node->src[0]) && !is_i32(node->src[1])) {
        return gb_need_float(node, 2);
    }
    if (!is_i32(node->src[0]) || !is_i32(node->src[1])) {
        return "an i32 can only be compared with an i32";
    }
    return gb_count(node) > GB_MAX_COUNT ? "a tensor has more than 2^48 elements" : NULL;
}

const struct gb_cpu_op gb_cpu_op_compare = {
    .unsupported = compare_unsupported, .n_tasks = gb_tasks_map, .run = run_compare, .map2 = map_compare
};

// --------------------------------------------------------------------------------------------------------------- WHERE

static void map_where(const struct gb_cpu_call * call, const struct ggml_tensor * node, int64_t n, float * z,
    const float * c, const float * x, const float * y) {
    (void) node;
    call->k->select_f32(n, z, c, x, y);
}

// The condition as numbers, because an integer's bits may be -0 or a subnormal float.
static void map_where_i32(const struct gb_cpu_call * call, const struct ggml_tensor * node, int64_t n, float * z,
    const float * c, const float * x, const float * y) {
    (void) node;
    float holds[GB_RUN];
    for (int64_t i = 0; i < n; i += GB_RUN) {
        const int64_t m = GB_MIN(n - i, (int64_t) GB_RUN);
        for (int64_t j = 0; j < m; j++) {
            holds[j] = bits_at(c, i + j) != 0 ? 1.0f : 0.0f;
        }
        call->k->select_f32(m, z + i, holds, x + i, y + i);
    }
}

static void run_where(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    struct ggml_tensor result = as_floats(node), src[3];
    for (int i = 0; i < 3; i++) {
        src[i] = as_floats(node->src[i]);
        result.src[i] = &src[i];
    }
    gb_run_map3(call, &result, is_i32(node->src[0]) ? map_where_i32 : map_where);
}

static const char * where_unsupported(const struct ggml_tensor * node) {
    const struct ggml_tensor *cond = node->src[0], *a = node->src[1], *b = node->src[2];
    if (!gb_is_float(cond->type) && !is_i32(cond)) {
        return "source 0 must be f32, f16, bf16 or i32";
    }
    if (!gb_is_float(node->type) && !is_i32(node)) {
        return "the result must be f32, f16, bf16 or i32";
    }
    if (a->type != node->type || b->type != node->type) {
        return "source 1, source 2 and the result must have the same type";
    }
    const bool fits = gb_count(node) <= GB_MAX_COUNT && gb_count(cond) <= GB_MAX_COUNT && gb_count(a) <= GB_MAX_COUNT &&
                      gb_count(b) <= GB_MAX_COUNT;
    return fits ? NULL : "a tensor has more than 2^48 elements";
}

const struct gb_cpu_op gb_cpu_op_where = {
    .unsupported = where_unsupported, .n_tasks = gb_tasks_map, .run = run_where
};
