// FLASH_ATTN, FLASH_FF and FLASH_ATTN_BACK against plain attention in double. Derivatives against
// differences.
#include "test_cpu_ops.h"

struct moved { // the oracle adds h to this element of the tensor
    const struct ggml_tensor * t;
    int64_t i[4];
    double h;
};

static double get(const struct ggml_tensor * t, int64_t i0, int64_t i1, int64_t i2, int64_t i3,
    const struct moved * m) {
    const bool hit = m != NULL && m->t == t && m->i[0] == i0 && m->i[1] == i1 && m->i[2] == i2 && m->i[3] == i3;
    return at(t, i0, i1, i2, i3) + (hit ? m->h : 0);
}

static double attention(const struct ggml_tensor * q, const struct ggml_tensor * k, const struct ggml_tensor * v,
    bool masked, const int64_t i[4], const struct moved * m) {
    double weights[1200], sum = 0, out = 0;
    const int64_t keys = k->ne[1], past = keys - q->ne[1];
    for (int64_t c = 0; c < keys; c++) {
        double s = 0;
        for (int64_t d = 0; d < q->ne[0]; d++) {
            s += get(k, d, c, i[2] % k->ne[2], i[3], m) * get(q, d, i[1], i[2], i[3], m);
        }
        weights[c] = masked && c > past + i[1] ? 0 : exp(s / sqrt((double) q->ne[0]));
        sum += weights[c];
    }
    for (int64_t c = 0; c < keys; c++) {
        out += weights[c] / sum * get(v, c, i[0], i[2] % v->ne[2], i[3], m);
    }
    return out;
}

static double want_attention(const struct ggml_tensor * node, const int64_t i[4]) {
    return attention(node->src[0], node->src[1], node->src[2], node->op_params[0] != 0, i, NULL);
}

static void flash_attn(void) {
    static const int heads[][3] = { { 4, 4, 4 }, { 4, 2, 2 }, { 4, 2, 1 }, { 1, 1, 1 } };
    for (int s = 0; s < 4; s++) {
        FOR_LAYOUTS(layout) {
            FOR_FLOATS(type) {
                begin();
                const int * h = heads[s];
                struct ggml_tensor *q = random_tensor(type, layout, 6, 5, h[0], 2),
                                   *k = random_tensor(type, layout, 6, 9, h[1], 2),
                                   *v = random_tensor(type, layout, 9, 6, h[2], 2);
                for (int masked = 0; masked < 2; masked++) {
                    struct ggml_tensor * node = ggml_flash_attn(ctx, stand_in(6, 5, h[0], 2), stand_in(6, 9, h[1], 2),
                        stand_in(9, 6, h[2], 2), masked);
                    CHECK_NODE(reading(reading(reading(node, 0, q), 1, k), 2, v), want_attention, 4e-6);
                }
                end();
            }
        }
    }
    begin();
    struct ggml_tensor * node = ggml_flash_attn(ctx, random_tensor(GGML_TYPE_F16, DENSE, 16, 20, 6, 1),
        random_tensor(GGML_TYPE_F16, DENSE, 16, 40, 2, 1), random_tensor(GGML_TYPE_F16, DENSE, 40, 16, 2, 1), true);
    CHECK(is_shared(node));
    CHECK_NODE(node, want_attention, 4e-6);
    end();
}

// Partial tiles of queries and blocks of keys, keys that no query of a tile sees, grouped heads.
static void flash_attn_tiles(void) {
    // d, queries, keys
    static const int shapes[][3] = { { 16, 8, 16 }, { 8, 50, 60 }, { 9, 53, 530 }, { 8, 10, 1100 }, { 16, 40, 60 } };
    for (int s = 0; s < 5; s++) {
        FOR_FLOATS(type) {
            begin();
            const int d = shapes[s][0], n = shapes[s][1], m = shapes[s][2];
            for (int masked = 0; masked <= (m >= n); masked++) {
                struct ggml_tensor * node =
                    ggml_flash_attn(ctx, stand_in(d, n, 2, 1), stand_in(d, m, 1, 1), stand_in(m, d, 1, 1), masked);
                struct ggml_tensor *q = random_tensor(type, DENSE, d, n, 2, 1),
                                   *k = random_tensor(type, DENSE, d, m, 1, 1),
                                   *v = random_tensor(type, DENSE, m, d, 1, 1);
                CHECK_NODE(reading(reading(reading(node, 0, q), 1, k), 2, v), want_attention, 4e-6);
            }
            end();
        }
    }
}

// A hidden key does not affect a query. Here only the last query sees the last key.
static void flash_attn_sees_no_hidden_values(void) {
    static const float strange[] = { 0, NAN, INFINITY, 3e38f };
    enum { D = 16, N = 20, M = 40 };
    float first[D * N];
    for (int i = 0; i < 4; i++) {
        struct ggml_context * own = ggml_init((struct ggml_init_params){ 1 << 20, NULL, false });
        struct ggml_tensor * in[] = { ggml_new_tensor_2d(own, GGML_TYPE_F32, D, N),
            ggml_new_tensor_2d(own, GGML_TYPE_F32, D, M), ggml_new_tensor_2d(own, GGML_TYPE_F32, M, D) };
        for (int t = 0; t < 3; t++) {
            for (int64_t j = 0; j < ggml_nelements(in[t]); j++) {
                ((float *) in[t]->data)[j] =
                    t == 2 && j % M == M - 1 ? strange[i] : (float) (j * 7919 % 2003 - 1001) / 1000.0f;
            }
        }
        struct ggml_tensor * node = ggml_flash_attn(own, in[0], in[1], in[2], true);
        struct ggml_cgraph * g = ggml_new_graph(own);
        ggml_build_forward_expand(g, node);
        CHECK_INT(ggml_graph_compute_with_ctx(own, g, 2), GGML_STATUS_SUCCESS);
        const float * y = node->data;
        if (i == 0) {
            memcpy(first, y, sizeof(first));
        }
        for (int j = 0; j < D * (N - 1); j++) {
            CHECK_MSG(fabsf(y[j] - first[j]) <= 1e-6f, "value %g, result %d: %g, not %g", (double) strange[i], j,
                (double) y[j], (double) first[j]);
        }
        CHECK(i == 0 || i == 3 || !isfinite(y[D * (N - 1)]));
        ggml_free(own);
    }
}

static double want_ff(const struct ggml_tensor * node, const int64_t i[4]) {
    const struct ggml_tensor *a = node->src[0], *b0 = node->src[1], *b1 = node->src[2], *c0 = node->src[3],
                             *c1 = node->src[4];
    double out = at(c1, i[0], 0, 0, 0);
    for (int64_t h = 0; h < b0->ne[1]; h++) {
        double x = at(b1, h, 0, 0, 0);
        for (int64_t d = 0; d < a->ne[0]; d++) {
            x += at(b0, d, h, i[2], i[3]) * at(a, d, i[1], i[2], i[3]);
        }
        out += at(c0, h, i[0], i[2], i[3]) * 0.5 * x *
               (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
    }
    return out;
}

static void flash_ff(void) {
    FOR_LAYOUTS(layout) {
        FOR_FLOATS(type) {
            begin();
            struct ggml_tensor *a = random_tensor(type, layout, 6, 5, 2, 2),
                               *b0 = random_tensor(type, layout, 6, 11, 2, 2),
                               *c0 = random_tensor(type, layout, 11, 6, 2, 2);
            struct ggml_tensor * node = ggml_flash_ff(ctx, stand_in(6, 5, 2, 2), stand_in(6, 11, 2, 2),
                random_tensor(GGML_TYPE_F32, DENSE, 11, 1, 1, 1), stand_in(11, 6, 2, 2),
                random_tensor(GGML_TYPE_F32, DENSE, 6, 1, 1, 1));
            CHECK_NODE(reading(reading(reading(node, 0, a), 1, b0), 3, c0), want_ff, 1e-5);
            end();
        }
    }
    begin();
    struct ggml_tensor * node = ggml_flash_ff(ctx, random_tensor(GGML_TYPE_F16, DENSE, 16, 60, 1, 1),
        random_tensor(GGML_TYPE_F16, DENSE, 16, 50, 1, 1), random_tensor(GGML_TYPE_F32, DENSE, 50, 1, 1, 1),
        random_tensor(GGML_TYPE_F16, DENSE, 50, 16, 1, 1), random_tensor(GGML_TYPE_F32, DENSE, 16, 1, 1, 1));
    CHECK(is_shared(node));
    CHECK_NODE(node, want_ff, 2e-5);
    end();
}

// The derivative of sum(d * attention) with respect to element i of t.
static double slope(const struct ggml_tensor * node, const struct ggml_tensor * t, const int64_t i[4]) {
    const struct ggml_tensor * d = node->src[3];
    const double h = 1e-5;
    double loss = 0;
    for (int side = -1; side <= 1; side += 2) {
        const struct moved m = { t, { i[0], i[1], i[2], i[3] }, side * h };
        FOR_ELEMENTS(d, j) {
            const bool same_head = t == node->src[0] ? j[2] == i[2] : j[2] % t->ne[2] == i[2]; // others stay unchanged
            if (same_head && j[3] == i[3]) {
                loss += side * at(d, j[0], j[1], j[2], j[3]) *
                        attention(node->src[0], node->src[1], node->src[2], node->op_params[0] != 0, j, &m);
            }
        }
    }
    return loss / (2 * h);
}

static double want_grads(const struct ggml_tensor * node, const int64_t i[4]) {
    int64_t at_byte = i[0] * 4;
    for (int s = 0; s < 3; s++) {
        const struct ggml_tensor * t = node->src[s];
        const int64_t size = ggml_nelements(t) * 4;
        if (at_byte < size) {
            const int64_t e = at_byte / 4;
            return slope(node, t,
                (const int64_t[4]){ e % t->ne[0], e / t->ne[0] % t->ne[1], e / (t->ne[0] * t->ne[1]) % t->ne[2],
                    e / (t->ne[0] * t->ne[1] * t->ne[2]) });
        }
        at_byte -= size;
        if (at_byte < (16 - size % 16) % 16) {
            return 0; // padding
        }
        at_byte -= (16 - size % 16) % 16;
    }
    return NAN;
}

static void flash_attn_back(void) {
    static const int heads[][2] = { { 2, 2 }, { 4, 2 }, { 3, 1 } };
    for (int s = 0; s < 3; s++) {
        FOR_LAYOUTS(layout) {
            for (int masked = 0; masked < 2; masked++) {
                begin();
                const int h = heads[s][0], hk = heads[s][1];
                struct ggml_tensor *q = random_tensor(GGML_TYPE_F32, layout, 3, 3, h, 2),
                                   *k = random_tensor(GGML_TYPE_F32, layout, 3, 5, hk, 2),
                                   *v = random_tensor(GGML_TYPE_F32, layout, 5, 3, hk, 2),
                                   *d = random_tensor(GGML_TYPE_F32, layout, 3, 3, h, 2);
                struct ggml_tensor * node = ggml_flash_attn_back(ctx, stand_in(3, 3, h, 2), stand_in(3, 5, hk, 2),
                    stand_in(5, 3, hk, 2), stand_in(3, 3, h, 2), masked);
                CHECK_NODE(reading(reading(reading(reading(node, 0, q), 1, k), 2, v), 3, d), want_grads, 1e-5);
                end();
            }
        }
    }
    begin();
    struct ggml_tensor * node = ggml_flash_attn_back(ctx, random_tensor(GGML_TYPE_F32, DENSE, 16, 20, 12, 1),
        random_tensor(GGML_TYPE_F32, DENSE, 16, 40, 6, 1), random_tensor(GGML_TYPE_F32, DENSE, 40, 16, 6, 1),
        random_tensor(GGML_TYPE_F32, DENSE, 16, 20, 12, 1), true);
    CHECK(is_shared(node));
    CHECK_NODE(node, NULL, 0);
    end();
}

static void heads_that_are_missing(void) {
    begin();
    struct ggml_tensor * node = ggml_flash_attn(ctx, random_tensor(GGML_TYPE_F32, DENSE, 4, 2, 1, 1),
        random_tensor(GGML_TYPE_F32, DENSE, 4, 3, 1, 1), random_tensor(GGML_TYPE_F32, DENSE, 3, 4, 1, 1), false);
    give_memory(node);
    node->src[1]->ne[2] = 0;
    CHECK(run_node(node, 1, gb_kernels_default()) == GGML_STATUS_UNSUPPORTED);
    CHECK_ERROR(GGML_STATUS_UNSUPPORTED, "must have heads");
    end();
}

TEST_MAIN(TEST(flash_attn), TEST(flash_attn_tiles), TEST(flash_attn_sees_no_hidden_values), TEST(flash_ff),
    TEST(flash_attn_back), TEST(heads_that_are_missing))
