// elementwise.tpl.h - y = f(x) by arithmetic and comparisons, for all functions without a
// polynomial.
//
// Functions that kernels.def marks EXACT use no fused operation, so every level gives the same
// bits. NaN gives NaN, except in sgn and step, which give 0, because comparisons with NaN are
// false. At infinities every function has its limit.

// A loop over full vectors and the remaining elements. EXPR is the result in terms of the vectors a
// (and b). With one operand it takes four vectors at a time, which is faster from the first-level
// cache. With two operands that makes no difference.
#define ROWS_1(name, PARAMS, EXPR)                       \
    static void name PARAMS {                            \
        int64_t i = 0;                                   \
        for (; i + 4 * V_N <= n; i += 4 * V_N) {         \
            vf r[4];                                     \
            UNROLL                                       \
            for (int j = 0; j < 4; j++) {                \
                const vf a = v_load(x + i + j * V_N);    \
                r[j] = EXPR;                             \
            }                                            \
            UNROLL                                       \
            for (int j = 0; j < 4; j++) {                \
                v_store(y + i + j * V_N, r[j]);          \
            }                                            \
        }                                                \
        for (; i + V_N <= n; i += V_N) {                 \
            const vf a = v_load(x + i);                  \
            v_store(y + i, EXPR);                        \
        }                                                \
        if (i < n) {                                     \
            const vf a = v_load_n(x + i, (int) (n - i)); \
            v_store_n(y + i, EXPR, (int) (n - i));       \
        }                                                \
    }
#define ROWS_2(name, EXPR)                                                                   \
    static void name(int64_t n, float * z, const float * x, const float * y) {               \
        int64_t i = 0;                                                                       \
        for (; i + V_N <= n; i += V_N) {                                                     \
            const vf a = v_load(x + i), b = v_load(y + i);                                   \
            v_store(z + i, EXPR);                                                            \
        }                                                                                    \
        if (i < n) {                                                                         \
            const vf a = v_load_n(x + i, (int) (n - i)), b = v_load_n(y + i, (int) (n - i)); \
            v_store_n(z + i, EXPR, (int) (n - i));                                           \
        }                                                                                    \
    }
#define UNARY (int64_t n, float * y, const float * x)
#define UNARY_1(p) (int64_t n, float * y, const float * x, float p)
#define UNARY_2(p, q) (int64_t n, float * y, const float * x, float p, float q)

ROWS_2(add_f32, v_add(a, b))
ROWS_2(sub_f32, v_sub(a, b))
ROWS_2(mul_f32, v_mul(a, b))
ROWS_2(div_f32, v_div(a, b))
ROWS_2(larger_f32, v_sel(v_eq(a, a), v_max(a, b), a)) // NaN if a or b is

// 1 where a comparison holds, else 0. A NaN is unequal to everything.
static inline vf truth_(vm m) { return v_keep(m, v_set(1.0f)); }
static inline vf less_equal_(vf a, vf b) { return v_sel(v_lt(a, b), v_set(1.0f), truth_(v_eq(a, b))); }

ROWS_2(equal_f32, truth_(v_eq(a, b)))
ROWS_2(not_equal_f32, v_sel(v_eq(a, b), v_set(0.0f), v_set(1.0f)))
ROWS_2(less_f32, truth_(v_lt(a, b)))
ROWS_2(less_equal_f32, less_equal_(a, b))

static void select_f32(int64_t n, float * z, const float * c, const float * x, const float * y) {
    const vf zero = v_set(0.0f);
    int64_t i = 0;
    for (; i + V_N <= n; i += V_N) {
        v_store(z + i, v_sel(v_eq(v_load(c + i), zero), v_load(y + i), v_load(x + i)));
    }
    if (i < n) {
        const int left = (int) (n - i);
        const vf a = v_load_n(x + i, left), b = v_load_n(y + i, left);
        v_store_n(z + i, v_sel(v_eq(v_load_n(c + i, left), zero), b, a), left);
    }
}

ROWS_1(add1_f32, UNARY_1(v), v_add(a, v_set(v)))
ROWS_1(scale_f32, UNARY_1(v), v_mul(a, v_set(v)))
ROWS_1(abs_f32, UNARY, v_abs(a))
ROWS_1(neg_f32, UNARY, v_neg(a))
ROWS_1(sqr_f32, UNARY, v_mul(a, a))
ROWS_1(sqrt_f32, UNARY, v_sqrt(a))

static inline vf positive_(vf a, float value) { // a > 0 ? value : 0
    return v_sel(v_gt(a, v_set(0.0f)), v_set(value), v_set(0.0f));
}

ROWS_1(step_f32, UNARY, positive_(a, 1.0f))
ROWS_1(sgn_f32, UNARY, v_sub(positive_(a, 1.0f), positive_(v_neg(a), 1.0f)))
ROWS_1(relu_f32, UNARY, v_max(v_set(0.0f), a)) // NaN and -0 stay
ROWS_1(leaky_relu_f32, UNARY_1(slope), v_sel(v_gt(a, v_set(0.0f)), a, v_mul(v_set(slope), a)))
// The bound is the first operand, so a NaN fails the comparison and stays.
ROWS_1(clamp_f32, UNARY_2(min, max), v_max(v_set(min), v_min(v_set(max), a)))

static ALWAYS_INLINE void shift_clamp_(bool adds, int64_t n, float * y, const float * x, const float * z, float v,
    float min, float max) {
    const vf s = v_set(v), low = v_set(min), high = v_set(max);
    int64_t i = 0;
    for (; i + V_N <= n; i += V_N) {
        const vf a = v_add(v_load(x + i), s);
        v_store(y + i, v_max(low, v_min(high, adds ? v_add(a, v_load(z + i)) : a)));
    }
    if (i < n) {
        const int left = (int) (n - i);
        const vf a = v_add(v_load_n(x + i, left), s);
        v_store_n(y + i, v_max(low, v_min(high, adds ? v_add(a, v_load_n(z + i, left)) : a)), left);
    }
}

static void shift_clamp_f32(int64_t n, float * y, const float * x, const float * z, float v, float min, float max) {
    if (z != NULL) {
        shift_clamp_(true, n, y, x, z, v, min, max);
    } else {
        shift_clamp_(false, n, y, x, z, v, min, max);
    }
}

// Rounds to an integer by adding and subtracting 2^23, above which every float is an integer. NaN
// stays.
static inline vf integer_(vf magnitude, vf a) { // |a| rounded in some way, with a's sign
    return v_sel(v_lt(v_abs(a), v_set(0x1p23f)), v_copysign(magnitude, a), a);
}
static inline vf whole_(vf magnitude) { // rounded down
    const vf t = v_sub(v_add(magnitude, v_set(0x1p23f)), v_set(0x1p23f));
    return v_sub(t, v_keep(v_gt(t, magnitude), v_set(1.0f)));
}
static inline vf trunc_(vf a) { return integer_(whole_(v_abs(a)), a); }
static inline vf floor_(vf a) {
    const vf t = trunc_(a);
    return v_sel(v_gt(t, a), v_sub(t, v_set(1.0f)), t);
}
static inline vf round_(vf a) { // the fraction is exact
    const vf x = v_abs(a), t = whole_(x);
    return integer_(v_sel(v_lt(v_sub(x, t), v_set(0.5f)), t, v_add(t, v_set(1.0f))), a);
}

ROWS_1(trunc_f32, UNARY, trunc_(a))
ROWS_1(floor_f32, UNARY, floor_(a))
ROWS_1(ceil_f32, UNARY, v_neg(floor_(v_neg(a))))
ROWS_1(round_f32, UNARY, round_(a))
ROWS_1(scale_bias_f32, UNARY_2(s, b), v_fma(a, v_set(s), v_set(b)))

static inline vf hardsigmoid_(vf a) { // min(1, max(0, (a + 3) / 6))
    return v_min(v_set(1.0f), v_max(v_set(0.0f), v_div(v_add(a, v_set(3.0f)), v_set(6.0f))));
}

ROWS_1(hardsigmoid_f32, UNARY, hardsigmoid_(a))
ROWS_1(hardswish_f32, UNARY, v_mul(v_max(v_set(-3.0f), a), hardsigmoid_(a))) // below -3: avoids infinity times zero

// Levels whose v_fma is fused round once less. Results differ by at most half an ulp of the larger
// of product and sum.
static void mad_f32(int64_t n, float * y, const float * x, float v) {
    const vf s = v_set(v);
    int64_t i = 0;
    for (; i + V_N <= n; i += V_N) {
        v_store(y + i, v_fma(v_load(x + i), s, v_load(y + i)));
    }
    if (i < n) {
        const int left = (int) (n - i);
        v_store_n(y + i, v_fma(v_load_n(x + i, left), s, v_load_n(y + i, left)), left);
    }
}

static void blend_f32(int64_t n, float * z, const float * x, const float * y, float a, float b) {
    const vf s = v_set(a), t = v_set(b);
    int64_t i = 0;
    for (; i + V_N <= n; i += V_N) {
        v_store(z + i, v_fma(v_load(x + i), s, v_mul(v_load(y + i), t)));
    }
    if (i < n) {
        const int left = (int) (n - i);
        v_store_n(z + i, v_fma(v_load_n(x + i, left), s, v_mul(v_load_n(y + i, left), t)), left);
    }
}

static void norm_apply_f32(int64_t n, float * y, const float * x, float mean, float scale) {
    const vf m = v_set(mean), s = v_set(scale);
    int64_t i = 0;
    for (; i + V_N <= n; i += V_N) {
        v_store(y + i, v_mul(v_sub(v_load(x + i), m), s));
    }
    if (i < n) {
        const int left = (int) (n - i);
        v_store_n(y + i, v_mul(v_sub(v_load_n(x + i, left), m), s), left);
    }
}

static void scale_mask_f32(int64_t n, float * y, const float * x, float scale, const float * mask) {
    const vf s = v_set(scale);
    int64_t i = 0;
    if (mask == NULL) {
        scale_f32(n, y, x, scale);
        return;
    }
    for (; i + V_N <= n; i += V_N) {
        v_store(y + i, v_fma(v_load(x + i), s, v_load(mask + i)));
    }
    if (i < n) {
        const int left = (int) (n - i);
        v_store_n(y + i, v_fma(v_load_n(x + i, left), s, v_load_n(mask + i, left)), left);
    }
}
