// check.h - the shape, type and parameter rules of every operator: one function for each rule set, called by the
// builders (ops_*.c).
//
// If the call is valid, the functions return true. Otherwise they return false and report, as
// "func: a 'w' f32 [128, 64], b 'x' f32 [120, 16]: the broken rule (values)". A NULL operand gives
// false and keeps the message of the failure that made it NULL. The rules hold for every backend. A
// backend's supports_op checks further requirements of its kernels (types, strides). `func` is the
// public builder's name. If `func` is NULL, the question is whether a builder could have made a
// node: nothing is reported, and only shapes and parameters matter (rule.h).
#ifndef GB_TENSOR_CHECK_H
#define GB_TENSOR_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ggml.h"
#include "tensor/numbers.h"

// A tensor that is only read. For this header and the files that include it.
typedef const struct ggml_tensor * gb_ct;

// Operands that only have to exist.
bool gb_check_1(const char * func, gb_ct a);
bool gb_check_2(const char * func, gb_ct a, gb_ct b);
// The operand must not have a gradient either, because the operator has no derivative.
bool gb_check_no_grad(const char * func, gb_ct a);

// views, copies
bool gb_check_reshape(const char * func, gb_ct a, const int64_t ne[4]); // contiguous, equally many elements
bool gb_check_count(const char * func, gb_ct a, const int64_t ne[4]);   // equally many elements
bool gb_check_permute(const char * func, gb_ct a, const int axes[4]);
bool gb_check_cpy(const char * func, gb_ct a, gb_ct b);
bool gb_check_inplace(const char * func, gb_ct a);                   // a can be overwritten by the result
bool gb_check_type(const char * func, gb_ct a, enum ggml_type type); // `type` can have the shape of a
bool gb_check_get_rows(const char * func, gb_ct a, gb_ct b);
bool gb_check_get_rows_back(const char * func, gb_ct a, gb_ct b, gb_ct c);
bool gb_check_set_rows(const char * func, gb_ct a, gb_ct b, gb_ct c);
bool gb_check_diag(const char * func, gb_ct a);

// elementwise
bool gb_check_unary(const char * func, gb_ct a, enum ggml_unary_op op);
bool gb_check_binary(const char * func, gb_ct a, gb_ct b); // b repeats over a
bool gb_check_add_cast(const char * func, gb_ct a, gb_ct b, enum ggml_type type);
bool gb_check_add1(const char * func, gb_ct a, gb_ct b);
bool gb_check_same_shape(const char * func, gb_ct a, gb_ct b);

// A part of a tensor, in bytes: element (i0, i1, i2, i3) is at offset + i0 * element + i1 * nb1 + i2 * nb2 + i3 * nb3.
struct gb_region {
    size_t nb1, nb2, nb3, offset;
};
bool gb_check_acc(const char * func, gb_ct a, gb_ct b, const struct gb_region * region, bool inplace);
bool gb_check_set(const char * func, gb_ct a, gb_ct b, const struct gb_region * region, bool inplace);

// reductions, ordering, repetition
bool gb_check_argmax(const char * func, gb_ct a);
bool gb_check_argsort(const char * func, gb_ct a, enum ggml_sort_order order);
bool gb_check_top_k(const char * func, gb_ct a, int k);
bool gb_check_repeat(const char * func, gb_ct a, gb_ct b);
bool gb_check_repeat_back(const char * func, gb_ct a, gb_ct b);
bool gb_check_concat(const char * func, gb_ct a, gb_ct b);

// matrix products
bool gb_check_mul_mat(const char * func, gb_ct a, gb_ct b);
bool gb_check_mul_mat_id(const char * func, struct ggml_tensor * const as[], int n_as, gb_ct ids, int id, gb_ct b);
bool gb_check_mul_mat_experts(const char * func, gb_ct as, gb_ct b, gb_ct ids);
bool gb_check_add_id(const char * func, gb_ct a, gb_ct b, gb_ct ids);
bool gb_check_out_prod(const char * func, gb_ct a, gb_ct b);

// normalisation, softmax, masks
bool gb_check_norm(const char * func, gb_ct a, float eps); // also RMS_NORM and L2_NORM
bool gb_check_rms_norm_back(const char * func, gb_ct a, gb_ct b, float eps);
bool gb_check_group_norm(const char * func, gb_ct a, int n_groups);
bool gb_check_soft_max(const char * func, gb_ct a, gb_ct mask); // mask may be NULL
bool gb_check_max_bias(const char * func, gb_ct a, gb_ct mask, float max_bias);
// sinks may be NULL.
bool gb_check_sinks(const char * func, gb_ct a, gb_ct sinks, int64_t n_heads);
bool gb_check_soft_max_back(const char * func, gb_ct a, gb_ct b);
bool gb_check_diag_mask(const char * func, gb_ct a, int n_past, bool inplace);
bool gb_check_alibi(const char * func, gb_ct a, int n_head);

// The parameters of a rotation, in the layout of the node's op_params.
struct gb_rope {
    int32_t unused, n_dims, mode, n_ctx, n_orig_ctx;
    float freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow;
    union {
        struct {
            float xpos_base;
            bool xpos_down;
        };
        int32_t sections[4]; // only of the modes that gb_rope_has_sections names
    };
    int32_t n_offs; // only of modes with GGML_ROPE_EXACT
};

// MROPE, VISION, IMROPE: a token has four positions.
static inline bool gb_rope_has_sections(int mode) { return (mode & GGML_ROPE_EXACT) != 0 && (mode & 8) != 0; }

static inline bool gb_rope_is_vision(int mode) { return mode == (GGML_ROPE_EXACT | GGML_ROPE_TYPE_VISION); }

// Pairs of a row that are rotated by the modes with GGML_ROPE_EXACT.
static inline int64_t gb_rope_pairs(int mode, int64_t n_dims) { return gb_rope_is_vision(mode) ? n_dims : n_dims / 2; }

bool gb_check_rope(const char * func, gb_ct a, gb_ct b, gb_ct c, const struct gb_rope * rope); // c may be NULL
bool gb_check_rope_back(const char * func, gb_ct a, gb_ct b, gb_ct c, const struct gb_rope * rope);

// convolution, pooling, resampling
// Strides, paddings and dilations of a convolution. They have 64 bits until they are checked,
// because some come from tensor sizes.
struct gb_conv {
    int64_t s0, s1, p0, p1, d0, d1;
    bool is_2d; // otherwise s1, p1 and d1 are not read
};
// The number of positions of a kernel of k elements along n, with stride s, padding p and dilation
// d. 0 if the kernel does not fit.
int64_t gb_conv_out(int64_t n, int64_t k, int64_t s, int64_t p, int64_t d);
int64_t gb_pool_out(int64_t n, int64_t k, int64_t s, double p);
bool gb_check_im2col(const char * func, gb_ct a, gb_ct b, const struct gb_conv * conv);
// t: the image, whose sizes alone count
bool gb_check_im2col_back(const char * func, gb_ct a, gb_ct b, gb_ct t, const struct gb_conv * conv);
bool gb_check_conv(const char * func, gb_ct a, gb_ct b, const struct gb_conv * conv);
bool gb_check_conv_depthwise(const char * func, gb_ct a, gb_ct b, const struct gb_conv * conv);
// b has `groups` times as many channels as a kernel. The kernels are divided among the groups.
bool gb_check_conv_2d(const char * func, gb_ct a, gb_ct b, const struct gb_conv * conv, int64_t groups);
bool gb_check_conv_2d_dw(const char * func, gb_ct a, gb_ct b, const struct gb_conv * conv);
// A convolution with three axes, whose channels share dimension 3 with kernels and images.
struct gb_conv_3d {
    int s[3], p[3], d[3];
    int channels, batches, channels_out, groups;
};
bool gb_check_conv_3d(const char * func, gb_ct a, gb_ct b, const struct gb_conv_3d * conv);
bool gb_check_conv_1d_grouped(const char * func, gb_ct a, gb_ct b, int64_t groups);
bool gb_check_conv_transpose_1d(const char * func, gb_ct a, gb_ct b, int s0, int p0, int d0);
bool gb_check_conv_transpose_2d(const char * func, gb_ct a, gb_ct b, int stride);
bool gb_check_pool_1d(const char * func, gb_ct a, enum ggml_op_pool op, int k0, int s0, int p0);
bool gb_check_pool_2d(const char * func, gb_ct a, enum ggml_op_pool op, const int k[2], const int s[2],
    const float p[2]);
bool gb_check_upscale(const char * func, gb_ct a, int factor);
bool gb_check_pad(const char * func, gb_ct a, const int p[4]);

// attention, windows
bool gb_check_flash_attn(const char * func, gb_ct q, gb_ct k, gb_ct v);
// The scalars of FLASH_ATTN_EXT.
struct gb_attention_numbers {
    float scale, max_bias, softcap;
};
bool gb_check_flash_attn_ext(const char * func, gb_ct q, gb_ct k, gb_ct v, gb_ct mask,
    const struct gb_attention_numbers * numbers);
bool gb_check_flash_attn_back(const char * func, gb_ct q, gb_ct k, gb_ct v, gb_ct d);
bool gb_check_flash_ff(const char * func, gb_ct a, gb_ct b0, gb_ct b1, gb_ct c0, gb_ct c1);
bool gb_check_win_part(const char * func, gb_ct a, int w);
bool gb_check_win_unpart(const char * func, gb_ct a, int w0, int h0, int w);
bool gb_check_get_rel_pos(const char * func, gb_ct a, int qh, int kh);
bool gb_check_add_rel_pos(const char * func, gb_ct a, gb_ct pw, gb_ct ph);

// user-defined operators: the first n of a, b, c are the operands
bool gb_check_map_rows(const char * func, gb_ct a, gb_ct b, int n, bool has_fun); // F32, same shape
bool gb_check_map_custom(const char * func, gb_ct a, gb_ct b, gb_ct c, int n, bool has_fun, int n_tasks);
// n sources of any kind, and a result of any kind
bool gb_check_result(const char * func, enum ggml_type type, const int64_t * ne, int n_dims);
bool gb_check_custom(const char * func, struct ggml_tensor * const sources[], int n, bool has_fun, int n_tasks);

// losses
bool gb_check_cross_entropy_loss(const char * func, gb_ct a, gb_ct b);
bool gb_check_loss_eps(const char * func, gb_ct a, float eps);
bool gb_check_cross_entropy_loss_back(const char * func, gb_ct a, gb_ct b, gb_ct c);

#endif // GB_TENSOR_CHECK_H
