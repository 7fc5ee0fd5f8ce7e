// driver.h - functions of the driver, which is not linked: the runtime knows where they are.
#ifndef GB_CUDA_DRIVER_H
#define GB_CUDA_DRIVER_H

#include <cuda_runtime.h>

// The function as it was in 12.0; NULL: this driver has none. Leaves no error behind.
static inline void * gb_cuda_driver_function(const char * name) {
    void * function = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &function, 12000, 0, &found);
#else
    const cudaError_t error = cudaGetDriverEntryPoint(name, &function, 0, &found);
#endif
    (void) cudaGetLastError();
    return error == cudaSuccess && found == cudaDriverEntryPointSuccess ? function : nullptr;
}

#endif // GB_CUDA_DRIVER_H
