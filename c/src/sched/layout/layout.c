// layout.c - computes the offsets in the arenas, from the lifetimes of a program's tensors.
//
// Lifetimes are positions in a private node list, which has the effects of the steps in the order
// of issue. The offsets are valid if everything runs in that order. Steps that run at the same time
// on several queues are separated by the waits of run/hazards.c.
//
// Results are computed in place where that is allowed. If an arena then needs more than the most
// bytes alive at one time, it is also planned with nothing in place. The smaller plan is used.
#include "sched/assign/assign.h"
#include "sched/input/input.h"
#include "sched/layout/layout.h"
#include "sched/program/program.h"
#include "sched/sched.h"

#include "alloc/liveness.h"
#include "plan/plan.h"
#include "base/current.h"

struct layout {
    const struct ggml_backend_sched * sched;
    const struct gb_sched_input * in;
    const struct gb_sched_assigned * assigned;
    const struct gb_sched_program * program;
    struct gb_sched_layout * layout; // borrowed; to be filled
    GB_VEC(struct ggml_tensor *) list; // the private node list
    int32_t * ids; // owned; per slot: its storage id. Only if the program has no tensors of its own
    struct gb_ptrmap stands_for; // otherwise: root in the list -> storage id (tensor ids, then copies)
    const struct gb_sched_parts * tmpl; // borrowed; its sizes decide what is computed in place; NULL: none
    struct gb_liveness live;
};

static void free_layout(struct layout * l) {
    gb_vec_free(&l->list);
    gb_free(l->ids);
    gb_ptrmap_free(&l->stands_for);
    gb_liveness_free(&l->live);
}

// ----------------------------------------------------------------------------------------------------------- lifetimes

// Appends the nodes of a split to the private node list and notes their positions.
static bool list_split(struct layout * l, const struct gb_split * split) {
    bool ok = true;
    struct gb_span span = { .lower = (int64_t) l->list.n };
    for (size_t e = split->exec_begin; ok && e < split->exec_end; e++) {
        ok = gb_vec_push(&l->list, l->program->exec.data[e]);
    }
    span.upper = (int64_t) l->list.n;
    l->layout->spans.data[split - l->program->splits.data] = span;
    return ok;
}

// Lists what each step computes or copies, in the order of issue.
static bool list_nodes(struct layout * l) {
    bool ok = true;
    for (size_t k = 0; ok && k < l->program->steps.n; k++) {
        const struct gb_step * step = &l->program->steps.data[k];
        switch ((enum gb_step_kind) step->kind) {
            case GB_STEP_COPY: ok = gb_vec_push(&l->list, &l->program->copies.data[step->index].dst->tensor); break;
            case GB_STEP_BACK: ok = gb_vec_push(&l->list, &l->program->backs.data[step->index].marker->tensor); break;
            case GB_STEP_COMPUTE: ok = list_split(l, &l->program->splits.data[step->index]); break;
        }
    }
    return ok;
}

// The storage ids of a node's slots. in->srcs has the sources in the order of the slots, except the
// node itself.
static enum ggml_status name_slots(const struct gb_sched_input * in, int32_t node, int32_t * slots) {
    const struct ggml_tensor * t = in->ids.data[node].tensor;
    uint32_t k = in->src_begin[node];
    slots[GGML_MAX_SRC] = in->ids.data[node].root;
    for (int s = 0; s < GGML_MAX_SRC; s++) {
        const bool other = t->src[s] != NULL && t->src[s] != t;
        const int32_t id = other ? in->srcs[k++] : node;
        GB_FAIL_IF(id > node && id < in->n_nodes && in->ids.data[id].computes, GGML_STATUS_INVALID_ARGUMENT,
            "ggml_backend_sched: node %d, '%s', reads '%s', which is computed later, as node %d", (int) node, t->name,
            t->src[s]->name, (int) id);
        slots[s] = t->src[s] != NULL ? in->ids.data[id].root : -1;
    }
    return GGML_STATUS_SUCCESS;
}

// If the program has no tensors of its own, the list is the graph's nodes in order, and the ids of
// all slots are known. Otherwise roots are looked up.
static enum ggml_status name_storage(struct layout * l) {
    if (l->program->shadows != NULL) {
        return gb_sched_map_storage(l->in, l->program, &l->stands_for) ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    }
    l->ids = gb_calloc(l->list.n, GB_LIVE_SLOTS * sizeof(*l->ids));
    if (l->ids == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    for (size_t i = 0; i < l->list.n; i++) {
        gb_tensor_prefetch_ahead(l->list.data, l->list.n, i);
        GB_TRY(name_slots(l->in, l->program->exec_node.data[i], l->ids + i * GB_LIVE_SLOTS));
    }
    return GGML_STATUS_SUCCESS;
}

// The storage id of a root in the private node list; -1: not placed by the plan.
static int64_t id_of(void * user_data, const struct ggml_tensor * t) {
    const struct layout * l = user_data;
    const int64_t id = gb_ptrmap_get(&l->stands_for, t);
    return id == GB_PTRMAP_ABSENT ? -1 : id;
}

// The backend whose arena has a root; -1: the user's memory, a leaf store or a replica.
static int arena_of(void * user_data, int64_t id, const struct ggml_tensor * t) {
    const struct layout * l = user_data;
    (void) t;
    if (id >= l->in->n_ids) {
        return l->program->copies.data[id - l->in->n_ids].kept ? -1
                                                               : l->program->copies.data[id - l->in->n_ids].backend;
    }
    return l->in->ids.data[id].location == GB_LOCATION_ARENA ? l->assigned->to[id].backend : -1;
}

// Bytes of a root or copy on a backend, regardless of the template.
static size_t own_size(const struct layout * l, int64_t id, int backend) {
    return gb_sched_alloc_size(l->sched, backend,
        id >= l->in->n_ids ? &l->program->copies.data[id - l->in->n_ids].dst->tensor : l->in->ids.data[id].tensor);
}

// With a template, the template's sizes count, so that the same results are computed in place in
// both plans.
static size_t size_of(void * user_data, int64_t id, const struct ggml_tensor * t) {
    const struct layout * l = user_data;
    const struct gb_item * item = l->tmpl ? gb_sched_arena_item(l->tmpl->layout, id) : NULL;
    return item ? item->capacity : own_size(l, id, arena_of(user_data, id, t));
}

// The alias group of a storage id in the template; -1: none.
static int64_t group_in_template(const struct layout * l, int64_t id) {
    const struct gb_item * item = gb_sched_arena_item(l->tmpl->layout, id);
    return item ? item->group : -1;
}

// With a template, only members of one of the template's groups may share memory.
static bool may_join(void * user_data, int64_t id, int64_t source) {
    const struct layout * l = user_data;
    return l->tmpl == NULL || group_in_template(l, id) == group_in_template(l, source);
}

// Outputs live to the end of the graph.
static bool keep(void * user_data, int64_t id, const struct ggml_tensor * t) {
    const struct layout * l = user_data;
    (void) t;
    return id < l->in->n_ids && l->in->ids.data[id].keep;
}

// Computes the lifetimes of the private node list. With `no_join` nothing is computed in place.
static enum ggml_status find_lifetimes(struct layout * l, bool no_join, struct gb_liveness * live) {
    GB_FAIL_IF(l->list.n > INT32_MAX, GGML_STATUS_INVALID_ARGUMENT, "ggml_backend_sched: the graph has too many nodes");
    const struct gb_liveness_input in = {
        .nodes = l->list.data,
        .n_nodes = (int) l->list.n,
        .user_data = l,
        .id_of = l->ids ? NULL : id_of,
        .ids = l->ids,
        .n_ids = (int64_t) l->in->n_ids + (int64_t) l->program->copies.n,
        .arena_of = arena_of,
        .size_of = size_of,
        .keep = keep,
        .drop_unread = true,
        .no_join = no_join,
        .may_join = may_join,
    };
    return gb_liveness_compute(&in, live);
}

// -------------------------------------------------------------------------------------------------------------- arenas

// Plans the offsets of one arena, in chunks of at most the device's largest buffer.
static enum ggml_status plan_arena(struct layout * l, int backend, struct gb_plan_item * items, size_t n,
    int * chunk_of) {
    const struct gb_sched_device * d = &l->sched->devices[backend];
    struct gb_plan_chunks result;
    for (size_t i = 0; i < n; i++) {
        GB_FAIL_IF(items[i].size > d->max_size - d->max_size % d->alignment, GGML_STATUS_ALLOC_FAILED,
            "ggml_backend_sched: a tensor of %zu bytes exceeds the largest buffer of backend %s, %zu bytes",
            items[i].size, d->name, d->max_size);
    }
    const int64_t budget_ms = l->sched->plan_budget_ms;
    const struct gb_plan_effort effort = { .steps = (uint64_t) budget_ms * GB_PLAN_STEPS_PER_MS };
    GB_TRY(gb_plan_in_chunks_with(items, n, d->alignment, d->max_size, budget_ms > 0 ? &effort : NULL, chunk_of,
        &result));
    l->layout->need[backend].load = result.one.lower_bound;
    l->layout->need[backend].bound = result.bound;
    l->layout->need[backend].proved = result.proved;
    return GGML_STATUS_SUCCESS;
}

// Plans one arena and notes the places in `at`, per item.
static enum ggml_status lay_out_arena(struct layout * l, int backend, struct gb_plan_item * items, size_t * index,
    int * chunk_of, struct gb_item * at) {
    size_t n = 0;
    for (size_t k = 0; k < l->live.n_items; k++) {
        const struct gb_live_item * live = &l->live.items[k];
        if (live->arena == backend) {
            items[n] = (struct gb_plan_item){ live->lower, live->upper, live->size, 0 };
            index[n++] = k;
        }
    }
    if (n == 0) {
        return GGML_STATUS_SUCCESS;
    }
    GB_TRY(plan_arena(l, backend, items, n, chunk_of));
    for (size_t i = 0; i < n; i++) {
        struct gb_item * item = &at[index[i]];
        *item = (struct gb_item){ .backend = backend,
            .chunk = chunk_of[i],
            .offset = items[i].offset,
            .size = items[i].size,
            .valid = true,
            .lower = items[i].lower,
            .upper = items[i].upper,
            .group = -1 };
        if (!gb_sched_need_chunk(l->layout, item, false, l->sched->devices[backend].alignment)) {
            return GGML_STATUS_ALLOC_FAILED;
        }
    }
    return GGML_STATUS_SUCCESS;
}

// The storage id of the first member identifies an alias group.
static void hand_out(struct layout * l, struct gb_item * at) {
    for (int64_t id = 0; id < l->in->n_ids + (int64_t) l->program->copies.n; id++) {
        const int64_t k = l->live.item_of[id];
        if (k < 0) {
            continue;
        }
        struct gb_item * item = &l->layout->items.data[id];
        struct ggml_tensor * t =
            id < l->in->n_ids ? l->in->ids.data[id].tensor : &l->program->copies.data[id - l->in->n_ids].dst->tensor;
        at[k].group = at[k].group < 0 ? id : at[k].group;
        *item = at[k];
        item->size = gb_sched_alloc_size(l->sched, item->backend, t);
        item->capacity = l->tmpl ? gb_sched_arena_item(l->tmpl->layout, id)->capacity : item->size;
        l->layout->need[item->backend].no_reuse += GGML_PAD(item->size, l->sched->devices[item->backend].alignment);
    }
}

// Items of different backends never overlap.
static enum ggml_status lay_out_arenas(struct layout * l) {
    const size_t n = l->live.n_items;
    struct gb_plan_item * items = gb_calloc(n, sizeof(*items));
    size_t * index = gb_calloc(n, sizeof(*index));
    int * chunk = gb_calloc(n, sizeof(*chunk));
    struct gb_item * at = gb_calloc(n, sizeof(*at));
    enum ggml_status status = items && index && chunk && at ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    for (int b = 0; b < l->in->n_backends && status == GGML_STATUS_SUCCESS; b++) {
        status = lay_out_arena(l, b, items, index, chunk, at);
    }
    if (status == GGML_STATUS_SUCCESS) {
        hand_out(l, at);
    }
    gb_free(items);
    gb_free(index);
    gb_free(chunk);
    gb_free(at);
    return status;
}

// Bytes of the chunks of an arena.
static size_t arena_size(const struct gb_sched_layout * layout, int backend) {
    size_t sum = 0;
    for (size_t k = 0; k < layout->chunks.n; k++) {
        const struct gb_chunk_need * need = &layout->chunks.data[k];
        sum += need->backend == backend && !need->leafs ? need->size : 0;
    }
    return sum;
}

// Drops all chunks but those of leaf stores.
static void forget_arenas(struct layout * l) {
    size_t n = 0;
    for (size_t k = 0; k < l->layout->chunks.n; k++) {
        if (l->layout->chunks.data[k].leafs) {
            l->layout->chunks.data[n++] = l->layout->chunks.data[k];
        }
    }
    l->layout->chunks.n = n;
    for (int b = 0; b < l->in->n_backends; b++) {
        l->layout->need[b].no_reuse = 0;
    }
}

// The arena's size if nothing is computed in place.
static enum ggml_status size_apart(struct layout * l, const struct gb_liveness * apart, int backend, size_t * size) {
    const struct gb_sched_device * d = &l->sched->devices[backend];
    struct gb_plan_item * items = gb_calloc(apart->n_items, sizeof(*items));
    int * chunk_of = gb_calloc(apart->n_items, sizeof(*chunk_of));
    struct gb_plan_chunks result;
    size_t n = 0;
    for (size_t k = 0; items && k < apart->n_items; k++) {
        if (apart->items[k].arena == backend) {
            items[n++] = (struct gb_plan_item){ apart->items[k].lower, apart->items[k].upper, apart->items[k].size, 0 };
        }
    }
    const enum ggml_status status = items && chunk_of
                                        ? gb_plan_in_chunks(items, n, d->alignment, d->max_size, chunk_of, &result)
                                        : GGML_STATUS_ALLOC_FAILED;
    *size = status == GGML_STATUS_SUCCESS ? result.total : SIZE_MAX;
    gb_free(items);
    gb_free(chunk_of);
    return status;
}

// Lays out the arenas again. The bounds of the first layout still hold.
static enum ggml_status lay_out_again(struct layout * l) {
    size_t * bounds = gb_calloc((size_t) l->in->n_backends, sizeof(*bounds));
    for (int b = 0; bounds && b < l->in->n_backends; b++) {
        bounds[b] = l->layout->need[b].bound;
    }
    forget_arenas(l);
    const enum ggml_status status = bounds ? lay_out_arenas(l) : GGML_STATUS_ALLOC_FAILED;
    for (int b = 0; status == GGML_STATUS_SUCCESS && b < l->in->n_backends; b++) {
        l->layout->need[b].bound = GB_MIN(l->layout->need[b].bound, bounds[b]);
        l->layout->need[b].proved = arena_size(l->layout, b) == l->layout->need[b].bound;
    }
    gb_free(bounds);
    return status;
}

// In place the load is never higher, so a plan that needs only the load is best. If it needs more,
// the arena is also planned with nothing in place.
static enum ggml_status drop_in_place(struct layout * l, const struct gb_liveness * apart) {
    bool again = false;
    for (int b = 0; b < l->in->n_backends; b++) {
        size_t size = SIZE_MAX;
        if (arena_size(l->layout, b) > l->layout->need[b].load) {
            GB_TRY(size_apart(l, apart, b, &size));
        }
        if (size < arena_size(l->layout, b)) {
            if (!gb_liveness_prefer(&l->live, apart, (int64_t) l->in->n_ids + (int64_t) l->program->copies.n, b)) {
                return GGML_STATUS_ALLOC_FAILED;
            }
            again = true;
        }
    }
    return again ? lay_out_again(l) : GGML_STATUS_SUCCESS;
}

// Only arenas that exceed their load are planned again with nothing in place.
static enum ggml_status lay_out_well(struct layout * l) {
    GB_TRY(find_lifetimes(l, false, &l->live));
    GB_TRY(gb_check_poll());
    GB_TRY(lay_out_arenas(l));
    bool at_loads = true;
    for (int b = 0; b < l->in->n_backends; b++) {
        at_loads = at_loads && arena_size(l->layout, b) <= l->layout->need[b].load;
    }
    if (at_loads) {
        return GGML_STATUS_SUCCESS;
    }
    struct gb_liveness apart = { 0 };
    enum ggml_status status = find_lifetimes(l, true, &apart);
    status = status == GGML_STATUS_SUCCESS ? drop_in_place(l, &apart) : status;
    gb_liveness_free(&apart);
    return status;
}

// ----------------------------------------------------------------------------------------------------- an earlier plan

// Lower bounds: the maximum of the bytes that are alive at one time, counted per group.
static bool find_bounds(struct layout * l, const struct gb_item * at) {
    const size_t n = l->list.n + 1;
    // The table first holds differences. Unsigned arithmetic wraps, so the sums are correct.
    size_t * load = gb_calloc((size_t) l->in->n_backends, n * sizeof(*load));
    for (size_t k = 0; load && k < l->live.n_items; k++) {
        const size_t size = GGML_PAD(at[k].size, l->sched->devices[at[k].backend].alignment);
        load[(size_t) at[k].backend * n + (size_t) at[k].lower] += size;
        load[(size_t) at[k].backend * n + (size_t) at[k].upper] -= size;
    }
    for (int b = 0; load && b < l->in->n_backends; b++) {
        size_t sum = 0;
        for (size_t t = 0; t < n; t++) {
            sum += load[(size_t) b * n + t];
            l->layout->need[b].bound = GB_MAX(l->layout->need[b].bound, sum);
        }
    }
    gb_free(load);
    return load != NULL;
}

// Uses the template's places if all groups fit, and sets *taken. Fails only if there is no memory.
static enum ggml_status take_places(struct layout * l, const size_t * sizes, struct gb_item * at, bool * taken) {
    *taken = gb_sched_take_offsets(l->tmpl, &l->live, sizes, at);
    if (!*taken) {
        return GGML_STATUS_SUCCESS;
    }
    for (size_t k = 0; k < l->live.n_items; k++) {
        if (!gb_sched_need_chunk(l->layout, &at[k], false, l->sched->devices[at[k].backend].alignment)) {
            return GGML_STATUS_ALLOC_FAILED;
        }
    }
    hand_out(l, at);
    l->layout->tmpl = l->tmpl->layout;
    return find_bounds(l, at) ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}

// True if every root and copy fits the capacity of its counterpart.
static bool all_fit(const struct layout * l, size_t * sizes) {
    for (int64_t id = 0; id < l->in->n_ids + (int64_t) l->program->copies.n; id++) {
        const struct gb_item * item = gb_sched_arena_item(l->tmpl->layout, id);
        sizes[id] = item ? own_size(l, id, item->backend) : 0;
        if (item && sizes[id] > item->capacity) {
            return false;
        }
    }
    return true;
}

// Uses the places of an earlier plan if it has the same structure and everything fits.
static enum ggml_status try_template(struct layout * l, const struct gb_sched_parts * tmpl, size_t * sizes) {
    bool taken = false;
    l->tmpl = tmpl;
    if (gb_sched_is_like(&(struct gb_sched_parts){ l->in, l->assigned, l->program, l->layout }, tmpl) &&
        all_fit(l, sizes)) {
        GB_TRY(find_lifetimes(l, false, &l->live));
        struct gb_item * at = gb_calloc(l->live.n_items, sizeof(*at));
        const enum ggml_status status = at ? take_places(l, sizes, at, &taken) : GGML_STATUS_ALLOC_FAILED;
        gb_free(at);
        GB_TRY(status);
    }
    if (!taken) {
        gb_liveness_free(&l->live);
        l->tmpl = NULL;
    }
    return GGML_STATUS_SUCCESS;
}

// Uses the places of the first earlier plan that fits.
static enum ggml_status find_template(struct layout * l, const gb_sched_parts_list * earlier) {
    size_t * sizes = gb_calloc((size_t) l->in->n_ids + l->program->copies.n, sizeof(*sizes));
    enum ggml_status status = sizes ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    for (size_t k = 0; k < earlier->n && l->tmpl == NULL && status == GGML_STATUS_SUCCESS; k++) {
        status = try_template(l, &earlier->data[k], sizes);
    }
    gb_free(sizes);
    return status;
}

// A result that the program neither writes nor reads also needs memory, because the user reads it.
static bool has_all_locations(const struct layout * l) {
    for (int i = 0; i < l->in->n_ids; i++) {
        if (l->in->ids.data[i].location == GB_LOCATION_ARENA && !l->layout->items.data[i].valid) {
            return false;
        }
    }
    return true;
}

// ---------------------------------------------------------------------------------------------------------------------

// At the end, sums up what the plan needs of each backend.
static enum ggml_status lay_out(struct layout * l, const gb_sched_parts_list * earlier) {
    if (!gb_vec_resize_zero(&l->layout->items, (size_t) l->in->n_ids + l->program->copies.n) ||
        !gb_vec_resize_zero(&l->layout->spans, l->program->splits.n) || !list_nodes(l)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    GB_TRY(name_storage(l));
    GB_TRY(gb_check_poll());
    GB_TRY(find_template(l, earlier));
    if (l->tmpl == NULL) {
        GB_TRY(lay_out_well(l));
    }
    GB_FAIL_IF(!has_all_locations(l), GGML_STATUS_FAILED,
        "ggml_backend_sched: a result has no memory (internal error)");
    for (size_t c = 0; c < l->program->copies.n; c++) {
        const struct gb_copy * copy = &l->program->copies.data[c];
        if (copy->kept) {
            const size_t size = gb_sched_alloc_size(l->sched, copy->backend, &copy->dst->tensor);
            l->layout->need[copy->backend].replicas += GGML_PAD(size, l->sched->devices[copy->backend].alignment);
        }
    }
    for (size_t k = 0; k < l->layout->chunks.n; k++) {
        const struct gb_chunk_need * need = &l->layout->chunks.data[k];
        l->layout->need[need->backend].peak += need->leafs ? 0 : need->size;
    }
    for (int b = 0; l->tmpl && b < l->in->n_backends; b++) {
        l->layout->need[b].proved = l->layout->need[b].peak == l->layout->need[b].bound;
    }
    return GGML_STATUS_SUCCESS;
}

enum ggml_status gb_sched_lay_out(const struct ggml_backend_sched * s, const struct gb_sched_input * in,
    const struct gb_sched_assigned * assigned, const struct gb_sched_program * program,
    const gb_sched_parts_list * earlier, struct gb_sched_layout * layout) {
    struct layout l = { .sched = s, .in = in, .assigned = assigned, .program = program, .layout = layout };
    const enum ggml_status status = lay_out(&l, earlier);
    free_layout(&l);
    return status;
}
