// experts.c - MUL_MAT_ID and MUL_MAT_EXPERTS: products in which each row chooses its matrix, an expert.
//
// A pair is a row of the result: a token with one expert. MUL_MAT_ID has a list of matrices, and
// one pair for each row of b. MUL_MAT_EXPERTS has a stack of matrices, and several pairs for each
// token.
//
// Thread 0 sorts the pairs by expert into the scratch memory (a counting sort, so that the order
// within an expert stays). Matrices of experts without pairs are not read. The experts are then
// divided into classes by their number of rows, because the engine has different algorithms for few
// and for many rows. Each class is one product, whose groups are its experts.
#include "cpu/ops/elements.h"
#include "cpu/ops/product/experts.h"
#include "cpu/ops/product/tuning.h"
#include "tensor/op_info.h"

// The largest number of rows of an expert in each class. The engine chooses an algorithm for the largest number.
enum { N_CLASSES = 4 };
static const int64_t class_rows[N_CLASSES] = { GB_BYTE_DOTS_ROWS, GB_INTERLEAVED_ROWS, GB_QUANTIZED_PAIRS_ROWS - 1,
    INT64_MAX };

static bool is_stack(const struct ggml_tensor * node) { return node->op == GGML_OP_MUL_MAT_EXPERTS; }

// The matrices, or the first of them.
static const struct ggml_tensor * matrices_of(const struct ggml_tensor * node) {
    return node->src[is_stack(node) ? 0 : 2];
}

static const struct ggml_tensor * ids_of(const struct ggml_tensor * node) { return node->src[is_stack(node) ? 2 : 0]; }

static int64_t count_experts(const struct ggml_tensor * node) {
    return is_stack(node) ? node->src[0]->ne[2] : gb_op_param_i32(node, 1);
}

// ------------------------------------------------------------------------------------------------------------- routing

// At the start of the scratch memory.
struct routing {
    bool valid; // all ids are in range
    int64_t n_groups[N_CLASSES]; // experts of each class
    // For each class, with space for all active experts: the numbers of the experts, and the ranges
    // of their pairs. `pairs` has the pairs of all classes, `first` counts those of one class.
    int64_t *expert[N_CLASSES], *first[N_CLASSES], *pairs[N_CLASSES];
};

// At most as many experts as pairs are active.
static int64_t max_active(const struct ggml_tensor * node) { return GB_MIN(count_experts(node), gb_rows(node)); }

// In this order: struct routing; count (then place) and class of each expert; expert and first of
// each class; pairs.
static size_t routing_size(const struct ggml_tensor * node) {
    const int64_t active = max_active(node);
    const int64_t numbers = 2 * count_experts(node) + N_CLASSES * (2 * active + 1) + gb_rows(node);
    return gb_lines(sizeof(struct routing)) + gb_lines((size_t) numbers * sizeof(int64_t));
}

struct experts {
    struct gb_gemm gemm;
    const struct ggml_tensor * node;
    const int64_t *expert, *pairs; // of the class
};

static struct gb_gemm_matrix expert_matrix(const struct gb_gemm * p, int64_t g) {
    const struct experts * q = p->context;
    const struct ggml_tensor * a = matrices_of(q->node);
    const int64_t e = q->expert[g];
    if (is_stack(q->node)) {
        return (struct gb_gemm_matrix){ gb_row_ptr(a, 0, e, 0), a->nb[1] };
    }
    a = q->node->src[2 + e];
    return (struct gb_gemm_matrix){ a->data, a->nb[1] };
}

// The rows of a token in b repeat over its experts.
static struct gb_gemm_row pair_row(const struct gb_gemm * p, int64_t g, int64_t r) {
    const struct experts * q = p->context;
    const struct ggml_tensor * b = q->node->src[1];
    const struct gb_row at = gb_row_at(q->node, q->pairs[p->first[g] + r]);
    return (struct gb_gemm_row){ gb_row_ptr(b, at.i1 % b->ne[1], at.i2, at.i3),
        (float *) (void *) gb_row_of(q->node, at) };
}

static void describe(struct experts * q, const struct ggml_tensor * node, int class) {
    const struct ggml_tensor *a = matrices_of(node), *b = node->src[1];
    *q = (struct experts){ .node = node };
    q->gemm = (struct gb_gemm){
        .m = a->ne[1],
        .k = a->ne[0],
        .n_groups = max_active(node),
        .rows = GB_MIN(gb_rows(node), class_rows[class]),
        .total = gb_rows(node),
        .w = { a->type, a->nb[0], false },
        .x = { b->type, b->nb[0], false },
        .activations = gb_activations_of(gb_op_param_i32(node, is_stack(node) ? 0 : 2)),
        .w_of = expert_matrix,
        .row_of = pair_row,
    };
}

const struct gb_gemm * gb_experts_describe(const struct ggml_tensor * node, struct gb_gemm * gemm) {
    struct experts q;
    int class = 0;
    while (gb_rows(node) > class_rows[class]) {
        class++;
    }
    describe(&q, node, class);
    *gemm = q.gemm;
    return gemm;
}

static int32_t expert_of_pair(const struct ggml_tensor * node, int64_t pair) {
    const struct ggml_tensor * ids = ids_of(node);
    if (is_stack(node)) {
        return gb_get_i32((const char *) ids->data + (size_t) (pair % node->ne[1]) * ids->nb[0] +
                          (size_t) (pair / node->ne[1]) * ids->nb[1]);
    }
    // all batches have the same ids
    return gb_get_i32(gb_row_ptr(ids, pair % node->ne[1], 0, 0) + (size_t) gb_op_param_i32(node, 0) * ids->nb[0]);
}

static void fail_id(const struct gb_cpu_call * call, const struct ggml_tensor * node, int64_t pair, int32_t e) {
    const int64_t last = count_experts(node) - 1;
    if (is_stack(node)) {
        gb_cpu_fail(call, node, GGML_STATUS_INVALID_ARGUMENT,
            "expert %d at [%lld, %lld] of ids is out of range 0..%lld", (int) e, (long long) (pair % node->ne[1]),
            (long long) (pair / node->ne[1]), (long long) last);
    } else {
        gb_cpu_fail(call, node, GGML_STATUS_INVALID_ARGUMENT, "ids[%d] of row %lld is %d, must be from 0 to %lld",
            (int) gb_op_param_i32(node, 0), (long long) pair, (int) e, (long long) last);
    }
}

enum { LOOK = 4096 }; // pairs between which the first thread may stop

// Counts the pairs of each expert. False: an id is out of range, or the run is over.
static bool count_pairs(const struct gb_cpu_call * call, const struct ggml_tensor * node, int64_t * count) {
    const int64_t n = count_experts(node);
    memset(count, 0, (size_t) n * sizeof(*count));
    for (int64_t pair = 0; pair < gb_rows(node); pair++) {
        const int32_t e = expert_of_pair(node, pair);
        if (e < 0 || e >= n) {
            fail_id(call, node, pair, e);
            return false;
        }
        count[e]++;
        if (pair % LOOK == LOOK - 1 && gb_cpu_stopped(call, 2 * LOOK)) {
            return false;
        }
    }
    return true;
}

static int class_of(int64_t rows) {
    int class = 0;
    while (rows > class_rows[class]) {
        class++;
    }
    return class;
}

// Divides the scratch memory and sorts the pairs.
static void route(const struct gb_cpu_call * call, const struct ggml_tensor * node, struct routing * r) {
    const int64_t n = count_experts(node), active = max_active(node), total = gb_rows(node);
    int64_t * count = (int64_t *) (void *) ((char *) call->work + gb_lines(sizeof(*r)));
    int64_t *place = count + n, *numbers = place + n;
    int64_t size[N_CLASSES] = { 0 }; // pairs of each class
    *r = (struct routing){ .valid = count_pairs(call, node, count) };
    if (!r->valid) {
        return;
    }
    for (int c = 0; c < N_CLASSES; c++, numbers += 2 * active + 1) {
        r->expert[c] = numbers;
        r->first[c] = numbers + active;
    }
    for (int64_t e = 0; e < n; e++) {
        if (count[e] > 0) {
            const int c = class_of(count[e]);
            r->first[c][r->n_groups[c]] = size[c];
            r->expert[c][r->n_groups[c]++] = e;
            place[e] = size[c];
            size[c] += count[e];
        }
    }
    for (int c = 0; c < N_CLASSES; c++, numbers += size[c - 1]) {
        r->pairs[c] = numbers;
        r->first[c][r->n_groups[c]] = size[c];
    }
    for (int64_t pair = 0; pair < total; pair++) {
        const int32_t e = expert_of_pair(node, pair);
        r->pairs[class_of(count[e])][place[e]++] = pair;
    }
}

// ------------------------------------------------------------------------------------------------------------- the ops

static const char * mul_mat_id_unsupported(const struct ggml_tensor * node) {
    const struct ggml_tensor * a = node->src[2];
    const int n_as = gb_op_param_i32(node, 1);
    for (int i = 0; i < n_as; i++) {
        const struct ggml_tensor * e = node->src[2 + i];
        if (e->type != a->type || e->nb[0] != a->nb[0]) {
            return "all matrices must have one type and element stride";
        }
    }
    return gb_product_unsupported(a, node->src[1], node);
}

static const char * mul_mat_experts_unsupported(const struct ggml_tensor * node) {
    if (node->src[2]->type != GGML_TYPE_I32) {
        return "source 2 must be i32";
    }
    return gb_product_unsupported(node->src[0], node->src[1], node);
}

static int n_tasks(const struct ggml_tensor * node, int n_threads) {
    struct experts q;
    describe(&q, node, N_CLASSES - 1);
    return gb_gemm_n_tasks(&q.gemm, n_threads);
}

static size_t work_size(const struct ggml_tensor * node, int tasks) {
    size_t size = 0;
    for (int c = 0; c < N_CLASSES; c++) {
        struct experts q;
        describe(&q, node, c);
        size = GB_MAX(size, gb_gemm_work_size_up_to(&q.gemm, tasks));
    }
    return routing_size(node) + size;
}

// Runs the experts of a class. The barrier lets other threads finish before their scratch memory is
// used again.
static bool run_class(const struct gb_cpu_call * call, const struct ggml_tensor * node, const struct routing * r,
    int c) {
    struct experts q;
    describe(&q, node, c);
    q.expert = r->expert[c];
    q.pairs = r->pairs[c];
    q.gemm.n_groups = r->n_groups[c];
    q.gemm.first = r->first[c];
    q.gemm.total = r->first[c][r->n_groups[c]];
    q.gemm.context = &q;
    struct gb_cpu_call rest = *call;
    rest.work = (char *) call->work + routing_size(node);
    rest.work_size = call->work_size - routing_size(node);
    gb_gemm_run(&rest, &q.gemm);
    return gb_cpu_barrier(call);
}

static void run(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    struct routing * r = call->work;
    if (gb_is_empty(node)) {
        return;
    }
    if (call->ith == 0) {
        route(call, node, r);
    }
    if (!gb_cpu_barrier(call) || !r->valid) {
        return;
    }
    for (int c = 0; c < N_CLASSES; c++) {
        if (r->n_groups[c] > 0 && !run_class(call, node, r, c)) {
            return;
        }
    }
}

const struct gb_cpu_op gb_cpu_op_mul_mat_id = {
    .unsupported = mul_mat_id_unsupported, .n_tasks = n_tasks, .work_size = work_size, .run = run
};
const struct gb_cpu_op gb_cpu_op_mul_mat_experts = {
    .unsupported = mul_mat_experts_unsupported, .n_tasks = n_tasks, .work_size = work_size, .run = run
};
