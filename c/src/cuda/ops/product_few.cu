// product_few.cu - launches the kernels of few_rows.cuh and panels.cuh.
#include <algorithm>

#include "cuda/kernels/few_rows.cuh"
#include "cuda/ops/products.h"

// Alignment in bytes that few_rows.cuh needs of addresses and strides; 0: it has no kernel for the type.
static size_t alignment_of(int type) {
    switch (type) {
#define GB_FORMAT(id, ...) \
    case GGML_TYPE_##id: return gb_few_format<GGML_TYPE_##id>::align;
#include "tensor/quant/formats.def"
#undef GB_FORMAT
        default: return 0;
    }
}

const char * gb_few_rows_declines(const gb_cuda_backend & b, const gb_product & p) {
    const size_t align = alignment_of(p.type), bits = (uintptr_t) p.w.a[0] | p.w.nb_m | p.w.nb2 | p.w.nb3;
    return !gb_product_is_along(p)                     ? "the sum goes across the weights"
           : align == 0                                ? "it has no kernel for the type of the weights"
           : b.device->cc < 80                         ? "needs compute capability 8.0"
           : p.w.ids != NULL                           ? "rows have different experts"
           : p.exact                                   ? "GGML_PREC_F32 rounds sums only"
           : p.rows < 2 || p.rows > GB_FEW_COLUMNS     ? "needs 2 to 16 rows"
           : bits % align != 0                         ? "the weights are not aligned"
           : p.k > INT32_MAX / 8                       ? "the rows are too long"
           : p.w.nb_m > UINT32_MAX / (2 * GB_FEW_ROWS) ? "the rows are too far apart"
                                                       : NULL;
}

gb_row_kind gb_few_rows_rows(const gb_product &) { return GB_ROWS_PANELS; }

static enum ggml_status make_panels(gb_cuda_backend & b, const gb_product & p, gb_make_panels & q) {
    size_t bytes = 0;
    bool there = false;
    q = gb_panels_of(p, &bytes);
    q.rows.y = gb_rows_memory(b, p, GB_ROWS_PANELS, bytes, &there);
    if (q.rows.y == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    if (there) {
        return GGML_STATUS_SUCCESS;
    }
    const dim3 grid((unsigned) (p.slices * q.bands * GB_PANEL_ROWS),
        (unsigned) std::min<int64_t>(gb_cuda_ceil_div(q.stages, 8), GB_MAX_GRID));
    GB_CUDA_TRY(b, GB_LAUNCH(gb_rows_of_panels, grid, 256, 0, b.queue, q));
    return GGML_STATUS_SUCCESS;
}

template <int TYPE> static size_t shared_of(const gb_few & q, int nt) {
    typedef gb_few_stage<TYPE> stage;
    return (size_t) (gb_few_format<TYPE>::stages * (stage::rows + (nt * stage::panel << q.split)) + nt * stage::sums);
}

template <int TYPE>
static cudaError_t launch(const gb_cuda_device & d, const gb_product & p, gb_few q, int nt, const gb_queue & queue) {
    // Warps share rows if there would be too few blocks.
    const int64_t warps = gb_cuda_ceil_div(p.m, GB_FEW_ROWS) * p.slices;
    while (1 << q.split < GB_FEW_WARPS && warps << q.split < (int64_t) GB_FEW_WARPS * gb_stream::blocks * d.n_sm &&
           q.stages >> q.split >= 4) {
        q.split++;
    }
    while (q.split > 0 && shared_of<TYPE>(q, nt) > d.shared_max) {
        q.split--;
    }
    q.blocks = (int) gb_cuda_ceil_div(p.m, GB_FEW_ROWS * (GB_FEW_WARPS >> q.split));
    const int64_t places = (int64_t) gb_min<size_t>(GB_FEW_BLOCKS, d.shared_max / shared_of<TYPE>(q, nt)) * d.n_sm;
    const dim3 grid((unsigned) gb_stream_grid(q.blocks, p.slices, places), 1, (unsigned) p.slices);
    const int block = GB_FEW_WARPS * GB_WARP;
    return nt == 1 ? GB_LAUNCH((gb_few_rows<TYPE, 1>), grid, block, shared_of<TYPE>(q, nt), queue, q)
                   : GB_LAUNCH((gb_few_rows<TYPE, 2>), grid, block, shared_of<TYPE>(q, nt), queue, q);
}

static cudaError_t launch_type(const gb_cuda_device & d, const gb_product & p, const gb_few & q, int nt,
    const gb_queue & queue) {
    switch (p.type) {
#define GB_FORMAT(id, ...)                                         \
    case GGML_TYPE_##id:                                           \
        if constexpr (gb_few_format<GGML_TYPE_##id>::align != 0) { \
            return launch<GGML_TYPE_##id>(d, p, q, nt, queue);     \
        }                                                          \
        break;
#include "tensor/quant/formats.def"
#undef GB_FORMAT
        default: break;
    }
    return cudaErrorInvalidValue;
}

enum ggml_status gb_few_rows_run(gb_cuda_backend & b, const gb_product & p, gb_row_kind) {
    gb_make_panels x = {};
    const enum ggml_status status = make_panels(b, p, x);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    const gb_few q = { p.w, (const gb_panel *) x.rows.y, p.dst, p.m, p.k, (int) p.rows, x.stages, 0, 0 };
    GB_CUDA_TRY(b, launch_type(*b.device, p, q, x.bands, b.queue));
    return GGML_STATUS_SUCCESS;
}
