// ggml-status.h - errors: a failed call returns a status, and sets a message of its thread.
//
// No argument or call aborts the process. A failed call returns NULL, a negative status, or its
// documented neutral value, and leaves its objects unchanged. Most functions that return void in
// early 2024's ggml return a status.
#ifndef GGML_STATUS_H
#define GGML_STATUS_H

#include "ggml-export.h"

#ifdef __cplusplus
extern "C" {
#endif

// cdef: begin

enum ggml_status {
    GGML_STATUS_IO_ERROR = -7,         // a file could not be opened, read or written, or its content is malformed
    GGML_STATUS_INVALID_STATE = -6,  // the object cannot do that now (not allocated, closed, failed, ...)
    GGML_STATUS_DEVICE_ERROR = -5,     // a device or driver reported a failure
    GGML_STATUS_UNSUPPORTED = -4,      // valid, but not implemented for this type, op or backend
    GGML_STATUS_INVALID_ARGUMENT = -3,  // NULL, wrong type or shape, out of range, overflow
    GGML_STATUS_ALLOC_FAILED = -2,     // no memory, on the host or on a device
    GGML_STATUS_FAILED = -1,           // anything else
    GGML_STATUS_SUCCESS = 0,
    GGML_STATUS_ABORTED = 1, // a callback asked to stop
};

GGML_API const char * ggml_status_to_string(enum ggml_status status); // "SUCCESS", "INVALID_ARGUMENT", ...; never NULL
GGML_API enum ggml_status ggml_last_status(void); // of the calling thread; only failures set it, like errno
// message of that failure, "" if none; valid until the thread's next failure
GGML_API const char * ggml_last_error(void);
GGML_API void ggml_clear_error(void); // removes status and message

// cdef: end

#ifdef __cplusplus
}
#endif

#endif // GGML_STATUS_H
