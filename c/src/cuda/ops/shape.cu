// shape.cu - operators whose elements are elements of a source, or 0: REPEAT, CONCAT, PAD, UPSCALE, WIN_PART,
// WIN_UNPART, GET_REL_POS.
//
// Each is a function from the indices of an element to its source.
#include "cuda/ops/elements.h"

struct gb_shape_args {
    gb_view y, a, b;
    int64_t p, q; // parameters of the operator
};

enum gb_shape {
    GB_SHAPE_REPEAT,
    GB_SHAPE_CONCAT,
    GB_SHAPE_PAD,
    GB_SHAPE_UPSCALE,
    GB_SHAPE_WIN_PART,
    GB_SHAPE_WIN_UNPART,
    GB_SHAPE_REL_POS
};

// NULL: zero.
template <int OP> GB_DEVICE const char * gb_origin(const gb_shape_args & s, const gb_index & at) {
    const int64_t *i = at.i, *ne = s.a.ne;
    switch (OP) {
        case GB_SHAPE_REPEAT: return gb_at(s.a, i[0] % ne[0], i[1] % ne[1], i[2] % ne[2], i[3] % ne[3]);
        case GB_SHAPE_CONCAT: return i[2] < ne[2] ? gb_at(s.a, at) : gb_at(s.b, i[0], i[1], i[2] - ne[2], i[3]);
        case GB_SHAPE_PAD: return i[0] < ne[0] && i[1] < ne[1] && i[2] < ne[2] && i[3] < ne[3] ? gb_at(s.a, at) : NULL;
        case GB_SHAPE_UPSCALE: return gb_at(s.a, i[0] / s.p, i[1] / s.p, i[2], i[3]);
        case GB_SHAPE_WIN_PART: { // [C, w, w, npx npy] of [C, W, H]; p = npx, q = w
            const int64_t x = i[3] % s.p * s.q + i[1], y = i[3] / s.p * s.q + i[2];
            return x < ne[1] && y < ne[2] ? gb_at(s.a, i[0], x, y, 0) : NULL;
        }
        case GB_SHAPE_WIN_UNPART: // p = npx, q = w
            return gb_at(s.a, i[0], i[1] % s.q, i[2] % s.q, i[2] / s.q * s.p + i[1] / s.q);
        default: return gb_at(s.a, i[0], s.y.ne[1] - 1 - i[1] + i[2], 0, 0);
    }
}

template <int OP, class I> GB_KERNEL GB_BOUNDS(256, 1) gb_shape_kernel(gb_shape_args s, int size, int64_t n) {
    gb_wait_for_earlier();
    const int64_t k = gb_thread();
    if (k < n) {
        const gb_index at = gb_unravel<I>((I) k, s.y.ne);
        const char * from = gb_origin<OP>(s, at);
        if (from != NULL) {
            gb_move(size, gb_at(s.y, at), from);
        } else {
            gb_clear(size, gb_at(s.y, at));
        }
    }
}

template <int OP> static enum ggml_status shape_run(gb_cuda_backend & b, ggml_tensor * dst) {
    const int64_t n = gb_count(dst);
    const int size = (int) ggml_type_size(dst->type);
    gb_shape_args s = { gb_view_of(dst), gb_view_of(dst->src[0]), gb_view_of(dst->src[OP == GB_SHAPE_CONCAT ? 1 : 0]),
        1, 1 };
    if (OP == GB_SHAPE_UPSCALE) {
        s.p = dst->op_params[0];
    } else if (OP == GB_SHAPE_WIN_PART) {
        s.p = dst->op_params[0];
        s.q = dst->op_params[2];
    } else if (OP == GB_SHAPE_WIN_UNPART) {
        s.q = dst->op_params[0];
        s.p = gb_cuda_ceil_div(dst->ne[1], s.q);
    }
    if (OP == GB_SHAPE_REPEAT && gb_count(dst->src[0]) == 0) {
        return GGML_STATUS_SUCCESS;
    }
    GB_CUDA_TRY(b,
        (gb_is_small(n) ? GB_LAUNCH((gb_shape_kernel<OP, uint32_t>), gb_blocks(n), GB_BLOCK, 0, b.queue, s, size, n)
                        : GB_LAUNCH((gb_shape_kernel<OP, uint64_t>), gb_blocks(n), GB_BLOCK, 0, b.queue, s, size, n)));
    return GGML_STATUS_SUCCESS;
}

template <int OP> static const char * shape_supports(const gb_cuda_device &, const ggml_tensor * dst) {
    if ((OP == GB_SHAPE_UPSCALE || OP == GB_SHAPE_WIN_UNPART || OP == GB_SHAPE_WIN_PART) && dst->op_params[0] < 1) {
        return "a factor or window that is not positive";
    }
    if (OP == GB_SHAPE_WIN_PART && dst->op_params[2] < 1) {
        return "a window that is not positive";
    }
    return gb_need_same(dst, OP == GB_SHAPE_CONCAT ? 2 : 1);
}

#define GB_SHAPE_OP(name, kind) { GGML_OP_##name, shape_supports<kind>, shape_run<kind>, nullptr }

// --------------------------------------------------------------------------------------------------------- ADD_REL_POS

// Rows of src[0] are pictures of k x k. Line y gets ph[y], column x gets pw[x] of the same row of pw and ph. Dimensions
// 1 and higher count as rows.
GB_KERNEL GB_BOUNDS(256, 1) gb_add_rel_pos(gb_view y, gb_view a, gb_view pw, gb_view ph, int64_t k, int64_t n) {
    gb_wait_for_earlier();
    const int64_t t = gb_thread();
    if (t < n) {
        gb_index at = gb_unravel<uint64_t>((uint64_t) t, y.ne);
        const int64_t row = t / y.ne[0], i0 = at.i[0];
        gb_index w = gb_unravel_row<uint64_t>((uint64_t) row, pw.ne),
                 h = gb_unravel_row<uint64_t>((uint64_t) row, ph.ne);
        w.i[0] = i0 % k;
        h.i[0] = i0 / k;
        const float x = gb_get(a.type, gb_at(a, at));
        gb_put(y.type, gb_at(y, at),
            h.i[0] < k ? x + gb_get(ph.type, gb_at(ph, h)) + gb_get(pw.type, gb_at(pw, w)) : x);
    }
}

static enum ggml_status add_rel_pos_run(gb_cuda_backend & b, ggml_tensor * dst) {
    const int64_t n = gb_count(dst), k = dst->src[1]->ne[0];
    GB_CUDA_TRY(b, GB_LAUNCH(gb_add_rel_pos, gb_blocks(n), GB_BLOCK, 0, b.queue, gb_view_of(dst),
                       gb_view_of(dst->src[0]), gb_view_of(dst->src[1]), gb_view_of(dst->src[2]), k, n));
    return GGML_STATUS_SUCCESS;
}

static const char * add_rel_pos_supports(const gb_cuda_device &, const ggml_tensor * dst) {
    const char * why = gb_need_floats(dst, 3);
    if (why != NULL) {
        return why;
    }
    const int64_t k = dst->src[1]->ne[0], rows = gb_rows(dst);
    return k < 1 || dst->ne[0] != k * k || gb_rows(dst->src[1]) < rows || gb_rows(dst->src[2]) < rows ||
                   dst->src[2]->ne[0] != k
               ? "shapes"
               : NULL;
}

GB_CUDA_FAMILY_DEFINE(shape, GB_SHAPE_OP(REPEAT, GB_SHAPE_REPEAT), GB_SHAPE_OP(CONCAT, GB_SHAPE_CONCAT),
    GB_SHAPE_OP(PAD, GB_SHAPE_PAD), GB_SHAPE_OP(UPSCALE, GB_SHAPE_UPSCALE), GB_SHAPE_OP(WIN_PART, GB_SHAPE_WIN_PART),
    GB_SHAPE_OP(WIN_UNPART, GB_SHAPE_WIN_UNPART), GB_SHAPE_OP(GET_REL_POS, GB_SHAPE_REL_POS),
    { GGML_OP_ADD_REL_POS, add_rel_pos_supports, add_rel_pos_run, nullptr })
