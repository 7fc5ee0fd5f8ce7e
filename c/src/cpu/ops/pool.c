// pool.c - POOL_1D and POOL_2D: the maximum or mean of windows. Positions outside the input are
// skipped, but the mean divides by the size of the whole window. A window with a NaN gives NaN. The
// maximum of a window that is fully outside is -inf.
#include <math.h>

#include "cpu/ops/elements.h"

// k: window, s: stride, p: padding, with 0 for x and 1 for y. In 1-d, windows have height 1.
struct pool {
    enum ggml_op_pool op;
    int k0, k1, s0, s1, p0, p1;
};

// op_params: op, k0, s0, p0 in 1-d; op, k0, k1, s0, s1, p0, p1 in 2-d.
static struct pool pool_of(const struct ggml_tensor * node) {
    const bool is_1d = node->op == GGML_OP_POOL_1D;
    const int * p = node->op_params;
    return is_1d ? (struct pool){ (enum ggml_op_pool) p[0], p[1], 1, p[2], 1, p[3], 0 }
                 : (struct pool){ (enum ggml_op_pool) p[0], p[1], p[2], p[3], p[4], p[5], p[6] };
}

// Adds one input row to the accumulators of an output row. False: the run is over.
static bool take_row(const struct gb_cpu_call * call, const struct pool * p, double * acc, int64_t n_out,
    const float * x, int64_t n_in) {
    const int64_t width = GB_MIN((int64_t) p->k0, n_in), piece = GB_STRETCH / width + 1; // n_in is above 0
    for (int64_t o = 0; o < n_out;) {
        const int64_t end = GB_MIN(n_out, o + piece);
        if (gb_cpu_stopped(call, (end - o) * (2 + width))) {
            return false;
        }
        for (; o < end; o++) {
            const int64_t from = o * p->s0 - p->p0;
            const int64_t to = GB_MIN(from + p->k0, n_in);
            for (int64_t i = GB_MAX(from, (int64_t) 0); i < to; i++) {
                if (p->op == GGML_OP_POOL_AVG) {
                    acc[o] += x[i];
                } else if (!(x[i] <= acc[o]) && !isnan(acc[o])) { // NaN replaces x and stays
                    acc[o] = x[i];
                }
            }
        }
    }
    return true;
}

// Scratch of a thread: accumulators, the output row, an input row.
static size_t pool_work(const struct ggml_tensor * node, int n_tasks) {
    return gb_floats_size(3 * node->ne[0] + node->src[0]->ne[0], n_tasks);
}

// Threads share the rows of the result. Accumulators are double. Input rows are added one by one.
static void run_pool(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const struct ggml_tensor * a = node->src[0];
    const struct pool p = pool_of(node);
    const int64_t n = node->ne[0];
    const bool is_1d = node->op == GGML_OP_POOL_1D;
    float * mem = gb_my_floats(call, 3 * n + a->ne[0]);
    double * acc = (double *) (void *) mem;
    float * out = mem + 2 * n;
    int64_t first, last;
    gb_cpu_share(call, n > 0 ? gb_rows(node) : 0, &first, &last);
    for (int64_t i = first; i < last; i++) {
        const struct gb_row r = gb_row_at(node, i);
        const int64_t from = is_1d ? r.i1 : r.i1 * p.s1 - p.p1; // in 1-d every row is its own window
        const int64_t to = is_1d ? r.i1 + 1 : GB_MIN(from + p.k1, a->ne[1]);
        for (int64_t o = 0; o < n; o++) {
            acc[o] = p.op == GGML_OP_POOL_AVG ? 0.0 : -INFINITY;
        }
        for (int64_t y = GB_MAX(from, (int64_t) 0); y < to && a->ne[0] > 0; y++) {
            if (!take_row(call, &p, acc, n, gb_in(call->k, a, gb_row_ptr(a, y, r.i2, r.i3), a->ne[0], mem + 3 * n),
                    a->ne[0])) {
                return;
            }
        }
        for (int64_t o = 0; o < n; o++) {
            out[o] = (float) (p.op == GGML_OP_POOL_AVG ? acc[o] / ((double) p.k0 * p.k1) : acc[o]);
        }
        gb_store(call->k, node->type, n, gb_row_of(node, r), node->nb[0], out);
    }
}

// Windows must have elements, and strides must be positive.
static const char * pool_unsupported(const struct ggml_tensor * node) {
    const struct pool p = pool_of(node);
    if (p.op != GGML_OP_POOL_AVG && p.op != GGML_OP_POOL_MAX) {
        return "unknown pooling op";
    }
    return p.k0 < 1 || p.k1 < 1 || p.s0 < 1 || p.s1 < 1 ? "window and stride must be positive" : gb_need_float(node, 1);
}

// Input elements count, too, because a large window gives only one number.
static int pool_tasks(const struct ggml_tensor * node, int n_threads) {
    return gb_tasks_for((double) gb_count(node->src[0]) + (double) gb_count(node), gb_rows(node), n_threads);
}

const struct gb_cpu_op gb_cpu_op_pool_1d = {
    .unsupported = pool_unsupported, .n_tasks = pool_tasks, .work_size = pool_work, .run = run_pool
};
const struct gb_cpu_op gb_cpu_op_pool_2d = {
    .unsupported = pool_unsupported, .n_tasks = pool_tasks, .work_size = pool_work, .run = run_pool
};
