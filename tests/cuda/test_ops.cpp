// test_ops.cpp - every operator except products on a CUDA device, or in the emulation, against the CPU.
//
// A case is a line that builds one node. It runs for each type that fits, on dense tensors, on views with gaps and on
// permuted ones. Both backends compute it. Functions (expf and the like) may round differently, and sums may have
// another order.
extern "C" {
#include "test.h"
}

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "cuda_test.h"

enum layout { DENSE, GAPS, PERMUTED, N_LAYOUTS };

struct bench { // where a case builds its node
    ggml_context * ctx;
    ggml_type type;
    layout how;
};

static ggml_tensor * make(const bench & t, ggml_type type, int64_t a, int64_t b, int64_t c, int64_t d) {
    if (t.how == GAPS && !ggml_is_quantized(type)) { // rows of a wider tensor that begin inside it
        ggml_tensor * wide = ggml_new_tensor_4d(t.ctx, type, a + 3, b + 1, c, d);
        return ggml_view_4d(t.ctx, wide, a, b, c, d, wide->nb[1], wide->nb[2], wide->nb[3],
            2 * wide->nb[0] + wide->nb[1]);
    }
    if (t.how == PERMUTED && !ggml_is_quantized(type)) {
        return ggml_permute(t.ctx, ggml_new_tensor_4d(t.ctx, type, b, a, c, d), 1, 0, 2, 3);
    }
    return ggml_new_tensor_4d(t.ctx, type, a, b, c, d);
}

static ggml_tensor * x4(const bench & t, int64_t a, int64_t b = 1, int64_t c = 1, int64_t d = 1) {
    return make(t, t.type, a, b, c, d);
}

static ggml_tensor * dense(const bench & t, int64_t a, int64_t b = 1, int64_t c = 1, int64_t d = 1) {
    return ggml_new_tensor_4d(t.ctx, t.type, a, b, c, d);
}

static ggml_tensor * f32(const bench & t, int64_t a, int64_t b = 1, int64_t c = 1, int64_t d = 1) {
    return ggml_new_tensor_4d(t.ctx, GGML_TYPE_F32, a, b, c, d);
}

static ggml_tensor * indices(const bench & t, int64_t n, int64_t m = 1) {
    return ggml_new_tensor_2d(t.ctx, GGML_TYPE_I32, n, m);
}

static ggml_tensor * distinct(const bench & t, int64_t n) { // 0, 1, ..., n - 1
    return ggml_cpy(t.ctx, ggml_arange(t.ctx, 0, (float) n, 1), indices(t, n));
}

// Causal masks of n queries over m keys: f16 in cases of F16, else f32.
static ggml_tensor * mask(const bench & t, int64_t m, int64_t n, int64_t heads = 1, int64_t batch = 1) {
    ggml_tensor * all = ggml_diag_mask_inf(t.ctx, f32(t, m, n, heads, batch), (int) (m - n));
    return t.type == GGML_TYPE_F16 ? ggml_cpy(t.ctx, all, ggml_new_tensor_4d(t.ctx, t.type, m, n, heads, batch)) : all;
}

static void fill(ggml_tensor * t) {
    if (t->view_src != NULL) {
        return;
    }
    const size_t n = (size_t) ggml_nelements(t);
    std::vector<float> v(n);
    for (float & x : v) {
        x = test_random_float(-2, 2);
    }
    std::vector<char> bytes(ggml_nbytes(t));
    if (t->type == GGML_TYPE_F32) {
        memcpy(bytes.data(), v.data(), bytes.size());
    } else if (t->type == GGML_TYPE_F16) {
        ggml_fp32_to_fp16_row(v.data(), (ggml_fp16_t *) bytes.data(), (int) n);
    } else if (t->type == GGML_TYPE_BF16) {
        ggml_fp32_to_bf16_row(v.data(), (ggml_bf16_t *) bytes.data(), (int64_t) n);
    } else if (t->type == GGML_TYPE_I32) { // small numbers: indices and positions
        for (size_t i = 0; i < n; i++) {
            ((int32_t *) bytes.data())[i] = (int32_t) (test_random() % 7);
        }
    } else if (t->type == GGML_TYPE_I64) {
        for (size_t i = 0; i < n; i++) {
            ((int64_t *) bytes.data())[i] = (int64_t) (test_random() % 7);
        }
    } else {
        gb_quant_format_of(t->type)->from_float(v.data(), bytes.data(), (int) n);
    }
    CHECK_INT(ggml_backend_tensor_set(t, bytes.data(), 0, bytes.size()), GGML_STATUS_SUCCESS);
}

static std::vector<float> values_of(const ggml_tensor * t) { // of a contiguous copy on the host
    const size_t n = (size_t) ggml_nelements(t);
    std::vector<char> bytes(ggml_nbytes(t));
    std::vector<float> v;
    CHECK_INT(ggml_backend_tensor_get(t, bytes.data(), 0, bytes.size()), GGML_STATUS_SUCCESS);
    for (int64_t i3 = 0; i3 < t->ne[3]; i3++) {
        for (int64_t i2 = 0; i2 < t->ne[2]; i2++) {
            for (int64_t i1 = 0; i1 < t->ne[1]; i1++) {
                for (int64_t i0 = 0; i0 < t->ne[0]; i0++) {
                    const char * p = bytes.data() + i0 * (int64_t) t->nb[0] + i1 * (int64_t) t->nb[1] +
                                     i2 * (int64_t) t->nb[2] + i3 * (int64_t) t->nb[3];
                    float f = 0;
                    ggml_bf16_t b;
                    ggml_fp16_t h;
                    int32_t k;
                    switch (t->type) {
                        case GGML_TYPE_F32: memcpy(&f, p, 4); break;
                        case GGML_TYPE_F16: memcpy(&h, p, 2), f = ggml_fp16_to_fp32(h); break;
                        case GGML_TYPE_BF16: memcpy(&b, p, 2), f = ggml_bf16_to_fp32(b); break;
                        case GGML_TYPE_I32: memcpy(&k, p, 4), f = (float) k; break;
                        default: f = NAN; break;
                    }
                    v.push_back(f);
                }
            }
        }
    }
    CHECK_INT(v.size(), n);
    return v;
}

struct comparison {
    const char * name;
    double tolerance;
    int n_nodes;
};

static bool compare(int, ggml_tensor * a, ggml_tensor * b, void * user) {
    comparison * c = (comparison *) user;
    std::vector<float> u = values_of(a), v = values_of(b);
    for (size_t i = 0; a->op == GGML_OP_TOP_K && i < u.size(); i += (size_t) a->ne[0]) { // in no promised order
        std::sort(u.data() + i, u.data() + i + a->ne[0]);
        std::sort(v.data() + i, v.data() + i + a->ne[0]);
    }
    // the last bit of the result
    const double last = a->type == GGML_TYPE_F16 ? 1.0 / 1024 : a->type == GGML_TYPE_BF16 ? 1.0 / 128 : 0;
    const double unit = last * ++c->n_nodes; // each node reads what its own backend has rounded
    for (size_t i = 0; i < u.size(); i++) {
        const double want = u[i], got = v[i],
                     room = c->tolerance * (1 + fabs(want)) + unit * fabs(want) + (unit > 0 ? 1e-7 : 0);
        const bool same = (isnan(want) && isnan(got)) || want == got || fabs(want - got) <= room;
        CHECK_MSG(same, "%s: %s %s [%zu] is %.9g on the device, %.9g on the CPU", c->name, ggml_op_name(a->op),
            ggml_type_name(a->type), i, got, want);
        if (!same) {
            return false;
        }
    }
    return true;
}

// The backend under test takes scratch memory once, for the largest size that it reported for a node.
static size_t free_at_first, most_reported;

static ggml_backend_t open_and_watch(void) {
    ggml_backend_t cuda = cuda_open(0);
    free_at_first = cuda_free_memory(0);
    most_reported = 0;
    return cuda;
}

// Each node by itself, as the comparison runs them.
static void note_work(ggml_backend_t cuda, ggml_cgraph * graph) {
    for (int i = 0; i < graph->n_nodes; i++) {
        const struct ggml_cgraph one = ggml_graph_view(graph, i, i + 1);
        const size_t reported = cuda_work_size(cuda, &one);
        most_reported = reported > most_reported ? reported : most_reported;
    }
}

// The graph of `node`, computed by both. False: the device refuses the node.
static bool run(const bench & t, ggml_tensor * node, const char * name, double tolerance, ggml_backend_t cpu,
    ggml_backend_t cuda) {
    ggml_cgraph * graph = ggml_new_graph(t.ctx);
    CHECK_INT(ggml_build_forward_expand(graph, node), GGML_STATUS_SUCCESS);
    for (int i = 0; i < graph->n_nodes; i++) {
        if (!ggml_backend_supports_op(cuda, graph->nodes[i])) {
            return false;
        }
    }
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(t.ctx, cpu);
    for (ggml_tensor * leaf = ggml_get_first_tensor(t.ctx); leaf; leaf = ggml_get_next_tensor(t.ctx, leaf)) {
        if (leaf->op == GGML_OP_NONE) {
            fill(leaf);
        }
    }
    comparison c = { name, tolerance, 0 };
    CHECK_MSG(ggml_backend_compare_graph_backend(cpu, cuda, graph, compare, &c), "%s: %s", name, ggml_last_error());
    CHECK_MSG(c.n_nodes > 0, "%s: nothing was compared", name);
    note_work(cuda, graph);
    cuda_check_work_size(name, free_at_first - cuda_free_memory(0), most_reported, CUDA_WORK_POOLED);
    ggml_backend_buffer_free(buffer);
    return true;
}

// --------------------------------------------------------------------------------------------------------------- cases

struct op_case {
    const char * name;
    double tolerance;
    ggml_tensor * (*build)(const bench & t);
};

// Attention of n queries: H heads over Hk heads of keys and Hv of values.
struct attention_shape {
    int64_t dk, dv, n, m, h, hk, hv, batch;
};

// Keys and values of the bench's type, or of `keys`.
static ggml_tensor * attend(const bench & t, const attention_shape & s, ggml_tensor * masks, bool sinks, float bias,
    float cap, ggml_type keys = GGML_TYPE_COUNT) {
    const ggml_type type = keys == GGML_TYPE_COUNT ? t.type : keys;
    ggml_tensor * y = ggml_flash_attn_ext(t.ctx, make(t, GGML_TYPE_F32, s.dk, s.n, s.h, s.batch),
        make(t, type, s.dk, s.m, s.hk, s.batch), make(t, type, s.dv, s.m, s.hv, s.batch), masks, 0.3f, bias, cap);
    if (y != NULL && sinks && ggml_flash_attn_ext_add_sinks(y, f32(t, s.h)) != GGML_STATUS_SUCCESS) {
        return NULL;
    }
    return y;
}

static ggml_tensor * with_sinks(const bench & t, ggml_tensor * soft_max) {
    const bool added =
        soft_max != NULL && ggml_soft_max_add_sinks(soft_max, f32(t, soft_max->ne[2])) == GGML_STATUS_SUCCESS;
    return added ? soft_max : NULL;
}

// A rotation with the options of ggml_rope_ext and ggml_rope_multi: sections of 6, 4, 3 and 2 pairs,
// factors, an offset.
static ggml_tensor * rope_today(const bench & t, int mode, int n_dims, bool factors, int offset, float ext) {
    int sections[4] = { 6, 4, 3, 2 };
    const bool four = mode >= GGML_ROPE_TYPE_MROPE;
    ggml_tensor *x = x4(t, 64, 3, 5, 2), *at = indices(t, four ? 20 : 5), *f = factors ? f32(t, 32) : NULL;
    ggml_tensor * y =
        four ? ggml_rope_multi(t.ctx, x, at, f, n_dims, sections, mode, 4096, 10000, 0.5f, ext, 1.1f, 32, 1)
             : ggml_rope_ext(t.ctx, x, at, f, n_dims, mode, 4096, 10000, 0.5f, ext, 1.1f, 32, 1);
    return y != NULL && offset != 0 ? ggml_rope_set_offset(y, offset) : y;
}

// Stride 2, padding 1.
static ggml_tensor * im2col_back(const bench & t, ggml_tensor * kernel, ggml_tensor * rows, std::array<int64_t, 4> ne,
    bool is_2d) {
    return ggml_im2col_back(t.ctx, kernel, rows, ne.data(), 2, is_2d ? 1 : 0, 1, is_2d ? 1 : 0, 1, is_2d ? 1 : 0,
        is_2d);
}

// A step of AdamW with numbers below 1.
static ggml_tensor * adamw(const bench & t, int64_t n) {
    ggml_tensor * v = ggml_sqr(t.ctx, x4(t, n, 5, 3));
    ggml_tensor * numbers = ggml_sigmoid(t.ctx, f32(t, 7));
    return ggml_opt_step_adamw(t.ctx, x4(t, n, 5, 3), x4(t, n, 5, 3), x4(t, n, 5, 3), v, numbers);
}

// Keys of 5 rows go to a cache of 9, which is then read.
static ggml_tensor * quantized_cache(const bench & t, ggml_type type) {
    ggml_tensor * cache = ggml_new_tensor_3d(t.ctx, type, 64, 9, 2);
    return ggml_get_rows(t.ctx, ggml_set_rows(t.ctx, cache, x4(t, 64, 5, 2), indices(t, 5)), indices(t, 4, 2));
}

static ggml_tensor * scan(const bench & t, int64_t size, int64_t width, int64_t tokens, bool each, int64_t kept) {
    const int64_t heads = 6, groups = 2, sequences = 2;
    return ggml_ssm_scan(t.ctx, f32(t, size, width, heads, 7), f32(t, width, heads, tokens, sequences),
        f32(t, heads, tokens, sequences), ggml_neg(t.ctx, ggml_sigmoid(t.ctx, f32(t, each ? size : 1, heads))),
        f32(t, size, groups, tokens, sequences), f32(t, size, groups, tokens, sequences), indices(t, sequences), kept);
}

static ggml_tensor * delta(const bench & t, int64_t size, int64_t tokens, bool each, int64_t kept) {
    const int64_t heads = 4, sequences = 2;
    ggml_tensor * k = ggml_l2_norm(t.ctx, f32(t, size, 2, tokens, 1), 1e-6f);
    // States stay small: e^g is below 1, and beta is in (0, 1).
    ggml_tensor * g = ggml_neg(t.ctx, ggml_sigmoid(t.ctx, f32(t, each ? size : 1, heads, tokens, sequences)));
    ggml_tensor * beta = ggml_sigmoid(t.ctx, f32(t, 1, heads, tokens, sequences));
    return ggml_gated_delta_net(t.ctx, f32(t, size, 2, tokens, 1), k, f32(t, size, heads, tokens, sequences), g, beta,
        f32(t, size, size, heads, sequences), kept);
}

// Factors below 1, so that states stay small.
static ggml_tensor * decays(const bench & t, int64_t size, int64_t heads, int64_t tokens) {
    return ggml_sigmoid(t.ctx, f32(t, size, heads, tokens));
}

static ggml_tensor * wkv(const bench & t, int version, int64_t size) {
    const int64_t heads = 3, tokens = 6, sequences = 2;
    ggml_tensor *state = f32(t, size * size * heads, sequences), *k = f32(t, size, heads, tokens),
                *v = f32(t, size, heads, tokens), *r = f32(t, size, heads, tokens), *w = decays(t, size, heads, tokens);
    return version == 6   ? ggml_rwkv_wkv6(t.ctx, k, v, r, f32(t, size, heads), w, state)
           : version == 7 ? ggml_rwkv_wkv7(t.ctx, r, w, k, v, ggml_scale(t.ctx, f32(t, size, heads, tokens), 0.1f),
                                ggml_scale(t.ctx, f32(t, size, heads, tokens), 0.1f), state)
                          : ggml_gated_linear_attn(t.ctx, k, v, r, w, state, 0.7f);
}

// A triangle with a diagonal of about 4.
static ggml_tensor * solvable(const bench & t, int64_t n) {
    ggml_tensor * diagonal = ggml_scale_bias(t.ctx, ggml_scale(t.ctx, dense(t, n, 1, 2), 0.1f), 1, 4);
    return ggml_add(t.ctx, ggml_scale(t.ctx, x4(t, n, n, 2), 0.2f), ggml_diag(t.ctx, diagonal));
}

#define T(name, expression) { #name, 0, [](const bench & t) -> ggml_tensor * { return expression; } }
#define R(name, tolerance, expression) { #name, tolerance, [](const bench & t) -> ggml_tensor * { return expression; } }
#define U(name, tolerance) R(name, tolerance, ggml_##name(t.ctx, x4(t, 37, 5, 3, 2)))

static const op_case cases[] = {
    U(abs, 0),
    U(sgn, 0),
    U(neg, 0),
    U(step, 0),
    U(relu, 0),
    U(sqr, 1e-6),
    U(hardswish, 1e-6),
    U(hardsigmoid, 1e-6),
    U(tanh, 1e-5),
    U(elu, 1e-5),
    U(gelu, 1e-5),
    U(gelu_quick, 1e-5),
    U(silu, 1e-5),
    U(exp, 1e-5),
    U(sigmoid, 1e-5),
    U(sin, 1e-5),
    U(cos, 1e-5),
    U(softplus, 1e-5),
    U(sqrt, 1e-6),
    U(log, 1e-5),
    R(gelu_erf, 1e-5, ggml_unary(t.ctx, x4(t, 37, 5), GGML_UNARY_OP_GELU_ERF)),
    R(tanh_long, 1e-5, ggml_tanh(t.ctx, dense(t, 1027, 3))),
    R(leaky_relu, 1e-6, ggml_leaky_relu(t.ctx, x4(t, 37, 5), 0.1f, false)),
    T(clamp, ggml_clamp(t.ctx, x4(t, 37, 5), -0.5f, 0.75f)),
    R(scale, 1e-6, ggml_scale(t.ctx, x4(t, 1025, 3), 0.3f)),
    R(add, 1e-6, ggml_add(t.ctx, x4(t, 12, 5, 4, 2), x4(t, 12, 5, 4, 2))),
    R(add_row, 1e-6, ggml_add(t.ctx, x4(t, 12, 5, 4, 2), dense(t, 12))),
    R(add_row_odd, 1e-6, ggml_add(t.ctx, x4(t, 13, 5), dense(t, 13))),
    R(mul_repeats, 1e-6, ggml_mul(t.ctx, x4(t, 12, 6, 4, 2), x4(t, 4, 3, 2, 1))),
    R(sub, 1e-6, ggml_sub(t.ctx, x4(t, 1030, 3), x4(t, 1030, 3))),
    R(div, 1e-6, ggml_div(t.ctx, x4(t, 12, 5), ggml_sqr(t.ctx, x4(t, 12, 5)))),
    R(div_dense, 1e-6, ggml_div(t.ctx, dense(t, 1031), dense(t, 1031))),
    R(add1, 1e-6, ggml_add1(t.ctx, x4(t, 12, 5), dense(t, 1))),
    T(less, ggml_compare(t.ctx, x4(t, 37, 5, 3, 2), f32(t, 37, 5, 1, 2), GGML_COMPARE_LESS)),
    T(greater_equal, ggml_compare(t.ctx, x4(t, 12, 6, 4), x4(t, 4, 3, 2), GGML_COMPARE_GREATER_EQUAL)),
    T(greater, ggml_compare(t.ctx, x4(t, 37, 5), x4(t, 37, 5), GGML_COMPARE_GREATER)),
    T(equal_integers, ggml_compare(t.ctx, indices(t, 9, 3), indices(t, 1, 3), GGML_COMPARE_EQUAL)),
    T(less_equal_integers, ggml_compare(t.ctx, indices(t, 9, 3), indices(t, 9, 3), GGML_COMPARE_LESS_EQUAL)),
    T(where, ggml_where(t.ctx, ggml_step(t.ctx, f32(t, 37, 5, 3, 2)), x4(t, 37, 5, 3, 2), x4(t, 37, 5, 3, 2))),
    T(where_repeats, ggml_where(t.ctx, ggml_step(t.ctx, x4(t, 12, 1, 4)), x4(t, 4, 3, 2), x4(t, 1, 6, 1, 2))),
    T(where_integers, ggml_where(t.ctx, indices(t, 9, 3), indices(t, 1, 3), indices(t, 9, 1))),
    R(acc, 1e-6,
        ggml_acc(t.ctx, dense(t, 16, 8), dense(t, 5, 3), 16 * ggml_type_size(t.type), 16 * 8 * ggml_type_size(t.type),
            16 * 8 * ggml_type_size(t.type), 18 * ggml_type_size(t.type))),
    T(set, ggml_set(t.ctx, dense(t, 16, 8), dense(t, 5, 3), 16 * ggml_type_size(t.type),
               16 * 8 * ggml_type_size(t.type), 16 * 8 * ggml_type_size(t.type), 18 * ggml_type_size(t.type))),
    T(dup, ggml_dup(t.ctx, x4(t, 37, 5, 3))),
    T(cont, ggml_cont(t.ctx, x4(t, 70, 45, 3))),
    T(cont_permuted, ggml_cont(t.ctx, ggml_permute(t.ctx, dense(t, 70, 3, 45, 2), 2, 0, 1, 3))),
    T(cont_transposed, ggml_cont(t.ctx, ggml_transpose(t.ctx, dense(t, 33, 65, 2)))),
    T(cpy_to_f32, ggml_cpy(t.ctx, x4(t, 37, 5), f32(t, 37, 5))),
    T(cpy_to_f16, ggml_cpy(t.ctx, x4(t, 37, 5), ggml_new_tensor_2d(t.ctx, GGML_TYPE_F16, 37, 5))),
    T(cpy_to_bf16, ggml_cpy(t.ctx, x4(t, 37, 5), ggml_new_tensor_2d(t.ctx, GGML_TYPE_BF16, 37, 5))),
    T(cpy_to_i32, ggml_cpy(t.ctx, x4(t, 37, 5), ggml_new_tensor_2d(t.ctx, GGML_TYPE_I32, 37, 5))),
    T(cpy_reshaped, ggml_cpy(t.ctx, x4(t, 12, 10), make(t, t.type, 15, 8, 1, 1))),
    T(get_rows, ggml_get_rows(t.ctx, x4(t, 37, 7), indices(t, 9))),
    T(get_rows_3d, ggml_get_rows(t.ctx, x4(t, 37, 7, 3), indices(t, 4, 3))),
    T(diag, ggml_diag(t.ctx, dense(t, 9, 1, 3))),
    T(repeat, ggml_repeat(t.ctx, x4(t, 4, 3, 2), dense(t, 12, 6, 4, 3))),
    T(concat, ggml_concat(t.ctx, x4(t, 12, 5, 3, 2), x4(t, 12, 5, 2, 2))),
    T(pad, ggml_pad(t.ctx, x4(t, 12, 5, 3), 3, 2, 1, 1)),
    T(upscale, ggml_upscale(t.ctx, x4(t, 6, 5, 3), 3)),
    T(win_part, ggml_win_part(t.ctx, dense(t, 5, 14, 11), 4)),
    T(win_unpart, ggml_win_unpart(t.ctx, dense(t, 5, 4, 4, 12), 14, 11, 4)),
    T(get_rel_pos, ggml_get_rel_pos(t.ctx, dense(t, 6, 9), 5, 5)),
    R(add_rel_pos, 1e-6, ggml_add_rel_pos(t.ctx, dense(t, 16, 6, 2), f32(t, 4, 2, 3, 2), f32(t, 4, 2, 3, 2))),
    R(norm, 1e-5, ggml_norm(t.ctx, x4(t, 37, 5, 3), 1e-5f)),
    R(norm_long, 1e-5, ggml_norm(t.ctx, x4(t, 700, 3), 1e-5f)),
    R(norm_longer, 1e-5, ggml_norm(t.ctx, x4(t, 2500, 2), 1e-5f)),
    R(rms_norm, 1e-5, ggml_rms_norm(t.ctx, x4(t, 300, 5), 1e-6f)),
    R(norm_affine, 1e-5,
        ggml_add(t.ctx, ggml_mul(t.ctx, ggml_norm(t.ctx, x4(t, 260, 5), 1e-5f), f32(t, 260)), f32(t, 260))),
    R(rms_norm_mul, 1e-5, ggml_mul(t.ctx, ggml_rms_norm(t.ctx, x4(t, 64, 9), 1e-5f), f32(t, 64))),
    R(group_norm, 1e-5, ggml_group_norm(t.ctx, x4(t, 7, 5, 6, 2), 4)),
    R(soft_max, 1e-5, ggml_soft_max(t.ctx, x4(t, 37, 5, 3))),
    R(soft_max_long, 1e-5, ggml_soft_max(t.ctx, x4(t, 1500, 3))),
    R(soft_max_bias, 1e-5, ggml_soft_max_bias(t.ctx, x4(t, 37, 5, 6, 2), f32(t, 37, 5), 0.7f, 8)),
    R(soft_max_ext, 1e-5, ggml_soft_max_ext(t.ctx, x4(t, 37, 5, 4), f32(t, 37, 5), 0.7f)),
    R(soft_max_masked, 1e-5, ggml_soft_max(t.ctx, ggml_diag_mask_inf(t.ctx, x4(t, 9, 9, 2), 0))),
    T(diag_mask_inf, ggml_diag_mask_inf(t.ctx, x4(t, 9, 7, 2), 3)),
    T(diag_mask_zero, ggml_diag_mask_zero(t.ctx, x4(t, 9, 7, 2), 3)),
    R(alibi, 1e-5, ggml_alibi(t.ctx, x4(t, 9, 7, 6), 0, 6, 8.0f)),
    R(rope, 1e-5, ggml_rope(t.ctx, x4(t, 64, 3, 5), indices(t, 5), 64, 0, 0)),
    R(rope_partial, 1e-5, ggml_rope(t.ctx, x4(t, 64, 3, 5), indices(t, 5), 32, 0, 0)),
    R(rope_neox, 1e-5, ggml_rope(t.ctx, x4(t, 64, 3, 5), indices(t, 5), 32, 2, 0)),
    R(rope_glm, 1e-5, ggml_rope(t.ctx, x4(t, 64, 3, 5), indices(t, 5), 32, 4, 8)),
    R(rope_yarn, 1e-5,
        ggml_rope_custom(t.ctx, x4(t, 64, 3, 5), indices(t, 5), 64, 0, 0, 4096, 10000.0f, 0.25f, 1.0f, 1.1f, 32.0f,
            1.0f)),
    R(rope_back, 1e-5,
        ggml_rope_back(t.ctx, x4(t, 64, 3, 5), indices(t, 5), 64, 0, 0, 0, 10000.0f, 1.0f, 0.0f, 1.0f, 0.0f, 0.0f, 0.0f,
            false)),
    R(sum, 1e-5, ggml_sum(t.ctx, x4(t, 37, 55, 3))),
    R(sum_rows, 1e-5, ggml_sum_rows(t.ctx, x4(t, 37, 5, 3))),
    R(sum_rows_long, 1e-5, ggml_sum_rows(t.ctx, x4(t, 3000, 2))),
    R(mean, 1e-5, ggml_mean(t.ctx, x4(t, 300, 5))),
    T(argmax, ggml_argmax(t.ctx, x4(t, 300, 5))),
    T(argmax_short, ggml_argmax(t.ctx, x4(t, 3, 50))),
    T(argsort, ggml_argsort(t.ctx, x4(t, 100, 5), GGML_SORT_ASC)),
    T(argsort_desc, ggml_argsort(t.ctx, x4(t, 1300, 2), GGML_SORT_DESC)),
    T(argsort_merged, ggml_argsort(t.ctx, x4(t, 5000, 2), GGML_SORT_ASC)),
    T(argsort_thrice, ggml_argsort(t.ctx, x4(t, 17000, 1, 2), GGML_SORT_DESC)),
    T(im2col, ggml_im2col(t.ctx, ggml_new_tensor_4d(t.ctx, GGML_TYPE_F16, 3, 3, 4, 5), f32(t, 11, 9, 4, 2), 2, 1, 1, 1,
                  1, 2, true)),
    T(im2col_1d, ggml_im2col(t.ctx, ggml_new_tensor_3d(t.ctx, GGML_TYPE_F16, 3, 4, 5), f32(t, 11, 4, 2), 2, 0, 1, 0, 1,
                     0, false)),
    R(im2col_back, 1e-5,
        im2col_back(t, ggml_new_tensor_4d(t.ctx, GGML_TYPE_F16, 3, 3, 4, 5), x4(t, 36, 6, 9, 2), { 11, 9, 4, 2 },
            true)),
    R(im2col_back_1d, 1e-5,
        im2col_back(t, ggml_new_tensor_3d(t.ctx, GGML_TYPE_F16, 3, 4, 5), x4(t, 12, 6, 2), { 11, 4, 2, 1 }, false)),
    R(conv_transpose_1d, 1e-4,
        ggml_conv_transpose_1d(t.ctx, ggml_new_tensor_3d(t.ctx, GGML_TYPE_F16, 4, 3, 5), f32(t, 7, 5), 3, 0, 1)),
    R(conv_transpose_2d, 1e-4,
        ggml_conv_transpose_2d_p0(t.ctx, ggml_new_tensor_4d(t.ctx, GGML_TYPE_F16, 3, 2, 4, 5), f32(t, 6, 5, 5), 2)),
    R(conv_2d, 1e-4,
        ggml_conv_2d_direct(t.ctx, ggml_new_tensor_4d(t.ctx, GGML_TYPE_F32, 3, 3, 4, 5), x4(t, 11, 9, 4, 2), 2, 1, 1, 1,
            1, 2)),
    R(conv_2d_halves, 2e-2,
        ggml_conv_2d_grouped(t.ctx, ggml_new_tensor_4d(t.ctx, GGML_TYPE_F16, 3, 3, 4, 6), x4(t, 11, 9, 8, 2), 2, 1, 1,
            1, 1, 2, 2)),
    R(conv_2d_dw, 1e-4,
        ggml_conv_2d_dw_direct(t.ctx, ggml_new_tensor_4d(t.ctx, GGML_TYPE_F16, 3, 3, 1, 4), x4(t, 11, 9, 4, 2), 1, 1, 1,
            1, 1, 1)),
    R(conv_3d, 1e-4,
        ggml_conv_3d_direct(t.ctx, ggml_new_tensor_4d(t.ctx, GGML_TYPE_F32, 3, 2, 2, 10), x4(t, 7, 6, 5, 4), 1, 2, 1, 1,
            0, 1, 1, 1, 1, 2, 2, 5)),
    R(pool_1d, 1e-6, ggml_pool_1d(t.ctx, x4(t, 20, 5), GGML_OP_POOL_AVG, 4, 4, 0)),
    R(pool_2d_avg, 1e-6, ggml_pool_2d(t.ctx, x4(t, 20, 14, 3), GGML_OP_POOL_AVG, 3, 2, 2, 3, 1.0f, 0.0f)),
    U(expm1, 1e-5),
    U(floor, 0),
    U(ceil, 0),
    U(round, 0),
    U(trunc, 0),
    R(scale_bias, 1e-6, ggml_scale_bias(t.ctx, x4(t, 1025, 3), 0.3f, -0.7f)),
    R(xielu, 1e-5, ggml_xielu(t.ctx, x4(t, 37, 5, 3), 0.4f, 0.6f, 0.5f, -1e-6f)),
    T(reglu, ggml_reglu(t.ctx, x4(t, 74, 5, 3))),
    R(geglu, 1e-5, ggml_geglu(t.ctx, x4(t, 74, 5, 3))),
    R(swiglu_swapped, 1e-5, ggml_swiglu_swapped(t.ctx, x4(t, 74, 5, 3))),
    R(geglu_erf_split, 1e-5, ggml_geglu_erf_split(t.ctx, x4(t, 37, 5, 3), x4(t, 37, 5, 3))),
    R(geglu_quick, 1e-5, ggml_geglu_quick(t.ctx, x4(t, 74, 5, 3))),
    R(swiglu_oai, 1e-5, ggml_swiglu_oai(t.ctx, x4(t, 37, 5, 3), x4(t, 37, 5, 3), 1.702f, 1.5f)),
    R(swiglu_oai_halves, 1e-5, ggml_swiglu_oai(t.ctx, x4(t, 74, 5), NULL, 1.702f, 7)),
    R(l2_norm, 1e-5, ggml_l2_norm(t.ctx, x4(t, 37, 5, 3), 1e-6f)),
    R(l2_norm_long, 1e-5, ggml_l2_norm(t.ctx, x4(t, 2500, 2), 1e-6f)),
    T(top_k, ggml_top_k_unsorted(t.ctx, x4(t, 100, 5), 7)),
    T(top_k_merged, ggml_top_k_unsorted(t.ctx, x4(t, 9000, 2), 40)),
    T(top_k_all, ggml_top_k_unsorted(t.ctx, x4(t, 33, 3), 33)),
    R(cumsum, 1e-5, ggml_cumsum(t.ctx, x4(t, 37, 5, 3))),
    R(cumsum_long, 1e-5, ggml_cumsum(t.ctx, x4(t, 2500, 2))),
    T(tri_upper_diag, ggml_tri(t.ctx, x4(t, 9, 9, 3), GGML_TRI_TYPE_UPPER_DIAG)),
    T(tri_upper, ggml_tri(t.ctx, x4(t, 9, 9, 3), GGML_TRI_TYPE_UPPER)),
    T(tri_lower_diag, ggml_tri(t.ctx, x4(t, 9, 9, 3), GGML_TRI_TYPE_LOWER_DIAG)),
    T(tri_lower, ggml_tri(t.ctx, x4(t, 9, 9, 3), GGML_TRI_TYPE_LOWER)),
    R(solve_tri, 1e-4, ggml_solve_tri(t.ctx, solvable(t, 33), x4(t, 70, 33, 2), true, true, false)),
    T(fill, ggml_fill(t.ctx, x4(t, 37, 5), 1.5f)),
    T(arange, ggml_arange(t.ctx, -1, 3, 0.7f)),
    R(timestep_embedding, 1e-6, ggml_timestep_embedding(t.ctx, x4(t, 5), 33, 10000)),
    T(set_rows, ggml_set_rows(t.ctx, x4(t, 37, 9, 4, 2), f32(t, 37, 5, 4, 2), indices(t, 5, 2))),
    T(set_rows_long, ggml_set_rows(t.ctx, f32(t, 700, 9), x4(t, 700, 5), ggml_new_tensor_1d(t.ctx, GGML_TYPE_I64, 5))),
    T(set_rows_longer, ggml_set_rows(t.ctx, x4(t, 2500, 9), x4(t, 2500, 3), indices(t, 3))),
    T(set_rows_single, ggml_set_rows(t.ctx, x4(t, 1, 50, 2), x4(t, 1, 40, 2), distinct(t, 40))),
    T(set_rows_integers,
        ggml_set_rows(t.ctx, ggml_new_tensor_2d(t.ctx, GGML_TYPE_I32, 37, 9), x4(t, 37, 5), indices(t, 5))),
    T(set_rows_q8_0, quantized_cache(t, GGML_TYPE_Q8_0)),
    T(set_rows_q4_0, quantized_cache(t, GGML_TYPE_Q4_0)),
    T(set_rows_q5_1, quantized_cache(t, GGML_TYPE_Q5_1)),
    T(set_rows_iq4_nl, quantized_cache(t, GGML_TYPE_IQ4_NL)),
    R(opt_step_sgd, 1e-6, ggml_opt_step_sgd(t.ctx, x4(t, 37, 5, 3), x4(t, 37, 5, 3), f32(t, 2))),
    R(opt_step_adamw, 1e-5, adamw(t, 37)),
    R(opt_step_adamw_long, 1e-5, adamw(t, 2500)),
    R(add_id, 1e-6, ggml_add_id(t.ctx, x4(t, 37, 3, 5), x4(t, 37, 7), indices(t, 3, 5))),
    R(rope_factors, 1e-5, rope_today(t, GGML_ROPE_TYPE_NORMAL, 64, true, 0, 0)),
    R(rope_neox_factors, 1e-5, rope_today(t, GGML_ROPE_TYPE_NEOX, 64, true, 0, 0.7f)),
    R(rope_neox_offset, 1e-5, rope_today(t, GGML_ROPE_TYPE_NEOX, 32, false, 18, 0.7f)),
    R(rope_normal_offset, 1e-5, rope_today(t, GGML_ROPE_TYPE_NORMAL, 20, true, 6, 0)),
    R(mrope, 1e-5, rope_today(t, GGML_ROPE_TYPE_MROPE, 64, false, 0, 0)),
    R(mrope_partial, 1e-5, rope_today(t, GGML_ROPE_TYPE_MROPE, 24, true, 8, 0.7f)),
    R(imrope, 1e-5, rope_today(t, GGML_ROPE_TYPE_IMROPE, 48, true, 0, 0)),
    R(rope_vision, 1e-5, rope_today(t, GGML_ROPE_TYPE_VISION, 32, true, 0, 0)),
    R(soft_max_masks, 1e-5, ggml_soft_max_bias(t.ctx, x4(t, 37, 5, 6, 2), mask(t, 37, 7, 3), 0.7f, 0)),
    R(soft_max_sinks, 1e-5,
        with_sinks(t, ggml_soft_max_bias(t.ctx, f32(t, 37, 5, 6, 2), mask(t, 37, 5, 1, 2), 0.7f, 4))),
    R(soft_max_sinks_long, 1e-5, with_sinks(t, ggml_soft_max(t.ctx, x4(t, 700, 5, 3)))),
    R(attention, 2e-5, attend(t, { 64, 64, 5, 70, 4, 2, 2, 2 }, mask(t, 70, 5), false, 0, 0)),
    R(attention_token, 2e-5, attend(t, { 64, 64, 1, 300, 4, 4, 4, 1 }, mask(t, 300, 1), false, 0, 0)),
    R(attention_group, 2e-5, attend(t, { 40, 24, 1, 200, 6, 1, 1, 1 }, NULL, true, 0, 0)),
    R(attention_mixed, 2e-5, attend(t, { 24, 40, 9, 130, 12, 3, 2, 2 }, mask(t, 130, 9, 4, 2), true, 8, 3)),
    R(attention_odd, 2e-5, attend(t, { 13, 7, 3, 67, 3, 3, 1, 1 }, mask(t, 67, 4), false, 0, 5)),
    R(attention_wide, 2e-5, attend(t, { 576, 512, 2, 70, 2, 1, 1, 1 }, mask(t, 70, 2), true, 0, 0)),
    R(attention_q8_0, 2e-5, attend(t, { 64, 96, 5, 130, 4, 2, 2, 2 }, mask(t, 130, 5), true, 0, 0, GGML_TYPE_Q8_0)),
    R(attention_q4_0, 2e-5, attend(t, { 64, 32, 1, 130, 4, 2, 2, 1 }, NULL, false, 0, 0, GGML_TYPE_Q4_0)),
    R(attention_q5_0, 2e-5, attend(t, { 32, 64, 3, 90, 4, 2, 2, 2 }, mask(t, 90, 3), false, 0, 0, GGML_TYPE_Q5_0)),
    R(ssm_conv, 1e-5, ggml_ssm_conv(t.ctx, make(t, GGML_TYPE_F32, 9, 70, 2, 1), f32(t, 4, 70))),
    R(ssm_scan, 1e-5, scan(t, 16, 5, 7, false, 1)),
    R(ssm_scan_each, 1e-5, scan(t, 40, 1, 3, true, 1)),
    R(ssm_scan_kept, 1e-5, scan(t, 130, 3, 2, false, 4)),
    R(gated_delta_net, 1e-4, delta(t, 40, 6, false, 1)),
    R(gated_delta_net_each, 1e-4, delta(t, 70, 2, true, 3)),
    R(rwkv_wkv6, 1e-4, wkv(t, 6, 33)),
    R(rwkv_wkv7, 1e-4, wkv(t, 7, 64)),
    R(gated_linear_attn, 1e-4, wkv(t, 0, 40)),
    T(pool_2d_max, ggml_pool_2d(t.ctx, x4(t, 20, 14, 3), GGML_OP_POOL_MAX, 3, 3, 2, 2, 1.0f, 1.0f)),
};

// Runs a case for each type and layout that its builder and the device accept. A case that never runs is a failure.
static void run_case(const op_case & c, ggml_backend_t cpu, ggml_backend_t cuda) {
    int n_run = 0;
    for (ggml_type type : { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16 }) {
        for (int how = 0; how < N_LAYOUTS; how++) {
            const bench t = { ggml_init({ 1 << 17, NULL, true }), type, (layout) how };
            ggml_tensor * node = c.build(t);
            if (node != NULL) {
                n_run += run(t, node, c.name, c.tolerance, cpu, cuda);
            }
            ggml_free(t.ctx);
        }
    }
    CHECK_MSG(n_run > 0, "%s was never run", c.name);
}

static void operators(void) {
    CUDA_OR_SKIP();
    ggml_backend_t cpu = ggml_backend_cpu_init(), cuda = open_and_watch();
    REQUIRE(cpu && cuda);
    for (const op_case & c : cases) {
        run_case(c, cpu, cuda);
    }
    ggml_backend_free(cuda);
    ggml_backend_free(cpu);
}

static void quantized_sources(void) {
    CUDA_OR_SKIP();
    ggml_backend_t cpu = ggml_backend_cpu_init(), cuda = open_and_watch();
    int n_types = 0;
    for (int type = 0; type < GGML_TYPE_COUNT; type++) {
        const struct gb_quant_format * format = gb_quant_format_of((ggml_type) type);
        if (format == NULL || format->from_float == NULL) { // some formats need weights to quantize with
            continue;
        }
        const bench t = { ggml_init({ 1 << 17, NULL, true }), (ggml_type) type, DENSE };
        ggml_tensor * rows = ggml_get_rows(t.ctx, dense(t, 512, 7), indices(t, 5));
        CHECK_MSG(run(t, rows, ggml_type_name((ggml_type) type), 1e-6, cpu, cuda), "GET_ROWS of %s is refused",
            ggml_type_name((ggml_type) type));
        ggml_free(t.ctx);
        const bench u = { ggml_init({ 1 << 17, NULL, true }), (ggml_type) type, DENSE };
        ggml_tensor * copy = ggml_cpy(u.ctx, dense(u, 512, 3), f32(u, 512, 3));
        if (copy != NULL) {
            CHECK_MSG(run(u, copy, ggml_type_name((ggml_type) type), 1e-6, cpu, cuda), "CPY of %s is refused",
                ggml_type_name((ggml_type) type));
            n_types++;
        }
        ggml_free(u.ctx);
    }
    CHECK_MSG(n_types > 10, "only %d types", n_types);
    ggml_backend_free(cuda);
    ggml_backend_free(cpu);
}

// ---------------------------------------------------------------------------------------------------------- quantizing

// Values for blocks of 32 at the limits of the formats: zeros of both signs, equal extremes, small and large values,
// infinities, NaN.
static std::vector<float> hard_values(size_t n) {
    std::vector<float> v(n);
    for (size_t i = 0; i < n; i++) {
        const float x = test_random_float(-2, 2);
        switch (i / 32 % 24) {
            case 0: v[i] = 0.0f; break;
            case 1: v[i] = i % 2 ? -0.0f : 0.0f; break;
            case 2: v[i] = i % 2 ? -1.5f : 1.5f; break; // the first of equal magnitudes gives the sign
            case 3: v[i] = x * 1e-38f; break;           // scales below the normal ones
            case 4: v[i] = x * 1e-6f; break;            // scales below the normal halves
            case 5: v[i] = x * 1e30f; break;            // scales beyond halves
            case 6: v[i] = i % 32 == 7 ? NAN : x; break;
            case 7: v[i] = i % 32 == 0 ? NAN : x; break;
            case 8: v[i] = i % 32 == 3 ? INFINITY : x; break;
            case 9: v[i] = (float) (int) (x * 8) / 8; break; // halfway between levels
            case 10: v[i] = -fabsf(x); break;
            case 11: v[i] = i % 32 == 31 ? 3 : 3 + x * 1e-7f; break; // hardly a range
            case 12: v[i] = ldexpf(1, (int) (i % 32) - 16); break;
            case 13: v[i] = x * 3e-8f; break; // about the smallest half
            case 14: v[i] = x * 2e-7f; break;
            case 15: v[i] = x * 1e-5f; break;
            case 16: v[i] = fabsf(x) * 3e-7f; break;
            case 17: v[i] = -fabsf(x) * 1e-6f - 1e-7f; break;
            case 18: v[i] = x * 3e-4f; break;
            case 19: v[i] = x * 5e5f; break; // some that scales hold, some not
            case 20: v[i] = x * 4e6f; break;
            case 21: v[i] = x * 1.7e38f; break;
            default: v[i] = x; break;
        }
    }
    return v;
}

// A copy to `type`, on the device and by the format itself.
static void check_quantizing(ggml_type from, ggml_type type, layout how, ggml_backend_t cpu, ggml_backend_t cuda) {
    const bench t = { ggml_init({ 1 << 17, NULL, true }), from, how };
    ggml_tensor * x = x4(t, 256, 6, 2);
    ggml_tensor * copy = ggml_cpy(t.ctx, x, ggml_new_tensor_2d(t.ctx, type, 512, 6)); // another shape
    ggml_cgraph * graph = ggml_new_graph(t.ctx);
    REQUIRE(ggml_build_forward_expand(graph, copy) == GGML_STATUS_SUCCESS);
    CHECK_MSG(ggml_backend_supports_op(cuda, copy), "%s: %s", ggml_type_name(type),
        ggml_backend_unsupported_reason(cuda, copy));
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(t.ctx, cpu);
    ggml_tensor * root = x->view_src != NULL ? x->view_src : x;
    std::vector<float> v = hard_values((size_t) ggml_nelements(root));
    std::vector<char> bytes(ggml_nbytes(root));
    for (size_t i = 0; i < v.size(); i++) {
        const ggml_fp16_t h = ggml_fp32_to_fp16(v[i]);
        const ggml_bf16_t b = ggml_fp32_to_bf16(v[i]);
        memcpy(bytes.data() + i * ggml_type_size(from),
            from == GGML_TYPE_F32   ? (const void *) &v[i]
            : from == GGML_TYPE_F16 ? (const void *) &h
                                    : &b,
            ggml_type_size(from));
    }
    CHECK_INT(ggml_backend_tensor_set(root, bytes.data(), 0, bytes.size()), GGML_STATUS_SUCCESS);
    const std::vector<float> values = values_of(x); // in logical order
    std::vector<char> want(ggml_nbytes(copy)), got(want.size());
    gb_quant_format_of(type)->from_float(values.data(), want.data(), (int) values.size());

    struct ggml_backend_graph_copy done = ggml_backend_graph_copy(cuda, graph);
    REQUIRE(done.graph != NULL);
    CHECK(ggml_backend_graph_compute(cuda, done.graph));
    ggml_backend_tensor_get(done.graph->nodes[done.graph->n_nodes - 1], got.data(), 0, got.size());
    const size_t size = ggml_type_size(type);
    for (size_t i = 0; i < want.size(); i++) {
        const size_t block = i / size;
        if (want[i] != got[i]) {
            CHECK_MSG(false, "%s of %s, layout %d: byte %zu of block %zu is %02x on the device, %02x on the CPU",
                ggml_type_name(type), ggml_type_name(from), how, i % size, block, (unsigned char) got[i],
                (unsigned char) want[i]);
            break;
        }
    }
    ggml_backend_graph_copy_free(done);
    ggml_backend_buffer_free(buffer);
    ggml_free(t.ctx);
}

static void quantized_results(void) {
    CUDA_OR_SKIP();
    ggml_backend_t cpu = ggml_backend_cpu_init(), cuda = open_and_watch();
    for (ggml_type type : { GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_Q8_0,
             GGML_TYPE_Q8_1, GGML_TYPE_IQ4_NL, GGML_TYPE_MXFP4 }) {
        for (ggml_type from : { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16 }) {
            for (int how = 0; how < N_LAYOUTS; how++) {
                check_quantizing(from, type, (layout) how, cpu, cuda);
            }
        }
    }
    ggml_backend_free(cuda);
    ggml_backend_free(cpu);
}

// ADD and ADD1 with a quantized src[0]. The results differ by the format's steps at most.
static void quantized_sums(void) {
    CUDA_OR_SKIP();
    ggml_backend_t cpu = ggml_backend_cpu_init(), cuda = open_and_watch();
    for (ggml_type type : { GGML_TYPE_Q4_0, GGML_TYPE_Q8_0, GGML_TYPE_Q5_1, GGML_TYPE_Q4_K }) {
        for (ggml_type with : { GGML_TYPE_F32, GGML_TYPE_F16 }) {
            const bench t = { ggml_init({ 1 << 17, NULL, true }), type, DENSE };
            ggml_tensor * a = dense(t, 256, 3, 2);
            ggml_tensor * sum = ggml_add_cast(t.ctx, a, ggml_new_tensor_2d(t.ctx, with, 256, 3), GGML_TYPE_F32);
            REQUIRE(sum != NULL);
            CHECK_MSG(run(t, sum, "sum of blocks and floats", 1e-5, cpu, cuda), "%s is refused", ggml_type_name(type));
            ggml_free(t.ctx);
            if (type == GGML_TYPE_Q4_K) {
                continue;
            }
            const bench u = { ggml_init({ 1 << 17, NULL, true }), type, DENSE };
            ggml_tensor * same = ggml_add(u.ctx, ggml_add1(u.ctx, dense(u, 256, 3, 2), f32(u, 1)),
                ggml_new_tensor_2d(u.ctx, with, 256, 3));
            REQUIRE(same != NULL);
            // of values up to 4, twice
            const double step = type == GGML_TYPE_Q4_0 ? 0.6 : type == GGML_TYPE_Q5_1 ? 0.4 : 0.05;
            CHECK_MSG(run(u, ggml_cpy(u.ctx, same, f32(u, 256, 3, 2)), "blocks of a sum", step, cpu, cuda),
                "%s is refused", ggml_type_name(type));
            ggml_free(u.ctx);
        }
    }
    ggml_backend_free(cuda);
    ggml_backend_free(cpu);
}

TEST_MAIN(TEST(operators), TEST(quantized_sources), TEST(quantized_results), TEST(quantized_sums))
