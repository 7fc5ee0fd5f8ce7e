// two_bytes.c - products of quantized weights with activations of two bytes (GGML_PREC_F16).
//
// The algorithms that round rows to bytes multiply two rows for each row: the row itself, and its
// remainder, which is what rounding the row to bytes lost. The epilogue adds both results. So an
// activation keeps 15 bits, relative to the largest in its group. The weights are read and unpacked
// once for both rows.
//
// Row 2 r of a group is row r of the caller, with its results. Row 2 r + 1 is its remainder, in
// scratch memory. An algorithm completes both rows of a pair for the same columns before it applies
// the epilogue to the second: panels have an even number of rows.
#include "cpu/ops/product/algorithm.h"

struct pairs {
    const struct gb_gemm * p; // as the caller described it
    float * x; // remainders, total times k
    float * dst; // their results, total times m
};

// The scratch memory of all threads.
struct layout {
    size_t first; // bytes of one thread's `first` array
    size_t x; // bytes of one copy of the remainders
    size_t copies; // 1, or one for each thread
    size_t dst; // bytes of the results
};

static struct layout layout_of(const struct gb_gemm * p, int nth) {
    const size_t total = (size_t) p->total;
    return (struct layout){
        .first = gb_lines((size_t) (p->n_groups + 1) * sizeof(int64_t)),
        .x = gb_lines(total * (size_t) p->k * sizeof(float)),
        .copies = gb_gemm_prepares_alone(p, nth) ? (size_t) nth : 1,
        .dst = gb_lines(total * (size_t) p->m * sizeof(float)),
    };
}

static size_t layout_size(const struct layout * l, int nth) {
    return (size_t) nth * l->first + l->copies * l->x + l->dst;
}

static struct gb_gemm_matrix matrix_of(const struct gb_gemm * p, int64_t g) {
    const struct pairs * q = p->context;
    return q->p->w_of(q->p, g);
}

static struct gb_gemm_row row_of(const struct gb_gemm * p, int64_t g, int64_t r) {
    const struct pairs * q = p->context;
    if (r % 2 == 0) {
        return q->p->row_of(q->p, g, r / 2);
    }
    const int64_t flat = gb_gemm_first_row(q->p, g) + r / 2;
    return (struct gb_gemm_row){ (const char *) (q->x + flat * q->p->k), q->dst + flat * q->p->m };
}

// Adds results of a remainder to those of its row.
static void add(const struct gb_cpu_call * call, const struct gb_gemm_epilogue * e, int64_t g, float * dst,
    int64_t column, int64_t n) {
    const struct pairs * q = e->context;
    const struct gb_gemm * p = q->p;
    const uintptr_t from = (uintptr_t) q->dst, at = (uintptr_t) dst;
    if (at < from || at >= from + (size_t) (p->total * p->m) * sizeof(float)) {
        return; // a row of the caller
    }
    const int64_t r = (int64_t) ((at - from) / sizeof(float)) / p->m - gb_gemm_first_row(p, g);
    float * const y = p->row_of(p, g, r).dst + column;
    for (int64_t i = 0; i < n; i++) {
        y[i] += dst[i];
    }
    if (p->epilogue != NULL) {
        p->epilogue->finish(call, p->epilogue, g, y, column, n);
    }
}

// The product of twice as many rows, without its functions and data.
static struct gb_gemm doubled(const struct gb_gemm * p) {
    struct gb_gemm two = *p;
    two.rows *= 2;
    two.total *= 2;
    two.activations = GB_ACTIVATIONS_BYTES;
    two.run = 0;
    return two;
}

// x minus what the kernels round it to, of k terms.
static void remainder_of(const struct gb_cpu_call * call, int64_t k, float * y, const float * x) {
    enum { PIECE = 512 };
    _Alignas(64) int8_t q[PIECE];
    _Alignas(64) float d[PIECE / 32], s[PIECE / 32];
    for (int64_t k0 = 0, n; k0 < k; k0 += n) {
        n = GB_MIN(k - k0, PIECE);
        call->k->quantize_q8(&(struct gb_quantize_q8){ .k = n, .step = 1, .q = q, .d = d, .s = s, .x = x + k0 });
        for (int64_t i = 0; i < n; i++) {
            y[k0 + i] = x[k0 + i] - d[i / 32] * (float) q[i];
        }
    }
}

static void make_remainders(const struct gb_cpu_call * call, const struct gb_gemm * p, float * x) {
    int64_t i = 0, last = p->total;
    if (!gb_gemm_prepares_alone(p, call->nth)) {
        gb_cpu_share(call, p->total, &i, &last);
    }
    for (; i < last; i++) {
        int64_t g, r;
        gb_gemm_locate(p, i, &g, &r);
        remainder_of(call, p->k, x + i * p->k, (const float *) (const void *) p->row_of(p, g, r).x);
        if (gb_cpu_stopped(call, p->k)) {
            return;
        }
    }
}

const char * gb_two_bytes_declines(const struct gb_gemm * p) {
    struct gb_gemm bytes = *p;
    bytes.activations = GB_ACTIVATIONS_BYTES;
    return p->activations != GB_ACTIVATIONS_TWO_BYTES                 ? "activations are not to have two bytes"
           : (double) p->total * (double) p->m > GB_TWO_BYTES_RESULTS ? "there are many results"
                                                                      : gb_bytes_decline(&bytes);
}

size_t gb_two_bytes_work_size(const struct gb_gemm * p, int n_tasks) {
    const struct gb_gemm two = doubled(p);
    const struct layout l = layout_of(p, n_tasks);
    return layout_size(&l, n_tasks) + gb_gemm_work_size_up_to(&two, n_tasks);
}

void gb_two_bytes_run(const struct gb_cpu_call * call, const struct gb_gemm * p) {
    const struct layout l = layout_of(p, call->nth);
    char * const work = call->work;
    char * const x = work + (size_t) call->nth * l.first;
    struct pairs pairs = { .p = p, .dst = (float *) (void *) (x + l.copies * l.x) };
    pairs.x = (float *) (void *) (x + (l.copies > 1 ? (size_t) call->ith * l.x : 0));
    make_remainders(call, p, pairs.x);
    if (!gb_gemm_is_prepared(call, p)) {
        return;
    }
    const struct gb_gemm_epilogue epilogue = { .finish = add, .context = &pairs };
    struct gb_gemm two = doubled(p);
    two.epilogue = &epilogue;
    two.context = &pairs;
    two.w_of = matrix_of;
    two.row_of = row_of;
    if (p->first != NULL) {
        int64_t * const first = (int64_t *) (void *) (work + (size_t) call->ith * l.first);
        for (int64_t g = 0; g <= p->n_groups; g++) {
            first[g] = 2 * p->first[g];
        }
        two.first = first;
    }
    struct gb_cpu_call inner = *call;
    inner.work = work + layout_size(&l, call->nth);
    inner.work_size -= layout_size(&l, call->nth);
    gb_gemm_run(&inner, &two);
}
