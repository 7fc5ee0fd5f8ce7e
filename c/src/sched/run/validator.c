// validator.c - validates a run while it happens: all conflicting accesses are ordered, and every
// read finds the right content.
//
// The validator shares no code with hazards.c and uses no results of planning. It sees the executed
// waits, and the addresses that a step is about to read and write. For each byte range it stores
// the last step that wrote it, the last readers on each queue, and the owner of the content. If two
// accesses from different queues conflict, a chain of waits must order them (vector clocks). So an
// error is found in every run, independent of timing. A validated run waits for each step, so
// errors are reported before they do harm.
//
// Arenas are filled with ones (NaN as floats) when a run begins, and again where content dies, so
// that wrong reads give NaN. Memory of the user is assumed to be valid when a run begins.
#include "sched/input/input.h"
#include "sched/memory/memory.h"
#include "sched/program/program.h"
#include "sched/run/run.h"
#include "sched/sched.h"

#include <stdio.h>
#include <string.h>

enum { NOBODY = -1, DEAD = -2 }; // special values of `storage`

struct area { // bytes [lo, hi), touched in this run; areas are sorted and do not overlap
    uintptr_t lo, hi;
    int32_t writer; // step, -1: none
    int32_t storage; // owner of the content: id of a root, n_ids + copy, or one of the above
};

// State of the memory and of the issuers during one run. Steps are counted per issuer, from 1 on;
// `known` and `clock` are vector clocks.
struct gb_validator {
    const struct gb_sched_binding * run; // of this run
    int n_issuers;
    struct gb_ptrmap storage;
    GB_VEC(struct area) areas;
    GB_VEC(int32_t) readers; // per area and issuer: step, -1: none
    GB_VEC(int32_t) known; // per issuer and issuer: steps known to be complete
    GB_VEC(int32_t) clock; // per step and issuer
    GB_VEC(int32_t) count; // per issuer: steps issued
    GB_VEC(int32_t) latest; // per issuer: step, -1: none
    GB_VEC(int32_t) time; // per step: its number among its issuer's
    GB_VEC(int32_t) last_use; // per storage: the last step that uses it
    GB_VEC(uint8_t) away; // per write-back: 1 while the result is only in a copy
};

void gb_validator_free(struct gb_validator * c) {
    if (c == NULL) {
        return;
    }
    gb_ptrmap_free(&c->storage);
    gb_vec_free(&c->areas);
    gb_vec_free(&c->readers);
    gb_vec_free(&c->known);
    gb_vec_free(&c->clock);
    gb_vec_free(&c->count);
    gb_vec_free(&c->latest);
    gb_vec_free(&c->time);
    gb_vec_free(&c->last_use);
    gb_vec_free(&c->away);
    gb_free(c);
}

enum ggml_status gb_sched_set_validator(struct ggml_backend_sched * s, bool check) {
    if (!check) {
        gb_validator_free(s->validator);
        s->validator = NULL;
    } else if (s->validator == NULL) {
        s->validator = GB_NEW(struct gb_validator);
        if (s->validator == NULL) {
            return GGML_STATUS_ALLOC_FAILED;
        }
        gb_sched_forget_replicas(s); // the validator must see the replicas being filled
    }
    return GGML_STATUS_SUCCESS;
}

// ------------------------------------------------------------------------------------------------------------ accesses

// One tensor that a step reads or writes.
struct access {
    const struct ggml_tensor * tensor;
    bool write;
};

// Iterates over the accesses of a step; false at the end. *at is 0 before the first.
static bool next_access(const struct gb_sched_binding * run, const struct gb_step * step, size_t * at,
    struct access * a) {
    const size_t i = (*at)++;
    if (step->kind == GB_STEP_COPY) {
        const struct gb_copy * copy = &run->program->copies.data[step->index];
        a->tensor = i == 1        ? &copy->dst->tensor
                    : copy->range ? &copy->range->tensor
                                  : run->in->ids.data[copy->root].tensor;
        a->write = i == 1;
        return copy->fill && i < 2;
    }
    if (step->kind == GB_STEP_BACK) {
        const struct gb_write_back * back = &run->program->backs.data[step->index];
        a->tensor = i == 1 ? run->in->ids.data[back->node].tensor : &back->from->tensor;
        a->write = i == 1;
        return i < 2;
    }
    const struct gb_split * split = &run->program->splits.data[step->index];
    const size_t e = split->exec_begin + i / (GGML_MAX_SRC + 1), k = i % (GGML_MAX_SRC + 1);
    if (e >= split->exec_end) {
        return false;
    }
    a->write = k == GGML_MAX_SRC; // after all reads
    a->tensor = a->write ? run->program->exec.data[e] : run->program->exec.data[e]->src[k];
    if (a->tensor == run->program->exec.data[e] && !a->write) {
        a->tensor = NULL;
    }
    return true; // the tensor may be NULL
}

// The storage id of a tensor's root or copy.
static int32_t storage_of(const struct gb_validator * c, const struct ggml_tensor * t) {
    return (int32_t) gb_ptrmap_get(&c->storage, t->view_src ? t->view_src : t);
}

// True if the content of the storage ends with the run.
static bool in_arena(const struct gb_sched_binding * run, int32_t storage) {
    return storage >= run->in->n_ids ? !run->program->copies.data[storage - run->in->n_ids].kept
                                     : run->in->ids.data[storage].location == GB_LOCATION_ARENA;
}

// --------------------------------------------------------------------------------------------------------------- areas

// The first area that ends behind `at`.
static size_t area_at(const struct gb_validator * c, uintptr_t at) {
    size_t lo = 0, hi = c->areas.n;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        if (c->areas.data[mid].hi <= at) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

// Inserts an area at index i. `readers`: per issuer, NULL: none.
static bool insert_area(struct gb_validator * c, size_t i, struct area area, const int32_t * readers) {
    const size_t n = (size_t) c->n_issuers;
    if (!gb_vec_reserve(&c->areas, c->areas.n + 1) || !gb_vec_reserve(&c->readers, (c->areas.n + 1) * n)) {
        return false;
    }
    memmove(c->areas.data + i + 1, c->areas.data + i, (c->areas.n - i) * sizeof(area));
    memmove(c->readers.data + (i + 1) * n, c->readers.data + i * n, (c->areas.n - i) * n * sizeof(int32_t));
    c->areas.data[i] = area;
    c->areas.n++;
    for (size_t b = 0; b < n; b++) {
        c->readers.data[i * n + b] = readers ? readers[b] : -1;
    }
    return true;
}

// Splits the area that covers `at`.
static bool cut(struct gb_validator * c, uintptr_t at) {
    const size_t i = area_at(c, at);
    if (i == c->areas.n || c->areas.data[i].lo >= at) {
        return true;
    }
    const struct area left = { c->areas.data[i].lo, at, c->areas.data[i].writer, c->areas.data[i].storage };
    const size_t n = (size_t) c->n_issuers;
    if (!insert_area(c, i, left, NULL)) {
        return false;
    }
    c->areas.data[i + 1].lo = at;
    // Steps that have read the whole area have read both parts.
    memcpy(c->readers.data + i * n, c->readers.data + (i + 1) * n, n * sizeof(int32_t));
    return true;
}

// Covers [lo, hi) with areas that begin and end there; they are [*first, *end).
static bool cover(struct gb_validator * c, uintptr_t lo, uintptr_t hi, size_t * first, size_t * end) {
    if (!cut(c, lo) || !cut(c, hi)) {
        return false;
    }
    *first = area_at(c, lo);
    size_t i = *first;
    for (uintptr_t at = lo; at < hi; i++) {
        const uintptr_t next = i < c->areas.n ? GB_MIN(c->areas.data[i].lo, hi) : hi;
        if (next > at && !insert_area(c, i, (struct area){ at, next, -1, NOBODY }, NULL)) {
            return false;
        }
        at = c->areas.data[i].hi;
    }
    *end = i;
    return true;
}

// ------------------------------------------------------------------------------------------------------------- reports

// The name of a step in messages: its number and kind.
static const char * describe_step(const struct ggml_backend_sched * s, int k, char * text, size_t size) {
    const struct gb_sched_binding * run = s->validator->run;
    const struct gb_step * step = &run->program->steps.data[k];
    if (step->kind == GB_STEP_COMPUTE) {
        const struct gb_split * split = &run->program->splits.data[step->index];
        snprintf(text, size, "step %d (nodes %d to %d on %s)", k, split->start, split->end - 1,
            s->devices[split->backend].name);
    } else if (step->kind == GB_STEP_COPY) {
        const struct gb_copy * copy = &run->program->copies.data[step->index];
        snprintf(text, size, "step %d (the copy '%s')", k, copy->dst->tensor.name);
    } else {
        snprintf(text, size, "step %d (the write-back of '%s')", k,
            gb_sched_name_of(run->in, run->program->backs.data[step->index].node));
    }
    return text;
}

static const char * describe_storage(const struct gb_sched_binding * run, int32_t storage) {
    return storage == DEAD             ? "content that is no longer needed"
           : storage < 0               ? "nothing"
           : storage >= run->in->n_ids ? run->program->copies.data[storage - run->in->n_ids].dst->tensor.name
                                       : gb_sched_name_of(run->in, storage);
}

// Reports two accesses without a wait between them.
static enum ggml_status fail_order(const struct ggml_backend_sched * s, int k, const struct access * a, int other,
    bool other_writes) {
    char one[160], two[160];
    return gb_fail(GGML_STATUS_FAILED, "check: %s %s '%s', which %s may still be %s: no wait orders the two",
        describe_step(s, k, one, sizeof(one)), a->write ? "writes" : "reads", a->tensor->name,
        describe_step(s, other, two, sizeof(two)), other_writes ? "writing" : "reading");
}

// Reports a read of other content.
static enum ggml_status fail_content(const struct ggml_backend_sched * s, int k, const struct access * a,
    const struct area * area) {
    char one[160], two[160] = "no step of this run";
    if (area->writer >= 0) {
        describe_step(s, area->writer, two, sizeof(two));
    }
    return gb_fail(GGML_STATUS_FAILED, "check: %s reads '%s', but the memory holds %s, left there by %s",
        describe_step(s, k, one, sizeof(one)), a->tensor->name, describe_storage(s->validator->run, area->storage),
        two);
}

// ------------------------------------------------------------------------------------------------------------ checking

static bool is_before(const struct gb_validator * c, int other, int issuer) { // step `other` is complete for `issuer`
    const int of = c->run->program->steps.data[other].issuer;
    return of == issuer || c->known.data[issuer * c->n_issuers + of] >= c->time.data[other];
}

// The step must come after the last writer of an area; if it writes, also after the last readers.
static enum ggml_status check_order(const struct ggml_backend_sched * s, int k, const struct access * a, size_t i) {
    const struct gb_validator * c = s->validator;
    const int issuer = c->run->program->steps.data[k].issuer, writer = c->areas.data[i].writer;
    if (writer >= 0 && !is_before(c, writer, issuer)) {
        return fail_order(s, k, a, writer, true);
    }
    for (int b = 0; a->write && b < c->n_issuers; b++) {
        const int reader = c->readers.data[i * (size_t) c->n_issuers + (size_t) b];
        if (reader >= 0 && !is_before(c, reader, issuer)) {
            return fail_order(s, k, a, reader, false);
        }
    }
    return GGML_STATUS_SUCCESS;
}

// Content from outside the plan is valid until the plan writes there.
static bool has_content(const struct gb_sched_binding * run, const struct area * area, int32_t storage) {
    return area->storage == storage || (area->storage == NOBODY && !in_arena(run, storage));
}

// A replica must have the content of its source, as far as the validator saw it filled.
static enum ggml_status check_replica(const struct ggml_backend_sched * s, int k, const struct access * a,
    int32_t storage) {
    const struct gb_sched_binding * run = s->validator->run;
    const int c = storage - run->in->n_ids;
    char one[160];
    GB_FAIL_IF(c >= 0 && run->program->copies.data[c].kept && run->copies[c].replica->checked != run->copies[c].seen,
        GGML_STATUS_FAILED, "check: %s reads '%s', a copy that is older than the last write to '%s'",
        describe_step(s, k, one, sizeof(one)), a->tensor->name,
        gb_sched_name_of(run->in, run->program->copies.data[c].root));
    return GGML_STATUS_SUCCESS;
}

// Checks the order and content of one access, and notes it.
static enum ggml_status check_access(struct ggml_backend_sched * s, int k, const struct access * a) {
    struct gb_validator * c = s->validator;
    const struct gb_sched_binding * run = c->run;
    const uintptr_t lo = (uintptr_t) a->tensor->data, hi = lo + ggml_nbytes(a->tensor);
    const int32_t storage = storage_of(c, a->tensor);
    const struct gb_step * step = &run->program->steps.data[k];
    size_t first, end;
    if (!cover(c, lo, hi, &first, &end)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    if (!a->write) {
        GB_TRY(check_replica(s, k, a, storage));
    }
    for (size_t i = first; i < end; i++) {
        struct area * area = &c->areas.data[i];
        GB_TRY(check_order(s, k, a, i));
        if (a->write) {
            area->writer = k;
            area->storage = storage;
            memset(c->readers.data + i * (size_t) c->n_issuers, 0xff, (size_t) c->n_issuers * sizeof(int32_t));
        } else if (!has_content(run, area, storage)) {
            return fail_content(s, k, a, area);
        } else {
            c->readers.data[i * (size_t) c->n_issuers + (size_t) step->issuer] = k;
        }
    }
    return GGML_STATUS_SUCCESS;
}

// Adds the knowledge after a step to that of an issuer.
static void learn(struct gb_validator * c, int issuer, const int32_t * clock) {
    for (int b = 0; b < c->n_issuers; b++) {
        int32_t * known = &c->known.data[issuer * c->n_issuers + b];
        *known = GB_MAX(*known, clock[b]);
    }
}

// The waiting issuer gets the knowledge of the awaited step. Knowledge of the host holds for all
// steps that it issues later.
void gb_validator_wait(struct ggml_backend_sched * s, const struct gb_step * step, const struct gb_wait * wait) {
    struct gb_validator * c = s->validator;
    const struct gb_step * on = &c->run->program->steps.data[wait->step];
    const ggml_backend_t backend = s->devices[on->issuer].backend;
    const int host = c->n_issuers - 1;
    // The host waits for everything on a backend without events.
    const int done =
        wait->by_host && backend->iface.event_synchronize == NULL ? c->latest.data[on->issuer] : wait->step;
    learn(c, wait->by_host ? host : step->issuer, c->clock.data + (size_t) done * (size_t) c->n_issuers);
}

// Notes results that must be written back.
static void note_results(struct gb_validator * c, const struct gb_step * step) {
    if (step->kind == GB_STEP_BACK) {
        c->away.data[step->index] = 0;
    }
    if (step->kind == GB_STEP_COMPUTE) {
        const struct gb_split * split = &c->run->program->splits.data[step->index];
        for (size_t w = split->backs_begin; w < split->backs_end; w++) {
            c->away.data[w] = 1;
        }
    }
}

// A step that this run does not make (`make` is false) accesses nothing, but counts as issued.
enum ggml_status gb_validator_step(struct ggml_backend_sched * s, const struct gb_step * step, bool make) {
    struct gb_validator * c = s->validator;
    const int k = (int) (step - c->run->program->steps.data), host = c->n_issuers - 1;
    learn(c, step->issuer, c->known.data + host * c->n_issuers);
    c->known.data[step->issuer * c->n_issuers + host] = c->count.data[host];
    struct access a;
    for (size_t at = 0; make && next_access(c->run, step, &at, &a);) {
        if (a.tensor && ggml_nbytes(a.tensor) > 0) {
            GB_TRY(check_access(s, k, &a));
        }
    }
    if (make && step->kind == GB_STEP_COPY && c->run->program->copies.data[step->index].kept) {
        c->run->copies[step->index].replica->checked = c->run->copies[step->index].seen;
    }
    if (make) {
        note_results(c, step);
    }
    c->time.data[k] = ++c->count.data[step->issuer];
    c->latest.data[step->issuer] = k;
    c->known.data[step->issuer * c->n_issuers + step->issuer] = c->time.data[k];
    memcpy(c->clock.data + k * c->n_issuers, c->known.data + step->issuer * c->n_issuers,
        (size_t) c->n_issuers * sizeof(int32_t));
    return GGML_STATUS_SUCCESS;
}

// -------------------------------------------------------------------------------------------------------------- poison

// Fills bytes with ones, through the interface of the buffer, because the host may not reach the
// device.
static enum ggml_status poison(ggml_backend_buffer_t buffer, uintptr_t lo, uintptr_t hi) {
    static const uint64_t ones[64] = {
#define EIGHT UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX
        EIGHT, EIGHT, EIGHT, EIGHT, EIGHT, EIGHT, EIGHT, EIGHT
#undef EIGHT
    };
    struct ggml_tensor bytes = {
        .type = GGML_TYPE_I8, .ne = { (int64_t) (hi - lo), 1, 1, 1 }, .nb = { 1, hi - lo, hi - lo, hi - lo }
    };
    bytes.buffer = buffer;
    bytes.data = (void *) lo;
    for (size_t at = 0; at < hi - lo; at += sizeof(ones)) {
        GB_TRY(ggml_backend_tensor_set(&bytes, ones, at, GB_MIN(sizeof(ones), hi - lo - at)));
    }
    return GGML_STATUS_SUCCESS;
}

// True if the step is the last one that uses the storage, and the content is not kept.
static bool dies_at(const struct gb_validator * c, int32_t storage, int k) {
    return storage >= 0 && in_arena(c->run, storage) && c->last_use.data[storage] == k &&
           (storage >= c->run->in->n_ids || !c->run->in->ids.data[storage].keep);
}

// The buffer that a storage lies in.
static ggml_backend_buffer_t buffer_of(const struct gb_sched_binding * run, int32_t storage) {
    return storage >= run->in->n_ids ? run->program->copies.data[storage - run->in->n_ids].dst->tensor.buffer
                                     : run->in->ids.data[storage].tensor->buffer;
}

// Fills content that died with ones, so that later reads give NaN and are reported as DEAD.
enum ggml_status gb_validator_done(struct ggml_backend_sched * s, const struct gb_step * step) {
    struct gb_validator * c = s->validator;
    const int k = (int) (step - c->run->program->steps.data);
    for (size_t i = 0; i < c->areas.n; i++) {
        struct area * area = &c->areas.data[i];
        if (dies_at(c, area->storage, k)) {
            GB_TRY(poison(buffer_of(c->run, area->storage), area->lo, area->hi));
            area->storage = DEAD;
        }
    }
    return GGML_STATUS_SUCCESS;
}

// ------------------------------------------------------------------------------------------------------- begin and end

// Empties and resizes all tables for the steps and storages of this plan.
static bool resize(struct gb_validator * c) {
    const size_t n = (size_t) c->n_issuers, n_steps = c->run->program->steps.n,
                 n_storages = (size_t) c->run->in->n_ids + c->run->program->copies.n;
    c->areas.n = c->readers.n = c->known.n = c->clock.n = c->count.n = c->latest.n = c->time.n = c->last_use.n =
        c->away.n = 0;
    gb_ptrmap_clear(&c->storage);
    if (!gb_vec_resize_zero(&c->known, n * n) || !gb_vec_resize_zero(&c->clock, n * n_steps) ||
        !gb_vec_resize_zero(&c->count, n) || !gb_vec_resize_zero(&c->latest, n) ||
        !gb_vec_resize_zero(&c->time, n_steps) || !gb_vec_resize_zero(&c->last_use, n_storages) ||
        !gb_vec_resize_zero(&c->away, c->run->program->backs.n)) {
        return false;
    }
    return gb_sched_map_storage(c->run->in, c->run->program, &c->storage);
}

// No earlier run is pending when the run begins. Finds the last uses first, because content dies
// there.
enum ggml_status gb_validator_begin(struct ggml_backend_sched * s, const struct gb_sched_binding * run) {
    struct gb_validator * c = s->validator;
    c->run = run;
    c->n_issuers = run->in->n_backends + 1;
    GB_FAIL_IF(c->n_issuers > 64, GGML_STATUS_UNSUPPORTED, "check: more than 63 backends cannot be checked");
    GB_TRY(gb_sched_wait(s));
    s->running = true;
    if (!resize(c)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    for (size_t k = 0; k < run->program->steps.n; k++) {
        struct access a;
        for (size_t at = 0; next_access(run, &run->program->steps.data[k], &at, &a);) {
            if (a.tensor) {
                c->last_use.data[storage_of(c, a.tensor)] = (int32_t) k;
            }
        }
    }
    for (size_t i = 0; i < run->arenas.n; i++) {
        GB_TRY(ggml_backend_buffer_clear(run->arenas.data[i]->buffer, 0xff));
    }
    return GGML_STATUS_SUCCESS;
}

enum ggml_status gb_validator_end(struct ggml_backend_sched * s) {
    const struct gb_sched_binding * run = s->validator->run;
    for (size_t w = 0; w < run->program->backs.n; w++) {
        GB_FAIL_IF(s->validator->away.data[w], GGML_STATUS_FAILED,
            "check: the result '%s' is in a copy on another backend and was never written back",
            gb_sched_name_of(run->in, run->program->backs.data[w].node));
    }
    return GGML_STATUS_SUCCESS;
}
