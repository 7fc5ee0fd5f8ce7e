// numbers.h - constants of operators, and of products in bytes, that all backends must share so
// that results agree. Only data, for C and C++, host and device.
#ifndef GB_TENSOR_NUMBERS_H
#define GB_TENSOR_NUMBERS_H

// Limits of activations that products round to bytes, for groups of 32. A group with a magnitude of
// at least the largest has the scale NaN, because sums of its products might overflow in some
// orders only. A group with all magnitudes below the least is zeros.
#define GB_LARGEST_ACTIVATION 0x1p100f
#define GB_LEAST_ACTIVATION 0x1p-100f

// Added to the variance by GROUP_NORM
#define GB_GROUP_NORM_EPS 1e-6f

// Bits of the mode of ROPE, beside GGML_ROPE_EXACT
enum { GB_ROPE_NEOX = 2, GB_ROPE_GLM = 4 };

// op_params[0] of OPT_STEP_ADAMW: the tensor that the node writes. ops_optimizer.c lists the sources.
enum gb_adamw_part { GB_ADAMW_MEAN, GB_ADAMW_SQUARES, GB_ADAMW_WEIGHTS };

#endif // GB_TENSOR_NUMBERS_H
