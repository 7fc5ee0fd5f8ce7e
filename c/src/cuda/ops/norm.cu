// norm.cu - NORM, RMS_NORM, L2_NORM, GROUP_NORM. A launch of NORM or RMS_NORM may also multiply by a row
// and add a row, as the next nodes do, and convert the result for the products that read it.
//
// A first pass over a row gives the mean, a second one the squares of the deviations from it. The second
// pass reads registers (norm_row.cuh) or, if the type, strides or length do not allow that, a cache.
#include "cuda/kernels/norm_row.cuh"
#include "cuda/ops/elements.h"
#include "cuda/ops/products.h"

// Rows of any type, stride and length.
template <int WARPS, bool MEAN> GB_KERNEL GB_BOUNDS(512, 1) gb_norm_rows(gb_norm_args q) {
    gb_wait_for_earlier();
    GB_SHARED(float, shared, WARPS);
    const int64_t row = gb_my_row<WARPS>(), n = q.x.ne[0], step = WARPS * GB_WARP;
    const gb_index at = gb_unravel_row<uint64_t>((uint64_t) gb_min(row, q.rows - 1), q.x.ne);
    const char * x = gb_at(q.x, at);
    float down = 1, mean = 0, squares = 0;
    for (int far = 0; far < 2; far++) { // again with smaller values if squares overflow
        float sum = 0;
        for (int64_t i = gb_my_place<WARPS>(); MEAN && i < n; i += step) {
            sum += gb_get(q.x.type, x + i * q.x.nb[0]) * down;
        }
        mean = MEAN ? gb_row_sum<WARPS>(sum, shared) / (float) n : 0;
        squares = 0;
        for (int64_t i = gb_my_place<WARPS>(); i < n; i += step) {
            const float d = gb_get(q.x.type, x + i * q.x.nb[0]) * down - mean;
            squares += d * d;
        }
        squares = gb_row_sum<WARPS>(squares, shared);
        if (squares < INFINITY || far == 1) {
            break;
        }
        down = GB_NORM_FAR;
    }
    const float scale = 1.0f / sqrtf(squares / (float) n + q.eps * down * down);
    if (row >= q.rows) {
        return;
    }
    for (int64_t i = gb_my_place<WARPS>(); i < n; i += step) {
        float v = (gb_get(q.x.type, x + i * q.x.nb[0]) * down - mean) * scale;
        if (q.y.p != NULL) {
            gb_put(q.y.type, gb_at(q.y, at) + i * q.y.nb[0], v);
        }
        if (q.w.p != NULL) {
            v *= ((const float *) (const void *) q.w.p)[i];
            if (q.z.p != NULL) {
                gb_put(q.z.type, gb_at(q.z, at) + i * q.z.nb[0], v);
            }
        }
        if (q.b.p != NULL) {
            gb_put(q.s.type, gb_at(q.s, at) + i * q.s.nb[0], v + ((const float *) (const void *) q.b.p)[i]);
        }
    }
    if (q.kind != GB_ROWS_NONE) {
        gb_norm_round<WARPS>(q.kind, q.made, row);
    }
}

template <int WARPS>
static cudaError_t launch_any(const gb_norm_args & q, bool mean, unsigned blocks, const gb_queue & queue) {
    const int threads = WARPS == 1 ? 8 * GB_WARP : WARPS * GB_WARP;
    return mean ? GB_LAUNCH((gb_norm_rows<WARPS, true>), blocks, threads, 0, queue, q)
                : GB_LAUNCH((gb_norm_rows<WARPS, false>), blocks, threads, 0, queue, q);
}

template <int WARPS, int FOURS>
static cudaError_t launch_row(unsigned blocks, int threads, const gb_norm_args & q, bool mean, const gb_queue & queue) {
    return mean ? GB_LAUNCH((gb_norm_row<WARPS, true, FOURS>), blocks, threads, 0, queue, q)
                : GB_LAUNCH((gb_norm_row<WARPS, false, FOURS>), blocks, threads, 0, queue, q);
}

static cudaError_t launch(const gb_norm_args & q, bool mean, const gb_queue & queue) {
    const int64_t n = q.x.ne[0];
    const unsigned rows = (unsigned) q.rows, blocks = (unsigned) gb_cuda_ceil_div(q.rows, 8);
    bool fours = n % 4 == 0 && n <= GB_FOURS_MOST;
    for (const gb_view * v : { &q.x, &q.y, &q.z, &q.w, &q.b, &q.s }) {
        fours = fours && gb_has_fours(*v, GGML_TYPE_F32);
    }
    return fours      ? GB_FOURS_LAUNCH(launch_row, n, q.rows, q, mean, queue)
           : n <= 256 ? launch_any<1>(q, mean, blocks, queue)
                      : launch_any<16>(q, mean, rows, queue);
}

static gb_norm_args args_of(const ggml_tensor * dst) {
    gb_norm_args q = {};
    q.x = gb_view_of(dst->src[0]);
    q.y = gb_view_of(dst);
    q.eps = gb_param_float(dst, 0);
    q.rows = gb_rows(dst);
    q.kind = GB_ROWS_NONE;
    return q;
}

static enum ggml_status norm_run(gb_cuda_backend & b, ggml_tensor * dst) {
    GB_CUDA_TRY(b, launch(args_of(dst), dst->op == GGML_OP_NORM, b.queue));
    return GGML_STATUS_SUCCESS;
}

static const char * norm_supports(const gb_cuda_device &, const ggml_tensor * dst) {
    return gb_rows(dst) >= (int64_t) 1 << 31 ? "more than 2^31 rows" : gb_need_floats(dst, 1);
}

// -------------------------------------------------------------------------------------------------------------- fusion

// The second operand of `node`, if it combines `value` with one dense row. All are f32, so values
// that are not stored are not rounded.
static const ggml_tensor * row_beside(const ggml_tensor * node, enum ggml_op op, const ggml_tensor * value) {
    if (node->op != op || node->src[0] != value || node->src[1] == value || !gb_same_shape(node, value) ||
        node->type != GGML_TYPE_F32 || value->type != GGML_TYPE_F32) {
        return NULL;
    }
    const ggml_tensor * row = node->src[1];
    return row->type == GGML_TYPE_F32 && row->ne[0] == value->ne[0] && gb_rows(row) == 1 && ggml_is_contiguous(row)
               ? row
               : NULL;
}

static bool may_fuse(const ggml_tensor * norm, const ggml_tensor * node, const ggml_tensor * row) {
    const ggml_tensor * x = norm->src[0];
    return row != NULL && gb_is_apart_or_same(norm, node) && gb_is_apart_or_same(x, node) &&
           gb_is_apart_or_same(x, norm) && !gb_cuda_overlap(row, norm) && !gb_cuda_overlap(row, node);
}

static int norm_fuse(gb_cuda_backend & b, const gb_cuda_nodes & nodes, int i) {
    const ggml_tensor * norm = nodes.node[i];
    const ggml_tensor * mul = i + 1 < nodes.n ? nodes.node[i + 1] : NULL;
    const ggml_tensor * w = mul != NULL ? row_beside(mul, GGML_OP_MUL, norm) : NULL;
    const ggml_tensor * add = w != NULL && i + 2 < nodes.n ? nodes.node[i + 2] : NULL;
    const ggml_tensor * bias = add != NULL ? row_beside(add, GGML_OP_ADD, mul) : NULL;
    const int whole = bias != NULL ? 3 : w != NULL ? 2 : 1; // nodes, if their memory allows it
    gb_norm_args q = args_of(norm);
    gb_row_kind kind = GB_ROWS_NONE;
    gb_cuda_kept * wanted = gb_rows_ahead(b, nodes.node[i + whole - 1], i + whole - 1, norm->ne[0], &kind, &q.made);
    if (b.kind == GB_CUDA_PLAN) {
        return 0;
    }
    const bool two = may_fuse(norm, mul, w);
    const bool all = two && may_fuse(norm, add, bias) && gb_is_apart_or_same(mul, add) && !gb_cuda_overlap(bias, mul) &&
                     !gb_cuda_overlap(w, add);
    const int n = all ? 3 : two ? 2 : 1;
    if (wanted != NULL && n == whole) {
        q.kind = kind;
        wanted->made = true;
    } else if (n == 1) {
        return 0;
    }
    if (two) {
        q.w = gb_view_of(w);
        q.z = gb_view_of(mul);
        q.y.p = gb_is_same_place(norm, mul) || (all && gb_is_same_place(norm, add)) ? NULL : q.y.p;
    }
    if (all) {
        q.b = gb_view_of(bias);
        q.s = gb_view_of(add);
        q.z.p = gb_is_same_place(mul, add) ? NULL : q.z.p;
    }
    const cudaError_t error = launch(q, norm->op == GGML_OP_NORM, b.queue);
    if (error != cudaSuccess) {
        gb_cuda_fail(b, "norm with the nodes after it", error);
        return -1;
    }
    return n;
}

// ------------------------------------------------------------------------------------------------------------- L2_NORM

// Rows divided by their length, at least by eps. Squares are summed in double, so they neither overflow nor vanish.
template <int WARPS> GB_KERNEL GB_BOUNDS(512, 1) gb_l2_norm(gb_norm_args q) {
    gb_wait_for_earlier();
    GB_SHARED(double, shared, WARPS);
    const int64_t row = gb_my_row<WARPS>(), n = q.x.ne[0];
    const gb_index at = gb_unravel_row<uint64_t>((uint64_t) gb_min(row, q.rows - 1), q.x.ne);
    const char * x = gb_at(q.x, at);
    double squares = 0;
    for (int64_t i = gb_my_place<WARPS>(); i < n; i += WARPS * GB_WARP) {
        const double v = (double) gb_get(q.x.type, x + i * q.x.nb[0]);
        squares += v * v;
    }
    const double length = sqrt(gb_row_sum<WARPS>(squares, shared));
    const float scale = (float) (1 / (length < (double) q.eps ? (double) q.eps : length));
    for (int64_t i = gb_my_place<WARPS>(); i < n && row < q.rows; i += WARPS * GB_WARP) {
        gb_put(q.y.type, gb_at(q.y, at) + i * q.y.nb[0], gb_get(q.x.type, x + i * q.x.nb[0]) * scale);
    }
}

static enum ggml_status l2_norm_run(gb_cuda_backend & b, ggml_tensor * dst) {
    const gb_norm_args q = args_of(dst);
    GB_CUDA_TRY(b, GB_ROW_LAUNCH(gb_l2_norm, q.x.ne[0], q.rows, b.queue, q));
    return GGML_STATUS_SUCCESS;
}

// ---------------------------------------------------------------------------------------------------------- GROUP_NORM

// A block normalizes the channels [c0, c1) of a batch together.
enum { GB_GROUP_WARPS = 16 };

GB_KERNEL GB_BOUNDS(512, 1) gb_group_norm(gb_view y, gb_view x, int64_t channels, int64_t groups, float eps) {
    gb_wait_for_earlier();
    GB_SHARED(float, shared, GB_GROUP_WARPS);
    const int64_t i3 = (int64_t) blockIdx.x / groups, c0 = (int64_t) blockIdx.x % groups * channels;
    const int64_t c1 = gb_min(c0 + channels, x.ne[2]), plane = x.ne[0] * x.ne[1], n = plane * (c1 - c0);
    float mean = 0, scale = 0, down = 1;
    for (int pass = 0; pass < 3; pass++) {
        float sum = 0;
        for (int64_t k = threadIdx.x; k < n; k += blockDim.x) {
            const int64_t channel = k / plane, rest = k - channel * plane, i1 = rest / x.ne[0],
                          i0 = rest - i1 * x.ne[0];
            const float v = gb_get(x.type, gb_at(x, i0, i1, c0 + channel, i3)) * down - mean;
            if (pass == 2) {
                gb_put(y.type, gb_at(y, i0, i1, c0 + channel, i3), v * scale);
            }
            sum += pass == 0 ? v : v * v;
        }
        if (pass == 0) {
            mean = gb_row_sum<GB_GROUP_WARPS>(sum, shared) / (float) n;
        } else if (pass == 1) {
            sum = gb_row_sum<GB_GROUP_WARPS>(sum, shared);
            if (!(sum < INFINITY) && down == 1) { // starts again with smaller values
                down = GB_NORM_FAR;
                mean = 0;
                pass = -1;
                continue;
            }
            scale = 1.0f / sqrtf(sum / (float) n + eps * down * down);
        }
    }
}

static enum ggml_status group_norm_run(gb_cuda_backend & b, ggml_tensor * dst) {
    const int64_t channels = gb_cuda_ceil_div(dst->ne[2], dst->op_params[0]),
                  groups = gb_cuda_ceil_div(dst->ne[2], channels);
    const float given = gb_param_float(dst, 1);
    GB_CUDA_TRY(b,
        GB_LAUNCH(gb_group_norm, (unsigned) (groups * dst->ne[3]), GB_GROUP_WARPS * GB_WARP, 0, b.queue,
            gb_view_of(dst), gb_view_of(dst->src[0]), channels, groups, given != 0 ? given : GB_GROUP_NORM_EPS));
    return GGML_STATUS_SUCCESS;
}

static const char * group_norm_supports(const gb_cuda_device & d, const ggml_tensor * dst) {
    return dst->op_params[0] < 1 ? "a number of groups that is not positive" : norm_supports(d, dst);
}

GB_CUDA_FAMILY_DEFINE(norm, { GGML_OP_NORM, norm_supports, norm_run, norm_fuse },
    { GGML_OP_RMS_NORM, norm_supports, norm_run, norm_fuse }, { GGML_OP_L2_NORM, norm_supports, l2_norm_run, nullptr },
    { GGML_OP_GROUP_NORM, group_norm_supports, group_norm_run, nullptr })
