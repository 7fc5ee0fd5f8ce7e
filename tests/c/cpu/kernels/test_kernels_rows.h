// The kernels of rows.tpl.h, blocks.tpl.h and moves.tpl.h, for test_kernels.c: against formulas in
// double, against the quantized formats, and bytes against index arithmetic.
#include "tensor/quant/quant.h"

static float bias_row[MAX_N], weight_row[MAX_N];

static void fill_affine(int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        weight_row[i] = test_random_float(-2, 2);
        bias_row[i] = test_random_float(-2, 2);
    }
}

// 16 eps of the value, of the subtracted value, and of the parts of the affine map.
static void check_norm(const struct gb_kernels * k, bool rms, int64_t n, float offset, int with) {
    const float eps = 1e-5f;
    float * x = random_row(&row_x, n, TAME);
    float * y = row_new(&row_y, n, sizeof(float));
    double mean = 0, var = 0, size = 0;
    fill_affine(n);
    for (int64_t i = 0; i < n; i++) {
        x[i] += offset;
        mean += rms ? 0 : (double) x[i] / (double) n;
        size += fabs((double) x[i]) / (double) n;
    }
    for (int64_t i = 0; i < n; i++) {
        var += (x[i] - mean) * (x[i] - mean) / (double) n;
    }
    const float * w = with > 0 ? weight_row : NULL;
    const float * b = with > 1 && !rms ? bias_row : NULL;
    rms ? k->rms_norm_row_f32(n, y, x, eps, w) : k->norm_row_f32(n, y, x, eps, w, b);
    CHECK(row_intact(&row_x) && row_intact(&row_y));
    for (int64_t i = 0; i < n; i++) {
        const double scale = 1 / sqrt(var + (double) eps), m = w != NULL ? (double) w[i] : 1,
                     a = b != NULL ? (double) b[i] : 0;
        const double exact = (x[i] - mean) * scale * m + a;
        const double bound = 16 * EPS * ((fabs(x[i] - mean) + (rms ? 0 : size)) * scale * fabs(m) + fabs(a)) + 1e-30;
        CHECK_MSG(fabs(y[i] - exact) <= bound, "%s norm (rms %d, n %lld) is %.9g, expected %.9g +- %g", level_name, rms,
            (long long) n, y[i], exact, bound);
    }
    float * z = row_new(&row_z, n, sizeof(float));
    memcpy(z, x, (size_t) n * sizeof(float));
    rms ? k->rms_norm_row_f32(n, z, z, eps, w) : k->norm_row_f32(n, z, z, eps, w, b);
    CHECK(row_intact(&row_z) && same_array(y, z, n));
    rms ? k->rms_norm_row_f32(n, z, x, eps, NULL) : k->norm_row_f32(n, z, x, eps, NULL, NULL);
    if (w != NULL) { // the same bits as the separate operators
        k->mul_f32(n, z, z, w);
    }
    if (b != NULL) {
        k->add_f32(n, z, z, b);
    }
    CHECK_MSG(same_array(y, z, n), "%s norm with weight and bias differs from norm, mul, add", level_name);
}

static void check_norms(const struct gb_kernels * k, bool rms) {
    for (int s = 0; s < N_SIZES; s++) {
        check_norm(k, rms, size_at(s), s % 3 == 0 ? 1000.0f : 0.0f, s % 4);
    }
    float x[40], y[40];
    for (int i = 0; i < 40; i++) {
        x[i] = i % 2 ? 1e30f : -1e30f;
    }
    rms ? k->rms_norm_row_f32(40, y, x, 1e-5f, NULL) : (void) 0;
    CHECK(!rms || (fabs(y[0] + 1) < 1e-6 || fabs(y[0]) < 1e-6)); // the mean square is beyond float: 1 / infinity
    x[7] = NAN;
    rms ? k->rms_norm_row_f32(40, y, x, 1e-5f, NULL) : k->norm_row_f32(40, y, x, 1e-5f, NULL, NULL);
    CHECK(isnan(y[0]) && isnan(y[39]));
}

static void test_norm_row_f32(const struct gb_kernels * k) { check_norms(k, false); }
static void test_rms_norm_row_f32(const struct gb_kernels * k) { check_norms(k, true); }

// Bounds are relative to the terms of a result, which cancel.
static void test_soft_max_back_row_f32(const struct gb_kernels * k) {
    for (int s = 0; s < N_SIZES; s++) {
        const int64_t n = size_at(s);
        float * y = random_row(&row_x, n, TAME);
        float * dy = random_row(&row_y, n, TAME);
        float * z = row_new(&row_z, n, sizeof(float));
        double product = 0, size = 0;
        for (int64_t i = 0; i < n; i++) {
            product += (double) y[i] * dy[i];
            size += fabs((double) y[i] * dy[i]);
        }
        k->soft_max_back_row_f32(n, z, y, dy);
        CHECK(row_intact(&row_x) && row_intact(&row_y) && row_intact(&row_z));
        for (int64_t i = 0; i < n; i++) {
            const double exact = y[i] * (dy[i] - product), terms = fabs(y[i]) * (fabs(dy[i]) + (double) n * size);
            CHECK_MSG(fabs(z[i] - exact) <= 4 * EPS * terms, "%s soft_max_back_row_f32 is %.9g, expected %.9g",
                level_name, z[i], exact);
        }
        float * const place = s % 2 ? y : dy;
        k->soft_max_back_row_f32(n, place, y, dy);
        CHECK_MSG(same_array(z, place, n), "%s soft_max_back_row_f32 in place differs", level_name);
    }
}

static void check_soft_max_far(const struct gb_kernels * k);

static void test_soft_max_row_f32(const struct gb_kernels * k) {
    check_soft_max_far(k);
    for (int s = 1; s < N_SIZES; s++) {
        const int64_t n = size_at(s);
        float * x = random_row(&row_x, n, TAME);
        float * mask = s % 2 ? random_row(&row_z, n, TAME) : NULL;
        float * y = row_new(&row_y, n, sizeof(float));
        const float scale = s % 3 ? 0.7f : 1.0f;
        double max = -INFINITY, sum = 0;
        if (n > 3) {
            (mask != NULL ? mask : x)[1] = -INFINITY;
        }
        for (int64_t i = 0; i < n; i++) {
            max = fmax(max, (double) x[i] * scale + (mask != NULL ? mask[i] : 0));
        }
        for (int64_t i = 0; i < n; i++) {
            sum += exp((double) x[i] * scale + (mask != NULL ? mask[i] : 0) - max);
        }
        k->soft_max_row_f32(n, y, x, scale, mask);
        CHECK(row_intact(&row_x) && row_intact(&row_y));
        for (int64_t i = 0; i < n; i++) { // arguments up to 16 have two roundings
            const double exact = exp((double) x[i] * scale + (mask != NULL ? mask[i] : 0) - max) / sum;
            CHECK_MSG(fabs(y[i] - exact) <= 60 * EPS * exact, "%s soft_max_row_f32 is %.9g, expected %.9g", level_name,
                y[i], exact);
        }
        CHECK(n <= 3 || same_bits(y[1], 0.0f));
        k->soft_max_row_f32(n, x, x, scale, mask);
        CHECK(same_array(x, y, n));
    }
    float x[70], y[70];
    for (int n = 1; n <= 70; n++) {
        for (int i = 0; i < n; i++) {
            x[i] = -INFINITY;
        }
        k->soft_max_row_f32(n, y, x, 1.0f, NULL);
        CHECK(same_bits(y[0], 0.0f) && same_bits(y[n - 1], 0.0f));
        x[n / 2] = 5;
        k->soft_max_row_f32(n, y, x, 0.5f, NULL);
        CHECK(y[n / 2] == 1.0f);
        // a NaN or +inf makes the whole row NaN, even if all other elements are -inf
        for (int extreme = 0; extreme < 2; extreme++) {
            float mask[70];
            x[n / 2] = extreme ? -INFINITY : 5;
            x[n - 1] = NAN;
            for (int way = 0; way < 4; way++) {
                for (int i = 0; i < n; i++) {
                    mask[i] = way == 3 && i % 2 ? -INFINITY : 0;
                }
                x[n - 1] = way == 3 && n % 2 ? INFINITY : NAN;
                k->soft_max_row_f32(n, y, x, way == 1 ? 0.5f : 1.0f, way >= 2 ? mask : NULL);
                for (int i = 0; i < n; i++) {
                    CHECK_MSG(isnan(y[i]), "%s soft_max_row_f32 of a row of %d with NaN gives %g at %d", level_name, n,
                        y[i], i);
                }
            }
            x[n - 1] = -INFINITY;
        }
    }
}

// Products with the scale may overflow, and such an element is no mask.
static void check_soft_max_far(const struct gb_kernels * k) {
    static const float scales[] = { -10, 10, 3.4e38f };
    for (int n = 1; n <= 70; n++) {
        for (int s = 0; s < 3; s++) {
            float x[70], y[70], mask[70];
            double sum = 0;
            for (int i = 0; i < n; i++) {
                const bool hidden = i % 5 == 4;
                x[i] =
                    (scales[s] < 0 ? 3e38f : -3e38f) / (scales[s] > 100 ? 3e37f : 1) * (i % 3 ? 1.0f : 1.0f + 0x1p-20f);
                // Hidden elements may overflow to +inf. The others overflow to -inf, or not at all.
                x[i] = hidden ? (n % 2 ? -x[i] : x[i]) : n % 3 ? x[i] : 1e-3f / scales[s] * (float) (i % 7);
                mask[i] = hidden ? -INFINITY : 0;
            }
            for (int way = 0; way < 2; way++) {
                const float * m = way ? mask : NULL;
                double max = -INFINITY;
                sum = 0;
                for (int i = 0; i < n; i++) {
                    max = fmax(max, (double) x[i] * scales[s] + (m ? m[i] : 0));
                }
                for (int i = 0; i < n; i++) {
                    sum += exp((double) x[i] * scales[s] + (m ? m[i] : 0) - max);
                }
                k->soft_max_row_f32(n, y, x, scales[s], m);
                for (int i = 0; i < n; i++) {
                    const double exact = exp((double) x[i] * scales[s] + (m ? m[i] : 0) - max) / sum;
                    CHECK_MSG(fabs(y[i] - exact) <= 60 * EPS * exact + 0x1p-140,
                        "%s soft_max_row_f32, scale %g: %g, expected %g", level_name, scales[s], y[i], exact);
                }
                float over[70];
                memcpy(over, x, sizeof(over));
                k->soft_max_row_f32(n, over, over, scales[s], m);
                CHECK(same_array(over, y, n));
            }
        }
    }
}

static void test_sincos_f64(const struct gb_kernels * k) {
    enum { N = 37 };
    double angle[N];
    float c[N], s[N];
    for (int pass = 0; pass < 2000; pass++) {
        for (int i = 0; i < N; i++) {
            angle[i] = ldexp((double) test_random_float(-1, 1), (int) test_random_int(-20, 20));
        }
        angle[0] = 0;
        k->sincos_f64(N, c, s, angle);
        for (int i = 0; i < N; i++) {
            CHECK_MSG(ulps(c[i], cos(angle[i])) <= 1 || fabs(c[i] - cos(angle[i])) < 1e-14, "%s cos(%a) is %a",
                level_name, angle[i], c[i]);
            CHECK_MSG(ulps(s[i], sin(angle[i])) <= 1 || fabs(s[i] - sin(angle[i])) < 1e-14, "%s sin(%a) is %a",
                level_name, angle[i], s[i]);
        }
        CHECK(c[0] == 1.0f && same_bits(s[0], 0.0f));
    }
}

// Places next to each other and far apart, also at the ends of the row. Without weights, results have
// the bits of the elements, even of NaN.
static void test_resample_f32(const struct gb_kernels * k) {
    enum { N = 83, LENGTH = 400, TAPS = 5 };
    static int32_t at[TAPS * N];
    static float w[TAPS * N], y[N + 1];
    for (int pass = 0; pass < 400; pass++) {
        const int64_t n = test_random_int(0, N), length = pass % 3 == 0 ? 1 + pass % 40 : LENGTH;
        const int taps = pass % 4 == 0 ? 1 : (int) test_random_int(1, TAPS), step = pass % 6;
        float * x = random_row(&row_x, length, TAME);
        for (int64_t i = 0, place = 0; i < n; i++) {
            for (int t = 0; t < taps; t++) {
                at[t * n + i] = (int32_t) (place + t < length ? place + t : length - 1);
                w[t * n + i] = test_random_float(-2, 2);
            }
            place += test_random_int(0, (uint32_t) step);
        }
        if (pass % 4 == 0) {
            x[length - 1] = NAN;
        }
        y[n] = 77;
        k->resample_f32(n, y, length, x, taps, at, pass % 4 == 0 ? NULL : w);
        for (int64_t i = 0; i < n; i++) {
            double sum = 0, size = 0;
            for (int t = 0; t < taps; t++) {
                const double term = (double) w[t * n + i] * (double) x[at[t * n + i]];
                sum += term;
                size += fabs(term);
            }
            CHECK_MSG(pass % 4 == 0 ? to_bits(y[i]) == to_bits(x[at[i]]) : fabs(y[i] - sum) <= 4 * TAPS * EPS * size,
                "%s resample_f32, result %d of %d is %g, expected %g", level_name, (int) i, (int) n, y[i], sum);
        }
        CHECK(y[n] == 77);
    }
}

// Rows at any address, to any address, also added to what is there and stored past the caches. Nothing behind the
// result is written.
static void test_combine_f32(const struct gb_kernels * k) {
    enum { N = 83, OFF = 16 };
    static float x[GB_COMBINE_ROWS][N + OFF], before[N + OFF + 1];
    static _Alignas(64) float y[N + OFF + 1];
    for (int pass = 0; pass < 400; pass++) {
        const int taps = 1 + pass % GB_COMBINE_ROWS, n = (int) test_random_int(0, N),
                  off = (int) test_random_int(0, OFF);
        const bool add = test_random_int(0, 1), far = test_random_int(0, 1);
        const float * rows[GB_COMBINE_ROWS];
        float w[GB_COMBINE_ROWS];
        for (int t = 0; t < taps; t++) {
            for (int i = 0; i < N + OFF; i++) {
                x[t][i] = test_random_float(-2, 2);
            }
            rows[t] = x[t] + test_random_int(0, OFF);
            w[t] = test_random_float(-2, 2);
        }
        for (int i = 0; i <= N + OFF; i++) {
            y[i] = before[i] = test_random_float(-2, 2);
        }
        k->combine_f32(&(struct gb_combine) { .n = n,
            .n_next = pass % 2 == 0 ? n : 0,
            .y = y + off,
            .x = rows,
            .w = w,
            .next = rows[0],
            .taps = taps,
            .add = add,
            .far = far });
        k->stream_f32(0, NULL, NULL, NULL, true);
        for (int i = 0; i <= N + OFF; i++) {
            const bool inside = i >= off && i < off + n;
            double sum = inside && !add ? 0 : (double) before[i], size = fabs(sum);
            for (int t = 0; t < taps && inside; t++) {
                const double term = (double) w[t] * (double) rows[t][i - off];
                sum += term;
                size += fabs(term);
            }
            CHECK_MSG(fabs((double) y[i] - sum) <= (inside ? 4 * GB_COMBINE_ROWS * EPS * size : 0),
                "%s combine_f32, %d rows, result %d of %d is %g, expected %g", level_name, taps, i - off, n,
                (double) y[i], sum);
        }
    }
}

// ---------------------------------------------------------------------------------------------------- recurrent layers

enum { STATE_MAX = 40 };
static float state[STATE_MAX * GB_LANES], state_before[STATE_MAX * GB_LANES], decay[STATE_MAX * GB_LANES];
static float keys[4][STATE_MAX], lanes[3][GB_LANES];

static void fill_state(void) {
    for (int i = 0; i < STATE_MAX * GB_LANES; i++) {
        state[i] = state_before[i] = test_random_float(-2, 2);
        decay[i] = test_random_float(0, 1);
    }
    for (int r = 0; r < 4; r++) {
        for (int i = 0; i < STATE_MAX; i++) {
            keys[r][i] = test_random_float(-2, 2);
        }
    }
    for (int r = 0; r < 3; r++) {
        for (int i = 0; i < GB_LANES; i++) {
            lanes[r][i] = test_random_float(-2, 2);
        }
    }
}

// want: the element in double. y: the sum of r and the new elements. Elements beyond n are
// unchanged.
static void check_state(int64_t n, const float * y, const float * r, double (*want)(int64_t j, int lane),
    const char * name) {
    for (int lane = 0; lane < GB_LANES; lane++) {
        double sum = 0, size = 0;
        for (int64_t j = 0; j < STATE_MAX; j++) {
            const float got = state[j * GB_LANES + lane];
            const double exact = j < n ? want(j, lane) : (double) state_before[j * GB_LANES + lane];
            CHECK_MSG(fabs(got - exact) <= (j < n ? 64 * EPS : 0), "%s %s: element %lld of lane %d", level_name, name,
                (long long) j, lane);
            sum += j < n && r != NULL ? exact * (double) r[j] : 0;
            size += j < n && r != NULL ? fabs(exact * (double) r[j]) + 20 : 0;
        }
        CHECK_MSG(y == NULL || fabs(y[lane] - sum) <= 64 * EPS * size, "%s %s: sum of lane %d is %g, expected %g",
            level_name, name, lane, y != NULL ? y[lane] : 0, sum);
    }
}

static struct gb_lanes_step step_now;

static double want_step(int64_t j, int lane) {
    const struct gb_lanes_step * p = &step_now;
    return (double) p->wv[j] * (double) state_before[j * GB_LANES + lane] + (double) p->k[j] * (double) p->u[lane] +
           (p->b != NULL ? (double) p->b[j] * (double) p->c[lane] : 0);
}

static void test_lanes_step_f32(const struct gb_kernels * k) {
    float y[GB_LANES];
    for (int64_t n = 0; n <= STATE_MAX; n++) {
        for (int form = 0; form < 3; form++) { // the forms that operators use
            fill_state();
            step_now = (struct gb_lanes_step) { .wv = keys[0], .k = keys[1], .u = lanes[0] };
            step_now.b = form == 1 ? keys[2] : NULL;
            step_now.c = form == 1 ? lanes[1] : NULL;
            step_now.r = form == 2 ? NULL : keys[3];
            k->lanes_step_f32(n, form == 2 ? NULL : y, state, &step_now);
            check_state(n, form == 2 ? NULL : y, step_now.r, want_step, "lanes_step_f32");
        }
    }
}

static double want_scan(int64_t j, int lane) {
    const double w = exp((double) decay[j * GB_LANES + lane] * (double) lanes[1][lane]);
    return w * (double) state_before[j * GB_LANES + lane] + (double) keys[1][j] * (double) lanes[0][lane];
}

static void test_lanes_scan_f32(const struct gb_kernels * k) {
    float y[GB_LANES];
    for (int64_t n = 0; n <= STATE_MAX; n++) {
        fill_state();
        k->lanes_scan_f32(n, y, state, decay, lanes[1], keys[1], lanes[0], keys[3]);
        check_state(n, y, keys[3], want_scan, "lanes_scan_f32");
    }
}

static float chunk_u[GB_CHUNK][GB_LANES], chunk_rows[3][GB_CHUNK][STATE_MAX + 3];
static bool per_key;

static double want_pass(int64_t j, int lane) {
    double x = (double) (per_key ? keys[0][j] : lanes[2][lane]) * (double) state_before[j * GB_LANES + lane];
    for (int i = 0; i < GB_CHUNK; i++) {
        x += (double) chunk_rows[0][i][j] * (double) chunk_u[i][lane];
    }
    return x;
}

static void fill(float * x, size_t n) {
    for (size_t i = 0; i < n; i++) {
        x[i] = test_random_float(-2, 2);
    }
}

static void test_lanes_pass_f32(const struct gb_kernels * k) {
    float f[GB_CHUNK][GB_LANES], y[GB_CHUNK][GB_LANES];
    for (int64_t n = 0; n <= STATE_MAX; n++) {
        for (int form = 0; form < 5; form++) { // without sums, with f, with f and y; the last two for each key
            const int sums = form < 3 ? form : form == 3 ? 0 : 2;
            per_key = form >= 3;
            fill_state();
            fill(chunk_u[0], GB_CHUNK * GB_LANES);
            fill(chunk_rows[0][0], 3 * GB_CHUNK * (STATE_MAX + 3));
            k->lanes_pass_f32(n, state,
                &(struct gb_lanes_pass) { per_key ? keys[0] : NULL, lanes[2], chunk_u[0], chunk_rows[0][0],
                    sums > 0 ? chunk_rows[1][0] : NULL, sums > 1 ? chunk_rows[2][0] : NULL, STATE_MAX + 3,
                    STATE_MAX + 3, STATE_MAX + 3, f[0], y[0] });
            for (int i = 0; i < GB_CHUNK; i++) {
                check_state(n, sums > 0 ? f[i] : NULL, chunk_rows[1][i], want_pass, "lanes_pass_f32");
                check_state(n, sums > 1 ? y[i] : NULL, chunk_rows[2][i], want_pass, "lanes_pass_f32");
            }
        }
    }
}

// The tokens one after the other: a state of the sums f, y over one key for each row, in double.
static void test_lanes_tokens_f32(const struct gb_kernels * k) {
    static float w[GB_CHUNK][GB_LANES], f[GB_CHUNK][GB_LANES], y[GB_CHUNK][GB_LANES], y0[GB_CHUNK][GB_LANES];
    static float u[GB_CHUNK][GB_LANES], all[GB_LANES], kk[GB_CHUNK][GB_CHUNK], kr[GB_CHUNK][GB_CHUNK], beta[GB_CHUNK];
    for (int pass = 0; pass < 64; pass++) {
        const int n = pass % GB_CHUNK + 1;
        const bool decays = pass / GB_CHUNK % 2 == 0, delta = pass / GB_CHUNK % 4 < 2;
        fill(w[0], GB_CHUNK * GB_LANES), fill(f[0], GB_CHUNK * GB_LANES), fill(y[0], GB_CHUNK * GB_LANES);
        fill(chunk_u[0], GB_CHUNK * GB_LANES), fill(kk[0], GB_CHUNK * GB_CHUNK), fill(kr[0], GB_CHUNK * GB_CHUNK);
        fill(beta, GB_CHUNK);
        memcpy(u, chunk_u, sizeof(u));
        memcpy(y0, y, sizeof(y));
        k->lanes_tokens_f32(&(struct gb_lanes_tokens) {
            n, decays ? w[0] : NULL, delta ? beta : NULL, kk, kr, f[0], u[0], y[0], all });
        for (int lane = 0; lane < GB_LANES; lane++) {
            double c[GB_CHUNK] = { 0 }, product = 1;
            for (int t = 0; t < n; t++) {
                const double wt = decays ? w[t][lane] : 1;
                product *= wt;
                double found = product * (double) f[t][lane], out = product * (double) y0[t][lane];
                for (int i = 0; i < t; i++) {
                    c[i] *= wt;
                    found += (double) kk[t][i] * c[i];
                }
                c[t] = delta ? (double) beta[t] * ((double) chunk_u[t][lane] - found) : (double) chunk_u[t][lane];
                for (int i = 0; i <= t; i++) {
                    out += (double) kr[t][i] * c[i];
                }
                CHECK_MSG(fabs(y[t][lane] - out) <= 1e5 * EPS,
                    "%s lanes_tokens_f32: token %d of lane %d is %g, expected %g", level_name, t, lane, y[t][lane],
                    out);
            }
            for (int t = 0; t < GB_CHUNK; t++) {
                CHECK_MSG(fabs(u[t][lane] - c[t]) <= 1e5 * EPS, "%s lanes_tokens_f32: row %d of u", level_name, t);
            }
            CHECK_MSG(!decays || fabs(all[lane] - product) <= 64 * EPS, "%s lanes_tokens_f32: product", level_name);
            CHECK(n == GB_CHUNK || y[n][lane] == y0[n][lane]);
        }
    }
}

static double want_same(int64_t j, int lane) { return state_before[j * GB_LANES + lane]; }

static void test_lanes_dot_f32(const struct gb_kernels * k) {
    float y[GB_LANES];
    for (int64_t n = 0; n <= STATE_MAX; n++) {
        fill_state();
        k->lanes_dot_f32(n, y, state, keys[3]);
        check_state(n, y, keys[3], want_same, "lanes_dot_f32");
    }
}

static void test_state_row_f32(const struct gb_kernels * k) {
    for (int64_t n = 0; n <= 200; n++) {
        float *s = random_row(&row_x, n, TAME), *d = row_new(&row_y, n, sizeof(float));
        const float *wv = n % 2 ? random_row(&row_z, n, TAME) : NULL, u = test_random_float(-2, 2);
        static float kr[2][201];
        double sum = 0, size = 0;
        for (int64_t j = 0; j < n; j++) {
            kr[0][j] = test_random_float(-2, 2);
            kr[1][j] = test_random_float(-2, 2);
        }
        const float got = k->state_row_f32(n, d, s, 0.7f, wv, kr[0], u, kr[1]);
        CHECK(row_intact(&row_y));
        for (int64_t j = 0; j < n; j++) {
            const double exact = (double) (wv != NULL ? wv[j] : 0.7f) * (double) s[j] + (double) kr[0][j] * (double) u;
            CHECK_MSG(fabs(d[j] - exact) <= 200 * EPS, "%s state_row_f32: element %lld", level_name, (long long) j);
            sum += exact * (double) kr[1][j];
            size += fabs(exact * (double) kr[1][j]) + 70;
        }
        CHECK_MSG(fabs(got - sum) <= 16 * EPS * size, "%s state_row_f32 is %g, expected %g", level_name, got, sum);
        const float again = k->state_row_f32(n, s, s, 0.7f, wv, kr[0], u, kr[1]);
        CHECK(again == got && same_array(s, d, n) && row_intact(&row_x));
    }
}

static void check_rope(const struct gb_kernels * k, bool halves) {
    static float c[MAX_N], s[MAX_N];
    for (int64_t pairs = 0; pairs < 70; pairs++) {
        const int64_t n = 2 * pairs;
        float * x = random_row(&row_x, n, WILD);
        float * y = row_new(&row_y, n, sizeof(float));
        float expected[140];
        for (int64_t j = 0; j < pairs; j++) {
            const float cosine = test_random_float(-1, 1), sine = test_random_float(-1, 1);
            const int64_t a = halves ? j : 2 * j, b = halves ? j + pairs : 2 * j + 1;
            const float ac = x[a] * cosine, bs = x[b] * sine, as = x[a] * sine, bc = x[b] * cosine;
            expected[a] = ac - bs;
            expected[b] = bc + as;
            if (halves) {
                c[j] = cosine;
                s[j] = sine;
            } else {
                c[a] = c[b] = cosine;
                s[a] = -sine;
                s[b] = sine;
            }
        }
        halves ? k->rope_halves_f32(pairs, y, x, c, s) : k->rope_pairs_f32(n, y, x, c, s);
        CHECK_MSG(row_intact(&row_y) && same_array(y, expected, n), "%s rope (halves %d), %lld pairs", level_name,
            halves, (long long) pairs);
        halves ? k->rope_halves_f32(pairs, x, x, c, s) : k->rope_pairs_f32(n, x, x, c, s);
        CHECK(row_intact(&row_x) && same_array(x, expected, n));
    }
}

static void test_rope_pairs_f32(const struct gb_kernels * k) { check_rope(k, false); }
static void test_rope_halves_f32(const struct gb_kernels * k) { check_rope(k, true); }

// -------------------------------------------------------------------------------------------------------------- blocks

static void check_to_blocks(const char * name, void (*fn)(int64_t, void *, const float *), enum ggml_type type) {
    for (int pass = 0; pass < 600; pass++) {
        const int64_t n = 32 * test_random_int(0, 6);
        const size_t size = (size_t) (n / 32) * ggml_type_size(type);
        float * x = random_row(&row_x, n, pass % 2 ? WILD : TAME);
        uint8_t * y = row_new(&row_y, (int64_t) size, 1);
        uint8_t wish[6 * 34];
        for (int64_t i = 0; i < n && pass % 3 == 0; i++) { // ties, equal magnitudes
            x[i] = (float) test_random_int(-8, 8) * 0.5f * ldexpf(1, (int) (pass % 40) - 20);
        }
        gb_quant_format_of(type)->from_float_reference(x, wish, (int) n);
        fn(n, y, x);
        CHECK_MSG(row_intact(&row_y) && memcmp(y, wish, size) == 0, "%s %s differs from the format's, pass %d",
            level_name, name, pass);
    }
}

static void check_from_blocks(const char * name, void (*fn)(int64_t, float *, const void *), enum ggml_type type) {
    for (int pass = 0; pass < 300; pass++) {
        const int64_t n = 32 * test_random_int(0, 6);
        const size_t size = (size_t) (n / 32) * ggml_type_size(type);
        uint8_t * x = row_new(&row_x, (int64_t) size, 1);
        float * y = row_new(&row_y, n, sizeof(float));
        float wish[6 * 32];
        for (size_t i = 0; i < size; i++) {
            x[i] = (uint8_t) test_random();
        }
        gb_quant_format_of(type)->to_float(x, wish, (int) n);
        fn(n, y, x);
        CHECK_MSG(row_intact(&row_y) && same_array(y, wish, n), "%s %s differs from the format's", level_name, name);
    }
}

// With 127 in the block the scale is 1, so a level is the rounded element, halves away from zero.
// Tests all halves and their neighbours.
static void check_halves(const struct gb_kernels * k) {
    for (int i = -126; i <= 126; i++) {
        float x[32] = { 127.0f };
        unsigned char y[34];
        const float half = (float) i + 0.5f;
        x[1] = half;
        x[2] = nextafterf(half, INFINITY);
        x[3] = nextafterf(half, -INFINITY);
        x[31] = -half;
        k->f32_to_q8_0(32, y, x);
        for (int j = 0; j < 32; j++) {
            CHECK_MSG((signed char) y[2 + j] == lround((double) x[j]), "%s f32_to_q8_0 rounds %a to %d", level_name,
                x[j], (signed char) y[2 + j]);
        }
    }
    float x[32] = { 1e-44f, -1e-44f, NAN, 0.0f, 3e-45f }; // 1 / scale is infinite
    unsigned char y[34], wish[34];
    gb_quant_format_of(GGML_TYPE_Q8_0)->from_float_reference(x, wish, 32);
    k->f32_to_q8_0(32, y, x);
    CHECK_MSG(memcmp(y, wish, sizeof(y)) == 0, "%s f32_to_q8_0 of denormals differs from the format's", level_name);
}

static void test_f32_to_q8_0(const struct gb_kernels * k) {
    check_to_blocks("f32_to_q8_0", k->f32_to_q8_0, GGML_TYPE_Q8_0);
    check_halves(k);
}
static void test_f32_to_q4_0(const struct gb_kernels * k) {
    check_to_blocks("f32_to_q4_0", k->f32_to_q4_0, GGML_TYPE_Q4_0);
}
static void test_q8_0_to_f32(const struct gb_kernels * k) {
    check_from_blocks("q8_0_to_f32", k->q8_0_to_f32, GGML_TYPE_Q8_0);
}
static void test_q4_0_to_f32(const struct gb_kernels * k) {
    check_from_blocks("q4_0_to_f32", k->q4_0_to_f32, GGML_TYPE_Q4_0);
}

// --------------------------------------------------------------------------------------------------------- transposing

static void check_transpose(const struct gb_kernels * k, size_t size) {
    static uint32_t source[4096], target[4096], before[4096];
    for (int pass = 0; pass < 400; pass++) {
        const int64_t rows = test_random_int(0, 40), columns = test_random_int(0, 40);
        const size_t ss = ((size_t) columns + (size_t) test_random_int(0, 5)) * size,
                     ds = ((size_t) rows + (size_t) test_random_int(0, 5)) * size;
        for (int i = 0; i < 4096; i++) {
            source[i] = (uint32_t) test_random();
            target[i] = before[i] = (uint32_t) test_random();
        }
        size == 4 ? k->transpose_32(rows, columns, target, ds, source, ss)
                  : k->transpose_16(rows, columns, (uint16_t *) target, ds, (const uint16_t *) source, ss);
        for (int64_t c = 0; c < columns; c++) {
            for (int64_t r = 0; r < rows; r++) {
                memcpy((char *) before + (size_t) c * ds + (size_t) r * size,
                    (char *) source + (size_t) r * ss + (size_t) c * size, size);
            }
        }
        CHECK_MSG(memcmp(before, target, sizeof(target)) == 0, "%s transpose of %d bytes: %lld x %lld", level_name,
            (int) size, (long long) rows, (long long) columns);
    }
}

static void test_transpose_32(const struct gb_kernels * k) { check_transpose(k, 4); }
static void test_transpose_16(const struct gb_kernels * k) { check_transpose(k, 2); }

static void test_stream_f32(const struct gb_kernels * k) {
    static float source[600], target[600], wish[600];
    for (int pass = 0; pass < 400; pass++) {
        const int64_t n = test_random_int(0, 500), from = test_random_int(0, 40), to = test_random_int(0, 40);
        for (int i = 0; i < 600; i++) {
            source[i] = test_random_float(-1, 1);
            target[i] = wish[i] = test_random_float(-1, 1);
        }
        memcpy(wish + to, source + from, (size_t) n * sizeof(float));
        k->stream_f32(n, target + to, source + from, source, pass % 2 == 0);
        k->stream_f32(0, NULL, NULL, NULL, true);
        CHECK_MSG(memcmp(wish, target, sizeof(target)) == 0, "%s stream_f32: %d", level_name, (int) n);
    }
}
