// product_vectors.cu - launches the kernels of matvec.cuh and matvec_quick.cuh.
#include "cuda/ops/products.h"

// Assigns blocks to the parts. rows: of the weights, per warp; columns: of a block.
static dim3 blocks_of(gb_matvec_group & q, int rows, int columns, int64_t slices) {
    int64_t blocks = 0;
    for (int i = 0; i < q.n; i++) {
        q.first[i] = (int) blocks;
        blocks += gb_cuda_ceil_div(q.part[i].m, rows * (q.part[i].split > 1 ? 1 : GB_MATVEC_WARPS));
    }
    q.blocks = (int) blocks;
    return dim3((unsigned) blocks, (unsigned) gb_cuda_ceil_div(q.part[0].columns, columns), (unsigned) slices);
}

// Experts differ between tokens, so each column is computed separately.
static int columns_at_once(const gb_matvec_group & group) {
    const gb_matvec & q = group.part[0];
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

// -------------------------------------------------------------------------------------------------------------- choice

static const char * vectors_decline(const gb_product & p) {
    return !gb_product_is_along(p)        ? "the sum goes across the weights"
           : p.rows > GB_PRODUCT_FEW_ROWS ? "needs at most 8 rows"
                                          : NULL;
}

static const char * vectors_decline_formats(const gb_product & p) {
    const char * why = vectors_decline(p);
    return why != NULL             ? why
           : !gb_is_format(p.type) ? "the weights are not quantized"
           : p.exact               ? "GGML_PREC_F32 rounds sums only"
                                   : NULL;
}

const char * gb_vectors_quick_declines(const gb_cuda_backend &, const gb_product & p) {
    const char * why = vectors_decline_formats(p);
    return why != NULL                      ? why
           : !is_quick(p.type)              ? "it has no kernel for the type of the weights"
           : p.w.ids == NULL && p.rows != 1 ? "needs one row, or one expert for each row"
           : !gb_product_is_aligned(p)      ? "rows of the weights do not begin at multiples of 16 bytes"
           : p.k > INT32_MAX / 8            ? "the rows are too long"
                                            : NULL;
}

const char * gb_vectors_bytes_declines(const gb_cuda_backend &, const gb_product & p) {
    return vectors_decline_formats(p);
}

const char * gb_vectors_float_declines(const gb_cuda_backend &, const gb_product & p) {
    const char * why = vectors_decline(p);
    return why == NULL && gb_is_format(p.type) ? "the weights are quantized" : why;
}

gb_row_kind gb_vectors_quick_rows(const gb_product &) { return GB_ROWS_BYTES; }

gb_row_kind gb_vectors_bytes_rows(const gb_product &) { return GB_ROWS_BYTES; }

gb_row_kind gb_vectors_float_rows(const gb_product &) { return GB_ROWS_F32; }

// ------------------------------------------------------------------------------------------------------------ launches

template <int TYPE>
static cudaError_t quick(const gb_cuda_device & d, const gb_product & p, gb_matvec_group & q, const gb_queue & queue) {
    if constexpr (gb_quick<TYPE>::exists) {
        dim3 grid = blocks_of(q, gb_stream::rows, 1, p.slices);
        if (q.part[0].split == 1) {
            grid.x = (unsigned) gb_stream_grid(q.blocks, (int64_t) grid.y * grid.z, (int64_t) GB_QUICK_BLOCKS * d.n_sm);
        }
        return GB_LAUNCH(gb_matvec_quick<TYPE>, grid, GB_MATVEC_WARPS * GB_WARP, 0, queue, q);
    } else {
        return cudaErrorInvalidValue;
    }
}

template <int TYPE>
static cudaError_t bytes(const gb_cuda_device &, const gb_product & p, gb_matvec_group & q, const gb_queue & queue) {
    const int n = columns_at_once(q), block = GB_MATVEC_WARPS * GB_WARP;
    const dim3 grid = blocks_of(q, GB_MATVEC_ROWS, n, p.slices);
    switch (n) {
        case 1: return GB_LAUNCH((gb_matvec_quantized<TYPE, 1>), grid, block, 0, queue, q);
        case 4: return GB_LAUNCH((gb_matvec_quantized<TYPE, 4>), grid, block, 0, queue, q);
        default: return GB_LAUNCH((gb_matvec_quantized<TYPE, 8>), grid, block, 0, queue, q);
    }
}

static cudaError_t launch_quick(const gb_cuda_device & d, const gb_product & p, gb_matvec_group & q,
    const gb_queue & queue) {
    switch (p.type) {
#define GB_FORMAT(id, ...) \
    case GGML_TYPE_##id: return quick<GGML_TYPE_##id>(d, p, q, queue);
#include "tensor/quant/formats.def"
#undef GB_FORMAT
        default: return cudaErrorInvalidValue;
    }
}

static cudaError_t launch_bytes(const gb_cuda_device & d, const gb_product & p, gb_matvec_group & q,
    const gb_queue & queue) {
    switch (p.type) {
#define GB_FORMAT(id, ...) \
    case GGML_TYPE_##id: return bytes<GGML_TYPE_##id>(d, p, q, queue);
#include "tensor/quant/formats.def"
#undef GB_FORMAT
        default: return cudaErrorInvalidValue;
    }
}

template <int TYPE>
static cudaError_t of_floats(const gb_cuda_device &, const gb_product & p, gb_matvec_group & q,
    const gb_queue & queue) {
    const int n = columns_at_once(q), block = GB_MATVEC_WARPS * GB_WARP;
    switch (n) {
        case 1: return GB_LAUNCH((gb_matvec_float<TYPE, 1, 4>), blocks_of(q, 4, n, p.slices), block, 0, queue, q);
        case 4: return GB_LAUNCH((gb_matvec_float<TYPE, 4, 2>), blocks_of(q, 2, n, p.slices), block, 0, queue, q);
        default: return GB_LAUNCH((gb_matvec_float<TYPE, 8, 2>), blocks_of(q, 2, n, p.slices), block, 0, queue, q);
    }
}

static cudaError_t launch_float(const gb_cuda_device & d, const gb_product & p, gb_matvec_group & q,
    const gb_queue & queue) {
    switch (p.type) {
        case GGML_TYPE_F32: return of_floats<GGML_TYPE_F32>(d, p, q, queue);
        case GGML_TYPE_F16: return of_floats<GGML_TYPE_F16>(d, p, q, queue);
        case GGML_TYPE_BF16: return of_floats<GGML_TYPE_BF16>(d, p, q, queue);
        default: return cudaErrorInvalidValue;
    }
}

// ----------------------------------------------------------------------------------------------------------------- run

typedef cudaError_t launcher(const gb_cuda_device & d, const gb_product & p, gb_matvec_group & q,
    const gb_queue & queue);

// rows: of the weights, per warp.
static enum ggml_status run(gb_cuda_backend & b, const gb_product * p, int n, gb_row_kind kind, int rows,
    launcher * launch) {
    gb_ready_rows x = {};
    const enum ggml_status status = gb_product_make_rows(b, p[0], kind, {}, true, &x);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    int64_t blocks = 0;
    for (int i = 0; i < n; i++) {
        blocks += gb_cuda_ceil_div(p[i].m, GB_MATVEC_WARPS * rows) * p[i].slices;
    }
    const int split = blocks < 2 * b.device->n_sm && p[0].k >= GB_MATVEC_WARPS * 256 ? GB_MATVEC_WARPS : 1;
    gb_matvec_group q = {};
    q.n = n;
    for (int i = 0; i < n; i++) {
        q.part[i] = { p[i].w, x.x, x.x_row, p[i].dst, p[i].m, p[i].k, (int) p[i].rows, split, p[i].add };
    }
    GB_CUDA_TRY(b, launch(*b.device, p[0], q, b.queue));
    return GGML_STATUS_SUCCESS;
}

enum ggml_status gb_vectors_quick_group(gb_cuda_backend & b, const gb_product * p, int n, gb_row_kind kind) {
    return run(b, p, n, kind, gb_stream::rows, launch_quick);
}

enum ggml_status gb_vectors_bytes_group(gb_cuda_backend & b, const gb_product * p, int n, gb_row_kind kind) {
    return run(b, p, n, kind, GB_MATVEC_ROWS, launch_bytes);
}

enum ggml_status gb_vectors_float_group(gb_cuda_backend & b, const gb_product * p, int n, gb_row_kind kind) {
    return run(b, p, n, kind, GB_MATVEC_ROWS, launch_float);
}

enum ggml_status gb_vectors_quick_run(gb_cuda_backend & b, const gb_product & p, gb_row_kind kind) {
    return gb_vectors_quick_group(b, &p, 1, kind);
}

enum ggml_status gb_vectors_bytes_run(gb_cuda_backend & b, const gb_product & p, gb_row_kind kind) {
    return gb_vectors_bytes_group(b, &p, 1, kind);
}

enum ggml_status gb_vectors_float_run(gb_cuda_backend & b, const gb_product & p, gb_row_kind kind) {
    return gb_vectors_float_group(b, &p, 1, kind);
}
