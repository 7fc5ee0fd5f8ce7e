// Tensor allocators: placing, measuring, resetting, misuse, exact sizes. A map of owners is the
// oracle. Also tests hash sets.
#include "test_fake.h"

static struct ggml_context * context(void) { return ggml_init((struct ggml_init_params){ 100000, NULL, true }); }

static struct ggml_tensor * bytes(struct ggml_context * ctx, int64_t n) {
    return ggml_new_tensor_1d(ctx, GGML_TYPE_I8, n);
}

static void places_and_measures_the_same(void) {
    for (int round = 0; round < 50; round++) {
        struct fake f;
        struct ggml_context * ctx = context();
        fake_new(&f);
        f.extra = round % 3 ? 0 : 5;
        ggml_tallocr_t measure = ggml_tallocr_new_measure_from_buft(&f.buft);
        ggml_tallocr_t talloc = ggml_tallocr_new_from_buft(&f.buft, 100000);
        struct ggml_tensor * t[40];
        size_t sum = 0;
        REQUIRE(measure && talloc);
        CHECK(ggml_tallocr_is_measure(measure) && !ggml_tallocr_is_measure(talloc));
        for (int i = 0; i < 40; i++) {
            t[i] = bytes(ctx, test_random_int(1, 400));
            sum += (ggml_nbytes(t[i]) + f.extra + 31) / 32 * 32;
            CHECK_INT(ggml_tallocr_alloc(measure, t[i]), GGML_STATUS_SUCCESS);
            CHECK(t[i]->data == NULL && t[i]->buffer == NULL); // memory is unchanged
            CHECK_INT(ggml_tallocr_alloc(measure, t[i]), GGML_STATUS_INVALID_STATE);
            CHECK_ERROR(GGML_STATUS_INVALID_STATE, "placed already");
        }
        CHECK_INT(f.n_init, 0);
        char * base = ggml_backend_buffer_get_base(ggml_tallocr_get_buffer(talloc));
        for (int i = 0; i < 40; i++) {
            CHECK_INT(ggml_tallocr_alloc(talloc, t[i]), GGML_STATUS_SUCCESS);
            CHECK(((char *) t[i]->data - base) % 32 == 0 && t[i]->buffer == ggml_tallocr_get_buffer(talloc));
            for (int j = 0; j < i; j++) {
                CHECK((char *) t[i]->data >= (char *) t[j]->data + ggml_nbytes(t[j]) ||
                      (char *) t[j]->data >= (char *) t[i]->data + ggml_nbytes(t[i]));
            }
        }
        CHECK_INT(f.n_init, 40);
        CHECK_INT(ggml_tallocr_max_size(talloc), sum + sum / 10);
        CHECK_INT(ggml_tallocr_max_size(measure), sum + sum / 10);
        ggml_tallocr_free(talloc);
        ggml_tallocr_free(measure);
        CHECK_INT(f.n_buffers, 0);
        ggml_free(ctx);
    }
}

// A buffer that is sized as the sum of the tensors is large enough, with and without the margin.
static void exact_sizes(void) {
    struct ggml_context * ctx = context();
    struct ggml_tensor * k = bytes(ctx, 1000);
    struct ggml_tensor * v = bytes(ctx, 1000);
    struct fake f;
    fake_new(&f);
    ggml_backend_buffer_t cpu = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), 2000);
    ggml_tallocr_t talloc = ggml_tallocr_new_from_buffer(cpu);
    CHECK_INT(ggml_tallocr_alloc(talloc, k), GGML_STATUS_SUCCESS);
    CHECK_INT(ggml_tallocr_alloc(talloc, v), GGML_STATUS_SUCCESS);
    ggml_tallocr_free(talloc);
    ggml_backend_buffer_free(cpu);
    talloc = ggml_tallocr_new_from_buft(&f.buft, 1024 + 999); // the padding of the last one may exceed the buffer
    struct ggml_tensor * a = bytes(ctx, 1000);
    struct ggml_tensor * b = bytes(ctx, 1000);
    struct ggml_tensor * c = bytes(ctx, 999);
    ggml_set_name(b, "b");
    CHECK_INT(ggml_tallocr_alloc(talloc, a), GGML_STATUS_SUCCESS);
    CHECK_INT(ggml_tallocr_alloc(talloc, b), GGML_STATUS_ALLOC_FAILED);
    CHECK_ERROR(GGML_STATUS_ALLOC_FAILED, "ggml_tallocr_alloc: tensor 'b': needs 1024 bytes, largest free block");
    CHECK(b->data == NULL && ggml_tallocr_max_size(talloc) == 1024 + 102);
    CHECK_INT(ggml_tallocr_alloc(talloc, c), GGML_STATUS_SUCCESS);
    ggml_tallocr_free(talloc);
    ggml_free(ctx);
}

static void any_address(void) {
    struct ggml_context * ctx = context();
    static char memory[1000];
    struct ggml_tensor * t = bytes(ctx, 100);
    struct ggml_tensor * u = bytes(ctx, 800);
    ggml_tallocr_t talloc = ggml_tallocr_new(memory + 3, 900, 64);
    REQUIRE(talloc);
    CHECK_INT(ggml_tallocr_alloc(talloc, t), GGML_STATUS_SUCCESS);
    CHECK((uintptr_t) t->data % 64 == 0 && (char *) t->data >= memory + 3);
    CHECK_INT(ggml_tallocr_alloc(talloc, u), GGML_STATUS_ALLOC_FAILED);
    ggml_tallocr_free(talloc);
    CHECK(ggml_tallocr_new(memory, 900, 48) == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "48");
    CHECK(ggml_tallocr_new(NULL, 900, 64) == NULL);
    CHECK(ggml_tallocr_new_measure(0) == NULL);
    talloc = ggml_tallocr_new(memory + 1, 10, 64); // contains no aligned address
    REQUIRE(talloc);
    struct ggml_tensor * w = bytes(ctx, 1);
    CHECK_INT(ggml_tallocr_alloc(talloc, w),
        (uintptr_t) (memory + 1) % 64 > 54 ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED);
    ggml_tallocr_free(talloc);
    ggml_free(ctx);
}

static void huge_and_empty(void) {
    struct ggml_context * ctx = context();
    ggml_tallocr_t talloc = ggml_tallocr_new_measure(64);
    struct ggml_tensor * t = bytes(ctx, 1);
    struct ggml_tensor * zero = bytes(ctx, 0);
    t->ne[0] = INT64_MAX; // made by hand, because a builder would refuse it
    t->nb[1] = t->nb[2] = t->nb[3] = INT64_MAX;
    CHECK_INT(ggml_tallocr_alloc(talloc, t), GGML_STATUS_SUCCESS);
    CHECK(ggml_tallocr_max_size(talloc) >= SIZE_MAX / 2);
    REQUIRE(zero);
    CHECK_INT(ggml_tallocr_alloc(talloc, zero), GGML_STATUS_SUCCESS);
    CHECK_INT(ggml_tallocr_alloc(talloc, bytes(ctx, 1)), GGML_STATUS_ALLOC_FAILED);
    CHECK_INT(ggml_tallocr_reset(talloc), GGML_STATUS_SUCCESS);
    CHECK_INT(ggml_tallocr_alloc(talloc, bytes(ctx, 1)), GGML_STATUS_SUCCESS);
    CHECK(ggml_tallocr_max_size(talloc) >= SIZE_MAX / 2); // since the allocator was made
    ggml_tallocr_free(talloc);
    ggml_free(ctx);
}

static void misuse(void) {
    struct fake f;
    struct ggml_context * ctx = context();
    struct ggml_tensor * t = bytes(ctx, 100);
    struct ggml_tensor * v = ggml_view_1d(ctx, t, 10, 0);
    fake_new(&f);
    ggml_set_name(v, "v");
    ggml_tallocr_t talloc = ggml_tallocr_new_from_backend(&f.backend, 4096);
    REQUIRE(talloc);
    CHECK_INT(ggml_tallocr_alloc(talloc, v), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "'v' is a view");
    CHECK_INT(ggml_tallocr_alloc(talloc, NULL), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_tallocr_alloc(NULL, t), GGML_STATUS_INVALID_ARGUMENT);
    f.fail_init = 1;
    CHECK_INT(ggml_tallocr_alloc(talloc, t), GGML_STATUS_DEVICE_ERROR);
    CHECK(t->data == NULL && t->buffer == NULL && ggml_tallocr_max_size(talloc) == 0);
    CHECK_INT(ggml_tallocr_alloc(talloc, t), GGML_STATUS_SUCCESS);
    CHECK_INT(ggml_tallocr_alloc(talloc, t), GGML_STATUS_INVALID_STATE);
    ggml_tallocr_free(talloc);
    CHECK(ggml_tallocr_new_from_buffer(NULL) == NULL);
    CHECK(ggml_tallocr_new_from_buft(NULL, 1) == NULL);
    CHECK(ggml_tallocr_new_from_backend(NULL, 1) == NULL);
    CHECK(ggml_tallocr_new_measure_from_buft(NULL) == NULL);
    CHECK(ggml_tallocr_new_measure_from_backend(NULL) == NULL);
    CHECK(ggml_tallocr_get_buffer(NULL) == NULL && !ggml_tallocr_is_measure(NULL) && ggml_tallocr_max_size(NULL) == 0);
    CHECK_INT(ggml_tallocr_reset(NULL), GGML_STATUS_INVALID_ARGUMENT);
    ggml_tallocr_free(NULL);
    ggml_free(ctx);
}

static void same_tensors_after_reset(void) {
    struct fake f;
    struct ggml_context * ctx = context();
    struct ggml_tensor * a = bytes(ctx, 100);
    struct ggml_tensor * b = bytes(ctx, 100);
    fake_new(&f);
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(&f.buft, 4096);
    ggml_tallocr_t talloc = ggml_tallocr_new_from_buffer(buffer);
    ggml_tallocr_t other = ggml_tallocr_new_from_buffer(buffer);
    CHECK(ggml_tallocr_get_buffer(talloc) == buffer);
    CHECK_INT(ggml_tallocr_alloc(talloc, a), GGML_STATUS_SUCCESS);
    CHECK_INT(ggml_tallocr_alloc(talloc, b), GGML_STATUS_SUCCESS);
    void * const first = a->data;
    CHECK_INT(ggml_tallocr_reset(talloc), GGML_STATUS_SUCCESS);
    CHECK(f.n_reset == 1 && a->data == first); // reset does not access it: it may be freed
    CHECK_INT(ggml_tallocr_reset(other), GGML_STATUS_SUCCESS);
    CHECK_INT(ggml_tallocr_alloc(other, b), GGML_STATUS_INVALID_STATE); // another allocator's
    CHECK_INT(ggml_tallocr_alloc(talloc, b), GGML_STATUS_SUCCESS);
    CHECK(b->data == first);
    CHECK_INT(ggml_tallocr_alloc(talloc, b), GGML_STATUS_INVALID_STATE);
    ggml_tallocr_free(talloc);
    ggml_tallocr_free(other);
    CHECK_INT(f.n_buffers, 1); // not owned
    ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
}

static bool oom_scenario(struct fake * f, struct ggml_tensor ** t, int n) {
    ggml_tallocr_t measure = ggml_tallocr_new_measure_from_backend(&f->backend);
    ggml_tallocr_t talloc = measure ? ggml_tallocr_new_from_backend(&f->backend, 100000) : NULL;
    bool ok = talloc != NULL;
    for (int i = 0; ok && i < n; i++) {
        ok = ggml_tallocr_alloc(measure, t[i]) == GGML_STATUS_SUCCESS &&
             ggml_tallocr_alloc(talloc, t[i]) == GGML_STATUS_SUCCESS;
    }
    ggml_tallocr_free(measure);
    ggml_tallocr_free(talloc);
    return ok;
}

static void out_of_memory(void) {
    struct fake f;
    struct ggml_context * ctx = context();
    struct ggml_tensor * t[60];
    fake_new(&f);
    for (int i = 0; i < 60; i++) {
        t[i] = bytes(ctx, 100);
    }
    const int64_t live = gb_test_live_allocs();
    for (int n = 1;; n++) {
        gb_test_fail_alloc(n, false);
        const bool ok = oom_scenario(&f, t, 60);
        const bool failed = gb_test_alloc_failed();
        gb_test_fail_alloc(0, false);
        CHECK_INT(ok, !failed);
        CHECK_INT(gb_test_live_allocs(), live);
        CHECK_INT(f.n_buffers, 0);
        for (int i = 0; i < 60; i++) {
            t[i]->data = NULL;
            t[i]->buffer = NULL;
        }
        if (!failed) {
            CHECK(n > 8);
            break;
        }
    }
    ggml_free(ctx);
}

static void hash_sets(void) {
    static struct ggml_tensor many[300];
    struct ggml_hash_set set = ggml_hash_set_new(300);
    REQUIRE(set.keys && set.size >= 300);
    for (int i = 0; i < 300; i++) {
        CHECK(!ggml_hash_contains(set, &many[i]));
        const size_t slot = i % 2 ? ggml_hash_insert(set, &many[i]) : ggml_hash_find_or_insert(set, &many[i]);
        CHECK(slot < set.size && set.keys[slot] == &many[i]);
        CHECK(ggml_hash_find(set, &many[i]) == slot && ggml_hash_find_or_insert(set, &many[i]) == slot);
        CHECK(ggml_hash_insert(set, &many[i]) == GGML_HASHTABLE_ALREADY_EXISTS);
    }
    ggml_hash_set_free(set);
    set = ggml_hash_set_new(0);
    for (size_t i = 0; i < set.size; i++) {
        CHECK(ggml_hash_insert(set, &many[i]) < set.size);
    }
    CHECK(ggml_hash_find(set, &many[200]) == GGML_HASHTABLE_FULL);
    CHECK(ggml_hash_insert(set, &many[200]) == GGML_HASHTABLE_FULL);
    CHECK(!ggml_hash_contains(set, &many[200]) && ggml_hash_find(set, NULL) == GGML_HASHTABLE_FULL);
    ggml_hash_set_free(set);
    CHECK(ggml_hash_set_new(SIZE_MAX).keys == NULL);
    CHECK_ERROR(GGML_STATUS_ALLOC_FAILED, "too large");
    struct ggml_context * ctx = context();
    struct ggml_cgraph * graph = ggml_new_graph(ctx);
    struct ggml_tensor * x = bytes(ctx, 1);
    ggml_build_forward_expand(graph, x);
    CHECK(ggml_hash_contains(graph->visited_hash_table, x));  // graphs use the same search
    ggml_free(ctx);
}

TEST_MAIN(TEST(places_and_measures_the_same), TEST(exact_sizes), TEST(any_address), TEST(huge_and_empty), TEST(misuse),
    TEST(same_tensors_after_reset), TEST(out_of_memory), TEST(hash_sets))
