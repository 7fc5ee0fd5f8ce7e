// validator.c - judges where a plan puts things, by the validator of alloc/plan_check.c, which shares no code with what
// found the places. Each plan is judged when it is made, those that take the places of another one included: a mistake
// of the planner is an error, never a wrong result.
#include "alloc/plan.h"
#include "base/mem.h"
#include "base/status.h"
#include "sched/sched.h"

struct judge {
    const struct ggml_backend_sched * sched;
    const struct gb_sched_plan *      plan;
    struct gb_plan_item *             items;    // owned
    int *                             chunk_of; // owned
    int64_t *                         line_at;  // owned; per id: its line in `items` + 1
    int64_t *                         ids;      // owned; per item: an id in it
    size_t                            n;
};

static const char * name_of(const struct judge * j, int64_t id) {
    const struct gb_sched_plan * p = j->plan;
    return id >= p->n_ids ? p->copies.data[id - p->n_ids].dst->tensor.name : p->key[id].name;
}

// What lies in one line in place is one item: as large as the largest of them, and all at one place.
static bool add_to_line(struct judge * j, int64_t id, const struct gb_item * item) {
    int64_t * at = &j->line_at[item->line];
    if (*at == 0) {
        j->items[j->n]    = (struct gb_plan_item){ item->lower, item->upper, item->size, item->offset };
        j->chunk_of[j->n] = item->chunk;
        j->ids[j->n]      = id;
        *at               = (int64_t) ++j->n;
        return true;
    }
    struct gb_plan_item * line = &j->items[*at - 1];
    line->size                 = GB_MAX(line->size, item->size);
    return line->offset == item->offset && j->chunk_of[*at - 1] == item->chunk && line->lower == item->lower &&
           line->upper == item->upper;
}

static enum ggml_status judge_arena(struct judge * j, int backend) {
    const struct gb_sched_plan *   p      = j->plan;
    const struct gb_sched_device * d      = &j->sched->devices[backend];
    const uint64_t                 before = gb_fail_count();
    size_t                         a = 0, b = 0;
    j->n = 0;
    for (int64_t id = 0; id < p->n_ids + (int64_t) p->copies.n; id++) {
        const struct gb_item * item = gb_sched_arena_item(p, id);
        const bool             here = item && item->backend == backend;
        GB_FAIL_IF(here && (item->line < 0 || !add_to_line(j, id, item)), GGML_STATUS_FAILED,
            "check: '%s' does not lie where the tensor is that it was to be computed in", name_of(j, id));
    }
    const char * problem =
        gb_plan_check_chunks(j->items, j->n, d->alignment, GB_MIN(d->max_size, SIZE_MAX / 2), j->chunk_of, &a, &b);
    if (problem && gb_fail_count() != before) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    GB_FAIL_IF(problem, GGML_STATUS_FAILED, "check: the plan of backend %s: %s: '%s', '%s'", d->name, problem,
        name_of(j, j->ids[a]), name_of(j, j->ids[b]));
    return GGML_STATUS_SUCCESS;
}

enum ggml_status gb_sched_judge(const struct ggml_backend_sched * s, const struct gb_sched_plan * p) {
    const size_t     n      = (size_t) p->n_ids + p->copies.n;
    struct judge     j      = { .sched = s, .plan = p };
    enum ggml_status status = GGML_STATUS_ALLOC_FAILED;
    j.items                 = gb_calloc(n + 1, sizeof(*j.items));
    j.chunk_of              = gb_calloc(n + 1, sizeof(*j.chunk_of));
    j.line_at               = gb_calloc(n + 1, sizeof(*j.line_at));
    j.ids                   = gb_calloc(n + 1, sizeof(*j.ids));
    if (j.items && j.chunk_of && j.line_at && j.ids) {
        status = GGML_STATUS_SUCCESS;
    }
    for (int b = 0; b < p->n_backends && status == GGML_STATUS_SUCCESS; b++) {
        status = judge_arena(&j, b);
    }
    gb_free(j.items);
    gb_free(j.chunk_of);
    gb_free(j.line_at);
    gb_free(j.ids);
    return status;
}
