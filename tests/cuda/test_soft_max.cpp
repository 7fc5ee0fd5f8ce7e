// test_soft_max.cpp - SOFT_MAX on a CUDA device, or in the emulation, against sums in double: rows that registers hold
// and rows that they do not, masks of each type, slopes, sinks, and values that are no ordinary numbers.
extern "C" {
#include "test.h"
}

#include <cmath>
#include <vector>

#include "cuda_test.h"

enum { ROWS = 5, HEADS = 3, BATCHES = 2 };

struct soft_max_case {
    int64_t n;
    ggml_type mask; // GGML_TYPE_COUNT: none
    float scale, bias;
    bool sinks;
};

// Row 1 of head 1 has a NaN, row 2 of each is masked, and row 3 of head 0 overflows with its scale.
static float value_of(int64_t i, int64_t row, int64_t head) {
    return row == 1 && head == 1 && i == 2  ? NAN
           : row == 2                       ? -INFINITY
           : row == 3 && head == 0 && i < 2 ? 3e38f
           : row == 3 && head == 0          ? -3e38f
                                            : test_random_float(-4, 4);
}

static float masked_at(int64_t i, int64_t row) { return i > 0 && (i + row) % 3 == 0 ? -INFINITY : (float) (i % 5) / 4; }

// ALiBi's slope of a head (Press et al. 2022) for at most four heads: 2 ^ (-bias (head + 1) / 2) up to the largest
// power of two of them, and odd powers of the square root of the first factor behind it.
static double slope_of(int64_t head, float bias) {
    return bias <= 0  ? 1
           : head < 2 ? pow(2, -bias / 2 * (double) (head + 1))
                      : pow(2, -bias / 4 * (double) (2 * (head - 2) + 1));
}

static std::vector<double> expected(const soft_max_case & k, const float * x, int64_t row, int64_t head, float sink) {
    std::vector<double> s((size_t) k.n);
    double largest = k.sinks ? sink : -INFINITY, sum = 0;
    bool bad = false;
    for (int64_t i = 0; i < k.n; i++) {
        const double m = k.mask == GGML_TYPE_COUNT ? 0 : masked_at(i, row) * slope_of(head, k.bias);
        s[(size_t) i] = (double) x[i] * k.scale + m;
        bad = bad || std::isnan(s[(size_t) i]);
        largest = fmax(largest, s[(size_t) i]);
    }
    for (double & v : s) {
        v = bad ? NAN : largest == -INFINITY ? 0 : exp(v - largest);
        sum += v;
    }
    sum += k.sinks && largest > -INFINITY ? exp(sink - largest) : 0;
    for (double & v : s) {
        v = sum == 0 ? 0 : v / sum;
    }
    return s;
}

static void compare(ggml_backend_t cuda, const soft_max_case & k) {
    ggml_context * ctx = ggml_init({ 1 << 16, NULL, true });
    ggml_tensor * x = ggml_new_tensor_4d(ctx, GGML_TYPE_F32, k.n, ROWS, HEADS, BATCHES);
    ggml_tensor * mask = k.mask == GGML_TYPE_COUNT ? NULL : ggml_new_tensor_2d(ctx, k.mask, k.n, ROWS);
    ggml_tensor * y =
        mask != NULL ? ggml_soft_max_bias(ctx, x, mask, k.scale, k.bias) : ggml_soft_max_ext(ctx, x, NULL, k.scale);
    REQUIRE(y != NULL);
    ggml_tensor * sinks = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, HEADS);
    REQUIRE(!k.sinks || ggml_soft_max_add_sinks(y, sinks) == GGML_STATUS_SUCCESS);
    ggml_cgraph * graph = ggml_new_graph(ctx);
    REQUIRE(ggml_build_forward_expand(graph, y) == GGML_STATUS_SUCCESS);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, cuda);
    REQUIRE(buffer != NULL);

    std::vector<float> given((size_t) ggml_nelements(x)), got(given.size()), weight = { 0.5f, -INFINITY, 3 };
    for (size_t i = 0; i < given.size(); i++) {
        const int64_t row = (int64_t) i / k.n;
        given[i] = value_of((int64_t) i % k.n, row % ROWS, row / ROWS % HEADS);
    }
    ggml_backend_tensor_set(x, given.data(), 0, given.size() * sizeof(float));
    ggml_backend_tensor_set(sinks, weight.data(), 0, HEADS * sizeof(float));
    if (mask != NULL) {
        std::vector<float> m((size_t) (k.n * ROWS));
        std::vector<ggml_fp16_t> halves(m.size());
        for (size_t i = 0; i < m.size(); i++) {
            m[i] = masked_at((int64_t) i % k.n, (int64_t) i / k.n);
        }
        ggml_fp32_to_fp16_row(m.data(), halves.data(), (int) m.size());
        const bool is_half = k.mask == GGML_TYPE_F16;
        ggml_backend_tensor_set(mask, is_half ? (const void *) halves.data() : m.data(), 0, ggml_nbytes(mask));
    }
    CHECK(ggml_backend_graph_compute(cuda, graph));
    ggml_backend_tensor_get(y, got.data(), 0, got.size() * sizeof(float));

    for (int64_t row = 0; row < ROWS * HEADS * BATCHES; row++) {
        const int64_t head = row / ROWS % HEADS;
        const std::vector<double> want =
            expected(k, &given[(size_t) (row * k.n)], row % ROWS, head, weight[(size_t) head]);
        for (int64_t i = 0; i < k.n; i++) {
            const double w = want[(size_t) i], g = got[(size_t) (row * k.n + i)];
            if (!(std::isnan(w) ? std::isnan(g) : fabs(g - w) <= 2e-6)) {
                CHECK_MSG(false, "n %d, mask %d, scale %g, bias %g, sinks %d: row %d, element %d is %g instead of %g",
                    (int) k.n, (int) k.mask, (double) k.scale, (double) k.bias, k.sinks, (int) row, (int) i, g, w);
                break;
            }
        }
    }
    ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
}

static void rows_of_all_lengths(void) {
    CUDA_OR_SKIP();
    ggml_backend_t cuda = cuda_open(0);
    test_seed = 4;
    for (int64_t n : { 1, 4, 37, 124, 128, 132, 300, 512, 516, 1024, 1028, 2048, 2052, 4096, 8192, 8196 }) {
        for (ggml_type mask : { GGML_TYPE_COUNT, GGML_TYPE_F32, GGML_TYPE_F16 }) {
            for (int sinks = 0; sinks < 2; sinks++) {
                compare(cuda, { n, mask, 1.75f, mask != GGML_TYPE_COUNT && sinks ? 4.0f : 0.0f, sinks != 0 });
            }
        }
    }
    ggml_backend_free(cuda);
}

// Rows that are not 16-aligned take the other kernel.
static void lengths_choose_the_kernel(void) {
    CUDA_OR_SKIP();
    ggml_backend_t cuda = cuda_open(0);
    for (int64_t n : { 4, 37, 2048, 8192, 8196 }) {
        const bool fours = n % 4 == 0 && n <= 8192;
        const uint64_t rows = cuda_launches("gb_soft_max_rows"), all = cuda_launches("gb_soft_max_row");
        compare(cuda, { n, GGML_TYPE_F16, 1, 0, false });
        cuda_check_launches("gb_soft_max_rows", rows, fours ? 0 : 1, "other rows");
        cuda_check_launches("gb_soft_max_row", all, 1, "all rows");
    }
    ggml_backend_free(cuda);
}

TEST_MAIN(TEST(rows_of_all_lengths), TEST(lengths_choose_the_kernel))
