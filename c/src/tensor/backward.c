// backward.c - reverse-mode differentiation of graphs.
//
// A sweep removes the gradient fields from all tensors of the forward graph and visits the nodes
// from last to first. It adds each node's contributions to its sources (derivatives.c) in the
// sweep's entries (gradients.c). At the end it stores the sums as the tensors' gradients. Before that, nothing
// that the caller sees changes, so a failure only has to restore the old gradients.
//
// Gradients of gradients: the nodes that a sweep makes have no gradient, because few programs need
// one, and it takes memory. Those that depend on a parameter are marked DERIVED. During the sweep
// the forward tensors have this mark, and builders pass it on. If a later call derives a graph with
// marked nodes, it makes their gradients first.
//
// With checkpoints, the forward nodes that the backward part reads are cloned. The clones are
// recomputed from the checkpoints, so the forward nodes need not be kept.
#include "tensor/derivatives.h"

// ---------------------------------------------------------------------------------------------------------- parameters

// The gradient of a parameter is a tensor of its shape. The sweep starts from it.
enum ggml_status ggml_set_param(struct ggml_context * ctx, struct ggml_tensor * tensor) {
    if (ctx == NULL || tensor == NULL) {
        gb_fail_null(__func__, ctx == NULL ? "ctx" : "tensor");
        return ggml_last_status();
    }
    GB_FAIL_IF(tensor->grad != NULL, GGML_STATUS_INVALID_STATE, "%s: tensor '%s' has a gradient already", __func__,
        tensor->name);
    struct ggml_tensor * grad = ggml_dup_tensor(ctx, tensor);
    if (grad == NULL) {
        return ggml_last_status();
    }
    gb_tensor_name_after(grad, tensor, "grad", NULL);
    tensor->grad = grad;
    tensor->is_param = true;
    return GGML_STATUS_SUCCESS;
}

// Zeroes the initial gradients of all nodes.
enum ggml_status ggml_graph_reset(struct ggml_cgraph * cgraph) {
    GB_TRY(gb_graph_check(cgraph, "cgraph", __func__));
    GB_FAIL_IF(cgraph->grads == NULL, GGML_STATUS_INVALID_ARGUMENT,
        "%s: the graph was made without gradients (ggml_new_graph_custom)", __func__);
    for (int i = 0; i < cgraph->n_nodes; i++) {
        if (cgraph->grads[i] != NULL && ggml_set_zero(cgraph->grads[i]) == NULL) {
            return ggml_last_status();
        }
    }
    return GGML_STATUS_SUCCESS;
}

// ----------------------------------------------------------------------------------------------------------- the sweep

// Adds a tensor that has a gradient and no entry yet. False: memory ran out.
static bool add_entry(struct gb_sweep * sweep, struct ggml_tensor * tensor, bool is_zero) {
    if (tensor == NULL || tensor->grad == NULL || gb_sweep_entry(sweep, tensor) != NULL) {
        return true;
    }
    const bool is_derived = gb_tensor_has_flag(tensor, GB_TENSOR_DERIVED);
    return gb_sweep_add(sweep, (struct gb_grad_entry){ tensor, tensor->grad, tensor->grad, is_zero, is_derived });
}

// True if the node needs a gradient that an earlier sweep did not make. `node` comes after its sources.
static bool lacks_grad(const struct gb_sweep * sweep, const struct ggml_tensor * node) {
    if (node->grad != NULL || !gb_tensor_has_flag(node, GB_TENSOR_DERIVED) ||
        (node->type != GGML_TYPE_F32 && node->type != GGML_TYPE_F16 && node->type != GGML_TYPE_BF16)) {
        return false;
    }
    for (int k = 0; k < GGML_MAX_SRC; k++) {
        const struct ggml_tensor * src = node->src[k];
        if (src != NULL && src != node && (src->grad != NULL || gb_grad_wanted(sweep, src))) {
            return true;
        }
    }
    return false;
}

// The node gets its gradient tensor when the sweep ends well.
static bool add_derived_entry(struct gb_sweep * sweep, struct ggml_tensor * node) {
    struct ggml_tensor * grad = ggml_dup_tensor(sweep->ctx, node);
    if (grad == NULL) {
        return false;
    }
    gb_tensor_name_after(grad, node, "grad", NULL);
    return gb_sweep_add(sweep, (struct gb_grad_entry){ node, NULL, grad, true, true });
}

// Makes entries for all tensors with a gradient: the nodes, whose initial gradients are zero, and
// their sources outside the graph.
static bool add_entries(struct gb_sweep * sweep, const struct ggml_cgraph * gf) {
    for (int i = 0; i < gf->n_nodes; i++) {
        struct ggml_tensor * node = gf->nodes[i];
        if (!(lacks_grad(sweep, node) ? add_derived_entry(sweep, node)
                                      : add_entry(sweep, node, node->grad == gf->grads[i]))) {
            return false;
        }
    }
    for (int i = 0; i < gf->n_nodes; i++) {
        for (int k = 0; k < GGML_MAX_SRC; k++) {
            if (!add_entry(sweep, gf->nodes[i]->src[k], false)) {
                return false;
            }
        }
    }
    return true;
}

// With `keep`: the sums of the nodes start from new tensors.
static bool renew(struct gb_sweep * sweep, const struct ggml_cgraph * gf) {
    for (int i = 0; i < gf->n_nodes; i++) {
        struct gb_grad_entry * entry = gb_sweep_entry(sweep, gf->nodes[i]);
        if (entry != NULL && entry->before != NULL) {
            entry->current = ggml_dup_tensor(sweep->ctx, entry->tensor);
            entry->is_zero = true;
            if (entry->current == NULL) {
                return false;
            }
        }
    }
    return true;
}

// A node without sources that have a gradient contributes nothing, nor does a gradient of zero. Such
// nodes may have no rule, so none is called.
bool gb_sweep_nodes(struct gb_sweep * sweep, struct ggml_tensor * const * nodes, int n) {
    for (int i = n - 1; i >= 0; i--) {
        const struct gb_grad_entry * entry = gb_sweep_entry(sweep, nodes[i]);
        if (entry != NULL && entry->current != NULL && gb_sweep_has_source(sweep, nodes[i]) &&
            !gb_derive(sweep, nodes[i], entry->current)) {
            return false;
        }
    }
    return true;
}

enum which { BEFORE, NONE, CURRENT };

// Sets the gradient of every tensor of the sweep: to the old one, to none, or to the sum.
// Tensors without a gradient are marked for the builders, unless an earlier sweep has marked them.
static void write_grads(const struct gb_sweep * sweep, enum which which) {
    for (size_t i = 0; i < sweep->entries.n; i++) {
        const struct gb_grad_entry * entry = &sweep->entries.data[i];
        entry->tensor->grad = which == BEFORE ? entry->before : which == NONE ? NULL : entry->current;
        if (which == NONE) {
            gb_tensor_set_flag(entry->tensor, GB_TENSOR_DERIVED);
        } else if (!entry->was_derived) {
            gb_tensor_clear_flag(entry->tensor, GB_TENSOR_DERIVED);
        }
    }
}

// Derives all of gf. `initial` receives the initial gradients of the gf->n_nodes nodes. False: a
// rule failed (reported), and nothing has changed.
static bool run_sweep(struct gb_sweep * sweep, const struct ggml_cgraph * gf, bool keep,
    struct ggml_tensor ** initial) {
    if (!add_entries(sweep, gf) || (keep && !renew(sweep, gf))) {
        return false;
    }
    for (int i = 0; i < gf->n_nodes; i++) {
        const struct gb_grad_entry * entry = gb_sweep_entry(sweep, gf->nodes[i]);
        initial[i] = entry && (keep || entry->before == NULL) ? entry->current : keep ? NULL : gf->grads[i];
    }
    write_grads(sweep, NONE);
    const bool ok = gb_sweep_nodes(sweep, gf->nodes, gf->n_nodes);
    write_grads(sweep, ok ? CURRENT : BEFORE);
    return ok;
}

// Appends the gradients of all parameters and all their ancestors to gb.
static enum ggml_status expand_params(const struct ggml_cgraph * gf, struct ggml_cgraph * gb, const char * func) {
    GB_VEC(struct ggml_tensor *) roots = { 0 };
    bool ok = true;
    for (int i = 0; i < gf->n_nodes && ok; i++) {
        struct ggml_tensor * node = gf->nodes[i];
        ok = !node->is_param || node->grad == NULL || gb_vec_push(&roots, node->grad);
    }
    const enum ggml_status status = ok ? gb_graph_expand(gb, roots.data, roots.n, func) : GGML_STATUS_ALLOC_FAILED;
    gb_vec_free(&roots);
    return status;
}

static enum ggml_status check_graphs(const char * func, const struct ggml_context * ctx, const struct ggml_cgraph * gf,
    const struct ggml_cgraph * gb) {
    if (ctx == NULL || gf == NULL || gb == NULL) {
        gb_fail_null(func, ctx == NULL ? "ctx" : gf == NULL ? "gf" : "gb");
        return ggml_last_status();
    }
    GB_TRY(gb_graph_check(gf, "gf", func));
    GB_TRY(gb_graph_check(gb, "gb", func));
    GB_FAIL_IF(gf->grads == NULL, GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'gf' was made without gradients (ggml_new_graph_custom)", func);
    GB_FAIL_IF(gf->n_nodes <= 0, GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'gf' has no nodes", func);
    return GGML_STATUS_SUCCESS;
}

// Derives gf and appends to gb. The sweep stays valid until gb_sweep_free, so that the caller can undo
// it. `initial` has gf->n_nodes elements.
static enum ggml_status build_backward(struct gb_sweep * sweep, struct ggml_cgraph * gf, struct ggml_cgraph * gb,
    bool keep, struct ggml_tensor ** initial) {
    if (!run_sweep(sweep, gf, keep, initial)) {
        return ggml_last_status();
    }
    const enum ggml_status status = expand_params(gf, gb, sweep->func);
    if (status != GGML_STATUS_SUCCESS) {
        write_grads(sweep, BEFORE);
    }
    return status;
}

static struct ggml_tensor ** new_list(int n) { return gb_calloc((size_t) n, sizeof(struct ggml_tensor *)); }

// gf's list of gradients changes only on success.
enum ggml_status ggml_build_backward_expand(struct ggml_context * ctx, struct ggml_cgraph * gf, struct ggml_cgraph * gb,
    bool keep) {
    GB_TRY(check_graphs(__func__, ctx, gf, gb));
    struct ggml_tensor ** initial = new_list(gf->n_nodes);
    if (initial == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    const int n = gf->n_nodes; // gb may be gf
    struct gb_sweep sweep = { .ctx = ctx, .func = __func__ };
    const enum ggml_status status = build_backward(&sweep, gf, gb, keep, initial);
    if (status == GGML_STATUS_SUCCESS) {
        memcpy(gf->grads, initial, (size_t) n * sizeof(*initial));
    }
    gb_sweep_free(&sweep);
    gb_free(initial);
    return status;
}

// --------------------------------------------------------------------------------------------------------- checkpoints

struct clone {  // a forward node and its copy for the backward part
    struct ggml_tensor * original;
    struct ggml_tensor * copy; // NULL: not made yet
};

// The clones of one build. The backward part reads tensors without an index directly: checkpoints,
// parameters, leafs.
struct recompute {
    struct ggml_context * ctx;
    const struct ggml_cgraph * gf;
    struct gb_ptrmap ids; // forward tensors -> index in clones
    GB_VEC(struct clone) clones;
    GB_VEC(struct ggml_tensor *) stack;
};

// The tensor that the backward part reads instead of t. *known false: t must be cloned, and has no
// clone yet.
static struct ggml_tensor * stand_in(const struct recompute * r, struct ggml_tensor * t, bool * known) {
    const int64_t i = t ? gb_ptrmap_get(&r->ids, t) : GB_PTRMAP_ABSENT;
    *known = i == GB_PTRMAP_ABSENT || r->clones.data[i].copy != NULL;
    return i == GB_PTRMAP_ABSENT ? t : r->clones.data[i].copy;
}

// True if t is computed from other tensors. A cast names itself as a source, which does not count.
static bool has_sources(const struct ggml_tensor * t) {
    for (int k = 0; k < GGML_MAX_SRC; k++) {
        if (t->src[k] != NULL && t->src[k] != t) {
            return true;
        }
    }
    return false;
}

// Lists the nodes that are cloned when a node reads them: all computed nodes except checkpoints and
// parameters.
static bool list_clones(struct recompute * r, struct ggml_tensor * const * checkpoints, int n) {
    struct gb_ptrmap kept = { 0 };
    bool ok = true;
    for (int i = 0; i < n && ok; i++) {
        ok = checkpoints[i] == NULL || gb_ptrmap_set(&kept, checkpoints[i], 1);
    }
    for (int i = 0; i < r->gf->n_nodes && ok; i++) {
        struct ggml_tensor * node = r->gf->nodes[i];
        if (!node->is_param && has_sources(node) && gb_ptrmap_get(&kept, node) == GB_PTRMAP_ABSENT) {
            ok = gb_vec_push(&r->clones, ((struct clone){ node, NULL })) &&
                 gb_ptrmap_set(&r->ids, node, (int64_t) r->clones.n - 1);
        }
    }
    gb_ptrmap_free(&kept);
    return ok;
}

// A copy of the node whose sources are the clones, which exist. NULL on failure (reported).
static struct ggml_tensor * make_clone(struct recompute * r, const struct ggml_tensor * node) {
    bool known;
    struct ggml_tensor * root = node->view_src ? stand_in(r, node->view_src, &known) : NULL;
    struct ggml_tensor * copy;
    if (root != NULL) {
        // the root is not a view, so the offset counts from it
        copy = gb_tensor_view(r->ctx, root, GGML_MAX_DIMS, node->ne, node->nb, node->view_offs, __func__);
    } else {
        copy = ggml_dup_tensor(r->ctx, node);
    }
    if (copy == NULL) {
        return NULL;
    }
    gb_tensor_set_ndim(copy, gb_tensor_ndim(node));
    copy->op = node->op;
    copy->backend = node->backend;
    copy->extra = node->extra;
    memcpy(copy->op_params, node->op_params, sizeof(copy->op_params));
    if (node->grad != NULL) {
        gb_tensor_set_flag(copy, GB_TENSOR_DERIVED); // like the nodes that read it
    }
    for (int k = 0; k < GGML_MAX_SRC; k++) {
        copy->src[k] = node->src[k] == node ? copy : stand_in(r, node->src[k], &known);
    }
    return gb_tensor_name_after(copy, node, "clone", NULL);
}

// Pushes the first source (or root) of the node that must be cloned before it. 1: pushed; 0: none
// left; -1: memory ran out.
static int push_missing(struct recompute * r, const struct ggml_tensor * node) {
    for (int k = -1; k < GGML_MAX_SRC; k++) {
        struct ggml_tensor * src = k < 0 ? node->view_src : node->src[k];
        bool known;
        stand_in(r, src, &known);
        if (!known && src != node) {
            return gb_vec_push(&r->stack, src) ? 1 : -1;
        }
    }
    return 0;
}

// Clones t after all its ancestors, with an explicit stack, because chains may be longer than the
// thread's stack allows.
static bool clone_chain(struct recompute * r, struct ggml_tensor * t) {
    bool known;
    stand_in(r, t, &known);
    if (known) {
        return true;
    }
    r->stack.n = 0;
    if (!gb_vec_push(&r->stack, t)) {
        return false;
    }
    while (r->stack.n > 0) {
        struct ggml_tensor * top = r->stack.data[r->stack.n - 1];
        const int pushed = push_missing(r, top);
        if (pushed < 0) {
            return false;
        }
        if (pushed == 0) {
            struct clone * clone = &r->clones.data[gb_ptrmap_get(&r->ids, top)];
            clone->copy = make_clone(r, top);
            r->stack.n--;
            if (clone->copy == NULL) {
                return false;
            }
        }
    }
    return true;
}

// Makes a node of the backward part read clones instead of forward nodes.
static bool rewire(struct recompute * r, struct ggml_tensor * node) {
    bool known;
    for (int k = 0; k < GGML_MAX_SRC; k++) {
        if (!clone_chain(r, node->src[k])) {
            return false;
        }
        node->src[k] = stand_in(r, node->src[k], &known);
    }
    struct ggml_tensor * root = node->view_src;
    if (root != NULL) {
        if (!clone_chain(r, root)) {
            return false;
        }
        node->view_src = stand_in(r, root, &known);
        node->data = node->view_src->data ? (char *) node->view_src->data + node->view_offs : NULL;
    }
    return true;
}

// The nodes of gb_tmp after those of gf are the backward part.
static enum ggml_status rewrite(struct recompute * r, const struct ggml_cgraph * gf, const struct ggml_cgraph * gb_tmp,
    struct ggml_cgraph * gb) {
    for (int i = gf->n_nodes; i < gb_tmp->n_nodes; i++) {
        if (!rewire(r, gb_tmp->nodes[i])) {
            return ggml_last_status();
        }
        GB_TRY(ggml_build_forward_expand(gb, gb_tmp->nodes[i]));
    }
    return GGML_STATUS_SUCCESS;
}

// Without checkpoints, gb is the plain backward graph.
static enum ggml_status build_checkpointed(struct recompute * r, struct ggml_cgraph * gf, struct ggml_cgraph * gb,
    struct ggml_cgraph * gb_tmp, struct ggml_tensor * const * checkpoints, int n) {
    if (n <= 0) {
        return ggml_graph_cpy(gb_tmp, gb);
    }
    if (!list_clones(r, checkpoints, n)) {
        return ggml_last_status();
    }
    GB_TRY(ggml_graph_cpy(gf, gb));
    return rewrite(r, gf, gb_tmp, gb);
}

enum ggml_status ggml_build_backward_gradient_checkpointing(struct ggml_context * ctx, struct ggml_cgraph * gf,
    struct ggml_cgraph * gb, struct ggml_cgraph * gb_tmp, struct ggml_tensor ** checkpoints, int n_checkpoints) {
    GB_TRY(check_graphs(__func__, ctx, gf, gb));
    GB_CHECK_ARG(gb_tmp);
    GB_FAIL_IF(gf == gb || gf == gb_tmp || gb == gb_tmp, GGML_STATUS_INVALID_ARGUMENT,
        "%s: gf, gb and gb_tmp need to be three graphs", __func__);
    GB_FAIL_IF(n_checkpoints > 0 && checkpoints == NULL, GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'checkpoints' is NULL", __func__);
    struct ggml_tensor ** initial = new_list(gf->n_nodes);
    if (initial == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    struct gb_sweep sweep = { .ctx = ctx, .func = __func__ };
    struct recompute r = { .ctx = ctx, .gf = gf };
    enum ggml_status status = ggml_graph_cpy(gf, gb_tmp);
    if (status == GGML_STATUS_SUCCESS) {
        status = build_backward(&sweep, gf, gb_tmp, true, initial);
    }
    if (status == GGML_STATUS_SUCCESS) {
        status = build_checkpointed(&r, gf, gb, gb_tmp, checkpoints, n_checkpoints);
    }
    if (status == GGML_STATUS_SUCCESS) {
        memcpy(gf->grads, initial, (size_t) gf->n_nodes * sizeof(*initial));
    } else {
        write_grads(&sweep, BEFORE);
        ggml_graph_clear(gb_tmp);
        ggml_graph_clear(gb);
    }
    gb_sweep_free(&sweep);
    gb_ptrmap_free(&r.ids);
    gb_vec_free(&r.clones);
    gb_vec_free(&r.stack);
    gb_free(initial);
    return status;
}
