// fuse/conv.c - fuses convolutions with the nodes behind them.
//
//     columns:      IM2COL [CPY] MUL_MAT
//     convolution:  CONV_2D | CONV_2D_DW | CONV_3D  [ADD | SUB | MUL | DIV | SCALE | UNARY | ...]+
//
// columns computes the forms of early 2024 in one step, and never stores the columns. It rounds the input as IM2COL
// does. Results agree with the unfused ones within the rounding of a float sum.
//
// The operators behind a convolution read its result and, if they have another operand, one number for each channel or
// a tensor of the same shape. They are applied to rows of positions as soon as these are complete, so results are the
// same bits as without fusion.
#include "cpu/fuse/fusions.h"
#include "cpu/ops/conv/conv.h"
#include "ggml-backend-impl.h"

// ------------------------------------------------------------------------------------------------------------- columns

// The kernel of the product, if its other operand is the rows as a whole; NULL: it is another product. `depthwise`: the
// rows of each channel meet a kernel of their own.
static const struct ggml_tensor * kernel_of(const struct ggml_tensor * rows, const struct ggml_tensor * product,
    bool depthwise) {
    const struct ggml_tensor * seen = product->src[depthwise ? 1 : 0];
    const struct ggml_tensor * kernel = product->src[depthwise ? 0 : 1];
    if (gb_root(seen) != rows || seen == NULL || seen->view_offs != 0 || !ggml_is_contiguous(seen) ||
        gb_count(seen) != gb_count(rows) || seen->ne[0] != rows->ne[0] || gb_root(kernel) == rows ||
        (kernel->type != GGML_TYPE_F32 && kernel->type != GGML_TYPE_F16) || !ggml_is_contiguous(kernel)) {
        return NULL;
    }
    const bool is_matrix = kernel->ne[2] == 1 && kernel->ne[3] == 1 && seen->ne[2] == 1 && seen->ne[3] == 1;
    const bool is_each = kernel->ne[1] == 1 && kernel->ne[3] == 1 && kernel->ne[2] == seen->ne[2];
    return (depthwise ? is_each : is_matrix) ? kernel : NULL;
}

static int columns_length(struct ggml_tensor * const * nodes, int n) {
    const struct ggml_tensor * columns = nodes[0];
    const int last = n > 2 && nodes[1]->op == GGML_OP_CPY ? 2 : 1;
    if (n < 2 || columns->op != GGML_OP_IM2COL || !ggml_is_contiguous(columns) || gb_is_empty(columns) ||
        !gb_is_float(columns->src[1]->type) || nodes[last]->op != GGML_OP_MUL_MAT || !gb_fuse_is_dense(nodes[last]) ||
        gb_is_empty(nodes[last])) {
        return 0;
    }
    if (last == 2 && (nodes[1]->src[0] != columns || nodes[1]->type != GGML_TYPE_F32 || !ggml_is_contiguous(nodes[1]) ||
                         nodes[1]->view_src != NULL)) {
        return 0;
    }
    const bool each = columns->op_params[6] == 1 && columns->src[1]->ne[2] == 1;
    return kernel_of(nodes[last - 1], nodes[last], false) != NULL ||
                   (each && kernel_of(nodes[last - 1], nodes[last], true) != NULL)
               ? last + 1
               : 0;
}

static struct gb_conv_job columns_job(struct ggml_tensor * const * nodes, int n) {
    const struct ggml_tensor *columns = nodes[0], *rows = nodes[n - 2], *product = nodes[n - 1];
    const struct ggml_tensor * kernel = kernel_of(rows, product, false);
    if (kernel != NULL) {
        return gb_conv_job_of_columns(columns, product, kernel);
    }
    kernel = kernel_of(rows, product, true);
    struct gb_conv_job j = gb_conv_job_of_columns(columns, product, kernel);
    j.groups = kernel->ne[2]; // channels, which IM2COL takes for images
    j.oc = 1;
    j.batches /= j.groups;
    j.x_channel = j.x_batch;
    j.x_batch *= (size_t) j.groups;
    j.y_channel = gb_conv_positions(&j);
    j.y_batch = j.y_channel * j.groups;
    return j;
}

static int columns_tasks(struct ggml_tensor * const * nodes, int n, int n_threads) {
    const struct gb_conv_job j = columns_job(nodes, n);
    return gb_conv_n_tasks(&j, n_threads);
}

static size_t columns_work(struct ggml_tensor * const * nodes, int n, int n_tasks) {
    const struct gb_conv_job j = columns_job(nodes, n);
    return gb_conv_work_size(&j, n_tasks);
}

// The memory of the product can be that of the input, which nobody reads after IM2COL. Results then go to the memory of
// the columns first.
static bool is_apart(struct ggml_tensor * const * nodes, int n) {
    return gb_fuse_is_disjoint(nodes[n - 1], nodes[0]->src[1]);
}

static bool columns_is_safe(struct ggml_tensor * const * nodes, int n) {
    const struct ggml_tensor *product = nodes[n - 1], *columns = nodes[0];
    const struct ggml_tensor * kernel = product->src[gb_root(product->src[0]) == nodes[n - 2] ? 1 : 0];
    bool safe = gb_fuse_is_disjoint(product, kernel) && (uintptr_t) product->data % sizeof(float) == 0;
    for (int i = 0; i + 1 < n && safe; i++) {
        safe = ggml_backend_may_leave_out(nodes[i]);
    }
    return safe && (is_apart(nodes, n) ||
                       (ggml_nbytes(columns) >= ggml_nbytes(product) && gb_fuse_is_disjoint(product, columns) &&
                           gb_fuse_is_disjoint(columns, columns->src[1]) && gb_fuse_is_disjoint(columns, kernel) &&
                           (uintptr_t) columns->data % sizeof(float) == 0));
}

static void run_columns(const struct gb_cpu_call * call, struct ggml_tensor * const * nodes, int n) {
    struct gb_conv_job j = columns_job(nodes, n);
    struct ggml_tensor * product = nodes[n - 1];
    if (is_apart(nodes, n)) {
        gb_conv_run(call, &j);
        return;
    }
    j.y = (float *) nodes[0]->data;
    gb_conv_run(call, &j);
    int64_t first, last;
    gb_cpu_share(call, gb_count(product), &first, &last);
    if (gb_cpu_barrier(call) && first < last) {
        memcpy((float *) product->data + first, j.y + first, (size_t) (last - first) * sizeof(float));
    }
}

static bool columns_leave_out(struct ggml_tensor * const * nodes, int n) {
    (void) nodes;
    (void) n;
    return true;
}

const struct gb_fusion gb_fusion_columns = {
    .length = columns_length,
    .n_tasks = columns_tasks,
    .work_size = columns_work,
    .is_safe = columns_is_safe,
    .run = run_columns,
    .leaves_out = columns_leave_out,
};

// --------------------------------------------------------------------------------------------------------- convolution

struct stage { // an operator behind the convolution
    const struct ggml_tensor * node;
    gb_map1 * map1;                   // for one source, or
    gb_map2 * map2;                   // for two sources
    const struct ggml_tensor * other; // for two sources: the one that is not the previous result
    bool swapped;                     // `other` is src[0]
    bool per_channel;                 // `other` has one number for each channel
    char *from, *to;                  // data of the previous result; memory for this result
};

struct convolution {
    struct gb_conv_epilogue epilogue;
    const char * y; // data of the convolution
    int n;
    struct stage stages[GB_FUSE_MAX - 1];
};

static bool is_per_channel(const struct ggml_tensor * t, const struct ggml_tensor * y) {
    return gb_fuse_is_dense(t) && y->op != GGML_OP_CONV_3D && t->ne[0] == 1 && t->ne[1] == 1 && t->ne[2] == y->ne[2] &&
           t->ne[3] == 1;
}

static bool follow(struct stage * s, const struct ggml_tensor * node, const struct ggml_tensor * before,
    const struct ggml_tensor * y) {
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
    if (s->map2 == NULL || s->other == NULL || a == b || (s->swapped && b != before)) {
        return false;
    }
    s->per_channel = !s->swapped && is_per_channel(b, y) && !gb_same_ne(b, node);
    return s->per_channel || (gb_fuse_is_dense(s->other) && gb_same_ne(s->other, node));
}

static int convolution_length(struct ggml_tensor * const * nodes, int n) {
    struct stage s;
    int length = 1;
    if (!gb_fuse_is_dense(nodes[0]) || gb_is_empty(nodes[0])) {
        return 0;
    }
    while (length < n && length < GB_FUSE_MAX && follow(&s, nodes[length], nodes[length - 1], nodes[0])) {
        length++;
    }
    return length > 1 ? length : 0;
}

static int convolution_tasks(struct ggml_tensor * const * nodes, int n, int n_threads) {
    (void) n;
    return gb_cpu_op_of(nodes[0])->n_tasks(nodes[0], n_threads);
}

static size_t convolution_work(struct ggml_tensor * const * nodes, int n, int n_tasks) {
    (void) n;
    return gb_cpu_op_of(nodes[0])->work_size(nodes[0], n_tasks);
}

// Results that are left out stay in the memory of the convolution.
static struct convolution convolution_of(struct ggml_tensor * const * nodes, int n) {
    struct convolution c = { .y = nodes[0]->data, .n = n - 1 };
    bool stays = ggml_backend_may_leave_out(nodes[0]);
    char * from = nodes[0]->data;
    for (int i = 1; i < n; i++) {
        struct stage * s = &c.stages[i - 1];
        const bool left_out = stays && i + 1 < n && ggml_backend_may_leave_out(nodes[i]);
        follow(s, nodes[i], nodes[i - 1], nodes[0]);
        s->from = from;
        s->to = left_out ? nodes[0]->data : nodes[i]->data;
        stays = stays && (left_out || s->to != c.y); // until one that is stored lies there
        from = s->to;
    }
    return c;
}

// No write may overlap the operands of the convolution, numbers of channels, or other elements of an operand.
static bool convolution_is_safe(struct ggml_tensor * const * nodes, int n) {
    const struct convolution c = convolution_of(nodes, n);
    bool safe = (uintptr_t) nodes[0]->data % sizeof(float) == 0;
    for (int i = 0; i < c.n && safe; i++) {
        const bool stays = c.stages[i].to == c.y;
        const struct ggml_tensor * target = stays ? nodes[0] : c.stages[i].node;
        safe = (uintptr_t) target->data % sizeof(float) == 0 && gb_fuse_is_disjoint(target, nodes[0]->src[0]) &&
               gb_fuse_is_disjoint(target, nodes[0]->src[1]) && gb_fuse_is_apart(target, nodes[0]);
        for (int k = 0; k < c.n && safe; k++) {
            const struct stage * s = &c.stages[k];
            safe =
                gb_fuse_is_apart(target, s->to == c.y ? nodes[0] : s->node) &&
                (s->other == NULL ||
                    ((uintptr_t) s->other->data % sizeof(float) == 0 &&
                        (s->per_channel ? gb_fuse_is_disjoint(target, s->other) : gb_fuse_is_apart(target, s->other))));
        }
    }
    return safe;
}

// At most GB_RUN results.
static void finish_run(const struct gb_cpu_call * call, const struct convolution * c, size_t at, int64_t channel,
    int64_t n) {
    for (int i = 0; i < c->n; i++) {
        const struct stage * s = &c->stages[i];
        const float * x = (const float *) (const void *) (s->from + at);
        float * y = (float *) (void *) (s->to + at);
        float same[GB_RUN];
        if (s->map1 != NULL) {
            s->map1(call, s->node, n, y, x);
            continue;
        }
        const float * other =
            (const float *) (const void *) ((const char *) s->other->data + (s->per_channel ? 0 : at));
        for (int64_t k = 0; k < n && s->per_channel; k++) {
            same[k] = other[channel];
        }
        other = s->per_channel ? same : other;
        s->map2(call, s->node, n, y, s->swapped ? other : x, s->swapped ? x : other);
    }
}

static void finish(const struct gb_cpu_call * call, const struct gb_conv_epilogue * e, float * dst, int64_t channel,
    int64_t n) {
    const struct convolution * c = e->context;
    for (int64_t i = 0; i < n; i += GB_RUN) {
        finish_run(call, c, (size_t) ((const char *) (dst + i) - c->y), channel, GB_MIN(n - i, (int64_t) GB_RUN));
    }
}

static void run_convolution(const struct gb_cpu_call * call, struct ggml_tensor * const * nodes, int n) {
    struct convolution c = convolution_of(nodes, n);
    struct gb_conv_job j = gb_conv_job_of(nodes[0]);
    c.epilogue = (struct gb_conv_epilogue){ finish, &c };
    j.epilogue = &c.epilogue;
    gb_conv_run(call, &j);
}

static bool convolution_leaves_out(struct ggml_tensor * const * nodes, int n) {
    const struct convolution c = convolution_of(nodes, n);
    bool some = false;
    for (int i = 0; i < c.n; i++) {
        some |= c.stages[i].to != (const char *) c.stages[i].node->data;
    }
    return some;
}

const struct gb_fusion gb_fusion_convolution = {
    .length = convolution_length,
    .n_tasks = convolution_tasks,
    .work_size = convolution_work,
    .is_safe = convolution_is_safe,
    .run = run_convolution,
    .leaves_out = convolution_leaves_out,
};
