// Quantizing: errors within the precision of each format, importance weights, exact values, dot
// products, hostile values, arguments. Python tests compare the bits with the gguf package.
#include "test.h"

#include "tensor/quant/quant.h"
#include "tensor/tensor.h"

enum { N = 32 * 40 };

static void dequantize(enum ggml_type type, const void * blocks, float * y) { gb_to_float_of(type)(blocks, y, N); }

static const struct {
    enum ggml_type type;
    size_t (*quantize)(const float * src, void * dst, int n, int k, int64_t * hist);
    double step; // largest rounding error relative to the block's range (max - min) or to twice its largest magnitude
} formats[] = {
    { GGML_TYPE_Q4_0, ggml_quantize_q4_0, 1.0 / 16 },
    { GGML_TYPE_Q4_1, ggml_quantize_q4_1, 0.5 / 15 },
    { GGML_TYPE_Q5_0, ggml_quantize_q5_0, 1.0 / 32 },
    { GGML_TYPE_Q5_1, ggml_quantize_q5_1, 0.5 / 31 },
    { GGML_TYPE_Q8_0, ggml_quantize_q8_0, 0.25 / 127 },
};
enum { N_FORMATS = sizeof(formats) / sizeof(formats[0]) };

static void errors_are_bounded(void) {
    static float x[N], y[N];
    static uint8_t blocks[N * 2];
    for (int f = 0; f < N_FORMATS; f++) {
        for (int i = 0; i < N; i++) {
            x[i] = test_random_float(-3, 5);
        }
        int64_t hist[16] = { 0 };
        const size_t bytes = formats[f].quantize(x, blocks, N, N / 4, hist);
        CHECK_INT(bytes, ggml_row_size(formats[f].type, N));
        dequantize(formats[f].type, blocks, y);
        int64_t counted = 0;
        for (int i = 0; i < 16; i++) {
            counted += hist[i];
        }
        CHECK_INT(counted, N);
        for (int b = 0; b < N; b += 32) {
            float low = x[b], high = x[b], largest = 0;
            for (int i = b; i < b + 32; i++) {
                low = fminf(low, x[i]), high = fmaxf(high, x[i]), largest = fmaxf(largest, fabsf(x[i]));
            }
            const bool affine = formats[f].type == GGML_TYPE_Q4_1 || formats[f].type == GGML_TYPE_Q5_1;
            const double range = affine ? high - low : 2 * largest;
            for (int i = b; i < b + 32; i++) {
                CHECK_MSG(fabs(y[i] - x[i]) <= range * formats[f].step * 1.01 + 0.003 * range,
                    "%s: %g became %g (range %g)", ggml_type_name(formats[f].type), x[i], y[i], range);
            }
        }
    }
}

static double weighted_error(const float * x, const float * y, const float * w) {
    double e = 0;
    for (int i = 0; i < N; i++) {
        e += (double) w[i % 64] * (x[i] - y[i]) * (x[i] - y[i]);
    }
    return e;
}

static void importance_lowers_the_weighted_error(void) {
    static float x[N], y[N], w[64];
    static uint8_t blocks[N * 2];
    for (int i = 0; i < N; i++) {
        x[i] = test_random_float(-1, 1) * test_random_float(0, 2);
    }
    for (int i = 0; i < 64; i++) {
        w[i] = i % 7 == 0 ? 10.0f : 0.1f;
    }
    for (int f = 0; f < N_FORMATS - 1; f++) { // all but Q8_0, which ignores weights
        CHECK(ggml_quantize_chunk(formats[f].type, x, blocks, 0, N / 64, 64, NULL, NULL) > 0);
        dequantize(formats[f].type, blocks, y);
        const double plain = weighted_error(x, y, w);
        CHECK(ggml_quantize_chunk(formats[f].type, x, blocks, 0, N / 64, 64, NULL, w) > 0);
        dequantize(formats[f].type, blocks, y);
        const double weighted = weighted_error(x, y, w);
        CHECK_MSG(weighted < plain, "%s: %g with weights, %g without", ggml_type_name(formats[f].type), weighted,
            plain);
    }
}

// Fewer bits give larger errors. Every format keeps zero, constant and single-valued blocks.
static void super_blocks(void) {
    static const enum ggml_type types[] = { GGML_TYPE_Q6_K, GGML_TYPE_Q5_K, GGML_TYPE_Q4_K, GGML_TYPE_Q3_K,
        GGML_TYPE_Q2_K };
    static const double limits[] = { 0.02, 0.04, 0.08, 0.17, 0.35 }; // rms error over rms value, normal-like input
    static float x[N], y[N], w[256];
    static uint8_t blocks[N * 2];
    for (int i = 0; i < N; i++) {
        x[i] = test_random_float(-1, 1) + test_random_float(-1, 1) + test_random_float(-1, 1);
    }
    for (int i = 0; i < 256; i++) {
        w[i] = i % 5 == 0 ? 20.0f : 0.05f;
    }
    double previous = 0;
    for (int t = 0; t < 5; t++) {
        double error[2], weighted[2], power = 0;
        for (int with = 0; with < 2; with++) {
            CHECK_INT(ggml_quantize_chunk(types[t], x, blocks, 0, N / 256, 256, NULL, with ? w : NULL),
                ggml_row_size(types[t], N));
            dequantize(types[t], blocks, y);
            error[with] = weighted[with] = power = 0;
            for (int i = 0; i < N; i++) {
                const double d = (double) y[i] - x[i];
                error[with] += d * d, power += (double) x[i] * x[i], weighted[with] += w[i % 256] * d * d;
            }
        }
        const double rms = sqrt(error[0] / power);
        CHECK_MSG(rms < limits[t] && rms > previous, "%s: relative error %g", ggml_type_name(types[t]), rms);
        CHECK_MSG(weighted[1] < weighted[0], "%s: weighted error %g with weights, %g without", ggml_type_name(types[t]),
            weighted[1], weighted[0]);
        previous = rms;
        for (int i = 0; i < N; i++) {
            y[i] = 0;
        }
        ggml_quantize_chunk(types[t], y, blocks, 0, N / 256, 256, NULL, NULL);
        dequantize(types[t], blocks, y);
        for (int i = 0; i < N; i++) {
            CHECK(y[i] == 0);
        }
        for (int i = 0; i < N; i++) {
            x[i] = i % 9 == 0 ? NAN : i % 7 == 0 ? INFINITY : x[i];
        }
        CHECK(ggml_quantize_chunk(types[t], x, blocks, 0, N / 256, 256, NULL, w) == 0);
        CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "row 0, column 0: NaN");
        CHECK(ggml_quantize_rows(types[t], x, blocks, N / 256, 256, w, GGML_ON_INVALID_CLIP, NULL) > 0);
        for (int i = 0; i < N; i++) {
            x[i] = test_random_float(-1, 1) + test_random_float(-1, 1) + test_random_float(-1, 1);
        }
    }
}

// `continue` goes to the next format.
#define FOR_FORMATS(type, f)                                      \
    for (enum ggml_type type = 0; type < GGML_TYPE_COUNT; type++) \
        for (const struct gb_quant_format * f = gb_quant_format_of(type); f != NULL; f = NULL)

static bool needs_importance(enum ggml_type type) { return gb_quant_format_of(type)->from_float == NULL; }

static void normal_like(float * x, int n) {
    for (int i = 0; i < n; i++) {
        x[i] = test_random_float(-1, 1) + test_random_float(-1, 1) + test_random_float(-1, 1);
    }
}

// The root mean square of the error, relative to that of the values, after quantizing with weights
// (NULL: none).
static double round_trip(enum ggml_type type, const float * x, const float * w, float * y, double * weighted) {
    static uint8_t blocks[N * 2];
    double error = 0, power = 0;
    CHECK_INT(ggml_quantize_chunk(type, x, blocks, 0, N / 256, 256, NULL, w), ggml_row_size(type, N));
    dequantize(type, blocks, y);
    *weighted = 0;
    for (int i = 0; i < N; i++) {
        const double d = (double) y[i] - x[i];
        error += d * d, power += (double) x[i] * x[i], *weighted += (w ? w[i % 256] : 1) * d * d;
    }
    return sqrt(error / power);
}

// Errors on normal-like values follow from the bits of an element. Weights reduce the weighted
// error. Dequantized values are quantized to nearly the same values.
static void codebooks(void) {
    static const struct {
        enum ggml_type type;
        double limit;
    } list[] = { { GGML_TYPE_IQ4_NL, 0.074 }, { GGML_TYPE_IQ4_XS, 0.075 }, { GGML_TYPE_IQ3_S, 0.133 },
        { GGML_TYPE_IQ3_XXS, 0.187 }, { GGML_TYPE_IQ2_S, 0.241 }, { GGML_TYPE_IQ2_XS, 0.293 },
        { GGML_TYPE_IQ2_XXS, 0.341 }, { GGML_TYPE_IQ1_M, 0.419 }, { GGML_TYPE_IQ1_S, 0.445 } };
    static float x[N], y[N], z[N], ones[256], w[256];
    for (int i = 0; i < 256; i++) {
        ones[i] = 1, w[i] = i % 5 == 0 ? 20.0f : 0.05f;
    }
    double previous = 0;
    for (size_t t = 0; t < sizeof(list) / sizeof(list[0]); t++) {
        double with, without, again, unused;
        normal_like(x, N);
        round_trip(list[t].type, x, w, y, &with);
        const double rms = round_trip(list[t].type, x, ones, y, &unused);
        without = 0;
        for (int i = 0; i < N; i++) {
            without += (double) w[i % 256] * (y[i] - x[i]) * (y[i] - x[i]);
        }
        CHECK_MSG(rms < list[t].limit && rms > 0.95 * previous, "%s: relative error %g", ggml_type_name(list[t].type),
            rms);
        CHECK_MSG(with < 0.8 * without, "%s: weighted error %g with weights, %g without", ggml_type_name(list[t].type),
            with, without);
        again = round_trip(list[t].type, y, ones, z, &unused);
        CHECK_MSG(again < 0.02 * rms, "%s: relative error %g of %g when repeated", ggml_type_name(list[t].type), again,
            rms);
        previous = rms;
    }
}

// Quantizes the values of random blocks. The search finds their rows, signs and scales, or close
// ones. IQ1 finds fewer, because it never takes a negative d, which half of these blocks have.
static void random_blocks(void) {
    static const struct {
        enum ggml_type type;
        double limit; // limits of the mean relative error
    } list[] = { { GGML_TYPE_IQ4_XS, 0.02 }, { GGML_TYPE_IQ3_S, 0.03 }, { GGML_TYPE_IQ3_XXS, 0.03 },
        { GGML_TYPE_IQ2_S, 0.03 }, { GGML_TYPE_IQ2_XS, 0.03 }, { GGML_TYPE_IQ2_XXS, 0.03 }, { GGML_TYPE_IQ1_M, 0.25 },
        { GGML_TYPE_IQ1_S, 0.2 } };
    static float ones[256];
    for (int i = 0; i < 256; i++) {
        ones[i] = 1;
    }
    for (size_t t = 0; t < sizeof(list) / sizeof(list[0]); t++) {
        const struct gb_quant_format * f = gb_quant_format_of(list[t].type);
        double total = 0;
        for (int pass = 0; pass < 40; pass++) {
            uint8_t block[256];
            float x[256], y[256], largest;
            do { // a magnitude that f16 scales hold well
                for (int i = 0; i < 256; i++) {
                    block[i] = (uint8_t) test_random();
                }
                f->to_float(block, x, 256);
                largest = 0;
                for (int i = 0; i < 256; i++) {
                    largest = fabsf(x[i]) > largest || x[i] != x[i] ? fabsf(x[i]) : largest;
                }
            } while (!(largest > 0.01f && largest < 1e4f));
            CHECK(ggml_quantize_chunk(list[t].type, x, block, 0, 1, 256, NULL, ones) > 0);
            f->to_float(block, y, 256);
            double error = 0, power = 0;
            for (int i = 0; i < 256; i++) {
                error += ((double) y[i] - x[i]) * ((double) y[i] - x[i]), power += (double) x[i] * x[i];
            }
            total += sqrt(error / power);
        }
        CHECK_MSG(total / 40 < list[t].limit, "%s: mean relative error %g", ggml_type_name(list[t].type), total / 40);
    }
}

// -1, 0, 1 times a power of two is exact in the ternary formats, MXFP4 holds 0, 0.5, 1, 1.5, 2, 3, 4, 6.
static void exact_values(void) {
    static const float numbers[] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };
    static float x[N], y[N];
    double unused;
    for (int i = 0; i < N; i++) {
        x[i] = 0.25f * (float) test_random_int(-1, 1);
    }
    CHECK(round_trip(GGML_TYPE_TQ1_0, x, NULL, y, &unused) == 0);
    CHECK(round_trip(GGML_TYPE_TQ2_0, x, NULL, y, &unused) == 0);
    for (int i = 0; i < N; i++) {
        x[i] = 8 * (i % 32 == 0 ? 4 : numbers[test_random() % 8]) * (test_random() % 2 ? 1 : -1);
    }
    CHECK(round_trip(GGML_TYPE_MXFP4, x, NULL, y, &unused) == 0);
    for (int i = 0; i < N; i++) { // scales with three bits of mantissa, exact also for small ones
        x[i] = ldexpf((float) (8 + i / 16 % 8), i / 16 % 13 - 9) * (i % 16 == 0 ? 6 : numbers[test_random() % 8]) *
               (test_random() % 2 ? 1 : -1);
    }
    CHECK(round_trip(GGML_TYPE_NVFP4, x, NULL, y, &unused) == 0);
}

// Each format's dot product against that of the dequantized operands in double precision.
static void dot_products(void) {
    static float x[N], y[N], xv[N], yv[N], ones[256];
    static uint8_t xb[N * 2], yb[N * 2];
    for (int i = 0; i < 256; i++) {
        ones[i] = 1;
    }
    for (int id = 0; id < GGML_TYPE_COUNT; id++) {
        const enum ggml_type type = (enum ggml_type) id;
        const struct gb_quant_format * f = gb_quant_format_of(type);
        if (f == NULL || f->vec_dot == NULL) {
            CHECK(f == NULL || type == GGML_TYPE_Q8_1 || type == GGML_TYPE_Q8_K); // only the other operand
            continue;
        }
        normal_like(x, N);
        normal_like(y, N);
        CHECK(ggml_quantize_chunk(type, x, xb, 0, N / 256, 256, NULL, ones) > 0);
        CHECK(ggml_quantize_chunk(f->vec_dot_type, y, yb, 0, N / 256, 256, NULL, NULL) > 0);
        dequantize(type, xb, xv);
        dequantize(f->vec_dot_type, yb, yv);
        double sum = 0, size = 0;
        float got = NAN;
        for (int i = 0; i < N; i++) {
            sum += (double) xv[i] * yv[i];
            size += fabs((double) xv[i] * yv[i]);
        }
        ggml_internal_get_type_traits(type).vec_dot(N, &got, xb, yb);
        CHECK_MSG(fabs(got - sum) <= 1e-6 * size, "%s: %.9g, expected %.9g", ggml_type_name(type), got, sum);
        got = 1;
        f->vec_dot(0, &got, xb, yb);
        CHECK(got == 0);
    }
}

// Every format, rows of any numbers: the result is defined, zeros stay zeros, and values out of
// range are clipped or NaN.
static void hostile_rows(void) {
    static const float specials[] = { NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 1e-45f, -1e-40f, 65520, 1e8f, 0 };
    static float x[N], y[N], ones[256], strange[256];
    static uint8_t blocks[N * 2];
    for (int i = 0; i < 256; i++) {
        ones[i] = 1, strange[i] = specials[i % 10];
    }
    FOR_FORMATS(type, f) {
        for (int s = 0; s < 10; s++) {
            normal_like(x, N);
            for (int i = 0; i < N; i++) {
                x[i] = i < 512 || i % 9 == 0 ? specials[s] : i >= N - 256 ? specials[test_random() % 10] : x[i];
            }
            for (int clip = 0; clip < 2; clip++) {
                const enum ggml_on_invalid way = clip ? GGML_ON_INVALID_CLIP : GGML_ON_INVALID_NAN;
                int64_t invalid = 0;
                CHECK(ggml_quantize_rows(type, x, blocks, N / 256, 256, ones, way, &invalid) > 0);
                CHECK_INT(invalid, -1);
                dequantize(type, blocks, y);
                for (int i = 0; i < N; i++) {
                    CHECK_MSG(isfinite(y[i]) || (!clip && isnan(y[i])), "%s: %g became %g", ggml_type_name(type), x[i],
                        y[i]);
                    CHECK_MSG(i >= 512 || specials[s] != 0 || y[i] == 0, "%s: 0 became %g", ggml_type_name(type), y[i]);
                    CHECK_MSG(isfinite(x[i]) || (clip || f->nan == GB_NAN_NONE) == !isnan(y[i]), "%s: %g became %g",
                        ggml_type_name(type), x[i], y[i]);
                }
                CHECK(ggml_quantize_rows(type, x, blocks, N / 256, 256, strange, way, NULL) > 0);
                if (!needs_importance(type)) {
                    CHECK(ggml_quantize_rows(type, x, blocks, N / 256, 256, NULL, way, NULL) > 0);
                    uint8_t row[N * 2];
                    f->from_float(x, row, N);
                    CHECK(clip || memcmp(row, blocks, ggml_row_size(type, N)) == 0);
                }
            }
        }
        CHECK(needs_importance(type) == ggml_quantize_requires_imatrix(type));
        if (needs_importance(type)) {
            CHECK_INT(ggml_quantize_chunk(type, x, blocks, 0, 1, 256, NULL, NULL), 0);
            CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "needs an importance matrix");
        }
    }
}

// Invalid numbers at random positions: an error names the first one, in any chunk, and valid rows
// give no error.
static void invalid_numbers_are_errors(void) {
    enum { COLUMNS = 1280, ROWS = 8 };
    static const float specials[] = { NAN, -NAN, INFINITY, -INFINITY, 3.4e38f, -1e30f, 1e10f };
    static float x[COLUMNS * ROWS], ones[COLUMNS];
    static uint8_t blocks[COLUMNS * ROWS * 2];
    for (int i = 0; i < COLUMNS; i++) {
        ones[i] = 1;
    }
    FOR_FORMATS(type, f) {
        for (int pass = 0; pass < 14; pass++) {
            const float special = specials[pass % 7];
            if (isfinite(special) && fabsf(special) / 4 <= f->limit) {
                continue;
            }
            normal_like(x, COLUMNS * ROWS);
            int first = COLUMNS * ROWS;
            for (int k = 0; k < 3; k++) { // in separate blocks, because the error names the largest one
                const int at = test_random_int(0, COLUMNS * ROWS / 256 - 1) * 256 + test_random_int(0, f->elements - 1);
                for (int i = at / 256 * 256; i < at / 256 * 256 + 256; i++) {
                    x[i] = isfinite(x[i]) && fabsf(x[i]) < 100 ? x[i] : 0;
                }
                x[at] = special;
            }
            for (int i = COLUMNS * ROWS - 1; i >= 0; i--) {
                first = isfinite(x[i]) && fabsf(x[i]) < 100 ? first : i;
            }
            char place[64];
            int64_t invalid = 0, hist[16] = { 0 };
            snprintf(place, sizeof(place), "row %d, column %d: ", first / COLUMNS, first % COLUMNS);
            const float * w = needs_importance(type) || pass % 2 ? ones : NULL;
            CHECK_INT(ggml_quantize_chunk(type, x, blocks, 0, ROWS, COLUMNS, hist, w), 0);
            CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, place);
            for (int i = 0; i < 16; i++) {
                CHECK_INT(hist[i], 0);
            }
            CHECK_INT(ggml_quantize_rows(type, x, blocks, ROWS, COLUMNS, w, GGML_ON_INVALID_ERROR, &invalid), 0);
            CHECK_INT(invalid, first);
            CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, isfinite(special) ? "too large for" : "cannot be stored as");
        }
    }
    normal_like(x, 64);
    x[40] = INFINITY;
    CHECK_INT(ggml_quantize_q4_0(x, blocks, 64, 32, NULL), 0);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "ggml_quantize_q4_0: row 1, column 8: inf cannot be stored as q4_0");
    CHECK_INT(ggml_quantize_chunk(GGML_TYPE_Q8_0, x, blocks, 32, 1, 32, NULL, NULL), 0);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "row 1, column 8: inf");
    CHECK_INT(ggml_quantize_rows(GGML_TYPE_Q8_0, x, blocks, 1, 32, NULL, (enum ggml_on_invalid) 3, NULL), 0);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "'on_invalid': 3");
    CHECK_INT(ggml_quantize_rows(GGML_TYPE_Q8_0, x, blocks, INT64_MAX / 2, 32, NULL, GGML_ON_INVALID_ERROR, NULL), 0);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "overflow");
}

// Blocks of any numbers up to the limit, with weights up to half of it: all results are finite and
// of the right magnitude.
static void limits_hold(void) {
    static float x[N], y[N], w[256];
    static uint8_t blocks[N * 2];
    FOR_FORMATS(type, f) {
        for (int pass = 0; pass < 40; pass++) {
            const bool weighted = needs_importance(type) || pass % 2;
            const float limit = (weighted && !f->saturates ? f->limit / 2 : f->limit) * (pass < 20 ? 1 : 0.999f);
            for (int i = 0; i < N; i++) {
                const float u = test_random_float(-1, 1);
                x[i] = limit * (pass / 2 % 5 == 0      ? u
                                   : pass / 2 % 5 == 1 ? (u < 0 ? -1.0f : 1.0f)
                                   : pass / 2 % 5 == 2 ? fabsf(u)
                                   : pass / 2 % 5 == 3 ? -fabsf(u)
                                   : i % 32 == 5       ? (u < 0 ? -1.0f : 1.0f)
                                                       : u * 0.1f);
            }
            for (int i = 0; i < 256; i++) {
                w[i] = test_random_float(0, 1) * (i % 7 == 0 ? 100 : 1);
            }
            CHECK_MSG(ggml_quantize_chunk(type, x, blocks, 0, N / 256, 256, NULL, weighted ? w : NULL) > 0, "%s: %s",
                ggml_type_name(type), ggml_last_error());
            dequantize(type, blocks, y);
            for (int i = 0; i < N; i++) {
                CHECK_MSG(fabsf(y[i]) <= 3e38f && (f->limit > 3e38f || fabsf(y[i]) < 4 * f->limit), "%s: %g became %g",
                    ggml_type_name(type), x[i], y[i]);
            }
        }
    }
}

// Formats of 16 bits hold NaN and infinities. A value that becomes infinite is an error.
static void halves(void) {
    static float x[5000];
    uint16_t y[5000];
    for (int i = 0; i < 5000; i++) {
        x[i] = (float) i;
    }
    x[7] = INFINITY, x[8] = NAN, x[9] = 65519;
    CHECK_INT(ggml_quantize_chunk(GGML_TYPE_F16, x, y, 0, 5, 1000, NULL, NULL), 10000);
    CHECK(y[7] == 0x7c00 && y[8] == 0x7e00 && y[9] == 0x7bff && y[4999] == ggml_fp32_to_fp16(4999));
    x[4500] = -65520;
    CHECK_INT(ggml_quantize_chunk(GGML_TYPE_F16, x, y, 0, 5, 1000, NULL, NULL), 0);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "row 4, column 500: -65520 is too large for f16");
    CHECK_INT(ggml_quantize_rows(GGML_TYPE_F16, x, y, 5, 1000, NULL, GGML_ON_INVALID_CLIP, NULL), 10000);
    CHECK(y[4500] == 0xfbff && y[7] == 0x7c00);
    CHECK_INT(ggml_quantize_rows(GGML_TYPE_F16, x, y, 5, 1000, NULL, GGML_ON_INVALID_NAN, NULL), 10000);
    CHECK(y[4500] == 0xfc00);
    CHECK_INT(ggml_quantize_chunk(GGML_TYPE_BF16, x, y, 0, 5, 1000, NULL, NULL), 10000);
    x[4500] = 3.4e38f;
    int64_t invalid;
    CHECK_INT(ggml_quantize_rows(GGML_TYPE_BF16, x, y, 5, 1000, NULL, GGML_ON_INVALID_ERROR, &invalid), 0);
    CHECK_INT(invalid, 4500);
    CHECK_INT(ggml_quantize_rows(GGML_TYPE_BF16, x, y, 5, 1000, NULL, GGML_ON_INVALID_CLIP, NULL), 10000);
    CHECK_INT(y[4500], 0x7f7f);
    CHECK_INT(ggml_quantize_chunk(GGML_TYPE_F32, x, x, 0, 1, 5000, NULL, NULL), 20000);
}

// Values from far below the smallest f16 scale to the largest: no round trip is worse than zeros,
// and no type loses values that it can hold.
static void scales_of_all_sizes(void) {
    static float x[N], base[N], y[N], ones[256];
    static uint8_t blocks[N * 2];
    for (int i = 0; i < 256; i++) {
        ones[i] = 1;
    }
    FOR_FORMATS(type, f) {
        for (int e = -40; e <= 40; e += f->limit > 1e30f || e < -10 ? 3 : 5) {
            const int shape = (e + 60) % 4;
            const float scale = powf(10, (float) e / 4);
            normal_like(base, N);
            for (int i = 0; i < N; i++) {
                const float b = base[i];
                x[i] = scale * (shape == 0 ? b : shape == 1 ? b * b * b : shape == 2 ? fabsf(b) : -fabsf(b) - 0.3f);
            }
            if (ggml_quantize_chunk(type, x, blocks, 0, N / 256, 256, NULL, needs_importance(type) ? ones : NULL) ==
                0) {
                CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "too large");
                CHECK(scale * 30 > f->limit);
                continue;
            }
            dequantize(type, blocks, y);
            double error = 0, power = 0;
            for (int i = 0; i < N; i++) {
                error += ((double) y[i] - x[i]) * ((double) y[i] - x[i]), power += (double) x[i] * x[i];
            }
            CHECK_MSG(error <= power * (1 + 1e-6), "%s at %g: relative error %g", ggml_type_name(type), scale,
                sqrt(error / power));
        }
    }
    static const struct {
        enum ggml_type type;
        float scale;
        double limit;
    } small[] = { { GGML_TYPE_Q4_0, 1e-6f, 0.11 }, { GGML_TYPE_Q4_1, 1e-6f, 0.11 }, { GGML_TYPE_Q5_0, 1e-6f, 0.07 },
        { GGML_TYPE_Q5_1, 1e-6f, 0.07 }, { GGML_TYPE_Q8_0, 1e-6f, 0.03 }, { GGML_TYPE_Q2_K, 1e-6f, 0.33 },
        { GGML_TYPE_Q3_K, 1e-6f, 0.18 }, { GGML_TYPE_Q4_K, 1e-5f, 0.09 }, { GGML_TYPE_Q4_K, 1e-6f, 0.11 },
        { GGML_TYPE_Q5_K, 1e-5f, 0.05 }, { GGML_TYPE_Q5_K, 1e-6f, 0.07 }, { GGML_TYPE_Q6_K, 1e-4f, 0.025 },
        { GGML_TYPE_Q6_K, 1e-5f, 0.025 }, { GGML_TYPE_Q6_K, 1e-6f, 0.04 }, { GGML_TYPE_IQ4_NL, 1e-5f, 0.11 },
        { GGML_TYPE_IQ2_S, 1e-6f, 0.3 } };
    for (size_t t = 0; t < sizeof(small) / sizeof(small[0]); t++) {
        double unused;
        normal_like(x, N);
        for (int i = 0; i < N; i++) {
            x[i] *= small[t].scale;
        }
        const double rms = round_trip(small[t].type, x, NULL, y, &unused);
        CHECK_MSG(rms < small[t].limit, "%s at %g: relative error %g", ggml_type_name(small[t].type), small[t].scale,
            rms);
    }
}

static void chunks_land_in_their_place(void) {
    static float x[N];
    static uint8_t whole[N * 2], parts[N * 2];
    for (int i = 0; i < N; i++) {
        x[i] = test_random_float(-1, 1);
    }
    const enum ggml_type types[] = { GGML_TYPE_Q4_0, GGML_TYPE_Q8_0, GGML_TYPE_F16, GGML_TYPE_BF16 };
    for (int t = 0; t < 4; t++) {
        const size_t bytes = ggml_quantize_chunk(types[t], x, whole, 0, 10, N / 10, NULL, NULL);
        CHECK_INT(bytes, ggml_row_size(types[t], N));
        for (int r = 0; r < 10; r++) {
            CHECK_INT(ggml_quantize_chunk(types[t], x, parts, r * (N / 10), 1, N / 10, NULL, NULL), bytes / 10);
        }
        CHECK(memcmp(whole, parts, bytes) == 0);
    }
}

static void arguments(void) {
    float x[64] = { 0 };
    uint8_t y[256];
    CHECK_INT(ggml_quantize_q4_0(NULL, y, 32, 32, NULL), 0);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "'src' is NULL");
    CHECK_INT(ggml_quantize_q4_0(x, y, 33, 33, NULL), 0);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "blocks of 32");
    CHECK_INT(ggml_quantize_q8_0(x, y, 64, 0, NULL), 0);
    CHECK_INT(ggml_quantize_chunk((enum ggml_type) 4, x, y, 0, 1, 32, NULL, NULL), 0);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "4 is not a type");
    CHECK_INT(ggml_quantize_chunk(GGML_TYPE_Q4_0, x, y, 16, 1, 32, NULL, NULL), 0);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "start 16");
    static float row[512];
    static uint8_t one[512], other[512];
    normal_like(row, 512);
    static const struct {
        enum ggml_type type;
        size_t (*quantize)(const float * src, void * dst, int n, int k, int64_t * hist);
    } k_formats[] = { { GGML_TYPE_Q2_K, ggml_quantize_q2_K }, { GGML_TYPE_Q3_K, ggml_quantize_q3_K },
        { GGML_TYPE_Q4_K, ggml_quantize_q4_K }, { GGML_TYPE_Q5_K, ggml_quantize_q5_K },
        { GGML_TYPE_Q6_K, ggml_quantize_q6_K } };
    for (int f = 0; f < 5; f++) {
        int64_t hist[16] = { 0 };
        CHECK_INT(k_formats[f].quantize(row, one, 512, 256, hist), ggml_row_size(k_formats[f].type, 512));
        CHECK_INT(ggml_quantize_chunk(k_formats[f].type, row, other, 0, 2, 256, NULL, NULL),
            ggml_row_size(k_formats[f].type, 512));
        CHECK(memcmp(one, other, ggml_row_size(k_formats[f].type, 512)) == 0);
        for (int i = 0; i < 16; i++) {
            CHECK_INT(hist[i], 0);
        }
        CHECK_INT(k_formats[f].quantize(row, one, 512, 128, hist), 0);
        CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "blocks of 256");
    }
    CHECK_INT(ggml_quantize_chunk(GGML_TYPE_I32, x, y, 0, 1, 32, NULL, NULL), 0);
    CHECK_ERROR(GGML_STATUS_UNSUPPORTED, "i32");
    CHECK(ggml_quantize_requires_imatrix(GGML_TYPE_IQ2_XS) && !ggml_quantize_requires_imatrix(GGML_TYPE_Q4_K));
}

static uint64_t digest(const uint8_t * p, size_t n) {
    uint64_t h = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < n; i++) {
        h = (h ^ p[i]) * UINT64_C(1099511628211);
    }
    return h;
}

static void mixed_rows(float * x, int n, uint64_t * state) {
    static const float specials[] = { NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 1e-45f, -1e-40f, 65520, 1e8f, 0 };
    for (int i = 0; i < n; i++) {
        *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
        const uint32_t r = (uint32_t) (*state >> 32);
        const float f = (float) ((int32_t) r >> 8) * 0x1p-23f, g = f * f * f + 0.1f * f;
        switch (i / 256 % 8) {
            case 0: x[i] = f; break;
            case 1: x[i] = r % 3 == 0 ? f : 0; break;
            case 2: x[i] = (float) (int) (f * 8) / 4; break;
            case 3: x[i] = i % 16 < 8 ? f * 1e-3f : f; break;
            case 4: x[i] = r % 40 == 0 ? specials[r / 64 % 10] : f; break;
            case 5: memcpy(&x[i], &r, sizeof(r)); break;
            case 6: x[i] = f < 0 ? -f : f; break;
            default: x[i] = g; break;
        }
    }
}

// A faster search must not change the quantized blocks of any format, without and with weights. Rows
// have values of similar size, small ones among large, few levels, zeros, NaN, any bits.
static void bytes_stay(void) {
    static const struct {
        enum ggml_type type;
        uint64_t plain, weighted;
    } list[] = {
        { GGML_TYPE_Q4_0, UINT64_C(0xb544408ad9ea220e), UINT64_C(0xad284e8751678cc9) },
        { GGML_TYPE_Q4_1, UINT64_C(0xb37b56b1eef68ddd), UINT64_C(0x5c64b998e1363bff) },
        { GGML_TYPE_Q5_0, UINT64_C(0xcf744ccff7828080), UINT64_C(0x587082b5daa4b13d) },
        { GGML_TYPE_Q5_1, UINT64_C(0xfdd9115cf858cdcd), UINT64_C(0x8644af3fac74eb32) },
        { GGML_TYPE_Q8_0, UINT64_C(0x3b7bbffc798e71b3), UINT64_C(0x41a35017787cd689) },
        { GGML_TYPE_Q2_K, UINT64_C(0x8f43cbfb5f959771), UINT64_C(0x5ae844568c0b7592) },
        { GGML_TYPE_Q3_K, UINT64_C(0x2af853e91ec6ee1d), UINT64_C(0x113dc868a6e3976b) },
        { GGML_TYPE_Q4_K, UINT64_C(0x42bdc2cc4488af54), UINT64_C(0x8d46d79365487ff3) },
        { GGML_TYPE_Q5_K, UINT64_C(0x092bc8fdd0bf6575), UINT64_C(0xc3190b2d9018b36b) },
        { GGML_TYPE_Q6_K, UINT64_C(0xf2d324c27d3c0110), UINT64_C(0x368432c58175bc8f) },
        { GGML_TYPE_Q8_K, UINT64_C(0x141624cc16719703), UINT64_C(0x92f76a29f9f0d27e) },
        { GGML_TYPE_IQ4_NL, UINT64_C(0x04a74a8c4ac02e11), UINT64_C(0x84638f05cedb1dbc) },
        { GGML_TYPE_IQ4_XS, UINT64_C(0x31eaf507b6a4a6fc), UINT64_C(0xe023db04aaa4a84c) },
        { GGML_TYPE_IQ3_S, UINT64_C(0x1ee3514a17b7d3d6), UINT64_C(0xf0274487c40d0f82) },
        { GGML_TYPE_IQ3_XXS, UINT64_C(0xe1d4d0cfc6b8649f), UINT64_C(0x3be794b417dc9e1b) },
        { GGML_TYPE_IQ2_S, UINT64_C(0x2040f7a6e4a77935), UINT64_C(0x3905a3fdd1a2fa52) },
        { GGML_TYPE_IQ2_XS, 0, UINT64_C(0x8c47742fb3968bae) },
        { GGML_TYPE_IQ2_XXS, 0, UINT64_C(0xe4226e83117415fa) },
        { GGML_TYPE_IQ1_M, UINT64_C(0x9748b58d8afcbe7f), UINT64_C(0x56fad57a1f120628) },
        { GGML_TYPE_IQ1_S, 0, UINT64_C(0x605404c139e45fb6) },
        { GGML_TYPE_TQ1_0, UINT64_C(0xcafea0499f4ca818), UINT64_C(0x6725a93906d0132d) },
        { GGML_TYPE_TQ2_0, UINT64_C(0x94fc613a489701ce), UINT64_C(0x3656249cbddcd4e2) },
        { GGML_TYPE_MXFP4, UINT64_C(0xca2db0f85efc8a30), UINT64_C(0xca2db0f85efc8a30) },
    };
    enum { COLUMNS = 512, ROWS = 48 };
    static float x[COLUMNS * ROWS], w[COLUMNS];
    static uint8_t blocks[COLUMNS * ROWS * 2];
    uint64_t state = UINT64_C(88172645463325252);
    mixed_rows(x, COLUMNS * ROWS, &state);
    for (int i = 0; i < COLUMNS; i++) {
        w[i] = ldexpf(1 + (float) (i % 13) / 16, i % 9 - 4);
    }
    for (size_t t = 0; t < sizeof(list) / sizeof(list[0]); t++) {
        for (int with = 0; with < 2; with++) {
            const uint64_t want = with ? list[t].weighted : list[t].plain;
            if (with == 0 && ggml_quantize_requires_imatrix(list[t].type)) {
                continue;
            }
            const size_t n =
                ggml_quantize_rows(list[t].type, x, blocks, ROWS, COLUMNS, with ? w : NULL, GGML_ON_INVALID_CLIP, NULL);
            const uint64_t got = digest(blocks, n);
            CHECK_MSG(got == want, "%s %s weights: other bytes, 0x%016llx", ggml_type_name(list[t].type),
                with ? "with" : "without", (unsigned long long) got);
        }
    }
}

// Makes importances of all kinds: of one size, over the whole range of ratios, with sub-blocks far
// below others, or mostly 0.
static void fill_importances(int kind, float * w, int n) {
    for (int i = 0; i < n; i++) {
        const float size = ldexpf(1 + test_random_float(0, 1), test_random_int(-60, 60));
        w[i] = kind == 0   ? 1 + test_random_float(0, 3)
               : kind == 1 ? size
               : kind == 2 ? (i % 16 == 0 ? size : w[i - 1])
               : kind == 3 ? (float) (test_random_int(0, 40) == 0)
                           : size * (float) (i / 32 % 2);
    }
}

// Weights of one size, of every size, or up to the format's maximum.
static void fill_weights(const struct gb_quant_format * f, int kind, float * x, int n) {
    const float size = ldexpf(1, test_random_int(-100, 100));
    for (int i = 0; i < n; i++) {
        x[i] = test_random_float(-1, 1) * (kind == 0      ? 1
                                              : kind == 1 ? ldexpf(1, test_random_int(-149, 120))
                                              : kind == 2 ? size
                                                          : f->limit);
    }
}

enum { W = 512 };

static void only_ratios_of_importances_count(void) {
    static const int exponents[] = { -60, 60, -1, 13, -88 };
    static float x[W], w[W], scaled[W];
    static uint8_t want[W * 2], got[W * 2];
    for (int id = 0; id < GGML_TYPE_COUNT; id++) {
        const enum ggml_type type = (enum ggml_type) id;
        const struct gb_quant_format * f = gb_quant_format_of(type);
        for (int pass = 0; f != NULL && pass < 40; pass++) {
            fill_importances(pass % 5, w, W);
            fill_weights(f, pass % 4, x, W);
            const size_t n = ggml_quantize_rows(type, x, want, 1, W, w, GGML_ON_INVALID_CLIP, NULL);
            for (int i = 0; i < W; i++) {
                scaled[i] = ldexpf(w[i], exponents[pass % 5]);
            }
            CHECK_INT(ggml_quantize_rows(type, x, got, 1, W, scaled, GGML_ON_INVALID_CLIP, NULL), n);
            CHECK_MSG(memcmp(want, got, n) == 0, "%s: pass %d", ggml_type_name(type), pass);
        }
    }
}

// Blocks whose importances are all 0, among others, have the bytes of blocks without importances.
// Formats that need importances use equal ones.
static void blocks_without_importances_are_quantized_as_without(void) {
    static float x[W], w[W], ones[W];
    static uint8_t want[W * 2], got[W * 2];
    for (int i = 0; i < W; i++) {
        ones[i] = 1;
    }
    FOR_FORMATS(type, f) {
        for (int pass = 0; pass < 20; pass++) {
            const bool whole = pass % 2;
            fill_importances(0, w, W);
            fill_weights(f, pass % 4, x, W);
            for (int i = 0; i < W; i++) {
                w[i] *= (float) (!whole && i / f->elements % 2);
            }
            const float * none = needs_importance(type) ? ones : NULL;
            CHECK(ggml_quantize_rows(type, x, want, 1, W, none, GGML_ON_INVALID_CLIP, NULL) > 0);
            CHECK(ggml_quantize_rows(type, x, got, 1, W, w, GGML_ON_INVALID_CLIP, NULL) > 0);
            for (int b = 0; b < W / f->elements; b++) {
                CHECK_MSG((!whole && b % 2) || memcmp(want + b * f->bytes, got + b * f->bytes, (size_t) f->bytes) == 0,
                    "%s: pass %d, block %d", ggml_type_name(type), pass, b);
            }
        }
    }
}

static void finite_numbers_give_finite_blocks(void) {
    static float x[W], w[W], y[W];
    static uint8_t blocks[W * 2];
    FOR_FORMATS(type, f) {
        for (int pass = 0; pass < 400; pass++) {
            const bool weighted = needs_importance(type) || pass % 2;
            fill_importances(pass / 2 % 5, w, W);
            fill_weights(f, pass % 4, x, W);
            CHECK(ggml_quantize_rows(type, x, blocks, 1, W, weighted ? w : NULL, GGML_ON_INVALID_CLIP, NULL) > 0);
            f->to_float(blocks, y, W);
            for (int i = 0; i < W; i++) {
                CHECK_MSG(isfinite(y[i]), "%s: pass %d: %g became %g", ggml_type_name(type), pass, x[i], y[i]);
            }
        }
    }
}

// A sub-block with importances 0 keeps its values.
static void importances_of_0_lose_no_sub_block(void) {
    static float x[W], w[W], y[W];
    static uint8_t blocks[W * 2];
    FOR_FORMATS(type, f) {
        for (int tiny = 0; tiny < 3; tiny++) {
            const float least = tiny == 0 ? 0 : tiny == 1 ? 1e-20f : 1e-38f;
            double error[2] = { 0 }, power[2] = { 0 };
            normal_like(x, W);
            for (int i = 0; i < W; i++) {
                w[i] = i / 32 % 2 ? 1 : least;
            }
            CHECK(ggml_quantize_rows(type, x, blocks, 1, W, w, GGML_ON_INVALID_ERROR, NULL) > 0);
            f->to_float(blocks, y, W);
            for (int i = 0; i < W; i++) {
                error[i / 32 % 2] += (double) (x[i] - y[i]) * (x[i] - y[i]);
                power[i / 32 % 2] += (double) x[i] * x[i];
            }
            CHECK_MSG(error[0] / power[0] < 2 * error[1] / power[1] + 1e-4, "%s: %g instead of %g",
                ggml_type_name(type), error[0] / power[0], error[1] / power[1]);
        }
    }
}

TEST_MAIN(TEST(errors_are_bounded), TEST(super_blocks), TEST(codebooks), TEST(random_blocks), TEST(exact_values),
    TEST(bytes_stay), TEST(dot_products), TEST(hostile_rows), TEST(importance_lowers_the_weighted_error),
    TEST(invalid_numbers_are_errors), TEST(limits_hold), TEST(halves), TEST(scales_of_all_sizes),
    TEST(chunks_land_in_their_place), TEST(arguments), TEST(only_ratios_of_importances_count),
    TEST(blocks_without_importances_are_quantized_as_without), TEST(finite_numbers_give_finite_blocks),
    TEST(importances_of_0_lose_no_sub_block))
