// plan_exact.c - exact depth-first search for a plan within a capacity. It is complete, so its failure is a proof.
//
// Plans are built from the bottom up. Any plan can be pushed down until each buffer is directly
// above another one or at 0. The buffers of such a plan can be placed by rising (offset, rank),
// each at its floor: the highest top of its placed neighbours. Only these sequences are searched.
// Pruning:
//   - Holes: no buffer need be placed at or above the lowest possible top of an unplaced neighbour,
//     because that neighbour could move below it.
//   - Sections: the lowest floor of a section's unplaced buffers plus their sizes must not exceed the
//     capacity.
//   - Isolation: a buffer without unplaced neighbours is in no other buffer's way, so no other offset of
//     it helps.
//   - Symmetry: of buffers with the same size and lifetime only the first unplaced one is tried.
//   - Subproblems: where no unplaced buffer crosses a section boundary, both sides are searched
//     separately. If one fails, the whole fails.
// The search has its own stack. A frame is a subproblem with one of its buffers being placed. A
// trail undoes changes.
//
// Invariant: floor[b], unplaced[s] and crossing[s] always hold for the unplaced buffers.
#include "plan/search/plan_methods.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/vec.h"

struct
    subproblem { // unplaced buffers without other unplaced neighbours: lists[begin .. end), in sections [first, last)
    size_t begin, end;
    uint32_t first, last;
};

struct frame {
    struct subproblem what;
    size_t least_offset; // later placements have a larger (offset, rank) than (least_offset, least_rank)
    uint32_t least_rank;
    size_t ceiling; // see "Holes"
    size_t next; // index in lists of the next candidate
    size_t trail, lists, subproblems; // lengths to restore before the next candidate
    size_t child; // index in subproblems of the next to search
    bool isolated;
};

struct change {
    enum { PLACED, FLOOR, RANK } kind;
    uint32_t buffer;
    size_t old;
};

struct gb_plan_exact {
    struct gb_plan_part * part; // borrowed
    size_t * floor; // by buffer
    uint32_t * rank; // by buffer; the lower comes first
    uint32_t * equal; // by buffer: the previous buffer with the same size and lifetime, or UINT32_MAX
    bool * placed; // by buffer
    // by buffer, n + 1 entries: neighbours of b are neighbours[neighbours_begin[b] .. neighbours_begin[b + 1])
    uint64_t * neighbours_begin;
    uint32_t * neighbours;
    size_t * unplaced; // by section: bytes of unplaced buffers
    uint32_t * crossing; // by section: unplaced buffers alive in it and the next
    uint32_t * unvisited; // by section: scratch of may_fit
    uint32_t * marked; // by rank: the buffer whose bit is set in marks
    uint64_t * marks; // all 0 outside of add_subproblem
    struct gb_plan_ranked * ranked; // by buffer: scratch
    GB_VEC(struct frame) frames;
    GB_VEC(uint32_t) lists;
    GB_VEC(struct subproblem) subproblems;
    GB_VEC(struct change) trail;

    size_t capacity;
    enum gb_plan_key key;
    bool rerank;
    uint64_t nodes; // left
    uint64_t steps; // not yet charged to the budget
    struct gb_plan_budget * budget;
};

// -------------------------------------------------------------------------------------------------------------- set-up

// Fills in the lists of neighbours: counts, then lists.
static void list_neighbours(struct gb_plan_exact * x) {
    const struct gb_plan_part * part = x->part;
    for (uint32_t i = 0; i < part->n; i++) { // buffers come by birth: i and j are neighbours if j is born before i dies
        for (uint32_t j = i + 1; j < part->n && part->buffers[j].first < part->buffers[i].last; j++) {
            x->neighbours_begin[i + 1]++;
            x->neighbours_begin[j + 1]++;
        }
    }
    for (uint32_t i = 0; i < part->n; i++) {
        x->neighbours_begin[i + 1] += x->neighbours_begin[i];
    }
    for (uint32_t i = part->n; i-- > 0;) { // fills each list from its end
        for (uint32_t j = i + 1; j < part->n && part->buffers[j].first < part->buffers[i].last; j++) {
            x->neighbours[x->neighbours_begin[i + 1] - 1 - x->rank[i]++] = j; // rank counts listed neighbours
            x->neighbours[x->neighbours_begin[j + 1] - 1 - x->rank[j]++] = i;
        }
    }
}

// Equal buffers are adjacent in the order by size. A buffer of another span between them only hides
// the symmetry.
static bool find_equal(struct gb_plan_exact * x) {
    const struct gb_plan_buffer * all = x->part->buffers;
    uint32_t * const order = x->marked; // scratch
    if (gb_plan_order(x->part, GB_PLAN_BY_SIZE, order) != GGML_STATUS_SUCCESS) {
        return false;
    }
    for (uint32_t k = 0; k < x->part->n; k++) {
        const struct gb_plan_buffer * b = &all[order[k]];
        const struct gb_plan_buffer * before = k > 0 ? &all[order[k - 1]] : NULL;
        const bool same = before && before->size == b->size && before->first == b->first && before->last == b->last &&
                          before->span == b->span;
        x->equal[order[k]] = same ? order[k - 1] : UINT32_MAX;
    }
    return true;
}

// Allocates everything that depends on the part. Only the stacks grow during the search.
struct gb_plan_exact * gb_plan_exact_new(struct gb_plan_part * part) {
    struct gb_plan_exact * x = GB_NEW(struct gb_plan_exact);
    if (x == NULL) {
        return NULL;
    }
    const size_t n = part->n, m = part->n_sections;
    x->part = part;
    x->floor = gb_calloc(n, sizeof(*x->floor));
    x->rank = gb_calloc(n, sizeof(*x->rank));
    x->equal = gb_calloc(n, sizeof(*x->equal));
    x->placed = gb_calloc(n, sizeof(*x->placed));
    x->neighbours_begin = gb_calloc(n + 1, sizeof(*x->neighbours_begin));
    x->neighbours = gb_calloc(2 * (size_t) part->n_pairs + 1, sizeof(*x->neighbours));
    x->unplaced = gb_calloc(m, sizeof(*x->unplaced));
    x->crossing = gb_calloc(m, sizeof(*x->crossing));
    x->unvisited = gb_calloc(m + 1, sizeof(*x->unvisited));
    x->marked = gb_calloc(n, sizeof(*x->marked));
    x->marks = gb_calloc(n / 64 + 1, sizeof(*x->marks));
    x->ranked = gb_calloc(n, sizeof(*x->ranked));
    if (!x->floor || !x->rank || !x->equal || !x->placed || !x->neighbours_begin || !x->neighbours || !x->unplaced ||
        !x->crossing || !x->unvisited || !x->marked || !x->marks || !x->ranked) {
        gb_plan_exact_free(x);
        return NULL;
    }
    list_neighbours(x);
    if (!find_equal(x)) {
        gb_plan_exact_free(x);
        return NULL;
    }
    return x;
}

void gb_plan_exact_free(struct gb_plan_exact * x) {
    if (x == NULL) {
        return;
    }
    gb_free(x->floor);
    gb_free(x->rank);
    gb_free(x->equal);
    gb_free(x->placed);
    gb_free(x->neighbours_begin);
    gb_free(x->neighbours);
    gb_free(x->unplaced);
    gb_free(x->crossing);
    gb_free(x->unvisited);
    gb_free(x->marked);
    gb_free(x->marks);
    gb_free(x->ranked);
    gb_vec_free(&x->frames);
    gb_vec_free(&x->lists);
    gb_vec_free(&x->subproblems);
    gb_vec_free(&x->trail);
    gb_free(x);
}

// ------------------------------------------------------------------------------------------------------ place and undo

// Updates the sections of a buffer that is placed or removed.
static void toggle(struct gb_plan_exact * x, uint32_t b, bool placed) {
    const struct gb_plan_buffer * buffer = &x->part->buffers[b];
    x->placed[b] = placed;
    const size_t size =
        placed ? (size_t) 0 - buffer->size : buffer->size; // unsigned arithmetic wraps, so the sums are correct
    const uint32_t count = placed ? UINT32_MAX : 1;
    for (uint32_t s = buffer->first; s < buffer->last; s++) {
        x->unplaced[s] += size;
    }
    for (uint32_t s = buffer->first; s + 1 < buffer->last; s++) {
        x->crossing[s] += count;
    }
    x->steps += buffer->last - buffer->first;
}

// Undoes changes, newest first, because a floor may have been raised twice.
static void undo(struct gb_plan_exact * x, size_t length) {
    while (x->trail.n > length) {
        const struct change c = x->trail.data[--x->trail.n];
        switch (c.kind) {
            case PLACED: toggle(x, c.buffer, false); break;
            case FLOOR: x->floor[c.buffer] = c.old; break;
            case RANK: x->rank[c.buffer] = (uint32_t) c.old; break;
        }
    }
}

// Places b at its floor and raises the floors of its unplaced neighbours. *isolated: it has no
// unplaced neighbours. False: no memory.
static bool place(struct gb_plan_exact * x, uint32_t b, bool * isolated) {
    const size_t top = x->floor[b] + x->part->buffers[b].size;
    *isolated = true;
    if (!gb_vec_push(&x->trail, ((struct change){ PLACED, b, 0 }))) {
        return false;
    }
    toggle(x, b, true);
    for (uint64_t k = x->neighbours_begin[b]; k < x->neighbours_begin[b + 1]; k++) {
        const uint32_t other = x->neighbours[k];
        if (x->placed[other]) {
            continue;
        }
        *isolated = false;
        if (x->floor[other] < top) {
            if (!gb_vec_push(&x->trail, ((struct change){ FLOOR, other, x->floor[other] }))) {
                return false;
            }
            x->floor[other] = top;
        }
    }
    x->steps += x->neighbours_begin[b + 1] - x->neighbours_begin[b];
    return true;
}

// --------------------------------------------------------------------------------------------------------- subproblems

static unsigned lowest_bit(uint64_t bits) {
#if defined(__GNUC__)
    return (unsigned) __builtin_ctzll(bits);
#else
    unsigned at = 0;
    for (; !(bits & 1); bits >>= 1) {
        at++;
    }
    return at;
#endif
}

// Ranks the buffers of a subproblem by the load of its unplaced buffers.
static bool rerank_subproblem(struct gb_plan_exact * x, const struct subproblem * r) {
    const size_t n = r->end - r->begin;
    const bool needs_max_load = gb_plan_needs_max_load(x->key);
    for (size_t k = 0; k < n; k++) {
        const uint32_t b = x->lists.data[r->begin + k];
        const size_t max_load = needs_max_load ? gb_plan_max_load(&x->part->buffers[b], x->unplaced) : 0;
        x->ranked[k] = gb_plan_rank(x->part, b, x->key, max_load);
        x->steps += 8 + x->part->buffers[b].last - x->part->buffers[b].first;
    }
    qsort(x->ranked, n, sizeof(*x->ranked), gb_plan_by_rank);
    for (size_t k = 0; k < n; k++) {
        const uint32_t b = x->ranked[k].buffer;
        if (x->rank[b] != k && !gb_vec_push(&x->trail, ((struct change){ RANK, b, x->rank[b] }))) {
            return false;
        }
        x->rank[b] = (uint32_t) k;
    }
    return true;
}

// Appends the marked buffers, by rank, and clears the marks.
static void append_marked(struct gb_plan_exact * x) {
    for (size_t w = 0; w * 64 < x->part->n; w++) {
        for (; x->marks[w] != 0; x->marks[w] &= x->marks[w] - 1) {
            x->lists.data[x->lists.n++] = x->marked[w * 64 + lowest_bit(x->marks[w])];
        }
    }
}

// Adds the subproblem of sections [first, last): the unplaced buffers of `all` alive there. The list stays sorted by
// floor: only buffers that the last placement raised to `top` need sorting, by rank.
static bool add_subproblem(struct gb_plan_exact * x, const struct subproblem * all, uint32_t first, uint32_t last,
    size_t top) {
    struct subproblem r = { x->lists.n, x->lists.n, first, last };
    size_t n_above = 0;
    if (!gb_vec_reserve(&x->lists, x->lists.n + 2 * (all->end - all->begin))) {
        return false;
    }
    uint32_t * const above = x->lists.data + x->lists.n + (all->end - all->begin); // scratch
    for (size_t k = all->begin; k < all->end; k++) {
        const uint32_t b = x->lists.data[k];
        if (x->placed[b] || x->part->buffers[b].first < first || x->part->buffers[b].first >= last) {
            continue;
        }
        if (x->floor[b] == top) {
            x->marks[x->rank[b] / 64] |= (uint64_t) 1 << x->rank[b] % 64;
            x->marked[x->rank[b]] = b;
        } else if (x->floor[b] > top) {
            above[n_above++] = b;
        } else {
            x->lists.data[x->lists.n++] = b;
        }
    }
    append_marked(x);
    memcpy(x->lists.data + x->lists.n, above, n_above * sizeof(*above));
    x->lists.n += n_above;
    x->steps += all->end - all->begin;
    r.end = x->lists.n;
    return r.begin == r.end || gb_vec_push(&x->subproblems, r);
}

// Small subproblems fail sooner, and one failure is enough.
static void sort_small_first(struct gb_plan_exact * x, size_t begin) {
    struct subproblem * r = x->subproblems.data;
    for (size_t k = begin + 1; k < x->subproblems.n; k++) {
        const struct subproblem one = r[k];
        size_t at = k;
        for (; at > begin && one.end - one.begin < r[at - 1].end - r[at - 1].begin; at--) {
            r[at] = r[at - 1];
        }
        r[at] = one;
    }
}

// The subproblems of a frame after b was placed: several if b was the last buffer to cross a
// section boundary.
static bool split(struct gb_plan_exact * x, const struct frame * f, uint32_t b) {
    const struct gb_plan_buffer * buffer = &x->part->buffers[b];
    const size_t top = x->floor[b] + buffer->size;
    uint32_t from = f->what.first;
    for (uint32_t s = buffer->first; s + 1 < buffer->last; s++) {
        if (x->crossing[s] == 0) {
            if (!add_subproblem(x, &f->what, from, s + 1, top)) {
                return false;
            }
            from = s + 1;
        }
    }
    return add_subproblem(x, &f->what, from, f->what.last, top) && (sort_small_first(x, f->subproblems), true);
}

// ----------------------------------------------------------------------------------------------------------- the frame

// The order of the search: by rising floor, ties by rank.
static bool comes_before(const struct gb_plan_exact * x, uint32_t a, uint32_t b) {
    return x->floor[a] != x->floor[b] ? x->floor[a] < x->floor[b] : x->rank[a] < x->rank[b];
}

// Insertion sort: only ties are out of order.
static void sort_by_floor(struct gb_plan_exact * x, const struct subproblem * r) {
    uint32_t * list = x->lists.data;
    for (size_t k = r->begin + 1; k < r->end; k++) {
        const uint32_t b = list[k];
        size_t at = k;
        for (; at > r->begin && comes_before(x, b, list[at - 1]); at--) {
            list[at] = list[at - 1];
        }
        list[at] = b;
        x->steps += k - at;
    }
    x->steps += r->end - r->begin;
}

// The first unvisited section from s on (union-find with path halving).
static uint32_t next_unvisited(uint32_t * unvisited, uint32_t s) {
    while (unvisited[s] != s) {
        unvisited[s] = unvisited[unvisited[s]];
        s = unvisited[s];
    }
    return s;
}

// Visits the unvisited sections of b. False: the unplaced buffers of one section do not fit above
// the floor.
static bool visit(struct gb_plan_exact * x, uint32_t b, size_t floor) {
    const struct gb_plan_buffer * buffer = &x->part->buffers[b];
    if (floor > x->capacity || buffer->size > x->capacity - floor) {
        return false;
    }
    for (uint32_t s = next_unvisited(x->unvisited, buffer->first); s < buffer->last;
        s = next_unvisited(x->unvisited, s)) {
        if (x->unplaced[s] > x->capacity - floor) {
            return false;
        }
        x->unvisited[s] = s + 1;
    }
    return true;
}

// False if the subproblem cannot fit. Each section is visited by its lowest unplaced buffer. The
// list is sorted by (floor, rank). Buffers before (least_offset, least_rank) can no longer be
// placed at their floors, only above an unplaced buffer, whose top is at least `least_top`.
static bool may_fit(struct gb_plan_exact * x, const struct subproblem * r, size_t least_offset, uint32_t least_rank) {
    for (uint32_t s = r->first; s <= r->last; s++) {
        x->unvisited[s] = s;
    }
    x->steps += r->last - r->first + 3 * (r->end - r->begin);
    size_t timed_out = r->begin, least_top = SIZE_MAX;
    for (size_t k = r->begin; k < r->end; k++) {
        const uint32_t b = x->lists.data[k];
        const size_t size = x->part->buffers[b].size;
        if (x->floor[b] < least_offset || (x->floor[b] == least_offset && x->rank[b] < least_rank)) {
            if (x->floor[b] + size <= least_offset) {
                return false; // a hole that stays; another sequence fills it
            }
            timed_out = k + 1;
        } else {
            least_top = GB_MIN(least_top, x->floor[b] + size);
        }
    }
    size_t k = timed_out;
    for (; k < r->end && x->floor[x->lists.data[k]] < least_top; k++) {
        if (!visit(x, x->lists.data[k], x->floor[x->lists.data[k]])) {
            return false;
        }
    }
    for (size_t j = r->begin; j < timed_out; j++) {
        if (!visit(x, x->lists.data[j], least_top)) {
            return false;
        }
    }
    for (; k < r->end; k++) {
        if (!visit(x, x->lists.data[k], x->floor[x->lists.data[k]])) {
            return false;
        }
    }
    return true;
}

// False if a subproblem from `begin` on cannot fit after `placed` was placed.
static bool all_may_fit(struct gb_plan_exact * x, size_t begin, uint32_t placed) {
    const uint32_t rank = x->rerank && x->subproblems.n - begin > 1 ? 0 : x->rank[placed];
    for (size_t k = begin; k < x->subproblems.n; k++) {
        if (!may_fit(x, &x->subproblems.data[k], x->floor[placed], rank)) {
            return false;
        }
    }
    return true;
}

// Starts a frame with its first candidate. The ceiling is the lowest possible top (see "Holes").
static void enter(struct gb_plan_exact * x, struct frame * f) {
    f->next = f->what.begin;
    f->ceiling = SIZE_MAX;
    for (size_t k = f->what.begin; k < f->what.end; k++) {
        const uint32_t b = x->lists.data[k];
        f->ceiling = GB_MIN(f->ceiling, x->floor[b] + x->part->buffers[b].size);
    }
}

// Removes the candidate of the frame. False: it was isolated, so the frame has failed.
static bool retreat(struct gb_plan_exact * x, struct frame * f) {
    undo(x, f->trail);
    x->lists.n = f->lists;
    x->subproblems.n = f->child = f->subproblems;
    return !f->isolated;
}

// Places the next candidate of the frame. INFEASIBLE: no candidate is left.
static enum gb_plan_outcome advance(struct gb_plan_exact * x, struct frame * f) {
    while (f->next < f->what.end) {
        const uint32_t b = x->lists.data[f->next++];
        const size_t floor = x->floor[b];
        if (floor >= f->ceiling) {
            break;
        }
        if (floor < f->least_offset || (floor == f->least_offset && x->rank[b] < f->least_rank) ||
            (x->equal[b] != UINT32_MAX && !x->placed[x->equal[b]])) {
            continue;
        }
        if (x->nodes == 0 || !gb_plan_spend(x->budget, x->steps)) {
            return GB_PLAN_GAVE_UP;
        }
        x->nodes--;
        x->steps = 0;
        if (!place(x, b, &f->isolated) || !split(x, f, b)) {
            return GB_PLAN_NO_MEMORY;
        }
        if (all_may_fit(x, f->subproblems, b)) {
            x->part->trial[b] = floor;
            return GB_PLAN_FOUND;
        }
        if (!retreat(x, f)) {
            break;
        }
    }
    return GB_PLAN_INFEASIBLE;
}

// Pushes a frame for the next subproblem of the top frame.
static enum gb_plan_outcome descend(struct gb_plan_exact * x, struct frame * f) {
    const struct subproblem r = x->subproblems.data[f->child++];
    const uint32_t placed = x->lists.data[f->next - 1];
    const bool again = x->rerank && x->subproblems.n - f->subproblems > 1;
    struct frame below = {
        .what = r, .least_offset = x->part->trial[placed], .least_rank = again ? 0 : x->rank[placed]
    };
    if (again) {
        if (!rerank_subproblem(x, &r)) {
            return GB_PLAN_NO_MEMORY;
        }
        sort_by_floor(x, &r);
    }
    enter(x, &below);
    below.trail = x->trail.n;
    below.lists = x->lists.n;
    below.subproblems = below.child = x->subproblems.n;
    return gb_vec_push(&x->frames, below) ? GB_PLAN_FOUND : GB_PLAN_NO_MEMORY;
}

// ---------------------------------------------------------------------------------------------------------- the search

// Depth first without recursion, as the depth depends on the user's graph.
static enum gb_plan_outcome search(struct gb_plan_exact * x) {
    enum { DOWN, UP } direction = UP; // DOWN: all subproblems so far are solved; UP: the last one failed
    enum gb_plan_outcome outcome = GB_PLAN_FOUND;
    bool fresh = true; // the top frame has no candidate yet
    while (x->frames.n > 0) {
        struct frame * f = &x->frames.data[x->frames.n - 1];
        if (fresh) {
            outcome = advance(x, f);
        } else if (direction == UP) {
            outcome = retreat(x, f) ? advance(x, f) : GB_PLAN_INFEASIBLE;
        }
        if (outcome == GB_PLAN_FOUND && f->child < x->subproblems.n) {
            outcome = descend(x, f);
            fresh = true;
        } else if (outcome == GB_PLAN_FOUND || outcome == GB_PLAN_INFEASIBLE) {
            // placements of a solved frame stay until an earlier frame undoes them
            direction = outcome == GB_PLAN_FOUND ? DOWN : UP;
            fresh = false;
            x->lists.n = f->lists;
            x->subproblems.n = f->subproblems;
            x->frames.n--;
        }
        if (outcome == GB_PLAN_GAVE_UP || outcome == GB_PLAN_NO_MEMORY) {
            return outcome;
        }
    }
    return outcome;
}

// Removes all buffers: all floors are 0, and the unplaced bytes are the load.
static void reset(struct gb_plan_exact * x) {
    const struct gb_plan_part * part = x->part;
    memset(x->floor, 0, part->n * sizeof(*x->floor));
    memset(x->placed, 0, part->n * sizeof(*x->placed));
    memset(x->crossing, 0, part->n_sections * sizeof(*x->crossing));
    memcpy(x->unplaced, part->load, part->n_sections * sizeof(*x->unplaced));
    for (uint32_t b = 0; b < part->n; b++) {
        for (uint32_t s = part->buffers[b].first; s + 1 < part->buffers[b].last; s++) {
            x->crossing[s]++;
        }
        x->lists.data[b] = b;
        x->rank[b] = UINT32_MAX;
    }
    x->frames.n = x->subproblems.n = x->trail.n = 0;
    x->lists.n = part->n;
}

// Starts from an empty plan. The whole part is the first subproblem.
enum gb_plan_outcome gb_plan_exact_run(struct gb_plan_exact * x, size_t capacity, enum gb_plan_key key, bool rerank,
    uint64_t max_nodes, struct gb_plan_budget * budget) {
    x->capacity = capacity;
    x->key = key;
    x->rerank = rerank;
    x->nodes = max_nodes;
    x->budget = budget;
    x->steps = 0;
    if (!gb_vec_reserve(&x->lists, x->part->n)) {
        return GB_PLAN_NO_MEMORY;
    }
    reset(x);
    struct frame root = { .what = { 0, x->part->n, 0, x->part->n_sections } };
    if (!rerank_subproblem(x, &root.what)) {
        return GB_PLAN_NO_MEMORY;
    }
    sort_by_floor(x, &root.what);
    x->trail.n = 0; // no change to undo
    if (!may_fit(x, &root.what, 0, 0)) {
        return GB_PLAN_INFEASIBLE;
    }
    enter(x, &root);
    root.lists = x->lists.n;
    return gb_vec_push(&x->frames, root) ? search(x) : GB_PLAN_NO_MEMORY;
}
