// soft_max.cu - SOFT_MAX, DIAG_MASK_INF, DIAG_MASK_ZERO, ALIBI.
//
// SOFT_MAX scales and masks by rows. With a bias, ALiBi's slope of the head multiplies the mask. A sink is
// one more logit of the head. One launch may also compute the SCALE and DIAG_MASK_INF before it.
//
// A row that is masked with -infinity everywhere becomes zeros. A row with a NaN becomes NaN. If the
// largest product with the scale overflows, the row is computed again with all its scores times 2^-128,
// because an infinity from an overflow is not a mask.
#include "cuda/kernels/soft_max_row.cuh"
#include "cuda/ops/elements.h"

// The score times `down` twice. down is 1 or 2^-64; its square is no normal float. slope: of the mask.
GB_DEVICE float gb_score(const gb_soft_max_args & q, const char * x, const char * mask, float slope, int64_t i1,
    int64_t i, float down) {
    const float first = gb_get(q.x.type, x + i * q.x.nb[0]), v = q.edited ? gb_edited(q, first, i1, i) : first,
                scale = q.scale * down * down;
    return mask != NULL ? fmaf(v, scale, gb_get(q.mask.type, mask + i * q.mask.nb[0]) * slope * down * down)
                        : v * scale;
}

// Rows of any type, stride and length.
template <int WARPS> GB_KERNEL GB_BOUNDS(512, 1) gb_soft_max_rows(gb_soft_max_args q) {
    gb_wait_for_earlier();
    GB_SHARED(float, shared, WARPS);
    const int64_t row = gb_my_row<WARPS>(), n = q.x.ne[0], step = WARPS * GB_WARP;
    const gb_soft_max_row_of r = gb_soft_max_row_at(q, row);
    const gb_index at = r.at;
    const char * x = gb_at(q.x, at);
    float max = -INFINITY, sum = 0, down = 1;
    for (int64_t i = gb_my_place<WARPS>(); i < n; i += step) {
        max = fmaxf(max, gb_score(q, x, r.mask, r.slope, at.i[1], i, 1));
    }
    max = fmaxf(gb_row_max<WARPS>(max, shared), r.sink);
    if (!(fabsf(max) < INFINITY)) { // the same for all threads of the row
        down = 0x1p-64f;
        max = -INFINITY;
        for (int64_t i = gb_my_place<WARPS>(); i < n; i += step) {
            max = fmaxf(max, gb_score(q, x, r.mask, r.slope, at.i[1], i, down));
        }
        max = fmaxf(gb_row_max<WARPS>(max, shared), r.sink * down * down);
    }
    const float up = 1 / down;
    for (int64_t i = gb_my_place<WARPS>(); i < n; i += step) {
        sum += gb_score_weight(gb_score(q, x, r.mask, r.slope, at.i[1], i, down), max, up);
    }
    sum = gb_row_sum<WARPS>(sum, shared) + gb_sink_weight(q, r.sink, max, down, up);
    const float factor = sum == 0 ? 0.0f : 1.0f / sum;
    if (row >= q.rows) {
        return;
    }
    char * y = gb_at(q.y, at);
    for (int64_t i = gb_my_place<WARPS>(); i < n; i += step) {
        const float s = gb_score(q, x, r.mask, r.slope, at.i[1], i, down);
        if (q.edited) {
            const float first = gb_get(q.x.type, x + i * q.x.nb[0]);
            if (q.scaled.p != NULL) {
                gb_put(q.scaled.type, gb_at(q.scaled, at) + i * q.scaled.nb[0], first * q.factor);
            }
            if (q.masked.p != NULL) {
                gb_put(q.masked.type, gb_at(q.masked, at) + i * q.masked.nb[0], gb_edited(q, first, at.i[1], i));
            }
        }
        gb_put(q.y.type, y + i * q.y.nb[0], max == -INFINITY ? sum : gb_score_weight(s, max, up) * factor);
    }
}

template <int WARPS, int FOURS>
static cudaError_t launch_row(unsigned blocks, int threads, const gb_soft_max_args & q, const gb_queue & queue) {
    return q.mask.p == NULL ? GB_LAUNCH((gb_soft_max_row<WARPS, GGML_TYPE_COUNT, FOURS>), blocks, threads, 0, queue, q)
           : q.mask.type == GGML_TYPE_F32
               ? GB_LAUNCH((gb_soft_max_row<WARPS, GGML_TYPE_F32, FOURS>), blocks, threads, 0, queue, q)
               : GB_LAUNCH((gb_soft_max_row<WARPS, GGML_TYPE_F16, FOURS>), blocks, threads, 0, queue, q);
}

static cudaError_t launch(const gb_soft_max_args & q, const gb_queue & queue) {
    const int64_t n = q.x.ne[0];
    bool fours = n % 4 == 0 && n <= GB_FOURS_MOST;
    for (const gb_view * v : { &q.x, &q.y, &q.scaled, &q.masked }) {
        fours = fours && gb_has_fours(*v, GGML_TYPE_F32);
    }
    return fours && (gb_has_fours(q.mask, GGML_TYPE_F32) || gb_has_fours(q.mask, GGML_TYPE_F16))
               ? GB_FOURS_LAUNCH(launch_row, n, q.rows, q, queue)
               : GB_ROW_LAUNCH(gb_soft_max_rows, n, q.rows, queue, q);
}

static gb_soft_max_args args_of(const ggml_tensor * dst) {
    gb_soft_max_args q = {};
    q.x = gb_view_of(dst->src[0]);
    q.y = gb_view_of(dst);
    q.scale = gb_param_float(dst, 0);
    q.rows = gb_rows(dst);
    if (dst->src[1] != NULL) {
        q.mask = gb_view_of(dst->src[1]);
        q.bias_max = gb_param_float(dst, 1);
        q.floor_heads = gb_alibi_floor(dst->ne[2]);
    }
    if (dst->src[2] != NULL) {
        q.sinks = gb_view_of(dst->src[2]);
    }
    return q;
}

static enum ggml_status soft_max_run(gb_cuda_backend & b, ggml_tensor * dst) {
    const gb_soft_max_args q = args_of(dst);
    GB_CUDA_TRY(b, launch(q, b.queue));
    return GGML_STATUS_SUCCESS;
}

static const char * soft_max_supports(const gb_cuda_device &, const ggml_tensor * dst) {
    const ggml_tensor *mask = dst->src[1], *sinks = dst->src[2];
    if (sinks != NULL && (sinks->type != GGML_TYPE_F32 || gb_need_plain(sinks) != NULL)) {
        return "sinks that are not f32";
    }
    if (mask != NULL && gb_count(dst) > 0 && gb_count(mask) == 0) {
        return "an empty mask";
    }
    return gb_rows(dst) >= (int64_t) 1 << 31 ? "more than 2^31 rows" : gb_need_floats(dst, dst->src[1] != NULL ? 2 : 1);
}

// -------------------------------------------------------------------------------------------------------------- fusion

static bool follows(const ggml_tensor * node, enum ggml_op op, const ggml_tensor * before) {
    return node->op == op && node->src[0] == before && node->type == GGML_TYPE_F32 && before->type == GGML_TYPE_F32 &&
           gb_same_shape(node, before);
}

// Number of nodes from i on that end in a SOFT_MAX; 0: none.
static int chain_length(const gb_cuda_nodes & nodes, int i) {
    const ggml_tensor * first = nodes.node[i];
    int n = 1;
    if (first->type != GGML_TYPE_F32 || first->src[0]->type != GGML_TYPE_F32 || !gb_same_shape(first, first->src[0])) {
        return 0;
    }
    if (first->op == GGML_OP_SCALE && i + 1 < nodes.n && follows(nodes.node[i + 1], GGML_OP_DIAG_MASK_INF, first)) {
        n = 2;
    }
    return i + n < nodes.n && follows(nodes.node[i + n], GGML_OP_SOFT_MAX, nodes.node[i + n - 1]) ? n + 1 : 0;
}

// True if every result is disjoint from, or exactly at, the memory before it, and the mask and the sinks
// are disjoint from all.
static bool chain_may_fuse(ggml_tensor * const * node, int n) {
    const ggml_tensor *mask = node[n - 1]->src[1], *sinks = node[n - 1]->src[2];
    for (int j = 0; j < n; j++) {
        if ((mask != NULL && gb_cuda_overlap(mask, node[j])) || (sinks != NULL && gb_cuda_overlap(sinks, node[j])) ||
            !gb_is_apart_or_same(node[0]->src[0], node[j])) {
            return false;
        }
        for (int k = 0; k < j; k++) {
            if (!gb_is_apart_or_same(node[k], node[j])) {
                return false;
            }
        }
    }
    return true;
}

// Stores a result that no later one overwrites.
static gb_view stored(ggml_tensor * const * node, int n, int j) {
    gb_view v = gb_view_of(node[j]);
    for (int k = j + 1; k < n; k++) {
        v.p = gb_is_same_place(node[j], node[k]) ? NULL : v.p;
    }
    return v;
}

int gb_soft_max_fuse(gb_cuda_backend & b, const gb_cuda_nodes & nodes, int i) {
    const int n = chain_length(nodes, i);
    ggml_tensor * const * node = nodes.node + i;
    if (n == 0 || !chain_may_fuse(node, n)) {
        return 0;
    }
    gb_soft_max_args q = args_of(node[n - 1]);
    q.x = gb_view_of(node[0]->src[0]);
    q.edited = true;
    q.factor = 1;
    for (int j = 0; j < n - 1; j++) {
        if (node[j]->op == GGML_OP_SCALE) {
            q.factor = gb_param_float(node[j], 0);
            q.scaled = stored(node, n, j);
        } else {
            q.causal = true;
            q.last = node[j]->op_params[0];
            q.masked = stored(node, n, j);
        }
    }
    const cudaError_t error = launch(q, b.queue);
    if (error != cudaSuccess) {
        gb_cuda_fail(b, "softmax with the nodes before it", error);
        return -1;
    }
    return n;
}

// --------------------------------------------------------------------------------------------------------------- masks

template <class I>
GB_KERNEL GB_BOUNDS(256, 1) gb_diag_mask(gb_view y, gb_view x, int64_t n_past, float value, int64_t n) {
    gb_wait_for_earlier();
    const int64_t k = gb_thread();
    if (k < n) {
        const gb_index at = gb_unravel<I>((I) k, y.ne);
        gb_put(y.type, gb_at(y, at), at.i[0] > n_past + at.i[1] ? value : gb_get(x.type, gb_at(x, at)));
    }
}

static enum ggml_status mask_run(gb_cuda_backend & b, ggml_tensor * dst) {
    const int64_t n = gb_count(dst), n_past = dst->op_params[0];
    const float value = dst->op == GGML_OP_DIAG_MASK_INF ? -INFINITY : 0.0f;
    const gb_view y = gb_view_of(dst), x = gb_view_of(dst->src[0]);
    GB_CUDA_TRY(b,
        (gb_is_small(n)
                ? GB_LAUNCH((gb_diag_mask<uint32_t>), gb_blocks(n), GB_BLOCK, 0, b.queue, y, x, n_past, value, n)
                : GB_LAUNCH((gb_diag_mask<uint64_t>), gb_blocks(n), GB_BLOCK, 0, b.queue, y, x, n_past, value, n)));
    return GGML_STATUS_SUCCESS;
}

static const char * mask_supports(const gb_cuda_device &, const ggml_tensor * dst) { return gb_need_floats(dst, 1); }

template <class I>
GB_KERNEL GB_BOUNDS(256, 1) gb_alibi(gb_view y, gb_view x, int floor_heads, float bias_max, int64_t n) {
    gb_wait_for_earlier();
    const int64_t k = gb_thread();
    if (k < n) {
        const gb_index at = gb_unravel<I>((I) k, y.ne);
        const float slope = gb_alibi_slope(at.i[2] + at.i[3] * y.ne[2], floor_heads, bias_max);
        gb_put(y.type, gb_at(y, at), (float) at.i[0] * slope + gb_get(x.type, gb_at(x, at)));
    }
}

static enum ggml_status alibi_run(gb_cuda_backend & b, ggml_tensor * dst) {
    const int64_t n = gb_count(dst);
    const int floor_heads = gb_alibi_floor(dst->op_params[1]);
    const gb_view y = gb_view_of(dst), x = gb_view_of(dst->src[0]);
    const float bias_max = gb_param_float(dst, 2);
    GB_CUDA_TRY(b,
        (gb_is_small(n)
                ? GB_LAUNCH((gb_alibi<uint32_t>), gb_blocks(n), GB_BLOCK, 0, b.queue, y, x, floor_heads, bias_max, n)
                : GB_LAUNCH((gb_alibi<uint64_t>), gb_blocks(n), GB_BLOCK, 0, b.queue, y, x, floor_heads, bias_max, n)));
    return GGML_STATUS_SUCCESS;
}

static const char * alibi_supports(const gb_cuda_device &, const ggml_tensor * dst) {
    return dst->op_params[1] < 1 ? "a number of heads that is not positive" : gb_need_floats(dst, 1);
}

GB_CUDA_FAMILY_DEFINE(soft_max, { GGML_OP_SOFT_MAX, soft_max_supports, soft_max_run, nullptr },
    { GGML_OP_DIAG_MASK_INF, mask_supports, mask_run, gb_soft_max_fuse },
    { GGML_OP_DIAG_MASK_ZERO, mask_supports, mask_run, nullptr }, { GGML_OP_ALIBI, alibi_supports, alibi_run, nullptr })
