// one_arena.h - the functions of gb_liveness_input for a graph whose nodes share one arena. Leafs
// are outside of it. `user` is a gb_ptrmap of the storages' ids.
#ifndef GB_TESTS_ONE_ARENA_H
#define GB_TESTS_ONE_ARENA_H

#include "base/hash.h"
#include "tensor/tensor.h"

static inline int64_t id_of(void * user, const struct ggml_tensor * t) {
    const int64_t id = gb_ptrmap_get(user, t);
    return id == GB_PTRMAP_ABSENT ? -1 : id;
}

static inline int arena_of(void * user, int64_t id, const struct ggml_tensor * t) {
    (void) user;
    (void) id;
    return t->op == GGML_OP_NONE ? -1 : 0;
}

static inline size_t size_of(void * user, int64_t id, const struct ggml_tensor * t) {
    (void) user;
    (void) id;
    return ggml_nbytes(t);
}

#endif // GB_TESTS_ONE_ARENA_H
