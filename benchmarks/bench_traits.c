// bench_traits.c - what the probe of cpu/traits.h finds in many processes, one after the other, beside busy neighbours:
// how often each value was found, and how long the probe took.
//
//     bench_traits [PROCESSES] [NEIGHBOURS] [LEVEL]        default: 300 processes, none, the best level
//
// A neighbour is a process that multiplies without a pause. Values are printed for each trait that is measured; one
// value for all processes is what the probe promises.
#define _GNU_SOURCE // kill
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/env.h"
#include "cpu/traits.h"
#include "ggml-cpu.h"
#include "timing.h"

#define MEASURED 3 // of the traits
#define NEIGHBOURS 64

struct found {
    double value[MEASURED];
    int64_t ns, processor_ns;
};

// In a child process, where no trait has been measured yet.
static struct found probe(const struct gb_level * level) {
    int ends[2];
    struct found found = { { 0 }, 0, 0 };
    if (pipe(ends) != 0) {
        exit(1);
    }
    const pid_t child = fork();
    if (child == 0) {
        const int64_t start = gb_time_ns(), processor = gb_thread_time_ns();
        const struct gb_cpu_traits * t = gb_cpu_traits_of(level->kernels);
        found.ns = gb_time_ns() - start;
        found.processor_ns = gb_thread_time_ns() - processor;
        for (int i = 0; i < MEASURED; i++) {
            found.value[i] = t->value[i];
        }
        _exit(write(ends[1], &found, sizeof(found)) == (ssize_t) sizeof(found) ? 0 : 1);
    }
    close(ends[1]);
    if (child < 0 || read(ends[0], &found, sizeof(found)) != (ssize_t) sizeof(found)) {
        exit(1);
    }
    close(ends[0]);
    waitpid(child, NULL, 0);
    return found;
}

static int compare_ns(const void * a, const void * b) {
    const int64_t x = *(const int64_t *) a, y = *(const int64_t *) b;
    return (x > y) - (x < y);
}

static void print_times(const char * what, int64_t * ns, int n) {
    qsort(ns, (size_t) n, sizeof(*ns), compare_ns);
    printf("%-14s median %7.1f us, largest %8.1f us\n", what, (double) ns[n / 2] * 1e-3, (double) ns[n - 1] * 1e-3);
}

// Each different value of a trait once, with how many processes found it.
static void print_values(int trait, const struct found * all, int n) {
    struct ggml_cpu_trait facts;
    ggml_cpu_get_trait(trait, NULL, &facts);
    printf("%-14s", facts.name);
    for (int i = 0; i < n; i++) {
        int before = 0, count = 0;
        for (int j = 0; j < n; j++) {
            const bool same = all[j].value[trait] == all[i].value[trait];
            before += same && j < i;
            count += same;
        }
        if (before == 0) {
            printf(" %g: %d of %d", all[i].value[trait], count, n);
        }
    }
    printf("\n");
}

int main(int argc, char ** argv) {
    const int n = argc > 1 ? atoi(argv[1]) : 300, busy = argc > 2 ? atoi(argv[2]) : 0;
    const struct gb_level * level = bench_level(argc > 3 ? argv[3] : NULL);
    pid_t neighbours[NEIGHBOURS];
    if (level == NULL || n < 1 || busy < 0 || busy > NEIGHBOURS) {
        fprintf(stderr, "bench_traits [PROCESSES] [NEIGHBOURS] [LEVEL]\n");
        return 1;
    }
    for (int i = 0; i < busy; i++) {
        neighbours[i] = fork();
        while (neighbours[i] == 0) {
            level->kernels->limit_f32(1 << 20);
        }
    }
    struct found * all = calloc((size_t) n, sizeof(*all));
    int64_t * times = calloc((size_t) n, sizeof(*times));
    for (int i = 0; i < n; i++) {
        all[i] = probe(level);
    }
    printf("%d processes at %s beside %d neighbours\n", n, level->name, busy);
    for (int trait = 0; trait < MEASURED; trait++) {
        print_values(trait, all, n);
    }
    for (int i = 0; i < n; i++) {
        times[i] = all[i].ns;
    }
    print_times("time", times, n);
    for (int i = 0; i < n; i++) {
        times[i] = all[i].processor_ns;
    }
    print_times("processor time", times, n);
    for (int i = 0; i < busy; i++) {
        kill(neighbours[i], SIGKILL);
        waitpid(neighbours[i], NULL, 0);
    }
    free(all);
    free(times);
    return 0;
}
