// run.h - a run of a plan: the waits that order it, its steps, its end, and who looks on (validator, counters, trace).
//
// The waits are found once, when the plan is made; a run only makes them. A run that was issued ends when somebody
// waits for it; the status of that wait is what became of it.
#ifndef GB_SCHED_RUN_RUN_H
#define GB_SCHED_RUN_RUN_H

#include "base/vec.h"
#include "ggml-backend.h"

struct ggml_backend_sched;
struct gb_copy;
struct gb_sched_assigned;
struct gb_sched_binding;
struct gb_sched_input;
struct gb_sched_layout;
struct gb_sched_program;
struct gb_step;
struct gb_validator;
struct gb_trace;
struct gb_write_back;

// One wait of a step for an earlier step of another issuer.
struct gb_wait {
    int32_t step; // that must be complete
    bool by_host; // else the queue waits
    bool implied; // or comes behind the other one anyway: nothing is done then
    // Memory is reused; else content is needed. A run waits in the same way for both: the tests ask.
    bool hazard;
};

// What a step waits for, and how others wait for it. Each [begin, end) is a part of the list of waits.
struct gb_step_waits {
    int32_t event; // recorded after the step; -1: nobody waits for it
    size_t begin, end;
    size_t again_begin, again_end; // when the run before was the same plan's and may not be complete
};

// Made by hazards.c, then never changed. Owned by the plan.
struct gb_sched_waits {
    GB_VEC(struct gb_wait) list;
    struct gb_step_waits * of; // per step
    size_t n_events;
};

// guard.c: each returns INVALID_STATE, and reports, when it is not so; `func` is named in the message.
// No other thread was inside when the process was forked: what it was changing stays half done in the child.
enum ggml_status gb_sched_check_whole(const struct ggml_backend_sched * s, const char * func);
// The same holds, and this is no call from the scheduler's own callback.
enum ggml_status gb_sched_check_idle(const struct ggml_backend_sched * s, const char * func);
// No backend was freed.
enum ggml_status gb_sched_check_backends(const struct ggml_backend_sched * s, const char * func);

// Between enter and leave a thread may change the scheduler; a process that another thread forks meanwhile cannot use
// its copy.
struct gb_visit { // of a thread that uses the scheduler: what was noted before it
    uint32_t outer;
    unsigned fork_generation;
};

// Notes who is inside. The result is for the matching gb_sched_leave, which notes who was before.
struct gb_visit gb_sched_enter(struct ggml_backend_sched * s);
// Ends what gb_sched_enter began, and returns the status.
enum ggml_status gb_sched_leave(struct ggml_backend_sched * s, struct gb_visit before, enum ggml_status status);

// hazards.c
// Fills the plan's waits: who waits for whom, from what the steps read and write. Needs the layout. Steps that are all
// of one issuer need none. ALLOC_FAILED: no memory.
enum ggml_status gb_sched_find_hazards(const struct ggml_backend_sched * s, const struct gb_sched_input * in,
    const struct gb_sched_program * program, const struct gb_sched_layout * layout, struct gb_sched_waits * waits);
void gb_sched_free_waits(struct gb_sched_waits * waits);

// run.c
// Issues all steps of a plan that is bound. SUCCESS says that they were issued; whether they worked, the wait tells.
// After a failure nothing is queued any more; that of a step names the split and `func`. ABORTED: the callback or the
// thread's poll gave up.
enum ggml_status gb_sched_run(struct ggml_backend_sched * s, const struct gb_sched_assigned * assigned,
    const struct gb_sched_waits * waits, struct gb_sched_binding * binding, const char * func);

// wait.c
// The first failure of the backends, or what became of an earlier run that another call had to wait for. Afterwards
// nothing is queued.
enum ggml_status gb_sched_wait(struct ggml_backend_sched * s); // for all backends, if a run is pending
// The same; it also waits for work that callers have queued themselves.
enum ggml_status gb_sched_wait_for_callers(struct ggml_backend_sched * s);
// The same, for a call that is about something else: the next wait is told of a failure, too.
enum ggml_status gb_sched_wait_first(struct ggml_backend_sched * s);
// Waits for one backend; what it has queued is cancelled if somebody gave up before.
enum ggml_status gb_sched_wait_for_backend(ggml_backend_t backend, bool gave_up);
// Called after a run: checks that the files which devices copied from were there.
enum ggml_status gb_sched_check_files(const struct gb_sched_binding * run);

// validator.c
// To be called while nothing is queued. ALLOC_FAILED: no memory, and the validator stays off.
enum ggml_status gb_sched_set_validator(struct ggml_backend_sched * s, bool on);
void gb_validator_free(struct gb_validator * v);
// The functions below are called by run.c in the order of the run. FAILED, and reported, names the two steps, or the
// tensor, that are wrong.
enum ggml_status gb_validator_begin(struct ggml_backend_sched * s, const struct gb_sched_binding * run);
void gb_validator_wait(struct ggml_backend_sched * s, const struct gb_step * step, const struct gb_wait * wait);
// Called before the step is issued; `filled`: it is made in this run.
enum ggml_status gb_validator_step(struct ggml_backend_sched * s, const struct gb_step * step, bool filled);
// Called after the step is complete.
enum ggml_status gb_validator_done(struct ggml_backend_sched * s, const struct gb_step * step);
// Called when all steps were issued: FAILED, if a result was never written back.
enum ggml_status gb_validator_end(struct ggml_backend_sched * s);

// stats.c
// Why a copy is made, for counters and trace.
enum ggml_backend_sched_reason gb_sched_reason(const struct gb_copy * copy);
// `due` says of a kept copy that this run fills it.
void gb_sched_count_copy(struct ggml_backend_sched * s, const struct gb_copy * copy, bool due);
void gb_sched_count_back(struct ggml_backend_sched * s, const struct gb_write_back * back);

// trace.c: called by run.c and plan.c, only while a record is being made, or a profile. A record never makes a run
// fail.
bool gb_sched_is_traced(const struct ggml_backend_sched * s);
struct gb_trace * gb_trace_new(int n_backends, bool on); // NULL: no memory
void gb_trace_stop(struct gb_trace * trace);             // the record stays; NULL is fine
void gb_trace_free(struct gb_trace * trace);
void gb_trace_disarm(struct gb_trace * trace); // the record stays, its clocks are given back; NULL is fine
void gb_trace_plan(struct ggml_backend_sched * s, int64_t start_ns, const char * what);
// A run calls gb_trace_begin_run, then gb_trace_begin_step and gb_trace_end_step for each step, then gb_trace_end_run,
// whether it worked or not.
void gb_trace_begin_run(struct ggml_backend_sched * s, const struct gb_sched_assigned * assigned,
    const struct gb_sched_binding * run);
void gb_trace_wait(struct ggml_backend_sched * s, const struct gb_step * on, int64_t start_ns);
void gb_trace_begin_step(struct ggml_backend_sched * s, const struct gb_step * step);
// True: the step is to be waited for now, then ...
bool gb_trace_end_step(struct ggml_backend_sched * s, const struct gb_step * step, bool made);
void gb_trace_step_is_done(struct ggml_backend_sched * s);           // ... this
void gb_trace_end_run(struct ggml_backend_sched * s, bool complete); // when all of it has been waited for

#endif // GB_SCHED_RUN_RUN_H
