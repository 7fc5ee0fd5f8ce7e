// waves.tpl.h - sine and cosine in single precision, within 2 ulp for every x (tests/c/cpu/kernels/test_kernels.c).
//
// x = k pi/2 + r, where |r| is little more than pi/4. The last two bits of k choose one of two
// polynomials in r (minimax, fitted for this file) and its sign. Up to WAVE_FAR k has few enough
// bits for pi/2 in three floats, because each product is added without rounding. Larger elements
// are computed one by one, with as many bits of 2/pi as needed. Infinities give NaN. The bits of an
// element do not depend on its neighbours.
#include "base/fp16.h"

#define WAVE_FAR 0x1p17f

// The sine of quarter pi/2 + r, |r| <= 0.8, in double, with one or two terms of Taylor's series
// more than a float needs.
static inline float wave_f64_(unsigned quarter, double r) {
    const double z = r * r;
    const double sine = r + r * z * (-1.0 / 6 + z * (1.0 / 120 + z * (-1.0 / 5040 + z * (1.0 / 362880))));
    const double cosine = 1 + z * (-0.5 + z * (1.0 / 24 + z * (-1.0 / 720 + z * (1.0 / 40320 + z * (-1.0 / 3628800)))));
    const double y = quarter & 1 ? cosine : sine;
    return (float) (quarter & 2 ? -y : y);
}

// 2/pi after a word of zeros, in words of 32 bits.
static const uint32_t two_over_pi_[8] = { 0, 0xa2f9836e, 0x4e441529, 0xfc2757d1, 0xf534ddc0, 0xdb629599, 0x3c439041,
    0xfe5163ab };

// The sine of x + turn pi/2, |x| >= 1, in integers: x = m 2^e. Bits of 2/pi that are worth 4 or
// more after the product count whole turns and are skipped. The 96 bits after them leave an error
// of 2^-71 quarters.
static float wave_far_(float x, unsigned turn) {
    const uint32_t bits = gb_f32_bits(x), exponent = bits >> 23 & 255;
    if (exponent == 255) {
        return x - x; // NaN
    }
    const uint64_t m = (bits & 0x7fffff) | 0x800000;
    const int first = (int) exponent - 150 - 2 + 32; // of the table's bits, the first of the 96
    const int word = first / 32, shift = first % 32;
    uint64_t part[3]; // 32 bits each
    for (int i = 0; i < 3; i++) {
        const uint64_t two = (uint64_t) two_over_pi_[word + i] << 32 | two_over_pi_[word + i + 1];
        part[i] = two << shift >> 32;
    }
    // the product's low 96 bits; the upper 64 of them are quarters, with 2 bits before the point
    const uint64_t low = m * part[2], middle = m * part[1] + (low >> 32), high = m * part[0] + (middle >> 32);
    const uint64_t phase = high << 32 | (middle & 0xffffffff);
    const uint64_t k = (phase + ((uint64_t) 1 << 61)) >> 62; // to the nearest quarter
    const int64_t rest = (int64_t) (phase - (k << 62));
    const double r = (double) rest * (0x1.921fb54442d18p0 * 0x1p-62);
    // the sine of -x is -sin x, and the cosine of -x is cos x
    const unsigned quarter = (unsigned) k;
    return bits >> 31 ? wave_f64_(turn - quarter, -r) : wave_f64_(turn + quarter, r);
}

#if V_ISA_SCALAR
// v_fma rounds twice here, so this computes in double.
static inline vf wave_(vf x, int32_t turn) {
    const double t = (double) x * 0x1.45f306dc9c883p-1 + 0x1.8p52; // the integer is in the lowest bits
    const double k = t - 0x1.8p52;
    uint64_t quarter;
    memcpy(&quarter, &t, sizeof(quarter));
    const float y =
        wave_f64_((unsigned) quarter + (unsigned) turn, ((double) x - k * 0x1.921fb544p0) - k * 0x1.0b4611a626331p-34);
    return turn == 0 && x == 0.0f ? x : y; // -0 stays
}
#else
static inline vf wave_(vf x, int32_t turn) {
    const vf magic = v_set(0x1.8p23f);
    const vf t = v_fma(x, v_set(0x1.45f306p-1f), magic); // 2 / pi; the integer is in the lowest bits
    const vf k = v_sub(t, magic);
    const vf high = v_fnma(k, v_set(0x1.921fb4p0f), x); // exact
    const vf r = v_fnma(k, v_set(0x1.846988p-48f), v_fnma(k, v_set(0x1.4442dp-24f), high));
    const vf a = v_max(v_set(0x1p-60f), v_abs(r)); // below this, the cubic term does not count
    const vf z = v_mul(a, a);
    vf p = v_fma(v_set(-0x1.98d4b4p-13f), z, v_set(0x1.1105f0p-7f));
    p = v_mul(z, v_fma(p, z, v_set(-0x1.555542p-3f)));
    vf q = v_fma(v_set(0x1.9985ecp-16f), z, v_set(-0x1.6c0accp-10f));
    q = v_fma(v_fma(q, z, v_set(0x1.555548p-5f)), z, v_set(-0.5f));
    // The lower bit of the quarter is at the top of the exponent, the upper bit is the sign.
    const vi quarter = vi_shl(vi_add(v_bits(t), vi_set(turn)), 30);
    const vm is_even = v_eq(v_from_bits(quarter), v_set(0.0f));
    const vf y = v_sel(is_even, v_copysign(v_fma(p, r, r), r), v_fma(q, z, v_set(1.0f))); // -0 stays
    return v_from_bits(vi_xor(v_bits(y), vi_and(quarter, vi_set(INT32_MIN))));
}
#endif

static inline vm wave_near_(vf x) { return v_lt(v_abs(x), v_set(WAVE_FAR)); }

// y[i] = sine of x[i] + turn pi/2 for large x[i].
static void waves_far_(int64_t n, float * y, const float * x, int32_t turn) {
    for (int64_t i = 0; i < n; i++) {
        if (!(fabsf(x[i]) < WAVE_FAR)) {
            y[i] = wave_far_(x[i], (unsigned) turn);
        }
    }
}

// Four vectors at a time, because the chains of operations are long.
static ALWAYS_INLINE void waves_(int64_t n, float * y, const float * x, int32_t turn) {
    float kept[4 * V_N]; // y may be x
    int64_t i = 0;
    for (; i + 4 * V_N <= n; i += 4 * V_N) {
        const vf a = v_load(x + i), b = v_load(x + i + V_N);
        const vf c = v_load(x + i + 2 * V_N), d = v_load(x + i + 3 * V_N);
        const bool all_near =
            vm_all(wave_near_(a)) && vm_all(wave_near_(b)) && vm_all(wave_near_(c)) && vm_all(wave_near_(d));
        if (!all_near) {
            memcpy(kept, x + i, sizeof(kept));
        }
        v_store(y + i, wave_(a, turn));
        v_store(y + i + V_N, wave_(b, turn));
        v_store(y + i + 2 * V_N, wave_(c, turn));
        v_store(y + i + 3 * V_N, wave_(d, turn));
        if (!all_near) {
            waves_far_(4 * V_N, y + i, kept, turn);
        }
    }
    for (; i < n; i += V_N) {
        const int left = (int) (n - i < V_N ? n - i : V_N);
        const vf a = v_load_n(x + i, left);
        v_store(kept, a);
        v_store_n(y + i, wave_(a, turn), left);
        if (!vm_all(wave_near_(a))) {
            waves_far_(left, y + i, kept, turn);
        }
    }
}

static void sin_f32 UNARY { waves_(n, y, x, 0); }
static void cos_f32 UNARY { waves_(n, y, x, 1); }
