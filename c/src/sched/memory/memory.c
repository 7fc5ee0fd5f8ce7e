// memory.c - allocates, counts and retires the scheduler's buffers. memory.h lists the kinds, and
// why handles outlive their memory.
//
// If a device has no memory left, the scheduler frees unused memory: spare leaf stores first, then
// replicas without a plan, then memory that earlier plans are bound to. Such a plan is bound again
// before it runs.
#include "sched/input/input.h"
#include "sched/layout/layout.h"
#include "sched/memory/memory.h"
#include "sched/program/program.h"
#include "sched/sched.h"

#include <string.h>

// Frees the memory and keeps the handle, with size 0 and no hooks.
static void give_back(ggml_backend_buffer_t buffer) {
    if (buffer->iface.free_buffer) {
        buffer->iface.free_buffer(buffer);
    }
    buffer->iface = (struct ggml_backend_buffer_i){ 0 };
    buffer->context = NULL;
    buffer->size = 0;
}

// Frees the memory and keeps a handle without hooks; any access through it is an error. While
// `hold` is set, freeing is delayed: NumPy views may still refer to the memory.
static void retire(struct ggml_backend_sched * s, struct gb_mem * mem) {
    mem->buffer->usage = GB_USAGE_SCHED;
    mem->base = NULL;
    mem->size = 0;
    if (!GB_READ_RELAXED(s->hold)) {
        give_back(mem->buffer);
    }
}

void gb_sched_hold(struct ggml_backend_sched * s, bool hold) {
    GB_WRITE_RELAXED(s->hold, hold);
    for (size_t i = 0; !hold && i < s->mems.n; i++) {
        if (s->mems.data[i]->size == 0 && s->mems.data[i]->buffer->size > 0) {
            give_back(s->mems.data[i]->buffer);
        }
    }
}

// True for a leaf store that no plan is bound to. Another plan may take it.
static bool is_spare(const struct gb_mem * mem) {
    return mem->kind == GB_MEM_LEAFS && mem->n_refs == 0 && mem->size > 0;
}

static void retire_spares(struct ggml_backend_sched * s, int backend) { // -1: of all backends
    for (size_t i = 0; i < s->mems.n; i++) {
        if (is_spare(s->mems.data[i]) && (backend < 0 || s->mems.data[i]->backend == backend)) {
            retire(s, s->mems.data[i]);
        }
    }
}

// Allocates a buffer of the device. If that fails, frees spare leaf stores and tries again.
static ggml_backend_buffer_t alloc_buffer(struct ggml_backend_sched * s, int backend, size_t size) {
    struct gb_sched_device * d = &s->devices[backend];
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(d->buft, size);
    for (size_t i = 0; buffer == NULL && i < s->mems.n; i++) {
        if (is_spare(s->mems.data[i]) && s->mems.data[i]->backend == backend) {
            retire_spares(s, backend);
            buffer = ggml_backend_buft_alloc_buffer(d->buft, size);
        }
    }
    if (buffer == NULL && gb_sched_drop_spare_replicas(s, backend)) {
        buffer = ggml_backend_buft_alloc_buffer(d->buft, size);
    }
    return buffer;
}

// Reserves memory for one more handle, so that an allocated buffer can always be noted.
static bool reserve_handle(struct ggml_backend_sched * s) {
    return gb_vec_reserve(&s->mems, s->mems.n + 1) && gb_ptrmap_reserve(&s->mem_of, s->mem_of.n + 1);
}

// Frees spares and unused replicas if necessary. NULL: no memory.
struct gb_mem * gb_sched_mem_new(struct ggml_backend_sched * s, int backend, size_t size, enum gb_mem_kind kind) {
    if (!reserve_handle(s)) {
        return NULL;
    }
    struct gb_mem * mem = GB_NEW(struct gb_mem);
    if (mem == NULL) {
        return NULL;
    }
    mem->buffer = alloc_buffer(s, backend, size);
    mem->base = mem->buffer ? ggml_backend_buffer_get_base(mem->buffer) : NULL;
    if (mem->base == NULL) {
        ggml_backend_buffer_free(mem->buffer);
        gb_free(mem);
        return NULL;
    }
    mem->size = size;
    mem->backend = backend;
    mem->kind = kind;
    if (kind != GB_MEM_INPUTS) {
        mem->buffer->usage = GB_USAGE_SCHED;
    }
    mem->buffer->arena = kind == GB_MEM_ARENA;
    gb_ptrmap_set(&s->mem_of, mem->buffer, (int64_t) s->mems.n); // memory is reserved
    s->mems.data[s->mems.n++] = mem;
    return mem;
}

void gb_sched_mem_ref(struct gb_mem * mem) { mem->n_refs++; }

// Keeps a few leaf stores as spares for the next graph.
void gb_sched_mem_unref(struct ggml_backend_sched * s, struct gb_mem * mem) {
    if (--mem->n_refs > 0 || mem->size == 0) {
        return;
    }
    size_t n_spares = 0;
    for (size_t i = 0; i < s->mems.n; i++) {
        n_spares += is_spare(s->mems.data[i]);
    }
    if (mem->kind != GB_MEM_LEAFS || n_spares > GB_SCHED_SPARES_MAX) {
        retire(s, mem);
    }
}

// Takes the smallest spare that is large enough, else allocates a new store.
struct gb_mem * gb_sched_take_store(struct ggml_backend_sched * s, int backend, size_t size) {
    struct gb_mem * best = NULL;
    for (size_t i = 0; i < s->mems.n; i++) {
        struct gb_mem * mem = s->mems.data[i];
        if (is_spare(mem) && mem->backend == backend && mem->size >= size && (best == NULL || mem->size < best->size)) {
            best = mem;
        }
    }
    if (best == NULL) {
        best = gb_sched_mem_new(s, backend, size, GB_MEM_LEAFS);
    }
    if (best) {
        gb_sched_mem_ref(best);
        best->resets_before = s->n_resets;
    }
    return best;
}

// Releases the stores at once. They stay as spares, for this plan or another one.
enum ggml_status gb_sched_reserve_stores(struct ggml_backend_sched * s, const struct gb_sched_binding * binding) {
    gb_mem_list taken = { 0 }; // all at the same time, because each leaf entry needs a store
    enum ggml_status status =
        gb_vec_reserve(&taken, binding->layout->chunks.n) ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    for (size_t k = 0; k < binding->layout->chunks.n && status == GGML_STATUS_SUCCESS; k++) {
        const struct gb_chunk_need * need = &binding->layout->chunks.data[k];
        struct gb_mem * mem = need->leafs ? gb_sched_take_store(s, need->backend, need->size) : NULL;
        status = need->leafs && mem == NULL ? GGML_STATUS_ALLOC_FAILED : GGML_STATUS_SUCCESS;
        if (mem) {
            taken.data[taken.n++] = mem;
        }
    }
    for (size_t i = 0; i < taken.n; i++) {
        gb_sched_mem_unref(s, taken.data[i]);
    }
    gb_vec_free(&taken);
    return status;
}

// binding->leafs is in the order of the leaf entries of the plan's chunks.
struct gb_mem * gb_sched_mem_of_item(const struct ggml_backend_sched * s, const struct gb_sched_binding * binding,
    const struct gb_item * item) {
    if (!item->leaf) {
        return s->devices[item->backend].arena.data[item->chunk];
    }
    size_t k = 0;
    for (size_t i = 0; i < binding->layout->chunks.n; i++) {
        const struct gb_chunk_need * need = &binding->layout->chunks.data[i];
        if (need->leafs && need->backend == item->backend && need->chunk == item->chunk) {
            return k < binding->leafs.n ? binding->leafs.data[k] : NULL;
        }
        k += need->leafs;
    }
    return NULL;
}

// -------------------------------------------------------------------------------------------------------------- arenas

// Releases the plan's arenas, and so its results there. The plan must be bound again before it
// runs.
static void give_up_arenas(struct ggml_backend_sched * s, struct gb_sched_binding * binding) {
    for (size_t i = 0; i < binding->arenas.n; i++) {
        gb_sched_mem_unref(s, binding->arenas.data[i]);
    }
    gb_vec_free(&binding->arenas);
    gb_sched_release_replicas(binding);
    binding->stale = true;
    s->current = s->current == binding ? NULL : s->current;
}

// True if a leaf of the plan is a result in the arenas. Its content must be copied before the
// arenas are released.
static bool reads_results(const struct ggml_backend_sched * s, const struct gb_sched_binding * binding) {
    for (int i = 0; binding && i < binding->in->n_ids; i++) {
        const struct gb_id * id = &binding->in->ids.data[i];
        if (id->location == GB_LOCATION_LEAF && id->tensor->buffer && gb_sched_result_is_alive(s, id->tensor)) {
            return true;
        }
    }
    return false;
}

// True if releasing the plan may free replicas.
static bool holds_replicas(const struct gb_sched_binding * binding) {
    for (size_t c = 0; c < binding->program->copies.n; c++) {
        if (binding->copies[c].replica) {
            return true;
        }
    }
    return false;
}

// Releases chunks and replicas of plans other than the current one and `keep`. True if there were
// any.
static bool give_up_earlier(struct ggml_backend_sched * s, const struct gb_sched_binding * keep) {
    bool any = false;
    for (size_t k = 0; k < s->bindings.n; k++) {
        struct gb_sched_binding * binding = s->bindings.data[k];
        if (binding != s->current && binding != keep && (binding->arenas.n > 0 || holds_replicas(binding))) {
            give_up_arenas(s, binding);
            any = true;
        }
    }
    return any;
}

// If the new chunk does not fit beside the old chunk, the old chunk is freed first. If allocating
// the new chunk fails even then, a chunk of the old size is allocated again.
static struct gb_mem * replace_chunk(struct ggml_backend_sched * s, struct gb_mem ** slot, size_t size) {
    const size_t old_size = (*slot)->size;
    const int backend = (*slot)->backend;
    gb_sched_mem_unref(s, *slot);
    *slot = NULL;
    struct gb_mem * mem = gb_sched_mem_new(s, backend, size, GB_MEM_ARENA);
    struct gb_mem * back = mem ? NULL : gb_sched_mem_new(s, backend, old_size, GB_MEM_ARENA);
    if (back) {
        gb_sched_mem_ref(back);
        *slot = back;
    }
    return mem;
}

// Allocates a new chunk. Plans that are bound to the old chunk keep it until they are bound again,
// or until memory is short. The current plan releases it last, and not at all if `reader` reads its
// results.
static struct gb_mem * new_chunk(struct ggml_backend_sched * s, const struct gb_sched_binding * reader, int backend,
    struct gb_mem ** slot, size_t size) {
    struct gb_mem * mem = gb_sched_mem_new(s, backend, size, GB_MEM_ARENA);
    if (mem == NULL && give_up_earlier(s, reader)) {
        mem = gb_sched_mem_new(s, backend, size, GB_MEM_ARENA);
    }
    if (mem == NULL && *slot && s->current && !reads_results(s, reader)) {
        give_up_arenas(s, s->current);
    }
    return mem == NULL && *slot && (*slot)->n_refs == 1 ? replace_chunk(s, slot, size) : mem;
}

// Makes chunk `chunk` of the arena at least `size` bytes large.
static enum ggml_status grow_chunk(struct ggml_backend_sched * s, const struct gb_sched_binding * reader, int backend,
    int chunk, size_t size) {
    struct gb_sched_device * d = &s->devices[backend];
    while (d->arena.n <= (size_t) chunk) {
        if (!gb_vec_push(&d->arena, NULL)) {
            return GGML_STATUS_ALLOC_FAILED;
        }
    }
    struct gb_mem ** slot = &d->arena.data[chunk];
    if (*slot && (*slot)->size >= size) {
        return GGML_STATUS_SUCCESS;
    }
    struct gb_mem * mem = new_chunk(s, reader, backend, slot, size);
    if (mem == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    if (*slot) {
        gb_sched_mem_unref(s, *slot);
    }
    gb_sched_mem_ref(mem);
    *slot = mem;
    return GGML_STATUS_SUCCESS;
}

enum ggml_status gb_sched_reserve_arena(struct ggml_backend_sched * s, int backend, size_t size) {
    return grow_chunk(s, NULL, backend, 0, size);
}

enum ggml_status gb_sched_reserve_arenas(struct ggml_backend_sched * s, struct gb_sched_binding * binding) {
    for (size_t k = 0; k < binding->layout->chunks.n; k++) {
        const struct gb_chunk_need * need = &binding->layout->chunks.data[k];
        if (!need->leafs) {
            GB_TRY(grow_chunk(s, binding, need->backend, need->chunk, need->size));
        }
    }
    return GGML_STATUS_SUCCESS;
}

// -------------------------------------------------------------------------------------------------------------- inputs

// Before init_measure: an allocator that measures. After it: an allocator with a buffer of the
// measured size, or a larger one if a later graph measured more. The old buffer stays, because
// tensors of the user may be in it.
ggml_tallocr_t gb_sched_inputs(struct ggml_backend_sched * s, int backend) {
    struct gb_sched_device * d = &s->devices[backend];
    if (!s->measured) {
        if (d->measure == NULL) {
            d->measure = ggml_tallocr_new_measure_from_buft(d->buft);
        }
        return d->measure;
    }
    if (d->tallocr && d->inputs->size >= d->inputs_need) {
        return d->tallocr;
    }
    const size_t size = GB_MAX(d->inputs_need, d->alignment);
    struct gb_mem * mem = gb_sched_mem_new(s, backend, size, GB_MEM_INPUTS);
    ggml_tallocr_t next = mem ? ggml_tallocr_new_from_buffer(mem->buffer) : NULL;
    if (next == NULL) {
        if (mem) {
            retire(s, mem);
        }
        return NULL;
    }
    ggml_tallocr_free(d->tallocr);
    d->tallocr = next;
    d->inputs = mem;
    return next;
}

// Handles are freed only here: the scheduler and its tensors are not used any more.
void gb_sched_free_mems(struct ggml_backend_sched * s) {
    gb_sched_free_replicas(s);
    for (int b = 0; s->devices && b < s->n_backends; b++) {
        struct gb_sched_device * d = &s->devices[b];
        ggml_tallocr_free(d->measure);
        ggml_tallocr_free(d->tallocr);
        gb_vec_free(&d->arena);
    }
    for (size_t i = 0; i < s->mems.n; i++) {
        ggml_backend_buffer_free(s->mems.data[i]->buffer);
        gb_free(s->mems.data[i]);
    }
    gb_vec_free(&s->mems);
    gb_ptrmap_free(&s->mem_of);
}
