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

// An element of the state of two vectors of lanes: w s + k u + b c, stored at s. Adds its product with r to t.
static ALWAYS_INLINE void lanes_element_(vf t[2], float * s, const vf w[2], vf k, const vf u[2], vf b, const vf c[2],
    bool two, const float * r) {
    UNROLL
    for (int v = 0; v < 2; v++) {
        vf x = v_fma(k, u[v], v_mul(w[v], v_load(s + v * V_N)));
        if (two) {
            x = v_fma(b, c[v], x);
        }
        v_store(s + v * V_N, x);
        if (r != NULL) {
            t[v] = v_fma(v_set(*r), x, t[v]);
        }
    }
}

// Stores the sums of both chains.
static ALWAYS_INLINE void store_chains_(float * y, vf t[2][2]) {
    UNROLL
    for (int v = 0; v < 2; v++) {
        v_store(y + v * V_N, v_add(t[0][v], t[1][v]));
    }
}

// The constants select the terms. Sums have two chains, or else they would wait for the latency of
// an addition.
static ALWAYS_INLINE void lanes_step_(int64_t n, float * y, float * s, const struct gb_lanes_step * p, bool two,
    bool out) {
    const float *wv = p->wv, *k = p->k, *b = p->b, *r = p->r;
    for (int lane = 0; lane < GB_LANES; lane += LANE_STEP) {
        const float * const c = two ? p->c : p->u;
        const vf u[2] = { v_load(p->u + lane), v_load(p->u + lane + V_N) }, zero = v_set(0.0f);
        const vf cv[2] = { v_load(c + lane), v_load(c + lane + V_N) };
        vf t[2][2] = { { zero, zero }, { zero, zero } };
        for (int64_t j = 0; j < n; j += 2) {
            UNROLL
            for (int i = 0; i < 2; i++) {
                if (i == 0 || j + 1 < n) {
                    const vf wj = v_set(wv[j + i]), ws[2] = { wj, wj };
                    lanes_element_(t[i], s + (j + i) * GB_LANES + lane, ws, v_set(k[j + i]), u,
                        two ? v_set(b[j + i]) : zero, cv, two, out ? r + j + i : NULL);
                }
            }
        }
        if (out) {
            store_chains_(y + lane, t);
        }
    }
}

static void lanes_step_f32(int64_t n, float * y, float * s, const struct gb_lanes_step * p) {
    if (p->b != NULL) {
        lanes_step_(n, y, s, p, true, true);
    } else if (p->r == NULL) {
        lanes_step_(n, y, s, p, false, false);
    } else {
        lanes_step_(n, y, s, p, false, true);
    }
}

static void lanes_scan_f32(int64_t n, float * y, float * s, const float * w, const float * d, const float * k,
    const float * u, const float * r) {
    for (int lane = 0; lane < GB_LANES; lane += LANE_STEP) {
        const vf uv[2] = { v_load(u + lane), v_load(u + lane + V_N) }, zero = v_set(0.0f);
        const vf dv[2] = { v_load(d + lane), v_load(d + lane + V_N) };
        vf t[2][2] = { { zero, zero }, { zero, zero } };
        for (int64_t j = 0; j < n; j += 2) {
            UNROLL
            for (int i = 0; i < 2; i++) {
                if (i == 0 || j + 1 < n) {
                    const float * const wj = w + (j + i) * GB_LANES + lane;
                    const vf ws[2] = { exp_(v_mul(v_load(wj), dv[0])), exp_(v_mul(v_load(wj + V_N), dv[1])) };
                    lanes_element_(t[i], s + (j + i) * GB_LANES + lane, ws, v_set(k[j + i]), uv, zero, uv, false,
                        r + j + i);
                }
            }
        }
        store_chains_(y + lane, t);
    }
}

static ALWAYS_INLINE void lanes_tokens_(const struct gb_lanes_tokens * p, int lane, bool decays, bool delta) {
    vf c[GB_CHUNK], all = v_set(1.0f);
    UNROLL
    for (int t = 0; t < GB_CHUNK; t++) {
        const int at = t * GB_LANES + lane;
        c[t] = v_set(0.0f);
        if (t >= p->n) {
            continue;
        }
        if (decays) {
            const vf w = v_load(p->w + at);
            all = v_mul(all, w);
            UNROLL
            for (int i = 0; i < t; i++) {
                c[i] = v_mul(c[i], w);
            }
        }
        c[t] = v_load(p->u + at);
        if (delta) {
            vf found = v_mul(all, v_load(p->f + at));
            UNROLL
            for (int i = 0; i < t; i++) {
                found = v_fma(v_set(p->kk[t][i]), c[i], found);
            }
            c[t] = v_mul(v_set(p->beta[t]), v_sub(c[t], found));
        }
        vf y = v_mul(all, v_load(p->y + at));
        UNROLL
        for (int i = 0; i <= t; i++) {
            y = v_fma(v_set(p->kr[t][i]), c[i], y);
        }
        v_store(p->y + at, y);
    }
    UNROLL
    for (int t = 0; t < GB_CHUNK; t++) {
        v_store(p->u + t * GB_LANES + lane, c[t]);
    }
    if (decays) {
        v_store(p->all + lane, all);
    }
}

static void lanes_tokens_f32(const struct gb_lanes_tokens * p) {
    for (int lane = 0; lane < GB_LANES; lane += V_N) {
        if (p->w == NULL) {
            lanes_tokens_(p, lane, false, p->beta != NULL);
        } else if (p->beta != NULL) {
            lanes_tokens_(p, lane, true, true);
        } else {
            lanes_tokens_(p, lane, true, false);
        }
    }
}

// Vectors of lanes that share each broadcast element.
#define PASS_V 2

// With 32 registers, all sums of PASS_V vectors stay in registers, and the pass reads the state once. With 16 registers
// they would fit for one vector only. Each product would then need a load of its own, and long chains of products would
// fill the scheduler. So the update and the two kinds of sums read the state from the nearest cache one after another.
#define PASS_FUSED (V_REGISTERS >= 32)

// t[i] += element j of row i of r, times x
static ALWAYS_INLINE void pass_sums_(vf t[GB_CHUNK][PASS_V], const float * r, int64_t ld, const vf x[PASS_V]) {
    UNROLL
    for (int i = 0; i < GB_CHUNK; i++) {
        vf ri = v_set(r[i * ld]);
        IN_REGISTER(ri);
        UNROLL
        for (int v = 0; v < PASS_V; v++) {
            t[i][v] = v_fma(ri, x[v], t[i][v]);
        }
    }
}

static ALWAYS_INLINE void pass_move_(vf t[GB_CHUNK][PASS_V], float * p, bool store) {
    UNROLL
    for (int i = 0; i < GB_CHUNK; i++) {
        UNROLL
        for (int v = 0; v < PASS_V; v++) {
            if (store) {
                v_store(p + i * GB_LANES + v * V_N, t[i][v]);
            } else {
                t[i][v] = p != NULL ? v_load(p + i * GB_LANES + v * V_N) : v_set(0.0f);
            }
        }
    }
}

// x = element j of the state, at `at`: decayed, with the products of the chunk
static ALWAYS_INLINE void pass_element_(vf x[PASS_V], float * at, const struct gb_lanes_pass * p, int64_t j,
    vf u[GB_CHUNK][PASS_V], const vf w[PASS_V], bool per_key) {
    UNROLL
    for (int v = 0; v < PASS_V; v++) {
        x[v] = v_mul(per_key ? v_set(p->wv[j]) : w[v], v_load(at + v * V_N));
    }
    UNROLL
    for (int i = 0; i < GB_CHUNK; i++) {
        vf k = v_set(p->k[i * p->ldk + j]);
        IN_REGISTER(k);
        UNROLL
        for (int v = 0; v < PASS_V; v++) {
            x[v] = v_fma(k, u[i][v], x[v]);
        }
    }
    UNROLL
    for (int v = 0; v < PASS_V; v++) {
        v_store(at + v * V_N, x[v]);
    }
}

// The sums of GB_CHUNK rows over the state, read from memory.
static ALWAYS_INLINE void pass_again_(int64_t n, float * y, const float * s, const float * r, int64_t ld) {
    vf t[GB_CHUNK][PASS_V];
    pass_move_(t, NULL, false);
    for (int64_t j = 0; j < n; j++) {
        vf x[PASS_V];
        UNROLL
        for (int v = 0; v < PASS_V; v++) {
            x[v] = v_load(s + j * GB_LANES + v * V_N);
            IN_REGISTER(x[v]);
        }
        pass_sums_(t, r + j, ld, x);
    }
    pass_move_(t, y, true);
}

static ALWAYS_INLINE void lanes_pass_(int64_t n, float * s, const struct gb_lanes_pass * p, bool per_key, bool sums,
    bool two) {
    for (int lane = 0; lane < GB_LANES; lane += PASS_V * V_N) {
        vf u[GB_CHUNK][PASS_V], f[GB_CHUNK][PASS_V], y[GB_CHUNK][PASS_V], w[PASS_V];
        pass_move_(u, (float *) p->u + lane, false);
        pass_move_(f, NULL, false);
        pass_move_(y, NULL, false);
        UNROLL
        for (int v = 0; v < PASS_V; v++) {
            w[v] = per_key ? v_set(0.0f) : v_load(p->w + lane + v * V_N);
        }
        for (int64_t j = 0; j < n; j++) {
            vf x[PASS_V];
            pass_element_(x, s + j * GB_LANES + lane, p, j, u, w, per_key);
            if (PASS_FUSED && sums) {
                pass_sums_(f, p->a + j, p->lda, x);
            }
            if (PASS_FUSED && two) {
                pass_sums_(y, p->r + j, p->ldr, x);
            }
        }
        if (!PASS_FUSED && sums) {
            pass_again_(n, p->f + lane, s + lane, p->a, p->lda);
        }
        if (!PASS_FUSED && two) {
            pass_again_(n, p->y + lane, s + lane, p->r, p->ldr);
        }
        if (PASS_FUSED && sums) {
            pass_move_(f, p->f + lane, true);
        }
        if (PASS_FUSED && two) {
            pass_move_(y, p->y + lane, true);
        }
    }
}

static void lanes_pass_f32(int64_t n, float * s, const struct gb_lanes_pass * p) {
    if (p->a == NULL) {
        if (p->wv != NULL) {
            lanes_pass_(n, s, p, true, false, false);
        } else {
            lanes_pass_(n, s, p, false, false, false);
        }
    } else if (p->r == NULL) {
        lanes_pass_(n, s, p, false, true, false);
    } else if (p->wv != NULL) {
        lanes_pass_(n, s, p, true, true, true);
    } else {
        lanes_pass_(n, s, p, false, true, true);
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
