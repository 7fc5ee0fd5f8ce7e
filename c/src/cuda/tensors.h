// tensors.h - addresses of tensors, and their names in messages.
#ifndef GB_CUDA_TENSORS_H
#define GB_CUDA_TENSORS_H

#include "ggml-backend-module.h"

// The tensor's address. A tensor without memory gets an invalid address with the alignment of real ones, so that a dry
// run makes the same decisions as the run.
char * gb_cuda_data(const ggml_tensor * t);
bool gb_cuda_overlap(const ggml_tensor * a, const ggml_tensor * b); // share bytes of memory

// Enclose values in C's notation in messages, as GB_QUOTE of base/status.h does.
#define GB_QUOTE_BEGIN "\016"
#define GB_QUOTE_END "\017"

// Writes "'x' f32 [4, 2]" as a value of a message.
void gb_cuda_describe(char * text, size_t size, const ggml_tensor * t);

#endif // GB_CUDA_TENSORS_H
