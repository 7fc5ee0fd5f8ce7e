// memory.h - memory of devices and pinned memory of the host: pools, buffers, copies between tensors.
#ifndef GB_CUDA_MEMORY_H
#define GB_CUDA_MEMORY_H

#include "cuda/device.h"

// ---- pools of device memory (device.cu)

// Returns NULL and reports an error on failure. Pass `capacity` (at least `size`) to gb_cuda_pool_free.
void * gb_cuda_pool_alloc(gb_cuda_device * device, size_t size, size_t * capacity);
// No work on the device may use the memory any more.
void gb_cuda_pool_free(gb_cuda_device * device, void * memory, size_t capacity);
// Frees kept memory. Returns its size in bytes.
size_t gb_cuda_pool_trim(gb_cuda_device * device);

// ---- buffers (buffer.cu)

ggml_backend_buffer_type_t gb_cuda_buffer_type(gb_cuda_device * device);
ggml_backend_buffer_type_t gb_cuda_host_buffer_type(void); // pinned host memory; NULL without devices

gb_cuda_device * gb_cuda_device_of(const ggml_tensor * tensor); // NULL: not in memory of a CUDA device
bool gb_cuda_is_host(const ggml_tensor * tensor);               // the host can read and write it

// Queues a copy between two tensors of the same layout on a stream of the device. Returns false, without an error, if
// the copy would take too many calls.
bool gb_cuda_copy_layout(const gb_cuda_device * device, const ggml_tensor * src, ggml_tensor * dst, cudaStream_t stream,
    cudaError_t * error);

#endif // GB_CUDA_MEMORY_H
