// CROSS_ENTROPY_LOSS and its derivative, which is also compared with differences of the loss.
#include "test_cpu_ops.h"

static double loss(const struct ggml_tensor * a, const struct ggml_tensor * b, const int64_t moved[4], double h,
    double eps) {
    double total = 0;
    for (int64_t r = 0; r < a->ne[1] * a->ne[2] * a->ne[3]; r++) {
        const int64_t i1 = r % a->ne[1], i2 = r / a->ne[1] % a->ne[2], i3 = r / (a->ne[1] * a->ne[2]);
        double x[128], sum = 0;
        for (int64_t j = 0; j < a->ne[0]; j++) {
            const bool hit = moved && moved[0] == j && moved[1] == i1 && moved[2] == i2 && moved[3] == i3;
            x[j] = exp(at(a, j, i1, i2, i3) + (hit ? h : 0));
            sum += x[j];
        }
        for (int64_t j = 0; j < a->ne[0]; j++) {
            total += at(b, j, i1, i2, i3) * log(x[j] / sum * (1 - eps) + eps);
        }
    }
    return -total / (double) (a->ne[1] * a->ne[2] * a->ne[3]);
}

static double want_loss(const struct ggml_tensor * node, const int64_t i[4]) {
    (void) i;
    return loss(node->src[0], node->src[1], NULL, 0, 1e-9);
}

static double want_back(const struct ggml_tensor * node, const int64_t i[4]) {
    const double h = 1e-5;
    return (loss(node->src[0], node->src[1], i, h, 0) - loss(node->src[0], node->src[1], i, -h, 0)) / (2 * h) *
           at(node->src[2], 0, 0, 0, 0);
}

static struct ggml_tensor * distribution(enum ggml_type type, int layout, int64_t n0, int64_t n1, int64_t n2,
    int64_t n3) { // rows add up to 1
    struct ggml_tensor * t = tensor(type, layout, n0, n1, n2, n3);
    FOR_ELEMENTS(t, i) {
        write_value(type, address(t, i),
            i[0] == (i[1] + i[2]) % n0                 ? 0.75
            : n0 > 1 && i[0] == (i[1] + i[2] + 1) % n0 ? 0.25
                                                       : 0);
    }
    return t;
}

static void forward(void) {
    FOR_LAYOUTS(layout) {
        FOR_FLOATS(type) {
            begin();
            struct ggml_tensor *a = fill(tensor(type, layout, 33, 5, 2, 2), -5, 5),
                               *b = distribution(type, layout, 33, 5, 2, 2);
            struct ggml_tensor * node = ggml_cross_entropy_loss(ctx, stand_in(33, 5, 2, 2), stand_in(33, 5, 2, 2));
            CHECK_NODE(reading(reading(node, 0, a), 1, b), want_loss, 3e-6);
            end();
        }
    }
    begin();
    struct ggml_tensor * node = ggml_cross_entropy_loss(ctx, random_tensor(GGML_TYPE_F32, DENSE, 100, 420, 1, 1),
        distribution(GGML_TYPE_F32, DENSE, 100, 420, 1, 1));
    CHECK(is_shared(node));
    CHECK_NODE(node, want_loss, 3e-6);
    end();
}

static void an_impossible_class(void) { // eps keeps the logarithm finite
    begin();
    struct ggml_tensor *a = tensor(GGML_TYPE_F32, DENSE, 2, 1, 1, 1), *b = tensor(GGML_TYPE_F32, DENSE, 2, 1, 1, 1);
    memcpy(a->data, (float[]){ 0, 300 }, 8);
    memcpy(b->data, (float[]){ 1, 0 }, 8);
    struct ggml_tensor * node = ggml_cross_entropy_loss(ctx, a, b);
    give_memory(node);
    CHECK(run_node(node, 1, gb_kernels_default()) == GGML_STATUS_SUCCESS);
    CHECK(fabs((double) *(float *) node->data + log(1e-9)) < 1e-4);
    end();
}

static void back(void) {
    FOR_LAYOUTS(layout) {
        FOR_FLOATS(type) {
            begin();
            struct ggml_tensor *a = random_tensor(type, layout, 12, 2, 2, 1),
                               *b = distribution(type, layout, 12, 2, 2, 1);
            struct ggml_tensor * c = fill(tensor(GGML_TYPE_F32, DENSE, 1, 1, 1, 1), 1, 3);
            struct ggml_tensor * node =
                typed(ggml_cross_entropy_loss_back(ctx, stand_in(12, 2, 2, 1), stand_in(12, 2, 2, 1), c), type);
            CHECK_NODE(reading(reading(node, 0, a), 1, b), want_back, 2e-6);
            end();
        }
    }
    begin();
    struct ggml_tensor * node = ggml_cross_entropy_loss_back(ctx, random_tensor(GGML_TYPE_F32, DENSE, 100, 420, 1, 1),
        distribution(GGML_TYPE_F32, DENSE, 100, 420, 1, 1), random_tensor(GGML_TYPE_F32, DENSE, 1, 1, 1, 1));
    CHECK(is_shared(node));
    CHECK_NODE(node, NULL, 0);
    end();
}

// ---- with the caller's eps: exact for distant logits, -inf and distributions of any sum

static double given_eps(const struct ggml_tensor * node) {
    float eps;
    memcpy(&eps, node->op_params + 1, sizeof(eps));
    return (double) eps;
}

static double want_given(const struct ggml_tensor * node, const int64_t i[4]) {
    const struct ggml_tensor *a = node->src[0], *b = node->src[1];
    const double eps = given_eps(node);
    double total = 0;
    (void) i;
    for (int64_t r = 0; r < a->ne[1]; r++) {
        double max = -INFINITY, sum = 0;
        for (int64_t j = 0; j < a->ne[0]; j++) {
            max = fmax(max, at(a, j, r, 0, 0));
        }
        for (int64_t j = 0; j < a->ne[0]; j++) {
            sum += exp(at(a, j, r, 0, 0) - max);
        }
        for (int64_t j = 0; j < a->ne[0]; j++) {
            const double log_s = at(a, j, r, 0, 0) - max - log(sum), t = at(b, j, r, 0, 0);
            total += t == 0 ? 0 : t * (eps == 0 ? log_s : log(exp(log_s) * (1 - eps) + eps));
        }
    }
    return -total / (double) a->ne[1];
}

// by the chain rule through the softmax
static double want_given_back(const struct ggml_tensor * node, const int64_t i[4]) {
    const struct ggml_tensor *a = node->src[0], *b = node->src[1];
    const double eps = given_eps(node);
    double max = -INFINITY, sum = 0, grad = 0;
    for (int64_t j = 0; j < a->ne[0]; j++) {
        max = fmax(max, at(a, j, i[1], 0, 0));
    }
    for (int64_t j = 0; j < a->ne[0]; j++) {
        sum += exp(at(a, j, i[1], 0, 0) - max);
    }
    const double own = exp(at(a, i[0], i[1], 0, 0) - max) / sum;
    for (int64_t j = 0; j < a->ne[0]; j++) {
        // d log s / d x
        const double s = exp(at(a, j, i[1], 0, 0) - max) / sum, t = at(b, j, i[1], 0, 0),
                     moves = (j == i[0] ? 1 : 0) - own;
        grad -= t == 0 ? 0 : eps == 0 ? t * moves : t * (1 - eps) * s * moves / (s * (1 - eps) + eps);
    }
    return grad * at(node->src[2], 0, 0, 0, 0) / (double) a->ne[1];
}

static void exact(void) {
    static const float values[] = { 200, 0, -200, 100, -INFINITY, 3, -3, 88, 1e30f, -1e30f };
    for (int way = 0; way < 3; way++) {
        const float eps = way == 0 ? 0 : way == 1 ? 1e-9f : 0.1f;
        for (int64_t n = 1; n <= 70; n += 23) {
            begin();
            struct ggml_tensor *a = tensor(GGML_TYPE_F32, DENSE, n, 9, 1, 1),
                               *b = fill(tensor(GGML_TYPE_F32, DENSE, n, 9, 1, 1), 0, 2);
            FOR_ELEMENTS(a, i) {
                const float v = i[1] < 7 ? values[test_random() % 8] : values[(i[0] + i[1]) % 10];
                write_value(a->type, address(a, i), i[0] == 0 ? 1 : v);
                if (isinf(v) || test_random() % 3 == 0) {
                    write_value(b->type, address(b, i), 0);
                }
            }
            CHECK_NODE(ggml_cross_entropy_loss_eps(ctx, a, b, eps), want_given, 1e-6);
            CHECK_NODE(ggml_cross_entropy_loss_eps_back(ctx, a, b, fill(tensor(GGML_TYPE_F32, DENSE, 1, 1, 1, 1), 1, 3),
                           eps),
                want_given_back, 1e-6);
            end();
        }
        FOR_FLOATS(type) {
            begin();
            struct ggml_tensor *a = fill(tensor(type, PADDED, 33, 5, 1, 1), -5, 5),
                               *b = distribution(type, SWAPPED, 33, 5, 1, 1);
            CHECK_NODE(reading(reading(ggml_cross_entropy_loss_eps(ctx, stand_in(33, 5, 1, 1), stand_in(33, 5, 1, 1),
                                           eps),
                                   0, a),
                           1, b),
                want_given, 3e-6);
            end();
        }
    }
}

static void far_logits(void) { // 1e-9 would limit the loss to 20.7
    begin();
    struct ggml_tensor *a = tensor(GGML_TYPE_F32, DENSE, 4, 1, 1, 1), *b = tensor(GGML_TYPE_F32, DENSE, 4, 1, 1, 1);
    memcpy(a->data, (float[]){ 200, 0, -200, 100 }, 16);
    memcpy(b->data, (float[]){ 0, 0.5f, 0.5f, 0 }, 16);
    struct ggml_tensor * node = ggml_cross_entropy_loss_eps(ctx, a, b, 0);
    give_memory(node);
    CHECK(run_node(node, 1, gb_kernels_default()) == GGML_STATUS_SUCCESS);
    CHECK(*(float *) node->data == 300.0f);
    end();
}

TEST_MAIN(TEST(forward), TEST(an_impossible_class), TEST(back), TEST(exact), TEST(far_logits))
