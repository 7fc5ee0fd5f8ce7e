// tallocr.c - the tensor allocator: one buffer and an offset pool over it. alloc.h defines when a
// tensor is placed.
//
// The pool begins at the first aligned address of the buffer, so aligned offsets give aligned
// addresses. A measure allocator has no buffer, a pool of half the address space, and the alignment
// of the buffer type. It makes the same decisions as a real allocator, so its high-water mark is
// the size that a real one needs.
#include <stdatomic.h>
#include <string.h>

#include "alloc/alloc.h"
#include "base/mem.h"
#include "base/thread.h"

#define MEASURE_SIZE (SIZE_MAX / 2 + 1) // sizes up to SIZE_MAX / 2 fit

// -------------------------------------------------------------------------------------------------------------- stamps

static atomic_uint last_id;

// Numbers repeat only after 2^24 allocators, so the stamp of a freed allocator is not mistaken for
// that of a living one.
static uint32_t next_id(void) {
    uint32_t id;
    do {
        id = (atomic_fetch_add(&last_id, 1) + 1) & GB_STAMP_ALLOCATOR;
    } while (id == 0);
    return id;
}

// True if this allocator placed the tensor before its last reset, and no allocator has placed it
// since.
static bool is_stale(const struct ggml_tallocr * talloc, const struct ggml_tensor * t) {
    return talloc->buffer != NULL && t->buffer == talloc->buffer && gb_tensor_has_stamp(t, talloc->id) &&
           !gb_tensor_is_of_generation(t, talloc->generation);
}

// -------------------------------------------------------------------------------------------------- making and freeing

static bool is_power_of_two(size_t x) { return x != 0 && (x & (x - 1)) == 0; }

// buffer NULL: the allocator measures. The caller owns the buffer until owns_buffer is set. NULL
// and reported on failure.
static struct ggml_tallocr * tallocr_new(ggml_backend_buffer_type_t buft, ggml_backend_buffer_t buffer,
    size_t alignment) {
    char * base = buffer ? ggml_backend_buffer_get_base(buffer) : NULL;
    if (buffer && base == NULL) {
        return NULL;
    }
    struct ggml_tallocr * talloc = GB_NEW(struct ggml_tallocr);
    if (talloc == NULL) {
        return NULL;
    }
    talloc->buft = buft;
    talloc->buffer = buffer;
    talloc->base = base;
    talloc->alignment = alignment;
    talloc->size = buffer ? ggml_backend_buffer_get_size(buffer) : MEASURE_SIZE;
    talloc->id = next_id();
    // The end of the pool is rounded up, so that a last tensor fits even if its padding does not.
    // gb_tallocr_take checks the true end.
    const size_t start = (size_t) (-(uintptr_t) base & (alignment - 1));
    size_t end = 0;
    if (start < talloc->size && !gb_pad_size(talloc->size - start, alignment, &end)) {
        end = (talloc->size - start) & ~(alignment - 1);
    }
    if (!gb_pool_init(&talloc->pool, start, start + end)) {
        gb_free(talloc);
        return NULL;
    }
    return talloc;
}

ggml_tallocr_t ggml_tallocr_new(void * data, size_t size, size_t alignment) {
    GB_CHECK_ARG_RETURNING(data, NULL);
    GB_FAIL_IF_RETURNING(!is_power_of_two(alignment), NULL, GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'alignment': %zu is no power of two", __func__, alignment);
    const ggml_backend_buffer_t buffer = gb_plain_host_buffer(data, size);
    if (buffer == NULL) {
        return NULL;
    }
    struct ggml_tallocr * talloc = tallocr_new(ggml_backend_buffer_get_type(buffer), buffer, alignment);
    if (talloc == NULL) {
        ggml_backend_buffer_free(buffer);
        return NULL;
    }
    talloc->owns_buffer = true; // the allocator owns the handle; the caller owns the memory
    return talloc;
}

ggml_tallocr_t ggml_tallocr_new_measure(size_t alignment) {
    GB_FAIL_IF_RETURNING(!is_power_of_two(alignment), NULL, GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'alignment': %zu is no power of two", __func__, alignment);
    return tallocr_new(NULL, NULL, alignment);
}

ggml_tallocr_t ggml_tallocr_new_from_buffer(ggml_backend_buffer_t buffer) {
    GB_CHECK_ARG_RETURNING(buffer, NULL);
    GB_FAIL_IF_RETURNING(ggml_backend_buffer_is_multi_buffer(buffer), NULL, GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'buffer': a multi-buffer has no addresses of its own, use one of its parts", __func__);
    const size_t alignment = ggml_backend_buffer_get_alignment(buffer);
    return alignment ? tallocr_new(ggml_backend_buffer_get_type(buffer), buffer, alignment) : NULL;
}

ggml_tallocr_t ggml_tallocr_new_from_buft(ggml_backend_buffer_type_t buft, size_t size) {
    GB_CHECK_ARG_RETURNING(buft, NULL);
    const ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(buft, size);
    if (buffer == NULL) {
        return NULL;
    }
    struct ggml_tallocr * talloc = ggml_tallocr_new_from_buffer(buffer);
    if (talloc == NULL) {
        ggml_backend_buffer_free(buffer);
        return NULL;
    }
    talloc->owns_buffer = true;
    return talloc;
}

ggml_tallocr_t ggml_tallocr_new_from_backend(ggml_backend_t backend, size_t size) {
    const ggml_backend_buffer_type_t buft = ggml_backend_get_default_buffer_type(backend);
    return buft ? ggml_tallocr_new_from_buft(buft, size) : NULL;
}

ggml_tallocr_t ggml_tallocr_new_measure_from_buft(ggml_backend_buffer_type_t buft) {
    GB_CHECK_ARG_RETURNING(buft, NULL);
    const size_t alignment = ggml_backend_buft_get_alignment(buft);
    return alignment ? tallocr_new(buft, NULL, alignment) : NULL;
}

ggml_tallocr_t ggml_tallocr_new_measure_from_backend(ggml_backend_t backend) {
    const ggml_backend_buffer_type_t buft = ggml_backend_get_default_buffer_type(backend);
    return buft ? ggml_tallocr_new_measure_from_buft(buft) : NULL;
}

void ggml_tallocr_free(ggml_tallocr_t talloc) {
    if (talloc == NULL) {
        return;
    }
    if (talloc->owns_buffer) {
        ggml_backend_buffer_free(talloc->buffer);
    }
    gb_pool_free(&talloc->pool);
    gb_ptrmap_free(&talloc->measured);
    gb_free(talloc);
}

// NULL for a measure allocator.
struct ggml_backend_buffer * ggml_tallocr_get_buffer(ggml_tallocr_t talloc) {
    GB_CHECK_ARG_RETURNING(talloc, NULL);
    return talloc->buffer;
}

bool ggml_tallocr_is_measure(ggml_tallocr_t talloc) {
    GB_CHECK_ARG_RETURNING(talloc, false);
    return talloc->buffer == NULL;
}

enum ggml_status ggml_tallocr_reset(ggml_tallocr_t talloc) {
    GB_CHECK_ARG(talloc);
    gb_pool_reset(&talloc->pool);
    gb_ptrmap_clear(&talloc->measured);
    talloc->generation++;
    return talloc->buffer ? ggml_backend_buffer_reset(talloc->buffer) : GGML_STATUS_SUCCESS;
}

// Adds a tenth, as ggml of early 2024 does: programs of that time size their buffers by it.
size_t ggml_tallocr_max_size(ggml_tallocr_t talloc) {
    GB_CHECK_ARG_RETURNING(talloc, 0);
    const size_t high = GB_READ_RELAXED(talloc->pool.high);
    size_t size;
    return gb_add_size(high, high / 10, &size) ? size : SIZE_MAX;
}

// ----------------------------------------------------------------------------------------------------- placing tensors

// A measure allocator looks into its own table. A real allocator trusts the tensor's data unless
// the stamp is stale.
bool gb_tallocr_is_placed(const struct ggml_tallocr * talloc, const struct ggml_tensor * tensor) {
    if (tensor->data == NULL && tensor->buffer == NULL) {
        return talloc && talloc->buffer == NULL && gb_ptrmap_get(&talloc->measured, tensor) == 1;
    }
    return talloc == NULL || !is_stale(talloc, tensor);
}

bool gb_tallocr_size_of(struct ggml_tallocr * talloc, struct ggml_tensor * tensor, struct gb_tallocr_size * size) {
    size->bytes = talloc->buft ? ggml_backend_buft_get_alloc_size(talloc->buft, tensor) : ggml_nbytes(tensor);
    GB_FAIL_IF_RETURNING(!gb_pad_size(size->bytes, talloc->alignment, &size->padded), false,
        GGML_STATUS_INVALID_ARGUMENT, "ggml_tallocr_alloc: tensor '%s': its size of %zu bytes overflows", tensor->name,
        size->bytes);
    return true;
}

// Reports the largest free block, which was too small.
static enum ggml_status fail_full(const struct ggml_tallocr * talloc, const struct ggml_tensor * tensor,
    const char * func, size_t size) {
    return gb_fail(GGML_STATUS_ALLOC_FAILED, "%s: tensor '%s': needs %zu bytes, largest free block %zu of %zu", func,
        tensor->name, size, GB_MIN(gb_pool_largest_free(&talloc->pool), talloc->size), talloc->size);
}

// The padding of the last tensor may exceed the buffer; its bytes must not.
enum ggml_status gb_tallocr_take(struct ggml_tallocr * talloc, const struct ggml_tensor * tensor,
    const struct gb_tallocr_size * size, const char * func, size_t * offset) {
    const size_t high = talloc->pool.high;
    const enum gb_pool_result result = gb_pool_take(&talloc->pool, size->padded, offset);
    if (result == GB_POOL_NO_MEMORY) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    if (result == GB_POOL_FULL) {
        return fail_full(talloc, tensor, func, size->padded);
    }
    if (*offset > talloc->size || size->bytes > talloc->size - *offset) { // only the padding may exceed
        gb_pool_give_back(&talloc->pool, *offset, size->padded);
        GB_WRITE_RELAXED(talloc->pool.high, high);
        return fail_full(talloc, tensor, func, size->padded);
    }
    return GGML_STATUS_SUCCESS;
}

// The stamp is written last, so that a failure changes nothing.
enum ggml_status gb_tallocr_bind(struct ggml_tallocr * talloc, struct ggml_tensor * tensor, size_t offset) {
    if (talloc->buffer == NULL) {
        // Reserves an entry, so that unbind need not grow the table.
        const bool noted =
            gb_ptrmap_reserve(&talloc->measured, talloc->measured.n + 2) && gb_ptrmap_set(&talloc->measured, tensor, 1);
        return noted ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    }
    void * const old_data = tensor->data;
    ggml_backend_buffer_t old_buffer = tensor->buffer;
    gb_tensor_put(tensor, talloc->buffer, talloc->base + offset);
    const enum ggml_status status = ggml_backend_buffer_init_tensor(talloc->buffer, tensor);
    if (status != GGML_STATUS_SUCCESS) {
        gb_tensor_put(tensor, old_buffer, old_data);
        return status;
    }
    gb_tensor_set_stamp(tensor, talloc->id, talloc->generation);
    return GGML_STATUS_SUCCESS;
}

void gb_tallocr_unbind(struct ggml_tallocr * talloc, struct ggml_tensor * tensor) {
    if (talloc->buffer == NULL) {
        gb_ptrmap_set(&talloc->measured, tensor, 0);
        return;
    }
    gb_tensor_put(tensor, NULL, NULL);
    gb_tensor_set_stamp(tensor, 0, 0);
}

enum ggml_status gb_tallocr_release(struct ggml_tallocr * talloc, struct ggml_tensor * tensor) {
    if (talloc->buffer == NULL || talloc->buffer->iface.free_tensor == NULL) {
        return GGML_STATUS_SUCCESS;
    }
    const uint64_t before = gb_fail_count();
    talloc->buffer->iface.free_tensor(talloc->buffer, tensor);
    return gb_status_since(before);
}

// A failure restores the pool, its high-water mark included.
enum ggml_status ggml_tallocr_alloc(ggml_tallocr_t talloc, struct ggml_tensor * tensor) {
    GB_CHECK_ARG(talloc);
    GB_CHECK_ARG(tensor);
    GB_FAIL_IF(tensor->view_src != NULL, GGML_STATUS_INVALID_ARGUMENT,
        "%s: tensor '%s' is a view of '%s' and has no memory of its own", __func__, tensor->name,
        tensor->view_src->name);
    GB_FAIL_IF(gb_tallocr_is_placed(talloc, tensor), GGML_STATUS_INVALID_STATE, "%s: tensor '%s' is placed already",
        __func__, tensor->name);
    const size_t high = talloc->pool.high;
    size_t offset;
    struct gb_tallocr_size size;
    if (!gb_tallocr_size_of(talloc, tensor, &size)) {
        return GGML_STATUS_INVALID_ARGUMENT;
    }
    GB_TRY(gb_tallocr_take(talloc, tensor, &size, __func__, &offset));
    const enum ggml_status status = gb_tallocr_bind(talloc, tensor, offset);
    if (status != GGML_STATUS_SUCCESS) {
        gb_pool_give_back(&talloc->pool, offset, size.padded);
        GB_WRITE_RELAXED(talloc->pool.high, high);
    }
    return status;
}
