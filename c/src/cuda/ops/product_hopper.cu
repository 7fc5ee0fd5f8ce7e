// product_hopper.cu - launches gb_gemm_hopper, and knows what it takes.
#include "cuda/ops/product_hopper.h"

#include <stdlib.h>
#include <string.h>

#include <algorithm>

#include "cuda/kernels/gemm_hopper.cuh"

bool gb_hopper_is_there(void) {
    const char * wish = getenv("GGML_CUDA_HOPPER");
    const bool   off  = wish != NULL && strcmp(wish, "0") == 0;
    return !off && gb_has_hopper_code(gb_gemm_hopper<GB_HALF_F16, 256>) && gb_tensor_maps_exist();
}

// ------------------------------------------------------------------------------------------------------------ operands

// axis: where the columns of dst, and the dimensions 2 and 3 of the matrices went.
static gb_tensor_layout layout_of_weights(const gb_product & p, int (&axis)[3]) {
    const int64_t ne[4] = { p.k, p.m, p.w.ne2 / p.w.r2, p.slices / p.w.ne2 / p.w.r3 };
    const size_t  nb[3] = { p.w.nb_m, p.w.nb2, p.w.nb3 };
    return gb_tensor_layout_of(p.w.a[0], p.type == GGML_TYPE_BF16, ne, nb, GB_HOPPER_M, axis);
}

static gb_tensor_layout layout_of_rows(const gb_product & p, const gb_ready_rows & x, int nt) {
    const int64_t nb = x.x_row * 2;
    return { x.x, p.type == GGML_TYPE_BF16, { p.k, p.rows, p.slices, 1 }, { nb, nb * p.rows, nb * p.rows * p.slices },
        { GB_HOPPER_K, nt, 1, 1 } };
}

// ------------------------------------------------------------------------------------------------------------- the way

static size_t stage_of(int nt) { return (size_t) (GB_HOPPER_M + nt) * GB_HOPPER_K * 2 + 2 * sizeof(gb_barrier); }

static int stages_of(const gb_cuda_device & d, int nt) {
    return (int) std::min<size_t>(6, d.shared_max / stage_of(nt));
}

static int64_t tiles_of(const gb_product & p, int nt) {
    return gb_cuda_ceil_div(p.m, GB_HOPPER_M) * gb_cuda_ceil_div(p.rows, nt) * p.slices;
}

// The depth is cut where the tiles are fewer than multiprocessors, as in run_tiles.
static gb_hopper_way way_of(const gb_cuda_device & d, const gb_product & p, int nt) {
    enum { LEAST_DEPTH = 512, PART_DEPTH = 256, MOST_PARTS = 16 };
    const int64_t tiles = tiles_of(p, nt);
    int64_t       parts = 1;
    if (tiles < d.n_sm && p.k >= LEAST_DEPTH) {
        parts = std::min<int64_t>(std::min<int64_t>(d.n_sm / tiles, p.k / PART_DEPTH), MOST_PARTS);
    }
    const int64_t depth = gb_cuda_ceil_div(gb_cuda_ceil_div(p.k, parts), PART_DEPTH) * PART_DEPTH;
    return { nt, (int) gb_cuda_ceil_div(p.k, depth), (int) std::min<int64_t>(depth, INT32_MAX) };
}

// What it takes, in 64 clocks for a stage of each tile that shared memory needs (docs/CUDA.md), for all of the depth.
static int64_t cost_of(const gb_cuda_device & d, const gb_product & p, const gb_hopper_way & w) {
    const int64_t tile = w.nt == 256 ? 16 : w.nt == 128 ? 10 : 7;
    return gb_cuda_ceil_div(tiles_of(p, w.nt) * w.parts, d.n_sm) * tile * 16 / w.parts;
}

bool gb_hopper_takes(const gb_cuda_device & d, const gb_product & p, gb_hopper_way * way) {
    enum { LEAST_ROWS = 33, LEAST_STAGES = 3 };
    int axis[3];
    if (!d.hopper || p.w.ids != NULL || p.exact || (p.type != GGML_TYPE_F16 && p.type != GGML_TYPE_BF16) ||
        p.rows < LEAST_ROWS || std::max(std::max(p.m, p.rows), std::max(p.k, p.slices)) > INT32_MAX - 512 ||
        tiles_of(p, 64) > INT32_MAX / 16 || !gb_tensor_map_is_possible(layout_of_weights(p, axis))) {
        return false;
    }
    int64_t best = INT64_MAX;
    for (int nt : { 256, 128, 64 }) {
        const gb_hopper_way w = way_of(d, p, nt);
        if (stages_of(d, nt) >= LEAST_STAGES && (p.rows > nt / 2 || nt == 64) && cost_of(d, p, w) < best) {
            best = cost_of(d, p, w);
            *way = w;
        }
    }
    return best < INT64_MAX;
}

template <int KIND>
static cudaError_t launch(const gb_gemm_tiles & q, int nt, unsigned blocks, size_t shared, const gb_queue & queue) {
    if (nt == 256) {
        return GB_LAUNCH((gb_gemm_hopper<KIND, 256>), blocks, GB_HOPPER_THREADS, shared, queue, q);
    }
    if (nt == 128) {
        return GB_LAUNCH((gb_gemm_hopper<KIND, 128>), blocks, GB_HOPPER_THREADS, shared, queue, q);
    }
    return GB_LAUNCH((gb_gemm_hopper<KIND, 64>), blocks, GB_HOPPER_THREADS, shared, queue, q);
}

cudaError_t gb_launch_hopper(const gb_cuda_device & d, const gb_product & p, const gb_hopper_way & way,
    const gb_ready_rows & x, float * dst, const gb_queue & queue) {
    gb_gemm_tiles q = {};
    // of a dry run nobody has the addresses
    if (const gb_tensor_layout weights = layout_of_weights(p, q.axis);
        !queue.nowhere &&
        !(gb_tensor_map_make(weights, &q.weights) && gb_tensor_map_make(layout_of_rows(p, x, way.nt), &q.rows))) {
        return cudaErrorInvalidValue;
    }
    q.ne2                 = (int) p.w.ne2;
    q.r2                  = (int) p.w.r2;
    q.r3                  = (int) p.w.r3;
    q.dst                 = dst;
    q.m                   = p.m;
    q.n                   = p.rows;
    q.part_rows           = p.rows * p.slices;
    q.k                   = (int) p.k;
    q.parts               = way.parts;
    q.part_depth          = way.part_depth;
    q.tiles_m             = (int) gb_cuda_ceil_div(p.m, GB_HOPPER_M);
    q.tiles_n             = (int) gb_cuda_ceil_div(p.rows, way.nt);
    q.tiles               = (int) (tiles_of(p, way.nt) * way.parts);
    q.stages              = stages_of(d, way.nt);
    const size_t   shared = (size_t) q.stages * stage_of(way.nt);
    const unsigned blocks = (unsigned) std::min(q.tiles, d.n_sm);
    return p.type == GGML_TYPE_F16 ? launch<GB_HALF_F16>(q, way.nt, blocks, shared, queue)
                                   : launch<GB_HALF_BF16>(q, way.nt, blocks, shared, queue);
}
