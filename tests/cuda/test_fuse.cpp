// test_fuse.cpp - a norm with the weight and bias after it is one launch, and so is a softmax with
// the factor and mask before it. Every result that other code may read is stored and equals that of
// the single operators. Nodes are not fused if their memory overlaps in another way.
#include <cmath>

#include "device_graph.h"

struct affine {
    ggml_context * ctx;
    ggml_tensor *x, *norm, *scaled, *sum;
    ggml_cgraph * graph;
    ggml_backend_buffer_t buffer;
};

enum how { OWN_MEMORY, IN_PLACE, ONLY_WEIGHT, BIAS_ELSEWHERE };

static affine build(ggml_backend_t cuda, ggml_op op, int64_t n, int64_t rows, how kind) {
    affine a;
    a.ctx = ggml_init({ 1 << 16, NULL, true });
    a.x = ggml_new_tensor_2d(a.ctx, GGML_TYPE_F32, n, rows);
    ggml_tensor *w = ggml_new_tensor_1d(a.ctx, GGML_TYPE_F32, n), *b = ggml_new_tensor_1d(a.ctx, GGML_TYPE_F32, n);
    const bool inplace = kind == IN_PLACE;
    a.norm = op == GGML_OP_NORM
                 ? (inplace ? ggml_norm_inplace(a.ctx, a.x, 1e-5f) : ggml_norm(a.ctx, a.x, 1e-5f))
                 : (inplace ? ggml_rms_norm_inplace(a.ctx, a.x, 1e-5f) : ggml_rms_norm(a.ctx, a.x, 1e-5f));
    a.scaled = inplace ? ggml_mul_inplace(a.ctx, a.norm, w) : ggml_mul(a.ctx, a.norm, w);
    a.sum = kind == ONLY_WEIGHT      ? a.scaled
            : kind == BIAS_ELSEWHERE ? ggml_add(a.ctx, a.scaled, a.norm)
            : inplace                ? ggml_add_inplace(a.ctx, a.scaled, b)
                                     : ggml_add(a.ctx, a.scaled, b);
    a.graph = ggml_new_graph(a.ctx);
    ggml_build_forward_expand(a.graph, a.sum);
    a.buffer = ggml_backend_alloc_ctx_tensors(a.ctx, cuda);
    test_seed = 7; // the same values each time
    for (ggml_tensor * t : { a.x, w, b }) {
        std::vector<float> v((size_t) ggml_nelements(t));
        for (float & f : v) {
            f = test_random_float(-2, 2);
        }
        ggml_backend_tensor_set(t, v.data(), 0, v.size() * sizeof(float));
    }
    return a;
}

static void release(affine & a) {
    ggml_backend_buffer_free(a.buffer);
    ggml_free(a.ctx);
}

static std::vector<float> values(const ggml_tensor * t) {
    std::vector<float> v((size_t) ggml_nelements(t));
    ggml_backend_tensor_get(t, v.data(), 0, v.size() * sizeof(float));
    return v;
}

static void check_same(const char * what, const ggml_tensor * together, const ggml_tensor * alone) {
    const std::vector<float> a = values(together), b = values(alone);
    double worst = 0;
    for (size_t i = 0; i < a.size(); i++) {
        worst =
            std::isnan(a[i]) ? INFINITY : fmax(worst, fabs((double) a[i] - (double) b[i]) / (1 + fabs((double) b[i])));
    }
    CHECK_MSG(worst < 1e-6, "%s: differs by %g", what, worst);
}

// Node by node: graphs of one node each.
static void compute_alone(ggml_backend_t cuda, const affine & a) {
    for (int i = 0; i < a.graph->n_nodes; i++) {
        struct ggml_cgraph one = ggml_graph_view(a.graph, i, i + 1);
        CHECK(ggml_backend_graph_compute(cuda, &one));
    }
}

static void compare(ggml_backend_t cuda, ggml_op op, int64_t n, int64_t rows, how kind, int n_pairs) {
    affine a = build(cuda, op, n, rows, kind), b = build(cuda, op, n, rows, kind);
    const uint64_t norms = cuda_launches("gb_norm_row"), pairs = cuda_launches("gb_pairs");
    CHECK(ggml_backend_graph_compute(cuda, a.graph));
    ggml_backend_synchronize(cuda);
#ifdef GB_CUDA_EMULATED
    CHECK_INT(cuda_launches("gb_norm_row") - norms, 1);
    CHECK_INT(cuda_launches("gb_pairs") - pairs, n_pairs);
#else
    (void) norms;
    (void) pairs;
    (void) n_pairs;
#endif
    compute_alone(cuda, b);
    check_same("sum", a.sum, b.sum);
    if (kind != IN_PLACE) {
        check_same("norm", a.norm, b.norm);
        check_same("scaled", a.scaled, b.scaled);
    }
    release(b);
    release(a);
}

static void norm_weight_bias_are_one_launch(void) {
    CUDA_OR_SKIP();
    ggml_backend_t cuda = cuda_open(0);
    ggml_backend_cuda_set_graphs(cuda, false);
    for (ggml_op op : { GGML_OP_NORM, GGML_OP_RMS_NORM }) {
        for (int64_t n : { 1, 33, 256, 300, 2500 }) {
            const int64_t rows = n == 33 ? 11 : 3;
            compare(cuda, op, n, rows, OWN_MEMORY, 0);
            compare(cuda, op, n, rows, IN_PLACE, 0);
            compare(cuda, op, n, rows, ONLY_WEIGHT, 0);
            compare(cuda, op, n, rows, BIAS_ELSEWHERE, 1); // the addend is no row
        }
    }
    ggml_backend_free(cuda);
}

// ------------------------------------------------------------------------------------------------------- norms of rows

static const int64_t norm_sizes[] = { 1, 4, 33, 128, 132, 256, 260, 512, 516, 1024, 1028, 2048, 2052, 4096, 4100, 8192,
    8196 };

struct norm_case {
    ggml_op op;
    int64_t n, rows;
    int64_t skipped; // elements of a wider row before the row
    float size; // of values; squares of the large ones overflow
};

static double norm_error(const norm_case & k, const float * x, const float * y) {
    double mean = 0, squares = 0, worst = 0;
    for (int64_t i = 0; i < k.n && k.op == GGML_OP_NORM; i++) {
        mean += x[i] / (double) k.n;
    }
    for (int64_t i = 0; i < k.n; i++) {
        squares += (x[i] - mean) * (x[i] - mean) / (double) k.n;
    }
    for (int64_t i = 0; i < k.n; i++) {
        const double error = fabs(y[i] - (x[i] - mean) / sqrt(squares + 1e-5));
        worst = std::isnan(error) ? INFINITY : fmax(worst, error);
    }
    return worst;
}

static void check_norm(const norm_case & k) {
    device_graph g;
    const int64_t wide = k.n + k.skipped;
    ggml_tensor * all = ggml_new_tensor_2d(g.ctx, GGML_TYPE_F32, wide, k.rows);
    ggml_tensor * x = ggml_view_2d(g.ctx, all, k.n, k.rows, all->nb[1], (size_t) k.skipped * sizeof(float));
    float * v = (float *) all->data;
    for (int64_t i = 0; i < wide * k.rows; i++) {
        v[i] = k.size * test_random_float(-1, 3);
    }
    REQUIRE(g.compute(k.op == GGML_OP_NORM ? ggml_norm(g.ctx, x, 1e-5f) : ggml_rms_norm(g.ctx, x, 1e-5f)));
    for (int64_t r = 0; r < k.rows; r++) {
        const double worst = norm_error(k, v + r * wide + k.skipped, g.result.data() + r * k.n);
        CHECK_MSG(worst < 2e-5, "%s of %d, row %d of %d, %d skipped, size %g: off by %g", ggml_op_name(k.op), (int) k.n,
            (int) r, (int) k.rows, (int) k.skipped, (double) k.size, worst);
    }
}

static void norms_follow_the_formula(void) {
    CUDA_OR_SKIP();
    for (ggml_op op : { GGML_OP_NORM, GGML_OP_RMS_NORM }) {
        for (int64_t n : norm_sizes) {
            check_norm({ op, n, n < 200 ? 11 : 2, 0, 1.0f });
            check_norm({ op, n, 1, n % 2 == 0 ? 4 : 1, 1e30f });
        }
        check_norm({ op, 2048, 2, 3, 1.0f }); // rows that are not aligned
    }
}

// A product after a norm reads rows that the norm's kernel converts. They equal those of kernels that only convert.
static void check_converted(ggml_backend_t cuda, ggml_type type, int64_t n, int64_t rows) {
    std::vector<float> results[2];
    for (int fused = 0; fused < 2; fused++) {
        ggml_context * ctx = ggml_init({ 1 << 16, NULL, true });
        ggml_tensor * x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, n, rows);
        ggml_tensor *w = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, n), *a = ggml_new_tensor_2d(ctx, type, n, 5);
        ggml_tensor * y = ggml_mul_mat(ctx, a, ggml_mul(ctx, ggml_rms_norm(ctx, x, 1e-5f), w));
        ggml_cgraph * graph = ggml_new_graph(ctx);
        ggml_build_forward_expand(graph, y);
        ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, cuda);
        test_seed = 11;
        for (ggml_tensor * t : { x, w, a }) {
            std::vector<float> v((size_t) ggml_nelements(t));
            for (float & f : v) {
                f = test_random_float(-2, 2);
            }
            std::vector<char> bytes(ggml_nbytes(t));
            int64_t hist[16] = {};
            if (t->type == GGML_TYPE_F32) {
                memcpy(bytes.data(), v.data(), bytes.size());
            } else {
                ggml_quantize_chunk(t->type, v.data(), bytes.data(), 0, (int) ggml_nrows(t), (int) n, hist, NULL);
            }
            ggml_backend_tensor_set(t, bytes.data(), 0, bytes.size());
        }
        ggml_graph_set_fusion(fused != 0);
        CHECK(ggml_backend_graph_compute(cuda, graph));
        results[fused] = values(y);
        ggml_graph_set_fusion(true);
        ggml_backend_buffer_free(buffer);
        ggml_free(ctx);
    }
    int wrong = 0;
    for (size_t i = 0; i < results[0].size(); i++) {
        wrong += !(results[0][i] == results[1][i]);
    }
    CHECK_MSG(wrong == 0, "%s, %d x %d: %d differ", ggml_type_name(type), (int) n, (int) rows, wrong);
}

static void converted_rows_are_those_of_the_norm(void) {
    CUDA_OR_SKIP();
    ggml_backend_t cuda = cuda_open(0);
    ggml_backend_cuda_set_graphs(cuda, false);
    for (int64_t n : { 128, 512, 1024, 2048, 4096, 8192 }) {
        check_converted(cuda, GGML_TYPE_Q8_0, n, 1); // bytes
        check_converted(cuda, GGML_TYPE_Q8_0, n, 3); // panels
        check_converted(cuda, GGML_TYPE_F16, n, 17); // halves
    }
    for (int64_t n : { 128, 1024, 4096 }) {
        check_converted(cuda, GGML_TYPE_Q8_0, n, 33); // permuted, on 9.0
    }
    ggml_backend_free(cuda);
}

// The weight is a row of the norm's result, of memory that the product overwrites, or of other memory. Fusion would
// give wrong results in the first two cases.
static void nodes_that_share_memory_are_not_fused(void) {
    CUDA_OR_SKIP();
    ggml_backend_t cuda = cuda_open(0), cpu = ggml_backend_cpu_init();
    ggml_backend_cuda_set_graphs(cuda, false);
    enum { N = 40, ROWS = 6 };
    for (int where = 0; where < 3; where++) {
        std::vector<float> results[2];
        for (int side = 0; side < 2; side++) {
            ggml_backend_t backend = side == 0 ? cpu : cuda;
            ggml_context * ctx = ggml_init({ 1 << 16, NULL, true });
            ggml_tensor * room = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, N, 3 * ROWS);
            ggml_tensor * x = ggml_view_2d(ctx, room, N, ROWS, room->nb[1], 0);
            ggml_tensor * norm = ggml_rms_norm(ctx, x, 1e-5f);
            // 0: a row of the norm's result; 1: a row of x that the product overwrites; 2: one that it does not.
            ggml_tensor * w = where == 0 ? ggml_view_1d(ctx, norm, N, 2 * N * sizeof(float))
                                         : ggml_view_1d(ctx, room, N, (where == 1 ? 3 : 2 * ROWS) * N * sizeof(float));
            ggml_tensor * y = where == 0 ? ggml_mul(ctx, norm, w) : ggml_cpy(ctx, ggml_mul(ctx, norm, w), x);
            ggml_cgraph * graph = ggml_new_graph(ctx);
            ggml_build_forward_expand(graph, y);
            ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, backend);
            std::vector<float> v((size_t) ggml_nelements(room));
            for (size_t i = 0; i < v.size(); i++) {
                v[i] = (float) ((i * 7919) % 101) / 50 - 1;
            }
            ggml_backend_tensor_set(room, v.data(), 0, v.size() * sizeof(float));
            CHECK(ggml_backend_graph_compute(backend, graph));
            results[side].resize(N * ROWS);
            ggml_backend_tensor_get(y, results[side].data(), 0, results[side].size() * sizeof(float));
            ggml_backend_buffer_free(buffer);
            ggml_free(ctx);
        }
        int wrong = 0;
        for (size_t i = 0; i < results[0].size(); i++) {
            wrong += !(fabsf(results[0][i] - results[1][i]) <= 1e-5f * (1 + fabsf(results[0][i])));
        }
        CHECK_MSG(wrong == 0, "case %d: %d of %zu differ", where, wrong, results[0].size());
    }
    ggml_backend_free(cpu);
    ggml_backend_free(cuda);
}

// ------------------------------------------------------------------------------------------------------------- softmax

struct scores {
    ggml_context * ctx;
    std::vector<ggml_tensor *> nodes; // the last one is the softmax
    ggml_cgraph * graph;
    ggml_backend_buffer_t buffer;
};

struct scores_case {
    bool scale, causal, mask, inplace, bias;
};

static scores build_scores(ggml_backend_t cuda, const scores_case & k, int64_t n, int64_t rows) {
    scores s;
    s.ctx = ggml_init({ 1 << 16, NULL, true });
    ggml_tensor *x = ggml_new_tensor_3d(s.ctx, GGML_TYPE_F32, n, rows, 2),
                *m = ggml_new_tensor_2d(s.ctx, GGML_TYPE_F32, n, rows), *y = x;
    if (k.scale) {
        s.nodes.push_back(y = k.inplace ? ggml_scale_inplace(s.ctx, y, 0.3f) : ggml_scale(s.ctx, y, 0.3f));
    }
    if (k.causal) {
        s.nodes.push_back(y = k.inplace ? ggml_diag_mask_inf_inplace(s.ctx, y, 2) : ggml_diag_mask_inf(s.ctx, y, 2));
    }
    s.nodes.push_back(y = k.mask      ? ggml_soft_max_bias(s.ctx, y, m, 1.5f, k.bias ? 8.0f : 0.0f)
                          : k.inplace ? ggml_soft_max_inplace(s.ctx, y)
                                      : ggml_soft_max(s.ctx, y));
    s.graph = ggml_new_graph(s.ctx);
    ggml_build_forward_expand(s.graph, y);
    s.buffer = ggml_backend_alloc_ctx_tensors(s.ctx, cuda);
    test_seed = 9;
    for (ggml_tensor * t : { x, m }) {
        std::vector<float> v((size_t) ggml_nelements(t));
        for (float & f : v) {
            f = test_random_float(-5, 5);
        }
        ggml_backend_tensor_set(t, v.data(), 0, v.size() * sizeof(float));
    }
    return s;
}

static void compare_scores(ggml_backend_t cuda, const scores_case & k, int64_t n, int64_t rows) {
    scores a = build_scores(cuda, k, n, rows), b = build_scores(cuda, k, n, rows);
    const uint64_t soft = cuda_launches("gb_soft_max"),
                   others = cuda_launches("gb_map") + cuda_launches("gb_diag_mask");
    CHECK(ggml_backend_graph_compute(cuda, a.graph));
    ggml_backend_synchronize(cuda);
#ifdef GB_CUDA_EMULATED
    CHECK_INT(cuda_launches("gb_soft_max") - soft, 1);
    CHECK_INT(cuda_launches("gb_map") + cuda_launches("gb_diag_mask") - others, 0);
#else
    (void) soft;
    (void) others;
#endif
    for (int i = 0; i < b.graph->n_nodes; i++) {
        struct ggml_cgraph one = ggml_graph_view(b.graph, i, i + 1);
        CHECK(ggml_backend_graph_compute(cuda, &one));
    }
    for (size_t i = k.inplace ? a.nodes.size() - 1 : 0; i < a.nodes.size(); i++) {
        const std::vector<float> u = values(a.nodes[i]), v = values(b.nodes[i]);
        int wrong = 0;
        for (size_t j = 0; j < u.size(); j++) {
            wrong += !(u[j] == v[j] || fabsf(u[j] - v[j]) <= 1e-6f * (1 + fabsf(v[j])));
        }
        CHECK_MSG(wrong == 0, "scale %d causal %d mask %d in place %d bias %d, %d x %d: node %zu, %d wrong", k.scale,
            k.causal, k.mask, k.inplace, k.bias, (int) n, (int) rows, i, wrong);
    }
    for (scores * s : { &a, &b }) {
        ggml_backend_buffer_free(s->buffer);
        ggml_free(s->ctx);
    }
}

static void scale_mask_softmax_are_one_launch(void) {
    CUDA_OR_SKIP();
    ggml_backend_t cuda = cuda_open(0);
    ggml_backend_cuda_set_graphs(cuda, false);
    for (int bits = 1; bits < 32; bits++) {
        const scores_case k = { (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0, (bits & 16) != 0 };
        if ((k.scale || k.causal) && (k.mask || !k.bias)) {
            for (int64_t n : { 5, 40, 300, 2500 }) {
                compare_scores(cuda, k, n, 7);
            }
        }
    }
    ggml_backend_free(cuda);
}

// The mask of the softmax is the scaled tensor, which is complete only when all rows are.
static void a_mask_from_the_chain_is_not_fused(void) {
    CUDA_OR_SKIP();
    ggml_backend_t cuda = cuda_open(0), cpu = ggml_backend_cpu_init();
    ggml_backend_cuda_set_graphs(cuda, false);
    std::vector<float> results[2];
    for (int side = 0; side < 2; side++) {
        ggml_backend_t backend = side == 0 ? cpu : cuda;
        ggml_context * ctx = ggml_init({ 1 << 16, NULL, true });
        ggml_tensor * x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 40, 6);
        ggml_tensor * scaled = ggml_scale(ctx, x, 0.5f);
        ggml_tensor * y = ggml_soft_max_ext(ctx, scaled, scaled, 1.0f);
        ggml_cgraph * graph = ggml_new_graph(ctx);
        ggml_build_forward_expand(graph, y);
        ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, backend);
        std::vector<float> v(40 * 6);
        for (size_t i = 0; i < v.size(); i++) {
            v[i] = (float) ((i * 7919) % 101) / 10;
        }
        ggml_backend_tensor_set(x, v.data(), 0, v.size() * sizeof(float));
        CHECK(ggml_backend_graph_compute(backend, graph));
        results[side] = values(y);
        ggml_backend_buffer_free(buffer);
        ggml_free(ctx);
    }
    for (size_t i = 0; i < results[0].size(); i++) {
        if (!(fabsf(results[0][i] - results[1][i]) <= 1e-6f)) {
            CHECK_MSG(false, "[%zu] is %g on the device, %g on the CPU", i, (double) results[1][i],
                (double) results[0][i]);
            break;
        }
    }
    ggml_backend_free(cpu);
    ggml_backend_free(cuda);
}

TEST_MAIN(TEST(norm_weight_bias_are_one_launch), TEST(norms_follow_the_formula),
    TEST(converted_rows_are_those_of_the_norm), TEST(nodes_that_share_memory_are_not_fused),
    TEST(scale_mask_softmax_are_one_launch), TEST(a_mask_from_the_chain_is_not_fused))
