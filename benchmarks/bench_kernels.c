// bench_kernels.c - measures kernels and matrix products at every level that runs here. Prints JSON lines.
//
//     bench_kernels [kernels|mul_mat] [level]
//
// Kernels run on rows that stay in the first-level cache; the unit is nanoseconds per 1000 elements. Products run on 1
// and 2 threads; the unit is GFLOP/s. Each figure is the best of several runs, because other work on the machine can
// only lengthen a run.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/cpu.h"
#include "ggml.h"
#include "timing.h"

#define N 4096
#define REPEATS 9

static float fx[N], fy[N], fz[N];
static uint16_t hx[N], hy[N];

static const struct gb_kernels * k;
static volatile double sink;

// ------------------------------------------------------------------------------------------------------------- kernels

#define CALL_UNARY(name) k->name(N, fz, fx)
#define BENCHES                                          \
    BENCH(add_f32, k->add_f32(N, fz, fx, fy))            \
    BENCH(scale_f32, k->scale_f32(N, fz, fx, 2.0f))      \
    BENCH(mad_f32, k->mad_f32(N, fz, fx, 1e-9f))         \
    BENCH(sqrt_f32, CALL_UNARY(sqrt_f32))                \
    BENCH(log_f32, CALL_UNARY(log_f32))                  \
    BENCH(exp_f32, CALL_UNARY(exp_f32))                  \
    BENCH(tanh_f32, CALL_UNARY(tanh_f32))                \
    BENCH(gelu_f32, CALL_UNARY(gelu_f32))                \
    BENCH(gelu_erf_f32, CALL_UNARY(gelu_erf_f32))        \
    BENCH(silu_f32, CALL_UNARY(silu_f32))                \
    BENCH(sigmoid_f32, CALL_UNARY(sigmoid_f32))          \
    BENCH(softplus_f32, CALL_UNARY(softplus_f32))        \
    BENCH(sin_f32, CALL_UNARY(sin_f32))                  \
    BENCH(cos_f32, CALL_UNARY(cos_f32))                  \
    BENCH(f16_to_f32, k->f16_to_f32(N, fz, hx))          \
    BENCH(f32_to_f16, k->f32_to_f16(N, hy, fx))          \
    BENCH(bf16_to_f32, k->bf16_to_f32(N, fz, hx))        \
    BENCH(f32_to_bf16, k->f32_to_bf16(N, hy, fx))        \
    BENCH(sum_f32, sink = k->sum_f32(N, fx))             \
    BENCH(sum_sqr_f32, sink = k->sum_sqr_f32(N, fx))     \
    BENCH(max_f32, sink = k->max_f32(N, fx))             \
    BENCH(dot_f32, sink = k->dot_f32(N, fx, fy))         \
    BENCH(dot_f16_f32, sink = k->dot_f16_f32(N, hx, fy)) \
    BENCH(exp_sum_f32, sink = k->exp_sum_f32(N, fz, fx, 1.0f, GB_EXP_LEAST))

#define BENCH(name, call) \
    static void run_##name(void * data) { (void) data, call; }
BENCHES
#undef BENCH

static void bench_kernels(const struct gb_level * level) {
    static const struct {
        const char * name;
        void (*run)(void * data);
    } list[] = {
#define BENCH(name, call) { #name, run_##name },
        BENCHES
#undef BENCH
    };
    for (int i = 0; i < N; i++) {
        fx[i] = (float) (i % 97) / 97.0f + 0.01f;
        fy[i] = (float) (i % 89) / 89.0f;
        hx[i] = ggml_fp32_to_fp16(fx[i]);
    }
    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
        printf("{\"kernel\": \"%s\", \"level\": \"%s\", \"ns_per_1000\": %.1f}\n", list[i].name, level->name,
            bench_best(list[i].run, NULL, 200, REPEATS, 1) * 1e9 / N * 1000);
    }
}

// ------------------------------------------------------------------------------------------------------------ products

static struct gb_cpu_plan * plan;
static struct gb_cpu_pool * pool;
static struct gb_cpu_run run;

static void run_plan(void * data) {
    (void) data;
    if (gb_cpu_plan_run(plan, pool, &run) != GGML_STATUS_SUCCESS) {
        fprintf(stderr, "%s\n", ggml_last_error());
        exit(1);
    }
}

struct shape {
    enum ggml_type type;
    int64_t m, n, k, batch;
};

static void bench_shape(const struct gb_level * level, struct shape s, int threads) {
    struct ggml_context * ctx = ggml_init((struct ggml_init_params){ (size_t) 512 << 20, NULL, false });
    struct ggml_tensor * a = ggml_new_tensor_3d(ctx, s.type, s.k, s.m, s.batch);
    struct ggml_tensor * b = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, s.k, s.n, s.batch);
    struct ggml_tensor * y = ggml_mul_mat(ctx, a, b);
    memset(a->data, 0x31, ggml_nbytes(a));
    for (int64_t i = 0; i < ggml_nelements(b); i++) {
        ((float *) b->data)[i] = (float) (i % 101) / 101.0f;
    }
    plan = gb_cpu_plan_new(&y, 1, threads);
    pool = threads > 1 ? gb_cpu_pool_new(threads) : NULL;
    run = (struct gb_cpu_run){ .kernels = level->kernels, .work = malloc(gb_cpu_plan_work_size(plan) + 1) };

    const double flop = 2.0 * (double) s.m * (double) s.n * (double) s.k * (double) s.batch;
    const double sec = bench_best(run_plan, NULL, flop > 1e8 ? 2 : (int) (2e8 / flop) + 1, REPEATS, threads);
    printf("{\"op\": \"mul_mat\", \"level\": \"%s\", \"type\": \"%s\", \"m\": %d, \"n\": %d, \"k\": %d, \"batch\": %d, "
           "\"threads\": %d, "
           "\"gflops\": %.1f, \"us\": %.1f}\n",
        level->name, ggml_type_name(s.type), (int) s.m, (int) s.n, (int) s.k, (int) s.batch, threads, flop / sec * 1e-9,
        sec * 1e6);
    fflush(stdout);
    free(run.work);
    gb_cpu_plan_free(plan);
    gb_cpu_pool_free(pool);
    ggml_free(ctx);
}

static void bench_mul_mat(const struct gb_level * level) {
    static const struct shape shapes[] = {
        { GGML_TYPE_F32, 1024, 1024, 1024, 1 },
        { GGML_TYPE_F32, 2048, 2048, 2048, 1 },
        { GGML_TYPE_F32, 384, 512, 384, 1 },
        { GGML_TYPE_F32, 1536, 512, 384, 1 },
        { GGML_TYPE_F32, 384, 512, 1536, 1 },
        { GGML_TYPE_F32, 384, 16, 384, 1 },
        { GGML_TYPE_F32, 384, 8, 384, 1 },
        { GGML_TYPE_F32, 384, 4, 384, 1 },
        { GGML_TYPE_F32, 384, 1, 384, 1 },
        { GGML_TYPE_F32, 4096, 1, 4096, 1 },
        { GGML_TYPE_F32, 4096, 4, 4096, 1 },
        { GGML_TYPE_F32, 4096, 8, 4096, 1 },
        { GGML_TYPE_F32, 128, 128, 32, 384 },
        { GGML_TYPE_F32, 32, 128, 128, 384 },
        { GGML_TYPE_F32, 16, 16, 32, 384 },
        { GGML_TYPE_F16, 2048, 512, 2048, 1 },
        { GGML_TYPE_F16, 4096, 1, 4096, 1 },
        { GGML_TYPE_BF16, 2048, 512, 2048, 1 },
    };
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        for (int threads = 1; threads <= 2; threads++) {
            bench_shape(level, shapes[i], threads);
        }
    }
}

int main(int argc, char ** argv) {
    const char * what = argc > 1 ? argv[1] : "";
    for (int i = 0; i < gb_level_count(); i++) {
        const struct gb_level * level = gb_level_at(i);
        if (!level->usable() || (argc > 2 && strcmp(argv[2], level->name) != 0)) {
            continue;
        }
        k = level->kernels;
        if (strcmp(what, "mul_mat") != 0) {
            bench_kernels(level);
        }
        if (strcmp(what, "kernels") != 0) {
            bench_mul_mat(level);
        }
    }
    return 0;
}
