// bench_elements.c - element-wise operators and attention on [4096 x rows] beside the rate of the cache or memory that
// holds the data.
//
//     bench_elements [name|all] [threads] [level] [KB of a tensor]
//
// The default is 8192 KB, the minimum 16 KB. Use 16, 512, 8192 and 262144 for the first-level cache, the second, the
// third, and memory.
//
// Bytes count each operand and the result once. The limit is a copy (read + write) of as many bytes by the same
// threads, in the same round. Each figure is the best of the rounds. Attention counts its
// multiply-adds, or the bytes of its cache.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/thread.h"
#include "cpu/cpu.h"
#include "cpu/threadpool.h"
#include "ggml-alloc.h"
#include "ggml.h"
#include "timing.h"

enum { COLUMNS = 4096, ROUNDS = 30 };

static int64_t rows = 512;
static int calls = 1; // of a series: as many as take some hundred microseconds at least

struct bench {
    struct ggml_context * ctx;
    struct ggml_tensor * a; // f32 [COLUMNS x rows]
    struct ggml_tensor * mask;
    struct ggml_tensor * index; // i32 [rows]
};

struct op {
    const char * name;
    struct ggml_tensor * (*build)(struct bench * b);
    double work; // per element of a: bytes; 0: bytes of sources and result
};

// the cast result is computed before the clock starts
static struct ggml_tensor * as(struct bench * b, enum ggml_type type) {
    return ggml_cpy(b->ctx, b->a, ggml_new_tensor_2d(b->ctx, type, COLUMNS, rows));
}

static struct ggml_tensor * heads(struct bench * b) { return ggml_reshape_3d(b->ctx, b->a, 128, 32, rows); }

#define BUILD(name, expr)                                        \
    static struct ggml_tensor * build_##name(struct bench * b) { \
        struct ggml_context * c = b->ctx;                        \
        (void) c;                                                \
        return expr;                                             \
    }

BUILD(add, ggml_add(c, b->a, b->mask))
BUILD(add_bias, ggml_add(c, b->a, ggml_view_1d(c, b->mask, COLUMNS, 0)))
BUILD(scale, ggml_scale(c, b->a, 0.5f))
BUILD(relu, ggml_relu(c, b->a))
BUILD(silu, ggml_silu(c, b->a))
BUILD(gelu, ggml_gelu(c, b->a))
BUILD(gelu_quick, ggml_gelu_quick(c, b->a))
BUILD(gelu_erf, ggml_gelu_erf(c, b->a))
BUILD(tanh, ggml_tanh(c, b->a))
BUILD(exp, ggml_exp(c, b->a))
BUILD(sigmoid, ggml_sigmoid(c, b->a))
BUILD(softplus, ggml_softplus(c, b->a))
BUILD(sin, ggml_sin(c, b->a))
BUILD(less, ggml_compare(c, b->a, b->mask, GGML_COMPARE_LESS))
BUILD(where, ggml_where(c, b->mask, b->a, b->mask))
BUILD(norm, ggml_norm(c, b->a, 1e-5f))
BUILD(rms_norm, ggml_rms_norm(c, b->a, 1e-5f))
BUILD(norm_affine,
    ggml_add_inplace(c, ggml_mul_inplace(c, ggml_norm(c, b->a, 1e-5f), ggml_view_1d(c, b->mask, COLUMNS, 0)),
        ggml_view_1d(c, b->mask, COLUMNS, 0)))
BUILD(rms_norm_mul, ggml_mul_inplace(c, ggml_rms_norm(c, b->a, 1e-5f), ggml_view_1d(c, b->mask, COLUMNS, 0)))
BUILD(soft_max, ggml_soft_max(c, b->a))
BUILD(soft_max_ext, ggml_soft_max_ext(c, b->a, b->mask, 0.1f))
BUILD(masked_soft_max, ggml_soft_max_inplace(c, ggml_diag_mask_inf_inplace(c, ggml_scale(c, b->a, 0.1f), 3584)))
BUILD(sum_rows, ggml_sum_rows(c, b->a))
BUILD(mean, ggml_mean(c, b->a))
BUILD(argmax, ggml_argmax(c, b->a))
BUILD(rope, ggml_rope(c, heads(b), b->index, 128, 0, 0))
BUILD(rope_neox, ggml_rope(c, heads(b), b->index, 128, 2, 0))
BUILD(get_rows, ggml_get_rows(c, b->a, b->index))
BUILD(transpose, ggml_cont(c, ggml_transpose(c, b->a)))
BUILD(permute, ggml_cont(c, ggml_permute(c, heads(b), 0, 2, 1, 3)))
BUILD(permute_v, ggml_cont(c, ggml_permute(c, heads(b), 1, 2, 0, 3)))
BUILD(transpose_f16, ggml_cont(c, ggml_transpose(c, as(b, GGML_TYPE_F16))))
BUILD(to_f16, as(b, GGML_TYPE_F16))
BUILD(to_bf16, as(b, GGML_TYPE_BF16))
BUILD(from_f16, ggml_cpy(c, as(b, GGML_TYPE_F16), ggml_new_tensor_2d(c, GGML_TYPE_F32, COLUMNS, rows)))
BUILD(from_bf16, ggml_cpy(c, as(b, GGML_TYPE_BF16), ggml_new_tensor_2d(c, GGML_TYPE_F32, COLUMNS, rows)))
BUILD(to_q8_0, as(b, GGML_TYPE_Q8_0))
BUILD(to_q4_0, as(b, GGML_TYPE_Q4_0))
BUILD(from_q8_0, ggml_cpy(c, as(b, GGML_TYPE_Q8_0), ggml_new_tensor_2d(c, GGML_TYPE_F32, COLUMNS, rows)))
BUILD(from_q4_0, ggml_cpy(c, as(b, GGML_TYPE_Q4_0), ggml_new_tensor_2d(c, GGML_TYPE_F32, COLUMNS, rows)))

#define OP(name, bytes) { #name, build_##name, bytes }
static const struct op ops[] = {
    OP(add, 12),
    OP(add_bias, 8),
    OP(scale, 8),
    OP(relu, 8),
    OP(silu, 8),
    OP(gelu, 8),
    OP(gelu_quick, 8),
    OP(gelu_erf, 8),
    OP(tanh, 8),
    OP(exp, 8),
    OP(sigmoid, 8),
    OP(softplus, 8),
    OP(sin, 8),
    OP(less, 12),
    OP(where, 12),
    OP(norm, 8),
    OP(rms_norm, 8),
    OP(norm_affine, 8),
    OP(rms_norm_mul, 8),
    OP(soft_max, 8),
    OP(soft_max_ext, 12),
    OP(masked_soft_max, 8),
    OP(sum_rows, 4),
    OP(mean, 4),
    OP(argmax, 4),
    OP(rope, 8),
    OP(rope_neox, 8),
    OP(get_rows, 8),
    OP(transpose, 8),
    OP(permute, 8),
    OP(permute_v, 8),
    OP(transpose_f16, 4),
    OP(to_f16, 6),
    OP(to_bf16, 6),
    OP(from_f16, 6),
    OP(from_bf16, 6),
    OP(to_q8_0, 5.0625),
    OP(to_q4_0, 4.5625),
    OP(from_q8_0, 5.0625),
    OP(from_q4_0, 4.5625),
};

static void check(bool good) {
    if (!good) {
        fprintf(stderr, "%s\n", ggml_last_error());
        exit(1);
    }
}

static struct ggml_context * context_new(void) {
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ (size_t) 1 << 20, NULL, true });
    check(ctx != NULL);
    return ctx;
}

// Memory as programs have it: aligned to cache lines, in huge pages where it is large.
static ggml_backend_buffer_t give_memory(struct ggml_context * ctx) {
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors_from_buft(ctx, ggml_backend_cpu_buffer_type());
    check(buffer != NULL);
    return buffer;
}

static struct bench bench_new(void) {
    struct bench b = { .ctx = context_new() };
    b.a = ggml_new_tensor_2d(b.ctx, GGML_TYPE_F32, COLUMNS, rows);
    b.mask = ggml_new_tensor_2d(b.ctx, GGML_TYPE_F32, COLUMNS, rows);
    b.index = ggml_new_tensor_1d(b.ctx, GGML_TYPE_I32, rows);
    return b;
}

static void bench_fill(const struct bench * b) {
    for (int64_t i = 0; i < ggml_nelements(b->a); i++) {
        ((float *) b->a->data)[i] = (float) (i * 7919 % 2003 - 1001) / 250.0f;
        ((float *) b->mask->data)[i] = (float) (i * 104729 % 1009 - 504) / 250.0f;
    }
    for (int64_t i = 0; i < rows; i++) {
        ((int32_t *) b->index->data)[i] = (int32_t) (i * 77 % rows);
    }
}

// A graph ready to run.
struct runner {
    struct gb_cpu_plan * plan;
    struct gb_cpu_run run;
    struct gb_cpu_pool * pool; // borrowed
};

static struct runner runner_new(struct ggml_context * ctx, struct ggml_tensor * y, const struct gb_level * level,
    struct gb_cpu_pool * pool, bool last) {
    struct ggml_cgraph * g = ggml_new_graph(ctx);
    ggml_build_forward_expand(g, y);
    struct runner r = { .pool = pool };
    const int skip = last ? g->n_nodes - 1 : 0;
    r.plan = gb_cpu_plan_new(g->nodes + skip, g->n_nodes - skip, gb_cpu_pool_n_threads(pool));
    check(r.plan != NULL);
    const size_t work = gb_cpu_plan_work_size(r.plan) + 64;
    r.run = (struct gb_cpu_run){ .kernels = level->kernels, .work = malloc(work) };
    memset(r.run.work, 0, work);
    return r;
}

static void runner_free(struct runner * r) {
    free(r->run.work);
    gb_cpu_plan_free(r->plan);
}

static void runner_once(void * data) {
    const struct runner * r = data;
    check(gb_cpu_plan_run(r->plan, r->pool, &r->run) == GGML_STATUS_SUCCESS);
}

static double runner_seconds(struct runner * r) {
    return bench_series(runner_once, r, calls, gb_cpu_pool_n_threads(r->pool));
}

static void bench_op(const struct op * op, const struct gb_level * level, struct gb_cpu_pool * pool) {
    struct bench b = bench_new();
    struct ggml_tensor * y = op->build(&b);
    struct ggml_tensor * copy = ggml_cpy(b.ctx, b.a, ggml_new_tensor_2d(b.ctx, GGML_TYPE_F32, COLUMNS, rows));
    ggml_backend_buffer_t memory = give_memory(b.ctx);
    bench_fill(&b);
    struct runner all = runner_new(b.ctx, y, level, pool, false);
    const bool chain = strcmp(op->name, "norm_affine") == 0 || strcmp(op->name, "rms_norm_mul") == 0 ||
                       strcmp(op->name, "masked_soft_max") == 0; // all nodes count
    struct runner last = runner_new(b.ctx, y, level, pool, !chain), limit = runner_new(b.ctx, copy, level, pool, true);
    struct bench_shortest best = { 0 }, fastest = { 0 };
    runner_seconds(&all);
    for (int i = 0; i < ROUNDS; i++) {
        bench_add(&best, runner_seconds(&last));
        bench_add(&fastest, runner_seconds(&limit));
    }
    const double n = (double) COLUMNS * (double) rows, rate = n * op->work / best.seconds * 1e-9,
                 copied = n * 8 / fastest.seconds * 1e-9;
    printf("%-14s %-10s %2d threads: %7.1f GB/s, copy %7.1f, %5.1f %%\n", op->name, level->name,
        gb_cpu_pool_n_threads(pool), rate, copied, rate / copied * 100);
    fflush(stdout);
    runner_free(&all);
    runner_free(&last);
    runner_free(&limit);
    ggml_backend_buffer_free(memory);
    ggml_free(b.ctx);
}

// ----------------------------------------------------------------------------------------------------------- attention

static void fill(struct ggml_tensor * t) {
    if (t->type == GGML_TYPE_F32) {
        for (int64_t i = 0; i < ggml_nelements(t); i++) {
            ((float *) t->data)[i] = (float) (i * 7919 % 2003 - 1001) / 1000.0f;
        }
    } else {
        for (int64_t i = 0; i < ggml_nelements(t); i++) {
            ((ggml_fp16_t *) t->data)[i] = ggml_fp32_to_fp16((float) (i * 7919 % 2003 - 1001) / 1000.0f);
        }
    }
}

static void bench_attention(int64_t n, int64_t m, int64_t heads_, enum ggml_type cache, const struct gb_level * level,
    struct gb_cpu_pool * pool) {
    const int64_t d = 128;
    struct ggml_context * ctx = context_new();
    struct ggml_tensor * q = ggml_new_tensor_3d(ctx, cache, d, n, heads_);
    struct ggml_tensor * k = ggml_new_tensor_3d(ctx, cache, d, m, heads_);
    struct ggml_tensor * v = ggml_new_tensor_3d(ctx, cache, m, d, heads_);
    struct ggml_tensor * y = ggml_flash_attn(ctx, q, k, v, false);
    check(y != NULL);
    ggml_backend_buffer_t memory = give_memory(ctx);
    fill(q);
    fill(k);
    fill(v);
    struct runner r = runner_new(ctx, y, level, pool, false);
    const double best = bench_best(runner_once, &r, 1, 10, gb_cpu_pool_n_threads(pool));
    const double ops_ = 4.0 * (double) (n * m * d * heads_), bytes = (double) (ggml_nbytes(k) + ggml_nbytes(v));
    printf("attention %4d x %4d, %2d heads, %s: %8.1f GFLOP/s, %6.1f GB/s of cache\n", (int) n, (int) m, (int) heads_,
        ggml_type_name(cache), ops_ / best * 1e-9, bytes / best * 1e-9);
    runner_free(&r);
    ggml_backend_buffer_free(memory);
    ggml_free(ctx);
}

// ------------------------------------------------------------------------------------------------------------ overhead

static void bench_overhead(const struct gb_level * level, struct gb_cpu_pool * pool) {
    enum { NODES = 1000 };
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ (size_t) 4 << 20, NULL, false });
    struct ggml_tensor * x = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 1);
    *(float *) x->data = 0;
    for (int i = 0; i < NODES; i++) {
        x = ggml_add(ctx, x, x);
    }
    struct runner r = runner_new(ctx, x, level, pool, false);
    const double best = bench_best(runner_once, &r, 1, 200, gb_cpu_pool_n_threads(pool));
    printf("%d one-element adds, %d threads: %.4f us a node\n", NODES, gb_cpu_pool_n_threads(pool), best * 1e6 / NODES);
    runner_free(&r);
    ggml_free(ctx);
}

int main(int argc, char ** argv) {
    const char * name = argc > 1 ? argv[1] : "all";
    const int threads = argc > 2 ? atoi(argv[2]) : 2;
    const struct gb_level * level = bench_level(argc > 3 ? argv[3] : NULL);
    const bool all = strcmp(name, "all") == 0;
    const int64_t kb = argc > 4 ? atoll(argv[4]) : 8192;
    struct gb_cpu_pool * pool = level != NULL ? gb_cpu_pool_new(threads) : NULL;
    bool known = all || strcmp(name, "attention") == 0 || strcmp(name, "overhead") == 0;
    check(pool != NULL);
    rows = kb < 16 ? 1 : kb / 16;
    calls = rows < 256 ? (int) (256 / rows) : 1;
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
        if (all || strcmp(name, ops[i].name) == 0) {
            bench_op(&ops[i], level, pool);
            known = true;
        }
    }
    if (all || strcmp(name, "attention") == 0) {
        bench_attention(512, 512, 32, GGML_TYPE_F32, level, pool);
        bench_attention(512, 512, 32, GGML_TYPE_F16, level, pool);
        bench_attention(1, 4096, 32, GGML_TYPE_F16, level, pool);
    }
    if (all || strcmp(name, "overhead") == 0) {
        bench_overhead(level, pool);
    }
    gb_cpu_pool_free(pool);
    if (!known) {
        fprintf(stderr, "no case is called '%s'\n", name);
    }
    return known ? 0 : 1;
}
