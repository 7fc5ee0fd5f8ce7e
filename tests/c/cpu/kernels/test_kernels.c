// test_kernels.c - every kernel of kernels.def at every level of this processor, against double
// precision and against the scalar level.
// The manifest lists the tests: a kernel without a function test_<kernel> does not compile. Each
// kernel is called with all small sizes and some large ones, with misaligned pointers, with
// canaries around its output, with special values, and in place where allowed.
#include "test.h"

#include <fenv.h>
#include <float.h>

#include "base/mem.h"
#include "cpu/kernels/kernels.h"

#define GUARD 16 // canaries on each side
#define MAX_N 4200
#define EPS 0x1p-24 // half an ulp of 1

static const struct gb_kernels * scalar; // the reference level
static const char * level_name;

static const int64_t large_sizes[] = { 255, 256, 257, 1000, 4099 };
#define N_SIZES (131 + 5)

static int64_t size_at(int i) { return i <= 130 ? i : large_sizes[i - 131]; }

// -------------------------------------------------------------------------------------------------------- guarded rows

// A row of n elements in `bytes`, misaligned, with canaries before and after.
struct row {
    unsigned char bytes[(MAX_N + 4) * 4 + 2 * GUARD];
    size_t start, end;
};

static void * row_new(struct row * r, int64_t n, size_t element) {
    r->start = GUARD + element * (size_t) test_random_int(0, 3);
    r->end = r->start + (size_t) n * element;
    memset(r->bytes, 0xa5, r->start);
    memset(r->bytes + r->start, 0x77, (size_t) n * element);
    memset(r->bytes + r->end, 0xa5, GUARD);
    return r->bytes + r->start;
}

static bool row_intact(const struct row * r) {
    for (size_t i = 0; i < r->end + GUARD; i++) {
        if ((i < r->start || i >= r->end) && r->bytes[i] != 0xa5) {
            return false;
        }
    }
    return true;
}

static struct row row_x, row_y, row_z;

static float from_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof(f));
    return f;
}

static uint32_t to_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof(u));
    return u;
}

static const float specials[] = { 0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e-45f, -1e-45f, 1e-39f, -1e-39f, FLT_MIN,
    -FLT_MIN, FLT_MAX, -FLT_MAX, 1.0f, -1.0f, 88.8f, -88.8f, -104.0f, 0.5f, -3.0f, 3.0f };

enum values { TAME, WILD }; // within [-8, 8], or any bits and special values

static float random_value(enum values v) {
    const uint64_t r = test_random() % 8;
    if (v == TAME || r < 4) {
        return test_random_float(-8, 8);
    }
    return r < 6 ? from_bits((uint32_t) test_random())
                 : specials[test_random() % (sizeof(specials) / sizeof(specials[0]))];
}

static float * random_row(struct row * r, int64_t n, enum values v) {
    float * x = row_new(r, n, sizeof(float));
    for (int64_t i = 0; i < n; i++) {
        x[i] = random_value(v);
    }
    return x;
}

// ----------------------------------------------------------------------------------------------------------- comparing

static bool same_bits(float a, float b) { // NaN payloads may differ
    return to_bits(a) == to_bits(b) || (isnan(a) && isnan(b));
}

static bool same_array(const float * a, const float * b, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        if (!same_bits(a[i], b[i])) {
            return false;
        }
    }
    return true;
}

// Distance in units in the last place of `exact`. Infinity counts as 2^128.
static double ulps(float y, double exact) {
    if (isnan(y) || isnan(exact)) {
        return isnan(y) && isnan(exact) ? 0 : INFINITY;
    }
    const double value = isinf(y) ? copysign(0x1p128, y) : (double) y;
    const double wish = fabs(exact) > 0x1p128 ? copysign(0x1p128, exact) : exact;
    int e;
    frexp(wish, &e);
    return fabs(value - wish) / ldexp(1, e - 24 < -149 || wish == 0 ? -149 : GB_MIN(e - 24, 104));
}

// ------------------------------------------------------------------------------------------------------------ y = f(x)

typedef void (*unary_fn)(int64_t n, float * y, const float * x);

struct unary {
    const char * name;
    unary_fn fn, scalar_fn;
    double (*oracle)(double x);
    double (*bound)(double x); // ulps; NULL: exact
    double absolute;           // always tolerated; a result is denormal only if x is nearly denormal
    double worst;
};

static bool is_denormal(float x) { return x != 0 && fabsf(x) < 0x1p-126f; }

static void check_value(struct unary * u, float x, float y) {
    const double exact = u->oracle(x);
    if (u->bound == NULL) {
        CHECK_MSG(same_bits(y, (float) exact), "%s %s(%a) is %a, expected %a", level_name, u->name, x, y, exact);
        return;
    }
    const double distance = fabs(y - exact) <= u->absolute ? 0 : ulps(y, exact);
    const double error = distance == 0 ? 0 : distance / u->bound(x);
    CHECK_MSG(u->absolute == 0 || !is_denormal(y) || fabsf(x) < 0x1p-124f, "%s %s(%a) is %a", level_name, u->name, x,
        y);
    CHECK_MSG(error <= 1, "%s %s(%a = %g) is %a, expected %a: %g of the bound %g ulp", level_name, u->name, x, x, y,
        exact, error, u->bound(x));
    u->worst = fmax(u->worst, error);
}

static void check_unary(struct unary u) {
    for (int s = 0; s < N_SIZES; s++) {
        const int64_t n = size_at(s);
        float * x = random_row(&row_x, n, WILD);
        float * y = row_new(&row_y, n, sizeof(float));
        u.fn(n, y, x);
        CHECK_MSG(row_intact(&row_x) && row_intact(&row_y), "%s %s writes outside, n = %lld", level_name, u.name,
            (long long) n);
        for (int64_t i = 0; i < n; i++) {
            check_value(&u, x[i], y[i]);
        }
        float * z = row_new(&row_z, n, sizeof(float));
        u.scalar_fn(n, z, x);
        for (int64_t i = 0; i < n && u.bound == NULL; i++) {
            CHECK_MSG(same_bits(y[i], z[i]), "%s %s(%a) is %a, scalar %a", level_name, u.name, x[i], y[i], z[i]);
        }
        memcpy(z, x, (size_t) n * sizeof(float));
        u.fn(n, z, z);
        CHECK_MSG(row_intact(&row_z) && same_array(y, z, n), "%s %s in place differs, n = %lld", level_name, u.name,
            (long long) n);
    }
}

// Exponentials that become denormal: every eighth float, between infinite and huge ones. The
// processor reports a denormal intermediate result as an underflow.
static void check_far(struct unary u) {
    enum { N = 4096 };
    for (uint32_t bits = to_bits(-8.0f); bits < to_bits(-128.0f); bits += 8 * N) {
        float * x = row_new(&row_x, N, sizeof(float));
        float * y = row_new(&row_y, N, sizeof(float));
        for (int i = 0; i < N; i++) {
            x[i] = i % 1024 == 1023 ? -INFINITY : i % 1024 == 511 ? -3e38f : from_bits(bits + 8 * (uint32_t) i);
        }
        feclearexcept(FE_UNDERFLOW);
        u.fn(N, y, x);
        CHECK_MSG(!fetestexcept(FE_UNDERFLOW), "%s %s from %a on has denormal numbers on the way", level_name, u.name,
            from_bits(bits));
        for (int i = 0; i < N && test_failures < 50; i++) {
            check_value(&u, x[i], y[i]);
            CHECK(!isinf(x[i]) || same_bits(y[i], (float) u.oracle((double) x[i]))); // the limit, with its sign
        }
    }
}

// All floats, in dense steps.
static void sweep_unary(struct unary u) {
    enum { N = 4096 };
    uint32_t bits = 0;
    uint32_t last;
    do {
        float * x = row_new(&row_x, N, sizeof(float));
        float * y = row_new(&row_y, N, sizeof(float));
        last = bits;
        for (int i = 0; i < N; i++, bits += 2477) {
            x[i] = from_bits(bits);
        }
        u.fn(N, y, x);
        for (int i = 0; i < N && test_failures < 50; i++) {
            check_value(&u, x[i], y[i]);
        }
    } while (bits > last);
    printf("     %-8s %-14s at most %.2f of its bound\n", level_name, u.name, u.worst);
}

#define UNARY_TEST(kernel, ORACLE, BOUND, ABSOLUTE)                                                \
    static void test_##kernel(const struct gb_kernels * k) {                                       \
        const struct unary u = { #kernel, k->kernel, scalar->kernel, ORACLE, BOUND, ABSOLUTE, 0 }; \
        check_unary(u);                                                                            \
        if (u.bound != NULL)                                                                       \
            sweep_unary(u);                                                                        \
        if (u.absolute != 0)                                                                       \
            check_far(u);                                                                          \
    }

static double do_sgn(double x) { return (x > 0) - (x < 0); }
static double do_neg(double x) { return -x; }
static double do_step(double x) { return x > 0 ? 1 : 0; }
static double do_relu(double x) { return x < 0 ? 0 : x; }
static double do_sqr(double x) { return x * x; }
static double do_hardsigmoid(double x) { return isnan(x) ? x : fmin(1, fmax(0, (x + 3) / 6)); }
static double do_hardswish(double x) { return x <= -3 ? -0.0 : x * do_hardsigmoid(x); }
static double do_elu(double x) { return x > 0 ? x : expm1(x); }
static double sigmoid_times(double x, double t) { // 0 or x at the ends, never NaN from infinity times zero
    return x < -1e4 ? -0.0 : x > 1e4 ? x : x / (1 + exp(-t));
}
static double do_silu(double x) { return sigmoid_times(x, x); }
static double gelu_t(double x) { return 2 * 0.79788456080286535588 * x * (1 + 0.044715 * x * x); }
static double do_gelu(double x) { return sigmoid_times(x, gelu_t(x)); }
static double do_gelu_quick(double x) { return sigmoid_times(x, 1.702 * x); }
static double do_gelu_erf(double x) { return x < -1e4 ? -0.0 : x / 2 * erfc(-x * 0.70710678118654752440); }

static double do_sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double do_softplus(double x) { return isnan(x) ? x : fmax(x, 0) + log1p(exp(-fabs(x))); }
static double do_sin(double x) { return isinf(x) ? NAN : sin(x); }
static double do_cos(double x) { return isinf(x) ? NAN : cos(x); }

static double bound_2(double x) {
    (void) x;
    return 2;
}
static double bound_3(double x) {
    (void) x;
    return 3;
}
static double bound_4(double x) {
    (void) x;
    return 4;
}
static double bound_gelu(double x) { return 6 + 3 * fabs(gelu_t(x)); }
static double bound_gelu_quick(double x) { return 6 + 3 * fabs(1.702 * x); }
static double bound_gelu_erf(double x) { return 8 + 3 * x * x / 2; }

UNARY_TEST(floor_f32, floor, NULL, 0)
UNARY_TEST(ceil_f32, ceil, NULL, 0)
UNARY_TEST(round_f32, round, NULL, 0)
UNARY_TEST(trunc_f32, trunc, NULL, 0)
UNARY_TEST(expm1_f32, expm1, bound_3, 0)
UNARY_TEST(abs_f32, fabs, NULL, 0)
UNARY_TEST(sgn_f32, do_sgn, NULL, 0)
UNARY_TEST(neg_f32, do_neg, NULL, 0)
UNARY_TEST(step_f32, do_step, NULL, 0)
UNARY_TEST(relu_f32, do_relu, NULL, 0)
UNARY_TEST(sqr_f32, do_sqr, NULL, 0)
UNARY_TEST(sqrt_f32, sqrt, NULL, 0)
UNARY_TEST(hardsigmoid_f32, do_hardsigmoid, bound_2, 0)
UNARY_TEST(hardswish_f32, do_hardswish, bound_2, 0)
UNARY_TEST(exp_f32, exp, bound_2, 0x1p-125)
UNARY_TEST(log_f32, log, bound_2, 0)
UNARY_TEST(tanh_f32, tanh, bound_3, 0)
UNARY_TEST(elu_f32, do_elu, bound_3, 0)
UNARY_TEST(silu_f32, do_silu, bound_4, 0x1p-119)
UNARY_TEST(sigmoid_f32, do_sigmoid, bound_4, 0x1p-125)
UNARY_TEST(softplus_f32, do_softplus, bound_4, 0x1p-125)
UNARY_TEST(gelu_f32, do_gelu, bound_gelu, 0x1p-122)
UNARY_TEST(gelu_quick_f32, do_gelu_quick, bound_gelu_quick, 0x1p-119)
UNARY_TEST(gelu_erf_f32, do_gelu_erf, bound_gelu_erf, 0x1p-125)

// Floats near multiples of a quarter turn, where reduction cancels nearly all digits, and near the
// bound of the second reduction. Each is tested among neighbours and alone.
static void check_wave(struct unary u) {
    enum { N = 4096 };
    check_unary(u);
    sweep_unary(u);
    for (int pass = 0; pass < 100; pass++) {
        float * x = row_new(&row_x, N, sizeof(float));
        float * y = row_new(&row_y, N, sizeof(float));
        for (int i = 0; i < N; i++) {
            const double turns = floor(exp(test_random_float(0, pass % 2 ? 88 : 12)));
            const float near = (float) (turns * 1.57079632679489661923);
            x[i] = from_bits(to_bits(near) + (uint32_t) test_random_int(-2, 2));
            x[i] = i % 5 ? x[i] : -x[i];
        }
        u.fn(N, y, x);
        for (int i = 0; i < N && test_failures < 50; i++) {
            float alone;
            check_value(&u, x[i], y[i]);
            u.fn(1, &alone, x + i);
            CHECK_MSG(same_bits(alone, y[i]), "%s %s(%a) alone is %a, among others %a", level_name, u.name, x[i], alone,
                y[i]);
        }
    }
    for (int i = 0; i < 2; i++) {
        float y;
        u.fn(1, &y, (float[]){ i ? -0.0f : 0.0f });
        CHECK(same_bits(y, (float) u.oracle(i ? -0.0 : 0.0)));
    }
}

static void test_sin_f32(const struct gb_kernels * k) {
    check_wave((struct unary){ "sin_f32", k->sin_f32, scalar->sin_f32, do_sin, bound_2, 0, 0 });
}
static void test_cos_f32(const struct gb_kernels * k) {
    check_wave((struct unary){ "cos_f32", k->cos_f32, scalar->cos_f32, do_cos, bound_2, 0, 0 });
}

// ------------------------------------------------------------------------------------- with parameters: a generic call

// z = f(x, y, parameters) for one kernel, through an adapter that knows the parameters.
struct general {
    const char * name;
    void (*run)(const struct gb_kernels * k, int64_t n, float * z, const float * x, const float * y);
    double (*oracle)(float x, float y);
    bool exact;
    double (*scale)(float x, float y); // else: |error| <= this times EPS
};

static float p1, p2; // parameters of the kernel under test

static void check_general_at(const struct general * g, const struct gb_kernels * k, int64_t n) {
    float * x = random_row(&row_x, n, g->exact ? WILD : TAME);
    float * y = random_row(&row_y, n, g->exact ? WILD : TAME);
    float * z = row_new(&row_z, n, sizeof(float));
    static float again[MAX_N];
    memcpy(z, y, (size_t) n * sizeof(float)); // for y += ...
    g->run(k, n, z, x, y);
    CHECK_MSG(row_intact(&row_x) && row_intact(&row_y) && row_intact(&row_z), "%s %s writes outside, n = %lld",
        level_name, g->name, (long long) n);
    for (int64_t i = 0; i < n; i++) {
        const double e = g->oracle(x[i], y[i]);
        CHECK_MSG(g->exact ? same_bits(z[i], (float) e) : fabs(z[i] - e) <= g->scale(x[i], y[i]) * EPS,
            "%s %s(%a, %a) is %a, expected %a", level_name, g->name, x[i], y[i], z[i], e);
    }
    memcpy(again, y, (size_t) n * sizeof(float));
    g->run(scalar, n, again, x, y);
    CHECK_MSG(!g->exact || same_array(again, z, n), "%s %s differs from scalar, n = %lld", level_name, g->name,
        (long long) n);
}

static void check_general(struct general g, const struct gb_kernels * k) {
    for (int s = 0; s < N_SIZES; s++) {
        p1 = random_value(TAME);
        p2 = p1 + test_random_float(0, 5);
        check_general_at(&g, k, size_at(s));
    }
}

// Also in place: z == x.
#define GENERAL_TEST(kernel, CALL, INPLACE, ORACLE, EXACT, SCALE)                                                   \
    static void run_##kernel(const struct gb_kernels * k, int64_t n, float * z, const float * x, const float * y) { \
        (void) y;                                                                                                   \
        k->kernel CALL;                                                                                             \
    }                                                                                                               \
    static double oracle_##kernel(float x, float y) {                                                               \
        (void) y;                                                                                                   \
        return ORACLE;                                                                                              \
    }                                                                                                               \
    static double scale_##kernel(float x, float y) {                                                                \
        (void) x;                                                                                                   \
        (void) y;                                                                                                   \
        return SCALE;                                                                                               \
    }                                                                                                               \
    static void test_##kernel(const struct gb_kernels * k) {                                                        \
        check_general((struct general){ #kernel, run_##kernel, oracle_##kernel, EXACT, scale_##kernel }, k);        \
        for (int64_t n = 0; n <= 70 && INPLACE; n++) {                                                              \
            float * x = random_row(&row_x, n, WILD);                                                                \
            const float * y = random_row(&row_y, n, WILD);                                                          \
            float * z = row_new(&row_z, n, sizeof(float));                                                          \
            run_##kernel(k, n, z, x, y);                                                                            \
            run_##kernel(k, n, x, x, y);                                                                            \
            CHECK_MSG(same_array(x, z, n), "%s " #kernel " in place differs", level_name);                          \
        }                                                                                                           \
    }

GENERAL_TEST(add_f32, (n, z, x, y), true, (double) x + y, true, 0)
GENERAL_TEST(sub_f32, (n, z, x, y), true, (double) x - y, true, 0)
GENERAL_TEST(mul_f32, (n, z, x, y), true, (double) x * y, true, 0)
GENERAL_TEST(div_f32, (n, z, x, y), true, (double) x / y, true, 0)
GENERAL_TEST(larger_f32, (n, z, x, y), true, isnan(x) || isnan(y) ? (double) NAN : x > y ? x : y, true, 0)
GENERAL_TEST(equal_f32, (n, z, x, y), true, x == y, true, 0)
GENERAL_TEST(not_equal_f32, (n, z, x, y), true, x != y, true, 0)
GENERAL_TEST(less_f32, (n, z, x, y), true, x < y, true, 0)
GENERAL_TEST(less_equal_f32, (n, z, x, y), true, x <= y, true, 0)
GENERAL_TEST(add1_f32, (n, z, x, p1), true, (double) x + p1, true, 0)
GENERAL_TEST(scale_f32, (n, z, x, p1), true, (double) x * p1, true, 0)
GENERAL_TEST(leaky_relu_f32, (n, z, x, p1), true, x > 0 ? x : (double) p1 * x, true, 0)
GENERAL_TEST(clamp_f32, (n, z, x, p1, p2), true, isnan(x) ? x : x < p1 ? p1 : x > p2 ? p2 : x, true, 0)

static double limited_sum(float x, float v, float z) {
    const float sum = x + v + z;
    return sum < -3 ? -3 : sum > 4 ? 4 : sum;
}
GENERAL_TEST(shift_clamp_f32, (n, z, x, p2 > 0 ? y : NULL, p1, -3, 4), true, limited_sum(x, p1, p2 > 0 ? y : -0.0f),
    true, 0)

GENERAL_TEST(mad_f32, (n, z, x, p1), false, y + (double) x * p1, false, fabs(x * p1) + fabs(y + x * p1) + 1e-6)
GENERAL_TEST(norm_apply_f32, (n, z, x, p1, p2), true, ((double) x - p1) * p2, false, 2 * fabs((x - p1) * p2) + 1e-6)
GENERAL_TEST(scale_mask_f32, (n, z, x, p1, y), true, (double) x * p1 + y, false, fabs(x * p1) + fabs(y + x * p1) + 1e-6)

GENERAL_TEST(blend_f32, (n, z, x, y, p1, p2), true, (double) x * p1 + (double) y * p2, false,
    2 * (fabs(x * p1) + fabs(y * p2)) + 1e-6)
GENERAL_TEST(scale_bias_f32, (n, z, x, p1, p2), true, (double) x * p1 + p2, false, 2 * (fabs(x * p1) + fabs(p2)) + 1e-6)

// Gates: the tolerance of the function, times the gate.
#define GATE_TEST(kernel, F, BOUND)                                    \
    GENERAL_TEST(kernel, (n, z, x, y), true, F((double) x) * y, false, \
        (2 * BOUND((double) x) + 1) * fabs(F((double) x) * y) + 1e-30)
GENERAL_TEST(reglu_f32, (n, z, x, y), true, x > 0 ? (double) x * y : x <= 0 ? 0 : NAN, true, 0)
GATE_TEST(geglu_f32, do_gelu, bound_gelu)
GATE_TEST(swiglu_f32, do_silu, bound_4)
GATE_TEST(geglu_erf_f32, do_gelu_erf, bound_gelu_erf)
GATE_TEST(geglu_quick_f32, do_gelu_quick, bound_gelu_quick)

// relative to the terms of the derivative, which cancel near -1.28
static double do_silu_back(double x, double g) {
    const double s = 1 / (1 + exp(-x)), rest = 1 / (1 + exp(x));
    return fabs(x) > 1000 ? (x > 0 ? g : x < 0 ? 0 * g : x) : g * (s + x * s * rest);
}
static double size_silu_back(double x, double g) {
    const double s = 1 / (1 + exp(-x));
    return fabs(g) * (s + fabs(x) * s / (1 + exp(x)));
}
GENERAL_TEST(silu_back_f32, (n, z, x, y), true, do_silu_back((double) x, (double) y), false,
    10 * size_silu_back((double) x, (double) y) + 1e-30)

static double do_swiglu_oai(double x, double g, double alpha, double limit) {
    const double u = fmin(x, limit), w = fmax(-limit, fmin(limit, g));
    return u / (1 + exp(-alpha * u)) * (w + 1);
}
GENERAL_TEST(swiglu_oai_f32, (n, z, x, y, 1.702f, 5.0f), true,
    do_swiglu_oai((double) x, (double) y, (double) 1.702f, 5), false, 120 * (fabs(x) + 1))

static double do_xielu(double x, double m, double p, double beta, double eps) {
    return x > 0 ? p * x * x + beta * x : (expm1(fmin(x, eps)) - x) * m + beta * x;
}
GENERAL_TEST(xielu_f32, (n, z, x, 0.75f, 1.25f, 0.5f, -1e-6f), true,
    do_xielu((double) x, 0.75, 1.25, 0.5, (double) -1e-6f), false, 8 * (x * x + fabs(x) + 1e-6))

// Any bits pass unchanged, including those of integers.
static void test_select_f32(const struct gb_kernels * k) {
    static float c[MAX_N], keep[MAX_N];
    for (int s = 0; s < N_SIZES; s++) {
        const int64_t n = size_at(s);
        float * x = random_row(&row_x, n, WILD);
        float * y = random_row(&row_y, n, WILD);
        float * z = row_new(&row_z, n, sizeof(float));
        for (int64_t i = 0; i < n; i++) {
            c[i] = i % 3 ? random_value(WILD) : i % 2 ? -0.0f : 0.0f;
        }
        k->select_f32(n, z, c, x, y);
        CHECK(row_intact(&row_x) && row_intact(&row_y) && row_intact(&row_z));
        for (int64_t i = 0; i < n; i++) {
            CHECK_MSG(to_bits(z[i]) == to_bits(c[i] == 0 ? y[i] : x[i]), "%s select_f32(%a, %a, %a) is %a", level_name,
                c[i], x[i], y[i], z[i]);
        }
        memcpy(keep, x, (size_t) n * sizeof(float));
        k->select_f32(n, x, c, x, y);
        CHECK(memcmp(x, z, (size_t) n * sizeof(float)) == 0);
        k->select_f32(n, y, c, keep, y);
        CHECK(memcmp(y, z, (size_t) n * sizeof(float)) == 0);
    }
}

// --------------------------------------------------------------------------------------------------------- conversions

// The nearest number with `mantissa` explicit bits and the given smallest exponent, ties to even.
// Beyond `limit` it is infinite.
static double narrowed(double x, int mantissa, int e_min, double limit) {
    if (x == 0 || isnan(x) || isinf(x)) {
        return x;
    }
    int e;
    frexp(x, &e); // |x| in [2^(e-1), 2^e)
    const double q = ldexp(1, GB_MAX(e - 1, e_min) - mantissa);
    const double r = nearbyint(x / q) * q;
    return fabs(r) > limit ? copysign(INFINITY, x) : r;
}

static double half_value(uint16_t h) {
    const int e = (h >> 10) & 31, m = h & 1023;
    const double v = e == 31 ? (m ? NAN : INFINITY) : e == 0 ? ldexp(m, -24) : ldexp(1024 + m, e - 25);
    return h & 0x8000 ? -v : v;
}

static double bfloat_value(uint16_t h) {
    const int e = (h >> 7) & 255, m = h & 127;
    const double v = e == 255 ? (m ? NAN : INFINITY) : e == 0 ? ldexp(m, -133) : ldexp(128 + m, e - 134);
    return h & 0x8000 ? -v : v;
}

static void check_widen(const char * name, void (*fn)(int64_t, float *, const uint16_t *), double (*value)(uint16_t)) {
    uint16_t first = 0;
    for (int pass = 0; pass < 80; pass++) { // large sizes cover all patterns
        const int64_t n = pass < 60 ? pass : 4000;
        uint16_t * x = row_new(&row_x, n, sizeof(uint16_t));
        float * y = row_new(&row_y, n, sizeof(float));
        for (int64_t i = 0; i < n; i++) {
            x[i] = first++;
        }
        fn(n, y, x);
        CHECK_MSG(row_intact(&row_y), "%s %s writes outside, n = %lld", level_name, name, (long long) n);
        for (int64_t i = 0; i < n; i++) {
            CHECK_MSG(same_bits(y[i], (float) value(x[i])), "%s %s(%04x) is %a", level_name, name, x[i], y[i]);
        }
    }
}

struct narrow {
    const char * name;
    void (*fn)(int64_t, uint16_t *, const float *);
    void (*scalar_fn)(int64_t, uint16_t *, const float *);
    double (*value)(uint16_t);
    int mantissa, e_min;
    double limit;
};

static void check_narrow(struct narrow c) {
    for (int pass = 0; pass < 500; pass++) {
        const int64_t n = pass < 130 ? pass : 2000;
        float * x = random_row(&row_x, n, WILD);
        uint16_t * y = row_new(&row_y, n, sizeof(uint16_t));
        uint16_t * z = row_new(&row_z, n, sizeof(uint16_t));
        for (int64_t i = 0; i < n; i++) { // most are near a tie
            const float v = (float) c.value((uint16_t) test_random());
            const float w = from_bits(to_bits(v) + (uint32_t) test_random_int(-2, 2) + (1u << (22 - c.mantissa)));
            x[i] = i % 3 ? w : x[i];
        }
        c.fn(n, y, x);
        c.scalar_fn(n, z, x);
        CHECK_MSG(row_intact(&row_y), "%s %s writes outside, n = %lld", level_name, c.name, (long long) n);
        for (int64_t i = 0; i < n; i++) {
            CHECK_MSG(same_bits((float) c.value(y[i]), (float) narrowed(x[i], c.mantissa, c.e_min, c.limit)),
                "%s %s(%a) is %a", level_name, c.name, x[i], c.value(y[i]));
            CHECK_MSG(y[i] == z[i] || isnan(x[i]), "%s %s(%a) is %04x, scalar %04x", level_name, c.name, x[i], y[i],
                z[i]);
        }
    }
}

static void test_f16_to_f32(const struct gb_kernels * k) { check_widen("f16_to_f32", k->f16_to_f32, half_value); }
static void test_bf16_to_f32(const struct gb_kernels * k) { check_widen("bf16_to_f32", k->bf16_to_f32, bfloat_value); }
static void test_f32_to_f16(const struct gb_kernels * k) {
    check_narrow((struct narrow){ "f32_to_f16", k->f32_to_f16, scalar->f32_to_f16, half_value, 10, -14, 65504 });
}
static void test_f32_to_bf16(const struct gb_kernels * k) {
    check_narrow((struct narrow){
        "f32_to_bf16", k->f32_to_bf16, scalar->f32_to_bf16, bfloat_value, 7, -126, 0x1.fep127 });
}

// ---------------------------------------------------------------------------------------------------------- reductions

#define SUM_TEST(kernel, CALL, TERM, EPSILON)                                                                       \
    static void test_##kernel(const struct gb_kernels * k) {                                                        \
        for (int s = 0; s < N_SIZES; s++) {                                                                         \
            const int64_t n = size_at(s);                                                                           \
            float * x = random_row(&row_x, n, TAME);                                                                \
            float * y = random_row(&row_y, n, TAME);                                                                \
            p1 = random_value(TAME);                                                                                \
            long double exact = 0, size = 0;                                                                        \
            for (int64_t i = 0; i < n; i++) {                                                                       \
                exact += TERM;                                                                                      \
                size += fabs((double) (TERM));                                                                      \
            }                                                                                                       \
            const double r = k->kernel CALL;                                                                        \
            CHECK_MSG(fabsl(r - exact) <= 4 * n * (EPSILON) * size,                                                 \
                "%s " #kernel " is %.17g, expected %.17g, n = %lld", level_name, r, (double) exact, (long long) n); \
            if (n > 0) {                                                                                            \
                x[test_random_int(0, n - 1)] = NAN;                                                                 \
                CHECK(isnan(k->kernel CALL));                                                                       \
            }                                                                                                       \
        }                                                                                                           \
        (void) row_y;                                                                                               \
    }

SUM_TEST(sum_f32, (n, ((void) y, x)), x[i], 0x1p-53)
SUM_TEST(sum_sqr_f32, (n, ((void) y, x)), (double) x[i] * x[i], 0x1p-53)
SUM_TEST(sum_sqr_dev_f32, (n, ((void) y, x), p1), (double) (x[i] - p1) * (x[i] - p1), 0x1p-53)
SUM_TEST(dot_f32, (n, x, y), (double) x[i] * y[i], EPS)

static void test_max_f32(const struct gb_kernels * k) {
    for (int s = 0; s < N_SIZES; s++) {
        const int64_t n = size_at(s);
        float * x = random_row(&row_x, n, WILD);
        float m = -INFINITY;
        for (int64_t i = 0; i < n; i++) {
            x[i] = isnan(x[i]) ? 0.5f : x[i];
            m = x[i] > m ? x[i] : m;
        }
        CHECK(same_bits(k->max_f32(n, x), m == 0 ? 0.0f : m));
        if (n > 0) { // a NaN at any place, also next to infinities
            x[test_random_int(0, n - 1)] = INFINITY;
            x[test_random_int(0, n - 1)] = s % 2 ? NAN : -NAN;
            CHECK(isnan(k->max_f32(n, x)));
        }
    }
    const float zeros[] = { -0.0f, 0.0f, -0.0f };
    CHECK(same_bits(k->max_f32(3, zeros), 0.0f) && same_bits(k->max_f32(1, zeros), 0.0f));
}

// Random float16 patterns without NaN and infinity.
static uint16_t * random_halves(struct row * r, int64_t n, double (*value)(uint16_t)) {
    uint16_t * x = row_new(r, n, sizeof(uint16_t));
    for (int64_t i = 0; i < n; i++) {
        do {
            x[i] = (uint16_t) test_random();
        } while (!(fabs(value(x[i])) < 1e6 && fabs(value(x[i])) > 1e-15)); // products do not underflow
    }
    return x;
}

#define HALF_DOT_TEST(kernel, TX, NEWX, VALX, TY, NEWY, VALY)                                            \
    static void test_##kernel(const struct gb_kernels * k) {                                             \
        for (int s = 0; s < N_SIZES; s++) {                                                              \
            const int64_t n = size_at(s);                                                                \
            TX * x = NEWX;                                                                               \
            TY * y = NEWY;                                                                               \
            double exact = 0, size = 0;                                                                  \
            for (int64_t i = 0; i < n; i++) {                                                            \
                exact += VALX(x[i]) * VALY(y[i]);                                                        \
                size += fabs(VALX(x[i]) * VALY(y[i]));                                                   \
            }                                                                                            \
            const double r = k->kernel(n, x, y);                                                         \
            CHECK_MSG(fabs(r - exact) <= 4 * (double) n * EPS * size,                                    \
                "%s " #kernel " is %.9g, expected %.9g, n = %lld", level_name, r, exact, (long long) n); \
        }                                                                                                \
    }
HALF_DOT_TEST(dot_f16, uint16_t, random_halves(&row_x, n, half_value), half_value, uint16_t,
    random_halves(&row_y, n, half_value), half_value)
HALF_DOT_TEST(dot_f16_f32, uint16_t, random_halves(&row_x, n, half_value), half_value, float,
    random_row(&row_y, n, TAME), (double) )
HALF_DOT_TEST(dot_bf16, uint16_t, random_halves(&row_x, n, bfloat_value), bfloat_value, uint16_t,
    random_halves(&row_y, n, bfloat_value), bfloat_value)
HALF_DOT_TEST(dot_bf16_f32, uint16_t, random_halves(&row_x, n, bfloat_value), bfloat_value, float,
    random_row(&row_y, n, TAME), (double) )

static void test_exp_sum_far(const struct gb_kernels * k);

static void test_exp_sum_f32(const struct gb_kernels * k) {
    test_exp_sum_far(k);
    for (int s = 0; s < N_SIZES; s++) {
        const int64_t n = size_at(s);
        float * x = random_row(&row_x, n, TAME);
        float * y = row_new(&row_y, n, sizeof(float));
        const float max = 8;
        double sum = 0;
        if (n > 3) {
            x[1] = -INFINITY; // masked
        }
        const double r = k->exp_sum_f32(n, y, x, max, GB_EXP_LEAST);
        CHECK(row_intact(&row_y));
        for (int64_t i = 0; i < n; i++) {
            CHECK(ulps(y[i], exp((double) (x[i] - max))) <= 2);
            sum += y[i];
        }
        CHECK_MSG(fabs(r - sum) <= (2 * EPS + 4 * (double) n * 0x1p-53) * sum,
            "%s exp_sum_f32 is %.17g, expected %.17g", level_name, r, sum);
        CHECK(n <= 3 || same_bits(y[1], 0.0f));
        CHECK(k->exp_sum_f32(n, x, x, max, GB_EXP_LEAST) == r && same_array(x, y, n));
    }
}

// Masked rows: -inf, finite numbers in its place, slopes of positions.
static float far_value(int kind, int64_t i) {
    static const float masked[] = { -INFINITY, -3e38f, -1e30f, -1e9f, -65504 };
    return kind < 5 ? (test_random() % 3 ? test_random_float(-4, 4) : masked[kind])
                    : -(float) i * 0.75f + test_random_float(-1, 1); // passes through all that become denormal
}

static void test_exp_sum_far(const struct gb_kernels * k) {
    static float values[MAX_N];
    for (int pass = 0; pass < 600; pass++) {
        const int64_t n = 1 + (int64_t) (test_random() % MAX_N);
        float * x = row_new(&row_x, n, sizeof(float));
        float * y = row_new(&row_y, n, sizeof(float));
        double sum = 0;
        float max = x[0] = 0;
        for (int64_t i = 1; i < n; i++) {
            x[i] = far_value(pass % 6, i);
            max = fmaxf(max, x[i]);
        }
        feclearexcept(FE_UNDERFLOW);
        const float least = pass / 6 % 2 ? GB_EXP_LEAST : -70;
        const double r = k->exp_sum_f32(n, y, x, max, least);
        CHECK_MSG(!fetestexcept(FE_UNDERFLOW), "%s exp_sum_f32: denormal numbers, pass %d", level_name, pass);
        for (int64_t i = 0; i < n; i++) {
            const double exact = exp((double) (x[i] - max));
            CHECK_MSG(!is_denormal(y[i]) && (x[i] - max < least ? y[i] == 0 : ulps(y[i], exact) <= 2),
                "%s exp_sum_f32: %a is %a", level_name, x[i] - max, y[i]);
            sum += y[i];
        }
        CHECK(fabs(r - sum) <= (2 * EPS + 4 * (double) n * 0x1p-53) * sum);
        memcpy(values, x, (size_t) n * sizeof(float));
        feclearexcept(FE_UNDERFLOW);
        k->soft_max_row_f32(n, x, x, 1, NULL);
        CHECK_MSG(!fetestexcept(FE_UNDERFLOW), "%s soft_max_row_f32: denormal numbers, pass %d", level_name, pass);
        for (int64_t i = 0; i < n; i++) {
            const double exact = exp((double) (values[i] - max)) / sum;
            CHECK_MSG(!is_denormal(x[i]) && (fabs(x[i] - exact) <= 16 * EPS * exact || (x[i] == 0 && exact < 0x1p-125)),
                "%s soft_max_row_f32: %a, expected %a", level_name, x[i], exact);
        }
    }
}

// Values as doubles, for any type.
static double float_bits_value(const void * p, int64_t i) { return ((const float *) p)[i]; }
static double half_bits_value(const void * p, int64_t i) { return half_value(((const uint16_t *) p)[i]); }
static double bfloat_bits_value(const void * p, int64_t i) { return bfloat_value(((const uint16_t *) p)[i]); }

#include "test_kernels_bytes.h"
#include "test_kernels_few.h"
#include "test_kernels_rows.h"
#include "test_kernels_tiles.h"
#include "test_kernels_conv.h"

// ------------------------------------------------------------------------------------------------------------- running

static const struct {
    const char * name;
    void (*run)(const struct gb_kernels * k);
} kernel_tests[] = {
#define GB_KERNEL(name, tolerance, contract) { #name, test_##name },
#include "cpu/kernels/kernels.def"
#undef GB_KERNEL
};

static void kernels(void) {
    scalar = gb_level_find("scalar")->kernels;
    for (int l = 0; l < gb_level_count(); l++) {
        const struct gb_level * level = gb_level_at(l);
        level_name = level->name;
        if (!level->usable()) {
            printf("skipped: level %s, this processor does not have it\n", level->name);
            continue;
        }
        for (size_t i = 0; i < sizeof(kernel_tests) / sizeof(kernel_tests[0]) && test_failures < 50; i++) {
            const int before = test_failures;
            kernel_tests[i].run(level->kernels);
            if (test_failures > before) {
                printf("     %s %s: %d failures\n", level->name, kernel_tests[i].name, test_failures - before);
            }
        }
    }
}

TEST_MAIN(TEST(kernels))
