// mul_mat.c - describes MUL_MAT and OUT_PROD for the algorithms of products (product.h).
#include "cpu/ops/elements.h"
#include "cpu/ops/product/experts.h"
#include "cpu/ops/product/product.h"
#include "tensor/quant/quant.h"

// Activations for quantized weights may have any float type. If sums run along the blocks, they may also have the
// partner format of the weights.
static const char * unsupported_quantized(const struct ggml_tensor * a, const struct ggml_tensor * b,
    bool along_blocks) {
    if (!gb_can_load(a)) {
        return "source 0 cannot be dequantized: its format, or rows that are not whole blocks";
    }
    if (gb_is_float(b->type)) {
        return NULL;
    }
    if (!along_blocks || b->type != gb_quant_format_of(a->type)->vec_dot_type) {
        return along_blocks ? "source 1 must be f32, f16, bf16 or the partner format of source 0"
                            : "source 1 must be f32, f16 or bf16";
    }
    return gb_can_load(b) ? NULL : "source 1 cannot be dequantized: its format, or rows that are not whole blocks";
}

static const char * unsupported_types(const struct ggml_tensor * a, const struct ggml_tensor * b,
    const struct ggml_tensor * dst, bool along_blocks) {
    if (ggml_is_quantized(a->type)) {
        const char * why = unsupported_quantized(a, b, along_blocks);
        if (why != NULL) {
            return why;
        }
    } else if (!gb_is_float(a->type)) {
        return "source 0 must be f32, f16, bf16 or quantized";
    } else if (b->type != GGML_TYPE_F32 && b->type != a->type) {
        return "source 1 must be f32, or have the type of source 0";
    }
    if (dst->type != GGML_TYPE_F32 || dst->nb[0] != sizeof(float)) {
        return "the result must be f32 with dense rows";
    }
    return NULL;
}

const char * gb_product_unsupported(const struct ggml_tensor * a, const struct ggml_tensor * b,
    const struct ggml_tensor * dst) {
    return unsupported_types(a, b, dst, true);
}

// ------------------------------------------------------------------------------------------ slices that share a matrix

struct product {
    struct gb_gemm gemm;
    const struct ggml_tensor * a;
    const struct ggml_tensor * b;
    const struct ggml_tensor * dst;
    size_t a_nb_m; // bytes from one column of dst to the next in a
    size_t b_nb_n; // bytes from one row of dst to the next in b
    int64_t n, r2; // rows of a slice of dst; slices of dim 2 that share a slice of a
    int64_t a2, r3;
};

static struct gb_gemm_matrix slice_of(const struct gb_gemm * p, int64_t g) {
    const struct product * q = p->context;
    return (struct gb_gemm_matrix){ gb_row_ptr(q->a, 0, g % q->a2, g / q->a2), q->a_nb_m };
}

// Row r of group g. Slices follow each other, along dim 2 first.
static struct gb_gemm_row slice_row(const struct gb_gemm * p, int64_t g, int64_t r) {
    const struct product * q = p->context;
    const int64_t slice = r / q->n;
    const int64_t i1 = r % q->n;
    const int64_t i2 = g % q->a2 * q->r2 + slice % q->r2;
    const int64_t i3 = g / q->a2 * q->r3 + slice / q->r2;
    return (struct gb_gemm_row){ gb_row_ptr(q->b, 0, i2, i3) + (size_t) i1 * q->b_nb_n,
        (float *) gb_row_ptr(q->dst, i1, i2, i3) };
}

// `dim` is the dimension of the sum: 0 for MUL_MAT, 1 for OUT_PROD.
static void describe(struct product * q, const struct ggml_tensor * node, int dim) {
    const struct ggml_tensor * a = node->src[0];
    const struct ggml_tensor * b = node->src[1];
    const int64_t n_groups = a->ne[2] * a->ne[3];

    *q = (struct product){ .a = a, .b = b, .dst = node, .n = b->ne[1 - dim], .a2 = a->ne[2] };
    q->a_nb_m = a->nb[1 - dim];
    q->b_nb_n = b->nb[1 - dim];
    q->r2 = n_groups > 0 ? b->ne[2] / a->ne[2] : 0;
    q->r3 = n_groups > 0 ? b->ne[3] / a->ne[3] : 0;
    q->gemm = (struct gb_gemm){
        .m = a->ne[1 - dim],
        .k = a->ne[dim],
        .n_groups = n_groups,
        .rows = q->n * q->r2 * q->r3,
        .total = q->n * b->ne[2] * b->ne[3],
        .w = { a->type, a->nb[dim], ggml_is_quantized(a->type) && dim == 1 },
        .x = { b->type, b->nb[dim], false },
        .activations = dim == 1 ? GB_ACTIVATIONS_EXACT : gb_activations_of(gb_op_param_i32(node, 0)),
        .w_of = slice_of,
        .row_of = slice_row,
        .run = q->n,
        .run_nb_x = q->b_nb_n,
        .run_nb_dst = node->nb[1],
    };
}

static int n_tasks_over(const struct ggml_tensor * node, int n_threads, int dim) {
    struct product q;
    describe(&q, node, dim);
    return gb_gemm_n_tasks(&q.gemm, n_threads);
}

static size_t work_size_over(const struct ggml_tensor * node, int n_tasks, int dim) {
    struct product q;
    describe(&q, node, dim);
    return gb_gemm_work_size(&q.gemm, n_tasks);
}

static void run_over(const struct gb_cpu_call * call, const struct ggml_tensor * node, int dim,
    const struct gb_gemm_epilogue * epilogue) {
    struct product q;
    describe(&q, node, dim);
    q.gemm.context = &q;
    q.gemm.epilogue = epilogue;
    gb_gemm_run(call, &q.gemm);
}

// ------------------------------------------------------------------------------------------------------------- MUL_MAT

static const char * mul_mat_unsupported(const struct ggml_tensor * node) {
    return unsupported_types(node->src[0], node->src[1], node, true);
}

static int mul_mat_n_tasks(const struct ggml_tensor * node, int n_threads) { return n_tasks_over(node, n_threads, 0); }

static size_t mul_mat_work_size(const struct ggml_tensor * node, int n_tasks) {
    return work_size_over(node, n_tasks, 0);
}

static void mul_mat_run(const struct gb_cpu_call * call, struct ggml_tensor * node) { run_over(call, node, 0, NULL); }

void gb_mul_mat_run_with(const struct gb_cpu_call * call, const struct ggml_tensor * node,
    const struct gb_gemm_epilogue * epilogue) {
    run_over(call, node, 0, epilogue);
}

bool gb_mul_mat_has_row(const struct ggml_tensor * node) {
    const struct ggml_tensor *a = node->src[0], *b = node->src[1];
    return node->op == GGML_OP_MUL_MAT && b->type == GGML_TYPE_F32 && b->nb[0] == sizeof(float) && gb_rows(b) == 1 &&
           b->ne[0] > 0 && a->nb[0] == ggml_type_size(a->type) && a->ne[2] == 1 && a->ne[3] == 1 && a->ne[1] > 0;
}

bool gb_mul_mat_is_like(const struct ggml_tensor * a, const struct ggml_tensor * b) {
    return a->src[0]->type == b->src[0]->type && gb_same_ne(a, b) && gb_op_param_i32(a, 0) == gb_op_param_i32(b, 0);
}

static struct gb_gemm_matrix matrix_of_set(const struct gb_gemm * p, int64_t g) {
    const struct gb_mul_mat_set * set = p->context;
    return (struct gb_gemm_matrix){ set->nodes[g]->src[0]->data, set->nodes[g]->src[0]->nb[1] };
}

static struct gb_gemm_row row_of_set(const struct gb_gemm * p, int64_t g, int64_t r) {
    const struct gb_mul_mat_set * set = p->context;
    (void) r;
    return (struct gb_gemm_row){ set->x, (float *) set->nodes[g]->data };
}

// Algorithms for one row divide columns among threads (gb_gemm_share_columns), which same_rows needs.
static struct gb_gemm gemm_of_set(const struct gb_mul_mat_set * set) {
    struct product q;
    describe(&q, set->nodes[0], 0);
    q.gemm.n_groups = set->n;
    q.gemm.same_rows = true;
    q.gemm.w_of = matrix_of_set;
    q.gemm.row_of = row_of_set;
    q.gemm.context = set;
    return q.gemm;
}

int gb_mul_mat_set_tasks(const struct gb_mul_mat_set * set, int n_threads) {
    const struct gb_gemm p = gemm_of_set(set);
    return gb_gemm_n_tasks(&p, n_threads);
}

size_t gb_mul_mat_set_work(const struct gb_mul_mat_set * set, int n_tasks) {
    const struct gb_gemm p = gemm_of_set(set);
    return gb_gemm_work_size(&p, n_tasks);
}

void gb_mul_mat_set_run(const struct gb_cpu_call * call, const struct gb_mul_mat_set * set,
    const struct gb_gemm_epilogue * epilogue) {
    struct gb_gemm p = gemm_of_set(set);
    p.epilogue = epilogue;
    gb_gemm_run(call, &p);
}

const struct gb_cpu_op gb_cpu_op_mul_mat = {
    .unsupported = mul_mat_unsupported,
    .n_tasks = mul_mat_n_tasks,
    .work_size = mul_mat_work_size,
    .run = mul_mat_run,
};

// ------------------------------------------------------------------------------------------------------------ OUT_PROD

static const char * out_prod_unsupported(const struct ggml_tensor * node) {
    return unsupported_types(node->src[0], node->src[1], node, false);
}

static int out_prod_n_tasks(const struct ggml_tensor * node, int n_threads) { return n_tasks_over(node, n_threads, 1); }

static size_t out_prod_work_size(const struct ggml_tensor * node, int n_tasks) {
    return work_size_over(node, n_tasks, 1);
}

static void out_prod_run(const struct gb_cpu_call * call, struct ggml_tensor * node) { run_over(call, node, 1, NULL); }

const struct gb_cpu_op gb_cpu_op_out_prod = {
    .unsupported = out_prod_unsupported,
    .n_tasks = out_prod_n_tasks,
    .work_size = out_prod_work_size,
    .run = out_prod_run,
};

// ---------------------------------------------------------------------------------------------------------- algorithms

// Describes the product of a node in *q. NULL: the node is not a product.
static const struct gb_gemm * gemm_of(const struct ggml_tensor * node, struct product * q) {
    switch (node->op) {
        case GGML_OP_MUL_MAT: describe(q, node, 0); return &q->gemm;
        case GGML_OP_OUT_PROD: describe(q, node, 1); return &q->gemm;
        case GGML_OP_MUL_MAT_ID:
        case GGML_OP_MUL_MAT_EXPERTS: return gb_experts_describe(node, &q->gemm);
        default: return NULL;
    }
}

const char * gb_mul_mat_candidate(const struct ggml_tensor * node, const struct gb_kernels * kernels,
    const struct gb_cpu_traits * traits, int i, const char ** why) {
    struct product q;
    const struct gb_gemm * p = gemm_of(node, &q);
    return p != NULL ? gb_gemm_candidate(p, kernels, traits, i, why) : NULL;
}

const char * gb_mul_mat_algorithm(const struct ggml_tensor * node, const struct gb_kernels * kernels,
    const struct gb_cpu_traits * traits) {
    struct product q;
    const struct gb_gemm * p = gemm_of(node, &q);
    return p != NULL ? gb_gemm_algorithm(p, kernels, traits) : NULL;
}
