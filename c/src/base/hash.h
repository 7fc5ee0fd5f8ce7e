// hash.h - a growing map from addresses to integers (dense ids, mostly). All zero is the empty map. Keys are never
// NULL.
#ifndef GB_BASE_HASH_H
#define GB_BASE_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gb_ptrmap {
    const void ** keys;   // owned; NULL = free slot
    int64_t *     values; // owned
    size_t        n;      // keys stored
    size_t        cap;    // slots: 0 or a power of two, at least twice n
};

#define GB_PTRMAP_ABSENT INT64_MIN

int64_t gb_ptrmap_get(const struct gb_ptrmap * map, const void * key);          // GB_PTRMAP_ABSENT if not there
bool    gb_ptrmap_set(struct gb_ptrmap * map, const void * key, int64_t value); // false: out of memory, map unchanged
bool    gb_ptrmap_reserve(struct gb_ptrmap * map, size_t n);
void    gb_ptrmap_clear(struct gb_ptrmap * map); // keeps its memory
void    gb_ptrmap_free(struct gb_ptrmap * map);

// a full mix: every input bit moves every output bit
uint64_t gb_hash_u64(uint64_t x);
uint64_t gb_hash_bytes(const void * data, size_t size, uint64_t seed); // FNV-1a folded through gb_hash_u64

static inline uint64_t gb_hash_ptr(const void * p) { return gb_hash_u64((uint64_t) (uintptr_t) p); }

#endif // GB_BASE_HASH_H
