// ctx_tensors.c - memory for all tensors of a context in one call.
//
// The unplaced tensors, in order, are divided into groups that fit the largest allocation of the
// buffer type. Each group gets a buffer, and several buffers get one handle. Tensors are placed
// last. If a tensor cannot be placed, all tensors are unplaced again, so a failure changes nothing.
#include "backend/backend.h"
#include "base/mem.h"
#include "base/vec.h"
#include "ggml-alloc.h"

// The future place of a tensor that owns memory.
struct placement {
    struct ggml_tensor * tensor;
    size_t buffer; // index into `buffers`
    size_t offset; // bytes from the base of the buffer
};

// A view that this call has bound, and its earlier binding, to undo it.
struct bound_view {
    struct ggml_tensor * tensor;
    void * old_data;
    enum ggml_backend_type old_backend;
};

// The state of one call. The vectors are freed when it returns.
struct ctx_job {
    struct ggml_context * ctx;
    ggml_backend_buffer_type_t buft;
    size_t alignment, max_size;
    GB_VEC(struct placement) placements;
    GB_VEC(size_t) sizes; // bytes of the buffers
    GB_VEC(ggml_backend_buffer_t) buffers; // owned until handed out
    GB_VEC(struct bound_view) views; // bound by this call
};

static bool is_unplaced(const struct ggml_tensor * t) {
    return t->view_src == NULL && t->data == NULL && t->buffer == NULL;
}

// Appends the tensor to the last group, or begins a new group if the last one would grow too large.
static enum ggml_status assign(struct ctx_job * job, struct ggml_tensor * t) {
    const size_t size = ggml_backend_buft_get_alloc_size(job->buft, t);
    size_t padded, end;
    GB_FAIL_IF(size > job->max_size, GGML_STATUS_ALLOC_FAILED,
        "ggml_backend_alloc_ctx_tensors: tensor '%s': needs %zu bytes, a buffer of type %s holds at most %zu", t->name,
        size, ggml_backend_buft_name(job->buft), job->max_size);
    GB_FAIL_IF(!gb_pad_size(size, job->alignment, &padded), GGML_STATUS_ALLOC_FAILED,
        "ggml_backend_alloc_ctx_tensors: tensor '%s': its size of %zu bytes overflows", t->name, size);
    const size_t used = job->sizes.n ? job->sizes.data[job->sizes.n - 1] : 0;
    const bool fits = job->sizes.n && gb_add_size(used, padded, &end) && end <= job->max_size;
    if (!fits && !gb_vec_push(&job->sizes, 0)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    const struct placement placement = { t, job->sizes.n - 1, fits ? used : 0 };
    // a tensor alone in its buffer may be as large as the largest buffer, which has no space for padding
    job->sizes.data[job->sizes.n - 1] = fits ? used + padded : GB_MIN(padded, job->max_size);
    return gb_vec_push(&job->placements, placement) ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}

static enum ggml_status assign_all(struct ctx_job * job) {
    for (struct ggml_tensor * t = ggml_get_first_tensor(job->ctx); t; t = ggml_get_next_tensor(job->ctx, t)) {
        if (is_unplaced(t)) {
            GB_TRY(assign(job, t));
        }
    }
    return GGML_STATUS_SUCCESS;
}

// A group of tensors without bytes gets a buffer, too, because a placed tensor has a buffer.
static enum ggml_status alloc_buffers(struct ctx_job * job) {
    if (!gb_vec_reserve(&job->buffers, job->sizes.n)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    for (size_t i = 0; i < job->sizes.n; i++) {
        const size_t size = GB_MAX(job->sizes.data[i], GB_MIN(job->alignment, job->max_size));
        const ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(job->buft, size);
        if (buffer == NULL) {
            return ggml_last_status();
        }
        job->buffers.data[job->buffers.n++] = buffer;
    }
    return GGML_STATUS_SUCCESS;
}

// Binds a view to the memory of its source, and records the earlier binding to undo it. This call
// may have placed the source.
static enum ggml_status bind_view(struct ctx_job * job, struct ggml_tensor * t) {
    if (t->view_src == NULL || t->buffer != NULL || t->view_src->data == NULL || t->view_src->buffer == NULL) {
        return GGML_STATUS_SUCCESS; // no view, already bound, or its source is not placed
    }
    const struct bound_view view = { t, t->data, t->backend };
    if (!gb_vec_reserve(&job->views, job->views.n + 1)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    GB_TRY(ggml_backend_view_init(t->view_src->buffer, t));
    job->views.data[job->views.n++] = view;
    return GGML_STATUS_SUCCESS;
}

// Places sources before views, because views need the addresses of their sources. *n_placed counts
// the placements to undo.
static enum ggml_status place_all(struct ctx_job * job, size_t * n_placed) {
    for (; *n_placed < job->placements.n; ++*n_placed) {
        const struct placement p = job->placements.data[*n_placed];
        const ggml_backend_buffer_t buffer = job->buffers.data[p.buffer];
        char * base = ggml_backend_buffer_get_base(buffer);
        if (base == NULL) {
            return GGML_STATUS_INVALID_STATE;
        }
        GB_TRY(ggml_backend_tensor_alloc(buffer, p.tensor, base + p.offset));
    }
    for (struct ggml_tensor * t = ggml_get_first_tensor(job->ctx); t; t = ggml_get_next_tensor(job->ctx, t)) {
        GB_TRY(bind_view(job, t));
    }
    return GGML_STATUS_SUCCESS;
}

// Restores every tensor, and frees the buffers.
static void undo(struct ctx_job * job, size_t n_placed) {
    for (size_t i = 0; i < job->views.n; i++) {
        const struct bound_view view = job->views.data[i];
        gb_tensor_put(view.tensor, NULL, view.old_data);
        view.tensor->backend = view.old_backend;
    }
    for (size_t i = 0; i < n_placed; i++) {
        gb_tensor_put(job->placements.data[i].tensor, NULL, NULL);
    }
    for (size_t i = 0; i < job->buffers.n; i++) {
        ggml_backend_buffer_free(job->buffers.data[i]);
    }
}

// Makes one handle for all buffers. *handle stays NULL if there is nothing to place, and on
// failure.
static enum ggml_status alloc_all(struct ctx_job * job, ggml_backend_buffer_t * handle) {
    size_t n_placed = 0;
    enum ggml_status status = assign_all(job);
    if (status == GGML_STATUS_SUCCESS) {
        status = alloc_buffers(job);
    }
    if (status == GGML_STATUS_SUCCESS) {
        status = place_all(job, &n_placed);
    }
    if (status == GGML_STATUS_SUCCESS && job->buffers.n > 0) {
        *handle = job->buffers.n == 1 ? job->buffers.data[0]
                                      : ggml_backend_multi_buffer_alloc_buffer(job->buffers.data, job->buffers.n);
        status = *handle ? GGML_STATUS_SUCCESS : ggml_last_status();
    }
    if (status != GGML_STATUS_SUCCESS) {
        undo(job, n_placed);
    }
    return status;
}

struct ggml_backend_buffer * ggml_backend_alloc_ctx_tensors_from_buft(struct ggml_context * ctx,
    struct ggml_backend_buffer_type * buft) {
    GB_CHECK_ARG_RETURNING(ctx, NULL);
    GB_CHECK_ARG_RETURNING(buft, NULL);
    struct ctx_job job = { .ctx = ctx, .buft = buft };
    job.alignment = ggml_backend_buft_get_alignment(buft);
    job.max_size = ggml_backend_buft_get_max_size(buft);
    if (job.alignment == 0) {
        return NULL;
    }
    ggml_backend_buffer_t handle = NULL;
    alloc_all(&job, &handle);
    gb_vec_free(&job.placements);
    gb_vec_free(&job.sizes);
    gb_vec_free(&job.buffers);
    gb_vec_free(&job.views);
    return handle;
}

struct ggml_backend_buffer * ggml_backend_alloc_ctx_tensors(struct ggml_context * ctx, struct ggml_backend * backend) {
    const ggml_backend_buffer_type_t buft = ggml_backend_get_default_buffer_type(backend);
    return buft ? ggml_backend_alloc_ctx_tensors_from_buft(ctx, buft) : NULL;
}
