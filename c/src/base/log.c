// log.c - the log callback of the process.
//
// The callback runs without a lock, so it may log, fail, or set another callback. A thread that
// read the old callback may therefore call it once more after the replacement.
#include "log.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

#include "status.h"
#include "thread.h"

struct log_sink {
    ggml_log_callback callback;
    void * user_data;
};

// Drops the messages of a thread that runs the callback. Otherwise a failure inside the callback
// would be logged, and call it again without end.
static _Thread_local bool in_callback;

static struct log_sink sink; // guarded by GB_MUTEX_LOG; callback NULL: stderr

void ggml_log_discard(enum ggml_log_level level, const char * text, void * user_data) {
    (void) level;
    (void) text;
    (void) user_data;
}

void ggml_log_set(ggml_log_callback callback, void * user_data) {
    gb_process_lock(GB_MUTEX_LOG);
    sink = (struct log_sink){ callback, user_data };
    gb_process_unlock(GB_MUTEX_LOG);
}

void gb_log(enum ggml_log_level level, const char * fmt, ...) {
    gb_process_lock(GB_MUTEX_LOG);
    const struct log_sink to = sink;
    gb_process_unlock(GB_MUTEX_LOG);

    if (to.callback == ggml_log_discard || in_callback) {
        return;
    }
    char text[GB_ERROR_SIZE + 1];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof(text) - 1, fmt, args);
    va_end(args);
    if (n < 0) {
        return;
    }
    if ((size_t) n > sizeof(text) - 2) {
        n = (int) sizeof(text) - 2;
    }
    text[n] = '\n';
    text[n + 1] = '\0';
    if (to.callback) {
        in_callback = true;
        to.callback(level, text, to.user_data);
        in_callback = false;
    } else {
        fputs(text, stderr);
    }
}
