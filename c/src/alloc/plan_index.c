// plan_index.c - what is placed already, by time and offset: finds the lowest gap, or the smallest, in which a buffer
// fits, without looking at each neighbour.
//
// A complete binary tree over blocks of sections. The whole blocks of a life are the few nodes that it consists of (at
// most two a level): a buffer is noted in the set `cover` of these, and in the set `touch` of these and of all nodes
// above them. In a block that a life only enters, at its beginning or end, the buffer is in a sorted list. A set is a
// union of intervals of offsets, so what lies on each other is one interval, however many buffers it was. What is in a
// buffer's way is then in `touch` of the nodes that its life consists of, or in `cover` of a node above one. A gap
// common to these sets is found by leaps: an offset that is taken in one of them goes to the end of what takes it
// there, until all agree. What of the lists meets the buffer is a set like the others. As many leaps may be needed as
// buffers are in the way, where gaps of the sets alternate.
//
// Invariant: intervals of a set are sorted and do not touch each other. Only nodes that the life of some buffer of the
// part consists of are ever asked for `touch`, and only they keep it; `touch` of such a node holds that of those below,
// so what is in it already is in that of those above, too.
#include <string.h>

#include "alloc/plan_impl.h"
#include "base/mem.h"

struct interval {
    size_t start, end;
};

// Few intervals are one array, many an array of runs, so that one more moves few. All lie in the arena.
#define RUN ((uint32_t) 256)
struct run {
    struct interval * data;
    uint32_t          n; // 1 .. RUN
};
struct set {
    union {
        struct interval * flat;
        struct run *      runs;
    };
    uint32_t n, cap;
    // cap > RUN: of runs
};

// Memory of sets: blocks that are freed together; what a set has outgrown serves others of that size.
#define N_CLASSES    28
#define BLOCK_HEADER 16
struct arena {
    char *            block; // the newest; begins with a pointer to the one before
    size_t            used, size;
    struct interval * freed[N_CLASSES]; // by log2 of the capacity; linked through their first bytes
};

// A buffer that enters a block, or leaves it.
struct entry {
    struct interval at;
    uint32_t        first, last;
};

struct gb_plan_index {
    struct set *      cover; // owned, by node, as all of these: the root is 1, the leaf of block k is width + k
    struct set *      touch; // of single sections not for leaves: theirs is their cover
    uint8_t *         asked; // ASKED and ASKED_ABOVE
    size_t *          hint;  // NULL until it is needed: where the next search by hints begins
    size_t            width; // power of two >= blocks
    unsigned          shift; // a block is 1 << shift sections
    uint32_t *        begin; // owned; by block: where its list begins; NULL: of single sections
    uint32_t *        n;     // owned; by block: the length of its list
    struct entry *    lists; // owned; by offset each
    struct interval * met;   // owned; room for what of two lists is met
    uint32_t          longest;
    size_t            n_blocks; // with lists
    struct arena      arena;
};

enum { ASKED = 1, ASKED_ABOVE = 2 }; // some life consists of the node, or of one above

// A set while a gap is looked for: what ends at or below the offset reached lies behind it.
struct cursor {
    const struct interval *at, *end;
    const struct run *     next, *last; // what follows
};
#define STEPS_A_BUFFER 200 // as measured, beside what a list of pairs costs
#define STEPS_A_CURSOR 8
#define LARGEST_SHIFT  7   // of blocks
#define LONG_LIST      150 // of a block, on average
#define FEW_SECTIONS   64
#define PASSED_A_STEP  8 // intervals of one set, each after the other
#define PASSED_A_LEAP  16
#define HINTED_LEAPS   64
#define MAX_CURSORS    160 // four for each of the 32 levels, and some

// --------------------------------------------------------------------------------------------------------------- arena

static void * arena_take(struct arena * a, unsigned class) {
    if (a->freed[class]) {
        void * const one = a->freed[class];
        memcpy(&a->freed[class], one, sizeof(a->freed[class]));
        return one;
    }
    const size_t bytes = sizeof(struct interval) << class;
    if (a->used + bytes > a->size) {
        const size_t size =
            GB_MAX(GB_MIN(GB_MAX(2 * a->size, (size_t) 1 << 12), (size_t) 1 << 22), bytes + BLOCK_HEADER);
        char * const block = gb_malloc(size);
        if (block == NULL) {
            return NULL;
        }
        memcpy(block, &a->block, sizeof(a->block));
        a->block = block;
        a->size  = size;
        a->used  = BLOCK_HEADER;
    }
    void * const one = a->block + a->used;
    a->used += bytes;
    return one;
}

static void arena_reset(struct arena * a) {
    for (char * older = NULL; a->block; older = NULL) {
        memcpy(&older, a->block, sizeof(older));
        if (older == NULL) {
            break;
        }
        char * before;
        memcpy(&before, older, sizeof(before));
        memcpy(a->block, &before, sizeof(before));
        gb_free(older);
    }
    memset(a->freed, 0, sizeof(a->freed));
    a->used = a->block ? BLOCK_HEADER : 0;
}

static void arena_free(struct arena * a) {
    while (a->block) {
        char * const block = a->block;
        memcpy(&a->block, block, sizeof(a->block));
        gb_free(block);
    }
}

// The smallest power of two, by its exponent, that is at least n.
static unsigned class_of(uint32_t n) {
    unsigned class = 0;
    while ((uint32_t) 1 << class < n) {
        class++;
    }
    return class;
}

static void arena_give_back(struct arena * a, void * one, unsigned class) {
    memcpy(one, &a->freed[class], sizeof(a->freed[class]));
    a->freed[class] = one;
}

// Room for twice as many elements; an element is an interval or a run, which are of one size.
static void * grown(struct arena * a, void * old, uint32_t n, uint32_t * cap) {
    const unsigned class = *cap == 0 ? 0 : class_of(*cap) + 1;
    void * const   data  = arena_take(a, class);
    if (data == NULL) {
        return NULL;
    }
    if (*cap > 0) {
        memcpy(data, old, n * sizeof(struct interval));
        arena_give_back(a, old, class - 1);
    }
    *cap = (uint32_t) 1 << class;
    return data;
}

// ---------------------------------------------------------------------------------------------------------------- sets

enum added { NOTHING_NEW, ADDED, FULL, NO_MEMORY };

// The first of n intervals that ends at or behind `offset`.
static uint32_t find(const struct interval * data, uint32_t n, size_t offset) {
    uint32_t low = 0;
    while (n > 0) {
        const uint32_t half = n / 2;
        if (data[low + half].end < offset) {
            low += half + 1;
            n -= half + 1;
        } else {
            n = half;
        }
    }
    return low;
}

// Puts the interval among n others, joined with those that it touches; *at: where. FULL, if it needs room that there is
// not.
static enum added put(struct interval * data, uint32_t * n, uint32_t cap, size_t start, size_t end, uint32_t * at) {
    const uint32_t from = find(data, *n, start);
    uint32_t       to   = from;
    *at                 = from;
    while (to < *n && data[to].start <= end) {
        if (data[to].start <= start && data[to].end >= end) {
            return NOTHING_NEW;
        }
        to++;
    }
    if (from == to) {
        if (*n == cap) {
            return FULL;
        }
        memmove(data + from + 1, data + from, (*n - from) * sizeof(*data));
        data[from] = (struct interval){ start, end };
        ++*n;
        return ADDED;
    }
    data[from].start = GB_MIN(data[from].start, start);
    data[from].end   = GB_MAX(data[to - 1].end, end);
    if (to - from > 1) {
        memmove(data + from + 1, data + to, (*n - to) * sizeof(*data));
        *n -= to - from - 1;
    }
    return ADDED;
}

// A full run becomes two of half the length.
static bool split_run(struct arena * a, struct set * s, uint32_t k) {
    if (s->n == s->cap - RUN) {
        uint32_t cap = s->cap - RUN;
        void *   all = grown(a, s->runs, s->n, &cap);
        if (all == NULL) {
            return false;
        }
        s->runs = all;
        s->cap  = cap + RUN;
    }
    struct interval * const data = arena_take(a, class_of(RUN));
    if (data == NULL) {
        return false;
    }
    memmove(s->runs + k + 1, s->runs + k, (s->n - k) * sizeof(*s->runs));
    memcpy(data, s->runs[k].data + RUN / 2, RUN / 2 * sizeof(*data));
    s->runs[k].n   = RUN / 2;
    s->runs[k + 1] = (struct run){ data, RUN / 2 };
    s->n++;
    return true;
}

// The last interval of run k has grown: what it touches of the runs behind joins it.
static void join_behind(struct arena * a, struct set * s, uint32_t k) {
    struct interval * const last = &s->runs[k].data[s->runs[k].n - 1];
    while (k + 1 < s->n && s->runs[k + 1].data[0].start <= last->end) {
        struct run * const next = &s->runs[k + 1];
        last->end               = GB_MAX(last->end, next->data[0].end);
        memmove(next->data, next->data + 1, --next->n * sizeof(*next->data));
        if (next->n == 0) {
            arena_give_back(a, next->data, class_of(RUN));
            memmove(next, next + 1, (s->n - k - 2) * sizeof(*next));
            s->n--;
        }
    }
}

// The first run whose last interval ends at or behind `offset`; the last if there is none.
static uint32_t find_run(const struct set * s, size_t offset) {
    uint32_t low = 0, n = s->n - 1;
    while (n > 0) {
        const uint32_t     half = n / 2;
        const struct run * r    = &s->runs[low + half];
        if (r->data[r->n - 1].end < offset) {
            low += half + 1;
            n -= half + 1;
        } else {
            n = half;
        }
    }
    return low;
}

static enum added put_long(struct arena * a, struct set * s, size_t start, size_t end) {
    uint32_t   at;
    uint32_t   k     = find_run(s, start);
    enum added added = put(s->runs[k].data, &s->runs[k].n, RUN, start, end, &at);
    if (added == FULL) {
        if (!split_run(a, s, k)) {
            return NO_MEMORY;
        }
        k     = find_run(s, start);
        added = put(s->runs[k].data, &s->runs[k].n, RUN, start, end, &at);
    }
    if (added == ADDED && at + 1 == s->runs[k].n) {
        join_behind(a, s, k);
    }
    return added;
}

// Joins what it touches. A set that has as many intervals as a run becomes one of runs.
static enum added set_add(struct arena * a, struct set * s, size_t start, size_t end) {
    uint32_t at;
    if (s->cap > RUN) {
        return put_long(a, s, start, end);
    }
    const enum added added = put(s->flat, &s->n, s->cap, start, end, &at);
    if (added != FULL) {
        return added;
    }
    if (s->cap < RUN) {
        void * const data = grown(a, s->flat, s->n, &s->cap);
        if (data == NULL) {
            return NO_MEMORY;
        }
        s->flat = data;
        return put(s->flat, &s->n, s->cap, start, end, &at);
    }
    struct run * const runs = arena_take(a, 1);
    if (runs == NULL) {
        return NO_MEMORY;
    }
    runs[0] = (struct run){ s->flat, RUN };
    s->runs = runs;
    s->n    = 1;
    s->cap  = RUN + 2;
    return put_long(a, s, start, end);
}

// ------------------------------------------------------------------------------------------------------------ the tree

// A life in blocks: [from, to) are whole; `left` and `right` are those of its first and last section, which may be
// whole.
struct span {
    size_t from, to, left, right;
};
static struct span span_of(const struct gb_plan_buffer * b, unsigned shift) {
    const size_t more = ((size_t) 1 << shift) - 1;
    return (struct span){ (b->first + more) >> shift, b->last >> shift, b->first >> shift, (b->last - 1) >> shift };
}
static bool is_whole(const struct span * s, size_t block) { return block >= s->from && block < s->to; }

// Counts how many buffers each block's list must hold.
static void count_entries(const struct gb_plan_part * part, unsigned shift, uint32_t * n) {
    for (uint32_t b = 0; b < part->n + part->n_fixed; b++) {
        const struct span s = span_of(&part->buffers[b], shift);
        n[s.left] += !is_whole(&s, s.left);
        n[s.right] += s.right != s.left && !is_whole(&s, s.right);
    }
}

// Blocks are as large as can be while the list that a buffer meets is short on average: there are instances with few
// sections of many buffers each, where lists would be long.
static bool choose_blocks(struct gb_plan_index * x, const struct gb_plan_part * part) {
    if (part->n_sections < FEW_SECTIONS) {
        return true;
    }
    for (unsigned shift = LARGEST_SHIFT; shift > 0; shift--) {
        const size_t blocks = (part->n_sections >> shift) + 1;
        uint64_t     total = 0, squares = 0;
        gb_free(x->n);
        x->n = gb_calloc(blocks, sizeof(*x->n));
        if (x->n == NULL) {
            return false;
        }
        count_entries(part, shift, x->n);
        x->longest = 0;
        for (size_t k = 0; k < blocks; k++) {
            total += x->n[k];
            squares += (uint64_t) x->n[k] * x->n[k];
            x->longest = GB_MAX(x->longest, x->n[k]);
        }
        if (squares <= total * LONG_LIST) {
            x->shift = shift;
            x->begin = gb_calloc(blocks, sizeof(*x->begin));
            x->lists = gb_calloc(total + 1, sizeof(*x->lists));
            x->met   = gb_calloc(2 * (size_t) x->longest + 1, sizeof(*x->met));
            for (size_t k = 1; x->begin && k < blocks; k++) {
                x->begin[k] = x->begin[k - 1] + x->n[k - 1];
            }
            return x->begin && x->lists && x->met;
        }
    }
    return true;
}

// Marks the nodes that lives of the part consist of, and those below them.
static void mark_asked(struct gb_plan_index * x, const struct gb_plan_part * part) {
    for (uint32_t b = 0; b < part->n; b++) {
        const struct span s = span_of(&part->buffers[b], x->shift);
        for (size_t i = x->width + s.from, j = x->width + s.to; i < j; i /= 2, j /= 2) {
            if (i & 1) {
                x->asked[i++] = ASKED;
            }
            if (j & 1) {
                x->asked[--j] = ASKED;
            }
        }
    }
    for (size_t node = 2; node < 2 * x->width; node++) {
        x->asked[node] |= x->asked[node / 2] ? ASKED_ABOVE : 0;
    }
}

struct gb_plan_index * gb_plan_index_new(const struct gb_plan_part * part) {
    struct gb_plan_index * x = GB_NEW(struct gb_plan_index);
    if (x == NULL || !choose_blocks(x, part)) {
        gb_plan_index_free(x);
        return NULL;
    }
    x->width = 1;
    while (x->width << x->shift < part->n_sections) {
        x->width *= 2;
    }
    x->cover = gb_calloc(2 * x->width, sizeof(*x->cover));
    x->touch = gb_calloc(2 * x->width, sizeof(*x->touch));
    x->asked = gb_calloc(2 * x->width, sizeof(*x->asked));
    if (!x->cover || !x->touch || !x->asked) {
        gb_plan_index_free(x);
        return NULL;
    }
    mark_asked(x, part);
    if (x->begin) { // the counts have become beginnings
        x->n_blocks = (part->n_sections >> x->shift) + 1;
        memset(x->n, 0, x->n_blocks * sizeof(*x->n));
    }
    return x;
}

// The arena keeps its newest block.
void gb_plan_index_reset(struct gb_plan_index * x) {
    memset(x->cover, 0, 2 * x->width * sizeof(*x->cover));
    memset(x->touch, 0, 2 * x->width * sizeof(*x->touch));
    if (x->begin) {
        memset(x->n, 0, x->n_blocks * sizeof(*x->n));
    }
    if (x->hint) {
        memset(x->hint, 0, 2 * x->width * sizeof(*x->hint));
    }
    arena_reset(&x->arena);
}

void gb_plan_index_free(struct gb_plan_index * x) {
    if (x) {
        arena_free(&x->arena);
        gb_free(x->cover);
        gb_free(x->touch);
        gb_free(x->asked);
        gb_free(x->hint);
        gb_free(x->begin);
        gb_free(x->n);
        gb_free(x->lists);
        gb_free(x->met);
        gb_free(x);
    }
}

static bool is_section(const struct gb_plan_index * x, size_t node) { return x->shift == 0 && node >= x->width; }

static struct set * touch_of(const struct gb_plan_index * x, size_t node) {
    return is_section(x, node) ? &x->cover[node] : &x->touch[node];
}

static bool note(struct gb_plan_index * x, size_t node, size_t start, size_t end) {
    return set_add(&x->arena, &x->cover[node], start, end) != NO_MEMORY &&
           (is_section(x, node) || !(x->asked[node] & ASKED) ||
               set_add(&x->arena, &x->touch[node], start, end) != NO_MEMORY);
}

// Notes the interval at a leaf that is not whole, and at the nodes above that reach past what is, until one knows it or
// none above is asked.
static bool note_above(struct gb_plan_index * x, size_t block, const struct span * s, size_t start, size_t end) {
    size_t begin = block, width = 1;
    for (size_t node = x->width + block; node > 0 && x->asked[node]; node /= 2, width *= 2) {
        begin = node * width - x->width;
        if ((begin >= s->from && begin + width <= s->to) || !(x->asked[node] & ASKED)) {
            continue;
        }
        const enum added added = set_add(&x->arena, &x->touch[node], start, end);
        if (added != ADDED) {
            return added == NOTHING_NEW;
        }
    }
    return true;
}

// There is room: it was counted.
static void enter(struct gb_plan_index * x, size_t block, const struct gb_plan_buffer * b, size_t offset) {
    struct entry * const list = x->lists + x->begin[block];
    uint32_t             at   = x->n[block]++;
    for (; at > 0 && list[at - 1].at.start > offset; at--) {
        list[at] = list[at - 1];
    }
    list[at] = (struct entry){ { offset, offset + b->size }, b->first, b->last };
}

bool gb_plan_index_add(struct gb_plan_index * x, const struct gb_plan_buffer * b, size_t offset) {
    const size_t      end = offset + b->size;
    const struct span s   = span_of(b, x->shift);
    for (size_t i = x->width + s.from, j = x->width + s.to; i < j; i /= 2, j /= 2) {
        if ((i & 1 && !note(x, i++, offset, end)) || (j & 1 && !note(x, --j, offset, end))) {
            return false;
        }
    }
    if (!is_whole(&s, s.left)) {
        enter(x, s.left, b, offset);
    }
    if (s.right != s.left && !is_whole(&s, s.right)) {
        enter(x, s.right, b, offset);
    }
    return note_above(x, s.left, &s, offset, end) && note_above(x, s.right, &s, offset, end);
}

// ---------------------------------------------------------------------------------------------------------------- gaps

static size_t push(struct cursor * list, size_t n, const struct set * s) {
    if (s->cap > RUN) {
        list[n++] = (struct cursor){ s->runs->data, s->runs->data + s->runs->n, s->runs + 1, s->runs + s->n };
    } else if (s->n > 0) {
        list[n++] = (struct cursor){ s->flat, s->flat + s->n, NULL, NULL };
    }
    return n;
}

// What of a block's list meets b, joined; how many steps that took.
static uint64_t push_met(const struct gb_plan_index * x, size_t block, const struct gb_plan_buffer * b,
    struct interval * met, struct cursor * list, size_t * n) {
    const struct entry * const entries = x->lists + x->begin[block];
    uint32_t                   n_met = 0, m = 0;
    for (uint32_t k = 0; k < x->n[block]; k++) {
        met[n_met] = entries[k].at; // kept if it is alive with b
        n_met += (uint32_t) ((entries[k].first < b->last) & (entries[k].last > b->first));
    }
    for (uint32_t k = 1; k < n_met; k++) {
        const bool apart = met[k].start > met[m].end;
        m += apart;
        met[m] = (struct interval){ apart ? met[k].start : met[m].start, GB_MAX(met[m].end, met[k].end) };
    }
    m += n_met > 0;
    if (m > 0) {
        list[(*n)++] = (struct cursor){ met, met + m, NULL, NULL };
    }
    return x->n[block] / PASSED_A_STEP;
}

// The sets that say what is in the way of b.
static size_t collect(const struct gb_plan_index * x, const struct gb_plan_buffer * b, struct cursor * list,
    uint64_t * steps) {
    const struct span s = span_of(b, x->shift);
    size_t            n = 0;
    for (size_t i = x->width + s.from, j = x->width + s.to; i < j; i /= 2, j /= 2) {
        n = i & 1 ? push(list, n, touch_of(x, i++)) : n;
        n = j & 1 ? push(list, n, touch_of(x, --j)) : n;
    }
    size_t left = x->width + s.left, right = x->width + s.right;
    for (size_t width = 1; left > 0; left /= 2, right /= 2, width *= 2) {
        const size_t begin = left * width - x->width, other = right * width - x->width;
        if (begin < s.from || begin + width > s.to) {
            n = push(list, n, &x->cover[left]);
        }
        if (right != left && (other < s.from || other + width > s.to)) {
            n = push(list, n, &x->cover[right]);
        }
    }
    if (!is_whole(&s, s.left)) {
        *steps += push_met(x, s.left, b, x->met, list, &n);
    }
    if (s.right != s.left && !is_whole(&s, s.right)) {
        *steps += push_met(x, s.right, b, x->met + x->longest, list, &n);
    }
    *steps += STEPS_A_BUFFER + n * STEPS_A_CURSOR;
    return n;
}

// To the first run that has something behind `at`.
static void skip_runs(struct cursor * c, size_t at) {
    const struct run * low = c->next;
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
        c->at   = low->data;
        c->end  = low->data + low->n;
        c->next = low + 1;
    }
}

// To the first interval that ends behind `at`: by steps that double, then by halves.
static void advance(struct cursor * c, size_t at) {
    if (c->next < c->last && c->end[-1].end <= at) {
        c->at = c->end;
        skip_runs(c, at);
    }
    size_t                  step = 1;
    const struct interval * p    = c->at;
    while (p < c->end && p->end <= at) {
        c->at = p + 1;
        p     = (size_t) (c->end - p) > step ? p + step : c->end;
        step *= 2;
    }
    const struct interval * low = c->at;
    for (size_t n = (size_t) (p - low); n > 0;) {
        const size_t half = n / 2;
        if (low[half].end <= at) {
            low += half + 1;
            n -= half + 1;
        } else {
            n = half;
        }
    }
    c->at = low;
}

// Most memory has no chunks.
static inline size_t within(size_t at, size_t size, size_t chunk) {
    return chunk == 0 ? at : gb_plan_within_chunk(at, size, chunk);
}

// What is looked for.
struct gap {
    size_t size, chunk; // chunk: see gb_plan_part
};

// The next interval.
static void step_on(struct cursor * c) {
    c->at++;
    if (c->at == c->end && c->next < c->last) {
        c->at  = c->next->data;
        c->end = c->next->data + c->next->n;
        c->next++;
    }
}

// The lowest offset at or above `at` that no set takes any of; or, after so many leaps, where the search has come to,
// with *found false. Sets that end below are dropped.
static size_t lowest(struct cursor * list, size_t * n, size_t at, const struct gap * gap, uint64_t leaps, bool * found,
    uint64_t * steps) {
    const size_t size = gap->size, chunk = gap->chunk;
    at     = within(at, size, chunk);
    *found = true;
    for (size_t k = 0; k < *n;) {
        struct cursor * const c = &list[k];
        *steps += STEPS_A_CURSOR;
        if (c->at < c->end && c->at->end <= at) {
            advance(c, at);
        }
        if (c->at == c->end) {
            *c = list[--*n];
            continue;
        }
        if (c->at->start > at && c->at->start - at >= size) {
            k++;
            continue;
        }
        if (leaps == 0) {
            *found = false;
            return at;
        }
        uint64_t passed = 0;
        do {
            at = within(c->at->end, size, chunk);
            step_on(c);
            passed++;
        } while (c->at < c->end && (c->at->start <= at || c->at->start - at < size));
        *steps += passed / PASSED_A_STEP;
        leaps -= GB_MIN(leaps, 1 + passed / PASSED_A_LEAP);
        if (k > 0) { // what was in the way is asked first from now on
            const struct cursor one = *c;
            list[k]                 = list[k / 2];
            list[k / 2]             = one;
        }
        k = 0;
    }
    return at;
}

size_t gb_plan_index_lowest(const struct gb_plan_index * x, const struct gb_plan_buffer * b, size_t chunk,
    uint64_t * steps) {
    struct cursor    list[MAX_CURSORS];
    bool             found;
    const struct gap gap = { b->size, chunk };
    size_t           n   = collect(x, b, list, steps);
    return lowest(list, &n, 0, &gap, UINT64_MAX, &found, steps);
}

size_t gb_plan_index_smallest(const struct gb_plan_index * x, const struct gb_plan_buffer * b, size_t chunk,
    uint64_t * steps) {
    struct cursor    list[MAX_CURSORS];
    bool             found;
    const struct gap gap = { b->size, chunk };
    size_t           n = collect(x, b, list, steps), best = SIZE_MAX, best_size = SIZE_MAX;
    for (size_t at = 0;;) {
        at = lowest(list, &n, at, &gap, UINT64_MAX, &found, steps);
        if (n == 0) {
            return best != SIZE_MAX ? best : at;
        }
        size_t end = SIZE_MAX;
        for (size_t k = 0; k < n; k++) {
            end = GB_MIN(end, list[k].at->start);
        }
        if (end - at < best_size) {
            best      = at;
            best_size = end - at;
        }
        if (best_size == b->size) {
            return best;
        }
        at = end;
    }
}

// The largest of the nodes that a life consists of, or the leaf of the block that it begins in.
static size_t widest_node(const struct gb_plan_index * x, const struct gb_plan_buffer * b) {
    const struct span s    = span_of(b, x->shift);
    size_t            node = x->width + s.left;
    for (size_t i = x->width + s.from, j = x->width + s.to; i < j; i = (i + 1) / 2, j /= 2) {
        node = i & 1 ? i : j & 1 ? j - 1 : node;
    }
    return node;
}

static size_t end_of_all(const struct cursor * list, size_t n) {
    size_t top = 0;
    for (size_t k = 0; k < n; k++) {
        const struct cursor * c = &list[k];
        if (c->next < c->last) {
            top = GB_MAX(top, c->last[-1].data[c->last[-1].n - 1].end);
        } else {
            top = GB_MAX(top, c->end[-1].end);
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
    struct cursor    list[MAX_CURSORS];
    bool             found;
    const struct gap gap  = { b->size, chunk };
    size_t * const   hint = &x->hint[widest_node(x, b)];
    size_t           n    = collect(x, b, list, steps);
    const size_t     top  = end_of_all(list, n);
    const size_t     at   = lowest(list, &n, GB_MIN(*hint, top), &gap, HINTED_LEAPS, &found, steps);
    *offset               = found ? at : gb_plan_within_chunk(top, b->size, chunk);
    *hint                 = found && n == 0 ? 0 : at;
    return true;
}
