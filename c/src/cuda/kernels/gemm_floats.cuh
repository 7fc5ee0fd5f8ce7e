// gemm_floats.cuh - products of F32 weights with many rows of dst, in float.
//
// A block makes 16 TN rows of dst times 128 columns, a thread TN x 8 of them. A stage is 32 elements
// deep and is in shared memory as in gemm.cuh: rows of 128 bytes, piece p of row r at p xor r % 8. So
// copies of 16 bytes fill it, some stages ahead of the products.
//
// A thread reads a piece, four elements along the sum, of its eight columns and of one row at a
// time. For TN = 8, that is 16 loads for 256 fused multiply-adds. The lanes of a warp form 4 rows x
// 8 columns. Bits 0 and 3 of a lane's number select its row, the others its column. So a half-warp
// reads 64 distinct bytes in a load, in one step. Sums and operands fit 128 registers, so a
// multiprocessor holds two blocks.
//
// tools/count_sass.py counts the instructions of the loop.
#ifndef GB_CUDA_KERNELS_GEMM_FLOATS_CUH
#define GB_CUDA_KERNELS_GEMM_FLOATS_CUH

#include "cuda/kernels/gemm.cuh"

// Piece `piece` of row r of a tile: four elements.
GB_DEVICE float4 gb_floats_at(uint16_t * tile, int r, int piece) {
    return *(const float4 *) (const void *) gb_piece(tile, r, piece);
}

// The first row and column of a tile that belong to this thread. The others follow in steps of 4 and 8.
template <int TN> GB_DEVICE int gb_floats_row(void) {
    const int lane = (int) threadIdx.x % 32, warp = (int) threadIdx.x / 32;
    return warp % 4 * (4 * TN) + (lane & 1) + (lane >> 2 & 2);
}
GB_DEVICE int gb_floats_column(void) {
    const int lane = (int) threadIdx.x % 32, warp = (int) threadIdx.x / 32;
    return warp / 4 * 64 + (lane >> 1 & 3) + (lane >> 2 & 4);
}

// Adds the products of a stage.
template <int TN> GB_DEVICE void gb_floats_multiply(uint16_t * columns, uint16_t * rows, float (&sum)[TN][8]) {
    const int row = gb_floats_row<TN>(), column = gb_floats_column();
    GB_UNROLL_2 for (int piece = 0; piece < 8; piece++) {
        float4 b[8];
        GB_UNROLL for (int j = 0; j < 8; j++) { b[j] = gb_floats_at(columns, column + 8 * j, piece); }
        GB_UNROLL for (int i = 0; i < TN; i++) {
            const float4 a = gb_floats_at(rows, row + 4 * i, piece);
            GB_UNROLL for (int j = 0; j < 8; j++) { sum[i][j] += a.x * b[j].x; }
            GB_UNROLL for (int j = 0; j < 8; j++) { sum[i][j] += a.y * b[j].y; }
            GB_UNROLL for (int j = 0; j < 8; j++) { sum[i][j] += a.z * b[j].z; }
            GB_UNROLL for (int j = 0; j < 8; j++) { sum[i][j] += a.w * b[j].w; }
        }
    }
}

// Rows of both operands begin at multiples of 16 bytes.
template <int TN> GB_KERNEL GB_BOUNDS(GB_GEMM_THREADS, 2) gb_gemm_floats(gb_gemm p) {
    gb_wait_for_earlier();
    constexpr int NT = 16 * TN, N_ROWS = NT * 8 / GB_GEMM_THREADS, STAGE = (GB_GEMM_M + NT) * GB_GEMM_K; // halves
    GB_DYNAMIC_SHARED(uint16_t, shared);
    const gb_tile t = gb_in_halves(gb_tile_of<NT>(p, GB_GEMM_M));
    if (t.a == NULL) {
        return; // the whole block returns
    }
    const int row = gb_floats_row<TN>(), column = gb_floats_column();
    const uint16_t * from[N_ROWS];
    gb_rows_to_copy<NT, 2>(p, t, from);
    float sum[TN][8] = {};
    int64_t ahead = t.k0;
    for (int s = 0; s < p.stages - 1; s++, ahead += GB_GEMM_K) {
        if (ahead < t.k1) {
            gb_load_weights<GB_FLOATS>(p, t, ahead, shared + s * STAGE);
            gb_load_rows<N_ROWS>(t, ahead, from, p.x, shared + s * STAGE + GB_GEMM_M * GB_GEMM_K);
        }
        gb_cp_async_commit();
    }
    int stage = 0;
    for (int64_t k = t.k0; k < t.k1; k += GB_GEMM_K, ahead += GB_GEMM_K) {
        gb_wait_for_stage(p.stages);
        gb_sync_block(); // the stage is complete, and no thread reads the one that is overwritten next
        if (ahead < t.k1) {
            uint16_t * to = shared + (stage == 0 ? p.stages - 1 : stage - 1) * STAGE;
            gb_load_weights<GB_FLOATS>(p, t, ahead, to);
            gb_load_rows<N_ROWS>(t, ahead, from, p.x, to + GB_GEMM_M * GB_GEMM_K);
        }
        gb_cp_async_commit();
        uint16_t * weights = shared + stage * STAGE;
        gb_floats_multiply<TN>(weights, weights + GB_GEMM_M * GB_GEMM_K, sum);
        stage = stage + 1 == p.stages ? 0 : stage + 1;
    }
    gb_cp_async_wait<0>();
    GB_UNROLL for (int i = 0; i < TN; i++) {
        const int64_t r = t.row + row + 4 * i;
        if (r < t.end) {
            float * to = t.dst + gb_tile_row(p, t, r) * p.m;
            GB_UNROLL for (int j = 0; j < 8; j++) {
                const int64_t c = t.column + column + 8 * j;
                if (c < p.m) {
                    to[c] = sum[i][j];
                }
            }
        }
    }
}

#endif // GB_CUDA_KERNELS_GEMM_FLOATS_CUH
