// CPU backend and CPU buffers: settings, plans that own their data, foreign memory, copies, several
// levels in one process, parameters.
#include "test.h"

#include "base/mem.h"
#include "base/params.h"
#include "cpu/cpu.h"
#include "cpu/features.h"
#include "ggml-backend-impl.h"
#include "test_memory.h"
#include "ggml-cpu.h"

static struct ggml_context * new_context(bool no_alloc) {
    return ggml_init((struct ggml_init_params){ 4u << 20, NULL, no_alloc });
}

// ------------------------------------------------------------------------------------------------------------- buffers

static void buffers_have_padding_and_alignment(void) {
    ggml_backend_buffer_type_t buft = ggml_backend_cpu_buffer_type();
    CHECK_STR(ggml_backend_buft_name(buft), "CPU");
    CHECK_INT(ggml_backend_buft_get_alignment(buft), 64);
    CHECK(ggml_backend_buft_is_host(buft));
    CHECK(ggml_backend_buft_get_max_size(buft) == SIZE_MAX);
    const size_t sizes[] = { 0, 1, 63, 64, 65, 4096, 1000003 };
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(buft, sizes[i]);
        REQUIRE(buffer != NULL);
        uint8_t * base = ggml_backend_buffer_get_base(buffer);
        CHECK(base != NULL && (uintptr_t) base % 64 == 0);
        const size_t size = ggml_backend_buffer_get_size(buffer);
        CHECK(size >= sizes[i]);
        ggml_backend_buffer_clear(buffer, 0x5a);
        CHECK(base[0] == 0x5a && base[size - 1] == 0x5a);
        CHECK_STR(ggml_backend_buffer_name(buffer), "CPU");
        ggml_backend_buffer_free(buffer);
    }
    for (size_t a = 1; a < 300; a += 7) { // two tensors in a buffer that is sized exactly for their bytes
        ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(buft, a + 70);
        REQUIRE(buffer != NULL);
        CHECK((a + 63) / 64 * 64 + 128 <= ggml_backend_buffer_get_size(buffer));
        ggml_backend_buffer_free(buffer);
    }
    CHECK(ggml_backend_buft_alloc_buffer(buft, SIZE_MAX - 10) == NULL);
    CHECK_ERROR(GGML_STATUS_ALLOC_FAILED, "too large");
}

static void memory_of_others(void) {
    float array[100];
    char * odd = (char *) array + 4; // an unaligned address
    ggml_backend_buffer_t buffer = ggml_backend_cpu_buffer_from_ptr(odd, 396);
    REQUIRE(buffer != NULL);
    CHECK(ggml_backend_buffer_get_base(buffer) == odd);
    CHECK_INT(ggml_backend_buffer_get_size(buffer), 396);
    CHECK(ggml_backend_buffer_is_host(buffer));
    struct ggml_context * ctx = new_context(true);
    struct ggml_tensor * t = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 99);
    CHECK_INT(ggml_backend_tensor_alloc(buffer, t, odd), GGML_STATUS_SUCCESS);
    const float v[2] = { 1.5f, 2.5f };
    CHECK_INT(ggml_backend_tensor_set(t, v, 4, 8), GGML_STATUS_SUCCESS);
    CHECK(array[2] == 1.5f && array[3] == 2.5f);
    ggml_backend_buffer_free(buffer); // does not free the array, which is on the stack
    CHECK(array[2] == 1.5f);
    CHECK(ggml_backend_cpu_buffer_from_ptr(NULL, 10) == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "ptr");
    CHECK(ggml_backend_cpu_buffer_from_ptr(odd, SIZE_MAX) == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "size");
    ggml_free(ctx);
}

static void copies_leave_gaps_alone(void) {
    for (int layout = 0; layout < 3; layout++) {
        struct ggml_context * ctx = new_context(false);
        REQUIRE(ctx != NULL);
        struct ggml_tensor * from = ggml_set_f32(ggml_new_tensor_3d(ctx, GGML_TYPE_F32, 8, 6, 4), 1);
        struct ggml_tensor * to = ggml_set_f32(ggml_new_tensor_3d(ctx, GGML_TYPE_F32, 8, 6, 4), 2);
        struct ggml_tensor * a = ggml_view_3d(ctx, from, 3, 2, 4, from->nb[1], from->nb[2], 8);
        struct ggml_tensor * b = ggml_view_3d(ctx, to, 3, 2, 4, to->nb[1], to->nb[2], 8);
        if (layout == 1) {
            a = ggml_transpose(ctx, a);
            b = ggml_transpose(ctx, b);
        } else if (layout == 2) {
            a = ggml_permute(ctx, a, 2, 1, 0, 3);
            b = ggml_permute(ctx, b, 2, 1, 0, 3);
        }
        gb_cpu_copy_elements(b->data, a->data, b);
        int changed = 0;
        for (int i = 0; i < 192; i++) {
            const int x = i % 8, y = i / 8 % 6;
            const bool inside = x >= 2 && x < 5 && y < 2;
            CHECK(ggml_get_f32_1d(to, i) == (inside ? 1.0f : 2.0f));
            changed += inside;
        }
        CHECK_INT(changed, 24);
        ggml_free(ctx);
    }
}

// ------------------------------------------------------------------------------------------------------------- backend

static void settings(void) {
    ggml_backend_t backend = ggml_backend_cpu_init();
    REQUIRE(backend != NULL);
    CHECK(ggml_backend_is_cpu(backend));
    CHECK(!ggml_backend_is_cpu(NULL));
    CHECK_STR(ggml_backend_name(backend), "CPU");
    CHECK(ggml_backend_get_default_buffer_type(backend) == ggml_backend_cpu_buffer_type());
    CHECK(ggml_backend_buft_supports_backend(ggml_backend_cpu_buffer_type(), backend));
    CHECK_INT(ggml_backend_cpu_get_n_threads(backend), GGML_DEFAULT_N_THREADS);
    CHECK_INT(ggml_backend_cpu_set_n_threads(backend, 7), GGML_STATUS_SUCCESS);
    const int bad[] = { 0, -1, 513 };
    for (int i = 0; i < 3; i++) {
        CHECK(ggml_backend_cpu_set_n_threads(backend, bad[i]) == GGML_STATUS_INVALID_ARGUMENT);
        CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "n_threads");
    }
    CHECK_INT(ggml_backend_cpu_get_n_threads(backend), 7);
    CHECK(ggml_backend_cpu_set_n_threads(NULL, 1) == GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "backend_cpu");
    CHECK_INT(ggml_backend_cpu_get_n_threads(NULL), 0);
    CHECK(ggml_backend_cpu_get_level(NULL) == NULL);
    CHECK(ggml_cpu_default_n_threads() >= 1);
    ggml_backend_free(backend);
    ggml_backend_free(NULL);
}

static void levels_side_by_side(void) {
    float first[3] = { 0 };
    int usable = 0;
    for (int i = 0; i < ggml_cpu_level_count(); i++) {
        ggml_backend_t backend = ggml_backend_cpu_init();
        REQUIRE(backend != NULL);
        const enum ggml_status status = ggml_backend_cpu_set_level(backend, ggml_cpu_level_name(i));
        CHECK_INT(status == GGML_STATUS_SUCCESS, ggml_cpu_level_usable(i));
        if (status == GGML_STATUS_SUCCESS) {
            CHECK_STR(ggml_backend_cpu_get_level(backend), ggml_cpu_level_name(i));
            struct ggml_context * ctx = new_context(false);
            struct ggml_tensor * y = ggml_gelu(ctx, ggml_set_f32(ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 33), 0.7f));
            struct ggml_cgraph * g = ggml_new_graph(ctx);
            ggml_build_forward_expand(g, y);
            CHECK(ggml_backend_graph_compute(backend, g));
            const float v = ggml_get_f32_1d(y, 32);
            first[0] = usable++ == 0 ? v : first[0];
            CHECK_MSG(fabsf(v - first[0]) < 1e-6f, "level %s gives %g, level scalar %g", ggml_cpu_level_name(i),
                (double) v, (double) first[0]);
            ggml_free(ctx);
        }
        ggml_backend_free(backend);
    }
    CHECK(usable >= 1);
    ggml_backend_t backend = ggml_backend_cpu_init();
    CHECK(ggml_backend_cpu_set_level(backend, "sse9") == GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "scalar"); // the message lists the valid levels
    CHECK(ggml_backend_cpu_set_level(backend, NULL) == GGML_STATUS_INVALID_ARGUMENT);
    CHECK(ggml_cpu_level_name(-1) == NULL && ggml_cpu_level_name(1000) == NULL && !ggml_cpu_level_usable(1000));
    ggml_backend_free(backend);
}

static void plans_own_what_they_need(void) {
    ggml_backend_t backend = ggml_backend_cpu_init();
    struct ggml_context * ctx = new_context(false);
    REQUIRE(backend != NULL && ctx != NULL);
    struct ggml_tensor * x = ggml_set_f32(ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 32, 20), 1);
    struct ggml_tensor * y = ggml_mul_mat(ctx, x, x);
    struct ggml_cgraph * g = ggml_new_graph(ctx);
    ggml_build_forward_expand(g, y);
    ggml_backend_graph_plan_t plan = ggml_backend_graph_plan_create(backend, g);
    REQUIRE(plan != NULL);
    ggml_graph_clear(g); // the plan does not need the graph
    for (int i = 0; i < 3; i++) {
        ggml_set_f32(y, 0);
        ggml_backend_cpu_set_n_threads(backend, 1 + 2 * i); // nor the threads
        CHECK_INT(ggml_backend_graph_plan_compute(backend, plan), GGML_STATUS_SUCCESS);
        CHECK(ggml_get_f32_1d(y, 0) == 32 && ggml_get_f32_1d(y, 399) == 32);
    }
    ggml_backend_graph_plan_free(backend, plan);
    ggml_free(ctx);
    ggml_backend_free(backend);
}

static void failures_reach_the_caller(void) {
    ggml_backend_t backend = ggml_backend_cpu_init();
    struct ggml_context * ctx = new_context(false);
    REQUIRE(backend != NULL && ctx != NULL);
    struct ggml_tensor * rows = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 4, 3);
    struct ggml_tensor * ids = ggml_set_i32(ggml_new_tensor_1d(ctx, GGML_TYPE_I32, 2), -1);
    struct ggml_cgraph * g = ggml_new_graph(ctx);
    ggml_build_forward_expand(g, ggml_get_rows(ctx, rows, ids));
    CHECK(!ggml_backend_graph_compute(backend, g));
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "-1");
    ggml_backend_graph_plan_t plan = ggml_backend_graph_plan_create(backend, g);
    REQUIRE(plan != NULL);
    CHECK(ggml_backend_graph_plan_compute(backend, plan) == GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "-1");
    ggml_backend_graph_plan_free(backend, plan);
    CHECK(!ggml_backend_graph_compute(backend, NULL));
    CHECK(!ggml_backend_graph_compute(NULL, g));
    ggml_free(ctx);
    ggml_backend_free(backend);
}

static void tell_nth(struct ggml_tensor * dst, const struct ggml_tensor * a, int ith, int nth, void * user) {
    (void) a, (void) user;
    if (ith == 0) {
        ((float *) dst->data)[0] = (float) nth;
    }
}

static void threads_follow_the_setting(void) {
    ggml_backend_t backend = ggml_backend_cpu_init();
    struct ggml_context * ctx = new_context(false);
    REQUIRE(backend != NULL && ctx != NULL);
    struct ggml_tensor * x = ggml_set_f32(ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 1), 0);
    struct ggml_tensor * y = ggml_map_custom1(ctx, x, tell_nth, GGML_N_TASKS_MAX, NULL);
    struct ggml_cgraph * g = ggml_new_graph(ctx);
    ggml_build_forward_expand(g, y);
    const int settings_[] = { 2, 5, 1, 3, 3 };
    for (int i = 0; i < 5; i++) {
        CHECK_INT(ggml_backend_cpu_set_n_threads(backend, settings_[i]), GGML_STATUS_SUCCESS);
        CHECK(ggml_backend_graph_compute(backend, g));
        CHECK_INT(ggml_get_f32_1d(y, 0), settings_[i]);
    }
    ggml_free(ctx);
    ggml_backend_free(backend);
}

static bool always(void * data) {
    ++*(int *) data;
    return true;
}

static void abort_callback(void) {
    ggml_backend_t backend = ggml_backend_cpu_init();
    struct ggml_context * ctx = new_context(false);
    REQUIRE(backend != NULL && ctx != NULL);
    struct ggml_tensor * y = ggml_sqr(ctx, ggml_set_f32(ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 4), 3));
    struct ggml_cgraph * g = ggml_new_graph(ctx);
    ggml_build_forward_expand(g, y);
    int asked = 0;
    CHECK_INT(ggml_backend_cpu_set_abort_callback(backend, always, &asked), GGML_STATUS_SUCCESS);
    CHECK(!ggml_backend_graph_compute(backend, g));
    CHECK_INT(ggml_last_status(), GGML_STATUS_ABORTED);
    CHECK_INT(asked, 1);
    CHECK_INT(ggml_backend_cpu_set_abort_callback(backend, NULL, NULL), GGML_STATUS_SUCCESS);
    CHECK(ggml_backend_graph_compute(backend, g));
    CHECK(ggml_get_f32_1d(y, 3) == 9);
    ggml_free(ctx);
    ggml_backend_free(backend);
}

static void supports_what_it_computes(void) {
    ggml_backend_t backend = ggml_backend_cpu_init();
    struct ggml_context * ctx = new_context(false);
    REQUIRE(backend != NULL && ctx != NULL);
    struct ggml_tensor * x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 4, 4);
    CHECK(ggml_backend_supports_op(backend, x));
    CHECK(ggml_backend_supports_op(backend, ggml_transpose(ctx, x)));
    CHECK(ggml_backend_supports_op(backend, ggml_mul_mat(ctx, x, x)));
    CHECK(ggml_backend_unsupported_reason(backend, ggml_mul_mat(ctx, x, x)) == NULL);
    struct ggml_tensor * bad = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, 4, 4);
    bad->op = GGML_OP_NORM;
    bad->src[0] = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, 4, 4);
    CHECK(!ggml_backend_supports_op(backend, bad));
    const char * reason = ggml_cpu_unsupported_reason(bad);
    CHECK(reason != NULL && reason[0] != '\0');
    CHECK_STR(ggml_backend_unsupported_reason(backend, bad), reason);
    bad->op = (enum ggml_op) - 5;
    CHECK(!ggml_backend_supports_op(backend, bad));
    CHECK(ggml_cpu_unsupported_reason(NULL) != NULL);
    ggml_free(ctx);
    ggml_backend_free(backend);
}

static void device_memory_is_refused(void) {
    ggml_backend_t backend = ggml_backend_cpu_init();
    ggml_backend_buffer_t device = ggml_backend_reg_alloc_buffer(ggml_backend_reg_find_by_name("sim"), 1024);
    struct ggml_context * ctx = new_context(true);
    REQUIRE(backend != NULL && device != NULL && ctx != NULL);
    struct ggml_tensor * x = ggml_set_name(ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 4), "x");
    struct ggml_tensor * y = ggml_sqr(ctx, x);
    char * base = ggml_backend_buffer_get_base(device);
    REQUIRE(ggml_backend_tensor_alloc(device, x, base) == GGML_STATUS_SUCCESS);
    REQUIRE(ggml_backend_tensor_alloc(device, y, base + 128) == GGML_STATUS_SUCCESS);
    struct ggml_cgraph * g = ggml_new_graph(ctx);
    ggml_build_forward_expand(g, y);
    CHECK(!ggml_backend_graph_compute(backend, g)); // an error, not a fault
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "host cannot read");
    ggml_free(ctx);
    ggml_backend_buffer_free(device);
    ggml_backend_free(backend);
}

// ---------------------------------------------------------------------------------------------------------- parameters

static void registry_parameters(void) {
    ggml_backend_t backend = ggml_backend_reg_init_backend_from_str("cpu:threads=3,level=scalar");
    REQUIRE(backend != NULL);
    CHECK_INT(ggml_backend_cpu_get_n_threads(backend), 3);
    CHECK_STR(ggml_backend_cpu_get_level(backend), "scalar");
    ggml_backend_free(backend);
    backend = ggml_backend_reg_init_backend_from_str("CPU");
    REQUIRE(backend != NULL);
    CHECK_INT(ggml_backend_cpu_get_n_threads(backend), ggml_cpu_default_n_threads());
    ggml_backend_free(backend);
    static const char * const bad[] = { "threads=0", "threads=513", "threads=two", "threads=2x",
        "threads=", "level=none", "speed=9", "threads", "=3", "threads=2,,level=scalar", "level=" };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        ggml_clear_error();
        CHECK_MSG(gb_cpu_reg_init(bad[i], NULL) == NULL, "accepted '%s'", bad[i]);
        CHECK_INT(ggml_last_status(), GGML_STATUS_INVALID_ARGUMENT);
    }
    gb_cpu_reg_init("speed=9", NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "threads=<count>");
}

static void numbers_in_parameters(void) {
    static const struct {
        const char * text;
        bool good;
        size_t bytes;
    } sizes[] = {
        { "0", true, 0 },
        { "4096", true, 4096 },
        { "1k", true, 1024 },
        { "64M", true, 64u << 20 },
        { "1.5MiB", true, 3u << 19 },
        { "2GB", true, (size_t) 2 << 30 },
        { "1B", true, 1 },
        { "4096b", true, 4096 },
        { "0k", true, 0 },
        { "0.0001k", false, 0 },
        { "1.5B", false, 0 },
        { "1iB", false, 0 },
        { "", false, 0 },
        { "M", false, 0 },
        { "-1", false, 0 },
        { "12x", false, 0 },
        { "1.5", false, 0 },
        { "3.0", true, 3 },
        { "1e30", false, 0 },
        { "inf", false, 0 },
        { "nan", false, 0 },
        { " 5", false, 0 },
        { "5 ", false, 0 },
        { "5MX", false, 0 },
    };
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        size_t r = 77;
        CHECK_MSG(gb_params_size(sizes[i].text, &r) == sizes[i].good && (!sizes[i].good || r == sizes[i].bytes),
            "'%s' gave %zu", sizes[i].text, r);
    }
    static const struct {
        const char * text;
        bool good;
        int64_t ns;
    } times[] = {
        { "0", true, 0 },
        { "2ms", true, 2000000 },
        { "1.5s", true, 1500000000 },
        { "300us", true, 300000 },
        { "50NS", true, 50 },
        { "5", false, 0 },
        { "ms", false, 0 },
        { "-1ms", false, 0 },
        { "9e9s", false, 0 },
        { "1m", false, 0 },
        { "", false, 0 },
    };
    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
        int64_t r = 77;
        CHECK_MSG(gb_params_duration(times[i].text, &r) == times[i].good && (!times[i].good || r == times[i].ns),
            "'%s' gave %lld", times[i].text, (long long) r);
    }
}

static void features_are_consistent(void) {
    const struct gb_cpu_features * f = gb_cpu_features();
    CHECK(f == gb_cpu_features());
    CHECK(!f->avx2 || f->avx);
    CHECK(!f->avx512bw || f->avx512f);
    CHECK_INT(ggml_cpu_has_avx2(), f->avx2);
    CHECK_INT(ggml_cpu_has_avx512_vnni(), f->avx512vnni);
    CHECK_INT(ggml_cpu_has_metal() + ggml_cpu_has_vulkan() + ggml_cpu_has_sycl() + ggml_cpu_has_clblast(), 0);
#if defined(__x86_64__)
    __builtin_cpu_init(); // the compiler's detection
    CHECK_INT(f->sse3, __builtin_cpu_supports("sse3") != 0);
    CHECK_INT(f->ssse3, __builtin_cpu_supports("ssse3") != 0);
    CHECK_INT(f->avx, __builtin_cpu_supports("avx") != 0);
    CHECK_INT(f->avx2, __builtin_cpu_supports("avx2") != 0);
    CHECK_INT(f->fma, __builtin_cpu_supports("fma") != 0);
    CHECK_INT(f->bmi2, __builtin_cpu_supports("bmi2") != 0);
    CHECK_INT(f->avx512f, __builtin_cpu_supports("avx512f") != 0);
    CHECK_INT(f->avx512bw, __builtin_cpu_supports("avx512bw") != 0);
    CHECK_INT(f->avx512vl, __builtin_cpu_supports("avx512vl") != 0);
    CHECK_INT(f->avx512vnni, __builtin_cpu_supports("avx512vnni") != 0);
    CHECK_INT(f->avx512vbmi, __builtin_cpu_supports("avx512vbmi") != 0);
#endif
}

// -------------------------------------------------------------------------------------------------------------- memory

// Everything that a program does with one backend. False if something failed.
static bool scenario(void) {
    ggml_backend_t backend = gb_cpu_reg_init("threads=2", NULL);
    bool ok = false;
    if (backend == NULL) {
        return false;
    }
    struct ggml_context * ctx = new_context(true);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_buffer(backend, 1 << 20);
    struct ggml_tensor * x = ctx != NULL ? ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 128, 100) : NULL;
    struct ggml_tensor * y = ggml_mul_mat(ctx, x, x);
    struct ggml_cgraph * g = y != NULL ? ggml_new_graph(ctx) : NULL;
    if (g != NULL && buffer != NULL && ggml_build_forward_expand(g, y) == GGML_STATUS_SUCCESS) {
        char * base = ggml_backend_buffer_get_base(buffer);
        ggml_backend_tensor_alloc(buffer, x, base);
        ggml_backend_tensor_alloc(buffer, y, base + 128 * 100 * 4);
        ggml_backend_buffer_clear(buffer, 0);
        ggml_backend_graph_plan_t plan = ggml_backend_graph_plan_create(backend, g);
        ok = plan != NULL && ggml_backend_graph_plan_compute(backend, plan) == GGML_STATUS_SUCCESS;
        ok = ggml_backend_graph_compute(backend, g) && ok;
        ggml_backend_graph_plan_free(backend, plan);
    }
    ggml_free(ctx);
    ggml_backend_buffer_free(buffer);
    ggml_backend_free(backend);
    return ok;
}

static void out_of_memory(void) { test_each_allocation_fails(scenario, 200); }

TEST_MAIN(TEST(buffers_have_padding_and_alignment), TEST(memory_of_others), TEST(copies_leave_gaps_alone),
    TEST(settings), TEST(levels_side_by_side), TEST(plans_own_what_they_need), TEST(failures_reach_the_caller),
    TEST(threads_follow_the_setting), TEST(abort_callback), TEST(supports_what_it_computes),
    TEST(device_memory_is_refused), TEST(registry_parameters), TEST(numbers_in_parameters),
    TEST(features_are_consistent), TEST(out_of_memory))
