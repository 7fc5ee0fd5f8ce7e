// test_plan_faults.h - removes one copy or one wait from a plan of the scheduler, to test the
// validator.
//
// The run loop executes the plan unchanged. A copy becomes the computation of an empty split. A
// wait is removed from the list of its step.
#ifndef GB_TESTS_TEST_PLAN_FAULTS_H
#define GB_TESTS_TEST_PLAN_FAULTS_H

#include "base/mem.h"
#include "sched/plan.h"

enum plan_fault_kind { FAULT_COPY, FAULT_WAIT, N_FAULT_KINDS };

// A fault in a plan.
struct plan_fault {
    struct gb_sched_plan * plan; // borrowed; NULL: no fault
    size_t step;
    enum plan_fault_kind kind;
    struct gb_step was; // the step of a copy
};

// The number of faults of one kind that a step can have: its copy, if the last run made it, or each
// of its waits.
static inline size_t plan_faults_of_step(const struct gb_sched_plan * p, enum plan_fault_kind kind, size_t k) {
    const struct gb_step * step = &p->program.steps.data[k];
    if (kind == FAULT_WAIT) {
        return p->waits.of[k].end - p->waits.of[k].begin;
    }
    const struct gb_copy * copy = step->kind == GB_STEP_COPY ? &p->program.copies.data[step->index] : NULL;
    return step->kind == GB_STEP_BACK ||
           (copy != NULL && copy->fill && (!copy->kept || p->binding.copies[step->index].due));
}

static inline int plan_n_faults(const struct gb_sched_plan * p, enum plan_fault_kind kind) {
    size_t n = 0;
    for (size_t k = 0; k < p->program.steps.n; k++) {
        n += plan_faults_of_step(p, kind, k);
    }
    return (int) n;
}

// Removes the copy of fault->step.
static inline void plan_remove_copy(struct plan_fault * fault) {
    struct gb_sched_plan * p = fault->plan;
    struct gb_step * step = &p->program.steps.data[fault->step];
    const size_t n = p->program.splits.n;
    fault->was = *step;
    struct gb_bound_split * bound = gb_calloc(n + 1, sizeof(*bound));
    memcpy(bound, p->binding.splits, n * sizeof(*bound));
    gb_free(p->binding.splits);
    p->binding.splits = bound;
    (void) !gb_vec_push(&p->program.splits, ((struct gb_split) { .backend = p->program.splits.data[0].backend }));
    step->kind = GB_STEP_COMPUTE;
    step->index = (int32_t) n;
}

// Makes fault number `k`, from 0 on. It remains in the plan until plan_repair.
static inline struct plan_fault plan_inject(struct gb_sched_plan * p, enum plan_fault_kind kind, int k) {
    struct plan_fault fault = { .plan = p, .kind = kind };
    size_t at = (size_t) k;
    for (; at >= plan_faults_of_step(p, kind, fault.step); fault.step++) {
        at -= plan_faults_of_step(p, kind, fault.step);
    }
    struct gb_step_waits * waits = &p->waits.of[fault.step];
    if (kind == FAULT_COPY) {
        plan_remove_copy(&fault);
    } else {
        struct gb_wait * removed = &p->waits.list.data[waits->begin + at];
        const struct gb_wait wait = *removed;
        *removed = p->waits.list.data[--waits->end];
        p->waits.list.data[waits->end] = wait;
    }
    return fault;
}

static inline void plan_repair(const struct plan_fault * fault) {
    if (fault->kind == FAULT_WAIT) {
        fault->plan->waits.of[fault->step].end++;
    } else {
        fault->plan->program.steps.data[fault->step] = fault->was;
        fault->plan->program.splits.n--;
    }
}

#endif // GB_TESTS_TEST_PLAN_FAULTS_H
