// cpu_buffer.c - buffers in host memory: aligned memory, the caller's memory (from_ptr), or
// high-bandwidth memory (optional).
//
// The buffer's context is the address of its first byte. The three kinds share their hooks, except
// those that free the memory and name the buffer.
#include <string.h>

#include "base/current.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/text.h"
#include "cpu/cpu.h"
#include "ggml-backend-impl.h"
#include "tensor/tensor.h"

#ifdef GGML_USE_CPU_HBM
#    include <hbwmalloc.h>
#endif

#define ALIGNMENT 64

// ---------------------------------------------------------------------------------------------------- copying elements

// True if bytes [0, nbytes) hold the tensor's elements and nothing else. Then one memmove copies
// them.
static bool is_dense(const struct ggml_tensor * t) {
    return (size_t) ggml_nelements(t) / (size_t) ggml_blck_size(t->type) * ggml_type_size(t->type) == ggml_nbytes(t);
}

void gb_cpu_copy_elements(void * to, const void * from, const struct ggml_tensor * layout) {
    if (ggml_nelements(layout) == 0) {
        return;
    }
    if (is_dense(layout)) {
        memmove(to, from, ggml_nbytes(layout));
        return;
    }
    const size_t item = ggml_type_size(layout->type);
    const int64_t items = layout->ne[0] / ggml_blck_size(layout->type);
    const bool rows = layout->nb[0] == item;
    for (int64_t r = 0; r < ggml_nrows(layout); r++) { // bytes between the rows stay unchanged
        const int64_t plane = r / layout->ne[1];
        const int64_t i1 = r % layout->ne[1], i2 = plane % layout->ne[2], i3 = plane / layout->ne[2];
        const size_t offs = (size_t) i1 * layout->nb[1] + (size_t) i2 * layout->nb[2] + (size_t) i3 * layout->nb[3];
        if (rows) {
            memmove((char *) to + offs, (const char *) from + offs, (size_t) items * item);
            continue;
        }
        for (int64_t i = 0; i < items; i++) {
            memmove((char *) to + offs + (size_t) i * layout->nb[0],
                (const char *) from + offs + (size_t) i * layout->nb[0], item);
        }
    }
}

// --------------------------------------------------------------------------------------------------------------- hooks

static GGML_CALL const char * buffer_name(ggml_backend_buffer_t buffer) {
    (void) buffer;
    return "CPU";
}

static GGML_CALL void buffer_free(ggml_backend_buffer_t buffer) { gb_aligned_free(buffer->context); }

static GGML_CALL void * buffer_base(ggml_backend_buffer_t buffer) { return buffer->context; }

static GGML_CALL void buffer_set(ggml_backend_buffer_t buffer, struct ggml_tensor * tensor, const void * data,
    size_t offset, size_t size) {
    (void) buffer;
    memmove((char *) tensor->data + offset, data, size); // `data` may be the tensor's own memory
}

static GGML_CALL void buffer_get(ggml_backend_buffer_t buffer, const struct ggml_tensor * tensor, void * data,
    size_t offset, size_t size) {
    (void) buffer;
    memmove(data, (const char *) tensor->data + offset, size);
}

// False: the host cannot read the source's memory, and the caller uses another path.
static GGML_CALL bool buffer_copy(ggml_backend_buffer_t buffer, const struct ggml_tensor * src,
    struct ggml_tensor * dst) {
    (void) buffer;
    const ggml_backend_buffer_t from = gb_root(src)->buffer;
    if (from == NULL || !ggml_backend_buffer_is_host(from)) {
        return false;
    }
    gb_cpu_copy_elements(dst->data, src->data, dst);
    return true;
}

static GGML_CALL void buffer_clear(ggml_backend_buffer_t buffer, uint8_t value) {
    (void) gb_fill(buffer->context, value, buffer->size); // reports an interrupt
}

// free_buffer NULL: the buffer does not own its memory.
static struct ggml_backend_buffer_i buffer_hooks(void (*free_buffer)(ggml_backend_buffer_t buffer)) {
    return (struct ggml_backend_buffer_i){
        .get_name = buffer_name,
        .free_buffer = free_buffer,
        .get_base = buffer_base,
        .set_tensor = buffer_set,
        .get_tensor = buffer_get,
        .cpy_tensor = buffer_copy,
        .clear = buffer_clear,
    };
}

// ----------------------------------------------------------------------------------------------------- the buffer type

static GGML_CALL const char * type_name(ggml_backend_buffer_type_t buft) {
    (void) buft;
    return "CPU";
}

// Programs often pass the sum of ggml_nbytes, which has no room for alignment. The slack is enough
// to align two tensors.
static bool size_with_slack(size_t size, size_t * r) {
    return gb_pad_size(size, ALIGNMENT, r) && gb_add_size(*r, ALIGNMENT, r);
}

static GGML_CALL ggml_backend_buffer_t type_alloc(ggml_backend_buffer_type_t buft, size_t size) {
    size_t total;
    GB_FAIL_IF_RETURNING(!size_with_slack(size, &total), NULL, GGML_STATUS_ALLOC_FAILED,
        "CPU: a buffer of %zu bytes is too large", size);
    void * memory = gb_large_alloc(ALIGNMENT, total);
    if (memory == NULL) {
        return NULL;
    }
    ggml_backend_buffer_t buffer = ggml_backend_buffer_init(buft, buffer_hooks(buffer_free), memory, total);
    if (buffer == NULL) {
        gb_aligned_free(memory);
    }
    return buffer;
}

static GGML_CALL size_t type_alignment(ggml_backend_buffer_type_t buft) {
    (void) buft;
    return ALIGNMENT;
}

static GGML_CALL bool type_supports(ggml_backend_buffer_type_t buft, ggml_backend_t backend) {
    (void) buft;
    return ggml_backend_is_cpu(backend) ||
           (backend != NULL && backend->iface.computes_on_host && backend->iface.computes_on_host(backend));
}

static GGML_CALL bool type_is_host(ggml_backend_buffer_type_t buft) {
    (void) buft;
    return true;
}

GGML_CALL ggml_backend_buffer_type_t ggml_backend_cpu_buffer_type(void) {
    static struct ggml_backend_buffer_type type = {
        // never written
        .iface = { .get_name = type_name,
            .alloc_buffer = type_alloc,
            .get_alignment = type_alignment,
            .supports_backend = type_supports,
            .is_host = type_is_host },
    };
    return &type;
}

GGML_CALL ggml_backend_buffer_t ggml_backend_cpu_buffer_from_ptr(void * ptr, size_t size) {
    GB_CHECK_ARG_RETURNING(ptr, NULL);
    GB_FAIL_IF_RETURNING(size > UINTPTR_MAX - (uintptr_t) ptr, NULL, GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'size': %zu bytes from %p go beyond the end of memory", __func__, size, ptr);
    return ggml_backend_buffer_init(ggml_backend_cpu_buffer_type(), buffer_hooks(NULL), ptr, size);
}

// ----------------------------------------------------------------------------------------------- high-bandwidth memory

#ifdef GGML_USE_CPU_HBM

static GGML_CALL const char * hbm_name(ggml_backend_buffer_type_t buft) {
    (void) buft;
    return "CPU_HBM";
}

static GGML_CALL const char * hbm_buffer_name(ggml_backend_buffer_t buffer) {
    (void) buffer;
    return "CPU_HBM";
}

static GGML_CALL void hbm_free(ggml_backend_buffer_t buffer) { hbw_free(buffer->context); }

static GGML_CALL ggml_backend_buffer_t hbm_alloc(ggml_backend_buffer_type_t buft, size_t size) {
    size_t total;
    void * memory = NULL;
    char shown[32];
    GB_FAIL_IF_RETURNING(!size_with_slack(size, &total) || hbw_posix_memalign(&memory, ALIGNMENT, total) != 0, NULL,
        GGML_STATUS_ALLOC_FAILED, "CPU_HBM: cannot allocate %s", gb_size_text(size, shown));
    struct ggml_backend_buffer_i hooks = buffer_hooks(hbm_free);
    hooks.get_name = hbm_buffer_name;
    ggml_backend_buffer_t buffer = ggml_backend_buffer_init(buft, hooks, memory, total);
    if (buffer == NULL) {
        hbw_free(memory);
    }
    return buffer;
}

ggml_backend_buffer_type_t ggml_backend_cpu_hbm_buffer_type(void) {
    static struct ggml_backend_buffer_type type = {
        // never written
        .iface = { .get_name = hbm_name,
            .alloc_buffer = hbm_alloc,
            .get_alignment = type_alignment,
            .supports_backend = type_supports,
            .is_host = type_is_host },
    };
    GB_FAIL_IF_RETURNING(hbw_check_available() != 0, NULL, GGML_STATUS_UNSUPPORTED,
        "CPU_HBM: this machine has no high-bandwidth memory");
    return &type;
}

#endif
