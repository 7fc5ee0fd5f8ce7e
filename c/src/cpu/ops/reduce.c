// reduce.c - SUM, SUM_ROWS, MEAN, ARGMAX and ARGSORT.
//
// Sums are computed in double from runs with fixed borders, in a fixed order. So they have the same
// bits for every number of threads.
#include <math.h>

#include "cpu/ops/elements.h"

enum {
    LOOK = 64 * GB_RUN,  // elements of a long row between two checks of the run
    IN_MEMORY = 16 * GB_RUN // elements of a run that is summed in place
};

// The sum of n values at p, an element of t. Stops early if the run is over.
static double sum_of(const struct gb_cpu_call * call, const struct ggml_tensor * t, const char * p, int64_t n) {
    float buf[GB_RUN];
    double sum = 0;

    const int64_t run = gb_are_floats(t->type, t->nb[0], p, n) ? IN_MEMORY : GB_RUN;
    for (int64_t i = 0; i < n; i += run) {
        const int64_t m = GB_MIN(n - i, run);
        sum += call->k->sum_f32(m, gb_in(call->k, t, p + (size_t) i * t->nb[0], m, buf));
        if (i % LOOK == LOOK - run && gb_cpu_stopped(call, LOOK)) {
            break;
        }
    }
    return sum;
}

// ----------------------------------------------------------------------------------------------------------------- SUM

// The rows (of a contiguous tensor: slices) are cut into at most MAX_PARTS parts. One thread sums
// each part. Then the first thread adds the sums.
enum { MAX_PARTS = 256, SLICE = 4096 };

struct parts {
    int64_t row, rows, n; // length of a row; number of rows; number of parts
};

// The division depends on the tensor alone.
static struct parts parts_of(const struct ggml_tensor * a) {
    const bool flat = ggml_is_contiguous(a);
    struct parts p = { .row = flat ? SLICE : a->ne[0], .rows = flat ? gb_div_up(gb_count(a), SLICE) : gb_rows(a) };
    p.n = GB_MIN(p.rows, (int64_t) MAX_PARTS);
    return p;
}

// Parts have nearly the same number of rows. Their borders depend on the shape alone.
static double sum_part(const struct gb_cpu_call * call, const struct ggml_tensor * a, const struct parts * p,
    int64_t part) {
    const bool flat = ggml_is_contiguous(a);
    const int64_t first = part * p->rows / p->n;
    const int64_t last = (part + 1) * p->rows / p->n;
    double sum = 0;
    for (int64_t r = first; r < last; r++) {
        if (flat) {
            const int64_t n = GB_MIN(gb_count(a) - r * SLICE, (int64_t) SLICE);
            sum += sum_of(call, a, (const char *) a->data + (size_t) (r * SLICE) * a->nb[0], n);
        } else {
            sum += sum_of(call, a, gb_row_of(a, gb_row_at(a, r)), a->ne[0]);
        }
        if (gb_cpu_stopped(call, GB_MIN(p->row, (int64_t) LOOK))) {
            break;
        }
    }
    return sum;
}

// The partial sums are in scratch. After the barrier, the first thread adds them in the order of
// parts.
static void run_sum(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const struct ggml_tensor * a = node->src[0];
    double * partials = call->work;
    const bool empty = gb_is_empty(a);
    const struct parts p = empty ? (struct parts){ 0 } : parts_of(a);
    int64_t first, last;
    gb_cpu_share(call, p.n, &first, &last);
    for (int64_t i = first; i < last; i++) {
        partials[i] = sum_part(call, a, &p, i);
    }
    if (gb_cpu_barrier(call) && call->ith == 0) {
        double sum = 0;
        for (int64_t i = 0; i < p.n; i++) {
            sum += partials[i];
        }
        gb_set(node->type, node->data, (float) sum);
    }
}

// One partial sum for each part, for any number of threads.
static size_t sum_work(const struct ggml_tensor * node, int n_tasks) {
    (void) node;
    (void) n_tasks;
    return MAX_PARTS * sizeof(double);
}

// A part is indivisible, so there are at most as many threads as parts.
static int sum_tasks(const struct ggml_tensor * node, int n_threads) {
    const struct ggml_tensor * a = node->src[0];
    return gb_is_empty(a) ? 1 : gb_tasks_for((double) gb_count(a), parts_of(a).n, n_threads);
}

// ------------------------------------------------------------------------------------------------------ SUM_ROWS, MEAN

// Threads share the rows.
static void sum_each_row(const struct gb_cpu_call * call, struct ggml_tensor * node, bool mean) {
    const struct ggml_tensor * a = node->src[0];
    int64_t first, last;
    gb_cpu_share(call, gb_rows(a), &first, &last);
    for (int64_t i = first; i < last; i++) {
        const struct gb_row r = gb_row_at(a, i);
        const double sum = sum_of(call, a, gb_row_of(a, r), a->ne[0]);
        gb_set(node->type, gb_row_of(node, r), (float) (mean ? sum / (double) a->ne[0] : sum));
        if (gb_cpu_stopped(call, GB_MIN(a->ne[0], (int64_t) LOOK))) {
            return;
        }
    }
}

static void run_sum_rows(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    sum_each_row(call, node, false);
}

static void run_mean(const struct gb_cpu_call * call, struct ggml_tensor * node) { sum_each_row(call, node, true); }

static const char * float_unsupported(const struct ggml_tensor * node) { return gb_need_float(node, 1); }

// -------------------------------------------------------------------------------------------------------------- ARGMAX

enum { LOOK_BACK = 64 };

// The largest value so far and its index.
struct best {
    float value;
    int32_t at;
};

// The index of the last of equal maxima. NaN is larger than all numbers. The kernel finds the
// maximum of a run. Its index is searched only if it is a maximum of the row so far.
static void improve(const struct gb_kernels * k, struct best * best, int64_t i0, int64_t n, const float * x) {
    const float max = k->max_f32(n, x);
    const bool is_none = isnan(max);
    if (max < best->value || (isnan(best->value) && !is_none)) {
        return;
    }
    for (int64_t end = n; end > 0; end -= GB_MIN(end, (int64_t) LOOK_BACK)) {
        const int64_t start = GB_MAX(end - LOOK_BACK, (int64_t) 0);
        const float there = k->max_f32(end - start, x + start);
        if (is_none ? isnan(there) : there == max) {
            for (int64_t i = end - 1; i >= start; i--) {
                if (is_none ? isnan(x[i]) : x[i] == max) {
                    *best = (struct best){ max, (int32_t) (i0 + i) };
                    return;
                }
            }
        }
    }
}

// The result is 0 if the row is empty.
static void run_argmax(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const struct ggml_tensor * a = node->src[0];
    float buf[GB_RUN];
    int64_t first, last;
    gb_cpu_share(call, gb_rows(a), &first, &last);
    for (int64_t r = first; r < last; r++) {
        const char * row = gb_row_of(a, gb_row_at(a, r));
        struct best best = { -INFINITY, 0 };
        for (int64_t i0 = 0; i0 < a->ne[0]; i0 += GB_RUN) {
            const int64_t n = GB_MIN(a->ne[0] - i0, (int64_t) GB_RUN);
            improve(call->k, &best, i0, n, gb_in(call->k, a, row + (size_t) i0 * a->nb[0], n, buf));
            if (i0 % LOOK == LOOK - GB_RUN && gb_cpu_stopped(call, LOOK)) {
                return;
            }
        }
        memcpy((char *) node->data + (size_t) r * node->nb[0], &best.at, sizeof(best.at));
        if (gb_cpu_stopped(call, GB_MIN(a->ne[0], (int64_t) LOOK))) {
            return;
        }
    }
}

// For ARGMAX and ARGSORT, whose results are indices.
static const char * index_result_unsupported(const struct ggml_tensor * node) {
    if (node->type != GGML_TYPE_I32) {
        return "the result must be i32";
    }
    const struct ggml_tensor * a = node->src[0];
    if (ggml_is_quantized(a->type)) {
        return "the operator does not accept quantized tensors";
    }
    if (a->ne[0] > INT32_MAX) {
        return "rows are too long for i32 indices";
    }
    return gb_is_float(a->type) ? NULL : "source 0 must be f32, f16 or bf16";
}

// ------------------------------------------------------------------------------------------------------------- ARGSORT

// True if the value of index a sorts before that of b, or is equal. NaN is last in both orders.
static bool in_order(const float * x, int32_t a, int32_t b, bool descending) {
    const float u = x[a], v = x[b];
    if (u != u || v != v) {
        return v != v;
    }
    return descending ? u >= v : u <= v;
}

enum { SORT_BLOCK = 8, SORT_PIECE = 16384 };

// Stable: an index moves only past indices that are out of order with it.
static void insertion_sort(const float * x, int32_t * index, int64_t n, bool descending) {
    for (int64_t i = 1; i < n; i++) {
        const int32_t moving = index[i];
        int64_t j = i;
        for (; j > 0 && !in_order(x, index[j - 1], moving, descending); j--) {
            index[j] = index[j - 1];
        }
        index[j] = moving;
    }
}

// False: the run is over.
static bool merge_runs(const struct gb_cpu_call * call, const float * x, int32_t * to, const int32_t * from,
    int64_t left, int64_t middle, int64_t right, bool descending) {
    int64_t i = left, j = middle;
    for (int64_t k = left; k < right;) {
        const int64_t piece = k, end = GB_MIN(right, k + SORT_PIECE);
        for (; k < end; k++) {
            const bool take_left = i < middle && (j >= right || in_order(x, from[i], from[j], descending));
            to[k] = take_left ? from[i++] : from[j++];
        }
        if (gb_cpu_stopped(call, 4 * (end - piece))) {
            return false;
        }
    }
    return true;
}

// Stable: equal values keep ascending indices. index and spare have n entries each. The result is
// in index. False: the run is over.
static bool merge_sort(const struct gb_cpu_call * call, const float * x, int32_t * index, int32_t * spare, int64_t n,
    bool descending) {
    for (int64_t i = 0; i < n; i++) {
        index[i] = (int32_t) i;
    }
    for (int64_t i = 0; i < n; i += SORT_BLOCK) {
        insertion_sort(x, index + i, GB_MIN(n - i, (int64_t) SORT_BLOCK), descending);
        if (i % SORT_PIECE == SORT_PIECE - SORT_BLOCK && gb_cpu_stopped(call, 12 * SORT_PIECE)) {
            return false;
        }
    }
    int32_t * from = index;
    int32_t * to = spare;
    for (int64_t width = SORT_BLOCK; width < n; width *= 2) {
        for (int64_t left = 0; left < n; left += 2 * width) {
            if (!merge_runs(call, x, to, from, left, GB_MIN(left + width, n), GB_MIN(left + 2 * width, n),
                    descending)) {
                return false;
            }
        }
        int32_t * const last = from;
        from = to;
        to = last;
    }
    if (from != index) {
        memcpy(index, from, (size_t) n * sizeof(*index));
    }
    return true;
}

// Indices are as large as floats, so one count serves all three.
static size_t argsort_work(const struct ggml_tensor * node, int n_tasks) { // values, index, spare
    return gb_floats_size(3 * node->ne[0], n_tasks);
}

// Converts each row's values once, sorts its indices, and moves them to the result. Threads share
// the rows.
static void run_argsort(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const struct ggml_tensor * a = node->src[0];
    const int64_t n = a->ne[0];
    const bool descending = gb_op_param_i32(node, 0) == GGML_SORT_DESC;
    float * values = gb_my_floats(call, 3 * n);
    int32_t * index = (int32_t *) (void *) (values + n);
    int64_t first, last;
    gb_cpu_share(call, gb_rows(a), &first, &last);
    for (int64_t i = first; i < last && n > 0; i++) {
        const struct gb_row r = gb_row_at(a, i);
        if (!merge_sort(call, gb_in(call->k, a, gb_row_of(a, r), n, values), index, index + n, n, descending)) {
            return;
        }
        gb_move(sizeof(int32_t), n, gb_row_of(node, r), node->nb[0], (const char *) index, sizeof(int32_t));
        if (gb_cpu_stopped(call, 10 * n)) {
            return;
        }
    }
}

const struct gb_cpu_op gb_cpu_op_sum = {
    .unsupported = float_unsupported, .n_tasks = sum_tasks, .work_size = sum_work, .run = run_sum
};
const struct gb_cpu_op gb_cpu_op_sum_rows = {
    .unsupported = float_unsupported, .n_tasks = gb_tasks_src_rows, .run = run_sum_rows
};
const struct gb_cpu_op gb_cpu_op_mean = {
    .unsupported = float_unsupported, .n_tasks = gb_tasks_src_rows, .run = run_mean
};
const struct gb_cpu_op gb_cpu_op_argmax = {
    .unsupported = index_result_unsupported, .n_tasks = gb_tasks_src_rows, .run = run_argmax
};
const struct gb_cpu_op gb_cpu_op_argsort = {
    .unsupported = index_result_unsupported,
    .n_tasks = gb_tasks_src_rows,
    .work_size = argsort_work,
    .run = run_argsort,
};
