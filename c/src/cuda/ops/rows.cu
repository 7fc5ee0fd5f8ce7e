// rows.cu - GET_ROWS, SET_ROWS, ADD_ID (rows selected by an index tensor) and DIAG.
//
// An index out of range is an error (index.h). GET_ROWS and ADD_ID then give a row of NaN (zeros, if
// integers). SET_ROWS does not write the row.
#include "cuda/kernels/copies.cuh"
#include "cuda/kernels/quantize.cuh"
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
    GB_CUDA_TRY(b, launch_rows(dst, gb_cuda_index_reader(b, dst, dst->src[1], dst->src[0]->ne[1]), b.queue));
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

// ------------------------------------------------------------------------------------------------------------ SET_ROWS

// If several rows of b have one target, the last of them is written: the warp or block of a row looks at all later
// indices. If rows have one element, any of them is written, because a store of one element is never torn.
struct gb_set_rows {
    gb_view y, b, c;
    int64_t rows; // of b
    gb_index_reader reader;
};

GB_DEVICE int64_t gb_target_of(const gb_view & c, int64_t i1, const gb_index & at) {
    const char * p = c.p + i1 * c.nb[0] + at.i[2] % c.ne[1] * c.nb[1] + at.i[3] % c.ne[2] * c.nb[2];
    return c.type == GGML_TYPE_I32 ? *(const int32_t *) (const void *) p : *(const int64_t *) (const void *) p;
}

// The row of y for row `at` of b. NULL: the index is out of range. noting: true for one thread of the row.
GB_DEVICE char * gb_target_row(const gb_set_rows & q, const gb_index & at, bool noting) {
    const int64_t id = gb_target_of(q.c, at.i[1], at);
    if (id >= 0 && id < q.y.ne[1]) {
        return gb_at(q.y, 0, id, at.i[2], at.i[3]);
    }
    if (noting) {
        gb_note_wrong_index(q.reader, id, at.i[1], at.i[2] % q.c.ne[1], at.i[3] % q.c.ne[2]);
    }
    return NULL;
}

// The target of the row of this thread. NULL: it is out of range, or a later row has the same. Every thread of the
// block calls it.
template <int WARPS>
GB_DEVICE char * gb_own_target(const gb_set_rows & q, int64_t row, const gb_index & at, int * shared) {
    const bool real = row < q.rows;
    const int64_t id = gb_target_of(q.c, at.i[1], at);
    int later = 0;
    for (int64_t i = at.i[1] + 1 + gb_my_place<WARPS>(); i < q.b.ne[1]; i += WARPS * GB_WARP) {
        later |= gb_target_of(q.c, i, at) == id;
    }
    later = gb_row_sum<WARPS>(later, shared);
    return real && later == 0 ? gb_target_row(q, at, gb_my_place<WARPS>() == 0) : NULL;
}

GB_DEVICE void gb_set_element(const gb_view & y, char * to, const gb_view & b, const char * from, int size) {
    if (y.type == b.type) {
        gb_move(size, to, from);
    } else {
        gb_convert(y.type, to, b.type, from);
    }
}

template <int WARPS> GB_KERNEL GB_BOUNDS(512, 1) gb_set_rows_plain(gb_set_rows q, int size) {
    gb_wait_for_earlier();
    GB_SHARED(int, shared, WARPS);
    const int64_t row = gb_my_row<WARPS>();
    const gb_index at = gb_unravel_row<uint64_t>((uint64_t) gb_min(row, q.rows - 1), q.b.ne);
    char * to = gb_own_target<WARPS>(q, row, at, shared);
    if (to != NULL) {
        const char * from = gb_at(q.b, at);
        for (int64_t i = gb_my_place<WARPS>(); i < q.b.ne[0]; i += WARPS * GB_WARP) {
            gb_set_element(q.y, to + i * q.y.nb[0], q.b, from + i * q.b.nb[0], size);
        }
    }
}

// Rows of one element, a thread each.
GB_KERNEL GB_BOUNDS(256, 1) gb_set_rows_single(gb_set_rows q, int size) {
    gb_wait_for_earlier();
    const int64_t row = gb_thread();
    if (row < q.rows) {
        const gb_index at = gb_unravel_row<uint64_t>((uint64_t) row, q.b.ne);
        char * to = gb_target_row(q, at, true);
        if (to != NULL) {
            gb_set_element(q.y, to, q.b, gb_at(q.b, at), size);
        }
    }
}

enum { GB_SET_WARPS = 4 };

// A block quantizes a row.
template <int TYPE> GB_KERNEL GB_BOUNDS(GB_SET_WARPS * GB_WARP, 1) gb_set_rows_quantized(gb_set_rows q, int bytes) {
    gb_wait_for_earlier();
    GB_SHARED(int, sums, GB_SET_WARPS);
    GB_SHARED(float, shared, GB_SET_WARPS * 64);
    const gb_index at = gb_unravel_row<uint64_t>((uint64_t) blockIdx.x, q.b.ne);
    char * to = gb_own_target<GB_SET_WARPS>(q, blockIdx.x, at, sums);
    if (to == NULL) {
        return; // the whole block returns
    }
    const char * from = gb_at(q.b, at) + gb_lane() * q.b.nb[0];
    const int warp = (int) threadIdx.x / GB_WARP;
    for (int64_t k = warp; k < q.b.ne[0] / 32; k += GB_SET_WARPS) {
        const float value = gb_get(q.b.type, from + k * 32 * q.b.nb[0]);
        uint8_t * block = (uint8_t *) to + k * bytes;
        gb_quantizer<TYPE>::block(value, block, shared + warp * 64);
        gb_check_block<TYPE>(value, block, bytes);
    }
}

template <int TYPE> static cudaError_t quantizing(const gb_set_rows & q, const gb_queue & queue) {
    if constexpr (gb_quantizer<TYPE>::exists) {
        return GB_LAUNCH((gb_set_rows_quantized<TYPE>), (unsigned) q.rows, GB_SET_WARPS * GB_WARP, 0, queue, q,
            (int) ggml_type_size((enum ggml_type) TYPE));
    }
    return cudaErrorInvalidValue;
}

static cudaError_t launch_set_rows(const gb_set_rows & q, const gb_queue & queue) {
    const int size = (int) ggml_type_size((enum ggml_type) q.y.type);
    switch (q.y.type) {
#define GB_FORMAT(id, ...) \
    case GGML_TYPE_##id: return quantizing<GGML_TYPE_##id>(q, queue);
#include "tensor/quant/formats.def"
#undef GB_FORMAT
        default: break;
    }
    return q.b.ne[0] == 1 ? GB_LAUNCH(gb_set_rows_single, gb_blocks(q.rows), GB_BLOCK, 0, queue, q, size)
                          : GB_ROW_LAUNCH(gb_set_rows_plain, q.b.ne[0], q.rows, queue, q, size);
}

static enum ggml_status set_rows_run(gb_cuda_backend & b, ggml_tensor * dst) {
    const ggml_tensor *from = dst->src[0], *places = dst->src[1];
    if (gb_count(from) == 0) {
        return GGML_STATUS_SUCCESS;
    }
    const gb_set_rows q = { gb_view_of(dst), gb_view_of(from), gb_view_of(places), gb_rows(from),
        gb_cuda_index_reader(b, dst, places, dst->ne[1]) };
    GB_CUDA_TRY(b, launch_set_rows(q, b.queue));
    return GGML_STATUS_SUCCESS;
}

static const char * set_rows_supports(const gb_cuda_device &, const ggml_tensor * dst) {
    const ggml_tensor *from = dst->src[0], *places = dst->src[1];
    const ggml_tensor * all[] = { dst, from, places };
    for (const ggml_tensor * t : all) {
        if (gb_need_plain(t) != NULL) {
            return gb_need_plain(t);
        }
    }
    if (!gb_is_float_type(from->type)) {
        return "rows that are not f32, f16 or bf16";
    }
    if (places->type != GGML_TYPE_I32 && places->type != GGML_TYPE_I64) {
        return "indices that are not i32 or i64";
    }
    if (gb_rows(from) >= (int64_t) 1 << 31) {
        return "more than 2^31 rows";
    }
    if (ggml_is_quantized(dst->type)) {
        return !gb_rows_are_blocks(dst)      ? "rows that are not whole blocks"
               : !gb_may_quantize(dst->type) ? "quantizing to this type, which takes a long search"
                                             : NULL;
    }
    return gb_is_float_type(dst->type) || dst->type == GGML_TYPE_I32 ? NULL : "conversion between these types";
}

// -------------------------------------------------------------------------------------------------------------- ADD_ID

template <class I>
GB_KERNEL GB_BOUNDS(256, 1) gb_add_id(gb_view y, gb_view a, gb_view b, gb_view ids, gb_index_reader reader, int64_t n) {
    gb_wait_for_earlier();
    const int64_t k = gb_thread();
    if (k >= n) {
        return;
    }
    const gb_index at = gb_unravel<I>((I) k, y.ne);
    const int32_t id = *(const int32_t *) (const void *) (ids.p + at.i[1] * ids.nb[0] + at.i[2] * ids.nb[1]);
    const bool valid = id >= 0 && id < b.ne[1];
    if (!valid && at.i[0] == 0) {
        gb_note_wrong_index(reader, id, at.i[1], at.i[2], at.i[3]);
    }
    const float x = gb_get(a.type, gb_at(a, at));
    gb_put(y.type, gb_at(y, at), valid ? x + gb_get(b.type, gb_at(b, at.i[0], id, 0, 0)) : NAN);
}

static enum ggml_status add_id_run(gb_cuda_backend & b, ggml_tensor * dst) {
    const int64_t n = gb_count(dst);
    const ggml_tensor *bias = dst->src[1], *ids = dst->src[2];
    GB_CUDA_TRY(b, GB_EACH_LAUNCH(gb_add_id, n, b.queue, gb_view_of(dst), gb_view_of(dst->src[0]), gb_view_of(bias),
                       gb_view_of(ids), gb_cuda_index_reader(b, dst, ids, bias->ne[1]), n));
    return GGML_STATUS_SUCCESS;
}

static const char * add_id_supports(const gb_cuda_device &, const ggml_tensor * dst) {
    const char * why = gb_need_floats(dst, 2);
    if (why != NULL || gb_need_plain(dst->src[2]) != NULL) {
        return why != NULL ? why : gb_need_plain(dst->src[2]);
    }
    return dst->src[2]->type == GGML_TYPE_I32 ? NULL : "indices that are not i32";
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
    { GGML_OP_SET_ROWS, set_rows_supports, set_rows_run, nullptr },
    { GGML_OP_ADD_ID, add_id_supports, add_id_run, nullptr }, { GGML_OP_DIAG, diag_supports, diag_run, nullptr })
