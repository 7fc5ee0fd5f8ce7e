// The self-check of levels: every level of this build passes, a level with one wrong kernel fails,
// and the floating-point state of the thread has no effect.
#include <fenv.h>
#include <math.h>

#include "base/fp16.h"
#include "cpu/kernels/self_check.h"
#include "test.h"

#ifdef __SSE2__
#    include <xmmintrin.h>
#endif

// Kernels that compute as fast math does.
static void quick(int64_t n, float * y, const float * x) { // by an approximate reciprocal
    for (int64_t i = 0; i < n; i++) {
        y[i] = x[i] * 0.6667f;
    }
}

static void without_nan(int64_t n, float * y, const float * x) {
    for (int64_t i = 0; i < n; i++) {
        y[i] = x[i] > 0 ? x[i] : 0;
    }
}

static void by_reciprocal(int64_t n, float * z, const float * x, const float * y) {
    for (int64_t i = 0; i < n; i++) {
        volatile float reciprocal = 1 / y[i];
        z[i] = x[i] * reciprocal;
    }
}

static void flushing(int64_t n, float * y, const float * x) {
    for (int64_t i = 0; i < n; i++) {
        y[i] = fabsf(x[i]) < 0x1p-126f ? 0 : fabsf(x[i]);
    }
}

static void from_zero(int64_t n, float * y, const float * x) { // 0 - x loses the sign of 0
    for (int64_t i = 0; i < n; i++) {
        y[i] = 0 - x[i];
    }
}

static void every_level_passes(void) {
    for (int i = 0; i < gb_level_count(); i++) {
        const struct gb_level * level = gb_level_at(i);
        CHECK_MSG(!level->usable() || gb_self_check(level), "%s: %s", level->name, ggml_last_error());
    }
}

static void a_wrong_kernel_is_reported(void) {
    const struct gb_level * best = gb_level_default();
    CHECK_MSG(best != NULL, "%s", ggml_last_error());
    if (best == NULL) {
        return;
    }
    struct gb_kernels k = *best->kernels;
    const struct gb_level made = { "made up", best->usable, &k };
    CHECK(gb_self_check(&made));
    const struct gb_kernels good = k;
    k.silu_f32 = quick;
    CHECK(!gb_self_check(&made));
    CHECK_ERROR(GGML_STATUS_UNSUPPORTED,
        "level made up: silu(1) is 0.6667, must be 0.731059: this library was compiled "
        "with options that change arithmetic, like -ffast-math");
    k = good;
    k.relu_f32 = without_nan;
    CHECK(!gb_self_check(&made));
    CHECK_ERROR(GGML_STATUS_UNSUPPORTED, "relu(nan) is 0, must be nan");
    k = good;
    k.div_f32 = by_reciprocal;
    CHECK(!gb_self_check(&made));
    CHECK_ERROR(GGML_STATUS_UNSUPPORTED, "7 / 49");
    k = good;
    k.abs_f32 = flushing;
    CHECK(!gb_self_check(&made));
    CHECK_ERROR(GGML_STATUS_UNSUPPORTED, "abs(1e-41) is 0");
    k = good;
    k.neg_f32 = from_zero;
    CHECK(!gb_self_check(&made));
    CHECK_ERROR(GGML_STATUS_UNSUPPORTED, "neg(0)");
}

// Another library may have changed the state of the thread. The check still passes, and does not
// change the state.
static void the_state_of_the_thread_does_not_matter(void) {
#ifdef __SSE2__
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040u); // denormal numbers are flushed, and read as 0
    const unsigned set = _mm_getcsr();
    CHECK(gb_level_default() != NULL);
    CHECK_INT(_mm_getcsr() & 0xffc0, set & 0xffc0);
    _mm_setcsr(before);
#endif
    const int rounding = fegetround();
    CHECK(fesetround(FE_UPWARD) == 0);
    CHECK(gb_level_default() != NULL);
    CHECK_INT(fegetround(), FE_UPWARD);
    fesetround(rounding);
}

TEST_MAIN(TEST(every_level_passes), TEST(a_wrong_kernel_is_reported), TEST(the_state_of_the_thread_does_not_matter))
