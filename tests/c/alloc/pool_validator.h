// pool_validator.h - checks the invariant of a pool of offsets (alloc/offset_pool.h): free blocks
// are inside the pool, not empty, and sorted by offset. An allocated piece separates any two of
// them.
#ifndef GB_TESTS_POOL_VALIDATOR_H
#define GB_TESTS_POOL_VALIDATOR_H

#include "alloc/offset_pool.h"

static inline bool pool_is_valid(const struct gb_offset_pool * pool) {
    size_t last_end = 0;
    for (size_t i = 0; i < pool->n; i++) {
        const struct gb_free_block b = pool->blocks[i];
        if (b.size == 0 || b.offset < pool->start || b.offset > pool->end || b.size > pool->end - b.offset ||
            (i > 0 && b.offset <= last_end)) {
            return false;
        }
        last_end = b.offset + b.size;
    }
    return pool->n <= pool->n_live + 1;
}

#endif // GB_TESTS_POOL_VALIDATOR_H
