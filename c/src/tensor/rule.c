// rule.c - the messages of broken rules. Nothing here runs while all rules hold.
#include "tensor/rule.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "tensor/tensor.h"

static const struct ggml_tensor * at(const struct gb_call * call, int i) { return call->list[i].t; }

static const char * role(const struct gb_call * call, int i) { return call->list[i].role; }

// Writes what a mark says in C. `text` are the n bytes between its braces. Returns the length as snprintf does, which
// may be more than was written.
static int write_mark(const char * text, int n, char * out, size_t size) {
    if (n > 0 && strchr("#@$!", text[0]) != NULL) {
        return snprintf(out, size, "%.*s", n - 1, text + 1);
    }
    const bool bare = n > 0 && text[0] == '~';
    int roles = bare ? 1 : 0;
    int end = roles;
    while (end < n && text[end] != '.') {
        end++;
    }
    if (end == n) {
        return snprintf(out, size, "%.*s", n, text);
    }
    const int dim = snprintf(out, size, "dimension %.*s", n - end - 1, text + end + 1);
    if (bare || (size_t) dim >= size) {
        return dim;
    }
    int used = dim;
    for (const char * joint = " of "; roles < end && (size_t) used < size; joint = " and ") {
        int comma = roles;
        while (comma < end && text[comma] != ',') {
            comma++;
        }
        used += snprintf(out + used, size - (size_t) used, "%s%.*s", joint, comma - roles, text + roles);
        roles = comma + 1;
    }
    return used;
}

// The reason for callers in C: its marks are replaced by C's names. Returns out.
static const char * unmarked(const char * reason, char * out, size_t size) {
    size_t used = 0;
    while (*reason != '\0' && used + 1 < size) {
        const char * end = *reason == '{' ? strchr(reason, '}') : NULL;
        if (end == NULL) {
            out[used++] = *reason++;
            continue;
        }
        used += (size_t) write_mark(reason + 1, (int) (end - reason - 1), out + used, size - used);
        reason = end + 1;
    }
    out[GB_MIN(used, size - 1)] = '\0';
    return out;
}

// Reports the call with all operands and the reason; the marked form of the reason is kept for language bindings.
static void report(const struct gb_call * call, enum ggml_status status, const char * fmt, va_list args) {
    if (gb_rule_is_built(call)) {
        return;
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
    char reason[GB_REASON_SIZE], words[GB_REASON_SIZE];
    vsnprintf(reason, sizeof(reason), fmt, args);
    gb_fail(status, "%s: %s%s%s", call->func, operands, call->n > 0 ? ": " : "",
        unmarked(reason, words, sizeof(words)));
    gb_fail_reason(reason);
}

bool gb_rule_broken(const struct gb_call * call, const char * fmt, ...) {
    va_list args;
    va_start(args, fmt);
    report(call, GGML_STATUS_INVALID_ARGUMENT, fmt, args);
    va_end(args);
    return false;
}

// As gb_rule_broken, for what is right but cannot be done.
GGML_ATTRIBUTE_FORMAT(2, 3) static bool unsupported(const struct gb_call * call, const char * fmt, ...) {
    va_list args;
    va_start(args, fmt);
    report(call, GGML_STATUS_UNSUPPORTED, fmt, args);
    va_end(args);
    return false;
}

// A built node without a source is reported by the code that validates it.
bool gb_rule_missing(const struct gb_call * call, const char * what) {
    if (!gb_rule_is_built(call)) {
        gb_fail_null(call->func, what);
    }
    return false;
}

// Called only if an operand is NULL or of no type, so the search ends.
void gb_rule_not_given(const struct gb_call * call) {
    int i = 0;
    while (at(call, i) != NULL && gb_type_is_valid(at(call, i)->type)) {
        i++;
    }
    if (at(call, i) == NULL) {
        gb_rule_missing(call, role(call, i));
    } else {
        gb_rule_broken(call, "there is no type %d", (int) at(call, i)->type);
    }
}

// Two forms of words, for one dimension of two operands and for two dimensions.
void gb_rule_unequal(const struct gb_call * call, int i, int di, int j, int dj) {
    const int64_t x = at(call, i)->ne[di];
    const int64_t y = at(call, j)->ne[dj];
    if (di == dj) {
        gb_rule_broken(call, "{%s,%s.%d} must be equal (%lld != %lld)", role(call, i), role(call, j), di, (long long) x,
            (long long) y);
    } else {
        gb_rule_broken(call, "{%s.%d} must equal {%s.%d} (%lld != %lld)", role(call, i), di, role(call, j), dj,
            (long long) x, (long long) y);
    }
}

void gb_rule_other_size(const struct gb_call * call, int i, int di, int64_t size) {
    gb_rule_broken(call, "{%s.%d} must be %lld, has %lld", role(call, i), di, (long long) size,
        (long long) at(call, i)->ne[di]);
}

void gb_rule_does_not_divide(const struct gb_call * call, int i, int j, int d) {
    gb_rule_broken(call, "{%s.%d} must be a multiple of that of {%s} (%lld, %lld)", role(call, j), d, role(call, i),
        (long long) at(call, j)->ne[d], (long long) at(call, i)->ne[d]);
}

// Never NULL, because an operand may have no type.
static const char * type_name(enum ggml_type type) {
    const char * name = ggml_type_name(type);
    return name != NULL ? name : "no type";
}

void gb_rule_other_types(const struct gb_call * call, int i, int j) {
    gb_rule_broken(call, "{%s} and {%s} must have the same type ({#%s}, {#%s})", role(call, i), role(call, j),
        type_name(at(call, i)->type), type_name(at(call, j)->type));
}

void gb_rule_other_type(const struct gb_call * call, int i, enum ggml_type type) {
    gb_rule_broken(call, "{%s} must be {#%s}, is {#%s}", role(call, i), type_name(type), type_name(at(call, i)->type));
}

void gb_rule_gaps(const struct gb_call * call, int i) {
    const struct ggml_tensor * t = at(call, i);
    gb_rule_broken(call, "{%s} must be contiguous{!, has strides [%zu, %zu, %zu, %zu] in bytes: see ggml_cont}",
        role(call, i), t->nb[0], t->nb[1], t->nb[2], t->nb[3]);
}

void gb_rule_shared(const struct gb_call * call, int i) {
    const struct ggml_tensor * t = at(call, i);
    gb_rule_broken(call, "elements of {%s} share bytes, so it cannot be written{! (strides [%zu, %zu, %zu, %zu])}",
        role(call, i), t->nb[0], t->nb[1], t->nb[2], t->nb[3]);
}

void gb_rule_transposed(const struct gb_call * call, int i) {
    gb_rule_broken(call, "{%s} must not be transposed{! (strides %zu > %zu): see ggml_cont}", role(call, i),
        at(call, i)->nb[0], at(call, i)->nb[1]);
}

void gb_rule_more_dims(const struct gb_call * call, int i, int n, int d) {
    static const char * const nouns[GGML_MAX_DIMS] = { "a scalar", "a vector", "a matrix", "of at most 3 dimensions" };
    gb_rule_broken(call, "{%s} must be %s, {~%s.%d} is %lld", role(call, i), nouns[n], role(call, i), d,
        (long long) at(call, i)->ne[d]);
}

void gb_rule_has_grad(const struct gb_call * call, int i) {
    unsupported(call, "{%s} has a gradient, and the operator has no derivative", role(call, i));
}

void gb_rule_too_small(const struct gb_call * call, const char * what, int64_t value, int64_t min) {
    gb_rule_broken(call, "%s must be at least %lld, is %lld", what, (long long) min, (long long) value);
}

void gb_rule_out_of_range(const struct gb_call * call, const char * what, int64_t value, int64_t min, int64_t max) {
    gb_rule_broken(call, "%s must be in %lld .. %lld, is %lld", what, (long long) min, (long long) max,
        (long long) value);
}
