// sched.h - the scheduler inside: what a plan holds, whose memory is whose, and which file does what.
//
//   assign.c    which backend runs each node (pure)             split.c   where the node list is cut (pure)
//   collect.c   a graph's tensors as dense ids, and what memory each has     place.c   the assignment of a plan
//   copies.c    the program: copies, shadow nodes, write-backs  steps.c   the order in which it is issued, and who does
//   what
//   layout.c    offsets in the arenas, packing of leafs         replay.c  the same, from an earlier plan
//   hazards.c   who has to wait for whom                        gone.c    backends that are freed before the scheduler
//   memory.c    the buffers: arenas, leaf stores, retired ones  replica.c copies that are kept from run to run
//   bind.c      writes data and buffer of the user's tensors    plan.c    making, comparing and keeping plans
//   run.c       executes a plan                                 check.c   judges the order while it runs
//   judge.c     judges the places
//   stats.c     counters                                    trace.c   what ran when
//   explain.c   texts                                           fallback.c  nodes that a better backend refuses
//   query.c     what a plan decided                             sched.c   the public functions
//   cost.h      the cheapest placement, by prices               cost_table.c  prices, from what the user says that work
//   costs
//
// The user's graph is never changed. A node that must read or write a copy runs as a shadow: a clone of its tensor,
// owned by the plan, whose sources are replaced. Binding writes only buffer, data and extra of tensors that had no
// memory, and of their views.
//
// Memory, per backend:
//   arena   results and copies of one run. All plans share it; a plan's content is overwritten by the next plan that
//           runs. Tensors that carry a handle of it count as unplaced for every scheduler: they are placed again.
//   leafs   unplaced tensors that no node computes (inputs, weights of small programs). They keep their memory, and so
//           their content, as long as a plan that uses them is kept: until reset, or until GB_SCHED_PLANS_MAX other
//           graphs came by.
//   replicas  copies of the user's weights (and of what else nobody writes), filled again only when their source was
//             written. They belong to
//           the scheduler, not to a plan, and stay until memory is short or a buffer that has some is freed.
//   inputs  what programs place themselves through ggml_backend_sched_get_tallocr. Never reused by us.
//
// A handle (struct ggml_backend_buffer) of the scheduler is never freed before the scheduler itself, because the user's
// tensors go on pointing to it; memory that is given back leaves a handle of size 0 without hooks behind (a "retired"
// one), so an old pointer is recognised and never confused with a live buffer of somebody else. Handles of the
// scheduler have usage GB_USAGE_SCHED. Therefore reset and free need not touch tensors, whose context may be gone: a
// tensor that carries a handle of ours which no kept plan vouches for is simply unplaced.
#ifndef GB_SCHED_SCHED_H
#define GB_SCHED_SCHED_H

#include "backend/backend.h"
#include "base/hash.h"
#include "base/vec.h"
#include "ggml-backend-impl.h"
#include "ggml-backend.h"
#include "sched/assign/rules.h"
#include "sched/program/split.h"
#include "tensor/tensor.h"

enum { GB_SCHED_PLANS_MAX = 16, GB_SCHED_SPARES_MAX = 8 };

// The usage of the scheduler's own buffers, beyond the public values.
#define GB_USAGE_SCHED ((enum ggml_backend_buffer_usage) 0x5343)

// -------------------------------------------------------------------------------------------------------------- memory

enum gb_mem_kind { GB_MEM_ARENA, GB_MEM_LEAFS, GB_MEM_INPUTS, GB_MEM_REPLICAS };

// one buffer of the scheduler; the object lives as long as the scheduler
struct gb_mem {
    ggml_backend_buffer_t buffer; // owned
    char *                base;
    size_t                size; // bytes; 0 when retired
    int                   backend;
    enum gb_mem_kind      kind;
    int                   n_refs; // the arena slot, and each plan bound to it
    unsigned              epoch;  // of leaf stores: resets before it was last handed to a plan
};

typedef GB_VEC(struct gb_mem *) gb_mem_list;

// a copy of bytes of the user, kept from run to run
struct gb_replica {
    const struct ggml_backend_buffer * source; // only compared
    const char *                       data;   // its first byte there; only compared
    struct ggml_tensor                 layout; // type, ne and nb
    int                                backend;
    struct gb_mem *                    mem; // a ref held
    size_t                             offset;
    uint64_t                           version; // of the source's buffer that it equals; 0: none
    uint64_t                           checked; // the same, as the checker saw it; 0: it saw nothing
    int                                n_refs;  // plans
};

// what the scheduler keeps per backend
struct gb_sched_device {
    ggml_backend_t              backend; // borrowed
    ggml_backend_buffer_type_t  buft;    // borrowed
    size_t                      alignment, max_size;
    size_t                      leaf_unit;        // leafs placed there begin at multiples of it
    gb_mem_list                 arena;            // chunk i; refs held. More than one only when max_size demands it
    struct gb_mem *             inputs;           // behind `tallocr`; NULL before its first use
    ggml_tallocr_t              measure, tallocr; // owned
    size_t                      inputs_need;      // bytes
    struct gb_backend_watch     watch;
    struct ggml_backend_sched * sched;
    ggml_backend_t              freed;    // what `backend` was before its owner freed it; only compared; NULL: it lives
    struct ggml_backend         no_more;  // stands for it then
    char                        name[64]; // for users: the backend's, with a number if one before it is called the same
};

// ---------------------------------------------------------------------------------------------------------------- plan

// what memory a root has
enum gb_home {
    GB_HOME_VIEW,   // not a root
    GB_HOME_ARENA,  // placed by the plan, computed by a node
    GB_HOME_LEAF,   // placed by the plan, content from outside
    GB_HOME_SHARED, // a leaf that another kept plan placed
    GB_HOME_USER,   // in a buffer of the user (or of another scheduler)
    GB_HOME_HOST,   // plain host memory, no buffer
};

struct gb_item { // a tensor that uses memory of one root id or copy: where in its arena or leaf store
    int     backend;
    int     chunk;
    size_t  offset, size; // bytes
    bool    valid;        // is placed by the plan
    int64_t lower, upper; // of those in an arena: positions in the program (layout.c), half-open
    // of those in an arena: those with the same number share their memory one after the other; the id of the first of
    // them
    int64_t line;
    // bytes that may be used there: a plan of the same structure takes the place for as much (replay.c)
    size_t room;
};

// what the plan knows of a tensor of the graph
struct gb_id {
    struct ggml_tensor *       tensor; // borrowed
    int32_t                    root;   // id of the owner of its memory
    uint8_t                    home;   // enum gb_home, of roots
    bool                       computes;
    bool                       keep; // roots: to the end of the graph
    struct gb_item             item; // roots of home ARENA and LEAF
    struct gb_mem *            mem;  // roots: where it is bound; NULL if not by us
    ggml_backend_buffer_type_t buft; // borrowed; of the buffer, for roots of home USER
};

struct gb_shadow {
    struct ggml_tensor tensor;
    int32_t            origin; // id of the original
    int32_t            copy;   // its memory is in this copy; -1: in the original's
};

struct gb_shadow_block;

struct gb_shadow_iter { // all zero: before the first
    struct gb_shadow_block * block;
    int                      next;
    bool                     started;
};

// what an input held when a run was issued
struct gb_stage {
    struct ggml_tensor   tensor; // owns its data
    ggml_backend_event_t event;  // owned; after the copy from here
};

struct gb_copy { // content of a root, or of bytes [lo, hi) of it, made on another backend before a split runs
    int  root, backend, split;
    int  shown; // id of the tensor that was first read through it
    bool whole; // has the root's layout; else plain bytes
    bool fill;  // false: fully written by the node that needs it, nothing to copy in
    // a node reads it where weights stand: as the matrix of a product, or as a table of rows
    bool                as_weight;
    bool                kept; // from run to run, in a replica; else in the arena
    size_t              lo, hi;
    int                 version; // of the root that it equals (while building)
    struct gb_shadow *  dst;
    struct gb_shadow *  range; // the source as plain bytes; NULL when whole
    struct gb_item      item;
    struct gb_replica * replica; // of kept ones: a ref held; NULL: to be taken
    uint64_t            seen;    // of kept ones: the version of the source when the run began
    bool                due;     // of kept ones: this run has to fill it
    int                 merged;  // travels with this copy, behind its bytes; -1: by itself
    size_t              span;    // bytes of those that travel with it, from its lo; hi - lo if there are none
    // goes through host memory of the plan, so that the user can set the source again at once
    bool              staged;
    struct gb_stage * stages; // of staged ones: owned, one per graph in flight; NULL: not yet
};

struct gb_write_back {
    int                node;   // after this node ...
    struct gb_shadow * from;   // ... its result, on a copy, goes to where it belongs
    struct gb_shadow * marker; // stands for it in the lifetimes
};

enum gb_step_kind { GB_STEP_COPY, GB_STEP_COMPUTE, GB_STEP_BACK };

// what is issued at once; [waits_begin, waits_end) is a part of the plan's list
struct gb_step {
    uint8_t kind;  // enum gb_step_kind
    int32_t index; // of the copy, split or write-back
    int32_t actor; // the backend in whose queue it is; n_backends: the host, which is done when the call returns
    int32_t event; // recorded after it; -1: nobody waits for it
    size_t  waits_begin, waits_end;
    size_t  again_begin, again_end; // when the run before was the same plan's and may not be complete
};

struct gb_wait {
    int32_t step;    // that must be complete
    bool    by_host; // else the queue waits
    bool    hazard;  // memory is reused; else content is needed
};

struct gb_split { // each [begin, end) is a part of the plan's list of that name
    int                       backend;
    int                       start, end; // nodes
    size_t                    copies_begin, copies_end;
    size_t                    transfers_begin, transfers_end;
    size_t                    exec_begin, exec_end;
    size_t                    backs_begin, backs_end;
    int64_t                   lower, upper;        // positions of its nodes in the program (layout.c)
    uint64_t                  n_traced, traced_ns; // runs that were recorded, and how long they took
    ggml_backend_graph_plan_t prepared;            // owned; NULL: not yet, or the backend has none
    bool                      no_plan;             // the backend could not prepare it
};

struct gb_chunk_need { // a buffer that the plan needs
    int    backend, chunk;
    bool   leafs; // a leaf store of its own; else chunk `chunk` of the arena
    size_t size;  // bytes
};

// bytes
struct gb_backend_need {
    size_t replicas; // of weights and the like, perhaps shared with other plans
    size_t peak;     // of the arena, all chunks
    size_t leafs;    // leafs placed by this plan
    size_t no_reuse; // if nothing shared memory, without leafs
    size_t load;     // the most alive at once
    size_t bound;    // no plan of the arena needs less
    size_t work;     // scratch memory of the backend itself
    bool   proved;   // nor than peak
};

struct gb_fallback { // a node that a better backend refuses
    int32_t node, refused_by;
    double  flops;
    size_t  n_copies, copied; // bytes
    char    reason[192];
};

struct gb_sched_plan {
    // what it was made from
    int                   n_nodes, n_leafs, n_ids;
    struct ggml_tensor ** nodes; // borrowed pointers, owned array: ids 0 .. n_nodes-1, then the leafs, then the rest
    struct ggml_tensor ** leafs;
    struct gb_ptrmap      map; // tensor -> id
    GB_VEC(struct gb_id) ids;
    struct ggml_tensor *   key; // per id: the tensor as it was when planned; after binding: as it is bound
    uint32_t *             src_begin;
    int32_t *              srcs;
    struct gb_assignment * assignment; // per id
    int32_t *              user;       // per id
    bool                   has_users;  // some of them are set
    enum gb_assign_policy  policy;
    uint8_t *              weight;   // per id: its buffer's usage was WEIGHTS
    uint8_t *              supports; // n_nodes x n_backends: 0 unknown, 1 yes, 2 no

    // what was decided
    const struct gb_sched_relief *       relief;    // borrowed, while the plan is made; NULL: none
    bool                                 predicted; // placed by costs:
    struct ggml_backend_sched_prediction prediction;
    // borrowed, while the plan is made: what travels together travels together there, too; NULL: none
    const struct gb_sched_plan * guide;
    const struct gb_sched_plan * model; // borrowed, while the plan is made: its offsets were taken; NULL: none
    bool                         lean;  // memory was short: no replicas, no copies ahead of time
    int                          n_backends;
    GB_VEC(struct gb_split) splits;
    GB_VEC(struct gb_copy) copies;
    GB_VEC(int32_t) transfers;         // indices of the copies that are filled, ascending
    GB_VEC(struct ggml_tensor *) exec; // what runs: nodes of the user or shadows
    GB_VEC(int32_t) exec_node;         // per exec: its node
    GB_VEC(struct gb_write_back) backs;
    GB_VEC(struct gb_step) steps; // in the order of issue
    GB_VEC(struct gb_wait) waits;
    GB_VEC(ggml_backend_event_t) events; // owned; the first n_events are to be there
    size_t                   n_events;
    size_t                   n_kept;   // copies
    size_t                   n_staged; // copies
    int                      n_copies; // of inputs: graphs in flight
    unsigned                 turn;     // runs
    struct gb_shadow_block * shadows;  // owned

    struct gb_backend_need * need; // owned, per backend
    GB_VEC(struct gb_fallback) fallbacks;
    GB_VEC(struct gb_chunk_need) chunks;

    // where it is bound
    bool        bound;     // the user's tensors were given the places in `key`
    bool        stale;     // its own tensors were not, or its arenas were given up
    bool        foreign;   // uses buffers of the user
    bool        draft;     // nothing was allocated for it yet, so nobody takes offsets from it
    unsigned    n_freed;   // buffers in the process that were gone when its splits were prepared
    gb_mem_list mems;      // refs held: arena chunks
    gb_mem_list leaf_mems; // refs held: own leaf stores, in the order of the leaf entries of `chunks`
    gb_mem_list shared;    // refs held: stores of other plans
};

// ----------------------------------------------------------------------------------------------------------- scheduler

struct gb_trace;
struct gb_check;
struct gb_costs;

enum gb_mutation { GB_DROP_COPY, GB_DROP_WAIT, GB_N_MUTATIONS };

struct ggml_backend_sched {
    int                      n_backends;
    struct gb_sched_device * devices; // owned
    enum gb_assign_policy    policy;
    struct gb_costs *        costs; // owned; NULL: none given

    struct gb_ptrmap user; // tensor -> backend index of the user, -1: none

    GB_VEC(struct gb_mem *) mems; // all handles ever made, owned
    struct gb_ptrmap mem_of;      // buffer handle -> index in mems

    GB_VEC(struct gb_sched_plan *) plans;               // owned, latest used first
    struct gb_sched_plan * current;                     // the plan whose results the arenas hold; NULL: none
    struct gb_sched_plan * last;                        // the plan that queries are about; NULL: none
    bool                   measured;                    // init_measure was called
    GB_VEC(struct gb_replica *) replicas;               // owned
    unsigned                        n_replicated_freed; // buffers that were gone when replicas were looked through
    struct gb_check *               check;              // owned; NULL: off
    struct ggml_backend_sched_stats stats;
    struct gb_trace *               trace; // owned; NULL: never asked for
    // for tests of the checker: asked before each transfer and wait; NULL: none
    bool (*leaves_out)(enum gb_mutation what);
    int                    n_copies;  // of inputs, >= 1
    struct gb_sched_plan * in_flight; // whose run was issued last and not waited for; NULL: not known
    bool                   hold;      // memory that is retired stays until this is lifted, see gb_sched_hold
    bool                   running;   // work may be queued
    // of a failure, or of giving up, that another call was told: earlier runs may be incomplete; the next wait says so
    enum ggml_status lost;
    unsigned         generation;      // gb_fork_generation() in which the last run was issued
    uint32_t         user_thread;     // gb_thread_number() of who is inside of a call; 0: nobody
    unsigned         user_generation; // in which it came
    bool             in_callback;
    unsigned         n_resets;

    ggml_backend_sched_eval_callback callback;
    void *                           callback_data;
    GB_VEC(char) text; // of explain
};

static inline bool gb_sched_is(const struct gb_sched_device * d, ggml_backend_t backend) {
    return backend && (d->backend == backend || d->freed == backend);
}

// Its calls return before the work is done.
static inline bool gb_sched_has_queue(const struct ggml_backend_sched * s, int backend) {
    return s->devices[backend].backend->iface.synchronize != NULL;
}

// The backend that the user chose for a tensor, -1: none.
static inline int gb_sched_user_of(const struct ggml_backend_sched * s, const struct ggml_tensor * t) {
    const int64_t backend = gb_ptrmap_get(&s->user, t);
    return backend == GB_PTRMAP_ABSENT ? -1 : (int) backend;
}

// NULL: the buffer is not one of the scheduler's.
static inline struct gb_mem * gb_sched_mem_of(const struct ggml_backend_sched * s, ggml_backend_buffer_t buffer) {
    const int64_t i = buffer ? gb_ptrmap_get(&s->mem_of, buffer) : GB_PTRMAP_ABSENT;
    return i == GB_PTRMAP_ABSENT ? NULL : s->mems.data[i];
}

// collect.c: fills ids, map, key, srcs, homes of a plan.
enum ggml_status gb_sched_collect(struct ggml_backend_sched * s, struct gb_sched_plan * p,
    const struct ggml_cgraph * graph);

// location.c
// The home of a root as it stands now. LEAF and ARENA mean: to be placed. Reports and returns false if its content is
// lost.
bool gb_sched_find_home(struct ggml_backend_sched * s, const struct ggml_tensor * t, bool computed, int user,
    enum gb_home * home);
// The kept plan that vouches for the content of a leaf in its store, and the one whose arena content is still there.
bool gb_sched_leaf_is_bound(const struct ggml_backend_sched * s, const struct ggml_tensor * t);
bool gb_sched_result_is_alive(const struct ggml_backend_sched * s, const struct ggml_tensor * t);

// place.c
enum ggml_status gb_sched_assign_plan(struct ggml_backend_sched * s, struct gb_sched_plan * p);

// reach.c
bool gb_sched_supports_buft(const struct ggml_backend_sched * s, ggml_backend_buffer_type_t buft, int backend);
// the type of the memory that a root has already; NULL: it has none yet
ggml_backend_buffer_type_t gb_sched_placed_buft(const struct gb_sched_plan * p, int root);
// can `backend` use memory that is placed on `of_backend`
bool gb_sched_shares(const struct ggml_backend_sched * s, int backend, int of_backend);
// can `backend` use the memory that the root has or will have
bool gb_sched_plan_reaches(const struct ggml_backend_sched * s, const struct gb_sched_plan * p, int backend, int root);

// plan.c
// PLAN: allocate nothing; COMPUTE: the leafs must have their content
enum gb_prepare { GB_PREPARE_PLAN, GB_PREPARE_RESERVE, GB_PREPARE_BIND, GB_PREPARE_COMPUTE };
enum ggml_status gb_sched_prepare(struct ggml_backend_sched * s, struct ggml_cgraph * graph, enum gb_prepare what,
    struct gb_sched_plan ** plan);

// keep.c
void             gb_sched_free_plan(struct ggml_backend_sched * s, struct gb_sched_plan * p); // NULL is fine
enum ggml_status gb_sched_add_plan(struct ggml_backend_sched * s, struct gb_sched_plan * p);  // takes it in any case
void             gb_sched_move_to_front(struct ggml_backend_sched * s, size_t k);
void             gb_sched_drop_first(struct ggml_backend_sched * s);
void             gb_sched_drop_oldest(struct ggml_backend_sched * s); // those beyond GB_SCHED_PLANS_MAX
void             gb_sched_drop_plans(struct ggml_backend_sched * s);  // all
// they can be asked, and never run again: events and what backends prepared is freed
void gb_sched_disarm_plans(struct ggml_backend_sched * s);

// cost_table.c
// how a plan was made again because of memory limits
struct gb_sched_relief {
    double pressure[64]; // per backend: price of a byte
    double bound_us;     // of placements without limits
    int    rounds;
};
// any policy
enum ggml_status gb_sched_assign_by_cost(struct ggml_backend_sched * s, struct gb_sched_plan * p,
    const struct gb_assign_graph * graph);
enum ggml_status gb_sched_relieve(struct ggml_backend_sched * s, const struct gb_sched_plan * p,
    struct gb_sched_relief * relief, bool * again);
double           gb_sched_flops(const struct ggml_tensor * t);
// a checked copy of the user's table; owned by the caller
enum ggml_status gb_costs_new(const struct ggml_backend_sched * s, const struct ggml_backend_cost_table * table,
    struct gb_costs ** costs);
void             gb_costs_free(struct gb_costs * costs);

// copies.c
enum ggml_status gb_sched_make_program(struct ggml_backend_sched * s, struct gb_sched_plan * p);

// shadow.c
// a clone without memory and flags; NULL: no memory
struct gb_shadow * gb_sched_new_shadow(struct gb_sched_plan * p, int origin, int copy);
struct gb_shadow * gb_sched_next_shadow(const struct gb_sched_plan * p, struct gb_shadow_iter * it); // NULL at the end
void               gb_sched_free_shadows(struct gb_sched_plan * p);
// roots and what stands for them -> id; copies: n_ids + c
bool gb_sched_map_storage(const struct gb_sched_plan * p, struct gb_ptrmap * map);

// steps.c
enum ggml_status gb_sched_order_steps(struct ggml_backend_sched * s, struct gb_sched_plan * p);

// hazards.c: who waits for whom, from what the steps read and write. Needs the layout.
enum ggml_status gb_sched_find_hazards(struct ggml_backend_sched * s, struct gb_sched_plan * p);

// replica.c
// all of the plan's whose source has a place, or none
enum ggml_status gb_sched_take_replicas(struct ggml_backend_sched * s, struct gb_sched_plan * p);
void             gb_sched_release_replicas(struct gb_sched_plan * p);
// -1: of all; true if there were any
bool gb_sched_drop_spare_replicas(struct ggml_backend_sched * s, int backend);
void gb_sched_drop_orphans(struct ggml_backend_sched * s); // when a buffer with replicas was freed since
void gb_sched_free_replicas(struct ggml_backend_sched * s);
// at the begin of a run: which ones have to be filled
void gb_sched_look_at_replicas(struct gb_sched_plan * p);
// at its end: what the run itself wrote was not in them
void gb_sched_keep_replicas(struct gb_sched_plan * p);
void gb_sched_forget_replicas(struct ggml_backend_sched * s); // after a failure: their content is not known

// check.c
enum ggml_status gb_sched_set_check(struct ggml_backend_sched * s, bool check);
void             gb_check_free(struct gb_check * check);
enum ggml_status gb_check_begin(struct ggml_backend_sched * s, struct gb_sched_plan * p);
void             gb_check_wait(struct ggml_backend_sched * s, const struct gb_step * step, const struct gb_wait * wait);
// before it is issued
enum ggml_status gb_check_step(struct ggml_backend_sched * s, const struct gb_step * step, bool filled);
// after it is complete
enum ggml_status gb_check_done(struct ggml_backend_sched * s, const struct gb_step * step);
enum ggml_status gb_check_end(struct ggml_backend_sched * s);

// stats.c
enum ggml_backend_sched_reason gb_sched_reason(const struct gb_copy * copy);
void                           gb_sched_count_copy(struct ggml_backend_sched * s, const struct gb_copy * copy);
void                           gb_sched_count_back(struct ggml_backend_sched * s, const struct gb_write_back * back);

// trace.c: called by run.c and plan.c, only while a record is being made. A record never makes a run fail.
bool              gb_sched_is_traced(const struct ggml_backend_sched * s);
struct gb_trace * gb_trace_new(int n_backends);           // NULL: no memory
void              gb_trace_stop(struct gb_trace * trace); // the record stays; NULL is fine
void              gb_trace_free(struct gb_trace * trace);
void              gb_trace_disarm(struct gb_trace * trace); // the record stays, its clocks are given back; NULL is fine
void              gb_trace_plan(struct ggml_backend_sched * s, int64_t start_ns, const char * what);
void              gb_trace_begin_run(struct ggml_backend_sched * s, struct gb_sched_plan * p);
void              gb_trace_wait(struct ggml_backend_sched * s, const struct gb_step * on, int64_t start_ns);
void              gb_trace_begin_step(struct ggml_backend_sched * s, const struct gb_step * step);
// true: to be waited for now, then ...
bool gb_trace_end_step(struct ggml_backend_sched * s, const struct gb_step * step, bool made);
void gb_trace_step_is_done(struct ggml_backend_sched * s);           // ... this
void gb_trace_end_run(struct ggml_backend_sched * s, bool complete); // when all of it has been waited for

// layout.c
enum ggml_status gb_sched_lay_out_leafs(struct ggml_backend_sched * s, struct gb_sched_plan * p);
enum ggml_status gb_sched_lay_out(struct ggml_backend_sched * s, struct gb_sched_plan * p);

// judge.c
// each plan that was made
enum ggml_status gb_sched_judge(const struct ggml_backend_sched * s, const struct gb_sched_plan * p);

// replay.c
struct gb_liveness;
// tensor ids, then copies; NULL: not in an arena
const struct gb_item * gb_sched_arena_item(const struct gb_sched_plan * p, int64_t id);
// does the same, whatever the sizes
bool gb_sched_is_like(const struct gb_sched_plan * p, const struct gb_sched_plan * model);
// A plan whose places this one may be able to take, if its program becomes the same: known before the program is made.
// NULL: none.
const struct gb_sched_plan * gb_sched_find_guide(const struct ggml_backend_sched * s, const struct gb_sched_plan * p);
// Places of the lines, with their offsets in the model; size_of: bytes, per id. False: they do not fit, or memory is
// out.
bool gb_sched_take_offsets(const struct gb_sched_plan * model, const struct gb_liveness * live, const size_t * size_of,
    struct gb_item * at);

// memory.c
struct gb_mem * gb_sched_mem_new(struct ggml_backend_sched * s, int backend, size_t size, enum gb_mem_kind kind);
struct gb_mem * gb_sched_mem_of_item(const struct ggml_backend_sched * s, const struct gb_sched_plan * p,
    const struct gb_item * item, bool leaf);
void            gb_sched_mem_ref(struct gb_mem * mem);
void            gb_sched_mem_unref(struct ggml_backend_sched * s, struct gb_mem * mem);
// for leafs, with one ref
struct gb_mem * gb_sched_take_store(struct ggml_backend_sched * s, int backend, size_t size);
// spares, for leafs of such a plan
enum ggml_status gb_sched_reserve_stores(struct ggml_backend_sched * s, const struct gb_sched_plan * p);
enum ggml_status gb_sched_reserve_arena(struct ggml_backend_sched * s, int backend, size_t size); // its first chunk
enum ggml_status gb_sched_reserve_arenas(struct ggml_backend_sched * s, struct gb_sched_plan * p);
void             gb_sched_free_mems(struct ggml_backend_sched * s);
// While set, no memory of the scheduler is given back before the scheduler is freed. For the Python package, whose
// arrays look into it.
void           gb_sched_hold(struct ggml_backend_sched * s, bool hold);
ggml_tallocr_t gb_sched_inputs(struct ggml_backend_sched * s, int backend);

// bind.c
bool             gb_sched_take_stores(struct ggml_backend_sched * s, struct gb_sched_plan * p); // for the plan's leafs
enum ggml_status gb_sched_bind(struct ggml_backend_sched * s, struct gb_sched_plan * p);
// gives the memory back, touches no tensor
void gb_sched_unbind(struct ggml_backend_sched * s, struct gb_sched_plan * p);

// prepared.c
// one for each step that somebody waits for
enum ggml_status gb_sched_make_events(struct ggml_backend_sched * s, struct gb_sched_plan * p);
// where inputs are kept until they have travelled; what the host copies itself needs none
enum ggml_status gb_sched_make_stages(struct ggml_backend_sched * s, struct gb_sched_plan * p);
void             gb_sched_drop_prepared(struct ggml_backend_sched * s, struct gb_sched_plan * p); // graphs
// all of it: the plan can be asked, and never run again
void gb_sched_disarm(struct ggml_backend_sched * s, struct gb_sched_plan * p);

// gone.c: backends that are freed before the scheduler is
void gb_sched_watch(struct ggml_backend_sched * s);
void gb_sched_unwatch(struct ggml_backend_sched * s);

// run.c
enum ggml_status gb_sched_run(struct ggml_backend_sched * s, struct gb_sched_plan * p, const char * func);

// wait.c
enum ggml_status gb_sched_wait(struct ggml_backend_sched * s); // for all backends
// the same, for a call that is about something else
enum ggml_status gb_sched_wait_first(struct ggml_backend_sched * s);
// for one; what it has queued is cancelled if somebody gave up before
enum ggml_status gb_sched_wait_for_backend(ggml_backend_t backend, bool gave_up);
// INVALID_STATE when a backend was freed
enum ggml_status gb_sched_check_backends(const struct ggml_backend_sched * s, const char * func);
// after a run: that the files which devices copied from were there
enum ggml_status gb_sched_check_files(const struct gb_sched_plan * p);

// fallback.c
enum ggml_status           gb_sched_find_fallbacks(struct ggml_backend_sched * s, struct gb_sched_plan * p);
const struct gb_fallback * gb_sched_fallback_of(const struct gb_sched_plan * p, int node); // NULL: it is none
// of what it reads; of its result, too
void gb_sched_count_copies(const struct gb_sched_plan * p, int node, bool of_result, size_t * n, size_t * bytes);

// explain.c
const char * gb_sched_explain(struct ggml_backend_sched * s, struct gb_sched_plan * p, int id);

#endif // GB_SCHED_SCHED_H
