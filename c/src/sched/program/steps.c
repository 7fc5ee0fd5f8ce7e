// steps.c - the order in which the steps of a program are issued, and the queue that runs each.
//
// Splits are issued in their order, each with its copies before and its write-backs after it. A
// copy is issued as early as possible, so that it runs while other devices compute. Its source must
// be complete and its queue free of earlier work. If the receiver makes the copy, it can be issued
// before all preceding splits of other backends, else one split ahead. The receiver computes
// nothing until then, so only its own memory is in use a little longer. Among the copies at one
// point, those from outside the graph come first: a queue is in order, and they need not wait for
// other devices.
//
// Invariant: a step is issued after everything that it needs. So waiting for earlier steps cannot
// deadlock.
#include "sched/assign/assign.h"
#include "sched/input/input.h"
#include "sched/program/program.h"
#include "sched/sched.h"

// True if its queue can copy from and to other devices' memory.
static bool queues_copies(const struct ggml_backend_sched * s, int backend) {
    return gb_sched_has_queue(s, backend) && s->devices[backend].backend->iface.cpy_tensor_peer_async != NULL;
}

// The backend that copies from memory of `from` (-1: no backend's) to memory of `to`: the receiver,
// else the sender, else the host. The receiver knows when the memory that it overwrites is free.
static int copying_issuer(const struct ggml_backend_sched * s, int from, int to) {
    if (to >= 0 && queues_copies(s, to)) {
        return to;
    }
    return from >= 0 && queues_copies(s, from) ? from : s->n_backends;
}

// Appends a step.
static bool add_step(struct gb_sched_program * program, enum gb_step_kind kind, size_t index, int issuer) {
    return gb_vec_push(&program->steps,
        ((struct gb_step){ .kind = (uint8_t) kind, .index = (int32_t) index, .issuer = issuer }));
}

// State while copies get their position among the steps, split by split.
struct order {
    const struct ggml_backend_sched * sched;
    const struct gb_sched_input * in;
    const struct gb_sched_assigned * assigned;
    struct gb_sched_program * program;
    int32_t * writer; // owned; per root: the last split so far that writes it, + 1
    int32_t * free; // owned; per backend: the first split before which its queue may run a copy
    int32_t * first; // owned; per split: linked list of the copies issued before it; -1: none
    int32_t * last;
    int32_t * next; // owned; per copy
    int32_t writes_user; // the last split so far that writes the user's memory, where tensors may overlap; + 1
};

// True if tensors of different roots may overlap there.
static bool in_user_memory(const struct gb_id * id) {
    return id->location == GB_LOCATION_USER || id->location == GB_LOCATION_HOST;
}

// The backend that makes a copy.
static int issuer_of(const struct order * o, const struct gb_copy * copy) {
    return copying_issuer(o->sched, gb_sched_owner_of(o->sched, o->in, o->assigned, copy->root), copy->backend);
}

// The split before which a copy into split k is issued.
static size_t issue_point(const struct order * o, const struct gb_copy * copy, size_t k) {
    if (o->in->minimal || !copy->fill || k == 0) {
        return k;
    }
    const size_t one_ahead = k - 1;
    const size_t written = (size_t) o->writer[copy->root];
    const size_t user = in_user_memory(&o->in->ids.data[copy->root]) ? (size_t) o->writes_user : 0;
    const size_t free =
        issuer_of(o, copy) == copy->backend ? GB_MIN((size_t) o->free[copy->backend], one_ahead) : one_ahead;
    return GB_MAX(free, GB_MAX(written, user));
}

// The backend that makes a write-back, by the same rule.
static int back_issuer(const struct order * o, const struct gb_split * split, const struct gb_write_back * back) {
    return copying_issuer(o->sched, split->backend,
        gb_sched_owner_of(o->sched, o->in, o->assigned, o->in->ids.data[back->node].root));
}

// Adds a copy to those that are issued before split `point`.
static void append(struct order * o, size_t point, size_t c) {
    if (o->first[point] < 0) {
        o->first[point] = (int32_t) c;
    } else {
        o->next[o->last[point]] = (int32_t) c;
    }
    o->last[point] = (int32_t) c;
}

// Places copies of tensors that no split writes first.
static void place_copies(struct order * o, size_t k) {
    const struct gb_split * split = &o->program->splits.data[k];
    for (int pass = 0; pass < 2; pass++) {
        for (size_t c = split->copies_begin; c < split->copies_end; c++) {
            const struct gb_copy * copy = &o->program->copies.data[c];
            if (copy->merged < 0 && (o->writer[copy->root] > 0) == (pass > 0)) {
                append(o, issue_point(o, copy, k), c);
            }
        }
    }
}

// The queue has work up to split `until`, so it makes no copy to itself before that split.
static void keep_busy(struct order * o, int issuer, size_t until) {
    if (issuer < o->in->n_backends) {
        o->free[issuer] = GB_MAX(o->free[issuer], (int32_t) until);
    }
}

// Notes the work of the queues for split k. Copies of a queue to itself are in order anyway.
static void note_work(struct order * o, size_t k) {
    const struct gb_split * split = &o->program->splits.data[k];
    keep_busy(o, split->backend, k + 1);
    for (size_t c = split->copies_begin; c < split->copies_end; c++) {
        keep_busy(o, issuer_of(o, &o->program->copies.data[c]), k);
    }
    for (size_t w = split->backs_begin; w < split->backs_end; w++) {
        keep_busy(o, back_issuer(o, split, &o->program->backs.data[w]), k + 1);
    }
}

// A copy of a split's result cannot be issued before that split.
static void note_writes(struct order * o, size_t k) {
    for (int i = o->program->splits.data[k].start; i < o->program->splits.data[k].end; i++) {
        const struct gb_id * id = &o->in->ids.data[i];
        if (id->computes) {
            o->writer[id->root] = (int32_t) k + 1;
            o->writes_user = in_user_memory(&o->in->ids.data[id->root]) ? (int32_t) k + 1 : o->writes_user;
        }
    }
}

// Lists the copies before the split, its nodes, then its write-backs.
static bool add_split(struct order * o, size_t k) {
    const struct gb_split * split = &o->program->splits.data[k];
    for (int32_t c = o->first[k]; c >= 0; c = o->next[c]) {
        if (!add_step(o->program, GB_STEP_COPY, (size_t) c, issuer_of(o, &o->program->copies.data[c]))) {
            return false;
        }
    }
    // Also for a split of views, because the callback gets views, too.
    bool ok = add_step(o->program, GB_STEP_COMPUTE, k,
        gb_sched_has_queue(o->sched, split->backend) ? split->backend : o->in->n_backends);
    for (size_t w = split->backs_begin; ok && w < split->backs_end; w++) {
        ok = add_step(o->program, GB_STEP_BACK, w, back_issuer(o, split, &o->program->backs.data[w]));
    }
    return ok;
}

// Positions all copies before any step is listed, because a copy may be issued long before its own
// split.
static bool add_steps(struct order * o) {
    const size_t n = o->program->splits.n;
    for (size_t k = 0; k < n; k++) {
        o->first[k] = -1;
    }
    for (size_t c = 0; c < o->program->copies.n; c++) {
        o->next[c] = -1;
    }
    for (size_t k = 0; k < n; k++) {
        place_copies(o, k);
        note_work(o, k);
        note_writes(o, k);
    }
    bool ok = true;
    for (size_t k = 0; ok && k < n; k++) {
        ok = add_split(o, k);
    }
    return ok;
}

enum ggml_status gb_sched_order_steps(const struct ggml_backend_sched * s, const struct gb_sched_input * in,
    const struct gb_sched_assigned * assigned, struct gb_sched_program * program) {
    struct order o = { .sched = s, .in = in, .assigned = assigned, .program = program };
    o.writer = gb_calloc((size_t) in->n_ids, sizeof(*o.writer));
    o.free = gb_calloc((size_t) in->n_backends, sizeof(*o.free));
    o.first = gb_calloc(program->splits.n, sizeof(*o.first));
    o.last = gb_calloc(program->splits.n, sizeof(*o.last));
    o.next = gb_calloc(program->copies.n, sizeof(*o.next));
    const bool ok = o.writer && o.free && o.first && o.last && o.next && add_steps(&o);
    gb_free(o.writer);
    gb_free(o.free);
    gb_free(o.first);
    gb_free(o.last);
    gb_free(o.next);
    return ok ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}

int gb_sched_split_of_back(const struct gb_sched_program * program, size_t back) {
    int k = 0;
    while (back >= program->splits.data[k].backs_end) {
        k++;
    }
    return k;
}
