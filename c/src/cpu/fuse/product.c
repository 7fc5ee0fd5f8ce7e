// fuse/product.c - fuses a product with later elementwise operators: bias, activation, gate,
// residual.
//
//     MUL_MAT [ADD | SUB | MUL | DIV | SCALE | UNARY | CLAMP | LEAKY_RELU | SQR | SQRT | LOG | DUP]+
//
// The operators are applied to parts of rows as soon as the product has completed them
// (gb_gemm_epilogue). An operand of one row, which repeats over all rows, is a shared operand
// (stages.h).
//
// Only results that fit into caches are fused. The fusion saves a barrier. But a product completes
// rows in pieces, and pieces are slower to read from memory than whole rows.
#include "cpu/fuse/stages.h"
#include "cpu/ops/product/product.h"

enum { ELEMENTS_MAX = 1 << 17 }; // of a result

struct product { // the product and the operators after it
    struct gb_gemm_epilogue epilogue;
    struct gb_fuse_stages stages;
};

bool gb_fuse_is_row(const struct ggml_tensor * t, const struct ggml_tensor * product) {
    return t->ne[0] == product->ne[0] && t->ne[1] == 1 && t->ne[2] == 1 && t->ne[3] == 1;
}

static int product_length(struct ggml_tensor * const * nodes, int n) {
    if (nodes[0]->op != GGML_OP_MUL_MAT || gb_count(nodes[0]) > ELEMENTS_MAX) {
        return 0;
    }
    return gb_fuse_stages_length(nodes, n, gb_fuse_is_row);
}

static bool product_is_safe(struct ggml_tensor * const * nodes, int n) {
    const struct gb_fuse_stages s = gb_fuse_stages_of(nodes, n, gb_fuse_is_row);
    return gb_fuse_stages_are_safe(&s, nodes);
}

const float * gb_fuse_part_of_row(const struct ggml_tensor * row, int64_t column, int64_t n, float * room) {
    (void) n;
    (void) room;
    return (const float *) row->data + column;
}

static void finish(const struct gb_cpu_call * call, const struct gb_gemm_epilogue * e, int64_t g, float * dst,
    int64_t column, int64_t n) {
    (void) g;
    const struct product * p = e->context;
    const size_t at = (size_t) ((const char *) dst - p->stages.first);
    gb_fuse_stages_run(call, &p->stages, at, column, n, gb_fuse_part_of_row, NULL);
}

static void run_product(const struct gb_cpu_call * call, struct ggml_tensor * const * nodes, int n) {
    struct product p = { .stages = gb_fuse_stages_of(nodes, n, gb_fuse_is_row) };
    p.epilogue = (struct gb_gemm_epilogue){ finish, &p };
    gb_mul_mat_run_with(call, nodes[0], &p.epilogue);
}

static bool product_leaves_out(struct ggml_tensor * const * nodes, int n) {
    const struct gb_fuse_stages s = gb_fuse_stages_of(nodes, n, gb_fuse_is_row);
    return gb_fuse_stages_leave_out(&s);
}

const struct gb_fusion gb_fusion_product = {
    .length = product_length,
    .n_tasks = gb_fuse_first_tasks,
    .work_size = gb_fuse_first_work,
    .is_safe = product_is_safe,
    .run = run_product,
    .leaves_out = product_leaves_out,
};
