// team.c - services of a run for operators: barriers, checks for an abort, sharing of work, and the
// first failure.
//
// Invariant: the last thread that arrives at a barrier decides for all whether to continue. So
// after a failure or an abort, no thread waits at a barrier that other threads skip.
#include "cpu/team.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/env.h"
#include "cpu/stamps.h"
#include "cpu/threadpool.h"
#include "tensor/tensor.h"

// The first failure stays: an abort counts only if the run has not failed before. Failures inside
// the callback are ignored.
void gb_cpu_team_ask(struct gb_cpu_team * team) {
    int going = GGML_STATUS_SUCCESS;
    const uint64_t before = gb_fail_count();
    const bool abort = team->run->abort_callback(team->run->abort_data);
    gb_forget_failures_since(before);
    if (abort) {
        atomic_compare_exchange_strong(&team->halted, &going, GGML_STATUS_ABORTED);
    }
}

// The slow path of gb_cpu_stopped, about once in GB_CPU_PACE nanoseconds of work.
bool gb_cpu_look(const struct gb_cpu_call * call) {
    if (call->pace->asks && !gb_cpu_team_is_halted(call->team)) {
        gb_cpu_team_poll_abort(call->team);
    }
    const bool halted = gb_cpu_team_is_halted(call->team);
    call->pace->left = halted ? -1 : GB_CPU_PACE;
    return halted;
}

// Called by the last thread that arrives at a barrier inside a node, while the other threads wait.
static void decide_in_node(void * arg) {
    struct gb_cpu_team * team = arg;
    team->leave = gb_cpu_team_is_halted(team);
}

bool gb_cpu_barrier(const struct gb_cpu_call * call) {
    call->pace->n_takings = 0;
    if (call->nth == 1) {
        return !gb_cpu_team_is_halted(call->team);
    }
    const int64_t start = call->team->stamps != NULL ? gb_time_ns() : 0;
    gb_cpu_pool_barrier(call->team->pool, GB_CPU_BARRIER_NODE, call->nth, decide_in_node, call->team);
    if (start != 0) {
        call->team->stamps->waited[call->ith * GB_CPU_STAMPS_APART] += gb_time_ns() - start;
    }
    return !call->team->leave;
}

// ------------------------------------------------------------------------------------------------------- work sharing
//
// gb_cpu_pool_taken of a thread is the number of slots taken from its part, in the lower bits. The
// upper bits are the epoch. A number of an earlier epoch counts as zero. So nothing resets it, and
// threads can take slots from the part of a thread that has not started.
//
// Invariant: each slot is taken once. Each thread empties its own part before it ends, so no slot
// is left.

#define TAKEN_BITS 16
#define SLOTS 32 // of a part, at most
#define SLOTS_LEAST 4 // of a part, at least; shorter parts are not shared
#define VISITS 8 // parts that a thread checks, including its own; a check fetches a cache line of another core

struct gb_cpu_taking gb_cpu_taking_of(const struct gb_cpu_call * call, int64_t n, int64_t slot) {
    struct gb_cpu_taking t = { .call = call, .n = n, .per = gb_div_up(n, call->nth), .slot = slot };
    t.by_all = call->nth > 1 && slot > 0 && call->pace->n_takings < GB_CPU_TAKINGS && t.per >= SLOTS_LEAST * slot;
    if (t.by_all) {
        t.number = call->pace->n_takings++;
        t.slot = gb_div_up(gb_div_up(t.per, SLOTS), slot) * slot;
    }
    return t;
}

// Takes a quarter of the remaining slots, at least one. Returns their number. *first: the first of
// them.
static int64_t take_slots(atomic_ullong * taken, uint64_t epoch, int64_t slots, int64_t * first) {
    unsigned long long now = atomic_load_explicit(taken, memory_order_relaxed);
    for (;;) {
        *first = now >> TAKEN_BITS == epoch ? (int64_t) (now & ((1u << TAKEN_BITS) - 1)) : 0;
        const int64_t left = slots - *first, n = GB_MAX(left / 4, GB_MIN(left, 1));
        const uint64_t wanted = epoch << TAKEN_BITS | (uint64_t) (*first + n);
        if (n <= 0 ||
            atomic_compare_exchange_weak_explicit(taken, &now, wanted, memory_order_relaxed, memory_order_relaxed)) {
            return n;
        }
    }
}

bool gb_cpu_take(struct gb_cpu_taking * t, int64_t * first, int64_t * last, int64_t * part) {
    const struct gb_cpu_call * call = t->call;
    if (!t->by_all) {
        gb_cpu_share(call, t->n, first, last);
        *part = *last;
        return t->visited++ == 0 && *first < *last;
    }
    const uint64_t epoch = gb_cpu_pool_epoch(call->team->pool) & (UINT64_MAX >> TAKEN_BITS);
    for (; t->visited < GB_MIN(call->nth, VISITS); t->visited++) {
        const int whose = (call->ith + t->visited) % call->nth;
        const int64_t begin = GB_MIN(t->per * whose, t->n);
        int64_t slot;
        *part = GB_MIN(begin + t->per, t->n);
        const int64_t n = take_slots(gb_cpu_pool_taken(call->team->pool, whose, t->number), epoch,
            gb_div_up(*part - begin, t->slot), &slot);
        if (n > 0) {
            *first = begin + slot * t->slot;
            *last = GB_MIN(*first + n * t->slot, *part);
            return true;
        }
    }
    return false;
}

// The exchange of `claimed` makes one thread the owner of `message`. `halted` is set after
// `message`, so a reader after the run finds the message complete.
void gb_cpu_fail(const struct gb_cpu_call * call, const struct ggml_tensor * node, enum ggml_status status,
    const char * fmt, ...) {
    struct gb_cpu_team * team = call->team;
    int first = 0;
    if (!atomic_compare_exchange_strong(&team->claimed, &first, 1)) {
        return;
    }
    char text[GB_ERROR_SIZE / 2], what[GB_ERROR_SIZE / 2];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof(what), fmt, args);
    va_end(args);
    snprintf(team->message, sizeof(team->message), "CPU: %s: %s", gb_describe_node(node, text, sizeof(text)), what);
    atomic_store(&team->halted, status != GGML_STATUS_SUCCESS ? status : GGML_STATUS_FAILED);
}
