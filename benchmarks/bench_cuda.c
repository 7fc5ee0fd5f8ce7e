// bench_cuda.c - measures the CUDA backend: copies over the bus and in device memory, products, attention, launches.
// Prints JSON.
//
//     cmake -S . -B build/cuda -DGGML_CUDA=ON -DGGML_BACKEND_BENCHMARKS=ON && cmake --build build/cuda --target
//     bench_cuda && build/cuda/benchmarks/bench_cuda
//
// Each round ends with a synchronization. The best of five rounds counts. Rates of products count each byte of the
// weights once (n up to 16), or 2 m n k operations. The copy rate of the device is the upper bound of matrix-vector
// products. If cuBLAS is installed, it computes the large products, too. bench_cuda_torch.py compares with PyTorch.
// `bench_cuda streams` measures only the copy rate and products of one and few rows of quantized weights.
#ifndef _GNU_SOURCE
#    define _GNU_SOURCE // setenv
#endif
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ggml-backend.h"
#include "ggml-backend-impl.h"
#include "ggml-cpu.h"
#include "ggml-cuda.h"
#include "timing.h"

enum ggml_status gb_cuda_register_linked(void);

enum { ROUNDS = 5 };

static ggml_backend_t backend;
static bool first = true;
static int n_failed;

static void put(const char * name, const char * unit, double value) {
    if (!(value > 0)) { // a time of -1: it was not computed
        fprintf(stderr, "failed: %s\n", name);
        n_failed++;
        return;
    }
    printf("%s\n  {\"name\": \"%s\", \"%s\": %.4g}", first ? "" : ",", name, unit, value);
    first = false;
    fflush(stdout);
}

// The shortest seconds per computation, of rounds with `n` computations and one synchronization.
static double time_graph(struct ggml_cgraph * graph, int n) {
    struct bench_shortest best = { 0 };
    for (int i = 0; i < 2; i++) { // the first is launched node by node, the second is recorded
        if (!ggml_backend_graph_compute(backend, graph) || ggml_backend_synchronize(backend) != GGML_STATUS_SUCCESS) {
            fprintf(stderr, "%s\n", ggml_last_error());
            return -1;
        }
    }
    for (int round = 0; round < ROUNDS; round++) {
        const double start = bench_wall();
        for (int i = 0; i < n; i++) {
            ggml_backend_graph_compute(backend, graph);
        }
        ggml_backend_synchronize(backend);
        bench_add(&best, (bench_wall() - start) / n);
    }
    return best.seconds;
}

// Numbers of a normal distribution, like PyTorch's randn. Constants need less power, and would run up to an eighth
// faster.
static void draw(float * values, size_t n) {
    uint64_t state = 1;
    for (size_t i = 0; i < n; i++) {
        double uniform[2];
        for (int j = 0; j < 2; j++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            uniform[j] = ((double) (state >> 11) + 0.5) / 9007199254740992.0;
        }
        values[i] = (float) (sqrt(-2 * log(uniform[0])) * cos(6.283185307179586 * uniform[1]));
    }
}

static size_t convert(enum ggml_type type, const float * values, void * bytes, size_t n) {
    switch (type) {
        case GGML_TYPE_F32: memcpy(bytes, values, n * sizeof(float)); return n * sizeof(float);
        case GGML_TYPE_F16: ggml_fp32_to_fp16_row(values, bytes, (int) n); return 2 * n;
        case GGML_TYPE_BF16:
            for (size_t i = 0; i < n; i++) {
                uint32_t bits;
                memcpy(&bits, values + i, sizeof(bits));
                ((uint16_t *) bytes)[i] = (uint16_t) ((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
            }
            return 2 * n;
        default: return ggml_quantize_chunk(type, values, bytes, 0, 1, (int) n, NULL, NULL);
    }
}

// Fills t with the same 2^20 numbers, repeated.
static void fill(struct ggml_tensor * t) {
    enum { N = 1 << 20 };
    const size_t size = ggml_nbytes(t);
    float * values = malloc(N * sizeof(float));
    char * bytes = malloc(N * sizeof(float));
    size_t piece = 0;
    if (values != NULL && bytes != NULL) {
        draw(values, N);
        piece = convert(t->type, values, bytes, N);
    }
    for (size_t at = 0; piece > 0 && at < size; at += piece) {
        ggml_backend_tensor_set(t, bytes, at, size - at < piece ? size - at : piece);
    }
    free(values);
    free(bytes);
}

static struct ggml_context * new_context(size_t n_nodes) {
    return ggml_init((struct ggml_init_params){
        ggml_tensor_overhead() * (n_nodes + 64) + ggml_graph_overhead_custom(n_nodes + 64, false), NULL, true });
}

// Measures `layers` products of w [k, m] with x [k, n] of type `rows`. Each product has operands of its own, because
// the backend converts equal rows only once.
static void product_of(enum ggml_type type, enum ggml_type rows, int64_t k, int64_t m, int64_t n, int layers,
    const char * by) {
    struct ggml_context * ctx = new_context((size_t) layers * 3);
    struct ggml_cgraph * graph = ggml_new_graph_custom(ctx, (size_t) layers * 3 + 8, false);
    size_t bytes = 0;
    for (int i = 0; i < layers; i++) {
        struct ggml_tensor *w = ggml_new_tensor_2d(ctx, type, k, m), *x = ggml_new_tensor_2d(ctx, rows, k, n);
        bytes += ggml_nbytes(w);
        ggml_build_forward_expand(graph, ggml_mul_mat(ctx, w, x));
    }
    ggml_backend_buffer_t buffer =
        ggml_backend_supports_op(backend, graph->nodes[0]) ? ggml_backend_alloc_ctx_tensors(ctx, backend) : NULL;
    char name[96];
    snprintf(name, sizeof(name), "mul_mat %s m=%lld n=%lld k=%lld%s%s%s%s", ggml_type_name(type), (long long) m,
        (long long) n, (long long) k, rows != GGML_TYPE_F32 ? ", " : "",
        rows != GGML_TYPE_F32 ? ggml_type_name(rows) : "", rows != GGML_TYPE_F32 ? " rows" : "", by);
    if (buffer != NULL) {
        for (struct ggml_tensor * t = ggml_get_first_tensor(ctx); t != NULL; t = ggml_get_next_tensor(ctx, t)) {
            if (t->op == GGML_OP_NONE) {
                fill(t);
            }
        }
        const double seconds = time_graph(graph, 4);
        if (n <= 16) {
            put(name, "GB_per_s", (double) bytes / seconds / 1e9);
        } else {
            put(name, "TFLOP_per_s", 2.0 * (double) m * (double) n * (double) k * layers / seconds / 1e12);
        }
    } else {
        fprintf(stderr, "%s: %s\n", name, ggml_last_error());
    }
    ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
}

static void product(enum ggml_type type, int64_t k, int64_t m, int64_t n, int layers, const char * by) {
    product_of(type, GGML_TYPE_F32, k, m, n, layers, by);
}

// n tokens, each of which has one of `experts` matrices, drawn at random.
static void product_of_experts(enum ggml_type type, int64_t k, int64_t m, int64_t n, int experts) {
    struct ggml_context * ctx = new_context((size_t) experts + 4);
    struct ggml_cgraph * graph = ggml_new_graph(ctx);
    struct ggml_tensor * w[GGML_MAX_SRC];
    struct ggml_tensor * ids = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, 1, n);
    struct ggml_tensor * x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, k, n);
    for (int i = 0; i < experts; i++) {
        w[i] = ggml_new_tensor_2d(ctx, type, k, m);
    }
    ggml_build_forward_expand(graph, ggml_mul_mat_id(ctx, w, experts, ids, 0, x));
    ggml_backend_buffer_t buffer =
        ggml_backend_supports_op(backend, graph->nodes[0]) ? ggml_backend_alloc_ctx_tensors(ctx, backend) : NULL;
    int32_t * id = malloc((size_t) n * sizeof(int32_t));
    char name[96];
    snprintf(name, sizeof(name), "mul_mat_id %s m=%lld n=%lld k=%lld experts=%d", ggml_type_name(type), (long long) m,
        (long long) n, (long long) k, experts);
    if (buffer != NULL && id != NULL) {
        uint64_t state = 1;
        for (int64_t i = 0; i < n; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            id[i] = (int32_t) ((state >> 33) % (uint64_t) experts);
        }
        for (int i = 0; i < experts; i++) {
            fill(w[i]);
        }
        fill(x);
        ggml_backend_tensor_set(ids, id, 0, (size_t) n * sizeof(int32_t));
        put(name, "TFLOP_per_s", 2.0 * (double) m * (double) n * (double) k / time_graph(graph, 4) / 1e12);
    } else {
        fprintf(stderr, "%s: %s\n", name, ggml_last_error());
    }
    free(id);
    ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
}

// Heads of 128 elements, n queries. Each sees all n keys, or the keys up to its own position.
static void attention(enum ggml_type type, int64_t n, int64_t heads, bool masked) {
    enum { D = 128 };
    struct ggml_context * ctx = new_context(4);
    struct ggml_cgraph * graph = ggml_new_graph(ctx);
    struct ggml_tensor * q = ggml_new_tensor_3d(ctx, type, D, n, heads);
    struct ggml_tensor * k = ggml_new_tensor_3d(ctx, type, D, n, heads);
    struct ggml_tensor * v = ggml_new_tensor_3d(ctx, type, n, D, heads);
    ggml_build_forward_expand(graph, ggml_flash_attn(ctx, q, k, v, masked));
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, backend);
    if (buffer != NULL) {
        char name[96];
        fill(q);
        fill(k);
        fill(v);
        snprintf(name, sizeof(name), "flash_attn %s n=%lld heads=%lld d=%d%s", ggml_type_name(type), (long long) n,
            (long long) heads, D, masked ? " causal" : "");
        put(name, "TFLOP_per_s",
            (masked ? 2.0 : 4.0) * D * (double) n * (double) n * (double) heads / time_graph(graph, 4) / 1e12);
    }
    ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
}

// Attention of single operators, fused or not. Without fusion all scores are stored.
static void attention_of_operators(enum ggml_type type, int64_t d, int64_t n, int64_t heads, bool together) {
    struct ggml_context * ctx = new_context(8);
    struct ggml_cgraph * graph = ggml_new_graph(ctx);
    struct ggml_tensor * q = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, d, n, heads);
    struct ggml_tensor * k = ggml_new_tensor_3d(ctx, type, d, n, heads);
    struct ggml_tensor * v = ggml_new_tensor_3d(ctx, type, n, d, heads);
    struct ggml_tensor * p = ggml_diag_mask_inf(ctx, ggml_scale(ctx, ggml_mul_mat(ctx, k, q), 0.1f), 0);
    struct ggml_tensor * y = ggml_mul_mat(ctx, v, ggml_soft_max(ctx, p));
    struct ggml_tensor * in[] = { q, k, v };
    char name[96];
    ggml_set_output(y);
    ggml_build_forward_expand(graph, y);
    for (size_t i = 0; i < 3; i++) {
        ggml_set_input(in[i]);
    }
    ggml_graph_set_fusion(together); // of all backends
    ggml_backend_sched_t sched = ggml_backend_sched_new(&backend, NULL, 1, 16);
    snprintf(name, sizeof(name), "attention of operators %s n=%lld heads=%lld d=%lld causal, %s", ggml_type_name(type),
        (long long) n, (long long) heads, (long long) d, together ? "together" : "one by one");
    if (ggml_backend_sched_alloc_graph(sched, graph) == GGML_STATUS_SUCCESS) {
        for (size_t i = 0; i < 3; i++) {
            fill(in[i]);
        }
        put(name, "TFLOP_per_s",
            2.0 * (double) d * (double) n * (double) n * (double) heads / time_graph(graph, 4) / 1e12);
    } else {
        fprintf(stderr, "%s: %s\n", name, ggml_last_error());
    }
    ggml_backend_sched_free(sched);
    ggml_graph_set_fusion(true);
    ggml_free(ctx);
}

// A decoder's worth of small nodes: what it costs to launch them.
static void launches(int n, bool graphs) {
    struct ggml_context * ctx = new_context((size_t) n);
    struct ggml_cgraph * graph = ggml_new_graph_custom(ctx, (size_t) n + 8, false);
    struct ggml_tensor * y = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 4096);
    struct ggml_tensor * x = y;
    for (int i = 0; i < n; i++) {
        y = ggml_scale(ctx, y, 1.0f);
    }
    ggml_build_forward_expand(graph, y);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, backend);
    if (buffer != NULL) {
        fill(x);
        ggml_backend_cuda_set_graphs(backend, graphs);
        put(graphs ? "1000 nodes, replayed" : "1000 nodes, launched one by one", "ms", time_graph(graph, 1) * 1e3);
        ggml_backend_cuda_set_graphs(backend, true);
    }
    ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
}

// Seconds of one computation of a graph with random operands; negative: not computed.
static double time_filled(struct ggml_context * ctx, struct ggml_cgraph * graph, int n) {
    ggml_backend_buffer_t buffer =
        ggml_backend_supports_op(backend, graph->nodes[0]) ? ggml_backend_alloc_ctx_tensors(ctx, backend) : NULL;
    double seconds = -1;
    if (buffer != NULL) {
        for (struct ggml_tensor * t = ggml_get_first_tensor(ctx); t != NULL; t = ggml_get_next_tensor(ctx, t)) {
            if (t->op == GGML_OP_NONE) {
                fill(t);
            }
        }
        seconds = time_graph(graph, n);
    } else {
        fprintf(stderr, "%s: %s\n", ggml_op_name(graph->nodes[0]->op), ggml_last_error());
    }
    ggml_backend_buffer_free(buffer);
    return seconds;
}

// 32 images of 56 x 56, 256 channels each: a kernel of 3 x 3 between all channels, or one for each channel.
static void convolution(enum ggml_type type, bool depthwise) {
    enum { SIZE = 56, CHANNELS = 256, IMAGES = 32, KERNEL = 3 };
    struct ggml_context * ctx = new_context(4);
    struct ggml_cgraph * graph = ggml_new_graph(ctx);
    struct ggml_tensor * w = ggml_new_tensor_4d(ctx, type, KERNEL, KERNEL, depthwise ? 1 : CHANNELS, CHANNELS);
    struct ggml_tensor * x = ggml_new_tensor_4d(ctx, GGML_TYPE_F32, SIZE, SIZE, CHANNELS, IMAGES);
    ggml_build_forward_expand(graph, depthwise ? ggml_conv_2d_dw_direct(ctx, w, x, 1, 1, 1, 1, 1, 1)
                                               : ggml_conv_2d_direct(ctx, w, x, 1, 1, 1, 1, 1, 1));
    const double seconds = time_filled(ctx, graph, 4), elements = (double) ggml_nelements(x);
    if (seconds > 0 && depthwise) {
        put("conv_2d_dw 3x3, bytes read and written", "GB_per_s", 8 * elements / seconds / 1e9);
    } else if (seconds > 0) {
        put(type == GGML_TYPE_F16 ? "conv_2d f16 3x3" : "conv_2d f32 3x3", "TFLOP_per_s",
            2 * elements * CHANNELS * KERNEL * KERNEL / seconds / 1e12);
    }
    ggml_free(ctx);
}

// One row of a decoder, normalized again and again: each norm reads the result before.
static void norms(int64_t size) {
    enum { N = 200 };
    struct ggml_context * ctx = new_context(N);
    struct ggml_cgraph * graph = ggml_new_graph_custom(ctx, N + 8, false);
    struct ggml_tensor * y = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, size);
    for (int i = 0; i < N; i++) {
        y = ggml_rms_norm(ctx, y, 1e-5f);
    }
    ggml_build_forward_expand(graph, y);
    const double seconds = time_filled(ctx, graph, 1);
    char name[64];
    snprintf(name, sizeof(name), "rms_norm, one row of %lld", (long long) size);
    if (seconds > 0) {
        put(name, "us", seconds / N * 1e6);
    }
    ggml_free(ctx);
}

static void device_copies(void) {
    struct ggml_context * ctx = new_context(2);
    struct ggml_tensor * a = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, (int64_t) 1 << 28);
    struct ggml_tensor * b = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, (int64_t) 1 << 28);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, backend);
    struct bench_shortest best = { 0 };
    for (int round = 0; buffer != NULL && round < ROUNDS; round++) {
        const double start = bench_wall();
        for (int i = 0; i < 8; i++) {
            ggml_backend_tensor_copy_async(backend, a, b);
        }
        ggml_backend_synchronize(backend);
        bench_add(&best, (bench_wall() - start) / 8);
    }
    if (buffer != NULL) {
        put("device copy, bytes read and written", "GB_per_s", 2.0 * (double) ggml_nbytes(a) / best.seconds / 1e9);
    }
    ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
}

// Two gigabytes of weights from the host.
static void upload(bool pinned) {
    const size_t n = (size_t) 2 << 30;
    struct ggml_context * ctx = new_context(1);
    struct ggml_tensor * t = ggml_new_tensor_1d(ctx, GGML_TYPE_I8, (int64_t) n);
    ggml_backend_buffer_t to = ggml_backend_alloc_ctx_tensors(ctx, backend);
    ggml_backend_buffer_t from =
        pinned ? ggml_backend_buft_alloc_buffer(ggml_backend_cuda_host_buffer_type(), n) : NULL;
    char * data = pinned ? (from ? ggml_backend_buffer_get_base(from) : NULL) : malloc(n);
    struct bench_shortest best = { 0 };
    if (to != NULL && data != NULL) {
        memset(data, 1, n);
        for (int round = 0; round < ROUNDS; round++) {
            const double start = bench_wall();
            ggml_backend_tensor_set_async(backend, t, data, 0, n);
            ggml_backend_synchronize(backend);
            bench_add(&best, bench_wall() - start);
        }
        put(pinned ? "upload of 2 GiB, pinned memory" : "upload of 2 GiB, pageable memory", "GB_per_s",
            (double) n / best.seconds / 1e9);
    }
    if (!pinned) {
        free(data);
    }
    ggml_backend_buffer_free(from);
    ggml_backend_buffer_free(to);
    ggml_free(ctx);
}

static void large_products(const char * by) {
    product(GGML_TYPE_F16, 8192, 8192, 8192, 1, by);
    product(GGML_TYPE_BF16, 8192, 8192, 8192, 1, by);
    product_of(GGML_TYPE_F16, GGML_TYPE_F16, 8192, 8192, 8192, 1, by);
    product_of(GGML_TYPE_BF16, GGML_TYPE_BF16, 8192, 8192, 8192, 1, by);
    product(GGML_TYPE_F16, 8192, 8192, 512, 4, by);
    product(GGML_TYPE_F32, 4096, 4096, 4096, 1, by);
}

// Products of one and few rows of quantized weights. More than a gigabyte of weights: they come from no cache.
static void streams(const enum ggml_type * types, size_t n_types) {
    static const struct {
        int64_t m, k, n;
    } shapes[] = { { 8192, 8192, 1 }, { 8192, 8192, 8 }, { 8192, 8192, 16 }, { 2048, 2048, 1 }, { 2048, 2048, 8 },
        { 5632, 2048, 1 }, { 2048, 5632, 1 }, { 32000, 4096, 1 }, { 32000, 4096, 8 } };
    for (size_t i = 0; i < n_types; i++) {
        for (size_t s = 0; ggml_is_quantized(types[i]) && s < sizeof(shapes) / sizeof(shapes[0]); s++) {
            const double layer = (double) ggml_row_size(types[i], shapes[s].k) * (double) shapes[s].m;
            product(types[i], shapes[s].k, shapes[s].m, shapes[s].n, (int) (1.3e9 / layer) + 1, "");
        }
    }
}

int main(int argc, char ** argv) {
    if (gb_cuda_register_linked() != GGML_STATUS_SUCCESS || (backend = ggml_backend_cuda_init(0)) == NULL) {
        fprintf(stderr, "skipped: %s\n", ggml_last_error());
        return 77;
    }
    static const enum ggml_type types[] = { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0,
        GGML_TYPE_Q4_0, GGML_TYPE_Q4_K, GGML_TYPE_Q6_K, GGML_TYPE_IQ4_XS };
    char description[128];
    ggml_backend_cuda_get_device_description(0, description, sizeof(description));
    printf("{\"device\": \"%s\", \"results\": [", description);
    device_copies();
    if (argc > 1 && strcmp(argv[1], "streams") == 0) {
        streams(types, sizeof(types) / sizeof(types[0]));
        ggml_backend_free(backend);
        printf("\n]}\n");
        return n_failed > 0;
    }
    upload(true);
    upload(false);
    launches(1000, false);
    launches(1000, true);
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        const double layer = (double) ggml_row_size(types[i], 8192) * 8192;
        for (int n = 1; n <= (ggml_is_quantized(types[i]) ? 16 : 1); n += n == 1 ? 7 : 8) {
            product(types[i], 8192, 8192, n, (int) (1.3e9 / layer) + 1, ""); // more than a gigabyte: not from a cache
        }
    }
    for (size_t i = 1; i < sizeof(types) / sizeof(types[0]); i++) { // small matrices, as of a small decoder
        const double layer = (double) ggml_row_size(types[i], 2048) * 2048;
        product(types[i], 2048, 2048, 1, (int) (0.4e9 / layer) + 1, "");
    }
    norms(2048);
    norms(4096);
    convolution(GGML_TYPE_F16, false);
    convolution(GGML_TYPE_F32, false);
    convolution(GGML_TYPE_F32, true);
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        product(types[i], 8192, 8192, 512, 4, "");
    }
    for (size_t i = 1; i < sizeof(types) / sizeof(types[0]); i++) { // tiles of fewer rows, and rows of experts
        product(types[i], 8192, 8192, 48, 4, "");
        product(types[i], 8192, 8192, 128, 4, "");
        product_of_experts(types[i], 4096, 4096, 2048, 8);
    }
    attention(GGML_TYPE_F16, 4096, 32, true);
    attention(GGML_TYPE_BF16, 4096, 32, false);
    large_products("");
    for (int together = 1; together >= 0; together--) {
        attention_of_operators(GGML_TYPE_F16, 128, 4096, 32, together != 0);
        attention_of_operators(GGML_TYPE_F32, 64, 4096, 16, together != 0);
    }
    ggml_backend_free(backend);
    setenv("GGML_CUDA_TF32", "1", 1);
    backend = ggml_backend_cuda_init(0);
    if (backend != NULL) {
        product(GGML_TYPE_F32, 4096, 4096, 4096, 1, " in tf32");
    }
    ggml_backend_free(backend);
    unsetenv("GGML_CUDA_TF32");
    setenv("GGML_CUDA_CUBLAS", "1", 0);
    backend = ggml_backend_cuda_init(0);
    if (backend != NULL && strstr(ggml_backend_cuda_get_cublas(backend), "version") != NULL) {
        large_products(" by cuBLAS");
    } else {
        fprintf(stderr, "not compared with cuBLAS: %s\n",
            backend != NULL ? ggml_backend_cuda_get_cublas(backend) : ggml_last_error());
    }
    printf("\n]}\n");
    ggml_backend_free(backend);
    return n_failed > 0;
}
