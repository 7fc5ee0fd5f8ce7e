// product_tiles.cu - launches the kernels of gemm.cuh that use the tensor cores.
//
// Quantized weights and their partners become GB_HALF_WIDE.
#include "cuda/ops/products.h"

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

size_t gb_raw_bytes(int source) {
    switch (source) {
#define GB_FORMAT(id, ...) \
    case GGML_TYPE_##id: return 2 * (size_t) gb_raw<GGML_TYPE_##id>::slot;
#include "tensor/quant/formats.def"
#undef GB_FORMAT
        default: return 0;
    }
}

cudaError_t gb_launch_tiles(int source, int kind, int nt, dim3 grid, const gb_gemm & q, const gb_queue & queue) {
    switch (source) {
        case GB_HALVES:
            return kind == GB_HALF_F16 ? tiles<GB_HALVES, GB_HALF_F16>(nt, grid, q, queue)
                                       : tiles<GB_HALVES, GB_HALF_BF16>(nt, grid, q, queue);
#define GB_FORMAT(id, ...) \
    case GGML_TYPE_##id: return tiles<GGML_TYPE_##id, GB_HALF_WIDE>(nt, grid, q, queue);
#include "tensor/quant/formats.def"
#undef GB_FORMAT
        default: return cudaErrorInvalidValue;
    }
}
