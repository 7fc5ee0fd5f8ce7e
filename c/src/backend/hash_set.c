// hash_set.c - the public sets of tensor addresses: open addressing, a fixed number of slots.
//
// They are searched like the visited sets of graphs (tensor/graph.c), so these functions can search
// those as well. Keys are never removed.
#include "base/mem.h"
#include "base/status.h"
#include "ggml-alloc.h"
#include "tensor/tensor.h"

// n is odd and at least 1; 1 counts as prime.
static bool is_prime(size_t n) {
    for (size_t d = 3; d <= n / d; d += 2) {
        if (n % d == 0) {
            return false;
        }
    }
    return true;
}

// On failure the set has no slots (reported). It may be freed like any other set.
struct ggml_hash_set ggml_hash_set_new(size_t min_size) {
    struct ggml_hash_set set = { 0, NULL };
    // Memory cannot hold more keys, and this limit keeps the search for a prime short.
    GB_FAIL_IF_RETURNING(min_size > SIZE_MAX >> 24, set, GGML_STATUS_ALLOC_FAILED,
        "%s: argument 'min_size': %zu is too large", __func__, min_size);
    size_t size = min_size | 1;  // addresses are multiples of 16; a prime spreads them
    while (!is_prime(size)) {
        size += 2;
    }
    set.keys = gb_calloc(size, sizeof(*set.keys));
    set.size = set.keys ? size : 0;
    return set;
}

void ggml_hash_set_free(struct ggml_hash_set hash_set) { gb_free(hash_set.keys); }

size_t ggml_hash_find(const struct ggml_hash_set hash_set, struct ggml_tensor * key) {
    GB_CHECK_ARG_RETURNING(key, GGML_HASHTABLE_FULL);
    struct ggml_tensor ** slot = hash_set.keys != NULL ? gb_hash_set_slot(hash_set, key) : NULL;
    return slot != NULL ? (size_t) (slot - hash_set.keys) : GGML_HASHTABLE_FULL;
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
