// gate.h - y = f(gate) times up, for product_group.cu. map.cu has the kernel.
#ifndef GB_CUDA_OPS_GATE_H
#define GB_CUDA_OPS_GATE_H

#include "cuda/kernels/rows.cuh"

struct gb_gate {
    const float *gate, *up;
    float * y;
    int64_t n;
    bool rounds;       // y also becomes bytes
    gb_make_rows made; // of y, one row
};

bool gb_gate_has(int unary); // true if a kernel has this function of UNARY
cudaError_t gb_gate_launch(int unary, const gb_gate & q, const gb_queue & queue);

#endif // GB_CUDA_OPS_GATE_H
