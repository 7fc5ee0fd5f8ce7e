// items.c - the places of tensors, and the chunks that contain them.
//
// Items are numbered by storage ids: tensor ids, then the copies of the program. Only roots and
// copies have an item. Views are in the item of their root.
#include "sched/layout/layout.h"
#include "sched/sched.h"

size_t gb_sched_alloc_size(const struct ggml_backend_sched * s, int backend, struct ggml_tensor * t) {
    const size_t size = ggml_backend_buft_get_alloc_size(s->devices[backend].buft, t);
    return GB_MAX(size, 1); // an empty tensor needs an address, too
}

// The entry of a chunk, which is made if it is missing. NULL: no memory.
static struct gb_chunk_need * chunk_need(struct gb_sched_layout * layout, int backend, int chunk, bool leafs) {
    for (size_t k = 0; k < layout->chunks.n; k++) {
        struct gb_chunk_need * need = &layout->chunks.data[k];
        if (need->backend == backend && need->chunk == chunk && need->leafs == leafs) {
            return need;
        }
    }
    return gb_vec_push(&layout->chunks, ((struct gb_chunk_need){ backend, chunk, leafs, 0 }))
               ? &layout->chunks.data[layout->chunks.n - 1]
               : NULL;
}

bool gb_sched_need_chunk(struct gb_sched_layout * layout, const struct gb_item * item, bool leafs, size_t alignment) {
    struct gb_chunk_need * need = chunk_need(layout, item->backend, item->chunk, leafs);
    if (need) {
        need->size = GB_MAX(need->size, GGML_PAD(item->offset + item->size, alignment));
    }
    return need != NULL;
}

const struct gb_item * gb_sched_arena_item(const struct gb_sched_layout * layout, int64_t id) {
    const struct gb_item * item = &layout->items.data[id];
    return item->valid && !item->leaf ? item : NULL;
}

void gb_sched_free_layout(struct gb_sched_layout * layout) {
    gb_vec_free(&layout->items);
    gb_vec_free(&layout->spans);
    gb_vec_free(&layout->chunks);
    gb_free(layout->need);
}
