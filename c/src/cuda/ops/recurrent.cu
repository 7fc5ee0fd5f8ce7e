// recurrent.cu - SSM_CONV, SSM_SCAN, GATED_DELTA_NET, RWKV_WKV6, RWKV_WKV7, GATED_LINEAR_ATTN (kernels/recurrent.cuh).
//
// An index of SSM_SCAN that is out of range gives NaN and an error (index.h).
#include "cuda/kernels/recurrent.cuh"
#include "cuda/ops/elements.h"

enum { MAX_KEYS = 1024 }; // of a state

// NULL if the sources are f32 with dense rows. Bit i of `dense`: source i must be contiguous.
static const char * rows_unsupported(const ggml_tensor * dst, int n_src, unsigned dense) {
    if (dst->type != GGML_TYPE_F32 || !ggml_is_contiguous(dst) || gb_need_plain(dst) != NULL) {
        return "a result that is not contiguous f32";
    }
    for (int i = 0; i < n_src; i++) {
        const ggml_tensor * t = dst->src[i];
        if (gb_need_plain(t) != NULL) {
            return gb_need_plain(t);
        }
        if (t->type != GGML_TYPE_F32 || (t->nb[0] != sizeof(float) && t->ne[0] > 1)) {
            return "sources that are not f32 with dense rows";
        }
        if ((dense >> i & 1) != 0 && !ggml_is_contiguous(t)) {
            return "a state or gate that is not contiguous";
        }
    }
    return NULL;
}

static const char * recurrent_unsupported(const ggml_tensor * dst, int n_src, unsigned dense, int64_t keys) {
    const char * why = rows_unsupported(dst, n_src, dense);
    return why != NULL ? why : keys > MAX_KEYS ? "states of more than 1024 keys" : NULL;
}

// ------------------------------------------------------------------------------------------------------------ SSM_CONV

static const char * ssm_conv_supports(const gb_cuda_device &, const ggml_tensor * dst) {
    return rows_unsupported(dst, 2, 0);
}

static enum ggml_status ssm_conv_run(gb_cuda_backend & b, ggml_tensor * dst) {
    const int64_t n = gb_count(dst);
    GB_CUDA_TRY(b, GB_LAUNCH(gb_ssm_conv, gb_blocks(n), GB_BLOCK, 0, b.queue, gb_view_of(dst), gb_view_of(dst->src[0]),
                       gb_view_of(dst->src[1]), n));
    return GGML_STATUS_SUCCESS;
}

// -------------------------------------------------------------------------------------------------------------- states

// Describes a node. outputs: elements of the result before the states.
static gb_recurrent describe(const ggml_tensor * dst, int n_src, int64_t outputs) {
    gb_recurrent q = {};
    for (int i = 0; i < n_src; i++) {
        q.in[i] = gb_view_of(dst->src[i]);
    }
    q.key_step = 1;
    q.n_states = 1;
    q.scale = 1;
    q.y = (float *) (void *) gb_cuda_data(dst);
    q.states = q.y + outputs;
    return q;
}

template <int KIND> static enum ggml_status launch(gb_cuda_backend & b, const gb_recurrent & q) {
    const int64_t warps = q.rows * q.heads * q.sequences;
    const unsigned blocks = (unsigned) gb_cuda_ceil_div(warps, GB_RECURRENT_WARPS);
    const int block = GB_RECURRENT_WARPS * GB_WARP;
    if (warps == 0) {
        return GGML_STATUS_SUCCESS;
    }
    GB_CUDA_TRY(b,
        (q.size <= 32       ? GB_LAUNCH((gb_recurrent_rows<KIND, 1>), blocks, block, 0, b.queue, q, warps)
            : q.size <= 64  ? GB_LAUNCH((gb_recurrent_rows<KIND, 2>), blocks, block, 0, b.queue, q, warps)
            : q.size <= 128 ? GB_LAUNCH((gb_recurrent_rows<KIND, 4>), blocks, block, 0, b.queue, q, warps)
            : q.size <= 256 ? GB_LAUNCH((gb_recurrent_rows<KIND, 8>), blocks, block, 0, b.queue, q, warps)
                            : GB_LAUNCH((gb_recurrent_rows<KIND, 32>), blocks, block, 0, b.queue, q, warps)));
    return GGML_STATUS_SUCCESS;
}

// s [N, P, H, R], x [P, H, T, S], dt, A, B, C, ids
static enum ggml_status ssm_scan_run(gb_cuda_backend & b, ggml_tensor * dst) {
    const ggml_tensor *s = dst->src[0], *x = dst->src[1];
    gb_recurrent q = describe(dst, 7, gb_count(x));
    q.size = s->ne[0];
    q.rows = x->ne[0];
    q.heads = x->ne[1];
    q.tokens = x->ne[2];
    q.sequences = x->ne[3];
    q.row_step = q.size;
    q.n_states = dst->op_params[0];
    q.from = (const float *) (const void *) gb_cuda_data(s);
    q.from_step = q.size * q.rows * q.heads;
    q.reader = gb_cuda_index_reader(b, dst, dst->src[6], s->ne[3]);
    return launch<GB_SSM_SCAN>(b, q);
}

static const char * ssm_scan_supports(const gb_cuda_device &, const ggml_tensor * dst) {
    const ggml_tensor * ids = dst->src[6];
    if (ids == NULL || ids->type != GGML_TYPE_I32 || gb_need_plain(ids) != NULL) {
        return "ids that are not i32";
    }
    return dst->op_params[0] < 1 ? "no state is kept"
                                 : recurrent_unsupported(dst, 6, 1 << 0 | 1 << 2 | 1 << 3, dst->src[0]->ne[0]);
}

// q, k, v [S, H, T, B], g, beta, state [S, S, H, B]
static enum ggml_status delta_run(gb_cuda_backend & b, ggml_tensor * dst) {
    const ggml_tensor * v = dst->src[2];
    gb_recurrent q = describe(dst, 6, gb_count(v));
    q.size = q.rows = v->ne[0];
    q.heads = v->ne[1];
    q.tokens = v->ne[2];
    q.sequences = v->ne[3];
    q.row_step = q.size;
    q.n_states = dst->op_params[0];
    q.from = (const float *) (const void *) gb_cuda_data(dst->src[5]);
    q.from_step = q.size * q.size * q.heads;
    q.scale = (float) (1 / sqrt((double) q.size));
    return launch<GB_DELTA_NET>(b, q);
}

static const char * delta_supports(const gb_cuda_device &, const ggml_tensor * dst) {
    return dst->op_params[0] < 1 ? "no state is kept"
                                 : recurrent_unsupported(dst, 6, 1 << 3 | 1 << 4 | 1 << 5, dst->src[2]->ne[0]);
}

// The first source is [S, H, T] of all sequences; the last is the state.
template <int KIND, int SOURCES> static enum ggml_status heads_run(gb_cuda_backend & b, ggml_tensor * dst) {
    const ggml_tensor *k = dst->src[0], *state = dst->src[SOURCES - 1];
    gb_recurrent q = describe(dst, SOURCES, gb_count(k));
    q.size = q.rows = k->ne[0];
    q.heads = k->ne[1];
    q.sequences = state->ne[1];
    q.tokens = k->ne[2] / q.sequences;
    q.row_step = KIND == GB_WKV7 ? q.size : 1;
    q.key_step = KIND == GB_WKV7 ? 1 : q.size;
    q.from = (const float *) (const void *) gb_cuda_data(state);
    q.from_step = q.size * q.size * q.heads;
    q.scale = KIND == GB_LINEAR_ATTN ? gb_param_float(dst, 0) : 1;
    return launch<KIND>(b, q);
}

template <int SOURCES> static const char * heads_supports(const gb_cuda_device &, const ggml_tensor * dst) {
    return recurrent_unsupported(dst, SOURCES, (1 << SOURCES) - 1, dst->src[0]->ne[0]);
}

GB_CUDA_FAMILY_DEFINE(recurrent, { GGML_OP_SSM_CONV, ssm_conv_supports, ssm_conv_run, nullptr },
    { GGML_OP_SSM_SCAN, ssm_scan_supports, ssm_scan_run, nullptr },
    { GGML_OP_GATED_DELTA_NET, delta_supports, delta_run, nullptr },
    { GGML_OP_RWKV_WKV6, heads_supports<6>, heads_run<GB_WKV6, 6>, nullptr },
    { GGML_OP_RWKV_WKV7, heads_supports<7>, heads_run<GB_WKV7, 7>, nullptr },
    { GGML_OP_GATED_LINEAR_ATTN, heads_supports<5>, heads_run<GB_LINEAR_ATTN, 5>, nullptr })
