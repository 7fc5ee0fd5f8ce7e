// Making tensors and views, layouts, names, flags, descriptions. A walk over every element gives
// the true extents.
#include "tensor/tensor.h"
#include "test.h"

static struct ggml_context * ctx;

static void setup(bool no_alloc) { ctx = ggml_init((struct ggml_init_params){ 100000, NULL, no_alloc }); }

static void fresh_tensors(void) {
    setup(false);
    struct ggml_tensor * t = ggml_new_tensor_3d(ctx, GGML_TYPE_Q4_0, 64, 3, 5);
    REQUIRE(t != NULL);
    CHECK(t->ne[0] == 64 && t->ne[1] == 3 && t->ne[2] == 5 && t->ne[3] == 1);
    CHECK(t->nb[0] == 18 && t->nb[1] == 36 && t->nb[2] == 108 && t->nb[3] == 540);
    CHECK(t->op == GGML_OP_NONE && t->backend == GGML_BACKEND_CPU && t->buffer == NULL && t->grad == NULL &&
          t->extra == NULL);
    CHECK(t->view_src == NULL && t->perf_runs == 0 && !t->is_param && t->name[0] == '\0' && t->data == t + 1);
    for (int i = 0; i < GGML_MAX_SRC; i++) {
        CHECK(t->src[i] == NULL);
    }
    CHECK_INT(ggml_nelements(t), 960);
    CHECK_INT(ggml_nrows(t), 15);
    CHECK_INT(ggml_nbytes(t), 540);
    CHECK_INT(ggml_nbytes_pad(t), 544);
    CHECK_INT(ggml_n_dims(t), 3);
    CHECK_INT(ggml_element_size(t), 18);
    CHECK(ggml_is_contiguous(t) && !ggml_is_transposed(t) && !ggml_is_permuted(t));
    CHECK(ggml_is_3d(t) && !ggml_is_matrix(t) && !ggml_is_vector(t) && !ggml_is_scalar(t));

    struct ggml_tensor * d = ggml_dup_tensor(ctx, t);
    CHECK(d != NULL && ggml_are_same_shape(d, t) && gb_are_same_layout(d, t) && d->data != t->data);
    struct ggml_tensor * s = ggml_new_f32(ctx, -1.5f);
    CHECK(ggml_is_scalar(s) && ggml_is_vector(s) && ggml_is_matrix(s) && ggml_n_dims(s) == 1 &&
          *(float *) s->data == -1.5f);
    struct ggml_tensor * four = ggml_new_tensor_4d(ctx, GGML_TYPE_F16, 2, 1, 1, 7);
    CHECK(ggml_n_dims(four) == 4 && !ggml_is_3d(four) && ggml_nbytes(four) == 28);
    ggml_free(ctx);
}

static void empty_tensors(void) {
    setup(false);
    struct ggml_tensor * t = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 0, 5);
    REQUIRE(t != NULL);
    CHECK(ggml_nelements(t) == 0 && ggml_nbytes(t) == 0 && ggml_nbytes_pad(t) == 0 && ggml_is_contiguous(t));
    CHECK(ggml_new_tensor_2d(ctx, GGML_TYPE_Q4_K, 256, 0) != NULL);
    CHECK(ggml_view_tensor(ctx, t) != NULL);
    ggml_free(ctx);
}

static void refused_shapes(void) {
    setup(true);
    CHECK(ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 3, -4) == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "ggml_new_tensor_2d: argument 'ne': [3, -4] has a negative");
    CHECK(ggml_new_tensor_1d(ctx, GGML_TYPE_Q8_0, 40) == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "[40] needs a multiple of 32 (the block size of q8_0)");
    CHECK(ggml_new_tensor_4d(ctx, GGML_TYPE_F32, 65536, 65536, 65536, 65536) == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "f32 [65536, 65536, 65536, 65536] overflows");
    CHECK(ggml_new_tensor_2d(ctx, GGML_TYPE_F32, INT64_MAX, 2) == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "overflows");
    CHECK(ggml_new_tensor_1d(ctx, GGML_TYPE_F32, INT64_MAX / 4) != NULL); // the largest size that can be described
    CHECK(ggml_new_tensor_1d(ctx, GGML_TYPE_F32, INT64_MAX / 4 + 1) == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "overflows");
    CHECK(ggml_new_tensor_4d(ctx, GGML_TYPE_I8, INT64_MAX, 0, INT64_MAX, 2) != NULL); // no elements, with wide strides
    struct ggml_tensor * q = ggml_new_tensor_1d(ctx, GGML_TYPE_Q4_0, INT64_C(1) << 62);
    CHECK(q != NULL && ggml_nbytes(q) == (size_t) (INT64_C(1) << 57) * 18 && ggml_is_contiguous(q));
    CHECK(ggml_new_tensor_1d(ctx, (enum ggml_type) 5, 32) == NULL);
    CHECK(ggml_new_tensor_1d(ctx, GGML_TYPE_COUNT, 32) == NULL);
    CHECK(ggml_new_tensor_1d(ctx, (enum ggml_type) - 7, 32) == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "-7 is not a valid type");
    const int64_t ne[5] = { 1, 1, 1, 1, 1 };
    CHECK(ggml_new_tensor(ctx, GGML_TYPE_F32, 0, ne) == NULL);
    CHECK(ggml_new_tensor(ctx, GGML_TYPE_F32, 5, ne) == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "needs 1 to 4, has 5");
    CHECK(ggml_new_tensor(ctx, GGML_TYPE_F32, 1, NULL) == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "'ne' is NULL");
    CHECK(ggml_dup_tensor(ctx, NULL) == NULL && ggml_view_tensor(ctx, NULL) == NULL);
    CHECK_INT(ggml_used_mem(ctx), 3 * ggml_tensor_overhead()); // failures used no memory
    ggml_free(ctx);
}

// Bytes [0, end) that the elements of t use, relative to its root's data. Each block counts all of
// its bytes.
static size_t walked_end(const struct ggml_tensor * t, int64_t blck) {
    size_t end = 0;
    for (int64_t i3 = 0; i3 < t->ne[3]; i3++) {
        for (int64_t i2 = 0; i2 < t->ne[2]; i2++) {
            for (int64_t i1 = 0; i1 < t->ne[1]; i1++) {
                for (int64_t i0 = 0; i0 < t->ne[0] / blck; i0++) {
                    const size_t at = (size_t) i0 * t->nb[0] + (size_t) i1 * t->nb[1] + (size_t) i2 * t->nb[2] +
                                      (size_t) i3 * t->nb[3];
                    if (at + ggml_type_size(t->type) > end) {
                        end = at + ggml_type_size(t->type);
                    }
                }
            }
        }
    }
    return end;
}

static void view_extents(void) {
    setup(true);
    int accepted = 0, refused = 0;
    for (int round = 0; round < 4000; round++) {
        struct ggml_tensor * root = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, test_random_int(1, 60));
        int64_t ne[4];
        size_t nb[4];
        for (int d = 0; d < 4; d++) {
            ne[d] = test_random_int(round % 10 == 0 ? 0 : 1, 4);
            nb[d] = (size_t) test_random_int(0, 12) * 4;
        }
        const size_t offs = (size_t) test_random_int(0, 30) * 4;
        struct ggml_tensor layout = { .type = GGML_TYPE_F32 };
        memcpy(layout.ne, ne, sizeof(ne));
        memcpy(layout.nb, nb, sizeof(nb));
        const size_t end = walked_end(&layout, 1);
        const bool fits = offs + end <= (size_t) root->ne[0] * 4;
        struct ggml_tensor * v = gb_tensor_view(ctx, root, 4, ne, nb, offs, "test");
        CHECK_MSG((v != NULL) == fits, "round %d: view %s", round, v ? "accepted" : "refused");
        if (v != NULL) {
            accepted++;
            CHECK(v->view_src == root && v->view_offs == offs && memcmp(v->nb, nb, sizeof(nb)) == 0 &&
                  v->op == GGML_OP_NONE);
            CHECK_INT(ggml_nbytes(v), end);
        } else {
            refused++;
            CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "test: view [");
        }
    }
    CHECK(accepted > 200 && refused > 200);
    ggml_free(ctx);
}

static void view_roots(void) {
    setup(false);
    struct ggml_tensor * root = ggml_set_name(ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 100), "root");
    const int64_t ten = 10, five = 5;
    struct ggml_tensor * v = gb_tensor_view(ctx, root, 1, &ten, NULL, 40, "test");
    struct ggml_tensor * w = gb_tensor_view(ctx, v, 1, &five, NULL, 12, "test");
    REQUIRE(v != NULL && w != NULL);
    CHECK(w->view_src == root && w->view_offs == 52 && w->data == (char *) root->data + 52);
    CHECK(v->nb[1] == 40 && v->nb[3] == 40);
    CHECK(gb_root(w) == root && gb_root(root) == root);
    // bounds are those of the root, so a view may extend beyond its direct source
    CHECK(gb_tensor_view(ctx, w, 1, &ten, NULL, 300, "test") != NULL);
    CHECK(gb_tensor_view(ctx, w, 1, &ten, NULL, 312, "test") == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "needs bytes 364 to 404 of 'root' f32 [100], which has 400");
    CHECK(gb_tensor_view(ctx, w, 1, &ten, NULL, SIZE_MAX - 3, "test") == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "overflow");
    const size_t wild[4] = { 4, SIZE_MAX / 2, SIZE_MAX / 2, 4 };
    const int64_t ne[4] = { 1, 3, 3, 1 };
    CHECK(gb_tensor_view(ctx, root, 4, ne, wild, 0, "test") == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "overflow");

    struct ggml_tensor * all = ggml_view_tensor(ctx, w);
    CHECK_STR(all->name, ""); // a view of a tensor without name
    CHECK(all->view_src == root && all->view_offs == 52 && gb_are_same_layout(all, w));
    CHECK_STR(ggml_view_tensor(ctx, root)->name, "root (view)");
    ggml_free(ctx);

    setup(true); // without memory: the allocator needs the offset
    root = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 100);
    v = gb_tensor_view(ctx, root, 1, &ten, NULL, 40, "test");
    CHECK(v->data == NULL && v->view_offs == 40);
    ggml_free(ctx);
}

static void views_of_blocks(void) {
    setup(true);
    struct ggml_tensor * q = ggml_new_tensor_2d(ctx, GGML_TYPE_Q4_0, 64, 10);
    const int64_t ne[] = { 10, 64 };
    const size_t nb[] = { q->nb[1], q->nb[0], q->nb[2], q->nb[3] };
    CHECK(gb_tensor_view(ctx, q, 2, ne, nb, 0, "test") != NULL); // transposed
    const int64_t half[] = { 32, 10 };
    const size_t rows[] = { 18, 36, 360, 360 };
    CHECK(gb_tensor_view(ctx, q, 2, half, rows, 18, "test") != NULL); // right half of every row
    CHECK(gb_tensor_view(ctx, q, 2, half, rows, 19, "test") == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "361");
    const int64_t odd = 16;
    CHECK(gb_tensor_view(ctx, q, 1, &odd, NULL, 0, "test") == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "multiple of 32");
    ggml_free(ctx);
}

// A view of transposed blocks covers the bytes that were checked when it was made. Writing all of
// it stays inside its source.
static void bytes_of_transposed_blocks(void) {
    struct ggml_context * pool = ggml_init((struct ggml_init_params){ 0, NULL, true });
    struct ggml_tensor * t = ggml_new_tensor_3d(pool, GGML_TYPE_Q8_0, 32, 1, 2);
    CHECK_INT(ggml_nbytes(t), 68);
    CHECK_INT(ggml_nbytes(ggml_transpose(pool, t)), 68);
    t = ggml_new_tensor_2d(pool, GGML_TYPE_Q8_0, 64, 3);
    CHECK_INT(ggml_nbytes(ggml_transpose(pool, t)), 3 * 68);
    CHECK_INT(ggml_nbytes(ggml_new_tensor_1d(pool, GGML_TYPE_I8, INT64_MAX)), INT64_MAX);
    t = ggml_new_tensor_4d(pool, GGML_TYPE_F32, 0, INT64_MAX, INT64_MAX, 1); // sizes of results that do not fit
    CHECK(ggml_pad(pool, t, 0, 1, 0, 0) == NULL && ggml_concat(pool, t, t) == NULL && ggml_upscale(pool, t, 2) == NULL);
    ggml_free(pool);
}

static void layouts(void) {
    setup(true);
    struct ggml_tensor * t = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, 4, 3, 2);
    CHECK(ggml_is_contiguous(t) && gb_rows_contiguous(t));
    t->nb[1] = 32;
    CHECK(!ggml_is_contiguous(t));
    t->nb[2] = 96;
    t->nb[3] = 192;
    CHECK(!ggml_is_contiguous(t) && gb_rows_contiguous(t) && !ggml_is_permuted(t));
    t->nb[0] = 32;
    t->nb[1] = 4;
    CHECK(ggml_is_transposed(t) && ggml_is_permuted(t) && !gb_rows_contiguous(t));
    t->nb[0] = 4;
    t->nb[1] = 96;
    t->nb[2] = 32;
    CHECK(!ggml_is_transposed(t) && ggml_is_permuted(t));

    CHECK(!gb_are_same_layout(NULL, t) && !ggml_are_same_shape(t, NULL));
    CHECK(!ggml_is_contiguous(NULL) && !ggml_is_transposed(NULL) && !ggml_is_permuted(NULL));
    CHECK(ggml_nelements(NULL) == 0 && ggml_nbytes(NULL) == 0 && ggml_nrows(NULL) == 0 && ggml_n_dims(NULL) == 0);
    ggml_free(ctx);
}

// No name ends with a part of a character, for names of any length.
static void names_are_cut_between_characters(void) {
    setup(false);
    struct ggml_tensor * t = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 4);
    // characters of one to four bytes
    static const char * characters[] = { "x", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80" };
    for (int c = 0; c < 4; c++) {
        const size_t size = strlen(characters[c]);
        for (size_t lead = 0; lead < 70; lead++) {
            char long_name[512] = { 0 };
            memset(long_name, 'a', lead);
            while (strlen(long_name) < 100) {
                strcat(long_name, characters[c]);
            }
            const size_t whole = lead >= 63 ? 63 : lead + (63 - lead) / size * size;
            ggml_set_name(t, long_name);
            CHECK(strlen(t->name) == whole && strncmp(t->name, long_name, whole) == 0);
            ggml_set_name(t, "");
            ggml_format_name(t, "%s and %d", long_name, 3);
            CHECK(strlen(t->name) == whole && strncmp(t->name, long_name, whole) == 0);
            for (size_t k = whole; k < sizeof(t->name); k++) {
                CHECK_INT(t->name[k], 0);
            }
            long_name[lead + (60 - GB_MIN(lead, 60)) / size * size] = '\0'; // fits, but the view's name does not
            ggml_set_name(t, long_name);
            char expected[600];
            snprintf(expected, sizeof(expected), "%s (view)", t->name);
            expected[63] = '\0';
            CHECK_MSG(strcmp(ggml_view_tensor(ctx, t)->name, expected) == 0, "lead %zu, size %zu", lead, size);
        }
    }
    // not UTF-8: single bytes
    static const char latin1[] = "............................................................\xe9\xe9\xe9\xe9\xe9";
    ggml_set_name(t, latin1);
    CHECK(strncmp(t->name, latin1, 62) == 0);
    ggml_free(ctx);
}

static void names(void) {
    setup(true);
    struct ggml_tensor * t = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 1);
    CHECK_STR(ggml_get_name(t), "");
    CHECK(ggml_set_name(t, "abc") == t);
    CHECK_STR(ggml_get_name(t), "abc");
    char large[200];
    memset(large, 'x', sizeof(large));
    large[199] = '\0';
    ggml_set_name(t, large);
    CHECK_INT(strlen(t->name), 63);
    CHECK(ggml_format_name(t, "%d-%s", 7, "y") == t);
    CHECK_STR(t->name, "7-y");
    ggml_format_name(t, "%s (view)", t->name); // source and target are the same
    CHECK_STR(t->name, "7-y (view)");
    CHECK(ggml_set_name(NULL, "x") == NULL);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "NULL");
    CHECK(ggml_format_name(NULL, "x") == NULL);
    CHECK_STR(ggml_get_name(NULL), "");
    ggml_free(ctx);
}

static void flags(void) {
    setup(true);
    struct ggml_tensor * t = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 1);
    CHECK(!ggml_is_input(t) && !ggml_is_output(t));
    CHECK_INT(ggml_set_output(t), GGML_STATUS_SUCCESS);
    CHECK(!ggml_is_input(t) && ggml_is_output(t));
    CHECK_INT(ggml_set_input(t), GGML_STATUS_SUCCESS);
    CHECK(ggml_is_input(t) && ggml_is_output(t));
    CHECK(!ggml_is_input(ggml_view_tensor(ctx, t)));
    CHECK_INT(ggml_set_input(NULL), GGML_STATUS_INVALID_ARGUMENT);
    CHECK(!ggml_is_output(NULL));
    ggml_free(ctx);
}

static void gradients_are_inherited(void) {
    setup(false);
    struct ggml_tensor * a = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 6);
    struct ggml_tensor * r = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 3, 2);
    r->src[3] = a;
    CHECK(gb_tensor_inherit_grad(ctx, r) == r && r->grad == NULL);
    a->grad = ggml_dup_tensor(ctx, a);
    CHECK(gb_tensor_inherit_grad(ctx, r) == r && r->grad != NULL && gb_are_same_layout(r->grad, r) &&
          r->grad != a->grad);
    CHECK(gb_tensor_inherit_grad(ctx, NULL) == NULL);
    ggml_free(ctx);
}

static void descriptions(void) {
    setup(true);
    char buf[GB_DESCRIBE_SIZE], node[600];
    CHECK_STR(gb_describe(NULL, buf), "NULL");
    struct ggml_tensor * w = ggml_set_name(ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 128, 64), "w");
    struct ggml_tensor * x = ggml_set_name(ggml_new_tensor_2d(ctx, GGML_TYPE_F16, 128, 16), "x");
    struct ggml_tensor * y = ggml_set_name(ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 64, 16), "y");
    y->op = GGML_OP_MUL_MAT;
    y->src[0] = w;
    y->src[2] = x;
    CHECK_STR(gb_describe(w, buf), GB_QUOTE("'w' f32 [128, 64]"));
    CHECK_STR(gb_describe_node(y, node, sizeof(node)), "MUL_MAT " GB_QUOTE("'y' f32 [64, 16]") " of " GB_QUOTE(
                                                           "'w' f32 [128, 64]") ", " GB_QUOTE("'x' f16 [128, 16]"));
    for (size_t size = 1; size < 60; size++) { // cut and terminated, without writes beyond
        memset(node, '#', sizeof(node));
        gb_describe_node(y, node, size);
        CHECK_INT(strlen(node), size - 1);
        CHECK(node[size] == '#');
    }
    CHECK_STR(gb_describe_node(NULL, node, sizeof(node)), "NULL");
    y->op = (enum ggml_op) 1000;
    y->type = (enum ggml_type) 1000;
    memset(y->name, 'n', sizeof(y->name)); // not terminated
    for (int d = 0; d < 4; d++) {
        y->ne[d] = INT64_MIN;
    }
    y->ne[3] = INT64_MAX;
    gb_plain_text(gb_describe(y, buf));
    CHECK(strlen(buf) < GB_DESCRIBE_SIZE && buf[strlen(buf) - 1] == ']');
    CHECK_STR(ggml_op_desc(y), "");
    CHECK_STR(ggml_op_desc(NULL), "");
    y->op = GGML_OP_UNARY;
    y->op_params[0] = GGML_UNARY_OP_SILU;
    CHECK_STR(ggml_op_desc(y), "SILU");
    CHECK_INT(ggml_get_unary_op(y), GGML_UNARY_OP_SILU);
    CHECK_INT(ggml_get_unary_op(w), GGML_UNARY_OP_COUNT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "needs op UNARY, has NONE");
    ggml_free(ctx);
}

TEST_MAIN(TEST(fresh_tensors), TEST(empty_tensors), TEST(refused_shapes), TEST(view_extents), TEST(view_roots),
    TEST(views_of_blocks), TEST(bytes_of_transposed_blocks), TEST(layouts), TEST(names),
    TEST(names_are_cut_between_characters), TEST(flags), TEST(gradients_are_inherited), TEST(descriptions))
