// ggml-backend-impl-ext.h - additions to ggml's interface of February 2024, for authors of
// backends. ggml-backend-impl.h includes this header. The structures in ggml-backend-impl.h have the
// newer, optional hooks.
#ifndef GGML_BACKEND_IMPL_EXT_H
#define GGML_BACKEND_IMPL_EXT_H

#include "ggml-backend-impl.h"

#ifdef __cplusplus
extern "C" {
#endif

// Reports an error of a hook (ggml-backend-impl.h, "Errors of hooks"): records it for the calling
// thread, logs it, and returns `status`.
GGML_API GGML_ATTRIBUTE_FORMAT(2, 3) enum ggml_status ggml_report_error(enum ggml_status status, const char * fmt, ...);

// A point in the queue of a backend. It is complete when all earlier work is.
struct ggml_backend_event {
    ggml_backend_t backend;
    void * context;  // belongs to the backend; NULL: the library's own events, for backends without these hooks
};

// True if a backend that fuses the node with its only reader need not store the node's result. A graph allocator or a
// scheduler placed the result, found no other reader, and nothing uses the memory afterwards.
GGML_API bool ggml_backend_may_leave_out(const struct ggml_tensor * node);

#ifdef __cplusplus
}
#endif

#endif // GGML_BACKEND_IMPL_EXT_H
