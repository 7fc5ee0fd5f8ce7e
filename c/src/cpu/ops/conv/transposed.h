// transposed.h - the transposed convolutions CONV_TRANSPOSE_1D and CONV_TRANSPOSE_2D, and their algorithms.
//
//     y(n, o, i stride + k) = sum over c of w(c, o)[k] x(n, c, i)
//
// Axes are 0 width, 1 height. One axis: the height and its kernel are 1.
//
//   woven    the outputs of one phase, those whose distance is the stride, are a convolution with every stride-th
//            element of the kernel. Tiles in registers compute them from one padded copy of the input (slab.h).
//   spread   adds each kernel row, times each input value, to the result. For all shapes.
#ifndef GB_CPU_OPS_CONV_TRANSPOSED_H
#define GB_CPU_OPS_CONV_TRANSPOSED_H

#include "cpu/ops/elements.h"

struct gb_transposed {
    const struct ggml_tensor * node;
    int axes;
    int64_t stride[2], kernel[2], in[2], out[2];
    int64_t ic, oc;
    int64_t images; // of all batches
};

struct gb_transposed gb_transposed_of(const struct ggml_tensor * node);

// The address of input row h of channel c, and of row k of the kernel from channel c to channel o.
static inline const char * gb_transposed_x(const struct gb_transposed * t, int64_t image, int64_t c, int64_t h) {
    const struct ggml_tensor * b = t->node->src[1];
    return t->axes == 2 ? gb_row_ptr(b, h, c, image) : gb_row_ptr(b, c, image % b->ne[2], image / b->ne[2]);
}
static inline const char * gb_transposed_w(const struct gb_transposed * t, int64_t c, int64_t o, int64_t k) {
    const struct ggml_tensor * a = t->node->src[0];
    return t->axes == 2 ? gb_row_ptr(a, k, o, c) : gb_row_ptr(a, o, c, 0);
}
static inline float * gb_transposed_y(const struct gb_transposed * t, int64_t image, int64_t o) {
    return (float *) t->node->data + (image * t->oc + o) * t->out[0] * t->out[1];
}

// NULL: woven can compute it. Else why not, a static text. Depends on shapes alone.
const char * gb_woven_cannot(const struct gb_transposed * t);
// Pieces that threads share, at most: bands of the result times tiles of output channels.
int64_t gb_woven_n_units(const struct gb_transposed * t);
size_t gb_woven_work_size(const struct gb_transposed * t, int n_tasks);
void gb_woven_run(const struct gb_cpu_call * call, const struct gb_transposed * t);

// For tests: spread computes all transposed convolutions.
void gb_transposed_prefer_spread(bool prefer);

#endif // GB_CPU_OPS_CONV_TRANSPOSED_H
