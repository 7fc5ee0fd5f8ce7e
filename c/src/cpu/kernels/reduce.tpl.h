// reduce.tpl.h - reduces a row to a number.
//
// Sums convert their terms to double, so that they round to 53 bits. Dot products add in float, in
// four vectors of partial sums, and longer rows part by part. The order of additions is fixed, so a
// result depends on n and the values only.

#if !HAVE_ADD_AT
static ALWAYS_INLINE vd vd_add_at(vd s, const float * p) { return vd_add(s, v_load(p)); }
#endif

// TERM_AT adds the terms of the floats at an address, TERM the terms of a vector.
#define SUM_F64(name, PARAMS, REST, TERM_AT, TERM)                   \
    static double name PARAMS {                                      \
        vd s0 = vd_zero(), s1 = vd_zero();                           \
        int64_t i = 0;                                               \
        for (; i + 2 * V_N <= n; i += 2 * V_N) {                     \
            s0 = TERM_AT(s0, x + i);                                 \
            s1 = TERM_AT(s1, x + i + V_N);                           \
        }                                                            \
        for (; i < n; i += V_N) {                                    \
            const int left = (int) (n - i < V_N ? n - i : V_N);      \
            const vf a = v_first(v_load_n(x + i, left), left, REST); \
            s0 = TERM(s0, a);                                        \
        }                                                            \
        return vd_sum(vd_join(s0, s1));                              \
    }
#define SQUARE(s, a) vd_mad(s, a, a)
#define SQUARE_AT(s, p) SQUARE(s, v_load(p))
#define DEVIATION(s, a) SQUARE(s, v_sub(a, v_set(mean)))
#define DEVIATION_AT(s, p) DEVIATION(s, v_load(p))

#if V_ISA_AVX512
#    include "x86/sum_avx512.tpl.h"
#else
SUM_F64(sum_f32, (int64_t n, const float * x), v_set(0.0f), vd_add_at, vd_add)
#endif
SUM_F64(sum_sqr_f32, (int64_t n, const float * x), v_set(0.0f), SQUARE_AT, SQUARE)
SUM_F64(sum_sqr_dev_f32, (int64_t n, const float * x, float mean), v_set(mean), DEVIATION_AT, DEVIATION)

static float max_f32(int64_t n, const float * x) {
    const vf least = v_set(-INFINITY);
    vf m = least, m1 = least, m2 = least, m3 = least;
    vm o = v_eq(least, least), o1 = o; // lanes without a NaN so far
    int64_t i = 0;
    for (; i + 4 * V_N <= n; i += 4 * V_N) {
        const vf a = v_load(x + i), b = v_load(x + i + V_N), c = v_load(x + i + 2 * V_N), d = v_load(x + i + 3 * V_N);
        m = v_max(a, m); // m if a is NaN
        m1 = v_max(b, m1);
        m2 = v_max(c, m2);
        m3 = v_max(d, m3);
        o = v_ordered(o, a, b);
        o1 = v_ordered(o1, c, d);
    }
    m = v_max(v_max(m, m1), v_max(m2, m3));
    for (; i < n; i += V_N) {
        const int left = (int) (n - i < V_N ? n - i : V_N);
        const vf a = v_first(v_load_n(x + i, left), left, least);
        m = v_max(a, m);
        o = v_ordered(o, a, a);
    }
    // -0 becomes +0, because the order of zeros must not matter.
    return !(vm_all(o) && vm_all(o1)) ? NAN : v_largest(m) + 0.0f;
}

#define LOAD_F32(p) v_load(p)
#define LOAD_F32_N(p, n) v_load_n(p, n)
#define LOAD_F16(p) v_load_f16(p)
#define LOAD_F16_N(p, n) v_load_f16_n(p, n)
#define LOAD_BF16(p) from_bf16_(v_load_u16(p))
#define LOAD_BF16_N(p, n) from_bf16_(v_load_u16_n(p, n))

// The number of terms of one part of a row. A part is added in float. The sums of parts are added
// in double, so that errors do not grow with n.
#define SUM_PART 8192

#define DOT(name, TX, LOADX, TY, LOADY)                                                       \
    static float name##_part_(int64_t n, const TX * x, const TY * y) {                        \
        vf s0 = v_set(0.0f), s1 = s0, s2 = s0, s3 = s0;                                       \
        int64_t i = 0;                                                                        \
        for (; i + 4 * V_N <= n; i += 4 * V_N) {                                              \
            s0 = v_fma(LOADX(x + i), LOADY(y + i), s0);                                       \
            s1 = v_fma(LOADX(x + i + V_N), LOADY(y + i + V_N), s1);                           \
            s2 = v_fma(LOADX(x + i + 2 * V_N), LOADY(y + i + 2 * V_N), s2);                   \
            s3 = v_fma(LOADX(x + i + 3 * V_N), LOADY(y + i + 3 * V_N), s3);                   \
        }                                                                                     \
        for (; i + V_N <= n; i += V_N) {                                                      \
            s0 = v_fma(LOADX(x + i), LOADY(y + i), s0);                                       \
        }                                                                                     \
        if (i < n) {                                                                          \
            s1 = v_fma(LOADX##_N(x + i, (int) (n - i)), LOADY##_N(y + i, (int) (n - i)), s1); \
        }                                                                                     \
        return v_sum(v_add(v_add(s0, s1), v_add(s2, s3)));                                    \
    }                                                                                         \
    static float name(int64_t n, const TX * x, const TY * y) {                                \
        double sum = 0;                                                                       \
        if (n <= SUM_PART) {                                                                  \
            return name##_part_(n, x, y);                                                     \
        }                                                                                     \
        for (int64_t i = 0; i < n; i += SUM_PART) {                                           \
            sum += (double) name##_part_(n - i < SUM_PART ? n - i : SUM_PART, x + i, y + i);  \
        }                                                                                     \
        return (float) sum;                                                                   \
    }

DOT(dot_f32, float, LOAD_F32, float, LOAD_F32)
DOT(dot_f16, uint16_t, LOAD_F16, uint16_t, LOAD_F16)
DOT(dot_f16_f32, uint16_t, LOAD_F16, float, LOAD_F32)
DOT(dot_bf16, uint16_t, LOAD_BF16, uint16_t, LOAD_BF16)
DOT(dot_bf16_f32, uint16_t, LOAD_BF16, float, LOAD_F32)
