// Type and operation tables, half precision, traits. Sizes are written here as sums of their
// block's fields.
#include "base/fp16.h"
#include "tensor/quant/quant.h"
#include "tensor/tensor.h"
#include "test.h"

static const struct {
    int id;
    const char * name;
    int blck, bytes;
} expected[] = {
    { 0, "f32", 1, 4 },
    { 1, "f16", 1, 2 },
    { 2, "q4_0", 32, 2 + 16 },
    { 3, "q4_1", 32, 2 + 2 + 16 },
    { 6, "q5_0", 32, 2 + 4 + 16 },
    { 7, "q5_1", 32, 2 + 2 + 4 + 16 },
    { 8, "q8_0", 32, 2 + 32 },
    { 9, "q8_1", 32, 4 + 4 + 32 },
    { 10, "q2_K", 256, 2 + 2 + 16 + 64 },
    { 11, "q3_K", 256, 2 + 64 + 32 + 12 },
    { 12, "q4_K", 256, 2 + 2 + 128 + 12 },
    { 13, "q5_K", 256, 2 + 2 + 128 + 32 + 12 },
    { 14, "q6_K", 256, 2 + 128 + 64 + 16 },
    { 15, "q8_K", 256, 4 + 256 + 32 },
    { 16, "iq2_xxs", 256, 2 + 64 },
    { 17, "iq2_xs", 256, 2 + 64 + 8 },
    { 18, "iq3_xxs", 256, 2 + 64 + 32 },
    { 19, "iq1_s", 256, 2 + 32 + 16 },
    { 20, "iq4_nl", 32, 2 + 16 },
    { 21, "iq3_s", 256, 2 + 64 + 32 + 8 + 4 },
    { 22, "iq2_s", 256, 2 + 64 + 16 },
    { 23, "iq4_xs", 256, 2 + 2 + 128 + 4 },
    { 24, "i8", 1, 1 },
    { 25, "i16", 1, 2 },
    { 26, "i32", 1, 4 },
    { 27, "i64", 1, 8 },
    { 28, "f64", 1, 8 },
    { 29, "iq1_m", 256, 32 + 16 + 8 },
    { 30, "bf16", 1, 2 },
    { 34, "tq1_0", 256, 2 + 52 },
    { 35, "tq2_0", 256, 2 + 64 },
    { 39, "mxfp4", 32, 1 + 16 },
    { 40, "nvfp4", 64, 4 + 32 },
    { 41, "q1_0", 128, 2 + 16 },
    { 42, "q2_0", 64, 2 + 16 },
};

static void sizes_and_names(void) {
    size_t at = 0;
    for (int id = -2; id < GGML_TYPE_COUNT + 2; id++) {
        const enum ggml_type type = (enum ggml_type) id;
        const ggml_type_traits_t traits = ggml_internal_get_type_traits(type);
        if (at < sizeof(expected) / sizeof(expected[0]) && expected[at].id == id) {
            CHECK(gb_type_is_valid(type));
            CHECK_STR(ggml_type_name(type), expected[at].name);
            CHECK_INT(ggml_blck_size(type), expected[at].blck);
            CHECK_INT(ggml_type_size(type), expected[at].bytes);
            CHECK(ggml_is_quantized(type) == (expected[at].blck > 1));
            CHECK(fabs(ggml_type_sizef(type) * expected[at].blck - expected[at].bytes) < 1e-9);
            CHECK_STR(traits.type_name, expected[at].name);
            CHECK_INT(traits.blck_size, expected[at].blck);
            CHECK_INT(traits.type_size, expected[at].bytes);
            CHECK(traits.is_quantized == (expected[at].blck > 1));
            at++;
        } else { // retired or never used
            CHECK(!gb_type_is_valid(type));
            CHECK(ggml_type_name(type) == NULL);
            CHECK_INT(ggml_blck_size(type), 0);
            CHECK_INT(ggml_type_size(type), 0);
            CHECK(!ggml_is_quantized(type));
            CHECK(traits.type_name == NULL && traits.blck_size == 0 && traits.to_float == NULL);
        }
    }
    CHECK_INT(at, sizeof(expected) / sizeof(expected[0]));
    CHECK_INT(ggml_last_status(), GGML_STATUS_SUCCESS); // queries are no failures
}

static void row_sizes(void) {
    CHECK_INT(ggml_row_size(GGML_TYPE_F32, 7), 28);
    CHECK_INT(ggml_row_size(GGML_TYPE_Q4_0, 64), 36);
    CHECK_INT(ggml_row_size(GGML_TYPE_Q4_K, 0), 0);
    CHECK_INT(ggml_last_status(), GGML_STATUS_SUCCESS);
    CHECK_INT(ggml_row_size(GGML_TYPE_Q4_0, 33), 0);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "multiple of 32");
    CHECK_INT(ggml_row_size(GGML_TYPE_F32, -1), 0);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "-1");
    CHECK_INT(ggml_row_size(GGML_TYPE_F32, INT64_MAX), 0);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "overflow");
    CHECK_INT(ggml_row_size((enum ggml_type) 4, 32), 0);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "not a valid type");
}

static void file_types(void) {
    static const int map[][2] = { { 0, 0 }, { 1, 1 }, { 2, 2 }, { 3, 3 }, { 7, 8 }, { 8, 6 }, { 9, 7 }, { 10, 10 },
        { 11, 11 }, { 12, 12 }, { 13, 13 }, { 14, 14 }, { 15, 16 }, { 16, 17 }, { 17, 18 }, { 18, 19 }, { 19, 20 },
        { 20, 21 }, { 21, 22 }, { 22, 23 }, { 23, 29 }, { 24, 30 }, { 25, 39 }, { 26, 40 }, { 27, 41 }, { 28, 42 } };
    enum { N_MAP = sizeof(map) / sizeof(map[0]) };
    int at = 0;
    for (int ftype = -3; ftype < 40; ftype++) {
        const enum ggml_type type = ggml_ftype_to_ggml_type((enum ggml_ftype) ftype);
        if (at < N_MAP && map[at][0] == ftype) {
            CHECK_INT(type, map[at++][1]);
            CHECK_INT(ggml_last_status(), GGML_STATUS_SUCCESS);
        } else {
            CHECK_INT(type, GGML_TYPE_COUNT);
            CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "ftype");
        }
    }
    CHECK_INT(at, N_MAP);
}

// The value of binary16 bits, by its definition.
static double f16_value(unsigned bits) {
    const int exponent = (bits >> 10) & 31;
    const double fraction = bits & 1023;
    const double sign = bits & 0x8000 ? -1 : 1;
    if (exponent == 31) {
        return fraction != 0 ? NAN : sign * INFINITY;
    }
    return sign * (exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25));
}

static void half_rows(void) { // without a call of ggml_init
    enum { N = 65536 };
    static ggml_fp16_t all[N], back[N];
    static float wide[N];
    for (int i = 0; i < N; i++) {
        all[i] = (ggml_fp16_t) i;
    }
    ggml_fp16_to_fp32_row(all, wide, N);
    ggml_fp32_to_fp16_row(wide, back, N);
    int wrong = 0;
    for (int i = 0; i < N; i++) {
        const double v = f16_value((unsigned) i);
        if (isnan(v)) {
            wrong += !isnan(wide[i]) || !isnan(f16_value(back[i])) || !(back[i] & 0x200);
        } else {
            wrong += (double) wide[i] != v || back[i] != i || ggml_fp16_to_fp32((ggml_fp16_t) i) != wide[i];
        }
    }
    CHECK_INT(wrong, 0);
    CHECK_INT(ggml_fp32_to_fp16(65519.996f), 0x7bff);
    CHECK_INT(ggml_fp32_to_fp16(65520.0f), 0x7c00);
    CHECK_INT(ggml_fp32_to_fp16(-1e30f), 0xfc00);
    CHECK_INT(ggml_fp32_to_fp16(ldexpf(1, -25)), 0); // half of the smallest value: a tie, to even
    CHECK_INT(ggml_fp32_to_fp16(ldexpf(1.001f, -25)), 1);
    CHECK_INT(ggml_fp32_to_fp16(1.0f + ldexpf(1, -11)), 0x3c00); // tie to even
    CHECK_INT(ggml_fp32_to_fp16(1.0f + 3 * ldexpf(1, -11)), 0x3c02);

    ggml_bf16_t b[3];
    const float in[3] = { 1.0f, -2.5f, 3.14159274f };
    float out[3];
    ggml_fp32_to_bf16_row(in, b, 3);
    ggml_bf16_to_fp32_row(b, out, 3);
    CHECK(out[0] == 1.0f && out[1] == -2.5f && out[2] == 3.140625f);
    CHECK_INT(b[2].bits, 0x4049);
    CHECK(isnan(ggml_bf16_to_fp32(ggml_fp32_to_bf16(NAN))));

    ggml_fp16_to_fp32_row(NULL, out, 0);
    CHECK_INT(ggml_last_status(), GGML_STATUS_SUCCESS);
    ggml_fp16_to_fp32_row(NULL, out, 3);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "'x' is NULL");
    ggml_fp32_to_bf16_row(in, NULL, 3);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "'y' is NULL");
}

static void traits_of_plain_types(void) {
    enum { N = 5 };
    const float x[N] = { 1, -2, 0.5f, 4, 8 }, y[N] = { 3, 0.25f, -8, 1, 0.125f }; // exact in every format
    const float product = 3 - 0.5f - 4 + 4 + 1;
    const enum ggml_type types[] = { GGML_TYPE_F16, GGML_TYPE_BF16 };
    for (int i = 0; i < 2; i++) {
        const ggml_type_traits_t t = ggml_internal_get_type_traits(types[i]);
        uint16_t hx[N], hy[N];
        float back[N], s = -1;
        t.from_float(x, hx, N);
        t.from_float_reference(y, hy, N);
        t.to_float(hx, back, N);
        CHECK(memcmp(back, x, sizeof(x)) == 0);
        CHECK_INT(t.vec_dot_type, types[i]);
        t.vec_dot(N, &s, hx, hy);
        CHECK(s == product);
    }
    const ggml_type_traits_t f32 = ggml_internal_get_type_traits(GGML_TYPE_F32);
    float s = -1;
    f32.vec_dot(N, &s, x, y);
    CHECK(s == product);
    CHECK(f32.to_float == NULL && f32.from_float == NULL && f32.vec_dot_type == GGML_TYPE_F32);
    CHECK(ggml_internal_get_type_traits(GGML_TYPE_I32).vec_dot == NULL);
    CHECK(gb_quant_format_of(GGML_TYPE_F16) == NULL); // not a quantized format
    CHECK(gb_quant_format_of((enum ggml_type) 1000) == NULL);
}

// The functions of early 2024: which of them each type has, and which type vec_dot takes.
static void traits_of_quantized_types(void) {
    enum { TO = 1, FROM = 2, REFERENCE = 4, DOT = 8, ALL = 15 };
    static const struct {
        int id, has, partner;
    } list[] = { { 0, DOT, 0 }, { 1, ALL, 1 }, { 2, ALL, 8 }, { 3, ALL, 9 }, { 6, ALL, 8 }, { 7, ALL, 9 },
        { 8, ALL, 8 }, { 9, FROM | REFERENCE, 9 }, { 10, ALL, 15 }, { 11, ALL, 15 }, { 12, ALL, 15 }, { 13, ALL, 15 },
        { 14, ALL, 15 }, { 15, FROM, 0 }, { 16, TO | DOT, 15 }, { 17, TO | DOT, 15 }, { 18, ALL, 15 }, { 24, 0, 0 },
        { 25, 0, 0 }, { 26, 0, 0 } };
    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
        const ggml_type_traits_t t = ggml_internal_get_type_traits((enum ggml_type) list[i].id);
        const int has = (t.to_float ? TO : 0) | (t.from_float ? FROM : 0) | (t.from_float_reference ? REFERENCE : 0) |
                        (t.vec_dot ? DOT : 0);
        CHECK_MSG(has == list[i].has && (int) t.vec_dot_type == list[i].partner, "%s: functions %d, partner %d",
            t.type_name, has, (int) t.vec_dot_type);
    }
}

// The limits of round-trip and product errors in a program of early 2024. The last row is for types
// that it does not know: IQ3_S and IQ2_S came later and keep these limits.
struct limits {
    int id;
    double round_trip, product;
};

static struct limits limits_of(enum ggml_type type) {
    static const struct limits list[] = { { GGML_TYPE_Q2_K, 0.0075, 0.02 }, { GGML_TYPE_Q3_K, 0.004, 0.02 },
        { GGML_TYPE_IQ3_XXS, 0.005, 0.04 }, { GGML_TYPE_IQ3_S, 0.004, 0.04 }, { GGML_TYPE_IQ2_S, 0.0075, 0.04 },
        { -1, 0.002, 0.02 } };
    int i = 0;
    while (list[i].id >= 0 && list[i].id != (int) type) {
        i++;
    }
    return list[i];
}

// A program of that time uses all types. Those with both conversions must have every function, a
// round-trip error and a product within its limits, and the same bytes from both quantizers.
static void loops_over_all_types(void) {
    enum { N = 4096 };
    static float x[N], y[N], back[N];
    static uint8_t xb[4 * N], xr[4 * N], yb[4 * N];
    int quantized = 0;
    for (int i = 0; i < N; i++) {
        x[i] = (float) (0.1 + 2 * cos(i)), y[i] = (float) (0.1 + 2 * cos(i + 1.0));
    }
    for (int id = 0; id < GGML_TYPE_COUNT; id++) {
        const enum ggml_type type = (enum ggml_type) id;
        const ggml_type_traits_t t = ggml_internal_get_type_traits(type);
        CHECK(t.blck_size == 0 || t.type_name != NULL);
        if (t.from_float == NULL || t.to_float == NULL) {
            continue;
        }
        CHECK(!ggml_quantize_requires_imatrix(type));
        const ggml_type_traits_t partner = ggml_internal_get_type_traits(t.vec_dot_type);
        CHECK_MSG(t.from_float_reference != NULL && t.vec_dot != NULL && partner.from_float != NULL, "%s", t.type_name);
        const struct limits limit = limits_of(type);
        double error = 0, difference = 0, exact = 0;
        float dot = NAN;
        t.from_float(x, xb, N);
        t.from_float_reference(x, xr, N);
        t.to_float(xb, back, N);
        for (int i = 0; i < N; i++) {
            error += ((double) back[i] - x[i]) * ((double) back[i] - x[i]), exact += (double) x[i] * y[i];
        }
        t.to_float(xr, back, N);
        for (int i = 0; i < N; i++) {
            difference += ((double) back[i] - x[i]) * ((double) back[i] - x[i]);
        }
        CHECK_MSG(sqrt(error) / N <= limit.round_trip, "%s: round trip %g", t.type_name, sqrt(error) / N);
        CHECK_MSG(fabs(sqrt(difference) - sqrt(error)) / N < 1e-4, "%s: reference %g", t.type_name,
            sqrt(difference) / N);
        partner.from_float(y, yb, N);
        t.vec_dot(N, &dot, xb, yb);
        CHECK_MSG(fabs(dot - exact) / N <= limit.product, "%s: product %g", t.type_name, fabs(dot - exact) / N);
        quantized += t.is_quantized;
    }
    CHECK_INT(quantized, 17);
}

// The assumptions of kernels and quantizers about each format, written independently of their
// table.
static void facts_of_formats(void) {
    enum { WEIGHTS, IMPORTANCE, COARSE, ACTIVATIONS };
    typedef struct {
        int id, group, zero, top, use;
    } facts;
    static const facts expected_facts[] = { { 2, 32, 8, 15, WEIGHTS }, { 3, 32, 0, 15, WEIGHTS },
        { 6, 32, 16, 31, WEIGHTS }, { 7, 32, 0, 31, WEIGHTS }, { 8, 32, 128, 255, WEIGHTS },
        { 9, 32, 128, 255, ACTIVATIONS }, { 10, 16, 0, 3, WEIGHTS }, { 11, 16, 4, 7, WEIGHTS },
        { 12, 32, 0, 15, WEIGHTS }, { 13, 32, 0, 31, WEIGHTS }, { 14, 16, 32, 63, WEIGHTS },
        { 15, 256, 128, 255, ACTIVATIONS }, { 16, 32, 43, 86, IMPORTANCE }, { 17, 16, 43, 86, IMPORTANCE },
        { 18, 32, 62, 124, WEIGHTS }, { 19, 32, 9, 18, IMPORTANCE }, { 20, 32, 128, 241, WEIGHTS },
        { 21, 32, 15, 30, WEIGHTS }, { 22, 16, 43, 86, WEIGHTS }, { 23, 32, 128, 241, WEIGHTS },
        { 29, 16, 9, 18, COARSE }, { 34, 32, 1, 2, COARSE }, { 35, 32, 1, 3, COARSE }, { 39, 32, 12, 24, WEIGHTS },
        { 40, 16, 12, 24, WEIGHTS }, { 41, 32, 1, 2, COARSE }, { 42, 32, 1, 3, COARSE } };
    static const facts rows[] = {
#define GB_FORMAT(id, stem, name, elements, bytes, group, zero, top, use, ...) \
    { GGML_TYPE_##id, group, zero, top, use },
#include "tensor/quant/formats.def"
#undef GB_FORMAT
    };
    enum { N = sizeof(rows) / sizeof(rows[0]) };
    CHECK_INT(N, sizeof(expected_facts) / sizeof(expected_facts[0]));
    int weights = 0;
    for (size_t i = 0; i < sizeof(expected_facts) / sizeof(expected_facts[0]); i++) {
        const facts * const want = &expected_facts[i];
        const facts * row = rows;
        while (row < rows + N && row->id != want->id) {
            row++;
        }
        CHECK_MSG(row < rows + N && row->group == want->group && row->zero == want->zero && row->top == want->top &&
                      row->use == want->use,
            "%s: its row is not what is expected", ggml_type_name((enum ggml_type) want->id));
        weights += want->use != ACTIVATIONS;
    }
    // Formats with tests for single kernels: unpacked, packed into columns, interleaved.
    int unpacked = 0;
#define GB_FORMAT(id, stem, name, elements, bytes, group, zero, top, use, ...) unpacked += 0 GB_IF_UNPACKED_##use(+1);
#include "tensor/quant/formats.def"
#undef GB_FORMAT
    CHECK_INT(unpacked, 25);
    CHECK_INT(weights, 25);
}

// Every quantized format with functions must keep zero exact.
static void registered_formats(void) {
    for (int id = 0; id < GGML_TYPE_COUNT; id++) {
        const struct gb_quant_format * f = gb_quant_format_of((enum ggml_type) id);
        if (f == NULL || f->to_float == NULL || f->from_float == NULL) {
            continue;
        }
        static float zeros[256], back[256];
        uint8_t blocks[4096];
        memset(back, 0x7f, sizeof(back));
        f->from_float(zeros, blocks, 256);
        f->to_float(blocks, back, 256);
        for (int i = 0; i < 256; i++) {
            CHECK_MSG(back[i] == 0.0f, "%s: value %d", ggml_type_name((enum ggml_type) id), i);
        }
    }
}

static void op_names(void) {
    for (int op = 0; op < GGML_OP_COUNT; op++) {
        CHECK(ggml_op_name((enum ggml_op) op) != NULL && ggml_op_symbol((enum ggml_op) op) != NULL);
    }
    CHECK_STR(ggml_op_name((enum ggml_op) 0), "NONE");
    CHECK_STR(ggml_op_name((enum ggml_op) 23), "MUL_MAT");
    CHECK_STR(ggml_op_name((enum ggml_op) 45), "CONV_TRANSPOSE_1D");
    CHECK_STR(ggml_op_name((enum ggml_op) 61), "UNARY");
    CHECK_STR(ggml_op_name((enum ggml_op) 71), "CROSS_ENTROPY_LOSS_BACK");
    CHECK_STR(ggml_op_name((enum ggml_op) 72), "CUSTOM"); // after those of February 2024, like the next two
    CHECK_STR(ggml_op_name((enum ggml_op) 73), "COMPARE");
    CHECK_STR(ggml_op_name((enum ggml_op) 74), "WHERE");
    CHECK_STR(ggml_op_symbol((enum ggml_op) 4), "view(x,nb,offset)+=y->x");
    CHECK_STR(ggml_op_symbol((enum ggml_op) 9), "\xe2\x88\x9ax");
    CHECK_STR(ggml_op_symbol((enum ggml_op) 28), "x-\\>y");
    CHECK_STR(ggml_op_symbol((enum ggml_op) 24), "X[i]*Y");
    CHECK_STR(ggml_op_symbol((enum ggml_op) 69), "custom(x,y,z)");
    CHECK(ggml_op_name((enum ggml_op) - 1) == NULL && ggml_op_symbol(GGML_OP_COUNT) == NULL);
    CHECK_STR(ggml_unary_op_name((enum ggml_unary_op) 8), "GELU_QUICK");
    CHECK_STR(ggml_unary_op_name((enum ggml_unary_op) 0), "ABS");
    CHECK_STR(ggml_unary_op_name((enum ggml_unary_op) 11), "HARDSIGMOID");
    CHECK_STR(ggml_unary_op_name((enum ggml_unary_op) 12), "GELU_ERF");
    CHECK_STR(ggml_unary_op_name((enum ggml_unary_op) 13), "EXP");
    CHECK_STR(ggml_unary_op_name((enum ggml_unary_op) 14), "SIGMOID");
    CHECK_STR(ggml_unary_op_name((enum ggml_unary_op) 15), "SIN");
    CHECK_STR(ggml_unary_op_name((enum ggml_unary_op) 16), "COS");
    CHECK_STR(ggml_unary_op_name((enum ggml_unary_op) 17), "SOFTPLUS");
    CHECK(ggml_unary_op_name(GGML_UNARY_OP_COUNT) == NULL);

    int views = 0, inplace = 0;
    for (int op = -1; op <= GGML_OP_COUNT; op++) {
        views += !gb_op_computes((enum ggml_op) op);
        inplace += gb_op_can_inplace((enum ggml_op) op);
    }
    CHECK_INT(views, 5);    // NONE, RESHAPE, VIEW, PERMUTE, TRANSPOSE
    CHECK_INT(inplace, 15);
    CHECK(!gb_op_computes(GGML_OP_TRANSPOSE) && gb_op_computes(GGML_OP_CPY));
    CHECK(gb_op_can_inplace(GGML_OP_SOFT_MAX) && gb_op_can_inplace(GGML_OP_UNARY) && !gb_op_can_inplace(GGML_OP_NORM));
}

TEST_MAIN(TEST(sizes_and_names), TEST(row_sizes), TEST(file_types), TEST(half_rows), TEST(traits_of_plain_types),
    TEST(traits_of_quantized_types), TEST(loops_over_all_types), TEST(facts_of_formats), TEST(registered_formats),
    TEST(op_names))
