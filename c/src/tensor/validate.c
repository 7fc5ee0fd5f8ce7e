// validate.c - structs that no function of the library has made so: a C program wrote to their fields.
//
// Two questions. gb_tensor_check: is this a tensor at all, whose sizes can be computed with and whose bytes lie inside
// its root? It is asked once for each tensor when a graph is planned, by whoever plans. gb_node_mismatch: could a
// builder have made this node of its sources and parameters? It is asked where operators are asked whether they can
// run, and calls what builders call. Both cost some nanoseconds for what is right: the usual sizes are small, and then
// nothing can overflow.
#include "tensor/tensor.h"

#include <stddef.h>
#include <string.h>

#include "tensor/check.h"
#include "tensor/shapes.h"

enum { SMALL_NE = 1 << 15, SMALL_NB = 1 << 30 };
#define MOST_BYTES ((size_t) PTRDIFF_MAX >> 8) // more than any address space has

static _Thread_local bool trusted;

bool gb_trust_tensors(bool trust) {
    const bool before = trusted;
    trusted           = trust;
    return before;
}

bool gb_tensors_are_trusted(void) { return trusted; }

static bool is_small(const struct ggml_tensor * t) {
    uint64_t ne = 0, nb = 0;
    for (int d = 0; d < GGML_MAX_DIMS; d++) {
        ne |= (uint64_t) t->ne[d]; // negative ones are large
        nb |= t->nb[d];
    }
    return ne < SMALL_NE && nb < SMALL_NB;
}

// What nearly all tensors are: nothing more has to be asked.
static bool is_plain(const struct ggml_tensor * t) {
    return gb_type_is_valid(t->type) && (unsigned) t->op < GGML_OP_COUNT && is_small(t);
}

static bool sizes_fit(const struct ggml_tensor * t) {
    int64_t n = 1;
    size_t  bytes;
    for (int d = 0; d < GGML_MAX_DIMS; d++) {
        if (t->ne[d] < 0 || !gb_mul_i64(n, t->ne[d], &n)) {
            return false;
        }
    }
    return gb_bytes_needed(t, &bytes) && bytes <= MOST_BYTES;
}

// Type, operator and sizes.
static enum ggml_status check_alone(const struct ggml_tensor * t, const char * func) {
    GB_FAIL_IF(!gb_type_is_valid(t->type), GGML_STATUS_INVALID_ARGUMENT, "%s: tensor '%.63s': %d is no type", func,
        t->name, (int) t->type);
    GB_FAIL_IF((unsigned) t->op >= GGML_OP_COUNT, GGML_STATUS_INVALID_ARGUMENT, "%s: tensor '%.63s': %d is no operator",
        func, t->name, (int) t->op);
    GB_FAIL_IF(!sizes_fit(t), GGML_STATUS_INVALID_ARGUMENT,
        "%s: tensor '%.63s': sizes [%lld, %lld, %lld, %lld] with strides [%zu, %zu, %zu, %zu] are negative or overflow",
        func, t->name, (long long) t->ne[0], (long long) t->ne[1], (long long) t->ne[2], (long long) t->ne[3], t->nb[0],
        t->nb[1], t->nb[2], t->nb[3]);
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status check_view(const struct ggml_tensor * t, const char * func) {
    const struct ggml_tensor * root = t->view_src;
    GB_FAIL_IF(root->view_src != NULL, GGML_STATUS_INVALID_ARGUMENT,
        "%s: tensor '%.63s' is a view of '%.63s', which is a view itself", func, t->name, root->name);
    if (!is_plain(root)) {
        GB_TRY(check_alone(root, func));
    }
    const size_t have = ggml_nbytes(root), bytes = ggml_nbytes(t);
    GB_FAIL_IF(t->view_offs > have || bytes > have - t->view_offs, GGML_STATUS_INVALID_ARGUMENT,
        "%s: view '%.63s': offset %zu and size %zu reach past the %zu bytes of '%.63s'", func, t->name, t->view_offs,
        bytes, have, root->name);
    return GGML_STATUS_SUCCESS;
}

enum ggml_status gb_tensor_check(const struct ggml_tensor * t, const char * func) {
    if (!is_plain(t)) {
        GB_TRY(check_alone(t, func));
    }
    return t->view_src != NULL ? check_view(t, func) : GGML_STATUS_SUCCESS;
}

enum ggml_status gb_tensors_check(struct ggml_tensor * const * nodes, int n, const char * func) {
    const bool look = !trusted;
    for (int i = 0; i < n; i++) {
        GB_FAIL_IF(nodes[i] == NULL, GGML_STATUS_INVALID_ARGUMENT, "%s: node %d of the graph is NULL", func, i);
        if (!look) {
            continue;
        }
        GB_TRY(gb_tensor_check(nodes[i], func));
        for (int s = 0; s < GGML_MAX_SRC; s++) {
            if (nodes[i]->src[s] != NULL) {
                GB_TRY(gb_tensor_check(nodes[i]->src[s], func));
            }
        }
    }
    return GGML_STATUS_SUCCESS;
}

// --------------------------------------------------------------------------------------------------------------- nodes

static bool is_shape(const struct ggml_tensor * t, struct gb_shape shape) {
    return t->ne[0] == shape.ne[0] && t->ne[1] == shape.ne[1] && t->ne[2] == shape.ne[2] && t->ne[3] == shape.ne[3];
}

static bool is_like(const struct ggml_tensor * t, const struct ggml_tensor * a) {
    return is_shape(t, gb_shape_like(a));
}

static bool is_region(const struct ggml_tensor * t) { // ACC, SET
    const struct gb_region r       = { (size_t) t->op_params[0], (size_t) t->op_params[1], (size_t) t->op_params[2],
        (size_t) t->op_params[3] };
    const bool             inplace = t->op_params[4] != 0;
    return (t->op == GGML_OP_ACC ? gb_check_acc : gb_check_set)(NULL, t->src[0], t->src[1], &r, inplace) &&
           is_like(t, t->src[0]);
}

static bool is_mul_mat_id(const struct ggml_tensor * t) {
    const int n = gb_op_param_i32(t, 1);
    return n >= 1 && n <= GGML_MAX_SRC - 2 &&
           gb_check_mul_mat_id(NULL, t->src + 2, n, t->src[0], gb_op_param_i32(t, 0), t->src[1]) &&
           is_shape(t, gb_shape_mul_mat(t->src[2], t->src[1]));
}

static bool is_rope(const struct ggml_tensor * t) {
    struct gb_rope r = { 0 };
    memcpy(&r, t->op_params, offsetof(struct gb_rope, xpos_down));
    return (t->op == GGML_OP_ROPE ? gb_check_rope : gb_check_rope_back)(NULL, t->src[0], t->src[1], &r) &&
           is_like(t, t->src[0]);
}

static bool is_im2col(const struct ggml_tensor * t) {
    const int32_t *      p = t->op_params;
    const struct gb_conv v = { p[0], p[1], p[2], p[3], p[4], p[5], p[6] != 0 };
    return gb_check_im2col(NULL, t->src[0], t->src[1], &v) && is_shape(t, gb_shape_im2col(t->src[0], t->src[1], &v));
}

static bool is_conv_transpose(const struct ggml_tensor * t) {
    const int32_t *            p = t->op_params;
    const struct ggml_tensor * a = t->src[0];
    const struct ggml_tensor * b = t->src[1];
    return t->op == GGML_OP_CONV_TRANSPOSE_1D
               ? gb_check_conv_transpose_1d(NULL, a, b, p[0], p[1], p[2]) &&
                     is_shape(t, gb_shape_conv_transpose_1d(a, b, p[0]))
               : gb_check_conv_transpose_2d(NULL, a, b, p[0]) && is_shape(t, gb_shape_conv_transpose_2d(a, b, p[0]));
}

// The node has lost what comes after the point of its padding: its shape lies between those of this padding and one
// more.
static bool is_pool_2d(const struct ggml_tensor * t) {
    const struct ggml_tensor * a    = t->src[0];
    const int32_t *            p    = t->op_params;
    const int                  k[2] = { p[1], p[2] }, s[2] = { p[3], p[4] };
    const float                least[2] = { (float) p[5], (float) p[6] }, most[2] = { least[0] + 1, least[1] + 1 };
    if (p[5] < 0 || p[6] < 0 || !gb_check_pool_2d(NULL, a, (enum ggml_op_pool) p[0], k, s, most)) {
        return false;
    }
    const struct gb_shape low = gb_shape_pool_2d(a, k, s, least), high = gb_shape_pool_2d(a, k, s, most);
    return t->ne[0] >= low.ne[0] && t->ne[0] <= high.ne[0] && t->ne[1] >= low.ne[1] && t->ne[1] <= high.ne[1] &&
           is_shape(t, gb_shape_of(t->ne[0], t->ne[1], high.ne[2], high.ne[3]));
}

static bool is_pad(const struct ggml_tensor * t) {
    const struct ggml_tensor * a = t->src[0];
    return gb_check_1(NULL, a) && t->ne[0] >= a->ne[0] && t->ne[1] >= a->ne[1] && t->ne[2] >= a->ne[2] &&
           t->ne[3] >= a->ne[3];
}

static bool is_soft_max(const struct ggml_tensor * t) {
    return gb_check_soft_max(NULL, t->src[0], t->src[1]) &&
           gb_check_max_bias(NULL, t->src[0], t->src[1], gb_op_param_f32(t, 1)) && is_like(t, t->src[0]);
}

static bool is_loss(const struct ggml_tensor * t) {
    const struct ggml_tensor *a = t->src[0], *b = t->src[1];
    if (t->op_params[0] != 0 && (a == NULL || !gb_check_loss_eps(NULL, a, gb_op_param_f32(t, 1)))) {
        return false;
    }
    return t->op == GGML_OP_CROSS_ENTROPY_LOSS
               ? gb_check_cross_entropy_loss(NULL, a, b) && is_shape(t, gb_shape_scalar())
               : gb_check_cross_entropy_loss_back(NULL, a, b, t->src[2]) && is_like(t, a);
}

static bool is_map(const struct ggml_tensor * t, int n, bool has_tasks) {
    void (*fun)(void) = NULL;
    int n_tasks       = 1;
    memcpy(&fun, t->op_params, sizeof(fun));
    if (has_tasks) {
        memcpy(&n_tasks, (const char *) t->op_params + sizeof(fun), sizeof(n_tasks));
    }
    return gb_check_map_custom(NULL, t->src[0], t->src[1], t->src[2], n, fun != NULL, n_tasks) && is_like(t, t->src[0]);
}

static bool is_map_of_rows(const struct ggml_tensor * t, int n) {
    return is_map(t, n, false) && gb_check_map_rows(NULL, t->src[0], t->src[1], n, true);
}

// The builder's own check of the sources (check.h) and the shape that it gives the result (shapes.h).
static bool is_as_built(const struct ggml_tensor * t) {
    const struct ggml_tensor *a = t->src[0], *b = t->src[1], *c = t->src[2];
    const int32_t *           p = t->op_params;
    switch (t->op) {
        case GGML_OP_NONE:
        case GGML_OP_RESHAPE:
        case GGML_OP_VIEW:
        case GGML_OP_PERMUTE:
        case GGML_OP_TRANSPOSE: return true; // that it lies inside its root is all
        case GGML_OP_DUP:
        case GGML_OP_SQR:
        case GGML_OP_SQRT:
        case GGML_OP_LOG:
        case GGML_OP_SCALE:
        case GGML_OP_CLAMP:
        case GGML_OP_LEAKY_RELU: return gb_check_1(NULL, a) && is_like(t, a);
        case GGML_OP_UNARY: return gb_check_unary(NULL, a, (enum ggml_unary_op) p[0]) && is_like(t, a);
        case GGML_OP_ADD:
        case GGML_OP_SUB:
        case GGML_OP_MUL:
        case GGML_OP_DIV: return gb_check_binary(NULL, a, b) && is_like(t, a);
        case GGML_OP_ADD1: return gb_check_add1(NULL, a, b) && is_like(t, a);
        case GGML_OP_ACC:
        case GGML_OP_SET: return is_region(t);
        case GGML_OP_SUM: return gb_check_1(NULL, a) && is_shape(t, gb_shape_scalar());
        case GGML_OP_SUM_ROWS: return gb_check_1(NULL, a) && is_shape(t, gb_shape_per_row(a));
        case GGML_OP_MEAN: return gb_check_mean(NULL, a) && is_shape(t, gb_shape_per_row(a));
        case GGML_OP_ARGMAX: return gb_check_argmax(NULL, a) && is_shape(t, gb_shape_argmax(a));
        case GGML_OP_ARGSORT: return gb_check_argsort(NULL, a, (enum ggml_sort_order) p[0]) && is_like(t, a);
        case GGML_OP_REPEAT: return gb_check_repeat(NULL, a, t);
        case GGML_OP_REPEAT_BACK: return gb_check_repeat_back(NULL, a, t);
        case GGML_OP_CONCAT: return gb_check_concat(NULL, a, b) && is_shape(t, gb_shape_concat(a, b));
        case GGML_OP_SILU_BACK: return gb_check_same_shape(NULL, a, b) && is_like(t, a);
        case GGML_OP_NORM: return gb_check_norm(NULL, a, gb_op_param_f32(t, 0), true) && is_like(t, a);
        case GGML_OP_RMS_NORM: return gb_check_rms_norm(NULL, a, gb_op_param_f32(t, 0)) && is_like(t, a);
        case GGML_OP_RMS_NORM_BACK: return gb_check_rms_norm_back(NULL, a, b, gb_op_param_f32(t, 0)) && is_like(t, a);
        case GGML_OP_GROUP_NORM: return gb_check_group_norm(NULL, a, p[0], true) && is_like(t, a);
        case GGML_OP_MUL_MAT: return gb_check_mul_mat(NULL, a, b) && is_shape(t, gb_shape_mul_mat(a, b));
        case GGML_OP_MUL_MAT_ID: return is_mul_mat_id(t);
        case GGML_OP_OUT_PROD: return gb_check_out_prod(NULL, a, b) && is_shape(t, gb_shape_out_prod(a, b));
        case GGML_OP_CPY: return gb_check_cpy(NULL, a, b) && is_like(t, b);
        case GGML_OP_CONT: return gb_check_count(NULL, a, t->ne);
        case GGML_OP_GET_ROWS: return gb_check_get_rows(NULL, a, b) && is_shape(t, gb_shape_get_rows(a, b));
        case GGML_OP_GET_ROWS_BACK:
            return gb_check_get_rows_back(NULL, a, b, t) && is_shape(t, gb_shape_get_rows_back(t));
        case GGML_OP_DIAG: return gb_check_diag(NULL, a) && is_shape(t, gb_shape_diag(a));
        case GGML_OP_DIAG_MASK_INF:
        case GGML_OP_DIAG_MASK_ZERO: return gb_check_diag_mask(NULL, a, p[0], true) && is_like(t, a);
        case GGML_OP_SOFT_MAX: return is_soft_max(t);
        case GGML_OP_SOFT_MAX_BACK: return gb_check_soft_max_back(NULL, a, b) && is_like(t, a);
        case GGML_OP_ROPE:
        case GGML_OP_ROPE_BACK: return is_rope(t);
        case GGML_OP_ALIBI: return gb_check_alibi(NULL, a, p[1]) && is_like(t, a);
        case GGML_OP_IM2COL: return is_im2col(t);
        case GGML_OP_CONV_TRANSPOSE_1D:
        case GGML_OP_CONV_TRANSPOSE_2D: return is_conv_transpose(t);
        case GGML_OP_POOL_1D:
            return gb_check_pool_1d(NULL, a, (enum ggml_op_pool) p[0], p[1], p[2], p[3]) &&
                   is_shape(t, gb_shape_pool_1d(a, p[1], p[2], p[3]));
        case GGML_OP_POOL_2D: return is_pool_2d(t);
        case GGML_OP_UPSCALE: return gb_check_upscale(NULL, a, p[0]) && is_shape(t, gb_shape_upscale(a, p[0]));
        case GGML_OP_PAD: return is_pad(t);
        case GGML_OP_FLASH_ATTN: return gb_check_flash_attn(NULL, a, b, c) && is_like(t, a);
        case GGML_OP_FLASH_ATTN_BACK:
            return gb_check_flash_attn_back(NULL, a, b, c, t->src[3]) && is_shape(t, gb_shape_flash_attn_back(a, b, c));
        case GGML_OP_FLASH_FF: return gb_check_flash_ff(NULL, a, b, c, t->src[3], t->src[4]) && is_like(t, a);
        case GGML_OP_WIN_PART: return gb_check_win_part(NULL, a, p[2]) && is_shape(t, gb_shape_win_part(a, p[2]));
        case GGML_OP_WIN_UNPART:
            return gb_check_win_unpart(NULL, a, (int) t->ne[1], (int) t->ne[2], p[0]) &&
                   is_shape(t, gb_shape_win_unpart(a, (int) t->ne[1], (int) t->ne[2]));
        case GGML_OP_GET_REL_POS:
            return gb_check_get_rel_pos(NULL, a, (int) t->ne[2], (int) t->ne[1]) &&
                   is_shape(t, gb_shape_get_rel_pos(a, (int) t->ne[2], (int) t->ne[1]));
        case GGML_OP_ADD_REL_POS: return gb_check_add_rel_pos(NULL, a, b, c) && is_like(t, a);
        case GGML_OP_MAP_UNARY: return is_map_of_rows(t, 1);
        case GGML_OP_MAP_BINARY: return is_map_of_rows(t, 2);
        case GGML_OP_MAP_CUSTOM1_F32: return is_map(t, 1, false);
        case GGML_OP_MAP_CUSTOM2_F32: return is_map(t, 2, false);
        case GGML_OP_MAP_CUSTOM3_F32: return is_map(t, 3, false);
        case GGML_OP_MAP_CUSTOM1: return is_map(t, 1, true);
        case GGML_OP_MAP_CUSTOM2: return is_map(t, 2, true);
        case GGML_OP_MAP_CUSTOM3: return is_map(t, 3, true);
        case GGML_OP_CROSS_ENTROPY_LOSS:
        case GGML_OP_CROSS_ENTROPY_LOSS_BACK: return is_loss(t);
        case GGML_OP_COUNT: break;
    }
    return false;
}

static const char * mismatch(const struct ggml_tensor * node) {
    if (node->src[0] == node) { // in other places that may have a meaning: CPY names where it writes
        return "it is its own source";
    }
    if (is_as_built(node) || gb_op_is_idle(node)) {
        return NULL;
    }
    return gb_node_has_sources(node) ? "its shape, its sources and its parameters do not fit together"
                                     : "a source is missing";
}

static enum ggml_status fail_node(const struct ggml_tensor * node, const char * wrong, const char * func) {
    char text[2 * GB_DESCRIBE_SIZE];
    return gb_fail(GGML_STATUS_INVALID_ARGUMENT, "%s: %s: %s", func, gb_describe_node(node, text, sizeof(text)), wrong);
}

const char * gb_node_mismatch(const struct ggml_tensor * node) { return trusted ? NULL : mismatch(node); }

enum ggml_status gb_node_check(const struct ggml_tensor * node, const char * func) {
    const char * wrong = mismatch(node);
    return wrong == NULL ? GGML_STATUS_SUCCESS : fail_node(node, wrong, func);
}

enum ggml_status gb_graph_check_tensors(const struct ggml_cgraph * graph, const char * func) {
    if (trusted) {
        return GGML_STATUS_SUCCESS;
    }
    for (int i = 0; i < graph->n_leafs; i++) {
        GB_TRY(gb_tensor_check(graph->leafs[i], func));
    }
    GB_TRY(gb_tensors_check(graph->nodes, graph->n_nodes, func));
    for (int i = 0; i < graph->n_nodes; i++) {
        GB_TRY(gb_node_check(graph->nodes[i], func));
    }
    return GGML_STATUS_SUCCESS;
}
