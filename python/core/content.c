// content.c - stamps of inputs and results, freed memory, and the checks before content is read (content.h).
#include "content.h"

#include <stdio.h>
#include <string.h>

#include "extension.h"
#include "sched_impl.h"

atomic_llong gbpy_sets;
static atomic_llong last_clear; // the highest `cleared` of all memory

void gbpy_describe(const struct ggml_tensor * t, char * text, size_t size) {
    if (t->op == GGML_OP_NONE) {
        snprintf(text, size, "'%s'", t->name);
    } else {
        snprintf(text, size, "'%s' (%s)", t->name, ggml_op_desc(t));
    }
}

// --------------------------------------------------------------------------------------------------------- where it is

struct gbpy_memory * gbpy_owner_of(const struct ggml_tensor * t) {
    const ggml_backend_buffer_t buffer = gb_tensor_buffer(t);
    return buffer != NULL ? buffer->binding : NULL;
}

static bool is_freed(const struct ggml_backend_buffer * buffer) {
    const struct gbpy_memory * owner = buffer->binding;
    return gb_buffer_is_retired(buffer) ||
           (owner != NULL && (atomic_load(&owner->head.closed) || atomic_load(&owner->head.refs) == 0));
}

bool gbpy_has_lost_memory(const struct ggml_tensor * t) {
    const struct ggml_tensor * root = gb_root(t);
    const ggml_backend_buffer_t buffer = gb_tensor_buffer(t);
    if (buffer != NULL && is_freed(buffer)) {
        return true;
    }
    return GB_READ_RELAXED(root->data) == NULL && gb_tensor_has_flag(root, GB_TENSOR_LOST);
}

int gbpy_fail_no_memory(const struct ggml_tensor * t, const char * what) {
    const struct ggml_tensor * root = gb_root(t);
    const bool lost =
        gb_tensor_buffer(t) != NULL || GB_READ_RELAXED(root->data) != NULL || gb_tensor_has_flag(root, GB_TENSOR_LOST);
    const char * why =
        lost ? "has lost its memory, which was freed with the scheduler or buffer that held it: keep that open, or "
               "take a copy before, numpy(copy=True)"
        : root->op != GGML_OP_NONE
            ? "was not computed: make a graph of it (Context.graph) and compute that (Scheduler.compute)"
            : "has no memory: give it some with Context.allocate, Buffer.place or Scheduler.allocate";
    return gb_fail(GGML_STATUS_INVALID_STATE, "%s %s", what, why);
}

bool gbpy_is_unset(const struct gbpy_memory * owner, const struct ggml_tensor * t) {
    const struct ggml_tensor * root = gb_root(t);
    return root->op == GGML_OP_NONE && gbpy_stamp(root) == 0 && ggml_nelements(root) > 0 &&
           (owner == NULL || owner->head.kind == GBPY_CONTEXT || owner->blank);
}

bool gbpy_is_own(const struct gbpy_memory * owner, const struct ggml_tensor * t) {
    return owner->head.kind != GBPY_SCHED || gb_sched_has_placed(owner->head.ptr, gb_root(t));
}

static int fail_gone(const char * what) {
    return gb_fail(GGML_STATUS_INVALID_STATE,
        "%s is not there any more: the scheduler has used the memory for another graph, or was reset", what);
}

int gbpy_check_own(const struct gbpy_memory * owner, const struct ggml_tensor * t, const char * what) {
    return gbpy_is_own(owner, t) ? GGML_STATUS_SUCCESS : fail_gone(what);
}

bool gbpy_is_constant(const struct ggml_tensor * t) { return gb_tensor_has_flag(gb_root(t), GB_TENSOR_CONSTANT); }

void gbpy_set_constant_flag(struct ggml_tensor * t) { gb_tensor_set_flag(t, GB_TENSOR_CONSTANT); }

void gbpy_unplace(struct ggml_tensor * t) {
    gb_tensor_put(t, NULL, NULL);
    t->extra = NULL;
    gbpy_set_stamp(t, 0); // its next memory has no content
}

void gbpy_unplace_lost(struct ggml_tensor * t) {
    const ggml_backend_buffer_t buffer = gb_tensor_buffer(t);
    if (buffer == NULL || !is_freed(buffer)) {
        return;
    }
    const struct gbpy_memory * owner = buffer->binding;
    gbpy_mutex_lock();
    const bool locked = owner != NULL && gbpy_is_locked(&owner->head); // no new lock can begin
    gbpy_mutex_unlock();
    if (locked) {
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
        }
    }
}

// ------------------------------------------------------------------------------------------------------------- writing

// Moves a view that was made before its source was placed, or before the source was placed elsewhere. With a lock on
// the owner of the memory.
int gbpy_refresh(struct ggml_tensor * t, const char * what) {
    struct ggml_tensor * root = gb_root(t);
    char * data = (char *) root->data + (t == root ? 0 : t->view_offs);
    int status = GGML_STATUS_SUCCESS;
    if (t->data != data || t->buffer != root->buffer) {
        t->data = root->buffer != NULL ? NULL : data;
        t->buffer = NULL;
        status = root->buffer != NULL ? (int) gb_view_bind(t) : GGML_STATUS_SUCCESS;
    }
    const bool lost = status == GGML_STATUS_SUCCESS && t->data == NULL && ggml_nelements(t) > 0;
    return lost ? gbpy_fail_no_memory(t, what) : status;
}

static bool is_running(const struct gbpy_memory * owner) { // a scheduler that computes now
    return owner->head.kind == GBPY_SCHED && ((const struct gbpy_sched *) owner)->running;
}

// With a lock on the owner: may the user write the tensor now? A callback may write results while the graph runs.
int gbpy_check_writable(const struct gbpy_memory * owner, const struct ggml_tensor * t, const char * what) {
    const char * why = NULL;
    if (gb_root(t)->op != GGML_OP_NONE && !is_running(owner)) {
        why = "is a result, which only a computation writes (a callback may while it runs): set an input";
    } else if (gbpy_is_constant(t)) {
        why = "is a constant; ctx.tensor(shape) makes an input whose data changes";
    } else if (owner->readonly) {
        why = "is in a read-only buffer";
    }
    return why != NULL ? (int) gb_fail(GGML_STATUS_INVALID_STATE, "%s %s", what, why) : GGML_STATUS_SUCCESS;
}

// With a lock on the owner: prepares the tensor to be written.
int gbpy_prepare_write(const struct gbpy_memory * owner, struct ggml_tensor * t, const char * what) {
    int status = gbpy_check_own(owner, t, what);
    status = status == GGML_STATUS_SUCCESS ? gbpy_refresh(t, what) : status;
    return status == GGML_STATUS_SUCCESS ? gbpy_check_writable(owner, t, what) : status;
}

// -------------------------------------------------------------------------------------------------------- out of date?

void gbpy_note_clear(struct gbpy_memory * buffer) {
    gbpy_mutex_lock();
    buffer->cleared = atomic_fetch_add(&gbpy_sets, 1) + 1;
    atomic_store(&last_clear, buffer->cleared);
    gbpy_mutex_unlock();
}

// The number of the last write of an input, by itself or with its whole buffer.
static int64_t written_at(const struct ggml_tensor * input) {
    const int64_t stamp = gbpy_stamp(input);
    if (stamp >= atomic_load(&last_clear) || gbpy_is_constant(input)) {
        return stamp;
    }
    gbpy_mutex_lock(); // without a lock on the owner, which may be freed meanwhile
    const struct gbpy_memory * owner = gbpy_owner_of(input);
    const int64_t cleared = owner != NULL ? owner->cleared : 0;
    gbpy_mutex_unlock();
    return GB_MAX(stamp, cleared);
}

// Sets *newer to an input that t was computed from and that was set at `version` or later; NULL: there is none.
// Follows the sources of t and visits each tensor once.
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

// For a result with this stamp, with a lock on the owner.
static int check_not_cleared(const struct gbpy_memory * owner, int64_t version, const char * what) {
    GB_FAIL_IF(owner->cleared >= version, GGML_STATUS_INVALID_STATE,
        "%s is not there any more: its buffer was cleared after the last computation; compute again", what);
    return GGML_STATUS_SUCCESS;
}

// -------------------------------------------------------------------------------- memory of users and graph allocators

// A tensor in memory that the user gave it.
static int check_user_content(const struct gbpy_memory * owner, const struct ggml_tensor * t, const char * what) {
    const struct ggml_tensor * root = gb_root(t);
    const int64_t stamp = gbpy_stamp(root);
    if (root->op == GGML_OP_NONE || ggml_nelements(root) == 0) {
        return GGML_STATUS_SUCCESS;
    }
    GB_FAIL_IF(stamp == 0, GGML_STATUS_INVALID_STATE, "%s was not computed yet: compute a graph that has it", what);
    GB_TRY(check_not_cleared(owner, stamp, what));
    return check_inputs_since(root, stamp, what);
}

// A tensor that a graph allocator placed. Later nodes of its graph may overwrite it.
static int check_graph_content(const struct gbpy_buffer * buffer, const struct ggml_tensor * t, const char * what) {
    const struct gbpy_graph * g = buffer->graph;
    const struct ggml_cgraph * graph = g->head.ptr;
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
    GB_TRY(check_not_cleared(&buffer->memory, g->computed + 1, what));
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
        "%s is fused with its reader, and not stored. To keep it: ctx.graph(..., keep=[it])", what);
    return GGML_STATUS_SUCCESS;
}

// ------------------------------------------------------------------------------------------------ memory of schedulers

// For a callback that reads a result while the graph runs.
static int check_running(const struct gbpy_sched * s, enum gb_content_state state, const char * what) {
    GB_FAIL_IF(s->shown == NULL || state == GB_CONTENT_NOT_COMPUTED, GGML_STATUS_INVALID_STATE,
        "%s is not computed yet: the graph is running", what);
    GB_FAIL_IF(state == GB_CONTENT_OVERWRITTEN, GGML_STATUS_INVALID_STATE,
        "%s is not there any more: its memory was used again. To keep it: ctx.graph(..., keep=[it])", what);
    return GGML_STATUS_SUCCESS;
}

static int check_sched(const struct gbpy_sched * s, const struct ggml_tensor * t, const char * what) {
    struct ggml_backend_sched * raw = s->memory.head.ptr;
    const struct ggml_tensor * root = gb_root(t);
    const char * by = NULL;
    gb_sched_hold_for_readers(raw); // arrays may view its memory from now on, so it must stay
    const enum gb_content_state state = gb_content_state(raw, root, s->running ? s->shown : NULL, &by);
    if (state == GB_CONTENT_GONE) {
        return fail_gone(what);
    }
    if (state == GB_CONTENT_STAYS || ggml_nelements(root) == 0) {
        return GGML_STATUS_SUCCESS;
    }
    if (s->running) {
        return check_running(s, state, what);
    }
    GB_FAIL_IF(!s->ran && s->replaced, GGML_STATUS_INVALID_STATE,
        "%s has no value now: the scheduler was allocated for another graph, which has not run yet. Compute that "
        "graph. To keep a result, copy it first: numpy(copy=True)",
        what);
    GB_FAIL_IF(!s->ran || s->graph == NULL, GGML_STATUS_INVALID_STATE,
        "%s was not computed: the graph did not run yet, or its last run failed or was stopped", what);
    GB_TRY(check_inputs_since(root, s->version + 1, what));
    const char * quote = by != NULL && by[0] != '\0' ? "'" : "";
    GB_FAIL_IF(state == GB_CONTENT_OVERWRITTEN, GGML_STATUS_INVALID_STATE,
        "%s is not there any more: its memory was used again for %s%s%s while the graph ran. To keep it: "
        "ctx.graph(..., keep=[it]), or Scheduler(..., keep_all=True) for all results",
        what, quote, quote[0] != '\0' ? by : "another result", quote);
    GB_FAIL_IF(state == GB_CONTENT_NOT_STORED, GGML_STATUS_INVALID_STATE,
        "%s was fused with its reader, and not stored. To keep it: ctx.graph(..., keep=[it]), or "
        "Scheduler(..., keep_all=True) for all results",
        what);
    return GGML_STATUS_SUCCESS;
}

// The graph that an allocator has placed in the memory; NULL: none.
static const struct gbpy_graph * graph_in(const struct gbpy_memory * owner) {
    return owner->head.kind == GBPY_BUFFER ? ((const struct gbpy_buffer *) owner)->graph : NULL;
}

int gbpy_check_readable(const struct gbpy_memory * owner, const struct ggml_tensor * t, const char * what) {
    if (owner->head.kind == GBPY_SCHED) {
        return check_sched((const struct gbpy_sched *) owner, t, what);
    }
    return graph_in(owner) != NULL ? check_graph_content((const struct gbpy_buffer *) owner, t, what)
                                   : check_user_content(owner, t, what);
}

// ------------------------------------------------------------------------------------------------------- copied graphs

// One more than the version of the inputs of the run that computed t; 0: t cannot be read. In planned memory
// only outputs count: the plan keeps them, so no search for later writers is needed.
static int64_t version_of(const struct ggml_tensor * t) {
    const struct gbpy_memory * owner = gbpy_owner_of(t);
    if (owner == NULL) {
        return gbpy_stamp(t);
    }
    if (owner->head.kind == GBPY_SCHED) {
        const struct gbpy_sched * s = (const struct gbpy_sched *) owner;
        return ggml_is_output(t) && check_sched(s, t, "") == GGML_STATUS_SUCCESS ? s->version + 1 : 0;
    }
    const struct gbpy_graph * g = graph_in(owner);
    if (g == NULL) {
        return owner->cleared < gbpy_stamp(t) ? gbpy_stamp(t) : 0;
    }
    return ggml_is_output(t) && owner->cleared <= g->computed ? g->computed + 1 : 0;
}

bool gbpy_copy_content(const struct ggml_cgraph * from, struct ggml_cgraph * to) {
    struct gb_ptrmap at = { 0 };
    // for each node, the stamp of its newest input
    int64_t * newest = gb_calloc((size_t) from->n_nodes + 1, sizeof(*newest));
    bool ok = newest != NULL;
    for (int i = 0; i < from->n_nodes && ok; i++) {
        const struct ggml_tensor * t = from->nodes[i];
        for (int k = -1; k < GGML_MAX_SRC; k++) {
            const struct ggml_tensor * source = k < 0 ? t->view_src : t->src[k];
            const int64_t node = source != NULL ? gb_ptrmap_get(&at, source) : GB_PTRMAP_ABSENT;
            if (source != NULL && source != t) { // a result of another graph has unknown inputs
                const int64_t stamp = node != GB_PTRMAP_ABSENT     ? newest[node]
                                      : source->op == GGML_OP_NONE ? written_at(source)
                                                                   : INT64_MAX;
                newest[i] = GB_MAX(newest[i], stamp);
            }
        }
        const struct ggml_tensor * root = gb_root(t);
        const int64_t version = root->op == GGML_OP_NONE ? 0 : version_of(root);
        const bool readable = newest[i] < version;
        if (root->op != GGML_OP_NONE && (t == root || !readable)) { // a node may write a part of another node's result
            gbpy_set_stamp(gb_root(to->nodes[i]), readable ? atomic_load(&gbpy_sets) + 1 : 0);
        }
        ok = gb_ptrmap_set(&at, t, i);
    }
    ggml_clear_error();
    gb_ptrmap_free(&at);
    gb_free(newest);
    return ok;
}
