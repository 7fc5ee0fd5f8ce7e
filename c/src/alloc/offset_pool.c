// offset_pool.c - the free list: an array sorted by offset.
//
// Best fit is a linear search, which is fast enough for the few free blocks of a graph. Neighbours
// are found by binary search. The pool does not list pieces in use, because the caller returns
// offset and size.
#include "alloc/offset_pool.h"

#include <string.h>

#include "base/mem.h"
#include "base/thread.h"
#include "base/vec.h"

bool gb_pool_init(struct gb_offset_pool * pool, size_t start, size_t end) {
    *pool = (struct gb_offset_pool){ 0 };
    pool->start = start;
    pool->end = end;
    if (!gb_vec_grow((void **) &pool->blocks, &pool->cap, 1, sizeof(*pool->blocks))) {
        return false;
    }
    gb_pool_reset(pool);
    return true;
}

void gb_pool_free(struct gb_offset_pool * pool) {
    gb_free(pool->blocks);
    *pool = (struct gb_offset_pool){ 0 };
}

void gb_pool_reset(struct gb_offset_pool * pool) {
    pool->n = 0;
    pool->n_live = 0;
    if (pool->end > pool->start) {
        pool->blocks[0] = (struct gb_free_block){ pool->start, pool->end - pool->start };
        pool->n = 1;
    }
}

// The copy has the capacity of the original, so returning a piece to it cannot fail.
bool gb_pool_copy(struct gb_offset_pool * to, const struct gb_offset_pool * from) {
    *to = *from;
    to->blocks = gb_malloc(from->cap * sizeof(*from->blocks));
    if (to->blocks == NULL) {
        *to = (struct gb_offset_pool){ 0 };
        return false;
    }
    memcpy(to->blocks, from->blocks, from->n * sizeof(*from->blocks));
    return true;
}

// The index of the smallest free block of at least `size` bytes; of equal blocks the first. n if
// none fits. The last block is used only if no other fits: it is usually the end of the range, and
// taking from it may raise the high-water mark.
static size_t best_fit(const struct gb_offset_pool * pool, size_t size) {
    size_t best = pool->n;
    for (size_t i = 0; i + 1 < pool->n; i++) {
        if (pool->blocks[i].size >= size && (best == pool->n || pool->blocks[i].size < pool->blocks[best].size)) {
            best = i;
        }
    }
    if (best == pool->n && pool->n > 0 && pool->blocks[pool->n - 1].size >= size) {
        best = pool->n - 1;
    }
    return best;
}

enum gb_pool_result gb_pool_take(struct gb_offset_pool * pool, size_t size, size_t * offset) {
    *offset = pool->start;
    if (size == 0) {
        return GB_POOL_OK;
    }
    // n_live pieces separate at most n_live + 1 free blocks; the new piece is one more.
    if (pool->n_live + 2 > pool->cap &&
        !gb_vec_grow((void **) &pool->blocks, &pool->cap, pool->n_live + 2, sizeof(*pool->blocks))) {
        return GB_POOL_NO_MEMORY;
    }
    const size_t i = best_fit(pool, size);
    if (i == pool->n) {
        return GB_POOL_FULL;
    }
    struct gb_free_block * block = &pool->blocks[i];
    *offset = block->offset;
    block->offset += size;
    block->size -= size;
    if (block->size == 0) { // used up; by the invariant no block is empty
        memmove(block, block + 1, (pool->n - i - 1) * sizeof(*block));
        pool->n--;
    }
    pool->n_live++;
    GB_WRITE_RELAXED(pool->high, GB_MAX(pool->high, *offset + size - pool->start)); // other threads may read it
    return GB_POOL_OK;
}

void gb_pool_give_back(struct gb_offset_pool * pool, size_t offset, size_t size) {
    if (size == 0) {
        return;
    }
    size_t low = 0, high = pool->n; // the first block above the piece
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (pool->blocks[middle].offset < offset) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    // Neighbours are merged at once, so a piece touches at most one block on either side.
    struct gb_free_block * const next = pool->blocks + low;
    const bool joins_lo = low > 0 && next[-1].offset + next[-1].size == offset;
    const bool joins_hi = low < pool->n && offset + size == next->offset;
    if (joins_lo && joins_hi) {
        next[-1].size += size + next->size;
        memmove(next, next + 1, (pool->n - low - 1) * sizeof(*next));
        pool->n--;
    } else if (joins_lo) {
        next[-1].size += size;
    } else if (joins_hi) {
        next->offset = offset;
        next->size += size;
    } else {
        memmove(next + 1, next, (pool->n - low) * sizeof(*next));
        *next = (struct gb_free_block){ offset, size };
        pool->n++;
    }
    pool->n_live--;
}

size_t gb_pool_largest_free(const struct gb_offset_pool * pool) {
    size_t largest = 0;
    for (size_t i = 0; i < pool->n; i++) {
        largest = GB_MAX(largest, pool->blocks[i].size);
    }
    return largest;
}
