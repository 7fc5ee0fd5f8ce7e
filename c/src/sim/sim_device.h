// sim_device.h - the simulated device, shared by the files of this folder.
//
// A device ends with the last reference: of its backend, buffers, events and graphs. Work goes
// through one queue, first in, first out, on the device's own thread. After a piece of work fails,
// later pieces are skipped until the backend synchronizes and reports the failure. Other calls that
// wait report the failure, too, but it stays pending.
//
// Waits of the host call the waiting thread's poll (base/current.h). If the poll cancels, all
// queued work is cancelled: the running piece stops soon, later pieces are skipped, and the wait
// returns ABORTED when the queue is empty. Cancelled work without a waiting caller counts as a
// failure, so that a later call reports it.
#ifndef GB_SIM_SIM_DEVICE_H
#define GB_SIM_SIM_DEVICE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/thread.h"
#include "ggml-backend-impl.h"

struct gb_cpu_pool;

// ---------------------------------------------------------------------------------------------------------- parameters

// The parameters of a device. Times are in nanoseconds, sizes in bytes.
struct gb_sim_params {
    char name[32]; // "": SIM0, SIM1, ... in the order of creation
    size_t mem_size; // bytes of all buffers together
    size_t max_size; // bytes of one buffer
    size_t alignment; // of tensors, a power of two
    int64_t delay_ns; // of each graph
    int64_t op_delay_ns; // of each node in it
    int64_t copy_delay_ns; // of each copy
    size_t copy_bw; // bytes per second, in addition to the delay of a copy; 0: no limit
    int n_threads; // threads that compute
    bool refuses[GGML_OP_COUNT]; // operators that the device does not support
    bool refuses_unary[GGML_UNARY_OP_COUNT];
    char fail_op[64]; // computing this op fails; "": none
    int64_t fail_alloc_after; // allocations that succeed before all fail; < 0: no such fault
};

enum ggml_status gb_sim_params_parse(const char * text, struct gb_sim_params * params);
// True if `name` is the operator of the node or its unary function, ignoring case.
bool gb_sim_op_has_name(const struct ggml_tensor * node, const char * name);

// -------------------------------------------------------------------------------------------------------------- device

struct gb_sim_device;

// One piece of work. The queue thread calls run(), unless an earlier piece failed or this piece was
// cancelled. run() returns a status, after gb_fail if it failed. A piece is the first member of a
// larger struct from gb_sim_work_new.
struct gb_sim_work {
    enum ggml_status (*run)(struct gb_sim_work * work);
    // always called, on the queue thread or after the work could not be queued
    void (*free)(struct gb_sim_device * device, struct gb_sim_work * work);
    struct gb_sim_work * next; // belongs to the queue
    int64_t delay_ns; // the queue thread sleeps this long before it runs the piece
    void * tag; // belongs to the queue: gb_run() of the thread that submitted it
    // The thread that waits for this piece finds its status here; NULL: no thread waits. Protected
    // by the mutex.
    enum ggml_status * outcome;
};

enum { GB_SIM_BLOCKS = 64, GB_SIM_BLOCK_SIZE = 512 };

// Memory for one piece of work, from the device's own store.
union gb_sim_block {
    union gb_sim_block * next; // while it is free
    struct gb_sim_work work;
    unsigned char bytes[GB_SIM_BLOCK_SIZE];
};

// Members above `mutex` are atomic or set before the device is shared. Members below it belong to
// the thread that holds it, unless they are atomic.
struct gb_sim_device {
    atomic_int refs; // of backend, buffers, events, graphs and queued waits
    char name[32];
    struct gb_sim_params params;
    struct ggml_backend_buffer_type buft; // the default device does not use it
    bool is_default;
    struct gb_cpu_pool * pool; // owned; NULL: one thread computes

    union gb_sim_block blocks[GB_SIM_BLOCKS]; // memory of queued work, so that a repeated run allocates nothing
    atomic_ullong n_transfers, bytes_transferred; // of copies, sets, gets and fills; for tests

    gb_mutex mutex; // protects the members below
    union gb_sim_block * free_blocks;
    gb_cond submitted, completed; // `submitted` is also signalled when work was cancelled
    struct gb_sim_work * first;
    struct gb_sim_work ** last;
    uint64_t n_submitted, n_completed; // number of pieces submitted so far
    atomic_ullong cancelled; // pieces up to this number are skipped; also read without the mutex
    uint64_t n_cancels; // number of waits that were cancelled
    // in a child of a fork: pieces lost_after + 1 to lost_until were pending in the parent
    uint64_t lost_after, lost_until;
    // The device whose ticket the queue waits for; the piece of work has a reference
    struct gb_sim_device * waits_for;
    bool running, exiting;
    gb_thread thread;
    struct gb_thread_main main;
    atomic_uint generation; // gb_fork_generation() in which the thread runs
    size_t used; // bytes of live buffers
    int64_t n_allocs;
    enum ggml_status failed; // of the first failed work since the last synchronize
    char message[GB_ERROR_SIZE];
};

// A device with one reference, owned by the caller; NULL and reported on failure.
struct gb_sim_device * gb_sim_device_new(const struct gb_sim_params * params);
// The default device has no parameters, and the buffer type of the registry's entry. It is made by
// the first call that needs it, and ends with its last reference. One backend at a time uses it.
//   gb_sim_default_device         the device, with a reference for the caller; NULL and reported on
//                                 failure
//   gb_sim_default_device_claim   the same for a backend; NULL, not reported, if another backend
//                                 uses it
//   gb_sim_default_device_leave   ends the claim and drops the reference
struct gb_sim_device * gb_sim_default_device(void);
struct gb_sim_device * gb_sim_default_device_claim(void);
void gb_sim_default_device_leave(struct gb_sim_device * device);

// gb_sim_device_ref takes a reference and returns the device. gb_sim_device_unref drops one, and
// ends the device with the last one; NULL is allowed. A queue thread never drops the last reference
// to its own device, because it could not wait for its own end.
struct gb_sim_device * gb_sim_device_ref(struct gb_sim_device * device);
void gb_sim_device_unref(struct gb_sim_device * device);

// gb_sim_work_new returns zeroed memory for a piece of work of `size` bytes; NULL and reported if
// there is none. gb_sim_work_free frees it.
void * gb_sim_work_new(struct gb_sim_device * device, size_t size);
void gb_sim_work_free(struct gb_sim_device * device, void * work);

// An event is a ticket: the number of pieces submitted so far. Waiting for it waits until as many
// pieces are completed. A pending failure is reported, and stays pending.
uint64_t gb_sim_ticket(struct gb_sim_device * device);
enum ggml_status gb_sim_wait_for(struct gb_sim_device * device, uint64_t ticket);
// All work queued on `device` after this call waits for a ticket of another device.
enum ggml_status gb_sim_queue_wait(struct gb_sim_device * device, struct gb_sim_device * other, uint64_t ticket);

// Queues a piece of work. Takes ownership also on failure.
enum ggml_status gb_sim_submit(struct gb_sim_device * device, struct gb_sim_work * work);
// Queues a piece, waits for it and returns its status.
enum ggml_status gb_sim_submit_and_wait(struct gb_sim_device * device, struct gb_sim_work * work);
// Waits until `ticket` pieces (at most those queued now) are completed or cancelled. Reports
// nothing.
void gb_sim_drain(struct gb_sim_device * device, uint64_t ticket);
// Waits for all queued work and reports a pending failure, which stays pending unless `forget`.
enum ggml_status gb_sim_wait(struct gb_sim_device * device, bool forget);
// For the queue thread: true if the piece that it runs was cancelled.
bool gb_sim_is_cancelled(void * device);

// Counts `size` bytes as used. ALLOC_FAILED and reported: the limit is reached, or the parameters
// simulate a fault.
enum ggml_status gb_sim_take_memory(struct gb_sim_device * device, size_t size);
void gb_sim_give_memory(struct gb_sim_device * device, size_t size);

// ------------------------------------------------------------------------------------------------------------- buffers

// The context of a buffer. The offset of a tensor's address from `addresses` equals the offset of
// its bytes from `memory`.
struct gb_sim_buffer {
    struct gb_sim_device * device; // a reference
    void * addresses; // reserved addresses for tensors, without memory
    char * memory; // the bytes
    size_t size; // of both
};

ggml_backend_buffer_t gb_sim_buffer_new(struct gb_sim_device * device, ggml_backend_buffer_type_t buft, size_t size);
void gb_sim_buffer_type_init(struct gb_sim_device * device);
// The device whose memory has the tensor; NULL if no simulated device does.
struct gb_sim_device * gb_sim_device_of(const struct ggml_tensor * tensor);
// The address of the tensor's bytes [offset, offset + size); NULL and reported if they are not
// inside its buffer.
char * gb_sim_translate(const struct ggml_tensor * tensor, size_t offset, size_t size);

// True if a queue can copy to and from the tensor: it is on the host or on a simulated device.
bool gb_sim_is_in_reach(const struct ggml_tensor * t);

// Queued copies. The queue reads or writes `host` later, so it must stay valid. With `wait` the
// call returns when the copy is done.
enum ggml_status gb_sim_queue_set(struct gb_sim_device * device, struct ggml_tensor * tensor, const void * host,
    size_t offset, size_t size, bool wait);
enum ggml_status gb_sim_queue_get(struct gb_sim_device * device, const struct ggml_tensor * tensor, void * host,
    size_t offset, size_t size, bool wait);
// Between tensors of the same layout, on simulated devices or on the host (gb_sim_is_in_reach).
enum ggml_status gb_sim_queue_copy(struct gb_sim_device * device, const struct ggml_tensor * src,
    struct ggml_tensor * dst, bool wait);

// -------------------------------------------------------------------------------------------------------------- graphs

// A snapshot of a graph: its own tensors, which point into private memory.
struct gb_sim_graph;

// A snapshot with one reference, owned by the caller; NULL and reported if the device cannot
// compute the graph.
struct gb_sim_graph * gb_sim_graph_new(struct gb_sim_device * device, const struct ggml_cgraph * cgraph);
void gb_sim_graph_unref(struct gb_sim_graph * graph);
// Queues one computation, which holds a reference until it ends.
enum ggml_status gb_sim_graph_queue(struct gb_sim_graph * graph);
// Why the device cannot compute the node, as a static text. NULL if it can.
const char * gb_sim_unsupported_reason(const struct gb_sim_device * device, const struct ggml_tensor * node);

#endif // GB_SIM_SIM_DEVICE_H
