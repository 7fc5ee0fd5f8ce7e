// plan_order.c - orders of buffers, in which heuristics place them and the search tries them.
//
// The larger key comes first. Ties are decided by what the buffers are and not by their index, so that the order of
// items does not matter.
#include "alloc/plan_impl.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"

// Saturates: an area beyond 64 bits is the largest, whatever it is exactly.
static uint64_t area(const struct gb_plan_buffer * b, uint64_t width) {
    return b->size > UINT64_MAX / width ? UINT64_MAX : b->size * width;
}

bool gb_plan_needs_crowd(enum gb_plan_key key) {
    switch (key) {
        case GB_PLAN_BY_SIZE:
        case GB_PLAN_BY_AREA:
        case GB_PLAN_BY_WIDTH:
        case GB_PLAN_BY_BIRTH:
        case GB_PLAN_BY_DEATH:
        case GB_PLAN_BY_DEATH_NARROW:
        case GB_PLAN_BY_DEATH_SPAN: return false;
        default: return true;
    }
}

size_t gb_plan_crowd(const struct gb_plan_buffer * b, const size_t * load) {
    size_t most = 0;
    for (uint32_t s = b->first; s < b->last; s++) {
        most = GB_MAX(most, load[s]);
    }
    return most;
}

struct gb_plan_ranked gb_plan_rank(const struct gb_plan_buffer * b, uint32_t index, enum gb_plan_key key,
    size_t crowd) {
    struct gb_plan_ranked r     = { { 0, 0, 0 }, b->first, b->last, b->size, index };
    uint64_t * const      k     = r.key;
    const uint64_t        width = b->last - b->first;
    switch (key) {
        case GB_PLAN_BY_SIZE: k[0] = b->size; break;
        case GB_PLAN_BY_AREA: k[0] = area(b, width); break;
        case GB_PLAN_BY_WIDTH: k[0] = width; break;
        case GB_PLAN_BY_LOAD: k[0] = crowd; break;
        case GB_PLAN_BY_BIRTH: k[0] = UINT32_MAX - b->first; break;
        case GB_PLAN_BY_DEATH: k[0] = b->last; break;
        case GB_PLAN_BY_WIDTH_AREA_LOAD: k[0] = width, k[1] = area(b, width), k[2] = crowd; break;
        case GB_PLAN_BY_LOAD_AREA_WIDTH: k[0] = crowd, k[1] = area(b, width), k[2] = width; break;
        case GB_PLAN_BY_LOAD_WIDTH_AREA: k[0] = crowd, k[1] = width, k[2] = area(b, width); break;
        case GB_PLAN_BY_AREA_WIDTH_LOAD: k[0] = area(b, width), k[1] = width, k[2] = crowd; break;
        case GB_PLAN_BY_BIRTH_LOAD_WIDTH: k[0] = UINT32_MAX - b->first, k[1] = crowd, k[2] = width; break;
        case GB_PLAN_BY_DEATH_LOAD_WIDTH: k[0] = b->last, k[1] = crowd, k[2] = width; break;
        case GB_PLAN_BY_DEATH_NARROW: k[0] = b->last, k[1] = b->first; break;
        case GB_PLAN_BY_LATE_BIRTH_LOAD_WIDTH: k[0] = b->first, k[1] = crowd, k[2] = width; break;
        case GB_PLAN_BY_LOAD_SPAN: k[0] = crowd, k[1] = b->span, k[2] = area(b, b->span); break;
        case GB_PLAN_BY_BIRTH_LOAD_SPAN: k[0] = UINT32_MAX - b->first, k[1] = crowd, k[2] = area(b, b->span); break;
        case GB_PLAN_BY_DEATH_SPAN: k[0] = b->last, k[1] = b->span, k[2] = area(b, b->span); break;
    }
    return r;
}

int gb_plan_by_rank(const void * pa, const void * pb) {
    const struct gb_plan_ranked *a = pa, *b = pb;
    for (int k = 0; k < 3; k++) {
        if (a->key[k] != b->key[k]) {
            return a->key[k] > b->key[k] ? -1 : 1;
        }
    }
    if (a->size != b->size) {
        return a->size > b->size ? -1 : 1;
    }
    if (a->first != b->first) {
        return a->first < b->first ? -1 : 1;
    }
    if (a->last != b->last) {
        return a->last > b->last ? -1 : 1;
    }
    return a->buffer < b->buffer ? -1 : a->buffer > b->buffer;
}

// ------------------------------------------------------------------------------------------------------- all of a part

// The largest of any range in logarithmic time: node k of a complete tree holds the larger of its two children.
enum ggml_status gb_plan_find_crowds(struct gb_plan_part * part) {
    if (part->has_crowds) {
        return GGML_STATUS_SUCCESS;
    }
    const size_t   m    = part->n_sections;
    size_t * const most = gb_calloc(2 * m, sizeof(*most));
    if (most == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    memcpy(most + m, part->load, m * sizeof(*most));
    for (size_t k = m; k-- > 1;) {
        most[k] = GB_MAX(most[2 * k], most[2 * k + 1]);
    }
    for (uint32_t b = 0; b < part->n; b++) {
        size_t crowd = 0;
        for (size_t i = m + part->buffers[b].first, j = m + part->buffers[b].last; i < j; i /= 2, j /= 2) {
            crowd = i & 1 ? GB_MAX(crowd, most[i]) : crowd;
            i += i & 1;
            crowd = j & 1 ? GB_MAX(crowd, most[j - 1]) : crowd;
            j -= j & 1;
        }
        part->crowd[b] = crowd;
    }
    gb_free(most);
    part->has_crowds = true;
    return GGML_STATUS_SUCCESS;
}

enum ggml_status gb_plan_order(struct gb_plan_part * part, enum gb_plan_key key, uint32_t * order) {
    if (gb_plan_needs_crowd(key)) {
        GB_TRY(gb_plan_find_crowds(part));
    }
    struct gb_plan_ranked * ranked = gb_calloc(part->n, sizeof(*ranked));
    if (ranked == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    for (uint32_t b = 0; b < part->n; b++) {
        ranked[b] = gb_plan_rank(&part->buffers[b], b, key, part->crowd[b]);
    }
    qsort(ranked, part->n, sizeof(*ranked), gb_plan_by_rank);
    for (uint32_t k = 0; k < part->n; k++) {
        order[k] = ranked[k].buffer;
    }
    gb_free(ranked);
    return GGML_STATUS_SUCCESS;
}

struct lifted {
    size_t   offset;
    uint32_t place, buffer;
};

static int by_offset(const void * pa, const void * pb) {
    const struct lifted *a = pa, *b = pb;
    if (a->offset != b->offset) {
        return a->offset < b->offset ? -1 : 1;
    }
    return a->place < b->place ? -1 : a->place > b->place;
}

enum ggml_status gb_plan_order_by_offset(struct gb_plan_part * part, const size_t * offsets, uint32_t * order) {
    struct lifted * lifted = gb_calloc(part->n, sizeof(*lifted));
    if (lifted == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    enum ggml_status status = gb_plan_order(part, (enum gb_plan_key) part->best_key, order);
    for (uint32_t k = 0; k < part->n; k++) {
        lifted[k] = (struct lifted){ offsets[order[k]], k, order[k] };
    }
    qsort(lifted, part->n, sizeof(*lifted), by_offset);
    for (uint32_t k = 0; k < part->n; k++) {
        order[k] = lifted[k].buffer;
    }
    gb_free(lifted);
    return status;
}
