// elements.h - access of operators to the elements of tensors of any type and strides.
//
// Arithmetic uses short dense runs of f32. A dense f32 run is used in place. Other runs (f16, bf16,
// a strided or misaligned dim 0, quantized blocks) are converted into a buffer, computed there and
// converted back. So one driver works for every float type and stride, and for quantized tensors if
// it accepts them. Operators that only move data (repeat, pad, ...) use the element size and never
// convert.
//
// Invariant: the borders of runs depend on shapes alone, never on the number of threads. So every
// operator gives the same bits for every number of threads. A run is read completely before it is
// written, so a result may have exactly the memory of a source.
#ifndef GB_CPU_OPS_ELEMENTS_H
#define GB_CPU_OPS_ELEMENTS_H

#include <stdbool.h>

#include "cpu/ops/ops.h"

#define GB_RUN 512 // elements of a run, whole blocks of every format; the buffers live on the stack

// -------------------------------------------------------------------------------------------------------------- checks

static inline bool gb_is_float(enum ggml_type type) { // run functions convert these at any stride
    return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16;
}

// True if runs can be loaded, or stored: float types, and quantized formats that have the function
// and rows of consecutive whole blocks. A transposed quantized tensor has no such rows.
bool gb_can_load(const struct ggml_tensor * t);
bool gb_can_store(const struct ggml_tensor * t);
bool gb_rows_are_blocks(const struct ggml_tensor * t); // any type

// For unsupported(): checks the result and src[0 .. n_src - 1], none of which is NULL. Returns
// NULL, or a static string that names the first tensor that is not allowed.
const char * gb_need_float(const struct ggml_tensor * node, int n_src); // f32, f16 or bf16
const char * gb_need_f32(const struct ggml_tensor * node, int n_src);
const char * gb_need_same(const struct ggml_tensor * node, int n_src); // not quantized, the type of the result

// ------------------------------------------------------------------------------------------------------- single values

// One value at any address, aligned or not.
float gb_get(enum ggml_type type, const char * p); // float types only
void gb_set(enum ggml_type type, char * p, float v);

static inline int32_t gb_get_i32(const char * p) {
    int32_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

static inline float gb_get_f32(const char * p) {
    float v;
    memcpy(&v, p, sizeof(v));
    return v;
}

// ---------------------------------------------------------------------------------------------------------------- runs

// Converts n values of a float type at p, `stride` bytes apart, to and from dense f32. Any n. For a
// quantized type: n / block size consecutive blocks.
void gb_load(const struct gb_kernels * k, enum ggml_type type, int64_t n, float * y, const char * p, size_t stride);
void gb_store(const struct gb_kernels * k, enum ggml_type type, int64_t n, char * p, size_t stride, const float * x);

// True if n elements of this type and stride at p, or n elements of a tensor, can be used in place
// as a float array.
static inline bool gb_are_floats(enum ggml_type type, size_t stride, const char * p, int64_t n) {
    return type == GGML_TYPE_F32 && (stride == sizeof(float) || n == 1) && (uintptr_t) p % sizeof(float) == 0;
}

static inline bool gb_is_direct(const struct ggml_tensor * t, const char * p, int64_t n) {
    return gb_are_floats(t->type, t->nb[0], p, n);
}

// Bytes from the start of a row to element i0, a multiple of the block size.
static inline size_t gb_offset(const struct ggml_tensor * t, int64_t i0) {
    return (size_t) (ggml_is_quantized(t->type) ? i0 / ggml_blck_size(t->type) : i0) * t->nb[0];
}

// The n values along dim 0 from p on, the address of an element of t: in place if possible,
// otherwise in buf.
static inline const float * gb_in(const struct gb_kernels * k, const struct ggml_tensor * t, const char * p, int64_t n,
    float * buf) {
    if (gb_is_direct(t, p, n)) {
        return (const float *) (const void *) p;
    }
    gb_load(k, t->type, n, buf, p, t->nb[0]);
    return buf;
}

// The memory in which the n values for p are computed. gb_put then stores them at p.
static inline float * gb_out(const struct ggml_tensor * t, char * p, int64_t n, float * buf) {
    return gb_is_direct(t, p, n) ? (float *) (void *) p : buf;
}

// Stores values at p unless they were computed in place.
static inline void gb_put(const struct gb_kernels * k, const struct ggml_tensor * t, char * p, int64_t n,
    const float * values) {
    if ((const void *) values != (const void *) p) {
        gb_store(k, t->type, n, p, t->nb[0], values);
    }
}

// Copies n elements of `size` bytes. Source and destination are the same or do not overlap.
void gb_move(size_t size, int64_t n, char * d, size_t d_stride, const char * s, size_t s_stride);
// Copies n elements, whole blocks, and converts them. The types are equal, or both are floats or
// I32, or one is a float type and the other a quantized type that gb_can_load or gb_can_store
// accepts.
void gb_copy_run(const struct gb_kernels * k, enum ggml_type to, enum ggml_type from, int64_t n, char * d, size_t ds,
    const char * s, size_t ss);
void gb_clear(size_t size, int64_t n, char * d, size_t d_stride); // all bytes zero: the number 0 of every plain type

// ------------------------------------------------------------------------------------------------- rows, work, sharing

// Drivers that process a long row themselves check after this many elements whether to stop.
#define GB_STRETCH 65536

// For gb_cpu_stopped: the work of converting n elements to `type`. Most quantized formats need a
// search.
static inline int64_t gb_store_work(enum ggml_type type, int64_t n) {
    return ggml_is_quantized(type) ? n * (type == GGML_TYPE_Q8_0 || type == GGML_TYPE_Q4_0 ? 2 : 200) : n;
}

// The address of the row with these coordinates.
static inline char * gb_row_of(const struct ggml_tensor * t, struct gb_row r) {
    return gb_row_ptr(t, r.i1, r.i2, r.i3);
}

static inline bool gb_same_ne(const struct ggml_tensor * a, const struct ggml_tensor * b) {
    return a->ne[0] == b->ne[0] && a->ne[1] == b->ne[1] && a->ne[2] == b->ne[2] && a->ne[3] == b->ne[3];
}

// True if the tensor has no elements. Do not divide by its dims then.
static inline bool gb_is_empty(const struct ggml_tensor * t) {
    return t->ne[0] == 0 || t->ne[1] == 0 || t->ne[2] == 0 || t->ne[3] == 0;
}

// The maximum number of elements. Larger tensors are views that repeat memory. They are refused, so
// that sizes cannot overflow.
#define GB_MAX_COUNT ((int64_t) 1 << 48)

static inline int64_t gb_count(const struct ggml_tensor * t) { return ggml_nelements(t); }

static inline int64_t gb_rows(const struct ggml_tensor * t) { return ggml_nrows(t); }

// This thread's part of work memory with n floats for each thread.
static inline float * gb_my_floats(const struct gb_cpu_call * call, int64_t n) {
    return (float *) (void *) ((char *) call->work + (size_t) call->ith * gb_lines((size_t) n * sizeof(float)));
}

// The work size that gb_my_floats(call, n) needs.
static inline size_t gb_floats_size(int64_t n, int n_tasks) {
    return gb_lines((size_t) n * sizeof(float)) * (size_t) n_tasks;
}

// The work size of operators with two rows of the result's length for each thread.
static inline size_t gb_two_rows_work(const struct ggml_tensor * node, int n_tasks) {
    return gb_floats_size(2 * node->ne[0], n_tasks);
}

// A task with fewer elements costs less than a barrier.
#define GB_TASK_ELEMENTS 8192

// The number of threads for `units` indivisible tasks with `elements` elements in total. Small work
// uses few threads, because barriers would cost more.
static inline int gb_tasks_for(double elements, int64_t units, int n_threads) {
    const double worth = GB_MIN(elements / GB_TASK_ELEMENTS, (double) n_threads);
    return (int) GB_MAX((int64_t) 1, GB_MIN(units, (int64_t) worth));
}

// n_tasks() for operators that read src[0] once and share its rows.
int gb_tasks_src_rows(const struct ggml_tensor * node, int n_threads);
// The same for operators that write the rows of the result.
int gb_tasks_dst_rows(const struct ggml_tensor * node, int n_threads);

// --------------------------------------------------------------------------------------------------------- elementwise

// node = f(src[0]), same shapes.
void gb_run_map1(const struct gb_cpu_call * call, struct ggml_tensor * node, gb_map1 * f);
// node = f(src[0], src[1]), src[1] repeated over the shape of src[0].
void gb_run_map2(const struct gb_cpu_call * call, struct ggml_tensor * node, gb_map2 * f);
// node = f(src[0], src[1], src[2]), each repeated over the shape of the node.
typedef void gb_map3(const struct gb_cpu_call * call, const struct ggml_tensor * node, int64_t n, float * z,
    const float * c, const float * x, const float * y);
void gb_run_map3(const struct gb_cpu_call * call, struct ggml_tensor * node, gb_map3 * f);
// Results of at least this size bypass the caches. The caches would evict them before they are
// read, and ordinary stores first read the memory that they overwrite.
#define GB_FAR_BYTES ((size_t) 32 << 20)
// n_tasks() of these drivers.
int gb_tasks_map(const struct ggml_tensor * node, int n_threads);

// ---------------------------------------------------------------------------------------------------------- row by row

// Writes the row of the result with coordinates r. Its address is d.
typedef void gb_row_writer(const struct ggml_tensor * node, struct gb_row r, char * d);

// Threads share the rows of the result and write them one by one. Inline, so that the compiler sees
// f.
static inline void gb_run_rows(const struct gb_cpu_call * call, const struct ggml_tensor * node, gb_row_writer * f) {
    int64_t first, last;
    gb_cpu_share(call, gb_rows(node), &first, &last);
    for (int64_t i = first; i < last; i++) {
        const struct gb_row r = gb_row_at(node, i);
        f(node, r, gb_row_of(node, r));
        if (gb_cpu_stopped(call, node->ne[0])) {
            return;
        }
    }
}

// Row i of the result and row i of src[0], n values each, as f32. y may be x. `spare` is scratch of
// n floats, if the operator's work size has two rows for each thread.
struct gb_float_row {
    int64_t i;
    struct gb_row r;
    int64_t n;
    float * y;
    const float * x;
    float * spare;
};

// Computes y. False: the run was stopped.
typedef bool gb_row_map(const struct gb_cpu_call * call, const struct ggml_tensor * node,
    const struct gb_float_row * row);

// The same for operators that compute whole rows. n_rows: rows of work memory for each thread, 1 or
// 2.
static inline void gb_run_row_map(const struct gb_cpu_call * call, const struct ggml_tensor * node, int n_rows,
    gb_row_map * f) {
    const struct ggml_tensor * a = node->src[0];
    const int64_t n = node->ne[0];
    float * scratch = gb_my_floats(call, n_rows * n);
    int64_t first, last;
    gb_cpu_share(call, n > 0 ? gb_rows(node) : 0, &first, &last);
    for (int64_t i = first; i < last; i++) {
        const struct gb_row r = gb_row_at(node, i);
        char * p = gb_row_of(node, r);
        const float * x = gb_in(call->k, a, gb_row_of(a, r), n, scratch);
        const struct gb_float_row row = { i, r, n, gb_out(node, p, n, scratch), x, n_rows > 1 ? scratch + n : NULL };
        if (!f(call, node, &row)) {
            return;
        }
        gb_put(call->k, node, p, n, row.y);
    }
}

// The increase of ALiBi's bias from one position to the next (mask.c).
float gb_alibi_slope(int64_t head, int n_head, float bias_max);

#endif // GB_CPU_OPS_ELEMENTS_H
