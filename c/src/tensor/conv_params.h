// conv_params.h - the channels of a node of CONV_2D, CONV_2D_DW or CONV_3D.
//
// op_params: strides, paddings and dilations, width first, of two or three axes. Then:
//  CONV_2D     groups (0 stands for 1)
//  CONV_3D     input channels, images, output channels, groups (0 stands for 1)
#ifndef GB_TENSOR_CONV_PARAMS_H
#define GB_TENSOR_CONV_PARAMS_H

#include "tensor/tensor.h"

struct gb_conv_channels {
    int64_t in, out, groups, batches; // in, out: of all groups
};

static inline struct gb_conv_channels gb_conv_channels_of(const struct ggml_tensor * node) {
    const struct ggml_tensor *a = node->src[0], *b = node->src[1];
    const int32_t * p = node->op_params;
    switch (node->op) {
        case GGML_OP_CONV_3D: return (struct gb_conv_channels) { p[9], p[11], p[12] > 0 ? p[12] : 1, p[10] };
        case GGML_OP_CONV_2D_DW: return (struct gb_conv_channels) { b->ne[2], a->ne[3], b->ne[2], b->ne[3] };
        default: return (struct gb_conv_channels) { b->ne[2], a->ne[3], p[6] > 0 ? p[6] : 1, b->ne[3] };
    }
}

#endif // GB_TENSOR_CONV_PARAMS_H
