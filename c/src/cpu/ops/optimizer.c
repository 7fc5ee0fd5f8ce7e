// optimizer.c - OPT_STEP_ADAMW and OPT_STEP_SGD, in place (tensor/ops_optimizer.c).
//
// The formulas are chains of kernels over short runs, which stay in the first-level cache. So a step
// takes as long as its tensors take to be read and written. A chain reads all sources of a run before
// it writes the result, because the sources may be one tensor.
#include "cpu/ops/elements.h"
#include "tensor/numbers.h"

// Number i of the vector params.
static float number(const struct ggml_tensor * params, int i) {
    return gb_get_f32((const char *) params->data + (size_t) i * sizeof(float));
}

// NULL if the node, its first n_src sources and params are F32, and the numbers of params lie next to each other.
static const char * unsupported(const struct ggml_tensor * node, int n_src, const struct ggml_tensor * params) {
    const char * why = gb_need_f32(node, n_src);
    if (why != NULL) {
        return why;
    }
    return params->type == GGML_TYPE_F32 && ggml_is_contiguous(params) ? NULL : "the parameters must be contiguous f32";
}

// ----------------------------------------------------------------------------------------------------------------- SGD

static void map_sgd(const struct gb_cpu_call * call, const struct ggml_tensor * node, int64_t n, float * z,
    const float * a, const float * g) {
    const float alpha = number(node->src[2], 0), wd = number(node->src[2], 1);
    float kept[GB_RUN];
    for (int64_t i = 0; i < n; i += GB_RUN) {
        const int64_t m = GB_MIN(n - i, (int64_t) GB_RUN);
        call->k->scale_f32(m, kept, a + i, 1.0f - alpha * wd);
        call->k->scale_mask_f32(m, z + i, g + i, -alpha, kept);
    }
}

static void run_sgd(const struct gb_cpu_call * call, struct ggml_tensor * node) { gb_run_map2(call, node, map_sgd); }

static const char * sgd_unsupported(const struct ggml_tensor * node) { return unsupported(node, 2, node->src[2]); }

const struct gb_cpu_op gb_cpu_op_opt_step_sgd = {
    .unsupported = sgd_unsupported, .n_tasks = gb_tasks_map, .run = run_sgd
};

// --------------------------------------------------------------------------------------------------------------- ADAMW

enum { ALPHA, BETA_1, BETA_2, EPS, WD, SCALE_1, SCALE_2 }; // indices in params; the scales are 1 / (1 - beta^t)

static void map_mean(const struct gb_cpu_call * call, const struct ggml_tensor * node, int64_t n, float * z,
    const float * mean, const float * g) {
    const float beta = number(node->src[2], BETA_1);
    float kept[GB_RUN];
    for (int64_t i = 0; i < n; i += GB_RUN) {
        const int64_t m = GB_MIN(n - i, (int64_t) GB_RUN);
        call->k->scale_f32(m, kept, mean + i, beta);
        call->k->scale_mask_f32(m, z + i, g + i, 1.0f - beta, kept);
    }
}

static void map_squares(const struct gb_cpu_call * call, const struct ggml_tensor * node, int64_t n, float * z,
    const float * v, const float * g) {
    const float beta = number(node->src[2], BETA_2);
    float squares[GB_RUN];
    for (int64_t i = 0; i < n; i += GB_RUN) {
        const int64_t m = GB_MIN(n - i, (int64_t) GB_RUN);
        call->k->sqr_f32(m, squares, g + i);
        call->k->scale_f32(m, z + i, v + i, beta);
        call->k->mad_f32(m, z + i, squares, 1.0f - beta);
    }
}

static void map_weights(const struct gb_cpu_call * call, const struct ggml_tensor * node, int64_t n, float * z,
    const float * a, const float * mean, const float * v) {
    const struct ggml_tensor * params = node->src[3];
    const struct gb_kernels * k = call->k;
    const float alpha = number(params, ALPHA), kept = 1.0f - alpha * number(params, WD);
    float root[GB_RUN], change[GB_RUN];
    for (int64_t i = 0; i < n; i += GB_RUN) {
        const int64_t m = GB_MIN(n - i, (int64_t) GB_RUN);
        k->scale_f32(m, root, v + i, number(params, SCALE_2));
        k->sqrt_f32(m, root, root);
        k->add1_f32(m, root, root, number(params, EPS));
        k->scale_f32(m, change, mean + i, number(params, SCALE_1));
        k->div_f32(m, change, change, root);
        k->scale_f32(m, z + i, a + i, kept);
        k->mad_f32(m, z + i, change, -alpha);
    }
}

static void run_adamw(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    if (gb_op_param_i32(node, 0) == GB_ADAMW_WEIGHTS) {
        gb_run_map3(call, node, map_weights);
    } else {
        gb_run_map2(call, node, gb_op_param_i32(node, 0) == GB_ADAMW_MEAN ? map_mean : map_squares);
    }
}

static const char * adamw_unsupported(const struct ggml_tensor * node) {
    const int32_t part = gb_op_param_i32(node, 0);
    if (part < GB_ADAMW_MEAN || part > GB_ADAMW_WEIGHTS) {
        return "unknown part of AdamW";
    }
    const int at = part == GB_ADAMW_WEIGHTS ? 3 : 2;
    return node->src[at] == NULL ? "a source is missing" : unsupported(node, at, node->src[at]);
}

const struct gb_cpu_op gb_cpu_op_opt_step_adamw = {
    .unsupported = adamw_unsupported, .n_tasks = gb_tasks_map, .run = run_adamw
};
