// log.h - messages for people, sent to the callback of ggml_log_set (stderr if none is set).
#ifndef GB_BASE_LOG_H
#define GB_BASE_LOG_H

#include "ggml.h"

// Sends one message, with a newline. Longer messages are cut to GB_ERROR_SIZE. Takes GB_MUTEX_LOG
// briefly, and calls the callback without it.
GGML_ATTRIBUTE_FORMAT(2, 3) void gb_log(enum ggml_log_level level, const char * fmt, ...);

#endif // GB_BASE_LOG_H
