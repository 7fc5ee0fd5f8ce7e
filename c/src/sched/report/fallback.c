// fallback.c - nodes that run on a backend of lower priority because a better one cannot run them, and what that costs.
//
// Not every node on such a backend is one: where the user, a weight or memory says so, it is where it belongs. A node
// has fallen back if a backend of higher priority refuses it that had to do with it: it computes what the node reads
// (or holds a weight of it), reads what the node computes, or is the one that the rules named. Found when a plan is
// made, while the tensors are there; told by explain.c and to the user.
#include "sched/plan.h"

#include <stdio.h>
#include <string.h>

#include "tensor/work.h"

// Backends beyond the 64th have no bit: fallbacks because of them are not told.
static uint64_t bit(int backend) { return backend >= 0 && backend < 64 ? UINT64_C(1) << backend : 0; }

// The backends, per tensor, of computed neighbours and weights; NULL: no memory. Owned by the caller.
static uint64_t * find_neighbours(const struct gb_sched_plan * p) {
    uint64_t * neighbours = gb_calloc((size_t) p->in.n_ids, sizeof(*neighbours));
    for (int i = 0; neighbours && i < p->in.n_nodes; i++) {
        for (uint32_t k = p->in.src_begin[i]; p->in.ids.data[i].computes && k < p->in.src_begin[i + 1]; k++) {
            const int s = p->in.srcs[k], root = p->in.ids.data[s].root,
                      maker = s < p->in.n_nodes && p->in.ids.data[s].computes ? s : root;
            if (p->in.ids.data[maker].computes || p->in.weight[maker]) {
                neighbours[i] |= bit(p->assigned.to[maker].backend);
            }
            neighbours[maker] |= bit(p->assigned.to[i].backend);
        }
    }
    return neighbours;
}

// The backend cannot run the node. Its answer is kept with those of the assignment.
static bool refuses(struct ggml_backend_sched * s, struct gb_sched_plan * p, int backend, int node) {
    uint8_t * known = &p->assigned.supports[(size_t) node * (size_t) p->in.n_backends + (size_t) backend];
    if (*known == 0) {
        *known = ggml_backend_supports_op(s->devices[backend].backend, p->in.ids.data[node].tensor) ? 1 : 2;
    }
    return *known == 2;
}

// The user, a weight or memory put the node there, or there is no better backend.
static bool is_where_it_belongs(const struct gb_assignment * a) {
    switch ((enum gb_cause) a->cause) {
        case GB_CAUSE_USER:
        case GB_CAUSE_WEIGHT:
        case GB_CAUSE_BUFFER:
        case GB_CAUSE_ALIAS: return true;
        default: return a->backend <= 0;
    }
}

// The backend of highest priority that had to do with the node and refuses it; -1: none.
static int refused_by(struct ggml_backend_sched * s, struct gb_sched_plan * p, int node, uint64_t neighbours) {
    const struct gb_assignment * a = &p->assigned.to[node];
    for (int b = 0; b < a->backend; b++) {
        if (((neighbours & bit(b)) || b == a->wanted) && refuses(s, p, b, node)) {
            return b;
        }
    }
    return -1;
}

// -------------------------------------------------------------------------------------------------------------- copies

// The node reads the root or a view of it.
static bool reads_root(const struct gb_sched_plan * p, int node, int root) {
    for (uint32_t k = p->in.src_begin[node]; k < p->in.src_begin[node + 1]; k++) {
        if (p->in.ids.data[p->in.srcs[k]].root == root) {
            return true;
        }
    }
    return false;
}

// Nobody else wrote the node's memory between the node and a later split.
static bool is_still_its(const struct gb_sched_plan * p, int node, int end) {
    const int root = p->in.ids.data[node].root;
    for (int i = node + 1; i < end; i++) {
        if (p->in.ids.data[i].computes && p->in.ids.data[i].root == root) {
            return false;
        }
    }
    return true;
}

// Copies that travel together count each for itself. Those that nobody fills move no bytes and do not count.
void gb_sched_count_copies(const struct gb_sched_plan * p, int node, bool of_result, size_t * n, size_t * bytes) {
    *n = *bytes = 0;
    for (size_t c = 0; c < p->program.copies.n; c++) {
        const struct gb_copy *  copy  = &p->program.copies.data[c];
        const struct gb_split * split = &p->program.splits.data[copy->split];
        if (!copy->fill) {
            continue;
        }
        const bool in  = node >= split->start && node < split->end && reads_root(p, node, copy->root);
        const bool out = of_result && split->start > node && copy->root == p->in.ids.data[node].root &&
                         is_still_its(p, node, split->start);
        *n += in || out;
        *bytes += in || out ? copy->hi - copy->lo : 0;
    }
}

// ------------------------------------------------------------------------------------------------------------ a plan's

// Notes a fallback while the tensors are there, because the reason may name their shapes.
static bool note(struct ggml_backend_sched * s, struct gb_sched_plan * p, int node, int by) {
    const struct ggml_tensor * t      = p->in.ids.data[node].tensor;
    const char *               reason = ggml_backend_unsupported_reason(s->devices[by].backend, t);
    struct gb_fallback         f      = { .node = node, .refused_by = by, .flops = gb_work_of(t).flops };
    gb_sched_count_copies(p, node, true, &f.n_copies, &f.copied);
    if (reason) {
        memcpy(f.reason, reason, GB_MIN(strlen(reason), sizeof(f.reason) - 1));
    }
    return gb_vec_push(&p->fallbacks, f);
}

// Only nodes that compute can fall back.
enum ggml_status gb_sched_find_fallbacks(struct ggml_backend_sched * s, struct gb_sched_plan * p) {
    if (p->in.n_backends == 1) {
        return GGML_STATUS_SUCCESS;
    }
    uint64_t * neighbours = find_neighbours(p);
    bool       ok         = neighbours != NULL;
    for (int i = 0; ok && i < p->in.n_nodes; i++) {
        const int by = p->in.ids.data[i].computes && !is_where_it_belongs(&p->assigned.to[i])
                           ? refused_by(s, p, i, neighbours[i])
                           : -1;
        ok           = by < 0 || note(s, p, i, by);
    }
    gb_free(neighbours);
    return ok ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}

// There are few fallbacks, in the order of nodes.
const struct gb_fallback * gb_sched_fallback_of(const struct gb_sched_plan * p, int node) {
    for (size_t k = 0; k < p->fallbacks.n; k++) {
        if (p->fallbacks.data[k].node == node) {
            return &p->fallbacks.data[k];
        }
    }
    return NULL;
}

// Without a plan there are none, and that is no error.
int ggml_backend_sched_get_n_fallbacks(ggml_backend_sched_t sched) {
    GB_CHECK_ARG_RETURNING(sched, 0);
    const bool known = gb_sched_check_whole(sched, __func__) == GGML_STATUS_SUCCESS && sched->last;
    return known ? (int) sched->last->fallbacks.n : 0;
}

// Names come from the plan's copy of the tensor, because the tensor may be freed.
enum ggml_status ggml_backend_sched_get_fallback(ggml_backend_sched_t sched, int i,
    struct ggml_backend_sched_fallback * fallback) {
    GB_CHECK_ARG(sched);
    GB_CHECK_ARG(fallback);
    GB_TRY(gb_sched_check_whole(sched, __func__));
    const struct gb_sched_plan * p = sched->last;
    const size_t                 n = p ? p->fallbacks.n : 0;
    GB_FAIL_IF(i < 0 || (size_t) i >= n, GGML_STATUS_INVALID_ARGUMENT, "%s: fallback %d: the last graph has %zu",
        __func__, i, n);
    const struct gb_fallback * f = &p->fallbacks.data[i];
    *fallback                    = (struct ggml_backend_sched_fallback){
        .tensor       = p->in.ids.data[f->node].tensor,
        .node         = f->node,
        .op           = gb_key_of(&p->in.keys, f->node)->op,
        .backend      = sched->devices[p->assigned.to[f->node].backend].backend,
        .refused_by   = sched->devices[f->refused_by].backend,
        .flops        = f->flops,
        .n_copies     = (int) f->n_copies,
        .copied_bytes = f->copied,
        .is_heavy     = f->flops >= GGML_BACKEND_SCHED_HEAVY_FLOPS || f->copied >= GGML_BACKEND_SCHED_HEAVY_BYTES,
    };
    snprintf(fallback->name, sizeof(fallback->name), "%s", gb_sched_name_of(&p->in, f->node));
    memcpy(fallback->reason, f->reason, sizeof(fallback->reason));
    return GGML_STATUS_SUCCESS;
}
