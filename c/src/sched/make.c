// make.c - makes a plan: its parts one after the other, each from those before it.
//
// fill_collected is the table of contents: what each part is made from stands in its arguments. A plan that needs more
// memory than the user's costs allow is thrown away and made again.
#include "sched/plan.h"

#include "backend/backend.h"
#include "base/current.h"

// Asks the backends what scratch memory they need themselves: the most of any split counts.
static enum ggml_status measure_work(struct ggml_backend_sched * s, struct gb_sched_plan * p) {
    const uint64_t before = gb_fail_count();
    for (size_t k = 0; k < p->program.splits.n; k++) {
        const struct gb_split * split = &p->program.splits.data[k];
        const ggml_backend_t backend = s->devices[split->backend].backend;
        struct ggml_cgraph graph = gb_program_part(&p->program, split->exec_begin, split->exec_end);
        if (backend->iface.graph_work_size && graph.n_nodes > 0) {
            p->layout.need[split->backend].work =
                GB_MAX(p->layout.need[split->backend].work, backend->iface.graph_work_size(backend, &graph));
        }
    }
    return gb_status_since(before);
}

// A candidate is known before the program is made: its offsets can be taken if the program becomes the same.
static enum ggml_status make_program(struct ggml_backend_sched * s, struct gb_sched_plan * p) {
    const struct gb_sched_plan * candidate = gb_sched_find_candidate(s, p);
    return gb_sched_make_program(s, &p->in, &p->assigned, p->layout.items.data, candidate ? &candidate->program : NULL,
        &p->program);
}

// What each part is made from. After each, and within those that walk the graph several times, the thread's poll is
// asked whether to go on.
static enum ggml_status fill_collected(struct ggml_backend_sched * s, struct gb_sched_plan * p,
    const struct gb_sched_memory_prices * memory) {
#define NEXT(part) \
    GB_TRY(part);  \
    GB_TRY(gb_go_on())
    const struct gb_sched_input * in = &p->in;
    const struct gb_sched_assigned * assigned = &p->assigned;
    NEXT(gb_sched_assign(s, in, memory, &p->assigned));
    NEXT(gb_sched_cut(in, assigned, &p->program));
    NEXT(gb_sched_lay_out_leafs(s, in, assigned, &p->layout));
    NEXT(make_program(s, p));
    NEXT(gb_sched_order_steps(s, in, assigned, &p->program));
    NEXT(gb_sched_lay_out(s, p));
    NEXT(gb_sched_validate_layout(s, p));
    NEXT(measure_work(s, p));
    NEXT(gb_sched_find_fallbacks(s, p));
    NEXT(gb_sched_find_hazards(s, p));
    NEXT(gb_sched_init_binding(p));
#undef NEXT
    return GGML_STATUS_SUCCESS;
}

// Tensors are validated while they are collected; the other parts trust them.
static enum ggml_status fill(struct ggml_backend_sched * s, struct gb_sched_plan * p, const struct ggml_cgraph * graph,
    const struct gb_sched_memory_prices * memory) {
    GB_TRY(gb_sched_collect(s, &p->in, graph));
    const bool trust = gb_trust_tensors(true); // collecting has looked at them
    const enum ggml_status status = fill_collected(s, p, memory);
    gb_trust_tensors(trust);
    return status;
}

// Makes one attempt, with memory priced as `memory` says.
static enum ggml_status make_once(struct ggml_backend_sched * s, const struct ggml_cgraph * graph, bool minimal,
    const struct gb_sched_memory_prices * memory, struct gb_sched_plan ** plan) {
    struct gb_sched_plan * p = GB_NEW(struct gb_sched_plan);
    if (p == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    p->in.minimal = minimal;
    p->in.n_copies = s->n_copies;
    const enum ggml_status status = fill(s, p, graph, memory);
    if (status != GGML_STATUS_SUCCESS) {
        gb_sched_free_plan(s, p);
        return status;
    }
    *plan = p;
    return GGML_STATUS_SUCCESS;
}

// The plan is made again as long as it needs more memory than the costs allow.
enum ggml_status gb_sched_make_plan(struct ggml_backend_sched * s, const struct ggml_cgraph * graph, bool minimal,
    struct gb_sched_plan ** plan) {
    struct gb_sched_memory_prices memory = { .rounds = 0 };
    for (;;) {
        bool again = false;
        struct gb_sched_plan * p;
        GB_TRY(make_once(s, graph, minimal, &memory, &p));
        const enum ggml_status status = gb_sched_raise_prices(s, &p->assigned, p->layout.need, &memory, &again);
        if (status == GGML_STATUS_SUCCESS && !again) {
            *plan = p;
            return GGML_STATUS_SUCCESS;
        }
        gb_sched_free_plan(s, p);
        GB_TRY(status);
    }
}
