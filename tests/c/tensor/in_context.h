// in_context.h - tests that each get a new context in the file's variable `ctx`.
#ifndef GB_TESTS_IN_CONTEXT_H
#define GB_TESTS_IN_CONTEXT_H

#include "test.h"

// Defines the test that RUN names: makes the context (without memory for data on request), calls
// name(), frees it.
#define IN_CONTEXT(name, no_alloc)                                    \
    static void in_context_##name(void) {                             \
        const struct ggml_init_params params = { 0, NULL, no_alloc }; \
        ctx = ggml_init(params);                                      \
        REQUIRE(ctx != NULL);                                         \
        name();                                                       \
        ggml_free(ctx);                                               \
    }
#define RUN(name) { #name, in_context_##name }

#endif // GB_TESTS_IN_CONTEXT_H
