// tensors.h - addresses of tensors, and their names in messages.
#ifndef GB_CUDA_TENSORS_H
#define GB_CUDA_TENSORS_H

#include "ggml-backend-module.h"

// The tensor's address. A tensor without memory gets an invalid address with the alignment of real ones, so that a dry
// run takes the same decisions as the run.
char * gb_cuda_data(const ggml_tensor * t);
bool gb_cuda_overlap(const ggml_tensor * a, const ggml_tensor * b); // share bytes of memory

// Writes "'x' f32 [4, 2]", as the library describes tensors.
void gb_cuda_describe(char * text, size_t size, const ggml_tensor * t);

#endif // GB_CUDA_TENSORS_H
