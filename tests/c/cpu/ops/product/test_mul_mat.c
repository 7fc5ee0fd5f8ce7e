// test_mul_mat.c - MUL_MAT, MUL_MAT_ID and OUT_PROD against plain loops in double precision: random
// shapes, types, strides, broadcasts, at every level of this processor. Results have the same bits
// for 1 to 8 threads.
#include "test.h"

#include "base/mem.h"
#include "cpu/cpu.h"
#include "ggml-cpu.h"

#define MAX_THREADS 8

static struct gb_cpu_pool * pools[MAX_THREADS + 1];
static struct ggml_context * ctx;

static void open_context(size_t size) { ctx = ggml_init((struct ggml_init_params){ size, NULL, false }); }

static void close_context(void) {
    ggml_free(ctx);
    ctx = NULL;
}

// ------------------------------------------------------------------------------------------------------------ operands

static char * address(const struct ggml_tensor * t, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    return (char *) t->data + i0 * (int64_t) t->nb[0] + i1 * (int64_t) t->nb[1] + i2 * (int64_t) t->nb[2] +
           i3 * (int64_t) t->nb[3];
}

static void put(const struct ggml_tensor * t, char * p, float x) {
    const uint16_t half = ggml_fp32_to_fp16(x);
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    const uint16_t upper = (uint16_t) (bits >> 16);
    switch (t->type) {
        case GGML_TYPE_F16: memcpy(p, &half, sizeof(half)); break;
        case GGML_TYPE_BF16: memcpy(p, &upper, sizeof(upper)); break;
        default: memcpy(p, &x, sizeof(x)); break;
    }
}

static double get(const struct ggml_tensor * t, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    const char * p = address(t, i0, i1, i2, i3);
    uint16_t half;
    float x;
    memcpy(&half, p, sizeof(half));
    if (t->type == GGML_TYPE_F16) {
        return ggml_fp16_to_fp32(half);
    }
    if (t->type == GGML_TYPE_BF16) {
        const uint32_t bits = (uint32_t) half << 16;
        memcpy(&x, &bits, sizeof(x));
        return x;
    }
    memcpy(&x, p, sizeof(x));
    return x;
}

static void fill(const struct ggml_tensor * t) {
    for (int64_t i3 = 0; i3 < t->ne[3]; i3++) {
        for (int64_t i2 = 0; i2 < t->ne[2]; i2++) {
            for (int64_t i1 = 0; i1 < t->ne[1]; i1++) {
                for (int64_t i0 = 0; i0 < t->ne[0]; i0++) {
                    put(t, address(t, i0, i1, i2, i3), test_random_float(-1, 1));
                }
            }
        }
    }
}

enum layout { DENSE, PADDED, PERMUTED, N_LAYOUTS };

// Memory outside of the tensor holds NaN, so reading it affects the result.
static struct ggml_tensor * operand(enum ggml_type type, int64_t n0, int64_t n1, int64_t n2, int64_t n3,
    enum layout layout) {
    struct ggml_tensor * t = NULL;
    if (layout == DENSE) {
        t = ggml_new_tensor_4d(ctx, type, n0, n1, n2, n3);
        fill(t);
    } else if (layout == PADDED) {
        struct ggml_tensor * root = ggml_new_tensor_4d(ctx, type, n0 + 5, n1 + 1, n2, n3);
        memset(root->data, 0xff, ggml_nbytes(root));
        t = ggml_view_4d(ctx, root, n0, n1, n2, n3, root->nb[1], root->nb[2], root->nb[3], 3 * root->nb[0]);
        fill(t);
    } else {
        t = ggml_permute(ctx, ggml_new_tensor_4d(ctx, type, n0, n2, n1, n3), 0, 2, 1, 3);
        fill(t);
    }
    return t;
}

// ------------------------------------------------------------------------------------------------------------- running

static enum ggml_status compute(struct ggml_tensor * node, const struct gb_kernels * kernels, int n_threads) {
    struct gb_cpu_plan * plan = gb_cpu_plan_new(&node, 1, n_threads);
    if (plan == NULL) {
        return ggml_last_status();
    }
    if (pools[n_threads] == NULL) {
        pools[n_threads] = gb_cpu_pool_new(n_threads);
    }
    const size_t size = gb_cpu_plan_work_size(plan);
    char * work = malloc(size + 64);
    const struct gb_cpu_run run = { .kernels = kernels, .work = work };
    memset(work, 0xff, size);
    memset(work + size, 0x5a, 64);
    const enum ggml_status status = gb_cpu_plan_run(plan, pools[n_threads], &run);
    for (int i = 0; i < 64; i++) {
        CHECK(work[size + (size_t) i] == 0x5a);
    }
    free(work);
    gb_cpu_plan_free(plan);
    return status;
}

struct sum {
    double value, size; // and the sum of the magnitudes of its terms
};

typedef struct sum (*oracle_fn)(const struct ggml_tensor * node, int64_t m, int64_t n, int64_t i2, int64_t i3);

static struct sum mul_mat_oracle(const struct ggml_tensor * node, int64_t m, int64_t n, int64_t i2, int64_t i3) {
    const struct ggml_tensor *a = node->src[0], *b = node->src[1];
    struct sum s = { 0, 0 };
    for (int64_t k = 0; k < a->ne[0]; k++) {
        const double t = get(a, k, m, i2 / (b->ne[2] / a->ne[2]), i3 / (b->ne[3] / a->ne[3])) * get(b, k, n, i2, i3);
        s.value += t;
        s.size += fabs(t);
    }
    return s;
}

static struct sum out_prod_oracle(const struct ggml_tensor * node, int64_t m, int64_t n, int64_t i2, int64_t i3) {
    const struct ggml_tensor *a = node->src[0], *b = node->src[1];
    struct sum s = { 0, 0 };
    for (int64_t k = 0; k < a->ne[1]; k++) {
        const double t = get(a, m, k, i2 / (b->ne[2] / a->ne[2]), i3 / (b->ne[3] / a->ne[3])) * get(b, n, k, i2, i3);
        s.value += t;
        s.size += fabs(t);
    }
    return s;
}

static struct sum mul_mat_id_oracle(const struct ggml_tensor * node, int64_t m, int64_t n, int64_t i2, int64_t i3) {
    const struct ggml_tensor *ids = node->src[0], *b = node->src[1];
    int32_t e;
    memcpy(&e, address(ids, node->op_params[0], n, 0, 0), sizeof(e));
    struct sum s = { 0, 0 };
    for (int64_t k = 0; k < b->ne[0]; k++) {
        const double t = get(node->src[2 + e], k, m, 0, 0) * get(b, k, n, i2, i3);
        s.value += t;
        s.size += fabs(t);
    }
    return s;
}

// The expected values of the node, in its dense order. The caller frees them.
static struct sum * expected(const struct ggml_tensor * y, oracle_fn oracle) {
    struct sum * sums = malloc(((size_t) ggml_nelements(y) + 1) * sizeof(*sums));
    struct sum * p = sums;
    for (int64_t i3 = 0; i3 < y->ne[3]; i3++) {
        for (int64_t i2 = 0; i2 < y->ne[2]; i2++) {
            for (int64_t n = 0; n < y->ne[1]; n++) {
                for (int64_t m = 0; m < y->ne[0]; m++) {
                    *p++ = oracle(y, m, n, i2, i3);
                }
            }
        }
    }
    return sums;
}

// Floats may be rounded to the type of the weights, unless full precision is requested.
static bool rounds_to_bf16(const struct ggml_tensor * y) {
    if (y->op == GGML_OP_OUT_PROD) {
        return false;
    }
    const bool id = y->op == GGML_OP_MUL_MAT_ID;
    const struct ggml_tensor * w = y->src[id ? 2 : 0];
    return w->type == GGML_TYPE_BF16 && y->src[1]->type == GGML_TYPE_F32 && y->op_params[id ? 2 : 0] != GGML_PREC_F32;
}

static void check_result(const char * level, const struct ggml_tensor * y, const struct sum * sums, int64_t k) {
    const float * r = y->data;
    for (int64_t i = 0; i < ggml_nelements(y); i++) {
        // 8 bits of mantissa; twice half an ulp, because cancelling terms count in full
        const double rounding = rounds_to_bf16(y) ? 0x1p-8 : 0;
        if (!(fabs(r[i] - sums[i].value) <= (4 * (double) k * 0x1p-24 + rounding) * sums[i].size)) {
            test_fail(__FILE__, __LINE__, "%s %s k %lld: element %lld of [%lld %lld %lld %lld] is %.9g, expected %.9g",
                level, ggml_op_name(y->op), (long long) k, (long long) i, (long long) y->ne[0], (long long) y->ne[1],
                (long long) y->ne[2], (long long) y->ne[3], r[i], sums[i].value);
            return;
        }
    }
}

// The node at every level. Several threads give the bits of one.
static void check_node(struct ggml_tensor * y, oracle_fn oracle, int64_t k) {
    REQUIRE(y != NULL);
    const size_t size = ggml_nbytes(y);
    char * one = malloc(size + 1);
    struct sum * sums = expected(y, oracle);
    for (int l = 0; l < gb_level_count(); l++) {
        const struct gb_level * level = gb_level_at(l);
        if (!level->usable()) {
            continue;
        }
        memset(y->data, 0xff, size);
        CHECK_INT(compute(y, level->kernels, 1), GGML_STATUS_SUCCESS);
        memcpy(one, y->data, size);
        check_result(level->name, y, sums, k);
        for (int threads = 2; threads <= MAX_THREADS; threads += (int) test_random_int(1, 5)) {
            memset(y->data, 0xff, size);
            CHECK_INT(compute(y, level->kernels, threads), GGML_STATUS_SUCCESS);
            CHECK_MSG(memcmp(one, y->data, size) == 0, "%s %s differs with %d threads", level->name,
                ggml_op_name(y->op), threads);
        }
    }
    free(sums);
    free(one);
}

// -------------------------------------------------------------------------------------------------------------- shapes

static const enum ggml_type float_types[] = { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16 };

static enum layout random_layout(void) { return (enum layout) test_random_int(0, N_LAYOUTS - 1); }

static void mul_mat_of(enum ggml_type ta, enum ggml_type tb, int64_t m, int64_t n, int64_t k, const int64_t a23[2],
    const int64_t b23[2]) {
    open_context(256u << 20);
    struct ggml_tensor * a = operand(ta, k, m, a23[0], a23[1], random_layout());
    struct ggml_tensor * b = operand(tb, k, n, b23[0], b23[1], random_layout());
    struct ggml_tensor * y = ggml_mul_mat(ctx, a, b);
    check_node(y, mul_mat_oracle, k);
    if (rounds_to_bf16(y)) {
        ggml_mul_mat_set_prec(y, GGML_PREC_F32);
        check_node(y, mul_mat_oracle, k);
    }
    close_context();
}

static void mul_mat_random(void) {
    for (int pass = 0; pass < 120; pass++) {
        const enum ggml_type ta = float_types[pass % 3], tb = test_random() % 2 ? ta : GGML_TYPE_F32;
        const int64_t a23[2] = { test_random_int(1, 3), test_random_int(1, 2) };
        const int64_t b23[2] = { a23[0] * test_random_int(1, 3), a23[1] * test_random_int(1, 2) };
        const int64_t top = pass % 4 == 0 ? 130 : 40;
        mul_mat_of(ta, tb, test_random_int(1, top), test_random_int(1, pass % 4 == 0 ? 3 : top),
            test_random_int(1, pass % 7 == 0 ? 700 : 70), a23, b23);
    }
}

// Shapes for the algorithm lanes: as many rows as lanes and more, groups, slices of b that share a
// slice of a.
static void mul_mat_lanes(void) {
    for (int pass = 0; pass < 25; pass++) {
        const int64_t n = pass % 2 ? 16 * test_random_int(1, 3) : test_random_int(13, 60);
        const int64_t a23[2] = { test_random_int(1, 2), test_random_int(1, 2) };
        const int64_t b23[2] = { a23[0] * test_random_int(1, 2), a23[1] };
        mul_mat_of(GGML_TYPE_F32, GGML_TYPE_F32, test_random_int(60, 160), n, test_random_int(60, pass % 3 ? 130 : 600),
            a23, b23);
    }
}

static void mul_mat_edges(void) { // ones, edges of tiles, more than one block of k, many rounds
    static const int64_t shapes[][3] = { { 1, 1, 1 }, { 1, 7, 1 }, { 7, 1, 1 }, { 1, 1, 300 }, { 64, 12, 256 },
        { 65, 13, 257 }, { 33, 17, 513 }, { 128, 384, 32 }, { 129, 385, 33 }, { 300, 5, 40 }, { 1000, 1, 64 },
        { 20, 1500, 300 }, { 3, 4000, 3 }, { 14, 1100, 1500 } };
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        for (int t = 0; t < (shapes[i][1] > 1000 ? 1 : 3); t++) {
            mul_mat_of(float_types[t], GGML_TYPE_F32, shapes[i][0], shapes[i][1], shapes[i][2], (int64_t[]){ 1, 1 },
                (int64_t[]){ 1, 1 });
        }
    }
    mul_mat_of(GGML_TYPE_F32, GGML_TYPE_F32, 40, 30, 16, (int64_t[]){ 12, 4 }, (int64_t[]){ 12, 4 }); // attention
    // one token, shared heads
    mul_mat_of(GGML_TYPE_F16, GGML_TYPE_F32, 40, 1, 16, (int64_t[]){ 2, 2 }, (int64_t[]){ 16, 2 });
}

static void check_empty(enum ggml_type type, int64_t m, int64_t n, int64_t k) {
    open_context(1 << 20);
    struct ggml_tensor * a = ggml_new_tensor_2d(ctx, type, k, m);
    struct ggml_tensor * b = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, k, n);
    struct ggml_tensor * y = ggml_mul_mat(ctx, a, b);
    REQUIRE(y != NULL);
    for (int l = 0; l < gb_level_count() && gb_level_at(l)->usable(); l++) {
        memset(y->data, 0xff, ggml_nbytes(y));
        CHECK_INT(compute(y, gb_level_at(l)->kernels, 2), GGML_STATUS_SUCCESS);
        for (int64_t j = 0; j < ggml_nelements(y); j++) {
            CHECK_MSG(((float *) y->data)[j] == 0, "%s, %d rows: an empty sum is %g", ggml_type_name(type), (int) n,
                ((float *) y->data)[j]);
        }
    }
    close_context();
}

static void mul_mat_empty(void) {
    check_empty(GGML_TYPE_F32, 0, 6, 4);
    check_empty(GGML_TYPE_F32, 5, 0, 4);
    // row counts of every algorithm
    for (int type = 0; type < GGML_TYPE_COUNT; type++) {
        const bool partner = type == GGML_TYPE_Q8_1 || type == GGML_TYPE_Q8_K; // rounds only activations
        if (type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16 ||
            (ggml_is_quantized((enum ggml_type) type) && !partner)) {
            for (int n = 1; n <= 70; n += n < 18 ? 1 : 26) {
                check_empty((enum ggml_type) type, 5, n, 0);
            }
        }
    }
}

// Infinity and NaN appear only in results that depend on them.
static void mul_mat_special(void) {
    open_context(8 << 20);
    for (int64_t n = 1; n <= 20; n += 19) {
        struct ggml_tensor * a = operand(GGML_TYPE_F32, 50, 40, 1, 1, DENSE);
        struct ggml_tensor * b = operand(GGML_TYPE_F32, 50, n, 1, 1, DENSE);
        put(a, address(a, 49, 7, 0, 0), NAN);
        put(a, address(a, 3, 9, 0, 0), INFINITY);
        struct ggml_tensor * y = ggml_mul_mat(ctx, a, b);
        for (int l = 0; l < gb_level_count() && gb_level_at(l)->usable(); l++) {
            CHECK_INT(compute(y, gb_level_at(l)->kernels, 1), GGML_STATUS_SUCCESS);
            for (int64_t j = 0; j < n; j++) {
                for (int64_t i = 0; i < 40; i++) {
                    const double r = get(y, i, j, 0, 0);
                    CHECK(i == 7 ? isnan(r) : i == 9 ? isinf(r) && (r > 0) == (get(b, 3, j, 0, 0) > 0) : isfinite(r));
                }
            }
        }
    }
    close_context();
}

static void out_prod_random(void) {
    for (int pass = 0; pass < 60; pass++) {
        open_context(64 << 20);
        const int64_t m = test_random_int(1, 70), n = test_random_int(1, 40),
                      k = test_random_int(1, pass % 5 ? 40 : 600);
        const int64_t a2 = test_random_int(1, 2), a3 = test_random_int(1, 2), b2 = a2 * test_random_int(1, 2),
                      b3 = a3 * test_random_int(1, 2);
        struct ggml_tensor * a = operand(float_types[pass % 3], m, k, a2, a3, random_layout());
        struct ggml_tensor * b = pass % 2 ? operand(GGML_TYPE_F32, n, k, b2, b3, random_layout())
                                          : ggml_transpose(ctx, operand(GGML_TYPE_F32, k, n, b2, b3, random_layout()));
        check_node(ggml_out_prod(ctx, a, b), out_prod_oracle, k);
        close_context();
    }
}

// ------------------------------------------------------------------------------------------------------------- experts

static struct ggml_tensor * random_ids(int64_t per_token, int64_t tokens, int n_as) {
    struct ggml_tensor * root = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, per_token + 2, tokens);
    memset(root->data, 0x7f, ggml_nbytes(root)); // far out of range
    struct ggml_tensor * ids = ggml_view_2d(ctx, root, per_token, tokens, root->nb[1], sizeof(int32_t));
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t i = 0; i < per_token; i++) {
            const int32_t e = (int32_t) test_random_int(0, n_as - 1);
            memcpy(address(ids, i, t, 0, 0), &e, sizeof(e));
        }
    }
    return ids;
}

static void mul_mat_id_random(void) {
    for (int pass = 0; pass < 80; pass++) {
        open_context(64 << 20);
        const int n_as = (int) test_random_int(1, 8);
        const int64_t m = test_random_int(1, 60), k = test_random_int(1, pass % 5 ? 40 : 600),
                      tokens = test_random_int(1, pass % 3 ? 60 : 4);
        const enum ggml_type type = float_types[pass % 3];
        struct ggml_tensor * as[8];
        for (int e = 0; e < n_as; e++) {
            as[e] = operand(type, k, m, 1, 1, test_random() % 2 ? PADDED : DENSE);
        }
        struct ggml_tensor * ids = random_ids(3, tokens, n_as);
        struct ggml_tensor * b = operand(test_random() % 2 ? type : GGML_TYPE_F32, k, tokens, 1, 1, random_layout());
        check_node(ggml_mul_mat_id(ctx, as, n_as, ids, (int) test_random_int(0, 2), b), mul_mat_id_oracle, k);
        close_context();
    }
}

static void mul_mat_id_out_of_range(void) {
    static const int32_t wrong[] = { -1, 3, INT32_MAX, INT32_MIN };
    for (int tokens = 2; tokens <= 100; tokens += 98) {
        for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
            open_context(8 << 20);
            struct ggml_tensor * as[3];
            for (int e = 0; e < 3; e++) {
                as[e] = operand(GGML_TYPE_F32, 200, 100, 1, 1, DENSE);
            }
            struct ggml_tensor * ids = random_ids(2, tokens, 3);
            memcpy(address(ids, 1, 1, 0, 0), &wrong[i], sizeof(wrong[i]));
            struct ggml_tensor * b = operand(GGML_TYPE_F32, 200, tokens, 1, 1, DENSE);
            struct ggml_tensor * y = ggml_set_name(ggml_mul_mat_id(ctx, as, 3, ids, 1, b), "routed");
            char value[32];
            snprintf(value, sizeof(value), "is %d", (int) wrong[i]);
            for (int threads = 1; threads <= 4; threads++) {
                CHECK_INT(compute(y, gb_kernels_default(), threads), GGML_STATUS_INVALID_ARGUMENT);
                CHECK(strstr(ggml_last_error(), "routed") != NULL && strstr(ggml_last_error(), value) != NULL);
                CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "must be from 0 to 2");
            }
            const int32_t right = 2; // the backend still works
            memcpy(address(ids, 1, 1, 0, 0), &right, sizeof(right));
            check_node(y, mul_mat_id_oracle, 200);
            close_context();
        }
    }
}

static void unsupported(void) { // (quantized a: test_cpu_quant.c)
    open_context(1 << 20);
    struct ggml_tensor * a = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 64, 8);
    struct ggml_tensor * b = ggml_new_tensor_2d(ctx, GGML_TYPE_F16, 64, 4);
    struct ggml_tensor * y = ggml_mul_mat(ctx, a, b);
    REQUIRE(y != NULL);
    CHECK_STR(ggml_cpu_unsupported_reason(y), "source 1 must be f32, or have the type of source 0");
    CHECK_INT(compute(y, gb_kernels_default(), 1), GGML_STATUS_UNSUPPORTED);
    CHECK_ERROR(GGML_STATUS_UNSUPPORTED, "source 1 must be f32, or have the type of source 0");
    close_context();
}

static void free_pools(void) {
    for (int i = 0; i <= MAX_THREADS; i++) {
        gb_cpu_pool_free(pools[i]);
        pools[i] = NULL;
    }
    CHECK_INT(gb_test_live_allocs(), 0);
}

TEST_MAIN(TEST(mul_mat_edges), TEST(mul_mat_lanes), TEST(mul_mat_random), TEST(mul_mat_empty), TEST(mul_mat_special),
    TEST(out_prod_random), TEST(mul_mat_id_random), TEST(mul_mat_id_out_of_range), TEST(unsupported), TEST(free_pools))
