// params.h - reading "key=value,key=value" with numbers, sizes and durations.
//
// The readers are strict: they return false unless they understand the whole text. They report
// nothing, because only the callers know which parameter of which backend was wrong.
#ifndef GB_BASE_PARAMS_H
#define GB_BASE_PARAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gb_param {
    char key[32];
    char value[512];
};

enum gb_params_next { GB_PARAMS_END, GB_PARAMS_GOOD, GB_PARAMS_BAD };

// Moves the next pair from *text to `param`. NULL and "" are empty lists. GB_PARAMS_BAD: no "=", an
// empty key, or a key or value that is too long. *text then does not move.
enum gb_params_next gb_params_next(const char ** text, struct gb_param * param);

// Moves the next item of a list with the given separator from *text to `item`. False at the end.
// Cuts an item that does not fit into `size` bytes.
bool gb_params_item(const char ** text, char separator, char * item, size_t size);

// Numbers with a decimal point in any locale (setlocale changes strtod and printf). gb_number_read
// reads a number >= 0 that begins with a digit. *end is the first byte after it. False: no digit.
bool gb_number_read(const char * text, double * r, const char ** end);
// Writes a number as "%.<n_digits>g" does in the C locale; returns `text`.
const char * gb_number_text(char * text, size_t size, int n_digits, double value);

// A decimal integer from low to high, both included. False leaves *r unchanged.
bool gb_params_int(const char * value, int64_t low, int64_t high, int64_t * r);
// A number of bytes: "4096", "64K", "1.5M", "2GiB" (powers of 1024). False: not understood, or too large.
bool gb_params_size(const char * value, size_t * r);
// A time in nanoseconds, less than an hour: "2ms", "1.5s", "300us", "50ns", "0".
bool gb_params_duration(const char * value, int64_t * ns);

#endif // GB_BASE_PARAMS_H
