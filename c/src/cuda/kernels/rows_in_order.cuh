// rows_in_order.cuh - rows of the second operand for products on compute capability 9.0: 16-bit, in the order of
// gemm_packed_hopper.cuh, or sorted by expert, so that tiles are contiguous.
#ifndef GB_CUDA_KERNELS_ROWS_IN_ORDER_CUH
#define GB_CUDA_KERNELS_ROWS_IN_ORDER_CUH

#include "cuda/kernels/rows.cuh"

struct gb_order_rows {
    gb_make_rows rows; // y_row: a multiple of 128 if elements are permuted, else of 8
    const int * source; // NULL, or the source row of each row
    const int * n; // with `source`: number of rows
    bool pairs; // rows are F32, dense, and can be read in pairs
};

// The first source element of pair i, which is elements 2 i and 2 i + 1 of 128 of the result. Pair t + 4 j of step s,
// i = 8 s + 4 j + t, has elements 32 t + 4 s + 2 j and the next.
GB_DEVICE int gb_pair_source(int i) { return i % 4 * 32 + i / 8 * 4 + i / 4 % 2 * 2; }

// Elements [i, i + 8) of the result, as 16 bytes. row: of the source. pairs: two elements can be read
// together.
template <int KIND, bool PERMUTED>
GB_DEVICE uint4 gb_eight_in_order(const gb_make_rows & p, const char * row, int64_t i, bool pairs) {
    uint32_t both[4];
    GB_UNROLL for (int j = 0; j < 4; j++) {
        const int64_t from = PERMUTED ? i / 128 * 128 + gb_pair_source((int) (i % 128) / 2 + j) : i + 2 * j;
        float2 x = make_float2(0, 0);
        if (pairs && from + 1 < p.k) {
            x = *(const float2 *) (const void *) (row + from * 4);
        } else {
            x.x = from < p.k ? gb_load_activation(p, row, from) : 0;
            x.y = from + 1 < p.k ? gb_load_activation(p, row, from + 1) : 0;
        }
        both[j] = gb_pack2<KIND>(x.x, x.y);
    }
    return make_uint4(both[0], both[1], both[2], both[3]);
}

// A thread makes eight elements of a row. grid: x rows, y stretches of 2,048 elements, or the
// maximum of a grid.
template <int KIND, bool PERMUTED> GB_KERNEL GB_BOUNDS(256, 1) gb_rows_in_order(gb_order_rows q) {
    gb_wait_for_earlier();
    const gb_make_rows & p = q.rows;
    const int64_t r = blockIdx.x;
    if (q.source != NULL && r >= *q.n) {
        return; // a row without an expert
    }
    const char * row = gb_source_row(p, q.source != NULL ? q.source[r] : r);
    for (int64_t i = ((int64_t) blockIdx.y * 256 + threadIdx.x) * 8; i < p.y_row; i += (int64_t) gridDim.y * 2048) {
        *(uint4 *) (void *) ((uint16_t *) p.y + r * p.y_row + i) =
            gb_eight_in_order<KIND, PERMUTED>(p, row, i, q.pairs);
    }
}

#endif // GB_CUDA_KERNELS_ROWS_IN_ORDER_CUH
