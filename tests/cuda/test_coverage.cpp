// test_coverage.cpp - devices compute every forward operator that the CPU computes. Asks both about every operator with
// every combination of types, and about the layouts of test_ops.cpp. It calls supports_op only. GB_COVERAGE=1 prints
// each difference.
//
// The table `known` has the intended differences. An entry that explains no combination is a failure.
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

extern "C" {
#include "test.h"
}

#pragma push_macro("TEST_MAIN")
#undef TEST_MAIN
#define TEST_MAIN(...) [[maybe_unused]] static const struct test_case all_cases[] = { __VA_ARGS__ };
#include "test_ops.cpp"
#pragma pop_macro("TEST_MAIN")

// ------------------------------------------------------------------------------------------ differences that are meant

struct known_difference {
    ggml_op op;
    bool (*is)(const ggml_tensor * node);
    const char * why;
    int n; // combinations that it explains
};

static ggml_type type_of(const ggml_tensor * t) { return t != NULL ? t->type : GGML_TYPE_COUNT; }

static bool is_searched(ggml_type type) { // formats whose blocks are found by long searches
    switch (type) {
        case GGML_TYPE_Q4_0:
        case GGML_TYPE_Q4_1:
        case GGML_TYPE_Q5_0:
        case GGML_TYPE_Q5_1:
        case GGML_TYPE_Q8_0:
        case GGML_TYPE_Q8_1:
        case GGML_TYPE_IQ4_NL:
        case GGML_TYPE_MXFP4: return false;
        default: return ggml_is_quantized(type);
    }
}

static bool quantizes_by_search(const ggml_tensor * node) {
    return is_searched(node->type) && !ggml_is_quantized(type_of(node->src[0]));
}

static bool gives_searched(const ggml_tensor * node) { return is_searched(node->type); }

static bool has_odd_ids(const ggml_tensor * node) { // builders refuse these
    return type_of(node->src[0]) != GGML_TYPE_I32;
}

static known_difference known[] = {
    { GGML_OP_DUP, quantizes_by_search, "to quantize by searching is left to the CPU", 0 },
    { GGML_OP_CPY, quantizes_by_search, "to quantize by searching is left to the CPU", 0 },
    { GGML_OP_CONT, quantizes_by_search, "to quantize by searching is left to the CPU", 0 },
    { GGML_OP_ADD, gives_searched, "to quantize by searching is left to the CPU", 0 },
    { GGML_OP_ADD1, gives_searched, "to quantize by searching is left to the CPU", 0 },
    { GGML_OP_SET_ROWS, quantizes_by_search, "to quantize by searching is left to the CPU", 0 },
    { GGML_OP_MUL_MAT_ID, has_odd_ids, "ids are i32", 0 },
};

// -------------------------------------------------------------------------------------------------------------- asking

struct asked {
    ggml_backend_t cpu, cuda;
    int n_both = 0, n_more = 0; // computed by both; by the device alone
    bool seen[GGML_OP_COUNT] = {};
    std::set<std::string> missing, more;
};

static std::string describe(const ggml_tensor * node) {
    std::string s = std::string(ggml_op_desc(node)) + ": " + ggml_type_name(node->type) + " of";
    for (int j = 0; j < GGML_MAX_SRC && node->src[j] != NULL; j++) {
        s += std::string(" ") + ggml_type_name(node->src[j]->type) +
             (ggml_is_contiguous(node->src[j]) ? "" : " (strided)");
    }
    return s;
}

static void ask(asked & a, const ggml_tensor * node) {
    const bool on_cpu = ggml_backend_supports_op(a.cpu, node), on_device = ggml_backend_supports_op(a.cuda, node);
    a.seen[node->op] |= on_cpu;
    a.n_both += on_cpu && on_device;
    if (!on_cpu && on_device) {
        a.n_more++;
        a.more.insert(describe(node) + ": " + ggml_backend_unsupported_reason(a.cpu, node));
    }
    if (!on_cpu || on_device) {
        return;
    }
    for (known_difference & k : known) {
        if (k.op == node->op && k.is(node)) {
            k.n++;
            return;
        }
    }
    a.missing.insert(describe(node) + ": " + ggml_backend_unsupported_reason(a.cuda, node));
}

// A contiguous tensor of another type. False: rows would not be whole blocks.
static bool become(ggml_tensor * t, ggml_type type) {
    if (t->ne[0] % ggml_blck_size(type) != 0) {
        return false;
    }
    t->type = type;
    t->nb[0] = ggml_type_size(type);
    t->nb[1] = t->nb[0] * (size_t) (t->ne[0] / ggml_blck_size(type));
    t->nb[2] = t->nb[1] * (size_t) t->ne[1];
    t->nb[3] = t->nb[2] * (size_t) t->ne[2];
    return true;
}

// Every combination of types of a result and its first three sources. Not for views, which share the memory of another
// tensor.
static void ask_types(asked & a, ggml_tensor * node, const std::vector<ggml_type> & types) {
    std::vector<ggml_tensor *> tensors = { node };
    for (int j = 0; j < GGML_MAX_SRC && node->src[j] != NULL; j++) {
        tensors.push_back(node->src[j]);
    }
    tensors.resize(std::min<size_t>(tensors.size(), 4));
    size_t n = 1;
    for (size_t i = 0; i < tensors.size(); i++) {
        n *= types.size();
    }
    for (size_t k = 0; k < n; k++) {
        bool possible = true;
        for (size_t i = 0, rest = k; i < tensors.size(); i++, rest /= types.size()) {
            possible = become(tensors[i], types[rest % types.size()]) && possible;
        }
        if (possible) {
            ask(a, node);
        }
    }
}

static void ask_case(asked & a, const op_case & c, const std::vector<ggml_type> & types) {
    for (ggml_type type : { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16 }) {
        for (int how = 0; how < N_LAYOUTS; how++) {
            const bench t = { ggml_init({ 1 << 17, NULL, true }), type, (layout) how };
            ggml_tensor * node = c.build(t);
            ggml_cgraph * graph = ggml_new_graph(t.ctx);
            if (node != NULL && ggml_build_forward_expand(graph, node) == GGML_STATUS_SUCCESS) {
                for (int i = 0; i < graph->n_nodes; i++) {
                    ask(a, graph->nodes[i]);
                }
                if (how == DENSE && type == GGML_TYPE_F32 && node->view_src == NULL) {
                    ask_types(a, node, types);
                }
            }
            ggml_free(t.ctx);
        }
    }
}

// ------------------------------------------------------------------------------------------------------------ products

static ggml_tensor * experts(const bench & t) {
    ggml_tensor * as[] = { dense(t, 256, 5), dense(t, 256, 5), dense(t, 256, 5) };
    return ggml_mul_mat_id(t.ctx, as, 3, indices(t, 2, 4), 1, f32(t, 256, 4)); // 3 experts, the second column of ids
}

static ggml_tensor * feed_forward(const bench & t) {
    return ggml_flash_ff(t.ctx, x4(t, 32, 6), ggml_new_tensor_2d(t.ctx, GGML_TYPE_F16, 32, 16), f32(t, 16),
        ggml_new_tensor_2d(t.ctx, GGML_TYPE_F16, 16, 32), f32(t, 32));
}

static ggml_tensor * stacked(const bench & t) {
    return ggml_mul_mat_experts(t.ctx, x4(t, 256, 5, 3), f32(t, 256, 1, 4), indices(t, 2, 4));
}

static const op_case products[] = {
    T(mul_mat, ggml_mul_mat(t.ctx, x4(t, 256, 5, 2), f32(t, 256, 7, 4))),
    T(mul_mat_same, ggml_mul_mat(t.ctx, x4(t, 256, 5, 2), x4(t, 256, 7, 4))),
    T(mul_mat_id, experts(t)),
    T(mul_mat_experts, stacked(t)),
    T(out_prod, ggml_out_prod(t.ctx, x4(t, 256, 5), f32(t, 256, 5))),
    T(flash_attn, ggml_flash_attn(t.ctx, x4(t, 64, 6, 2), x4(t, 64, 9, 2), x4(t, 9, 64, 2), true)),
    T(flash_ff, feed_forward(t)),
};

static const op_case quantized[] = {
    // rows of 256, for blocks of any type
    T(mul_mat, ggml_mul_mat(t.ctx, dense(t, 256, 5), f32(t, 256, 7))),
    T(mul_mat_id, experts(t)),
    T(out_prod, ggml_out_prod(t.ctx, dense(t, 256, 5), f32(t, 256, 5))),
    T(get_rows, ggml_get_rows(t.ctx, dense(t, 256, 5), indices(t, 3))),
    T(dup, ggml_dup(t.ctx, dense(t, 256, 5))),
    T(cont, ggml_cont(t.ctx, dense(t, 256, 5))),
    T(add, ggml_add(t.ctx, dense(t, 256, 5), dense(t, 256, 5))),
    T(mul, ggml_mul(t.ctx, dense(t, 256, 5), dense(t, 256, 5))),
    T(add1, ggml_add1(t.ctx, dense(t, 256, 5), f32(t, 1))),
    T(acc, ggml_acc(t.ctx, dense(t, 256, 5), dense(t, 256, 2), 1024, 1024, 1024, 0)),
    T(set, ggml_set(t.ctx, dense(t, 256, 5), dense(t, 256, 2), 1024, 1024, 1024, 0)),
    T(scale, ggml_scale(t.ctx, dense(t, 256, 5), 2)),
    T(repeat, ggml_repeat(t.ctx, dense(t, 256, 5), dense(t, 256, 10))),
    T(concat, ggml_concat(t.ctx, dense(t, 256, 5, 2), dense(t, 256, 5, 2))),
    T(silu, ggml_silu(t.ctx, dense(t, 256, 5))),
    T(soft_max, ggml_soft_max(t.ctx, dense(t, 256, 5))),
    T(soft_max_bias, ggml_soft_max_bias(t.ctx, dense(t, 256, 5), dense(t, 256, 5), 1, 8)),
    T(rms_norm, ggml_rms_norm(t.ctx, dense(t, 256, 5), 1e-6f)),
    T(argsort_long, ggml_argsort(t.ctx, dense(t, 8192, 2), GGML_SORT_ASC)),
};

// A copy is a view of its destination, so its types are chosen when it is built.
static void ask_copies(asked & a) {
    for (int from = 0; from < GGML_TYPE_COUNT; from++) {
        for (int to = 0; to < GGML_TYPE_COUNT; to++) {
            if (ggml_blck_size((ggml_type) from) <= 0 || ggml_blck_size((ggml_type) to) <= 0) {
                continue;
            }
            ggml_context * ctx = ggml_init({ 1 << 16, NULL, true });
            ggml_tensor * x = ggml_new_tensor_2d(ctx, (ggml_type) from, 512, 3);
            ggml_tensor * y = ggml_new_tensor_2d(ctx, (ggml_type) to, 256, 6);
            ggml_tensor * copy = x != NULL && y != NULL ? ggml_cpy(ctx, x, y) : NULL;
            if (copy != NULL) {
                ask(a, copy);
            }
            ggml_free(ctx);
        }
    }
}

// Rows written to each type, and attention over keys and values of each pair of types.
static void ask_caches(asked & a) {
    for (int from = 0; from < GGML_TYPE_COUNT; from++) {
        for (int to = 0; to < GGML_TYPE_COUNT; to++) {
            if (ggml_blck_size((ggml_type) from) <= 0 || ggml_blck_size((ggml_type) to) <= 0) {
                continue;
            }
            ggml_context * ctx = ggml_init({ 1 << 16, NULL, true });
            ggml_tensor * x = ggml_new_tensor_2d(ctx, (ggml_type) from, 256, 3);
            ggml_tensor * y = ggml_new_tensor_2d(ctx, (ggml_type) to, 256, 6);
            ggml_tensor * q = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 256, 2);
            ggml_tensor * places = ggml_new_tensor_1d(ctx, GGML_TYPE_I64, 3);
            const bool is_float = from == GGML_TYPE_F32 || from == GGML_TYPE_F16 || from == GGML_TYPE_BF16;
            ggml_tensor * nodes[] = { is_float ? ggml_set_rows(ctx, y, x, places) : NULL,
                ggml_flash_attn_ext(ctx, q, x, ggml_new_tensor_2d(ctx, (ggml_type) to, 256, 3), NULL, 1, 0, 0) };
            for (const ggml_tensor * node : nodes) {
                if (node != NULL) {
                    ask(a, node);
                }
            }
            ggml_clear_error();
            ggml_free(ctx);
        }
    }
}

// --------------------------------------------------------------------------------------------------------------- tests

// Operators that CUDA does not compute. No case asks about them.
static bool is_missing(int op) {
    switch (op) {
        case GGML_OP_INTERPOLATE:
        case GGML_OP_PAD_EXT:
        case GGML_OP_PAD_REFLECT_1D:
        case GGML_OP_ROLL:
        case GGML_OP_COL2IM_1D:
        case GGML_OP_IM2COL_3D: return true;
        default: return false;
    }
}

// Operators that no forward graph of floats has: gradients, losses, callbacks on the host.
static bool is_left_out(int op) {
    switch (op) {
        case GGML_OP_NONE:
        case GGML_OP_RESHAPE:
        case GGML_OP_VIEW:
        case GGML_OP_PERMUTE:
        case GGML_OP_TRANSPOSE:
        case GGML_OP_MAP_UNARY:
        case GGML_OP_MAP_BINARY:
        case GGML_OP_MAP_CUSTOM1_F32:
        case GGML_OP_MAP_CUSTOM2_F32:
        case GGML_OP_MAP_CUSTOM3_F32:
        case GGML_OP_MAP_CUSTOM1:
        case GGML_OP_MAP_CUSTOM2:
        case GGML_OP_MAP_CUSTOM3:
        case GGML_OP_CUSTOM:
        case GGML_OP_CROSS_ENTROPY_LOSS: return true;
        default: return strstr(ggml_op_name((ggml_op) op), "_BACK") != NULL && op != GGML_OP_ROPE_BACK;
    }
}

static std::vector<ggml_type> quantized_types(void) {
    std::vector<ggml_type> types = { GGML_TYPE_F32, GGML_TYPE_F16 };
    for (int type = 0; type < GGML_TYPE_COUNT; type++) {
        if (ggml_is_quantized((ggml_type) type) && ggml_blck_size((ggml_type) type) > 0) {
            types.push_back((ggml_type) type);
        }
    }
    return types;
}

static void devices_compute_what_the_cpu_computes(void) {
    CUDA_OR_SKIP();
    asked a;
    a.cpu = ggml_backend_cpu_init();
    a.cuda = cuda_open(0);
    REQUIRE(a.cpu && a.cuda);
    const std::vector<ggml_type> plain = { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_I32, GGML_TYPE_I16,
        GGML_TYPE_I8 };
    for (const op_case & c : cases) {
        ask_case(a, c, plain);
    }
    for (const op_case & c : products) {
        ask_case(a, c, plain);
    }
    for (const op_case & c : quantized) {
        ask_case(a, c, quantized_types());
    }
    ask_copies(a);
    ask_caches(a);
    for (const std::string & m : a.missing) {
        CHECK_MSG(false, "the CPU has, the device has not: %s", m.c_str());
    }
    for (int op = 0; op < GGML_OP_COUNT; op++) {
        CHECK_MSG(a.seen[op] || is_left_out(op) || is_missing(op), "no case asks about %s", ggml_op_name((ggml_op) op));
        CHECK_MSG(!(a.seen[op] && is_missing(op)), "a case asks about %s: remove it from is_missing",
            ggml_op_name((ggml_op) op));
    }
    for (const known_difference & k : known) {
        CHECK_MSG(k.n > 0, "%s: not needed any more: %s", ggml_op_name(k.op), k.why);
    }
    CHECK_MSG(a.n_both > 1000, "only %d combinations that both compute", a.n_both);
    if (getenv("GB_COVERAGE") != NULL) {
        fprintf(stderr, "both: %d, the device alone: %d, missing: %zu\n", a.n_both, a.n_more, a.missing.size());
        for (const std::string & m : a.more) {
            fprintf(stderr, "the device has, the CPU has not: %s\n", m.c_str());
        }
        for (const known_difference & k : known) {
            fprintf(stderr, "%s, %d combinations: %s\n", ggml_op_name(k.op), k.n, k.why);
        }
    }
    ggml_backend_free(a.cuda);
    ggml_backend_free(a.cpu);
}

TEST_MAIN(TEST(devices_compute_what_the_cpu_computes))
