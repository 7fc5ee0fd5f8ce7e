// Operators on quantized tensors: every format that can be dequantized, against double precision on
// the dequantized weights, at every kernel level, with the same bits for all numbers of threads.
// Products may round activations to bytes, unless full precision is requested. Invalid blocks have
// defined results.
//
// Blocks are random bytes. test_quantize.c tests the formats, and Python tests compare them with
// the gguf package.
#include "test_cpu_ops.h"

#include "tensor/quant/quant.h"

#define FOR_FORMATS(type)                                        \
    for (int type = 0; type < GGML_TYPE_COUNT; type++)           \
        if (gb_quant_format_of((enum ggml_type) type) != NULL && \
            gb_quant_format_of((enum ggml_type) type)->to_float != NULL)

// ------------------------------------------------------------------------------------------------------------ operands

static void random_bytes(void * p, size_t n) {
    for (size_t i = 0; i < n; i++) {
        ((uint8_t *) p)[i] = (uint8_t) test_random();
    }
}

// Random bytes, until all values are finite and small enough for sums.
static void random_block(enum ggml_type type, void * block) {
    float y[256];
    for (bool fine = false; !fine;) {
        random_bytes(block, ggml_type_size(type));
        gb_quant_format_of(type)->to_float(block, y, ggml_blck_size(type));
        fine = true;
        for (int i = 0; i < ggml_blck_size(type); i++) {
            fine = fine && fabsf(y[i]) < 1e8f; // false for NaN
        }
    }
}

// Float elements or random blocks. PADDED: the memory around them turns a result into NaN if it is
// read, by whole blocks for quantized types.
static struct ggml_tensor * operand(enum ggml_type type, int layout, int64_t n0, int64_t n1, int64_t n2, int64_t n3) {
    if (!ggml_is_quantized(type)) {
        return random_tensor(type, layout, n0, n1, n2, n3);
    }
    const int64_t block = ggml_blck_size(type);
    struct ggml_tensor * t;
    if (layout == PADDED) {
        struct ggml_tensor * p = parent_of(type, n0 + 2 * block, n1 + 1, n2, n3);
        memset(p->data, 0xff, ggml_nbytes(p));
        t = ggml_view_4d(ctx, p, n0, n1, n2, n3, p->nb[1], p->nb[2], p->nb[3], p->nb[0]);
    } else {
        t = tensor(type, layout == DENSE ? DENSE : SWAPPED, n0, n1, n2, n3);
    }
    for (int64_t r = 0; r < ggml_nrows(t); r++) {
        const struct gb_row at_row = gb_row_at(t, r);
        for (int64_t b = 0; b < n0 / block; b++) {
            random_block(type, gb_row_ptr(t, at_row.i1, at_row.i2, at_row.i3) + (size_t) b * t->nb[0]);
        }
    }
    return t;
}

static int random_layout(void) { return (int) test_random_int(DENSE, SWAPPED); }

// All elements in logical order. The caller frees them.
static double * values_of(const struct ggml_tensor * t) {
    const int64_t n = t->ne[0];
    double * values = malloc(sizeof(double) * (size_t) (ggml_nelements(t) + 1));
    float * row = malloc(sizeof(float) * (size_t) (n + 1));
    for (int64_t r = 0; r < ggml_nrows(t); r++) {
        const struct gb_row i = gb_row_at(t, r);
        const char * p = gb_row_ptr(t, i.i1, i.i2, i.i3);
        if (ggml_is_quantized(t->type)) {
            gb_quant_format_of(t->type)->to_float(p, row, (int) n);
        }
        for (int64_t k = 0; k < n; k++) {
            values[r * n + k] = ggml_is_quantized(t->type) ? row[k] : read_value(t->type, p + (size_t) k * t->nb[0]);
        }
    }
    free(row);
    return values;
}

static int64_t index_of(const struct ggml_tensor * t, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
    return ((i3 * t->ne[2] + i2) * t->ne[1] + i1) * t->ne[0] + i0;
}

// ------------------------------------------------------------------------------------------------------------- running

struct wanted {
    double value, slack;
};

static bool same_bits(struct ggml_tensor * node, char * first, bool is_first) {
    const size_t size = ggml_nbytes(node);
    if (is_first) {
        memcpy(first, node->data, size);
    }
    return memcmp(first, node->data, size) == 0;
}

// want: in logical order of the dense f32 result. NULL: only compares numbers of threads.
static void run_all(struct ggml_tensor * node, const struct wanted * want) {
    static const int threads[] = { 1, 2, 5 };
    REQUIRE(node != NULL);
    if (node->data == NULL) {
        give_memory(node);
    }
    char * const first = malloc(ggml_nbytes(node) + 1);
    char * const end_of = (char *) node->data + ggml_nbytes(node);
    for (int l = 0; l < gb_level_count(); l++) {
        const struct gb_level * level = gb_level_at(l);
        for (int t = 0; t < 3 && level->usable(); t++) {
            memset(node->data, 0xff, ggml_nbytes(node));
            CHECK_MSG(run_node(node, threads[t], level->kernels) == GGML_STATUS_SUCCESS, "%s", ggml_last_error());
            CHECK_MSG(same_bits(node, first, t == 0), "%s of %s: %d threads give other bits", ggml_op_name(node->op),
                ggml_type_name(node->src[0]->type), threads[t]);
            CHECK(*end_of == 0x5a);
        }
        for (int64_t i = 0; want != NULL && i < ggml_nelements(node); i++) {
            const double got = ((const float *) node->data)[i];
            if (!(fabs(got - want[i].value) <= want[i].slack)) {
                test_fail(__FILE__, __LINE__,
                    "%s, %s x %s, level %s: element %d of [%d %d %d %d] is %.9g, expected %.9g (+-%g)",
                    ggml_op_name(node->op), ggml_type_name(node->src[0]->type),
                    node->src[1] != NULL ? ggml_type_name(node->src[1]->type) : "", level->name, (int) i,
                    (int) node->ne[0], (int) node->ne[1], (int) node->ne[2], (int) node->ne[3], got, want[i].value,
                    want[i].slack);
                break;
            }
        }
    }
    free(first);
}

// ------------------------------------------------------------------------------------------------------------- MUL_MAT

static struct wanted dot(const double * a, int64_t a_step, const double * b, int64_t b_step, int64_t k) {
    struct wanted w = { 0, 0 };
    for (int64_t i = 0; i < k; i++) {
        w.value += a[i * a_step] * b[i * b_step];
        w.slack += fabs(a[i * a_step] * b[i * b_step]);
    }
    w.slack *= 4 * (double) k * 0x1p-24;
    return w;
}

// The error of rounding activations to bytes: for groups of 32, half a step of the largest
// magnitude / 127.
static double rounding(const double * a, const double * b, int64_t k) {
    double slack = 0;
    for (int64_t g = 0; g < k; g += 32) {
        double weights = 0, largest = 0;
        for (int64_t i = g; i < g + 32; i++) {
            weights += fabs(a[i]);
            largest = fmax(largest, fabs(b[i]));
        }
        slack += weights * largest / 254 * (1 + 1e-4);
    }
    return slack;
}

// The error of rounding activations, relative to rounding to bytes. GGML_PREC_F16 also rounds the
// remainder.
static double rounding_share(enum ggml_prec prec) {
    return prec == GGML_PREC_DEFAULT ? 1 : prec == GGML_PREC_F16 ? (1 + 1e-4) / 254 : 0;
}

static struct wanted * want_mul_mat(const struct ggml_tensor * node, enum ggml_prec prec) {
    const struct ggml_tensor *a = node->src[0], *b = node->src[1];
    double *va = values_of(a), *vb = values_of(b);
    struct wanted * w = malloc(sizeof(*w) * (size_t) ggml_nelements(node));
    FOR_ELEMENTS(node, i) {
        const int64_t a2 = i[2] / (b->ne[2] / a->ne[2]), a3 = i[3] / (b->ne[3] / a->ne[3]);
        const double *weights = va + index_of(a, 0, i[0], a2, a3), *x = vb + index_of(b, 0, i[1], i[2], i[3]);
        struct wanted * result = &w[index_of(node, i[0], i[1], i[2], i[3])];
        *result = dot(weights, 1, x, 1, a->ne[0]);
        result->slack += b->type == GGML_TYPE_F32 ? rounding_share(prec) * rounding(weights, x, a->ne[0]) : 0;
    }
    free(va);
    free(vb);
    return w;
}

static void check_mul_mat(struct ggml_tensor * node) {
    REQUIRE(node != NULL);
    static const enum ggml_prec precisions[] = { GGML_PREC_DEFAULT, GGML_PREC_F16, GGML_PREC_F32 };
    for (int i = 0; i < 3; i++) {
        CHECK(ggml_mul_mat_set_prec(node, precisions[i]) == GGML_STATUS_SUCCESS);
        struct wanted * want = want_mul_mat(node, precisions[i]);
        run_all(node, want);
        free(want);
    }
}

// Batches of 1 to 70 over formats and numbers of rows of weights. Sums of one to several blocks.
static void mul_mat_batches(void) {
    int64_t n = 0;
    FOR_FORMATS(type) {
        for (int pass = 0; pass < 6; pass++) {
            begin();
            const int64_t k = ggml_blck_size((enum ggml_type) type) * test_random_int(1, 5);
            n = pass == 0 ? 1 : pass == 1 ? 2 : n % 70 + 1;
            struct ggml_tensor * a = operand((enum ggml_type) type, random_layout(), k, test_random_int(1, 40), 1, 1);
            struct ggml_tensor * b = operand(GGML_TYPE_F32, random_layout(), k, n, 1, 1);
            check_mul_mat(ggml_mul_mat(ctx, a, b));
            end();
        }
    }
}

static void mul_mat_activations(void) {
    FOR_FORMATS(type) {
        const enum ggml_type partner = gb_quant_format_of((enum ggml_type) type)->vec_dot_type;
        const enum ggml_type b_types[] = { GGML_TYPE_F16, GGML_TYPE_BF16, partner };
        for (int b = 0; b < 3; b++) {
            for (int64_t n = 1; n <= 9; n += 8) {
                if (b == 2 && (!ggml_is_quantized(partner) || gb_quant_format_of(partner) == NULL ||
                                  gb_quant_format_of(partner)->to_float == NULL)) {
                    continue;
                }
                begin();
                struct ggml_tensor * x = operand(b_types[b], random_layout(), 512, n, 1, 1);
                check_mul_mat(ggml_mul_mat(ctx, operand((enum ggml_type) type, random_layout(), 512, 20, 1, 1), x));
                end();
            }
        }
    }
}

static void mul_mat_broadcast(void) {
    FOR_FORMATS(type) {
        begin();
        struct ggml_tensor * a = operand((enum ggml_type) type, SWAPPED, 256, 7, 2, 2);
        check_mul_mat(ggml_mul_mat(ctx, a, operand(GGML_TYPE_F32, SWAPPED, 256, test_random_int(1, 5), 4, 6)));
        end();
    }
}

static void mul_mat_large(void) { // several chunks and blocks, a tail in each direction, several threads
    static const enum ggml_type types[] = { GGML_TYPE_Q4_0, GGML_TYPE_Q8_0, GGML_TYPE_Q4_K };
    for (int t = 0; t < 3; t++) {
        for (int64_t n = 2; n <= 70; n += 68) {
            begin();
            struct ggml_tensor * a = operand(types[t], DENSE, 2304, 301, 1, 1);
            struct ggml_tensor * node = ggml_mul_mat(ctx, a, operand(GGML_TYPE_F32, DENSE, 2304, n, 1, 1));
            CHECK(is_shared(node));
            check_mul_mat(node);
            end();
        }
    }
}

static void mul_mat_id(void) {
    FOR_FORMATS(type) {
        begin();
        struct ggml_tensor *as[3], *ids = fill_int(tensor(GGML_TYPE_I32, DENSE, 2, 11, 1, 1), 0, 2);
        double * va[3];
        for (int e = 0; e < 3; e++) {
            as[e] = operand((enum ggml_type) type, e == 1 ? PADDED : DENSE, 256, 19, 1, 1);
            va[e] = values_of(as[e]);
        }
        struct ggml_tensor * b = operand(GGML_TYPE_F32, DENSE, 256, 11, 1, 1);
        double * vb = values_of(b);
        struct ggml_tensor * node = ggml_mul_mat_id(ctx, as, 3, ids, 1, b);
        struct wanted want[19 * 11];
        for (int64_t i = 0; i < 19 * 11; i++) {
            const int32_t e = ((const int32_t *) ids->data)[i / 19 * 2 + 1];
            want[i] = dot(va[e] + i % 19 * 256, 1, vb + i / 19 * 256, 1, 256);
            want[i].slack += rounding(va[e] + i % 19 * 256, vb + i / 19 * 256, 256);
        }
        run_all(node, want);
        for (int e = 0; e < 3; e++) {
            free(va[e]);
        }
        free(vb);
        end();
    }
}

static void out_prod(void) {
    FOR_FORMATS(type) {
        for (int pass = 0; pass < 3; pass++) {
            begin();
            const int64_t m = 256 * (1 + pass % 2), k = test_random_int(1, 30), n = test_random_int(1, 40);
            struct ggml_tensor * a = operand((enum ggml_type) type, random_layout(), m, k, 1, 2);
            struct ggml_tensor * b = pass == 2 ? operand(GGML_TYPE_F32, TRANSPOSED, n, k, 2, 2)
                                               : operand(float_types[pass], DENSE, n, k, 2, 2);
            struct ggml_tensor * node = ggml_out_prod(ctx, a, b);
            REQUIRE(node != NULL);
            double *va = values_of(a), *vb = values_of(b);
            struct wanted * want = malloc(sizeof(*want) * (size_t) ggml_nelements(node));
            FOR_ELEMENTS(node, i) {
                want[index_of(node, i[0], i[1], i[2], i[3])] =
                    dot(va + index_of(a, i[0], 0, 0, i[3]), m, vb + index_of(b, i[1], 0, i[2], i[3]), n, k);
            }
            run_all(node, want);
            free(va);
            free(vb);
            free(want);
            end();
        }
    }
}

// -------------------------------------------------------------------------------------------------- rows, copies, sums

static void get_rows(void) {
    FOR_FORMATS(type) {
        begin();
        struct ggml_tensor * a = operand((enum ggml_type) type, random_layout(), 768, 9, 3, 2);
        struct ggml_tensor * b = fill_int(tensor(GGML_TYPE_I32, SWAPPED, 5, 3, 2, 1), 0, 8);
        struct ggml_tensor * node = ggml_get_rows(ctx, a, b);
        double * va = values_of(a);
        struct wanted * want = malloc(sizeof(*want) * (size_t) ggml_nelements(node));
        FOR_ELEMENTS(node, i) {
            int32_t row;
            memcpy(&row, address(b, (const int64_t[]){ i[1], i[2], i[3], 0 }), sizeof(row));
            want[index_of(node, i[0], i[1], i[2], i[3])] = (struct wanted){ va[index_of(a, i[0], row, i[2], i[3])], 0 };
        }
        run_all(node, want);
        free(va);
        free(want);
        end();
    }
}

// The expected values of a result of any type, rounded to it.
static void check_values(const struct ggml_tensor * t, const double * want, const char * what) {
    double * got = values_of(t);
    const int n = (int) ggml_nelements(t);
    for (int i = 0; i < n; i++) {
        if (!is_near(got[i], want[i], 0, t->type)) {
            test_fail(__FILE__, __LINE__, "%s to %s: element %d is %.9g, expected %.9g", what, ggml_type_name(t->type),
                i, got[i], want[i]);
            break;
        }
    }
    free(got);
}

static void run_once(struct ggml_tensor * node) {
    REQUIRE(node != NULL);
    if (node->data == NULL) {
        give_memory(node);
    }
    CHECK_MSG(run_node(node, (int) test_random_int(1, 5), gb_kernels_default()) == GGML_STATUS_SUCCESS, "%s",
        ggml_last_error());
}

static void dequantizing_copies(void) {
    FOR_FORMATS(type) {
        for (int f = 0; f < 3; f++) {
            FOR_LAYOUTS(layout) {
                begin();
                struct ggml_tensor * a = operand((enum ggml_type) type, random_layout(), 256, 6, 2, 2);
                struct ggml_tensor * d = tensor(float_types[f], layout, 256, 6, 2, 2);
                if (layout == DENSE) { // another shape
                    d = tensor(float_types[f], PADDED, 768, 2, 4, 1);
                }
                double * want = values_of(a);
                for (int64_t i = 0; i < ggml_nelements(a) && f == 1; i++) { // what f16 cannot hold
                    want[i] = fabs(want[i]) >= 65520 ? copysign(INFINITY, want[i]) : want[i];
                }
                run_once(ggml_cpy(ctx, a, d));
                check_values(d, want, ggml_type_name((enum ggml_type) type));
                free(want);
                end();
            }
        }
    }
}

// Rows of floats of any type and layout give the blocks of the format's quantizer.
static void quantizing_copies(void) {
    FOR_FORMATS(type) {
        const struct gb_quant_format * format = gb_quant_format_of((enum ggml_type) type);
        for (int f = 0; f < 3 && format->from_float != NULL; f++) {
            FOR_LAYOUTS(layout) {
                begin();
                struct ggml_tensor * a = random_tensor(float_types[f], layout, 256, 4, 2, 1);
                struct ggml_tensor * d =
                    tensor((enum ggml_type) type, DENSE, layout == DENSE ? 512 : 256, layout == DENSE ? 2 : 4, 2, 1);
                char * const end_of = (char *) d->data + ggml_nbytes(d);
                double * values = values_of(a);
                float row[256];
                char * want = malloc(ggml_nbytes(d));
                for (int r = 0; r < 8; r++) {
                    for (int i = 0; i < 256; i++) {
                        row[i] = (float) values[256 * r + i];
                    }
                    format->from_float(row, want + ggml_nbytes(d) / 8 * (size_t) r, 256);
                }
                run_once(ggml_cpy(ctx, a, d));
                CHECK_MSG(memcmp(d->data, want, ggml_nbytes(d)) == 0, "%s from %s",
                    ggml_type_name((enum ggml_type) type), ggml_type_name(float_types[f]));
                CHECK(*end_of == 0x5a);
                free(values);
                free(want);
                end();
            }
        }
    }
}

static void same_format_copies(void) { // only these bytes change, not those between blocks
    FOR_FORMATS(type) {
        begin();
        struct ggml_tensor * a = operand((enum ggml_type) type, SWAPPED, 256, 5, 3, 1);
        struct ggml_tensor * d = operand((enum ggml_type) type, PADDED, 256, 5, 3, 1);
        double * want = values_of(a);
        const size_t row = ggml_row_size((enum ggml_type) type, 256);
        run_once(ggml_cpy(ctx, a, d));
        check_values(d, want, "copy");
        for (int r = 0; r < 15; r++) {
            const uint8_t * after = (uint8_t *) gb_row_ptr(d, r % 5, r / 5, 0) + row;
            for (size_t i = 0; i < ggml_type_size((enum ggml_type) type); i++) {
                CHECK(after[i] == 0xff);
            }
        }
        struct ggml_tensor * c = ggml_cont(ctx, a);
        run_once(c);
        check_values(c, want, "cont");
        free(want);
        end();
    }
}

static void shared_copies(void) { // enough for several threads
    static const enum ggml_type types[] = { GGML_TYPE_Q5_1, GGML_TYPE_Q3_K };
    for (int t = 0; t < 2; t++) {
        begin();
        struct ggml_tensor * a = random_tensor(GGML_TYPE_F32, DENSE, 768, 85, 1, 1);
        struct ggml_tensor * q = ggml_cpy(ctx, a, tensor(types[t], DENSE, 768, 85, 1, 1));
        struct ggml_tensor * apart = ggml_cpy(ctx, q, operand(types[t], PADDED, 768, 85, 1, 1));
        struct ggml_tensor * back = ggml_cpy(ctx, apart, tensor(GGML_TYPE_F32, PADDED, 768, 85, 1, 1));
        uint8_t * blocks = malloc(ggml_nbytes(q));
        CHECK(is_shared(q) && is_shared(apart) && is_shared(back));
        gb_quant_format_of(types[t])->from_float(a->data, blocks, 768 * 85);
        for (int threads = 1; threads <= 5; threads++) {
            memset(q->data, 0, ggml_nbytes(q));
            CHECK(run_node(q, threads, gb_kernels_default()) == GGML_STATUS_SUCCESS);
            CHECK(memcmp(q->data, blocks, ggml_nbytes(q)) == 0);
            double * want = values_of(q);
            CHECK(run_node(apart, threads, gb_kernels_default()) == GGML_STATUS_SUCCESS);
            check_values(apart, want, "copy");
            CHECK(run_node(back, threads, gb_kernels_default()) == GGML_STATUS_SUCCESS);
            check_values(back, want, "copy");
            memset(apart->view_src->data, 0, ggml_nbytes(apart->view_src));
            free(want);
        }
        free(blocks);
        end();
    }
}

// The result is the quantized sum: its bytes are those of the f32 sum of dequantized rows,
// quantized.
static void check_sum(struct ggml_tensor * node, bool one_value) {
    REQUIRE(node != NULL);
    const struct ggml_tensor *a = node->src[0], *b = node->src[1];
    double *va = values_of(a), *vb = values_of(b);
    const int64_t n = ggml_nelements(node);
    float * sum = malloc(sizeof(float) * (size_t) n);
    FOR_ELEMENTS(node, i) {
        const int64_t at_b =
            one_value ? 0 : index_of(b, i[0] % b->ne[0], i[1] % b->ne[1], i[2] % b->ne[2], i[3] % b->ne[3]);
        sum[index_of(node, i[0], i[1], i[2], i[3])] =
            (float) va[index_of(a, i[0], i[1], i[2], i[3])] + (float) vb[at_b];
    }
    run_once(node);
    if (ggml_is_quantized(node->type)) {
        char * want = malloc(ggml_nbytes(node));
        gb_quant_format_of(node->type)->from_float(sum, want, (int) n);
        CHECK_MSG(memcmp(want, node->data, ggml_nbytes(node)) == 0, "%s of %s to %s", ggml_op_name(node->op),
            ggml_type_name(a->type), ggml_type_name(node->type));
        free(want);
    } else {
        double * want = malloc(sizeof(double) * (size_t) n);
        for (int64_t i = 0; i < n; i++) {
            want[i] = node->type == GGML_TYPE_F16 && fabsf(sum[i]) >= 65520 ? copysign(INFINITY, sum[i]) : sum[i];
        }
        check_values(node, want, "sum");
        free(want);
    }
    free(va);
    free(vb);
    free(sum);
}

static void sums(void) {
    FOR_FORMATS(type) {
        begin();
        const enum ggml_type t = (enum ggml_type) type;
        if (gb_quant_format_of(t)->from_float != NULL) {
            check_sum(ggml_add(ctx, operand(t, random_layout(), 768, 3, 2, 2),
                          operand(GGML_TYPE_F32, SWAPPED, 768, 3, 2, 2)),
                false);
            check_sum(ggml_add(ctx, operand(t, DENSE, 256, 4, 2, 1), operand(GGML_TYPE_F16, DENSE, 64, 2, 1, 1)),
                false);
            check_sum(ggml_add_inplace(ctx, operand(t, DENSE, 512, 3, 1, 1),
                          operand(GGML_TYPE_F32, DENSE, 512, 3, 1, 1)),
                false);
            check_sum(ggml_add1(ctx, operand(t, DENSE, 512, 3, 1, 2), operand(GGML_TYPE_F32, DENSE, 1, 1, 1, 1)), true);
            check_sum(ggml_add_cast(ctx, operand(GGML_TYPE_F16, PADDED, 256, 3, 1, 1),
                          operand(GGML_TYPE_F32, DENSE, 256, 3, 1, 1), t),
                false);
        }
        check_sum(ggml_add_cast(ctx, operand(t, PADDED, 256, 3, 1, 1), operand(GGML_TYPE_F32, DENSE, 256, 3, 1, 1),
                      GGML_TYPE_F32),
            false);
        check_sum(ggml_add_cast(ctx, operand(t, DENSE, 256, 3, 1, 1), operand(GGML_TYPE_BF16, DENSE, 256, 1, 1, 1),
                      GGML_TYPE_F16),
            false);
        check_sum(ggml_add_cast(ctx, operand(t, DENSE, 256, 3, 1, 1), operand(GGML_TYPE_F32, DENSE, 256, 3, 1, 1),
                      GGML_TYPE_Q8_0),
            false);
        end();
    }
}

// ------------------------------------------------------------------------------------------------------------- hostile

// Blocks of any bytes, with NaN and infinite scales, unused bit patterns and all grid indices: the
// result is always defined.
static void hostile_blocks(void) {
    FOR_FORMATS(type) {
        const enum ggml_type t = (enum ggml_type) type;
        for (int pass = 0; pass < 4; pass++) {
            begin();
            struct ggml_tensor * a = parent_of(t, 512, 33, 1, 1);
            random_bytes(a->data, ggml_nbytes(a));
            if (pass > 1) {
                memset(a->data, pass == 2 ? 0xff : 0x7c, ggml_nbytes(a));
            }
            struct ggml_tensor * b = random_tensor(GGML_TYPE_F32, DENSE, 512, pass % 2 ? 2 : 20, 1, 1);
            run_once(ggml_mul_mat(ctx, a, b));
            run_once(ggml_out_prod(ctx, a, random_tensor(GGML_TYPE_F32, DENSE, 5, 33, 1, 1)));
            run_once(ggml_get_rows(ctx, a, fill_int(tensor(GGML_TYPE_I32, DENSE, 9, 1, 1, 1), 0, 32)));
            run_once(ggml_cpy(ctx, a, tensor(GGML_TYPE_F16, DENSE, 512, 33, 1, 1)));
            if (gb_quant_format_of(t)->from_float != NULL) {
                run_once(ggml_add(ctx, a, random_tensor(GGML_TYPE_F32, DENSE, 512, 33, 1, 1)));
                struct ggml_tensor * x = random_tensor(GGML_TYPE_F32, DENSE, 512, 3, 1, 1);
                for (int i = 0; i < 1536; i += (int) test_random_int(1, 40)) {
                    static const float specials[] = { NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 1e-45f, -1e-40f, 65520 };
                    ((float *) x->data)[i] = specials[test_random() % 8];
                }
                run_once(ggml_cpy(ctx, x, tensor(t, DENSE, 512, 3, 1, 1)));
            }
            end();
        }
    }
}

static void check_refused(struct ggml_tensor * node, const char * why) {
    REQUIRE(node != NULL);
    if (node->data == NULL) {
        give_memory(node);
    }
    CHECK(run_node(node, 1, gb_kernels_default()) == GGML_STATUS_UNSUPPORTED);
    CHECK_ERROR(GGML_STATUS_UNSUPPORTED, why);
}

static void refused(void) {
    begin();
    const enum ggml_type q = GGML_TYPE_Q4_0;
    struct ggml_tensor * a = operand(q, DENSE, 64, 64, 1, 1);
    struct ggml_tensor * f = random_tensor(GGML_TYPE_F32, DENSE, 64, 64, 1, 1);
    struct ggml_tensor * apart = ggml_transpose(ctx, a); // blocks with gaps along rows
    check_refused(ggml_mul_mat(ctx, f, a), "source 1 must be f32, or have the type of source 0");
    check_refused(ggml_mul_mat(ctx, a, tensor(GGML_TYPE_I32, DENSE, 64, 2, 1, 1)),
        "source 1 must be f32, f16, bf16 or the partner");
    check_refused(ggml_mul_mat(ctx, a, operand(GGML_TYPE_Q4_1, DENSE, 64, 2, 1, 1)),
        "source 1 must be f32, f16, bf16 or the partner");
    check_refused(ggml_out_prod(ctx, a, operand(GGML_TYPE_Q8_0, DENSE, 32, 64, 1, 1)),
        "source 1 must be f32, f16 or bf16");
    check_refused(reading(ggml_mul_mat(ctx, a, f), 0, apart), "source 0 cannot be dequantized");
    check_refused(reading(ggml_get_rows(ctx, a, fill_int(tensor(GGML_TYPE_I32, DENSE, 3, 1, 1, 1), 0, 9)), 0, apart),
        "source 0 cannot be dequantized");
    check_refused(ggml_cpy(ctx, apart, f), "dense");
    check_refused(ggml_cpy(ctx, f, apart), "dense");
    check_refused(ggml_cpy(ctx, apart, a), "dense");
    check_refused(ggml_cpy(ctx, random_tensor(GGML_TYPE_F32, DENSE, 16, 256, 1, 1), a), "whole blocks");
    check_refused(ggml_cpy(ctx, a, tensor(GGML_TYPE_I32, DENSE, 64, 64, 1, 1)), "f32, f16 and bf16 only");
    check_refused(ggml_cpy(ctx, tensor(GGML_TYPE_I32, DENSE, 64, 64, 1, 1), a), "can be quantized");
    check_refused(ggml_cpy(ctx, a, tensor(GGML_TYPE_Q8_0, DENSE, 64, 64, 1, 1)), "f32, f16 and bf16 only");
    check_refused(ggml_add(ctx, a, fill_int(tensor(GGML_TYPE_I32, DENSE, 64, 64, 1, 1), 0, 1)), "source 1 must be");
    check_refused(reading(ggml_add(ctx, a, f), 0, apart), "source 0 cannot be dequantized");
    check_refused(ggml_mul(ctx, a, f), "the operator does not accept quantized tensors");
    struct ggml_tensor * weighted = operand(GGML_TYPE_IQ2_XXS, DENSE, 256, 2, 1,
        1); // the format requires an importance matrix
    struct ggml_tensor * g = random_tensor(GGML_TYPE_F32, DENSE, 256, 2, 1, 1);
    check_refused(ggml_cpy(ctx, g, weighted), "the result cannot be quantized");
    check_refused(ggml_add(ctx, weighted, g), "the result cannot be quantized");
    end();
}

TEST_MAIN(TEST(mul_mat_batches), TEST(mul_mat_activations), TEST(mul_mat_broadcast), TEST(mul_mat_large),
    TEST(mul_mat_id), TEST(out_prod), TEST(get_rows), TEST(dequantizing_copies), TEST(quantizing_copies),
    TEST(same_format_copies), TEST(shared_copies), TEST(sums), TEST(hostile_blocks), TEST(refused))
