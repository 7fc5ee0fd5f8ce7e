// experts.h - products in which each row chooses its matrix (experts.c).
#ifndef GB_CPU_OPS_PRODUCT_EXPERTS_H
#define GB_CPU_OPS_PRODUCT_EXPERTS_H

#include "cpu/ops/product/product.h"

// Describes a MUL_MAT_ID or MUL_MAT_EXPERTS node for the choice of an algorithm, as if one expert
// had all rows. The functions of the description cannot be called. Returns gemm.
const struct gb_gemm * gb_experts_describe(const struct ggml_tensor * node, struct gb_gemm * gemm);

// NULL if the engine multiplies these types and layouts. Otherwise the reason, a static text
// (mul_mat.c).
const char * gb_product_unsupported(const struct ggml_tensor * a, const struct ggml_tensor * b,
    const struct ggml_tensor * dst);

#endif // GB_CPU_OPS_PRODUCT_EXPERTS_H
