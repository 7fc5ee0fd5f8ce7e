// fallback.c - finds nodes that run on a backend of lower priority because a better backend cannot
// run them, and the cost of that.
//
// A node that the user, a weight or existing memory assigned there has not fallen back. A node has
// fallen back if a related backend of higher priority cannot run it. A backend is related if it
// computes a source of the node, has a weight of it, reads its result, or is the backend that the
// rules preferred. The search runs when the plan is made, while the tensors exist.
#include "base/current.h"
#include "sched/assign/assign.h"
#include "sched/input/input.h"
#include "sched/program/program.h"
#include "sched/report/report.h"
#include "sched/sched.h"

#include <string.h>

#include "tensor/work.h"

// The parts of a plan that are searched, borrowed, and the report to fill.
struct finder {
    const struct ggml_backend_sched * sched;
    const struct gb_sched_input * in;
    const struct gb_sched_assigned * assigned;
    const struct gb_sched_program * program;
    struct gb_sched_report * report;
};

// Backends after the 64th have no bit, so fallbacks because of them are not found.
static uint64_t bit(int backend) { return backend >= 0 && backend < 64 ? UINT64_C(1) << backend : 0; }

// Per tensor: mask of the backends that compute its neighbours or have its weights. Owned by the
// caller; NULL: no memory.
static uint64_t * find_neighbours(const struct finder * p) {
    uint64_t * neighbours = gb_calloc((size_t) p->in->n_ids, sizeof(*neighbours));
    for (int i = 0; neighbours && i < p->in->n_nodes; i++) {
        for (uint32_t k = p->in->src_begin[i]; p->in->ids.data[i].computes && k < p->in->src_begin[i + 1]; k++) {
            const int s = p->in->srcs[k], root = p->in->ids.data[s].root,
                      maker = s < p->in->n_nodes && p->in->ids.data[s].computes ? s : root;
            if (p->in->ids.data[maker].computes || p->in->weight[maker]) {
                neighbours[i] |= bit(p->assigned->to[maker].backend);
            }
            neighbours[maker] |= bit(p->assigned->to[i].backend);
        }
    }
    return neighbours;
}

// True if the backend cannot run the node. The answer is cached.
static bool refuses(const struct finder * p, int backend, int node) {
    uint8_t * known = &p->assigned->supports[(size_t) node * (size_t) p->in->n_backends + (size_t) backend];
    if (*known == 0) {
        *known = ggml_backend_supports_op(p->sched->devices[backend].backend, p->in->ids.data[node].tensor) ? 1 : 2;
    }
    return *known == 2;
}

// True if the user, a weight or existing memory assigned the node, or no backend is better.
static bool is_where_it_belongs(const struct gb_assignment * a) {
    switch ((enum gb_cause) a->cause) {
        case GB_CAUSE_USER:
        case GB_CAUSE_WEIGHT:
        case GB_CAUSE_BUFFER:
        case GB_CAUSE_ALIAS: return true;
        default: return a->backend <= 0;
    }
}

// The related backend of highest priority that cannot run the node; -1: none.
static int refused_by(const struct finder * p, int node, uint64_t neighbours) {
    const struct gb_assignment * a = &p->assigned->to[node];
    for (int b = 0; b < a->backend; b++) {
        if (((neighbours & bit(b)) || b == a->wanted) && refuses(p, b, node)) {
            return b;
        }
    }
    return -1;
}

// -------------------------------------------------------------------------------------------------------------- copies

// State of a root: its copies in the current split, and the last node so far that wrote it.
struct of_root {
    int32_t split, writer; // -1: none
    int32_t reader; // the last node that these copies were counted for
    struct gb_copied copied;
};

static void add(struct gb_copied * sum, struct gb_copied more) {
    sum->n += more.n;
    sum->bytes += more.bytes;
}

// Counts the copies of a split per root. A copy of an earlier result also counts for the node that
// wrote it. Copies without `fill` move no bytes and do not count.
static void count_in(const struct finder * p, int k, struct of_root * roots) {
    const struct gb_split * split = &p->program->splits.data[k];
    for (size_t c = split->copies_begin; c < split->copies_end; c++) {
        const struct gb_copy * copy = &p->program->copies.data[c];
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
            add(&p->report->copied.data[root->writer].of_result, one);
        }
    }
}

// Adds the copies of each root that a node of the split reads, once per root. Then the node becomes
// the last writer of its own root.
static void count_of_nodes(const struct finder * p, int k, struct of_root * roots) {
    const struct gb_split * split = &p->program->splits.data[k];
    for (int i = split->start; i < split->end; i++) {
        for (uint32_t s = p->in->src_begin[i]; s < p->in->src_begin[i + 1]; s++) {
            struct of_root * root = &roots[p->in->ids.data[p->in->srcs[s]].root];
            if (root->split == k && root->reader != i) {
                root->reader = i;
                add(&p->report->copied.data[i].in, root->copied);
            }
        }
        if (p->in->ids.data[i].computes) {
            roots[p->in->ids.data[i].root].writer = i;
        }
    }
}

// Counts the copies of all nodes in one pass. Merged copies are counted one by one.
static enum ggml_status count_copies(const struct finder * p) {
    struct of_root * roots = gb_malloc((size_t) p->in->n_ids * sizeof(*roots));
    enum ggml_status status = GGML_STATUS_ALLOC_FAILED;
    const struct gb_copied none = { 0, 0 };
    if (roots != NULL && gb_vec_resize_zero(&p->report->copied, (size_t) p->in->n_nodes)) {
        for (int i = 0; i < p->in->n_ids; i++) {
            roots[i] = (struct of_root){ -1, -1, -1, none };
        }
        status = GGML_STATUS_SUCCESS;
    }
    for (size_t k = 0; k < p->program->splits.n && status == GGML_STATUS_SUCCESS; k++) {
        count_in(p, (int) k, roots);
        count_of_nodes(p, (int) k, roots);
        status = gb_check_poll();
    }
    gb_free(roots);
    return status;
}

struct gb_copied gb_sched_copies_of(const struct gb_sched_report * report, int node, bool of_result) {
    struct gb_copied sum = { 0, 0 };
    if ((size_t) node < report->copied.n) {
        sum = report->copied.data[node].in;
        if (of_result) {
            add(&sum, report->copied.data[node].of_result);
        }
    }
    return sum;
}

// --------------------------------------------------------------------------------------------- of the nodes of a plan

// Copies the reason while the tensors exist, because it may contain their shapes.
static bool note(const struct finder * p, int node, int by) {
    const struct ggml_tensor * t = p->in->ids.data[node].tensor;
    const char * reason = ggml_backend_unsupported_reason(p->sched->devices[by].backend, t);
    struct gb_fallback f = { .node = node, .refused_by = by, .flops = gb_work_of(t).flops };
    f.copied = gb_sched_copies_of(p->report, node, true);
    if (reason) {
        memcpy(f.reason, reason, GB_MIN(strlen(reason), sizeof(f.reason) - 1));
    }
    return gb_vec_push(&p->report->fallbacks, f);
}

// Finds the fallback of each node that computes.
static enum ggml_status find_fallbacks(const struct finder * p, const uint64_t * neighbours) {
    for (int i = 0; i < p->in->n_nodes; i++) {
        const bool may = p->in->ids.data[i].computes && !is_where_it_belongs(&p->assigned->to[i]);
        const int by = may ? refused_by(p, i, neighbours[i]) : -1;
        if (by >= 0 && !note(p, i, by)) {
            return GGML_STATUS_ALLOC_FAILED;
        }
        GB_TRY(gb_check_poll());
    }
    return GGML_STATUS_SUCCESS;
}

enum ggml_status gb_sched_find_fallbacks(const struct ggml_backend_sched * s, const struct gb_sched_input * in,
    const struct gb_sched_assigned * assigned, const struct gb_sched_program * program,
    struct gb_sched_report * report) {
    const struct finder p = { s, in, assigned, program, report };
    if (in->n_backends == 1) {
        return GGML_STATUS_SUCCESS;
    }
    GB_TRY(count_copies(&p));
    uint64_t * neighbours = find_neighbours(&p);
    const enum ggml_status status = neighbours ? find_fallbacks(&p, neighbours) : GGML_STATUS_ALLOC_FAILED;
    gb_free(neighbours);
    return status;
}

// Fallbacks are in the order of nodes.
const struct gb_fallback * gb_sched_fallback_of(const struct gb_sched_report * report, int node) {
    size_t lo = 0, hi = report->fallbacks.n;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        if (report->fallbacks.data[mid].node < node) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo < report->fallbacks.n && report->fallbacks.data[lo].node == node ? &report->fallbacks.data[lo] : NULL;
}

void gb_sched_free_report(struct gb_sched_report * report) {
    gb_vec_free(&report->fallbacks);
    gb_vec_free(&report->copied);
}
