// buffer.cu - buffers in device memory and in pinned host memory, and copies between their tensors.
//
// A buffer belongs to a device, so every backend on the device may use it. The synchronous hooks first wait for all
// work that is queued on the device. They use one stream per device, made at the first use.
#include <stdlib.h>
#include <string.h>

#include <mutex>
#include <new>

#include "cuda/backend.h"
#include "cuda/index.h"
#include "cuda/memory.h"
#include "ggml-cuda.h"

struct cuda_buffer {
    gb_cuda_device * device;
    char * memory; // owned
    size_t capacity;
};

static GGML_CALL void buffer_free(ggml_backend_buffer_t buffer);

static const ggml_tensor * root_of(const ggml_tensor * t) { return t->view_src != nullptr ? t->view_src : t; }

static ggml_backend_buffer_t buffer_of(const ggml_tensor * t) {
    return t->buffer != nullptr ? t->buffer : root_of(t)->buffer;
}

gb_cuda_device * gb_cuda_device_of(const ggml_tensor * tensor) {
    const ggml_backend_buffer_t buffer = buffer_of(tensor);
    return buffer != nullptr && buffer->iface.free_buffer == buffer_free
               ? static_cast<cuda_buffer *>(buffer->context)->device
               : nullptr;
}

bool gb_cuda_is_host(const ggml_tensor * tensor) {
    const ggml_backend_buffer_t buffer = buffer_of(tensor);
    return tensor->data != nullptr && (buffer == nullptr || ggml_backend_buffer_is_host(buffer));
}

// -------------------------------------------------------------------------------------------------------------- copies

// The bytes of a tensor: a run of bytes, repeated along up to four strides in ascending order. Leaves out dimensions of
// one element and joins adjacent ones. Two tensors of the same layout have the same pieces.
struct pieces {
    size_t run;
    int n;
    int64_t count[5];
    size_t stride[5];
};

static void add_dimension(pieces & p, int64_t count, size_t stride) {
    int at = p.n;
    while (at > 0 && p.stride[at - 1] > stride) {
        p.count[at] = p.count[at - 1];
        p.stride[at] = p.stride[at - 1];
        at--;
    }
    p.count[at] = count;
    p.stride[at] = stride;
    p.n++;
}

static pieces pieces_of(const ggml_tensor * t) {
    pieces p = {};
    p.run = ggml_type_size(t->type);
    const int64_t n0 = t->ne[0] / ggml_blck_size(t->type);
    for (int i = 0; i < GGML_MAX_DIMS; i++) {
        const int64_t count = i == 0 ? n0 : t->ne[i];
        if (count > 1) {
            add_dimension(p, count, t->nb[i]);
        }
    }
    int n = 0;
    while (n < p.n && p.stride[n] == p.run) { // joins adjacent dimensions
        p.run *= (size_t) p.count[n++];
    }
    for (int i = n; i < p.n; i++) {
        p.count[i - n] = p.count[i];
        p.stride[i - n] = p.stride[i];
    }
    p.n -= n;
    return p;
}

static size_t n_calls(const pieces & p, bool in_rows) {
    double n = 1;
    for (int i = in_rows ? 1 : 0; i < p.n; i++) {
        n *= (double) p.count[i];
    }
    return n < 1e9 ? (size_t) n : (size_t) 1e9;
}

// Rows of a copy. Both tensors have the same pitch, the distance of rows in bytes.
struct rows {
    char * to;
    const char * from;
    size_t pitch, run, n;
};

// ends: the devices of source and destination; NULL: host memory.
static cudaError_t queue_rows(const rows & r, const gb_cuda_device * const (&ends)[2], cudaStream_t stream) {
    if (ends[0] == nullptr || ends[1] == nullptr || ends[0] == ends[1]) {
        return r.n == 1 ? cudaMemcpyAsync(r.to, r.from, r.run, cudaMemcpyDefault, stream)
                        : cudaMemcpy2DAsync(r.to, r.pitch, r.from, r.pitch, r.run, r.n, cudaMemcpyDefault, stream);
    }
    if (r.n == 1) {
        return cudaMemcpyPeerAsync(r.to, ends[1]->id, r.from, ends[0]->id, r.run, stream);
    }
    cudaMemcpy3DPeerParms p = {};
    p.srcPtr = { const_cast<char *>(r.from), r.pitch, r.run, r.n };
    p.dstPtr = { r.to, r.pitch, r.run, r.n };
    p.srcDevice = ends[0]->id;
    p.dstDevice = ends[1]->id;
    p.extent = { r.run, r.n, 1 };
    return cudaMemcpy3DPeerAsync(&p, stream);
}

bool gb_cuda_copy_layout(const gb_cuda_device * device, const ggml_tensor * src, ggml_tensor * dst, cudaStream_t stream,
    cudaError_t * error) {
    enum { CALLS_MAX = 4096 };
    *error = cudaSuccess;
    if (ggml_nelements(src) == 0) {
        return true;
    }
    const gb_cuda_device * const ends[2] = { gb_cuda_device_of(src), gb_cuda_device_of(dst) };
    const pieces p = pieces_of(dst);
    const bool in_rows = p.n > 0 && p.stride[0] >= p.run && p.stride[0] <= device->pitch_max;
    const size_t n = n_calls(p, in_rows);
    if (n > CALLS_MAX) {
        return false;
    }
    if (ends[0] != nullptr && ends[1] != nullptr && ends[0] != ends[1]) {
        gb_cuda_reach(ends[0], ends[1]);
    }
    for (size_t i = 0; i < n && *error == cudaSuccess; i++) {
        size_t offset = 0, rest = i;
        for (int d = in_rows ? 1 : 0; d < p.n; d++) {
            offset += rest % (size_t) p.count[d] * p.stride[d];
            rest /= (size_t) p.count[d];
        }
        const rows r = { static_cast<char *>(dst->data) + offset, static_cast<const char *>(src->data) + offset,
            in_rows ? p.stride[0] : p.run, p.run, in_rows ? (size_t) p.count[0] : 1 };
        *error = queue_rows(r, ends, stream);
    }
    return true;
}

// --------------------------------------------------------------------------------------------------- synchronous hooks

static cudaStream_t own_stream(gb_cuda_device * device, cudaError_t * error) {
    static std::mutex lock;
    static cudaStream_t streams[GGML_CUDA_MAX_DEVICES]; // never destroyed
    const std::lock_guard<std::mutex> held(lock);
    cudaStream_t & s = streams[device->id];
    *error = s == nullptr ? cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) : cudaSuccess;
    return s;
}

// Waits for the device's queued work, runs `queue` with the stream, and waits for it.
template <class Queue> static bool do_now(gb_cuda_device * device, const char * what, Queue queue) {
    gb_cuda_on_device on(device->id);
    cudaError_t error = cudaSuccess;
    cudaStream_t stream = own_stream(device, &error);
    if (error == cudaSuccess) {
        error = gb_cuda_wait(device);
    }
    if (error == cudaSuccess) {
        error = queue(stream);
    }
    if (error == cudaSuccess) {
        error = cudaStreamSynchronize(stream);
    }
    if (error != cudaSuccess) {
        gb_cuda_report(device->name, what, error);
    }
    return error == cudaSuccess;
}

static cuda_buffer * context_of(ggml_backend_buffer_t buffer) { return static_cast<cuda_buffer *>(buffer->context); }

static GGML_CALL const char * buffer_name(ggml_backend_buffer_t buffer) { return context_of(buffer)->device->name; }

// Waits, because kernels of any stream, and copies of other devices, may still use the memory.
static GGML_CALL void buffer_free(ggml_backend_buffer_t buffer) {
    cuda_buffer * b = context_of(buffer);
    gb_cuda_wait_for_users(b->device);
    gb_cuda_pool_free(b->device, b->memory, b->capacity);
    delete b;
}

static GGML_CALL void * buffer_base(ggml_backend_buffer_t buffer) { return context_of(buffer)->memory; }

static GGML_CALL void buffer_set(ggml_backend_buffer_t buffer, ggml_tensor * tensor, const void * data, size_t offset,
    size_t size) {
    do_now(context_of(buffer)->device, "setting a tensor", [=](cudaStream_t stream) {
        return cudaMemcpyAsync(static_cast<char *>(tensor->data) + offset, data, size, cudaMemcpyHostToDevice, stream);
    });
}

static GGML_CALL void buffer_get(ggml_backend_buffer_t buffer, const ggml_tensor * tensor, void * data, size_t offset,
    size_t size) {
    const cuda_buffer * b = context_of(buffer);
    const bool ok = do_now(b->device, "getting a tensor", [=](cudaStream_t stream) {
        return cudaMemcpyAsync(data, static_cast<const char *>(tensor->data) + offset, size, cudaMemcpyDeviceToHost,
            stream);
    });
    if (ok) {
        (void) gb_cuda_index_check_memory(b->device->name, b->memory, buffer->size);
    }
}

static GGML_CALL void buffer_clear(ggml_backend_buffer_t buffer, uint8_t value) {
    cuda_buffer * b = context_of(buffer);
    const size_t size = buffer->size;
    do_now(b->device, "clearing a buffer",
        [=](cudaStream_t stream) { return cudaMemsetAsync(b->memory, value, size, stream); });
}

static bool copy_now(gb_cuda_device * device, const ggml_tensor * src, ggml_tensor * dst) {
    bool possible = true;
    const bool ok = do_now(device, "copying a tensor", [&](cudaStream_t stream) {
        cudaError_t error;
        possible = gb_cuda_copy_layout(device, src, dst, stream, &error);
        return error;
    });
    return possible && ok;
}

static GGML_CALL bool buffer_copy_from(ggml_backend_buffer_t buffer, const ggml_tensor * src, ggml_tensor * dst) {
    gb_cuda_device * from = gb_cuda_device_of(src);
    if (from == nullptr && !gb_cuda_is_host(src)) {
        return false;
    }
    if (from != nullptr && from != context_of(buffer)->device) {
        (void) gb_cuda_wait(from);
    }
    return copy_now(context_of(buffer)->device, src, dst);
}

static GGML_CALL bool buffer_copy_to(ggml_backend_buffer_t buffer, const ggml_tensor * src, ggml_tensor * dst) {
    return gb_cuda_is_host(dst) && copy_now(context_of(buffer)->device, src, dst);
}

static ggml_backend_buffer_i buffer_hooks() {
    ggml_backend_buffer_i hooks = {};
    hooks.get_name = buffer_name;
    hooks.free_buffer = buffer_free;
    hooks.get_base = buffer_base;
    hooks.set_tensor = buffer_set;
    hooks.get_tensor = buffer_get;
    hooks.cpy_tensor = buffer_copy_from;
    hooks.clear = buffer_clear;
    hooks.cpy_tensor_to = buffer_copy_to;
    return hooks;
}

// -------------------------------------------------------------------------------------------- the device's buffer type

static gb_cuda_device * device_of_type(ggml_backend_buffer_type_t buft) {
    return static_cast<gb_cuda_device *>(buft->context);
}

static GGML_CALL const char * type_name(ggml_backend_buffer_type_t buft) { return device_of_type(buft)->name; }

static GGML_CALL ggml_backend_buffer_t type_alloc(ggml_backend_buffer_type_t buft, size_t size) {
    gb_cuda_device * device = device_of_type(buft);
    cuda_buffer * b = new (std::nothrow) cuda_buffer{ device, nullptr, 0 };
    if (b == nullptr) {
        ggml_report_error(GGML_STATUS_ALLOC_FAILED, "%s: no host memory for a buffer", device->name);
        return nullptr;
    }
    b->memory = static_cast<char *>(gb_cuda_pool_alloc(device, size, &b->capacity));
    ggml_backend_buffer_t buffer =
        b->memory != nullptr ? ggml_backend_buffer_init(buft, buffer_hooks(), b, size) : nullptr;
    if (buffer == nullptr) {
        gb_cuda_pool_free(device, b->memory, b->capacity);
        delete b;
    }
    return buffer;
}

static GGML_CALL size_t type_alignment(ggml_backend_buffer_type_t) {
    return 256; // bytes; cudaMalloc guarantees it
}

static GGML_CALL bool type_supports(ggml_backend_buffer_type_t buft, ggml_backend_t backend) {
    return gb_cuda_is_backend(backend) &&
           static_cast<gb_cuda_backend *>(backend->context)->device == device_of_type(buft);
}

static ggml_backend_buffer_type_i type_hooks() {
    ggml_backend_buffer_type_i hooks = {};
    hooks.get_name = type_name;
    hooks.alloc_buffer = type_alloc;
    hooks.get_alignment = type_alignment;
    hooks.supports_backend = type_supports;
    return hooks;
}

ggml_backend_buffer_type_t gb_cuda_buffer_type(gb_cuda_device * device) {
    static ggml_backend_buffer_type types[GGML_CUDA_MAX_DEVICES];
    static const bool made = [] {
        for (int i = 0; i < gb_cuda_device_count(); i++) {
            types[i] = { type_hooks(), gb_cuda_device_get(i) };
        }
        return true;
    }();
    (void) made;
    return &types[device->id];
}

// -------------------------------------------------------------------------------------------------- pinned host memory

// Pinned host memory from the CUDA runtime. The CPU backend can compute on it.
struct pinned_buffer {
    void * memory; // owned
};

static GGML_CALL const char * host_name(ggml_backend_buffer_type_t) { return "CUDA_Host"; }

static GGML_CALL const char * pinned_name(ggml_backend_buffer_t) { return "CUDA_Host"; }

static GGML_CALL void pinned_free(ggml_backend_buffer_t buffer) {
    pinned_buffer * p = static_cast<pinned_buffer *>(buffer->context);
    gb_cuda_wait_for_all(); // copies of any device may still use the memory
    const gb_cuda_on_device on = gb_cuda_on_any_device();
    const cudaError_t error = cudaFreeHost(p->memory);
    if (error != cudaSuccess) {
        gb_cuda_report("CUDA_Host", "cudaFreeHost", error);
    }
    delete p;
}

static GGML_CALL void * pinned_base(ggml_backend_buffer_t buffer) {
    return static_cast<pinned_buffer *>(buffer->context)->memory;
}

static GGML_CALL void pinned_set(ggml_backend_buffer_t, ggml_tensor * tensor, const void * data, size_t offset,
    size_t size) {
    memcpy(static_cast<char *>(tensor->data) + offset, data, size);
}

static GGML_CALL void pinned_get(ggml_backend_buffer_t, const ggml_tensor * tensor, void * data, size_t offset,
    size_t size) {
    memcpy(data, static_cast<const char *>(tensor->data) + offset, size);
}

static GGML_CALL void pinned_clear(ggml_backend_buffer_t buffer, uint8_t value) {
    memset(static_cast<pinned_buffer *>(buffer->context)->memory, value, buffer->size);
}

static ggml_backend_buffer_i pinned_hooks() {
    ggml_backend_buffer_i hooks = {};
    hooks.get_name = pinned_name;
    hooks.free_buffer = pinned_free;
    hooks.get_base = pinned_base;
    hooks.set_tensor = pinned_set;
    hooks.get_tensor = pinned_get;
    hooks.clear = pinned_clear;
    return hooks;
}

static GGML_CALL ggml_backend_buffer_t host_alloc(ggml_backend_buffer_type_t buft, size_t size) {
    pinned_buffer * p = new (std::nothrow) pinned_buffer{ nullptr };
    if (p == nullptr) {
        ggml_report_error(GGML_STATUS_ALLOC_FAILED, "CUDA_Host: no memory for a buffer");
        return nullptr;
    }
    const gb_cuda_on_device on = gb_cuda_on_any_device();
    const cudaError_t error = cudaHostAlloc(&p->memory, size > 0 ? size : 1, cudaHostAllocPortable);
    if (error != cudaSuccess) {
        (void) cudaGetLastError();
        ggml_report_error(error == cudaErrorMemoryAllocation ? GGML_STATUS_ALLOC_FAILED : GGML_STATUS_DEVICE_ERROR,
            "CUDA_Host: %zu bytes of pinned memory: %s", size, cudaGetErrorString(error));
        delete p;
        return nullptr;
    }
    ggml_backend_buffer_t buffer = ggml_backend_buffer_init(buft, pinned_hooks(), p, size);
    if (buffer == nullptr) {
        (void) cudaFreeHost(p->memory);
        delete p;
    }
    return buffer;
}

static GGML_CALL size_t host_alignment(ggml_backend_buffer_type_t) {
    return ggml_backend_buft_get_alignment(ggml_backend_cpu_buffer_type());
}

static GGML_CALL bool host_supports(ggml_backend_buffer_type_t, ggml_backend_t backend) {
    return ggml_backend_is_cpu(backend);
}

static GGML_CALL bool host_is_host(ggml_backend_buffer_type_t) { return true; }

ggml_backend_buffer_type_t gb_cuda_host_buffer_type(void) {
    static ggml_backend_buffer_type type = [] {
        ggml_backend_buffer_type made = {};
        made.iface.get_name = host_name;
        made.iface.alloc_buffer = host_alloc;
        made.iface.get_alignment = host_alignment;
        made.iface.supports_backend = host_supports;
        made.iface.is_host = host_is_host;
        return made;
    }();
    return gb_cuda_device_count() > 0 ? &type : nullptr;
}
