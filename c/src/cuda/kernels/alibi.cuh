// alibi.cuh - slopes of ALiBi, by which the mask of a head is multiplied.
#ifndef GB_CUDA_KERNELS_ALIBI_CUH
#define GB_CUDA_KERNELS_ALIBI_CUH

#include "cuda/launch.cuh"

// The largest power of two that is not larger than a number of heads.
static inline int gb_alibi_floor(int64_t n_head) {
    int floor = 1;
    while (floor <= n_head / 2 && floor < 1 << 30) {
        floor *= 2;
    }
    return floor;
}

// The slope of a head. Heads from floor_heads on have the odd powers of the base for twice as many heads.
GB_DEVICE float gb_alibi_slope(int64_t head, int floor_heads, float bias_max) {
    return head < floor_heads
               ? exp2f(-bias_max / (float) floor_heads * (float) (head + 1))
               : exp2f(-bias_max / (2.0f * (float) floor_heads) * (float) (2 * (head - floor_heads) + 1));
}

#endif // GB_CUDA_KERNELS_ALIBI_CUH
