// text.h - texts built in the caller's memory, and comparison of names that users write.
#ifndef GB_BASE_TEXT_H
#define GB_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "ggml.h"

// The end of a growing text, which always ends with a NUL. Not owned.
struct gb_text {
    char * at;
    size_t left; // bytes, with the NUL: at least 1
};

// Appends to the text, and cuts what does not fit.
GGML_ATTRIBUTE_FORMAT(2, 3) void gb_text_append(struct gb_text * t, const char * fmt, ...);

// A number of bytes for people: "640 bytes", "1.5 KiB", "4.0 TiB". Returns buf.
const char * gb_size_text(size_t size, char buf[32]);

// ASCII letters only, in any locale.
static inline char gb_lower(char c) { return c >= 'A' && c <= 'Z' ? (char) (c - 'A' + 'a') : c; }

// True if two texts differ only in the case of ASCII letters.
bool gb_text_equal(const char * a, const char * b);

#endif // GB_BASE_TEXT_H
