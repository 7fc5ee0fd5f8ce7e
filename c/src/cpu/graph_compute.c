// graph_compute.c - ggml_graph_plan and ggml_graph_compute, which compute a graph without a
// backend.
//
// Each call makes a new plan, because the graph may have changed. Each call borrows threads of its
// own, so calls on different graphs can run at the same time.
#include "base/mem.h"
#include "base/status.h"
#include "cpu/cpu.h"
#include "cpu/threadpool.h"
#include "cpu/traits.h"
#include "tensor/tensor.h"

// Returns false and reports the failure, with the name of the public function, for a NULL graph.
static bool check_graph(const struct ggml_cgraph * cgraph, const char * func) {
    if (cgraph == NULL) {
        gb_fail_null(func, "cgraph");
        return false;
    }
    return true;
}

struct ggml_cplan ggml_graph_plan(const struct ggml_cgraph * cgraph, int n_threads) {
    struct ggml_cplan cplan = { 0 };
    cplan.n_threads = n_threads <= 0 ? GGML_DEFAULT_N_THREADS : GB_MIN(n_threads, GB_CPU_MAX_THREADS);
    if (!check_graph(cgraph, __func__)) {
        return cplan;
    }
    struct gb_cpu_plan * plan = gb_cpu_plan_of_graph(cgraph, cplan.n_threads);
    if (plan != NULL) { // NULL: reported; computing with this cplan reports it again
        cplan.work_size = gb_cpu_plan_work_size(plan);
        gb_cpu_plan_free(plan);
    }
    return cplan;
}

// The caller allocated the work memory, perhaps for another graph or other shapes.
static enum ggml_status check_cplan(const struct ggml_cplan * cplan, const struct gb_cpu_plan * plan) {
    const size_t needed = gb_cpu_plan_work_size(plan);
    GB_FAIL_IF(cplan->work_size > 0 && cplan->work_data == NULL, GGML_STATUS_INVALID_ARGUMENT,
        "ggml_graph_compute: cplan.work_size is %zu, but cplan.work_data is NULL", cplan->work_size);
    GB_FAIL_IF(cplan->work_size < needed, GGML_STATUS_INVALID_ARGUMENT,
        "ggml_graph_compute: the graph needs %zu bytes of work memory, cplan.work_size is %zu", needed,
        cplan->work_size);
    return GGML_STATUS_SUCCESS;
}

// Runs the plan on threads that it borrows for this call.
static enum ggml_status run_plan(struct gb_cpu_plan * plan, const struct ggml_cplan * cplan) {
    GB_TRY(check_cplan(cplan, plan));
    struct gb_cpu_pool * pool = NULL;
    const struct gb_kernels * kernels = gb_kernels_default();
    const int n = gb_cpu_plan_n_threads(plan);
    if (kernels == NULL || !gb_cpu_traits_check()) {
        return ggml_last_status();
    }
    if (n > 1 && (pool = gb_cpu_pool_borrow(n)) == NULL) {
        return ggml_last_status();
    }
    const struct gb_cpu_run run = { kernels, cplan->work_data, cplan->abort_callback, cplan->abort_callback_data,
        NULL };
    const enum ggml_status status = gb_cpu_plan_run(plan, pool, &run);
    gb_cpu_pool_give_back(pool);
    return status;
}

int ggml_graph_compute(struct ggml_cgraph * cgraph, struct ggml_cplan * cplan) {
    if (!check_graph(cgraph, __func__)) {
        return GGML_STATUS_INVALID_ARGUMENT;
    }
    GB_CHECK_ARG(cplan);
    GB_FAIL_IF(cplan->n_threads < 1 || cplan->n_threads > GB_CPU_MAX_THREADS, GGML_STATUS_INVALID_ARGUMENT,
        "%s: cplan.n_threads must be 1 to %d, is %d", __func__, GB_CPU_MAX_THREADS, cplan->n_threads);
    struct gb_cpu_plan * plan = gb_cpu_plan_of_graph(cgraph, cplan->n_threads);
    if (plan == NULL) {
        return ggml_last_status();
    }
    const enum ggml_status status = run_plan(plan, cplan);
    gb_cpu_plan_free(plan);
    if (status == GGML_STATUS_SUCCESS) {
        cgraph->perf_runs = (int) ((unsigned) cgraph->perf_runs + 1u);
    }
    return status;
}

enum ggml_status ggml_graph_compute_with_ctx(struct ggml_context * ctx, struct ggml_cgraph * cgraph, int n_threads) {
    GB_CHECK_ARG(ctx);
    if (!check_graph(cgraph, __func__)) {
        return GGML_STATUS_INVALID_ARGUMENT;
    }
    const uint64_t failures = gb_fail_count();
    struct ggml_cplan cplan = ggml_graph_plan(cgraph, n_threads);
    GB_TRY(gb_status_since(failures));
    if (cplan.work_size > 0) {
        cplan.work_data = gb_context_alloc(ctx, GGML_OBJECT_WORK_BUFFER, cplan.work_size);
        if (cplan.work_data == NULL) {
            return ggml_last_status();
        }
    }
    return (enum ggml_status) ggml_graph_compute(cgraph, &cplan);
}
