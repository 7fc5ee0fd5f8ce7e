// params.c - see params.h. Used by the backends that the registry makes from a string.
#include "base/params.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static char lower(char c) {
    return c >= 'A' && c <= 'Z' ? (char) (c - 'A' + 'a') : c;
}

bool gb_text_equal(const char * a, const char * b) {
    while (*a != '\0' && lower(*a) == lower(*b)) {
        a++;
        b++;
    }
    return lower(*a) == lower(*b);
}

static bool copy_part(char * to, size_t size, const char * from, size_t n) {
    if (n >= size) {
        return false;
    }
    memcpy(to, from, n);
    to[n] = '\0';
    return true;
}

enum gb_params_next gb_params_next(const char ** text, struct gb_param * param) {
    const char * p = *text;
    if (p == NULL || *p == '\0') {
        return GB_PARAMS_END;
    }
    const size_t n      = strcspn(p, ",");
    const size_t before = strcspn(p, "=,");
    if (before == 0 || before == n || !copy_part(param->key, sizeof(param->key), p, before) ||
        !copy_part(param->value, sizeof(param->value), p + before + 1, n - before - 1)) {
        return GB_PARAMS_BAD;
    }
    *text = p + n + (p[n] == ',');
    return GB_PARAMS_GOOD;
}

bool gb_params_item(const char ** text, char separator, char * item, size_t size) {
    const char * p = *text;
    if (p == NULL || *p == '\0') {
        return false;
    }
    const char * end = strchr(p, separator);
    const size_t n   = end != NULL ? (size_t) (end - p) : strlen(p);
    copy_part(item, size, p, n < size ? n : size - 1);
    *text = p + n + (end != NULL);
    return true;
}

bool gb_params_int(const char * value, int64_t low, int64_t high, int64_t * r) {
    char * end;
    errno             = 0;
    const long long v = strtoll(value, &end, 10);
    if (end == value || *end != '\0' || errno != 0 || v < low || v > high) {
        return false;
    }
    *r = v;
    return true;
}

// A number >= 0 that begins with a digit (no "inf", "nan", sign or blank); *unit is what follows.
static bool read_number(const char * value, double * r, const char ** unit) {
    if (*value < '0' || *value > '9') {
        return false;
    }
    char * end;
    *r    = strtod(value, &end);
    *unit = end;
    return true;
}

bool gb_params_size(const char * value, size_t * r) {
    static const char * const units[] = { "", "k", "m", "g", "t" };
    double       number;
    const char * unit;
    if (!read_number(value, &number, &unit)) {
        return false;
    }
    char         letter[2] = { *unit, '\0' };
    const char * rest      = *unit == '\0' ? unit : unit + 1;
    if (*rest != '\0' && !gb_text_equal(rest, "b") && !gb_text_equal(rest, "ib")) {
        return false;
    }
    for (int i = 0; i < 5; i++) {
        if (gb_text_equal(letter, units[i])) {
            const double bytes = number * (double) (1ull << (10 * i));
            const bool   fits  = bytes < (double) (SIZE_MAX / 2);
            *r                 = fits ? (size_t) bytes : 0;
            return fits;
        }
    }
    return false;
}

bool gb_params_duration(const char * value, int64_t * ns) {
    static const struct {
        const char * name;
        double       ns;
    } units[] = { { "ns", 1 }, { "us", 1e3 }, { "ms", 1e6 }, { "s", 1e9 } };
    double       number;
    const char * unit;
    if (!read_number(value, &number, &unit)) {
        return false;
    }
    *ns = 0;
    if (*unit == '\0') {
        return number == 0; // anything else needs its unit
    }
    for (int i = 0; i < 4; i++) {
        if (gb_text_equal(unit, units[i].name)) {
            const bool fits = number * units[i].ns < 3.6e12; // an hour
            *ns             = fits ? (int64_t) (number * units[i].ns) : 0;
            return fits;
        }
    }
    return false;
}
