// absent.cu - what a build by hipcc leaves out (c/cmake/hip.cmake lists the files and the reasons), as the rest of the
// backend asks for it: it is not there, so other kernels are chosen. Nothing here runs work; what is only called after
// a yes fails.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/cuda_blas.h"
#include "cuda/ops/product_hopper.h"
#include "cuda/ops/products.h"

// ---- product_tiles.cu: products.cu never asks for tiles where gb_has_mma is false

size_t gb_raw_bytes(int) { return 0; }

cudaError_t gb_launch_tiles(int, int, int, dim3, const gb_gemm &, const gb_queue &) { return cudaErrorNotSupported; }

// ---- product_few.cu

bool gb_few_rows_suit(const gb_cuda_device &, const gb_product &) { return false; }

gb_make_panels gb_panels_of(const gb_product &, size_t * bytes) {
    *bytes = 0;
    return {};
}

enum ggml_status gb_run_few_rows(gb_cuda_backend & b, const gb_product &, gb_row_kind) {
    return gb_cuda_fail(b, "gb_run_few_rows", cudaErrorNotSupported);
}

// ---- product_hopper.cu

bool gb_hopper_is_there(void) { return false; }

bool gb_hopper_takes(const gb_cuda_device &, const gb_product &, gb_hopper_way *) { return false; }

cudaError_t gb_launch_hopper(const gb_cuda_device &, const gb_product &, const gb_hopper_run &, const gb_queue &) {
    return cudaErrorNotSupported;
}

// ---- cuda_blas.cu

gb_cuda_blas * gb_cuda_blas_new(gb_cuda_device *, cudaStream_t, char * text) {
    const char * wish = getenv("GGML_CUDA_CUBLAS");
    const bool asked = wish != nullptr && wish[0] != '\0' && strcmp(wish, "0") != 0;
    snprintf(text, 256, "%s", asked ? "cuBLAS: not for devices of AMD" : "");
    return nullptr;
}

void gb_cuda_blas_free(gb_cuda_blas *) {}

bool gb_cuda_blas_run(gb_cuda_blas *, const gb_cuda_blas_product &, bool) { return false; }
