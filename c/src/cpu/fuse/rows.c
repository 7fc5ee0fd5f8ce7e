// fuse/rows.c - fuses groups of neighbouring operators on rows.
//
// An operator that works on rows (normalisation, mask, softmax, elementwise) reads only the same
// row of the previous node. So a thread computes a few rows through all nodes of a group while the
// rows are in the nearest cache. A group needs one barrier instead of one for each node.
//
// Invariant: each node computes and stores its result, with the same bits as without fusion.
// Exception: if a norm, its weight and its bias have the same memory, one pass computes them, and
// only the last result is stored.
//
// Rows of a group must not overlap in memory, which is_safe checks.
#include "cpu/fuse/fusions.h"
#include "cpu/ops/elements.h"

enum { BATCH = 4096 }; // elements of a node at a time

// ------------------------------------------------------------------------------------------------------------ matching

// True for operators whose effect on a row depends on the position of the row in its plane.
static bool is_mask(const struct ggml_tensor * node) {
    return node->op == GGML_OP_DIAG_MASK_INF || node->op == GGML_OP_DIAG_MASK_ZERO;
}

// Row i of the group's shape is row i of t.
static bool is_aligned(const struct ggml_tensor * t, const struct ggml_tensor * shape) {
    return gb_fuse_is_dense(t) && gb_same_ne(t, shape);
}

// Row i of the shape corresponds to row i mod t->ne[1] of t.
static bool is_periodic(const struct ggml_tensor * t, const struct ggml_tensor * shape, enum ggml_op op) {
    if (!gb_fuse_is_dense(t) || t->ne[2] != 1 || t->ne[3] != 1 || t->ne[1] < 1) {
        return false;
    }
    return (t->ne[0] == shape->ne[0] || (t->ne[0] == 1 && op != GGML_OP_SOFT_MAX)) && shape->ne[1] % t->ne[1] == 0;
}

// True if all sources fit, src[0] is aligned, and src[2] and later are NULL.
static bool fits(const struct ggml_tensor * node, const struct ggml_tensor * shape) {
    if (gb_op_info(node->op)->unit != GB_UNIT_ROW || !is_aligned(node, shape) || node->src[0] == NULL ||
        !is_aligned(node->src[0], shape)) {
        return false;
    }
    for (int i = 2; i < GGML_MAX_SRC; i++) {
        if (node->src[i] != NULL) {
            return false;
        }
    }
    if (node->op == GGML_OP_SOFT_MAX && gb_op_param_f32(node, 1) != 0) {
        return false; // ALiBi depends on the head, which a window does not have
    }
    if (is_mask(node) && node->ne[1] > INT32_MAX - (int64_t) gb_op_param_i32(node, 0)) {
        return false; // the shifted diagonal of a window would overflow
    }
    const struct ggml_tensor * b = node->src[1];
    return b == NULL || is_aligned(b, shape) || is_periodic(b, shape, node->op);
}

bool gb_fuse_joins(struct ggml_tensor * const * group, int n, const struct ggml_tensor * next) {
    const struct ggml_tensor * last = group[n - 1];
    if (n >= GB_FUSE_MAX || gb_is_empty(last) || (n == 1 && !fits(last, last)) || !fits(next, last)) {
        return false;
    }
    return next->src[0] == last || (next->src[1] == last && is_aligned(next->src[1], last));
}

static int rows_length(struct ggml_tensor * const * nodes, int n) {
    int length = 1;
    while (length < n && gb_fuse_joins(nodes, length, nodes[length])) {
        length++;
    }
    return length > 1 ? length : 0;
}

static bool rows_are_safe(struct ggml_tensor * const * group, int n) {
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) {
            const struct ggml_tensor *out = group[i], *a = group[j]->src[0], *b = group[j]->src[1];
            if (!gb_fuse_is_apart(out, group[j]) || !gb_fuse_is_apart(out, a) ||
                (b != NULL && !gb_fuse_is_apart(out, b))) {
                return false;
            }
            // A repeated row must not be written, even if it is the only row.
            if (b != NULL && !gb_same_ne(b, out) && !gb_fuse_is_disjoint(b, out)) {
                return false;
            }
        }
    }
    return true;
}

// ------------------------------------------------------------------------------------------------------------- running

struct window { // copies of a node and its sources, limited to some rows
    struct ggml_tensor node, src[2];
};

static int rows_tasks(struct ggml_tensor * const * group, int n, int n_threads) {
    int n_tasks = 1;
    for (int i = 0; i < n; i++) {
        const struct gb_cpu_op * op = gb_cpu_op_of(group[i]);
        n_tasks = GB_MAX(n_tasks,
            op->n_tasks != NULL ? op->n_tasks(group[i], n_threads) : gb_cpu_default_tasks(group[i], n_threads));
    }
    return n_tasks;
}

static size_t rows_work(struct ggml_tensor * const * group, int n, int n_tasks) { // a slice for each task
    size_t size = 0;
    for (int i = 0; i < n; i++) {
        const struct gb_cpu_op * op = gb_cpu_op_of(group[i]);
        size = GB_MAX(size, op->work_size != NULL ? op->work_size(group[i], 1) : 0);
    }
    return gb_lines(size) * (size_t) n_tasks;
}

static void show(struct ggml_tensor * t, const struct ggml_tensor * whole, int64_t row, int64_t rows) {
    t->data = (char *) whole->data + (size_t) row * whole->nb[1];
    t->ne[1] = rows;
    t->ne[2] = t->ne[3] = 1;
    t->nb[2] = t->nb[3] = t->nb[1] * (size_t) rows;
}

static void move_window(struct window * w, const struct ggml_tensor * node, int64_t row, int64_t rows) {
    show(&w->node, node, row, rows);
    if (is_mask(node)) { // the diagonal starts further right
        w->node.op_params[0] = gb_op_param_i32(node, 0) + (int32_t) (row % node->ne[1]);
    }
    for (int s = 0; s < 2 && node->src[s] != NULL; s++) {
        const struct ggml_tensor * t = node->src[s];
        if (gb_same_ne(t, node)) {
            show(&w->src[s], t, row, rows);
        } else if (t->ne[1] > 1) {
            show(&w->src[s], t, row % t->ne[1], rows);
        }
    }
}

static void open_window(struct window * w, const struct ggml_tensor * node) {
    w->node = *node;
    for (int s = 0; s < 2 && node->src[s] != NULL; s++) {
        w->src[s] = *node->src[s];
        w->node.src[s] = &w->src[s];
    }
}

// The number of rows from `row` on within which no source repeats and no plane of a mask ends.
static int64_t rows_at_once(struct ggml_tensor * const * group, int n, int64_t row, int64_t rows) {
    for (int i = 0; i < n; i++) {
        const struct ggml_tensor * b = group[i]->src[1];
        if (b != NULL && !gb_same_ne(b, group[i]) && b->ne[1] > 1) {
            rows = GB_MIN(rows, b->ne[1] - row % b->ne[1]);
        }
        if (is_mask(group[i])) {
            rows = GB_MIN(rows, group[i]->ne[1] - row % group[i]->ne[1]);
        }
    }
    return rows;
}

static bool is_row_of(const struct ggml_tensor * node, enum ggml_op op, const struct ggml_tensor * before) {
    const struct ggml_tensor * b = node->src[1];
    return node->op == op && node->src[0] == before && node->data == before->data && b->ne[0] == node->ne[0] &&
           b->ne[1] == 1 && b->ne[2] == 1 && b->ne[3] == 1;
}

// The number of nodes that are a norm with weight and bias in the same memory. 0: none.
static int norm_length(struct ggml_tensor * const * group, int n) {
    const enum ggml_op op = group[0]->op;
    if ((op != GGML_OP_NORM && op != GGML_OP_RMS_NORM) || n < 2 || !is_row_of(group[1], GGML_OP_MUL, group[0])) {
        return 0;
    }
    return op == GGML_OP_NORM && n > 2 && is_row_of(group[2], GGML_OP_ADD, group[1]) ? 3 : 2;
}

static void run_norm(const struct gb_kernels * k, const struct window * w, int n) {
    const int64_t columns = w->node.ne[0];
    const float eps = gb_op_param_f32(&w->node, 0);
    for (int64_t i = 0; i < w->node.ne[1]; i++) {
        float * y = (float *) w->node.data + i * columns;
        const float * x = (const float *) w->src[0].data + i * columns;
        if (w->node.op == GGML_OP_NORM) {
            k->norm_row_f32(columns, y, x, eps, w[1].src[1].data, n > 2 ? w[2].src[1].data : NULL);
        } else {
            k->rms_norm_row_f32(columns, y, x, eps, w[1].src[1].data);
        }
    }
}

static void run_rows(const struct gb_cpu_call * call, struct ggml_tensor * const * group, int n) {
    struct window windows[GB_FUSE_MAX];
    const size_t slice = call->work_size / (size_t) call->nth & ~(size_t) 63;
    struct gb_cpu_call alone = *call;
    const int64_t batch = GB_MAX((int64_t) 1, BATCH / group[0]->ne[0]);
    int64_t first, last, rows;
    alone.ith = 0;
    alone.nth = 1;
    alone.work = slice > 0 ? (char *) call->work + (size_t) call->ith * slice : NULL;
    alone.work_size = slice;
    for (int i = 0; i < n; i++) {
        open_window(&windows[i], group[i]);
    }
    gb_cpu_share(call, gb_rows(group[0]), &first, &last);
    for (int64_t row = first; row < last; row += rows) {
        rows = rows_at_once(group, n, row, GB_MIN(batch, last - row));
        for (int i = 0; i < n; i++) {
            move_window(&windows[i], group[i], row, rows);
        }
        for (int i = 0; i < n;) {
            const int length = norm_length(group + i, n - i);
            if (length > 0) {
                run_norm(call->k, &windows[i], length);
            } else {
                gb_cpu_op_of(group[i])->run(&alone, &windows[i].node);
            }
            i += GB_MAX(length, 1);
        }
        if (gb_cpu_stopped(call, rows * group[0]->ne[0])) {
            return;
        }
    }
}

const struct gb_fusion gb_fusion_rows = {
    .length = rows_length,
    .n_tasks = rows_tasks,
    .work_size = rows_work,
    .is_safe = rows_are_safe,
    .run = run_rows,
};
