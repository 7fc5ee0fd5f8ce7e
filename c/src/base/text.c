// text.c - appending to a text, and comparing two texts. Allocates nothing and reports nothing.
#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>

void gb_text_append(struct gb_text * t, const char * fmt, ...) {
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(t->at, t->left, fmt, args);
    va_end(args);
    const size_t used = n < 0 ? 0 : (size_t) n < t->left ? (size_t) n : t->left - 1;
    t->at += used;
    t->left -= used;
}

const char * gb_size_text(size_t size, char buf[32]) {
    static const char * const units[] = { "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
    if (size < 1024) {
        snprintf(buf, 32, "%zu byte%s", size, size == 1 ? "" : "s");
        return buf;
    }
    double value = (double) size / 1024;
    int unit = 0;
    for (; value >= 1024 && unit < 5; unit++) {
        value /= 1024;
    }
    snprintf(buf, 32, "%.1f %s", value, units[unit]);
    return buf;
}

bool gb_text_equal(const char * a, const char * b) {
    while (*a != '\0' && gb_lower(*a) == gb_lower(*b)) {
        a++;
        b++;
    }
    return gb_lower(*a) == gb_lower(*b);
}
