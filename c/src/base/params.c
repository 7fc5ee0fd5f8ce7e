// params.c - parses the parameters from which the registry makes backends ("CPU:threads=4"), in any
// locale.
//
// No function here reports errors, because only the callers know which parameter of which backend
// was wrong.
#include "base/params.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"

// Copies n bytes and a NUL. False, with nothing copied, if they do not fit.
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
    const size_t n = strcspn(p, ",");
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
    const size_t n = end != NULL ? (size_t) (end - p) : strlen(p);
    copy_part(item, size, p, n < size ? n : size - 1);
    *text = p + n + (end != NULL);
    return true;
}

// The number must end the text, and fit.
bool gb_params_int(const char * value, int64_t low, int64_t high, int64_t * r) {
    char * end;
    errno = 0;
    const long long v = strtoll(value, &end, 10);
    if (end == value || *end != '\0' || errno != 0 || v < low || v > high) {
        return false;
    }
    *r = v;
    return true;
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

struct decimal {
    uint64_t digits; // the first 18 digits as an integer
    int exponent;    // of 10
};

// Appends the digits at p to the number and returns the end of the digits. Digits beyond the 18th
// only change the exponent, because a double has fewer.
static const char * read_digits(const char * p, struct decimal * d, bool fraction) {
    for (; is_digit(*p); p++) {
        const bool fits = d->digits < UINT64_C(100000000000000000);
        d->digits = fits ? d->digits * 10 + (uint64_t) (*p - '0') : d->digits;
        d->exponent += fits ? (fraction ? -1 : 0) : (fraction ? 0 : 1);
    }
    return p;
}

// Reads "e-3" after a number and returns its end. Reads nothing if the "e" begins a unit. Limits
// the exponent, so that no text can overflow it.
static const char * read_exponent(const char * p, struct decimal * d) {
    const char * at = p + 1;
    const bool minus = *p != '\0' && *at == '-';
    if (gb_lower(*p) != 'e' || !is_digit(*at == '-' || *at == '+' ? at[1] : *at)) {
        return p;
    }
    int exponent = 0;
    for (at += *at == '-' || *at == '+'; is_digit(*at); at++) {
        exponent = GB_MIN(exponent * 10 + (*at - '0'), 10000);
    }
    d->exponent += minus ? -exponent : exponent;
    return at;
}

bool gb_number_read(const char * text, double * r, const char ** end) {
    if (!is_digit(*text)) {
        return false;
    }
    struct decimal d = { 0, 0 };
    const char * p = read_digits(text, &d, false);
    if (*p == '.') {
        p = read_digits(p + 1, &d, true);
    }
    *end = read_exponent(p, &d);
    double scale = 1;
    for (int i = abs(d.exponent); i > 0 && scale < 1e308; i--) {
        scale *= 10;
    }
    *r = d.exponent < 0 ? (double) d.digits / scale : (double) d.digits * scale;
    return true;
}

// printf uses the locale's decimal point, which may have several bytes. Bytes that are neither
// digits, signs nor letters become one point.
const char * gb_number_text(char * text, size_t size, int n_digits, double value) {
    snprintf(text, size, "%.*g", n_digits, value);
    char * to = text;
    for (const char * from = text; *from != '\0'; from++) {
        const char c = *from;
        if (is_digit(c) || c == '-' || c == '+' || (gb_lower(c) >= 'a' && gb_lower(c) <= 'z')) {
            *to++ = c;
            // Drops the other bytes of the locale's point.
        } else if (to == text || to[-1] != '.') {
            *to++ = '.';
        }
    }
    *to = '\0';
    return text;
}

// Reads a number, then optionally a letter for the power of 1024, then optionally "B", or "iB"
// after a letter. A size between 0 and 1 byte is invalid.
bool gb_params_size(const char * value, size_t * r) {
    static const char * const units[] = { "", "k", "m", "g", "t" };
    double number;
    const char * unit;
    if (!gb_number_read(value, &number, &unit)) {
        return false;
    }
    char letter[2] = { *unit, '\0' };
    const char * rest = *unit == '\0' ? unit : unit + 1;
    if (gb_text_equal(unit, "b")) { // bytes
        letter[0] = '\0';
    } else if (*rest != '\0' && !gb_text_equal(rest, "b") && !gb_text_equal(rest, "ib")) {
        return false;
    }
    for (int i = 0; i < 5; i++) {
        if (gb_text_equal(letter, units[i])) {
            const double bytes = number * (double) (1ull << (10 * i));
            // Without a unit the number must be an integer, because there are no fractions of a
            // byte.
            const bool fits = bytes < (double) (SIZE_MAX / 2) && (i > 0 || bytes == (double) (size_t) bytes) &&
                              (bytes >= 1 || number == 0);
            *r = fits ? (size_t) bytes : 0;
            return fits;
        }
    }
    return false;
}

// Requires a unit except for 0, so that seconds are not taken for milliseconds.
bool gb_params_duration(const char * value, int64_t * ns) {
    static const struct {
        const char * name;
        double ns;
    } units[] = { { "ns", 1 }, { "us", 1e3 }, { "ms", 1e6 }, { "s", 1e9 } };
    double number;
    const char * unit;
    if (!gb_number_read(value, &number, &unit)) {
        return false;
    }
    *ns = 0;
    if (*unit == '\0') {
        return number == 0;  // other numbers need a unit
    }
    for (int i = 0; i < 4; i++) {
        if (gb_text_equal(unit, units[i].name)) {
            const bool fits = number * units[i].ns < 3.6e12; // an hour
            *ns = fits ? (int64_t) (number * units[i].ns) : 0;
            return fits;
        }
    }
    return false;
}
