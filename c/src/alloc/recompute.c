// recompute.c - the search of recompute.h.
//
// 1. A simulation runs the nodes in order within the limit. If a node does not fit, the simulation
//    drops storages. Before a node reads a dropped storage, the storage's maker runs again. If the
//    maker reads dropped storages, their makers run before it: the most expensive source first, so
//    that few other sources wait in memory. The storage to drop is the cheapest by
//
//        work to get it back / (bytes * time until the next use ^ exponent)
//
//    (Kirisame et al. 2021, with the known next use instead of the last one.) The work includes all
//    dropped storages that would have to run again before. A storage without a reader of its own
//    stays while a dropped storage needs it. Sources that wait are dropped, too, if nothing else is
//    left. Otherwise a long chain of nodes to run again keeps the other sources of all its nodes.
// 2. A node whose result was dropped before its first use does not run there, but later. Then
//    repetitions that are not needed are removed, the most expensive first: their readers use the
//    earlier content, which lives longer.
// 3. The smallest limit is bisected. Its sequence is the first choice. Then higher limits follow, up to
//    the peak of the given order. The best sequence of the limit before loses repetitions that are not
//    needed any more. Simulations with several exponents and random factors compete with it.
//
// A choice meets all higher limits, too, so the work never rises with the limit. The limits do not
// depend on the caller's limit.
#include "alloc/recompute.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/current.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/vec.h"

enum {
    NEVER = INT_MAX,
    N_LIMITS = 48,   // limits between the least and the peak of the given order
    ROUNDS_MIN = 3,  // of a limit
    ROUNDS_MAX = 60, // of a limit
    ROUNDS_IDLE = 6, // without a better sequence, after which a limit gets less time
    BISECTIONS = 24,
    PRECISION = 1024, // of the least limit: its error is at most this part of it
    N_EXPONENTS = 4,
    REPEATS_MAX = 12, // the most nodes of a sequence, relative to those of the given order
    REPEATS_OF_ROUND = 4, // the same, where a sequence is known
    TRIES_MAX = 12,  // sources of a waiting node that run again
};

static const double exponents[N_EXPONENTS] = { 1.0, 0.5, 2.0, 0.0 };
// Budgets; a step takes a nanosecond or two.
static const uint64_t steps_of_limit = 40000000; // of the rounds of a limit
static const uint64_t steps_if_idle = 5000000; // of the same, if the last rounds found nothing better
static const uint64_t steps_to_meet = 2000000; // to find out if a limit can be met

// A sequence and what is known about it.
struct sequence {
    GB_VEC(int) nodes;
    size_t peak;
    double work;
};

struct search {
    const struct gb_recompute_input * in;
    uint64_t steps, random;
    // the simulation; all owned, by storage
    bool * resident;
    bool * held; // the node that runs reads it
    int * waiting; // nodes on the stack that read it
    int * next; // the node for which it is needed next
    unsigned * seen;
    int * tries; // owned; by node on the stack: its sources that ran again
    unsigned stamp;
    size_t live, limit;
    double exponent, noise, lazy; // lazy: share of the nodes that run right before their first reader
    int first_read; // the source to compute first; 0: the most expensive one
    int repeats;     // the most nodes of a sequence, relative to those of the given order
    bool keeps_waiting; // what waiting nodes read is dropped last
    GB_VEC(int) stack; // nodes to run; each waits for those above it
    GB_VEC(int) todo;
    // the count of a sequence; a content is a position, or the length of the sequence plus a storage
    GB_VEC(int) from; // per position and read: the content
    GB_VEC(int) last; // per content: the last position that reads it
    int * now;        // owned; by storage: its content
    GB_VEC(bool) skip; // per position: removed, or without readers
    GB_VEC(size_t) level; // per position: bytes alive while its node runs
};

static void free_sequence(struct sequence * q) { gb_vec_free(&q->nodes); }

static void free_search(struct search * s) {
    gb_free(s->resident);
    gb_free(s->held);
    gb_free(s->waiting);
    gb_free(s->tries);
    gb_free(s->next);
    gb_free(s->seen);
    gb_free(s->now);
    gb_vec_free(&s->stack);
    gb_vec_free(&s->todo);
    gb_vec_free(&s->from);
    gb_vec_free(&s->last);
    gb_vec_free(&s->skip);
    gb_vec_free(&s->level);
}

static bool init_search(struct search * s, const struct gb_recompute_input * in) {
    const size_t n = (size_t) in->n_storages + 1;
    *s = (struct search){ .in = in, .random = 1 };
    s->resident = gb_calloc(n, sizeof(*s->resident));
    s->held = gb_calloc(n, sizeof(*s->held));
    s->waiting = gb_calloc(n, sizeof(*s->waiting));
    s->tries = gb_calloc((size_t) in->n_nodes + 1, sizeof(*s->tries));
    s->next = gb_calloc(n, sizeof(*s->next));
    s->seen = gb_calloc(n, sizeof(*s->seen));
    s->now = gb_calloc(n, sizeof(*s->now));
    return s->resident && s->held && s->waiting && s->tries && s->next && s->seen && s->now;
}

static double random_unit(struct search * s) { // SplitMix64, with 53 bits
    const uint64_t bits = gb_hash_u64(s->random);
    s->random += 0x9e3779b97f4a7c15u;
    return (double) (bits >> 11) / 9007199254740992.0;
}

// ------------------------------------------------------------------------------------------------------ the simulation

// Finds the next use of each storage, by nodes from `from` on and by makers of dropped storages. The
// node `running` has its sources already.
static void find_next(struct search * s, int from, int running) {
    const struct gb_recompute_input * in = s->in;
    for (int i = 0; i < in->n_storages; i++) {
        s->next[i] = in->storages[i].to_end ? in->n_nodes : NEVER;
    }
    for (int v = in->n_nodes - 1; v >= 0; v--) {
        const struct gb_recompute_node * node = &in->nodes[v];
        const bool is_dropped = v != running && node->makes != GB_RECOMPUTE_NONE && !s->resident[node->makes];
        const int use = v >= from ? v : is_dropped ? s->next[node->makes] : NEVER;
        for (int k = 0; k < node->n_reads; k++) {
            s->next[node->reads[k]] = GB_MIN(s->next[node->reads[k]], use);
        }
        s->steps += 4;
    }
}

static void drop(struct search * s, int storage) {
    s->resident[storage] = false;
    s->live -= s->in->storages[storage].size;
}

// True if the storage can be computed right before the node `when`, or earlier.
static bool can_repeat(const struct search * s, int storage, int when) {
    return s->in->storages[storage].may_repeat && s->in->storages[storage].valid_until >= when;
}

// The work to compute a storage again for its next use, with all sources that are dropped. Negative:
// it cannot be computed, or memory ran out. Sources that cannot be computed again stay, because
// find_next counts this use.
static double work_to_repeat(struct search * s, int storage) {
    const int when = s->next[storage];
    double work = 0;
    s->stamp++;
    s->todo.n = 0;
    bool ok = gb_vec_push(&s->todo, storage);
    s->seen[storage] = s->stamp;
    while (ok && s->todo.n > 0) {
        const int maker = s->in->storages[s->todo.data[--s->todo.n]].maker;
        const struct gb_recompute_node * node = &s->in->nodes[maker];
        work += node->work;
        s->steps += (uint64_t) node->n_reads + 1;
        for (int k = 0; ok && k < node->n_reads; k++) {
            const int read = node->reads[k];
            if (!s->resident[read] && s->seen[read] != s->stamp) {
                s->seen[read] = s->stamp;
                ok = can_repeat(s, read, when) && gb_vec_push(&s->todo, read);
            }
        }
    }
    return ok ? work : -1;
}

// True if the node may overwrite the storage.
static bool can_overwrite(const struct search * s, const struct gb_recompute_node * node, int i) {
    if (node->makes == GB_RECOMPUTE_NONE || s->in->storages[i].size != s->in->storages[node->makes].size) {
        return false;
    }
    for (int k = 0; k < node->n_reads; k++) {
        if (node->reads[k] == i) {
            return node->over[k];
        }
    }
    return false;
}

// True if the storage can be computed again for its next use, and the node that runs does not read
// it. `over`: a node that may overwrite it, or NULL.
static bool can_drop(const struct search * s, const struct gb_recompute_node * over, int i) {
    const struct gb_recompute_storage * storage = &s->in->storages[i];
    return s->resident[i] && !storage->to_end && storage->size > 0 && can_repeat(s, i, s->next[i]) &&
           (!s->held[i] || (over && can_overwrite(s, over, i)));
}

// The storage that is cheapest to drop. NONE: no storage can be dropped.
static int cheapest(struct search * s, const struct gb_recompute_node * over, int from) {
    int best = GB_RECOMPUTE_NONE;
    double lowest = 0;
    bool best_waits = true;
    for (int i = 0; i < s->in->n_storages; i++) {
        s->steps++;
        const bool waits = s->keeps_waiting && s->waiting[i] > (int) s->held[i];
        if ((waits && !best_waits) || !can_drop(s, over, i)) {
            continue;
        }
        const double work = work_to_repeat(s, i), time = (double) (s->next[i] - from + 1);
        if (work < 0) {
            continue;
        }
        const double factor = s->noise > 0 ? exp(s->noise * (random_unit(s) - 0.5)) : 1;
        const double price = (work + 1e-9) * factor / ((double) s->in->storages[i].size * pow(time, s->exponent));
        if (best == GB_RECOMPUTE_NONE || price < lowest || (best_waits && !waits)) {
            best = i;
            best_waits = waits;
            lowest = price;
        }
    }
    return best;
}

// The read without later uses that the node may overwrite. NONE: there is none.
static int read_to_overwrite(const struct search * s, const struct gb_recompute_node * node) {
    for (int k = 0; k < node->n_reads; k++) {
        if (s->next[node->reads[k]] == NEVER && can_overwrite(s, node, node->reads[k])) {
            return node->reads[k];
        }
    }
    return GB_RECOMPUTE_NONE;
}

// Drops storages until the result of the node fits. `from`: the first node that has not run after
// it. False: it does not fit.
static bool make_room(struct search * s, int running, int from) {
    const struct gb_recompute_node * node = &s->in->nodes[running];
    const size_t size = node->makes == GB_RECOMPUTE_NONE ? 0 : s->in->storages[node->makes].size;
    if (s->live + size <= s->limit) {
        return true;
    }
    find_next(s, from, running);
    for (int i = 0; i < s->in->n_storages; i++) {
        if (s->resident[i] && !s->held[i] && s->next[i] == NEVER) {
            drop(s, i);
        }
    }
    int i = s->live + size > s->limit ? read_to_overwrite(s, node) : GB_RECOMPUTE_NONE;
    const struct gb_recompute_node * over = i == GB_RECOMPUTE_NONE ? node : NULL; // it overwrites one read
    if (i != GB_RECOMPUTE_NONE) {
        drop(s, i);
    }
    while (s->live + size > s->limit) {
        i = cheapest(s, over, from);
        if (i == GB_RECOMPUTE_NONE) {
            return false;
        }
        over = s->held[i] ? NULL : over;
        drop(s, i);
    }
    return true;
}

static bool enter(struct search * s, int node) {
    for (int k = 0; k < s->in->nodes[node].n_reads; k++) {
        s->waiting[s->in->nodes[node].reads[k]]++;
    }
    s->tries[node] = 0;
    return gb_vec_push(&s->stack, node);
}

static void leave(struct search * s) {
    const struct gb_recompute_node * node = &s->in->nodes[s->stack.data[--s->stack.n]];
    for (int k = 0; k < node->n_reads; k++) {
        s->waiting[node->reads[k]]--;
    }
}

static void hold(struct search * s, int node, bool is_held) {
    for (int k = 0; k < s->in->nodes[node].n_reads; k++) {
        s->held[s->in->nodes[node].reads[k]] = is_held;
    }
}

// The source to compute next: the most expensive one that is not there, or in some rounds the first
// one in another order. NONE: all are there.
static int missing(struct search * s, int node) {
    const int n = s->in->nodes[node].n_reads;
    int best = GB_RECOMPUTE_NONE;
    double most = 0;
    for (int k = 0; k < n; k++) {
        const int read = s->in->nodes[node].reads[(k + s->first_read) % n];
        if (s->resident[read]) {
            continue;
        }
        if (s->first_read > 0) {
            return read;
        }
        const double work = n > 1 ? work_to_repeat(s, read) : 0;
        if (best == GB_RECOMPUTE_NONE || work > most) {
            best = read;
            most = work;
        }
    }
    return best;
}

// True if the node need not run in its place, because it can run right before its first reader.
static bool can_wait(struct search * s, int node) {
    const int made = s->in->nodes[node].makes;
    if (made == GB_RECOMPUTE_NONE || s->in->storages[made].to_end) {
        return false;
    }
    find_next(s, node + 1, GB_RECOMPUTE_NONE);
    return can_repeat(s, made, s->next[made]) && work_to_repeat(s, made) >= 0;
}

// Runs node `base` of the given order, after what must run again for it.
static bool run_now(struct search * s, struct sequence * q, int base) {
    const size_t most = (size_t) s->repeats * (size_t) s->in->n_nodes + 64;
    bool ok = enter(s, base);
    while (ok && s->stack.n > 0 && q->nodes.n < most) {
        const int v = s->stack.data[s->stack.n - 1], absent = missing(s, v);
        if (absent != GB_RECOMPUTE_NONE) {
            ok = s->in->storages[absent].may_repeat && ++s->tries[v] <= TRIES_MAX &&
                 enter(s, s->in->storages[absent].maker);
            continue;
        }
        const int made = s->in->nodes[v].makes;
        hold(s, v, true);
        ok = make_room(s, v, v == base ? base + 1 : base) && gb_vec_push(&q->nodes, v);
        hold(s, v, false);
        if (ok && made != GB_RECOMPUTE_NONE) {
            s->resident[made] = true;
            s->live += s->in->storages[made].size;
        }
        leave(s);
    }
    return ok && s->stack.n == 0;
}

// Runs node `base`, or leaves it for its first reader if it does not fit, or by chance.
static bool run_node(struct search * s, struct sequence * q, int base) {
    if (s->lazy > 0 && random_unit(s) < s->lazy && can_wait(s, base)) {
        return true;
    }
    if (run_now(s, q, base)) {
        return true;
    }
    while (s->stack.n > 0) {
        leave(s);
    }
    return can_wait(s, base);
}

// False: the limit cannot be met, memory ran out, or the poll asked to stop. The caller checks the
// thread's status.
static bool simulate(struct search * s, struct sequence * q) {
    bool ok = true;
    q->nodes.n = 0;
    s->live = 0;
    s->stack.n = 0;
    for (int i = 0; i < s->in->n_storages; i++) {
        s->held[i] = false;
        s->waiting[i] = 0;
        s->resident[i] = s->in->storages[i].maker == GB_RECOMPUTE_NONE;
        s->live += s->resident[i] ? s->in->storages[i].size : 0;
    }
    for (int v = 0; ok && v < s->in->n_nodes; v++) {
        ok = gb_check_poll() == GGML_STATUS_SUCCESS && run_node(s, q, v);
    }
    return ok;
}

// ----------------------------------------------------------------------------------------------------------- the count

// Finds the content that each node reads. Marks nodes whose content nobody reads: the storage was
// dropped before its first use. False: a node reads a storage before its maker.
static bool find_contents(struct search * s, const struct sequence * q) {
    const struct gb_recompute_input * in = s->in;
    const int n = (int) q->nodes.n;
    for (int i = 0; i < in->n_storages; i++) {
        s->now[i] = n + i;
    }
    for (int k = 0; k < n; k++) {
        const struct gb_recompute_node * node = &in->nodes[q->nodes.data[k]];
        s->last.data[k] = -1;
        for (int j = 0; !s->skip.data[k] && j < node->n_reads; j++) {
            const int content = s->now[node->reads[j]];
            if (content >= n && in->storages[node->reads[j]].maker != GB_RECOMPUTE_NONE) {
                return false;
            }
            s->from.data[(size_t) k * GB_LIVE_SLOTS + (size_t) j] = content;
        }
        if (!s->skip.data[k] && node->makes != GB_RECOMPUTE_NONE) {
            s->now[node->makes] = k;
        }
    }
    for (int i = 0; i < in->n_storages; i++) {
        s->last.data[n + i] = -1;
    }
    for (int i = 0; i < in->n_storages; i++) {
        s->last.data[s->now[i]] = in->storages[i].to_end ? n : s->last.data[s->now[i]];
    }
    for (int k = n - 1; k >= 0; k--) {
        const struct gb_recompute_node * node = &in->nodes[q->nodes.data[k]];
        const bool may_repeat = node->makes != GB_RECOMPUTE_NONE && in->storages[node->makes].may_repeat;
        s->skip.data[k] = s->skip.data[k] || (may_repeat && s->last.data[k] < 0);
        for (int j = 0; !s->skip.data[k] && j < node->n_reads; j++) {
            int * last = &s->last.data[s->from.data[(size_t) k * GB_LIVE_SLOTS + (size_t) j]];
            *last = GB_MAX(*last, k);
        }
    }
    return true;
}

// Returns the bytes alive after the node at position k, if `live` bytes were alive before it. Sets
// *level to the bytes alive while it runs.
static size_t count_node(const struct search * s, const struct sequence * q, int k, size_t live, size_t * level) {
    const struct gb_recompute_node * node = &s->in->nodes[q->nodes.data[k]];
    const size_t size = node->makes == GB_RECOMPUTE_NONE ? 0 : s->in->storages[node->makes].size;
    size_t dying = 0, over = 0;
    for (int j = 0; j < node->n_reads; j++) {
        if (s->last.data[s->from.data[(size_t) k * GB_LIVE_SLOTS + (size_t) j]] == k) {
            const size_t bytes = s->in->storages[node->reads[j]].size;
            dying += bytes;
            over = node->over[j] && bytes == size ? size : over;
        }
    }
    *level = live + size - over;
    const bool is_read = node->makes == GB_RECOMPUTE_NONE || s->last.data[k] >= 0;
    return live + (is_read ? size : 0) - dying;
}

// Counts the peak and the work of the sequence without the positions in `skip`, which must have its
// length. Adds positions without readers to `skip`. The peak is SIZE_MAX if a node would read a
// storage before its maker. False: memory ran out.
static bool count_sequence(struct search * s, struct sequence * q) {
    const size_t n = q->nodes.n;
    if (!gb_vec_resize_zero(&s->from, n * GB_LIVE_SLOTS + 1) ||
        !gb_vec_resize_zero(&s->last, n + (size_t) s->in->n_storages + 1) || !gb_vec_resize_zero(&s->level, n + 1)) {
        return false;
    }
    q->peak = SIZE_MAX;
    q->work = 0;
    s->steps += 12 * n + 2 * (size_t) s->in->n_storages;
    if (!find_contents(s, q)) {
        return true;
    }
    size_t live = 0;
    for (int i = 0; i < s->in->n_storages; i++) {
        live += s->in->storages[i].maker == GB_RECOMPUTE_NONE ? s->in->storages[i].size : 0;
    }
    q->peak = live;
    for (size_t k = 0; k < n; k++) {
        s->level.data[k] = live;
        if (!s->skip.data[k]) {
            live = count_node(s, q, (int) k, live, &s->level.data[k]);
            q->peak = GB_MAX(q->peak, s->level.data[k]);
            q->work += s->in->nodes[q->nodes.data[k]].work;
        }
    }
    return true;
}

static bool count_all(struct search * s, struct sequence * q) {
    s->skip.n = 0;
    return gb_vec_resize_zero(&s->skip, q->nodes.n) && count_sequence(s, q);
}

// ----------------------------------------------------------------------------------------------------------- removal

struct repetition {
    double work;
    int position;
};

static int by_work(const void * pa, const void * pb) {
    const struct repetition *a = pa, *b = pb;
    if (a->work != b->work) {
        return a->work > b->work ? -1 : 1;
    }
    return a->position < b->position ? -1 : a->position > b->position;
}

// Drops the positions in `skip` from the sequence.
static void compact(const struct search * s, struct sequence * q) {
    size_t n = 0;
    for (size_t k = 0; k < q->nodes.n; k++) {
        if (!s->skip.data[k]) {
            q->nodes.data[n++] = q->nodes.data[k];
        }
    }
    q->nodes.n = n;
}

// The first position at which memory can become free if position p is removed: its sources die
// earlier or are removed, too. Memory ran out: 0.
static int first_freed(struct search * s, const struct sequence * q, int p) {
    const int n = (int) q->nodes.n;
    int first = p;
    s->todo.n = 0;
    bool ok = gb_vec_push(&s->todo, p);
    while (ok && first > 0 && s->todo.n > 0) {
        const int k = s->todo.data[--s->todo.n];
        const struct gb_recompute_node * node = &s->in->nodes[q->nodes.data[k]];
        s->steps++;
        for (int j = 0; ok && j < node->n_reads; j++) {
            const int content = s->from.data[(size_t) k * GB_LIVE_SLOTS + (size_t) j];
            if (s->last.data[content] == k) {
                first = content >= n ? 0 : GB_MIN(first, content);
                ok = content >= n || gb_vec_push(&s->todo, content);
            }
        }
    }
    return ok ? first : 0;
}

// True if the earlier content does not fit between its last reader and the repetition at position p.
static bool cannot_remove(struct search * s, const struct sequence * q, int p, size_t limit) {
    const int v = q->nodes.data[p];
    int earlier = p - 1;
    while (earlier >= 0 && (s->skip.data[earlier] || q->nodes.data[earlier] != v)) {
        earlier--;
    }
    if (earlier < 0) {
        return false;
    }
    const size_t size = s->in->storages[s->in->nodes[v].makes].size;
    const int end = first_freed(s, q, p);
    s->steps += (uint64_t) (p - earlier);
    for (int k = GB_MAX(s->last.data[earlier], earlier) + 1; k < end; k++) {
        if (s->level.data[k] + size > limit) {
            return true;
        }
    }
    return false;
}

// Tries the removal of each repetition. False: memory ran out, or the poll asked to stop.
static bool remove_each(struct search * s, struct sequence * q, const struct repetition * list, size_t n, size_t limit,
    bool * saved) {
    bool ok = true;
    for (size_t i = 0; ok && i < n; i++) {
        if (s->skip.data[list[i].position] || cannot_remove(s, q, list[i].position, limit)) {
            continue;
        }
        memcpy(saved, s->skip.data, q->nodes.n * sizeof(bool));
        s->skip.data[list[i].position] = true;
        ok = gb_check_poll() == GGML_STATUS_SUCCESS && count_sequence(s, q);
        if (ok && q->peak > limit) {
            memcpy(s->skip.data, saved, q->nodes.n * sizeof(bool));
            ok = count_sequence(s, q);
        }
    }
    return ok;
}

// Lists the positions at which a node runs that has run before. `ran`: by node, all false.
static size_t find_repetitions(const struct search * s, const struct sequence * q, bool * ran,
    struct repetition * list) {
    size_t n = 0;
    for (size_t k = 0; k < q->nodes.n; k++) {
        const int v = q->nodes.data[k];
        if (!s->skip.data[k] && ran[v]) {
            list[n++] = (struct repetition){ s->in->nodes[v].work, (int) k };
        }
        ran[v] = ran[v] || !s->skip.data[k];
    }
    return n;
}

// Removes repetitions as long as the peak is within the limit. False: memory ran out, or the poll
// asked to stop.
static bool improve(struct search * s, struct sequence * q, size_t limit) {
    struct repetition * list = gb_calloc(q->nodes.n + 1, sizeof(*list));
    bool * saved = gb_calloc(q->nodes.n + (size_t) s->in->n_nodes + 1, sizeof(*saved));
    bool ok = list && saved && count_all(s, q);
    if (ok) {
        const size_t n = find_repetitions(s, q, saved, list);
        qsort(list, n, sizeof(*list), by_work);
        ok = remove_each(s, q, list, n, limit, saved);
        compact(s, q);
    }
    gb_free(list);
    gb_free(saved);
    return ok;
}

// --------------------------------------------------------------------------------------------------------- the rounds

static bool copy_sequence(struct sequence * to, const struct sequence * from) {
    if (!gb_vec_reserve(&to->nodes, from->nodes.n + 1)) { // an empty sequence has an address, too
        return false;
    }
    to->nodes.n = 0;
    for (size_t k = 0; k < from->nodes.n; k++) {
        to->nodes.data[to->nodes.n++] = from->nodes.data[k];
    }
    to->peak = from->peak;
    to->work = from->work;
    return true;
}

static void swap(struct sequence * a, struct sequence * b) {
    const struct sequence c = *a;
    *a = *b;
    *b = c;
}

// Sets what a round varies, from its number.
static void begin_round(struct search * s, int round, size_t limit) {
    const bool varies = round >= N_EXPONENTS;
    s->exponent = exponents[round % N_EXPONENTS];
    s->noise = varies ? 4 * random_unit(s) : 0;
    s->lazy = round / N_EXPONENTS % 3 == 1 ? random_unit(s) : 0;
    s->first_read = round / N_EXPONENTS % 2 == 1 ? 1 + (int) (GB_LIVE_SLOTS * random_unit(s)) : 0;
    s->keeps_waiting = round % 3 != 2;
    s->limit = limit;
}

// Meets a limit with few rounds; `q` gets the sequence.
static enum ggml_status meet(struct search * s, size_t limit, struct sequence * q, bool * found) {
    const uint64_t failures = gb_fail_count();
    *found = false;
    s->steps = 0;
    s->repeats = REPEATS_MAX;
    enum ggml_status status = GGML_STATUS_SUCCESS;
    for (int round = 0; status == GGML_STATUS_SUCCESS && !*found && round < ROUNDS_MAX &&
                        (round < N_EXPONENTS || s->steps < steps_to_meet);
        round++) {
        begin_round(s, round, limit);
        *found = simulate(s, q) && count_all(s, q);
        status = gb_status_since(failures);
    }
    return status;
}

// Bisects the smallest peak that the first rounds reach. `least` has the given order at first. A limit that cannot be
// met takes most of the time, so the last bytes are not searched.
static enum ggml_status find_least(struct search * s, size_t lower, struct sequence * least) {
    struct sequence q = { 0 };
    enum ggml_status status = GGML_STATUS_SUCCESS;
    for (int i = 0; status == GGML_STATUS_SUCCESS && i < BISECTIONS && lower + least->peak / PRECISION < least->peak;
        i++) {
        const size_t limit = i == 0 ? lower : lower + (least->peak - lower) / 2;
        bool found;
        status = meet(s, limit, &q, &found);
        if (found) {
            compact(s, &q);
            swap(least, &q);
        } else {
            lower = limit + 1;
        }
    }
    free_sequence(&q);
    return status;
}

// The bytes that any sequence has alive when a node runs: what it reads and makes, and what must stay.
static size_t lower_bound_of(struct search * s) {
    const struct gb_recompute_input * in = s->in;
    size_t most = 0, stays = 0; // stays: outputs
    for (int i = 0; i < in->n_storages; i++) {
        stays += in->storages[i].maker == GB_RECOMPUTE_NONE && in->storages[i].to_end ? in->storages[i].size : 0;
    }
    for (int v = 0; v < in->n_nodes; v++) {
        const struct gb_recompute_node * node = &in->nodes[v];
        const size_t size = node->makes == GB_RECOMPUTE_NONE ? 0 : in->storages[node->makes].size;
        size_t bytes = stays + size, over = 0;
        for (int k = 0; k < node->n_reads; k++) {
            const struct gb_recompute_storage * read = &in->storages[node->reads[k]];
            bytes += read->to_end ? 0 : read->size;
            over = node->over[k] && !read->to_end && read->size == size ? size : over;
        }
        most = GB_MAX(most, bytes - over);
        stays += node->makes != GB_RECOMPUTE_NONE && in->storages[node->makes].to_end ? size : 0;
    }
    return most;
}

// -------------------------------------------------------------------------------------------------------- the choices

// Limits from the least to below the peak of the given order, and the best sequence of each. A
// sequence is at the lowest limit that it meets.
struct ladder {
    int n;
    size_t limits[N_LIMITS];
    struct sequence best[N_LIMITS]; // owned; without nodes: none
    double work; // of the given order
};

static size_t divisor_of(size_t a, size_t b) { // the greatest common one
    while (b > 0) {
        const size_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

// Each limit is higher than the one before by the same ratio, because the work falls fast above the
// least. Distances are multiples of the greatest common divisor of all sizes, so small graphs have a
// limit for each peak.
static void make_ladder(const struct gb_recompute_input * in, size_t least, size_t before, struct ladder * l) {
    size_t unit = 0;
    for (int i = 0; i < in->n_storages; i++) {
        unit = divisor_of(in->storages[i].size, unit);
    }
    unit = GB_MAX(unit, (size_t) 1);
    const bool has_all = (before - least) / unit <= N_LIMITS;
    const double ratio = has_all || least == 0 ? 1 : pow((double) before / (double) least, 1.0 / N_LIMITS);
    const size_t even = has_all || least > 0 ? 1 : before / N_LIMITS;
    for (size_t limit = least; limit < before && l->n < N_LIMITS; l->n++) {
        l->limits[l->n] = limit;
        const size_t distance = GB_MAX((size_t) ((double) limit * (ratio - 1)), even);
        limit += (distance + unit - 1) / unit * unit;
    }
}

// Replaces the sequence of the lowest limit that `q` meets, if q has less work. True if it has.
static bool keep(struct ladder * l, struct sequence * q) {
    int k = 0;
    while (k < l->n && l->limits[k] < q->peak) {
        k++;
    }
    const bool is_better = k < l->n && (l->best[k].nodes.n == 0 || q->work < l->best[k].work);
    if (is_better) {
        swap(&l->best[k], q);
    }
    return is_better;
}

// The least work of the limits up to this one; the given order's work is the least of all.
static const struct sequence * best_until(const struct ladder * l, int last) {
    const struct sequence * best = NULL;
    for (int k = 0; k <= last; k++) {
        if (l->best[k].nodes.n > 0 && (best == NULL || l->best[k].work < best->work)) {
            best = &l->best[k];
        }
    }
    return best;
}

// False: the rounds of limit k are over, or no sequence can be better.
static bool is_round_left(const struct search * s, const struct ladder * l, int k, int round, int idle) {
    const uint64_t most = idle < ROUNDS_IDLE ? steps_of_limit : steps_if_idle;
    return best_until(l, k)->work > l->work && round < ROUNDS_MAX && (round < ROUNDS_MIN || s->steps < most);
}

// Searches sequences for one limit of the ladder.
static enum ggml_status find_best(struct search * s, struct ladder * l, int k) {
    struct sequence q = { 0 };
    const size_t limit = l->limits[k];
    const struct sequence * before = best_until(l, k);
    enum ggml_status status = GGML_STATUS_ALLOC_FAILED;
    if (before && copy_sequence(&q, before)) {
        const uint64_t failures = gb_fail_count();
        if (improve(s, &q, limit)) {
            keep(l, &q);
        }
        status = gb_status_since(failures);
    }
    s->steps = 0;
    s->repeats = REPEATS_OF_ROUND;
    for (int round = 0, idle = 0; status == GGML_STATUS_SUCCESS && is_round_left(s, l, k, round, idle); round++) {
        const uint64_t failures = gb_fail_count();
        begin_round(s, round, limit);
        idle = simulate(s, &q) && improve(s, &q, limit) && keep(l, &q) ? 0 : idle + 1;
        status = gb_status_since(failures);
    }
    free_sequence(&q);
    return status;
}

static void add_choice(struct gb_recompute_result * result, struct sequence * q) {
    struct gb_recompute_choice * to = &result->choices[result->n_choices++];
    *to = (struct gb_recompute_choice){ q->nodes.data, (int) q->nodes.n, q->peak, q->work - result->work };
    q->nodes.data = NULL;
    q->nodes.n = q->nodes.cap = 0;
}

// Moves the sequences with less work than all with lower peaks to the result. The given order is the
// last one. False: memory ran out.
static bool take_choices(struct ladder * l, struct sequence * given, struct gb_recompute_result * result) {
    result->choices = gb_calloc((size_t) l->n + 1, sizeof(*result->choices));
    if (result->choices == NULL) {
        return false;
    }
    double work = INFINITY;
    for (int k = 0; k < l->n; k++) {
        if (l->best[k].nodes.n > 0 && l->best[k].work < work) {
            work = l->best[k].work;
            add_choice(result, &l->best[k]);
        }
    }
    add_choice(result, given);
    result->least = result->choices[0].peak;
    return true;
}

static enum ggml_status search(struct search * s, struct ladder * l, struct sequence * given,
    struct gb_recompute_result * result) {
    for (int v = 0; v < s->in->n_nodes; v++) {
        result->work += s->in->nodes[v].work;
        if (!gb_vec_push(&given->nodes, v)) {
            return GGML_STATUS_ALLOC_FAILED;
        }
    }
    struct sequence least = { 0 };
    if (!count_all(s, given) || !copy_sequence(&least, given)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    result->before = given->peak;
    result->lower_bound = lower_bound_of(s);
    enum ggml_status status = find_least(s, result->lower_bound, &least);
    l->work = given->work;
    make_ladder(s->in, least.peak, given->peak, l);
    keep(l, &least);
    free_sequence(&least);
    for (int k = 0; status == GGML_STATUS_SUCCESS && k < l->n; k++) {
        status = find_best(s, l, k);
    }
    return status == GGML_STATUS_SUCCESS && !take_choices(l, given, result) ? GGML_STATUS_ALLOC_FAILED : status;
}

enum ggml_status gb_recompute(const struct gb_recompute_input * in, struct gb_recompute_result * result) {
    GB_CHECK_ARG(in);
    GB_CHECK_ARG(result);
    *result = (struct gb_recompute_result){ 0 };
    struct search s;
    struct ladder ladder = { 0 };
    struct sequence given = { 0 };
    enum ggml_status status = GGML_STATUS_ALLOC_FAILED;
    if (init_search(&s, in) && gb_vec_reserve(&given.nodes, 1)) { // an empty sequence has an address, too
        status = search(&s, &ladder, &given, result);
    }
    free_search(&s);
    free_sequence(&given);
    for (int k = 0; k < N_LIMITS; k++) {
        free_sequence(&ladder.best[k]);
    }
    return status;
}

const struct gb_recompute_choice * gb_recompute_choose(const struct gb_recompute_result * result, size_t limit) {
    const struct gb_recompute_choice * best = NULL;
    for (int k = 0; k < result->n_choices && result->choices[k].peak <= limit; k++) {
        best = &result->choices[k];
    }
    return best;
}

void gb_recompute_free(struct gb_recompute_result * result) {
    for (int k = 0; k < result->n_choices; k++) {
        gb_free(result->choices[k].sequence);
    }
    gb_free(result->choices);
    *result = (struct gb_recompute_result){ 0 };
}
