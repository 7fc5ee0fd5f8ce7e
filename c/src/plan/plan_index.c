// plan_index.c - what is placed already, by time and offset: finds the lowest gap, or the smallest, in which a buffer
// fits, without looking at each neighbour.
//
// A complete binary tree over blocks of sections. The whole blocks of a life are the few nodes that it consists of (at
// most two a level): a buffer is noted in the set `cover` of these, and in the set `touch` of these and of all nodes
// above them. In a block that a life only enters, at its beginning or end, the buffer is in a sorted list
// (plan_lists.h). A set is a union of intervals of offsets, so what lies on each other is one interval, however many
// buffers it was. What is in a buffer's way is then in `touch` of the nodes that its life consists of, in `cover` of a
// node above one, or in the lists of the blocks in which it begins and ends. A gap common to these is found by leaps:
// an offset that is taken in one of them goes to the end of what takes it there, until all agree. As many leaps may be
// needed as buffers are in the way, where gaps of the sets alternate.
//
// Where lives consist of few nodes, `cover` is kept at every second or third height only: what consists of a node
// between is noted in those below it, and a search asks fewer sets.
//
// Where that takes many leaps, the gaps of one set, the lead, are gone through instead: `touch` of the widest node of
// the life, which leaves the fewest. Why a gap of the lead did not do is noted with it: what else was in the way, and
// how far a life must reach to meet that. Later lives with the same lead that reach as far pass the gap at once. As the
// sets only grow, a note stays true.
//
// Invariant: only nodes that the life of some buffer of the part consists of are ever asked for `touch`, and only they
// keep it; `touch` of such a node holds that of those below, so what is in it already is in that of those above, too.
#include <string.h>

#include "plan/plan_impl.h"
#include "plan/plan_lists.h"
#include "plan/plan_sets.h"
#include "base/mem.h"

struct gb_plan_index {
    struct gb_plan_set * cover; // owned, by node, as all of these: the root is 1, the leaf of block k is width + k
    struct gb_plan_set * overlap; // of single sections not for leaves: theirs is their cover
    uint8_t * queried; // ASKED and ASKED_ABOVE
    size_t * hint; // NULL until it is needed: where the next search by hints begins
    size_t width; // power of two >= blocks
    uint32_t n_sections;
    unsigned shift; // a block is 1 << shift sections
    unsigned spread; // `cover` is kept at heights that this divides
    struct gb_plan_lists lists; // of what blocks are not whole for; none of single sections
    struct gb_plan_arena arena;
    bool no_memory; // for notes: the next to be added fails
};

enum { QUERIED = 1, QUERIED_ABOVE = 2 }; // some life consists of the node, or of one above

// A set that says what is in the way of a life.
enum kind {
    INSIDE, // `touch` of a node that the life consists of
    ENCLOSING, // `cover` of a node that reaches past the life
    LISTED // the list of the block in which the life begins or ends
};
struct source {
    struct gb_plan_cursor c;
    size_t node; // of WITHIN and AROUND
    enum kind kind;
};

#define STEPS_PER_BUFFER 200 // as measured, beside what a list of pairs costs
#define STEPS_PER_CURSOR 8
#define STEPS_PER_LOOK 3 // at a cursor that is at hand
#define LARGEST_SHIFT 12 // of blocks
#define MIN_BLOCKS 8
#define MAX_LIST 1200 // of a block, on average
#define MAX_SHORT_LIST 150 // of the list that lives without a whole block look through, on average of all lives
#define FEW_SECTIONS 64
#define MAX_HEIGHTS 33
#define MAX_SPREAD 3
#define MORE_OF_TWO 3 // sets that two lives may enter more than they consist of nodes
#define PASSED_PER_STEP 8 // intervals of one set, each after the other
#define PASSED_PER_PROBE 16
#define HINTED_PROBES 64
#define PLAIN_PROBES 16 // before there are notes
#define STEPS_PER_SOURCE 22 // for a cursor
#define GAPS_PER_STEP 4
#define NEAR 8
#define MAX_CURSORS 160 // four for each of the 32 levels, and some

// ------------------------------------------------------------------------------------------------------------ the tree

// A life in blocks: [from, to) are whole; `left` and `right` are those of its first and last section, which may be
// whole.
struct span {
    size_t from, to, left, right;
};
// The last block ends with the part: what is alive at the end does not leave it.
static struct span span_of(const struct gb_plan_buffer * b, unsigned shift, uint32_t n_sections) {
    const size_t more = ((size_t) 1 << shift) - 1;
    const size_t last = b->last < n_sections ? b->last : b->last + more;
    return (struct span){ (b->first + more) >> shift, last >> shift, b->first >> shift, (b->last - 1) >> shift };
}
static bool is_whole(const struct span * s, size_t block) { return block >= s->from && block < s->to; }

// Counts how many buffers each block's list must hold; how many lives have no whole block.
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

// Blocks are as large as can be while the list that a buffer meets is short on average: larger ones mean fewer sets to
// enter and to ask, and a life that has whole blocks passes most of a list by halves, or asks it last. One that has
// none is looked for among the entries themselves. There are instances with few sections of many buffers each.
static bool choose_blocks(struct gb_plan_index * x, const struct gb_plan_part * part) {
    const uint64_t all = (uint64_t) part->n + part->n_fixed;
    for (unsigned shift = LARGEST_SHIFT; shift > 0 && part->n_sections >= FEW_SECTIONS; shift--) {
        const size_t blocks = (part->n_sections >> shift) + 1;
        uint64_t total = 0, squares = 0;
        if (blocks < MIN_BLOCKS || all / blocks > MAX_LIST) { // lists would be long, as a rule
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

// How far the sets `cover` can be spread: a node of another height is noted in those below it instead. So there are
// fewer to ask, but more to enter.
static unsigned choose_spread(const uint64_t * by_height, uint64_t n) {
    unsigned spread = 1;
    for (unsigned more = 2; more <= MAX_SPREAD; more++) {
        uint64_t added = 0; // beside one for each node
        for (unsigned height = 0; height < MAX_HEIGHTS; height++) {
            added += by_height[height] * (((uint64_t) 1 << height % more) - 1);
        }
        spread = 2 * added <= MORE_OF_TWO * n ? more : spread;
    }
    return spread;
}

// Marks the nodes that lives of the part consist of, and those below them.
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

// The arena keeps its newest block.
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

// Notes the interval at a leaf that is not whole, and at the nodes above that reach past what is, until one knows it or
// none above is asked.
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

// What of a block's list meets b.
static size_t push_list(const struct gb_plan_index * x, size_t block, const struct gb_plan_buffer * b,
    struct source * list, size_t n, uint64_t * steps) {
    const struct gb_plan_cursor c = gb_plan_list_begin(&x->lists, block, b, steps);
    if (c.at < c.end) {
        list[n++] = (struct source){ c, 0, LISTED };
    }
    return n;
}

// Whether a node of so many blocks reaches past the life; 0: what would be above the root.
static bool reaches_past(const struct gb_plan_index * x, const struct span * s, size_t node, size_t width) {
    const size_t begin = node * width - x->width;
    return node == 0 || begin < s->from || begin + width > s->to;
}

// The sets `cover` that may hold what reaches past b: those that stand for nodes that do, of which the highest has the
// most blocks.
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

// The sets that say what is in the way of b.
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

// To the first run that has something behind `at`.
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

// To the first interval that ends behind `at`: the next ones first, then by halves, without branches that cannot be
// foreseen.
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

// Most memory has no chunks.
static inline size_t within(size_t at, size_t size, size_t chunk) {
    return chunk == 0 ? at : gb_plan_within_chunk(at, size, chunk);
}

// What is looked for.
struct gap {
    const struct gb_plan_index * x;
    const struct gb_plan_buffer * b; // which fits into it
    size_t chunk; // see gb_plan_part
};

// The next interval.
static void step_on(struct gb_plan_cursor * c) {
    c->at++;
    if (c->at == c->end && c->next < c->last) {
        c->at = c->next->data;
        c->end = c->next->data + c->next->n;
        c->next++;
    }
}

// To the first interval of the source that ends behind `at`.
static inline void seek(struct source * s, const struct gb_plan_index * x, const struct gb_plan_buffer * b, size_t at,
    uint64_t * steps) {
    if (s->kind == LISTED) {
        *steps += gb_plan_list_seek(&x->lists, &s->c, b, at);
    } else {
        advance(&s->c, at);
    }
}

// Past the interval at the cursor, which ends at `at` or below.
static inline void pass(struct source * s, const struct gb_plan_buffer * b, size_t at, uint64_t * steps) {
    if (s->kind == LISTED) {
        *steps += gb_plan_list_step(&s->c, b, at);
    } else {
        step_on(&s->c);
    }
}

// What was in the way is asked earlier from now on.
static void bring_forward(struct source * list, size_t k) {
    const struct source one = list[k];
    list[k] = list[k / 2];
    list[k / 2] = one;
}

// The lowest offset at or above `at` that no set takes any of; or, after so many leaps, where the search has come to,
// with *found false. Sets that end below are dropped.
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

// ---------------------------------------------------------------------------------------------------------------- lead

// A life in sections.
struct extent {
    uint32_t first, last;
};

static struct extent extent_of_node(const struct gb_plan_index * x, size_t node) {
    size_t begin = node, end = node + 1;
    while (begin < x->width) {
        begin *= 2;
        end *= 2;
    }
    const uint64_t last = (uint64_t) (end - x->width) << x->shift; // the last block may end behind the sections
    return (struct extent){ (uint32_t) ((begin - x->width) << x->shift), (uint32_t) GB_MIN(last, x->n_sections) };
}

// How far a life must reach, beside what it had to already, to meet the interval at the cursor: all of a node that b
// consists of, the next section of one that reaches past b, or of a life of a list.
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

// The search for the lowest gap for b along a lead.
struct scan {
    struct gb_plan_index * x;
    const struct gb_plan_buffer * b;
    struct source * list; // the others
    size_t n;
    struct gb_plan_set * set; // of the lead
    struct gb_plan_cursor c; // in it
    struct extent primary; // all of it
    struct extent cause; // how far a life must reach that nothing is free just below `at`
    size_t at; // the search has come to
    uint64_t steps;
};

// To the next gap of the lead that may do; false: above all of them.
static bool next_gap(struct scan * a) {
    const struct gb_plan_buffer b = *a->b;
    size_t at = a->at;
    bool is_gap = false;
    while (a->c.at < a->c.end && !is_gap) {
        const struct gb_plan_gap_limit * add_to_node = gb_plan_gap_limit_of(a->set, &a->c);
        const struct gb_plan_interval * p = a->c.at;
        for (; p < a->c.end; p++, add_to_node++) {
            const size_t room = p->start > at ? p->start - at : 0;
            if (room >= b.size &&
                (b.size < add_to_node->size || b.first > add_to_node->first || b.last < add_to_node->last)) {
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

// To the end of what source s has in the way, as long as b may fit below `end`; *all: how far a life must reach to meet
// all that was passed; *widest: of what is free between.
static void pass_all(struct scan * a, struct source * s, size_t end, struct extent * all, size_t * widest) {
    struct gb_plan_cursor * const c = &s->c;
    const size_t size = a->b->size;
    uint64_t passed = 0;
    do {
        if (passed == 0 || s->kind == LISTED) { // each entry of a list has a life of its own
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

// Whether b fits at `at` or above, and below `end`, where the gap of the lead ends. If not, *why.
static bool fits_below(struct scan * a, size_t end, struct gb_plan_gap_limit * why) {
    const size_t size = a->b->size;
    size_t widest = 0; // of what is free, but too small
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

// The lowest offset at or above `at`, where a search by leaps has come to, by the notes of the lead. The list is that
// of the search, with the lead.
static size_t lowest_by_scan(struct gb_plan_index * x, const struct gb_plan_buffer * b, size_t primary,
    struct source * list, size_t n, size_t at, uint64_t * steps) {
    const struct gap gap = { x, b, 0 };
    struct scan a = { x, b, list, n, overlap_of(x, primary), gb_plan_set_begin(overlap_of(x, primary)),
        extent_of_node(x, primary), { b->first, b->last }, at, 0 };
    bool found, known = at == 0; // what is in the way below `at`, up to the last gap
    for (size_t k = 0; k < a.n; k++) {
        if (list[k].kind == INSIDE && list[k].node == primary) {
            list[k] = list[--a.n];
        }
    }
    for (size_t k = 0; k < a.n / 2; k++) { // wide nodes and lists are more often in the way
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

// The largest of the nodes that a life consists of; 0: it has no whole block.
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
        n = collect(x, b, list, steps); // the set has moved
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
