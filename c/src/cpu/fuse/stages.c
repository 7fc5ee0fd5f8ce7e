// fuse/stages.c - the elementwise operators after a product or a convolution.
#include "cpu/fuse/stages.h"

#include <math.h>

#include "ggml-backend-impl.h"

// DUP of a dense tensor, usually before an operator that computes in place.
static void map_dup(const struct gb_cpu_call * call, const struct ggml_tensor * node, int64_t n, float * y,
    const float * x) {
    (void) call;
    (void) node;
    if (y != x) {
        memcpy(y, x, (size_t) n * sizeof(*y));
    }
}

static bool follow(struct gb_fuse_stage * s, const struct ggml_tensor * node, const struct ggml_tensor * before,
    const struct ggml_tensor * first, gb_fuse_is_shared * is_shared) {
    const struct ggml_tensor *a = node->src[0], *b = node->src[1];
    const struct gb_cpu_op * op = gb_cpu_op_of(node);
    *s = (struct gb_fuse_stage){ .node = node, .map1 = op ? op->map1 : NULL, .map2 = op ? op->map2 : NULL };
    if (!gb_fuse_is_dense(node) || !gb_same_ne(node, before) || node->src[2] != NULL) {
        return false;
    }
    if (node->op == GGML_OP_DUP) {
        s->map1 = map_dup;
    }
    if (s->map1 != NULL) {
        return a == before && b == NULL;
    }
    s->swapped = a != before;
    s->other = s->swapped ? a : b;
    if (s->map2 == NULL || s->other == NULL || a == b || (s->swapped && b != before) || !gb_fuse_is_dense(s->other)) {
        return false;
    }
    s->shared = !s->swapped && !gb_same_ne(b, node) && is_shared(b, first);
    return s->shared || gb_same_ne(s->other, node);
}

int gb_fuse_stages_length(struct ggml_tensor * const * nodes, int n, gb_fuse_is_shared * is_shared) {
    struct gb_fuse_stage s;
    int length = 1;
    if (!gb_fuse_is_dense(nodes[0]) || gb_is_empty(nodes[0])) {
        return 0;
    }
    while (length < n && length < GB_FUSE_MAX && follow(&s, nodes[length], nodes[length - 1], nodes[0], is_shared)) {
        length++;
    }
    return length > 1 ? length : 0;
}

struct gb_fuse_stages gb_fuse_stages_of(struct ggml_tensor * const * nodes, int n, gb_fuse_is_shared * is_shared) {
    struct gb_fuse_stages all = { .first = nodes[0]->data, .n = n - 1 };
    bool reuse = ggml_backend_may_leave_out(nodes[0]); // its memory can hold results that are not stored
    const char * from = all.first;
    all.hidden = true;
    for (int i = 1; i < n; i++) {
        struct gb_fuse_stage * s = &all.stages[i - 1];
        const bool left_out = reuse && i + 1 < n && ggml_backend_may_leave_out(nodes[i]);
        all.hidden = all.hidden && (left_out || i + 1 == n);
        follow(s, nodes[i], nodes[i - 1], nodes[0], is_shared);
        s->from = from;
        s->to = left_out ? all.first : nodes[i]->data;
        reuse = reuse && (left_out || s->to != all.first); // a stored result must stay
        from = s->to;
    }
    return all;
}

static bool is_aligned(const struct ggml_tensor * t) { return (uintptr_t) t->data % sizeof(float) == 0; }

bool gb_fuse_stages_are_safe(const struct gb_fuse_stages * s, struct ggml_tensor * const * nodes) {
    bool safe = is_aligned(nodes[0]);
    for (int i = 0; i < s->n && safe; i++) {
        const bool stays = s->stages[i].to == s->first; // in place, or not stored
        const struct ggml_tensor * target = stays ? nodes[0] : s->stages[i].node;
        safe = is_aligned(target) && gb_fuse_is_disjoint(target, nodes[0]->src[0]) &&
               gb_fuse_is_disjoint(target, nodes[0]->src[1]) && gb_fuse_is_apart(target, nodes[0]);
        for (int k = 0; k < s->n && safe; k++) {
            const struct gb_fuse_stage * other = &s->stages[k];
            const struct ggml_tensor * operand = other->other;
            safe = gb_fuse_is_apart(target, other->to == s->first ? nodes[0] : other->node) &&
                   (operand == NULL || (is_aligned(operand) && (other->shared ? gb_fuse_is_disjoint(target, operand)
                                                                              : gb_fuse_is_apart(target, operand))));
        }
    }
    return safe;
}

bool gb_fuse_stages_leave_out(const struct gb_fuse_stages * s) {
    bool some = false;
    for (int i = 0; i < s->n; i++) {
        some |= s->stages[i].to != (const char *) s->stages[i].node->data;
    }
    return some;
}

// The limits of a CLAMP or RELU. False: another operator. RELU is a limit of 0 that keeps NaN and -0, as CLAMP does.
static bool limits_of(const struct ggml_tensor * node, float * min, float * max) {
    if (node->op == GGML_OP_CLAMP) {
        *min = gb_op_param_f32(node, 0);
        *max = gb_op_param_f32(node, 1);
        return true;
    }
    if (node->op != GGML_OP_UNARY || ggml_get_unary_op(node) != GGML_UNARY_OP_RELU) {
        return false;
    }
    *min = 0.0f;
    *max = INFINITY;
    return true;
}

bool gb_fuse_stages_are_pass(const struct gb_fuse_stages * s, struct gb_fuse_pass * pass) {
    bool limited = false;
    *pass = (struct gb_fuse_pass){ NULL, NULL, -INFINITY, INFINITY, s->stages[s->n - 1].to };
    for (int i = 0; i < s->n; i++) {
        const struct gb_fuse_stage * stage = &s->stages[i];
        const bool adds = stage->node->op == GGML_OP_ADD && !limited && pass->other == NULL;
        if (adds && stage->shared && pass->shift == NULL) {
            pass->shift = stage->other;
        } else if (adds && !stage->shared) {
            pass->other = stage->other;
        } else if (!limited && limits_of(stage->node, &pass->min, &pass->max)) {
            limited = true;
        } else if (stage->node->op != GGML_OP_DUP) {
            return false;
        }
    }
    return s->numbers && s->hidden;
}

void gb_fuse_stages_run(const struct gb_cpu_call * call, const struct gb_fuse_stages * all, size_t at, int64_t place,
    int64_t n, gb_fuse_shared_run * shared, float * room) {
    for (int i = 0; i < all->n; i++) {
        const struct gb_fuse_stage * s = &all->stages[i];
        const float * x = (const float *) (const void *) (s->from + at);
        float * y = (float *) (void *) (s->to + at);
        if (s->map1 != NULL) {
            s->map1(call, s->node, n, y, x);
            continue;
        }
        const bool is_number = s->shared && all->numbers;
        if (is_number && s->node->op == GGML_OP_ADD) {
            call->k->add1_f32(n, y, x, *shared(s->other, place, 1, room));
            continue;
        }
        if (is_number && s->node->op == GGML_OP_MUL) {
            call->k->scale_f32(n, y, x, *shared(s->other, place, 1, room));
            continue;
        }
        const float * other = s->shared ? shared(s->other, place, n, room)
                                        : (const float *) (const void *) ((const char *) s->other->data + at);
        s->map2(call, s->node, n, y, s->swapped ? other : x, s->swapped ? x : other);
    }
}

int gb_fuse_first_tasks(struct ggml_tensor * const * nodes, int n, int n_threads) {
    (void) n;
    return gb_cpu_op_of(nodes[0])->n_tasks(nodes[0], n_threads);
}

size_t gb_fuse_first_work(struct ggml_tensor * const * nodes, int n, int n_tasks) {
    (void) n;
    return gb_cpu_op_of(nodes[0])->work_size(nodes[0], n_tasks);
}
