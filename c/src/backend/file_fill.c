// file_fill.c - bytes of tensors that devices read from files themselves.
//
// This file computes the digest of a part while devices read the parts before it. So loading takes
// as long as the slower of the two. All requests end in the order in which they began, even after a
// failure.
#include <stdio.h>

#include "backend/backend.h"
#include "base/current.h"
#include "base/digest.h"
#include "base/mapped.h"

enum { MOST = 16, PIECE = 1 << 20 };  // requests at once; bytes between two polls

// Requests that have begun and not ended.
struct window {
    void * requests[MOST];
    struct ggml_backend_file_fill * parts[MOST];
    size_t begun, ended;
};

static enum ggml_status check_part(const char * func, const struct ggml_backend_file_fill * part, size_t i) {
    GB_FAIL_IF(part->tensor == NULL || part->path == NULL || (part->data == NULL && part->size > 0),
        GGML_STATUS_INVALID_ARGUMENT, "%s: part %zu has no %s", func, i,
        part->tensor == NULL ? "tensor"
        : part->path == NULL ? "path"
                             : "data");
    return part->size == 0 ? GGML_STATUS_SUCCESS
                           : gb_tensor_check_access(func, part->tensor, part->data, part->offset, part->size);
}

static enum ggml_status find_digest(struct ggml_backend_file_fill * part) {
    struct gb_digest digest;
    gb_digest_begin(&digest);
    for (size_t done = 0, n; done < part->size; done += n) {
        n = GB_MIN(part->size - done, PIECE);
        gb_mapped_enter();
        gb_digest_add(&digest, (const char *) part->data + done, n);
        gb_mapped_leave();
        GB_TRY(gb_check_poll());
    }
    gb_digest_end(&digest, part->digest);
    return gb_mapped_check_at("ggml_backend_fill_from_files", part->data);
}

// The failure of a hook, with the names of the tensor and the file.
static enum ggml_status named(const struct ggml_backend_file_fill * part, enum ggml_status status) {
    char text[GB_ERROR_SIZE + 512];  // more than a failure keeps
    struct gb_failure failure;
    if (status == GGML_STATUS_SUCCESS) {
        return status;
    }
    gb_failure_save(&failure);
    snprintf(text, sizeof(text), "ggml_backend_fill_from_files: tensor '%.63s' from '%.255s': %s", part->tensor->name,
        part->path, failure.message);
    return gb_fail_quietly(status, text);
}

static ggml_backend_buffer_t reader_of(const struct ggml_backend_file_fill * part) {
    const ggml_backend_buffer_t buffer = gb_tensor_buffer(part->tensor);
    return buffer != NULL && buffer->iface.file_begin != NULL && buffer->iface.file_end != NULL ? buffer : NULL;
}

static enum ggml_status end_first(struct window * w, bool wanted) {
    struct ggml_backend_file_fill * part = w->parts[w->ended % MOST];
    void * request = w->requests[w->ended++ % MOST];
    const ggml_backend_buffer_t buffer = gb_tensor_buffer(part->tensor);
    const uint64_t before = gb_fail_count();
    const bool found = buffer->iface.file_end(buffer, request, wanted);
    if (wanted) {
        GB_TRY(named(part, gb_status_since(before)));
        part->filled = found;
    }
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status begin(struct window * w, struct ggml_backend_file_fill * part) {
    const ggml_backend_buffer_t buffer = reader_of(part);
    if (buffer == NULL || part->size == 0) {
        return GGML_STATUS_SUCCESS;
    }
    GB_TRY(find_digest(part));
    if (w->begun - w->ended == MOST) {
        GB_TRY(end_first(w, true));
    }
    const uint64_t before = gb_fail_count();
    gb_buffer_changed(buffer);
    void * request = buffer->iface.file_begin(buffer, part);
    if (request != NULL) {
        part->asked = true;
        w->requests[w->begun % MOST] = request;
        w->parts[w->begun++ % MOST] = part;
    }
    return request != NULL ? GGML_STATUS_SUCCESS : named(part, gb_status_since(before));
}

enum ggml_status ggml_backend_fill_from_files(struct ggml_backend_file_fill * fills, size_t n) {
    struct window w = { .begun = 0 };
    enum ggml_status status = GGML_STATUS_SUCCESS;
    if (n > 0) {
        GB_CHECK_ARG(fills);
    }
    for (size_t i = 0; i < n; i++) {
        GB_TRY(check_part(__func__, &fills[i], i));
        fills[i].asked = fills[i].filled = false;
    }
    for (size_t i = 0; i < n && status == GGML_STATUS_SUCCESS; i++) {
        status = begin(&w, &fills[i]);
    }
    while (status == GGML_STATUS_SUCCESS && w.ended < w.begun) {
        status = end_first(&w, true);
    }
    struct gb_failure failure;
    gb_failure_save(&failure);
    while (w.ended < w.begun) {  // after a failure, which stays the reported one
        (void) end_first(&w, false);
    }
    if (status != GGML_STATUS_SUCCESS) {
        gb_failure_restore(&failure);
    }
    return status;
}

enum ggml_status ggml_backend_keep_file(const struct ggml_backend_file_fill * fill) {
    GB_CHECK_ARG(fill);
    GB_TRY(check_part(__func__, fill, 0));
    const ggml_backend_buffer_t buffer = reader_of(fill);
    if (buffer == NULL || buffer->iface.file_keep == NULL || fill->size == 0 || !fill->asked) {
        return GGML_STATUS_SUCCESS;
    }
    const uint64_t before = gb_fail_count();
    buffer->iface.file_keep(buffer, fill);
    return gb_status_since(before);
}
