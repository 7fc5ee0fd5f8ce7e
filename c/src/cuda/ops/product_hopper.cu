// product_hopper.cu - launches gb_gemm_hopper, and decides what it and gb_gemm_packed_hopper take.
#include "cuda/ops/product_hopper.h"

#include <algorithm>

#include "cuda/kernels/gemm_hopper.cuh"

static bool is_packed(const gb_product & p) { return ggml_is_quantized((enum ggml_type) p.type); }

static int matrices_of(const gb_product & p) { return p.w.ids != NULL ? p.w.n_experts : 1; }

// ------------------------------------------------------------------------------------------------------------ operands

// axis: places of the columns of dst and of dimensions 2 and 3 of the matrices.
static gb_tensor_layout layout_of_weights(const gb_product & p, int matrix, int (&axis)[3]) {
    const bool one = p.w.ids != NULL;
    const int64_t ne[4] = { p.k, p.m, one ? 1 : p.w.ne2 / p.w.r2, one ? 1 : p.slices / p.w.ne2 / p.w.r3 };
    const size_t nb[3] = { p.w.nb_m, p.w.nb2, p.w.nb3 };
    return gb_tensor_layout_of(p.w.a[matrix], p.type == GGML_TYPE_BF16, ne, nb, GB_HOPPER_M, axis);
}

// Rows for packed weights have x_row elements.
static gb_tensor_layout layout_of_rows(const gb_product & p, const gb_ready_rows & x, int nt) {
    const int64_t nb = x.x_row * 2;
    return { x.x, p.type != GGML_TYPE_F16, { is_packed(p) ? x.x_row : p.k, p.rows, p.slices, 1 },
        { nb, nb * p.rows, nb * p.rows * p.slices }, { GB_HOPPER_K, nt, 1, 1 } };
}

static bool operands_suit(const gb_product & p) {
    int axis[3];
    if (is_packed(p)) {
        return !p.across && gb_packed_bytes(p.type, 64, 1) > 0;
    }
    bool suit = p.type == GGML_TYPE_F16 || p.type == GGML_TYPE_BF16;
    for (int i = 0; i < matrices_of(p) && suit; i++) {
        suit = gb_tensor_map_is_possible(layout_of_weights(p, i, axis));
    }
    return suit;
}

// ------------------------------------------------------------------------------------------------------------- plan

static size_t shared_of(const gb_product & p, int nt, int stages) {
    return is_packed(p) ? gb_packed_bytes(p.type, nt, stages)
                        : (size_t) stages * ((size_t) (GB_HOPPER_M + nt) * GB_HOPPER_K * 2 + 2 * sizeof(gb_barrier));
}

static int stages_of(const gb_cuda_device & d, const gb_product & p, int nt) {
    int stages = 6;
    while (stages > 0 && shared_of(p, nt, stages) > d.shared_max) {
        stages--;
    }
    return stages;
}

static int64_t tiles_of_rows(const gb_product & p, int nt) { // each expert may have a tile that is not full
    return gb_cuda_ceil_div(p.rows, nt) + (p.w.ids != NULL ? p.w.n_experts : 0);
}

static int64_t tiles_of(const gb_product & p, int nt) {
    return gb_cuda_ceil_div(p.m, GB_HOPPER_M) * tiles_of_rows(p, nt) * p.slices;
}

// Tiles that probably have rows, if all experts have the same number.
static int64_t full_tiles_of(const gb_product & p, int nt) {
    return p.w.ids == NULL ? tiles_of(p, nt)
                           : gb_cuda_ceil_div(p.m, GB_HOPPER_M) * p.w.n_experts *
                                 gb_cuda_ceil_div(gb_cuda_ceil_div(p.rows, p.w.n_experts), nt);
}

// Cuts the depth if the tiles are fewer than the multiprocessors, as run_tiles does.
static gb_hopper_plan plan_of(const gb_cuda_device & d, const gb_product & p, int nt) {
    enum { LEAST_DEPTH = 512, PART_DEPTH = 256, MOST_PARTS = 16 };
    const int64_t tiles = tiles_of(p, nt);
    int64_t parts = 1;
    if (tiles < d.n_sm && p.k >= LEAST_DEPTH && p.w.ids == NULL) {
        parts = std::min<int64_t>(std::min<int64_t>(d.n_sm / tiles, p.k / PART_DEPTH), MOST_PARTS);
    }
    const int64_t depth = gb_cuda_ceil_div(gb_cuda_ceil_div(p.k, parts), PART_DEPTH) * PART_DEPTH;
    return { nt, (int) gb_cuda_ceil_div(p.k, depth), (int) std::min<int64_t>(depth, INT32_MAX) };
}

// Estimated cost for all of the depth. Per tile it counts units of 64 clocks for a stage, of the scarcest resource:
// shared memory, or instructions if weights are unpacked (tools/count_hopper.py).
static int64_t cost_of(const gb_cuda_device & d, const gb_product & p, const gb_hopper_plan & w) {
    const int64_t halves[] = { 16, 10, 7 }, packed[] = { 17, 10, 8 };
    const int64_t tile = (is_packed(p) ? packed : halves)[w.nt == 256 ? 0 : w.nt == 128 ? 1 : 2];
    return gb_cuda_ceil_div(full_tiles_of(p, w.nt) * w.parts, d.n_sm) * tile * 16 / w.parts;
}

bool gb_hopper_takes(const gb_cuda_device & d, const gb_product & p, gb_hopper_plan * plan) {
    enum { LEAST_ROWS = 33, LEAST_STAGES = 3 };
    const int64_t rows_of_one = p.w.ids != NULL && p.w.n_experts > 0 ? p.rows / p.w.n_experts : p.rows;
    if (!d.hopper || p.exact || rows_of_one < LEAST_ROWS || (p.w.ids != NULL && p.slices != 1) ||
        std::max(std::max(p.m, p.rows), std::max(p.k, p.slices)) > INT32_MAX - 512 ||
        tiles_of(p, 64) > INT32_MAX / 16 || !operands_suit(p)) {
        return false;
    }
    int64_t best = INT64_MAX;
    for (int nt : { 256, 128, 64 }) {
        const gb_hopper_plan w = plan_of(d, p, nt);
        if (stages_of(d, p, nt) >= LEAST_STAGES && (rows_of_one > nt / 2 || nt == 64) && cost_of(d, p, w) < best) {
            best = cost_of(d, p, w);
            *plan = w;
        }
    }
    return best < INT64_MAX;
}

// ------------------------------------------------------------------------------------------------------------ launches

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

static gb_hopper_grid grid_of(const gb_product & p, const gb_hopper_run & run) {
    gb_hopper_grid q = {};
    q.dst = run.dst;
    q.m = p.m;
    q.n = p.rows;
    q.part_rows = p.rows * p.slices;
    q.k = (int) p.k;
    q.parts = run.plan.parts;
    q.part_depth = run.plan.part_depth;
    q.tiles_m = (int) gb_cuda_ceil_div(p.m, GB_HOPPER_M);
    q.tiles_n = (int) tiles_of_rows(p, run.plan.nt);
    q.tiles = (int) (tiles_of(p, run.plan.nt) * run.plan.parts);
    q.n_experts = p.w.ids != NULL ? p.w.n_experts : 0;
    q.first = run.first;
    q.tokens = run.tokens;
    return q;
}

cudaError_t gb_launch_hopper(const gb_cuda_device & d, const gb_product & p, const gb_hopper_run & run,
    const gb_queue & queue) {
    gb_gemm_tiles q = {};
    const int nt = run.plan.nt;
    const unsigned blocks = (unsigned) std::min<int64_t>(tiles_of(p, nt) * run.plan.parts, d.n_sm);
    q.grid = grid_of(p, run);
    q.stages = stages_of(d, p, nt);
    // a dry run has no addresses
    if (!queue.nowhere && !gb_tensor_map_make(layout_of_rows(p, run.x, nt), &q.rows)) {
        return cudaErrorInvalidValue;
    }
    if (is_packed(p)) {
        return gb_launch_packed(p, q.rows, q.grid, q.stages, nt, blocks, queue);
    }
    for (int i = 0; i < matrices_of(p); i++) {
        const gb_tensor_layout weights = layout_of_weights(p, i, q.axis);
        if (!queue.nowhere && !gb_tensor_map_make(weights, &q.weights[i])) {
            return cudaErrorInvalidValue;
        }
    }
    q.ne2 = (int) p.w.ne2;
    q.r2 = (int) p.w.r2;
    q.r3 = (int) p.w.r3;
    const size_t shared = shared_of(p, nt, q.stages);
    return p.type == GGML_TYPE_F16 ? launch<GB_HALF_F16>(q, nt, blocks, shared, queue)
                                   : launch<GB_HALF_BF16>(q, nt, blocks, shared, queue);
}
