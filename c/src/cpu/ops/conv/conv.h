// conv.h - the engine of the convolutions: CONV_2D, CONV_2D_DW, CONV_3D, and IM2COL followed by a
// product.
//
// An operator describes its convolution in a struct gb_conv_job. Every thread of the node then
// calls gb_conv_run. Axes are 0 width, 1 height, 2 depth. A convolution of fewer axes has size 1
// along the others.
//
//    y(n, g, o, at) = sum over c, k of w(g, o)[c][k] x(n, g, c, at stride + k dilation - pad)
//
// x is 0 outside. A result is one chain of multiply-adds in the order of the weights, a sum of such
// chains for blocks of terms, or a dot product. Which of them depends on shapes and on the position
// alone. So a result does not depend on the number of threads.
#ifndef GB_CPU_OPS_CONV_CONV_H
#define GB_CPU_OPS_CONV_CONV_H

#include "cpu/ops/elements.h"

struct gb_conv_axis {
    int64_t in, kernel, out;
    int64_t stride, pad, dilation;
};

struct gb_conv_job;

// An operation on complete results while they are in a near cache. It gets n results of an output
// channel (counted through all groups), from dst on. Each result is passed once, by any thread.
struct gb_conv_epilogue {
    void (*finish)(const struct gb_cpu_call * call, const struct gb_conv_epilogue * e, float * dst, int64_t channel,
        int64_t n);
    const void * context;
};

struct gb_conv_job {
    struct gb_conv_axis axis[3];
    int64_t batches, groups, ic, oc; // input and output channels of a group
    const char * x;
    enum ggml_type x_type;            // F32, F16 or BF16
    size_t x_nb[3], x_channel, x_batch; // bytes
    bool rounds;                      // x is rounded to F16 first
    const char * w;                   // [groups][oc][ic][depth][height][width]
    enum ggml_type w_type;            // F32 or F16
    float * y;                        // positions of an output channel are contiguous
    int64_t y_channel, y_batch;       // floats
    const struct gb_conv_epilogue * epilogue; // NULL: none
};

static inline int64_t gb_conv_positions(const struct gb_conv_job * j) {
    return j->axis[0].out * j->axis[1].out * j->axis[2].out;
}

static inline int64_t gb_conv_terms(const struct gb_conv_job * j) {
    return j->ic * j->axis[0].kernel * j->axis[1].kernel * j->axis[2].kernel;
}

// algorithms.c chooses the algorithm. The first two functions do not use data addresses.
int gb_conv_n_tasks(const struct gb_conv_job * j, int n_threads);
size_t gb_conv_work_size(const struct gb_conv_job * j, int n_tasks);
void gb_conv_run(const struct gb_cpu_call * call, const struct gb_conv_job * j);

// The name of the i-th candidate. *why: the reason why it declines, a static text, or NULL if it
// computes the convolution. Returns NULL after the last candidate.
const char * gb_conv_candidate(const struct gb_conv_job * j, int i, const char ** why);

// For tests: uses this candidate for convolutions that it can compute. Negative: no preference.
void gb_conv_prefer(int candidate);

// The convolution of a node of CONV_2D, CONV_2D_DW or CONV_3D, or of an IM2COL with the product
// after it (conv_nodes.c).
struct gb_conv_job gb_conv_job_of(const struct ggml_tensor * node);
struct gb_conv_job gb_conv_job_of_columns(const struct ggml_tensor * columns, const struct ggml_tensor * product,
    const struct ggml_tensor * kernel);

#endif // GB_CPU_OPS_CONV_CONV_H
