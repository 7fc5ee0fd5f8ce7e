// builders.h - the calls of builders.def as a table.
#ifndef TESTS_BUILDERS_H
#define TESTS_BUILDERS_H

#include <stdbool.h>

#include "custom.h"
#include "ggml.h"

#if defined(__GNUC__)
#    pragma GCC diagnostic ignored "-Wdeprecated-declarations" // also builds the older custom operators
#endif

#define MAX_IN 7
#define BUILDER(name, call, ...)                                                                  \
    static struct ggml_tensor * make_##name(struct ggml_context * ctx, struct ggml_tensor ** x) { \
        (void) x;                                                                                 \
        return call;                                                                              \
    }
#include "builders.def"
#undef BUILDER

enum kind { FRESH, OVER, OTHER };
enum gradient { HANDS, NEVER, REFUSED };

struct input {
    bool used;
    enum ggml_type type;
    int64_t ne[4];
};

struct builder {
    const char * name;
    struct ggml_tensor * (*make)(struct ggml_context * ctx, struct ggml_tensor ** x);
    enum ggml_op op;
    enum ggml_type type;
    int64_t ne[4];
    enum kind kind;
    enum gradient gradient;
    struct input in[MAX_IN];
};

#define NE(n0, n1, n2, n3) { n0, n1, n2, n3 }
#define IN(type, n0, n1, n2, n3)                   \
    {                                              \
        true, GGML_TYPE_##type, { n0, n1, n2, n3 } \
    }
#define BUILDER(name, call, op, type, ne, kind, gradient, ...) \
    { #name, make_##name, GGML_OP_##op, GGML_TYPE_##type, NE ne, kind, gradient, { __VA_ARGS__ } },
static const struct builder builders[] = {
#include "builders.def"
};
#undef BUILDER

#define N_BUILDERS ((int) (sizeof(builders) / sizeof(builders[0])))

#endif // TESTS_BUILDERS_H
