// explain.c - reports the algorithm that computes a product (gb_cpu_product_algorithm). It uses the
// same table as runs.
#include "base/status.h"
#include "cpu/cpu.h"
#include "cpu/ops/product/product.h"
#include "cpu/traits.h"
#include "ggml-cpu.h"

const char * gb_cpu_product_algorithm(const struct ggml_tensor * node, const char * level, int i, const char ** why) {
    const char * reason = ggml_cpu_unsupported_reason(node);
    GB_FAIL_IF_RETURNING(reason != NULL, NULL, GGML_STATUS_UNSUPPORTED, "CPU: cannot compute the node: %s", reason);
    GB_FAIL_IF_RETURNING(!gb_is_product(node->op), NULL, GGML_STATUS_INVALID_ARGUMENT, "CPU: %s is not a product",
        ggml_op_name(node->op));
    const struct gb_level * found = level != NULL ? gb_level_find(level) : gb_level_default();
    return found != NULL && gb_cpu_traits_check() ? gb_mul_mat_candidate(node, found->kernels, NULL, i, why) : NULL;
}
