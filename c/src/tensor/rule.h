// rule.h - the functions with which check.c states the rules of operators.
//
// A call names its operands. A rule refers to them by index and returns true if it holds. Otherwise
// it reports the call with all operands and the values that break the rule, and returns false. So
// rules chain with &&, and the first broken rule is reported. The first rule of every chain is
// gb_rule_given, so that all later rules may read the tensors.
//
// A call without a function's name stands for an existing node (validate.c). Then nothing is
// reported, and only shapes and parameters are checked. The node may have a gradient by now, and
// the backend checks types and strides.
//
// Rules run for every built node and for every planned node, and nearly all of them hold. So the
// tests are inlined, and the reports are not.
#ifndef GB_TENSOR_RULE_H
#define GB_TENSOR_RULE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/fault.h"
#include "tensor/tensor.h"

#define GB_RULE_MAX_OPERANDS 6

struct gb_operand {
    const char * role; // its name in ggml.h; static
    const struct ggml_tensor * t;
};

// func NULL: the call is a built node, see above.
struct gb_call {
    const char * func;
    int n;
    const struct gb_operand * list;
};

// A struct gb_call, whose operands live as long as the enclosing block.
#define GB_CALL(func, ...)                                                                             \
    {                                                                                                  \
        func, (int) (sizeof((const struct gb_operand[]) { __VA_ARGS__ }) / sizeof(struct gb_operand)), \
            (const struct gb_operand[]) {                                                              \
            __VA_ARGS__                                                                                \
        }                                                                                              \
    }
#define GB_OPERAND(a) { #a, a }
#define GB_CALL_1(func, a) GB_CALL(func, GB_OPERAND(a))
#define GB_CALL_2(func, a, b) GB_CALL(func, GB_OPERAND(a), GB_OPERAND(b))
#define GB_CALL_3(func, a, b, c) GB_CALL(func, GB_OPERAND(a), GB_OPERAND(b), GB_OPERAND(c))
#define GB_CALL_4(func, a, b, c, d) GB_CALL(func, GB_OPERAND(a), GB_OPERAND(b), GB_OPERAND(c), GB_OPERAND(d))
#define GB_CALL_5(func, a, b, c, d, e) \
    GB_CALL(func, GB_OPERAND(a), GB_OPERAND(b), GB_OPERAND(c), GB_OPERAND(d), GB_OPERAND(e))

// Reports "func: operands: reason", or "func: reason" without operands. Returns false. Stores the
// fault (base/fault.h).
bool gb_rule_fail(const struct gb_call * call, enum ggml_status status, const struct gb_fault * fault);

// Reports the row `what` of base/fault.def with values for its fields: GB_BROKEN(call, TOO_SMALL, .name = "k", ...).
#define GB_BROKEN(call, what, ...) \
    gb_rule_fail(call, GGML_STATUS_INVALID_ARGUMENT, &(const struct gb_fault) { .kind = GB_FAULT_##what, __VA_ARGS__ })

// Reports that the operand `what` is NULL, unless an earlier failure explains that. Returns false.
bool gb_rule_missing(const struct gb_call * call, const char * what);

// Reports for the rules below, with the arguments of the rule.
void gb_rule_not_given(const struct gb_call * call);
void gb_rule_unequal(const struct gb_call * call, int i, int di, int j, int dj);
void gb_rule_other_size(const struct gb_call * call, int i, int di, int64_t size);
void gb_rule_does_not_divide(const struct gb_call * call, int i, int j, int d);
void gb_rule_other_types(const struct gb_call * call, int i, int j);
void gb_rule_other_type(const struct gb_call * call, int i, enum ggml_type type);
void gb_rule_gaps(const struct gb_call * call, int i);
void gb_rule_shared(const struct gb_call * call, int i);
void gb_rule_transposed(const struct gb_call * call, int i);
void gb_rule_more_dims(const struct gb_call * call, int i, int n, int d);
void gb_rule_has_grad(const struct gb_call * call, int i);
void gb_rule_size_out_of_range(const struct gb_call * call, int i, int d, int64_t min, int64_t max);
void gb_rule_too_small(const struct gb_call * call, const char * what, int64_t value, int64_t min);
void gb_rule_out_of_range(const struct gb_call * call, const char * what, int64_t value, int64_t min, int64_t max);

// True if this validates a built node, not a builder's call.
static inline bool gb_rule_is_built(const struct gb_call * call) { return call->func == NULL; }

// True if no operand is NULL or has an invalid type (a struct that was overwritten, or filled in by
// a program).
static inline bool gb_rule_given(const struct gb_call * call) {
    for (int i = 0; i < call->n; i++) {
        if (call->list[i].t == NULL || !gb_type_is_valid(call->list[i].t->type)) {
            gb_rule_not_given(call);
            return false;
        }
    }
    return true;
}

// i.ne[di] == j.ne[dj]
static inline bool gb_rule_equal(const struct gb_call * call, int i, int di, int j, int dj) {
    return call->list[i].t->ne[di] == call->list[j].t->ne[dj] || (gb_rule_unequal(call, i, di, j, dj), false);
}

// i.ne[di] == size
static inline bool gb_rule_size(const struct gb_call * call, int i, int di, int64_t size) {
    return call->list[i].t->ne[di] == size || (gb_rule_other_size(call, i, di, size), false);
}

// i.ne[d] is from min to max. INT64_MAX: no limit
static inline bool gb_rule_size_in_range(const struct gb_call * call, int i, int d, int64_t min, int64_t max) {
    const int64_t size = call->list[i].t->ne[d];
    return (size >= min && size <= max) || (gb_rule_size_out_of_range(call, i, d, min, max), false);
}

// j.ne[d] is a multiple of i.ne[d]
static inline bool gb_rule_divides(const struct gb_call * call, int i, int j, int d) {
    return gb_size_divides(call->list[i].t->ne[d], call->list[j].t->ne[d]) ||
           (gb_rule_does_not_divide(call, i, j, d), false);
}

static inline bool gb_rule_same_shape(const struct gb_call * call, int i, int j) {
    return gb_rule_equal(call, i, 0, j, 0) && gb_rule_equal(call, i, 1, j, 1) && gb_rule_equal(call, i, 2, j, 2) &&
           gb_rule_equal(call, i, 3, j, 3);
}

// i repeats over j in every dimension
static inline bool gb_rule_repeats(const struct gb_call * call, int i, int j) {
    return gb_rule_divides(call, i, j, 0) && gb_rule_divides(call, i, j, 1) && gb_rule_divides(call, i, j, 2) &&
           gb_rule_divides(call, i, j, 3);
}

// Types and strides of a built node do not matter, here and below.
static inline bool gb_rule_same_type(const struct gb_call * call, int i, int j) {
    return gb_rule_is_built(call) || call->list[i].t->type == call->list[j].t->type ||
           (gb_rule_other_types(call, i, j), false);
}

static inline bool gb_rule_type(const struct gb_call * call, int i, enum ggml_type type) {
    return gb_rule_is_built(call) || call->list[i].t->type == type || (gb_rule_other_type(call, i, type), false);
}

static inline bool gb_rule_contiguous(const struct gb_call * call, int i) {
    return gb_rule_is_built(call) || ggml_is_contiguous(call->list[i].t) || (gb_rule_gaps(call, i), false);
}

// No two elements share a byte, so every element can be written. For built nodes validate.c checks this.
static inline bool gb_rule_apart(const struct gb_call * call, int i) {
    return gb_rule_is_built(call) || gb_elements_are_apart(call->list[i].t) || (gb_rule_shared(call, i), false);
}

// Strides of a tensor without elements do not matter.
static inline bool gb_rule_not_transposed(const struct gb_call * call, int i) {
    const struct ggml_tensor * t = call->list[i].t;
    return gb_rule_is_built(call) || !ggml_is_transposed(t) || ggml_nelements(t) == 0 ||
           (gb_rule_transposed(call, i), false);
}

// ne[d] == 1 for d >= n: 0 a scalar, 1 a vector, 2 a matrix
static inline bool gb_rule_max_dims(const struct gb_call * call, int i, int n) {
    for (int d = n; d < GGML_MAX_DIMS; d++) {
        if (call->list[i].t->ne[d] != 1) {
            gb_rule_more_dims(call, i, n, d);
            return false;
        }
    }
    return true;
}

// No operand has a gradient.
static inline bool gb_rule_no_grad(const struct gb_call * call) {
    for (int i = 0; i < call->n && !gb_rule_is_built(call); i++) {
        if (call->list[i].t->grad != NULL) {
            gb_rule_has_grad(call, i);
            return false;
        }
    }
    return true;
}

static inline bool gb_rule_at_least(const struct gb_call * call, const char * what, int64_t value, int64_t min) {
    return value >= min || (gb_rule_too_small(call, what, value, min), false);
}

static inline bool gb_rule_in_range(const struct gb_call * call, const char * what, int64_t value, int64_t min,
    int64_t max) {
    return (value >= min && value <= max) || (gb_rule_out_of_range(call, what, value, min, max), false);
}

#endif // GB_TENSOR_RULE_H
