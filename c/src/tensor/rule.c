// rule.c - rules on operands, each with its message.
#include "tensor/rule.h"

#include <stdio.h>
#include <string.h>

#include "tensor/tensor.h"

static const struct ggml_tensor * at(const struct gb_call * call, int i) {
    return call->list[i].t;
}

static const char * role(const struct gb_call * call, int i) {
    return call->list[i].role;
}

static bool is_built(const struct gb_call * call) { // a node is looked at, no call
    return call->func == NULL;
}

// Writes what a mark without its braces, `text` of `n` bytes, says in C; returns how much.
static int write_mark(const char * text, int n, char * out, size_t size) {
    if (n > 0 && strchr("#@$!", text[0]) != NULL) {
        return snprintf(out, size, "%.*s", n - 1, text + 1);
    }
    const bool bare  = n > 0 && text[0] == '~';
    int        roles = bare ? 1 : 0;
    int        end   = roles;
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

// The reason with its marks as a caller in C knows things.
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

static void report(const struct gb_call * call, enum ggml_status status, const char * fmt, va_list args) {
    if (is_built(call)) {
        return;
    }
    char   operands[GB_RULE_MAX_OPERANDS * (GB_DESCRIBE_SIZE + 16)];
    size_t used = 0;
    operands[0] = '\0';
    for (int i = 0; i < call->n; i++) {
        char      description[GB_DESCRIBE_SIZE];
        const int n = snprintf(operands + used, sizeof(operands) - used, "%s%s %s", i > 0 ? ", " : "", role(call, i),
                               gb_describe(at(call, i), description));
        used        = GB_MIN(used + (size_t) GB_MAX(n, 0), sizeof(operands) - 1);
    }
    char reason[GB_REASON_SIZE], words[GB_REASON_SIZE];
    vsnprintf(reason, sizeof(reason), fmt, args);
    gb_fail(status, "%s: %s: %s", call->func, operands, unmarked(reason, words, sizeof(words)));
    gb_fail_reason(reason);
}

bool gb_rule_broken(const struct gb_call * call, const char * fmt, ...) {
    va_list args;
    va_start(args, fmt);
    report(call, GGML_STATUS_INVALID_ARGUMENT, fmt, args);
    va_end(args);
    return false;
}

GGML_ATTRIBUTE_FORMAT(2, 3) static bool unsupported(const struct gb_call * call, const char * fmt, ...) {
    va_list args;
    va_start(args, fmt);
    report(call, GGML_STATUS_UNSUPPORTED, fmt, args);
    va_end(args);
    return false;
}

bool gb_rule_missing(const struct gb_call * call, const char * what) {
    if (!is_built(call)) {
        gb_fail_null(call->func, what);
    }
    return false;
}

bool gb_rule_given(const struct gb_call * call) {
    for (int i = 0; i < call->n; i++) {
        if (at(call, i) == NULL) {
            return gb_rule_missing(call, role(call, i));
        }
        if (!gb_type_is_valid(at(call, i)->type)) { // a tensor that was overwritten, or made by hand
            return gb_rule_broken(call, "there is no type %d", (int) at(call, i)->type);
        }
    }
    return true;
}

bool gb_rule_equal(const struct gb_call * call, int i, int di, int j, int dj) {
    const int64_t x = at(call, i)->ne[di];
    const int64_t y = at(call, j)->ne[dj];
    if (x == y) {
        return true;
    }
    if (di == dj) {
        return gb_rule_broken(call, "{%s,%s.%d} must be equal (%lld != %lld)", role(call, i), role(call, j), di,
                              (long long) x, (long long) y);
    }
    return gb_rule_broken(call, "{%s.%d} must equal {%s.%d} (%lld != %lld)", role(call, i), di, role(call, j), dj,
                          (long long) x, (long long) y);
}

bool gb_rule_size(const struct gb_call * call, int i, int di, int64_t size) {
    const int64_t x = at(call, i)->ne[di];
    return x == size || gb_rule_broken(call, "{%s.%d} must be %lld, has %lld", role(call, i), di,
                                       (long long) size, (long long) x);
}

static bool is_multiple(int64_t x, int64_t of) {
    return x == of || (of != 0 && x % of == 0);
}

bool gb_rule_divides(const struct gb_call * call, int i, int j, int d) {
    const int64_t x = at(call, i)->ne[d];
    const int64_t y = at(call, j)->ne[d];
    return is_multiple(y, x) || gb_rule_broken(call, "{%s.%d} must be a multiple of that of {%s} (%lld, %lld)",
                                               role(call, j), d, role(call, i), (long long) y, (long long) x);
}

bool gb_rule_same_shape(const struct gb_call * call, int i, int j) {
    for (int d = 0; d < GGML_MAX_DIMS; d++) {
        if (!gb_rule_equal(call, i, d, j, d)) {
            return false;
        }
    }
    return true;
}

bool gb_rule_repeats(const struct gb_call * call, int i, int j) {
    for (int d = 0; d < GGML_MAX_DIMS; d++) {
        if (!gb_rule_divides(call, i, j, d)) {
            return false;
        }
    }
    return true;
}

static const char * type_name(enum ggml_type type) {
    const char * name = ggml_type_name(type);
    return name != NULL ? name : "no type";
}

bool gb_rule_same_type(const struct gb_call * call, int i, int j) {
    const enum ggml_type x = at(call, i)->type;
    const enum ggml_type y = at(call, j)->type;
    return is_built(call) || x == y || gb_rule_broken(call, "{%s} and {%s} must have the same type ({#%s}, {#%s})", role(call, i), role(call, j),
                                    type_name(x), type_name(y));
}

bool gb_rule_type(const struct gb_call * call, int i, enum ggml_type type) {
    const enum ggml_type x = at(call, i)->type;
    return is_built(call) || x == type || gb_rule_broken(call, "{%s} must be {#%s}, is {#%s}", role(call, i), type_name(type), type_name(x));
}

bool gb_rule_contiguous(const struct gb_call * call, int i) {
    const struct ggml_tensor * t = at(call, i);
    return is_built(call) || ggml_is_contiguous(t) ||
           gb_rule_broken(call, "{%s} must be contiguous{!, has strides [%zu, %zu, %zu, %zu] in bytes: see ggml_cont}",
                          role(call, i), t->nb[0], t->nb[1], t->nb[2], t->nb[3]);
}

bool gb_rule_not_transposed(const struct gb_call * call, int i) {
    const struct ggml_tensor * t = at(call, i);
    return is_built(call) || !ggml_is_transposed(t) || ggml_nelements(t) == 0 ||
           gb_rule_broken(call, "{%s} must not be transposed{! (strides %zu > %zu): see ggml_cont}", role(call, i), t->nb[0],
                          t->nb[1]);
}

bool gb_rule_max_dims(const struct gb_call * call, int i, int n) {
    static const char * const nouns[GGML_MAX_DIMS] = { "a scalar", "a vector", "a matrix", "of at most 3 dimensions" };
    for (int d = n; d < GGML_MAX_DIMS; d++) {
        if (at(call, i)->ne[d] != 1) {
            return gb_rule_broken(call, "{%s} must be %s, {~%s.%d} is %lld", role(call, i), nouns[n], role(call, i), d,
                                  (long long) at(call, i)->ne[d]);
        }
    }
    return true;
}

bool gb_rule_no_grad(const struct gb_call * call) {
    for (int i = 0; i < call->n && !is_built(call); i++) {
        if (at(call, i)->grad != NULL) {
            return unsupported(call, "{%s} has a gradient, and the operator has no derivative", role(call, i));
        }
    }
    return true;
}

bool gb_rule_at_least(const struct gb_call * call, const char * what, int64_t value, int64_t min) {
    return value >= min ||
           gb_rule_broken(call, "%s must be at least %lld, is %lld", what, (long long) min, (long long) value);
}

bool gb_rule_in_range(const struct gb_call * call, const char * what, int64_t value, int64_t min, int64_t max) {
    return (value >= min && value <= max) || gb_rule_broken(call, "%s must be in %lld .. %lld, is %lld", what,
                                                            (long long) min, (long long) max, (long long) value);
}
