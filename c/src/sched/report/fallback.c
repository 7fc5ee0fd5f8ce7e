// fallback.c - nodes that run on a backend of lower priority because a better one cannot run them, and what that costs.
//
// Not every node on such a backend is one: where the user, a weight or memory says so, it is where it belongs. A node
// has fallen back if a backend of higher priority refuses it that had to do with it: it computes what the node reads
// (or holds a weight of it), reads what the node computes, or is the one that the rules named. Found when a plan is
// made, while the tensors are there; told by explain.c and to the user.
#include "base/current.h"
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

// What is known of a root: its copies in the current split, and the last node so far that wrote it.
struct of_root {
    int32_t split, writer; // -1: none
    int32_t reader; // the last node that these copies were counted for
    struct gb_copied copied;
};

static void add(struct gb_copied * sum, struct gb_copied more) {
    sum->n += more.n;
    sum->bytes += more.bytes;
}

// Counts the copies of a split under their roots. A copy of an earlier result also counts for the node that wrote it.
// Copies without `fill` move no bytes and do not count.
static void count_in(struct gb_sched_plan * p, int k, struct of_root * roots) {
    const struct gb_split * split = &p->program.splits.data[k];
    for (size_t c = split->copies_begin; c < split->copies_end; c++) {
        const struct gb_copy * copy = &p->program.copies.data[c];
        struct of_root * root = &roots[copy->root];
        const struct gb_copied one = { 1, copy->hi - copy->lo };
        if (!copy->fill) {
            continue;
        }
        if (root->split != k) {
            root->split = k;
            root->copied = (struct gb_copied){ 0, 0 };
        }
        add(&root->copied, one);
        if (root->writer >= 0) {
            add(&p->copied.data[root->writer].of_result, one);
        }
    }
}

// Each node of the split gets the copies of the roots that it reads, each root once. It is then the last writer of its
// own root.
static void count_of_nodes(struct gb_sched_plan * p, int k, struct of_root * roots) {
    const struct gb_split * split = &p->program.splits.data[k];
    for (int i = split->start; i < split->end; i++) {
        for (uint32_t s = p->in.src_begin[i]; s < p->in.src_begin[i + 1]; s++) {
            struct of_root * root = &roots[p->in.ids.data[p->in.srcs[s]].root];
            if (root->split == k && root->reader != i) {
                root->reader = i;
                add(&p->copied.data[i].in, root->copied);
            }
        }
        if (p->in.ids.data[i].computes) {
            roots[p->in.ids.data[i].root].writer = i;
        }
    }
}

// Counts the copies of all nodes in one pass. Copies that travel together are counted one by one.
static enum ggml_status count_copies(struct gb_sched_plan * p) {
    struct of_root * roots = gb_malloc((size_t) p->in.n_ids * sizeof(*roots));
    enum ggml_status status = GGML_STATUS_ALLOC_FAILED;
    const struct gb_copied none = { 0, 0 };
    if (roots != NULL && gb_vec_resize_zero(&p->copied, (size_t) p->in.n_nodes)) {
        for (int i = 0; i < p->in.n_ids; i++) {
            roots[i] = (struct of_root){ -1, -1, -1, none };
        }
        status = GGML_STATUS_SUCCESS;
    }
    for (size_t k = 0; k < p->program.splits.n && status == GGML_STATUS_SUCCESS; k++) {
        count_in(p, (int) k, roots);
        count_of_nodes(p, (int) k, roots);
        status = gb_go_on();
    }
    gb_free(roots);
    return status;
}

struct gb_copied gb_sched_copies_of(const struct gb_sched_plan * p, int node, bool of_result) {
    struct gb_copied sum = { 0, 0 };
    if ((size_t) node < p->copied.n) {
        sum = p->copied.data[node].in;
        if (of_result) {
            add(&sum, p->copied.data[node].of_result);
        }
    }
    return sum;
}

// ------------------------------------------------------------------------------------------------------------ a plan's

// Notes a fallback while the tensors are there, because the reason may name their shapes.
static bool note(struct ggml_backend_sched * s, struct gb_sched_plan * p, int node, int by) {
    const struct ggml_tensor * t = p->in.ids.data[node].tensor;
    const char * reason = ggml_backend_unsupported_reason(s->devices[by].backend, t);
    struct gb_fallback f = { .node = node, .refused_by = by, .flops = gb_work_of(t).flops };
    f.copied = gb_sched_copies_of(p, node, true);
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
    GB_TRY(count_copies(p));
    uint64_t * neighbours = find_neighbours(p);
    enum ggml_status status = neighbours != NULL ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    for (int i = 0; i < p->in.n_nodes && status == GGML_STATUS_SUCCESS; i++) {
        const int by = p->in.ids.data[i].computes && !is_where_it_belongs(&p->assigned.to[i])
                           ? refused_by(s, p, i, neighbours[i])
                           : -1;
        status = by < 0 || note(s, p, i, by) ? gb_go_on() : GGML_STATUS_ALLOC_FAILED;
    }
    gb_free(neighbours);
    return status;
}

// Fallbacks are in the order of nodes.
const struct gb_fallback * gb_sched_fallback_of(const struct gb_sched_plan * p, int node) {
    size_t lo = 0, hi = p->fallbacks.n;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        if (p->fallbacks.data[mid].node < node) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo < p->fallbacks.n && p->fallbacks.data[lo].node == node ? &p->fallbacks.data[lo] : NULL;
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
    const size_t n = p ? p->fallbacks.n : 0;
    GB_FAIL_IF(i < 0 || (size_t) i >= n, GGML_STATUS_INVALID_ARGUMENT, "%s: fallback %d: the last graph has %zu",
        __func__, i, n);
    const struct gb_fallback * f = &p->fallbacks.data[i];
    *fallback = (struct ggml_backend_sched_fallback){
        .tensor = p->in.ids.data[f->node].tensor,
        .node = f->node,
        .op = gb_key_of(&p->in.keys, f->node)->op,
        .backend = sched->devices[p->assigned.to[f->node].backend].backend,
        .refused_by = sched->devices[f->refused_by].backend,
        .flops = f->flops,
        .n_copies = (int) f->copied.n,
        .copied_bytes = f->copied.bytes,
        .is_heavy = f->flops >= GGML_BACKEND_SCHED_HEAVY_FLOPS || f->copied.bytes >= GGML_BACKEND_SCHED_HEAVY_BYTES,
    };
    snprintf(fallback->name, sizeof(fallback->name), "%s", gb_sched_name_of(&p->in, f->node));
    memcpy(fallback->reason, f->reason, sizeof(fallback->reason));
    return GGML_STATUS_SUCCESS;
}
