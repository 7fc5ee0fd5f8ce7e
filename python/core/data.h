// data.h - the memory of tensors: who owns it, whether what is there is the tensor's, reading and writing.
//
// Content. Each write of an input from Python takes the next number of one counter and leaves it in the tensor (perf_cycles, which nothing
// else uses). A run notes the counter when it begins: what it computes is out of date as soon as an input that it was computed from has a
// higher number. Tensors that the user placed himself keep the number of the run that computed them; of what a scheduler placed, its plan
// knows: whether the plan is the current one, whether it ran to its end, and whose memory was given to another tensor since.
// A result may only be read if it is there; an input also before it was set, since arrays over it are how some are set.
#ifndef GBPY_DATA_H
#define GBPY_DATA_H

#include "objects.h"

// cdef: begin

struct gbpy_view { // of a tensor's bytes in host memory, all that `nbytes` of the tensor says
    char * data;
    size_t nbytes;
    bool   host;
    bool   readonly;
};

// In all of these `context` is the tensor's, and the message of a failure begins with `what`.
// Looks at a tensor to read it: where it is. For host memory `pin`, an empty handle with gbpy_unpin as destructor, keeps it from then on.
int  gbpy_look(struct gbpy_handle * pin, const struct gbpy_handle * context, struct ggml_tensor * t, struct gbpy_view * view, const char * what);
void gbpy_unpin(struct gbpy_handle * pin);
bool gbpy_is_pinned(const struct gbpy_handle * owner); // do arrays look into its memory?

bool gbpy_is_placed(const struct gbpy_handle * context, struct ggml_tensor * t);       // it has memory, which is its own
bool gbpy_is_on_host(const struct gbpy_handle * context, const struct ggml_tensor * t, int * status); // status: INVALID_STATE if it has none
bool gbpy_is_in(const struct gbpy_handle * context, const struct ggml_tensor * t, struct gbpy_handle * owner); // fills an empty handle: who owns the memory
size_t gbpy_location(const struct gbpy_handle * context, const struct ggml_tensor * t, char * name, size_t size); // of its buffer; 0: none

int gbpy_read(const struct gbpy_handle * context, const struct ggml_tensor * t, void * data, size_t size, const char * what); // all its bytes, gaps included
// Bytes to an offset of a contiguous tensor. `part`: what is not written stays as it was, and as set as it was.
int gbpy_write(const struct gbpy_handle * context, struct ggml_tensor * t, const void * data, size_t offset, size_t size, const char * what);
// All elements, which lie one after the other in `data`, to a tensor of any strides.
int gbpy_write_all(const struct gbpy_handle * context, struct ggml_tensor * t, const void * data, size_t size, const char * what);
int gbpy_copy(const struct gbpy_handle * to_context, struct ggml_tensor * to, const struct gbpy_handle * from_context, struct ggml_tensor * from, const char * what);

int gbpy_open_buffer(struct gbpy_handle * handle, struct ggml_backend_buffer_type * buft, size_t size, int usage, const struct gbpy_handle * parent);
// Over memory of somebody else; `object` (its id) is kept.
int gbpy_open_host_buffer(struct gbpy_handle * handle, void * data, size_t size, int usage, bool readonly, uintptr_t object);
// For all tensors of the context that have no memory. GGML_STATUS_INVALID_STATE without a message: there are none.
int gbpy_open_context_buffer(struct gbpy_handle * handle, struct gbpy_handle * context, struct ggml_backend_buffer_type * buft, int usage, const struct gbpy_handle * parent);
int gbpy_place(struct gbpy_handle * buffer, struct gbpy_handle * context, struct ggml_tensor * t, size_t offset);
int gbpy_clear(struct gbpy_handle * buffer, uint8_t value);
int gbpy_set_constant(struct gbpy_handle * context, struct ggml_tensor * t, const void * value, size_t size);

int gbpy_tallocr_alloc(struct gbpy_handle * allocator, struct gbpy_handle * buffer, struct gbpy_handle * context, struct ggml_tensor * t);
int gbpy_gallocr_alloc(struct gbpy_handle * allocator, struct gbpy_handle * buffer, struct gbpy_handle * graph);
int gbpy_unplace_graph(struct gbpy_handle * buffer); // what an allocator placed there loses its place
int gbpy_gallocr_measure(struct gbpy_handle * allocator, struct ggml_backend_buffer_type * buft, struct gbpy_handle * graph, size_t * size);

bool gbpy_buffer_is_readonly(const struct gbpy_handle * buffer);

// cdef: end

static inline int64_t gbpy_stamp(const struct ggml_tensor * t) { return __atomic_load_n(&t->perf_cycles, __ATOMIC_RELAXED); }
static inline void    gbpy_set_stamp(struct ggml_tensor * t, int64_t stamp) { __atomic_store_n(&t->perf_cycles, stamp, __ATOMIC_RELAXED); }

extern atomic_llong gbpy_sets; // the counter

struct gbpy_object * gbpy_owner_of(const struct ggml_tensor * t); // of its buffer; NULL: it has none, or nobody knows it
bool                 gbpy_has_lost(const struct ggml_tensor * t); // its memory was given back
void                 gbpy_unplace_lost(struct ggml_tensor * t);   // by who uses its context to place: such a tensor has no memory
void                 gbpy_unplace_all_lost(struct ggml_context * ctx);
int                  gbpy_upload_constants(struct gbpy_object * context);
// The input from which t is computed and that was set at `version` or later; NULL: none, or memory is out.
const struct ggml_tensor * gbpy_newer_input(const struct ggml_tensor * t, int64_t version);
void                       gbpy_describe(const struct ggml_tensor * t, char * text, size_t size); // for messages: name and operator

// Set by runs.c: is the content of t, which lies in memory of the scheduler, still its own? Reports with `what` if not.
extern int (*gbpy_check_sched)(const struct gbpy_object * sched, const struct ggml_tensor * t, bool reading, const char * what);

#endif // GBPY_DATA_H
