// weigh_q8_0.tpl.h - weighted sums of rows of Q8_0, read in place. It adds up the values of a cache.
//
// The sums of one block of 32 columns stay in registers for all rows, for WQ_X results at a time.
// Converting single rows first stores and loads four times as many bytes.

#if V_ISA_AVX512
#    define WQ_X 4
#elif V_ISA_SCALAR
#    define WQ_X 1
#else
#    define WQ_X 2
#endif
#define WQ_LATER 24 // prefetch distance in rows

enum { WQ_V = 32 / V_N }; // vectors of a block

static inline vf wq_load_(const int8_t * p) {
#if HAVE_LOAD_I8
    return v_load_i8(p);
#else
    float x[V_N];
    for (int i = 0; i < V_N; i++) {
        x[i] = (float) p[i];
    }
    return v_load(x);
#endif
}

// One block of columns of nx <= WQ_X results. x: of the first row. w, y: of the first result.
static ALWAYS_INLINE void wq_block_(int nx, const struct gb_weigh_q8_0 * p, const uint8_t * x, const float * w,
    float * y) {
    vf sum[WQ_X][WQ_V];
    for (int j = 0; j < nx; j++) {
        UNROLL
        for (int i = 0; i < WQ_V; i++) {
            sum[j][i] = v_load(y + j * p->ldy + i * V_N);
        }
    }
    for (int64_t c = 0; c < p->n; c++, x += p->nb_x) {
        vf q[WQ_V];
        const float d = half_at_(x + GB_AT(q8_0, d));
        PREFETCH_L2(x + WQ_LATER * p->nb_x);
        UNROLL
        for (int i = 0; i < WQ_V; i++) {
            q[i] = wq_load_((const int8_t *) x + GB_AT(q8_0, qs) + i * V_N);
        }
        UNROLL
        for (int j = 0; j < nx; j++) {
            const float weight = w[j * p->ldw + c];
            const vf s = v_set(weight != 0 ? weight * d : 0.0f);
            UNROLL
            for (int i = 0; i < WQ_V; i++) {
                sum[j][i] = v_fma(q[i], s, sum[j][i]);
            }
        }
    }
    for (int j = 0; j < nx; j++) {
        UNROLL
        for (int i = 0; i < WQ_V; i++) {
            v_store(y + j * p->ldy + i * V_N, sum[j][i]);
        }
    }
}

static void weigh_q8_0(const struct gb_weigh_q8_0 * p) {
    static_assert(GB_ELEMENTS(q8_0) == 32, "a block");
    const uint8_t * x = p->x;
    for (int64_t i = 0; i < p->k; i += 32, x += GB_BYTES(q8_0)) {
        for (int j = 0; j < p->nx; j += WQ_X) {
            const float * const w = p->w + j * p->ldw;
            float * const y = p->y + j * p->ldy + i;
            switch (p->nx - j < WQ_X ? p->nx - j : WQ_X) {
                case 1: wq_block_(1, p, x, w, y); break;
#if WQ_X > 1
                case 2: wq_block_(2, p, x, w, y); break;
#endif
#if WQ_X > 2
                case 3: wq_block_(3, p, x, w, y); break;
                case 4: wq_block_(4, p, x, w, y); break;
#endif
                default: break;
            }
        }
    }
}
