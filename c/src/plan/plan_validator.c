// plan_validator.c - checks a plan: items alive at the same time do not overlap, and offsets are
// aligned.
//
// It shares no code with the planner, so it finds the planner's mistakes. A sweep over time
// maintains the set of live items, by the rank of their offset. Live items are disjoint, so a new
// item can only overlap the next live item below or above. The sweep takes n log n steps. The
// scheduler also checks its own layouts with it.
#include "plan/plan.h"

#include <stdlib.h>

#include "base/mem.h"

// The begin or end of an item.
struct moment {
    int64_t time;
    size_t item;
};

static int by_time(const void * pa, const void * pb) {
    const struct moment *a = pa, *b = pb;
    if (a->time != b->time) {
        return a->time < b->time ? -1 : 1;
    }
    return a->item < b->item ? -1 : a->item > b->item;
}

// Sorts by time. Most callers pass items sorted already.
static void sort_by_time(struct moment * all, size_t n) {
    for (size_t k = 1; k < n; k++) {
        if (by_time(&all[k - 1], &all[k]) > 0) {
            qsort(all, n, sizeof(*all), by_time);
            return;
        }
    }
}

struct by_offset {
    int chunk; // 0 if there are no chunks
    size_t offset, item;
};

static int compare_offsets(const void * pa, const void * pb) {
    const struct by_offset *a = pa, *b = pb;
    if (a->chunk != b->chunk) {
        return a->chunk < b->chunk ? -1 : 1;
    }
    if (a->offset != b->offset) {
        return a->offset < b->offset ? -1 : 1;
    }
    return a->item < b->item ? -1 : a->item > b->item;
}

enum { DIGIT_BITS = 11, N_VALUES = 1 << DIGIT_BITS, FEW = 1000 };

// One stable pass of a radix sort, by the digit of the offset, or of the chunk, at that bit.
static void sort_by_digit(const struct by_offset * from, struct by_offset * to, size_t n, bool chunk, int bit) {
    size_t begin[N_VALUES + 1] = { 0 };
    for (size_t k = 0; k < n; k++) {
        const uint64_t number = chunk ? (uint64_t) from[k].chunk : from[k].offset;
        begin[(number >> bit) % N_VALUES + 1]++;
    }
    for (size_t v = 0; v < N_VALUES; v++) {
        begin[v + 1] += begin[v];
    }
    for (size_t k = 0; k < n; k++) {
        const uint64_t number = chunk ? (uint64_t) from[k].chunk : from[k].offset;
        to[begin[(number >> bit) % N_VALUES]++] = from[k];
    }
}

// Sorts by chunk, offset and item; the input is by item. For many items this is a radix sort that
// skips digits in which all items agree. Returns `all` or `scratch`, whichever has the result.
static struct by_offset * sort_by_offset(struct by_offset * all, struct by_offset * scratch, size_t n) {
    if (n < FEW) {
        qsort(all, n, sizeof(*all), compare_offsets);
        return all;
    }
    for (int chunk = 0; chunk < 2; chunk++) {
        uint64_t differ = 0;
        for (size_t k = 1; k < n; k++) {
            differ |=
                chunk ? (uint64_t) all[k].chunk ^ (uint64_t) all[0].chunk : (uint64_t) (all[k].offset ^ all[0].offset);
        }
        for (int bit = 0; bit < 64; bit += DIGIT_BITS) {
            if ((differ >> bit) % N_VALUES != 0) {
                sort_by_digit(all, scratch, n, chunk, bit);
                struct by_offset * const sorted = scratch;
                scratch = all;
                all = sorted;
            }
        }
    }
    return all;
}

// A set of ranks below n, as a tree of bits: each level has one bit per word of the level below
// that is not 0. So finding the next rank above or below takes one step per level.
enum { MAX_LEVELS = 11 };
struct live_set {
    uint64_t * words; // owned
    uint64_t * level[MAX_LEVELS];
    int n_levels;
};

static bool live_init(struct live_set * s, size_t n) {
    size_t length[MAX_LEVELS], total = 0;
    s->n_levels = 0;
    do {
        n = n / 64 + 1;
        length[s->n_levels++] = n;
        total += n;
    } while (n > 1);
    s->words = gb_calloc(total, sizeof(*s->words));
    total = 0;
    for (int k = 0; s->words && k < s->n_levels; k++) {
        s->level[k] = s->words + total;
        total += length[k];
    }
    return s->words != NULL;
}

static void live_insert(struct live_set * s, size_t rank) {
    for (int k = 0; k < s->n_levels; k++, rank /= 64) {
        s->level[k][rank / 64] |= (uint64_t) 1 << rank % 64;
    }
}

static void live_remove(struct live_set * s, size_t rank) {
    for (int k = 0; k < s->n_levels; k++, rank /= 64) {
        s->level[k][rank / 64] &= ~((uint64_t) 1 << rank % 64);
        if (s->level[k][rank / 64] != 0) {
            return;
        }
    }
}

static size_t lowest_bit(uint64_t word) {
    size_t at = 0;
    for (int width = 32; width > 0; width /= 2) {
        if ((word & (((uint64_t) 1 << width) - 1)) == 0) {
            word >>= width;
            at += (size_t) width;
        }
    }
    return at;
}

static size_t highest_bit(uint64_t word) {
    size_t at = 0;
    for (int width = 32; width > 0; width /= 2) {
        if (word >> width != 0) {
            word >>= width;
            at += (size_t) width;
        }
    }
    return at;
}

// The next live rank above (below). SIZE_MAX: none.
static size_t live_above(const struct live_set * s, size_t rank) {
    for (int k = 0; k < s->n_levels; k++, rank /= 64) {
        const uint64_t rest = rank % 64 < 63 ? s->level[k][rank / 64] >> (rank % 64 + 1) : 0;
        if (rest != 0) {
            rank += 1 + lowest_bit(rest);
            while (k-- > 0) {
                rank = rank * 64 + lowest_bit(s->level[k][rank]);
            }
            return rank;
        }
    }
    return SIZE_MAX;
}

static size_t live_below(const struct live_set * s, size_t rank) {
    for (int k = 0; k < s->n_levels; k++, rank /= 64) {
        const uint64_t rest = s->level[k][rank / 64] & (((uint64_t) 1 << rank % 64) - 1);
        if (rest != 0) {
            rank = rank / 64 * 64 + highest_bit(rest);
            while (k-- > 0) {
                rank = rank * 64 + highest_bit(s->level[k][rank]);
            }
            return rank;
        }
    }
    return SIZE_MAX;
}

// The state of the sweep.
struct sweep {
    struct moment * starts; // owned, as all arrays here; sorted by time
    struct moment * ends;
    size_t n;
    struct by_offset * sorted[2]; // one of them is scratch
    struct by_offset * ranked;    // borrowed, one of the two; by rank
    size_t * rank;                // by item
    struct live_set live;
};

static void sweep_free(struct sweep * s) {
    gb_free(s->starts);
    gb_free(s->ends);
    gb_free(s->sorted[0]);
    gb_free(s->sorted[1]);
    gb_free(s->rank);
    gb_free(s->live.words);
}

static bool sweep_init(struct sweep * s, size_t n) {
    s->starts = gb_calloc(n + 1, sizeof(*s->starts));
    s->ends = gb_calloc(n + 1, sizeof(*s->ends));
    s->rank = gb_calloc(n + 1, sizeof(*s->rank));
    for (int k = 0; k < 2; k++) {
        s->sorted[k] = gb_calloc(n + 1, sizeof(*s->sorted[k]));
    }
    s->ranked = s->sorted[0];
    return live_init(&s->live, n) && s->starts && s->ends && s->sorted[0] && s->sorted[1] && s->rank;
}

// Arguments are ranks. SIZE_MAX: no item.
static bool overlap(const struct sweep * s, const struct gb_plan_item * items, size_t below, size_t above) {
    if (below == SIZE_MAX || above == SIZE_MAX || s->ranked[below].chunk != s->ranked[above].chunk) {
        return false;
    }
    const struct gb_plan_item * low = &items[s->ranked[below].item];
    return low->offset + low->size > s->ranked[above].offset;
}

// NULL if no items overlap.
static const char * run(struct sweep * s, const struct gb_plan_item * items, size_t * item_a, size_t * item_b) {
    for (size_t start = 0, end = 0; start < s->n; start++) {
        for (; s->ends[end].time <= s->starts[start].time;
            end++) { // lifetimes are half-open; an item that starts now ends later
            live_remove(&s->live, s->rank[s->ends[end].item]);
        }
        const size_t rank = s->rank[s->starts[start].item];
        const size_t below = live_below(&s->live, rank), above = live_above(&s->live, rank);
        const size_t other = overlap(s, items, below, rank) ? below : overlap(s, items, rank, above) ? above : SIZE_MAX;
        if (other != SIZE_MAX) {
            *item_a = s->starts[start].item;
            *item_b = s->ranked[other].item;
            return "two items alive at the same time overlap";
        }
        live_insert(&s->live, rank);
    }
    return NULL;
}

// chunk_of: NULL if there are no chunks.
static const char * validate(const struct gb_plan_item * items, size_t n, size_t alignment, const int * chunk_of,
    size_t * item_a, size_t * item_b) {
    struct sweep s = { 0 };
    const char * problem = sweep_init(&s, n) ? NULL : "no memory to check the plan";
    for (size_t i = 0; problem == NULL && i < n; i++) {
        *item_a = *item_b = i;
        if (items[i].offset % alignment != 0) {
            problem = "an offset is not aligned";
        } else if (items[i].offset + items[i].size < items[i].offset) {
            problem = "an item reaches past the address space";
        } else if (items[i].size > 0 && items[i].lower < items[i].upper) {
            s.starts[s.n] = (struct moment){ items[i].lower, i };
            s.ends[s.n] = (struct moment){ items[i].upper, i };
            s.ranked[s.n++] = (struct by_offset){ chunk_of ? chunk_of[i] : 0, items[i].offset, i };
        }
    }
    if (problem == NULL) {
        sort_by_time(s.starts, s.n);
        sort_by_time(s.ends, s.n);
        s.ranked = sort_by_offset(s.sorted[0], s.sorted[1], s.n);
        for (size_t k = 0; k < s.n; k++) {
            s.rank[s.ranked[k].item] = k;
        }
        problem = run(&s, items, item_a, item_b);
    }
    sweep_free(&s);
    return problem;
}

const char * gb_plan_validate(const struct gb_plan_item * items, size_t n, size_t alignment, size_t * item_a,
    size_t * item_b) {
    return validate(items, n, alignment, NULL, item_a, item_b);
}

const char * gb_plan_validate_chunks(const struct gb_plan_item * items, size_t n, size_t alignment, size_t chunk,
    const int * chunk_of, size_t * item_a, size_t * item_b) {
    for (size_t i = 0; i < n; i++) {
        *item_a = *item_b = i;
        if (chunk_of[i] < 0) {
            return "an item is in no chunk";
        }
        if (items[i].offset > chunk || items[i].size > chunk - items[i].offset) {
            return "an item reaches past the end of its chunk";
        }
    }
    return validate(items, n, alignment, chunk_of, item_a, item_b);
}
