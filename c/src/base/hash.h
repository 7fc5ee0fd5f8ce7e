// hash.h - a growing map from addresses to integers (mostly dense ids), and hash functions.
//
// All zero is the empty map, which owns nothing. Keys are not NULL, compared by address and not
// owned. The map is slow for many keys that lie less than 256 bytes apart.
#ifndef GB_BASE_HASH_H
#define GB_BASE_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// A key and its value, so that a look-up in a large map reads one cache line.
struct gb_ptrmap_slot {
    const void * key; // NULL = free slot
    int64_t value;
};
struct gb_ptrmap {
    struct gb_ptrmap_slot * slots; // owned
    size_t n;                      // keys stored
    size_t cap;                    // slots: 0 or a power of two, at least twice n
};

#define GB_PTRMAP_ABSENT INT64_MIN

// The value of a key; GB_PTRMAP_ABSENT if it is not in the map.
int64_t gb_ptrmap_get(const struct gb_ptrmap * map, const void * key);
// Adds a key or changes its value. False: memory ran out (reported), and the map is unchanged.
bool gb_ptrmap_set(struct gb_ptrmap * map, const void * key, int64_t value);
// Reserves memory for n keys, so that setting up to n keys cannot fail. False as above.
bool gb_ptrmap_reserve(struct gb_ptrmap * map, size_t n);
void gb_ptrmap_clear(struct gb_ptrmap * map);  // removes all keys, keeps the memory
void gb_ptrmap_free(struct gb_ptrmap * map);

// A full mix: every bit of x affects every bit of the result.
uint64_t gb_hash_u64(uint64_t x);
// FNV-1a with its result mixed by gb_hash_u64. The values are the same on every machine and in every run.
uint64_t gb_hash_bytes(const void * data, size_t size, uint64_t seed);

#endif // GB_BASE_HASH_H
