// key.h - the record that a plan keeps of each tensor, to recognize the tensor, and to name it
// after it is freed.
//
// Records follow each other in the order of ids. A record has operator parameters only if one of
// them is not 0, and sources beyond the second only if there are some. Records are compared field
// by field, without hashes. Each run of a kept plan makes this comparison.
#ifndef GB_SCHED_INPUT_KEY_H
#define GB_SCHED_INPUT_KEY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/vec.h"
#include "tensor/tensor.h"

enum {
    GB_KEY_PARAMS = GGML_MAX_OP_PARAMS / sizeof(int32_t),
    GB_KEY_SRC = 2, // sources that each record stores
    GB_KEY_MORE = GGML_MAX_SRC - GB_KEY_SRC,
};

// The tensor when it was planned. Binding updates `buffer`, `data` and `state`. The parameters
// follow, then the sources beyond the second, then the name with its final 0.
struct gb_key {
    struct ggml_backend_buffer * buffer; // borrowed; all tensors here may be freed
    void * data;
    struct ggml_tensor * view_src;
    struct ggml_tensor * src[GB_KEY_SRC];
    size_t view_offs;
    int64_t ne[GGML_MAX_DIMS];
    size_t nb[GGML_MAX_DIMS];
    int32_t type, op;
    int32_t state; // gb_tensor_state
    bool has_params, has_more;
};

// All zero: empty. Pointers to keys are valid until the next key is added.
struct gb_keys {
    GB_VEC(uint64_t) words; // owned
    GB_VEC(size_t) at; // owned; per id: index in `words`
};

bool gb_keys_reserve(struct gb_keys * keys, size_t n); // reserves memory for n tensors. False: no memory
bool gb_keys_add(struct gb_keys * keys, const struct ggml_tensor * tensor); // adds the next id. False: no memory
void gb_keys_free(struct gb_keys * keys);

static inline struct gb_key * gb_key_of(const struct gb_keys * keys, int64_t id) {
    return (struct gb_key *) (void *) (keys->words.data + keys->at.data[id]);
}

static inline const int32_t * gb_key_params(const struct gb_key * key) {
    return (const int32_t *) (const void *) (key + 1);
}
static inline struct ggml_tensor * const * gb_key_more(const struct gb_key * key) {
    return (struct ggml_tensor * const *) (const void *) (gb_key_params(key) + (key->has_params ? GB_KEY_PARAMS : 0));
}
static inline const char * gb_key_name(const struct gb_key * key) {
    return (const char *) (gb_key_more(key) + (key->has_more ? GB_KEY_MORE : 0));
}

// ggml_nbytes of the tensor.
static inline size_t gb_key_nbytes(const struct gb_key * key) {
    struct ggml_tensor t = { .type = (enum ggml_type) key->type };
    memcpy(t.ne, key->ne, sizeof(t.ne));
    memcpy(t.nb, key->nb, sizeof(t.nb));
    return ggml_nbytes(&t);
}

// True if an operator has parameters, or more sources than each record stores. The loops have no
// branches, so that compilers vectorize them.
static inline bool gb_key_wants_params(const struct ggml_tensor * t) {
    int32_t any = 0;
    for (int i = 0; i < GB_KEY_PARAMS; i++) {
        any |= t->op_params[i];
    }
    return any != 0;
}
static inline bool gb_key_wants_more(const struct ggml_tensor * t) {
    uintptr_t any = 0;
    for (int i = GB_KEY_SRC; i < GGML_MAX_SRC; i++) {
        any |= (uintptr_t) t->src[i];
    }
    return any != 0;
}

// True if the tensor equals the record in everything that planning depends on, except for places.
// The mark "read once" belongs to the plan and is not compared.
static inline bool gb_key_is_like(const struct gb_key * key, const struct ggml_tensor * t) {
    const bool params = key->has_params ? memcmp(gb_key_params(key), t->op_params, GB_KEY_PARAMS * sizeof(int32_t)) == 0
                                        : !gb_key_wants_params(t);
    const bool more = key->has_more ? memcmp(gb_key_more(key), t->src + GB_KEY_SRC, GB_KEY_MORE * sizeof(*t->src)) == 0
                                    : !gb_key_wants_more(t);
    uint64_t shape = 0;
    for (int i = 0; i < GGML_MAX_DIMS; i++) {
        shape |= (uint64_t) (key->ne[i] ^ t->ne[i]) | (uint64_t) (key->nb[i] ^ t->nb[i]);
    }
    return params && more && shape == 0 && key->type == (int32_t) t->type && key->op == (int32_t) t->op &&
           key->src[0] == t->src[0] && key->src[1] == t->src[1] && key->view_src == t->view_src &&
           key->view_offs == t->view_offs && key->state == gb_tensor_state(t);
}

#endif // GB_SCHED_INPUT_KEY_H
