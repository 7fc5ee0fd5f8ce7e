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

// The constants select the terms.
static ALWAYS_INLINE void lanes_step_(int64_t n, float * y, float * s, const struct gb_lanes_step * p, bool per_key,
    bool two, bool out) {
    const float *wv = p->wv, *k = p->k, *b = p->b, *r = p->r;
    for (int lane = 0; lane < GB_LANES; lane += LANE_STEP) {
        const vf u0 = v_load(p->u + lane), u1 = v_load(p->u + lane + V_N), w = v_set(p->w);
        const vf c0 = two ? v_load(p->c + lane) : u0, c1 = two ? v_load(p->c + lane + V_N) : u1;
        vf y0 = v_set(0.0f), y1 = y0;
        for (int64_t j = 0; j < n; j++) {
            float * at = s + j * GB_LANES + lane;
            const vf wj = per_key ? v_set(wv[j]) : w, kj = v_set(k[j]);
            vf s0 = v_fma(kj, u0, v_mul(wj, v_load(at))), s1 = v_fma(kj, u1, v_mul(wj, v_load(at + V_N)));
            if (two) {
                const vf bj = v_set(b[j]);
                s0 = v_fma(bj, c0, s0);
                s1 = v_fma(bj, c1, s1);
            }
            v_store(at, s0);
            v_store(at + V_N, s1);
            if (out) {
                const vf rj = v_set(r[j]);
                y0 = v_fma(rj, s0, y0);
                y1 = v_fma(rj, s1, y1);
            }
        }
        if (out) {
            v_store(y + lane, y0);
            v_store(y + lane + V_N, y1);
        }
    }
}

static void lanes_step_f32(int64_t n, float * y, float * s, const struct gb_lanes_step * p) {
    if (p->b != NULL) {
        lanes_step_(n, y, s, p, true, true, true);
    } else if (p->r == NULL) {
        lanes_step_(n, y, s, p, true, false, false);
    } else if (p->wv != NULL) {
        lanes_step_(n, y, s, p, true, false, true);
    } else {
        lanes_step_(n, y, s, p, false, false, true);
    }
}

static ALWAYS_INLINE void lanes_scan_(int64_t n, float * y, float * s, const float * w, int64_t next, const float * k,
    const float * u, const float * r) {
    for (int lane = 0; lane < GB_LANES; lane += LANE_STEP) {
        const vf u0 = v_load(u + lane), u1 = v_load(u + lane + V_N);
        vf y0 = v_set(0.0f), y1 = y0;
        for (int64_t j = 0; j < n; j++) {
            float * at = s + j * GB_LANES + lane;
            const float * wj = w + j * next + lane;
            const vf kj = v_set(k[j]), rj = v_set(r[j]);
            const vf s0 = v_fma(kj, u0, v_mul(v_load(wj), v_load(at)));
            const vf s1 = v_fma(kj, u1, v_mul(v_load(wj + V_N), v_load(at + V_N)));
            v_store(at, s0);
            v_store(at + V_N, s1);
            y0 = v_fma(rj, s0, y0);
            y1 = v_fma(rj, s1, y1);
        }
        v_store(y + lane, y0);
        v_store(y + lane + V_N, y1);
    }
}

static void lanes_scan_f32(int64_t n, float * y, float * s, const float * w, bool each, const float * k,
    const float * u, const float * r) {
    if (each) {
        lanes_scan_(n, y, s, w, GB_LANES, k, u, r);
    } else {
        lanes_scan_(n, y, s, w, 0, k, u, r);
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
