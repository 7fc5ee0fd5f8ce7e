// test_attention_hopper.cpp - attention of halves with many query rows by the kernel for compute capability 9.0,
// against the formulas in double. In the emulation it also checks which kernel runs.
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include "device_graph.h"
#include "ggml-alloc.h"
#include "ggml-cpu.h"

#pragma push_macro("TEST_MAIN")
#undef TEST_MAIN
#define TEST_MAIN(...) [[maybe_unused]] static const struct test_case all_cases[] = { __VA_ARGS__ };
namespace attentions {
#include "test_attention.cpp"
}
namespace chains {
#include "test_chain.cpp"
}
#pragma pop_macro("TEST_MAIN")

static const char kernel[] = "gb_attention_tall";

static void attend(const attentions::attention & s, bool taken = true) {
    const uint64_t before = cuda_launches(kernel);
    char text[100];
    attentions::check(s);
    snprintf(text, sizeof(text), "%s d %d n %d m %d", ggml_type_name(s.type), (int) s.d, (int) s.n, (int) s.m);
    cuda_check_launches(kernel, before, taken ? 1 : 0, text);
}

static const ggml_type halves[] = { GGML_TYPE_F16, GGML_TYPE_BF16 };

// Rows and keys just below, at and above the sides of tiles, with heads of random sizes.
static void edges_of_tiles_are_right(void) {
    CUDA_OR_SKIP();
    const int64_t n[] = { 65, 66, 127, 128, 129, 200 }, m[] = { 8, 64, 120, 128, 136, 256, 264, 392 },
                  d[] = { 8, 40, 64, 72, 80, 128 };
    for (int i = 0; i < 24; i++) {
        const bool masked = i % 2 != 0;
        const int64_t rows = n[i % 6], keys = m[(5 * i + 1) % 8];
        attend({ halves[i / 2 % 2], d[test_random_int(0, 5)], rows, std::max<int64_t>(keys, (rows + 7) / 8 * 8), 1, 1,
            1, 1, masked, i % 3 == 0 });
    }
}

static void long_heads(void) {
    CUDA_OR_SKIP();
    for (ggml_type type : halves) {
        attend({ type, 256, 70, 72, 1, 1, 1, 1, true, false });
        attend({ type, 200, 130, 200, 1, 1, 1, 1, false, true });
    }
}

static void heads_that_share_keys(void) {
    CUDA_OR_SKIP();
    attend({ GGML_TYPE_F16, 64, 20, 40, 8, 2, 2, 2, true, true });    // rows of several heads in a tile
    attend({ GGML_TYPE_BF16, 32, 1, 64, 70, 1, 1, 1, false, false }); // one query
    attend({ GGML_TYPE_F16, 32, 90, 96, 6, 3, 2, 1, false, false }); // keys and values differ, so a tile has one head
    attend({ GGML_TYPE_F16, 128, 140, 144, 4, 2, 2, 2, true, true });
}

static void keys_in_parts(void) {
    CUDA_OR_SKIP();
    attend({ GGML_TYPE_F16, 64, 66, 1032, 1, 1, 1, 1, true, false });
    attend({ GGML_TYPE_F16, 64, 100, 1024, 1, 1, 1, 1, false, true });
    attend({ GGML_TYPE_BF16, 128, 260, 520, 1, 1, 1, 1, true, false }); // parts that some rows do not see
}

static void many_tiles(void) { // so that stages of shared memory are used again
    CUDA_OR_SKIP();
    attend({ GGML_TYPE_F16, 64, 500, 904, 2, 1, 1, 1, false, false });
    attend({ GGML_TYPE_BF16, 128, 600, 704, 1, 1, 1, 1, true, false });
}

static void other_attention_uses_other_kernels(void) {
    CUDA_OR_SKIP();
    attend({ GGML_TYPE_F16, 64, 64, 72, 1, 1, 1, 1, false, false }, false); // few rows
    attend({ GGML_TYPE_F16, 36, 70, 72, 1, 1, 1, 1, false, false }, false); // rows that are not aligned
    attend({ GGML_TYPE_F32, 64, 70, 72, 1, 1, 1, 1, false, false }, false);
}

static void masks(void) { // whole tiles, which are read in pairs, and others
    CUDA_OR_SKIP();
    ggml_backend_t cuda = chains::open();
    const uint64_t before = cuda_launches(kernel);
    for (chains::edit e : { chains::ADDED, chains::ADDED_BY_HEAD, chains::IN_SOFT_MAX, chains::CAUSAL_AND_ADDED }) {
        for (int half = 0; half < 2; half++) {
            chains::options o;
            o.edit = e;
            o.half_mask = half != 0 && e != chains::IN_SOFT_MAX; // SOFT_MAX has no masks of halves
            chains::on_and_off(cuda, { half ? GGML_TYPE_BF16 : GGML_TYPE_F16, 64, 70, 264, 2, 1, 1, 1 }, o);
            chains::on_and_off(cuda, { half ? GGML_TYPE_F16 : GGML_TYPE_BF16, 128, 140, 392, 1, 1, 1, 1 }, o);
            chains::on_and_off(cuda, { GGML_TYPE_F16, 144, 66, 136, 1, 1, 1, 1 }, o);
        }
    }
    for (int64_t hidden : { 1, 64, 130, 256 }) { // rows that see nothing of their first tiles
        chains::options o;
        o.edit = chains::ADDED;
        o.hidden = hidden;
        chains::on_and_off(cuda, { GGML_TYPE_F16, 64, 70, 264, 2, 1, 1, 1 }, o);
        chains::on_and_off(cuda, { GGML_TYPE_BF16, 128, 140, 1032, 1, 1, 1, 1 }, o);
    }
    cuda_check_launches(kernel, before, 32, "masks");
    ggml_backend_free(cuda);
}

static void chains_of_operators(void) {
    CUDA_OR_SKIP();
    const uint64_t before = cuda_launches(kernel);
    chains::halves(); // 70 rows of heads that share keys, with each kind of mask
    cuda_check_launches(kernel, before, chains::N_EDITS, "chains");
}

TEST_MAIN(TEST(edges_of_tiles_are_right), TEST(long_heads), TEST(heads_that_share_keys), TEST(keys_in_parts),
    TEST(many_tiles), TEST(other_attention_uses_other_kernels), TEST(masks), TEST(chains_of_operators))
