// pool.c - POOL_1D and POOL_2D: the maximum or mean of windows. Positions outside the input are
// skipped, but the mean divides by the size of the whole window. A window with a NaN gives NaN. The
// maximum of a window that is fully outside is -inf.
//
// Narrow windows: the rows under a row of windows are folded into one, element by element. This row
// is split into one sequence for each column of a stride, so that neighbouring windows read
// neighbouring elements. The sequences are folded in turn. Several rows of windows, a band, are
// folded at a time.
//
// Wide windows, and windows as wide as the input: each window is reduced alone.
//
// Means of narrow windows are sums of float32 of at most SUMMED_ROWS rows. The rest of a sum is in
// float64. If a sum overflows, its row is computed again in float64.
#include <math.h>

#include "cpu/ops/elements.h"

enum {
    NARROW = 32, // columns of a window
    SUMMED_ROWS = 16,
    BAND_FLOATS = 2048, // about; a band and its sequences stay in the first-level cache
};

// k: window, s: stride, p: padding, with 0 for x and 1 for y. In 1-d, windows have height 1.
struct pool {
    enum ggml_op_pool op;
    int64_t k0, k1, s0, s1, p0, p1;
};

// op_params: op, k0, s0, p0 in 1-d; op, k0, k1, s0, s1, p0, p1 in 2-d.
static struct pool pool_of(const struct ggml_tensor * node) {
    const bool is_1d = node->op == GGML_OP_POOL_1D;
    const int * p = node->op_params;
    return is_1d ? (struct pool){ (enum ggml_op_pool) p[0], p[1], 1, p[2], 1, p[3], 0 }
                 : (struct pool){ (enum ggml_op_pool) p[0], p[1], p[2], p[3], p[4], p[5], p[6] };
}

// The positions of a window that lie inside an input of n positions.
struct inside {
    int64_t first, end; // end <= first: none
};

static struct inside inside_of(int64_t window, int64_t stride, int64_t pad, int64_t size, int64_t n) {
    const int64_t from = window * stride - pad;
    return (struct inside){ GB_MAX(from, (int64_t) 0), GB_MIN(from + size, n) };
}

// ------------------------------------------------------------------------------------------------- windows, one by one

// Takes n values from `at` on into acc. False: the run is over.
static bool take_values(const struct gb_cpu_call * call, const struct pool * p, const struct ggml_tensor * a,
    const char * at, int64_t n, double * acc) {
    float buffer[GB_RUN];
    const int64_t piece = gb_is_direct(a, at, n) ? GB_STRETCH : GB_RUN;
    for (int64_t i = 0; i < n; i += piece) {
        const int64_t m = GB_MIN(piece, n - i);
        const float * x = gb_in(call->k, a, at + (size_t) i * a->nb[0], m, buffer);
        if (p->op == GGML_OP_POOL_AVG) {
            *acc += call->k->sum_f32(m, x);
        } else {
            const float v = call->k->max_f32(m, x);
            *acc = v <= *acc || isnan(*acc) ? *acc : v; // NaN replaces a number and stays
        }
        if (gb_cpu_stopped(call, m + 10)) {
            return false;
        }
    }
    return true;
}

// Windows [first, first + n) of a row of the result. False: the run is over.
static bool reduce_windows(const struct gb_cpu_call * call, const struct pool * p, const struct ggml_tensor * a,
    struct gb_row r, int64_t first, int64_t n, float * out) {
    const struct inside y = inside_of(r.i1, p->s1, p->p1, p->k1, a->ne[1]);
    for (int64_t o = 0; o < n; o++) {
        const struct inside x = inside_of(first + o, p->s0, p->p0, p->k0, a->ne[0]);
        const bool all = x.end - x.first == a->ne[0] && (size_t) a->ne[0] * a->nb[0] == a->nb[1];
        const int64_t rows = x.end > x.first ? y.end - y.first : 0, together = all ? GB_MAX(rows, (int64_t) 1) : 1;
        double acc = p->op == GGML_OP_POOL_AVG ? 0.0 : -INFINITY;
        for (int64_t i = 0; i < rows; i += together) {
            const char * at = gb_row_ptr(a, y.first + i, r.i2, r.i3) + (size_t) x.first * a->nb[0];
            if (!take_values(call, p, a, at, (x.end - x.first) * together, &acc)) {
                return false;
            }
        }
        out[o] = (float) (p->op == GGML_OP_POOL_AVG ? acc / ((double) p->k0 * (double) p->k1) : acc);
    }
    return true;
}

static void run_wide(const struct gb_cpu_call * call, const struct pool * p, struct ggml_tensor * node) {
    int64_t first, last;
    gb_cpu_share(call, gb_rows(node), &first, &last);
    for (int64_t i = first; i < last; i++) {
        const struct gb_row r = gb_row_at(node, i);
        for (int64_t o = 0; o < node->ne[0]; o += GB_RUN) {
            float out[GB_RUN];
            const int64_t n = GB_MIN(node->ne[0] - o, (int64_t) GB_RUN);
            if (!reduce_windows(call, p, node->src[0], r, o, n, out)) {
                return;
            }
            gb_store(call->k, node->type, n, gb_row_of(node, r) + (size_t) o * node->nb[0], node->nb[0], out);
        }
    }
}

// --------------------------------------------------------------------------------------------------------------- bands

struct bands {
    int64_t columns, rows; // windows of a band; the last ones may have fewer
    int64_t n_columns, n_rows; // bands along the width and the height
    int64_t lines; // floats of the rows of the input that are folded at once
    int64_t step; // number of sequences: elements between two windows
    bool together; // rows of all windows are folded at once
    int64_t span, pitch; // elements that a row of windows covers; from one row of a band to the next
};

static bool is_wide(const struct ggml_tensor * node, const struct pool * p) {
    return p->k0 > NARROW || node->ne[0] <= 1;
}

// A pitch is a multiple of the step. A band of one column needs no sequences, so its step is 1.
static struct bands bands_of(const struct ggml_tensor * node, const struct pool * p) {
    struct bands b;
    b.columns = GB_MIN(GB_MAX((BAND_FLOATS - p->k0) / p->s0 + 1, (int64_t) 1), node->ne[0]);
    b.n_columns = gb_div_up(node->ne[0], b.columns);
    b.step = b.columns == 1 ? 1 : p->s0;
    b.span = (b.columns - 1) * b.step + p->k0;
    b.pitch = gb_div_up(b.span, b.step) * b.step;
    b.rows = GB_MIN(GB_MAX(BAND_FLOATS / b.pitch, (int64_t) 1), node->ne[1]);
    b.n_rows = gb_div_up(node->ne[1], b.rows);
    b.together = p->s1 == 1 && p->k1 > 1 && p->k1 <= SUMMED_ROWS && b.rows > 1;
    b.lines = b.together ? (b.rows + p->k1 - 1) * b.pitch : 0;
    return b;
}

struct memory { // of a thread
    float * rows; // folded rows of the input, pitch apart
    float * sequences; // pitch / step floats of each row; those of a sequence lie one behind the other
    float * acc; // results, pitch / step apart
    float * counts; // the size of a window, as often as there are results
    float * lines; // rows of the input, pitch apart, if they are folded at once
    float * row; // a converted row of the input
    double * total; // of results; for windows of more than SUMMED_ROWS rows
};

static int64_t memory_floats(const struct bands * b) {
    const int64_t cells = b->rows * b->pitch, results = cells / b->step;
    return 2 * cells + 4 * results + b->lines + b->span;
}

static struct memory memory_of(const struct gb_cpu_call * call, const struct bands * b) {
    const int64_t cells = b->rows * b->pitch, results = cells / b->step;
    float * const p = gb_my_floats(call, memory_floats(b));
    return (struct memory){
        .total = (double *) (void *) p,
        .rows = p + 2 * results,
        .sequences = p + 2 * results + cells,
        .acc = p + 2 * results + 2 * cells,
        .counts = p + 3 * results + 2 * cells,
        .lines = p + 4 * results + 2 * cells,
        .row = p + 4 * results + 2 * cells + b->lines,
    };
}

struct folding {
    const struct gb_cpu_call * call;
    const struct ggml_tensor * a;
    struct ggml_tensor * node;
    struct pool p;
    struct bands b;
    struct memory m;
    gb_kernel_binary * fold;
    float neutral;
};

struct band { // of plane (i2, i3)
    int64_t i2, i3, column, row; // the first window
    int64_t columns, rows;
};

static struct band band_at(const struct folding * f, int64_t i) {
    const struct bands * b = &f->b;
    struct band u;
    u.column = i % b->n_columns * b->columns;
    i /= b->n_columns;
    u.row = i % b->n_rows * b->rows;
    i /= b->n_rows;
    u.i2 = i % f->node->ne[2];
    u.i3 = i / f->node->ne[2];
    u.columns = GB_MIN(b->columns, f->node->ne[0] - u.column);
    u.rows = GB_MIN(b->rows, f->node->ne[1] - u.row);
    return u;
}

static void fill(float * y, int64_t n, float v) {
    for (int64_t i = 0; i < n; i++) {
        y[i] = v;
    }
}

static const float * input_row(const struct folding * f, const struct band * u, int64_t y, struct inside x) {
    const char * at = gb_row_ptr(f->a, y, u->i2, u->i3) + (size_t) x.first * f->a->nb[0];
    return gb_in(f->call->k, f->a, at, x.end - x.first, f->m.row);
}

// The columns of the input under the windows of the band. `start`: where they would begin without padding.
static struct inside columns_under(const struct folding * f, const struct band * u, int64_t * start) {
    const int64_t span = (u->columns - 1) * f->b.step + f->p.k0;
    *start = u->column * f->p.s0 - f->p.p0;
    return (struct inside){ GB_MAX(*start, (int64_t) 0), GB_MIN(*start + span, f->a->ne[0]) };
}

// Copies input row y, with the neutral number before and behind it; only the neutral number if the row is outside.
static void put_row(const struct folding * f, const struct band * u, int64_t y, float * to) {
    int64_t start;
    const struct inside x = columns_under(f, u, &start);
    if (y < 0 || y >= f->a->ne[1] || x.end <= x.first) {
        fill(to, f->b.pitch, f->neutral);
        return;
    }
    const int64_t n = x.end - x.first, lead = x.first - start;
    fill(to, lead, f->neutral);
    fill(to + lead + n, f->b.pitch - lead - n, f->neutral);
    memcpy(to + lead, input_row(f, u, y, x), (size_t) n * sizeof(*to));
}

// Folds at most `most` input rows under the windows of row r of the band, after `skip` of them. False: the run is over.
static bool fold_rows(const struct folding * f, const struct band * u, int64_t r, int64_t skip, int64_t most) {
    int64_t start;
    const struct inside x = columns_under(f, u, &start);
    struct inside y = inside_of(u->row + r, f->p.s1, f->p.p1, f->p.k1, f->a->ne[1]);
    float * const to = f->m.rows + r * f->b.pitch;
    const int64_t n = x.end - x.first, lead = x.first - start;
    y.first += skip;
    y.end = GB_MIN(y.end, y.first + most);
    put_row(f, u, y.first < y.end ? y.first : -1, to);
    for (int64_t i = y.first + 1; i < y.end && n > 0; i++) {
        f->fold(n, to + lead, to + lead, input_row(f, u, i, x));
    }
    return !gb_cpu_stopped(f->call, GB_MAX(y.end - y.first, (int64_t) 1) * (f->b.span / 4 + 4));
}

// Folds the rows of all windows of the band at once, if windows begin at every row. False: the run is over.
static bool fold_rows_together(const struct folding * f, const struct band * u) {
    const int64_t pitch = f->b.pitch, n = u->rows * pitch, first = u->row - f->p.p1;
    for (int64_t i = 0; i < u->rows + f->p.k1 - 1; i++) {
        put_row(f, u, first + i, f->m.lines + i * pitch);
    }
    const float * y = f->m.lines;
    for (int64_t i = 1; i < f->p.k1; i++) {
        f->fold(n, f->m.rows, y, f->m.lines + i * pitch);
        y = f->m.rows;
    }
    return !gb_cpu_stopped(f->call, f->p.k1 * n / 4 + n);
}

// For windows of k columns that neither overlap nor leave gaps. Halves the columns of all windows
// while k is even: folds each even column with the odd one after it. Returns the k that is left.
static int64_t fold_pairs(const struct folding * f, int64_t cells, int64_t k) {
    for (; k % 2 == 0; k /= 2, cells /= 2) {
        f->call->k->every_f32(cells / 2, f->m.sequences, f->m.rows, 2);
        f->call->k->every_f32(cells / 2, f->m.sequences + cells / 2, f->m.rows + 1, 2);
        f->fold(cells / 2, f->m.rows, f->m.sequences, f->m.sequences + cells / 2);
    }
    return k;
}

// Folds the columns under each window. Results of a row are pitch / step apart.
static void fold_columns(const struct folding * f, const struct band * u) {
    const int64_t cells = u->rows * f->b.pitch, each = cells / f->b.step;
    const int64_t n = (u->rows - 1) * (f->b.pitch / f->b.step) + u->columns;
    int64_t k = f->p.k0, step = f->b.step;
    if (k == step) {
        k = step = fold_pairs(f, cells, k);
    }
    const float * x = f->m.rows;
    if (step > 1) {
        for (int64_t i = 0; i < GB_MIN(k, step); i++) {
            f->call->k->every_f32(each, f->m.sequences + i * each, f->m.rows + i, step);
        }
        x = f->m.sequences;
    }
    const float * y = x;
    for (int64_t i = 1; i < k; i++) {
        f->fold(n, f->m.acc, y, x + i % step * each + i / step);
        y = f->m.acc;
    }
    if (k == 1) {
        memcpy(f->m.acc, x, (size_t) n * sizeof(*x));
    }
}

static bool is_finite(const struct gb_kernels * k, int64_t n, const float * x) { return isfinite(k->sum_f32(n, x)); }

// Divides the sums of the band, and stores the results. False: the run is over.
static bool finish_band(const struct folding * f, const struct band * u, bool has_total) {
    const int64_t each = f->b.pitch / f->b.step, n = (u->rows - 1) * each + u->columns;
    const bool is_mean = f->p.op == GGML_OP_POOL_AVG;
    for (int64_t i = 0; i < n && has_total; i++) {
        f->m.acc[i] = (float) (f->m.total[i] / ((double) f->p.k0 * (double) f->p.k1));
    }
    if (is_mean && !has_total) {
        f->call->k->div_f32(n, f->m.acc, f->m.acc, f->m.counts);
    }
    const bool again = is_mean && !is_finite(f->call->k, n, f->m.acc);
    for (int64_t r = 0; r < u->rows; r++) {
        const struct gb_row at = { u->row + r, u->i2, u->i3 };
        char * y = gb_row_of(f->node, at) + (size_t) u->column * f->node->nb[0];
        float * const acc = f->m.acc + r * each;
        if (again && !reduce_windows(f->call, &f->p, f->a, at, u->column, u->columns, acc)) {
            return false;
        }
        gb_store(f->call->k, f->node->type, u->columns, y, f->node->nb[0], acc);
    }
    return true;
}

static bool run_band(const struct folding * f, const struct band * u) {
    const bool is_mean = f->p.op == GGML_OP_POOL_AVG, is_tall = is_mean && f->p.k1 > SUMMED_ROWS;
    const int64_t most = is_mean ? SUMMED_ROWS : f->p.k1, each = f->b.pitch / f->b.step;
    const int64_t tallest = GB_MIN(f->p.k1, f->a->ne[1]), n = (u->rows - 1) * each + u->columns;
    for (int64_t i = 0; i < n && is_tall; i++) {
        f->m.total[i] = 0;
    }
    for (int64_t skip = 0; skip == 0 || skip < tallest; skip += most) {
        if (f->b.together && !fold_rows_together(f, u)) {
            return false;
        }
        for (int64_t r = 0; r < u->rows && !f->b.together; r++) {
            if (!fold_rows(f, u, r, skip, most)) {
                return false;
            }
        }
        fold_columns(f, u);
        for (int64_t i = 0; i < n && is_tall; i++) {
            f->m.total[i] += f->m.acc[i];
        }
        if (gb_cpu_stopped(f->call, f->p.k0 * n / 8 + n)) {
            return false;
        }
    }
    return finish_band(f, u, is_tall);
}

static void run_narrow(const struct gb_cpu_call * call, const struct pool * p, struct ggml_tensor * node) {
    struct folding f = { .call = call, .a = node->src[0], .node = node, .p = *p, .b = bands_of(node, p) };
    f.m = memory_of(call, &f.b);
    f.fold = p->op == GGML_OP_POOL_AVG ? call->k->add_f32 : call->k->larger_f32;
    f.neutral = p->op == GGML_OP_POOL_AVG ? 0.0f : -INFINITY;
    fill(f.m.counts, f.b.rows * f.b.pitch / f.b.step, (float) p->k0 * (float) p->k1);
    const int64_t n = f.b.n_columns * f.b.n_rows * node->ne[2] * node->ne[3];
    struct gb_cpu_taking taking = gb_cpu_taking_of(call, n, 1);
    int64_t first, last, part;
    while (gb_cpu_take(&taking, &first, &last, &part)) {
        for (int64_t i = first; i < last; i++) {
            const struct band u = band_at(&f, i);
            if (!run_band(&f, &u)) {
                return;
            }
        }
    }
}

static void run_pool(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const struct pool p = pool_of(node);
    if (!gb_is_empty(node)) {
        (is_wide(node, &p) ? run_wide : run_narrow)(call, &p, node);
    }
}

static size_t pool_work(const struct ggml_tensor * node, int n_tasks) {
    const struct pool p = pool_of(node);
    if (gb_is_empty(node) || is_wide(node, &p)) {
        return 0;
    }
    const struct bands b = bands_of(node, &p);
    return gb_floats_size(memory_floats(&b), n_tasks);
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
