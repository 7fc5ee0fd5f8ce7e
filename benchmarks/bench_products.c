// bench_products.c - matrix products beside the limits of the machine, measured in the same run, alternately.
//
//     bench_products [batched|small|all|shape] [type] [level] [threads]
//
// Batched: m 4096, k 14336 (or less with GB_BENCH_K), n 512, as share of the peak of the dot instruction that the
// product runs on. Small batches: weights larger than the caches, as share of the rate at which the same memory is
// read. Shape: GB_BENCH_M by GB_BENCH_K weights with GB_BENCH_ROWS rows (4096, 4096, 1), again and again: operations a
// second, where caches may hold the weights. Each line names the algorithm that computed the product. Each figure is the best of several rounds; in every round limits and products take turns, so that both see the
// same machine. GB_BENCH_CPU=1 measures processor time (of one thread) instead of time: what is left to do on a machine
// that others use, too.
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/env.h"
#include "base/mem.h"
#include "base/thread.h"
#include "cpu/cpu.h"
#include "ggml.h"
#include "tensor/quant/quant.h"

#if defined(__x86_64__) && defined(__GNUC__)
#    include <immintrin.h>
#    define HAVE_PEAKS 1
#endif

#define ROUNDS      5
#define MAX_THREADS 16

static double seconds_now(int threads) {
    return getenv("GB_BENCH_CPU") != NULL ? (double) clock() / CLOCKS_PER_SEC / threads : (double) gb_time_ns() * 1e-9;
}

// ------------------------------------------------------------------------------------------------------------- threads

struct team_job {
    void (*fn)(void * data, int i);
    void * data;
    int    i;
};

static void run_team_job(void * arg) {
    const struct team_job * job = arg;
    job->fn(job->data, job->i);
}

static double seconds_of(void (*fn)(void * data, int i), void * data, int threads) {
    gb_thread       handles[MAX_THREADS];
    struct team_job jobs[MAX_THREADS];
    const double    start = seconds_now(threads);
    for (int i = 0; i < threads; i++) {
        jobs[i] = (struct team_job){ fn, data, i };
        if (i > 0) {
            gb_thread_start(&handles[i], run_team_job, &jobs[i]);
        }
    }
    run_team_job(&jobs[0]);
    for (int i = 1; i < threads; i++) {
        gb_thread_join(handles[i]);
    }
    return seconds_now(threads) - start;
}

// -------------------------------------------------------------------------------------------------------------- limits

#ifdef HAVE_PEAKS
enum { CHAINS = 20, STEPS = 4000000 }; // 10 ms: starting threads takes a tenth of one

// CHAINS independent accumulators, STEPS times.
#    define PEAK(name, features, vec, zero, step)                                                         \
    __attribute__((target(features))) static void name(void * data, int thread) {                         \
        vec acc[CHAINS], x = zero, y = zero;                                                              \
        (void) data;                                                                                      \
        (void) thread;                                                                                    \
        __asm__ volatile("" : "+v"(x), "+v"(y));                                                          \
        _Pragma("GCC unroll 20") for (int i = 0; i < CHAINS; i++) {                                       \
            acc[i] = zero;                                                                                \
            __asm__ volatile("" : "+v"(acc[i]));                                                          \
        }                                                                                                 \
        for (int s = 0; s < STEPS; s++) {                                                                 \
            _Pragma("GCC unroll 20") for (int i = 0; i < CHAINS; i++) { acc[i] = step; }                  \
            __asm__ volatile("" : "+v"(x));                                                               \
        }                                                                                                 \
        _Pragma("GCC unroll 20") for (int i = 0; i < CHAINS; i++) { __asm__ volatile("" ::"v"(acc[i])); } \
    }
PEAK(peak_fma512, "avx512f", __m512, _mm512_setzero_ps(), _mm512_fmadd_ps(x, y, acc[i]))
PEAK(peak_bytes512, "avx512f,avx512vnni", __m512i, _mm512_setzero_si512(), _mm512_dpbusd_epi32(acc[i], x, y))
PEAK(peak_bf16, "avx512f,avx512bf16", __m512, _mm512_setzero_ps(), _mm512_dpbf16_ps(acc[i], (__m512bh) x, (__m512bh) y))
#endif

// Operations in a second of the instruction that products of this type run on; 0: not known.
static double peak_of(enum ggml_type type, int threads) {
#ifdef HAVE_PEAKS
    const double lanes = 16.0 * CHAINS * STEPS * threads * 1e-9;
    if (!__builtin_cpu_supports("avx512vnni")) {
        return 0;
    }
    if (type == GGML_TYPE_BF16 && __builtin_cpu_supports("avx512bf16")) {
        return lanes * 4 / seconds_of(peak_bf16, NULL, threads);
    }
    return ggml_is_quantized(type) ? lanes * 8 / seconds_of(peak_bytes512, NULL, threads)
                                   : lanes * 2 / seconds_of(peak_fma512, NULL, threads);
#else
    (void) type;
    (void) threads;
    return 0;
#endif
}

struct memory {
    const char * data;
    size_t       size;
    int          threads;
};

static volatile uint64_t sink;

static void read_all(void * data, int thread) {
    const struct memory * m      = data;
    const size_t          part   = m->size / (size_t) m->threads / 256 * 256;
    const char *          p      = m->data + (size_t) thread * part;
    uint64_t              sum[8] = { 0 };
    for (size_t i = 0; i < part; i += 256) { // one word of each line: what counts is that the line comes
        for (int j = 0; j < 4; j++) {
            uint64_t word;
            memcpy(&word, p + i + 64 * j, sizeof(word));
            sum[j] += word;
        }
    }
    sink = sum[0] + sum[1] + sum[2] + sum[3];
}

// ------------------------------------------------------------------------------------------------------------ products

struct product {
    struct ggml_context * ctx;
    void *                memory; // of it, in huge pages as buffers of the CPU backend are
    struct ggml_tensor *  a;
    const char *          algorithm;
    struct gb_cpu_plan *  plan;
    struct gb_cpu_pool *  pool;
    struct gb_cpu_run     run;
    double                ops;
    int                   threads;
};

// Random blocks whose numbers are small and finite: the time of some formats depends on neither, that of denormals
// would.
static void fill_weights(struct ggml_tensor * a) {
    const size_t row = ggml_row_size(a->type, a->ne[0]);
    float *      x   = malloc(sizeof(float) * (size_t) a->ne[0]);
    for (int64_t i = 0; i < a->ne[0]; i++) {
        x[i] = (float) ((i * 7919) % 257 - 128) / 128;
    }
    if (a->type == GGML_TYPE_F32) {
        memcpy(a->data, x, row);
    } else if (gb_quant_format_of(a->type) != NULL && gb_quant_format_of(a->type)->from_float != NULL) {
        gb_quant_format_of(a->type)->from_float(x, a->data, (int) a->ne[0]);
    } else {
        memset(a->data, 0x2c, row);
    }
    for (int64_t i = 1; i < a->ne[1]; i++) {
        memcpy((char *) a->data + (size_t) i * a->nb[1], a->data, row);
    }
    free(x);
}

static const char * algorithm_of(const struct ggml_tensor * product, const struct gb_level * level) {
    const char *name, *why = NULL;
    for (int i = 0; (name = gb_cpu_product_algorithm(product, level->name, i, &why)) != NULL && why != NULL;) {
        i++;
    }
    return name != NULL ? name : "none";
}

static struct product product_new(enum ggml_type type, int64_t m, int64_t n, int64_t k, const struct gb_level * level,
    int threads) {
    struct product p       = { .ops = 2.0 * (double) m * (double) n * (double) k, .threads = threads };
    const size_t   size    = ggml_row_size(type, k) * (size_t) m + (size_t) (n * (k + m)) * sizeof(float) + (1 << 20);
    p.memory               = gb_large_alloc(64, size);
    p.ctx                  = ggml_init((struct ggml_init_params){ size, p.memory, false });
    p.a                    = ggml_new_tensor_2d(p.ctx, type, k, m);
    struct ggml_tensor * b = ggml_new_tensor_2d(p.ctx, GGML_TYPE_F32, k, n);
    struct ggml_tensor * y = ggml_mul_mat(p.ctx, p.a, b);
    fill_weights(p.a);
    for (int64_t i = 0; i < ggml_nelements(b); i++) {
        ((float *) b->data)[i] = (float) (i % 101 - 50) / 101.0f;
    }
    memset(y->data, 0, ggml_nbytes(y));
    p.algorithm       = algorithm_of(y, level);
    p.plan            = gb_cpu_plan_new(&y, 1, threads);
    p.pool            = threads > 1 ? gb_cpu_pool_new(threads) : NULL;
    const size_t work = gb_cpu_plan_work_size(p.plan) + 64;
    p.run = (struct gb_cpu_run){ .kernels = level->kernels, .work = aligned_alloc(64, (work + 63) / 64 * 64) };
    memset(p.run.work, 0, work);
    return p;
}

static void product_free(struct product * p) {
    free(p->run.work);
    gb_cpu_plan_free(p->plan);
    gb_cpu_pool_free(p->pool);
    ggml_free(p->ctx);
    gb_aligned_free(p->memory);
}

static double product_seconds(struct product * p) {
    const double start = seconds_now(p->threads);
    if (gb_cpu_plan_run(p->plan, p->pool, &p->run) != GGML_STATUS_SUCCESS) {
        fprintf(stderr, "%s\n", ggml_last_error());
        exit(1);
    }
    return seconds_now(p->threads) - start;
}

// ------------------------------------------------------------------------------------------------------------- benches

static void bench_batched(enum ggml_type type, const struct gb_level * level, int threads) {
    const char *   env  = getenv("GB_BENCH_K");
    struct product p    = product_new(type, 4096, 512, env != NULL ? atoi(env) : 14336, level, threads);
    double         best = 1e30, peak = 0;
    for (int r = 0; r < ROUNDS; r++) {
        const double limit = peak_of(type, threads), s = product_seconds(&p);
        peak = limit > peak ? limit : peak;
        best = s < best ? s : best;
    }
    const double rate = p.ops / best * 1e-9;
    printf("%-8s %-10s n 512 %d threads: %8.1f Gop/s of %8.1f, %5.1f %%, %s\n", ggml_type_name(type), level->name,
        threads, rate, peak, peak > 0 ? rate / peak * 100 : 0, p.algorithm);
    fflush(stdout);
    product_free(&p);
}

// Weights of about 100 MB.
static void bench_small(enum ggml_type type, int64_t n, const struct gb_level * level, int threads) {
    const int64_t  k = 4096, m = (int64_t) (100e6 / (double) ggml_row_size(type, k)) / 128 * 128;
    struct product p      = product_new(type, m, n, k, level, threads);
    struct memory  memory = { p.a->data, ggml_nbytes(p.a), threads };
    double         best = 1e30, limit = 1e30;
    for (int r = 0; r < 2 * ROUNDS; r++) {
        const double read = seconds_of(read_all, &memory, threads), s = product_seconds(&p);
        limit = read < limit ? read : limit;
        best  = s < best ? s : best;
    }
    printf("%-8s %-10s n %3d %d threads: %6.1f GB/s of %6.1f, %5.1f %%, %7.1f Gop/s, %s\n", ggml_type_name(type),
        level->name, (int) n, threads, (double) memory.size / best * 1e-9, (double) memory.size / limit * 1e-9,
        limit / best * 100, p.ops / best * 1e-9, p.algorithm);
    fflush(stdout);
    product_free(&p);
}

static int64_t env_or(const char * name, int64_t value) {
    const char * env = getenv(name);
    return env != NULL ? atoll(env) : value;
}

// One shape: as often as takes some milliseconds, so that clocks of processor time resolve it.
static void bench_shape(enum ggml_type type, const struct gb_level * level, int threads) {
    const int64_t  m = env_or("GB_BENCH_M", 4096), k = env_or("GB_BENCH_K", 4096), n = env_or("GB_BENCH_ROWS", 1);
    struct product p     = product_new(type, m, n, k, level, threads);
    const int      times = (int) (2e9 / p.ops) + 1;
    double         best  = 1e30;
    for (int r = 0; r < 4 * ROUNDS; r++) {
        double s = 0;
        for (int i = 0; i < times; i++) {
            s += product_seconds(&p);
        }
        best = s < best ? s : best;
    }
    printf("%-8s %-10s m %d k %d n %d %d threads: %8.1f Gop/s, %s\n", ggml_type_name(type), level->name, (int) m,
        (int) k, (int) n, threads, p.ops * times / best * 1e-9, p.algorithm);
    fflush(stdout);
    product_free(&p);
}

static bool is_measured(enum ggml_type type) {
    return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16 ||
           (ggml_is_quantized(type) && gb_quant_format_of(type) != NULL && gb_quant_format_of(type)->vec_dot != NULL);
}

int main(int argc, char ** argv) {
    const char *            what = argc > 1 ? argv[1] : "all";
    const char *            name = argc > 2 ? argv[2] : "all";
    const struct gb_level * level =
        argc > 3 && strcmp(argv[3], "best") != 0 ? gb_level_find(argv[3]) : gb_level_default();
    const int threads = argc > 4 ? atoi(argv[4]) : 2;
    if (level == NULL || threads < 1 || threads > MAX_THREADS) {
        fprintf(stderr, "%s\n", level == NULL ? ggml_last_error() : "threads: 1 .. 16");
        return 1;
    }
    for (int t = 0; t < GGML_TYPE_COUNT; t++) {
        const enum ggml_type type = (enum ggml_type) t;
        if (ggml_blck_size(type) == 0 || !is_measured(type) ||
            (strcmp(name, "all") != 0 && strcmp(name, ggml_type_name(type)) != 0)) {
            continue;
        }
        if (strcmp(what, "shape") == 0) {
            bench_shape(type, level, threads);
            continue;
        }
        if (strcmp(what, "small") != 0) {
            bench_batched(type, level, threads);
        }
        for (int64_t n = 1; n <= 16 && strcmp(what, "batched") != 0; n *= 2) {
            bench_small(type, n, level, threads);
        }
    }
    return 0;
}
