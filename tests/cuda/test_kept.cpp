// test_kept.cpp - data that several nodes share is made once. Activations are rounded once for all products that read
// them, by the norm that computes them if there is one. ROPE has one table for all nodes with the same positions and
// parameters. Results equal those of single nodes, bit by bit. Data whose source was written are made again.
#include <cmath>

#include "device_graph.h"

enum { D = 64, HEADS = 4, WIDE = 512, LAYERS = 2 };

struct model {
    ggml_backend_t cuda;
    ggml_context *ctx, *given; // ctx: computed; given: weights, x, positions
    ggml_cgraph * graph;
    ggml_tensor *x, *positions, *out;
    ggml_backend_buffer_t buffer, given_buffer;
    ggml_allocr_t reuse; // NULL: every tensor has memory of its own
};

static ggml_tensor * weights(model & m, ggml_type type, int64_t k, int64_t n) {
    return ggml_new_tensor_2d(m.given, type, k, n);
}

static ggml_tensor * rotate(model & m, ggml_tensor * t, float base, int64_t first = 0) {
    const int64_t n = t->ne[1];
    ggml_tensor * positions = ggml_view_1d(m.ctx, m.positions, n, (size_t) first * sizeof(int32_t));
    ggml_tensor * r = ggml_rope_custom(m.ctx, ggml_reshape_3d(m.ctx, t, D, t->ne[0] / D, n), positions, D, 0, 0, 0,
        base, 1, 0, 1, 0, 0);
    return ggml_reshape_2d(m.ctx, r, t->ne[0], n);
}

// RMS_NORM alone, times a row, or NORM times a row plus a row.
static ggml_tensor * normed(model & m, ggml_tensor * x, int style) {
    ggml_context * c = m.ctx;
    ggml_tensor * y = style == 2 ? ggml_norm(c, x, 1e-5f) : ggml_rms_norm(c, x, 1e-5f);
    y = style >= 1 ? ggml_mul(c, y, ggml_new_tensor_1d(m.given, GGML_TYPE_F32, x->ne[0])) : y;
    return style == 2 ? ggml_add(c, y, ggml_new_tensor_1d(m.given, GGML_TYPE_F32, x->ne[0])) : y;
}

// Queries, keys and values read the same rows, and so do gate and up: seven products read four tensors of activations.
static ggml_tensor * layer(model & m, ggml_tensor * x, ggml_type odd, int style = 0) {
    ggml_context * c = m.ctx;
    const int64_t n = D * HEADS;
    ggml_tensor * y = normed(m, x, style);
    ggml_tensor * q = rotate(m, ggml_mul_mat(c, weights(m, GGML_TYPE_Q4_0, n, n), y), 10000);
    ggml_tensor * k = rotate(m, ggml_mul_mat(c, weights(m, GGML_TYPE_Q4_K, n, n), y), 10000);
    ggml_tensor * v = ggml_mul_mat(c, weights(m, odd, n, n), y);
    ggml_tensor * o = ggml_mul_mat(c, weights(m, GGML_TYPE_Q8_0, n, n), ggml_mul(c, ggml_add(c, q, k), v));
    ggml_tensor * h = ggml_add(c, x, o);
    ggml_tensor * z = normed(m, h, style);
    ggml_tensor * g = ggml_silu(c, ggml_mul_mat(c, weights(m, GGML_TYPE_Q4_0, n, WIDE), z));
    ggml_tensor * u = ggml_mul_mat(c, weights(m, GGML_TYPE_IQ4_XS, n, WIDE), z);
    return ggml_add(c, h, ggml_mul_mat(c, weights(m, GGML_TYPE_Q4_0, WIDE, n), ggml_mul(c, g, u)));
}

static model begin(int64_t n, int64_t n_positions) {
    model m = {};
    m.cuda = cuda_open(0);
    m.ctx = ggml_init({ 1 << 18, NULL, true });
    m.given = ggml_init({ 1 << 16, NULL, true });
    m.graph = ggml_new_graph(m.ctx);
    m.x = ggml_new_tensor_2d(m.given, GGML_TYPE_F32, D * HEADS, n);
    m.positions = ggml_new_tensor_1d(m.given, GGML_TYPE_I32, n_positions);
    return m;
}

static void set_random(ggml_tensor * t) {
    std::vector<float> v((size_t) ggml_nelements(t));
    for (float & f : v) {
        f = test_random_float(-1, 1);
    }
    if (t->type == GGML_TYPE_F32) {
        ggml_backend_tensor_set(t, v.data(), 0, ggml_nbytes(t));
        return;
    }
    std::vector<unsigned char> blocks(ggml_nbytes(t));
    const std::vector<float> ones((size_t) t->ne[0], 1.0f);
    int64_t hist[16] = {};
    ggml_quantize_chunk(t->type, v.data(), blocks.data(), 0, (int) ggml_nrows(t), (int) t->ne[0], hist, ones.data());
    ggml_backend_tensor_set(t, blocks.data(), 0, blocks.size());
}

static void set_inputs(model & m) {
    std::vector<int32_t> positions((size_t) ggml_nelements(m.positions));
    for (int32_t & p : positions) {
        p = (int32_t) test_random_int(0, 1000);
    }
    set_random(m.x);
    ggml_backend_tensor_set(m.positions, positions.data(), 0, ggml_nbytes(m.positions));
}

// Memory for all: separate for each tensor, or reused after its last reader.
static void place(model & m, bool reuse) {
    ggml_set_output(m.out);
    ggml_build_forward_expand(m.graph, m.out);
    m.given_buffer = ggml_backend_alloc_ctx_tensors(m.given, m.cuda);
    CHECK(m.given_buffer != NULL);
    if (reuse) {
        m.reuse = ggml_allocr_new_from_backend(m.cuda, 1 << 20);
        CHECK(ggml_allocr_alloc_graph(m.reuse, m.graph) > 0);
    } else {
        m.buffer = ggml_backend_alloc_ctx_tensors(m.ctx, m.cuda);
        CHECK(m.buffer != NULL);
    }
    for (int i = 0; i < m.graph->n_leafs; i++) {
        if (m.graph->leafs[i]->type != GGML_TYPE_I32) {
            set_random(m.graph->leafs[i]);
        }
    }
    set_inputs(m);
}

static void release(model & m) {
    ggml_allocr_free(m.reuse);
    ggml_backend_buffer_free(m.buffer);
    ggml_backend_buffer_free(m.given_buffer);
    ggml_free(m.ctx);
    ggml_free(m.given);
    ggml_backend_free(m.cuda);
}

static std::vector<float> result(const model & m) {
    std::vector<float> v((size_t) ggml_nelements(m.out));
    CHECK_INT(ggml_backend_tensor_get(m.out, v.data(), 0, ggml_nbytes(m.out)), GGML_STATUS_SUCCESS);
    return v;
}

static std::vector<float> compute(model & m) {
    CHECK_MSG(ggml_backend_graph_compute(m.cuda, m.graph), "%s", ggml_last_error());
    return result(m);
}

// Each node is a graph of its own, so nothing is shared.
static std::vector<float> compute_one_by_one(model & m) {
    for (int i = 0; i < m.graph->n_nodes; i++) {
        struct ggml_cgraph one = ggml_graph_view(m.graph, i, i + 1);
        CHECK_MSG(ggml_backend_graph_compute(m.cuda, &one), "%s", ggml_last_error());
    }
    return result(m);
}

static void check_same(const char * what, const std::vector<float> & a, const std::vector<float> & b) {
    double worst = 0;
    for (size_t i = 0; i < a.size(); i++) {
        worst = std::isfinite(a[i]) ? std::fmax(worst, std::fabs((double) a[i] - b[i])) : 1e9;
    }
    CHECK_MSG(memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0, "%s: %g", what, worst);
}

static void check_count(const char * what, const char * part, uint64_t before, uint64_t expected) {
#ifdef GB_CUDA_EMULATED
    CHECK_MSG(cuda_launches(part) - before == expected, "%s: %d launches of %s, expected %d", what,
        (int) (cuda_launches(part) - before), part, (int) expected);
#else
    (void) what, (void) part, (void) before, (void) expected;
#endif
}

// One row becomes bytes, up to 16 become panels of bytes, and more become halves, on 9.0 from 33 rows on in another
// order. Each tensor of activations is converted once.
static void activations_are_rounded_once(void) {
    CUDA_OR_SKIP();
    ggml_graph_set_fusion(false);
    for (int64_t n : { 1, 3, 12, 20, 40 }) {
        for (bool reuse : { false, true }) {
            model m = begin(n, n);
            m.out = m.x;
            const char * part = n == 1    ? "gb_rows_of_bytes"
                                : n <= 16 ? "gb_rows_of_panels"
                                : n <= 32 ? "gb_rows_of_dense"
                                          : "gb_rows_in_order";
            for (int i = 0; i < LAYERS; i++) {
                m.out = layer(m, m.out, GGML_TYPE_Q6_K);
            }
            place(m, reuse);
            const size_t reported = cuda_work_size(m.cuda, m.graph), free_before = cuda_free_memory(0);
            const uint64_t rows = cuda_launches(part), tables = cuda_launches("gb_rope_table");
            const std::vector<float> got = compute(m);
            if (!reuse) {
                cuda_check_work_size("a model", free_before - cuda_free_memory(0), reported, CUDA_WORK_EXACT);
            } else {
                cuda_check_work_size("a model", free_before - cuda_free_memory(0), reported, CUDA_WORK_AT_MOST);
            }
            check_count("two layers", part, rows, 4 * LAYERS);
            check_count("two layers", "gb_rope_table", tables, 1);
            check_same("together and one by one", got, compute_one_by_one(m));
            check_count("one by one", "gb_rope_table", tables, 1 + 2 * LAYERS);
            release(m);
        }
    }
    ggml_graph_set_fusion(true);
}

// The norms make two of the four roundings of a layer, with no extra launch.
static void norms_round_what_they_compute(void) {
    CUDA_OR_SKIP();
    for (int style = 0; style < 3; style++) {
        for (int64_t n : { 1, 3, 12, 20, 40 }) {
            for (bool reuse : { false, true }) {
                model m = begin(n, n);
                m.out = m.x;
                for (int i = 0; i < LAYERS; i++) {
                    m.out = layer(m, m.out, GGML_TYPE_Q6_K, style);
                }
                place(m, reuse);
                const size_t reported = cuda_work_size(m.cuda, m.graph), free_before = cuda_free_memory(0);
                const uint64_t rows = cuda_launches("gb_rows_"), norms = cuda_launches("gb_norm_row");
                const std::vector<float> got = compute(m);
                if (!reuse) {
                    cuda_check_work_size("a model", free_before - cuda_free_memory(0), reported, CUDA_WORK_EXACT);
                } else {
                    cuda_check_work_size("a model", free_before - cuda_free_memory(0), reported, CUDA_WORK_AT_MOST);
                }
                check_count("two layers", "gb_rows_", rows, 2 * LAYERS);
                check_count("two layers", "gb_norm_row", norms, 2 * LAYERS);
                check_same("together and one by one", got, compute_one_by_one(m));
                release(m);
            }
        }
    }
}

// Products of a norm's result, whole and as two slices, with rows of one warp, of four and of sixteen.
static void norms_round_for_products_of_all_kinds(void) {
    CUDA_OR_SKIP();
    for (ggml_type type : { GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q4_0, GGML_TYPE_Q5_K, GGML_TYPE_Q8_0 }) {
        for (int64_t n : { 2, 6, 12, 20, 40, 70 }) {
            for (int64_t k : { n == 12 || n == 40 ? 2304 : n == 20 ? 512 : 256 }) {
                model m = begin(n, n);
                ggml_context * c = m.ctx;
                ggml_tensor * x = ggml_new_tensor_2d(m.given, GGML_TYPE_F32, k, n);
                ggml_tensor * y = normed(m, x, 1);
                ggml_tensor * a = ggml_mul_mat(c, weights(m, type, k, 64), ggml_reshape_3d(c, y, k, n / 2, 2));
                ggml_tensor * z = normed(m, ggml_scale(c, x, 2), 2);
                ggml_tensor * d = ggml_mul_mat(c, weights(m, type, k, 64), z);
                m.out = ggml_add(c, ggml_reshape_2d(c, a, 64, n), d);
                place(m, false);
                const uint64_t rows = cuda_launches("gb_rows_");
                const std::vector<float> got = compute(m);
                const bool exact = n <= 8 && !ggml_is_quantized(type); // floats are not rounded
                check_count("two products", "gb_rows_", rows, 0);
                check_same("together and one by one", got, compute_one_by_one(m));
                check_count("two products apart", "gb_rows_", rows, exact ? 0 : 2);
                release(m);
            }
        }
    }
}

// The norm's result changes before it is read, or only an addition reads it.
static void norms_round_nothing_in_vain(void) {
    CUDA_OR_SKIP();
    model m = begin(3, 3);
    ggml_context * c = m.ctx;
    ggml_tensor * y = normed(m, m.x, 1);
    ggml_tensor * z = ggml_scale_inplace(c, y, 3.0f);
    ggml_tensor * d = ggml_mul_mat(c, weights(m, GGML_TYPE_Q4_0, D * HEADS, D * HEADS), z);
    m.out = ggml_add(c, d, normed(m, d, 1));
    place(m, false);
    const uint64_t rows = cuda_launches("gb_rows_of_panels");
    const std::vector<float> got = compute(m);
    check_count("changed in between", "gb_rows_of_panels", rows, 1);
    check_same("together and one by one", got, compute_one_by_one(m));
    release(m);
}

// Formats of different kernels need different rows: one of each kind.
static void each_kind_of_rows_is_made_once(void) {
    CUDA_OR_SKIP();
    model m = begin(4, 4);
    m.out = layer(m, m.x, GGML_TYPE_Q5_K);
    place(m, false);
    const uint64_t panels = cuda_launches("gb_rows_of_panels"), bytes = cuda_launches("gb_rows_of_bytes");
    const std::vector<float> got = compute(m);
    check_count("q and k, v apart", "gb_rows_of_panels", panels, 2); // two by the norms
    check_count("q and k, v apart", "gb_rows_of_bytes", bytes, 1);
    check_same("together and one by one", got, compute_one_by_one(m));
    release(m);
}

// Replayed graphs give the same results, with other inputs each time.
static void graphs_are_launched_again(void) {
    CUDA_OR_SKIP();
    model m = begin(2, 2);
    m.out = layer(m, m.x, GGML_TYPE_Q6_K);
    place(m, true);
    ggml_graph_set_fusion(false);
    for (int i = 0; i < 4; i++) {
        set_inputs(m);
        const std::vector<float> got = compute(m);
        check_same("a launch", got, compute_one_by_one(m));
    }
    ggml_graph_set_fusion(true);
    release(m);
}

// A node writes to the activations between two products, and to the positions between two rotations.
static void rewritten_sources_are_computed_again(void) {
    CUDA_OR_SKIP();
    model m = begin(3, 3);
    ggml_context * c = m.ctx;
    ggml_tensor * others = ggml_new_tensor_1d(m.given, GGML_TYPE_I32, 3);
    ggml_tensor * y = ggml_scale(c, m.x, 0.5f);
    ggml_tensor * a = ggml_mul_mat(c, weights(m, GGML_TYPE_Q4_0, D * HEADS, 64), y);
    ggml_tensor * b = ggml_mul_mat(c, weights(m, GGML_TYPE_Q8_0, D * HEADS, 64), y);
    ggml_build_forward_expand(m.graph, a);
    ggml_build_forward_expand(m.graph, b);
    ggml_tensor * turned = rotate(m, a, 10000);
    ggml_build_forward_expand(m.graph, turned);
    ggml_build_forward_expand(m.graph, ggml_cpy(c, others, m.positions));
    ggml_tensor * again = rotate(m, b, 10000);
    ggml_build_forward_expand(m.graph, again);
    ggml_tensor * z = ggml_scale_inplace(c, y, 3.0f);
    m.out = ggml_add(c, ggml_add(c, turned, again), ggml_mul_mat(c, weights(m, GGML_TYPE_Q4_0, D * HEADS, 64), z));
    place(m, false);
    std::vector<int32_t> other = { 5, 900, 77 }, first = { 4, 3, 2 };
    ggml_backend_tensor_set(others, other.data(), 0, 12);
    std::vector<float> got[2];
    for (int i = 0; i < 2; i++) {
        ggml_backend_tensor_set(m.positions, first.data(), 0, 12);
        const uint64_t panels = cuda_launches("gb_rows_of_panels"), tables = cuda_launches("gb_rope_table");
        got[i] = i == 0 ? compute(m) : compute_one_by_one(m);
        check_count("written in between", "gb_rows_of_panels", panels, i == 0 ? 2 : 3);
        check_count("written in between", "gb_rope_table", tables, 2);
    }
    check_same("together and one by one", got[0], got[1]);
    release(m);
}

// Other parameters, or other positions of the same tensor, give another table.
static void tables_depend_on_positions_and_parameters(void) {
    CUDA_OR_SKIP();
    model m = begin(3, 6);
    ggml_tensor *a = rotate(m, m.x, 10000), *b = rotate(m, m.x, 500000), *c = rotate(m, m.x, 10000, 3);
    ggml_tensor *d = rotate(m, a, 10000), *e = rotate(m, b, 500000), *f = rotate(m, c, 10000, 3);
    m.out = ggml_add(m.ctx, ggml_add(m.ctx, d, e), f);
    place(m, false);
    const uint64_t tables = cuda_launches("gb_rope_table");
    const std::vector<float> got = compute(m);
    check_count("three tables", "gb_rope_table", tables, 3);
    check_same("together and one by one", got, compute_one_by_one(m));
    release(m);
}

TEST_MAIN(TEST(activations_are_rounded_once), TEST(norms_round_what_they_compute),
    TEST(norms_round_for_products_of_all_kinds), TEST(norms_round_nothing_in_vain),
    TEST(each_kind_of_rows_is_made_once), TEST(graphs_are_launched_again), TEST(rewritten_sources_are_computed_again),
    TEST(tables_depend_on_positions_and_parameters))
