// plan_critical.c - the part of a large problem that decides: the buffers alive where most bytes are.
//
// A plan of fewer buffers needs no more than a plan of all, so what is proved of the critical ones alone holds for all.
// And a good plan of them is most of a good plan of all: placed first, from the bottom up, they do not lie higher than
// in that plan, and what is alive elsewhere only finds room around them.
#include "alloc/plan_impl.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"

static int falling(const void * pa, const void * pb) {
    const size_t a = *(const size_t *) pa, b = *(const size_t *) pb;
    return a > b ? -1 : a < b;
}

// The load above which, or from which on, sections are critical, so that about `limit` buffers are alive in some. *n:
// how many these are.
static enum ggml_status find_threshold(struct gb_plan_part * part, uint32_t limit, size_t * threshold, uint32_t * n) {
    size_t * crowds = gb_calloc(part->n, sizeof(*crowds));
    if (crowds == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    memcpy(crowds, part->crowd, part->n * sizeof(*crowds));
    qsort(crowds, part->n, sizeof(*crowds), falling);
    uint32_t k = GB_MIN(limit, part->n);
    while (k > 0 && k < part->n && crowds[k] == crowds[k - 1]) {
        k--; // those of one load together
    }
    if (k == 0) { // all of the highest
        while (k < part->n && crowds[k] == crowds[0]) {
            k++;
        }
    }
    *threshold = crowds[k - 1];
    *n         = k;
    gb_free(crowds);
    return GGML_STATUS_SUCCESS;
}

enum ggml_status gb_plan_critical_find(struct gb_plan_part * part, uint32_t limit, struct gb_plan_critical * c) {
    size_t threshold;
    *c = (struct gb_plan_critical){ 0 };
    GB_TRY(gb_plan_find_crowds(part));
    GB_TRY(find_threshold(part, limit, &threshold, &c->n));
    c->items   = gb_calloc(c->n, sizeof(*c->items));
    c->buffers = gb_calloc(c->n, sizeof(*c->buffers));
    if (!c->items || !c->buffers) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    uint32_t k = 0;
    for (uint32_t b = 0; b < part->n; b++) {
        if (part->crowd[b] >= threshold) {
            const struct gb_plan_buffer * one = &part->buffers[b];
            c->items[k]     = (struct gb_plan_item){ one->first, one->last, one->size, 0 };
            c->buffers[k++] = b;
        }
    }
    return GGML_STATUS_SUCCESS;
}

void gb_plan_critical_free(struct gb_plan_critical * c) {
    gb_free(c->items);
    gb_free(c->buffers);
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

enum ggml_status gb_plan_critical_order(const struct gb_plan_part * part, const struct gb_plan_critical * c,
    const size_t * offsets, uint32_t * order) {
    struct lifted * lifted = gb_calloc(part->n, sizeof(*lifted));
    size_t *        at     = gb_calloc(part->n, sizeof(*at));
    const bool      ok     = lifted && at;
    for (uint32_t b = 0; ok && b < part->n; b++) {
        at[b] = SIZE_MAX;
    }
    for (uint32_t k = 0; ok && k < c->n; k++) {
        at[c->buffers[k]] = offsets[k];
    }
    for (uint32_t k = 0; ok && k < part->n; k++) { // the others keep their order
        lifted[k] = (struct lifted){ at[order[k]], k, order[k] };
    }
    if (ok) {
        qsort(lifted, part->n, sizeof(*lifted), by_offset);
    }
    for (uint32_t k = 0; ok && k < part->n; k++) {
        order[k] = lifted[k].buffer;
    }
    gb_free(lifted);
    gb_free(at);
    return ok ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}
