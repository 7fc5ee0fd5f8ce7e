// fuse/stages.h - the elementwise operators after a product or a convolution.
//
// Each operator reads the result of the operator before it. It may also read a tensor of the same
// shape, or a shared operand, which repeats over the result. Each element goes through the same
// operations as without fusion, so the bits are the same. A result that no other code can read is not
// stored.
#ifndef GB_CPU_FUSE_STAGES_H
#define GB_CPU_FUSE_STAGES_H

#include "cpu/fuse/fusions.h"
#include "cpu/ops/elements.h"

struct gb_fuse_stage {
    const struct ggml_tensor * node;
    gb_map1 * map1; // for one source, or
    gb_map2 * map2; // for two sources
    const struct ggml_tensor * other; // for two sources: the source that is not the previous result
    bool swapped; // `other` is src[0]
    bool shared; // `other` repeats
    const char * from; // data of the previous result
    char * to; // memory for this result
};

struct gb_fuse_stages {
    char * first; // data of the product or convolution
    bool hidden; // no result between the first and the last is stored
    bool numbers; // a shared operand is one number for all results of a run
    int n;
    struct gb_fuse_stage stages[GB_FUSE_MAX - 1];
};

// True if t repeats over results of the shape of `first`.
typedef bool gb_fuse_is_shared(const struct ggml_tensor * t, const struct ggml_tensor * first);

// The number of nodes, nodes[0] included, that form one step. 0 if no operator follows.
int gb_fuse_stages_length(struct ggml_tensor * const * nodes, int n, gb_fuse_is_shared * is_shared);
// The operators after nodes[0]. Results that are not stored use its memory.
struct gb_fuse_stages gb_fuse_stages_of(struct ggml_tensor * const * nodes, int n, gb_fuse_is_shared * is_shared);
// True if no write overlaps the sources of nodes[0], shared operands, or other elements of operands.
bool gb_fuse_stages_are_safe(const struct gb_fuse_stages * s, struct ggml_tensor * const * nodes);
bool gb_fuse_stages_leave_out(const struct gb_fuse_stages * s);

// Applies all operators to n results, which begin `at` bytes after `first`. `shared` returns the n
// elements of a shared operand for them. It may use `room`, which holds n floats. With `numbers`, it
// is also called for n = 1.
typedef const float * gb_fuse_shared_run(const struct ggml_tensor * t, int64_t place, int64_t n, float * room);
void gb_fuse_stages_run(const struct gb_cpu_call * call, const struct gb_fuse_stages * s, size_t at, int64_t place,
    int64_t n, gb_fuse_shared_run * shared, float * room);

// Stages that one kernel computes (shift_clamp_f32): plus a shared number, plus a tensor of the same shape, limits.
// Each of them at most once, in this order.
struct gb_fuse_pass {
    const struct ggml_tensor *shift, *other; // NULL: none
    float min, max;
    char * to; // memory for the results
};

// False if the stages are others, or if a result between them is stored. With `numbers` only.
bool gb_fuse_stages_are_pass(const struct gb_fuse_stages * s, struct gb_fuse_pass * pass);

// After products (product.c): a shared operand is one row.
bool gb_fuse_is_row(const struct ggml_tensor * t, const struct ggml_tensor * product);
const float * gb_fuse_part_of_row(const struct ggml_tensor * row, int64_t column, int64_t n, float * room);

// Tasks and scratch memory of the step are those of nodes[0].
int gb_fuse_first_tasks(struct ggml_tensor * const * nodes, int n, int n_threads);
size_t gb_fuse_first_work(struct ggml_tensor * const * nodes, int n, int n_tasks);

#endif // GB_CPU_FUSE_STAGES_H
