// custom.c - operators that call a function of the user: MAP_UNARY, MAP_BINARY (by rows),
// MAP_CUSTOMn_F32 (one call), MAP_CUSTOMn and CUSTOM (one call per thread, concurrently).
//
// The functions are in op_params, which is not aligned for pointers, so they are read with memcpy.
// A failure inside a user's function does not fail the node.
#include <limits.h>

#include "base/status.h"
#include "cpu/ops/elements.h"

// Discards failures inside the user's function, so that they do not become failures of the run.
#define CALL_USER(call)                           \
    do {                                          \
        const uint64_t before_ = gb_fail_count(); \
        call;                                     \
        gb_forget_failures_since(before_);        \
    } while (0)

// The user's function need not be thread-safe.
static int one_task(const struct ggml_tensor * node, int n_threads) {
    (void) node;
    (void) n_threads;
    return 1;
}

// The plan checks this, so run() calls the function without a check.
static const char * function_unsupported(const struct ggml_tensor * node) {
    void * fun;
    memcpy(&fun, node->op_params, sizeof(fun));
    return fun == NULL ? "the function is NULL" : NULL;
}

// ----------------------------------------------------------------------------------------------- MAP_UNARY, MAP_BINARY

enum { USER_WORK = GB_CPU_PACE / 8 }; // assumed cost of a row

// The user's function takes rows as plain arrays of f32, with an int for the length.
static const char * rows_unsupported(const struct ggml_tensor * node, int n_src) {
    const char * why = function_unsupported(node);
    why = why != NULL ? why : gb_need_f32(node, n_src);
    if (why != NULL) {
        return why;
    }
    for (int i = -1; i < n_src; i++) {
        if (!gb_rows_contiguous(i < 0 ? node : node->src[i])) {
            return "rows must be contiguous";
        }
    }
    return node->ne[0] > INT_MAX ? "rows are too long for an int" : NULL;
}

static const char * map_unary_unsupported(const struct ggml_tensor * node) { return rows_unsupported(node, 1); }

// fun(n, y, x) for each row, in order, by the first thread.
static void run_map_unary(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    ggml_unary_op_f32_t fun;
    memcpy(&fun, node->op_params, sizeof(fun));
    for (int64_t i = 0; i < gb_rows(node) && call->ith == 0; i++) {
        const struct gb_row r = gb_row_at(node, i);
        CALL_USER(fun((int) node->ne[0], (float *) (void *) gb_row_of(node, r),
            (const float *) (void *) gb_row_of(node->src[0], r)));
        if (gb_cpu_stopped(call, USER_WORK)) {
            return;
        }
    }
}

static const char * map_binary_unsupported(const struct ggml_tensor * node) { return rows_unsupported(node, 2); }

// fun(n, z, x, y) for each row, in order, by the first thread.
static void run_map_binary(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    ggml_binary_op_f32_t fun;
    memcpy(&fun, node->op_params, sizeof(fun));
    for (int64_t i = 0; i < gb_rows(node) && call->ith == 0; i++) {
        const struct gb_row r = gb_row_at(node, i);
        CALL_USER(fun((int) node->ne[0], (float *) (void *) gb_row_of(node, r),
            (const float *) (void *) gb_row_of(node->src[0], r), (const float *) (void *) gb_row_of(node->src[1], r)));
        if (gb_cpu_stopped(call, USER_WORK)) {
            return;
        }
    }
}

const struct gb_cpu_op gb_cpu_op_map_unary = {
    .unsupported = map_unary_unsupported, .n_tasks = one_task, .run = run_map_unary
};
const struct gb_cpu_op gb_cpu_op_map_binary = {
    .unsupported = map_binary_unsupported, .n_tasks = one_task, .run = run_map_binary
};

// ------------------------------------------------------------------------------------------------------- whole tensors

struct custom { // the layout of op_params for MAP_CUSTOMn and CUSTOM; the _F32 forms have only `fun`
    void (*fun)(void);
    int n_tasks; // GGML_N_TASKS_MAX: all threads
    void * userdata;
};

// For the _F32 forms the members after `fun` have no meaning.
static struct custom custom_of(const struct ggml_tensor * node) {
    struct custom c;
    memcpy(&c, node->op_params, sizeof(c));
    return c;
}

// GGML_N_TASKS_MAX is negative and means all threads.
static int custom_tasks(const struct ggml_tensor * node, int n_threads) {
    const struct custom c = custom_of(node);
    return c.n_tasks < 1 ? n_threads : GB_MIN(c.n_tasks, n_threads);
}

// The _F32 forms: one call, without ith, nth and user data.
static void run_map_custom1_f32(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    if (call->ith == 0) {
        CALL_USER(((ggml_custom1_op_f32_t) custom_of(node).fun)(node, node->src[0]));
    }
}

static void run_map_custom2_f32(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    if (call->ith == 0) {
        CALL_USER(((ggml_custom2_op_f32_t) custom_of(node).fun)(node, node->src[0], node->src[1]));
    }
}

static void run_map_custom3_f32(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    if (call->ith == 0) {
        CALL_USER(((ggml_custom3_op_f32_t) custom_of(node).fun)(node, node->src[0], node->src[1], node->src[2]));
    }
}

// Every thread calls the function, which divides the work by ith and nth.
static void run_map_custom1(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const struct custom c = custom_of(node);
    CALL_USER(((ggml_custom1_op_t) c.fun)(node, node->src[0], call->ith, call->nth, c.userdata));
}

static void run_map_custom2(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const struct custom c = custom_of(node);
    CALL_USER(((ggml_custom2_op_t) c.fun)(node, node->src[0], node->src[1], call->ith, call->nth, c.userdata));
}

static void run_map_custom3(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const struct custom c = custom_of(node);
    CALL_USER(((ggml_custom3_op_t) c.fun)(node, node->src[0], node->src[1], node->src[2], call->ith, call->nth,
        c.userdata));
}

static void run_custom(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const struct custom c = custom_of(node);
    CALL_USER(((ggml_custom_op_t) c.fun)(node, call->ith, call->nth, c.userdata));
}

const struct gb_cpu_op gb_cpu_op_map_custom1_f32 = {
    .unsupported = function_unsupported, .n_tasks = one_task, .run = run_map_custom1_f32
};
const struct gb_cpu_op gb_cpu_op_map_custom2_f32 = {
    .unsupported = function_unsupported, .n_tasks = one_task, .run = run_map_custom2_f32
};
const struct gb_cpu_op gb_cpu_op_map_custom3_f32 = {
    .unsupported = function_unsupported, .n_tasks = one_task, .run = run_map_custom3_f32
};
const struct gb_cpu_op gb_cpu_op_map_custom1 = {
    .unsupported = function_unsupported, .n_tasks = custom_tasks, .run = run_map_custom1
};
const struct gb_cpu_op gb_cpu_op_map_custom2 = {
    .unsupported = function_unsupported, .n_tasks = custom_tasks, .run = run_map_custom2
};
const struct gb_cpu_op gb_cpu_op_map_custom3 = {
    .unsupported = function_unsupported, .n_tasks = custom_tasks, .run = run_map_custom3
};
const struct gb_cpu_op gb_cpu_op_custom = {
    .unsupported = function_unsupported, .n_tasks = custom_tasks, .run = run_custom
};
