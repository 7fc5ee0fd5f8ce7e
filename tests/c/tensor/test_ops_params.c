// test_ops_params.c - the parameters of nodes: op_params word by word, unusual sources, names.
// Kernels of all backends, also of third parties, read these.
#include "in_context.h"
#include "tensor/tensor.h"
#include "test.h"

#if defined(__GNUC__)
#    pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#endif

static struct ggml_context * ctx;

static struct ggml_tensor * tensor(enum ggml_type type, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3) {
    return ggml_set_name(ggml_new_tensor_4d(ctx, type, ne0, ne1, ne2, ne3), "a");
}

// A word of op_params: an integer or a float.
struct word {
    int i;
    bool is_float;
    float f;
};

static void check_words(int line, const struct ggml_tensor * t, const struct word * words, int n) {
    if (t == NULL) {
        test_fail(__FILE__, line, "no node: %s", ggml_last_error());
        return;
    }
    for (int k = 0; k < 16; k++) {
        int32_t expected = k < n ? words[k].i : 0;
        if (k < n && words[k].is_float) {
            memcpy(&expected, &words[k].f, 4);
        }
        if (t->op_params[k] != expected) {
            test_fail(__FILE__, line, "op_params[%d] is %d, expected %d", k, (int) t->op_params[k], (int) expected);
        }
    }
}

#define I(x) { x, false, 0 }
#define F(x) { 0, true, x }
#define WORDS(node, ...)                                              \
    check_words(__LINE__, node, (const struct word[]){ __VA_ARGS__ }, \
        (int) (sizeof((const struct word[]){ __VA_ARGS__ }) / sizeof(struct word)))

static void elementwise(void) {
    struct ggml_tensor * a = tensor(GGML_TYPE_F32, 4, 3, 2, 5);
    WORDS(ggml_abs(ctx, a), I(0));
    WORDS(ggml_sgn(ctx, a), I(1));
    WORDS(ggml_neg(ctx, a), I(2));
    WORDS(ggml_step(ctx, a), I(3));
    WORDS(ggml_tanh(ctx, a), I(4));
    WORDS(ggml_elu(ctx, a), I(5));
    WORDS(ggml_relu(ctx, a), I(6));
    WORDS(ggml_gelu(ctx, a), I(7));
    WORDS(ggml_gelu_quick(ctx, a), I(8));
    WORDS(ggml_silu(ctx, a), I(9));
    WORDS(ggml_hardswish(ctx, a), I(10));
    WORDS(ggml_hardsigmoid(ctx, a), I(11));
    WORDS(ggml_gelu_erf(ctx, a), I(12));
    WORDS(ggml_gelu_erf_inplace(ctx, a), I(12));
    WORDS(ggml_exp(ctx, a), I(13));
    WORDS(ggml_exp_inplace(ctx, a), I(13));
    WORDS(ggml_sigmoid(ctx, a), I(14));
    WORDS(ggml_sigmoid_inplace(ctx, a), I(14));
    WORDS(ggml_sin(ctx, a), I(15));
    WORDS(ggml_sin_inplace(ctx, a), I(15));
    WORDS(ggml_cos(ctx, a), I(16));
    WORDS(ggml_cos_inplace(ctx, a), I(16));
    WORDS(ggml_softplus(ctx, a), I(17));
    WORDS(ggml_softplus_inplace(ctx, a), I(17));
    WORDS(ggml_expm1(ctx, a), I(18));
    WORDS(ggml_floor(ctx, a), I(19));
    WORDS(ggml_ceil(ctx, a), I(20));
    WORDS(ggml_round_inplace(ctx, a), I(21));
    WORDS(ggml_trunc_inplace(ctx, a), I(22));
    WORDS(ggml_abs_inplace(ctx, a), I(0));
    WORDS(ggml_sgn_inplace(ctx, a), I(1));
    WORDS(ggml_neg_inplace(ctx, a), I(2));
    WORDS(ggml_step_inplace(ctx, a), I(3));
    WORDS(ggml_tanh_inplace(ctx, a), I(4));
    WORDS(ggml_elu_inplace(ctx, a), I(5));
    WORDS(ggml_relu_inplace(ctx, a), I(6));
    WORDS(ggml_gelu_inplace(ctx, a), I(7));
    WORDS(ggml_gelu_quick_inplace(ctx, a), I(8));
    WORDS(ggml_silu_inplace(ctx, a), I(9));
    WORDS(ggml_unary(ctx, a, GGML_UNARY_OP_ELU), I(5));
    WORDS(ggml_unary_inplace(ctx, a, GGML_UNARY_OP_HARDSWISH), I(10));
    WORDS(ggml_sqr(ctx, a), I(0));
    WORDS(ggml_leaky_relu(ctx, a, 0.25f, false), F(0.25f));
    WORDS(ggml_clamp(ctx, a, -1.5f, 2.5f), F(-1.5f), F(2.5f));
    WORDS(ggml_scale(ctx, a, 0.125f), F(0.125f));
    WORDS(ggml_scale_inplace(ctx, a, -3), F(-3));
    WORDS(ggml_add(ctx, a, a), I(0));
    WORDS(ggml_compare(ctx, a, a, GGML_COMPARE_EQUAL), I(0));
    WORDS(ggml_compare(ctx, a, a, GGML_COMPARE_NOT_EQUAL), I(1));
    WORDS(ggml_compare(ctx, a, a, GGML_COMPARE_LESS), I(2));
    WORDS(ggml_compare(ctx, a, a, GGML_COMPARE_LESS_EQUAL), I(3));
    WORDS(ggml_compare(ctx, a, a, GGML_COMPARE_GREATER), I(4));
    WORDS(ggml_compare(ctx, a, a, GGML_COMPARE_GREATER_EQUAL), I(5));
    WORDS(ggml_scale_bias(ctx, a, 2, -1), F(2), F(-1));
    CHECK_INT(ggml_scale_bias(ctx, a, 2, 0)->op, GGML_OP_SCALE);
    WORDS(ggml_glu(ctx, a, GGML_GLU_OP_GEGLU_ERF, true), I(4), I(1));
    WORDS(ggml_swiglu_oai(ctx, a, NULL, 1.5f, 7), I(3), I(0), F(1.5f), F(7));
    WORDS(ggml_fill(ctx, a, 3), F(3));
    WORDS(ggml_arange(ctx, 1, 2, 0.25f), F(1), F(2), F(0.25f));
    WORDS(ggml_l2_norm(ctx, a, 0.5f), F(0.5f));
    WORDS(ggml_roll(ctx, a, 1, -2, 1, 0), I(1), I(-2), I(1), I(0));
    WORDS(ggml_pad_ext(ctx, a, 1, 2, 3, 4, 5, 6, 7, 8), I(1), I(2), I(3), I(4), I(5), I(6), I(7), I(8), I(0));
    WORDS(ggml_pad_circular(ctx, a, 1, 2, 1, 1), I(0), I(1), I(0), I(2), I(0), I(1), I(0), I(1), I(1));
    WORDS(ggml_pad_reflect_1d(ctx, a, 1, 2), I(1), I(2));
    WORDS(ggml_interpolate(ctx, a, 8, 8, 2, 5, GGML_SCALE_MODE_BICUBIC | GGML_SCALE_FLAG_ALIGN_CORNERS), I(0x102));
    const struct ggml_tensor * chosen = ggml_where(ctx, a, a, a);
    WORDS(chosen, I(0));
    CHECK(chosen->src[0] == a && chosen->src[1] == a && chosen->src[2] == a && chosen->src[3] == NULL);
}

static void regions(void) {
    struct ggml_tensor * a = tensor(GGML_TYPE_F32, 4, 3, 2, 5);
    struct ggml_tensor * b = tensor(GGML_TYPE_F32, 2, 2, 1, 1);
    WORDS(ggml_acc(ctx, a, b, 16, 48, 96, 8), I(16), I(48), I(96), I(8), I(0));
    WORDS(ggml_acc_inplace(ctx, a, b, 32, 64, 128, 12), I(32), I(64), I(128), I(12), I(1));
    WORDS(ggml_set(ctx, a, b, 32, 64, 128, 12), I(32), I(64), I(128), I(12), I(0));
    WORDS(ggml_set_inplace(ctx, a, b, 32, 64, 128, 12), I(32), I(64), I(128), I(12), I(1));
    WORDS(ggml_set_1d(ctx, a, b, 20), I(16), I(48), I(96), I(20), I(0));
    WORDS(ggml_set_1d_inplace(ctx, a, b, 20), I(16), I(48), I(96), I(20), I(1));
    WORDS(ggml_set_2d(ctx, a, b, 24, 20), I(24), I(48), I(96), I(20), I(0));
    WORDS(ggml_set_2d_inplace(ctx, a, b, 24, 20), I(24), I(48), I(96), I(20), I(1));
}

static void norms_and_masks(void) {
    struct ggml_tensor * a = tensor(GGML_TYPE_F32, 4, 3, 2, 5);
    struct ggml_tensor * m = tensor(GGML_TYPE_F32, 4, 3, 1, 1);
    WORDS(ggml_norm(ctx, a, 1e-5f), F(1e-5f));
    WORDS(ggml_norm_inplace(ctx, a, 1e-5f), F(1e-5f));
    WORDS(ggml_rms_norm(ctx, a, 1e-6f), F(1e-6f));
    WORDS(ggml_rms_norm_inplace(ctx, a, 1e-6f), F(1e-6f));
    WORDS(ggml_rms_norm_back(ctx, a, a, 1e-6f), F(1e-6f));
    WORDS(ggml_group_norm(ctx, a, 2), I(2));
    WORDS(ggml_group_norm_inplace(ctx, a, 3), I(3));
    WORDS(ggml_group_norm_eps(ctx, a, 2, 0.5f), I(2), F(0.5f));
    WORDS(ggml_soft_max(ctx, a), F(1));
    WORDS(ggml_soft_max_inplace(ctx, a), F(1));
    WORDS(ggml_soft_max_ext(ctx, a, m, 0.5f), F(0.5f));
    const struct ggml_tensor * masked = ggml_soft_max_ext(ctx, a, m, 0.5f);
    CHECK(masked->src[0] == a && masked->src[1] == m);
    CHECK(ggml_soft_max(ctx, a)->src[1] == NULL);
    WORDS(ggml_diag_mask_inf(ctx, a, 7), I(7));
    WORDS(ggml_diag_mask_inf_inplace(ctx, a, 7), I(7));
    WORDS(ggml_diag_mask_zero(ctx, a, 7), I(7));
    WORDS(ggml_diag_mask_zero_inplace(ctx, a, 0), I(0));
    WORDS(ggml_alibi(ctx, a, 9, 2, 8.5f), I(9), I(2), F(8.5f));
    WORDS(ggml_argsort(ctx, a, GGML_SORT_DESC), I(1));
    WORDS(ggml_argsort(ctx, a, GGML_SORT_ASC), I(0));
}

static void ropes(void) {
    struct ggml_tensor * a = tensor(GGML_TYPE_F32, 8, 3, 5, 2);
    struct ggml_tensor * p = tensor(GGML_TYPE_I32, 5, 1, 1, 1);
#define DEFAULTS I(0), F(10000), F(1), F(0), F(1), F(0), F(0)
    WORDS(ggml_rope(ctx, a, p, 6, 2, 512), I(0), I(6), I(2), I(512), DEFAULTS, F(0), I(0));
    WORDS(ggml_rope_inplace(ctx, a, p, 4, 4, 512), I(0), I(4), I(4), I(512), DEFAULTS, F(0), I(0));
    WORDS(ggml_rope_xpos_inplace(ctx, a, p, 8, 512.5f, true), I(0), I(8), I(0), I(0), DEFAULTS, F(512.5f), I(1));
    WORDS(ggml_rope_xpos_inplace(ctx, a, p, 8, 512.5f, false), I(0), I(8), I(0), I(0), DEFAULTS, F(512.5f), I(0));
    WORDS(ggml_rope_custom(ctx, a, p, 6, 2, 512, 256, 5e5f, 0.25f, 1.5f, 0.5f, 32, 2), I(0), I(6), I(2), I(512), I(256),
        F(5e5f), F(0.25f), F(1.5f), F(0.5f), F(32), F(2), F(0), I(0));
    WORDS(ggml_rope_custom_inplace(ctx, a, p, 6, 2, 512, 256, 5e5f, 0.25f, 1.5f, 0.5f, 32, 2), I(0), I(6), I(2), I(512),
        I(256), F(5e5f), F(0.25f), F(1.5f), F(0.5f), F(32), F(2), F(0), I(0));
    WORDS(ggml_rope_back(ctx, a, p, 6, 2, 512, 256, 5e5f, 0.25f, 1.5f, 0.5f, 32, 2, 64, true), I(0), I(6), I(2), I(512),
        I(256), F(5e5f), F(0.25f), F(1.5f), F(0.5f), F(32), F(2), F(64), I(1));
}

// By hand from n_dims ln(n_orig / (2 pi beta)) / (2 ln base), rounded down and up:
// 128 ln(4096 / (64 pi)) / (2 ln 10000) = 20.94 and 128 ln(4096 / (2 pi)) / (2 ln 10000) = 45.03.
static void yarn_corr_dims(void) {
    float dims[2] = { -1, -1 };
    ggml_rope_yarn_corr_dims(128, 4096, 10000.0f, 32.0f, 1.0f, dims);
    CHECK_INT(dims[0], 20);
    CHECK_INT(dims[1], 46);
    ggml_rope_yarn_corr_dims(128, 4, 10000.0f, 32.0f, 1.0f, dims); // both values are below 0: only the first is clamped
    CHECK_INT(dims[0], 0);
    CHECK_INT(dims[1], -3);
    ggml_rope_yarn_corr_dims(16, 4096, 2.0f, 32.0f, 1.0f,
        dims); // beyond the last dimension: only the second is clamped
    CHECK_INT(dims[0], 34);
    CHECK_INT(dims[1], 15);
    ggml_rope_yarn_corr_dims(128, 4096, 10000.0f, 32.0f, 1.0f, NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "ggml_rope_yarn_corr_dims");
}

static void convolution_and_pooling(void) {
    struct ggml_tensor * k = tensor(GGML_TYPE_F16, 3, 2, 4, 6);
    struct ggml_tensor * b = tensor(GGML_TYPE_F32, 20, 20, 4, 5);
    WORDS(ggml_im2col(ctx, k, b, 1, 2, 3, 4, 5, 6, true), I(1), I(2), I(3), I(4), I(5), I(6), I(1));
    WORDS(ggml_im2col(ctx, tensor(GGML_TYPE_F16, 3, 20, 6, 1), tensor(GGML_TYPE_F32, 20, 20, 4, 1), 1, 0, 3, 0, 5, 0,
              false),
        I(1), I(0), I(3), I(0), I(5), I(0), I(0));
    WORDS(ggml_conv_transpose_1d(ctx, tensor(GGML_TYPE_F16, 3, 4, 6, 1), tensor(GGML_TYPE_F32, 20, 6, 1, 1), 3, 0, 1),
        I(3), I(0), I(1));
    WORDS(ggml_conv_transpose_2d_p0(ctx, tensor(GGML_TYPE_F16, 3, 2, 6, 4), b, 3), I(3));
    WORDS(ggml_pool_1d(ctx, tensor(GGML_TYPE_F32, 20, 6, 1, 1), GGML_OP_POOL_AVG, 4, 4, 2), I(1), I(4), I(4), I(2));
    WORDS(ggml_pool_2d(ctx, tensor(GGML_TYPE_F32, 20, 6, 4, 1), GGML_OP_POOL_AVG, 4, 3, 2, 1, 1.5f, 0.5f), I(1), I(4),
        I(3), I(2), I(1), I(1), I(0));
    WORDS(ggml_upscale(ctx, b, 2), I(2));
    WORDS(ggml_pad(ctx, b, 1, 2, 3, 4), I(0));
}

static void windows_and_attention(void) {
    WORDS(ggml_win_part(ctx, tensor(GGML_TYPE_F32, 3, 10, 7, 1), 4), I(3), I(2), I(4));
    WORDS(ggml_win_unpart(ctx, tensor(GGML_TYPE_F32, 3, 4, 4, 6), 10, 7, 4), I(4));
    WORDS(ggml_get_rel_pos(ctx, tensor(GGML_TYPE_F16, 3, 7, 1, 1), 4, 4), I(0));
    struct ggml_tensor * x = tensor(GGML_TYPE_F32, 9, 8, 5, 1);
    struct ggml_tensor * pw = tensor(GGML_TYPE_F32, 3, 2, 4, 5);
    struct ggml_tensor * ph = tensor(GGML_TYPE_F32, 3, 2, 4, 5);
    WORDS(ggml_add_rel_pos(ctx, x, pw, ph), I(0));
    const struct ggml_tensor * r = ggml_add_rel_pos_inplace(ctx, x, pw, ph);
    WORDS(r, I(1));
    CHECK(r->src[0] == x && r->src[1] == pw && r->src[2] == ph && r->src[3] == NULL);

    struct ggml_tensor * q = tensor(GGML_TYPE_F32, 3, 3, 4, 1);
    struct ggml_tensor * k = tensor(GGML_TYPE_F32, 3, 5, 4, 1);
    struct ggml_tensor * v = tensor(GGML_TYPE_F32, 5, 3, 4, 1);
    r = ggml_flash_attn(ctx, q, k, v, true);
    WORDS(r, I(1));
    WORDS(ggml_flash_attn(ctx, q, k, v, false), I(0));
    CHECK(r->src[0] == q && r->src[1] == k && r->src[2] == v && r->src[3] == NULL);
    r = ggml_flash_attn_back(ctx, q, k, v, q, true);
    WORDS(r, I(1));
    CHECK(r->src[0] == q && r->src[1] == k && r->src[2] == v && r->src[3] == q);
    // 27 + 45 + 45 elements, and each part begins at a multiple of 16 bytes
    r = ggml_flash_attn_back(ctx, tensor(GGML_TYPE_F32, 3, 3, 3, 1), tensor(GGML_TYPE_F32, 3, 5, 3, 1),
        tensor(GGML_TYPE_F32, 5, 3, 3, 1), tensor(GGML_TYPE_F32, 3, 3, 3, 1), false);
    CHECK_INT(r->ne[0], 28 + 48 + 48);
    struct ggml_tensor *a = tensor(GGML_TYPE_F16, 8, 3, 1, 1), *b0 = tensor(GGML_TYPE_F16, 8, 5, 1, 1),
                       *b1 = tensor(GGML_TYPE_F32, 5, 1, 1, 1);
    struct ggml_tensor *c0 = tensor(GGML_TYPE_F16, 5, 8, 1, 1), *c1 = tensor(GGML_TYPE_F32, 8, 1, 1, 1);
    r = ggml_flash_ff(ctx, a, b0, b1, c0, c1);
    CHECK(r->src[0] == a && r->src[1] == b0 && r->src[2] == b1 && r->src[3] == c0 && r->src[4] == c1 &&
          r->src[5] == NULL);
}

static void experts(void) {
    struct ggml_tensor * as[8];
    for (int i = 0; i < 8; i++) {
        as[i] = tensor(GGML_TYPE_F16, 8, 5, 1, 1);
    }
    struct ggml_tensor * ids = tensor(GGML_TYPE_I32, 4, 7, 1, 1);
    struct ggml_tensor * b = tensor(GGML_TYPE_F32, 8, 7, 1, 1);
    struct ggml_tensor * node = ggml_mul_mat_id(ctx, as, 8, ids, 3, b);
    WORDS(node, I(3), I(8));
    CHECK(node->src[0] == ids && node->src[1] == b);
    for (int i = 0; i < 8; i++) {
        CHECK(node->src[2 + i] == as[i]);
    }
    CHECK_INT(ggml_mul_mat_set_prec(node, GGML_PREC_F32), GGML_STATUS_SUCCESS); // in addition to id and n_as
    CHECK_INT(node->op_params[0], 3);
    CHECK_INT(node->op_params[1], 8);
    node = ggml_mul_mat_id(ctx, as, 2, ids, 0, b);
    WORDS(node, I(0), I(2));
    CHECK(node->src[3] == as[1] && node->src[4] == NULL);
    WORDS(ggml_mul_mat(ctx, as[0], b), I(0));
    as[2]->grad = ggml_dup_tensor(ctx, as[2]);
    CHECK(ggml_mul_mat_id(ctx, as, 2, ids, 0, b)->grad == NULL);
    CHECK(ggml_mul_mat_id(ctx, as, 3, ids, 0, b)->grad != NULL); // the result has the gradient of any source
}

// ---------------------------------------------------------------------------------------------------- user's functions

static void rows_1(const int n, float * y, const float * x) { (void) n, (void) y, (void) x; }

static void whole_2(struct ggml_tensor * dst, const struct ggml_tensor * a, const struct ggml_tensor * b) {
    (void) dst, (void) a, (void) b;
}

static void task_1(struct ggml_tensor * dst, const struct ggml_tensor * a, int ith, int nth, void * userdata) {
    (void) dst, (void) a, (void) ith, (void) nth, (void) userdata;
}

static void task_3(struct ggml_tensor * dst, const struct ggml_tensor * a, const struct ggml_tensor * b,
    const struct ggml_tensor * c, int ith, int nth, void * userdata) {
    (void) dst, (void) a, (void) b, (void) c, (void) ith, (void) nth, (void) userdata;
}

static void task_any(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    (void) dst, (void) ith, (void) nth, (void) userdata;
}

struct params_1 {
    ggml_custom1_op_t fun;
    int n_tasks;
    void * userdata;
};

struct params_any {
    ggml_custom_op_t fun;
    int n_tasks;
    void * userdata;
};

struct params_3 {
    ggml_custom3_op_t fun;
    int n_tasks;
    void * userdata;
};

static void custom(void) {
    struct ggml_tensor * a = tensor(GGML_TYPE_F32, 4, 3, 1, 1);
    const struct ggml_tensor * t = ggml_map_unary_f32(ctx, a, rows_1);
    ggml_unary_op_f32_t fun_1;
    memcpy(&fun_1, t->op_params, sizeof(fun_1));
    CHECK(fun_1 == rows_1);
    t = ggml_map_custom2_inplace_f32(ctx, a, a, whole_2);
    ggml_custom2_op_f32_t fun_2;
    memcpy(&fun_2, t->op_params, sizeof(fun_2));
    CHECK(fun_2 == whole_2);

    int datum;
    struct params_1 p1;
    t = ggml_map_custom1(ctx, a, task_1, 5, &datum);
    memcpy(&p1, t->op_params, sizeof(p1));
    CHECK(p1.fun == task_1 && p1.n_tasks == 5 && p1.userdata == &datum);
    struct params_3 p3;
    t = ggml_map_custom3_inplace(ctx, a, a, a, task_3, GGML_N_TASKS_MAX, &datum);
    memcpy(&p3, t->op_params, sizeof(p3));
    CHECK(p3.fun == task_3 && p3.n_tasks == -1 && p3.userdata == &datum);
    CHECK(t->src[0] == a && t->src[1] == a && t->src[2] == a);
    // the same call gives the same bytes, including padding
    CHECK(memcmp(ggml_map_custom1(ctx, a, task_1, 5, &datum)->op_params,
              ggml_map_custom1(ctx, a, task_1, 5, &datum)->op_params, 64) == 0);

    // any number of sources in the first slots, and a result of any shape
    struct ggml_tensor * const all[] = { a, a, tensor(GGML_TYPE_I32, 7, 1, 1, 1), a,
        tensor(GGML_TYPE_Q8_0, 32, 1, 1, 1), a, a, a, a, tensor(GGML_TYPE_F16, 1, 1, 1, 1) };
    const int64_t ne[4] = { 2, 3, 1, 9 };
    struct params_any params = { 0 };
    for (int n = 0; n <= 10; n++) {
        for (int n_dims = 1; n_dims <= 4; n_dims++) {
            t = ggml_custom(ctx, GGML_TYPE_I16, ne, n_dims, n > 0 ? all : NULL, n, task_any, 2, &datum);
            REQUIRE(t != NULL);
            memcpy(&params, t->op_params, sizeof(params));
            CHECK(params.fun == task_any && params.n_tasks == 2 && params.userdata == &datum);
            CHECK(t->op == GGML_OP_CUSTOM && t->type == GGML_TYPE_I16 && gb_tensor_ndim(t) == n_dims);
            for (int d = 0; d < 4; d++) {
                CHECK_INT(t->ne[d], d < n_dims ? ne[d] : 1);
            }
            for (int i = 0; i < GGML_MAX_SRC; i++) {
                CHECK(t->src[i] == (i < n ? all[i] : NULL));
            }
        }
    }
}

// ------------------------------------------------------------------------------------------------------- names, copies

static void names(void) {
    struct ggml_tensor * a = tensor(GGML_TYPE_F32, 4, 3, 2, 1);
    struct ggml_tensor * b = ggml_set_name(tensor(GGML_TYPE_F16, 12, 2, 1, 1), "cache");
    struct ggml_tensor * n = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 24);
    CHECK_STR(ggml_reshape_1d(ctx, a, 24)->name, "a (reshaped)");
    CHECK_STR(ggml_reshape(ctx, a, b)->name, "a (reshaped)");
    CHECK_STR(ggml_view_1d(ctx, a, 3, 0)->name, "a (view)");
    CHECK_STR(ggml_view_4d(ctx, a, 1, 1, 1, 1, 0, 0, 0, 0)->name, "a (view)");
    CHECK_STR(ggml_permute(ctx, a, 1, 0, 2, 3)->name, "a (permuted)");
    CHECK_STR(ggml_transpose(ctx, a)->name, "a (transposed)");
    CHECK_STR(ggml_transpose(ctx, ggml_transpose(ctx, a))->name, "a (transposed) (transposed)");
    CHECK_STR(ggml_relu_inplace(ctx, a)->name, "a (view)");
    CHECK_STR(ggml_cont(ctx, a)->name, "a (cont)");
    CHECK_STR(ggml_cpy(ctx, a, b)->name, "cache (copy of a)");
    CHECK_STR(ggml_cpy(ctx, a, n)->name, "a (copy)");
    CHECK_STR(ggml_cast(ctx, a, GGML_TYPE_F16)->name, "a (copy)");
    CHECK_STR(ggml_transpose(ctx, ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 1))->name, "");
    CHECK_STR(ggml_top_k(ctx, a, 2)->name, "");
    ggml_set_name(a, "a name of sixty-three bytes, which is as long as names can be ...");
    CHECK_INT(strlen(a->name), 63);
    CHECK_STR(ggml_transpose(ctx, a)->name, a->name); // cut
    ggml_set_name(a, "a name of fifty-five bytes, so that the suffix is cut..");
    CHECK_STR(ggml_transpose(ctx, a)->name, "a name of fifty-five bytes, so that the suffix is cut.. (transp");
}

static void copies(void) {
    struct ggml_tensor * a = tensor(GGML_TYPE_F32, 4, 3, 2, 1);
    struct ggml_tensor * big = tensor(GGML_TYPE_F16, 12, 5, 1, 1);
    struct ggml_tensor * b = ggml_view_2d(ctx, big, 12, 2, big->nb[1], big->nb[1]);
    struct ggml_tensor * node = ggml_cpy(ctx, a, b);
    CHECK(node->src[0] == a && node->src[1] == b && node->src[2] == NULL);
    CHECK(node->view_src == big);
    CHECK_INT(node->view_offs, 24);
    CHECK_INT(node->type, GGML_TYPE_F16);
    CHECK(memcmp(node->nb, b->nb, sizeof(b->nb)) == 0);

    node = ggml_cast(ctx, a, GGML_TYPE_BF16);
    CHECK(node->src[0] == a && node->src[1] == node && node->view_src == NULL);
    CHECK_INT(node->nb[3], 48);
    node = ggml_cont(ctx, ggml_transpose(ctx, a));
    CHECK(node->view_src == NULL);
    CHECK_INT(node->ne[0], 3);
    CHECK_INT(node->nb[1], 12);

    struct ggml_tensor * v = tensor(GGML_TYPE_I32, 3, 1, 1, 1);
    struct ggml_tensor * s = tensor(GGML_TYPE_F32, 4, 9, 1, 1);
    node = ggml_get_rows_back(ctx, ggml_reshape_2d(ctx, ggml_view_1d(ctx, a, 12, 0), 4, 3), v, s);
    CHECK(node->src[1] == v && node->src[2] == NULL); // the third source only gives the shape
    CHECK_INT(ggml_get_rows(ctx, tensor(GGML_TYPE_I32, 4, 9, 1, 1), v)->type, GGML_TYPE_I32);
    CHECK_INT(ggml_get_rows(ctx, tensor(GGML_TYPE_Q4_0, 32, 9, 1, 1), v)->type, GGML_TYPE_F32);
    CHECK(ggml_repeat(ctx, s, s)->op == GGML_OP_REPEAT); // also for equal shapes

    const struct ggml_tensor * top = ggml_top_k(ctx, a, 2);
    CHECK(top->src[0]->op == GGML_OP_ARGSORT && top->src[0]->op_params[0] == GGML_SORT_DESC &&
          top->view_src == top->src[0]);
    CHECK(top->nb[1] == 16 && top->nb[2] == 48 && top->nb[3] == 96);
}

IN_CONTEXT(elementwise, true)
IN_CONTEXT(regions, true)
IN_CONTEXT(norms_and_masks, true)
IN_CONTEXT(ropes, true)
IN_CONTEXT(yarn_corr_dims, true)
IN_CONTEXT(convolution_and_pooling, true)
IN_CONTEXT(windows_and_attention, true)
IN_CONTEXT(experts, true)
IN_CONTEXT(custom, true)
IN_CONTEXT(names, true)
IN_CONTEXT(copies, true)

TEST_MAIN(RUN(elementwise), RUN(regions), RUN(norms_and_masks), RUN(ropes), RUN(yarn_corr_dims),
    RUN(convolution_and_pooling), RUN(windows_and_attention), RUN(experts), RUN(custom), RUN(names), RUN(copies))
