// leafs.c - places unplaced leafs one after another in leaf stores, outside the arenas.
//
// This runs before the program is made, because copies of neighbouring leafs are merged.
#include "sched/assign/assign.h"
#include "sched/input/input.h"
#include "sched/layout/layout.h"
#include "sched/sched.h"

struct leafs {
    const struct ggml_backend_sched * sched;
    const struct gb_sched_input * in;
    const struct gb_sched_assigned * assigned;
    struct gb_sched_layout * layout;
    struct gb_item * end; // owned; per backend: the first free chunk and offset
};

// A leaf begins at the padded end of the previous one, or in a new chunk if the buffer would become
// too large.
static enum ggml_status lay_out_leaf(struct leafs * l, int id) {
    const int b = l->assigned->to[id].backend;
    const struct gb_sched_device * d = &l->sched->devices[b];
    struct gb_item * item = &l->layout->items.data[id];
    struct gb_item * end = &l->end[b];
    struct ggml_tensor * t = l->in->ids.data[id].tensor;
    const size_t size = gb_sched_alloc_size(l->sched, b, t);
    const size_t max = d->max_size - d->max_size % d->alignment; // devices may round sizes up
    size_t padded, total;
    GB_FAIL_IF(size > max, GGML_STATUS_ALLOC_FAILED,
        "ggml_backend_sched: tensor '%s' of %zu bytes exceeds the largest buffer of backend %s, %zu bytes", t->name,
        size, d->name, d->max_size);
    GB_FAIL_IF(!gb_pad_size(size, d->leaf_unit, &padded) || !gb_add_size(end->offset, padded, &total),
        GGML_STATUS_ALLOC_FAILED, "ggml_backend_sched: the sizes of the leafs overflow");
    if (end->offset + size > max) {
        end->chunk++;
        end->offset = 0;
        total = padded;
    }
    *item = (struct gb_item){
        .backend = b, .chunk = end->chunk, .offset = end->offset, .size = size, .valid = true, .leaf = true
    };
    end->offset = total;
    return gb_sched_need_chunk(l->layout, item, true, d->alignment) ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}

// A buffer has one version. So inputs, which are set for each run, need other buffers than leafs
// whose copies are kept.
static bool lies_alone(const struct leafs * l, int id) {
    return l->in->n_backends > 1 && gb_tensor_has_flag(l->in->ids.data[id].tensor, GB_TENSOR_INPUT) &&
           !ggml_backend_buft_is_host(l->sched->devices[l->assigned->to[id].backend].buft);
}

// Places leafs in the order of ids, which is the order of the graph's leafs.
static enum ggml_status lay_out_those(struct leafs * l, bool alone) {
    for (int i = 0; i < l->in->n_ids; i++) {
        if (l->in->ids.data[i].location == GB_LOCATION_LEAF && lies_alone(l, i) == alone) {
            GB_TRY(lay_out_leaf(l, i));
        }
    }
    return GGML_STATUS_SUCCESS;
}

// A new chunk separates the inputs from the other leafs.
static enum ggml_status lay_out(struct leafs * l) {
    struct gb_sched_layout * layout = l->layout;
    layout->need = gb_calloc((size_t) l->in->n_backends, sizeof(*layout->need));
    if (l->end == NULL || layout->need == NULL || !gb_vec_resize_zero(&layout->items, (size_t) l->in->n_ids)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    GB_TRY(lay_out_those(l, false));
    for (int b = 0; b < l->in->n_backends; b++) {
        l->end[b] = l->end[b].offset > 0 ? (struct gb_item){ .chunk = l->end[b].chunk + 1 } : l->end[b];
    }
    GB_TRY(lay_out_those(l, true));
    for (size_t k = 0; k < layout->chunks.n; k++) { // all chunks so far are leaf stores
        layout->need[layout->chunks.data[k].backend].leafs += layout->chunks.data[k].size;
    }
    return GGML_STATUS_SUCCESS;
}

enum ggml_status gb_sched_lay_out_leafs(const struct ggml_backend_sched * s, const struct gb_sched_input * in,
    const struct gb_sched_assigned * assigned, struct gb_sched_layout * layout) {
    struct leafs l = { s, in, assigned, layout, gb_calloc((size_t) in->n_backends, sizeof(*l.end)) };
    const enum ggml_status status = lay_out(&l);
    gb_free(l.end);
    return status;
}
