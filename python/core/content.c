// content.c - stamps of inputs and results, lost memory, and the checks before content is read (content.h).
#include "content.h"

#include <stdio.h>
#include <string.h>

#include "extension.h"
#include "sched_impl.h"

atomic_llong gbpy_sets;
static atomic_llong last_clear; // the highest `cleared` of all buffers

void gbpy_describe(const struct ggml_tensor * t, char * text, size_t size) {
    if (t->op == GGML_OP_NONE) {
        snprintf(text, size, "'%s'", t->name);
    } else {
        snprintf(text, size, "'%s' (%s)", t->name, ggml_op_desc(t));
    }
}

// --------------------------------------------------------------------------------------------------------- where it is

struct gbpy_object * gbpy_owner_of(const struct ggml_tensor * t) {
    const ggml_backend_buffer_t buffer = gb_tensor_buffer(t);
    return buffer != NULL ? buffer->binding : NULL;
}

static bool is_gone(const struct ggml_backend_buffer * buffer) {
    const struct gbpy_object * owner = buffer->binding;
    return gb_buffer_is_retired(buffer) ||
           (owner != NULL && (atomic_load(&owner->closed) || atomic_load(&owner->refs) == 0));
}

bool gbpy_has_lost(const struct ggml_tensor * t) {
    const struct ggml_tensor * root = gb_root(t);
    const ggml_backend_buffer_t buffer = gb_tensor_buffer(t);
    if (buffer != NULL && is_gone(buffer)) {
        return true;
    }
    return GB_READ_RELAXED(root->data) == NULL && gb_tensor_has_flag(root, GB_TENSOR_LOST);
}

int gbpy_fail_lost(const struct ggml_tensor * t, const char * what) {
    const struct ggml_tensor * root = gb_root(t);
    if (gb_tensor_buffer(t) == NULL && GB_READ_RELAXED(root->data) == NULL &&
        !gb_tensor_has_flag(root, GB_TENSOR_LOST)) {
        GB_FAIL_IF(root->op != GGML_OP_NONE, GGML_STATUS_INVALID_STATE,
            "%s was not computed: make a graph of it (Context.graph) and compute that (Scheduler.compute)", what);
        return gb_fail(GGML_STATUS_INVALID_STATE,
            "%s has no memory: give it some with Context.allocate, Buffer.place or Scheduler.allocate", what);
    }
    return gb_fail(GGML_STATUS_INVALID_STATE,
        "%s has lost its memory, which was freed with the scheduler or buffer that held it: keep that open, or take a "
        "copy before, "
        "numpy(copy=True)",
        what);
}

bool gbpy_is_unset(const struct gbpy_object * owner, const struct ggml_tensor * t) {
    const struct ggml_tensor * root = gb_root(t);
    return root->op == GGML_OP_NONE && gbpy_stamp(root) == 0 && ggml_nelements(root) > 0 &&
           (owner == NULL || owner->kind == GBPY_CONTEXT || owner->blank);
}

bool gbpy_is_own(const struct gbpy_object * owner, const struct ggml_tensor * t) {
    if (owner->kind != GBPY_SCHED) {
        return true;
    }
    return gb_sched_has_placed(owner->ptr, gb_root(t));
}

bool gbpy_is_constant(const struct ggml_tensor * t) { return gb_tensor_has_flag(gb_root(t), GB_TENSOR_CONSTANT); }

void gbpy_set_constant_flag(struct ggml_tensor * t) { gb_tensor_set_flag(t, GB_TENSOR_CONSTANT); }

void gbpy_unplace(struct ggml_tensor * t) {
    gb_tensor_put(t, NULL, NULL);
    t->extra = NULL;
    gbpy_set_stamp(t, 0); // nothing stands in its next place
}

void gbpy_unplace_lost(struct ggml_tensor * t) {
    const ggml_backend_buffer_t buffer = gb_tensor_buffer(t);
    if (buffer == NULL || !is_gone(buffer)) {
        return;
    }
    const struct gbpy_object * owner = buffer->binding;
    gbpy_mutex_lock();
    const bool used = owner != NULL && gbpy_is_locked(owner); // no use of it begins any more
    gbpy_mutex_unlock();
    if (used) {
        return;
    }
    const bool lost = owner != NULL && !owner->scratch && t->op == GGML_OP_NONE && t->view_src == NULL;
    gbpy_unplace(t);
    if (lost) {
        gb_tensor_set_flag(t, GB_TENSOR_LOST);
    } else {
        gb_tensor_clear_flag(t, GB_TENSOR_LOST);
    }
}

void gbpy_unplace_all_lost(struct ggml_context * ctx) {
    for (int views = 1; views >= 0; views--) { // a view finds its buffer through its source
        for (struct ggml_tensor * t = ggml_get_first_tensor(ctx); t != NULL; t = ggml_get_next_tensor(ctx, t)) {
            if ((t->view_src != NULL) == (views == 1)) {
                gbpy_unplace_lost(t);
            }
            gbpy_visited(1);
        }
    }
}

// -------------------------------------------------------------------------------------------------------- out of date?

void gbpy_note_clear(struct gbpy_object * buffer) {
    gbpy_mutex_lock();
    buffer->cleared = atomic_fetch_add(&gbpy_sets, 1) + 1;
    atomic_store(&last_clear, buffer->cleared);
    gbpy_mutex_unlock();
}

// The number of the last write of an input, alone or with its buffer.
static int64_t written_at(const struct ggml_tensor * input) {
    const int64_t stamp = gbpy_stamp(input);
    if (stamp >= atomic_load(&last_clear) || gbpy_is_constant(input)) {
        return stamp;
    }
    gbpy_mutex_lock(); // nobody here uses the owner, which may go
    const struct gbpy_object * owner = gbpy_owner_of(input);
    const int64_t cleared = owner != NULL ? owner->cleared : 0;
    gbpy_mutex_unlock();
    return GB_MAX(stamp, cleared);
}

// *newer: the input from which t is computed and that was set at `version` or later; NULL: none. Goes back from t, each
// tensor once.
static int newer_input(const struct ggml_tensor * t, int64_t version, const struct ggml_tensor ** newer) {
    struct gb_ptrmap seen = { 0 };
    GB_VEC(const struct ggml_tensor *) stack = { 0 };
    const struct ggml_tensor * found = NULL;
    bool ok = gb_vec_push(&stack, t);
    while (ok && found == NULL && stack.n > 0) {
        const struct ggml_tensor * at = stack.data[--stack.n];
        const struct ggml_tensor * root = gb_root(at);
        if (root->op == GGML_OP_NONE && root != t && written_at(root) >= version) {
            found = root;
        }
        for (int i = -1; i < GGML_MAX_SRC && ok; i++) {
            const struct ggml_tensor * next = i < 0 ? at->view_src : at->src[i];
            if (next != NULL && gb_ptrmap_get(&seen, next) == GB_PTRMAP_ABSENT) {
                ok = gb_ptrmap_set(&seen, next, 1) && gb_vec_push(&stack, next);
            }
        }
    }
    gb_ptrmap_free(&seen);
    gb_vec_free(&stack);
    *newer = found;
    return ok ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}

static int check_inputs_since(const struct ggml_tensor * t, int64_t version, const char * what) {
    const struct ggml_tensor * newer = NULL;
    if (version <= atomic_load(&gbpy_sets)) {
        GB_TRY(newer_input(t, version, &newer));
    }
    GB_FAIL_IF(newer != NULL, GGML_STATUS_INVALID_STATE,
        "%s is out of date: the input '%s' was %s after the last computation; compute again", what,
        newer != NULL ? newer->name : "",
        newer != NULL && gbpy_stamp(newer) >= version ? "set" : "cleared with its buffer");
    return GGML_STATUS_SUCCESS;
}

// Of a result whose stamp is `version`. By who uses the owner.
static int check_not_cleared(const struct gbpy_object * owner, int64_t version, const char * what) {
    GB_FAIL_IF(owner->cleared >= version, GGML_STATUS_INVALID_STATE,
        "%s is not there any more: its buffer was cleared after the last computation; compute again", what);
    return GGML_STATUS_SUCCESS;
}

// ------------------------------------------------------------------------- memory of the user, and of graph allocators

// Of a tensor in memory that the user gave it.
static int check_user_content(const struct gbpy_object * owner, const struct ggml_tensor * t, const char * what) {
    const struct ggml_tensor * root = gb_root(t);
    const int64_t stamp = gbpy_stamp(root);
    if (root->op == GGML_OP_NONE || ggml_nelements(root) == 0) {
        return GGML_STATUS_SUCCESS;
    }
    GB_FAIL_IF(stamp == 0, GGML_STATUS_INVALID_STATE, "%s was not computed yet: compute a graph that has it", what);
    GB_TRY(check_not_cleared(owner, stamp, what));
    return check_inputs_since(root, stamp, what);
}

// Of a tensor that a graph allocator placed: nodes that come later in its graph may lie where it lay.
static int check_graph_content(const struct gbpy_object * buffer, const struct ggml_tensor * t, const char * what) {
    const struct gbpy_object * g = buffer->graph;
    const struct ggml_cgraph * graph = g->ptr;
    const struct ggml_tensor * root = gb_root(t);
    int at = -1;
    if (root->op == GGML_OP_NONE || ggml_nelements(root) == 0) {
        return GGML_STATUS_SUCCESS;
    }
    for (int i = 0; i < graph->n_nodes && at < 0; i++) {
        at = graph->nodes[i] == root ? i : -1;
    }
    GB_FAIL_IF(at < 0, GGML_STATUS_INVALID_STATE, "%s: its memory was given to another graph", what);
    GB_FAIL_IF(g->computed < 0, GGML_STATUS_INVALID_STATE, "%s was not computed yet", what);
    GB_TRY(check_not_cleared(buffer, g->computed + 1, what));
    GB_TRY(check_inputs_since(root, g->computed + 1, what));
    const char *begin = root->data, *end = begin + ggml_nbytes(root);
    for (int i = at + 1; i < graph->n_nodes; i++) {
        const struct ggml_tensor * other = graph->nodes[i];
        const char * data = other->data;
        if (other->view_src == NULL && other->buffer == root->buffer && gb_op_computes(other->op) && data < end &&
            begin < data + ggml_nbytes(other)) {
            return gb_fail(GGML_STATUS_INVALID_STATE,
                "%s is not there any more: the graph used its memory for '%s'. To keep it: ctx.graph(..., keep=[it])",
                what, other->name);
        }
    }
    GB_FAIL_IF(gb_tensor_is_read_once(t) && root->buffer->arena, GGML_STATUS_INVALID_STATE,
        "%s is computed together with what reads it, and not stored. To keep it: ctx.graph(..., keep=[it])", what);
    return GGML_STATUS_SUCCESS;
}

// ------------------------------------------------------------------------------------------------ memory of schedulers

// While the graph runs and a callback looks at it: what was computed so far.
static int check_running(const struct gbpy_sched * s, const struct ggml_backend_sched * raw,
    const struct ggml_tensor * root, const char * what) {
    GB_FAIL_IF(!gb_sched_is_computed_by(raw, root, s->shown), GGML_STATUS_INVALID_STATE,
        "%s is not computed yet: the graph is running", what);
    GB_FAIL_IF(gb_sched_overwritten_by(raw, root, s->shown) != NULL, GGML_STATUS_INVALID_STATE,
        "%s is not there any more: its memory was used again. To keep it: ctx.graph(..., keep=[it])", what);
    return GGML_STATUS_SUCCESS;
}

static int check_sched(const struct gbpy_object * o, const struct ggml_tensor * t, bool reading, const char * what) {
    struct ggml_backend_sched * raw = o->ptr;
    const struct gbpy_sched * s = o->sched;
    const struct ggml_tensor * root = gb_root(t);
    if (reading) { // from now on memory must stay while arrays look into it, even if the scheduler has no use for it
        gb_sched_hold_for_readers(raw);
    }
    if (!gbpy_is_own(o, t)) {
        return gb_fail(GGML_STATUS_INVALID_STATE,
            "%s is not there any more: the scheduler has used the memory for another graph, or was reset", what);
    }
    if (!reading || !gb_sched_is_in_arena(raw, root) || ggml_nelements(root) == 0) {
        return GGML_STATUS_SUCCESS;
    }
    if (s->running) {
        return check_running(s, raw, root, what);
    }
    GB_FAIL_IF(!s->ran && s->replaced, GGML_STATUS_INVALID_STATE,
        "%s has no value now: the scheduler was allocated for another graph, which has not run yet. Compute that "
        "graph. To keep a result, copy it first: numpy(copy=True)",
        what);
    GB_FAIL_IF(!s->ran || s->graph == NULL, GGML_STATUS_INVALID_STATE,
        "%s was not computed: the graph did not run yet, or its last run failed or was stopped", what);
    GB_TRY(check_inputs_since(root, s->version + 1, what));
    const char * by = gb_sched_overwritten_by(raw, root, NULL);
    GB_FAIL_IF(by != NULL, GGML_STATUS_INVALID_STATE,
        "%s is not there any more: its memory was used again for %s%s%s while the graph ran. To keep it: "
        "ctx.graph(..., keep=[it]), or "
        "Scheduler(..., keep_all=True) for all results",
        what, by != NULL && by[0] != '\0' ? "'" : "", by != NULL && by[0] != '\0' ? by : "another result",
        by != NULL && by[0] != '\0' ? "'" : "");
    GB_FAIL_IF(gb_tensor_is_read_once(root) && !gb_sched_keeps(raw, root), GGML_STATUS_INVALID_STATE,
        "%s was computed together with what reads it, and not stored. To keep it: ctx.graph(..., keep=[it]), or "
        "Scheduler(..., keep_all=True) for "
        "all results",
        what);
    return GGML_STATUS_SUCCESS;
}

int gbpy_check_content(const struct gbpy_object * owner, const struct ggml_tensor * t, bool reading,
    const char * what) {
    if (owner->kind == GBPY_SCHED) {
        return check_sched(owner, t, reading, what);
    }
    if (!reading) {
        return GGML_STATUS_SUCCESS;
    }
    return owner->graph != NULL ? check_graph_content(owner, t, what) : check_user_content(owner, t, what);
}

// ------------------------------------------------------------------------------------------------------- copied graphs

// The number of the inputs of the run that computed t, plus one; 0: it cannot be read. Of what was planned only outputs
// are known to be there still, without a search for each.
static int64_t version_of(const struct ggml_tensor * t) {
    const struct gbpy_object * owner = gbpy_owner_of(t);
    if (owner == NULL || (owner->kind != GBPY_SCHED && owner->graph == NULL)) {
        return owner == NULL || owner->cleared < gbpy_stamp(t) ? gbpy_stamp(t) : 0;
    }
    if (owner->kind == GBPY_SCHED) {
        return ggml_is_output(t) && check_sched(owner, t, true, "") == GGML_STATUS_SUCCESS ? owner->sched->version + 1
                                                                                           : 0;
    }
    return ggml_is_output(t) && owner->cleared <= owner->graph->computed ? owner->graph->computed + 1 : 0;
}

bool gbpy_copy_content(const struct ggml_cgraph * from, struct ggml_cgraph * to) {
    struct gb_ptrmap at = { 0 };
    // stamp of the newest input of each node
    int64_t * newest = gb_calloc((size_t) from->n_nodes + 1, sizeof(*newest));
    bool ok = newest != NULL;
    for (int i = 0; i < from->n_nodes && ok; i++) {
        const struct ggml_tensor * t = from->nodes[i];
        for (int k = -1; k < GGML_MAX_SRC; k++) {
            const struct ggml_tensor * source = k < 0 ? t->view_src : t->src[k];
            const int64_t node = source != NULL ? gb_ptrmap_get(&at, source) : GB_PTRMAP_ABSENT;
            if (source != NULL && source != t) { // a result of another graph: nothing is known of its inputs
                const int64_t stamp = node != GB_PTRMAP_ABSENT     ? newest[node]
                                      : source->op == GGML_OP_NONE ? written_at(source)
                                                                   : INT64_MAX;
                newest[i] = GB_MAX(newest[i], stamp);
            }
        }
        const struct ggml_tensor * root = gb_root(t);
        const int64_t version = root->op == GGML_OP_NONE ? 0 : version_of(root);
        const bool readable = newest[i] < version;
        if (root->op != GGML_OP_NONE && (t == root || !readable)) { // a node may write to a part of another's result
            gbpy_set_stamp(gb_root(to->nodes[i]), readable ? atomic_load(&gbpy_sets) + 1 : 0);
        }
        ok = gb_ptrmap_set(&at, t, i);
    }
    ggml_clear_error();
    gb_ptrmap_free(&at);
    gb_free(newest);
    return ok;
}
