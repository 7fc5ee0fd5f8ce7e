// allocr.c - the older interface: one tensor allocator and one graph allocator behind one handle.
//
// Each function checks the handle and forwards to tallocr.c and gallocr.c.
#include "alloc/alloc.h"
#include "base/mem.h"

struct ggml_allocr {
    ggml_tallocr_t talloc; // owned
    ggml_gallocr_t galloc; // owned
};

// Takes ownership of the tensor allocator, also on failure. NULL: making it failed, which is
// reported already.
static ggml_allocr_t allocr_of(ggml_tallocr_t talloc) {
    if (talloc == NULL) {
        return NULL;
    }
    struct ggml_allocr * alloc = GB_NEW(struct ggml_allocr);
    if (alloc) {
        alloc->galloc = ggml_gallocr_new();
    }
    if (alloc == NULL || alloc->galloc == NULL) {
        gb_free(alloc);
        ggml_tallocr_free(talloc);
        return NULL;
    }
    alloc->talloc = talloc;
    return alloc;
}

ggml_allocr_t ggml_allocr_new(void * data, size_t size, size_t alignment) {
    return allocr_of(ggml_tallocr_new(data, size, alignment));
}

ggml_allocr_t ggml_allocr_new_measure(size_t alignment) { return allocr_of(ggml_tallocr_new_measure(alignment)); }

ggml_allocr_t ggml_allocr_new_from_buffer(struct ggml_backend_buffer * buffer) {
    return allocr_of(ggml_tallocr_new_from_buffer(buffer));
}

ggml_allocr_t ggml_allocr_new_from_backend(struct ggml_backend * backend, size_t size) {
    return allocr_of(ggml_tallocr_new_from_backend(backend, size));
}

ggml_allocr_t ggml_allocr_new_measure_from_backend(struct ggml_backend * backend) {
    return allocr_of(ggml_tallocr_new_measure_from_backend(backend));
}

struct ggml_backend_buffer * ggml_allocr_get_buffer(ggml_allocr_t alloc) {
    GB_CHECK_ARG_RETURNING(alloc, NULL);
    return ggml_tallocr_get_buffer(alloc->talloc);
}

enum ggml_status ggml_allocr_set_parse_seq(ggml_allocr_t alloc, const int * list, int n) {
    GB_CHECK_ARG(alloc);
    return ggml_gallocr_set_parse_seq(alloc->galloc, list, n);
}

void ggml_allocr_free(ggml_allocr_t alloc) {
    if (alloc == NULL) {
        return;
    }
    ggml_gallocr_free(alloc->galloc);
    ggml_tallocr_free(alloc->talloc);
    gb_free(alloc);
}

bool ggml_allocr_is_measure(ggml_allocr_t alloc) {
    GB_CHECK_ARG_RETURNING(alloc, false);
    return ggml_tallocr_is_measure(alloc->talloc);
}

enum ggml_status ggml_allocr_reset(ggml_allocr_t alloc) {
    GB_CHECK_ARG(alloc);
    return ggml_tallocr_reset(alloc->talloc);
}

enum ggml_status ggml_allocr_alloc(ggml_allocr_t alloc, struct ggml_tensor * tensor) {
    GB_CHECK_ARG(alloc);
    return ggml_tallocr_alloc(alloc->talloc, tensor);
}

size_t ggml_allocr_max_size(ggml_allocr_t alloc) {
    GB_CHECK_ARG_RETURNING(alloc, 0);
    return ggml_tallocr_max_size(alloc->talloc);
}

size_t ggml_allocr_alloc_graph(ggml_allocr_t alloc, struct ggml_cgraph * graph) {
    GB_CHECK_ARG_RETURNING(alloc, 0);
    return ggml_gallocr_alloc_graph(alloc->galloc, alloc->talloc, graph);
}
