// test_hopper.cpp - products of F16 and BF16 by the kernels for compute capability 9.0, against sums in double. In the
// emulation it also checks which kernel runs.
#include "device_graph.h"

#pragma push_macro("TEST_MAIN")
#undef TEST_MAIN
#define TEST_MAIN(...) [[maybe_unused]] static const struct test_case all_cases[] = { __VA_ARGS__ };
namespace products {
#include "test_products.cpp"
}
#pragma pop_macro("TEST_MAIN")

static const char kernel[] = "gb_gemm_hopper";

static void multiply(ggml_type type, ggml_type b, const products::shape & s, bool taken = true) {
    const uint64_t before = cuda_launches(kernel);
    char text[100];
    products::mul_mat(type, b, s);
    snprintf(text, sizeof(text), "%s m %d n %d k %d", ggml_type_name(type), (int) s.m, (int) s.n, (int) s.k);
    cuda_check_launches(kernel, before, taken ? 1 : 0, text);
}

static const ggml_type halves[] = { GGML_TYPE_F16, GGML_TYPE_BF16 };

// Rows, columns and depths just below, at and above the sides of tiles.
static void edges_of_tiles_are_right(void) {
    CUDA_OR_SKIP();
    const int64_t m[] = { 1, 7, 63, 64, 65, 127, 128, 129, 200 },
                  n[] = { 33, 63, 64, 65, 127, 128, 129, 255, 256, 257 },
                  k[] = { 8, 16, 24, 56, 64, 72, 120, 128, 136, 200, 320, 456 };
    for (ggml_type type : halves) {
        for (int i = 0; i < 12; i++) {
            multiply(type, GGML_TYPE_F32, { m[i % 9], n[(3 * i + 1) % 10], k[test_random_int(0, 11)], 1, 1, 1, 1 });
            multiply(type, type, { m[test_random_int(0, 8)], n[(3 * i + 2) % 10], k[i], 1, 1, 1, 1 });
        }
    }
}

static void random_shapes(void) {
    CUDA_OR_SKIP();
    for (int i = 0; i < 16; i++) {
        const int64_t a2 = test_random_int(1, 2), a3 = test_random_int(1, 2);
        const products::shape s = { test_random_int(1, 300), test_random_int(33, 300), test_random_int(1, 40) * 8, a2,
            a3, a2 * test_random_int(1, 2), a3 * test_random_int(1, 2) };
        multiply(halves[i % 2], i % 3 ? GGML_TYPE_F32 : halves[i % 2], s);
    }
}

static void several_tiles_a_block(void) { // an emulated device has four multiprocessors
    CUDA_OR_SKIP();
    multiply(GGML_TYPE_F16, GGML_TYPE_F32, { 1030, 70, 328, 1, 1, 1, 1 });
    multiply(GGML_TYPE_BF16, GGML_TYPE_F32, { 520, 600, 72, 1, 1, 1, 1 });
    multiply(GGML_TYPE_F16, GGML_TYPE_F16, { 130, 2300, 8, 1, 1, 1, 1 }); // bands of tiles, the last not full
}

static void depth_in_parts(void) {
    CUDA_OR_SKIP();
    multiply(GGML_TYPE_F16, GGML_TYPE_F32, { 100, 40, 2048, 1, 1, 1, 1 });
    multiply(GGML_TYPE_BF16, GGML_TYPE_F32, { 130, 60, 1032, 1, 1, 1, 1 });
    multiply(GGML_TYPE_F16, GGML_TYPE_F32, { 40, 130, 520, 1, 1, 3, 1 });
}

static void views(void) {
    CUDA_OR_SKIP();
    for (ggml_type type : halves) { // dimensions exchanged, so strides do not ascend
        const uint64_t before = cuda_launches(kernel);
        products::permuted(type, 40, 32);
        products::permuted(type, 70, 64);
        cuda_check_launches(kernel, before, 2, "permuted");
    }
    // A part of each row, which ends at no multiple of 16 bytes.
    for (ggml_type type : halves) {
        const uint64_t before = cuda_launches(kernel);
        device_graph g;
        ggml_tensor * root = ggml_new_tensor_2d(g.ctx, type, 80, 33);
        ggml_tensor * a = ggml_view_2d(g.ctx, root, 75, 33, root->nb[1], 0);
        ggml_tensor * b = ggml_new_tensor_2d(g.ctx, GGML_TYPE_F32, 75, 50);
        ggml_tensor * dst = ggml_mul_mat(g.ctx, a, b);
        REQUIRE(dst != NULL);
        products::fill(root);
        products::fill(b);
        REQUIRE(g.compute(dst));
        products::check_product({ a, root, b, b, 0, products::rounding_of(type, 75, 50, false) }, dst, g.result.data());
        cuda_check_launches(kernel, before, 1, "a part of rows");
    }
}

static void other_products_use_other_kernels(void) {
    CUDA_OR_SKIP();
    const uint64_t before = cuda_launches(kernel);
    multiply(GGML_TYPE_F16, GGML_TYPE_F32, { 40, 32, 64, 1, 1, 1, 1 }, false);  // few rows
    multiply(GGML_TYPE_BF16, GGML_TYPE_F32, { 40, 50, 75, 1, 1, 1, 1 }, false); // rows that are not aligned
    multiply(GGML_TYPE_F32, GGML_TYPE_F32, { 40, 50, 64, 1, 1, 1, 1 }, false);
    multiply(GGML_TYPE_Q4_0, GGML_TYPE_F32, { 40, 50, 64, 1, 1, 1, 1 }, false);
    products::mul_mat(GGML_TYPE_F16, GGML_TYPE_F32, { 40, 50, 64, 1, 1, 1, 1 }, true); // GGML_PREC_F32
    products::mul_mat_id(GGML_TYPE_F16, 35, 75, 64, 4, false);
    // Rows that overlap have no tensor map.
    device_graph g;
    ggml_tensor * root = ggml_new_tensor_1d(g.ctx, GGML_TYPE_F16, 64 + 39 * 16);
    ggml_tensor * a = ggml_view_2d(g.ctx, root, 64, 40, 32, 0);
    ggml_tensor * b = ggml_new_tensor_2d(g.ctx, GGML_TYPE_F32, 64, 50);
    ggml_tensor * dst = ggml_mul_mat(g.ctx, a, b);
    REQUIRE(dst != NULL);
    products::fill(root);
    products::fill(b);
    REQUIRE(g.compute(dst));
    products::check_product({ a, root, b, b, 0, products::HALVES }, dst, g.result.data());
    cuda_check_launches(kernel, before, 0, "others");
}

// A graph is replayed with other data. Then graphs of the same shape in other memory take over the executable graph.
// They need new maps, which hold addresses.
static void replayed_graphs_get_new_maps(void) {
    CUDA_OR_SKIP();
    const uint64_t before = cuda_launches(kernel);
    ggml_backend_t cuda = cuda_open(0);
    REQUIRE(cuda != NULL);
    device_graph g;
    ggml_tensor * a = ggml_new_tensor_2d(g.ctx, GGML_TYPE_F16, 72, 70);
    ggml_tensor * b = ggml_new_tensor_2d(g.ctx, GGML_TYPE_F32, 72, 40);
    ggml_tensor * dst = ggml_mul_mat(g.ctx, a, b);
    ggml_cgraph * graph = ggml_new_graph(g.ctx);
    ggml_build_forward_expand(graph, dst);
    for (int place = 0; place < 3; place++) {
        products::fill(a);
        products::fill(b);
        struct ggml_backend_graph_copy copy = ggml_backend_graph_copy(cuda, graph);
        REQUIRE(copy.graph != NULL);
        ggml_tensor * there = copy.graph->nodes[copy.graph->n_nodes - 1];
        for (int time = 0; time < 3; time++) {
            products::fill(a);
            products::fill(b);
            ggml_backend_tensor_set(there->src[0], a->data, 0, ggml_nbytes(a));
            ggml_backend_tensor_set(there->src[1], b->data, 0, ggml_nbytes(b));
            REQUIRE(ggml_backend_graph_compute(cuda, copy.graph));
            g.result.assign((size_t) ggml_nelements(dst), NAN);
            ggml_backend_tensor_get(there, g.result.data(), 0, g.result.size() * sizeof(float));
            products::check_product({ a, a, b, b, 0, products::HALVES }, dst, g.result.data());
        }
        ggml_backend_graph_copy_free(copy);
    }
    cuda_check_launches(kernel, before, 9, "replayed");
    ggml_backend_free(cuda);
}

TEST_MAIN(TEST(edges_of_tiles_are_right), TEST(random_shapes), TEST(several_tiles_a_block), TEST(depth_in_parts),
    TEST(views), TEST(other_products_use_other_kernels), TEST(replayed_graphs_get_new_maps))
