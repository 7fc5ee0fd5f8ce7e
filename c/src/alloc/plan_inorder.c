// plan_inorder.c - in-order best fit: what an allocator does that meets the buffers one by one, in the order of their
// births, and in the order of the items where several are born at once.
//
// It is the floor under everything else: the planner returns no plan with a higher peak, so that planning ahead never
// costs memory. It is also the figure that users compare with (best_fit).
#include "alloc/plan_impl.h"

#include <string.h>

#include "alloc/offset_pool.h"
#include "base/current.h"
#include "base/mem.h"
#include "base/status.h"

// Buffers by the section at whose start they are dead: those of section s are order[begin[s]] up to order[begin[s +
// 1]].
static void group_by_death(const struct gb_plan_part * part, uint32_t * begin, uint32_t * order) {
    for (uint32_t i = 0; i < part->n; i++) {
        begin[part->buffers[i].last + 1]++;
    }
    for (uint32_t s = 0; s <= part->n_sections; s++) {
        begin[s + 1] += begin[s];
    }
    for (uint32_t i = 0; i < part->n; i++) {
        order[begin[part->buffers[i].last]++] = i;
    }
    memmove(begin + 1, begin, (part->n_sections + 1) * sizeof(*begin)); // each has moved to the end of its group
    begin[0] = 0;
}

// Before a buffer is born all that is dead by then is given back. Poll: thousands of buffers take milliseconds.
static enum ggml_status run(struct gb_plan_part * part, struct gb_offset_pool * pool, const uint32_t * begin,
    const uint32_t * order) {
    uint32_t ended = 0;
    for (uint32_t i = 0; i < part->n; i++) {
        if (i % GB_PLAN_POLL == 0) {
            GB_TRY(gb_go_on());
        }
        for (const uint32_t end = begin[part->buffers[i].first + 1]; ended < end; ended++) {
            gb_pool_give_back(pool, part->trial[order[ended]], part->buffers[order[ended]].size);
        }
        if (gb_pool_take(pool, part->buffers[i].size, &part->trial[i]) != GB_POOL_OK) {
            return GGML_STATUS_ALLOC_FAILED; // never full: no more is used than all sizes together
        }
    }
    return GGML_STATUS_SUCCESS;
}

enum ggml_status gb_plan_in_order(struct gb_plan_part * part, size_t * peak) {
    struct gb_offset_pool pool   = { 0 };
    enum ggml_status      status = GGML_STATUS_ALLOC_FAILED;
    uint32_t *            begin  = gb_calloc((size_t) part->n_sections + 2, sizeof(*begin));
    uint32_t *            order  = gb_calloc(part->n, sizeof(*order));
    if (begin && order && gb_pool_init(&pool, 0, SIZE_MAX)) {
        group_by_death(part, begin, order);
        status = run(part, &pool, begin, order);
    }
    *peak = pool.high;
    gb_pool_free(&pool);
    gb_free(begin);
    gb_free(order);
    return status;
}
