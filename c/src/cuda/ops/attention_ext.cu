// attention_ext.cu - FLASH_ATTN_EXT as an entry of the table of attention, and its description.
//
// Keys and values of one type that the kernel reads go to it as they are. Others become f32 in scratch memory first.
#include "cuda/kernels/attention_ext.cuh"

#include <numeric>

#include "cuda/ops/attention.h"

// --------------------------------------------------------------------------------------------------------- description

gb_attention gb_attention_ext_of(const ggml_tensor * dst) {
    const ggml_tensor *q = dst->src[0], *k = dst->src[1], *v = dst->src[2], *mask = dst->src[3], *sinks = dst->src[4];
    gb_attention p = {};
    p.by_key = true;
    p.q = gb_attention_input_of(q);
    p.k = gb_attention_input_of(k);
    p.v = gb_attention_input_of(v);
    p.k.r2 = q->ne[2] / k->ne[2]; // consecutive heads share one
    p.v.r2 = q->ne[2] / v->ne[2];
    p.dst = (float *) (void *) gb_cuda_data(dst);
    p.dk = q->ne[0];
    p.d = v->ne[0];
    p.n = q->ne[1];
    p.m = k->ne[1];
    p.heads = q->ne[2];
    p.group_step = std::gcd(p.k.r2, p.v.r2);
    p.outer = p.heads > 0 ? p.heads / p.group_step : 0;
    p.head_step = 1;
    p.dst_query = p.d * p.heads;
    p.dst_head = p.d;
    p.scale = gb_param_float(dst, 0);
    p.bias_max = gb_param_float(dst, 1);
    p.cap = gb_param_float(dst, 2);
    p.floor_heads = gb_alibi_floor(p.heads);
    p.parts = 1;
    if (mask != NULL) {
        p.mask = { gb_cuda_data(mask), mask->type, mask->nb[0], mask->nb[1], mask->nb[2], mask->nb[3], mask->ne[1],
            mask->ne[2], mask->ne[3] };
    }
    if (sinks != NULL) {
        p.sinks = gb_cuda_data(sinks);
        p.sinks_nb = (int64_t) sinks->nb[0];
    }
    return p;
}

const char * gb_attention_ext_unsupported(const ggml_tensor * dst) {
    enum { MAX_GRID = 65535 };
    const ggml_tensor *q = dst->src[0], *mask = dst->src[3], *sinks = dst->src[4];
    const ggml_tensor * all[] = { dst, q, dst->src[1], dst->src[2], mask, sinks };
    for (const ggml_tensor * t : all) {
        if (t != NULL && gb_need_plain(t) != NULL) {
            return gb_need_plain(t);
        }
    }
    if (!gb_is_float_type(dst->type) || !gb_is_float_type(q->type)) {
        return "a result or queries that are not f32, f16 or bf16";
    }
    for (int i = 1; i < 3; i++) {
        const ggml_tensor * t = dst->src[i];
        if (!gb_is_float_type(t->type) && (!ggml_is_quantized(t->type) || !gb_rows_are_blocks(t))) {
            return "keys or values that are neither floats nor whole blocks";
        }
        if (t->ne[2] <= 0 || (q->ne[2] > 0 && q->ne[2] % t->ne[2] != 0)) {
            return "heads that do not share keys and values";
        }
        if (t->ne[0] > GB_EXT_HEAD) {
            return "heads of more than 1024 elements";
        }
    }
    if ((mask != NULL && !gb_is_float_type(mask->type)) || (sinks != NULL && sinks->type != GGML_TYPE_F32)) {
        return "a mask that is not f32, f16 or bf16, or sinks that are not f32";
    }
    return q->ne[2] <= MAX_GRID && q->ne[3] <= MAX_GRID && q->ne[1] * q->ne[2] <= INT32_MAX / 1024
               ? NULL
               : "more rows or heads than a grid has";
}

// ----------------------------------------------------------------------------------------------------------- algorithm

const char * gb_attention_ext_declines(const gb_cuda_device &, const gb_attention & p) {
    return p.by_key ? NULL : "values are not stored by key";
}

template <int TYPE, int ROWS>
static enum ggml_status launch(gb_cuda_backend & b, const gb_attention & p, int64_t batch) {
    const int64_t tiles = gb_attention_row_tiles(p, ROWS);
    const dim3 grid((unsigned) (tiles * p.parts), (unsigned) p.outer, (unsigned) batch);
    const size_t shared = gb_attention_ext_room(ROWS, p.dk, p.d) * sizeof(float);
    GB_CUDA_TRY(b, GB_LAUNCH((gb_attention_ext<TYPE, ROWS>), grid, GB_ATTENTION_THREADS, shared, b.queue, p));
    return gb_attention_join_parts(b, p, batch);
}

template <int ROWS> static enum ggml_status run_rows(gb_cuda_backend & b, gb_attention p, int64_t batch) {
    enum { LEAST_KEYS = 64 };
    if (!gb_attention_cut_keys(b, p, batch, ROWS, GB_FEW_KEYS, LEAST_KEYS, 2 * b.device->n_sm)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    if (p.k.type == GGML_TYPE_Q8_0) { // as p.v.type
        return launch<GGML_TYPE_Q8_0, ROWS>(b, p, batch);
    }
    if (p.k.type == GGML_TYPE_Q4_0) {
        return launch<GGML_TYPE_Q4_0, ROWS>(b, p, batch);
    }
    const int type = p.k.type;
    const bool dense = gb_attention_is_dense(p.k, type) && gb_attention_is_dense(p.v, type);
    return !dense                  ? launch<GGML_TYPE_COUNT, ROWS>(b, p, batch)
           : type == GGML_TYPE_F32 ? launch<GGML_TYPE_F32, ROWS>(b, p, batch)
           : type == GGML_TYPE_F16 ? launch<GGML_TYPE_F16, ROWS>(b, p, batch)
                                   : launch<GGML_TYPE_BF16, ROWS>(b, p, batch);
}

// Converts t to f32 in scratch memory. rows: keys; d: elements of a row.
static enum ggml_status to_floats(gb_cuda_backend & b, gb_attention_input & t, int64_t d, int64_t rows) {
    const gb_view x = { (char *) t.x, { d, rows, t.ne2, t.ne3 },
        { (int64_t) t.nb0, (int64_t) t.nb1, (int64_t) t.nb2, (int64_t) t.nb3 }, t.type };
    gb_view y = { NULL, { d, rows, t.ne2, t.ne3 }, { 4, 4 * d, 4 * d * rows, 4 * d * rows * t.ne2 }, GGML_TYPE_F32 };
    y.p = (char *) gb_cuda_scratch(b, (size_t) (y.nb[3] * t.ne3));
    if (y.p == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    GB_CUDA_TRY(b, gb_launch_conversion(y, x, b.queue));
    t = { y.p, GGML_TYPE_F32, (size_t) y.nb[0], (size_t) y.nb[1], (size_t) y.nb[2], (size_t) y.nb[3], t.ne2, t.ne3,
        t.r2, t.r3 };
    return GGML_STATUS_SUCCESS;
}

static bool is_read_directly(int type) {
    return gb_is_float_type((enum ggml_type) type) || type == GGML_TYPE_Q8_0 || type == GGML_TYPE_Q4_0;
}

enum ggml_status gb_attention_ext_run(gb_cuda_backend & b, gb_attention p, int64_t batch) {
    enum { MOST_SHARED = 48 << 10 };
    if (p.k.type != p.v.type || !is_read_directly(p.k.type)) {
        enum ggml_status status = p.k.type != GGML_TYPE_F32 ? to_floats(b, p.k, p.dk, p.m) : GGML_STATUS_SUCCESS;
        if (status == GGML_STATUS_SUCCESS && p.v.type != GGML_TYPE_F32) {
            status = to_floats(b, p.v, p.d, p.m);
        }
        if (status != GGML_STATUS_SUCCESS) {
            return status;
        }
    }
    const int64_t rows = p.n * (p.heads / p.outer);
    const bool fits = gb_attention_ext_room(GB_EXT_ROWS, p.dk, p.d) * sizeof(float) <= MOST_SHARED;
    return rows == 1 || !fits ? run_rows<1>(b, p, batch)
           : rows <= 4        ? run_rows<4>(b, p, batch)
                              : run_rows<GB_EXT_ROWS>(b, p, batch);
}
