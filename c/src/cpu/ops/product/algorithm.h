// algorithm.h - the interface of the algorithms for products, and their shared functions. Private
// to this folder.
//
// All algorithms compute the same sums. They differ in how they convert the operands, and in the
// shapes for which they are fast. algorithms.c lists them in the order of preference.
#ifndef GB_CPU_OPS_PRODUCT_ALGORITHM_H
#define GB_CPU_OPS_PRODUCT_ALGORITHM_H

#include "cpu/ops/product/bytes.h"
#include "cpu/ops/product/tuning.h"
#include "tensor/quant/quant.h"

struct gb_product_algorithm {
    const char * name; // for users; unique
    // NULL if it can compute the product at some level. Otherwise the reason, a static text.
    // Depends on types, strides and shape alone, so the answer is the same when the plan is made
    // and when it runs.
    const char * (*declines)(const struct gb_gemm * p);
    // The same for the kernels of a level on a processor. Called only if `declines` does not
    // decline. NULL: every level has the necessary kernels. `traits` NULL: those of this processor,
    // which are measured if the answer depends on them.
    const char * (*level_declines)(const struct gb_gemm * p, const struct gb_kernels * kernels,
        const struct gb_cpu_traits * traits);
    size_t (*work_size)(const struct gb_gemm * p, int n_tasks);
    void (*run)(const struct gb_cpu_call * call, const struct gb_gemm * p); // applies the epilogue, too
};

// The functions of the table in algorithms.c. Those of an algorithm are in one file.
const char * gb_short_declines(const struct gb_gemm * p);
const char * gb_short_level_declines(const struct gb_gemm * p, const struct gb_kernels * kernels,
    const struct gb_cpu_traits * traits);
size_t gb_short_work_size(const struct gb_gemm * p, int n_tasks);
void gb_short_run(const struct gb_cpu_call * call, const struct gb_gemm * p);

const char * gb_interleaved_declines(const struct gb_gemm * p);
const char * gb_interleaved_level_declines(const struct gb_gemm * p, const struct gb_kernels * kernels,
    const struct gb_cpu_traits * traits);
size_t gb_interleaved_work_size(const struct gb_gemm * p, int n_tasks);
void gb_interleaved_run(const struct gb_cpu_call * call, const struct gb_gemm * p);

const char * gb_byte_dots_declines(const struct gb_gemm * p);
size_t gb_byte_dots_work_size(const struct gb_gemm * p, int n_tasks);
void gb_byte_dots_run(const struct gb_cpu_call * call, const struct gb_gemm * p);

const char * gb_two_bytes_declines(const struct gb_gemm * p);
size_t gb_two_bytes_work_size(const struct gb_gemm * p, int n_tasks);
void gb_two_bytes_run(const struct gb_cpu_call * call, const struct gb_gemm * p);

const char * gb_lanes_declines(const struct gb_gemm * p);
size_t gb_lanes_work_size(const struct gb_gemm * p, int n_tasks);
void gb_lanes_run(const struct gb_cpu_call * call, const struct gb_gemm * p);

const char * gb_dense_row_declines(const struct gb_gemm * p);
void gb_dense_row_run(const struct gb_cpu_call * call, const struct gb_gemm * p);

const char * gb_dense_rows_declines(const struct gb_gemm * p);
const char * gb_dense_rows_wide_declines(const struct gb_gemm * p);
const char * gb_dense_rows_wide_level_declines(const struct gb_gemm * p, const struct gb_kernels * kernels,
    const struct gb_cpu_traits * traits);
size_t gb_dense_rows_work_size(const struct gb_gemm * p, int n_tasks);
void gb_dense_rows_run(const struct gb_cpu_call * call, const struct gb_gemm * p);

const char * gb_dots_declines(const struct gb_gemm * p);
void gb_dots_run(const struct gb_cpu_call * call, const struct gb_gemm * p);

const char * gb_blocked_bytes_declines(const struct gb_gemm * p);
void gb_blocked_bytes_run(const struct gb_cpu_call * call, const struct gb_gemm * p);
const char * gb_blocked_bf16_declines(const struct gb_gemm * p);
const char * gb_blocked_bf16_level_declines(const struct gb_gemm * p, const struct gb_kernels * kernels,
    const struct gb_cpu_traits * traits);
void gb_blocked_bf16_run(const struct gb_cpu_call * call, const struct gb_gemm * p);
const char * gb_unpacked_bf16_declines(const struct gb_gemm * p);
const char * gb_unpacked_bf16_level_declines(const struct gb_gemm * p, const struct gb_kernels * kernels,
    const struct gb_cpu_traits * traits);
void gb_unpacked_bf16_run(const struct gb_cpu_call * call, const struct gb_gemm * p);
void gb_blocked_f32_run(const struct gb_cpu_call * call, const struct gb_gemm * p);
size_t gb_blocked_work_size(const struct gb_gemm * p, int n_tasks);

// -------------------------------------------------------------------------------------------------------------- shapes

static inline int64_t gb_gemm_group_rows(const struct gb_gemm * p, int64_t g) {
    return p->first != NULL ? p->first[g + 1] - p->first[g] : p->rows;
}

static inline int64_t gb_gemm_first_row(const struct gb_gemm * p, int64_t g) { // counted through all groups
    return p->first != NULL ? p->first[g] : p->same_rows ? 0 : g * p->rows;
}

// The group and the row of a row that is counted through all groups.
static inline void gb_gemm_locate(const struct gb_gemm * p, int64_t flat, int64_t * g, int64_t * r) {
    if (p->first == NULL) {
        *g = flat / p->rows;
        *r = flat % p->rows;
        return;
    }
    int64_t low = 0, high = p->n_groups - 1; // the group is one of low .. high
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (p->first[middle + 1] <= flat) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    *g = low;
    *r = flat - p->first[low];
}

// Rows [r, r + n) of group g.
static inline void gb_gemm_rows_of(const struct gb_gemm * p, int64_t g, int64_t r, int n, struct gb_gemm_row * row) {
    struct gb_gemm_row at = { 0 };
    for (int64_t i = 0, run_end = 0; i < n; i++) {
        if (i == run_end) {
            at = p->row_of(p, g, r + i);
            run_end = p->run > 0 ? i + p->run - (r + i) % p->run : i + 1;
        } else {
            at.x += p->run_nb_x;
            at.dst = (float *) (void *) ((char *) at.dst + p->run_nb_dst);
        }
        row[i] = at;
    }
}

// The cost of these multiply-adds, in the unit of gb_cpu_stopped.
static inline int64_t gb_gemm_work(int64_t rows, int64_t columns, int64_t terms) { return rows * columns * terms / 16; }

static inline bool gb_gemm_is_dense(const struct gb_gemm_operand * o) {
    return !o->across && o->nb_k == ggml_type_size(o->type);
}

static inline bool gb_gemm_both_dense(const struct gb_gemm * p) {
    return gb_gemm_is_dense(&p->w) && gb_gemm_is_dense(&p->x);
}

// The bytes from the first term of a row to term k, which starts a block.
static inline size_t gb_gemm_term_offset(const struct gb_gemm_operand * o, int64_t k) {
    return (size_t) (o->across ? k : k / ggml_blck_size(o->type)) * o->nb_k;
}

static inline void gb_gemm_dequantize(enum ggml_type type, const char * x, int64_t n, float * y) {
    gb_quant_format_of(type)->to_float(x, y, (int) n);
}

// Bytes from one row's x to the next; 0: no fixed distance.
static inline int64_t gb_gemm_x_stride(const struct gb_gemm_row * row, int rows) {
    const int64_t nb = rows > 1 ? row[1].x - row[0].x : 0;
    for (int r = 2; r < rows; r++) {
        if (row[r].x - row[r - 1].x != nb) {
            return 0;
        }
    }
    return nb;
}

// Floats from one row's dst to the next; 0: no fixed distance.
static inline int64_t gb_gemm_dst_stride(const struct gb_gemm_row * row, int rows) {
    const int64_t ld = rows > 1 ? row[1].dst - row[0].dst : 0;
    for (int r = 2; r < rows; r++) {
        if (row[r].dst - row[r - 1].dst != ld) {
            return 0;
        }
    }
    return ld;
}

// ------------------------------------------------------------------------------------------------------- prepared rows
//
// Algorithms for few rows convert or copy the rows before they multiply them. Usually all threads
// share this work, and a barrier follows. If the rows have few terms, each thread prepares all of
// them in its own memory, without a barrier.

static inline bool gb_gemm_prepares_alone(const struct gb_gemm * p, int nth) {
    return nth > 1 && p->total * p->k <= GB_PREPARE_TERMS;
}

// Bytes of scratch memory for prepared rows of `size` bytes, a multiple of 64.
static inline size_t gb_gemm_prepared_size(const struct gb_gemm * p, size_t size, int n_tasks) {
    return (size_t) p->total * size * (size_t) (gb_gemm_prepares_alone(p, n_tasks) ? n_tasks : 1);
}

// This thread's part of the preparation. The prepared rows are in its `work`.
static inline struct gb_cpu_call gb_gemm_preparation(const struct gb_cpu_call * call, const struct gb_gemm * p,
    size_t size) {
    struct gb_cpu_call share = *call;
    if (gb_gemm_prepares_alone(p, call->nth)) {
        share.work = (char *) call->work + (size_t) call->ith * (size_t) p->total * size;
        share.ith = 0;
        share.nth = 1;
    }
    return share;
}

// Waits until the rows are prepared. False: the run is over.
static inline bool gb_gemm_is_prepared(const struct gb_cpu_call * call, const struct gb_gemm * p) {
    return gb_gemm_prepares_alone(p, call->nth) || gb_cpu_barrier(call);
}

// ------------------------------------------------------------------------------------------------- sharing out columns
//
// Algorithms for few rows divide the columns of all groups among the threads. One thread reads a
// column of w once, for all rows of its group. Long parts are shared dynamically, short parts are
// fixed.

struct gb_gemm_columns {
    struct gb_cpu_taking taking;
    int64_t next, last; // of the piece, counted through all groups
    int64_t part;       // the end of the part that contains the piece
    int64_t g, first;   // the group, and its first column in this piece
    int64_t n;          // columns
    int64_t ahead;      // later columns of the group that the thread takes next, unless other threads do
    int rows;           // of the group
};

static inline struct gb_gemm_columns gb_gemm_share_columns(const struct gb_cpu_call * call, const struct gb_gemm * p) {
    const int64_t n = p->n_groups * p->m;
    const bool worth = n / call->nth * GB_MAX(p->k, 1) >= GB_TAKE_TERMS;
    return (struct gb_gemm_columns) {
        .taking = gb_cpu_taking_of(call, p->same_rows ? p->m : n, worth ? GB_TAKE_COLUMNS : 0),
    };
}

// The thread's next columns, at most `most`, all of one group. False: no column is left.
static inline bool gb_gemm_next_columns(const struct gb_gemm * p, struct gb_gemm_columns * c, int64_t most) {
    if (p->same_rows && c->n > 0 && c->g + 1 < p->n_groups) {
        c->g++;
        return true;
    }
    if (c->next >= c->last && !gb_cpu_take(&c->taking, &c->next, &c->last, &c->part)) {
        return false;
    }
    c->g = c->next / p->m;
    c->first = c->next % p->m;
    c->n = GB_MIN(GB_MIN(p->m - c->first, c->last - c->next), most);
    c->ahead = GB_MIN(p->m - c->first, c->part - c->next) - c->n;
    c->rows = (int) gb_gemm_group_rows(p, c->g);
    c->next += c->n;
    return true;
}

// The number of columns after which a thread may stop.
static inline int64_t gb_gemm_piece(const struct gb_gemm * p) {
    return GB_MAX(GB_DOTS_PIECE / GB_MAX(p->k, 1) / 64 * 64, (int64_t) 64);
}

// The cost of this many columns that are multiplied one by one, in the unit of gb_cpu_stopped.
static inline int64_t gb_gemm_dots_work(const struct gb_gemm * p, int rows, int64_t columns) {
    return GB_MAX(rows, 4) * columns * p->k / 8;
}

// The distance in bytes to the weights that are read about `ahead` bytes later, when columns of
// `size` bytes are read one after the other. Columns may have gaps between them. A long column with
// a gap behind it prefetches only itself.
static inline size_t gb_gemm_ahead(const struct gb_gemm_matrix * w, size_t size, size_t ahead) {
    return w->nb_m == size || size > 8 * ahead ? ahead : (ahead / GB_MAX(size, 1) + 1) * w->nb_m;
}

// ------------------------------------------------------------------------------------------------------------ epilogue

// Applies the epilogue to n columns of all rows of group g.
void gb_gemm_finish(const struct gb_cpu_call * call, const struct gb_gemm * p, int64_t g, int64_t column, int64_t n);

#endif // GB_CPU_OPS_PRODUCT_ALGORITHM_H
