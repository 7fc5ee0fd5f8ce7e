// fuse/products.c - fuses products of the same row: queries, keys and values of a token, or gate and
// up. The norm that makes the row is fused, too.
//
//     [RMS_NORM [MUL] | NORM [MUL [ADD]]] {MUL_MAT {operators of product.c}}+
//
// Each thread normalizes the row for itself, so no thread waits for the norm. Thread 0 stores it.
//
// Neighbouring products whose weights have one type and shape form a set. A thread computes the same
// columns of all products of a set (gb_mul_mat_set). So an operator after one product may read
// results of earlier products of the set. Sets need no barrier between them, because each set has
// its own scratch memory.
#include "cpu/fuse/stages.h"
#include "cpu/ops/elements.h"
#include "cpu/ops/product/product.h"

enum { NORM_TERMS = 8192 }; // of the longest row that each thread normalizes; like GB_PREPARE_TERMS

struct part { // a product and the operators after it
    int first, n; // nodes
    int set;
};

struct products {
    int n_norm; // nodes of the norm
    const struct ggml_tensor * x; // the row that the products multiply
    struct part parts[GB_FUSE_MAX];
    int n_parts, n_sets;
    int length;
};

// ------------------------------------------------------------------------------------------------------------ matching

// True if the node applies a row to the result of `before`.
static bool applies(const struct ggml_tensor * node, enum ggml_op op, const struct ggml_tensor * before) {
    return node->op == op && node->src[0] == before && node->src[1] != before && gb_fuse_is_dense(node) &&
           gb_fuse_is_dense(node->src[1]) && gb_same_ne(node->src[1], node);
}

// The number of nodes that normalize one row.
static int norm_length(struct ggml_tensor * const * nodes, int n) {
    const struct ggml_tensor * norm = nodes[0];
    int length = 1;
    if ((norm->op != GGML_OP_NORM && norm->op != GGML_OP_RMS_NORM) || gb_rows(norm) != 1 || !gb_fuse_is_dense(norm) ||
        !gb_fuse_is_dense(norm->src[0])) {
        return 0;
    }
    length += length < n && applies(nodes[1], GGML_OP_MUL, norm);
    length += length == 2 && n > 2 && norm->op == GGML_OP_NORM && applies(nodes[2], GGML_OP_ADD, nodes[1]);
    return length;
}

static void add_part(struct products * p, struct ggml_tensor * const * nodes, int first, int n) {
    const struct part * before = p->n_parts > 0 ? &p->parts[p->n_parts - 1] : NULL;
    const bool joins =
        before != NULL && gb_mul_mat_is_like(nodes[before->first], nodes[first]) &&
        (p->n_parts < GB_MUL_MAT_SET_MAX || p->parts[p->n_parts - GB_MUL_MAT_SET_MAX].set != before->set);
    p->n_sets += !joins;
    p->parts[p->n_parts++] = (struct part){ first, n, p->n_sets - 1 };
    p->length = first + n;
}

static void parse(struct products * p, struct ggml_tensor * const * nodes, int n) {
    *p = (struct products){ .n_norm = norm_length(nodes, n) };
    p->x = p->n_norm > 0 ? nodes[p->n_norm - 1] : nodes[0]->src[1];
    for (int i = p->n_norm; i < n && nodes[i]->op == GGML_OP_MUL_MAT && nodes[i]->src[1] == p->x;) {
        if (!gb_mul_mat_has_row(nodes[i]) || !gb_fuse_is_dense(nodes[i])) {
            break;
        }
        const int length = GB_MAX(gb_fuse_stages_length(nodes + i, n - i, gb_fuse_is_row), 1);
        add_part(p, nodes, i, length);
        i += length;
    }
}

static struct gb_mul_mat_set set_of(const struct products * p, struct ggml_tensor * const * nodes, int number) {
    struct gb_mul_mat_set set = { .n = 0 };
    for (int i = 0; i < p->n_parts; i++) {
        if (p->parts[i].set == number) {
            set.nodes[set.n++] = nodes[p->parts[i].first];
        }
    }
    return set;
}

static int products_tasks(struct ggml_tensor * const * nodes, int n, int n_threads) {
    struct products p;
    int tasks = 1;
    parse(&p, nodes, n);
    for (int i = 0; i < p.n_sets; i++) {
        const struct gb_mul_mat_set set = set_of(&p, nodes, i);
        tasks = GB_MAX(tasks, gb_mul_mat_set_tasks(&set, n_threads));
    }
    return tasks;
}

// Small products run on one thread, together with the nodes around them (plan.c).
static int products_length(struct ggml_tensor * const * nodes, int n) {
    struct products p;
    parse(&p, nodes, n);
    const bool several = p.n_parts > 1 || (p.n_parts == 1 && p.n_norm > 0);
    const bool few = p.n_norm == 0 || p.x->ne[0] <= NORM_TERMS;
    return several && few && products_tasks(nodes, p.length, 2) > 1 ? p.length : 0;
}

// ------------------------------------------------------------------------------------------------------------- running

static size_t row_size(const struct products * p) {
    return p->n_norm > 0 ? gb_lines((size_t) p->x->ne[0] * sizeof(float)) : 0;
}

// Normalized rows of all threads, then equal parts for the sets.
static size_t products_work(struct ggml_tensor * const * nodes, int n, int n_tasks) {
    struct products p;
    size_t most = 0;
    parse(&p, nodes, n);
    for (int i = 0; i < p.n_sets; i++) {
        const struct gb_mul_mat_set set = set_of(&p, nodes, i);
        most = GB_MAX(most, gb_lines(gb_mul_mat_set_work(&set, n_tasks)));
    }
    return row_size(&p) * (size_t) n_tasks + most * (size_t) p.n_sets;
}

struct access { // memory that the step reads or writes
    uintptr_t begin, end;
    int set; // the set whose columns are in this memory; -1: any thread may access all of it
    bool writes;
};

struct accesses {
    struct access list[4 + 2 * GB_FUSE_MAX];
    int n;
    bool aligned;
};

static void add_access(struct accesses * a, const struct ggml_tensor * t, int set, bool writes) {
    const uintptr_t at = (uintptr_t) t->data;
    a->aligned = a->aligned && (t->type != GGML_TYPE_F32 || at % sizeof(float) == 0);
    a->list[a->n++] = (struct access){ at, at + ggml_nbytes(t), set, writes };
}

static void add_norm(struct accesses * a, const struct products * p, struct ggml_tensor * const * nodes) {
    add_access(a, p->x, -1, p->n_norm > 0);
    for (int i = 0; i < p->n_norm; i++) {
        add_access(a, nodes[i]->src[i > 0], -1, false);
    }
}

static void add_product(struct accesses * a, const struct part * part, struct ggml_tensor * const * nodes) {
    const struct gb_fuse_stages s = gb_fuse_stages_of(nodes + part->first, part->n, gb_fuse_is_row);
    add_access(a, nodes[part->first], part->set, true);
    add_access(a, nodes[part->first]->src[0], -1, false);
    for (int i = 0; i < s.n; i++) {
        const struct gb_fuse_stage * stage = &s.stages[i];
        if (stage->to != s.first) {
            add_access(a, stage->node, part->set, true);
        }
        if (stage->other != NULL) {
            add_access(a, stage->other, stage->shared ? -1 : part->set, false);
        }
    }
}

// Columns of a set are accessed in the order of the nodes, by one thread.
static bool is_ordered(const struct access * a, const struct access * b) {
    return a->end <= b->begin || b->end <= a->begin || (!a->writes && !b->writes) ||
           (a->set >= 0 && a->set == b->set && a->begin == b->begin && a->end == b->end);
}

static bool products_are_safe(struct ggml_tensor * const * nodes, int n) {
    struct products p;
    struct accesses a = { .aligned = true };
    bool safe = true;
    parse(&p, nodes, n);
    for (int i = 1; i < p.n_norm; i++) {
        safe = safe && nodes[i]->data == nodes[0]->data; // one pass computes the norm
    }
    add_norm(&a, &p, nodes);
    for (int i = 0; i < p.n_parts; i++) {
        add_product(&a, &p.parts[i], nodes);
    }
    for (int i = 0; i < a.n && safe; i++) {
        for (int j = 0; j < i && safe; j++) {
            safe = is_ordered(&a.list[i], &a.list[j]);
        }
    }
    return safe && a.aligned;
}

static bool products_leave_out(struct ggml_tensor * const * nodes, int n) {
    struct products p;
    bool some = false;
    parse(&p, nodes, n);
    for (int i = 0; i < p.n_parts && !some; i++) {
        const struct gb_fuse_stages s = gb_fuse_stages_of(nodes + p.parts[i].first, p.parts[i].n, gb_fuse_is_row);
        some = gb_fuse_stages_leave_out(&s);
    }
    return some;
}

// This thread's normalized row.
static const float * normalize(const struct gb_cpu_call * call, const struct products * p,
    struct ggml_tensor * const * nodes) {
    const float eps = gb_op_param_f32(nodes[0], 0), *x = nodes[0]->src[0]->data;
    const float * weight = p->n_norm > 1 ? nodes[1]->src[1]->data : NULL;
    float * y =
        call->ith == 0 ? p->x->data : (float *) (void *) ((char *) call->work + (size_t) call->ith * row_size(p));
    if (nodes[0]->op == GGML_OP_NORM) {
        call->k->norm_row_f32(p->x->ne[0], y, x, eps, weight, p->n_norm > 2 ? nodes[2]->src[1]->data : NULL);
    } else {
        call->k->rms_norm_row_f32(p->x->ne[0], y, x, eps, weight);
    }
    return y;
}

struct finished { // the stages of each product of a set
    struct gb_fuse_stages stages[GB_MUL_MAT_SET_MAX];
};

static void finish(const struct gb_cpu_call * call, const struct gb_gemm_epilogue * e, int64_t g, float * dst,
    int64_t column, int64_t n) {
    const struct finished * f = e->context;
    const size_t at = (size_t) ((const char *) dst - f->stages[g].first);
    gb_fuse_stages_run(call, &f->stages[g], at, column, n, gb_fuse_part_of_row, NULL);
}

static void run_products(const struct gb_cpu_call * call, struct ggml_tensor * const * nodes, int n) {
    struct products p;
    parse(&p, nodes, n);
    const size_t rows = row_size(&p) * (size_t) call->nth;
    const size_t size = (call->work_size - rows) / (size_t) p.n_sets & ~(size_t) 63;
    const char * x = p.n_norm > 0 ? (const char *) normalize(call, &p, nodes) : p.x->data;
    for (int number = 0; number < p.n_sets; number++) {
        struct gb_mul_mat_set set = set_of(&p, nodes, number);
        struct finished f;
        struct gb_cpu_call part = *call;
        int g = 0;
        for (int i = 0; i < p.n_parts; i++) {
            if (p.parts[i].set == number) {
                f.stages[g++] = gb_fuse_stages_of(nodes + p.parts[i].first, p.parts[i].n, gb_fuse_is_row);
            }
        }
        set.x = x;
        part.work = call->work != NULL ? (char *) call->work + rows + (size_t) number * size : NULL;
        part.work_size = size;
        gb_mul_mat_set_run(&part, &set, &(struct gb_gemm_epilogue){ finish, &f });
    }
}

const struct gb_fusion gb_fusion_products = {
    .length = products_length,
    .n_tasks = products_tasks,
    .work_size = products_work,
    .is_safe = products_are_safe,
    .run = run_products,
    .leaves_out = products_leave_out,
};
