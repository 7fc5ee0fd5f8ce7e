// top_k.c - TOP_K: the indices of the k largest elements of each row, in the order of a heap.
//
// The root of the heap is the worst of the best k so far. Blocks of a row whose largest element is
// no better are skipped. Of equal elements the first ones are taken, as in ARGSORT. NaN is worse
// than all numbers.
#include <math.h>

#include "cpu/ops/elements.h"

enum { BLOCK = 64 };

// True if element i leaves the heap before element j.
static bool is_worse(const float * x, int32_t i, int32_t j) {
    const float a = x[i], b = x[j];
    if (a != a || b != b) {
        return b == b || (a != a && i > j);
    }
    return a < b || (a == b && i > j);
}

// Moves the element at `at` down until no child is worse.
static void sink(const float * x, int32_t * heap, int64_t k, int64_t at) {
    const int32_t moving = heap[at];
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= k) {
            break;
        }
        if (child + 1 < k && is_worse(x, heap[child + 1], heap[child])) {
            child++;
        }
        if (!is_worse(x, heap[child], moving)) {
            break;
        }
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moving;
}

// False: the run is over.
static bool select_row(const struct gb_cpu_call * call, const float * x, int64_t n, int32_t * heap, int64_t k) {
    for (int64_t i = 0; i < k; i++) {
        heap[i] = (int32_t) i;
    }
    for (int64_t i = k / 2 - 1; i >= 0; i--) {
        sink(x, heap, k, i);
    }
    for (int64_t i = k; i < n; i += BLOCK) {
        const int64_t end = GB_MIN(n, i + BLOCK);
        int64_t taken = 0;
        if (!(call->k->max_f32(end - i, x + i) <= x[heap[0]])) { // also if one of the elements is NaN
            for (int64_t j = i; j < end; j++) {
                if (is_worse(x, heap[0], (int32_t) j)) {
                    heap[0] = (int32_t) j;
                    sink(x, heap, k, 0);
                    taken++;
                }
            }
        }
        if (gb_cpu_stopped(call, 16 + 64 * taken)) {
            return false;
        }
    }
    return true;
}

// Converts each row's values once. Threads share the rows.
static void run_top_k(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const struct ggml_tensor * a = node->src[0];
    const int64_t n = a->ne[0], k = node->ne[0];
    float * values = gb_my_floats(call, n + k);
    int32_t * heap = (int32_t *) (void *) (values + n);
    int64_t first, last;
    gb_cpu_share(call, gb_rows(a), &first, &last);
    for (int64_t r = first; r < last; r++) {
        const struct gb_row at = gb_row_at(a, r);
        if (!select_row(call, gb_in(call->k, a, gb_row_of(a, at), n, values), n, heap, k)) {
            return;
        }
        gb_move(sizeof(int32_t), k, gb_row_of(node, at), node->nb[0], (const char *) heap, sizeof(int32_t));
        if (gb_cpu_stopped(call, 20 * k)) {
            return;
        }
    }
}

static size_t top_k_work(const struct ggml_tensor * node, int n_tasks) {
    return gb_floats_size(node->src[0]->ne[0] + node->ne[0], n_tasks);
}

static const char * top_k_unsupported(const struct ggml_tensor * node) {
    const struct ggml_tensor * a = node->src[0];
    if (node->type != GGML_TYPE_I32) {
        return "the result must be i32";
    }
    if (a->ne[0] > INT32_MAX) {
        return "rows are too long for i32 indices";
    }
    return gb_is_float(a->type) ? NULL : "source 0 must be f32, f16 or bf16";
}

const struct gb_cpu_op gb_cpu_op_top_k = {
    .unsupported = top_k_unsupported, .n_tasks = gb_tasks_src_rows, .work_size = top_k_work, .run = run_top_k
};
