// plan_budget.c - counts the remaining steps of a plan.
//
// Reading the clock costs many steps, so the clock and the thread's poll are read once per
// GB_PLAN_CHECK_STEPS. Each may end the work, but does not influence it otherwise. So equal items
// give equal plans unless the work is ended.
#include "plan/plan_impl.h"
#include "base/current.h"
#include "base/env.h"
#include "base/mem.h"

void gb_plan_check_clock(struct gb_plan_budget * budget) {
    const bool timed_out = budget->deadline != INT64_MAX && gb_thread_time_ns() >= budget->deadline;
    budget->unchecked = 0;
    budget->aborted =
        budget->aborted || gb_check_poll() != GGML_STATUS_SUCCESS || (budget->stop && atomic_load(budget->stop));
    budget->timed_out = budget->timed_out || timed_out;
    budget->steps = timed_out || budget->aborted ? 0 : budget->steps;
}

struct gb_plan_budget gb_plan_share(struct gb_plan_budget * from, uint64_t steps) {
    struct gb_plan_budget share = *from;
    share.steps = GB_MIN(steps, from->steps);
    from->steps -= share.steps;
    return share;
}

void gb_plan_give_back(struct gb_plan_budget * to, const struct gb_plan_budget * share) {
    to->steps += share->steps;
    to->unchecked = share->unchecked;
    to->aborted = to->aborted || share->aborted;
    to->timed_out = to->timed_out || share->timed_out;
    if (to->aborted || to->timed_out) {
        to->steps = 0;
    }
}
