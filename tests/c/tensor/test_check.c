// test_check.c - breaks each rule of each operator once: no node, status INVALID_ARGUMENT, and a
// message with the function, the tensors with types and shapes, and the reason. test_ops.c has
// valid calls. Edge cases of valid calls are here.
#include <float.h>

#include "base/status.h"
#include "custom.h"
#include "in_context.h"
#include "tensor/fault_text.h"
#include "test.h"

#if defined(__GNUC__)
#    pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#endif

static struct ggml_context * ctx; // of the current case

// A tensor variable with the tensor's name.
#define TENSOR(name, type, ...) \
    struct ggml_tensor * name = ggml_set_name(new_tensor(GGML_TYPE_##type, (const int64_t[4]){ __VA_ARGS__ }), #name)

static struct ggml_tensor * new_tensor(enum ggml_type type, const int64_t ne[4]) {
    int64_t sizes[4];
    for (int d = 0; d < 4; d++) {
        sizes[d] = ne[d] == 0 ? 1 : ne[d] < 0 ? 0 : ne[d]; // default 1; -1: an empty dimension
    }
    return ggml_new_tensor(ctx, type, 4, sizes);
}

static void refused(int line, const struct ggml_tensor * result, const char * call, const char * text,
    const struct ggml_tensor * const * named) {
    const size_t func = (size_t) (strchr(call, '(') - call);
    const char * said = ggml_last_error();
    if (result != NULL || ggml_last_status() != GGML_STATUS_INVALID_ARGUMENT) {
        test_fail(__FILE__, line, "%s: gives %s, status %s", call, result ? "a node" : "nothing",
            ggml_status_to_string(ggml_last_status()));
    } else if (strncmp(said, call, func) != 0 || said[func] != ':' || strstr(said, text) == NULL) {
        test_fail(__FILE__, line, "%s: says \"%s\", expected \"%s\"", call, said, text);
    }
    for (; *named != NULL; named++) {
        char expected[256];
        snprintf(expected, sizeof(expected), "'%s' %s [%lld", (*named)->name, ggml_type_name((*named)->type),
            (long long) (*named)->ne[0]);
        if (strstr(said, expected) == NULL) {
            test_fail(__FILE__, line, "%s: \"%s\" lacks \"%s\"", call, said, expected);
        }
    }
    ggml_clear_error();
}

#define REFUSED(call, text, ...) \
    refused(__LINE__, call, #call, text, (const struct ggml_tensor * const[]){ __VA_ARGS__, NULL })

#define ACCEPTED(call)                                                                  \
    do {                                                                                \
        if ((call) == NULL)                                                             \
            test_fail(__FILE__, __LINE__, "%s: refused: %s", #call, ggml_last_error()); \
        ggml_clear_error();                                                             \
    } while (0)

static void whole_message(void) {
    TENSOR(w, F32, 128, 64);
    TENSOR(x, F32, 120, 16);
    ggml_mul_mat(ctx, w, x);
    CHECK_STR(ggml_last_error(), "ggml_mul_mat: a 'w' f32 [128, 64, 1, 1], b 'x' f32 [120, 16, 1, 1]: dimension 0 of a "
                                 "and b must be equal (128 != 120)");
    const struct gb_fault * fault = &gb_last_failure()->fault;
    CHECK(fault->kind == GB_FAULT_UNEQUAL && fault->a_dim == 0 && fault->b_dim == 0);
    CHECK(fault->number[0] == 128 && fault->number[1] == 120);
    CHECK_STR(fault->a, "a");
    CHECK_STR(fault->b, "b");
    ggml_clear_error();
    CHECK(fault->kind == GB_FAULT_NONE);
}

static enum gb_fault_kind last_kind(void) { return gb_last_failure()->fault.kind; }

// Other languages read the values of a fault.
static void faults(void) {
    TENSOR(a, F32, 4, 3, 2);
    TENSOR(b, F32, 5, 5);
    TENSOR(image, F32, 8, 8, 4);
    struct ggml_tensor * t = ggml_set_name(ggml_transpose(ctx, a), "t");
    const struct gb_fault * fault = &gb_last_failure()->fault;
    CHECK(ggml_reshape(ctx, a, b) == NULL && last_kind() == GB_FAULT_RESHAPE);
    CHECK(fault->number[0] == 24 && fault->number[1] == 5 && fault->number[4] == 1);
    CHECK(ggml_soft_max(ctx, t) == NULL && last_kind() == GB_FAULT_NOT_CONTIGUOUS);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT,
        "a must be contiguous, has strides [16, 4, 48, 96] in bytes: see ggml_cont");
    CHECK(ggml_get_rows(ctx, a, b) == NULL && last_kind() == GB_FAULT_OTHER_TYPE);
    CHECK(fault->t == GGML_TYPE_I32 && fault->u == GGML_TYPE_F32);
    CHECK_STR(fault->a, "b");
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "b must be i32, is f32");
    CHECK(ggml_argmax(ctx, a) == NULL && last_kind() == GB_FAULT_NO_MATRIX && fault->a_dim == 2);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "a must be a matrix, but dimension 2 is 2");
    CHECK(ggml_pool_1d(ctx, b, GGML_OP_POOL_MAX, 0, 1, 0) == NULL && last_kind() == GB_FAULT_TOO_SMALL);
    CHECK_STR(fault->name, "k0");
    CHECK(ggml_rms_norm(ctx, image, -1) == NULL && last_kind() == GB_FAULT_NOT_POSITIVE && fault->real == -1);
    // an error of another kind has no values of an earlier fault
    CHECK(ggml_new_tensor_1d(ctx, GGML_TYPE_F32, -1) == NULL && last_kind() == GB_FAULT_NONE);
    ggml_clear_error();
}

// Each field of a row has a value: the message contains no braces, and no field is empty.
static void rows_of_faults(void) {
    for (int kind = 0; kind < GB_FAULT_COUNT; kind++) {
        const struct gb_fault fault = { .kind = (enum gb_fault_kind) kind,
            .a = "AA",
            .b = "BB",
            .a_dim = 1,
            .b_dim = 2,
            .number = { 11, 22, 33, 44, 55 },
            .real = 0.5,
            .t = GGML_TYPE_F16,
            .u = GGML_TYPE_I32,
            .name = "nn" };
        char text[GB_REASON_SIZE], cut[8];
        gb_fault_write(&fault, text, sizeof(text));
        CHECK(strpbrk(text, "{}") == NULL && strlen(text) < sizeof(text) - 1);
        CHECK((*text == '\0') == (*gb_fault_message(fault.kind) == '\0'));
        gb_fault_write(&fault, cut, sizeof(cut));
        CHECK(strncmp(cut, text, sizeof(cut) - 1) == 0 && strlen(cut) < sizeof(cut));
    }
    char text[GB_REASON_SIZE];
    const struct gb_fault region = { .kind = GB_FAULT_REGION_OUTSIDE, .a = "a", .b = "b", .number = { 1, 2, 3, 4, 5 } };
    CHECK_STR(gb_fault_write(&region, text, sizeof(text)),
        "the region of b (offset 1, strides 2, 3, 4) must end within the 5 bytes of a");
    CHECK_STR(gb_fault_name(GB_FAULT_UNEQUAL), "UNEQUAL");
}

// The message of the library quotes values, the message of the interface does not.
static void quotes(void) {
    TENSOR(a, F32, 4, 3);
    ggml_set_name(a, "x\016y\017");
    ggml_argmax(ctx, ggml_view_3d(ctx, a, 1, 1, 2, 4, 4, 0));
    CHECK(strstr(gb_last_message(), "a " GB_QUOTE("'x?y? (view)' f32 [1, 1, 2]") ": ") != NULL);
    CHECK(strstr(ggml_last_error(), "a 'x?y? (view)' f32 [1, 1, 2]: ") != NULL);
    CHECK(strncmp(gb_last_message() + gb_last_failure()->text, "a ", 2) == 0);
    gb_fail(GGML_STATUS_FAILED, "outer: %s", gb_last_message());
    CHECK(strstr(gb_last_message(), GB_QUOTE("'x?y? (view)' f32 [1, 1, 2]")) != NULL);
    CHECK(gb_last_failure()->text == 0);
    gb_fail(GGML_STATUS_FAILED, "ggml_a: gb_b: gguf_c: d: e");
    CHECK(gb_last_failure()->text == strlen("ggml_a: gb_b: gguf_c: "));
    ggml_clear_error();
}

static void views(void) {
    TENSOR(a, F32, 4, 3, 2);
    TENSOR(b, F32, 5, 5);
    TENSOR(q, Q4_0, 64, 2);
    struct ggml_tensor * t = ggml_set_name(ggml_transpose(ctx, a), "t");
    REFUSED(ggml_reshape(ctx, a, b), "24 elements cannot have the shape [5, 5, 1, 1]", a);
    REFUSED(ggml_reshape(ctx, t, a), "a must be contiguous", t);
    REFUSED(ggml_reshape_1d(ctx, a, 23), "24", a);
    REFUSED(ggml_reshape_1d(ctx, a, -24), "-24", a);
    REFUSED(ggml_reshape_2d(ctx, a, -4, -6), "[-4, -6", a);
    REFUSED(ggml_reshape_2d(ctx, a, INT64_MAX, 2), "shape", a);
    REFUSED(ggml_reshape_3d(ctx, a, 4, 3, 3), "24", a);
    REFUSED(ggml_reshape_4d(ctx, a, 4, 3, 2, 2), "24", a);
    REFUSED(ggml_reshape_2d(ctx, q, 16, 8), "multiple of 32", q);
    ACCEPTED(ggml_reshape_2d(ctx, q, 32, 4));
    REFUSED(ggml_permute(ctx, a, 0, 1, 2, 2), "permutation", a);
    REFUSED(ggml_permute(ctx, a, 0, 1, 2, 4), "permutation", a);
    REFUSED(ggml_permute(ctx, a, -1, 1, 2, 3), "(-1, 1, 2, 3)", a);
    // the actual extent counts: 24 elements are 96 bytes
    ACCEPTED(ggml_view_1d(ctx, a, 24, 0));
    ACCEPTED(ggml_view_1d(ctx, a, 0, 96));
    REFUSED(ggml_view_1d(ctx, a, 24, 4), "96", a);
    REFUSED(ggml_view_1d(ctx, a, -1, 0), "-1", NULL);
    REFUSED(ggml_view_1d(ctx, a, 1, SIZE_MAX), "", NULL);
    ACCEPTED(ggml_view_2d(ctx, a, 2, 3, 44, 0)); // ends with byte 2 * 44 + 8
    REFUSED(ggml_view_2d(ctx, a, 2, 3, 45, 0), "96", a);
    REFUSED(ggml_view_2d(ctx, a, 2, 3, SIZE_MAX / 2, 0), "96", a);
    REFUSED(ggml_view_3d(ctx, a, 2, 2, 2, 16, 76, 0), "96", a);
    REFUSED(ggml_view_4d(ctx, a, 2, 2, 1, 2, 16, 48, 76, 0), "96", a);
    ACCEPTED(ggml_view_2d(ctx, a, 4, 10, 0, 80)); // rows may coincide
}

static void unary(void) {
    TENSOR(a, F32, 4, 3);
    REFUSED(ggml_unary(ctx, a, GGML_UNARY_OP_COUNT), "unary operator", a);
    REFUSED(ggml_unary_inplace(ctx, a, (enum ggml_unary_op) - 1), "unary operator", a);
    ACCEPTED(ggml_unary(ctx, a, (enum ggml_unary_op)(GGML_UNARY_OP_COUNT - 1)));
    ACCEPTED(ggml_relu(ctx, ggml_permute(ctx, a, 3, 2, 1, 0)));
    ACCEPTED(ggml_scale(ctx, ggml_transpose(ctx, a), NAN));
    ACCEPTED(ggml_clamp(ctx, a, -INFINITY, INFINITY));
}

static void binary(void) {
    TENSOR(a, F32, 4, 6, 2, 2);
    TENSOR(row, F32, 4);
    TENSOR(c0, F32, 3);
    TENSOR(c1, F32, 4, 4);
    TENSOR(c2, F32, 4, 6, 3);
    TENSOR(c3, F32, 4, 6, 2, 4);
    TENSOR(none, F32, 4, -1);
    REFUSED(ggml_add(ctx, a, c0), "dimension 0 of a (4) must be a multiple of dimension 0 of b (3)", a, c0);
    REFUSED(ggml_add(ctx, a, c1), "dimension 1 of a (6) must be a multiple of dimension 1 of b (4)", a, c1);
    REFUSED(ggml_add_inplace(ctx, a, c2), "dimension 2 of a (2) must be a multiple of dimension 2 of b (3)", a, c2);
    REFUSED(ggml_sub(ctx, a, c3), "dimension 3 of a (2) must be a multiple of dimension 3 of b (4)", a, c3);
    REFUSED(ggml_sub_inplace(ctx, row, a), "dimension 1 of a (1) must be a multiple of dimension 1 of b (6)", a, row);
    REFUSED(ggml_mul(ctx, a, none), "dimension 1 of a (6) must be a multiple of dimension 1 of b (0)", none, a);
    REFUSED(ggml_mul_inplace(ctx, a, c0), "dimension 0 of a (4) must be a multiple of dimension 0 of b (3)", a, c0);
    REFUSED(ggml_div(ctx, a, c1), "dimension 1 of a (6) must be a multiple of dimension 1 of b (4)", a, c1);
    REFUSED(ggml_div_inplace(ctx, a, c2), "dimension 2 of a (2) must be a multiple of dimension 2 of b (3)", a, c2);
    ACCEPTED(ggml_div(ctx, a, row));
    ACCEPTED(ggml_add(ctx, ggml_transpose(ctx, a), ggml_new_f32(ctx, 1)));
    ACCEPTED(ggml_add(ctx, none, none));

    row->grad = ggml_dup_tensor(ctx, row);
    ACCEPTED(ggml_mul(ctx, a, row)); // the derivative sums repeated elements

    TENSOR(two, F32, 2);
    REFUSED(ggml_add1(ctx, a, two), "b must be a scalar", a, two);
    REFUSED(ggml_add1_inplace(ctx, a, c1), "b must be a scalar", a, c1);
}

static void add_cast(void) {
    TENSOR(h, F16, 4, 6);
    TENSOR(f, F32, 4, 6);
    TENSOR(one, F32, 1);
    TENSOR(q, Q8_0, 32, 2);
    TENSOR(b, BF16, 4, 6);
    REFUSED(ggml_add_cast(ctx, f, f, GGML_TYPE_F32), "quantized, f16 or bf16", f);
    REFUSED(ggml_add_cast(ctx, h, one, GGML_TYPE_F32), "dimension 0", h, one);
    TENSOR(rows4, F32, 4, 4);
    REFUSED(ggml_add_cast(ctx, h, rows4, GGML_TYPE_F32), "dimension 1", h, rows4);
    REFUSED(ggml_add_cast(ctx, h, f, GGML_TYPE_COUNT), "type", h, f);
    REFUSED(ggml_add_cast(ctx, h, f, (enum ggml_type) 4), "type", h, f);
    REFUSED(ggml_add_cast(ctx, h, f, GGML_TYPE_Q8_0), "multiple of 32", h, f);
    ACCEPTED(ggml_add_cast(ctx, q, ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 32), GGML_TYPE_F32));
    ACCEPTED(ggml_add_cast(ctx, b, f, GGML_TYPE_F32));
}

static void regions(void) {
    TENSOR(a, F32, 4, 3, 2); // 96 bytes
    TENSOR(b, F32, 2, 2);
    TENSOR(h, F16, 2, 2);
    TENSOR(none, F32, 2, -1);
    TENSOR(q, Q4_0, 32);
    struct ggml_tensor * t = ggml_set_name(ggml_transpose(ctx, a), "t");
    ACCEPTED(ggml_acc(ctx, a, b, 16, 0, 0, 72)); // ends with byte 72 + 16 + 8
    ACCEPTED(ggml_acc(ctx, a, none, 16, 0, 0, 1000));
    REFUSED(ggml_acc(ctx, a, b, 16, 0, 0, 76), "within the 96 bytes", a, b);
    REFUSED(ggml_acc(ctx, a, b, 20, 0, 0, 72), "within the 96 bytes", a, b);
    REFUSED(ggml_acc_inplace(ctx, a, b, 16, 0, 0, 76), "within the 96 bytes", a, b);
    REFUSED(ggml_acc(ctx, b, a, 16, 48, 96, 0), "within the 16 bytes", a, b);
    REFUSED(ggml_acc(ctx, a, b, 16, 0, 0, (size_t) INT32_MAX + 1), "2^31", a, b);
    REFUSED(ggml_acc(ctx, a, b, (size_t) 1 << 40, 0, 0, 0), "2^31", a, b);
    ACCEPTED(ggml_acc(ctx, a, b, 16, (size_t) 1 << 40, SIZE_MAX, 0)); // strides that b does not use
    REFUSED(ggml_acc(ctx, a, b, 16, 0, 0, 2), "multiples of the 4 bytes", a, b);
    REFUSED(ggml_acc(ctx, a, b, 18, 0, 0, 0), "multiples of the 4 bytes", a, b);
    REFUSED(ggml_acc(ctx, a, h, 16, 0, 0, 0), "b must be f32", a, h);
    REFUSED(ggml_acc(ctx, h, b, 4, 0, 0, 0), "a must be f32", b, h);
    REFUSED(ggml_acc(ctx, t, b, 16, 0, 0, 0), "a must be contiguous", t, b);

    ACCEPTED(ggml_set(ctx, a, b, 16, 0, 0, 72));
    REFUSED(ggml_set(ctx, a, b, 16, 0, 0, 76), "within the 96 bytes", a, b);
    REFUSED(ggml_set_inplace(ctx, a, b, 32, 0, 0, 72), "within the 96 bytes", a, b);
    REFUSED(ggml_set(ctx, a, b, SIZE_MAX, 0, 0, 0), "2^31", a, b);
    REFUSED(ggml_set(ctx, q, b, 16, 0, 0, 0), "quantized", q, b);
    REFUSED(ggml_set_1d(ctx, a, a, 4), "within the 96 bytes", a);
    REFUSED(ggml_set_1d_inplace(ctx, a, b, 84), "within the 96 bytes", a, b);
    REFUSED(ggml_set_2d(ctx, a, b, 88, 4), "within the 96 bytes", a, b);
    REFUSED(ggml_set_2d_inplace(ctx, a, b, 92, 0), "within the 96 bytes", a, b);
    ACCEPTED(ggml_set_2d_inplace(ctx, a, b, 88, 0));
    // in place over a view with gaps the region may reach the end of the viewed memory; a new
    // result has no gaps
    struct ggml_tensor * gaps = ggml_view_2d(ctx, a, 1, 2, 48, 0); // 52 bytes of memory, 8 of elements
    ACCEPTED(ggml_set_inplace(ctx, gaps, ggml_new_f32(ctx, 1), 0, 0, 0, 48));
    REFUSED(ggml_set(ctx, gaps, b, 8, 0, 0, 0), "within the 8 bytes", gaps, b);
}

static void reductions(void) {
    TENSOR(a, F32, 4, 3, 2);
    TENSOR(none, F32, -1, 3);
    TENSOR(b, F32, 6, 3, 2);
    TENSOR(c, F32, 4, 2, 2);
    TENSOR(d, F32, 4, 3, 2, 2);
    TENSOR(i, I32, 4, 3, 2);
    REFUSED(ggml_argmax(ctx, a), "a must be a matrix", a);
    REFUSED(ggml_argmax(ctx, none), "dimension 0", none);
    TENSOR(wide, F32, (int64_t) 1 << 31); // positions in a row are I32
    REFUSED(ggml_argmax(ctx, wide), "dimension 0", wide);
    REFUSED(ggml_argsort(ctx, wide, GGML_SORT_ASC), "dimension 0", wide);
    REFUSED(ggml_top_k(ctx, wide, 1), "dimension 0", wide);
    REFUSED(ggml_argsort(ctx, a, (enum ggml_sort_order) 2), "sort order", a);
    REFUSED(ggml_argsort(ctx, a, (enum ggml_sort_order) - 1), "sort order", a);
    ACCEPTED(ggml_argsort(ctx, a, GGML_SORT_ASC));
    REFUSED(ggml_top_k(ctx, a, 5), "k must be from 1 to 4", a);
    REFUSED(ggml_top_k(ctx, a, 0), "k must be from 1 to 4", a);
    ACCEPTED(ggml_top_k(ctx, a, 4));
    REFUSED(ggml_repeat(ctx, a, b), "dimension 0", a, b);
    REFUSED(ggml_repeat(ctx, none, b), "dimension 0", none, b);
    ACCEPTED(ggml_repeat(ctx, none, none)); // empty over empty
    ACCEPTED(ggml_repeat(ctx, a, d));
    REFUSED(ggml_repeat_back(ctx, a, b), "dimension 0", a, b);
    REFUSED(ggml_repeat_back(ctx, a, d), "dimension 3", a, d);
    CHECK(ggml_repeat_back(ctx, a, i) == a);
    a->grad = ggml_dup_tensor(ctx, a);
    CHECK(ggml_repeat_back(ctx, a, i) != a);
    REFUSED(ggml_concat(ctx, a, b), "dimension 0", a, b);
    REFUSED(ggml_concat(ctx, a, c), "dimension 1", a, c);
    REFUSED(ggml_concat(ctx, a, d), "dimension 3", a, d);
    REFUSED(ggml_concat(ctx, a, i), "a (f32) and b (i32) must have the same type", a, i);
}

static void copies(void) {
    TENSOR(a, F32, 4, 3, 2);
    TENSOR(b, F32, 5, 5);
    REFUSED(ggml_cpy(ctx, a, b), "(24 != 25)", a, b);
    ACCEPTED(ggml_cpy(ctx, ggml_transpose(ctx, a), ggml_permute(ctx, a, 2, 0, 1, 3)));
    REFUSED(ggml_cast(ctx, a, GGML_TYPE_COUNT), "type", a);
    REFUSED(ggml_cast(ctx, a, (enum ggml_type) - 1), "type", a);
    REFUSED(ggml_cast(ctx, a, (enum ggml_type) 31), "type", a);
    REFUSED(ggml_cast(ctx, a, GGML_TYPE_Q4_0), "multiple of 32", a);
    REFUSED(ggml_cont_1d(ctx, a, 25), "24", a);
    REFUSED(ggml_cont_2d(ctx, a, 5, 5), "24", a);
    REFUSED(ggml_cont_3d(ctx, a, 4, 3, 1), "24", a);
    REFUSED(ggml_cont_4d(ctx, a, 4, 3, 2, -1), "24", a);
    ACCEPTED(ggml_cont_2d(ctx, ggml_transpose(ctx, a), 2, 12));

    TENSOR(f, F32, 7, 2, 2);
    TENSOR(i, I32, 7, 2, 2);
    TENSOR(j, I32, 7, 3, 2);
    TENSOR(k, I32, 7, 2, 1, 2);
    TENSOR(rows, F16, 4, 3, 2);
    REFUSED(ggml_get_rows(ctx, rows, f), "b must be i32, is f32", rows, f);
    REFUSED(ggml_get_rows(ctx, rows, j), "(2 != 3)", rows, j);
    REFUSED(ggml_get_rows(ctx, rows, k), "dimension 3 is 2", rows, k);
    REFUSED(ggml_get_rows(ctx, rows, i), "dimension 3 of a must be at least 2", rows, i);

    TENSOR(written, F32, 4, 7, 2);
    TENSOR(p, I32, 7, 2);
    TENSOR(p3, I32, 7, 3);
    TENSOR(p4, I32, 7, 1, 1, 2);
    TENSOR(p5, I64, 5);
    REFUSED(ggml_set_rows(ctx, rows, written, f), "c must be i32 or i64, is f32", rows, written, f);
    REFUSED(ggml_set_rows(ctx, rows, p, p), "b must be f32, f16 or bf16, is i32", rows, p, p);
    REFUSED(ggml_set_rows(ctx, rows, f, p), "(4 != 7)", rows, f, p);
    REFUSED(ggml_set_rows(ctx, rows, written, p5), "(7 != 5)", rows, written, p5);
    REFUSED(ggml_set_rows(ctx, rows, written, p3), "dimension 2 of b (2) must be a multiple of dimension 1 of c (3)",
        rows, written);
    REFUSED(ggml_set_rows(ctx, rows, written, p4), "dimension 3 is 2", rows, written, p4);
    ACCEPTED(ggml_set_rows(ctx, rows, written, p));

    TENSOR(g, F32, 4, 3);
    TENSOR(v, I32, 3);
    TENSOR(v4, I32, 4);
    TENSOR(s, F32, 4, 9);
    TENSOR(s5, F32, 5, 9);
    REFUSED(ggml_get_rows_back(ctx, a, v, s), "a must be a matrix", a, v, s);
    REFUSED(ggml_get_rows_back(ctx, g, g, s), "b must be i32", g, s);
    REFUSED(ggml_get_rows_back(ctx, g, i, s), "b must be a vector", g, i, s);
    REFUSED(ggml_get_rows_back(ctx, g, v4, s), "(3 != 4)", g, v4, s);
    REFUSED(ggml_get_rows_back(ctx, g, v, s5), "(4 != 5)", g, v, s5);
    REFUSED(ggml_get_rows_back(ctx, g, v, a), "c must be a matrix", g, v, a);
    REFUSED(ggml_diag(ctx, g), "dimension 1 of a must be 1, is 3", g);
}

static void products(void) {
    TENSOR(w, F16, 8, 5, 2, 3);
    TENSOR(x, F32, 8, 4, 4, 6);
    TENSOR(x0, F32, 9, 4, 4, 6);
    TENSOR(x2, F32, 8, 4, 3, 6);
    TENSOR(x3, F32, 8, 4, 4, 4);
    TENSOR(none, F32, 8, 4, -1, 6);
    struct ggml_tensor * t =
        ggml_set_name(ggml_transpose(ctx, ggml_new_tensor_4d(ctx, GGML_TYPE_F32, 5, 8, 2, 3)), "t");
    REFUSED(ggml_mul_mat(ctx, w, x0), "(8 != 9)", w, x0);
    REFUSED(ggml_mul_mat(ctx, w, x2), "dimension 2", w, x2);
    REFUSED(ggml_mul_mat(ctx, w, x3), "dimension 3", w, x3);
    REFUSED(ggml_mul_mat(ctx, none, x), "dimension 2", none, x);
    REFUSED(ggml_mul_mat(ctx, t, x), "transposed", t, x);
    ACCEPTED(ggml_mul_mat(ctx, w, none)); // a product without terms is valid
    ACCEPTED(ggml_mul_mat(ctx, ggml_permute(ctx, w, 0, 2, 1, 3), ggml_new_tensor_4d(ctx, GGML_TYPE_F32, 8, 4, 5, 3)));
    struct ggml_tensor * node = ggml_mul_mat(ctx, w, x);
    CHECK_INT(ggml_mul_mat_set_prec(node, GGML_PREC_F32), GGML_STATUS_SUCCESS);
    CHECK_INT(node->op_params[0], 1);
    CHECK_INT(ggml_mul_mat_set_prec(NULL, GGML_PREC_F32), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "ggml_mul_mat_set_prec");
    CHECK_INT(ggml_mul_mat_set_prec(x, GGML_PREC_F32), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "has NONE 'x'");
    CHECK_INT(ggml_mul_mat_set_prec(node, (enum ggml_prec) 7), GGML_STATUS_INVALID_ARGUMENT);
    CHECK_ERROR(GGML_STATUS_INVALID_ARGUMENT, "7");
    CHECK_INT(node->op_params[0], 1);

    TENSOR(m, F32, 8, 5, 2, 3);
    TENSOR(n, F32, 6, 5, 4, 6);
    TENSOR(n1, F32, 6, 4, 4, 6);
    TENSOR(n2, F32, 6, 5, 3, 6);
    TENSOR(n3, F32, 6, 5, 4, 4);
    REFUSED(ggml_out_prod(ctx, m, n1), "dimension 1", m, n1);
    REFUSED(ggml_out_prod(ctx, m, n2), "dimension 2", m, n2);
    REFUSED(ggml_out_prod(ctx, m, n3), "dimension 3", m, n3);
    REFUSED(ggml_out_prod(ctx, ggml_transpose(ctx, ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 5, 8)), n), "transposed", n);
    ACCEPTED(ggml_out_prod(ctx, m, ggml_transpose(ctx, ggml_new_tensor_4d(ctx, GGML_TYPE_F32, 5, 6, 4, 6))));
}

static void experts(void) {
    TENSOR(e0, F32, 8, 5);
    TENSOR(e1, F32, 8, 5);
    TENSOR(e_shape, F32, 8, 6);
    TENSOR(e_type, F16, 8, 5);
    TENSOR(ids, I32, 3, 7);
    TENSOR(ids_f, F32, 3, 7);
    TENSOR(ids_6, I32, 3, 6);
    TENSOR(ids_3d, I32, 3, 7, 2);
    TENSOR(x, F32, 8, 7);
    TENSOR(x_3d, F32, 8, 7, 2);
    TENSOR(x9, F32, 9, 7);
    struct ggml_tensor * as[9] = { e0, e1, e0, e1, e0, e1, e0, e1, e0 };
    ACCEPTED(ggml_mul_mat_id(ctx, as, 8, ids, 2, x));
    ACCEPTED(ggml_mul_mat_id(ctx, as, 1, ids, 0, x));
    REFUSED(ggml_mul_mat_id(ctx, as, 9, ids, 0, x), "n_as must be from 1 to 8, is 9", ids, x);
    REFUSED(ggml_mul_mat_id(ctx, as, 0, ids, 0, x), "n_as must be from 1 to 8, is 0", ids, x);
    REFUSED(ggml_mul_mat_id(ctx, as, 2, ids, 3, x), "id must be from 0 to 2, is 3", ids, x);
    REFUSED(ggml_mul_mat_id(ctx, as, 2, ids, -1, x), "id must be from 0 to 2, is -1", ids, x);
    REFUSED(ggml_mul_mat_id(ctx, as, 2, ids_f, 0, x), "ids must be i32", ids_f, x);
    REFUSED(ggml_mul_mat_id(ctx, as, 2, ids_6, 0, x), "(6 != 7)", ids_6, x);
    REFUSED(ggml_mul_mat_id(ctx, as, 2, ids_3d, 0, x), "ids must be a matrix", ids_3d, x);
    ACCEPTED(ggml_mul_mat_id(ctx, as, 2, ids, 0, x_3d));
    REFUSED(ggml_mul_mat_id(ctx, as, 2, ids, 0, x9), "(8 != 9)", ids, x9);
    as[1] = e_shape;
    REFUSED(ggml_mul_mat_id(ctx, as, 2, ids, 0, x), "dimension 1 of as[0] and as[1]", e0, e_shape, ids, x);
    as[1] = e_type;
    REFUSED(ggml_mul_mat_id(ctx, as, 2, ids, 0, x), "as[0] (f32) and as[1] (f16) must have the same type", e0, e_type,
        ids, x);
    as[1] = NULL;
    REFUSED(ggml_mul_mat_id(ctx, as, 2, ids, 0, x), "'as[1]' is NULL", NULL);
    REFUSED(ggml_mul_mat_id(ctx, NULL, 2, ids, 0, x), "'as' is NULL", NULL);
}

static void comparisons(void) {
    TENSOR(a, F32, 4, 3);
    TENSOR(h, F16, 4, 1);
    TENSOR(i, I32, 4, 3);
    TENSOR(b, F32, 3, 3);
    TENSOR(m, I32, 4, 1, 5);
    TENSOR(m2, F32, 4, 2);
    ACCEPTED(ggml_compare(ctx, a, h, GGML_COMPARE_LESS));
    ACCEPTED(ggml_compare(ctx, i, i, GGML_COMPARE_EQUAL));
    REFUSED(ggml_compare(ctx, a, i, GGML_COMPARE_EQUAL), "a (f32) and b (i32) must both be i32, or both floats", a, i);
    REFUSED(ggml_compare(ctx, a, b, GGML_COMPARE_EQUAL), "dimension 0", a, b);
    REFUSED(ggml_compare(ctx, h, a, GGML_COMPARE_EQUAL), "dimension 1", h, a);
    REFUSED(ggml_compare(ctx, a, a, GGML_COMPARE_COUNT), "comparison", a);
    REFUSED(ggml_compare(ctx, a, a, (enum ggml_comparison) - 1), "comparison", a);
    ACCEPTED(ggml_where(ctx, m, a, a));
    ACCEPTED(ggml_where(ctx, a, i, i));
    REFUSED(ggml_where(ctx, m, a, i), "same type", m, a, i);
    REFUSED(ggml_where(ctx, m2, a, a), "dimension 1 of cond (2) must divide the largest size of the operands there (3)",
        m2, a);
    REFUSED(ggml_where(ctx, a, a, b), "dimension 0 of b (3) must divide the largest size of the operands there (4)", a,
        b);
    const struct ggml_tensor * wide = ggml_where(ctx, m, a, a);
    CHECK(wide->ne[0] == 4 && wide->ne[1] == 3 && wide->ne[2] == 5 && wide->ne[3] == 1 && wide->type == GGML_TYPE_F32);
}

static void norms(void) {
    TENSOR(a, F32, 4, 3);
    TENSOR(b, F32, 4, 1);
    REFUSED(ggml_norm(ctx, a, 0), "eps must be above 0", a);
    REFUSED(ggml_norm(ctx, a, -1e-5f), "eps must be above 0", a);
    REFUSED(ggml_norm_inplace(ctx, a, NAN), "eps must be above 0", a);
    REFUSED(ggml_rms_norm(ctx, a, 0), "eps must be above 0", a);
    REFUSED(ggml_rms_norm_inplace(ctx, a, -1), "eps must be above 0", a);
    REFUSED(ggml_rms_norm_back(ctx, a, a, -1), "eps", a);
    REFUSED(ggml_rms_norm_back(ctx, a, b, 1), "dimension 1", a, b);
    REFUSED(ggml_group_norm(ctx, a, 0), "n_groups", a);
    REFUSED(ggml_group_norm_inplace(ctx, a, -3), "n_groups", a);
    REFUSED(ggml_group_norm_eps(ctx, a, 2, 0), "eps must be above 0", a);
    ACCEPTED(ggml_group_norm(ctx, a, 7)); // more groups than channels: some are empty
    REFUSED(ggml_silu_back(ctx, a, b), "dimension 1", a, b);
    ACCEPTED(ggml_norm(ctx, ggml_permute(ctx, a, 0, 2, 1, 3), 1e-6f));
}

static void soft_max_and_masks(void) {
    TENSOR(a, F32, 4, 6, 2, 5);
    TENSOR(m, F32, 4, 3);
    TENSOR(m0, F32, 5, 3);
    TENSOR(m1, F32, 4, 4);
    TENSOR(m2, F32, 4, 6, 3);
    TENSOR(mi, I32, 4, 3);
    struct ggml_tensor * t = ggml_set_name(ggml_permute(ctx, a, 0, 2, 1, 3), "t");
    struct ggml_tensor * mt = ggml_set_name(ggml_transpose(ctx, ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 3, 4)), "mt");
    ACCEPTED(ggml_soft_max_ext(ctx, a, m, 1));
    REFUSED(ggml_soft_max_ext(ctx, a, m0, 1), "dimension 0 of mask must be 4, is 5", a, m0);
    REFUSED(ggml_soft_max_ext(ctx, a, m1, 1), "dimension 1 of a (6) must be a multiple of dimension 1 of mask (4)", a,
        m1);
    REFUSED(ggml_soft_max_ext(ctx, a, m2, 1), "dimension 2", a, m2);
    REFUSED(ggml_soft_max_ext(ctx, a, mi, 1), "mask must be f16 or f32", a, mi);
    REFUSED(ggml_soft_max_ext(ctx, a, mt, 1), "mask must be contiguous", a, mt);
    REFUSED(ggml_soft_max_ext(ctx, t, NULL, 1), "a must be contiguous", t);
    REFUSED(ggml_soft_max_ext(ctx, t, m, 1), "a must be contiguous", t, m);
    REFUSED(ggml_soft_max(ctx, t), "a must be contiguous", t);
    REFUSED(ggml_soft_max_inplace(ctx, t), "a must be contiguous", t);
    REFUSED(ggml_soft_max_back(ctx, a, m), "dimension 1", a, m);
    TENSOR(back, F32, 4, 2, 6, 5);
    REFUSED(ggml_soft_max_back(ctx, t, back), "a must be contiguous", t, back);
    REFUSED(ggml_soft_max_back(ctx, back, t), "b must be contiguous", t, back);
    REFUSED(ggml_soft_max_back_inplace(ctx, a, m), "dimension 1", a, m);
    REFUSED(ggml_diag_mask_inf(ctx, a, -1), "n_past", a);
    REFUSED(ggml_diag_mask_inf(ctx, t, 0), "contiguous", t);
    REFUSED(ggml_diag_mask_inf_inplace(ctx, a, -1), "n_past", a);
    REFUSED(ggml_diag_mask_zero(ctx, t, 0), "contiguous", t);
    REFUSED(ggml_diag_mask_zero_inplace(ctx, a, INT32_MIN), "n_past", a);
    ACCEPTED(ggml_diag_mask_inf_inplace(ctx, t, 0));
    REFUSED(ggml_alibi(ctx, a, 0, 3, 8), "dimension 2 of a must be 3", a);
    REFUSED(ggml_alibi(ctx, a, 0, 0, 8), "n_head", a);
}

static void ropes(void) {
    TENSOR(a, F32, 8, 3, 5, 2);
    TENSOR(odd, F32, 7, 3, 5, 2);
    TENSOR(p, I32, 5);
    TENSOR(p6, I32, 6);
    TENSOR(p2, I32, 5, 2);
    TENSOR(pf, F32, 5);
    TENSOR(wide, I32, 2, 5);
    struct ggml_tensor * gaps = ggml_set_name(ggml_transpose(ctx, ggml_view_2d(ctx, wide, 1, 5, 8, 0)), "gaps");
    REFUSED(ggml_rope(ctx, a, pf, 8, 0, 0), "b must be i32", a, pf);
    REFUSED(ggml_rope(ctx, a, p6, 8, 0, 0), "dimension 2 of a must equal dimension 0 of b (5 != 6)", a, p6);
    REFUSED(ggml_rope(ctx, a, p2, 8, 0, 0), "b must be a vector", a, p2);
    REFUSED(ggml_rope(ctx, a, gaps, 8, 0, 0), "b must be contiguous", a, gaps);
    REFUSED(ggml_rope(ctx, a, p, 10, 0, 0), "n_dims must be even and from 2 to 8, is 10", a, p);
    REFUSED(ggml_rope(ctx, a, p, 7, 0, 0), "n_dims", a, p);
    REFUSED(ggml_rope(ctx, a, p, 0, 0, 0), "n_dims", a, p);
    REFUSED(ggml_rope(ctx, a, p, -2, 0, 0), "n_dims", a, p);
    REFUSED(ggml_rope_inplace(ctx, a, p, 8, 8, 0), "mode must be from 0 to 7", a, p);
    REFUSED(ggml_rope(ctx, a, p, 4, 4 | GGML_ROPE_EXACT, 9), "GGML_ROPE_EXACT goes with mode 0 or 2, not with 4", a, p);
    ACCEPTED(ggml_rope(ctx, a, p, 4, 2 | GGML_ROPE_EXACT, 0));
    REFUSED(ggml_rope_inplace(ctx, a, p, 8, -1, 0), "mode", a, p);
    REFUSED(ggml_rope(ctx, odd, p, 6, 0, 0), "even dimension 0", odd, p);
    ACCEPTED(ggml_rope(ctx, odd, p, 6, 2, 0)); // NeoX copies the elements from n_dims on
    REFUSED(ggml_rope(ctx, a, p, 8, 4, 0), "mode 4 needs dimension 0 of a (8) to be 2 * n_dims (8)", a, p);
    ACCEPTED(ggml_rope(ctx, a, p, 4, 4, 0));
    REFUSED(ggml_rope_custom(ctx, a, p, 9, 0, 0, 0, 1e4f, 1, 0, 1, 0, 0), "n_dims", a, p);
    REFUSED(ggml_rope_custom(ctx, a, p, 8, 0, 0, 0, 0, 1, 0, 1, 0, 0), "freq_base must be above 0", a, p);
    REFUSED(ggml_rope_custom_inplace(ctx, a, p, 8, 0, 0, 0, -1, 1, 0, 1, 0, 0), "freq_base", a, p);
    REFUSED(ggml_rope_xpos_inplace(ctx, a, p, 5, 512, true), "n_dims", a, p);
    REFUSED(ggml_rope_back(ctx, a, p, 4, 4, 0, 0, 1e4f, 1, 0, 1, 0, 0, 0, false), "no backward form", a, p);
    REFUSED(ggml_rope_back(ctx, a, p, 5, 0, 0, 0, 1e4f, 1, 0, 1, 0, 0, 0, false), "n_dims", a, p);
    ACCEPTED(ggml_rope(ctx, ggml_permute(ctx, a, 0, 2, 1, 3), ggml_new_tensor_1d(ctx, GGML_TYPE_I32, 3), 8, 0, 0));
}

static void convolutions(void) {
    TENSOR(a, F16, 3, 2, 4, 6);
    TENSOR(b, F32, 10, 6, 4, 5);
    TENSOR(b5, F32, 10, 6, 5, 5);
    TENSOR(bf, BF16, 3, 2, 4, 6);
    TENSOR(small, F32, 2, 6, 4, 5);
    REFUSED(ggml_im2col(ctx, a, b5, 1, 1, 0, 0, 1, 1, true), "dimension 2", a, b5);
    REFUSED(ggml_im2col(ctx, bf, b, 1, 1, 0, 0, 1, 1, true), "a must be f16 or f32", bf, b);
    REFUSED(ggml_im2col(ctx, a, b, 0, 1, 0, 0, 1, 1, true), "s0", a, b);
    REFUSED(ggml_im2col(ctx, a, b, 1, 0, 0, 0, 1, 1, true), "s1", a, b);
    REFUSED(ggml_im2col(ctx, a, b, 1, 1, -1, 0, 1, 1, true), "p0", a, b);
    REFUSED(ggml_im2col(ctx, a, b, 1, 1, 0, -1, 1, 1, true), "p1", a, b);
    REFUSED(ggml_im2col(ctx, a, b, 1, 1, 0, 0, 0, 1, true), "d0", a, b);
    REFUSED(ggml_im2col(ctx, a, b, 1, 1, 0, 0, 1, -1, true), "d1", a, b);
    REFUSED(ggml_im2col(ctx, a, small, 1, 1, 0, 0, 1, 1, true), "does not fit", a, small);
    ACCEPTED(ggml_im2col(ctx, a, small, 1, 1, 1, 0, 1, 1, true));
    REFUSED(ggml_im2col(ctx, a, b, 1, 1, 0, 0, 1, 6, true), "along dimension 1", a, b);
    REFUSED(ggml_im2col(ctx, a, b, 1, 1, 0, 0, INT32_MAX, 1, true), "does not fit", a, b);
    REFUSED(ggml_im2col(ctx, a, b, 1, 0, 0, 0, 1, 0, false), "dimension 1", a, b);

    TENSOR(k, F16, 3, 2, 6);
    TENSOR(k4, F16, 3, 2, 6, 2);
    TENSOR(x, F32, 10, 2, 4);
    TENSOR(x3, F32, 10, 3, 4);
    TENSOR(x4, F32, 10, 2, 4, 2);
    struct ggml_tensor * kt =
        ggml_set_name(ggml_permute(ctx, ggml_new_tensor_3d(ctx, GGML_TYPE_F16, 2, 3, 6), 1, 0, 2, 3), "kt");
    REFUSED(ggml_conv_1d(ctx, k, x3, 1, 0, 1), "dimension 1", k, x3);
    REFUSED(ggml_conv_1d(ctx, k, x4, 1, 0, 1), "3 dimensions", k, x4);
    REFUSED(ggml_conv_1d(ctx, k4, x, 1, 0, 1), "3 dimensions", k4, x);
    REFUSED(ggml_conv_1d(ctx, kt, x, 1, 0, 1), "a must be contiguous", kt, x);
    REFUSED(ggml_conv_1d(ctx, k, x, 0, 0, 1), "s0", k, x);
    REFUSED(ggml_conv_1d_ph(ctx, k, x, 1, 0), "d0", k, x);
    REFUSED(ggml_conv_1d_ph(ctx, k, x, -1, 1), "s0", k, x);
    REFUSED(ggml_conv_2d(ctx, a, b5, 1, 1, 0, 0, 1, 1), "dimension 2", a, b5);
    REFUSED(ggml_conv_2d(ctx, a, b, 1, 1, 0, -1, 1, 1), "p1", a, b);
    REFUSED(ggml_conv_2d_sk_p0(ctx, a, small), "does not fit", a, small);
    REFUSED(ggml_conv_2d_s1_ph(ctx, a, b5), "dimension 2", a, b5);

    TENSOR(kd, F16, 3, 2, 1, 4);
    TENSOR(kd3, F16, 3, 2, 1, 3);
    struct ggml_tensor * kdt = ggml_permute(ctx, ggml_new_tensor_4d(ctx, GGML_TYPE_F16, 2, 3, 1, 4), 1, 0, 2, 3);
    REFUSED(ggml_conv_depthwise_2d(ctx, kdt, b, 1, 1, 0, 0, 1, 1), "a must be contiguous", b);
    REFUSED(ggml_conv_depthwise_2d(ctx, kd3, b, 1, 1, 0, 0, 1, 1), "multiple of the number of kernels (3)", kd3, b);
    REFUSED(ggml_conv_depthwise_2d(ctx, kd, b, 1, 1, 0, 0, 0, 1), "d0", kd, b);
    REFUSED(ggml_conv_depthwise_2d(ctx, bf, b, 1, 1, 0, 0, 1, 1), "a must be f16 or f32", bf, b);
    REFUSED(ggml_conv_depthwise_2d(ctx, kd, ggml_permute(ctx, b, 1, 0, 2, 3), 1, 1, 0, 0, 1, 1), "b must be contiguous",
        kd);
    ACCEPTED(ggml_conv_depthwise_2d(ctx, ggml_new_tensor_4d(ctx, GGML_TYPE_F32, 3, 2, 1, 2), b, 1, 1, 0, 0, 1, 1));

    TENSOR(t, F16, 3, 4, 6);
    TENSOR(s, F32, 10, 6);
    TENSOR(s5, F32, 10, 5);
    REFUSED(ggml_conv_transpose_1d(ctx, t, s5, 1, 0, 1), "(6 != 5)", t, s5);
    REFUSED(ggml_conv_transpose_1d(ctx, t, b, 1, 0, 1), "b must be a matrix", t, b);
    REFUSED(ggml_conv_transpose_1d(ctx, k4, s, 1, 0, 1), "a must have at most 3 dimensions, but dimension 3 is 2", k4,
        s);
    REFUSED(ggml_conv_transpose_1d(ctx, t, s, 0, 0, 1), "s0", t, s);
    REFUSED(ggml_conv_transpose_1d(ctx, t, s, 1, 1, 1), "p0", t, s);
    REFUSED(ggml_conv_transpose_1d(ctx, t, s, 1, 0, 2), "d0", t, s);
    TENSOR(t0, F16, -1, 4, 6);
    TENSOR(s0, F32, -1, 6);
    REFUSED(ggml_conv_transpose_1d(ctx, t0, s, 1, 0, 1), "dimension 0 of a", t0, s);
    REFUSED(ggml_conv_transpose_1d(ctx, t, s0, 1, 0, 1), "dimension 0 of b", t, s0);
    TENSOR(a0, F16, 3, -1, 6, 4);
    REFUSED(ggml_conv_transpose_2d_p0(ctx, a0, b, 1), "dimension 1", a0, b);
    REFUSED(ggml_conv_transpose_2d_p0(ctx, a, b, 1), "(6 != 4)", a, b);
    REFUSED(ggml_conv_transpose_2d_p0(ctx, ggml_new_tensor_4d(ctx, GGML_TYPE_F16, 3, 2, 6, 4), b, 0), "stride", b);
    ACCEPTED(ggml_conv_transpose_2d_p0(ctx, ggml_new_tensor_4d(ctx, GGML_TYPE_F16, 3, 2, 6, 4), b, INT32_MAX / 100));
}

static void pooling(void) {
    TENSOR(a, F32, 10, 6);
    TENSOR(c, F32, 10, 6, 4);
    TENSOR(d, F32, 10, 6, 4, 2);
    REFUSED(ggml_pool_1d(ctx, a, GGML_OP_POOL_COUNT, 2, 2, 0), "pooling operator", a);
    REFUSED(ggml_pool_1d(ctx, a, GGML_OP_POOL_MAX, 0, 2, 0), "k0", a);
    REFUSED(ggml_pool_1d(ctx, a, GGML_OP_POOL_MAX, 2, 0, 0), "s0", a);
    REFUSED(ggml_pool_1d(ctx, a, GGML_OP_POOL_MAX, 2, 2, -1), "p0", a);
    REFUSED(ggml_pool_1d(ctx, a, GGML_OP_POOL_MAX, 11, 2, 0), "does not fit", a);
    REFUSED(ggml_pool_1d(ctx, c, GGML_OP_POOL_MAX, 2, 2, 0), "matrix", c);
    REFUSED(ggml_pool_2d(ctx, c, (enum ggml_op_pool) - 1, 2, 2, 2, 2, 0, 0), "pooling operator", c);
    REFUSED(ggml_pool_2d(ctx, c, GGML_OP_POOL_AVG, 2, -2, 2, 2, 0, 0), "k1", c);
    REFUSED(ggml_pool_2d(ctx, c, GGML_OP_POOL_AVG, 2, 2, 2, 0, 0, 0), "s1", c);
    REFUSED(ggml_pool_2d(ctx, c, GGML_OP_POOL_AVG, 2, 2, 2, 2, NAN, 0), "p0", c);
    REFUSED(ggml_pool_2d(ctx, c, GGML_OP_POOL_AVG, 2, 2, 2, 2, 0, -0.5f), "p1", c);
    REFUSED(ggml_pool_2d(ctx, c, GGML_OP_POOL_AVG, 2, 2, 2, 2, 0, FLT_MAX), "p1", c);
    REFUSED(ggml_pool_2d(ctx, c, GGML_OP_POOL_AVG, 2, 8, 2, 2, 0, 0.5f), "along dimension 1", c);
    REFUSED(ggml_pool_2d(ctx, d, GGML_OP_POOL_AVG, 2, 2, 2, 2, 0, 0), "3 dimensions", d);
    REFUSED(ggml_upscale(ctx, a, 0), "scale_factor", a);
    REFUSED(ggml_upscale(ctx, a, -2), "scale_factor", a);
    TENSOR(wide, I8, (int64_t) 1 << 60, 1);
    TENSOR(high, I8, 1, (int64_t) 1 << 60);
    REFUSED(ggml_upscale(ctx, wide, 8), "dimension 0 of a", wide);
    REFUSED(ggml_upscale(ctx, high, 8), "dimension 1 of a", high);
    REFUSED(ggml_pad(ctx, a, -1, 0, 0, 0), "p0", a);
    REFUSED(ggml_pad(ctx, a, 0, -1, 0, 0), "p1", a);
    REFUSED(ggml_pad(ctx, a, 0, 0, -1, 0), "p2", a);
    REFUSED(ggml_pad(ctx, a, 0, 0, 0, -1), "p3", a);
}

static void attention(void) {
    TENSOR(q, F32, 8, 3, 4, 2);
    TENSOR(k, F32, 8, 5, 2, 2);
    TENSOR(v, F32, 5, 8, 2, 2);
    ACCEPTED(ggml_flash_attn(ctx, q, k, v, false));
    TENSOR(k_type, F16, 8, 5, 2, 2);
    TENSOR(v_type, F16, 5, 8, 2, 2);
    TENSOR(k_d, F32, 9, 5, 2, 2);
    TENSOR(k_h, F32, 8, 5, 3, 2);
    TENSOR(k_b, F32, 8, 5, 2, 1);
    TENSOR(k_short, F32, 8, 2, 2, 2);
    TENSOR(v_short, F32, 2, 8, 2, 2);
    TENSOR(v_m, F32, 6, 8, 2, 2);
    TENSOR(v_d, F32, 5, 7, 2, 2);
    TENSOR(v_b, F32, 5, 8, 2, 1);
    REFUSED(ggml_flash_attn(ctx, q, k_type, v, true), "q (f32) and k (f16) must have the same type", q, k_type, v);
    REFUSED(ggml_flash_attn(ctx, q, k, v_type, true), "q (f32) and v (f16) must have the same type", q, k, v_type);
    REFUSED(ggml_flash_attn(ctx, q, k_d, v, true), "dimension 0", q, k_d, v);
    REFUSED(ggml_flash_attn(ctx, q, k_h, v, true), "dimension 2", q, k_h, v);
    REFUSED(ggml_flash_attn(ctx, q, k_b, v, true), "dimension 3", q, k_b, v);
    REFUSED(ggml_flash_attn(ctx, q, k, v_m, true), "dimension 0 of v must equal dimension 1 of k (6 != 5)", q, k, v_m);
    REFUSED(ggml_flash_attn(ctx, q, k, v_d, true), "dimension 1 of v must equal dimension 0 of q (7 != 8)", q, k, v_d);
    REFUSED(ggml_flash_attn(ctx, q, k, v_b, true), "dimension 3", q, k, v_b);
    REFUSED(ggml_flash_attn(ctx, q, k_short, v_short, true),
        "dimension 1 of k (2) must be at least dimension 1 of q (3)", q, k_short, v_short);

    TENSOR(v_none, F32, 5, 8, -1, 2);
    REFUSED(ggml_flash_attn(ctx, q, k, v_none, true), "dimension 2 of v", q, k, v_none);

    TENSOR(d, F32, 8, 3, 4, 2);
    TENSOR(d_n, F32, 8, 4, 4, 2);
    TENSOR(v_h, F32, 5, 8, 1, 2);
    TENSOR(q16, F16, 8, 3, 4, 2);
    ACCEPTED(ggml_flash_attn_back(ctx, q, k, v, d, false));
    REFUSED(ggml_flash_attn_back(ctx, q16, k_type, v_type, d, true), "q must be f32", q16, k_type, v_type, d);
    REFUSED(ggml_flash_attn_back(ctx, q, k, v, q16, true), "d must be f32", q, k, v, q16);
    REFUSED(ggml_flash_attn_back(ctx, q, k, v, d_n, true), "dimension 1", q, k, v, d_n);
    REFUSED(ggml_flash_attn_back(ctx, q, k, v_m, d, true), "(6 != 5)", q, k, v_m, d);
    REFUSED(ggml_flash_attn_back(ctx, q, k, v_h, d, true), "dimension 2 of k and v", q, k, v_h, d);

    TENSOR(a, F16, 8, 3, 2);
    TENSOR(b0, F16, 8, 5, 2);
    TENSOR(b1, F32, 5);
    TENSOR(c0, F16, 5, 8, 2);
    TENSOR(c1, F32, 8);
    ACCEPTED(ggml_flash_ff(ctx, a, b0, b1, c0, c1));
    TENSOR(b0_d, F16, 7, 5, 2);
    TENSOR(b0_b, F16, 8, 5, 1);
    TENSOR(c0_h, F16, 6, 8, 2);
    TENSOR(c0_d, F16, 5, 7, 2);
    TENSOR(b1_2, F32, 5, 2);
    REFUSED(ggml_flash_ff(ctx, a, b0_d, b1, c0, c1), "dimension 0", a, b0_d, b1, c0, c1);
    REFUSED(ggml_flash_ff(ctx, a, b0_b, b1, c0, c1), "dimension 2", a, b0_b);
    REFUSED(ggml_flash_ff(ctx, a, b0, c1, c0, c1), "(8 != 5)", a, b0);
    REFUSED(ggml_flash_ff(ctx, a, b0, b1_2, c0, c1), "b1 must be a vector", b1_2);
    REFUSED(ggml_flash_ff(ctx, a, b0, b1, c0_h, c1), "(6 != 5)", c0_h);
    REFUSED(ggml_flash_ff(ctx, a, b0, b1, c0_d, c1), "(7 != 8)", c0_d);
    REFUSED(ggml_flash_ff(ctx, a, b0, b1, c0, b1), "(5 != 8)", c0);
    TENSOR(c0_b, F16, 5, 8, 1);
    TENSOR(c0_f, F32, 5, 8, 2);
    TENSOR(c1_2, F32, 8, 2);
    TENSOR(a_4, F16, 8, 3, 2, 3);
    TENSOR(b0_4, F16, 8, 5, 2, 3);
    REFUSED(ggml_flash_ff(ctx, a, b0, b1, c0_b, c1), "dimension 2", c0_b);
    REFUSED(ggml_flash_ff(ctx, a, b0, b1, c0_f, c1), "same type", c0_f);
    REFUSED(ggml_flash_ff(ctx, a, b0, b1, c0, c1_2), "c1 must be a vector", c1_2);
    REFUSED(ggml_flash_ff(ctx, a, b0_4, b1, c0, c1), "dimension 3", a, b0_4);
    REFUSED(ggml_flash_ff(ctx, a_4, b0_4, b1, c0, c1), "dimension 3", a_4, b0_4);
    REFUSED(ggml_flash_ff(ctx, a, ggml_new_tensor_3d(ctx, GGML_TYPE_F32, 8, 5, 2), b1, c0, c1), "same type", a, c1);
}

static void windows(void) {
    TENSOR(a, F32, 3, 10, 7);
    TENSOR(a4, F32, 3, 10, 7, 2);
    TENSOR(p, F32, 3, 4, 4, 6);
    struct ggml_tensor * t = ggml_set_name(ggml_transpose(ctx, a), "t");
    REFUSED(ggml_win_part(ctx, a, 0), "w must be at least 1", a);
    REFUSED(ggml_win_part(ctx, a4, 4), "3 dimensions", a4);
    REFUSED(ggml_win_part(ctx, t, 4), "contiguous", t);
    TENSOR(wide, I8, 1, (int64_t) 1 << 31);
    TENSOR(high, I8, 1, 1, (int64_t) 1 << 31);
    REFUSED(ggml_win_part(ctx, wide, 1), "dimension 1", wide);
    REFUSED(ggml_win_part(ctx, high, 1), "dimension 2", high);
    TENSOR(p5, F32, 3, 4, 5, 6);
    struct ggml_tensor * pt = ggml_permute(ctx, ggml_new_tensor_4d(ctx, GGML_TYPE_F32, 4, 3, 4, 6), 1, 0, 2, 3);
    REFUSED(ggml_win_unpart(ctx, p5, 10, 7, 4), "dimension 2 of a must be 4", p5);
    REFUSED(ggml_win_unpart(ctx, pt, 10, 7, 4), "a must be contiguous", pt);
    REFUSED(ggml_win_unpart(ctx, p, 10, 7, 0), "w must be at least 1", p);
    REFUSED(ggml_win_unpart(ctx, p, 0, 7, 4), "w0", p);
    REFUSED(ggml_win_unpart(ctx, p, 10, -1, 4), "h0", p);
    REFUSED(ggml_win_unpart(ctx, p, 10, 7, 3), "dimension 1 of a must be 3", p);
    REFUSED(ggml_win_unpart(ctx, p, 13, 7, 4), "dimension 3 of a must be 8, is 6", p);
    TENSOR(r, F16, 3, 7);
    TENSOR(r2, F16, 3, 7, 2);
    REFUSED(ggml_get_rel_pos(ctx, r, 3, 4), "(3 != 4)", r);
    REFUSED(ggml_get_rel_pos(ctx, r, 5, 5), "dimension 1 of a must be 9, is 7", r);
    REFUSED(ggml_get_rel_pos(ctx, r, 0, 0), "kh", r);
    REFUSED(ggml_get_rel_pos(ctx, r2, 4, 4), "matrix", r2);
    struct ggml_tensor * rt = ggml_transpose(ctx, ggml_new_tensor_2d(ctx, GGML_TYPE_F16, 7, 3));
    REFUSED(ggml_get_rel_pos(ctx, rt, 4, 4), "a must be contiguous", rt);

    TENSOR(x, F32, 9, 8, 5);
    TENSOR(x8, F32, 8, 8, 5);
    TENSOR(x7, F32, 9, 7, 5);
    TENSOR(x4, F32, 9, 8, 4);
    TENSOR(x2, F32, 9, 8, 5, 2);
    TENSOR(w, F32, 3, 2, 4, 5);
    TENSOR(h, F32, 3, 4, 2, 5);
    TENSOR(wi, F16, 3, 2, 4, 5);
    REFUSED(ggml_add_rel_pos(ctx, x, w, h), "dimension 1 of pw and ph", x, w, h);
    REFUSED(ggml_add_rel_pos(ctx, x, wi, w), "pw must be f32", x, wi, w);
    REFUSED(ggml_add_rel_pos(ctx, x, w, wi), "ph must be f32", x, wi, w);
    REFUSED(ggml_add_rel_pos(ctx, x8, w, w), "dimension 0 of a must be 9, is 8", x8, w);
    REFUSED(ggml_add_rel_pos(ctx, x7, w, w), "dimension 1 of a must be 8, is 7", x7, w);
    REFUSED(ggml_add_rel_pos(ctx, x4, w, w), "dimension 2 of a must equal dimension 3 of pw", x4, w);
    REFUSED(ggml_add_rel_pos(ctx, x2, w, w), "dimension 3 of a must be 1", x2, w);
    REFUSED(ggml_add_rel_pos_inplace(ctx, x8, w, w), "dimension 0 of a must be 9, is 8", x8, w);
    struct ggml_tensor * wt = ggml_permute(ctx, ggml_new_tensor_4d(ctx, GGML_TYPE_F32, 2, 3, 4, 5), 1, 0, 2, 3);
    REFUSED(ggml_add_rel_pos(ctx, x, wt, w), "pw must be contiguous", x, wt, w);
    REFUSED(ggml_add_rel_pos(ctx, x, w, wt), "ph must be contiguous", x, wt, w);
    REFUSED(ggml_add_rel_pos(ctx, ggml_permute(ctx, ggml_new_tensor_3d(ctx, GGML_TYPE_F32, 8, 9, 5), 1, 0, 2, 3), w, w),
        "a must be contiguous", w);
}

static void custom(void) {
    TENSOR(a, F32, 4, 3);
    TENSOR(b, F32, 4, 2);
    TENSOR(h, F16, 4, 3);
    REFUSED(ggml_map_unary_f32(ctx, a, NULL), "'fun' is NULL", a);
    REFUSED(ggml_map_unary_inplace_f32(ctx, h, rows_1), "a must be f32", h);
    REFUSED(ggml_map_binary_f32(ctx, a, b, rows_2), "dimension 1", a, b);
    REFUSED(ggml_map_binary_f32(ctx, a, h, rows_2), "b must be f32", a, h);
    REFUSED(ggml_map_binary_inplace_f32(ctx, a, a, NULL), "'fun' is NULL", a);
    TENSOR(wide, F32, (int64_t) 1 << 31);
    REFUSED(ggml_map_unary_f32(ctx, wide, rows_1), "dimension 0", wide); // the function has an int parameter
    REFUSED(ggml_map_custom1_f32(ctx, a, NULL), "'fun' is NULL", a);
    REFUSED(ggml_map_custom2_f32(ctx, a, b, NULL), "'fun' is NULL", a, b);
    REFUSED(ggml_map_custom3_f32(ctx, a, b, h, NULL), "'fun' is NULL", a, b, h);
    REFUSED(ggml_map_custom1_inplace_f32(ctx, a, NULL), "'fun' is NULL", a);
    REFUSED(ggml_map_custom2_inplace_f32(ctx, a, b, NULL), "'fun' is NULL", a, b);
    REFUSED(ggml_map_custom3_inplace_f32(ctx, a, b, h, NULL), "'fun' is NULL", a, b, h);
    REFUSED(ggml_map_custom1(ctx, a, NULL, 1, NULL), "'fun' is NULL", a);
    REFUSED(ggml_map_custom1(ctx, a, task_1, 0, NULL), "n_tasks", a);
    REFUSED(ggml_map_custom1_inplace(ctx, a, task_1, -2, NULL), "n_tasks", a);
    REFUSED(ggml_map_custom2(ctx, a, b, NULL, 1, NULL), "'fun' is NULL", a, b);
    REFUSED(ggml_map_custom2_inplace(ctx, a, b, NULL, 1, NULL), "'fun' is NULL", a, b);
    REFUSED(ggml_map_custom3(ctx, a, b, h, NULL, 1, NULL), "'fun' is NULL", a, b, h);
    REFUSED(ggml_map_custom3_inplace(ctx, a, b, h, NULL, 1, NULL), "'fun' is NULL", a, b, h);
}

static void custom_of_any_sources(void) {
    TENSOR(a, F32, 4, 3);
    struct ggml_tensor * const with_gap[] = { a, NULL, a };
    struct ggml_tensor * many[11];
    const int64_t ne[] = { 3, 2, -1, 5 };
    for (int i = 0; i < 11; i++) {
        many[i] = a;
    }
    ACCEPTED(ggml_custom(ctx, GGML_TYPE_F32, ne, 2, many, 10, task_any, 1, NULL));
    ACCEPTED(ggml_custom(ctx, GGML_TYPE_I64, ne, 1, NULL, 0, task_any, GGML_N_TASKS_MAX, NULL));
    REFUSED(ggml_custom(ctx, GGML_TYPE_F32, ne, 2, many, 11, task_any, 1, NULL), "n_src must be from 0 to 10, is 11",
        NULL);
    REFUSED(ggml_custom(ctx, GGML_TYPE_F32, ne, 2, many, -1, task_any, 1, NULL), "n_src must be from 0 to 10, is -1",
        NULL);
    REFUSED(ggml_custom(ctx, GGML_TYPE_F32, ne, 2, NULL, 1, task_any, 1, NULL), "'sources' is NULL", NULL);
    REFUSED(ggml_custom(ctx, GGML_TYPE_F32, ne, 2, with_gap, 3, task_any, 1, NULL), "'sources[1]' is NULL", NULL);
    REFUSED(ggml_custom(ctx, GGML_TYPE_F32, ne, 2, many, 1, NULL, 1, NULL), "ggml_custom: argument 'fun' is NULL",
        NULL);
    REFUSED(ggml_custom(ctx, GGML_TYPE_F32, ne, 2, many, 1, task_any, 0, NULL),
        "n_tasks must be -1 or at least 1, is 0 (-1 is GGML_N_TASKS_MAX)", NULL);
    REFUSED(ggml_custom(ctx, GGML_TYPE_F32, ne, 5, many, 1, task_any, 1, NULL), "n_dims must be from 1 to 4, is 5",
        NULL);
    REFUSED(ggml_custom(ctx, GGML_TYPE_F32, ne, 0, many, 1, task_any, 1, NULL), "n_dims must be from 1 to 4, is 0",
        NULL);
    REFUSED(ggml_custom(ctx, GGML_TYPE_F32, NULL, 2, many, 1, task_any, 1, NULL), "'ne' is NULL", NULL);
    REFUSED(ggml_custom(ctx, GGML_TYPE_F32, ne, 3, many, 1, task_any, 1, NULL),
        "size 2 of the result must not be negative, is -1", NULL);
    REFUSED(ggml_custom(ctx, GGML_TYPE_Q8_0, ne, 1, many, 1, task_any, 1, NULL), "multiple of 32", NULL);
    REFUSED(ggml_custom(ctx, GGML_TYPE_COUNT, ne, 1, many, 1, task_any, 1, NULL), "there is no type 43", NULL);
}

static void losses(void) {
    TENSOR(a, F32, 4, 3);
    TENSOR(b, F32, 4, 2);
    TENSOR(h, F16, 4, 3);
    TENSOR(two, F32, 2);
    TENSOR(one, F32, 1);
    struct ggml_tensor * t = ggml_set_name(ggml_transpose(ctx, ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 3, 4)), "t");
    REFUSED(ggml_cross_entropy_loss(ctx, a, b), "dimension 1", a, b);
    REFUSED(ggml_cross_entropy_loss(ctx, a, h), "same type", a, h);
    REFUSED(ggml_cross_entropy_loss(ctx, t, a), "a must be contiguous", t, a);
    REFUSED(ggml_cross_entropy_loss(ctx, a, t), "b must be contiguous", t, a);
    REFUSED(ggml_cross_entropy_loss_back(ctx, a, b, one), "dimension 1", a, b, one);
    REFUSED(ggml_soft_max_bias(ctx, a, NULL, 1, 8), "'mask' is NULL", NULL);
    REFUSED(ggml_soft_max_bias(ctx, a, NULL, 1, -1), "max_bias must be at least 0", a);
    REFUSED(ggml_cross_entropy_loss_eps(ctx, a, a, 1.0f), "eps must be at least 0 and below 1, is 1", a);
    REFUSED(ggml_cross_entropy_loss_eps(ctx, a, a, NAN), "eps must be at least 0", a);
    REFUSED(ggml_cross_entropy_loss_eps_back(ctx, a, a, one, -1e-9f), "eps must be at least 0", a);
    REFUSED(ggml_cross_entropy_loss_eps(ctx, a, b, 0.0f), "dimension 1", a, b);
    REFUSED(ggml_cross_entropy_loss_back(ctx, a, a, two), "c must be a scalar", a, two);
}

IN_CONTEXT(whole_message, true)
IN_CONTEXT(faults, true)
IN_CONTEXT(quotes, true)
IN_CONTEXT(views, true)
IN_CONTEXT(unary, true)
IN_CONTEXT(binary, true)
IN_CONTEXT(add_cast, true)
IN_CONTEXT(regions, true)
IN_CONTEXT(reductions, true)
IN_CONTEXT(copies, true)
IN_CONTEXT(products, true)
IN_CONTEXT(experts, true)
IN_CONTEXT(comparisons, true)
IN_CONTEXT(norms, true)
IN_CONTEXT(soft_max_and_masks, true)
IN_CONTEXT(ropes, true)
IN_CONTEXT(convolutions, true)
IN_CONTEXT(pooling, true)
IN_CONTEXT(attention, true)
IN_CONTEXT(windows, true)
IN_CONTEXT(custom, true)
IN_CONTEXT(custom_of_any_sources, true)
IN_CONTEXT(losses, true)

// Builders that may return an operand unchanged check it, too.
static void operands_without_a_type(void) {
    struct ggml_context * own = ggml_init((struct ggml_init_params){ 1 << 16, NULL, true });
    struct ggml_tensor * a = ggml_new_tensor_2d(own, GGML_TYPE_F32, 4, 3);
    a->type = (enum ggml_type) 12345;
    CHECK(ggml_repeat_back(own, a, a) == NULL);
    CHECK(strstr(ggml_last_error(), "there is no type 12345") != NULL);
    CHECK(ggml_repeat(own, a, a) == NULL);
    CHECK(ggml_sqr(own, a) == NULL);
    ggml_free(own);
}

TEST_MAIN(TEST(operands_without_a_type), TEST(rows_of_faults), RUN(whole_message), RUN(faults), RUN(quotes), RUN(views),
    RUN(unary), RUN(binary), RUN(add_cast), RUN(regions), RUN(reductions), RUN(copies), RUN(products), RUN(experts),
    RUN(comparisons), RUN(norms), RUN(soft_max_and_masks), RUN(ropes), RUN(convolutions), RUN(pooling), RUN(attention),
    RUN(windows), RUN(custom), RUN(custom_of_any_sources), RUN(losses))
