// A device whose buffers are smaller than requested: the caller gets an error with both sizes, and
// no memory leaks.
#include "ggml-alloc.h"
#include "test.h"
#include "test_fake.h"

static struct fake device;
static size_t missing; // bytes that each buffer is short of

static ggml_backend_buffer_t short_alloc(ggml_backend_buffer_type_t buft, size_t size) {
    return fake_alloc(buft, size > missing ? size - missing : 0);
}

static struct ggml_context * ctx;

static struct ggml_cgraph * new_graph(void) {
    ctx = ggml_init((struct ggml_init_params){ 1 << 16, NULL, true });
    struct ggml_tensor * x = ggml_set_name(ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 1000), "x");
    struct ggml_tensor * y = ggml_set_name(ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 1000), "y");
    struct ggml_cgraph * graph = ggml_new_graph(ctx);
    ggml_build_forward_expand(graph, ggml_add(ctx, ggml_add(ctx, x, y), x));
    return graph;
}

static void begin(size_t bytes) {
    fake_new(&device);
    device.buft.iface.alloc_buffer = short_alloc;
    missing = bytes;
}

static void end(const char * what) {
    CHECK_MSG(ggml_last_status() == GGML_STATUS_DEVICE_ERROR && strstr(ggml_last_error(), "was asked for") != NULL &&
                  strstr(ggml_last_error(), ggml_backend_buft_name(&device.buft)) != NULL,
        "%s: %s", what, ggml_last_error());
    CHECK_INT(device.n_buffers, 0);
    ggml_free(ctx);
    ctx = NULL;
    ggml_report_error(GGML_STATUS_SUCCESS, "%s", "");
}

static void everywhere(void) {
    static const size_t sizes[] = { 1, 32, 3000, 1 << 20 };
    for (int i = 0; i < 4; i++) {
        begin(sizes[i]);
        CHECK(ggml_backend_buft_alloc_buffer(&device.buft, 1000) == NULL);
        end("buffer type");

        begin(sizes[i]);
        CHECK(ggml_backend_alloc_buffer(&device.backend, 1000) == NULL);
        end("backend");

        begin(sizes[i]);
        new_graph();
        CHECK(ggml_backend_alloc_ctx_tensors(ctx, &device.backend) == NULL);
        for (struct ggml_tensor * t = ggml_get_first_tensor(ctx); t != NULL; t = ggml_get_next_tensor(ctx, t)) {
            CHECK(t->data == NULL && t->buffer == NULL);
        }
        end("context");

        begin(sizes[i]);
        CHECK(ggml_tallocr_new_from_backend(&device.backend, 1000) == NULL);
        end("tallocr");

        begin(sizes[i]);
        struct ggml_cgraph * graph = new_graph();
        CHECK(ggml_allocr_new_from_backend(&device.backend, 5000) == NULL);
        end("allocr");

        begin(sizes[i]);
        graph = new_graph();
        ggml_backend_t list[] = { &device.backend, ggml_backend_cpu_init() };
        ggml_backend_sched_t sched = ggml_backend_sched_new(list, NULL, 2, 0);
        for (int k = 0; k < graph->n_nodes; k++) {
            ggml_backend_sched_set_node_backend(sched, graph->nodes[k], list[0]);
        }
        CHECK(ggml_backend_sched_graph_compute(sched, graph) != GGML_STATUS_SUCCESS);
        ggml_backend_sched_free(sched);
        end("scheduler");

        begin(sizes[i]);
        graph = new_graph();
        const ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, list[1]);
        struct ggml_backend_graph_copy copy = ggml_backend_graph_copy(&device.backend, graph);
        CHECK(copy.graph == NULL && copy.buffer == NULL);
        ggml_backend_buffer_free(buffer);
        end("copy");
        ggml_backend_free(list[1]);
    }
}

static void exact_and_larger_buffers_are_fine(void) {
    begin(0);
    new_graph();
    const ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, &device.backend);
    CHECK(buffer != NULL);
    ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
}

TEST_MAIN(TEST(everywhere), TEST(exact_and_larger_buffers_are_fine))
