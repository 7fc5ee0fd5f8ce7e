// product.h - the engine of MUL_MAT, MUL_MAT_ID, MUL_MAT_EXPERTS and OUT_PROD: result j of row r of
// group g is the sum over k of x(g, r)[k] w(g)[j][k].
//
// A group is a set of rows of x that are multiplied with the same matrix w: one slice of `a` with
// all slices of `b` over which it is broadcast, or the tokens of one expert. An operator describes
// its groups in a gb_gemm. Every thread of the node then calls gb_gemm_run.
#ifndef GB_CPU_OPS_PRODUCT_H
#define GB_CPU_OPS_PRODUCT_H

#include "cpu/ops/ops.h"

struct gb_gemm_operand {
    enum ggml_type type; // F32, F16, BF16 or a quantized type with to_float
    size_t nb_k; // bytes from one term of the sum to the next; quantized: from one block of terms to the next
    bool across; // quantized w only: blocks run along the results; nb_k is then from one term to the next
};

struct gb_gemm_matrix {
    const char * data;
    size_t nb_m; // bytes from one column of dst to the next; across: from one block of columns to the next
};

struct gb_gemm_row {
    const char * x; // the row's first term
    float * dst; // m results
};

// An operation on complete results while they are in a near cache. It gets n results of a row of
// group g from dst on, which is column `column` of the row. Each result is passed once, by any
// thread.
struct gb_gemm_epilogue {
    void (*finish)(const struct gb_cpu_call * call, const struct gb_gemm_epilogue * e, int64_t g, float * dst,
        int64_t column, int64_t n);
    const void * context;
};

// The least precision of activations.
enum gb_activations {
    GB_ACTIVATIONS_ANY, // rounded as is fastest: to bytes with quantized weights, to bfloat16 with weights of that type
    GB_ACTIVATIONS_BYTES, // with quantized weights: the bytes of bytes.h, nothing else
    GB_ACTIVATIONS_TWO_BYTES, // with quantized weights: two bytes; with other weights: not rounded
    GB_ACTIVATIONS_EXACT, // not rounded
};

static inline enum gb_activations gb_activations_of(int32_t prec) {
    return prec == GGML_PREC_F32   ? GB_ACTIVATIONS_EXACT
           : prec == GGML_PREC_F16 ? GB_ACTIVATIONS_TWO_BYTES
                                   : GB_ACTIVATIONS_ANY;
}

struct gb_gemm {
    int64_t m, k; // results in a row, terms in a sum
    int64_t n_groups;
    int64_t rows; // rows of each group, or an upper bound if groups differ
    int64_t total; // rows of all groups
    // All groups multiply the same rows, which `total` counts once. A thread computes the same
    // columns of all groups, in order of the groups. Only algorithms that share out columns can do
    // that (algorithm.h).
    bool same_rows;
    const int64_t * first; // NULL, or n_groups + 1 values: group g has rows first[g] .. first[g + 1] - 1
    struct gb_gemm_operand w, x;
    enum gb_activations activations;
    const struct gb_gemm_epilogue * epilogue; // NULL: none
    const void * context; // of the two functions
    struct gb_gemm_matrix (*w_of)(const struct gb_gemm * p, int64_t g);
    struct gb_gemm_row (*row_of)(const struct gb_gemm * p, int64_t g, int64_t r);
    // In each group, rows [i run, (i + 1) run) have these constant distances in x and dst, in
    // bytes. run 0: no constant distance.
    int64_t run;
    size_t run_nb_x, run_nb_dst;
};

// algorithms.c chooses the algorithm. Making a plan calls these functions except gb_gemm_run. The
// data, and so `first`, and the level of the kernels are not known then. Scratch bytes are for
// n_tasks threads.
size_t gb_gemm_work_size(const struct gb_gemm * p, int n_tasks);
// Enough for every product with fewer rows and groups.
size_t gb_gemm_work_size_up_to(const struct gb_gemm * p, int n_tasks);
int gb_gemm_n_tasks(const struct gb_gemm * p, int n_threads);
void gb_gemm_run(const struct gb_cpu_call * call, const struct gb_gemm * p);

// The name of the i-th candidate for the product, with these kernels, on a processor with these
// traits (NULL: this processor). *why: the reason why it declines, a static text, or NULL if it
// computes the product. Returns NULL after that candidate.
const char * gb_gemm_candidate(const struct gb_gemm * p, const struct gb_kernels * kernels,
    const struct gb_cpu_traits * traits, int i, const char ** why);

// The name of the algorithm that computes the product.
const char * gb_gemm_algorithm(const struct gb_gemm * p, const struct gb_kernels * kernels,
    const struct gb_cpu_traits * traits);

// The operators that are products (mul_mat.c).
static inline bool gb_is_product(enum ggml_op op) {
    return op == GGML_OP_MUL_MAT || op == GGML_OP_MUL_MAT_ID || op == GGML_OP_MUL_MAT_EXPERTS || op == GGML_OP_OUT_PROD;
}

// gb_gemm_candidate for a node, which is a product (mul_mat.c).
const char * gb_mul_mat_candidate(const struct ggml_tensor * node, const struct gb_kernels * kernels,
    const struct gb_cpu_traits * traits, int i, const char ** why);

// gb_gemm_algorithm for a node, which is a product (mul_mat.c).
const char * gb_mul_mat_algorithm(const struct ggml_tensor * node, const struct gb_kernels * kernels,
    const struct gb_cpu_traits * traits);

// MUL_MAT (mul_mat.c) with an epilogue.
void gb_mul_mat_run_with(const struct gb_cpu_call * call, const struct ggml_tensor * node,
    const struct gb_gemm_epilogue * epilogue);

enum { GB_MUL_MAT_SET_MAX = 4 };

// Several MUL_MAT nodes as the groups of one product: their weights have one type and shape, and
// multiply the same row (mul_mat.c).
struct gb_mul_mat_set {
    const struct ggml_tensor * nodes[GB_MUL_MAT_SET_MAX];
    int n;
    const char * x; // the row; NULL while a plan is made
};
// True if a node can be in a set: one row of f32, and one matrix, both with consecutive terms.
bool gb_mul_mat_has_row(const struct ggml_tensor * node);
// True if two such nodes, which multiply the same row, can be in one set.
bool gb_mul_mat_is_like(const struct ggml_tensor * a, const struct ggml_tensor * b);
int gb_mul_mat_set_tasks(const struct gb_mul_mat_set * set, int n_threads);
size_t gb_mul_mat_set_work(const struct gb_mul_mat_set * set, int n_tasks);
void gb_mul_mat_set_run(const struct gb_cpu_call * call, const struct gb_mul_mat_set * set,
    const struct gb_gemm_epilogue * epilogue);

#endif // GB_CPU_OPS_PRODUCT_H
