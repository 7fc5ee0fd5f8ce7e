// log.h - messages for people, sent to the callback of ggml_log_set (stderr if none is set).
#ifndef GB_BASE_LOG_H
#define GB_BASE_LOG_H

#include "ggml.h"

// Sends one message; the newline is added here. Messages longer than GB_ERROR_SIZE are cut. Takes GB_MUTEX_LOG for a
// moment and calls the callback without it.
GGML_ATTRIBUTE_FORMAT(2, 3) void gb_log(enum ggml_log_level level, const char * fmt, ...);

#endif // GB_BASE_LOG_H
