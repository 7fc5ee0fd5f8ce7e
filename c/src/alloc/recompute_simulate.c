// recompute_simulate.c - runs the nodes in order within a limit (recompute_search.h).
//
// If a node does not fit, the simulation drops storages. Before a node reads a dropped storage, the
// storage's maker runs again. If the maker reads dropped storages, their makers run before it: the
// most expensive source first, so that few other sources wait in memory. The storage to drop is the
// cheapest by
//
//     work to get it back / (bytes * time until the next use ^ exponent)
//
// (Kirisame et al. 2021, with the known next use instead of the last one.) The work includes all
// dropped storages that would have to run again before. A storage without a reader of its own stays
// while a dropped storage needs it. Sources that wait are dropped, too, if nothing else is left.
// Otherwise a long chain of nodes to run again keeps the other sources of all its nodes.
//
// A dropped storage is computed again as late as possible: right before its next use, or before the
// node that overwrites its maker's sources. In eager rounds some are computed earlier, so that their
// sources die earlier. A node whose result was dropped before its first use runs only later.
#include "alloc/recompute_search.h"

#include <limits.h>
#include <math.h>

#include "base/current.h"
#include "base/status.h"

enum {
    NEVER = INT_MAX,
    TRIES_MAX = 12, // sources of a waiting node that run again
};

// A storage that cannot be computed again at its next use has to be there before its maker's sources
// are overwritten.
static void bring_forward(struct gb_recompute_search * s, int storage, int from) {
    const int until = s->in->storages[storage].valid_until;
    if (until >= from && s->next[storage] < NEVER) {
        s->next[storage] = GB_MIN(s->next[storage], until);
    }
}

// Finds the next use of each storage, by nodes from `from` on and by makers of dropped storages. The
// node `running` has its sources already.
static void find_next(struct gb_recompute_search * s, int from, int running) {
    const struct gb_recompute_input * in = s->in;
    for (int i = 0; i < in->n_storages; i++) {
        s->next[i] = in->storages[i].to_end ? in->n_nodes : NEVER;
    }
    for (int v = in->n_nodes - 1; v >= 0; v--) {
        const struct gb_recompute_node * node = &in->nodes[v];
        if (node->makes != GB_RECOMPUTE_NONE) {
            bring_forward(s, node->makes, from);
        }
        const bool is_dropped = v != running && node->makes != GB_RECOMPUTE_NONE && !s->resident[node->makes];
        const int use = v >= from ? v : is_dropped ? s->next[node->makes] : NEVER;
        for (int k = 0; k < node->n_reads; k++) {
            s->next[node->reads[k]] = GB_MIN(s->next[node->reads[k]], use);
        }
        s->steps += 4;
    }
}

static void drop(struct gb_recompute_search * s, int storage) {
    s->resident[storage] = false;
    s->live -= s->in->storages[storage].size;
}

// True if the storage can be computed right before the node `when`, or earlier.
static bool can_repeat(const struct gb_recompute_search * s, int storage, int when) {
    return s->in->storages[storage].may_repeat && s->in->storages[storage].valid_until >= when;
}

// The work to compute a storage again for its next use, with all sources that are dropped. Negative:
// it cannot be computed, or memory ran out. Sources that cannot be computed again stay, because
// find_next counts this use.
static double work_to_repeat(struct gb_recompute_search * s, int storage) {
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
static bool can_overwrite(const struct gb_recompute_search * s, const struct gb_recompute_node * node, int i) {
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
static bool can_drop(const struct gb_recompute_search * s, const struct gb_recompute_node * over, int i) {
    const struct gb_recompute_storage * storage = &s->in->storages[i];
    return s->resident[i] && !storage->to_end && storage->size > 0 &&
           (s->next[i] == NEVER || can_repeat(s, i, s->next[i])) &&
           (!s->held[i] || (over && can_overwrite(s, over, i)));
}

static double work_of_maker(const struct gb_recompute_search * s, int storage) {
    const int maker = s->in->storages[storage].maker;
    return maker == GB_RECOMPUTE_NONE ? 0 : s->in->nodes[maker].work;
}

// The storage that is cheapest to drop. NONE: no storage can be dropped.
static int cheapest(struct gb_recompute_search * s, const struct gb_recompute_node * over, int from) {
    int best = GB_RECOMPUTE_NONE;
    double lowest = 0;
    bool best_waits = true;
    for (int i = 0; i < s->in->n_storages; i++) {
        s->steps++;
        const bool waits = s->keeps_waiting && s->waiting[i] > (int) s->held[i];
        if ((waits && !best_waits) || !can_drop(s, over, i)) {
            continue;
        }
        const bool is_dead = s->next[i] == NEVER;
        const double work = is_dead ? work_of_maker(s, i) : work_to_repeat(s, i);
        const double time = (double) ((is_dead ? s->in->n_nodes : s->next[i]) - from + 1);
        if (work < 0) {
            continue;
        }
        const double factor = s->noise > 0 ? exp(s->noise * (gb_recompute_random(s) - 0.5)) : 1;
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
static int read_to_overwrite(const struct gb_recompute_search * s, const struct gb_recompute_node * node) {
    for (int k = 0; k < node->n_reads; k++) {
        if (s->next[node->reads[k]] == NEVER && can_overwrite(s, node, node->reads[k])) {
            return node->reads[k];
        }
    }
    return GB_RECOMPUTE_NONE;
}

// Drops storages until the result of the node fits. `from`: the first node that has not run after
// it. False: it does not fit.
static bool make_room(struct gb_recompute_search * s, int running, int from) {
    const struct gb_recompute_node * node = &s->in->nodes[running];
    const size_t size = node->makes == GB_RECOMPUTE_NONE ? 0 : s->in->storages[node->makes].size;
    if (s->live + size <= s->limit) {
        return true;
    }
    find_next(s, from, running);
    for (int i = 0; i < s->in->n_storages; i++) {
        if (!s->keeps_dead && s->resident[i] && !s->held[i] && s->next[i] == NEVER) {
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

static bool enter(struct gb_recompute_search * s, int node) {
    for (int k = 0; k < s->in->nodes[node].n_reads; k++) {
        s->waiting[s->in->nodes[node].reads[k]]++;
    }
    s->tries[node] = 0;
    return gb_vec_push(&s->stack, node);
}

static void leave(struct gb_recompute_search * s) {
    const struct gb_recompute_node * node = &s->in->nodes[s->stack.data[--s->stack.n]];
    for (int k = 0; k < node->n_reads; k++) {
        s->waiting[node->reads[k]]--;
    }
}

static void hold(struct gb_recompute_search * s, int node, bool is_held) {
    for (int k = 0; k < s->in->nodes[node].n_reads; k++) {
        s->held[s->in->nodes[node].reads[k]] = is_held;
    }
}

// The source to compute next: the most expensive one that is not there, or in some rounds the first
// one in another order. NONE: all are there.
static int missing(struct gb_recompute_search * s, int node) {
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

// A storage that is not there and cannot be computed again after node `base`, but is needed later.
// NONE: there is none.
static int expiring(struct gb_recompute_search * s, int base) {
    bool is_counted = false;
    for (int i = 0; s->expires[base] && i < s->in->n_storages; i++) {
        const struct gb_recompute_storage * storage = &s->in->storages[i];
        if (s->resident[i] || !storage->may_repeat || storage->valid_until != base || storage->maker >= base) {
            continue;
        }
        if (!is_counted) {
            find_next(s, base, GB_RECOMPUTE_NONE);
            is_counted = true;
        }
        if (s->next[i] == base) {
            return i;
        }
    }
    return GB_RECOMPUTE_NONE;
}

static bool has_sources(const struct gb_recompute_search * s, const struct gb_recompute_node * node) {
    for (int k = 0; k < node->n_reads; k++) {
        if (!s->resident[node->reads[k]]) {
            return false;
        }
    }
    return true;
}

// A storage that is needed later and is computed again already before node `base`, because its sources
// are there now. Chosen by chance. NONE: there is none.
static int early(struct gb_recompute_search * s, int base) {
    if (s->eager <= 0 || s->tries[base] >= TRIES_MAX || gb_recompute_random(s) >= s->eager) {
        return GB_RECOMPUTE_NONE;
    }
    find_next(s, base, GB_RECOMPUTE_NONE);
    int chosen = GB_RECOMPUTE_NONE, n = 0;
    for (int i = 0; i < s->in->n_storages; i++) {
        const int maker = s->in->storages[i].maker;
        s->steps++;
        if (!s->resident[i] && maker < base && maker != GB_RECOMPUTE_NONE && s->next[i] < NEVER &&
            can_repeat(s, i, base) && has_sources(s, &s->in->nodes[maker]) && gb_recompute_random(s) * ++n < 1) {
            chosen = i;
        }
    }
    return chosen;
}

// True if the node need not run in its place, because it can run right before its first reader.
static bool can_wait(struct gb_recompute_search * s, int node) {
    const int made = s->in->nodes[node].makes;
    if (made == GB_RECOMPUTE_NONE || s->in->storages[made].to_end) {
        return false;
    }
    find_next(s, node + 1, GB_RECOMPUTE_NONE);
    return can_repeat(s, made, s->next[made]) && work_to_repeat(s, made) >= 0;
}

// Runs node `base` of the given order, after what must run again for it.
static bool run_now(struct gb_recompute_search * s, struct gb_recompute_sequence * q, int base) {
    const size_t most = (size_t) s->repeats * (size_t) s->in->n_nodes + 64;
    bool ok = enter(s, base);
    while (ok && s->stack.n > 0 && q->nodes.n < most) {
        const int v = s->stack.data[s->stack.n - 1];
        int absent = missing(s, v);
        absent = absent == GB_RECOMPUTE_NONE && v == base ? expiring(s, base) : absent;
        absent = absent == GB_RECOMPUTE_NONE && v == base ? early(s, base) : absent;
        if (absent != GB_RECOMPUTE_NONE) {
            ok = can_repeat(s, absent, base) && ++s->tries[v] <= TRIES_MAX && enter(s, s->in->storages[absent].maker);
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
static bool run_node(struct gb_recompute_search * s, struct gb_recompute_sequence * q, int base) {
    if (s->lazy > 0 && gb_recompute_random(s) < s->lazy && can_wait(s, base)) {
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

bool gb_recompute_simulate(struct gb_recompute_search * s, struct gb_recompute_sequence * q) {
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
