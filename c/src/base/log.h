// log.h - messages for humans, through the callback of ggml_log_set (default: stderr).
#ifndef GB_BASE_LOG_H
#define GB_BASE_LOG_H

#include "ggml.h"

GGML_ATTRIBUTE_FORMAT(2, 3) void gb_log(enum ggml_log_level level, const char * fmt, ...); // adds the newline

#endif // GB_BASE_LOG_H
