// The kernels of gemm.tpl.h, for test_kernels.c: tiles of floats against sums in double, on panels
// and on plain rows. Packing against index arithmetic.

static double tile_oracle(int64_t k, const float * a, int a_step, const float * b, int b_step, double * size) {
    double sum = 0;
    *size = 0;
    for (int64_t p = 0; p < k; p++) {
        sum += (double) a[p * a_step] * b[p * b_step];
        *size += fabs((double) a[p * a_step] * b[p * b_step]);
    }
    return sum;
}

static void test_gemm_tile_f32(const struct gb_kernels * k) {
    static float a[300 * GB_GEMM_NR_MAX], b[300 * GB_GEMM_NR_MAX], c[GB_GEMM_NR_MAX * 100],
        before[GB_GEMM_NR_MAX * 100], whole[GB_GEMM_NR_MAX * 100], lying[GB_GEMM_NR_MAX * 100];
    const int mr_max = k->gemm_mr, nr_max = k->gemm_nr;
    const int64_t depths[] = { 0, 1, 2, 3, 17, 55, 64, 300 };
    // blocked.c relies on it
    CHECK(mr_max >= 4 && mr_max <= GB_GEMM_MR_MAX && nr_max >= 1 && nr_max <= GB_GEMM_NR_MAX && 128 % nr_max == 0);
    for (int pass = 0; pass < 400; pass++) {
        const int64_t depth = depths[pass % 8], ldc = nr_max + (int64_t) test_random_int(0, 20);
        const int mr = (int) test_random_int(1, mr_max), nr = (int) test_random_int(1, nr_max);
        const bool accumulate = test_random() % 2;
        for (int i = 0; i < 300 * GB_GEMM_NR_MAX; i++) {
            a[i] = random_value(TAME);
            b[i] = random_value(TAME);
        }
        for (int i = 0; i < GB_GEMM_NR_MAX * 100; i++) {
            lying[i] = whole[i] = before[i] = c[i] = random_value(TAME);
        }
        // rows that may overlap, in either order, and end with the memory
        const int64_t step = (int64_t) test_random_int(1, (int) depth + 20), lda = pass % 3 == 0 ? -step : step;
        const size_t floats = (size_t) ((mr - 1) * step + depth);
        float * const memory = malloc((floats + 1) * sizeof(float));
        float * const rows = memory + 1 + (lda < 0 ? (mr - 1) * step : 0);
        for (size_t i = 0; i < floats; i++) {
            memory[1 + i] = random_value(TAME);
        }
        for (int i = 0; i < mr; i++) {
            for (int64_t p = 0; p < depth; p++) {
                a[p * mr_max + i] = rows[i * lda + p];
            }
        }
        const struct gb_tile part = {
            .k = depth, .a = a, .b = b, .c = c, .ldc = ldc, .mr = mr, .nr = nr, .accumulate = accumulate
        };
        struct gb_tile all = part;
        all.c = whole;
        all.mr = mr_max;
        all.nr = nr_max;
        struct gb_tile as_rows = part;
        as_rows.a = rows;
        as_rows.lda = lda;
        as_rows.c = lying;
        k->gemm_tile_f32(&part);
        k->gemm_tile_f32(&all);
        k->gemm_tile_f32(&as_rows);
        free(memory);
        CHECK_MSG(memcmp(lying, c, sizeof(c)) == 0, "%s gemm_tile_f32 on rows as they lie gives other bits",
            level_name);
        for (int i = 0; i < GB_GEMM_NR_MAX * 100; i++) {
            const int64_t row = i / ldc, column = i % ldc;
            if (row >= mr || column >= nr) {
                CHECK_MSG(c[i] == before[i], "%s gemm_tile_f32 wrote outside %d x %d", level_name, mr, nr);
                continue;
            }
            double size;
            const double exact =
                tile_oracle(depth, a + row, mr_max, b + column, nr_max, &size) + (accumulate ? before[i] : 0);
            CHECK_MSG(fabs(c[i] - exact) <= 4 * (double) (depth + 1) * EPS * (size + fabs(before[i])),
                "%s gemm_tile_f32 is %g, expected %g", level_name, c[i], exact);
            CHECK_MSG(same_bits(c[i], whole[i]), "%s gemm_tile_f32 depends on the tile's shape", level_name);
        }
    }
}

static void check_pack(const char * name, void (*fn)(int64_t, int, int, float *, const void * const *), size_t element,
    double (*value)(const void *, int64_t)) {
    static unsigned char source[GB_GEMM_NR_MAX * 64 * 4];
    for (int pass = 0; pass < 1500; pass++) {
        const int width = (int) test_random_int(1, GB_GEMM_NR_MAX), rows = (int) test_random_int(1, width);
        const int64_t k = test_random_int(0, 63);
        const void * x[GB_GEMM_NR_MAX];
        float * y = row_new(&row_y, k * width, sizeof(float));
        for (size_t i = 0; i < sizeof(source); i++) {
            source[i] = (unsigned char) test_random();
        }
        for (int i = 0; i < rows; i++) {
            x[i] = source + (size_t) (rows - 1 - i) * 63 * element;
        }
        fn(k, rows, width, y, x);
        CHECK_MSG(row_intact(&row_y), "%s %s writes outside: k %lld, %d of %d", level_name, name, (long long) k, rows,
            width);
        for (int64_t j = 0; j < k; j++) {
            for (int i = 0; i < width; i++) {
                const float wish = i < rows ? (float) value(x[i], j) : 0.0f;
                CHECK_MSG(same_bits(y[j * width + i], wish), "%s %s: k %lld, %d of %d, [%lld][%d] is %a, expected %a",
                    level_name, name, (long long) k, rows, width, (long long) j, i, y[j * width + i], wish);
            }
        }
    }
}

static void test_pack_f32(const struct gb_kernels * k) { check_pack("pack_f32", k->pack_f32, 4, float_bits_value); }
static void test_pack_f16(const struct gb_kernels * k) { check_pack("pack_f16", k->pack_f16, 2, half_bits_value); }
static void test_pack_bf16(const struct gb_kernels * k) { check_pack("pack_bf16", k->pack_bf16, 2, bfloat_bits_value); }

static void test_pack_terms_f32(const struct gb_kernels * k) {
    for (int pass = 0; pass < 1500; pass++) {
        const int width = (int) test_random_int(1, GB_GEMM_NR_MAX), rows = (int) test_random_int(1, width);
        const int64_t terms = test_random_int(0, 40), ldx = rows + test_random_int(0, 20);
        const int64_t floats = terms > 0 ? (terms - 1) * ldx + rows : 0;
        float * x = random_row(&row_x, floats, WILD); // ends with the last term
        float * y = row_new(&row_y, terms * width, sizeof(float));
        k->pack_terms_f32(terms, rows, width, y, x, ldx);
        CHECK(row_intact(&row_x) && row_intact(&row_y));
        for (int64_t j = 0; j < terms; j++) {
            for (int i = 0; i < width; i++) {
                const float wish = i < rows ? x[j * ldx + i] : 0.0f;
                CHECK_MSG(to_bits(y[j * width + i]) == to_bits(wish), "%s pack_terms_f32: %d of %d, [%lld][%d] is %a",
                    level_name, rows, width, (long long) j, i, y[j * width + i]);
            }
        }
    }
}
