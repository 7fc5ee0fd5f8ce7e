// unary.c - operators that map each element of src[0] by itself, and SILU_BACK, which maps pairs.
//
// Each is one function on a dense f32 run; gb_run_map1 and gb_run_map2 (elements.h) do the rest, for every float type
// and stride.
#include <math.h>

#include "cpu/ops/elements.h"

static const char * unsupported1(const struct ggml_tensor * node) { return gb_need_float(node, 1); }

// -------------------------------------------------------------------------------------------------- without parameters

// Defines map_<name> and the operator's run function.
#define PLAIN(name, kernel)                                                                                        \
    static void map_##name(const struct gb_cpu_call * call, const struct ggml_tensor * node, int64_t n, float * y, \
        const float * x) {                                                                                         \
        (void) node;                                                                                               \
        call->k->kernel(n, y, x);                                                                                  \
    }                                                                                                              \
    static void run_##name(const struct gb_cpu_call * call, struct ggml_tensor * node) {                           \
        gb_run_map1(call, node, map_##name);                                                                       \
    }                                                                                                              \
    const struct gb_cpu_op gb_cpu_op_##name = {                                                                    \
        .unsupported = unsupported1, .n_tasks = gb_tasks_map, .run = run_##name                                    \
    };

PLAIN(sqr, sqr_f32)
PLAIN(sqrt, sqrt_f32)
PLAIN(log, log_f32)

static const size_t unary_kernel[GGML_UNARY_OP_COUNT] = {
    // where the kernel is in the table
    [GGML_UNARY_OP_ABS]         = offsetof(struct gb_kernels, abs_f32),
    [GGML_UNARY_OP_SGN]         = offsetof(struct gb_kernels, sgn_f32),
    [GGML_UNARY_OP_NEG]         = offsetof(struct gb_kernels, neg_f32),
    [GGML_UNARY_OP_STEP]        = offsetof(struct gb_kernels, step_f32),
    [GGML_UNARY_OP_TANH]        = offsetof(struct gb_kernels, tanh_f32),
    [GGML_UNARY_OP_ELU]         = offsetof(struct gb_kernels, elu_f32),
    [GGML_UNARY_OP_RELU]        = offsetof(struct gb_kernels, relu_f32),
    [GGML_UNARY_OP_GELU]        = offsetof(struct gb_kernels, gelu_f32),
    [GGML_UNARY_OP_GELU_QUICK]  = offsetof(struct gb_kernels, gelu_quick_f32),
    [GGML_UNARY_OP_SILU]        = offsetof(struct gb_kernels, silu_f32),
    [GGML_UNARY_OP_HARDSWISH]   = offsetof(struct gb_kernels, hardswish_f32),
    [GGML_UNARY_OP_HARDSIGMOID] = offsetof(struct gb_kernels, hardsigmoid_f32),
    [GGML_UNARY_OP_GELU_ERF]    = offsetof(struct gb_kernels, gelu_erf_f32),
};

static void map_unary(const struct gb_cpu_call * call, const struct ggml_tensor * node, int64_t n, float * y,
    const float * x) {
    void (*kernel)(int64_t, float *, const float *);
    memcpy(&kernel, (const char *) call->k + unary_kernel[gb_op_param_i32(node, 0)], sizeof(kernel));
    kernel(n, y, x);
}

static const char * unary_unsupported(const struct ggml_tensor * node) {
    const int32_t op = gb_op_param_i32(node, 0);
    return op < 0 || op >= GGML_UNARY_OP_COUNT || unary_kernel[op] == 0 ? "unknown unary op" : gb_need_float(node, 1);
}

static void run_unary(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    gb_run_map1(call, node, map_unary);
}

const struct gb_cpu_op gb_cpu_op_unary = {
    .unsupported = unary_unsupported, .n_tasks = gb_tasks_map, .run = run_unary
};

// ----------------------------------------------------------------------------------------------------- with parameters

static void map_leaky_relu(const struct gb_cpu_call * call, const struct ggml_tensor * node, int64_t n, float * y,
    const float * x) {
    call->k->leaky_relu_f32(n, y, x, gb_op_param_f32(node, 0));
}

static void map_clamp(const struct gb_cpu_call * call, const struct ggml_tensor * node, int64_t n, float * y,
    const float * x) {
    call->k->clamp_f32(n, y, x, gb_op_param_f32(node, 0), gb_op_param_f32(node, 1));
}

static void map_scale(const struct gb_cpu_call * call, const struct ggml_tensor * node, int64_t n, float * y,
    const float * x) {
    call->k->scale_f32(n, y, x, gb_op_param_f32(node, 0));
}

static void run_leaky_relu(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    gb_run_map1(call, node, map_leaky_relu);
}

static void run_clamp(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    gb_run_map1(call, node, map_clamp);
}

static void run_scale(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    gb_run_map1(call, node, map_scale);
}

const struct gb_cpu_op gb_cpu_op_leaky_relu = {
    .unsupported = unsupported1, .n_tasks = gb_tasks_map, .run = run_leaky_relu
};
const struct gb_cpu_op gb_cpu_op_clamp = { .unsupported = unsupported1, .n_tasks = gb_tasks_map, .run = run_clamp };
const struct gb_cpu_op gb_cpu_op_scale = { .unsupported = unsupported1, .n_tasks = gb_tasks_map, .run = run_scale };

gb_map1 * gb_map1_of(const struct ggml_tensor * node) {
    switch (node->op) {
        case GGML_OP_SQR: return map_sqr;
        case GGML_OP_SQRT: return map_sqrt;
        case GGML_OP_LOG: return map_log;
        case GGML_OP_UNARY: return map_unary;
        case GGML_OP_LEAKY_RELU: return map_leaky_relu;
        case GGML_OP_CLAMP: return map_clamp;
        case GGML_OP_SCALE: return map_scale;
        default: return NULL;
    }
}

// ----------------------------------------------------------------------------------------------------------- SILU_BACK

// d/dx (x s) with s = 1 / (1 + e^-x) is s (1 + x (1 - s)). 1 - s is formed as 1 / (1 + e^x): for large x the difference
// would cancel, and x times it must go to 0 at the far ends, where s or rest is 0: x itself is cut there.
static void map_silu_back(const struct gb_cpu_call * call, const struct ggml_tensor * node, int64_t n, float * z,
    const float * x, const float * dy) {
    (void) call;
    (void) node;
    for (int64_t i = 0; i < n; i++) {
        const float s    = 1.0f / (1.0f + expf(-x[i]));
        const float rest = 1.0f / (1.0f + expf(x[i]));
        const float cut  = x[i] > 1000.0f ? 1000.0f : x[i] < -1000.0f ? -1000.0f : x[i];
        z[i]             = dy[i] * (s + cut * s * rest);
    }
}

static const char * silu_back_unsupported(const struct ggml_tensor * node) { return gb_need_float(node, 2); }

static void run_silu_back(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    gb_run_map2(call, node, map_silu_back);
}

const struct gb_cpu_op gb_cpu_op_silu_back = {
    .unsupported = silu_back_unsupported, .n_tasks = gb_tasks_map, .run = run_silu_back
};
