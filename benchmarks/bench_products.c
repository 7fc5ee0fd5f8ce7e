// bench_products.c - measures matrix products and the limits of the machine (cpu/limits.h), in turns.
//
//     bench_products [batched|small|all|shape] [type] [level] [threads]
//
//   batched  products with m 4096, k 14336 (or GB_BENCH_K) and n 512, as a share of the peak of the instruction that
//            computes the product
//   small    weights of 100 MB with 1 to 16 rows, as a share of the rate at which the machine reads memory
//   shape    GB_BENCH_M by GB_BENCH_K weights with GB_BENCH_ROWS rows (4096, 4096, 1), in operations a second. The
//            product runs repeatedly, so caches may hold the weights
//
// With GB_BENCH_EXACT set, activations are not rounded. Each line names the algorithm that computed the product.
// timing.h explains how the program measures.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/limits.h"
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml.h"
#include "tensor/quant/quant.h"
#include "timing.h"

#define ROUNDS 5

static void stop(const char * why) {
    fprintf(stderr, "%s\n", why);
    exit(1);
}

// A number of at least 1 from the environment.
static int64_t env_or(const char * name, int64_t value) {
    const char * env = getenv(name);
    if (env == NULL) {
        return value;
    }
    char * end;
    const int64_t number = strtoll(env, &end, 10);
    if (end == env || *end != '\0' || number < 1 || number > INT32_MAX) {
        fprintf(stderr, "%s=%s: must be a number from 1 to %d\n", name, env, INT32_MAX);
        exit(1);
    }
    return number;
}

// -------------------------------------------------------------------------------------------------------------- limits

// Operations or bytes a second (cpu/limits.h), with the same number of threads as the product.
static double limit_of(enum gb_cpu_limit what, const struct gb_level * level, size_t bytes, int threads) {
    const double rate = gb_cpu_measure_limit(what, level->name, bytes / (size_t) threads, threads, 10000000,
        getenv("GB_BENCH_CPU") != NULL);
    if (rate <= 0) {
        stop(ggml_last_error());
    }
    return rate;
}

// The arithmetic that an algorithm for many rows runs on.
static enum gb_cpu_limit arithmetic_of(const char * algorithm) {
    return strstr(algorithm, "bf16") != NULL    ? GB_CPU_LIMIT_BF16
           : strstr(algorithm, "bytes") != NULL ? GB_CPU_LIMIT_BYTES
                                                : GB_CPU_LIMIT_F32;
}

// ------------------------------------------------------------------------------------------------------------ products

struct product {
    struct ggml_context * ctx;
    ggml_backend_buffer_t memory; // of the tensors: aligned to cache lines, and large buffers in huge pages
    struct ggml_tensor * a;
    const char * algorithm;
    struct gb_cpu_plan * plan;
    struct gb_cpu_pool * pool;
    struct gb_cpu_run run;
    double ops;
    int threads;
};

// Sets all rows to the same small and finite numbers, because denormals could take longer.
static void fill_weights(struct ggml_tensor * a) {
    const size_t row = ggml_row_size(a->type, a->ne[0]);
    float * x = malloc(sizeof(float) * (size_t) a->ne[0]);
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
    struct product p = { .ops = 2.0 * (double) m * (double) n * (double) k, .threads = threads };
    p.ctx = ggml_init((struct ggml_init_params){ (size_t) 1 << 20, NULL, true });
    if (p.ctx == NULL) {
        stop(ggml_last_error());
    }
    p.a = ggml_new_tensor_2d(p.ctx, type, k, m);
    struct ggml_tensor * b = ggml_new_tensor_2d(p.ctx, GGML_TYPE_F32, k, n);
    struct ggml_tensor * y = ggml_mul_mat(p.ctx, p.a, b);
    if (y == NULL) { // a row that is no whole number of blocks, for example
        stop(ggml_last_error());
    }
    p.memory = ggml_backend_alloc_ctx_tensors_from_buft(p.ctx, ggml_backend_cpu_buffer_type());
    if (p.memory == NULL) {
        stop(ggml_last_error());
    }
    ggml_mul_mat_set_prec(y, getenv("GB_BENCH_EXACT") != NULL ? GGML_PREC_F32 : GGML_PREC_DEFAULT);
    fill_weights(p.a);
    for (int64_t i = 0; i < ggml_nelements(b); i++) {
        ((float *) b->data)[i] = (float) (i % 101 - 50) / 101.0f;
    }
    memset(y->data, 0, ggml_nbytes(y));
    p.algorithm = algorithm_of(y, level);
    p.plan = gb_cpu_plan_new(&y, 1, threads);
    p.pool = threads > 1 ? gb_cpu_pool_new(threads) : NULL;
    const size_t work = gb_cpu_plan_work_size(p.plan) + 64;
    p.run = (struct gb_cpu_run){ .kernels = level->kernels, .work = aligned_alloc(64, (work + 63) / 64 * 64) };
    memset(p.run.work, 0, work);
    return p;
}

static void product_free(struct product * p) {
    free(p->run.work);
    gb_cpu_plan_free(p->plan);
    gb_cpu_pool_free(p->pool);
    ggml_backend_buffer_free(p->memory);
    ggml_free(p->ctx);
}

static void product_once(void * data) {
    const struct product * p = data;
    if (gb_cpu_plan_run(p->plan, p->pool, &p->run) != GGML_STATUS_SUCCESS) {
        stop(ggml_last_error());
    }
}

// ------------------------------------------------------------------------------------------------------------- benches

static void bench_batched(enum ggml_type type, const struct gb_level * level, int threads) {
    struct product p = product_new(type, 4096, 512, env_or("GB_BENCH_K", 14336), level, threads);
    struct bench_shortest best = { 0 };
    double peak = 0;
    for (int r = 0; r < ROUNDS; r++) {
        const double limit = limit_of(arithmetic_of(p.algorithm), level, 0, threads) * 1e-9;
        peak = limit > peak ? limit : peak;
        bench_add(&best, bench_series(product_once, &p, 1, threads));
    }
    const double rate = p.ops / best.seconds * 1e-9;
    printf("%-8s %-10s n 512 %d threads: %8.1f Gop/s of %8.1f, %5.1f %%, %s\n", ggml_type_name(type), level->name,
        threads, rate, peak, rate / peak * 100, p.algorithm);
    fflush(stdout);
    product_free(&p);
}

// Weights of about 100 MB.
static void bench_small(enum ggml_type type, int64_t n, const struct gb_level * level, int threads) {
    const int64_t k = 4096, m = (int64_t) (100e6 / (double) ggml_row_size(type, k)) / 128 * 128;
    struct product p = product_new(type, m, n, k, level, threads);
    struct bench_shortest best = { 0 };
    double limit = 0;
    for (int r = 0; r < 2 * ROUNDS; r++) {
        const double read = limit_of(GB_CPU_LIMIT_READ, gb_level_default(), ggml_nbytes(p.a), threads) * 1e-9;
        limit = read > limit ? read : limit;
        bench_add(&best, bench_series(product_once, &p, 1, threads));
    }
    const double rate = (double) ggml_nbytes(p.a) / best.seconds * 1e-9;
    printf("%-8s %-10s n %3d %d threads: %6.1f GB/s of %6.1f, %5.1f %%, %7.1f Gop/s, %s\n", ggml_type_name(type),
        level->name, (int) n, threads, rate, limit, rate / limit * 100, p.ops / best.seconds * 1e-9, p.algorithm);
    fflush(stdout);
    product_free(&p);
}

// Repeats one product for some milliseconds, so that the clock of processor time can resolve it.
static void bench_shape(enum ggml_type type, const struct gb_level * level, int threads) {
    const int64_t m = env_or("GB_BENCH_M", 4096), k = env_or("GB_BENCH_K", 4096), n = env_or("GB_BENCH_ROWS", 1);
    struct product p = product_new(type, m, n, k, level, threads);
    const int times = (int) (2e9 / p.ops) + 1;
    const double best = bench_best(product_once, &p, times, 4 * ROUNDS, threads);
    printf("%-8s %-10s m %d k %d n %d %d threads: %8.1f Gop/s, %s\n", ggml_type_name(type), level->name, (int) m,
        (int) k, (int) n, threads, p.ops / best * 1e-9, p.algorithm);
    fflush(stdout);
    product_free(&p);
}

static bool is_measured(enum ggml_type type) {
    return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16 ||
           (ggml_is_quantized(type) && gb_quant_format_of(type) != NULL && gb_quant_format_of(type)->vec_dot != NULL);
}

int main(int argc, char ** argv) {
    const char * what = argc > 1 ? argv[1] : "all";
    const char * name = argc > 2 ? argv[2] : "all";
    const struct gb_level * level = bench_level(argc > 3 ? argv[3] : NULL);
    const int threads = argc > 4 ? atoi(argv[4]) : 2;
    int found = 0;
    if (level == NULL || threads < 1 || threads > GB_CPU_MAX_THREADS) {
        stop(level == NULL ? ggml_last_error() : "too few or too many threads");
    }
    for (int t = 0; t < GGML_TYPE_COUNT; t++) {
        const enum ggml_type type = (enum ggml_type) t;
        if (ggml_blck_size(type) == 0 || !is_measured(type) ||
            (strcmp(name, "all") != 0 && strcmp(name, ggml_type_name(type)) != 0)) {
            continue;
        }
        if (strcmp(what, "shape") == 0) {
            bench_shape(type, level, threads);
            found++;
        }
        if (strcmp(what, "batched") == 0 || strcmp(what, "all") == 0) {
            bench_batched(type, level, threads);
            found++;
        }
        for (int64_t n = 1; n <= 16 && (strcmp(what, "small") == 0 || strcmp(what, "all") == 0); n *= 2) {
            bench_small(type, n, level, threads);
            found++;
        }
    }
    if (found == 0) {
        stop("nothing to measure: must be batched, small, all or shape, and the name of a type or all");
    }
    return 0;
}
