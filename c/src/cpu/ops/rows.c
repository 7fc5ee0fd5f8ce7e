// rows.c - GET_ROWS, GET_ROWS_BACK, SET_ROWS, ADD_ID (rows chosen by an index tensor) and DIAG.
//
// Indices are data, so they are checked when they are read. An invalid index is reported, and its
// row is not changed.
#include <inttypes.h>
#include <stdio.h>

#include "cpu/ops/elements.h"

// ------------------------------------------------------------------------------------------------------------ GET_ROWS

// Plain types are moved, quantized rows are dequantized, floats are converted.
static const char * get_rows_unsupported(const struct ggml_tensor * node) {
    const struct ggml_tensor *a = node->src[0], *b = node->src[1];
    if (b->type != GGML_TYPE_I32) {
        return "source 1 must be i32";
    }
    if (a->type == node->type && !ggml_is_quantized(a->type)) {
        return NULL;
    }
    if (ggml_is_quantized(a->type) && gb_is_float(node->type)) {
        return gb_can_load(a) ? NULL : "source 0 cannot be dequantized: its format, or rows that are not whole blocks";
    }
    return gb_need_float(node, 1);
}

// n elements of row s of a, to d.
static void take_row(const struct gb_cpu_call * call, struct ggml_tensor * dst, char * d, const struct ggml_tensor * a,
    const char * s, int64_t n) {
    if (dst->type == a->type) {
        gb_move(ggml_type_size(a->type), n, d, dst->nb[0], s, a->nb[0]);
        return;
    }
    float buf[GB_RUN];
    for (int64_t i = 0; i < n; i += GB_RUN) {
        const int64_t m = GB_MIN(n - i, (int64_t) GB_RUN);
        char * p = d + (size_t) i * dst->nb[0];
        float * y = gb_out(dst, p, m, buf);
        gb_load(call->k, a->type, m, y, s + gb_offset(a, i), a->nb[0]);
        gb_put(call->k, dst, p, m, y);
    }
}

// Reports an index, and its place in ids, which has one to three dimensions.
static void fail_index(const struct gb_cpu_call * call, const struct ggml_tensor * node, const struct ggml_tensor * ids,
    int64_t index, const struct gb_row * at, int64_t rows) {
    const int64_t place[3] = { at->i1, at->i2, at->i3 };
    char where[96];
    int used = 0;
    for (int d = 0; d < GB_MIN(GB_MAX(gb_tensor_ndim(ids), 1), 3); d++) {
        used += snprintf(where + used, sizeof(where) - (size_t) used, d == 0 ? "%lld" : ", %lld", (long long) place[d]);
    }
    gb_cpu_fail(call, node, GGML_STATUS_INVALID_ARGUMENT,
        "index %" PRId64 " at " GB_QUOTE("[%s]") " is out of range 0..%" PRId64, index, where, rows - 1);
}

// Row (i1, i2, i3) of the result is row b[i1, i2, i3] of plane (i2, i3) of a. Threads share the rows of the result.
static void run_get_rows(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const struct ggml_tensor *a = node->src[0], *b = node->src[1];
    int64_t first, last;
    gb_cpu_share(call, gb_rows(node), &first, &last);
    for (int64_t u = first; u < last; u++) {
        const struct gb_row r = gb_row_at(node, u); // element (i1, i2, i3) of b
        const int32_t index = gb_get_i32((const char *) b->data + (size_t) r.i1 * b->nb[0] + (size_t) r.i2 * b->nb[1] +
                                         (size_t) r.i3 * b->nb[2]);
        if (index < 0 || index >= a->ne[1]) {
            fail_index(call, node, b, index, &r, a->ne[1]);
            return;
        }
        take_row(call, node, gb_row_of(node, r), a, gb_row_ptr(a, index, r.i2, r.i3), node->ne[0]);
        if (gb_cpu_stopped(call, 2 * node->ne[0])) {
            return;
        }
    }
}

// ------------------------------------------------------------------------------------------------------------ SET_ROWS

static int64_t index_at(const struct ggml_tensor * c, const char * p) {
    if (c->type == GGML_TYPE_I32) {
        return gb_get_i32(p);
    }
    int64_t index;
    memcpy(&index, p, sizeof(index));
    return index;
}

// All rows for one place belong to one thread, which writes them in order. So the last row stays,
// for every number of threads. Places are hashed, because they are often consecutive or a constant
// number apart. 32 places have one hash, so that threads share no cache lines of single elements.
static bool is_mine(const struct gb_cpu_call * call, int64_t index) {
    const uint64_t hash = ((uint64_t) (index >> 5) * UINT64_C(0x9E3779B97F4A7C15)) >> 32;
    return call->nth == 1 || (int) (hash * (uint64_t) call->nth >> 32) == call->ith;
}

// The rows of plane (i2, i3). False: the run is over.
static bool set_plane(const struct gb_cpu_call * call, struct ggml_tensor * node, int64_t i2, int64_t i3) {
    const struct ggml_tensor *b = node->src[0], *c = node->src[1];
    const struct gb_row at = { 0, i2 % c->ne[1], i3 % c->ne[2] };
    const char * places = (const char *) c->data + (size_t) at.i2 * c->nb[1] + (size_t) at.i3 * c->nb[2];
    const int64_t work = 2 + gb_store_work(node->type, node->ne[0]);
    for (int64_t i = 0; i < b->ne[1]; i++) {
        const int64_t index = index_at(c, places + (size_t) i * c->nb[0]);
        if (index < 0 || index >= node->ne[1]) {
            fail_index(call, node, c, index, &(struct gb_row){ i, at.i2, at.i3 }, node->ne[1]);
            return false;
        }
        const bool mine = is_mine(call, index);
        if (mine) {
            gb_copy_run(call->k, node->type, b->type, node->ne[0], gb_row_ptr(node, index, i2, i3), node->nb[0],
                gb_row_ptr(b, i, i2, i3), b->nb[0]);
        }
        if (gb_cpu_stopped(call, mine ? work : 1)) {
            return false;
        }
    }
    return true;
}

static void run_set_rows(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const struct ggml_tensor * b = node->src[0];
    for (int64_t i3 = 0; i3 < b->ne[3] && !gb_is_empty(b); i3++) {
        for (int64_t i2 = 0; i2 < b->ne[2]; i2++) {
            if (!set_plane(call, node, i2, i3)) {
                return;
            }
        }
    }
}

static const char * set_rows_unsupported(const struct ggml_tensor * node) {
    const enum ggml_type places = node->src[1]->type;
    if (!gb_is_float(node->src[0]->type)) {
        return "source 0 must be f32, f16 or bf16";
    }
    if (places != GGML_TYPE_I32 && places != GGML_TYPE_I64) {
        return "source 1 must be i32 or i64";
    }
    if (gb_is_float(node->type) || node->type == GGML_TYPE_I32) {
        return NULL;
    }
    return ggml_is_quantized(node->type) && gb_can_store(node)
               ? NULL
               : "the result cannot be written: its type, or blocks that are not dense";
}

static int set_rows_tasks(const struct ggml_tensor * node, int n_threads) {
    const struct ggml_tensor * b = node->src[0];
    return gb_tasks_for((double) gb_store_work(node->type, gb_count(b)), gb_rows(b), n_threads);
}

// -------------------------------------------------------------------------------------------------------------- ADD_ID

// y = x + bias, n values of a row of the result, of src[0] and of src[1].
static void add_rows(const struct gb_cpu_call * call, struct ggml_tensor * node, char * y, const char * x,
    const char * bias, int64_t n) {
    const struct ggml_tensor *a = node->src[0], *b = node->src[1];
    float xs[GB_RUN], biases[GB_RUN], ys[GB_RUN];
    for (int64_t i = 0; i < n; i += GB_RUN) {
        const int64_t m = GB_MIN(n - i, (int64_t) GB_RUN);
        char * to = y + (size_t) i * node->nb[0];
        float * sum = gb_out(node, to, m, ys);
        call->k->add_f32(m, sum, gb_in(call->k, a, x + (size_t) i * a->nb[0], m, xs),
            gb_in(call->k, b, bias + (size_t) i * b->nb[0], m, biases));
        gb_put(call->k, node, to, m, sum);
    }
}

// Threads share the rows of the result.
static void run_add_id(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const struct ggml_tensor *a = node->src[0], *b = node->src[1], *ids = node->src[2];
    int64_t first, last;
    gb_cpu_share(call, node->ne[0] > 0 ? gb_rows(node) : 0, &first, &last);
    for (int64_t u = first; u < last; u++) {
        const struct gb_row r = gb_row_at(node, u); // element (i1, i2) of ids
        const int32_t index =
            gb_get_i32((const char *) ids->data + (size_t) r.i1 * ids->nb[0] + (size_t) r.i2 * ids->nb[1]);
        if (index < 0 || index >= b->ne[1]) {
            fail_index(call, node, ids, index, &r, b->ne[1]);
            return;
        }
        add_rows(call, node, gb_row_of(node, r), gb_row_of(a, r), gb_row_ptr(b, index, 0, 0), node->ne[0]);
        if (gb_cpu_stopped(call, node->ne[0])) {
            return;
        }
    }
}

static const char * add_id_unsupported(const struct ggml_tensor * node) {
    return node->src[2]->type != GGML_TYPE_I32 ? "source 2 must be i32" : gb_need_float(node, 2);
}

// ------------------------------------------------------------------------------------------------------- GET_ROWS_BACK

// Many rows may be added to one row. The first thread sorts the rows of a by their target. Each
// thread then sums some columns of all rows, one result at a time and in the order of the indices.
// It sums groups of a few values in float, and the groups in double.
enum { COLUMNS = 64, PART = 32, LOOK = 4096 };

// Lists in the scratch memory: the start of each result's rows in `order`, and the end of the last.
struct hits {
    int32_t *first, *order;
};

// `first` has rows + 2 entries, which sort_hits needs. `order` follows it.
static struct hits hits_of(const struct gb_cpu_call * call, const struct ggml_tensor * node) {
    int32_t * p = call->work;
    return (struct hits){ .first = p, .order = p + 2 + node->ne[1] };
}

// The lists of struct hits, shared by all threads.
static size_t get_rows_back_work(const struct ggml_tensor * node, int n_tasks) {
    (void) n_tasks;
    return gb_lines((size_t) (node->ne[1] + node->src[0]->ne[1] + 2) * sizeof(int32_t));
}

// Counting sort. first[r + 2] counts the rows for r. The prefix sum makes first[r + 1] the place of
// the next row for r. In the end it is the end of the rows for r, where those for r + 1 start.
static void sort_hits(const struct gb_cpu_call * call, const struct ggml_tensor * node, struct hits h) {
    const struct ggml_tensor *a = node->src[0], *b = node->src[1];
    const int64_t n = a->ne[1], rows = node->ne[1];
    memset(h.first, 0, (size_t) (rows + 2) * sizeof(int32_t));
    for (int64_t i = 0; i < n; i++) {
        const int32_t index = gb_get_i32((const char *) b->data + (size_t) i * b->nb[0]);
        if (index < 0 || index >= rows) {
            gb_cpu_fail(call, node, GGML_STATUS_INVALID_ARGUMENT,
                "index %" PRId32 " at " GB_QUOTE("[%" PRId64 "]") " is out of range 0..%" PRId64, index, i, rows - 1);
            return;
        }
        h.first[index + 2]++;
        if (i % LOOK == LOOK - 1 && gb_cpu_stopped(call, LOOK)) {
            return;
        }
    }
    for (int64_t r = 0; r < rows; r++) {
        h.first[r + 2] += h.first[r + 1];
    }
    for (int64_t i = 0; i < n; i++) {
        h.order[h.first[gb_get_i32((const char *) b->data + (size_t) i * b->nb[0]) + 1]++] = (int32_t) i;
    }
}

// part = the sum of n columns of the rows of a that `hits` names.
static void add_part(const struct gb_cpu_call * call, const struct ggml_tensor * a, const int32_t * hits, int32_t count,
    int64_t i0, int64_t n, float * part) {
    float buf[COLUMNS];
    for (int32_t u = 0; u < count; u++) {
        const float * x = gb_in(call->k, a, gb_row_ptr(a, hits[u], 0, 0) + (size_t) i0 * a->nb[0], n, buf);
        if (u == 0) {
            memcpy(part, x, (size_t) n * sizeof(float));
        } else {
            call->k->add_f32(n, part, part, x);
        }
    }
}

// Columns i0 .. i0 + n - 1 of all rows of the result. Rows without an index become 0.
static void add_hits(const struct gb_cpu_call * call, const struct ggml_tensor * node, struct hits h, int64_t i0,
    int64_t n) {
    for (int64_t i = 0; i < node->ne[1]; i++) {
        const int32_t first = h.first[i], count = h.first[i + 1] - first;
        float part[COLUMNS] = { 0 };
        add_part(call, node->src[0], h.order + first, GB_MIN(count, (int32_t) PART), i0, n, part);
        if (count > PART) {
            double sum[COLUMNS] = { 0 };
            for (int64_t u = 0; u < count; u += PART) {
                add_part(call, node->src[0], h.order + first + u, (int32_t) GB_MIN(count - u, (int64_t) PART), i0, n,
                    part);
                for (int64_t c = 0; c < n; c++) {
                    sum[c] += (double) part[c];
                }
                if (gb_cpu_stopped(call, n * PART)) {
                    return;
                }
            }
            for (int64_t c = 0; c < n; c++) {
                part[c] = (float) sum[c];
            }
        }
        gb_store(call->k, node->type, n, gb_row_ptr(node, i, 0, 0) + (size_t) i0 * node->nb[0], node->nb[0], part);
        if (gb_cpu_stopped(call, n * (1 + GB_MIN(count, (int32_t) PART)))) {
            return;
        }
    }
}

// The barrier also tells other threads about the first thread's failure.
static void run_get_rows_back(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const struct hits h = hits_of(call, node);
    int64_t first, last;
    if (call->ith == 0) {
        sort_hits(call, node, h);
    }
    if (!gb_cpu_barrier(call)) { // an invalid index, for example
        return;
    }
    gb_cpu_share(call, gb_div_up(node->ne[0], COLUMNS), &first, &last);
    for (int64_t u = first; u < last; u++) {
        add_hits(call, node, h, u * COLUMNS, GB_MIN(node->ne[0] - u * COLUMNS, (int64_t) COLUMNS));
    }
}

static const char * get_rows_back_unsupported(const struct ggml_tensor * node) {
    const char * why = gb_need_float(node, 1);
    if (why != NULL) {
        return why;
    }
    if (node->src[0]->ne[1] > INT32_MAX || node->ne[1] > INT32_MAX - 3) {
        return "there are more rows than i32 indices can count";
    }
    return node->src[1] != NULL && node->src[1]->type == GGML_TYPE_I32 ? NULL : "source 1 must be i32";
}

// Threads share blocks of COLUMNS columns.
static int get_rows_back_tasks(const struct ggml_tensor * node, int n_threads) {
    return gb_tasks_for((double) gb_count(node) + (double) gb_count(node->src[0]), gb_div_up(node->ne[0], COLUMNS),
        n_threads);
}

// ---------------------------------------------------------------------------------------------------------------- DIAG

// Row i1 of the result is 0, except element i1, which is element i1 of the source's row.
static void diag_row(const struct ggml_tensor * node, struct gb_row r, char * d) {
    const struct ggml_tensor * a = node->src[0];
    const size_t size = ggml_type_size(node->type);
    gb_clear(size, node->ne[0], d, node->nb[0]);
    memcpy(d + (size_t) r.i1 * node->nb[0], gb_row_ptr(a, 0, r.i2, r.i3) + (size_t) r.i1 * a->nb[0], size);
}

static void run_diag(const struct gb_cpu_call * call, struct ggml_tensor * node) { gb_run_rows(call, node, diag_row); }

static const char * diag_unsupported(const struct ggml_tensor * node) { return gb_need_same(node, 1); }

const struct gb_cpu_op gb_cpu_op_get_rows = {
    .unsupported = get_rows_unsupported, .n_tasks = gb_tasks_dst_rows, .run = run_get_rows
};
const struct gb_cpu_op gb_cpu_op_get_rows_back = {
    .unsupported = get_rows_back_unsupported,
    .n_tasks = get_rows_back_tasks,
    .work_size = get_rows_back_work,
    .run = run_get_rows_back,
};
const struct gb_cpu_op gb_cpu_op_set_rows = {
    .unsupported = set_rows_unsupported, .n_tasks = set_rows_tasks, .run = run_set_rows
};
const struct gb_cpu_op gb_cpu_op_add_id = {
    .unsupported = add_id_unsupported, .n_tasks = gb_tasks_dst_rows, .run = run_add_id
};
const struct gb_cpu_op gb_cpu_op_diag = {
    .unsupported = diag_unsupported, .n_tasks = gb_tasks_dst_rows, .run = run_diag
};
