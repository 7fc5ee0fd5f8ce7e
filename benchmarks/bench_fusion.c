// bench_fusion.c - fused plans beside the same graph node by node. Both alternate; the shortest time of each counts.
//
//     bench_fusion [name|all] [threads] [level] [rounds]
//
// G/s: operations of products, bytes of decoding and rotations.
// A graph allocator plans the results, as in programs. One cheap node at the end makes the measured part an
// intermediate result.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/threadpool.h"
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"
#include "timing.h"

struct maker {
    struct ggml_context *in, *ctx; // with memory; without
};

static void check(bool good) {
    if (!good) {
        fprintf(stderr, "%s\n", ggml_last_error());
        exit(1);
    }
}

static struct ggml_tensor * input(struct maker * m, enum ggml_type type, int64_t a, int64_t b, int64_t c, int64_t d) {
    struct ggml_tensor * t = ggml_new_tensor_4d(m->in, type, a, b, c, d);
    check(t != NULL);
    for (int64_t i = 0; i < ggml_nelements(t); i++) {
        const float x = (float) (i * 7919 % 2003 - 1001) / 1000.0f;
        if (type == GGML_TYPE_F32) {
            ((float *) t->data)[i] = x;
        } else if (type == GGML_TYPE_I32) {
            ((int32_t *) t->data)[i] = (int32_t) i;
        } else {
            ((ggml_fp16_t *) t->data)[i] = ggml_fp32_to_fp16(x);
        }
    }
    return t;
}

// ----------------------------------------------------------------------------------------------------------- attention

struct shape {
    int64_t d, queries, keys, heads, key_heads, batch;
    enum ggml_type cache;
    bool causal;
    int mask; // of the kinds below
};

// Masks: none; -inf or a large finite number for a third of the keys; slopes of positions; -inf for keys behind the
// query.
enum { MASK_NONE, MASK_INF, MASK_1E9, MASK_65504, MASK_SLOPES, MASK_CAUSAL };

static struct ggml_tensor * mask_of(struct maker * m, const struct shape * s) {
    static const float hidden[] = { 0, -INFINITY, -1e9f, -65504 };
    struct ggml_tensor * t = ggml_new_tensor_2d(m->in, GGML_TYPE_F32, s->keys, s->queries);
    check(t != NULL);
    for (int64_t i = 0; i < ggml_nelements(t); i++) {
        const int64_t query = i / s->keys, key = i % s->keys;
        ((float *) t->data)[i] = s->mask == MASK_SLOPES    ? -0.7f * (float) llabs(query - key)
                                 : s->mask == MASK_CAUSAL  ? (key > query ? -INFINITY : 0)
                                 : i * 7919 % 101 % 3 == 0 ? hidden[s->mask]
                                                           : 0;
    }
    return t;
}

static struct ggml_tensor * attention(struct maker * m, const struct shape * s) {
    struct ggml_tensor * q = input(m, GGML_TYPE_F32, s->d, s->heads, s->queries, s->batch);
    struct ggml_tensor * k = input(m, s->cache, s->d, s->keys, s->key_heads, s->batch);
    struct ggml_tensor * v = input(m, s->cache, s->keys, s->d, s->key_heads, s->batch);
    struct ggml_tensor * x = ggml_mul_mat(m->ctx, k, ggml_permute(m->ctx, ggml_scale(m->ctx, q, 1), 0, 2, 1, 3));
    x = s->mask ? x : ggml_scale(m->ctx, x, 0.1f);
    x = s->causal ? ggml_diag_mask_inf(m->ctx, x, (int) (s->keys - s->queries)) : x;
    x = s->mask ? ggml_soft_max_ext(m->ctx, x, mask_of(m, s), 0.1f) : ggml_soft_max(m->ctx, x);
    x = ggml_mul_mat(m->ctx, v, x);
    x = ggml_cont(m->ctx, ggml_permute(m->ctx, x, 0, 2, 1, 3));
    return x;
}

#define ATTENTION(name, ...)                                                         \
    static struct ggml_tensor * name(struct maker * m, double * ops) {               \
        static const struct shape s = { __VA_ARGS__ };                               \
        *ops = 4.0 * (double) (s.d * s.queries * s.keys * s.heads * s.batch) /       \
               ((s.causal && s.keys == s.queries) || s.mask == MASK_CAUSAL ? 2 : 1); \
        return attention(m, &s);                                                     \
    }

ATTENTION(prefill_128_f16, 128, 512, 512, 32, 32, 1, GGML_TYPE_F16, false)
ATTENTION(prefill_128_f32, 128, 512, 512, 32, 32, 1, GGML_TYPE_F32, false)
ATTENTION(prefill_128_causal, 128, 512, 512, 32, 32, 1, GGML_TYPE_F16, true)
ATTENTION(masked_inf, 128, 512, 512, 32, 32, 1, GGML_TYPE_F16, false, MASK_INF)
ATTENTION(masked_1e9, 128, 512, 512, 32, 32, 1, GGML_TYPE_F16, false, MASK_1E9)
ATTENTION(masked_65504, 128, 512, 512, 32, 32, 1, GGML_TYPE_F16, false, MASK_65504)
ATTENTION(masked_slopes, 128, 512, 512, 32, 32, 1, GGML_TYPE_F16, false, MASK_SLOPES)
ATTENTION(masked_causal, 128, 512, 512, 32, 32, 1, GGML_TYPE_F32, false, MASK_CAUSAL)
ATTENTION(prefill_64_causal, 64, 512, 512, 32, 4, 1, GGML_TYPE_F16, true)
ATTENTION(prefill_64_long, 64, 256, 4096, 32, 4, 1, GGML_TYPE_F16, true)
ATTENTION(bert_128, 32, 128, 128, 12, 12, 1, GGML_TYPE_F32, false)
ATTENTION(minilm, 32, 34, 34, 12, 12, 1, GGML_TYPE_F32, false)
ATTENTION(minilm_batch, 32, 34, 34, 12, 12, 32, GGML_TYPE_F32, false)

// ------------------------------------------------------------------------------------------------------------ products

enum { BIAS = 1, GELU = 2, SILU = 4, GATE = 8, RESIDUAL = 16 };

static struct ggml_tensor * product(struct maker * m, enum ggml_type type, int64_t k, int64_t columns, int64_t rows,
    int what) {
    struct ggml_tensor * w = type == GGML_TYPE_F32 || type == GGML_TYPE_F16
                                 ? input(m, type, k, columns, 1, 1)
                                 : ggml_new_tensor_2d(m->in, type, k, columns);
    struct ggml_tensor * x = ggml_mul_mat(m->ctx, w, input(m, GGML_TYPE_F32, k, rows, 1, 1));
    x = what & BIAS ? ggml_add(m->ctx, x, input(m, GGML_TYPE_F32, columns, 1, 1, 1)) : x;
    x = what & GELU ? ggml_gelu_erf(m->ctx, x) : what & SILU ? ggml_silu(m->ctx, x) : x;
    x = what & GATE ? ggml_mul(m->ctx, x, input(m, GGML_TYPE_F32, columns, rows, 1, 1)) : x;
    x = what & RESIDUAL ? ggml_add(m->ctx, x, input(m, GGML_TYPE_F32, columns, rows, 1, 1)) : x;
    return x;
}

#define PRODUCT(name, type, k, columns, rows, what)                    \
    static struct ggml_tensor * name(struct maker * m, double * ops) { \
        *ops = 2.0 * (double) (k) * (columns) * (rows);                \
        return product(m, type, k, columns, rows, what);               \
    }

PRODUCT(minilm_up, GGML_TYPE_F32, 384, 1536, 34, BIAS | GELU)
PRODUCT(minilm_down, GGML_TYPE_F32, 1536, 384, 34, BIAS | RESIDUAL)
PRODUCT(minilm_up_32, GGML_TYPE_F32, 384, 1536, 34 * 32, BIAS | GELU)
PRODUCT(minilm_down_32, GGML_TYPE_F32, 1536, 384, 34 * 32, BIAS | RESIDUAL)
PRODUCT(llama_gate, GGML_TYPE_Q8_0, 2048, 5632, 512, SILU | GATE)
PRODUCT(llama_down, GGML_TYPE_Q8_0, 5632, 2048, 512, RESIDUAL)
PRODUCT(llama_gate_1, GGML_TYPE_Q8_0, 2048, 5632, 1, SILU | GATE)
PRODUCT(llama_down_1, GGML_TYPE_Q8_0, 5632, 2048, 1, RESIDUAL)

// ------------------------------------------------------------------------------------------------------------ decoding

// One query for 4096 cached positions, 32 heads of 128: not fused, but here to be seen. Counts bytes of keys and
// values.
static struct ggml_tensor * decode(struct maker * m, double * ops, enum ggml_type keys) {
    struct ggml_tensor * k =
        keys == GGML_TYPE_F16 ? input(m, keys, 128, 4096, 32, 1) : ggml_new_tensor_3d(m->in, keys, 128, 4096, 32);
    struct ggml_tensor * v = input(m, GGML_TYPE_F16, 4096, 128, 32, 1);
    struct ggml_tensor * q =
        ggml_permute(m->ctx, ggml_scale(m->ctx, input(m, GGML_TYPE_F32, 128, 32, 1, 1), 1), 0, 2, 1, 3);
    struct ggml_tensor * x = ggml_soft_max(m->ctx, ggml_scale(m->ctx, ggml_mul_mat(m->ctx, k, q), 0.1f));
    if (k->type != GGML_TYPE_F16) {
        memset(k->data, 0, ggml_nbytes(k));
    }
    *ops = (double) (ggml_nbytes(k) + ggml_nbytes(v));
    x = ggml_cont(m->ctx, ggml_permute(m->ctx, ggml_mul_mat(m->ctx, v, x), 0, 2, 1, 3));
    return x;
}

static struct ggml_tensor * decode_f16(struct maker * m, double * ops) { return decode(m, ops, GGML_TYPE_F16); }

static struct ggml_tensor * decode_q8_0(struct maker * m, double * ops) { return decode(m, ops, GGML_TYPE_Q8_0); }

static struct ggml_tensor * read_only(struct maker * m, double * ops) { // beside them: as many bytes, summed
    struct ggml_tensor * x = input(m, GGML_TYPE_F32, 4096, 4096, 1, 1);
    *ops = (double) ggml_nbytes(x);
    return ggml_scale(m->ctx, ggml_sum_rows(m->ctx, x), 1);
}

// ----------------------------------------------------------------------------------------------------------- rotations

static struct ggml_tensor * rope_cache(struct maker * m, double * ops) {
    struct ggml_tensor * k = input(m, GGML_TYPE_F32, 128, 8, 512, 1);
    struct ggml_tensor * cache = input(m, GGML_TYPE_F16, 128, 1024, 8, 1);
    struct ggml_tensor * x = ggml_rope(m->ctx, k, input(m, GGML_TYPE_I32, 512, 1, 1, 1), 128, 0, 0);
    *ops = (double) ggml_nelements(k) * 6;
    x = ggml_cpy(m->ctx, ggml_permute(m->ctx, x, 0, 2, 1, 3),
        ggml_view_3d(m->ctx, cache, 128, 512, 8, cache->nb[1], cache->nb[2], 0));
    return x;
}

// ------------------------------------------------------------------------------------------------------------- running

struct bench_case {
    const char * name;
    struct ggml_tensor * (*build)(struct maker * m, double * ops);
};

#define CASE(name) { #name, name }
static const struct bench_case cases[] = {
    CASE(prefill_128_f16),
    CASE(prefill_128_f32),
    CASE(prefill_128_causal),
    CASE(masked_inf),
    CASE(masked_1e9),
    CASE(masked_65504),
    CASE(masked_slopes),
    CASE(masked_causal),
    CASE(prefill_64_causal),
    CASE(prefill_64_long),
    CASE(bert_128),
    CASE(minilm),
    CASE(minilm_batch),
    CASE(minilm_up),
    CASE(minilm_down),
    CASE(minilm_up_32),
    CASE(minilm_down_32),
    CASE(llama_gate),
    CASE(llama_down),
    CASE(llama_gate_1),
    CASE(llama_down_1),
    CASE(decode_f16),
    CASE(decode_q8_0),
    CASE(read_only),
    CASE(rope_cache),
};

struct runner {
    struct gb_cpu_plan * plan;
    struct gb_cpu_pool * pool;
    struct gb_cpu_run run;
    int threads;
    struct bench_shortest best;
};

static struct runner runner_new(struct ggml_cgraph * g, int threads, const struct gb_level * level,
    struct gb_cpu_pool * pool, bool fuse) {
    struct runner r = { .pool = pool, .threads = threads };
    ggml_graph_set_fusion(fuse);
    r.plan = gb_cpu_plan_new(g->nodes, g->n_nodes, threads);
    check(r.plan != NULL);
    r.run = (struct gb_cpu_run){ .kernels = level->kernels, .work = calloc(1, gb_cpu_plan_work_size(r.plan) + 64) };
    return r;
}

static void runner_once(void * data) {
    const struct runner * r = data;
    check(gb_cpu_plan_run(r->plan, r->pool, &r->run) == GGML_STATUS_SUCCESS);
}

static void runner_run(struct runner * r, int times) {
    bench_add(&r->best, bench_series(runner_once, r, times, r->threads));
}

static void bench(const struct bench_case * c, int threads, const struct gb_level * level, struct gb_cpu_pool * pool,
    int rounds) {
    struct maker m = { ggml_init((struct ggml_init_params){ (size_t) 256 << 20, NULL, false }),
        ggml_init((struct ggml_init_params){ (size_t) 1 << 20, NULL, true }) };
    double ops = 0;
    struct ggml_tensor * y = c->build(&m, &ops);
    struct ggml_cgraph * g = ggml_new_graph(m.ctx);
    check(y != NULL);
    ggml_build_forward_expand(g, y);
    ggml_build_forward_expand(g, ggml_scale(m.ctx, input(&m, GGML_TYPE_F32, 1, 1, 1, 1), 1)); // behind all
    ggml_tallocr_t talloc = ggml_tallocr_new_from_buft(ggml_backend_cpu_buffer_type(), (size_t) 256 << 20);
    ggml_gallocr_t galloc = ggml_gallocr_new();
    check(ggml_gallocr_alloc_graph(galloc, talloc, g) > 0);
    struct runner fused = runner_new(g, threads, level, pool, true), plain = runner_new(g, threads, level, pool, false);
    runner_run(&plain, 1);
    runner_run(&fused, 1);
    const int times = (int) (0.01 / plain.best.seconds) + 1;
    plain.best = fused.best = (struct bench_shortest){ 0 };
    for (int i = 0; i < rounds; i++) {
        runner_run(&plain, times);
        runner_run(&fused, times);
    }
    printf("%-20s %-10s %2d threads: %9.3f ms apart, %9.3f ms fused, ratio %5.2f, %8.1f G/s\n", c->name, level->name,
        threads, plain.best.seconds * 1e3, fused.best.seconds * 1e3, plain.best.seconds / fused.best.seconds,
        ops / fused.best.seconds * 1e-9);
    fflush(stdout);
    free(plain.run.work);
    free(fused.run.work);
    gb_cpu_plan_free(plain.plan);
    gb_cpu_plan_free(fused.plan);
    ggml_gallocr_free(galloc);
    ggml_tallocr_free(talloc);
    ggml_free(m.ctx);
    ggml_free(m.in);
}

int main(int argc, char ** argv) {
    const char * name = argc > 1 ? argv[1] : "all";
    const int threads = argc > 2 ? atoi(argv[2]) : 2;
    const struct gb_level * level = bench_level(argc > 3 ? argv[3] : NULL);
    const int rounds = argc > 4 ? atoi(argv[4]) : 20;
    struct gb_cpu_pool * pool = level != NULL ? gb_cpu_pool_new(threads) : NULL;
    bool known = false;
    check(pool != NULL);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (strcmp(name, "all") == 0 || strstr(cases[i].name, name) != NULL) {
            bench(&cases[i], threads, level, pool, rounds);
            known = true;
        }
    }
    gb_cpu_pool_free(pool);
    if (!known) {
        fprintf(stderr, "no case's name contains '%s'\n", name);
    }
    return known ? 0 : 1;
}
