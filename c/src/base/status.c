// status.c - the last failure of each thread, and the names of the statuses.
//
// The state has a fixed size and belongs to a thread. So recording a failure cannot fail and needs
// no lock.
#include "status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ggml-backend-impl.h"
#include "log.h"

static _Thread_local struct gb_failure error_state;

// log_is_due: a failure was recorded while the log was held.
static _Thread_local bool log_is_held, log_is_due;

// The end of a message that was cut.
static const char cut_mark[] = "...";

// Logs the failure of this thread. Restores the state afterwards, because the callback may fail
// itself, or clear the failure.
static void log_error(void) {
    const struct gb_failure before = error_state;
    gb_log(GGML_LOG_LEVEL_ERROR, "%s", before.plain);
    error_state = before;
}

void gb_hold_log(bool hold) {
    log_is_held = hold;
    if (!hold && log_is_due) {
        log_is_due = false;
        log_error();
    }
}

char * gb_plain_text(char * text) {
    size_t n = 0;
    for (const char * at = text; *at != '\0'; at++) {
        if (*at != GB_QUOTE_BEGIN[0] && *at != GB_QUOTE_END[0]) {
            text[n++] = *at;
        }
    }
    text[n] = '\0';
    return text;
}

// The length of the library's function names at the beginning of a message: "ggml_mul_mat: ".
static size_t length_of_functions(const char * message) {
    size_t length = 0;
    for (;;) {
        const char * name = message + length;
        const size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_ABCDEFGHIJKLMNOPQRSTUVWXYZ");
        const bool ours =
            strncmp(name, "ggml_", 5) == 0 || strncmp(name, "gguf_", 5) == 0 || strncmp(name, "gb_", 3) == 0;
        if (!ours || strncmp(name + n, ": ", 2) != 0) {
            return length;
        }
        length += n + 2;
    }
}

// `message` may be the message of the previous failure.
static void record(enum ggml_status status, const char * message) {
    error_state.status = status;
    error_state.count++;
    error_state.fault.kind = GB_FAULT_NONE;
    if (message != error_state.message) {
        snprintf(error_state.message, sizeof(error_state.message), "%s", message);
    }
    error_state.text = length_of_functions(error_state.message);
    memcpy(error_state.plain, error_state.message, strlen(error_state.message) + 1);
    gb_plain_text(error_state.plain);
}

// A message that is too long ends with "...".
static enum ggml_status fail_with_args(enum ggml_status status, const char * fmt, va_list args) {
    char text[GB_ERROR_SIZE];  // a copy, because an argument may be the old message
    const int n = vsnprintf(text, sizeof(text), fmt, args);
    if (n < 0) {
        snprintf(text, sizeof(text), "%s", fmt);
    } else if ((size_t) n >= sizeof(text)) {
        memcpy(text + sizeof(text) - sizeof(cut_mark), cut_mark, sizeof(cut_mark));
    }
    record(status, text);
    if (log_is_held) {
        log_is_due = true;
    } else {
        log_error();
    }
    return status;
}

enum ggml_status gb_fail(enum ggml_status status, const char * fmt, ...) {
    va_list args;
    va_start(args, fmt);
    fail_with_args(status, fmt, args);
    va_end(args);
    return status;
}

enum ggml_status gb_fail_quietly(enum ggml_status status, const char * message) {
    record(status, message);
    return status;
}

void gb_set_fault(const struct gb_fault * fault) { error_state.fault = *fault; }

const struct gb_failure * gb_last_failure(void) { return &error_state; }

// The count grows in both cases, because this call has failed as well.
void gb_fail_null(const char * func, const char * argument) {
    if (error_state.status == GGML_STATUS_SUCCESS) {
        gb_fail(GGML_STATUS_INVALID_ARGUMENT, "%s: argument '%s' is NULL", func, argument);
    } else {
        error_state.count++;
    }
}

uint64_t gb_fail_count(void) { return error_state.count; }

enum ggml_status gb_status_since(uint64_t fail_count) {
    return error_state.count == fail_count ? GGML_STATUS_SUCCESS : error_state.status;
}

void gb_failure_save(struct gb_failure * failure) { *failure = error_state; }

void gb_failure_restore(const struct gb_failure * failure) { error_state = *failure; }

void gb_forget_failures_since(uint64_t fail_count) { error_state.count = fail_count; }

// gb_fail for backends of other modules. Ignores a success.
enum ggml_status ggml_report_error(enum ggml_status status, const char * fmt, ...) {
    if (status == GGML_STATUS_SUCCESS || fmt == NULL) {
        return status;
    }
    va_list args;
    va_start(args, fmt);
    fail_with_args(status, fmt, args);
    va_end(args);
    return status;
}

enum ggml_status ggml_last_status(void) { return error_state.status; }

const char * ggml_last_error(void) { return error_state.plain; }

// Does not reset the count, because gb_status_since compares it.
void ggml_clear_error(void) {
    error_state.status = GGML_STATUS_SUCCESS;
    error_state.message[0] = error_state.plain[0] = '\0';
    error_state.text = 0;
    error_state.fault.kind = GB_FAULT_NONE;
}

const char * ggml_status_to_string(enum ggml_status status) {
    switch (status) {
        case GGML_STATUS_IO_ERROR: return "IO_ERROR";
        case GGML_STATUS_INVALID_STATE: return "INVALID_STATE";
        case GGML_STATUS_DEVICE_ERROR: return "DEVICE_ERROR";
        case GGML_STATUS_UNSUPPORTED: return "UNSUPPORTED";
        case GGML_STATUS_INVALID_ARGUMENT: return "INVALID_ARGUMENT";
        case GGML_STATUS_ALLOC_FAILED: return "ALLOC_FAILED";
        case GGML_STATUS_FAILED: return "FAILED";
        case GGML_STATUS_SUCCESS: return "SUCCESS";
        case GGML_STATUS_ABORTED: return "ABORTED";
    }
    return "UNKNOWN";
}
