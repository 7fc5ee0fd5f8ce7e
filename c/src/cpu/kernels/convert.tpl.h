// convert.tpl.h - converts rows between f32, f16 and bf16. Rounds to nearest even. NaN stays NaN
// (quiet), overflow becomes infinity.

static inline vf from_bf16_(vi halves) { return v_from_bits(vi_shl(halves, 16)); }

static inline vi to_bf16_high_(vf a) { // in the upper halves; the lower halves may be anything
    const vi bits = v_bits(a);
    const vi even = vi_and(vi_shr(bits, 16), vi_set(1));
    const vf round = v_from_bits(vi_add(bits, vi_add(even, vi_set(0x7fff))));
    const vf quiet = v_from_bits(vi_or(bits, vi_set(0x400000)));
    return v_bits(v_sel(v_eq(a, a), round, quiet));
}

static inline vi to_bf16_(vf a) { return vi_shr(to_bf16_high_(a), 16); } // in the lower halves

#if !HAVE_STORE_HIGH
static ALWAYS_INLINE void v_store_u16_high(uint16_t * p, vi a, vi b) {
    v_store_u16(p, vi_shr(a, 16));
    v_store_u16(p + V_N, vi_shr(b, 16));
}
#endif

static ALWAYS_INLINE void store_bf16_(uint16_t * p, vf a, vf b) {
#if HAVE_BF16_DOT
    if (!v_has_subnormal(a, b)) { // otherwise the instruction makes subnormal numbers 0
        v_store_bf16(p, a, b);
        return;
    }
#endif
    v_store_u16_high(p, to_bf16_high_(a), to_bf16_high_(b));
}

#define CONVERT(name, OUT, IN, BODY, TAIL)               \
    static void name(int64_t n, OUT * y, const IN * x) { \
        int64_t i = 0;                                   \
        for (; i + V_N <= n; i += V_N) {                 \
            BODY;                                        \
        }                                                \
        if (i < n) {                                     \
            const int left = (int) (n - i);              \
            TAIL;                                        \
        }                                                \
    }

CONVERT(f16_to_f32, float, uint16_t, v_store(y + i, v_load_f16(x + i)),
    v_store_n(y + i, v_load_f16_n(x + i, left), left))
CONVERT(f32_to_f16, uint16_t, float, v_store_f16(y + i, v_load(x + i)),
    v_store_f16_n(y + i, v_load_n(x + i, left), left))
CONVERT(bf16_to_f32, float, uint16_t, v_store(y + i, from_bf16_(v_load_u16(x + i))),
    v_store_n(y + i, from_bf16_(v_load_u16_n(x + i, left)), left))

static void f32_to_bf16(int64_t n, uint16_t * y, const float * x) {
    int64_t i = 0;
    for (; i + 2 * V_N <= n; i += 2 * V_N) {
        store_bf16_(y + i, v_load(x + i), v_load(x + i + V_N));
    }
    for (; i < n; i += V_N) {
        const int left = (int) (n - i < V_N ? n - i : V_N);
        v_store_u16_n(y + i, to_bf16_(v_load_n(x + i, left)), left);
    }
}
