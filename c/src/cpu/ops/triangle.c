// triangle.c - CUMSUM, TRI, SOLVE_TRI.
#include "cpu/ops/elements.h"

// -------------------------------------------------------------------------------------------------------------- CUMSUM

// Adds in double, so that long rows stay accurate. y may be x.
static bool cumsum_row(const struct gb_cpu_call * call, const struct ggml_tensor * node,
    const struct gb_float_row * row) {
    (void) node;
    double sum = 0;
    for (int64_t i = 0; i < row->n;) {
        const int64_t end = GB_MIN(row->n, i + GB_STRETCH), length = end - i;
        for (; i < end; i++) {
            sum += (double) row->x[i];
            row->y[i] = (float) sum;
        }
        if (gb_cpu_stopped(call, 2 * length)) {
            return false;
        }
    }
    return true;
}

static void run_cumsum(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    gb_run_row_map(call, node, 1, cumsum_row);
}

static const char * cumsum_unsupported(const struct ggml_tensor * node) { return gb_need_float(node, 1); }

static size_t row_work(const struct ggml_tensor * node, int n_tasks) { return gb_floats_size(node->ne[0], n_tasks); }

// ----------------------------------------------------------------------------------------------------------------- TRI

// Columns [first, end) of a row stay. All other columns become 0.
static void tri_row(const struct ggml_tensor * node, struct gb_row r, char * d) {
    const struct ggml_tensor * a = node->src[0];
    const int32_t kind = gb_op_param_i32(node, 0);
    const bool upper = kind == GGML_TRI_TYPE_UPPER || kind == GGML_TRI_TYPE_UPPER_DIAG;
    const bool strict = kind == GGML_TRI_TYPE_UPPER || kind == GGML_TRI_TYPE_LOWER;
    const int64_t first = upper ? r.i1 + strict : 0, end = upper ? node->ne[0] : r.i1 + !strict;
    const size_t size = ggml_type_size(node->type);
    gb_clear(size, first, d, node->nb[0]);
    gb_move(size, end - first, d + (size_t) first * node->nb[0], node->nb[0],
        gb_row_of(a, r) + (size_t) first * a->nb[0], a->nb[0]);
    gb_clear(size, node->ne[0] - end, d + (size_t) end * node->nb[0], node->nb[0]);
}

static void run_tri(const struct gb_cpu_call * call, struct ggml_tensor * node) { gb_run_rows(call, node, tri_row); }

static const char * tri_unsupported(const struct ggml_tensor * node) {
    const int32_t kind = gb_op_param_i32(node, 0);
    return kind < 0 || kind >= GGML_TRI_TYPE_COUNT ? "unknown triangle" : gb_need_same(node, 1);
}

// ----------------------------------------------------------------------------------------------------------- SOLVE_TRI

// Columns of X do not depend on each other, so a unit is a piece of COLUMNS columns of a matrix.
// Rows are computed from the first to the last: X[i] = (b[i] - sum of a[i][t] X[t], t < i) /
// a[i][i]. Earlier rows are read from scratch.
enum { COLUMNS = 64 };

static const char * solve_tri_unsupported(const struct ggml_tensor * node) { return gb_need_float(node, 2); }

static int64_t pieces_of(const struct ggml_tensor * node) { return gb_div_up(node->ne[0], COLUMNS); }

static void solve_piece(const struct gb_cpu_call * call, struct ggml_tensor * node, int64_t plane, int64_t i0,
    float * x) {
    const struct ggml_tensor *a = node->src[0], *b = node->src[1];
    const int64_t n = a->ne[0], m = GB_MIN(node->ne[0] - i0, (int64_t) COLUMNS);
    const int64_t i2 = plane % node->ne[2], i3 = plane / node->ne[2];
    float * factors = x + n * COLUMNS;
    for (int64_t i = 0; i < n; i++) {
        float * y = x + i * COLUMNS;
        gb_load(call->k, b->type, m, y, gb_row_ptr(b, i, i2, i3) + (size_t) i0 * b->nb[0], b->nb[0]);
        const float * f = gb_in(call->k, a, gb_row_ptr(a, i, i2, i3), i + 1, factors);
        for (int64_t t = 0; t < i; t++) {
            call->k->mad_f32(m, y, x + t * COLUMNS, -f[t]);
        }
        for (int64_t c = 0; c < m; c++) {
            y[c] /= f[i];
        }
        gb_store(call->k, node->type, m, gb_row_ptr(node, i, i2, i3) + (size_t) i0 * node->nb[0], node->nb[0], y);
        if (gb_cpu_stopped(call, m * (i + 1))) {
            return;
        }
    }
}

static void run_solve_tri(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const int64_t n = node->src[0]->ne[0], pieces = pieces_of(node);
    float * x = gb_my_floats(call, n * COLUMNS + n);
    int64_t first, last;
    gb_cpu_share(call, pieces * node->ne[2] * node->ne[3], &first, &last);
    for (int64_t u = first; u < last; u++) {
        solve_piece(call, node, u / pieces, u % pieces * COLUMNS, x);
        if (gb_cpu_stopped(call, 1)) {
            return;
        }
    }
}

static int solve_tri_tasks(const struct ggml_tensor * node, int n_threads) {
    return gb_tasks_for((double) gb_count(node) * (double) node->src[0]->ne[0] / 2,
        pieces_of(node) * node->ne[2] * node->ne[3], n_threads);
}

static size_t solve_tri_work(const struct ggml_tensor * node, int n_tasks) {
    const int64_t n = node->src[0]->ne[0];
    return gb_floats_size(n * COLUMNS + n, n_tasks);
}

const struct gb_cpu_op gb_cpu_op_cumsum = {
    .unsupported = cumsum_unsupported, .n_tasks = gb_tasks_dst_rows, .work_size = row_work, .run = run_cumsum
};
const struct gb_cpu_op gb_cpu_op_tri = { .unsupported = tri_unsupported, .n_tasks = gb_tasks_dst_rows, .run = run_tri };
const struct gb_cpu_op gb_cpu_op_solve_tri = {
    .unsupported = solve_tri_unsupported,
    .n_tasks = solve_tri_tasks,
    .work_size = solve_tri_work,
    .run = run_solve_tri,
};
