// products.cu - which kernel computes a product, and the scratch memory for it.
//
//   few rows (up to 8)             weights are streamed (matvec.cuh); quantized: the rows become bytes, as on the CPU
//   2 to 16 rows                   the same by the tensor cores (few_rows.cuh), for formats that most models have
//   many rows, halves, quantized   on 9.0 its own kernels (gemm_hopper.cuh, gemm_packed_hopper.cuh), else the next
//   many rows, halves, quantized   tensor cores; the depth is cut into parts where the tiles alone would leave the
//                                  device idle
//   many rows of floats            cuBLAS instead, where the backend has it
//   the rest                       float arithmetic: F32, GGML_PREC_F32 (quantized, or F16 with many rows), OUT_PROD,
//                                  odd strides, devices without products of tiles
#include <algorithm>
#include <mutex>

#include "cuda/cuda_blas.h"
#include "cuda/kernels/product_steps.cuh"
#include "cuda/kernels/rows_in_order.cuh"
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
    p               = {};
    p.type          = a->type;
    p.nb_k          = a->nb[dim];
    p.across        = dim == 1 && !gb_is_float_type(a->type);
    p.exact         = dim == 1;
    p.m             = a->ne[1 - dim];
    p.k             = a->ne[dim];
    p.dst           = (float *) (void *) gb_cuda_data(dst);
    p.w.a[0]        = gb_cuda_data(a);
    p.w.nb_m        = a->nb[1 - dim];
    p.w.nb2         = a->nb[2];
    p.w.nb3         = a->nb[3];
    const int64_t n = b->ne[1 - dim], r2 = b->ne[2] / a->ne[2], r3 = b->ne[3] / a->ne[3];
    p.rows   = r3 == 1 ? n * r2 : n;
    p.slices = r3 == 1 ? a->ne[2] * a->ne[3] : b->ne[2] * b->ne[3];
    p.w.ne2  = r3 == 1 ? a->ne[2] : b->ne[2];
    p.w.r2   = r3 == 1 ? 1 : r2;
    p.w.r3   = r3;
    p.b      = { b->type, gb_cuda_data(b), b->nb[dim], b->nb[1 - dim], b->nb[2], b->nb[3], n, b->ne[2], p.k, NULL, 0 };
    p.b_tensor = b;
    p.b_dense  = dim == 0 && ggml_is_contiguous(b) && (uintptr_t) gb_cuda_data(b) % 16 == 0;
}

void gb_product_of(gb_product & p, const ggml_tensor * dst) {
    if (dst->op == GGML_OP_MUL_MAT) {
        gb_product_describe(p, dst->src[0], dst->src[1], dst, 0);
        p.exact = dst->op_params[0] == GGML_PREC_F32;
        return;
    }
    const ggml_tensor * ids = dst->src[0];
    gb_product_describe(p, dst->src[2], dst->src[1], dst, 0);
    p.exact       = dst->op_params[2] == GGML_PREC_F32;
    p.w.n_experts = dst->op_params[1];
    for (int i = 0; i < p.w.n_experts; i++) {
        p.w.a[i] = gb_cuda_data(dst->src[2 + i]);
    }
    p.w.ids    = gb_cuda_data(ids) + dst->op_params[0] * (int64_t) ids->nb[0];
    p.w.ids_nb = ids->nb[1];
}

// ----------------------------------------------------------------------------------------------------------- rows of b

static int64_t round_up(int64_t x, int64_t to) { return gb_cuda_ceil_div(x, to) * to; }

template <int KIND> static cudaError_t launch_rows(const gb_make_rows & q, int64_t rows, const gb_queue & queue) {
    const bool dense =
        q.type == GGML_TYPE_F32 && q.nb0 == sizeof(float) && ((uintptr_t) q.x | q.nb1 | q.nb2 | q.nb3) % 16 == 0;
    const int64_t blocks = std::min<int64_t>(gb_cuda_ceil_div(q.y_row, dense ? 2048 : 256), MAX_GRID);
    const dim3    grid((unsigned) rows, (unsigned) blocks);
    return dense ? GB_LAUNCH(gb_rows_of_dense<KIND>, grid, 256, 0, queue, q)
                 : GB_LAUNCH(gb_rows_of_floats<KIND>, grid, 256, 0, queue, q);
}

// What the rows of b will be made, by gb_product_run; cuBLAS takes those of its kind.
static int kind_of_rows(const gb_cuda_device & d, const gb_product & p) {
    const bool quantized = is_format(p.type),
               along     = quantized ? !p.across : p.nb_k == ggml_type_size((enum ggml_type) p.type);
    if (p.k == 0) {
        return GB_ROWS_NONE;
    }
    if (along && gb_few_rows_suit(d, p)) {
        return GB_ROWS_PANELS;
    }
    if (along && p.rows <= FEW_ROWS && quantized && !p.exact) {
        return GB_ROWS_BYTES;
    }
    if (!along || p.exact || !d.mma || p.rows <= FEW_ROWS || p.type == GGML_TYPE_F32) {
        return GB_ROWS_F32;
    }
    gb_hopper_way way;
    if ((quantized || p.w.ids != NULL) && gb_hopper_takes(d, p, &way)) {
        return p.w.ids != NULL ? GB_ROWS_SORTED : GB_ROWS_TURNED;
    }
    if (quantized) {
        return GB_ROWS_WIDE;
    }
    const int kind = p.type == GGML_TYPE_F16 ? (int) GB_ROWS_F16 : (int) GB_ROWS_BF16;
    return gb_product_is_aligned(p) && (p.type == GGML_TYPE_F16 || d.cc >= 80) ? kind : (int) GB_ROWS_F32;
}

static gb_cuda_recipe recipe_of(const gb_product & p, int kind) {
    const int64_t key[] = { kind, p.b.type, (int64_t) p.b.nb0, (int64_t) p.b.nb1, (int64_t) p.b.nb2, (int64_t) p.b.nb3,
        p.b.n, p.b.ne2, p.k, p.rows, p.slices };
    static_assert(sizeof(key) <= GB_CUDA_KEY, "the key has room");
    return gb_cuda_recipe_of(p.b_tensor, key, sizeof(key));
}

static bool recipe_of_node(const gb_cuda_backend & b, const ggml_tensor * node, gb_cuda_recipe * recipe) {
    gb_product p;
    if (node->op != GGML_OP_MUL_MAT && node->op != GGML_OP_MUL_MAT_ID) {
        return false;
    }
    gb_product_of(p, node);
    *recipe = recipe_of(p, kind_of_rows(*b.device, p));
    return true;
}

void * gb_rows_memory(gb_cuda_backend & b, const gb_product & p, int kind, size_t bytes, bool * there) {
    return gb_cuda_keep(b, recipe_of(p, kind), bytes, recipe_of_node, there);
}

gb_make_panels gb_rows_of_kind(const gb_product & p, int kind, size_t * bytes) {
    if (kind == GB_ROWS_PANELS) {
        return gb_panels_of(p, bytes);
    }
    const bool     is_bytes = kind == GB_ROWS_BYTES;
    gb_make_panels q        = {};
    q.rows                  = p.b;
    q.rows.y_row            = is_bytes ? gb_cuda_ceil_div(p.k, 1024) : round_up(p.k, 8);
    const size_t each       = is_bytes ? sizeof(gb_q8_stretch) : kind == GB_ROWS_F32 ? sizeof(float) : sizeof(uint16_t);
    *bytes                  = (size_t) (p.rows * p.slices * q.rows.y_row) * each;
    return q;
}

// The first of the next nodes that reads t as rows for a product; NULL: there is none.
static const ggml_tensor * first_product(const gb_cuda_backend & b, const ggml_tensor * t, int after) {
    enum { AHEAD = 64 };
    for (int i = after + 1; i < b.nodes->n && i <= after + AHEAD; i++) {
        const ggml_tensor * node = b.nodes->node[i];
        const ggml_tensor * x    = node->src[1];
        if ((node->op == GGML_OP_MUL_MAT || node->op == GGML_OP_MUL_MAT_ID) &&
            (x == t || (x->view_src == t && x->view_offs == 0))) {
            return node;
        }
    }
    return NULL;
}

gb_cuda_kept * gb_rows_ahead(gb_cuda_backend & b, const ggml_tensor * t, int last, int * kind, gb_make_panels * q) {
    const bool          plain  = t->type == GGML_TYPE_F32 && ggml_is_contiguous(t) && t->view_src == NULL;
    const ggml_tensor * reader = plain && b.blas == NULL && b.nodes != NULL ? first_product(b, t, last) : NULL;
    if (reader == NULL) {
        return NULL;
    }
    gb_product p;
    size_t     bytes = 0;
    gb_product_of(p, reader);
    *kind = kind_of_rows(*b.device, p);
    if (*kind == GB_ROWS_F32 || *kind == GB_ROWS_NONE || p.b.type != GGML_TYPE_F32 || !ggml_is_contiguous(p.b_tensor) ||
        p.k != t->ne[0] || ggml_nelements(p.b_tensor) != ggml_nelements(t)) {
        return NULL;
    }
    *q                    = gb_rows_of_kind(p, *kind, &bytes);
    gb_cuda_kept * kept   = gb_cuda_keep_ahead(b, recipe_of(p, *kind), bytes, recipe_of_node, last);
    const bool     halves = *kind != GB_ROWS_BYTES && *kind != GB_ROWS_PANELS;
    if (kept == NULL || (halves && (!p.b_dense || p.b.nb1 % 16 != 0))) {
        return NULL;
    }
    q->rows.y = kept->memory;
    return kept;
}

// shared: with other products of the graph.
static enum ggml_status make_rows(gb_cuda_backend & b, const gb_product & p, int kind, gb_ready_rows * out,
    bool shared = true) {
    const int     type  = kind == GB_ROWS_F32    ? GGML_TYPE_F32
                          : kind == GB_ROWS_F16  ? GGML_TYPE_F16
                          : kind == GB_ROWS_BF16 ? GGML_TYPE_BF16
                                                 : GGML_TYPE_COUNT;
    const int     size  = kind == GB_ROWS_F32 ? 4 : 2;
    const int64_t total = p.rows * p.slices;
    if (p.b_dense && p.b.type == type && p.k * size % 16 == 0) {
        *out = { p.b.x, p.k };
        return GGML_STATUS_SUCCESS;
    }
    size_t       bytes = 0;
    gb_make_rows q     = gb_rows_of_kind(p, kind, &bytes).rows;
    bool         there = false;
    q.y                = shared ? gb_rows_memory(b, p, kind, bytes, &there) : gb_cuda_scratch(b, bytes);
    if (q.y == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    *out = { q.y, q.y_row };
    if (there) {
        return GGML_STATUS_SUCCESS;
    }
    switch (kind) {
        case GB_ROWS_F16: GB_CUDA_TRY(b, launch_rows<GB_ROWS_F16>(q, total, b.queue)); break;
        case GB_ROWS_BF16: GB_CUDA_TRY(b, launch_rows<GB_ROWS_BF16>(q, total, b.queue)); break;
        case GB_ROWS_WIDE: GB_CUDA_TRY(b, launch_rows<GB_ROWS_WIDE>(q, total, b.queue)); break;
        default: GB_CUDA_TRY(b, launch_rows<GB_ROWS_F32>(q, total, b.queue)); break;
    }
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status make_bytes(gb_cuda_backend & b, const gb_product & p, gb_ready_rows * out) {
    size_t       bytes = 0;
    gb_make_rows q     = gb_rows_of_kind(p, GB_ROWS_BYTES, &bytes).rows;
    bool         there = false;
    q.y                = gb_rows_memory(b, p, GB_ROWS_BYTES, bytes, &there);
    if (q.y == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    *out = { q.y, q.y_row };
    if (there) {
        return GGML_STATUS_SUCCESS;
    }
    const dim3 grid((unsigned) (p.rows * p.slices), (unsigned) std::min<int64_t>(q.y_row * 4, MAX_GRID));
    GB_CUDA_TRY(b, GB_LAUNCH(gb_rows_of_bytes, grid, 256, 0, b.queue, q));
    return GGML_STATUS_SUCCESS;
}

// Rows that can be copied 16 bytes at a time.
bool gb_product_is_aligned(const gb_product & p) {
    size_t bits = p.w.nb_m | p.w.nb2 | p.w.nb3;
    for (int i = 0; i < (p.w.ids != NULL ? p.w.n_experts : 1); i++) {
        bits |= (uintptr_t) p.w.a[i];
    }
    return bits % 16 == 0;
}

// ------------------------------------------------------------------------------------------------------------ few rows

static enum ggml_status run_vectors(gb_cuda_backend & b, const gb_product & p) {
    const bool             quantized = is_format(p.type);
    gb_ready_rows          x         = {};
    const enum ggml_status status    = quantized ? make_bytes(b, p, &x) : make_rows(b, p, GB_ROWS_F32, &x);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    gb_matvec     q      = { p.w, x.x, x.x_row, p.dst, p.m, p.k, (int) p.rows, 1 };
    const int     rows   = gb_vectors_are_quick(p, q) ? (int) GB_QUICK_ROWS : (int) GB_MATVEC_ROWS;
    const int64_t blocks = gb_cuda_ceil_div(p.m, GB_MATVEC_WARPS * rows) * p.slices;
    q.split              = blocks < 2 * b.device->n_sm && p.k >= GB_MATVEC_WARPS * 256 ? GB_MATVEC_WARPS : 1;
    GB_CUDA_TRY(b, quantized ? gb_launch_vectors_quantized(p, q, b.queue) : gb_launch_vectors_float(p, q, b.queue));
    return GGML_STATUS_SUCCESS;
}

// ----------------------------------------------------------------------------------------------------------- many rows

// The rows of dst by expert.
static enum ggml_status route(gb_cuda_backend & b, const gb_product & p, gb_gemm & q) {
    int * lists = (int *) gb_cuda_scratch(b, (size_t) (GGML_MAX_SRC + 1 + p.rows) * sizeof(int));
    if (lists == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    q.first  = lists;
    q.tokens = lists + GGML_MAX_SRC + 1;
    GB_CUDA_TRY(b,
        GB_LAUNCH(gb_route, 1, 256, 0, b.queue, p.w, (int) p.rows, lists, lists + GGML_MAX_SRC + 1, p.dst, p.m));
    return GGML_STATUS_SUCCESS;
}

static gb_gemm gemm_of(const gb_product & p, const gb_ready_rows & x) {
    gb_gemm q    = {};
    q.w          = p.w;
    q.x          = x.x;
    q.x_row      = x.x_row;
    q.dst        = p.dst;
    q.m          = p.m;
    q.k          = p.k;
    q.rows       = p.rows;
    q.parts      = 1;
    q.part_rows  = p.rows * p.slices;
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
    q.raw             = raw > 0 && raw + 2 * stage <= all;
    const size_t room = q.raw != 0 ? all - raw : d.shared_max;
    q.stages          = (int) std::min<size_t>(4, std::max<size_t>(2, room / stage));
}

static enum ggml_status run_tiles(gb_cuda_backend & b, const gb_product & p, int source, int kind) {
    gb_ready_rows    x      = {};
    enum ggml_status status = make_rows(b, p, kind, &x);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    gb_gemm       q     = gemm_of(p, x);
    const int     nt    = rows_of_tile(*b.device, p);
    const int64_t tiles = tiles_of(p, nt);
    set_stages(q, source, *b.device, nt);
    if (p.w.ids != NULL) {
        status = route(b, p, q);
    } else if (tiles < b.device->n_sm && p.k >= LEAST_DEPTH) {
        const int64_t parts = std::min<int64_t>(std::min<int64_t>(b.device->n_sm / tiles, p.k / PART_DEPTH), 16);
        q.part_depth        = (int) round_up(gb_cuda_ceil_div(p.k, parts), PART_DEPTH);
        q.parts             = (int) gb_cuda_ceil_div(p.k, q.part_depth);
    }
    const int64_t elements = q.part_rows * p.m;
    if (q.parts * p.slices > MAX_GRID) {
        q.parts      = 1;
        q.part_depth = (int) round_up(p.k, PART_DEPTH);
    }
    if (q.parts > 1) {
        q.dst  = (float *) gb_cuda_scratch(b, (size_t) (elements * q.parts) * sizeof(float));
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

template <int KIND, bool TURNED>
static cudaError_t launch_order(const gb_order_rows & q, int64_t rows, const gb_queue & queue) {
    const int64_t blocks = std::min<int64_t>(gb_cuda_ceil_div(q.rows.y_row, 2048), MAX_GRID);
    return GB_LAUNCH((gb_rows_in_order<KIND, TURNED>), dim3((unsigned) rows, (unsigned) blocks), 256, 0, queue, q);
}

// Rows of kind GB_ROWS_TURNED or GB_ROWS_SORTED; of quantized weights both have the order of gemm_packed_hopper.cuh.
static enum ggml_status make_rows_in_order(gb_cuda_backend & b, const gb_product & p, int kind, const gb_gemm & lists,
    gb_ready_rows * out) {
    enum { STRETCH = 128 };
    const bool    quantized = is_format(p.type);
    const int64_t total     = p.rows * p.slices;
    gb_order_rows q         = { p.b, NULL, NULL, false };
    q.rows.y_row            = round_up(p.k, quantized ? STRETCH : 8);
    q.pairs                 = p.b.type == GGML_TYPE_F32 && p.b.nb0 == sizeof(float) &&
                              ((uintptr_t) p.b.x | p.b.nb1 | p.b.nb2 | p.b.nb3) % 8 == 0;
    const size_t bytes      = (size_t) (total * q.rows.y_row) * sizeof(uint16_t);
    bool         there      = false;
    if (kind == GB_ROWS_SORTED) {
        q.source = lists.tokens;
        q.n      = lists.first + p.w.n_experts;
    }
    q.rows.y = kind == GB_ROWS_TURNED ? gb_rows_memory(b, p, kind, bytes, &there) : gb_cuda_scratch(b, bytes);
    if (q.rows.y == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    *out = { q.rows.y, q.rows.y_row };
    if (there) {
        return GGML_STATUS_SUCCESS;
    }
    if (quantized) {
        GB_CUDA_TRY(b, (launch_order<GB_ROWS_BF16, true>(q, total, b.queue)));
    } else if (p.type == GGML_TYPE_F16) {
        GB_CUDA_TRY(b, (launch_order<GB_ROWS_F16, false>(q, total, b.queue)));
    } else {
        GB_CUDA_TRY(b, (launch_order<GB_ROWS_BF16, false>(q, total, b.queue)));
    }
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status run_hopper(gb_cuda_backend & b, const gb_product & p, int kind, const gb_hopper_way & way) {
    const int64_t    elements = p.rows * p.slices * p.m;
    gb_gemm          lists    = {};
    gb_hopper_run    run      = { way, {}, p.dst, NULL, NULL };
    enum ggml_status status   = p.w.ids != NULL ? route(b, p, lists) : GGML_STATUS_SUCCESS;
    if (status == GGML_STATUS_SUCCESS) {
        status = kind == GB_ROWS_TURNED || kind == GB_ROWS_SORTED ? make_rows_in_order(b, p, kind, lists, &run.x)
                                                                  : make_rows(b, p, kind, &run.x);
    }
    if (status == GGML_STATUS_SUCCESS && way.parts > 1) {
        run.dst = (float *) gb_cuda_scratch(b, (size_t) (elements * way.parts) * sizeof(float));
        status  = run.dst != NULL ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    }
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    run.first  = lists.first;
    run.tokens = lists.tokens;
    GB_CUDA_TRY(b, gb_launch_hopper(*b.device, p, run, b.queue));
    if (way.parts > 1) {
        GB_CUDA_TRY(b, GB_LAUNCH(gb_gemm_add_parts, (unsigned) gb_cuda_ceil_div(elements, 256), 256, 0, b.queue, p.dst,
                           (const float *) run.dst, elements, way.parts));
    }
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status run_exact(gb_cuda_backend & b, const gb_product & p) {
    gb_ready_rows    x      = {};
    enum ggml_status status = make_rows(b, p, GB_ROWS_F32, &x);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    gb_gemm q = gemm_of(p, x);
    if (p.w.ids != NULL && (status = route(b, p, q)) != GGML_STATUS_SUCCESS) {
        return status;
    }
    const gb_exact e         = { p.type, p.nb_k, p.across };
    const bool     quantized = is_format(p.type);
    const bool     large =
        !quantized && gb_cuda_ceil_div(p.m, 128) * gb_cuda_ceil_div(p.rows, 128) * p.slices >= b.device->n_sm;
    const int  side = large ? 128 : 64;
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

// ------------------------------------------------------------------------------------------------------------ decision

// Slices follow each other evenly in as many calls as `outer` says; 0: they do not.
static int64_t calls_for_slices(const gb_product & p) {
    enum { CALLS_MAX = 64 };
    const bool    even  = p.w.r2 == 1 && p.w.r3 == 1;
    const int64_t calls = even ? gb_cuda_ceil_div(p.slices, p.w.ne2) : p.slices;
    return calls <= CALLS_MAX ? calls : 0;
}

static bool queue_blas(gb_cuda_backend & b, const gb_product & p, const gb_ready_rows & x, int64_t calls,
    int64_t each) {
    const bool                   listed = b.queue.list != NULL;
    std::unique_lock<std::mutex> no_waiting(gb_cuda_wait_lock(b.device), std::defer_lock);
    const int64_t                size = (int64_t) ggml_type_size((enum ggml_type) p.type);
    gb_cuda_blas_product         q = { p.type, NULL, x.x, p.dst, p.m, p.k, p.rows, (int64_t) p.w.nb_m / size, x.x_row,
        (int64_t) p.w.nb2 / size, each };
    if (listed) {
        no_waiting.lock();
    }
    gb_queue_begin_library(b.queue);
    bool ok = true;
    for (int64_t i = 0; i < calls && ok; i++) {
        const int64_t z = i * each;
        q.w   = p.w.a[0] + z % p.w.ne2 / p.w.r2 * (int64_t) p.w.nb2 + z / p.w.ne2 / p.w.r3 * (int64_t) p.w.nb3;
        q.x   = (const char *) x.x + z * p.rows * x.x_row * size;
        q.dst = p.dst + z * p.rows * p.m;
        ok    = gb_cuda_blas_run(b.blas, q, listed);
    }
    gb_queue_end_library(b.queue);
    if (listed && !ok) {
        b.queue.list->broken = true;
    }
    return ok;
}

// Done: it is queued. Else one of our kernels must; an error is only no memory for rows.
static enum ggml_status run_blas(gb_cuda_backend & b, const gb_product & p, int row_kind, bool * done) {
    const int64_t size = (int64_t) ggml_type_size((enum ggml_type) p.type), calls = calls_for_slices(p),
                  each = calls > 0 ? p.slices / calls : 0;
    gb_ready_rows x    = {};
    *done              = false;
    // rows that overlap are nothing for it
    if (b.blas == NULL || p.w.ids != NULL || calls == 0 || (int64_t) p.w.nb_m < p.k * size) {
        return GGML_STATUS_SUCCESS;
    }
    const size_t           before = b.scratch.used;
    const enum ggml_status status = make_rows(b, p, row_kind, &x, false);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    *done          = !b.queue.nowhere && queue_blas(b, p, x, calls, each); // a dry run goes both ways
    b.scratch.used = *done ? b.scratch.used : before;                      // nobody reads the rows
    return status;
}

enum ggml_status gb_product_run(gb_cuda_backend & b, gb_product & p) {
    if (p.k == 0) {
        GB_CUDA_TRY(b, gb_queue_clear(b.queue, p.dst, (size_t) (p.m * p.rows * p.slices) * sizeof(float)));
        return GGML_STATUS_SUCCESS;
    }
    const bool quantized = is_format(p.type),
               along     = quantized ? !p.across : p.nb_k == ggml_type_size((enum ggml_type) p.type);
    const int  kind      = kind_of_rows(*b.device, p);
    if (kind == GB_ROWS_PANELS) {
        return gb_run_few_rows(b, p);
    }
    if (kind == GB_ROWS_BYTES || (along && p.rows <= FEW_ROWS && !quantized)) {
        return run_vectors(b, p);
    }
    if (along && !quantized && (!p.exact || p.type == GGML_TYPE_F32) &&
        (p.type == GGML_TYPE_F32 || gb_product_is_aligned(p))) {
        const int              blas_kind = p.type == GGML_TYPE_F32   ? (int) GB_ROWS_F32
                                           : p.type == GGML_TYPE_F16 ? (int) GB_ROWS_F16
                                                                     : (int) GB_ROWS_BF16;
        bool                   done;
        const enum ggml_status status = run_blas(b, p, blas_kind, &done);
        if (done || status != GGML_STATUS_SUCCESS) {
            return status;
        }
    }
    gb_hopper_way way;
    if (along && gb_hopper_takes(*b.device, p, &way)) {
        return run_hopper(b, p, kind, way);
    }
    return kind == GB_ROWS_F32 ? run_exact(b, p)
                               : run_tiles(b, p, kind == GB_ROWS_WIDE ? p.type : (int) GB_HALVES, kind);
}
