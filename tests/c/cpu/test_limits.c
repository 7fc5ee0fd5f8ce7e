// test_limits.c - cpu/limits.h: measured rates are plausible, and arguments are checked.
#include "test.h"

#include "base/env.h"
#include "base/mem.h"
#include "base/thread.h"
#include "cpu/cpu.h"
#include "cpu/limits.h"

static void every_level_measures(void) {
    for (int i = 0; i < gb_level_count(); i++) {
        if (!gb_level_at(i)->usable()) {
            continue;
        }
        for (int what = 0; what < GB_CPU_LIMIT_COUNT; what++) {
            const double rate =
                gb_cpu_measure_limit((enum gb_cpu_limit) what, gb_level_at(i)->name, 4096, 1, 1000000, false);
            CHECK_MSG(rate > 1e5 && rate < 1e14, "level %s, limit %d: %g", gb_level_at(i)->name, what, rate);
        }
    }
}

static void operations_are_counted(void) { // twice the steps, twice the operations; no steps, no operations
    for (int i = 0; i < gb_level_count(); i++) {
        if (!gb_level_at(i)->usable()) {
            continue;
        }
        const struct gb_kernels * k = gb_level_at(i)->kernels;
        CHECK_INT(k->limit_f32(0), 0);
        CHECK_INT(k->limit_f32(20), 2 * k->limit_f32(10));
        // a step has a pair of terms in each lane, or with tiles four products of 16 x 16 x 32 terms
        CHECK_INT(k->limit_bf16(10), k->bf16_tiles ? 10 * 4 * 2 * 16 * 16 * 32 : 2 * k->limit_f32(10));
        CHECK_INT(k->limit_bytes(10), 4 * k->limit_f32(10));
    }
}

static void copies_are_copies(void) {
    float x[133], y[134];
    for (int i = 0; i < gb_level_count(); i++) {
        if (!gb_level_at(i)->usable()) {
            continue;
        }
        for (int n = 0; n <= 133; n += 19) {
            for (int j = 0; j < 133; j++) {
                x[j] = (float) j;
                y[j] = y[j + 1] = -1.0f;
            }
            gb_level_at(i)->kernels->limit_copy(n, y, x);
            CHECK_INT(memcmp(x, y, sizeof(float) * (size_t) n), 0);
            CHECK(y[n] == -1.0f);
            gb_level_at(i)->kernels->limit_read(n, x);
        }
    }
}

static void threads_add_up(void) {
    CHECK(gb_cpu_measure_limit(GB_CPU_LIMIT_F32, "scalar", 0, 3, 1000000, false) > 0);
    CHECK(gb_cpu_measure_limit(GB_CPU_LIMIT_COPY, NULL, 1 << 16, 3, 1000000, false) > 0);
}

static void processor_time_passes(void) { // on an idle processor both clocks agree
    const double plain = gb_cpu_measure_limit(GB_CPU_LIMIT_F32, "scalar", 0, 1, 20000000, false);
    const double own = gb_cpu_measure_limit(GB_CPU_LIMIT_F32, "scalar", 0, 1, 20000000, true);
    CHECK_MSG(own > 0.3 * plain, "%g by processor time, %g by the clock", own, plain);
    const int64_t before = gb_thread_time_ns();
    gb_sleep_us(50000);
    CHECK(gb_thread_time_ns() - before < 45000000); // while it sleeps
}

static void arguments_are_checked(void) {
    CHECK(gb_cpu_measure_limit(GB_CPU_LIMIT_COUNT, NULL, 4096, 1, 1, false) == 0);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "'what'");
    CHECK(gb_cpu_measure_limit(GB_CPU_LIMIT_F32, NULL, 4096, 0, 1, false) == 0);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "'n_threads'");
    CHECK(gb_cpu_measure_limit(GB_CPU_LIMIT_READ, NULL, 255, 1, 1, false) == 0);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "'bytes'");
    CHECK(gb_cpu_measure_limit(GB_CPU_LIMIT_READ, "none", 4096, 1, 1, false) == 0);
    CHECK(ggml_last_status() != GGML_STATUS_SUCCESS);
    ggml_clear_error();
    CHECK(gb_cpu_measure_limit(GB_CPU_LIMIT_READ, NULL, SIZE_MAX / 2, 8, 1, false) == 0);
    CHECK_ERROR(GGML_STATUS_ALLOC_FAILED, "too many");
}

static void failing_allocations_leave_nothing(void) {
    for (int n = 1; n < 64; n++) {
        gb_cpu_pools_trim();
        const int64_t live = gb_test_live_allocs();
        gb_test_fail_alloc(n, false);
        const double rate = gb_cpu_measure_limit(GB_CPU_LIMIT_COPY, NULL, 4096, 2, 1, false);
        const bool failed = gb_test_alloc_failed();
        gb_test_fail_alloc(0, false);
        gb_cpu_pools_trim();
        CHECK_INT(gb_test_live_allocs(), live);
        if (!failed) {
            CHECK(rate > 0);
            return;
        }
        ggml_clear_error();
    }
    CHECK(!"the measurement makes fewer than 64 allocations");
}

TEST_MAIN(TEST(every_level_measures), TEST(operations_are_counted), TEST(copies_are_copies), TEST(threads_add_up),
    TEST(processor_time_passes), TEST(arguments_are_checked), TEST(failing_allocations_leave_nothing))
