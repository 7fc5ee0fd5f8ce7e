// rope.h - rotations and copies of several tensors in one launch, for product_group.cu.
#ifndef GB_CUDA_OPS_ROPE_H
#define GB_CUDA_OPS_ROPE_H

#include "cuda/ops/elements.h"

struct gb_rope {
    int n_dims, mode, n_ctx, n; // n: elements of a row
    int n_turns;                // pairs that are rotated
    double freq_base, freq_scale, ext_factor, attn_factor, low, high;
    double xpos_base; // 0: no magnitude
    bool xpos_down, back;
    bool halves;      // pairs (j, j + n_turns), else (2 j, 2 j + 1)
    bool four;        // a token has four positions; a pair turns by one of them
    bool vision, interleaved; // how sections share the pairs
    int sections[4];
    int offset;           // of the first pair, in elements
    const char * factors; // NULL, or f32, by which frequencies are divided
    int64_t factors_nb;
};

struct gb_rope_part {
    gb_rope r;
    const float2 * table;
    gb_view y, x; // of one shape
};

// The table and parameters of a ROPE, without x and y. rope NULL: the part copies. Queues the kernel
// that makes the table, unless it exists.
enum ggml_status gb_rope_part_of(gb_cuda_backend & b, const ggml_tensor * rope, gb_rope_part * part);
// True if `copy` copies floats, and strides can express its memory in the shape of its source: *y.
bool gb_rope_copies(const ggml_tensor * copy, gb_view * y);
// The same in the shape of the rotated tensor. False: it copies something else.
bool gb_rope_is_copy_of(const ggml_tensor * rope, const ggml_tensor * copy, gb_view * y);
enum ggml_status gb_rope_launch(gb_cuda_backend & b, const gb_rope_part * part, int n);

#endif // GB_CUDA_OPS_ROPE_H
