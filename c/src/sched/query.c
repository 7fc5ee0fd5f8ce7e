// query.c - public functions that describe the last plan: splits, arenas, blocks, copies,
// fallbacks, times.
//
// They read the plan of the last graph. All fail in the child of a fork that happened while another
// thread used the scheduler, because the plan may be incomplete there.
#include "sched/plan.h"

#include <stdio.h>
#include <string.h>

const struct gb_sched_plan * gb_sched_last_plan(const struct ggml_backend_sched * s, const char * func) {
    if (gb_sched_check_whole(s, func) != GGML_STATUS_SUCCESS) {
        return NULL;
    }
    GB_FAIL_IF_RETURNING(s->last == NULL, NULL, GGML_STATUS_INVALID_STATE, "%s: no graph was given yet", func);
    return s->last;
}

// For functions that count: NULL before the first graph, without an error.
static const struct gb_sched_plan * plan_if_any(const struct ggml_backend_sched * s, const char * func) {
    return gb_sched_check_whole(s, func) == GGML_STATUS_SUCCESS ? s->last : NULL;
}

// An empty arena is optimal, so it counts as proved.
enum ggml_status ggml_backend_sched_get_arena(ggml_backend_sched_t sched, ggml_backend_t backend,
    struct ggml_backend_sched_arena * arena) {
    GB_CHECK_ARG(sched);
    GB_CHECK_ARG(backend);
    GB_CHECK_ARG(arena);
    const struct gb_sched_plan * p = gb_sched_last_plan(sched, __func__);
    const int b = p ? gb_sched_index_of(sched, backend, __func__) : -1;
    if (b < 0) {
        return ggml_last_status();
    }
    const struct gb_backend_need * need = &p->layout.need[b];
    *arena = (struct ggml_backend_sched_arena){ need->peak, need->bound, need->proved || need->peak == 0, need->leafs,
        need->replicas, need->no_reuse };
    return GGML_STATUS_SUCCESS;
}

// Returns 0 after a failure, which is reported, and if the backend needs no scratch memory.
size_t ggml_backend_sched_get_work_size(ggml_backend_sched_t sched, ggml_backend_t backend) {
    GB_CHECK_ARG_RETURNING(sched, 0);
    GB_CHECK_ARG_RETURNING(backend, 0);
    const struct gb_sched_plan * p = gb_sched_last_plan(sched, __func__);
    const int b = p ? gb_sched_index_of(sched, backend, __func__) : -1;
    return b < 0 ? 0 : p->layout.need[b].work;
}

// -------------------------------------------------------------------------------------------------------------- blocks

// Storage ids: tensor ids, then copies.
static int64_t n_items(const struct gb_sched_plan * p) { return (int64_t) p->in.n_ids + (int64_t) p->program.copies.n; }

// The public form of an item. The tensor of a copy is the one that first reads through it.
static struct ggml_backend_sched_block block_of(const struct ggml_backend_sched * s, const struct gb_sched_plan * p,
    int64_t id, int root) {
    const struct gb_item * item = gb_sched_arena_item(&p->layout, id);
    const bool is_copy = id >= p->in.n_ids;
    return (struct ggml_backend_sched_block){
        .backend = s->devices[item->backend].backend,
        .tensor = p->in.ids.data[is_copy ? p->program.copies.data[id - p->in.n_ids].shown : id].tensor,
        .is_copy = is_copy,
        .chunk = item->chunk,
        .offset = item->offset,
        .size = item->size,
        .lower = item->lower,
        .upper = item->upper,
        .root = root,
    };
}

// Returns the number of all blocks and writes the first n. -1: a failure.
int ggml_backend_sched_get_blocks(ggml_backend_sched_t sched, struct ggml_backend_sched_block * blocks, int n) {
    GB_CHECK_ARG_RETURNING(sched, -1);
    GB_FAIL_IF_RETURNING(n < 0, -1, GGML_STATUS_INVALID_ARGUMENT, "%s: argument 'n' must be >= 0, is %d", __func__, n);
    GB_FAIL_IF_RETURNING(n > 0 && blocks == NULL, -1, GGML_STATUS_INVALID_ARGUMENT,
        "%s: argument 'blocks' is NULL, 'n' is %d", __func__, n);
    const struct gb_sched_plan * p = gb_sched_last_plan(sched, __func__);
    if (p == NULL) {
        return -1;
    }
    int32_t * first = gb_calloc((size_t) n_items(p), sizeof(*first)); // per alias group: its first block + 1
    int found = first ? 0 : -1;
    for (int64_t id = 0; first && id < n_items(p); id++) {
        const struct gb_item * item = gb_sched_arena_item(&p->layout, id);
        if (item != NULL) {
            first[item->group] = first[item->group] ? first[item->group] : found + 1;
            if (found < n) {
                blocks[found] = block_of(sched, p, id, first[item->group] - 1);
            }
            found++;
        }
    }
    gb_free(first);
    return found;
}

// -------------------------------------------------------------------------------------------------------------- splits

// Split i of the last plan. NULL and reported: there is none.
static const struct gb_split * split_at(ggml_backend_sched_t sched, int i, const char * func) {
    if (gb_sched_check_whole(sched, func) != GGML_STATUS_SUCCESS) {
        return NULL;
    }
    const int n = sched->last ? (int) sched->last->program.splits.n : 0;
    GB_FAIL_IF_RETURNING(i < 0 || i >= n, NULL, GGML_STATUS_INVALID_ARGUMENT,
        "%s: split %d: the last graph has %d splits", func, i, n);
    return &sched->last->program.splits.data[i];
}

// The k-th copy into the split, or NULL.
static const struct gb_copy * input_at(const struct gb_sched_plan * p, const struct gb_split * split, int k) {
    const bool is_there = (size_t) k < split->transfers_end - split->transfers_begin;
    return is_there ? &p->program.copies.data[p->program.transfers.data[split->transfers_begin + (size_t) k]] : NULL;
}

// Before the first graph the number is 0, without an error.
int ggml_backend_sched_get_n_splits(ggml_backend_sched_t sched) {
    GB_CHECK_ARG_RETURNING(sched, 0);
    const struct gb_sched_plan * p = plan_if_any(sched, __func__);
    return p ? (int) p->program.splits.n : 0;
}

enum ggml_status ggml_backend_sched_get_split(ggml_backend_sched_t sched, int i,
    struct ggml_backend_sched_split_info * info) {
    GB_CHECK_ARG(sched);
    GB_CHECK_ARG(info);
    const struct gb_split * split = split_at(sched, i, __func__);
    if (split == NULL) {
        return ggml_last_status();
    }
    *info = (struct ggml_backend_sched_split_info){
        .index = i,
        .backend = sched->devices[split->backend].backend,
        .i_start = split->start,
        .i_end = split->end,
    };
    for (const struct gb_copy * copy; (copy = input_at(sched->last, split, info->n_inputs)) != NULL; info->n_inputs++) {
        info->input_bytes += copy->hi - copy->lo;
    }
    return GGML_STATUS_SUCCESS;
}

// The root, if the copy holds all of it; else the tensor that first reads through the copy.
struct ggml_tensor * ggml_backend_sched_get_split_input(ggml_backend_sched_t sched, int i_split, int i_input) {
    GB_CHECK_ARG_RETURNING(sched, NULL);
    const struct gb_split * split = split_at(sched, i_split, __func__);
    const struct gb_copy * copy = split && i_input >= 0 ? input_at(sched->last, split, i_input) : NULL;
    GB_FAIL_IF_RETURNING(split != NULL && copy == NULL, NULL, GGML_STATUS_INVALID_ARGUMENT,
        "%s: split %d has no input %d", __func__, i_split, i_input);
    return copy ? sched->last->in.ids.data[copy->whole ? copy->root : copy->shown].tensor : NULL;
}

// All times are -1 if costs did not decide.
enum ggml_status ggml_backend_sched_get_prediction(ggml_backend_sched_t sched,
    struct ggml_backend_sched_prediction * prediction) {
    GB_CHECK_ARG(sched);
    GB_CHECK_ARG(prediction);
    GB_TRY(gb_sched_check_whole(sched, __func__));
    const bool predicted = sched->last && sched->last->assigned.predicted;
    *prediction =
        predicted ? sched->last->assigned.prediction : (struct ggml_backend_sched_prediction){ -1, -1, -1, false };
    return GGML_STATUS_SUCCESS;
}

// -------------------------------------------------------------------------------------------------------------- copies

// The backend that owns a root's memory; NULL: no backend of the scheduler.
static ggml_backend_t owner_of(const struct ggml_backend_sched * s, const struct gb_sched_plan * p, int root) {
    const int b = gb_sched_owner_of(s, &p->in, &p->assigned, root);
    return b < 0 ? NULL : s->devices[b].backend;
}

// True if a node uses the tensor as a weight, but the user's buffer that holds it is not marked as
// WEIGHTS.
static bool is_unmarked(const struct ggml_backend_sched * s, const struct gb_sched_plan * p,
    const struct gb_copy * copy) {
    const struct gb_id * id = &p->in.ids.data[copy->root];
    const ggml_backend_buffer_t buffer = id->tensor->buffer;
    return copy->as_weight && id->location == GB_LOCATION_USER && !id->computes && !p->in.weight[copy->root] &&
           buffer != NULL && gb_sched_mem_of(s, buffer) == NULL &&
           gb_sched_owner_of(s, &p->in, &p->assigned, copy->root) >= 0;
}

int ggml_backend_sched_get_n_transfers(ggml_backend_sched_t sched) {
    GB_CHECK_ARG_RETURNING(sched, 0);
    const struct gb_sched_plan * p = plan_if_any(sched, __func__);
    return p ? (int) (p->program.transfers.n + p->program.backs.n) : 0;
}

// Copies into splits come first, then write-backs.
enum ggml_status ggml_backend_sched_get_transfer(ggml_backend_sched_t sched, int i,
    struct ggml_backend_sched_transfer * transfer) {
    GB_CHECK_ARG(sched);
    GB_CHECK_ARG(transfer);
    const struct gb_sched_plan * p = gb_sched_last_plan(sched, __func__);
    if (p == NULL) {
        return ggml_last_status();
    }
    const int k = (int) p->program.transfers.n;
    GB_FAIL_IF(i < 0 || (size_t) i >= (size_t) k + p->program.backs.n, GGML_STATUS_INVALID_ARGUMENT,
        "%s: copy %d: the plan has %zu", __func__, i, (size_t) k + p->program.backs.n);
    if (i < k) {
        const struct gb_copy * copy = &p->program.copies.data[p->program.transfers.data[i]];
        *transfer = (struct ggml_backend_sched_transfer){
            .tensor = p->in.ids.data[copy->shown].tensor,
            .source = owner_of(sched, p, copy->root),
            .target = sched->devices[copy->backend].backend,
            .split = copy->split,
            .size = copy->hi - copy->lo,
            .is_kept = copy->kept,
            .is_unmarked = is_unmarked(sched, p, copy),
        };
        return GGML_STATUS_SUCCESS;
    }
    const struct gb_write_back * back = &p->program.backs.data[i - k];
    const int at = gb_sched_split_of_back(&p->program, (size_t) (i - k));
    *transfer = (struct ggml_backend_sched_transfer){
        .tensor = p->in.ids.data[back->node].tensor,
        .source = sched->devices[p->program.splits.data[at].backend].backend,
        .target = owner_of(sched, p, p->in.ids.data[back->node].root),
        .split = at,
        .size = ggml_nbytes(p->in.ids.data[back->node].tensor),
        .is_write_back = true,
    };
    return GGML_STATUS_SUCCESS;
}

// The positions are those of the program, as in the lifetimes of blocks.
enum ggml_status ggml_backend_sched_get_split_span(ggml_backend_sched_t sched, int i, int64_t * lower,
    int64_t * upper) {
    GB_CHECK_ARG(sched);
    GB_CHECK_ARG(lower);
    GB_CHECK_ARG(upper);
    const struct gb_sched_plan * p = gb_sched_last_plan(sched, __func__);
    GB_FAIL_IF(p != NULL && (i < 0 || (size_t) i >= p->program.splits.n), GGML_STATUS_INVALID_ARGUMENT,
        "%s: split %d: the last graph has %zu splits", __func__, i, p->program.splits.n);
    if (p == NULL) {
        return ggml_last_status();
    }
    *lower = p->layout.spans.data[i].lower;
    *upper = p->layout.spans.data[i].upper;
    return GGML_STATUS_SUCCESS;
}

// ----------------------------------------------------------------------------------------------------------- fallbacks

// Without a plan the number is 0, without an error.
int ggml_backend_sched_get_n_fallbacks(ggml_backend_sched_t sched) {
    GB_CHECK_ARG_RETURNING(sched, 0);
    const bool known = gb_sched_check_whole(sched, __func__) == GGML_STATUS_SUCCESS && sched->last;
    return known ? (int) sched->last->report.fallbacks.n : 0;
}

// The name is the plan's copy, because the tensor may be freed.
enum ggml_status ggml_backend_sched_get_fallback(ggml_backend_sched_t sched, int i,
    struct ggml_backend_sched_fallback * fallback) {
    GB_CHECK_ARG(sched);
    GB_CHECK_ARG(fallback);
    GB_TRY(gb_sched_check_whole(sched, __func__));
    const struct gb_sched_plan * p = sched->last;
    const size_t n = p ? p->report.fallbacks.n : 0;
    GB_FAIL_IF(i < 0 || (size_t) i >= n, GGML_STATUS_INVALID_ARGUMENT, "%s: fallback %d: the last graph has %zu",
        __func__, i, n);
    const struct gb_fallback * f = &p->report.fallbacks.data[i];
    *fallback = (struct ggml_backend_sched_fallback){
        .tensor = p->in.ids.data[f->node].tensor,
        .node = f->node,
        .op = gb_key_of(&p->in.keys, f->node)->op,
        .backend = sched->devices[p->assigned.to[f->node].backend].backend,
        .refused_by = sched->devices[f->refused_by].backend,
        .flops = f->flops,
        .n_copies = (int) f->copied.n,
        .copied_bytes = f->copied.bytes,
        .is_heavy = f->flops >= GGML_BACKEND_SCHED_HEAVY_FLOPS || f->copied.bytes >= GGML_BACKEND_SCHED_HEAVY_BYTES,
    };
    snprintf(fallback->name, sizeof(fallback->name), "%s", gb_sched_name_of(&p->in, f->node));
    memcpy(fallback->reason, f->reason, sizeof(fallback->reason));
    return GGML_STATUS_SUCCESS;
}

// --------------------------------------------------------------------------------------------------------------- times

// Sums over all recorded runs of the last plan.
enum ggml_status ggml_backend_sched_get_split_time(ggml_backend_sched_t sched, int i, uint64_t * n_runs,
    uint64_t * total_ns) {
    GB_CHECK_ARG(sched);
    GB_CHECK_ARG(n_runs);
    GB_CHECK_ARG(total_ns);
    const int n = sched->last ? (int) sched->last->program.splits.n : 0;
    GB_FAIL_IF(i < 0 || i >= n, GGML_STATUS_INVALID_ARGUMENT, "%s: split %d: the last graph has %d splits", __func__, i,
        n);
    *n_runs = sched->last->binding.splits[i].n_traced;
    *total_ns = sched->last->binding.splits[i].traced_ns;
    return GGML_STATUS_SUCCESS;
}
