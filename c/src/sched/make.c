// make.c - makes a plan, part by part. Each part depends on earlier parts only.
//
// fill_collected lists the parts and their inputs. A plan that needs more memory than the user's
// costs allow is discarded and made again.
#include "sched/plan.h"

#include "backend/backend.h"
#include "base/current.h"

// Gets the bytes of scratch memory that each backend needs, for its largest split.
static enum ggml_status measure_work(const struct ggml_backend_sched * s, const struct gb_sched_program * program,
    struct gb_sched_layout * layout) {
    const uint64_t before = gb_fail_count();
    for (size_t k = 0; k < program->splits.n; k++) {
        const struct gb_split * split = &program->splits.data[k];
        const ggml_backend_t backend = s->devices[split->backend].backend;
        struct ggml_cgraph graph = gb_program_part(program, split->exec_begin, split->exec_end);
        if (backend->iface.graph_work_size && graph.n_nodes > 0) {
            layout->need[split->backend].work =
                GB_MAX(layout->need[split->backend].work, backend->iface.graph_work_size(backend, &graph));
        }
    }
    return gb_status_since(before);
}

static struct gb_sched_parts parts_of(const struct gb_sched_plan * p) {
    return (struct gb_sched_parts){ &p->in, &p->assigned, &p->program, &p->layout };
}

// Lists the kept plans whose offsets a new plan may use, the latest used first. Drafts have no
// arenas.
static enum ggml_status list_earlier(const struct ggml_backend_sched * s, gb_sched_parts_list * earlier) {
    for (size_t k = 0; k < s->plans.n; k++) {
        if (!s->plans.data[k]->draft && !gb_vec_push(earlier, parts_of(s->plans.data[k]))) {
            return GGML_STATUS_ALLOC_FAILED;
        }
    }
    return GGML_STATUS_SUCCESS;
}

// Merges copies as in an earlier plan that may fit, so that its offsets can be used.
static enum ggml_status make_program(const struct ggml_backend_sched * s, struct gb_sched_plan * p,
    const gb_sched_parts_list * earlier) {
    const struct gb_sched_parts parts = parts_of(p);
    const struct gb_sched_program * candidate = NULL;
    for (size_t k = 0; k < earlier->n && candidate == NULL; k++) {
        candidate = gb_sched_may_fit(&parts, &earlier->data[k]) ? earlier->data[k].program : NULL;
    }
    return gb_sched_make_program(s, &p->in, &p->assigned, p->layout.items.data, candidate, &p->program);
}

// Makes each part. The thread's poll may cancel after each part, and within parts that walk the
// graph several times.
static enum ggml_status fill_collected(struct ggml_backend_sched * s, struct gb_sched_plan * p,
    const struct gb_sched_memory_prices * memory, const gb_sched_parts_list * earlier) {
#define NEXT(part) \
    GB_TRY(part);  \
    GB_TRY(gb_check_poll())
    const struct gb_sched_input * in = &p->in;
    const struct gb_sched_assigned * assigned = &p->assigned;
    const struct gb_sched_program * program = &p->program;
    NEXT(gb_sched_assign(s, in, memory, &p->assigned));
    NEXT(gb_sched_cut(in, assigned, &p->program));
    NEXT(gb_sched_lay_out_leafs(s, in, assigned, &p->layout));
    NEXT(make_program(s, p, earlier));
    NEXT(gb_sched_order_steps(s, in, assigned, &p->program));
    NEXT(gb_sched_lay_out(s, in, assigned, program, earlier, &p->layout));
    NEXT(gb_sched_validate_layout(s, in, program, &p->layout));
    NEXT(measure_work(s, program, &p->layout));
    NEXT(gb_sched_find_fallbacks(s, in, assigned, program, &p->report));
    NEXT(gb_sched_find_hazards(s, in, program, &p->layout, &p->waits));
    NEXT(gb_sched_init_binding(&p->in, program, &p->layout, &p->binding));
#undef NEXT
    return GGML_STATUS_SUCCESS;
}

// Tensors are validated while they are collected; the other parts trust them.
static enum ggml_status fill(struct ggml_backend_sched * s, struct gb_sched_plan * p, const struct ggml_cgraph * graph,
    const struct gb_sched_memory_prices * memory) {
    gb_sched_parts_list earlier = { 0 };
    GB_TRY(gb_sched_collect(s, &p->in, graph, gb_sched_find_location));
    const bool trust = gb_trust_tensors(true); // gb_sched_collect has checked them
    enum ggml_status status = list_earlier(s, &earlier);
    if (status == GGML_STATUS_SUCCESS) {
        status = fill_collected(s, p, memory, &earlier);
    }
    gb_vec_free(&earlier);
    gb_trust_tensors(trust);
    return status;
}

// Makes one attempt, with the prices of memory in `memory`.
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

// Repeats while the plan needs more memory than the costs allow.
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
