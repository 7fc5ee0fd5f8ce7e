// plan_groups.c - plans groups of buffers alone if only a few long buffers, the bridges, connect
// them.
//
// Every plan can be changed so that the buffers alive throughout the part are at the bottom. So
// planning the groups alone, above these bridges, loses nothing. Bridges that are only long are
// also placed at the bottom, and each group above the bridges that are alive with it. That may be
// worse, so the plan is kept only if it is smaller.
#include "plan/plan_impl.h"

#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "plan/plan_search.h"

#define MAX_LONG_BRIDGES 16 // beside the buffers alive throughout
#define SHORTEST_SHIFT 3 // a bridge is alive for at least n_sections >> 3

struct grouping {
    struct gb_plan_part * part; // borrowed
    uint32_t width; // sections; a bridge is alive for at least as many
    size_t bottom; // bytes of the buffers alive throughout
    uint32_t long_bridges[MAX_LONG_BRIDGES]; // the other bridges, longest first
    uint32_t n_long;
    struct gb_plan_problem rest;
};

static uint32_t width_of(const struct gb_plan_part * part, uint32_t b) {
    return part->buffers[b].last - part->buffers[b].first;
}

// True if the remaining buffers form groups when the buffers of at least this width are removed. No
// group may have more than three quarters of them, because planning it would be nearly the same
// problem again, for its own bridges.
static bool has_groups_without(const struct gb_plan_part * part, uint32_t width) {
    uint32_t reach = 0, n = 0, most = 0, n_parts = 0, n_others = 0, n_long = 0;
    for (uint32_t b = 0; b < part->n; b++) {
        if (width_of(part, b) >= width) {
            n_long += width_of(part, b) < part->n_sections;
            continue;
        }
        if (n_parts == 0 || part->buffers[b].first >= reach) { // all earlier ones of the remaining buffers are dead
            n_parts++;
            n = 0;
        }
        reach = GB_MAX(reach, part->buffers[b].last);
        most = GB_MAX(most, ++n);
        n_others++;
    }
    return n_parts > 1 && n_long <= MAX_LONG_BRIDGES && most <= n_others / 4 * 3;
}

// The largest width of bridges. 0: there are no groups.
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

// Makes a problem of all buffers but the bridges. Items are by index in the part; bridges are empty items.
static enum ggml_status remove_bridges(struct grouping * g) {
    const struct gb_plan_part * part = g->part;
    struct gb_plan_item * items = gb_calloc(part->n, sizeof(*items));
    if (items == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    for (uint32_t b = 0; b < part->n; b++) {
        const struct gb_plan_buffer * one = &part->buffers[b];
        if (width_of(part, b) < g->width) {
            items[b] = (struct gb_plan_item){ one->first, one->last, one->size, 0 };
        } else if (width_of(part, b) == part->n_sections) {
            g->bottom += one->size;
        } else {
            g->long_bridges[g->n_long++] = b;
        }
    }
    const enum ggml_status status = gb_plan_problem_init(&g->rest, items, part->n, 1);
    for (size_t k = 0; status == GGML_STATUS_SUCCESS && k < g->rest.n; k++) {
        g->rest.buffers[k].span = part->buffers[g->rest.buffers[k].item].span;
    }
    gb_free(items);
    return status;
}

static bool overlaps(const struct gb_plan_buffer * a, uint32_t first, uint32_t last) {
    return a->first < last && first < a->last;
}

static int compare_width(const struct gb_plan_part * part, uint32_t a, uint32_t b) {
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

// Places the bridges in the trial: first those alive throughout, at the bottom, by falling size,
// then the long ones, each on its neighbours among the bridges.
static enum ggml_status place_bridges(struct grouping * g) {
    struct gb_plan_part * part = g->part;
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
    for (uint32_t k = 0; status == GGML_STATUS_SUCCESS && k < g->n_long; k++) {
        for (uint32_t j = k; j > 0 && compare_width(part, g->long_bridges[j - 1], g->long_bridges[j]) > 0; j--) {
            const uint32_t swap = g->long_bridges[j];
            g->long_bridges[j] = g->long_bridges[j - 1];
            g->long_bridges[j - 1] = swap;
        }
    }
    for (uint32_t k = 0; status == GGML_STATUS_SUCCESS && k < g->n_long; k++) {
        const struct gb_plan_buffer * one = &part->buffers[g->long_bridges[k]];
        size_t top = g->bottom;
        for (uint32_t j = 0; j < k; j++) {
            const uint32_t other = g->long_bridges[j];
            if (overlaps(&part->buffers[other], one->first, one->last)) {
                top = GB_MAX(top, part->trial[other] + part->buffers[other].size);
            }
        }
        part->trial[g->long_bridges[k]] = top;
    }
    return status;
}

// Sets the floor of a group: above the bridges alive with it.
static void find_floor(const struct grouping * g, struct gb_plan_part * one) {
    const struct gb_plan_part * part = g->part;
    uint32_t first = UINT32_MAX, last = 0;
    for (uint32_t b = 0; b < one->n; b++) {
        first = GB_MIN(first, part->buffers[one->buffers[b].item].first);
        last = GB_MAX(last, part->buffers[one->buffers[b].item].last);
    }
    one->floor = one->below = g->bottom;
    for (uint32_t k = 0; k < g->n_long; k++) {
        const struct gb_plan_buffer * bridge = &part->buffers[g->long_bridges[k]];
        if (overlaps(bridge, first, last)) {
            one->floor = GB_MAX(one->floor, part->trial[g->long_bridges[k]] + bridge->size);
        }
        if (bridge->first <= first && bridge->last >= last) {
            one->below += bridge->size;
        }
    }
}

// Plans the groups above the bridges, unless their bounds exceed the present plan.
static enum ggml_status plan_rest(struct grouping * g, size_t goal, size_t unit, struct gb_plan_costs * costs) {
    struct gb_plan_part * part = g->part;
    struct gb_plan_problem * rest = &g->rest;
    struct gb_plan_result result;
    size_t top = g->bottom, least = 0;
    for (uint32_t k = 0; k < g->n_long; k++) {
        top = GB_MAX(top, part->trial[g->long_bridges[k]] + part->buffers[g->long_bridges[k]].size);
    }
    for (size_t k = 0; k < rest->n_parts; k++) {
        find_floor(g, &rest->parts[k]);
        least = GB_MAX(least, rest->parts[k].floor + rest->parts[k].bound);
    }
    if (GB_MAX(top, least) >= part->peak) {
        return GGML_STATUS_SUCCESS;
    }
    rest->unit = unit; // divides the floors, too
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
    struct grouping g = { .part = part, .width = width_of_bridges(part, by) };
    if (g.width == 0) {
        return GGML_STATUS_SUCCESS;
    }
    enum ggml_status status = remove_bridges(&g);
    status = status == GGML_STATUS_SUCCESS ? place_bridges(&g) : status;
    status = status == GGML_STATUS_SUCCESS ? plan_rest(&g, goal, unit, costs) : status;
    gb_plan_problem_free(&g.rest);
    return status;
}
