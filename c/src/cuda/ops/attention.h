// attention.h - attention without stored scores, as FLASH_ATTN (attention.cu) and as a chain of operators
// (attention_chain.cu).
#ifndef GB_CUDA_OPS_ATTENTION_H
#define GB_CUDA_OPS_ATTENTION_H

#include "cuda/kernels/attention_args.h"
#include "cuda/ops/elements.h"

enum { GB_ATTENTION_FLOAT_HEAD = 128 }; // longest head of gb_attention_run_floats

gb_attention_input gb_attention_input_of(const ggml_tensor * t); // heads repeat
// True if a grid has enough rows and heads.
bool gb_attention_fits(const ggml_tensor * dst);

// True if q, k and v are of one type, F16 or BF16, and aligned for the tensor cores.
bool gb_attention_for_tensor_cores(const gb_cuda_device & device, const gb_attention & p);

// Sets parts, part_keys, partial and stages of its copy of p.
enum ggml_status gb_attention_run_halves(gb_cuda_backend & b, const gb_attention & p, int64_t batch);

// attention_hopper.cu: the same for many query rows on 9.0, with larger tiles.
bool gb_attention_tall_takes(const gb_cuda_device & device, const gb_attention & p);
int gb_attention_tall_keys(const gb_attention & p);
// parts, part_keys and partial must be set.
cudaError_t gb_attention_launch_tall(const gb_attention & p, int64_t batch, const gb_queue & queue);
enum { GB_ATTENTION_TALL_ROWS = 128 };

// Any type and stride.
enum ggml_status gb_attention_run_floats(gb_cuda_backend & b, const gb_attention & p, int64_t batch);

// attention_chain.cu: gb_cuda_op::fuse of MUL_MAT.
int gb_attention_fuse(gb_cuda_backend & b, const gb_cuda_nodes & nodes, int i);

#endif // GB_CUDA_OPS_ATTENTION_H
