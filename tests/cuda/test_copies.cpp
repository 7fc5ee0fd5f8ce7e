// test_copies.cpp - CPY on a CUDA device, or in the emulation, between views whose rows begin and end at many
// alignments. The bytes between rows must not change.
extern "C" {
#include "test.h"
}

#include <cmath>
#include <vector>

#include "cuda_test.h"

// A view of ne elements: rows are `gap` elements apart, and the first begins `first` elements into the memory.
struct side {
    ggml_type type;
    int64_t gap, first;
    bool is_permuted; // dimensions 1 and 2 change places
};

struct copy_case {
    int64_t ne[3];
    side from, to;
};

struct made {
    ggml_tensor *memory, *view;
    std::vector<char> bytes;
};

static made make(ggml_context * ctx, const copy_case & k, const side & s) {
    const int64_t block = ggml_blck_size(s.type), row = k.ne[0] + s.gap * block;
    const int64_t n1 = s.is_permuted ? k.ne[2] : k.ne[1], n2 = s.is_permuted ? k.ne[1] : k.ne[2];
    made m = {};
    m.memory = ggml_new_tensor_1d(ctx, s.type, row * n1 * n2 + s.first * block + row);
    const size_t nb1 = ggml_row_size(s.type, row);
    m.view =
        ggml_view_3d(ctx, m.memory, k.ne[0], n1, n2, nb1, nb1 * (size_t) n1, (size_t) s.first * ggml_type_size(s.type));
    if (s.is_permuted) {
        m.view = ggml_permute(ctx, m.view, 0, 2, 1, 3);
    }
    m.bytes.resize(ggml_nbytes(m.memory));
    return m;
}

static char * place(made & m, int64_t i, int64_t j, int64_t l) { // of block i of a row
    return m.bytes.data() + m.view->view_offs + (size_t) i * m.view->nb[0] + (size_t) j * m.view->nb[1] +
           (size_t) l * m.view->nb[2];
}

static float get(ggml_type type, const char * p) {
    uint16_t h;
    float f;
    memcpy(&h, p, sizeof(h));
    if (type == GGML_TYPE_F32) {
        memcpy(&f, p, sizeof(f));
        return f;
    }
    return type == GGML_TYPE_F16 ? ggml_fp16_to_fp32(h) : ggml_bf16_to_fp32(ggml_bf16_t{ h });
}

static void put(ggml_type type, char * p, float f) {
    if (type == GGML_TYPE_F32) {
        memcpy(p, &f, sizeof(f));
    } else {
        const uint16_t h = type == GGML_TYPE_F16 ? ggml_fp32_to_fp16(f) : ggml_fp32_to_bf16(f).bits;
        memcpy(p, &h, sizeof(h));
    }
}

static void compare(ggml_backend_t cuda, const copy_case & k) {
    ggml_context * ctx = ggml_init({ 1 << 16, NULL, true });
    made from = make(ctx, k, k.from), to = make(ctx, k, k.to);
    ggml_tensor * copy = ggml_cpy(ctx, from.view, to.view);
    REQUIRE(copy != NULL);
    ggml_cgraph * graph = ggml_new_graph(ctx);
    REQUIRE(ggml_build_forward_expand(graph, copy) == GGML_STATUS_SUCCESS);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, cuda);
    REQUIRE(buffer != NULL);
    const int64_t blocks = k.ne[0] / ggml_blck_size(k.from.type);
    for (char & c : to.bytes) {
        c = (char) (int) test_random_float(-100, 100);
    }
    for (char & c : from.bytes) {
        c = (char) (int) test_random_float(-100, 100);
    }
    ggml_backend_tensor_set(to.memory, to.bytes.data(), 0, to.bytes.size());
    for (int64_t l = 0; l < k.ne[2]; l++) {
        for (int64_t j = 0; j < k.ne[1]; j++) {
            for (int64_t i = 0; i < blocks; i++) {
                char *x = place(from, i, j, l), *y = place(to, i, j, l);
                if (k.from.type == k.to.type) {
                    memcpy(y, x, ggml_type_size(k.from.type));
                } else {
                    put(k.from.type, x, test_random_float(-3, 3));
                    put(k.to.type, y, get(k.from.type, x));
                }
            }
        }
    }
    ggml_backend_tensor_set(from.memory, from.bytes.data(), 0, from.bytes.size());
    CHECK(ggml_backend_graph_compute(cuda, graph));
    std::vector<char> got(to.bytes.size());
    ggml_backend_tensor_get(to.memory, got.data(), 0, got.size());
    size_t wrong = 0;
    while (wrong < got.size() && got[wrong] == to.bytes[wrong]) {
        wrong++;
    }
    CHECK_MSG(wrong == got.size(), "%s to %s, %d x %d x %d, gaps %d and %d, first %d and %d: byte %d is wrong",
        ggml_type_name(k.from.type), ggml_type_name(k.to.type), (int) k.ne[0], (int) k.ne[1], (int) k.ne[2],
        (int) k.from.gap, (int) k.to.gap, (int) k.from.first, (int) k.to.first, (int) wrong);
    ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
}

static void copies_between_alignments(void) {
    CUDA_OR_SKIP();
    ggml_backend_t cuda = cuda_open(0);
    test_seed = 8;
    for (ggml_type type :
        { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_I32, GGML_TYPE_I8, GGML_TYPE_Q4_0, GGML_TYPE_Q8_0, GGML_TYPE_Q4_K }) {
        const int64_t block = ggml_blck_size(type);
        for (int64_t n : { 1, 2, 4, 5, 8, 16, 24 }) {
            for (int64_t shift : { 0, 1, 2, 4, 8, 16 }) {
                const side even = { type, shift, 0, false }, moved = { type, 8, shift, true };
                compare(cuda, { { n * block, 3, 2 }, even, moved });
                compare(cuda, { { n * block, 3, 2 }, moved, even });
            }
        }
    }
    ggml_backend_free(cuda);
}

static void conversions_between_alignments(void) {
    CUDA_OR_SKIP();
    ggml_backend_t cuda = cuda_open(0);
    test_seed = 9;
    const ggml_type floats[] = { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16 };
    for (ggml_type from : floats) {
        for (ggml_type to : floats) {
            for (int64_t n : { 1, 4, 6, 8, 20 }) {
                for (int64_t shift : { 0, 1, 2, 4 }) {
                    compare(cuda, { { n, 3, 2 }, { from, 4, shift, true }, { to, shift, 0, false } });
                }
            }
        }
    }
    // four at once only if both sides allow it
    const uint64_t before = cuda_launches("gb_copy_fours");
    compare(cuda, { { 8, 3, 2 }, { GGML_TYPE_F32, 4, 0, true }, { GGML_TYPE_F16, 4, 0, false } });
    cuda_check_launches("gb_copy_fours", before, 1, "aligned rows");
    compare(cuda, { { 8, 3, 2 }, { GGML_TYPE_F32, 4, 0, true }, { GGML_TYPE_F16, 4, 1, false } });
    compare(cuda, { { 6, 3, 2 }, { GGML_TYPE_F32, 2, 0, true }, { GGML_TYPE_F16, 2, 0, false } });
    cuda_check_launches("gb_copy_fours", before, 1, "other rows");
    ggml_backend_free(cuda);
}

TEST_MAIN(TEST(copies_between_alignments), TEST(conversions_between_alignments))
