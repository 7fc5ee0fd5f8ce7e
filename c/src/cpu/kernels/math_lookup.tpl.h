// math_lookup.tpl.h - exp, tanh, the sigmoid family and the normal distribution for sets in which a
// register of sixteen floats is a table.
//
// x = (k / 16) ln 2 + r with |r| <= ln 2 / 32. The low four bits of k choose 2^(j/16) from a table,
// which costs one instruction, and for so small an r a polynomial with two coefficients suffices.
// The error bounds are those of math.tpl.h, with about half the operations.
//
// Arguments are limited from above to the range in which powers of two and their reciprocals stay
// normal numbers. Below the range, a mask makes the power and the result zero, so that no slow
// subnormal number is computed. NaN stays. math.tpl.h includes this file for sets with V_LOOKUP
// (isa.h).

static const float exp2_16ths_[16] = { 0x1p+0f, 0x1.0b5586p+0f, 0x1.172b84p+0f, 0x1.2387a6p+0f, 0x1.306fep+0f,
    0x1.3dea64p+0f, 0x1.4bfdaep+0f, 0x1.5ab07ep+0f, 0x1.6a09e6p+0f, 0x1.7a1148p+0f, 0x1.8ace54p+0f, 0x1.9c4918p+0f,
    0x1.ae89fap+0f, 0x1.c199bep+0f, 0x1.d5818ep+0f, 0x1.ea4afap+0f };

static const float exp2m1_16ths_[16] = { // 2^(j/16) - 1, rounded after the subtraction
    0x0p+0f, 0x1.6ab0dap-5f, 0x1.72b83cp-4f, 0x1.1c3d38p-3f, 0x1.837f06p-3f, 0x1.ef5326p-3f, 0x1.2ff6b6p-2f,
    0x1.6ac1f8p-2f, 0x1.a8279ap-2f, 0x1.e8451cp-2f, 0x1.159ca8p-1f, 0x1.38923p-1f, 0x1.5d13f4p-1f, 0x1.83337cp-1f,
    0x1.ab031cp-1f, 0x1.d495f4p-1f
};

// 2^y for y between -126 and 127, where `kept` holds; else 0, for any y. Uses y as it was rounded.
static inline vf exp2_(vm kept, vf y) {
    const vf t = v_add(y, v_set(0x1.8p19f)); // the last bit counts sixteenths
    const vf n = v_sub(t, v_set(0x1.8p19f));
    const vf r = v_sub(y, n);
    const vf base = v_lookup(exp2_16ths_, v_bits(t));
    const vf q = v_fma(v_fma(r, v_set(0x1.c6b3fap-5f), v_set(0x1.ebfffcp-3f)), r, v_set(0x1.62e43p-1f));
    const vf p = v_fma(base, v_mul(r, q), base);
    return v_scale_floor_where(kept, p, n);
}

// exp(sign x), a normal number or infinity, where `kept` holds; else 0, for any x. Computed from
// the exact product with 1 / ln 2.
static inline vf exp_signed_(vm kept, vf x, float sign) {
    const vf t = v_fma(x, v_set(sign * 0x1.715476p0f), v_set(0x1.8p19f));
    const vf n = v_sub(t, v_set(0x1.8p19f));
    // sign times the remainder
    const vf r = v_fnma(n, v_set(sign * -0x1.05c61p-29f), v_fnma(n, v_set(sign * 0x1.62e43p-1f), x));
    const vf base = v_lookup(exp2_16ths_, v_bits(t));
    const vf q = v_fma(v_fma(r, v_set(sign * 0x1.55572ap-3f), v_set(0x1.00022ep-1f)), r, v_set(sign));
    const vf p = v_fma(base, v_mul(r, q), base);
    return v_scale_floor_where(kept, p, n);
}

// 0 where x is below `least`, which is GB_EXP_LEAST or above; x at most 89
static inline vf exp_from_(vf least, vf x) { return exp_signed_(v_not_lt(x, least), x, 1); }

static inline vf exp_(vf x) { return exp_from_(v_set(GB_EXP_LEAST), v_min(v_set(89.0f), x)); }

// a / (1 + e), where `kept` holds; else -0. e below 2^126.
static inline vf times_sigmoid_(vm kept, vf a, vf e) {
    const vf d = v_add(e, v_set(1.0f));
    const vf r = v_recip_rough(d);
    return v_mul_or(v_set(-0.0f), kept, a, v_fma(r, v_fnma(d, r, v_set(1.0f)), r));
}

static inline vf sigmoid_(vf x) { // +0 below the cut
    const vm kept = v_not_lt(x, v_set(SILU_LEAST));
    const vf d = v_add(exp_signed_(kept, v_min(v_set(60.0f), x), -1), v_set(1.0f));
    const vf r = v_recip_rough(d);
    return v_keep(kept, v_fma(r, v_fnma(d, r, v_set(1.0f)), r));
}

static inline vf silu_(vf x) {
    const vm kept = v_not_lt(x, v_set(SILU_LEAST));
    return times_sigmoid_(kept, x, exp_signed_(kept, v_min(v_set(60.0f), x), -1));
}

static inline vf gelu_quick_(vf x) { // factors include -1 / ln 2, here and in gelu
    const vm kept = v_not_lt(x, v_set(GELU_QUICK_LEAST));
    return times_sigmoid_(kept, x, exp2_(kept, v_mul(v_min(v_set(35.0f), x), v_set(-0x1.3a4cbep+1f))));
}

static inline vf gelu_(vf x) { // math.tpl.h
    const vm kept = v_not_lt(x, v_set(GELU_LEAST));
    const vf b = v_min(v_set(8.0f), x);
    const vf c = v_fma(v_mul(b, b), v_set(-0x1.a5a7dp-4f), v_set(-0x1.26aec2p+1f));
    return times_sigmoid_(kept, x, exp2_(kept, v_mul(b, c)));
}

// With E = exp(2 |x|): tanh |x| = h / (1 + h), where h = (E - 1) / 2 is computed without
// cancellation: E = 2^n (1 + u)(1 + 2 s), u from a table.
static inline vf tanh_(vf x) {
    const vf a = v_min(v_set(10.0f), v_abs(x)); // above this, the result is 1
    const vf t = v_fma(a, v_set(0x1.715476p1f), v_set(0x1.8p19f));
    const vf n = v_sub(t, v_set(0x1.8p19f));
    const vf r = v_fnma(n, v_set(0x1.62e43p-2f), a);
    const vf q = v_fma(r, v_fma(r, v_set(0x1.555714p-2f), v_set(0x1.555714p-1f)), v_set(1.0f));
    const vf s = v_fma(v_mul(r, q), r, r);
    const vf half = v_scale_floor(v_set(0.5f), n); // 2^n / 2
    const vf u = v_fma(half, v_lookup(exp2m1_16ths_, v_bits(t)), v_sub(half, v_set(0.5f)));
    const vf h = v_fma(v_fma(u, v_set(2.0f), v_set(1.0f)), s, u);
    const vf d = v_add(h, v_set(1.0f));
    const vf e = v_recip_rough(d);
    const vf y = v_mul(h, e);
    return v_copysign(v_fma(e, v_fnma(y, d, h), y), x);
}

// exp(a^2 / 2) times the normal tail at a: polynomials of fifth degree, four for each power of two
// of 1 + a, from 1 to 16. Their order is that of the two lowest bits of the exponent and the two
// highest bits of the mantissa.
static const float tail_[6][16] = {
    { 0x1.0bdb2ep-2f, 0x1.a57056p-3f, 0x1.5845dcp-3f, 0x1.217252p-3f, 0x1.f1b89ap-4f, 0x1.82b4bap-4f, 0x1.3b0fbcp-4f,
        0x1.095608p-4f, 0x1.c9e11ep-5f, 0x1.66ccb8p-5f, 0x1.26b4dp-5f, 0x1.f3ddc2p-6f, 0x1p-1f, 0x1.a7f808p-2f,
        0x1.66027ap-2f, 0x1.337024p-2f },
    { -0x1.1951e4p-3f, -0x1.71cp-4f, -0x1.00f9bcp-4f, -0x1.75ab48p-5f, -0x1.19cdbap-5f, -0x1.5cf8d6p-6f,
        -0x1.d61482p-7f, -0x1.50689cp-7f, -0x1.f7d2b2p-8f, -0x1.378076p-8f, -0x1.a5da5cp-9f, -0x1.301284p-9f,
        -0x1.98844p-2f, -0x1.2e8646p-2f, -0x1.cb062p-3f, -0x1.63e06ap-3f },
    { 0x1.fca304p-5f, 0x1.20325ap-5f, 0x1.5d24c4p-6f, 0x1.bf2fbep-7f, 0x1.2bd046p-7f, 0x1.2dbbc2p-8f, 0x1.541748p-9f,
        0x1.a0e0b4p-10f, 0x1.101f04p-10f, 0x1.0b4e82p-11f, 0x1.2b8824p-12f, 0x1.6fcf5p-13f, 0x1.fff906p-3f,
        0x1.5c52aep-3f, 0x1.e67daep-4f, 0x1.5bf58ep-4f },
    { -0x1.98815ap-6f, -0x1.97a254p-7f, -0x1.b5da6ep-8f, -0x1.f4d2fep-9f, -0x1.2aff6ap-9f, -0x1.f289aap-11f,
        -0x1.dc091ep-12f, -0x1.f7e168p-13f, -0x1.1cf6b2p-13f, -0x1.c1edbcp-15f, -0x1.a3d7f4p-16f, -0x1.b8d088p-17f,
        -0x1.0fe0e6p-3f, -0x1.58ce54p-4f, -0x1.c14d68p-5f, -0x1.2c329cp-5f },
    { 0x1.1b5cd2p-7f, 0x1.fd065ap-9f, 0x1.ede292p-10f, 0x1.003766p-10f, 0x1.046132p-11f, 0x1.73166ep-13f,
        0x1.330f02p-14f, 0x1.1d56fcp-15f, 0x1.08a052p-16f, 0x1.5acf56p-18f, 0x1.1344bp-19f, 0x1.f579cep-21f,
        0x1.f15e44p-5f, 0x1.2943a4p-5f, 0x1.6d3e94p-6f, 0x1.cc7fbap-7f },
    { -0x1.04e02ap-9f, -0x1.b3701p-11f, -0x1.88e91ep-12f, -0x1.7bb2fap-13f, -0x1.1f49fp-14f, -0x1.6fd79ep-16f,
        -0x1.131208p-17f, -0x1.d0f174p-19f, -0x1.349f46p-20f, -0x1.63e71ep-22f, -0x1.f754bp-24f, -0x1.9ce0a8p-25f,
        -0x1.468546p-6f, -0x1.759232p-7f, -0x1.b746dep-8f, -0x1.0907f8p-8f },
};

// x Phi(x)
static inline vf gelu_erf_(vf x) {
    const vm kept = v_not_lt(x, v_set(GELU_ERF_LEAST)), tail = v_lt(x, v_set(0.0f));
    const vf a = v_min(v_set(13.15f), v_abs(x)); // above this, the tail does not count
    const vf w = v_add(a, v_set(1.0f));
    const vi index = vi_shr(v_bits(w), 21);
    const vf d = v_sub(w, v_from_bits(vi_shl(index, 21))); // from the lower end of the interval
    const vf dd = v_mul(d, d);
    const vf low = v_fma(v_lookup(tail_[1], index), d, v_lookup(tail_[0], index));
    const vf mid = v_fma(v_lookup(tail_[3], index), d, v_lookup(tail_[2], index));
    const vf high = v_fma(v_lookup(tail_[5], index), d, v_lookup(tail_[4], index));
    const vf p = v_fma(v_fma(high, dd, mid), dd, low);
    const vf e = exp2_(kept, v_mul(v_mul(v_set(-0x1.715476p-1f), a), a));
    return v_mul_or(v_set(-0.0f), kept, v_sel(tail, v_mul(x, e), x), v_sel(tail, p, v_fnma(e, p, v_set(1.0f))));
}
