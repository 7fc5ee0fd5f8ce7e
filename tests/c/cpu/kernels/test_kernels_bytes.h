// test_kernels_bytes.h - the kernels of products in bytes, for test_kernels.c: unpacking against
// to_float, products against sums of integers and in double precision.
#ifndef GB_TESTS_TEST_KERNELS_BYTES_H
#define GB_TESTS_TEST_KERNELS_BYTES_H

#include "tensor/quant/quant.h"

typedef void (*unpack_fn)(int64_t k, uint8_t * u, float * d, float * m, const void * x);

// d u + m equals to_float, up to the rounding of d, m and the sum, with the same bits at all
// levels. Blocks are random bytes, so scales may be NaN. No level is above the row's `top`.
static void check_unpack(const char * name, unpack_fn fn, unpack_fn scalar_fn, enum ggml_type type, int group,
    int top) {
    static float values[GB_UNPACK_MAX], d[2][GB_UNPACK_MAX / 16 + 1], m[2][GB_UNPACK_MAX / 16 + 1];
    static uint8_t u[2][GB_UNPACK_MAX + 1], x[2 * GB_UNPACK_MAX];
    const int64_t size = ggml_blck_size(type);
    for (int64_t k = 0; k <= GB_UNPACK_MAX; k += size * (k < 3 * size ? 1 : (int64_t) test_random_int(1, 9))) {
        uint8_t * const blocks = x + test_random_int(0, 3); // at any address
        for (size_t i = 0; i < sizeof(x); i++) {
            x[i] = (uint8_t) test_random();
        }
        memset(u, 0x5a, sizeof(u));
        for (int i = 0; i < 2; i++) {
            d[i][k / group] = m[i][k / group] = -7;
            (i == 0 ? fn : scalar_fn)(k, u[i], d[i], m[i], blocks);
            CHECK_MSG(u[i][k] == 0x5a && d[i][k / group] == -7 && m[i][k / group] == -7, "%s %s writes outside",
                level_name, name);
        }
        CHECK_MSG(memcmp(u[0], u[1], (size_t) k) == 0 && same_array(d[0], d[1], k / group) &&
                      same_array(m[0], m[1], k / group),
            "%s %s is not what scalar says", level_name, name);
        gb_quant_format_of(type)->to_float(blocks, values, (int) k);
        for (int64_t i = 0; i < k; i++) {
            CHECK_MSG(u[0][i] <= top, "%s %s: level %d is %d", level_name, name, (int) i, u[0][i]);
            const double scale = d[0][i / group], min = m[0][i / group], got = scale * u[0][i] + min;
            if (isfinite(values[i]) && isfinite(scale) && isfinite(min) &&
                !(fabs(got - values[i]) <= 4 * EPS * (fabs(scale * u[0][i]) + fabs(min)) + 1e-44)) {
                test_fail(__FILE__, __LINE__, "%s %s: term %d is %.9g, expected %.9g", level_name, name, (int) i, got,
                    values[i]);
                return;
            }
        }
    }
}

#define TEST_UNPACK(id, stem, group, top)                                                                   \
    static void test_unpack_##stem(const struct gb_kernels * k) {                                           \
        check_unpack("unpack_" #stem, k->unpack_##stem, scalar->unpack_##stem, GGML_TYPE_##id, group, top); \
    }
#define GB_FORMAT(id, stem, name, elements, bytes, group, zero, top, use, ...) \
    GB_IF_UNPACKED_##use(TEST_UNPACK(id, stem, group, top))
#include "tensor/quant/formats.def"
#undef GB_FORMAT

// A panel holds the unpacked values of the scalar level for each column. No bytes after it are
// written.
static void check_columns(const struct gb_kernels * k, enum ggml_type type, unpack_fn unpack, int group) {
    enum { K = 512, N = GB_GEMM_NR_MAX };
    static uint8_t blocks[N][2 * K + 8], u[K];
    static float y[(K / 4 + K / 8) * N + 1], d[K / 16], m[K / 16];
    const int64_t size = ggml_blck_size(type), depth = size * (int64_t) test_random_int(1, (int) (K / size));
    const int width = k->gemm_q8_nr, n = (int) test_random_int(1, width);
    const bool centered = test_random() % 2;
    const void * x[N];
    for (int j = 0; j < n; j++) {
        // an exact size, so sanitizers check the end
        uint8_t * const p = blocks[j] + test_random_int(0, 7);
        for (size_t i = 0; i < ggml_row_size(type, depth); i++) {
            p[i] = (uint8_t) test_random();
        }
        x[j] = p;
    }
    const float *const yd = y + depth / 4 * width, *const ym = yd + depth / group * width;
    float * const end = y + (ym - y) + (centered ? 0 : depth / group * width);
    *end = 77;
    if (!k->pack_columns_q8((int) type, depth, centered, n, y, x)) {
        return;
    }
    CHECK_MSG(*end == 77, "%s pack_columns_q8 %s writes outside", level_name, ggml_type_name(type));
    for (int j = 0; j < n; j++) {
        unpack(depth, u, d, m, x[j]);
        for (int64_t i = 0; i < depth; i++) {
            CHECK_MSG(((const uint8_t *) y)[(i / 4 * width + j) * 4 + i % 4] == u[i],
                "%s pack_columns_q8 %s: level %d of column %d", level_name, ggml_type_name(type), (int) i, j);
        }
        for (int64_t g = 0; g < depth / group; g++) {
            CHECK_MSG(same_array(&yd[g * width + j], &d[g], 1) &&
                          (centered || same_array(&ym[g * width + j], &m[g], 1)),
                "%s pack_columns_q8 %s: scale %d of column %d", level_name, ggml_type_name(type), (int) g, j);
        }
    }
}

static void test_pack_columns_q8(const struct gb_kernels * k) {
    const struct {
        enum ggml_type type;
        unpack_fn unpack;
        int group;
    } formats[] = {
#define GB_FORMAT(id, stem, name, elements, bytes, group, zero, top, use, ...) \
    GB_IF_UNPACKED_##use({ GGML_TYPE_##id, scalar->unpack_##stem, group }, )
#include "tensor/quant/formats.def"
#undef GB_FORMAT
    };
    for (int pass = 0; pass < 30; pass++) {
        for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
            check_columns(k, formats[i].type, formats[i].unpack, formats[i].group);
        }
    }
}

static void test_quantize_q8(const struct gb_kernels * k) {
    static int8_t q[2][2048], panel_q[7 * 2048];
    static float d[2][64], s[2][128], panel_d[7 * 64], panel_s[7 * 128];
    for (int pass = 0; pass < 300; pass++) {
        const int kind = (pass % 2 ? GB_BYTES_HALVES : 0) | (pass % 5 == 0 ? GB_BYTES_CENTERED : 0);
        const int64_t n = 32 * (int64_t) test_random_int(0, 64);
        const float size = ldexpf(1, (int) test_random_int(-90, 100));
        float * x = random_row(&row_x, n, pass % 3 ? TAME : WILD);
        for (int64_t i = 0; i < n && pass % 3; i++) {
            x[i] *= size;
        }
        const int zero = kind & GB_BYTES_CENTERED ? (int) test_random_int(1, 128) : 0,
                  per_32 = kind & GB_BYTES_HALVES ? 2 : 1;
        k->quantize_q8(&(struct gb_quantize_q8) { n, kind, zero, 1, q[0], d[0], s[0], x });
        scalar->quantize_q8(&(struct gb_quantize_q8) { n, kind, zero, 1, q[1], d[1], s[1], x });
        // a panel of one row gives the same
        const int64_t step = test_random_int(2, 7), row = test_random_int(0, (int) step - 1);
        memset(panel_q, 101, sizeof(panel_q));
        k->quantize_q8(&(struct gb_quantize_q8) {
            n, kind, zero, step, panel_q + 32 * row, panel_d + row, panel_s + row, x });
        for (int64_t g = 0; g < n / 32 * step; g++) {
            int8_t untouched[32];
            memset(untouched, 101, sizeof(untouched));
            CHECK_MSG(memcmp(panel_q + 32 * g, g % step == row ? q[0] + g / step * 32 : untouched, 32) == 0,
                "%s quantize_q8: row %d of a panel of %d", level_name, (int) row, (int) step);
        }
        for (int64_t g = 0; g < n / 32; g++) {
            CHECK(same_array(&panel_d[g * step + row], &d[0][g], 1));
            for (int64_t h = g * per_32; h < (g + 1) * per_32; h++) {
                CHECK(same_array(&panel_s[h * step + row], &s[0][h], 1) ||
                      memcmp(&panel_s[h * step + row], &s[0][h], sizeof(float)) == 0);
            }
        }
        CHECK_MSG(same_array(d[0], d[1], n / 32), "%s quantize_q8: scales differ from scalar", level_name);
        for (int64_t g = 0; g < n / 32; g++) {
            float largest = 0;
            bool fits = true;
            for (int i = 0; i < 32; i++) {
                fits = fits && fabsf(x[32 * g + i]) < 0x1p100f;
                largest = fmaxf(largest, fabsf(x[32 * g + i]));
            }
            CHECK_MSG(isnan(d[0][g]) == !fits && (!fits || isfinite(d[0][g])), "%s quantize_q8: the scale is %g",
                level_name, d[0][g]);
            if (!fits) {
                for (int i = 0; i < 32; i++) {
                    CHECK(q[0][32 * g + i] == 0);
                }
                continue;
            }
            CHECK(memcmp(q[0] + 32 * g, q[1] + 32 * g, 32) == 0);
            int sums[2] = { 0, 0 };
            for (int i = 0; i < 32; i++) {
                const double error = fabs((double) d[0][g] * q[0][32 * g + i] - (double) x[32 * g + i]);
                CHECK_MSG(q[0][32 * g + i] >= -127 && error <= (double) largest / 254 * (1 + 1e-4) + 0x1p-100,
                    "%s quantize_q8: %g of %g", level_name, error, largest);
                sums[i / 16] += q[0][32 * g + i];
            }
            if (kind & GB_BYTES_CENTERED) {
                const bool halves = kind & GB_BYTES_HALVES;
                const int expected[2] = { -zero * (halves ? sums[0] : sums[0] + sums[1]), -zero * sums[1] };
                CHECK(memcmp(&s[0][halves ? 2 * g : g], expected, (halves ? 2 : 1) * sizeof(int)) == 0);
            } else if (kind) {
                CHECK(s[0][2 * g] == d[0][g] * (float) sums[0] && s[0][2 * g + 1] == d[0][g] * (float) sums[1]);
            } else {
                CHECK(s[0][g] == d[0][g] * (float) (sums[0] + sums[1]));
            }
        }
    }
}

// Random levels at their limits, scales and minima. Computes the sum over k of a row in double
// precision, and the magnitude of its terms.
#define BYTES_K 544
struct bytes {
    uint8_t u[BYTES_K];
    int8_t q[BYTES_K];
    float d[BYTES_K / 16], m[BYTES_K / 16], dx[BYTES_K / 32], s[BYTES_K / 16];
};

static void random_bytes_row(struct bytes * b, int kind) {
    const int group = kind & GB_BYTES_HALVES ? 16 : 32, top = kind & GB_BYTES_WIDE ? 255 : 127,
              all = (int) (test_random() % 4);
    for (int i = 0; i < BYTES_K; i++) {
        b->u[i] = (uint8_t) (all == 0 ? top : (int) test_random_int(0, top));
        b->q[i] = (int8_t) (all == 0 ? 127 : all == 1 ? -127 : test_random_int(-127, 127));
    }
    for (int g = 0; g < BYTES_K / 16; g++) {
        b->d[g] = random_value(TAME);
        b->m[g] = random_value(TAME);
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

// Weights without minima: m is -zero d, and the panel of activations has -zero sum(q) instead of s.
static void center_row(struct bytes * w, int zero) {
    for (int g = 0; g < BYTES_K / 16; g++) {
        w->m[g] = -(float) zero * w->d[g];
    }
}

static float centered_sum(const struct bytes * x, int64_t g, int group, int zero) {
    int32_t sum = 0;
    float bits;
    for (int i = 0; i < group; i++) {
        sum -= zero * x->q[g * group + i];
    }
    memcpy(&bits, &sum, sizeof(bits));
    return bits;
}

static double bytes_oracle(const struct bytes * w, const struct bytes * x, int kind, int64_t k, double * size) {
    const int group = kind & GB_BYTES_HALVES ? 16 : 32;
    double sum = 0;
    *size = 0;
    for (int64_t g = 0; g < k / group; g++) {
        long dot = 0, terms = 0; // the tolerance follows the terms, which kernels may add as floats
        for (int i = 0; i < group; i++) {
            const long term = (long) w->u[g * group + i] * x->q[g * group + i];
            dot += term;
            terms += labs(term);
        }
        const double a = (double) w->d[g] * (double) x->dx[g * group / 32] * (double) dot,
                     b = (double) w->m[g] * (double) x->s[g];
        sum += a + b;
        *size += fabs((double) w->d[g] * (double) x->dx[g * group / 32] * (double) terms) + fabs(b);
    }
    return sum;
}

static void test_dot_q8(const struct gb_kernels * k) {
    static struct bytes w, x[4];
    for (int pass = 0; pass < 800; pass++) {
        const int kind = pass % 4, n = (int) test_random_int(1, 4);
        const int64_t depth = 32 * (int64_t) test_random_int(0, BYTES_K / 32);
        const int8_t * q[4];
        const float *dx[4], *s[4];
        float y[5] = { 1, 2, 3, 4, 5 };
        random_bytes_row(&w, kind);
        for (int j = 0; j < 4; j++) {
            random_bytes_row(&x[j], kind & GB_BYTES_HALVES);
            q[j] = x[j].q;
            dx[j] = x[j].dx;
            s[j] = x[j].s;
        }
        k->dot_q8(&(struct gb_dot_q8) {
            .k = depth, .kind = kind, .n = n, .y = y, .u = w.u, .d = w.d, .m = w.m, .q = q, .dx = dx, .s = s });
        for (int j = 0; j < 5; j++) {
            double size = 0;
            const double exact = j < n ? bytes_oracle(&w, &x[j], kind, depth, &size) + j + 1 : j + 1;
            CHECK_MSG(fabs(y[j] - exact) <= (j < n ? 4 * (double) (depth + 1) * EPS * (size + 5) : 0),
                "%s dot_q8 kind %d k %d: %.9g, expected %.9g, size %g", level_name, kind, (int) depth, y[j], exact,
                size);
        }
    }
}

static bool is_read_in_place(enum ggml_type type) { // at level avx2
    switch (type) {
        case GGML_TYPE_Q4_0:
        case GGML_TYPE_Q4_1:
        case GGML_TYPE_Q5_0:
        case GGML_TYPE_Q5_1:
        case GGML_TYPE_Q8_0:
        case GGML_TYPE_Q4_K:
        case GGML_TYPE_Q5_K:
        case GGML_TYPE_Q6_K:
        case GGML_TYPE_IQ4_NL:
        case GGML_TYPE_IQ4_XS: return true;
        default: return false;
    }
}

// Columns of a format, against their unpacked levels. They have an exact size, so sanitizers check the end.
static void check_dot_columns(const struct gb_kernels * k, enum ggml_type type, unpack_fn unpack, int kind) {
    enum { COLUMNS = 3 };
    static struct bytes w[COLUMNS], x[4];
    const struct gb_quant_format * format = gb_quant_format_of(type);
    const int64_t size = ggml_blck_size(type), depth = size * (int64_t) test_random_int(0, (int) (BYTES_K / size));
    const int columns = (int) test_random_int(0, COLUMNS);
    const size_t bytes = ggml_row_size(type, depth), nb = bytes + (size_t) test_random_int(0, 3), // may have gaps
        all = columns == 0 ? 0 : (size_t) (columns - 1) * nb + bytes;
    float values[BYTES_K], guarded[4][COLUMNS + 2], alone[4][COLUMNS];
    const int8_t * q[4];
    const float *dx[4], *s[4];
    float * y[4];
    if (format->from_float == NULL) {
        return;
    }
    uint8_t * const blocks = malloc(all + 1);
    REQUIRE(blocks != NULL);
    for (int j = 0; j < columns; j++) {
        for (int i = 0; i < BYTES_K; i++) {
            values[i] = test_random_float(-2, 3);
        }
        format->from_float(values, blocks + 1 + (size_t) j * nb, (int) depth);
        unpack(depth, w[j].u, w[j].d, w[j].m, blocks + 1 + (size_t) j * nb);
    }
    for (int r = 0; r < 4; r++) {
        random_bytes_row(&x[r], kind & GB_BYTES_HALVES);
        q[r] = x[r].q;
        dx[r] = x[r].dx;
        s[r] = x[r].s;
        y[r] = guarded[r] + 1;
    }
    struct gb_dot_columns_q8 p = { .k = depth, .w = blocks + 1, .nb_w = nb, .q = q, .dx = dx, .s = s };
    for (int n = 4; n >= 1; n--) {
        for (int i = 0; i < 4 * (COLUMNS + 2); i++) {
            guarded[i / (COLUMNS + 2)][i % (COLUMNS + 2)] = 7;
        }
        p.columns = columns;
        p.n = n;
        p.y = y;
        const bool has = k->dot_columns_q8((int) type, &p);
        CHECK_MSG(has == (strcmp(level_name, "avx2") == 0 && is_read_in_place(type)), "%s: dot_columns_q8 for %s is %d",
            level_name, ggml_type_name(type), has);
        for (int i = 0; i < 4 * (COLUMNS + 2); i++) {
            const int r = i / (COLUMNS + 2), j = i % (COLUMNS + 2) - 1;
            const bool is_set = has && r < n && j >= 0 && j < columns;
            double terms = 0;
            const double exact = is_set ? bytes_oracle(&w[j], &x[r], kind, depth, &terms) : 7;
            CHECK_MSG(fabs(guarded[r][j + 1] - exact) <= (is_set ? 4 * (double) (depth + 1) * EPS * terms : 0),
                "%s dot_columns_q8 of %s, k %d, row %d of %d, column %d of %d: %.9g, expected %.9g", level_name,
                ggml_type_name(type), (int) depth, r, n, j, columns, guarded[r][j + 1], exact);
        }
        for (int j = 0; has && j < columns; j++) { // each result alone
            float * one[1] = { &alone[n - 1][j] };
            const struct gb_dot_columns_q8 single = { .k = depth,
                .columns = 1,
                .n = 1,
                .w = blocks + 1 + (size_t) j * nb,
                .nb_w = nb,
                .y = one,
                .q = q + n - 1,
                .dx = dx + n - 1,
                .s = s + n - 1 };
            CHECK_MSG(k->dot_columns_q8((int) type, &single) && same_bits(alone[n - 1][j], y[n - 1][j]),
                "%s dot_columns_q8 of %s depends on other rows or columns", level_name, ggml_type_name(type));
        }
    }
    free(blocks);
}

// More terms than a kernel prepares of the rows at a time, in parts of BYTES_K.
static void check_long_dot_columns(const struct gb_kernels * k, enum ggml_type type, unpack_fn unpack, int kind) {
    enum { PARTS = 17, DEPTH = PARTS * BYTES_K, GROUPS = BYTES_K / 32 };
    static struct bytes w, x;
    static int8_t q[DEPTH];
    static float dx[DEPTH / 32], s[DEPTH / 32];
    static float values[BYTES_K];
    const size_t bytes = ggml_row_size(type, BYTES_K);
    float y = 7, *results[1] = { &y };
    double exact = 0, terms = 0;
    if (!is_read_in_place(type) || ggml_blck_size(type) != 32) {
        return;
    }
    uint8_t * const blocks = malloc(PARTS * bytes);
    REQUIRE(blocks != NULL);
    for (int part = 0; part < PARTS; part++) {
        for (int i = 0; i < BYTES_K; i++) {
            values[i] = test_random_float(-2, 3);
        }
        gb_quant_format_of(type)->from_float(values, blocks + (size_t) part * bytes, BYTES_K);
        unpack(BYTES_K, w.u, w.d, w.m, blocks + (size_t) part * bytes);
        random_bytes_row(&x, 0);
        memcpy(q + part * BYTES_K, x.q, BYTES_K);
        memcpy(dx + part * GROUPS, x.dx, GROUPS * sizeof(float));
        memcpy(s + part * GROUPS, x.s, GROUPS * sizeof(float));
        double size = 0;
        exact += bytes_oracle(&w, &x, kind, BYTES_K, &size);
        terms += size;
    }
    const int8_t * const all_q[1] = { q };
    const float *const all_dx[1] = { dx }, *const all_s[1] = { s };
    const struct gb_dot_columns_q8 p = { .k = DEPTH,
        .columns = 1,
        .n = 1,
        .w = blocks,
        .nb_w = PARTS * bytes,
        .y = results,
        .q = all_q,
        .dx = all_dx,
        .s = all_s };
    if (k->dot_columns_q8((int) type, &p)) {
        CHECK_MSG(fabs(y - exact) <= 4 * (DEPTH + 1) * EPS * terms,
            "%s dot_columns_q8 of %s, k %d: %.9g, expected %.9g", level_name, ggml_type_name(type), DEPTH, y, exact);
    }
    free(blocks);
}

// An infinite minimum, in any block of a column, times positive activations is infinite, not NaN.
static void check_infinite_minimum(const struct gb_kernels * k, enum ggml_type type) {
    enum { BLOCKS = 17, MINIMUM = 2 }; // the place of the minimum in a block
    static const uint16_t infinity = 0x7c00;
    static int8_t q[32 * BLOCKS];
    static uint8_t blocks[BLOCKS * 32];
    float dx[BLOCKS], s[BLOCKS], y, *results[1] = { &y };
    const int8_t * const all_q[1] = { q };
    const float *const all_dx[1] = { dx }, *const all_s[1] = { s };
    const size_t size = ggml_type_size(type);
    memset(q, 1, sizeof(q));
    for (int i = 0; i < BLOCKS; i++) {
        dx[i] = 1;
        s[i] = 32;
    }
    for (int n = 1; n <= BLOCKS; n++) {
        for (int odd = 0; odd < n; odd++) {
            memset(blocks, 0, sizeof(blocks));
            memcpy(blocks + (size_t) odd * size + MINIMUM, &infinity, sizeof(infinity));
            y = 7;
            const struct gb_dot_columns_q8 p = { .k = 32 * n,
                .columns = 1,
                .n = 1,
                .w = blocks,
                .nb_w = (size_t) n * size,
                .y = results,
                .q = all_q,
                .dx = all_dx,
                .s = all_s };
            CHECK_MSG(!k->dot_columns_q8((int) type, &p) || (isinf(y) && y > 0),
                "%s dot_columns_q8 of %s: %g with an infinite minimum in block %d of %d", level_name,
                ggml_type_name(type), y, odd, n);
        }
    }
}

static void test_dot_columns_q8(const struct gb_kernels * k) {
    check_infinite_minimum(k, GGML_TYPE_Q4_1);
    check_infinite_minimum(k, GGML_TYPE_Q5_1);
    for (int pass = 0; pass < 60; pass++) {
#define GB_FORMAT(id, stem, name, elements, bytes, group, zero, top, use, ...) \
    GB_IF_UNPACKED_##use(check_dot_columns(k, GGML_TYPE_##id, scalar->unpack_##stem, GB_BYTES_KIND(group, top));)
#include "tensor/quant/formats.def"
#undef GB_FORMAT
    }
#define GB_FORMAT(id, stem, name, elements, bytes, group, zero, top, use, ...) \
    GB_IF_UNPACKED_##use(check_long_dot_columns(k, GGML_TYPE_##id, scalar->unpack_##stem, GB_BYTES_KIND(group, top));)
#include "tensor/quant/formats.def"
#undef GB_FORMAT
}

static void test_gemm_tile_q8(const struct gb_kernels * k) {
    enum { N = GB_GEMM_NR_MAX, LDC = N + 3 };
    static struct bytes rows[N], columns[N];
    static float a[BYTES_K * N], b[BYTES_K * N], c[N * LDC], before[N * LDC];
    const int mr_max = k->gemm_q8_mr, nr_max = k->gemm_q8_nr;
    CHECK(mr_max >= 4 && mr_max <= 16 && nr_max >= 1 && nr_max <= N && 128 % nr_max == 0); // blocked.c relies on it
    for (int pass = 0; pass < 160; pass++) {
        const int kind = pass % 8, group = kind & GB_BYTES_HALVES ? 16 : 32, mr = (int) test_random_int(1, mr_max),
                  nr = (int) test_random_int(1, nr_max);
        const bool centered = kind & GB_BYTES_CENTERED;
        const int zero = (int) test_random_int(1, 128);
        const int64_t depth = 32 * (int64_t) test_random_int(0, BYTES_K / 32);
        const bool accumulate = test_random() % 2;
        uint8_t *ab = (uint8_t *) a, *bb = (uint8_t *) b;
        float *dx = a + depth / 4 * mr_max, *s = dx + depth / 32 * mr_max, *d = b + depth / 4 * nr_max,
              *m = d + depth / group * nr_max;
        for (int i = 0; i < mr_max; i++) {
            random_bytes_row(&rows[i], kind & GB_BYTES_HALVES);
            for (int64_t p = 0; p < depth; p++) {
                ab[(p / 32 * mr_max + i) * 32 + p % 32] = (uint8_t) rows[i].q[p];
            }
            for (int64_t g = 0; g < depth / group; g++) {
                dx[g * group / 32 * mr_max + i] = rows[i].dx[g * group / 32];
                s[g * mr_max + i] = centered ? centered_sum(&rows[i], g, group, zero) : rows[i].s[g];
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
        k->gemm_tile_q8(kind,
            &(struct gb_tile) {
                .k = depth, .a = a, .b = b, .c = c, .ldc = LDC, .mr = mr, .nr = nr, .accumulate = accumulate });
        for (int i = 0; i < N * LDC; i++) {
            const int row = i / LDC, column = i % LDC;
            if (row >= mr || column >= nr) {
                CHECK_MSG(c[i] == before[i], "%s gemm_tile_q8 wrote outside %d x %d", level_name, mr, nr);
                continue;
            }
            double size;
            const double exact =
                bytes_oracle(&columns[column], &rows[row], kind, depth, &size) + (accumulate ? before[i] : 0);
            CHECK_MSG(fabs(c[i] - exact) <= 4 * (double) (depth + 1) * EPS * (size + fabs(before[i])),
                "%s gemm_tile_q8 is %g, expected %g", level_name, c[i], exact);
        }
    }
}

// --------------------------------------------------------------------------------------------------- pairs of bfloat16

// The position of pair p of a row in a panel of a.
static int64_t pair_at(const struct gb_kernels * k, int64_t p, int row) {
    return (p / k->bf16_step * k->bf16_mr + row) * k->bf16_step + p % k->bf16_step;
}

static void test_gemm_tile_bf16(const struct gb_kernels * k) {
    enum { PAIRS = 112, LDC = GB_GEMM_NR_MAX + 3 };
    static uint16_t a[PAIRS * GB_GEMM_NR_MAX * 2], b[PAIRS * GB_GEMM_NR_MAX * 2]; // [pair][row][2]
    static float c[GB_GEMM_NR_MAX * LDC], before[GB_GEMM_NR_MAX * LDC];
    const int mr_max = k->bf16_mr, nr_max = k->bf16_nr;
    CHECK(mr_max >= 4 && mr_max <= GB_BF16_MR_MAX && nr_max >= 1 && nr_max <= GB_GEMM_NR_MAX && 128 % nr_max == 0);
    CHECK(k->bf16_step >= 1 && GB_BF16_STEP % k->bf16_step == 0);
    k->enter_tiles();
    for (int pass = 0; pass < 150; pass++) {
        const int mr = (int) test_random_int(1, mr_max), nr = (int) test_random_int(1, nr_max);
        const int64_t pairs = test_random_int(0, PAIRS / k->bf16_step) * k->bf16_step;
        const bool accumulate = test_random() % 2;
        for (int i = 0; i < PAIRS * GB_GEMM_NR_MAX * 2; i++) {
            a[i] = (uint16_t) (to_bits(random_value(TAME)) >> 16);
            b[i] = (uint16_t) (to_bits(random_value(TAME)) >> 16);
        }
        for (int i = 0; i < GB_GEMM_NR_MAX * LDC; i++) {
            before[i] = c[i] = random_value(TAME);
        }
        k->gemm_tile_bf16(&(struct gb_tile) {
            .k = pairs,
            .a = (const float *) (const void *) a,
            .b = (const float *) (const void *) b,
            .c = c,
            .ldc = LDC,
            .mr = mr,
            .nr = nr,
            .accumulate = accumulate,
            .ahead = pass % 2 ? (const char *) a : NULL,
            .ahead_lines = pass % 2,
        });
        for (int i = 0; i < GB_GEMM_NR_MAX * LDC; i++) {
            const int row = i / LDC, column = i % LDC;
            if (row >= mr || column >= nr) {
                CHECK_MSG(c[i] == before[i], "%s gemm_tile_bf16 wrote outside %d x %d", level_name, mr, nr);
                continue;
            }
            double sum = accumulate ? before[i] : 0, size = fabs(before[i]);
            for (int64_t p = 0; p < 2 * pairs; p++) {
                const double term = bfloat_value(a[pair_at(k, p / 2, row) * 2 + p % 2]) *
                                    bfloat_value(b[(p / 2 * nr_max + column) * 2 + p % 2]);
                sum += term;
                size += fabs(term);
            }
            CHECK_MSG(fabs(c[i] - sum) <= 4 * (double) (2 * pairs + 1) * EPS * size,
                "%s gemm_tile_bf16 is %g, expected %g", level_name, c[i], sum);
        }
    }
    k->leave_tiles();
}

// True if the value is one of both neighbours of x, or 0 for a denormal x.
static bool is_rounded(double x, double rounded) {
    return fabs(rounded - x) <= 0x1p-8 * fabs(x) || (fabs(x) < 0x1p-126 && fabs(rounded) <= 0x1p-126);
}

static void test_round_bf16(const struct gb_kernels * k) {
    enum { N = 200, GAP = 3 };
    static uint16_t y[N * (1 + GAP)];
    static float x[N];
    for (int pass = 0; pass < 200; pass++) {
        const int64_t n = test_random_int(0, N);
        const bool together = pass % 2, limited = pass % 4 < 2;
        size_t written = 0;
        for (int i = 0; i < N; i++) {
            x[i] = random_value(pass % 3 ? TAME : WILD);
        }
        memset(y, 0xee, sizeof(y));
        k->round_bf16(&(struct gb_round_bf16) {
            .k = n, .together = together ? N : 32, .stride = 32 * GAP, .limited = limited, .y = y, .x = x });
        for (int64_t i = 0; i < n; i++) {
            const int64_t at = together ? i : i / 32 * 32 * GAP + i % 32;
            const double got = bfloat_value(y[at]);
            const bool nan = isnan(x[i]) || (limited && !(fabsf(x[i]) < 0x1p100f));
            CHECK_MSG(nan          ? isnan(got)
                      : isinf(got) ? fabsf(x[i]) > 0x1.fep127f
                                   : is_rounded((double) x[i], got),
                "%s round_bf16 of %g is %g", level_name, x[i], got);
        }
        for (size_t i = 0; i < sizeof(y) / sizeof(y[0]); i++) {
            written += y[i] != 0xeeee;
        }
        CHECK_MSG((int64_t) written <= n, "%s round_bf16 wrote %d values for %d", level_name, (int) written, (int) n);
    }
}

static void test_bytes_to_bf16(const struct gb_kernels * k) {
    static struct bytes column;
    static float x[BYTES_K * GB_GEMM_NR_MAX], y[BYTES_K / 2 * GB_GEMM_NR_MAX];
    const int nr = k->gemm_q8_nr;
    for (int pass = 0; pass < 60; pass++) {
        const int kind = pass % 8, group = kind & GB_BYTES_HALVES ? 16 : 32, zero = (int) test_random_int(1, 128);
        const bool centered = kind & GB_BYTES_CENTERED;
        const int64_t depth = 32 * (int64_t) test_random_int(1, BYTES_K / 32);
        float *const d = x + depth / 4 * nr, *m = d + depth / group * nr;
        for (int j = 0; j < nr; j++) { // each place has another column, identified by its levels and scales
            random_bytes_row(&column, kind);
            for (int64_t p = 0; p < depth; p++) {
                ((uint8_t *) x)[(p / 4 * nr + j) * 4 + p % 4] = column.u[p];
            }
            for (int64_t g = 0; g < depth / group; g++) {
                d[g * nr + j] = column.d[g];
                m[g * nr + j] = centered ? NAN : column.m[g];
            }
        }
        k->bytes_to_bf16(&(struct gb_bytes_to_bf16) { .k = depth, .kind = kind, .zero = zero, .x = x, .y = y });
        for (int64_t i = 0; i < depth * nr; i++) {
            const int64_t p = i / nr, j = i % nr, g = p / group;
            const double u = ((const uint8_t *) x)[(p / 4 * nr + j) * 4 + p % 4], scale = (double) d[g * nr + j];
            const double minimum = centered ? -zero * scale : (double) m[g * nr + j], exact = u * scale + minimum;
            const double found = bfloat_value(((const uint16_t *) y)[(p / 2 * nr + j) * 2 + p % 2]);
            const double float_error = 4 * EPS * (fabs(u * scale) + fabs(minimum));
            CHECK_MSG(fabs(found - exact) <= 0x1p-8 * fabs(exact) + float_error,
                "%s bytes_to_bf16 kind %d is %g, expected %g", level_name, kind, found, exact);
        }
    }
}

#endif // GB_TESTS_TEST_KERNELS_BYTES_H
