// faulty.c - a device with one defect that its parameter names: FAULTY:overrun. Without a parameter
// it is correct. tests/python/backends/test_check_device.py finds each defect.
//
// It adds, multiplies, negates and clips at 0, in float32 with any strides and repeats. It
// multiplies contiguous matrices. Its memory is private.
#include <stdlib.h>
#include <string.h>

#include "ggml-backend-module.h"

static enum ggml_status faulty_register(void);

GGML_BACKEND_MODULE("faulty", faulty_register)

enum { ALIGNMENT = 64, LARGEST = 1 << 26 };

struct memory {
    char * base;
    size_t before; // bytes from the allocated block to base
};

static char defect[64];

static struct ggml_backend_buffer_type faulty_buffer_type;

static bool has(const char * name) { return strcmp(defect, name) == 0; }

// ------------------------------------------------------------------------------------------------------------- buffers

static GGML_CALL const char * buffer_name(ggml_backend_buffer_t buffer) {
    (void) buffer;
    return "FAULTY";
}

static GGML_CALL void buffer_free(ggml_backend_buffer_t buffer) {
    struct memory * memory = buffer->context;
    if (!has("leak")) {
        free(memory->base - memory->before);
    }
    free(memory);
}

static GGML_CALL void * buffer_base(ggml_backend_buffer_t buffer) { return ((struct memory *) buffer->context)->base; }

static GGML_CALL void buffer_set(ggml_backend_buffer_t buffer, struct ggml_tensor * tensor, const void * data,
    size_t offset, size_t size) {
    (void) buffer;
    memcpy((char *) tensor->data + (has("set_offset") ? 0 : offset), data, size);
}

static GGML_CALL void buffer_get(ggml_backend_buffer_t buffer, const struct ggml_tensor * tensor, void * data,
    size_t offset, size_t size) {
    (void) buffer;
    memcpy(data, (const char *) tensor->data + offset, has("get_size") && size > 8 ? size / 2 : size);
}

static GGML_CALL bool buffer_copy(ggml_backend_buffer_t buffer, const struct ggml_tensor * src,
    struct ggml_tensor * dst) {
    (void) buffer;
    return has("copy") && src->buffer->buft == dst->buffer->buft; // reports success without copying
}

static GGML_CALL void buffer_clear(ggml_backend_buffer_t buffer, uint8_t value) {
    memset(buffer_base(buffer), value, has("clear") ? buffer->size / 2 : buffer->size);
}

static const struct ggml_backend_buffer_i buffer_hooks = {
    .get_name = buffer_name,
    .free_buffer = buffer_free,
    .get_base = buffer_base,
    .set_tensor = buffer_set,
    .get_tensor = buffer_get,
    .cpy_tensor = buffer_copy,
    .clear = buffer_clear,
};

static GGML_CALL const char * type_name(ggml_backend_buffer_type_t buft) {
    (void) buft;
    return "FAULTY";
}

static GGML_CALL ggml_backend_buffer_t type_alloc(ggml_backend_buffer_type_t buft, size_t size) {
    // space before and after, so stray writes are harmless and detectable
    const size_t given = size <= LARGEST ? size : LARGEST;
    struct memory * memory = size > given ? NULL : malloc(sizeof(*memory));
    char * base = memory ? aligned_alloc(ALIGNMENT, (given / ALIGNMENT + 6) * ALIGNMENT) : NULL;
    if (base == NULL) {
        free(memory);
        ggml_report_error(GGML_STATUS_ALLOC_FAILED, "FAULTY: no memory for a buffer of %zu bytes", size);
        return NULL;
    }
    const size_t before = ALIGNMENT + (has("alignment") ? 8 : 0);
    *memory = (struct memory){ base + before, before };
    return ggml_backend_buffer_init(buft, buffer_hooks, memory, size);
}

static GGML_CALL size_t type_alignment(ggml_backend_buffer_type_t buft) {
    (void) buft;
    return ALIGNMENT;
}

static GGML_CALL size_t type_max_size(ggml_backend_buffer_type_t buft) {
    (void) buft;
    return LARGEST;
}

static GGML_CALL const char * faulty_name(ggml_backend_t backend) {
    (void) backend;
    return "FAULTY";
}

static GGML_CALL bool type_supports_backend(ggml_backend_buffer_type_t buft, ggml_backend_t backend) {
    (void) buft;
    return backend->iface.get_name == faulty_name;
}

static struct ggml_backend_buffer_type faulty_buffer_type = {
    .iface = {
        .get_name         = type_name,
        .alloc_buffer     = type_alloc,
        .get_alignment    = type_alignment,
        .get_max_size     = type_max_size,
        .supports_backend = type_supports_backend,
    },
};

// ----------------------------------------------------------------------------------------------------------- operators

static GGML_CALL const char * unsupported_reason(ggml_backend_t backend, const struct ggml_tensor * op) {
    (void) backend;
    const struct ggml_tensor *a = op->src[0], *b = op->src[1];
    bool contiguous = true;
    switch (op->op) {
        case GGML_OP_NONE:
        case GGML_OP_VIEW:
        case GGML_OP_RESHAPE:
        case GGML_OP_PERMUTE:
        case GGML_OP_TRANSPOSE: return NULL;
        case GGML_OP_ADD:
        case GGML_OP_MUL: break;
        case GGML_OP_SQR:
            if (!has("supports")) {
                return "no squares";
            }
            break;
        case GGML_OP_UNARY:
            if (ggml_get_unary_op(op) != GGML_UNARY_OP_NEG && ggml_get_unary_op(op) != GGML_UNARY_OP_RELU) {
                return "only NEG and RELU";
            }
            break;
        case GGML_OP_MUL_MAT:
            contiguous = ggml_is_contiguous(a) && ggml_is_contiguous(b);
            if (a->ne[2] * a->ne[3] * b->ne[2] * b->ne[3] != 1) {
                return "no stacks of matrices";
            }
            break;
        default: return "unknown operator";
    }
    const bool floats = op->type == GGML_TYPE_F32 && a->type == GGML_TYPE_F32 && (!b || b->type == GGML_TYPE_F32);
    return !floats ? "only float32" : !contiguous ? "only contiguous matrices" : NULL;
}

static GGML_CALL bool supports_op(ggml_backend_t backend, const struct ggml_tensor * op) {
    return unsupported_reason(backend, op) == NULL;
}

static float * at(const struct ggml_tensor * t, const int64_t i[4]) {
    size_t offset = 0;
    for (int d = 0; d < 4; d++) {
        const int64_t k = has("broadcast") && t->ne[d] > 0 && i[d] >= t->ne[d] ? 0 : i[d] % t->ne[d];
        offset += (size_t) k *
                  (has("strides") && d > 0 ? t->nb[0] * (size_t) t->ne[0] * (size_t) (d > 1 ? t->ne[1] : 1) : t->nb[d]);
    }
    return (float *) (void *) ((char *) t->data + offset);
}

static float value_of(const struct ggml_tensor * node, const int64_t i[4]) {
    const float a = *at(node->src[0], i);
    if (node->op == GGML_OP_UNARY) {
        const bool relu = ggml_get_unary_op(node) == GGML_UNARY_OP_RELU;
        return !relu ? -a : has("nan") ? (a > 0 ? a : 0) : (a < 0 ? 0 : a);
    }
    const float b = *at(node->src[1], i);
    return node->op == GGML_OP_ADD ? a + b + (has("values") ? 1e-4f : 0) : a * b;
}

static void elements(const struct ggml_tensor * node) {
    const int64_t n = ggml_nelements(node);
    const int64_t last = has("tail") && n > 4 ? n / 4 * 4 : n;
    if (has("in_place") && n > 0) {
        memset(node->data, 0, ggml_nbytes(node));
    }
    for (int64_t k = 0; k < last; k++) {
        const int64_t i[4] = { k % node->ne[0], k / node->ne[0] % node->ne[1],
            k / node->ne[0] / node->ne[1] % node->ne[2], k / node->ne[0] / node->ne[1] / node->ne[2] };
        *at(node, i) = value_of(node, i);
    }
}

static void product(const struct ggml_tensor * node) {
    const int64_t k = node->src[0]->ne[0];
    for (int64_t j = 0; j < node->ne[1]; j++) {
        for (int64_t i = 0; i < node->ne[0]; i++) {
            const float *a = (const float *) node->src[0]->data + i * k,
                        *b = (const float *) node->src[1]->data + j * k;
            float sum = 0;
            for (int64_t l = 0; l < k; l++) {
                sum += a[l] * b[l];
            }
            ((float *) node->data)[j * node->ne[0] + i] = has("products") ? sum * 1.001f : sum;
        }
    }
}

static void compute(const struct ggml_tensor * node) {
    if (node->op == GGML_OP_MUL_MAT) {
        product(node);
    } else {
        elements(node);
    }
    float * y = node->data;
    if (ggml_nelements(node) > 0 && ggml_is_contiguous(node)) {
        if (has("overrun")) {
            y[ggml_nelements(node)] = 1;
        } else if (has("underrun")) {
            y[-1] = 1;
        } else if (has("source") && node->src[0]->data != node->data) {
            ((float *) node->src[0]->data)[0] += 1;
        }
    }
}

// ------------------------------------------------------------------------------------------------------------- backend

static GGML_CALL void faulty_free(ggml_backend_t backend) { free(backend); }

static GGML_CALL ggml_backend_buffer_type_t default_buffer_type(ggml_backend_t backend) {
    (void) backend;
    return &faulty_buffer_type;
}

static bool has_work(const struct ggml_tensor * node) {
    return node->op != GGML_OP_NONE && node->op != GGML_OP_VIEW && node->op != GGML_OP_RESHAPE &&
           node->op != GGML_OP_PERMUTE && node->op != GGML_OP_TRANSPOSE;
}

static GGML_CALL bool graph_compute(ggml_backend_t backend, struct ggml_cgraph * graph) {
    static const void * seen[4096]; // addresses of earlier results
    static int n_seen;
    for (int i = 0; i < graph->n_nodes; i++) {
        const struct ggml_tensor * node = graph->nodes[i];
        const char * reason = unsupported_reason(backend, node);
        if (node->op == GGML_OP_SQR || (has("raises") && node->op == GGML_OP_ADD)) {
            reason = "not here";
        }
        if (reason != NULL && has("silent")) {
            continue;
        }
        if (reason != NULL) {
            ggml_report_error(GGML_STATUS_UNSUPPORTED, "FAULTY: node '%s' (%s): %s", ggml_get_name(node),
                ggml_op_desc(node), reason);
            return false;
        }
        if (has("stale")) { // a plan that returns old results
            bool known = false;
            for (int k = 0; k < n_seen; k++) {
                known |= seen[k] == (const void *) node;
            }
            if (known) {
                continue;
            }
            seen[n_seen++ % 4096] = node;
            n_seen = n_seen > 4096 ? 4096 : n_seen;
        }
        if (has_work(node)) {
            compute(node);
        }
    }
    return true;
}

static const struct ggml_backend_i hooks = {
    .get_name = faulty_name,
    .free = faulty_free,
    .get_default_buffer_type = default_buffer_type,
    .graph_compute = graph_compute,
    .supports_op = supports_op,
    .unsupported_reason = unsupported_reason,
};

static GGML_CALL ggml_backend_t faulty_init(const char * params, void * user_data) {
    (void) user_data;
    ggml_backend_t backend = malloc(sizeof(*backend));
    const size_t n = params != NULL ? strlen(params) : 0;
    if (backend == NULL || n >= sizeof(defect)) {
        free(backend);
        ggml_report_error(GGML_STATUS_INVALID_ARGUMENT, "FAULTY: cannot be made");
        return NULL;
    }
    memcpy(defect, params != NULL ? params : "", n + 1);
    *backend = (struct ggml_backend){ hooks, NULL };
    return backend;
}

static enum ggml_status faulty_register(void) {
    return ggml_backend_register("FAULTY", faulty_init, &faulty_buffer_type, NULL);
}
