// ggml-cuda.h - NVIDIA devices, by number. They are also in the registry, as CUDA0, CUDA1, ...
//
// The backend itself is a module (ggml-backend-module.h), built with GGML_CUDA=ON. These functions
// always exist. Without the module or a device, they fail with GGML_STATUS_UNSUPPORTED and the
// reason, and ggml_backend_cuda_get_device_count is 0. The first call loads the module from the
// full path in the environment variable GGML_CUDA_MODULE, or else the module installed with this
// library.
#ifndef GGML_CUDA_H
#define GGML_CUDA_H

#include "ggml-backend.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GGML_CUDA_NAME "CUDA"
#define GGML_CUBLAS_NAME "cuBLAS"
#define GGML_CUDA_MAX_DEVICES 16

// cdef: begin

// Loads the module if necessary, and returns whether there is a device. You may call it again after
// a failure.
GGML_API enum ggml_status ggml_backend_cuda_load(void);

GGML_API GGML_CALL ggml_backend_t ggml_backend_cuda_init(int device); // the backend has its own stream
GGML_API GGML_CALL bool ggml_backend_is_cuda(ggml_backend_t backend);

// Memory of a device. Freed buffers of up to 64 MiB are kept and reused, until memory is short.
GGML_API GGML_CALL ggml_backend_buffer_type_t ggml_backend_cuda_buffer_type(int device);
// Host memory that devices copy at full speed, and while they compute. NULL without a device.
GGML_API GGML_CALL ggml_backend_buffer_type_t ggml_backend_cuda_host_buffer_type(void);
// For rows of weights on several devices. Not supported: returns NULL.
GGML_API GGML_CALL ggml_backend_buffer_type_t ggml_backend_cuda_split_buffer_type(const float * tensor_split);

GGML_API GGML_CALL int ggml_backend_cuda_get_device_count(void);
GGML_API GGML_CALL void ggml_backend_cuda_get_device_description(int device, char * description,
    size_t description_size);
// bytes; 0 on failure
GGML_API GGML_CALL enum ggml_status ggml_backend_cuda_get_device_memory(int device, size_t * free, size_t * total);

// Makes existing memory behave like memory of the host buffer type, until you unregister it. Returns
// false on failure.
GGML_API GGML_CALL bool ggml_backend_cuda_register_host_buffer(void * buffer, size_t size);
GGML_API GGML_CALL enum ggml_status ggml_backend_cuda_unregister_host_buffer(void * buffer);

// graphs that a backend computed
struct ggml_backend_cuda_graph_stats {
    uint64_t n_eager;    // launched node by node
    uint64_t n_captured;  // recorded as an executable graph, because their structure came twice
    uint64_t n_updated;  // launched by an executable graph of their structure, after changes to some nodes
    uint64_t n_replayed;  // launched again unchanged
};
GGML_API enum ggml_status ggml_backend_cuda_get_graph_stats(ggml_backend_t backend,
    struct ggml_backend_cuda_graph_stats * stats);
// True if the backend may record graphs and replay them. Initially on, unless the environment
// variable GGML_CUDA_GRAPHS is 0.
GGML_API enum ggml_status ggml_backend_cuda_set_graphs(ggml_backend_t backend, bool on);

// The loaded cuBLAS library, or why it was not loaded. "" without GGML_CUDA_CUBLAS. The backend
// uses cuBLAS for large products of floats only if the environment variable GGML_CUDA_CUBLAS is set
// when the backend is made: 1 for the library that the loader finds, or a full path. Valid until
// the backend is freed.
GGML_API const char * ggml_backend_cuda_get_cublas(ggml_backend_t backend);

// Returns unused memory of the device's pool to the driver. Returns the number of bytes.
GGML_API size_t ggml_backend_cuda_trim(int device);

// cdef: end

// The functions that the module passes to the library when it is loaded. Only the library uses
// them.
struct ggml_backend_cuda_functions {
    size_t size; // of this structure
    ggml_backend_t (*init)(int device);
    bool (*is_cuda)(ggml_backend_t backend);
    ggml_backend_buffer_type_t (*buffer_type)(int device);
    ggml_backend_buffer_type_t (*host_buffer_type)(void);
    int (*get_device_count)(void);
    void (*get_device_description)(int device, char * description, size_t description_size);
    enum ggml_status (*get_device_memory)(int device, size_t * free, size_t * total);
    enum ggml_status (*register_host_buffer)(void * buffer, size_t size);
    enum ggml_status (*unregister_host_buffer)(void * buffer);
    enum ggml_status (*get_graph_stats)(ggml_backend_t backend, struct ggml_backend_cuda_graph_stats * stats);
    enum ggml_status (*set_graphs)(ggml_backend_t backend, bool on);
    size_t (*trim)(int device);
    const char * (*get_cublas)(ggml_backend_t backend);
};
GGML_API enum ggml_status ggml_backend_cuda_provide(const struct ggml_backend_cuda_functions * functions);

#ifdef __cplusplus
}
#endif

#endif // GGML_CUDA_H
