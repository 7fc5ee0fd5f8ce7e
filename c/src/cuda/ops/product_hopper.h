// product_hopper.h - products on compute capability 9.0, by kernels/gemm_hopper.cuh (F16 and BF16) and
// kernels/gemm_packed_hopper.cuh (quantized weights).
#ifndef GB_CUDA_OPS_PRODUCT_HOPPER_H
#define GB_CUDA_OPS_PRODUCT_HOPPER_H

#include "cuda/ops/products.h"

struct gb_hopper_grid;
struct gb_tensor_map;

// Plan of a product: rows of a tile, parts of the depth, depth of a part.
struct gb_hopper_plan {
    int nt, parts, part_depth;
};

// True if the kernels can and should compute the product: more than 32 rows (of an expert, on average), and for F16 and
// BF16 strides that tensor maps can have. Depends on addresses, types, sizes and the device alone.
bool gb_hopper_takes(const gb_cuda_device & d, const gb_product & p, gb_hopper_plan * plan);

// dst: of the product, or memory for all parts in turn. x: 16-bit rows, for quantized weights in the order of
// gb_rows_in_order. first, tokens: NULL, or rows by expert (gb_route); x is in their order.
struct gb_hopper_run {
    gb_hopper_plan plan;
    gb_ready_rows x;
    float * dst;
    const int * first;
    const int * tokens;
};
cudaError_t gb_launch_hopper(const gb_cuda_device & d, const gb_product & p, const gb_hopper_run & run,
    const gb_queue & queue);

// ---- for product_hopper.cu alone

size_t gb_packed_bytes(int type, int nt, int stages); // shared memory; 0: there is no kernel
cudaError_t gb_launch_packed(const gb_product & p, const gb_tensor_map & rows, const gb_hopper_grid & grid, int stages,
    int nt, unsigned blocks, const gb_queue & queue);

#endif // GB_CUDA_OPS_PRODUCT_HOPPER_H
