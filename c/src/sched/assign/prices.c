// prices.c - the user's costs: checks and copies them, computes prices of a graph's nodes, and the
// prediction.
//
// The time of a node is a launch, plus the maximum of its traffic and its arithmetic; both follow
// from shapes. A plan that exceeds a memory limit is made again with a price on every byte of that
// backend, and the price doubles until the plan fits (make.c calls gb_sched_raise_prices). If no
// price helps, backends are filled one after the other (fill.c), up to their limits and then up to
// smaller shares.
#include <math.h>
#include <string.h>

#include "sched/assign/assign.h"
#include "sched/assign/problem.h"
#include "sched/input/input.h"
#include "sched/sched.h"
#include "sched/types.h"
#include "tensor/work.h"

enum { MAX_STATES = 300000 }; // of the frontier search: less than half a second
enum { PRICED = 40, FILLED = 12 }; // rounds of raising prices, then of filling backends

struct gb_costs { // one block, with the arrays that the table points to
    struct ggml_backend_op_cost * ops;
    struct ggml_backend_copy_cost * copies;
    size_t n_ops, n_copies;
    size_t * max_bytes; // per backend; NULL: no limits
    double split_us, weight_runs;
};

// ------------------------------------------------------------------------------------------------------ price of an op

enum ggml_backend_cost_class ggml_backend_cost_class_of(enum ggml_op op) {
    static const unsigned char class_of[GGML_OP_COUNT] = {
#define GB_OP(id, stem, sources, work, cost, ...) [GGML_OP_##id] = GGML_BACKEND_COST_##cost,
#include "tensor/ops.def"
    };
    return (unsigned) op < GGML_OP_COUNT ? (enum ggml_backend_cost_class) class_of[op] : GGML_BACKEND_COST_ANY;
}

// Finds the most specific entry: class and type, class, type, any.
static const struct ggml_backend_op_cost * entry_for(const struct gb_costs * costs, int backend, int op_class,
    int type) {
    const struct ggml_backend_op_cost * best = NULL;
    int best_score = -1;
    for (size_t k = 0; k < costs->n_ops; k++) {
        const struct ggml_backend_op_cost * e = &costs->ops[k];
        const bool fits = e->backend == backend && (e->op_class == GGML_BACKEND_COST_ANY || e->op_class == op_class) &&
                          (e->type < 0 || e->type == type);
        const int score = 2 * (e->op_class != GGML_BACKEND_COST_ANY) + (e->type >= 0);
        if (fits && score > best_score) {
            best = e;
            best_score = score;
        }
    }
    return best;
}

// The price of a node on a backend from the most specific entry, in units of cost.h.
static double units_of(const struct gb_costs * costs, int backend, const struct ggml_tensor * t) {
    const int type = t->src[0] ? (int) t->src[0]->type : (int) t->type;
    const struct ggml_backend_op_cost * e = entry_for(costs, backend, ggml_backend_cost_class_of(t->op), type);
    const struct gb_work w = gb_work_of(t);
    const double work = fmax((w.read + w.written) / e->bytes_per_us, w.flops / e->flops_per_us);
    return (e->launch_us + work) * 1000.0 * GB_COST_UNIT;
}

// ----------------------------------------------------------------------------------------------------------- the table

static bool is_time(double us) { return us >= 0 && us <= 1e15; }

// Every backend needs an entry for any class and type, so that each node has a price everywhere.
static enum ggml_status check_ops(const struct ggml_backend_sched * s, const struct ggml_backend_cost_table * table) {
    const char * func = "ggml_backend_sched_set_costs";
    bool any[GB_COST_BACKENDS_MAX] = { false };
    for (size_t k = 0; k < table->n_ops; k++) {
        const struct ggml_backend_op_cost * e = &table->ops[k];
        const bool good = e->backend >= 0 && e->backend < s->n_backends && e->op_class >= GGML_BACKEND_COST_ANY &&
                          e->op_class <= GGML_BACKEND_COST_WINDOWS && e->type >= -1 && e->type < GGML_TYPE_COUNT &&
                          is_time(e->launch_us) && e->bytes_per_us > 0 && e->flops_per_us > 0;
        GB_FAIL_IF(!good, GGML_STATUS_INVALID_ARGUMENT,
            "%s: ops[%zu]: backend %d of %d, class %d, type %d, launch %g us, %g bytes and %g flops a us: "
            "backend, class and type must exist, the launch be at least 0, and rates above 0",
            func, k, e->backend, s->n_backends, e->op_class, e->type, e->launch_us, e->bytes_per_us, e->flops_per_us);
        any[e->backend] |= e->op_class == GGML_BACKEND_COST_ANY && e->type < 0;
    }
    for (int b = 0; b < s->n_backends; b++) {
        GB_FAIL_IF(!any[b], GGML_STATUS_INVALID_ARGUMENT,
            "%s: argument 'table': backend %d, %s, has no entry for ops of any class and type", func, b,
            s->devices[b].name);
    }
    return GGML_STATUS_SUCCESS;
}

// The user's entry for copies between two backends; NULL: none.
static const struct ggml_backend_copy_cost * copy_entry(const struct ggml_backend_copy_cost * copies, size_t n,
    int from, int to) {
    for (size_t k = 0; k < n; k++) {
        if (copies[k].from == from && copies[k].to == to) {
            return &copies[k];
        }
    }
    return NULL;
}

// Every pair of different backends needs an entry, because any node may need a copy.
static enum ggml_status check_copies(const struct ggml_backend_sched * s,
    const struct ggml_backend_cost_table * table) {
    const char * func = "ggml_backend_sched_set_costs";
    for (int from = 0; from < s->n_backends; from++) {
        for (int to = 0; to < s->n_backends; to++) {
            const struct ggml_backend_copy_cost * e = copy_entry(table->copies, table->n_copies, from, to);
            GB_FAIL_IF(from != to && (e == NULL || !is_time(e->launch_us) || !(e->bytes_per_us > 0)),
                GGML_STATUS_INVALID_ARGUMENT,
                "%s: argument 'table': needs an entry with launch >= 0 and rate > 0 for copies from backend %d to %d",
                func, from, to);
        }
    }
    return GGML_STATUS_SUCCESS;
}

// Checks what the solver relies on: every price exists and is not negative.
static enum ggml_status check_table(const struct ggml_backend_sched * s, const struct ggml_backend_cost_table * table) {
    const char * func = "ggml_backend_sched_set_costs";
    GB_FAIL_IF(s->n_backends > GB_COST_BACKENDS_MAX, GGML_STATUS_UNSUPPORTED, "%s: needs at most %d backends, has %d",
        func, GB_COST_BACKENDS_MAX, s->n_backends);
    GB_FAIL_IF((table->n_ops > 0 && !table->ops) || (table->n_copies > 0 && !table->copies),
        GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'table': entries are NULL", func);
    GB_FAIL_IF(!is_time(table->split_us) ||
                   !(table->weight_runs == 0 || (table->weight_runs >= 1 && table->weight_runs < 1e15)),
        GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'table': needs split_us >= 0 and weight_runs 0 or >= 1, has %g and %g", func, table->split_us,
        table->weight_runs);
    GB_TRY(check_ops(s, table));
    return check_copies(s, table);
}

void gb_costs_free(struct gb_costs * costs) {
    if (costs) {
        gb_free(costs->ops);
        gb_free(costs->copies);
        gb_free(costs->max_bytes);
        gb_free(costs);
    }
}

// NULL: no memory. An empty array also has an address.
static void * copy_of(const void * data, size_t n, size_t size) {
    void * copy = gb_calloc(n, size);
    if (copy && n > 0) {
        memcpy(copy, data, n * size);
    }
    return copy;
}

// The copy lets the user free the table.
enum ggml_status gb_costs_new(const struct ggml_backend_sched * s, const struct ggml_backend_cost_table * table,
    struct gb_costs ** costs) {
    GB_TRY(check_table(s, table));
    struct gb_costs * c = GB_NEW(struct gb_costs);
    if (c == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    *c = (struct gb_costs){
        .ops = copy_of(table->ops, table->n_ops, sizeof(*table->ops)),
        .copies = copy_of(table->copies, table->n_copies, sizeof(*table->copies)),
        .n_ops = table->n_ops,
        .n_copies = table->n_copies,
        .split_us = table->split_us,
        .weight_runs = fmax(table->weight_runs, 1),
    };
    if (table->max_bytes) {
        c->max_bytes = copy_of(table->max_bytes, (size_t) s->n_backends, sizeof(*table->max_bytes));
    }
    if (!c->ops || !c->copies || (table->max_bytes && !c->max_bytes)) {
        gb_costs_free(c);
        return GGML_STATUS_ALLOC_FAILED;
    }
    *costs = c;
    return GGML_STATUS_SUCCESS;
}

// ------------------------------------------------------------------------------------------------------- the placement

// Prices of one graph, as the problem uses them.
struct prices { // owned
    double *node, *copy, *copy_per_byte;
    struct gb_cost_prices view;
};

static void free_prices(struct prices * x) {
    gb_free(x->node);
    gb_free(x->copy);
    gb_free(x->copy_per_byte);
}

// Prices of all nodes on all backends, and of copies. Nodes that compute nothing cost nothing.
static bool fill_prices(const struct ggml_backend_sched * s, const struct gb_sched_input * in, const double * per_byte,
    struct prices * x) {
    const size_t n = (size_t) s->n_backends;
    x->node = gb_calloc((size_t) in->n_nodes, n * sizeof(*x->node));
    x->copy = gb_calloc(n * n, sizeof(*x->copy));
    x->copy_per_byte = gb_calloc(n * n, sizeof(*x->copy_per_byte));
    if (!x->node || !x->copy || !x->copy_per_byte) {
        return false;
    }
    for (int i = 0; i < in->n_nodes; i++) {
        for (size_t b = 0; b < n && in->ids.data[i].computes; b++) {
            x->node[(size_t) i * n + b] = units_of(s->costs, (int) b, in->ids.data[i].tensor);
        }
    }
    const double us = 1000.0 * GB_COST_UNIT;
    for (size_t k = 0; k < n * n; k++) {
        const struct ggml_backend_copy_cost * e =
            k / n == k % n ? NULL : copy_entry(s->costs->copies, s->costs->n_copies, (int) (k / n), (int) (k % n));
        x->copy[k] = e ? e->launch_us * us : 0;
        x->copy_per_byte[k] = e ? us / e->bytes_per_us : 0;
    }
    x->view = (struct gb_cost_prices){ x->node, x->copy, x->copy_per_byte, per_byte, s->costs->split_us * us,
        s->costs->weight_runs };
    return true;
}

// True if the placement decides where the tensor is stored.
static bool is_free(const struct gb_assign_graph * g, int t) {
    const bool computed = t < g->n_nodes && g->computes[t];
    return g->chosen[t] < 0 && (computed || (g->root[t] == t && !g->placed[t]));
}

// The labels that the policy "weights" would choose, as a start for the solver. The first tensor of
// an item decides.
static void labels_of_weights(const struct gb_assign_graph * g, const struct gb_cost_model * m,
    struct gb_assignment * out, int32_t * labels) {
    gb_assign(g, GB_ASSIGN_WEIGHTS, out);
    for (int t = g->n_tensors; t-- > 0;) {
        const bool computed = t < g->n_nodes && g->computes[t];
        if (out[t].backend >= 0 && (computed || g->root[t] == t)) {
            labels[m->item[t]] = out[t].backend;
        }
    }
}

// Converts units of cost.h to microseconds.
static double to_us(int64_t units) { return (double) units / (1000.0 * GB_COST_UNIT); }

// The result of the solver: labels of the start and of the result, and what each item saves.
struct found { // owned, per item
    int32_t *weights, *labels, *other, *tensor_label;
    int64_t * saved;
};

static void free_found(struct found * f) {
    gb_free(f->weights);
    gb_free(f->labels);
    gb_free(f->other);
    gb_free(f->tensor_label);
    gb_free(f->saved);
}

static bool is_filled(const struct gb_sched_memory_prices * memory) { return memory && memory->rounds > PRICED; }

// Labels the items. The solver starts from the labels of the policy "weights". If prices did not
// help, backends are filled.
static enum ggml_status label_items(const struct gb_costs * costs, const struct gb_sched_memory_prices * memory,
    const struct gb_assign_graph * g, const struct gb_cost_model * m, const int32_t * start, int32_t * labels,
    struct gb_cost_result * r) {
    if (!is_filled(memory)) {
        return gb_cost_solve(&m->p, start, MAX_STATES, labels, r);
    }
    const double share = 1 - (memory->rounds - PRICED - 1) / 16.0;
    GB_TRY(gb_cost_fill(m, g, costs->max_bytes, share, labels));
    *r = (struct gb_cost_result){ .cost = gb_cost_of(&m->p, labels),
        .bound = (int64_t) (memory->bound_us * 1000.0 * GB_COST_UNIT) };
    return GGML_STATUS_SUCCESS;
}

// The result is never worse than the policy "weights".
static enum ggml_status solve(const struct gb_costs * costs, const struct gb_sched_memory_prices * memory,
    const struct gb_assign_graph * g, struct gb_cost_model * m, struct gb_assignment * out, struct found * f,
    struct ggml_backend_sched_prediction * prediction) {
    const size_t n = (size_t) m->p.n_items;
    f->weights = gb_calloc(n, sizeof(*f->weights));
    f->labels = gb_calloc(n, sizeof(*f->labels));
    f->other = gb_calloc(n, sizeof(*f->other));
    f->saved = gb_calloc(n, sizeof(*f->saved));
    f->tensor_label = gb_calloc((size_t) g->n_tensors, sizeof(*f->tensor_label));
    if (!f->weights || !f->labels || !f->other || !f->saved || !f->tensor_label) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    struct gb_cost_result r;
    labels_of_weights(g, m, out, f->weights);
    const int64_t by_weights = gb_cost_of(&m->p, f->weights);
    GB_TRY(label_items(costs, memory, g, m, by_weights < GB_COST_INF ? f->weights : NULL, f->labels, &r));
    GB_TRY(gb_cost_savings(&m->p, f->labels, f->saved, f->other));
    for (int t = 0; t < g->n_tensors; t++) {
        f->tensor_label[t] = is_free(g, t) ? f->labels[m->item[t]] : -1;
    }
    *prediction = (struct ggml_backend_sched_prediction){ to_us(r.cost),
        by_weights < GB_COST_INF ? to_us(by_weights) : 0, to_us(r.bound), r.proved };
    return GGML_STATUS_SUCCESS;
}

// For explain: the extra cost of each node on its next best backend, if nothing else moves.
static void tell_savings(const struct gb_assign_graph * g, const struct gb_cost_model * m, const struct found * f,
    struct gb_assignment * out) {
    for (int t = 0; t < g->n_tensors; t++) {
        if (out[t].cause == GB_CAUSE_COST) {
            out[t].other = f->other[m->item[t]];
            out[t].saved = f->saved[m->item[t]] / GB_COST_UNIT;
        }
    }
}

// The labels were found with prices of memory, but their predicted cost is without them.
static enum ggml_status predict_without_prices(struct gb_sched_assigned * assigned, double bound_us,
    const struct gb_assign_graph * graph, const struct gb_cost_prices * prices, const struct found * found) {
    struct gb_cost_prices plain = *prices;
    struct gb_cost_model model = { 0 };
    plain.memory_per_byte = NULL;
    const enum ggml_status status = gb_cost_model_init(&model, graph, &plain);
    if (status == GGML_STATUS_SUCCESS) {
        const int64_t by_weights = gb_cost_of(&model.p, found->weights);
        assigned->prediction = (struct ggml_backend_sched_prediction){
            to_us(gb_cost_of(&model.p, found->labels)),
            by_weights < GB_COST_INF ? to_us(by_weights) : 0,
            bound_us,
            false,
        };
    }
    gb_cost_model_free(&model);
    return status;
}

enum ggml_status gb_sched_assign_by_policy(const struct ggml_backend_sched * s, const struct gb_sched_input * in,
    const struct gb_sched_memory_prices * memory, const struct gb_assign_graph * graph,
    struct gb_sched_assigned * assigned) {
    if (in->policy != GB_ASSIGN_COST || s->costs == NULL) {
        gb_assign(graph, in->policy, assigned->to);
        return GGML_STATUS_SUCCESS;
    }
    struct prices prices = { 0 };
    struct gb_cost_model model = { 0 };
    struct found found = { 0 };
    const double * per_byte = memory && memory->rounds > 0 && !is_filled(memory) ? memory->per_byte : NULL;
    enum ggml_status status = fill_prices(s, in, per_byte, &prices) ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    if (status == GGML_STATUS_SUCCESS) {
        status = gb_cost_model_init(&model, graph, &prices.view);
    }
    if (status == GGML_STATUS_SUCCESS) {
        status = solve(s->costs, memory, graph, &model, assigned->to, &found, &assigned->prediction);
    }
    if (status == GGML_STATUS_SUCCESS) {
        struct gb_assign_graph labelled = *graph;
        labelled.label = found.tensor_label;
        gb_assign(&labelled, GB_ASSIGN_COST, assigned->to);
        tell_savings(graph, &model, &found, assigned->to);
        assigned->predicted = true;
    }
    if (status == GGML_STATUS_SUCCESS && per_byte) {
        status = predict_without_prices(assigned, memory->bound_us, graph, &prices.view, &found);
    }
    free_found(&found);
    gb_cost_model_free(&model);
    free_prices(&prices);
    return status;
}

// -------------------------------------------------------------------------------------------------------------- memory

// Bytes that a plan needs of a backend.
static size_t sum_of(const struct gb_backend_need * need) { return need->peak + need->leafs + need->replicas; }

// At the first price, the plan's memory costs a thousandth of its time. Then the price doubles each
// time.
static void raise_price(struct gb_sched_memory_prices * r, const struct gb_sched_assigned * assigned, size_t bytes,
    int b) {
    const double time = fmax(assigned->prediction.us, 1) * 1000.0 * GB_COST_UNIT;
    r->per_byte[b] = r->per_byte[b] > 0 ? 2 * r->per_byte[b] : 1e-3 * time / (double) bytes;
}

enum ggml_status gb_sched_raise_prices(const struct ggml_backend_sched * s, const struct gb_sched_assigned * assigned,
    const struct gb_backend_need * need, struct gb_sched_memory_prices * r, bool * again) {
    *again = false;
    for (int b = 0; s->costs && s->costs->max_bytes && assigned->predicted && b < s->n_backends; b++) {
        const size_t limit = s->costs->max_bytes[b], bytes = sum_of(&need[b]);
        if (limit == 0 || bytes <= limit) {
            continue;
        }
        GB_FAIL_IF(r->rounds >= PRICED + FILLED, GGML_STATUS_ALLOC_FAILED,
            "ggml_backend_sched: backend %s needs %zu bytes (results %zu, inputs %zu, kept copies %zu), "
            "%zu are allowed, and no placement found needs less",
            s->devices[b].name, bytes, need[b].peak, need[b].leafs, need[b].replicas, limit);
        raise_price(r, assigned, bytes, b);
        *again = true;
    }
    if (r->rounds++ == 0) {
        r->bound_us = assigned->prediction.bound_us;
    }
    return GGML_STATUS_SUCCESS;
}
