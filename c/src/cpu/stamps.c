// stamps.c - turns the times of a run into records of a profile (stamps.h).
//
// A step lasts until thread 0 begins the next step, so the records of a run do not overlap. Each
// job of a step of one thread becomes one record.
#include "cpu/stamps.h"

#include "backend/profile.h"
#include "base/env.h"
#include "base/mem.h"
#include "base/status.h"
#include "cpu/ops/product/product.h"

// All lists follow the struct in one allocation.
struct gb_cpu_stamps * gb_cpu_stamps_new(const struct gb_cpu_plan * plan) {
    if (!gb_profile_is_on()) {
        return NULL;
    }
    const size_t steps = (size_t) plan->n_steps, jobs = (size_t) plan->n_jobs, threads = (size_t) plan->team;
    const size_t n = steps + jobs + threads * steps + (threads + 1) * GB_CPU_STAMPS_APART;
    const uint64_t before = gb_fail_count();
    struct gb_cpu_stamps * s = gb_calloc(1, sizeof(*s) + n * sizeof(int64_t));
    if (s == NULL) {
        gb_forget_failures_since(before);
        gb_profile_drop(jobs);
        return NULL;
    }
    s->n_threads = plan->team;
    s->begin = (int64_t *) (void *) (s + 1);
    s->job_end = s->begin + steps;
    s->worked = s->job_end + jobs;
    s->waited = s->worked + threads * steps + GB_CPU_STAMPS_APART; // after an unused cache line
    return s;
}

static const char * level_name(const struct gb_kernels * kernels) {
    for (int i = 0; i < gb_level_count(); i++) {
        if (gb_level_at(i)->kernels == kernels) {
            return gb_level_at(i)->name;
        }
    }
    return NULL;
}

// The algorithm of the step's product. NULL: the step has no product.
static const char * algorithm_of(struct ggml_tensor * const * nodes, int n, enum gb_fusion_kind fusion,
    const struct gb_cpu_run * run) {
    if (fusion == GB_FUSE_ATTENTION) {
        return "tiles";
    }
    for (int i = 0; i < n; i++) {
        if (gb_is_product(nodes[i]->op)) {
            return gb_mul_mat_algorithm(nodes[i], run->kernels, run->traits);
        }
    }
    return NULL;
}

// The fields that all records of a run share.
struct context {
    const struct gb_cpu_stamps * stamps;
    const struct gb_cpu_plan * plan;
    const struct gb_cpu_run * run;
    const char * level;
};

// Adds the jobs of a step of one thread, during which the other threads waited. The last job
// includes the final barrier.
static void add_alone(const struct context * c, const struct gb_cpu_step * step, int64_t start, int64_t end) {
    for (int j = step->first; j < step->first + step->count; j++) {
        struct ggml_tensor * const node = c->plan->jobs[j].node;
        const int64_t done = c->stamps->job_end[j];
        const bool last = j == step->first + step->count - 1;
        const int64_t finish = last ? end : done;
        if (done == 0) {
            return; // the run was stopped
        }
        const struct gb_profile_note note = { .nodes = &node,
            .n_nodes = 1,
            .algorithm = algorithm_of(&node, 1, GB_FUSE_NOT, c->run),
            .level = c->level,
            .start_ns = start,
            .end_ns = finish,
            .waiting_ns = c->stamps->nth * (finish - start) - (done - start),
            .n_threads = c->stamps->nth,
            .n_tasks = 1 };
        gb_profile_add(&note);
        start = finish;
    }
}

static void add_step(const struct context * c, int i, int64_t end) {
    const struct gb_cpu_step * step = &c->plan->steps[i];
    const int64_t start = c->stamps->begin[i];
    const int nth = c->stamps->nth;
    if (step->fusion == GB_FUSE_NOT && GB_MIN(step->n_tasks, nth) == 1) {
        add_alone(c, step, start, end);
        return;
    }
    struct ggml_tensor * nodes[GB_FUSE_MAX];
    const int n = gb_cpu_plan_nodes(c->plan, step->first, step->first + step->count, nodes);
    int64_t worked = 0;
    for (int t = 0; t < nth; t++) {
        worked += c->stamps->worked[t * c->plan->n_steps + i];
    }
    const struct gb_profile_note note = { .nodes = nodes,
        .n_nodes = n,
        .fusion = step->fusion != GB_FUSE_NOT ? gb_fusion_name((enum gb_fusion_kind) step->fusion) : NULL,
        .algorithm = algorithm_of(nodes, n, (enum gb_fusion_kind) step->fusion, c->run),
        .level = c->level,
        .start_ns = start,
        .end_ns = end,
        .waiting_ns = GB_MAX(nth * (end - start) - worked, 0),
        .n_threads = nth,
        .n_tasks = GB_MIN(step->n_tasks, nth) };
    gb_profile_add(&note);
}

void gb_cpu_stamps_end(struct gb_cpu_stamps * stamps, const struct gb_cpu_plan * plan, const struct gb_cpu_run * run,
    bool complete) {
    if (stamps == NULL) {
        return;
    }
    const struct context c = { stamps, plan, run, level_name(run->kernels) };
    int current = -1; // the step whose end is not known yet
    for (int i = 0; i < plan->n_steps; i++) {
        if (stamps->begin[i] != 0) {
            if (current >= 0) {
                add_step(&c, current, stamps->begin[i]);
            }
            current = i;
        }
    }
    if (current >= 0 && complete) {
        add_step(&c, current, stamps->end);
    }
    gb_free(stamps);
}
