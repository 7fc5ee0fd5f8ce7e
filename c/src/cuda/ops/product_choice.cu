// product_choice.cu - chooses the algorithm that computes a product.
//
// The table lists the algorithms in the order in which they are tried. The first that takes a product computes it. The
// algorithm alone decides how the rows of b must lie. An earlier node that makes these rows, such as a norm, asks
// gb_product_choose.
#include "cuda/kernels/few_rows.cuh"
#include "cuda/ops/product_hopper.h"
#include "cuda/ops/products.h"

// Alignment in bytes that few_rows.cuh needs of addresses and strides; 0: it has no kernel for the type.
static size_t alignment_of(int type) {
    switch (type) {
#define GB_FORMAT(id, ...) \
    case GGML_TYPE_##id: return gb_few_format<GGML_TYPE_##id>::align;
#include "tensor/quant/formats.def"
#undef GB_FORMAT
        default: return 0;
    }
}

static bool few_rows_suit(const gb_cuda_device & d, const gb_product & p) {
    const size_t align = alignment_of(p.type), bits = (uintptr_t) p.w.a[0] | p.w.nb_m | p.w.nb2 | p.w.nb3;
    return align != 0 && bits % align == 0 && d.cc >= 80 && p.w.ids == NULL && !p.exact && p.rows >= 2 &&
           p.rows <= GB_FEW_COLUMNS && p.k <= INT32_MAX / 8;
}

static gb_row_kind no_rows(const gb_product &) { return GB_ROWS_NONE; }

static gb_row_kind rows_of_floats(const gb_product &) { return GB_ROWS_F32; }

static bool has_no_depth(const gb_cuda_device &, const gb_product & p) { return p.k == 0; }

static bool few_rows_take(const gb_cuda_device & d, const gb_product & p) {
    return gb_product_is_along(p) && few_rows_suit(d, p);
}

static gb_row_kind rows_of_few(const gb_product &) { return GB_ROWS_PANELS; }

static bool vectors_take(const gb_cuda_device &, const gb_product & p) {
    return gb_product_is_along(p) && p.rows <= GB_PRODUCT_FEW_ROWS && !(p.exact && gb_is_format(p.type));
}

static gb_row_kind rows_of_vectors(const gb_product & p) { return gb_is_format(p.type) ? GB_ROWS_BYTES : GB_ROWS_F32; }

static bool hopper_takes(const gb_cuda_device & d, const gb_product & p) {
    gb_hopper_plan plan;
    return gb_product_is_along(p) && gb_hopper_takes(d, p, &plan);
}

static gb_row_kind rows_of_hopper(const gb_product & p) {
    return p.w.ids != NULL ? GB_ROWS_SORTED : gb_is_format(p.type) ? GB_ROWS_TURNED : gb_product_halves(p);
}

static bool tiles_take(const gb_cuda_device & d, const gb_product & p) {
    const bool halves = p.type == GGML_TYPE_F16 || (p.type == GGML_TYPE_BF16 && d.cc >= 80);
    return gb_product_is_along(p) && !p.exact && (gb_is_format(p.type) || (halves && gb_product_is_aligned(p)));
}

static gb_row_kind rows_of_tiles(const gb_product & p) {
    return gb_is_format(p.type) ? GB_ROWS_WIDE : gb_product_halves(p);
}

static bool exact_takes(const gb_cuda_device &, const gb_product &) { return true; }

namespace {

struct algorithm {
    gb_product_algorithm name;
    bool (*takes)(const gb_cuda_device & d, const gb_product & p);
    gb_row_kind (*rows)(const gb_product & p);
};

const algorithm algorithms[] = {
    { GB_PRODUCT_NO_DEPTH, has_no_depth, no_rows },
    { GB_PRODUCT_FEW, few_rows_take, rows_of_few },
    { GB_PRODUCT_VECTORS, vectors_take, rows_of_vectors },
    { GB_PRODUCT_HOPPER, hopper_takes, rows_of_hopper },
    { GB_PRODUCT_TILES, tiles_take, rows_of_tiles },
    { GB_PRODUCT_EXACT, exact_takes, rows_of_floats },
};

} // namespace

gb_product_choice gb_product_choose(const gb_cuda_device & d, const gb_product & p) {
    const algorithm * a = algorithms;
    while (!a->takes(d, p)) {
        a++; // ends: the last algorithm takes any product
    }
    return { a->name, a->rows(p) };
}
