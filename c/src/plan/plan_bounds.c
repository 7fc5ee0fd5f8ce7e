// plan_bounds.c - converts items to parts, with only the facts that a plan depends on.
//
// A plan depends only on which lifetimes overlap. So times become sections, as few as possible.
// Sizes are rounded up to the alignment. Empty items and items that are never alive are left out. A
// new part begins where no buffer is alive. The load of a section is the sum of the sizes alive in
// it. The largest load is the lower bound.
#include "plan/plan_impl.h"

#include <string.h>

#include "base/mem.h"
#include "base/status.h"

#define MAX_EXACT_PAIRS ((uint64_t) 1 << 22)
#define MIN_SPARSE 1024 // buffers; smaller parts do not count as sparse
#define SPARSE_SHARE 16 // a part is sparse if less than 1 in 16 pairs of its buffers are neighbours

struct birth {
    int64_t lower, upper;
    size_t size;
    uint32_t item;
};

struct sections {
    struct birth * births; // owned; by lower, ties by item
    int64_t * deaths; // owned; sorted
    int64_t * starts; // owned; by section of all parts: its first birth
    size_t n, n_starts;
};

// Converts times to unsigned numbers of the same order.
static uint64_t rank_of(int64_t time) { return (uint64_t) time ^ (uint64_t) 1 << 63; }
static int64_t time_of(uint64_t rank) { return (int64_t) (rank ^ (uint64_t) 1 << 63); }

static void sections_free(struct sections * s) {
    gb_free(s->births);
    gb_free(s->deaths);
    gb_free(s->starts);
}

// The unit divides all sizes, and so all useful offsets.
static size_t greatest_divisor(size_t a, size_t b) {
    while (b != 0) {
        const size_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

// Sorts births by time. Most callers pass them sorted. *scratch: owned by the caller, shared with sort_deaths.
static bool sort_births(struct sections * s, struct gb_plan_keyed ** scratch) {
    bool sorted = true;
    for (size_t i = 1; i < s->n; i++) {
        sorted = sorted && s->births[i - 1].lower <= s->births[i].lower;
    }
    if (sorted) {
        return true;
    }
    struct birth * births = gb_calloc(s->n, sizeof(*births));
    *scratch = gb_calloc(2 * s->n, sizeof(**scratch));
    if (!births || !*scratch) {
        gb_free(births);
        return false;
    }
    for (size_t i = 0; i < s->n; i++) {
        (*scratch)[i] = (struct gb_plan_keyed){ rank_of(s->births[i].lower), (uint32_t) i };
    }
    gb_plan_sort(*scratch, *scratch + s->n, (uint32_t) s->n);
    for (size_t i = 0; i < s->n; i++) {
        births[i] = s->births[(*scratch)[i].buffer];
    }
    gb_free(s->births);
    s->births = births;
    return true;
}

static bool sort_deaths(struct sections * s, struct gb_plan_keyed ** scratch) {
    bool sorted = true;
    for (size_t i = 1; i < s->n; i++) {
        sorted = sorted && s->deaths[i - 1] <= s->deaths[i];
    }
    if (sorted) {
        return true;
    }
    *scratch = *scratch ? *scratch : gb_calloc(2 * s->n, sizeof(**scratch));
    if (*scratch == NULL) {
        return false;
    }
    for (size_t i = 0; i < s->n; i++) {
        (*scratch)[i].key = rank_of(s->deaths[i]);
    }
    gb_plan_sort(*scratch, *scratch + s->n, (uint32_t) s->n);
    for (size_t i = 0; i < s->n; i++) {
        s->deaths[i] = time_of((*scratch)[i].key);
    }
    return true;
}

// Checks the items, rounds their sizes up, and sorts births and deaths by time.
static enum ggml_status collect(struct gb_plan_problem * p, struct sections * s, const struct gb_plan_item * items,
    size_t n, size_t alignment) {
    GB_FAIL_IF(n > INT32_MAX, GGML_STATUS_INVALID_ARGUMENT, "gb_plan_offsets: %zu items are too many", n);
    s->births = gb_calloc(n + 1, sizeof(*s->births));
    s->deaths = gb_calloc(n + 1, sizeof(*s->deaths));
    s->starts = gb_calloc(n + 1, sizeof(*s->starts));
    if (!s->births || !s->deaths || !s->starts) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    size_t total = 0;
    for (size_t i = 0; i < n; i++) {
        size_t size;
        GB_FAIL_IF(items[i].lower > items[i].upper, GGML_STATUS_INVALID_ARGUMENT,
            "gb_plan_offsets: item %zu ends at %lld, before its start %lld", i, (long long) items[i].upper,
            (long long) items[i].lower);
        GB_FAIL_IF(!gb_pad_size(items[i].size, alignment, &size) || !gb_add_size(total, size, &total) ||
                       total == SIZE_MAX, // reserved for "no plan"
            GGML_STATUS_INVALID_ARGUMENT, "gb_plan_offsets: the sizes of %zu items overflow", n);
        if (size > 0 && items[i].lower < items[i].upper) {
            s->births[s->n] = (struct birth){ items[i].lower, items[i].upper, size, (uint32_t) i };
            s->deaths[s->n++] = items[i].upper;
            p->unit = greatest_divisor(size, p->unit);
        }
    }
    struct gb_plan_keyed * scratch = NULL;
    const bool ok = sort_births(s, &scratch) && sort_deaths(s, &scratch);
    gb_free(scratch);
    return ok ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}

// Gives every buffer its first section, counted over all parts, and begins parts.
static void open_sections(struct gb_plan_problem * p, struct sections * s) {
    size_t ended = 0;
    for (size_t i = 0; i < s->n; i++) {
        const struct birth * b = &s->births[i];
        const size_t alive = ended;
        while (ended < s->n && s->deaths[ended] <= b->lower) {
            ended++;
        }
        if (i == 0 || ended > alive) {
            s->starts[s->n_starts++] = b->lower;
        }
        if (i == ended) { // all earlier buffers are dead
            p->parts[p->n_parts++] = (struct gb_plan_part){ .buffers = p->buffers + i,
                .offsets = p->offsets + i,
                .trial = p->trial + i,
                .max_load = p->max_load + i,
                .load = p->load + s->n_starts - 1,
                .born = p->born + s->n_starts - 1 };
        }
        p->parts[p->n_parts - 1].n++;
        p->buffers[i] = (struct gb_plan_buffer){ (uint32_t) (s->n_starts - 1), 0, b->item, b->size,
            (uint64_t) b->upper - (uint64_t) b->lower };
    }
}

// The number of sections that begin before `time`.
static uint32_t sections_before(const struct sections * s, int64_t time) {
    size_t low = 0, high = s->n_starts;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (s->starts[middle] < time) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return (uint32_t) low;
}

// Counts sections from the first of the part. Fills in the load and the births of each section, the
// bound, and the number of pairs of neighbours.
static void fill_part(struct gb_plan_part * part, const struct gb_plan_problem * p, const struct sections * s) {
    const uint32_t base = part->buffers[0].first;
    size_t * load = p->load + (part->load - p->load);
    uint32_t * born = p->born + (part->born - p->born);
    for (uint32_t i = 0; i < part->n; i++) {
        struct gb_plan_buffer * b = &part->buffers[i];
        b->last = sections_before(s, s->births[b - p->buffers].upper) - base;
        b->first -= base;
        part->n_sections = GB_MAX(part->n_sections, b->last);
        load[b->first] += b->size;
        born[b->first] = i + 1;
    }
    // load has the births of each section; now the deaths are subtracted. Unsigned arithmetic
    // wraps, so the sums are correct.
    for (uint32_t i = 0; i < part->n; i++) {
        if (part->buffers[i].last < part->n_sections) {
            load[part->buffers[i].last] -= part->buffers[i].size;
        }
    }
    for (uint32_t k = 0; k < part->n_sections; k++) {
        load[k] += k > 0 ? load[k - 1] : 0;
        part->bound = GB_MAX(part->bound, load[k]);
    }
    for (uint32_t i = 0; i < part->n; i++) {
        part->n_pairs += born[part->buffers[i].last - 1] - 1 - i;
    }
}

// Sorts by falling bound, ties by time. Other parts may use memory up to the first part's peak at
// no cost.
static bool sort_parts(struct gb_plan_problem * p) {
    const size_t n = p->n_parts;
    bool sorted = true;
    for (size_t k = 1; k < n; k++) {
        sorted = sorted && p->parts[k - 1].bound >= p->parts[k].bound;
    }
    if (sorted) {
        return true;
    }
    struct gb_plan_keyed * keyed = gb_calloc(2 * n, sizeof(*keyed));
    struct gb_plan_part * parts = gb_calloc(n, sizeof(*parts));
    for (size_t k = 0; keyed && parts && k < n; k++) {
        keyed[k] = (struct gb_plan_keyed){ SIZE_MAX - p->parts[k].bound, (uint32_t) k };
    }
    const bool ok = keyed && parts;
    if (ok) {
        gb_plan_sort(keyed, keyed + n, (uint32_t) n);
        for (size_t k = 0; k < n; k++) {
            parts[k] = p->parts[keyed[k].buffer];
        }
        gb_free(p->parts);
        p->parts = parts;
    } else {
        gb_free(parts);
    }
    gb_free(keyed);
    return ok;
}

enum ggml_status gb_plan_problem_init(struct gb_plan_problem * p, const struct gb_plan_item * items, size_t n,
    size_t alignment) {
    *p = (struct gb_plan_problem){ .unit = 0 };
    struct sections s = { 0 };
    enum ggml_status status = collect(p, &s, items, n, alignment);
    if (status == GGML_STATUS_SUCCESS) {
        p->n = s.n;
        p->buffers = gb_calloc(s.n + 1, sizeof(*p->buffers));
        p->offsets = gb_calloc(s.n + 1, sizeof(*p->offsets));
        p->trial = gb_calloc(s.n + 1, sizeof(*p->trial));
        p->max_load = gb_calloc(s.n + 1, sizeof(*p->max_load));
        p->load = gb_calloc(s.n + 1, sizeof(*p->load));
        p->born = gb_calloc(s.n + 1, sizeof(*p->born));
        p->parts = gb_calloc(s.n + 1, sizeof(*p->parts));
        status = p->buffers && p->offsets && p->trial && p->max_load && p->load && p->born && p->parts
                     ? status
                     : GGML_STATUS_ALLOC_FAILED;
    }
    if (status == GGML_STATUS_SUCCESS) {
        open_sections(p, &s);
        for (size_t k = 0; k < p->n_parts; k++) {
            fill_part(&p->parts[k], p, &s);
            p->bound = GB_MAX(p->bound, p->parts[k].bound);
        }
        status = sort_parts(p) ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    }
    sections_free(&s);
    return status;
}

void gb_plan_problem_free(struct gb_plan_problem * p) {
    gb_free(p->buffers);
    gb_free(p->offsets);
    gb_free(p->trial);
    gb_free(p->max_load);
    gb_free(p->load);
    gb_free(p->born);
    gb_free(p->parts);
    *p = (struct gb_plan_problem){ 0 };
}

void gb_plan_keep(struct gb_plan_part * part, size_t peak) {
    if (peak < part->peak) {
        part->peak = peak;
        memcpy(part->offsets, part->trial, part->n * sizeof(*part->offsets));
    }
}

bool gb_plan_is_sparse(const struct gb_plan_part * part) {
    return part->n >= MIN_SPARSE && part->n_pairs < (uint64_t) part->n * part->n / 2 / SPARSE_SHARE;
}

bool gb_plan_can_search_exact(const struct gb_plan_part * part) {
    return part->n <= GB_PLAN_MANY && part->n_pairs <= MAX_EXACT_PAIRS;
}
