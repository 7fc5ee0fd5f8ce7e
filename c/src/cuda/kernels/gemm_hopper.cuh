// gemm_hopper.cuh - products of F16 and BF16 with many rows of dst on compute capability 9.0. The copy
// engine copies tiles; products read them from shared memory.
//
// A block makes the tiles of hopper_tiles.cuh. A thread of its last warp copies 64 elements of
// depth of both operands per step, p.stages ahead. Two groups of four warps multiply, each 64
// columns by NT rows, with all sums in registers.
//
// Each stage of shared memory has two barriers. `full`: the copy has started and all bytes have
// arrived. `empty`: the eight warps have read it. A warp arrives at `empty` one stage late, when
// only the products of the newest stage may still run. So the tensor cores always have the next
// products, and copies continue while sums are stored.
//
// Elements past the ends of the operands read as zeros; results outside of dst are not stored. With experts, the rows
// of the second operand are sorted by expert. The end of a tile may have rows of the next expert, which are not stored
// either.
#ifndef GB_CUDA_KERNELS_GEMM_HOPPER_CUH
#define GB_CUDA_KERNELS_GEMM_HOPPER_CUH

#include "cuda/kernels/hopper_tiles.cuh"
#include "ggml.h"

enum { GB_HOPPER_THREADS = 32 * (GB_HOPPER_WARPS + 1) };

struct gb_gemm_tiles {
    gb_tensor_map rows; // dimensions: depth, row, slice, 1
    gb_hopper_grid grid;
    int stages;
    int axis[3]; // of weights: dimension of the column and of both dimensions of slices, 1 to 3
    int ne2, r2, r3; // slice z of the product reads slice (z % ne2 / r2, z / ne2 / r3) of the weights
    bool stacked; // expert e is slice e of the weights
    // Of the matrix or of the experts. Dimensions: depth; then column and both dimensions of slices by stride.
    gb_tensor_map weights[GGML_MAX_SRC];
};

template <int NT> constexpr int gb_hopper_stage = (GB_HOPPER_M + NT) * GB_HOPPER_K * 2; // bytes

template <int NT> GB_DEVICE void gb_hopper_copy(const gb_gemm_tiles & p, char * shared) {
    constexpr int STAGE = gb_hopper_stage<NT>;
    gb_barrier * full = (gb_barrier *) (void *) (shared + p.stages * STAGE);
    gb_barrier * empty = full + p.stages;
    gb_hopper_place at;
    for (int number = (int) blockIdx.x; number < p.grid.tiles; number += (int) gridDim.x) {
        const gb_hopper_tile t = gb_hopper_tile_of<NT>(p.grid, number);
        const int a2 = p.stacked ? t.expert : t.slice % p.ne2 / p.r2, a3 = t.slice / p.ne2 / p.r3;
        int c[4] = { 0, 0, 0, 0 };
        GB_UNROLL for (int i = 1; i < 4; i++) { c[i] = p.axis[0] == i ? t.column : p.axis[1] == i ? a2 : a3; }
        for (int step = 0; step < t.steps; step++) {
            const int k = t.k0 + step * GB_HOPPER_K;
            char * to = shared + at.stage * STAGE;
            gb_barrier_wait(&empty[at.stage], at.parity ^ 1); // returns at once for a new stage
            gb_barrier_expect(&full[at.stage], STAGE);
            gb_copy_tile(to, p.weights[p.stacked ? 0 : t.expert], k, c[1], c[2], c[3], &full[at.stage]);
            gb_copy_tile(to + GB_HOPPER_M * GB_HOPPER_K * 2, p.rows, k, t.row, t.slice, 0, &full[at.stage]);
            at.next(p.stages);
        }
    }
}

template <int KIND, int NT> GB_DEVICE void gb_hopper_multiply(const gb_gemm_tiles & p, char * shared) {
    constexpr int STAGE = gb_hopper_stage<NT>;
    gb_barrier * full = (gb_barrier *) (void *) (shared + p.stages * STAGE);
    gb_barrier * empty = full + p.stages;
    const int lane = (int) threadIdx.x % 32, group = (int) threadIdx.x / 128;
    gb_hopper_place at;
    for (int number = (int) blockIdx.x; number < p.grid.tiles; number += (int) gridDim.x) {
        const gb_hopper_tile t = gb_hopper_tile_of<NT>(p.grid, number);
        float sum[NT / 2] = {}; // zeros, because ptxas of CUDA 12.0 serializes wgmma with undefined sums
        int before = 0; // the stage whose products may still run
        if (t.steps == 0) {
            continue;
        }
        for (int step = 0; step < t.steps; step++) {
            const char * weights = shared + at.stage * STAGE;
            gb_barrier_wait(&full[at.stage], at.parity);
            const uint64_t a = gb_matrix_of(weights + group * 64 * GB_HOPPER_K * 2),
                           b = gb_matrix_of(weights + GB_HOPPER_M * GB_HOPPER_K * 2);
            gb_matrix_fence();
            GB_UNROLL for (int i = 0; i < GB_HOPPER_K / 16; i++) { // a descriptor has address / 16: 2 for 16 elements
                gb_matrix_mma<KIND, NT>(sum, a + 2 * i, b + 2 * i, true);
            }
            gb_matrix_commit();
            if (step > 0) {
                gb_matrix_wait<1>();
                if (lane == 0) {
                    gb_barrier_arrive(&empty[before]);
                }
            }
            before = at.stage;
            at.next(p.stages);
        }
        gb_matrix_wait<0>();
        if (lane == 0) {
            gb_barrier_arrive(&empty[before]);
        }
        gb_matrix_done(sum);
        gb_hopper_store<NT>(p.grid, t, sum);
    }
}

// grid: one block for each multiprocessor, at most one for each tile. Shared memory: the stages, and two barriers for
// each.
template <int KIND, int NT>
GB_KERNEL GB_BOUNDS(GB_HOPPER_THREADS, 1) gb_gemm_hopper(GB_FIXED_PARAMETER gb_gemm_tiles p) {
    constexpr int STAGE = gb_hopper_stage<NT>;
    GB_DYNAMIC_SHARED(char, shared);
    if (threadIdx.x == 0) {
        gb_barrier * full = (gb_barrier *) (void *) (shared + p.stages * STAGE);
        for (int i = 0; i < p.stages; i++) {
            gb_barrier_init(&full[i], 1);
            gb_barrier_init(&full[p.stages + i], GB_HOPPER_WARPS);
        }
        gb_barrier_fence();
    }
    gb_wait_for_earlier();
    gb_sync_block();
    if (threadIdx.x < 32 * GB_HOPPER_WARPS) {
        gb_hopper_multiply<KIND, NT>(p, shared);
    } else if (threadIdx.x == 32 * GB_HOPPER_WARPS) {
        gb_hopper_copy<NT>(p, shared);
    }
}

#endif // GB_CUDA_KERNELS_GEMM_HOPPER_CUH
