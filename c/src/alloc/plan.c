// plan.c - two planners and their judge.
//
// In-order best fit is what an allocator does that meets the items one by one; first fit by decreasing size sees all of
// them first. Neither is always better, so both run and the smaller peak wins. The second one looks at every pair of
// items whose spans overlap; where these are too many (MAX_PAIRS) only the first runs. Offsets are written only when
// all went well.
#include "alloc/plan.h"

#include <stdlib.h>
#include <string.h>

#include "alloc/offset_pool.h"
#include "base/mem.h"
#include "base/status.h"

#define MAX_PAIRS ((uint64_t) 1 << 24)

struct keyed { // an item index with what it is sorted by
    int64_t key;
    size_t  index;
};

static int by_key(const void * pa, const void * pb) {
    const struct keyed *a = pa, *b = pb;
    if (a->key != b->key) {
        return a->key < b->key ? -1 : 1;
    }
    return a->index < b->index ? -1 : a->index > b->index;
}

struct planner {
    const struct gb_plan_item * items;
    size_t         n;
    size_t *       sizes;   // owned: rounded up
    struct keyed * starts;  // owned: sorted by lower
    struct keyed * ends;    // owned: sorted by upper
    size_t *       offsets; // owned: of the plan being made
    size_t *       best;    // owned: of the better plan
};

static void planner_free(struct planner * p) {
    gb_free(p->sizes);
    gb_free(p->starts);
    gb_free(p->ends);
    gb_free(p->offsets);
    gb_free(p->best);
}

static enum ggml_status planner_init(struct planner * p, const struct gb_plan_item * items, size_t n,
                                     size_t alignment) {
    *p         = (struct planner){ .items = items, .n = n };
    p->sizes   = gb_calloc(n, sizeof(*p->sizes));
    p->starts  = gb_calloc(n, sizeof(*p->starts));
    p->ends    = gb_calloc(n, sizeof(*p->ends));
    p->offsets = gb_calloc(n, sizeof(*p->offsets));
    p->best    = gb_calloc(n, sizeof(*p->best));
    if (!p->sizes || !p->starts || !p->ends || !p->offsets || !p->best) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    size_t total = 0;
    for (size_t i = 0; i < n; i++) {
        GB_FAIL_IF(items[i].lower > items[i].upper, GGML_STATUS_INVALID_ARGUMENT, GGML_STATUS_INVALID_ARGUMENT,
                   "gb_plan_offsets: item %zu ends at %lld, before its start %lld", i, (long long) items[i].upper,
                   (long long) items[i].lower);
        GB_FAIL_IF(!gb_pad_size(items[i].size, alignment, &p->sizes[i]) || !gb_add_size(total, p->sizes[i], &total),
                   GGML_STATUS_INVALID_ARGUMENT, GGML_STATUS_INVALID_ARGUMENT,
                   "gb_plan_offsets: the sizes of %zu items overflow", n);
        if (items[i].lower == items[i].upper) {
            p->sizes[i] = 0; // lives never
        }
        p->starts[i] = (struct keyed){ items[i].lower, i };
        p->ends[i]   = (struct keyed){ items[i].upper, i };
    }
    qsort(p->starts, n, sizeof(*p->starts), by_key);
    qsort(p->ends, n, sizeof(*p->ends), by_key);
    return GGML_STATUS_SUCCESS;
}

// The most bytes alive at once, and how many pairs of items are.
static void measure_load(const struct planner * p, size_t * lower_bound, uint64_t * n_pairs) {
    size_t load = 0, n_alive = 0, ended = 0;
    *lower_bound = 0;
    *n_pairs     = 0;
    for (size_t s = 0; s < p->n; s++) {
        const struct keyed start = p->starts[s];
        for (; ended < p->n && p->ends[ended].key <= start.key; ended++) {
            const size_t gone = p->ends[ended].index;
            load -= p->sizes[gone];
            n_alive -= p->sizes[gone] > 0;
        }
        if (p->sizes[start.index] > 0) {
            *n_pairs += n_alive++;
            load += p->sizes[start.index];
            *lower_bound = GB_MAX(*lower_bound, load);
        }
    }
}

// --------------------------------------------------------------------------------------------------- in-order best fit

static enum ggml_status plan_in_order(struct planner * p, size_t * peak) {
    struct gb_offset_pool pool;
    if (!gb_pool_init(&pool, 0, SIZE_MAX)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    enum gb_pool_result result = GB_POOL_OK;
    size_t              ended  = 0;
    for (size_t s = 0; s < p->n && result == GB_POOL_OK; s++) {
        const struct keyed start = p->starts[s];
        for (; ended < p->n && p->ends[ended].key <= start.key; ended++) {
            const size_t gone = p->ends[ended].index;
            gb_pool_give_back(&pool, p->offsets[gone], p->sizes[gone]);
        }
        result = gb_pool_take(&pool, p->sizes[start.index], &p->offsets[start.index]);
    }
    *peak = pool.high;
    gb_pool_free(&pool);
    return result == GB_POOL_OK ? GGML_STATUS_SUCCESS
           : result == GB_POOL_FULL
               ? gb_fail(GGML_STATUS_ALLOC_FAILED, "gb_plan_offsets: the plan exceeds the address space")
               : GGML_STATUS_ALLOC_FAILED;
}

// ---------------------------------------------------------------------------------------- first fit by decreasing size

// The placed items, in a complete binary tree over the order of starts: each inner node holds the latest end below it,
// so that those overlapping a span are found without looking at the others. An absent item ends at INT64_MIN.
struct span_tree {
    int64_t * latest; // owned; 2 * width entries, the root is 1, the leaf of position s is width + s
    size_t    width;  // power of two >= n
};

static bool tree_init(struct span_tree * tree, size_t n) {
    tree->width = 1;
    while (tree->width < n) {
        tree->width *= 2;
    }
    tree->latest = gb_calloc(2 * tree->width, sizeof(*tree->latest));
    for (size_t i = 0; tree->latest && i < 2 * tree->width; i++) {
        tree->latest[i] = INT64_MIN;
    }
    return tree->latest != NULL;
}

static void tree_insert(struct span_tree * tree, size_t position, int64_t end) {
    for (size_t i = tree->width + position; i > 0; i /= 2) {
        tree->latest[i] = GB_MAX(tree->latest[i], end);
    }
}

// The first position >= from whose item is placed and ends after `lower`; width if there is none.
static size_t tree_next(const struct span_tree * tree, size_t from, int64_t lower) {
    if (from >= tree->width) {
        return tree->width;
    }
    size_t i = tree->width + from;
    while (tree->latest[i] <= lower) { // up and to the right until a subtree has one
        while (i & 1) {
            i /= 2;
        }
        if (i == 0) {
            return tree->width;
        }
        i++;
    }
    while (i < tree->width) { // down to its first
        i *= 2;
        i += tree->latest[i] <= lower;
    }
    return i - tree->width;
}

static int by_offset(const void * pa, const void * pb) {
    const struct gb_free_block *a = pa, *b = pb;
    return a->offset < b->offset ? -1 : a->offset > b->offset;
}

struct first_fit {
    struct span_tree       tree;
    struct keyed *         by_size; // owned; key: the negated size, index: the position in starts
    struct gb_free_block * taken;   // owned; what overlaps the item being placed
};

// The lowest gap of `size` bytes between the n taken ranges.
static size_t lowest_gap(struct gb_free_block * taken, size_t n, size_t size) {
    qsort(taken, n, sizeof(*taken), by_offset);
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        if (taken[i].offset >= at && taken[i].offset - at >= size) {
            break;
        }
        at = GB_MAX(at, taken[i].offset + taken[i].size);
    }
    return at;
}

static void place_first_fit(struct planner * p, struct first_fit * f, size_t position) {
    const size_t                index = p->starts[position].index;
    const struct gb_plan_item * item  = &p->items[index];
    size_t                      n     = 0;
    for (size_t s = tree_next(&f->tree, 0, item->lower); s < p->n && p->starts[s].key < item->upper;
         s        = tree_next(&f->tree, s + 1, item->lower)) {
        const size_t other = p->starts[s].index;
        f->taken[n++]      = (struct gb_free_block){ p->offsets[other], p->sizes[other] };
    }
    p->offsets[index] = lowest_gap(f->taken, n, p->sizes[index]);
    tree_insert(&f->tree, position, item->upper);
}

static enum ggml_status plan_by_size(struct planner * p, size_t * peak) {
    struct first_fit f = { 0 };
    f.by_size          = gb_calloc(p->n, sizeof(*f.by_size));
    f.taken            = gb_calloc(p->n, sizeof(*f.taken));
    const bool ok      = f.by_size && f.taken && tree_init(&f.tree, p->n);
    for (size_t s = 0; ok && s < p->n; s++) {
        const size_t size = p->sizes[p->starts[s].index];
        f.by_size[s]      = (struct keyed){ size > INT64_MAX ? INT64_MIN : -(int64_t) size, s };
    }
    *peak = 0;
    if (ok) {
        qsort(f.by_size, p->n, sizeof(*f.by_size), by_key);
    }
    for (size_t k = 0; ok && k < p->n; k++) {
        const size_t index = p->starts[f.by_size[k].index].index;
        p->offsets[index]  = 0;
        if (p->sizes[index] > 0) {
            place_first_fit(p, &f, f.by_size[k].index);
            *peak = GB_MAX(*peak, p->offsets[index] + p->sizes[index]);
        }
    }
    gb_free(f.by_size);
    gb_free(f.taken);
    gb_free(f.tree.latest);
    return ok ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}

// ------------------------------------------------------------------------------------------------------ the better one

static enum ggml_status plan_both(struct planner * p, struct gb_plan_result * result) {
    uint64_t n_pairs;
    measure_load(p, &result->lower_bound, &n_pairs);
    GB_TRY(plan_in_order(p, &result->peak));
    memcpy(p->best, p->offsets, p->n * sizeof(*p->best));
    if (result->peak > result->lower_bound && n_pairs <= MAX_PAIRS) {
        size_t peak;
        GB_TRY(plan_by_size(p, &peak));
        if (peak < result->peak) {
            result->peak = peak;
            memcpy(p->best, p->offsets, p->n * sizeof(*p->best));
        }
    }
    return GGML_STATUS_SUCCESS;
}

enum ggml_status gb_plan_offsets(struct gb_plan_item * items, size_t n, size_t alignment,
                                 struct gb_plan_result * result) {
    GB_CHECK_ARG(result, GGML_STATUS_INVALID_ARGUMENT);
    GB_FAIL_IF(n > 0 && items == NULL, GGML_STATUS_INVALID_ARGUMENT, GGML_STATUS_INVALID_ARGUMENT,
               "%s: argument 'items' is NULL", __func__);
    GB_FAIL_IF(alignment == 0 || (alignment & (alignment - 1)) != 0, GGML_STATUS_INVALID_ARGUMENT,
               GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'alignment': %zu is no power of two", __func__, alignment);
    struct gb_plan_result found = { 0, 0 };
    if (n > 0) {
        struct planner   planner;
        enum ggml_status status = planner_init(&planner, items, n, alignment);
        if (status == GGML_STATUS_SUCCESS) {
            status = plan_both(&planner, &found);
        }
        for (size_t i = 0; status == GGML_STATUS_SUCCESS && i < n; i++) {
            items[i].offset = planner.best[i];
        }
        planner_free(&planner);
        GB_TRY(status);
    }
    *result = found;
    return GGML_STATUS_SUCCESS;
}

// ----------------------------------------------------------------------------------------------------------- the judge

// A sweep over time keeps the live items sorted by offset; as these are disjoint, a new one can only collide with its
// neighbours.
struct sweep_event {
    int64_t time;
    bool    starts;
    size_t  item;
};

static int by_time(const void * pa, const void * pb) {
    const struct sweep_event *a = pa, *b = pb;
    if (a->time != b->time) {
        return a->time < b->time ? -1 : 1;
    }
    if (a->starts != b->starts) {
        return a->starts ? 1 : -1; // ends come first: spans are half-open
    }
    return a->item < b->item ? -1 : a->item > b->item;
}

// Position of the first live item at or behind `offset`.
static size_t live_position(const struct gb_plan_item * items, const size_t * live, size_t n_live, size_t offset) {
    size_t low = 0, high = n_live;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (items[live[middle]].offset < offset) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static const char * check_sweep(const struct gb_plan_item * items, const struct sweep_event * events, size_t n_events,
                                size_t * live, size_t * item_a, size_t * item_b) {
    size_t n_live = 0;
    for (size_t e = 0; e < n_events; e++) {
        const struct gb_plan_item * item = &items[events[e].item];
        const size_t                at   = live_position(items, live, n_live, item->offset);
        if (!events[e].starts) {
            memmove(live + at, live + at + 1, (n_live - at - 1) * sizeof(*live));
            n_live--;
            continue;
        }
        const size_t before = at > 0 ? live[at - 1] : SIZE_MAX;
        const size_t behind = at < n_live ? live[at] : SIZE_MAX;
        size_t       other  = SIZE_MAX;
        if (before != SIZE_MAX && items[before].offset + items[before].size > item->offset) {
            other = before;
        } else if (behind != SIZE_MAX && items[behind].offset < item->offset + item->size) {
            other = behind;
        }
        if (other != SIZE_MAX) {
            *item_a = events[e].item;
            *item_b = other;
            return "two items alive at the same time overlap";
        }
        memmove(live + at + 1, live + at, (n_live - at) * sizeof(*live));
        live[at] = events[e].item;
        n_live++;
    }
    return NULL;
}

const char * gb_plan_check(const struct gb_plan_item * items, size_t n, size_t alignment, size_t * item_a,
                           size_t * item_b) {
    struct sweep_event * events   = gb_calloc(2 * n + 1, sizeof(*events));
    size_t *             live     = gb_calloc(n + 1, sizeof(*live));
    const char *         problem  = events && live ? NULL : "no memory to check the plan";
    size_t               n_events = 0;
    for (size_t i = 0; problem == NULL && i < n; i++) {
        *item_a = *item_b = i;
        if (items[i].offset % alignment != 0) {
            problem = "an offset is not aligned";
        } else if (items[i].offset + items[i].size < items[i].offset) {
            problem = "an item reaches past the address space";
        } else if (items[i].size > 0 && items[i].lower < items[i].upper) {
            events[n_events++] = (struct sweep_event){ items[i].lower, true, i };
            events[n_events++] = (struct sweep_event){ items[i].upper, false, i };
        }
    }
    if (problem == NULL) {
        qsort(events, n_events, sizeof(*events), by_time);
        problem = check_sweep(items, events, n_events, live, item_a, item_b);
    }
    gb_free(events);
    gb_free(live);
    return problem;
}
