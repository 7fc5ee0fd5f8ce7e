// run.c - executes a plan.
//
// Rules of ordering. A backend runs what is queued on it in order. Between backends, memory is watched by domain: each arena, each
// backend's leaf stores, each buffer of the user. `pending` notes, per backend and domain, whether work queued there since its last
// synchronize may read or write the domain.
//   0. With several backends a run begins by waiting for all of them: the user, too, may have queued work.
//   1. Before a split begins, every other backend whose pending work conflicts with what the split touches (one of the two writes) is
//      waited for. That covers sources not computed yet, memory taken over from a dead tensor that another queue still reads, and writes
//      into shared buffers.
//   2. The copies into a split are complete before its nodes are queued. (So nobody has to remember which copy reads which arena.)
//   3. A write-back waits for its own backend, then copies; nothing else is queued meanwhile.
//   4. Nodes are queued and not waited for, unless a callback wants to see one.
// After a failure everything is waited for, so the scheduler can go on with the next call.
#include "sched/sched.h"

#include <string.h>

struct run {
    struct ggml_backend_sched * sched;
    struct gb_sched_plan *      plan;
};

static ggml_backend_t backend_of(const struct run * r, int backend) {
    return r->sched->devices[backend].backend;
}

static uint8_t * pending_of(const struct run * r, int backend) {
    return r->plan->pending + (size_t) backend * (size_t) r->plan->n_domains;
}

enum ggml_status gb_sched_wait(struct ggml_backend_sched * s) {
    if (!s->running) {
        return GGML_STATUS_SUCCESS;
    }
    enum ggml_status first = GGML_STATUS_SUCCESS;
    char             message[GB_ERROR_SIZE / 2];
    for (int b = 0; b < s->n_backends; b++) {
        const enum ggml_status status = ggml_backend_synchronize(s->devices[b].backend);
        if (status != GGML_STATUS_SUCCESS && first == GGML_STATUS_SUCCESS) {
            first             = status;
            const size_t size = strlen(ggml_last_error());
            memcpy(message, ggml_last_error(), GB_MIN(size + 1, sizeof(message)));
            message[sizeof(message) - 1] = '\0';
            gb_fail(status, "ggml_backend_sched: backend %s: %s", ggml_backend_name(s->devices[b].backend), message);
        }
    }
    s->running = false;
    return first;
}

// ------------------------------------------------------------------------------------------------------------------------ waits

static enum ggml_status wait_for(struct run * r, int backend) {
    const enum ggml_status status = ggml_backend_synchronize(backend_of(r, backend));
    memset(pending_of(r, backend), 0, (size_t) r->plan->n_domains);
    return status;
}

static bool conflicts(const uint8_t * pending, const struct gb_access * accesses, size_t n) {
    for (size_t k = 0; k < n; k++) {
        if (pending[accesses[k].domain] && ((pending[accesses[k].domain] | accesses[k].mode) & GB_WRITES)) {
            return true;
        }
    }
    return false;
}

static enum ggml_status wait_for_others(struct run * r, const struct gb_split * split) {
    const struct gb_access * accesses = r->plan->accesses.data + split->accesses_begin;
    const size_t             n        = split->accesses_end - split->accesses_begin;
    for (int b = 0; b < r->plan->n_backends; b++) {
        if (b != split->backend && conflicts(pending_of(r, b), accesses, n)) {
            GB_TRY(wait_for(r, b));
        }
    }
    return GGML_STATUS_SUCCESS;
}

static void note_pending(struct run * r, const struct gb_split * split) {
    uint8_t * pending = pending_of(r, split->backend);
    for (size_t k = split->accesses_begin; k < split->accesses_end; k++) {
        pending[r->plan->accesses.data[k].domain] |= (uint8_t) r->plan->accesses.data[k].mode;
    }
}

// ------------------------------------------------------------------------------------------------------------------------ parts

static enum ggml_status copy_inputs(struct run * r, const struct gb_split * split) {
    struct gb_sched_plan * p    = r->plan;
    bool                   any  = false;
    for (size_t c = split->copies_begin; c < split->copies_end; c++) {
        const struct gb_copy * copy = &p->copies.data[c];
        if (copy->fill) {
            struct ggml_tensor * src = copy->range ? &copy->range->tensor : p->ids.data[copy->root].tensor;
            GB_TRY(ggml_backend_tensor_copy_async(backend_of(r, split->backend), src, &copy->dst->tensor));
            any = true;
        }
    }
    return any ? wait_for(r, split->backend) : GGML_STATUS_SUCCESS;
}

static bool has_plans(ggml_backend_t backend) {
    return backend->iface.graph_plan_create && backend->iface.graph_plan_free && backend->iface.graph_plan_compute;
}

static struct ggml_cgraph part(struct run * r, size_t begin, size_t end) {
    struct ggml_cgraph graph = { 0 };
    graph.n_nodes            = (int) (end - begin);
    graph.size               = graph.n_nodes;
    graph.nodes              = r->plan->exec.data + begin;
    return graph;
}

static enum ggml_status compute_part(struct run * r, int backend, size_t begin, size_t end) {
    if (begin == end) {
        return GGML_STATUS_SUCCESS;
    }
    struct ggml_cgraph graph  = part(r, begin, end);
    const uint64_t     before = gb_fail_count();
    if (ggml_backend_graph_compute(backend_of(r, backend), &graph)) {
        return GGML_STATUS_SUCCESS;
    }
    const enum ggml_status status = gb_status_since(before);
    return status == GGML_STATUS_SUCCESS ? GGML_STATUS_FAILED : status;
}

// A split is prepared by its backend once and then run many times, where the backend can do that.
static enum ggml_status compute_split(struct run * r, struct gb_split * split) {
    const ggml_backend_t backend = backend_of(r, split->backend);
    if (split->prepared == NULL && !split->no_plan && split->exec_end > split->exec_begin) {
        struct ggml_cgraph graph = part(r, split->exec_begin, split->exec_end);
        split->prepared          = has_plans(backend) ? ggml_backend_graph_plan_create(backend, &graph) : NULL;
        split->no_plan           = split->prepared == NULL;
    }
    return split->prepared ? ggml_backend_graph_plan_compute(backend, split->prepared)
                           : compute_part(r, split->backend, split->exec_begin, split->exec_end);
}

// Results on copies, of nodes before `node_end`, go home; *next is the first write-back not done yet.
static enum ggml_status write_back(struct run * r, const struct gb_split * split, int node_end, size_t * next) {
    const struct gb_sched_plan * p = r->plan;
    while (*next < split->backs_end && p->backs.data[*next].node < node_end) {
        const struct gb_write_back * back = &p->backs.data[(*next)++];
        GB_TRY(ggml_backend_synchronize(backend_of(r, split->backend)));
        GB_TRY(ggml_backend_tensor_copy(&back->from->tensor, p->ids.data[back->node].tensor));
    }
    return GGML_STATUS_SUCCESS;
}

// The callback may ask the scheduler about things and wait for it, even take itself back (then nothing is wanted any more), but not run,
// reset or free it.
static bool call_back(struct ggml_backend_sched * s, struct ggml_tensor * t, bool ask) {
    if (s->callback == NULL) {
        return !ask;
    }
    s->in_callback    = true;
    const bool answer = s->callback(t, ask, s->callback_data);
    s->in_callback    = false;
    s->running        = true; // whatever it waited for, there is more to come
    return answer;
}

// Nodes [i, j) where j - 1 is the first whose result the callback wants, or the end of the split.
static int end_of_unseen(struct run * r, const struct gb_split * split, int i, bool * wanted) {
    *wanted = false;
    while (i < split->end && !*wanted) {
        *wanted = call_back(r->sched, r->plan->ids.data[i].tensor, true);
        i++;
    }
    return i;
}

static enum ggml_status run_with_callback(struct run * r, const struct gb_split * split) {
    const struct gb_sched_plan * p    = r->plan;
    size_t                       exec = split->exec_begin, back = split->backs_begin;
    for (int i = split->start; i < split->end;) {
        bool         wanted;
        const int    end   = end_of_unseen(r, split, i, &wanted);
        const size_t begin = exec;
        while (exec < split->exec_end && p->exec_node.data[exec] < end) {
            exec++;
        }
        GB_TRY(compute_part(r, split->backend, begin, exec));
        GB_TRY(write_back(r, split, end, &back));
        if (wanted) {
            GB_TRY(ggml_backend_synchronize(backend_of(r, split->backend)));
            if (!call_back(r->sched, p->ids.data[end - 1].tensor, false)) {
                return gb_fail_quietly(GGML_STATUS_ABORTED, "ggml_backend_sched: stopped by the evaluation callback"); // wanted
            }
        }
        i = end;
    }
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status run_split(struct run * r, struct gb_split * split) {
    if (r->plan->n_backends > 1) {
        GB_TRY(wait_for_others(r, split));
        note_pending(r, split);
    }
    GB_TRY(copy_inputs(r, split));
    if (r->plan->n_backends > 1) {
        note_pending(r, split);
    }
    if (r->sched->callback) {
        return run_with_callback(r, split);
    }
    size_t back = split->backs_begin;
    GB_TRY(compute_split(r, split));
    return write_back(r, split, split->end, &back);
}

// The message of the failure, with where it was; then everything still queued is waited for.
static enum ggml_status fail_in_split(struct run * r, size_t k, enum ggml_status status, const char * func) {
    char         message[GB_ERROR_SIZE - 256];
    const char * text = ggml_last_error();
    const size_t size = strlen(text) + 1;
    memcpy(message, text, GB_MIN(size, sizeof(message)));
    message[sizeof(message) - 1] = '\0';
    for (int b = 0; b < r->plan->n_backends; b++) {
        ggml_backend_synchronize(backend_of(r, b));
    }
    r->sched->running = false;
    if (status == GGML_STATUS_ABORTED) {
        return gb_fail_quietly(status, message);
    }
    const struct gb_split * split = &r->plan->splits.data[k];
    return gb_fail(status, "%s: split %zu (nodes %d to %d) on backend %s: %s", func, k, split->start, split->end - 1,
                   ggml_backend_name(backend_of(r, split->backend)), message);
}

enum ggml_status gb_sched_run(struct ggml_backend_sched * s, struct gb_sched_plan * p, const char * func) {
    struct run r = { s, p };
    s->running   = true;
    if (p->n_backends > 1) {
        memset(p->pending, 0, (size_t) p->n_backends * (size_t) p->n_domains);
        GB_TRY(gb_sched_wait(s));
        s->running = true;
    }
    for (size_t k = 0; k < p->splits.n; k++) {
        const enum ggml_status status = run_split(&r, &p->splits.data[k]);
        if (status != GGML_STATUS_SUCCESS) {
            return fail_in_split(&r, k, status, func);
        }
    }
    return GGML_STATUS_SUCCESS;
}
