// hopper_tiles.cuh - shared by products on compute capability 9.0: the part of dst that a block makes next, and the
// stores of its sums.
//
// dst is split into tiles of 128 columns by NT rows, for each slice and each part of the depth. A
// block makes tile blockIdx.x and every gridDim.x-th after it. With experts, rows of dst are sorted
// by expert (gb_route in product_steps.cuh). Each expert begins with a new tile, so the last
// numbers may have no tile.
#ifndef GB_CUDA_KERNELS_HOPPER_TILES_CUH
#define GB_CUDA_KERNELS_HOPPER_TILES_CUH

#include "cuda/hopper.cuh"

enum {
    GB_HOPPER_M = 128, // columns of dst of a tile
    GB_HOPPER_K = 64,  // elements of a stage: 128 bytes of a row
    GB_HOPPER_BAND = 8, // rows of tiles that adjacent numbers go through together
    GB_HOPPER_WARPS = 8, // warps that multiply: two groups, 64 columns each
};

struct gb_hopper_grid {
    float * dst;
    int64_t m, n;      // columns of dst, rows of a slice
    int64_t part_rows; // the depth is cut into parts; distance of their results, in rows
    int k, parts, part_depth;
    int tiles_m, tiles_n, tiles; // of a slice and a part; in all
    int n_experts;
    gb_routed_rows routed;
};

struct gb_hopper_tile {
    // First column of dst; rows [row, end) of the slice, or of the list of routed rows.
    int column, row, end, slice;
    int expert;                  // expert, or 0
    int k0, depth, steps;        // steps: stages of the depth; 0 without a tile
    float * dst;                 // of the part and the slice
};

// Blocks with adjacent numbers run at the same time, so they get tiles that are close in both
// dimensions.
template <int NT> GB_DEVICE gb_hopper_tile gb_hopper_tile_of(const gb_hopper_grid & p, int number) {
    gb_hopper_tile t;
    const int plane = p.tiles_m * p.tiles_n, z = number / plane, in_plane = number % plane;
    const int per_band = GB_HOPPER_BAND * p.tiles_m, band = in_plane / per_band * GB_HOPPER_BAND;
    const int wide = gb_min(GB_HOPPER_BAND + 0, p.tiles_n - band), in_band = in_plane % per_band;
    const int part = z % p.parts;
    const int y = band + in_band % wide;
    t.slice = z / p.parts;
    t.expert = 0;
    t.column = in_band / wide * GB_HOPPER_M;
    t.row = y * NT;
    t.end = (int) gb_min<int64_t>(p.n, t.row + NT);
    t.k0 = part * p.part_depth;
    t.depth = gb_min(p.k - t.k0, p.part_depth);
    t.steps = (t.depth + GB_HOPPER_K - 1) / GB_HOPPER_K;
    t.dst = p.dst + (part * p.part_rows + t.slice * p.n) * p.m;
    if (p.routed.list == NULL) {
        return t;
    }
    int64_t tile = y;
    const int e = gb_expert_of_tile(p.routed, p.n_experts, &tile);
    if (e == p.n_experts) {
        t.steps = 0;
        return t;
    }
    t.expert = e;
    t.row = p.routed.first[e] + (int) tile * NT;
    t.end = gb_min(p.routed.first[e + 1] + 0, t.row + NT);
    return t;
}

// Stores the sums of the eight warps, as gb_matrix_mma gives them.
template <int NT>
GB_DEVICE void gb_hopper_store(const gb_hopper_grid & p, const gb_hopper_tile & t, const float (&sum)[NT / 2]) {
    const int lane = (int) threadIdx.x % 32, warp = (int) threadIdx.x / 32;
    const int column = t.column + 16 * warp + lane / 4, row = t.row + 2 * (lane % 4);
    GB_UNROLL for (int j = 0; j < NT / 8; j++) {
        GB_UNROLL for (int e = 0; e < 2; e++) {
            const int at = row + 8 * j + e;
            if (at < t.end) {
                float * to = t.dst + (p.routed.list != NULL ? p.routed.list[at] : at) * p.m + column;
                GB_UNROLL for (int h = 0; h < 2; h++) { // lanes at distance 4 have adjacent columns
                    if (column + 8 * h < p.m) {
                        to[8 * h] = sum[4 * j + 2 * h + e];
                    }
                }
            }
        }
    }
}

#endif // GB_CUDA_KERNELS_HOPPER_TILES_CUH
