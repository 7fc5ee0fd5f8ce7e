// ggml-ext.h - additions to ggml's interface of February 2024. ggml.h includes this header, and has
// the newer enumerators of ggml_type, ggml_op and ggml_unary_op.
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
// Functions of each element of a, F32, F16 or BF16. y is the result, g its gradient, da the
// gradient of a.
// e^x; da = g y
GGML_API struct ggml_tensor * ggml_exp(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_exp_inplace(struct ggml_context * ctx, struct ggml_tensor * a);
// 1 / (1 + e^-x); da = g (y - y^2)
GGML_API struct ggml_tensor * ggml_sigmoid(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_sigmoid_inplace(struct ggml_context * ctx, struct ggml_tensor * a);
// sine and cosine of radians of any size; infinities give NaN; da = g cos(a), da = -g sin(a)
GGML_API struct ggml_tensor * ggml_sin(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_sin_inplace(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_cos(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_cos_inplace(struct ggml_context * ctx, struct ggml_tensor * a);
// ln(1 + e^x); da = g sigmoid(a)
GGML_API struct ggml_tensor * ggml_softplus(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_softplus_inplace(struct ggml_context * ctx, struct ggml_tensor * a);

// Compares each element of a with an element of b, which repeats over a. The result is F32: 1 where
// the comparison holds, else 0. a and b are both I32, or both floats (F32, F16, BF16). Every
// comparison with NaN except != is false. The gradient is 0.
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
// Copies elements of a where cond is not 0 (NaN is not 0), and elements of b elsewhere. a and b have
// the type of the result: F32, F16, BF16 or I32. cond is F32, F16, BF16 or I32. Each operand repeats
// over the result, whose dimensions are the largest of the three. Where cond is not 0, da = g and
// db = 0. Elsewhere, da = 0 and db = g. da and db are summed over repeats.
GGML_API struct ggml_tensor * ggml_where(struct ggml_context * ctx, struct ggml_tensor * cond, struct ggml_tensor * a,
    struct ggml_tensor * b);

// Writes row i of b to row c[i] of a, and converts it to the type of a. The result is a view of a.
// Rows that c does not name stay as they are. If c names a row twice, the CPU backend keeps the
// later row of b; other backends may keep either.
//
// a [D, R, B2, B3]: F32, F16, BF16, I32 or a quantized type that CPY can write. b [D, n, B2, B3]:
// F32, F16 or BF16. c [n, C1, C2]: I32 or I64, C1 divides B2, C2 divides B3. An index outside of 0
// .. R - 1 fails when the node is computed.
GGML_API struct ggml_tensor * ggml_set_rows(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    struct ggml_tensor * c);

// e^x - 1, without cancellation near 0; da = g (y + 1)
GGML_API struct ggml_tensor * ggml_expm1(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_expm1_inplace(struct ggml_context * ctx, struct ggml_tensor * a);
// These round to an integer: floor down, ceil up, round to the nearest (halves away from 0), trunc
// towards 0. The gradient is 0.
GGML_API struct ggml_tensor * ggml_floor(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_floor_inplace(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_ceil(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_ceil_inplace(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_round(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_round_inplace(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_trunc(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_trunc_inplace(struct ggml_context * ctx, struct ggml_tensor * a);
// p x^2 + beta x where x > 0, else (e^min(x, eps) - 1 - x) n + beta x. Here p = softplus(alpha_p) and
// n = beta + softplus(alpha_n).
GGML_API struct ggml_tensor * ggml_xielu(struct ggml_context * ctx, struct ggml_tensor * a, float alpha_n,
    float alpha_p, float beta, float eps);
// s a + b; da = s g
GGML_API struct ggml_tensor * ggml_scale_bias(struct ggml_context * ctx, struct ggml_tensor * a, float s, float b);
GGML_API struct ggml_tensor * ggml_scale_bias_inplace(struct ggml_context * ctx, struct ggml_tensor * a, float s,
    float b);

// Gated linear units f(x) g, on F32, F16 or BF16. With one source, whose rows have an even length,
// x is the first half of a row and g the second; `swapped` exchanges the halves. With two sources
// of one shape and type, x is a and g is b.
enum ggml_glu_op {
    GGML_GLU_OP_REGLU = 0,   // f is relu; x <= 0 gives 0 for any g
    GGML_GLU_OP_GEGLU,       // gelu in its tanh form
    GGML_GLU_OP_SWIGLU,      // silu
    GGML_GLU_OP_SWIGLU_OAI,  // u sigmoid(alpha u) (w + 1), where u = min(x, limit), w = g cut to [-limit, limit]
    GGML_GLU_OP_GEGLU_ERF,   // gelu_erf
    GGML_GLU_OP_GEGLU_QUICK, // gelu_quick
    GGML_GLU_OP_COUNT,
};
GGML_API struct ggml_tensor * ggml_glu(struct ggml_context * ctx, struct ggml_tensor * a, enum ggml_glu_op op,
    bool swapped);
GGML_API struct ggml_tensor * ggml_glu_split(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    enum ggml_glu_op op);
GGML_API struct ggml_tensor * ggml_reglu(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_reglu_swapped(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_reglu_split(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b);
GGML_API struct ggml_tensor * ggml_geglu(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_geglu_swapped(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_geglu_split(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b);
GGML_API struct ggml_tensor * ggml_swiglu(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_swiglu_swapped(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_swiglu_split(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b);
GGML_API struct ggml_tensor * ggml_geglu_erf(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_geglu_erf_swapped(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_geglu_erf_split(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b);
GGML_API struct ggml_tensor * ggml_geglu_quick(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_geglu_quick_swapped(struct ggml_context * ctx, struct ggml_tensor * a);
GGML_API struct ggml_tensor * ggml_geglu_quick_split(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b);
// If b is NULL, x and g are the halves of a's rows.
GGML_API struct ggml_tensor * ggml_swiglu_oai(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    float alpha, float limit);

// Of the operators up to ggml_im2col_3d, these have a derivative: norms, ggml_cumsum, ggml_tri, ggml_fill_inplace (0),
// ggml_ssm_conv, ggml_pad_ext with zeros, ggml_roll. Operands of the others must not have a gradient.

// divides each row by max(its Euclidean norm, eps)
GGML_API struct ggml_tensor * ggml_l2_norm(struct ggml_context * ctx, struct ggml_tensor * a, float eps);
GGML_API struct ggml_tensor * ggml_l2_norm_inplace(struct ggml_context * ctx, struct ggml_tensor * a, float eps);
// ggml_group_norm with an eps of yours, above 0, instead of 1e-6
GGML_API struct ggml_tensor * ggml_group_norm_eps(struct ggml_context * ctx, struct ggml_tensor * a, int n_groups,
    float eps);
GGML_API struct ggml_tensor * ggml_group_norm_eps_inplace(struct ggml_context * ctx, struct ggml_tensor * a,
    int n_groups, float eps);
// Indices of the k largest elements of each row, as I32 [k, ...]. They have no particular order.
// ggml_top_k sorts them. NaN counts as the smallest.
GGML_API struct ggml_tensor * ggml_top_k_unsorted(struct ggml_context * ctx, struct ggml_tensor * a, int k);
// Element i of a row of the result is the sum of elements 0 .. i of the row of a.
GGML_API struct ggml_tensor * ggml_cumsum(struct ggml_context * ctx, struct ggml_tensor * a);
// The elements of square matrices that ggml_tri keeps, by column i0 and row i1. The others become 0.
enum ggml_tri_type {
    GGML_TRI_TYPE_UPPER_DIAG = 0, // i0 >= i1
    GGML_TRI_TYPE_UPPER,          // i0 > i1
    GGML_TRI_TYPE_LOWER_DIAG,     // i0 <= i1
    GGML_TRI_TYPE_LOWER,          // i0 < i1
    GGML_TRI_TYPE_COUNT,
};
GGML_API struct ggml_tensor * ggml_tri(struct ggml_context * ctx, struct ggml_tensor * a, enum ggml_tri_type type);
// Solves L X = b, where L is the lower triangle of a [n, n, B2, B3] with its diagonal. b and X have
// the shape [m, n, B2, B3]. Elements above the diagonal are not read. A zero on the diagonal gives
// infinities or NaN. Only left = true, lower = true and uni = false are supported.
GGML_API struct ggml_tensor * ggml_solve_tri(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    bool left, bool lower, bool uni);
// Sets every element to c. The result has the type and shape of a, whose elements are not read.
GGML_API struct ggml_tensor * ggml_fill(struct ggml_context * ctx, struct ggml_tensor * a, float c);
GGML_API struct ggml_tensor * ggml_fill_inplace(struct ggml_context * ctx, struct ggml_tensor * a, float c);
// The F32 vector start, start + step, ..., below stop (above stop if step is negative). No value at all is an error.
GGML_API struct ggml_tensor * ggml_arange(struct ggml_context * ctx, float start, float stop, float step);
// timesteps [N] -> [dim, N]: for each t, all cos(t f) and then all sin(t f), where f = max_period^(-j / (dim / 2)) for
// 0 <= j < dim / 2. If dim is odd, the last element is 0.
GGML_API struct ggml_tensor * ggml_timestep_embedding(struct ggml_context * ctx, struct ggml_tensor * timesteps,
    int dim, int max_period);

// Recurrent layers, F32. All but ggml_ssm_conv return the outputs y and then states in one tensor.
// n_states is the number of states kept: the first is the state after the last token, and state r
// the state r tokens earlier. A state before the first token is the initial state of the sequence.

// sx [K-1+T, C, S], c [K, C] -> [C, T, S]: the convolution of each channel with its kernel
GGML_API struct ggml_tensor * ggml_ssm_conv(struct ggml_context * ctx, struct ggml_tensor * sx, struct ggml_tensor * c);
// s [N, P, H, R], x [P, H, T, S], dt [H, T, S], A [1, H] or [N, H], B and C [N, G, T, S] (G divides
// H). ids, I32 [S], are the rows of s with the initial states. With d = softplus(dt), for each
// head: state = state e^(d A) + d x B', y = state C. The result is a vector: y in the order of x,
// then n_states times [N, P, H, S]. s is not changed.
GGML_API struct ggml_tensor * ggml_ssm_scan(struct ggml_context * ctx, struct ggml_tensor * s, struct ggml_tensor * x,
    struct ggml_tensor * dt, struct ggml_tensor * A, struct ggml_tensor * B, struct ggml_tensor * C,
    struct ggml_tensor * ids, int64_t n_states);
// q, k [S, Hk, T, B'], v [S, H, T, B], g [1, H, T, B] or [S, H, T, B], beta [1, H, T, B], state [S, S, H, B]. g, beta
// and state are contiguous. Hk divides H: head h uses q and k of head h mod Hk. B' divides B: sequence b uses q and k
// of b / (B / B'). state holds a row of keys for each value. For each token: state row *= e^g, then state += beta (v -
// state k) k', y = state q / sqrt(S). The result is [S H, T B + n_states S B].
GGML_API struct ggml_tensor * ggml_gated_delta_net(struct ggml_context * ctx, struct ggml_tensor * q,
    struct ggml_tensor * k, struct ggml_tensor * v, struct ggml_tensor * g, struct ggml_tensor * beta,
    struct ggml_tensor * state, int64_t n_states);
// The next three functions have inputs [S, H, T], with the tokens of B sequences one after the other, state [S S H, B]
// and tf [S, H], all contiguous. The decays td, w and g multiply the state. They are not logarithms. The result is
// [S H, T + S B]: y, then the states.
// state[key][value]: y = r (tf k v' + state), then state = td state + k v'
GGML_API struct ggml_tensor * ggml_rwkv_wkv6(struct ggml_context * ctx, struct ggml_tensor * k, struct ggml_tensor * v,
    struct ggml_tensor * r, struct ggml_tensor * tf, struct ggml_tensor * td, struct ggml_tensor * state);
// state[value][key]: state = state diag(w) + (state a) b' + v k', then y = state r
GGML_API struct ggml_tensor * ggml_rwkv_wkv7(struct ggml_context * ctx, struct ggml_tensor * r, struct ggml_tensor * w,
    struct ggml_tensor * k, struct ggml_tensor * v, struct ggml_tensor * a, struct ggml_tensor * b,
    struct ggml_tensor * state);
// state[key][value]: state = g state + k v', then y = scale q state
GGML_API struct ggml_tensor * ggml_gated_linear_attn(struct ggml_context * ctx, struct ggml_tensor * k,
    struct ggml_tensor * v, struct ggml_tensor * q, struct ggml_tensor * g, struct ggml_tensor * state, float scale);

// Resizes a to any sizes. In dimensions 2 and 3, a result element takes the nearest element below.
// In dimensions 0 and 1, let a have n elements, the result N elements, and r = N / n. Then element i
// of the result is at x = (i + 1/2) / r - 1/2 in a.
enum ggml_scale_mode {
    GGML_SCALE_MODE_NEAREST = 0, // element floor(i / r), computed with integers; any type
    GGML_SCALE_MODE_BILINEAR,    // two elements on each axis
    GGML_SCALE_MODE_BICUBIC,     // four, by Keys's kernel with a = -0.75
    GGML_SCALE_MODE_COUNT,
};
enum ggml_scale_flag {
    GGML_SCALE_FLAG_ALIGN_CORNERS = 1 << 8, // r = (N - 1) / (n - 1) if both are above 1, x = i / r
    GGML_SCALE_FLAG_ANTIALIAS = 1 << 9, // bilinear without align_corners: a triangle filter, half width max(1, 1 / r)
};
GGML_API struct ggml_tensor * ggml_interpolate(struct ggml_context * ctx, struct ggml_tensor * a, int64_t ne0,
    int64_t ne1, int64_t ne2, int64_t ne3, uint32_t mode); // mode and flags
// ggml_interpolate with dimensions 0 and 1 of a times scale_factor. ggml_upscale repeats elements.
GGML_API struct ggml_tensor * ggml_upscale_mode(struct ggml_context * ctx, struct ggml_tensor * a, int scale_factor,
    enum ggml_scale_mode mode);
// These add lp elements before each dimension and rp elements after it: zeros, or in the circular forms the elements
// of the opposite side. Elements have any type. A gradient through a circular form is an error when it is derived.
GGML_API struct ggml_tensor * ggml_pad_ext(struct ggml_context * ctx, struct ggml_tensor * a, int lp0, int rp0, int lp1,
    int rp1, int lp2, int rp2, int lp3, int rp3);
GGML_API struct ggml_tensor * ggml_pad_circular(struct ggml_context * ctx, struct ggml_tensor * a, int p0, int p1,
    int p2, int p3);
GGML_API struct ggml_tensor * ggml_pad_ext_circular(struct ggml_context * ctx, struct ggml_tensor * a, int lp0, int rp0,
    int lp1, int rp1, int lp2, int rp2, int lp3, int rp3);
// Extends rows by reflection, without repeating the outermost element. p0 and p1 are below a's ne0.
GGML_API struct ggml_tensor * ggml_pad_reflect_1d(struct ggml_context * ctx, struct ggml_tensor * a, int p0, int p1);
// Element i of the result is a's element i - shift, modulo the size. Shifts are below the sizes.
GGML_API struct ggml_tensor * ggml_roll(struct ggml_context * ctx, struct ggml_tensor * a, int shift0, int shift1,
    int shift2, int shift3);
// a [K oc, L] of F32, F16 or BF16, K fastest -> [(L-1) s0 + K - 2 p0, oc]. For each of the oc channels, adds L rows of
// K elements to the result, each s0 elements after the one before. Then cuts off p0 elements at both ends.
GGML_API struct ggml_tensor * ggml_col2im_1d(struct ggml_context * ctx, struct ggml_tensor * a, int s0, int oc, int p0);
// a [KW, KH, KD, IC OC] (only its shape counts), b [W, H, D, IC N] -> [IC KD KH KW, OW, OH, OD N],
// as F32 or F16
GGML_API struct ggml_tensor * ggml_im2col_3d(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    int64_t IC, int s0, int s1, int s2, int p0, int p1, int p2, int d0, int d1, int d2, enum ggml_type dst_type);

// Products with a stack of matrices, as in a mixture of experts (today's ggml_mul_mat_id). The
// result is [M, U, T], row (u, t) = as[ids[u, t]] times row (u mod U', t) of b.
//
// as [K, M, E]: any type that ggml_mul_mat takes; b [K, U', T], U' divides U; ids [U, T], I32.
// Matrices that ids does not name are not read. An index outside of 0 .. E - 1 fails when the node
// is computed. ggml_mul_mat_set_prec applies.
GGML_API struct ggml_tensor * ggml_mul_mat_experts(struct ggml_context * ctx, struct ggml_tensor * as,
    struct ggml_tensor * b, struct ggml_tensor * ids);
// Adds to each row of a the row of b that ids names, for the biases of experts. a [M, U, T] and b
// [M, E] are floats, ids [U, T] is I32. An index out of range fails when the node is computed.
GGML_API struct ggml_tensor * ggml_add_id(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    struct ggml_tensor * ids);

// softmax(a * scale + slope * mask), today's ggml_soft_max_ext. If max_bias is above 0, slope is
// ALiBi's for head i2 of a.ne[2], else 1. a [M, N, H, B]; mask: NULL or [M, N', H', B'], F32 or F16,
// contiguous. If N' is at least N, row n of a has row n of the mask. Otherwise N' divides N, and the
// rows of the mask repeat. H' divides H and B' divides B: head h has mask h mod H'.
GGML_API struct ggml_tensor * ggml_soft_max_bias(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * mask, float scale, float max_bias);
GGML_API struct ggml_tensor * ggml_soft_max_bias_inplace(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * mask, float scale, float max_bias);
// Gives each head of a SOFT_MAX node one more logit, which adds to the sum and has no element in
// the result. sinks: F32 [H]; NULL removes them. An error if the node has sinks already.
GGML_API enum ggml_status ggml_soft_max_add_sinks(struct ggml_tensor * a, struct ggml_tensor * sinks);
// The gradient of x for b = softmax(scale x). a is the gradient of b. max_bias must be 0.
GGML_API struct ggml_tensor * ggml_soft_max_ext_back(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, float scale, float max_bias);
GGML_API struct ggml_tensor * ggml_soft_max_ext_back_inplace(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, float scale, float max_bias);
// Attention: softmax(cap(scale q k) + slope mask) v. The result is F32 [Dv, H, N, B]: heads before
// queries. q [Dk, N, H, B]: floats. k [Dk, M, Hk, B], v [Dv, M, Hv, B], not transposed: floats, or
// quantized types whose blocks lie along rows. Hk and Hv divide H; head h has key head h / (H /
// Hk). mask and max_bias as in ggml_soft_max_bias, with N' >= N. logit_softcap: 0, or L for cap(s)
// = L tanh(s / L), else cap(s) = s.
//
// A key that the mask hides with -inf has no effect, even if it or its value is NaN. A query
// without a visible key gives 0.
GGML_API struct ggml_tensor * ggml_flash_attn_ext(struct ggml_context * ctx, struct ggml_tensor * q,
    struct ggml_tensor * k, struct ggml_tensor * v, struct ggml_tensor * mask, float scale, float max_bias,
    float logit_softcap);
// ggml_soft_max_add_sinks for a FLASH_ATTN_EXT node
GGML_API enum ggml_status ggml_flash_attn_ext_add_sinks(struct ggml_tensor * a, struct ggml_tensor * sinks);
// The lowest precision that backends may compute with.
GGML_API enum ggml_status ggml_flash_attn_ext_set_prec(struct ggml_tensor * a, enum ggml_prec prec);
GGML_API enum ggml_prec ggml_flash_attn_ext_get_prec(const struct ggml_tensor * a);
// Add this to mode 0 or 2 of a rotary embedding. The node then computes the formula without the two
// deviations that ggml.h describes.
enum ggml_rope_flag { GGML_ROPE_EXACT = 1 << 20 };
// Today's modes of the rotary embedding (ggml_rope_ext, ggml_rope_multi). A node stores them with
// GGML_ROPE_EXACT.
enum ggml_rope_type {
    GGML_ROPE_TYPE_NORMAL = 0, // pairs of neighbours
    GGML_ROPE_TYPE_NEOX = 2,   // pairs j, j + n_dims/2
    GGML_ROPE_TYPE_MROPE = 8,  // as NEOX, with four positions a token: each section of the pairs uses one of them
    GGML_ROPE_TYPE_VISION = 24, // pairs j, j + n_dims of rows of 2 n_dims; the frequencies restart in each section
    GGML_ROPE_TYPE_IMROPE = 40, // as MROPE, with the first three positions alternating
};
// Rotates n_dims elements of each row of a [D, H, T, B] and copies the rest. a is F32, F16 or BF16
// with any strides. b: positions, I32 [T]. c: NULL, or F32 factors of at least n_dims/2 pairs,
// which divide the angles. mode: NORMAL or NEOX. The floats are those of ggml_rope_custom. da is
// ggml_rope_ext_back of the gradient.
GGML_API struct ggml_tensor * ggml_rope_ext(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    struct ggml_tensor * c, int n_dims, int mode, int n_ctx_orig, float freq_base, float freq_scale, float ext_factor,
    float attn_factor, float beta_fast, float beta_slow);
GGML_API struct ggml_tensor * ggml_rope_ext_inplace(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, struct ggml_tensor * c, int n_dims, int mode, int n_ctx_orig, float freq_base,
    float freq_scale, float ext_factor, float attn_factor, float beta_fast, float beta_slow);
GGML_API struct ggml_tensor * ggml_rope_ext_back(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, struct ggml_tensor * c, int n_dims, int mode, int n_ctx_orig, float freq_base,
    float freq_scale, float ext_factor, float attn_factor, float beta_fast, float beta_slow);
// mode: MROPE, VISION or IMROPE. b: I32 [4 T], first all times, then all heights, widths and
// extras. sections: numbers of pairs, repeated in order until all pairs have one. Their sum is at
// most D, and one of the first three is above 0. VISION needs D / 2 factors.
GGML_API struct ggml_tensor * ggml_rope_multi(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    struct ggml_tensor * c, int n_dims, const int sections[4], int mode, int n_ctx_orig, float freq_base,
    float freq_scale, float ext_factor, float attn_factor, float beta_fast, float beta_slow);
GGML_API struct ggml_tensor * ggml_rope_multi_inplace(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, struct ggml_tensor * c, int n_dims, const int sections[4], int mode, int n_ctx_orig,
    float freq_base, float freq_scale, float ext_factor, float attn_factor, float beta_fast, float beta_slow);
GGML_API struct ggml_tensor * ggml_rope_multi_back(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, struct ggml_tensor * c, int n_dims, const int sections[4], int mode, int n_ctx_orig,
    float freq_base, float freq_scale, float ext_factor, float attn_factor, float beta_fast, float beta_slow);
// Makes a node of these functions rotate the elements from n_offs on. n_offs is even. The mode must
// not be VISION. Returns a, or NULL on failure.
GGML_API struct ggml_tensor * ggml_rope_set_offset(struct ggml_tensor * a, int n_offs);
// Convolutions as single operators, without columns. Operands are not rounded. Sums and results
// are F32. Kernels a are contiguous F32 or F16, data b are F32, F16 or BF16 with any strides.
// `groups` divides the channels of b and the kernels: kernels of group g read only channels of
// group g.
//
// a [KW, KH, IC / groups, OC], b [W, H, IC, N] -> [OW, OH, OC, N], with OW = (W + 2 p0 - d0 (KW - 1)
// - 1) / s0 + 1
GGML_API struct ggml_tensor * ggml_conv_2d_direct(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, int s0, int s1, int p0, int p1, int d0, int d1);
GGML_API struct ggml_tensor * ggml_conv_2d_grouped(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, int s0, int s1, int p0, int p1, int d0, int d1, int groups);
// a [KW, KH, 1, C], b [W, H, C, N] -> [OW, OH, C, N]: one kernel for each channel
GGML_API struct ggml_tensor * ggml_conv_2d_dw_direct(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, int stride0, int stride1, int pad0, int pad1, int dilation0, int dilation1);
// a [K, IC / groups, OC], b [W, IC, N] -> [OW, OC, N], a CONV_2D node
GGML_API struct ggml_tensor * ggml_conv_1d_grouped(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, int s0, int p0, int d0, int groups);
// a [KW, KH, KD, IC / groups * OC], b [W, H, D, IC * N] -> [OW, OH, OD, OC * N]. IC is n_channels, N is n_batch and OC
// is n_channels_out. Input channels vary faster than output channels and batches.
GGML_API struct ggml_tensor * ggml_conv_3d_direct(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, int s0, int s1, int s2, int p0, int p1, int p2, int d0, int d1, int d2, int n_channels,
    int n_batch, int n_channels_out);
GGML_API struct ggml_tensor * ggml_conv_3d_grouped(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, int s0, int s1, int s2, int p0, int p1, int p2, int d0, int d1, int d2, int n_channels,
    int n_batch, int n_channels_out, int groups);
// ggml_im2col with a result of this type, F32 or F16. F32 rounds no element of b. ggml_im2col
// rounds b to F16. The three convolutions below are those of ggml.h with columns of this type.
GGML_API struct ggml_tensor * ggml_im2col_as(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    int s0, int s1, int p0, int p1, int d0, int d1, bool is_2D, enum ggml_type type);
// The gradient of operand b of ggml_im2col, as F32 with sizes ne. Here b is the gradient of the result. Of the
// kernel a only the shape matters.
GGML_API struct ggml_tensor * ggml_im2col_back(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, const int64_t * ne, int s0, int s1, int p0, int p1, int d0, int d1, bool is_2D);
GGML_API struct ggml_tensor * ggml_conv_1d_as(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    int s0, int p0, int d0, enum ggml_type type);
GGML_API struct ggml_tensor * ggml_conv_2d_as(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    int s0, int s1, int p0, int p1, int d0, int d1, enum ggml_type type);
GGML_API struct ggml_tensor * ggml_conv_depthwise_2d_as(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, int s0, int s1, int p0, int p1, int d0, int d1, enum ggml_type type);
// ggml_cross_entropy_loss with eps, 0 <= eps < 1, instead of 1e-9; elements with b = 0 add nothing
GGML_API struct ggml_tensor * ggml_cross_entropy_loss_eps(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, float eps);
// the gradient of a for ggml_cross_entropy_loss_eps; c is the gradient of the loss
GGML_API struct ggml_tensor * ggml_cross_entropy_loss_eps_back(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, struct ggml_tensor * c, float eps);

// Gradients of a loss, a scalar of type F32. grads[i] becomes a node in ctx: the gradient of params[i],
// F32 and of its shape. A graph that contains the node computes the gradient. grads[i] becomes NULL if
// the loss does not depend on params[i]. Two entries may be the same tensor.
//
// Parameters are any tensors of F32, F16 or BF16: leafs or nodes. A parameter that the loss depends on only
// through operators with derivative 0 has a gradient of zeros. You can derive gradients of gradients. A node may
// write to a leaf. Then only nodes that read the result of this node depend on the written elements.
//
// The field grad of tensors is ignored. It is NULL during the call, so no other thread may use the graph of the
// loss meanwhile.
//
// UNSUPPORTED: a node between a parameter and the loss has no derivative (the message names it), or
// the gradients read a tensor that a later node of the loss's graph overwrites. After an error grads is unchanged.
GGML_API enum ggml_status ggml_grad(struct ggml_context * ctx, struct ggml_tensor * loss, struct ggml_tensor ** params,
    int n_params, struct ggml_tensor ** grads);

// One step of AdamW, in place:
//     m = beta1 m + (1 - beta1) grad;  v = beta2 v + (1 - beta2) grad^2
//     a = a (1 - alpha wd) - alpha (m params[5]) / (sqrt(v params[6]) + eps)
// a holds weights, grad their gradient, m and v the running means of grad and grad^2. All four are F32 of one shape.
// params, F32 [7]: alpha, beta1, beta2, eps, wd, 1 / (1 - beta1^t), 1 / (1 - beta2^t). t counts the steps from 1.
//
// The result is a view of a. Its sources are the nodes that write m and v. Nodes run in the order of the graph.
// Expand the graph with the loss and all gradients first, because a gradient may read other weights.
GGML_API struct ggml_tensor * ggml_opt_step_adamw(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * grad, struct ggml_tensor * m, struct ggml_tensor * v, struct ggml_tensor * params);
// a = a (1 - alpha wd) - alpha grad, in place; params, F32 [2]: alpha, wd. The result is a view of a.
GGML_API struct ggml_tensor * ggml_opt_step_sgd(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * grad, struct ggml_tensor * params);

// fun computes a tensor of any type and shape from dst->src, which has n_src tensors (at most
// GGML_MAX_SRC) of any types and shapes. Like the functions of ggml_map_custom1, it runs on the CPU
// backend, once for each ith in [0, nth), concurrently. n_tasks: GGML_N_TASKS_MAX or > 0. ne:
// n_dims sizes. sources may be NULL if n_src is 0.
typedef void (*ggml_custom_op_t)(struct ggml_tensor * dst, int ith, int nth, void * userdata);
GGML_API struct ggml_tensor * ggml_custom(struct ggml_context * ctx, enum ggml_type type, const int64_t * ne,
    int n_dims, struct ggml_tensor * const sources[], int n_src, ggml_custom_op_t fun, int n_tasks, void * userdata);

// ---------------------------------------------------------------------------------------------------------- quantizing

// What to do with a number that the format cannot hold (ggml.h, quantization).
enum ggml_on_invalid {
    GGML_ON_INVALID_ERROR = 0, // the call fails
    // NaN becomes 0; a number that is too large becomes the largest that a block can hold
    GGML_ON_INVALID_CLIP = 1,
    GGML_ON_INVALID_NAN = 2, // all elements of the block become NaN; F16 and BF16 get an infinity
};

// Quantizes rows of n_per_row values. imatrix: as for ggml_quantize_chunk. invalid: NULL, or
// receives the index of the value that caused the error, else -1. Returns bytes written, 0 on error
// (and for no values).
GGML_API size_t ggml_quantize_rows(enum ggml_type type, const float * src, void * dst, int64_t n_rows,
    int64_t n_per_row, const float * imatrix, enum ggml_on_invalid on_invalid, int64_t * invalid);

// cdef: end

#ifdef __cplusplus
}
#endif

#endif // GGML_EXT_H
