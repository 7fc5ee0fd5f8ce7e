// ops.h - the operators of the CPU backend.
//
// An op is a plain C driver. It handles strides, broadcasting and the division among threads, and
// calls kernels (kernels.h) on contiguous rows. It never allocates or prints, and does not know
// instruction sets. The builder has checked the shapes. The driver checks data such as indices, and
// reports errors with gb_cpu_fail before it accesses memory.
//
// unsupported() decides whether the op can run on the node's types and layouts. Making a plan calls
// n_tasks() and work_size() once. At most that many threads call run() concurrently, with ith = 0
// .. nth - 1.
#ifndef GB_CPU_OPS_OPS_H
#define GB_CPU_OPS_OPS_H

#include <stddef.h>

#include "cpu/kernels/kernels.h"
#include "tensor/tensor.h"

struct gb_cpu_traits; // cpu/traits.h
struct gb_cpu_team; // the threads that run one node (cpu/team.h)

// Controls how often a thread checks whether the run is over.
struct gb_cpu_pace {
    int64_t left; // work until the next check, as gb_cpu_stopped counts it
    bool asks; // this thread calls the run's abort callback
    int n_takings; // dynamic shares by gb_cpu_taking_of since the step began or the last barrier
};

struct gb_cpu_call { // one thread's share of one node
    int ith, nth;
    void * work; // work_size bytes shared by the node's threads, 64-byte aligned; content undefined
    size_t work_size;
    const struct gb_kernels * k; // the level's kernel table
    struct gb_cpu_team * team;
    struct gb_cpu_pace * pace;
    const struct gb_cpu_traits * traits; // of the run; NULL: those of this processor
};

// An elementwise operator on a dense run of f32: y = f(x). y may be x. The parameters are in
// `node`.
typedef void gb_map1(const struct gb_cpu_call * call, const struct ggml_tensor * node, int64_t n, float * y,
    const float * x);
// z = f(x, y); z may be x or y.
typedef void gb_map2(const struct gb_cpu_call * call, const struct ggml_tensor * node, int64_t n, float * z,
    const float * x, const float * y);

struct gb_cpu_op {
    // Returns NULL if the node can run, else the reason, a static string ("source 1 must be f32").
    // Depends on types and strides only. The required sources (ops.def) are present.
    const char * (*unsupported)(const struct ggml_tensor * node);
    // The useful number of threads, 1 .. n_threads. NULL: gb_cpu_default_tasks.
    int (*n_tasks)(const struct ggml_tensor * node, int n_threads);
    // Scratch bytes for n_tasks threads. NULL: none.
    size_t (*work_size)(const struct ggml_tensor * node, int n_tasks);
    void (*run)(const struct gb_cpu_call * call, struct ggml_tensor * node);
    // The function that run() applies to each run of its one or two sources. Fused steps use it
    // (fuse/product.c). NULL: the operator is not elementwise, or reads more than its arguments.
    gb_map1 * map1;
    gb_map2 * map2;
};

// The op of a node. NULL for view ops (nothing to run) and for operators that are not implemented.
const struct gb_cpu_op * gb_cpu_op_of(const struct ggml_tensor * node);

// Waits until all nth threads of the node arrive. Returns the same value for all. False: the run is
// over, so leave the node. If gb_cpu_stopped made a thread skip work before the barrier, the result
// is false. So after true, all work of the other threads before the barrier is complete.
bool gb_cpu_barrier(const struct gb_cpu_call * call);

// True if the run was aborted or has failed. A driver whose work can take longer than some
// milliseconds calls this after each piece. `work` is a rough estimate of the nanoseconds of the
// piece. Once true, it stays true: the driver then skips the remaining work up to the next barrier.
#define GB_CPU_PACE 200000
bool gb_cpu_look(const struct gb_cpu_call * call);
static inline bool gb_cpu_stopped(const struct gb_cpu_call * call, int64_t work) {
    return (call->pace->left -= work) < 0 && gb_cpu_look(call);
}

// Records the first failure of the run. Threads finish or skip the rest of the node. Later nodes do
// not run.
GGML_ATTRIBUTE_FORMAT(4, 5)
void gb_cpu_fail(const struct gb_cpu_call * call, const struct ggml_tensor * node, enum ggml_status status,
    const char * fmt, ...);

// The number of threads for operators without n_tasks(): one for every GB_TASK_ELEMENTS elements of
// the result or of src[0], the larger of the two. A gather (GB_WORK_PICK) counts only its result.
// At least 1, at most n_threads.
int gb_cpu_default_tasks(const struct ggml_tensor * node, int n_threads);

// a / b rounded up, for a >= 0 and b > 0.
static inline int64_t gb_div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Scratch sizes are rounded up to whole cache lines, so that threads do not share a line.
static inline size_t gb_lines(size_t bytes) { return (bytes + 63) & ~(size_t) 63; }

// This thread's share [*first, *last) of n items, in equal contiguous parts.
static inline void gb_cpu_share(const struct gb_cpu_call * call, int64_t n, int64_t * first, int64_t * last) {
    const int64_t per = call->nth == 1 ? n : (n + call->nth - 1) / call->nth;
    *first = GB_MIN(per * call->ith, n);
    *last = GB_MIN(*first + per, n);
}

// Shares n items dynamically. Each thread starts with its part by gb_cpu_share, and takes it in
// pieces, from large to small. Then it takes pieces of the parts of slower threads. So a slow or
// busy processor does not delay the others. If all threads are equally fast, each works on its own
// part, in order.
struct gb_cpu_taking {
    const struct gb_cpu_call * call;
    int64_t n, per; // items; items of a thread's part
    int64_t slot; // items of a slot; a piece is a number of slots
    bool by_all; // threads take from each other's parts; else a thread gets its part in one piece
    int number; // of this shared work since the last barrier
    int visited; // number of parts found empty: its own, then those of the next threads
};

// All threads of the node call it with the same numbers. Parts are fixed if they have few slots, or
// if slot is 0, or after GB_CPU_TAKINGS (threadpool.h) dynamic shares without a barrier.
struct gb_cpu_taking gb_cpu_taking_of(const struct gb_cpu_call * call, int64_t n, int64_t slot);
// The next piece [*first, *last). *part: the end of its part. False: no piece is left.
bool gb_cpu_take(struct gb_cpu_taking * t, int64_t * first, int64_t * last, int64_t * part);

// The coordinates of a row in dims 1, 2 and 3. Dim 0 runs along the row.
struct gb_row {
    int64_t i1, i2, i3;
};

// The coordinates of the row with flat index r, 0 .. ggml_nrows(t) - 1.
static inline struct gb_row gb_row_at(const struct ggml_tensor * t, int64_t r) {
    if (r == 0) { // for small nodes, the divisions would cost more than the node
        return (struct gb_row) { 0, 0, 0 };
    }
    const int64_t plane = t->ne[1] * t->ne[2];
    const int64_t i3 = r / plane;
    const int64_t rest = r - i3 * plane;
    return (struct gb_row) { rest % t->ne[1], rest / t->ne[1], i3 };
}

// The address of element 0 of a row. Coordinates are not checked.
static inline char * gb_row_ptr(const struct ggml_tensor * t, int64_t i1, int64_t i2, int64_t i3) {
    return (char *) t->data + (size_t) i1 * t->nb[1] + (size_t) i2 * t->nb[2] + (size_t) i3 * t->nb[3];
}

// ops/<family>.c defines each op, except views. table.c maps enum ggml_op to them.
#define GB_OP(id, stem, ...) extern const struct gb_cpu_op gb_cpu_op_##stem;
#include "tensor/ops.def"

// Prefetches memory that will be read soon. Any address is allowed.
static inline void gb_prefetch(const void * p, size_t size) {
#ifdef __GNUC__
    for (size_t i = 0; i < size; i += 64) {
        __builtin_prefetch((const char *) p + i, 0, 2);
    }
#else
    (void) p;
    (void) size;
#endif
}

#endif // GB_CPU_OPS_OPS_H
