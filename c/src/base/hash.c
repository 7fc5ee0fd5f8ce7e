// hash.c - hash functions, and the map from addresses to integers: open addressing with linear probing.
//
// Most keys are tensors. Tensors lie one after another in the memory of a context, and callers look
// them up in about that order. So neighbouring addresses within a page hash to neighbouring slots,
// and most look-ups hit a cache line that the previous look-up has read. Pages are spread over the
// map at random.
//
// Keys are never removed one by one, so a probe ends at the first free slot. At least half of the
// slots are free.
#include "hash.h"

#include <string.h>

#include "mem.h"

uint64_t gb_hash_u64(uint64_t x) {
    // The finaliser of SplitMix64 (Steele, Lea, Flood 2014).
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

// FNV-1a alone leaves the upper bits of short keys equal.
uint64_t gb_hash_bytes(const void * data, size_t size, uint64_t seed) {
    const uint8_t * bytes = data;
    uint64_t h = 0xcbf29ce484222325u ^ gb_hash_u64(seed);
    for (size_t i = 0; i < size; i++) {
        h = (h ^ bytes[i]) * 0x100000001b3u;
    }
    return gb_hash_u64(h);
}

// A page has 4096 bytes, with a slot for every 256 bytes. Tensors are longer, so each has its own
// slot.
#define KEY_BITS 8
#define PAGE_SLOT_BITS 4

// The slot that holds the key, or the free slot for it. The map must have slots.
static size_t slot_of(const struct gb_ptrmap * map, const void * key) {
    const size_t mask = map->cap - 1;
    const uintptr_t address = (uintptr_t) key, within = address >> KEY_BITS & (((uintptr_t) 1 << PAGE_SLOT_BITS) - 1);
    size_t i = ((size_t) gb_hash_u64(address >> (KEY_BITS + PAGE_SLOT_BITS)) << PAGE_SLOT_BITS | within) & mask;
    while (map->slots[i].key != NULL && map->slots[i].key != key) {
        i = (i + 1) & mask;
    }
    return i;
}

int64_t gb_ptrmap_get(const struct gb_ptrmap * map, const void * key) {
    if (map->cap == 0) {
        return GB_PTRMAP_ABSENT;
    }
    const size_t i = slot_of(map, key);
    return map->slots[i].key ? map->slots[i].value : GB_PTRMAP_ABSENT;
}

// Fills the new table before it frees the old one, so that a failure changes nothing.
bool gb_ptrmap_reserve(struct gb_ptrmap * map, size_t n) {
    if (n > SIZE_MAX / 64) {
        n = SIZE_MAX / 64; // fails below, with a message
    }
    size_t cap = map->cap ? map->cap : 16;
    while (cap < 2 * n) {
        cap *= 2;
    }
    if (cap == map->cap) {
        return true;
    }
    struct gb_ptrmap larger = { 0 };
    larger.cap = cap;
    larger.slots = gb_calloc(cap, sizeof(*larger.slots));
    if (larger.slots == NULL) {
        return false;
    }
    for (size_t i = 0; i < map->cap; i++) {
        if (map->slots[i].key) {
            larger.slots[slot_of(&larger, map->slots[i].key)] = map->slots[i];
        }
    }
    larger.n = map->n;
    gb_ptrmap_free(map);
    *map = larger;
    return true;
}

bool gb_ptrmap_set(struct gb_ptrmap * map, const void * key, int64_t value) {
    if (2 * (map->n + 1) > map->cap && !gb_ptrmap_reserve(map, map->n + 1)) {
        return false;
    }
    const size_t i = slot_of(map, key);
    map->n += map->slots[i].key == NULL;
    map->slots[i] = (struct gb_ptrmap_slot){ key, value };
    return true;
}

// For a map that is filled again with about as many keys.
void gb_ptrmap_clear(struct gb_ptrmap * map) {
    if (map->cap) {
        memset(map->slots, 0, map->cap * sizeof(*map->slots));
    }
    map->n = 0;
}

void gb_ptrmap_free(struct gb_ptrmap * map) {
    gb_free(map->slots);
    *map = (struct gb_ptrmap){ 0 };
}
