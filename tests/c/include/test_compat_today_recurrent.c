// test_compat_today_recurrent.c - a recurrent layer as programs of 2026 write it: a state-space
// branch (convolution over time, scan) and a gated delta rule. The graph reads and writes both
// states. Tokens run in one chunk and then one by one. Plain loops over all tokens are the oracle.
#include "today.h"

enum {
    D = 16, // of a token
    P = 4,
    HS = 3,
    N = 8, // state space: head size, heads, states
    G = 1, // groups of B and C
    W = 4, // taps of the convolution
    C = P * HS + 2 * G * N, // its channels
    S = 8,
    HD = 2,
    HK = 1, // delta rule: head size, heads of values, heads of keys
    FIRST = 5,
    T = 8,
};

struct model {
    struct weights w;
    int in_z, in_c, in_dt, taps, tap_bias, dt_bias, a, d, norm, out, wq, wk, wv, wa, wb, decay, wo;
    struct ggml_tensor *taps_state, *scan_state, *delta_state;
};

static void model_new(struct model * m) {
    weights_new(&m->w);
    struct weights * w = &m->w;
    m->in_z = weight(w, GGML_TYPE_F32, -0.5f, 0.5f, D, P * HS, 1, 1);
    m->in_c = weight(w, GGML_TYPE_F32, -0.5f, 0.5f, D, C, 1, 1);
    m->in_dt = weight(w, GGML_TYPE_F32, -0.5f, 0.5f, D, HS, 1, 1);
    m->taps = weight(w, GGML_TYPE_F32, -1, 1, W, C, 1, 1);
    m->tap_bias = weight(w, GGML_TYPE_F32, -0.5f, 0.5f, C, 1, 1, 1);
    m->dt_bias = weight(w, GGML_TYPE_F32, -1, 1, HS, 1, 1, 1);
    m->a = weight(w, GGML_TYPE_F32, -2, -0.1f, 1, HS, 1, 1);
    m->d = weight(w, GGML_TYPE_F32, -1, 1, 1, HS, 1, 1);
    m->norm = weight(w, GGML_TYPE_F32, 0.5f, 1.5f, P * HS, 1, 1, 1);
    m->out = weight(w, GGML_TYPE_F32, -0.5f, 0.5f, P * HS, D, 1, 1);
    m->wq = weight(w, GGML_TYPE_F32, -0.5f, 0.5f, D, S * HK, 1, 1);
    m->wk = weight(w, GGML_TYPE_F32, -0.5f, 0.5f, D, S * HK, 1, 1);
    m->wv = weight(w, GGML_TYPE_F32, -0.5f, 0.5f, D, S * HD, 1, 1);
    m->wa = weight(w, GGML_TYPE_F32, -0.5f, 0.5f, D, HD, 1, 1);
    m->wb = weight(w, GGML_TYPE_F32, -0.5f, 0.5f, D, HD, 1, 1);
    m->decay = weight(w, GGML_TYPE_F32, -1, -0.1f, HD, 1, 1, 1);
    m->wo = weight(w, GGML_TYPE_F32, -0.5f, 0.5f, S * HD, D, 1, 1);
    m->taps_state = ggml_new_tensor_2d(w->ctx, GGML_TYPE_F32, W - 1, C);
    m->scan_state = ggml_new_tensor_4d(w->ctx, GGML_TYPE_F32, N, P, HS, 1);
    m->delta_state = ggml_new_tensor_4d(w->ctx, GGML_TYPE_F32, S, S, HD, 1);
}

// ----------------------------------------------------------------------------------------------------------- the graph

struct step {
    struct ggml_context * ctx;
    struct ggml_cgraph * gf;
    struct ggml_tensor *x, *ids, *scan, *delta;
};

// The numbers after the outputs in the packed result of a recurrent operator replace the state.
static void keep_state(struct step * s, struct ggml_tensor * packed, int64_t n_out, struct ggml_tensor * state) {
    const int64_t n = ggml_nelements(state);
    struct ggml_tensor * last = ggml_view_1d(s->ctx, packed, n, (size_t) n_out * ggml_element_size(packed));
    ggml_build_forward_expand(s->gf, ggml_cpy(s->ctx, last, ggml_reshape_1d(s->ctx, state, n)));
}

static struct ggml_tensor * state_space(const struct model * m, struct step * s, int n) {
    struct ggml_context * ctx = s->ctx;
    struct ggml_tensor * const * w = m->w.t;
    const size_t e = sizeof(float);
    struct ggml_tensor * z = ggml_mul_mat(ctx, w[m->in_z], s->x);
    struct ggml_tensor * c = ggml_mul_mat(ctx, w[m->in_c], s->x); // [C, n]
    struct ggml_tensor * dt = ggml_add(ctx, ggml_mul_mat(ctx, w[m->in_dt], s->x), w[m->dt_bias]); // [HS, n]
    struct ggml_tensor * window = ggml_concat(ctx, m->taps_state, ggml_transpose(ctx, c), 0); // [W - 1 + n, C]
    struct ggml_tensor * last = ggml_view_2d(ctx, window, W - 1, C, window->nb[1], (size_t) n * e);
    ggml_build_forward_expand(s->gf, ggml_cpy(ctx, last, m->taps_state));
    c = ggml_silu(ctx, ggml_add(ctx, ggml_ssm_conv(ctx, window, w[m->taps]), w[m->tap_bias])); // [C, n]
    struct ggml_tensor * x = ggml_view_4d(ctx, c, P, HS, n, 1, P * e, c->nb[1], c->nb[2], 0);
    struct ggml_tensor * b = ggml_view_4d(ctx, c, N, G, n, 1, N * e, c->nb[1], c->nb[2], P * HS * e);
    struct ggml_tensor * r = ggml_view_4d(ctx, c, N, G, n, 1, N * e, c->nb[1], c->nb[2], (P * HS + G * N) * e);
    dt = ggml_reshape_3d(ctx, dt, HS, n, 1);
    struct ggml_tensor * packed = ggml_ssm_scan(ctx, m->scan_state, x, dt, w[m->a], b, r, s->ids, 1);
    keep_state(s, packed, (int64_t) P * HS * n, m->scan_state);
    struct ggml_tensor * y = ggml_view_3d(ctx, packed, P, HS, n, P * e, P * HS * e, 0);
    y = ggml_add(ctx, y, ggml_mul(ctx, ggml_cont(ctx, x), w[m->d]));
    y = ggml_swiglu_split(ctx, z, ggml_reshape_2d(ctx, y, P * HS, n));
    y = ggml_mul(ctx, ggml_rms_norm(ctx, y, 1e-5f), w[m->norm]);
    return ggml_mul_mat(ctx, w[m->out], y);
}

static struct ggml_tensor * delta_rule(const struct model * m, struct step * s, int n) {
    struct ggml_context * ctx = s->ctx;
    struct ggml_tensor * const * w = m->w.t;
    struct ggml_tensor * q = ggml_reshape_4d(ctx, ggml_mul_mat(ctx, w[m->wq], s->x), S, HK, n, 1);
    struct ggml_tensor * k = ggml_reshape_4d(ctx, ggml_mul_mat(ctx, w[m->wk], s->x), S, HK, n, 1);
    struct ggml_tensor * v = ggml_reshape_4d(ctx, ggml_mul_mat(ctx, w[m->wv], s->x), S, HD, n, 1);
    struct ggml_tensor * g = ggml_softplus(ctx, ggml_mul_mat(ctx, w[m->wa], s->x));
    g = ggml_reshape_4d(ctx, ggml_mul(ctx, g, w[m->decay]), 1, HD, n, 1);
    struct ggml_tensor * beta = ggml_sigmoid(ctx, ggml_mul_mat(ctx, w[m->wb], s->x));
    beta = ggml_reshape_4d(ctx, beta, 1, HD, n, 1);
    struct ggml_tensor * packed = ggml_gated_delta_net(ctx, ggml_l2_norm(ctx, q, 1e-6f), ggml_l2_norm(ctx, k, 1e-6f), v,
        g, beta, m->delta_state, 1);
    keep_state(s, packed, (int64_t) S * HD * n, m->delta_state);
    struct ggml_tensor * y = ggml_view_2d(ctx, packed, S * HD, n, S * HD * sizeof(float), 0);
    return ggml_mul_mat(ctx, w[m->wo], ggml_scale_bias(ctx, y, 2.0f, 0.25f));
}

static void step_build(const struct model * m, struct step * s, int n) {
    struct ggml_init_params params = { 128 * ggml_tensor_overhead() + ggml_graph_overhead(), NULL, true };
    s->ctx = ggml_init(params);
    s->gf = ggml_new_graph(s->ctx);
    s->x = ggml_new_tensor_2d(s->ctx, GGML_TYPE_F32, D, n);
    s->ids = ggml_new_tensor_1d(s->ctx, GGML_TYPE_I32, 1);
    ggml_set_input(s->x);
    ggml_set_input(s->ids);
    s->scan = ggml_set_name(state_space(m, s, n), "scan");
    s->delta = ggml_set_name(delta_rule(m, s, n), "delta");
    ggml_set_output(s->scan);
    ggml_set_output(s->delta);
    ggml_build_forward_expand(s->gf, s->scan);
    ggml_build_forward_expand(s->gf, s->delta);
}

// ----------------------------------------------------------------------------------------------------- the same, plain

static double softplus(double x) { return log1p(exp(x)); }

static double silu(double x) { return x * sigmoid(x); }

static void plain_state_space(const struct model * m, double x[][D], double y[][D]) {
    double * const * w = m->w.v;
    double raw[T][C], state[HS][P][N];
    memset(state, 0, sizeof(state));
    for (int t = 0; t < T; t++) {
        double z[P * HS], dt[HS], c[C], out[P * HS], normed[P * HS];
        product(w[m->in_z], D, P * HS, x[t], z);
        product(w[m->in_c], D, C, x[t], raw[t]);
        product(w[m->in_dt], D, HS, x[t], dt);
        for (int i = 0; i < C; i++) {
            double sum = w[m->tap_bias][i];
            for (int k = 0; k < W; k++) {
                const int at = t - (W - 1) + k;
                sum += at >= 0 ? raw[at][i] * w[m->taps][i * W + k] : 0;
            }
            c[i] = silu(sum);
        }
        for (int h = 0; h < HS; h++) {
            const double d = softplus(dt[h] + w[m->dt_bias][h]);
            for (int p = 0; p < P; p++) {
                double sum = 0;
                for (int n = 0; n < N; n++) {
                    state[h][p][n] = state[h][p][n] * exp(d * w[m->a][h]) + d * c[h * P + p] * c[P * HS + n];
                    sum += state[h][p][n] * c[P * HS + G * N + n];
                }
                out[h * P + p] = (sum + c[h * P + p] * w[m->d][h]) * silu(z[h * P + p]);
            }
        }
        rms(out, P * HS, 1e-5, normed);
        for (int i = 0; i < P * HS; i++) {
            normed[i] *= w[m->norm][i];
        }
        product(w[m->out], P * HS, D, normed, y[t]);
    }
}

static void unit(double * x) {
    double squares = 0;
    for (int i = 0; i < S; i++) {
        squares += x[i] * x[i];
    }
    for (int i = 0; i < S; i++) {
        x[i] /= fmax(sqrt(squares), 1e-6);
    }
}

static void plain_delta_rule(const struct model * m, double x[][D], double y[][D]) {
    double * const * w = m->w.v;
    double state[HD][S][S]; // value, key
    memset(state, 0, sizeof(state));
    for (int t = 0; t < T; t++) {
        double q[S * HK], k[S * HK], v[S * HD], a[HD], b[HD], out[S * HD];
        product(w[m->wq], D, S * HK, x[t], q);
        product(w[m->wk], D, S * HK, x[t], k);
        product(w[m->wv], D, S * HD, x[t], v);
        product(w[m->wa], D, HD, x[t], a);
        product(w[m->wb], D, HD, x[t], b);
        unit(q);
        unit(k);
        for (int h = 0; h < HD; h++) {
            const double g = exp(softplus(a[h]) * w[m->decay][h]), beta = sigmoid(b[h]);
            for (int j = 0; j < S; j++) {
                double *s = state[h][j], seen = 0, sum = 0;
                for (int i = 0; i < S; i++) {
                    s[i] *= g;
                    seen += s[i] * k[i];
                }
                for (int i = 0; i < S; i++) {
                    s[i] += k[i] * beta * (v[h * S + j] - seen);
                    sum += s[i] * q[i];
                }
                out[h * S + j] = 2 * sum / sqrt(S) + 0.25;
            }
        }
        product(w[m->wo], S * HD, D, out, y[t]);
    }
}

// ------------------------------------------------------------------------------------------------------------ together

static void run_on(ggml_backend_t backend) {
    REQUIRE(backend != NULL);
    struct model m;
    model_new(&m);
    REQUIRE(weights_place(&m.w, backend));
    struct ggml_tensor * states[] = { m.taps_state, m.scan_state, m.delta_state };
    for (int i = 0; i < 3; i++) {
        float zeros[512] = { 0 };
        REQUIRE(ggml_nbytes(states[i]) <= sizeof(zeros));
        ggml_backend_tensor_set(states[i], zeros, 0, ggml_nbytes(states[i]));
    }
    float x[T][D];
    double wide[T][D], scan[T][D], delta[T][D];
    for (int i = 0; i < T * D; i++) {
        x[i / D][i % D] = test_random_float(-1, 1);
        wide[i / D][i % D] = (double) x[i / D][i % D];
    }
    plain_state_space(&m, wide, scan);
    plain_delta_rule(&m, wide, delta);

    struct step chunk, one;
    step_build(&m, &chunk, FIRST);
    step_build(&m, &one, 1);
    ggml_gallocr_t galloc = ggml_gallocr_new(ggml_backend_get_default_buffer_type(backend));
    const int32_t row = 0;
    for (int t = 0; t < T;) {
        struct step * s = t == 0 ? &chunk : &one;
        const int n = t == 0 ? FIRST : 1;
        if (t == 0 || t == FIRST) {
            REQUIRE(ggml_gallocr_alloc_graph(galloc, s->gf));
        }
        ggml_backend_tensor_set(s->x, x[t], 0, (size_t) n * sizeof(x[0]));
        ggml_backend_tensor_set(s->ids, &row, 0, sizeof(row));
        CHECK(ggml_backend_graph_compute(backend, s->gf) == GGML_STATUS_SUCCESS);
        CHECK_NUMBERS(s->scan, scan[t], n * D, 1e-5);
        CHECK_NUMBERS(s->delta, delta[t], n * D, 1e-5);
        t += n;
    }
    ggml_gallocr_free(galloc);
    ggml_free(one.ctx);
    ggml_free(chunk.ctx);
    weights_free(&m.w);
    ggml_backend_free(backend);
}

static void run_on_the_cpu(void) {
    ggml_backend_t backend = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(backend, 2);
    run_on(backend);
}

static void run_on_a_device(void) { run_on(ggml_backend_reg_init_backend_from_str("SIM:mem=16M")); }

TEST_MAIN(TEST(run_on_the_cpu), TEST(run_on_a_device))
