// product_hopper.h - products of F16 and BF16 on compute capability 9.0, by kernels/gemm_hopper.cuh: one of the ways
// that products.cu chooses from.
#ifndef GB_CUDA_OPS_PRODUCT_HOPPER_H
#define GB_CUDA_OPS_PRODUCT_HOPPER_H

#include "cuda/ops/products.h"

// How a product is done so: rows of a tile, parts of the depth and what each has of it.
struct gb_hopper_way {
    int nt, parts, part_depth;
};

// Whether the product can be done so, and should: more than 32 rows, one matrix for each slice, and strides that tensor
// maps can have. It looks at addresses, types, sizes and the device alone.
bool gb_hopper_takes(const gb_cuda_device & d, const gb_product & p, gb_hopper_way * way);

// dst: of the product, or memory for all parts, one behind the other.
cudaError_t gb_launch_hopper(const gb_cuda_device & d, const gb_product & p, const gb_hopper_way & way,
    const gb_ready_rows & x, float * dst, const gb_queue & queue);

#endif // GB_CUDA_OPS_PRODUCT_HOPPER_H
