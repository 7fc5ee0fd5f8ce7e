// conv.cu - IM2COL, IM2COL_BACK, transposed convolutions, POOL_1D, POOL_2D. A thread makes one element of the result.
#include "cuda/ops/elements.h"

// -------------------------------------------------------------------------------------------------------------- IM2COL

struct gb_im2col_args {
    gb_view y, b;
    int s0, s1, p0, p1, d0, d1;
    bool is_2d;
    int64_t iw, ih, kw, kh, channel, batch; // of b: sizes, and strides in bytes
};

template <class I> GB_KERNEL GB_BOUNDS(256, 1) gb_im2col(gb_im2col_args q, int64_t n) {
    gb_wait_for_earlier();
    const int64_t k = gb_thread();
    if (k >= n) {
        return;
    }
    const gb_index at = gb_unravel<I>((I) k, q.y.ne);
    const int64_t ic = at.i[0] / (q.kw * q.kh), in = at.i[0] - ic * q.kw * q.kh, kh = in / q.kw, kw = in - kh * q.kw;
    const int64_t w = at.i[1] * q.s0 + kw * q.d0 - q.p0, h = q.is_2d ? at.i[2] * q.s1 + kh * q.d1 - q.p1 : 0;
    const bool seen = w >= 0 && w < q.iw && h >= 0 && h < q.ih;
    const char * from = q.b.p + (q.is_2d ? at.i[3] : at.i[2]) * q.batch + ic * q.channel +
                        (q.is_2d ? h * q.b.nb[1] : 0) + w * q.b.nb[0];
    gb_put(q.y.type, gb_at(q.y, at), seen ? gb_get(q.b.type, from) : 0.0f);
}

static enum ggml_status im2col_run(gb_cuda_backend & b, ggml_tensor * dst) {
    const ggml_tensor *kernel = dst->src[0], *image = dst->src[1];
    const int32_t * o = dst->op_params;
    const bool is_2d = o[6] == 1;
    const int64_t n = gb_count(dst);
    const gb_im2col_args q = { gb_view_of(dst), gb_view_of(image), o[0], o[1], o[2], o[3], o[4], o[5], is_2d,
        image->ne[0], is_2d ? image->ne[1] : 1, kernel->ne[0], is_2d ? kernel->ne[1] : 1,
        (int64_t) (is_2d ? image->nb[2] : image->nb[1]), (int64_t) (is_2d ? image->nb[3] : image->nb[2]) };
    GB_CUDA_TRY(b, (gb_is_small(n) ? GB_LAUNCH((gb_im2col<uint32_t>), gb_blocks(n), GB_BLOCK, 0, b.queue, q, n)
                                   : GB_LAUNCH((gb_im2col<uint64_t>), gb_blocks(n), GB_BLOCK, 0, b.queue, q, n)));
    return GGML_STATUS_SUCCESS;
}

// Of source 0, the kernel, only the shape is used.
static const char * im2col_supports(const gb_cuda_device &, const ggml_tensor * dst) {
    const ggml_tensor * image = dst->src[1];
    if (dst->src[0] == NULL || image == NULL) {
        return "a source is missing";
    }
    if (gb_need_plain(dst) != NULL || gb_need_plain(image) != NULL) {
        return gb_need_plain(dst) != NULL ? gb_need_plain(dst) : gb_need_plain(image);
    }
    return gb_is_float_type(dst->type) && gb_is_float_type(image->type) ? NULL : "a type that is not f32, f16 or bf16";
}

// --------------------------------------------------------------------------------------------------------- IM2COL_BACK

// The output position of the window whose element k covers place x; -1: none.
GB_DEVICE int64_t gb_window_at(int64_t x, int64_t k, int stride, int pad, int dilation, int64_t n) {
    const int64_t from = x + pad - k * dilation;
    return from >= 0 && from % stride == 0 && from / stride < n ? from / stride : -1;
}

// q.y: the rows, q.b: the image. Adds the elements of all windows that cover a place, in the order of the kernel.
template <class I> GB_KERNEL GB_BOUNDS(256, 1) gb_im2col_back(gb_im2col_args q, int64_t n) {
    gb_wait_for_earlier();
    const int64_t k = gb_thread();
    if (k >= n) {
        return;
    }
    const gb_index at = gb_unravel<I>((I) k, q.b.ne);
    const int64_t ic = q.is_2d ? at.i[2] : at.i[1], image = q.is_2d ? at.i[3] : at.i[2];
    const int64_t y = q.is_2d ? at.i[1] : 0, rows = q.is_2d ? q.y.ne[2] : 1;
    float sum = 0;
    for (int64_t kh = 0; kh < q.kh; kh++) {
        const int64_t oy = q.is_2d ? gb_window_at(y, kh, q.s1, q.p1, q.d1, rows) : 0;
        for (int64_t kw = 0; kw < q.kw && oy >= 0; kw++) {
            const int64_t ox = gb_window_at(at.i[0], kw, q.s0, q.p0, q.d0, q.y.ne[1]);
            if (ox >= 0) {
                const int64_t column = (ic * q.kh + kh) * q.kw + kw;
                sum += gb_get(q.y.type, q.is_2d ? gb_at(q.y, column, ox, oy, image) : gb_at(q.y, column, ox, image, 0));
            }
        }
    }
    gb_put(q.b.type, gb_at(q.b, at), sum);
}

static enum ggml_status im2col_back_run(gb_cuda_backend & b, ggml_tensor * dst) {
    const ggml_tensor * kernel = dst->src[0];
    const int32_t * o = dst->op_params;
    const bool is_2d = o[6] == 1;
    const int64_t n = gb_count(dst);
    const gb_im2col_args q = { gb_view_of(dst->src[1]), gb_view_of(dst), o[0], o[1], o[2], o[3], o[4], o[5], is_2d,
        dst->ne[0], is_2d ? dst->ne[1] : 1, kernel->ne[0], is_2d ? kernel->ne[1] : 1, 0, 0 };
    GB_CUDA_TRY(b, GB_EACH_LAUNCH(gb_im2col_back, n, b.queue, q, n));
    return GGML_STATUS_SUCCESS;
}

// --------------------------------------------------------------------------------------------- transposed convolutions

struct gb_spread_args {
    // 1d: y [L', OC], a [K, OC, IC], b [L, IC]; 2d: y [W', H', OC, N], a [KW, KH, OC, IC], b [W, H, IC, N]
    gb_view y, a, b;
    int stride;
    bool is_2d;
};

// Sums over the input positions x with 0 <= position - x stride < width, in their order.
GB_KERNEL GB_BOUNDS(256, 1) gb_conv_transpose(gb_spread_args q, int64_t n) {
    gb_wait_for_earlier();
    const int64_t t = gb_thread();
    if (t >= n) {
        return;
    }
    const gb_index at = gb_unravel<uint64_t>((uint64_t) t, q.y.ne);
    const int64_t kw = q.a.ne[0], kh = q.is_2d ? q.a.ne[1] : 1, ic_n = q.is_2d ? q.b.ne[2] : q.b.ne[1],
                  rows = q.is_2d ? q.b.ne[1] : 1;
    const int64_t x = at.i[0], y = q.is_2d ? at.i[1] : 0;
    const int64_t x0 = x < kw ? 0 : (x - kw) / q.stride + 1, x1 = gb_min(q.b.ne[0] - 1, x / q.stride);
    const int64_t y0 = y < kh ? 0 : (y - kh) / q.stride + 1, y1 = gb_min(rows - 1, y / q.stride);
    float sum = 0;
    for (int64_t ic = 0; ic < ic_n; ic++) {
        for (int64_t j = y0; j <= y1; j++) {
            for (int64_t i = x0; i <= x1; i++) {
                const char * w = q.is_2d ? gb_at(q.a, x - i * q.stride, y - j * q.stride, at.i[2], ic)
                                         : gb_at(q.a, x - i * q.stride, at.i[1], ic, 0);
                const char * v = q.is_2d ? gb_at(q.b, i, j, ic, at.i[3]) : gb_at(q.b, i, ic, at.i[2], at.i[3]);
                sum += gb_get(q.a.type, w) * gb_get(q.b.type, v);
            }
        }
    }
    gb_put(q.y.type, gb_at(q.y, at), sum);
}

static enum ggml_status conv_transpose_run(gb_cuda_backend & b, ggml_tensor * dst) {
    const gb_spread_args q = { gb_view_of(dst), gb_view_of(dst->src[0]), gb_view_of(dst->src[1]), dst->op_params[0],
        dst->op == GGML_OP_CONV_TRANSPOSE_2D };
    const int64_t n = gb_count(dst);
    GB_CUDA_TRY(b, GB_LAUNCH(gb_conv_transpose, gb_blocks(n), GB_BLOCK, 0, b.queue, q, n));
    return GGML_STATUS_SUCCESS;
}

static const char * conv_transpose_supports(const gb_cuda_device &, const ggml_tensor * dst) {
    if (dst->op_params[0] < 1) {
        return "a stride that is not positive";
    }
    if (dst->op == GGML_OP_CONV_TRANSPOSE_1D && (dst->op_params[1] != 0 || dst->op_params[2] != 1)) {
        return "padding or dilation";
    }
    return gb_need_floats(dst, 2);
}

// ------------------------------------------------------------------------------------------------------------- pooling

struct gb_pool_args {
    gb_view y, x;
    bool average;
    int k0, k1, s0, s1, p0, p1; // in 1d every row has its own windows: k1 1, s1 1, p1 0
};

template <class I> GB_KERNEL GB_BOUNDS(256, 1) gb_pool(gb_pool_args q, int64_t n) {
    gb_wait_for_earlier();
    const int64_t k = gb_thread();
    if (k >= n) {
        return;
    }
    const gb_index at = gb_unravel<I>((I) k, q.y.ne);
    const int64_t x0 = at.i[0] * q.s0 - q.p0, x1 = gb_min(x0 + q.k0, q.x.ne[0]), y0 = at.i[1] * q.s1 - q.p1,
                  y1 = gb_min(y0 + q.k1, q.x.ne[1]);
    float acc = q.average ? 0.0f : -INFINITY;
    for (int64_t j = gb_max<int64_t>(y0, 0); j < y1; j++) {
        for (int64_t i = gb_max<int64_t>(x0, 0); i < x1; i++) {
            const float v = gb_get(q.x.type, gb_at(q.x, i, j, at.i[2], at.i[3]));
            acc = q.average ? acc + v : v > acc || v != v ? v : acc; // keeps NaN
        }
    }
    const float all = (float) q.k0 * (float) q.k1; // of the whole window, also at an edge
    gb_put(q.y.type, gb_at(q.y, at), q.average ? acc / all : acc);
}

static gb_pool_args pool_of(const ggml_tensor * dst) {
    const int32_t * o = dst->op_params;
    const gb_view y = gb_view_of(dst), x = gb_view_of(dst->src[0]);
    const bool average = o[0] == GGML_OP_POOL_AVG;
    return dst->op == GGML_OP_POOL_1D ? gb_pool_args{ y, x, average, o[1], 1, o[2], 1, o[3], 0 }
                                      : gb_pool_args{ y, x, average, o[1], o[2], o[3], o[4], o[5], o[6] };
}

static enum ggml_status pool_run(gb_cuda_backend & b, ggml_tensor * dst) {
    const gb_pool_args q = pool_of(dst);
    const int64_t n = gb_count(dst);
    GB_CUDA_TRY(b, (gb_is_small(n) ? GB_LAUNCH((gb_pool<uint32_t>), gb_blocks(n), GB_BLOCK, 0, b.queue, q, n)
                                   : GB_LAUNCH((gb_pool<uint64_t>), gb_blocks(n), GB_BLOCK, 0, b.queue, q, n)));
    return GGML_STATUS_SUCCESS;
}

static const char * pool_supports(const gb_cuda_device &, const ggml_tensor * dst) {
    const char * why = gb_need_floats(dst, 1);
    if (why != NULL) {
        return why;
    }
    const gb_pool_args q = pool_of(dst);
    if (dst->op_params[0] != GGML_OP_POOL_AVG && dst->op_params[0] != GGML_OP_POOL_MAX) {
        return "kind of pooling";
    }
    return q.k0 < 1 || q.k1 < 1 || q.s0 < 1 || q.s1 < 1 ? "a window or stride that is not positive" : NULL;
}

GB_CUDA_FAMILY_DEFINE(conv, { GGML_OP_IM2COL, im2col_supports, im2col_run, nullptr },
    { GGML_OP_IM2COL_BACK, im2col_supports, im2col_back_run, nullptr },
    { GGML_OP_CONV_TRANSPOSE_1D, conv_transpose_supports, conv_transpose_run, nullptr },
    { GGML_OP_CONV_TRANSPOSE_2D, conv_transpose_supports, conv_transpose_run, nullptr },
    { GGML_OP_POOL_1D, pool_supports, pool_run, nullptr }, { GGML_OP_POOL_2D, pool_supports, pool_run, nullptr })
