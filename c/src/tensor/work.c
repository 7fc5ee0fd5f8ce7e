// work.c - counts operations and bytes of nodes by the column `work` of ops.def.
#include "tensor/work.h"

#include "tensor/conv_params.h"
#include "tensor/marks.h"
#include "tensor/op_info.h"
#include "tensor/tensor.h"

static double size_of(const struct ggml_tensor * t, int dim) { return t != NULL ? (double) t->ne[dim] : 1; }

// The number of elements that a node computes. SCATTER leaves the other elements of its result
// unchanged.
static double computed_of(const struct ggml_tensor * t) {
    const bool scatters = gb_op_info(t->op)->work == GB_WORK_SCATTER && t->src[0] != NULL;
    return (double) ggml_nelements(scatters ? t->src[0] : t);
}

static double flops_of(const struct ggml_tensor * t) {
    const double n = computed_of(t);
    switch (gb_op_info(t->op)->work) {
        case GB_WORK_VIEW: return 0;
        case GB_WORK_PRODUCT:
        case GB_WORK_STACK: return 2 * n * size_of(t->src[0], 0);
        case GB_WORK_EXPERTS: return 2 * n * size_of(t->src[1], 0); // src[0] are the indices of the experts
        case GB_WORK_OUTER: return 2 * n * size_of(t->src[0], 1);
        case GB_WORK_RECUR: return 6 * n * size_of(t->src[0], 0);
        case GB_WORK_ATTEND: return 2 * (n + (double) ggml_nelements(t->src[0])) * size_of(t->src[1], 1);
        case GB_WORK_WINDOW:
            return t->src[0] == NULL || t->src[1] == NULL
                       ? n
                       : 2 * n * (double) ggml_nelements(t->src[0]) / GB_MAX((double) gb_conv_channels_of(t).out, 1);
        default: return n;
    }
}

// The bytes of this many elements of a type.
static double bytes_of(double n, enum ggml_type type) {
    return n / (double) ggml_blck_size(type) * (double) ggml_type_size(type);
}

// The bytes that a node reads from its source s. A gather reads as much of its table as it writes.
// Of the experts' matrices only those count that the indices can select.
static double read_of(const struct ggml_tensor * t, int s) {
    const enum gb_op_work work = gb_op_info(t->op)->work;
    const struct ggml_tensor * src = t->src[s];
    double n = (double) ggml_nelements(src);
    if ((work == GB_WORK_TARGET && s == 1) || (work == GB_WORK_SCATTER && s == 2)) {
        return 0;
    }
    if (work == GB_WORK_PICK && s == 0) {
        n = (double) ggml_nelements(t);
    }
    if (work == GB_WORK_STACK && s == 0 && t->src[2] != NULL) { // each id names one matrix at most
        n = GB_MIN(n, (double) ggml_nelements(t->src[2]) * (double) src->ne[0] * (double) src->ne[1]);
    }
    if (work == GB_WORK_EXPERTS && gb_op_is_weight(t->op, s)) {
        const int64_t n_experts = gb_op_param_i32(t, 1), n_used = t->src[1] != NULL ? t->src[1]->ne[1] : 1;
        n *= n_experts > 0 && n_used < n_experts ? (double) n_used / (double) n_experts : 1;
    }
    return bytes_of(n, src->type);
}

// True if one of the nodes [first, end) is in the memory of t.
static bool is_among(struct ggml_tensor * const * nodes, int first, int end, const struct ggml_tensor * t) {
    for (int i = first; i < end; i++) {
        if (gb_op_computes(nodes[i]->op) && gb_root(nodes[i]) == gb_root(t)) {
            return true;
        }
    }
    return false;
}

// True if the source was counted already, for an earlier source of the node or for an earlier node.
static bool was_read(struct ggml_tensor * const * nodes, int i, int s) {
    for (int k = 0; k <= i; k++) {
        for (int j = 0; j < (k == i ? s : GGML_MAX_SRC); j++) {
            if (nodes[k]->src[j] == nodes[i]->src[s]) {
                return true;
            }
        }
    }
    return false;
}

// True if a later node of the step overwrites the result, or is its only reader.
static bool stays_inside(struct ggml_tensor * const * nodes, int i, int n) {
    if (is_among(nodes, i + 1, n, nodes[i])) {
        return true;
    }
    for (int k = i + 1; k < n && gb_tensor_is_read_once(nodes[i]); k++) {
        for (int s = 0; s < GGML_MAX_SRC; s++) {
            if (nodes[k]->src[s] != NULL && gb_root(nodes[k]->src[s]) == gb_root(nodes[i])) {
                return true;
            }
        }
    }
    return false;
}

struct gb_work gb_work_of_step(struct ggml_tensor * const * nodes, int n) {
    struct gb_work w = { 0, 0, 0 };
    for (int i = 0; i < n; i++) {
        const struct ggml_tensor * t = nodes[i];
        if (!gb_op_computes(t->op)) {
            continue;
        }
        w.flops += flops_of(t);
        w.written += stays_inside(nodes, i, n) ? 0 : bytes_of(computed_of(t), t->type);
        for (int s = 0; s < GGML_MAX_SRC; s++) {
            const struct ggml_tensor * src = t->src[s];
            if (src != NULL && src != t && !was_read(nodes, i, s) && !is_among(nodes, 0, i, src)) {
                w.read += read_of(t, s);
            }
        }
    }
    return w;
}

struct gb_work gb_work_of_nodes(struct ggml_tensor * const * nodes, int n) {
    struct gb_work sum = { 0, 0, 0 };
    for (int i = 0; i < n; i++) {
        const struct gb_work one = gb_work_of_step(&nodes[i], 1);
        sum.flops += one.flops;
        sum.read += one.read;
        sum.written += one.written;
    }
    return sum;
}

struct gb_work gb_work_of(const struct ggml_tensor * node) {
    struct ggml_tensor * const one = (struct ggml_tensor *) node;
    return gb_work_of_step(&one, 1);
}
