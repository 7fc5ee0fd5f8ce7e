// cpu.h - the CPU engine: a pool of threads, plans of node lists, and the function that runs a plan on a pool.
//
// The public graph functions (graph_compute.c), the CPU backend (cpu_backend.c) and the simulated device all run it. It
// knows no backends and no schedulers: what it gets is nodes whose tensors have data.
//
// Invariant: a plan holds no state of a run that another run needs, but only one thread may run it at a time.
#ifndef GB_CPU_CPU_H
#define GB_CPU_CPU_H

#include "cpu/kernels/kernels.h"
#include "ggml-backend.h"
#include "ggml.h"

#define GB_CPU_MAX_THREADS 512

struct gb_cpu_pool; // threads that wait for work; one run at a time (further callers queue)
struct gb_cpu_plan; // a node list prepared for n threads: ops, tasks and scratch size of each node

// A pool of at most n_threads threads (1 .. GB_CPU_MAX_THREADS), owned by the caller. n_threads - 1 workers are started
// on first use; the calling thread is the first of the team. NULL and reported for a bad count or without memory.
struct gb_cpu_pool * gb_cpu_pool_new(int n_threads);
// Ends the workers and waits for them. NULL is fine. No run may be under way.
void gb_cpu_pool_free(struct gb_cpu_pool * pool);
// The number that the pool was made for; 1 for NULL.
int gb_cpu_pool_n_threads(const struct gb_cpu_pool * pool);

// ggml_graph_compute keeps a few idle pools for its next call. This function ends them (their memory counts as alive in
// leak checks).
void gb_cpu_pools_trim(void);

// Compiles a list of nodes, in the order in which they are computed, for n_threads threads. The node array is copied;
// the tensors are borrowed and must outlive the plan. NULL and reported when a node cannot run, when the arguments are
// wrong, or without memory.
struct gb_cpu_plan * gb_cpu_plan_new(struct ggml_tensor * const * nodes, int n_nodes, int n_threads);
// The same for the nodes of a graph. Of a view of a graph, whose size is 0, somebody may look at what its last node
// reads before the rest is computed, so that is stored.
struct gb_cpu_plan * gb_cpu_plan_of_graph(const struct ggml_cgraph * cgraph, int n_threads);
// A new plan of the same list for another number of threads; the old plan stays as it is.
struct gb_cpu_plan * gb_cpu_plan_again(const struct gb_cpu_plan * plan, int n_threads);
// NULL is fine.
void gb_cpu_plan_free(struct gb_cpu_plan * plan);
// Bytes of scratch memory that a run needs, slack for alignment included; 0 when no operator needs any.
size_t gb_cpu_plan_work_size(const struct gb_cpu_plan * plan);
// Threads that the widest step makes use of, at most those that the plan was made for.
int gb_cpu_plan_n_threads(const struct gb_cpu_plan * plan); // 1: runs without a pool

// The resources of a run besides the plan: kernels, scratch memory and the abort callback. The caller owns all of it.
struct gb_cpu_run {
    const struct gb_kernels * kernels;
    void * work; // at least gb_cpu_plan_work_size bytes, any alignment
    bool (*abort_callback)(void * data); // true ends the run; called on the calling thread only; may be NULL
    void * abort_data;
    const struct gb_cpu_traits * traits; // by which kernels are chosen; NULL: those of this processor
};

// Computes all nodes of the plan and returns when they are done: SUCCESS, ABORTED, or the first failure of a node
// (reported on the calling thread). pool NULL: the calling thread does all. After a failure the results are undefined.
// The tensors must be placed in memory that the host can read.
enum ggml_status gb_cpu_plan_run(struct gb_cpu_plan * plan, struct gb_cpu_pool * pool, const struct gb_cpu_run * run);

// Copies the elements of a tensor with this layout between two places in host memory; bytes between them stay as they
// are.
void gb_cpu_copy_elements(void * to, const void * from, const struct ggml_tensor * layout);

// Which algorithm computes a product (MUL_MAT, MUL_MAT_ID, OUT_PROD) with the kernels of a level (NULL: the default):
// the name of the one that is tried i-th, counted from 0. *why: why it declines, a static text, or NULL: it takes the
// product. NULL behind that one; NULL and reported for other nodes and levels. Looks at types and shapes, not at data.
// A fused step computes its products the same way, but for attention, which has kernels of its own.
const char * gb_cpu_product_algorithm(const struct ggml_tensor * node, const char * level, int i, const char ** why);

// For the registry: "threads=2,level=avx2", each optional; threads defaults to ggml_cpu_default_n_threads(). NULL and
// reported for an unknown key or a bad value.
GGML_CALL ggml_backend_t gb_cpu_reg_init(const char * params, void * user_data);

#endif // GB_CPU_CPU_H
