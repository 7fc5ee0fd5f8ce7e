// attention.h - attention without stored scores, as FLASH_ATTN (attention.cu) and as the chain of operators that it is
// often made of (attention_chain.cu).
#ifndef GB_CUDA_OPS_ATTENTION_H
#define GB_CUDA_OPS_ATTENTION_H

#include "cuda/kernels/attention_args.h"
#include "cuda/ops/elements.h"

enum { GB_ATTENTION_FLOAT_HEAD = 128 }; // the longest head that gb_attention_run_floats takes

gb_attention_input gb_attention_input_of(const ggml_tensor * t); // heads modulo
// rows and heads of the result are not more than a grid has
bool gb_attention_fits(const ggml_tensor * dst);

// q, k and v are of one type, F16 or BF16, and lie so that the tensor cores can have them.
bool gb_attention_for_tensor_cores(const gb_cuda_device & device, const gb_attention & p);

// parts, part_keys, partial and stages are theirs to choose.
enum ggml_status gb_attention_run_halves(gb_cuda_backend & b, const gb_attention & p, int64_t batch);

// attention_hopper.cu: the same for many query rows on 9.0, with tiles of rows and keys of its own.
bool gb_attention_tall_takes(const gb_cuda_device & device, const gb_attention & p);
int gb_attention_tall_keys(const gb_attention & p);
// parts, part_keys and partial are chosen.
cudaError_t gb_attention_launch_tall(const gb_attention & p, int64_t batch, const gb_queue & queue);
enum { GB_ATTENTION_TALL_ROWS = 128 };

// any type and stride
enum ggml_status gb_attention_run_floats(gb_cuda_backend & b, const gb_attention & p, int64_t batch);

// attention_chain.cu: of MUL_MAT. As gb_cuda_op::fuse.
int gb_attention_fuse(gb_cuda_backend & b, const gb_cuda_nodes & nodes, int i);

#endif // GB_CUDA_OPS_ATTENTION_H
