// leafs.c - leafs that nobody has placed lie one after another in stores of their own, apart from the arenas.
//
// They are laid out before the program is made: leafs that lie behind each other travel to another backend together.
#include "sched/plan.h"

static enum ggml_status lay_out_leaf(const struct ggml_backend_sched * s, struct gb_sched_plan * p, int id,
    struct gb_item * end) {
    const int                      b    = p->assigned.to[id].backend;
    const struct gb_sched_device * d    = &s->devices[b];
    const size_t                   size = gb_sched_alloc_size(s, b, p->in.ids.data[id].tensor);
    const size_t                   max  = d->max_size - d->max_size % d->alignment; // devices may round sizes up
    size_t                         padded, total;
    GB_FAIL_IF(size > max, GGML_STATUS_ALLOC_FAILED,
        "ggml_backend_sched: tensor '%s' of %zu bytes exceeds the largest buffer of backend %s, %zu bytes",
        p->in.ids.data[id].tensor->name, size, d->name, d->max_size);
    GB_FAIL_IF(!gb_pad_size(size, d->leaf_unit, &padded) || !gb_add_size(end[b].offset, padded, &total),
        GGML_STATUS_ALLOC_FAILED, "ggml_backend_sched: the sizes of the leafs overflow");
    if (end[b].offset + size > max) {
        end[b].chunk++;
        end[b].offset = 0;
        total         = padded;
    }
    p->layout.items.data[id] =
        (struct gb_item){ .backend = b, .chunk = end[b].chunk, .offset = end[b].offset, .size = size, .valid = true };
    end[b].offset = total;
    return gb_sched_need_chunk(p, &p->layout.items.data[id], true, d->alignment) ? GGML_STATUS_SUCCESS
                                                                                 : GGML_STATUS_ALLOC_FAILED;
}

// One version stands for all of a buffer. So inputs, which are set for each run, lie in another one than leafs whose
// copies are kept.
static bool lies_apart(const struct ggml_backend_sched * s, const struct gb_sched_plan * p, int id) {
    return p->in.n_backends > 1 && gb_tensor_has_flag(p->in.ids.data[id].tensor, GB_TENSOR_INPUT) &&
           !ggml_backend_buft_is_host(s->devices[p->assigned.to[id].backend].buft);
}

enum ggml_status gb_sched_lay_out_leafs(struct ggml_backend_sched * s, struct gb_sched_plan * p) {
    struct gb_item * end    = gb_calloc((size_t) p->in.n_backends, sizeof(*end)); // per backend: the first free place
    p->layout.need          = gb_calloc((size_t) p->in.n_backends, sizeof(*p->layout.need));
    const bool       ok     = end && p->layout.need && gb_vec_resize_zero(&p->layout.items, (size_t) p->in.n_ids);
    enum ggml_status status = ok ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    for (int i = 0; i < p->in.n_ids && status == GGML_STATUS_SUCCESS; i++) {
        if (p->in.ids.data[i].location == GB_LOCATION_LEAF && !lies_apart(s, p, i)) {
            status = lay_out_leaf(s, p, i, end);
        }
    }
    for (int b = 0; end && b < p->in.n_backends; b++) {
        end[b] = end[b].offset > 0 ? (struct gb_item){ .chunk = end[b].chunk + 1 } : end[b];
    }
    for (int i = 0; i < p->in.n_ids && status == GGML_STATUS_SUCCESS; i++) {
        if (p->in.ids.data[i].location == GB_LOCATION_LEAF && lies_apart(s, p, i)) {
            status = lay_out_leaf(s, p, i, end);
        }
    }
    for (size_t k = 0; k < p->layout.chunks.n; k++) { // there are no others yet
        p->layout.need[p->layout.chunks.data[k].backend].leafs += p->layout.chunks.data[k].size;
    }
    gb_free(end);
    return status;
}
