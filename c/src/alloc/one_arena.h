// one_arena.h - the input of liveness.h for graphs that are planned before any memory exists: all
// results share one arena.
#ifndef GB_ALLOC_ONE_ARENA_H
#define GB_ALLOC_ONE_ARENA_H

#include "alloc/liveness.h"
#include "base/hash.h"

enum { GB_ONE_ARENA_ALIGNMENT = 32 };

// user_data: the map of gb_one_arena_input
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

// Gives a tensor the next id, unless it is a view or has an id. False: memory ran out.
static inline bool gb_one_arena_add(struct gb_ptrmap * ids, const struct ggml_tensor * t) {
    return t->view_src != NULL || gb_ptrmap_get(ids, t) != GB_PTRMAP_ABSENT || gb_ptrmap_set(ids, t, (int64_t) ids->n);
}

// The nodes of the graph, and the tensors in `ids`, which are placed. The input borrows both.
static inline struct gb_liveness_input gb_one_arena_input(const struct ggml_cgraph * graph, struct gb_ptrmap * ids) {
    return (struct gb_liveness_input) {
        .nodes = graph->nodes,
        .n_nodes = graph->n_nodes,
        .user_data = ids,
        .id_of = gb_one_arena_id_of,
        .n_ids = (int64_t) ids->n,
        .arena_of = gb_one_arena_of,
        .size_of = gb_one_arena_size_of,
    };
}

#endif // GB_ALLOC_ONE_ARENA_H
