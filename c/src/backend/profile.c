// profile.c - memory for records, and the profile that a thread uses.
//
// All memory is allocated at the start, and entries are only appended. So a record is written under
// a short lock, never moves, and does not change afterwards. Only a run changes, when it ends or
// fails. A hash table finds a step by its description.
//
// Invariant: entries before n_steps, n_records and n_runs are complete, also after a fork.
#include "backend/profile.h"

#include <stdatomic.h>
#include <string.h>

#include "base/env.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/thread.h"
#include "tensor/tensor.h"
#include "tensor/work.h"

#define DEFAULT_RECORDS ((size_t) 1 << 20)
#define MOST_RECORDS ((size_t) 1 << 26)
#define MOST_STEPS ((size_t) 1 << 14)
#define NO_RUN UINT32_MAX  // a run without space; its records are dropped, too

struct ggml_profile {
    atomic_int refs; // one of the owner, and one of each thread that uses the profile

    // guarded by the lock of the profile
    size_t n_steps, n_records, n_runs;
    uint64_t n_dropped;
    size_t max_steps, max_records;
    struct ggml_profile_step * steps;     // owned
    struct ggml_profile_record * records; // owned
    struct ggml_profile_run * runs;       // owned; max_records
    uint64_t * hashes;                    // owned; of the steps
    uint32_t * slots; // owned; a power of two, at least twice max_steps; a step's number + 1, 0: free
    size_t n_slots;
};

atomic_int gb_profiles;

// The recording state of the calling thread. The profile is a reference of ggml_profile_use, or
// borrowed by gb_profile_enter.
static _Thread_local struct gb_profile_scope now = { .device = "CPU" };

// ----------------------------------------------------------------------------------------------------------- profiles

static void free_profile(struct ggml_profile * p) {
    atomic_fetch_sub(&gb_profiles, 1);
    gb_free(p->steps);
    gb_free(p->records);
    gb_free(p->runs);
    gb_free(p->hashes);
    gb_free(p->slots);
    gb_free(p);
}

ggml_profile_t ggml_profile_new(size_t max_records) {
    GB_FAIL_IF_RETURNING(max_records > MOST_RECORDS, NULL, GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'max_records': needs at most %zu, has %zu", __func__, MOST_RECORDS, max_records);
    struct ggml_profile * p = GB_NEW(struct ggml_profile);
    if (p == NULL) {
        return NULL;
    }
    atomic_init(&p->refs, 1);
    atomic_fetch_add(&gb_profiles, 1);
    p->max_records = max_records == 0 ? DEFAULT_RECORDS : max_records;
    p->max_steps = GB_MIN(p->max_records, MOST_STEPS);
    p->n_slots = 2;
    while (p->n_slots < 2 * p->max_steps) {
        p->n_slots *= 2;
    }
    p->steps = gb_calloc(p->max_steps, sizeof(*p->steps));
    p->records = gb_calloc(p->max_records, sizeof(*p->records));
    p->runs = gb_calloc(p->max_records, sizeof(*p->runs));
    p->hashes = gb_calloc(p->max_steps, sizeof(*p->hashes));
    p->slots = gb_calloc(p->n_slots, sizeof(*p->slots));
    if (p->steps == NULL || p->records == NULL || p->runs == NULL || p->hashes == NULL || p->slots == NULL) {
        free_profile(p);
        return NULL;
    }
    return p;
}

static void unref(struct ggml_profile * p) {
    if (p != NULL && atomic_fetch_sub(&p->refs, 1) == 1) {
        free_profile(p);
    }
}

void ggml_profile_free(ggml_profile_t profile) { unref(profile); }

// A run ends in the profile where it began.
enum ggml_status ggml_profile_use(ggml_profile_t profile) {
    GB_FAIL_IF(now.in_run, GGML_STATUS_INVALID_STATE, "%s: called by a function that a recorded computation calls",
        __func__);
    if (profile != NULL) {
        atomic_fetch_add(&profile->refs, 1);
    }
    struct ggml_profile * before = now.profile;
    now.profile = profile;
    unref(before);
    return GGML_STATUS_SUCCESS;
}

ggml_profile_t ggml_profile_in_use(void) { return now.profile; }

bool gb_profile_is_used(void) { return now.profile != NULL; }

uint64_t gb_profile_n_added(void) { return now.n_added; }

const char * gb_profile_set_device(const char * name) {
    const char * before = now.device;
    now.device = name != NULL ? name : "CPU";
    return before;
}

struct gb_profile_scope gb_profile_enter(struct ggml_profile * profile) {
    const struct gb_profile_scope before = now;
    now = (struct gb_profile_scope){ profile, "CPU", NO_RUN, false, 0 };
    return before;
}

void gb_profile_leave(struct gb_profile_scope before) { now = before; }

// ---------------------------------------------------------------------------------------------------------------- runs

bool gb_profile_begin_run(void) {
    struct ggml_profile * p = now.profile;
    if (p == NULL || now.in_run) {
        return false;
    }
    struct gb_spin_lock * lock = gb_spin_lock_for(p);
    const struct ggml_profile_run run = { gb_time_ns(), 0, gb_thread_number(), false };
    gb_spin_lock(lock);
    const bool fits = p->n_runs < p->max_records;
    now.run = fits ? (uint32_t) p->n_runs : NO_RUN;
    if (fits) {
        p->runs[p->n_runs++] = run;
    }
    gb_spin_unlock(lock);
    now.in_run = true;
    return true;
}

void gb_profile_end_run(bool begun, bool complete) {
    struct ggml_profile * p = now.profile;
    if (!begun || p == NULL) {
        return;
    }
    const int64_t end = gb_time_ns();
    struct gb_spin_lock * lock = gb_spin_lock_for(p);
    gb_spin_lock(lock);
    if (now.run != NO_RUN) {
        p->runs[now.run].end_ns = end;
        p->runs[now.run].complete = complete;
    }
    gb_spin_unlock(lock);
    now.in_run = false;
}

void gb_profile_fail_run(void) {
    struct ggml_profile * p = now.profile;
    if (p != NULL && now.run != NO_RUN) {
        struct gb_spin_lock * lock = gb_spin_lock_for(p);
        gb_spin_lock(lock);
        p->runs[now.run].complete = false;
        gb_spin_unlock(lock);
    }
}

// --------------------------------------------------------------------------------------------------------------- steps

static void put_text(char * to, size_t size, const char * text) {
    const size_t length = text == NULL ? 0 : strlen(text);
    memcpy(to, text == NULL ? "" : text, GB_MIN(length, size - 1)); // all bytes are zero before
}

// The matrix of the first product, else the first source of the first node. NULL if there is no
// source.
static const struct ggml_tensor * source_of(const struct gb_profile_note * note) {
    const struct ggml_tensor * first = NULL;
    for (int i = 0; i < note->n_nodes; i++) {
        const struct ggml_tensor * t = note->nodes[i];
        for (int s = 0; s < GGML_MAX_SRC && gb_op_computes(t->op); s++) {
            if (t->src[s] != NULL && gb_op_is_weight(t->op, s) && gb_op_info(t->op)->work != GB_WORK_PICK) {
                return t->src[s];
            }
            first = first == NULL ? t->src[s] : first;
        }
    }
    return first;
}

static void describe(struct ggml_profile_step * step, const struct gb_profile_note * note) {
    const struct ggml_tensor * source = source_of(note);
    memset(step, 0, sizeof(*step));
    put_text(step->device, sizeof(step->device), now.device);
    put_text(step->fusion, sizeof(step->fusion), note->fusion);
    put_text(step->algorithm, sizeof(step->algorithm), note->algorithm);
    put_text(step->level, sizeof(step->level), note->level);
    put_text(step->source, sizeof(step->source), source != NULL ? source->name : NULL);
    step->source_type = source != NULL ? (int) source->type : -1;
    for (int i = 0; i < note->n_nodes; i++) {
        const struct ggml_tensor * t = note->nodes[i];
        if (gb_op_computes(t->op) && step->n_nodes++ < GGML_PROFILE_MAX_NODES) {
            struct ggml_profile_node * node = &step->nodes[step->n_nodes - 1];
            node->type = (int) t->type;
            node->ndim = gb_tensor_ndim(t);
            memcpy(node->ne, t->ne, sizeof(node->ne));
            put_text(node->op, sizeof(node->op), ggml_op_desc(t));
            put_text(node->name, sizeof(node->name), t->name);
        }
    }
}

static uint64_t hash_text(uint64_t hash, const char * text) {
    const size_t size = text != NULL ? strlen(text) : 0;
    for (size_t i = 0; i < size; i += sizeof(uint64_t)) {
        uint64_t word = 0;
        memcpy(&word, text + i, GB_MIN(size - i, sizeof(word)));
        hash = gb_hash_u64(hash ^ word);
    }
    return gb_hash_u64(hash + size);
}

// Hashes all that describe() writes except the sizes, which are those of the first computation. 0
// if no node computes.
static uint64_t hash_of(const struct gb_profile_note * note) {
    const struct ggml_tensor * source = source_of(note);
    uint64_t hash = hash_text(hash_text(1, now.device), note->fusion);
    hash = hash_text(hash_text(hash, note->algorithm), note->level);
    int n = 0;
    hash = hash_text(hash + (source != NULL ? (uint64_t) source->type : 0), source != NULL ? source->name : NULL);
    for (int i = 0; i < note->n_nodes; i++) {
        const struct ggml_tensor * t = note->nodes[i];
        if (gb_op_computes(t->op) && n++ < GGML_PROFILE_MAX_NODES) {
            hash = hash_text(hash_text(hash + (uint64_t) t->type, ggml_op_desc(t)), t->name);
        }
    }
    return n > 0 ? gb_hash_u64(hash + (uint64_t) n) | 1 : 0;
}

// Finds the number of the step with this hash. If there is none, adds `fresh`, unless that is NULL.
// False: no such step exists, and none was added. The caller holds the lock.
static bool find_step(struct ggml_profile * p, uint64_t hash, const struct ggml_profile_step * fresh,
    uint32_t * found) {
    size_t at = (size_t) (hash >> 1) & (p->n_slots - 1);
    for (; p->slots[at] != 0; at = (at + 1) & (p->n_slots - 1)) {
        *found = p->slots[at] - 1;
        if (p->hashes[*found] == hash) {
            return true;
        }
    }
    if (fresh == NULL || p->n_steps == p->max_steps) {
        return false;
    }
    *found = (uint32_t) p->n_steps++;
    p->slots[at] = *found + 1;
    p->hashes[*found] = hash;
    p->steps[*found] = *fresh;
    return true;
}

// False: the record needs a new step, but `fresh` is NULL.
static bool add_record(struct ggml_profile * p, struct ggml_profile_record * record, uint64_t hash,
    const struct ggml_profile_step * fresh) {
    struct gb_spin_lock * lock = gb_spin_lock_for(p);
    gb_spin_lock(lock);
    const bool fits = now.run != NO_RUN && p->n_records < p->max_records;
    const bool known = !fits || find_step(p, hash, fresh, &record->step);
    if (fits && known) {
        p->records[p->n_records++] = *record;
    } else if (known || fresh != NULL) {
        p->n_dropped++;
    }
    gb_spin_unlock(lock);
    return known || fresh != NULL;
}

void gb_profile_add(const struct gb_profile_note * note) {
    struct ggml_profile * p = now.profile;
    const uint64_t hash = p != NULL && now.in_run ? hash_of(note) : 0;
    if (hash == 0) {
        return;
    }
    const struct gb_work work =
        note->apart ? gb_work_of_nodes(note->nodes, note->n_nodes) : gb_work_of_step(note->nodes, note->n_nodes);
    struct ggml_profile_record record = { .run = now.run,
        .start_ns = note->start_ns,
        .end_ns = note->end_ns,
        .waiting_ns = note->waiting_ns,
        .flops = work.flops,
        .bytes_read = work.read,
        .bytes_written = work.written,
        .n_threads = note->n_threads,
        .n_tasks = note->n_tasks };
    if (!add_record(p, &record, hash, NULL)) {
        struct ggml_profile_step step;
        describe(&step, note);
        add_record(p, &record, hash, &step);
    }
    now.n_added++;
}

void gb_profile_drop(uint64_t n) {
    struct ggml_profile * p = now.profile;
    if (p != NULL) {
        struct gb_spin_lock * lock = gb_spin_lock_for(p);
        gb_spin_lock(lock);
        p->n_dropped += n;
        gb_spin_unlock(lock);
        now.n_added += n;  // the backend has recorded them
    }
}

// -------------------------------------------------------------------------------------------------------------- public

// The current number of entries. Steps and records before it do not change.
static size_t count_of(struct ggml_profile * p, const size_t * n) {
    struct gb_spin_lock * lock = gb_spin_lock_for(p);
    gb_spin_lock(lock);
    const size_t found = *n;
    gb_spin_unlock(lock);
    return found;
}

static bool has_place(const char * func, const void * to, size_t n) {
    GB_FAIL_IF_RETURNING(n > 0 && to == NULL, false, GGML_STATUS_INVALID_ARGUMENT,
        "%s: there is no memory for %zu entries", func, n);
    return true;
}

// Copies entries [first, first + n), as far as they exist.
static int64_t copy_out(const char * func, void * to, const void * from, size_t size, size_t count, size_t first,
    size_t n) {
    if (!has_place(func, to, n)) {
        return -1;
    }
    if (n > 0 && first < count) {
        memcpy(to, (const char *) from + first * size, GB_MIN(n, count - first) * size);
    }
    return (int64_t) count;
}

int64_t ggml_profile_get_steps(ggml_profile_t profile, struct ggml_profile_step * steps, size_t first, size_t n) {
    GB_CHECK_ARG_RETURNING(profile, -1);
    return copy_out(__func__, steps, profile->steps, sizeof(*steps), count_of(profile, &profile->n_steps), first, n);
}

int64_t ggml_profile_get_records(ggml_profile_t profile, struct ggml_profile_record * records, size_t first, size_t n) {
    GB_CHECK_ARG_RETURNING(profile, -1);
    return copy_out(__func__, records, profile->records, sizeof(*records), count_of(profile, &profile->n_records),
        first, n);
}

// Copies each run under the lock, because a run may end at any time.
int64_t ggml_profile_get_runs(ggml_profile_t profile, struct ggml_profile_run * runs, size_t first, size_t n) {
    GB_CHECK_ARG_RETURNING(profile, -1);
    struct gb_spin_lock * lock = gb_spin_lock_for(profile);
    const size_t count = count_of(profile, &profile->n_runs);
    if (!has_place(__func__, runs, n)) {
        return -1;
    }
    for (size_t i = first; i < count && i - first < n; i++) {
        gb_spin_lock(lock);
        runs[i - first] = profile->runs[i];
        gb_spin_unlock(lock);
    }
    return (int64_t) count;
}

uint64_t ggml_profile_n_dropped(ggml_profile_t profile) {
    GB_CHECK_ARG_RETURNING(profile, 0);
    struct gb_spin_lock * lock = gb_spin_lock_for(profile);
    gb_spin_lock(lock);
    const uint64_t n = profile->n_dropped;
    gb_spin_unlock(lock);
    return n;
}
