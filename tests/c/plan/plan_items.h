// plan_items.h - reads items of memory plans from tests/data, and shuffles items.
#ifndef GB_TESTS_PLAN_ITEMS_H
#define GB_TESTS_PLAN_ITEMS_H

#include <stdio.h>
#include <string.h>

#include "plan/plan.h"
#include "test.h"

// Reads at most `max` items of tests/data/NAME (columns: id, lower, upper, size). Returns their
// number, or 0 if the file does not exist.
static inline size_t plan_items_load(const char * name, struct gb_plan_item * items, size_t max) {
    const char * here = __FILE__;
    const char * slash = strrchr(here, '/');
    const int folder = slash != NULL ? (int) (slash + 1 - here) : 0;
    char path[1000];
    snprintf(path, sizeof(path), "%.*s../../data/%s", folder, here, name);
    FILE * f = fopen(path, "r");
    char line[200];
    size_t n = 0;
    while (f != NULL && n < max && fgets(line, sizeof(line), f)) {
        long long lower, upper, size, id;
        if (sscanf(line, "%lld,%lld,%lld,%lld", &id, &lower, &upper, &size) == 4) {
            items[n++] = (struct gb_plan_item) { lower, upper, (size_t) size, 0 };
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    return n;
}

static inline void plan_items_shuffle(struct gb_plan_item * all, size_t n) {
    for (size_t i = n; i > 1; i--) {
        const size_t j = (size_t) test_random_int(0, (int64_t) i - 1);
        const struct gb_plan_item swap = all[i - 1];
        all[i - 1] = all[j];
        all[j] = swap;
    }
}

#endif // GB_TESTS_PLAN_ITEMS_H
