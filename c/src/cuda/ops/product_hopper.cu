// product_hopper.cu - runs products by the kernels for 9.0, gemm_hopper.cuh (F16 and BF16) and gemm_packed_hopper.cuh.
#include "cuda/ops/product_hopper.h"

#include <algorithm>

#include "cuda/kernels/gemm_hopper.cuh"

namespace {

// Plan of a product: rows of a tile, parts of the depth, depth of a part.
struct gb_hopper_plan {
    int nt, parts, part_depth;
};

struct hopper_run {
    gb_hopper_plan plan;
    gb_ready_rows x; // 16-bit; for quantized weights in the order of gb_rows_in_order
    float * dst; // of the product, or memory for the results of all parts
    gb_routed_rows routed; // with experts; x is in the order of its list
};

} // namespace

static bool is_packed(const gb_product & p) { return ggml_is_quantized((enum ggml_type) p.type); }

// Matrices with a tensor map of their own. A stack has one.
static int matrices_of(const gb_product & p) { return p.w.ids != NULL && !p.w.stacked ? p.w.n_experts : 1; }

// ------------------------------------------------------------------------------------------------------------ operands

// axis: dimensions of the map for the columns of dst and for dimensions 2 and 3 of the matrices.
static gb_tensor_layout layout_of_weights(const gb_product & p, int matrix, int (&axis)[3]) {
    const bool one = p.w.ids != NULL;
    const int64_t ne2 = p.w.stacked ? p.w.n_experts : one ? 1 : p.w.ne2 / p.w.r2;
    const int64_t ne[4] = { p.k, p.m, ne2, one ? 1 : p.slices / p.w.ne2 / p.w.r3 };
    const size_t nb[3] = { p.w.nb_m, p.w.nb2, p.w.nb3 };
    return gb_tensor_layout_of(p.w.a[matrix], p.type == GGML_TYPE_BF16, ne, nb, GB_HOPPER_M, axis);
}

// Rows for packed weights have x_row elements.
static gb_tensor_layout layout_of_rows(const gb_product & p, const gb_ready_rows & x, int nt) {
    const int64_t nb = x.x_row * 2;
    return { x.x, p.type != GGML_TYPE_F16, { is_packed(p) ? x.x_row : p.k, p.rows, p.slices, 1 },
        { nb, nb * p.rows, nb * p.rows * p.slices }, { GB_HOPPER_K, nt, 1, 1 } };
}

static const char * operands_decline(const gb_product & p) {
    int axis[3];
    if (is_packed(p)) {
        return p.across || gb_packed_bytes(p.type, 64, 1) > 0 ? NULL : "it has no kernel for the type of the weights";
    }
    if (p.type != GGML_TYPE_F16 && p.type != GGML_TYPE_BF16) {
        return "the tensor cores do not take the type of the weights";
    }
    for (int i = 0; i < matrices_of(p); i++) {
        if (!gb_tensor_map_is_possible(layout_of_weights(p, i, axis))) {
            return "a tensor map cannot have the strides or the address of the weights";
        }
    }
    return NULL;
}

// ---------------------------------------------------------------------------------------------------------------- plan

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

static int64_t tiles_of(const gb_product & p, int nt) {
    return gb_cuda_ceil_div(p.m, GB_HOPPER_M) * gb_product_tiles_of_rows(p, nt) * p.slices;
}

// The number of tiles with rows, if all experts have the same number of rows.
static int64_t full_tiles_of(const gb_product & p, int nt) {
    return p.w.ids == NULL ? tiles_of(p, nt)
                           : gb_cuda_ceil_div(p.m, GB_HOPPER_M) * p.w.n_experts *
                                 gb_cuda_ceil_div(gb_cuda_ceil_div(p.rows, p.w.n_experts), nt);
}

// Splits the depth if there are fewer tiles than multiprocessors, as product_tiles.cu does.
static gb_hopper_plan plan_of(const gb_cuda_device & d, const gb_product & p, int nt) {
    enum { LEAST_DEPTH = 512, MOST_PARTS = 16 };
    const int64_t tiles = tiles_of(p, nt);
    int64_t parts = 1;
    if (tiles < d.n_sm && p.k >= LEAST_DEPTH && p.w.ids == NULL) {
        parts = std::min<int64_t>(std::min<int64_t>(d.n_sm / tiles, p.k / GB_PART_DEPTH), MOST_PARTS);
    }
    const int64_t depth = gb_cuda_ceil_div(gb_cuda_ceil_div(p.k, parts), GB_PART_DEPTH) * GB_PART_DEPTH;
    return { nt, (int) gb_cuda_ceil_div(p.k, depth), (int) std::min<int64_t>(depth, INT32_MAX) };
}

// Estimated cost of the product: rounds of tiles on the device, times the cost of a tile. The latter is in
// units of 64 clocks of the scarcest resource for one stage: shared memory, or instructions if weights
// are unpacked (tools/count_hopper.py).
static int64_t cost_of(const gb_cuda_device & d, const gb_product & p, const gb_hopper_plan & w) {
    const int64_t halves[] = { 16, 10, 7 }, packed[] = { 17, 10, 8 };
    const int64_t tile = (is_packed(p) ? packed : halves)[w.nt == 256 ? 0 : w.nt == 128 ? 1 : 2];
    return gb_cuda_ceil_div(full_tiles_of(p, w.nt) * w.parts, d.n_sm) * tile * 16 / w.parts;
}

// NULL: the kernels compute the product, with this plan. Else the reason why they cannot or should
// not.
static const char * decline(const gb_cuda_device & d, const gb_product & p, gb_hopper_plan * plan) {
    enum { LEAST_ROWS = 33, LEAST_STAGES = 3 };
    const int64_t rows_of_one = p.w.ids != NULL && p.w.n_experts > 0 ? p.rows / p.w.n_experts : p.rows;
    const char * why =
        !d.hopper                          ? "needs compute capability 9.0 and its kernels"
        : !gb_product_is_along(p)          ? "the sum goes across the weights"
        : p.exact                          ? "GGML_PREC_F32 rounds sums only"
        : rows_of_one < LEAST_ROWS         ? "needs more than 32 rows, of each expert on average"
        : p.w.ids != NULL && p.slices != 1 ? "experts and several slices"
        : std::max(std::max(p.m, p.rows), std::max(p.k, p.slices)) > INT32_MAX - 512 || tiles_of(p, 64) > INT32_MAX / 16
            ? "the product is too large"
            : operands_decline(p);
    if (why != NULL) {
        return why;
    }
    int64_t best = INT64_MAX;
    for (int nt : { 256, 128, 64 }) {
        const gb_hopper_plan w = plan_of(d, p, nt);
        if (stages_of(d, p, nt) >= LEAST_STAGES && (rows_of_one > nt / 2 || nt == 64) && cost_of(d, p, w) < best) {
            best = cost_of(d, p, w);
            *plan = w;
        }
    }
    return best < INT64_MAX ? NULL : "the device has too little shared memory";
}

const char * gb_hopper_declines(const gb_cuda_backend & b, const gb_product & p) {
    gb_hopper_plan plan;
    return decline(*b.device, p, &plan);
}

gb_row_kind gb_hopper_rows(const gb_product & p) {
    return p.w.ids != NULL ? GB_ROWS_SORTED : gb_is_format(p.type) ? GB_ROWS_PERMUTED : gb_product_halves(p);
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

static gb_hopper_grid grid_of(const gb_product & p, const hopper_run & run) {
    gb_hopper_grid q = {};
    q.dst = run.dst;
    q.m = p.m;
    q.n = p.rows;
    q.part_rows = p.rows * p.slices;
    q.k = (int) p.k;
    q.parts = run.plan.parts;
    q.part_depth = run.plan.part_depth;
    q.tiles_m = (int) gb_cuda_ceil_div(p.m, GB_HOPPER_M);
    q.tiles_n = (int) gb_product_tiles_of_rows(p, run.plan.nt);
    q.tiles = (int) (tiles_of(p, run.plan.nt) * run.plan.parts);
    q.n_experts = p.w.ids != NULL ? p.w.n_experts : 0;
    q.routed = run.routed;
    return q;
}

static cudaError_t launch_plan(const gb_cuda_device & d, const gb_product & p, const hopper_run & run,
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
    q.stacked = p.w.stacked;
    const size_t shared = shared_of(p, nt, q.stages);
    return p.type == GGML_TYPE_F16 ? launch<GB_HALF_F16>(q, nt, blocks, shared, queue)
                                   : launch<GB_HALF_BF16>(q, nt, blocks, shared, queue);
}

enum ggml_status gb_hopper_run(gb_cuda_backend & b, const gb_product & p, gb_row_kind kind) {
    gb_hopper_plan plan = {};
    if (decline(*b.device, p, &plan) != NULL) {
        return gb_cuda_fail(b, "a product that the kernels for 9.0 do not take", cudaErrorInvalidValue);
    }
    const int64_t elements = p.rows * p.slices * p.m;
    hopper_run run = { plan, {}, p.dst, {} };
    enum ggml_status status = gb_product_route(b, p, plan.nt, run.routed);
    if (status == GGML_STATUS_SUCCESS) {
        const gb_routed_rows & r = run.routed;
        const gb_row_sources sorted = { r.list, r.first != NULL ? r.first + p.w.n_experts : NULL };
        status = gb_product_make_rows(b, p, kind, sorted, true, &run.x);
    }
    if (status == GGML_STATUS_SUCCESS && plan.parts > 1) {
        run.dst = (float *) gb_cuda_scratch(b, (size_t) (elements * plan.parts) * sizeof(float));
        status = run.dst != NULL ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    }
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    GB_CUDA_TRY(b, launch_plan(*b.device, p, run, b.queue));
    return plan.parts > 1 ? gb_product_add_parts(b, p, run.dst, plan.parts) : GGML_STATUS_SUCCESS;
}
