// Every operator can be stopped inside a long node: it polls the abort callback at short intervals.
// When the callback returns true, all threads skip the remaining work. No thread waits forever, and
// the next run gives the bits of an undisturbed run.
#include "test.h"

#include <stdatomic.h>

#include "base/env.h"
#include "cpu/cpu.h"
#include "cpu/fuse/fusions.h"
#include "cpu/kernels/kernels.h"
#include "cpu/ops/ops.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__) || defined(GB_TEST_EMULATED)
#    define SLOW 1
#else
#    define SLOW 0
#endif

// The longest processor time between two polls, without sanitizers and emulators.
enum { THREADS = 4, NODES = 8, LONGEST_NS = 60000000 };

static struct ggml_context * ctx;
static struct gb_cpu_pool * pool;
static uint32_t state;

// -------------------------------------------------------------------------------------------------------------- graphs

static struct ggml_tensor * filled(enum ggml_type type, int64_t n0, int64_t n1, int64_t n2, int64_t n3) {
    struct ggml_tensor * t = ggml_new_tensor_4d(ctx, type, n0, n1, n2, n3);
    if (t == NULL) {
        fprintf(stderr, "no tensor: %s\n", ggml_last_error());
        exit(1);
    }
    if (type == GGML_TYPE_F32) {
        for (int64_t i = 0; i < ggml_nelements(t); i++) {
            state = state * 1664525 + 1013904223;
            ((float *) t->data)[i] = (float) (state >> 8) / (1 << 24) + 0.25f;
        }
    } else {
        memset(t->data, 0x2a, ggml_nbytes(t)); // a small number in half precision: scales of quantized blocks
    }
    return t;
}

static struct ggml_tensor * floats(int64_t n0, int64_t n1, int64_t n2, int64_t n3) {
    return filled(GGML_TYPE_F32, n0, n1, n2, n3);
}

static struct ggml_tensor * indices(int64_t n, int32_t limit) {
    struct ggml_tensor * t = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, n);
    for (int64_t i = 0; i < n; i++) {
        ((int32_t *) t->data)[i] = (int32_t) (i * 7 % limit);
    }
    return t;
}

static void user_unary(int n, float * y, const float * x) {
    for (int i = 0; i < n; i++) {
        y[i] = 2 * x[i];
    }
}

static void user_binary(int n, float * z, const float * x, const float * y) {
    for (int i = 0; i < n; i++) {
        z[i] = x[i] + y[i];
    }
}

static struct ggml_tensor * unary(struct ggml_tensor * a) { return ggml_silu(ctx, a); }

#define BIG floats(1024, 512, 2, 1)
#define PRODUCT(w_type, k, m, n) ggml_mul_mat(ctx, filled(w_type, k, m, 1, 1), floats(k, n, 1, 1))

static struct ggml_tensor * experts(void) {
    struct ggml_tensor * as[2] = { floats(512, 512, 1, 1), floats(512, 512, 1, 1) };
    struct ggml_tensor * ids = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, 2, 200);
    for (int i = 0; i < 400; i++) {
        ((int32_t *) ids->data)[i] = i % 3 == 0;
    }
    return ggml_mul_mat_id(ctx, as, 2, ids, 1, floats(512, 200, 1, 1));
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
static struct ggml_tensor * map_unary(void) { return ggml_map_unary_f32(ctx, floats(64, 200, 1, 1), user_unary); }
static struct ggml_tensor * map_binary(void) {
    return ggml_map_binary_f32(ctx, floats(64, 200, 1, 1), floats(64, 200, 1, 1), user_binary);
}
#pragma GCC diagnostic pop

static struct ggml_tensor * fused_rows(void) {
    return ggml_soft_max(ctx, ggml_scale(ctx, ggml_rms_norm(ctx, BIG, 1e-5f), 0.5f));
}
static struct ggml_tensor * fused_product(void) {
    return ggml_relu(ctx, ggml_add(ctx, PRODUCT(GGML_TYPE_F32, 512, 768, 96), floats(768, 1, 1, 1)));
}

// A node in place that computes into memory of its own, so that it can be computed again.
static struct ggml_tensor * beside(struct ggml_tensor * node) {
    node->data = floats(node->ne[0], node->ne[1], node->ne[2], node->ne[3])->data;
    node->view_src = NULL;
    return node;
}

static struct ggml_tensor * adamw(void) {
    struct ggml_tensor * node = ggml_opt_step_adamw(ctx, BIG, BIG, BIG, BIG, floats(7, 1, 1, 1));
    node->src[1] = node->src[1]->src[0]; // the means as they are
    node->src[2] = node->src[2]->src[0];
    return beside(node);
}

static struct ggml_tensor * attention_back(void) {
    struct ggml_tensor * q = floats(64, 48, 4, 1);
    return ggml_flash_attn_back(ctx, q, floats(64, 256, 4, 1), floats(256, 64, 4, 1), floats(64, 48, 4, 1), true);
}

// The tensors of a computation. Each node has its own memory.
#define CASES(X)                                                                                                       \
    X(dup, ggml_dup(ctx, floats(1024, 4096, 1, 1)))                                                                    \
    X(cpy, ggml_cast(ctx, BIG, GGML_TYPE_F16))                                                                         \
    X(cpy_quantizing, ggml_cast(ctx, floats(256, 16, 1, 1), GGML_TYPE_Q3_K))                                           \
    X(cont, ggml_cont(ctx, ggml_permute(ctx, BIG, 1, 0, 2, 3)))                                                        \
    X(cont_strided, ggml_cont(ctx, ggml_permute(ctx, floats(3, 512, 512, 1), 1, 2, 0, 3)))                             \
    X(add, ggml_add(ctx, BIG, floats(1024, 512, 2, 1)))                                                                \
    X(add_repeating, ggml_add(ctx, BIG, floats(1, 512, 1, 1)))                                                         \
    X(add_quantized, ggml_add(ctx, filled(GGML_TYPE_Q4_1, 256, 64, 1, 1), floats(256, 64, 1, 1)))                      \
    X(add1, ggml_add1(ctx, BIG, floats(1, 1, 1, 1)))                                                                   \
    X(compare, ggml_compare(ctx, BIG, floats(1024, 512, 2, 1), GGML_COMPARE_LESS))                                     \
    X(where, ggml_where(ctx, BIG, floats(1024, 512, 2, 1), floats(1, 512, 1, 1)))                                      \
    X(where_f16, ggml_where(ctx, BIG, filled(GGML_TYPE_F16, 1024, 512, 2, 1), filled(GGML_TYPE_F16, 1024, 1, 1, 1)))   \
    X(acc, ggml_acc(ctx, BIG, floats(512, 512, 1, 1), 4096, 4096 * 512, 4096 * 1024, 0))                               \
    X(sub, ggml_sub(ctx, BIG, floats(1024, 512, 2, 1)))                                                                \
    X(mul, ggml_mul(ctx, BIG, floats(1024, 1, 1, 1)))                                                                  \
    X(div, ggml_div(ctx, BIG, floats(1024, 512, 2, 1)))                                                                \
    X(sqr, ggml_sqr(ctx, BIG))                                                                                         \
    X(sqrt, ggml_sqrt(ctx, BIG))                                                                                       \
    X(log, ggml_log(ctx, BIG))                                                                                         \
    X(sum, ggml_sum(ctx, BIG))                                                                                         \
    X(sum_rows, ggml_sum_rows(ctx, BIG))                                                                               \
    X(sum_long_rows, ggml_sum_rows(ctx, floats(1 << 19, 2, 1, 1)))                                                     \
    X(mean, ggml_mean(ctx, BIG))                                                                                       \
    X(argmax, ggml_argmax(ctx, floats(1024, 1024, 1, 1)))                                                              \
    X(repeat, ggml_repeat(ctx, floats(16, 512, 1, 1), floats(1024, 512, 2, 1)))                                        \
    X(repeat_back, ggml_repeat_back(ctx, BIG, floats(1024, 2, 1, 1)))                                                  \
    X(repeat_back_to_one, ggml_repeat_back(ctx, BIG, floats(1, 2, 1, 1)))                                              \
    X(concat, ggml_concat(ctx, BIG, floats(1024, 512, 2, 1)))                                                          \
    X(silu_back, ggml_silu_back(ctx, BIG, floats(1024, 512, 2, 1)))                                                    \
    X(norm, ggml_norm(ctx, BIG, 1e-5f))                                                                                \
    X(rms_norm, ggml_rms_norm(ctx, BIG, 1e-5f))                                                                        \
    X(rms_norm_back, ggml_rms_norm_back(ctx, BIG, floats(1024, 512, 2, 1), 1e-5f))                                     \
    X(rms_norm_back_long_row, ggml_rms_norm_back(ctx, floats(1 << 19, 1, 1, 1), floats(1 << 19, 1, 1, 1), 1e-5f))      \
    X(group_norm_long_row, ggml_group_norm(ctx, floats(1 << 19, 1, 1, 1), 1))                                          \
    X(group_norm, ggml_group_norm(ctx, floats(128, 128, 64, 1), 4))                                                    \
    X(product, PRODUCT(GGML_TYPE_F32, 768, 512, 200))                                                                  \
    X(product_long, PRODUCT(GGML_TYPE_F32, 20000, 40, 70))                                                             \
    X(product_f16, PRODUCT(GGML_TYPE_F16, 768, 512, 200))                                                              \
    X(product_bf16, PRODUCT(GGML_TYPE_BF16, 768, 512, 200))                                                            \
    X(product_q4_0, PRODUCT(GGML_TYPE_Q4_0, 768, 512, 200))                                                            \
    X(product_q6_k, PRODUCT(GGML_TYPE_Q6_K, 768, 512, 200))                                                            \
    X(product_one_row, PRODUCT(GGML_TYPE_F32, 1024, 4000, 1))                                                          \
    X(product_few_rows, PRODUCT(GGML_TYPE_F16, 1024, 3000, 5))                                                         \
    X(product_q4_k_one_row, PRODUCT(GGML_TYPE_Q4_K, 1024, 8000, 1))                                                    \
    X(product_q5_0_few_rows, PRODUCT(GGML_TYPE_Q5_0, 1024, 4000, 3))                                                   \
    X(product_q3_k_more_rows, PRODUCT(GGML_TYPE_Q3_K, 1024, 2000, 12))                                                 \
    X(product_q8_0_short, PRODUCT(GGML_TYPE_Q8_0, 64, 80000, 2))                                                       \
    X(product_iq_one_row, PRODUCT(GGML_TYPE_IQ4_NL, 1024, 8000, 1))                                                    \
    X(product_half_halves,                                                                                             \
        ggml_mul_mat(ctx, filled(GGML_TYPE_F16, 512, 4000, 1, 1), filled(GGML_TYPE_F16, 512, 2, 1, 1)))                \
    X(mul_mat_experts, ggml_mul_mat_experts(ctx, floats(512, 200, 8, 1), floats(512, 1, 200, 1),                       \
                           ggml_reshape_2d(ctx, indices(400, 8), 2, 200)))                                             \
    X(add_id, ggml_add_id(ctx, floats(1024, 2, 500, 1), floats(1024, 8, 1, 1),                                         \
                  ggml_reshape_2d(ctx, indices(1000, 8), 2, 500)))                                                     \
    X(flash_attn_ext,                                                                                                  \
        ggml_flash_attn_ext(ctx, floats(64, 64, 4, 1), floats(64, 2000, 4, 1), floats(64, 2000, 4, 1), NULL, 1, 0, 0)) \
    X(glu, ggml_glu(ctx, BIG, GGML_GLU_OP_SWIGLU, false))                                                              \
    X(xielu, ggml_xielu(ctx, BIG, 0.5f, 0.25f, 0.5f, -1e-6f))                                                          \
    X(scale_bias, ggml_scale_bias(ctx, BIG, 2, 1))                                                                     \
    X(l2_norm, ggml_l2_norm(ctx, BIG, 1e-6f))                                                                          \
    X(top_k, ggml_top_k_unsorted(ctx, floats(64, 4000, 1, 1), 8))                                                      \
    X(cumsum, ggml_cumsum(ctx, BIG))                                                                                   \
    X(tri, ggml_tri(ctx, floats(512, 512, 4, 1), GGML_TRI_TYPE_LOWER))                                                 \
    X(solve_tri, ggml_solve_tri(ctx, floats(64, 64, 64, 1), floats(64, 64, 64, 1), true, true, false))                 \
    X(fill, ggml_fill(ctx, BIG, 2))                                                                                    \
    X(arange, ggml_arange(ctx, 0, 1 << 20, 1))                                                                         \
    X(timestep_embedding, ggml_timestep_embedding(ctx, floats(1000, 1, 1, 1), 512, 10000))                             \
    X(ssm_conv, ggml_ssm_conv(ctx, floats(515, 512, 2, 1), floats(4, 512, 1, 1)))                                      \
    X(ssm_scan, ggml_ssm_scan(ctx, floats(16, 64, 32, 2), floats(64, 32, 64, 2), floats(32, 64, 2, 1),                 \
                    floats(1, 32, 1, 1), floats(16, 4, 64, 2), floats(16, 4, 64, 2), indices(2, 2), 1))                \
    X(gated_delta_net, ggml_gated_delta_net(ctx, floats(64, 4, 64, 1), floats(64, 4, 64, 1), floats(64, 8, 64, 1),     \
                           floats(1, 8, 64, 1), floats(1, 8, 64, 1), floats(64, 64, 8, 1), 1))                         \
    X(rwkv_wkv6, ggml_rwkv_wkv6(ctx, floats(64, 8, 64, 1), floats(64, 8, 64, 1), floats(64, 8, 64, 1),                 \
                     floats(64, 8, 1, 1), floats(64, 8, 64, 1), floats(64 * 64 * 8, 1, 1, 1)))                         \
    X(rwkv_wkv7, ggml_rwkv_wkv7(ctx, floats(64, 8, 64, 1), floats(64, 8, 64, 1), floats(64, 8, 64, 1),                 \
                     floats(64, 8, 64, 1), floats(64, 8, 64, 1), floats(64, 8, 64, 1), floats(64 * 64 * 8, 1, 1, 1)))  \
    X(gated_linear_attn, ggml_gated_linear_attn(ctx, floats(64, 8, 64, 1), floats(64, 8, 64, 1), floats(64, 8, 64, 1), \
                             floats(64, 8, 64, 1), floats(64 * 64 * 8, 1, 1, 1), 0.5f))                                \
    X(interpolate, ggml_interpolate(ctx, floats(256, 256, 4, 1), 512, 512, 4, 1, GGML_SCALE_MODE_BILINEAR))            \
    X(pad_ext, ggml_pad_ext(ctx, BIG, 1, 2, 0, 3, 0, 0, 0, 0))                                                         \
    X(pad_reflect_1d, ggml_pad_reflect_1d(ctx, BIG, 3, 2))                                                             \
    X(roll, ggml_roll(ctx, BIG, 1, -2, 0, 0))                                                                          \
    X(col2im_1d, ggml_col2im_1d(ctx, floats(16 * 64, 1000, 1, 1), 8, 64, 4))                                           \
    X(im2col_back, ggml_im2col_back(ctx, floats(3, 3, 8, 8), floats(72, 100, 100, 1),                                  \
                       (const int64_t[]){ 100, 100, 8, 1 }, 1, 1, 1, 1, 1, 1, true))                                   \
    X(opt_step_sgd, beside(ggml_opt_step_sgd(ctx, BIG, BIG, floats(2, 1, 1, 1))))                                      \
    X(opt_step_adamw, adamw())                                                                                         \
    X(im2col_3d, ggml_im2col_3d(ctx, filled(GGML_TYPE_F16, 3, 3, 3, 8), floats(40, 40, 20, 4), 4, 1, 1, 1, 1, 1, 1, 1, \
                     1, 1, GGML_TYPE_F16))                                                                             \
    X(mul_mat_id, experts())                                                                                           \
    X(out_prod, ggml_out_prod(ctx, floats(256, 512, 1, 1), floats(300, 512, 1, 1)))                                    \
    X(out_prod_quantized, ggml_out_prod(ctx, filled(GGML_TYPE_Q4_0, 256, 512, 1, 1), floats(300, 512, 1, 1)))          \
    X(scale, ggml_scale(ctx, BIG, 0.5f))                                                                               \
    X(set, ggml_set(ctx, BIG, floats(512, 512, 1, 1), 4096, 4096 * 512, 4096 * 1024, 0))                               \
    X(get_rows, ggml_get_rows(ctx, floats(1024, 64, 1, 1), indices(1000, 64)))                                         \
    X(get_rows_quantized, ggml_get_rows(ctx, filled(GGML_TYPE_Q5_K, 1024, 64, 1, 1), indices(1000, 64)))               \
    X(get_rows_back, ggml_get_rows_back(ctx, floats(1024, 1000, 1, 1), indices(1000, 64), floats(1024, 64, 1, 1)))     \
    X(set_rows, ggml_set_rows(ctx, floats(1024, 1000, 1, 1), floats(1024, 1000, 1, 1), indices(1000, 1000)))           \
    X(set_single_elements,                                                                                             \
        ggml_set_rows(ctx, floats(1, 1 << 20, 1, 1), floats(1, 1 << 20, 1, 1), indices(1 << 20, 1 << 20)))             \
    X(diag, ggml_diag(ctx, floats(1024, 1, 2, 1)))                                                                     \
    X(diag_mask_inf, ggml_diag_mask_inf(ctx, BIG, 3))                                                                  \
    X(diag_mask_zero, ggml_diag_mask_zero(ctx, BIG, 3))                                                                \
    X(soft_max, ggml_soft_max(ctx, BIG))                                                                               \
    X(soft_max_masked, ggml_soft_max_ext(ctx, BIG, floats(1024, 512, 1, 1), 0.5f))                                     \
    X(soft_max_back, ggml_soft_max_back(ctx, BIG, floats(1024, 512, 2, 1)))                                            \
    X(rope, ggml_rope(ctx, floats(128, 16, 512, 1), indices(512, 512), 128, 0, 0))                                     \
    X(rope_neox, ggml_rope(ctx, floats(128, 16, 512, 1), indices(512, 512), 128, 2, 0))                                \
    X(rope_back,                                                                                                       \
        ggml_rope_back(ctx, floats(128, 16, 512, 1), indices(512, 512), 128, 0, 0, 0, 10000, 1, 0, 1, 0, 0, 0, false)) \
    X(im2col, ggml_im2col(ctx, floats(3, 3, 8, 8), floats(100, 100, 8, 1), 1, 1, 1, 1, 1, 1, true))                    \
    X(conv_2d, ggml_conv_2d_direct(ctx, floats(3, 3, 64, 64), floats(100, 100, 64, 1), 1, 1, 1, 1, 1, 1))              \
    X(conv_2d_dw, ggml_conv_2d_dw_direct(ctx, floats(3, 3, 1, 64), floats(200, 200, 64, 1), 1, 1, 1, 1, 1, 1))         \
    X(conv_2d_gathered, ggml_conv_2d_direct(ctx, floats(3, 3, 16, 16), floats(100, 100, 16, 1), 1, 1, 1 << 14,         \
                            1 << 14, 1 << 14, 1 << 14))                                                                \
    X(conv_3d,                                                                                                         \
        ggml_conv_3d_direct(ctx, floats(3, 3, 3, 256), floats(50, 50, 20, 16), 1, 1, 1, 1, 1, 1, 1, 1, 1, 16, 1, 16))  \
    X(conv_transpose_1d, ggml_conv_transpose_1d(ctx, floats(8, 32, 64, 1), floats(4000, 64, 1, 1), 4, 0, 1))           \
    X(conv_transpose_2d,                                                                                               \
        ggml_conv_transpose_2d_p0(ctx, filled(GGML_TYPE_F16, 2, 2, 32, 64), floats(100, 100, 64, 1), 2))               \
    X(pool_1d, ggml_pool_1d(ctx, floats(1024, 2048, 1, 1), GGML_OP_POOL_AVG, 2, 2, 0))                                 \
    X(pool_1d_long_row, ggml_pool_1d(ctx, floats(1 << 19, 1, 1, 1), GGML_OP_POOL_AVG, 2, 2, 0))                        \
    X(pool_1d_wide, ggml_pool_1d(ctx, floats(1 << 14, 1, 1, 1), GGML_OP_POOL_MAX, 4000, 16, 0))                        \
    X(pool_2d, ggml_pool_2d(ctx, floats(512, 512, 4, 1), GGML_OP_POOL_MAX, 2, 2, 2, 2, 0, 0))                          \
    X(upscale, ggml_upscale(ctx, floats(512, 512, 1, 1), 2))                                                           \
    X(pad, ggml_pad(ctx, BIG, 1, 1, 0, 0))                                                                             \
    X(argsort, ggml_argsort(ctx, floats(64, 1000, 1, 1), GGML_SORT_ASC))                                               \
    X(argsort_long, ggml_argsort(ctx, floats(100000, 1, 1, 1), GGML_SORT_DESC))                                        \
    X(leaky_relu, ggml_leaky_relu(ctx, BIG, 0.1f, false))                                                              \
    X(flash_attn_tiled,                                                                                                \
        ggml_flash_attn(ctx, floats(64, 300, 4, 1), floats(64, 600, 4, 1), floats(600, 64, 4, 1), true))               \
    X(flash_attn_by_rows,                                                                                              \
        ggml_flash_attn(ctx, floats(64, 4, 8, 1), floats(64, 2000, 8, 1), floats(2000, 64, 8, 1), false))              \
    X(flash_ff, ggml_flash_ff(ctx, floats(256, 40, 1, 1), floats(256, 512, 1, 1), floats(512, 1, 1, 1),                \
                    floats(512, 256, 1, 1), floats(256, 1, 1, 1)))                                                     \
    X(flash_attn_back, attention_back())                                                                               \
    X(win_part, ggml_win_part(ctx, floats(64, 128, 128, 1), 8))                                                        \
    X(win_unpart, ggml_win_unpart(ctx, floats(64, 8, 8, 256), 128, 128, 8))                                            \
    X(get_rel_pos, ggml_get_rel_pos(ctx, filled(GGML_TYPE_F16, 64, 255, 1, 1), 128, 128))                              \
    X(add_rel_pos, ggml_add_rel_pos(ctx, floats(1024, 1024, 1, 1), floats(32, 32, 32, 1), floats(32, 32, 32, 1)))      \
    X(unary, unary(BIG))                                                                                               \
    X(unary_f16, unary(filled(GGML_TYPE_F16, 1024, 512, 2, 1)))                                                        \
    X(map_unary, map_unary())                                                                                          \
    X(map_binary, map_binary())                                                                                        \
    X(loss, ggml_cross_entropy_loss(ctx, floats(1024, 512, 1, 1), floats(1024, 512, 1, 1)))                            \
    X(loss_back,                                                                                                       \
        ggml_cross_entropy_loss_back(ctx, floats(1024, 512, 1, 1), floats(1024, 512, 1, 1), floats(1, 1, 1, 1)))       \
    X(loss_long_row, ggml_cross_entropy_loss(ctx, floats(1 << 19, 1, 1, 1), floats(1 << 19, 1, 1, 1)))                 \
    X(loss_given_long_row, ggml_cross_entropy_loss_eps(ctx, floats(1 << 19, 1, 1, 1), floats(1 << 19, 1, 1, 1), 0.0f)) \
    X(loss_back_long_row,                                                                                              \
        ggml_cross_entropy_loss_back(ctx, floats(1 << 19, 1, 1, 1), floats(1 << 19, 1, 1, 1), floats(1, 1, 1, 1)))     \
    X(loss_back_given_long_row, ggml_cross_entropy_loss_eps_back(ctx, floats(1 << 19, 1, 1, 1),                        \
                                    floats(1 << 19, 1, 1, 1), floats(1, 1, 1, 1), 0.0f))                               \
    X(fused_rows, fused_rows())                                                                                        \
    X(fused_product, fused_product())

#define BUILDER(name, node) \
    static struct ggml_tensor * build_##name(void) { return node; }
CASES(BUILDER)

static const struct {
    const char * name;
    struct ggml_tensor * (*build)(void);
} listed[] = {
#define ENTRY(name, node) { #name, build_##name },
    CASES(ENTRY)
};
enum { N_CASES = sizeof(listed) / sizeof(listed[0]) };

// ---------------------------------------------------------------------------------------------------------------- runs

struct questions {
    int n, stop_at;              // stop_at 0: never
    int64_t last_ns, longest_ns; // processor time of the polling thread
};

static bool asked(void * data) {
    struct questions * q = data;
    const int64_t now = gb_thread_time_ns();
    q->longest_ns = q->n > 0 ? GB_MAX(q->longest_ns, now - q->last_ns) : 0;
    q->last_ns = now;
    return ++q->n == q->stop_at;
}

struct list {
    struct ggml_tensor * nodes[NODES];
    int n;
};

static void add_nodes(struct list * l, struct ggml_tensor * t) {
    for (int i = 0; i < GGML_MAX_SRC && t->op != GGML_OP_NONE; i++) {
        if (t->src[i] != NULL && t->src[i] != t) { // the second source of a cast is the cast itself
            add_nodes(l, t->src[i]);
        }
    }
    if (t->op != GGML_OP_NONE) {
        l->nodes[l->n++] = t;
    }
}

static enum ggml_status run(const struct list * l, int n_threads, const struct gb_kernels * kernels,
    struct questions * q) {
    struct gb_cpu_plan * plan = gb_cpu_plan_new(l->nodes, l->n, n_threads);
    if (plan == NULL) {
        return ggml_last_status();
    }
    void * const work = malloc(gb_cpu_plan_work_size(plan) + 1);
    const struct gb_cpu_run how = { kernels, work, asked, q, NULL };
    const enum ggml_status status = gb_cpu_plan_run(plan, pool, &how);
    free(work);
    gb_cpu_plan_free(plan);
    return status;
}

static void spoil(const struct list * l) {
    for (int i = 0; i < l->n; i++) {
        if (l->nodes[i]->view_src == NULL || l->nodes[i]->op == GGML_OP_SET_ROWS) {
            memset(l->nodes[i]->data, 0x77, ggml_nbytes(l->nodes[i]));
        }
    }
}

static bool is_untouched(const struct ggml_tensor * t) { // True if some bytes of the result are unwritten.
    const char * p = t->data;
    for (size_t i = 0; i + 4 <= ggml_nbytes(t); i += 4) {
        if (p[i] == 0x77 && p[i + 1] == 0x77 && p[i + 2] == 0x77 && p[i + 3] == 0x77) {
            return true;
        }
    }
    return false;
}

// Operators that write the whole result first, because they add to it or clear it.
static bool begins_with_all(const struct ggml_tensor * t) {
    return t->op == GGML_OP_ACC || t->op == GGML_OP_SET || t->op == GGML_OP_FLASH_ATTN_BACK ||
           t->op == GGML_OP_GET_ROWS_BACK;
}

static void check_case(int which, const struct gb_level * level) {
    const char * const name = listed[which].name;
    ctx = ggml_init((struct ggml_init_params){ .mem_size = (size_t) 80 << 20 });
    state = 7;
    struct list l = { .n = 0 };
    struct ggml_tensor * const last = listed[which].build();
    if (last == NULL) {
        test_fail(__FILE__, __LINE__, "%s: %s", name, ggml_last_error());
        ggml_free(ctx);
        return;
    }
    add_nodes(&l, last);
    struct questions full = { 0 };
    spoil(&l);
    CHECK_MSG(run(&l, 1, level->kernels, &full) == GGML_STATUS_SUCCESS, "%s: %s", name, ggml_last_error());
    CHECK_MSG(full.n >= 3, "%s, level %s: asked %d times", name, level->name, full.n);
    CHECK_MSG(SLOW || full.longest_ns < LONGEST_NS, "%s, level %s: %lld us without a question", name, level->name,
        (long long) full.longest_ns / 1000);
    if (getenv("TEST_VERBOSE") != NULL) {
        printf("%-8s %-24s %5d questions, at most %6lld us apart\n", level->name, name, full.n,
            (long long) full.longest_ns / 1000);
    }
    const size_t size = ggml_nbytes(last);
    char * const whole = malloc(size);
    memcpy(whole, last->data, size);

    struct questions q = { .stop_at = 2 }; // the first poll is before the run, the second one inside the node
    spoil(&l);
    CHECK_MSG(run(&l, 1, level->kernels, &q) == GGML_STATUS_ABORTED, "%s is not aborted", name);
    CHECK_MSG(q.n == 2, "%s: asked again after it answered \"stop\"", name);
    CHECK_MSG(memcmp(whole, last->data, size) != 0, "%s, level %s: completed all the same", name, level->name);
    CHECK_MSG(begins_with_all(last) || is_untouched(last), "%s, level %s: all of the result was begun", name,
        level->name);

    for (int i = 0; i < (SLOW ? 3 : 6); i++) {  // at any poll, with any team
        state = state * 1664525 + 1013904223;
        struct questions some = { .stop_at = 1 + (int) ((state >> 8) % (unsigned) full.n) };
        const enum ggml_status status = run(&l, 2 + i % (THREADS - 1), level->kernels, &some);
        CHECK_MSG(status == GGML_STATUS_ABORTED || (status == GGML_STATUS_SUCCESS && some.n < some.stop_at), "%s: %s",
            name, ggml_last_error());
    }
    struct questions never = { 0 };
    spoil(&l);
    CHECK_MSG(run(&l, THREADS, level->kernels, &never) == GGML_STATUS_SUCCESS, "%s: %s", name, ggml_last_error());
    CHECK_MSG(memcmp(whole, last->data, size) == 0, "%s, level %s: other bits after an abort", name, level->name);
    ggml_clear_error();
    free(whole);
    ggml_free(ctx);
}

static void every_operator_stops(void) {
    pool = gb_cpu_pool_new(THREADS);
    REQUIRE(pool != NULL);
    for (int l = 0; l < gb_level_count(); l++) {
        const struct gb_level * level = gb_level_at(l);
        for (int i = 0; i < N_CASES && level->usable(); i++) {
            // the lowest and the highest level
            if (l == gb_level_count() - 1 || !gb_level_at(l + 1)->usable() || (l == 0 && !SLOW)) {
                check_case(i, level);
            }
        }
    }
    gb_cpu_pool_free(pool);
}

// A new operator needs a case. A user's function is called once and cannot be interrupted.
static void every_operator_has_a_case(void) {
    bool has[GGML_OP_COUNT] = { false };
    for (int i = 0; i < N_CASES; i++) {
        ctx = ggml_init((struct ggml_init_params){ .mem_size = (size_t) 80 << 20 });
        struct ggml_tensor * const t = listed[i].build();
        has[t != NULL ? t->op : GGML_OP_NONE] = true;
        ggml_free(ctx);
    }
    for (int op = 1; op < GGML_OP_COUNT; op++) {
        struct ggml_tensor node = { .op = (enum ggml_op) op };
        const bool custom = op == GGML_OP_CUSTOM || (op >= GGML_OP_MAP_CUSTOM1_F32 && op <= GGML_OP_MAP_CUSTOM3);
        CHECK_MSG(has[op] || custom || op == GGML_OP_CLAMP || op == GGML_OP_ALIBI || gb_cpu_op_of(&node) == NULL,
            "no case for %s",
            ggml_op_name((enum ggml_op) op)); // users' functions; CLAMP and ALIBI, which share their code
    }
}

// ----------------------------------------------------------------------------------------------------- aborted by time

struct deadline {
    int64_t at_ns;
    int n;
};

static bool is_over(void * data) {
    struct deadline * d = data;
    d->n++;
    return gb_time_ns() >= d->at_ns;
}

// More than ten seconds of work on one thread, stopped after some milliseconds.
static void long_nodes_end_early(void) {
    ctx = ggml_init((struct ggml_init_params){ .mem_size = (size_t) 1 << 30 });
    const int64_t n = SLOW ? 2048 : 4096;
    struct ggml_tensor * a = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, n, n);
    struct ggml_tensor * b = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, n, n);
    struct ggml_tensor * y = ggml_mul_mat(ctx, a, b);
    REQUIRE(y != NULL);
    memset(a->data, 0, ggml_nbytes(a));
    memset(b->data, 0, ggml_nbytes(b));
    struct ggml_cgraph * graph = ggml_new_graph(ctx);
    ggml_build_forward_expand(graph, y);
    for (int n_threads = 1; n_threads <= 3; n_threads++) {
        memset(y->data, 0x77, ggml_nbytes(y));
        struct ggml_cplan plan = ggml_graph_plan(graph, n_threads);
        struct deadline d = { gb_time_ns() + 5000000, 0 };
        plan.work_data = malloc(plan.work_size);
        plan.abort_callback = is_over;
        plan.abort_callback_data = &d;
        CHECK_INT(ggml_graph_compute(graph, &plan), GGML_STATUS_ABORTED);
        CHECK(is_untouched(y));
        CHECK(d.n >= 2);
        free(plan.work_data);
    }
    ggml_clear_error();
    ggml_free(ctx);
    gb_cpu_pools_trim();
}

TEST_MAIN(TEST(every_operator_stops), TEST(every_operator_has_a_case), TEST(long_nodes_end_early))
