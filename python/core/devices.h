// devices.h - backends whose hooks are functions of Python (python/ggml_backend/device.py).
//
// A device is a ggml_backend that forwards its hooks to one Python object; a memory is a buffer of it, with one Python
// object behind it. C keeps what is asked often or without the interpreter (names, sizes, host memory, which memory a
// tensor lies in), Python does the rest.
//
// Two kinds of memory. Memory *on the host* has real addresses: C reads and writes it itself, and the CPU backend and
// other devices on the host use it as it is. Memory of a device's *own* has addresses with nothing behind them, and
// Python moves its bytes. Either kind is an object of Python, which lives as long as any array that looks into it.
//
// Errors. A function of Python returns a status; before it returns one that is not SUCCESS it says with
// gbpy_device_say what failed, and keeps the exception, which whoever called C raises again (_errors). What it tried in
// vain and coped with is no failure. What a signal handler raised in it is kept with the interrupts (world.h) instead,
// which gbpy_device_interrupted tells. Nothing of Python is called once the interpreter ends.
#ifndef GBPY_DEVICES_H
#define GBPY_DEVICES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "objects.h"

// cdef: begin

// What Python says of a device when it is opened. All of it stays as it is from then on.
struct gbpy_device_info {
    char name[64];
    size_t alignment; // of tensors and buffers: a power of two, 1 to 65536
    size_t max_size; // of one buffer
    bool host; // its memory is on the host
    bool queue; // graphs may be computed later; synchronize waits
    bool events; // the queue has events
    bool timed; // and events that note when the queue came to them
    bool transfers; // the queue copies between memories, and from and to the host
    bool files; // its memory is not on the host, and it reads files itself
    bool work; // it says how much scratch memory a graph takes
    bool ordered; // events of such devices order what each of them is told by itself: none waits for another's
    bool bounded; // no function of it takes long once the call is given up (gbpy_device_given_up)
};

// One side of a copy that a queue makes: memory of a device written in Python, or of the host.
struct gbpy_piece {
    void * memory; // NULL: of the host
    size_t offset; // in that memory
    void * host;
};

struct gbpy_memory_info { // of a buffer that Python allocated
    void * base; // on the host: its first byte, aligned
    uint64_t number; // what another process knows it as; 0: none does
};

// The functions of Python; each `void *` is a handle of cffi. Those that return int return a status.
struct gbpy_device_hooks {
    // Opens a device: *device is its handle.
    int (*open)(void * entry, const char * params, struct gbpy_device_info * info, void ** device);
    void (*close)(void * device);
    int (*alloc)(void * device, size_t size, struct gbpy_memory_info * info, void ** memory);
    void (*free)(void * memory);
    int (*settle)(void * memory); // waits for the queue of its device
    // of memory that is not on the host
    int (*write)(void * memory, size_t offset, const void * data, size_t size);
    int (*read)(void * memory, size_t offset, void * data, size_t size);
    int (*fill)(void * memory, int value, size_t size);
    // *done: false: the device cannot copy between these two
    int (*copy)(void * to, size_t to_offset, void * from, size_t from_offset, size_t size, bool * done);
    // Asks for a part of a file, which stays until file_end; *request: NULL: the device cannot read it.
    int (*file_begin)(void * memory, size_t offset, const struct ggml_backend_file_fill * part, void ** request);
    int (*file_end)(void * request, bool wanted, bool * found);
    int (*file_keep)(void * memory, size_t offset, const struct ggml_backend_file_fill * part);
    // Queues a copy. What is read on the host is taken at once; what is written there is complete when the queue is.
    int (*transfer)(void * device, const struct gbpy_piece * to, const struct gbpy_piece * from, size_t size,
        bool * done);
    // *refuses: false: it computes the node; else why not was said with gbpy_device_say
    int (*refuses)(void * device, const struct ggml_tensor * node, bool * refuses);
    // Prepares a graph; an error is kept for when it is computed. NULL only without memory.
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
void gbpy_set_device_hooks(const struct gbpy_device_hooks * hooks); // once, with memory that stays

// Registers a kind of device. `entry` is a handle that stays for ever.
int gbpy_register_device(const char * name, void * entry);

void gbpy_device_say(const char * text); // for the calling thread; copied
void gbpy_device_interrupted(void); // the calling thread, in the function that C called last
bool gbpy_device_given_up(void); // was the call of C interrupted in which this thread is?

// Which Python object is behind the memory of a tensor, and where in it the tensor begins. False: it lies in no memory
// of a device written in Python.
bool gbpy_device_place(const struct ggml_tensor * t, void ** memory, size_t * offset);
bool gbpy_device_is_on_host(const struct ggml_tensor * t); // has it memory that the host reads and writes?
// The handle of the device; NULL: the backend is none that is written in Python.
void * gbpy_device_of(const struct gbpy_handle * backend);
// The type of its memory, if that is on the host; NULL: it is not, or the backend is none that is written in Python.
struct ggml_backend_buffer_type * gbpy_device_host_type(const struct gbpy_handle * backend);

bool gbpy_computes(const struct ggml_tensor * t); // false: a leaf or a view, for which nothing is to be done

// What ops.def states of an operator (GGML_OP_*).
struct gbpy_op_facts {
    bool elementwise; // priced as elementwise: computes each element by itself
    int inplace; // sources on which the result may lie: bit 0 for src[0], bit 1 for src[1]
};
struct gbpy_op_facts gbpy_op_facts(int op);
// What a device may rely on. Need a result not be stored, where it is computed together with its one reader?
bool gbpy_device_may_leave_out(const struct ggml_tensor * node);
// The buffer of weights that a tensor lies in, NULL: in none; and a number that grows whenever its content changes.
const void * gbpy_device_weights(const struct ggml_tensor * t);
uint64_t gbpy_device_version(const void * buffer);
// A status: of any backend, how much scratch memory a graph takes on it (`graph_work_size`); 0 where it does not say.
int gbpy_graph_work_size(struct ggml_backend * backend, struct ggml_cgraph * graph, size_t * size);
// The computation that this thread works for, or NULL. Work that a device puts into its queue works for the same, on
// whatever thread.
void * gbpy_device_current_run(void);
void gbpy_device_set_current_run(void * run);

// cdef: end

// The handle of the device whose memory a tensor lies in, the number of that memory, and where in it the tensor begins.
// False: in none of a device written in Python.
bool gbpy_device_memory(const struct ggml_tensor * t, void ** device, uint64_t * number, size_t * offset);

// Is this thread in a function of a bounded device? An interrupt that ends C's call is not raised there again, so that
// the device can let go of memory which the caller of C may free.
bool gbpy_in_device(void);

#endif // GBPY_DEVICES_H
