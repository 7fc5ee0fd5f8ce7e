// products.cu - the one place that decides which algorithm computes a product, and how most of them are launched.
//
// The table at the end lists the algorithms in the order in which they are tried. The first that takes a product
// computes it. The algorithm alone decides how the rows of b must lie. Code that makes these rows (an earlier product,
// or the norm that computes them) asks gb_product_row_kind, which asks the table.
//
//   no_depth   nothing to add up: zeros
//   few_rows   2 to 16 rows by the tensor cores, in bytes, for formats that most models have (few_rows.cuh)
//   vectors    up to 8 rows: weights are streamed (matvec.cuh); quantized: the rows become bytes, as on the CPU
//   hopper     more than 32 rows of halves and quantized weights on 9.0 (gemm_hopper.cuh, gemm_packed_hopper.cuh)
//   tiles      many rows of the same elsewhere (gemm.cuh); the depth is cut into parts where the tiles alone would
//              leave the device idle
//   exact      the rest, in float: F32, GGML_PREC_F32 (quantized, or F16 with many rows), OUT_PROD, odd strides,
//              devices without products of tiles
//
// Many rows of floats go to cuBLAS instead, where the backend has it.
#include <algorithm>
#include <mutex>

#include "cuda/blas.h"
#include "cuda/kernels/product_steps.cuh"
#include "cuda/ops/elements.h"
#include "cuda/ops/product_hopper.h"
#include "cuda/ops/products.h"

enum { FEW_ROWS = 8, MAX_GRID = 65535, LEAST_DEPTH = 512, PART_DEPTH = 256 };

static bool is_format(int type) { return ggml_is_quantized((enum ggml_type) type); }

// of a format of weights
static bool is_partner(int type) {
    bool found = false;
#define GB_FORMAT(id, stem, name, elements, bytes, group, zero, top, use, partner, ...) \
    found = found || (GB_USE_##use != GB_USE_ACTIVATIONS && type == GGML_TYPE_##partner);
#include "tensor/quant/formats.def"
#undef GB_FORMAT
    return found;
}

static bool has_aligned_elements(const ggml_tensor * t) {
    const size_t size = gb_is_float_type(t->type) ? ggml_type_size(t->type) : 1;
    return (t->nb[0] | t->nb[1] | t->nb[2] | t->nb[3]) % size == 0 &&
           (gb_is_float_type(t->type) || t->nb[0] == ggml_type_size(t->type));
}

static const char * unsupported_types(const ggml_tensor * a, const ggml_tensor * b, int dim) {
    if (is_format(a->type)) {
        return gb_is_float_type(b->type) || (dim == 0 && is_partner(b->type))
                   ? NULL
                   : "type of src[1] must be f32, f16, bf16 or the partner format of src[0]";
    }
    if (!gb_is_float_type(a->type)) {
        return "type of src[0] must be f32, f16, bf16 or quantized";
    }
    return b->type == GGML_TYPE_F32 || b->type == a->type ? NULL : "type of src[1] must be f32 or that of src[0]";
}

const char * gb_product_unsupported(const ggml_tensor * a, const ggml_tensor * b, const ggml_tensor * dst, int dim) {
    const char * why = unsupported_types(a, b, dim);
    if (why != NULL) {
        return why;
    }
    if (!has_aligned_elements(a) || !has_aligned_elements(b)) {
        return "strides that are not whole elements";
    }
    if (dst->type != GGML_TYPE_F32 || !ggml_is_contiguous(dst)) {
        return "the result must be f32 and contiguous";
    }
    // tiles have 64 rows or more, and each expert may have one that is not full
    if (b->ne[2] * b->ne[3] > MAX_GRID || b->ne[1 - dim] * b->ne[2] > (int64_t) (MAX_GRID - GGML_MAX_SRC) * 64 ||
        a->ne[dim] > INT32_MAX) {
        return "more rows or slices than a grid has";
    }
    return NULL;
}

void gb_product_describe(gb_product & p, const ggml_tensor * a, const ggml_tensor * b, const ggml_tensor * dst,
    int dim) {
    p = {};
    p.type = a->type;
    p.nb_k = a->nb[dim];
    p.across = dim == 1 && !gb_is_float_type(a->type);
    p.exact = dim == 1;
    p.m = a->ne[1 - dim];
    p.k = a->ne[dim];
    p.dst = (float *) (void *) gb_cuda_data(dst);
    p.w.a[0] = gb_cuda_data(a);
    p.w.nb_m = a->nb[1 - dim];
    p.w.nb2 = a->nb[2];
    p.w.nb3 = a->nb[3];
    const int64_t n = b->ne[1 - dim], r2 = b->ne[2] / a->ne[2], r3 = b->ne[3] / a->ne[3];
    p.rows = r3 == 1 ? n * r2 : n;
    p.slices = r3 == 1 ? a->ne[2] * a->ne[3] : b->ne[2] * b->ne[3];
    p.w.ne2 = r3 == 1 ? a->ne[2] : b->ne[2];
    p.w.r2 = r3 == 1 ? 1 : r2;
    p.w.r3 = r3;
    p.b = { b->type, gb_cuda_data(b), b->nb[dim], b->nb[1 - dim], b->nb[2], b->nb[3], n, b->ne[2], p.k, NULL, 0 };
    p.b_tensor = b;
    p.b_dense = dim == 0 && ggml_is_contiguous(b) && (uintptr_t) gb_cuda_data(b) % 16 == 0;
}

void gb_product_of(gb_product & p, const ggml_tensor * dst) {
    if (dst->op == GGML_OP_MUL_MAT) {
        gb_product_describe(p, dst->src[0], dst->src[1], dst, 0);
        p.exact = dst->op_params[0] == GGML_PREC_F32;
        return;
    }
    const ggml_tensor * ids = dst->src[0];
    gb_product_describe(p, dst->src[2], dst->src[1], dst, 0);
    p.exact = dst->op_params[2] == GGML_PREC_F32;
    p.w.n_experts = dst->op_params[1];
    for (int i = 0; i < p.w.n_experts; i++) {
        p.w.a[i] = gb_cuda_data(dst->src[2 + i]);
    }
    p.w.ids = gb_cuda_data(ids) + dst->op_params[0] * (int64_t) ids->nb[0];
    p.w.ids_nb = ids->nb[1];
}

// The sum goes along the rows of the weights, whose elements lie side by side.
static bool is_along(const gb_product & p) {
    return is_format(p.type) ? !p.across : p.nb_k == ggml_type_size((enum ggml_type) p.type);
}

static gb_row_kind halves_of(const gb_product & p) { return p.type == GGML_TYPE_F16 ? GB_ROWS_F16 : GB_ROWS_BF16; }

static int64_t round_up(int64_t x, int64_t to) { return gb_cuda_ceil_div(x, to) * to; }

// Rows that can be copied 16 bytes at a time. The stride of a dimension of one is never used.
bool gb_product_is_aligned(const gb_product & p) {
    const int64_t ne2 = p.w.ids != NULL ? 1 : p.w.ne2 / p.w.r2, ne3 = p.w.ids != NULL ? 1 : p.slices / p.w.ne2 / p.w.r3;
    size_t bits = (p.m > 1 ? p.w.nb_m : 0) | (ne2 > 1 ? p.w.nb2 : 0) | (ne3 > 1 ? p.w.nb3 : 0);
    for (int i = 0; i < (p.w.ids != NULL ? p.w.n_experts : 1); i++) {
        bits |= (uintptr_t) p.w.a[i];
    }
    return bits % 16 == 0;
}

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
        is_format(p.type) ? gb_launch_vectors_quantized(p, q, b.queue) : gb_launch_vectors_float(p, q, b.queue));
    return GGML_STATUS_SUCCESS;
}

// ----------------------------------------------------------------------------------------------------------- many rows

// The rows of dst by expert.
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
    q.part_depth = (int) round_up(p.k, PART_DEPTH);
    return q;
}

static int64_t tiles_of_rows(const gb_product & p, int nt) { // each expert may have a tile that is not full
    return gb_cuda_ceil_div(p.rows, nt) + (p.w.ids != NULL ? p.w.n_experts : 0);
}

static int64_t tiles_of(const gb_product & p, int nt) {
    return gb_cuda_ceil_div(p.m, GB_GEMM_M) * tiles_of_rows(p, nt) * p.slices;
}

static size_t stage_of(int nt) { return (size_t) (GB_GEMM_M + nt) * GB_GEMM_K * 2; }

// Rows of a tile. A tile of 256 takes about 1.6 times as long as one of 128: it is taken where the device is filled as
// well with it.
static int rows_of_tile(const gb_cuda_device & d, const gb_product & p) {
    const int64_t rows_of_one = p.w.ids != NULL ? p.rows / p.w.n_experts : p.rows;
    if (rows_of_one <= 64) {
        return 32;
    }
    const int64_t large = gb_cuda_ceil_div(tiles_of(p, 256), d.n_sm),
                  small = gb_cuda_ceil_div(tiles_of(p, 128), d.n_sm);
    return d.cc >= 80 && 3 * stage_of(256) <= d.shared_max && 16 * large <= 10 * small ? 256 : 128;
}

// As many stages as there is room for, beside the bytes of quantized weights if they and two stages fit. Two blocks
// with small tiles share a multiprocessor.
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
        q.part_depth = (int) round_up(gb_cuda_ceil_div(p.k, parts), PART_DEPTH);
        q.parts = (int) gb_cuda_ceil_div(p.k, q.part_depth);
    }
    const int64_t elements = q.part_rows * p.m;
    if (q.parts * p.slices > MAX_GRID) {
        q.parts = 1;
        q.part_depth = (int) round_up(p.k, PART_DEPTH);
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
    gb_hopper_way way = {};
    if (!gb_hopper_takes(*b.device, p, &way)) {
        return gb_cuda_fail(b, "a product that the kernels for 9.0 do not take", cudaErrorInvalidValue);
    }
    const int64_t elements = p.rows * p.slices * p.m;
    gb_gemm lists = {};
    gb_hopper_run run = { way, {}, p.dst, NULL, NULL };
    enum ggml_status status = p.w.ids != NULL ? route(b, p, lists) : GGML_STATUS_SUCCESS;
    if (status == GGML_STATUS_SUCCESS) {
        const gb_row_sources sorted = { lists.tokens, lists.first != NULL ? lists.first + p.w.n_experts : NULL };
        status = gb_product_make_rows(b, p, kind, sorted, true, &run.x);
    }
    if (status == GGML_STATUS_SUCCESS && way.parts > 1) {
        run.dst = (float *) gb_cuda_scratch(b, (size_t) (elements * way.parts) * sizeof(float));
        status = run.dst != NULL ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    }
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    run.first = lists.first;
    run.tokens = lists.tokens;
    GB_CUDA_TRY(b, gb_launch_hopper(*b.device, p, run, b.queue));
    if (way.parts > 1) {
        GB_CUDA_TRY(b, GB_LAUNCH(gb_gemm_add_parts, (unsigned) gb_cuda_ceil_div(elements, 256), 256, 0, b.queue, p.dst,
                           (const float *) run.dst, elements, way.parts));
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
    const bool quantized = is_format(p.type);
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

// -------------------------------------------------------------------------------------------------------------- cuBLAS

static bool blas_suits(const gb_cuda_backend & b, const gb_product & p) {
    const bool halves = !p.exact && !is_format(p.type) && p.type != GGML_TYPE_F32 && gb_product_is_aligned(p);
    return b.blas != NULL && p.w.ids == NULL && p.k > 0 && p.rows > FEW_ROWS && is_along(p) &&
           (halves || p.type == GGML_TYPE_F32);
}

// Slices follow each other evenly in as many calls as `outer` says; 0: they do not.
static int64_t calls_for_slices(const gb_product & p) {
    enum { CALLS_MAX = 64 };
    const bool even = p.w.r2 == 1 && p.w.r3 == 1;
    const int64_t calls = even ? gb_cuda_ceil_div(p.slices, p.w.ne2) : p.slices;
    return calls <= CALLS_MAX ? calls : 0;
}

static bool queue_blas(gb_cuda_backend & b, const gb_product & p, const gb_ready_rows & x, int64_t calls,
    int64_t each) {
    const bool listed = b.queue.list != NULL;
    std::unique_lock<std::mutex> no_waiting(gb_cuda_wait_lock(b.device), std::defer_lock);
    const int64_t size = (int64_t) ggml_type_size((enum ggml_type) p.type);
    gb_cuda_blas_product q = { p.type, NULL, x.x, p.dst, p.m, p.k, p.rows, (int64_t) p.w.nb_m / size, x.x_row,
        (int64_t) p.w.nb2 / size, each };
    if (listed) {
        no_waiting.lock();
    }
    gb_queue_begin_library(b.queue);
    bool ok = true;
    for (int64_t i = 0; i < calls && ok; i++) {
        const int64_t z = i * each;
        q.w = p.w.a[0] + z % p.w.ne2 / p.w.r2 * (int64_t) p.w.nb2 + z / p.w.ne2 / p.w.r3 * (int64_t) p.w.nb3;
        q.x = (const char *) x.x + z * p.rows * x.x_row * size;
        q.dst = p.dst + z * p.rows * p.m;
        ok = gb_cuda_blas_run(b.blas, q, listed);
    }
    gb_queue_end_library(b.queue);
    if (listed && !ok) {
        b.queue.list->broken = true;
    }
    return ok;
}

// Done: it is queued. Else one of our kernels must; an error is only no memory for rows.
static enum ggml_status run_blas(gb_cuda_backend & b, const gb_product & p, bool * done) {
    const gb_row_kind kind = p.type == GGML_TYPE_F32 ? GB_ROWS_F32 : halves_of(p);
    const int64_t size = (int64_t) ggml_type_size((enum ggml_type) p.type), calls = calls_for_slices(p),
                  each = calls > 0 ? p.slices / calls : 0;
    gb_ready_rows x = {};
    *done = false;
    // rows that overlap are nothing for it
    if (!blas_suits(b, p) || calls == 0 || (int64_t) p.w.nb_m < p.k * size) {
        return GGML_STATUS_SUCCESS;
    }
    const size_t before = b.scratch.used;
    const enum ggml_status status = gb_product_make_rows(b, p, kind, {}, false, &x);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    *done = !b.queue.nowhere && queue_blas(b, p, x, calls, each); // a dry run goes both ways
    b.scratch.used = *done ? b.scratch.used : before;             // nobody reads the rows
    return status;
}

// ------------------------------------------------------------------------------------------------------------ decision

static gb_row_kind no_rows(const gb_product &) { return GB_ROWS_NONE; }

static gb_row_kind rows_of_floats(const gb_product &) { return GB_ROWS_F32; }

static bool has_no_depth(const gb_cuda_device &, const gb_product & p) { return p.k == 0; }

static enum ggml_status run_no_depth(gb_cuda_backend & b, const gb_product & p, gb_row_kind) {
    GB_CUDA_TRY(b, gb_queue_clear(b.queue, p.dst, (size_t) (p.m * p.rows * p.slices) * sizeof(float)));
    return GGML_STATUS_SUCCESS;
}

static bool few_rows_take(const gb_cuda_device & d, const gb_product & p) {
    return is_along(p) && gb_few_rows_suit(d, p);
}

static gb_row_kind rows_of_few(const gb_product &) { return GB_ROWS_PANELS; }

static bool vectors_take(const gb_cuda_device &, const gb_product & p) {
    return is_along(p) && p.rows <= FEW_ROWS && !(p.exact && is_format(p.type));
}

static gb_row_kind rows_of_vectors(const gb_product & p) { return is_format(p.type) ? GB_ROWS_BYTES : GB_ROWS_F32; }

static bool hopper_takes(const gb_cuda_device & d, const gb_product & p) {
    gb_hopper_way way;
    return is_along(p) && gb_hopper_takes(d, p, &way);
}

static gb_row_kind rows_of_hopper(const gb_product & p) {
    return p.w.ids != NULL ? GB_ROWS_SORTED : is_format(p.type) ? GB_ROWS_TURNED : halves_of(p);
}

static bool tiles_take(const gb_cuda_device & d, const gb_product & p) {
    const bool halves = p.type == GGML_TYPE_F16 || (p.type == GGML_TYPE_BF16 && d.cc >= 80);
    return is_along(p) && !p.exact && (is_format(p.type) || (halves && gb_product_is_aligned(p)));
}

static gb_row_kind rows_of_tiles(const gb_product & p) { return is_format(p.type) ? GB_ROWS_WIDE : halves_of(p); }

static bool exact_takes(const gb_cuda_device &, const gb_product &) { return true; }

struct algorithm {
    bool (*takes)(const gb_cuda_device & d, const gb_product & p);
    gb_row_kind (*rows)(const gb_product & p);
    enum ggml_status (*run)(gb_cuda_backend & b, const gb_product & p, gb_row_kind kind);
};

static const algorithm algorithms[] = {
    { has_no_depth, no_rows, run_no_depth },
    { few_rows_take, rows_of_few, gb_run_few_rows },
    { vectors_take, rows_of_vectors, run_vectors },
    { hopper_takes, rows_of_hopper, run_hopper },
    { tiles_take, rows_of_tiles, run_tiles },
    { exact_takes, rows_of_floats, run_exact },
};

static const algorithm & algorithm_of(const gb_cuda_device & d, const gb_product & p) {
    const algorithm * a = algorithms;
    while (!a->takes(d, p)) {
        a++; // ends: the last one takes any product
    }
    return *a;
}

gb_row_kind gb_product_row_kind(const gb_cuda_device & d, const gb_product & p) { return algorithm_of(d, p).rows(p); }

enum ggml_status gb_product_run(gb_cuda_backend & b, const gb_product & p) {
    bool done;
    const enum ggml_status status = run_blas(b, p, &done);
    if (done || status != GGML_STATUS_SUCCESS) {
        return status;
    }
    const algorithm & a = algorithm_of(*b.device, p);
    return a.run(b, p, a.rows(p));
}
