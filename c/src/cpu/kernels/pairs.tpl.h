// pairs.tpl.h - activations and quantized weights as bfloat16, for gemm_tile_bf16.
//
// Activations are rounded directly into their places in a panel. A lane of a panel of bytes
// (int8.tpl.h, columns.tpl.h) holds four terms of a column of weights. Each becomes d u + m in
// float. Both pairs of a lane are rounded and stored where the tile of gemm.tpl.h expects them.

// a in the lower half of each lane, b in the upper half, as bfloat16.
#if HAVE_BF16_DOT
#    define pair_of_(a, b) v_bf16_pairs(a, b)
#else
static inline vi pair_of_(vf a, vf b) { return vi_or(to_bf16_(a), vi_shl(to_bf16_(b), 16)); }
#endif

// NaN where |a| is not below GB_LARGEST_ACTIVATION
static inline vf limited_(vf a) { return v_sel(v_lt(v_abs(a), v_set(GB_LARGEST_ACTIVATION)), a, v_set(NAN)); }

// n contiguous values
static ALWAYS_INLINE void round_run_(bool limited, int64_t n, uint16_t * y, const float * x) {
    int64_t i = 0;
    for (; i + 2 * V_N <= n; i += 2 * V_N) {
        vf a = v_load(x + i), b = v_load(x + i + V_N);
        if (limited) {
            a = limited_(a);
            b = limited_(b);
        }
#if HAVE_BF16_DOT
        v_store_bf16(y + i, a, b);
#else
        v_store_u16(y + i, to_bf16_(a));
        v_store_u16(y + i + V_N, to_bf16_(b));
#endif
    }
    for (; i < n; i += V_N) {
        const int left = (int) (n - i < V_N ? n - i : V_N);
        const vf a = v_load_n(x + i, left);
        v_store_u16_n(y + i, to_bf16_(limited ? limited_(a) : a), left);
    }
}

static void round_bf16(const struct gb_round_bf16 * p) {
    uint16_t * y = p->y;
    for (int64_t i = 0; i < p->k; i += p->together, y += p->stride) {
        const int64_t n = p->k - i < p->together ? p->k - i : p->together;
        if (n == 32) { // the part of a row in a tile register, as a loop of constant length
            round_run_(p->limited, 32, y, p->x + i);
        } else {
            round_run_(p->limited, n, y, p->x + i);
        }
    }
}

static ALWAYS_INLINE vf weight_(vi levels, vf d, vf m) { return v_fma(v_from_int(vi_and(levels, vi_set(255))), d, m); }

static void bytes_to_bf16(const struct gb_bytes_to_bf16 * p) {
    const int group = p->kind & GB_BYTES_HALVES ? 16 : 32;
    const bool centered = (p->kind & GB_BYTES_CENTERED) != 0;
    const float *u = p->x, *d = u + p->k / 4 * BYTES_NR, *m = d + p->k / group * BYTES_NR;
    float * y = p->y;
    for (int64_t g = 0; g < p->k / group; g++) {
        UNROLL
        for (int j = 0; j < V_BYTES_NV; j++) {
            const vf dv = v_load(d + j * V_N);
            const vf mv = centered ? v_mul(dv, v_set((float) -p->zero)) : v_load(m + j * V_N);
            for (int i = 0; i < group / 4; i++) {
                const vi levels = v_bits(v_load(u + i * BYTES_NR + j * V_N));
                const vf w0 = weight_(levels, dv, mv), w1 = weight_(vi_shr(levels, 8), dv, mv),
                         w2 = weight_(vi_shr(levels, 16), dv, mv), w3 = weight_(vi_shr(levels, 24), dv, mv);
                v_store(y + 2 * i * BYTES_NR + j * V_N, v_from_bits(pair_of_(w0, w1)));
                v_store(y + (2 * i + 1) * BYTES_NR + j * V_N, v_from_bits(pair_of_(w2, w3)));
            }
        }
        u += group / 4 * BYTES_NR;
        y += group / 2 * BYTES_NR;
        d += BYTES_NR;
        m += BYTES_NR;
    }
}
