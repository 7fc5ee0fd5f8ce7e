// test_inplace.c - every operator with the column `inplace` in c/src/tensor/ops.def gives the same
// bits in place as in separate memory: at every kernel level, with several threads, for every type
// that the operator takes.
#include "alloc/liveness.h"
#include "test_cpu_ops.h"

enum { N0 = 36, N1 = 24, N2 = 5, N3 = 3, K = 6 }; // K * K = N0

static struct ggml_tensor * placed(enum ggml_type type) {
    struct ggml_tensor * t = ggml_new_tensor_4d(ctx, type, N0, N1, N2, N3);
    give_memory(t);
    return fill(t, 0.1f, 2);
}

// A source for a builder that requires f32. The test changes the types afterwards.
static struct ggml_tensor * f32(void) { return stand_in(N0, N1, N2, N3); }

static struct ggml_tensor * small(int64_t n0, int64_t n1, int64_t n2, int64_t n3) {
    struct ggml_tensor * t = stand_in(n0, n1, n2, n3);
    give_memory(t);
    return fill(t, 0.1f, 2);
}

static struct ggml_tensor * positions(int64_t n) {
    struct ggml_tensor * t = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, n);
    give_memory(t);
    return fill_int(t, 0, 9);
}

static struct ggml_tensor * experts(int64_t n0, int64_t n1) {
    struct ggml_tensor * t = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, n0, n1);
    give_memory(t);
    return fill_int(t, 0, 9);
}

// The operator with as many sources of the result's shape as possible. NULL: the operator has no
// case.
static struct ggml_tensor * build(enum ggml_op op, int variant) {
    struct ggml_tensor * a = f32();
    switch (op) {
        case GGML_OP_DUP: return ggml_dup(ctx, a);
        case GGML_OP_ADD: return variant ? ggml_add(ctx, a, small(1, N1, 1, N3)) : ggml_add(ctx, a, f32());
        case GGML_OP_ADD1: return ggml_add1(ctx, a, small(1, 1, 1, 1));
        case GGML_OP_SUB: return ggml_sub(ctx, a, f32());
        case GGML_OP_MUL: return variant ? ggml_mul(ctx, a, small(N0, 1, N2, 1)) : ggml_mul(ctx, a, f32());
        case GGML_OP_DIV: return variant ? ggml_div(ctx, a, small(N0 / 2, 1, 1, 1)) : ggml_div(ctx, a, f32());
        case GGML_OP_COMPARE:
            return variant ? ggml_compare(ctx, a, small(1, N1, N2, 1), GGML_COMPARE_LESS_EQUAL)
                           : ggml_compare(ctx, a, f32(), GGML_COMPARE_GREATER);
        case GGML_OP_WHERE: return ggml_where(ctx, a, f32(), small(1, N1, N2, 1));
        case GGML_OP_SQR: return ggml_sqr(ctx, a);
        case GGML_OP_SQRT: return ggml_sqrt(ctx, a);
        case GGML_OP_LOG: return ggml_log(ctx, a);
        case GGML_OP_SCALE: return ggml_scale(ctx, a, 0.7f);
        case GGML_OP_SCALE_BIAS: return ggml_scale_bias(ctx, a, 0.7f, 0.2f);
        case GGML_OP_XIELU: return ggml_xielu(ctx, a, 0.5f, 0.25f, 0.5f, -1e-6f);
        case GGML_OP_GLU: return ggml_glu_split(ctx, a, f32(), variant ? GGML_GLU_OP_GEGLU : GGML_GLU_OP_SWIGLU);
        case GGML_OP_L2_NORM: return ggml_l2_norm(ctx, a, 1e-6f);
        case GGML_OP_CUMSUM: return ggml_cumsum(ctx, a);
        case GGML_OP_TRI: {
            struct ggml_tensor * square = ggml_new_tensor_4d(ctx, GGML_TYPE_F32, N1, N1, N2, N3);
            return ggml_tri(ctx, square, variant ? GGML_TRI_TYPE_UPPER : GGML_TRI_TYPE_LOWER_DIAG);
        }
        case GGML_OP_FILL: return ggml_fill(ctx, a, 0.5f);
        case GGML_OP_LEAKY_RELU: return ggml_leaky_relu(ctx, a, 0.1f, false);
        case GGML_OP_UNARY: return ggml_unary(ctx, a, (enum ggml_unary_op) variant);
        case GGML_OP_SILU_BACK: return ggml_silu_back(ctx, a, f32());
        case GGML_OP_DIAG_MASK_INF: return ggml_diag_mask_inf(ctx, a, 3);
        case GGML_OP_DIAG_MASK_ZERO: return ggml_diag_mask_zero(ctx, a, 0);
        case GGML_OP_ADD_REL_POS: {
            struct ggml_tensor * r = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, N0, N1, N2 * N3);
            return ggml_add_rel_pos(ctx, r, small(K, 6, N1 / 6, N2 * N3), small(K, 6, N1 / 6, N2 * N3));
        }
        case GGML_OP_ACC:
            return ggml_acc(ctx, a, small(N0 / 2, N1 / 3, 1, 1), a->nb[1], a->nb[2], a->nb[3], 4 * sizeof(float));
        case GGML_OP_SET:
            return ggml_set(ctx, a, small(N0 / 2, N1 / 3, 1, 1), a->nb[1], a->nb[2], a->nb[3], 4 * sizeof(float));
        case GGML_OP_ADD_ID:
            return ggml_add_id(ctx, stand_in(N0, N1, N2 * N3, 1), small(N0, 10, 1, 1), experts(N1, N2 * N3));
        case GGML_OP_NORM: return ggml_norm(ctx, a, 1e-5f);
        case GGML_OP_RMS_NORM: return ggml_rms_norm(ctx, a, 1e-5f);
        case GGML_OP_RMS_NORM_BACK: return ggml_rms_norm_back(ctx, a, f32(), 1e-5f);
        case GGML_OP_GROUP_NORM: return ggml_group_norm(ctx, a, 2);
        case GGML_OP_SOFT_MAX:
            return variant ? ggml_soft_max_ext(ctx, a, small(N0, N1, 1, 1), 0.5f) : ggml_soft_max(ctx, a);
        case GGML_OP_SOFT_MAX_BACK: return ggml_soft_max_back(ctx, a, f32());
        case GGML_OP_ROPE: return ggml_rope(ctx, a, positions(N2), N0 / 2, variant ? 2 : 0, 512);
        case GGML_OP_ROPE_BACK:
            return ggml_rope_back(ctx, a, positions(N2), N0, variant ? 2 : 0, 512, 0, 1e4f, 1, 0, 1, 0, 0, 0, false);
        default: return NULL;
    }
}

// Bits of the result at a level and with a number of threads, sources as in `before`.
static bool bits(struct ggml_tensor * node, const char * before, const struct gb_level * level, int n_threads,
    void * out) {
    memcpy(arena, before, arena_used);
    if (run_node(node, n_threads, level->kernels) != GGML_STATUS_SUCCESS) {
        test_fail(__FILE__, __LINE__, "%s", ggml_last_error());
        return false;
    }
    memcpy(out, node->data, ggml_nbytes(node));
    return true;
}

static void compare_places(struct ggml_tensor * node, int s, const char * what) {
    const size_t size = ggml_nbytes(node);
    char * before = malloc(arena_used);
    void *apart = malloc(size), *over = malloc(size), *data = node->data;
    memcpy(before, arena, arena_used);
    for (int l = 0; l < gb_level_count(); l++) {
        const struct gb_level * level = gb_level_at(l);
        for (int threads = 1; threads <= 5 && level->usable(); threads += 2) {
            node->data = data;
            const bool ran = bits(node, before, level, threads, apart);
            node->data = node->src[s]->data;
            const bool ran_in = bits(node, before, level, threads, over);
            CHECK_MSG(ran && ran_in && memcmp(apart, over, size) == 0,
                "%s over source %d, %s, level %s, %d threads: other bits", ggml_op_name(node->op), s, what, level->name,
                threads);
        }
    }
    free(before);
    free(apart);
    free(over);
}

// Sources 0 and 1 of the result's shape get memory of this type, and so does the result if the
// operator takes the type. `twice`: both sources are the same memory.
static struct ggml_tensor * make(enum ggml_op op, int variant, enum ggml_type type, bool twice) {
    struct ggml_tensor * node = build(op, variant);
    for (int s = 0; node && s < 2; s++) {
        if (node->src[s] && node->src[s]->data == NULL) {
            struct ggml_tensor * t = s == 1 && twice ? node->src[0] : placed(type);
            if (op == GGML_OP_TRI) { // square matrices
                t = random_tensor(type, DENSE, N1, N1, N2, N3);
            }
            if (ggml_n_dims(node) == 3 && t != node->src[0]) { // ADD_REL_POS
                t = ggml_reshape_3d(ctx, t, N0, N1, N2 * N3);
                t->data = t->view_src->data;
            }
            node->src[s] = t;
        }
    }
    if (node == NULL) {
        return NULL;
    }
    typed(node, type);
    give_memory(node);
    const struct gb_cpu_op * cpu = gb_cpu_op_of(node);
    return cpu && (cpu->unsupported == NULL || cpu->unsupported(node) == NULL) ? node : NULL;
}

static int check_op(enum ggml_op op, int variant) {
    int n = 0;
    FOR_FLOATS(type) {
        for (int s = 0; s < 2; s++) {
            for (int twice = 0; twice < 2; twice++) {
                begin();
                struct ggml_tensor * node =
                    gb_op_inplace_sources(op) >> s & 1 ? make(op, variant, (enum ggml_type) type, twice != 0) : NULL;
                if (node && gb_plan_can_write_over(node, s)) {
                    compare_places(node, s, ggml_type_name((enum ggml_type) type));
                    n |= 1 << s;
                }
                end();
            }
        }
    }
    return n;
}

static void every_entry(void) {
    int n_ops = 0;
    for (int op = 0; op < GGML_OP_COUNT; op++) {
        const int n_variants = op == GGML_OP_UNARY ? GGML_UNARY_OP_COUNT : 2;
        unsigned seen = 0;
        for (int variant = 0; variant < n_variants; variant++) {
            seen |= (unsigned) check_op((enum ggml_op) op, variant);
        }
        CHECK_MSG(seen == gb_op_inplace_sources((enum ggml_op) op), "%s: sources %u of %u were tried",
            ggml_op_name((enum ggml_op) op), seen, gb_op_inplace_sources((enum ggml_op) op));
        n_ops += seen != 0;
    }
    CHECK_INT(n_ops, 36);
    CHECK_INT(gb_op_inplace_sources(GGML_OP_COUNT), 0);
}

static void wider_than_documented(void) {
    for (int op = 0; op < GGML_OP_COUNT; op++) { // plans may do all that the graph allocator may
        CHECK(!gb_op_can_inplace((enum ggml_op) op) || gb_op_inplace_sources((enum ggml_op) op) != 0);
    }
}

static void layouts(void) {
    begin();
    struct ggml_tensor * a = f32();
    struct ggml_tensor * b = f32();
    struct ggml_tensor * t = ggml_add(ctx, a, b);
    CHECK(gb_plan_can_write_over(t, 0) && gb_plan_can_write_over(t, 1) && !gb_plan_can_write_over(t, 2) &&
          !gb_plan_can_write_over(t, -1));
    a->nb[1] += 4;
    CHECK(!gb_plan_can_write_over(t, 0));
    b->type = GGML_TYPE_F16;
    CHECK(!gb_plan_can_write_over(t, 1));
    struct ggml_tensor * row = ggml_sqr(ctx, stand_in(N0, 1, N2, 1));
    row->src[0]->nb[1] = 7; // the stride of a single row has no effect
    CHECK(gb_plan_can_write_over(row, 0));
    row->src[0]->nb[2] *= 2;
    CHECK(!gb_plan_can_write_over(row, 0));
    CHECK(!gb_plan_can_write_over(ggml_scale_inplace(ctx, b, 2), 0)); // a view of its source
    CHECK(!gb_plan_can_write_over(ggml_mul(ctx, f32(), stand_in(N0, 1, 1, 1)), 1));
    CHECK(!gb_plan_can_write_over(ggml_cont(ctx, f32()), 0));
    end();
}

TEST_MAIN(TEST(every_entry), TEST(wider_than_documented), TEST(layouts))
