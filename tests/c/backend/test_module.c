// Backends in shared libraries: the example is loaded and computes. Invalid modules are refused
// before their code runs. The order of the tests matters: the first ones need a process that has
// loaded nothing.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "ggml-backend-impl.h"
#include "ggml-backend.h"
#include "test.h"

static bool has_run(void) { return getenv("GGML_TEST_MODULE_RAN") != NULL; }

static const struct ggml_backend_load_record * last_record(void) {
    return ggml_backend_load_get(ggml_backend_load_count() - 1);
}

static void refuses(const char * path, enum ggml_status status, const char * says) {
    const size_t n_backends = ggml_backend_reg_get_count();
    CHECK(ggml_backend_load(path) == status);
    CHECK(strstr(ggml_last_error(), says) != NULL);
    CHECK(ggml_backend_reg_get_count() == n_backends);
    const size_t n = ggml_backend_load_count();
    CHECK(n > 0 && last_record()->status == status && strstr(last_record()->message, says) != NULL);
    CHECK(ggml_backend_load(path) == status);
    CHECK(ggml_backend_load_count() == n); // the same file is listed once
}

static void test_arguments(void) {
    CHECK(ggml_backend_load(NULL) == GGML_STATUS_INVALID_ARGUMENT);
    CHECK(ggml_backend_load("") == GGML_STATUS_INVALID_ARGUMENT);
    CHECK(ggml_backend_load("mini.so") == GGML_STATUS_INVALID_ARGUMENT); // a bare name is not searched for
    CHECK(strstr(ggml_last_error(), "./mini.so") != NULL);
    CHECK(ggml_backend_load_count() == 0);
    CHECK(ggml_backend_load_get(0) == NULL);
    refuses("./there/is/none.so", GGML_STATUS_IO_ERROR, "none.so");
}

static void write_file(const char * path, const void * data, size_t size) {
    FILE * file = fopen(path, "wb");
    CHECK(file != NULL && fwrite(data, 1, size, file) == size);
    CHECK(fclose(file) == 0);
}

static void test_files_that_are_no_modules(void) {
    char magic[] = "?ggml_backend module v1 \r\n\032\n";
    magic[0] = 0177; // set at run time, because the test also loads this program, which must not contain the magic
    write_file("./test_module_empty", "", 0);
    refuses("./test_module_empty", GGML_STATUS_INVALID_ARGUMENT, "no backend module");
    char text[4096];
    memset(text, 0177, sizeof(text)); // every byte could begin a magic
    memcpy(text + sizeof(text) - 20, magic, 20);
    write_file("./test_module_text", text, sizeof(text));
    refuses("./test_module_text", GGML_STATUS_INVALID_ARGUMENT, "has 0 module descriptors");
    memset(text, 0, sizeof(text));
    memcpy(text + 100, magic, sizeof(magic));
    memcpy(text + 1000, magic, sizeof(magic));
    write_file("./test_module_text", text, sizeof(text));
    refuses("./test_module_text", GGML_STATUS_INVALID_ARGUMENT, "has 2 module descriptors");
    remove("./test_module_empty");
    remove("./test_module_text");
    refuses("./", GGML_STATUS_IO_ERROR, "");
    refuses(TEST_PROGRAM, GGML_STATUS_INVALID_ARGUMENT, "no backend module"); // contains the library
}

static void test_refused_before_anything_runs(void) {
    CHECK(!has_run());
    refuses(MODULE_OTHER_VERSION, GGML_STATUS_UNSUPPORTED, "has version 2");
    refuses(MODULE_OTHER_LAYOUT, GGML_STATUS_UNSUPPORTED, "struct ggml_tensor: 1 bytes in the module");
    CHECK(!has_run());
    refuses(MODULE_NO_ENTRY, GGML_STATUS_INVALID_ARGUMENT, "does not export ggml_backend_module_init");
    CHECK(has_run()); // so constructors do leave the mark
}

static void test_entry_that_fails(void) {
    refuses(MODULE_NO_DEVICE, GGML_STATUS_UNSUPPORTED, "no device: 0 of them answered");
    CHECK(strcmp(last_record()->name, "no_device") == 0);
    refuses(MODULE_RECURSIVE, GGML_STATUS_INVALID_ARGUMENT, "init_fn");
}

static void fill(struct ggml_tensor * t, float start) {
    float data[12];
    for (int i = 0; i < 12; i++) {
        data[i] = start + (float) i;
    }
    ggml_backend_tensor_set(t, data, 0, sizeof(data));
}

// y = sqrt(a * b + a): two ops on the module's device, one on the CPU.
static void compute_with(ggml_backend_t mini) {
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 16384, NULL, true });
    struct ggml_tensor * a = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 4, 3);
    struct ggml_tensor * b = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 4, 3);
    struct ggml_tensor * ab = ggml_mul(ctx, a, b);
    struct ggml_tensor * sum = ggml_add(ctx, ab, a);
    struct ggml_tensor * y = ggml_sqrt(ctx, sum);
    struct ggml_cgraph * g = ggml_new_graph(ctx);
    ggml_build_forward_expand(g, y);
    ggml_backend_t list[] = { mini, ggml_backend_cpu_init() };
    ggml_backend_sched_t sched = ggml_backend_sched_new(list, NULL, 2, 16);
    CHECK(sched != NULL);
    CHECK(ggml_backend_sched_alloc_graph(sched, g) == GGML_STATUS_SUCCESS);
    fill(a, 1);
    fill(b, 5);
    CHECK(ggml_backend_sched_graph_compute(sched, g) == GGML_STATUS_SUCCESS);
    CHECK(ggml_backend_sched_get_node_backend(sched, ab) == mini);
    CHECK(ggml_backend_sched_get_node_backend(sched, y) == list[1]);
    float result[12];
    ggml_backend_tensor_get(y, result, 0, sizeof(result));
    for (int i = 0; i < 12; i++) {
        const float wanted = (float) (1 + i) * (float) (5 + i) + (float) (1 + i);
        CHECK(result[i] * result[i] > wanted * 0.99999f && result[i] * result[i] < wanted * 1.00001f);
    }
    ggml_backend_sched_free(sched);
    ggml_backend_free(list[1]);
    ggml_free(ctx);
}

// Another library with the same names is loaded first. The module still calls the library that
// loaded it.
static void test_example(void) {
    void * impostor = dlopen(MODULE_IMPOSTOR, RTLD_NOW | RTLD_GLOBAL);
    CHECK(impostor != NULL);
    const size_t n = ggml_backend_reg_get_count();
    CHECK(ggml_backend_load(MODULE_MINI) == GGML_STATUS_SUCCESS);
    CHECK(ggml_backend_reg_get_count() == n + 1);
    CHECK(ggml_backend_load(MODULE_MINI) == GGML_STATUS_SUCCESS); // it is loaded already, so nothing changes
    CHECK(ggml_backend_reg_get_count() == n + 1);
    const struct ggml_backend_load_record * record = last_record();
    CHECK(record->status == GGML_STATUS_SUCCESS && record->n_backends == 1);
    CHECK(strcmp(record->name, "mini") == 0 && strcmp(record->message, "") == 0 && record->path[0] == '/');

    ggml_backend_t mini = ggml_backend_reg_init_backend_from_str("MINI");
    CHECK(mini != NULL && strcmp(ggml_backend_name(mini), "MINI") == 0);
    compute_with(mini);
    CHECK(ggml_backend_alloc_buffer(mini, SIZE_MAX) == NULL);
    CHECK(strstr(ggml_last_error(), "MINI") != NULL);
    ggml_backend_free(mini);
    CHECK(ggml_backend_reg_init_backend_from_str("MINI:x=1") == NULL);
    CHECK(strstr(ggml_last_error(), "takes no parameters, has \"x=1\"") != NULL); // formatted by the module

    int (*calls)(void) = NULL;
    void * symbol = dlsym(impostor, "impostor_calls");
    memcpy(&calls, &symbol, sizeof(calls));
    CHECK(calls != NULL && calls() == 0);
}

static void test_memory_runs_out(void) { // the module is refused, whichever allocation fails
    for (int n = 1; n < 20; n++) {
        gb_test_fail_alloc(n, false);
        const enum ggml_status status = ggml_backend_load(MODULE_OTHER_LAYOUT);
        gb_test_fail_alloc(0, false);
        CHECK(status == GGML_STATUS_UNSUPPORTED || status == GGML_STATUS_ALLOC_FAILED ||
              status == GGML_STATUS_IO_ERROR);
    }
}

TEST_MAIN(TEST(test_arguments), TEST(test_files_that_are_no_modules), TEST(test_refused_before_anything_runs),
    TEST(test_entry_that_fails), TEST(test_example), TEST(test_memory_runs_out))
