// gates.c - GLU: gated linear units.
//
// If there is one source, its halves become two views, so one driver serves both forms.
#include "cpu/ops/elements.h"

// z = f(x) g. The parameters are in the order of ops_gates.c.
static void map_glu(const struct gb_cpu_call * call, const struct ggml_tensor * node, int64_t n, float * z,
    const float * x, const float * g) {
    switch (gb_op_param_i32(node, 0)) {
        case GGML_GLU_OP_REGLU: call->k->reglu_f32(n, z, x, g); break;
        case GGML_GLU_OP_GEGLU: call->k->geglu_f32(n, z, x, g); break;
        case GGML_GLU_OP_SWIGLU: call->k->swiglu_f32(n, z, x, g); break;
        case GGML_GLU_OP_GEGLU_ERF: call->k->geglu_erf_f32(n, z, x, g); break;
        case GGML_GLU_OP_GEGLU_QUICK: call->k->geglu_quick_f32(n, z, x, g); break;
        default: call->k->swiglu_oai_f32(n, z, x, g, gb_op_param_f32(node, 2), gb_op_param_f32(node, 3)); break;
    }
}

static void run_glu(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    if (node->src[1] != NULL) {
        gb_run_map2(call, node, map_glu);
        return;
    }
    struct ggml_tensor halves[2] = { *node->src[0], *node->src[0] }, result = *node;
    halves[0].ne[0] = halves[1].ne[0] = node->ne[0];
    halves[1].data = (char *) halves[1].data + (size_t) node->ne[0] * halves[1].nb[0];
    const bool swapped = gb_op_param_i32(node, 1) != 0;
    result.src[0] = &halves[swapped];
    result.src[1] = &halves[!swapped];
    gb_run_map2(call, &result, map_glu);
}

static const char * glu_unsupported(const struct ggml_tensor * node) {
    const int32_t op = gb_op_param_i32(node, 0);
    return op < 0 || op >= GGML_GLU_OP_COUNT ? "unknown gate" : gb_need_float(node, node->src[1] != NULL ? 2 : 1);
}

const struct gb_cpu_op gb_cpu_op_glu = {
    .unsupported = glu_unsupported, .n_tasks = gb_tasks_map, .run = run_glu, .map2 = map_glu
};
