// test_decode_launches.cpp - one token of a Llama-shaped decoder takes at most ten launches a layer. Its results are
// those of the single operators.
//
// A layer has a norm, q, k and v with ROPE and the cache, attention, a residual, a norm, a gated feed-forward part and
// a residual. The graph allocator places the results, so that intermediate ones need not be stored.
#include <cmath>

#include "cuda_test.h"
#include "ggml-alloc.h"

#include <vector>

enum { D = 64, HEADS = 4, K_HEADS = 2, EMBD = D * HEADS, FF = 512, CACHE = 704 };

struct layer {
    ggml_tensor *wq, *wk, *wv, *wo, *gate, *up, *down, *norm[2], *k, *v;
};

struct model {
    ggml_backend_t backend;
    ggml_context * c;
    ggml_backend_buffer_t buffer;
    std::vector<layer> layers;
};

static void fill(ggml_tensor * t, uint64_t seed) {
    test_seed = seed;
    const size_t n = (size_t) ggml_nelements(t);
    std::vector<float> x(n);
    for (float & f : x) {
        f = test_random_float(-1, 1) * (t->ne[1] > 1 && t->ne[2] == 1 ? 0.1f : 1);
    }
    std::vector<char> bytes(ggml_nbytes(t));
    if (t->type == GGML_TYPE_F32) {
        memcpy(bytes.data(), x.data(), bytes.size());
    } else if (t->type == GGML_TYPE_F16) {
        ggml_fp32_to_fp16_row(x.data(), (ggml_fp16_t *) (void *) bytes.data(), (int) n);
    } else {
        const ggml_from_float_t convert = gb_quant_format_of(t->type)->from_float;
        for (size_t i = 0, row = (size_t) t->ne[0]; i < n; i += row) {
            convert(x.data() + i, bytes.data() + i / row * t->nb[1], (int) row);
        }
    }
    CHECK_INT(ggml_backend_tensor_set(t, bytes.data(), 0, bytes.size()), GGML_STATUS_SUCCESS);
}

static model open_model(ggml_backend_t backend, ggml_type type, int n_layers) {
    model m = { backend, ggml_init({ 1 << 18, NULL, true }), NULL, std::vector<layer>((size_t) n_layers) };
    for (layer & l : m.layers) {
        l.wq = ggml_new_tensor_2d(m.c, type, EMBD, EMBD);
        l.wk = ggml_new_tensor_2d(m.c, type, EMBD, D * K_HEADS);
        l.wv = ggml_new_tensor_2d(m.c, type, EMBD, D * K_HEADS);
        l.wo = ggml_new_tensor_2d(m.c, type, EMBD, EMBD);
        l.gate = ggml_new_tensor_2d(m.c, type, EMBD, FF);
        l.up = ggml_new_tensor_2d(m.c, type, EMBD, FF);
        l.down = ggml_new_tensor_2d(m.c, type, FF, EMBD);
        l.norm[0] = ggml_new_tensor_1d(m.c, GGML_TYPE_F32, EMBD);
        l.norm[1] = ggml_new_tensor_1d(m.c, GGML_TYPE_F32, EMBD);
        l.k = ggml_new_tensor_3d(m.c, GGML_TYPE_F16, D, K_HEADS, CACHE);
        l.v = ggml_new_tensor_3d(m.c, GGML_TYPE_F16, CACHE, D, K_HEADS);
    }
    m.buffer = ggml_backend_alloc_ctx_tensors(m.c, backend);
    CHECK(m.buffer != NULL);
    uint64_t seed = 1;
    for (layer & l : m.layers) {
        for (ggml_tensor * t : { l.wq, l.wk, l.wv, l.wo, l.gate, l.up, l.down, l.norm[0], l.norm[1], l.k, l.v }) {
            fill(t, seed++);
        }
    }
    return m;
}

static void close_model(model & m) {
    ggml_backend_buffer_free(m.buffer);
    ggml_free(m.c);
}

struct step {
    ggml_context * c;
    ggml_cgraph * graph;
    ggml_tensor * position;
};

static ggml_tensor * normed(const step & s, ggml_tensor * x, ggml_tensor * w) {
    return ggml_mul(s.c, ggml_rms_norm(s.c, x, 1e-5f), w);
}

static ggml_tensor * rotated(const step & s, ggml_tensor * x, int heads) {
    return ggml_rope(s.c, ggml_reshape_3d(s.c, x, D, heads, x->ne[1]), s.position, D, 0, CACHE);
}

static ggml_tensor * attend(const step & s, const layer & l, ggml_tensor * y, int64_t past, int64_t n) {
    ggml_context * c = s.c;
    ggml_tensor * k = rotated(s, ggml_mul_mat(c, l.wk, y), K_HEADS);
    ggml_build_forward_expand(s.graph,
        ggml_cpy(c, k, ggml_view_3d(c, l.k, D, K_HEADS, n, l.k->nb[1], l.k->nb[2], (size_t) past * l.k->nb[2])));
    ggml_tensor * v = ggml_transpose(c, ggml_mul_mat(c, l.wv, y));
    ggml_build_forward_expand(s.graph,
        ggml_cpy(c, v, ggml_view_2d(c, l.v, n, D * K_HEADS, l.v->nb[1], (size_t) past * l.v->nb[0])));
    ggml_tensor * q = ggml_permute(c, rotated(s, ggml_mul_mat(c, l.wq, y), HEADS), 0, 2, 1, 3);
    ggml_tensor * keys = ggml_view_3d(c, l.k, D, past + n, K_HEADS, l.k->nb[2], l.k->nb[1], 0);
    ggml_tensor * values = ggml_view_3d(c, l.v, past + n, D, K_HEADS, l.v->nb[1], l.v->nb[2], 0);
    ggml_tensor * scores = ggml_scale(c, ggml_mul_mat(c, keys, q), 1 / std::sqrt((float) D));
    scores = ggml_soft_max(c, ggml_diag_mask_inf(c, scores, (int) past));
    ggml_tensor * heads = ggml_permute(c, ggml_mul_mat(c, values, scores), 0, 2, 1, 3);
    return ggml_mul_mat(c, l.wo, ggml_reshape_2d(c, ggml_cont(c, heads), EMBD, n));
}

static ggml_tensor * apply(const step & s, const layer & l, ggml_tensor * x, int64_t past) {
    ggml_context * c = s.c;
    x = ggml_add(c, attend(s, l, normed(s, x, l.norm[0]), past, x->ne[1]), x);
    ggml_tensor * y = normed(s, x, l.norm[1]);
    ggml_tensor * hidden = ggml_mul(c, ggml_silu(c, ggml_mul_mat(c, l.gate, y)), ggml_mul_mat(c, l.up, y));
    return ggml_add(c, ggml_mul_mat(c, l.down, hidden), x);
}

struct outcome {
    std::vector<float> y, keys; // the result; the key that the last layer wrote
    uint64_t launches;
};

static outcome run(const model & m, int64_t past, int64_t n, bool together) {
    step s = { ggml_init({ 1 << 19, NULL, true }), NULL, NULL };
    ggml_tensor * x = ggml_new_tensor_2d(s.c, GGML_TYPE_F32, EMBD, n);
    s.position = ggml_new_tensor_1d(s.c, GGML_TYPE_I32, n);
    ggml_set_input(x);
    ggml_set_input(s.position);
    s.graph = ggml_new_graph(s.c);
    ggml_tensor * y = x;
    for (const layer & l : m.layers) {
        y = apply(s, l, y, past);
    }
    ggml_set_output(y);
    ggml_build_forward_expand(s.graph, y);
    ggml_allocr_t memory = ggml_allocr_new_from_backend(m.backend, (size_t) 8 << 20);
    CHECK(ggml_allocr_alloc_graph(memory, s.graph) > 0);
    fill(x, 77);
    std::vector<int32_t> positions;
    for (int64_t i = 0; i < n; i++) {
        positions.push_back((int32_t) (past + i));
    }
    CHECK_INT(ggml_backend_tensor_set(s.position, positions.data(), 0, ggml_nbytes(s.position)), GGML_STATUS_SUCCESS);
    outcome o;
    ggml_graph_set_fusion(together);
    const uint64_t before = cuda_launches("gb_");
    CHECK_MSG(ggml_backend_graph_compute(m.backend, s.graph), "%s", ggml_last_error());
    ggml_backend_synchronize(m.backend);
    o.launches = cuda_launches("gb_") - before;
    ggml_graph_set_fusion(true);
    o.y.resize((size_t) ggml_nelements(y));
    ggml_backend_tensor_get(y, o.y.data(), 0, ggml_nbytes(y));
    const ggml_tensor * k = m.layers.back().k;
    std::vector<ggml_fp16_t> key((size_t) (D * K_HEADS * n));
    ggml_backend_tensor_get(k, key.data(), (size_t) past * k->nb[2], key.size() * 2);
    o.keys.resize(key.size());
    ggml_fp16_to_fp32_row(key.data(), o.keys.data(), (int) key.size());
    ggml_allocr_free(memory);
    ggml_free(s.c);
    return o;
}

static double distance(const std::vector<float> & a, const std::vector<float> & b) {
    double worst = 0;
    for (size_t i = 0; i < a.size(); i++) {
        const double error = std::fabs((double) a[i] - b[i]);
        worst = error <= worst ? worst : std::isnan(error) ? INFINITY : error;
    }
    return worst;
}

static void check_launches(ggml_type type, int64_t past) {
    uint64_t launches[2];
    for (int n_layers = 2; n_layers <= 3; n_layers++) {
        model m = open_model(cuda_open(0), type, n_layers);
        ggml_backend_cuda_set_graphs(m.backend, false);
#ifdef GB_CUDA_EMULATED
        const uint64_t prefetches = gb_emu_count().prefetches;
#endif
        const outcome one = run(m, past, 1, false), all = run(m, past, 1, true);
#ifdef GB_CUDA_EMULATED
        CHECK(gb_emu_count().prefetches > prefetches); // of weights, before products wait
#endif
        launches[n_layers - 2] = all.launches;
        // The single operators round activations of formats and of halves in other places.
        const double bound = type == GGML_TYPE_F32 ? 2e-4 : 4e-2;
        CHECK_MSG(distance(one.y, all.y) < bound && distance(one.keys, all.keys) < bound,
            "%s after %d: results differ by %g, keys by %g", ggml_type_name(type), (int) past, distance(one.y, all.y),
            distance(one.keys, all.keys));
        close_model(m);
        ggml_backend_free(m.backend);
    }
#ifdef GB_CUDA_EMULATED
    const int of_a_layer = (int) (launches[1] - launches[0]);
    printf("%s after %d tokens: %d launches a layer\n", ggml_type_name(type), (int) past, of_a_layer);
    CHECK_MSG(of_a_layer <= 10, "%s after %d: %d launches a layer", ggml_type_name(type), (int) past, of_a_layer);
#endif
}

static void a_layer_takes_at_most_ten_launches(void) {
    CUDA_OR_SKIP();
    for (ggml_type type : { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_Q5_1 }) {
        check_launches(type, 5);
        check_launches(type, 690); // keys in parts
    }
}

// The same on the CPU, also for several tokens.
static void results_are_those_of_the_cpu(void) {
    CUDA_OR_SKIP();
    for (ggml_type type : { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q8_0 }) {
        for (int64_t n : { 1, 2, 5, 12 }) {
            model m = open_model(cuda_open(0), type, 2), on_cpu = open_model(ggml_backend_cpu_init(), type, 2);
            const outcome a = run(m, 300, n, true), b = run(on_cpu, 300, n, true);
            const double bound = type == GGML_TYPE_F32 ? 5e-3 : 6e-2; // keys and values are halves
            CHECK_MSG(distance(a.y, b.y) < bound && distance(a.keys, b.keys) < bound,
                "%s, %d tokens: results differ by %g, keys by %g", ggml_type_name(type), (int) n, distance(a.y, b.y),
                distance(a.keys, b.keys));
            for (model * x : { &m, &on_cpu }) {
                close_model(*x);
                ggml_backend_free(x->backend);
            }
        }
    }
}

TEST_MAIN(TEST(a_layer_takes_at_most_ten_launches), TEST(results_are_those_of_the_cpu))
