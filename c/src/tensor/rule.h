// rule.h - the vocabulary in which check.c states the rules of operators.
//
// A call names its operands; a rule looks at them by index, returns true when it holds, else reports the call with all
// operands and the values that break it, and returns false. Rules therefore chain with &&, and the first broken one is
// the one reported. A call without a function's name is a node that was built before (validate.c): nothing is
// reported, and only shapes and parameters matter. Its gradient may have come since, and types and strides are asked by who computes it. The first rule of every chain is gb_rule_given: all others may look into the tensors.
#ifndef GB_TENSOR_RULE_H
#define GB_TENSOR_RULE_H

#include <stdbool.h>
#include <stdint.h>

#include "ggml.h"

#define GB_RULE_MAX_OPERANDS 6

struct gb_operand {
    const char *               role; // its name in ggml.h
    const struct ggml_tensor * t;
};

struct gb_call {
    const char *      func;
    int               n;
    struct gb_operand list[GB_RULE_MAX_OPERANDS];
};

#define GB_CALL_1(func, a) \
    {                      \
        func, 1, {         \
            {              \
                #a, a      \
            }              \
        }                  \
    }
#define GB_CALL_2(func, a, b) \
    {                         \
        func, 2, {            \
            { #a, a }, {      \
                #b, b         \
            }                 \
        }                     \
    }
#define GB_CALL_3(func, a, b, c)    \
    {                               \
        func, 3, {                  \
            { #a, a }, { #b, b }, { \
                #c, c               \
            }                       \
        }                           \
    }
#define GB_CALL_4(func, a, b, c, d)            \
    {                                          \
        func, 4, {                             \
            { #a, a }, { #b, b }, { #c, c }, { \
                #d, d                          \
            }                                  \
        }                                      \
    }
#define GB_CALL_5(func, a, b, c, d, e)                    \
    {                                                     \
        func, 5, {                                        \
            { #a, a }, { #b, b }, { #c, c }, { #d, d }, { \
                #e, e                                     \
            }                                             \
        }                                                 \
    }

// Reports "func: operands: reason"; returns false. What another interface calls by other names is marked in the reason
// (gb_last_reason):
//
//   mark       what it is                                          in the message
//   {a}        an operand by its role                              a
//   {a.1}      a dimension of it; {a,b.1}: of several              dimension 1 of a; dimension 1 of a and b
//   {~a.1}     the same, where it is clear whose                   dimension 1
//   {#f32}     a type                                              f32
//   {@[2, 3]}  a shape                                             [2, 3]
//   {$s0}      a parameter                                         s0
//   {!words}   words for callers in C only                         words
GGML_ATTRIBUTE_FORMAT(2, 3) bool gb_rule_broken(const struct gb_call * call, const char * fmt, ...);

bool gb_rule_missing(const struct gb_call * call, const char * what); // reports that it is NULL; returns false
bool gb_rule_given(const struct gb_call * call);                               // no operand is NULL or of no type
bool gb_rule_equal(const struct gb_call * call, int i, int di, int j, int dj); // i.ne[di] == j.ne[dj]
bool gb_rule_size(const struct gb_call * call, int i, int di, int64_t size);   // i.ne[di] == size
bool gb_rule_divides(const struct gb_call * call, int i, int j, int d);        // j.ne[d] is a multiple of i.ne[d]
bool gb_rule_same_shape(const struct gb_call * call, int i, int j);
bool gb_rule_repeats(const struct gb_call * call, int i, int j); // i repeats over j in every dimension
bool gb_rule_same_type(const struct gb_call * call, int i, int j);
bool gb_rule_type(const struct gb_call * call, int i, enum ggml_type type);
bool gb_rule_contiguous(const struct gb_call * call, int i);
bool gb_rule_not_transposed(const struct gb_call * call, int i);
bool gb_rule_max_dims(const struct gb_call * call, int i,
                      int n);                      // ne[d] == 1 for d >= n: 0 a scalar, 1 a vector, 2 a matrix
bool gb_rule_no_grad(const struct gb_call * call); // no operand has a gradient
bool gb_rule_at_least(const struct gb_call * call, const char * what, int64_t value, int64_t min);
bool gb_rule_in_range(const struct gb_call * call, const char * what, int64_t value, int64_t min, int64_t max);

#endif // GB_TENSOR_RULE_H
