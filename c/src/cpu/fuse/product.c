// fuse/product.c - fuses a product with later elementwise operators: bias, activation, gate,
// residual.
//
//     MUL_MAT [ADD | SUB | MUL | DIV | SCALE | UNARY | CLAMP | LEAKY_RELU | SQR | SQRT | LOG]+
//
// Each operator reads the result of the operator before it. It may also read a tensor of the same
// shape, or a row that all rows share. The operators are applied to parts of rows as soon as the
// product has completed them (gb_gemm_epilogue). Each element goes through the same functions, so
// results are the same bits as without fusion. A result that no other code can read is not stored.
//
// Only results that fit into caches are fused. The fusion saves a barrier. But a product completes
// rows in pieces, and pieces are slower to read from memory than whole rows.
#include "cpu/fuse/fusions.h"
#include "cpu/ops/elements.h"
#include "cpu/ops/product/product.h"
#include "ggml-backend-impl.h"

enum { ELEMENTS_MAX = 1 << 17 }; // of a result

struct stage { // an operator after the product
    const struct ggml_tensor * node;
    gb_map1 * map1;                   // for one source, or
    gb_map2 * map2;                   // for two sources
    const struct ggml_tensor * other;  // for two sources: the one that is not the previous result
    bool swapped;                     // `other` is src[0]
    const char *from, *to;            // data of the previous result; memory for this result
};

struct product { // the product and its stages
    struct gb_gemm_epilogue epilogue;
    const char * product; // data
    int n;
    struct stage stages[GB_FUSE_MAX - 1];
};

// ------------------------------------------------------------------------------------------------------------ matching

static bool is_row(const struct ggml_tensor * t, const struct ggml_tensor * shape) {
    return gb_fuse_is_dense(t) && t->ne[0] == shape->ne[0] && t->ne[1] == 1 && t->ne[2] == 1 && t->ne[3] == 1;
}

static bool follow(struct stage * s, const struct ggml_tensor * node, const struct ggml_tensor * before) {
    const struct ggml_tensor *a = node->src[0], *b = node->src[1];
    const struct gb_cpu_op * op = gb_cpu_op_of(node);
    *s = (struct stage){ .node = node, .map1 = op ? op->map1 : NULL, .map2 = op ? op->map2 : NULL };
    if (!gb_fuse_is_dense(node) || !gb_same_ne(node, before) || node->src[2] != NULL) {
        return false;
    }
    if (s->map1 != NULL) {
        return a == before && b == NULL;
    }
    s->swapped = a != before;
    s->other = s->swapped ? a : b;
    return s->map2 != NULL && s->other != NULL &&
           (s->swapped ? b == before && gb_fuse_is_dense(a) && gb_same_ne(a, node)
                       : b != before && (is_row(b, node) || (gb_fuse_is_dense(b) && gb_same_ne(b, node))));
}

static int product_length(struct ggml_tensor * const * nodes, int n) {
    struct stage s;
    int length = 1;
    if (nodes[0]->op != GGML_OP_MUL_MAT || !gb_fuse_is_dense(nodes[0]) || gb_is_empty(nodes[0]) ||
        gb_count(nodes[0]) > ELEMENTS_MAX) {
        return 0;
    }
    while (length < n && length < GB_FUSE_MAX && follow(&s, nodes[length], nodes[length - 1])) {
        length++;
    }
    return length > 1 ? length : 0;
}

// ------------------------------------------------------------------------------------------------------------- running

static int product_tasks(struct ggml_tensor * const * nodes, int n, int n_threads) {
    (void) n;
    return gb_cpu_op_of(nodes[0])->n_tasks(nodes[0], n_threads);
}

static size_t product_work(struct ggml_tensor * const * nodes, int n, int n_tasks) {
    (void) n;
    return gb_cpu_op_of(nodes[0])->work_size(nodes[0], n_tasks);
}

static struct product product_of(struct ggml_tensor * const * nodes, int n) {
    struct product l = { .product = nodes[0]->data, .n = n - 1 };
    bool reuse = ggml_backend_may_leave_out(nodes[0]); // its memory takes results that are not stored,
    const char * from = nodes[0]->data;
    for (int i = 1; i < n; i++) {
        struct stage * s = &l.stages[i - 1];
        const bool left_out = reuse && i + 1 < n && ggml_backend_may_leave_out(nodes[i]);
        follow(s, nodes[i], nodes[i - 1]);
        s->from = from;
        s->to = left_out ? nodes[0]->data : nodes[i]->data;
        reuse = reuse && (left_out || s->to != l.product); // until one that is stored lies there
        from = s->to;
    }
    return l;
}

static bool is_aligned(const struct ggml_tensor * t) { return (uintptr_t) t->data % sizeof(float) == 0; }

// True if no write overlaps the operands of the product, shared rows, or other elements of the
// operators' operands.
static bool product_is_safe(struct ggml_tensor * const * nodes, int n) {
    const struct product l = product_of(nodes, n);
    bool safe = is_aligned(nodes[0]);
    for (int i = 0; i < l.n && safe; i++) {
        const struct ggml_tensor * out = l.stages[i].node;
        const bool stays = l.stages[i].to == l.product; // in place, or not stored
        const struct ggml_tensor * target = stays ? nodes[0] : out;
        safe = is_aligned(out) && gb_fuse_is_disjoint(target, nodes[0]->src[0]) &&
               gb_fuse_is_disjoint(target, nodes[0]->src[1]) && gb_fuse_is_apart(target, nodes[0]);
        for (int j = 0; j < l.n && safe; j++) {
            const struct ggml_tensor * other = l.stages[j].other;
            safe =
                gb_fuse_is_apart(target, l.stages[j].to == l.product ? nodes[0] : l.stages[j].node) &&
                (other == NULL || (is_aligned(other) && (gb_same_ne(other, out) ? gb_fuse_is_apart(target, other)
                                                                                : gb_fuse_is_disjoint(target, other))));
        }
    }
    return safe;
}

static void finish(const struct gb_cpu_call * call, const struct gb_gemm_epilogue * e, float * dst, int64_t column,
    int64_t n) {
    const struct product * l = e->context;
    const size_t at = (size_t) ((const char *) dst - l->product);
    for (int i = 0; i < l->n; i++) {
        const struct stage * s = &l->stages[i];
        const float * x = (const float *) (const void *) (s->from + at);
        float * y = (float *) (void *) (uintptr_t) (s->to + at);
        if (s->map1 != NULL) {
            s->map1(call, s->node, n, y, x);
            continue;
        }
        const char * p = s->other->data;
        const float * other =
            (const float *) (const void *) (p + (gb_same_ne(s->other, s->node) ? at : (size_t) column * sizeof(float)));
        s->map2(call, s->node, n, y, s->swapped ? other : x, s->swapped ? x : other);
    }
}

static void run_product(const struct gb_cpu_call * call, struct ggml_tensor * const * nodes, int n) {
    struct product l = product_of(nodes, n);
    l.epilogue = (struct gb_gemm_epilogue){ finish, &l };
    gb_mul_mat_run_with(call, nodes[0], &l.epilogue);
}

static bool product_leaves_out(struct ggml_tensor * const * nodes, int n) {
    const struct product l = product_of(nodes, n);
    bool some = false;
    for (int i = 0; i < l.n; i++) {
        some |= l.stages[i].to != (const char *) l.stages[i].node->data;
    }
    return some;
}

const struct gb_fusion gb_fusion_product = {
    .length = product_length,
    .n_tasks = product_tasks,
    .work_size = product_work,
    .is_safe = product_is_safe,
    .run = run_product,
    .leaves_out = product_leaves_out,
};
