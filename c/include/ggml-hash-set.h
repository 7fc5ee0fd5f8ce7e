// ggml-hash-set.h - sets of tensor addresses: open addressing, linear probing.
//
// ggml-alloc.h includes this header, because one of its functions takes such a set. In February
// 2024 these declarations were in ggml-impl.h.
#ifndef GGML_HASH_SET_H
#define GGML_HASH_SET_H

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

// cdef: begin

// find and insert return a slot, or GGML_HASHTABLE_FULL; insert of a known key GGML_HASHTABLE_ALREADY_EXISTS.
GGML_API struct ggml_hash_set ggml_hash_set_new(size_t min_size); // keys NULL on failure
GGML_API void ggml_hash_set_free(struct ggml_hash_set hash_set);
GGML_API size_t ggml_hash_find(const struct ggml_hash_set hash_set, struct ggml_tensor * key);
GGML_API bool ggml_hash_contains(const struct ggml_hash_set hash_set, struct ggml_tensor * key);
GGML_API size_t ggml_hash_insert(struct ggml_hash_set hash_set, struct ggml_tensor * key);
GGML_API size_t ggml_hash_find_or_insert(struct ggml_hash_set hash_set, struct ggml_tensor * key);

// cdef: end

#define GGML_HASHTABLE_FULL ((size_t) -1)
#define GGML_HASHTABLE_ALREADY_EXISTS ((size_t) -2)

#ifdef __cplusplus
}
#endif

#endif // GGML_HASH_SET_H
