// test_kernels_bytes.h - the kernels of products in bytes, for test_kernels.c: unpacking against to_float, products against sums of
// integers and in double precision.
#ifndef GB_TESTS_TEST_KERNELS_BYTES_H
#define GB_TESTS_TEST_KERNELS_BYTES_H

#include "tensor/quant/quant.h"

typedef void (*unpack_fn)(int64_t k, uint8_t * u, float * d, float * m, const void * x);

// d u + m is what to_float says, up to the rounding of d, m and the sum; at all levels the same bits. Random bytes, hence NaN scales.
static void check_unpack(const char * name, unpack_fn fn, unpack_fn scalar_fn, enum ggml_type type, int group) {
    static float   values[GB_UNPACK_MAX], d[2][GB_UNPACK_MAX / 16 + 1], m[2][GB_UNPACK_MAX / 16 + 1];
    static uint8_t u[2][GB_UNPACK_MAX + 1], x[2 * GB_UNPACK_MAX];
    const int64_t  size = ggml_blck_size(type);
    for (int64_t k = 0; k <= GB_UNPACK_MAX; k += size * (k < 3 * size ? 1 : (int64_t) test_random_int(1, 9))) {
        uint8_t * const blocks = x + test_random_int(0, 3); // at any address
        for (size_t i = 0; i < sizeof(x); i++) {
            x[i] = (uint8_t) test_random();
        }
        memset(u, 0x5a, sizeof(u));
        for (int i = 0; i < 2; i++) {
            d[i][k / group] = m[i][k / group] = -7;
            (i == 0 ? fn : scalar_fn)(k, u[i], d[i], m[i], blocks);
            CHECK_MSG(u[i][k] == 0x5a && d[i][k / group] == -7 && m[i][k / group] == -7, "%s %s writes outside", level_name, name);
        }
        CHECK_MSG(memcmp(u[0], u[1], (size_t) k) == 0 && same_array(d[0], d[1], k / group) && same_array(m[0], m[1], k / group),
                  "%s %s is not what scalar says", level_name, name);
        gb_quant_format_of(type)->to_float(blocks, values, (int) k);
        for (int64_t i = 0; i < k; i++) {
            const double scale = d[0][i / group], min = m[0][i / group], got = scale * u[0][i] + min;
            if (isfinite(values[i]) && isfinite(scale) && isfinite(min) &&
                !(fabs(got - values[i]) <= 4 * EPS * (fabs(scale * u[0][i]) + fabs(min)) + 1e-44)) {
                test_fail(__FILE__, __LINE__, "%s %s: term %d is %.9g, expected %.9g", level_name, name, (int) i, got, values[i]);
                return;
            }
        }
    }
}

#define TEST_UNPACK(stem, type, group)                                                                                 \
    static void test_unpack_##stem(const struct gb_kernels * k) {                                                      \
        check_unpack("unpack_" #stem, k->unpack_##stem, scalar->unpack_##stem, GGML_TYPE_##type, group);               \
    }
TEST_UNPACK(q4_0, Q4_0, 32)
TEST_UNPACK(q4_1, Q4_1, 32)
TEST_UNPACK(q5_0, Q5_0, 32)
TEST_UNPACK(q5_1, Q5_1, 32)
TEST_UNPACK(q8_0, Q8_0, 32)
TEST_UNPACK(mxfp4, MXFP4, 32)
TEST_UNPACK(nvfp4, NVFP4, 16)
TEST_UNPACK(iq4_nl, IQ4_NL, 32)
TEST_UNPACK(iq4_xs, IQ4_XS, 32)
TEST_UNPACK(q2_k, Q2_K, 16)
TEST_UNPACK(q3_k, Q3_K, 16)
TEST_UNPACK(q4_k, Q4_K, 32)
TEST_UNPACK(q5_k, Q5_K, 32)
TEST_UNPACK(q6_k, Q6_K, 16)
TEST_UNPACK(iq1_s, IQ1_S, 32)
TEST_UNPACK(iq1_m, IQ1_M, 16)
TEST_UNPACK(iq2_xxs, IQ2_XXS, 32)
TEST_UNPACK(iq2_xs, IQ2_XS, 16)
TEST_UNPACK(iq2_s, IQ2_S, 16)
TEST_UNPACK(iq3_xxs, IQ3_XXS, 32)
TEST_UNPACK(iq3_s, IQ3_S, 32)
TEST_UNPACK(tq1_0, TQ1_0, 32)
TEST_UNPACK(tq2_0, TQ2_0, 32)

// A panel holds what the scalar level unpacks from each column, and nothing behind it is written.
static void check_columns(const struct gb_kernels * k, enum ggml_type type, unpack_fn unpack, int group) {
    enum { K = 512, N = GB_GEMM_MAX };
    static uint8_t blocks[N][2 * K + 8], u[K];
    static float   y[(K / 4 + K / 8) * N + 1], d[K / 16], m[K / 16];
    const int64_t  size = ggml_blck_size(type), depth = size * (int64_t) test_random_int(1, (int) (K / size));
    const int      width = k->gemm_q8_nr, n = (int) test_random_int(1, width);
    const bool     centered = test_random() % 2;
    const void *   x[N];
    for (int j = 0; j < n; j++) {
        uint8_t * const p = blocks[j] + test_random_int(0, 7); // exactly as long as it says, for sanitizers: the end is checked below
        for (size_t i = 0; i < ggml_row_size(type, depth); i++) {
            p[i] = (uint8_t) test_random();
        }
        x[j] = p;
    }
    const float * const yd = y + depth / 4 * width, *const ym = yd + depth / group * width;
    float * const       end = y + (ym - y) + (centered ? 0 : depth / group * width);
    *end                    = 77;
    if (!k->pack_columns_q8((int) type, depth, centered, n, y, x)) {
        return;
    }
    CHECK_MSG(*end == 77, "%s pack_columns_q8 %s writes outside", level_name, ggml_type_name(type));
    for (int j = 0; j < n; j++) {
        unpack(depth, u, d, m, x[j]);
        for (int64_t i = 0; i < depth; i++) {
            CHECK_MSG(((const uint8_t *) y)[(i / 4 * width + j) * 4 + i % 4] == u[i], "%s pack_columns_q8 %s: level %d of column %d", level_name,
                      ggml_type_name(type), (int) i, j);
        }
        for (int64_t g = 0; g < depth / group; g++) {
            CHECK_MSG(same_array(&yd[g * width + j], &d[g], 1) && (centered || same_array(&ym[g * width + j], &m[g], 1)),
                      "%s pack_columns_q8 %s: scale %d of column %d", level_name, ggml_type_name(type), (int) g, j);
        }
    }
}

static void test_pack_columns_q8(const struct gb_kernels * k) {
    const struct {
        enum ggml_type type;
        unpack_fn      unpack;
        int            group;
    } formats[] = {
        { GGML_TYPE_Q4_0, scalar->unpack_q4_0, 32 },     { GGML_TYPE_Q4_1, scalar->unpack_q4_1, 32 }, { GGML_TYPE_Q5_0, scalar->unpack_q5_0, 32 },
        { GGML_TYPE_Q5_1, scalar->unpack_q5_1, 32 },     { GGML_TYPE_Q8_0, scalar->unpack_q8_0, 32 }, { GGML_TYPE_MXFP4, scalar->unpack_mxfp4, 32 },
        { GGML_TYPE_IQ4_NL, scalar->unpack_iq4_nl, 32 }, { GGML_TYPE_Q2_K, scalar->unpack_q2_k, 16 }, { GGML_TYPE_Q3_K, scalar->unpack_q3_k, 16 },
        { GGML_TYPE_Q4_K, scalar->unpack_q4_k, 32 },     { GGML_TYPE_Q5_K, scalar->unpack_q5_k, 32 }, { GGML_TYPE_Q6_K, scalar->unpack_q6_k, 16 },
        { GGML_TYPE_IQ4_XS, scalar->unpack_iq4_xs, 32 },
    };
    for (int pass = 0; pass < 30; pass++) {
        for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
            check_columns(k, formats[i].type, formats[i].unpack, formats[i].group);
        }
    }
}

static void test_quantize_q8(const struct gb_kernels * k) {
    static int8_t q[2][2048];
    static float  d[2][64], s[2][128];
    for (int pass = 0; pass < 300; pass++) {
        const int     kind = (pass % 2 ? GB_BYTES_HALVES : 0) | (pass % 5 == 0 ? GB_BYTES_CENTERED : 0);
        const int64_t n    = 32 * (int64_t) test_random_int(0, 64);
        const float   size = ldexpf(1, (int) test_random_int(-90, 100));
        float *       x    = random_row(&row_x, n, pass % 3 ? TAME : WILD);
        for (int64_t i = 0; i < n && pass % 3; i++) {
            x[i] *= size;
        }
        k->quantize_q8(n, kind, q[0], d[0], s[0], x);
        scalar->quantize_q8(n, kind, q[1], d[1], s[1], x);
        CHECK_MSG(same_array(d[0], d[1], n / 32), "%s quantize_q8: scales differ from scalar", level_name);
        for (int64_t g = 0; g < n / 32; g++) {
            float largest = 0;
            bool  finite  = true;
            for (int i = 0; i < 32; i++) {
                finite  = finite && isfinite(x[32 * g + i]);
                largest = fmaxf(largest, fabsf(x[32 * g + i]));
            }
            CHECK_MSG(isfinite(d[0][g]) == finite, "%s quantize_q8: infinity or NaN is lost", level_name);
            if (!finite) {
                continue;
            }
            CHECK(memcmp(q[0] + 32 * g, q[1] + 32 * g, 32) == 0);
            int sums[2] = { 0, 0 };
            for (int i = 0; i < 32; i++) {
                const double error = fabs((double) d[0][g] * q[0][32 * g + i] - (double) x[32 * g + i]);
                CHECK_MSG(q[0][32 * g + i] >= -127 && error <= (double) largest / 254 * (1 + 1e-4) + 0x1p-100, "%s quantize_q8: %g of %g", level_name,
                          error, largest);
                sums[i / 16] += q[0][32 * g + i];
            }
            if (kind & GB_BYTES_CENTERED) {
                const bool halves = kind & GB_BYTES_HALVES;
                const int  expected[2] = { halves ? sums[0] : sums[0] + sums[1], sums[1] };
                CHECK(memcmp(&s[0][halves ? 2 * g : g], expected, (halves ? 2 : 1) * sizeof(int)) == 0);
            } else if (kind) {
                CHECK(s[0][2 * g] == d[0][g] * (float) sums[0] && s[0][2 * g + 1] == d[0][g] * (float) sums[1]);
            } else {
                CHECK(s[0][g] == d[0][g] * (float) (sums[0] + sums[1]));
            }
        }
    }
}

// Random levels at their limits, scales, minima; the sum over k of a row in double precision, and the size of its terms.
#define BYTES_K 544
struct bytes {
    uint8_t u[BYTES_K];
    int8_t  q[BYTES_K];
    float   d[BYTES_K / 16], m[BYTES_K / 16], dx[BYTES_K / 32], s[BYTES_K / 16];
};

static void random_bytes_row(struct bytes * b, int kind) {
    const int group = kind & GB_BYTES_HALVES ? 16 : 32, top = kind & GB_BYTES_WIDE ? 255 : 127, all = (int) (test_random() % 4);
    for (int i = 0; i < BYTES_K; i++) {
        b->u[i] = (uint8_t) (all == 0 ? top : (int) test_random_int(0, top));
        b->q[i] = (int8_t) (all == 0 ? 127 : all == 1 ? -127 : test_random_int(-127, 127));
    }
    for (int g = 0; g < BYTES_K / 16; g++) {
        b->d[g]      = random_value(TAME);
        b->m[g]      = random_value(TAME);
        b->dx[g / 2] = random_value(TAME);
    }
    for (int g = 0; g < BYTES_K / group; g++) {
        int sum = 0;
        for (int i = 0; i < group; i++) {
            sum += b->q[g * group + i];
        }
        b->s[g] = b->dx[g * group / 32] * (float) sum;
    }
}

// As weights without minima are: m is -zero d, and in the panel of activations -zero sum(q) stands for s.
static void center_row(struct bytes * w, int zero) {
    for (int g = 0; g < BYTES_K / 16; g++) {
        w->m[g] = -(float) zero * w->d[g];
    }
}

static float centered_sum(const struct bytes * x, int64_t g, int group, int zero) {
    int32_t sum = 0;
    float   bits;
    for (int i = 0; i < group; i++) {
        sum -= zero * x->q[g * group + i];
    }
    memcpy(&bits, &sum, sizeof(bits));
    return bits;
}

static double bytes_oracle(const struct bytes * w, const struct bytes * x, int kind, int64_t k, double * size) {
    const int group = kind & GB_BYTES_HALVES ? 16 : 32;
    double    sum   = 0;
    *size           = 0;
    for (int64_t g = 0; g < k / group; g++) {
        long dot = 0, terms = 0; // a kernel may add up parts of a group as floats: what counts is the size of the terms
        for (int i = 0; i < group; i++) {
            const long term = (long) w->u[g * group + i] * x->q[g * group + i];
            dot += term;
            terms += labs(term);
        }
        const double a = (double) w->d[g] * (double) x->dx[g * group / 32] * (double) dot, b = (double) w->m[g] * (double) x->s[g];
        sum += a + b;
        *size += fabs((double) w->d[g] * (double) x->dx[g * group / 32] * (double) terms) + fabs(b);
    }
    return sum;
}

static void test_dot_q8(const struct gb_kernels * k) {
    static struct bytes w, x[4];
    for (int pass = 0; pass < 800; pass++) {
        const int     kind = pass % 4, n = (int) test_random_int(1, 4);
        const int64_t depth = 32 * (int64_t) test_random_int(0, BYTES_K / 32);
        const int8_t * q[4];
        const float *  dx[4], *s[4];
        float          y[5] = { 1, 2, 3, 4, 5 };
        random_bytes_row(&w, kind);
        for (int j = 0; j < 4; j++) {
            random_bytes_row(&x[j], kind & GB_BYTES_HALVES);
            q[j]  = x[j].q;
            dx[j] = x[j].dx;
            s[j]  = x[j].s;
        }
        k->dot_q8(depth, kind, n, y, w.u, w.d, w.m, q, dx, s);
        for (int j = 0; j < 5; j++) {
            double       size  = 0;
            const double exact = j < n ? bytes_oracle(&w, &x[j], kind, depth, &size) + j + 1 : j + 1;
            CHECK_MSG(fabs(y[j] - exact) <= (j < n ? 4 * (double) (depth + 1) * EPS * (size + 5) : 0), "%s dot_q8 kind %d k %d: %.9g, expected %.9g, size %g",
                      level_name, kind, (int) depth, y[j], exact, size);
        }
    }
}

static void test_gemm_tile_q8(const struct gb_kernels * k) {
    enum { N = GB_GEMM_MAX, LDC = N + 3 };
    static struct bytes rows[N], columns[N];
    static float        a[BYTES_K * N], b[BYTES_K * N], c[N * LDC], before[N * LDC];
    const int           mr_max = k->gemm_q8_mr, nr_max = k->gemm_q8_nr;
    CHECK(mr_max >= 4 && mr_max <= 16 && nr_max >= 1 && nr_max <= N && 128 % nr_max == 0); // gemm.c relies on it
    for (int pass = 0; pass < 160; pass++) {
        const int     kind = pass % 8, group = kind & GB_BYTES_HALVES ? 16 : 32, mr = (int) test_random_int(1, mr_max), nr = (int) test_random_int(1, nr_max);
        const bool    centered = kind & GB_BYTES_CENTERED;
        const int     zero     = (int) test_random_int(1, 128);
        const int64_t depth = 32 * (int64_t) test_random_int(0, BYTES_K / 32);
        const bool    accumulate = test_random() % 2;
        uint8_t *     ab = (uint8_t *) a, *bb = (uint8_t *) b;
        float *       dx = a + depth / 4 * mr_max, *s = dx + depth / 32 * mr_max, *d = b + depth / 4 * nr_max, *m = d + depth / group * nr_max;
        for (int i = 0; i < mr_max; i++) {
            random_bytes_row(&rows[i], kind & GB_BYTES_HALVES);
            for (int64_t p = 0; p < depth; p++) {
                ab[(p / 4 * mr_max + i) * 4 + p % 4] = (uint8_t) rows[i].q[p];
            }
            for (int64_t g = 0; g < depth / group; g++) {
                dx[g * group / 32 * mr_max + i] = rows[i].dx[g * group / 32];
                s[g * mr_max + i]               = centered ? centered_sum(&rows[i], g, group, zero) : rows[i].s[g];
            }
        }
        for (int j = 0; j < nr_max; j++) {
            random_bytes_row(&columns[j], kind);
            if (centered) {
                center_row(&columns[j], zero);
            }
            for (int64_t p = 0; p < depth; p++) {
                bb[(p / 4 * nr_max + j) * 4 + p % 4] = columns[j].u[p];
            }
            for (int64_t g = 0; g < depth / group; g++) {
                d[g * nr_max + j] = columns[j].d[g];
                m[g * nr_max + j] = centered ? NAN : columns[j].m[g];
            }
        }
        for (int i = 0; i < N * LDC; i++) {
            before[i] = c[i] = random_value(TAME);
        }
        k->gemm_tile_q8(depth, kind, a, b, c, LDC, mr, nr, accumulate);
        for (int i = 0; i < N * LDC; i++) {
            const int row = i / LDC, column = i % LDC;
            if (row >= mr || column >= nr) {
                CHECK_MSG(c[i] == before[i], "%s gemm_tile_q8 wrote outside %d x %d", level_name, mr, nr);
                continue;
            }
            double       size;
            const double exact = bytes_oracle(&columns[column], &rows[row], kind, depth, &size) + (accumulate ? before[i] : 0);
            CHECK_MSG(fabs(c[i] - exact) <= 4 * (double) (depth + 1) * EPS * (size + fabs(before[i])), "%s gemm_tile_q8 is %g, expected %g", level_name, c[i],
                      exact);
        }
    }
}

// ------------------------------------------------------------------------------------------------------------ stripes

struct stripe_format {
    enum ggml_type type;
    unpack_fn      unpack;
    int            group, zero;
};

enum { STRIPE_FORMATS_N = 23, STRIPE_TERMS_MAX = 8192 + 512 };

static const struct stripe_format * stripe_formats(void) {
    static struct stripe_format formats[STRIPE_FORMATS_N];
    const struct stripe_format  all[STRIPE_FORMATS_N] = {
        { GGML_TYPE_Q4_0, scalar->unpack_q4_0, 32, 8 },        { GGML_TYPE_Q4_1, scalar->unpack_q4_1, 32, 0 },
        { GGML_TYPE_Q5_0, scalar->unpack_q5_0, 32, 16 },       { GGML_TYPE_Q5_1, scalar->unpack_q5_1, 32, 0 },
        { GGML_TYPE_Q8_0, scalar->unpack_q8_0, 32, 128 },      { GGML_TYPE_MXFP4, scalar->unpack_mxfp4, 32, 12 },
        { GGML_TYPE_IQ4_NL, scalar->unpack_iq4_nl, 32, 128 },  { GGML_TYPE_IQ4_XS, scalar->unpack_iq4_xs, 32, 128 },
        { GGML_TYPE_Q2_K, scalar->unpack_q2_k, 16, 0 },        { GGML_TYPE_Q3_K, scalar->unpack_q3_k, 16, 4 },
        { GGML_TYPE_Q4_K, scalar->unpack_q4_k, 32, 0 },        { GGML_TYPE_Q5_K, scalar->unpack_q5_k, 32, 0 },
        { GGML_TYPE_Q6_K, scalar->unpack_q6_k, 16, 32 },       { GGML_TYPE_IQ1_S, scalar->unpack_iq1_s, 32, 9 },
        { GGML_TYPE_IQ1_M, scalar->unpack_iq1_m, 16, 9 },      { GGML_TYPE_IQ2_XXS, scalar->unpack_iq2_xxs, 32, 43 },
        { GGML_TYPE_IQ2_XS, scalar->unpack_iq2_xs, 16, 43 },   { GGML_TYPE_IQ2_S, scalar->unpack_iq2_s, 16, 43 },
        { GGML_TYPE_IQ3_XXS, scalar->unpack_iq3_xxs, 32, 62 }, { GGML_TYPE_IQ3_S, scalar->unpack_iq3_s, 32, 15 },
        { GGML_TYPE_NVFP4, scalar->unpack_nvfp4, 16, 12 },
        { GGML_TYPE_TQ1_0, scalar->unpack_tq1_0, 32, 1 },      { GGML_TYPE_TQ2_0, scalar->unpack_tq2_0, 32, 1 },
    };
    memcpy(formats, all, sizeof(all));
    return formats;
}

static int stripe_kind(const struct stripe_format * f) {
    return (f->group == 16 ? GB_BYTES_HALVES : 0) | (f->zero != 0 ? GB_BYTES_CENTERED : 0);
}

// Where term i lies in stripes of words of 16 groups; of group g, where its first and second float.
static size_t stripe_term(int64_t i, int group) {
    const int64_t stripe = i / (16 * group), in = i % (16 * group);
    return (size_t) (stripe * (group == 16 ? 384 : 640) + in % group / 4 * 64 + in / group * 4 + in % 4);
}

static float stripe_float(const char * p, int64_t g, int group, int which) {
    float f;
    memcpy(&f, p + g / 16 * (group == 16 ? 384 : 640) + group * 16 + which * 64 + g % 16 * 4, sizeof(f));
    return f;
}

static size_t stripes_size(int64_t k, int group) {
    return (size_t) ((k + 16 * group - 1) / (16 * group) * (group == 16 ? 384 : 640));
}

// Whole blocks; a length that ends anywhere in a stripe.
static int64_t stripe_length(enum ggml_type type) {
    const int64_t block = ggml_blck_size(type);
    return block * test_random_int(1, test_random() % 4 == 0 ? 8192 / (int) block : 1024 / (int) block + 1);
}

// Memory that ends where the blocks do, for sanitizers; random bytes whose scales are numbers, unless any will do.
static uint8_t * stripe_blocks(const struct stripe_format * f, int64_t k, bool tame) {
    const size_t size   = ggml_row_size(f->type, k), block = ggml_type_size(f->type);
    uint8_t *    blocks = malloc(size);
    float        values[256];
    for (size_t at = 0; at < size; at += block) {
        for (bool fine = false; !fine;) {
            for (size_t i = 0; i < block; i++) {
                blocks[at + i] = (uint8_t) test_random();
            }
            gb_quant_format_of(f->type)->to_float(blocks + at, values, ggml_blck_size(f->type));
            fine = true;
            for (int i = 0; i < ggml_blck_size(f->type); i++) {
                fine = fine && (!tame || fabsf(values[i]) < 1e8f);
            }
        }
    }
    return blocks;
}

static float * stripe_values(int64_t n, enum values v) {
    static float x[STRIPE_TERMS_MAX];
    for (int64_t i = 0; i < n; i++) {
        x[i] = random_value(v);
    }
    return x;
}

static void test_stripe_rows(const struct gb_kernels * k) {
    static int8_t q[STRIPE_TERMS_MAX];
    static float  d[STRIPE_TERMS_MAX / 32], s[STRIPE_TERMS_MAX / 16];
    for (int pass = 0; pass < 200 && k->stripes; pass++) {
        const int     kind = (pass % 2 ? GB_BYTES_HALVES : 0) | (pass / 2 % 2 ? GB_BYTES_CENTERED : 0), group = pass % 2 ? 16 : 32;
        const int     zero = pass / 2 % 2 ? (int) test_random_int(1, 128) : 0;
        const int64_t n    = 32 * (int64_t) test_random_int(1, 64);
        const size_t  size = stripes_size(n, group);
        char * const  y    = malloc(size + 1);
        float *       x    = stripe_values(n, pass % 5 ? TAME : WILD);
        y[size]            = 0x5a;
        k->stripe_rows(n, kind, zero, y, x);
        k->quantize_q8(n, kind, q, d, s, x);
        CHECK_MSG(y[size] == 0x5a, "%s stripe_rows writes outside", level_name);
        for (int64_t i = 0; i < (int64_t) (size / (group == 16 ? 384 : 640)) * 16 * group; i++) {
            CHECK_MSG(((const int8_t *) y)[stripe_term(i, group)] == (i < n ? q[i] : 0), "%s stripe_rows: term %d of %d", level_name, (int) i, (int) n);
        }
        for (int64_t g = 0; g < (int64_t) (size / (group == 16 ? 384 : 640)) * 16; g++) {
            float   scale = g * group < n ? d[g * group / 32] : 0, end = g * group < n ? s[g] : 0, got = stripe_float(y, g, group, 0);
            int32_t sum;
            CHECK_MSG(same_array(&got, &scale, 1), "%s stripe_rows: scale %d", level_name, (int) g);
            if (zero != 0) {
                memcpy(&sum, &end, sizeof(sum));
                sum *= -zero;
                memcpy(&end, &sum, sizeof(sum));
            }
            got = stripe_float(y, g, group, 1);
            CHECK_MSG(zero != 0 ? memcmp(&got, &end, sizeof(got)) == 0 : same_array(&got, &end, 1), "%s stripe_rows: sum %d", level_name, (int) g);
        }
        free(y);
    }
}

// What the scalar level unpacks, in order; zeros behind it.
static void test_stripe_columns(const struct gb_kernels * k) {
    static uint8_t u[2][GB_UNPACK_MAX];
    static float   d[2][GB_UNPACK_MAX / 16], m[2][GB_UNPACK_MAX / 16];
    for (int pass = 0; pass < 12 * STRIPE_FORMATS_N && k->stripes; pass++) {
        const struct stripe_format * f      = &stripe_formats()[pass % STRIPE_FORMATS_N];
        const int64_t                length = stripe_length(f->type), ld = GB_UNPACK_MAX;
        const size_t                 size   = stripes_size(length, f->group);
        uint8_t *                    blocks = stripe_blocks(f, length, false);
        char *                       y      = malloc(size);
        CHECK(k->stripe_columns((int) f->type, length, y, blocks));
        for (int64_t k0 = 0; k0 < length; k0 += ld) {
            f->unpack(length - k0 < ld ? length - k0 : ld, u[k0 / ld % 2], d[k0 / ld % 2], m[k0 / ld % 2], blocks + ggml_row_size(f->type, k0));
            for (int64_t i = k0; i < length && i < k0 + ld; i++) {
                CHECK_MSG((uint8_t) y[stripe_term(i, f->group)] == u[k0 / ld % 2][i - k0], "%s stripe_columns %s: level %d", level_name,
                          ggml_type_name(f->type), (int) i);
                const float got_d = stripe_float(y, i / f->group, f->group, 0), got_m = stripe_float(y, i / f->group, f->group, 1);
                CHECK_MSG(same_array(&got_d, &d[k0 / ld % 2][(i - k0) / f->group], 1), "%s stripe_columns %s: scale of %d", level_name,
                          ggml_type_name(f->type), (int) i);
                CHECK_MSG(f->zero != 0 || same_array(&got_m, &m[k0 / ld % 2][(i - k0) / f->group], 1), "%s stripe_columns %s: minimum of %d",
                          level_name, ggml_type_name(f->type), (int) i);
            }
        }
        for (int64_t g = length / f->group; g < (int64_t) (size / (f->group == 16 ? 384 : 640)) * 16; g++) {
            const float got_d = stripe_float(y, g, f->group, 0), got_m = f->zero != 0 ? 0 : stripe_float(y, g, f->group, 1);
            CHECK_MSG(fabsf(got_d) < 1e-37f && got_m == 0, "%s stripe_columns %s: no end", level_name, ggml_type_name(f->type));
        }
        free(y);
        free(blocks);
    }
}

// Dot products against double precision on what the blocks and the rounded rows stand for; tiles of any size give the same bits.
static void check_stripe_products(const struct gb_kernels * k, const struct stripe_format * f, int64_t length) {
    enum { W = 3, X = 4 };
    static float   weights[STRIPE_TERMS_MAX], acc[W * X * 16];
    const int      nw = (int) test_random_int(1, W), nx = (int) test_random_int(1, X);
    const size_t   size = stripes_size(length, f->group);
    uint8_t *      blocks[W];
    char *         rows[X], *columns[W];
    const void *   w[W], *x[X], *w_blocks[W];
    float          y[W][X] = { { 0 } }, sums[W * X];
    for (int j = 0; j < nx; j++) {
        x[j] = rows[j] = malloc(size);
        k->stripe_rows(length, stripe_kind(f), f->zero, rows[j], stripe_values(length, TAME));
    }
    for (int i = 0; i < nw; i++) {
        w_blocks[i] = blocks[i] = stripe_blocks(f, length, true);
        w[i] = columns[i] = calloc(1, size);
        CHECK(k->stripe_columns((int) f->type, length, columns[i], blocks[i]));
        CHECK(k->stripe_dots((int) f->type, length, 1, nx, acc, w_blocks + i, x, w_blocks + i, false));
        k->stripe_sums(1, nx, y[i], acc);
        gb_quant_format_of(f->type)->to_float(blocks[i], weights, (int) length);
        for (int j = 0; j < nx; j++) {
            double sum = 0, bound = 0;
            for (int64_t p = 0; p < length; p++) {
                const double q = ((const int8_t *) rows[j])[stripe_term(p, f->group)], scale = stripe_float(rows[j], p / f->group, f->group, 0);
                const double level = (uint8_t) columns[i][stripe_term(p, f->group)] + (double) f->zero, d = stripe_float(columns[i], p / f->group, f->group, 0);
                sum += weights[p] * q * scale;
                bound += fabs(q * scale) * (fabs(level * d) + (f->zero != 0 ? 0 : fabs((double) stripe_float(columns[i], p / f->group, f->group, 1))));
            }
            CHECK_MSG(fabs(y[i][j] - sum) <= 4 * (double) (length + 1) * EPS * bound, "%s stripe_dots %s, k %d: %.9g, expected %.9g", level_name,
                      ggml_type_name(f->type), (int) length, y[i][j], sum);
        }
    }
    if (nw > 1) {
        float         two[2 * X];
        const int64_t first = 16 * f->group * (int64_t) test_random_int(1, 4), part = GB_MIN(length, first); // whole stripes at first
        const size_t  byte = ggml_row_size(f->type, part);
        const void *  rest[2] = { blocks[0] + byte, blocks[1] + byte }, *x_rest[X];
        for (int j = 0; j < nx; j++) {
            x_rest[j] = rows[j] + stripes_size(part, f->group);
        }
        CHECK(k->stripe_dots((int) f->type, part, 2, nx, acc, w_blocks, x, rest, false));
        CHECK(k->stripe_dots((int) f->type, length - part, 2, nx, acc, rest, x_rest, w_blocks, true));
        k->stripe_sums(2, nx, two, acc);
        for (int j = 0; j < nx; j++) {
            CHECK_MSG(same_bits(two[j], y[0][j]) && same_bits(two[4 + j], y[1][j]), "%s stripe_dots %s depends on what is taken together", level_name,
                      ggml_type_name(f->type));
        }
    }
    k->stripe_tile((int64_t) (size / (f->group == 16 ? 384 : 640)), stripe_kind(f), nw, nx, acc, w, x, false);
    k->stripe_sums(nw, nx, sums, acc);
    for (int i = 0; i < nw; i++) {
        for (int j = 0; j < nx; j++) {
            CHECK_MSG(same_bits(sums[4 * i + j], y[i][j]), "%s stripe_tile %s, %d x %d: %.9g is not %.9g", level_name, ggml_type_name(f->type), nw, nx,
                      sums[4 * i + j], y[i][j]);
        }
        free(blocks[i]);
        free(columns[i]);
    }
    for (int j = 0; j < nx; j++) {
        free(rows[j]);
    }
}

static void test_stripe_dots(const struct gb_kernels * k) {
    for (int pass = 0; pass < 10 * STRIPE_FORMATS_N && k->stripes; pass++) {
        const struct stripe_format * f = &stripe_formats()[pass % STRIPE_FORMATS_N];
        check_stripe_products(k, f, stripe_length(f->type));
    }
    CHECK(!k->stripe_dots((int) GGML_TYPE_F32, 32, 0, 0, NULL, NULL, NULL, NULL, false) && !k->stripe_columns((int) GGML_TYPE_F32, 32, NULL, NULL));
}

static void test_stripe_tile(const struct gb_kernels * k) { // adds, and only in its part
    static char  zeros[640];
    float        acc[12 * 16];
    const void * columns[3] = { zeros, zeros, zeros }, *rows[4] = { zeros, zeros, zeros, zeros };
    for (int nw = 1; nw <= 3 && k->stripes; nw++) {
        for (int nx = 1; nx <= 4; nx++) {
            for (int i = 0; i < 12 * 16; i++) {
                acc[i] = (float) i;
            }
            k->stripe_tile(1, nw % 2 ? GB_BYTES_HALVES : 0, nw, nx, acc, columns, rows, true);
            for (int i = 0; i < 12 * 16; i++) {
                CHECK(acc[i] == (float) i);
            }
        }
    }
}

static void test_stripe_sums(const struct gb_kernels * k) { // of small integers: exact
    float acc[12 * 16], y[12];
    for (int nw = 1; nw <= 3 && k->stripes; nw++) {
        for (int nx = 1; nx <= 4; nx++) {
            for (int i = 0; i < 12 * 16; i++) {
                acc[i] = (float) test_random_int(-1000, 1000);
            }
            memset(y, 0, sizeof(y));
            k->stripe_sums(nw, nx, y, acc);
            for (int i = 0; i < 12; i++) {
                float sum = 0;
                for (int l = 0; l < 16 && i / 4 < nw && i % 4 < nx; l++) {
                    sum += acc[16 * i + l];
                }
                CHECK(y[i] == sum);
            }
        }
    }
}

// -------------------------------------------------------------------------------------------------- pairs of bfloat16

static void test_gemm_tile_bf16(const struct gb_kernels * k) {
    enum { PAIRS = 100, LDC = GB_GEMM_MAX + 3 };
    static uint16_t a[PAIRS * GB_GEMM_MAX * 2], b[PAIRS * GB_GEMM_MAX * 2]; // [pair][row][2]
    static float    c[GB_GEMM_MAX * LDC], before[GB_GEMM_MAX * LDC];
    const int       mr_max = k->gemm_mr, nr_max = k->gemm_nr;
    for (int pass = 0; pass < 150; pass++) {
        const int     mr = (int) test_random_int(1, mr_max), nr = (int) test_random_int(1, nr_max);
        const int64_t pairs      = test_random_int(0, PAIRS);
        const bool    accumulate = test_random() % 2;
        for (int i = 0; i < PAIRS * GB_GEMM_MAX * 2; i++) {
            a[i] = (uint16_t) (to_bits(random_value(TAME)) >> 16);
            b[i] = (uint16_t) (to_bits(random_value(TAME)) >> 16);
        }
        for (int i = 0; i < GB_GEMM_MAX * LDC; i++) {
            before[i] = c[i] = random_value(TAME);
        }
        k->gemm_tile_bf16(pairs, (const float *) (const void *) a, (const float *) (const void *) b, c, LDC, mr, nr, accumulate);
        for (int i = 0; i < GB_GEMM_MAX * LDC; i++) {
            const int row = i / LDC, column = i % LDC;
            if (row >= mr || column >= nr) {
                CHECK_MSG(c[i] == before[i], "%s gemm_tile_bf16 wrote outside %d x %d", level_name, mr, nr);
                continue;
            }
            double sum = accumulate ? before[i] : 0, size = fabs(before[i]);
            for (int64_t p = 0; p < 2 * pairs; p++) {
                const double term = bfloat_value(a[(p / 2 * mr_max + row) * 2 + p % 2]) * bfloat_value(b[(p / 2 * nr_max + column) * 2 + p % 2]);
                sum += term;
                size += fabs(term);
            }
            CHECK_MSG(fabs(c[i] - sum) <= 4 * (double) (2 * pairs + 1) * EPS * size, "%s gemm_tile_bf16 is %g, expected %g", level_name, c[i], sum);
        }
    }
}

// ------------------------------------------------------------------------------------------------- columns times rows

typedef void (*dots_fn)(int64_t k, int nw, int nx, float * y, const void * const * w, const float * const * x, size_t ahead);

static void check_dots(const char * name, dots_fn fn, int width, size_t element, double (*value)(const void *, int64_t)) {
    enum { K = 300 };
    static float    x[4][K + 3], floats[4][K + 3];
    static uint16_t halves[4][K + 3];
    CHECK(width >= 1 && width <= 4);
    for (int pass = 0; pass < 600; pass++) {
        const int     nw = (int) test_random_int(1, width), nx = (int) test_random_int(1, 4), at = (int) test_random_int(0, 3);
        const int64_t k = test_random_int(0, K);
        const void *  w[4];
        const float * rows[4];
        float         y[16], alone[16];
        for (int i = 0; i < 4; i++) {
            for (int j = 0; j < K + 3; j++) {
                x[i][j] = random_value(TAME);
            }
            rows[i] = x[i] + at;
        }
        for (int i = 0; i < 4; i++) {
            for (int j = 0; j < K + 3; j++) {
                floats[i][j] = random_value(TAME);
                halves[i][j] = (uint16_t) (0x3c00 + test_random() % 0x400 + (test_random() % 2 << 15)); // near 1
            }
            w[i] = element == 4 ? (const void *) (floats[i] + at) : (const void *) (halves[i] + at);
        }
        for (int i = 0; i < 16; i++) {
            y[i] = 77;
        }
        fn(k, nw, nx, y, w, rows, (size_t) test_random_int(0, 5000));
        for (int i = 0; i < width; i++) {
            for (int j = 0; j < 4; j++) {
                double sum = 0, size = 0;
                for (int64_t p = 0; p < k; p++) {
                    const double term = value(w[i], p) * (double) rows[j][p];
                    sum += term;
                    size += fabs(term);
                }
                const float got = y[j * width + i];
                CHECK_MSG(i < nw && j < nx ? fabs(got - sum) <= 4 * (double) k * EPS * size : got == 77, "%s %s: %d x %d, k %d: %g, expected %g",
                          level_name, name, nw, nx, (int) k, got, sum);
            }
        }
        fn(k, 1, nx, alone, w + nw - 1, rows, 0);
        CHECK_MSG(same_bits(alone[0], y[nw - 1]), "%s %s depends on the columns taken together", level_name, name);
    }
}

static void test_dots_f32(const struct gb_kernels * k) { check_dots("dots_f32", k->dots_f32, k->dots_w, 4, float_bits_value); }
static void test_dots_f16(const struct gb_kernels * k) { check_dots("dots_f16", k->dots_f16, k->dots_w, 2, half_bits_value); }
static void test_dots_bf16(const struct gb_kernels * k) { check_dots("dots_bf16", k->dots_bf16, k->dots_w, 2, bfloat_bits_value); }

typedef void (*rows_columns_fn)(int64_t k, int nw, int nx, const void * w, size_t nb_w, const float * x, size_t ldx, float * y, int64_t ldy,
                                bool accumulate);

static void check_rows_columns(const char * name, rows_columns_fn fn, int width, size_t element, double (*value)(const void *, int64_t)) {
    enum { K = 300, LD = K + 7 };
    static float    x[8 * LD], floats[4 * LD];
    static uint16_t halves[4 * LD];
    CHECK(width >= 1 && width <= 8);
    for (int pass = 0; pass < 600; pass++) {
        const int     nw = (int) test_random_int(1, 4), nx = (int) test_random_int(1, (uint32_t) width), at = (int) test_random_int(0, 3);
        const int64_t k = test_random_int(0, K), ldy = test_random_int(4, 9);
        const bool    accumulate = test_random() % 2;
        const char *  w = element == 4 ? (const char *) (floats + at) : (const char *) (halves + at);
        float         y[8 * 9 + 4], alone[1] = { 0 };
        for (int i = 0; i < 8 * LD; i++) {
            x[i] = random_value(TAME);
        }
        for (int i = 0; i < 4 * LD; i++) {
            floats[i] = random_value(TAME);
            halves[i] = (uint16_t) (0x3c00 + test_random() % 0x400 + (test_random() % 2 << 15)); // near 1
        }
        for (size_t i = 0; i < sizeof(y) / sizeof(y[0]); i++) {
            y[i] = 77;
        }
        fn(k, nw, nx, w, LD * element, x, LD, y, ldy, accumulate);
        for (int j = 0; j < 8; j++) {
            for (int i = 0; i < ldy; i++) {
                double sum = accumulate ? 77 : 0, size = sum;
                for (int64_t p = 0; p < k && i < 4; p++) {
                    const double term = value(w + (size_t) i * LD * element, p) * (double) x[j * LD + p];
                    sum += term;
                    size += fabs(term);
                }
                const float got = y[j * ldy + i];
                CHECK_MSG(i < nw && j < nx ? fabs(got - sum) <= 4 * (double) (k + 1) * EPS * size : got == 77, "%s %s: %d x %d, k %d: %g, expected %g",
                          level_name, name, nw, nx, (int) k, got, sum);
            }
        }
        fn(k, 1, 1, w + (size_t) (nw - 1) * LD * element, 0, x + (nx - 1) * LD, 0, alone, 1, false);
        CHECK_MSG(accumulate || same_bits(alone[0], y[(nx - 1) * ldy + nw - 1]), "%s %s depends on what is taken together", level_name, name);
    }
}

static void test_rows_columns_f32(const struct gb_kernels * k) {
    check_rows_columns("rows_columns_f32", k->rows_columns_f32, k->rows_x, 4, float_bits_value);
}
static void test_rows_columns_f16(const struct gb_kernels * k) {
    check_rows_columns("rows_columns_f16", k->rows_columns_f16, k->rows_x, 2, half_bits_value);
}
static void test_rows_columns_bf16(const struct gb_kernels * k) {
    check_rows_columns("rows_columns_bf16", k->rows_columns_bf16, k->rows_x, 2, bfloat_bits_value);
}

#endif // GB_TESTS_TEST_KERNELS_BYTES_H
