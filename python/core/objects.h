// objects.h - what the Python package's handles stand for: who keeps what alive, and who uses what now. Everything that a signal, a failed
// allocation, another thread or a fork could tear apart is here, behind single calls; Python's objects are thin views of it.
//
// Objects and references. An object (gbpy_object) stands for one C object: a context, buffer, backend, scheduler, copied graph, graph, event
// or allocator. It counts two kinds of references. *Strong* ones keep the C object; when the last is gone it is freed, after whatever uses it
// and before what it needs. *Weak* ones keep only this struct and the handles of its buffers: a tensor goes on pointing to the handle of a
// buffer whose memory was given back, and whoever looks at the handle sees that (`retired`). So closing never has to look for tensors.
//
// Python refers to an object through a gbpy_handle, made empty, with gbpy_release as its destructor, and then filled by the one call that
// makes the C object. The collector of garbage does not know handles: it calls the finalizers of a cycle in any order, and others may use the
// object afterwards; a handle goes with its last reference. Whatever happens between two instructions of Python, the handle is either empty or owns what it says. A pointer that C
// gave out is valid as long as Python holds the handle: tools/check_lifetimes.py proves that modules read it only from a variable of their own.
//
// Uses. A call that computes, reads or writes enters all objects that it uses at once, for reading (with others) or writing (alone), or none
// of them: so two calls cannot wait for each other, and there is no order of locks to keep. Who already uses something and comes back for more
// (a callback of a computation) might wait for somebody who waits for him: that is found before he waits, and is an error. A use
// belongs to a computation (gb_run, base/current.h) or to a thread, and ends with gbpy_leave, which is also the destructor of Python's guards.
// Waiting is interrupted by signals of Python's main thread.
//
//   who may touch what: a tensor's data, buffer and extra are written by who uses its context for writing (placing), and read under the lock
//   while nobody does that, or by who uses the owner of its memory. The content of memory: who uses its owner.
//
// Locks. One mutex, `world`, for every field here; it is held for a few loads and stores, never while anything computes, waits, frees or
// runs Python. Nothing else is taken inside of it. Fork takes it first, so a child finds it free; uses of the parent's other threads end in
// the child, and what they were writing is `broken` there: an error for whoever uses it, and never freed.
// At the end of the interpreter nothing is freed any more: the operating system cleans up.
#ifndef GBPY_OBJECTS_H
#define GBPY_OBJECTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/vec.h"
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml.h"

// cdef: begin

struct gbpy_object;

// What Python holds. `keeps` (of contexts): as long as one of these is there, the buffers that were given to the context stay.
struct gbpy_handle {
    struct gbpy_object * object;
    bool                 keeps;
};

enum gbpy_kind { GBPY_CONTEXT, GBPY_GRAPH, GBPY_BUFFER, GBPY_COPY, GBPY_SCHED, GBPY_BACKEND, GBPY_EVENT, GBPY_TALLOCR, GBPY_GALLOCR };

enum { GBPY_INTERRUPTED = 1000 }; // instead of a status: a signal handler of Python raised; the exception is kept in Python

void   gbpy_release(struct gbpy_handle * handle); // gives the reference back; an empty handle is fine
void   gbpy_untrack(uintptr_t object); // a Python object (its id): the collector does not look at it; it goes with its last reference
void   gbpy_share(struct gbpy_handle * handle, const struct gbpy_handle * other, bool keeps); // another reference to the same
void * gbpy_ptr(const struct gbpy_handle * handle);                                           // the C object; NULL: empty
int    gbpy_kind_of(const struct gbpy_handle * handle);                                       // enum gbpy_kind; -1: empty
bool   gbpy_same(const struct gbpy_handle * a, const struct gbpy_handle * b);

void gbpy_need(struct gbpy_handle * handle, const struct gbpy_handle * other); // goes before it, also for C
bool gbpy_keep(struct gbpy_handle * handle, uintptr_t object); // a Python object (its id) that C refers to: until the C object is freed

void gbpy_close(struct gbpy_handle * handle); // no use of it begins any more; contexts do not keep it any longer
bool gbpy_is_closed(const struct gbpy_handle * handle);
bool gbpy_is_busy(const struct gbpy_handle * handle);    // somebody uses it now, to write
bool gbpy_is_mine(const struct gbpy_handle * handle);    // and that is who asks

// A use of objects. Python's guards are made empty, with gbpy_leave as destructor.
struct gbpy_use {
    struct gbpy_want * wants; // objects that are held, with how; [0, n)
    int                n, capacity;
    bool               borrowed; // the array is somebody else's
    const void *       who;
    struct gbpy_use *  next;
    struct gbpy_use *  previous;
    bool               active;
};

// Takes all n objects, `writing` the first n_written of them and reading the others, or none. INVALID_STATE with a message that begins with
// `what`: one is closed, broken, used by who asks, or by somebody who waits for him. GBPY_INTERRUPTED. The handles may repeat.
// `nested`: what who asks uses already is no error (callbacks that look at what is being computed).
int  gbpy_enter(struct gbpy_use * use, const char * what, struct gbpy_handle ** handles, int n, int n_written, bool nested);
void gbpy_leave(struct gbpy_use * use); // at any time, any number of times

void gbpy_watch_signals(bool (*poll)(void * data)); // of the calling thread, Python's main one: its long waits and computations ask `poll`
// Status of a call that may have been interrupted: GBPY_INTERRUPTED if this thread's poll said so since the last time.
int  gbpy_outcome(int status);
void gbpy_end(void);                                // the interpreter ends: nothing is freed any more

// The C buffers of an owner of memory, parts too: for tests.
int                          gbpy_n_owned(const struct gbpy_handle * owner);
struct ggml_backend_buffer * gbpy_owned(const struct gbpy_handle * owner, int i);

int gbpy_open_context(struct gbpy_handle * handle, size_t mem_size, bool no_alloc);
int gbpy_open_graph(struct gbpy_handle * handle, struct ggml_cgraph * graph, struct gbpy_handle ** contexts, int n);
int gbpy_open_event(struct gbpy_handle * handle, const struct gbpy_handle * backend);
int gbpy_open_tallocr(struct gbpy_handle * handle, const struct gbpy_handle * buffer, struct ggml_backend_buffer_type * buft, const struct gbpy_handle * parent);
int gbpy_open_gallocr(struct gbpy_handle * handle);

// cdef: end

struct gbpy_want {
    struct gbpy_object * object;
    bool                 write;
    bool                 nested; // of a use: who asks was writing it already
};

typedef GB_VEC(struct gbpy_want) gbpy_wants;
typedef GB_VEC(struct gbpy_object *) gbpy_objects;

struct gbpy_constant { // written each time its tensor is given memory
    struct ggml_tensor * tensor;
    void *               value; // owned
    size_t               size;
};

struct gbpy_sched; // runs.h

struct gbpy_object {
    enum gbpy_kind kind;
    void *         ptr;  // owned
    atomic_int     refs; // strong
    atomic_int     weak; // one for all strong ones together
    struct gbpy_object * next_dead;
    long long      serial; // of no other object, ever

    // under the lock
    atomic_bool       closed; // also read outside
    bool              broken;
    struct gbpy_use * writer;
    int               n_readers;
    gbpy_objects      needs; // strong references
    GB_VEC(void *) python;   // PyObject *, references

    // owners of memory: buffers, schedulers, copies
    GB_VEC(ggml_backend_buffer_t) handles; // of their buffers; held
    bool         readonly;
    bool         scratch;  // tensors that lose their place here may simply be placed again
    atomic_int   n_pins;   // arrays that look into it
    gbpy_objects keepers;  // contexts that keep it; borrowed: they leave this list before they go
    struct ggml_backend_graph_copy copy; // of copies
    struct gbpy_object *           graph; // of buffers: the graph that an allocator placed here, strong

    // contexts
    gbpy_objects keeps; // owners of memory that was given to it; strong. Until the last keeping handle is gone
    gbpy_objects homes; // owners of memory in which its tensors were ever placed; weak
    atomic_int   n_keeping;
    GB_VEC(struct gbpy_constant) constants;

    // graphs
    gbpy_wants owners;    // of the memory that its tensors lie in, written if a node writes there; borrowed, valid at `epoch`
    GB_VEC(struct ggml_tensor *) results; // tensors in memory of the user that its nodes compute; as `owners`
    long long  epoch;     // -1: not known
    bool       complete;  // as of then, all its tensors have memory
    long long  computed;  // version of its inputs at its last complete run by a backend; -1: none
    struct gbpy_object ** contexts; // those of its tensors; part of `needs`
    int        n_contexts;

    struct gbpy_stop *  stop;  // of backends
    int                 cancels; // of backends: gbpy_cancels when its queue was known to hold nothing that was cancelled
    struct gbpy_sched * sched; // of schedulers
};

// Python's reference for C code: NULL handle or empty: reports with `what` and returns NULL.
struct gbpy_object * gbpy_object_of(const struct gbpy_handle * handle, const char * what);

struct gbpy_object * gbpy_object_new(enum gbpy_kind kind); // one strong reference; NULL and reported: no memory
int                  gbpy_fill(struct gbpy_handle * handle, struct gbpy_object * object); // gives the reference to the handle
void                 gbpy_ref(struct gbpy_object * object);     // by who has one
bool                 gbpy_try_ref(struct gbpy_object * object); // by who has a weak one: false if it is being freed
void                 gbpy_unref(struct gbpy_object * object); // NULL is fine. Frees outside of the lock
void                 gbpy_weak_unref(struct gbpy_object * object);

bool gbpy_own(struct gbpy_object * owner, ggml_backend_buffer_t buffer); // with its parts; twice is fine. False: no memory
bool gbpy_keep_owner(struct gbpy_object * context, struct gbpy_object * owner);
bool gbpy_add_home(struct gbpy_object * context, struct gbpy_object * owner);
bool gbpy_add_need(struct gbpy_object * object, struct gbpy_object * other);

void gbpy_lock(void);
void gbpy_unlock(void);

// Who asks: the computation that this thread works for, or the thread.
const void * gbpy_me(void);

// As gbpy_enter, for C: `wants` may repeat objects. `use` is empty or on the stack, zeroed.
int gbpy_enter_wants(struct gbpy_use * use, const char * what, const struct gbpy_want * wants, int n, bool nested);
// Under the lock: the first want that has to wait, -1: none. `mine`: objects that who asks uses already do not count (a callback that looks
// at what is being computed).
int  gbpy_find_conflict(const struct gbpy_want * wants, int n, const void * me, bool mine);
bool gbpy_reserve_use(struct gbpy_use * use, int n); // outside of the lock; false: no memory
// Under the lock, without conflict, with room. False: one of them is being freed; the lock was given up, so look again.
bool gbpy_take(struct gbpy_use * use, const struct gbpy_want * wants, int n);
// Under the lock, which is given up meanwhile: waits for a change. A status if who asks would wait for himself, or was interrupted.
int gbpy_wait_for(const char * what, const struct gbpy_want * wants, int n, int conflict);
// As gbpy_leave, after last(object, number), in one critical section.
void gbpy_leave_after(struct gbpy_use * use, void (*last)(struct gbpy_object * object, long long number), struct gbpy_object * object, long long number);
void gbpy_let_go(struct gbpy_use * use, struct gbpy_object * object); // before the rest of the use ends

// Set by runs.c: who computes asynchronously in a way that a use must wait for.
// Under the lock. True: a run on its way conflicts; the lock was given up to wait for it, so look again (*status: SUCCESS, or why not).
// `staged`: the tensor that is to be set, or NULL.
extern bool (*gbpy_land_conflicts)(const struct gbpy_want * wants, int n, const struct ggml_tensor * staged, int * status);
extern void (*gbpy_free_sched)(struct gbpy_object * sched);

extern atomic_int    gbpy_cancels; // how often a poll said so: a device may have cancelled what others had queued, and tell the next who asks
extern atomic_llong gbpy_epochs; // counts every time that tensors may have got or lost memory
static inline long long gbpy_epoch_now(void) { return atomic_load(&gbpy_epochs); }
static inline void      gbpy_note_move(void) { atomic_fetch_add(&gbpy_epochs, 1); }

#endif // GBPY_OBJECTS_H
