// cpu.h - the CPU engine, for the public graph functions, the CPU backend and the simulated device, which all run it.
#ifndef GB_CPU_CPU_H
#define GB_CPU_CPU_H

#include "cpu/kernels/kernels.h"
#include "ggml-backend.h"
#include "ggml.h"

#define GB_CPU_MAX_THREADS 512

struct gb_cpu_pool; // threads that wait for work; one run at a time (further callers queue)
struct gb_cpu_plan; // a node list prepared for n threads: ops, tasks and scratch size of each node

// n_threads - 1 workers are started on first use; the calling thread is the first of the team.
struct gb_cpu_pool * gb_cpu_pool_new(int n_threads);
void                 gb_cpu_pool_free(struct gb_cpu_pool * pool);
int                  gb_cpu_pool_n_threads(const struct gb_cpu_pool * pool);

// ggml_graph_compute keeps a few idle pools for its next call: this ends them (their memory counts as alive in leak
// checks).
void gb_cpu_pools_trim(void);

// The node array is copied, tensors are borrowed. NULL and reported when a node cannot run.
struct gb_cpu_plan * gb_cpu_plan_new(struct ggml_tensor * const * nodes, int n_nodes, int n_threads);
// the same list for another team
struct gb_cpu_plan * gb_cpu_plan_again(const struct gb_cpu_plan * plan, int n_threads);
void                 gb_cpu_plan_free(struct gb_cpu_plan * plan);
size_t               gb_cpu_plan_work_size(const struct gb_cpu_plan * plan);
int                  gb_cpu_plan_n_threads(const struct gb_cpu_plan * plan); // of use; 1: runs without a pool

struct gb_cpu_run {
    const struct gb_kernels * kernels;
    void *                    work; // at least gb_cpu_plan_work_size bytes, any alignment
    bool (*abort_callback)(void * data);
    void * abort_data;
};

// SUCCESS, ABORTED, or the first failure of a node (reported on the calling thread). pool NULL: one thread.
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
