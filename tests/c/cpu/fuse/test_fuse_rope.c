// A rotation fused with a copy of its result: the same bits as node by node, in caches of any float
// type and order of dimensions. The rotated tensor is stored only if other code may read it.
#include "test_fuse.h"

enum { ARENA = 1 << 20, D = 16, HEADS = 6, TOKENS = 9, PLACES = 20 };

enum kind { FLAT, RESHAPED, PERMUTED, PERMUTED_INTO_VIEW, CONTINUOUS, KINDS };

struct rotated {
    struct ggml_context *in, *ctx;
    struct ggml_tensor * rope;
    struct ggml_tensor * copy;
    struct ggml_tensor * cache; // memory of the copy; NULL: in the arena
    struct ggml_cgraph * graph;
    ggml_tallocr_t talloc;
};

static struct ggml_tensor * copy_of(struct rotated * r, enum kind kind, enum ggml_type type) {
    struct ggml_tensor * y = r->rope;
    r->cache = kind == CONTINUOUS ? NULL
                                  : ggml_new_tensor_3d(r->in, type, D, kind < PERMUTED ? HEADS : PLACES,
                                        kind < PERMUTED ? PLACES : HEADS);
    const size_t size = ggml_type_size(type);
    switch (kind) {
        case FLAT: return ggml_cpy(r->ctx, y, ggml_view_1d(r->ctx, r->cache, D * HEADS * TOKENS, 3 * D * HEADS * size));
        case RESHAPED:
            return ggml_cpy(r->ctx, ggml_reshape_2d(r->ctx, y, D * HEADS, TOKENS),
                ggml_view_2d(r->ctx, r->cache, D * HEADS, TOKENS, D * HEADS * size, 0));
        case PERMUTED: return ggml_cont(r->ctx, ggml_permute(r->ctx, y, 0, 2, 1, 3));
        case PERMUTED_INTO_VIEW:
            return ggml_cpy(r->ctx, ggml_permute(r->ctx, y, 0, 2, 1, 3),
                ggml_view_3d(r->ctx, r->cache, D, TOKENS, HEADS, D * size, D * PLACES * size, 5 * D * size));
        default: return ggml_cont(r->ctx, ggml_permute(r->ctx, y, 0, 2, 1, 3));
    }
}

static struct rotated rotated_new(enum kind kind, enum ggml_type type, int mode, bool output) {
    test_seed = 3;
    struct rotated r = { .in = ggml_init((struct ggml_init_params){ (size_t) 1 << 20, NULL, false }),
        .ctx = ggml_init((struct ggml_init_params){ (size_t) 1 << 20, NULL, true }),
        .talloc = ggml_tallocr_new_from_buft(ggml_backend_cpu_buffer_type(), ARENA) };
    struct ggml_tensor *x = ggml_new_tensor_3d(r.in, GGML_TYPE_F32, D, HEADS, TOKENS),
                       *at = ggml_new_tensor_1d(r.in, GGML_TYPE_I32, TOKENS);
    for (int64_t i = 0; i < ggml_nelements(x); i++) {
        ((float *) x->data)[i] = test_random_float(-2, 2);
    }
    for (int i = 0; i < TOKENS; i++) {
        ((int32_t *) at->data)[i] = 7 * i + 2;
    }
    r.rope = ggml_rope(r.ctx, ggml_scale(r.ctx, x, 0.5f), at, mode == 2 ? D / 2 : D, mode, 0);
    r.copy = copy_of(&r, kind, type);
    r.graph = ggml_new_graph(r.ctx);
    if (output) {
        ggml_set_output(r.rope);
    }
    if (r.copy->op == GGML_OP_CONT) {
        ggml_set_output(r.copy);
    }
    ggml_build_forward_expand(r.graph, r.copy);
    // a node after the copy
    ggml_build_forward_expand(r.graph, ggml_sqr(r.ctx, ggml_new_tensor_1d(r.in, GGML_TYPE_F32, 4)));
    ggml_gallocr_t galloc = ggml_gallocr_new();
    CHECK(ggml_gallocr_alloc_graph(galloc, r.talloc, r.graph) > 0);
    ggml_gallocr_free(galloc);
    if (r.cache != NULL) {
        memset(r.cache->data, 0x77, ggml_nbytes(r.cache));
    }
    return r;
}

static void rotated_free(struct rotated * r) {
    ggml_tallocr_free(r->talloc);
    ggml_free(r->ctx);
    ggml_free(r->in);
}

static void run(struct rotated * r, int threads, bool fuse) {
    spoil_results(r->graph, r->talloc);
    run_nodes(r->graph->nodes, r->graph->n_nodes, threads, fuse, gb_kernels_default());
    ggml_graph_set_fusion(true);
}

static bool is_poison(const struct ggml_tensor * t) {
    bool all = true;
    for (size_t i = 0; i < ggml_nbytes(t); i++) {
        all &= ((const unsigned char *) t->data)[i] == 0xff;
    }
    return all;
}

static void caches(void) {
    static const enum ggml_type types[] = { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16 };
    for (int kind = 0; kind < KINDS; kind++) {
        for (int c = 0; c < 3 * 2 * 2; c++) {
            const bool output = c % 2 != 0;
            struct rotated plain = rotated_new((enum kind) kind, types[c / 4], c / 2 % 2 * 2, output),
                           fused = rotated_new((enum kind) kind, types[c / 4], c / 2 % 2 * 2, output);
            struct ggml_tensor * nodes[] = { fused.rope, fused.copy };
            CHECK_INT(gb_fusion_rope.length(nodes, 2), 2);
            CHECK_INT(gb_fusion_rope.is_safe(nodes, 2), !output);
            run(&plain, 1, false);
            run(&fused, 1 + c % 3, true);
            const struct ggml_tensor *a = plain.cache && plain.copy->view_src ? plain.cache : plain.copy,
                                     *b = fused.cache && fused.copy->view_src ? fused.cache : fused.copy;
            CHECK_MSG(memcmp(a->data, b->data, ggml_nbytes(a)) == 0, "kind %d, case %d: the copy differs", kind, c);
            if (output) {
                CHECK_MSG(memcmp(plain.rope->data, fused.rope->data, ggml_nbytes(plain.rope)) == 0,
                    "kind %d, case %d: the rotated tensor differs", kind, c);
            } else if (fused.rope->data != fused.rope->src[0]->data) {
                CHECK_MSG(is_poison(fused.rope), "kind %d, case %d: was stored", kind, c);
            }
            rotated_free(&plain);
            rotated_free(&fused);
        }
    }
}

static void matching(void) {
    struct rotated r = rotated_new(PERMUTED_INTO_VIEW, GGML_TYPE_F16, 0, false);
    struct ggml_tensor * nodes[] = { r.rope, r.copy };
    CHECK_INT(gb_fusion_rope.length(nodes, 1), 0);
    nodes[1] = ggml_cpy(r.ctx, ggml_permute(r.ctx, r.rope, 1, 0, 2, 3),
        ggml_new_tensor_3d(r.in, GGML_TYPE_F16, HEADS, D, TOKENS));
    CHECK_INT(gb_fusion_rope.length(nodes, 2), 0); // rows of the copy differ from rows of the rotated tensor
    nodes[1] = ggml_cpy(r.ctx, ggml_view_1d(r.ctx, r.rope, D, 0), ggml_new_tensor_1d(r.in, GGML_TYPE_F16, D));
    CHECK_INT(gb_fusion_rope.length(nodes, 2), 0); // copies a slice
    nodes[1] = ggml_cpy(r.ctx, r.rope->src[0], ggml_new_tensor_3d(r.in, GGML_TYPE_F16, D, HEADS, TOKENS));
    CHECK_INT(gb_fusion_rope.length(nodes, 2), 0); // copies another tensor
    nodes[1] = ggml_cpy(r.ctx, r.rope, ggml_new_tensor_2d(r.in, GGML_TYPE_Q8_0, 32, D * HEADS * TOKENS / 32));
    CHECK_INT(gb_fusion_rope.length(nodes, 2), 0);
    rotated_free(&r);
}

TEST_MAIN(TEST(caches), TEST(matching))
