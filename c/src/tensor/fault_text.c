// fault_text.c - writes the message for a row of base/fault.def with its values, for callers in C.
// No function here fails: a message that is too long is cut.
#include "tensor/fault_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

// Never NULL, because an operand may have no type.
static const char * type_name(enum ggml_type type) {
    const char * name = ggml_type_name(type);
    return name != NULL ? name : "no type";
}

// "a", "dimension 0 of a", "dimension 0 of a and b" or "dimension 0".
static int write_operand(const struct gb_fault * f, const char * field, char * out, size_t size) {
    const char * first = field[0] == 'b' ? f->b : f->a;
    const char * end = strchr(field, '}');
    if (end[-1] != '.') {
        return snprintf(out, size, "%s", first);
    }
    const int dim = field[0] == 'b' ? f->b_dim : f->a_dim;
    if (field[0] == '.') {
        return snprintf(out, size, "dimension %d", dim);
    }
    return field[1] == 'b' ? snprintf(out, size, "dimension %d of %s and %s", dim, first, f->b)
                           : snprintf(out, size, "dimension %d of %s", dim, first);
}

// `field` follows the opening brace. Returns the length as snprintf does.
static int write_field(const struct gb_fault * f, const char * field, char * out, size_t size) {
    static const char numbers[] = "xyzwv";
    const char * number = strchr(numbers, field[0]);
    if (number != NULL) {
        return snprintf(out, size, "%" PRId64, f->number[number - numbers]);
    }
    switch (field[0]) {
        case 's':
            return snprintf(out, size, "[%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 "]", f->number[1],
                f->number[2], f->number[3], f->number[4]);
        case 'r': return snprintf(out, size, "%g", f->real);
        case 't': return snprintf(out, size, "%s", type_name(f->t));
        case 'u': return snprintf(out, size, "%s", type_name(f->u));
        case 'n': return snprintf(out, size, "%s", f->name);
        case '#': return snprintf(out, size, "%.*s", (int) strcspn(field + 1, "}"), field + 1);
        default: return write_operand(f, field, out, size);
    }
}

// Appends a text with fields at `used`; returns the new length, less than size.
static size_t append(const struct gb_fault * f, const char * text, char * out, size_t used, size_t size) {
    while (*text != '\0' && used + 1 < size) {
        if (*text != '{') {
            out[used++] = *text++;
            continue;
        }
        const int n = write_field(f, text + 1, out + used, size - used);
        used = n >= 0 && (size_t) n < size - used ? used + (size_t) n : size - 1;
        text = strchr(text, '}') + 1;
    }
    out[used] = '\0';
    return used;
}

const char * gb_fault_write(const struct gb_fault * f, char * out, size_t size) {
    append(f, gb_fault_more(f->kind), out, append(f, gb_fault_message(f->kind), out, 0, size), size);
    return out;
}
