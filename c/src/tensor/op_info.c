// op_info.c - the table of operators in ops.def, and their names.
#include "tensor/op_info.h"

#include "tensor/tensor.h"

const struct gb_op_info gb_op_infos[GGML_OP_COUNT + 1] = {
#define GB_OP(id, stem, sources, work, cost, inplace, unit, derivative, symbol) \
    [GGML_OP_##id] = { #id, symbol, sources, GB_WORK_##work, GB_INPLACE_##inplace, GB_UNIT_##unit },
#include "tensor/ops.def"
    [GGML_OP_COUNT] = { "(no op)", "(no op)", 0, GB_WORK_EACH, GB_INPLACE_NEVER, GB_UNIT_ALL },
};

// The names of the functions of UNARY, in upper case as ggml.h has them.
static const char * const unary_names[GGML_UNARY_OP_COUNT] = {
#define GB_UNARY_OP(id, stem, tolerance, forms, derivative) [GGML_UNARY_OP_##id] = #id,
#include "tensor/ops.def"
};

// Checks the order and the number of rows: row i is for the enumerator with value i.
enum {
#define GB_OP(id, ...) ROW_##id,
#include "tensor/ops.def"
    N_ROWS
};
enum {
#define GB_UNARY_OP(id, ...) UNARY_ROW_##id,
#include "tensor/ops.def"
    N_UNARY_ROWS
};
#define GB_OP(id, ...) _Static_assert((int) ROW_##id == (int) GGML_OP_##id, "ops.def has the order of enum ggml_op");
#define GB_UNARY_OP(id, ...) \
    _Static_assert((int) UNARY_ROW_##id == (int) GGML_UNARY_OP_##id, "ops.def has the order of enum ggml_unary_op");
#include "tensor/ops.def"
_Static_assert((int) N_ROWS == (int) GGML_OP_COUNT, "ops.def has a row for every operator");
_Static_assert((int) N_UNARY_ROWS == (int) GGML_UNARY_OP_COUNT, "ops.def has a row for every function of UNARY");

// Programs may pass any number.
static bool is_op(enum ggml_op op) { return (unsigned) op < GGML_OP_COUNT; }

const char * ggml_op_name(enum ggml_op op) { return is_op(op) ? gb_op_info(op)->name : NULL; }

const char * ggml_op_symbol(enum ggml_op op) { return is_op(op) ? gb_op_info(op)->symbol : NULL; }

const char * ggml_unary_op_name(enum ggml_unary_op op) {
    return (unsigned) op < GGML_UNARY_OP_COUNT ? unary_names[op] : NULL;
}

enum ggml_unary_op ggml_get_unary_op(const struct ggml_tensor * tensor) {
    GB_CHECK_ARG_RETURNING(tensor, GGML_UNARY_OP_COUNT);
    GB_FAIL_IF_RETURNING(tensor->op != GGML_OP_UNARY, GGML_UNARY_OP_COUNT, GGML_STATUS_INVALID_ARGUMENT,
        "%s: tensor '%s': needs op UNARY, has %s", __func__, tensor->name, gb_op_name(tensor->op));
    return (enum ggml_unary_op) tensor->op_params[0];
}

// The function of a UNARY node, else the operator. "" for NULL and for an invalid operator.
const char * ggml_op_desc(const struct ggml_tensor * t) {
    const char * name = NULL;
    if (t != NULL) {
        name = t->op == GGML_OP_UNARY ? ggml_unary_op_name((enum ggml_unary_op) t->op_params[0]) : ggml_op_name(t->op);
    }
    return name ? name : "";
}

bool gb_node_has_sources(const struct ggml_tensor * node) {
    const struct gb_op_info * info = gb_op_info(node->op);
    int n = info->n_sources;
    if (info->work == GB_WORK_EXPERTS) {
        n = GB_MAX(n, 2 + GB_MIN(gb_op_param_i32(node, 1), GGML_MAX_SRC - 2));
    }
    if (node->op == GGML_OP_CUSTOM) {
        n = GB_MIN(gb_op_param_i32(node, GB_CUSTOM_N_SRC), GGML_MAX_SRC);
    }
    while (n > 0 && node->src[n - 1] != NULL) {
        n--;
    }
    return n <= 0;
}

// By the column `work`: the first operand of a product, the kernels of a convolution, the stack or
// the list of experts, the table of a gather.
bool gb_op_is_weight(enum ggml_op op, int s) {
    switch (gb_op_info(op)->work) {
        case GB_WORK_PRODUCT:
        case GB_WORK_STACK:
        case GB_WORK_WINDOW:
        case GB_WORK_PICK: return s == 0;
        case GB_WORK_EXPERTS: return s >= 2;
        default: return false;
    }
}
