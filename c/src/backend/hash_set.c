// hash_set.c - the public sets of tensor addresses: open addressing, linear probing, a fixed number of slots.
//
// The first slot of a key is its address modulo the size, as in the visited sets of graphs, so these functions can
// search those as well. Keys are never removed.
#include "base/mem.h"
#include "base/status.h"
#include "ggml-alloc.h"

// n is odd and at least 1; 1 counts as prime.
static bool is_prime(size_t n) {
    for (size_t d = 3; d <= n / d; d += 2) {
        if (n % d == 0) {
            return false;
        }
    }
    return true;
}

// On failure the set has no slots (reported); it may be freed like any other.
struct ggml_hash_set ggml_hash_set_new(size_t min_size) {
    struct ggml_hash_set set = { 0, NULL };
    // no memory holds more keys than that, and the search for a prime stays short
    GB_FAIL_IF_RETURNING(min_size > SIZE_MAX >> 24, set, GGML_STATUS_ALLOC_FAILED,
        "%s: argument 'min_size': %zu is too large", __func__, min_size);
    size_t size = min_size | 1; // addresses are multiples of 16: a prime number of slots spreads them
    while (!is_prime(size)) {
        size += 2;
    }
    set.keys = gb_calloc(size, sizeof(*set.keys));
    set.size = set.keys ? size : 0;
    return set;
}

void ggml_hash_set_free(struct ggml_hash_set hash_set) { gb_free(hash_set.keys); }

// The slot of the key, or the free one where it belongs; GGML_HASHTABLE_FULL if there is neither.
size_t ggml_hash_find(const struct ggml_hash_set hash_set, struct ggml_tensor * key) {
    GB_CHECK_ARG_RETURNING(key, GGML_HASHTABLE_FULL);
    if (hash_set.keys == NULL || hash_set.size == 0) {
        return GGML_HASHTABLE_FULL;
    }
    size_t slot = (uintptr_t) key % hash_set.size;
    for (size_t tried = 0; tried < hash_set.size; tried++) {
        if (hash_set.keys[slot] == NULL || hash_set.keys[slot] == key) {
            return slot;
        }
        slot = slot + 1 == hash_set.size ? 0 : slot + 1;
    }
    return GGML_HASHTABLE_FULL;
}

bool ggml_hash_contains(const struct ggml_hash_set hash_set, struct ggml_tensor * key) {
    const size_t slot = ggml_hash_find(hash_set, key);
    return slot != GGML_HASHTABLE_FULL && hash_set.keys[slot] == key;
}

size_t ggml_hash_find_or_insert(struct ggml_hash_set hash_set, struct ggml_tensor * key) {
    const size_t slot = ggml_hash_find(hash_set, key);
    if (slot == GGML_HASHTABLE_FULL) {
        GB_FAIL_IF_RETURNING(key != NULL, slot, GGML_STATUS_ALLOC_FAILED, "%s: all %zu slots are taken", __func__,
            hash_set.size);
        return slot;
    }
    hash_set.keys[slot] = key;
    return slot;
}

size_t ggml_hash_insert(struct ggml_hash_set hash_set, struct ggml_tensor * key) {
    if (key != NULL && ggml_hash_contains(hash_set, key)) {
        return GGML_HASHTABLE_ALREADY_EXISTS;
    }
    return ggml_hash_find_or_insert(hash_set, key);
}
