// The registry: built-in entries, names, parameters, growth, threads, errors.
#include "base/thread.h"
#include "test_fake.h"

static struct fake device;
static char last_params[100];
static void * last_user_data;

static ggml_backend_t make_fake(const char * params, void * user_data) {
    snprintf(last_params, sizeof(last_params), "%s", params ? params : "(null)");
    last_user_data = user_data;
    ggml_backend_reg_get_count(); // the callback may use the registry
    return params && strcmp(params, "quiet") == 0 ? NULL : &device.backend;
}

static void built_in(void) {
    CHECK(ggml_backend_reg_get_count() >= 2);
    CHECK_INT(ggml_backend_reg_find_by_name("CPU"), 0);
    CHECK_INT(ggml_backend_reg_find_by_name("cpu"), 0);
    CHECK_INT(ggml_backend_reg_find_by_name("Sim"), 1);
    CHECK_STR(ggml_backend_reg_get_name(0), "CPU");
    CHECK(ggml_backend_reg_get_default_buffer_type(0) == ggml_backend_cpu_buffer_type());
    const ggml_backend_t cpu = ggml_backend_reg_init_backend_from_str("cpu");
    CHECK(ggml_backend_is_cpu(cpu));
    ggml_backend_free(cpu);
    const ggml_backend_buffer_t b = ggml_backend_reg_alloc_buffer(0, 100);
    CHECK(b && ggml_backend_buffer_is_host(b));
    ggml_backend_buffer_free(b);
    CHECK(ggml_backend_reg_find_by_name("CPUX") == SIZE_MAX && ggml_backend_reg_find_by_name("CP") == SIZE_MAX);
    CHECK(ggml_backend_reg_find_by_name("") == SIZE_MAX);
}

static void names_and_parameters(void) {
    int mine;
    fake_new(&device);
    const size_t n = ggml_backend_reg_get_count();
    char name[] = "Fake-1";
    CHECK_INT(ggml_backend_register(name, make_fake, &device.buft, &mine), GGML_STATUS_SUCCESS);
    name[0] = 'x'; // the registry has a copy
    CHECK_INT(ggml_backend_reg_get_count(), n + 1);
    CHECK_INT(ggml_backend_reg_find_by_name("FAKE-1"), n);
    CHECK_STR(ggml_backend_reg_get_name(n), "Fake-1");
    CHECK(ggml_backend_reg_get_default_buffer_type(n) == &device.buft);
    CHECK(ggml_backend_reg_init_backend_from_str("fake-1") == &device.backend);
    CHECK_STR(last_params, "(null)");
    CHECK(last_user_data == &mine);
    CHECK(ggml_backend_reg_init_backend_from_str("fake-1:mem=4:ops") == &device.backend);
    CHECK_STR(last_params, "mem=4:ops");
    CHECK(ggml_backend_reg_init_backend(n, "abc") == &device.backend);
    CHECK_STR(last_params, "abc");
    CHECK(ggml_backend_reg_init_backend(n, "quiet") == NULL);
    CHECK_ERROR(GGML_STATUS_FAILED, "Fake-1 could not be initialised with parameters \"quiet\"");
    CHECK_INT(ggml_backend_register("FAKE-1", make_fake, NULL, NULL), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "registered already");
    CHECK_INT(ggml_backend_register("cpu", make_fake, NULL, NULL), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_backend_reg_get_count(), n + 1);
    const ggml_backend_buffer_t b = ggml_backend_reg_alloc_buffer(n, 64);
    CHECK(b && device.n_buffers == 1);
    ggml_backend_buffer_free(b);
    CHECK_INT(ggml_backend_register("no-buft", make_fake, NULL, NULL), GGML_STATUS_SUCCESS);
    CHECK(ggml_backend_reg_alloc_buffer(n + 1, 64) == NULL);
    CHECK_ERROR(GGML_STATUS_UNSUPPORTED, "no-buft");
}

static void errors(void) {
    CHECK_INT(ggml_backend_register(NULL, make_fake, NULL, NULL), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_backend_register("a", NULL, NULL, NULL), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_backend_register("", make_fake, NULL, NULL), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_backend_register("a:b", make_fake, NULL, NULL), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "a:b");
    CHECK(ggml_backend_reg_find_by_name(NULL) == SIZE_MAX);
    CHECK(ggml_backend_reg_init_backend_from_str(NULL) == NULL);
    CHECK(ggml_backend_reg_init_backend_from_str("nosuch:x=1") == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "there is no backend \"nosuch\", only CPU, SIM");
    CHECK(ggml_backend_reg_init_backend_from_str("") == NULL);
    CHECK(ggml_backend_reg_get_name(1000000) == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "1000000");
    CHECK(ggml_backend_reg_init_backend(SIZE_MAX, NULL) == NULL);
    CHECK(ggml_backend_reg_get_default_buffer_type(SIZE_MAX) == NULL);
    ggml_clear_error();
    CHECK(ggml_backend_reg_alloc_buffer(SIZE_MAX, 1) == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "there are");
}

static void register_many(void * arg) {
    for (int i = 0; i < 50; i++) {
        char name[32];
        snprintf(name, sizeof(name), "t%d-%d", *(int *) arg, i);
        ggml_backend_register(name, make_fake, NULL, NULL);
        const size_t at = ggml_backend_reg_find_by_name(name);
        const char * is = ggml_backend_reg_get_name(at);
        if (is == NULL || strcmp(is, name) != 0) {
            *(int *) arg = -1;
            return;
        }
    }
}

static void threads(void) {
    gb_thread t[4];
    int ids[4];
    const size_t n = ggml_backend_reg_get_count();
    for (int i = 0; i < 4; i++) {
        ids[i] = i;
        REQUIRE(gb_thread_start(&t[i], register_many, &ids[i]));
    }
    for (int i = 0; i < 4; i++) {
        gb_thread_join(t[i]);
        CHECK_INT(ids[i], i);
    }
    CHECK_INT(ggml_backend_reg_get_count(), n + 200);
}

static void out_of_memory(void) {
    const size_t n = ggml_backend_reg_get_count();
    for (int k = 1;; k++) {
        char name[32];
        snprintf(name, sizeof(name), "oom%d", k);
        gb_test_fail_alloc(k, false);
        const enum ggml_status status = ggml_backend_register(name, make_fake, NULL, NULL);
        const bool failed = gb_test_alloc_failed();
        gb_test_fail_alloc(0, false);
        CHECK_INT(status, failed ? GGML_STATUS_ALLOC_FAILED : GGML_STATUS_SUCCESS);
        CHECK_INT(ggml_backend_reg_get_count(), n + (failed ? 0 : 1));
        if (!failed) {
            break;
        }
    }
}

// What programs of early 2024 call for every entry of the registry.
static void check_entry(size_t i) {
    const ggml_backend_buffer_type_t buft = ggml_backend_reg_get_default_buffer_type(i);
    const ggml_backend_t backend = ggml_backend_reg_init_backend(i, NULL);
    if (backend == NULL || buft == NULL) {
        printf("entry %s makes no backend here\n", ggml_backend_reg_get_name(i));
        return;
    }
    CHECK_MSG(ggml_backend_get_default_buffer_type(backend) == buft, "%s", ggml_backend_reg_get_name(i));
    CHECK_MSG(ggml_backend_buft_supports_backend(buft, backend), "%s", ggml_backend_reg_get_name(i));
    const ggml_backend_buffer_t buffers[] = { ggml_backend_reg_alloc_buffer(i, 64),
        ggml_backend_alloc_buffer(backend, 64), ggml_backend_buft_alloc_buffer(buft, 64) };
    for (int k = 0; k < 3; k++) {
        struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 1 << 14, NULL, true });
        struct ggml_tensor * x = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 4);
        struct ggml_cgraph * g = ggml_new_graph_custom(ctx, 8, false);
        REQUIRE(buffers[k] != NULL);
        CHECK(ggml_backend_buffer_get_type(buffers[k]) == buft);
        ggml_backend_tensor_alloc(buffers[k], x, ggml_backend_buffer_get_base(buffers[k]));
        ggml_build_forward_expand(g, ggml_sqr_inplace(ctx, x));
        CHECK_INT(ggml_backend_view_init(buffers[k], g->nodes[0]), GGML_STATUS_SUCCESS);
        float values[4] = { 1, 2, 3, 4 };
        ggml_backend_tensor_set(x, values, 0, sizeof(values));
        // a backend of the entry computes in all of these buffers
        CHECK_MSG(ggml_backend_graph_compute(backend, g), "%s", ggml_last_error());
        ggml_backend_tensor_get(x, values, 0, sizeof(values));
        CHECK(values[3] == 16);
        ggml_backend_buffer_free(buffers[k]);
        ggml_free(ctx);
    }
    ggml_backend_free(backend);
}

static void entries_have_their_default_buffer_type(void) {
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < ggml_backend_reg_get_count(); i++) {
            if (ggml_backend_reg_get_default_buffer_type(i) != &device.buft) {
                check_entry(i);
            }
        }
    }
}

// Several simulated devices are open at once. If any of them is freed, the entry's buffer type is
// available again.
static void simulated_devices_stay_apart(void) {
    const size_t sim = ggml_backend_reg_find_by_name("SIM");
    ggml_backend_t a = ggml_backend_reg_init_backend(sim, NULL);
    ggml_backend_t b = ggml_backend_reg_init_backend(sim, "");
    ggml_backend_t c = ggml_backend_reg_init_backend(sim, "delay=0");
    const ggml_backend_buffer_type_t buft = ggml_backend_reg_get_default_buffer_type(sim);
    CHECK(ggml_backend_get_default_buffer_type(a) == buft);
    CHECK(ggml_backend_get_default_buffer_type(b) != buft && ggml_backend_get_default_buffer_type(c) != buft);
    CHECK(!ggml_backend_buft_supports_backend(buft, b) && !ggml_backend_buft_supports_backend(buft, c));
    ggml_backend_buffer_t kept = ggml_backend_alloc_buffer(a, 100);
    ggml_backend_free(b);
    ggml_backend_free(a);
    b = ggml_backend_reg_init_backend(sim, NULL);
    CHECK(ggml_backend_get_default_buffer_type(b) == buft);
    CHECK_INT(ggml_backend_buffer_clear(kept, 1), GGML_STATUS_SUCCESS);
    ggml_backend_buffer_free(kept);
    ggml_backend_free(b);
    ggml_backend_free(c);
}

TEST_MAIN(TEST(built_in), TEST(entries_have_their_default_buffer_type), TEST(simulated_devices_stay_apart),
    TEST(names_and_parameters), TEST(errors), TEST(threads), TEST(out_of_memory))
