// fault.h - the values of a failure, beside its message.
//
// If a rule of an operator is broken, the failure has a row of fault.def and the values for the
// row's message. tensor/fault_text.h makes C's message from them. Another language makes its own
// message from the same row and values, with its own names of operands, axes and types. So no
// language parses the message of another one, and you can reword a row freely.
//
// Every text that a fault points to is static. So a fault can be copied, and outlives its tensors.
#ifndef GB_BASE_FAULT_H
#define GB_BASE_FAULT_H

#include <stddef.h>
#include <stdint.h>

#include "ggml.h"

enum gb_fault_kind {
    GB_FAULT_NONE, // the failure has a message only
#define GB_FAULT(kind, message, more) GB_FAULT_##kind,
#include "base/fault.def"
    GB_FAULT_COUNT
};

enum { GB_FAULT_NUMBERS = 5, GB_REASON_SIZE = 512 };

// Fields that the row's message does not use are 0 and NULL.
struct gb_fault {
    enum gb_fault_kind kind;
    const char * a; // operands, by their names in ggml.h
    const char * b;
    int a_dim; // dimensions, in C's order
    int b_dim;
    int64_t number[GB_FAULT_NUMBERS];
    double real;
    enum ggml_type t, u;
    const char * name; // a parameter, by its name in ggml.h
    enum ggml_op op; // of a refused node
};

// The name of the kind ("UNEQUAL"), and the two parts of the message of its row, "" for GB_FAULT_NONE.
const char * gb_fault_name(enum gb_fault_kind kind);
const char * gb_fault_message(enum gb_fault_kind kind);
const char * gb_fault_more(enum gb_fault_kind kind);

#endif // GB_BASE_FAULT_H
