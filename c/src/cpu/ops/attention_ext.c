// attention_ext.c - FLASH_ATTN_EXT: attention with grouped heads, a mask, a cap of the scores, and sinks.
//
// A key that the mask hides with -inf has the weight 0, and a value with the weight 0 is not added.
// So a NaN or an infinity in an unused place of a cache has no effect. Blocks that the mask hides
// from all rows are not read.
#include "cpu/ops/attention.h"

enum {
    FEW_UNITS = 64, // desired number of units: fewer are divided by keys
    FEW_PART = 1024, // keys of a part, at least
    TILED_UNITS = 16,
    TILED_PART = 2048,
};

static bool is_few(const struct gb_attention * a) { return gb_attention_rows(a) <= GB_ATTENTION_FEW; }

static struct gb_attention attention_of(const struct ggml_tensor * node) {
    const float cap = gb_op_param_f32(node, 2);
    struct gb_attention a = {
        .q = node->src[0],
        .k = node->src[1],
        .v = node->src[2],
        .sinks = node->src[4],
        .rows_of_values = true,
        .scale = gb_op_param_f32(node, 0),
        .exact = gb_op_param_i32(node, 3) == GGML_PREC_F32,
        .type = node->type,
        .out = node->data,
        .nb = { node->nb[0], node->nb[2], node->nb[1], node->nb[3] }, // heads before queries
    };
    if (cap > 0) {
        a.scale /= cap;
        a.edits[a.n_edits++] = (struct gb_score_edit){ GB_SCORE_CAP, cap, NULL };
    }
    if (node->src[3] != NULL) {
        a.edits[a.n_edits++] = (struct gb_score_edit){ GB_SCORE_MASK, gb_op_param_f32(node, 1), node->src[3] };
    }
    gb_attention_set_group(&a);
    if (is_few(&a)) {
        gb_attention_divide(&a, gb_attention_planes(&a), FEW_UNITS, FEW_PART);
    } else {
        gb_attention_divide(&a, gb_attention_tiled_units(&a), TILED_UNITS, TILED_PART);
    }
    return a;
}

static void run_flash_attn_ext(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    if (gb_is_empty(node)) {
        return;
    }
    const struct gb_attention a = attention_of(node);
    if (is_few(&a)) {
        gb_attention_run_few(call, &a);
    } else {
        gb_attention_run_tiled(call, &a);
    }
}

static bool can_be_read(const struct ggml_tensor * t) { return gb_is_float(t->type) || gb_can_load(t); }

static const char * flash_attn_ext_unsupported(const struct ggml_tensor * node) {
    const struct ggml_tensor *mask = node->src[3], *sinks = node->src[4];
    if (!gb_is_float(node->src[0]->type)) {
        return "source 0 must be f32, f16 or bf16";
    }
    if (!can_be_read(node->src[1]) || !can_be_read(node->src[2])) {
        return "sources 1 and 2 must be floats, or quantized with rows of whole blocks";
    }
    if (mask != NULL && mask->type != GGML_TYPE_F32 && mask->type != GGML_TYPE_F16) {
        return "source 3 must be f32 or f16";
    }
    if (sinks != NULL && sinks->type != GGML_TYPE_F32) {
        return "source 4 must be f32";
    }
    return node->type == GGML_TYPE_F32 && node->nb[0] == sizeof(float) ? NULL
                                                                       : "the result must be f32 with dense rows";
}

static size_t flash_attn_ext_work(const struct ggml_tensor * node, int n_tasks) {
    if (gb_is_empty(node)) {
        return 0;
    }
    const struct gb_attention a = attention_of(node);
    const int64_t floats = is_few(&a) ? gb_attention_few_floats(&a) : gb_attention_tiled_floats(&a);
    return gb_floats_size(floats, n_tasks) + gb_attention_parts_size(&a);
}

// A multiplication and an addition count as a sixteenth of an element.
static int flash_attn_ext_tasks(const struct ggml_tensor * node, int n_threads) {
    if (gb_is_empty(node)) {
        return 1;
    }
    const struct gb_attention a = attention_of(node);
    const int64_t planes = gb_attention_planes(&a), units = is_few(&a) ? planes : gb_attention_tiled_units(&a);
    const double work = (double) gb_attention_rows(&a) * (double) planes * (double) a.k->ne[1] *
                        (double) (a.q->ne[0] + gb_attention_width(&a)) / 16;
    return gb_tasks_for(work, units * a.parts, n_threads);
}

const struct gb_cpu_op gb_cpu_op_flash_attn_ext = {
    .unsupported = flash_attn_ext_unsupported,
    .n_tasks = flash_attn_ext_tasks,
    .work_size = flash_attn_ext_work,
    .run = run_flash_attn_ext,
};
