// attention.cu - FLASH_ATTN and FLASH_ATTN_EXT: attention as one operator. Scores are never stored. Chains of operators
// (attention_chain.cu) use the same table of algorithms.
//
// FLASH_ATTN of halves whose rows can be copied in 16-byte pieces runs on the tensor cores. The rest, few
// rows and FLASH_ATTN_EXT are computed in float.
#include <cmath>

#include "cuda/kernels/attention.cuh"
#include "cuda/ops/attention.h"

enum { MAX_HEAD = 1024, FEW_ROWS = 8 };

static const char * flash_attn_supports(const gb_cuda_device &, const ggml_tensor * dst) {
    for (int i = 0; i < 3; i++) {
        const ggml_tensor * t = dst->src[i];
        const size_t bits = t->nb[0] | t->nb[1] | t->nb[2] | t->nb[3];
        if (!gb_is_float_type(t->type) || bits % ggml_type_size(t->type) != 0) {
            return "sources must be f32, f16 or bf16, with strides of whole elements";
        }
        if (t->ne[2] <= 0 || t->ne[3] <= 0) {
            return "sources 1 and 2 must have heads";
        }
    }
    if (gb_need_floats(dst, 0) != NULL) {
        return gb_need_floats(dst, 0);
    }
    if (dst->ne[0] > MAX_HEAD) {
        return "heads of more than 1024 elements";
    }
    return gb_attention_fits(dst) ? NULL : "more rows or heads than a grid has";
}

static gb_attention describe(const ggml_tensor * dst) {
    if (dst->op == GGML_OP_FLASH_ATTN_EXT) {
        return gb_attention_ext_of(dst);
    }
    gb_attention p = {};
    p.q = gb_attention_input_of(dst->src[0]);
    p.k = gb_attention_input_of(dst->src[1]);
    p.v = gb_attention_input_of(dst->src[2]);
    p.dst = (float *) (void *) gb_cuda_data(dst);
    p.d = dst->ne[0];
    p.n = dst->ne[1];
    p.m = dst->src[1]->ne[1];
    p.heads = dst->ne[2];
    p.outer = p.k.ne2 == p.v.ne2 && p.heads % p.k.ne2 == 0 ? p.k.ne2 : p.heads;
    p.group_step = 1;
    p.head_step = p.outer;
    p.dst_query = p.d;
    p.dst_head = p.n * p.d;
    p.masked = dst->op_params[0] != 0;
    p.past = p.m - p.n;
    p.scale = (float) (1 / std::sqrt((double) p.d));
    p.parts = 1;
    return p;
}

template <int KIND, int DP, int KEYS, bool MASK>
static enum ggml_status run_halves(gb_cuda_backend & b, gb_attention p, int64_t batch) {
    const size_t fixed = GB_ATTENTION_ROWS * DP * 2, stage = 2 * DP * KEYS * 2;
    p.stages = fixed + 2 * stage <= b.device->shared_max ? 2 : 1;
    if (!gb_attention_cut_keys(b, p, batch, GB_ATTENTION_ROWS, KEYS, GB_ATTENTION_LEAST_KEYS, 2 * b.device->n_sm)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    const dim3 grid((unsigned) (gb_attention_row_tiles(p, GB_ATTENTION_ROWS) * p.parts), (unsigned) p.outer,
        (unsigned) batch);
    GB_CUDA_TRY(b, GB_LAUNCH((gb_attention_halves<KIND, DP, KEYS, MASK>), grid, GB_ATTENTION_THREADS,
                       fixed + (size_t) p.stages * stage, b.queue, p));
    return gb_attention_join_parts(b, p, batch);
}

template <int KIND, bool MASK>
static enum ggml_status run_head_size(gb_cuda_backend & b, const gb_attention & p, int64_t batch) {
    return p.d <= 64    ? run_halves<KIND, 64, 64, MASK>(b, p, batch)
           : p.d <= 128 ? run_halves<KIND, 128, 64, MASK>(b, p, batch)
                        : run_halves<KIND, 256, 32, MASK>(b, p, batch);
}

template <int KIND> static enum ggml_status run_kind(gb_cuda_backend & b, const gb_attention & p, int64_t batch) {
    return p.mask.x != NULL ? run_head_size<KIND, true>(b, p, batch) : run_head_size<KIND, false>(b, p, batch);
}

static enum ggml_status run_tensor_cores(gb_cuda_backend & b, gb_attention p, int64_t batch) {
    return p.q.type == GGML_TYPE_F16 ? run_kind<GB_HALF_F16>(b, p, batch) : run_kind<GB_HALF_BF16>(b, p, batch);
}

template <int DP, int ROWS>
static enum ggml_status run_tiles(gb_cuda_backend & b, const gb_attention & p, int64_t batch) {
    const dim3 grid((unsigned) gb_cuda_ceil_div(p.n, ROWS), (unsigned) p.heads, (unsigned) batch);
    const size_t shared = gb_attention_layout<DP, ROWS>::end * sizeof(float);
    GB_CUDA_TRY(b, GB_LAUNCH((gb_attention_floats<DP, ROWS>), grid, GB_ATTENTION_FLOAT_THREADS, shared, b.queue, p));
    return GGML_STATUS_SUCCESS;
}

static const char * floats_decline(const gb_cuda_device &, const gb_attention & p) {
    return p.by_key                        ? "values are stored by key"
           : p.n < FEW_ROWS                ? "needs at least 8 rows of queries"
           : p.d > GB_ATTENTION_FLOAT_HEAD ? "heads of more than 128 elements"
                                           : NULL;
}

static enum ggml_status run_floats(gb_cuda_backend & b, gb_attention p, int64_t batch) {
    return p.d <= 64 ? run_tiles<64, 64>(b, p, batch) : run_tiles<128, 32>(b, p, batch);
}

static const char * never_declines(const gb_cuda_device &, const gb_attention &) { return NULL; }

// --------------------------------------------------------------------------------------------------------------- table

static const gb_attention_algorithm algorithms[] = {
    { "attention_few_rows", gb_attention_few_declines, gb_attention_few_run },
    { "attention_hopper", gb_attention_hopper_declines, gb_attention_hopper_run },
    { "attention_tensor_cores", gb_attention_halves_decline, run_tensor_cores },
    { "attention_tiles", floats_decline, run_floats },
    { "attention_by_key", gb_attention_ext_declines, gb_attention_ext_run },
    { "attention_rows", never_declines, gb_attention_few_run },
};

gb_cuda_choice gb_attention_choose(const gb_cuda_device & device, const gb_attention & p) {
    int i = 0;
    while (algorithms[i].declines(device, p) != NULL) {
        i++; // ends: the last algorithm never declines
    }
    return { i, -1 };
}

enum ggml_status gb_attention_run(gb_cuda_backend & b, const gb_attention & p, int64_t batch, gb_cuda_choice choice) {
    return algorithms[choice.algorithm].run(b, p, batch);
}

static gb_cuda_choice flash_attn_choose(const gb_cuda_backend & b, const ggml_tensor * dst) {
    return gb_attention_choose(*b.device, describe(dst));
}

static const char * flash_attn_candidate(const gb_cuda_backend & b, const ggml_tensor * dst, int i, const char ** why) {
    const gb_attention p = describe(dst);
    if (i < 0 || i > gb_attention_choose(*b.device, p).algorithm) {
        return NULL;
    }
    *why = algorithms[i].declines(*b.device, p);
    return algorithms[i].name;
}

// ------------------------------------------------------------------------------------------------------------ operator

// Kernels write dense f32. Another result is converted from that.
static enum ggml_status flash_attn_run(gb_cuda_backend & b, ggml_tensor * dst) {
    gb_attention p = describe(dst);
    const gb_cuda_choice choice = b.choices.data[b.at];
    if (dst->type == GGML_TYPE_F32 && ggml_is_contiguous(dst)) {
        return gb_attention_run(b, p, dst->ne[3], choice);
    }
    gb_view out;
    if (!gb_scratch_floats(b, dst, &out)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    p.dst = (float *) (void *) out.p;
    const enum ggml_status status = gb_attention_run(b, p, dst->ne[3], choice);
    if (status == GGML_STATUS_SUCCESS) {
        GB_CUDA_TRY(b, gb_launch_copy(gb_view_of(dst), out, b.queue));
    }
    return status;
}

static const char * flash_attn_ext_supports(const gb_cuda_device &, const ggml_tensor * dst) {
    return gb_attention_ext_unsupported(dst);
}

GB_CUDA_FAMILY_DEFINE(attention,
    { GGML_OP_FLASH_ATTN, flash_attn_supports, flash_attn_run, nullptr, flash_attn_choose, flash_attn_candidate },
    { GGML_OP_FLASH_ATTN_EXT, flash_attn_ext_supports, flash_attn_run, nullptr, flash_attn_choose,
        flash_attn_candidate })
