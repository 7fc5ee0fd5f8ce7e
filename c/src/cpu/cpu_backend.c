// cpu_backend.c - the CPU backend: the engine with threads, a kernel level and work memory that
// persist between calls.
//
// All calls are synchronous. One thread at a time may use a backend. Different backends are
// independent. The first graph that uses more than one thread starts the threads.
#include <stdio.h>
#include <string.h>

#include "base/env.h"
#include "base/mem.h"
#include "base/params.h"
#include "base/status.h"
#include "base/text.h"
#include "cpu/cpu.h"
#include "cpu/ops/product/product.h"
#include "cpu/threadpool.h"
#include "cpu/traits.h"
#include "ggml-backend-impl.h"
#include "ggml-cpu.h"
#include "tensor/tensor.h"

// memory that only grows
struct work {
    void * data; // owned
    size_t size;
};

// The backend's context.
struct cpu {
    int n_threads;
    const struct gb_level * level;
    struct gb_cpu_pool * pool; // owned; NULL until needed, and after n_threads changed
    struct work work;          // of one graph at a time
    bool (*abort_callback)(void * data);
    void * abort_data;
};

struct cpu_graph_plan {
    struct gb_cpu_plan * plan;
    int n_threads; // that it was made for
};

static GGML_CALL const char * name_of(ggml_backend_t backend) {
    (void) backend;
    return "CPU";
}

// Returns NULL and reports the failure, with the name of the public function, for other backends.
static struct cpu * cpu_of(ggml_backend_t backend, const char * func) {
    GB_FAIL_IF_RETURNING(!ggml_backend_is_cpu(backend), NULL, GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'backend_cpu' is not a CPU backend", func);
    return backend->context;
}

// ----------------------------------------------------------------------------------------------------------- computing

// False: memory ran out, and the old memory stays.
static bool work_reserve(struct work * work, size_t size) {
    if (size <= work->size) {
        return true;
    }
    void * data = gb_malloc(size); // not realloc: the content is not needed
    if (data == NULL) {
        return false;
    }
    gb_free(work->data);
    *work = (struct work){ data, size };
    return true;
}

// The first plan that uses more than one thread starts the pool, so an idle backend has no threads.
static bool ensure_pool(struct cpu * cpu, const struct gb_cpu_plan * plan) {
    if (cpu->pool == NULL && gb_cpu_plan_n_threads(plan) > 1 && cpu->n_threads > 1) {
        cpu->pool = gb_cpu_pool_new(cpu->n_threads);
        return cpu->pool != NULL;
    }
    return true;
}

static enum ggml_status run_plan(struct cpu * cpu, struct gb_cpu_plan * plan) {
    if (!work_reserve(&cpu->work, gb_cpu_plan_work_size(plan)) || !ensure_pool(cpu, plan)) {
        return ggml_last_status();
    }
    const struct gb_cpu_run run = { cpu->level->kernels, cpu->work.data, cpu->abort_callback, cpu->abort_data, NULL };
    return gb_cpu_plan_run(plan, cpu->pool, &run);
}

// Makes a new plan for each call, because the graph may have changed.
static GGML_CALL bool graph_compute(ggml_backend_t backend, struct ggml_cgraph * cgraph) {
    struct cpu * cpu = backend->context;
    struct gb_cpu_plan * plan = gb_cpu_plan_of_graph(cgraph, cpu->n_threads);
    if (plan == NULL) {
        return false;
    }
    const enum ggml_status status = run_plan(cpu, plan);
    gb_cpu_plan_free(plan);
    if (status == GGML_STATUS_SUCCESS) {
        cgraph->perf_runs = (int) ((unsigned) cgraph->perf_runs + 1u);
    }
    return status == GGML_STATUS_SUCCESS;
}

static GGML_CALL void plan_free(ggml_backend_t backend, ggml_backend_graph_plan_t graph_plan) {
    (void) backend;
    struct cpu_graph_plan * p = graph_plan;
    if (p != NULL) {
        gb_cpu_plan_free(p->plan);
        gb_free(p);
    }
}

static GGML_CALL ggml_backend_graph_plan_t plan_create(ggml_backend_t backend, const struct ggml_cgraph * cgraph) {
    struct cpu * cpu = backend->context;
    struct cpu_graph_plan * p = GB_NEW(struct cpu_graph_plan);
    if (p == NULL) {
        return NULL;
    }
    p->n_threads = cpu->n_threads;
    p->plan = gb_cpu_plan_of_graph(cgraph, cpu->n_threads);
    if (p->plan == NULL || !work_reserve(&cpu->work, gb_cpu_plan_work_size(p->plan))) {
        plan_free(backend, p);
        return NULL;
    }
    return p;
}

// The backend's number of threads may have changed since the plan was made.
static bool renew_plan(struct cpu_graph_plan * p, int n_threads) {
    if (p->n_threads == n_threads) {
        return true;
    }
    struct gb_cpu_plan * plan = gb_cpu_plan_again(p->plan, n_threads);
    if (plan == NULL) {
        return false;
    }
    gb_cpu_plan_free(p->plan);
    p->plan = plan;
    p->n_threads = n_threads;
    return true;
}

static GGML_CALL void plan_compute(ggml_backend_t backend, ggml_backend_graph_plan_t graph_plan) {
    struct cpu * cpu = backend->context;
    struct cpu_graph_plan * p = graph_plan;
    if (renew_plan(p, cpu->n_threads)) {
        run_plan(cpu, p->plan); // reports a failure
    }
}

// Bytes of scratch memory that the graph needs. Returns 0 and reports the failure if it cannot run.
static GGML_CALL size_t work_size(ggml_backend_t backend, const struct ggml_cgraph * cgraph) {
    const struct cpu * cpu = backend->context;
    struct gb_cpu_plan * plan = gb_cpu_plan_of_graph(cgraph, cpu->n_threads);
    const size_t size = plan != NULL ? gb_cpu_plan_work_size(plan) : 0;
    gb_cpu_plan_free(plan);
    return size;
}

static GGML_CALL const char * unsupported_reason(ggml_backend_t backend, const struct ggml_tensor * op) {
    (void) backend;
    return ggml_cpu_unsupported_reason(op);
}

static GGML_CALL const char * algorithm(ggml_backend_t backend, const struct ggml_tensor * node, int i,
    const char ** why) {
    const struct cpu * cpu = backend->context;
    const bool chooses = gb_is_product(node->op) && ggml_cpu_unsupported_reason(node) == NULL;
    return chooses ? gb_cpu_product_algorithm(node, cpu->level->name, i, why) : NULL;
}

static GGML_CALL bool supports_op(ggml_backend_t backend, const struct ggml_tensor * op) {
    return unsupported_reason(backend, op) == NULL;
}

// ---------------------------------------------------------------------------------------------------------- life cycle

static GGML_CALL ggml_backend_buffer_type_t default_buffer_type(ggml_backend_t backend) {
    (void) backend;
    return ggml_backend_cpu_buffer_type();
}

// Buffers and the buffer type stay valid: the backend does not own them.
static GGML_CALL void backend_free(ggml_backend_t backend) {
    struct cpu * cpu = backend->context;
    gb_cpu_pool_free(cpu->pool);
    gb_free(cpu->work.data);
    gb_free(cpu);
    gb_free(backend);
}

static const struct ggml_backend_i hooks = {
    .get_name = name_of,
    .free = backend_free,
    .get_default_buffer_type = default_buffer_type,
    .graph_plan_create = plan_create,
    .graph_plan_free = plan_free,
    .graph_plan_compute = plan_compute,
    .graph_compute = graph_compute,
    .supports_op = supports_op,
    .unsupported_reason = unsupported_reason,
    .graph_work_size = work_size,
    .algorithm = algorithm,
};

// If `level` is NULL, the search for it has reported the failure, and the result is NULL.
static ggml_backend_t backend_new(int n_threads, const struct gb_level * level) {
    struct cpu * cpu = level != NULL && gb_cpu_traits_check() ? GB_NEW(struct cpu) : NULL;
    ggml_backend_t backend = cpu != NULL ? GB_NEW(struct ggml_backend) : NULL;
    if (backend == NULL) {
        gb_free(cpu);
        return NULL;
    }
    cpu->n_threads = n_threads;
    cpu->level = level;
    *backend = (struct ggml_backend){ hooks, cpu };
    return backend;
}

ggml_backend_t ggml_backend_cpu_init(void) { return backend_new(GGML_DEFAULT_N_THREADS, gb_level_default()); }

// Takes one "key=value" of the registry's parameters. Returns NULL, or the end of an error message.
static const char * take_param(const struct gb_param * param, int64_t * n_threads, const char ** level) {
    if (gb_text_equal(param->key, "threads")) {
        return gb_params_int(param->value, 1, GB_CPU_MAX_THREADS, n_threads) ? NULL : "needs a number from 1 to 512";
    }
    if (gb_text_equal(param->key, "level")) {
        *level = param->value;
        return NULL;
    }
    return "is unknown; known are threads=<count> and level=<name>";
}

GGML_CALL ggml_backend_t gb_cpu_reg_init(const char * params, void * user_data) {
    (void) user_data;
    struct gb_param param, level_param;
    const char * level = NULL;
    int64_t n_threads = ggml_cpu_default_n_threads();
    enum gb_params_next next;
    while ((next = gb_params_next(&params, &param)) == GB_PARAMS_GOOD) {
        const char * wrong = take_param(&param, &n_threads, &level);
        GB_FAIL_IF_RETURNING(wrong != NULL, NULL, GGML_STATUS_INVALID_ARGUMENT, "CPU: parameter '%s=%s' %s", param.key,
            param.value, wrong);
        if (level == param.value) {
            level_param = param;
            level = level_param.value;
        }
    }
    GB_FAIL_IF_RETURNING(next == GB_PARAMS_BAD, NULL, GGML_STATUS_INVALID_ARGUMENT,
        "CPU: parameters must read key=value,key=value, not '%s'", params);
    return backend_new((int) n_threads, level != NULL ? gb_level_find(level) : gb_level_default());
}

// ------------------------------------------------------------------------------------------------------------ settings

GGML_CALL bool ggml_backend_is_cpu(ggml_backend_t backend) {
    return backend != NULL && backend->iface.get_name == name_of;
}

// Frees a pool of the old size. The next graph that uses threads makes a pool of the new size.
enum ggml_status ggml_backend_cpu_set_n_threads(ggml_backend_t backend_cpu, int n_threads) {
    struct cpu * cpu = cpu_of(backend_cpu, __func__);
    if (cpu == NULL) {
        return GGML_STATUS_INVALID_ARGUMENT;
    }
    GB_FAIL_IF(n_threads < 1 || n_threads > GB_CPU_MAX_THREADS, GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'n_threads': needs 1 to %d, has %d", __func__, GB_CPU_MAX_THREADS, n_threads);
    if (n_threads != cpu->n_threads) {
        gb_cpu_pool_free(cpu->pool);
        cpu->pool = NULL;
        GB_WRITE_RELAXED(cpu->n_threads, n_threads);  // other threads may read it
    }
    return GGML_STATUS_SUCCESS;
}

int ggml_backend_cpu_get_n_threads(ggml_backend_t backend_cpu) {
    const struct cpu * cpu = cpu_of(backend_cpu, __func__);
    return cpu != NULL ? GB_READ_RELAXED(cpu->n_threads) : 0;
}

enum ggml_status ggml_backend_cpu_set_abort_callback(ggml_backend_t backend_cpu, bool (*callback)(void * data),
    void * data) {
    struct cpu * cpu = cpu_of(backend_cpu, __func__);
    if (cpu == NULL) {
        return GGML_STATUS_INVALID_ARGUMENT;
    }
    cpu->abort_callback = callback;
    cpu->abort_data = data;
    return GGML_STATUS_SUCCESS;
}

const char * ggml_backend_cpu_get_level(ggml_backend_t backend_cpu) {
    const struct cpu * cpu = cpu_of(backend_cpu, __func__);
    return cpu != NULL ? cpu->level->name : NULL;
}

enum ggml_status ggml_backend_cpu_set_level(ggml_backend_t backend_cpu, const char * level) {
    struct cpu * cpu = cpu_of(backend_cpu, __func__);
    if (cpu == NULL) {
        return GGML_STATUS_INVALID_ARGUMENT;
    }
    GB_CHECK_ARG(level);
    const struct gb_level * found = gb_level_find(level);
    if (found == NULL) {
        return ggml_last_status();
    }
    cpu->level = found;
    return GGML_STATUS_SUCCESS;
}

int ggml_cpu_default_n_threads(void) { return GB_MIN(gb_n_processors(), GB_CPU_MAX_THREADS); }
