// memory.h - the memory behind a plan: the scheduler's buffers, and what binds a plan to them.
//
// Memory, per backend:
//   arena     results and copies of one run. All plans share it; a plan's content is overwritten by the next plan that
//             runs. Tensors that carry a handle of it count as unplaced for every scheduler: they are placed again.
//   leafs     unplaced tensors that no node computes (inputs, weights of small programs). They keep their memory, and
//             so their content, as long as a plan that uses them is kept: until reset, or until GB_SCHED_PLANS_MAX
//             other graphs came by.
//   replicas  copies of the user's weights (and of what else nobody writes), filled again only when their source was
//             written. They belong to the scheduler, not to a plan, and stay until memory is short or a buffer that has
//             some is freed.
//   inputs    what programs place themselves through ggml_backend_sched_get_tallocr. Never used for anything else.
//
// A handle (struct ggml_backend_buffer) of the scheduler is never freed before the scheduler itself, because the user's
// tensors go on pointing to it; memory that is given back leaves a handle of size 0 without hooks behind (a "retired"
// one), so an old pointer is recognised and never confused with a live buffer of somebody else. Handles of the
// scheduler have usage GB_USAGE_SCHED. Therefore reset and free need not touch tensors, whose context may be gone: a
// tensor that carries a handle of ours which no kept plan vouches for is simply unplaced.
#ifndef GB_SCHED_MEMORY_MEMORY_H
#define GB_SCHED_MEMORY_MEMORY_H

#include "ggml-alloc.h"
#include "ggml-backend-impl.h"
#include "sched/input/input.h"
#include "sched/sched.h"

struct gb_item;
struct gb_sched_layout;
struct gb_sched_program;

// A copy of bytes of the user, kept from run to run.
struct gb_replica {
    const struct ggml_backend_buffer * source; // only compared
    const char * data; // its first byte there; only compared
    struct ggml_tensor layout; // type, ne and nb
    int backend;
    struct gb_mem * mem; // a ref held
    size_t offset;
    uint64_t version; // of the source's buffer that it equals; 0: none
    uint64_t checked; // the same, as the validator saw it; 0: it saw nothing
    int n_refs; // plans
};

// What an input held when a run was issued.
struct gb_stage {
    struct ggml_tensor tensor; // owns its data
    ggml_backend_event_t event; // owned; after the copy from here
};

struct gb_bound_copy {
    struct gb_replica * replica; // of kept ones: a ref held; NULL: to be taken
    uint64_t seen; // of kept ones: the version of the source when the run began
    bool due; // of kept ones: this run has to fill it
    struct gb_stage * stages; // of staged ones: owned, one per graph in flight; NULL: not yet
};

struct gb_bound_split {
    ggml_backend_graph_plan_t prepared; // owned; NULL: not yet, or the backend has none
    bool no_plan; // the backend could not prepare it
    uint64_t n_traced, traced_ns; // runs that were recorded, and how long they took
};

// What a plan holds of the scheduler's memory and of backends: the only part of a plan that comes and goes while it is
// kept. Refs on memory are given back when the plan is unbound, what backends made when they are freed.
struct gb_sched_binding {
    struct gb_sched_input * in; // borrowed, as the next two: parts of the same plan
    const struct gb_sched_program * program;
    const struct gb_sched_layout * layout;
    bool is_bound; // the user's tensors were given the places in the input's `keys`
    bool stale; // its shadows have no addresses, or its arenas were given up
    struct gb_mem ** mem; // owned; per id, roots: where it is bound; NULL if not by us
    struct gb_bound_copy * copies; // owned; per copy of the program
    struct gb_bound_split * splits; // owned; per split of the program
    gb_mem_list arenas; // refs held: chunks
    gb_mem_list leafs; // refs held: own leaf stores, in the order of the leaf entries of the layout's chunks
    gb_mem_list shared; // refs held: stores of other plans
    GB_VEC(ggml_backend_event_t) events; // owned; as many as the plan's waits need
    unsigned n_freed; // buffers in the process that were gone when its splits were prepared
    unsigned turn; // number of runs so far; chooses the stage of copies that are kept several times
};

// memory.c
// A new buffer without a reference; NULL: no memory, even after spares and unused replicas were given up.
struct gb_mem * gb_sched_mem_new(struct ggml_backend_sched * s, int backend, size_t size, enum gb_mem_kind kind);
// The buffer behind an item of the plan, `leaf`: in a leaf store; NULL: the plan holds none yet.
struct gb_mem * gb_sched_mem_of_item(const struct ggml_backend_sched * s, const struct gb_sched_binding * binding,
    const struct gb_item * item);
// The last unref gives the memory back, or keeps a leaf store as a spare. The object lives on.
void gb_sched_mem_ref(struct gb_mem * mem);
void gb_sched_mem_unref(struct ggml_backend_sched * s, struct gb_mem * mem);
// A store for leafs, with one ref: a spare that is large enough, or a new one. NULL: no memory.
struct gb_mem * gb_sched_take_store(struct ggml_backend_sched * s, int backend, size_t size);
// Makes sure that there are spares for the leafs of such a plan.
enum ggml_status gb_sched_reserve_stores(struct ggml_backend_sched * s, const struct gb_sched_binding * binding);
enum ggml_status gb_sched_reserve_arena(struct ggml_backend_sched * s, int backend, size_t size); // its first chunk
// Where memory is short, a chunk grows at the cost of earlier plans, which are bound again before they run.
enum ggml_status gb_sched_reserve_arenas(struct ggml_backend_sched * s, struct gb_sched_binding * binding);
void gb_sched_free_mems(struct ggml_backend_sched * s);
// NULL: no memory. Borrowed; a later call may free it and return a larger one.
ggml_tallocr_t gb_sched_inputs(struct ggml_backend_sched * s, int backend);

// replica.c
// The plan gets all its replicas whose source has a place, or none. ALLOC_FAILED: no memory; then the plan holds no
// replica.
enum ggml_status gb_sched_take_replicas(struct ggml_backend_sched * s, struct gb_sched_binding * binding);
void gb_sched_release_replicas(struct gb_sched_binding * binding);
// Frees the replicas of a backend (-1: of all) that no plan holds; true if there were any.
bool gb_sched_drop_spare_replicas(struct ggml_backend_sched * s, int backend);
void gb_sched_drop_orphans(struct ggml_backend_sched * s); // when a buffer with replicas was freed since
void gb_sched_free_replicas(struct ggml_backend_sched * s);
// Called at the begin of a run: finds which replicas have to be filled.
void gb_sched_look_at_replicas(struct gb_sched_binding * binding);
// Called at its end: what the run itself wrote was not in them.
void gb_sched_keep_replicas(struct gb_sched_binding * binding);
void gb_sched_forget_replicas(struct ggml_backend_sched * s); // after a failure: their content is not known

// bind.c
// Binds nothing yet; ALLOC_FAILED: no memory.
enum ggml_status gb_sched_init_binding(struct gb_sched_input * in, const struct gb_sched_program * program,
    const struct gb_sched_layout * layout, struct gb_sched_binding * binding);
// One store for each leaf entry of the layout; false: no memory, and what was taken stays with the plan.
bool gb_sched_take_stores(struct ggml_backend_sched * s, struct gb_sched_binding * binding); // for the plan's leafs
// All or nothing. ALLOC_FAILED: no memory; other statuses are those of the buffers and of copies of contents.
enum ggml_status gb_sched_bind(struct ggml_backend_sched * s, struct gb_sched_binding * binding);
// Gives the memory back and touches no tensor.
void gb_sched_free_binding(struct ggml_backend_sched * s, struct gb_sched_binding * binding);

// prepared.c
// Host memory where inputs are kept until they have travelled; what the host copies itself needs none.
enum ggml_status gb_sched_make_stages(struct ggml_backend_sched * s, struct gb_sched_binding * binding);
void gb_sched_drop_prepared(struct ggml_backend_sched * s, struct gb_sched_binding * binding); // graphs
// Drops all of it: the plan can be asked, and never run again.
void gb_sched_disarm(struct ggml_backend_sched * s, struct gb_sched_binding * binding);

// location.c
// See gb_locate_fn.
bool gb_sched_find_location(const struct ggml_backend_sched * s, const struct ggml_tensor * t, bool computed,
    int chosen, enum gb_location * location);

#endif // GB_SCHED_MEMORY_MEMORY_H
