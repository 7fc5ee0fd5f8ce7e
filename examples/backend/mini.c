// mini.c - a small but complete backend, as a pattern for your own.
//
// The backend has its own memory (here: host memory), and adds and multiplies contiguous float32 tensors. The scheduler
// gives everything else to the next backend in the list. Build the backend as a module and load it,
//
//     cmake -S examples/backend -B build/mini && cmake --build build/mini      (against an installed ggml_backend)
//     ggml_backend_load("./build/mini/mini.so")                                from C
//     gb.backend.load_backend("build/mini/mini.so"); gb.Backend("MINI")        from Python
//
// or link this file into the program and call mini_register(). ggml-backend-impl.h says what each hook must do.
#include "mini.h"

#include <stdlib.h>
#include <string.h>

#include "ggml-backend-module.h"

GGML_BACKEND_MODULE("mini", mini_register)

enum { MINI_ALIGNMENT = 64 };

static struct ggml_backend_buffer_type mini_buffer_type;

// ------------------------------------------------------------------------------------------------------------- buffers
// The context of a buffer is its memory.

static GGML_CALL const char * buffer_name(ggml_backend_buffer_t buffer) {
    (void) buffer;
    return "MINI";
}

static GGML_CALL void buffer_free(ggml_backend_buffer_t buffer) { free(buffer->context); }

static GGML_CALL void * buffer_base(ggml_backend_buffer_t buffer) { return buffer->context; }

// The library has checked that the range lies in the tensor.
static GGML_CALL void buffer_set(ggml_backend_buffer_t buffer, struct ggml_tensor * tensor, const void * data,
    size_t offset, size_t size) {
    (void) buffer;
    memcpy((char *) tensor->data + offset, data, size);
}

static GGML_CALL void buffer_get(ggml_backend_buffer_t buffer, const struct ggml_tensor * tensor, void * data,
    size_t offset, size_t size) {
    (void) buffer;
    memcpy(data, (const char *) tensor->data + offset, size);
}

static GGML_CALL void buffer_clear(ggml_backend_buffer_t buffer, uint8_t value) {
    memset(buffer->context, value, buffer->size);
}

static const struct ggml_backend_buffer_i buffer_hooks = {
    .get_name = buffer_name,
    .free_buffer = buffer_free,
    .get_base = buffer_base,
    .set_tensor = buffer_set,
    .get_tensor = buffer_get,
    .clear = buffer_clear,
};

// --------------------------------------------------------------------------------------------------------- buffer type

static GGML_CALL const char * type_name(ggml_backend_buffer_type_t buft) {
    (void) buft;
    return "MINI";
}

static GGML_CALL ggml_backend_buffer_t type_alloc(ggml_backend_buffer_type_t buft, size_t size) {
    if (size > SIZE_MAX - MINI_ALIGNMENT) {
        ggml_report_error(GGML_STATUS_ALLOC_FAILED, "MINI: a buffer of %zu bytes is too large", size);
        return NULL;
    }
    const size_t padded = (size + MINI_ALIGNMENT - 1) / MINI_ALIGNMENT * MINI_ALIGNMENT;
    void * memory = aligned_alloc(MINI_ALIGNMENT, padded > 0 ? padded : MINI_ALIGNMENT);
    if (memory == NULL) {
        ggml_report_error(GGML_STATUS_ALLOC_FAILED, "MINI: no memory for a buffer of %zu bytes", size);
        return NULL;
    }
    ggml_backend_buffer_t buffer = ggml_backend_buffer_init(buft, buffer_hooks, memory, size);
    if (buffer == NULL) {
        free(memory);
    }
    return buffer;
}

static GGML_CALL size_t type_alignment(ggml_backend_buffer_type_t buft) {
    (void) buft;
    return MINI_ALIGNMENT;
}

static GGML_CALL const char * mini_name(ggml_backend_t backend);

static GGML_CALL bool type_supports_backend(ggml_backend_buffer_type_t buft, ggml_backend_t backend) {
    (void) buft;
    return backend->iface.get_name == mini_name; // it is a MINI backend
}

// No is_host hook: the host must not touch the memory, so the library copies through set_tensor and get_tensor.
static struct ggml_backend_buffer_type mini_buffer_type = {
    .iface = {
        .get_name         = type_name,
        .alloc_buffer     = type_alloc,
        .get_alignment    = type_alignment,
        .supports_backend = type_supports_backend,
    },
};

// ------------------------------------------------------------------------------------------------------------- backend

static GGML_CALL const char * mini_name(ggml_backend_t backend) {
    (void) backend;
    return "MINI";
}

static GGML_CALL void mini_free(ggml_backend_t backend) { free(backend); }

static GGML_CALL ggml_backend_buffer_type_t mini_default_buffer_type(ggml_backend_t backend) {
    (void) backend;
    return &mini_buffer_type;
}

// NULL only if mini_graph_compute can compute the node. The scheduler gives other nodes to another backend.
static GGML_CALL const char * mini_unsupported_reason(ggml_backend_t backend, const struct ggml_tensor * op) {
    (void) backend;
    switch (op->op) {
        case GGML_OP_NONE:
        case GGML_OP_VIEW:
        case GGML_OP_RESHAPE:
        case GGML_OP_PERMUTE:
        case GGML_OP_TRANSPOSE: return NULL; // nothing to compute
        case GGML_OP_ADD:
        case GGML_OP_MUL: break;
        default: return "only ADD and MUL";
    }
    const struct ggml_tensor * operands[] = { op, op->src[0], op->src[1] };
    for (int i = 0; i < 3; i++) {
        if (operands[i] == NULL || operands[i]->type != GGML_TYPE_F32 || !ggml_is_contiguous(operands[i])) {
            return "only contiguous f32 operands";
        }
    }
    return ggml_are_same_shape(op->src[0], op->src[1]) ? NULL : "no broadcasting";
}

static GGML_CALL bool mini_supports_op(ggml_backend_t backend, const struct ggml_tensor * op) {
    return mini_unsupported_reason(backend, op) == NULL;
}

static void compute_node(const struct ggml_tensor * node) {
    const int64_t n = ggml_nelements(node);
    const float * a = node->src[0]->data;
    const float * b = node->src[1]->data;
    float * y = node->data;
    for (int64_t i = 0; i < n; i++) {
        y[i] = node->op == GGML_OP_ADD ? a[i] + b[i] : a[i] * b[i];
    }
}

static GGML_CALL bool mini_graph_compute(ggml_backend_t backend, struct ggml_cgraph * graph) {
    for (int i = 0; i < graph->n_nodes; i++) {
        const struct ggml_tensor * node = graph->nodes[i];
        const char * reason = mini_unsupported_reason(backend, node);
        if (reason != NULL) { // the caller did not ask first
            ggml_report_error(GGML_STATUS_UNSUPPORTED, "MINI: node '%s' (%s): %s", ggml_get_name(node),
                ggml_op_desc(node), reason);
            return false;
        }
        if (node->op == GGML_OP_ADD || node->op == GGML_OP_MUL) {
            compute_node(node);
        }
    }
    return true;
}

static const struct ggml_backend_i mini_hooks = {
    .get_name = mini_name,
    .free = mini_free,
    .get_default_buffer_type = mini_default_buffer_type,
    .graph_compute = mini_graph_compute,
    .supports_op = mini_supports_op,
    .unsupported_reason = mini_unsupported_reason,
};

// ------------------------------------------------------------------------------------------------------------ registry

static GGML_CALL ggml_backend_t mini_init(const char * params, void * user_data) {
    (void) user_data;
    if (params != NULL && params[0] != '\0') {
        ggml_report_error(GGML_STATUS_INVALID_ARGUMENT, "MINI: takes no parameters, has \"%s\"", params);
        return NULL;
    }
    ggml_backend_t backend = malloc(sizeof(*backend));
    if (backend == NULL) {
        ggml_report_error(GGML_STATUS_ALLOC_FAILED, "MINI: no memory");
        return NULL;
    }
    *backend = (struct ggml_backend){ mini_hooks, NULL };
    return backend;
}

enum ggml_status mini_register(void) { return ggml_backend_register("MINI", mini_init, &mini_buffer_type, NULL); }
