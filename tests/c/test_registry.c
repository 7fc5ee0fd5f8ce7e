// The registry: built-in entries, names, parameters, growth, threads, errors.
#include "base/thread.h"
#include "test_fake.h"

static struct fake device;
static char        last_params[100];
static void *      last_user_data;

static ggml_backend_t make_fake(const char * params, void * user_data) {
    snprintf(last_params, sizeof(last_params), "%s", params ? params : "(null)");
    last_user_data = user_data;
    ggml_backend_reg_get_count(); // the registry may be used from here
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
    char         name[] = "Fake-1";
    CHECK_INT(ggml_backend_register(name, make_fake, &device.buft, &mine), GGML_STATUS_SUCCESS);
    name[0] = 'x'; // it was copied
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
    gb_thread    t[4];
    int          ids[4];
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
        const bool             failed = gb_test_alloc_failed();
        gb_test_fail_alloc(0, false);
        CHECK_INT(status, failed ? GGML_STATUS_ALLOC_FAILED : GGML_STATUS_SUCCESS);
        CHECK_INT(ggml_backend_reg_get_count(), n + (failed ? 0 : 1));
        if (!failed) {
            break;
        }
    }
}

TEST_MAIN(TEST(built_in), TEST(names_and_parameters), TEST(errors), TEST(threads), TEST(out_of_memory))
