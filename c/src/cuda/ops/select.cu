// select.cu - COMPARE (src[1] repeats over src[0]), which makes masks, and WHERE, which selects by a mask.
//
// Any strides; floats of any type, or I32. WHERE copies elements unchanged.
#include "cuda/ops/elements.h"

// The element at `at` of a repeated tensor.
template <class I> GB_DEVICE const char * gb_repeated(const gb_view & v, gb_index at) {
    GB_UNROLL for (int d = 0; d < 4; d++) { at.i[d] = v.ne[d] == 1 ? 0 : (int64_t) ((I) at.i[d] % (I) v.ne[d]); }
    return gb_at(v, at);
}

GB_DEVICE int32_t gb_get_i32(const char * p) { return *(const int32_t *) (const void *) p; }

// ------------------------------------------------------------------------------------------------------------- COMPARE

template <class T> GB_DEVICE bool gb_holds(int comparison, T x, T y) {
    switch (comparison) {
        case GGML_COMPARE_EQUAL: return x == y;
        case GGML_COMPARE_NOT_EQUAL: return x != y;
        case GGML_COMPARE_LESS: return x < y;
        case GGML_COMPARE_LESS_EQUAL: return x <= y;
        case GGML_COMPARE_GREATER: return x > y;
        default: return x >= y;
    }
}

template <class I> GB_KERNEL GB_BOUNDS(256, 1) gb_compare(gb_view z, gb_view x, gb_view y, int comparison, int64_t n) {
    gb_wait_for_earlier();
    const int64_t k = gb_thread();
    if (k < n) {
        const gb_index at = gb_unravel<I>((I) k, z.ne);
        const char *p = gb_at(x, at), *q = gb_repeated<I>(y, at);
        const bool holds = x.type == GGML_TYPE_I32 ? gb_holds(comparison, gb_get_i32(p), gb_get_i32(q))
                                                   : gb_holds(comparison, gb_get(x.type, p), gb_get(y.type, q));
        gb_put(GGML_TYPE_F32, gb_at(z, at), holds ? 1.0f : 0.0f);
    }
}

static enum ggml_status compare_run(gb_cuda_backend & b, ggml_tensor * dst) {
    const int64_t n = gb_count(dst);
    const gb_view z = gb_view_of(dst), x = gb_view_of(dst->src[0]), y = gb_view_of(dst->src[1]);
    const int comparison = dst->op_params[0];
    if (gb_is_small(n)) {
        GB_CUDA_TRY(b, GB_LAUNCH((gb_compare<uint32_t>), gb_blocks(n), GB_BLOCK, 0, b.queue, z, x, y, comparison, n));
    } else {
        GB_CUDA_TRY(b, GB_LAUNCH((gb_compare<uint64_t>), gb_blocks(n), GB_BLOCK, 0, b.queue, z, x, y, comparison, n));
    }
    return GGML_STATUS_SUCCESS;
}

// True if t repeats over dst.
static bool repeats_over(const ggml_tensor * t, const ggml_tensor * dst) {
    for (int d = 0; d < 4; d++) {
        if (t->ne[d] == 0 ? dst->ne[d] != 0 : dst->ne[d] % t->ne[d] != 0) {
            return false;
        }
    }
    return true;
}

static const char * compare_supports(const gb_cuda_device &, const ggml_tensor * dst) {
    const ggml_tensor *x = dst->src[0], *y = dst->src[1];
    const ggml_tensor * all[] = { dst, x, y };
    for (const ggml_tensor * t : all) {
        if (gb_need_plain(t) != NULL) {
            return gb_need_plain(t);
        }
    }
    if (dst->op_params[0] < 0 || dst->op_params[0] >= GGML_COMPARE_COUNT) {
        return "comparison";
    }
    const bool integers = x->type == GGML_TYPE_I32 && y->type == GGML_TYPE_I32;
    if (dst->type != GGML_TYPE_F32 || !(integers || (gb_is_float_type(x->type) && gb_is_float_type(y->type)))) {
        return "types that are not both i32 or floats, or a result that is not f32";
    }
    return gb_same_shape(dst, x) && repeats_over(y, dst) ? NULL : "shapes that do not repeat";
}

// --------------------------------------------------------------------------------------------------------------- WHERE

template <class I>
GB_KERNEL GB_BOUNDS(256, 1) gb_where(gb_view z, gb_view c, gb_view x, gb_view y, int size, int64_t n) {
    gb_wait_for_earlier();
    const int64_t k = gb_thread();
    if (k < n) {
        const gb_index at = gb_unravel<I>((I) k, z.ne);
        const char * p = gb_repeated<I>(c, at);
        const bool holds = c.type == GGML_TYPE_I32 ? gb_get_i32(p) != 0 : gb_get(c.type, p) != 0.0f;
        gb_move(size, gb_at(z, at), gb_repeated<I>(holds ? x : y, at));
    }
}

static enum ggml_status where_run(gb_cuda_backend & b, ggml_tensor * dst) {
    const int64_t n = gb_count(dst);
    const gb_view z = gb_view_of(dst), c = gb_view_of(dst->src[0]), x = gb_view_of(dst->src[1]),
                  y = gb_view_of(dst->src[2]);
    const int size = (int) ggml_type_size(dst->type);
    if (gb_is_small(n)) {
        GB_CUDA_TRY(b, GB_LAUNCH((gb_where<uint32_t>), gb_blocks(n), GB_BLOCK, 0, b.queue, z, c, x, y, size, n));
    } else {
        GB_CUDA_TRY(b, GB_LAUNCH((gb_where<uint64_t>), gb_blocks(n), GB_BLOCK, 0, b.queue, z, c, x, y, size, n));
    }
    return GGML_STATUS_SUCCESS;
}

static const char * where_supports(const gb_cuda_device &, const ggml_tensor * dst) {
    const ggml_tensor * all[] = { dst, dst->src[0], dst->src[1], dst->src[2] };
    for (const ggml_tensor * t : all) {
        if (gb_need_plain(t) != NULL) {
            return gb_need_plain(t);
        }
        if (!gb_is_float_type(t->type) && t->type != GGML_TYPE_I32) {
            return "a type that is not f32, f16, bf16 or i32";
        }
        if (!repeats_over(t, dst)) {
            return "shapes that do not repeat";
        }
    }
    return all[2]->type == dst->type && all[3]->type == dst->type ? NULL : "types that differ";
}

GB_CUDA_FAMILY_DEFINE(select, { GGML_OP_COMPARE, compare_supports, compare_run, nullptr },
    { GGML_OP_WHERE, where_supports, where_run, nullptr })
