// params.h - reading "key=value,key=value" with numbers, sizes and durations. Strict: what is not understood is false,
// never a guess.
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

// Takes the next pair off *text (NULL and "" are the empty list). BAD: no "=", an empty key, or too long; *text then
// stays there.
enum gb_params_next gb_params_next(const char ** text, struct gb_param * param);

// The next item of a list with the given separator into `item`; false at the end. Items that do not fit are cut.
bool gb_params_item(const char ** text, char separator, char * item, size_t size);

// Numbers as files and parameters have them: with a point, whatever the program's locale has (setlocale changes strtod
// and printf).
// >= 0, begins with a digit; *end: what follows
bool         gb_number_read(const char * text, double * r, const char ** end);
const char * gb_number_text(char * text, size_t size, int n_digits, double value); // as "%.<n_digits>g"; returns text

bool gb_params_int(const char * value, int64_t low, int64_t high, int64_t * r);
bool gb_params_size(const char * value, size_t * r);       // bytes: "4096", "64K", "1.5M", "2GiB" (powers of 1024)
bool gb_params_duration(const char * value, int64_t * ns); // "2ms", "1.5s", "300us", "50ns", "0"

bool gb_text_equal(const char * a, const char * b); // without case, ASCII

#endif // GB_BASE_PARAMS_H
