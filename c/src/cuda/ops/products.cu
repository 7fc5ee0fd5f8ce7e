// products.cu - runs products. product_choice.cu chooses the algorithm.
#include "cuda/ops/products.h"

#include <algorithm>

#include "cuda/kernels/product_steps.cuh"
#include "cuda/ops/product_hopper.h"

enum { LEAST_DEPTH = 512, PART_DEPTH = 256 };

// ------------------------------------------------------------------------------------------------------------ few rows

static enum ggml_status run_vectors(gb_cuda_backend & b, const gb_product & p, gb_row_kind kind) {
    gb_ready_rows x = {};
    const enum ggml_status status = gb_product_make_rows(b, p, kind, {}, true, &x);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    gb_matvec q = { p.w, x.x, x.x_row, p.dst, p.m, p.k, (int) p.rows, 1 };
    const int rows = gb_vectors_are_quick(p, q) ? (int) GB_QUICK_ROWS : (int) GB_MATVEC_ROWS;
    const int64_t blocks = gb_cuda_ceil_div(p.m, GB_MATVEC_WARPS * rows) * p.slices;
    q.split = blocks < 2 * b.device->n_sm && p.k >= GB_MATVEC_WARPS * 256 ? GB_MATVEC_WARPS : 1;
    GB_CUDA_TRY(b,
        gb_is_format(p.type) ? gb_launch_vectors_quantized(p, q, b.queue) : gb_launch_vectors_float(p, q, b.queue));
    return GGML_STATUS_SUCCESS;
}

// ----------------------------------------------------------------------------------------------------------- many rows

// Sorts the rows of dst by expert.
static enum ggml_status route(gb_cuda_backend & b, const gb_product & p, gb_gemm & q) {
    int * lists = (int *) gb_cuda_scratch(b, (size_t) (GGML_MAX_SRC + 1 + p.rows) * sizeof(int));
    if (lists == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    q.first = lists;
    q.tokens = lists + GGML_MAX_SRC + 1;
    GB_CUDA_TRY(b,
        GB_LAUNCH(gb_route, 1, 256, 0, b.queue, p.w, (int) p.rows, lists, lists + GGML_MAX_SRC + 1, p.dst, p.m));
    return GGML_STATUS_SUCCESS;
}

static gb_gemm gemm_of(const gb_product & p, const gb_ready_rows & x) {
    gb_gemm q = {};
    q.w = p.w;
    q.x = x.x;
    q.x_row = x.x_row;
    q.dst = p.dst;
    q.m = p.m;
    q.k = p.k;
    q.rows = p.rows;
    q.parts = 1;
    q.part_rows = p.rows * p.slices;
    q.part_depth = (int) gb_cuda_round_up(p.k, PART_DEPTH);
    return q;
}

static int64_t tiles_of_rows(const gb_product & p, int nt) { // each expert may have a tile that is not full
    return gb_cuda_ceil_div(p.rows, nt) + (p.w.ids != NULL ? p.w.n_experts : 0);
}

static int64_t tiles_of(const gb_product & p, int nt) {
    return gb_cuda_ceil_div(p.m, GB_GEMM_M) * tiles_of_rows(p, nt) * p.slices;
}

static size_t stage_of(int nt) { return (size_t) (GB_GEMM_M + nt) * GB_GEMM_K * 2; }

// Rows of a tile. A tile of 256 takes about 1.6 times as long as one of 128. It is used if it fills the device as well.
static int rows_of_tile(const gb_cuda_device & d, const gb_product & p) {
    const int64_t rows_of_one = p.w.ids != NULL ? p.rows / p.w.n_experts : p.rows;
    if (rows_of_one <= 64) {
        return 32;
    }
    const int64_t large = gb_cuda_ceil_div(tiles_of(p, 256), d.n_sm),
                  small = gb_cuda_ceil_div(tiles_of(p, 128), d.n_sm);
    return d.cc >= 80 && 3 * stage_of(256) <= d.shared_max && 16 * large <= 10 * small ? 256 : 128;
}

// As many stages as fit. The bytes of quantized weights are copied if two stages fit beside them. Two blocks with small
// tiles share a multiprocessor.
static void set_stages(gb_gemm & q, int source, const gb_cuda_device & d, int nt) {
    const size_t stage = stage_of(nt), raw = gb_raw_bytes(source), all = nt == 32 ? d.shared_max / 2 : d.shared_max;
    q.raw = raw > 0 && raw + 2 * stage <= all;
    const size_t room = q.raw != 0 ? all - raw : d.shared_max;
    q.stages = (int) std::min<size_t>(4, std::max<size_t>(2, room / stage));
}

static enum ggml_status run_tiles(gb_cuda_backend & b, const gb_product & p, gb_row_kind kind) {
    const int source = kind == GB_ROWS_WIDE ? p.type : (int) GB_HALVES;
    gb_ready_rows x = {};
    enum ggml_status status = gb_product_make_rows(b, p, kind, {}, true, &x);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    gb_gemm q = gemm_of(p, x);
    const int nt = rows_of_tile(*b.device, p);
    const int64_t tiles = tiles_of(p, nt);
    set_stages(q, source, *b.device, nt);
    if (p.w.ids != NULL) {
        status = route(b, p, q);
    } else if (tiles < b.device->n_sm && p.k >= LEAST_DEPTH) {
        const int64_t parts = std::min<int64_t>(std::min<int64_t>(b.device->n_sm / tiles, p.k / PART_DEPTH), 16);
        q.part_depth = (int) gb_cuda_round_up(gb_cuda_ceil_div(p.k, parts), PART_DEPTH);
        q.parts = (int) gb_cuda_ceil_div(p.k, q.part_depth);
    }
    const int64_t elements = q.part_rows * p.m;
    if (q.parts * p.slices > GB_MAX_GRID) {
        q.parts = 1;
        q.part_depth = (int) gb_cuda_round_up(p.k, PART_DEPTH);
    }
    if (q.parts > 1) {
        q.dst = (float *) gb_cuda_scratch(b, (size_t) (elements * q.parts) * sizeof(float));
        status = q.dst != NULL ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    }
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    const dim3 grid((unsigned) gb_cuda_ceil_div(p.m, GB_GEMM_M), (unsigned) tiles_of_rows(p, nt),
        (unsigned) (p.slices * q.parts));
    GB_CUDA_TRY(b, gb_launch_tiles(source, kind, nt, grid, q, b.queue));
    if (q.parts > 1) {
        GB_CUDA_TRY(b, GB_LAUNCH(gb_gemm_add_parts, (unsigned) gb_cuda_ceil_div(elements, 256), 256, 0, b.queue, p.dst,
                           (const float *) q.dst, elements, q.parts));
    }
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status run_hopper(gb_cuda_backend & b, const gb_product & p, gb_row_kind kind) {
    gb_hopper_plan plan = {};
    if (!gb_hopper_takes(*b.device, p, &plan)) {
        return gb_cuda_fail(b, "a product that the kernels for 9.0 do not take", cudaErrorInvalidValue);
    }
    const int64_t elements = p.rows * p.slices * p.m;
    gb_gemm lists = {};
    gb_hopper_run run = { plan, {}, p.dst, NULL, NULL };
    enum ggml_status status = p.w.ids != NULL ? route(b, p, lists) : GGML_STATUS_SUCCESS;
    if (status == GGML_STATUS_SUCCESS) {
        const gb_row_sources sorted = { lists.tokens, lists.first != NULL ? lists.first + p.w.n_experts : NULL };
        status = gb_product_make_rows(b, p, kind, sorted, true, &run.x);
    }
    if (status == GGML_STATUS_SUCCESS && plan.parts > 1) {
        run.dst = (float *) gb_cuda_scratch(b, (size_t) (elements * plan.parts) * sizeof(float));
        status = run.dst != NULL ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    }
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    run.first = lists.first;
    run.tokens = lists.tokens;
    GB_CUDA_TRY(b, gb_launch_hopper(*b.device, p, run, b.queue));
    if (plan.parts > 1) {
        GB_CUDA_TRY(b, GB_LAUNCH(gb_gemm_add_parts, (unsigned) gb_cuda_ceil_div(elements, 256), 256, 0, b.queue, p.dst,
                           (const float *) run.dst, elements, plan.parts));
    }
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status run_exact(gb_cuda_backend & b, const gb_product & p, gb_row_kind kind) {
    gb_ready_rows x = {};
    enum ggml_status status = gb_product_make_rows(b, p, kind, {}, true, &x);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    gb_gemm q = gemm_of(p, x);
    if (p.w.ids != NULL && (status = route(b, p, q)) != GGML_STATUS_SUCCESS) {
        return status;
    }
    const gb_exact e = { p.type, p.nb_k, p.across };
    const bool quantized = gb_is_format(p.type);
    const bool large =
        !quantized && gb_cuda_ceil_div(p.m, 128) * gb_cuda_ceil_div(p.rows, 128) * p.slices >= b.device->n_sm;
    const int side = large ? 128 : 64;
    const dim3 grid((unsigned) gb_cuda_ceil_div(p.m, side), (unsigned) tiles_of_rows(p, side), (unsigned) p.slices);
    if (quantized) {
        GB_CUDA_TRY(b, GB_LAUNCH((gb_gemm_exact<true, 4>), grid, GB_GEMM_THREADS, 0, b.queue, q, e));
    } else if (large) {
        GB_CUDA_TRY(b, GB_LAUNCH((gb_gemm_exact<false, 8>), grid, GB_GEMM_THREADS, 0, b.queue, q, e));
    } else {
        GB_CUDA_TRY(b, GB_LAUNCH((gb_gemm_exact<false, 4>), grid, GB_GEMM_THREADS, 0, b.queue, q, e));
    }
    return GGML_STATUS_SUCCESS;
}

// ----------------------------------------------------------------------------------------------------------------- all

static enum ggml_status run_no_depth(gb_cuda_backend & b, const gb_product & p) {
    GB_CUDA_TRY(b, gb_queue_clear(b.queue, p.dst, (size_t) (p.m * p.rows * p.slices) * sizeof(float)));
    return GGML_STATUS_SUCCESS;
}

enum ggml_status gb_product_run(gb_cuda_backend & b, const gb_product & p) {
    bool done;
    const enum ggml_status status = gb_product_run_blas(b, p, &done);
    if (done || status != GGML_STATUS_SUCCESS) {
        return status;
    }
    const gb_product_choice choice = gb_product_choose(*b.device, p);
    switch (choice.algorithm) {
        case GB_PRODUCT_NO_DEPTH: return run_no_depth(b, p);
        case GB_PRODUCT_FEW: return gb_run_few_rows(b, p, choice.kind);
        case GB_PRODUCT_VECTORS: return run_vectors(b, p, choice.kind);
        case GB_PRODUCT_HOPPER: return run_hopper(b, p, choice.kind);
        case GB_PRODUCT_TILES: return run_tiles(b, p, choice.kind);
        case GB_PRODUCT_EXACT: return run_exact(b, p, choice.kind);
    }
    return GGML_STATUS_FAILED;
}
