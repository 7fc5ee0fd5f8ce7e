// scheds.h - schedulers: planning and computing graphs, and their settings.
#ifndef GBPY_SCHEDS_H
#define GBPY_SCHEDS_H

#include "graphs.h"

// cdef: begin

int gbpy_open_sched(struct gbpy_handle * handle, struct gbpy_handle ** backends,
    struct ggml_backend_buffer_type ** bufts, int n);

// Bits of *how. PLANNED (output): plans were made since the last call that reported them. QUIET (input): do not
// report.
enum { GBPY_PLANNED = 1, GBPY_QUIET = 2 };

// GBPY_PLAN_ONLY makes decisions, but gives no tensor memory.
enum gbpy_plan_how { GBPY_PLAN_ALLOCATE, GBPY_PLAN_ONLY, GBPY_PLAN_RESERVE };
int gbpy_sched_plan(struct gbpy_handle * sched, struct gbpy_handle * graph, int kind, int * how);
int gbpy_sched_compute(struct gbpy_handle * sched, struct gbpy_handle * graph, struct gbpy_run * run,
    bool (*eval)(struct ggml_tensor *, bool, void *), void * eval_data, int * how);

struct gbpy_input { // an input of a graph, and all its elements, one after the other
    const struct gbpy_handle * context;
    struct ggml_tensor * tensor;
    const void * data;
    size_t size;
};
struct gbpy_step {
    struct gbpy_input * inputs;
    int n_inputs;
    const struct gbpy_handle * context; // of the result
    struct ggml_tensor * result;
    int k; // 0: the result is not read
    int32_t * ids; // as ggml_backend_tensor_get_top
    float * values;
};
// One token: allocates the graph, sets the inputs, computes, and reads the k largest elements of each row of a result.
int gbpy_sched_step(struct gbpy_handle * sched, struct gbpy_handle * graph, struct gbpy_run * run,
    const struct gbpy_step * step, int * how);

int gbpy_sched_reset_stats(struct gbpy_handle * sched);
int gbpy_sched_reset(struct gbpy_handle * sched);
int gbpy_sched_close(struct gbpy_handle * sched); // frees memory that no array views; then as gbpy_close
// Chooses a backend for the node. NULL removes the choice.
int gbpy_sched_set_backend(struct gbpy_handle * sched, struct gbpy_handle * context, struct ggml_tensor * node,
    struct gbpy_handle * backend);
int gbpy_sched_set_n_copies(struct gbpy_handle * sched, int n);
const char * gbpy_sched_device_name(const struct gbpy_handle * sched, int i); // unique within the scheduler
void gbpy_sched_keep_all(struct gbpy_handle * sched, bool keep); // keeps all results of graphs planned from now on
// With a lock on the scheduler: true if its last plan is that of the graph. gbpy_sched_is_about is true only if
// planning again would also give the same plan.
bool gbpy_sched_has_splits_of(const struct gbpy_handle * sched, const struct gbpy_handle * graph);
bool gbpy_sched_is_about(const struct gbpy_handle * sched, const struct gbpy_handle * graph);

// cdef: end

#endif // GBPY_SCHEDS_H
