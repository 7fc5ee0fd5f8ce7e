// test.h - the smallest useful test harness. A test program defines functions `static void name(void)` and ends with
//     TEST_MAIN(TEST(name), TEST(other))
// A failed CHECK prints and counts, and the test continues. `./test_x name` runs one test. Exit: 0
// passed, 1 failed, 77 all skipped.
#ifndef GB_TESTS_TEST_H
#define GB_TESTS_TEST_H

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ggml.h"

static int test_failures;
static int test_skips;

__attribute__((format(printf, 3, 4))) static inline void test_fail(const char * file, int line, const char * fmt, ...) {
    va_list args;
    va_start(args, fmt);
    fprintf(stderr, "%s:%d: ", file, line);
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
    va_end(args);
    test_failures++;
}

#define CHECK(cond)                                             \
    do {                                                        \
        if (!(cond))                                            \
            test_fail(__FILE__, __LINE__, "failed: %s", #cond); \
    } while (0)

#define CHECK_MSG(cond, ...)                            \
    do {                                                \
        if (!(cond))                                    \
            test_fail(__FILE__, __LINE__, __VA_ARGS__); \
    } while (0)

// For conditions that the rest of the test needs.
#define REQUIRE(cond)                                                                                 \
    do {                                                                                              \
        if (!(cond)) {                                                                                \
            test_fail(__FILE__, __LINE__, "required: %s (last error: %s)", #cond, ggml_last_error()); \
            return;                                                                                   \
        }                                                                                             \
    } while (0)

#define CHECK_INT(actual, expected)                                                      \
    do {                                                                                 \
        const long long a_ = (long long) (actual), e_ = (long long) (expected);          \
        if (a_ != e_)                                                                    \
            test_fail(__FILE__, __LINE__, "%s is %lld, expected %lld", #actual, a_, e_); \
    } while (0)

#define CHECK_STR(actual, expected)                                                                          \
    do {                                                                                                     \
        const char *a_ = (actual), *e_ = (expected);                                                         \
        if (a_ == NULL || strcmp(a_, e_) != 0)                                                               \
            test_fail(__FILE__, __LINE__, "%s is \"%s\", expected \"%s\"", #actual, a_ ? a_ : "(null)", e_); \
    } while (0)

// Checks that the last error of this thread has the status and contains the text, and clears it.
#define CHECK_ERROR(status_, text)                                                                                     \
    do {                                                                                                               \
        if (ggml_last_status() != (status_) || strstr(ggml_last_error(), (text)) == NULL)                              \
            test_fail(__FILE__, __LINE__, "error is %s \"%s\", expected %s with \"%s\"",                               \
                ggml_status_to_string(ggml_last_status()), ggml_last_error(), ggml_status_to_string(status_), (text)); \
        ggml_clear_error();                                                                                            \
    } while (0)

#define SKIP(...)                        \
    do {                                 \
        printf("skipped: " __VA_ARGS__); \
        putchar('\n');                   \
        test_skips++;                    \
        return;                          \
    } while (0)

// True if schedulers check every run, as in the second run of their tests by ctest. Then steps wait
// for each other, and transfers that devices count overwrite dead memory.
static inline bool test_runs_are_checked(void) {
    const char * value = getenv("GGML_SCHED_CHECK");
    return value != NULL && strcmp(value, "0") != 0;
}

#define SKIP_IF_CHECKED(why)                                     \
    do {                                                         \
        if (test_runs_are_checked())                             \
            SKIP("%s: runs are checked, and %s", __func__, why); \
    } while (0)

// number of tries if something takes too long on a busy machine
enum { BUSY_TRIES = 6 };

// A reproducible generator (SplitMix64), the same on every machine.
static uint64_t test_seed = 1;

static inline uint64_t test_random(void) {
    uint64_t x = (test_seed += 0x9e3779b97f4a7c15u);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static inline int64_t test_random_int(int64_t low, int64_t high) { // low .. high inclusive
    return low + (int64_t) (test_random() % (uint64_t) (high - low + 1));
}

static inline float test_random_float(float low, float high) {
    return low + (high - low) * (float) (test_random() >> 40) / (float) (1 << 24);
}

struct test_case {
    const char * name;
    void (*run)(void);
};

#define TEST(name) { #name, name }

#define TEST_MAIN(...)                                                                    \
    int main(int argc, char ** argv) {                                                    \
        static const struct test_case cases[] = { __VA_ARGS__ };                          \
        const int n = (int) (sizeof(cases) / sizeof(cases[0]));                           \
        int ran = 0;                                                                      \
        ggml_log_set(ggml_log_discard, NULL); /* errors are expected here, and checked */ \
        for (int i = 0; i < n; i++) {                                                     \
            if (argc > 1 && strcmp(argv[1], cases[i].name) != 0)                          \
                continue;                                                                 \
            const int before = test_failures;                                             \
            test_seed = 1;                                                                \
            ggml_clear_error();                                                           \
            cases[i].run();                                                               \
            printf("%s %s\n", test_failures == before ? "ok  " : "FAIL", cases[i].name);  \
            ran++;                                                                        \
        }                                                                                 \
        printf("%d tests, %d failures, %d skipped\n", ran, test_failures, test_skips);    \
        return test_failures > 0 || ran == 0 ? 1 : test_skips == ran ? 77 : 0;            \
    }

#endif // GB_TESTS_TEST_H
