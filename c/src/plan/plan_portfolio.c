// plan_portfolio.c - a portfolio of first fits: several sort keys, lowest or smallest gap, on one or more threads.
//
// Threads change no plan. Each thread places one order with the remaining budget. The results are
// then taken in sequence, and their costs are charged one after the other. Results that one thread
// would not have reached are dropped.
#include "plan/plan_impl.h"

#include <stdatomic.h>
#include <string.h>

#include "base/current.h"
#include "base/env.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/thread.h"

#define COST_LIMIT 4      // an order may cost this many times first fit by size
#define MIN_STEPS 4000    // the cost of first fit by size counts as at least this
#define MAX_AT_ONCE 16
#define MIN_THREADED 1000 // buffers; fewer are not worth a thread

// One order on one thread.
struct fit {
    struct gb_plan_part * part; // borrowed; only read
    enum gb_plan_key key;
    bool smallest;
    bool promised_first;        // has its own budget and always gives a plan
    size_t * offsets; // owned
    struct gb_plan_budget budget;
    uint64_t given;     // steps of its budget
    int64_t limit_ns; // until its deadline, by the clock of its thread
    size_t peak;
    enum ggml_status status;
    gb_thread thread;
    bool started; // false: the thread could not be started
};

static void place(void * arg) {
    struct fit * f = arg;
    f->budget.deadline = f->limit_ns != INT64_MAX ? gb_thread_time_ns() + f->limit_ns : INT64_MAX;
    uint32_t * order = gb_calloc(f->part->n, sizeof(*order));
    struct gb_plan_placer * placer = gb_plan_placer_new(f->part);
    f->status = order && placer ? gb_plan_order(f->part, f->key, order) : GGML_STATUS_ALLOC_FAILED;
    if (f->status == GGML_STATUS_SUCCESS && f->promised_first) {
        f->status = gb_plan_place_all(placer, order, &f->budget, f->offsets, &f->peak);
    } else if (f->status == GGML_STATUS_SUCCESS) {
        f->status = gb_plan_place(placer, order, f->part->n, f->smallest, &f->budget, f->offsets, &f->peak);
    }
    gb_plan_placer_free(placer);
    gb_free(order);
}

// Places the first order on this thread and each other order on its own thread. An order whose
// thread or memory failed is placed again on this thread, so that this thread reports the failure.
// If the first order aborts, the others stop.
static void place_all(struct fit * fits, int n) {
    atomic_bool stop = false;
    for (int k = 1; k < n; k++) {
        fits[k].budget.stop = &stop;
        fits[k].started = gb_thread_start(&fits[k].thread, place, &fits[k]);
    }
    place(&fits[0]);
    atomic_store(&stop, fits[0].budget.aborted || fits[0].status != GGML_STATUS_SUCCESS);
    for (int k = 1; k < n; k++) {
        if (fits[k].started) {
            gb_thread_join(fits[k].thread);
        }
        fits[k].budget.stop = NULL;
        if (!atomic_load(&stop) && (!fits[k].started || fits[k].status != GGML_STATUS_SUCCESS)) {
            fits[k].budget.steps = fits[k].given;
            place(&fits[k]);
        }
    }
}

// True if the budget is enough for one more order. most: steps that an order may cost.
static bool is_enough(const struct gb_plan_budget * budget, uint64_t most) {
    return budget->steps > 0 && (most == UINT64_MAX || budget->steps >= most / COST_LIMIT / 4 * 5);
}

// Takes the results in sequence, as far as the budget allows. most: maximum number of steps of each
// order.
static enum ggml_status take_all(struct gb_plan_part * part, struct fit * fits, int n, size_t goal, uint64_t most,
    struct gb_plan_budget * budget) {
    for (int k = 0; k < n && part->peak > goal && (fits[k].promised_first || is_enough(budget, most)); k++) {
        const struct fit * f = &fits[k];
        const uint64_t used = f->promised_first ? 0 : f->given - f->budget.steps;
        budget->aborted = budget->aborted || f->budget.aborted;
        budget->timed_out = budget->timed_out || f->budget.timed_out;
        GB_TRY(f->status);
        if (f->peak == SIZE_MAX && used == most && used < budget->steps && !f->budget.timed_out && !f->budget.aborted) {
            budget->steps -= used; // only this order is too expensive
            continue;
        }
        if (f->peak == SIZE_MAX || used > budget->steps) {
            budget->steps = 0;
            break;
        }
        budget->steps -= used;
        part->best_key = f->peak < part->peak ? (int) f->key : part->best_key;
        memcpy(part->trial, f->offsets, part->n * sizeof(*part->trial));
        gb_plan_keep(part, f->peak);
    }
    return GGML_STATUS_SUCCESS;
}

// The budget of first fit by size that always runs: its promised steps, or more if the caller has
// more.
static struct gb_plan_budget free_budget(const struct gb_plan_part * part, const struct gb_plan_budget * budget) {
    const uint64_t steps = GB_MAX((uint64_t) part->n * GB_PLAN_PROMISED_STEPS, budget->steps);
    return (struct gb_plan_budget){ .steps = steps, .deadline = INT64_MAX };
}

struct order {
    enum gb_plan_key key;
    bool smallest; // smallest gap; else the lowest
};

// GB_PLAN_BEST_ORDERS are the best orders for many buffers. BY_PEAK comes late in very large sparse
// parts, because the busiest section is unrelated to most buffers there. By size is always first.
static const struct order * orders_of(const struct gb_plan_part * part, enum gb_plan_orders which, int * n) {
    static const struct order all[] = { { GB_PLAN_BY_SIZE, false }, { GB_PLAN_BY_PEAK, false },
        { GB_PLAN_BY_LOADED_WIDTH, false }, { GB_PLAN_BY_AREA, false }, { GB_PLAN_BY_WIDTH, false },
        { GB_PLAN_BY_LOAD, false }, { GB_PLAN_BY_BIRTH, false }, { GB_PLAN_BY_DEATH, false },
        { GB_PLAN_BY_WIDTH_AREA_LOAD, false }, { GB_PLAN_BY_LOAD_AREA_WIDTH, false }, { GB_PLAN_BY_SIZE, true },
        { GB_PLAN_BY_AREA, true }, { GB_PLAN_BY_WIDTH, true }, { GB_PLAN_BY_LOAD, true }, { GB_PLAN_BY_BIRTH, true },
        { GB_PLAN_BY_DEATH, true }, { GB_PLAN_BY_WIDTH_AREA_LOAD, true }, { GB_PLAN_BY_LOAD_AREA_WIDTH, true } };
    static const struct order best[] = { { GB_PLAN_BY_SIZE, false }, { GB_PLAN_BY_PEAK, false },
        { GB_PLAN_BY_LOADED_WIDTH, false }, { GB_PLAN_BY_LOADED_SIZE, false }, { GB_PLAN_BY_DEATH, false },
        { GB_PLAN_BY_LOAD, false }, { GB_PLAN_BY_AREA, false } };
    static const struct order sparse_best[] = { { GB_PLAN_BY_SIZE, false }, { GB_PLAN_BY_LOADED_WIDTH, false },
        { GB_PLAN_BY_LOADED_SIZE, false }, { GB_PLAN_BY_PEAK, false }, { GB_PLAN_BY_DEATH, false },
        { GB_PLAN_BY_LOAD, false }, { GB_PLAN_BY_AREA, false } };
    if (which == GB_PLAN_ALL_ORDERS) {
        *n = GB_ARRAY_LEN(all);
        return all;
    }
    const bool sparse = part->n > GB_PLAN_VERY_MANY && gb_plan_is_sparse(part);
    *n = which == GB_PLAN_SIZE_ORDER ? 1 : sparse ? GB_ARRAY_LEN(sparse_best) : GB_ARRAY_LEN(best);
    return sparse ? sparse_best : best;
}

// Places n orders. promised: the first order, whose cost sets *most for the others.
static enum ggml_status fit_some(struct gb_plan_part * part, size_t goal, const struct order * orders, int n,
    bool promised, uint64_t * most, struct gb_plan_budget * budget) {
    struct fit fits[MAX_AT_ONCE] = { 0 };
    enum ggml_status status = GGML_STATUS_SUCCESS;
    for (int k = 0; k < n; k++) {
        struct fit * f = &fits[k];
        f->part = part;
        f->key = orders[k].key;
        f->smallest = orders[k].smallest;
        f->promised_first = promised && part->n <= GB_PLAN_MAX_PROMISED;
        f->budget = f->promised_first ? free_budget(part, budget) : *budget;
        f->given = f->promised_first ? f->budget.steps : GB_MIN(f->budget.steps, *most);
        f->budget.steps = f->given;
        f->limit_ns = f->budget.deadline != INT64_MAX ? f->budget.deadline - gb_thread_time_ns() : INT64_MAX;
        f->offsets = gb_calloc(part->n, sizeof(*f->offsets));
        status = f->offsets ? status : GGML_STATUS_ALLOC_FAILED;
        if (gb_plan_needs_max_load(f->key) && status == GGML_STATUS_SUCCESS) {
            status = gb_plan_find_max_loads(part); // before other threads read them
        }
    }
    if (status == GGML_STATUS_SUCCESS) {
        place_all(fits, n);
        status = take_all(part, fits, n, goal, *most, budget);
        if (fits[0].promised_first) {
            *most = COST_LIMIT * GB_MAX(fits[0].given - fits[0].budget.steps, MIN_STEPS);
        }
    }
    for (int k = 0; k < n; k++) {
        gb_free(fits[k].offsets);
    }
    return status;
}

// First fit by size runs first, and alone, because its cost limits the others. Up to
// GB_PLAN_MAX_PROMISED buffers it always runs, as gb_plan_offsets promises. Its steps are limited,
// because some instances need n^2. The other orders are paid from the budget. An order begins only
// if the budget exceeds the cost of first fit by size by a quarter.
enum ggml_status gb_plan_try_orders(struct gb_plan_part * part, size_t goal, enum gb_plan_orders which, int n_threads,
    struct gb_plan_budget * budget) {
    int n_orders, n;
    const struct order * const orders = orders_of(part, which, &n_orders);
    const int at_once = part->n < MIN_THREADED ? 1 : GB_MIN(GB_MAX(n_threads, 1), MAX_AT_ONCE);
    uint64_t most = UINT64_MAX;
    for (int k = 0; k < n_orders && part->peak > goal && !budget->aborted; k += n) {
        const bool is_free = k == 0 && part->n <= GB_PLAN_MAX_PROMISED;
        if (k > 0) {
            gb_plan_check_clock(budget); // first fit by size may have taken longer than the deadline
        }
        if (!is_free && !is_enough(budget, most)) {
            break;
        }
        n = k == 0 ? 1 : GB_MIN(at_once, n_orders - k);
        GB_TRY(fit_some(part, goal, orders + k, n, k == 0, &most, budget));
    }
    return GGML_STATUS_SUCCESS;
}
