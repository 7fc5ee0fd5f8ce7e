// self_check.c - refuses a level that computes wrong numbers because of options such as
// -ffast-math.
//
// CMake removes these options (c/cmake/exact.cmake), but other builds may not. Such options break
// NaN, signed zeros and subnormal numbers. They replace quotients by products, and reorder sums on
// whose order functions rely. The values below detect each of these faults.
#include "cpu/kernels/self_check.h"

#include <fenv.h>
#include <math.h>

#include "base/fp16.h"
#include "base/status.h"

enum { N = 37 }; // whole vectors and remaining elements, at every level

enum { A_NAN = 0x7fc00000, ONE = 0x3f800000, DENORMAL = 0x00001be0, MINUS_ZERO = (int) 0x80000000 };

// Tests the bits, because code that is compiled for finite numbers cannot recognize NaN.
static bool is_nan(float v) { return (gb_f32_bits(v) & 0x7fffffffu) > 0x7f800000u; }

// NaN must be NaN. Numbers must be exact, or within 1e-5 relatively.
static bool is_right(float got, uint32_t want, bool exact) {
    const float wanted = gb_f32_from_bits(want);
    if (is_nan(wanted)) {
        return is_nan(got);
    }
    return gb_f32_bits(got) == want || (!exact && !is_nan(got) && fabsf(got - wanted) <= 1e-5f * fabsf(wanted));
}

static bool report(const char * where, const char * what, float got, uint32_t want) {
    gb_fail(GGML_STATUS_UNSUPPORTED,
        "level %s: %s is %g, must be %g: this library was compiled with options that change arithmetic, like "
        "-ffast-math,"
        " -Ofast and -ffinite-math-only; compile it without them",
        where, what, (double) got, (double) gb_f32_from_bits(want));
    return false;
}

// This file is compiled with the options of most of the library. `volatile` prevents the compiler
// from computing the results.
static bool check_this_file(const char * level) {
    volatile float large = 1e8f, one = 1, seven = 7, divisor = 49, zero = 0;
    const float rest = (large + one) - large, quotient = seven / divisor, difference = 0 - zero;
    if (!is_right(rest, 0, true)) {
        return report(level, "(1e8 + 1) - 1e8", rest, 0);
    }
    if (!is_right(quotient, 0x3e124925, true)) {
        return report(level, "7 / 49", quotient, 0x3e124925);
    }
    return is_right(difference, 0, true) || report(level, "0 - 0", difference, 0);
}

struct probe {
    const char * what;
    gb_kernel_map * kernel;
    uint32_t x, want; // bits of floats
    bool exact;
};

static bool check_maps(const char * level, const struct gb_kernels * k) {
    const struct probe probes[] = {
        { "silu(1)", k->silu_f32, ONE, 0x3f3b26a8, false },
        { "silu(nan)", k->silu_f32, A_NAN, A_NAN, false },
        { "tanh(1)", k->tanh_f32, ONE, 0x3f42f7d6, false },
        { "tanh(nan)", k->tanh_f32, A_NAN, A_NAN, false },
        { "gelu(1)", k->gelu_f32, ONE, 0x3f57585c, false },
        { "gelu(nan)", k->gelu_f32, A_NAN, A_NAN, false },
        { "relu(nan)", k->relu_f32, A_NAN, A_NAN, true },
        { "neg(0)", k->neg_f32, 0, (uint32_t) MINUS_ZERO, true },
        { "sqrt(nan)", k->sqrt_f32, A_NAN, A_NAN, true },
        { "abs(1e-41)", k->abs_f32, DENORMAL, DENORMAL, true },
    };
    for (size_t p = 0; p < sizeof(probes) / sizeof(probes[0]); p++) {
        float x[N], y[N];
        for (int i = 0; i < N; i++) {
            x[i] = gb_f32_from_bits(probes[p].x);
        }
        probes[p].kernel(N, y, x);
        for (int i = 0; i < N; i++) {
            if (!is_right(y[i], probes[p].want, probes[p].exact)) {
                return report(level, probes[p].what, y[i], probes[p].want);
            }
        }
    }
    return true;
}

static bool check_pairs(const char * level, const struct gb_kernels * k) {
    const struct {
        const char * what;
        gb_kernel_binary * kernel;
        uint32_t x, y, want;
    } probes[] = {
        { "7 / 49", k->div_f32, 0x40e00000, 0x42440000, 0x3e124925 },
        { "1e-41 + 0", k->add_f32, DENORMAL, 0, DENORMAL },
        { "nan * 0", k->mul_f32, A_NAN, 0, A_NAN },
        { "0 - 0", k->sub_f32, 0, 0, 0 },
        { "nan == nan", k->equal_f32, A_NAN, A_NAN, 0 },
        { "nan < 1", k->less_f32, A_NAN, ONE, 0 },
    };
    for (size_t p = 0; p < sizeof(probes) / sizeof(probes[0]); p++) {
        float x[N], y[N], z[N];
        for (int i = 0; i < N; i++) {
            x[i] = gb_f32_from_bits(probes[p].x);
            y[i] = gb_f32_from_bits(probes[p].y);
        }
        probes[p].kernel(N, z, x, y);
        for (int i = 0; i < N; i++) {
            if (!is_right(z[i], probes[p].want, true)) {
                return report(level, probes[p].what, z[i], probes[p].want);
            }
        }
    }
    return true;
}

// Another library may have set the thread to flush subnormal numbers to 0. That is not a fault of
// this build, so the check runs in the default state.
bool gb_self_check(const struct gb_level * level) {
    fenv_t state;
    const bool saved = fegetenv(&state) == 0 && fesetenv(FE_DFL_ENV) == 0;
    const bool right = check_this_file(level->name) && check_maps(level->name, level->kernels) &&
                       check_pairs(level->name, level->kernels);
    if (saved) {
        fesetenv(&state);
    }
    return right;
}
