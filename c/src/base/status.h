// status.h - the error channel: one status and one message per thread.
//
// A failing function calls gb_fail once, where it knows the values, and every caller only forwards. Messages read
// "function: argument 'name': what is wrong with which value, limit". Works when memory is out (fixed buffers, no
// malloc).
#ifndef GB_BASE_STATUS_H
#define GB_BASE_STATUS_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>

#include "ggml.h"

#define GB_ERROR_SIZE  2048 // bytes of a message, with its NUL; longer ones are cut
#define GB_REASON_SIZE 512

// Records the failure for this thread, sends it to the log, returns `status`.
GGML_ATTRIBUTE_FORMAT(2, 3) enum ggml_status gb_fail(enum ggml_status status, const char * fmt, ...);
enum ggml_status gb_vfail(enum ggml_status status, const char * fmt, va_list args);

// Records without logging: for a failure that was logged where it happened (another thread, a replay).
enum ggml_status gb_fail_quietly(enum ggml_status status, const char * message);

// For who holds a lock that a log callback may want: while `hold` is on, this thread logs no errors; when it ends, the
// failure that was recorded last is logged, if any was to be logged meanwhile.
void gb_hold_log(bool hold);

// Beside the failure just recorded: its reason in a form that another interface can put in its own words
// (tensor/rule.h). Kept until the next failure.
void         gb_fail_reason(const char * reason);
const char * gb_last_reason(void); // "" if the last failure has none

// A builder got NULL: keeps the message of the failure that most likely caused it, else reports the argument.
void gb_fail_null(const char * func, const char * argument);

// The library's side of what ggml-backend-impl.h says under "Errors of hooks": the number of failures that this thread
// has recorded, and the status of the last one if that number is another than `fail_count`, else GGML_STATUS_SUCCESS.
uint64_t         gb_fail_count(void);
enum ggml_status gb_status_since(uint64_t fail_count);

// A function of the user's was called when gb_fail_count was that: what it tried in vain is its own affair, and no
// failure of who called it.
void gb_forget_failures_since(uint64_t fail_count);

// Reports a failure and returns from the calling function: GB_FAIL_IF returns the status, GB_FAIL_IF_RETURNING the
// value `ret`.
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

// Forwards the status of a callee that has reported already.
#define GB_TRY(expr)                                   \
    do {                                               \
        const enum ggml_status gb_try_status = (expr); \
        if (gb_try_status != GGML_STATUS_SUCCESS) {    \
            return gb_try_status;                      \
        }                                              \
    } while (0)

// The same where an argument is NULL.
#define GB_CHECK_ARG(ptr) \
    GB_FAIL_IF((ptr) == NULL, GGML_STATUS_INVALID_ARGUMENT, "%s: argument '%s' is NULL", __func__, #ptr)

#define GB_CHECK_ARG_RETURNING(ptr, ret) \
    GB_FAIL_IF_RETURNING((ptr) == NULL, ret, GGML_STATUS_INVALID_ARGUMENT, "%s: argument '%s' is NULL", __func__, #ptr)

#endif // GB_BASE_STATUS_H
