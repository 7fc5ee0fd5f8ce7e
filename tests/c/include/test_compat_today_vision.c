// test_compat_today_vision.c - a vision block as programs of 2026 write it. It pads a picture,
// makes patches by a direct convolution, and adds a table of positions that is resized to the grid.
// Then come attention with a class token and rotated heads, and a neck with group norm, pooling and
// resizing.
#include "today.h"

enum {
    WIDTH = 13,
    HEIGHT = 10,
    PATCH = 4,
    GW = 4,
    GH = 3,
    N = GW * GH, // the picture is padded to 16 x 12
    D = 16,
    H = 2,
    HD = 8,
    TABLE = 5,
    FF = 24,
    T = N + 1,
    GROUPS = 4,
};

static const float eps = 1e-4f;

struct model {
    struct weights w;
    int picture, kernel, bias, table, cls, wq, wk, wv, wo, up, down, neck, last;
};

static void model_new(struct model * m) {
    weights_new(&m->w);
    struct weights * w = &m->w;
    m->picture = weight(w, GGML_TYPE_F32, -1, 1, WIDTH, HEIGHT, 3, 1);
    m->kernel = weight(w, GGML_TYPE_F16, -0.3f, 0.3f, PATCH, PATCH, 3, D);
    m->bias = weight(w, GGML_TYPE_F32, -0.3f, 0.3f, D, 1, 1, 1);
    m->table = weight(w, GGML_TYPE_F32, -1, 1, TABLE, TABLE, D, 1);
    m->cls = weight(w, GGML_TYPE_F32, -1, 1, D, 1, 1, 1);
    m->wq = weight(w, GGML_TYPE_F32, -0.4f, 0.4f, D, D, 1, 1);
    m->wk = weight(w, GGML_TYPE_F32, -0.4f, 0.4f, D, D, 1, 1);
    m->wv = weight(w, GGML_TYPE_F32, -0.4f, 0.4f, D, D, 1, 1);
    m->wo = weight(w, GGML_TYPE_F32, -0.4f, 0.4f, D, D, 1, 1);
    m->up = weight(w, GGML_TYPE_F32, -0.4f, 0.4f, D, FF, 1, 1);
    m->down = weight(w, GGML_TYPE_F32, -0.4f, 0.4f, FF, D, 1, 1);
    m->neck = weight(w, GGML_TYPE_F32, -0.4f, 0.4f, 3, 3, 1, D);
    m->last = weight(w, GGML_TYPE_F32, -0.4f, 0.4f, 3, 3, D, 2);
}

// ----------------------------------------------------------------------------------------------------------- the graph

struct vision {
    struct ggml_context * ctx;
    struct ggml_cgraph * gf;
    struct ggml_tensor *positions, *tokens, *pooled, *neck;
};

static struct ggml_tensor * embed(const struct model * m, struct vision * s) {
    struct ggml_context * ctx = s->ctx;
    struct ggml_tensor * const * w = m->w.t;
    struct ggml_tensor * x = ggml_pad_ext(ctx, w[m->picture], 1, 2, 1, 1, 0, 0, 0, 0);
    x = ggml_conv_2d_direct(ctx, w[m->kernel], x, PATCH, PATCH, 0, 0, 1, 1); // [GW, GH, D, 1]
    x = ggml_cont(ctx, ggml_transpose(ctx, ggml_reshape_2d(ctx, x, N, D))); // [D, N]
    x = ggml_add(ctx, x, w[m->bias]);
    struct ggml_tensor * at = ggml_interpolate(ctx, w[m->table], GW, GH, D, 1, GGML_SCALE_MODE_BILINEAR);
    x = ggml_add(ctx, x, ggml_cont(ctx, ggml_transpose(ctx, ggml_reshape_2d(ctx, at, N, D))));
    return ggml_concat(ctx, ggml_reshape_2d(ctx, w[m->cls], D, 1), x, 1); // [D, T]
}

static struct ggml_tensor * attention(const struct model * m, struct vision * s, struct ggml_tensor * x) {
    struct ggml_context * ctx = s->ctx;
    struct ggml_tensor * const * w = m->w.t;
    int sections[4] = { HD / 4, HD / 4, 0, 0 };
    struct ggml_tensor * q = ggml_reshape_3d(ctx, ggml_mul_mat(ctx, w[m->wq], x), HD, H, T);
    struct ggml_tensor * k = ggml_reshape_3d(ctx, ggml_mul_mat(ctx, w[m->wk], x), HD, H, T);
    struct ggml_tensor * v = ggml_reshape_3d(ctx, ggml_mul_mat(ctx, w[m->wv], x), HD, H, T);
    q = ggml_rope_multi(ctx, q, s->positions, NULL, HD / 2, sections, GGML_ROPE_TYPE_VISION, 0, 100, 1, 0, 1, 0, 0);
    k = ggml_rope_multi(ctx, k, s->positions, NULL, HD / 2, sections, GGML_ROPE_TYPE_VISION, 0, 100, 1, 0, 1, 0, 0);
    q = ggml_permute(ctx, q, 0, 2, 1, 3);
    k = ggml_permute(ctx, k, 0, 2, 1, 3);
    v = ggml_cont(ctx, ggml_permute(ctx, v, 1, 2, 0, 3)); // [T, HD, H]
    struct ggml_tensor * p = ggml_soft_max_ext(ctx, ggml_mul_mat(ctx, k, q), NULL, 1.0f / sqrtf(HD), 0.0f);
    struct ggml_tensor * y = ggml_permute(ctx, ggml_mul_mat(ctx, v, p), 0, 2, 1, 3);
    return ggml_mul_mat(ctx, w[m->wo], ggml_cont_2d(ctx, y, D, T));
}

// The patches as a picture: a depthwise convolution, group norm, resizing by 2, and a convolution over columns.
static struct ggml_tensor * neck(const struct model * m, struct vision * s, struct ggml_tensor * x) {
    struct ggml_context * ctx = s->ctx;
    x = ggml_view_2d(ctx, x, D, N, x->nb[1], x->nb[1]); // without the class token
    x = ggml_reshape_4d(ctx, ggml_cont(ctx, ggml_transpose(ctx, x)), GW, GH, D, 1);
    x = ggml_conv_2d_dw_direct(ctx, m->w.t[m->neck], x, 1, 1, 1, 1, 1, 1);
    x = ggml_group_norm(ctx, x, GROUPS, eps);
    x = ggml_upscale(ctx, x, 2, GGML_SCALE_MODE_NEAREST);
    CHECK(x->op == GGML_OP_UPSCALE);
    return ggml_conv_2d(ctx, m->w.t[m->last], x, 1, 1, 1, 1, 1, 1); // [2 GW, 2 GH, 2]
}

static void vision_build(const struct model * m, struct vision * s) {
    struct ggml_init_params params = { 256 * ggml_tensor_overhead() + ggml_graph_overhead(), NULL, true };
    struct ggml_context * ctx = s->ctx = ggml_init(params);
    s->gf = ggml_new_graph(ctx);
    s->positions = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, 4 * T);
    ggml_set_input(s->positions);
    struct ggml_tensor * x = embed(m, s);
    x = ggml_add(ctx, x, attention(m, s, ggml_norm(ctx, x, eps)));
    struct ggml_tensor * h = ggml_gelu_erf(ctx, ggml_mul_mat(ctx, m->w.t[m->up], ggml_norm(ctx, x, eps)));
    s->tokens = ggml_set_name(ggml_add(ctx, x, ggml_mul_mat(ctx, m->w.t[m->down], h)), "tokens");
    s->pooled = ggml_set_name(ggml_pool_1d(ctx, s->tokens, GGML_OP_POOL_AVG, 3, 2, 1), "pooled");
    s->neck = ggml_set_name(neck(m, s, s->tokens), "neck");
    struct ggml_tensor * results[] = { s->tokens, s->pooled, s->neck };
    for (int i = 0; i < 3; i++) {
        ggml_set_output(results[i]);
        ggml_build_forward_expand(s->gf, results[i]);
    }
}

// ----------------------------------------------------------------------------------------------------- the same, plain

static double pixel(const struct model * m, int x, int y, int c) { // of the padded picture
    x -= 1, y -= 1;
    return x >= 0 && x < WIDTH && y >= 0 && y < HEIGHT ? m->w.v[m->picture][(c * HEIGHT + y) * WIDTH + x] : 0;
}

// The position of element i of `to` in `from`: two indices and the weight of the second.
static void between(int i, int to, int * a, int * b, double * second) {
    const double x = fmax(0, (i + 0.5) * TABLE / to - 0.5);
    *a = (int) fmin(floor(x), TABLE - 1);
    *b = (int) fmin(*a + 1, TABLE - 1);
    *second = x - floor(x);
}

static double table_at(const struct model * m, int gx, int gy, int d) {
    const double * t = m->w.v[m->table] + d * TABLE * TABLE;
    int x0, x1, y0, y1;
    double fx, fy;
    between(gx, GW, &x0, &x1, &fx);
    between(gy, GH, &y0, &y1, &fy);
    return (1 - fy) * ((1 - fx) * t[y0 * TABLE + x0] + fx * t[y0 * TABLE + x1]) +
           fy * ((1 - fx) * t[y1 * TABLE + x0] + fx * t[y1 * TABLE + x1]);
}

static void plain_embed(const struct model * m, double x[T][D]) {
    for (int d = 0; d < D; d++) {
        x[0][d] = m->w.v[m->cls][d];
        for (int n = 0; n < N; n++) {
            double sum = m->w.v[m->bias][d] + table_at(m, n % GW, n / GW, d);
            for (int c = 0; c < 3; c++) {
                for (int j = 0; j < PATCH; j++) {
                    for (int i = 0; i < PATCH; i++) {
                        sum += m->w.v[m->kernel][((d * 3 + c) * PATCH + j) * PATCH + i] *
                               pixel(m, n % GW * PATCH + i, n / GW * PATCH + j, c);
                    }
                }
            }
            x[n + 1][d] = sum;
        }
    }
}

static void plain_norm(const double * x, double * y) {
    double mean = 0, var = 0;
    for (int i = 0; i < D; i++) {
        mean += x[i] / D;
    }
    for (int i = 0; i < D; i++) {
        var += (x[i] - mean) * (x[i] - mean) / D;
    }
    for (int i = 0; i < D; i++) {
        y[i] = (x[i] - mean) / sqrt(var + (double) eps);
    }
}

// The first section of pairs rotates by the row, the second by the column, each from its own
// frequency on.
static void turn(double * x, const int32_t * positions, int t) {
    for (int j = 0; j < HD / 2; j++) {
        const int section = j < HD / 4 ? 0 : 1, e = j % (HD / 4);
        const double angle = positions[section * T + t] * pow(100, -2.0 * e / (HD / 2)), a = x[j], b = x[j + HD / 2];
        x[j] = a * cos(angle) - b * sin(angle);
        x[j + HD / 2] = a * sin(angle) + b * cos(angle);
    }
}

static void plain_attention(const struct model * m, const int32_t * positions, double x[T][D]) {
    double q[T][D], k[T][D], v[T][D], n[D];
    for (int t = 0; t < T; t++) {
        plain_norm(x[t], n);
        product(m->w.v[m->wq], D, D, n, q[t]);
        product(m->w.v[m->wk], D, D, n, k[t]);
        product(m->w.v[m->wv], D, D, n, v[t]);
        for (int h = 0; h < H; h++) {
            turn(q[t] + h * HD, positions, t);
            turn(k[t] + h * HD, positions, t);
        }
    }
    for (int t = 0; t < T; t++) {
        double mixed[D] = { 0 }, out[D];
        for (int h = 0; h < H; h++) {
            double p[T];
            for (int c = 0; c < T; c++) {
                p[c] = 0;
                for (int i = 0; i < HD; i++) {
                    p[c] += q[t][h * HD + i] * k[c][h * HD + i] / sqrt(HD);
                }
            }
            softmax(p, T, -INFINITY);
            for (int i = 0; i < T * HD; i++) {
                mixed[h * HD + i % HD] += p[i / HD] * v[i / HD][h * HD + i % HD];
            }
        }
        product(m->w.v[m->wo], D, D, mixed, out);
        for (int i = 0; i < D; i++) {
            x[t][i] += out[i];
        }
    }
}

static void plain_feed_forward(const struct model * m, double x[T][D]) {
    for (int t = 0; t < T; t++) {
        double n[D], h[FF], out[D];
        plain_norm(x[t], n);
        product(m->w.v[m->up], D, FF, n, h);
        for (int i = 0; i < FF; i++) {
            h[i] = h[i] / 2 * (1 + erf(h[i] / sqrt(2)));
        }
        product(m->w.v[m->down], FF, D, h, out);
        for (int i = 0; i < D; i++) {
            x[t][i] += out[i];
        }
    }
}

// Windows of 3, stride 2, padding 1: the mean of the elements inside.
static void plain_pool(double x[T][D], double y[T][D / 2]) {
    for (int t = 0; t < T; t++) {
        for (int o = 0; o < D / 2; o++) {
            double sum = 0, n = 0;
            for (int i = 2 * o - 1; i <= 2 * o + 1; i++) {
                sum += i >= 0 && i < D ? x[t][i] : 0;
                n += i >= 0 && i < D;
            }
            y[t][o] = sum / n;
        }
    }
}

static double patch_at(double x[T][D], int gx, int gy, int d) {
    return gx >= 0 && gx < GW && gy >= 0 && gy < GH ? x[1 + gy * GW + gx][d] : 0;
}

static void plain_neck(const struct model * m, double x[T][D], double * y) {
    enum { EACH = D / GROUPS, W2 = 2 * GW, H2 = 2 * GH };
    double f[D][GH][GW];
    for (int i = 0; i < D * N; i++) {
        const int d = i / N, gx = i % GW, gy = i % N / GW;
        f[d][gy][gx] = 0;
        for (int k = 0; k < 9; k++) {
            f[d][gy][gx] += m->w.v[m->neck][d * 9 + k] * patch_at(x, gx + k % 3 - 1, gy + k / 3 - 1, d);
        }
    }
    for (int g = 0; g < GROUPS; g++) {
        double *p = f[g * EACH][0], mean = 0, var = 0;
        for (int i = 0; i < EACH * N; i++) {
            mean += p[i] / (EACH * N);
        }
        for (int i = 0; i < EACH * N; i++) {
            var += (p[i] - mean) * (p[i] - mean) / (EACH * N);
        }
        for (int i = 0; i < EACH * N; i++) {
            p[i] = (p[i] - mean) / sqrt(var + (double) eps);
        }
    }
    for (int i = 0; i < 2 * W2 * H2; i++) {
        const int o = i / (W2 * H2), px = i % W2, py = i / W2 % H2;
        y[i] = 0;
        for (int k = 0; k < 9 * D; k++) {
            const int d = k / 9, sx = px + k % 3 - 1, sy = py + k / 3 % 3 - 1;
            y[i] +=
                sx >= 0 && sx < W2 && sy >= 0 && sy < H2 ? m->w.v[m->last][o * 9 * D + k] * f[d][sy / 2][sx / 2] : 0;
        }
    }
}

// ------------------------------------------------------------------------------------------------------------ together

static void see_on(ggml_backend_t backend) {
    REQUIRE(backend != NULL);
    struct model m;
    struct vision s;
    model_new(&m);
    REQUIRE(weights_place(&m.w, backend));
    vision_build(&m, &s);
    REQUIRE(s.tokens != NULL && s.pooled != NULL && s.neck != NULL);
    int32_t positions[4 * T] = { 0 };
    for (int n = 0; n < N; n++) {
        positions[1 + n] = n / GW;
        positions[T + 1 + n] = n % GW;
    }
    ggml_gallocr_t galloc = ggml_gallocr_new(ggml_backend_get_default_buffer_type(backend));
    REQUIRE(ggml_gallocr_alloc_graph(galloc, s.gf));
    ggml_backend_tensor_set(s.positions, positions, 0, sizeof(positions));
    CHECK(ggml_backend_graph_compute(backend, s.gf) == GGML_STATUS_SUCCESS);

    double x[T][D], pooled[T][D / 2], y[2 * 4 * N];
    plain_embed(&m, x);
    plain_attention(&m, positions, x);
    plain_feed_forward(&m, x);
    plain_pool(x, pooled);
    plain_neck(&m, x, y);
    CHECK_NUMBERS(s.tokens, x[0], T * D, 1e-5);
    CHECK_NUMBERS(s.pooled, pooled[0], T * D / 2, 1e-5);
    CHECK_NUMBERS(s.neck, y, 2 * 4 * N, 2e-3); // columns of F16
    ggml_gallocr_free(galloc);
    ggml_free(s.ctx);
    weights_free(&m.w);
    ggml_backend_free(backend);
}

static void see_on_the_cpu(void) {
    ggml_backend_t backend = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(backend, 2);
    see_on(backend);
}

static void see_on_a_device(void) { see_on(ggml_backend_reg_init_backend_from_str("SIM:mem=16M")); }

TEST_MAIN(TEST(see_on_the_cpu), TEST(see_on_a_device))
