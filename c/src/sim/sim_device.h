// sim_device.h - the simulated device, as its files share it.
//
// A device is shared by its backend and its buffers and ends with the last of them. Work goes through one queue, first
// in, first out, on the device's own thread. When something fails there, what follows is skipped until the backend
// synchronizes and so learns of it; calls that wait report the failure as well, but leave it pending.
//
// Waits of the host ask the waiting thread's poll (base/current.h). When it wants to give up, all that is queued is
// cancelled: what is being done stops soon, the rest is skipped, and the wait returns ABORTED when the queue is empty.
// Cancelled work that its caller does not wait for itself counts as a failure, so that somebody learns of it.
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

struct gb_sim_params {
    char    name[32];               // "" : SIM0, SIM1, ...
    size_t  mem_size;               // bytes of all buffers together
    size_t  max_size;               // bytes of one buffer
    size_t  alignment;              // of tensors, a power of two
    int64_t delay_ns;               // of each graph
    int64_t op_delay_ns;            // of each node in it
    int64_t copy_delay_ns;          // of each transfer
    size_t  copy_bw;                // bytes a second of transfers, on top of that; 0: no limit
    int     n_threads;              // that compute
    bool    refuses[GGML_OP_COUNT]; // ops that it does not support
    bool    refuses_unary[GGML_UNARY_OP_COUNT];
    char    fail_op[64];      // computing this op fails; "": none
    int64_t fail_alloc_after; // allocations that succeed before all fail; < 0: no such fault
};

enum ggml_status gb_sim_params_parse(const char * text, struct gb_sim_params * params);
// Is `name` the op of the node, or its unary function (without case)?
bool gb_sim_op_has_name(const struct ggml_tensor * node, const char * name);

// -------------------------------------------------------------------------------------------------------------- device

struct gb_sim_device;

// One piece of work. run() is called on the queue thread, unless an earlier piece failed; it returns a status after
// gb_fail.
struct gb_sim_work {
    enum ggml_status (*run)(struct gb_sim_work * work);
    // always called, on the queue thread or where the work could not be queued
    void (*free)(struct gb_sim_device * device, struct gb_sim_work * work);
    struct gb_sim_work * next;     // the queue's
    int64_t              delay_ns; // slept before it runs
    void *               tag;      // the queue's: gb_run() of who submitted it
    // of who waits for this very piece; NULL: nobody does. Protected by the device's mutex
    enum ggml_status * outcome;
};

enum { GB_SIM_BLOCKS = 64, GB_SIM_BLOCK_SIZE = 512 };

union gb_sim_block {
    union gb_sim_block * next; // while it is free
    struct gb_sim_work   work;
    unsigned char        bytes[GB_SIM_BLOCK_SIZE];
};

struct gb_sim_device {
    atomic_int                      refs; // backend, buffers, events and those who wait for them
    char                            name[32];
    struct gb_sim_params            params;
    struct ggml_backend_buffer_type buft; // of a device that is the default one: not used
    bool                            is_default;
    struct gb_cpu_pool *            pool; // owned; NULL: one thread computes

    union gb_sim_block blocks[GB_SIM_BLOCKS];          // memory of queued work, so that running again allocates nothing
    atomic_ullong      n_transfers, bytes_transferred; // copies, sets and gets, for tests

    gb_mutex              mutex; // protects what follows
    union gb_sim_block *  free_blocks;
    gb_cond               submitted, completed; // the first also when work was cancelled
    struct gb_sim_work *  first;
    struct gb_sim_work ** last;
    uint64_t              n_submitted, n_completed; // pieces of work, ever
    atomic_ullong         cancelled; // pieces up to this number are not to be done; also read without the mutex
    uint64_t              n_cancels; // times that somebody gave up
    // pieces that were on their way when the process was forked: behind the first, up to the second
    uint64_t               lost_after, lost_until;
    struct gb_sim_device * waits_for; // whose ticket the queue waits for; the piece of work has a reference
    bool                   running, exiting;
    gb_thread              thread;
    struct gb_thread_main  main;
    atomic_uint            generation; // gb_fork_generation() in which the thread lives
    size_t                 used;       // bytes of live buffers
    int64_t                n_allocs;
    enum ggml_status       failed; // of the first work that failed since the last synchronize
    char                   message[GB_ERROR_SIZE];
};

struct gb_sim_device * gb_sim_device_new(const struct gb_sim_params * params); // with one reference
// The default device: without parameters, with the buffer type of the registry's entry. It is made when it is asked for
// and gone with its last reference. One backend at a time has it; claim: NULL without a report when another has it.
struct gb_sim_device * gb_sim_default_device(void); // with a reference of the caller's
struct gb_sim_device * gb_sim_default_device_claim(void);
void                   gb_sim_default_device_leave(struct gb_sim_device * device); // with the reference

struct gb_sim_device * gb_sim_device_ref(struct gb_sim_device * device);
void                   gb_sim_device_unref(struct gb_sim_device * device);

// Memory for a piece of work of `size` bytes, zeroed, and back.
void * gb_sim_work_new(struct gb_sim_device * device, size_t size);
void   gb_sim_work_free(struct gb_sim_device * device, void * work);

// The number of pieces submitted so far, and waiting until so many are completed: what an event is.
uint64_t         gb_sim_ticket(struct gb_sim_device * device);
enum ggml_status gb_sim_wait_for(struct gb_sim_device * device, uint64_t ticket); // reports a pending failure
// What is queued on `device` from now on waits for that.
enum ggml_status gb_sim_queue_wait(struct gb_sim_device * device, struct gb_sim_device * other, uint64_t ticket);

// Queues; takes the work over, also when it fails.
enum ggml_status gb_sim_submit(struct gb_sim_device * device, struct gb_sim_work * work);
// until it is done; how that went
enum ggml_status gb_sim_submit_and_wait(struct gb_sim_device * device, struct gb_sim_work * work);
// waits for what was queued until then, or has it cancelled
void gb_sim_drain(struct gb_sim_device * device, uint64_t ticket);
// The same, and reports a pending failure, which stays unless `forget`.
enum ggml_status gb_sim_wait(struct gb_sim_device * device, bool forget);
bool             gb_sim_is_cancelled(void * device); // for the queue's thread: the piece that it is doing

// Counts `size` bytes as used, or reports that the device has not so much.
enum ggml_status gb_sim_take_memory(struct gb_sim_device * device, size_t size);
void             gb_sim_give_memory(struct gb_sim_device * device, size_t size);

// ------------------------------------------------------------------------------------------------------------- buffers

struct gb_sim_buffer {
    struct gb_sim_device * device;    // a reference
    void *                 addresses; // reserved, what tensors point to; nothing is there
    char *                 memory;    // where the bytes are
    size_t                 size;      // of both
};

ggml_backend_buffer_t  gb_sim_buffer_new(struct gb_sim_device * device, ggml_backend_buffer_type_t buft, size_t size);
void                   gb_sim_buffer_type_init(struct gb_sim_device * device);
struct gb_sim_device * gb_sim_device_of(const struct ggml_tensor * tensor); // whose memory it is in; NULL: no SIM's
// Where the tensor's bytes [offset, offset + size) really are; NULL and reported when they are not in its SIM buffer.
char * gb_sim_translate(const struct ggml_tensor * tensor, size_t offset, size_t size);

bool gb_sim_is_in_reach(const struct ggml_tensor * t); // on the host or on a SIM device

// Queued transfers; `host` is read or written when the queue gets there. wait: return when that is done.
enum ggml_status gb_sim_queue_set(struct gb_sim_device * device, struct ggml_tensor * tensor, const void * host,
    size_t offset, size_t size, bool wait);
enum ggml_status gb_sim_queue_get(struct gb_sim_device * device, const struct ggml_tensor * tensor, void * host,
    size_t offset, size_t size, bool wait);
// Between tensors of the same layout, both in SIM memory.
enum ggml_status gb_sim_queue_copy(struct gb_sim_device * device, const struct ggml_tensor * src,
    struct ggml_tensor * dst, bool wait);

// -------------------------------------------------------------------------------------------------------------- graphs

struct gb_sim_graph; // what a graph was when it was given to the device: own tensors that point into private memory

// one reference
struct gb_sim_graph * gb_sim_graph_new(struct gb_sim_device * device, const struct ggml_cgraph * cgraph);
void                  gb_sim_graph_unref(struct gb_sim_graph * graph);
enum ggml_status      gb_sim_graph_queue(struct gb_sim_graph * graph); // the queue holds a reference
const char *          gb_sim_unsupported_reason(const struct gb_sim_device * device, const struct ggml_tensor * node);

#endif // GB_SIM_SIM_DEVICE_H
