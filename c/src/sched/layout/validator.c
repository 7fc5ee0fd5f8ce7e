// validator.c - validates the layout of each new plan, also if it took over the offsets of a
// template.
//
// It calls the validator of memory plans, which shares no code with the planner. So a mistake of
// the planner is an error and never a wrong result.
#include "plan/plan.h"
#include "base/mem.h"
#include "base/status.h"
#include "sched/input/input.h"
#include "sched/layout/layout.h"
#include "sched/program/program.h"
#include "sched/sched.h"

// The items of one arena, in the form of the validator of memory plans.
struct validator {
    const struct ggml_backend_sched * sched;
    const struct gb_sched_input * in;
    const struct gb_sched_program * program;
    const struct gb_sched_layout * layout;
    struct gb_plan_item * items; // owned
    int * chunk_of;              // owned
    int64_t * group_at;          // owned; per storage id of an alias group: its item + 1
    int64_t * ids; // owned; per item: a storage id in it
    size_t n;
};

// A name for messages. A copy has its own name, a tensor the name that it had when it was planned.
static const char * name_of(const struct validator * v, int64_t id) {
    const int n_ids = v->in->n_ids;
    return id >= n_ids ? v->program->copies.data[id - n_ids].dst->tensor.name : gb_sched_name_of(v->in, id);
}

// An alias group is one item, as large as its largest member. All members must have one offset.
static bool add_to_group(struct validator * v, int64_t id, const struct gb_item * item) {
    int64_t * at = &v->group_at[item->group];
    if (*at == 0) {
        v->items[v->n] = (struct gb_plan_item){ item->lower, item->upper, item->size, item->offset };
        v->chunk_of[v->n] = item->chunk;
        v->ids[v->n] = id;
        *at = (int64_t) ++v->n;
        return true;
    }
    struct gb_plan_item * group = &v->items[*at - 1];
    group->size = GB_MAX(group->size, item->size);
    return group->offset == item->offset && v->chunk_of[*at - 1] == item->chunk && group->lower == item->lower &&
           group->upper == item->upper;
}

// Validates one arena: groups are inside chunks, aligned, and do not overlap while both live.
static enum ggml_status validate_arena(struct validator * v, int backend) {
    const struct gb_sched_device * d = &v->sched->devices[backend];
    const uint64_t before = gb_fail_count();
    size_t a = 0, b = 0;
    v->n = 0;
    for (int64_t id = 0; id < v->in->n_ids + (int64_t) v->program->copies.n; id++) {
        const struct gb_item * item = gb_sched_arena_item(v->layout, id);
        const bool here = item && item->backend == backend;
        GB_FAIL_IF(here && (item->group < 0 || !add_to_group(v, id, item)), GGML_STATUS_FAILED,
            "check: '%s' does not share the place of the tensors that it is computed in", name_of(v, id));
    }
    const char * problem =
        gb_plan_validate_chunks(v->items, v->n, d->alignment, GB_MIN(d->max_size, SIZE_MAX / 2), v->chunk_of, &a, &b);
    if (problem && gb_fail_count() != before) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    GB_FAIL_IF(problem, GGML_STATUS_FAILED, "check: the plan of backend %s: %s: '%s', '%s'", d->name, problem,
        name_of(v, v->ids[a]), name_of(v, v->ids[b]));
    return GGML_STATUS_SUCCESS;
}

// Leaf stores need no check, because no tensors share memory there.
enum ggml_status gb_sched_validate_layout(const struct ggml_backend_sched * s, const struct gb_sched_input * in,
    const struct gb_sched_program * program, const struct gb_sched_layout * layout) {
    const size_t n = (size_t) in->n_ids + program->copies.n;
    struct validator v = { .sched = s, .in = in, .program = program, .layout = layout };
    enum ggml_status status = GGML_STATUS_ALLOC_FAILED;
    v.items = gb_calloc(n + 1, sizeof(*v.items));
    v.chunk_of = gb_calloc(n + 1, sizeof(*v.chunk_of));
    v.group_at = gb_calloc(n + 1, sizeof(*v.group_at));
    v.ids = gb_calloc(n + 1, sizeof(*v.ids));
    if (v.items && v.chunk_of && v.group_at && v.ids) {
        status = GGML_STATUS_SUCCESS;
    }
    for (int b = 0; b < in->n_backends && status == GGML_STATUS_SUCCESS; b++) {
        status = validate_arena(&v, b);
    }
    gb_free(v.items);
    gb_free(v.chunk_of);
    gb_free(v.group_at);
    gb_free(v.ids);
    return status;
}
