// product_rows.cu - converted rows of b: their layout by kind, scratch memory that products share, and their kernels.
#include <algorithm>

#include "cuda/kernels/rows_in_order.cuh"
#include "cuda/ops/products.h"

static bool is_quantized(const gb_product & p) { return ggml_is_quantized((enum ggml_type) p.type); }

// -------------------------------------------------------------------------------------------------- memory and sharing

static gb_cuda_recipe recipe_of(const gb_product & p, gb_row_kind kind) {
    const int64_t key[] = { kind, p.b.type, (int64_t) p.b.nb0, (int64_t) p.b.nb1, (int64_t) p.b.nb2, (int64_t) p.b.nb3,
        p.b.n, p.b.ne2, p.k, p.rows, p.slices };
    static_assert(sizeof(key) <= GB_CUDA_KEY, "the key fits");
    return gb_cuda_recipe_of(p.b_tensor, key, sizeof(key));
}

static bool has_rows(const ggml_tensor * node) {
    return node->op == GGML_OP_MUL_MAT || node->op == GGML_OP_MUL_MAT_ID || node->op == GGML_OP_MUL_MAT_EXPERTS;
}

static bool recipe_of_node(const gb_cuda_backend & b, int i, gb_cuda_recipe * recipe) {
    gb_product p;
    if (!has_rows(b.nodes->node[i])) {
        return false;
    }
    gb_product_of(p, b.nodes->node[i]);
    *recipe = recipe_of(p, (gb_row_kind) b.choices.data[i].rows);
    return true;
}

void * gb_rows_memory(gb_cuda_backend & b, const gb_product & p, gb_row_kind kind, size_t bytes, bool * there) {
    return gb_cuda_keep(b, recipe_of(p, kind), bytes, recipe_of_node, there);
}

static int panels_across(const gb_product & p) { return p.rows <= GB_PANEL_ROWS ? 1 : 2; }

gb_make_panels gb_panels_of(const gb_product & p, size_t * bytes) {
    gb_make_panels q = {};
    q.rows = p.b;
    q.n = (int) p.rows;
    q.bands = panels_across(p);
    q.stages = (int) gb_cuda_ceil_div(p.k, GB_PANEL_DEPTH);
    q.dense = p.b.type == GGML_TYPE_F32 && p.b.nb0 == sizeof(float) &&
              ((uintptr_t) p.b.x | p.b.nb1 | p.b.nb2 | p.b.nb3) % 16 == 0;
    *bytes = (size_t) (p.slices * q.bands * q.stages) * sizeof(gb_panel);
    return q;
}

// The layout of rows of a kind (y is not set), and their bytes. Kinds other than panels set only
// `rows`.
static gb_make_panels rows_of_kind(const gb_product & p, gb_row_kind kind, size_t * bytes) {
    enum { STRETCH = 128 }; // elements that rows_in_order.cuh permutes together
    gb_make_panels q = {};
    size_t each = sizeof(uint16_t);
    q.rows = p.b;
    q.rows.y_row = gb_cuda_round_up(p.k, 8);
    switch (kind) {
        case GB_ROWS_F16:
        case GB_ROWS_BF16:
        case GB_ROWS_WIDE: break;
        case GB_ROWS_F32: each = sizeof(float); break;
        case GB_ROWS_BYTES:
            q.rows.y_row = gb_cuda_ceil_div(p.k, 1024);
            each = sizeof(gb_q8_stretch);
            break;
        case GB_ROWS_PANELS: return gb_panels_of(p, bytes);
        case GB_ROWS_PERMUTED: q.rows.y_row = gb_cuda_round_up(p.k, STRETCH); break;
        case GB_ROWS_SORTED: q.rows.y_row = gb_cuda_round_up(p.k, is_quantized(p) ? STRETCH : 8); break;
        case GB_ROWS_NONE: q.rows.y_row = 0; break;
    }
    *bytes = (size_t) (p.rows * p.slices * q.rows.y_row) * each;
    return q;
}

// ---------------------------------------------------------------------------------------------------------- made ahead

// The first of the next nodes that reads t as rows of a product; -1: none.
static int first_product(const gb_cuda_backend & b, const ggml_tensor * t, int after) {
    enum { AHEAD = 64 };
    for (int i = after + 1; i < b.nodes->n && i <= after + AHEAD; i++) {
        const ggml_tensor * node = b.nodes->node[i];
        const ggml_tensor * x = node->src[1];
        if (has_rows(node) && (x == t || (x->view_src == t && x->view_offs == 0))) {
            return i;
        }
    }
    return -1;
}

// True if the node that computes the source can also make the rows. Rows of floats mostly need no
// copy, and the order of sorted rows is known only to the product.
static bool is_made_ahead(gb_row_kind kind) {
    return kind != GB_ROWS_F32 && kind != GB_ROWS_SORTED && kind != GB_ROWS_NONE;
}

// True for kinds whose kernels read 16 bytes per load.
static bool needs_dense_rows(gb_row_kind kind) { return kind != GB_ROWS_BYTES && kind != GB_ROWS_PANELS; }

gb_cuda_kept * gb_rows_ahead(gb_cuda_backend & b, const ggml_tensor * t, int last, int64_t k, gb_row_kind * kind,
    gb_make_panels * q) {
    const bool plain = t->type == GGML_TYPE_F32 && ggml_is_contiguous(t) && t->view_src == NULL;
    const int reader = plain && b.blas == NULL && b.nodes != NULL ? first_product(b, t, last) : -1;
    if (reader < 0) {
        return NULL;
    }
    gb_product p;
    size_t bytes = 0;
    gb_product_of(p, b.nodes->node[reader]);
    *kind = (gb_row_kind) b.choices.data[reader].rows;
    if (!is_made_ahead(*kind) || p.b.type != GGML_TYPE_F32 || !ggml_is_contiguous(p.b_tensor) || p.k != k ||
        ggml_nelements(p.b_tensor) != ggml_nelements(t) || p.rows * p.slices * p.k != ggml_nelements(t)) {
        return NULL;
    }
    *q = rows_of_kind(p, *kind, &bytes);
    gb_cuda_kept * kept = gb_cuda_keep_ahead(b, recipe_of(p, *kind), bytes, recipe_of_node, last);
    if (kept == NULL || (needs_dense_rows(*kind) && (!p.b_dense || p.b.nb1 % 16 != 0))) {
        return NULL;
    }
    q->rows.y = kept->memory;
    return kept;
}

// ------------------------------------------------------------------------------------------------------------ launches

// grid: x rows, y eight groups, or the maximum of a grid.
GB_KERNEL GB_BOUNDS(256, 1) gb_rows_of_bytes(gb_make_rows p) {
    gb_wait_for_earlier();
    for (int64_t g = (int64_t) blockIdx.y * 8 + threadIdx.x / 32; g < p.y_row * 32; g += (int64_t) gridDim.y * 8) {
        gb_make_group(p, blockIdx.x, g, (int) threadIdx.x % 32);
    }
}

template <int KIND> static cudaError_t launch(const gb_make_rows & q, int64_t rows, const gb_queue & queue) {
    const bool dense =
        q.type == GGML_TYPE_F32 && q.nb0 == sizeof(float) && ((uintptr_t) q.x | q.nb1 | q.nb2 | q.nb3) % 16 == 0;
    const int64_t blocks = std::min<int64_t>(gb_cuda_ceil_div(q.y_row, dense ? 2048 : 256), GB_MAX_GRID);
    const dim3 grid((unsigned) rows, (unsigned) blocks);
    return dense ? GB_LAUNCH(gb_rows_of_dense<KIND>, grid, 256, 0, queue, q)
                 : GB_LAUNCH(gb_rows_of_floats<KIND>, grid, 256, 0, queue, q);
}

template <int KIND, bool PERMUTED>
static cudaError_t launch_in_order(const gb_make_rows & rows, const gb_row_sources & from, int64_t n,
    const gb_queue & queue) {
    const bool pairs = rows.type == GGML_TYPE_F32 && rows.nb0 == sizeof(float) &&
                       ((uintptr_t) rows.x | rows.nb1 | rows.nb2 | rows.nb3) % 8 == 0;
    const int64_t blocks = std::min<int64_t>(gb_cuda_ceil_div(rows.y_row, 2048), GB_MAX_GRID);
    const gb_order_rows q = { rows, from.row, from.n, pairs };
    return GB_LAUNCH((gb_rows_in_order<KIND, PERMUTED>), dim3((unsigned) n, (unsigned) blocks), 256, 0, queue, q);
}

static cudaError_t launch_kind(const gb_product & p, gb_row_kind kind, const gb_make_rows & q,
    const gb_row_sources & from, const gb_queue & queue) {
    const int64_t n = p.rows * p.slices;
    const dim3 by_groups((unsigned) n, (unsigned) std::min<int64_t>(q.y_row * 4, GB_MAX_GRID));
    switch (kind) {
        case GB_ROWS_F16: return launch<GB_ROWS_F16>(q, n, queue);
        case GB_ROWS_BF16: return launch<GB_ROWS_BF16>(q, n, queue);
        case GB_ROWS_WIDE: return launch<GB_ROWS_WIDE>(q, n, queue);
        case GB_ROWS_F32: return launch<GB_ROWS_F32>(q, n, queue);
        case GB_ROWS_BYTES: return GB_LAUNCH(gb_rows_of_bytes, by_groups, 256, 0, queue, q);
        case GB_ROWS_PERMUTED: return launch_in_order<GB_ROWS_BF16, true>(q, {}, n, queue);
        case GB_ROWS_SORTED:
            return is_quantized(p)           ? launch_in_order<GB_ROWS_BF16, true>(q, from, n, queue)
                   : p.type == GGML_TYPE_F16 ? launch_in_order<GB_ROWS_F16, false>(q, from, n, queue)
                                             : launch_in_order<GB_ROWS_BF16, false>(q, from, n, queue);
        case GB_ROWS_PANELS: // product_few.cu makes these
        case GB_ROWS_NONE: break;
    }
    return cudaErrorInvalidValue;
}

// True if the tensor's own rows are of this kind: dense, of its type, and 16-aligned.
static bool are_ready(const gb_product & p, gb_row_kind kind) {
    const int type = kind == GB_ROWS_F32    ? GGML_TYPE_F32
                     : kind == GB_ROWS_F16  ? GGML_TYPE_F16
                     : kind == GB_ROWS_BF16 ? GGML_TYPE_BF16
                                            : GGML_TYPE_COUNT;
    return p.b_dense && p.b.type == type && p.k * (kind == GB_ROWS_F32 ? 4 : 2) % 16 == 0;
}

enum ggml_status gb_product_make_rows(gb_cuda_backend & b, const gb_product & p, gb_row_kind kind,
    const gb_row_sources & from, bool shared, gb_ready_rows * out) {
    if (are_ready(p, kind)) {
        *out = { p.b.x, p.k };
        return GGML_STATUS_SUCCESS;
    }
    size_t bytes = 0;
    gb_make_rows q = rows_of_kind(p, kind, &bytes).rows;
    bool there = false;
    q.y = shared && kind != GB_ROWS_SORTED ? gb_rows_memory(b, p, kind, bytes, &there) : gb_cuda_scratch(b, bytes);
    if (q.y == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    *out = { q.y, q.y_row };
    if (!there) {
        GB_CUDA_TRY(b, launch_kind(p, kind, q, from, b.queue));
    }
    return GGML_STATUS_SUCCESS;
}
