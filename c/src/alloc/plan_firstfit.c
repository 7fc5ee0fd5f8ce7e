// plan_firstfit.c - each buffer in turn goes into a gap between those placed before that are alive with it: the lowest
// gap in which it fits, or the smallest.
//
// The order decides how good the plan is: large, long or crowded buffers first leave the small ones to fill gaps. The
// gaps are found by passing the neighbours by rising offset. Where few buffers are alive together they are looked up in
// a tree and sorted; where many are, one list of all placed buffers, kept sorted, is read instead.
#include "alloc/plan_impl.h"

#include <stdlib.h>
#include <string.h>

#include "base/current.h"
#include "base/mem.h"
#include "base/status.h"

struct placed {
    size_t   offset, end;
    uint32_t first, last;
};

// The placed buffers, in a complete binary tree over the order of births: each inner node holds the latest end below
// it, so that those overlapping a span are found without looking at the others. An absent buffer ends at 0, before
// every section.
struct span_tree {
    uint32_t * latest; // owned; 2 * width entries, the root is 1, the leaf of position s is width + s
    size_t     width;  // power of two >= n
};

struct first_fit {
    struct span_tree        tree;   // when sparse
    struct gb_plan_ranked * order;  // owned
    struct placed *         placed; // owned; sparse: the neighbours of the one being placed; else all, by offset
    size_t                  n_placed;
};

// Looking up and sorting neighbours costs some steps for each pair that meets, reading the list of all costs one for
// each other buffer: the list is read where at least one in 32 is a neighbour.
static bool is_dense(const struct gb_plan_part * part) { return part->n_pairs > (uint64_t) part->n * part->n / 32; }

uint64_t gb_plan_first_fit_steps(const struct gb_plan_part * part) {
    return is_dense(part) ? (uint64_t) part->n * part->n / 2 : part->n * (uint64_t) 16 + part->n_pairs * 8;
}

static bool tree_init(struct span_tree * tree, size_t n) {
    tree->width = 1;
    while (tree->width < n) {
        tree->width *= 2;
    }
    tree->latest = gb_calloc(2 * tree->width, sizeof(*tree->latest));
    return tree->latest != NULL;
}

// All ancestors of the leaf learn of its end.
static void tree_insert(struct span_tree * tree, size_t position, uint32_t end) {
    for (size_t i = tree->width + position; i > 0; i /= 2) {
        tree->latest[i] = GB_MAX(tree->latest[i], end);
    }
}

// The first position >= from whose buffer is placed and ends after section `first`; width if there is none.
static size_t tree_next(const struct span_tree * tree, size_t from, uint32_t first) {
    if (from >= tree->width) {
        return tree->width;
    }
    size_t i = tree->width + from;
    while (tree->latest[i] <= first) { // up and to the right until a subtree has one
        while (i & 1) {
            i /= 2;
        }
        if (i == 0) {
            return tree->width;
        }
        i++;
    }
    while (i < tree->width) { // down to its first
        i *= 2;
        i += tree->latest[i] <= first;
    }
    return i - tree->width;
}

static int by_offset(const void * pa, const void * pb) {
    const struct placed *a = pa, *b = pb;
    return a->offset < b->offset ? -1 : a->offset > b->offset;
}

// The first offset at or above `at` where `size` bytes do not cross the end of a chunk.
static size_t within_chunk(size_t at, size_t size, size_t chunk) {
    const size_t used = chunk > 0 ? at % chunk : 0;
    return chunk > 0 && size > chunk - used ? at + (chunk - used) : at;
}

// The offset of the gap for b between those of the n placed, by rising offset, that are alive with it: the lowest gap,
// or the smallest; above all of them if it fits into none. A gap of exactly its size ends the search for the smallest.
static size_t find_gap(const struct placed * placed, size_t n, const struct gb_plan_buffer * b, size_t chunk,
    bool smallest) {
    size_t at = 0, best = SIZE_MAX, best_size = SIZE_MAX;
    for (size_t i = 0; i < n; i++) {
        if (placed[i].last <= b->first || placed[i].first >= b->last) {
            continue;
        }
        if (placed[i].offset > at) {
            const size_t from = within_chunk(at, b->size, chunk);
            const size_t size = placed[i].offset > from ? placed[i].offset - from : 0;
            if (size >= b->size && size < best_size) {
                if (!smallest || size == b->size) {
                    return from;
                }
                best      = from;
                best_size = size;
            }
        }
        at = GB_MAX(at, placed[i].end);
    }
    return best != SIZE_MAX ? best : within_chunk(at, b->size, chunk);
}

// Gathers what is alive with buffer i from the tree.
static size_t put_sparse(struct first_fit * f, const struct gb_plan_part * part, uint32_t i, bool smallest) {
    const struct gb_plan_buffer * b = &part->buffers[i];
    size_t                        n = 0;
    for (size_t s = tree_next(&f->tree, 0, b->first); s < part->n && part->buffers[s].first < b->last;
        s         = tree_next(&f->tree, s + 1, b->first)) {
        const struct gb_plan_buffer * other = &part->buffers[s];
        f->placed[n++] = (struct placed){ part->trial[s], part->trial[s] + other->size, other->first, other->last };
    }
    qsort(f->placed, n, sizeof(*f->placed), by_offset);
    tree_insert(&f->tree, i, b->last);
    return find_gap(f->placed, n, b, part->chunk, smallest);
}

// Reads the list of all that was put down, and inserts buffer i into it.
static size_t put_dense(struct first_fit * f, const struct gb_plan_part * part, uint32_t i, bool smallest) {
    const struct gb_plan_buffer * b      = &part->buffers[i];
    const size_t                  offset = find_gap(f->placed, f->n_placed, b, part->chunk, smallest);
    size_t                        low = 0, high = f->n_placed;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (f->placed[middle].offset < offset) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    memmove(f->placed + low + 1, f->placed + low, (f->n_placed - low) * sizeof(*f->placed));
    f->placed[low] = (struct placed){ offset, offset + b->size, b->first, b->last };
    f->n_placed++;
    return offset;
}

// The rank decides ties by what the buffers are and not by their index, so that the order of items does not matter.
enum ggml_status gb_plan_first_fit(struct gb_plan_part * part, enum gb_plan_key key, bool smallest_gap, size_t * peak) {
    struct first_fit f     = { 0 };
    const bool       dense = is_dense(part);
    f.order                = gb_calloc(part->n, sizeof(*f.order));
    f.placed               = gb_calloc(part->n, sizeof(*f.placed));
    const bool ok          = f.order && f.placed && (dense || tree_init(&f.tree, part->n));
    for (uint32_t i = 0; ok && i < part->n; i++) {
        f.order[i] = gb_plan_rank(&part->buffers[i], i, key, part->load);
    }
    if (ok) {
        qsort(f.order, part->n, sizeof(*f.order), gb_plan_by_rank);
    }
    *peak                   = 0;
    enum ggml_status status = ok ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
    for (uint32_t k = 0; status == GGML_STATUS_SUCCESS && k < part->n; k++) {
        status           = k % GB_PLAN_POLL == 0 ? gb_go_on() : status;
        const uint32_t i = f.order[k].buffer;
        part->trial[i]   = dense ? put_dense(&f, part, i, smallest_gap) : put_sparse(&f, part, i, smallest_gap);
        *peak            = GB_MAX(*peak, part->trial[i] + part->buffers[i].size);
    }
    gb_free(f.order);
    gb_free(f.placed);
    gb_free(f.tree.latest);
    return status;
}
