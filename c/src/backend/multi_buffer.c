// multi_buffer.c - several buffers behind one handle, for contexts larger than the largest allocation of a buffer type.
//
// A multi-buffer owns its parts and has neither a base address nor tensor hooks: the buffer of a tensor is always the
// part that holds it. Clear, usage, reset and free act on every part. The free hook identifies a multi-buffer.
#include <string.h>

#include "backend/backend.h"
#include "base/hash.h"
#include "base/mem.h"

// The context of a multi-buffer; at least one part.
struct multi_buffer {
    size_t n;
    ggml_backend_buffer_t parts[]; // owned
};

// All parts are of one kind, so the name of the first part serves.
static const char * GGML_CALL multi_name(ggml_backend_buffer_t buffer) {
    const struct multi_buffer * multi = buffer->context;
    return ggml_backend_buffer_name(multi->parts[0]);
}

static void GGML_CALL multi_free(ggml_backend_buffer_t buffer) {
    struct multi_buffer * multi = buffer->context;
    for (size_t i = 0; i < multi->n; i++) {
        ggml_backend_buffer_free(multi->parts[i]);
    }
    gb_free(multi);
}

// A buffer without this hook counts as retired. The library never calls it.
static void * GGML_CALL multi_base(ggml_backend_buffer_t buffer) {
    (void) buffer;
    return NULL;
}

static void GGML_CALL multi_clear(ggml_backend_buffer_t buffer, uint8_t value) {
    const struct multi_buffer * multi = buffer->context;
    for (size_t i = 0; i < multi->n; i++) {
        ggml_backend_buffer_clear(multi->parts[i], value);
    }
}

static void GGML_CALL multi_reset(ggml_backend_buffer_t buffer) {
    const struct multi_buffer * multi = buffer->context;
    for (size_t i = 0; i < multi->n; i++) {
        ggml_backend_buffer_reset(multi->parts[i]);
    }
}

// INVALID_ARGUMENT if a part occurs twice: it would be freed twice.
static enum ggml_status check_distinct(const ggml_backend_buffer_t * buffers, size_t n) {
    struct gb_ptrmap seen = { 0 };
    enum ggml_status status = GGML_STATUS_SUCCESS;
    for (size_t i = 0; i < n && status == GGML_STATUS_SUCCESS; i++) {
        if (gb_ptrmap_get(&seen, buffers[i]) != GB_PTRMAP_ABSENT) {
            status = gb_fail(GGML_STATUS_INVALID_ARGUMENT,
                "ggml_backend_multi_buffer_alloc_buffer: buffers[%zu], %s, occurs twice", i,
                ggml_backend_buffer_name(buffers[i]));
        } else if (!gb_ptrmap_set(&seen, buffers[i], (int64_t) i)) {
            status = GGML_STATUS_ALLOC_FAILED;
        }
    }
    gb_ptrmap_free(&seen);
    return status;
}

// On success, the multi-buffer owns the parts. On failure, the caller still owns them. The type is
// that of the first part.
ggml_backend_buffer_t ggml_backend_multi_buffer_alloc_buffer(ggml_backend_buffer_t * buffers, size_t n_buffers) {
    GB_CHECK_ARG_RETURNING(buffers, NULL);
    GB_FAIL_IF_RETURNING(n_buffers == 0, NULL, GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'n_buffers': needs at least 1, has 0", __func__);
    size_t total = 0, bytes;
    for (size_t i = 0; i < n_buffers; i++) {
        GB_FAIL_IF_RETURNING(buffers[i] == NULL, NULL, GGML_STATUS_INVALID_ARGUMENT, "%s: buffers[%zu] is NULL",
            __func__, i);
        GB_FAIL_IF_RETURNING(!gb_add_size(total, ggml_backend_buffer_get_size(buffers[i]), &total), NULL,
            GGML_STATUS_INVALID_ARGUMENT, "%s: the sizes of %zu buffers overflow", __func__, n_buffers);
    }
    GB_FAIL_IF_RETURNING(!gb_mul_size(n_buffers, sizeof(*buffers), &bytes) ||
                             !gb_add_size(bytes, sizeof(struct multi_buffer), &bytes),
        NULL, GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'n_buffers': %zu overflows", __func__, n_buffers);
    struct multi_buffer * multi = check_distinct(buffers, n_buffers) == GGML_STATUS_SUCCESS ? gb_malloc(bytes) : NULL;
    if (multi == NULL) {
        return NULL;
    }
    multi->n = n_buffers;
    memcpy(multi->parts, buffers, n_buffers * sizeof(*buffers));
    const struct ggml_backend_buffer_i iface = {
        .get_name = multi_name,
        .free_buffer = multi_free,
        .get_base = multi_base,
        .clear = multi_clear,
        .reset = multi_reset,
    };
    const ggml_backend_buffer_t buffer =
        ggml_backend_buffer_init(ggml_backend_buffer_get_type(buffers[0]), iface, multi, total);
    if (buffer == NULL) {
        gb_free(multi);
    }
    return buffer;
}

bool ggml_backend_buffer_is_multi_buffer(ggml_backend_buffer_t buffer) {
    GB_CHECK_ARG_RETURNING(buffer, false);
    return buffer->iface.free_buffer == multi_free;
}

// Schedulers read the usage of the parts, where the tensors are.
enum ggml_status ggml_backend_multi_buffer_set_usage(ggml_backend_buffer_t buffer,
    enum ggml_backend_buffer_usage usage) {
    GB_CHECK_ARG(buffer);
    GB_FAIL_IF(!ggml_backend_buffer_is_multi_buffer(buffer), GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'buffer': %s is no multi-buffer", __func__, ggml_backend_buffer_name(buffer));
    const struct multi_buffer * multi = buffer->context;
    for (size_t i = 0; i < multi->n; i++) {
        GB_TRY(ggml_backend_buffer_set_usage(multi->parts[i], usage));
    }
    GB_WRITE_RELAXED(buffer->usage, usage);
    return GGML_STATUS_SUCCESS;
}

ggml_backend_buffer_t gb_multi_buffer_part(ggml_backend_buffer_t buffer, size_t i) {
    if (!ggml_backend_buffer_is_multi_buffer(buffer)) {
        return NULL;
    }
    const struct multi_buffer * multi = buffer->context;
    return i < multi->n ? multi->parts[i] : NULL;
}
