// test_compat_sched.c - programs of early 2024 with the scheduler: measure the largest graph. Then,
// for every batch, reset, build, set the inputs, compute. Weights on one device or several, three
// placements of inputs, splits, the eval callback.
#include "compat.h"

enum { MAX_BACKENDS = 3 };

struct setup {
    int n;
    ggml_backend_t backends[MAX_BACKENDS]; // the last one is the CPU
    ggml_backend_buffer_t weights[3];
    ggml_backend_sched_t sched;
    struct model model;
};

// Weights go to the backends in turn.
static bool place_weights(struct setup * s) {
    struct ggml_tensor * w[3] = { s->model.w1, s->model.b1, s->model.w2 };
    for (int i = 0; i < 3; i++) {
        const ggml_backend_t backend = s->backends[i % s->n];
        s->weights[i] = ggml_backend_alloc_buffer(backend, ggml_nbytes(w[i]));
        if (s->weights[i] == NULL) {
            return false;
        }
        ggml_backend_buffer_set_usage(s->weights[i], GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        ggml_tallocr_t alloc = ggml_tallocr_new_from_buffer(s->weights[i]);
        ggml_tallocr_alloc(alloc, w[i]);
        ggml_tallocr_free(alloc);
    }
    model_upload(&s->model);
    return true;
}

static bool setup_new(struct setup * s, int n_devices) {
    memset(s, 0, sizeof(*s));
    for (int i = 0; i < n_devices; i++) {
        s->backends[s->n++] = ggml_backend_reg_init_backend_from_str("SIM");
    }
    s->backends[s->n++] = ggml_backend_cpu_init();
    for (int i = 0; i < s->n; i++) {
        if (s->backends[i] == NULL) {
            return false;
        }
    }
    s->sched = ggml_backend_sched_new(s->backends, NULL, s->n, GGML_DEFAULT_GRAPH_SIZE);
    return s->sched != NULL && model_new(&s->model) && place_weights(s);
}

static void setup_free(struct setup * s) {
    ggml_backend_sched_free(s->sched);
    for (int i = 0; i < 3; i++) {
        ggml_backend_buffer_free(s->weights[i]);
    }
    ggml_free(s->model.ctx);
    for (int i = 0; i < s->n; i++) {
        ggml_backend_free(s->backends[i]);
    }
}

static struct ggml_context * graph_context(void) {
    struct ggml_init_params params = { ggml_tensor_overhead() * 64 + ggml_graph_overhead(), NULL, true };
    return ggml_init(params);
}

// The scheduler's allocator for the CPU places the input also here, where it only measures.
static void measure(struct setup * s) {
    struct ggml_context * ctx = graph_context();
    struct ggml_cgraph * gf = ggml_new_graph(ctx);
    struct ggml_tensor * x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, N_IN, N_BATCH_MAX);
    ggml_tallocr_t alloc = ggml_backend_sched_get_tallocr(s->sched, s->backends[s->n - 1]);
    REQUIRE(alloc != NULL && ggml_tallocr_is_measure(alloc));
    ggml_tallocr_alloc(alloc, x);
    struct ggml_tensor * y = model_build(ctx, &s->model, x);
    ggml_build_forward_expand(gf, y);
    CHECK_INT(ggml_backend_sched_init_measure(s->sched, gf), GGML_STATUS_SUCCESS);
    CHECK(x->data == NULL && x->buffer == NULL && y->data == NULL &&
          y->buffer == NULL); // measuring does not change tensors
    ggml_free(ctx);
}

// The scheduler's tensor allocator for the CPU places the input.
static void batch_through_tallocr(struct setup * s, int n) {
    float x_data[N_IN * N_BATCH_MAX];
    model_random(x_data, N_IN * n);
    ggml_backend_sched_reset(s->sched);
    struct ggml_context * ctx = graph_context();
    struct ggml_cgraph * gf = ggml_new_graph(ctx);
    struct ggml_tensor * x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, N_IN, n);
    ggml_tallocr_t alloc = ggml_backend_sched_get_tallocr(s->sched, s->backends[s->n - 1]);
    REQUIRE(alloc != NULL && !ggml_tallocr_is_measure(alloc));
    ggml_tallocr_alloc(alloc, x);
    REQUIRE(x->buffer != NULL);
    ggml_backend_tensor_set(x, x_data, 0, ggml_nbytes(x));
    struct ggml_tensor * y = model_build(ctx, &s->model, x);
    ggml_build_forward_expand(gf, y);
    ggml_backend_sched_graph_compute(s->sched, gf);
    MODEL_CHECK(&s->model, x_data, n, y);
    ggml_free(ctx);
}

// The input has its own buffer. The same graph is computed twice, with new inputs.
static void batch_from_own_buffer(struct setup * s, int n) {
    ggml_backend_sched_reset(s->sched);
    struct ggml_context * inputs = graph_context();
    struct ggml_tensor * x = ggml_new_tensor_2d(inputs, GGML_TYPE_F32, N_IN, n);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors_from_buft(inputs, ggml_backend_cpu_buffer_type());
    REQUIRE(buffer != NULL);
    struct ggml_context * ctx = graph_context();
    struct ggml_cgraph * gf = ggml_new_graph(ctx);
    struct ggml_tensor * y = model_build(ctx, &s->model, x);
    ggml_build_forward_expand(gf, y);
    struct ggml_tensor * sources[256][GGML_MAX_SRC];
    REQUIRE(gf->n_nodes <= 256);
    for (int i = 0; i < gf->n_nodes; i++) {
        memcpy(sources[i], gf->nodes[i]->src, sizeof(sources[i]));
    }
    for (int pass = 0; pass < 3; pass++) {
        float x_data[N_IN * N_BATCH_MAX];
        model_random(x_data, N_IN * n);
        ggml_backend_tensor_set(x, x_data, 0, ggml_nbytes(x));
        CHECK_INT(ggml_backend_sched_graph_compute(s->sched, gf), GGML_STATUS_SUCCESS);
        MODEL_CHECK(&s->model, x_data, n, y);
    }
    for (int i = 0; i < gf->n_nodes; i++) {
        CHECK(memcmp(sources[i], gf->nodes[i]->src, sizeof(sources[i])) == 0); // the user's graph is unchanged
    }
    ggml_backend_sched_reset(s->sched);
    ggml_free(ctx);
    ggml_backend_buffer_free(buffer);
    ggml_free(inputs);
}

// The scheduler places the input, then it is set.
static void batch_placed_by_sched(struct setup * s, int n) {
    float x_data[N_IN * N_BATCH_MAX];
    model_random(x_data, N_IN * n);
    ggml_backend_sched_reset(s->sched);
    struct ggml_context * ctx = graph_context();
    struct ggml_cgraph * gf = ggml_new_graph(ctx);
    struct ggml_tensor * x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, N_IN, n);
    ggml_set_input(x);
    struct ggml_tensor * y = model_build(ctx, &s->model, x);
    ggml_set_output(y);
    ggml_build_forward_expand(gf, y);
    CHECK_INT(ggml_backend_sched_alloc_graph(s->sched, gf), GGML_STATUS_SUCCESS);
    REQUIRE(x->buffer != NULL && y->buffer != NULL);
    ggml_backend_tensor_set(x, x_data, 0, ggml_nbytes(x));
    CHECK_INT(ggml_backend_sched_graph_compute(s->sched, gf), GGML_STATUS_SUCCESS);
    MODEL_CHECK(&s->model, x_data, n, y);
    ggml_backend_sched_reset(s->sched);
    ggml_free(ctx);
}

static void batches(int n_devices) {
    struct setup s;
    REQUIRE(setup_new(&s, n_devices));
    measure(&s);
    for (int i = 0; i < s.n; i++) {
        CHECK(n_devices > 0 || ggml_backend_sched_get_buffer(s.sched, s.backends[i]) != NULL);
    }
    const int sizes[] = { 1, N_BATCH_MAX, 3 };
    for (int i = 0; i < 3; i++) {
        batch_through_tallocr(&s, sizes[i]);
        batch_from_own_buffer(&s, sizes[i]);
        batch_placed_by_sched(&s, sizes[i]);
    }
    setup_free(&s);
    CHECK_INT(ggml_last_status(), GGML_STATUS_SUCCESS);
}

static void on_cpu(void) { batches(0); }

static void on_device_and_cpu(void) { batches(1); }

static void on_two_devices_and_cpu(void) { batches(2); }

// Nodes assigned by hand stay on their backends, and the graph is split between them.
static void nodes_by_hand(void) {
    struct setup s;
    REQUIRE(setup_new(&s, 1));
    float x_data[N_IN * 2];
    model_random(x_data, N_IN * 2);
    struct ggml_context * ctx = graph_context();
    struct ggml_cgraph * gf = ggml_new_graph(ctx);
    struct ggml_tensor * x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, N_IN, 2);
    ggml_set_input(x);
    struct ggml_tensor * y = model_build(ctx, &s.model, x);
    struct ggml_tensor * hidden = ggml_get_tensor(ctx, "hidden");
    ggml_set_output(hidden);
    ggml_set_output(y);
    ggml_build_forward_expand(gf, y);
    ggml_backend_sched_set_node_backend(s.sched, hidden, s.backends[0]);
    ggml_backend_sched_set_node_backend(s.sched, y, s.backends[1]);
    CHECK(ggml_backend_sched_get_node_backend(s.sched, hidden) == s.backends[0]);
    REQUIRE(ggml_backend_sched_alloc_graph(s.sched, gf) == GGML_STATUS_SUCCESS);
    ggml_backend_tensor_set(x, x_data, 0, ggml_nbytes(x));
    CHECK_INT(ggml_backend_sched_graph_compute(s.sched, gf), GGML_STATUS_SUCCESS);
    MODEL_CHECK(&s.model, x_data, 2, y);
    CHECK(ggml_backend_sched_get_node_backend(s.sched, hidden) == s.backends[0]);
    CHECK(ggml_backend_sched_get_node_backend(s.sched, y) == s.backends[1]);
    CHECK(ggml_backend_sched_get_n_splits(s.sched) >= 2);
    CHECK(!ggml_backend_buffer_is_host(hidden->buffer));
    CHECK(ggml_backend_buffer_is_host(y->buffer));
    ggml_backend_sched_reset(s.sched);
    ggml_free(ctx);
    setup_free(&s);
}

// ------------------------------------------------------------------------------------------------------- eval callback

struct watch {
    int n_asked, n_shown, stop_after;
    double hidden_sum;
    char last[GGML_MAX_NAME];
};

static bool eval(struct ggml_tensor * t, bool ask, void * user_data) {
    struct watch * w = user_data;
    if (ask) {
        w->n_asked++;
        return strcmp(t->name, "hidden") == 0 || strcmp(t->name, "y") == 0;
    }
    w->n_shown++;
    snprintf(w->last, sizeof(w->last), "%s", t->name);
    if (strcmp(t->name, "hidden") == 0) { // complete at this point, on any backend
        float h[N_HIDDEN * N_BATCH_MAX];
        ggml_backend_tensor_get(t, h, 0, ggml_nbytes(t));
        w->hidden_sum = 0;
        for (int64_t i = 0; i < ggml_nelements(t); i++) {
            w->hidden_sum += (double) h[i];
        }
    }
    return w->n_shown != w->stop_after;
}

static void eval_callback(void) {
    for (int n_devices = 0; n_devices <= 2; n_devices++) {
        struct setup s;
        REQUIRE(setup_new(&s, n_devices));
        measure(&s);
        float x_data[N_IN * 2];
        double expected = 0;
        model_random(x_data, N_IN * 2);
        for (int t = 0; t < 2; t++) {
            for (int i = 0; i < N_HIDDEN; i++) {
                double h = (double) s.model.b1_data[i];
                for (int k = 0; k < N_IN; k++) {
                    h += (double) s.model.w1_data[i * N_IN + k] * (double) x_data[t * N_IN + k];
                }
                expected += h > 0 ? h : 0;
            }
        }
        struct ggml_context * ctx = graph_context();
        struct ggml_cgraph * gf = ggml_new_graph(ctx);
        struct ggml_tensor * x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, N_IN, 2);
        ggml_set_input(x);
        struct ggml_tensor * y = model_build(ctx, &s.model, x);
        ggml_build_forward_expand(gf, y);
        ggml_backend_sched_alloc_graph(s.sched, gf);
        ggml_backend_tensor_set(x, x_data, 0, ggml_nbytes(x));

        struct watch w = { 0 };
        ggml_backend_sched_set_eval_callback(s.sched, eval, &w);
        CHECK_INT(ggml_backend_sched_graph_compute(s.sched, gf), GGML_STATUS_SUCCESS);
        CHECK_INT(w.n_shown, 2);
        CHECK(w.n_asked >= 2 && w.n_asked <= gf->n_nodes);
        CHECK_STR(w.last, "y");
        CHECK_MSG(fabs(w.hidden_sum - expected) < 1e-4, "%g, expected %g", w.hidden_sum, expected);
        MODEL_CHECK(&s.model, x_data, 2, y);

        w = (struct watch){ 0 };
        w.stop_after = 1; // after the hidden layer
        ggml_backend_tensor_set(x, x_data, 0, ggml_nbytes(x));
        ggml_backend_sched_graph_compute(s.sched, gf);
        CHECK_INT(w.n_shown, 1);
        CHECK_STR(w.last, "hidden");
        ggml_clear_error();

        ggml_backend_sched_set_eval_callback(s.sched, NULL, NULL);
        ggml_backend_tensor_set(x, x_data, 0, ggml_nbytes(x));
        CHECK_INT(ggml_backend_sched_graph_compute(s.sched, gf), GGML_STATUS_SUCCESS);
        MODEL_CHECK(&s.model, x_data, 2, y);
        ggml_backend_sched_reset(s.sched);
        ggml_free(ctx);
        setup_free(&s);
    }
}

TEST_MAIN(TEST(on_cpu), TEST(on_device_and_cpu), TEST(on_two_devices_and_cpu), TEST(nodes_by_hand), TEST(eval_callback))
