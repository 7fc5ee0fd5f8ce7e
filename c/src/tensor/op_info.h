// op_info.h - the facts of an operator for planning and running graphs, from its row in ops.def.
//
// Every number has facts, even an invalid operator in a struct that a program wrote to. Such a
// number reads nothing, overwrites nothing and is computed as a whole.
#ifndef GB_TENSOR_OP_INFO_H
#define GB_TENSOR_OP_INFO_H

#include <stdbool.h>

#include "ggml.h"

// The columns of ops.def.
enum gb_op_work {
    GB_WORK_VIEW,
    GB_WORK_EACH,
    GB_WORK_PRODUCT,
    GB_WORK_OUTER,
    GB_WORK_EXPERTS,
    GB_WORK_STACK,
    GB_WORK_ATTEND,
    GB_WORK_RECUR,
    GB_WORK_PICK,
    GB_WORK_TARGET,
    GB_WORK_SCATTER,
    GB_WORK_WINDOW,
    GB_WORK_CUSTOM,
};

enum gb_op_inplace {  // bits: src[0], src[1], the same in the graph allocator
    GB_INPLACE_NEVER = 0,
    GB_INPLACE_PLAN_A = 1,
    GB_INPLACE_PLAN_AB = 3,
    GB_INPLACE_ANY_A = 5,
    GB_INPLACE_ANY_AB = 7,
    GB_INPLACE_SOURCES = 3,
    GB_INPLACE_GALLOCR = 4,
};

enum gb_op_unit { GB_UNIT_ROW, GB_UNIT_ALL };

struct gb_op_info {
    const char * name;
    const char * symbol;
    int n_sources;
    enum gb_op_work work;
    enum gb_op_inplace inplace;
    enum gb_op_unit unit;
};

// For tables by the column `work`: x, or NULL for views, which compute nothing.
#define GB_UNLESS_VIEW(work, x) GB_UNLESS_VIEW_##work(x)
#define GB_UNLESS_VIEW_VIEW(x) NULL
#define GB_UNLESS_VIEW_EACH(x) x
#define GB_UNLESS_VIEW_PRODUCT(x) x
#define GB_UNLESS_VIEW_OUTER(x) x
#define GB_UNLESS_VIEW_EXPERTS(x) x
#define GB_UNLESS_VIEW_STACK(x) x
#define GB_UNLESS_VIEW_ATTEND(x) x
#define GB_UNLESS_VIEW_RECUR(x) x
#define GB_UNLESS_VIEW_PICK(x) x
#define GB_UNLESS_VIEW_TARGET(x) x
#define GB_UNLESS_VIEW_SCATTER(x) x
#define GB_UNLESS_VIEW_WINDOW(x) x
#define GB_UNLESS_VIEW_CUSTOM(x) x

extern const struct gb_op_info gb_op_infos[GGML_OP_COUNT + 1];  // the last one is for invalid operators

static inline const struct gb_op_info * gb_op_info(enum ggml_op op) {
    return &gb_op_infos[(unsigned) op < GGML_OP_COUNT ? (unsigned) op : GGML_OP_COUNT];
}

static inline const char * gb_op_name(enum ggml_op op) { return gb_op_info(op)->name; } // never NULL

// False for leafs and views, whose bytes exist already, so backends have nothing to do.
static inline bool gb_op_computes(enum ggml_op op) { return gb_op_info(op)->work != GB_WORK_VIEW; }

static inline bool gb_op_is_custom(enum ggml_op op) { return gb_op_info(op)->work == GB_WORK_CUSTOM; }

// Sources whose memory the result may take: bit 0 for src[0], bit 1 for src[1].
static inline unsigned gb_op_inplace_sources(enum ggml_op op) {
    return (unsigned) gb_op_info(op)->inplace & GB_INPLACE_SOURCES;
}

// True if the graph allocator may also put the result into those sources.
static inline bool gb_op_can_inplace(enum ggml_op op) {
    return ((unsigned) gb_op_info(op)->inplace & GB_INPLACE_GALLOCR) != 0;
}

// The word of op_params in which CUSTOM stores the number of its sources.
enum { GB_CUSTOM_N_SRC = GGML_MAX_OP_PARAMS / sizeof(int32_t) - 1 };

// True if the node has all sources that its operator always has.
bool gb_node_has_sources(const struct ggml_tensor * node);

// True if src[s] holds weights: the matrices of a product, a table of rows.
bool gb_op_is_weight(enum ggml_op op, int s);

#endif // GB_TENSOR_OP_INFO_H
