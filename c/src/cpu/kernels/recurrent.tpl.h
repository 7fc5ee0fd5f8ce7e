// recurrent.tpl.h - one token of a recurrent layer, on a block of GB_LANES rows of its state or on one row.
//
// Products are fused if the level has fused operations, and sums are computed in float. So levels
// differ by roundings.

// Lanes that are computed together: two vectors, which share each broadcast element.
#define LANE_STEP (2 * V_N)

static_assert(GB_LANES % LANE_STEP == 0, "whole groups of lanes");

static void lanes_dot_f32(int64_t n, float * c, const float * s, const float * a) {
    for (int lane = 0; lane < GB_LANES; lane += LANE_STEP) {
        vf t[8];
        for (int i = 0; i < 8; i++) {
            t[i] = v_set(0.0f);
        }
        int64_t j = 0;
        for (; j + 4 <= n; j += 4) {
            UNROLL
            for (int i = 0; i < 4; i++) {
                const float * p = s + (j + i) * GB_LANES + lane;
                const vf x = v_set(a[j + i]);
                t[2 * i] = v_fma(v_load(p), x, t[2 * i]);
                t[2 * i + 1] = v_fma(v_load(p + V_N), x, t[2 * i + 1]);
            }
        }
        for (; j < n; j++) {
            const float * p = s + j * GB_LANES + lane;
            const vf x = v_set(a[j]);
            t[0] = v_fma(v_load(p), x, t[0]);
            t[1] = v_fma(v_load(p + V_N), x, t[1]);
        }
        v_store(c + lane, v_add(v_add(t[0], t[2]), v_add(t[4], t[6])));
        v_store(c + lane + V_N, v_add(v_add(t[1], t[3]), v_add(t[5], t[7])));
    }
}

// The sums of two vectors of lanes: with r, and with the keys of the next token.
struct lanes_sums_ {
    vf y[2], f[2];
};

// An element of the state of two vectors of lanes: w s + k u, stored at s.
static ALWAYS_INLINE void lanes_element_(struct lanes_sums_ * t, float * s, const vf w[2], vf k, const vf u[2], vf b,
    const vf c[2], bool two, const float * r, const float * a) {
    UNROLL
    for (int v = 0; v < 2; v++) {
        vf x = v_fma(k, u[v], v_mul(w[v], v_load(s + v * V_N)));
        if (two) {
            x = v_fma(b, c[v], x);
        }
        v_store(s + v * V_N, x);
        if (r != NULL) {
            t->y[v] = v_fma(v_set(*r), x, t->y[v]);
        }
        if (a != NULL) {
            t->f[v] = v_fma(v_set(*a), x, t->f[v]);
        }
    }
}

// Stores the sums of both chains.
static ALWAYS_INLINE void store_chains_(float * y, vf first[2], vf second[2]) {
    UNROLL
    for (int v = 0; v < 2; v++) {
        v_store(y + v * V_N, v_add(first[v], second[v]));
    }
}

// The constants select the terms. Sums have two chains, or else they would wait for the latency of
// an addition.
static ALWAYS_INLINE void lanes_step_(int64_t n, float * y, float * s, const struct gb_lanes_step * p, bool per_key,
    bool two, bool out, bool next) {
    const float *wv = p->wv, *k = p->k, *b = p->b, *r = p->r, *a = p->a;
    for (int lane = 0; lane < GB_LANES; lane += LANE_STEP) {
        const float * const c = two ? p->c : p->u;
        const vf u[2] = { v_load(p->u + lane), v_load(p->u + lane + V_N) }, w = v_set(p->w), zero = v_set(0.0f);
        const vf cv[2] = { v_load(c + lane), v_load(c + lane + V_N) };
        struct lanes_sums_ t[2] = { { { zero, zero }, { zero, zero } }, { { zero, zero }, { zero, zero } } };
        for (int64_t j = 0; j < n; j += 2) {
            UNROLL
            for (int i = 0; i < 2; i++) {
                if (i == 0 || j + 1 < n) {
                    const vf wj = per_key ? v_set(wv[j + i]) : w, ws[2] = { wj, wj };
                    lanes_element_(&t[i], s + (j + i) * GB_LANES + lane, ws, v_set(k[j + i]), u,
                        two ? v_set(b[j + i]) : zero, cv, two, out ? r + j + i : NULL, next ? a + j + i : NULL);
                }
            }
        }
        if (out) {
            store_chains_(y + lane, t[0].y, t[1].y);
        }
        if (next) {
            store_chains_(p->f + lane, t[0].f, t[1].f);
        }
    }
}

static void lanes_step_f32(int64_t n, float * y, float * s, const struct gb_lanes_step * p) {
#define FORM(per_key, two, out)                                \
    do {                                                       \
        if (p->a != NULL) {                                    \
            lanes_step_(n, y, s, p, per_key, two, out, true);  \
        } else {                                               \
            lanes_step_(n, y, s, p, per_key, two, out, false); \
        }                                                      \
    } while (0)
    if (p->b != NULL) {
        FORM(true, true, true);
    } else if (p->r == NULL) {
        FORM(true, false, false);
    } else if (p->wv != NULL) {
        FORM(true, false, true);
    } else {
        FORM(false, false, true);
    }
#undef FORM
}

static ALWAYS_INLINE void lanes_scan_(int64_t n, float * y, float * s, const float * w, bool each, const float * d,
    const float * k, const float * u, const float * r) {
    for (int lane = 0; lane < GB_LANES; lane += LANE_STEP) {
        const vf uv[2] = { v_load(u + lane), v_load(u + lane + V_N) }, zero = v_set(0.0f);
        const vf dv[2] = { v_load(d + lane), v_load(d + lane + V_N) };
        const vf all[2] = { exp_(v_mul(v_load(w + lane), dv[0])), exp_(v_mul(v_load(w + lane + V_N), dv[1])) };
        struct lanes_sums_ t[2] = { { { zero, zero }, { zero, zero } }, { { zero, zero }, { zero, zero } } };
        for (int64_t j = 0; j < n; j += 2) {
            UNROLL
            for (int i = 0; i < 2; i++) {
                if (i == 0 || j + 1 < n) {
                    const float * const wj = w + (each ? (j + i) * GB_LANES : 0) + lane;
                    const vf ws[2] = { each ? exp_(v_mul(v_load(wj), dv[0])) : all[0],
                        each ? exp_(v_mul(v_load(wj + V_N), dv[1])) : all[1] };
                    lanes_element_(&t[i], s + (j + i) * GB_LANES + lane, ws, v_set(k[j + i]), uv, zero, uv, false,
                        r + j + i, NULL);
                }
            }
        }
        store_chains_(y + lane, t[0].y, t[1].y);
    }
}

static void lanes_scan_f32(int64_t n, float * y, float * s, const float * w, bool each, const float * d,
    const float * k, const float * u, const float * r) {
    if (each) {
        lanes_scan_(n, y, s, w, true, d, k, u, r);
    } else {
        lanes_scan_(n, y, s, w, false, d, k, u, r);
    }
}

static float state_row_f32(int64_t n, float * d, const float * s, float w, const float * wv, const float * k, float u,
    const float * r) {
    const vf all = v_set(w), v = v_set(u);
    vf t0 = v_set(0.0f), t1 = t0;
    int64_t j = 0;
    for (; j + 2 * V_N <= n; j += 2 * V_N) {
        const vf w0 = wv != NULL ? v_load(wv + j) : all, w1 = wv != NULL ? v_load(wv + j + V_N) : all;
        const vf s0 = v_fma(v_load(k + j), v, v_mul(w0, v_load(s + j)));
        const vf s1 = v_fma(v_load(k + j + V_N), v, v_mul(w1, v_load(s + j + V_N)));
        v_store(d + j, s0);
        v_store(d + j + V_N, s1);
        t0 = v_fma(v_load(r + j), s0, t0);
        t1 = v_fma(v_load(r + j + V_N), s1, t1);
    }
    for (; j < n; j += V_N) {
        const int left = (int) (n - j < V_N ? n - j : V_N);
        const vf w0 = wv != NULL ? v_load_n(wv + j, left) : all;
        const vf s0 = v_fma(v_load_n(k + j, left), v, v_mul(w0, v_load_n(s + j, left)));
        v_store_n(d + j, s0, left);
        t0 = v_fma(v_load_n(r + j, left), v_first(s0, left, v_set(0.0f)), t0);
    }
    return v_sum(v_add(t0, t1));
}
