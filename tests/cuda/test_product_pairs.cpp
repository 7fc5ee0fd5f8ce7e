// test_product_pairs.cpp - products in every pair of: format, rows, columns, depth, source of the activations, layout
// of the operands. Against sums in double precision, with the bounds of test_products.cpp.
//
// A covering array has each pair of values of two properties at least once, which needs a few hundred products.
// GGML_TEST_PRODUCTS=5000 computes that many random combinations instead.
#include "device_graph.h"
#include "pairs.h"

#pragma push_macro("TEST_MAIN")
#undef TEST_MAIN
#define TEST_MAIN(...) [[maybe_unused]] static const struct test_case all_cases[] = { __VA_ARGS__ };
namespace products {
#include "test_products.cpp"
}
#pragma pop_macro("TEST_MAIN")

enum maker { LEAF, NORM_ALONE, NORM, NORM_AND_BIAS, SILU, HALVES_LEAF, PART_OF_ROWS, COLUMNS, N_MAKERS };
enum readers { ONE_READER, THREE_PRODUCTS, PRODUCT_AND_ADD, N_READERS }; // of the activations
enum order { DENSE, PART_OF_WEIGHTS, LATER_START, SLICES, SHARED_SLICES, OUTER_SLICES, EXPERTS, N_ORDERS };

static const char * const maker_names[] = { "leaf", "norm", "norm with weight", "norm with weight and bias", "silu",
    "halves", "part of rows", "columns as rows" };
static const char * const reader_names[] = { "one reader", "three products", "a product and an add" };
static const char * const order_names[] = { "dense", "part of rows", "later start", "slices", "shared slices",
    "outer slices", "experts" };

static const int64_t all_rows[] = { 1, 2, 8, 9, 16, 17, 32, 33, 34, 48, 63, 64, 65, 128, 129, 300 };
static const int64_t all_columns[] = { 1, 2, 3, 8, 127, 128, 129 };
static const int64_t all_depths[] = { 1, 4, 7, 8, 31, 32, 33, 63, 64, 65, 200, 1031 }; // of formats: whole blocks

struct product_case {
    combination value;
    ggml_type type() const { return value[0] < 3 ? products::floats[value[0]] : products::formats[value[0] - 3]; }
    int64_t rows() const { return all_rows[value[1]]; }
    int64_t columns() const { return all_columns[value[2]]; }
    enum maker maker() const { return (enum maker) value[4]; }
    enum order order() const { return (enum order) value[5]; }
    enum readers readers() const { return (enum readers) value[6]; }
    int64_t depth() const {
        const int64_t block = ggml_blck_size(type());
        return (all_depths[value[3]] + block - 1) / block * block;
    }
};

template <class T, size_t N> static int count_of(const T (&)[N]) { return (int) N; }

static const std::vector<int> counts = { count_of(products::floats) + count_of(products::formats), count_of(all_rows),
    count_of(all_columns), count_of(all_depths), N_MAKERS, N_ORDERS, N_READERS };

// ------------------------------------------------------------------------------------------------------------ products

// Tensors of a product. root: the contiguous tensor that a or b shows.
struct operands {
    ggml_tensor *a[2], *a_root[2]; // two: experts
    ggml_tensor *b, *b_root, *ids;
};

static ggml_tensor * filled(ggml_context * c, ggml_type type, int64_t k, int64_t n, int64_t n2, int64_t n3) {
    ggml_tensor * t = ggml_new_tensor_4d(c, type, k, n, n2, n3);
    products::fill(t);
    return t;
}

static void make_weights(ggml_context * c, const product_case & x, operands & o) {
    const int64_t k = x.depth(), m = x.columns(), block = ggml_blck_size(x.type());
    const ggml_type type = x.type();
    for (int i = 0; i < (x.order() == EXPERTS ? 2 : 1); i++) {
        if (x.order() == PART_OF_WEIGHTS || x.order() == LATER_START) { // a row without its last block, or its first
            ggml_tensor * root = filled(c, type, k + block, m, 1, 1);
            const size_t from = x.order() == LATER_START ? ggml_type_size(type) : 0;
            o.a_root[i] = root;
            o.a[i] = ggml_view_2d(c, root, k, m, root->nb[1], from);
        } else {
            o.a_root[i] = o.a[i] = filled(c, type, k, m, x.order() == SLICES ? 2 : 1, 1);
        }
    }
}

static void make_activations(ggml_context * c, const product_case & x, operands & o) {
    const int64_t k = x.depth(), n = x.rows(), n3 = x.order() == OUTER_SLICES ? 2 : 1;
    const int64_t n2 = x.order() == SLICES || x.order() == SHARED_SLICES ? 2 : 1;
    ggml_tensor * leaf = NULL;
    switch (x.maker()) {
        case HALVES_LEAF:
            o.b = o.b_root = filled(c, ggml_is_quantized(x.type()) ? GGML_TYPE_F16 : x.type(), k, n, n2, n3);
            return;
        case PART_OF_ROWS:
            o.b_root = filled(c, GGML_TYPE_F32, k + 3, n, n2, n3);
            o.b = ggml_view_4d(c, o.b_root, k, n, n2, n3, o.b_root->nb[1], o.b_root->nb[2], o.b_root->nb[3], 0);
            return;
        case COLUMNS:
            o.b_root = filled(c, GGML_TYPE_F32, n, k, n2, n3);
            o.b = ggml_transpose(c, o.b_root);
            return;
        default: leaf = filled(c, GGML_TYPE_F32, k, n, n2, n3);
    }
    if (x.maker() >= NORM_ALONE && x.maker() <= NORM_AND_BIAS) {
        leaf = ggml_rms_norm(c, leaf, 1e-5f);
        leaf = x.maker() >= NORM ? ggml_mul(c, leaf, filled(c, GGML_TYPE_F32, k, 1, 1, 1)) : leaf;
        leaf = x.maker() == NORM_AND_BIAS ? ggml_add(c, leaf, filled(c, GGML_TYPE_F32, k, 1, 1, 1)) : leaf;
    } else if (x.maker() == SILU) {
        leaf = ggml_silu(c, leaf);
    }
    o.b = o.b_root = leaf;
}

static ggml_tensor * product_of(ggml_context * c, const product_case & x, operands & o) {
    make_weights(c, x, o);
    make_activations(c, x, o);
    if (x.order() != EXPERTS) {
        return ggml_mul_mat(c, o.a[0], o.b);
    }
    o.ids = ggml_new_tensor_2d(c, GGML_TYPE_I32, 1, x.rows());
    for (int64_t i = 0; i < x.rows(); i++) {
        ((int32_t *) o.ids->data)[i] = (int32_t) (test_random() % 2);
    }
    return ggml_mul_mat_id(c, o.a, 2, o.ids, 0, o.b);
}

// Checks the errors of all elements against the bounds of rounding.
static products::verdict judge(const product_case & x, const operands & o, const ggml_tensor * dst, const float * got,
    products::rounding how) {
    const products::layout b = products::layout_of(o.b, o.b_root, 0),
                           a[2] = { products::layout_of(o.a[0], o.a_root[0], 0),
                               o.ids != NULL ? products::layout_of(o.a[1], o.a_root[1], 0) : products::layout() };
    const double given = x.maker() == LEAF ? 0 : 2e-6;
    products::verdict v = {};
    int64_t at[4];
    for (at[3] = 0; at[3] < dst->ne[3]; at[3]++) {
        for (at[2] = 0; at[2] < dst->ne[2]; at[2]++) {
            for (at[1] = 0; at[1] < dst->ne[1]; at[1]++) {
                const int e = o.ids != NULL ? ((const int32_t *) o.ids->data)[at[1]] : 0;
                for (at[0] = 0; at[0] < dst->ne[0]; at[0]++) {
                    products::judge({ o.a[e], o.a_root[e], o.b, o.b_root, 0, how, given }, a[e], b, at, got[v.n], &v);
                }
            }
        }
    }
    return v;
}

// What reads the activations before the product; NULL: nothing.
static ggml_tensor * other_readers(ggml_context * c, const product_case & x, const operands & o) {
    if (x.readers() == ONE_READER) {
        return NULL;
    }
    if (x.readers() == PRODUCT_AND_ADD && o.b->type == GGML_TYPE_F32 && ggml_is_contiguous(o.b)) {
        return ggml_add(c, o.b, o.b);
    }
    ggml_tensor * products[2]; // by formats that may need other rows
    for (int i = 0; i < 2; i++) {
        const bool bytes = i == 0 && x.type() != GGML_TYPE_Q8_0 && x.depth() % 32 == 0;
        const ggml_type type = bytes ? GGML_TYPE_Q8_0 : o.b->type == GGML_TYPE_F32 ? GGML_TYPE_F16 : o.b->type;
        products[i] = ggml_mul_mat(c, filled(c, type, x.depth(), 5, 1, 1), o.b);
    }
    return ggml_add(c, products[0], products[1]);
}

static void check(const product_case & x) {
    device_graph g;
    operands o = {};
    ggml_tensor * dst = product_of(g.ctx, x, o);
    REQUIRE(dst != NULL);
    ggml_tensor * other = other_readers(g.ctx, x, o);
    ggml_cgraph * on_cpu = ggml_new_graph(g.ctx); // the activations, for the sums in double
    ggml_build_forward_expand(on_cpu, o.b);
    REQUIRE(ggml_graph_compute_with_ctx(g.ctx, on_cpu, 1) == GGML_STATUS_SUCCESS);
    REQUIRE(g.compute(dst, other));
    const bool formats = ggml_is_quantized(x.type());
    const int64_t rows = x.order() == SHARED_SLICES ? 2 * x.rows() : x.rows();
    const products::verdict v = judge(x, o, dst, g.result.data(),
        !formats                      ? products::rounding_of(x.type(), x.depth(), rows, false)
        : rows <= 16 && o.ids == NULL ? products::BYTES
        : rows <= 8                   ? products::BYTES
                                      : products::WIDE);
    // With 9 to 16 rows the format and addresses decide whether activations become bytes or halves.
    const bool right =
        v.right() || (formats && rows > 8 && rows <= 16 && judge(x, o, dst, g.result.data(), products::WIDE).right());
    CHECK_MSG(right, "%s, %d rows, %d columns, depth %d, activations: %s, %s, weights: %s: %s",
        ggml_type_name(x.type()), (int) x.rows(), (int) x.columns(), (int) x.depth(), maker_names[x.maker()],
        reader_names[x.readers()], order_names[x.order()], v.text().c_str());
}

// ------------------------------------------------------------------------------------------------------------ coverage

static void every_pair_of_properties_gives_the_sums(void) {
    CUDA_OR_SKIP();
    const char * wanted = getenv("GGML_TEST_PRODUCTS");
    if (wanted == NULL) {
        const std::vector<combination> all = covering_array(counts);
        printf("%d combinations\n", (int) all.size());
        for (const combination & x : all) {
            check({ x });
        }
        return;
    }
    for (int i = atoi(wanted); i > 0; i--) {
        check({ random_combination(counts) });
    }
}

// Weights of one column, because the stride of a dimension of size one is unspecified.
static void one_column_of_any_depth_gives_the_sums(void) {
    CUDA_OR_SKIP();
    for (ggml_type type : { GGML_TYPE_F16, GGML_TYPE_BF16 }) {
        for (int64_t k : { 1, 3, 4, 7, 8, 12, 63, 64, 65, 1031 }) {
            products::mul_mat(type, GGML_TYPE_F32, { 1, 33, k, 1, 1, 1, 1 });
            products::mul_mat(type, GGML_TYPE_F32, { 1, 20, k, 1, 1, 2, 1 });
            products::mul_mat(type, type, { 1, 70, k, 1, 1, 1, 1 });
        }
    }
}

TEST_MAIN(TEST(one_column_of_any_depth_gives_the_sums), TEST(every_pair_of_properties_gives_the_sums))
