// unary.c - operators that map each element of src[0] (SQR, SQRT, LOG, UNARY, LEAKY_RELU, CLAMP,
// SCALE, SCALE_BIAS, XIELU), and SILU_BACK, which maps pairs of elements of its two sources.
//
// Each operator is one function on a dense f32 run. gb_run_map1 and gb_run_map2 (elements.h) apply
// it to every float type and stride.
#include <math.h>

#include "cpu/ops/elements.h"

// Accepts any float types, also different ones, because runs are converted.
static const char * unsupported1(const struct ggml_tensor * node) { return gb_need_float(node, 1); }

// The driver of an operator that applies map_<name> to each run.
#define MAP(name, unsupported_)                                                                     \
    static void run_##name(const struct gb_cpu_call * call, struct ggml_tensor * node) {            \
        gb_run_map1(call, node, map_##name);                                                        \
    }                                                                                               \
    const struct gb_cpu_op gb_cpu_op_##name = {                                                     \
        .unsupported = unsupported_, .n_tasks = gb_tasks_map, .run = run_##name, .map1 = map_##name \
    };

// -------------------------------------------------------------------------------------------------- without parameters

// An operator that is one kernel of a run, <name>_f32.
#define PLAIN(name)                                                                                                \
    static void map_##name(const struct gb_cpu_call * call, const struct ggml_tensor * node, int64_t n, float * y, \
        const float * x) {                                                                                         \
        (void) node;                                                                                               \
        call->k->name##_f32(n, y, x);                                                                              \
    }                                                                                                              \
    MAP(name, unsupported1)

PLAIN(sqr)
PLAIN(sqrt)
PLAIN(log)

// --------------------------------------------------------------------------------------------------------------- UNARY

// Offset of the kernel of each function in the table of kernels.
static const size_t unary_kernel[GGML_UNARY_OP_COUNT] = {
#define GB_UNARY_OP(id, stem, ...) [GGML_UNARY_OP_##id] = offsetof(struct gb_kernels, stem##_f32),
#include "tensor/ops.def"
};

// UNARY's function is op_params[0]; unary_unsupported has checked its range.
static void map_unary(const struct gb_cpu_call * call, const struct ggml_tensor * node, int64_t n, float * y,
    const float * x) {
    void (*kernel)(int64_t, float *, const float *);
    memcpy(&kernel, (const char *) call->k + unary_kernel[gb_op_param_i32(node, 0)], sizeof(kernel));
    kernel(n, y, x);
}

static const char * unary_unsupported(const struct ggml_tensor * node) {
    const int32_t op = gb_op_param_i32(node, 0);
    return op < 0 || op >= GGML_UNARY_OP_COUNT ? "unknown unary op" : gb_need_float(node, 1);
}

MAP(unary, unary_unsupported)

// ----------------------------------------------------------------------------------------------------- with parameters

// y = x for x > 0, else slope x. op_params[0] is the slope.
static void map_leaky_relu(const struct gb_cpu_call * call, const struct ggml_tensor * node, int64_t n, float * y,
    const float * x) {
    call->k->leaky_relu_f32(n, y, x, gb_op_param_f32(node, 0));
}

// y = x limited to [op_params[0], op_params[1]].
static void map_clamp(const struct gb_cpu_call * call, const struct ggml_tensor * node, int64_t n, float * y,
    const float * x) {
    call->k->clamp_f32(n, y, x, gb_op_param_f32(node, 0), gb_op_param_f32(node, 1));
}

// y = x s. op_params[0] is s.
static void map_scale(const struct gb_cpu_call * call, const struct ggml_tensor * node, int64_t n, float * y,
    const float * x) {
    call->k->scale_f32(n, y, x, gb_op_param_f32(node, 0));
}

// y = x s + b. op_params[0] is s and op_params[1] is b.
static void map_scale_bias(const struct gb_cpu_call * call, const struct ggml_tensor * node, int64_t n, float * y,
    const float * x) {
    call->k->scale_bias_f32(n, y, x, gb_op_param_f32(node, 0), gb_op_param_f32(node, 1));
}

// The order of op_params is that of the kernel's parameters.
static void map_xielu(const struct gb_cpu_call * call, const struct ggml_tensor * node, int64_t n, float * y,
    const float * x) {
    call->k->xielu_f32(n, y, x, gb_op_param_f32(node, 0), gb_op_param_f32(node, 1), gb_op_param_f32(node, 2),
        gb_op_param_f32(node, 3));
}

MAP(scale_bias, unsupported1)
MAP(xielu, unsupported1)
MAP(leaky_relu, unsupported1)
MAP(clamp, unsupported1)
MAP(scale, unsupported1)

// ----------------------------------------------------------------------------------------------------------- SILU_BACK

static void map_silu_back(const struct gb_cpu_call * call, const struct ggml_tensor * node, int64_t n, float * z,
    const float * x, const float * dy) {
    (void) node;
    call->k->silu_back_f32(n, z, x, dy);
}

// src[0] is x, src[1] the gradient of the result.
static const char * silu_back_unsupported(const struct ggml_tensor * node) { return gb_need_float(node, 2); }

static void run_silu_back(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    gb_run_map2(call, node, map_silu_back);
}

const struct gb_cpu_op gb_cpu_op_silu_back = {
    .unsupported = silu_back_unsupported, .n_tasks = gb_tasks_map, .run = run_silu_back
};
