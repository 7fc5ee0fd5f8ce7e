// test_nodes.c - nodes as a message: the reader gets the same nodes, at their addresses. Hostile
// messages are harmless.
#include "tensor/nodes.h"

#include "base/mem.h"
#include "test.h"

#define OK(call) CHECK_MSG((call) == GGML_STATUS_SUCCESS, "%s: %s", #call, ggml_last_error())

enum { MEMORY = 4096, WEIGHTS_AT = 1, REST_AT = 1ull << 20 };

// A product with a bias, softmax of a part of it, and a copy whose second source is itself. Leafs
// are in two memories.
static struct {
    struct ggml_context * ctx;
    struct ggml_tensor *w, *x, *bias, *sum, *part, *soft, *half;
    struct ggml_tensor * nodes[8];
    int n;
    _Alignas(64) char weights[MEMORY], rest[MEMORY];
    gb_nodes_bytes bytes;
} g;

static enum ggml_status find(void * context, const struct ggml_tensor * t, struct gb_nodes_place * place) {
    const char * data = t->data;
    CHECK(context == &g);
    place->may_leave_out = t == g.sum;
    place->weights = data >= g.weights && data < g.weights + MEMORY;
    if (data == NULL || t->view_src != NULL) {
        return GGML_STATUS_SUCCESS;
    }
    GB_FAIL_IF(data == (const char *) 64, GGML_STATUS_INVALID_ARGUMENT, "nowhere");
    place->memory = place->weights ? WEIGHTS_AT : REST_AT;
    place->offset = (uint64_t) (data - (place->weights ? g.weights : g.rest));
    return GGML_STATUS_SUCCESS;
}

static void add(struct ggml_tensor * t, const char * name) {
    ggml_set_name(t, name);
    g.nodes[g.n++] = t;
}

static void build(void) {
    memset(&g, 0, sizeof(g));
    g.ctx = ggml_init((struct ggml_init_params){ 1 << 16, NULL, true });
    g.w = ggml_set_name(ggml_new_tensor_2d(g.ctx, GGML_TYPE_Q8_0, 32, 3), "w");
    g.x = ggml_set_name(ggml_new_tensor_2d(g.ctx, GGML_TYPE_F32, 32, 2), "x");
    g.bias = ggml_new_tensor_1d(g.ctx, GGML_TYPE_F32, 3);
    g.w->data = g.weights + 64;
    g.x->data = g.rest;
    g.bias->data = g.rest + 1024;
    struct ggml_tensor * product = ggml_mul_mat(g.ctx, g.w, g.x);
    add(product, "product");
    add(g.sum = ggml_add(g.ctx, product, g.bias), "sum");
    add(g.part = ggml_view_2d(g.ctx, g.sum, 3, 1, g.sum->nb[1], g.sum->nb[1]), "part");
    add(g.soft = ggml_soft_max(g.ctx, g.part), "a name of 63 bytes, which has no place for anything behind it..");
    add(g.half = ggml_cast(g.ctx, g.soft, GGML_TYPE_F16), "half");
    product->data = g.rest + 2048;
    g.sum->data = g.rest + 2112;
    g.part->data = (char *) g.sum->data + g.sum->nb[1];
    g.soft->data = g.rest + 2176;
    g.half->data = g.rest + 2240;
}

static void close(void) {
    gb_vec_free(&g.bytes);
    ggml_free(g.ctx);
}

static void bind(struct gb_nodes * nodes) {
    for (int i = 0; i < nodes->n_memories; i++) {
        struct gb_nodes_memory * m = &nodes->memories[i];
        CHECK(m->number == (m->weights ? WEIGHTS_AT : REST_AT));
        m->base = m->weights ? g.weights : g.rest;
        m->size = MEMORY;
    }
    OK(gb_nodes_bind(nodes));
}

static void check_same(const struct ggml_tensor * a, const struct ggml_tensor * b, bool named) {
    CHECK_INT(a->type, b->type);
    CHECK(memcmp(a->ne, b->ne, sizeof(a->ne)) == 0 && memcmp(a->nb, b->nb, sizeof(a->nb)) == 0);
    CHECK_STR(a->name, named ? b->name : "");
    CHECK(a->data == (named ? b->data : NULL) && a->view_offs == b->view_offs);
}

static void the_reader_gets_the_same_nodes(void) {
    for (int named = 0; named < 2; named++) {
        build();
        if (!named) { // a query about nodes, which have no memory yet
            for (int i = 0; i < g.n; i++) {
                g.nodes[i]->data = NULL;
            }
            g.w->data = g.x->data = g.bias->data = NULL;
        }
        OK(gb_nodes_write(g.nodes, g.n, named != 0, find, &g, &g.bytes));
        struct gb_nodes * nodes = gb_nodes_read(g.bytes.data, g.bytes.n);
        REQUIRE(nodes != NULL);
        CHECK_INT(nodes->n_memories, named ? 2 : 0);
        bind(nodes);
        CHECK_INT(nodes->graph.n_nodes, g.n);
        CHECK_INT(nodes->n_tensors, g.n + 3);
        for (int i = 0; i < g.n; i++) {
            const struct ggml_tensor *a = nodes->graph.nodes[i], *b = g.nodes[i];
            check_same(a, b, named != 0);
            CHECK_INT(a->op, b->op);
            CHECK(memcmp(a->op_params, b->op_params, sizeof(a->op_params)) == 0);
            CHECK((a->view_src != NULL) == (b->view_src != NULL));
            CHECK(gb_tensor_is_surely_read_once(a) == (b == g.sum));
            for (int k = 0; k < GGML_MAX_SRC; k++) {
                CHECK((a->src[k] == NULL) == (b->src[k] == NULL));
                CHECK(b->src[k] != b || a->src[k] == a); // the cast is its own second source
                if (a->src[k] != NULL && named) {
                    check_same(a->src[k], b->src[k], true);
                }
            }
        }
        gb_nodes_free(nodes);
        close();
    }
}

// A node that the message only reads is a leaf. Another message may have computed it.
static void other_tensors_are_leafs(void) {
    build();
    OK(gb_nodes_write(&g.soft, 1, true, find, &g, &g.bytes));
    struct gb_nodes * nodes = gb_nodes_read(g.bytes.data, g.bytes.n);
    REQUIRE(nodes != NULL);
    bind(nodes);
    const struct ggml_tensor * part = nodes->graph.nodes[0]->src[0];
    CHECK(part->op == GGML_OP_NONE && part->src[0] == NULL && part->view_src->op == GGML_OP_NONE);
    CHECK(part->data == g.part->data && nodes->n_tensors == 3);
    gb_nodes_free(nodes);
    g.x->data = (void *) 64; // the caller says that this tensor has no memory
    g.bytes.n = 0;
    CHECK_INT(gb_nodes_write(g.nodes, g.n, true, find, &g, &g.bytes), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "nowhere");
    close();
}

static void memories_are_checked(void) {
    build();
    OK(gb_nodes_write(g.nodes, g.n, true, find, &g, &g.bytes));
    struct gb_nodes * nodes = gb_nodes_read(g.bytes.data, g.bytes.n);
    REQUIRE(nodes != NULL);
    bind(nodes);
    nodes->memories[0].size = 64 + 3 * 34 - 1;
    CHECK_INT(gb_nodes_bind(nodes), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "tensor 0 lies outside of a memory of 165 bytes");
    nodes->memories[0].size = MEMORY;
    nodes->offsets[1] = 2;
    CHECK_INT(gb_nodes_bind(nodes), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "tensor 1 begins between two elements");
    nodes->offsets[1] = UINT64_MAX - 3;
    CHECK_INT(gb_nodes_bind(nodes), GGML_STATUS_INVALID_ARGUMENT);
    gb_nodes_free(nodes);
    close();
}

// Tries every length, and changes every byte: the message is refused, or its graph can be read.
static void damaged_messages(void) {
    build();
    OK(gb_nodes_write(g.nodes, g.n, true, find, &g, &g.bytes));
    gb_hold_log(true);
    for (size_t n = 0; n < g.bytes.n; n++) {
        uint8_t * copy = malloc(n + 1); // an exact size, so that sanitizers find accesses beyond it
        memcpy(copy, g.bytes.data, n);
        CHECK(gb_nodes_read(copy, n) == NULL);
        free(copy);
    }
    static const uint8_t changes[] = { 0x01, 0x80, 0xff, 0x40 };
    int n_read = 0;
    for (size_t i = 0; i < g.bytes.n * GB_ARRAY_LEN(changes); i++) {
        uint8_t * at = &g.bytes.data[i / GB_ARRAY_LEN(changes)];
        *at ^= changes[i % GB_ARRAY_LEN(changes)];
        struct gb_nodes * nodes = gb_nodes_read(g.bytes.data, g.bytes.n);
        for (int k = 0; nodes != NULL && k < nodes->n_memories; k++) {
            nodes->memories[k].base = g.rest;
            nodes->memories[k].size = MEMORY;
        }
        if (nodes != NULL && gb_nodes_bind(nodes) == GGML_STATUS_SUCCESS) {
            n_read++;
            for (int k = 0; k < nodes->n_tensors; k++) {
                const struct ggml_tensor * t = &nodes->tensors[k];
                const char * d = t->data;
                CHECK(d == NULL || (d >= g.rest && d + ggml_nbytes(t) <= g.rest + MEMORY));
                (void) gb_node_mismatch(t);
            }
        }
        gb_nodes_free(nodes);
        *at ^= changes[i % GB_ARRAY_LEN(changes)];
    }
    gb_hold_log(false);
    CHECK(n_read > 0 && (size_t) n_read < g.bytes.n * GB_ARRAY_LEN(changes));
    close();
}

static void out_of_memory(void) {
    build();
    const int64_t live = gb_test_live_allocs();
    bool done = false;
    for (int n = 1; !done; n++) {
        gb_test_fail_alloc(n, false);
        struct gb_nodes * nodes = NULL;
        if (gb_nodes_write(g.nodes, g.n, true, find, &g, &g.bytes) == GGML_STATUS_SUCCESS) {
            nodes = gb_nodes_read(g.bytes.data, g.bytes.n);
        }
        done = nodes != NULL;
        CHECK(done || ggml_last_status() == GGML_STATUS_ALLOC_FAILED);
        gb_test_fail_alloc(0, false);
        gb_nodes_free(nodes);
        gb_vec_free(&g.bytes);
        CHECK_INT(gb_test_live_allocs(), live);
        REQUIRE(n < 100);
    }
    close();
}

TEST_MAIN(TEST(the_reader_gets_the_same_nodes), TEST(other_tensors_are_leafs), TEST(memories_are_checked),
    TEST(damaged_messages), TEST(out_of_memory))
