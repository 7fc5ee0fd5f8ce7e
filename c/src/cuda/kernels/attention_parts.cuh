// attention_parts.cuh - shared by the kernels of attention: rows of heads, visible keys, softmax on tensor cores,
// results.
#ifndef GB_CUDA_KERNELS_ATTENTION_PARTS_CUH
#define GB_CUDA_KERNELS_ATTENTION_PARTS_CUH

#include "cuda/kernels/attention_args.h"
#include "cuda/kernels/bits.cuh"

struct gb_attention_row { // row r of a group; queries change fastest, then heads
    int64_t i1, i2;
};

GB_DEVICE gb_attention_row gb_attention_row_of(const gb_attention & p, int64_t group, int64_t r) {
    return { r % p.n, group * p.group_step + r / p.n * p.head_step };
}

GB_DEVICE const char * gb_attention_at(const gb_attention_input & t, int64_t i1, int64_t i2, int64_t i3) {
    return t.x + i1 * (int64_t) t.nb1 + i2 / t.r2 % t.ne2 * (int64_t) t.nb2 + i3 / t.r3 % t.ne3 * (int64_t) t.nb3;
}

// The mask of a query: the addend of key c is at offset c nb0.
GB_DEVICE const char * gb_attention_mask_row(const gb_attention_mask & t, int64_t i1, int64_t i2, int64_t i3) {
    return t.x + i1 % t.ne1 * (int64_t) t.nb1 + i2 % t.ne2 * (int64_t) t.nb2 + i3 % t.ne3 * (int64_t) t.nb3;
}

GB_DEVICE float * gb_attention_result(const gb_attention & p, int64_t i1, int64_t i2, int64_t i3) {
    return p.dst + i3 * p.n * p.heads * p.d + i2 * p.dst_head + i1 * p.dst_query;
}

GB_DEVICE float * gb_attention_partial(const gb_attention & p, int64_t i1, int64_t i2, int64_t i3, int64_t part) {
    return p.partial + (((i3 * p.heads + i2) * p.n + i1) * p.parts + part) * (p.d + 2);
}

GB_DEVICE int64_t gb_keys_seen(const gb_attention & p, int64_t query) {
    return p.masked ? gb_max<int64_t>(0, gb_min(p.m, p.past + query + 1)) : p.m;
}

// One more score of a head, which takes a share of the sum. -infinity: none.
GB_DEVICE float gb_attention_sink(const gb_attention & p, int64_t i2) {
    return p.sinks != NULL ? *(const float *) (const void *) (p.sinks + i2 * p.sinks_nb) : -INFINITY;
}

// -------------------------------------------------------------------------------------------------------- tensor cores

GB_DEVICE float gb_quad_max(float x) { // over the four lanes that share a row
    x = fmaxf(x, gb_shfl_xor(x, 1));
    return fmaxf(x, gb_shfl_xor(x, 2));
}

GB_DEVICE float gb_quad_sum(float x) {
    x += gb_shfl_xor(x, 1);
    return x + gb_shfl_xor(x, 2);
}

struct gb_softmax_state { // of the two rows of a lane
    float largest[2], sum[2];
};

// Stores rows `mine` and `mine` + 8 of a group. A lane has columns 8 j + 2 (lane % 4) + i of these
// rows in out[4 j + i] and out[4 j + 2 + i].
template <int DP>
GB_DEVICE void gb_attention_store(const gb_attention & p, int64_t group, int64_t i3, int64_t part, int64_t mine,
    int64_t rows, const gb_softmax_state & state, const float * out) {
    const int lane = (int) threadIdx.x % 32;
    GB_UNROLL for (int h = 0; h < 2; h++) {
        const int64_t r = mine + 8 * h;
        const float sum = gb_quad_sum(state.sum[h]);
        const float scale = p.partial != NULL ? 1 : sum == 0 ? 0 : 1 / sum; // keeps NaN
        if (r < rows) {
            const gb_attention_row at = gb_attention_row_of(p, group, r);
            float * to = p.partial != NULL ? gb_attention_partial(p, at.i1, at.i2, i3, part)
                                           : gb_attention_result(p, at.i1, at.i2, i3);
            GB_UNROLL for (int j = 0; j < DP / 8; j++) {
                const int column = 8 * j + 2 * (lane % 4);
                if (column < p.d) { // d is a multiple of 8
                    to[column] = out[4 * j + 2 * h] * scale;
                    to[column + 1] = out[4 * j + 2 * h + 1] * scale;
                }
            }
            if (p.partial != NULL && lane % 4 == 0) {
                to[p.d] = state.largest[h];
                to[p.d + 1] = sum;
            }
        }
    }
}

#endif // GB_CUDA_KERNELS_ATTENTION_PARTS_CUH
