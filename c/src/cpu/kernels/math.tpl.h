// math.tpl.h - exp, log, tanh in single precision, and the activations made of them.
//
// Each function reduces its argument to a small interval, evaluates a polynomial (minimax, fitted
// for this file), and reconstructs the result, with infinities and subnormal numbers as in IEEE
// arithmetic. Levels that look up sixteen floats at a time have shorter versions
// (math_lookup.tpl.h). Errors against the exact value, in units in the last place of the result
// (tests/c/cpu/kernels/test_kernels.c checks them at all levels):
//   exp 2, log 2; tanh, elu, expm1 3; silu, sigmoid, softplus 4;
//   gelu, gelu_quick 6 + 3 |t|, gelu_erf 8 + 3 |t|, where t is the argument of their exponential, whose rounding error
//   counts |t| times.
//
// No intermediate value and no result is subnormal unless the argument nearly is. On many
// processors each subnormal number costs a hundred cycles or more, so a few masked attention scores
// would halve the speed. Smaller values become zero: an exponential below 2^-126, and a result of
// the sigmoid family and of gelu_erf where its factor is below 2^-125. The error is then as large
// as the result: below 2^-125 for exp, sigmoid, softplus and gelu_erf, 2^-119 for silu and
// gelu_quick, 2^-122 for gelu.

// 2^n for an integer n in -126 .. 127. v_scale2 is p 2^n for n up to 130 and p about 1, with
// infinity on overflow, computed with two factors.
static inline vf pow2_(vi n) { return v_from_bits(vi_shl(vi_add(n, vi_set(127)), 23)); }

#if !HAVE_SCALE2
static inline vf v_scale2(vf p, vf n) {
    const vi whole = v_to_int(n);
    const vi half = vi_half(whole);
    return v_mul(v_mul(p, pow2_(half)), pow2_(vi_sub(whole, half)));
}
#endif

// The limits of the sigmoid family, below which results become zero.
#define SILU_LEAST (-87.0f)
#define GELU_LEAST (-9.99f)
#define GELU_QUICK_LEAST (-51.0f)
#define GELU_ERF_LEAST (-13.146f)

// x = n ln 2 + r, |r| <= ln 2 / 2, for |x| <= 128. Adding 1.5 2^23 rounds to an integer and leaves it in the low bits.
struct reduced_ {
    vf r, n; // remainder; n is an integer
};

static inline struct reduced_ reduce_ln2_(vf x) {
    const vf magic = v_set(0x1.8p23f);
    const vf t = v_fma(x, v_set(0x1.715476p0f), magic); // 1 / ln 2
    const vf n = v_sub(t, magic);
    const vf high = v_fnma(n, v_set(0x1.63p-1f), x); // exact: the constant has 9 bits
    return (struct reduced_) { v_fnma(n, v_set(-0x1.bd0106p-13f), high), n };
}

// exp(r) - 1 on |r| <= ln 2 / 2
static inline vf expm1_small_(vf r) {
    vf q = v_set(0x1.6a1a4ep-10f);
    q = v_fma(q, r, v_set(0x1.123fcap-7f));
    q = v_fma(q, r, v_set(0x1.555916p-5f));
    q = v_fma(q, r, v_set(0x1.55548ap-3f));
    q = v_fma(q, r, v_set(0x1.fffffcp-2f));
    return v_fma(v_mul(q, r), r, r);
}

// x = m 2^e with m in [sqrt 1/2, sqrt 2); with f = m - 1, s = f / (2 + f): ln m = 2 atanh s = f - s (f - R), R = 2/3
// s^2 + 2/5 s^4 + ...
static inline vf log_(vf x) {
    const vm denormal = v_lt(x, v_set(0x1p-126f));
    const vf xn = v_sel(denormal, v_mul(x, v_set(0x1p24f)), x);
    const vi exponent = vi_exponent(vi_sub(v_bits(xn), vi_set(0x3f3504f3)));
    const vf m = v_from_bits(vi_sub(v_bits(xn), vi_shl(exponent, 23)));
    const vf e = v_sub(v_from_int(exponent), v_sel(denormal, v_set(24.0f), v_set(0.0f)));
    const vf f = v_sub(m, v_set(1.0f));
    const vf s = v_div(f, v_add(f, v_set(2.0f)));
    const vf z = v_mul(s, s);
    vf R = v_set(0x1.e30190p-3f);
    R = v_fma(R, z, v_set(0x1.243890p-2f));
    R = v_fma(R, z, v_set(0x1.999a7cp-2f));
    R = v_mul(z, v_fma(R, z, v_set(0x1.555554p-1f)));
    const vf h = v_mul(v_mul(v_set(0.5f), f), f);
    const vf rest = v_fma(e, v_set(-0x1.bd0106p-13f), v_mul(s, v_add(h, R))); // ln m = f - (h - s (h + R))
    vf y = v_fma(e, v_set(0x1.63p-1f), v_sub(f, v_sub(h, rest)));
    y = v_sel(v_lt(x, v_set(INFINITY)), y, x); // infinity and NaN stay
    y = v_sel(v_eq(x, v_set(0.0f)), v_set(-INFINITY), y);
    return v_sel(v_lt(x, v_set(0.0f)), v_set(NAN), y);
}

// exp(x) - 1 for x <= 0, without cancellation: 2^n (e^r - 1) + (2^n - 1)
static inline vf elu_(vf x) {
    const struct reduced_ s = reduce_ln2_(v_max(v_set(-30.0f), v_min(v_set(0.0f), x)));
    const vf p = v_scale2(v_set(1.0f), s.n);
    const vf y = v_fma(p, expm1_small_(s.r), v_sub(p, v_set(1.0f)));
    return v_sel(v_gt(x, v_set(0.0f)), x, v_sel(v_eq(x, v_set(0.0f)), x, y));
}

#if V_LOOKUP
#    include "math_lookup.tpl.h"
#else

// Overflow becomes infinity (v_scale2). For arguments below GB_EXP_LEAST the result is 0. NaN
// stays.
static inline vf exp_(vf x) {
    const vm kept = v_not_lt(x, v_set(GB_EXP_LEAST));
    const struct reduced_ s = reduce_ln2_(v_min(v_set(89.0f), v_keep(kept, x)));
    const vf p = v_add(expm1_small_(s.r), v_set(1.0f));
    return v_keep(kept, v_scale2(p, s.n));
}

// x at least GB_EXP_LEAST and at most 80: 2^n is a normal number.
static inline vf exp_near_(vf x) {
    const struct reduced_ s = reduce_ln2_(x);
    const vf p = v_add(expm1_small_(s.r), v_set(1.0f));
#    if HAVE_SCALE2
    return v_scale2(p, s.n);
#    else
    return v_mul(p, pow2_(v_to_int(s.n)));
#    endif
}

// 0 where x is below `least`, which is GB_EXP_LEAST or above; x at most 80
static inline vf exp_from_(vf least, vf x) {
    const vm kept = v_not_lt(x, least);
    return v_keep(kept, exp_near_(v_keep(kept, x)));
}

// |x| < 0.625: odd polynomial; else 1 - 2 / (exp(2 |x|) + 1)
static inline vf tanh_(vf x) {
    const vf a = v_abs(x);
    const vf b = v_max(v_set(0x1p-60f), a); // below this, the cubic term does not count
    const vf z = v_mul(b, b);
    vf p = v_set(0x1.18e0c8p-9f);
    p = v_fma(p, z, v_set(-0x1.0bf4aap-7f));
    p = v_fma(p, z, v_set(0x1.638b46p-6f));
    p = v_fma(p, z, v_set(-0x1.b9ee8ep-5f));
    p = v_fma(p, z, v_set(0x1.111066p-3f));
    p = v_fma(p, z, v_set(-0x1.555554p-2f));
    const vf small = v_fma(v_mul(z, p), x, x);
    const vf e = exp_near_(v_min(v_set(20.0f), v_add(a, a))); // above this, the result is 1
    const vf large = v_fnma(v_set(2.0f), v_recip(v_add(e, v_set(1.0f))), v_set(1.0f));
    return v_copysign(v_sel(v_lt(a, v_set(0.625f)), small, large), x); // also for zero, whose sign the sum loses
}

// x / (1 + exp(-t)) for a t with the sign of x, at least -87.3. The exponential is that of -|t|, so
// it cannot overflow and small results keep their digits: e / (1 + e) for negative t.
static inline vf times_sigmoid_(vf x, vf t) {
    const vf e = exp_near_(v_max(v_set(-87.3f), v_neg(v_abs(t))));
    const vf n = v_sel(v_lt(t, v_set(0.0f)), e, v_set(1.0f));
    return v_mul(x, v_mul(n, v_recip(v_add(v_set(1.0f), e))));
}

// 1 / (1 + exp(-x)), with the same properties.
static inline vf sigmoid_(vf x) {
    const vm kept = v_not_lt(x, v_set(SILU_LEAST));
    const vf e = exp_near_(v_max(v_set(-87.3f), v_neg(v_abs(x))));
    const vf n = v_sel(v_lt(x, v_set(0.0f)), e, v_set(1.0f));
    return v_keep(kept, v_mul(n, v_recip(v_add(v_set(1.0f), e))));
}

// Replaces x below the limit by -0, for which all callers give -0. So -infinity is never multiplied by 0. NaN stays.
static inline vf cut_(vf x, float least) { return v_sel(v_lt(x, v_set(least)), v_set(-0.0f), x); }

static inline vf silu_(vf x) {
    const vf a = cut_(x, SILU_LEAST);
    return times_sigmoid_(a, a);
}

static inline vf gelu_quick_(vf x) {
    const vf a = cut_(x, GELU_QUICK_LEAST);
    return times_sigmoid_(a, v_mul(a, v_set(1.702f)));
}

// x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) = x / (1 + exp(-2 sqrt(2/pi) (x + 0.044715 x^3)))
static inline vf gelu_(vf x) {
    const vf a = cut_(x, GELU_LEAST), b = v_min(v_set(8.0f), a); // above this, the factor is 1
    const vf c = v_fma(v_mul(b, b), v_set(0.0713548162726f), v_set(1.59576912160573f));
    return times_sigmoid_(a, v_mul(b, c));
}

// x Phi(x), where the normal tail Phi(-a) = exp(-a^2 / 2) P(1 / (1 + 0.3 a)) for 0 <= a <= 14.5.
// The tail may be subnormal although x times it is not, so x is multiplied by the exponential first.
static inline vf gelu_erf_(vf x) {
    const vf b = cut_(x, GELU_ERF_LEAST);
    const vf a = v_min(v_set(13.15f), v_abs(b)); // above this, the tail does not count
    const vf t = v_recip(v_fma(v_set(0.3f), a, v_set(1.0f)));
    vf p = v_set(-0x1.f747a6p-9f);
    p = v_fma(p, t, v_set(0x1.dd8644p-5f));
    p = v_fma(p, t, v_set(-0x1.b596f0p-3f));
    p = v_fma(p, t, v_set(0x1.23984ap-2f));
    p = v_fma(p, t, v_set(-0x1.ed000cp-4f));
    p = v_fma(p, t, v_set(0x1.50f29cp-3f));
    p = v_fma(p, t, v_set(0x1.66ebd6p-4f));
    p = v_fma(p, t, v_set(0x1.f919300p-4f));
    p = v_fma(p, t, v_set(0x1.e8ca90p-4f));
    p = v_fma(p, t, v_set(0x1.e2c64ap-17f));
    const vf e = exp_near_(v_mul(v_mul(v_set(-0.5f), a), a));
    const vm tail = v_lt(b, v_set(0.0f)); // e p is the result's factor; else 1 - e p, where small e does not count
    const vf rest = v_fnma(v_max(v_set(0x1p-60f), e), p, v_set(1.0f));
    return v_mul(v_sel(tail, v_mul(b, e), b), v_sel(tail, p, rest));
}

#endif

// ln(1 + exp(x)) = max(x, 0) + ln(1 + e) with e = exp(-|x|); with y = e / (1 + e/2) the logarithm is 2 atanh(y/2) = y +
// y^3/12 + ..., without cancellation.
static inline vf softplus_(vf x) {
    const vf e = exp_(v_neg(v_abs(x)));
    const vf a = v_max(v_set(0x1p-30f), e); // below this, neither the half nor the cubic term counts
    const vf d = v_fma(a, v_set(0.5f), v_set(1.0f)), y = v_div(e, d), b = v_max(v_set(0x1p-30f), y);
    const vf z = v_mul(b, b);
    vf q = v_fma(v_set(0x1.1ed7e6p-11f), z, v_set(0x1.1ebd06p-9f));
    q = v_fma(v_fma(q, z, v_set(0x1.99d208p-7f)), z, v_set(0x1.555502p-4f));
    return v_add(v_max(v_set(0.0f), x), v_mul(y, v_fma(z, q, v_set(1.0f))));
}

// Four vectors at a time, because the chains of operations are long.
#define ROWS_LONG(name, F)                                                           \
    static void name UNARY {                                                         \
        int64_t i = 0;                                                               \
        for (; i + 4 * V_N <= n; i += 4 * V_N) {                                     \
            const vf a = F(v_load(x + i)), b = F(v_load(x + i + V_N));               \
            const vf c = F(v_load(x + i + 2 * V_N)), d = F(v_load(x + i + 3 * V_N)); \
            v_store(y + i, a);                                                       \
            v_store(y + i + V_N, b);                                                 \
            v_store(y + i + 2 * V_N, c);                                             \
            v_store(y + i + 3 * V_N, d);                                             \
        }                                                                            \
        for (; i < n; i += V_N) {                                                    \
            const int left = (int) (n - i < V_N ? n - i : V_N);                      \
            v_store_n(y + i, F(v_load_n(x + i, left)), left);                        \
        }                                                                            \
    }

ROWS_LONG(exp_f32, exp_)
ROWS_1(log_f32, UNARY, log_(a))
ROWS_LONG(tanh_f32, tanh_)
ROWS_1(elu_f32, UNARY, elu_(a))
ROWS_LONG(silu_f32, silu_)
ROWS_LONG(sigmoid_f32, sigmoid_)
ROWS_LONG(softplus_f32, softplus_)
ROWS_LONG(gelu_f32, gelu_)
ROWS_LONG(gelu_erf_f32, gelu_erf_)
ROWS_LONG(gelu_quick_f32, gelu_quick_)

// exp(x) - 1 without cancellation: the formula of elu_, up to x = 20, above which the 1 does not
// count.
static inline vf expm1_(vf x) {
    const struct reduced_ s = reduce_ln2_(v_max(v_set(-30.0f), v_min(v_set(20.0f), x)));
    const vf p = v_scale2(v_set(1.0f), s.n);
    const vf y = v_fma(p, expm1_small_(s.r), v_sub(p, v_set(1.0f)));
    return v_sel(v_gt(x, v_set(20.0f)), exp_(x), v_sel(v_eq(x, v_set(0.0f)), x, y));
}

// m, p, beta, eps as in gb_kernel_xielu
static inline vf xielu_(vf x, vf m, vf p, vf beta, vf eps) {
    const vf low = v_mul(v_sub(elu_(v_min(eps, x)), x), m), high = v_mul(v_mul(p, x), x);
    return v_fma(beta, x, v_sel(v_gt(x, v_set(0.0f)), high, low));
}

static inline vf swiglu_oai_(vf x, vf g, vf alpha, vf limit) { // x and g are second operands, so a NaN stays
    const vf u = v_min(limit, x), w = v_max(v_neg(limit), v_min(limit, g));
    return v_mul(v_mul(u, sigmoid_(v_mul(alpha, u))), v_add(w, v_set(1.0f)));
}

// g times the derivative of silu, s + x s (1 - s) with s = sigmoid(x). With e = exp(-|x|), s (1 - s) is e / (1 + e)^2,
// without cancellation. x is limited, because an infinity times 0 would be NaN.
static inline vf silu_back_(vf x, vf g) {
    const vf limited = v_max(v_set(-1000.0f), v_min(v_set(1000.0f), x));
    const vf e = exp_from_(v_set(SILU_LEAST), v_neg(v_abs(x)));
    const vf high = v_recip(v_add(e, v_set(1.0f))), low = v_mul(e, high);
    const vf s = v_sel(v_lt(x, v_set(0.0f)), low, high);
    return v_mul(g, v_fma(limited, v_mul(low, high), s));
}

static inline vf reglu_(vf x, vf g) { // 0 for any g where x is at most 0
    return v_sel(v_gt(x, v_set(0.0f)), v_mul(x, g), v_sel(v_eq(x, x), v_set(0.0f), x));
}

ROWS_LONG(expm1_f32, expm1_)
ROWS_1(xielu_f32, (int64_t n, float * y, const float * x, float m, float p, float beta, float eps),
    xielu_(a, v_set(m), v_set(p), v_set(beta), v_set(eps)))
ROWS_2(reglu_f32, reglu_(a, b))
ROWS_2(geglu_f32, v_mul(gelu_(a), b))
ROWS_2(swiglu_f32, v_mul(silu_(a), b))
ROWS_2(silu_back_f32, silu_back_(a, b))
ROWS_2(geglu_erf_f32, v_mul(gelu_erf_(a), b))
ROWS_2(geglu_quick_f32, v_mul(gelu_quick_(a), b))

static void swiglu_oai_f32(int64_t n, float * z, const float * x, const float * y, float alpha, float limit) {
    const vf factor = v_set(alpha), most = v_set(limit);
    int64_t i = 0;
    for (; i + V_N <= n; i += V_N) {
        v_store(z + i, swiglu_oai_(v_load(x + i), v_load(y + i), factor, most));
    }
    if (i < n) {
        const int left = (int) (n - i);
        v_store_n(z + i, swiglu_oai_(v_load_n(x + i, left), v_load_n(y + i, left), factor, most), left);
    }
}

// y = exp(F), where y may be an array that F reads. Returns the sum. Four vectors are
// added in float before they are added to the sum in double, so a term is rounded at most twice.
// F(LOAD, i): a vector from i on, by LOAD(pointer), minus m, the largest value.
#define EXP_SUM(name, PARAMS, F)                                                                             \
    static double name PARAMS {                                                                              \
        const vf m = v_set(max), cut = v_set(least);                                                         \
        vd s = vd_zero();                                                                                    \
        int64_t i = 0;                                                                                       \
        for (; i + 4 * V_N <= n; i += 4 * V_N) {                                                             \
            const vf a = exp_from_(cut, F(v_load, i)), b = exp_from_(cut, F(v_load, i + V_N));               \
            const vf c = exp_from_(cut, F(v_load, i + 2 * V_N)), d = exp_from_(cut, F(v_load, i + 3 * V_N)); \
            v_store(y + i, a);                                                                               \
            v_store(y + i + V_N, b);                                                                         \
            v_store(y + i + 2 * V_N, c);                                                                     \
            v_store(y + i + 3 * V_N, d);                                                                     \
            s = vd_add(s, v_add(v_add(a, b), v_add(c, d)));                                                  \
        }                                                                                                    \
        for (; i < n; i += V_N) {                                                                            \
            const int left = (int) (n - i < V_N ? n - i : V_N);                                              \
            const vf e = v_first(exp_from_(cut, F(LOAD_LEFT, i)), left, v_set(0.0f));                        \
            v_store_n(y + i, e, left);                                                                       \
            s = vd_add(s, e);                                                                                \
        }                                                                                                    \
        return vd_sum(s);                                                                                    \
    }
#define LOAD_LEFT(p) v_load_n(p, left)
#define EXP_OF_X(LOAD, i) v_sub(LOAD(x + (i)), m)
#define EXP_OF_SCALED(LOAD, i) v_sub(v_mul(LOAD(x + (i)), v_set(scale)), m)
#define EXP_OF_MASKED(LOAD, i) v_sub(masked_(LOAD(x + (i)), v_set(scale), LOAD(mask + (i))), m)

// x scale + mask; the product must not overflow before a mask of -inf is added.
static inline vf masked_(vf x, vf scale, vf mask) {
#if V_ISA_SCALAR
    return (float) ((double) x * (double) scale + (double) mask);
#else
    return v_fma(x, scale, mask);
#endif
}

EXP_SUM(exp_sum_f32, (int64_t n, float * y, const float * x, float max, float least), EXP_OF_X)
EXP_SUM(exp_sum_scaled_, (int64_t n, float * y, const float * x, float scale, float max, float least), EXP_OF_SCALED)
EXP_SUM(exp_sum_masked_,
    (int64_t n, float * y, const float * x, float scale, const float * mask, float max, float least), EXP_OF_MASKED)
