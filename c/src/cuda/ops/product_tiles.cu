// product_tiles.cu - launches the kernels of gemm.cuh that use the tensor cores.
//
// Quantized weights and their partners become GB_HALF_WIDE.
#include <algorithm>

#include "cuda/ops/products.h"

// -------------------------------------------------------------------------------------------------------------- choice

const char * gb_tiles_declines(const gb_cuda_backend & b, const gb_product & p) {
    const bool halves = p.type == GGML_TYPE_F16 || (p.type == GGML_TYPE_BF16 && b.device->cc >= 80);
    return !gb_product_is_along(p)    ? "the sum goes across the weights"
           : p.exact                  ? "GGML_PREC_F32 rounds sums only"
           : gb_is_format(p.type)     ? NULL
           : !halves                  ? "the tensor cores do not take the type of the weights"
           : gb_product_is_aligned(p) ? NULL
                                      : "rows of the weights do not begin at multiples of 16 bytes";
}

gb_row_kind gb_tiles_rows(const gb_product & p) { return gb_is_format(p.type) ? GB_ROWS_WIDE : gb_product_halves(p); }

const char * gb_tiles_tf32_declines(const gb_cuda_backend & b, const gb_product & p) {
    return !b.tf32             ? "tf32 is not used (GGML_CUDA_TF32)"
           : b.device->cc < 80 ? "tf32 needs compute capability 8.0"
           : p.exact           ? "GGML_PREC_F32 rounds sums only"
                               : gb_tiles_float_declines(b, p);
}

gb_row_kind gb_tiles_tf32_rows(const gb_product &) { return GB_ROWS_F32; }

// ------------------------------------------------------------------------------------------------------------ launches

template <int SOURCE, int KIND> static cudaError_t tiles(int nt, dim3 grid, const gb_gemm & q, const gb_queue & queue) {
    const size_t shared = (size_t) q.stages * (size_t) (GB_GEMM_M + nt) * GB_GEMM_K * sizeof(uint16_t) +
                          (q.raw != 0 ? 2 * (size_t) gb_raw<SOURCE>::slot : 0);
    if (nt == 256) {
        return GB_LAUNCH((gb_gemm_halves<SOURCE, KIND, 256>), grid, GB_GEMM_THREADS, shared, queue, q);
    }
    if (nt == 128) {
        return GB_LAUNCH((gb_gemm_halves<SOURCE, KIND, 128>), grid, GB_GEMM_THREADS, shared, queue, q);
    }
    return GB_LAUNCH((gb_gemm_halves<SOURCE, KIND, 32>), grid, GB_GEMM_THREADS, shared, queue, q);
}

static size_t raw_bytes(int source) {
    switch (source) {
#define GB_FORMAT(id, ...) \
    case GGML_TYPE_##id: return 2 * (size_t) gb_raw<GGML_TYPE_##id>::slot;
#include "tensor/quant/formats.def"
#undef GB_FORMAT
        default: return 0;
    }
}

// source: a quantized type, GB_HALVES or GB_FLOATS.
static cudaError_t launch(int source, int kind, int nt, dim3 grid, const gb_gemm & q, const gb_queue & queue) {
    switch (source) {
        case GB_HALVES:
            return kind == GB_HALF_F16 ? tiles<GB_HALVES, GB_HALF_F16>(nt, grid, q, queue)
                                       : tiles<GB_HALVES, GB_HALF_BF16>(nt, grid, q, queue);
        case GB_FLOATS: return tiles<GB_FLOATS, GB_HALF_WIDE>(nt, grid, q, queue);
#define GB_FORMAT(id, ...) \
    case GGML_TYPE_##id: return tiles<GGML_TYPE_##id, GB_HALF_WIDE>(nt, grid, q, queue);
#include "tensor/quant/formats.def"
#undef GB_FORMAT
        default: return cudaErrorInvalidValue;
    }
}

// ----------------------------------------------------------------------------------------------------------------- run

static int64_t tiles_of(const gb_product & p, int nt) {
    return gb_cuda_ceil_div(p.m, GB_GEMM_M) * gb_product_tiles_of_rows(p, nt) * p.slices;
}

static size_t stage_of(int nt) { return (size_t) (GB_GEMM_M + nt) * GB_GEMM_K * 2; }

// Rows of a tile. A tile of 256 rows takes about 1.6 times as long as one of 128, so it is used if it
// makes the rounds of tiles on the device few enough.
static int rows_of_tile(const gb_cuda_device & d, const gb_product & p) {
    const int64_t rows_of_one = p.w.ids != NULL ? p.rows / p.w.n_experts : p.rows;
    if (rows_of_one <= 64) {
        return 32;
    }
    const int64_t large = gb_cuda_ceil_div(tiles_of(p, 256), d.n_sm),
                  small = gb_cuda_ceil_div(tiles_of(p, 128), d.n_sm);
    return d.cc >= 80 && 3 * stage_of(256) <= d.shared_max && 16 * large <= 10 * small ? 256 : 128;
}

// Sets as many stages as fit. The bytes of quantized weights are copied if two stages fit in
// addition. Two blocks with small tiles share a multiprocessor.
static void set_stages(gb_gemm & q, int source, const gb_cuda_device & d, int nt) {
    const size_t stage = stage_of(nt), raw = raw_bytes(source), all = nt == 32 ? d.shared_max / 2 : d.shared_max;
    q.raw = raw > 0 && raw + 2 * stage <= all;
    const size_t left = q.raw != 0 ? all - raw : d.shared_max;
    q.stages = (int) std::min<size_t>(4, std::max<size_t>(2, left / stage));
}

static enum ggml_status run(gb_cuda_backend & b, const gb_product & p, gb_row_kind kind, int source) {
    gb_ready_rows x = {};
    enum ggml_status status = gb_product_make_rows(b, p, kind, {}, true, &x);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    gb_gemm q = gb_product_gemm(p, x);
    const int nt = rows_of_tile(*b.device, p);
    set_stages(q, source, *b.device, nt);
    status = gb_product_route(b, p, nt, q.routed);
    if (status == GGML_STATUS_SUCCESS) {
        status = gb_product_cut_depth(b, p, tiles_of(p, nt), b.device->n_sm, q);
    }
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    const dim3 grid((unsigned) gb_cuda_ceil_div(p.m, GB_GEMM_M), (unsigned) gb_product_tiles_of_rows(p, nt),
        (unsigned) (p.slices * q.parts));
    GB_CUDA_TRY(b, launch(source, kind, nt, grid, q, b.queue));
    return q.parts > 1 ? gb_product_add_parts(b, p, q.dst, q.parts) : GGML_STATUS_SUCCESS;
}

enum ggml_status gb_tiles_run(gb_cuda_backend & b, const gb_product & p, gb_row_kind kind) {
    return run(b, p, kind, kind == GB_ROWS_WIDE ? p.type : (int) GB_HALVES);
}

enum ggml_status gb_tiles_tf32_run(gb_cuda_backend & b, const gb_product & p, gb_row_kind kind) {
    return run(b, p, kind, GB_FLOATS);
}
