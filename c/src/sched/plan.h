// plan.h - a scheduler plan: all decisions about one graph, in parts.
//
// A plan belongs to the scheduler. The scheduler keeps it until reset, or until GB_SCHED_PLANS_MAX
// other graphs were planned. One folder makes each part, and its header defines the part. A
// finished part is only read. Only the binding changes from run to run.
//
// Only the files beside this header see whole plans. The folders get the parts that they need.
#ifndef GB_SCHED_PLAN_H
#define GB_SCHED_PLAN_H

#include "sched/assign/assign.h"
#include "sched/input/input.h"
#include "sched/layout/layout.h"
#include "sched/memory/memory.h"
#include "sched/program/program.h"
#include "sched/report/report.h"
#include "sched/run/run.h"

struct gb_sched_plan {
    struct gb_sched_input in;
    struct gb_sched_assigned assigned;
    struct gb_sched_program program;
    struct gb_sched_layout layout;
    struct gb_sched_waits waits;
    struct gb_sched_report report;
    struct gb_sched_binding binding;
    bool draft; // it has no memory yet, so no other plan uses its offsets
};

// plan.c
// PLAN allocates nothing. RESERVE allocates arenas, replicas and events. BIND also places the
// user's tensors. COMPUTE is BIND, and checks that leafs have their content.
enum gb_prepare { GB_PREPARE_PLAN, GB_PREPARE_RESERVE, GB_PREPARE_BIND, GB_PREPARE_COMPUTE };
// The scheduler keeps *plan, first in its list. Queries are about this plan.
enum ggml_status gb_sched_prepare(struct ggml_backend_sched * s, struct ggml_cgraph * graph, enum gb_prepare what,
    struct gb_sched_plan ** plan);

// make.c: a new plan, owned by the caller. `minimal`: without replicas and early copies.
enum ggml_status gb_sched_make_plan(struct ggml_backend_sched * s, const struct ggml_cgraph * graph, bool minimal,
    struct gb_sched_plan ** plan);

// match.c
// True if the graph's tensors have exactly the places of the plan, so the plan can run at once.
bool gb_sched_fits_as_it_is(const struct ggml_backend_sched * s, const struct gb_sched_plan * p,
    const struct ggml_cgraph * graph);
// True if the graph differs from the plan only in places that the scheduler assigns, so the plan
// can run once it is bound.
bool gb_sched_fits_when_bound(struct ggml_backend_sched * s, const struct gb_sched_plan * p,
    const struct ggml_cgraph * graph);

// query.c
// The plan that queries are about. NULL and reported for the function `func`: no graph was given
// yet, or another thread was changing the scheduler when the process was forked.
const struct gb_sched_plan * gb_sched_last_plan(const struct ggml_backend_sched * s, const char * func);

// keep.c: the list of kept plans. Dropping a plan frees it and clears all pointers of the scheduler
// to it.
void gb_sched_free_plan(struct ggml_backend_sched * s, struct gb_sched_plan * p); // NULL is allowed
// Takes ownership, also on failure
enum ggml_status gb_sched_add_plan(struct ggml_backend_sched * s, struct gb_sched_plan * p);
void gb_sched_move_to_front(struct ggml_backend_sched * s, size_t k);
void gb_sched_drop_first(struct ggml_backend_sched * s);
void gb_sched_drop_oldest(struct ggml_backend_sched * s); // the plans beyond GB_SCHED_PLANS_MAX
void gb_sched_drop_plans(struct ggml_backend_sched * s); // all plans
// Calls gb_sched_disarm for each plan.
void gb_sched_disarm_plans(struct ggml_backend_sched * s);

#endif // GB_SCHED_PLAN_H
