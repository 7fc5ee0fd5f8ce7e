// bench_plan_orders.c - measures each heuristic of the memory planner on one thread: microseconds of processor time per
// buffer, and the peak above the lower bound.
//
//     python benchmarks/plan_instances.py transformer-100000 --out big.csv
//     bench_plan_orders FILE.csv...          columns id,lower,upper,size
//
// For several files, the program also prints two exponents of time. The first is over the number n of buffers. The
// second is over n log n plus the number of pairs of buffers alive together. An exponent of 1 means linear time.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "plan/plan_impl.h"
#include "base/mem.h"

enum {
    SECTIONS,
    IN_ORDER,
    BY_SIZE,
    BY_AREA,
    BY_LOAD,
    BY_DEATH,
    BY_PEAK,
    BY_LOADED_WIDTH,
    BY_LOADED_SIZE,
    SMALLEST_GAP,
    VALIDATOR,
    N_COLUMNS
};
enum { MAX_FILES = 64 };
enum { MAX_SLOW = 200000 }; // buffers; BY_AREA and SMALLEST_GAP skip larger instances
static const struct {
    const char * name;
    enum gb_plan_key key; // of first fit
} columns[N_COLUMNS] = { [SECTIONS] = { "sections", 0 },
    [IN_ORDER] = { "in order", 0 },
    [BY_SIZE] = { "by size", GB_PLAN_BY_SIZE },
    [BY_AREA] = { "by area", GB_PLAN_BY_AREA },
    [BY_LOAD] = { "by load", GB_PLAN_BY_LOAD },
    [BY_DEATH] = { "by death", GB_PLAN_BY_DEATH },
    [BY_PEAK] = { "by peak", GB_PLAN_BY_PEAK },
    [BY_LOADED_WIDTH] = { "by loaded width", GB_PLAN_BY_LOADED_WIDTH },
    [BY_LOADED_SIZE] = { "by loaded size", GB_PLAN_BY_LOADED_SIZE },
    [SMALLEST_GAP] = { "smallest gap", GB_PLAN_BY_SIZE },
    [VALIDATOR] = { "validator", 0 } };

static double seconds(void) { return (double) clock() / CLOCKS_PER_SEC; }

// Returns NULL, and prints a message, if the file has no buffers or cannot be read.
static struct gb_plan_item * load(const char * path, size_t * n) {
    FILE * f = fopen(path, "r");
    GB_VEC(struct gb_plan_item) items = { 0 };
    char line[200];
    while (f != NULL && fgets(line, sizeof(line), f)) {
        long long id, lower, upper, size;
        if (sscanf(line, "%lld,%lld,%lld,%lld", &id, &lower, &upper, &size) == 4 &&
            !gb_vec_push(&items, ((struct gb_plan_item){ lower, upper, (size_t) size, 0 }))) {
            break;
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    if (items.n == 0) {
        fprintf(stderr, "%s: no buffers\n", path);
    }
    *n = items.n;
    return items.data;
}

// Runs one heuristic on all parts. Returns the peak and writes the offsets to the items.
static size_t run(struct gb_plan_problem * p, struct gb_plan_item * items, int column) {
    size_t highest = 0;
    for (size_t k = 0; k < p->n_parts; k++) {
        struct gb_plan_part * part = &p->parts[k];
        size_t peak = 0;
        const enum ggml_status status =
            column == IN_ORDER ? gb_plan_in_order(part, &peak)
                               : gb_plan_first_fit(part, columns[column].key, column == SMALLEST_GAP, NULL, &peak);
        if (status != GGML_STATUS_SUCCESS) {
            exit(1);
        }
        highest = GB_MAX(highest, peak);
        for (uint32_t b = 0; b < part->n; b++) {
            items[part->buffers[b].item].offset = part->trial[b];
        }
    }
    return highest;
}

static void measure(const char * path, double * n_buffers, double * conflicts, double * time) {
    size_t n, a, b;
    struct gb_plan_item * items = load(path, &n);
    struct gb_plan_problem p;
    double start = seconds();
    if (n == 0 || gb_plan_problem_init(&p, items, n, 1) != GGML_STATUS_SUCCESS) {
        exit(2);
    }
    time[0] = seconds() - start;
    *conflicts = (double) n * log2((double) n);
    uint64_t pairs = 0;
    for (size_t k = 0; k < p.n_parts; k++) {
        pairs += p.parts[k].n_pairs;
    }
    *conflicts += (double) pairs;
    printf("%-30s %8zu buffers %11llu pairs", path, n, (unsigned long long) pairs);
    for (int c = 1; c < N_COLUMNS; c++) {
        time[c] = 0.0;
        if ((c == BY_AREA || c == SMALLEST_GAP) && n > MAX_SLOW) {
            continue;
        }
        start = seconds();
        const size_t peak = c != VALIDATOR ? run(&p, items, c) : 0;
        if (c == VALIDATOR && gb_plan_validate(items, n, 1, &a, &b) != NULL) {
            exit(1);
        }
        time[c] = seconds() - start;
        printf("  %s %.2f us", columns[c].name, 1e6 * time[c] / (double) n);
        if (peak > 0) {
            printf(" +%.2f %%", 100.0 * ((double) peak / (double) p.bound - 1.0));
        }
        fflush(stdout);
    }
    printf("\n");
    *n_buffers = (double) n;
    gb_plan_problem_free(&p);
    gb_free(items);
}

// The exponent e if time grows like x^e: the slope of log(time) over log(x).
static double power_of(const double * x, const double (*time)[N_COLUMNS], int c, int files) {
    double sx = 0.0, sy = 0.0, xx = 0.0, xy = 0.0, m = 0.0;
    for (int k = 0; k < files; k++) {
        if (time[k][c] == 0.0) {
            continue;
        }
        m += 1.0;
        const double lx = log(x[k]), ly = log(time[k][c]);
        sx += lx, sy += ly, xx += lx * lx, xy += lx * ly;
    }
    return (m * xy - sx * sy) / (m * xx - sx * sx);
}

int main(int argc, char ** argv) {
    double n[MAX_FILES], conflicts[MAX_FILES], time[MAX_FILES][N_COLUMNS];
    int files = GB_MIN(argc - 1, (int) MAX_FILES);
    for (int k = 0; k < files; k++) {
        measure(argv[k + 1], &n[k], &conflicts[k], time[k]);
    }
    for (int c = 0; files > 1 && c < N_COLUMNS; c++) {
        printf("%-14s time grows with the number of buffers to the power of %.2f, with n log n + pairs to %.2f\n",
            columns[c].name, power_of(n, time, c, files), power_of(conflicts, time, c, files));
    }
    return 0;
}
