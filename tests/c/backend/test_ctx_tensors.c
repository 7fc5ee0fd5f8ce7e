// Memory for whole contexts: one buffer, several, none. Failures leave every tensor unchanged.
#include "test_fake.h"

enum { N = 20 };

struct scene {
    struct fake f;
    struct ggml_context * ctx;
    struct ggml_tensor * t[N];
    struct ggml_tensor * v[N];      // views of every second one
    struct ggml_tensor * elsewhere; // has its own memory already
    struct ggml_tensor * window;    // a view of it, not bound
    ggml_backend_buffer_t own;
};

static void scene_open(struct scene * w) {
    *w = (struct scene){ 0 };
    fake_new(&w->f);
    w->ctx = ggml_init((struct ggml_init_params){ 1000, NULL, true });
    for (int i = 0; i < N; i++) {
        w->t[i] = ggml_new_tensor_1d(w->ctx, GGML_TYPE_F32, 10 + i);
        if (i % 2) {
            w->v[i] = ggml_view_1d(w->ctx, w->t[i], 4, 12);
        }
    }
    w->elsewhere = ggml_new_tensor_1d(w->ctx, GGML_TYPE_F32, 16);
    w->window = ggml_view_1d(w->ctx, w->elsewhere, 4, 16);
    w->own = ggml_backend_buft_alloc_buffer(&w->f.buft, 64);
    ggml_backend_tensor_alloc(w->own, w->elsewhere, ggml_backend_buffer_get_base(w->own));
    w->f.n_init = 0;
}

static void scene_close(struct scene * w) {
    ggml_backend_buffer_free(w->own);
    ggml_free(w->ctx);
    CHECK_INT(w->f.n_buffers, 0);
}

static void check_unplaced(const struct scene * w) {
    for (int i = 0; i < N; i++) {
        CHECK(w->t[i]->data == NULL && w->t[i]->buffer == NULL);
        CHECK(w->v[i] == NULL || (w->v[i]->data == NULL && w->v[i]->buffer == NULL));
    }
    CHECK(w->elsewhere->data == ggml_backend_buffer_get_base(w->own) && w->window->buffer == NULL);
    CHECK_INT(w->f.n_buffers, 1);
}

// Checks that every tensor is inside its buffer, aligned and disjoint, and that views point into
// their sources.
static void check_placed(const struct scene * w) {
    for (int i = 0; i < N; i++) {
        const struct ggml_tensor * t = w->t[i];
        char * base = t->buffer ? ggml_backend_buffer_get_base(t->buffer) : NULL;
        CHECK(base && (char *) t->data >= base &&
              (char *) t->data + ggml_nbytes(t) + w->f.extra <= base + t->buffer->size);
        CHECK((uintptr_t) t->data % w->f.alignment == 0);
        for (int j = 0; j < i; j++) {
            CHECK((char *) t->data >= (char *) w->t[j]->data + ggml_nbytes(w->t[j]) + w->f.extra ||
                  (char *) w->t[j]->data >= (char *) t->data + ggml_nbytes(t) + w->f.extra);
        }
        CHECK(w->v[i] == NULL || (w->v[i]->data == (char *) t->data + 12 && w->v[i]->buffer == t->buffer));
    }
    CHECK(w->window->buffer == w->own && w->window->data == (char *) w->elsewhere->data + 16);
}

static void one_buffer(void) {
    struct scene w;
    scene_open(&w);
    w.f.extra = 3;
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(w.ctx, &w.f.backend);
    REQUIRE(buffer);
    CHECK(!ggml_backend_buffer_is_multi_buffer(buffer) && w.f.n_buffers == 2);
    CHECK_INT(w.f.n_init, N + N / 2 + 1);
    check_placed(&w);
    ggml_clear_error();
    CHECK(ggml_backend_alloc_ctx_tensors(w.ctx, &w.f.backend) == NULL); // all tensors have memory
    CHECK_INT(ggml_last_status(), GGML_STATUS_SUCCESS);
    ggml_backend_buffer_free(buffer);
    scene_close(&w);
}

static void several_buffers(void) {
    for (size_t max_size = 116; max_size < 2200; max_size += 52) {
        struct scene w;
        scene_open(&w);
        w.f.max_size = max_size;
        ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors_from_buft(w.ctx, &w.f.buft);
        REQUIRE(buffer);
        check_placed(&w);
        const int n_parts = w.f.n_buffers - 1;
        size_t total = 0;
        for (int i = 0; i < N; i++) {
            total += (ggml_nbytes(w.t[i]) + 31) / 32 * 32;
        }
        CHECK_INT(ggml_backend_buffer_is_multi_buffer(buffer), n_parts > 1);
        CHECK((size_t) n_parts >= (total + max_size - 1) / max_size || max_size < 128);
        CHECK(n_parts == 1 || max_size < total);
        ggml_backend_buffer_set_usage(buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        CHECK_INT(w.t[N - 1]->buffer->usage, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        ggml_backend_buffer_free(buffer);
        scene_close(&w);
    }
}

static void too_large(void) {
    struct scene w;
    scene_open(&w);
    ggml_set_name(w.t[N - 1], "big");
    w.f.max_size = 115; // the last one has 116 bytes
    CHECK(ggml_backend_alloc_ctx_tensors(w.ctx, &w.f.backend) == NULL);
    CHECK_ERROR(GGML_STATUS_ALLOC_FAILED, "'big': needs 116 bytes, a buffer of type FAKE holds at most 115");
    check_unplaced(&w);
    CHECK(ggml_backend_alloc_ctx_tensors(NULL, &w.f.backend) == NULL);
    CHECK(ggml_backend_alloc_ctx_tensors(w.ctx, NULL) == NULL);
    CHECK(ggml_backend_alloc_ctx_tensors_from_buft(w.ctx, NULL) == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "'buft'");
    scene_close(&w);
}

static void every_tensor_fails_once(void) {
    struct scene w;
    scene_open(&w);
    w.f.max_size = 500;
    ggml_backend_buffer_t buffer = NULL;
    int n;
    for (n = 1; buffer == NULL; n++) {
        w.f.fail_init = n;
        buffer = ggml_backend_alloc_ctx_tensors(w.ctx, &w.f.backend);
        if (buffer == NULL) {
            CHECK_ERROR(GGML_STATUS_DEVICE_ERROR, "cannot set up");
            check_unplaced(&w);
        }
    }
    CHECK_INT(n, N + N / 2 + 1 + 2);
    check_placed(&w);
    ggml_backend_buffer_free(buffer);
    scene_close(&w);
}

static void out_of_memory(void) {
    struct scene w;
    scene_open(&w);
    w.f.max_size = 500;
    const int64_t live = gb_test_live_allocs();
    for (int n = 1;; n++) {
        gb_test_fail_alloc(n, false);
        ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(w.ctx, &w.f.backend);
        const bool failed = gb_test_alloc_failed();
        gb_test_fail_alloc(0, false);
        CHECK_INT(buffer == NULL, failed);
        if (buffer) {
            check_placed(&w);
            ggml_backend_buffer_free(buffer);
            CHECK_INT(gb_test_live_allocs(), live);
            CHECK(n > 6);
            break;
        }
        check_unplaced(&w);
        CHECK_INT(gb_test_live_allocs(), live);
    }
    scene_close(&w);
}

static void special_contexts(void) {
    struct fake f;
    fake_new(&f);
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 1000, NULL, true });
    CHECK(ggml_backend_alloc_ctx_tensors(ctx, &f.backend) == NULL); // empty
    CHECK_INT(ggml_last_status(), GGML_STATUS_SUCCESS);
    struct ggml_tensor * zero = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 0);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, &f.backend);
    CHECK(zero && buffer && zero->data != NULL && zero->buffer == buffer);
    ggml_backend_buffer_free(buffer);
    struct ggml_context * views = ggml_init((struct ggml_init_params){ 1000, NULL, true });
    struct ggml_tensor * v = ggml_view_1d(views, ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 8), 4, 0);
    CHECK(ggml_backend_alloc_ctx_tensors(views, &f.backend) == NULL); // the source has no memory
    CHECK(v->data == NULL && ggml_last_status() == GGML_STATUS_SUCCESS);
    ggml_free(views);
    ggml_free(ctx);
}

TEST_MAIN(TEST(one_buffer), TEST(several_buffers), TEST(too_large), TEST(every_tensor_fails_once), TEST(out_of_memory),
    TEST(special_contexts))
