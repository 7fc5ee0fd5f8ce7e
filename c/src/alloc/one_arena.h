// one_arena.h - the functions of gb_liveness_input for graphs that are planned before any memory
// exists: all results share one arena.
#ifndef GB_ALLOC_ONE_ARENA_H
#define GB_ALLOC_ONE_ARENA_H

#include "base/hash.h"
#include "base/mem.h"
#include "ggml.h"

enum { GB_ONE_ARENA_ALIGNMENT = 32 };

// user_data: a gb_ptrmap from the tensors to be placed to their ids. -1: any other tensor
static inline int64_t gb_one_arena_id_of(void * user_data, const struct ggml_tensor * t) {
    const int64_t id = gb_ptrmap_get(user_data, t);
    return id == GB_PTRMAP_ABSENT ? -1 : id;
}

static inline int gb_one_arena_of(void * user_data, int64_t id, const struct ggml_tensor * t) {
    (void) user_data;
    (void) id;
    (void) t;
    return 0;
}

static inline size_t gb_one_arena_size_of(void * user_data, int64_t id, const struct ggml_tensor * t) {
    (void) user_data;
    (void) id;
    return GGML_PAD(ggml_nbytes(t), GB_ONE_ARENA_ALIGNMENT);
}

#endif // GB_ALLOC_ONE_ARENA_H
