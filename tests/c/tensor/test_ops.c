// test_ops.c - properties of every builder: the result of a valid call, NULL arguments, gradients,
// failed allocations. builders.def has the calls.
#include "base/mem.h"
#include "builders.h"
#include "tensor/tensor.h"
#include "test.h"

static struct ggml_context * new_ctx(void) {
    const struct ggml_init_params params = { 0, NULL, true };
    return ggml_init(params);
}

static int new_inputs(struct ggml_context * ctx, const struct builder * b, struct ggml_tensor * x[MAX_IN]) {
    int n = 0;
    for (; n < MAX_IN && b->in[n].used; n++) {
        x[n] = ggml_format_name(ggml_new_tensor(ctx, b->in[n].type, 4, b->in[n].ne), "in%d", n);
    }
    return n;
}

static bool same_ne(const struct ggml_tensor * t, const int64_t ne[4]) { return memcmp(t->ne, ne, sizeof(t->ne)) == 0; }

// Strides of a dense tensor, from its sizes only. No result here is quantized.
static bool dense(const struct ggml_tensor * t, size_t element) {
    return t->nb[0] == element && t->nb[1] == t->nb[0] * (size_t) t->ne[0] &&
           t->nb[2] == t->nb[1] * (size_t) t->ne[1] && t->nb[3] == t->nb[2] * (size_t) t->ne[2];
}

static size_t element_of(enum ggml_type type) { return type == GGML_TYPE_F16 ? 2 : 4; }

// Checks the number of dimensions of each node, including hidden ones.
static void check_dimensions(const struct builder * b, struct ggml_context * ctx) {
    for (struct ggml_tensor * t = ggml_get_first_tensor(ctx); t != NULL; t = ggml_get_next_tensor(ctx, t)) {
        CHECK_MSG(gb_tensor_knows_ndim(t), "%s: %s", b->name, gb_op_name(t->op));
        for (int d = gb_tensor_ndim(t); d < GGML_MAX_DIMS; d++) {
            CHECK_MSG(t->ne[d] == 1, "%s: %s has more than %d dimensions", b->name, gb_op_name(t->op), d);
        }
    }
}

static void check_result(const struct builder * b, struct ggml_tensor ** x, int n, const struct ggml_tensor * r) {
    CHECK_MSG(r->op == b->op, "%s: op %s", b->name, ggml_op_name(r->op));
    CHECK_MSG(r->type == b->type, "%s: type %d", b->name, (int) r->type);
    CHECK_MSG(same_ne(r, b->ne), "%s: ne [%lld, %lld, %lld, %lld]", b->name, (long long) r->ne[0], (long long) r->ne[1],
        (long long) r->ne[2], (long long) r->ne[3]);
    CHECK_MSG(r->grad == NULL && r->buffer == NULL && r->data == NULL && !r->is_param, "%s: a clean node", b->name);
    if (b->kind == OTHER) {
        return;
    }
    const bool uses_all = r->op != GGML_OP_REPEAT && r->op != GGML_OP_REPEAT_BACK;
    for (int i = 0; i < GGML_MAX_SRC; i++) {
        const struct ggml_tensor * expected = i < (uses_all ? n : 1) ? x[i] : NULL;
        CHECK_MSG(r->src[i] == expected, "%s: src[%d]", b->name, i);
    }
    if (b->kind == FRESH) {
        CHECK_MSG(r->view_src == NULL && r->view_offs == 0 && dense(r, element_of(b->type)) && r->name[0] == '\0',
            "%s: fresh", b->name);
    } else {
        CHECK_MSG(r->view_src == x[0] && r->view_offs == 0 && memcmp(r->nb, x[0]->nb, sizeof(r->nb)) == 0,
            "%s: in place", b->name);
        CHECK_MSG(strcmp(r->name, "in0 (view)") == 0, "%s: named %s", b->name, r->name);
    }
}

static void right_calls(void) {
    for (int i = 0; i < N_BUILDERS; i++) {
        struct ggml_context * ctx = new_ctx();
        struct ggml_tensor * x[MAX_IN];
        const int n = new_inputs(ctx, &builders[i], x);
        struct ggml_tensor * r = builders[i].make(ctx, x);
        CHECK_MSG(r != NULL, "%s: %s", builders[i].name, ggml_last_error());
        if (r != NULL) {
            check_result(&builders[i], x, n, r);
            check_dimensions(&builders[i], ctx);
        }
        ggml_free(ctx);
    }
    CHECK_INT(ggml_last_status(), GGML_STATUS_SUCCESS);
}

// In place on a view: view_src is the root of the view, with the view's offset and strides.
static void over_a_view(void) {
    for (int i = 0; i < N_BUILDERS; i++) {
        if (builders[i].kind != OVER || builders[i].in[0].ne[3] != 5) {
            continue;
        }
        struct ggml_context * ctx = new_ctx();
        struct ggml_tensor * x[MAX_IN];
        new_inputs(ctx, &builders[i], x);
        const int64_t * ne = builders[i].in[0].ne;
        struct ggml_tensor * large = ggml_new_tensor_4d(ctx, builders[i].type, ne[0], ne[1], ne[2], ne[3] + 1);
        x[0] = ggml_view_4d(ctx, large, ne[0], ne[1], ne[2], ne[3], large->nb[1], large->nb[2], large->nb[3],
            large->nb[3]);
        struct ggml_tensor * r = builders[i].make(ctx, x);
        CHECK_MSG(r != NULL && r->view_src == large && r->view_offs == large->nb[3], "%s over a view",
            builders[i].name);
        ggml_free(ctx);
    }
}

static void check_null(const struct builder * b, struct ggml_context * ctx, struct ggml_tensor ** x,
    const char * what) {
    char func[64];
    snprintf(func, sizeof(func), "ggml_%s", b->name);
    char * suffix = strstr(func, "_1d");
    if (strcmp(b->name, "im2col_1d") == 0) {
        *suffix = '\0';
    }
    if (strcmp(b->name, "soft_max_of_heads") == 0) {
        snprintf(func, sizeof(func), "ggml_soft_max_bias");
    }
    if (strcmp(b->name, "leaky_relu_inplace") == 0) {
        func[strlen("ggml_leaky_relu")] = '\0';
    }
    ggml_clear_error();
    CHECK_MSG(b->make(ctx, x) == NULL, "%s: %s NULL gives a node", func, what);
    CHECK_MSG(ggml_last_status() == GGML_STATUS_INVALID_ARGUMENT &&
                  strncmp(ggml_last_error(), func, strlen(func)) == 0 && strstr(ggml_last_error(), "NULL") != NULL,
        "%s: %s NULL: %s", func, what, ggml_last_error());
    ggml_new_tensor_1d(NULL, GGML_TYPE_F32, 1); // an earlier failure, whose message must remain
    char first[512];
    snprintf(first, sizeof(first), "%s", ggml_last_error());
    CHECK_MSG(b->make(ctx, x) == NULL, "%s: %s NULL gives a node", func, what);
    CHECK_MSG(strcmp(first, ggml_last_error()) == 0, "%s: %s NULL hides \"%s\"", func, what, first);
    ggml_clear_error();
}

static void null_arguments(void) {
    for (int i = 0; i < N_BUILDERS; i++) {
        struct ggml_context * ctx = new_ctx();
        struct ggml_tensor * x[MAX_IN];
        const int n = new_inputs(ctx, &builders[i], x);
        for (int j = 0; j < n; j++) {
            struct ggml_tensor * kept = x[j];
            x[j] = NULL;
            check_null(&builders[i], ctx, x, kept->name);
            x[j] = kept;
        }
        check_null(&builders[i], NULL, x, "ctx");
        ggml_free(ctx);
    }
}

static void gradients(void) {
    for (int i = 0; i < N_BUILDERS; i++) {
        const struct builder * b = &builders[i];
        struct ggml_context * ctx = new_ctx();
        struct ggml_tensor * x[MAX_IN];
        new_inputs(ctx, b, x);
        x[0]->grad = ggml_dup_tensor(ctx, x[0]);
        const struct ggml_tensor * r = b->make(ctx, x);
        if (b->gradient == REFUSED) {
            CHECK_MSG(r == NULL && ggml_last_status() == GGML_STATUS_UNSUPPORTED && strstr(ggml_last_error(), "'in0'"),
                "%s: %s", b->name, ggml_last_error());
            ggml_clear_error();
        } else if (b->gradient == NEVER) {
            CHECK_MSG(r != NULL && r->grad == NULL, "%s: has a gradient", b->name);
        } else {
            CHECK_MSG(r != NULL && r->grad != NULL && r->grad != x[0]->grad && same_ne(r->grad, r->ne) &&
                          r->grad->type == r->type && r->grad->view_src == NULL && r->grad->op == GGML_OP_NONE,
                "%s: hands no gradient on", b->name);
        }
        ggml_free(ctx);
    }
}

// Contexts in the caller's memory for 0, 1, 2, ... tensors, until the call succeeds. With
// gradients, which also need memory.
static void full_contexts(void) {
    static _Alignas(16) char memory[64 * 1024];
    for (int i = 0; i < N_BUILDERS; i++) {
        const struct builder * b = &builders[i];
        struct ggml_context * inputs = new_ctx();
        struct ggml_tensor * x[MAX_IN];
        new_inputs(inputs, b, x);
        if (b->gradient != REFUSED) {
            x[0]->grad = ggml_dup_tensor(inputs, x[0]);
        }
        bool done = false;
        for (size_t room = 0; room < 20 && !done; room++) {
            const struct ggml_init_params params = { room * ggml_tensor_overhead(), memory, true };
            struct ggml_context * ctx = ggml_init(params);
            ggml_clear_error();
            done = b->make(ctx, x) != NULL;
            CHECK_MSG(done == (ggml_last_status() == GGML_STATUS_SUCCESS), "%s: %s", b->name, ggml_last_error());
            CHECK_MSG(done || ggml_last_status() == GGML_STATUS_ALLOC_FAILED, "%s: %s", b->name, ggml_last_error());
            CHECK_MSG(!done || room > 0, "%s: needs no memory", b->name);
            CHECK_MSG(done || (ggml_used_mem(ctx) == 0 && ggml_get_first_tensor(ctx) == NULL),
                "%s: leaves something behind", b->name);
            CHECK_MSG(done || room == 0 || ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 1) != NULL,
                "%s: takes memory with it", b->name);
            ggml_free(ctx);
        }
        CHECK_MSG(done, "%s: never fits", b->name);
        ggml_free(inputs);
    }
    ggml_clear_error();
}

static void no_memory(void) {
    for (int i = 0; i < N_BUILDERS; i++) {
        const struct builder * b = &builders[i];
        struct ggml_context * inputs = new_ctx();
        struct ggml_tensor * x[MAX_IN];
        new_inputs(inputs, b, x);
        const int64_t live = gb_test_live_allocs();
        bool done = false;
        for (int n = 1; n < 20 && !done; n++) {
            struct ggml_context * ctx = new_ctx();
            ggml_clear_error();
            gb_test_fail_alloc(n, false);
            const bool made = b->make(ctx, x) != NULL;
            const bool failed = gb_test_alloc_failed();
            gb_test_fail_alloc(0, false);
            CHECK_MSG(made != failed, "%s: allocation %d fails, a node comes", b->name, n);
            CHECK_MSG(made || ggml_last_status() == GGML_STATUS_ALLOC_FAILED, "%s: %s", b->name, ggml_last_error());
            CHECK_MSG(made || (ggml_used_mem(ctx) == 0 && ggml_get_first_tensor(ctx) == NULL),
                "%s: leaves something behind", b->name);
            CHECK_MSG(n > 1 || failed, "%s: allocates nothing", b->name);
            done = made;
            ggml_free(ctx);
        }
        CHECK_INT(gb_test_live_allocs(), live);
        ggml_free(inputs);
    }
    ggml_clear_error();
}

TEST_MAIN(TEST(right_calls), TEST(over_a_view), TEST(null_arguments), TEST(gradients), TEST(full_contexts),
    TEST(no_memory))
