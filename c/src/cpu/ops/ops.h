// ops.h - what an operator of the CPU backend is.
//
// An op is a plain C driver: it handles strides, broadcasting and the split over threads, and calls kernels (kernels.h)
// on contiguous rows. It never allocates, never prints, and does not know about instruction sets. Shapes were checked
// by the builder; what remains to be checked at run time (indices) is reported with gb_cpu_fail and leaves memory safe.
//
// Life of a node. The planner calls unsupported(), which decides whether the op can run on these
// types and layouts. Making a plan calls n_tasks() and work_size() once. n_tasks threads call run()
// at once, ith = 0 .. nth-1.
#ifndef GB_CPU_OPS_OPS_H
#define GB_CPU_OPS_OPS_H

#include <stddef.h>

#include "cpu/kernels/kernels.h"
#include "tensor/tensor.h"

struct gb_cpu_traits; // cpu/traits.h
struct gb_cpu_team; // the threads that run one node (cpu/team.h)

// How often one thread looks whether the run is over: looking has a cost, and so has a run that does not end.
struct gb_cpu_pace {
    int64_t left; // work, as gb_cpu_stopped counts it, until it looks again
    bool asks; // it is the one that asks the run's abort callback
    bool took; // by gb_cpu_take, since the step or the last barrier began
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

// What an elementwise operator does to a dense run of f32. y = f(x); y may be x. `node` gives the parameters.
typedef void gb_map1(const struct gb_cpu_call * call, const struct ggml_tensor * node, int64_t n, float * y,
    const float * x);
// z = f(x, y); z may be x or y.
typedef void gb_map2(const struct gb_cpu_call * call, const struct ggml_tensor * node, int64_t n, float * z,
    const float * x, const float * y);

struct gb_cpu_op {
    // NULL: can run. Else why not, a static string ("source 1 must be f32"). Looks at types and strides only, not
    // at data. The sources that the operator has to have (ops.def) are there.
    const char * (*unsupported)(const struct ggml_tensor * node);
    // Threads that are of use, 1 .. n_threads. NULL: by the number of elements (gb_cpu_default_tasks).
    int (*n_tasks)(const struct ggml_tensor * node, int n_threads);
    // Scratch bytes for n_tasks threads. NULL: none.
    size_t (*work_size)(const struct ggml_tensor * node, int n_tasks);
    void (*run)(const struct gb_cpu_call * call, struct ggml_tensor * node);
    // NULL: it is not elementwise, or reads more than its arguments. Else what run() does to each run of its first
    // source, or of its two sources, so that others may do it while they have the elements at hand (fuse/product.c).
    gb_map1 * map1;
    gb_map2 * map2;
};

// The op of a node, NULL for view ops (nothing to run) and for what is not implemented.
const struct gb_cpu_op * gb_cpu_op_of(const struct ggml_tensor * node);

// Waits until all nth threads of the node are here. False, for all of them: the run is over; leave the node. In
// particular whoever left work out before, because gb_cpu_stopped said so, has made that false: what others should have
// prepared is read only when it is true.
bool gb_cpu_barrier(const struct gb_cpu_call * call);

// Is the run over, aborted or failed? Every driver whose work can take longer than some milliseconds asks after each
// piece of it, with the nanoseconds that the piece took, very roughly. True once is true for ever: skip what is left,
// up to the next barrier.
#define GB_CPU_PACE 200000
bool gb_cpu_look(const struct gb_cpu_call * call);
static inline bool gb_cpu_stopped(const struct gb_cpu_call * call, int64_t work) {
    return (call->pace->left -= work) < 0 && gb_cpu_look(call);
}

// Records the first failure of the run; the node's remaining work is still done or skipped, later nodes do not run.
GGML_ATTRIBUTE_FORMAT(4, 5)
void gb_cpu_fail(const struct gb_cpu_call * call, const struct ggml_tensor * node, enum ggml_status status,
    const char * fmt, ...);

// The threads for operators without n_tasks(): one for every GB_TASK_ELEMENTS elements of the result or of src[0],
// whichever has more; at least 1, at most n_threads.
int gb_cpu_default_tasks(const struct ggml_tensor * node, int n_threads);

// a / b rounded up, for a >= 0 and b > 0.
static inline int64_t gb_div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Scratch is handed out in whole cache lines, so that threads do not share one.
static inline size_t gb_lines(size_t bytes) { return (bytes + 63) & ~(size_t) 63; }

// This thread's share [*first, *last) of n items, in equal contiguous parts.
static inline void gb_cpu_share(const struct gb_cpu_call * call, int64_t n, int64_t * first, int64_t * last) {
    const int64_t per = call->nth == 1 ? n : (n + call->nth - 1) / call->nth;
    *first = GB_MIN(per * call->ith, n);
    *last = GB_MIN(*first + per, n);
}

// Dynamic sharing of n items. Each thread starts with its part by gb_cpu_share, and takes it in pieces, from large to
// small. Then it takes pieces of the parts of slower threads. So a slow or busy processor does not delay the others. If
// all threads are equally fast, each works on its own part, in order.
struct gb_cpu_taking {
    const struct gb_cpu_call * call;
    int64_t n, per; // items; of a thread's part
    int64_t slot; // items, of which pieces are made
    bool by_all; // else the thread has its own part in one piece
    int visited; // parts that are found empty: its own, then those of the threads behind it
};

// All threads of the node call it with the same numbers. Parts of less than a few slots, and all but the first since
// the step or the last barrier began, are not taken from. slot 0: none are.
struct gb_cpu_taking gb_cpu_taking_of(const struct gb_cpu_call * call, int64_t n, int64_t slot);
// The next piece [*first, *last), *part: where the part that it is of ends. False: there is none left to take.
bool gb_cpu_take(struct gb_cpu_taking * t, int64_t * first, int64_t * last, int64_t * part);

// The coordinates of a row in dims 1, 2 and 3; dim 0 runs along it.
struct gb_row {
    int64_t i1, i2, i3;
};

// Of the row with flat index r, which is 0 .. ggml_nrows(t) - 1.
static inline struct gb_row gb_row_at(const struct ggml_tensor * t, int64_t r) {
    if (r == 0) { // all of a small node: divisions cost more than it does
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

// One definition each, in ops/<family>.c, but for views; table.c maps enum ggml_op to them.
#define GB_OP(id, stem, ...) extern const struct gb_cpu_op gb_cpu_op_##stem;
#include "tensor/ops.def"

#endif // GB_CPU_OPS_OPS_H
