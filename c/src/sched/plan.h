// plan.h - a scheduler plan: all decisions about one graph, in parts that the rooms make one after the other.
//
// A plan belongs to the scheduler and is kept until reset, or until GB_SCHED_PLANS_MAX other graphs came by. Each part
// is made once, by the room whose header defines it, and then only read; the binding alone changes from run to run.
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
    bool draft; // nothing was allocated for it yet, so nobody takes offsets from it
};

// plan.c
// How far a plan is prepared. PLAN allocates nothing; RESERVE has the memory of arenas, replicas and events; BIND also
// places the user's tensors; COMPUTE is BIND, and the leafs must have their content.
enum gb_prepare { GB_PREPARE_PLAN, GB_PREPARE_RESERVE, GB_PREPARE_BIND, GB_PREPARE_COMPUTE };
// *plan is kept by the scheduler, the first of its list, and the one that queries are about.
enum ggml_status gb_sched_prepare(struct ggml_backend_sched * s, struct ggml_cgraph * graph, enum gb_prepare what,
    struct gb_sched_plan ** plan);

// make.c: a new plan, owned by the caller; `minimal`: without replicas and early copies.
enum ggml_status gb_sched_make_plan(struct ggml_backend_sched * s, const struct ggml_cgraph * graph, bool minimal,
    struct gb_sched_plan ** plan);

// match.c
// The graph's tensors carry exactly the places that the plan gave them, so it can run at once.
bool gb_sched_fits_as_it_is(const struct ggml_backend_sched * s, const struct gb_sched_plan * p,
    const struct ggml_cgraph * graph);
// The graph differs from what was planned only in places that are the scheduler's to give: binding makes it fit.
bool gb_sched_fits_when_bound(struct ggml_backend_sched * s, const struct gb_sched_plan * p,
    const struct ggml_cgraph * graph);

// query.c
// The plan that queries are about. NULL and reported, in the name of `func`: no graph was given yet, or another thread
// was changing the scheduler when the process was forked.
const struct gb_sched_plan * gb_sched_last_plan(const struct ggml_backend_sched * s, const char * func);

// keep.c: the list of kept plans. What is dropped is freed, and no pointer of the scheduler to it stays behind.
void gb_sched_free_plan(struct ggml_backend_sched * s, struct gb_sched_plan * p);            // NULL is fine
enum ggml_status gb_sched_add_plan(struct ggml_backend_sched * s, struct gb_sched_plan * p); // takes it in any case
void gb_sched_move_to_front(struct ggml_backend_sched * s, size_t k);
void gb_sched_drop_first(struct ggml_backend_sched * s);
void gb_sched_drop_oldest(struct ggml_backend_sched * s); // those beyond GB_SCHED_PLANS_MAX
void gb_sched_drop_plans(struct ggml_backend_sched * s);  // all
// gb_sched_disarm for each of them.
void gb_sched_disarm_plans(struct ggml_backend_sched * s);

#endif // GB_SCHED_PLAN_H
