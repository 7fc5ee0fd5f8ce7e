// ggml-today.h - ggml.h for C programs that are written for ggml's interface of 2026.
//
// Include it instead of ggml.h, or compile with -include ggml-today.h. Names that mean something
// else than in early 2024 get today's meaning, and names that are new become those of ggml-ext.h.
// The operators are the same, so today's and older source files can build one graph. docs/TODAY.md
// lists what differs and what is missing.
//
// Some functions here make several nodes of the operators that exist: ggml_concat along another dimension than 2,
// ggml_pool_1d with means over padding, pooling of four dimensions.
#ifndef GGML_TODAY_H
#define GGML_TODAY_H

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

// Programs call these by today's names, which are defined below.

// mode: GGML_ROPE_TYPE_NORMAL or NEOX; ggml_rope_ext without factors, with base 10000
GGML_API struct ggml_tensor * ggml_today_rope(struct ggml_context * ctx, struct ggml_tensor * a, struct ggml_tensor * b,
    int n_dims, int mode);
GGML_API struct ggml_tensor * ggml_today_rope_inplace(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, int n_dims, int mode);
// ggml_rope_ext without factors
GGML_API struct ggml_tensor * ggml_today_rope_custom(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, int n_dims, int mode, int n_ctx_orig, float freq_base, float freq_scale, float ext_factor,
    float attn_factor, float beta_fast, float beta_slow);
GGML_API struct ggml_tensor * ggml_today_rope_custom_inplace(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, int n_dims, int mode, int n_ctx_orig, float freq_base, float freq_scale, float ext_factor,
    float attn_factor, float beta_fast, float beta_slow);

// along dimension dim
GGML_API struct ggml_tensor * ggml_today_concat(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, int dim);
// a repeated to this shape
GGML_API struct ggml_tensor * ggml_today_repeat_4d(struct ggml_context * ctx, struct ggml_tensor * a, int64_t ne0,
    int64_t ne1, int64_t ne2, int64_t ne3);
// I32 view [k, ne1, ne2, ne3] of an argsort, the largest first
GGML_API struct ggml_tensor * ggml_today_argsort_top_k(struct ggml_context * ctx, struct ggml_tensor * a, int k);

// a has any number of dimensions. ggml_pool_1d computes means of the elements inside a, without padding.
GGML_API struct ggml_tensor * ggml_today_pool_1d(struct ggml_context * ctx, struct ggml_tensor * a,
    enum ggml_op_pool op, int k0, int s0, int p0);
GGML_API struct ggml_tensor * ggml_today_pool_2d(struct ggml_context * ctx, struct ggml_tensor * a,
    enum ggml_op_pool op, int k0, int k1, int s0, int s1, float p0, float p1);

// Convolutions over columns of F16, or F32 if the kernel a is BF16.
GGML_API struct ggml_tensor * ggml_today_conv_1d(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, int s0, int p0, int d0);
GGML_API struct ggml_tensor * ggml_today_conv_1d_ph(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, int s, int d);
GGML_API struct ggml_tensor * ggml_today_conv_2d(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, int s0, int s1, int p0, int p1, int d0, int d1);
GGML_API struct ggml_tensor * ggml_today_conv_2d_sk_p0(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b);
GGML_API struct ggml_tensor * ggml_today_conv_2d_s1_ph(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b);
GGML_API struct ggml_tensor * ggml_today_conv_2d_dw(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, int s0, int s1, int p0, int p1, int d0, int d1);
// Without columns, and without rounding. a [K, 1, C], b [W, C, N]
GGML_API struct ggml_tensor * ggml_today_conv_1d_dw(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, int s0, int p0, int d0);
GGML_API struct ggml_tensor * ggml_today_conv_1d_dw_ph(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, int s0, int d0);
// a [KW, KH, KD, IC OC], b [W, H, D, IC N]
GGML_API struct ggml_tensor * ggml_today_conv_3d(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b, int64_t IC, int s0, int s1, int s2, int p0, int p1, int p2, int d0, int d1, int d2);

// without eps
GGML_API struct ggml_tensor * ggml_today_cross_entropy_loss(struct ggml_context * ctx, struct ggml_tensor * a,
    struct ggml_tensor * b);
GGML_API struct ggml_tensor * ggml_today_cross_entropy_loss_back(struct ggml_context * ctx, struct ggml_tensor * grad,
    struct ggml_tensor * a, struct ggml_tensor * b);
GGML_API struct ggml_tensor * ggml_today_custom_4d(struct ggml_context * ctx, enum ggml_type type, int64_t ne0,
    int64_t ne1, int64_t ne2, int64_t ne3, struct ggml_tensor ** args, int n_args, ggml_custom_op_t fun, int n_tasks,
    void * userdata);

// A fact about the left operand of a MUL_MAT node. The kernels here do not use the fact.
enum ggml_op_hint { GGML_HINT_NONE = 0, GGML_HINT_SRC0_IS_HADAMARD = 1 };
GGML_API enum ggml_status ggml_today_mul_mat_set_hint(struct ggml_tensor * a, enum ggml_op_hint hint);

// Nodes of a graph by their number; negative numbers count from the end. NULL and an error if there is none.
GGML_API struct ggml_tensor * ggml_today_graph_node(struct ggml_cgraph * cgraph, int i);
GGML_API int ggml_today_graph_n_nodes(struct ggml_cgraph * cgraph);

// The graph allocator. It allocates its buffer itself, with buffer type buft. If a graph needs more
// memory than any graph before, the allocator makes a larger buffer and frees the old one. Graphs
// that it placed before must not be computed after that.
typedef struct ggml_today_gallocr * ggml_today_gallocr_t;
GGML_API ggml_today_gallocr_t ggml_today_gallocr_new(struct ggml_backend_buffer_type * buft);
GGML_API void ggml_today_gallocr_free(ggml_today_gallocr_t galloc); // frees the buffer; NULL is allowed
// Makes the buffer large enough for the graph. Tensors of the graph lose the memory that they have
// from this allocator. On failure, both functions return false and set an error.
GGML_API bool ggml_today_gallocr_reserve(ggml_today_gallocr_t galloc, struct ggml_cgraph * graph);
// Places all tensors of the graph that have no memory, or memory from this allocator.
GGML_API bool ggml_today_gallocr_alloc_graph(ggml_today_gallocr_t galloc, struct ggml_cgraph * graph);
// bytes of the buffer; buffer_id: 0
GGML_API size_t ggml_today_gallocr_get_buffer_size(ggml_today_gallocr_t galloc, int buffer_id);

GGML_API enum ggml_status ggml_today_backend_graph_compute(ggml_backend_t backend, struct ggml_cgraph * cgraph);

#ifdef __cplusplus
}
#endif

// Today's names. Define GGML_TODAY_DECLARATIONS_ONLY to keep those of early 2024.
#ifndef GGML_TODAY_DECLARATIONS_ONLY

#define ggml_mul_mat_id ggml_mul_mat_experts
#define ggml_mul_mat_set_hint ggml_today_mul_mat_set_hint
#define ggml_soft_max_ext ggml_soft_max_bias
#define ggml_soft_max_ext_inplace ggml_soft_max_bias_inplace
#define ggml_rope ggml_today_rope
#define ggml_rope_inplace ggml_today_rope_inplace
#define ggml_rope_custom ggml_today_rope_custom
#define ggml_rope_custom_inplace ggml_today_rope_custom_inplace
#define ggml_group_norm ggml_group_norm_eps
#define ggml_group_norm_inplace ggml_group_norm_eps_inplace
#define ggml_concat ggml_today_concat
#define ggml_repeat_4d ggml_today_repeat_4d
#define ggml_top_k ggml_top_k_unsorted
#define ggml_argsort_top_k ggml_today_argsort_top_k
#define ggml_upscale ggml_upscale_mode
#define ggml_upscale_ext ggml_interpolate
#define ggml_pool_1d ggml_today_pool_1d
#define ggml_pool_2d ggml_today_pool_2d
#define ggml_im2col ggml_im2col_as
#define ggml_conv_1d ggml_today_conv_1d
#define ggml_conv_1d_ph ggml_today_conv_1d_ph
#define ggml_conv_1d_dw ggml_today_conv_1d_dw
#define ggml_conv_1d_dw_ph ggml_today_conv_1d_dw_ph
#define ggml_conv_2d ggml_today_conv_2d
#define ggml_conv_2d_sk_p0 ggml_today_conv_2d_sk_p0
#define ggml_conv_2d_s1_ph ggml_today_conv_2d_s1_ph
#define ggml_conv_2d_dw ggml_today_conv_2d_dw
#define ggml_conv_3d ggml_today_conv_3d
#define ggml_cross_entropy_loss ggml_today_cross_entropy_loss
#define ggml_cross_entropy_loss_back ggml_today_cross_entropy_loss_back
#define ggml_custom_4d ggml_today_custom_4d
#define ggml_graph_node ggml_today_graph_node
#define ggml_graph_n_nodes ggml_today_graph_n_nodes
#define ggml_gallocr_t ggml_today_gallocr_t
#define ggml_gallocr_new ggml_today_gallocr_new
#define ggml_gallocr_free ggml_today_gallocr_free
#define ggml_gallocr_reserve ggml_today_gallocr_reserve
#define ggml_gallocr_alloc_graph ggml_today_gallocr_alloc_graph
#define ggml_gallocr_get_buffer_size ggml_today_gallocr_get_buffer_size
#define ggml_backend_graph_compute ggml_today_backend_graph_compute

#define GGML_SORT_ORDER_ASC GGML_SORT_ASC
#define GGML_SORT_ORDER_DESC GGML_SORT_DESC

// The operators that nodes of these builders have.
#define GGML_OP_MUL_MAT_ID GGML_OP_MUL_MAT_EXPERTS
#define GGML_OP_UPSCALE GGML_OP_INTERPOLATE

#endif // GGML_TODAY_DECLARATIONS_ONLY

#endif // GGML_TODAY_H
