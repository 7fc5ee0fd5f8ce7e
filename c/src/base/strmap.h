// strmap.h - a growing map from names to indices (integers >= 0).
//
// All zero is the empty map. Names are borrowed: they must outlive the map.
#ifndef GB_BASE_STRMAP_H
#define GB_BASE_STRMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gb_strmap {
    struct gb_strmap_slot {
        const char * key; // NULL = free
        uint64_t hash;
        int64_t value;
    } * slots;     // owned
    size_t n, cap; // cap: 0 or a power of two, at least twice n
};

#define GB_STRMAP_ABSENT (-1)

// The value of a name; GB_STRMAP_ABSENT if it is not in the map.
int64_t gb_strmap_get(const struct gb_strmap * map, const char * key);
// Reserves memory for n names, so that setting up to n names cannot fail. False: memory ran out
// (reported).
bool gb_strmap_reserve(struct gb_strmap * map, size_t n);
// Adds a name or changes its value. False: memory ran out, and the map is unchanged.
bool gb_strmap_set(struct gb_strmap * map, const char * key, int64_t value);
void gb_strmap_free(struct gb_strmap * map);

#endif // GB_BASE_STRMAP_H
