// describe.c - writes a tensor, or a node with its sources, as text for a message. No function
// fails: texts that are too long are cut.
#include <stdio.h>

#include "tensor.h"

// A name may hold any bytes. Bytes that would end a value (GB_QUOTE) are replaced.
static void replace_quote_bytes(char * text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (text[i] == GB_QUOTE_BEGIN[0] || text[i] == GB_QUOTE_END[0]) {
            text[i] = '?';
        }
    }
}

char * gb_describe(const struct ggml_tensor * t, char buf[GB_DESCRIBE_SIZE]) {
    if (t == NULL) {
        snprintf(buf, GB_DESCRIBE_SIZE, "NULL");
        return buf;
    }
    const char * type = ggml_type_name(t->type);
    int at = snprintf(buf, GB_DESCRIBE_SIZE, GB_QUOTE_BEGIN "'%.*s' %s [", (int) sizeof(t->name) - 1, t->name,
        type ? type : "(no type)");
    replace_quote_bytes(buf + 1, (size_t) at - 1);
    const int n = gb_tensor_ndim(t);
    for (int d = 0; d < n; d++) { // at most 65 + 20 + 4 * 22 characters: fits
        at += snprintf(buf + at, GB_DESCRIBE_SIZE - (size_t) at, d == 0 ? "%lld" : ", %lld", (long long) t->ne[d]);
    }
    snprintf(buf + at, GB_DESCRIBE_SIZE - (size_t) at, "]" GB_QUOTE_END);
    return buf;
}

// Appends a text, cut at size. Returns the new length, at most size - 1.
static size_t append(char * buf, size_t size, size_t at, const char * text) {
    const int n = snprintf(buf + at, size - at, "%s", text);
    return n < 0 ? at : GB_MIN(at + (size_t) n, size - 1);
}

char * gb_describe_node(const struct ggml_tensor * node, char * buf, size_t size) {
    if (size == 0) {
        return buf;
    }
    buf[0] = '\0';
    size_t at = 0;
    char one[GB_DESCRIBE_SIZE];
    if (node != NULL) {
        at = append(buf, size, at, node->op == GGML_OP_UNARY ? ggml_op_desc(node) : gb_op_name(node->op));
        at = append(buf, size, at, " ");
    }
    at = append(buf, size, at, gb_describe(node, one));

    const char * separator = " of ";
    for (int i = 0; node != NULL && i < GGML_MAX_SRC; i++) {
        if (node->src[i] != NULL) {
            at = append(buf, size, at, separator);
            at = append(buf, size, at, gb_describe(node->src[i], one));
            separator = ", ";
        }
    }
    return buf;
}
