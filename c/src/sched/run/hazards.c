// hazards.c - computes for which steps each step waits, once per plan, by running the steps on a
// model of the memory.
//
// Issuers are the queues of the backends and the host. A step runs after every earlier step of its
// issuer, and after all steps that the host knew to be complete when it issued the step. The
// knowledge of an issuer is a vector clock: per issuer, the number of its steps that are complete.
// Each byte range stores the last step that wrote it and, per issuer, the last step that read it
// since. A step that reads the range must come after the writer. A step that writes the range must
// also come after the readers. A step that the issuer does not know to be complete becomes a wait.
// A wait also adds the knowledge of the awaited step, so redundant waits are left out. Every
// remaining wait is necessary.
//
// A queue itself waits if it supports the other queue's events. Otherwise the host waits before it
// issues the step.
#include "sched/input/input.h"
#include "sched/layout/layout.h"
#include "sched/program/program.h"
#include "sched/run/run.h"
#include "sched/sched.h"

#include <stdlib.h>

#include "backend/backend.h"

// Bytes [lo, hi) of one address space that a step reads or writes.
struct range {
    int64_t space; // number of an address range: an arena, a leaf store, a replica, or addresses that exist
    size_t lo, hi;
    bool write;
};

// The begin or end of a range.
struct bound {
    int64_t space;
    size_t at;
};

// The model of the memory and of the issuers' knowledge.
struct hazards {
    const struct ggml_backend_sched * sched;
    const struct gb_sched_input * in;
    const struct gb_sched_program * program;
    const struct gb_sched_layout * layout;
    struct gb_sched_waits * waits; // to be filled
    struct gb_ptrmap storage;
    GB_VEC(struct range) ranges;
    size_t * begin; // owned; n_steps + 1 entries: where the ranges of a step begin
    GB_VEC(struct bound) bounds; // begins and ends of ranges, ascending; segment i is from bound i to bound i + 1
    int n_issuers;
    int32_t * writer; // owned; per segment: the step that wrote it + 1
    int32_t * readers; // owned; per segment and issuer: the last step that read it + 1
    int32_t * known; // owned; per issuer and issuer: steps known to be complete
    int32_t * clock; // owned; per step and issuer: knowledge after its completion
    int32_t * count; // owned; per issuer: steps issued
    int32_t * last; // owned; per issuer: the last issued step + 1
    int32_t * time; // owned; per step: its number among the steps of its issuer
};

// Frees the model; the plan has the waits.
static void free_hazards(struct hazards * h) {
    gb_ptrmap_free(&h->storage);
    gb_vec_free(&h->ranges);
    gb_vec_free(&h->bounds);
    gb_free(h->begin);
    gb_free(h->writer);
    gb_free(h->readers);
    gb_free(h->known);
    gb_free(h->clock);
    gb_free(h->count);
    gb_free(h->last);
    gb_free(h->time);
}

// -------------------------------------------------------------------------------------------------------------- ranges

// The bytes of a tensor. Each arena, leaf store and replica is an address space; tensors without an
// address have their offset there.
static bool add_range(struct hazards * h, const struct ggml_tensor * t, bool write) {
    const struct ggml_tensor * base = t->view_src ? t->view_src : t;
    const int64_t id = gb_ptrmap_get(&h->storage, base);
    const bool copy = id >= h->in->n_ids;
    const struct gb_item * item = &h->layout->items.data[id];
    // A shadow has no address yet; its original has one.
    const struct ggml_tensor * own = copy ? base : h->in->ids.data[id].tensor;
    struct range r = { 0, (size_t) (uintptr_t) own->data, 0, write };
    size_t size = ggml_nbytes(base);
    if (copy && h->program->copies.data[id - h->in->n_ids].kept) {
        r.space = -1 - (id - h->in->n_ids);
        r.lo = 0;
    } else if (item->valid) {
        const int leaf = !copy && h->in->ids.data[id].location == GB_LOCATION_LEAF;
        r.space = 1 + ((int64_t) item->chunk * h->in->n_backends + item->backend) * 2 + leaf;
        r.lo = item->offset;
        size = item->size;
    }
    r.lo += base == t ? 0 : t->view_offs;
    r.hi = r.lo + (base == t ? size : ggml_nbytes(t));
    return r.lo == r.hi || gb_vec_push(&h->ranges, r);
}

// Adds the ranges that a node writes and reads. A node that names itself as a source does not read
// itself.
static bool add_node(struct hazards * h, const struct ggml_tensor * t) {
    bool ok = add_range(h, t, true);
    for (int i = 0; ok && i < GGML_MAX_SRC; i++) {
        ok = t->src[i] == NULL || t->src[i] == t || add_range(h, t->src[i], false);
    }
    return ok;
}

// Adds the ranges of a step. A staged input is read from its own host memory, so that read needs no
// wait.
static bool add_ranges(struct hazards * h, const struct gb_step * step) {
    bool ok = true;
    if (step->kind == GB_STEP_COPY) {
        const struct gb_copy * copy = &h->program->copies.data[step->index];
        const struct ggml_tensor * src = copy->range ? &copy->range->tensor : h->in->ids.data[copy->root].tensor;
        const bool staged = copy->staged && step->issuer < h->in->n_backends; // it reads its own host memory
        return !copy->fill || ((staged || add_range(h, src, false)) && add_range(h, &copy->dst->tensor, true));
    }
    if (step->kind == GB_STEP_BACK) {
        const struct gb_write_back * back = &h->program->backs.data[step->index];
        return add_range(h, &back->from->tensor, false) && add_range(h, h->in->ids.data[back->node].tensor, true);
    }
    for (size_t e = h->program->splits.data[step->index].exec_begin;
        ok && e < h->program->splits.data[step->index].exec_end; e++) {
        ok = add_node(h, h->program->exec.data[e]);
    }
    return ok;
}

// Sorts reads before writes, then by address.
static int by_place(const void * pa, const void * pb) {
    const struct range *a = pa, *b = pb;
    if (a->write != b->write) {
        return a->write - b->write;
    }
    return a->space != b->space ? (a->space > b->space) - (a->space < b->space) : (a->lo > b->lo) - (a->lo < b->lo);
}

// Merges adjacent ranges of one step.
static void merge_ranges(struct hazards * h, size_t from) {
    struct range * r = h->ranges.data + from;
    const size_t n = h->ranges.n - from;
    size_t k = 0;
    if (n < 2) {
        return;
    }
    qsort(r, n, sizeof(*r), by_place);
    for (size_t i = 1; i < n; i++) {
        if (r[i].write == r[k].write && r[i].space == r[k].space && r[i].lo <= r[k].hi) {
            r[k].hi = GB_MAX(r[k].hi, r[i].hi);
        } else {
            r[++k] = r[i];
        }
    }
    h->ranges.n = from + k + 1;
}

// Compares by address space, then by address.
static int compare_bounds(const void * pa, const void * pb) {
    const struct bound *a = pa, *b = pb;
    return a->space != b->space ? (a->space > b->space) - (a->space < b->space) : (a->at > b->at) - (a->at < b->at);
}

// Cuts ranges into segments. The same steps read and write all bytes of a segment.
static bool cut_segments(struct hazards * h) {
    for (size_t i = 0; i < h->ranges.n; i++) {
        const struct range * r = &h->ranges.data[i];
        if (!gb_vec_push(&h->bounds, ((struct bound){ r->space, r->lo })) ||
            !gb_vec_push(&h->bounds, ((struct bound){ r->space, r->hi }))) {
            return false;
        }
    }
    size_t n = 0;
    if (h->bounds.n > 0) {
        qsort(h->bounds.data, h->bounds.n, sizeof(*h->bounds.data), compare_bounds);
    }
    for (size_t i = 0; i < h->bounds.n; i++) {
        if (n == 0 || compare_bounds(&h->bounds.data[n - 1], &h->bounds.data[i]) != 0) {
            h->bounds.data[n++] = h->bounds.data[i];
        }
    }
    h->bounds.n = n;
    return true;
}

// The segment that begins at a bound. Every end of a range is a bound.
static size_t segment_at(const struct hazards * h, int64_t space, size_t at) {
    const struct bound key = { space, at };
    size_t lo = 0, hi = h->bounds.n;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        if (compare_bounds(&h->bounds.data[mid], &key) < 0) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

// Collects the ranges of all steps, and sets the clocks to zero.
static bool prepare(struct hazards * h) {
    const size_t n_steps = h->program->steps.n, n = (size_t) h->n_issuers;
    h->begin = gb_calloc(n_steps + 1, sizeof(*h->begin));
    bool ok = h->begin && gb_sched_map_storage(h->in, h->program, &h->storage);
    for (size_t k = 0; ok && k < n_steps; k++) {
        h->begin[k] = h->ranges.n;
        ok = add_ranges(h, &h->program->steps.data[k]);
        merge_ranges(h, h->begin[k]);
        h->begin[k + 1] = h->ranges.n;
    }
    ok = ok && cut_segments(h);
    h->writer = ok ? gb_calloc(h->bounds.n + 1, sizeof(*h->writer)) : NULL;
    h->readers = ok ? gb_calloc((h->bounds.n + 1) * n, sizeof(*h->readers)) : NULL;
    h->known = gb_calloc(n * n, sizeof(*h->known));
    h->clock = gb_calloc(n_steps * n, sizeof(*h->clock));
    h->count = gb_calloc(n, sizeof(*h->count));
    h->last = gb_calloc(n, sizeof(*h->last));
    h->time = gb_calloc(n_steps, sizeof(*h->time));
    return ok && h->writer && h->readers && h->known && h->clock && h->count && h->last && h->time;
}

// --------------------------------------------------------------------------------------------------------------- waits

// The step of one issuer that must be complete.
struct need {
    int32_t step; // + 1; 0: none
    bool content;
};

// Knowledge of an issuer: per issuer, the number of its steps that are complete.
static int32_t * known_by(const struct hazards * h, int issuer) {
    return h->known + (size_t) issuer * (size_t) h->n_issuers;
}

// Knowledge after the completion of a step.
static int32_t * known_after(const struct hazards * h, int step) {
    return h->clock + (size_t) step * (size_t) h->n_issuers;
}

// Adds `clock` to the knowledge of an issuer.
static void learn(const struct hazards * h, int issuer, const int32_t * clock) {
    int32_t * known = known_by(h, issuer);
    for (int b = 0; b < h->n_issuers; b++) {
        known[b] = GB_MAX(known[b], clock[b]);
    }
}

// Queues are in order, so the latest step of each issuer suffices. step: + 1; 0: none.
static void need_step(const struct hazards * h, struct need * needs, int issuer, int32_t step, bool content) {
    const int of = step ? h->program->steps.data[step - 1].issuer : issuer;
    if (of == issuer || known_by(h, issuer)[of] >= h->time[step - 1]) {
        return;
    }
    needs[of].step = needs[of].step && h->time[needs[of].step - 1] > h->time[step - 1] ? needs[of].step : step;
    needs[of].content |= content;
}

// A read comes after the last write, a write also after the last reads.
static void find_needs(const struct hazards * h, int k, struct need * needs) {
    const int issuer = h->program->steps.data[k].issuer;
    for (size_t i = h->begin[k]; i < h->begin[k + 1]; i++) {
        const struct range * r = &h->ranges.data[i];
        const size_t end = segment_at(h, r->space, r->hi);
        for (size_t g = segment_at(h, r->space, r->lo); g < end; g++) {
            need_step(h, needs, issuer, h->writer[g], !r->write);
            for (int b = 0; r->write && b < h->n_issuers; b++) {
                need_step(h, needs, issuer, h->readers[g * (size_t) h->n_issuers + (size_t) b], false);
            }
        }
    }
}

// True if the queue supports the other queue's events.
static bool waits_by_itself(const struct hazards * h, int issuer, int of) {
    return issuer < h->in->n_backends &&
           gb_backend_waits_for(h->sched->devices[issuer].backend, h->sched->devices[of].backend);
}

// A queue without events is waited for as a whole.
static void extend_needs(const struct hazards * h, struct need * needs) {
    for (int b = 0; b < h->in->n_backends; b++) {
        const ggml_backend_t backend = h->sched->devices[b].backend;
        if (needs[b].step && !gb_backend_waits_for(backend, backend)) {
            needs[b].step = h->last[b];
        }
    }
}

// Drops a need that another needed step has waited for.
static void drop_implied(const struct hazards * h, struct need * needs) {
    for (int c = 0; c < h->n_issuers; c++) {
        for (int b = 0; b < h->n_issuers && needs[c].step; b++) {
            if (b != c && needs[b].step && known_after(h, needs[b].step - 1)[c] >= h->time[needs[c].step - 1]) {
                needs[b].content |= needs[c].content;
                needs[c].step = 0;
            }
        }
    }
}

// Adds the waits. All steps issued later know the steps that the host has waited for.
static bool add_waits(struct hazards * h, int issuer, const struct need * needs) {
    for (int b = 0; b < h->in->n_backends; b++) {
        if (needs[b].step == 0) {
            continue;
        }
        const int on = needs[b].step - 1;
        const bool by_host = !waits_by_itself(h, issuer, b);
        const bool implied =
            !by_host && gb_backend_comes_behind(h->sched->devices[issuer].backend, h->sched->devices[b].backend);
        if (!gb_vec_push(&h->waits->list, ((struct gb_wait){ on, by_host, implied, !needs[b].content }))) {
            return false;
        }
        h->waits->of[on].event = implied ? h->waits->of[on].event : 0;
        learn(h, issuer, known_after(h, on));
        if (by_host) {
            learn(h, h->in->n_backends, known_after(h, on));
            learn(h, issuer, known_by(h, h->in->n_backends));
        }
    }
    return true;
}

// A write removes the earlier readers of a segment, because later steps come after the write and so
// after them.
static void note_accesses(struct hazards * h, int k) {
    const size_t n = (size_t) h->n_issuers, issuer = (size_t) h->program->steps.data[k].issuer;
    for (size_t i = h->begin[k]; i < h->begin[k + 1]; i++) { // reads come before writes
        const struct range * r = &h->ranges.data[i];
        const size_t end = segment_at(h, r->space, r->hi);
        for (size_t g = segment_at(h, r->space, r->lo); g < end; g++) {
            if (r->write) {
                h->writer[g] = k + 1;
                memset(h->readers + g * n, 0, n * sizeof(*h->readers));
            } else {
                h->readers[g * n + issuer] = k + 1;
            }
        }
    }
}

// Computes the waits of one step, and updates the model. again: this is the second of two runs
// without a wait between them.
static bool run_step(struct hazards * h, int k, struct need * needs, bool again) {
    const struct gb_step * step = &h->program->steps.data[k];
    struct gb_step_waits * of = &h->waits->of[k];
    const int host = h->in->n_backends;
    learn(h, step->issuer, known_by(h, host));
    known_by(h, step->issuer)[host] = h->count[host];
    memset(needs, 0, (size_t) h->n_issuers * sizeof(*needs));
    find_needs(h, k, needs);
    extend_needs(h, needs);
    drop_implied(h, needs);
    const size_t begin = h->waits->list.n;
    if (!add_waits(h, step->issuer, needs)) {
        return false;
    }
    if (!again) {
        of->begin = begin;
        of->end = h->waits->list.n;
    }
    of->again_begin = begin;
    of->again_end = h->waits->list.n;
    h->time[k] = ++h->count[step->issuer];
    h->last[step->issuer] = k + 1;
    known_by(h, step->issuer)[step->issuer] = h->time[k];
    memcpy(known_after(h, k), known_by(h, step->issuer), (size_t) h->n_issuers * sizeof(*h->known));
    note_accesses(h, k);
    return true;
}

// Only steps that another step waits for get an event.
static void number_events(const struct gb_sched_program * program, struct gb_sched_waits * waits) {
    for (size_t k = 0; k < program->steps.n; k++) {
        if (waits->of[k].event >= 0) {
            waits->of[k].event = (int32_t) waits->n_events++;
        }
    }
}

// True if all steps have one issuer, whose order is enough.
static bool has_one_issuer(const struct gb_sched_program * program) {
    for (size_t k = 1; k < program->steps.n; k++) {
        if (program->steps.data[k].issuer != program->steps.data[0].issuer) {
            return false;
        }
    }
    return true;
}

enum ggml_status gb_sched_find_hazards(const struct ggml_backend_sched * s, const struct gb_sched_input * in,
    const struct gb_sched_program * program, const struct gb_sched_layout * layout, struct gb_sched_waits * waits) {
    waits->of = gb_calloc(program->steps.n, sizeof(*waits->of));
    if (waits->of == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    for (size_t k = 0; k < program->steps.n; k++) {
        waits->of[k].event = -1;
    }
    if (has_one_issuer(program)) {
        return GGML_STATUS_SUCCESS;
    }
    struct hazards h = {
        .sched = s, .in = in, .program = program, .layout = layout, .waits = waits, .n_issuers = in->n_backends + 1
    };
    struct need * needs = gb_calloc((size_t) h.n_issuers, sizeof(*needs));
    bool ok = needs && prepare(&h);
    for (size_t k = 0; ok && k < program->steps.n; k++) {
        ok = run_step(&h, (int) k, needs, false);
    }
    // Computes the waits of a second run right after the first. Later runs need no other waits: a
    // wait for a step that was issued twice is for the later issue, and knowledge of the previous
    // run never decreases.
    for (size_t k = 0; ok && program->n_staged > 0 && k < program->steps.n; k++) {
        ok = run_step(&h, (int) k, needs, true);
    }
    number_events(program, waits);
    gb_free(needs);
    free_hazards(&h);
    return ok ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}

void gb_sched_free_waits(struct gb_sched_waits * waits) {
    gb_vec_free(&waits->list);
    gb_free(waits->of);
}
