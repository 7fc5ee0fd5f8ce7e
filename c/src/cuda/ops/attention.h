// attention.h - attention without stored scores, as FLASH_ATTN (attention.cu), FLASH_ATTN_EXT (attention_ext.cu) and a
// chain of operators (attention_chain.cu).
#ifndef GB_CUDA_OPS_ATTENTION_H
#define GB_CUDA_OPS_ATTENTION_H

#include "cuda/kernels/attention_args.h"
#include "cuda/ops/elements.h"

enum { GB_ATTENTION_FLOAT_HEAD = 128 }; // longest head of gb_attention_floats

gb_attention_input gb_attention_input_of(const ggml_tensor * t); // head i is head i % ne2 of t
// True if the result's rows, heads and batches fit a grid.
bool gb_attention_fits(const ggml_tensor * dst);

// An algorithm. The first of the table (attention.cu) that does not decline computes attention.
struct gb_attention_algorithm {
    const char * name; // for people; unique
    const char * (*declines)(const gb_cuda_device & device, const gb_attention & p); // NULL: it can compute p
    // Sets parts, part_keys, partial and stages of its copy of p.
    enum ggml_status (*run)(gb_cuda_backend & b, gb_attention p, int64_t batch);
};

gb_cuda_choice gb_attention_choose(const gb_cuda_device & device, const gb_attention & p);
enum ggml_status gb_attention_run(gb_cuda_backend & b, const gb_attention & p, int64_t batch, gb_cuda_choice choice);

// The algorithms. gb_attention_halves_decline returns NULL if q, k and v suit the tensor cores of
// any device.
const char * gb_attention_halves_decline(const gb_cuda_device & device, const gb_attention & p);
const char * gb_attention_hopper_declines(const gb_cuda_device & device, const gb_attention & p);
enum ggml_status gb_attention_hopper_run(gb_cuda_backend & b, gb_attention p, int64_t batch);

const char * gb_attention_few_declines(const gb_cuda_device & device, const gb_attention & p);
enum ggml_status gb_attention_few_run(gb_cuda_backend & b, gb_attention p, int64_t batch);

const char * gb_attention_ext_declines(const gb_cuda_device & device, const gb_attention & p);
enum ggml_status gb_attention_ext_run(gb_cuda_backend & b, gb_attention p, int64_t batch);

// FLASH_ATTN_EXT as numbers and addresses, and the reason why it is not possible (NULL: it is).
gb_attention gb_attention_ext_of(const ggml_tensor * dst);
const char * gb_attention_ext_unsupported(const ggml_tensor * dst);

// True if rows are dense, of this type, and begin at multiples of 16 bytes.
bool gb_attention_is_dense(const gb_attention_input & t, int type);

// Tiles of `rows` rows that share a head of keys.
int64_t gb_attention_row_tiles(const gb_attention & p, int rows);

// Cuts the keys into parts of whole tiles of `keys`, if the tiles of `rows` rows are fewer than `places` for blocks. A
// part has at least about least_keys. False: no memory, reported.
enum { GB_ATTENTION_LEAST_KEYS = 256 };
bool gb_attention_cut_keys(gb_cuda_backend & b, gb_attention & p, int64_t batch, int rows, int keys, int least_keys,
    int64_t places);
enum ggml_status gb_attention_join_parts(gb_cuda_backend & b, const gb_attention & p, int64_t batch);

// attention_chain.cu: gb_cuda_op::fuse of MUL_MAT.
int gb_attention_fuse(gb_cuda_backend & b, const gb_cuda_nodes & nodes, int i);

#endif // GB_CUDA_OPS_ATTENTION_H
