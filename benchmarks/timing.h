// timing.h - how the C benchmarks measure: the shortest of several series of calls, because other work on a machine can
// only lengthen them. Compared cases alternate, so that a busy moment affects both.
//
// Set GB_BENCH_CPU=1 to measure processor time, on machines that others use.
#ifndef GB_BENCHMARKS_TIMING_H
#define GB_BENCHMARKS_TIMING_H

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/env.h"
#include "cpu/kernels/kernels.h"

// The level that a program's argument names. NULL or "best" is the default. Returns NULL, with an error, if there is no
// such level.
static inline const struct gb_level * bench_level(const char * name) {
    return name != NULL && strcmp(name, "best") != 0 ? gb_level_find(name) : gb_level_default();
}

// Seconds of wall time, for work that the processor waits for.
static inline double bench_wall(void) { return (double) gb_time_ns() * 1e-9; }

// Seconds of wall time, or with GB_BENCH_CPU the processor time of each of `threads` threads, on average.
static inline double bench_now(int threads) {
    if (getenv("GB_BENCH_CPU") == NULL) {
        return bench_wall();
    }
    return threads == 1 ? (double) gb_thread_time_ns() * 1e-9 : (double) clock() / CLOCKS_PER_SEC / threads;
}

// The shortest time of several rounds. Initialize it with { 0 }.
struct bench_shortest {
    double seconds;
    int rounds;
};

static inline void bench_add(struct bench_shortest * s, double seconds) {
    s->seconds = s->rounds == 0 || seconds < s->seconds ? seconds : s->seconds;
    s->rounds++;
}

// Seconds of one call, as the mean of `calls` consecutive calls.
static inline double bench_series(void (*run)(void * data), void * data, int calls, int threads) {
    const double start = bench_now(threads);
    for (int i = 0; i < calls; i++) {
        run(data);
    }
    return (bench_now(threads) - start) / calls;
}

// Seconds of one call in the shortest of several series.
static inline double bench_best(void (*run)(void * data), void * data, int calls, int rounds, int threads) {
    struct bench_shortest s = { 0 };
    for (int i = 0; i < rounds; i++) {
        bench_add(&s, bench_series(run, data, calls, threads));
    }
    return s.seconds;
}

#endif // GB_BENCHMARKS_TIMING_H
