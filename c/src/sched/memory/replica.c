// replica.c - copies of tensors that no node writes, mostly weights, kept from run to run outside
// the arenas.
// A replica belongs to the scheduler. It is found by the address and layout of its source, so
// another graph, or the same graph built again, finds it filled. Plans hold references. Versions
// decide whether its content is valid (run.c checks them when a run begins). Each write changes a
// buffer's version, and versions are unique among all buffers. So a new buffer at the address of a
// freed buffer is never taken for the freed one. Unused replicas are freed when memory is short,
// and when a buffer with replicas is freed.
#include "sched/input/input.h"
#include "sched/layout/layout.h"
#include "sched/memory/memory.h"
#include "sched/program/program.h"
#include "sched/sched.h"

#include <string.h>

#include "backend/backend.h"

// Bytes of the replica, at least 1, so that it has an address.
static size_t size_on(const struct ggml_backend_sched * s, const struct gb_copy * copy) {
    const size_t size = ggml_backend_buft_get_alloc_size(s->devices[copy->backend].buft, &copy->dst->tensor);
    return GB_MAX(size, 1);
}

// The tensor of the graph that is copied.
static const struct ggml_tensor * source_of(const struct gb_sched_binding * binding, const struct gb_copy * copy) {
    return binding->in->ids.data[copy->root].tensor;
}

// The address of the bytes that are copied.
struct address {
    ggml_backend_buffer_t buffer; // NULL: not known yet
    const char * data;
};

// Binding moves leafs of the plan to its own stores, so their present address does not count.
static struct address address_of(const struct ggml_backend_sched * s, const struct gb_sched_binding * binding,
    const struct gb_copy * copy) {
    const struct gb_id * id = &binding->in->ids.data[copy->root];
    const struct gb_item * item = &binding->layout->items.data[copy->root];
    const struct ggml_tensor * source = source_of(binding, copy);
    if (id->location != GB_LOCATION_LEAF) {
        return (struct address){ source->buffer, (const char *) source->data + copy->lo };
    }
    const struct gb_mem * mem = gb_sched_mem_of_item(s, binding, item);
    return mem ? (struct address){ mem->buffer, mem->base + item->offset + copy->lo } : (struct address){ NULL, NULL };
}

// Finds a replica of the same bytes, with the same layout, on the same backend.
static struct gb_replica * find(const struct ggml_backend_sched * s, const struct gb_sched_binding * binding,
    const struct gb_copy * copy) {
    const struct address at = address_of(s, binding, copy);
    for (size_t i = 0; i < s->replicas.n; i++) {
        const struct gb_replica * r = s->replicas.data[i];
        if (r->backend == copy->backend && r->source == at.buffer && r->data == at.data &&
            gb_are_same_layout(&r->layout, &copy->dst->tensor)) {
            return s->replicas.data[i];
        }
    }
    return NULL;
}

// The last replica of a buffer frees the buffer.
static void drop(struct ggml_backend_sched * s, size_t i) {
    struct gb_replica * r = s->replicas.data[i];
    s->replicas.data[i] = s->replicas.data[--s->replicas.n];
    gb_sched_mem_unref(s, r->mem);
    gb_free(r);
}

bool gb_sched_drop_spare_replicas(struct ggml_backend_sched * s, int backend) {
    bool any = false;
    for (size_t i = s->replicas.n; i-- > 0;) {
        if (s->replicas.data[i]->n_refs == 0 && (backend < 0 || s->replicas.data[i]->backend == backend)) {
            drop(s, i);
            any = true;
        }
    }
    return any;
}

// No copy will read from a freed buffer again.
void gb_sched_drop_orphans(struct ggml_backend_sched * s) {
    const unsigned n_freed = gb_replicated_buffers_freed();
    if (s->n_replicated_freed != n_freed) {
        gb_sched_drop_spare_replicas(s, -1);
        s->n_replicated_freed = n_freed;
    }
}

// Frees the structs. Their memory is freed with the scheduler's other buffers.
void gb_sched_free_replicas(struct ggml_backend_sched * s) {
    for (size_t i = 0; i < s->replicas.n; i++) {
        gb_free(s->replicas.data[i]);
    }
    gb_vec_free(&s->replicas);
}

void gb_sched_release_replicas(struct gb_sched_binding * binding) {
    for (size_t c = 0; c < binding->program->copies.n; c++) {
        struct gb_replica ** r = &binding->copies[c].replica;
        if (*r) {
            (*r)->n_refs--;
        }
        *r = NULL;
    }
}

// -------------------------------------------------------------------------------------------------------------- taking

// Marks the source's buffer, whose replicas are orphans once it is freed.
static bool add(struct ggml_backend_sched * s, struct gb_sched_binding * binding, size_t c, struct gb_mem * mem,
    size_t offset) {
    const struct gb_copy * copy = &binding->program->copies.data[c];
    struct gb_replica * r = gb_vec_reserve(&s->replicas, s->replicas.n + 1) ? GB_NEW(struct gb_replica) : NULL;
    if (r == NULL) {
        return false;
    }
    const struct address at = address_of(s, binding, copy);
    *r = (struct gb_replica){ .source = at.buffer,
        .data = at.data,
        .layout = copy->dst->tensor,
        .backend = copy->backend,
        .mem = mem,
        .offset = offset,
        .n_refs = 1 };
    gb_sched_mem_ref(mem);
    at.buffer->replicated = true;
    s->replicas.data[s->replicas.n++] = r;
    binding->copies[c].replica = r;
    return true;
}

// Replicas of leafs are taken when the leaf's place is known.
static bool is_missing(const struct ggml_backend_sched * s, const struct gb_sched_binding * binding, size_t c,
    int backend) {
    const struct gb_copy * copy = &binding->program->copies.data[c];
    return copy->kept && binding->copies[c].replica == NULL && copy->backend == backend &&
           address_of(s, binding, copy).buffer != NULL;
}

// Bytes of the missing replicas, from copy `c` on, that fit into one buffer. *end: the first copy
// that does not fit.
static size_t fill_one(const struct ggml_backend_sched * s, const struct gb_sched_binding * binding, int backend,
    size_t c, size_t * end) {
    const struct gb_sched_device * d = &s->devices[backend];
    size_t size = 0;
    for (; c < binding->program->copies.n; c++) {
        if (!is_missing(s, binding, c, backend)) {
            continue;
        }
        size_t padded, total;
        if (!gb_pad_size(size_on(s, &binding->program->copies.data[c]), d->alignment, &padded) ||
            !gb_add_size(size, padded, &total) || (size > 0 && total > d->max_size)) {
            break;
        }
        size = total;
    }
    *end = c;
    return size;
}

// Makes all missing replicas of a backend, several per buffer. False: no memory; some may have been
// made.
static bool take_missing(struct ggml_backend_sched * s, struct gb_sched_binding * binding, int backend) {
    for (size_t c = 0, end; c < binding->program->copies.n; c = end) {
        const size_t size = fill_one(s, binding, backend, c, &end);
        if (size == 0) {
            return end == binding->program->copies.n;
        }
        struct gb_mem * mem = gb_sched_mem_new(s, backend, size, GB_MEM_REPLICAS);
        if (mem == NULL) {
            return false;
        }
        size_t offset = 0;
        bool ok = true;
        gb_sched_mem_ref(mem);
        for (; ok && c < end; c++) {
            const struct gb_copy * copy = &binding->program->copies.data[c];
            if (is_missing(s, binding, c, backend)) {
                ok = add(s, binding, c, mem, offset);
                offset += GGML_PAD(size_on(s, copy), s->devices[backend].alignment);
            }
        }
        gb_sched_mem_unref(s, mem); // its replicas have references
        if (!ok) {
            return false;
        }
    }
    return true;
}

// Existing replicas are taken first; only missing ones need memory.
enum ggml_status gb_sched_take_replicas(struct ggml_backend_sched * s, struct gb_sched_binding * binding) {
    for (size_t c = 0; c < binding->program->copies.n; c++) {
        const struct gb_copy * copy = &binding->program->copies.data[c];
        struct gb_bound_copy * bound = &binding->copies[c];
        if (copy->kept && bound->replica == NULL && (bound->replica = find(s, binding, copy)) != NULL) {
            bound->replica->n_refs++;
        }
    }
    for (int b = 0; b < binding->in->n_backends; b++) {
        if (!take_missing(s, binding, b)) {
            gb_sched_release_replicas(binding);
            gb_sched_drop_spare_replicas(s, b);
            return GGML_STATUS_ALLOC_FAILED;
        }
    }
    return GGML_STATUS_SUCCESS;
}

// ------------------------------------------------------------------------------------------------------------ versions

// A replica is up to date if its version equals that of the source's buffer.
void gb_sched_look_at_replicas(struct gb_sched_binding * binding) {
    for (size_t c = 0; binding->program->n_kept > 0 && c < binding->program->copies.n; c++) {
        const struct gb_copy * copy = &binding->program->copies.data[c];
        struct gb_bound_copy * bound = &binding->copies[c];
        if (copy->kept) {
            bound->seen = gb_buffer_version(source_of(binding, copy)->buffer);
            bound->due = bound->replica->version != bound->seen;
        }
    }
}

void gb_sched_keep_replicas(struct gb_sched_binding * binding) {
    for (size_t c = 0; binding->program->n_kept > 0 && c < binding->program->copies.n; c++) {
        const struct gb_copy * copy = &binding->program->copies.data[c];
        struct gb_replica * r = binding->copies[c].replica;
        if (copy->kept && r->version == binding->copies[c].seen) {
            const uint64_t now = gb_buffer_version(source_of(binding, copy)->buffer);
            r->checked = r->checked == r->version ? now : r->checked;
            r->version = now;
        }
    }
}

void gb_sched_forget_replicas(struct ggml_backend_sched * s) {
    for (size_t i = 0; i < s->replicas.n; i++) {
        s->replicas.data[i]->version = 0;
    }
}
