// objects.h - the C objects that Python's handles stand for, and which of them keep which alive.
//
// Whatever a signal, a failed allocation, another thread or a fork could interrupt halfway is done in this folder, each
// behind a single call; Python's objects are thin views of it.
//
// An object (gbpy_object) stands for one C object: a context, buffer, backend, scheduler, copied graph, graph, event or
// allocator. It counts two kinds of references. *Strong* ones keep the C object; when the last is gone it is freed,
// after whatever uses it and before what it needs. *Weak* ones keep only this struct and the handles of its buffers: a
// tensor goes on pointing to the handle of a buffer whose memory was given back, and the handle says so (`retired`). So
// closing never has to look for tensors.
//
// Python refers to an object through a gbpy_handle, made empty, with gbpy_release as its destructor, and then filled by
// the one call that makes the C object. Whatever happens between two instructions of Python, the handle is either empty
// or owns what it says. The collector of garbage does not know handles: it calls the finalizers of a cycle in any
// order, and others may use the object afterwards; a handle goes with its last reference. A pointer that C gave out is
// valid as long as Python holds the handle: tools/check_lifetimes.py proves that modules read it only from a variable
// of their own.
//
// At the end of the interpreter nothing is freed any more: the operating system cleans up.
#ifndef GBPY_OBJECTS_H
#define GBPY_OBJECTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "extension.h"
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml.h"

// cdef: begin

struct gbpy_object;

// What Python holds. `keeps` (of contexts): as long as one of these is there, the buffers that were given to the
// context stay.
struct gbpy_handle {
    struct gbpy_object * object;
    bool keeps;
};

enum gbpy_kind {
    GBPY_CONTEXT,
    GBPY_GRAPH,
    GBPY_BUFFER,
    GBPY_COPY,
    GBPY_SCHED,
    GBPY_BACKEND,
    GBPY_EVENT,
    GBPY_TALLOCR,
    GBPY_GALLOCR,
    GBPY_PROFILE
};

void gbpy_release(struct gbpy_handle * handle); // gives the reference back; an empty handle is fine
// Hides a Python object (its id) from the collector: its last reference frees it, nothing else does.
void gbpy_untrack(uintptr_t object);
// Fills an empty handle with another reference to the same object.
void gbpy_share(struct gbpy_handle * handle, const struct gbpy_handle * other, bool keeps);
// The C object; NULL: the handle is empty.
void * gbpy_ptr(const struct gbpy_handle * handle);
// An enum gbpy_kind; -1: the handle is empty.
int gbpy_kind_of(const struct gbpy_handle * handle);
bool gbpy_same(const struct gbpy_handle * a, const struct gbpy_handle * b);

// Fills `to` with a reference to the context that made the tensor, among those that the object of `handle` (a graph, or
// a younger context) needs. If none of them made it (C itself did), with one to the object of `handle`.
void gbpy_share_context(struct gbpy_handle * to, const struct gbpy_handle * handle, const struct ggml_tensor * t);

// The object of `handle` needs `other`, which is freed after it. False: no memory.
bool gbpy_need(struct gbpy_handle * handle, const struct gbpy_handle * other);
// Keeps a Python object (its id), to which C refers, until the C object is freed. False: no memory.
bool gbpy_keep(struct gbpy_handle * handle, uintptr_t object);

void gbpy_close(struct gbpy_handle * handle); // from now on no use of it begins, and contexts do not keep it
bool gbpy_is_closed(const struct gbpy_handle * handle);

// The C buffers of an owner of memory, parts too: for tests.
int gbpy_n_owned(const struct gbpy_handle * owner);
struct ggml_backend_buffer * gbpy_owned(const struct gbpy_handle * owner, int i);

int gbpy_open_context(struct gbpy_handle * handle, size_t mem_size, bool no_alloc);
int gbpy_open_graph(struct gbpy_handle * handle, struct ggml_cgraph * graph, struct gbpy_handle ** contexts, int n);
int gbpy_open_event(struct gbpy_handle * handle, const struct gbpy_handle * backend);
int gbpy_open_tallocr(struct gbpy_handle * handle, const struct gbpy_handle * buffer,
    struct ggml_backend_buffer_type * buft, const struct gbpy_handle * parent);
int gbpy_open_gallocr(struct gbpy_handle * handle);

// cdef: end

struct gbpy_locks;

struct gbpy_request { // an object, and how it is to be used, or is used
    struct gbpy_object * object;
    bool write;
    bool nested; // of a use: the same user was writing it already
    bool closed_too; // the user waits for its last use, though it is closed
    bool beside_runs; // the user does not wait for runs in flight
};

typedef GB_VEC(struct gbpy_request) gbpy_requests;
typedef GB_VEC(struct gbpy_object *) gbpy_objects;

struct gbpy_constant { // written each time its tensor is given memory
    struct ggml_tensor * tensor;
    void * value; // owned
    size_t size;
    char * path; // owned: of the mapped file that it was taken from; NULL: of none
    uint64_t at; // in that file
    struct gbpy_constant * next; // made before
};

struct gbpy_sched; // sched_impl.h

struct gbpy_object {
    enum gbpy_kind kind;
    void * ptr; // owned
    atomic_int refs; // strong
    atomic_int weak; // one for all strong ones together
    struct gbpy_object * next_dead;
    long long serial; // of no other object, ever

    // under the lock
    atomic_bool closed; // also read outside
    bool broken;
    bool marked; // by forget_unused_owners
    struct gbpy_locks * writer;
    long long gathered; // the list of wants that it is in, see gbpy_begin_requests ...
    size_t at; // ... and where
    int n_readers;
    gbpy_objects needs; // strong references
    GB_VEC(void *) python; // PyObject *, references

    // owners of memory: buffers, schedulers, copies
    GB_VEC(ggml_backend_buffer_t) handles; // of their buffers; held
    bool readonly;
    bool blank; // nobody gave all of it content: inputs here are to be set
    bool scratch; // tensors that lose their place here may simply be placed again
    atomic_int n_pins; // arrays that look into it
    gbpy_objects keepers; // contexts that keep it; borrowed: they leave this list before they go
    struct ggml_backend_graph_copy copy; // of copies
    struct gbpy_object * graph; // of buffers: the graph that an allocator placed here, strong
    long long cleared; // of buffers: the number of the last write to all of it (content.h); 0: none

    // contexts
    gbpy_objects keeps; // owners of memory that was given to it; strong. Until the last keeping handle is gone
    size_t placed_in_limit; // how many make it worth while to look for those that are gone
    gbpy_objects placed_in; // owners of memory in which its tensors were ever placed; weak
    atomic_int n_keeping;
    _Atomic(struct gbpy_constant *) constants; // added at any time, and freed with the context

    // graphs (graphs.h)
    long long epoch; // as of which the next four hold; -1: not known
    gbpy_requests owners; // of the memory that its tensors lie in, written if a node writes there; borrowed
    GB_VEC(struct ggml_tensor *) results; // tensors in memory of the user that its nodes compute
    GB_VEC(struct ggml_tensor *) written; // inputs, into which its nodes write
    const struct ggml_tensor * unplaced; // one without memory; NULL: none
    long long checked; // the epoch as of which it was found ready to be computed
    long long computed; // version of its inputs at its last complete run by a backend; -1: none
    struct gbpy_object ** contexts; // those of its tensors; part of `needs`
    int n_contexts;

    struct gbpy_stop * stop; // of backends
    // of backends: gbpy_cancels when its queue was known to hold nothing that was cancelled
    int cancels;
    struct gbpy_sched * sched; // of schedulers

    // profiles.h, under the lock
    struct gbpy_object * profile; // of schedulers and graphs: in which they record; strong
    struct gbpy_object * recording; // of profiles: who records there; weak. NULL: the process, if it is attached at all
    bool attached;
};

// Python's reference for C code: NULL handle or empty: reports with `what` and returns NULL.
struct gbpy_object * gbpy_object_of(const struct gbpy_handle * handle, const char * what);

struct gbpy_object * gbpy_object_new(enum gbpy_kind kind); // one strong reference; NULL and reported: no memory
void gbpy_ref(struct gbpy_object * object); // the caller has a strong reference
bool gbpy_try_ref(struct gbpy_object * object); // the caller has a weak one; false: it is being freed
void gbpy_unref(struct gbpy_object * object); // NULL is fine. Frees outside of the lock
void gbpy_weak_unref(struct gbpy_object * object);
// gbpy_unref in two steps, for callers that give several references back at a time.
void gbpy_give(struct gbpy_object * object, struct gbpy_object ** dead);
void gbpy_destroy_all(struct gbpy_object * dead);

// Makes `owner` the owner of a buffer with its parts; a second time is fine. False, and nothing is owned: no memory.
bool gbpy_own(struct gbpy_object * owner, ggml_backend_buffer_t buffer);
// The context keeps the owner of memory that was given to it. False: no memory, or the owner is closed.
bool gbpy_keep_owner(struct gbpy_object * context, struct gbpy_object * owner);
// The context remembers, weakly, that its tensors lie in memory of the owner. False: no memory.
bool gbpy_note_owner(struct gbpy_object * context, struct gbpy_object * owner);
// Both for an owner that is new, so that nobody has to look whether the context knows it.
bool gbpy_add_owner(struct gbpy_object * context, struct gbpy_object * owner);
bool gbpy_add_need(struct gbpy_object * object, struct gbpy_object * other); // false: no memory

void gbpy_free_sched(struct gbpy_object * sched); // scheds.c
void gbpy_drop_profile(struct gbpy_object * object, struct gbpy_object ** dead); // profiles.c

#endif // GBPY_OBJECTS_H
