// memory.h - the memory of a plan: the scheduler's buffers, and the binding of a plan to them.
//
// Memory, per backend:
//   arena     results and copies of one run. All plans share it, and the next plan that runs
//             overwrites the content. Tensors with a handle of it count as unplaced for every
//             scheduler.
//   leafs     unplaced tensors that no node computes (inputs, weights of small programs). They keep
//             memory and content while a plan that uses them is kept: until reset, or until
//             GB_SCHED_PLANS_MAX other graphs were planned.
//   replicas  copies of weights and other tensors that no node writes. They are filled again only
//             after their source was written. They belong to the scheduler. They are freed when
//             memory is short or a source's buffer is freed.
//   inputs    tensors that programs place themselves through ggml_backend_sched_get_tallocr.
//             Nothing else uses it.
//
// The scheduler frees its handles (struct ggml_backend_buffer) only when it is freed itself,
// because tensors of the user still point to them. Freed memory leaves a "retired" handle of size 0
// without hooks. So an old pointer is recognized and never confused with a new buffer. Handles have
// usage GB_USAGE_SCHED. Reset and free touch no tensors, whose context may be freed. A tensor with
// a handle of the scheduler, but without a kept plan, is unplaced.
#ifndef GB_SCHED_MEMORY_MEMORY_H
#define GB_SCHED_MEMORY_MEMORY_H

#include "ggml-alloc.h"
#include "ggml-backend-impl.h"
#include "sched/input/input.h"
#include "sched/sched.h"

struct gb_item;
struct gb_sched_layout;
struct gb_sched_program;

// A copy of the user's bytes, kept from run to run.
struct gb_replica {
    const struct ggml_backend_buffer * source; // only compared
    const char * data; // address of the first byte in `source`; only compared
    struct ggml_tensor layout; // type, ne and nb
    int backend;
    struct gb_mem * mem; // one reference is held
    size_t offset;
    uint64_t version; // version of the source's buffer that it equals; 0: none
    uint64_t checked; // the same, as the validator saw it; 0: unknown
    int n_refs; // number of plans that use it
};

// The content of an input when a run was issued.
struct gb_stage {
    struct ggml_tensor tensor; // owns its data
    ggml_backend_event_t event; // owned; recorded after the copy from here
};

struct gb_bound_copy {
    struct gb_replica * replica; // of kept copies: one reference; NULL: not taken yet
    uint64_t seen; // of kept copies: version of the source when the run began
    bool due; // of kept copies: this run fills it
    struct gb_stage * stages; // of staged copies: owned, one per pending run; NULL: not made yet
};

struct gb_bound_split {
    ggml_backend_graph_plan_t prepared; // owned; NULL: not made yet, or not supported
    bool no_plan; // the backend cannot prepare the split
    uint64_t n_traced, traced_ns; // number of recorded runs and their total time
};

// The memory and backend objects that a plan holds. Only this part of a plan changes while the plan
// is kept. Unbinding releases references on memory; gb_sched_free_binding also frees what backends
// made.
struct gb_sched_binding {
    struct gb_sched_input * in; // borrowed, as are the next two: parts of the same plan
    const struct gb_sched_program * program;
    const struct gb_sched_layout * layout;
    bool is_bound; // the user's tensors have the places in the input's `keys`
    bool stale; // the shadows have no addresses, or the arenas were released
    struct gb_mem ** mem; // owned; per id of a root: its buffer; NULL: another owner's
    struct gb_bound_copy * copies; // owned; per copy of the program
    struct gb_bound_split * splits; // owned; per split of the program
    gb_mem_list arenas; // chunks, with one reference each
    gb_mem_list leafs; // own leaf stores, in the order of the layout's chunks, with one reference each
    gb_mem_list shared; // stores of other plans, with one reference each
    GB_VEC(ggml_backend_event_t) events; // owned; for the plan's waits
    unsigned n_freed; // value of gb_buffers_freed() when the splits were prepared
    unsigned turn; // number of runs so far; selects the stage of staged copies
};

// memory.c
// A new buffer without references. NULL: no memory, even after spare stores and unused replicas
// were freed.
struct gb_mem * gb_sched_mem_new(struct ggml_backend_sched * s, int backend, size_t size, enum gb_mem_kind kind);
// The buffer of an item; NULL: the plan has none yet.
struct gb_mem * gb_sched_mem_of_item(const struct ggml_backend_sched * s, const struct gb_sched_binding * binding,
    const struct gb_item * item);
// The last unref frees the memory, or keeps a leaf store as a spare. The struct stays.
void gb_sched_mem_ref(struct gb_mem * mem);
void gb_sched_mem_unref(struct ggml_backend_sched * s, struct gb_mem * mem);
// A store for leafs, with one reference: a spare that is large enough, or a new one. NULL: no
// memory.
struct gb_mem * gb_sched_take_store(struct ggml_backend_sched * s, int backend, size_t size);
// Makes spares for the leafs of the plan.
enum ggml_status gb_sched_reserve_stores(struct ggml_backend_sched * s, const struct gb_sched_binding * binding);
enum ggml_status gb_sched_reserve_arena(struct ggml_backend_sched * s, int backend, size_t size); // the first chunk
// If memory is short, a chunk grows at the cost of earlier plans, which must be bound again before
// they run.
enum ggml_status gb_sched_reserve_arenas(struct ggml_backend_sched * s, struct gb_sched_binding * binding);
void gb_sched_free_mems(struct ggml_backend_sched * s);
// NULL: no memory. Borrowed, until a later call.
ggml_tallocr_t gb_sched_inputs(struct ggml_backend_sched * s, int backend);

// replica.c
// Takes all replicas whose source has a place, or none. ALLOC_FAILED: no memory.
enum ggml_status gb_sched_take_replicas(struct ggml_backend_sched * s, struct gb_sched_binding * binding);
void gb_sched_release_replicas(struct gb_sched_binding * binding);
// Frees the replicas of a backend (-1: of all) that no plan uses. True if there were any.
bool gb_sched_drop_spare_replicas(struct ggml_backend_sched * s, int backend);
// Frees unused replicas if a buffer with replicas was freed
void gb_sched_drop_orphans(struct ggml_backend_sched * s);
void gb_sched_free_replicas(struct ggml_backend_sched * s);
// Called when a run begins: finds the replicas that must be filled.
void gb_sched_look_at_replicas(struct gb_sched_binding * binding);
// Called when a run ends: writes of the run itself do not make replicas stale.
void gb_sched_keep_replicas(struct gb_sched_binding * binding);
void gb_sched_forget_replicas(struct ggml_backend_sched * s); // after a failure: their content is unknown

// bind.c
// A binding without memory. ALLOC_FAILED: no memory.
enum ggml_status gb_sched_init_binding(struct gb_sched_input * in, const struct gb_sched_program * program,
    const struct gb_sched_layout * layout, struct gb_sched_binding * binding);
// Takes one store for each leaf entry of the layout. False: no memory; the plan keeps the stores
// that it got before.
bool gb_sched_take_stores(struct ggml_backend_sched * s, struct gb_sched_binding * binding);
// Binds all tensors, or none. ALLOC_FAILED: no memory; other statuses come from buffers and from
// copies of contents.
enum ggml_status gb_sched_bind(struct ggml_backend_sched * s, struct gb_sched_binding * binding);
// Releases the memory. Touches no tensor.
void gb_sched_free_binding(struct ggml_backend_sched * s, struct gb_sched_binding * binding);

// prepared.c
// Makes host memory for staged inputs that a queue copies.
enum ggml_status gb_sched_make_stages(struct ggml_backend_sched * s, struct gb_sched_binding * binding);
void gb_sched_drop_prepared(struct ggml_backend_sched * s, struct gb_sched_binding * binding); // prepared graphs
// Frees events, stages and prepared graphs. The plan can be queried, but not run again.
void gb_sched_disarm(struct ggml_backend_sched * s, struct gb_sched_binding * binding);

// location.c
// A gb_locate_fn.
bool gb_sched_find_location(const struct ggml_backend_sched * s, const struct ggml_tensor * t, bool computed,
    int chosen, enum gb_location * location);

#endif // GB_SCHED_MEMORY_MEMORY_H
