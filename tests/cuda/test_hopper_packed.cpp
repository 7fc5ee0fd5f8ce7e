// test_hopper_packed.cpp - products of quantized weights, and products with experts, by the kernels for compute
// capability 9.0, against sums in double. In the emulation it also checks which kernel runs.
#include "device_graph.h"

#pragma push_macro("TEST_MAIN")
#undef TEST_MAIN
#define TEST_MAIN(...) [[maybe_unused]] static const struct test_case all_cases[] = { __VA_ARGS__ };
namespace products {
#include "test_products.cpp"
}
#pragma pop_macro("TEST_MAIN")

static const char packed[] = "gb_gemm_packed_hopper", halves[] = "gb_gemm_hopper<";

static void multiply(ggml_type type, ggml_type b, const products::shape & s, bool taken = true, bool exact = false) {
    const uint64_t before = cuda_launches(packed);
    char text[100];
    products::mul_mat(type, b, s, exact);
    snprintf(text, sizeof(text), "%s m %d n %d k %d", ggml_type_name(type), (int) s.m, (int) s.n, (int) s.k);
    cuda_check_launches(packed, before, taken ? 1 : 0, text);
}

static const ggml_type most_used[] = { GGML_TYPE_Q4_0, GGML_TYPE_Q8_0, GGML_TYPE_Q4_K, GGML_TYPE_Q6_K,
    GGML_TYPE_IQ4_XS };

// Every format. The kernel copies the depth in steps of 256, which depths of small blocks do not fill.
static void all_formats(void) {
    CUDA_OR_SKIP();
    for (ggml_type type : products::formats) {
        const int64_t block = ggml_blck_size(type);
        multiply(type, GGML_TYPE_F32, { 37, 40, 256 + block, 1, 1, 1, 1 });
        multiply(type, GGML_TYPE_F32, { 67, 70, 3 * block, 1, 1, 1, 1 });
    }
}

// Rows and columns just below, at and above the sides of tiles, with random depths, in tiles of each size.
static void edges_of_tiles_are_right(void) {
    CUDA_OR_SKIP();
    const int64_t m[] = { 1, 7, 63, 64, 65, 127, 128, 129, 200 },
                  n[] = { 33, 63, 64, 65, 127, 128, 129, 255, 256, 257 };
    const uint64_t of[] = { cuda_launches("gb_gemm_packed_hopper<TYPE, 64>"),
        cuda_launches("gb_gemm_packed_hopper<TYPE, 128>"), cuda_launches("gb_gemm_packed_hopper<TYPE, 256>") };
    int i = 0;
    for (ggml_type type : most_used) {
        const int64_t block = ggml_blck_size(type);
        for (int j = 0; j < 4; j++, i++) {
            const int64_t k = block * test_random_int(1, block == 256 ? 3 : 20);
            multiply(type, GGML_TYPE_F32, { m[i % 9], n[(3 * i + 1) % 10], k, 1, 1, 1, 1 });
        }
    }
    for (int64_t depth : { 1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 16, 17 }) { // of 32 elements; rows have any alignment
        multiply(depth % 2 ? GGML_TYPE_Q4_0 : GGML_TYPE_Q8_0, GGML_TYPE_F32, { 70, 35, 32 * depth, 1, 1, 1, 1 });
        multiply(depth % 2 ? GGML_TYPE_MXFP4 : GGML_TYPE_Q5_1, GGML_TYPE_F32, { 20, 35, 32 * depth, 1, 1, 1, 1 });
    }
#ifdef GB_CUDA_EMULATED
    CHECK(cuda_launches("gb_gemm_packed_hopper<TYPE, 64>") > of[0]);
    CHECK(cuda_launches("gb_gemm_packed_hopper<TYPE, 128>") > of[1]);
    CHECK(cuda_launches("gb_gemm_packed_hopper<TYPE, 256>") > of[2]);
#else
    (void) of;
#endif
}

static void several_tiles_a_block(void) { // an emulated device has four multiprocessors
    CUDA_OR_SKIP();
    multiply(GGML_TYPE_Q4_0, GGML_TYPE_F32, { 1030, 70, 352, 1, 1, 1, 1 });
    multiply(GGML_TYPE_Q8_0, GGML_TYPE_F32, { 390, 600, 96, 1, 1, 1, 1 });
    multiply(GGML_TYPE_Q6_K, GGML_TYPE_F32, { 650, 140, 256, 1, 1, 1, 1 });
}

static void depth_in_parts(void) {
    CUDA_OR_SKIP();
    multiply(GGML_TYPE_Q4_K, GGML_TYPE_F32, { 100, 40, 2048, 1, 1, 1, 1 });
    multiply(GGML_TYPE_Q4_0, GGML_TYPE_F32, { 130, 60, 1056, 1, 1, 1, 1 });
    multiply(GGML_TYPE_IQ4_XS, GGML_TYPE_F32, { 40, 130, 768, 1, 1, 1, 1 });
    multiply(GGML_TYPE_Q8_0, GGML_TYPE_F32, { 40, 50, 544, 1, 1, 3, 1 });
}

static void slices(void) {
    CUDA_OR_SKIP();
    for (ggml_type type : { GGML_TYPE_Q4_0, GGML_TYPE_Q6_K }) {
        multiply(type, GGML_TYPE_F32, { 50, 40, 256, 2, 3, 2, 3 });
        multiply(type, GGML_TYPE_F32, { 20, 20, 256, 2, 1, 4, 1 }); // two slices of 20 rows share each matrix
        multiply(type, GGML_TYPE_F32, { 20, 35, 256, 2, 1, 4, 3 });
    }
}

static void other_activations(void) {
    CUDA_OR_SKIP();
    for (ggml_type type : { GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0 }) {
        multiply(GGML_TYPE_Q4_0, type, { 40, 50, 160, 1, 1, 1, 1 });
    }
    multiply(GGML_TYPE_Q4_K, GGML_TYPE_Q8_K, { 40, 50, 512, 1, 1, 1, 1 });
    multiply(GGML_TYPE_Q5_1, GGML_TYPE_Q8_1, { 40, 50, 96, 1, 1, 1, 1 });
    for (bool odd : { false, true }) { // odd: rows begin at odd floats; else a transposed tensor
        const uint64_t before = cuda_launches(packed);
        device_graph g;
        ggml_tensor * a = ggml_new_tensor_2d(g.ctx, GGML_TYPE_Q8_0, 96, 33);
        ggml_tensor * root =
            odd ? ggml_new_tensor_2d(g.ctx, GGML_TYPE_F32, 97, 50) : ggml_new_tensor_2d(g.ctx, GGML_TYPE_F32, 50, 96);
        ggml_tensor * b = odd ? ggml_view_2d(g.ctx, root, 96, 50, root->nb[1], 0) : ggml_transpose(g.ctx, root);
        ggml_tensor * dst = ggml_mul_mat(g.ctx, a, b);
        REQUIRE(dst != NULL);
        products::fill(a);
        products::fill(root);
        REQUIRE(g.compute(dst));
        products::check_product({ a, a, b, root, 0, products::WIDE }, dst, g.result.data());
        cuda_check_launches(packed, before, 1, "strides of activations");
    }
}

// The weights are the first 3 of 5 blocks of each row of a wider matrix. Most rows begin at no multiple of 16 bytes.
static void views(void) {
    CUDA_OR_SKIP();
    for (ggml_type type : most_used) {
        const int64_t block = ggml_blck_size(type);
        const uint64_t before = cuda_launches(packed);
        device_graph g;
        ggml_tensor * root = ggml_new_tensor_2d(g.ctx, type, 5 * block, 33);
        ggml_tensor * a = ggml_view_2d(g.ctx, root, 3 * block, 33, root->nb[1], 0);
        ggml_tensor * b = ggml_new_tensor_2d(g.ctx, GGML_TYPE_F32, 3 * block, 50);
        ggml_tensor * dst = ggml_mul_mat(g.ctx, a, b);
        REQUIRE(dst != NULL);
        products::fill(root);
        products::fill(b);
        REQUIRE(g.compute(dst));
        products::check_product({ a, root, b, b, 0, products::WIDE }, dst, g.result.data());
        cuda_check_launches(packed, before, 1, "a part of rows");
    }
}

// Scales so large that their product with the offset of bytes (128) would overflow.
static void large_scales_do_not_overflow(void) {
    CUDA_OR_SKIP();
    device_graph g;
    ggml_tensor * a = ggml_new_tensor_2d(g.ctx, GGML_TYPE_MXFP4, 64, 33);
    ggml_tensor * b = ggml_new_tensor_2d(g.ctx, GGML_TYPE_F32, 64, 40);
    ggml_tensor * dst = ggml_mul_mat(g.ctx, a, b);
    products::fill(a);
    products::fill(b);
    for (size_t i = 0; i < ggml_nbytes(a); i += 17) {
        ((uint8_t *) a->data)[i] = 250; // the exponent comes first: 2^122
    }
    for (int64_t i = 0; i < 64 * 40; i++) {
        ((float *) b->data)[i] *= 0x1p-100f;
    }
    REQUIRE(g.compute(dst));
    products::check_product({ a, a, b, b, 0, products::WIDE }, dst, g.result.data());
}

static void other_products_use_other_kernels(void) {
    CUDA_OR_SKIP();
    multiply(GGML_TYPE_Q4_0, GGML_TYPE_F32, { 40, 32, 64, 1, 1, 1, 1 }, false);       // few rows
    multiply(GGML_TYPE_Q4_0, GGML_TYPE_F32, { 40, 50, 64, 1, 1, 1, 1 }, false, true); // GGML_PREC_F32
    const uint64_t before = cuda_launches("hopper");
    products::mul_mat_id(GGML_TYPE_Q4_0, 35, 75, 64, 4, false); // 18 rows of an expert
    products::mul_mat_id(GGML_TYPE_F16, 35, 75, 64, 4, false);
    products::mul_mat_id(GGML_TYPE_Q8_0, 10, 80, 64, 2, false, true); // GGML_PREC_F32
    products::mul_mat_id(GGML_TYPE_BF16, 10, 80, 60, 2, false);       // rows that are not aligned
    products::mul_mat_id(GGML_TYPE_F32, 10, 80, 64, 2, false);
    cuda_check_launches("hopper", before, 0, "others");
}

// ------------------------------------------------------------------------------------------------------------- experts

static void experts(void) {
    CUDA_OR_SKIP();
    const uint64_t first = cuda_launches(packed), second = cuda_launches(halves);
    for (ggml_type type : most_used) {
        products::mul_mat_id(type, 35, 75, 256, 2, false);
    }
    for (ggml_type type : { GGML_TYPE_F16, GGML_TYPE_BF16 }) {
        products::mul_mat_id(type, 35, 75, 72, 2, false);
        products::mul_mat_id(type, 140, 300, 64, 8, false);
        products::mul_mat_id(type, 140, 300, 200, 8, true); // all tokens have one expert, others none
        products::mul_mat_id(type, 10, 700, 64, 2, false);
    }
    products::mul_mat_id(GGML_TYPE_Q4_0, 140, 300, 96, 8, false);
    products::mul_mat_id(GGML_TYPE_Q8_0, 140, 300, 160, 8, true);
    products::mul_mat_id(GGML_TYPE_Q4_K, 10, 700, 256, 2, false);
    products::mul_mat_id(GGML_TYPE_IQ2_S, 10, 90, 256, 2, false);
    products::mul_mat_id(GGML_TYPE_Q5_0, 300, 133, 1056, 1, false); // an expert alone, rows in any order
    for (ggml_type type : { GGML_TYPE_Q4_0, GGML_TYPE_Q6_K, GGML_TYPE_F16, GGML_TYPE_BF16 }) {
        products::mul_mat_experts(type, { 140, 150, 256, 4, 2, 1 });
        products::mul_mat_experts(type, { 35, 80, 256, 3, 3, 3 }, true);
    }
    cuda_check_launches(packed, first, 5 + 5 + 4, "packed experts");
    cuda_check_launches(halves, second, 8 + 4, "experts of halves");
}

// Tokens with an id out of range get rows of NaN and an error. Other rows are correct.
static void wrong_experts_give_rows_of_nan(void) {
    CUDA_OR_SKIP();
    for (ggml_type type : { GGML_TYPE_F16, GGML_TYPE_Q4_0 }) {
        device_graph g;
        const uint64_t before = cuda_launches("hopper<");
        const int64_t n = 80, m = 6, k = 64;
        ggml_tensor * as[2] = { ggml_new_tensor_2d(g.ctx, type, k, m), ggml_new_tensor_2d(g.ctx, type, k, m) };
        ggml_tensor * ids = ggml_new_tensor_2d(g.ctx, GGML_TYPE_I32, 1, n);
        ggml_tensor * b = ggml_new_tensor_2d(g.ctx, GGML_TYPE_F32, k, n);
        ggml_tensor * dst = ggml_mul_mat_id(g.ctx, as, 2, ids, 0, b);
        REQUIRE(dst != NULL);
        products::fill(as[0]);
        products::fill(as[1]);
        products::fill(b);
        int32_t * id = (int32_t *) ids->data;
        for (int64_t t = 0; t < n; t++) {
            id[t] = t % 9 == 4 ? (t % 2 ? 2 : -3) : (int32_t) (test_random() % 2);
        }
        REQUIRE(g.compute(dst));
        const products::layout x[2] = { products::layout_of(as[0], as[0], 0), products::layout_of(as[1], as[1], 0) };
        const products::layout y = products::layout_of(b, b, 0);
        products::verdict v = {};
        for (int64_t t = 0; t < n; t++) {
            for (int64_t c = 0; c < m; c++) {
                const float got = g.result[(size_t) (t * m + c)];
                const int64_t at[4] = { c, t, 0, 0 };
                if (id[t] != 0 && id[t] != 1) {
                    CHECK(isnan(got));
                } else {
                    products::judge({ as[id[t]], as[id[t]], b, b, 0, products::rounding_of(type, k, 17, false) },
                        x[id[t]], y, at, got, &v);
                }
            }
        }
        CHECK_MSG(v.right(), "%s: %s", ggml_type_name(type), v.text().c_str());
        cuda_check_launches("hopper<", before, 1, "wrong experts");
        CHECK(strstr(ggml_last_error(), "-3") != NULL);
        ggml_clear_error();
    }
}

// A graph is replayed with other data and experts. Then a graph of the same shape in other memory takes over the
// executable graph.
static void replayed_graphs_get_new_data(void) {
    CUDA_OR_SKIP();
    ggml_backend_t cuda = cuda_open(0);
    REQUIRE(cuda != NULL);
    for (ggml_type type : { GGML_TYPE_Q8_0, GGML_TYPE_BF16 }) {
        const uint64_t before = cuda_launches("hopper<");
        const int64_t n = 70, m = 40, k = 96;
        device_graph g;
        ggml_tensor * as[2] = { ggml_new_tensor_2d(g.ctx, type, k, m), ggml_new_tensor_2d(g.ctx, type, k, m) };
        ggml_tensor * ids = ggml_new_tensor_2d(g.ctx, GGML_TYPE_I32, 1, n);
        ggml_tensor * b = ggml_new_tensor_2d(g.ctx, GGML_TYPE_F32, k, n);
        ggml_tensor * dst = ggml_mul_mat_id(g.ctx, as, 2, ids, 0, b);
        ggml_cgraph * graph = ggml_new_graph(g.ctx);
        ggml_build_forward_expand(graph, dst);
        for (int place = 0; place < 2; place++) {
            products::fill(as[0]);
            products::fill(as[1]);
            products::fill(b);
            memset(ids->data, 0, ggml_nbytes(ids));
            struct ggml_backend_graph_copy copy = ggml_backend_graph_copy(cuda, graph);
            REQUIRE(copy.graph != NULL);
            ggml_tensor * there = copy.graph->nodes[copy.graph->n_nodes - 1];
            for (int time = 0; time < 3; time++) {
                products::fill(b);
                for (int64_t t = 0; t < n; t++) {
                    ((int32_t *) ids->data)[t] = (int32_t) (test_random() % 2);
                }
                ggml_backend_tensor_set(there->src[0], ids->data, 0, ggml_nbytes(ids));
                ggml_backend_tensor_set(there->src[1], b->data, 0, ggml_nbytes(b));
                REQUIRE(ggml_backend_graph_compute(cuda, copy.graph));
                g.result.assign((size_t) ggml_nelements(dst), NAN);
                ggml_backend_tensor_get(there, g.result.data(), 0, g.result.size() * sizeof(float));
                const products::layout y = products::layout_of(b, b, 0);
                products::verdict v = {};
                for (int64_t t = 0; t < n; t++) {
                    const ggml_tensor * a = as[((const int32_t *) ids->data)[t]];
                    const products::layout x = products::layout_of(a, a, 0);
                    for (int64_t c = 0; c < m; c++) {
                        const int64_t at[4] = { c, t, 0, 0 };
                        products::judge({ a, a, b, b, 0, products::WIDE }, x, y, at, g.result[(size_t) (t * m + c)],
                            &v);
                    }
                }
                CHECK_MSG(v.right(), "%s: %s", ggml_type_name(type), v.text().c_str());
            }
            ggml_backend_graph_copy_free(copy);
        }
        cuda_check_launches("hopper<", before, 6, "replayed");
    }
    ggml_backend_free(cuda);
}

TEST_MAIN(TEST(all_formats), TEST(edges_of_tiles_are_right), TEST(several_tiles_a_block), TEST(depth_in_parts),
    TEST(slices), TEST(other_activations), TEST(views), TEST(large_scales_do_not_overflow),
    TEST(other_products_use_other_kernels), TEST(experts), TEST(wrong_experts_give_rows_of_nan),
    TEST(replayed_graphs_get_new_data))
