// ggml-backend-sched.h - additions to the scheduler of ggml's interface of February 2024.
// ggml-backend.h includes this header.
//
//   running    plan without computing, compute without waiting, several pending runs
//   assigning  policies that assign nodes to backends, a table of costs, its predictions
//   queries    decisions and their reasons: splits, memory, copies, fallbacks
//   records    counters, and a trace of runs
#ifndef GGML_BACKEND_SCHED_H
#define GGML_BACKEND_SCHED_H

#include "ggml-backend.h"

#ifdef __cplusplus
extern "C" {
#endif

// cdef: begin

// ------------------------------------------------------------------------------------------------------ running graphs

// Does what ggml_backend_sched_init_measure does, and allocates memory for inputs, too. A program
// that places its inputs with ggml_backend_sched_get_tallocr calls init_measure instead.
GGML_API enum ggml_status ggml_backend_sched_reserve(ggml_backend_sched_t sched, struct ggml_cgraph * measure_graph);

// Plans the graph. Allocates no memory of a backend and changes no tensor. Queries about the last
// graph then describe this plan. Allocating the same graph uses the plan. If memory is short, the
// graph is planned again without kept copies.
GGML_API enum ggml_status ggml_backend_sched_plan_graph(ggml_backend_sched_t sched, struct ggml_cgraph * graph);

// Allocates memory for tensors without memory. Inputs can be set then. graph_compute calls this if
// necessary. Inputs placed here keep memory and content until reset, or until 16 other graphs were
// planned. After that, allocate the graph again before you set them. Results are valid until
// another graph is computed, or needs memory that is short.
GGML_API enum ggml_status ggml_backend_sched_alloc_graph(ggml_backend_sched_t sched, struct ggml_cgraph * graph);

GGML_API enum ggml_status ggml_backend_sched_graph_compute_async(ggml_backend_sched_t sched,
    struct ggml_cgraph * graph);
GGML_API enum ggml_status ggml_backend_sched_synchronize(ggml_backend_sched_t sched);

// Number of runs of a graph that may be pending, 1 to 64 (initially 1). With 2 or more, you can set
// inputs (ggml_set_input) in host memory again as soon as ggml_backend_sched_graph_compute_async
// returns. The scheduler places inputs in host memory if the last backend has it. A second run of
// the same graph does not wait for the first. Read results after ggml_backend_sched_synchronize, or
// queue ggml_backend_tensor_get_async on the backend that computes them.
GGML_API enum ggml_status ggml_backend_sched_set_n_copies(ggml_backend_sched_t sched, int n);
GGML_API int ggml_backend_sched_get_n_copies(ggml_backend_sched_t sched);

// Checks every run: conflicting accesses are ordered, and each read finds the right content. An error names both steps.
// Checked runs are slow, because each step completes before the next one begins, and unused memory of the arenas is
// filled with NaN. GGML_SCHED_CHECK=1 in the environment has the same effect.
GGML_API enum ggml_status ggml_backend_sched_set_check(ggml_backend_sched_t sched, bool check);

// How long the planner searches, for each arena of plans that are made from now on, if its heuristics miss the lower
// bound: at most 60,000 milliseconds. The budget is counted in steps, so equal graphs get equal plans. 0, initially:
// some 10 milliseconds.
GGML_API enum ggml_status ggml_backend_sched_set_plan_budget(ggml_backend_sched_t sched, int64_t budget_ms);

// ----------------------------------------------------------------------------------------------------- assigning nodes

// How the scheduler assigns nodes that the user did not assign. WEIGHTS: to the backend of their
// weights, or else of their neighbours. SOURCES: to the backend of a large source, preferring high
// priorities. COST: to minimize the time predicted from ggml_backend_sched_set_costs; without costs
// like WEIGHTS. A change takes effect with the next graph.
enum ggml_backend_sched_policy {
    GGML_BACKEND_SCHED_POLICY_WEIGHTS = 0,
    GGML_BACKEND_SCHED_POLICY_SOURCES = 1,
    GGML_BACKEND_SCHED_POLICY_COST = 2,
};
GGML_API enum ggml_status ggml_backend_sched_set_policy(ggml_backend_sched_t sched,
    enum ggml_backend_sched_policy policy);

// Kinds of ops with similar costs.
enum ggml_backend_cost_class {
    GGML_BACKEND_COST_ANY = 0, // for ops without an entry of their own
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
    double bytes_per_us, flops_per_us; // > 0; may be infinity
};
// a copy takes launch_us + bytes / bytes_per_us
struct ggml_backend_copy_cost {
    int from, to; // backends
    double launch_us, bytes_per_us;
};
struct ggml_backend_cost_table {
    // each backend needs an entry of class ANY and type -1; the most specific matching entry counts
    const struct ggml_backend_op_cost * ops;
    size_t n_ops;
    const struct ggml_backend_copy_cost * copies; // one for each pair of different backends, in both directions
    size_t n_copies;
    double split_us; // time of each change from one backend to another
    double weight_runs; // number of runs that a copy of a weight serves, >= 1; 0 means 1
    // per backend: bytes that the scheduler may allocate for a graph; 0: no limit; NULL: no limits
    const size_t * max_bytes;
};
// Sets the costs for the policy COST. The table is copied. NULL removes the costs. The call drops
// placements like ggml_backend_sched_reset, but keeps the assignments of the user.
GGML_API enum ggml_status ggml_backend_sched_set_costs(ggml_backend_sched_t sched,
    const struct ggml_backend_cost_table * table);

// Predicted times in microseconds, without overlap between devices.
struct ggml_backend_sched_prediction {
    double us, weights_us; // of the last graph; of its placement by WEIGHTS
    double bound_us; // lower bound of all placements
    bool proved; // us is optimal
};
// All times are -1 if costs did not place the last graph.
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
// The reason why the node is on its backend, as text. "" if it is not assigned.
GGML_API const char * ggml_backend_sched_explain(ggml_backend_sched_t sched, struct ggml_tensor * node);

// Bytes that the plan of the last graph needs on a backend: the peak, and the sum if no tensors
// shared memory.
GGML_API enum ggml_status ggml_backend_sched_get_memory(ggml_backend_sched_t sched, ggml_backend_t backend,
    size_t * peak, size_t * no_reuse);

// The arena of a backend in the last plan, and the quality of that plan. Bytes.
struct ggml_backend_sched_arena {
    size_t peak; // of the arena, all chunks
    size_t bound; // lower bound for these lifetimes
    bool proved; // no arena is smaller than peak
    size_t leafs; // inputs and other leafs that the scheduler placed; they keep their memory from run to run
    size_t replicas; // copies of weights that are kept
    size_t no_reuse; // size of the arena if no tensors shared memory
};
GGML_API enum ggml_status ggml_backend_sched_get_arena(ggml_backend_sched_t sched, ggml_backend_t backend,
    struct ggml_backend_sched_arena * arena);

// Bytes of scratch memory that the backend needs to compute the last graph, for example for
// repacked matrices. Its splits share it. 0 if the backend has no graph_work_size.
GGML_API size_t ggml_backend_sched_get_work_size(ggml_backend_sched_t sched, ggml_backend_t backend);

// The place and lifetime of one tensor in an arena. Times are positions in the plan's program: the
// nodes in order, with the copies between them.
struct ggml_backend_sched_block {
    ggml_backend_t backend;
    const struct ggml_tensor * tensor; // a node of the graph, or the original of a copy
    bool is_copy;
    // offsets are within a chunk; several chunks only if the largest buffer is too small
    int chunk;
    size_t offset, size; // bytes
    int64_t lower, upper; // half-open
    int root; // the block whose memory this one reuses in place, or its own index
};
// Writes at most n blocks (blocks may be NULL if n is 0). Returns the number of all blocks, -1 on
// failure.
GGML_API int ggml_backend_sched_get_blocks(ggml_backend_sched_t sched, struct ggml_backend_sched_block * blocks, int n);

// A copy of the plan, in the order of the splits that need them.
struct ggml_backend_sched_transfer {
    const struct ggml_tensor * tensor; // the original
    ggml_backend_t source; // NULL: memory that the user owns and no backend has
    ggml_backend_t target;
    int split; // the copy runs before the split; a write-back runs after it
    size_t size; // bytes
    bool is_kept; // copied again only after the original was written
    bool is_write_back; // a result that is copied to its own memory
    // a weight (matrix of a product, table of rows) in the user's memory on `source`, whose usage is
    // not WEIGHTS. With usage WEIGHTS, its readers would run there
    bool is_unmarked;
};
GGML_API int ggml_backend_sched_get_n_transfers(ggml_backend_sched_t sched);
GGML_API enum ggml_status ggml_backend_sched_get_transfer(ggml_backend_sched_t sched, int i,
    struct ggml_backend_sched_transfer * transfer);
// The positions [lower, upper) of a split's nodes in the program.
GGML_API enum ggml_status ggml_backend_sched_get_split_span(ggml_backend_sched_t sched, int i, int64_t * lower,
    int64_t * upper);

// A node of the last graph that a backend of higher priority does not support, although that
// backend computes a neighbour of the node. The node runs on a slower backend, and its data may be
// copied. Nodes that the user, a weight or memory assigned do not count.
#define GGML_BACKEND_SCHED_HEAVY_FLOPS 10000000 // about a millisecond of one processor core
#define GGML_BACKEND_SCHED_HEAVY_BYTES 4194304 // about the same time, between devices
struct ggml_backend_sched_fallback {
    const struct ggml_tensor * tensor;
    int node; // its index in the graph
    enum ggml_op op;
    ggml_backend_t backend; // runs the node
    ggml_backend_t refused_by; // does not support the node
    double flops; // of the node, approximately
    int n_copies; // between backends: of its sources and its result
    size_t copied_bytes;
    bool is_heavy; // at least HEAVY_FLOPS, or HEAVY_BYTES copied
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
    uint64_t n_plans_found; // unchanged graphs with a kept plan
    uint64_t n_plans_bound; // kept plans whose tensors got their memory again
    uint64_t n_plans_replayed; // plans that took over the offsets of a plan of the same structure
    uint64_t n_plans_made; // new plans
    // kept copies that were filled
    struct ggml_backend_sched_traffic weights;
    struct ggml_backend_sched_traffic up_to_date; // kept copies that were up to date
    struct ggml_backend_sched_traffic inputs; // copies of tensors that no node computes
    struct ggml_backend_sched_traffic results; // copies of results of other splits
    struct ggml_backend_sched_traffic write_backs; // results that were copied to their own memory
    uint64_t n_waits_host, n_waits_queue; // waits of the host for events; waits of a queue for another queue
    uint64_t plan_ns; // time to find and make plans
    uint64_t run_ns; // time to issue runs, with the host's own work
    uint64_t wait_ns; // time that the host waited for devices
};
GGML_API enum ggml_status ggml_backend_sched_get_stats(ggml_backend_sched_t sched,
    struct ggml_backend_sched_stats * stats);
GGML_API enum ggml_status ggml_backend_sched_reset_stats(ggml_backend_sched_t sched);

// A trace of runs. While a trace is on, the scheduler waits for each run. Steps of devices with
// clocks (event_new_timed in ggml-backend-impl.h) overlap as usual. The scheduler waits for other
// devices after each step. Turning the trace on begins an empty record. Turning the trace off keeps
// the record, until you turn the trace on again or free the scheduler.
enum ggml_backend_sched_trace_kind {
    GGML_BACKEND_SCHED_TRACE_PLAN = 0, // a plan was found or made
    GGML_BACKEND_SCHED_TRACE_COPY = 1, // copy into a split
    GGML_BACKEND_SCHED_TRACE_COMPUTE = 2, // nodes of a split
    GGML_BACKEND_SCHED_TRACE_WRITE_BACK = 3,
    GGML_BACKEND_SCHED_TRACE_WAIT = 4, // the host waits for a step of a device
};
enum ggml_backend_sched_reason { // of a copy
    GGML_BACKEND_SCHED_REASON_NONE = 0,
    GGML_BACKEND_SCHED_REASON_WEIGHT = 1, // a kept copy that was out of date
    GGML_BACKEND_SCHED_REASON_INPUT = 2,
    GGML_BACKEND_SCHED_REASON_RESULT = 3, // a result of another split, or a write-back
};
struct ggml_backend_sched_trace_event {
    enum ggml_backend_sched_trace_kind kind;
    enum ggml_backend_sched_reason reason;
    uint64_t run; // counted from 0 since the record began; of PLAN: the next run
    int64_t start_ns, end_ns; // on one monotonic clock
    int backend; // index in the scheduler: it computes, or its memory is written; -1: none
    int source; // of copies: its memory is read; -1: no backend's memory
    bool by_host; // done by the calling thread; else in the backend's queue (of write-backs: the source's)
    int split; // -1: none
    int node, n_nodes; // of COMPUTE: index of the first node, and number of nodes
    size_t bytes; // of copies
    size_t live_bytes; // maximum of the bytes alive in the arena of `backend` during the step
    size_t arena_bytes;
    char name[64]; // of the copied tensor, of the first node, of the awaited step
};
GGML_API enum ggml_status ggml_backend_sched_set_trace(ggml_backend_sched_t sched, bool trace);
GGML_API size_t ggml_backend_sched_get_n_trace_events(ggml_backend_sched_t sched);
GGML_API enum ggml_status ggml_backend_sched_get_trace_event(ggml_backend_sched_t sched, size_t i,
    struct ggml_backend_sched_trace_event * event);
// Recorded runs of a split of the last graph, and their total time on its backend.
GGML_API enum ggml_status ggml_backend_sched_get_split_time(ggml_backend_sched_t sched, int i, uint64_t * n_runs,
    uint64_t * total_ns);

// cdef: end

#ifdef __cplusplus
}
#endif

#endif // GGML_BACKEND_SCHED_H
