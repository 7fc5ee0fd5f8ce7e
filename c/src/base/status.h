// status.h - the error channel: each thread has the status, the message and the values of its last failure.
//
// A function that fails calls gb_fail once, where it knows the values. Its callers only forward the
// status. A message reads "function: argument 'name': what is wrong with which value, limit". The
// buffers have a fixed size, so recording works even when memory has run out.
//
// Other languages use neither C's function names nor C's order of dimensions. So a failure also
// records where its text begins after the function names, which values are in C's notation
// (GB_QUOTE), and the values of a broken rule (fault.h).
#ifndef GB_BASE_STATUS_H
#define GB_BASE_STATUS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/fault.h"
#include "ggml.h"

#define GB_ERROR_SIZE 2048 // bytes of a message with its NUL; longer ones are cut

// Encloses a value in C's notation: a tensor ('x' f32 [128, 16]), a type, or a shape or position
// ([128, 16]). The message of this module keeps the two bytes. ggml_last_error and the log have a
// copy without them.
#define GB_QUOTE_BEGIN "\016"
#define GB_QUOTE_END "\017"
#define GB_QUOTE(text) GB_QUOTE_BEGIN text GB_QUOTE_END

// Removes the bytes of GB_QUOTE from a text, and returns the text.
char * gb_plain_text(char * text);

// Records the failure for this thread, logs it, and returns `status`.
GGML_ATTRIBUTE_FORMAT(2, 3) enum ggml_status gb_fail(enum ggml_status status, const char * fmt, ...);

// Records without logging, for a failure that was already logged (in another thread, or before a
// replay).
enum ggml_status gb_fail_quietly(enum ggml_status status, const char * message);

// For a thread that holds a lock which a log callback may need. While `hold` is on, this thread
// logs no errors. Switching it off logs the last failure that was recorded since.
void gb_hold_log(bool hold);

// Adds the values of a broken rule to the failure that was just recorded.
void gb_set_fault(const struct gb_fault * fault);

// For a builder that got NULL as a tensor. If this thread has recorded a failure, that failure most
// likely caused the NULL, so its message stays. Otherwise the argument is reported.
void gb_fail_null(const char * func, const char * argument);

// The library's side of "Errors of hooks" in ggml-backend-impl.h. gb_fail_count is the number of failures that this
// thread has recorded. gb_status_since is the status of the last one if there were any after the count was
// `fail_count`, else GGML_STATUS_SUCCESS.
uint64_t gb_fail_count(void);
enum ggml_status gb_status_since(uint64_t fail_count);

// Call it after a function of the user's that began when gb_fail_count was `fail_count`. Failures
// from which the function recovered then do not count as failures of its caller.
void gb_forget_failures_since(uint64_t fail_count);

// The failure that this thread has recorded, and how to restore it. Used for work between a failure
// and its reader, such as freeing objects in a garbage collection.
struct gb_failure {
    enum ggml_status status;
    uint64_t count; // grows with every failure, and is not reset when the failure is cleared
    char message[GB_ERROR_SIZE]; // with the bytes of GB_QUOTE
    char plain[GB_ERROR_SIZE]; // without them: ggml_last_error
    size_t text;  // where the message begins after C's function names
    struct gb_fault fault;
};
// The last failure of this thread. The struct belongs to the thread and changes with its next failure.
const struct gb_failure * gb_last_failure(void);
// Its message, for use within another message.
static inline const char * gb_last_message(void) { return gb_last_failure()->message; }
void gb_failure_save(struct gb_failure * failure);
void gb_failure_restore(const struct gb_failure * failure);

// If `cond` holds, reports a failure and returns from the calling function: GB_FAIL_IF returns the status,
// GB_FAIL_IF_RETURNING the value `ret`.
#define GB_FAIL_IF(cond, status, ...)              \
    do {                                           \
        if (cond) {                                \
            return gb_fail((status), __VA_ARGS__); \
        }                                          \
    } while (0)

#define GB_FAIL_IF_RETURNING(cond, ret, status, ...) \
    do {                                             \
        if (cond) {                                  \
            gb_fail((status), __VA_ARGS__);          \
            return ret;                              \
        }                                            \
    } while (0)

// Returns the status of a failed callee, which has reported its failure.
#define GB_TRY(expr)                                   \
    do {                                               \
        const enum ggml_status gb_try_status = (expr); \
        if (gb_try_status != GGML_STATUS_SUCCESS) {    \
            return gb_try_status;                      \
        }                                              \
    } while (0)

// GB_FAIL_IF and GB_FAIL_IF_RETURNING for an argument that is NULL: INVALID_ARGUMENT with its name.
// Only for public functions.
#define GB_CHECK_ARG(ptr) \
    GB_FAIL_IF((ptr) == NULL, GGML_STATUS_INVALID_ARGUMENT, "%s: argument '%s' is NULL", __func__, #ptr)

#define GB_CHECK_ARG_RETURNING(ptr, ret) \
    GB_FAIL_IF_RETURNING((ptr) == NULL, ret, GGML_STATUS_INVALID_ARGUMENT, "%s: argument '%s' is NULL", __func__, #ptr)

#endif // GB_BASE_STATUS_H
