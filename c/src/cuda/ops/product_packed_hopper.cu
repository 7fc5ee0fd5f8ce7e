// product_packed_hopper.cu - launches gb_gemm_packed_hopper.
#include "cuda/kernels/gemm_packed_hopper.cuh"
#include "cuda/ops/product_hopper.h"

template <int TYPE> static size_t bytes_of(int nt, int stages) {
    typedef gb_packed_layout<TYPE, 64> memory;
    return (size_t) memory::once + (size_t) stages * ((size_t) nt * GB_HOPPER_K * 2 + 2 * sizeof(gb_barrier));
}

// ptxas of CUDA 12.0 serializes these products, ptxas of 12.4 does not. The versions in between
// were not tested.
#if defined(__CUDACC_VER_MAJOR__) && __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ < 1204
enum { ARE_FAST = 0 };
#else
enum { ARE_FAST = 1 };
#endif

size_t gb_packed_bytes(int type, int nt, int stages) {
    switch (ARE_FAST != 0 ? type : (int) GGML_TYPE_COUNT) {
#define GB_FORMAT(id, ...) \
    case GGML_TYPE_##id: return bytes_of<GGML_TYPE_##id>(nt, stages);
#include "tensor/quant/formats.def"
#undef GB_FORMAT
        default: return 0;
    }
}

template <int TYPE>
static cudaError_t launch(const gb_gemm_packed & q, int nt, unsigned blocks, const gb_queue & queue) {
    const size_t shared = bytes_of<TYPE>(nt, q.stages);
    if (nt == 256) {
        return GB_LAUNCH((gb_gemm_packed_hopper<TYPE, 256>), blocks, GB_PACKED_THREADS, shared, queue, q);
    }
    if (nt == 128) {
        return GB_LAUNCH((gb_gemm_packed_hopper<TYPE, 128>), blocks, GB_PACKED_THREADS, shared, queue, q);
    }
    return GB_LAUNCH((gb_gemm_packed_hopper<TYPE, 64>), blocks, GB_PACKED_THREADS, shared, queue, q);
}

cudaError_t gb_launch_packed(const gb_product & p, const gb_tensor_map & rows, const gb_hopper_grid & grid, int stages,
    int nt, unsigned blocks, const gb_queue & queue) {
    const gb_gemm_packed q = { rows, grid, stages, p.w };
    switch (p.type) {
#define GB_FORMAT(id, ...) \
    case GGML_TYPE_##id: return launch<GGML_TYPE_##id>(q, nt, blocks, queue);
#include "tensor/quant/formats.def"
#undef GB_FORMAT
        default: return cudaErrorInvalidValue;
    }
}
