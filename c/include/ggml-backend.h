// ggml-backend.h - memory of devices, devices that compute, and the scheduler that runs one graph over several of them.
//
//   buffer type (buft)  knows how to allocate on a device
//   buffer              one allocation
//   backend             a device with its stream of work
//   registry            the backends that can be made by name; "CPU" is always entry 0
//   scheduler           assigns the nodes of a graph to backends, cuts it into splits, copies what crosses, and runs it
//
// Functions of several threads: different backends may be used at once; one backend, scheduler or buffer by one thread
// at a time.
#ifndef GGML_BACKEND_H
#define GGML_BACKEND_H

#include "ggml-alloc.h"
#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

// cdef: begin

typedef struct ggml_backend_buffer_type * ggml_backend_buffer_type_t;
typedef struct ggml_backend_buffer *      ggml_backend_buffer_t;
typedef struct ggml_backend *             ggml_backend_t;
typedef void *                            ggml_backend_graph_plan_t;
typedef struct ggml_backend_sched *       ggml_backend_sched_t;
typedef struct ggml_backend_event *       ggml_backend_event_t;

enum ggml_backend_buffer_usage { GGML_BACKEND_BUFFER_USAGE_ANY = 0, GGML_BACKEND_BUFFER_USAGE_WEIGHTS = 1 };

// -------------------------------------------------------------------------------------------------------- buffer types

GGML_API const char *                    ggml_backend_buft_name(ggml_backend_buffer_type_t buft);
GGML_API GGML_CALL ggml_backend_buffer_t ggml_backend_buft_alloc_buffer(ggml_backend_buffer_type_t buft, size_t size);
GGML_API size_t           ggml_backend_buft_get_alignment(ggml_backend_buffer_type_t buft); // a power of two
GGML_API size_t           ggml_backend_buft_get_max_size(ggml_backend_buffer_type_t buft);
GGML_API GGML_CALL size_t ggml_backend_buft_get_alloc_size(ggml_backend_buffer_type_t buft,
    struct ggml_tensor *                                                              tensor);
GGML_API bool             ggml_backend_buft_supports_backend(ggml_backend_buffer_type_t buft, ggml_backend_t backend);
GGML_API bool             ggml_backend_buft_is_host(ggml_backend_buffer_type_t buft);

// ------------------------------------------------------------------------------------------------------------- buffers

GGML_API const char *               ggml_backend_buffer_name(ggml_backend_buffer_t buffer);
GGML_API void                       ggml_backend_buffer_free(ggml_backend_buffer_t buffer); // NULL is fine
GGML_API void *                     ggml_backend_buffer_get_base(ggml_backend_buffer_t buffer);
GGML_API size_t                     ggml_backend_buffer_get_size(ggml_backend_buffer_t buffer);
GGML_API GGML_CALL enum ggml_status ggml_backend_buffer_init_tensor(ggml_backend_buffer_t buffer,
    struct ggml_tensor *                                                                  tensor);
GGML_API size_t                     ggml_backend_buffer_get_alignment(ggml_backend_buffer_t buffer);
GGML_API size_t                     ggml_backend_buffer_get_max_size(ggml_backend_buffer_t buffer);
GGML_API size_t           ggml_backend_buffer_get_alloc_size(ggml_backend_buffer_t buffer, struct ggml_tensor * tensor);
GGML_API enum ggml_status ggml_backend_buffer_clear(ggml_backend_buffer_t buffer, uint8_t value);
GGML_API bool             ggml_backend_buffer_is_host(ggml_backend_buffer_t buffer);
GGML_API enum ggml_status ggml_backend_buffer_set_usage(ggml_backend_buffer_t buffer,
    enum ggml_backend_buffer_usage                                            usage);
GGML_API enum ggml_backend_buffer_usage ggml_backend_buffer_get_usage(ggml_backend_buffer_t buffer);
GGML_API ggml_backend_buffer_type_t     ggml_backend_buffer_get_type(ggml_backend_buffer_t buffer);
GGML_API enum ggml_status               ggml_backend_buffer_reset(ggml_backend_buffer_t buffer);
// What is in the buffer was changed through a pointer, which nobody can notice: copies of it that are kept are made
// again. Needed only for buffers of usage WEIGHTS in host memory.
GGML_API enum ggml_status ggml_backend_buffer_changed(ggml_backend_buffer_t buffer);

// ------------------------------------------------------------------------------------------------------------ backends

GGML_API const char * ggml_backend_name(ggml_backend_t backend); // "NULL" for NULL
GGML_API void         ggml_backend_free(ggml_backend_t backend); // NULL is fine

GGML_API ggml_backend_buffer_type_t ggml_backend_get_default_buffer_type(ggml_backend_t backend);
GGML_API ggml_backend_buffer_t      ggml_backend_alloc_buffer(ggml_backend_t backend, size_t size);
GGML_API size_t                     ggml_backend_get_alignment(ggml_backend_t backend);
GGML_API size_t                     ggml_backend_get_max_size(ggml_backend_t backend);

// offset + size <= ggml_nbytes(tensor). Asynchronous: `data` stays valid until ggml_backend_synchronize.
GGML_API enum ggml_status ggml_backend_tensor_set_async(ggml_backend_t backend, struct ggml_tensor * tensor,
    const void * data, size_t offset, size_t size);
GGML_API enum ggml_status ggml_backend_tensor_get_async(ggml_backend_t backend, const struct ggml_tensor * tensor,
    void * data, size_t offset, size_t size);
GGML_API GGML_CALL enum ggml_status ggml_backend_tensor_set(struct ggml_tensor * tensor, const void * data,
    size_t offset, size_t size);
GGML_API GGML_CALL enum ggml_status ggml_backend_tensor_get(const struct ggml_tensor * tensor, void * data,
    size_t offset, size_t size);

// Waits for everything queued; reports the first failure among it.
GGML_API enum ggml_status ggml_backend_synchronize(ggml_backend_t backend);

GGML_API ggml_backend_graph_plan_t ggml_backend_graph_plan_create(ggml_backend_t backend, struct ggml_cgraph * cgraph);
GGML_API void                      ggml_backend_graph_plan_free(ggml_backend_t backend, ggml_backend_graph_plan_t plan);
GGML_API enum ggml_status ggml_backend_graph_plan_compute(ggml_backend_t backend, ggml_backend_graph_plan_t plan);
GGML_API bool             ggml_backend_graph_compute(ggml_backend_t backend, struct ggml_cgraph * cgraph);
GGML_API bool             ggml_backend_supports_op(ggml_backend_t backend, const struct ggml_tensor * op);
// Why not, in words; NULL when the op is supported. Valid until the thread's next call.
GGML_API const char * ggml_backend_unsupported_reason(ggml_backend_t backend, const struct ggml_tensor * op);

// Same type, ne and nb on both sides.
GGML_API enum ggml_status ggml_backend_tensor_copy(struct ggml_tensor * src, struct ggml_tensor * dst);
// Queued on `backend` after what is queued there, where both buffers and the backend allow it; else synchronous.
GGML_API enum ggml_status ggml_backend_tensor_copy_async(ggml_backend_t backend, struct ggml_tensor * src,
    struct ggml_tensor * dst);

// Events: marks in the work of a backend, which others and the host can wait for. They work with every backend: one
// whose calls are done when they return has nothing to wait for, and one that has a queue but no events is waited for
// as a whole.
GGML_API ggml_backend_event_t ggml_backend_event_new(ggml_backend_t backend);      // complete until it is recorded
GGML_API void                 ggml_backend_event_free(ggml_backend_event_t event); // NULL is fine
// after what is queued on its backend now
GGML_API enum ggml_status ggml_backend_event_record(ggml_backend_event_t event);
GGML_API enum ggml_status ggml_backend_event_synchronize(ggml_backend_event_t event); // the host waits
// What is queued on `backend` from now on waits for the event; the host does, where the backend cannot.
GGML_API enum ggml_status ggml_backend_event_wait(ggml_backend_t backend, ggml_backend_event_t event);

// --------------------------------------------------------------------------------------------------------- CPU backend

GGML_API ggml_backend_t   ggml_backend_cpu_init(void); // GGML_DEFAULT_N_THREADS threads
GGML_API GGML_CALL bool   ggml_backend_is_cpu(ggml_backend_t backend);
GGML_API enum ggml_status ggml_backend_cpu_set_n_threads(ggml_backend_t backend_cpu, int n_threads);
// Memory of somebody else, never freed by us: a mapped file, an array. Any address.
GGML_API GGML_CALL ggml_backend_buffer_t      ggml_backend_cpu_buffer_from_ptr(void * ptr, size_t size);
GGML_API GGML_CALL ggml_backend_buffer_type_t ggml_backend_cpu_buffer_type(void);

// ------------------------------------------------------------------------------------------------------------ registry
// Names are compared without case. Thread-safe.

GGML_API size_t ggml_backend_reg_get_count(void);
GGML_API size_t ggml_backend_reg_find_by_name(const char * name); // SIZE_MAX if absent
// "NAME" or "NAME:params"
GGML_API ggml_backend_t             ggml_backend_reg_init_backend_from_str(const char * backend_str);
GGML_API const char *               ggml_backend_reg_get_name(size_t i);
GGML_API ggml_backend_t             ggml_backend_reg_init_backend(size_t i, const char * params); // params may be NULL
GGML_API ggml_backend_buffer_type_t ggml_backend_reg_get_default_buffer_type(size_t i);
GGML_API ggml_backend_buffer_t      ggml_backend_reg_alloc_buffer(size_t i, size_t size);

// Backends in shared libraries (modules: ggml-backend-module.h).
// one attempt; valid until the process ends
struct ggml_backend_load_record {
    const char *     path; // as resolved; as given where that failed
    const char *     name; // the module's own; "" when it has none
    enum ggml_status status;
    const char *     message;    // why it failed; "" on success
    size_t           n_backends; // registry entries that it added
};

// Loads a module, which registers its backends. The path is explicit: it has a directory, and nothing is searched for.
// The module's version and structure sizes are read from the file and checked before any code of it runs. A module that
// is loaded already is a success. A module without a device reports UNSUPPORTED; it stays loaded and nothing is
// registered. Not from within a module's entry point.
GGML_API enum ggml_status ggml_backend_load(const char * path);
// What was tried so far, in order, without repetitions; NULL when i is out of range.
GGML_API size_t                                  ggml_backend_load_count(void);
GGML_API const struct ggml_backend_load_record * ggml_backend_load_get(size_t i);

// ----------------------------------------------------------------------------------------------------------- scheduler

// ask: is the result of t wanted? Otherwise: t is complete; false ends the computation.
typedef bool (*ggml_backend_sched_eval_callback)(struct ggml_tensor * t, bool ask, void * user_data);

// backends in order of priority, the last one is the fallback; bufts NULL: each backend's default. Both arrays are
// copied; the backends stay the caller's and must outlive the scheduler: when one is freed before, computing is an
// error (INVALID_STATE). graph_size is a first estimate.
GGML_API ggml_backend_sched_t ggml_backend_sched_new(ggml_backend_t * backends, ggml_backend_buffer_type_t * bufts,
    int n_backends, size_t graph_size);
// Frees its memory, so tensors that it placed point nowhere: whoever goes on using them sets their `buffer` and `data`
// to NULL. NULL is fine.
GGML_API void ggml_backend_sched_free(ggml_backend_sched_t sched);

// Finds out how much memory the graph needs and allocates it. Touches no tensor. A graph of the same structure
// (operators, types, sources, views, placements) whose tensors are no larger takes the places planned for this one:
// nothing is allocated for it any more.
GGML_API enum ggml_status ggml_backend_sched_init_measure(ggml_backend_sched_t sched,
    struct ggml_cgraph *                                                       measure_graph);
// The same, with memory for inputs that nobody placed. Who places them with ggml_backend_sched_get_tallocr calls
// init_measure.
GGML_API enum ggml_status ggml_backend_sched_reserve(ggml_backend_sched_t sched, struct ggml_cgraph * measure_graph);

// Only decides: allocates no memory of a backend and touches no tensor. What is asked about the last graph tells of
// this one then; allocating the graph as it is keeps to it. (Where memory turns out to be short, it is planned again
// with no kept copies.)
GGML_API enum ggml_status ggml_backend_sched_plan_graph(ggml_backend_sched_t sched, struct ggml_cgraph * graph);

GGML_API int                   ggml_backend_sched_get_n_splits(ggml_backend_sched_t sched); // of the last graph
GGML_API ggml_tallocr_t        ggml_backend_sched_get_tallocr(ggml_backend_sched_t sched, ggml_backend_t backend);
GGML_API ggml_backend_buffer_t ggml_backend_sched_get_buffer(ggml_backend_sched_t sched, ggml_backend_t backend);
// bytes
GGML_API size_t         ggml_backend_sched_get_buffer_size(ggml_backend_sched_t sched, ggml_backend_t backend);
GGML_API int            ggml_backend_sched_get_n_backends(ggml_backend_sched_t sched);
GGML_API ggml_backend_t ggml_backend_sched_get_backend(ggml_backend_sched_t sched, int i);

// backend NULL: back to automatic.
GGML_API enum ggml_status ggml_backend_sched_set_node_backend(ggml_backend_sched_t sched, struct ggml_tensor * node,
    ggml_backend_t backend);
GGML_API ggml_backend_t   ggml_backend_sched_get_node_backend(ggml_backend_sched_t sched, struct ggml_tensor * node);

// How nodes find their backend when the user did not say. WEIGHTS: where their weights are, spread over the neighbours.
// SOURCES: where their best source is. COST: so that the graph takes the least time, by ggml_backend_sched_set_costs;
// without costs the same as WEIGHTS. Takes effect with the next graph.
enum ggml_backend_sched_policy {
    GGML_BACKEND_SCHED_POLICY_WEIGHTS = 0,
    GGML_BACKEND_SCHED_POLICY_SOURCES = 1,
    GGML_BACKEND_SCHED_POLICY_COST    = 2,
};
GGML_API enum ggml_status ggml_backend_sched_set_policy(ggml_backend_sched_t sched,
    enum ggml_backend_sched_policy                                           policy);

// Kinds of ops that cost alike.
enum ggml_backend_cost_class {
    GGML_BACKEND_COST_ANY      = 0, // for what has no entry of its own
    GGML_BACKEND_COST_MATMUL   = 1, // matrix products
    GGML_BACKEND_COST_ROWS     = 2, // over rows: norms, softmax, rotary embeddings, sums
    GGML_BACKEND_COST_ELEMENTS = 3, // element by element
    GGML_BACKEND_COST_MOVES    = 4, // copies, rows picked, repetitions
    GGML_BACKEND_COST_WINDOWS  = 5, // convolutions, pools
};
GGML_API enum ggml_backend_cost_class ggml_backend_cost_class_of(enum ggml_op op);

// an op takes launch_us + max(bytes / bytes_per_us, flops / flops_per_us)
struct ggml_backend_op_cost {
    int    backend;  // index in the scheduler
    int    op_class; // enum ggml_backend_cost_class
    int    type;     // enum ggml_type of the first source; -1: any
    double launch_us;
    double bytes_per_us, flops_per_us; // > 0; infinity is fine
};
// a copy takes launch_us + bytes / bytes_per_us
struct ggml_backend_copy_cost {
    int    from, to; // backends
    double launch_us, bytes_per_us;
};
struct ggml_backend_cost_table {
    // for each backend at least one of class ANY and type -1; exact entries go first, then those of the class
    const struct ggml_backend_op_cost *   ops;
    size_t                                n_ops;
    const struct ggml_backend_copy_cost * copies; // for every two different backends, both ways
    size_t                                n_copies;
    double                                split_us;    // a change of backends
    double                                weight_runs; // runs that a copy of a weight serves, >= 1; 0: 1
    // per backend: what the scheduler may allocate for a graph; 0: no limit; NULL: none at all
    const size_t * max_bytes;
};
// For the policy COST. The table is copied; NULL forgets it. What was placed is forgotten as by
// ggml_backend_sched_reset; a user's assignments stay.
GGML_API enum ggml_status ggml_backend_sched_set_costs(ggml_backend_sched_t sched,
    const struct ggml_backend_cost_table *                                  table);

// by the costs; microseconds, without anything running at the same time
struct ggml_backend_sched_prediction {
    double us, weights_us; // of the last graph; as the policy WEIGHTS would have it
    double bound_us;       // nothing is cheaper
    bool   proved;         // us is the least possible
};
// All times are -1 if the last graph was not placed by costs.
GGML_API enum ggml_status ggml_backend_sched_get_prediction(ggml_backend_sched_t sched,
    struct ggml_backend_sched_prediction *                                       prediction);

// Places what is not placed yet; inputs can be set then. graph_compute does it itself when it was not done. Inputs
// placed here keep their place and content until reset, or until 16 other graphs came by; then their memory serves
// others, and who sets them again allocates the graph again first. Results last until another graph is computed, or
// needs memory that is short.
GGML_API enum ggml_status ggml_backend_sched_alloc_graph(ggml_backend_sched_t sched, struct ggml_cgraph * graph);
GGML_API enum ggml_status ggml_backend_sched_graph_compute(ggml_backend_sched_t sched, struct ggml_cgraph * graph);
GGML_API enum ggml_status ggml_backend_sched_graph_compute_async(ggml_backend_sched_t sched,
    struct ggml_cgraph *                                                              graph);
GGML_API enum ggml_status ggml_backend_sched_synchronize(ggml_backend_sched_t sched);

// Forgets assignments and placements (tensors placed by the scheduler become unplaced); buffers are kept.
GGML_API enum ggml_status ggml_backend_sched_reset(ggml_backend_sched_t sched);
GGML_API enum ggml_status ggml_backend_sched_set_eval_callback(ggml_backend_sched_t sched,
    ggml_backend_sched_eval_callback callback, void * user_data);

// How many runs of a graph may be on their way at once, 1 to 64 (1 at first). With 2 or more, inputs (ggml_set_input)
// in host memory may be set again as soon as ggml_backend_sched_graph_compute_async returns: what they held is taken
// then. Inputs that the scheduler places are placed in host memory, where the last backend has it. Another run of the
// same graph follows without waiting for the first. Results are read after ggml_backend_sched_synchronize, or queued
// with ggml_backend_tensor_get_async on the backend that computes them.
GGML_API enum ggml_status ggml_backend_sched_set_n_copies(ggml_backend_sched_t sched, int n);
GGML_API int              ggml_backend_sched_get_n_copies(ggml_backend_sched_t sched);

// Checks every run: that each access is ordered after those that it must not meet, and that each read finds the content
// that is meant. An error names the two. Slow: one step after the other, and what is dead in the arenas is filled with
// NaN. Also by environment: GGML_SCHED_CHECK=1.
GGML_API enum ggml_status ggml_backend_sched_set_check(ggml_backend_sched_t sched, bool check);

// The splits of the last graph.
struct ggml_backend_sched_split_info {
    int            index;
    ggml_backend_t backend;
    int            i_start, i_end; // nodes [i_start, i_end) of the graph
    int            n_inputs;       // tensors copied to this backend before the split runs
    size_t         input_bytes;
};
GGML_API enum ggml_status ggml_backend_sched_get_split(ggml_backend_sched_t sched, int i,
    struct ggml_backend_sched_split_info * info);
// the original
GGML_API struct ggml_tensor * ggml_backend_sched_get_split_input(ggml_backend_sched_t sched, int i_split, int i_input);
// Why the node is where it is, in words: "backend CPU: SIM0 does not support ROPE ..." ; "" if not assigned.
GGML_API const char * ggml_backend_sched_explain(ggml_backend_sched_t sched, struct ggml_tensor * node);

// What the plan of the last graph needs: peak bytes on a backend, and what the same tensors would take without any
// reuse.
GGML_API enum ggml_status ggml_backend_sched_get_memory(ggml_backend_sched_t sched, ggml_backend_t backend,
    size_t * peak, size_t * no_reuse);

// The arena of a backend: what the last graph needs there, and how good its plan is. Bytes.
struct ggml_backend_sched_arena {
    size_t peak;     // of the arena, all chunks
    size_t bound;    // no plan for these lifetimes needs less
    bool   proved;   // nor than peak
    size_t leafs;    // inputs and the like that the scheduler placed, which keep their memory from run to run
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
    ggml_backend_t             backend;
    const struct ggml_tensor * tensor; // a node of the graph, or the original of which this is a copy
    bool                       is_copy;
    // chunks have offsets of their own; more than one only where the largest buffer is too small
    int     chunk;
    size_t  offset, size; // bytes
    int64_t lower, upper; // half-open
    int     root;         // the block whose memory this one shares in place; its own index: none
};
// Writes at most n of them (blocks may be NULL if n is 0) and returns how many there are; -1 on failure.
GGML_API int ggml_backend_sched_get_blocks(ggml_backend_sched_t sched, struct ggml_backend_sched_block * blocks, int n);

// A copy of the plan's program, in the order of the splits that need them.
struct ggml_backend_sched_transfer {
    const struct ggml_tensor * tensor; // the original
    ggml_backend_t             source; // NULL: memory of the user that belongs to none of the backends
    ggml_backend_t             target;
    int                        split;         // before which it is made; of a write-back: after which
    size_t                     size;          // bytes
    bool                       is_kept;       // made again only when the original was written
    bool                       is_write_back; // a result that goes to where it belongs
    // stands where weights do (matrices of products, tables of rows), in memory of the user on `source` whose
    bool is_unmarked;
    // usage is not WEIGHTS: with it, what reads the tensor would run there
};
GGML_API int              ggml_backend_sched_get_n_transfers(ggml_backend_sched_t sched);
GGML_API enum ggml_status ggml_backend_sched_get_transfer(ggml_backend_sched_t sched, int i,
    struct ggml_backend_sched_transfer * transfer);
// The positions [lower, upper) of a split's nodes in the program.
GGML_API enum ggml_status ggml_backend_sched_get_split_span(ggml_backend_sched_t sched, int i, int64_t * lower,
    int64_t * upper);

// A node of the last graph that a backend of higher priority could not take, although it computes what the node reads
// or reads what the node computes: it runs on a slower one, and its data may have to travel. Nodes that the user, a
// weight or their memory put where they are do not count.
#define GGML_BACKEND_SCHED_HEAVY_FLOPS 10000000 // about a millisecond of one processor core
#define GGML_BACKEND_SCHED_HEAVY_BYTES 4194304  // about as long, between devices
struct ggml_backend_sched_fallback {
    const struct ggml_tensor * tensor;
    int                        node; // its index in the graph
    enum ggml_op               op;
    ggml_backend_t             backend;    // that runs it
    ggml_backend_t             refused_by; // that does not
    double                     flops;      // of the node, about
    int                        n_copies;   // between backends, of what it reads and of its result
    size_t                     copied_bytes;
    bool                       is_heavy; // at least HEAVY_FLOPS, or HEAVY_BYTES copied: worth a warning
    char                       name[64]; // of the tensor
    char                       reason[192];
};
GGML_API int              ggml_backend_sched_get_n_fallbacks(ggml_backend_sched_t sched);
GGML_API enum ggml_status ggml_backend_sched_get_fallback(ggml_backend_sched_t sched, int i,
    struct ggml_backend_sched_fallback * fallback);

// What the scheduler has done since it was made, or since the last ggml_backend_sched_reset_stats.
struct ggml_backend_sched_traffic {
    uint64_t n, bytes;
};
struct ggml_backend_sched_stats {
    uint64_t n_runs;
    uint64_t n_plans_found;    // of graphs that stood exactly as they were planned before
    uint64_t n_plans_bound;    // of graphs that were planned before, whose tensors were given their places again
    uint64_t n_plans_replayed; // made for new sizes, with the offsets of a plan of the same structure
    uint64_t n_plans_made;     // from nothing
    // copies that are kept, made because they were new or their original was written
    struct ggml_backend_sched_traffic weights;
    struct ggml_backend_sched_traffic up_to_date;  // the same, not made: they still held what they had to
    struct ggml_backend_sched_traffic inputs;      // copies of what no node computes, made in each run
    struct ggml_backend_sched_traffic results;     // copies of what another split computes
    struct ggml_backend_sched_traffic write_backs; // results that went to where they belong
    uint64_t n_waits_host, n_waits_queue; // events that the host waited for; that one queue waited for in another
    uint64_t plan_ns;                     // finding and making plans
    uint64_t run_ns;                      // issuing runs, with what the host itself computes and copies
    uint64_t wait_ns;                     // the host waiting for devices
};
GGML_API enum ggml_status ggml_backend_sched_get_stats(ggml_backend_sched_t sched,
    struct ggml_backend_sched_stats *                                       stats);
GGML_API enum ggml_status ggml_backend_sched_reset_stats(ggml_backend_sched_t sched);

// A record of what runs when. While it is on, each run is waited for when it was issued; steps of devices with clocks
// of their own (event_new_timed in ggml-backend-impl.h) overlap as ever, those of other devices are waited for one by
// one. Turning it on begins an empty record; turning it off keeps it, until it is turned on again or the scheduler is
// freed.
enum ggml_backend_sched_trace_kind {
    GGML_BACKEND_SCHED_TRACE_PLAN       = 0, // a plan was found or made
    GGML_BACKEND_SCHED_TRACE_COPY       = 1, // into a split
    GGML_BACKEND_SCHED_TRACE_COMPUTE    = 2, // the nodes of a split
    GGML_BACKEND_SCHED_TRACE_WRITE_BACK = 3,
    GGML_BACKEND_SCHED_TRACE_WAIT       = 4, // the host, for a step of a device
};
enum ggml_backend_sched_reason { // of a copy
    GGML_BACKEND_SCHED_REASON_NONE   = 0,
    GGML_BACKEND_SCHED_REASON_WEIGHT = 1, // kept from run to run, and was out of date
    GGML_BACKEND_SCHED_REASON_INPUT  = 2,
    GGML_BACKEND_SCHED_REASON_RESULT = 3, // of another split, or going home
};
struct ggml_backend_sched_trace_event {
    enum ggml_backend_sched_trace_kind kind;
    enum ggml_backend_sched_reason     reason;
    uint64_t                           run; // counted from 0 since the record began; of PLAN: the run that comes next
    int64_t                            start_ns, end_ns; // on one monotonic clock
    int    backend;       // index in the scheduler: which computes, or whose memory is written; -1: none
    int    source;        // of copies: whose memory is read; -1: memory that belongs to none
    bool   by_host;       // done by the calling thread, else in the backend's queue (of write-backs: the source's)
    int    split;         // -1: none
    int    node, n_nodes; // of COMPUTE: the first node's index, and how many
    size_t bytes;         // of copies
    size_t live_bytes;    // in the arena of `backend` meanwhile, at most
    size_t arena_bytes;
    char   name[64]; // of the tensor that is copied, of the first node, of the step that is waited for
};
GGML_API enum ggml_status ggml_backend_sched_set_trace(ggml_backend_sched_t sched, bool trace);
GGML_API size_t           ggml_backend_sched_get_n_trace_events(ggml_backend_sched_t sched);
GGML_API enum ggml_status ggml_backend_sched_get_trace_event(ggml_backend_sched_t sched, size_t i,
    struct ggml_backend_sched_trace_event * event);
// Of a split of the last graph: how many runs of it were recorded, and how long they took on its backend, in all.
GGML_API enum ggml_status ggml_backend_sched_get_split_time(ggml_backend_sched_t sched, int i, uint64_t * n_runs,
    uint64_t * total_ns);

// ---------------------------------------------------------------------------------------------- graph copy and compare

struct ggml_backend_graph_copy {
    ggml_backend_buffer_t buffer;
    struct ggml_context * ctx_allocated;
    struct ggml_context * ctx_unallocated;
    struct ggml_cgraph *  graph;
};

// A deep copy of a placed graph, with its data, on `backend`. All fields NULL on failure.
GGML_API struct ggml_backend_graph_copy ggml_backend_graph_copy(ggml_backend_t backend, struct ggml_cgraph * graph);
GGML_API void                           ggml_backend_graph_copy_free(struct ggml_backend_graph_copy copy);

typedef bool (*ggml_backend_eval_callback)(int node_index, struct ggml_tensor * t1, struct ggml_tensor * t2,
    void * user_data);

// Runs the graph on both, node by node; the callback sees each pair of results (view ops are skipped), false stops.
GGML_API GGML_CALL bool ggml_backend_compare_graph_backend(ggml_backend_t backend1, ggml_backend_t backend2,
    struct ggml_cgraph * graph, ggml_backend_eval_callback callback, void * user_data);

// ----------------------------------------------------------------------------------------------------- placing by hand

GGML_API enum ggml_status ggml_backend_tensor_alloc(ggml_backend_buffer_t buffer, struct ggml_tensor * tensor,
    void * addr);
GGML_API enum ggml_status ggml_backend_view_init(ggml_backend_buffer_t buffer, struct ggml_tensor * tensor);

// cdef: end

#ifdef GGML_USE_CPU_HBM
// High-bandwidth memory through libmemkind; NULL when the machine has none.
GGML_API ggml_backend_buffer_type_t ggml_backend_cpu_hbm_buffer_type(void);
#endif

#ifdef __cplusplus
}
#endif

#endif // GGML_BACKEND_H
