// make.c - a plan is made: its parts, one after the other, each from those before it.
#include "sched/plan.h"

#include "backend/backend.h"
#include "base/current.h"

static enum ggml_status find_candidate(struct ggml_backend_sched * s, struct gb_sched_plan * p) {
    p->making.candidate = gb_sched_find_candidate(s, p);
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status validate(struct ggml_backend_sched * s, struct gb_sched_plan * p) {
    return gb_sched_validate_layout(s, p);
}

// What the backends need for themselves: the most of any split.
static enum ggml_status measure_work(struct ggml_backend_sched * s, struct gb_sched_plan * p) {
    const uint64_t before = gb_fail_count();
    for (size_t k = 0; k < p->program.splits.n; k++) {
        const struct gb_split * split   = &p->program.splits.data[k];
        const ggml_backend_t    backend = s->devices[split->backend].backend;
        struct ggml_cgraph      graph   = { .n_nodes = (int) (split->exec_end - split->exec_begin),
            .nodes                                 = p->program.exec.data + split->exec_begin };
        graph.size                      = graph.n_nodes;
        if (backend->iface.graph_work_size && graph.n_nodes > 0) {
            p->layout.need[split->backend].work =
                GB_MAX(p->layout.need[split->backend].work, backend->iface.graph_work_size(backend, &graph));
        }
    }
    return gb_status_since(before);
}

// Between two steps, and within those that walk the graph several times, the thread's poll is asked.
static enum ggml_status fill_collected(struct ggml_backend_sched * s, struct gb_sched_plan * p) {
    static enum ggml_status (*const steps[])(struct ggml_backend_sched *, struct gb_sched_plan *) = {
        gb_sched_assign,
        gb_sched_cut,
        gb_sched_lay_out_leafs,
        find_candidate,
        gb_sched_make_program,
        gb_sched_order_steps,
        gb_sched_lay_out,
        validate,
        measure_work,
        gb_sched_find_fallbacks,
        gb_sched_find_hazards,
        gb_sched_init_binding,
    };
    for (size_t i = 0; i < GB_ARRAY_LEN(steps); i++) {
        GB_TRY(steps[i](s, p));
        GB_TRY(gb_go_on());
    }
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status fill(struct ggml_backend_sched * s, struct gb_sched_plan * p,
    const struct ggml_cgraph * graph) {
    GB_TRY(gb_sched_collect(s, &p->in, graph));
    const bool             trust  = gb_trust_tensors(true); // collecting has looked at them
    const enum ggml_status status = fill_collected(s, p);
    gb_trust_tensors(trust);
    return status;
}

static enum ggml_status make_relieved(struct ggml_backend_sched * s, const struct ggml_cgraph * graph, bool minimal,
    const struct gb_sched_relief * relief, struct gb_sched_plan ** plan) {
    struct gb_sched_plan * p = GB_NEW(struct gb_sched_plan);
    if (p == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    p->in.minimal                 = minimal;
    p->in.n_copies                = s->n_copies;
    p->making.relief              = relief;
    const enum ggml_status status = fill(s, p, graph);
    p->making.relief              = NULL;
    p->making.candidate           = NULL;
    if (status != GGML_STATUS_SUCCESS) {
        gb_sched_free_plan(s, p);
        return status;
    }
    *plan = p;
    return GGML_STATUS_SUCCESS;
}

// Made again as long as it needs more memory than the costs allow.
enum ggml_status gb_sched_make_plan(struct ggml_backend_sched * s, const struct ggml_cgraph * graph, bool minimal,
    struct gb_sched_plan ** plan) {
    struct gb_sched_relief relief = { .rounds = 0 };
    for (;;) {
        bool                   again = false;
        struct gb_sched_plan * p;
        GB_TRY(make_relieved(s, graph, minimal, &relief, &p));
        const enum ggml_status status = gb_sched_relieve(s, p, &relief, &again);
        if (status == GGML_STATUS_SUCCESS && !again) {
            *plan = p;
            return GGML_STATUS_SUCCESS;
        }
        gb_sched_free_plan(s, p);
        GB_TRY(status);
    }
}
