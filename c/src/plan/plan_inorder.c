// plan_inorder.c - in-order best fit: an allocator that gets the buffers one by one, by birth, ties by item.
//
// It is the fallback: the planner returns no plan with a higher peak, so planning ahead never costs
// memory. Its peak is also the figure with which users compare (best_fit).
#include "plan/plan_impl.h"

#include <string.h>

#include "base/current.h"
#include "base/mem.h"
#include "base/status.h"

// Groups buffers by the section at whose start they are dead. Group s is order[begin[s]] to
// order[begin[s + 1] - 1].
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
    memmove(begin + 1, begin, (part->n_sections + 1) * sizeof(*begin)); // each begin has moved to the end of its group
    begin[0] = 0;
}

// The allocator's memory. It has no end: all memory above `top` is free, and no free block touches
// the top.
struct space {
    struct gb_plan_pairs by_offset; // free blocks below the top, as (offset, size)
    struct gb_plan_pairs by_size; // the same blocks, as (size, offset)
    size_t top, high; // high: the largest top so far
};

static bool add_block(struct space * s, size_t offset, size_t size) {
    return gb_plan_pairs_insert(&s->by_offset, (struct gb_plan_pair){ offset, size }) &&
           gb_plan_pairs_insert(&s->by_size, (struct gb_plan_pair){ size, offset });
}

static void remove_block(struct space * s, size_t offset, size_t size) {
    gb_plan_pairs_remove(&s->by_offset, (struct gb_plan_pair){ offset, size });
    gb_plan_pairs_remove(&s->by_size, (struct gb_plan_pair){ size, offset });
}

// Takes the smallest free block that fits, ties by offset, else memory from the top.
static bool take(struct space * s, size_t size, size_t * offset) {
    const struct gb_plan_pair * best = gb_plan_pairs_from(&s->by_size, (struct gb_plan_pair){ size, 0 }, NULL);
    if (best == NULL) {
        *offset = s->top;
        s->top += size;
        s->high = GB_MAX(s->high, s->top);
        return true;
    }
    const size_t has = best->a;
    *offset = best->b;
    remove_block(s, *offset, has);
    return has == size || add_block(s, *offset + size, has - size);
}

// Frees a block and joins it with the free blocks that it touches.
static bool give_back(struct space * s, size_t offset, size_t size) {
    const struct gb_plan_pair * before;
    const struct gb_plan_pair * behind = gb_plan_pairs_from(&s->by_offset, (struct gb_plan_pair){ offset, 0 }, &before);
    const struct gb_plan_pair left = before ? *before : (struct gb_plan_pair){ 0 };
    if (behind && behind->a == offset + size) {
        const size_t more = behind->b;
        remove_block(s, offset + size, more);
        size += more;
    }
    if (left.b > 0 && left.a + left.b == offset) {
        remove_block(s, left.a, left.b);
        offset = left.a;
        size += left.b;
    }
    if (offset + size == s->top) {
        s->top = offset;
        return true;
    }
    return add_block(s, offset, size);
}

// Frees the dead buffers before each birth. Calls the poll, because thousands of buffers take
// milliseconds.
static enum ggml_status run(struct gb_plan_part * part, struct space * s, const uint32_t * begin,
    const uint32_t * order) {
    uint32_t ended = 0;
    for (uint32_t i = 0; i < part->n; i++) {
        if (i % GB_PLAN_POLL == 0) {
            GB_TRY(gb_check_poll());
        }
        for (const uint32_t end = begin[part->buffers[i].first + 1]; ended < end; ended++) {
            if (!give_back(s, part->trial[order[ended]], part->buffers[order[ended]].size)) {
                return GGML_STATUS_ALLOC_FAILED;
            }
        }
        if (!take(s, part->buffers[i].size, &part->trial[i])) {
            return GGML_STATUS_ALLOC_FAILED;
        }
    }
    return GGML_STATUS_SUCCESS;
}

enum ggml_status gb_plan_in_order(struct gb_plan_part * part, size_t * peak) {
    struct space s = { 0 };
    enum ggml_status status = GGML_STATUS_ALLOC_FAILED;
    uint32_t * begin = gb_calloc((size_t) part->n_sections + 2, sizeof(*begin));
    uint32_t * order = gb_calloc(part->n, sizeof(*order));
    if (begin && order) {
        group_by_death(part, begin, order);
        status = run(part, &s, begin, order);
    }
    *peak = s.high;
    gb_plan_pairs_free(&s.by_offset);
    gb_plan_pairs_free(&s.by_size);
    gb_free(begin);
    gb_free(order);
    return status;
}
