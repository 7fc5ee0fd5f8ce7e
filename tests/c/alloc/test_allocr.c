// The older interface, as programs of early 2024 use it: measure, make a buffer of that size, build
// again, allocate.
#include "test_fake.h"

static struct ggml_cgraph * build(struct ggml_context * ctx, ggml_allocr_t alloc, struct ggml_tensor ** x,
    struct ggml_tensor ** out) {
    struct ggml_cgraph * graph = ggml_new_graph(ctx);
    *x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 32, 8);
    ggml_allocr_alloc(alloc, *x);
    if (!ggml_allocr_is_measure(alloc)) {
        const float values[32 * 8] = { 1, 2, 3 };
        ggml_backend_tensor_set(*x, values, 0, sizeof(values));
    }
    struct ggml_tensor * t = *x;
    for (int i = 0; i < 5; i++) {
        t = ggml_cont(ctx, ggml_add(ctx, t, *x));
    }
    ggml_build_forward_expand(graph, t);
    *out = t;
    return graph;
}

static struct ggml_context * context(void) { return ggml_init((struct ggml_init_params){ 1 << 16, NULL, true }); }

static void two_steps(void) {
    static char memory[1 << 16];
    struct fake f;
    fake_new(&f);
    for (int kind = 0; kind < 3; kind++) {
        struct ggml_tensor *x, *out;
        ggml_allocr_t alloc = kind ? ggml_allocr_new_measure_from_backend(&f.backend) : ggml_allocr_new_measure(32);
        REQUIRE(alloc && ggml_allocr_is_measure(alloc));
        struct ggml_context * ctx = context();
        const size_t size = ggml_allocr_alloc_graph(alloc, build(ctx, alloc, &x, &out));
        CHECK_INT(size, 3 * 1024 + 307);
        CHECK_INT(ggml_allocr_max_size(alloc), size);
        CHECK(ggml_allocr_get_buffer(alloc) == NULL);
        ggml_allocr_free(alloc);
        ggml_free(ctx);

        ggml_backend_buffer_t buffer = NULL;
        if (kind == 0) {
            alloc = ggml_allocr_new(memory, size + 32, 32);
        } else if (kind == 1) {
            alloc = ggml_allocr_new_from_backend(&f.backend, size);
        } else {
            buffer = ggml_backend_alloc_buffer(&f.backend, size);
            alloc = ggml_allocr_new_from_buffer(buffer);
        }
        REQUIRE(alloc && !ggml_allocr_is_measure(alloc));
        for (int round = 0; round < 3; round++) { // a new graph each time, in new memory
            CHECK_INT(ggml_allocr_reset(alloc), GGML_STATUS_SUCCESS);
            ctx = context();
            struct ggml_cgraph * graph = build(ctx, alloc, &x, &out);
            CHECK_INT(ggml_allocr_alloc_graph(alloc, graph), size);
            CHECK(out->data && out->buffer == ggml_allocr_get_buffer(alloc));
            CHECK(x->data == ggml_backend_buffer_get_base(ggml_allocr_get_buffer(alloc)) || kind == 0);
            float y = 0;
            CHECK_INT(ggml_backend_tensor_get(x, &y, 8, 4), GGML_STATUS_SUCCESS);
            CHECK(y == 3);
            ggml_free(ctx);
        }
        ggml_allocr_free(alloc);
        ggml_backend_buffer_free(buffer);
        CHECK_INT(f.n_buffers, 0);
    }
}

static void parse_sequence(void) {
    struct ggml_context * ctx = context();
    ggml_allocr_t alloc = ggml_allocr_new_measure(32);
    struct ggml_tensor *x, *out;
    struct ggml_cgraph * graph = build(ctx, alloc, &x, &out);
    int seq[10];
    for (int i = 0; i < 10; i++) {
        seq[i] = i;
    }
    CHECK_INT(ggml_allocr_set_parse_seq(alloc, seq, 10), GGML_STATUS_SUCCESS);
    const size_t n = 11 * 1024; // all nodes stay alive: x and its copies have a second reader until the barrier
    const size_t size = ggml_allocr_alloc_graph(alloc, graph);
    CHECK(size > 3 * 1024 + 307 && size <= n + n / 10);
    ggml_allocr_free(alloc);
    ggml_free(ctx);
}

static void null_and_no_memory(void) {
    struct fake f;
    char memory[256];
    fake_new(&f);
    ggml_allocr_free(NULL);
    CHECK(ggml_allocr_new(NULL, 10, 32) == NULL && ggml_allocr_new(memory, 10, 3) == NULL);
    CHECK(ggml_allocr_new_measure(3) == NULL && ggml_allocr_new_from_buffer(NULL) == NULL);
    CHECK(ggml_allocr_new_from_backend(NULL, 1) == NULL && ggml_allocr_new_measure_from_backend(NULL) == NULL);
    CHECK(ggml_allocr_get_buffer(NULL) == NULL && !ggml_allocr_is_measure(NULL));
    CHECK_INT(ggml_allocr_set_parse_seq(NULL, NULL, 0), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_allocr_reset(NULL), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_allocr_alloc(NULL, NULL), GGML_STATUS_INVALID_ARGUMENT);
    CHECK(ggml_allocr_max_size(NULL) == 0 && ggml_allocr_alloc_graph(NULL, NULL) == 0);
    const int64_t live = gb_test_live_allocs();
    for (int n = 1;; n++) {
        gb_test_fail_alloc(n, false);
        ggml_allocr_t a = ggml_allocr_new(memory, sizeof(memory), 32);
        ggml_allocr_t b = ggml_allocr_new_from_backend(&f.backend, 100);
        ggml_allocr_t c = ggml_allocr_new_measure(32);
        const bool failed = gb_test_alloc_failed();
        gb_test_fail_alloc(0, false);
        CHECK_INT((a != NULL) + (b != NULL) + (c != NULL), failed ? 2 : 3);
        ggml_allocr_free(a);
        ggml_allocr_free(b);
        ggml_allocr_free(c);
        CHECK_INT(gb_test_live_allocs(), live);
        if (!failed) {
            CHECK(n > 10);
            break;
        }
    }
}

TEST_MAIN(TEST(two_steps), TEST(parse_sequence), TEST(null_and_no_memory))
