// blocks_avx512.tpl.h - converts rows of floats to blocks of Q8_0 and Q4_0 on AVX-512, for
// blocks.tpl.h.

static inline bool has_nan_(__m512 a, __m512 b) { return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) != 0; }

static inline float extreme_(const float * x, __m512 a, __m512 b) { // the first of largest magnitude; none is NaN
    const vf p = v_abs(a), q = v_abs(b), largest = v_set(v_largest(v_max(p, q)));
    const __mmask32 at = (__mmask32) v_eq(p, largest) | (__mmask32) v_eq(q, largest) << 16;
    const float value = x[__builtin_ctz(at)];
    return value != 0 ? value : 0.0f; // +0 for a zero of either sign
}

// Rounds x id, whose magnitude is below 128, to nearest, halves away from zero: adds the largest
// float below 1/2 to the magnitude, then truncates. The sum for k + 1/2 is rounded to k + 1. At 1/2
// it is a tie, which goes to the even number 1. No smaller number reaches k + 1, because the float
// before k + 1/2 is smaller by a whole unit in the last place.
static inline __m128i byte_levels_(__m512 x, __m512 id) {
    const vf v = v_mul(x, id);
    return _mm512_cvtepi32_epi8(_mm512_cvttps_epi32(v_add(v, v_copysign(v_set(0x1.fffffep-2f), v))));
}

static inline vi nibble_levels_(__m512 x, __m512 id) { // the sum is separate from the product: two roundings
    const vf v = v_add(v_mul(x, id), v_set(8.5f));
    return _mm512_cvttps_epi32(v_min(v, v_set(15.0f))); // v is above 0
}

static void f32_to_q8_0(int64_t n, void * y, const float * x) {
    uint8_t * block = y;
    for (int64_t i = 0; i < n; i += BLOCK_N, block += GB_BYTES(q8_0)) {
        const vf a = v_load(x + i), b = v_load(x + i + 16);
        const float d = has_nan_(a, b) ? INFINITY : v_largest(v_max(v_abs(a), v_abs(b))) / 127;
        if (!is_plain_(d)) {
            store_odd_(GGML_TYPE_Q8_0, x + i, block);
            continue;
        }
        const vf id = v_set(d != 0 ? 1 / d : 0);
        store_scale_(block, d);
        _mm_storeu_si128((__m128i *) (block + GB_AT(q8_0, qs)), byte_levels_(a, id));
        _mm_storeu_si128((__m128i *) (block + GB_AT(q8_0, qs) + 16), byte_levels_(b, id));
    }
}

static void f32_to_q4_0(int64_t n, void * y, const float * x) {
    uint8_t * block = y;
    for (int64_t i = 0; i < n; i += BLOCK_N, block += GB_BYTES(q4_0)) {
        const vf a = v_load(x + i), b = v_load(x + i + 16);
        const float d = has_nan_(a, b) ? INFINITY : extreme_(x + i, a, b) / -8;
        if (!is_plain_(d)) {
            store_odd_(GGML_TYPE_Q4_0, x + i, block);
            continue;
        }
        const vf id = v_set(d != 0 ? 1 / d : 0);
        store_scale_(block, d);
        const vi both = vi_or(nibble_levels_(a, id), vi_shl(nibble_levels_(b, id), 4));
        _mm_storeu_si128((__m128i *) (block + GB_AT(q4_0, qs)), _mm512_cvtepi32_epi8(both));
    }
}
