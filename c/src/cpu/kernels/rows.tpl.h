// rows.tpl.h - kernels of whole rows: normalization, softmax, rotation.
//
// The first pass reads a row from memory. The next passes read it from the first-level cache if it
// fits. Memory bounds one pass of a norm and arithmetic the next. So the first pass prefetches the
// memory of the result, and the last pass the memory after this row, which mostly is the next row.
//
// Sums are computed pairwise in float over 16 vectors, and in double beyond. The error of a sum is
// at most 8 eps times the sum of magnitudes, for any n. The products and sums that are then applied
// to elements are rounded one after the other, as in the separate operators (including weight and
// bias). So fused and separate operators give the same bits.

#define AT_ANY(i, n, x, rest) \
    ((n) - (i) >= V_N ? v_load((x) + (i)) : v_first(v_load_n((x) + (i), (int) ((n) - (i))), (int) ((n) - (i)), rest))

static inline void prefetch_to_write_(const float * y) { // four vectors
    PREFETCH_TO_WRITE(y);
    PREFETCH_TO_WRITE(y + V_N);
    PREFETCH_TO_WRITE(y + 2 * V_N);
    PREFETCH_TO_WRITE(y + 3 * V_N);
}

// TERM(s, a): s plus the term of a. y: the memory of as many results.
#define SUM_BLOCKS(name, PARAMS, REST, TERM)                         \
    static double name PARAMS {                                      \
        vd s = vd_zero();                                            \
        int64_t i = 0;                                               \
        for (; i + 16 * V_N <= n; i += 16 * V_N) {                   \
            vf t0 = v_set(0.0f), t1 = t0, t2 = t0, t3 = t0;          \
            for (int j = 0; j < 4; j++) {                            \
                const float * p = x + i + 4 * j * V_N;               \
                prefetch_to_write_(y + i + 4 * j * V_N);             \
                t0 = TERM(t0, v_load(p));                            \
                t1 = TERM(t1, v_load(p + V_N));                      \
                t2 = TERM(t2, v_load(p + 2 * V_N));                  \
                t3 = TERM(t3, v_load(p + 3 * V_N));                  \
            }                                                        \
            s = vd_add(s, v_add(v_add(t0, t1), v_add(t2, t3)));      \
        }                                                            \
        for (; i < n; i += V_N) {                                    \
            s = vd_add(s, TERM(v_set(0.0f), AT_ANY(i, n, x, REST))); \
        }                                                            \
        return vd_sum(s);                                            \
    }
#define PLUS_SELF(s, a) v_add(s, a)
#define PLUS_SQUARE(s, a) v_fma(a, a, s)
#define PLUS_DEVIATION(s, a) v_fma(v_sub(a, v_set(mean)), v_sub(a, v_set(mean)), s)

SUM_BLOCKS(row_sum_, (int64_t n, const float * x, const float * y), v_set(0.0f), PLUS_SELF)
SUM_BLOCKS(row_squares_, (int64_t n, const float * x, const float * y), v_set(0.0f), PLUS_SQUARE)
SUM_BLOCKS(row_deviations_, (int64_t n, const float * x, const float * y, float mean), v_set(mean), PLUS_DEVIATION)

// (x - mean) scale w + b. w and b may be NULL.
static inline vf normed_(vf x, vf mean, vf scale) { return v_mul(v_sub(x, mean), scale); }

// From the first element to the last, or backwards.
#define APPLY_NORM(FULL, PART)                                    \
    do {                                                          \
        const int64_t whole = n / V_N * V_N;                      \
        if (whole < n) {                                          \
            const int64_t i = whole;                              \
            const int left = (int) (n - whole);                   \
            const vf a = normed_(v_load_n(x + i, left), m, s);    \
            v_store_n(y + i, PART, left);                         \
        }                                                         \
        if (!back) {                                              \
            for (int64_t i = 0; i < whole; i += V_N) {            \
                const vf a = normed_(v_load(x + i), m, s);        \
                PREFETCH_L2(x + n + i);                           \
                v_store(y + i, FULL);                             \
            }                                                     \
        }                                                         \
        for (int64_t i = whole - V_N; back && i >= 0; i -= V_N) { \
            const vf a = normed_(v_load(x + i), m, s);            \
            PREFETCH_L2(x + n + i);                               \
            v_store(y + i, FULL);                                 \
        }                                                         \
    } while (0)

// Every second row is processed backwards. A long row evicts weights from the nearest cache, but
// the half that was used last is still there.
static void apply_norm_(int64_t n, float * y, const float * x, float mean, float scale, const float * w,
    const float * b) {
    const vf m = v_set(mean), s = v_set(scale);
    const bool back = w != NULL && n > 0 && ((uintptr_t) x / ((size_t) n * sizeof(float)) & 1) != 0;
    if (w == NULL) {
        APPLY_NORM(a, a);
    } else if (b == NULL) {
        APPLY_NORM(v_mul(a, v_load(w + i)), v_mul(a, v_load_n(w + i, left)));
    } else {
        APPLY_NORM(v_add(v_mul(a, v_load(w + i)), v_load(b + i)),
            v_add(v_mul(a, v_load_n(w + i, left)), v_load_n(b + i, left)));
    }
}

// Sums x - shift and its square in one pass.
static double row_moments_(int64_t n, const float * x, const float * y, float shift, double * sum) {
    const vf c = v_set(shift);
    vd s1 = vd_zero(), s2 = s1;
    int64_t i = 0;
    for (; i + 16 * V_N <= n; i += 16 * V_N) {
        vf t0 = v_set(0.0f), t1 = t0, t2 = t0, t3 = t0, q0 = t0, q1 = t0, q2 = t0, q3 = t0;
        for (int j = 0; j < 4; j++) {
            const float * p = x + i + 4 * j * V_N;
            prefetch_to_write_(y + i + 4 * j * V_N);
            const vf a0 = v_sub(v_load(p), c), a1 = v_sub(v_load(p + V_N), c), a2 = v_sub(v_load(p + 2 * V_N), c),
                     a3 = v_sub(v_load(p + 3 * V_N), c);
            t0 = v_add(t0, a0), t1 = v_add(t1, a1), t2 = v_add(t2, a2), t3 = v_add(t3, a3);
            q0 = v_fma(a0, a0, q0), q1 = v_fma(a1, a1, q1), q2 = v_fma(a2, a2, q2), q3 = v_fma(a3, a3, q3);
        }
        s1 = vd_add(s1, v_add(v_add(t0, t1), v_add(t2, t3)));
        s2 = vd_add(s2, v_add(v_add(q0, q1), v_add(q2, q3)));
    }
    for (; i < n; i += V_N) {
        const vf a = v_sub(AT_ANY(i, n, x, c), c);
        s1 = vd_add(s1, a);
        s2 = vd_add(s2, v_mul(a, a));
    }
    *sum = vd_sum(s1);
    return vd_sum(s2);
}

// (x - mean) / sqrt(variance + eps) w + b. b only with w. One pass computes mean and variance
// relative to the mean of the first elements. If that mean is too far from the row's mean for the
// difference of squares, a second pass sums the deviations. If sums overflow in float, the whole
// computation uses double.
static void norm_row_f32(int64_t n, float * y, const float * x, float eps, const float * w, const float * b) {
    const int64_t few = n < 2 * V_N ? n : 2 * V_N;
    const float shift = n > 0 ? (float) (row_sum_(few, x, y) / (double) few) : 0.0f;
    double sum;
    const double squares = row_moments_(n, x, y, shift, &sum) / (double) n, off = sum / (double) n;
    const float mean = (float) ((double) shift + off);
    float variance = (float) (squares - off * off);
    if (!(off * off <= squares / 8)) {
        variance = (float) (row_deviations_(n, x, y, mean) / (double) n);
    }
    if (n > 0 && !(variance < INFINITY)) {
        const float middle = (float) (sum_f32(n, x) / (double) n);
        const double spread = sum_sqr_dev_f32(n, x, middle) / (double) n;
        apply_norm_(n, y, x, middle, (float) (1.0 / sqrt(spread + (double) eps)), w, b);
        return;
    }
    apply_norm_(n, y, x, mean, 1.0f / sqrtf(variance + eps), w, b);
}

// x / sqrt(mean of x^2 + eps) w. If squares overflow or become 0 in float, the computation uses
// double.
static void rms_norm_row_f32(int64_t n, float * y, const float * x, float eps, const float * w) {
    double squares = row_squares_(n, x, y);
    if (!(squares >= 1e-30 && squares <= 1e38)) {
        squares = sum_sqr_f32(n, x);
        apply_norm_(n, y, x, 0.0f, (float) (1.0 / sqrt(squares / (double) n + (double) eps)), w, NULL);
        return;
    }
    apply_norm_(n, y, x, 0.0f, 1.0f / sqrtf((float) (squares / (double) n) + eps), w, NULL);
}

// ------------------------------------------------------------------------------------------------------------- softmax

// The largest x scale + mask, ignoring NaN. y: the memory of as many results. With `keep`, y holds
// x scale + mask afterwards.
static ALWAYS_INLINE float scaled_max_(int64_t n, bool keep, float * y, const float * x, float scale,
    const float * mask) {
    const vf least = v_set(-INFINITY), s = v_set(scale);
    vf m0 = least, m1 = least;
    int64_t i = 0;
    for (; i + 2 * V_N <= n; i += 2 * V_N) {
        vf a = v_load(x + i), b = v_load(x + i + V_N);
        PREFETCH_TO_WRITE(y + i);
        PREFETCH_TO_WRITE(y + i + V_N);
        if (mask != NULL) {
            a = masked_(a, s, v_load(mask + i));
            b = masked_(b, s, v_load(mask + i + V_N));
        } else {
            a = v_mul(a, s);
            b = v_mul(b, s);
        }
        if (keep) {
            v_store(y + i, a);
            v_store(y + i + V_N, b);
        }
        m0 = v_max(a, m0);
        m1 = v_max(b, m1);
    }
    for (; i < n; i += V_N) {
        const int left = (int) (n - i < V_N ? n - i : V_N);
        const vf a = v_load_n(x + i, left);
        const vf b = mask != NULL ? masked_(a, s, v_load_n(mask + i, left)) : v_mul(a, s);
        if (keep) {
            v_store_n(y + i, b, left);
        }
        m0 = v_max(v_first(b, left, least), m0);
    }
    return v_largest(v_max(m0, m1));
}

static inline double score_f64_(const float * x, float scale, const float * mask, int64_t i) {
    return (double) x[i] * (double) scale + (mask != NULL ? (double) mask[i] : 0.0);
}

// Rows whose largest value is not finite are computed in double, where a product with the scale
// cannot overflow.
static void soft_max_far_(int64_t n, float * y, const float * x, float scale, const float * mask) {
    double largest = -INFINITY, sum = 0;
    bool none = false; // there is a NaN
    for (int64_t i = 0; i < n; i++) {
        const double t = score_f64_(x, scale, mask, i);
        none |= t != t;
        largest = t > largest ? t : largest;
    }
    if (none || !(fabs(largest) < INFINITY)) {
        const float all = none || largest > 0 ? NAN : 0.0f;
        for (int64_t i = 0; i < n; i++) {
            y[i] = all;
        }
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        sum += exp(score_f64_(x, scale, mask, i) - largest);
    }
    for (int64_t i = 0; i < n; i++) {
        const double e = exp(score_f64_(x, scale, mask, i) - largest) / sum;
        y[i] = e < 0x1p-126 ? 0.0f : (float) e;
    }
}

// softmax of x scale + mask. y may be x or mask. Results below 2^-126 (1 + 2^-16) become 0. If all
// are -inf, the result is zeros. A NaN or +inf makes the whole row NaN.
static void soft_max_row_f32(int64_t n, float * y, const float * x, float scale, const float * mask) {
    const bool plain = mask == NULL && scale == 1.0f;
    const bool keep = y != x && y != mask; // otherwise later passes may need x and mask
    const float max = plain  ? max_f32(n, x)
                      : keep ? scaled_max_(n, true, y, x, scale, mask)
                             : scaled_max_(n, false, y, x, scale, mask);
    if (!(fabsf(max) < INFINITY)) {
        soft_max_far_(n, y, x, scale, mask);
        return;
    }
    const double sum = plain          ? exp_sum_f32(n, y, x, max, GB_EXP_LEAST)
                       : keep         ? exp_sum_f32(n, y, y, max, GB_EXP_LEAST)
                       : mask == NULL ? exp_sum_scaled_(n, y, x, scale, max, GB_EXP_LEAST)
                                      : exp_sum_masked_(n, y, x, scale, mask, max, GB_EXP_LEAST);
    const vf share = v_set((float) (1.0 / sum)), least = v_set((float) (0x1.00001p-126 * sum));
    int64_t i = 0;
    for (; i + V_N <= n; i += V_N) {
        PREFETCH_L2(x + n + i);
        if (mask != NULL) {
            PREFETCH_L2(mask + n + i);
        }
        const vf e = v_load(y + i);
        v_store(y + i, v_mul_where(v_not_lt(e, least), e, share));
    }
    if (i < n) {
        const vf e = v_load_n(y + i, (int) (n - i));
        v_store_n(y + i, v_mul_where(v_not_lt(e, least), e, share), (int) (n - i));
    }
}

static void soft_max_back_row_f32(int64_t n, float * z, const float * y, const float * dy) {
    const vf dot = v_set(dot_f32(n, y, dy));
    int64_t i = 0;
    for (; i + V_N <= n; i += V_N) {
        v_store(z + i, v_mul(v_load(y + i), v_sub(v_load(dy + i), dot)));
    }
    if (i < n) {
        const int left = (int) (n - i);
        v_store_n(z + i, v_mul(v_load_n(y + i, left), v_sub(v_load_n(dy + i, left), dot)), left);
    }
}

// ------------------------------------------------------------------------------------------------------------ rotation

// Cosine and sine of angles below 2^20, within 1 ulp of the exact values for the given double.
// Subtracts quarter turns, then uses Taylor series, in double. There are no branches and no
// conversions to 64-bit integers, so compilers vectorize it at every level.
static void sincos_f64(int64_t n, float * restrict c, float * restrict s, const double * restrict angle) {
    for (int64_t i = 0; i < n; i++) {
        const double t = angle[i] * 0x1.45f306dc9c883p-1 + 0x1.8p52; // 2 / pi; the integer is in the lowest bits
        const double k = t - 0x1.8p52;
        const double r = (angle[i] - k * 0x1.921fb544p0) - k * 0x1.0b4611a626331p-34;
        const double z = r * r;
        const double sine =
            r + r * z * (-1.0 / 6 + z * (1.0 / 120 + z * (-1.0 / 5040 + z * (1.0 / 362880 + z * (-1.0 / 39916800)))));
        const double cosine =
            1 + z * (-0.5 + z * (1.0 / 24 + z * (-1.0 / 720 +
                                                    z * (1.0 / 40320 + z * (-1.0 / 3628800 + z * (1.0 / 479001600))))));
        uint64_t quarter, sine_bits, cosine_bits;
        memcpy(&quarter, &t, sizeof(quarter));
        memcpy(&sine_bits, &sine, sizeof(sine_bits));
        memcpy(&cosine_bits, &cosine, sizeof(cosine_bits));
        const uint64_t odd = 0 - (quarter & 1), differ = (sine_bits ^ cosine_bits) & odd; // exchanges them
        const uint64_t a = (cosine_bits ^ differ) ^ ((quarter + 1) >> 1 << 63),
                       b = (sine_bits ^ differ) ^ (quarter >> 1 << 63);
        double x, y;
        memcpy(&x, &a, sizeof(x));
        memcpy(&y, &b, sizeof(y));
        c[i] = (float) x;
        s[i] = (float) y;
    }
}

// Pairs (2j, 2j + 1) of n elements: y[i] = x[i] c[i] + x[i ^ 1] s[i], where s of the first of a
// pair is negated. n is even.
static void rope_pairs_f32(int64_t n, float * y, const float * x, const float * c, const float * s) {
#if V_ISA_SCALAR
    for (int64_t i = 0; i + 1 < n; i += 2) {
        const float a = x[i], b = x[i + 1];
        y[i] = a * c[i] + b * s[i];
        y[i + 1] = b * c[i + 1] + a * s[i + 1];
    }
#else
    int64_t i = 0;
    for (; i + V_N <= n; i += V_N) {
        const vf a = v_load(x + i);
        v_store(y + i, v_add(v_mul(a, v_load(c + i)), v_mul(v_swap_pairs(a), v_load(s + i))));
    }
    if (i < n) {
        const int left = (int) (n - i);
        const vf a = v_load_n(x + i, left);
        v_store_n(y + i, v_add(v_mul(a, v_load_n(c + i, left)), v_mul(v_swap_pairs(a), v_load_n(s + i, left))), left);
    }
#endif
}

// Pairs (j, j + n) for j < n.
static void rope_halves_f32(int64_t n, float * y, const float * x, const float * c, const float * s) {
    int64_t j = 0;
    for (; j + V_N <= n; j += V_N) {
        const vf a = v_load(x + j), b = v_load(x + j + n), cosine = v_load(c + j), sine = v_load(s + j);
        v_store(y + j, v_sub(v_mul(a, cosine), v_mul(b, sine)));
        v_store(y + j + n, v_add(v_mul(a, sine), v_mul(b, cosine)));
    }
    if (j < n) {
        const int left = (int) (n - j);
        const vf a = v_load_n(x + j, left), b = v_load_n(x + j + n, left);
        const vf cosine = v_load_n(c + j, left), sine = v_load_n(s + j, left);
        v_store_n(y + j, v_sub(v_mul(a, cosine), v_mul(b, sine)), left);
        v_store_n(y + j + n, v_add(v_mul(a, sine), v_mul(b, cosine)), left);
    }
}
