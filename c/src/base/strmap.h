// strmap.h - a growing map from names to indices. Names are borrowed: they must outlive the map. All zero is the empty
// map.
#ifndef GB_BASE_STRMAP_H
#define GB_BASE_STRMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gb_strmap {
    struct gb_strmap_slot {
        const char * key; // NULL = free
        uint64_t     hash;
        int64_t      value;
    } *    slots;  // owned
    size_t n, cap; // cap: 0 or a power of two, at least twice n
};

#define GB_STRMAP_ABSENT (-1)

int64_t gb_strmap_get(const struct gb_strmap * map, const char * key); // GB_STRMAP_ABSENT if not there
bool    gb_strmap_reserve(struct gb_strmap * map, size_t n); // room for n names: setting up to that many cannot fail
bool    gb_strmap_set(struct gb_strmap * map, const char * key, int64_t value); // false: out of memory, map unchanged
void    gb_strmap_free(struct gb_strmap * map);

#endif // GB_BASE_STRMAP_H
