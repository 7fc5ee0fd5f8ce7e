// product_hopper.h - launches of the kernels for quantized weights on 9.0 (product_packed_hopper.cu), for
// product_hopper.cu.
#ifndef GB_CUDA_OPS_PRODUCT_HOPPER_H
#define GB_CUDA_OPS_PRODUCT_HOPPER_H

#include "cuda/ops/products.h"

struct gb_hopper_grid;
struct gb_tensor_map;

// Bytes of shared memory; 0: there is no kernel. nt: rows of a tile (64, 128, 256); stages: steps of the copy pipeline.
size_t gb_packed_bytes(int type, int nt, int stages);
cudaError_t gb_launch_packed(const gb_product & p, const gb_tensor_map & rows, const gb_hopper_grid & grid, int stages,
    int nt, unsigned blocks, const gb_queue & queue);

#endif // GB_CUDA_OPS_PRODUCT_HOPPER_H
