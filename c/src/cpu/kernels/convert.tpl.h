// convert.tpl.h - rows between f32, f16 and bf16. To nearest even; NaN stays NaN (quiet), overflow becomes infinity.

static inline vf from_bf16_(vi halves) { return v_from_bits(vi_shl(halves, 16)); }

static inline vi to_bf16_(vf a) { // in the low halves
    const vi bits  = v_bits(a);
    const vi even  = vi_and(vi_shr(bits, 16), vi_set(1));
    const vf round = v_from_bits(vi_shr(vi_add(bits, vi_add(even, vi_set(0x7fff))), 16));
    const vf quiet = v_from_bits(vi_or(vi_shr(bits, 16), vi_set(0x40)));
    return v_bits(v_sel(v_eq(a, a), round, quiet));
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
CONVERT(f32_to_bf16, uint16_t, float, v_store_u16(y + i, to_bf16_(v_load(x + i))),
    v_store_u16_n(y + i, to_bf16_(v_load_n(x + i, left)), left))
