// test_products.cpp - products on a CUDA device, or in the emulation, against sums in double precision.
//
// The oracle dequantizes with the library's functions for files and adds up in double. The operands bound the rounding
// of a kernel: activations as bytes by half a step of their group, halves by their last bit, everything else by the
// last bits of float. That bound is for the worst case. Over all elements, errors must also be as small as independent
// roundings.
#include "device_graph.h"

enum rounding { EXACT, HALVES, WIDE, BYTES };

static std::vector<float> to_floats(const ggml_tensor * t) { // all elements, in the order of memory; contiguous
    const int64_t n = ggml_nelements(t);
    std::vector<float> v((size_t) n);
    if (t->type == GGML_TYPE_F32) {
        memcpy(v.data(), t->data, (size_t) n * sizeof(float));
    } else if (t->type == GGML_TYPE_F16) {
        ggml_fp16_to_fp32_row((const ggml_fp16_t *) t->data, v.data(), (int) n);
    } else if (t->type == GGML_TYPE_BF16) {
        ggml_bf16_to_fp32_row((const ggml_bf16_t *) t->data, v.data(), n);
    } else {
        gb_quant_format_of(t->type)->to_float(t->data, v.data(), (int) n);
    }
    return v;
}

static void fill(ggml_tensor * t) {
    const int64_t n = ggml_nelements(t);
    std::vector<float> v((size_t) n);
    for (float & x : v) {
        x = test_random_float(-1, 1) * (test_random() % 8 == 0 ? 4.0f : 1.0f);
    }
    if (t->type == GGML_TYPE_F32) {
        memcpy(t->data, v.data(), (size_t) n * sizeof(float));
    } else if (t->type == GGML_TYPE_F16) {
        ggml_fp32_to_fp16_row(v.data(), (ggml_fp16_t *) t->data, (int) n);
    } else if (t->type == GGML_TYPE_BF16) {
        ggml_fp32_to_bf16_row(v.data(), (ggml_bf16_t *) t->data, n);
    } else if (gb_quant_format_of(t->type)->from_float != NULL) {
        gb_quant_format_of(t->type)->from_float(v.data(), t->data, (int) n);
    } else { // formats that need weights to quantize with
        const std::vector<float> ones((size_t) t->ne[0], 1.0f);
        int64_t hist[16] = {};
        ggml_quantize_chunk(t->type, v.data(), t->data, 0, (int) ggml_nrows(t), (int) t->ne[0], hist, ones.data());
    }
}

struct bounds { // of one element of a product
    double magnitude; // the sum of |a b|
    double step;      // the sum of |a| times the largest |b| of 32
    double ab2;       // the sum of (a b)^2
    double step2;     // the sum of (|a| times the largest |b| of 32)^2
    double floats;    // largest error of the sum in float
};

static double largest_error(rounding how, const bounds & b) {
    switch (how) {
        case HALVES: return b.magnitude / 1024 * 1.01 + b.floats;
        case WIDE: return b.magnitude / 128 * 1.01 + b.floats;
        case BYTES: return b.step / 254 * 1.01 + b.floats;
        default: return b.floats;
    }
}

// The expected square of the error: a rounding to within +-r has r^2 / 3.
static double expected_square(rounding how, const bounds & b) {
    const double floats = b.floats * b.floats / 9;
    switch (how) {
        case HALVES: return b.ab2 * 2 / (2048.0 * 2048) / 3 + floats;
        case WIDE: return b.ab2 * 2 / (256.0 * 256) / 3 + floats;
        case BYTES: return b.step2 / (254.0 * 254) / 3 + floats;
        default: return floats;
    }
}

struct verdict { // over the elements of a result
    int64_t wrong, n;
    double squares, expected; // of errors
    std::string why;
    // an average needs more errors
    bool right() const { return wrong == 0 && (n < 16 || squares <= 4 * expected); }
    std::string text() const {
        char text[120];
        snprintf(text, sizeof(text), "%d of %d wrong, errors %.2f of expected; ", (int) wrong, (int) n,
            sqrt(squares / expected));
        return text + why;
    }
};

struct layout { // of the operands as the product sees them: element [k][i][i2][i3]
    std::vector<float> v;
    int64_t stride[4], begin;
    float at(int64_t k, int64_t i, int64_t i2, int64_t i3) const {
        return v[(size_t) (begin + k * stride[0] + i * stride[1] + i2 * stride[2] + i3 * stride[3])];
    }
};

// dim: the dimension of the sum. root: the contiguous tensor that t views.
static layout layout_of(const ggml_tensor * t, const ggml_tensor * root, int dim) {
    layout l = { to_floats(root), {}, 0 };
    const int64_t block = ggml_blck_size(t->type), size = (int64_t) ggml_type_size(t->type);
    int64_t stride[4];
    for (int i = 0; i < 4; i++) {
        stride[i] = i == 0 && block > 1 ? 1 : (int64_t) t->nb[i] / size * block;
    }
    l.stride[0] = stride[dim];
    l.stride[1] = stride[1 - dim];
    l.stride[2] = stride[2];
    l.stride[3] = stride[3];
    l.begin = ((const char *) t->data - (const char *) root->data) / size * block;
    return l;
}

struct problem {
    const ggml_tensor * a;
    const ggml_tensor * a_root;
    const ggml_tensor * b;
    const ggml_tensor * b_root;
    int dim;
    rounding how;
    double given = 0; // relative error of the activations' source
};

static void judge(const problem & p, const layout & a, const layout & b, const int64_t * at, float got, verdict * v) {
    const int64_t k = p.a->ne[p.dim], r2 = p.b->ne[2] / p.a->ne[2], r3 = p.b->ne[3] / p.a->ne[3];
    double sum = 0, largest = 0;
    bounds limits = {};
    for (int64_t i = 0; i < k; i++) {
        const double x = a.at(i, at[0], at[2] / r2, at[3] / r3), y = b.at(i, at[1], at[2], at[3]);
        if (i % 32 == 0) {
            largest = 0;
            for (int64_t j = i; j < i + 32 && j < k; j++) {
                largest = fmax(largest, fabs(b.at(j, at[1], at[2], at[3])));
            }
        }
        sum += x * y;
        limits.magnitude += fabs(x * y);
        limits.step += fabs(x) * largest;
        limits.ab2 += x * y * x * y;
        limits.step2 += x * largest * x * largest;
    }
    limits.floats = limits.magnitude * (1e-7 * (8 + sqrt((double) k)) + p.given) + 1e-30;
    const double error = fabs(got - sum), limit = largest_error(p.how, limits);
    v->n++;
    v->squares += error * error;
    v->expected += expected_square(p.how, limits);
    if (error <= limit) {
        return;
    }
    char text[200];
    snprintf(text, sizeof(text), "[%d %d %d %d] is %g, expected %g +- %g", (int) at[0], (int) at[1], (int) at[2],
        (int) at[3], got, sum, limit);
    v->why = text;
    v->wrong++;
}

static void check_product(const problem & p, const ggml_tensor * dst, const float * got) {
    const layout a = layout_of(p.a, p.a_root, p.dim), b = layout_of(p.b, p.b_root, p.dim);
    verdict v = {};
    int64_t at[4];
    for (at[3] = 0; at[3] < dst->ne[3]; at[3]++) {
        for (at[2] = 0; at[2] < dst->ne[2]; at[2]++) {
            for (at[1] = 0; at[1] < dst->ne[1]; at[1]++) {
                for (at[0] = 0; at[0] < dst->ne[0]; at[0]++) {
                    judge(p, a, b, at, got[v.n], &v);
                }
            }
        }
    }
    CHECK_MSG(v.right(), "%s %s [%d, %d, %d, %d] x %s [%d, %d, %d, %d] dim %d: %s", ggml_op_name(dst->op),
        ggml_type_name(p.a->type), (int) p.a->ne[0], (int) p.a->ne[1], (int) p.a->ne[2], (int) p.a->ne[3],
        ggml_type_name(p.b->type), (int) p.b->ne[0], (int) p.b->ne[1], (int) p.b->ne[2], (int) p.b->ne[3], p.dim,
        v.text().c_str());
}

// Formats that the tensor cores multiply in bytes with up to 16 rows, if rows of k elements are aligned: for Q6_K to
// any address, for IQ4_XS to 8 bytes, for the others to 16.
static bool has_few_rows(ggml_type a, int64_t k) {
#ifdef GB_CUDA_EMULATED
    if (gb_emu_code() < 80) {
        return false;
    }
#endif
    return a == GGML_TYPE_Q6_K || a == GGML_TYPE_IQ4_XS || a == GGML_TYPE_Q4_K ||
           ((a == GGML_TYPE_Q4_0 || a == GGML_TYPE_Q8_0) && ggml_row_size(a, k) % 16 == 0);
}

static rounding rounding_of(ggml_type a, int64_t k, int64_t rows, bool exact) {
    if (exact || a == GGML_TYPE_F32) {
        return EXACT;
    }
    if (ggml_is_quantized(a)) {
        return rows <= (has_few_rows(a, k) ? 16 : 8) ? BYTES : WIDE;
    }
    return rows <= 8 ? EXACT : a == GGML_TYPE_F16 ? HALVES : WIDE;
}

struct shape {
    int64_t m, n, k, a2, a3, b2, b3;
};

static void mul_mat_of(ggml_type a_type, ggml_type b_type, const shape & s, bool exact, rounding how) {
    device_graph g;
    ggml_tensor * a = ggml_new_tensor_4d(g.ctx, a_type, s.k, s.m, s.a2, s.a3);
    ggml_tensor * b = ggml_new_tensor_4d(g.ctx, b_type, s.k, s.n, s.b2, s.b3);
    ggml_tensor * dst = ggml_mul_mat(g.ctx, a, b);
    REQUIRE(dst != NULL);
    if (exact) {
        ggml_mul_mat_set_prec(dst, GGML_PREC_F32);
    }
    fill(a);
    fill(b);
    REQUIRE(g.compute(dst));
    check_product({ a, a, b, b, 0, how }, dst, g.result.data());
}

static void mul_mat(ggml_type a_type, ggml_type b_type, const shape & s, bool exact = false) {
    const int64_t rows = s.b3 == s.a3 ? s.n * (s.b2 / s.a2) : s.n;
    mul_mat_of(a_type, b_type, s, exact, rounding_of(a_type, s.k, rows, exact));
}

static const ggml_type formats[] = { GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_Q8_0,
    GGML_TYPE_Q2_K, GGML_TYPE_Q3_K, GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K, GGML_TYPE_IQ4_NL, GGML_TYPE_IQ4_XS,
    GGML_TYPE_TQ1_0, GGML_TYPE_TQ2_0, GGML_TYPE_MXFP4, GGML_TYPE_NVFP4, GGML_TYPE_IQ2_XXS, GGML_TYPE_IQ2_XS,
    GGML_TYPE_IQ2_S, GGML_TYPE_IQ3_XXS, GGML_TYPE_IQ3_S, GGML_TYPE_IQ1_S, GGML_TYPE_IQ1_M, GGML_TYPE_Q1_0,
    GGML_TYPE_Q2_0 };

static const ggml_type floats[] = { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16 };

static void vectors_of_all_formats(void) {
    CUDA_OR_SKIP();
    for (ggml_type type : formats) {
        const int64_t block = ggml_blck_size(type);
        mul_mat(type, GGML_TYPE_F32, { 9, 1, block, 1, 1, 1, 1 });
        mul_mat(type, GGML_TYPE_F32, { 19, 1, 1024 + 256 * 3, 1, 1, 1, 1 });
        mul_mat(type, GGML_TYPE_F32, { 11, 5, 256 * 9, 1, 1, 1, 1 });
    }
}

// One column and 16-aligned rows: some stretches of 1,024 elements and a rest, by one warp and by four.
static void vectors_of_long_rows(void) {
    CUDA_OR_SKIP();
#ifdef GB_CUDA_EMULATED
    const uint64_t before = gb_emu_launches_of("gb_matvec_quick");
#endif
    for (ggml_type type : { GGML_TYPE_Q4_0, GGML_TYPE_Q8_0, GGML_TYPE_Q4_K, GGML_TYPE_Q6_K, GGML_TYPE_IQ4_XS }) {
        mul_mat(type, GGML_TYPE_F32, { 13, 1, 1024 * 13, 1, 1, 1, 1 });
        mul_mat(type, GGML_TYPE_F32, { 6, 1, 1024 * 22 - 2048 + 256 * 8, 1, 1, 1, 1 });
        mul_mat(type, GGML_TYPE_F32, { 147, 1, 1024 * 5, 1, 1, 1, 1 });
        for (int64_t k : { 1024 * 3, 1024 * 4 + 512, 1024 * 6 + 768 + 256, 1024 * 5 + 256 }) { // some are not aligned
            mul_mat(type, GGML_TYPE_F32, { 131, 1, k, 1, 1, 1, 1 });
        }
    }
    mul_mat(GGML_TYPE_Q4_0, GGML_TYPE_F32, { 133, 1, 1024 * 3 + 32 * 8, 1, 1, 1, 1 }); // a rest of 8 groups
    mul_mat(GGML_TYPE_Q4_0, GGML_TYPE_F32, { 133, 1, 1024 * 3 + 32, 1, 1, 1, 1 });     // not aligned
    mul_mat(GGML_TYPE_Q8_0, GGML_TYPE_F32, { 133, 1, 1024 * 3 + 32 * 16, 1, 1, 1, 1 });
#ifdef GB_CUDA_EMULATED
    CHECK(gb_emu_launches_of("gb_matvec_quick") >= before + 25);
#endif
}

static void vectors_of_each_count(void) {
    CUDA_OR_SKIP();
    for (int n = 1; n <= 8; n++) {
        mul_mat(GGML_TYPE_Q4_0, GGML_TYPE_F32, { 7, n, 96, 1, 1, 1, 1 });
        mul_mat(GGML_TYPE_Q4_K, GGML_TYPE_F16, { 33, n, 512, 1, 1, 1, 1 });
        for (ggml_type type : floats) {
            mul_mat(type, GGML_TYPE_F32, { 13, n, 75, 1, 1, 1, 1 });
            mul_mat(type, type, { 21, n, 520, 1, 1, 1, 1 });
        }
    }
    mul_mat(GGML_TYPE_Q8_0, GGML_TYPE_F32, { 700, 1, 64, 1, 1, 1, 1 }); // each warp has rows of its own
    mul_mat(GGML_TYPE_F16, GGML_TYPE_F32, { 700, 2, 1100, 1, 1, 1, 1 });
}

static const ggml_type few_formats[] = { GGML_TYPE_Q4_0, GGML_TYPE_Q8_0, GGML_TYPE_Q4_K, GGML_TYPE_Q6_K,
    GGML_TYPE_IQ4_XS };

// Rows of a wider matrix that end within a stage of 256 elements.
static void few_rows_of_a_wider_matrix(ggml_type type, int64_t m, int64_t n, int64_t k, int64_t wide) {
    device_graph g;
    ggml_tensor * root = ggml_new_tensor_2d(g.ctx, type, wide, m);
    ggml_tensor * a = ggml_view_2d(g.ctx, root, k, m, root->nb[1], 0);
    ggml_tensor * b = ggml_new_tensor_2d(g.ctx, GGML_TYPE_F32, k, n);
    ggml_tensor * dst = ggml_mul_mat(g.ctx, a, b);
    REQUIRE(dst != NULL);
    fill(root);
    fill(b);
    REQUIRE(g.compute(dst));
    check_product({ a, root, b, b, 0, rounding_of(type, wide, n, false) }, dst, g.result.data());
}

// Products of bytes on the tensor cores: every number of rows and its neighbours, shapes that divide
// nothing, warps that share rows of weights and warps that do not.
static void few_rows(void) {
    CUDA_OR_SKIP();
#ifdef GB_CUDA_EMULATED
    const uint64_t before = gb_emu_launches_of("gb_few_rows<TYPE, 1>"),
                   two = gb_emu_launches_of("gb_few_rows<TYPE, 2>");
#endif
    for (ggml_type type : few_formats) {
        for (int64_t n = 1; n <= 17; n++) {
            mul_mat(type, GGML_TYPE_F32, { test_random_int(1, 70), n, 256 * test_random_int(1, 5), 1, 1, 1, 1 });
        }
        for (int64_t n : { 2, 5, 8, 9, 16 }) {
            mul_mat(type, GGML_TYPE_F32, { 16, n, 256 * 13, 1, 1, 1, 1 });                       // four warps
            mul_mat(type, GGML_TYPE_F32, { 16 * 5 + 3, n, 256 * 5, 1, 1, 1, 1 });                // two
            mul_mat(type, GGML_TYPE_F16, { test_random_int(500, 600), n, 256 * 2, 1, 1, 1, 1 }); // one
        }
        mul_mat(type, GGML_TYPE_F32, { 10, 3, 512, 2, 1, 4, 1 });
        mul_mat(type, GGML_TYPE_F32, { 10, 5, 256, 2, 3, 4, 3 }); // ten rows of a slice
        mul_mat(type, GGML_TYPE_F32, { 10, 2, 256, 2, 1, 4, 3 });
        mul_mat(type, type == GGML_TYPE_Q4_0 || type == GGML_TYPE_Q8_0 ? GGML_TYPE_Q8_0 : GGML_TYPE_Q8_K,
            { 33, 6, 768, 1, 1, 1, 1 });
    }
    for (int64_t k : { 32, 288, 512 - 32 }) {
        few_rows_of_a_wider_matrix(GGML_TYPE_Q4_0, 21, 7, k, 512);
        few_rows_of_a_wider_matrix(GGML_TYPE_Q8_0, 21, 11, k, 512);
    }
    for (ggml_type type : { GGML_TYPE_Q4_K, GGML_TYPE_Q6_K, GGML_TYPE_IQ4_XS }) {
        few_rows_of_a_wider_matrix(type, 35, 4, 512, 768);
    }
#ifdef GB_CUDA_EMULATED
    const bool takes_few = gb_emu_code() >= 80;
    CHECK_INT(gb_emu_launches_of("gb_few_rows<TYPE, 1>") - before, takes_few ? 5 * (7 + 9 + 3) + 6 : 0);
    CHECK_INT(gb_emu_launches_of("gb_few_rows<TYPE, 2>") - two, takes_few ? 5 * (8 + 6 + 1) + 3 : 0);
#endif
}

// As on the CPU, activations with NaN or too large values give a row of NaN. Other rows are correct.
static void nan_stays_in_its_row(void) {
    CUDA_OR_SKIP();
    for (ggml_type type : few_formats) {
        for (float bad : { NAN, INFINITY, 0x1p100f }) {
            device_graph g;
            const int64_t m = 20, n = 6, k = 512;
            ggml_tensor * a = ggml_new_tensor_2d(g.ctx, type, k, m);
            ggml_tensor * b = ggml_new_tensor_2d(g.ctx, GGML_TYPE_F32, k, n);
            ggml_tensor * dst = ggml_mul_mat(g.ctx, a, b);
            fill(a);
            fill(b);
            ((float *) b->data)[3 * k + 300] = bad;
            ((float *) b->data)[5 * k] = 0x1p-101f; // far below the others
            REQUIRE(g.compute(dst));
            int wrong = 0;
            for (int64_t i = 0; i < m * n; i++) {
                wrong += (i / m == 3) != (bool) isnan(g.result[(size_t) i]);
            }
            CHECK_MSG(wrong == 0, "%s with %g: %d of %d", ggml_type_name(type), (double) bad, wrong, (int) (m * n));
        }
    }
}

static void tiles_of_all_formats(void) {
    CUDA_OR_SKIP();
    for (ggml_type type : formats) {
        const int64_t block = ggml_blck_size(type);
        mul_mat(type, GGML_TYPE_F32, { 5, 9, block, 1, 1, 1, 1 });
        mul_mat(type, GGML_TYPE_F32, { 140, 70, 256 * 2 + block, 1, 1, 1, 1 });
    }
}

// Quantized weights whose bytes are copied 256 elements ahead: depths of many steps, in one part and in several, with
// tiles of few and many rows, and rows of any alignment. A device with less shared memory unpacks from global memory.
static void deep_tiles(void) {
    CUDA_OR_SKIP();
    for (ggml_type type : { GGML_TYPE_Q4_0, GGML_TYPE_Q8_0, GGML_TYPE_Q6_K, GGML_TYPE_IQ4_XS, GGML_TYPE_Q3_K }) {
        mul_mat(type, GGML_TYPE_F32, { 129, 33, 256 * 7, 1, 1, 1, 1 }); // parts
        mul_mat(type, GGML_TYPE_F32, { 515, 17, 256 * 6, 1, 1, 1, 1 });
        mul_mat(type, GGML_TYPE_F32, { 130, 70, 256 * 5, 1, 1, 2, 1 });
    }
    mul_mat(GGML_TYPE_Q4_0, GGML_TYPE_F32, { 150, 260, 1024 + 96, 1, 1, 1, 1 });
    mul_mat(GGML_TYPE_MXFP4, GGML_TYPE_F32, { 131, 65, 1024 + 32, 1, 1, 1, 1 });
    mul_mat(GGML_TYPE_Q8_0, GGML_TYPE_F32, { 600, 18, 1024 + 32 * 9, 1, 1, 1, 1 });
}

static void tiles_of_halves(void) {
    CUDA_OR_SKIP();
    for (ggml_type type : { GGML_TYPE_F16, GGML_TYPE_BF16 }) {
        for (int n : { 9, 31, 33, 64, 65, 130 }) {
            mul_mat(type, GGML_TYPE_F32, { 37, n, 72, 1, 1, 1, 1 });
        }
        mul_mat(type, type, { 129, 40, 200, 1, 1, 1, 1 });
        mul_mat(type, GGML_TYPE_F32, { 16, 20, 8, 1, 1, 1, 1 });
        mul_mat(type, GGML_TYPE_F32, { 130, 20, 1032, 1, 1, 1, 1 }); // depth in parts
        mul_mat(type, GGML_TYPE_F32, { 1, 17, 2048, 1, 1, 1, 1 });
    }
    mul_mat(GGML_TYPE_F16, GGML_TYPE_F16, { 300, 1200, 8, 1, 1, 1, 1 }); // several bands of tiles
}

static void large_tiles(void) { // where the device has few multiprocessors
    CUDA_OR_SKIP();
#ifdef GB_CUDA_EMULATED
    const uint64_t before = gb_emu_launches_of(", 256>"); // of any kernel
#endif
    for (ggml_type type : { GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q4_0, GGML_TYPE_Q6_K, GGML_TYPE_IQ3_S }) {
        mul_mat(type, GGML_TYPE_F32, { 200, 260, type == GGML_TYPE_F16 ? 72 : 256, 1, 1, 1, 1 });
    }
    mul_mat(GGML_TYPE_F16, GGML_TYPE_F32, { 129, 512, 328, 1, 1, 2, 1 });
#ifdef GB_CUDA_EMULATED
    const uint64_t n = gb_emu_launches_of(", 256>") - before;
    CHECK_MSG(gb_emu_code() >= 80 ? n >= 6 : n == 0, "%d launches", (int) n);
#endif
}

static void exact_products(void) {
    CUDA_OR_SKIP();
    mul_mat(GGML_TYPE_F32, GGML_TYPE_F32, { 1, 9, 1, 1, 1, 1, 1 });
    mul_mat(GGML_TYPE_F32, GGML_TYPE_F32, { 65, 70, 33, 1, 1, 1, 1 });
    // Large tiles, if the device has few multiprocessors.
    mul_mat(GGML_TYPE_F32, GGML_TYPE_F32, { 300, 260, 40, 1, 1, 2, 1 });
    mul_mat(GGML_TYPE_F16, GGML_TYPE_F32, { 33, 12, 75, 1, 1, 1, 1 }); // rows at odd addresses
    for (ggml_type type : formats) {
        mul_mat(type, GGML_TYPE_F32, { 9, 10, 256, 1, 1, 1, 1 }, true);
        mul_mat(type, GGML_TYPE_F32, { 3, 1, 256, 1, 1, 1, 1 }, true);
    }
    mul_mat(GGML_TYPE_F16, GGML_TYPE_F32, { 33, 12, 64, 1, 1, 1, 1 }, true);
}

// F32 weights in tiles of 32, 64 and 128 rows: edges in all directions, many stages, the depth in parts, tf32.
static void tiles_of_floats(void) {
    CUDA_OR_SKIP();
    for (int n : { 9, 32, 33, 64, 65, 128, 129 }) {
        mul_mat(GGML_TYPE_F32, GGML_TYPE_F32, { 37, n, 36, 1, 1, 1, 1 });
        mul_mat(GGML_TYPE_F32, GGML_TYPE_F32, { 130, n, 4 * test_random_int(1, 60), 1, 1, 1, 1 });
    }
    mul_mat(GGML_TYPE_F32, GGML_TYPE_F32, { 1, 40, 4, 1, 1, 1, 1 });
    mul_mat(GGML_TYPE_F32, GGML_TYPE_F32, { 129, 70, 1100, 1, 1, 1, 1 }); // parts
    mul_mat(GGML_TYPE_F32, GGML_TYPE_F32, { 65, 11, 1032, 1, 1, 2, 1 });
    for (int exact = 0; exact < 2; exact++) {
        mul_mat(GGML_TYPE_F32, GGML_TYPE_F32, { 66, 40, 100, 2, 3, 2, 3 }, exact != 0);
    }
}

static void products_of_tf32(void) {
    CUDA_OR_SKIP();
    setenv("GGML_CUDA_TF32", "1", 1); // read by each new backend
#ifdef GB_CUDA_EMULATED
    const uint64_t before = gb_emu_launches_of("gb_gemm_halves<SOURCE, KIND");
    const bool has_tf32 = gb_emu_code() >= 80;
#endif
    for (const shape & s : { shape{ 37, 9, 36, 1, 1, 1, 1 }, shape{ 130, 70, 124, 1, 1, 1, 1 },
             shape{ 200, 260, 72, 1, 1, 1, 1 }, shape{ 129, 33, 1100, 1, 1, 1, 1 }, shape{ 40, 20, 40, 2, 3, 2, 3 } }) {
        mul_mat_of(GGML_TYPE_F32, GGML_TYPE_F32, s, false, HALVES);
    }
#ifdef GB_CUDA_EMULATED
    CHECK_INT(gb_emu_launches_of("gb_gemm_halves<SOURCE, KIND") - before, has_tf32 ? 5 : 0);
#endif
    mul_mat(GGML_TYPE_F32, GGML_TYPE_F32, { 37, 20, 36, 1, 1, 1, 1 }, true); // GGML_PREC_F32 stays exact
    unsetenv("GGML_CUDA_TF32");
}

static void broadcasts(void) {
    CUDA_OR_SKIP();
    for (ggml_type type : { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q8_0 }) {
        mul_mat(type, GGML_TYPE_F32, { 10, 3, 64, 2, 1, 4, 1 });
        mul_mat(type, GGML_TYPE_F32, { 10, 12, 64, 2, 3, 4, 3 });
        mul_mat(type, GGML_TYPE_F32, { 10, 2, 64, 2, 1, 4, 3 });
        mul_mat(type, GGML_TYPE_F32, { 10, 11, 64, 1, 2, 3, 4 });
    }
}

static void partner_formats(void) {
    CUDA_OR_SKIP();
    mul_mat(GGML_TYPE_Q4_0, GGML_TYPE_Q8_0, { 10, 3, 64, 1, 1, 1, 1 });
    mul_mat(GGML_TYPE_Q4_1, GGML_TYPE_Q8_1, { 10, 12, 64, 1, 1, 1, 1 });
    mul_mat(GGML_TYPE_Q6_K, GGML_TYPE_Q8_K, { 10, 3, 512, 1, 1, 1, 1 });
    mul_mat(GGML_TYPE_Q6_K, GGML_TYPE_BF16, { 10, 13, 512, 1, 1, 1, 1 });
}

// Both operands as views with dimensions 1 and 2 exchanged, as attention makes them; rows of a wider matrix.
static void permuted(ggml_type type, int64_t n, int64_t d) {
    const int64_t m = 12, heads = 3;
    device_graph g;
    ggml_tensor * a_root = ggml_new_tensor_3d(g.ctx, type, d, heads, m);
    ggml_tensor * b_root = ggml_new_tensor_3d(g.ctx, GGML_TYPE_F32, d, heads, n);
    ggml_tensor * a = ggml_permute(g.ctx, a_root, 0, 2, 1, 3);
    ggml_tensor * b = ggml_permute(g.ctx, b_root, 0, 2, 1, 3);
    ggml_tensor * dst = ggml_mul_mat(g.ctx, a, b);
    REQUIRE(dst != NULL);
    fill(a_root);
    fill(b_root);
    REQUIRE(g.compute(dst));
    check_product({ a, a_root, b, b_root, 0, rounding_of(type, d, n, false) }, dst, g.result.data());
}

static void strides(void) {
    CUDA_OR_SKIP();
    for (ggml_type type : { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q5_0 }) {
        for (int64_t n : { 1, 7, 20 }) {
            permuted(type, n, 32);
            if (!ggml_is_quantized(type)) {
                permuted(type, n, 36); // rows of F32 can be read 16 bytes at a time and end within eight elements
            }
        }
    }
}

static void out_prod(ggml_type a_type, const shape & s, bool transposed) {
    device_graph g;
    ggml_tensor * a = ggml_new_tensor_4d(g.ctx, a_type, s.m, s.k, s.a2, s.a3);
    ggml_tensor * b_root = transposed ? ggml_new_tensor_4d(g.ctx, GGML_TYPE_F32, s.k, s.n, s.b2, s.b3)
                                      : ggml_new_tensor_4d(g.ctx, GGML_TYPE_F32, s.n, s.k, s.b2, s.b3);
    ggml_tensor * b = transposed ? ggml_transpose(g.ctx, b_root) : b_root;
    ggml_tensor * dst = ggml_out_prod(g.ctx, a, b);
    REQUIRE(dst != NULL);
    fill(a);
    fill(b_root);
    REQUIRE(g.compute(dst));
    check_product({ a, a, b, b_root, 1, EXACT }, dst, g.result.data());
}

static void outer_products(void) {
    CUDA_OR_SKIP();
    out_prod(GGML_TYPE_F32, { 20, 30, 40, 1, 1, 1, 1 }, false);
    out_prod(GGML_TYPE_F32, { 70, 3, 5, 2, 1, 4, 1 }, true);
    out_prod(GGML_TYPE_F16, { 17, 3, 9, 1, 1, 1, 1 }, false);
    for (ggml_type type : formats) {
        out_prod(type, { 256, 3, 35, 1, 1, 1, 1 }, false);
    }
}

static void mul_mat_id(ggml_type type, int64_t m, int64_t n, int64_t k, int n_experts, bool skewed,
    bool exact = false) {
    device_graph g;
    ggml_tensor * as[8];
    for (int i = 0; i < n_experts; i++) {
        as[i] = ggml_new_tensor_2d(g.ctx, type, k, m);
        fill(as[i]);
    }
    const int used = 2, id = 1;
    ggml_tensor * ids = ggml_new_tensor_2d(g.ctx, GGML_TYPE_I32, used, n);
    ggml_tensor * b = ggml_new_tensor_2d(g.ctx, GGML_TYPE_F32, k, n);
    ggml_tensor * dst = ggml_mul_mat_id(g.ctx, as, n_experts, ids, id, b);
    REQUIRE(dst != NULL);
    if (exact) {
        dst->op_params[2] = GGML_PREC_F32;
    }
    fill(b);
    for (int64_t i = 0; i < used * n; i++) {
        ((int32_t *) ids->data)[i] = skewed ? n_experts - 1 : (int32_t) (test_random() % (uint64_t) n_experts);
    }
    REQUIRE(g.compute(dst));
    const layout y = layout_of(b, b, 0);
    verdict v = {};
    for (int64_t t = 0; t < n; t++) {
        const ggml_tensor * a = as[((const int32_t *) ids->data)[t * used + id]];
        const layout x = layout_of(a, a, 0);
        const problem p = { a, a, b, b, 0, n <= 8 ? rounding_of(type, k, n, exact) : rounding_of(type, k, 17, exact) };
        for (int64_t c = 0; c < m; c++) {
            const int64_t at[4] = { c, t, 0, 0 };
            judge(p, x, y, at, g.result[(size_t) (t * m + c)], &v);
        }
    }
    CHECK_MSG(v.right(), "mul_mat_id %s m %d n %d k %d: %s", ggml_type_name(type), (int) m, (int) n, (int) k,
        v.text().c_str());
}

// A stack of experts. Each token uses some of them, with `given` rows of b that repeat.
struct stack_shape {
    int64_t m, tokens, k, n_experts, used, given;
};

static void mul_mat_experts(ggml_type type, const stack_shape & s, bool skewed = false, bool exact = false) {
    device_graph g;
    ggml_tensor * a = ggml_new_tensor_3d(g.ctx, type, s.k, s.m, s.n_experts);
    ggml_tensor * b = ggml_new_tensor_3d(g.ctx, GGML_TYPE_F32, s.k, s.given, s.tokens);
    ggml_tensor * ids = ggml_new_tensor_2d(g.ctx, GGML_TYPE_I32, s.used, s.tokens);
    ggml_tensor * dst = ggml_mul_mat_experts(g.ctx, a, b, ids);
    REQUIRE(dst != NULL);
    if (exact) {
        ggml_mul_mat_set_prec(dst, GGML_PREC_F32);
    }
    fill(a);
    fill(b);
    const int64_t n = s.used * s.tokens;
    for (int64_t i = 0; i < n; i++) {
        ((int32_t *) ids->data)[i] = (int32_t) (skewed ? s.n_experts - 1 : test_random() % (uint64_t) s.n_experts);
    }
    REQUIRE(g.compute(dst));
    layout x = layout_of(a, a, 0), y = layout_of(b, b, 0);
    ggml_tensor matrix = *a, row = *b; // of one row of the result
    matrix.ne[2] = row.ne[1] = row.ne[2] = 1;
    const problem p = { &matrix, a, &row, b, 0, rounding_of(type, s.k, n <= 8 ? n : 17, exact) };
    verdict v = {};
    for (int64_t r = 0; r < n; r++) {
        x.begin = ((const int32_t *) ids->data)[r] * x.stride[2];
        y.begin = r % s.used % s.given * y.stride[1] + r / s.used * y.stride[2];
        for (int64_t c = 0; c < s.m; c++) {
            const int64_t at[4] = { c, 0, 0, 0 };
            judge(p, x, y, at, g.result[(size_t) (r * s.m + c)], &v);
        }
    }
    CHECK_MSG(v.right(), "mul_mat_experts %s m %d tokens %d k %d experts %d: %s", ggml_type_name(type), (int) s.m,
        (int) s.tokens, (int) s.k, (int) s.n_experts, v.text().c_str());
}

static void stacks_of_experts(void) {
    CUDA_OR_SKIP();
    for (ggml_type type : { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q4_0, GGML_TYPE_Q6_K, GGML_TYPE_IQ2_S }) {
        mul_mat_experts(type, { 10, 1, 256, 300, 8, 1 });
        mul_mat_experts(type, { 10, 2, 256, 16, 4, 4 });
        mul_mat_experts(type, { 35, 40, 256, 5, 4, 2 });
        mul_mat_experts(type, { 5, 30, 256, 90, 3, 1 }); // most experts have no rows
    }
    mul_mat_experts(GGML_TYPE_F16, { 70, 90, 64, 3, 2, 1 }, true);
    mul_mat_experts(GGML_TYPE_Q8_0, { 10, 30, 64, 2, 2, 2 }, false, true);
    mul_mat_experts(GGML_TYPE_BF16, { 10, 30, 60, 2, 2, 2 }); // rows that are not aligned
}

static void experts(void) {
    CUDA_OR_SKIP();
    for (ggml_type type : { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q4_0, GGML_TYPE_Q6_K }) {
        mul_mat_id(type, 10, 1, 256, 4, false);
        mul_mat_id(type, 10, 7, 256, 8, false);
        mul_mat_id(type, 35, 75, 256, 8, false);
        mul_mat_id(type, 5, 40, 256, 3, true);
    }
    mul_mat_id(GGML_TYPE_F16, 10, 300, 64, 2, false);
    mul_mat_id(GGML_TYPE_F16, 150, 700, 64, 2, true);
    mul_mat_id(GGML_TYPE_Q4_0, 10, 30, 64, 2, false, true);
}

// No other row is NaN. test_index.cpp checks the error.
static void a_wrong_expert_gives_a_row_of_nan(void) {
    CUDA_OR_SKIP();
    for (int n : { 3, 20 }) {
        device_graph g;
        ggml_tensor * a = ggml_new_tensor_2d(g.ctx, GGML_TYPE_F32, 32, 6);
        ggml_tensor * ids = ggml_new_tensor_2d(g.ctx, GGML_TYPE_I32, 1, n);
        ggml_tensor * b = ggml_new_tensor_2d(g.ctx, GGML_TYPE_F32, 32, n);
        ggml_tensor * dst = ggml_mul_mat_id(g.ctx, &a, 1, ids, 0, b);
        REQUIRE(dst != NULL);
        fill(a);
        fill(b);
        memset(ids->data, 0, ggml_nbytes(ids));
        ((int32_t *) ids->data)[1] = 1;
        ((int32_t *) ids->data)[2] = -5;
        REQUIRE(g.compute(dst));
        for (int i = 0; i < 6 * n; i++) {
            CHECK(isnan(g.result[(size_t) i]) == (i / 6 == 1 || i / 6 == 2));
        }
        ggml_clear_error();
    }
}

TEST_MAIN(TEST(vectors_of_all_formats), TEST(vectors_of_long_rows), TEST(vectors_of_each_count), TEST(few_rows),
    TEST(nan_stays_in_its_row), TEST(tiles_of_all_formats), TEST(deep_tiles), TEST(tiles_of_halves), TEST(large_tiles),
    TEST(exact_products), TEST(tiles_of_floats), TEST(products_of_tf32), TEST(broadcasts), TEST(partner_formats),
    TEST(strides), TEST(outer_products), TEST(experts), TEST(stacks_of_experts),
    TEST(a_wrong_expert_gives_a_row_of_nan))
