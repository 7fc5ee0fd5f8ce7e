// runtime.cpp - the runtime of the emulation: devices, memory, streams, events, graphs.
//
// Queued work is a list of steps a stream. Whoever must wait runs steps, of streams drawn at random among those that
// can go on, until what it waits for is done; nothing runs otherwise. One lock around everything: kernels run one at a
// time, on the thread that waits.
//
// Host memory that is not pinned is read when a copy is queued, and written before the call returns, as the
// documentation of the real one says.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <chrono>
#include <list>
#include <map>
#include <memory>
#include <mutex>

#include "block.h"
#include "hopper.h"

// kernels' names, which structures of the runtime have, too
#undef gridDim
#undef blockDim

namespace {

constexpr unsigned char unwritten = 0xff; // NaN

enum class kind { KERNEL, COPY, CLEAR, RECORD, WAIT, GRAPH };

struct step {
    enum kind                    what;
    const void *                 function = nullptr; // of a kernel, to compare graphs
    std::function<cudaError_t()> run;
    gb_emu_event *               event  = nullptr;
    uint64_t                     ticket = 0; // of the event: record number that is made or waited for
};

struct device {
    size_t      total = (size_t) 1 << 30, used = 0;
    cudaError_t sticky  = cudaSuccess;
    bool        context = false; // the primary context is there
    unsigned    peers   = 0;     // devices whose memory it may follow: a bit each
};

struct kernel {
    std::string         name;
    std::vector<size_t> sizes; // of its parameters
    gb_emu_caller       call;
    size_t              shared[16]; // what a block may ask for, by device; 0: what nobody has to ask for
};

struct alignas(128) parameter { // of a kernel, or a part: aligned as any may be
    unsigned char bytes[128];
};

struct allocation {
    size_t size;
    int    device; // -1: host
    bool   registered;
    bool   read_only; // registered so
};

std::recursive_mutex               lock;
std::vector<device>                devices(2);
int                                capability = 90, code = 90;
bool                               hopper_code = true; // beside it, where it is for 9.0
std::map<const char *, allocation> memory;
std::map<const void *, kernel>     kernels;
std::list<gb_emu_stream *>         streams;
gb_emu_random                      order{ 1 };
gb_emu_counts                      counts;
std::map<std::string, uint64_t>    launches; // by name of the kernel
std::string                        failing;
int                                failing_after;
cudaError_t                        failing_with;
int                                kernel_fails_after = -1;
bool                               neighbour;
size_t                             pitch_max = 0x7fffffff;
thread_local int                   current_device;
thread_local cudaError_t           last = cudaSuccess;

} // namespace

struct gb_emu_stream {
    int               device;
    std::list<step>   queue;
    bool              capturing = false;
    bool              broken    = false; // the capture
    std::vector<step> captured;
};
struct gb_emu_event {
    uint64_t recorded = 0, done = 0; // record numbers: queued, reached
    int64_t  ns    = 0;
    bool     timed = false;
};
struct gb_emu_node {
    step                       what;
    std::vector<gb_emu_node *> after;
    std::vector<step>          child; // what a library queued
};
struct gb_emu_graph {
    std::vector<std::unique_ptr<gb_emu_node>> nodes;
};
struct gb_emu_work { // a node of an executable graph
    const gb_emu_node * node;
    step                what;
    std::vector<size_t> after;
    std::vector<step>   child;
};
struct gb_emu_graph_exec {
    std::shared_ptr<std::vector<gb_emu_work>> work; // shared with launches that are on their way
    gb_emu_graph *                            of;   // NULL: destroyed, and with it the names of the nodes
    bool                                      broken = false;
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

// Somebody else in the process, another library, synchronizes the device.
void let_neighbour_synchronize() {
    for (gb_emu_stream * s : streams) {
        if (s->device == current_device && s->capturing) {
            s->broken = true;
            counts.neighbour_errors++;
        }
    }
}

// Every call of the interface that needs a device begins so: it makes the primary context. Injected errors, and those
// of the device that stay.
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
    guard             held(lock);                \
    const cudaError_t entered = enter(__func__); \
    if (entered != cudaSuccess) {                \
        return result(entered);                  \
    }                                            \
    (void) 0

// The allocation that has all of the bytes, or NULL.
const allocation * find(const void * p, size_t size) {
    const char * c     = static_cast<const char *>(p);
    auto         after = memory.upper_bound(c);
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

void run_step(gb_emu_stream & s) {
    step next = std::move(s.queue.front());
    s.queue.pop_front();
    device & d = devices[(size_t) s.device];
    if (next.what == kind::RECORD) {
        next.event->done = next.ticket;
        next.event->ns   = now();
    } else if (next.run && d.sticky == cudaSuccess) {
        d.sticky = next.run();
    }
}

// Work on memory that was given back while it was queued.
cudaError_t illegal(const char * what) {
    fprintf(stderr, "emulation: %s, which was freed or unregistered before that was done\n", what);
    return cudaErrorIllegalAddress;
}

// Runs until `done`. A queue that waits for what nobody will do is our caller's bug, or ours.
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
    last             = stays ? devices[(size_t) current_device].sticky : cudaSuccess;
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
    current_device                   = device;
    devices[(size_t) device].context = true; // since CUDA 12
    return cudaSuccess;
}

static int primary_context_state(int device, unsigned * flags, int * active) {
    guard held(lock);
    if (device < 0 || device >= (int) devices.size()) {
        return 101;
    }
    *flags  = 0;
    *active = devices[(size_t) device].context;
    return 0;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char * symbol, void ** function, unsigned, unsigned long long,
    enum cudaDriverEntryPointQueryResult * status) {
    *function = strcmp(symbol, "cuDevicePrimaryCtxGetState") == 0 ? reinterpret_cast<void *>(primary_context_state)
                : strcmp(symbol, "cuTensorMapEncodeTiled") == 0   ? reinterpret_cast<void *>(gb_emu_encode_tiled)
                                                                  : nullptr;
    *status   = *function != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

// Makes no context.
cudaError_t cudaGetDeviceProperties(cudaDeviceProp * p, int id) {
    guard held(lock);
    if (id < 0 || id >= (int) devices.size()) {
        return result(cudaErrorInvalidDevice);
    }
    *p = cudaDeviceProp{};
    snprintf(p->name, sizeof(p->name), "Emulated device (for tests only)");
    p->major                  = capability / 10;
    p->minor                  = capability % 10;
    p->multiProcessorCount    = 4;
    p->memPitch               = pitch_max;
    p->l2CacheSize            = 1 << 18;
    p->totalGlobalMem         = devices[(size_t) id].total;
    p->sharedMemPerBlock      = 48 * 1024;
    p->sharedMemPerBlockOptin = capability >= 90 ? 227 * 1024 : capability >= 80 ? 99 * 1024 : 64 * 1024;
    return cudaSuccess;
}

// Code for an older device is compiled again by the driver; for a newer one it is none.
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
    counts.shared_lowered += (size_t) value < shared; // under the feet of who asked for more
    shared = (size_t) value;
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int * can, int a, int b) {
    guard held(lock);
    *can = a != b;
    return cudaSuccess;
}

// Makes the peer's context, too.
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
    ENTER();
    if (peer < 0 || peer >= (int) devices.size() || peer == current_device) {
        return result(cudaErrorInvalidDevice);
    }
    devices[(size_t) peer].context = true;
    unsigned & peers               = devices[(size_t) current_device].peers;
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
    *total           = d.total;
    *free_bytes      = d.total - d.used;
    return cudaSuccess;
}

static cudaError_t allocate(void ** out, size_t size, int id) {
    device * d = id >= 0 ? &devices[(size_t) id] : nullptr;
    if (d && size > d->total - d->used) {
        return result(cudaErrorMemoryAllocation);
    }
    char * p = static_cast<char *>(aligned_alloc(512, (size + 511) & ~(size_t) 511));
    if (p == nullptr) {
        return result(cudaErrorMemoryAllocation);
    }
    memset(p, unwritten, size);
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
    const int         id    = a->device;
    const cudaError_t error = drain_device(id);
    const cudaError_t freed = release(p, true); // also on a broken device: what a test sees is no leak of ours
    return result(devices[(size_t) id].sticky != cudaSuccess ? devices[(size_t) id].sticky
                  : error != cudaSuccess                     ? error
                                                             : freed);
}

cudaError_t cudaHostAlloc(void ** out, size_t size, unsigned) {
    ENTER();
    return allocate(out, size, -1);
}

// Waits for nothing: the documentation does not say that it does.
cudaError_t cudaFreeHost(void * p) {
    guard held(lock);
    devices[(size_t) current_device].context = true;
    return release(p, false);
}

// Whether all pages of it may be written, as the operating system has them.
static bool is_writable(const void * p, size_t size) {
    FILE * maps = fopen("/proc/self/maps", "r");
    if (maps == nullptr) {
        return true;
    }
    const unsigned long first = (unsigned long) p, last = first + size;
    unsigned long       begin, end;
    char                rights[5];
    bool                writable = true;
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

// A copy of rows; a plain one has one row. What is in pageable host memory is read now, or written before this returns.
static cudaError_t copy_rows(char * to, size_t to_pitch, const char * from, size_t from_pitch, size_t width,
    size_t height, cudaStream_t stream) {
    if (width == 0 || height == 0) {
        return cudaSuccess;
    }
    const size_t       to_span = to_pitch * (height - 1) + width, from_span = from_pitch * (height - 1) + width;
    const allocation * to_a   = find(to, to_span);
    const allocation * from_a = find(from, from_span);
    if (to_a == nullptr && find(to, 1) != nullptr) {
        return result(cudaErrorInvalidValue); // runs out of the allocation that it begins in
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
        s.run       = [=] { return move(staged->data(), from_pitch); };
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
    const allocation *    a = find(to.ptr, 1), *b = find(from.ptr, 1);
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
    s->device         = current_device;
    streams.push_back(s);
    counts.live_objects++;
    *out = s;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t s) {
    guard             held(lock);
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
    e->timed         = (flags & cudaEventDisableTiming) == 0;
    counts.live_objects++;
    *out = e;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    guard             held(lock);
    const cudaError_t error = run_until([=] { return event->done >= event->recorded; });
    // a wait for it may still be queued: it is over
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
    const uint64_t    ticket = event->recorded;
    const cudaError_t error  = run_until([=] { return event->done >= ticket; });
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
    s->broken    = false;
    s->captured.clear();
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t * out) {
    *out         = nullptr;
    s->capturing = false; // whatever happens
    ENTER();
    if (s->broken) {
        return result(cudaErrorStreamCaptureInvalidated);
    }
    gb_emu_graph * graph = new gb_emu_graph;
    for (step & what : s->captured) {
        graph->nodes.emplace_back(new gb_emu_node{ std::move(what), {}, {} });
        if (graph->nodes.size() > 1) {
            graph->nodes.back()->after.push_back(graph->nodes[graph->nodes.size() - 2].get());
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

static std::list<gb_emu_graph_exec *> execs; // that exist

static cudaError_t add_node(cudaGraphNode_t * out, cudaGraph_t graph, const cudaGraphNode_t * after, size_t n,
    step what, std::vector<step> child = {}) {
    std::unique_ptr<gb_emu_node> node(new gb_emu_node{ std::move(what), {}, std::move(child) });
    for (size_t i = 0; i < n; i++) {
        bool found = false;
        for (const auto & x : graph->nodes) {
            found = found || x.get() == after[i];
        }
        if (!found) {
            return result(cudaErrorInvalidValue);
        }
        node->after.push_back(static_cast<gb_emu_node *>(after[i]));
    }
    *out = node.get();
    graph->nodes.push_back(std::move(node));
    return cudaSuccess;
}

// Child graphs run in their order.
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
        work->push_back({ node.get(), node->what, {}, node->child });
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

// The node of an executable graph by the name it has in the graph that this was made from. What is launched already
// stays as it is. After a failure nobody may launch it: some nodes are new and some old.
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
    guard             held(lock);                \
    const cudaError_t entered = enter(__func__); \
    if (entered != cudaSuccess) {                \
        (exec)->broken = true;                   \
        return result(entered);                  \
    }                                            \
    (void) 0

cudaError_t cudaGraphExecChildGraphNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node, cudaGraph_t child) {
    ENTER_UPDATE(exec);
    gb_emu_work *           w     = work_of(exec, node, kind::GRAPH);
    const std::vector<step> steps = steps_of(child);
    bool                    same  = w != nullptr && w->child.size() == steps.size();
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

// In an order drawn among those that the nodes' dependencies allow.
static cudaError_t run_work(const std::vector<gb_emu_work> & work) {
    std::vector<bool> done(work.size());
    for (size_t n = 0; n < work.size(); n++) {
        std::vector<size_t> able;
        for (size_t i = 0; i < work.size(); i++) {
            bool ready = !done[i];
            for (size_t before : work[i].after) {
                ready = ready && done[before];
            }
            if (ready) {
                able.push_back(i);
            }
        }
        const gb_emu_work & w     = work[able[order.below(able.size())]];
        cudaError_t         error = w.what.run ? w.what.run() : cudaSuccess;
        for (const step & x : w.child) {
            error = error == cudaSuccess ? x.run() : error;
        }
        if (error != cudaSuccess) {
            return error;
        }
        done[(size_t) (&w - work.data())] = true;
    }
    return cudaSuccess;
}

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

static cudaError_t run_kernel(const char * name, dim3 grid, dim3 block, size_t shared,
    const std::function<void()> & body) {
    const uint64_t        n = (uint64_t) grid.x * grid.y * grid.z;
    std::vector<uint64_t> blocks(n);
    for (uint64_t i = 0; i < n; i++) {
        blocks[i] = i;
    }
    if (kernel_fails_after >= 0 && kernel_fails_after-- == 0) {
        return cudaErrorIllegalAddress;
    }
    for (uint64_t i = 0; i < n; i++) {
        std::swap(blocks[i], blocks[i + order.below(n - i)]);
        const uint64_t     b     = blocks[i];
        const gb_emu_block what  = { { (unsigned) (b % grid.x), (unsigned) (b / grid.x % grid.y),
                                         (unsigned) (b / grid.x / grid.y) },
            grid, block, shared };
        const std::string  wrong = gb_emu_run_block(what, body, order);
        if (!wrong.empty()) {
            fprintf(stderr, "emulation: kernel %s, block (%u, %u, %u): %s\n", name, what.index.x, what.index.y,
                what.index.z, wrong.c_str());
            return cudaErrorLaunchFailure;
        }
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

// A launch as something that can be done: the values of its parameters are taken now. An error: it cannot be.
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
    auto kept = std::make_shared<std::vector<std::vector<parameter>>>();
    for (size_t i = 0; i < k.sizes.size(); i++) {
        kept->emplace_back((k.sizes[i] + sizeof(parameter) - 1) / sizeof(parameter));
        memcpy(static_cast<void *>(kept->back().data()), values[i], k.sizes[i]);
    }
    out.what     = kind::KERNEL;
    out.function = function;
    out.run      = [=, &k] {
        std::vector<void *> pointers;
        for (std::vector<parameter> & value : *kept) {
            pointers.push_back(value.data());
        }
        counts.launches++;
        launches[k.name]++;
        return run_kernel(k.name.c_str(), grid, block, shared, [&] { k.call(function, pointers.data()); });
    };
    return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void * function, dim3 grid, dim3 block, void ** values, size_t shared,
    cudaStream_t stream) {
    ENTER();
    step              what;
    const cudaError_t error = prepare_kernel(function, grid, block, values, shared, what);
    return result(error != cudaSuccess ? error : submit(stream, std::move(what)));
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
    step              what;
    const cudaError_t error = prepare_node(p, what);
    return error != cudaSuccess ? result(error) : add_node(node, graph, after, n, std::move(what));
}

cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t * node, cudaGraph_t graph, const cudaGraphNode_t * after, size_t n,
    const cudaMemsetParams * p) {
    ENTER();
    step              what;
    const cudaError_t error = prepare_node(p, what);
    return error != cudaSuccess ? result(error) : add_node(node, graph, after, n, std::move(what));
}

cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t * node, cudaGraph_t graph, const cudaGraphNode_t * after, size_t n,
    void * to, const void * from, size_t size, cudaMemcpyKind) {
    ENTER();
    step              what;
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
    w->what = std::move(what);
    return cudaSuccess;
}

cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
    const cudaKernelNodeParams * p) {
    ENTER_UPDATE(exec);
    step              what;
    const cudaError_t error = prepare_node(p, what);
    return set_work(exec, node, error, std::move(what));
}

cudaError_t cudaGraphExecMemsetNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node, const cudaMemsetParams * p) {
    ENTER_UPDATE(exec);
    step              what;
    const cudaError_t error = prepare_node(p, what);
    return set_work(exec, node, error, std::move(what));
}

cudaError_t cudaGraphExecMemcpyNodeSetParams1D(cudaGraphExec_t exec, cudaGraphNode_t node, void * to, const void * from,
    size_t size, cudaMemcpyKind) {
    ENTER_UPDATE(exec);
    step              what;
    const cudaError_t error = prepare_copy(to, from, size, what);
    return set_work(exec, node, error, std::move(what));
}

int gb_emu_queue(void * stream, void (*run)(const void * argument), const void * argument, size_t size) {
    guard             held(lock);
    const cudaError_t entered = enter(__func__);
    if (entered != cudaSuccess) {
        return result(entered);
    }
    const char *            bytes = static_cast<const char *>(argument);
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
    code       = capability;
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
    failing       = function ? function : "";
    failing_after = after;
    failing_with  = (cudaError_t) error;
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
    last               = cudaSuccess;
}

uint64_t gb_emu_launches_of(const char * part) {
    guard    held(lock);
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
const bool seeded = [] {
    const char * seed = getenv("GB_EMU_SEED");
    if (seed) {
        order.state = strtoull(seed, nullptr, 10);
    }
    return true;
}();
} // namespace
