// ggml-ext.h - additions to the ggml.h of February 2024, which includes this header. Newer
// enumerators of ggml_type, ggml_op and ggml_unary_op are in ggml.h.
#ifndef GGML_EXT_H
#define GGML_EXT_H

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

// cdef: begin

// ----------------------------------------------------------------------------------------------------------------- log

GGML_API void ggml_log_set(ggml_log_callback callback, void * user_data); // process-wide; NULL restores stderr
// discards all messages
GGML_API void ggml_log_discard(enum ggml_log_level level, const char * text, void * user_data);

// ------------------------------------------------------------------------------------------------------------ bfloat16

typedef struct {
    uint16_t bits;
} ggml_bf16_t; // the upper half of a binary32

GGML_API float ggml_bf16_to_fp32(ggml_bf16_t x); // exact
GGML_API ggml_bf16_t ggml_fp32_to_bf16(float x); // to nearest even; NaN stays NaN
GGML_API void ggml_bf16_to_fp32_row(const ggml_bf16_t * x, float * y, int64_t n);
GGML_API void ggml_fp32_to_bf16_row(const float * x, ggml_bf16_t * y, int64_t n);

// -------------------------------------------------------------------------------------------------- inputs and outputs

// Restricts the reuse of a tensor's memory: an input keeps it from the start of the graph, an
// output to its end.
GGML_API enum ggml_status ggml_set_input(struct ggml_tensor * tensor);
GGML_API enum ggml_status ggml_set_output(struct ggml_tensor * tensor);
GGML_API bool ggml_is_input(const struct ggml_tensor * tensor);
GGML_API bool ggml_is_output(const struct ggml_tensor * tensor);

// ----------------------------------------------------------------------------------------------------------- operators

// x / 2 (1 + erf(x / sqrt 2)), exact form
GGML_API struct ggml_tensor * ggml_gelu_erf(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_gelu_erf_inplace(struct ggml_context * ctx, struct ggml_tensor * a);
// Functions of each element of a, F32, F16 or BF16. da is the gradient of a, g that of the result
// y.
// e^x; da = g y
GGML_API struct ggml_tensor * ggml_exp(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_exp_inplace(struct ggml_context * ctx, struct ggml_tensor * a);
// 1 / (1 + e^-x); da = g (y - y^2)
GGML_API struct ggml_tensor * ggml_sigmoid(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_sigmoid_inplace(struct ggml_context * ctx, struct ggml_tensor * a);
// sine and cosine of radians of any size; NaN of infinities; da = g cos(a), da = -g sin(a)
GGML_API struct ggml_tensor * ggml_sin(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_sin_inplace(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_cos(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_cos_inplace(struct ggml_context * ctx, struct ggml_tensor * a);
// ln(1 + e^x); da = g sigmoid(a)
GGML_API struct ggml_tensor * ggml_softplus(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_softplus_inplace(struct ggml_context * ctx, struct ggml_tensor * a);

// 1 where the comparison of a with b holds, else 0, as F32 with the shape of a, over which b
// repeats. Both are I32, or both floats (F32, F16, BF16). Every comparison with NaN except != is
// false. The gradient is 0.
enum ggml_comparison {
    GGML_COMPARE_EQUAL = 0,
    GGML_COMPARE_NOT_EQUAL,
    GGML_COMPARE_LESS,
    GGML_COMPARE_LESS_EQUAL,
    GGML_COMPARE_GREATER,
    GGML_COMPARE_GREATER_EQUAL,
    GGML_COMPARE_COUNT,
};
GGML_API struct ggml_tensor * ggml_compare(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    enum ggml_comparison comparison);
// a where cond is not 0 (NaN is not 0), else b. a and b have one type, the result's: F32, F16, BF16
// or I32. Elements are copied unchanged. cond is F32, F16, BF16 or I32. Each repeats over the
// result, whose dimensions are the largest of the three. da = g where cond is not 0, else 0. db is
// the opposite. Both are summed over repeats.
GGML_API struct ggml_tensor * ggml_where(struct ggml_context * ctx, struct ggml_tensor * cond, struct ggml_tensor * a,
    struct ggml_tensor * b);

// Writes row i of b to row c[i] of a, and converts it to the type of a. The result is a view of a. Rows that c does not
// name stay as they are. If c names a row twice, the CPU backend keeps the later row of b; others may keep either.
// a [D, R, B2, B3]: F32, F16, BF16, I32 or a quantized type that CPY can write. b [D, n, B2, B3]: F32, F16 or BF16.
// c [n, C1, C2]: I32 or I64, C1 divides B2, C2 divides B3. An index outside of 0 .. R - 1 fails when it is computed.
GGML_API struct ggml_tensor * ggml_set_rows(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    struct ggml_tensor * c);

// Products with matrices of a stack, as in a mixture of experts (ggml_mul_mat_id of today): result [M, U, T],
// row (u, t) = as[ids[u, t]] times row (u mod U', t) of b.
// as [K, M, E]: any types that ggml_mul_mat takes; b [K, U', T], U' divides U; ids [U, T], I32. Matrices that ids does
// not name are not read. An index outside of 0 .. E - 1 fails when it is computed. ggml_mul_mat_set_prec applies.
GGML_API struct ggml_tensor * ggml_mul_mat_experts(struct ggml_context * ctx, struct ggml_tensor * as,
    struct ggml_tensor * b, struct ggml_tensor * ids);
// Adds to each row of a the row of b that ids names: a [M, U, T], b [M, E], ids [U, T], I32; floats. The biases of
// experts. An index out of range fails when it is computed.
GGML_API struct ggml_tensor * ggml_add_id(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    struct ggml_tensor * ids);

// softmax(a * scale + slope * mask) (ggml_soft_max_ext of today), with ALiBi's slope of head i2 of a.ne[2] for max_bias
// above 0, else 1. a [M, N, H, B]; mask: NULL or [M, N', H', B'], F32 or F16, contiguous. N' divides N,
// or is at least N: then row n of it is for row n of a. H' divides H and B' divides B: head h has mask h mod H'.
GGML_API struct ggml_tensor * ggml_soft_max_bias(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * mask, float scale, float max_bias);
// Gives each head of a SOFT_MAX node one more logit, which takes a share of the sum and has no place in the result.
// sinks: F32 [H]; NULL takes them away. A node that has sinks is refused.
GGML_API enum ggml_status ggml_soft_max_add_sinks(struct ggml_tensor * a, struct ggml_tensor * sinks);
// The derivative by a of softmax(scale a), of the gradient a and the result b; max_bias: 0
GGML_API struct ggml_tensor * ggml_soft_max_ext_back(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, float scale, float max_bias);
GGML_API struct ggml_tensor * ggml_soft_max_ext_back_inplace(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, float scale, float max_bias);
// Attention: softmax(cap(scale q k) + slope mask) v. Result F32 [Dv, H, N, B]: heads before queries.
// q [Dk, N, H, B]: floats. k [Dk, M, Hk, B], v [Dv, M, Hv, B], not transposed: floats, or quantized types whose blocks
// lie along rows. Hk and Hv divide H; head h has key head h / (H / Hk). mask: as of ggml_soft_max_bias, N' >= N.
// logit_softcap: 0, or L for cap(s) = L tanh(s / L), else cap(s) = s. max_bias as of ggml_soft_max_bias.
// A key that the mask hides with -inf has no effect, even if it or its value is NaN. A query that sees no key gives 0.
GGML_API struct ggml_tensor * ggml_flash_attn_ext(struct ggml_context * ctx, struct ggml_tensor * q,
    struct ggml_tensor * k, struct ggml_tensor * v, struct ggml_tensor * mask, float scale, float max_bias,
    float logit_softcap);
// As ggml_soft_max_add_sinks, of a FLASH_ATTN_EXT node.
GGML_API enum ggml_status ggml_flash_attn_ext_add_sinks(struct ggml_tensor * a, struct ggml_tensor * sinks);
// The precision that backends must at least compute with.
GGML_API enum ggml_status ggml_flash_attn_ext_set_prec(struct ggml_tensor * a, enum ggml_prec prec);
GGML_API enum ggml_prec ggml_flash_attn_ext_get_prec(const struct ggml_tensor * a);
// Added to mode 0 or 2 of a rotary embedding: the formula without the two things that ggml.h says are kept.
enum ggml_rope_flag { GGML_ROPE_EXACT = 1 << 20 };
// Modes of the rotary embedding of today (ggml_rope_ext, ggml_rope_multi). A node keeps them with GGML_ROPE_EXACT.
enum ggml_rope_type {
    GGML_ROPE_TYPE_NORMAL = 0, // pairs of neighbours
    GGML_ROPE_TYPE_NEOX = 2,   // pairs j, j + n_dims/2
    GGML_ROPE_TYPE_MROPE = 8,  // as NEOX, with four positions a token: each section of the pairs turns by one of them
    GGML_ROPE_TYPE_VISION = 24, // pairs j, j + n_dims of rows of 2 n_dims; the frequencies begin anew in each section
    GGML_ROPE_TYPE_IMROPE = 40, // as MROPE, with the first three positions in turn
};
// Rotates n_dims elements of each row of a [D, H, T, B], F32, F16 or BF16, any strides; the others are copied.
// b: positions, I32 [T]. c: NULL, or F32 factors of at least n_dims/2 pairs, by which the angles are divided.
// mode: NORMAL or NEOX. The floats are those of ggml_rope_custom. da is ggml_rope_ext_back of the gradient.
GGML_API struct ggml_tensor * ggml_rope_ext(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    struct ggml_tensor * c, int n_dims, int mode, int n_ctx_orig, float freq_base, float freq_scale, float ext_factor,
    float attn_factor, float beta_fast, float beta_slow);
GGML_API struct ggml_tensor * ggml_rope_ext_inplace(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, struct ggml_tensor * c, int n_dims, int mode, int n_ctx_orig, float freq_base,
    float freq_scale, float ext_factor, float attn_factor, float beta_fast, float beta_slow);
GGML_API struct ggml_tensor * ggml_rope_ext_back(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, struct ggml_tensor * c, int n_dims, int mode, int n_ctx_orig, float freq_base,
    float freq_scale, float ext_factor, float attn_factor, float beta_fast, float beta_slow);
// mode: MROPE, VISION or IMROPE. b: I32 [4 T], all times, then all heights, widths and extras. sections: pairs of each,
// in turn until all pairs have one; the sum is at most D, and one of the first three is above 0. VISION needs D / 2
// factors.
GGML_API struct ggml_tensor * ggml_rope_multi(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    struct ggml_tensor * c, int n_dims, const int sections[4], int mode, int n_ctx_orig, float freq_base,
    float freq_scale, float ext_factor, float attn_factor, float beta_fast, float beta_slow);
GGML_API struct ggml_tensor * ggml_rope_multi_inplace(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, struct ggml_tensor * c, int n_dims, const int sections[4], int mode, int n_ctx_orig,
    float freq_base, float freq_scale, float ext_factor, float attn_factor, float beta_fast, float beta_slow);
GGML_API struct ggml_tensor * ggml_rope_multi_back(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, struct ggml_tensor * c, int n_dims, const int sections[4], int mode, int n_ctx_orig,
    float freq_base, float freq_scale, float ext_factor, float attn_factor, float beta_fast, float beta_slow);
// Makes a node of these functions rotate the elements from n_offs on, which is even; not for VISION. Returns a; NULL is
// an error.
GGML_API struct ggml_tensor * ggml_rope_set_offset(struct ggml_tensor * a, int n_offs);
// Convolutions as operators of their own, without columns. Nothing is rounded; sums are F32. Kernels a are F32 or F16
// and contiguous, data b are F32, F16 or BF16 with any strides, results are F32. `groups` divides the channels of b and
// the kernels: kernels of group g see channels of group g alone.
// a [KW, KH, IC / groups, OC], b [W, H, IC, N]: [OW, OH, OC, N], with OW = (W + 2 p0 - d0 (KW - 1) - 1) / s0 + 1.
GGML_API struct ggml_tensor * ggml_conv_2d_direct(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, int s0, int s1, int p0, int p1, int d0, int d1);
GGML_API struct ggml_tensor * ggml_conv_2d_grouped(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, int s0, int s1, int p0, int p1, int d0, int d1, int groups);
// a [KW, KH, 1, C], b [W, H, C, N]: one kernel for each channel.
GGML_API struct ggml_tensor * ggml_conv_2d_dw_direct(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, int stride0, int stride1, int pad0, int pad1, int dilation0, int dilation1);
// a [K, IC / groups, OC], b [W, IC, N]: [OW, OC, N], with CONV_2D.
GGML_API struct ggml_tensor * ggml_conv_1d_grouped(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, int s0, int p0, int d0, int groups);
// a [KW, KH, KD, IC / groups * OC], b [W, H, D, IC * N]: [OW, OH, OD, OC * N]. IC is n_channels, N is n_batch and OC is
// n_channels_out; input channels lie next to each other.
GGML_API struct ggml_tensor * ggml_conv_3d_direct(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, int s0, int s1, int s2, int p0, int p1, int p2, int d0, int d1, int d2, int n_channels,
    int n_batch, int n_channels_out);
GGML_API struct ggml_tensor * ggml_conv_3d_grouped(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, int s0, int s1, int s2, int p0, int p1, int p2, int d0, int d1, int d2, int n_channels,
    int n_batch, int n_channels_out, int groups);
// ggml_im2col and the convolutions of ggml.h with rows of this type, F32 or F16. F32 rounds no
// element of b. The functions of ggml.h round b to F16.
GGML_API struct ggml_tensor * ggml_im2col_as(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    int s0, int s1, int p0, int p1, int d0, int d1, bool is_2D, enum ggml_type type);
GGML_API struct ggml_tensor * ggml_conv_1d_as(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    int s0, int p0, int d0, enum ggml_type type);
GGML_API struct ggml_tensor * ggml_conv_2d_as(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    int s0, int s1, int p0, int p1, int d0, int d1, enum ggml_type type);
GGML_API struct ggml_tensor * ggml_conv_depthwise_2d_as(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, int s0, int s1, int p0, int p1, int d0, int d1, enum ggml_type type);
// ggml_cross_entropy_loss with eps, 0 <= eps < 1, instead of 1e-9; elements with b = 0 add nothing
GGML_API struct ggml_tensor * ggml_cross_entropy_loss_eps(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, float eps);
// its derivative
GGML_API struct ggml_tensor * ggml_cross_entropy_loss_eps_back(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, struct ggml_tensor * c, float eps);

// fun computes a tensor of any type and shape from dst->src: n_src tensors, at most GGML_MAX_SRC,
// of any types and shapes. Like the functions of ggml_map_custom1, it runs on the CPU backend, once
// for each ith in [0, nth), concurrently. n_tasks: GGML_N_TASKS_MAX or > 0. ne: n_dims sizes.
// sources may be NULL if n_src is 0.
typedef void (*ggml_custom_op_t)(struct ggml_tensor * dst, int ith, int nth, void * userdata);
GGML_API struct ggml_tensor * ggml_custom(struct ggml_context * ctx, enum ggml_type type, const int64_t * ne,
    int n_dims, struct ggml_tensor * const sources[], int n_src, ggml_custom_op_t fun, int n_tasks, void * userdata);

// ---------------------------------------------------------------------------------------------------------- quantizing

// What to do with a number that the format cannot hold (ggml.h, quantization).
enum ggml_on_invalid {
    GGML_ON_INVALID_ERROR = 0, // the call fails
    // NaN becomes 0, a too large number the largest that any block of the format holds
    GGML_ON_INVALID_CLIP = 1,
    GGML_ON_INVALID_NAN = 2,  // like the row functions; F16 and BF16: infinite
};

// Rows of n_per_row values. imatrix: as for ggml_quantize_chunk. invalid: NULL, or receives the
// index of the value that caused the error, else -1. Returns bytes written, 0 on error (and for no
// values).
GGML_API size_t ggml_quantize_rows(enum ggml_type type, const float * src, void * dst, int64_t n_rows,
    int64_t n_per_row, const float * imatrix, enum ggml_on_invalid on_invalid, int64_t * invalid);

// cdef: end

#ifdef __cplusplus
}
#endif

#endif // GGML_EXT_H
