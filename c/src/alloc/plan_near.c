// plan_near.c - who is placed, and alive with a buffer, by rising offset: for moves one by one (plan_eject.c).
//
// Either all that is placed is one list, by offset, which is read from one end to the other; or, where few of all are
// alive with a buffer, these are gathered and sorted: they follow in the order of births, or are in a list of what is
// alive at a section.
#include "alloc/plan_impl.h"

#include <string.h>

#include "base/mem.h"

#define LEAST_GATHERED 1024 // buffers
#define FEW_MET        16   // one of so many, on average

struct gb_plan_near {
    const struct gb_plan_part * part;    // borrowed
    size_t *                    offsets; // by buffer; owned, as all arrays
    uint32_t *                  met;     // buffers found last
    // The list: what is placed, of equal ones in the sequence in which they came.
    uint32_t * first;
    uint32_t * last;
    uint32_t * placed; // buffers; UINT32_MAX: taken out since `closed`
    uint32_t * places; // in the list, of those found last
    uint32_t   n_placed;
    uint32_t   open; // the first place that was taken out, n_placed if there is none
    // Or, where `begins` is not NULL, those alive with a buffer.
    struct gb_plan_keyed * begins;   // by offset; twice the buffers
    uint32_t *             alive;    // at section k * stride, born before: from alive_at[k] up to alive_at[k + 1]
    uint32_t *             alive_at; // by multiple of the stride, and some more
    uint32_t               stride;
};

void gb_plan_near_free(struct gb_plan_near * x) {
    if (x) {
        gb_free(x->offsets);
        gb_free(x->met);
        gb_free(x->first);
        gb_free(x->last);
        gb_free(x->placed);
        gb_free(x->places);
        gb_free(x->begins);
        gb_free(x->alive);
        gb_free(x->alive_at);
        gb_free(x);
    }
}

bool gb_plan_is_ejecting_cheap(const struct gb_plan_part * part) {
    return part->n >= LEAST_GATHERED && part->n_pairs < (uint64_t) part->n * part->n / 2 / FEW_MET;
}

// Lists of what is alive at some sections, as many as make some twice the buffers in all.
static bool list_alive(struct gb_plan_near * x) {
    const struct gb_plan_part * part   = x->part;
    uint64_t                    widths = 0;
    for (uint32_t b = 0; b < part->n; b++) {
        widths += part->buffers[b].last - part->buffers[b].first;
    }
    x->stride            = (uint32_t) GB_MIN(widths / part->n / 2 + 1, part->n_sections);
    const size_t n_lists = part->n_sections / x->stride + 1;
    x->begins            = gb_calloc(2 * (size_t) part->n, sizeof(*x->begins));
    x->alive_at          = gb_calloc(n_lists + 2, sizeof(*x->alive_at));
    if (!x->begins || !x->alive_at) {
        return false;
    }
    for (int fill = 0; fill < 2; fill++) {
        for (uint32_t b = 0; b < part->n; b++) {
            const uint32_t to = (part->buffers[b].last - 1) / x->stride;
            for (uint32_t k = part->buffers[b].first / x->stride + 1; k <= to; k++) {
                if (fill) {
                    x->alive[x->alive_at[k + 1]++] = b;
                } else {
                    x->alive_at[k + 2]++;
                }
            }
        }
        for (size_t k = 2; !fill && k < n_lists + 2; k++) { // where each begins, one place behind its own
            x->alive_at[k] += x->alive_at[k - 1];
        }
        if (!fill) {
            x->alive = gb_calloc((size_t) x->alive_at[n_lists + 1] + 1, sizeof(*x->alive));
            if (x->alive == NULL) {
                return false;
            }
        }
    }
    return true;
}

struct gb_plan_near * gb_plan_near_new(const struct gb_plan_part * part) {
    struct gb_plan_near * x = GB_NEW(struct gb_plan_near);
    if (x == NULL) {
        return NULL;
    }
    const size_t n = part->n;
    x->part        = part;
    x->offsets     = gb_calloc(n, sizeof(*x->offsets));
    x->met         = gb_calloc(n + 1, sizeof(*x->met));
    bool ok        = x->offsets && x->met;
    if (ok && gb_plan_is_ejecting_cheap(part)) {
        ok = list_alive(x);
    } else if (ok) {
        x->first  = gb_calloc(n, sizeof(*x->first));
        x->last   = gb_calloc(n, sizeof(*x->last));
        x->placed = gb_calloc(n, sizeof(*x->placed));
        x->places = gb_calloc(n + 1, sizeof(*x->places));
        ok        = x->first && x->last && x->placed && x->places;
    }
    if (!ok) {
        gb_plan_near_free(x);
        return NULL;
    }
    gb_plan_near_clear(x);
    return x;
}

void gb_plan_near_clear(struct gb_plan_near * x) {
    x->n_placed = x->open = 0;
    for (uint32_t b = 0; b < x->part->n; b++) {
        x->offsets[b] = GB_PLAN_NOT_PLACED;
    }
}

const size_t * gb_plan_near_offsets(const struct gb_plan_near * x) { return x->offsets; }

// Closes the places of the list that were taken out.
static void close_up(struct gb_plan_near * x) {
    uint32_t kept = x->open;
    for (uint32_t k = x->open; k < x->n_placed; k++) {
        x->first[kept]  = x->first[k];
        x->last[kept]   = x->last[k];
        x->placed[kept] = x->placed[k];
        kept += x->placed[k] != UINT32_MAX;
    }
    x->n_placed = x->open = kept;
}

void gb_plan_near_put(struct gb_plan_near * x, uint32_t b, size_t offset) {
    x->offsets[b] = offset;
    if (x->begins) {
        return;
    }
    close_up(x);
    uint32_t low = 0, high = x->n_placed;
    if (high > 0 && x->offsets[x->placed[high - 1]] <= offset) { // as where all are put in by offset
        low = high;
    }
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        if (x->offsets[x->placed[middle]] <= offset) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    const size_t moved = (x->n_placed - low) * sizeof(uint32_t);
    memmove(x->first + low + 1, x->first + low, moved);
    memmove(x->last + low + 1, x->last + low, moved);
    memmove(x->placed + low + 1, x->placed + low, moved);
    x->first[low]  = x->part->buffers[b].first;
    x->last[low]   = x->part->buffers[b].last;
    x->placed[low] = b;
    x->open        = ++x->n_placed;
}

void gb_plan_near_take(struct gb_plan_near * x, uint32_t k) {
    x->offsets[x->met[k]] = GB_PLAN_NOT_PLACED;
    if (x->begins == NULL) {
        x->placed[x->places[k]] = UINT32_MAX;
        x->open                 = GB_MIN(x->open, x->places[k]);
    }
}

// Those that can be alive with b are what is alive at the last section with a list that is not behind its birth, and
// what is born from there on, before b is dead, which has indices in between.
static uint32_t gather(struct gb_plan_near * x, const struct gb_plan_buffer * b, uint64_t * steps) {
    const struct gb_plan_part * part   = x->part;
    const uint32_t              k      = b->first / x->stride;
    const uint32_t *            list   = x->alive + x->alive_at[k];
    const uint32_t              n_list = x->alive_at[k + 1] - x->alive_at[k];
    const uint32_t              from = k > 0 ? part->born[k * x->stride - 1] : 0, to = part->born[b->last - 1];
    uint32_t                    n = 0;
    for (uint32_t j = 0; j < n_list; j++) {
        x->begins[n] = (struct gb_plan_keyed){ x->offsets[list[j]], list[j] };
        n += (uint32_t) ((part->buffers[list[j]].last > b->first) & (x->offsets[list[j]] != GB_PLAN_NOT_PLACED));
    }
    for (uint32_t j = from; j < to; j++) {
        x->begins[n] = (struct gb_plan_keyed){ x->offsets[j], j };
        n += (uint32_t) ((part->buffers[j].last > b->first) & (x->offsets[j] != GB_PLAN_NOT_PLACED));
    }
    gb_plan_sort(x->begins, x->begins + n, n);
    for (uint32_t j = 0; j < n; j++) {
        x->met[j] = x->begins[j].buffer;
    }
    *steps = n_list + (to - from) + 20 * (uint64_t) n;
    return n;
}

uint32_t gb_plan_near_find(struct gb_plan_near * x, const struct gb_plan_buffer * b, const uint32_t ** met,
    uint64_t * steps) {
    uint32_t n = 0;
    *met       = x->met;
    if (x->begins) {
        return gather(x, b, steps);
    }
    close_up(x);
    for (uint32_t k = 0; k < x->n_placed; k++) {
        x->places[n] = k; // kept if it is alive with b
        n += (uint32_t) ((x->first[k] < b->last) & (x->last[k] > b->first));
    }
    for (uint32_t k = 0; k < n; k++) {
        x->met[k] = x->placed[x->places[k]];
    }
    *steps = 10 * (uint64_t) n;
    return n;
}

uint64_t gb_plan_near_steps(const struct gb_plan_near * x) { return x->begins ? 0 : x->n_placed / 2; }
