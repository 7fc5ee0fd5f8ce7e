// strmap.c - a hash table with open addressing and linear probing.
//
// The map stores hashes, so growing computes none, and a probe compares texts only if the hashes
// agree. At least half of the slots are free, so every probe ends.
#include "base/strmap.h"

#include <string.h>

#include "base/hash.h"
#include "base/mem.h"

static uint64_t hash_of(const char * key) { return gb_hash_bytes(key, strlen(key), 0); }

// The slot of the key, or the free slot for it, as in hash.c.
static struct gb_strmap_slot * slot_of(const struct gb_strmap * map, const char * key, uint64_t hash) {
    const size_t mask = map->cap - 1;
    for (size_t i = (size_t) hash & mask;; i = (i + 1) & mask) {
        struct gb_strmap_slot * s = &map->slots[i];
        if (s->key == NULL || (s->hash == hash && strcmp(s->key, key) == 0)) {
            return s;
        }
    }
}

int64_t gb_strmap_get(const struct gb_strmap * map, const char * key) {
    if (map->cap == 0) {
        return GB_STRMAP_ABSENT;
    }
    const struct gb_strmap_slot * s = slot_of(map, key, hash_of(key));
    return s->key ? s->value : GB_STRMAP_ABSENT;
}

// Doubles the table.
static bool grow(struct gb_strmap * map) {
    struct gb_strmap larger = { 0 };
    larger.cap = map->cap ? 2 * map->cap : 16;
    larger.n = map->n;
    larger.slots = gb_calloc(larger.cap, sizeof(*larger.slots));
    if (larger.slots == NULL) {
        return false;
    }
    for (size_t i = 0; i < map->cap; i++) {
        const struct gb_strmap_slot * s = &map->slots[i];
        if (s->key) {
            *slot_of(&larger, s->key, s->hash) = *s;
        }
    }
    gb_free(map->slots);
    *map = larger;
    return true;
}

bool gb_strmap_reserve(struct gb_strmap * map, size_t n) {
    while (n > map->cap / 2) {
        if (!grow(map)) {
            return false;
        }
    }
    return true;
}

bool gb_strmap_set(struct gb_strmap * map, const char * key, int64_t value) {
    if (!gb_strmap_reserve(map, map->n + 1)) {
        return false;
    }
    const uint64_t hash = hash_of(key);
    struct gb_strmap_slot * s = slot_of(map, key, hash);
    map->n += s->key == NULL;
    *s = (struct gb_strmap_slot){ s->key ? s->key : key, hash, value };
    return true;
}

void gb_strmap_free(struct gb_strmap * map) {
    gb_free(map->slots);
    *map = (struct gb_strmap){ 0 };
}
