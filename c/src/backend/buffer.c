// buffer.c - buffer types, buffers, reading and writing tensors through them, placement by the
// user.
//
// Every function checks its arguments, calls one hook of the implementer, and turns the hook's
// failure into a status. If a required hook is missing, that is an error of the backend, not a
// crash. A failed placement leaves the tensor unplaced.
#include "backend/backend.h"

#include <stdatomic.h>
#include <string.h>

#include "base/current.h"
#include "base/mapped.h"
#include "base/mem.h"
#include "base/text.h"
#include "base/thread.h"

// Fails with the names of the object and the hook if a required hook is missing.
#define NEED_HOOK(hook, ret, object, name)                                                                    \
    GB_FAIL_IF_RETURNING((hook) == NULL, ret, GGML_STATUS_UNSUPPORTED, "%s: the " object " has no hook '%s'", \
        __func__, name)

// -------------------------------------------------------------------------------------------------------- buffer types

const char * ggml_backend_buft_name(ggml_backend_buffer_type_t buft) {
    GB_CHECK_ARG_RETURNING(buft, "NULL");
    NEED_HOOK(buft->iface.get_name, "NULL", "buffer type", "get_name");
    return buft->iface.get_name(buft);
}

// All buffers of a type are made here, so only this function checks a hook's result: a buffer is at
// least as large as requested, and a failure always has a message.
ggml_backend_buffer_t ggml_backend_buft_alloc_buffer(ggml_backend_buffer_type_t buft, size_t size) {
    GB_CHECK_ARG_RETURNING(buft, NULL);
    NEED_HOOK(buft->iface.alloc_buffer, NULL, "buffer type", "alloc_buffer");
    const size_t max_size = ggml_backend_buft_get_max_size(buft);
    char needs[32], limit[32];
    GB_FAIL_IF_RETURNING(size > max_size, NULL, GGML_STATUS_ALLOC_FAILED,
        "%s: a buffer of %s is more than buffer type %s allows at once, %s", __func__, gb_size_text(size, needs),
        ggml_backend_buft_name(buft), gb_size_text(max_size, limit));
    const uint64_t before = gb_fail_count();
    const ggml_backend_buffer_t buffer = buft->iface.alloc_buffer(buft, size);
    if (buffer == NULL && gb_fail_count() == before) {
        char shown[32];
        gb_fail(GGML_STATUS_ALLOC_FAILED, "%s: buffer type %s cannot allocate %s", __func__,
            ggml_backend_buft_name(buft), gb_size_text(size, shown));
    }
    if (buffer != NULL && buffer->size < size) { // the backend is at fault
        const size_t given = buffer->size;
        ggml_backend_buffer_free(buffer);
        gb_fail(GGML_STATUS_DEVICE_ERROR, "%s: buffer type %s was asked for %zu bytes and gave a buffer of %zu",
            __func__, ggml_backend_buft_name(buft), size, given);
        return NULL;
    }
    return buffer;
}

// Callers compute with the alignment, so a value that is not a power of two is an error of the
// backend.
size_t ggml_backend_buft_get_alignment(ggml_backend_buffer_type_t buft) {
    GB_CHECK_ARG_RETURNING(buft, 0);
    NEED_HOOK(buft->iface.get_alignment, 0, "buffer type", "get_alignment");
    const size_t alignment = buft->iface.get_alignment(buft);
    GB_FAIL_IF_RETURNING(alignment == 0 || (alignment & (alignment - 1)) != 0, 0, GGML_STATUS_DEVICE_ERROR,
        "%s: buffer type %s has an alignment of %zu, which is not a power of two", __func__,
        ggml_backend_buft_name(buft), alignment);
    return alignment;
}

size_t ggml_backend_buft_get_max_size(ggml_backend_buffer_type_t buft) {
    GB_CHECK_ARG_RETURNING(buft, 0);
    return buft->iface.get_max_size ? buft->iface.get_max_size(buft) : SIZE_MAX;
}

// A backend may need more bytes than the tensor has, for example to pad rows, but never fewer.
size_t ggml_backend_buft_get_alloc_size(ggml_backend_buffer_type_t buft, struct ggml_tensor * tensor) {
    GB_CHECK_ARG_RETURNING(buft, 0);
    GB_CHECK_ARG_RETURNING(tensor, 0);
    const size_t nbytes = ggml_nbytes(tensor);
    if (buft->iface.get_alloc_size == NULL) {
        return nbytes;
    }
    const size_t wanted = buft->iface.get_alloc_size(buft, tensor);
    return GB_MAX(wanted, nbytes);
}

bool ggml_backend_buft_supports_backend(ggml_backend_buffer_type_t buft, ggml_backend_t backend) {
    GB_CHECK_ARG_RETURNING(buft, false);
    GB_CHECK_ARG_RETURNING(backend, false);
    NEED_HOOK(buft->iface.supports_backend, false, "buffer type", "supports_backend");
    return buft->iface.supports_backend(buft, backend);
}

bool ggml_backend_buft_is_host(ggml_backend_buffer_type_t buft) {
    GB_CHECK_ARG_RETURNING(buft, false);
    return buft->iface.is_host != NULL && buft->iface.is_host(buft);
}

// ------------------------------------------------------------------------------------------------------------- buffers

// For implementers: makes a buffer from their hooks and context. free_buffer frees the context. On
// failure the implementer still owns the context.
ggml_backend_buffer_t ggml_backend_buffer_init(ggml_backend_buffer_type_t buft, struct ggml_backend_buffer_i iface,
    ggml_backend_buffer_context_t context, size_t size) {
    GB_CHECK_ARG_RETURNING(buft, NULL);
    struct ggml_backend_buffer * buffer = GB_NEW(struct ggml_backend_buffer);
    if (buffer == NULL) {
        return NULL;
    }
    buffer->iface = iface;
    buffer->buft = buft;
    buffer->context = context;
    buffer->size = size;
    buffer->usage = GGML_BACKEND_BUFFER_USAGE_ANY;
    gb_buffer_changed(buffer);
    return buffer;
}

// Both counters wrap around. The process never repeats a version.
static atomic_uint n_freed, n_replicated_freed;
static atomic_ullong last_version;

// Versions begin with 1, so 0 means "never written".
uint64_t gb_new_version(void) { return atomic_fetch_add(&last_version, 1) + 1; }

void gb_buffer_changed(ggml_backend_buffer_t buffer) {
    if (buffer) {
        gb_buffer_set_version(buffer, gb_new_version());
    }
}

// Tensors lie in the parts of a multi-buffer, so the parts get the new version, too.
enum ggml_status ggml_backend_buffer_changed(ggml_backend_buffer_t buffer) {
    GB_CHECK_ARG(buffer);
    gb_buffer_changed(buffer);
    for (size_t i = 0; gb_multi_buffer_part(buffer, i); i++) {
        gb_buffer_changed(gb_multi_buffer_part(buffer, i));
    }
    return GGML_STATUS_SUCCESS;
}

// If the buffer is held, its struct stays without hooks and bytes, so that its tensors can detect
// that.
void ggml_backend_buffer_free(ggml_backend_buffer_t buffer) {
    if (buffer == NULL) {
        return;
    }
    if (buffer->iface.free_buffer) {
        buffer->iface.free_buffer(buffer);
    }
    atomic_fetch_add(&n_freed, 1);
    if (buffer->replicated) {
        atomic_fetch_add(&n_replicated_freed, 1);
    }
    if (buffer->n_holds == 0) {
        gb_free(buffer);
        return;
    }
    GB_WRITE_RELEASE(buffer->retired, true);
    buffer->iface = (struct ggml_backend_buffer_i){ 0 };
    buffer->context = NULL;
    buffer->size = 0;
}

void gb_buffer_hold(ggml_backend_buffer_t buffer) { buffer->n_holds++; }

// The last unhold of a retired buffer frees the struct that its tensors pointed to.
void gb_buffer_unhold(ggml_backend_buffer_t buffer) {
    if (--buffer->n_holds == 0 && buffer->retired) {
        gb_free(buffer);
    }
}

unsigned gb_replicated_buffers_freed(void) { return atomic_load(&n_replicated_freed); }

unsigned gb_buffers_freed(void) { return atomic_load(&n_freed); }

const char * ggml_backend_buffer_name(ggml_backend_buffer_t buffer) {
    GB_CHECK_ARG_RETURNING(buffer, "NULL");
    return buffer->iface.get_name ? buffer->iface.get_name(buffer) : ggml_backend_buft_name(buffer->buft);
}

size_t ggml_backend_buffer_get_size(ggml_backend_buffer_t buffer) {
    GB_CHECK_ARG_RETURNING(buffer, 0);
    return buffer->size;
}

void * ggml_backend_buffer_get_base(ggml_backend_buffer_t buffer) {
    GB_CHECK_ARG_RETURNING(buffer, NULL);
    if (ggml_backend_buffer_is_multi_buffer(buffer)) {
        return NULL;  // a multi-buffer has no address, and that is no error
    }
    NEED_HOOK(buffer->iface.get_base, NULL, "buffer", "get_base");
    void * base = buffer->iface.get_base(buffer);
    GB_FAIL_IF_RETURNING(base == NULL, NULL, GGML_STATUS_INVALID_STATE, "%s: buffer %s has no base address", __func__,
        ggml_backend_buffer_name(buffer));
    return base;
}

// The hook may prepare data for the tensor. Most buffers have no such hook.
enum ggml_status ggml_backend_buffer_init_tensor(ggml_backend_buffer_t buffer, struct ggml_tensor * tensor) {
    GB_CHECK_ARG(buffer);
    GB_CHECK_ARG(tensor);
    const uint64_t before = gb_fail_count();
    if (buffer->iface.init_tensor) {
        buffer->iface.init_tensor(buffer, tensor);
    }
    return gb_status_since(before);
}

size_t ggml_backend_buffer_get_alignment(ggml_backend_buffer_t buffer) {
    GB_CHECK_ARG_RETURNING(buffer, 0);
    return ggml_backend_buft_get_alignment(buffer->buft);
}

size_t ggml_backend_buffer_get_max_size(ggml_backend_buffer_t buffer) {
    GB_CHECK_ARG_RETURNING(buffer, 0);
    return ggml_backend_buft_get_max_size(buffer->buft);
}

size_t ggml_backend_buffer_get_alloc_size(ggml_backend_buffer_t buffer, struct ggml_tensor * tensor) {
    GB_CHECK_ARG_RETURNING(buffer, 0);
    return ggml_backend_buft_get_alloc_size(buffer->buft, tensor);
}

// All functions that write change the version before they call the hook. A copy made during the
// write is then stale.
enum ggml_status ggml_backend_buffer_clear(ggml_backend_buffer_t buffer, uint8_t value) {
    GB_CHECK_ARG(buffer);
    NEED_HOOK(buffer->iface.clear, GGML_STATUS_UNSUPPORTED, "buffer", "clear");
    const uint64_t before = gb_fail_count();
    gb_buffer_changed(buffer);
    buffer->iface.clear(buffer, value);
    return gb_status_since(before);
}

bool ggml_backend_buffer_is_host(ggml_backend_buffer_t buffer) {
    GB_CHECK_ARG_RETURNING(buffer, false);
    // a retired buffer has no hooks: its memory was freed
    return buffer->iface.get_base != NULL && ggml_backend_buft_is_host(buffer->buft);
}

enum ggml_status ggml_backend_buffer_set_usage(ggml_backend_buffer_t buffer, enum ggml_backend_buffer_usage usage) {
    GB_CHECK_ARG(buffer);
    GB_FAIL_IF(usage != GGML_BACKEND_BUFFER_USAGE_ANY && usage != GGML_BACKEND_BUFFER_USAGE_WEIGHTS,
        GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'usage': %d is neither ANY (0) nor WEIGHTS (1)", __func__,
        (int) usage);
    GB_WRITE_RELAXED(buffer->usage, usage);  // schedulers read it in any thread
    gb_buffer_changed(buffer);
    if (ggml_backend_buffer_is_multi_buffer(buffer)) {
        return ggml_backend_multi_buffer_set_usage(buffer, usage);
    }
    return GGML_STATUS_SUCCESS;
}

enum ggml_backend_buffer_usage ggml_backend_buffer_get_usage(ggml_backend_buffer_t buffer) {
    GB_CHECK_ARG_RETURNING(buffer, GGML_BACKEND_BUFFER_USAGE_ANY);
    return GB_READ_RELAXED(buffer->usage);
}

ggml_backend_buffer_type_t ggml_backend_buffer_get_type(ggml_backend_buffer_t buffer) {
    GB_CHECK_ARG_RETURNING(buffer, NULL);
    return buffer->buft;
}

enum ggml_status ggml_backend_buffer_reset(ggml_backend_buffer_t buffer) {
    GB_CHECK_ARG(buffer);
    const uint64_t before = gb_fail_count();
    gb_buffer_changed(buffer);
    if (buffer->iface.reset) {
        buffer->iface.reset(buffer);
    }
    return gb_status_since(before);
}

// -------------------------------------------------------------------------------------------------- tensors in buffers

ggml_backend_buffer_t gb_tensor_buffer(const struct ggml_tensor * t) {
    return GB_READ_RELAXED(gb_root(t)->buffer); // relaxed: another thread may be placing the tensor
}

// A tensor without bytes needs no memory. The three other cases have different remedies, so they
// have messages of their own: the buffer was freed, the view's source moved, or the tensor was
// never placed.
enum ggml_status gb_tensor_check_placed(const char * func, const struct ggml_tensor * t) {
    if (t->data != NULL || ggml_nbytes(t) == 0) {
        const ggml_backend_buffer_t buffer = gb_tensor_buffer(t);
        GB_FAIL_IF(buffer != NULL && buffer->iface.get_base == NULL, GGML_STATUS_INVALID_STATE,
            "%s: the memory of tensor '%s' was given back (its scheduler was reset or needed it)", func, t->name);
        GB_FAIL_IF(t->data != NULL && !gb_view_is_bound(t), GGML_STATUS_INVALID_STATE,
            "%s: tensor '%s' is a view of '%s', which has moved", func, t->name, t->view_src->name);
        return GGML_STATUS_SUCCESS;
    }
    if (t->view_src && t->view_src->data) {
        return gb_fail(GGML_STATUS_INVALID_STATE, "%s: tensor '%s' is a view of '%s' that was not bound to its memory",
            func, t->name, t->view_src->name);
    }
    return gb_fail(GGML_STATUS_INVALID_STATE, "%s: tensor '%s' is not allocated", func, t->name);
}

// A tensor without gaps has exactly as many bytes as its blocks need.
bool gb_tensor_has_gaps(const struct ggml_tensor * t) {
    const int blck_size = ggml_blck_size(t->type);
    return blck_size > 0 && ggml_nbytes(t) > (size_t) (ggml_nelements(t) / blck_size) * ggml_type_size(t->type);
}

// Compares size with nbytes - offset, because a sum could overflow.
enum ggml_status gb_tensor_check_access(const char * func, const struct ggml_tensor * tensor, const void * data,
    size_t offset, size_t size) {
    GB_FAIL_IF(data == NULL, GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'data' is NULL", func);
    GB_TRY(gb_tensor_check_placed(func, tensor));
    const size_t nbytes = ggml_nbytes(tensor);
    GB_FAIL_IF(offset > nbytes || size > nbytes - offset, GGML_STATUS_INVALID_ARGUMENT,
        "%s: tensor '%s': offset %zu and size %zu reach past its %zu bytes", func, tensor->name, offset, size, nbytes);
    return GGML_STATUS_SUCCESS;
}

// memmove, because the caller's data may lie in the same memory.
static enum ggml_status write_piece(struct ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    const ggml_backend_buffer_t buffer = gb_tensor_buffer(tensor);
    if (buffer == NULL) { // plain host memory, of a context or given by the caller
        gb_mapped_enter();
        memmove((char *) tensor->data + offset, data, size);
        gb_mapped_leave();
        return gb_mapped_check_at("ggml_backend_tensor_set", data);
    }
    if (buffer->iface.set_tensor == NULL) {
        return gb_fail(GGML_STATUS_UNSUPPORTED, "ggml_backend_tensor_set: the buffer has no hook 'set_tensor'");
    }
    const uint64_t before = gb_fail_count();
    gb_buffer_changed(buffer);
    gb_mapped_enter();
    buffer->iface.set_tensor(buffer, tensor, data, offset, size);
    gb_mapped_leave();
    GB_TRY(gb_status_since(before));
    return gb_mapped_check_at("ggml_backend_tensor_set", data);
}

// As write_piece, but reads. The tensor may be in a mapped file.
static enum ggml_status read_piece(const struct ggml_tensor * tensor, void * data, size_t offset, size_t size) {
    const ggml_backend_buffer_t buffer = gb_tensor_buffer(tensor);
    if (buffer == NULL) {
        gb_mapped_enter();
        memmove(data, (const char *) tensor->data + offset, size);
        gb_mapped_leave();
        return gb_mapped_check_at("ggml_backend_tensor_get", tensor->data);
    }
    if (buffer->iface.get_tensor == NULL) {
        return gb_fail(GGML_STATUS_UNSUPPORTED, "ggml_backend_tensor_get: the buffer has no hook 'get_tensor'");
    }
    const uint64_t before = gb_fail_count();
    gb_mapped_enter();
    buffer->iface.get_tensor(buffer, tensor, data, offset, size);
    gb_mapped_leave();
    GB_TRY(gb_status_since(before));
    return gb_mapped_check_at("ggml_backend_tensor_get", tensor->data);
}

// Cuts a long transfer into pieces only if the thread has a poll. A program without a poll pays
// nothing.
enum ggml_status gb_tensor_write(struct ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    for (; size > GB_POLL_BYTES && gb_get_poll(NULL) != NULL; size -= GB_POLL_BYTES, offset += GB_POLL_BYTES) {
        const enum ggml_status status = write_piece(tensor, data, offset, GB_POLL_BYTES);
        if (status != GGML_STATUS_SUCCESS) {
            return status;
        }
        GB_TRY(gb_check_poll());
        data = (const char *) data + GB_POLL_BYTES;
    }
    return write_piece(tensor, data, offset, size);
}

static enum ggml_status read_pieces(const struct ggml_tensor * tensor, void * data, size_t offset, size_t size) {
    for (; size > GB_POLL_BYTES && gb_get_poll(NULL) != NULL; size -= GB_POLL_BYTES, offset += GB_POLL_BYTES) {
        const enum ggml_status status = read_piece(tensor, data, offset, GB_POLL_BYTES);
        if (status != GGML_STATUS_SUCCESS) {
            return status;
        }
        GB_TRY(gb_check_poll());
        data = (char *) data + GB_POLL_BYTES;
    }
    return read_piece(tensor, data, offset, size);
}

enum ggml_status ggml_backend_tensor_set(struct ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    GB_CHECK_ARG(tensor);
    if (size == 0) {
        return GGML_STATUS_SUCCESS;
    }
    GB_TRY(gb_tensor_check_access(__func__, tensor, data, offset, size));
    return gb_tensor_write(tensor, data, offset, size);
}

enum ggml_status ggml_backend_tensor_get(const struct ggml_tensor * tensor, void * data, size_t offset, size_t size) {
    GB_CHECK_ARG(tensor);
    if (size == 0) {
        return GGML_STATUS_SUCCESS;
    }
    GB_TRY(gb_tensor_check_access(__func__, tensor, data, offset, size));
    return read_pieces(tensor, data, offset, size);
}

// Copies all elements of `from`, which has no gaps, to a tensor's bytes at `to`.
static enum ggml_status scatter(char * to, const struct ggml_tensor * t, const char * from) {
    enum { POLL = 1024 };  // elements between two polls: the first write to a huge page takes long
    const size_t element = ggml_type_size(t->type);
    const int64_t blocks = t->ne[0] / ggml_blck_size(t->type);
    unsigned n = 0;
    gb_mapped_enter();
    for (int64_t i3 = 0; i3 < t->ne[3]; i3++) {
        for (int64_t i2 = 0; i2 < t->ne[2]; i2++) {
            for (int64_t i1 = 0; i1 < t->ne[1]; i1++) {
                char * row = to + (size_t) i1 * t->nb[1] + (size_t) i2 * t->nb[2] + (size_t) i3 * t->nb[3];
                for (int64_t i0 = 0; i0 < blocks; i0++, from += element) {
                    memcpy(row + (size_t) i0 * t->nb[0], from, element);
                    if (++n % POLL == 0) {
                        gb_mapped_leave();
                        GB_TRY(gb_check_poll());
                        gb_mapped_enter();
                    }
                }
            }
        }
    }
    gb_mapped_leave();
    return GGML_STATUS_SUCCESS;
}

// Reads memory that is not on the host, changes it, and writes it back.
enum ggml_status gb_tensor_scatter(struct ggml_tensor * t, const void * data) {
    const ggml_backend_buffer_t buffer = gb_tensor_buffer(t);
    const bool host = buffer == NULL || gb_buffer_is_host(buffer);
    const size_t n = host ? 0 : ggml_nbytes(t);
    char * to = host ? t->data : gb_malloc(n);
    if (to == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    enum ggml_status status = host ? GGML_STATUS_SUCCESS : read_pieces(t, to, 0, n);
    status = status == GGML_STATUS_SUCCESS ? scatter(to, t, data) : status;
    if (host) {
        gb_buffer_changed(buffer);
        return status == GGML_STATUS_SUCCESS ? gb_mapped_check_at("reading", data) : status;
    }
    status = status == GGML_STATUS_SUCCESS ? gb_tensor_write(t, to, 0, n) : status;
    gb_free(to);
    const enum ggml_status shrunk = gb_mapped_check_at("reading", data);
    return shrunk != GGML_STATUS_SUCCESS ? shrunk : status;
}

// True: copied. False without a recorded failure: no hook can copy. False with a recorded failure:
// a hook failed. Calls the destination's hook first.
bool ggml_backend_buffer_copy_tensor(const struct ggml_tensor * src, struct ggml_tensor * dst) {
    GB_CHECK_ARG_RETURNING(src, false);
    GB_CHECK_ARG_RETURNING(dst, false);
    const ggml_backend_buffer_t into = gb_tensor_buffer(dst);
    const ggml_backend_buffer_t from = gb_tensor_buffer(src);
    gb_buffer_changed(into);
    const uint64_t before = gb_fail_count();
    gb_mapped_enter();
    bool copied = into && into->iface.cpy_tensor && into->iface.cpy_tensor(into, src, dst);
    // The failed hook has recorded its failure; the hook of the source would fail as well.
    if (!copied && gb_fail_count() == before) {
        copied = from && from->iface.cpy_tensor_to && from->iface.cpy_tensor_to(from, src, dst);
    }
    gb_mapped_leave();
    return copied;
}

// ----------------------------------------------------------------------------------------------------- placing by hand

// INVALID_ARGUMENT unless [addr, addr + size) lies inside the buffer.
static enum ggml_status check_inside(const char * func, ggml_backend_buffer_t buffer, const struct ggml_tensor * tensor,
    const void * addr, size_t size) {
    GB_FAIL_IF(ggml_backend_buffer_is_multi_buffer(buffer), GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'buffer': a multi-buffer has no addresses of its own, place '%s' in one of its parts", func,
        tensor->name);
    void * base = ggml_backend_buffer_get_base(buffer);
    if (base == NULL) {
        return ggml_last_status();
    }
    const uintptr_t start = (uintptr_t) base, at = (uintptr_t) addr;
    const bool inside = at >= start && at - start <= buffer->size && size <= buffer->size - (at - start);
    GB_FAIL_IF(!inside, GGML_STATUS_INVALID_ARGUMENT,
        "%s: tensor '%s': %zu bytes at %p do not lie inside buffer %s, %zu bytes at %p", func, tensor->name, size, addr,
        ggml_backend_buffer_name(buffer), buffer->size, base);
    return GGML_STATUS_SUCCESS;
}

// Places the tensor before it calls the hook, and undoes the placement if the hook fails.
enum ggml_status ggml_backend_tensor_alloc(ggml_backend_buffer_t buffer, struct ggml_tensor * tensor, void * addr) {
    GB_CHECK_ARG(buffer);
    GB_CHECK_ARG(tensor);
    GB_CHECK_ARG(addr);
    GB_FAIL_IF(tensor->view_src != NULL, GGML_STATUS_INVALID_ARGUMENT,
        "%s: tensor '%s' is a view of '%s' and has no memory of its own", __func__, tensor->name,
        tensor->view_src->name);
    GB_FAIL_IF(tensor->data != NULL || tensor->buffer != NULL, GGML_STATUS_INVALID_STATE,
        "%s: tensor '%s' is placed already", __func__, tensor->name);
    GB_TRY(check_inside(__func__, buffer, tensor, addr, ggml_backend_buffer_get_alloc_size(buffer, tensor)));
    gb_tensor_put(tensor, buffer, addr);
    gb_tensor_set_stamp(tensor, 0, 0);  // no stamp: no allocator may give this memory to another tensor
    const enum ggml_status status = ggml_backend_buffer_init_tensor(buffer, tensor);
    if (status != GGML_STATUS_SUCCESS) {
        gb_tensor_put(tensor, NULL, NULL);
    }
    return status;
}

enum ggml_status gb_view_bind(struct ggml_tensor * view) {
    const struct ggml_tensor * root = view->view_src;
    const ggml_backend_buffer_t buffer = root->buffer;
    void * const old_data = view->data;
    const enum ggml_backend_type old_backend = view->backend;
    const uint64_t before = gb_fail_count();
    gb_tensor_put(view, buffer, (char *) root->data + view->view_offs);
    view->backend = root->backend;
    if (buffer->iface.init_tensor) {
        buffer->iface.init_tensor(buffer, view);
    }
    const enum ggml_status status = gb_status_since(before);
    if (status != GGML_STATUS_SUCCESS) {
        gb_tensor_put(view, NULL, old_data);
        view->backend = old_backend;
    }
    return status;
}

// A view gets the place and the kind of backend of its source. If the hook fails, both are restored.
enum ggml_status ggml_backend_view_init(ggml_backend_buffer_t buffer, struct ggml_tensor * tensor) {
    GB_CHECK_ARG(buffer);
    GB_CHECK_ARG(tensor);
    const struct ggml_tensor * root = tensor->view_src;
    GB_FAIL_IF(root == NULL, GGML_STATUS_INVALID_ARGUMENT, "%s: tensor '%s' is no view", __func__, tensor->name);
    GB_FAIL_IF(tensor->buffer != NULL, GGML_STATUS_INVALID_STATE, "%s: tensor '%s' is placed already", __func__,
        tensor->name);
    GB_FAIL_IF(root->data == NULL || root->buffer == NULL, GGML_STATUS_INVALID_STATE,
        "%s: tensor '%s' is a view of '%s', which is in no buffer", __func__, tensor->name, root->name);
    char * const addr = (char *) root->data + tensor->view_offs;
    GB_TRY(check_inside(__func__, buffer, tensor, addr, ggml_nbytes(tensor)));
    return gb_view_bind(tensor);
}
