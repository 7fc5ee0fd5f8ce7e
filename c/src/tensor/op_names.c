// op_names.c - what operations are called and which kind they are, and how a tensor or node reads in a message.
#include <stdio.h>

#include "tensor.h"

struct op_info {
    const char * name;
    const char * symbol;
    bool         is_view;
    bool         can_inplace;
    int          n_sources;
};

#define GB_OP(id, symbol, view, inplace, n_sources) [GGML_OP_##id] = { #id, symbol, view, inplace, n_sources },
static const struct op_info ops[] = {
#include "ops.def"
};
#undef GB_OP

_Static_assert(GB_ARRAY_LEN(ops) == GGML_OP_COUNT, "ops.def lists every operation");

static const char * const unary_names[] = {
    [GGML_UNARY_OP_ABS]         = "ABS",
    [GGML_UNARY_OP_SGN]         = "SGN",
    [GGML_UNARY_OP_NEG]         = "NEG",
    [GGML_UNARY_OP_STEP]        = "STEP",
    [GGML_UNARY_OP_TANH]        = "TANH",
    [GGML_UNARY_OP_ELU]         = "ELU",
    [GGML_UNARY_OP_RELU]        = "RELU",
    [GGML_UNARY_OP_GELU]        = "GELU",
    [GGML_UNARY_OP_GELU_QUICK]  = "GELU_QUICK",
    [GGML_UNARY_OP_SILU]        = "SILU",
    [GGML_UNARY_OP_HARDSWISH]   = "HARDSWISH",
    [GGML_UNARY_OP_HARDSIGMOID] = "HARDSIGMOID",
    [GGML_UNARY_OP_GELU_ERF]    = "GELU_ERF",
};

_Static_assert(GB_ARRAY_LEN(unary_names) == GGML_UNARY_OP_COUNT, "every unary operation has a name");

static const struct op_info * info_of(enum ggml_op op) {
    return (int) op >= 0 && (int) op < GGML_OP_COUNT ? &ops[op] : NULL;
}

const char * ggml_op_name(enum ggml_op op) {
    const struct op_info * info = info_of(op);
    return info ? info->name : NULL;
}

const char * gb_op_name(enum ggml_op op) {
    const struct op_info * info = info_of(op);
    return info ? info->name : "(no op)";
}

const char * ggml_op_symbol(enum ggml_op op) {
    const struct op_info * info = info_of(op);
    return info ? info->symbol : NULL;
}

const char * ggml_unary_op_name(enum ggml_unary_op op) {
    return (int) op >= 0 && (int) op < GGML_UNARY_OP_COUNT ? unary_names[op] : NULL;
}

enum ggml_unary_op ggml_get_unary_op(const struct ggml_tensor * tensor) {
    GB_CHECK_ARG_RETURNING(tensor, GGML_UNARY_OP_COUNT);
    GB_FAIL_IF_RETURNING(tensor->op != GGML_OP_UNARY, GGML_UNARY_OP_COUNT, GGML_STATUS_INVALID_ARGUMENT,
        "%s: tensor '%s': needs op UNARY, has %s", __func__, tensor->name, gb_op_name(tensor->op));
    return (enum ggml_unary_op) tensor->op_params[0];
}

const char * ggml_op_desc(const struct ggml_tensor * t) {
    const char * name = NULL;
    if (t != NULL) {
        name = t->op == GGML_OP_UNARY ? ggml_unary_op_name((enum ggml_unary_op) t->op_params[0]) : ggml_op_name(t->op);
    }
    return name ? name : "";
}

bool gb_op_is_view(enum ggml_op op) {
    const struct op_info * info = info_of(op);
    return info != NULL && info->is_view;
}

bool gb_op_can_inplace(enum ggml_op op) {
    const struct op_info * info = info_of(op);
    return info != NULL && info->can_inplace;
}

bool gb_node_has_sources(const struct ggml_tensor * node) {
    const struct op_info * info = info_of(node->op);
    int                    n    = info ? info->n_sources : 0;
    if (node->op == GGML_OP_MUL_MAT_ID) {
        n = GB_MAX(n, 2 + GB_MIN(gb_op_param_i32(node, 1), GGML_MAX_SRC - 2));
    }
    while (n > 0 && node->src[n - 1] != NULL) {
        n--;
    }
    return n == 0;
}

// ------------------------------------------------------------------------------------------------------------ messages

const char * gb_describe(const struct ggml_tensor * t, char buf[GB_DESCRIBE_SIZE]) {
    if (t == NULL) {
        snprintf(buf, GB_DESCRIBE_SIZE, "NULL");
        return buf;
    }
    const char * type = ggml_type_name(t->type);
    int          at =
        snprintf(buf, GB_DESCRIBE_SIZE, "'%.*s' %s [", (int) sizeof(t->name) - 1, t->name, type ? type : "(no type)");
    const int n = gb_tensor_ndim(t);
    for (int d = 0; d < n; d++) { // at most 63 + 20 + 4 * 22 characters: fits
        at += snprintf(buf + at, GB_DESCRIBE_SIZE - (size_t) at, d == 0 ? "%lld" : ", %lld", (long long) t->ne[d]);
    }
    snprintf(buf + at, GB_DESCRIBE_SIZE - (size_t) at, "]");
    return buf;
}

// Appends, cutting at size. Returns the new length, never past size - 1.
static size_t append(char * buf, size_t size, size_t at, const char * text) {
    const int n = snprintf(buf + at, size - at, "%s", text);
    return n < 0 ? at : GB_MIN(at + (size_t) n, size - 1);
}

const char * gb_describe_node(const struct ggml_tensor * node, char * buf, size_t size) {
    if (size == 0) {
        return buf;
    }
    buf[0]    = '\0';
    size_t at = 0;
    char   one[GB_DESCRIBE_SIZE];
    if (node != NULL) {
        at = append(buf, size, at, node->op == GGML_OP_UNARY ? ggml_op_desc(node) : gb_op_name(node->op));
        at = append(buf, size, at, " ");
    }
    at = append(buf, size, at, gb_describe(node, one));

    const char * separator = " of ";
    for (int i = 0; node != NULL && i < GGML_MAX_SRC; i++) {
        if (node->src[i] != NULL) {
            at        = append(buf, size, at, separator);
            at        = append(buf, size, at, gb_describe(node->src[i], one));
            separator = ", ";
        }
    }
    return buf;
}
