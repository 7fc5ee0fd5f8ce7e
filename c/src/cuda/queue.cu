// queue.cu - puts work on a stream or into a list.
#include <string.h>

#include <mutex>

#include "cuda/queue.h"

// ------------------------------------------------------------------------------------------------------- shared memory

namespace {

// The shared memory that blocks of a kernel may have. The limit belongs to the process and is never
// lowered: otherwise another thread could lower it between allow_shared and the launch.
struct allowance {
    const void * function;
    int device;
    size_t bytes;
};

struct {
    std::mutex lock;
    gb_array<allowance> all; // never freed
} allowances;

enum { FREE_SHARED = 48 * 1024 }; // bytes that every kernel may have

cudaError_t allow_shared(const void * function, size_t bytes) {
    int device = -1;
    cudaError_t error = cudaGetDevice(&device);
    if (error != cudaSuccess) {
        return error;
    }
    const std::lock_guard<std::mutex> held(allowances.lock);
    gb_array<allowance> & all = allowances.all;
    size_t i = 0;
    while (i < all.n && (all.data[i].function != function || all.data[i].device != device)) {
        i++;
    }
    if (i < all.n && all.data[i].bytes >= bytes) {
        return cudaSuccess;
    }
    if (i == all.n && !all.reserve(all.n + 1)) {
        return cudaErrorMemoryAllocation;
    }
    error = cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, (int) bytes);
    if (error == cudaSuccess) {
        all.data[i] = { function, device, bytes };
        all.n = i == all.n ? all.n + 1 : all.n;
    }
    return error;
}

// --------------------------------------------------------------------------------------------------------------- lists

gb_task * add_task(gb_task_list & list, enum gb_task_kind kind) {
    if (list.broken || !list.tasks.reserve(list.tasks.n + 1)) {
        list.broken = true;
        return nullptr;
    }
    gb_task & t = list.tasks.data[list.tasks.n++];
    t = gb_task{};
    t.kind = kind;
    return &t;
}

void list_kernel(gb_task_list & list, const gb_kernel_launch & l) {
    enum { ALIGN = 16 };
    gb_task * t = add_task(list, GB_TASK_KERNEL);
    if (t == nullptr) {
        return;
    }
    size_t bytes = 0;
    for (int i = 0; i < l.n; i++) {
        bytes += (l.sizes[i] + ALIGN - 1) / ALIGN * ALIGN;
    }
    if (!list.offsets.reserve(list.offsets.n + (size_t) l.n) || !list.bytes.reserve(list.bytes.n + bytes)) {
        list.broken = true;
        return;
    }
    t->function = l.function;
    t->grid = l.grid;
    t->block = l.block;
    t->shared = l.shared;
    t->first_value = list.offsets.n;
    t->n_values = l.n;
    t->bytes_at = list.bytes.n;
    t->bytes = bytes;
    memset(list.bytes.data + list.bytes.n, 0, bytes);
    for (int i = 0; i < l.n; i++) {
        memcpy(list.bytes.data + list.bytes.n, l.values[i], l.sizes[i]);
        list.offsets.data[list.offsets.n++] = list.bytes.n;
        list.bytes.n += (l.sizes[i] + ALIGN - 1) / ALIGN * ALIGN;
    }
}

} // namespace

void gb_task_list_clear(gb_task_list & list) {
    for (size_t i = 0; i < list.tasks.n; i++) {
        if (list.tasks.data[i].library != nullptr) {
            (void) cudaGraphDestroy(list.tasks.data[i].library);
        }
    }
    list.tasks.n = list.offsets.n = list.bytes.n = 0;
    list.broken = false;
}

void gb_task_list_free(gb_task_list & list) {
    gb_task_list_clear(list);
    list.tasks.release();
    list.offsets.release();
    list.bytes.release();
}

// --------------------------------------------------------------------------------------------------------------- queue

// The limit of every device: the launch of a larger grid would fail.
static bool is_allowed(dim3 grid) {
    enum { MAX_YZ = 65535 };
    return grid.x <= INT32_MAX && grid.y <= MAX_YZ && grid.z <= MAX_YZ;
}

void gb_queue_settle(const gb_queue & queue) { queue.after_kernel = false; }

static cudaError_t launch(const gb_queue & queue, const gb_kernel_launch & l) {
    const bool early = queue.dependent && queue.after_kernel;
    queue.after_kernel = true;
    if (!early) {
        return cudaLaunchKernel(l.function, l.grid, l.block, l.values, l.shared, queue.stream);
    }
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = l.grid;
    config.blockDim = l.block;
    config.dynamicSmemBytes = l.shared;
    config.stream = queue.stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelExC(&config, l.function, l.values);
}

cudaError_t gb_queue_kernel(const gb_queue & queue, const gb_kernel_launch & l) {
    if (queue.nowhere) {
        return is_allowed(l.grid) ? cudaSuccess : cudaErrorInvalidConfiguration;
    }
    const cudaError_t error = l.shared > FREE_SHARED ? allow_shared(l.function, l.shared) : cudaSuccess;
    if (queue.list == nullptr) {
        return error != cudaSuccess ? error : launch(queue, l);
    }
    if (error == cudaSuccess) {
        list_kernel(*queue.list, l);
    } else { // the direct launch reports the error
        (void) cudaGetLastError();
        queue.list->broken = true;
    }
    return cudaSuccess;
}

cudaError_t gb_queue_copy(const gb_queue & queue, void * to, const void * from, size_t size) {
    if (queue.nowhere || size == 0) {
        return cudaSuccess;
    }
    gb_queue_settle(queue);
    if (queue.list == nullptr) {
        return cudaMemcpyAsync(to, from, size, cudaMemcpyDeviceToDevice, queue.stream);
    }
    gb_task * t = add_task(*queue.list, GB_TASK_COPY);
    if (t != nullptr) {
        t->to = to;
        t->from = from;
        t->size = size;
    }
    return cudaSuccess;
}

cudaError_t gb_queue_clear(const gb_queue & queue, void * to, size_t size) {
    if (queue.nowhere || size == 0) {
        return cudaSuccess;
    }
    gb_queue_settle(queue);
    if (queue.list == nullptr) {
        return cudaMemsetAsync(to, 0, size, queue.stream);
    }
    gb_task * t = add_task(*queue.list, GB_TASK_CLEAR);
    if (t != nullptr) {
        t->to = to;
        t->size = size;
    }
    return cudaSuccess;
}

void gb_queue_begin_library(const gb_queue & queue) {
    gb_queue_settle(queue);
    if (queue.list != nullptr && !queue.list->broken &&
        cudaStreamBeginCapture(queue.stream, cudaStreamCaptureModeRelaxed) != cudaSuccess) {
        (void) cudaGetLastError();
        queue.list->broken = true;
    }
}

void gb_queue_end_library(const gb_queue & queue) {
    if (queue.list == nullptr || queue.list->broken) {
        return;
    }
    cudaGraph_t graph = nullptr;
    const cudaError_t error = cudaStreamEndCapture(queue.stream, &graph);
    gb_task * t = error == cudaSuccess ? add_task(*queue.list, GB_TASK_LIBRARY) : nullptr;
    if (t != nullptr) {
        t->library = graph;
        return;
    }
    if (graph != nullptr) {
        (void) cudaGraphDestroy(graph);
    }
    (void) cudaGetLastError();
    queue.list->broken = true;
}
