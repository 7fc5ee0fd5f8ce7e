// runtime.cpp - the runtime of the emulation: devices, memory, streams, events, graphs.
//
// Queued work is a list of steps for each stream. A thread that must wait runs steps until its condition holds, of
// streams drawn at random among those that can continue. Nothing runs otherwise. One lock protects everything: kernels
// run one at a time, on the thread that waits.
//
// As documented, host memory that is not pinned is read when a copy is queued, or written before the call returns.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <chrono>
#include <list>
#include <map>
#include <memory>
#include <mutex>

#if defined(__SANITIZE_ADDRESS__)
#    include <sanitizer/asan_interface.h>
#    include <sanitizer/common_interface_defs.h>
#endif

#include "block.h"
#include "hopper.h"

// Fields of the runtime's structures have these names, too.
#undef gridDim
#undef blockDim

namespace {

constexpr unsigned char unwritten = 0xff; // NaN

enum class kind { KERNEL, COPY, CLEAR, RECORD, WAIT, GRAPH };

struct launch; // of a kernel, below

struct step {
    enum kind what;
    const void * function = nullptr; // of a kernel, to compare graphs
    std::function<cudaError_t()> run;
    gb_emu_event * event = nullptr;
    uint64_t ticket = 0;            // number of the event's record that is made or waited for
    std::shared_ptr<launch> kernel; // instead of `run`
    bool dependent = false;         // a kernel that may begin while the previous one runs
};

struct device {
    size_t total = (size_t) 1 << 30, used = 0;
    cudaError_t sticky = cudaSuccess;
    bool context = false; // the primary context exists
    unsigned peers = 0;   // devices whose memory it may access, a bit each
};

struct kernel {
    std::string name;
    std::vector<size_t> sizes; // of its parameters
    gb_emu_caller call;
    size_t shared[16]; // limit of a block, by device; 0: the default
};

struct alignas(128) parameter { // of a kernel, or a part; aligned for any type
    unsigned char bytes[128];
};

struct launch {
    const struct kernel * k;
    dim3 grid, block;
    size_t shared;
    const void * function;
    std::vector<std::vector<parameter>> values; // of its parameters
};

struct allocation {
    size_t size;
    int device; // -1: host
    bool registered;
    bool read_only; // registered as memory that the device only reads
};

std::recursive_mutex lock;
std::vector<device> devices(2);
int capability = 90, code = 90;
bool hopper_code = true; // code for 9.0a exists, if the code is for 9.0
std::map<const char *, allocation> memory;
std::map<const void *, kernel> kernels;
std::list<gb_emu_stream *> streams;
gb_emu_random order{ 1 };
gb_emu_counts counts;
std::map<std::string, uint64_t> launches; // by name of the kernel
std::string failing;
int failing_after;
cudaError_t failing_with;
int kernel_fails_after = -1;
bool neighbour;
size_t pitch_max = 0x7fffffff;
thread_local int current_device;
thread_local cudaError_t last = cudaSuccess;

} // namespace

struct gb_emu_stream {
    int device;
    std::list<step> queue;
    bool capturing = false;
    bool broken = false; // the capture
    std::vector<step> captured;
};
struct gb_emu_event {
    uint64_t recorded = 0, done = 0; // numbers of records: queued, reached
    int64_t ns = 0;
    bool timed = false;
};
struct gb_emu_node {
    step what; // dependent: `early` has an entry
    std::vector<gb_emu_node *> after;
    std::vector<bool> early; // for each entry of `after`: this node may begin while that one runs
    std::vector<step> child; // work of a library
};
struct gb_emu_graph {
    std::vector<std::unique_ptr<gb_emu_node>> nodes;
};
struct gb_emu_work { // a node of an executable graph
    const gb_emu_node * node;
    step what;
    std::vector<size_t> after;
    std::vector<bool> early;
    std::vector<step> child;
};
struct gb_emu_graph_exec {
    std::shared_ptr<std::vector<gb_emu_work>> work; // shared with pending launches
    gb_emu_graph * of;                              // NULL: destroyed, with the handles of the nodes
    bool broken = false;
};

namespace {

using guard = std::lock_guard<std::recursive_mutex>;

int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

cudaError_t result(cudaError_t error) {
    if (error != cudaSuccess && error != cudaErrorNotReady) {
        last = error;
    }
    return error;
}

// Another library in the process synchronizes the device.
void let_neighbour_synchronize() {
    for (gb_emu_stream * s : streams) {
        if (s->device == current_device && s->capturing) {
            s->broken = true;
            counts.neighbour_errors++;
        }
    }
}

// Begins every call that needs a device: makes the primary context, and returns injected and sticky errors.
cudaError_t enter(const char * function) {
    if (current_device < (int) devices.size()) {
        devices[(size_t) current_device].context = true;
    }
    if (neighbour) {
        let_neighbour_synchronize();
    }
    if (!failing.empty() && failing == function && failing_after-- == 0) {
        failing.clear();
        if (failing_with == cudaErrorIllegalAddress || failing_with == cudaErrorLaunchFailure) {
            devices[(size_t) current_device].sticky = failing_with;
        }
        return failing_with;
    }
    return current_device < (int) devices.size() ? devices[(size_t) current_device].sticky : cudaErrorNoDevice;
}

#define ENTER()                                  \
    guard held(lock);                            \
    const cudaError_t entered = enter(__func__); \
    if (entered != cudaSuccess) {                \
        return result(entered);                  \
    }                                            \
    (void) 0

// The allocation that has all of the bytes, or NULL.
const allocation * find(const void * p, size_t size) {
    const char * c = static_cast<const char *>(p);
    auto after = memory.upper_bound(c);
    if (after == memory.begin()) {
        return nullptr;
    }
    --after;
    return c + size <= after->first + after->second.size ? &after->second : nullptr;
}

bool is_on_device(const void * p, size_t size) {
    const allocation * a = find(p, size);
    return a != nullptr && a->device >= 0;
}

// -------------------------------------------------------------------------------------------------------------- queues

bool can_run(const gb_emu_stream & s) {
    return !s.queue.empty() &&
           (s.queue.front().what != kind::WAIT || s.queue.front().event->done >= s.queue.front().ticket);
}

step take(gb_emu_stream & s) {
    step next = std::move(s.queue.front());
    s.queue.pop_front();
    return next;
}

cudaError_t run_kernels(gb_emu_stream & s, const step & first);

void run_step(gb_emu_stream & s) {
    step next = take(s);
    device & d = devices[(size_t) s.device];
    if (next.what == kind::RECORD) {
        next.event->done = next.ticket;
        next.event->ns = now();
    } else if (next.kernel && d.sticky == cudaSuccess) {
        d.sticky = run_kernels(s, next);
    } else if (next.run && d.sticky == cudaSuccess) {
        d.sticky = next.run();
    }
}

// Work on memory that was freed while it was queued.
cudaError_t illegal(const char * what) {
    fprintf(stderr, "emulation: %s, which was freed or unregistered before that was done\n", what);
    return cudaErrorIllegalAddress;
}

// Runs steps until `done`. If no step can run, the caller or the emulation has a bug.
template <class Done> cudaError_t run_until(Done done) {
    while (!done()) {
        std::vector<gb_emu_stream *> able;
        for (gb_emu_stream * s : streams) {
            if (can_run(*s)) {
                able.push_back(s);
            }
        }
        if (able.empty()) {
            fprintf(stderr, "emulation: every stream waits for an event that no stream comes to\n");
            return cudaErrorUnknown;
        }
        run_step(*able[order.below(able.size())]);
    }
    return cudaSuccess;
}

cudaError_t drain_device(int id) {
    return run_until([=] {
        for (const gb_emu_stream * s : streams) {
            if (s->device == id && !s->queue.empty()) {
                return false;
            }
        }
        return true;
    });
}

cudaError_t drain_stream(gb_emu_stream * s) {
    const cudaError_t error = run_until([=] { return s->queue.empty(); });
    return error != cudaSuccess ? error : devices[(size_t) s->device].sticky;
}

cudaError_t submit(cudaStream_t s, step what) {
    if (s == nullptr) {
        fprintf(stderr, "emulation: the default stream is not for use here: it would wait for all others\n");
        return cudaErrorInvalidResourceHandle;
    }
    if (s->capturing) {
        s->captured.push_back(std::move(what));
    } else {
        s->queue.push_back(std::move(what));
    }
    return cudaSuccess;
}

} // namespace

// -------------------------------------------------------------------------------------------------------------- errors

const char * cudaGetErrorName(cudaError_t error) {
    switch (error) {
#define NAME(name) \
    case name: return #name
        NAME(cudaSuccess);
        NAME(cudaErrorInvalidValue);
        NAME(cudaErrorMemoryAllocation);
        NAME(cudaErrorInitializationError);
        NAME(cudaErrorInvalidConfiguration);
        NAME(cudaErrorInsufficientDriver);
        NAME(cudaErrorNoDevice);
        NAME(cudaErrorInvalidDevice);
        NAME(cudaErrorNoKernelImageForDevice);
        NAME(cudaErrorInvalidResourceHandle);
        NAME(cudaErrorNotReady);
        NAME(cudaErrorIllegalAddress);
        NAME(cudaErrorPeerAccessAlreadyEnabled);
        NAME(cudaErrorHostMemoryAlreadyRegistered);
        NAME(cudaErrorHostMemoryNotRegistered);
        NAME(cudaErrorLaunchFailure);
        NAME(cudaErrorNotSupported);
        NAME(cudaErrorStreamCaptureUnsupported);
        NAME(cudaErrorStreamCaptureInvalidated);
        NAME(cudaErrorGraphExecUpdateFailure);
        NAME(cudaErrorUnknown);
#undef NAME
    }
    return "unrecognized error code";
}

const char * cudaGetErrorString(cudaError_t error) {
    return error == cudaErrorMemoryAllocation ? "out of memory"
           : error == cudaErrorNoDevice       ? "no CUDA-capable device is detected"
                                              : cudaGetErrorName(error);
}

cudaError_t cudaGetLastError(void) {
    const cudaError_t error = last;
    const bool stays = current_device < (int) devices.size() && devices[(size_t) current_device].sticky != cudaSuccess;
    last = stays ? devices[(size_t) current_device].sticky : cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void) { return last; }

// ------------------------------------------------------------------------------------------------------------- devices

cudaError_t cudaGetDeviceCount(int * count) {
    guard held(lock);
    *count = (int) devices.size();
    return result(devices.empty() ? cudaErrorNoDevice : cudaSuccess);
}

cudaError_t cudaGetDevice(int * device) {
    *device = current_device;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    guard held(lock);
    if (device < 0 || device >= (int) devices.size()) {
        return result(cudaErrorInvalidDevice);
    }
    current_device = device;
    devices[(size_t) device].context = true; // as from CUDA 12 on
    return cudaSuccess;
}

static int primary_context_state(int device, unsigned * flags, int * active) {
    guard held(lock);
    if (device < 0 || device >= (int) devices.size()) {
        return 101;
    }
    *flags = 0;
    *active = devices[(size_t) device].context;
    return 0;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char * symbol, void ** function, unsigned, unsigned long long,
    enum cudaDriverEntryPointQueryResult * status) {
    *function = strcmp(symbol, "cuDevicePrimaryCtxGetState") == 0 ? reinterpret_cast<void *>(primary_context_state)
                : strcmp(symbol, "cuTensorMapEncodeTiled") == 0   ? reinterpret_cast<void *>(gb_emu_encode_tiled)
                                                                  : nullptr;
    *status = *function != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

// Shared memory that a block can have, as the CUDA programming guide lists it.
static size_t shared_of(int cc) {
    const size_t kib = cc >= 90 ? 227 : cc == 80 || cc == 87 ? 163 : cc >= 80 ? 99 : 64;
    return kib * 1024;
}

// Makes no context.
cudaError_t cudaGetDeviceProperties(cudaDeviceProp * p, int id) {
    guard held(lock);
    if (id < 0 || id >= (int) devices.size()) {
        return result(cudaErrorInvalidDevice);
    }
    *p = cudaDeviceProp{};
    snprintf(p->name, sizeof(p->name), "Emulated device (for tests only)");
    p->major = capability / 10;
    p->minor = capability % 10;
    p->multiProcessorCount = 4;
    p->memPitch = pitch_max;
    p->l2CacheSize = 1 << 18;
    p->totalGlobalMem = devices[(size_t) id].total;
    p->sharedMemPerBlock = 48 * 1024;
    p->sharedMemPerBlockOptin = shared_of(capability);
    return cudaSuccess;
}

// The driver compiles code for an older device again. Code for a newer device does not run.
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes * a, const void *) {
    ENTER();
    if (code > capability) {
        return result(cudaErrorNoKernelImageForDevice);
    }
    *a = { code, capability };
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) {
    ENTER();
    for (gb_emu_stream * s : streams) {
        if (s->device == current_device && s->capturing) { // by any thread
            s->broken = true;
            return result(cudaErrorStreamCaptureUnsupported);
        }
    }
    const cudaError_t error = drain_device(current_device);
    return result(error != cudaSuccess ? error : devices[(size_t) current_device].sticky);
}

cudaError_t cudaFuncSetAttribute(const void * function, enum cudaFuncAttribute attribute, int value) {
    ENTER();
    cudaDeviceProp p;
    (void) cudaGetDeviceProperties(&p, current_device);
    auto found = kernels.find(function);
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || found == kernels.end() || value < 0 ||
        (size_t) value > p.sharedMemPerBlockOptin) {
        return result(cudaErrorInvalidValue);
    }
    size_t & shared = found->second.shared[current_device];
    counts.shared_lowered += (size_t) value < shared; // another thread may rely on more
    shared = (size_t) value;
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int * can, int a, int b) {
    guard held(lock);
    *can = a != b;
    return cudaSuccess;
}

// Also makes the peer's context.
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
    ENTER();
    if (peer < 0 || peer >= (int) devices.size() || peer == current_device) {
        return result(cudaErrorInvalidDevice);
    }
    devices[(size_t) peer].context = true;
    unsigned & peers = devices[(size_t) current_device].peers;
    if (peers >> peer & 1) {
        return result(cudaErrorPeerAccessAlreadyEnabled);
    }
    peers |= 1u << peer;
    return cudaSuccess;
}

// -------------------------------------------------------------------------------------------------------------- memory

cudaError_t cudaMemGetInfo(size_t * free_bytes, size_t * total) {
    ENTER();
    const device & d = devices[(size_t) current_device];
    *total = d.total;
    *free_bytes = d.total - d.used;
    return cudaSuccess;
}

constexpr size_t page = 4096; // the unit of protection

static size_t whole_pages(size_t size) { return size == 0 ? page : (size + page - 1) / page * page; }

// Protects the bytes after the first `size` bytes of `all`.
static void poison([[maybe_unused]] char * p, [[maybe_unused]] size_t size, [[maybe_unused]] size_t all) {
#if defined(__SANITIZE_ADDRESS__)
    const size_t behind = (size + 7) & ~(size_t) 7;
    if (behind < all) {
        __asan_poison_memory_region(p + behind, all - behind);
    }
#endif
}

static void unpoison([[maybe_unused]] char * p, [[maybe_unused]] size_t all) {
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(p, all);
#endif
}

static cudaError_t allocate(void ** out, size_t size, int id) {
    device * d = id >= 0 ? &devices[(size_t) id] : nullptr;
    if (d && size > d->total - d->used) {
        return result(cudaErrorMemoryAllocation);
    }
    const size_t all = whole_pages(size);
    char * p = static_cast<char *>(aligned_alloc(page, all));
    if (p == nullptr) {
        return result(cudaErrorMemoryAllocation);
    }
    memset(p, unwritten, size);
    poison(p, size, all);
    memory[p] = { size, id, false, false };
    if (d) {
        d->used += size;
    }
    (d ? counts.live_device : counts.live_host) += 1;
    counts.allocations++;
    *out = p;
    return cudaSuccess;
}

static cudaError_t release(void * p, bool on_device) {
    auto found = memory.find(static_cast<char *>(p));
    if (found == memory.end() || (found->second.device >= 0) != on_device || found->second.registered) {
        return result(cudaErrorInvalidValue);
    }
    if (on_device) {
        devices[(size_t) found->second.device].used -= found->second.size;
    }
    (on_device ? counts.live_device : counts.live_host) -= 1;
    unpoison(static_cast<char *>(p), whole_pages(found->second.size));
    memory.erase(found);
    free(p);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void ** out, size_t size) {
    ENTER();
    return allocate(out, size, current_device);
}

cudaError_t cudaFree(void * p) {
    guard held(lock);
    if (p == nullptr) {
        return cudaSuccess;
    }
    const allocation * a = find(p, 1);
    if (a == nullptr || a->device < 0) {
        return result(cudaErrorInvalidValue);
    }
    const int id = a->device;
    const cudaError_t error = drain_device(id);
    const cudaError_t freed = release(p, true); // also on a broken device, so that tests see only real leaks
    return result(devices[(size_t) id].sticky != cudaSuccess ? devices[(size_t) id].sticky
                  : error != cudaSuccess                     ? error
                                                             : freed);
}

cudaError_t cudaHostAlloc(void ** out, size_t size, unsigned) {
    ENTER();
    return allocate(out, size, -1);
}

// Does not wait: the documentation does not promise that.
cudaError_t cudaFreeHost(void * p) {
    guard held(lock);
    devices[(size_t) current_device].context = true;
    return release(p, false);
}

// True if the operating system allows writes to all pages.
static bool is_writable(const void * p, size_t size) {
    FILE * maps = fopen("/proc/self/maps", "r");
    if (maps == nullptr) {
        return true;
    }
    const unsigned long first = (unsigned long) p, last = first + size;
    unsigned long begin, end;
    char rights[5];
    bool writable = true;
    while (fscanf(maps, "%lx-%lx %4s%*[^\n]", &begin, &end, rights) == 3) {
        writable = writable && (end <= first || begin >= last || rights[1] == 'w');
    }
    fclose(maps);
    return writable;
}

cudaError_t cudaHostRegister(void * p, size_t size, unsigned flags) {
    ENTER();
    const bool read_only = (flags & cudaHostRegisterReadOnly) != 0;
    if (p == nullptr || size == 0 || (!read_only && !is_writable(p, size))) {
        return result(cudaErrorInvalidValue);
    }
    if (find(p, 1) != nullptr) {
        return result(cudaErrorHostMemoryAlreadyRegistered);
    }
    memory[static_cast<char *>(p)] = { size, -1, true, read_only };
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void * p) {
    ENTER();
    auto found = memory.find(static_cast<char *>(p));
    if (found == memory.end() || !found->second.registered) {
        return result(cudaErrorHostMemoryNotRegistered);
    }
    memory.erase(found);
    return cudaSuccess;
}

// A copy of rows; a plain copy has one row. Pageable host memory is read now, or written before the call returns.
static cudaError_t copy_rows(char * to, size_t to_pitch, const char * from, size_t from_pitch, size_t width,
    size_t height, cudaStream_t stream) {
    if (width == 0 || height == 0) {
        return cudaSuccess;
    }
    const size_t to_span = to_pitch * (height - 1) + width, from_span = from_pitch * (height - 1) + width;
    const allocation * to_a = find(to, to_span);
    const allocation * from_a = find(from, from_span);
    if (to_a == nullptr && find(to, 1) != nullptr) {
        return result(cudaErrorInvalidValue); // leaves the allocation in which it begins
    }
    if (from_a == nullptr && find(from, 1) != nullptr) {
        return result(cudaErrorInvalidValue);
    }
    if (to_a != nullptr && to_a->read_only) {
        return result(cudaErrorInvalidValue);
    }
    auto move = [=](const char * source, size_t pitch) {
        if (to_a != nullptr && find(to, to_span) == nullptr) {
            return illegal("a copy to memory");
        }
        for (size_t i = 0; i < height; i++) {
            memmove(to + i * to_pitch, source + i * pitch, width);
        }
        return cudaSuccess;
    };
    step s = { kind::COPY };
    if (from_a == nullptr) { // pageable: staged
        if (stream && stream->capturing) {
            fprintf(stderr, "emulation: pageable memory in a capture: replays would read it again\n");
            stream->broken = true;
            return result(cudaErrorStreamCaptureUnsupported);
        }
        auto staged = std::make_shared<std::vector<char>>(from, from + from_span);
        s.run = [=] { return move(staged->data(), from_pitch); };
    } else {
        s.run = [=] { return find(from, from_span) == nullptr ? illegal("a copy of memory") : move(from, from_pitch); };
    }
    counts.copies++;
    const cudaError_t error = submit(stream, std::move(s));
    if (error != cudaSuccess || to_a != nullptr || stream->capturing) {
        return result(error);
    }
    return result(drain_stream(stream));
}

cudaError_t cudaMemcpyAsync(void * to, const void * from, size_t size, cudaMemcpyKind, cudaStream_t stream) {
    ENTER();
    return copy_rows(static_cast<char *>(to), size, static_cast<const char *>(from), size, size, 1, stream);
}

cudaError_t cudaMemcpyPeerAsync(void * to, int to_device, const void * from, int from_device, size_t size,
    cudaStream_t stream) {
    ENTER();
    const allocation *a = find(to, size), *b = find(from, size);
    if (a == nullptr || b == nullptr || a->device != to_device || b->device != from_device) {
        return result(cudaErrorInvalidValue);
    }
    return copy_rows(static_cast<char *>(to), size, static_cast<const char *>(from), size, size, 1, stream);
}

cudaError_t cudaMemcpy2DAsync(void * to, size_t to_pitch, const void * from, size_t from_pitch, size_t width,
    size_t height, cudaMemcpyKind, cudaStream_t stream) {
    ENTER();
    const allocation *a = find(to, 1), *b = find(from, 1);
    if (width > to_pitch || width > from_pitch || to_pitch > pitch_max || from_pitch > pitch_max ||
        (a && b && a->device >= 0 && b->device >= 0 && a->device != b->device)) {
        return result(cudaErrorInvalidValue); // between devices there is cudaMemcpy3DPeerAsync
    }
    return copy_rows(static_cast<char *>(to), to_pitch, static_cast<const char *>(from), from_pitch, width, height,
        stream);
}

cudaError_t cudaMemcpy3DPeerAsync(const cudaMemcpy3DPeerParms * p, cudaStream_t stream) {
    ENTER();
    const cudaPitchedPtr &to = p->dstPtr, &from = p->srcPtr;
    const allocation *a = find(to.ptr, 1), *b = find(from.ptr, 1);
    if (a == nullptr || b == nullptr || a->device != p->dstDevice || b->device != p->srcDevice ||
        p->extent.depth != 1 || p->extent.width > to.pitch || p->extent.width > from.pitch || to.pitch > pitch_max ||
        from.pitch > pitch_max) {
        return result(cudaErrorInvalidValue);
    }
    return copy_rows(static_cast<char *>(to.ptr), to.pitch, static_cast<const char *>(from.ptr), from.pitch,
        p->extent.width, p->extent.height, stream);
}

static std::function<cudaError_t()> setter(void * to, int value, size_t size) {
    return [=] {
        if (!is_on_device(to, size)) {
            return illegal("setting of memory");
        }
        memset(to, value, size);
        return cudaSuccess;
    };
}

cudaError_t cudaMemsetAsync(void * to, int value, size_t size, cudaStream_t stream) {
    ENTER();
    if (!is_on_device(to, size)) {
        return result(cudaErrorInvalidValue);
    }
    return result(submit(stream, { kind::COPY, nullptr, setter(to, value, size) }));
}

// -------------------------------------------------------------------------------------------------- streams and events

cudaError_t cudaStreamCreateWithFlags(cudaStream_t * out, unsigned) {
    ENTER();
    gb_emu_stream * s = new gb_emu_stream;
    s->device = current_device;
    streams.push_back(s);
    counts.live_objects++;
    *out = s;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t s) {
    guard held(lock);
    const cudaError_t error = run_until([=] { return s->queue.empty(); });
    streams.remove(s);
    counts.live_objects--;
    delete s;
    return result(error);
}

cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    ENTER();
    if (s->capturing) {
        s->broken = true;
        return result(cudaErrorStreamCaptureUnsupported);
    }
    return result(drain_stream(s));
}

cudaError_t cudaStreamQuery(cudaStream_t s) {
    ENTER();
    return result(s->queue.empty() ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t event, unsigned) {
    ENTER();
    return result(submit(s, { kind::WAIT, nullptr, nullptr, event, event->recorded }));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t * out, unsigned flags) {
    ENTER();
    gb_emu_event * e = new gb_emu_event;
    e->timed = (flags & cudaEventDisableTiming) == 0;
    counts.live_objects++;
    *out = e;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    guard held(lock);
    const cudaError_t error = run_until([=] { return event->done >= event->recorded; });
    // A queued wait for it has ended.
    for (gb_emu_stream * s : streams) {
        s->queue.remove_if([=](const step & x) { return x.what == kind::WAIT && x.event == event; });
    }
    counts.live_objects--;
    delete event;
    return result(error);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t s) {
    ENTER();
    return result(submit(s, { kind::RECORD, nullptr, nullptr, event, ++event->recorded }));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    ENTER();
    const uint64_t ticket = event->recorded;
    const cudaError_t error = run_until([=] { return event->done >= ticket; });
    return result(error != cudaSuccess ? error : devices[(size_t) current_device].sticky);
}

cudaError_t cudaEventElapsedTime(float * ms, cudaEvent_t start, cudaEvent_t end) {
    ENTER();
    if (!start->timed || !end->timed || start->recorded == 0 || end->recorded == 0) {
        return result(cudaErrorInvalidResourceHandle);
    }
    if (start->done < start->recorded || end->done < end->recorded) {
        return result(cudaErrorNotReady);
    }
    *ms = (float) ((double) (end->ns - start->ns) / 1e6);
    return cudaSuccess;
}

// -------------------------------------------------------------------------------------------------------------- graphs

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode) {
    ENTER();
    if (s->capturing) {
        return result(cudaErrorStreamCaptureUnsupported);
    }
    s->capturing = true;
    s->broken = false;
    s->captured.clear();
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t * out) {
    *out = nullptr;
    s->capturing = false; // also after an error
    ENTER();
    if (s->broken) {
        return result(cudaErrorStreamCaptureInvalidated);
    }
    gb_emu_graph * graph = new gb_emu_graph;
    for (step & what : s->captured) {
        graph->nodes.emplace_back(new gb_emu_node{ std::move(what), {}, {}, {} });
        if (graph->nodes.size() > 1) {
            graph->nodes.back()->after.push_back(graph->nodes[graph->nodes.size() - 2].get());
            graph->nodes.back()->early.push_back(false);
        }
    }
    s->captured.clear();
    counts.live_objects++;
    *out = graph;
    return cudaSuccess;
}

cudaError_t cudaGraphCreate(cudaGraph_t * out, unsigned) {
    ENTER();
    *out = new gb_emu_graph;
    counts.live_objects++;
    return cudaSuccess;
}

static std::list<gb_emu_graph_exec *> execs; // existing ones

static cudaError_t add_node(cudaGraphNode_t * out, cudaGraph_t graph, const cudaGraphNode_t * after, size_t n,
    step what, std::vector<step> child = {}) {
    std::unique_ptr<gb_emu_node> node(new gb_emu_node{ std::move(what), {}, {}, std::move(child) });
    for (size_t i = 0; i < n; i++) {
        bool found = false;
        for (const auto & x : graph->nodes) {
            found = found || x.get() == after[i];
        }
        if (!found) {
            return result(cudaErrorInvalidValue);
        }
        node->after.push_back(static_cast<gb_emu_node *>(after[i]));
        node->early.push_back(false);
    }
    *out = node.get();
    graph->nodes.push_back(std::move(node));
    return cudaSuccess;
}

static gb_emu_node * node_of(cudaGraph_t graph, cudaGraphNode_t node) {
    for (const auto & x : graph->nodes) {
        if (x.get() == node) {
            return x.get();
        }
    }
    return nullptr;
}

// True for edges that the documentation allows: `to` waits for the end of `from`, or, if both are kernels, may begin
// early.
static bool is_edge(const gb_emu_node * from, const gb_emu_node * to, const cudaGraphEdgeData & e) {
    bool plain = e.to_port == 0;
    for (unsigned char x : e.reserved) {
        plain = plain && x == 0;
    }
    const bool both = from->what.kernel && to->what.kernel && capability >= 90;
    return plain &&
           (e.type == cudaGraphDependencyTypeDefault ? e.from_port == cudaGraphKernelNodePortDefault
                                                     : e.type == cudaGraphDependencyTypeProgrammatic && both &&
                                                           (e.from_port == cudaGraphKernelNodePortProgrammatic ||
                                                               e.from_port == cudaGraphKernelNodePortLaunchCompletion));
}

cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t * from, const cudaGraphNode_t * to,
    const cudaGraphEdgeData * edges, size_t n) {
    ENTER();
    for (size_t i = 0; i < n; i++) {
        const cudaGraphEdgeData e = edges != nullptr ? edges[i] : cudaGraphEdgeData{};
        gb_emu_node * a = node_of(graph, from[i]);
        gb_emu_node * b = node_of(graph, to[i]);
        if (a == nullptr || b == nullptr || a == b || !is_edge(a, b, e)) {
            return result(cudaErrorInvalidValue);
        }
        b->after.push_back(a);
        b->early.push_back(e.type == cudaGraphDependencyTypeProgrammatic);
        b->what.dependent = b->what.dependent || b->early.back();
    }
    return cudaSuccess;
}

// The steps of a child graph, which run in the order in which they were added.
static std::vector<step> steps_of(const gb_emu_graph * graph) {
    std::vector<step> steps;
    for (const auto & node : graph->nodes) {
        steps.push_back(node->what);
    }
    return steps;
}

cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t * node, cudaGraph_t graph, const cudaGraphNode_t * after,
    size_t n, cudaGraph_t child) {
    ENTER();
    return add_node(node, graph, after, n, { kind::GRAPH }, steps_of(child));
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t * out, cudaGraph_t graph, unsigned long long) {
    ENTER();
    auto work = std::make_shared<std::vector<gb_emu_work>>();
    for (const auto & node : graph->nodes) {
        work->push_back({ node.get(), node->what, {}, node->early, node->child });
        for (const gb_emu_node * before : node->after) {
            size_t i = 0;
            while (graph->nodes[i].get() != before) {
                i++;
            }
            work->back().after.push_back(i);
        }
    }
    *out = new gb_emu_graph_exec{ work, graph };
    execs.push_back(*out);
    counts.live_objects++;
    return cudaSuccess;
}

// Finds the node of an executable graph by its handle in the graph that it was made from. Earlier launches keep their
// values. After a failure the graph must not be launched: some nodes are new and some old.
static gb_emu_work * work_of(cudaGraphExec_t exec, cudaGraphNode_t node, kind what) {
    if (exec->work.use_count() > 1) {
        exec->work = std::make_shared<std::vector<gb_emu_work>>(*exec->work);
    }
    for (gb_emu_work & w : *exec->work) {
        if (exec->of != nullptr && w.node == node && w.what.what == what) {
            return &w;
        }
    }
    exec->broken = true;
    (void) result(cudaErrorInvalidValue);
    return nullptr;
}

#define ENTER_UPDATE(exec)                       \
    guard held(lock);                            \
    const cudaError_t entered = enter(__func__); \
    if (entered != cudaSuccess) {                \
        (exec)->broken = true;                   \
        return result(entered);                  \
    }                                            \
    (void) 0

cudaError_t cudaGraphExecChildGraphNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node, cudaGraph_t child) {
    ENTER_UPDATE(exec);
    gb_emu_work * w = work_of(exec, node, kind::GRAPH);
    const std::vector<step> steps = steps_of(child);
    bool same = w != nullptr && w->child.size() == steps.size();
    for (size_t i = 0; same && i < steps.size(); i++) {
        same = w->child[i].what == steps[i].what && w->child[i].function == steps[i].function;
    }
    if (!same) {
        exec->broken = true;
        return result(cudaErrorGraphExecUpdateFailure);
    }
    w->child = steps;
    return cudaSuccess;
}

static cudaError_t run_work(const std::vector<gb_emu_work> & work);

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s) {
    ENTER();
    if (exec->broken) {
        fprintf(stderr, "emulation: an executable graph is launched that could not be updated\n");
        return result(cudaErrorInvalidValue);
    }
    counts.graph_launches++;
    counts.graph_nodes += exec->work->size();
    const auto work = exec->work;
    return result(submit(s, { kind::GRAPH, nullptr, [=] { return run_work(*work); } }));
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    guard held(lock);
    for (gb_emu_graph_exec * exec : execs) {
        exec->of = exec->of == graph ? nullptr : exec->of;
    }
    counts.live_objects--;
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    guard held(lock);
    execs.remove(exec);
    counts.live_objects--;
    delete exec;
    return cudaSuccess;
}

// ------------------------------------------------------------------------------------------------------------- kernels

void gb_prefetch(const void * p, int line) {
    gb_emu_at("gb_prefetch", line);
    const char * at = static_cast<const char *>(p);
    auto m = memory.upper_bound(at);
    if (m == memory.begin() || at >= (--m)->first + m->second.size) {
        gb_emu_fail_block("a prefetch from outside of all allocations");
    }
    counts.prefetches++;
}

// Protects the memory of all devices while early blocks run. An access is made and then fails the block.
namespace {

struct {
    bool on = false;
    struct sigaction before;
} guarding;

void protect(int rights) {
    for (const auto & m : memory) {
        if (m.second.device >= 0) {
            (void) mprotect(const_cast<char *>(m.first), whole_pages(m.second.size), rights);
        }
    }
}

std::string place_of([[maybe_unused]] void * pc) {
#if defined(__SANITIZE_ADDRESS__)
    char text[512] = "";
    __sanitizer_symbolize_pc(pc, "%f, %s:%l", text, sizeof(text));
    return text;
#else
    return "a place that only the address sanitizer's build can name";
#endif
}

void on_fault(int, siginfo_t * info, void * context) {
    const char * at = static_cast<const char *>(info->si_addr);
    auto m = memory.upper_bound(at);
    if (guarding.on && m != memory.begin() && (--m)->second.device >= 0 &&
        at < m->first + whole_pages(m->second.size)) {
        void * pc = nullptr;
#if defined(__x86_64__)
        pc = reinterpret_cast<void *>(static_cast<ucontext_t *>(context)->uc_mcontext.gregs[REG_RIP] + 1);
#else
        (void) context;
#endif
        guarding.on = false;
        protect(PROT_READ | PROT_WRITE);
        gb_emu_note_touch("a thread that has not waited for earlier kernels touches memory of the device: " +
                          place_of(pc));
        return;
    }
    sigaction(SIGSEGV, &guarding.before, nullptr); // not a protected address: the signal comes again
}

void start_guarding() {
    struct sigaction ours = {};
    ours.sa_sigaction = on_fault;
    ours.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &ours, &guarding.before);
    guarding.on = true;
    protect(PROT_NONE);
}

void stop_guarding() {
    if (guarding.on) {
        guarding.on = false;
        protect(PROT_READ | PROT_WRITE);
    }
    sigaction(SIGSEGV, &guarding.before, nullptr);
}

// A kernel that runs, all on one host thread.
class grid_run {
  public:
    grid_run(const launch & what_, bool dependent_) : what(what_), dependent(dependent_) {
        for (const std::vector<parameter> & value : what.values) {
            pointers.push_back(const_cast<parameter *>(value.data()));
        }
        body = [this] { what.k->call(what.function, pointers.data()); };
    }

    // Runs some blocks of a dependent kernel up to their wait.
    cudaError_t begin_some() {
        const uint64_t n = size(), some = 1 + order.below(std::min<uint64_t>(n, 3));
        cudaError_t error = cudaSuccess;
        start_guarding();
        for (uint64_t i = 0; i < some && error == cudaSuccess; i++) {
            const uint64_t b = order.below(n);
            if (begun.count(b) == 0) {
                begun[b].reset(new gb_emu_running(block(b), body));
                error = check(b, begun[b]->begin(order));
            }
        }
        stop_guarding();
        return error;
    }

    // Runs all blocks to their ends. next: a dependent kernel, of which some blocks begin at a drawn time.
    cudaError_t run(grid_run * next) {
        if (kernel_fails_after >= 0 && kernel_fails_after-- == 0) {
            return cudaErrorIllegalAddress;
        }
        counts.launches++;
        counts.dependent += dependent;
        launches[what.k->name]++;
        const uint64_t n = size(), when = next != nullptr ? order.below(n + 1) : n + 1;
        std::vector<uint64_t> blocks(n);
        for (uint64_t i = 0; i < n; i++) {
            blocks[i] = i;
        }
        cudaError_t error = dependent && begun.empty() ? begin_some() : cudaSuccess;
        for (uint64_t i = 0; i <= n && error == cudaSuccess; i++) {
            if (i == when) {
                error = next->begin_some();
                counts.early_blocks += next->begun.size();
            }
            if (i < n && error == cudaSuccess) {
                std::swap(blocks[i], blocks[i + order.below(n - i)]);
                error = finish(blocks[i]);
            }
        }
        return error;
    }

  private:
    uint64_t size() const { return (uint64_t) what.grid.x * what.grid.y * what.grid.z; }

    gb_emu_block block(uint64_t b) const {
        const dim3 & grid = what.grid;
        return { { (unsigned) (b % grid.x), (unsigned) (b / grid.x % grid.y), (unsigned) (b / grid.x / grid.y) }, grid,
            what.block, what.shared, dependent };
    }

    cudaError_t finish(uint64_t b) {
        std::unique_ptr<gb_emu_running> running;
        auto found = begun.find(b);
        if (found != begun.end()) {
            running = std::move(found->second);
        } else {
            running.reset(new gb_emu_running(block(b), body));
        }
        return check(b, running->finish(order));
    }

    cudaError_t check(uint64_t b, const std::string & wrong) const {
        if (wrong.empty()) {
            return cudaSuccess;
        }
        const uint3 at = block(b).index;
        fprintf(stderr, "emulation: kernel %s, block (%u, %u, %u): %s\n", what.k->name.c_str(), at.x, at.y, at.z,
            wrong.c_str());
        return cudaErrorLaunchFailure;
    }

    const launch & what;
    bool dependent;
    std::vector<void *> pointers;
    std::function<void()> body;
    std::map<uint64_t, std::unique_ptr<gb_emu_running>> begun; // NULL: done
};

typedef std::unique_ptr<grid_run> running_grid;

running_grid grid_of(const step & s) { return running_grid(new grid_run(*s.kernel, s.dependent)); }

// Runs a kernel, and those after it that begin while the previous one runs. A draw decides whether a kernel does so.
cudaError_t run_kernels(gb_emu_stream & s, const step & first) {
    step at_step = first;
    running_grid at = grid_of(at_step);
    for (;;) {
        step next_step;
        running_grid next;
        if (!s.queue.empty() && s.queue.front().kernel && s.queue.front().dependent && order.below(4) != 0) {
            next_step = take(s);
            next = grid_of(next_step);
        }
        const cudaError_t error = at->run(next.get());
        if (error != cudaSuccess || !next) {
            return error;
        }
        at_step = std::move(next_step);
        at = std::move(next);
    }
}

} // namespace

// Nodes that can begin. Their dependencies are done, except for the node `running` if its edge to them is an early one.
static std::vector<size_t> able_nodes(const std::vector<gb_emu_work> & work, const std::vector<bool> & done,
    size_t running) {
    std::vector<size_t> able;
    for (size_t i = 0; i < work.size(); i++) {
        bool ready = !done[i] && i != running, early = running == work.size();
        for (size_t k = 0; k < work[i].after.size(); k++) {
            const size_t before = work[i].after[k];
            early = early || (before == running && work[i].early[k]);
            ready = ready && (done[before] || (before == running && work[i].early[k]));
        }
        if (ready && early) {
            able.push_back(i);
        }
    }
    return able;
}

// Runs the nodes in a random order that the dependencies allow.
static cudaError_t run_work(const std::vector<gb_emu_work> & work) {
    std::vector<bool> done(work.size());
    running_grid at;
    size_t w = 0;
    for (size_t n = 0; n < work.size(); n++) {
        if (!at) {
            const std::vector<size_t> able = able_nodes(work, done, work.size());
            w = able[order.below(able.size())];
        }
        running_grid next;
        size_t next_w = 0;
        cudaError_t error = cudaSuccess;
        if (work[w].what.kernel) {
            const std::vector<size_t> able = able_nodes(work, done, w);
            if (!able.empty() && order.below(4) != 0) {
                next_w = able[order.below(able.size())];
                next = grid_of(work[next_w].what);
            }
            at = at ? std::move(at) : grid_of(work[w].what);
            error = at->run(next.get());
        } else if (work[w].what.run) {
            error = work[w].what.run();
        }
        for (const step & x : work[w].child) {
            error = error != cudaSuccess ? error : x.kernel ? grid_of(x)->run(nullptr) : x.run();
        }
        if (error != cudaSuccess) {
            return error;
        }
        done[w] = true;
        at = std::move(next);
        w = next_w;
    }
    return cudaSuccess;
}

static bool is_launchable(const kernel & k, dim3 grid, dim3 block, size_t shared) {
    enum { FREE_SHARED = 48 * 1024 };
    return shared <= std::max<size_t>(FREE_SHARED, k.shared[current_device]) && grid.x > 0 && grid.y > 0 &&
           grid.z > 0 && grid.x <= 0x7fffffffu && grid.y <= 65535 && grid.z <= 65535 && block.x > 0 && block.y > 0 &&
           block.z > 0 && block.z <= 64 && (uint64_t) block.x * block.y * block.z <= 1024;
}

void gb_emu_know_kernel(const char * name, const void * function, std::vector<size_t> sizes, gb_emu_caller call) {
    guard held(lock);
    kernels.insert({ function, kernel{ name, std::move(sizes), call, {} } });
}

// A launch as a step, with the current values of its parameters. Returns an error if it is not possible.
static cudaError_t prepare_kernel(const void * function, dim3 grid, dim3 block, void ** values, size_t shared,
    step & out) {
    auto found = kernels.find(function);
    if (found == kernels.end()) {
        return cudaErrorInvalidValue;
    }
    const kernel & k = found->second;
    if (!is_launchable(k, grid, block, shared)) {
        fprintf(stderr, "emulation: kernel %s cannot have %u x %u x %u blocks of %u x %u x %u threads with %zu bytes\n",
            k.name.c_str(), grid.x, grid.y, grid.z, block.x, block.y, block.z, shared);
        return cudaErrorInvalidConfiguration;
    }
    auto kept = std::make_shared<launch>(launch{ &k, grid, block, shared, function, {} });
    for (size_t i = 0; i < k.sizes.size(); i++) {
        kept->values.emplace_back((k.sizes[i] + sizeof(parameter) - 1) / sizeof(parameter));
        memcpy(static_cast<void *>(kept->values.back().data()), values[i], k.sizes[i]);
    }
    out.what = kind::KERNEL;
    out.function = function;
    out.kernel = kept;
    return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void * function, dim3 grid, dim3 block, void ** values, size_t shared,
    cudaStream_t stream) {
    ENTER();
    step what;
    const cudaError_t error = prepare_kernel(function, grid, block, values, shared, what);
    return result(error != cudaSuccess ? error : submit(stream, std::move(what)));
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t * c, const void * function, void ** values) {
    guard held(lock);
    const cudaError_t entered = enter("cudaLaunchKernel"); // one name for both forms of launch
    if (entered != cudaSuccess) {
        return result(entered);
    }
    step what;
    cudaError_t error = prepare_kernel(function, c->gridDim, c->blockDim, values, c->dynamicSmemBytes, what);
    for (unsigned i = 0; i < c->numAttrs; i++) {
        if (c->attrs[i].id != cudaLaunchAttributeProgrammaticStreamSerialization || capability < 90) {
            error = cudaErrorNotSupported; // older devices refuse such launches
        }
        what.dependent = what.dependent || c->attrs[i].val.programmaticStreamSerializationAllowed != 0;
    }
    return result(error != cudaSuccess ? error : submit(c->stream, std::move(what)));
}

static cudaError_t prepare_node(const cudaKernelNodeParams * p, step & out) {
    return prepare_kernel(p->func, p->gridDim, p->blockDim, p->kernelParams, p->sharedMemBytes, out);
}

static cudaError_t prepare_node(const cudaMemsetParams * p, step & out) {
    const size_t size = p->elementSize * p->width;
    if (p->height != 1 || p->value != 0 || !is_on_device(p->dst, size)) {
        return cudaErrorInvalidValue;
    }
    out = { kind::CLEAR, nullptr, setter(p->dst, 0, size) };
    return cudaSuccess;
}

static cudaError_t prepare_copy(void * to, const void * from, size_t size, step & out) {
    if (size == 0 || !is_on_device(to, size) || !is_on_device(from, size)) {
        return cudaErrorInvalidValue;
    }
    out = { kind::COPY, nullptr, [=] {
               if (!is_on_device(to, size) || !is_on_device(from, size)) {
                   return illegal("a copy of memory");
               }
               memmove(to, from, size);
               return cudaSuccess;
           } };
    return cudaSuccess;
}

cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t * node, cudaGraph_t graph, const cudaGraphNode_t * after, size_t n,
    const cudaKernelNodeParams * p) {
    ENTER();
    step what;
    const cudaError_t error = prepare_node(p, what);
    return error != cudaSuccess ? result(error) : add_node(node, graph, after, n, std::move(what));
}

cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t * node, cudaGraph_t graph, const cudaGraphNode_t * after, size_t n,
    const cudaMemsetParams * p) {
    ENTER();
    step what;
    const cudaError_t error = prepare_node(p, what);
    return error != cudaSuccess ? result(error) : add_node(node, graph, after, n, std::move(what));
}

cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t * node, cudaGraph_t graph, const cudaGraphNode_t * after, size_t n,
    void * to, const void * from, size_t size, cudaMemcpyKind) {
    ENTER();
    step what;
    const cudaError_t error = prepare_copy(to, from, size, what);
    return error != cudaSuccess ? result(error) : add_node(node, graph, after, n, std::move(what));
}

static cudaError_t set_work(cudaGraphExec_t exec, cudaGraphNode_t node, cudaError_t error, step what) {
    gb_emu_work * w = error == cudaSuccess ? work_of(exec, node, what.what) : nullptr;
    if (w == nullptr) {
        exec->broken = true;
        return result(error != cudaSuccess ? error : cudaErrorInvalidValue);
    }
    counts.updates++;
    what.dependent = w->what.dependent; // its edges decide
    w->what = std::move(what);
    return cudaSuccess;
}

cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
    const cudaKernelNodeParams * p) {
    ENTER_UPDATE(exec);
    step what;
    const cudaError_t error = prepare_node(p, what);
    return set_work(exec, node, error, std::move(what));
}

cudaError_t cudaGraphExecMemsetNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node, const cudaMemsetParams * p) {
    ENTER_UPDATE(exec);
    step what;
    const cudaError_t error = prepare_node(p, what);
    return set_work(exec, node, error, std::move(what));
}

cudaError_t cudaGraphExecMemcpyNodeSetParams1D(cudaGraphExec_t exec, cudaGraphNode_t node, void * to, const void * from,
    size_t size, cudaMemcpyKind) {
    ENTER_UPDATE(exec);
    step what;
    const cudaError_t error = prepare_copy(to, from, size, what);
    return set_work(exec, node, error, std::move(what));
}

int gb_emu_queue(void * stream, void (*run)(const void * argument), const void * argument, size_t size) {
    guard held(lock);
    const cudaError_t entered = enter(__func__);
    if (entered != cudaSuccess) {
        return result(entered);
    }
    const char * bytes = static_cast<const char *>(argument);
    const std::vector<char> copy(bytes, bytes + size);
    return result(submit(static_cast<cudaStream_t>(stream), { kind::KERNEL, reinterpret_cast<const void *>(run), [=] {
                                                                 run(copy.data());
                                                                 return cudaSuccess;
                                                             } }));
}

// ------------------------------------------------------------------------------------------------------- for the tests

void gb_emu_set_devices(int n, size_t bytes_each) {
    guard held(lock);
    devices.assign((size_t) n, device());
    for (device & d : devices) {
        d.total = bytes_each;
    }
    current_device = 0;
}

void gb_emu_set_capability(int major, int minor) {
    capability = major * 10 + minor;
    code = capability;
}

void gb_emu_set_code(int major, int minor) { code = major * 10 + minor; }

int gb_emu_code(void) { return code; }

void gb_emu_set_hopper_code(int on) { hopper_code = on != 0; }

bool gb_emu_has_hopper_code(void) { return hopper_code && code == 90 && capability == 90; }

void gb_needs_hopper(void) {
    if (!gb_emu_has_hopper_code()) {
        gb_emu_fail_block("there is no code for compute capability 9.0a");
    }
}

void gb_emu_set_neighbour(int on) {
    guard held(lock);
    neighbour = on != 0;
}

void gb_emu_set_pitch_max(size_t bytes) {
    guard held(lock);
    pitch_max = bytes;
}

int gb_emu_has_context(int device) {
    guard held(lock);
    return devices[(size_t) device].context;
}

int gb_emu_has_peer(int device, int peer) {
    guard held(lock);
    return (int) (devices[(size_t) device].peers >> peer & 1);
}

void gb_emu_set_seed(uint64_t seed) {
    guard held(lock);
    order.state = seed;
}

void gb_emu_fail(const char * function, int after, int error) {
    guard held(lock);
    failing = function ? function : "";
    failing_after = after;
    failing_with = (cudaError_t) error;
}

void gb_emu_fail_kernel(int after) {
    guard held(lock);
    kernel_fails_after = after;
}

void gb_emu_reset(void) {
    guard held(lock);
    for (device & d : devices) {
        d.sticky = cudaSuccess;
    }
    failing.clear();
    kernel_fails_after = -1;
    last = cudaSuccess;
}

uint64_t gb_emu_launches_of(const char * part) {
    guard held(lock);
    uint64_t n = 0;
    for (const auto & l : launches) {
        n += l.first.find(part) != std::string::npos ? l.second : 0;
    }
    return n;
}

gb_emu_counts gb_emu_count(void) {
    guard held(lock);
    return counts;
}

namespace {
const bool configured = [] {
    const char * seed = getenv("GB_EMU_SEED");
    const char * capability = getenv("GB_EMU_CAPABILITY");
    if (seed) {
        order.state = strtoull(seed, nullptr, 10);
    }
    int major = 0, minor = 0;
    if (capability && sscanf(capability, "%d.%d", &major, &minor) == 2) {
        gb_emu_set_capability(major, minor);
    }
    return true;
}();
} // namespace
