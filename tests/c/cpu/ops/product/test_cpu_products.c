// Products that round activations to fewer bits. NaN and infinite activations affect only their own
// row. Rounding is by groups, so large values in one group do not affect others. Full precision
// does not round. test_cpu_quant.c tests the formats.
#include "test_cpu_ops.h"

#include "cpu/ops/product/tuning.h"
#include "tensor/quant/quant.h"

static const enum ggml_type types[] = { GGML_TYPE_Q4_0, GGML_TYPE_Q8_0, GGML_TYPE_Q4_K, GGML_TYPE_Q6_K,
    GGML_TYPE_IQ4_XS, GGML_TYPE_BF16 };
static const int64_t batches[] = { 1, 3, 8, 9, 20, 70 };

enum { M = 37, K = 512 };

// Weights near 1, never 0.
static struct ggml_tensor * weights(enum ggml_type type) {
    struct ggml_tensor * a = tensor(type, DENSE, K, M, 1, 1);
    float x[K];
    for (int64_t r = 0; r < M; r++) {
        for (int i = 0; i < K; i++) {
            x[i] = test_random_float(0.5f, 1) * (test_random() % 2 ? 1 : -1);
        }
        char * row = (char *) a->data + (size_t) r * a->nb[1];
        if (type == GGML_TYPE_BF16) {
            ggml_fp32_to_bf16_row(x, (ggml_bf16_t *) (void *) row, K);
        } else {
            gb_quant_format_of(type)->from_float(x, row, K);
        }
    }
    return a;
}

static double weight(const struct ggml_tensor * a, int64_t row, int i) {
    float y[K];
    const char * p = (const char *) a->data + (size_t) row * a->nb[1];
    if (a->type == GGML_TYPE_BF16) {
        return read_value(a->type, p + 2 * i);
    }
    gb_quant_format_of(a->type)->to_float(p, y, K);
    return y[i];
}

static void run_at(struct ggml_tensor * node, const struct gb_level * level) {
    CHECK_MSG(run_node(node, 2, level->kernels) == GGML_STATUS_SUCCESS, "%s", ggml_last_error());
}

// One activation that is NaN or infinite affects only its own row.
static void not_finite(void) {
    static const float values[] = { NAN, INFINITY, -INFINITY };
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
        for (size_t b = 0; b < sizeof(batches) / sizeof(batches[0]); b++) {
            begin();
            const int64_t n = batches[b], bad = test_random_int(0, n - 1);
            struct ggml_tensor * x = random_tensor(GGML_TYPE_F32, DENSE, K, n, 1, 1);
            ((float *) x->data)[bad * K + test_random_int(0, K - 1)] = values[b % 3];
            struct ggml_tensor * node = ggml_mul_mat(ctx, weights(types[t]), x);
            give_memory(node);
            for (int l = 0; l < gb_level_count(); l++) {
                if (gb_level_at(l)->usable()) {
                    run_at(node, gb_level_at(l));
                    for (int64_t i = 0; i < M * n; i++) {
                        CHECK_MSG(isfinite(((float *) node->data)[i]) == (i / M != bad), "%s %s n %d: element %d is %g",
                            gb_level_at(l)->name, ggml_type_name(types[t]), (int) n, (int) i,
                            (double) ((float *) node->data)[i]);
                    }
                }
            }
            end();
        }
    }
}

// One group has a huge value, another a small one. The small one must affect the result. This holds
// if each group has its own scale, or each value its own exponent. f32 sums may lose very small
// values, so this one is 1. Levels that round weights to bfloat16 get a wider tolerance.
static void groups_have_scales(void) {
    for (size_t t = 0; t + 1 < sizeof(types) / sizeof(types[0]); t++) {
        for (size_t b = 0; b < sizeof(batches) / sizeof(batches[0]); b++) {
            begin();
            const int64_t n = batches[b];
            struct ggml_tensor * a = weights(types[t]);
            struct ggml_tensor * x = tensor(GGML_TYPE_F32, DENSE, K, n, 1, 1);
            for (int64_t i = 0; i < K * n; i++) {
                ((float *) x->data)[i] = i % K == 5 ? 1000.0f : i % K == 300 ? 1.0f : 0.0f;
            }
            struct ggml_tensor * node = ggml_mul_mat(ctx, a, x);
            give_memory(node);
            for (int l = 0; l < gb_level_count(); l++) {
                if (!gb_level_at(l)->usable()) {
                    continue;
                }
                run_at(node, gb_level_at(l));
                for (int64_t i = 0; i < M * n; i++) {
                    const double want = 1000 * weight(a, i % M, 5) + weight(a, i % M, 300),
                                 got = ((float *) node->data)[i];
                    const bool rounded = n >= GB_QUANTIZED_PAIRS_ROWS && gb_level_at(l)->kernels->bf16_tiles;
                    const double rounding = rounded ? fabs(1000 * weight(a, i % M, 5)) * 0x1p-8 : 0;
                    CHECK_MSG(fabs(got - want) <= 0.05 + rounding, "%s %s n %d: %g, expected %g", gb_level_at(l)->name,
                        ggml_type_name(types[t]), (int) n, got,
                        want); // rounding of d and of the sums
                }
            }
            end();
        }
    }
}

// Each precision is closer than the previous one.
static void each_precision_is_closer(void) {
    static const enum ggml_prec precisions[] = { GGML_PREC_DEFAULT, GGML_PREC_F16, GGML_PREC_F32 };
    begin();
    for (size_t t = 0; t + 1 < sizeof(types) / sizeof(types[0]); t++) {
        struct ggml_tensor * a = weights(types[t]);
        struct ggml_tensor * x = random_tensor(GGML_TYPE_F32, DENSE, K, 4, 1, 1);
        struct ggml_tensor * node = ggml_mul_mat(ctx, a, x);
        give_memory(node);
        double error[3] = { 0, 0, 0 };
        for (int i = 0; i < 3; i++) {
            CHECK(ggml_mul_mat_set_prec(node, precisions[i]) == GGML_STATUS_SUCCESS);
            CHECK(run_node(node, 1, gb_kernels_default()) == GGML_STATUS_SUCCESS);
            for (int64_t j = 0; j < 4 * M; j++) {
                double want = 0;
                for (int k = 0; k < K; k++) {
                    want += weight(a, j % M, k) * (double) ((float *) x->data)[j / M * K + k];
                }
                error[i] += fabs(((float *) node->data)[j] - want);
            }
        }
        CHECK_MSG(error[1] * 20 < error[0] && error[2] < error[1], "%s: %g by default, %g with f16, %g with f32",
            ggml_type_name(types[t]), error[0], error[1], error[2]);
    }
    end();
}

// Threads take columns on demand (gb_cpu_take). The result has the bits of one thread.
enum { COLUMNS = 2600, TERMS = 2048, MOST_ROWS = 33 };

// Seven different columns, repeated.
static struct ggml_tensor * many_columns(struct ggml_context * c, enum ggml_type type) {
    struct ggml_tensor * a = ggml_new_tensor_2d(c, type, TERMS, COLUMNS);
    const size_t size = ggml_row_size(type, TERMS);
    float few[TERMS];
    a->data = malloc(size * COLUMNS);
    for (size_t j = 0; j < COLUMNS; j++) {
        char * const column = (char *) a->data + j * size;
        for (int i = 0; i < TERMS && j < 7; i++) {
            few[i] = test_random_float(-0.5f, 0.5f);
        }
        if (j >= 7) {
            memcpy(column, (char *) a->data + j % 7 * size, size);
        } else if (type == GGML_TYPE_F32) {
            memcpy(column, few, size);
        } else {
            CHECK_INT(ggml_quantize_rows(type, few, column, 1, TERMS, NULL, GGML_ON_INVALID_ERROR, NULL), size);
        }
    }
    return a;
}

static void taken_by_threads(struct ggml_tensor * node) {
    const size_t size = ggml_nbytes(node);
    void *one = malloc(size), *more = malloc(size);
    node->data = one;
    CHECK(run_node(node, 1, gb_kernels_default()) == GGML_STATUS_SUCCESS);
    node->data = more;
    for (int threads = 2; threads <= 7; threads++) {
        memset(more, 0xff, size);
        CHECK(run_node(node, threads, gb_kernels_default()) == GGML_STATUS_SUCCESS);
        CHECK(memcmp(one, more, size) == 0);
        memset(more, 0xff, size);
        CHECK(run_node_on(NULL, node, threads, gb_kernels_default()) == GGML_STATUS_SUCCESS);
        CHECK_MSG(memcmp(one, more, size) == 0, "%s, %d rows, %d threads", ggml_type_name(node->src[0]->type),
            (int) node->ne[1], threads);
    }
    free(one);
    free(more);
}

static void threads_take_columns(void) {
    const enum ggml_type all[] = { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0,
        GGML_TYPE_Q6_K };
    static float x[MOST_ROWS * TERMS];
    for (int i = 0; i < MOST_ROWS * TERMS; i++) {
        x[i] = test_random_float(-0.5f, 0.5f);
    }
    for (size_t t = 0; t < sizeof(all) / sizeof(all[0]); t++) {
        struct ggml_context * c = ggml_init((struct ggml_init_params){ 1 << 20, NULL, true });
        struct ggml_tensor * a = many_columns(c, all[t]);
        for (int rows = 1; rows <= MOST_ROWS; rows = 2 * rows + (rows > 1)) { // 1, 2, 5, 11, 23
            struct ggml_tensor * b = ggml_new_tensor_2d(c, GGML_TYPE_F32, TERMS, rows);
            b->data = x;
            taken_by_threads(ggml_mul_mat(c, a, b));
        }
        free(a->data);
        ggml_free(c);
    }
}

// Threads divide small products by rows, columns or slices. Each thread packs its own operands.
// Results are the same bits for any number of threads.
static void threads_divide_small_products(void) {
    static const enum ggml_type all[] = { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0,
        GGML_TYPE_Q6_K };
    for (int i = 0; i < 60; i++) {
        begin();
        const enum ggml_type type = all[i % 6];
        const int64_t k = ggml_is_quantized(type) ? 256 * test_random_int(1, 3) : test_random_int(1, 700);
        const int64_t slices = i % 3 == 0 ? test_random_int(2, 9) : 1;
        const int64_t m = test_random_int(1, i % 2 ? 40 : 300), n = test_random_int(17, i % 2 ? 300 : 90);
        struct ggml_tensor * x = random_tensor(GGML_TYPE_F32, DENSE, k, n, slices, 1);
        struct ggml_tensor * node = ggml_mul_mat(ctx, random_tensor(type, DENSE, k, m, slices, 1), x);
        taken_by_threads(node);
        end();
    }
}

TEST_MAIN(TEST(threads_divide_small_products), TEST(not_finite), TEST(groups_have_scales),
    TEST(each_precision_is_closer), TEST(threads_take_columns))
