// offset_pool.h - a range of offsets from which pieces are taken, and to which they are returned.
// It knows nothing of memory and tensors.
//
// Invariant: the free blocks are sorted by offset and not empty, and no two touch. Returning a
// piece cannot fail, because taking it reserves the table entry.
#ifndef GB_ALLOC_OFFSET_POOL_H
#define GB_ALLOC_OFFSET_POOL_H

#include <stdbool.h>
#include <stddef.h>

struct gb_free_block {
    size_t offset, size;
};

// All zero: an empty range.
struct gb_offset_pool {
    struct gb_free_block * blocks; // owned
    size_t n, cap;
    size_t n_live; // pieces in use
    size_t start, end;
    size_t high; // highest end of a piece since init, relative to start; survives gb_pool_reset
};

enum gb_pool_result { GB_POOL_OK, GB_POOL_FULL, GB_POOL_NO_MEMORY };

bool gb_pool_init(struct gb_offset_pool * pool, size_t start, size_t end); // false: no host memory (reported)
void gb_pool_free(struct gb_offset_pool * pool);
void gb_pool_reset(struct gb_offset_pool * pool); // frees all pieces
bool gb_pool_copy(struct gb_offset_pool * to, const struct gb_offset_pool * from); // `to` is uninitialised

// Best fit; the last block is used only if no other fits. A piece of size 0 is at `start` and takes
// nothing. NO_MEMORY is reported. FULL is not, because only the caller knows the name of the
// tensor.
enum gb_pool_result gb_pool_take(struct gb_offset_pool * pool, size_t size, size_t * offset);
void gb_pool_give_back(struct gb_offset_pool * pool, size_t offset, size_t size);

size_t gb_pool_largest_free(const struct gb_offset_pool * pool);

#endif // GB_ALLOC_OFFSET_POOL_H
