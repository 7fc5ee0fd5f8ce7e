// limits.c - measures the peak rates of the machine (limits.h) with the kernels of
// kernels/limits.tpl.h.
//
// All threads of a team start together and work until their time is over. Each uses its own memory.
// The rate of a thread counts only the time in which it worked. The result is the sum of these
// rates.
#include "cpu/limits.h"

#include <string.h>

#include "base/env.h"
#include "base/mem.h"
#include "base/status.h"
#include "cpu/threadpool.h"

#define BATCH_STEPS 2000
#define BATCH_BYTES ((size_t) 1 << 20)  // between two reads of the clock
#define ALIGNMENT 4096

// Shared by all threads of a measurement. Each thread writes only its own entry of `rates`.
struct measurement {
    struct gb_cpu_pool * pool;
    const struct gb_kernels * kernels;
    enum gb_cpu_limit what;
    char * memory; // `stride` bytes for each thread; NULL: not needed
    size_t bytes, stride;
    int64_t ns;
    int64_t (*clock)(void);
    double * rates;
};

// READ and COPY need memory. The other limits work in registers.
static bool is_memory(enum gb_cpu_limit what) { return what == GB_CPU_LIMIT_READ || what == GB_CPU_LIMIT_COPY; }

// Does enough work for the clock to measure. Returns the operations, or the bytes of READ and COPY.
static double one_batch(const struct measurement * m, char * memory) {
    const struct gb_kernels * k = m->kernels;
    switch (m->what) {
        case GB_CPU_LIMIT_F32: return (double) k->limit_f32(BATCH_STEPS);
        case GB_CPU_LIMIT_BYTES: return (double) k->limit_bytes(BATCH_STEPS);
        case GB_CPU_LIMIT_BF16: return (double) k->limit_bf16(BATCH_STEPS);
        default: break;
    }
    const size_t times = GB_MAX(BATCH_BYTES / m->bytes, (size_t) 1), half = m->bytes / 2;
    for (size_t i = 0; i < times; i++) {
        if (m->what == GB_CPU_LIMIT_READ) {
            k->limit_read((int64_t) (m->bytes / sizeof(float)), (const float *) memory);
        } else {
            k->limit_copy((int64_t) (half / sizeof(float)), (float *) (memory + half), (const float *) memory);
        }
    }
    return (double) m->bytes * (double) times;
}

// The work of each thread. It touches its memory first, so that the memory belongs to its NUMA
// node, then works until the time is over.
static void measure_part(void * arg, int ith, int nth) {
    const struct measurement * m = arg;
    char * memory = m->memory == NULL ? NULL : m->memory + (size_t) ith * m->stride;
    if (memory != NULL) {
        memset(memory, 0, m->stride);
    }
    one_batch(m, memory);
    gb_cpu_pool_barrier(m->pool, GB_CPU_BARRIER_TEAM, nth, NULL, NULL);
    const int64_t start = m->clock();
    int64_t now = start;
    double work = 0;
    while (now - start < m->ns || now == start) {
        work += one_batch(m, memory);
        now = m->clock();
    }
    m->rates[ith] = work / ((double) (now - start) * 1e-9);
}

// The sum of the threads' rates. Returns 0 and reports the failure if threads or memory are not
// available.
static double run_measurement(struct measurement * m, int n_threads) {
    double total = 0;
    m->rates = gb_calloc((size_t) n_threads, sizeof(double));
    m->pool = m->rates == NULL ? NULL : gb_cpu_pool_borrow(n_threads);
    if (m->pool != NULL && gb_cpu_pool_run(m->pool, n_threads, measure_part, NULL, NULL, m) == GGML_STATUS_SUCCESS) {
        for (int i = 0; i < n_threads; i++) {
            total += m->rates[i];
        }
    }
    gb_cpu_pool_give_back(m->pool);
    gb_free(m->rates);
    return total;
}

double gb_cpu_measure_limit(enum gb_cpu_limit what, const char * level, size_t bytes, int n_threads, int64_t ns,
    bool processor_time) {
    GB_FAIL_IF_RETURNING((int) what < 0 || what >= GB_CPU_LIMIT_COUNT, 0, GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'what': there is no limit %d", __func__, (int) what);
    GB_FAIL_IF_RETURNING(n_threads < 1 || n_threads > GB_CPU_MAX_THREADS, 0, GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'n_threads': needs 1 to %d, has %d", __func__, GB_CPU_MAX_THREADS, n_threads);
    GB_FAIL_IF_RETURNING(is_memory(what) && bytes < 256, 0, GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'bytes': needs at least 256, has %zu", __func__, bytes);
    const struct gb_level * found = level != NULL ? gb_level_find(level) : gb_level_default();
    if (found == NULL) {
        return 0;
    }
    struct measurement m = { .kernels = found->kernels, .what = what, .bytes = bytes / 128 * 128, .ns = ns };
    m.clock = processor_time ? gb_thread_time_ns : gb_time_ns;
    if (is_memory(what)) {
        size_t total;
        GB_FAIL_IF_RETURNING(!gb_pad_size(m.bytes, ALIGNMENT, &m.stride) ||
                                 !gb_mul_size(m.stride, (size_t) n_threads, &total),
            0, GGML_STATUS_ALLOC_FAILED, "%s: %d times %zu bytes are too many", __func__, n_threads, bytes);
        m.memory = gb_large_alloc(ALIGNMENT, total);
        if (m.memory == NULL) {
            return 0;
        }
    }
    const double rate = run_measurement(&m, n_threads);
    gb_aligned_free(m.memory);
    return rate;
}
