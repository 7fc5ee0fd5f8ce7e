// today.c - the graph allocator and the backend call of ggml-today.h. This graph allocator consists
// of a tensor allocator, whose buffer grows, and a graph allocator that uses it.
//
// Placing a graph again places all its tensors again that this allocator placed before, also in a
// buffer that it has freed since. It knows them by the stamps of its tensor allocators.
#define GGML_TODAY_DECLARATIONS_ONLY // this file calls the older forms
#include "ggml-today.h"

#include "alloc/alloc.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/vec.h"
#include "tensor/tensor.h"

struct place { // a tensor allocator that was `memory` once
    uint32_t id;
    ggml_backend_buffer_t buffer; // compared only; it may be freed
};

struct ggml_today_gallocr {
    ggml_backend_buffer_type_t buft; // borrowed
    ggml_gallocr_t graphs;           // owned
    ggml_tallocr_t memory;           // owned, with its buffer; NULL: no graph yet
    size_t size;                     // bytes that `memory` was made for
    GB_VEC(struct place) places;     // of all values of `memory`
};

ggml_today_gallocr_t ggml_today_gallocr_new(ggml_backend_buffer_type_t buft) {
    GB_CHECK_ARG_RETURNING(buft, NULL);
    struct ggml_today_gallocr * galloc = GB_NEW(struct ggml_today_gallocr);
    ggml_gallocr_t graphs = galloc != NULL ? ggml_gallocr_new() : NULL;
    if (graphs == NULL) {
        gb_free(galloc);
        return NULL;
    }
    galloc->buft = buft;
    galloc->graphs = graphs;
    return galloc;
}

void ggml_today_gallocr_free(ggml_today_gallocr_t galloc) {
    if (galloc != NULL) {
        ggml_gallocr_free(galloc->graphs);
        ggml_tallocr_free(galloc->memory);
        gb_vec_free(&galloc->places);
        gb_free(galloc);
    }
}

// Places the graph. The result of the older function, a size, is 0 on failure and for a graph
// without tensors to place.
static bool place(ggml_gallocr_t graphs, ggml_tallocr_t memory, struct ggml_cgraph * graph, size_t * size) {
    const uint64_t failures = gb_fail_count();
    *size = ggml_gallocr_alloc_graph(graphs, memory, graph);
    return gb_status_since(failures) == GGML_STATUS_SUCCESS;
}

static bool is_placed_here(ggml_today_gallocr_t galloc, const struct ggml_tensor * t) {
    for (size_t i = 0; i < galloc->places.n; i++) {
        if (t->buffer == galloc->places.data[i].buffer && gb_tensor_has_stamp(t, galloc->places.data[i].id)) {
            return true;
        }
    }
    return false;
}

// Takes the memory from the tensors of the graph that were placed here: views first, because they
// are known by their sources.
static void unplace_graph(ggml_today_gallocr_t galloc, const struct ggml_cgraph * graph) {
    for (int views = 1; views >= 0; views--) {
        for (int i = 0; i < graph->n_leafs + graph->n_nodes; i++) {
            struct ggml_tensor * t = i < graph->n_leafs ? graph->leafs[i] : graph->nodes[i - graph->n_leafs];
            struct ggml_tensor * root = t->view_src != NULL ? t->view_src : t;
            if (is_placed_here(galloc, root) && (t != root || views == 0)) {
                struct ggml_tensor * unplaced = views ? t : root;
                gb_tensor_put(unplaced, NULL, NULL);
                gb_tensor_set_stamp(unplaced, 0, 0);
            }
        }
    }
}

bool ggml_today_gallocr_reserve(ggml_today_gallocr_t galloc, struct ggml_cgraph * graph) {
    GB_CHECK_ARG_RETURNING(galloc, false);
    if (gb_graph_check(graph, "graph", "ggml_gallocr_reserve") != GGML_STATUS_SUCCESS) {
        return false;
    }
    unplace_graph(galloc, graph);
    ggml_tallocr_t measure = ggml_tallocr_new_measure_from_buft(galloc->buft);
    if (measure == NULL) {
        return false;
    }
    size_t size;
    const bool ok = place(galloc->graphs, measure, graph, &size);
    ggml_tallocr_free(measure);
    if (!ok || (galloc->memory != NULL && size <= galloc->size)) {
        return ok;
    }
    ggml_tallocr_t memory = ggml_tallocr_new_from_buft(galloc->buft, GB_MAX(size, (size_t) 1));
    if (memory == NULL || !gb_vec_push(&galloc->places, ((struct place){ memory->id, memory->buffer }))) {
        ggml_tallocr_free(memory);
        return false;
    }
    ggml_tallocr_free(galloc->memory);
    galloc->memory = memory;
    galloc->size = size;
    return true;
}

bool ggml_today_gallocr_alloc_graph(ggml_today_gallocr_t galloc, struct ggml_cgraph * graph) {
    size_t size;
    return ggml_today_gallocr_reserve(galloc, graph) && ggml_tallocr_reset(galloc->memory) == GGML_STATUS_SUCCESS &&
           place(galloc->graphs, galloc->memory, graph, &size);
}

size_t ggml_today_gallocr_get_buffer_size(ggml_today_gallocr_t galloc, int buffer_id) {
    GB_CHECK_ARG_RETURNING(galloc, 0);
    GB_FAIL_IF_RETURNING(buffer_id != 0, 0, GGML_STATUS_INVALID_ARGUMENT,
        "ggml_gallocr_get_buffer_size: there is no buffer %d", buffer_id);
    return galloc->memory != NULL ? ggml_backend_buffer_get_size(ggml_tallocr_get_buffer(galloc->memory)) : 0;
}

enum ggml_status ggml_today_backend_graph_compute(ggml_backend_t backend, struct ggml_cgraph * cgraph) {
    const uint64_t failures = gb_fail_count();
    if (ggml_backend_graph_compute(backend, cgraph)) {
        return GGML_STATUS_SUCCESS;
    }
    const enum ggml_status status = gb_status_since(failures);
    return status != GGML_STATUS_SUCCESS ? status : GGML_STATUS_FAILED;
}
