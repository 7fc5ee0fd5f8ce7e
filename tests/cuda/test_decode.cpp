// test_decode.cpp - a decoder with a growing cache: every step is another graph of the same shape.
//
// Each step writes its key and value into the cache and attends to all of them, so addresses, sizes and parameters
// change. Compares with the CPU, and counts the graphs that are launched node by node.
#include <cmath>

#include "device_graph.h"

enum { D = 32, HEADS = 2, KEYS = 256, LAYERS = 2 };

struct layer {
    ggml_tensor *wq, *wk, *wv, *wo, *gain, *k, *v;
};

// The model and its cache, in memory of one backend.
struct decoder {
    ggml_backend_t backend;
    ggml_context * ctx;
    ggml_backend_buffer_t buffer;
    layer layers[LAYERS];
};

static void set_random(ggml_tensor * t, uint32_t seed, float size) {
    std::vector<float> values((size_t) ggml_nelements(t));
    for (float & v : values) {
        seed = seed * 1664525u + 1013904223u;
        v = size * ((float) (seed >> 8) / (1 << 23) - 1);
    }
    std::vector<ggml_fp16_t> halves(values.size());
    ggml_fp32_to_fp16_row(values.data(), halves.data(), (int) values.size());
    ggml_backend_tensor_set(t, t->type == GGML_TYPE_F16 ? (const void *) halves.data() : values.data(), 0,
        ggml_nbytes(t));
}

static decoder open_decoder(ggml_backend_t backend) {
    decoder d = { backend, ggml_init({ 1 << 17, NULL, true }), NULL, {} };
    for (layer & l : d.layers) {
        for (ggml_tensor ** w : { &l.wq, &l.wk, &l.wv, &l.wo }) {
            *w = ggml_new_tensor_2d(d.ctx, GGML_TYPE_F16, D * HEADS, D * HEADS);
        }
        l.gain = ggml_new_tensor_1d(d.ctx, GGML_TYPE_F32, D * HEADS);
        l.k = ggml_new_tensor_3d(d.ctx, GGML_TYPE_F16, D, HEADS, KEYS);
        l.v = ggml_new_tensor_3d(d.ctx, GGML_TYPE_F16, KEYS, D, HEADS);
    }
    d.buffer = ggml_backend_alloc_ctx_tensors(d.ctx, backend);
    CHECK(d.buffer != NULL);
    CHECK_INT(ggml_backend_buffer_clear(d.buffer, 0), GGML_STATUS_SUCCESS);
    uint32_t seed = 1;
    for (layer & l : d.layers) {
        for (ggml_tensor * w : { l.wq, l.wk, l.wv, l.wo }) {
            set_random(w, seed++, 0.2f);
        }
        set_random(l.gain, seed++, 1);
    }
    return d;
}

static void close_decoder(decoder & d) {
    ggml_backend_buffer_free(d.buffer);
    ggml_free(d.ctx);
    ggml_backend_free(d.backend);
}

struct step {
    ggml_context * ctx;
    ggml_cgraph * graph;
    ggml_tensor * position;
};

static ggml_tensor * rope(const step & s, ggml_tensor * x) {
    return ggml_rope(s.ctx, ggml_reshape_3d(s.ctx, x, D, HEADS, x->ne[1]), s.position, D, 0, KEYS);
}

// One layer for `n` tokens, the first at position `past`.
static ggml_tensor * apply(const step & s, const layer & l, ggml_tensor * x, int64_t past) {
    ggml_context * c = s.ctx;
    const int64_t n = x->ne[1], seen = past + n;
    ggml_tensor * y = ggml_mul(c, ggml_rms_norm(c, x, 1e-5f), l.gain);
    ggml_tensor * q = ggml_permute(c, rope(s, ggml_mul_mat(c, l.wq, y)), 0, 2, 1, 3);
    ggml_tensor * k = rope(s, ggml_mul_mat(c, l.wk, y));
    ggml_tensor * v = ggml_transpose(c, ggml_mul_mat(c, l.wv, y)); // [n, D * HEADS]
    ggml_build_forward_expand(s.graph,
        ggml_cpy(c, k, ggml_view_3d(c, l.k, D, HEADS, n, l.k->nb[1], l.k->nb[2], (size_t) past * l.k->nb[2])));
    ggml_build_forward_expand(s.graph,
        ggml_cpy(c, v, ggml_view_2d(c, l.v, n, D * HEADS, l.v->nb[1], (size_t) past * l.v->nb[0])));
    ggml_tensor * keys = ggml_view_3d(c, l.k, D, seen, HEADS, l.k->nb[2], l.k->nb[1], 0);
    ggml_tensor * values = ggml_view_3d(c, l.v, seen, D, HEADS, l.v->nb[1], l.v->nb[2], 0);
    ggml_tensor * scores = ggml_scale(c, ggml_mul_mat(c, keys, q), 1 / std::sqrt((float) D));
    scores = ggml_soft_max(c, ggml_diag_mask_inf(c, scores, (int) past));
    ggml_tensor * seen_values = ggml_permute(c, ggml_mul_mat(c, values, scores), 0, 2, 1, 3);
    ggml_tensor * joined = ggml_reshape_2d(c, ggml_cont(c, seen_values), D * HEADS, n);
    return ggml_add(c, x, ggml_mul_mat(c, l.wo, joined));
}

static std::vector<float> run_step(decoder & d, int64_t past, int64_t n) {
    step s = { ggml_init({ 1 << 18, NULL, true }), NULL, NULL };
    ggml_tensor * x = ggml_new_tensor_2d(s.ctx, GGML_TYPE_F32, D * HEADS, n);
    s.position = ggml_new_tensor_1d(s.ctx, GGML_TYPE_I32, n);
    s.graph = ggml_new_graph(s.ctx);
    ggml_tensor * y = x;
    for (const layer & l : d.layers) {
        y = apply(s, l, y, past);
    }
    ggml_set_output(y);
    ggml_build_forward_expand(s.graph, y);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(s.ctx, d.backend);
    CHECK(buffer != NULL);
    set_random(x, (uint32_t) past + 77, 1);
    std::vector<int32_t> positions((size_t) n);
    for (int64_t i = 0; i < n; i++) {
        positions[(size_t) i] = (int32_t) (past + i);
    }
    ggml_backend_tensor_set(s.position, positions.data(), 0, ggml_nbytes(s.position));
    CHECK_MSG(ggml_backend_graph_compute(d.backend, s.graph), "%s", ggml_last_error());
    std::vector<float> result((size_t) ggml_nelements(y));
    CHECK_INT(ggml_backend_tensor_get(y, result.data(), 0, ggml_nbytes(y)), GGML_STATUS_SUCCESS);
    ggml_backend_buffer_free(buffer);
    ggml_free(s.ctx);
    return result;
}

static void check_step(decoder & device, decoder & cpu, int64_t past, int64_t n) {
    const std::vector<float> got = run_step(device, past, n), want = run_step(cpu, past, n);
    double worst = 0;
    for (size_t i = 0; i < got.size(); i++) {
        worst = std::isfinite(got[i]) ? std::fmax(worst, std::fabs((double) got[i] - want[i])) : 1e9;
    }
    CHECK_MSG(worst < 0.02, "%d tokens after %d: %g", (int) n, (int) past, worst);
}

static struct ggml_backend_cuda_graph_stats stats_of(const decoder & d) {
    struct ggml_backend_cuda_graph_stats s = {};
    CHECK_INT(ggml_backend_cuda_get_graph_stats(d.backend, &s), GGML_STATUS_SUCCESS);
    return s;
}

// 64 steps. Each is one launch from the second step on.
static void steps_with_a_growing_cache_are_replayed(void) {
    CUDA_OR_SKIP();
    const bool replays = cuda_replays();
    decoder device = open_decoder(cuda_open(0)), cpu = open_decoder(ggml_backend_cpu_init());
    for (int64_t past = 0; past < 64; past++) {
        const struct ggml_backend_cuda_graph_stats before = stats_of(device);
        check_step(device, cpu, past, 1);
        const struct ggml_backend_cuda_graph_stats after = stats_of(device);
        const uint64_t launched = after.n_captured + after.n_updated + after.n_replayed - before.n_captured -
                                  before.n_updated - before.n_replayed;
        CHECK_MSG(past < 2 || !replays || launched == 1, "step %d is launched node by node", (int) past);
    }
    const struct ggml_backend_cuda_graph_stats s = stats_of(device);
    if (replays) {
        CHECK_INT(s.n_eager, 1);
        CHECK_MSG(s.n_captured <= 4, "%d graphs are made for 64 steps of one shape", (int) s.n_captured);
    }
    CHECK_INT(s.n_eager + s.n_captured + s.n_updated, 64);
    close_decoder(device);
    close_decoder(cpu);
}

// After another prompt, the recorded graphs of the first serve again.
static void a_prompt_keeps_recorded_steps(void) {
    CUDA_OR_SKIP();
    decoder device = open_decoder(cuda_open(0)), cpu = open_decoder(ggml_backend_cpu_init());
    int64_t past = 0;
    for (int64_t prompt : { 20, 12, 17, 12 }) {
        check_step(device, cpu, past, prompt);
        past += prompt;
        for (int i = 0; i < 6; i++) {
            check_step(device, cpu, past++, 1);
        }
    }
    const struct ggml_backend_cuda_graph_stats s = stats_of(device);
    if (cuda_replays()) {
        CHECK_INT(s.n_eager, 1);
        CHECK_MSG(s.n_captured <= 6, "%d graphs are made for two shapes", (int) s.n_captured);
    }
    close_decoder(device);
    close_decoder(cpu);
}

TEST_MAIN(TEST(steps_with_a_growing_cache_are_replayed), TEST(a_prompt_keeps_recorded_steps))
