// steps.c - the order in which a plan's program is issued, and which queue does what.
//
// Splits come in their order, each with its copies before and its write-backs after it. A copy whose source is complete earlier is issued
// one split ahead, so that it travels while the split before computes; only one, because its memory is taken from then on. Within a
// split, what comes from outside the graph goes first: a queue does in order what it is given, and those need not wait for other devices.
//
// Invariant: a step is issued after everything it needs was issued, so waiting for what was issued before can never be a deadlock.
#include "sched/sched.h"

bool gb_sched_has_queue(const struct ggml_backend_sched * s, int backend) {
    return s->devices[backend].backend->iface.synchronize != NULL;
}

static bool queues_copies(const struct ggml_backend_sched * s, int backend) {
    return gb_sched_has_queue(s, backend) && s->devices[backend].backend->iface.cpy_tensor_peer_async != NULL;
}

// Who copies from memory that `from` owns (-1: nobody) to memory of `to`: the receiver, else the sender, else the host. The receiver knows
// when the memory that it overwrites is free.
static int copying_actor(const struct ggml_backend_sched * s, const struct gb_sched_plan * p, int from, int to) {
    if (to >= 0 && queues_copies(s, to)) {
        return to;
    }
    return from >= 0 && queues_copies(s, from) ? from : p->n_backends;
}

static int owner_of(const struct ggml_backend_sched * s, const struct gb_sched_plan * p, int root) {
    const int backend = p->assignment[root].backend;
    return backend >= 0 && gb_sched_plan_reaches(s, p, backend, root) ? backend : -1;
}

static bool add_step(struct gb_sched_plan * p, enum gb_step_kind kind, size_t index, int actor) {
    return gb_vec_push(&p->steps, ((struct gb_step){ .kind = (uint8_t) kind, .index = (int32_t) index, .actor = actor, .event = -1 }));
}

struct order {
    struct ggml_backend_sched * sched;
    struct gb_sched_plan *      plan;
    int32_t *                   writer; // owned; per root: the last split that writes it, of those that were come to; + 1
    uint8_t *                   issued; // owned; per copy
    bool                        writes_user; // the split come to last writes memory of the user, where tensors may overlap
};

static bool in_user_memory(const struct gb_id * id) {
    return id->home == GB_HOME_USER || id->home == GB_HOME_HOST;
}

// The copies into split k that no split from `from` on writes the source of; those that were written by none first.
static bool add_copies(struct order * o, size_t k, size_t from) {
    struct gb_sched_plan *  p     = o->plan;
    const struct gb_split * split = &p->splits.data[k];
    for (int pass = 0; pass < 2; pass++) {
        for (size_t c = split->copies_begin; c < split->copies_end; c++) {
            const struct gb_copy * copy   = &p->copies.data[c];
            const size_t           writer = (size_t) o->writer[copy->root];
            const bool             early  = from < k;
            if (o->issued[c] || copy->merged >= 0 || writer > from || (pass == 0 && writer > 0) ||
                (early && (!copy->fill || (o->writes_user && in_user_memory(&p->ids.data[copy->root]))))) {
                continue;
            }
            o->issued[c]    = 1;
            const int actor = copying_actor(o->sched, p, owner_of(o->sched, p, copy->root), copy->backend);
            if (!add_step(p, GB_STEP_COPY, c, actor)) {
                return false;
            }
        }
    }
    return true;
}

static bool add_backs(struct order * o, const struct gb_split * split) {
    struct gb_sched_plan * p = o->plan;
    for (size_t w = split->backs_begin; w < split->backs_end; w++) {
        const int home  = owner_of(o->sched, p, p->ids.data[p->backs.data[w].node].root);
        if (!add_step(p, GB_STEP_BACK, w, copying_actor(o->sched, p, split->backend, home))) {
            return false;
        }
    }
    return true;
}

static void note_writes(struct order * o, size_t k) {
    const struct gb_sched_plan * p = o->plan;
    o->writes_user                 = false;
    for (int i = p->splits.data[k].start; i < p->splits.data[k].end; i++) {
        if (p->ids.data[i].computes) {
            o->writer[p->ids.data[i].root] = (int32_t) k + 1;
            o->writes_user |= in_user_memory(&p->ids.data[p->ids.data[i].root]);
        }
    }
}

static bool add_steps(struct order * o) {
    struct gb_sched_plan * p = o->plan;
    for (size_t k = 0; k < p->splits.n; k++) {
        const struct gb_split * split = &p->splits.data[k];
        const int               actor = gb_sched_has_queue(o->sched, split->backend) ? split->backend : p->n_backends;
        if (!add_copies(o, k, k)) {
            return false;
        }
        note_writes(o, k);
        if (!p->lean && k + 1 < p->splits.n && !add_copies(o, k + 1, k)) {
            return false;
        }
        if (!add_step(p, GB_STEP_COMPUTE, k, actor)) { // also when it has views only: a callback is asked for them
            return false;
        }
        if (!add_backs(o, split)) {
            return false;
        }
    }
    return true;
}

enum ggml_status gb_sched_order_steps(struct ggml_backend_sched * s, struct gb_sched_plan * p) {
    struct order o = { .sched = s, .plan = p };
    o.writer       = gb_calloc((size_t) p->n_ids, sizeof(*o.writer));
    o.issued       = gb_calloc(p->copies.n, 1);
    const bool ok  = o.writer && o.issued && add_steps(&o);
    gb_free(o.writer);
    gb_free(o.issued);
    return ok ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}
