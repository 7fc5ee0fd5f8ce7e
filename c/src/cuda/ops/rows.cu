// rows.cu - GET_ROWS (rows selected by an index tensor) and DIAG.
//
// An index out of range gives a row of NaN (zeros, if integers) and an error (index.h).
#include "cuda/kernels/copies.cuh"
#include "cuda/kernels/wrong_index.cuh"
#include "cuda/ops/elements.h"

// Source of row (i1, i2, i3) of the result. NULL: the index is out of range.
GB_DEVICE const char * gb_chosen_row(const gb_view & a, const gb_view & ids, const gb_index & at,
    const gb_index_reader & reader) {
    const int32_t id =
        *(const int32_t *) (const void *) (ids.p + at.i[1] * ids.nb[0] + at.i[2] * ids.nb[1] + at.i[3] * ids.nb[2]);
    if (id >= 0 && id < a.ne[1]) {
        return gb_at(a, 0, id, at.i[2], at.i[3]);
    }
    if (at.i[0] == 0) {
        gb_note_wrong_index(reader, id, at.i[1], at.i[2], at.i[3]);
    }
    return NULL;
}

template <class I>
GB_KERNEL GB_BOUNDS(256, 1)
    gb_rows_plain(gb_view y, gb_view a, gb_view ids, gb_index_reader reader, int size, int64_t n) {
    gb_wait_for_earlier();
    const int64_t k = gb_thread();
    if (k >= n) {
        return;
    }
    const gb_index at = gb_unravel<I>((I) k, y.ne);
    const char * row = gb_chosen_row(a, ids, at, reader);
    char * to = gb_at(y, at);
    if (row != NULL && y.type == a.type) {
        gb_move(size, to, row + at.i[0] * a.nb[0]);
    } else if (row != NULL) {
        gb_put(y.type, to, gb_get(a.type, row + at.i[0] * a.nb[0]));
    } else if (y.type == GGML_TYPE_F32 || y.type == GGML_TYPE_F16 || y.type == GGML_TYPE_BF16) {
        gb_put(y.type, to, NAN);
    } else {
        gb_clear(size, to);
    }
}

template <int TYPE>
GB_KERNEL GB_BOUNDS(256, 1)
    gb_rows_quantized(gb_view y, gb_view a, gb_view ids, gb_index_reader reader, int64_t n_groups) {
    gb_wait_for_earlier();
    const int64_t k = gb_thread();
    if (k >= n_groups) {
        return;
    }
    const int64_t per_row = y.ne[0] / 32, first = k % per_row;
    gb_index at = gb_unravel_row<uint64_t>((uint64_t) (k / per_row), y.ne);
    at.i[0] = first * 32;
    const char * row = gb_chosen_row(a, ids, at, reader);
    gb_group o;
    if (row != NULL) {
        gb_dequantize_group<TYPE>(row, first, o);
    }
    for (int i = 0; i < 32; i++, at.i[0]++) {
        gb_put(y.type, gb_at(y, at), row != NULL ? gb_group_element(o, i) : NAN);
    }
}

static cudaError_t launch_quantized(const ggml_tensor * dst, const gb_index_reader & reader, const gb_queue & queue) {
    const gb_view y = gb_view_of(dst), a = gb_view_of(dst->src[0]), ids = gb_view_of(dst->src[1]);
    const int64_t n = gb_count(dst) / 32;
    switch (a.type) {
#define GB_FORMAT(id, ...) \
    case GGML_TYPE_##id:   \
        return GB_LAUNCH((gb_rows_quantized<GGML_TYPE_##id>), gb_blocks(n), GB_BLOCK, 0, queue, y, a, ids, reader, n);
#include "tensor/quant/formats.def"
#undef GB_FORMAT
        default: return cudaErrorInvalidValue;
    }
}

static cudaError_t launch_rows(const ggml_tensor * dst, const gb_index_reader & reader, const gb_queue & queue) {
    const gb_view y = gb_view_of(dst), a = gb_view_of(dst->src[0]), ids = gb_view_of(dst->src[1]);
    const int64_t n = gb_count(dst);
    const int size = (int) ggml_type_size(dst->type);
    if (ggml_is_quantized(dst->src[0]->type)) {
        return launch_quantized(dst, reader, queue);
    }
    return gb_is_small(n)
               ? GB_LAUNCH((gb_rows_plain<uint32_t>), gb_blocks(n), GB_BLOCK, 0, queue, y, a, ids, reader, size, n)
               : GB_LAUNCH((gb_rows_plain<uint64_t>), gb_blocks(n), GB_BLOCK, 0, queue, y, a, ids, reader, size, n);
}

static enum ggml_status get_rows_run(gb_cuda_backend & b, ggml_tensor * dst) {
    GB_CUDA_TRY(b, launch_rows(dst, gb_cuda_index_reader(b, dst, -1, dst->src[0]->ne[1]), b.queue));
    return GGML_STATUS_SUCCESS;
}

static const char * get_rows_supports(const gb_cuda_device &, const ggml_tensor * dst) {
    const ggml_tensor *a = dst->src[0], *ids = dst->src[1];
    const ggml_tensor * all[] = { dst, a, ids };
    for (const ggml_tensor * t : all) {
        if (gb_need_plain(t) != NULL) {
            return gb_need_plain(t);
        }
    }
    if (ids->type != GGML_TYPE_I32) {
        return "indices that are not i32";
    }
    if (ggml_is_quantized(a->type)) {
        const bool whole = a->nb[0] == ggml_type_size(a->type) && a->ne[0] % ggml_blck_size(a->type) == 0;
        return !gb_is_float_type(dst->type) ? "a quantized result" : whole ? NULL : "rows that are not whole blocks";
    }
    return a->type == dst->type || (gb_is_float_type(a->type) && gb_is_float_type(dst->type))
               ? NULL
               : "conversion between these types";
}

// ---------------------------------------------------------------------------------------------------------------- DIAG

template <class I> GB_KERNEL GB_BOUNDS(256, 1) gb_diag(gb_view y, gb_view a, int size, int64_t n) {
    gb_wait_for_earlier();
    const int64_t k = gb_thread();
    if (k < n) {
        const gb_index at = gb_unravel<I>((I) k, y.ne);
        if (at.i[0] == at.i[1]) {
            gb_move(size, gb_at(y, at), gb_at(a, at.i[0], 0, at.i[2], at.i[3]));
        } else {
            gb_clear(size, gb_at(y, at));
        }
    }
}

static enum ggml_status diag_run(gb_cuda_backend & b, ggml_tensor * dst) {
    const int64_t n = gb_count(dst);
    const int size = (int) ggml_type_size(dst->type);
    const gb_view y = gb_view_of(dst), a = gb_view_of(dst->src[0]);
    GB_CUDA_TRY(b,
        (gb_is_small(n) ? GB_LAUNCH((gb_diag<uint32_t>), gb_blocks(n), GB_BLOCK, 0, b.queue, y, a, size, n)
                        : GB_LAUNCH((gb_diag<uint64_t>), gb_blocks(n), GB_BLOCK, 0, b.queue, y, a, size, n)));
    return GGML_STATUS_SUCCESS;
}

static const char * diag_supports(const gb_cuda_device &, const ggml_tensor * dst) { return gb_need_same(dst, 1); }

GB_CUDA_FAMILY_DEFINE(rows, { GGML_OP_GET_ROWS, get_rows_supports, get_rows_run, nullptr },
    { GGML_OP_DIAG, diag_supports, diag_run, nullptr })
