// test_models.cpp - a small BERT encoder (the network of MiniLM) and a small Llama (grouped heads, a cache), beside the
// CPU: every format of weights, prompts of several lengths, with and without fusion.
//
// Each feature that a model combines has a test of its own. This test checks the features together.
// The kernel that computes activations also prepares them for the next product, depending on the
// format, the number of rows and the device. In the emulation, GB_EMU_CAPABILITY (7.5, 8.0 or 9.0)
// sets the compute capability. Every format takes minutes there, so that needs GGML_TEST_LONG=1.
#include <cmath>
#include <map>

#include "device_graph.h"

enum architecture { BERT, LLAMA };

// Formats with blocks of 256 elements need rows of whole blocks. For the others, rows end within a stretch of 128
// elements, which the kernels for 9.0 fill up with zeros.
struct sizes {
    int64_t width, ff, heads, kv_heads, vocab;
    int64_t head() const { return width / heads; }
};

enum { LAYERS = 2, KEYS = 104, LONGEST = 100 };

static const ggml_type all_types[] = { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q4_0, GGML_TYPE_Q4_1,
    GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_Q8_0, GGML_TYPE_Q2_K, GGML_TYPE_Q3_K, GGML_TYPE_Q4_K, GGML_TYPE_Q5_K,
    GGML_TYPE_Q6_K, GGML_TYPE_IQ4_NL, GGML_TYPE_IQ4_XS, GGML_TYPE_TQ1_0, GGML_TYPE_TQ2_0, GGML_TYPE_MXFP4,
    GGML_TYPE_NVFP4, GGML_TYPE_IQ2_XXS, GGML_TYPE_IQ2_XS, GGML_TYPE_IQ2_S, GGML_TYPE_IQ3_XXS, GGML_TYPE_IQ3_S,
    GGML_TYPE_IQ1_S, GGML_TYPE_IQ1_M, GGML_TYPE_Q1_0, GGML_TYPE_Q2_0 };

// ------------------------------------------------------------------------------------------------------------- weights

struct weight {
    ggml_type type;
    int64_t ne[2];
    std::vector<char> data;
};

struct model_file {
    architecture arch;
    sizes s;
    std::map<std::string, weight> weights;
};

static std::vector<char> encode(ggml_type type, const std::vector<float> & v, int64_t columns) {
    const int64_t rows = (int64_t) v.size() / columns;
    std::vector<char> data((size_t) rows * ggml_row_size(type, columns));
    if (type == GGML_TYPE_F32) {
        memcpy(data.data(), v.data(), data.size());
    } else if (type == GGML_TYPE_F16) {
        ggml_fp32_to_fp16_row(v.data(), (ggml_fp16_t *) (void *) data.data(), (int) v.size());
    } else if (type == GGML_TYPE_BF16) {
        ggml_fp32_to_bf16_row(v.data(), (ggml_bf16_t *) (void *) data.data(), (int64_t) v.size());
    } else {
        const std::vector<float> ones((size_t) columns, 1.0f);
        int64_t hist[16] = {};
        ggml_quantize_chunk(type, v.data(), data.data(), 0, (int) rows, (int) columns, hist, ones.data());
    }
    return data;
}

// Random values around `mean`.
static void add(model_file & f, const std::string & name, ggml_type type, int64_t k, int64_t n, float mean,
    float spread) {
    std::vector<float> v((size_t) (k * n));
    for (float & x : v) {
        x = mean + spread * test_random_float(-1, 1);
    }
    f.weights[name] = { type, { k, n }, encode(type, v, k) };
}

static void add_matrix(model_file & f, const std::string & name, ggml_type type, int64_t k, int64_t n) {
    add(f, name, type, k, n, 0, std::sqrt(3 / (float) k));
    if (f.arch == BERT) {
        add(f, name + ".bias", GGML_TYPE_F32, n, 1, 0, 0.1f);
    }
}

static void add_norm(model_file & f, const std::string & name) {
    add(f, name, GGML_TYPE_F32, f.s.width, 1, 1, 0.2f);
    if (f.arch == BERT) {
        add(f, name + ".bias", GGML_TYPE_F32, f.s.width, 1, 0, 0.1f);
    }
}

static model_file make_file(architecture arch, ggml_type type) {
    const sizes s = ggml_blck_size(type) == 256 ? sizes{ 256, 512, 4, arch == BERT ? 4 : 2, 61 }
                                                : sizes{ 192, 320, 6, arch == BERT ? 6 : 2, 61 };
    model_file f = { arch, s, {} };
    test_seed = 11;
    add(f, "tokens", type, s.width, s.vocab, 0, 1);
    add_norm(f, "norm");
    add_matrix(f, "head", type, s.width, s.vocab);
    for (int i = 0; i < LAYERS; i++) {
        const std::string name = std::to_string(i) + ".";
        add_matrix(f, name + "q", type, s.width, s.width);
        add_matrix(f, name + "k", type, s.width, s.head() * s.kv_heads);
        add_matrix(f, name + "v", type, s.width, s.head() * s.kv_heads);
        add_matrix(f, name + "o", type, s.width, s.width);
        add_matrix(f, name + "up", type, s.width, s.ff);
        add_matrix(f, name + "down", type, s.ff, s.width);
        add_norm(f, name + "norm1");
        add_norm(f, name + "norm2");
        if (arch == LLAMA) {
            add_matrix(f, name + "gate", type, s.width, s.ff);
        }
    }
    return f;
}

// -------------------------------------------------------------------------------------------------------------- models

// A model in memory of one backend.
struct model {
    architecture arch;
    sizes s;
    ggml_backend_t backend;
    ggml_context * ctx;
    ggml_backend_buffer_t buffer;
    std::map<std::string, ggml_tensor *> weights;
    ggml_tensor *k[LAYERS], *v[LAYERS]; // the cache: [head, KEYS, kv_heads], [KEYS, head, kv_heads]
    ggml_tensor * at(const std::string & name) const { return weights.at(name); }
};

static model open_model(const model_file & f, ggml_backend_t backend) {
    model m = { f.arch, f.s, backend, ggml_init({ 1 << 18, NULL, true }), NULL, {}, {}, {} };
    for (const auto & w : f.weights) {
        m.weights[w.first] = ggml_new_tensor_2d(m.ctx, w.second.type, w.second.ne[0], w.second.ne[1]);
    }
    for (int i = 0; i < LAYERS; i++) {
        m.k[i] = ggml_new_tensor_3d(m.ctx, GGML_TYPE_F16, f.s.head(), KEYS, f.s.kv_heads);
        m.v[i] = ggml_new_tensor_3d(m.ctx, GGML_TYPE_F16, KEYS, f.s.head(), f.s.kv_heads);
    }
    m.buffer = ggml_backend_alloc_ctx_tensors(m.ctx, backend);
    CHECK(m.buffer != NULL);
    CHECK_INT(ggml_backend_buffer_clear(m.buffer, 0), GGML_STATUS_SUCCESS);
    for (const auto & w : f.weights) {
        CHECK_INT(ggml_backend_tensor_set(m.at(w.first), w.second.data.data(), 0, w.second.data.size()),
            GGML_STATUS_SUCCESS);
    }
    return m;
}

static void close_model(const model & m) {
    ggml_backend_buffer_free(m.buffer);
    ggml_free(m.ctx);
    ggml_backend_free(m.backend);
}

// The graph of n tokens that follow `past` others.
struct step {
    const model & m;
    ggml_context * c;
    ggml_cgraph * graph;
    ggml_tensor *ids, *positions;
    int64_t past, n;
};

static ggml_tensor * linear(const step & s, const std::string & name, ggml_tensor * x) {
    ggml_tensor * y = ggml_mul_mat(s.c, s.m.at(name), x);
    return s.m.arch == BERT ? ggml_add(s.c, y, s.m.at(name + ".bias")) : y;
}

static ggml_tensor * norm(const step & s, const std::string & name, ggml_tensor * x) {
    return s.m.arch == BERT
               ? ggml_add(s.c, ggml_mul(s.c, ggml_norm(s.c, x, 1e-6f), s.m.at(name)), s.m.at(name + ".bias"))
               : ggml_mul(s.c, ggml_rms_norm(s.c, x, 1e-6f), s.m.at(name));
}

// [head, heads, n]
static ggml_tensor * heads(const step & s, const std::string & name, ggml_tensor * x, bool turn) {
    ggml_tensor * y = linear(s, name, x);
    y = ggml_reshape_3d(s.c, y, s.m.s.head(), y->ne[0] / s.m.s.head(), s.n);
    return turn ? ggml_rope(s.c, y, s.positions, (int) s.m.s.head(), 0, KEYS) : y;
}

// Keys and values of all tokens: [head, seen, kv_heads] and [seen, head, kv_heads].
static void see(const step & s, int i, ggml_tensor * x, ggml_tensor ** keys, ggml_tensor ** values) {
    ggml_context * c = s.c;
    const int64_t head = s.m.s.head(), kv_heads = s.m.s.kv_heads, seen = s.past + s.n;
    ggml_tensor * k = ggml_permute(c, heads(s, std::to_string(i) + ".k", x, s.m.arch == LLAMA), 0, 2, 1, 3);
    ggml_tensor * v = ggml_permute(c, heads(s, std::to_string(i) + ".v", x, false), 1, 2, 0, 3);
    if (s.m.arch == BERT) {
        *keys = k;
        *values = ggml_cont(c, v);
        return;
    }
    ggml_tensor *to_k = s.m.k[i], *to_v = s.m.v[i];
    ggml_build_forward_expand(s.graph,
        ggml_cpy(c, k,
            ggml_view_3d(c, to_k, head, s.n, kv_heads, to_k->nb[1], to_k->nb[2], (size_t) s.past * to_k->nb[1])));
    ggml_build_forward_expand(s.graph,
        ggml_cpy(c, v,
            ggml_view_3d(c, to_v, s.n, head, kv_heads, to_v->nb[1], to_v->nb[2], (size_t) s.past * to_v->nb[0])));
    *keys = ggml_view_3d(c, to_k, head, seen, kv_heads, to_k->nb[1], to_k->nb[2], 0);
    *values = ggml_view_3d(c, to_v, seen, head, kv_heads, to_v->nb[1], to_v->nb[2], 0);
}

static ggml_tensor * attention(const step & s, int i, ggml_tensor * x) {
    ggml_context * c = s.c;
    ggml_tensor * q = ggml_permute(c, heads(s, std::to_string(i) + ".q", x, s.m.arch == LLAMA), 0, 2, 1, 3);
    ggml_tensor *k, *v;
    see(s, i, x, &k, &v);
    ggml_tensor * scores = ggml_scale(c, ggml_mul_mat(c, k, q), 1 / std::sqrt((float) s.m.s.head()));
    scores = ggml_soft_max(c, s.m.arch == LLAMA ? ggml_diag_mask_inf(c, scores, (int) s.past) : scores);
    ggml_tensor * mixed = ggml_cont(c, ggml_permute(c, ggml_mul_mat(c, v, scores), 0, 2, 1, 3));
    return linear(s, std::to_string(i) + ".o", ggml_reshape_2d(c, mixed, s.m.s.width, s.n));
}

static ggml_tensor * feed_forward(const step & s, const std::string & name, ggml_tensor * x) {
    ggml_tensor * up = linear(s, name + "up", x);
    ggml_tensor * h =
        s.m.arch == BERT ? ggml_gelu(s.c, up) : ggml_mul(s.c, ggml_silu(s.c, linear(s, name + "gate", x)), up);
    return linear(s, name + "down", h);
}

// [vocab, n]
static ggml_tensor * network(const step & s) {
    ggml_context * c = s.c;
    ggml_tensor * x = ggml_get_rows(c, s.m.at("tokens"), s.ids);
    if (s.m.arch == BERT) {
        x = norm(s, "norm", x);
    }
    for (int i = 0; i < LAYERS; i++) {
        const std::string name = std::to_string(i) + ".";
        if (s.m.arch == BERT) {
            x = norm(s, name + "norm1", ggml_add(c, x, attention(s, i, x)));
            x = norm(s, name + "norm2", ggml_add(c, x, feed_forward(s, name, x)));
        } else {
            x = ggml_add(c, x, attention(s, i, norm(s, name + "norm1", x)));
            x = ggml_add(c, x, feed_forward(s, name, norm(s, name + "norm2", x)));
        }
    }
    return linear(s, "head", s.m.arch == LLAMA ? norm(s, "norm", x) : x);
}

// The output of the model for each of n tokens: vocab values each. Memory is reused as in programs.
static std::vector<float> run(const model & m, int64_t past, int64_t n) {
    ggml_context * given = ggml_init({ 1 << 12, NULL, true });
    ggml_tensor * ids = ggml_new_tensor_1d(given, GGML_TYPE_I32, n);
    ggml_tensor * positions = ggml_new_tensor_1d(given, GGML_TYPE_I32, n);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(given, m.backend);
    ggml_context * c = ggml_init({ 1 << 18, NULL, true });
    const step s = { m, c, ggml_new_graph(c), ids, positions, past, n };
    ggml_tensor * y = network(s);
    ggml_set_output(y);
    ggml_build_forward_expand(s.graph, y);
    ggml_allocr_t memory = ggml_allocr_new_from_backend(m.backend, (size_t) 16 << 20);
    CHECK(memory != NULL && ggml_allocr_alloc_graph(memory, s.graph) > 0);
    std::vector<int32_t> values((size_t) n);
    for (int64_t i = 0; i < n; i++) {
        values[(size_t) i] = (int32_t) (((past + i) * 37 + 5) % m.s.vocab);
    }
    ggml_backend_tensor_set(ids, values.data(), 0, ggml_nbytes(ids));
    for (int64_t i = 0; i < n; i++) {
        values[(size_t) i] = (int32_t) (past + i);
    }
    ggml_backend_tensor_set(positions, values.data(), 0, ggml_nbytes(positions));
    CHECK_MSG(ggml_backend_graph_compute(m.backend, s.graph), "%s", ggml_last_error());
    std::vector<float> result((size_t) ggml_nelements(y));
    CHECK_INT(ggml_backend_tensor_get(y, result.data(), 0, ggml_nbytes(y)), GGML_STATUS_SUCCESS);
    ggml_allocr_free(memory);
    ggml_free(c);
    ggml_backend_buffer_free(buffer);
    ggml_free(given);
    return result;
}

// ---------------------------------------------------------------------------------------------------------- comparison

// The largest relative error of a token's values, |got - want| / |want|.
static double worst_of(const std::vector<float> & got, const std::vector<float> & want, int64_t n) {
    const size_t each = want.size() / (size_t) n;
    double worst = got.size() == want.size() ? 0 : INFINITY;
    for (size_t i = 0; i < (size_t) n && worst < INFINITY; i++) {
        double error = 0, size = 0;
        for (size_t j = i * each; j < (i + 1) * each; j++) {
            error += ((double) got[j] - want[j]) * ((double) got[j] - want[j]);
            size += (double) want[j] * want[j];
        }
        worst = std::isfinite(error) ? std::fmax(worst, std::sqrt(error / size)) : INFINITY;
    }
    return worst;
}

// A prompt of n tokens, and of a Llama one token more, which reads the cache. Activations become bytes on the CPU, and
// bytes, halves or bfloat16 on devices: a few roundings to within 2^-8.
static void check_model(architecture arch, ggml_type type, std::initializer_list<int64_t> prompts) {
    const model_file f = make_file(arch, type);
    const model cpu = open_model(f, ggml_backend_cpu_init()), cuda = open_model(f, cuda_open(0));
    for (int64_t n : prompts) {
        const std::vector<float> want = run(cpu, 0, n), next = arch == LLAMA ? run(cpu, n, 1) : want;
        for (bool fused : { true, false }) {
            ggml_graph_set_fusion(fused);
            const double whole = worst_of(run(cuda, 0, n), want, n);
            const double step = arch == LLAMA ? worst_of(run(cuda, n, 1), next, 1) : 0;
            ggml_graph_set_fusion(true);
            CHECK_MSG(whole < 0.04 && step < 0.04, "%s in %s, %d tokens%s: off by %.4f, the next token by %.4f",
                arch == BERT ? "BERT" : "Llama", ggml_type_name(type), (int) n, fused ? "" : ", unfused", whole, step);
        }
    }
    close_model(cuda);
    close_model(cpu);
}

static void every_format_agrees_with_the_cpu(void) {
    if (getenv("GGML_TEST_LONG") == NULL) {
        SKIP("every format: set GGML_TEST_LONG=1");
    }
    CUDA_OR_SKIP();
    for (ggml_type type : all_types) {
        check_model(BERT, type, { 1, 31, 33, LONGEST });
        check_model(LLAMA, type, { 1, 31, 33, LONGEST });
    }
}

// One format of every kind of weights, and prompts on both sides of 32 rows.
static void common_formats_agree_with_the_cpu(void) {
    CUDA_OR_SKIP();
    for (ggml_type type : { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_K }) {
        check_model(BERT, type, { 31, 33 });
        check_model(LLAMA, type, { 31, 33 });
    }
}

TEST_MAIN(TEST(common_formats_agree_with_the_cpu), TEST(every_format_agrees_with_the_cpu))
