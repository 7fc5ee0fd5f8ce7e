// plan_apart.c - parts that a few long buffers hold together, each planned on its own above these.
//
// What is alive throughout a part may lie at the bottom of a plan: every plan can be changed into one like that, by
// moving down what lies above. So nothing is lost when the others are planned alone. For buffers that are only long
// this does not hold, and the plan counts only if it is smaller than that of all together. They lie at the bottom, too,
// and each part of the others lies above those that are alive with it.
#include "plan/plan_impl.h"

#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "plan/plan_search.h"

#define MAX_LONG_BRIDGES 16 // buffers that hold parts together, beside those alive throughout
#define SHORTEST_SHIFT 3 // of the part's sections: how long these are at least

struct grouping {
    struct gb_plan_part * part; // borrowed
    uint32_t width; // holders are alive for at least so many sections
    size_t bottom; // bytes of what is alive throughout
    uint32_t long_bridges[MAX_LONG_BRIDGES]; // the other holders, the longest first
    uint32_t n_long;
    struct gb_plan_problem rest;
};

static uint32_t width_of(const struct gb_plan_part * part, uint32_t b) {
    return part->buffers[b].last - part->buffers[b].first;
}

// Whether buffers of at least this width hold others together. No part may be most of all others: that would be planned
// as all are now, and once more for each of the holders that it may have itself.
static bool has_groups_without(const struct gb_plan_part * part, uint32_t width) {
    uint32_t reach = 0, n = 0, most = 0, n_parts = 0, n_others = 0, n_long = 0;
    for (uint32_t b = 0; b < part->n; b++) {
        if (width_of(part, b) >= width) {
            n_long += width_of(part, b) < part->n_sections;
            continue;
        }
        if (n_parts == 0 || part->buffers[b].first >= reach) { // all of the others before are dead
            n_parts++;
            n = 0;
        }
        reach = GB_MAX(reach, part->buffers[b].last);
        most = GB_MAX(most, ++n);
        n_others++;
    }
    return n_parts > 1 && n_long <= MAX_LONG_BRIDGES && most <= n_others / 4 * 3;
}

// The width of the longest buffers that hold others together; 0: there are none.
static uint32_t width_of_bridges(const struct gb_plan_part * part, enum gb_plan_bridges by) {
    if (part->chunk > 0 || part->n_fixed > 0 || part->n_sections < 2) {
        return 0;
    }
    if (by == GB_PLAN_THROUGHOUT) {
        return has_groups_without(part, part->n_sections) ? part->n_sections : 0;
    }
    for (unsigned shift = 1; shift <= SHORTEST_SHIFT && part->n_sections >> shift > 1; shift++) {
        if (has_groups_without(part, part->n_sections >> shift)) {
            return part->n_sections >> shift;
        }
    }
    return 0;
}

bool gb_plan_has_groups(const struct gb_plan_part * part, enum gb_plan_bridges by) {
    return width_of_bridges(part, by) > 0;
}

// The others, as items by their index in the part, holders being empty.
static enum ggml_status remove_bridges(struct grouping * h) {
    const struct gb_plan_part * part = h->part;
    struct gb_plan_item * items = gb_calloc(part->n, sizeof(*items));
    if (items == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    for (uint32_t b = 0; b < part->n; b++) {
        const struct gb_plan_buffer * one = &part->buffers[b];
        if (width_of(part, b) < h->width) {
            items[b] = (struct gb_plan_item){ one->first, one->last, one->size, 0 };
        } else if (width_of(part, b) == part->n_sections) {
            h->bottom += one->size;
        } else {
            h->long_bridges[h->n_long++] = b;
        }
    }
    const enum ggml_status status = gb_plan_problem_init(&h->rest, items, part->n, 1);
    for (size_t k = 0; status == GGML_STATUS_SUCCESS && k < h->rest.n; k++) {
        h->rest.buffers[k].span = part->buffers[h->rest.buffers[k].item].span;
    }
    gb_free(items);
    return status;
}

static bool meets(const struct gb_plan_buffer * a, uint32_t first, uint32_t last) {
    return a->first < last && first < a->last;
}

static int longer_first(const struct gb_plan_part * part, uint32_t a, uint32_t b) {
    const struct gb_plan_buffer *x = &part->buffers[a], *y = &part->buffers[b];
    const uint32_t w = width_of(part, a), v = width_of(part, b);
    if (w != v) {
        return w > v ? -1 : 1;
    }
    if (x->size != y->size) {
        return x->size > y->size ? -1 : 1;
    }
    return x->first != y->first ? (x->first < y->first ? -1 : 1) : (a > b) - (a < b);
}

// What is alive throughout by falling size from the bottom, into the trial; the long ones above, each on those placed
// before that are alive with it.
static enum ggml_status place_bridges(struct grouping * h) {
    struct gb_plan_part * part = h->part;
    uint32_t * order = gb_calloc(part->n, sizeof(*order));
    enum ggml_status status = order ? gb_plan_order(part, GB_PLAN_BY_SIZE, order) : GGML_STATUS_ALLOC_FAILED;
    size_t at = 0;
    for (uint32_t k = 0; status == GGML_STATUS_SUCCESS && k < part->n; k++) {
        if (width_of(part, order[k]) == part->n_sections) {
            part->trial[order[k]] = at;
            at += part->buffers[order[k]].size;
        }
    }
    gb_free(order);
    for (uint32_t k = 0; status == GGML_STATUS_SUCCESS && k < h->n_long; k++) {
        for (uint32_t j = k; j > 0 && longer_first(part, h->long_bridges[j - 1], h->long_bridges[j]) > 0; j--) {
            const uint32_t swap = h->long_bridges[j];
            h->long_bridges[j] = h->long_bridges[j - 1];
            h->long_bridges[j - 1] = swap;
        }
    }
    for (uint32_t k = 0; status == GGML_STATUS_SUCCESS && k < h->n_long; k++) {
        const struct gb_plan_buffer * one = &part->buffers[h->long_bridges[k]];
        size_t top = h->bottom;
        for (uint32_t j = 0; j < k; j++) {
            const uint32_t other = h->long_bridges[j];
            if (meets(&part->buffers[other], one->first, one->last)) {
                top = GB_MAX(top, part->trial[other] + part->buffers[other].size);
            }
        }
        part->trial[h->long_bridges[k]] = top;
    }
    return status;
}

// The floor of a part of the others: above the holders alive with it.
static void find_floor(const struct grouping * h, struct gb_plan_part * one) {
    const struct gb_plan_part * part = h->part;
    uint32_t first = UINT32_MAX, last = 0;
    for (uint32_t b = 0; b < one->n; b++) {
        first = GB_MIN(first, part->buffers[one->buffers[b].item].first);
        last = GB_MAX(last, part->buffers[one->buffers[b].item].last);
    }
    one->floor = one->below = h->bottom;
    for (uint32_t k = 0; k < h->n_long; k++) {
        const struct gb_plan_buffer * bridge = &part->buffers[h->long_bridges[k]];
        if (meets(bridge, first, last)) {
            one->floor = GB_MAX(one->floor, part->trial[h->long_bridges[k]] + bridge->size);
        }
        if (bridge->first <= first && bridge->last >= last) {
            one->below += bridge->size;
        }
    }
}

// Plans the others above the holders, if that can be lower than the plan of the part.
static enum ggml_status plan_rest(struct grouping * h, size_t goal, size_t unit, struct gb_plan_costs * costs) {
    struct gb_plan_part * part = h->part;
    struct gb_plan_problem * rest = &h->rest;
    struct gb_plan_result result;
    size_t top = h->bottom, least = 0;
    for (uint32_t k = 0; k < h->n_long; k++) {
        top = GB_MAX(top, part->trial[h->long_bridges[k]] + part->buffers[h->long_bridges[k]].size);
    }
    for (size_t k = 0; k < rest->n_parts; k++) {
        find_floor(h, &rest->parts[k]);
        least = GB_MAX(least, rest->parts[k].floor + rest->parts[k].bound);
    }
    if (GB_MAX(top, least) >= part->peak) {
        return GGML_STATUS_SUCCESS;
    }
    rest->unit = unit; // which divides the floors, too
    GB_TRY(gb_plan_parts(rest, GB_MAX(goal, GB_MAX(top, least)), costs, &result));
    for (size_t k = 0; k < rest->n_parts; k++) {
        const struct gb_plan_part * one = &rest->parts[k];
        for (uint32_t b = 0; b < one->n; b++) {
            part->trial[one->buffers[b].item] = one->floor + one->offsets[b];
        }
    }
    part->unfinished = result.unfinished;
    part->bound = GB_MAX(part->bound, result.bound);
    gb_plan_keep(part, GB_MAX(top, result.peak));
    return GGML_STATUS_SUCCESS;
}

enum ggml_status gb_plan_by_groups(struct gb_plan_part * part, enum gb_plan_bridges by, size_t goal, size_t unit,
    struct gb_plan_costs * costs) {
    struct grouping h = { .part = part, .width = width_of_bridges(part, by) };
    if (h.width == 0) {
        return GGML_STATUS_SUCCESS;
    }
    enum ggml_status status = remove_bridges(&h);
    status = status == GGML_STATUS_SUCCESS ? place_bridges(&h) : status;
    status = status == GGML_STATUS_SUCCESS ? plan_rest(&h, goal, unit, costs) : status;
    gb_plan_problem_free(&h.rest);
    return status;
}
