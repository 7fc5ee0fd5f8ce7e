// binary.cu - ADD, SUB, MUL, DIV (src[1] repeats over src[0]), ADD1, and ACC and SET, which change a region of a copy
// of src[0].
//
// ADD and ADD1 also take a quantized src[0] and give quantized results, through floats in scratch memory.
#include "cuda/ops/elements.h"

enum gb_pair { GB_PAIR_ADD, GB_PAIR_SUB, GB_PAIR_MUL, GB_PAIR_DIV };

template <int OP> GB_DEVICE float gb_pair_of(float x, float y) {
    switch (OP) {
        case GB_PAIR_ADD: return x + y;
        case GB_PAIR_SUB: return x - y;
        case GB_PAIR_MUL: return x * y;
        default: return x / y;
    }
}

// --------------------------------------------------------------------------------------------------------- elementwise

template <int OP, class I> GB_KERNEL GB_BOUNDS(256, 1) gb_pairs_strided(gb_view z, gb_view x, gb_view y, int64_t n) {
    gb_wait_for_earlier();
    const int64_t k = gb_thread();
    if (k < n) {
        const gb_index at = gb_unravel<I>((I) k, z.ne);
        gb_index of = at;
        GB_UNROLL for (int d = 0; d < 4; d++) {
            if (y.ne[d] != z.ne[d]) {
                of.i[d] = y.ne[d] == 1 ? 0 : (int64_t) ((I) at.i[d] % (I) y.ne[d]);
            }
        }
        gb_put(z.type, gb_at(z, at), gb_pair_of<OP>(gb_get(x.type, gb_at(x, at)), gb_get(y.type, gb_at(y, of))));
    }
}

template <int OP> GB_DEVICE float4 gb_pair4(float4 x, float4 y) {
    return make_float4(gb_pair_of<OP>(x.x, y.x), gb_pair_of<OP>(x.y, y.y), gb_pair_of<OP>(x.z, y.z),
        gb_pair_of<OP>(x.w, y.w));
}

template <int OP> GB_KERNEL GB_BOUNDS(256, 1) gb_pairs_dense(float * z, const float * x, const float * y, int64_t n) {
    gb_wait_for_earlier();
    const int64_t k = 4 * gb_thread();
    if (k + 4 <= n) {
        *(float4 *) (void *) (z + k) =
            gb_pair4<OP>(*(const float4 *) (const void *) (x + k), *(const float4 *) (const void *) (y + k));
        return;
    }
    for (int64_t i = k; i < n; i++) {
        z[i] = gb_pair_of<OP>(x[i], y[i]);
    }
}

// y is one row of 4 `row4` elements that repeats.
template <int OP, class I>
GB_KERNEL GB_BOUNDS(256, 1) gb_pairs_row(float4 * z, const float4 * x, const float4 * y, I row4, int64_t n4) {
    gb_wait_for_earlier();
    const int64_t k = gb_thread();
    if (k < n4) {
        z[k] = gb_pair4<OP>(x[k], y[(I) k % row4]);
    }
}

template <int OP> static cudaError_t launch_dense(const ggml_tensor * dst, const gb_queue & queue) {
    const ggml_tensor *x = dst->src[0], *y = dst->src[1];
    const int64_t n = gb_count(dst);
    if (gb_same_shape(dst, y)) {
        return GB_LAUNCH((gb_pairs_dense<OP>), gb_blocks(gb_cuda_ceil_div(n, 4)), GB_BLOCK, 0, queue,
            (float *) dst->data, (const float *) x->data, (const float *) y->data, n);
    }
    const int64_t n4 = n / 4, row4 = y->ne[0] / 4;
    if (gb_is_small(n4)) {
        return GB_LAUNCH((gb_pairs_row<OP, uint32_t>), gb_blocks(n4), GB_BLOCK, 0, queue, (float4 *) dst->data,
            (const float4 *) x->data, (const float4 *) y->data, row4, n4);
    }
    return GB_LAUNCH((gb_pairs_row<OP, uint64_t>), gb_blocks(n4), GB_BLOCK, 0, queue, (float4 *) dst->data,
        (const float4 *) x->data, (const float4 *) y->data, row4, n4);
}

template <int OP>
static cudaError_t launch_strided(const gb_view & z, const gb_view & x, const gb_view & y, int64_t n,
    const gb_queue & queue) {
    return gb_is_small(n) ? GB_LAUNCH((gb_pairs_strided<OP, uint32_t>), gb_blocks(n), GB_BLOCK, 0, queue, z, x, y, n)
                          : GB_LAUNCH((gb_pairs_strided<OP, uint64_t>), gb_blocks(n), GB_BLOCK, 0, queue, z, x, y, n);
}

template <int OP> static cudaError_t launch_pairs(const ggml_tensor * dst, const gb_view & y, const gb_queue & queue) {
    const ggml_tensor * x = dst->src[0];
    const int64_t n = gb_count(dst);
    const ggml_tensor * second = dst->src[1];
    const bool is_row = second->ne[0] == dst->ne[0] && gb_rows(second) == 1 && dst->ne[0] % 4 == 0;
    if (y.p == gb_cuda_data(second) && y.ne[0] == second->ne[0] && gb_is_dense_f32(dst) && gb_is_dense_f32(x) &&
        gb_is_dense_f32(second) && (gb_same_shape(dst, second) || is_row)) {
        return launch_dense<OP>(dst, queue);
    }
    return launch_strided<OP>(gb_view_of(dst), gb_view_of(x), y, n, queue);
}

template <int OP> static enum ggml_status pairs_run(gb_cuda_backend & b, ggml_tensor * dst) {
    GB_CUDA_TRY(b, (launch_pairs<OP>(dst, gb_view_of(dst->src[1]), b.queue)));
    return GGML_STATUS_SUCCESS;
}

// ADD and ADD1 with a quantized type.
static enum ggml_status sum_of_blocks(gb_cuda_backend & b, ggml_tensor * dst) {
    const int64_t n = gb_count(dst);
    const gb_view x = gb_view_of(dst->src[0]), z = gb_view_of(dst);
    gb_view values;
    if (!gb_scratch_floats(b, dst, &values)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    GB_CUDA_TRY(b, gb_launch_conversion(values, x, b.queue));
    GB_CUDA_TRY(b, launch_strided<GB_PAIR_ADD>(values, values, gb_view_of(dst->src[1]), n, b.queue));
    GB_CUDA_TRY(b, gb_launch_conversion(z, values, b.queue));
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status sum_run(gb_cuda_backend & b, ggml_tensor * dst) {
    const bool blocks = ggml_is_quantized(dst->type) || ggml_is_quantized(dst->src[0]->type);
    return blocks ? sum_of_blocks(b, dst) : pairs_run<GB_PAIR_ADD>(b, dst);
}

static const char * shapes_unsupported(const ggml_tensor * dst) {
    if (!gb_same_shape(dst, dst->src[0])) {
        return "shapes of src0 and the result";
    }
    for (int d = 0; d < 4; d++) {
        if (dst->src[1]->ne[d] == 0 || dst->ne[d] % dst->src[1]->ne[d] != 0) {
            return "shapes that do not repeat";
        }
    }
    return NULL;
}

static const char * blocks_unsupported(const ggml_tensor * dst) {
    const ggml_tensor *a = dst->src[0], *y = dst->src[1];
    for (const ggml_tensor * t : { dst, a, y }) {
        const char * why = gb_need_plain(t);
        if (why != NULL) {
            return why;
        }
        if (ggml_is_quantized(t->type) ? t == y || !gb_rows_are_blocks(t) : !gb_is_float_type(t->type)) {
            return "a type that is not f32, f16 or bf16, or rows that are not whole blocks";
        }
    }
    if (ggml_is_quantized(dst->type) && !gb_may_quantize(dst->type)) {
        return "quantizing to this type, which takes a long search";
    }
    return gb_count(dst) >> 32 != 0 ? "more than 2^32 elements" : NULL; // in scratch memory
}

static const char * pairs_supports(const gb_cuda_device &, const ggml_tensor * dst) {
    const char * why = gb_need_floats(dst, 2);
    return why != NULL ? why : shapes_unsupported(dst);
}

static const char * sum_supports(const gb_cuda_device &, const ggml_tensor * dst) {
    const bool blocks = dst->src[0] != NULL && (ggml_is_quantized(dst->type) || ggml_is_quantized(dst->src[0]->type));
    const char * why = blocks ? blocks_unsupported(dst) : gb_need_floats(dst, 2);
    return why != NULL ? why : shapes_unsupported(dst);
}

// src[1] is a tensor of one element, which repeats.
static const char * add1_supports(const gb_cuda_device & device, const ggml_tensor * dst) {
    const char * why = sum_supports(device, dst);
    return why != NULL ? why : gb_count(dst->src[1]) != 1 ? "src1 of more than one element" : NULL;
}

// ------------------------------------------------------------------------------------------------------------ ACC, SET

static gb_view region_of(const ggml_tensor * dst) {
    gb_view r = gb_view_of(dst);
    for (int i = 0; i < 4; i++) {
        r.ne[i] = dst->src[1]->ne[i];
        r.nb[i] = i == 0 ? (int64_t) ggml_type_size(dst->type) : (int64_t) (uint32_t) dst->op_params[i - 1];
    }
    r.p += (uint32_t) dst->op_params[3];
    return r;
}

// NULL if elements of src[1] go to distinct places; else their order would matter.
static const char * region_unsupported(const ggml_tensor * dst) {
    const int64_t size = (int64_t) ggml_type_size(dst->type);
    int64_t extent = size;
    for (int i = 0; i < 4; i++) {
        const int64_t ne = dst->src[1]->ne[i], nb = i == 0 ? size : (int64_t) (uint32_t) dst->op_params[i - 1];
        if (nb % size != 0) {
            return "strides of the region that are no multiples of the element's size";
        }
        if (ne > 1 && nb < extent) {
            return "a region that overlaps itself";
        }
        extent += ne > 1 ? (ne - 1) * nb : 0;
    }
    if ((uint32_t) dst->op_params[3] % size != 0) {
        return "a region that begins inside an element";
    }
    if (!ggml_is_contiguous(dst) || !gb_same_shape(dst, dst->src[0])) {
        return "a result that is not contiguous";
    }
    return gb_count(dst->src[1]) > 0 && extent + (int64_t) (uint32_t) dst->op_params[3] > (int64_t) ggml_nbytes(dst)
               ? "a region beyond the result"
               : NULL;
}

// Copies src[0] to the result first, unless they share memory.
static cudaError_t copy_first(const ggml_tensor * dst, const gb_queue & queue) {
    const ggml_tensor * a = dst->src[0];
    return dst->data == a->data ? cudaSuccess : gb_launch_copy(gb_view_of(dst), gb_view_of(a), queue);
}

static enum ggml_status set_run(gb_cuda_backend & b, ggml_tensor * dst) {
    GB_CUDA_TRY(b, copy_first(dst, b.queue));
    GB_CUDA_TRY(b, gb_launch_copy(region_of(dst), gb_view_of(dst->src[1]), b.queue));
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status acc_run(gb_cuda_backend & b, ggml_tensor * dst) {
    const gb_view region = region_of(dst);
    const int64_t n = gb_count(dst->src[1]);
    GB_CUDA_TRY(b, copy_first(dst, b.queue));
    if (n == 0) {
        return GGML_STATUS_SUCCESS;
    }
    GB_CUDA_TRY(b, launch_strided<GB_PAIR_ADD>(region, region, gb_view_of(dst->src[1]), n, b.queue));
    return GGML_STATUS_SUCCESS;
}

static const char * acc_supports(const gb_cuda_device &, const ggml_tensor * dst) {
    const char * why = gb_need_floats(dst, 2);
    return why != NULL ? why : region_unsupported(dst);
}

static const char * set_supports(const gb_cuda_device &, const ggml_tensor * dst) {
    const char * why = gb_need_same(dst, 2);
    why = why != NULL && gb_need_floats(dst, 2) == NULL ? NULL : why; // float types may differ
    return why != NULL ? why : region_unsupported(dst);
}

GB_CUDA_FAMILY_DEFINE(binary, { GGML_OP_ADD, sum_supports, sum_run, nullptr },
    { GGML_OP_SUB, pairs_supports, pairs_run<GB_PAIR_SUB>, nullptr },
    { GGML_OP_MUL, pairs_supports, pairs_run<GB_PAIR_MUL>, nullptr },
    { GGML_OP_DIV, pairs_supports, pairs_run<GB_PAIR_DIV>, nullptr }, { GGML_OP_ADD1, add1_supports, sum_run, nullptr },
    { GGML_OP_ACC, acc_supports, acc_run, nullptr }, { GGML_OP_SET, set_supports, set_run, nullptr })
