// cpu.h - the CPU engine: a pool of threads, plans of node lists, and the function that runs a plan on a pool.
//
// The public graph functions (graph_compute.c), the CPU backend (cpu_backend.c) and the simulated
// device call this engine. The engine knows no backends and no schedulers. It computes nodes whose
// tensors have data.
//
// Invariant: the results of a run do not depend on earlier runs. A plan keeps only the times of its
// runs. Only one thread may run a plan at a time.
#ifndef GB_CPU_CPU_H
#define GB_CPU_CPU_H

#include "cpu/kernels/kernels.h"
#include "ggml-backend.h"
#include "ggml.h"

#define GB_CPU_MAX_THREADS 512

struct gb_cpu_pool; // threads that wait for work; one run at a time (further callers queue)
struct gb_cpu_plan; // a node list prepared for n threads: ops, tasks and scratch size of each node

// A pool of at most n_threads threads (1 .. GB_CPU_MAX_THREADS), owned by the caller. The first run
// starts n_threads - 1 workers. The calling thread is thread 0 of the team. Returns NULL and
// reports the failure if the count is invalid or memory runs out.
struct gb_cpu_pool * gb_cpu_pool_new(int n_threads);
// Ends the workers and waits for them. NULL is allowed. No run may be active.
void gb_cpu_pool_free(struct gb_cpu_pool * pool);
// The number that the pool was made for; 1 for NULL.
int gb_cpu_pool_n_threads(const struct gb_cpu_pool * pool);

// ggml_graph_compute keeps a few idle pools for its next call. This function frees them, so that
// leak checks do not count their memory.
void gb_cpu_pools_trim(void);

// Compiles a list of nodes, in the order of computation, for n_threads threads. The plan copies the
// node array. It borrows the tensors, which must outlive it. Returns NULL and reports the failure
// if a node cannot run, an argument is invalid, or memory runs out.
struct gb_cpu_plan * gb_cpu_plan_new(struct ggml_tensor * const * nodes, int n_nodes, int n_threads);
// The same for the nodes of a graph. A graph of size 0 is a view of a graph. Its caller may read
// the sources of its last node after a run, so runs always store them.
struct gb_cpu_plan * gb_cpu_plan_of_graph(const struct ggml_cgraph * cgraph, int n_threads);
// A new plan of the same list for another number of threads. The old plan does not change.
struct gb_cpu_plan * gb_cpu_plan_again(const struct gb_cpu_plan * plan, int n_threads);
void gb_cpu_plan_free(struct gb_cpu_plan * plan);
// Bytes of scratch memory that a run needs, with slack for alignment. 0: no operator needs any.
size_t gb_cpu_plan_work_size(const struct gb_cpu_plan * plan);
// Threads that the widest step uses, at most the number that the plan was made for.
int gb_cpu_plan_n_threads(const struct gb_cpu_plan * plan); // 1: runs without a pool

// The resources of a run besides the plan. The caller owns all of them.
struct gb_cpu_run {
    const struct gb_kernels * kernels;
    void * work; // at least gb_cpu_plan_work_size bytes, any alignment
    bool (*abort_callback)(void * data); // true ends the run; called on the calling thread only; may be NULL
    void * abort_data;
    const struct gb_cpu_traits * traits; // choose algorithms; NULL: those of this processor
};

// Computes all nodes of the plan and returns when they are done: SUCCESS, ABORTED, or the first failure of a node
// (reported on the calling thread). pool NULL: the calling thread does all. After a failure the results are undefined.
// The tensors must be placed in memory that the host can read.
enum ggml_status gb_cpu_plan_run(struct gb_cpu_plan * plan, struct gb_cpu_pool * pool, const struct gb_cpu_run * run);

// Copies the elements of a tensor with this layout between two places in host memory. Bytes between
// the elements stay unchanged.
void gb_cpu_copy_elements(void * to, const void * from, const struct ggml_tensor * layout);

// The algorithm that computes a product (MUL_MAT, MUL_MAT_ID, OUT_PROD) with the kernels of a level
// (NULL: the default). Returns the name of the i-th candidate, counted from 0. *why is the reason
// why it declines, a static text, or NULL if it computes the product. Returns NULL after that
// candidate. Returns NULL and reports the failure for other nodes and levels. Depends on types and
// shapes only. A fused step uses the same algorithms, except attention, which has separate kernels.
const char * gb_cpu_product_algorithm(const struct ggml_tensor * node, const char * level, int i, const char ** why);

// For the registry: "threads=2,level=avx2". Both are optional. threads defaults to
// ggml_cpu_default_n_threads(). Returns NULL and reports an unknown key or an invalid value.
GGML_CALL ggml_backend_t gb_cpu_reg_init(const char * params, void * user_data);

#endif // GB_CPU_CPU_H
