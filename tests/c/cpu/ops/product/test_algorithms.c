// The choice of algorithms for products. At every level some algorithm takes every shape of every
// type, and those before it report why they decline. Typical shapes have their expected algorithm,
// also with other traits. Other nodes are an error. With few rows, no barrier is inside the step of
// a product.
#include "test_cpu_ops.h"

#include "cpu/cpu.h"
#include "cpu/ops/product/product.h"
#include "cpu/threadpool.h"
#include "cpu/traits.h"
#include "tensor/quant/quant.h"

// The algorithm that takes the product on a processor with these traits (NULL: on this one). Checks
// the reports of those before it, and that none follows.
static const char * algorithm_with(const struct ggml_tensor * node, const char * level,
    const struct gb_cpu_traits * traits) {
    const struct gb_level * found = level != NULL ? gb_level_find(level) : gb_level_default();
    const char *name, *taken = NULL, *why = NULL;
    int i = 0;
    while ((name = traits == NULL ? gb_cpu_product_algorithm(node, level, i, &why)
                                  : gb_mul_mat_candidate(node, found->kernels, traits, i, &why)) != NULL) {
        CHECK_MSG(taken == NULL, "%s follows %s, which takes the product", name, taken);
        if (why == NULL) {
            taken = name;
        } else {
            CHECK(why[0] != '\0');
        }
        i++;
    }
    CHECK_MSG(taken != NULL, "no algorithm takes the product: %s", ggml_last_error());
    CHECK(gb_cpu_product_algorithm(node, level, -1, &why) == NULL);
    return taken;
}

static const char * algorithm(const struct ggml_tensor * node, const char * level) {
    return algorithm_with(node, level, NULL);
}

static struct ggml_tensor * product(enum ggml_type type, int64_t m, int64_t k, int64_t n) {
    return ggml_mul_mat(ctx, ggml_new_tensor_2d(ctx, type, k, m), ggml_new_tensor_2d(ctx, GGML_TYPE_F32, k, n));
}

static bool is_weight(enum ggml_type type) {
    return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16 ||
           (ggml_blck_size(type) > 0 && ggml_is_quantized(type) && gb_quant_format_of(type) != NULL &&
               gb_quant_format_of(type)->to_float != NULL);
}

// Weights that are multiplied as bytes by default.
static bool has_bytes(enum ggml_type type) {
    return ggml_is_quantized(type) && gb_quant_format_of(type)->use != GB_USE_ACTIVATIONS;
}

static void every_shape_at(const struct gb_level * level) {
    static const int64_t rows[] = { 1, 2, 3, 4, 16, 17, 64, 65, 600 }, terms[] = { 256, 512, 4096 };
    for (int type = 0; type < GGML_TYPE_COUNT; type++) {
        for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]) && is_weight((enum ggml_type) type); r++) {
            for (size_t t = 0; t < sizeof(terms) / sizeof(terms[0]); t++) {
                begin();
                struct ggml_tensor * node = product((enum ggml_type) type, 32, terms[t], rows[r]);
                algorithm(node, level->name);
                ggml_mul_mat_set_prec(node, GGML_PREC_F16);
                CHECK((strcmp(algorithm(node, level->name), "two_bytes") == 0) == has_bytes((enum ggml_type) type));
                ggml_mul_mat_set_prec(node, GGML_PREC_F32);
                algorithm(node, level->name);
                end();
            }
        }
    }
}

static void expected_at(const struct gb_level * level) {
    const struct gb_kernels * k = level->kernels;
    const struct {
        enum ggml_type type;
        int64_t k, n;
        const char * name;
    } cases[] = {
        { GGML_TYPE_F32, 512, 1, "dense_row" },
        { GGML_TYPE_F16, 512, 20, "dense_rows" },
        { GGML_TYPE_F16, 512, 21, k->rows_x > 2 ? "dense_rows_wide" : "blocked_f32" },
        { GGML_TYPE_F16, 512, 40, k->rows_x > 2 ? "dense_rows_wide" : "blocked_f32" },
        { GGML_TYPE_F16, 512, 41, "blocked_f32" },
        { GGML_TYPE_F32, 96, 4, "dense_rows" },
        { GGML_TYPE_F32, 96, 5, k->rows_x > 2 ? "dense_rows_wide" : "blocked_f32" },
        { GGML_TYPE_F32, 96, 8, k->rows_x > 2 ? "dense_rows_wide" : "blocked_f32" },
        { GGML_TYPE_F32, 96, 9, "blocked_f32" },
        { GGML_TYPE_F32, 512, 65, "blocked_f32" },
        { GGML_TYPE_BF16, 512, 16, "dense_rows" },
        { GGML_TYPE_BF16, 511, 17, "dense_rows" },
        { GGML_TYPE_BF16, 511, 65, "blocked_f32" },
        { GGML_TYPE_Q4_0, 4096, 1, k->interleaved ? "interleaved" : "byte_dots" },
        { GGML_TYPE_Q4_0, 128, 3, k->interleaved ? "interleaved" : "byte_dots" },
        { GGML_TYPE_Q4_0, 4096, 16, k->interleaved ? "interleaved" : "blocked_bytes" },
        { GGML_TYPE_Q8_0, 128, 1, k->q8_0_rows >= 1 ? "short_q8_0" : "byte_dots" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        begin();
        const char * name = algorithm(product(cases[i].type, 32, cases[i].k, cases[i].n), level->name);
        CHECK_MSG(name != NULL && strcmp(name, cases[i].name) == 0, "%s k %d n %d at %s: %s, not %s",
            ggml_type_name(cases[i].type), (int) cases[i].k, (int) cases[i].n, level->name, name, cases[i].name);
        end();
    }
    static const struct {
        int64_t m, k, n;
        const char * name;
    } small[] = {
        { 512, 64, 16, "lanes" },
        { 256, 256, 32, "lanes" },
        { 256, 256, 16, "dense_rows" },
        { 512, 512, 64, "lanes" },
        { 512, 512, 49, "blocked_f32" }, // otherwise most lanes of the last vector are idle
        { 512, 512, 48, "lanes" },
        { 128, 128, 128, "blocked_f32" }, // then packing weights costs less
        { 512, 1024, 64, "blocked_f32" }, // then columns share sets of the cache
        { 512, 512, 129, "blocked_f32" },
        { 512, 4096, 64, "blocked_f32" },
        { 512, 512, 8, "dense_rows" },
    };
    for (size_t i = 0; i < sizeof(small) / sizeof(small[0]); i++) {
        begin();
        const char * name = algorithm(product(GGML_TYPE_F32, small[i].m, small[i].k, small[i].n), level->name);
        CHECK_MSG(name != NULL && strcmp(name, small[i].name) == 0, "m %d k %d n %d at %s: %s, not %s",
            (int) small[i].m, (int) small[i].k, (int) small[i].n, level->name, name, small[i].name);
        end();
    }
    begin();
    struct ggml_tensor * exact = product(GGML_TYPE_Q4_0, 32, 512, 2);
    ggml_mul_mat_set_prec(exact, GGML_PREC_F32);
    CHECK_STR(algorithm(exact, level->name), "dots");
    CHECK_MSG(level->kernels->gemm_q8_mr % 2 == 0, "two_bytes needs panels of an even number of rows");
    struct ggml_tensor * many = product(GGML_TYPE_Q4_0, 1 << 14, 512, 1025);
    ggml_mul_mat_set_prec(many, GGML_PREC_F16);
    CHECK_STR(algorithm(many, level->name), "blocked_f32");
    struct ggml_tensor * outer =
        ggml_out_prod(ctx, ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 8, 4), ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 6, 4));
    CHECK_STR(algorithm(outer, level->name), "blocked_f32");
    CHECK_STR(algorithm(outer, NULL), "blocked_f32");
    end();
}

// Batches with quantized weights use pairs of bfloat16 only if the level has tile registers for
// pairs and the processor is faster with pairs than with bytes.
static void tiles_by_traits_at(const struct gb_level * level) {
    for (double rate = 0; rate <= 16; rate = rate > 0 ? 2 * rate : 0.25) {
        const struct gb_cpu_traits traits = { .value = { [GB_TRAIT_BF16_DOTS] = rate, [GB_TRAIT_BYTE_DOTS] = 4 } };
        const char * batch = level->kernels->bf16_tiles && rate > 4 ? "unpacked_bf16" : "blocked_bytes";
        begin();
        CHECK_STR(algorithm_with(product(GGML_TYPE_Q4_0, 32, 4096, 64), level->name, &traits), batch);
        CHECK_STR(algorithm_with(product(GGML_TYPE_Q6_K, 32, 256, 600), level->name, &traits), batch);
        CHECK_STR(algorithm_with(product(GGML_TYPE_Q4_0, 32, 4096, 63), level->name, &traits), "blocked_bytes");
        CHECK_STR(algorithm_with(product(GGML_TYPE_Q4_0, 32, 96, 64), level->name, &traits), "blocked_bytes");
        struct ggml_tensor * exact = product(GGML_TYPE_Q4_0, 32, 4096, 64);
        ggml_mul_mat_set_prec(exact, GGML_PREC_F32);
        CHECK_STR(algorithm_with(exact, level->name, &traits), "blocked_f32");
        end();
    }
}

// Batches with bfloat16 weights use pairs only if the level has the instruction and the processor
// is fast with it.
static void by_traits_at(const struct gb_level * level) {
    for (double rate = 0; rate <= 16; rate = rate > 0 ? 2 * rate : 0.25) {
        const struct gb_cpu_traits traits = { .value = { [GB_TRAIT_BF16_DOTS] = rate } };
        const bool pairs = level->kernels->has_bf16_dots && rate > 1;
        begin();
        CHECK_STR(algorithm_with(product(GGML_TYPE_BF16, 32, 512, 16), level->name, &traits), "dense_rows");
        CHECK_STR(algorithm_with(product(GGML_TYPE_BF16, 32, 512, 17), level->name, &traits),
            pairs ? "blocked_bf16" : "dense_rows");
        CHECK_STR(algorithm_with(product(GGML_TYPE_BF16, 32, 512, 65), level->name, &traits),
            pairs ? "blocked_bf16" : "blocked_f32");
        CHECK_STR(algorithm_with(product(GGML_TYPE_F16, 32, 512, 65), level->name, &traits), "blocked_f32");
        struct ggml_tensor * exact = product(GGML_TYPE_BF16, 32, 512, 65);
        ggml_mul_mat_set_prec(exact, GGML_PREC_F16);
        CHECK_STR(algorithm_with(exact, level->name, &traits), "blocked_f32");
        ggml_mul_mat_set_prec(exact, GGML_PREC_F32);
        CHECK_STR(algorithm_with(exact, level->name, &traits), "blocked_f32");
        end();
    }
    begin(); // measured on this processor
    struct ggml_tensor * node = product(GGML_TYPE_BF16, 32, 512, 65);
    CHECK_STR(algorithm(node, level->name), algorithm_with(node, level->name, gb_cpu_traits_of(level->kernels)));
    const char * why = NULL;
    if (strcmp(algorithm(node, level->name), "blocked_f32") == 0) {
        for (int i = 0; strcmp(gb_cpu_product_algorithm(node, level->name, i, &why), "blocked_bf16") != 0;) {
            i++;
        }
        CHECK_MSG(strstr(why, level->kernels->has_bf16_dots ? "trait bf16_dots" : "instruction") != NULL, "%s", why);
    }
    end();
}

// The reason why "dots" declines a row of activations of this type.
static void check_dots_declines(enum ggml_type type, const char * reason) {
    const char *name, *why = NULL;
    begin();
    struct ggml_tensor * node =
        ggml_mul_mat(ctx, ggml_new_tensor_2d(ctx, GGML_TYPE_Q4_0, 64, 8), ggml_new_tensor_2d(ctx, type, 64, 1));
    for (int i = 0; (name = gb_cpu_product_algorithm(node, "scalar", i, &why)) != NULL && strcmp(name, "dots") != 0;) {
        i++;
    }
    CHECK(name != NULL && why != NULL);
    CHECK_STR(why, reason);
    end();
}

static void reasons_name_the_type_of_activations(void) {
    check_dots_declines(GGML_TYPE_F16, "the activations are not f32");
    check_dots_declines(GGML_TYPE_BF16, "the activations are not f32");
    check_dots_declines(GGML_TYPE_Q8_0, "the activations are quantized");
}

static void errors(void) {
    const char * why = NULL;
    begin();
    struct ggml_tensor * a = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 8, 8);
    CHECK(gb_cpu_product_algorithm(NULL, NULL, 0, &why) == NULL);
    CHECK_INT(ggml_last_status(), GGML_STATUS_UNSUPPORTED);
    CHECK(gb_cpu_product_algorithm(ggml_add(ctx, a, a), NULL, 0, &why) == NULL);
    CHECK_INT(ggml_last_status(), GGML_STATUS_INVALID_ARGUMENT);
    CHECK(strstr(ggml_last_error(), "ADD is not a product") != NULL);
    CHECK(gb_cpu_product_algorithm(ggml_mul_mat(ctx, a, a), "no such level", 0, &why) == NULL);
    CHECK(ggml_last_status() != GGML_STATUS_SUCCESS);
    end();
}

// The barriers of a run of nodes with two threads, with zeros as data. The epoch of a pool counts
// runs and barriers.
static int barriers_of(struct ggml_tensor ** nodes, int n, const struct gb_level * level) {
    struct gb_cpu_plan * plan = gb_cpu_plan_new(nodes, n, 2);
    struct gb_cpu_pool * pool = gb_cpu_pool_new(2);
    CHECK(plan != NULL && pool != NULL);
    CHECK_INT(gb_cpu_plan_n_threads(plan), 2);
    void * work = calloc(1, gb_cpu_plan_work_size(plan) + 1);
    const struct gb_cpu_run run = { .kernels = level->kernels, .work = work };
    const uint64_t before = gb_cpu_pool_epoch(pool);
    CHECK_INT(gb_cpu_plan_run(plan, pool, &run), GGML_STATUS_SUCCESS);
    const int barriers = (int) (gb_cpu_pool_epoch(pool) - before) - 1;
    free(work);
    gb_cpu_plan_free(plan);
    gb_cpu_pool_free(pool);
    return barriers;
}

// With few terms, each thread prepares its own. The thread that computes a result adds the bias.
static void barriers_at(const struct gb_level * level) {
    static const struct {
        enum ggml_type type;
        int64_t k, rows;
        int barriers;
    } cases[] = {
        { GGML_TYPE_F32, 576, 1, 0 },
        { GGML_TYPE_F16, 576, 4, 0 },
        { GGML_TYPE_Q4_1, 576, 1, 0 },
        { GGML_TYPE_Q8_0, 256, 1, 0 },
        { GGML_TYPE_Q4_0, 1536, 3, 0 },
        { GGML_TYPE_Q4_K, 8192, 1, 0 },
        { GGML_TYPE_Q4_K, 8448, 1, 1 },
        { GGML_TYPE_F16, 8448, 2, 1 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        enum { M = 256 };
        struct ggml_tensor * nodes[2];
        ctx = ggml_init((struct ggml_init_params){ .mem_size = (size_t) 1 << 24 });
        CHECK(ctx != NULL);
        nodes[0] = product(cases[i].type, M, cases[i].k, cases[i].rows);
        nodes[1] = ggml_add(ctx, nodes[0], ggml_new_tensor_1d(ctx, GGML_TYPE_F32, M));
        CHECK(nodes[1] != NULL);
        memset(nodes[0]->src[0]->data, 0, ggml_nbytes(nodes[0]->src[0]));
        memset(nodes[0]->src[1]->data, 0, ggml_nbytes(nodes[0]->src[1]));
        memset(nodes[1]->src[1]->data, 0, ggml_nbytes(nodes[1]->src[1]));
        CHECK_MSG(barriers_of(nodes, 2, level) == cases[i].barriers, "%s, k %d, %d rows at %s: not %d barriers",
            ggml_type_name(cases[i].type), (int) cases[i].k, (int) cases[i].rows, level->name, cases[i].barriers);
        end();
    }
}

static void at_all_levels(void (*test)(const struct gb_level * level)) {
    for (int l = 0; l < gb_level_count(); l++) {
        if (gb_level_at(l)->usable()) {
            test(gb_level_at(l));
        }
    }
}

static void every_shape(void) { at_all_levels(every_shape_at); }

static void expected(void) { at_all_levels(expected_at); }

static void by_traits(void) {
    at_all_levels(by_traits_at);
    at_all_levels(tiles_by_traits_at);
}

static void few_rows_need_no_barrier(void) { at_all_levels(barriers_at); }

TEST_MAIN(TEST(every_shape), TEST(expected), TEST(by_traits), TEST(reasons_name_the_type_of_activations), TEST(errors),
    TEST(few_rows_need_no_barrier))
