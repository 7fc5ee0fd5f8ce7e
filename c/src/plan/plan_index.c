// plan_index.c - placed buffers by time and offset. Finds the lowest or smallest gap for a buffer
// without looking at each neighbour.
//
// The index is a segment tree over blocks of sections. The whole blocks of a lifetime are the
// disjoint union of a few nodes, its own nodes (at most two per level). The tree has these sets of
// offsets (plan_sets.h):
//
//   cover     of a node: offsets of the buffers that have it as one of their own nodes
//   overlap   of a node: offsets of all buffers alive in any of its blocks
//   lists     of a block: the buffers that begin or end within it (plan_lists.h)
//
// The neighbours of a buffer are in these sources: `overlap` of its own nodes, `cover` of their
// ancestors, and the lists of its first and last block. A set joins intervals that touch, so many
// buffers may be one interval.
//
// A search probes the sources one after the other. If an offset is taken in a source, the search
// advances to the end of that interval, until the offset is free in all sources. After 16 failed
// probes it scans the gaps of one set in order instead, the primary set: `overlap` of the buffer's
// widest node, which leaves the fewest gaps. Each gap that fails gets a limit: how large a buffer
// must be, and how far its lifetime must reach, to fail there again. Sets only grow, so limits stay
// true, and later scans skip most gaps by comparing three numbers.
//
// If lifetimes have few nodes, `cover` exists at every second or third height only. A node of
// another height is entered in the nodes below it, and a search has fewer sources.
//
// Invariant: `overlap` is queried, and stored, only for nodes that are own nodes of some buffer of
// the part. `overlap` of such a node contains `overlap` of the nodes below. So an interval that is
// in a node is already in the nodes above it.
#include <string.h>

#include "plan/plan_impl.h"
#include "plan/plan_lists.h"
#include "plan/plan_sets.h"
#include "base/mem.h"

struct gb_plan_index {
    struct gb_plan_set * cover; // owned, as all arrays here; by node: the root is 1, the leaf of block k is width + k
    struct gb_plan_set * overlap; // by node; a leaf of one section uses its cover
    uint8_t * queried; // by node: QUERIED, QUERIED_ABOVE
    size_t * hint; // by node: where the next search by hints begins; NULL until needed
    size_t width; // leaves: a power of two >= blocks
    uint32_t n_sections;
    unsigned shift; // a block has 1 << shift sections
    unsigned spread; // `cover` exists at heights that this divides
    struct gb_plan_lists lists; // empty if blocks are single sections
    struct gb_plan_arena arena;
    bool no_memory; // limits could not be added: the next gb_plan_index_add fails
};

enum { QUERIED = 1, QUERIED_ABOVE = 2 }; // own node of some buffer; below such a node

// The kinds of sources.
enum kind {
    INSIDE, // `overlap` of an own node
    ENCLOSING, // `cover` of a node that reaches past the lifetime
    LISTED // the list of the first or last block
};
struct source {
    struct gb_plan_cursor c;
    size_t node; // of INSIDE and ENCLOSING
    enum kind kind;
};

#define STEPS_PER_BUFFER 200 // measured
#define STEPS_PER_CURSOR 8
#define STEPS_PER_LOOK 3 // at the present interval of a cursor
#define LARGEST_SHIFT 12 // of blocks
#define MIN_BLOCKS 8
#define MAX_LIST 1200 // entries in the list of a block, on average
#define MAX_SHORT_LIST 150 // entries read for lifetimes without a whole block, on average over all lifetimes
#define FEW_SECTIONS 64
#define MAX_HEIGHTS 33
#define MAX_SPREAD 3
#define MORE_OF_TWO 3 // sets that two lifetimes may be entered in, in addition to their own nodes
#define PASSED_PER_STEP 8 // consecutive intervals of one set
#define PASSED_PER_PROBE 16
#define HINTED_PROBES 64
#define PLAIN_PROBES 16 // before a primary set gets limits
#define STEPS_PER_SOURCE 22 // of a scan
#define GAPS_PER_STEP 4
#define NEAR 8 // intervals tried before a binary search
#define MAX_CURSORS 160 // four for each of 32 levels, and some

// ------------------------------------------------------------------------------------------------------------ the tree

// A lifetime in blocks: [from, to) are whole; `left` and `right` have its first and last section and may be whole.
struct span {
    size_t from, to, left, right;
};
// A lifetime that ends with the part has the last block whole, even if the block ends later.
static struct span span_of(const struct gb_plan_buffer * b, unsigned shift, uint32_t n_sections) {
    const size_t more = ((size_t) 1 << shift) - 1;
    const size_t last = b->last < n_sections ? b->last : b->last + more;
    return (struct span){ (b->first + more) >> shift, last >> shift, b->first >> shift, (b->last - 1) >> shift };
}
static bool is_whole(const struct span * s, size_t block) { return block >= s->from && block < s->to; }

// Counts the entries of each block's list. Returns the number of lifetimes without a whole block.
static uint32_t count_entries(const struct gb_plan_part * part, unsigned shift, uint32_t * n) {
    uint32_t n_short = 0;
    for (uint32_t b = 0; b < part->n + part->n_fixed; b++) {
        const struct span s = span_of(&part->buffers[b], shift, part->n_sections);
        n[s.left] += !is_whole(&s, s.left);
        n[s.right] += s.right != s.left && !is_whole(&s, s.right);
        n_short += s.from >= s.to;
    }
    return n_short;
}

// Chooses the largest blocks whose lists are short on average. Larger blocks mean fewer sets. Lifetimes with whole
// blocks skip most of a list by binary search; lifetimes without one read it entry by entry.
static bool choose_blocks(struct gb_plan_index * x, const struct gb_plan_part * part) {
    const uint64_t all = (uint64_t) part->n + part->n_fixed;
    for (unsigned shift = LARGEST_SHIFT; shift > 0 && part->n_sections >= FEW_SECTIONS; shift--) {
        const size_t blocks = (part->n_sections >> shift) + 1;
        uint64_t total = 0, squares = 0;
        if (blocks < MIN_BLOCKS || all / blocks > MAX_LIST) { // lists would probably be long
            continue;
        }
        uint32_t * const n = gb_calloc(blocks, sizeof(*n));
        if (n == NULL) {
            return false;
        }
        const uint32_t n_short = count_entries(part, shift, n);
        for (size_t k = 0; k < blocks; k++) {
            total += n[k];
            squares += (uint64_t) n[k] * n[k];
        }
        const uint64_t length = total > 0 ? squares / total : 0;
        if (length <= MAX_LIST && length * n_short <= all * MAX_SHORT_LIST) {
            x->shift = shift;
            return gb_plan_lists_init(&x->lists, n, blocks, total);
        }
        gb_free(n);
    }
    return true;
}

// Chooses the heights of `cover`. A wider spread means fewer sources, but more sets to enter.
static unsigned choose_spread(const uint64_t * by_height, uint64_t n) {
    unsigned spread = 1;
    for (unsigned more = 2; more <= MAX_SPREAD; more++) {
        uint64_t added = 0; // sets, beside one per node
        for (unsigned height = 0; height < MAX_HEIGHTS; height++) {
            added += by_height[height] * (((uint64_t) 1 << height % more) - 1);
        }
        spread = 2 * added <= MORE_OF_TWO * n ? more : spread;
    }
    return spread;
}

// Marks own nodes of all buffers, and the nodes below them.
static void mark_queried(struct gb_plan_index * x, const struct gb_plan_part * part) {
    uint64_t by_height[MAX_HEIGHTS] = { 0 };
    for (uint32_t b = 0; b < part->n; b++) {
        const struct span s = span_of(&part->buffers[b], x->shift, part->n_sections);
        unsigned height = 0;
        for (size_t i = x->width + s.from, j = x->width + s.to; i < j; i /= 2, j /= 2, height++) {
            by_height[height] += (i & 1) + (j & 1);
            if (i & 1) {
                x->queried[i++] = QUERIED;
            }
            if (j & 1) {
                x->queried[--j] = QUERIED;
            }
        }
    }
    for (size_t node = 2; node < 2 * x->width; node++) {
        x->queried[node] |= x->queried[node / 2] ? QUERIED_ABOVE : 0;
    }
    x->spread = choose_spread(by_height, part->n);
}

struct gb_plan_index * gb_plan_index_new(const struct gb_plan_part * part) {
    struct gb_plan_index * x = GB_NEW(struct gb_plan_index);
    if (x) {
        x->n_sections = part->n_sections;
    }
    if (x == NULL || !choose_blocks(x, part)) {
        gb_plan_index_free(x);
        return NULL;
    }
    x->width = 1;
    while (x->width << x->shift < part->n_sections) {
        x->width *= 2;
    }
    x->cover = gb_calloc(2 * x->width, sizeof(*x->cover));
    x->overlap = gb_calloc(2 * x->width, sizeof(*x->overlap));
    x->queried = gb_calloc(2 * x->width, sizeof(*x->queried));
    if (!x->cover || !x->overlap || !x->queried) {
        gb_plan_index_free(x);
        return NULL;
    }
    mark_queried(x, part);
    return x;
}

void gb_plan_index_reset(struct gb_plan_index * x) {
    memset(x->cover, 0, 2 * x->width * sizeof(*x->cover));
    memset(x->overlap, 0, 2 * x->width * sizeof(*x->overlap));
    gb_plan_lists_reset(&x->lists);
    if (x->hint) {
        memset(x->hint, 0, 2 * x->width * sizeof(*x->hint));
    }
    x->no_memory = false;
    gb_plan_arena_reset(&x->arena);
}

void gb_plan_index_free(struct gb_plan_index * x) {
    if (x) {
        gb_plan_arena_free(&x->arena);
        gb_free(x->cover);
        gb_free(x->overlap);
        gb_free(x->queried);
        gb_free(x->hint);
        gb_plan_lists_free(&x->lists);
        gb_free(x);
    }
}

static bool is_section(const struct gb_plan_index * x, size_t node) { return x->shift == 0 && node >= x->width; }

static struct gb_plan_set * overlap_of(const struct gb_plan_index * x, size_t node) {
    return is_section(x, node) ? &x->cover[node] : &x->overlap[node];
}

static bool add_to_node(struct gb_plan_index * x, size_t node, unsigned height, size_t start, size_t end) {
    const unsigned down = height % x->spread;
    for (size_t k = node << down; k < (node + 1) << down; k++) {
        if (gb_plan_set_add(&x->arena, &x->cover[k], start, end) == GB_PLAN_SET_FAILED) {
            return false;
        }
    }
    return is_section(x, node) || !(x->queried[node] & QUERIED) ||
           gb_plan_set_add(&x->arena, &x->overlap[node], start, end) != GB_PLAN_SET_FAILED;
}

// Adds the interval to `overlap` of the queried nodes above a block, except nodes inside the whole
// blocks. Stops at a node that has the interval, or below which no node is queried.
static bool add_above(struct gb_plan_index * x, size_t block, const struct span * s, size_t start, size_t end) {
    size_t begin = block, width = 1;
    for (size_t node = x->width + block; node > 0 && x->queried[node]; node /= 2, width *= 2) {
        begin = node * width - x->width;
        if ((begin >= s->from && begin + width <= s->to) || !(x->queried[node] & QUERIED)) {
            continue;
        }
        const enum gb_plan_added added = gb_plan_set_add(&x->arena, &x->overlap[node], start, end);
        if (added != GB_PLAN_ADDED) {
            return added == GB_PLAN_NOTHING_NEW;
        }
    }
    return true;
}

bool gb_plan_index_add(struct gb_plan_index * x, const struct gb_plan_buffer * b, size_t offset) {
    if (x->no_memory) {
        return false;
    }
    const size_t end = offset + b->size;
    const struct span s = span_of(b, x->shift, x->n_sections);
    unsigned height = 0;
    for (size_t i = x->width + s.from, j = x->width + s.to; i < j; i /= 2, j /= 2, height++) {
        if ((i & 1 && !add_to_node(x, i++, height, offset, end)) ||
            (j & 1 && !add_to_node(x, --j, height, offset, end))) {
            return false;
        }
    }
    if (!is_whole(&s, s.left)) {
        gb_plan_lists_enter(&x->lists, s.left, b, offset);
    }
    if (s.right != s.left && !is_whole(&s, s.right)) {
        gb_plan_lists_enter(&x->lists, s.right, b, offset);
    }
    return add_above(x, s.left, &s, offset, end) && add_above(x, s.right, &s, offset, end);
}

// ---------------------------------------------------------------------------------------------------------------- gaps

static size_t push(struct source * list, size_t n, const struct gb_plan_set * s, size_t node, enum kind kind) {
    if (s->n > 0) {
        list[n++] = (struct source){ gb_plan_set_begin(s), node, kind };
    }
    return n;
}

// Pushes the list of a block, if any entry is alive with b.
static size_t push_list(const struct gb_plan_index * x, size_t block, const struct gb_plan_buffer * b,
    struct source * list, size_t n, uint64_t * steps) {
    const struct gb_plan_cursor c = gb_plan_list_begin(&x->lists, block, b, steps);
    if (c.at < c.end) {
        list[n++] = (struct source){ c, 0, LISTED };
    }
    return n;
}

// True if a node of `width` blocks reaches past the lifetime. Node 0 is above the root.
static bool reaches_past(const struct gb_plan_index * x, const struct span * s, size_t node, size_t width) {
    const size_t begin = node * width - x->width;
    return node == 0 || begin < s->from || begin + width > s->to;
}

// Pushes the `cover` sets that may have buffers reaching past b.
static size_t push_enclosing(const struct gb_plan_index * x, const struct span * s, struct source * list, size_t n) {
    const unsigned spread = x->spread, up = spread - 1;
    size_t left = x->width + s->left, right = x->width + s->right;
    for (size_t width = (size_t) 1 << up; left > 0; left >>= spread, right >>= spread, width <<= spread) {
        if (reaches_past(x, s, left >> up, width)) {
            n = push(list, n, &x->cover[left], left, ENCLOSING);
        }
        if (right != left && reaches_past(x, s, right >> up, width)) {
            n = push(list, n, &x->cover[right], right, ENCLOSING);
        }
    }
    return n;
}

// Collects the sources of b.
static size_t collect(const struct gb_plan_index * x, const struct gb_plan_buffer * b, struct source * list,
    uint64_t * steps) {
    const struct span s = span_of(b, x->shift, x->n_sections);
    size_t n = 0;
    for (size_t i = x->width + s.from, j = x->width + s.to; i < j; i /= 2, j /= 2) {
        if (i & 1) {
            n = push(list, n, overlap_of(x, i), i, INSIDE);
            i++;
        }
        if (j & 1) {
            j--;
            n = push(list, n, overlap_of(x, j), j, INSIDE);
        }
    }
    n = push_enclosing(x, &s, list, n);
    if (!is_whole(&s, s.left)) {
        n = push_list(x, s.left, b, list, n, steps);
    }
    if (s.right != s.left && !is_whole(&s, s.right)) {
        n = push_list(x, s.right, b, list, n, steps);
    }
    *steps += STEPS_PER_BUFFER + n * STEPS_PER_CURSOR;
    return n;
}

// Moves to the first run that ends above `at`.
static void skip_runs(struct gb_plan_cursor * c, size_t at) {
    const struct gb_plan_run * low = c->next;
    for (size_t n = (size_t) (c->last - low); n > 0;) {
        const size_t half = n / 2;
        if (low[half].data[low[half].n - 1].end <= at) {
            low += half + 1;
            n -= half + 1;
        } else {
            n = half;
        }
    }
    c->next = low;
    if (low < c->last) {
        c->at = low->data;
        c->end = low->data + low->n;
        c->next = low + 1;
    }
}

// Moves to the first interval that ends above `at`: tries the next ones, then a binary search without branches that
// cannot be predicted.
static void advance(struct gb_plan_cursor * c, size_t at) {
    if (c->next < c->last && c->end[-1].end <= at) {
        c->at = c->end;
        skip_runs(c, at);
    }
    const struct gb_plan_interval * p = c->at;
    size_t n = (size_t) (c->end - p);
    if (n > NEAR && p[NEAR - 1].end > at) {
        n = NEAR;
    }
    while (n > 1) {
        const size_t half = n / 2;
        p += half & (0 - (size_t) (p[half - 1].end <= at)); // no branch
        n -= half;
    }
    c->at = p + (n > 0 && p->end <= at);
}

static inline size_t within(size_t at, size_t size, size_t chunk) {
    return chunk == 0 ? at : gb_plan_within_chunk(at, size, chunk);
}

// The gap that a search looks for.
struct gap {
    const struct gb_plan_index * x;
    const struct gb_plan_buffer * b; // that must fit
    size_t chunk; // see gb_plan_part
};

static void step_on(struct gb_plan_cursor * c) {
    c->at++;
    if (c->at == c->end && c->next < c->last) {
        c->at = c->next->data;
        c->end = c->next->data + c->next->n;
        c->next++;
    }
}

// Moves to the first interval of the source that ends above `at`.
static inline void seek(struct source * s, const struct gb_plan_index * x, const struct gb_plan_buffer * b, size_t at,
    uint64_t * steps) {
    if (s->kind == LISTED) {
        *steps += gb_plan_list_seek(&x->lists, &s->c, b, at);
    } else {
        advance(&s->c, at);
    }
}

// Moves past the interval at the cursor, which ends at or below `at`.
static inline void pass(struct source * s, const struct gb_plan_buffer * b, size_t at, uint64_t * steps) {
    if (s->kind == LISTED) {
        *steps += gb_plan_list_step(&s->c, b, at);
    } else {
        step_on(&s->c);
    }
}

// Moves the source that was in the way forward in the list, so that it is probed earlier.
static void bring_forward(struct source * list, size_t k) {
    const struct source one = list[k];
    list[k] = list[k / 2];
    list[k / 2] = one;
}

// The lowest offset from `at` on where b fits. After `probes` failures returns the offset reached,
// with *found false. Drops sources that end below that offset.
static size_t lowest(struct source * list, size_t * n, size_t at, const struct gap * gap, uint64_t probes, bool * found,
    uint64_t * steps) {
    const size_t size = gap->b->size, chunk = gap->chunk;
    at = within(at, size, chunk);
    *found = true;
    for (size_t k = 0; k < *n;) {
        struct gb_plan_cursor * const c = &list[k].c;
        *steps += STEPS_PER_LOOK;
        if (c->at < c->end && c->at->end <= at) {
            seek(&list[k], gap->x, gap->b, at, steps);
        }
        if (c->at == c->end) {
            list[k] = list[--*n];
            continue;
        }
        if (c->at->start > at && c->at->start - at >= size) {
            k++;
            continue;
        }
        if (probes == 0) {
            *found = false;
            return at;
        }
        uint64_t passed = 0;
        do {
            at = within(c->at->end, size, chunk);
            pass(&list[k], gap->b, at, steps);
            passed++;
        } while (c->at < c->end && (c->at->start <= at || c->at->start - at < size));
        *steps += passed / PASSED_PER_STEP;
        probes -= GB_MIN(probes, 1 + passed / PASSED_PER_PROBE);
        bring_forward(list, k);
        k = 0;
    }
    return at;
}

// ---------------------------------------------------------------------------------------------------------------- scan

// A lifetime in sections.
struct extent {
    uint32_t first, last;
};

static struct extent extent_of_node(const struct gb_plan_index * x, size_t node) {
    size_t begin = node, end = node + 1;
    while (begin < x->width) {
        begin *= 2;
        end *= 2;
    }
    const uint64_t last = (uint64_t) (end - x->width) << x->shift; // the last block may end after the sections
    return (struct extent){ (uint32_t) ((begin - x->width) << x->shift), (uint32_t) GB_MIN(last, x->n_sections) };
}

// Extends r so that every lifetime that contains it also meets the interval at the cursor. r must
// then contain an own node of b as a whole, or the nearest section of a node or entry that reaches
// past b.
static struct extent extent_with(const struct gb_plan_index * x, const struct source * s, struct extent r) {
    if (s->kind == LISTED) {
        const struct gb_plan_entry * const e = (const struct gb_plan_entry *) s->c.at;
        return (struct extent){ GB_MIN(r.first, e->last - 1), GB_MAX(r.last, e->first + 1) };
    }
    const struct extent node = extent_of_node(x, s->node);
    if (s->kind == INSIDE) {
        return (struct extent){ GB_MIN(r.first, node.first), GB_MAX(r.last, node.last) };
    }
    return (struct extent){ GB_MIN(r.first, node.last - 1), GB_MAX(r.last, node.first + 1) };
}

// The state of a scan.
struct scan {
    struct gb_plan_index * x;
    const struct gb_plan_buffer * b;
    struct source * list; // the sources but the primary set
    size_t n;
    struct gb_plan_set * set; // the primary set
    struct gb_plan_cursor c; // in it
    struct extent primary; // its node
    struct extent cause; // the extent that a lifetime must contain so that the byte below `at` is taken for it, too
    size_t at; // offset reached
    uint64_t steps;
};

// Moves to the next gap of the primary set that b may fit into. False: there is none.
static bool next_gap(struct scan * a) {
    const struct gb_plan_buffer b = *a->b;
    size_t at = a->at;
    bool is_gap = false;
    while (a->c.at < a->c.end && !is_gap) {
        const struct gb_plan_gap_limit * limit = gb_plan_gap_limit_of(a->set, &a->c);
        const struct gb_plan_interval * p = a->c.at;
        for (; p < a->c.end; p++, limit++) {
            const size_t space = p->start > at ? p->start - at : 0;
            if (space >= b.size && (b.size < limit->size || b.first > limit->first || b.last < limit->last)) {
                is_gap = true;
                break;
            }
            at = p->end;
        }
        a->steps += (uint64_t) (p - a->c.at) / GAPS_PER_STEP;
        a->c.at = p;
        if (p == a->c.end && a->c.next < a->c.last) {
            a->c.at = a->c.next->data;
            a->c.end = a->c.next->data + a->c.next->n;
            a->c.next++;
        }
    }
    a->cause = at > a->at ? a->primary : a->cause;
    a->at = at;
    return is_gap;
}

// Moves past the intervals of source s that are in the way, as long as b may fit below `end`.
// Extends *all to the extent that a lifetime must contain to meet all of them. *widest: the largest
// free space passed.
static void pass_all(struct scan * a, struct source * s, size_t end, struct extent * all, size_t * widest) {
    struct gb_plan_cursor * const c = &s->c;
    const size_t size = a->b->size;
    uint64_t passed = 0;
    do {
        if (passed == 0 || s->kind == LISTED) { // each entry of a list has its own lifetime
            a->cause = extent_with(a->x, s, a->primary);
            *all = extent_with(a->x, s, *all);
        }
        *widest = GB_MAX(*widest, c->at->start > a->at ? c->at->start - a->at : 0);
        a->at = c->at->end;
        pass(s, a->b, a->at, &a->steps);
        passed++;
    } while (c->at < c->end && (c->at->start <= a->at || c->at->start - a->at < size) && a->at < end &&
             end - a->at >= size);
    a->steps += passed / PASSED_PER_STEP;
}

// True if b fits between `at` and `end`, the end of the gap. If not, *why is the limit of the gap.
static bool fits_below(struct scan * a, size_t end, struct gb_plan_gap_limit * why) {
    const size_t size = a->b->size;
    size_t widest = 0; // free space that is too small
    struct extent all = a->cause;
    for (size_t k = 0; k < a->n;) {
        struct source * const s = &a->list[k];
        struct gb_plan_cursor * const c = &s->c;
        a->steps += STEPS_PER_SOURCE;
        if (c->at < c->end && c->at->end <= a->at) {
            seek(s, a->x, a->b, a->at, &a->steps);
        }
        if (c->at == c->end) {
            *s = a->list[--a->n];
            continue;
        }
        if (c->at->start > a->at && c->at->start - a->at >= size) {
            k++;
            continue;
        }
        pass_all(a, s, end, &all, &widest);
        if (a->at >= end || end - a->at < size) {
            widest = GB_MAX(widest, a->at < end ? end - a->at : 0);
            *why = (struct gb_plan_gap_limit){ all.first, all.last, widest + 1 };
            return false;
        }
        bring_forward(a->list, k);
        k = 0;
    }
    return true;
}

// The lowest offset from `at` on where b fits, by a scan of the primary set. list: all sources.
static size_t lowest_by_scan(struct gb_plan_index * x, const struct gb_plan_buffer * b, size_t primary,
    struct source * list, size_t n, size_t at, uint64_t * steps) {
    const struct gap gap = { x, b, 0 };
    struct scan a = { x, b, list, n, overlap_of(x, primary), gb_plan_set_begin(overlap_of(x, primary)),
        extent_of_node(x, primary), { b->first, b->last }, at, 0 };
    bool found, known = at == 0; // the reason why the bytes below `at` are taken is known
    for (size_t k = 0; k < a.n; k++) {
        if (list[k].kind == INSIDE && list[k].node == primary) {
            list[k] = list[--a.n];
        }
    }
    for (size_t k = 0; k < a.n / 2; k++) { // reversed: wide nodes and lists are more often in the way
        const struct source one = list[k];
        list[k] = list[a.n - 1 - k];
        list[a.n - 1 - k] = one;
    }
    if (a.c.at->end <= at) {
        advance(&a.c, at);
    }
    while (next_gap(&a)) {
        struct gb_plan_gap_limit why = GB_PLAN_NO_LIMIT;
        known = known || a.at > at;
        if (fits_below(&a, a.c.at->start, &why)) {
            *steps += a.steps;
            return a.at;
        }
        if (known) {
            *gb_plan_gap_limit_of(a.set, &a.c) = why;
        }
        known = true;
        if (a.c.at->end <= a.at) {
            advance(&a.c, a.at);
        }
    }
    *steps += a.steps;
    return lowest(list, &a.n, a.at, &gap, UINT64_MAX, &found, steps);
}

// The largest own node. 0 if the lifetime has no whole block.
static size_t widest_node(const struct gb_plan_index * x, const struct gb_plan_buffer * b) {
    const struct span s = span_of(b, x->shift, x->n_sections);
    size_t node = 0;
    for (size_t i = x->width + s.from, j = x->width + s.to; i < j; i = (i + 1) / 2, j /= 2) {
        node = i & 1 ? i : j & 1 ? j - 1 : node;
    }
    return node;
}

size_t gb_plan_index_lowest(struct gb_plan_index * x, const struct gb_plan_buffer * b, size_t chunk, uint64_t * steps) {
    struct source list[MAX_CURSORS];
    bool found;
    const struct gap gap = { x, b, chunk };
    const size_t node = chunk == 0 ? widest_node(x, b) : 0;
    const size_t primary = node > 0 && overlap_of(x, node)->n > 0 ? node : 0;
    const bool has_limits = primary > 0 && overlap_of(x, primary)->has_limits;
    const uint64_t probes = primary == 0 ? UINT64_MAX : has_limits ? 0 : PLAIN_PROBES;
    size_t n = collect(x, b, list, steps);
    const size_t at = lowest(list, &n, 0, &gap, probes, &found, steps);
    if (found) {
        return at;
    }
    if (!has_limits) {
        x->no_memory = !gb_plan_set_add_limits(&x->arena, overlap_of(x, primary));
        n = collect(x, b, list, steps); // the set has moved in memory
    }
    return x->no_memory ? at : lowest_by_scan(x, b, primary, list, n, at, steps);
}

size_t gb_plan_index_smallest(const struct gb_plan_index * x, const struct gb_plan_buffer * b, size_t chunk,
    uint64_t * steps) {
    struct source list[MAX_CURSORS];
    bool found;
    const struct gap gap = { x, b, chunk };
    size_t n = collect(x, b, list, steps), best = SIZE_MAX, best_size = SIZE_MAX;
    for (size_t at = 0;;) {
        at = lowest(list, &n, at, &gap, UINT64_MAX, &found, steps);
        if (n == 0) {
            return best != SIZE_MAX ? best : at;
        }
        size_t end = SIZE_MAX;
        for (size_t k = 0; k < n; k++) {
            end = GB_MIN(end, list[k].c.at->start);
        }
        if (end - at < best_size) {
            best = at;
            best_size = end - at;
        }
        if (best_size == b->size) {
            return best;
        }
        at = end;
    }
}

static size_t end_of_all(const struct source * list, size_t n, const struct gb_plan_buffer * b, uint64_t * steps) {
    size_t top = 0;
    for (size_t k = 0; k < n; k++) {
        struct gb_plan_cursor c = list[k].c;
        if (list[k].kind == LISTED) {
            while (c.at < c.end) {
                top = GB_MAX(top, c.at->end);
                *steps += gb_plan_list_step(&c, b, c.at->end);
            }
        } else if (c.next < c.last) {
            top = GB_MAX(top, c.last[-1].data[c.last[-1].n - 1].end);
        } else {
            top = GB_MAX(top, c.end[-1].end);
        }
    }
    return top;
}

bool gb_plan_index_hinted(struct gb_plan_index * x, const struct gb_plan_buffer * b, size_t chunk, size_t * offset,
    uint64_t * steps) {
    x->hint = x->hint ? x->hint : gb_calloc(2 * x->width, sizeof(*x->hint));
    if (x->hint == NULL) {
        return false;
    }
    struct source list[MAX_CURSORS];
    bool found;
    const struct gap gap = { x, b, chunk };
    const size_t node = widest_node(x, b);
    size_t * const hint = &x->hint[node > 0 ? node : x->width + (b->first >> x->shift)];
    size_t n = collect(x, b, list, steps);
    const size_t top = end_of_all(list, n, b, steps);
    const size_t at = lowest(list, &n, GB_MIN(*hint, top), &gap, HINTED_PROBES, &found, steps);
    *offset = found ? at : gb_plan_within_chunk(top, b->size, chunk);
    *hint = found && n == 0 ? 0 : at;
    return true;
}
