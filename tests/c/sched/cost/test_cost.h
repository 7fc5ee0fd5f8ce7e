// test_cost.h - random placement problems, the cost of labels by definition, and the optimum by
// brute force.
#ifndef GB_TESTS_TEST_COST_H
#define GB_TESTS_TEST_COST_H

#include "base/mem.h"
#include "sched/cost/cost.h"
#include "test.h"

struct instance { // owns the arrays of a problem
    int64_t *cost, *copy;
    int32_t *order, *consumers;
    struct gb_cost_value * values;
    struct gb_cost_problem p;
};

static inline void close_instance(struct instance * w) {
    free(w->cost);
    free(w->copy);
    free(w->order);
    free(w->consumers);
    free(w->values);
}

// Items 0 .. n_ops-1 are ops, which read earlier items and leafs, sometimes twice. The others are
// leafs. `reach`: the largest distance of a source.
static inline struct instance random_instance(int n_backends, int n_ops, int n_leafs, int reach, int64_t max_cost,
    int forbidden) {
    const int n = n_ops + n_leafs, k = n_backends;
    struct instance w = { 0 };
    w.cost = calloc((size_t) (n * k), sizeof(*w.cost));
    w.order = calloc((size_t) n_ops * 2, sizeof(*w.order));
    w.values = calloc((size_t) n, sizeof(*w.values));
    w.consumers = calloc((size_t) n * (size_t) n_ops, sizeof(*w.consumers));
    w.copy = calloc((size_t) (n * k * k), sizeof(*w.copy));
    int n_order = 0, n_values = 0;
    uint32_t n_consumers = 0;
    for (int i = 0; i < n; i++) {
        for (int b = 0; b < k; b++) {
            w.cost[i * k + b] = i >= n_ops && i % 3                  ? 0
                                : test_random_int(0, 99) < forbidden ? GB_COST_INF
                                                                     : test_random_int(0, max_cost);
        }
        const int possible = (int) test_random_int(0, k - 1);
        w.cost[i * k + possible] = GB_MIN(w.cost[i * k + possible], max_cost);
        if (i < n_ops) {
            w.order[n_order++] = i;
            if (test_random_int(0, 5) == 0 && i > 1) {
                w.order[n_order++] = (int32_t) test_random_int(0, i);
            }
        }
    }
    for (int i = 0; i < n; i++) {
        const uint32_t begin = n_consumers;
        for (int c = 0; c < n_ops; c++) {
            const bool close = i >= n_ops ? true : c > i && c <= i + reach;
            // results that are written back to an earlier item
            const bool back = i < n_ops && c < i && c >= i - reach && test_random_int(0, 12) == 0;
            if ((close && test_random_int(0, i >= n_ops ? n_ops / 2 : 2) == 0) || back) {
                w.consumers[n_consumers++] = c;
            }
        }
        if (n_consumers > begin) {
            for (int q = 0; q < k * k; q++) {
                w.copy[n_values * k * k + q] = test_random_int(0, 3) == 0 ? 0 : test_random_int(0, max_cost);
            }
            w.values[n_values++] = (struct gb_cost_value) { i, begin, n_consumers };
        }
    }
    w.p = (struct gb_cost_problem) {
        .n_backends = k,
        .n_items = n,
        .n_order = n_order,
        .n_values = n_values,
        .cost = w.cost,
        .order = w.order,
        .values = w.values,
        .consumers = w.consumers,
        .copy = w.copy,
        .split = test_random_int(0, max_cost / 2),
    };
    return w;
}

// The cost of the labels by its definition: of all items, of a copy of each value to each other
// backend with a consumer, and of all changes of the backend. INT64_MAX: a label is forbidden.
static inline int64_t cost_of(const struct gb_cost_problem * p, const int32_t * labels) {
    int64_t sum = 0;
    const int k = p->n_backends;
    for (int i = 0; i < p->n_items; i++) {
        if (p->cost[i * k + labels[i]] >= GB_COST_INF) {
            return INT64_MAX;
        }
        sum += p->cost[i * k + labels[i]];
    }
    for (int v = 0; v < p->n_values; v++) {
        const int home = labels[p->values[v].producer];
        for (int b = 0; b < k; b++) {
            bool any = false;
            for (uint32_t c = p->values[v].begin; c < p->values[v].end; c++) {
                any |= labels[p->consumers[c]] == b;
            }
            sum += any && b != home ? p->copy[(v * k + home) * k + b] : 0;
        }
    }
    for (int j = 1; j < p->n_order; j++) {
        sum += labels[p->order[j - 1]] == labels[p->order[j]] ? 0 : p->split;
    }
    return sum;
}

static inline int64_t try_everything(const struct gb_cost_problem * p) {
    int32_t labels[32] = { 0 };
    int64_t best = INT64_MAX;
    for (;;) {
        const int64_t cost = cost_of(p, labels);
        best = cost < best ? cost : best;
        int i = 0;
        while (i < p->n_items && ++labels[i] == p->n_backends) {
            labels[i++] = 0;
        }
        if (i == p->n_items) {
            return best;
        }
    }
}

#endif // GB_TESTS_TEST_COST_H
