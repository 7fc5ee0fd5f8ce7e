// Quantizing: errors within what the bits allow, importance weights, values that the format holds exactly, dot
// products, hostile values, arguments. (Bit-exactness against the gguf package is tested in Python.)
#include "test.h"

#include "tensor/quant/quant.h"

enum { N = 32 * 40 };

static void dequantize(enum ggml_type type, const void * blocks, float * y) {
    ggml_internal_get_type_traits(type).to_float(blocks, y, N);
}

static const struct {
    enum ggml_type type;
    size_t (*quantize)(const float * src, void * dst, int n, int k, int64_t * hist);
    double step; // largest rounding error as a share of the block's range (max - min) or of twice its largest magnitude
} formats[] = {
    { GGML_TYPE_Q4_0, ggml_quantize_q4_0, 1.0 / 16 },   { GGML_TYPE_Q4_1, ggml_quantize_q4_1, 0.5 / 15 },
    { GGML_TYPE_Q5_0, ggml_quantize_q5_0, 1.0 / 32 },   { GGML_TYPE_Q5_1, ggml_quantize_q5_1, 0.5 / 31 },
    { GGML_TYPE_Q8_0, ggml_quantize_q8_0, 0.25 / 127 },
};
enum { N_FORMATS = sizeof(formats) / sizeof(formats[0]) };

static void errors_are_bounded(void) {
    static float   x[N], y[N];
    static uint8_t blocks[N * 2];
    for (int f = 0; f < N_FORMATS; f++) {
        for (int i = 0; i < N; i++) x[i] = test_random_float(-3, 5);
        int64_t      hist[16] = { 0 };
        const size_t bytes    = formats[f].quantize(x, blocks, N, N / 4, hist);
        CHECK_INT(bytes, ggml_row_size(formats[f].type, N));
        dequantize(formats[f].type, blocks, y);
        int64_t counted = 0;
        for (int i = 0; i < 16; i++) counted += hist[i];
        CHECK_INT(counted, N);
        for (int b = 0; b < N; b += 32) {
            float low = x[b], high = x[b], largest = 0;
            for (int i = b; i < b + 32; i++) {
                low = fminf(low, x[i]), high = fmaxf(high, x[i]), largest = fmaxf(largest, fabsf(x[i]));
            }
            const bool   affine = formats[f].type == GGML_TYPE_Q4_1 || formats[f].type == GGML_TYPE_Q5_1;
            const double range  = affine ? high - low : 2 * largest;
            for (int i = b; i < b + 32; i++) {
                CHECK_MSG(fabs(y[i] - x[i]) <= range * formats[f].step * 1.01 + 0.003 * range,
                          "%s: %g became %g (range %g)", ggml_type_name(formats[f].type), x[i], y[i], range);
            }
        }
    }
}

static double weighted_error(const float * x, const float * y, const float * w) {
    double e = 0;
    for (int i = 0; i < N; i++) e += (double) w[i % 64] * (x[i] - y[i]) * (x[i] - y[i]);
    return e;
}

static void importance_lowers_the_weighted_error(void) {
    static float   x[N], y[N], w[64];
    static uint8_t blocks[N * 2];
    for (int i = 0; i < N; i++) x[i] = test_random_float(-1, 1) * test_random_float(0, 2);
    for (int i = 0; i < 64; i++) w[i] = i % 7 == 0 ? 10.0f : 0.1f;
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

// Fewer bits, larger error; and every format keeps zero, constant and single-valued blocks.
static void super_blocks(void) {
    static const enum ggml_type types[] = { GGML_TYPE_Q6_K, GGML_TYPE_Q5_K, GGML_TYPE_Q4_K, GGML_TYPE_Q3_K,
                                            GGML_TYPE_Q2_K };
    static const double limits[] = { 0.02, 0.04, 0.08, 0.17, 0.35 }; // rms error over rms value, normal-like input
    static float        x[N], y[N], w[256];
    static uint8_t      blocks[N * 2];
    for (int i = 0; i < N; i++) {
        x[i] = test_random_float(-1, 1) + test_random_float(-1, 1) + test_random_float(-1, 1);
    }
    for (int i = 0; i < 256; i++) w[i] = i % 5 == 0 ? 20.0f : 0.05f;
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
        for (int i = 0; i < N; i++) y[i] = 0;
        ggml_quantize_chunk(types[t], y, blocks, 0, N / 256, 256, NULL, NULL);
        dequantize(types[t], blocks, y);
        for (int i = 0; i < N; i++) CHECK(y[i] == 0);
        for (int i = 0; i < N; i++) x[i] = i % 9 == 0 ? NAN : i % 7 == 0 ? INFINITY : x[i];
        CHECK(ggml_quantize_chunk(types[t], x, blocks, 0, N / 256, 256, NULL, w) > 0);
        CHECK(ggml_quantize_chunk(types[t], x, blocks, 0, N / 256, 256, NULL, NULL) > 0);
        for (int i = 0; i < N; i++) {
            x[i] = test_random_float(-1, 1) + test_random_float(-1, 1) + test_random_float(-1, 1);
        }
    }
}

static bool needs_importance(enum ggml_type type) {
    return gb_quant_format_of(type)->from_float == NULL;
}

static void normal_like(float * x, int n) {
    for (int i = 0; i < n; i++) {
        x[i] = test_random_float(-1, 1) + test_random_float(-1, 1) + test_random_float(-1, 1);
    }
}

// The root mean square of the error over that of the values, after quantizing with weights (NULL: none).
static double round_trip(enum ggml_type type, const float * x, const float * w, float * y, double * weighted) {
    static uint8_t blocks[N * 2];
    double         error = 0, power = 0;
    CHECK_INT(ggml_quantize_chunk(type, x, blocks, 0, N / 256, 256, NULL, w), ggml_row_size(type, N));
    dequantize(type, blocks, y);
    *weighted = 0;
    for (int i = 0; i < N; i++) {
        const double d = (double) y[i] - x[i];
        error += d * d, power += (double) x[i] * x[i], *weighted += (w ? w[i % 256] : 1) * d * d;
    }
    return sqrt(error / power);
}

// Errors on normal-like values, which follow from the bits an element has; weights move the error to where it counts
// less; and what a format gave is given again nearly unchanged.
static void codebooks(void) {
    static const struct {
        enum ggml_type type;
        double         limit;
    } list[] = { { GGML_TYPE_IQ4_NL, 0.074 },  { GGML_TYPE_IQ4_XS, 0.075 }, { GGML_TYPE_IQ3_S, 0.133 },
                 { GGML_TYPE_IQ3_XXS, 0.187 }, { GGML_TYPE_IQ2_S, 0.241 },  { GGML_TYPE_IQ2_XS, 0.293 },
                 { GGML_TYPE_IQ2_XXS, 0.341 }, { GGML_TYPE_IQ1_M, 0.419 },  { GGML_TYPE_IQ1_S, 0.445 } };
    static float x[N], y[N], z[N], ones[256], w[256];
    for (int i = 0; i < 256; i++) ones[i] = 1, w[i] = i % 5 == 0 ? 20.0f : 0.05f;
    double previous = 0;
    for (size_t t = 0; t < sizeof(list) / sizeof(list[0]); t++) {
        double with, without, again, unused;
        normal_like(x, N);
        round_trip(list[t].type, x, w, y, &with);
        const double rms = round_trip(list[t].type, x, ones, y, &unused);
        without          = 0;
        for (int i = 0; i < N; i++) without += (double) w[i % 256] * (y[i] - x[i]) * (y[i] - x[i]);
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

// Values of random blocks: the search finds their rows, signs and scales again, or something close. (IQ1 less so: it
// never takes a negative d, which half of these blocks have.)
static void random_blocks(void) {
    static const struct {
        enum ggml_type type;
        double         limit; // of the mean relative error
    } list[] = { { GGML_TYPE_IQ4_XS, 0.02 }, { GGML_TYPE_IQ3_S, 0.03 },  { GGML_TYPE_IQ3_XXS, 0.03 },
                 { GGML_TYPE_IQ2_S, 0.03 },  { GGML_TYPE_IQ2_XS, 0.03 }, { GGML_TYPE_IQ2_XXS, 0.03 },
                 { GGML_TYPE_IQ1_M, 0.25 },  { GGML_TYPE_IQ1_S, 0.2 } };
    static float ones[256];
    for (int i = 0; i < 256; i++) ones[i] = 1;
    for (size_t t = 0; t < sizeof(list) / sizeof(list[0]); t++) {
        const struct gb_quant_format * f     = gb_quant_format_of(list[t].type);
        double                         total = 0;
        for (int pass = 0; pass < 40; pass++) {
            uint8_t block[256];
            float   x[256], y[256], largest;
            do { // of a size that f16 scales hold well
                for (int i = 0; i < 256; i++) block[i] = (uint8_t) test_random();
                f->to_float(block, x, 256);
                largest = 0;
                for (int i = 0; i < 256; i++) largest = fabsf(x[i]) > largest || x[i] != x[i] ? fabsf(x[i]) : largest;
            } while (!(largest > 0.01f && largest < 1e4f));
            CHECK(ggml_quantize_chunk(list[t].type, x, block, 0, 1, 256, NULL, ones) > 0);
            f->to_float(block, y, 256);
            double error = 0, power = 0;
            for (int i = 0; i < 256; i++)
                error += ((double) y[i] - x[i]) * ((double) y[i] - x[i]), power += (double) x[i] * x[i];
            total += sqrt(error / power);
        }
        CHECK_MSG(total / 40 < list[t].limit, "%s: mean relative error %g", ggml_type_name(list[t].type), total / 40);
    }
}

// -1, 0, 1 times a power of two is exact in the ternary formats, MXFP4 holds 0, 0.5, 1, 1.5, 2, 3, 4, 6.
static void exact_values(void) {
    static const float numbers[] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };
    static float       x[N], y[N];
    double             unused;
    for (int i = 0; i < N; i++) x[i] = 0.25f * (float) test_random_int(-1, 1);
    CHECK(round_trip(GGML_TYPE_TQ1_0, x, NULL, y, &unused) == 0);
    CHECK(round_trip(GGML_TYPE_TQ2_0, x, NULL, y, &unused) == 0);
    for (int i = 0; i < N; i++)
        x[i] = 8 * (i % 32 == 0 ? 4 : numbers[test_random() % 8]) * (test_random() % 2 ? 1 : -1);
    CHECK(round_trip(GGML_TYPE_MXFP4, x, NULL, y, &unused) == 0);
    for (int i = 0; i < N; i++) // scales of three bits of mantissa, exact ones also for the small
        x[i] = ldexpf((float) (8 + i / 16 % 8), i / 16 % 13 - 9) * (i % 16 == 0 ? 6 : numbers[test_random() % 8]) * (test_random() % 2 ? 1 : -1);
    CHECK(round_trip(GGML_TYPE_NVFP4, x, NULL, y, &unused) == 0);
}

// Each format's dot product against double precision on what the two operands stand for.
static void dot_products(void) {
    static float   x[N], y[N], xv[N], yv[N], ones[256];
    static uint8_t xb[N * 2], yb[N * 2];
    for (int i = 0; i < 256; i++) ones[i] = 1;
    for (int id = 0; id < GGML_TYPE_COUNT; id++) {
        const enum ggml_type           type = (enum ggml_type) id;
        const struct gb_quant_format * f    = gb_quant_format_of(type);
        if (f == NULL || f->vec_dot == NULL) {
            CHECK(f == NULL || type == GGML_TYPE_Q8_1 || type == GGML_TYPE_Q8_K); // partners only
            continue;
        }
        normal_like(x, N);
        normal_like(y, N);
        CHECK(ggml_quantize_chunk(type, x, xb, 0, N / 256, 256, NULL, ones) > 0);
        CHECK(ggml_quantize_chunk(f->vec_dot_type, y, yb, 0, N / 256, 256, NULL, NULL) > 0);
        dequantize(type, xb, xv);
        dequantize(f->vec_dot_type, yb, yv);
        double sum = 0, size = 0;
        float  got = NAN;
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

// Every format, rows of anything: defined, and zeros come back as zeros.
static void hostile_rows(void) {
    static const float specials[] = { NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 1e-45f, -1e-40f, 65520, 1e8f, 0 };
    static float       x[N], y[N], ones[256], strange[256];
    static uint8_t     blocks[N * 2];
    for (int i = 0; i < 256; i++) ones[i] = 1, strange[i] = specials[i % 10];
    for (int id = 0; id < GGML_TYPE_COUNT; id++) {
        const enum ggml_type type = (enum ggml_type) id;
        if (gb_quant_format_of(type) == NULL) continue;
        for (int s = 0; s < 10; s++) {
            normal_like(x, N);
            for (int i = 0; i < N; i++)
                x[i] = i < 512 || i % 9 == 0 ? specials[s] : i >= N - 256 ? specials[test_random() % 10] : x[i];
            CHECK(ggml_quantize_chunk(type, x, blocks, 0, N / 256, 256, NULL, ones) > 0);
            dequantize(type, blocks, y);
            for (int i = 0; i < 512 && specials[s] == 0; i++)
                CHECK_MSG(y[i] == 0, "%s: 0 became %g", ggml_type_name(type), y[i]);
            CHECK(ggml_quantize_chunk(type, x, blocks, 0, N / 256, 256, NULL, strange) > 0);
            if (!needs_importance(type)) {
                CHECK(ggml_quantize_chunk(type, x, blocks, 0, N / 256, 256, NULL, NULL) > 0);
            }
        }
        CHECK(needs_importance(type) == ggml_quantize_requires_imatrix(type));
        if (needs_importance(type)) {
            CHECK_INT(ggml_quantize_chunk(type, x, blocks, 0, 1, 256, NULL, NULL), 0);
            CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "needs an importance matrix");
        }
    }
}

static void hostile_values_are_harmless(void) {
    static const float specials[] = { NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 1e-45f, 0 };
    static float       x[N], w[64];
    static uint8_t     blocks[N * 2];
    for (int i = 0; i < 64; i++) w[i] = 1;
    for (size_t s = 0; s < sizeof(specials) / sizeof(specials[0]); s++) {
        for (int i = 0; i < N; i++) x[i] = i % 5 == 0 ? specials[s] : test_random_float(-1, 1);
        for (int i = 0; i < 32; i++) x[i] = specials[s];
        for (int f = 0; f < N_FORMATS; f++) {
            CHECK(formats[f].quantize(x, blocks, N, N, NULL) > 0);
            CHECK(ggml_quantize_chunk(formats[f].type, x, blocks, 0, N / 64, 64, NULL, w) > 0);
        }
    }
}

static void chunks_land_in_their_place(void) {
    static float   x[N];
    static uint8_t whole[N * 2], parts[N * 2];
    for (int i = 0; i < N; i++) x[i] = test_random_float(-1, 1);
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
    float   x[64] = { 0 };
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
    static float   row[512];
    static uint8_t one[512], other[512];
    normal_like(row, 512);
    static const struct {
        enum ggml_type type;
        size_t (*quantize)(const float * src, void * dst, int n, int k, int64_t * hist);
    } k_formats[] = { { GGML_TYPE_Q2_K, ggml_quantize_q2_K },
                      { GGML_TYPE_Q3_K, ggml_quantize_q3_K },
                      { GGML_TYPE_Q4_K, ggml_quantize_q4_K },
                      { GGML_TYPE_Q5_K, ggml_quantize_q5_K },
                      { GGML_TYPE_Q6_K, ggml_quantize_q6_K } };
    for (int f = 0; f < 5; f++) {
        int64_t hist[16] = { 0 };
        CHECK_INT(k_formats[f].quantize(row, one, 512, 256, hist), ggml_row_size(k_formats[f].type, 512));
        CHECK_INT(ggml_quantize_chunk(k_formats[f].type, row, other, 0, 2, 256, NULL, NULL),
                  ggml_row_size(k_formats[f].type, 512));
        CHECK(memcmp(one, other, ggml_row_size(k_formats[f].type, 512)) == 0);
        for (int i = 0; i < 16; i++) CHECK_INT(hist[i], 0);
        CHECK_INT(k_formats[f].quantize(row, one, 512, 128, hist), 0);
        CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "blocks of 256");
    }
    CHECK_INT(ggml_quantize_chunk(GGML_TYPE_I32, x, y, 0, 1, 32, NULL, NULL), 0);
    CHECK_ERROR(GGML_STATUS_UNSUPPORTED, "i32");
    CHECK(ggml_quantize_requires_imatrix(GGML_TYPE_IQ2_XS) && !ggml_quantize_requires_imatrix(GGML_TYPE_Q4_K));
}

// What quantizing gives, as one number for each format, without and with weights: it stays the same when a search becomes
// faster. Rows of all kinds: values of similar size, small ones among large, few levels, zeros, what is no number, any bits.
static uint64_t digest(const uint8_t * p, size_t n) {
    uint64_t h = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * UINT64_C(1099511628211);
    return h;
}

static void mixed_rows(float * x, int n, uint64_t * state) {
    static const float specials[] = { NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 1e-45f, -1e-40f, 65520, 1e8f, 0 };
    for (int i = 0; i < n; i++) {
        *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
        const uint32_t r = (uint32_t) (*state >> 32);
        const float    f = (float) ((int32_t) r >> 8) * 0x1p-23f, g = f * f * f + 0.1f * f;
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

static void bytes_stay(void) {
    static const struct {
        enum ggml_type type;
        uint64_t       plain, weighted;
    } list[] = {
        { GGML_TYPE_Q4_0, UINT64_C(0x557d82d4dd92a67f), UINT64_C(0x063722cbcc4da45a) },
        { GGML_TYPE_Q4_1, UINT64_C(0x84eeaf5cf3a5942e), UINT64_C(0x92cf57296d119835) },
        { GGML_TYPE_Q5_0, UINT64_C(0x8e4acf59850ee432), UINT64_C(0x60301102ef5defb0) },
        { GGML_TYPE_Q5_1, UINT64_C(0xfbe1dedd35fc77ac), UINT64_C(0x6681ebee60bda712) },
        { GGML_TYPE_Q8_0, UINT64_C(0x0f6a85a9cd791426), UINT64_C(0x0f6a85a9cd791426) },
        { GGML_TYPE_Q2_K, UINT64_C(0xfb672ae1908ece27), UINT64_C(0xf8af71fa39cfe2b8) },
        { GGML_TYPE_Q3_K, UINT64_C(0xa3a1ab54ea5badcd), UINT64_C(0x9da32b497730adb7) },
        { GGML_TYPE_Q4_K, UINT64_C(0x45db2ad131288498), UINT64_C(0xfa49dd850e8cc4dc) },
        { GGML_TYPE_Q5_K, UINT64_C(0x6f3cd80a55bb9ea8), UINT64_C(0xb18d6faa591b9196) },
        { GGML_TYPE_Q6_K, UINT64_C(0xf204718ea4e310ec), UINT64_C(0x5faa3331a2ff4749) },
        { GGML_TYPE_Q8_K, UINT64_C(0x0d89ca8ea65a25a9), UINT64_C(0x0d89ca8ea65a25a9) },
        { GGML_TYPE_IQ4_NL, UINT64_C(0x0d02c94603f64cb0), UINT64_C(0x58a3952d2005bb65) },
        { GGML_TYPE_IQ4_XS, UINT64_C(0xa59fc45c6bc5e3b0), UINT64_C(0x4ed70c2a69579dbb) },
        { GGML_TYPE_IQ3_S, UINT64_C(0x4aea62783725e687), UINT64_C(0x8ddc74f6b11e4234) },
        { GGML_TYPE_IQ3_XXS, UINT64_C(0x9330ed3e6ecefd43), UINT64_C(0x3842811a5afce61a) },
        { GGML_TYPE_IQ2_S, UINT64_C(0x75709841e7fe4107), UINT64_C(0x510b7c0425ed8314) },
        { GGML_TYPE_IQ2_XS, 0, UINT64_C(0xddbd627a3ce25ce7) },
        { GGML_TYPE_IQ2_XXS, 0, UINT64_C(0xf2284efdda842785) },
        { GGML_TYPE_IQ1_M, UINT64_C(0x69d17e422967c8d1), UINT64_C(0x083c94d1f35288b9) },
        { GGML_TYPE_IQ1_S, 0, UINT64_C(0x7f2627005dc50164) },
        { GGML_TYPE_TQ1_0, UINT64_C(0xe820e2330d3de1ae), UINT64_C(0xe820e2330d3de1ae) },
        { GGML_TYPE_TQ2_0, UINT64_C(0x86cec36e5e7cbec1), UINT64_C(0x86cec36e5e7cbec1) },
        { GGML_TYPE_MXFP4, UINT64_C(0x732a6251204af469), UINT64_C(0x732a6251204af469) },
    };
    enum { COLUMNS = 512, ROWS = 48 };
    static float   x[COLUMNS * ROWS], w[COLUMNS];
    static uint8_t blocks[COLUMNS * ROWS * 2];
    uint64_t       state = UINT64_C(88172645463325252);
    mixed_rows(x, COLUMNS * ROWS, &state);
    for (int i = 0; i < COLUMNS; i++) w[i] = ldexpf(1 + (float) (i % 13) / 16, i % 9 - 4);
    for (size_t t = 0; t < sizeof(list) / sizeof(list[0]); t++) {
        for (int with = 0; with < 2; with++) {
            const uint64_t want = with ? list[t].weighted : list[t].plain;
            if (with == 0 && ggml_quantize_requires_imatrix(list[t].type)) continue;
            const size_t   n   = ggml_quantize_chunk(list[t].type, x, blocks, 0, ROWS, COLUMNS, NULL, with ? w : NULL);
            const uint64_t got = digest(blocks, n);
            CHECK_MSG(got == want, "%s %s weights: other bytes, 0x%016llx", ggml_type_name(list[t].type), with ? "with" : "without",
                      (unsigned long long) got);
        }
    }
}

TEST_MAIN(TEST(errors_are_bounded), TEST(super_blocks), TEST(codebooks), TEST(random_blocks), TEST(exact_values), TEST(bytes_stay),
          TEST(dot_products), TEST(hostile_rows), TEST(importance_lowers_the_weighted_error),
          TEST(hostile_values_are_harmless), TEST(chunks_land_in_their_place), TEST(arguments))
