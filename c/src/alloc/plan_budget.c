// plan_budget.c - how much searching a plan may still cost.
//
// The clock and the thread's poll are looked at once in GB_PLAN_LOOK_STEPS, since reading the clock costs as much as
// many steps. Either may end a search; neither steers it (plan.h says why work is counted in steps).
#include "alloc/plan_impl.h"
#include "base/current.h"
#include "base/env.h"

void gb_plan_look(struct gb_plan_budget * budget) {
    const bool late = budget->deadline != INT64_MAX && gb_time_ns() >= budget->deadline;
    budget->unread  = 0;
    budget->gave_up = budget->gave_up || gb_go_on() != GGML_STATUS_SUCCESS;
    budget->steps   = late || budget->gave_up ? 0 : budget->steps;
}
