// driver.h - finds functions of the driver through the runtime; the driver is not linked.
#ifndef GB_CUDA_DRIVER_H
#define GB_CUDA_DRIVER_H

#include <cuda_runtime.h>

// Returns the function in its version of CUDA 12.0; NULL if the driver has none. Clears the runtime's error.
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
