// rule.c - the messages of broken rules. None of it runs while all rules hold.
#include "tensor/rule.h"
#include "tensor/fault_text.h"

#include <stdio.h>

#include "tensor/tensor.h"

static const struct ggml_tensor * at(const struct gb_call * call, int i) { return call->list[i].t; }

static const char * role(const struct gb_call * call, int i) { return call->list[i].role; }

// Writes the call with all operands, and the reason.
bool gb_rule_fail(const struct gb_call * call, enum ggml_status status, const struct gb_fault * fault) {
    if (gb_rule_is_built(call)) {
        return false;
    }
    char operands[GB_RULE_MAX_OPERANDS * (GB_DESCRIBE_SIZE + 16)];
    size_t used = 0;
    operands[0] = '\0';
    for (int i = 0; i < call->n; i++) {
        char description[GB_DESCRIBE_SIZE];
        const int n = snprintf(operands + used, sizeof(operands) - used, "%s%s %s", i > 0 ? ", " : "", role(call, i),
            gb_describe(at(call, i), description));
        used = GB_MIN(used + (size_t) GB_MAX(n, 0), sizeof(operands) - 1);
    }
    char reason[GB_REASON_SIZE];
    gb_fail(status, "%s: %s%s%s", call->func, operands, call->n > 0 ? ": " : "",
        gb_fault_write(fault, reason, sizeof(reason)));
    gb_set_fault(fault);
    return false;
}

// A missing source of a built node is reported by the code that validates the node.
bool gb_rule_missing(const struct gb_call * call, const char * what) {
    if (!gb_rule_is_built(call)) {
        gb_fail_null(call->func, what);
    }
    return false;
}

// Called only if an operand is NULL or has no valid type, so the search ends.
void gb_rule_not_given(const struct gb_call * call) {
    int i = 0;
    while (at(call, i) != NULL && gb_type_is_valid(at(call, i)->type)) {
        i++;
    }
    if (at(call, i) == NULL) {
        gb_rule_missing(call, role(call, i));
    } else {
        GB_BROKEN(call, NO_TYPE, .number = { (int64_t) at(call, i)->type });
    }
}

void gb_rule_unequal(const struct gb_call * call, int i, int di, int j, int dj) {
    const struct gb_fault fault = { .kind = di == dj ? GB_FAULT_UNEQUAL : GB_FAULT_UNEQUAL_DIMS,
        .a = role(call, i),
        .b = role(call, j),
        .a_dim = di,
        .b_dim = dj,
        .number = { at(call, i)->ne[di], at(call, j)->ne[dj] } };
    gb_rule_fail(call, GGML_STATUS_INVALID_ARGUMENT, &fault);
}

void gb_rule_other_size(const struct gb_call * call, int i, int di, int64_t size) {
    GB_BROKEN(call, OTHER_SIZE, .a = role(call, i), .a_dim = di, .number = { size, at(call, i)->ne[di] });
}

void gb_rule_does_not_divide(const struct gb_call * call, int i, int j, int d) {
    GB_BROKEN(call, NO_MULTIPLE, .a = role(call, j), .b = role(call, i), .a_dim = d, .b_dim = d,
        .number = { at(call, j)->ne[d], at(call, i)->ne[d] });
}

void gb_rule_other_types(const struct gb_call * call, int i, int j) {
    GB_BROKEN(call, OTHER_TYPES, .a = role(call, i), .b = role(call, j), .t = at(call, i)->type,
        .u = at(call, j)->type);
}

void gb_rule_other_type(const struct gb_call * call, int i, enum ggml_type type) {
    GB_BROKEN(call, OTHER_TYPE, .a = role(call, i), .t = type, .u = at(call, i)->type);
}

void gb_rule_gaps(const struct gb_call * call, int i) {
    const size_t * nb = at(call, i)->nb;
    GB_BROKEN(call, NOT_CONTIGUOUS, .a = role(call, i),
        .number = { (int64_t) nb[0], (int64_t) nb[1], (int64_t) nb[2], (int64_t) nb[3] });
}

void gb_rule_shared(const struct gb_call * call, int i) {
    const size_t * nb = at(call, i)->nb;
    GB_BROKEN(call, SHARED_BYTES, .a = role(call, i),
        .number = { (int64_t) nb[0], (int64_t) nb[1], (int64_t) nb[2], (int64_t) nb[3] });
}

void gb_rule_transposed(const struct gb_call * call, int i) {
    const size_t * nb = at(call, i)->nb;
    GB_BROKEN(call, TRANSPOSED, .a = role(call, i), .number = { (int64_t) nb[0], (int64_t) nb[1] });
}

void gb_rule_more_dims(const struct gb_call * call, int i, int n, int d) {
    static const enum gb_fault_kind kinds[GGML_MAX_DIMS] = { GB_FAULT_NO_SCALAR, GB_FAULT_NO_VECTOR, GB_FAULT_NO_MATRIX,
        GB_FAULT_MORE_THAN_3_DIMS };
    const struct gb_fault fault = {
        .kind = kinds[n], .a = role(call, i), .a_dim = d, .number = { at(call, i)->ne[d] }
    };
    gb_rule_fail(call, GGML_STATUS_INVALID_ARGUMENT, &fault);
}

void gb_rule_has_grad(const struct gb_call * call, int i) {
    const struct gb_fault fault = { .kind = GB_FAULT_GRADIENT, .a = role(call, i) };
    gb_rule_fail(call, GGML_STATUS_UNSUPPORTED, &fault);
}

void gb_rule_size_out_of_range(const struct gb_call * call, int i, int d, int64_t min, int64_t max) {
    const int64_t size = at(call, i)->ne[d];
    if (max == INT64_MAX) {
        GB_BROKEN(call, SIZE_TOO_SMALL, .a = role(call, i), .a_dim = d, .number = { min, size });
    } else {
        GB_BROKEN(call, SIZE_OUT_OF_RANGE, .a = role(call, i), .a_dim = d, .number = { min, max, size });
    }
}

void gb_rule_too_small(const struct gb_call * call, const char * what, int64_t value, int64_t min) {
    GB_BROKEN(call, TOO_SMALL, .name = what, .number = { min, value });
}

void gb_rule_out_of_range(const struct gb_call * call, const char * what, int64_t value, int64_t min, int64_t max) {
    GB_BROKEN(call, OUT_OF_RANGE, .name = what, .number = { min, max, value });
}
