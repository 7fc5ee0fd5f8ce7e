// layout.c - where everything lies: arenas from lifetimes, leafs one after another.
//
// The lifetimes are those of the private node list: what the steps do, in the order in which they are issued. So what
// planning proves about positions holds for the memory as long as everything runs in that order; what runs at the same
// time on several queues is kept apart by the waits of hazards.c.
#include "sched/sched.h"

#include "alloc/liveness.h"
#include "alloc/plan.h"
#include "base/current.h"

struct layout {
    struct ggml_backend_sched * sched;
    struct gb_sched_plan *      plan;
    GB_VEC(struct ggml_tensor *) list;       // the private node list
    struct gb_ptrmap             stands_for; // roots in the list -> lifetime id: tensor ids, then copies
    const struct gb_sched_plan * model;      // borrowed: whose sizes decide what is computed in place; NULL: none
    struct gb_liveness           live;
};

static void free_layout(struct layout * l) {
    gb_vec_free(&l->list);
    gb_ptrmap_free(&l->stands_for);
    gb_liveness_free(&l->live);
}

// ----------------------------------------------------------------------------------------------------------- lifetimes

static bool list_split(struct layout * l, struct gb_split * split) {
    bool ok      = true;
    split->lower = (int64_t) l->list.n;
    for (size_t e = split->exec_begin; ok && e < split->exec_end; e++) {
        ok = gb_vec_push(&l->list, l->plan->exec.data[e]);
    }
    split->upper = (int64_t) l->list.n;
    return ok;
}

// The positions of the program: what each step computes or copies, in the order in which the steps are issued.
static bool list_nodes(struct layout * l) {
    struct gb_sched_plan * p  = l->plan;
    bool                   ok = true;
    for (size_t k = 0; ok && k < p->steps.n; k++) {
        const struct gb_step * step = &p->steps.data[k];
        switch ((enum gb_step_kind) step->kind) {
            case GB_STEP_COPY: ok = gb_vec_push(&l->list, &p->copies.data[step->index].dst->tensor); break;
            case GB_STEP_BACK: ok = gb_vec_push(&l->list, &p->backs.data[step->index].marker->tensor); break;
            case GB_STEP_COMPUTE: ok = list_split(l, &p->splits.data[step->index]); break;
        }
    }
    return ok;
}

static int64_t id_of(void * user, const struct ggml_tensor * t) {
    const struct layout * l  = user;
    const int64_t         id = gb_ptrmap_get(&l->stands_for, t);
    return id == GB_PTRMAP_ABSENT ? -1 : id;
}

static int arena_of(void * user, const struct ggml_tensor * t) {
    const struct layout *        l  = user;
    const struct gb_sched_plan * p  = l->plan;
    const int64_t                id = id_of(user, t);
    if (id >= p->n_ids) {
        return p->copies.data[id - p->n_ids].kept ? -1 : p->copies.data[id - p->n_ids].backend;
    }
    return id >= 0 && p->ids.data[id].home == GB_HOME_ARENA ? p->assignment[id].backend : -1;
}

static size_t alloc_size(const struct ggml_backend_sched * s, int backend, struct ggml_tensor * t) {
    const size_t size = ggml_backend_buft_get_alloc_size(s->devices[backend].buft, t);
    return GB_MAX(size, 1); // an empty tensor has an address, too
}

static size_t own_size(const struct layout * l, int64_t id, int backend) {
    const struct gb_sched_plan * p = l->plan;
    return alloc_size(l->sched, backend,
        id >= p->n_ids ? &p->copies.data[id - p->n_ids].dst->tensor : p->ids.data[id].tensor);
}

static size_t size_of(void * user, const struct ggml_tensor * t) {
    const struct layout *  l    = user;
    const int64_t          id   = id_of(user, t);
    const struct gb_item * room = l->model ? gb_sched_arena_item(l->model, id) : NULL;
    return room ? room->room : own_size(l, id, arena_of(user, t));
}

static int64_t line_in_model(const struct layout * l, const struct ggml_tensor * t) {
    const int64_t          id   = id_of((void *) l, gb_root(t));
    const struct gb_item * item = id < 0 ? NULL : gb_sched_arena_item(l->model, id);
    return item ? item->line : -1;
}

static bool may_join(void * user, const struct ggml_tensor * node, const struct ggml_tensor * src) {
    const struct layout * l = user;
    return l->model == NULL || line_in_model(l, node) == line_in_model(l, src);
}

static bool keep(void * user, const struct ggml_tensor * t) {
    const struct layout * l  = user;
    const int64_t         id = id_of(user, gb_root(t));
    return id >= 0 && id < l->plan->n_ids && l->plan->ids.data[id].keep;
}

static enum ggml_status find_lifetimes(struct layout * l, bool apart, struct gb_liveness * live) {
    GB_FAIL_IF(l->list.n > INT32_MAX, GGML_STATUS_INVALID_ARGUMENT, "ggml_backend_sched: the graph has too many nodes");
    const struct gb_liveness_input in = {
        .nodes       = l->list.data,
        .n_nodes     = (int) l->list.n,
        .user        = l,
        .id_of       = id_of,
        .n_ids       = (int64_t) l->plan->n_ids + (int64_t) l->plan->copies.n,
        .arena_of    = arena_of,
        .size_of     = size_of,
        .keep        = keep,
        .drop_unread = true,
        .apart       = apart,
        .may_join    = may_join,
    };
    return gb_liveness_compute(&in, live);
}

// -------------------------------------------------------------------------------------------------------------- arenas

static struct gb_chunk_need * chunk_need(struct gb_sched_plan * p, int backend, int chunk, bool leafs) {
    for (size_t k = 0; k < p->chunks.n; k++) {
        struct gb_chunk_need * need = &p->chunks.data[k];
        if (need->backend == backend && need->chunk == chunk && need->leafs == leafs) {
            return need;
        }
    }
    return gb_vec_push(&p->chunks, ((struct gb_chunk_need){ backend, chunk, leafs, 0 }))
               ? &p->chunks.data[p->chunks.n - 1]
               : NULL;
}

static bool need_room(struct gb_sched_plan * p, const struct gb_item * item, bool leafs, size_t alignment) {
    struct gb_chunk_need * need = chunk_need(p, item->backend, item->chunk, leafs);
    if (need) {
        need->size = GB_MAX(need->size, GGML_PAD(item->offset + item->size, alignment));
    }
    return need != NULL;
}

static enum ggml_status plan_arena(struct layout * l, int backend, struct gb_plan_item * items, size_t n,
    int * chunk_of) {
    const struct gb_sched_device * d = &l->sched->devices[backend];
    struct gb_plan_chunks          result;
    for (size_t i = 0; i < n; i++) {
        GB_FAIL_IF(items[i].size > d->max_size - d->max_size % d->alignment, GGML_STATUS_ALLOC_FAILED,
            "ggml_backend_sched: a tensor of %zu bytes exceeds the largest buffer of backend %s, %zu bytes",
            items[i].size, d->name, d->max_size);
    }
    GB_TRY(gb_plan_in_chunks(items, n, d->alignment, d->max_size, chunk_of, &result));
    l->plan->need[backend].load   = result.one.lower_bound;
    l->plan->need[backend].bound  = result.bound;
    l->plan->need[backend].proved = result.proved;
    return GGML_STATUS_SUCCESS;
}

// The offsets of one arena: plans its items and notes them, by item, in `at`.
static enum ggml_status lay_out_arena(struct layout * l, int backend, struct gb_plan_item * items, size_t * index,
    int * chunk_of, struct gb_item * at) {
    size_t n = 0;
    for (size_t k = 0; k < l->live.n_items; k++) {
        const struct gb_live_item * live = &l->live.items[k];
        if (live->arena == backend) {
            items[n]   = (struct gb_plan_item){ live->lower, live->upper, live->size, 0 };
            index[n++] = k;
        }
    }
    if (n == 0) {
        return GGML_STATUS_SUCCESS;
    }
    GB_TRY(plan_arena(l, backend, items, n, chunk_of));
    for (size_t i = 0; i < n; i++) {
        struct gb_item * item = &at[index[i]];
        *item = (struct gb_item){ backend, chunk_of[i], items[i].offset, items[i].size, true, items[i].lower,
            items[i].upper, -1, 0 };
        if (!need_room(l->plan, item, false, l->sched->devices[backend].alignment)) {
            return GGML_STATUS_ALLOC_FAILED;
        }
    }
    return GGML_STATUS_SUCCESS;
}

// Lines are named after the first that lies in them, so that names are ids.
static void hand_out(struct layout * l, struct gb_item * at) {
    struct gb_sched_plan * p = l->plan;
    for (int64_t id = 0; id < p->n_ids + (int64_t) p->copies.n; id++) {
        const int64_t k = l->live.item_of[id];
        if (k < 0) {
            continue;
        }
        struct gb_item *     item = id < p->n_ids ? &p->ids.data[id].item : &p->copies.data[id - p->n_ids].item;
        struct ggml_tensor * t    = id < p->n_ids ? p->ids.data[id].tensor : &p->copies.data[id - p->n_ids].dst->tensor;
        at[k].line                = at[k].line < 0 ? id : at[k].line;
        *item                     = at[k];
        item->size                = alloc_size(l->sched, item->backend, t);
        item->room                = l->model ? gb_sched_arena_item(l->model, id)->room : item->size;
        p->need[item->backend].no_reuse += GGML_PAD(item->size, l->sched->devices[item->backend].alignment);
    }
}

static enum ggml_status lay_out_arenas(struct layout * l) {
    const size_t          n      = l->live.n_items;
    struct gb_plan_item * items  = gb_calloc(n, sizeof(*items));
    size_t *              index  = gb_calloc(n, sizeof(*index));
    int *                 chunk  = gb_calloc(n, sizeof(*chunk));
    struct gb_item *      at     = gb_calloc(n, sizeof(*at));
    enum ggml_status      status = items && index && chunk && at ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    for (int b = 0; b < l->plan->n_backends && status == GGML_STATUS_SUCCESS; b++) {
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

// Bytes that the arena was laid out in.
static size_t arena_size(const struct gb_sched_plan * p, int backend) {
    size_t sum = 0;
    for (size_t k = 0; k < p->chunks.n; k++) {
        sum += p->chunks.data[k].backend == backend && !p->chunks.data[k].leafs ? p->chunks.data[k].size : 0;
    }
    return sum;
}

static void forget_arenas(struct gb_sched_plan * p) {
    size_t n = 0;
    for (size_t k = 0; k < p->chunks.n; k++) {
        if (p->chunks.data[k].leafs) {
            p->chunks.data[n++] = p->chunks.data[k];
        }
    }
    p->chunks.n = n;
    for (int b = 0; b < p->n_backends; b++) {
        p->need[b].no_reuse = 0;
    }
}

// The arena in as many bytes if nothing is computed in place.
static enum ggml_status size_apart(struct layout * l, const struct gb_liveness * apart, int backend, size_t * size) {
    const struct gb_sched_device * d        = &l->sched->devices[backend];
    struct gb_plan_item *          items    = gb_calloc(apart->n_items, sizeof(*items));
    int *                          chunk_of = gb_calloc(apart->n_items, sizeof(*chunk_of));
    struct gb_plan_chunks          result;
    size_t                         n = 0;
    for (size_t k = 0; items && k < apart->n_items; k++) {
        if (apart->items[k].arena == backend) {
            items[n++] = (struct gb_plan_item){ apart->items[k].lower, apart->items[k].upper, apart->items[k].size, 0 };
        }
    }
    const enum ggml_status status = items && chunk_of
                                        ? gb_plan_in_chunks(items, n, d->alignment, d->max_size, chunk_of, &result)
                                        : GGML_STATUS_ALLOC_FAILED;
    *size                         = status == GGML_STATUS_SUCCESS ? result.total : SIZE_MAX;
    gb_free(items);
    gb_free(chunk_of);
    return status;
}

// Lays the arenas out again; what bounded them with results in place still does.
static enum ggml_status lay_out_again(struct layout * l) {
    struct gb_sched_plan * p      = l->plan;
    size_t *               bounds = gb_calloc((size_t) p->n_backends, sizeof(*bounds));
    for (int b = 0; bounds && b < p->n_backends; b++) {
        bounds[b] = p->need[b].bound;
    }
    forget_arenas(p);
    const enum ggml_status status = bounds ? lay_out_arenas(l) : GGML_STATUS_ALLOC_FAILED;
    for (int b = 0; status == GGML_STATUS_SUCCESS && b < p->n_backends; b++) {
        p->need[b].bound  = GB_MIN(p->need[b].bound, bounds[b]);
        p->need[b].proved = arena_size(p, b) == p->need[b].bound;
    }
    gb_free(bounds);
    return status;
}

// In place the load is never higher, and a plan that needs no more than that cannot be worse. One that does may be, by
// bad luck: then the arena is laid out with nothing in place.
static enum ggml_status drop_in_place(struct layout * l, const struct gb_liveness * apart) {
    bool again = false;
    for (int b = 0; b < l->plan->n_backends; b++) {
        size_t size = SIZE_MAX;
        if (arena_size(l->plan, b) > l->plan->need[b].load) {
            GB_TRY(size_apart(l, apart, b, &size));
        }
        if (size < arena_size(l->plan, b)) {
            if (!gb_liveness_prefer(&l->live, apart, (int64_t) l->plan->n_ids + (int64_t) l->plan->copies.n, b)) {
                return GGML_STATUS_ALLOC_FAILED;
            }
            again = true;
        }
    }
    return again ? lay_out_again(l) : GGML_STATUS_SUCCESS;
}

static enum ggml_status lay_out_well(struct layout * l) {
    GB_TRY(find_lifetimes(l, false, &l->live));
    GB_TRY(gb_go_on());
    GB_TRY(lay_out_arenas(l));
    bool at_loads = true;
    for (int b = 0; b < l->plan->n_backends; b++) {
        at_loads = at_loads && arena_size(l->plan, b) <= l->plan->need[b].load;
    }
    if (at_loads) {
        return GGML_STATUS_SUCCESS;
    }
    struct gb_liveness apart  = { 0 };
    enum ggml_status   status = find_lifetimes(l, true, &apart);
    status                    = status == GGML_STATUS_SUCCESS ? drop_in_place(l, &apart) : status;
    gb_liveness_free(&apart);
    return status;
}

// ----------------------------------------------------------------------------------------------------- an earlier plan

// The most bytes alive at once, line by line: no plan needs less.
static bool find_bounds(struct layout * l, const struct gb_item * at) {
    const size_t n = l->list.n + 1;
    // differences, unsigned numbers wrap
    size_t * load = gb_calloc((size_t) l->plan->n_backends, n * sizeof(*load));
    for (size_t k = 0; load && k < l->live.n_items; k++) {
        const size_t size = GGML_PAD(at[k].size, l->sched->devices[at[k].backend].alignment);
        load[(size_t) at[k].backend * n + (size_t) at[k].lower] += size;
        load[(size_t) at[k].backend * n + (size_t) at[k].upper] -= size;
    }
    for (int b = 0; load && b < l->plan->n_backends; b++) {
        size_t sum = 0;
        for (size_t t = 0; t < n; t++) {
            sum += load[(size_t) b * n + t];
            l->plan->need[b].bound = GB_MAX(l->plan->need[b].bound, sum);
        }
    }
    gb_free(load);
    return load != NULL;
}

static enum ggml_status take_places(struct layout * l, const size_t * sizes, struct gb_item * at, bool * taken) {
    struct gb_sched_plan * p = l->plan;
    *taken                   = gb_sched_take_offsets(l->model, &l->live, sizes, at);
    if (!*taken) {
        return GGML_STATUS_SUCCESS;
    }
    for (size_t k = 0; k < l->live.n_items; k++) {
        if (!need_room(p, &at[k], false, l->sched->devices[at[k].backend].alignment)) {
            return GGML_STATUS_ALLOC_FAILED;
        }
    }
    hand_out(l, at);
    p->model = l->model;
    return find_bounds(l, at) ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}

static bool all_fit(const struct layout * l, size_t * sizes) {
    const struct gb_sched_plan * p = l->plan;
    for (int64_t id = 0; id < p->n_ids + (int64_t) p->copies.n; id++) {
        const struct gb_item * room = gb_sched_arena_item(l->model, id);
        sizes[id]                   = room ? own_size(l, id, room->backend) : 0;
        if (room && sizes[id] > room->room) {
            return false;
        }
    }
    return true;
}

// The places of an earlier plan that does the same, if there is one and everything fits.
static enum ggml_status replay(struct layout * l, const struct gb_sched_plan * model, size_t * sizes) {
    bool taken = false;
    l->model   = model;
    if (gb_sched_is_like(l->plan, model) && all_fit(l, sizes)) {
        GB_TRY(find_lifetimes(l, false, &l->live));
        struct gb_item *       at     = gb_calloc(l->live.n_items, sizeof(*at));
        const enum ggml_status status = at ? take_places(l, sizes, at, &taken) : GGML_STATUS_ALLOC_FAILED;
        gb_free(at);
        GB_TRY(status);
    }
    if (!taken) {
        gb_liveness_free(&l->live);
        l->model = NULL;
    }
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status find_model(struct layout * l) {
    const struct ggml_backend_sched * s      = l->sched;
    size_t *                          sizes  = gb_calloc((size_t) l->plan->n_ids + l->plan->copies.n, sizeof(*sizes));
    enum ggml_status                  status = sizes ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    for (size_t k = 0; k < s->plans.n && l->model == NULL && status == GGML_STATUS_SUCCESS; k++) {
        status = s->plans.data[k]->draft ? status : replay(l, s->plans.data[k], sizes);
    }
    gb_free(sizes);
    return status;
}

// A result that the program neither writes in its home nor reads from it (nothing refers to it) still gets memory: it
// is asked for.
static bool has_all_homes(const struct gb_sched_plan * p) {
    for (int i = 0; i < p->n_ids; i++) {
        if (p->ids.data[i].home == GB_HOME_ARENA && !p->ids.data[i].item.valid) {
            return false;
        }
    }
    return true;
}

// --------------------------------------------------------------------------------------------------------------- leafs

static enum ggml_status lay_out_leaf(const struct ggml_backend_sched * s, struct gb_sched_plan * p, int id,
    struct gb_item * end) {
    const int                      b    = p->assignment[id].backend;
    const struct gb_sched_device * d    = &s->devices[b];
    const size_t                   size = alloc_size(s, b, p->ids.data[id].tensor);
    const size_t                   max  = d->max_size - d->max_size % d->alignment; // devices may round sizes up
    size_t                         padded, total;
    GB_FAIL_IF(size > max, GGML_STATUS_ALLOC_FAILED,
        "ggml_backend_sched: tensor '%s' of %zu bytes exceeds the largest buffer of backend %s, %zu bytes",
        p->ids.data[id].tensor->name, size, d->name, d->max_size);
    GB_FAIL_IF(!gb_pad_size(size, d->leaf_unit, &padded) || !gb_add_size(end[b].offset, padded, &total),
        GGML_STATUS_ALLOC_FAILED, "ggml_backend_sched: the sizes of the leafs overflow");
    if (end[b].offset + size > max) {
        end[b].chunk++;
        end[b].offset = 0;
        total         = padded;
    }
    p->ids.data[id].item =
        (struct gb_item){ .backend = b, .chunk = end[b].chunk, .offset = end[b].offset, .size = size, .valid = true };
    end[b].offset = total;
    return need_room(p, &p->ids.data[id].item, true, d->alignment) ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}

// One version stands for all of a buffer. So inputs, which are set for each run, lie in another one than leafs whose
// copies are kept.
static bool lies_apart(const struct ggml_backend_sched * s, const struct gb_sched_plan * p, int id) {
    return p->n_backends > 1 && gb_tensor_has_flag(p->ids.data[id].tensor, GB_TENSOR_INPUT) &&
           !ggml_backend_buft_is_host(s->devices[p->assignment[id].backend].buft);
}

enum ggml_status gb_sched_lay_out_leafs(struct ggml_backend_sched * s, struct gb_sched_plan * p) {
    struct gb_item * end    = gb_calloc((size_t) p->n_backends, sizeof(*end)); // per backend: the first free place
    enum ggml_status status = end ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    for (int i = 0; i < p->n_ids && status == GGML_STATUS_SUCCESS; i++) {
        if (p->ids.data[i].home == GB_HOME_LEAF && !lies_apart(s, p, i)) {
            status = lay_out_leaf(s, p, i, end);
        }
    }
    for (int b = 0; end && b < p->n_backends; b++) {
        end[b] = end[b].offset > 0 ? (struct gb_item){ .chunk = end[b].chunk + 1 } : end[b];
    }
    for (int i = 0; i < p->n_ids && status == GGML_STATUS_SUCCESS; i++) {
        if (p->ids.data[i].home == GB_HOME_LEAF && lies_apart(s, p, i)) {
            status = lay_out_leaf(s, p, i, end);
        }
    }
    for (size_t k = 0; k < p->chunks.n; k++) { // there are no others yet
        p->need[p->chunks.data[k].backend].leafs += p->chunks.data[k].size;
    }
    gb_free(end);
    return status;
}

// ---------------------------------------------------------------------------------------------------------------------

static enum ggml_status lay_out(struct layout * l) {
    if (!list_nodes(l) || !gb_sched_map_storage(l->plan, &l->stands_for)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    GB_TRY(gb_go_on());
    GB_TRY(find_model(l));
    if (l->model == NULL) {
        GB_TRY(lay_out_well(l));
    }
    GB_FAIL_IF(!has_all_homes(l->plan), GGML_STATUS_FAILED,
        "ggml_backend_sched: a result has no memory (internal error)");
    for (size_t c = 0; c < l->plan->copies.n; c++) {
        const struct gb_copy * copy = &l->plan->copies.data[c];
        if (copy->kept) {
            l->plan->n_kept++;
            const size_t size = alloc_size(l->sched, copy->backend, &copy->dst->tensor);
            l->plan->need[copy->backend].replicas += GGML_PAD(size, l->sched->devices[copy->backend].alignment);
        }
    }
    for (size_t k = 0; k < l->plan->chunks.n; k++) {
        const struct gb_chunk_need * need = &l->plan->chunks.data[k];
        l->plan->need[need->backend].peak += need->leafs ? 0 : need->size;
    }
    for (int b = 0; l->model && b < l->plan->n_backends; b++) {
        l->plan->need[b].proved = l->plan->need[b].peak == l->plan->need[b].bound;
    }
    return GGML_STATUS_SUCCESS;
}

enum ggml_status gb_sched_lay_out(struct ggml_backend_sched * s, struct gb_sched_plan * p) {
    struct layout          l      = { .sched = s, .plan = p };
    const enum ggml_status status = lay_out(&l);
    free_layout(&l);
    return status;
}
