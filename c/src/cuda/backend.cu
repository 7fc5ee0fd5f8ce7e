// backend.cu - the hooks of the backend, events, registration, and the functions of ggml-cuda.h.
//
// All work is queued on the backend's stream in the order of calls. The first call after a sticky
// error detects the error. From then on the backend refuses every call and reports that error.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <chrono>
#include <new>

#include "cuda/blas.h"
#include "cuda/graph.h"
#include "cuda/index.h"
#include "cuda/memory.h"
#include "cuda/op.h"
#include "ggml-cuda.h"

static gb_cuda_backend & state_of(ggml_backend_t backend) { return *static_cast<gb_cuda_backend *>(backend->context); }

// ----------------------------------------------------------------------------------------------------------- transfers

static GGML_CALL ggml_backend_buffer_type_t default_buffer_type(ggml_backend_t backend) {
    return gb_cuda_buffer_type(state_of(backend).device);
}

static bool is_mine(const gb_cuda_backend & b, const ggml_tensor * tensor) {
    const bool mine = gb_cuda_device_of(tensor) == b.device;
    if (!mine) {
        ggml_report_error(GGML_STATUS_INVALID_ARGUMENT, "%s: tensor '%s' is not in this device's memory",
            b.device->name, tensor->name);
    }
    return mine;
}

// Reports the error of a call that was made for `tensor`. Returns whether the call succeeded.
static bool check_call(gb_cuda_backend & b, const char * what, const ggml_tensor * tensor, cudaError_t error) {
    if (error == cudaSuccess) {
        return true;
    }
    char call[160];
    snprintf(call, sizeof(call), "%s tensor '%s'", what, tensor->name);
    gb_cuda_fail(b, call, error);
    return false;
}

static GGML_CALL void set_async(ggml_backend_t backend, ggml_tensor * tensor, const void * data, size_t offset,
    size_t size) {
    gb_cuda_backend & b = state_of(backend);
    if (gb_cuda_is_usable(b) && is_mine(b, tensor)) {
        gb_cuda_on_device on(b.device->id);
        check_call(b, "setting", tensor,
            cudaMemcpyAsync(static_cast<char *>(tensor->data) + offset, data, size, cudaMemcpyHostToDevice, b.stream));
    }
}

static GGML_CALL void get_async(ggml_backend_t backend, const ggml_tensor * tensor, void * data, size_t offset,
    size_t size) {
    gb_cuda_backend & b = state_of(backend);
    if (gb_cuda_is_usable(b) && is_mine(b, tensor)) {
        gb_cuda_on_device on(b.device->id);
        check_call(b, "getting", tensor,
            cudaMemcpyAsync(data, static_cast<const char *>(tensor->data) + offset, size, cudaMemcpyDeviceToHost,
                b.stream));
    }
}

static bool queue_copy(gb_cuda_backend & b, const ggml_tensor * src, ggml_tensor * dst) {
    if (!gb_cuda_is_usable(b)) {
        return false;
    }
    gb_cuda_on_device on(b.device->id);
    cudaError_t error;
    return gb_cuda_copy_layout(b.device, src, dst, b.stream, &error) && check_call(b, "copying to", dst, error);
}

// Copies only within the device. The host and other devices would not know when a copy from or to
// their memory has ended.
static GGML_CALL bool copy_async(ggml_backend_t backend, const ggml_tensor * src, ggml_tensor * dst) {
    gb_cuda_backend & b = state_of(backend);
    return gb_cuda_device_of(src) == b.device && gb_cuda_device_of(dst) == b.device && queue_copy(b, src, dst);
}

// The caller orders the copy with events.
static GGML_CALL bool copy_peer_async(ggml_backend_t backend, const ggml_tensor * src, ggml_tensor * dst) {
    gb_cuda_backend & b = state_of(backend);
    gb_cuda_device * from = gb_cuda_device_of(src);
    gb_cuda_device * to = gb_cuda_device_of(dst);
    return (from == b.device || to == b.device) && (from != nullptr || gb_cuda_is_host(src)) &&
           (to != nullptr || gb_cuda_is_host(dst)) && queue_copy(b, src, dst);
}

// False, reported: the device failed, or a kernel found a wrong index.
static bool wait_for_queue(gb_cuda_backend & b) {
    const cudaError_t error = cudaStreamSynchronize(b.stream);
    if (error != cudaSuccess) {
        gb_cuda_fail(b, "waiting for queued work", error);
        return false;
    }
    return gb_cuda_index_check(b);
}

static GGML_CALL void synchronize(ggml_backend_t backend) {
    gb_cuda_backend & b = state_of(backend);
    if (!gb_cuda_is_usable(b)) {
        return;
    }
    gb_cuda_on_device on(b.device->id);
    wait_for_queue(b);
}

// -------------------------------------------------------------------------------------------------------------- graphs

static GGML_CALL bool graph_compute(ggml_backend_t backend, ggml_cgraph * graph) {
    gb_cuda_backend & b = state_of(backend);
    if (!gb_cuda_is_usable(b)) {
        return false;
    }
    gb_cuda_on_device on(b.device->id);
    if (gb_cuda_index_is_noted(b) && !wait_for_queue(b)) {
        return false; // the error of an earlier graph is reported now
    }
    return gb_cuda_graph_compute(b, graph) == GGML_STATUS_SUCCESS;
}

static GGML_CALL size_t graph_work_size(ggml_backend_t backend, const ggml_cgraph * graph) {
    size_t size = 0;
    (void) gb_cuda_graph_work_size(state_of(backend), graph, &size);
    return size;
}

static GGML_CALL const char * unsupported_reason(ggml_backend_t backend, const ggml_tensor * op) {
    return gb_cuda_unsupported_reason(*state_of(backend).device, op);
}

static GGML_CALL const char * algorithm(ggml_backend_t backend, const ggml_tensor * node, int i, const char ** why) {
    return gb_cuda_candidate(state_of(backend), node, i, why);
}

static GGML_CALL bool supports_op(ggml_backend_t backend, const ggml_tensor * op) {
    return unsupported_reason(backend, op) == nullptr;
}

// -------------------------------------------------------------------------------------------------------------- events

struct cuda_event {
    ggml_backend_event event; // first
    int device;
    cudaEvent_t cuda; // owned
};

static cuda_event * event_of(ggml_backend_event_t event) { return static_cast<cuda_event *>(event->context); }

static ggml_backend_event_t new_event(ggml_backend_t backend, unsigned flags) {
    gb_cuda_backend & b = state_of(backend);
    if (!gb_cuda_is_usable(b)) {
        return nullptr;
    }
    gb_cuda_on_device on(b.device->id);
    cuda_event * e = new (std::nothrow) cuda_event{ { backend, nullptr }, b.device->id, nullptr };
    if (e == nullptr) {
        ggml_report_error(GGML_STATUS_ALLOC_FAILED, "%s: no host memory for an event", b.device->name);
        return nullptr;
    }
    const cudaError_t error = cudaEventCreateWithFlags(&e->cuda, flags);
    if (error != cudaSuccess) {
        gb_cuda_fail(b, "cudaEventCreateWithFlags", error);
        delete e;
        return nullptr;
    }
    e->event.context = e;
    return &e->event;
}

static GGML_CALL ggml_backend_event_t event_new(ggml_backend_t backend) {
    return new_event(backend, cudaEventDisableTiming);
}

// The backend may be freed already.
static GGML_CALL void event_free(ggml_backend_event_t event) {
    cuda_event * e = event_of(event);
    gb_cuda_on_device on(e->device);
    (void) cudaEventDestroy(e->cuda);
    delete e;
}

static GGML_CALL void event_record(ggml_backend_event_t event) {
    gb_cuda_backend & b = state_of(event->backend);
    if (gb_cuda_is_usable(b)) {
        gb_cuda_on_device on(b.device->id);
        const cudaError_t error = cudaEventRecord(event_of(event)->cuda, b.stream);
        if (error != cudaSuccess) {
            gb_cuda_fail(b, "cudaEventRecord", error);
        }
    }
}

static GGML_CALL void event_wait(ggml_backend_t backend, ggml_backend_event_t event) {
    gb_cuda_backend & b = state_of(backend);
    if (gb_cuda_is_usable(b)) {
        gb_cuda_on_device on(b.device->id);
        const cudaError_t error = cudaStreamWaitEvent(b.stream, event_of(event)->cuda, 0);
        if (error != cudaSuccess) {
            gb_cuda_fail(b, "cudaStreamWaitEvent", error);
        }
    }
}

static GGML_CALL void event_synchronize(ggml_backend_event_t event) {
    gb_cuda_backend & b = state_of(event->backend);
    if (gb_cuda_is_usable(b)) {
        gb_cuda_on_device on(b.device->id);
        const cudaError_t error = cudaEventSynchronize(event_of(event)->cuda);
        if (error != cudaSuccess) {
            gb_cuda_fail(b, "cudaEventSynchronize", error);
        }
    }
}

// -------------------------------------------------------------------------------------------------- the time of events

static int64_t now_ns() { // of the monotonic clock
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

// Waits for the queue and records base_event, so that base_event and base_ns are the same moment.
static cudaError_t sync_clocks(gb_cuda_backend & b) {
    cudaError_t error =
        b.base_event == nullptr ? cudaEventCreateWithFlags(&b.base_event, cudaEventDefault) : cudaSuccess;
    if (error == cudaSuccess) {
        error = cudaStreamSynchronize(b.stream);
    }
    if (error != cudaSuccess) {
        return error;
    }
    const int64_t before = now_ns();
    error = cudaEventRecord(b.base_event, b.stream);
    if (error == cudaSuccess) {
        error = cudaEventSynchronize(b.base_event);
    }
    b.base_ns = before + (now_ns() - before) / 2;
    return error;
}

static GGML_CALL ggml_backend_event_t event_new_timed(ggml_backend_t backend) {
    gb_cuda_backend & b = state_of(backend);
    ggml_backend_event_t event = new_event(backend, cudaEventDefault);
    if (event == nullptr || b.base_event != nullptr) {
        return event;
    }
    gb_cuda_on_device on(b.device->id);
    const cudaError_t error = sync_clocks(b);
    if (error != cudaSuccess) {
        gb_cuda_fail(b, "making an event with a clock", error);
        event_free(event);
        return nullptr;
    }
    return event;
}

// The time between two events is a float of milliseconds, which loses nanoseconds over long times.
// So the base moment is set again when it becomes old.
static GGML_CALL int64_t event_time(ggml_backend_event_t event) {
    enum { FAR_MS = 2000 };
    gb_cuda_backend & b = state_of(event->backend);
    if (!gb_cuda_is_usable(b)) {
        return 0;
    }
    gb_cuda_on_device on(b.device->id);
    float ms = 0;
    cudaError_t error = cudaEventElapsedTime(&ms, b.base_event, event_of(event)->cuda);
    const int64_t ns = b.base_ns + (int64_t) ((double) ms * 1e6);
    if (error == cudaSuccess && ms > FAR_MS) {
        error = sync_clocks(b);
    }
    if (error != cudaSuccess) {
        gb_cuda_fail(b, "the time of an event", error);
        return 0;
    }
    return ns;
}

// -------------------------------------------------------------------------------------------------- making and freeing

static GGML_CALL void backend_free(ggml_backend_t backend) {
    gb_cuda_backend & b = state_of(backend);
    gb_cuda_on_device on(b.device->id);
    (void) cudaStreamSynchronize(b.stream); // nobody can receive an error
    gb_cuda_graphs_free(b.graphs);
    gb_cuda_blas_free(b.blas);
    gb_cuda_index_free(b.index);
    gb_cuda_pool_free(b.device, b.scratch.memory, b.scratch.capacity);
    b.kept.release();
    b.readers.release();
    b.choices.release();
    if (b.base_event != nullptr) {
        (void) cudaEventDestroy(b.base_event);
    }
    (void) cudaStreamDestroy(b.stream);
    delete &b;
    delete backend;
}

static ggml_backend_i backend_hooks() {
    ggml_backend_i hooks = {};
    hooks.get_name = gb_cuda_backend_name;
    hooks.free = backend_free;
    hooks.get_default_buffer_type = default_buffer_type;
    hooks.set_tensor_async = set_async;
    hooks.get_tensor_async = get_async;
    hooks.cpy_tensor_async = copy_async;
    hooks.synchronize = synchronize;
    hooks.graph_compute = graph_compute;
    hooks.supports_op = supports_op;
    hooks.unsupported_reason = unsupported_reason;
    hooks.event_new = event_new;
    hooks.event_free = event_free;
    hooks.event_record = event_record;
    hooks.event_wait = event_wait;
    hooks.event_synchronize = event_synchronize;
    hooks.cpy_tensor_peer_async = copy_peer_async;
    hooks.event_new_timed = event_new_timed;
    hooks.event_time = event_time;
    hooks.graph_work_size = graph_work_size;
    hooks.algorithm = algorithm;
    return hooks;
}

static ggml_backend_t no_backend(gb_cuda_backend * b, ggml_backend_t backend) {
    if (b != nullptr) {
        gb_cuda_graphs_free(b->graphs);
        gb_cuda_index_free(b->index);
    }
    delete b;
    delete backend;
    return nullptr;
}

static ggml_backend_t new_backend(gb_cuda_device * device) {
    if (!gb_cuda_check_code(device)) {
        return nullptr;
    }
    gb_cuda_on_device on(device->id);
    ggml_backend_t backend = new (std::nothrow) ggml_backend;
    gb_cuda_backend * b = new (std::nothrow) gb_cuda_backend();
    if (b != nullptr) {
        b->device = device;
        b->graphs = gb_cuda_graphs_new();
    }
    if (backend == nullptr || b == nullptr || b->graphs == nullptr) {
        ggml_report_error(GGML_STATUS_ALLOC_FAILED, "%s: no host memory for a backend", device->name);
        return no_backend(b, backend);
    }
    b->index = gb_cuda_index_new(device->name);
    if (b->index == nullptr) {
        return no_backend(b, backend);
    }
    const cudaError_t error = cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking);
    if (error != cudaSuccess) {
        gb_cuda_report(device->name, "cudaStreamCreateWithFlags", error);
        return no_backend(b, backend);
    }
    b->queue = { b->stream, nullptr, false, device->dependent };
    b->blas = gb_cuda_blas_new(device, b->stream, b->blas_text);
    const char * tf32 = getenv("GGML_CUDA_TF32");
    b->tf32 = tf32 != nullptr && tf32[0] != '\0' && strcmp(tf32, "0") != 0;
    backend->iface = backend_hooks();
    backend->context = b;
    return backend;
}

// -------------------------------------------------------------------------------------------- functions of ggml-cuda.h

static gb_cuda_device * device_at(const char * func, int i) {
    gb_cuda_device * device = gb_cuda_device_get(i);
    if (device == nullptr) {
        ggml_report_error(GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'device': there are %d devices, has %d", func,
            gb_cuda_device_count(), i);
    }
    return device;
}

static ggml_backend_t init(int device) {
    gb_cuda_device * d = device_at("ggml_backend_cuda_init", device);
    return d != nullptr ? new_backend(d) : nullptr;
}

static ggml_backend_buffer_type_t buffer_type(int device) {
    gb_cuda_device * d = device_at("ggml_backend_cuda_buffer_type", device);
    return d != nullptr ? gb_cuda_buffer_type(d) : nullptr;
}

static void get_description(int device, char * description, size_t size) {
    gb_cuda_device * d = device_at("ggml_backend_cuda_get_device_description", device);
    snprintf(description, size, "%s", d != nullptr ? d->description : "");
}

static enum ggml_status get_memory(int device, size_t * free_bytes, size_t * total) {
    gb_cuda_device * d = device_at("ggml_backend_cuda_get_device_memory", device);
    if (d == nullptr) {
        return GGML_STATUS_INVALID_ARGUMENT;
    }
    gb_cuda_on_device on(d->id);
    const cudaError_t error = cudaMemGetInfo(free_bytes, total);
    return error == cudaSuccess ? GGML_STATUS_SUCCESS : gb_cuda_report(d->name, "cudaMemGetInfo", error);
}

// Read-only pages, such as a mapped model, need a flag that some systems refuse.
static enum ggml_status register_host(void * buffer, size_t size) {
    const gb_cuda_on_device on = gb_cuda_on_any_device();
    cudaError_t error = cudaHostRegister(buffer, size, cudaHostRegisterPortable);
    if (error == cudaErrorInvalidValue) {
        (void) cudaGetLastError();
        error = cudaHostRegister(buffer, size, cudaHostRegisterPortable | cudaHostRegisterReadOnly);
    }
    return error == cudaSuccess ? GGML_STATUS_SUCCESS
                                : gb_cuda_report("ggml_backend_cuda_register_host_buffer", "cudaHostRegister", error);
}

static enum ggml_status unregister_host(void * buffer) {
    const gb_cuda_on_device on = gb_cuda_on_any_device();
    const cudaError_t error = cudaHostUnregister(buffer);
    return error == cudaSuccess
               ? GGML_STATUS_SUCCESS
               : gb_cuda_report("ggml_backend_cuda_unregister_host_buffer", "cudaHostUnregister", error);
}

static enum ggml_status get_graph_stats(ggml_backend_t backend, struct ggml_backend_cuda_graph_stats * stats) {
    *stats = gb_cuda_graphs_stats(state_of(backend).graphs);
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status set_graphs(ggml_backend_t backend, bool on) {
    gb_cuda_graphs_set(state_of(backend).graphs, on);
    return GGML_STATUS_SUCCESS;
}

static const char * get_cublas(ggml_backend_t backend) { return state_of(backend).blas_text; }

static size_t trim(int device) {
    gb_cuda_device * d = device_at("ggml_backend_cuda_trim", device);
    return d != nullptr ? gb_cuda_pool_trim(d) : 0;
}

// -------------------------------------------------------------------------------------------------------- registration

static GGML_CALL ggml_backend_t init_registered(const char * params, void * user_data) {
    gb_cuda_device * device = static_cast<gb_cuda_device *>(user_data);
    if (params != nullptr && params[0] != '\0') {
        ggml_report_error(GGML_STATUS_INVALID_ARGUMENT,
            "%s: argument 'params': there are none for this backend, has '%s'", device->name, params);
        return nullptr;
    }
    return new_backend(device);
}

static enum ggml_status register_devices() {
    for (int i = 0; i < gb_cuda_device_count(); i++) {
        gb_cuda_device * device = gb_cuda_device_get(i);
        if (ggml_backend_reg_find_by_name(device->name) < ggml_backend_reg_get_count()) {
            continue; // registered by an earlier attempt that failed later
        }
        const enum ggml_status status =
            ggml_backend_register(device->name, init_registered, gb_cuda_buffer_type(device), device);
        if (status != GGML_STATUS_SUCCESS) {
            return status;
        }
    }
    return GGML_STATUS_SUCCESS;
}

// Registers CUDA0, CUDA1, ... Without a device it returns UNSUPPORTED and reports the reason.
static enum ggml_status register_backend(void) {
    static const struct ggml_backend_cuda_functions functions = {
        sizeof(functions),
        init,
        gb_cuda_is_backend,
        buffer_type,
        gb_cuda_host_buffer_type,
        gb_cuda_device_count,
        get_description,
        get_memory,
        register_host,
        unregister_host,
        get_graph_stats,
        set_graphs,
        trim,
        get_cublas,
    };
    if (gb_cuda_device_count() == 0) {
        return ggml_report_error(GGML_STATUS_UNSUPPORTED, "CUDA: no device: %s", gb_cuda_absent_reason());
    }
    const enum ggml_status status = register_devices();
    return status == GGML_STATUS_SUCCESS ? ggml_backend_cuda_provide(&functions) : status;
}

#ifndef GGML_BACKEND_MODULE_BUILD
extern "C" enum ggml_status gb_cuda_register_linked(void); // for programs that link the backend, such as tests
extern "C" enum ggml_status gb_cuda_register_linked(void) { return register_backend(); }
#endif

GGML_BACKEND_MODULE("cuda", register_backend)
