// int8.tpl.h - products of quantized weights and activations in bytes.
//
// Weights are unpacked (unpack.tpl.h) to levels u, scales d and minima m. Activations are bytes q,
// scales D and sums S. contracts/bytes.h defines all of these. The product of a group is d D sum(u
// q) + m S, in which the sum is exact.
//
// A row of activations is k bytes q, k / 32 floats D, k / group floats S. Panels of MR rows hold
// the same three parts, with the rows interleaved: q [k / 32][MR][32], D [k / 32][MR], S [k /
// group][MR]. Panels of weights hold u, d, m: [k / 4][NR][4], twice [k / group][NR].
//
// In centered panels, 0 has the same level z in all groups, so m is -z d, and m S is D d times -z
// sum(q). So the sum of integers starts at -z sum(q). Panels of activations then hold this int32_t
// instead of S, and panels of weights have no m.
#include "tensor/numbers.h"

#define BYTES_NR (V_BYTES_NV * V_N)

// Rounds 32 activations to bytes, to nearest. Returns D and the sums of both halves.
static inline float quantize_32_(int8_t * restrict q, const float * restrict x, int32_t sums[2]) {
    int32_t largest = 0;
    for (int i = 0; i < 32; i++) {
        int32_t bits;
        memcpy(&bits, x + i, sizeof(bits));
        bits &= 0x7fffffff; // as an integer, NaN is above infinity
        largest = bits > largest ? bits : largest;
    }
    float max;
    memcpy(&max, &largest, sizeof(max));
    if (!(max < GB_LARGEST_ACTIVATION)) {
        memset(q, 0, 32);
        sums[0] = sums[1] = 0;
        return NAN;
    }
    const bool none = max < GB_LEAST_ACTIVATION;
    const float inverse = none ? 0.0f : 127.0f / max;
    for (int i = 0; i < 32; i++) { // adding 1.5 2^23 leaves the integer in the lowest bits
        const float t = x[i] * inverse + 12582912.0f;
        int32_t bits;
        memcpy(&bits, &t, sizeof(bits));
        q[i] = (int8_t) (uint8_t) (bits & 0xff);
    }
    sums[0] = sums[1] = 0;
    for (int i = 0; i < 16; i++) {
        sums[0] += q[i];
        sums[1] += q[i + 16];
    }
    return none ? 0.0f : max / 127.0f;
}

// spread_(d, lanes): lane i has d[i / lanes]. A group has 4 or 8 lanes, or all lanes of a shorter vector.
#if V_ISA_AVX512
#    include "x86/int8_avx512.tpl.h"
#elif V_ISA_AVX2
#    include "x86/int8_avx2.tpl.h"
#else
static ALWAYS_INLINE vf spread_(const float * d, int lanes) {
    float all[V_N];
    if (lanes >= V_N) {
        return v_set(d[0]);
    }
    for (int i = 0; i < V_N; i++) {
        all[i] = d[i / lanes];
    }
    return v_load(all);
}
#endif

// Stores S of a group, or its centered sum, from the scale and the sums of both halves.
static ALWAYS_INLINE void put_sums_(bool halves, int zero, float * s, int64_t step, float d, const int32_t sums[2]) {
    const int32_t whole = sums[0] + sums[1];
    const int n = halves ? 2 : 1;
    for (int h = 0; h < n; h++) {
        const int32_t sum = n == 2 ? sums[h] : whole, centered = -zero * sum;
        const float end = d * (float) sum;
        memcpy(s + h * step, zero != 0 ? (const void *) &centered : (const void *) &end, sizeof(*s));
    }
}

static void quantize_q8(const struct gb_quantize_q8 * p) {
    const int64_t k = p->k, step = p->step;
    const int zero = p->zero;
    int8_t * const q = p->q;
    float * const d = p->d;
    float * const s = p->s;
    const float * const x = p->x;
    const bool halves = p->kind & GB_BYTES_HALVES;
    const int64_t after = (halves ? 2 : 1) * step; // to the sums of the next group
    int64_t g = 0;
#if V_ISA_AVX512
    for (; g + 4 <= k / 32; g += 4) {
        float scales[4];
        int32_t sums[8];
        quantize_128_(q + 32 * g * step, 32 * step, scales, sums, x + 32 * g);
        UNROLL
        for (int i = 0; i < 4; i++) {
            d[(g + i) * step] = scales[i];
            put_sums_(halves, zero, s + (g + i) * after, step, scales[i], sums + 2 * i);
        }
    }
#endif
    for (; g < k / 32; g++) {
        int32_t sums[2];
        d[g * step] = quantize_32_(q + 32 * g * step, x + 32 * g, sums);
        put_sums_(halves, zero, s + g * after, step, d[g * step], sums);
    }
}

// ---------------------------------------------------------------------------------------------- one column, a few rows

// The part with the minima: sum m S.
static ALWAYS_INLINE float minima_(int64_t groups, const float * m, const float * s) {
    vf a = v_set(0.0f), b = v_set(0.0f);
    int64_t g = 0;
    for (; g + 2 * V_N <= groups; g += 2 * V_N) {
        a = v_fma(v_load(m + g), v_load(s + g), a);
        b = v_fma(v_load(m + g + V_N), v_load(s + g + V_N), b);
    }
    for (; g < groups; g += V_N) {
        const int n = (int) (groups - g < V_N ? groups - g : V_N);
        a = v_fma(v_load_n(m + g, n), v_load_n(s + g, n), a);
    }
    return v_sum(v_add(a, b));
}

// A vector has 4 V_N terms. With 16 lanes it has two groups of 32. An odd last group is padded with zeros.
static ALWAYS_INLINE void dot_rows_(int n, bool halves, bool wide, int64_t k, float * y, const uint8_t * u,
    const float * d, const float * m, const int8_t * const * q, const float * const * dx, const float * const * s) {
    enum { TERMS = 4 * V_N };
    const int group = halves ? 16 : 32, lanes = group / 4 < V_N ? group / 4 : V_N;
    vf acc[GB_DOT_Q8_ROWS][2];
    UNROLL
    for (int j = 0; j < n; j++) {
        acc[j][0] = acc[j][1] = v_set(0.0f);
    }
    int64_t i = 0;
#if V_ISA_AVX512
    for (; i + 16 * group <= k; i += 16 * group) {
        dot_groups_(n, halves, wide, u + i, d + i / group, i, q, dx, acc);
    }
#endif
    for (; i + 2 * TERMS <= k; i += 2 * TERMS) {
        UNROLL
        for (int h = 0; h < 2; h++) {
            const int64_t at = i + h * TERMS;
            const vb w = vb_load(u + at);
            const vf dw = spread_(d + at / group, lanes);
            UNROLL
            for (int j = 0; j < n; j++) {
                const vb x = vb_load(q[j] + at);
                const vi sum = wide ? vi_dot4w(vi_set(0), w, x) : vi_dot4(vi_set(0), w, x);
                const vf dd = v_mul(dw, spread_(dx[j] + at / 32, V_N < 8 ? V_N : 8));
                acc[j][h] = v_fma(v_from_int(sum), dd, acc[j][h]);
            }
        }
    }
    for (; i < k; i += TERMS) {
        uint8_t last[2][TERMS] = { { 0 } };
        float scales[2][4] = { { 0 } };
        const int64_t terms = k - i < TERMS ? k - i : TERMS;
        memcpy(last[0], u + i, (size_t) terms);
        memcpy(scales[0], d + i / group, (size_t) ((terms + group - 1) / group) * sizeof(float));
        UNROLL
        for (int j = 0; j < n; j++) {
            memcpy(last[1], q[j] + i, (size_t) terms);
            memcpy(scales[1], dx[j] + i / 32, (size_t) ((terms + 31) / 32) * sizeof(float));
            const vb w = vb_load(last[0]), x = vb_load(last[1]);
            const vi sum = wide ? vi_dot4w(vi_set(0), w, x) : vi_dot4(vi_set(0), w, x);
            const vf dd = v_mul(spread_(scales[0], lanes), spread_(scales[1], V_N < 8 ? V_N : 8));
            acc[j][0] = v_fma(v_from_int(sum), dd, acc[j][0]);
        }
    }
    UNROLL
    for (int j = 0; j < n; j++) {
        y[j] += v_sum(v_add(acc[j][0], acc[j][1])) + minima_(k / group, m, s[j]);
    }
}

static void dot_q8(const struct gb_dot_q8 * p) {
#if HAVE_VNNI // one instruction works for both cases
    const int kind = p->kind & ~GB_BYTES_WIDE;
#else
    const int kind = p->kind;
#endif
#define DOT_CASE(rows, halves, wide)                                                    \
    case rows * 4 + halves * GB_BYTES_HALVES + wide * GB_BYTES_WIDE:                    \
        dot_rows_(rows, halves, wide, p->k, p->y, p->u, p->d, p->m, p->q, p->dx, p->s); \
        break;
#define DOT_CASES(rows) DOT_CASE(rows, 0, 0) DOT_CASE(rows, 1, 0) DOT_CASE(rows, 0, 1) DOT_CASE(rows, 1, 1)
    switch (p->n * 4 + kind) {
        DOT_CASES(1)
        DOT_CASES(2)
        DOT_CASES(3)
        DOT_CASES(4)
        default: break;
    }
#undef DOT_CASES
#undef DOT_CASE
}

// ---------------------------------------------------------------------------------------------------------------- tile

#if HAVE_I8MM
#    include "arm/tile_i8mm.tpl.h"
#else
// Adds `steps` groups of four terms, at most 8 groups, for all results of the tile. Sums start at
// 0, or for each row at a word of `start`. x: the first group of the first row. Rows are 32 bytes
// apart.
static ALWAYS_INLINE void tile_sums_(int mr, bool wide, int steps, const int8_t * x, const uint8_t * w,
    const float * start, vi sum[V_BYTES_MR][V_BYTES_NV]) {
    UNROLL
    for (int i = 0; i < mr; i++) {
        UNROLL
        for (int j = 0; j < V_BYTES_NV; j++) {
            sum[i][j] = start == NULL ? vi_set(0) : v_bits(v_set(start[i]));
        }
    }
    for (int p = 0; p < steps; p++) {
        vb wv[V_BYTES_NV];
        UNROLL
        for (int j = 0; j < V_BYTES_NV; j++) {
            wv[j] = vb_load(w + 4 * V_N * j);
        }
        UNROLL
        for (int i = 0; i < mr; i++) {
            const vb xv = vb_set4(x + 32 * i + 4 * p);
            UNROLL
            for (int j = 0; j < V_BYTES_NV; j++) {
                sum[i][j] = wide ? vi_dot4w(sum[i][j], wv[j], xv) : vi_dot4(sum[i][j], wv[j], xv);
            }
        }
        w += 4 * BYTES_NR;
    }
}
#endif

static ALWAYS_INLINE void tile_q8_(int mr, bool halves, bool wide, bool centered, int64_t k, const float * a,
    const float * b, float * c, int64_t ldc, int nr, bool accumulate) {
    const int group = halves ? 16 : 32;
    const int8_t * x = (const int8_t *) a;
    const uint8_t * w = (const uint8_t *) b;
    const float * dx = a + k / 4 * V_BYTES_MR;
    const float * s = dx + k / 32 * V_BYTES_MR;
    const float * d = b + k / 4 * BYTES_NR;
    const float * m = d + k / group * BYTES_NR;
    const int64_t after = (k + k / 8 + k * 4 / group) * V_BYTES_MR; // to the next panel of activations
    vf acc[V_BYTES_MR][V_BYTES_NV];
    UNROLL
    for (int i = 0; i < mr; i++) {
        UNROLL
        for (int j = 0; j < V_BYTES_NV; j++) {
            acc[i][j] = v_set(0.0f);
        }
        // Rows of the result often share sets of the cache, so other rows have evicted them.
        PREFETCH_TO_WRITE(c + i * ldc);
        PREFETCH_TO_WRITE(c + i * ldc + nr - 1);
    }
    for (int64_t g = 0; g < k / group; g++) {
        vi sum[V_BYTES_MR][V_BYTES_NV];
        tile_sums_(mr, wide, group / 4, x + (halves ? g % 2 * 16 : 0), w, centered ? s : NULL, sum);
        UNROLL
        for (int i = 0; i < group * V_BYTES_MR; i += 64) {
            PREFETCH(x + after + (halves ? g % 2 * 16 * V_BYTES_MR : 0) + i);
        }
        x += halves ? g % 2 * 32 * V_BYTES_MR : 32 * V_BYTES_MR;
        w += group * BYTES_NR;
        UNROLL
        for (int j = 0; j < V_BYTES_NV; j++) {
            const vf dv = v_load(d + j * V_N), mv = centered ? dv : v_load(m + j * V_N);
            UNROLL
            for (int i = 0; i < mr; i++) {
                acc[i][j] = v_fma(v_mul(v_from_int(sum[i][j]), dv), v_set(dx[i]), acc[i][j]);
                acc[i][j] = centered ? acc[i][j] : v_fma(mv, v_set(s[i]), acc[i][j]);
            }
        }
        dx += halves ? g % 2 * V_BYTES_MR : V_BYTES_MR;
        s += V_BYTES_MR;
        d += BYTES_NR;
        m += BYTES_NR;
    }
    UNROLL
    for (int i = 0; i < mr; i++) {
        store_row_(V_BYTES_NV, c + i * ldc, acc[i], nr, accumulate);
    }
}

static ALWAYS_INLINE void tile_q8_rows_(int mr, int kind, int64_t k, const float * a, const float * b, float * c,
    int64_t ldc, int nr, bool accumulate) {
#define KIND_CASE(halves, wide, centered)                                                \
    case halves * GB_BYTES_HALVES + wide * GB_BYTES_WIDE + centered * GB_BYTES_CENTERED: \
        tile_q8_(mr, halves, wide, centered, k, a, b, c, ldc, nr, accumulate);           \
        break;
#define KIND_CASES(halves, wide) KIND_CASE(halves, wide, 0) KIND_CASE(halves, wide, 1)
    switch (kind) {
        KIND_CASES(0, 0)
        KIND_CASES(1, 0)
#if !HAVE_VNNI
        KIND_CASES(0, 1)
        KIND_CASES(1, 1)
#endif
        default: break;
    }
#undef KIND_CASES
#undef KIND_CASE
}

static void gemm_tile_q8(int kind, const struct gb_tile * t) {
#if HAVE_VNNI // one instruction works for both cases
    kind &= ~GB_BYTES_WIDE;
#endif
    switch (t->mr) {
#define TILE_CASE(rows) \
    case rows: tile_q8_rows_(rows, kind, t->k, t->a, t->b, t->c, t->ldc, t->nr, t->accumulate); break;
        TILE_CASE(1)
        TILE_CASE(2)
        TILE_CASE(3)
        TILE_CASE(4)
#if V_BYTES_MR > 4
        TILE_CASE(5)
        TILE_CASE(6)
#endif
#undef TILE_CASE
        default: break;
    }
}
