// test_compat_today_decoder.c - a decoder layer as programs of 2026 write it: rotary embedding with
// factors, keys and values written by index, attention with sinks, and a mixture of experts. A
// prompt of five tokens and then single tokens use one cache. Two more tests allocate graphs again, and
// let the allocator grow.
#include "today.h"

enum { D = 32, H = 4, HK = 2, HD = 16, FF = 24, E = 6, U = 2, VOCAB = 40, N_CTX = 16, N_PROMPT = 5, N_TOKENS = 8 };

static const double eps = 1e-5;
static const float base = 10000.0f, scale = 0.5f;

struct model {
    struct weights w;
    int embed, wq, wk, wv, wo, norm1, norm2, norm3, factors, sinks, router, up, gate, down, bias;
    struct ggml_tensor * k_cache; // [HD HK, N_CTX]
    struct ggml_tensor * v_cache;
};

static void model_new(struct model * m) {
    weights_new(&m->w);
    struct weights * w = &m->w;
    m->embed = weight(w, GGML_TYPE_F16, -1, 1, D, VOCAB, 1, 1);
    m->wq = weight(w, GGML_TYPE_F16, -0.3f, 0.3f, D, HD * H, 1, 1);
    m->wk = weight(w, GGML_TYPE_F16, -0.3f, 0.3f, D, HD * HK, 1, 1);
    m->wv = weight(w, GGML_TYPE_F16, -0.3f, 0.3f, D, HD * HK, 1, 1);
    m->wo = weight(w, GGML_TYPE_F16, -0.3f, 0.3f, HD * H, D, 1, 1);
    m->norm1 = weight(w, GGML_TYPE_F32, 0.5f, 1.5f, D, 1, 1, 1);
    m->norm2 = weight(w, GGML_TYPE_F32, 0.5f, 1.5f, D, 1, 1, 1);
    m->norm3 = weight(w, GGML_TYPE_F32, 0.5f, 1.5f, D, 1, 1, 1);
    m->factors = weight(w, GGML_TYPE_F32, 1, 8, HD / 2, 1, 1, 1);
    m->sinks = weight(w, GGML_TYPE_F32, -1, 1, H, 1, 1, 1);
    m->router = weight(w, GGML_TYPE_F32, -1, 1, D, E, 1, 1);
    m->up = weight(w, GGML_TYPE_F16, -0.3f, 0.3f, D, FF, E, 1);
    m->gate = weight(w, GGML_TYPE_F16, -0.3f, 0.3f, D, FF, E, 1);
    m->down = weight(w, GGML_TYPE_F16, -0.3f, 0.3f, FF, D, E, 1);
    m->bias = weight(w, GGML_TYPE_F32, -0.5f, 0.5f, FF, E, 1, 1);
    m->k_cache = ggml_new_tensor_2d(w->ctx, GGML_TYPE_F32, HD * HK, N_CTX);
    m->v_cache = ggml_new_tensor_2d(w->ctx, GGML_TYPE_F32, HD * HK, N_CTX);
}

// ----------------------------------------------------------------------------------------------------------- the graph

struct step {
    struct ggml_context * ctx;
    struct ggml_cgraph * gf;
    struct ggml_tensor *tokens, *positions, *places, *mask, *logits;
};

static struct ggml_tensor * normed(struct ggml_context * ctx, struct ggml_tensor * x, struct ggml_tensor * w) {
    return ggml_mul(ctx, ggml_rms_norm(ctx, x, (float) eps), w);
}

static struct ggml_tensor * attention(const struct model * m, struct step * s, struct ggml_tensor * x, int n) {
    struct ggml_context * ctx = s->ctx;
    struct ggml_tensor * const * w = m->w.t;
    struct ggml_tensor * q = ggml_reshape_3d(ctx, ggml_mul_mat(ctx, w[m->wq], x), HD, H, n);
    struct ggml_tensor * k = ggml_reshape_3d(ctx, ggml_mul_mat(ctx, w[m->wk], x), HD, HK, n);
    struct ggml_tensor * v = ggml_mul_mat(ctx, w[m->wv], x);
    q = ggml_rope_ext(ctx, q, s->positions, w[m->factors], HD, GGML_ROPE_TYPE_NEOX, 0, base, scale, 0, 1, 0, 0);
    k = ggml_rope_ext(ctx, k, s->positions, w[m->factors], HD, GGML_ROPE_TYPE_NEOX, 0, base, scale, 0, 1, 0, 0);
    k = ggml_set_rows(ctx, m->k_cache, ggml_reshape_2d(ctx, k, HD * HK, n), s->places);
    v = ggml_set_rows(ctx, m->v_cache, v, s->places);
    ggml_build_forward_expand(s->gf, k);
    ggml_build_forward_expand(s->gf, v);
    q = ggml_permute(ctx, q, 0, 2, 1, 3);
    k = ggml_permute(ctx, ggml_reshape_3d(ctx, m->k_cache, HD, HK, N_CTX), 0, 2, 1, 3);
    v = ggml_permute(ctx, ggml_reshape_3d(ctx, m->v_cache, HD, HK, N_CTX), 0, 2, 1, 3);
    struct ggml_tensor * r = ggml_flash_attn_ext(ctx, q, k, v, s->mask, 1.0f / sqrtf(HD), 0.0f, 20.0f);
    ggml_flash_attn_ext_add_sinks(r, w[m->sinks]);
    ggml_flash_attn_ext_set_prec(r, GGML_PREC_F32);
    return ggml_mul_mat(ctx, w[m->wo], ggml_reshape_2d(ctx, r, HD * H, n));
}

static struct ggml_tensor * experts(const struct model * m, struct ggml_context * ctx, struct ggml_tensor * x, int n) {
    struct ggml_tensor * const * w = m->w.t;
    struct ggml_tensor * p = ggml_soft_max(ctx, ggml_mul_mat(ctx, w[m->router], x)); // [E, n]
    struct ggml_tensor * ids = ggml_argsort_top_k(ctx, p, U);                        // [U, n]
    struct ggml_tensor * shares = ggml_reshape_2d(ctx, ggml_get_rows(ctx, ggml_reshape_3d(ctx, p, 1, E, n), ids), U, n);
    shares = ggml_reshape_3d(ctx, ggml_div(ctx, shares, ggml_sum_rows(ctx, shares)), 1, U, n);
    struct ggml_tensor * rows = ggml_reshape_3d(ctx, x, D, 1, n);
    struct ggml_tensor * up = ggml_add_id(ctx, ggml_mul_mat_id(ctx, w[m->up], rows, ids), w[m->bias], ids);
    struct ggml_tensor * gate = ggml_mul_mat_id(ctx, w[m->gate], rows, ids);
    CHECK(gate->op == GGML_OP_MUL_MAT_ID);
    struct ggml_tensor * y = ggml_mul_mat_id(ctx, w[m->down], ggml_swiglu_split(ctx, gate, up), ids); // [D, U, n]
    y = ggml_mul(ctx, y, shares);
    struct ggml_tensor * sum = ggml_view_2d(ctx, y, D, n, y->nb[2], 0);
    for (int u = 1; u < U; u++) {
        sum = ggml_add(ctx, sum, ggml_view_2d(ctx, y, D, n, y->nb[2], (size_t) u * y->nb[1]));
    }
    return sum;
}

static void step_build(const struct model * m, struct step * s, int n) {
    struct ggml_init_params params = { 128 * ggml_tensor_overhead() + ggml_graph_overhead(), NULL, true };
    struct ggml_context * ctx = s->ctx = ggml_init(params);
    s->gf = ggml_new_graph(ctx);
    s->tokens = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, n);
    s->positions = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, n);
    s->places = ggml_new_tensor_1d(ctx, GGML_TYPE_I64, n);
    s->mask = ggml_new_tensor_2d(ctx, GGML_TYPE_F16, N_CTX, n);
    struct ggml_tensor * inputs[] = { s->tokens, s->positions, s->places, s->mask };
    for (int i = 0; i < 4; i++) {
        ggml_set_input(inputs[i]);
    }
    struct ggml_tensor * x = ggml_get_rows(ctx, m->w.t[m->embed], s->tokens);
    x = ggml_add(ctx, x, attention(m, s, normed(ctx, x, m->w.t[m->norm1]), n));
    x = ggml_add(ctx, x, experts(m, ctx, normed(ctx, x, m->w.t[m->norm2]), n));
    s->logits = ggml_mul_mat(ctx, m->w.t[m->embed], normed(ctx, x, m->w.t[m->norm3]));
    ggml_set_name(s->logits, "logits");
    ggml_set_output(s->logits);
    ggml_build_forward_expand(s->gf, s->logits);
}

// Tokens first .. first + n - 1. The cache is filled backwards: position p is in row N_CTX - 1 - p.
static void step_set(struct step * s, const int32_t * tokens, int first, int n) {
    int32_t positions[N_TOKENS];
    int64_t places[N_TOKENS];
    ggml_fp16_t mask[N_TOKENS * N_CTX];
    for (int i = 0; i < n; i++) {
        positions[i] = first + i;
        places[i] = N_CTX - 1 - (first + i);
        for (int c = 0; c < N_CTX; c++) {
            mask[i * N_CTX + c] = ggml_fp32_to_fp16(N_CTX - 1 - c <= first + i ? 0.0f : -INFINITY);
        }
    }
    ggml_backend_tensor_set(s->tokens, tokens + first, 0, (size_t) n * sizeof(*tokens));
    ggml_backend_tensor_set(s->positions, positions, 0, (size_t) n * sizeof(*positions));
    ggml_backend_tensor_set(s->places, places, 0, (size_t) n * sizeof(*places));
    ggml_backend_tensor_set(s->mask, mask, 0, (size_t) n * N_CTX * sizeof(*mask));
}

// ----------------------------------------------------------------------------------------------------- the same, plain

static void scaled_rms(const double * x, const double * w, double * y) {
    rms(x, D, eps, y);
    for (int i = 0; i < D; i++) {
        y[i] *= w[i];
    }
}

static void turn(double * x, int position, const double * factors) {
    for (int j = 0; j < HD / 2; j++) {
        const double angle = (double) scale * position * pow((double) base, -2.0 * j / HD) / factors[j];
        const double a = x[j], b = x[j + HD / 2];
        x[j] = a * cos(angle) - b * sin(angle);
        x[j + HD / 2] = a * sin(angle) + b * cos(angle);
    }
}

// Computes the attention of token t over tokens 0 .. t, and adds it to x. keys, values: of all tokens so far.
static void plain_attention(const struct model * m, double * x, int t, double keys[][HD * HK],
    double values[][HD * HK]) {
    double * const * w = m->w.v;
    double n[D], q[HD * H], mixed[HD * H], out[D];
    scaled_rms(x, w[m->norm1], n);
    product(w[m->wq], D, HD * H, n, q);
    product(w[m->wk], D, HD * HK, n, keys[t]);
    product(w[m->wv], D, HD * HK, n, values[t]);
    for (int h = 0; h < HK; h++) {
        turn(keys[t] + h * HD, t, w[m->factors]);
    }
    for (int h = 0; h < H; h++) {
        double scores[N_TOKENS];
        const int hk = h / (H / HK);
        turn(q + h * HD, t, w[m->factors]);
        for (int c = 0; c <= t; c++) {
            scores[c] = 0;
            for (int i = 0; i < HD; i++) {
                scores[c] += q[h * HD + i] * keys[c][hk * HD + i] / sqrt(HD);
            }
            scores[c] = 20 * tanh(scores[c] / 20);
        }
        softmax(scores, t + 1, w[m->sinks][h]);
        for (int i = 0; i < HD; i++) {
            mixed[h * HD + i] = 0;
            for (int c = 0; c <= t; c++) {
                mixed[h * HD + i] += scores[c] * values[c][hk * HD + i];
            }
        }
    }
    product(w[m->wo], HD * H, D, mixed, out);
    for (int i = 0; i < D; i++) {
        x[i] += out[i];
    }
}

static void plain_experts(const struct model * m, double * x) {
    double * const * w = m->w.v;
    double n[D], p[E], total = 0;
    bool used[E] = { false };
    int chosen[U];
    scaled_rms(x, w[m->norm2], n);
    product(w[m->router], D, E, n, p);
    softmax(p, E, -INFINITY);
    for (int u = 0; u < U; u++) {
        int best = -1;
        for (int e = 0; e < E; e++) {
            best = !used[e] && (best < 0 || p[e] > p[best]) ? e : best;
        }
        used[best] = true;
        chosen[u] = best;
        total += p[best];
    }
    for (int u = 0; u < U; u++) {
        const int e = chosen[u];
        double up[FF], gate[FF], out[D];
        product(w[m->up] + e * D * FF, D, FF, n, up);
        product(w[m->gate] + e * D * FF, D, FF, n, gate);
        for (int i = 0; i < FF; i++) {
            up[i] = gate[i] * sigmoid(gate[i]) * (up[i] + w[m->bias][e * FF + i]);
        }
        product(w[m->down] + e * D * FF, FF, D, up, out);
        for (int i = 0; i < D; i++) {
            x[i] += p[e] / total * out[i];
        }
    }
}

static void plain(const struct model * m, const int32_t * tokens, double logits[][VOCAB]) {
    double keys[N_TOKENS][HD * HK], values[N_TOKENS][HD * HK], x[D], n[D];
    for (int t = 0; t < N_TOKENS; t++) {
        for (int i = 0; i < D; i++) {
            x[i] = m->w.v[m->embed][tokens[t] * D + i];
        }
        plain_attention(m, x, t, keys, values);
        plain_experts(m, x);
        scaled_rms(x, m->w.v[m->norm3], n);
        product(m->w.v[m->embed], D, VOCAB, n, logits[t]);
    }
}

// ------------------------------------------------------------------------------------------------------------ together

static void decode_on(ggml_backend_t backend) {
    REQUIRE(backend != NULL);
    struct model m;
    model_new(&m);
    REQUIRE(weights_place(&m.w, backend));
    float unused[HD * HK * N_CTX]; // unwritten positions have no effect
    for (int i = 0; i < HD * HK * N_CTX; i++) {
        unused[i] = NAN;
    }
    ggml_backend_tensor_set(m.k_cache, unused, 0, sizeof(unused));
    ggml_backend_tensor_set(m.v_cache, unused, 0, sizeof(unused));
    int32_t tokens[N_TOKENS];
    for (int t = 0; t < N_TOKENS; t++) {
        tokens[t] = (int32_t) test_random_int(0, VOCAB - 1);
    }
    double want[N_TOKENS][VOCAB];
    plain(&m, tokens, want);

    struct step prompt, one;
    step_build(&m, &prompt, N_PROMPT);
    step_build(&m, &one, 1);
    ggml_gallocr_t galloc = ggml_gallocr_new(ggml_backend_get_default_buffer_type(backend));
    REQUIRE(ggml_gallocr_alloc_graph(galloc, prompt.gf));
    step_set(&prompt, tokens, 0, N_PROMPT);
    CHECK(ggml_backend_graph_compute(backend, prompt.gf) == GGML_STATUS_SUCCESS);
    CHECK_NUMBERS(prompt.logits, want[0], N_PROMPT * VOCAB, 1e-5);
    REQUIRE(ggml_gallocr_alloc_graph(galloc, one.gf)); // in the same memory
    for (int t = N_PROMPT; t < N_TOKENS; t++) {
        step_set(&one, tokens, t, 1); // one graph serves every position
        CHECK(ggml_backend_graph_compute(backend, one.gf) == GGML_STATUS_SUCCESS);
        CHECK_NUMBERS(one.logits, want[t], VOCAB, 1e-5);
    }
    ggml_gallocr_free(galloc);
    ggml_free(one.ctx);
    ggml_free(prompt.ctx);
    weights_free(&m.w);
    ggml_backend_free(backend);
}

static void decode_on_the_cpu(void) {
    ggml_backend_t backend = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(backend, 2);
    decode_on(backend);
}

static void decode_on_a_device(void) { decode_on(ggml_backend_reg_init_backend_from_str("SIM:mem=16M")); }

// y = x^2 + x of n elements in a context of its own.
struct square {
    struct ggml_context * ctx;
    struct ggml_cgraph * gf;
    struct ggml_tensor *x, *y;
};

static struct square square_new(int n) {
    struct square s;
    struct ggml_init_params params = { 16 * ggml_tensor_overhead() + ggml_graph_overhead(), NULL, true };
    s.ctx = ggml_init(params);
    s.gf = ggml_new_graph(s.ctx);
    s.x = ggml_new_tensor_1d(s.ctx, GGML_TYPE_F32, n);
    ggml_set_input(s.x);
    s.y = ggml_add(s.ctx, ggml_sqr(s.ctx, s.x), s.x);
    ggml_build_forward_expand(s.gf, s.y);
    return s;
}

// The last element of t, after x[n - 1] = 3.
static float last_of(ggml_backend_t backend, const struct square * s, struct ggml_tensor * t) {
    const float three = 3;
    float last = 0;
    ggml_backend_tensor_set(s->x, &three, ggml_nbytes(s->x) - sizeof(three), sizeof(three));
    CHECK(ggml_backend_graph_compute(backend, s->gf) == GGML_STATUS_SUCCESS);
    ggml_backend_tensor_get(t, &last, ggml_nbytes(t) - sizeof(last), sizeof(last));
    return last;
}

// A graph can be allocated again, after a larger graph used the allocator, or after the graph got
// more nodes.
static void graphs_are_placed_again(void) {
    ggml_backend_t backend = ggml_backend_cpu_init();
    ggml_gallocr_t galloc = ggml_gallocr_new(ggml_backend_get_default_buffer_type(backend));
    struct square small = square_new(64), large = square_new(4096);
    REQUIRE(ggml_gallocr_alloc_graph(galloc, small.gf) && ggml_gallocr_alloc_graph(galloc, large.gf));
    ggml_backend_buffer_t buffer = large.y->buffer;
    CHECK(last_of(backend, &large, large.y) == 12);
    REQUIRE(ggml_gallocr_alloc_graph(galloc, small.gf));
    CHECK(small.x->buffer == buffer && small.y->buffer == buffer);
    CHECK(last_of(backend, &small, small.y) == 12);

    REQUIRE(ggml_gallocr_alloc_graph(galloc, large.gf));
    struct ggml_tensor * more = ggml_mul(large.ctx, ggml_view_1d(large.ctx, large.y, 4000, 96 * sizeof(float)),
        ggml_view_1d(large.ctx, large.x, 4000, 96 * sizeof(float)));
    ggml_build_forward_expand(large.gf, more);
    REQUIRE(ggml_gallocr_alloc_graph(galloc, large.gf));
    CHECK(large.x->buffer == more->buffer && large.y->buffer == more->buffer);
    CHECK(last_of(backend, &large, more) == 36);
    ggml_free(small.ctx);
    ggml_free(large.ctx);
    ggml_gallocr_free(galloc);
    ggml_backend_free(backend);
}

// Each larger graph gets a larger buffer and computes.
static void allocator_grows(void) {
    ggml_backend_t backend = ggml_backend_cpu_init();
    ggml_gallocr_t galloc = ggml_gallocr_new(ggml_backend_get_default_buffer_type(backend));
    REQUIRE(galloc != NULL);
    CHECK_INT(ggml_gallocr_get_buffer_size(galloc, 0), 0);
    size_t before = 0;
    for (int n = 64; n <= 4096; n *= 8) {
        struct ggml_init_params params = { 16 * ggml_tensor_overhead() + ggml_graph_overhead(), NULL, true };
        struct ggml_context * ctx = ggml_init(params);
        struct ggml_cgraph * gf = ggml_new_graph(ctx);
        struct ggml_tensor * x = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, n);
        ggml_set_input(x);
        struct ggml_tensor * y = ggml_add(ctx, ggml_sqr(ctx, x), x);
        ggml_build_forward_expand(gf, y);
        CHECK_INT(ggml_graph_n_nodes(gf), 2);
        CHECK(ggml_graph_node(gf, -1) == y && ggml_graph_node(gf, 2) == NULL);
        CHECK(ggml_gallocr_reserve(galloc, gf));
        REQUIRE(ggml_gallocr_alloc_graph(galloc, gf));
        CHECK(ggml_gallocr_get_buffer_size(galloc, 0) > before);
        before = ggml_gallocr_get_buffer_size(galloc, 0);
        const float three = 3;
        ggml_backend_tensor_set(x, &three, (size_t) (n - 1) * sizeof(three), sizeof(three));
        CHECK(ggml_backend_graph_compute(backend, gf) == GGML_STATUS_SUCCESS);
        float last = 0;
        ggml_backend_tensor_get(y, &last, (size_t) (n - 1) * sizeof(last), sizeof(last));
        CHECK(last == 12);
        ggml_free(ctx);
    }
    ggml_gallocr_free(galloc);
    ggml_backend_free(backend);
}

TEST_MAIN(TEST(decode_on_the_cpu), TEST(decode_on_a_device), TEST(allocator_grows), TEST(graphs_are_placed_again))
