// attention_args.h - parameters of the kernels of attention: softmax(q k scale + mask) v, and what FLASH_ATTN_EXT adds.
#ifndef GB_CUDA_KERNELS_ATTENTION_ARGS_H
#define GB_CUDA_KERNELS_ATTENTION_ARGS_H

#include "cuda/kernels/rows.cuh"

struct gb_attention_input {
    const char * x;
    int type;
    size_t nb0, nb1, nb2, nb3;
    int64_t ne2, ne3, r2, r3; // head i and batch j of queries use i / r2 % ne2 and j / r3 % ne3
};

// The mask, which is added to the scores. A smaller mask is repeated.
struct gb_attention_mask {
    const char * x; // NULL: none
    int type;
    size_t nb0, nb1, nb2, nb3;
    int64_t ne1, ne2, ne3;
};

struct gb_attention {
    gb_attention_input q, k, v; // keys of v are along dimension 0, or along 1 with `by_key`
    gb_attention_mask mask;
    float * dst; // rows of d elements; a batch has n * heads rows
    int64_t dst_query, dst_head; // elements from the row of a query to that of the next one; of heads
    // Elements of a value; queries of a head; keys; heads of queries; groups of heads / outer heads that share keys.
    int64_t d, n, m, heads, outer;
    int64_t group_step, head_step; // head = group * group_step + number in its group * head_step
    bool exact; // for the host: computes in float
    bool joined; // for the host: gb_attention_join makes the result, also of one part
    bool masked;
    int64_t past; // with `masked`: query i sees the keys up to past + i
    float scale; // of a score
    // For attention_ext.cuh:
    bool by_key; // for the host: only that kernel is possible
    int64_t dk; // elements of a query and a key
    float cap; // 0, or the largest magnitude of a score
    float bias_max; // 0: the mask is added as it is; else heads have slopes
    int floor_heads;
    const char * sinks; // NULL, or f32, one for each head; gb_attention_join adds them, too
    int64_t sinks_nb;
    // For all kernels: parts of the keys.
    int parts, part_keys;
    // NULL, or for each part and row of dst: d sums, the largest score, the sum of exponentials.
    float * partial;
    int stages; // of keys and values in shared memory: 1 or 2
    // If `rounded` is not NULL, gb_attention_join also makes rows of dst as bytes, for the next product. The host sets
    // *rounded if it launches that kernel.
    gb_make_rows made;
    bool * rounded;
};

#endif // GB_CUDA_KERNELS_ATTENTION_ARGS_H
