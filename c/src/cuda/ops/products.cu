// products.cu - the table of algorithms for products.
//
// The table lists the algorithms in the order in which they are tried. The first that does not
// decline computes the product, and it alone decides the layout of the rows of b. Runs, kept rows,
// rows that an earlier node makes, the profile and `ggml-backend bench products --explain` all use
// this table.
#include "cuda/ops/products.h"

static const char * no_depth_declines(const gb_cuda_backend &, const gb_product & p) {
    return p.k == 0 ? NULL : "there is something to add up";
}

static gb_row_kind no_rows(const gb_product &) { return GB_ROWS_NONE; }

static enum ggml_status run_no_depth(gb_cuda_backend & b, const gb_product & p, gb_row_kind) {
    GB_CUDA_TRY(b, gb_queue_clear(b.queue, p.dst, (size_t) (p.m * p.rows * p.slices) * sizeof(float)));
    return GGML_STATUS_SUCCESS;
}

// clang-format off
static const gb_product_algorithm algorithms[] = {
    { "zeros", no_depth_declines, no_rows, run_no_depth, NULL },
    // large products of floats, if the user requests cuBLAS
    { "cublas", gb_blas_declines, gb_blas_rows, gb_blas_run, NULL },
    // few rows: stream the weights
    { "few_rows", gb_few_rows_declines, gb_few_rows_rows, gb_few_rows_run, NULL },
    { "vectors_quick", gb_vectors_quick_declines, gb_vectors_quick_rows, gb_vectors_quick_run, gb_vectors_quick_group },
    { "vectors_bytes", gb_vectors_bytes_declines, gb_vectors_bytes_rows, gb_vectors_bytes_run, gb_vectors_bytes_group },
    { "vectors_float", gb_vectors_float_declines, gb_vectors_float_rows, gb_vectors_float_run, gb_vectors_float_group },
    // more rows: tiles on tensor cores
    { "tiles_hopper", gb_hopper_declines, gb_hopper_rows, gb_hopper_run, NULL },
    { "tiles", gb_tiles_declines, gb_tiles_rows, gb_tiles_run, NULL },
    { "tiles_tf32", gb_tiles_tf32_declines, gb_tiles_tf32_rows, gb_tiles_tf32_run, NULL },
    // more rows of F32
    { "tiles_float", gb_tiles_float_declines, gb_tiles_float_rows, gb_tiles_float_run, NULL },
    // any product, in float
    { "exact", gb_exact_declines, gb_exact_rows, gb_exact_run, NULL },
};
// clang-format on

static int first_from(const gb_cuda_backend & b, const gb_product & p, int i) {
    while (algorithms[i].declines(b, p) != NULL) {
        i++; // ends: the last algorithm never declines
    }
    return i;
}

gb_cuda_choice gb_product_choose(const gb_cuda_backend & b, const gb_product & p) {
    const int i = first_from(b, p, 0);
    return { i, algorithms[i].rows(p) };
}

enum ggml_status gb_product_run(gb_cuda_backend & b, const gb_product & p, gb_cuda_choice choice) {
    const gb_product_algorithm * a = &algorithms[choice.algorithm];
    enum ggml_status status = a->run(b, p, (gb_row_kind) choice.rows);
    if (status == GGML_STATUS_UNSUPPORTED) {
        a = &algorithms[first_from(b, p, choice.algorithm + 1)];
        status = a->run(b, p, a->rows(p));
    }
    return status;
}

bool gb_product_may_group(gb_cuda_choice choice) { return algorithms[choice.algorithm].run_group != NULL; }

enum ggml_status gb_product_run_group(gb_cuda_backend & b, const gb_product * p, int n, gb_cuda_choice choice) {
    return algorithms[choice.algorithm].run_group(b, p, n, (gb_row_kind) choice.rows);
}

gb_cuda_choice gb_product_choose_of(const gb_cuda_backend & b, const ggml_tensor * dst) {
    gb_product p;
    gb_product_of(p, dst);
    return gb_product_choose(b, p);
}

const char * gb_product_candidate_of(const gb_cuda_backend & b, const ggml_tensor * dst, int i, const char ** why) {
    gb_product p;
    gb_product_of(p, dst);
    if (i < 0 || i > first_from(b, p, 0)) {
        return NULL;
    }
    *why = algorithms[i].declines(b, p);
    return algorithms[i].name;
}
