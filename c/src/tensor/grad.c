// grad.c - gradients of a scalar as new tensors, without the field grad.
//
// ggml_grad lists the ancestors of the loss. Each ancestor that depends on a parameter gets an entry.
// The sweep begins with 1 for the loss, and the sums of the parameters' entries are the result. The
// field grad of the caller's tensors is hidden meanwhile, so the builders of the rules ignore it.
//
// Nodes in place, CPY and SET_ROWS overwrite memory. Gradients that read overwritten values would be
// wrong, so this is an error. A tensor is stale if a later node of the graph writes to its root.
#include "tensor/derivatives.h"
#include "tensor/rule.h"

struct hidden {
    struct ggml_tensor * tensor;
    struct ggml_tensor * grad;
};

struct job {
    struct gb_sweep sweep;
    struct ggml_context * lists; // owned; holds the graphs
    struct ggml_cgraph * graph;  // the ancestors of the loss
    GB_VEC(struct hidden) hidden;
    struct gb_ptrmap writers; // root -> index + 1 of the last node of the graph that writes to it
    struct gb_ptrmap seen;    // node -> that number for its root when the node had run; absent: 0
};

static bool is_float(enum ggml_type type) {
    return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16;
}

static bool is_listed(const struct ggml_cgraph * graph, const struct ggml_tensor * t) {
    struct ggml_tensor ** slot = gb_hash_set_slot(graph->visited_hash_table, t);
    return slot != NULL && *slot == t;
}

// ----------------------------------------------------------------------------------------------------------- arguments

static enum ggml_status check_arguments(const char * func, const struct ggml_tensor * loss,
    struct ggml_tensor * const * params, int n_params, struct ggml_tensor * const * grads) {
    const struct gb_call c = GB_CALL_1(func, loss);
    if (!gb_rule_given(&c) || !gb_rule_type(&c, 0, GGML_TYPE_F32) || !gb_rule_max_dims(&c, 0, 0)) {
        return ggml_last_status();
    }
    GB_FAIL_IF(n_params < 0, GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'n_params': needs at least 0, has %d", func,
        n_params);
    GB_FAIL_IF(n_params > 0 && (params == NULL || grads == NULL), GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument '%s' is NULL", func, params == NULL ? "params" : "grads");
    for (int i = 0; i < n_params; i++) {
        char text[GB_DESCRIBE_SIZE];
        GB_FAIL_IF(params[i] == NULL, GGML_STATUS_INVALID_ARGUMENT, "%s: params[%d] is NULL", func, i);
        GB_TRY(gb_tensor_check(params[i], func));
        GB_FAIL_IF(!is_float(params[i]->type), GGML_STATUS_INVALID_ARGUMENT,
            "%s: params[%d] %s has no gradient, because its type is not f32, f16 or bf16", func, i,
            gb_describe(params[i], text));
    }
    return GGML_STATUS_SUCCESS;
}

// ------------------------------------------------------------------------------------------------------------- entries

static enum ggml_status list_ancestors(struct job * job, struct ggml_tensor * loss) {
    job->lists = ggml_init((struct ggml_init_params){ 0, NULL, true });
    job->graph = job->lists ? ggml_new_graph(job->lists) : NULL;
    if (job->graph == NULL) {
        return ggml_last_status();
    }
    GB_TRY(gb_graph_expand(job->graph, &loss, 1, job->sweep.func));
    return gb_graph_check_tensors(job->graph, job->sweep.func);
}

// Entries of the parameters, and of all nodes that depend on one.
static bool add_entries(struct job * job, struct ggml_tensor * const * params, int n_params) {
    struct gb_sweep * sweep = &job->sweep;
    for (int i = 0; i < n_params; i++) {
        if (!gb_grad_wanted(sweep, params[i]) &&
            !gb_sweep_add(sweep, (struct gb_grad_entry){ .tensor = params[i], .is_zero = true })) {
            return false;
        }
    }
    for (int i = 0; i < job->graph->n_nodes; i++) {
        struct ggml_tensor * node = job->graph->nodes[i];
        if (is_float(node->type) && !gb_grad_wanted(sweep, node) && gb_sweep_has_source(sweep, node) &&
            !gb_sweep_add(sweep, (struct gb_grad_entry){ .tensor = node, .is_zero = true })) {
            return false;
        }
    }
    return true;
}

static bool hide(struct job * job, struct ggml_tensor * const * tensors, int n) {
    for (int i = 0; i < n; i++) {
        if (tensors[i]->grad != NULL) {
            if (!gb_vec_push(&job->hidden, ((struct hidden){ tensors[i], tensors[i]->grad }))) {
                return false;
            }
            tensors[i]->grad = NULL;
        }
    }
    return true;
}

static void show(struct job * job) {
    for (size_t i = 0; i < job->hidden.n; i++) {
        job->hidden.data[i].tensor->grad = job->hidden.data[i].grad;
    }
}

// ---------------------------------------------------------------------------------------------------------- overwrites

static int64_t number_in(const struct gb_ptrmap * map, const struct ggml_tensor * t) {
    const int64_t number = gb_ptrmap_get(map, t);
    return number == GB_PTRMAP_ABSENT ? 0 : number;
}

// Fills `writers` and `seen`. False: memory ran out.
static bool list_writers(struct job * job) {
    for (int i = 0; i < job->graph->n_nodes; i++) {
        struct ggml_tensor * node = job->graph->nodes[i];
        if (node->view_src == NULL) {
            continue;
        }
        if (gb_op_computes(node->op) && !gb_ptrmap_set(&job->writers, node->view_src, i + 1)) {
            return false;
        }
        const int64_t number = number_in(&job->writers, node->view_src);
        if (number != 0 && !gb_ptrmap_set(&job->seen, node, number)) {
            return false;
        }
    }
    return true;
}

// Reports the first node of the gradients that reads a stale tensor.
static enum ggml_status check_reads(const struct job * job, const struct ggml_cgraph * gradients) {
    for (int i = 0; i < gradients->n_nodes; i++) {
        const struct ggml_tensor * node = gradients->nodes[i];
        const bool is_new = !is_listed(job->graph, node);
        for (int k = 0; k < GGML_MAX_SRC && is_new; k++) {
            const struct ggml_tensor * src = node->src[k];
            const int64_t writer = src && is_listed(job->graph, src) ? number_in(&job->writers, gb_root(src)) : 0;
            if (writer != 0 && writer > number_in(&job->seen, src)) {
                char stale[GB_DESCRIBE_SIZE], text[640];
                return gb_fail(GGML_STATUS_UNSUPPORTED, "%s: the gradients need %s, which %s overwrites",
                    job->sweep.func, gb_describe(src, stale),
                    gb_describe_node(job->graph->nodes[writer - 1], text, sizeof(text)));
            }
        }
    }
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status check_overwrites(struct job * job, struct ggml_tensor * const * found, int n) {
    if (!list_writers(job)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    struct ggml_cgraph * gradients = job->writers.n > 0 ? ggml_new_graph(job->lists) : NULL;
    if (gradients == NULL) {
        return job->writers.n > 0 ? ggml_last_status() : GGML_STATUS_SUCCESS;
    }
    for (int i = 0; i < n; i++) {
        if (found[i] != NULL) {
            GB_TRY(gb_graph_expand(gradients, &found[i], 1, job->sweep.func));
        }
    }
    return check_reads(job, gradients);
}

// ------------------------------------------------------------------------------------------------------------- results

// The gradient of a parameter. NULL without a failure: it is not an ancestor of the loss. *ok false:
// a builder failed (reported).
static struct ggml_tensor * result_of(struct job * job, struct ggml_tensor * param, bool * ok) {
    struct ggml_tensor * grad = gb_sweep_entry(&job->sweep, param)->current;
    if (grad == NULL) {
        if (!is_listed(job->graph, param)) {
            return NULL;
        }
        grad = gb_grad_zeros(job->sweep.ctx, param);
    }
    *ok = *ok && grad != NULL;
    return grad != NULL && grad->name[0] == '\0' ? gb_tensor_name_after(grad, param, "grad", NULL) : grad;
}

// `seed` is the gradient of the loss.
static enum ggml_status derive(struct job * job, struct ggml_tensor * loss, struct ggml_tensor * seed,
    struct ggml_tensor * const * params, int n_params, struct ggml_tensor ** found) {
    struct gb_sweep * sweep = &job->sweep;
    GB_TRY(list_ancestors(job, loss));
    if (!add_entries(job, params, n_params) || !hide(job, job->graph->nodes, job->graph->n_nodes) ||
        !hide(job, job->graph->leafs, job->graph->n_leafs)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    struct gb_grad_entry * entry = gb_sweep_entry(sweep, loss);
    if (entry != NULL) {
        entry->current = seed;
        entry->is_zero = false;
    }
    bool ok = gb_sweep_nodes(sweep, job->graph->nodes, job->graph->n_nodes);
    for (int i = 0; i < n_params && ok; i++) {
        found[i] = result_of(job, params[i], &ok);
    }
    return ok ? check_overwrites(job, found, n_params) : ggml_last_status();
}

static void job_free(struct job * job) {
    show(job);
    gb_sweep_free(&job->sweep);
    gb_vec_free(&job->hidden);
    gb_ptrmap_free(&job->writers);
    gb_ptrmap_free(&job->seen);
    if (job->lists != NULL) {
        ggml_free(job->lists);
    }
}

// On failure the context drops the new tensors, of which the seed is the first.
enum ggml_status ggml_grad(struct ggml_context * ctx, struct ggml_tensor * loss, struct ggml_tensor ** params,
    int n_params, struct ggml_tensor ** grads) {
    GB_CHECK_ARG(ctx);
    GB_TRY(check_arguments(__func__, loss, params, n_params, grads));
    struct ggml_tensor ** found = gb_calloc((size_t) GB_MAX(n_params, 1), sizeof(*found));
    struct ggml_tensor * seed = found ? ggml_arange(ctx, 1.0f, 2.0f, 1.0f) : NULL;
    if (seed == NULL) {
        gb_free(found);
        return ggml_last_status();
    }
    struct job job = { .sweep = { .ctx = ctx, .func = __func__, .in_f32 = true } };
    const enum ggml_status status = derive(&job, loss, seed, params, n_params, found);
    if (status != GGML_STATUS_SUCCESS) {
        gb_context_drop(ctx, seed);
    } else if (n_params > 0) {
        memcpy(grads, found, (size_t) n_params * sizeof(*found));
    }
    job_free(&job);
    gb_free(found);
    return status;
}
