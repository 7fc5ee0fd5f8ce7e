// test_attention_pairs.cpp - attention in every pair of: form, heads, size of a head, rows, keys, mask, types of keys
// and values, layout, readers. Against the formula in double precision.
//
// GGML_TEST_ATTENTIONS=5000 computes that many random combinations instead of a covering array.
#include <cmath>

#include "cuda_test.h"
#include "ggml-alloc.h"
#include "pairs.h"

enum form { FLASH, CHAIN, CHAIN_NODE_BY_NODE, N_FORMS };
enum mask { NO_MASK, CAUSAL, ADDED, ADDED_BY_HEAD, IN_SOFT_MAX, N_MASKS };
enum layout { DENSE, IN_A_CACHE, LATER_START, N_LAYOUTS };
enum reader { THE_PROGRAM, JOINED_HEADS, A_PRODUCT, N_READERS };

static const int all_heads[][2] = { { 1, 1 }, { 2, 2 }, { 8, 1 }, { 6, 2 }, { 12, 4 } };
static const int all_sizes[] = { 1, 8, 20, 40, 64, 96, 128, 200, 256, 300 };
static const int all_rows[] = { 1, 2, 3, 8, 9, 17, 64, 65, 130 };
static const int all_keys[] = { 1, 7, 32, 63, 64, 65, 129, 136, 520, 1032 };
static const ggml_type all_types[] = { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16 };

template <class T, size_t N> static int count_of(const T (&)[N]) { return (int) N; }

struct attention {
    combination x;
    enum form form() const { return (enum form) x[0]; }
    int64_t heads() const { return all_heads[x[1]][0]; }
    int64_t k_heads() const { return all_heads[x[1]][1]; }
    int64_t d() const { return all_sizes[x[2]]; }
    int64_t rows() const { return all_rows[x[3]]; }
    enum mask mask() const { return form() == FLASH && x[5] > CAUSAL ? NO_MASK : (enum mask) x[5]; }
    int64_t keys() const { // each row sees a key, as FLASH_ATTN requires
        return (form() == FLASH || mask() == CAUSAL) && all_keys[x[4]] < rows() ? rows() + all_keys[x[4]]
                                                                                : all_keys[x[4]];
    }
    ggml_type k_type() const { return all_types[x[6]]; }
    ggml_type v_type() const { return all_types[form() == FLASH ? x[6] : x[7]]; }
    enum layout layout() const { return (enum layout) x[8]; }
    enum reader reader() const { return form() == FLASH ? THE_PROGRAM : (enum reader) x[9]; }
};

static std::vector<int> counts(void) {
    return { N_FORMS, count_of(all_heads), count_of(all_sizes), count_of(all_rows), count_of(all_keys), N_MASKS,
        count_of(all_types), count_of(all_types), N_LAYOUTS, N_READERS };
}

// A tensor of a graph, and the values that it gets.
struct given {
    ggml_tensor * t;
    std::vector<float> x;
    double at(int64_t i0, int64_t i1, int64_t i2) const {
        return x[(size_t) ((i2 % t->ne[2] * t->ne[1] + i1 % t->ne[1]) * t->ne[0] + i0)];
    }
};

struct graph {
    ggml_context * c;
    ggml_cgraph * nodes;
    ggml_allocr_t memory;
    given q, k, v, mask, w;
    int64_t first; // key and value where views begin
    ggml_tensor * result;
};

static given input(ggml_context * c, ggml_type type, int64_t a, int64_t b, int64_t h) {
    given g = { ggml_new_tensor_3d(c, type, a, b, h), {} };
    ggml_set_input(g.t);
    return g;
}

static void fill(given & g, bool is_mask) {
    if (g.t == NULL) {
        return;
    }
    const size_t n = (size_t) ggml_nelements(g.t);
    std::vector<uint16_t> halves(n);
    g.x.resize(n);
    for (size_t i = 0; i < n; i++) {
        g.x[i] = is_mask && i % 5 == 3 && (int64_t) i % g.t->ne[0] > 0 ? -INFINITY : test_random_float(-1, 1);
        if (g.t->type == GGML_TYPE_F16) {
            halves[i] = ggml_fp32_to_fp16(g.x[i]);
            g.x[i] = ggml_fp16_to_fp32(halves[i]);
        } else if (g.t->type == GGML_TYPE_BF16) {
            const ggml_bf16_t h = ggml_fp32_to_bf16(g.x[i]);
            memcpy(&halves[i], &h, 2);
            g.x[i] = ggml_bf16_to_fp32(h);
        }
    }
    const void * data = g.t->type == GGML_TYPE_F32 ? (const void *) g.x.data() : halves.data();
    CHECK_INT(ggml_backend_tensor_set(g.t, data, 0, ggml_nbytes(g.t)), GGML_STATUS_SUCCESS);
}

static ggml_tensor * chain(const attention & a, graph & g, ggml_tensor * q, ggml_tensor * k, ggml_tensor * v) {
    const float scale = 1 / std::sqrt((float) a.d());
    ggml_tensor * s = ggml_mul_mat(g.c, k, q);
    if (a.mask() >= ADDED) {
        g.mask = input(g.c, GGML_TYPE_F32, a.keys(), a.rows(), a.mask() == ADDED_BY_HEAD ? a.heads() : 1);
    }
    switch (a.mask()) {
        case CAUSAL: s = ggml_diag_mask_inf(g.c, ggml_scale(g.c, s, scale), (int) (a.keys() - a.rows())); break;
        case ADDED:
        case ADDED_BY_HEAD: s = ggml_add(g.c, ggml_scale(g.c, s, scale), g.mask.t); break;
        default: break;
    }
    s = a.mask() == NO_MASK || a.mask() == IN_SOFT_MAX ? ggml_soft_max_ext(g.c, s, g.mask.t, scale)
                                                       : ggml_soft_max(g.c, s);
    ggml_tensor * y = ggml_mul_mat(g.c, v, s);
    if (a.reader() != THE_PROGRAM) {
        y = ggml_cont(g.c, ggml_permute(g.c, y, 0, 2, 1, 3));
    }
    if (a.reader() == A_PRODUCT) { // by three rows of weights
        g.w = input(g.c, GGML_TYPE_F32, a.d() * a.heads(), 3, 1);
        y = ggml_mul_mat(g.c, g.w.t, ggml_reshape_2d(g.c, y, a.d() * a.heads(), a.rows()));
    }
    return y;
}

static graph build(ggml_backend_t cuda, const attention & a) {
    graph g = {};
    g.c = ggml_init({ 1 << 18, NULL, true });
    const int64_t d = a.d(), m = a.keys(), n = a.rows(), h = a.k_heads(), extra = a.layout() == DENSE ? 0 : 24;
    g.first = a.layout() == LATER_START ? 1 : 0;
    const bool flash = a.form() == FLASH;
    g.k = input(g.c, a.k_type(), d, m + extra, h);
    g.v = input(g.c, a.v_type(), m + extra, d, h);
    g.q = input(g.c, flash ? a.k_type() : GGML_TYPE_F32, d, a.heads(), n);
    ggml_tensor *k = g.k.t, *v = g.v.t;
    k = ggml_view_3d(g.c, k, d, m, h, k->nb[1], k->nb[2], (size_t) g.first * k->nb[1]);
    v = ggml_view_3d(g.c, v, m, d, h, v->nb[1], v->nb[2], (size_t) g.first * v->nb[0]);
    ggml_tensor * q = ggml_permute(g.c, flash ? g.q.t : ggml_scale(g.c, g.q.t, 1), 0, 2, 1, 3);
    g.result = flash ? ggml_flash_attn(g.c, q, k, v, a.mask() == CAUSAL) : chain(a, g, q, k, v);
    if (g.result == NULL) {
        return g;
    }
    ggml_set_output(g.result);
    g.nodes = ggml_new_graph(g.c);
    ggml_build_forward_expand(g.nodes, g.result);
    g.memory = ggml_allocr_new_from_backend(cuda, (size_t) 64 << 20);
    CHECK(ggml_allocr_alloc_graph(g.memory, g.nodes) > 0);
    for (given * t : { &g.q, &g.k, &g.v, &g.w }) {
        fill(*t, false);
    }
    fill(g.mask, true);
    return g;
}

// The results of all heads of a query, by the formula.
static std::vector<double> expected_row(const attention & a, const graph & g, int64_t row) {
    std::vector<double> y, p((size_t) a.keys());
    for (int64_t h = 0; h < a.heads(); h++) {
        const int64_t kh = a.form() == FLASH ? h % a.k_heads() : h / (a.heads() / a.k_heads());
        const int64_t seen = a.mask() == CAUSAL ? a.keys() - a.rows() + row + 1 : a.keys();
        double largest = -INFINITY, sum = 0;
        for (int64_t k = 0; k < seen; k++) {
            double s = 0;
            for (int64_t i = 0; i < a.d(); i++) {
                s += g.q.at(i, h, row) * g.k.at(i, k + g.first, kh);
            }
            s = s / std::sqrt((double) a.d()) + (g.mask.t != NULL ? g.mask.at(k, row, h) : 0);
            largest = std::fmax(largest, p[(size_t) k] = s);
        }
        for (int64_t k = 0; k < seen; k++) {
            sum += p[(size_t) k] = std::exp(p[(size_t) k] - largest);
        }
        for (int64_t i = 0; i < a.d(); i++) {
            double s = 0;
            for (int64_t k = 0; k < seen; k++) {
                s += p[(size_t) k] / sum * g.v.at(k + g.first, i, kh);
            }
            y.push_back(s);
        }
    }
    return y;
}

// Element i of head h of a query in the result. With a product: the sum that it makes, for h = 0.
static int64_t place(const attention & a, int64_t row, int64_t h, int64_t i) {
    return a.reader() == THE_PROGRAM ? (h * a.rows() + row) * a.d() + i : (row * a.heads() + h) * a.d() + i;
}

static double tolerance(const attention & a) {
    const bool bf16 = a.k_type() == GGML_TYPE_BF16 || a.v_type() == GGML_TYPE_BF16;
    const bool f16 = a.k_type() == GGML_TYPE_F16 || a.v_type() == GGML_TYPE_F16;
    const double of_one = bf16 ? 1.5e-2 : f16 ? 2e-3 : 1e-5; // values are below 1
    return a.reader() == A_PRODUCT ? of_one * std::sqrt((double) (a.d() * a.heads())) * 4 : of_one;
}

static double worst_error(const attention & a, const graph & g, const std::vector<float> & got) {
    double worst = 0;
    const auto note = [&](int64_t at, double wanted) {
        const double error = std::fabs((double) got[(size_t) at] - wanted);
        worst = error >= worst || std::isnan(error) ? (std::isnan(error) ? INFINITY : error) : worst;
    };
    for (int64_t row = 0; row < a.rows(); row++) {
        const std::vector<double> y = expected_row(a, g, row);
        for (int64_t j = 0; a.reader() == A_PRODUCT && j < 3; j++) {
            double sum = 0;
            for (size_t i = 0; i < y.size(); i++) {
                sum += y[i] * g.w.at((int64_t) i, j, 0);
            }
            note(row * 3 + j, sum);
        }
        for (int64_t i = 0; a.reader() != A_PRODUCT && i < (int64_t) y.size(); i++) {
            note(place(a, row, i / a.d(), i % a.d()), y[(size_t) i]);
        }
    }
    return worst;
}

static void check(ggml_backend_t cuda, const attention & a) {
    graph g = build(cuda, a);
    REQUIRE(g.result != NULL && g.memory != NULL);
    ggml_graph_set_fusion(a.form() != CHAIN_NODE_BY_NODE);
    const bool ok = ggml_backend_graph_compute(cuda, g.nodes);
    ggml_graph_set_fusion(true);
    CHECK_MSG(ok, "%s", ggml_last_error());
    std::vector<float> got((size_t) ggml_nelements(g.result), NAN);
    CHECK_INT(ggml_backend_tensor_get(g.result, got.data(), 0, ggml_nbytes(g.result)), GGML_STATUS_SUCCESS);
    const double worst = worst_error(a, g, got);
    CHECK_MSG(worst <= tolerance(a),
        "form %d, heads %d/%d, head of %d, %d rows, %d keys, mask %d, types %s %s, layout %d, reader %d: off by %g",
        a.form(), (int) a.heads(), (int) a.k_heads(), (int) a.d(), (int) a.rows(), (int) a.keys(), a.mask(),
        ggml_type_name(a.k_type()), ggml_type_name(a.v_type()), a.layout(), a.reader(), worst);
    ggml_allocr_free(g.memory);
    ggml_free(g.c);
}

static void every_pair_of_properties_gives_the_formula(void) {
    CUDA_OR_SKIP();
    ggml_backend_t cuda = cuda_open(0);
    ggml_backend_cuda_set_graphs(cuda, false);
    const char * wanted = getenv("GGML_TEST_ATTENTIONS");
    if (wanted == NULL) {
        const std::vector<combination> all = covering_array(counts());
        printf("%d combinations\n", (int) all.size());
        for (const combination & x : all) {
            check(cuda, { x });
        }
    }
    for (int i = wanted != NULL ? atoi(wanted) : 0; i > 0; i--) {
        check(cuda, { random_combination(counts()) });
    }
    ggml_backend_free(cuda);
}

TEST_MAIN(TEST(every_pair_of_properties_gives_the_formula))
