// ggml-backend-sched.h - what this library adds to the scheduler of February 2024's ggml-backend.h, which includes this
// header.
//
//   running   plan without computing, compute without waiting, several runs on their way
//   assigning how nodes find their backends: policies, a table of costs, what it predicts
//   queries   what was decided and why: splits, memory, copies, fallbacks
//   records   counters, and a trace of what ran when
#ifndef GGML_BACKEND_SCHED_H
#define GGML_BACKEND_SCHED_H

#include "ggml-backend.h"

#ifdef __cplusplus
extern "C" {
#endif

// cdef: begin

// ------------------------------------------------------------------------------------------------------ running graphs

// ggml_backend_sched_init_measure, and memory for the inputs that nobody placed. A program that places its inputs with
// ggml_backend_sched_get_tallocr calls init_measure.
GGML_API enum ggml_status ggml_backend_sched_reserve(ggml_backend_sched_t sched, struct ggml_cgraph * measure_graph);

// Plans the graph. Allocates no memory of a backend and touches no tensor. Functions about the last graph then describe
// this plan. Allocating the unchanged graph follows the plan. (If memory is short, the graph is planned again without
// kept copies.)
GGML_API enum ggml_status ggml_backend_sched_plan_graph(ggml_backend_sched_t sched, struct ggml_cgraph * graph);

// Places what is not placed yet; inputs can be set then. graph_compute does it itself when it was not done. Inputs
// placed here keep their place and content until reset, or until 16 other graphs came by; then their memory serves
// others, and who sets them again allocates the graph again first. Results last until another graph is computed, or
// needs memory that is short.
GGML_API enum ggml_status ggml_backend_sched_alloc_graph(ggml_backend_sched_t sched, struct ggml_cgraph * graph);

GGML_API enum ggml_status ggml_backend_sched_graph_compute_async(ggml_backend_sched_t sched,
    struct ggml_cgraph * graph);
GGML_API enum ggml_status ggml_backend_sched_synchronize(ggml_backend_sched_t sched);

// How many runs of a graph may be on their way at once, 1 to 64 (1 at first). With 2 or more, inputs (ggml_set_input)
// in host memory may be set again as soon as ggml_backend_sched_graph_compute_async returns: what they held is taken
// then. Inputs that the scheduler places are placed in host memory, where the last backend has it. Another run of the
// same graph follows without waiting for the first. Results are read after ggml_backend_sched_synchronize, or queued
// with ggml_backend_tensor_get_async on the backend that computes them.
GGML_API enum ggml_status ggml_backend_sched_set_n_copies(ggml_backend_sched_t sched, int n);
GGML_API int ggml_backend_sched_get_n_copies(ggml_backend_sched_t sched);

// Checks every run: that each access is ordered after those that it must not meet, and that each read finds the content
// that is meant. An error names the two. Slow: one step after the other, and what is dead in the arenas is filled with
// NaN. Also by environment: GGML_SCHED_CHECK=1.
GGML_API enum ggml_status ggml_backend_sched_set_check(ggml_backend_sched_t sched, bool check);

// ----------------------------------------------------------------------------------------------------- assigning nodes

// How nodes find their backend when the user did not say. WEIGHTS: where their weights are, spread over the neighbours.
// SOURCES: where their best source is. COST: so that the graph takes the least time, by ggml_backend_sched_set_costs;
// without costs the same as WEIGHTS. Takes effect with the next graph.
enum ggml_backend_sched_policy {
    GGML_BACKEND_SCHED_POLICY_WEIGHTS = 0,
    GGML_BACKEND_SCHED_POLICY_SOURCES = 1,
    GGML_BACKEND_SCHED_POLICY_COST = 2,
};
GGML_API enum ggml_status ggml_backend_sched_set_policy(ggml_backend_sched_t sched,
    enum ggml_backend_sched_policy policy);

// Kinds of ops that cost alike.
enum ggml_backend_cost_class {
    GGML_BACKEND_COST_ANY = 0, // for what has no entry of its own
    GGML_BACKEND_COST_MATMUL = 1, // matrix products
    GGML_BACKEND_COST_ROWS = 2, // over rows: norms, softmax, rotary embeddings, sums
    GGML_BACKEND_COST_ELEMENTS = 3, // element by element
    GGML_BACKEND_COST_MOVES = 4, // copies, rows picked, repetitions
    GGML_BACKEND_COST_WINDOWS = 5, // convolutions, pools
};
GGML_API enum ggml_backend_cost_class ggml_backend_cost_class_of(enum ggml_op op);

// an op takes launch_us + max(bytes / bytes_per_us, flops / flops_per_us)
struct ggml_backend_op_cost {
    int backend; // index in the scheduler
    int op_class; // enum ggml_backend_cost_class
    int type; // enum ggml_type of the first source; -1: any
    double launch_us;
    double bytes_per_us, flops_per_us; // > 0; infinity is fine
};
// a copy takes launch_us + bytes / bytes_per_us
struct ggml_backend_copy_cost {
    int from, to; // backends
    double launch_us, bytes_per_us;
};
struct ggml_backend_cost_table {
    // for each backend at least one of class ANY and type -1; exact entries go first, then those of the class
    const struct ggml_backend_op_cost * ops;
    size_t n_ops;
    const struct ggml_backend_copy_cost * copies; // for every two different backends, both ways
    size_t n_copies;
    double split_us; // a change of backends
    double weight_runs; // runs that a copy of a weight serves, >= 1; 0: 1
    // per backend: what the scheduler may allocate for a graph; 0: no limit; NULL: none at all
    const size_t * max_bytes;
};
// For the policy COST. The table is copied. NULL forgets it. Forgets placements like
// ggml_backend_sched_reset, but keeps the assignments of the user.
GGML_API enum ggml_status ggml_backend_sched_set_costs(ggml_backend_sched_t sched,
    const struct ggml_backend_cost_table * table);

// by the costs; microseconds, without anything running at the same time
struct ggml_backend_sched_prediction {
    double us, weights_us; // of the last graph; as the policy WEIGHTS would have it
    double bound_us; // nothing is cheaper
    bool proved; // us is the least possible
};
// All times are -1 if the last graph was not placed by costs.
GGML_API enum ggml_status ggml_backend_sched_get_prediction(ggml_backend_sched_t sched,
    struct ggml_backend_sched_prediction * prediction);

// ------------------------------------------------------------------------------------------------------------- queries

// Bytes that the scheduler has allocated for graphs on the backend.
GGML_API size_t ggml_backend_sched_get_buffer_size(ggml_backend_sched_t sched, ggml_backend_t backend);
GGML_API int ggml_backend_sched_get_n_backends(ggml_backend_sched_t sched);
GGML_API ggml_backend_t ggml_backend_sched_get_backend(ggml_backend_sched_t sched, int i);

// The splits of the last graph.
struct ggml_backend_sched_split_info {
    int index;
    ggml_backend_t backend;
    int i_start, i_end; // nodes [i_start, i_end) of the graph
    int n_inputs; // tensors copied to this backend before the split runs
    size_t input_bytes;
};
GGML_API enum ggml_status ggml_backend_sched_get_split(ggml_backend_sched_t sched, int i,
    struct ggml_backend_sched_split_info * info);
// the original
GGML_API struct ggml_tensor * ggml_backend_sched_get_split_input(ggml_backend_sched_t sched, int i_split, int i_input);
// Why the node is where it is, in words: "backend CPU: SIM0 does not support ROPE ..." ; "" if not assigned.
GGML_API const char * ggml_backend_sched_explain(ggml_backend_sched_t sched, struct ggml_tensor * node);

// Memory of the plan of the last graph on a backend: peak bytes, and the bytes that the tensors would take without
// reuse.
GGML_API enum ggml_status ggml_backend_sched_get_memory(ggml_backend_sched_t sched, ggml_backend_t backend,
    size_t * peak, size_t * no_reuse);

// The arena of a backend: what the last graph needs there, and how good its plan is. Bytes.
struct ggml_backend_sched_arena {
    size_t peak; // of the arena, all chunks
    size_t bound; // no plan for these lifetimes needs less
    bool proved; // nor than peak
    size_t leafs; // inputs and the like that the scheduler placed, which keep their memory from run to run
    size_t replicas; // copies of weights that are kept
    size_t no_reuse; // the arena, if no tensors shared memory
};
GGML_API enum ggml_status ggml_backend_sched_get_arena(ggml_backend_sched_t sched, ggml_backend_t backend,
    struct ggml_backend_sched_arena * arena);

// Bytes of scratch memory that the backend takes besides, to compute the last graph: for matrices that are repacked,
// sums by thread and the like. Its splits share it. 0 if the backend does not tell.
GGML_API size_t ggml_backend_sched_get_work_size(ggml_backend_sched_t sched, ggml_backend_t backend);

// One tensor's stay in an arena. Time is the position in the plan's program: the nodes in order, and between them the
// copies.
struct ggml_backend_sched_block {
    ggml_backend_t backend;
    const struct ggml_tensor * tensor; // a node of the graph, or the original of which this is a copy
    bool is_copy;
    // chunks have offsets of their own; more than one only where the largest buffer is too small
    int chunk;
    size_t offset, size; // bytes
    int64_t lower, upper; // half-open
    int root; // the block whose memory this one shares in place; its own index: none
};
// Writes at most n of them (blocks may be NULL if n is 0) and returns how many there are; -1 on failure.
GGML_API int ggml_backend_sched_get_blocks(ggml_backend_sched_t sched, struct ggml_backend_sched_block * blocks, int n);

// A copy of the plan's program, in the order of the splits that need them.
struct ggml_backend_sched_transfer {
    const struct ggml_tensor * tensor; // the original
    ggml_backend_t source; // NULL: memory of the user that belongs to none of the backends
    ggml_backend_t target;
    int split; // before which it is made; of a write-back: after which
    size_t size; // bytes
    bool is_kept; // made again only when the original was written
    bool is_write_back; // a result that goes to where it belongs
    // stands where weights do (matrices of products, tables of rows), in memory of the user on `source` whose
    bool is_unmarked;
    // usage is not WEIGHTS: with it, what reads the tensor would run there
};
GGML_API int ggml_backend_sched_get_n_transfers(ggml_backend_sched_t sched);
GGML_API enum ggml_status ggml_backend_sched_get_transfer(ggml_backend_sched_t sched, int i,
    struct ggml_backend_sched_transfer * transfer);
// The positions [lower, upper) of a split's nodes in the program.
GGML_API enum ggml_status ggml_backend_sched_get_split_span(ggml_backend_sched_t sched, int i, int64_t * lower,
    int64_t * upper);

// A node of the last graph that a backend of higher priority does not support, although that
// backend computes one of the node's sources or readers. The node runs on a slower backend, and its
// data may be copied. Nodes that are placed by the user, by a weight or by their memory do not count.
#define GGML_BACKEND_SCHED_HEAVY_FLOPS 10000000 // about a millisecond of one processor core
#define GGML_BACKEND_SCHED_HEAVY_BYTES 4194304 // about as long, between devices
struct ggml_backend_sched_fallback {
    const struct ggml_tensor * tensor;
    int node; // its index in the graph
    enum ggml_op op;
    ggml_backend_t backend; // that runs it
    ggml_backend_t refused_by; // that does not
    double flops; // of the node, about
    int n_copies; // between backends, of what it reads and of its result
    size_t copied_bytes;
    bool is_heavy; // at least HEAVY_FLOPS, or HEAVY_BYTES copied: worth a warning
    char name[64]; // of the tensor
    char reason[192];
};
GGML_API int ggml_backend_sched_get_n_fallbacks(ggml_backend_sched_t sched);
GGML_API enum ggml_status ggml_backend_sched_get_fallback(ggml_backend_sched_t sched, int i,
    struct ggml_backend_sched_fallback * fallback);

// ------------------------------------------------------------------------------------------------------------- records

// Counters since the scheduler was made, or since the last ggml_backend_sched_reset_stats.
struct ggml_backend_sched_traffic {
    uint64_t n, bytes;
};
struct ggml_backend_sched_stats {
    uint64_t n_runs;
    uint64_t n_plans_found; // of graphs that stood exactly as they were planned before
    uint64_t n_plans_bound; // of graphs that were planned before, whose tensors were given their places again
    uint64_t n_plans_replayed; // made for new sizes, with the offsets of a plan of the same structure
    uint64_t n_plans_made; // from nothing
    // copies that are kept, made because they were new or their original was written
    struct ggml_backend_sched_traffic weights;
    struct ggml_backend_sched_traffic up_to_date; // the same, not made: they still held what they had to
    struct ggml_backend_sched_traffic inputs; // copies of what no node computes, made in each run
    struct ggml_backend_sched_traffic results; // copies of what another split computes
    struct ggml_backend_sched_traffic write_backs; // results that went to where they belong
    uint64_t n_waits_host, n_waits_queue; // events that the host waited for; that one queue waited for in another
    uint64_t plan_ns; // finding and making plans
    uint64_t run_ns; // issuing runs, with what the host itself computes and copies
    uint64_t wait_ns; // the host waiting for devices
};
GGML_API enum ggml_status ggml_backend_sched_get_stats(ggml_backend_sched_t sched,
    struct ggml_backend_sched_stats * stats);
GGML_API enum ggml_status ggml_backend_sched_reset_stats(ggml_backend_sched_t sched);

// A record of what runs when. While it is on, each run is waited for when it was issued; steps of devices with clocks
// of their own (event_new_timed in ggml-backend-impl.h) overlap as ever, those of other devices are waited for one by
// one. Turning it on begins an empty record; turning it off keeps it, until it is turned on again or the scheduler is
// freed.
enum ggml_backend_sched_trace_kind {
    GGML_BACKEND_SCHED_TRACE_PLAN = 0, // a plan was found or made
    GGML_BACKEND_SCHED_TRACE_COPY = 1, // into a split
    GGML_BACKEND_SCHED_TRACE_COMPUTE = 2, // the nodes of a split
    GGML_BACKEND_SCHED_TRACE_WRITE_BACK = 3,
    GGML_BACKEND_SCHED_TRACE_WAIT = 4, // the host, for a step of a device
};
enum ggml_backend_sched_reason { // of a copy
    GGML_BACKEND_SCHED_REASON_NONE = 0,
    GGML_BACKEND_SCHED_REASON_WEIGHT = 1, // kept from run to run, and was out of date
    GGML_BACKEND_SCHED_REASON_INPUT = 2,
    GGML_BACKEND_SCHED_REASON_RESULT = 3, // of another split, or going home
};
struct ggml_backend_sched_trace_event {
    enum ggml_backend_sched_trace_kind kind;
    enum ggml_backend_sched_reason reason;
    uint64_t run; // counted from 0 since the record began; of PLAN: the run that comes next
    int64_t start_ns, end_ns; // on one monotonic clock
    int backend; // index in the scheduler: which computes, or whose memory is written; -1: none
    int source; // of copies: whose memory is read; -1: memory that belongs to none
    bool by_host; // done by the calling thread, else in the backend's queue (of write-backs: the source's)
    int split; // -1: none
    int node, n_nodes; // of COMPUTE: the first node's index, and how many
    size_t bytes; // of copies
    size_t live_bytes; // in the arena of `backend` meanwhile, at most
    size_t arena_bytes;
    char name[64]; // of the tensor that is copied, of the first node, of the step that is waited for
};
GGML_API enum ggml_status ggml_backend_sched_set_trace(ggml_backend_sched_t sched, bool trace);
GGML_API size_t ggml_backend_sched_get_n_trace_events(ggml_backend_sched_t sched);
GGML_API enum ggml_status ggml_backend_sched_get_trace_event(ggml_backend_sched_t sched, size_t i,
    struct ggml_backend_sched_trace_event * event);
// Of a split of the last graph: how many runs of it were recorded, and how long they took on its backend, in all.
GGML_API enum ggml_status ggml_backend_sched_get_split_time(ggml_backend_sched_t sched, int i, uint64_t * n_runs,
    uint64_t * total_ns);

// cdef: end

#ifdef __cplusplus
}
#endif

#endif // GGML_BACKEND_SCHED_H
