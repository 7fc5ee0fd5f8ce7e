// objects.h - the C objects behind Python's handles, and the references between them.
//
// A signal, a failed allocation, another thread or a fork may interrupt Python between any two instructions. So
// whatever must happen as a whole is one call into this folder. Python's objects are thin views.
//
// An object (gbpy_object) stands for one C object: a context, buffer, backend, scheduler, graph and so on. It counts
// two kinds of references. *Strong* references keep the C object. When the last one goes, the C object is freed,
// before the objects that it needs. *Weak* references keep only the struct and the handles of its buffers
// (`struct ggml_backend_buffer`). A tensor may point to such a handle after its memory was freed: the handle is then
// marked as retired. So closing an object never has to search for tensors.
//
// Python refers to an object through a gbpy_handle. Python makes the handle empty, with gbpy_release as its
// destructor, and one C call fills it. At any moment the handle is either empty or owns its reference. The garbage
// collector does not see handles, because it finalizes the objects of a cycle in any order, and some of them may
// still use the object. A pointer from C is valid as long as Python holds the handle: tools/check_lifetimes.py proves
// that modules read pointers only from their own variables.
//
// When the interpreter ends, nothing is freed any more: the operating system cleans up.
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

struct gbpy_handle { // a strong reference that Python holds
    struct gbpy_object * object; // NULL: the handle is empty
    bool keeps_memory; // the memory that was given to the context stays as long as one of these handles exists
};

enum gbpy_kind {
    GBPY_CONTEXT,
    GBPY_GRAPH,
    GBPY_BUFFER,
    GBPY_COPY, // a copied graph
    GBPY_SCHED,
    GBPY_BACKEND,
    GBPY_EVENT,
    GBPY_TALLOCR,
    GBPY_GALLOCR,
    GBPY_PROFILE,
    GBPY_N_KINDS
};

void gbpy_release(struct gbpy_handle * handle); // drops the reference; the handle may be empty
// Hides a Python object (its id) from the garbage collector. Its last reference still frees it.
void gbpy_untrack(uintptr_t object);
// Fills an empty handle with another reference to the same object.
void gbpy_share(struct gbpy_handle * handle, const struct gbpy_handle * other, bool keeps_memory);
// Returns the C object, or NULL if the handle is empty.
void * gbpy_ptr(const struct gbpy_handle * handle);
// Returns an enum gbpy_kind, or -1 if the handle is empty.
int gbpy_kind_of(const struct gbpy_handle * handle);
bool gbpy_same(const struct gbpy_handle * a, const struct gbpy_handle * b);

// Fills `to` with a reference to the context that made the tensor. Searches the contexts that the object of `handle`
// (a graph, or a younger context) needs. If none of them made the tensor, `to` refers to the object of `handle`.
void gbpy_share_context(struct gbpy_handle * to, const struct gbpy_handle * handle, const struct ggml_tensor * t);

// The object of `handle` needs `other`, which is freed after it. False: out of memory.
bool gbpy_need(struct gbpy_handle * handle, const struct gbpy_handle * other);
// Keeps a Python object (its id) until the C object is freed. False: out of memory.
bool gbpy_keep(struct gbpy_handle * handle, uintptr_t object);

void gbpy_close(struct gbpy_handle * handle); // no new call may lock the object, and contexts drop their reference
bool gbpy_is_closed(const struct gbpy_handle * handle);

// For tests: the C buffers of an object that owns memory, including the parts of multi-buffers.
int gbpy_n_owned(const struct gbpy_handle * owner);
struct ggml_backend_buffer * gbpy_owned(const struct gbpy_handle * owner, int i);

int gbpy_open_context(struct gbpy_handle * handle, size_t mem_size, bool no_alloc);
int gbpy_open_graph(struct gbpy_handle * handle, struct ggml_cgraph * graph, struct gbpy_handle ** contexts, int n);
int gbpy_open_event(struct gbpy_handle * handle, const struct gbpy_handle * backend);
int gbpy_open_tallocr(struct gbpy_handle * handle, const struct gbpy_handle * buffer,
    struct ggml_backend_buffer_type * buft, const struct gbpy_handle * parent);
int gbpy_open_gallocr(struct gbpy_handle * handle);

// cdef: end

struct gbpy_locks; // locks.h

struct gbpy_request { // an object, and how a call wants to lock it or has locked it
    struct gbpy_object * object;
    bool write;
    bool nested; // the owner of the lock had locked the object for writing before
    bool closed_too; // the owner waits for the last lock of an object that is closed
    bool beside_runs; // the owner does not wait for pending runs
};

typedef GB_VEC(struct gbpy_request) gbpy_requests;
typedef GB_VEC(struct gbpy_object *) gbpy_objects;

// The common head of all kinds. "Under the mutex" means gbpy_mutex_lock (world.h).
struct gbpy_object {
    enum gbpy_kind kind;
    void * ptr; // owned; the C object
    atomic_int refs; // strong references
    atomic_int weak; // weak references; all strong references together count as one
    struct gbpy_object * next_dead; // in the list that gbpy_destroy_all frees

    atomic_int n_pins; // arrays that view its memory

    // state of locks, under the mutex
    atomic_bool closed; // may be read without the mutex
    bool broken; // another thread was writing it at a fork
    struct gbpy_locks * writer; // NULL: not locked for writing
    int n_readers;
    long long gathered; // number of the request list that holds it (gbpy_begin_requests) ...
    size_t at; // ... and its index there

    // references, under the mutex
    gbpy_objects needs; // strong
    GB_VEC(void *) python; // PyObject *, strong
};

struct gbpy_context;

// An owner of memory: a buffer, a scheduler, a copied graph, or a context.
struct gbpy_memory {
    struct gbpy_object head;
    GB_VEC(ggml_backend_buffer_t) handles; // of its buffers; held (gb_buffer_hold)
    bool readonly;
    bool blank; // some of it never got content, so inputs must be set
    bool scratch; // tensors that lose their memory here may be placed again without a warning
    bool marked; // used by forget_unused_memory only
    long long cleared; // number of the last write to all of it (content.h); 0: none
    gbpy_objects kept_by; // contexts that keep it; borrowed, since they leave this list before they are freed
};

struct gbpy_buffer {
    struct gbpy_memory memory;
    struct gbpy_graph * graph; // strong; the graph that an allocator placed here; NULL: none
};

struct gbpy_constant { // written whenever its tensor gets memory
    struct ggml_tensor * tensor;
    void * value; // owned
    size_t size;
    char * path; // owned; the mapped file that it was taken from; NULL: no file
    uint64_t at; // offset in that file
    struct gbpy_constant * next;
};

struct gbpy_context { // also the part of a copied graph that serves as the context of its tensors
    struct gbpy_memory memory; // only tensors of contexts without no_alloc lie in memory of the context itself
    gbpy_objects kept; // strong; owners of memory that was given to it, until n_keeping drops to 0
    gbpy_objects placed_in; // weak; owners of all memory that its tensors were ever placed in
    size_t placed_in_limit; // length of placed_in at which unused owners are dropped
    atomic_int n_keeping; // handles that keep memory
    _Atomic(struct gbpy_constant *) constants; // owned; grows only
};

struct gbpy_copy {
    struct gbpy_context context;
    struct ggml_backend_graph_copy copy;
};

struct gbpy_graph {
    struct gbpy_object head;
    long long serial; // unique in this process
    struct gbpy_context ** contexts; // owned; of its tensors; also in `needs`
    int n_contexts;
    struct gbpy_object * profile; // strong; where its computations are recorded; NULL: nowhere

    // graphs.h
    long long epoch; // the next four are valid as of this epoch; -1: never
    gbpy_requests memory; // borrowed; locks for the memory that its tensors lie in
    GB_VEC(struct ggml_tensor *) results; // tensors outside of schedulers' memory that its nodes compute
    GB_VEC(struct ggml_tensor *) written; // inputs that its nodes write
    const struct ggml_tensor * unplaced; // a tensor without memory; NULL: all have memory
    long long checked; // epoch as of which it was found ready to be computed
    long long computed; // version of its inputs at its last complete run on a backend; -1: none
};

struct gbpy_stop;

struct gbpy_backend {
    struct gbpy_object head;
    struct gbpy_stop * stop; // borrowed
    int cancels; // value of gbpy_cancels when its queue last held no cancelled work
};

struct gbpy_profile {
    struct gbpy_object head;
    struct gbpy_object * recording; // weak; the scheduler or graph that is recorded; NULL: the process, if attached
    bool attached;
};

// Events and allocators have the head alone. Schedulers: sched_impl.h.

// Facts about a kind. The table of kinds is in objects.c.
const char * gbpy_kind_name(enum gbpy_kind kind);
bool gbpy_can_lock_when_closed(const struct gbpy_object * object); // closing such an object does not end its use

// The object of a handle. NULL and reported, in a message that begins with `what`: the handle is empty.
struct gbpy_object * gbpy_object_of(const struct gbpy_handle * handle, const char * what);
// The same for handles of one kind. A handle of a context may be one of a copied graph.
static inline struct gbpy_context * gbpy_context_of(const struct gbpy_handle * handle, const char * what) {
    return (struct gbpy_context *) gbpy_object_of(handle, what);
}
static inline struct gbpy_graph * gbpy_graph_of(const struct gbpy_handle * handle, const char * what) {
    return (struct gbpy_graph *) gbpy_object_of(handle, what);
}
static inline struct gbpy_buffer * gbpy_buffer_of(const struct gbpy_handle * handle, const char * what) {
    return (struct gbpy_buffer *) gbpy_object_of(handle, what);
}
static inline struct gbpy_backend * gbpy_backend_of(const struct gbpy_handle * handle, const char * what) {
    return (struct gbpy_backend *) gbpy_object_of(handle, what);
}

void * gbpy_object_new(enum gbpy_kind kind); // the struct of the kind, with one strong reference; NULL and reported
void gbpy_ref(struct gbpy_object * object); // the caller has a strong reference
bool gbpy_try_ref(struct gbpy_object * object); // the caller has a weak reference; false: the object is being freed
void gbpy_unref(struct gbpy_object * object); // may be NULL; frees, so never under the mutex
void gbpy_weak_ref(struct gbpy_object * object); // the caller has a reference of either kind
void gbpy_weak_unref(struct gbpy_object * object);
// gbpy_unref in two steps, for callers that drop several references: collect the dead objects, then free them.
void gbpy_give(struct gbpy_object * object, struct gbpy_object ** dead);
void gbpy_destroy_all(struct gbpy_object * dead);

// Makes `owner` the owner of a buffer and its parts. May be repeated. False, and nothing is owned: out of memory.
bool gbpy_own(struct gbpy_memory * owner, ggml_backend_buffer_t buffer);
// The context keeps the owner of memory that was given to it. False: out of memory, or the owner is closed.
bool gbpy_keep_memory(struct gbpy_context * context, struct gbpy_memory * owner);
// The context notes, with a weak reference, that its tensors lie in memory of the owner. False: out of memory.
bool gbpy_note_memory(struct gbpy_context * context, struct gbpy_memory * owner);
// Both for a new owner, which the context cannot know yet.
bool gbpy_add_memory(struct gbpy_context * context, struct gbpy_memory * owner);
bool gbpy_add_need(struct gbpy_object * object, struct gbpy_object * other); // false: out of memory

void gbpy_free_sched(struct gbpy_object * sched, struct gbpy_object ** dead); // scheds.c
// profiles.c: detaches the profile in `*place`, if there is one, from the scheduler or graph that is freed.
void gbpy_drop_profile(struct gbpy_object ** place, struct gbpy_object ** dead);

#endif // GBPY_OBJECTS_H
