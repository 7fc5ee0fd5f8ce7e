// run.h - runs of a plan: the waits that order the steps, the run loop, and its observers
// (validator, counters, trace).
//
// The waits are computed once per plan; a run only executes them. An issued run is pending until a
// call waits for it. That wait returns the status of the run.
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
    int32_t step; // the step that must be complete
    bool by_host; // the host waits; else the queue does
    bool implied; // queues of these backends run in this order anyway: nothing is issued
    // The wait is for memory to be free, else for content. A run does not distinguish them, but
    // tests do.
    bool hazard;
};

// The waits of a step, and the event that others wait for. Each [begin, end) is a range of the list
// of waits.
struct gb_step_waits {
    int32_t event; // recorded after the step; -1: no step waits for it
    size_t begin, end;
    size_t again_begin, again_end; // used if the previous run is pending and of the same plan
};

// hazards.c makes it. Then it never changes. Owned by the plan.
struct gb_sched_waits {
    GB_VEC(struct gb_wait) list;
    struct gb_step_waits * of; // per step
    size_t n_events;
};

// guard.c: if the condition does not hold, the functions return INVALID_STATE and report it. The
// message begins with `func`.
// The condition: no other thread was changing the scheduler when the process was forked. Its data
// would be incomplete in the child.
enum ggml_status gb_sched_check_whole(const struct ggml_backend_sched * s, const char * func);
// The same, and the scheduler is not inside its callback.
enum ggml_status gb_sched_check_idle(const struct ggml_backend_sched * s, const char * func);
// The condition: all backends are alive.
enum ggml_status gb_sched_check_backends(const struct ggml_backend_sched * s, const char * func);

// Between enter and leave a thread may change the scheduler. If another thread forks in between,
// the child cannot use its copy of the scheduler.
struct gb_visit { // the values before a thread entered
    uint32_t outer;
    unsigned fork_generation;
};

// Notes that the calling thread is inside. Pass the result to the matching gb_sched_leave.
struct gb_visit gb_sched_enter(struct ggml_backend_sched * s);
// Restores the values before gb_sched_enter and returns the status.
enum ggml_status gb_sched_leave(struct ggml_backend_sched * s, struct gb_visit before, enum ggml_status status);

// hazards.c
// Fills the waits: which step waits for which, from what the steps read and write. Steps of a
// single issuer need none. ALLOC_FAILED: no memory.
enum ggml_status gb_sched_find_hazards(const struct ggml_backend_sched * s, const struct gb_sched_input * in,
    const struct gb_sched_program * program, const struct gb_sched_layout * layout, struct gb_sched_waits * waits);
void gb_sched_free_waits(struct gb_sched_waits * waits);

// run.c
// Issues all steps of a bound plan. SUCCESS: they were issued, and gb_sched_wait returns whether
// they worked. After a failure nothing is queued. The message of a failed step names the split and
// `func`. ABORTED: the callback or the thread's poll cancelled.
enum ggml_status gb_sched_run(struct ggml_backend_sched * s, const struct gb_sched_assigned * assigned,
    const struct gb_sched_waits * waits, struct gb_sched_binding * binding, const char * func);

// wait.c
// The first failure of the backends, or of an earlier run that another call waited for. Afterwards
// nothing is queued.
enum ggml_status gb_sched_wait(struct ggml_backend_sched * s); // waits for all backends if a run is pending
// Also waits for work that callers have queued themselves.
enum ggml_status gb_sched_wait_for_callers(struct ggml_backend_sched * s);
// Waits on behalf of a call with another purpose. The next wait reports a failure again.
enum ggml_status gb_sched_wait_first(struct ggml_backend_sched * s);
// Waits for one backend. `cancel`: the backend drops what it has queued.
enum ggml_status gb_sched_wait_for_backend(ggml_backend_t backend, bool cancel);
// After a run: fails if a mapped file was cut short while devices copied from it.
enum ggml_status gb_sched_check_files(const struct gb_sched_binding * run);

// validator.c
// Call this while nothing is queued. ALLOC_FAILED: no memory, and the validator stays off.
enum ggml_status gb_sched_set_validator(struct ggml_backend_sched * s, bool on);
void gb_validator_free(struct gb_validator * v);
// run.c calls the functions below in the order of the run. FAILED, and reported: the message names
// both steps, or the tensor.
enum ggml_status gb_validator_begin(struct ggml_backend_sched * s, const struct gb_sched_binding * run);
void gb_validator_wait(struct ggml_backend_sched * s, const struct gb_step * step, const struct gb_wait * wait);
// Before a step is issued. `filled`: this run executes it.
enum ggml_status gb_validator_step(struct ggml_backend_sched * s, const struct gb_step * step, bool filled);
// After the step is complete.
enum ggml_status gb_validator_done(struct ggml_backend_sched * s, const struct gb_step * step);
// After all steps were issued. FAILED: a result was not written back.
enum ggml_status gb_validator_end(struct ggml_backend_sched * s);

// stats.c
// The reason of a copy, for counters and trace.
enum ggml_backend_sched_reason gb_sched_reason(const struct gb_copy * copy);
// `due`: this run fills the kept copy.
void gb_sched_count_copy(struct ggml_backend_sched * s, const struct gb_copy * copy, bool due);
void gb_sched_count_back(struct ggml_backend_sched * s, const struct gb_write_back * back);

// trace.c: run.c and plan.c call these functions only while a trace or a profile is recorded.
// Recording never makes a run fail.
bool gb_sched_is_traced(const struct ggml_backend_sched * s);
struct gb_trace * gb_trace_new(int n_backends, bool on); // NULL: no memory
void gb_trace_stop(struct gb_trace * trace); // the record stays; NULL is allowed
void gb_trace_free(struct gb_trace * trace);
void gb_trace_disarm(struct gb_trace * trace); // frees the clocks, keeps the record; NULL is allowed
void gb_trace_plan(struct ggml_backend_sched * s, int64_t start_ns, const char * what);
// A run calls gb_trace_begin_run, gb_trace_begin_step and gb_trace_end_step for each step, then
// gb_trace_end_run, also after a failure.
void gb_trace_begin_run(struct ggml_backend_sched * s, const struct gb_sched_assigned * assigned,
    const struct gb_sched_binding * run);
void gb_trace_wait(struct ggml_backend_sched * s, const struct gb_step * on, int64_t start_ns);
void gb_trace_begin_step(struct ggml_backend_sched * s, const struct gb_step * step);
// True: the caller must wait for the step now, and then call gb_trace_step_is_done.
bool gb_trace_end_step(struct ggml_backend_sched * s, const struct gb_step * step, bool made);
void gb_trace_step_is_done(struct ggml_backend_sched * s);
void gb_trace_end_run(struct ggml_backend_sched * s, bool complete); // after all steps are complete

#endif // GB_SCHED_RUN_RUN_H
