// test_algorithms.cpp - which algorithm computes a product or attention on a device (ggml_backend_i::algorithm).
//
// Each node has exactly one, and the algorithms that are tried before it give a reason. Typical shapes
// have the expected algorithm. The profile names it.
#include <cstring>

#include "device_graph.h"
#include "ggml-profile.h"

static const char * algorithm(ggml_backend_t backend, const ggml_tensor * node) {
    const char *name, *taken = NULL, *why = NULL;
    for (int i = 0; (name = backend->iface.algorithm(backend, node, i, &why)) != NULL; i++) {
        CHECK_MSG(taken == NULL, "%s follows %s, which takes the node", name, taken);
        CHECK_MSG(why == NULL || why[0] != '\0', "%s declines without a reason", name);
        taken = why == NULL ? name : NULL;
    }
    CHECK(backend->iface.algorithm(backend, node, -1, &why) == NULL);
    return taken;
}

// Why algorithm `of` declines the node; "": it is not tried, or computes it.
static const char * reason(ggml_backend_t backend, const ggml_tensor * node, const char * of) {
    const char *name, *why = NULL;
    for (int i = 0; (name = backend->iface.algorithm(backend, node, i, &why)) != NULL; i++) {
        if (strcmp(name, of) == 0) {
            return why;
        }
    }
    return "";
}

static ggml_tensor * product(ggml_context * c, ggml_type type, int64_t m, int64_t k, int64_t n) {
    return ggml_mul_mat(c, ggml_new_tensor_2d(c, type, k, m), ggml_new_tensor_2d(c, GGML_TYPE_F32, k, n));
}

static void one_algorithm_takes_each_product(void) {
    CUDA_OR_SKIP();
    ggml_backend_t cuda = cuda_open(0);
    for (int type = 0; type < GGML_TYPE_COUNT; type++) {
        for (int64_t n : { 1, 2, 8, 9, 16, 17, 32, 33, 300 }) {
            ggml_context * c = ggml_init({ 1 << 16, NULL, true });
            const int64_t block = ggml_blck_size((ggml_type) type);
            ggml_tensor * t = block > 0 ? product(c, (ggml_type) type, 5, 256, n) : NULL;
            if (t != NULL && ggml_backend_supports_op(cuda, t)) {
                const char * taken = algorithm(cuda, t);
                CHECK_MSG(taken != NULL, "%s, %d rows: none takes it", ggml_type_name((ggml_type) type), (int) n);
            }
            ggml_free(c);
        }
    }
    ggml_clear_error();
    ggml_backend_free(cuda);
}

static void typical_products_have_their_algorithm(void) {
    CUDA_OR_SKIP();
    ggml_backend_t cuda = cuda_open(0);
    ggml_context * c = ggml_init({ 1 << 18, NULL, true });
    const struct {
        ggml_type type;
        int64_t m, k, n;
        const char * name;
    } cases[] = {
        { GGML_TYPE_Q4_0, 64, 0, 3, "zeros" },
        { GGML_TYPE_Q4_0, 64, 256, 1, "vectors_quick" },
        { GGML_TYPE_Q5_1, 64, 256, 1, "vectors_bytes" },
        { GGML_TYPE_Q4_0, 64, 256, 2, "few_rows" },
        { GGML_TYPE_Q4_K, 64, 256, 16, "few_rows" },
        { GGML_TYPE_F16, 64, 256, 1, "vectors_float" },
        { GGML_TYPE_F32, 64, 256, 8, "vectors_float" },
        { GGML_TYPE_F16, 64, 256, 33, "tiles_hopper" },
        { GGML_TYPE_Q5_1, 64, 256, 33, "tiles_hopper" },
        { GGML_TYPE_Q5_1, 64, 256, 32, "tiles" },
        { GGML_TYPE_F16, 64, 255, 33, "exact" },
        { GGML_TYPE_F32, 64, 256, 9, "tiles_float" },
        { GGML_TYPE_F32, 64, 256, 300, "tiles_float" },
        { GGML_TYPE_F32, 64, 255, 9, "exact" },
    };
    ggml_tensor * attend = ggml_flash_attn(c, ggml_new_tensor_3d(c, GGML_TYPE_F16, 64, 16, 4),
        ggml_new_tensor_3d(c, GGML_TYPE_F16, 64, 32, 4), ggml_new_tensor_3d(c, GGML_TYPE_F16, 32, 64, 4), false);
#ifdef GB_CUDA_EMULATED // a device of 9.0
    for (const auto & x : cases) {
        const char * taken = algorithm(cuda, product(c, x.type, x.m, x.k, x.n));
        CHECK_MSG(taken != NULL && strcmp(taken, x.name) == 0, "%s, %d x %d, %d rows: %s, not %s",
            ggml_type_name(x.type), (int) x.m, (int) x.k, (int) x.n, taken, x.name);
    }
    CHECK_STR(algorithm(cuda, attend), "attention_tensor_cores");
    CHECK(strstr(reason(cuda, attend, "attention_hopper"), "64 rows") != NULL);
    CHECK(strstr(reason(cuda, product(c, GGML_TYPE_Q4_0, 64, 256, 17), "few_rows"), "2 to 16 rows") != NULL);
    CHECK(strstr(reason(cuda, product(c, GGML_TYPE_F32, 64, 256, 33), "tiles_tf32"), "GGML_CUDA_TF32") != NULL);
    CHECK(strstr(reason(cuda, product(c, GGML_TYPE_Q5_1, 64, 256, 1), "vectors_quick"), "type of the weights") != NULL);
#else
    (void) cases, (void) reason;
    CHECK(algorithm(cuda, attend) != NULL);
#endif
    CHECK(algorithm(cuda, ggml_neg(c, ggml_new_tensor_1d(c, GGML_TYPE_F32, 4))) == NULL); // has one algorithm
    ggml_free(c);
    ggml_backend_free(cuda);
}

static void the_profile_names_algorithms(void) {
    CUDA_OR_SKIP();
    device_graph g;
    ggml_tensor * x = ggml_new_tensor_2d(g.ctx, GGML_TYPE_F32, 32, 1);
    ggml_tensor * y = ggml_mul_mat(g.ctx, ggml_new_tensor_2d(g.ctx, GGML_TYPE_F32, 32, 8), x);
    memset(x->data, 0, ggml_nbytes(x));
    memset(y->src[0]->data, 0, ggml_nbytes(y->src[0]));
    for (ggml_tensor * t : { y, ggml_concat(g.ctx, y, y) }) {
        ggml_profile_t profile = ggml_profile_new(0);
        CHECK_INT(ggml_profile_use(profile), GGML_STATUS_SUCCESS);
        CHECK(g.compute(t));
        CHECK_INT(ggml_profile_use(NULL), GGML_STATUS_SUCCESS);
        struct ggml_profile_step step[2];
        REQUIRE(ggml_profile_get_steps(profile, step, 0, 1) == 1);
        CHECK_STR(step[0].algorithm, "vectors_float");
        ggml_profile_free(profile);
    }
}

TEST_MAIN(TEST(one_algorithm_takes_each_product), TEST(typical_products_have_their_algorithm),
    TEST(the_profile_names_algorithms))
