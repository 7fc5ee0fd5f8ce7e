// algorithms.c - chooses the algorithm that computes a product.
//
// The table lists algorithms in the order of preference. A product uses the first algorithm that
// does not decline. The last one computes every product. Sizing, the number of threads, running,
// fused steps and gb_cpu_product_algorithm all use this table.
//
// The level of the kernels and the traits of the processor are known when a product runs, not when
// its plan is made. So a plan has memory for every algorithm that some level could use, up to the
// first algorithm that all levels have. That algorithm also decides the number of threads, which
// must not depend on the level.
#include "cpu/ops/product/algorithm.h"
#include "cpu/ops/product/tuning.h"

static size_t no_work_size(const struct gb_gemm * p, int n_tasks) {
    (void) p;
    (void) n_tasks;
    return 0;
}

static const char * never_declines(const struct gb_gemm * p) {
    (void) p;
    return NULL;
}

// clang-format off
static const struct gb_product_algorithm algorithms[] = {
    // activations of two bytes, by the algorithms for bytes below
    { "two_bytes", gb_two_bytes_declines, NULL,
      gb_two_bytes_work_size, gb_two_bytes_run },
    // few rows, at levels with kernels for them: at most GB_INTERLEAVED_ROWS of tuning.h
    { "short_q8_0", gb_short_declines, gb_short_level_declines,
      gb_short_work_size, gb_short_run },
    { "interleaved", gb_interleaved_declines, gb_interleaved_level_declines,
      gb_interleaved_work_size, gb_interleaved_run },
    // pairs of bfloat16, for fewer rows than the maximum of dense_rows
    { "blocked_bf16", gb_blocked_bf16_declines, gb_blocked_bf16_level_declines,
      gb_blocked_work_size, gb_blocked_bf16_run },
    // few rows: at most GB_BYTE_DOTS_ROWS of tuning.h
    { "byte_dots", gb_byte_dots_declines, NULL,
      gb_byte_dots_work_size, gb_byte_dots_run },
    { "dense_row", gb_dense_row_declines, NULL,
      no_work_size, gb_dense_row_run },
    { "lanes", gb_lanes_declines, NULL,
      gb_lanes_work_size, gb_lanes_run },
    { "dense_rows", gb_dense_rows_declines, NULL,
      gb_dense_rows_work_size, gb_dense_rows_run },
    // more rows, at levels with registers for larger tiles
    { "dense_rows_wide", gb_dense_rows_wide_declines, gb_dense_rows_wide_level_declines,
      gb_dense_rows_work_size, gb_dense_rows_run },
    { "dots", gb_dots_declines, NULL,
      no_work_size, gb_dots_run },
    // many rows
    { "unpacked_bf16", gb_unpacked_bf16_declines, gb_unpacked_bf16_level_declines,
      gb_blocked_work_size, gb_unpacked_bf16_run },
    { "blocked_bytes", gb_blocked_bytes_declines, NULL,
      gb_blocked_work_size, gb_blocked_bytes_run },
    { "blocked_f32", never_declines, NULL,
      gb_blocked_work_size, gb_blocked_f32_run },
};
// clang-format on

// NULL if the algorithm computes the product with these kernels, or with the kernels of every level
// if `kernels` is NULL. Otherwise the reason why it declines.
static const char * reason_against(const struct gb_product_algorithm * a, const struct gb_gemm * p,
    const struct gb_kernels * kernels, const struct gb_cpu_traits * traits) {
    const char * why = a->declines(p);
    if (why != NULL || a->level_declines == NULL) {
        return why;
    }
    return kernels != NULL ? a->level_declines(p, kernels, traits) : "not every level has it";
}

static const struct gb_product_algorithm * choose(const struct gb_gemm * p, const struct gb_kernels * kernels,
    const struct gb_cpu_traits * traits) {
    const struct gb_product_algorithm * a = algorithms;
    while (reason_against(a, p, kernels, traits) != NULL) {
        a++; // ends, because the last one computes any product
    }
    return a;
}

int gb_gemm_n_tasks(const struct gb_gemm * p, int n_threads) {
    const double groups = p->same_rows ? (double) p->n_groups : 1;
    const double tasks = (double) p->m * (double) p->k * (double) p->total * groups / GB_GRAIN;
    return tasks < 1 ? 1 : tasks < n_threads ? (int) tasks : n_threads;
}

size_t gb_gemm_work_size(const struct gb_gemm * p, int n_tasks) {
    size_t size = 0;
    for (const struct gb_product_algorithm * a = algorithms;; a++) { // ends as choose() does
        if (a->declines(p) == NULL) {
            size = GB_MAX(size, a->work_size(p, n_tasks));
            if (a->level_declines == NULL) {
                return size;
            }
        }
    }
}

// The size for at most `total` rows of all groups.
static size_t work_size_of(const struct gb_gemm * p, int64_t total, int n_tasks) {
    struct gb_gemm few = *p;
    few.total = GB_MIN(p->total, total);
    few.n_groups = GB_MIN(p->n_groups, few.total);
    return few.total > 0 ? gb_gemm_work_size(&few, n_tasks) : 0;
}

// Sizes grow with the number of rows, except at two limits. Up to these, each thread has its own
// memory for all rows.
size_t gb_gemm_work_size_up_to(const struct gb_gemm * p, int n_tasks) {
    const int64_t k = GB_MAX(p->k, 1), apart = (int64_t) (GB_APART_TERMS / ((double) GB_MAX(p->m, 1) * (double) k));
    const size_t all = gb_gemm_work_size(p, n_tasks), some = work_size_of(p, apart, n_tasks);
    return GB_MAX(GB_MAX(all, some), work_size_of(p, GB_PREPARE_TERMS / k, n_tasks));
}

void gb_gemm_run(const struct gb_cpu_call * call, const struct gb_gemm * p) {
    if (p->m <= 0 || p->total <= 0) {
        return;
    }
    choose(p, call->k, call->traits)->run(call, p);
}

const char * gb_gemm_candidate(const struct gb_gemm * p, const struct gb_kernels * kernels,
    const struct gb_cpu_traits * traits, int i, const char ** why) {
    if (i < 0 || i > choose(p, kernels, traits) - algorithms) {
        return NULL;
    }
    *why = reason_against(&algorithms[i], p, kernels, traits);
    return algorithms[i].name;
}

const char * gb_gemm_algorithm(const struct gb_gemm * p, const struct gb_kernels * kernels,
    const struct gb_cpu_traits * traits) {
    return choose(p, kernels, traits)->name;
}
