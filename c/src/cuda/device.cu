// device.cu - the list of devices, errors of runtime calls, and pools of device memory.
//
// A pool keeps freed blocks for requests of nearly the same size. It returns all of them to the driver before a request
// fails.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mutex>
#include <new>

#include "cuda/driver.h"
#include "ggml-cuda.h"
#include "cuda/launch.cuh"
#include "cuda/memory.h"

// -------------------------------------------------------------------------------------------------------------- errors

bool gb_cuda_is_sticky(cudaError_t error) {
    const int n = (int) error;
    // 214, 226: memory errors; 220: link; 702: timeout; 710, 714 to 719: faults of kernels; 721: tensor memory leak;
    // 999: unknown
    return n == 214 || n == 220 || n == 226 || n == (int) cudaErrorIllegalAddress || n == 702 || n == 710 ||
           (n >= 714 && n <= 719) || n == 721 || n == (int) cudaErrorUnknown;
}

enum ggml_status gb_cuda_report(const char * device, const char * call, cudaError_t error) {
    char name[64]; // of the function, without its arguments
    snprintf(name, sizeof(name), "%.*s", (int) strcspn(call, "("), call);
    if (!gb_cuda_is_sticky(error)) {
        (void) cudaGetLastError();
    }
    const enum ggml_status status =
        error == cudaErrorMemoryAllocation ? GGML_STATUS_ALLOC_FAILED : GGML_STATUS_DEVICE_ERROR;
    return ggml_report_error(status, "%s: %s: %s (%s)", device, name, cudaGetErrorString(error),
        cudaGetErrorName(error));
}

// True if the device has its primary context. From CUDA 12 on, making a device current creates a
// context, which takes some hundred megabytes of device memory. So gb_cuda_on_device does not go
// back to a device without one.
static bool is_active(int device) {
    typedef int (*question)(int device, unsigned * flags, int * active);
    static const question ask = reinterpret_cast<question>(gb_cuda_driver_function("cuDevicePrimaryCtxGetState"));
    unsigned flags = 0;
    int active = 0;
    return ask != nullptr && ask(device, &flags, &active) == 0 && active != 0;
}

gb_cuda_on_device::gb_cuda_on_device(int id) : previous(-1) {
    int now = -1;
    if (cudaGetDevice(&now) == cudaSuccess && now != id) {
        const bool active = is_active(now);
        if (cudaSetDevice(id) == cudaSuccess && active) {
            previous = now;
        }
    }
}

gb_cuda_on_device::~gb_cuda_on_device() {
    if (previous >= 0) {
        (void) cudaSetDevice(previous);
    }
}

gb_cuda_on_device gb_cuda_on_any_device() {
    const int n = gb_cuda_device_count();
    int i = 0;
    while (i < n && !is_active(i)) {
        i++;
    }
    return gb_cuda_on_device(i < n ? i : 0);
}

// ------------------------------------------------------------------------------------------------------------- devices

namespace {

struct block {
    void * memory;
    size_t capacity;
};

struct pool {
    std::mutex lock;
    enum { N = 64 };
    block kept[N];
    int n = 0;
};

struct devices {
    gb_cuda_device device[GGML_CUDA_MAX_DEVICES];
    pool pools[GGML_CUDA_MAX_DEVICES];
    std::mutex waits[GGML_CUDA_MAX_DEVICES];
    std::mutex reach_lock;
    bool reaches[GGML_CUDA_MAX_DEVICES][GGML_CUDA_MAX_DEVICES] = {}; // a copy between them was queued
    std::mutex code_lock;
    bool has_code[GGML_CUDA_MAX_DEVICES] = {}; // gb_cuda_check_code succeeded
    int n = 0;
    char reason[256] = "no host memory"; // until find_devices has run
};

void describe(gb_cuda_device & d, int id, const cudaDeviceProp & p) {
    d.id = id;
    d.n_sm = p.multiProcessorCount;
    d.cc = p.major * 10 + p.minor;
    d.shared_max = p.sharedMemPerBlockOptin;
    d.l2_bytes = (size_t) p.l2CacheSize;
    d.pitch_max = p.memPitch;
    d.dependent = false;
    d.hopper = false;
    snprintf(d.name, sizeof(d.name), "CUDA%d", id);
    snprintf(d.description, sizeof(d.description), "%s", p.name);
}

enum { OLDEST = 75 }; // lowest compute capability that the kernels support

void find_devices(devices & all) {
    int n = 0;
    cudaError_t error = cudaGetDeviceCount(&n);
    if (error != cudaSuccess || n <= 0) {
        (void) cudaGetLastError();
        snprintf(all.reason, sizeof(all.reason), "%s",
            error != cudaSuccess ? cudaGetErrorString(error) : "the driver lists none");
        return;
    }
    for (int id = 0; id < n && id < GGML_CUDA_MAX_DEVICES; id++) {
        cudaDeviceProp p;
        error = cudaGetDeviceProperties(&p, id);
        if (error != cudaSuccess) {
            (void) cudaGetLastError();
            snprintf(all.reason, sizeof(all.reason), "device %d: %s", id, cudaGetErrorString(error));
            break; // device numbers are indices of the list
        }
        describe(all.device[all.n++], id, p);
    }
    if (all.n > 0) {
        all.reason[0] = '\0';
    }
}

// Never destroyed: buffers may outlive main.
devices & list() {
    static devices * const all = [] {
        devices * made = new (std::nothrow) devices;
        if (made != nullptr) {
            find_devices(*made);
        }
        return made;
    }();
    static devices none;
    return all != nullptr ? *all : none;
}

} // namespace

int gb_cuda_device_count(void) { return list().n; }

const char * gb_cuda_absent_reason(void) { return list().reason; }

gb_cuda_device * gb_cuda_device_get(int i) {
    devices & all = list();
    return i >= 0 && i < all.n ? &all.device[i] : nullptr;
}

std::mutex & gb_cuda_wait_lock(const gb_cuda_device * device) { return list().waits[device->id]; }

cudaError_t gb_cuda_wait(const gb_cuda_device * device) {
    const std::lock_guard<std::mutex> held(gb_cuda_wait_lock(device));
    gb_cuda_on_device on(device->id);
    return cudaDeviceSynchronize();
}

GB_KERNEL gb_any_kernel(int * p) {
    gb_wait_for_earlier();
    *p = 0;
}

// Only code for 9.0 and newer can be launched early: it waits in the kernel for earlier kernels.
static bool may_be_dependent(const gb_cuda_device * device) {
    const char * wish = getenv("GGML_CUDA_DEPENDENT");
    return device->cc >= 90 && (wish == nullptr || strcmp(wish, "0") != 0);
}

// Runs when the first backend is made, because the query creates a context.
bool gb_cuda_check_code(gb_cuda_device * device) {
    devices & all = list();
    const std::lock_guard<std::mutex> held(all.code_lock);
    if (all.has_code[device->id]) {
        return true;
    }
    gb_cuda_on_device on(device->id);
    cudaFuncAttributes a;
    const cudaError_t error = cudaFuncGetAttributes(&a, (const void *) gb_any_kernel);
    if (error != cudaSuccess) {
        char call[96];
        snprintf(call, sizeof(call), "code for compute capability %d.%d", device->cc / 10, device->cc % 10);
        gb_cuda_report(device->name, call, error);
        return false;
    }
    device->cc = a.ptxVersion < device->cc ? a.ptxVersion : device->cc;
    device->dependent = may_be_dependent(device);
    device->hopper = device->cc == 90 && gb_cuda_has_hopper_kernels();
    all.has_code[device->id] = true;
    return true;
}

static void enable_peer(int device, int peer) {
    int can = 0;
    if (cudaDeviceCanAccessPeer(&can, device, peer) == cudaSuccess && can) {
        gb_cuda_on_device on(device);
        (void) cudaDeviceEnablePeerAccess(peer, 0); // fails, harmlessly, if it is enabled
    }
    (void) cudaGetLastError();
}

void gb_cuda_reach(const gb_cuda_device * a, const gb_cuda_device * b) {
    devices & all = list();
    const std::lock_guard<std::mutex> held(all.reach_lock);
    if (!all.reaches[a->id][b->id]) {
        enable_peer(a->id, b->id);
        enable_peer(b->id, a->id);
        all.reaches[a->id][b->id] = all.reaches[b->id][a->id] = true;
    }
}

void gb_cuda_wait_for_users(const gb_cuda_device * device) {
    devices & all = list();
    for (int i = 0; i < all.n; i++) {
        bool reaches;
        {
            const std::lock_guard<std::mutex> held(all.reach_lock);
            reaches = all.reaches[device->id][i];
        }
        if (i == device->id || reaches) {
            (void) gb_cuda_wait(&all.device[i]); // the call that waits for the failed work reports the error
        }
    }
}

void gb_cuda_wait_for_all(void) {
    for (int i = 0; i < gb_cuda_device_count(); i++) {
        if (is_active(i)) {
            (void) gb_cuda_wait(gb_cuda_device_get(i));
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------- pool

static const char * too_old(const gb_cuda_device * d) {
    return d->cc < OLDEST ? "its compute capability is below 7.5" : nullptr;
}

// Takes the smallest kept block that is large enough and at most a quarter too large. The caller
// holds the pool's lock.
static void * take_kept(pool & p, size_t size, size_t * capacity) {
    int best = -1;
    for (int i = 0; i < p.n; i++) {
        const size_t c = p.kept[i].capacity;
        if (c >= size && c - size <= c / 4 && (best < 0 || c < p.kept[best].capacity)) {
            best = i;
        }
    }
    if (best < 0) {
        return nullptr;
    }
    const block taken = p.kept[best];
    p.kept[best] = p.kept[--p.n];
    *capacity = taken.capacity;
    return taken.memory;
}

size_t gb_cuda_pool_trim(gb_cuda_device * device) {
    pool & p = list().pools[device->id];
    const std::lock_guard<std::mutex> held(p.lock);
    gb_cuda_on_device on(device->id);
    size_t given = 0;
    while (p.n > 0) {
        const block b = p.kept[--p.n];
        given += b.capacity;
        (void) cudaFree(b.memory); // fails only if the device is broken
    }
    return given;
}

static void report_no_memory(const gb_cuda_device * device, size_t size) {
    size_t free_bytes = 0, total = 0;
    (void) cudaGetLastError();
    if (cudaMemGetInfo(&free_bytes, &total) != cudaSuccess) {
        (void) cudaGetLastError();
    }
    ggml_report_error(GGML_STATUS_ALLOC_FAILED, "%s: out of memory: %zu bytes wanted, %zu free of %zu", device->name,
        size, free_bytes, total);
}

void * gb_cuda_pool_alloc(gb_cuda_device * device, size_t size, size_t * capacity) {
    const char * old = too_old(device);
    if (old != nullptr) {
        ggml_report_error(GGML_STATUS_UNSUPPORTED, "%s: %s cannot be used: %s", device->name, device->description, old);
        return nullptr;
    }
    if (size > SIZE_MAX - 511) {
        report_no_memory(device, size);
        return nullptr;
    }
    const size_t wanted = size > 0 ? (size + 511) / 512 * 512 : 512;
    {
        pool & p = list().pools[device->id];
        const std::lock_guard<std::mutex> held(p.lock);
        void * kept = take_kept(p, wanted, capacity);
        if (kept != nullptr) {
            return kept;
        }
    }
    gb_cuda_on_device on(device->id);
    void * memory = nullptr;
    cudaError_t error = cudaMalloc(&memory, wanted);
    if (error == cudaErrorMemoryAllocation && gb_cuda_pool_trim(device) > 0) {
        (void) cudaGetLastError();
        error = cudaMalloc(&memory, wanted);
    }
    if (error == cudaErrorMemoryAllocation) {
        report_no_memory(device, size);
        return nullptr;
    }
    if (error != cudaSuccess) {
        gb_cuda_report(device->name, "cudaMalloc", error);
        return nullptr;
    }
    *capacity = wanted;
    return memory;
}

// Large blocks are not kept: another process, or a request of another size, may need them.
void gb_cuda_pool_free(gb_cuda_device * device, void * memory, size_t capacity) {
    enum { KEEP_MAX = 64 << 20 };
    if (memory == nullptr) {
        return;
    }
    pool & p = list().pools[device->id];
    {
        const std::lock_guard<std::mutex> held(p.lock);
        if (capacity <= KEEP_MAX && p.n < pool::N) {
            p.kept[p.n++] = { memory, capacity };
            return;
        }
    }
    gb_cuda_on_device on(device->id);
    const cudaError_t error = cudaFree(memory);
    if (error != cudaSuccess) {
        gb_cuda_report(device->name, "cudaFree", error);
    }
}
