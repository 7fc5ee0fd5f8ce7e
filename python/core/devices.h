// devices.h - backends whose hooks are Python functions (python/ggml_backend/devices/device.py).
//
// A device is a ggml_backend that forwards its hooks to one Python object. A memory is one of its buffers, with one
// Python object behind it. C keeps what it needs often or without the interpreter: names, sizes, host memory, and
// which memory a tensor lies in. Python does the rest.
//
// There are two kinds of memory. *Host memory* has real addresses: C reads and writes it, and the CPU backend and
// other devices on the host use it directly. *Device memory* has reserved addresses without bytes, and Python moves
// its content. A Python object owns the memory of either kind, and lives as long as any array that views it.
//
// Errors: a Python function returns a status. Before it returns a failure it describes the failure with
// gbpy_device_say, and keeps the exception, which Python raises again where C was called (_errors). Failures that the
// function recovered from do not count. If a signal handler raised an exception, Python keeps it with the interrupts
// (world.h) and calls gbpy_device_interrupted. When the interpreter ends, no Python function is called any more.
#ifndef GBPY_DEVICES_H
#define GBPY_DEVICES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "objects.h"

// cdef: begin

// What Python reports about a device when it opens. It never changes.
struct gbpy_device_info {
    char name[64];
    size_t alignment; // of tensors and buffers: a power of two, 1 to 65536
    size_t max_size; // of one buffer
    bool host; // it has host memory
    bool queue; // it computes graphs later; synchronize waits
    bool events; // the queue has events
    bool timed; // events record when the queue reached them
    bool transfers; // the queue copies between memories, and from and to the host
    bool files; // it has device memory, and reads files itself
    bool work; // it reports how much scratch memory a graph takes
    bool ordered; // the runtime orders events of such devices, so no device waits for an event of another one
    bool bounded; // after a cancelled call, its functions return soon (gbpy_device_given_up)
};

// One side of a queued copy: memory of a device written in Python, or host memory.
struct gbpy_piece {
    void * memory; // NULL: host memory
    size_t offset; // in that memory
    void * host;
};

struct gbpy_memory_info { // a buffer that Python allocated
    void * base; // host memory: the first byte, aligned
    uint64_t number; // its number in another process; 0: it has none
};

// The Python functions. Each `void *` is a cffi handle. Functions that return int return a status.
struct gbpy_device_hooks {
    // Opens a device: *device is its handle.
    int (*open)(void * entry, const char * params, struct gbpy_device_info * info, void ** device);
    void (*close)(void * device);
    int (*alloc)(void * device, size_t size, struct gbpy_memory_info * info, void ** memory);
    void (*free)(void * memory);
    int (*settle)(void * memory); // waits for the queue of its device
    // for device memory
    int (*write)(void * memory, size_t offset, const void * data, size_t size);
    int (*read)(void * memory, size_t offset, void * data, size_t size);
    int (*fill)(void * memory, int value, size_t size);
    // *done: false: the device cannot copy between these two.
    int (*copy)(void * to, size_t to_offset, void * from, size_t from_offset, size_t size, bool * done);
    // Requests a part of a file. `part` stays valid until file_end. *request: NULL: the device cannot read it.
    int (*file_begin)(void * memory, size_t offset, const struct ggml_backend_file_fill * part, void ** request);
    int (*file_end)(void * request, bool wanted, bool * found);
    int (*file_keep)(void * memory, size_t offset, const struct ggml_backend_file_fill * part);
    // Queues a copy. Host memory is read at once. Host memory that is written is complete when the queue is.
    int (*transfer)(void * device, const struct gbpy_piece * to, const struct gbpy_piece * from, size_t size,
        bool * done);
    // *refuses: false: it computes the node. Otherwise the reason was given with gbpy_device_say.
    int (*refuses)(void * device, const struct ggml_tensor * node, bool * refuses);
    // Prepares a graph. An error is reported when the graph is computed. NULL: out of memory.
    void * (*compile)(void * device, struct ggml_cgraph * graph);
    int (*work_size)(void * device, struct ggml_cgraph * graph, size_t * size);
    int (*run)(void * compiled);
    void (*forget)(void * compiled);
    int (*synchronize)(void * device);
    void * (*event_new)(void * device, bool timed);
    void (*event_free)(void * event);
    int (*event_record)(void * event);
    int (*event_wait)(void * device, void * event);
    int (*event_synchronize)(void * event);
    int (*event_time)(void * event, int64_t * ns); // on the host's clock
};
void gbpy_set_device_hooks(const struct gbpy_device_hooks * hooks); // called once; the struct must stay

// Registers a kind of device. `entry` is a handle that is never freed.
int gbpy_register_device(const char * name, void * entry);

void gbpy_device_say(const char * text); // copies the text for the calling thread
void gbpy_device_interrupted(void); // in a function that C has called: a signal handler ended it
bool gbpy_device_given_up(void); // the call of C that this thread is in was interrupted

// Finds the Python object behind the memory of a tensor, and the offset of the tensor there. False: the tensor lies
// in no memory of a device written in Python.
bool gbpy_device_place(const struct ggml_tensor * t, void ** memory, size_t * offset);
bool gbpy_device_is_on_host(const struct ggml_tensor * t); // the host can read and write its memory
// The handle of the device; NULL: the backend is not written in Python.
void * gbpy_device_of(const struct gbpy_handle * backend);
// The type of its host memory; NULL: it has none, or the backend is not written in Python.
struct ggml_backend_buffer_type * gbpy_device_host_type(const struct gbpy_handle * backend);

bool gbpy_computes(const struct ggml_tensor * t); // false: a leaf or a view, which need no computation

// The facts of an operator (GGML_OP_*) in ops.def.
struct gbpy_op_facts {
    bool elementwise; // priced as elementwise: computes each element by itself
    int inplace; // sources on which the result may lie: bit 0 for src[0], bit 1 for src[1]
};
struct gbpy_op_facts gbpy_op_facts(int op);
// True if the result need not be stored, because it is computed together with its only reader.
bool gbpy_device_may_leave_out(const struct ggml_tensor * node);
// The buffer of weights that a tensor lies in; NULL: none. Its version grows whenever its content changes.
const void * gbpy_device_weights(const struct ggml_tensor * t);
uint64_t gbpy_device_version(const void * buffer);
// Sets *size to the scratch memory that a graph takes on any backend (`graph_work_size`), or to 0 if the backend does
// not report it. Returns a status.
int gbpy_graph_work_size(struct ggml_backend * backend, struct ggml_cgraph * graph, size_t * size);
// The computation that this thread works for, or NULL. Work that a device queues belongs to the same computation, on
// whatever thread it runs.
void * gbpy_device_current_run(void);
void gbpy_device_set_current_run(void * run);

// cdef: end

// Finds the device whose memory a tensor lies in, the number of that memory, and the offset of the tensor there.
// False: the tensor lies in no memory of a device written in Python.
bool gbpy_device_memory(const struct ggml_tensor * t, void ** device, uint64_t * number, size_t * offset);

// True if this thread is in a function of a bounded device. The interrupt that ends the call of C is not raised there
// again, so that the device can stop using memory that the caller of C may free.
bool gbpy_in_device(void);

#endif // GBPY_DEVICES_H
