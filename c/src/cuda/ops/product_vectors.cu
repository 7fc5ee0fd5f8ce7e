// product_vectors.cu - launches the kernels of matvec.cuh and matvec_quick.cuh.
#include "cuda/ops/products.h"

static dim3 grid_of(const gb_product & p, const gb_matvec & q, int rows, int columns) {
    const int64_t per_block = rows * (q.split > 1 ? 1 : GB_MATVEC_WARPS);
    return dim3((unsigned) gb_cuda_ceil_div(p.m, per_block), (unsigned) gb_cuda_ceil_div(q.columns, columns),
        (unsigned) p.slices);
}

// Experts differ between tokens, so columns are computed one at a time.
static int columns_at_once(const gb_matvec & q) {
    return q.w.ids != NULL || q.columns == 1 ? 1 : q.columns <= 4 ? 4 : 8;
}

static bool is_quick(int type) {
    switch (type) {
#define GB_FORMAT(id, ...) \
    case GGML_TYPE_##id: return gb_quick<GGML_TYPE_##id>::exists;
#include "tensor/quant/formats.def"
#undef GB_FORMAT
        default: return false;
    }
}

bool gb_vectors_are_quick(const gb_product & p, const gb_matvec & q) {
    return is_quick(p.type) && columns_at_once(q) == 1 && p.k <= INT32_MAX / 8 && gb_product_is_aligned(p);
}

template <int TYPE> static cudaError_t quantized(const gb_product & p, const gb_matvec & q, const gb_queue & queue) {
    const int n = columns_at_once(q), block = GB_MATVEC_WARPS * GB_WARP;
    if constexpr (gb_quick<TYPE>::exists) {
        if (gb_vectors_are_quick(p, q)) {
            return GB_LAUNCH(gb_matvec_quick<TYPE>, grid_of(p, q, GB_QUICK_ROWS, n), block, 0, queue, q);
        }
    }
    const dim3 grid = grid_of(p, q, GB_MATVEC_ROWS, n);
    switch (n) {
        case 1: return GB_LAUNCH((gb_matvec_quantized<TYPE, 1>), grid, block, 0, queue, q);
        case 4: return GB_LAUNCH((gb_matvec_quantized<TYPE, 4>), grid, block, 0, queue, q);
        default: return GB_LAUNCH((gb_matvec_quantized<TYPE, 8>), grid, block, 0, queue, q);
    }
}

cudaError_t gb_launch_vectors_quantized(const gb_product & p, gb_matvec q, const gb_queue & queue) {
    switch (p.type) {
#define GB_FORMAT(id, ...) \
    case GGML_TYPE_##id: return quantized<GGML_TYPE_##id>(p, q, queue);
#include "tensor/quant/formats.def"
#undef GB_FORMAT
        default: return cudaErrorInvalidValue;
    }
}

template <int TYPE> static cudaError_t of_floats(const gb_product & p, const gb_matvec & q, const gb_queue & queue) {
    const int n = columns_at_once(q), block = GB_MATVEC_WARPS * GB_WARP;
    switch (n) {
        case 1: return GB_LAUNCH((gb_matvec_float<TYPE, 1, 4>), grid_of(p, q, 4, n), block, 0, queue, q);
        case 4: return GB_LAUNCH((gb_matvec_float<TYPE, 4, 2>), grid_of(p, q, 2, n), block, 0, queue, q);
        default: return GB_LAUNCH((gb_matvec_float<TYPE, 8, 2>), grid_of(p, q, 2, n), block, 0, queue, q);
    }
}

cudaError_t gb_launch_vectors_float(const gb_product & p, gb_matvec q, const gb_queue & queue) {
    switch (p.type) {
        case GGML_TYPE_F32: return of_floats<GGML_TYPE_F32>(p, q, queue);
        case GGML_TYPE_F16: return of_floats<GGML_TYPE_F16>(p, q, queue);
        case GGML_TYPE_BF16: return of_floats<GGML_TYPE_BF16>(p, q, queue);
        default: return cudaErrorInvalidValue;
    }
}
