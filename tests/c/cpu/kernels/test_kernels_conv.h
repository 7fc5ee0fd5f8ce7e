// The kernels of convolution.tpl.h, for test_kernels.c: tiles and rows against sums in double.

enum { CONV_TERMS = 40, CONV_X = 4096 };

// Random offsets, so that kernels and channels can be anywhere.
static void random_offsets(int64_t * offsets, int64_t k, int64_t most) {
    for (int64_t i = 0; i < k; i++) {
        offsets[i] = test_random_int(0, most);
    }
}

static double conv_oracle(int64_t k, const float * w, const float * x, const int64_t * offsets, double * size) {
    double sum = 0;
    *size = 0;
    for (int64_t i = 0; i < k; i++) {
        sum += (double) w[i] * x[offsets[i]];
        *size += fabs((double) w[i] * x[offsets[i]]);
    }
    return sum;
}

static void test_conv_tile_f32(const struct gb_kernels * k) {
    static float a[GB_GEMM_MR_MAX * (CONV_TERMS + 3)], x[CONV_X], c[GB_GEMM_MR_MAX * 80], before[GB_GEMM_MR_MAX * 80];
    int64_t offsets[CONV_TERMS];
    for (int pass = 0; pass < 300; pass++) {
        const int64_t terms = test_random_int(0, CONV_TERMS), lda = terms + test_random_int(0, 3);
        const int mr = (int) test_random_int(1, k->gemm_mr), nr = (int) test_random_int(1, k->gemm_nr);
        const int64_t ldc = nr + test_random_int(0, 10);
        for (int i = 0; i < GB_GEMM_MR_MAX * (CONV_TERMS + 3); i++) {
            a[i] = random_value(TAME);
        }
        for (int i = 0; i < CONV_X; i++) {
            x[i] = random_value(TAME);
        }
        for (int i = 0; i < GB_GEMM_MR_MAX * 80; i++) {
            c[i] = before[i] = random_value(TAME);
        }
        random_offsets(offsets, terms, CONV_X - 2 * GB_GEMM_NR_MAX);
        const struct gb_conv_tile tile = { terms, a, lda, x, offsets, c, ldc, mr, nr };
        k->conv_tile_f32(&tile);
        for (int i = 0; i < GB_GEMM_MR_MAX * 80; i++) {
            const int64_t row = i / ldc, column = i % ldc;
            if (row >= mr || column >= nr) {
                CHECK_MSG(c[i] == before[i], "%s conv_tile_f32 wrote outside %d x %d", level_name, mr, nr);
                continue;
            }
            double size;
            const double exact = conv_oracle(terms, a + row * lda, x + column, offsets, &size);
            CHECK_MSG(fabs(c[i] - exact) <= 4 * (double) (terms + 1) * EPS * size,
                "%s conv_tile_f32 is %g, expected %g", level_name, c[i], exact);
        }
    }
}

static void test_conv_rows_f32(const struct gb_kernels * k) {
    static float w[CONV_TERMS], x[CONV_X], y[CONV_X], before[CONV_X];
    int64_t offsets[CONV_TERMS];
    for (int pass = 0; pass < 400; pass++) {
        const int side = pass % 3 == 0 ? 3 : pass % 3 == 1 ? 5 : 0;
        const int64_t terms = side > 0 ? side * side : test_random_int(0, CONV_TERMS);
        const int64_t rows = pass % 7 == 0 ? 1 : test_random_int(1, 9), n = test_random_int(1, rows == 1 ? 200 : 70);
        const int64_t pitch = n + test_random_int(0, 6), ldy = n + test_random_int(0, 5);
        for (int i = 0; i < CONV_TERMS; i++) {
            w[i] = random_value(TAME);
        }
        for (int i = 0; i < CONV_X; i++) {
            x[i] = random_value(TAME);
            y[i] = before[i] = random_value(TAME);
        }
        random_offsets(offsets, terms, CONV_X - 1200);
        for (int64_t i = 0; i < terms && side > 0; i++) {
            offsets[i] = i < side ? offsets[i] % 500 : offsets[i - side] + pitch;
        }
        const struct gb_conv_rows p = { terms, w, x, offsets, pitch, y, ldy, rows, n, side };
        k->conv_rows_f32(&p);
        for (int i = 0; i < CONV_X; i++) {
            const int64_t row = i / ldy, column = i % ldy;
            if (row >= rows || column >= n) {
                CHECK_MSG(y[i] == before[i], "%s conv_rows_f32 wrote outside", level_name);
                continue;
            }
            double size;
            const double exact = conv_oracle(terms, w, x + row * pitch + column, offsets, &size);
            CHECK_MSG(fabs(y[i] - exact) <= 4 * (double) (terms + 1) * EPS * size,
                "%s conv_rows_f32 is %g, expected %g", level_name, y[i], exact);
        }
    }
}

// x ends with the last element that is used, so that sanitizers see reads after it.
static void test_every_f32(const struct gb_kernels * k) {
    for (int64_t n = 0; n < 70; n++) {
        for (int64_t stride = 1; stride < 5; stride++) {
            const size_t used = n > 0 ? (size_t) ((n - 1) * stride + 1) : 0;
            float *x = malloc((used + 1) * sizeof(float)), *end = x + 1;
            float y[80];
            for (size_t i = 0; i < used; i++) {
                end[i] = random_value(WILD);
            }
            y[n] = 7;
            k->every_f32(n, y, end, stride);
            for (int64_t i = 0; i < n; i++) {
                CHECK_MSG(to_bits(y[i]) == to_bits(end[i * stride]), "%s every_f32 of %d, %d apart", level_name,
                    (int) n, (int) stride);
            }
            CHECK(y[n] == 7);
            free(x);
        }
    }
}

// x ends with the plane, so that sanitizers see reads after it.
static void test_conv_plane_f32(const struct gb_kernels * k) {
    for (int pass = 0; pass < 300; pass++) {
        const int side = 3 + 2 * (int) test_random_int(0, 2), stride = 1 + pass % 2;
        const int64_t in_w = test_random_int(1, 40), in_h = test_random_int(1, 12), ldx = in_w + test_random_int(0, 3);
        const int64_t pad_w = test_random_int(0, 9), pad_h = test_random_int(0, 9);
        if (in_w + 2 * pad_w < side || in_h + 2 * pad_h < side) {
            continue;
        }
        const int64_t out_w = (in_w + 2 * pad_w - side) / stride + 1, out_h = (in_h + 2 * pad_h - side) / stride + 1;
        const int64_t ldy = out_w + test_random_int(0, 3), used = (in_h - 1) * ldx + in_w;
        static float w[49], y[CONV_X], before[CONV_X];
        float * x = malloc((size_t) used * sizeof(float));
        for (int i = 0; i < side * side; i++) {
            w[i] = random_value(TAME);
        }
        for (int64_t i = 0; i < used; i++) {
            x[i] = random_value(TAME);
        }
        for (int i = 0; i < CONV_X; i++) {
            y[i] = before[i] = random_value(TAME);
        }
        const struct gb_conv_plane p = { side, stride, w, x, ldx, in_w, in_h, pad_w, pad_h, y, ldy, out_w, out_h };
        k->conv_plane_f32(&p);
        for (int64_t i = 0; i < CONV_X; i++) {
            const int64_t row = i / ldy, column = i % ldy;
            if (row >= out_h || column >= out_w) {
                CHECK_MSG(y[i] == before[i], "%s conv_plane_f32 wrote outside", level_name);
                continue;
            }
            double sum = 0, size = 0;
            for (int e = 0; e < side * side; e++) {
                const int64_t r = row * stride + e / side - pad_h, c = column * stride + e % side - pad_w;
                if (r >= 0 && r < in_h && c >= 0 && c < in_w) {
                    sum += (double) w[e] * x[r * ldx + c];
                    size += fabs((double) w[e] * x[r * ldx + c]);
                }
            }
            CHECK_MSG(fabs(y[i] - sum) <= 4 * 50 * EPS * size,
                "%s conv_plane_f32 of side %d, stride %d is %g, expected %g", level_name, side, stride, y[i], sum);
        }
        free(x);
    }
}

static void test_weave_f32(const struct gb_kernels * k) {
    static float x[CONV_X], y[CONV_X];
    for (int64_t ways = 1; ways < 10; ways++) {
        for (int64_t n = 0; n < 70; n++) {
            const int64_t ldx = n + test_random_int(0, 5);
            for (int i = 0; i < CONV_X; i++) {
                x[i] = random_value(WILD);
            }
            y[n * ways] = 7;
            k->weave_f32(n, ways, y, x, ldx);
            for (int64_t i = 0; i < n * ways; i++) {
                CHECK_MSG(to_bits(y[i]) == to_bits(x[i % ways * ldx + i / ways]), "%s weave_f32 of %d, %d ways",
                    level_name, (int) n, (int) ways);
            }
            CHECK(y[n * ways] == 7);
        }
    }
}
