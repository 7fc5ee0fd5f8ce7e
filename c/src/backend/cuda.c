// cuda.c - the functions of ggml-cuda.h. Each calls the module, which the first call loads, or
// reports why loading failed.
//
// The option GGML_CUDA only sets GB_CUDA_MODULE_PATH in the library, the path of the installed
// module. The module's entry point sets `provided` once. It stays set, because modules stay loaded.
#include "ggml-cuda.h"

#include <stdatomic.h>

#include "backend/backend.h"
#include "base/env.h"
#include "ggml-backend-module.h"

static const struct ggml_backend_cuda_functions * _Atomic provided;

// The table may have grown since this library was built, but never shrinks. Only the first table counts.
enum ggml_status ggml_backend_cuda_provide(const struct ggml_backend_cuda_functions * functions) {
    GB_CHECK_ARG(functions);
    GB_FAIL_IF(functions->size < sizeof(*functions), GGML_STATUS_UNSUPPORTED,
        "%s: argument 'functions': the module has %zu bytes of functions, this library needs %zu", __func__,
        functions->size, sizeof(*functions));
    const struct ggml_backend_cuda_functions * none = NULL;
    atomic_compare_exchange_strong(&provided, &none, functions);
    return GGML_STATUS_SUCCESS;
}

// The path of the module: from the environment, else of the installed module, else NULL.
static const char * module_path(void) {
    const char * given = gb_env_get("GGML_CUDA_MODULE");
    if (given != NULL) {
        return given;
    }
#ifdef GB_CUDA_MODULE_PATH
    return GB_CUDA_MODULE_PATH;
#else
    return NULL;
#endif
}

// A file that loads but provides no functions is another backend's module.
enum ggml_status ggml_backend_cuda_load(void) {
    if (atomic_load(&provided) != NULL) {
        return GGML_STATUS_SUCCESS;
    }
    const char * path = module_path();
    GB_FAIL_IF(path == NULL, GGML_STATUS_UNSUPPORTED,
        "%s: this library was built without CUDA (GGML_CUDA=ON), and GGML_CUDA_MODULE names no module", __func__);
    GB_TRY(ggml_backend_load(path));
    GB_FAIL_IF(atomic_load(&provided) == NULL, GGML_STATUS_UNSUPPORTED, "%s: the module '%s' is not the CUDA backend",
        __func__, path);
    return GGML_STATUS_SUCCESS;
}

// The module's functions; NULL if there is no module (reported).
static const struct ggml_backend_cuda_functions * functions(void) {
    return ggml_backend_cuda_load() == GGML_STATUS_SUCCESS ? atomic_load(&provided) : NULL;
}

// The same for calls whose result can be "none": a missing path is then not a failure.
static const struct ggml_backend_cuda_functions * functions_if_there(void) {
    if (atomic_load(&provided) == NULL && module_path() == NULL) {
        return NULL;
    }
    return functions();
}

ggml_backend_t ggml_backend_cuda_init(int device) {
    const struct ggml_backend_cuda_functions * f = functions();
    return f ? f->init(device) : NULL;
}

// A CUDA backend exists only if the module is loaded, so this function never loads it.
bool ggml_backend_is_cuda(ggml_backend_t backend) {
    const struct ggml_backend_cuda_functions * f = atomic_load(&provided);
    return f && backend && f->is_cuda(backend);
}

ggml_backend_buffer_type_t ggml_backend_cuda_buffer_type(int device) {
    const struct ggml_backend_cuda_functions * f = functions();
    return f ? f->buffer_type(device) : NULL;
}

ggml_backend_buffer_type_t ggml_backend_cuda_host_buffer_type(void) {
    const struct ggml_backend_cuda_functions * f = functions();
    return f ? f->host_buffer_type() : NULL;
}

ggml_backend_buffer_type_t ggml_backend_cuda_split_buffer_type(const float * tensor_split) {
    (void) tensor_split;
    gb_fail(GGML_STATUS_UNSUPPORTED,
        "%s: weights that are split over devices are not supported: the scheduler places whole tensors", __func__);
    return NULL;
}

int ggml_backend_cuda_get_device_count(void) {
    const struct ggml_backend_cuda_functions * f = functions_if_there();
    return f ? f->get_device_count() : 0;
}

// The text is empty on failure.
void ggml_backend_cuda_get_device_description(int device, char * description, size_t description_size) {
    if (description != NULL && description_size > 0) {
        description[0] = '\0';
    }
    const struct ggml_backend_cuda_functions * f = functions();
    if (f && description != NULL && description_size > 0) {
        f->get_device_description(device, description, description_size);
    }
}

enum ggml_status ggml_backend_cuda_get_device_memory(int device, size_t * free, size_t * total) {
    GB_CHECK_ARG(free);
    GB_CHECK_ARG(total);
    *free = *total = 0;
    const struct ggml_backend_cuda_functions * f = functions();
    return f ? f->get_device_memory(device, free, total) : GGML_STATUS_UNSUPPORTED;
}

bool ggml_backend_cuda_register_host_buffer(void * buffer, size_t size) {
    GB_CHECK_ARG_RETURNING(buffer, false);
    const struct ggml_backend_cuda_functions * f = functions();
    return f && f->register_host_buffer(buffer, size) == GGML_STATUS_SUCCESS;
}

enum ggml_status ggml_backend_cuda_unregister_host_buffer(void * buffer) {
    GB_CHECK_ARG(buffer);
    const struct ggml_backend_cuda_functions * f = functions();
    return f ? f->unregister_host_buffer(buffer) : GGML_STATUS_UNSUPPORTED;
}

// A CUDA backend exists only if the module has provided its functions, so callers may use `provided` afterwards.
static enum ggml_status check_backend(const char * func, ggml_backend_t backend) {
    GB_FAIL_IF(!ggml_backend_is_cuda(backend), GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'backend': needs a CUDA backend, has %s", func, ggml_backend_name(backend));
    return GGML_STATUS_SUCCESS;
}

enum ggml_status ggml_backend_cuda_get_graph_stats(ggml_backend_t backend,
    struct ggml_backend_cuda_graph_stats * stats) {
    GB_TRY(check_backend(__func__, backend));
    GB_CHECK_ARG(stats);
    return atomic_load(&provided)->get_graph_stats(backend, stats);
}

enum ggml_status ggml_backend_cuda_set_graphs(ggml_backend_t backend, bool on) {
    GB_TRY(check_backend(__func__, backend));
    return atomic_load(&provided)->set_graphs(backend, on);
}

const char * ggml_backend_cuda_get_cublas(ggml_backend_t backend) {
    return check_backend(__func__, backend) == GGML_STATUS_SUCCESS ? atomic_load(&provided)->get_cublas(backend) : "";
}

size_t ggml_backend_cuda_trim(int device) {
    const struct ggml_backend_cuda_functions * f = functions();
    return f ? f->trim(device) : 0;
}
