// fuse/attention.c - fuses the chain of operators of attention and computes it by tiles
// (ops/attention.h).
//
//     MUL_MAT(keys, queries) [SCALE | ADD | DIAG_MASK_INF]* SOFT_MAX MUL_MAT(values, .)
//     [CONT or CPY of a permutation of it]
//
// The scores (queries x keys x heads) and the results before the copy are never stored. So the
// fusion requires that no other code can read them (fuse.h). Its results differ from those of the
// chain by the rounding of sums.
//
// The memory plan may place the result on queries, keys or values, which the fused step reads until
// its end. In that case the result goes to scratch memory. The threads copy it after all of them
// have finished.
#include <math.h>

#include "cpu/fuse/fusions.h"
#include "cpu/ops/attention.h"
#include "ggml-backend-impl.h"

struct chain { // the part of the chain that was matched so far
    struct ggml_tensor * const * nodes;
    int n, length;
    struct gb_attention a;
    const struct ggml_tensor * permuted; // the PERMUTE of the second product, if its copy follows; else NULL
};

// ------------------------------------------------------------------------------------------------------------ matching

static bool add_edit(struct gb_attention * a, enum gb_score_edit_kind kind, float value, const struct ggml_tensor * t) {
    if (a->n_edits == GB_SCORE_EDITS) {
        return false;
    }
    a->edits[a->n_edits++] = (struct gb_score_edit){ kind, value, t };
    return true;
}

// A factor right after the product scales the queries, unless they could overflow. Scores that a
// mask set to -inf must stay -inf, so only positive factors are accepted after a mask.
static bool add_scale(struct gb_attention * a, float value) {
    if (value == 1) {
        return true;
    }
    if (a->n_edits == 0 && !a->causal && fabsf(value) <= 1) {
        a->scale *= value;
        return true;
    }
    return value > 0 && add_edit(a, GB_SCORE_SCALE, value, NULL);
}

static bool add_tensor(struct gb_attention * a, const struct ggml_tensor * t, const struct ggml_tensor * scores) {
    return t->type == GGML_TYPE_F32 && t->nb[0] == sizeof(float) &&
           (t->nb[1] | t->nb[2] | t->nb[3]) % sizeof(float) == 0 && t->ne[0] == scores->ne[0] && !gb_is_empty(t) &&
           add_edit(a, GB_SCORE_ADD, 0, t);
}

static bool add_mask(struct gb_attention * a, const struct ggml_tensor * node) {
    const int64_t past = gb_op_param_i32(node, 0);
    a->past = a->causal ? GB_MIN(a->past, past) : past;
    a->causal = true;
    a->causal_at = a->n_edits;
    return true;
}

// An operator between the first product and the softmax.
static bool add_node(struct gb_attention * a, const struct ggml_tensor * node, const struct ggml_tensor * before) {
    if (!gb_fuse_is_dense(node) || !gb_same_ne(node, before)) {
        return false;
    }
    if (node->op == GGML_OP_ADD) {
        const struct ggml_tensor *x = node->src[0], *y = node->src[1];
        return x == before && y != before ? add_tensor(a, y, node)
                                          : y == before && x != before && gb_same_ne(x, y) && add_tensor(a, x, node);
    }
    return node->src[0] == before && (node->op == GGML_OP_SCALE              ? add_scale(a, gb_op_param_f32(node, 0))
                                         : node->op == GGML_OP_DIAG_MASK_INF ? add_mask(a, node)
                                                                             : false);
}

// A large factor could overflow, because the softmax operator multiplies in double and this step in
// f32.
static bool add_soft_max(struct gb_attention * a, const struct ggml_tensor * node, const struct ggml_tensor * before) {
    const struct ggml_tensor * mask = node->src[1];
    const float scale = gb_op_param_f32(node, 0);
    return node->src[0] == before && gb_fuse_is_dense(node) && gb_op_param_f32(node, 1) == 0 && fabsf(scale) <= 1 &&
           add_scale(a, scale) && node->src[2] == NULL &&
           (mask == NULL || (mask != before && add_tensor(a, mask, node)));
}

// nb[i] is the distance in the copy along dimension i of the product, which PERMUTE moved.
static bool add_copy(struct chain * c, const struct ggml_tensor * copy, const struct ggml_tensor * product) {
    const struct ggml_tensor * p = copy->src[0];
    if ((copy->op != GGML_OP_CONT && copy->op != GGML_OP_CPY) || p == NULL || p->op != GGML_OP_PERMUTE ||
        p->src[0] != product || gb_op_param_i32(p, 0) != 0 || !gb_is_float(copy->type) || !ggml_is_contiguous(copy)) {
        return false;
    }
    for (int i = 0; i < 4; i++) {
        size_t stride = ggml_type_size(copy->type);
        for (int j = 0; j < gb_op_param_i32(p, i) && j < 4; j++) {
            stride *= (size_t) p->ne[j];
        }
        c->a.nb[i] = stride;
    }
    c->a.type = copy->type;
    c->a.out = copy->data;
    c->permuted = p;
    return true;
}

static bool add_values(struct chain * c, const struct ggml_tensor * node, const struct ggml_tensor * before) {
    if (node->op != GGML_OP_MUL_MAT || node->src[1] != before || node->src[0] == before || !gb_fuse_is_dense(node)) {
        return false;
    }
    c->a.v = node->src[0];
    c->a.type = GGML_TYPE_F32;
    c->a.out = node->data;
    memcpy(c->a.nb, node->nb, sizeof(c->a.nb));
    return true;
}

static bool follow(struct chain * c) {
    const struct ggml_tensor * first = c->nodes[0];
    int i = 1;
    if (c->n < 3 || first->op != GGML_OP_MUL_MAT || !gb_fuse_is_dense(first) || gb_is_empty(first)) {
        return false;
    }
    c->a = (struct gb_attention){ .k = first->src[0], .q = first->src[1], .scale = 1 };
    while (i < c->n && i < GB_FUSE_MAX - 2 && c->nodes[i]->op != GGML_OP_SOFT_MAX) {
        if (!add_node(&c->a, c->nodes[i], c->nodes[i - 1])) {
            return false;
        }
        i++;
    }
    if (i + 1 >= c->n || c->nodes[i]->op != GGML_OP_SOFT_MAX || !add_soft_max(&c->a, c->nodes[i], c->nodes[i - 1]) ||
        !add_values(c, c->nodes[i + 1], c->nodes[i]) || !gb_attention_is_tiled(&c->a)) {
        return false;
    }
    gb_attention_set_group(&c->a);
    c->length = i + 2;
    c->length += c->length < c->n && add_copy(c, c->nodes[c->length], c->nodes[c->length - 1]);
    return true;
}

static int attention_length(struct ggml_tensor * const * nodes, int n) {
    struct chain c = { .nodes = nodes, .n = n };
    return follow(&c) ? c.length : 0;
}

// ------------------------------------------------------------------------------------------------------------- running

static struct chain chain_of(struct ggml_tensor * const * nodes, int n) {
    struct chain c = { .nodes = nodes, .n = n };
    follow(&c);
    return c;
}

static int attention_tasks(struct ggml_tensor * const * nodes, int n, int n_threads) {
    const struct chain c = chain_of(nodes, n);
    return gb_tasks_for((double) gb_count(nodes[0]) * (double) c.a.q->ne[0] / 16, gb_attention_tiled_units(&c.a),
        n_threads);
}

static size_t attention_work(struct ggml_tensor * const * nodes, int n, int n_tasks) {
    const struct chain c = chain_of(nodes, n);
    return gb_floats_size(gb_attention_tiled_floats(&c.a), n_tasks) + gb_lines(ggml_nbytes(nodes[n - 1]));
}

static bool attention_is_safe(struct ggml_tensor * const * nodes, int n) {
    const struct chain c = chain_of(nodes, n);
    bool safe = gb_attention_is_aligned(&c.a) && (c.permuted == NULL || ggml_backend_may_leave_out(c.permuted));
    for (int i = 0; i < n - 1 && safe; i++) {
        safe = ggml_backend_may_leave_out(nodes[i]);
    }
    for (int i = 0; i < c.a.n_edits && safe; i++) {
        safe = c.a.edits[i].t == NULL || (uintptr_t) c.a.edits[i].t->data % sizeof(float) == 0;
    }
    return safe;
}

static bool attention_leaves_out(struct ggml_tensor * const * nodes, int n) {
    (void) nodes;
    return n > 0;
}

// True if a result would overwrite data that another thread still reads.
static bool is_over_sources(const struct gb_attention * a, const struct ggml_tensor * out) {
    bool over = !gb_fuse_is_disjoint(out, a->q) || !gb_fuse_is_disjoint(out, a->k) || !gb_fuse_is_disjoint(out, a->v);
    for (int i = 0; i < a->n_edits; i++) {
        over |= a->edits[i].t != NULL && !gb_fuse_is_disjoint(out, a->edits[i].t);
    }
    return over;
}

static void run_attention(const struct gb_cpu_call * call, struct ggml_tensor * const * nodes, int n) {
    struct chain c = chain_of(nodes, n);
    struct ggml_tensor * last = nodes[n - 1];
    if (!is_over_sources(&c.a, last)) {
        gb_attention_run_tiled(call, &c.a);
        return;
    }
    const size_t lines = gb_lines(ggml_nbytes(last)) / 64;
    int64_t first, end;
    c.a.out = (char *) call->work + gb_floats_size(gb_attention_tiled_floats(&c.a), call->nth);
    gb_attention_run_tiled(call, &c.a);
    if (!gb_cpu_barrier(call)) {
        return;
    }
    gb_cpu_share(call, (int64_t) lines, &first, &end);
    const size_t from = GB_MIN((size_t) first * 64, ggml_nbytes(last)),
                 to = GB_MIN((size_t) end * 64, ggml_nbytes(last));
    memcpy((char *) last->data + from, c.a.out + from, to - from);
}

const struct gb_fusion gb_fusion_attention = {
    .length = attention_length,
    .n_tasks = attention_tasks,
    .work_size = attention_work,
    .is_safe = attention_is_safe,
    .run = run_attention,
    .leaves_out = attention_leaves_out,
    .may_end = true,
};
