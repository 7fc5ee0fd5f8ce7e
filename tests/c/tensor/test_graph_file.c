// Graph files: an exported graph is imported and computes the same. Damaged files of all kinds are
// refused without leaks.
#define _POSIX_C_SOURCE 200809L // mkstemp, dup2

#include "base/mem.h"
#include "builders.h"
#include "ggml-backend.h"
#include "tensor/tensor.h"
#include "test_damage.h"

static struct ggml_tensor * random_leaf(struct ggml_context * ctx, enum ggml_type type, int64_t ne0, int64_t ne1) {
    struct ggml_tensor * t = ggml_new_tensor_2d(ctx, type, ne0, ne1);
    for (int i = 0; t != NULL && i < ne0 * ne1; i++) {
        ggml_set_f32_1d(t, i, test_random_float(-1, 1));
    }
    return t;
}

// The first leaf has an odd size, so later data in the file are unaligned. Also views, a cast to
// itself, an in-place form.
static struct ggml_cgraph * sample(struct ggml_context * ctx) {
    struct ggml_tensor * odd = ggml_set_name(ggml_new_tensor_1d(ctx, GGML_TYPE_I8, 3), "odd");
    struct ggml_tensor * a = ggml_set_name(random_leaf(ctx, GGML_TYPE_F32, 6, 4), "a");
    struct ggml_tensor * h = random_leaf(ctx, GGML_TYPE_F16, 6, 5);
    if (odd == NULL || a == NULL || h == NULL) {
        return NULL;
    }
    ggml_set_i32(odd, 7);
    struct ggml_tensor * v = ggml_view_2d(ctx, a, 6, 3, a->nb[1], a->nb[1]);
    struct ggml_tensor * m = ggml_mul_mat(ctx, h, v); // [5, 3]
    struct ggml_tensor * p = ggml_cont(ctx, ggml_transpose(ctx, m)); // [3, 5]
    struct ggml_tensor * r = ggml_reshape_1d(ctx, ggml_scale_inplace(ctx, p, 0.5f), 15);
    struct ggml_tensor * c = ggml_cast(ctx, ggml_cast(ctx, r, GGML_TYPE_F16), GGML_TYPE_F32);
    struct ggml_tensor * y =
        ggml_set_name(ggml_add(ctx, c, ggml_reshape_1d(ctx, ggml_permute(ctx, ggml_cont(ctx, m), 0, 1, 3, 2), 15)),
            "result");
    struct ggml_cgraph * g = y ? ggml_new_graph_custom(ctx, 32, false) : NULL;
    if (g == NULL || ggml_build_forward_expand(g, odd) != GGML_STATUS_SUCCESS ||
        ggml_build_forward_expand(g, y) != GGML_STATUS_SUCCESS) {
        return NULL;
    }
    return g;
}

static int index_of(struct ggml_tensor * const * list, int n, const struct ggml_tensor * t) {
    for (int i = 0; i < n; i++) {
        if (list[i] == t) {
            return i;
        }
    }
    return -1;
}

static void compare_tensors(const struct ggml_tensor * a, const struct ggml_tensor * b) {
    CHECK(a->type == b->type && a->op == b->op && gb_are_same_layout(a, b));
    CHECK_STR(b->name, a->name);
    CHECK(memcmp(a->op_params, b->op_params, sizeof(a->op_params)) == 0);
}

static void round_trip(void) {
    new_path();
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 0, NULL, false });
    struct ggml_cgraph * g = sample(ctx);
    REQUIRE(g != NULL);
    CHECK_INT(ggml_graph_export(g, path), GGML_STATUS_SUCCESS);
    struct ggml_context *data, *eval;
    struct ggml_cgraph * h = ggml_graph_import(path, &data, &eval);
    REQUIRE(h != NULL && data != NULL && eval != NULL);
    unlink(path);
    CHECK(h->n_nodes == g->n_nodes && h->n_leafs == g->n_leafs && g->n_leafs == 3);
    for (int i = 0; i < g->n_leafs; i++) {
        compare_tensors(g->leafs[i], h->leafs[i]);
        CHECK(memcmp(g->leafs[i]->data, h->leafs[i]->data, ggml_nbytes(g->leafs[i])) == 0);
        CHECK((uintptr_t) h->leafs[i]->data % 16 == 0);
        const struct ggml_tensor * blob = ggml_get_first_tensor(data); // data of leafs are inside the file's content
        CHECK((char *) h->leafs[i]->data >= (char *) blob->data &&
              (char *) h->leafs[i]->data < (char *) blob->data + blob->ne[0]);
    }
    for (int i = 0; i < g->n_nodes; i++) {
        compare_tensors(g->nodes[i], h->nodes[i]);
        for (int k = 0; k < GGML_MAX_SRC; k++) {
            CHECK_INT(index_of(g->nodes, g->n_nodes, g->nodes[i]->src[k]),
                index_of(h->nodes, h->n_nodes, h->nodes[i]->src[k]));
            CHECK_INT(index_of(g->leafs, g->n_leafs, g->nodes[i]->src[k]),
                index_of(h->leafs, h->n_leafs, h->nodes[i]->src[k]));
        }
        if (!gb_op_computes(g->nodes[i]->op)) {
            CHECK(h->nodes[i]->view_src != NULL);
        }
    }
    CHECK_INT(ggml_graph_compute_with_ctx(ctx, g, 1), GGML_STATUS_SUCCESS);
    CHECK_INT(ggml_graph_compute_with_ctx(eval, h, 1), GGML_STATUS_SUCCESS);
    struct ggml_tensor * result = ggml_graph_get_tensor(h, "result");
    CHECK(result != NULL && memcmp(result->data, ggml_graph_get_tensor(g, "result")->data, 15 * sizeof(float)) == 0);
    const int n = h->n_nodes;
    CHECK_INT(ggml_build_forward_expand(h, result), GGML_STATUS_SUCCESS); // all nodes are visited
    CHECK_INT(h->n_nodes, n);
    ggml_free(data);
    ggml_free(eval);
    ggml_free(ctx);
}

static void format(void) { // the bytes of a graph of one leaf and one node
    new_path();
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 0, NULL, false });
    struct ggml_tensor * a = ggml_set_name(ggml_new_f32(ctx, 2.5f), "a");
    struct ggml_cgraph * g = ggml_new_graph(ctx);
    ggml_build_forward_expand(g, ggml_set_name(ggml_add(ctx, a, a), "b"));
    CHECK_INT(ggml_graph_export(g, path), GGML_STATUS_SUCCESS);
    uint8_t bytes[2000];
    const size_t size = read_bytes(bytes, sizeof(bytes));
    unlink(path);
    CHECK_INT(size, 24 + (8 + 64 + 64 + 64 + 4) + (8 + 64 + 64 + 64 + 40));
    uint32_t words[6];
    memcpy(words, bytes, 24);
    CHECK(words[0] == 0x67676d6c && words[1] == 1 && words[2] == 1 && words[3] == 1 && words[4] == 16 && words[5] == 0);
    uint64_t ne_nb[2];
    memcpy(ne_nb, bytes + 24 + 8, 16);
    CHECK(ne_nb[0] == 1 && ne_nb[1] == 4);
    CHECK(bytes[24 + 72] == 'a' && bytes[24 + 73] == 0);
    float value;
    memcpy(&value, bytes + 24 + 200, 4);
    CHECK(value == 2.5f);
    int32_t sources[10];
    memcpy(sources, bytes + size - 40, 40);
    CHECK(sources[0] == 0 && sources[1] == 0 && sources[2] == -1 && sources[9] == -1);
    ggml_free(ctx);
}

static void own(struct ggml_tensor * dst, const struct ggml_tensor * a, int ith, int nth, void * userdata) {
    (void) dst, (void) a, (void) ith, (void) nth, (void) userdata;
}

static void refused_exports(void) {
    new_path();
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 0, NULL, true });
    struct ggml_cgraph * g = ggml_new_graph(ctx);
    struct ggml_tensor * a = ggml_set_name(ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 4), "a");
    ggml_build_forward_expand(g, ggml_sqr(ctx, a));
    CHECK_INT(ggml_graph_export(g, path), GGML_STATUS_INVALID_STATE);
    CHECK_ERROR(GGML_STATUS_INVALID_STATE, "leaf 'a' f32 [4] has no data");
    CHECK_INT(ggml_graph_export(NULL, path), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_INT(ggml_graph_export(g, NULL), GGML_STATUS_INVALID_ARGUMENT);
    ggml_free(ctx);

    ctx = ggml_init((struct ggml_init_params){ 0, NULL, false });
    g = ggml_new_graph(ctx);
    a = ggml_new_f32(ctx, 1);
    struct ggml_tensor * b = ggml_sqr(ctx, a);
    ggml_build_forward_expand(g, b);
    CHECK_INT(ggml_graph_export(g, "/nonexistent/x"), GGML_STATUS_IO_ERROR);
    b->src[3] = ggml_new_f32(ctx, 1); // not in the graph
    CHECK_INT(ggml_graph_export(g, path), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "source 3");
    b->src[3] = NULL;
    ggml_build_forward_expand(g, ggml_map_custom1(ctx, b, own, 1, NULL));
    CHECK_INT(ggml_graph_export(g, path), GGML_STATUS_UNSUPPORTED);
    g = ggml_new_graph(ctx);
    ggml_build_forward_expand(g, ggml_custom(ctx, GGML_TYPE_F32, b->ne, 4, &b, 1, task_any, 1, NULL));
    CHECK_INT(ggml_graph_export(g, path), GGML_STATUS_UNSUPPORTED);
    CHECK_ERROR(GGML_STATUS_UNSUPPORTED, "calls a function of this program");
    ggml_free(ctx);
    unlink(path);
}

static bool import_fails(void) {
    struct ggml_context * data = (struct ggml_context *) path;
    struct ggml_context * eval = (struct ggml_context *) path;
    struct ggml_cgraph * g = ggml_graph_import(path, &data, &eval);
    if (g == NULL) {
        CHECK(data == NULL && eval == NULL && ggml_last_status() != GGML_STATUS_SUCCESS &&
              ggml_last_error()[0] != '\0');
        ggml_clear_error();
        return true;
    }
    for (int i = 0; i < g->n_leafs; i++) { // any tensor is inside the content
        volatile uint8_t sum = 0;
        for (size_t k = 0; k < ggml_nbytes(g->leafs[i]); k++) {
            sum = (uint8_t) (sum + ((uint8_t *) g->leafs[i]->data)[k]);
        }
    }
    for (int i = 0; i < g->n_nodes; i++) {
        if (ggml_nbytes(g->nodes[i]) > 0 && ggml_nbytes(g->nodes[i]) < 100000) {
            volatile uint8_t * bytes = g->nodes[i]->data;
            bytes[0] = 1;
            bytes[ggml_nbytes(g->nodes[i]) - 1] = 1;
        }
    }
    ggml_free(data);
    ggml_free(eval);
    return false;
}

static uint8_t content[20000], damaged[20000];

static size_t sample_file(void) {
    new_path();
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 0, NULL, false });
    struct ggml_cgraph * g = sample(ctx);
    CHECK(g != NULL && ggml_graph_export(g, path) == GGML_STATUS_SUCCESS);
    ggml_free(ctx);
    return read_bytes(content, sizeof(content));
}

static void truncated_at_every_byte(void) {
    const int64_t before = gb_test_live_allocs();
    const size_t size = sample_file();
    REQUIRE(size > 1000 && size < sizeof(content));
    for (size_t n = 0; n < size; n++) {
        write_bytes(content, n);
        CHECK_MSG(import_fails(), "cut at byte %zu of %zu", n, size);
    }
    memcpy(damaged, content, size);
    write_bytes(damaged, size + 1);
    CHECK(import_fails()); // too long
    write_bytes(content, size);
    CHECK(!import_fails());
    unlink(path);
    CHECK(import_fails()); // does not exist
    CHECK_INT(gb_test_live_allocs(), before);
}

static void put32(size_t at, uint32_t v) { memcpy(damaged + at, &v, 4); }

static void put64(size_t at, uint64_t v) { memcpy(damaged + at, &v, 8); }

static void damaged_fields(void) {
    const size_t size = sample_file();
    // the first leaf's record begins at 24 with type, op, ne0, nb0, ... The first node's record
    // follows the data of the leafs
    const size_t leaf = 24, node = 24 + 3 * 200 + 3 + 6 * 4 * 4 + 6 * 5 * 2;
    const struct {
        size_t at;
        int bytes;
        uint64_t value;
    } damage[] = {
        { 0, 4, 0 }, // magic
        { 4, 4, 2 }, // version
        { 8, 4, UINT32_MAX }, // leafs
        { 12, 4, UINT32_MAX }, // nodes
        { 16, 8, 0 }, // bytes of the nodes
        { leaf, 4, 4 }, // retired type
        { leaf, 4, 40 }, // no type
        { leaf, 4, UINT32_MAX }, // no type
        { leaf + 4, 4, GGML_OP_ADD }, // a leaf with an operator
        { leaf + 8, 8, UINT64_MAX }, // ne0
        { leaf + 8, 8, 1u << 20 }, // more data than the file has
        { leaf + 16, 8, UINT64_MAX / 2 }, // nb0
        { leaf + 24, 8, INT64_MAX }, // ne1: overflow
        { node, 4, 5 },
        { node + 4, 4, GGML_OP_COUNT },
        { node + 4, 4, UINT32_MAX },
        { node + 4, 4, GGML_OP_MAP_CUSTOM2 },
        { node + 4, 4, GGML_OP_CUSTOM },
        { node + 8, 8, INT64_MAX },
        { node + 200, 4, 3 }, // reads itself
        { node + 200, 4, 1000 }, // reads no tensor
        { node + 200, 4, (uint32_t) -2 },
        { node + 200, 4, (uint32_t) -1 }, // the view has no source
        { node + 136, 8, 1000 }, // the view's offset
        { node + 16 + 16, 8, 1000 }, // its nb1
    };
    for (size_t i = 0; i < sizeof(damage) / sizeof(damage[0]); i++) {
        memcpy(damaged, content, size);
        if (damage[i].bytes == 4) {
            put32(damage[i].at, (uint32_t) damage[i].value);
        } else {
            put64(damage[i].at, damage[i].value);
        }
        write_bytes(damaged, size);
        CHECK_MSG(import_fails(), "damage %zu", i);
    }
    unlink(path);
}

static void random_damage(void) {
    const int64_t before = gb_test_live_allocs();
    const size_t size = sample_file();
    int failed = 0;
    for (int round = 0; round < 4000; round++) {
        memcpy(damaged, content, size);
        for (int64_t n = test_random_int(1, 4); n > 0; n--) {
            const size_t at = (size_t) test_random_int(0, (int64_t) size - 1);
            damaged[at] = test_random_int(0, 1) ? (uint8_t) test_random()
                                                : (uint8_t) (damaged[at] ^ (1u << test_random_int(0, 7)));
        }
        write_bytes(damaged, size);
        failed += import_fails();
    }
    CHECK(failed > 500 && failed < 4000);
    CHECK_INT(gb_test_live_allocs(), before);
    unlink(path);
}

// The file of one builder's graph in `content`. 0: a file cannot hold the graph.
static size_t builder_file(const struct builder * b, int * n_leafs, int * n_nodes) {
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 0, NULL, false });
    struct ggml_tensor * x[MAX_IN];
    for (int n = 0; n < MAX_IN && b->in[n].used; n++) {
        x[n] = ggml_new_tensor(ctx, b->in[n].type, 4, b->in[n].ne);
        memset(x[n]->data, 0, ggml_nbytes(x[n]));
    }
    struct ggml_tensor * y = b->make(ctx, x);
    struct ggml_cgraph * g = ggml_new_graph_custom(ctx, 64, false);
    size_t size = 0;
    if (y != NULL && ggml_build_forward_expand(g, y) == GGML_STATUS_SUCCESS &&
        ggml_graph_export(g, path) == GGML_STATUS_SUCCESS) {
        size = read_bytes(content, sizeof(content));
    }
    *n_leafs = g->n_leafs;
    *n_nodes = g->n_nodes;
    ggml_free(ctx);
    return size;
}

// The position of a tensor's record in `content`. Nodes follow leafs, and the data of a leaf
// follows its record.
static size_t record_at(int n_leafs, int i) {
    size_t at = 24;
    for (int k = 0; k < i; k++) {
        struct ggml_tensor t = { 0 };
        uint32_t type;
        memcpy(&type, content + at, 4);
        t.type = (enum ggml_type) type;
        for (int d = 0; d < 4; d++) {
            uint64_t ne_nb[2];
            memcpy(ne_nb, content + at + 8 + 16 * (size_t) d, 16);
            t.ne[d] = (int64_t) ne_nb[0];
            t.nb[d] = (size_t) ne_nb[1];
        }
        at += k < n_leafs ? 200 + ggml_nbytes(&t) : 240;
    }
    return at;
}

// True if elements of a result share bytes with this stride of dimension d, so no driver could
// write it.
static bool shares_bytes(size_t record, int d, uint64_t nb, size_t element) {
    uint64_t ne_nb[8];
    memcpy(ne_nb, content + record + 8, sizeof(ne_nb));
    if (ne_nb[2 * d] <= 1) {
        return false;
    }
    for (int k = 0; k < 4; k++) { // another dimension whose steps end within this one, or pass it
        if (k != d && ne_nb[2 * k] > 1 && ne_nb[2 * k + 1] == nb) {
            return true;
        }
    }
    return nb < element;
}

// A file with damaged strides is refused, or its graph computes without faults.
static void no_damaged_stride_reaches_a_driver(void) {
    new_path();
    ggml_backend_t cpu = ggml_backend_cpu_init();
    int refused = 0, computed = 0;
    for (int b = 0; b < N_BUILDERS; b++) {
        int n_leafs, n_nodes;
        const size_t size = builder_file(&builders[b], &n_leafs, &n_nodes);
        for (int i = 0; size > 0 && i < n_leafs + n_nodes; i++) {
            const size_t at = record_at(n_leafs, i);
            uint32_t type, op;
            memcpy(&type, content + at, 4);
            memcpy(&op, content + at + 4, 4);
            const size_t element = ggml_type_size((enum ggml_type) type);
            for (int d = 0; d < 4; d++) {
                uint64_t ne, nb;
                memcpy(&ne, content + at + 8 + 16 * (size_t) d, 8);
                memcpy(&nb, content + at + 16 + 16 * (size_t) d, 8);
                const uint64_t values[] = { 0, 1, 2, 4, 6, nb / 2, nb - 1, nb + 1, nb - element, nb + element };
                for (int v = 0; v < 10; v++) {
                    if (values[v] == nb) {
                        continue;
                    }
                    memcpy(damaged, content, size);
                    put64(at + 16 + 16 * (size_t) d, values[v]);
                    write_bytes(damaged, size);
                    struct ggml_context *data, *eval;
                    struct ggml_cgraph * g = ggml_graph_import(path, &data, &eval);
                    const bool must_fail =
                        ne > 1 && (values[v] % element != 0 || (i >= n_leafs && gb_op_computes((enum ggml_op) op) &&
                                                                   shares_bytes(at, d, values[v], element)));
                    CHECK_MSG(g == NULL || !must_fail, "%s: tensor %d, nb[%d] = %d is imported", builders[b].name, i, d,
                        (int) values[v]);
                    refused += g == NULL;
                    ggml_clear_error();
                    if (g != NULL) {
                        computed += ggml_backend_graph_compute(cpu, g);
                        ggml_free(data);
                        ggml_free(eval);
                    }
                }
            }
        }
    }
    CHECK_MSG(refused > 2000 && computed > 500, "%d refused, %d computed", refused, computed);
    ggml_backend_free(cpu);
    unlink(path);
}

static void failing_allocations(void) {
    const int64_t before = gb_test_live_allocs();
    const size_t size = sample_file();
    int n = 1;
    bool ok = false;
    for (; !ok && n < 200; n++) {
        write_bytes(content, size);
        gb_test_fail_alloc(n, false);
        ok = !import_fails();
        gb_test_fail_alloc(0, false);
        CHECK_INT(gb_test_live_allocs(), before);
    }
    CHECK(ok && n > 4);
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ 0, NULL, false });
    struct ggml_cgraph * g = sample(ctx);
    const int64_t now = gb_test_live_allocs();
    ok = false;
    for (n = 1; !ok && n < 200; n++) {
        gb_test_fail_alloc(n, false);
        ok = ggml_graph_export(g, path) == GGML_STATUS_SUCCESS;
        gb_test_fail_alloc(0, false);
        CHECK_INT(gb_test_live_allocs(), now);
    }
    CHECK(ok && n > 2);
    ggml_free(ctx);
    unlink(path);
}

static void null_arguments(void) {
    struct ggml_context *data, *eval;
    CHECK(ggml_graph_import(NULL, &data, &eval) == NULL && data == NULL && eval == NULL);
    CHECK(ggml_graph_import(path, NULL, &eval) == NULL);
    CHECK(ggml_graph_import(path, &data, NULL) == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "NULL");
}

TEST_MAIN(TEST(round_trip), TEST(format), TEST(refused_exports), TEST(truncated_at_every_byte), TEST(damaged_fields),
    TEST(random_damage), TEST(no_damaged_stride_reaches_a_driver), TEST(failing_allocations), TEST(null_arguments))
