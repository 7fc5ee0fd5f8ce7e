// reorder.c - beam search for an order of a graph's nodes with fewer bytes alive at the same time.
//
// A state is the set of nodes that have run. All states of a step have the same number of nodes.
// Each state is extended by every node that may run next, and the best results are the states of
// the next step. If two states have the same set, the one with the higher peak is dropped. Between
// two layers of a chain, one state remains. A node that raises neither the peak nor the bytes alive
// runs at once. States whose peak is not below that of the given order are dropped, so an order
// without a gain is never returned.
//
// A set is small: all nodes before `first`, and those of the next WINDOW nodes whose bit is set.
// The set and the lists of `graph` decide which nodes may run. Results in place depend on the order.
// So the search itself decides which storages die. liveness.c gives the storages, and the sources
// that a node may overwrite.
#include "alloc/reorder.h"

#include <stdlib.h>
#include <string.h>

#include "base/current.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/vec.h"
#include "tensor/tensor.h"

enum { WINDOW = 512, WORDS = WINDOW / 64, BEAM = 32, READY_MAX = 32, NONE = -1 };

// A list of numbers per owner. The numbers of owner i are data[start[i]] to data[start[i + 1] - 1].
struct list {
    int * start; // owned
    int * data; // owned
};

struct graph { // the input of the search
    const struct gb_liveness_input * in;
    struct gb_liveness apart; // items without results in place: the storages
    struct list before; // per node: nodes that must run before it; may repeat
    struct list storages; // per node: storages that it uses, each once
    struct list touched_by; // per storage: nodes that use it, ascending
    int * makes; // owned; per node: the storage that begins with it; NONE
    int n, n_arenas;
};

// The nodes that have run, the largest load so far and the bytes alive, summed over the arenas.
struct state {
    uint64_t done[WORDS]; // bit i: node first + i
    uint64_t hash; // of the set
    int first;
    size_t peak_sum, live_sum;
};

struct step { // the predecessor of a state
    int parent, node;
};

struct move { // a possible next state
    int parent, node;
    uint64_t hash;
    size_t peak_sum, live_sum;
};

// States of this step and of the next. All steps are stored, because the last state decides which
// path is the best.
struct search {
    const struct graph * g;
    struct state * states[2]; // owned; of this step and of the next
    size_t * bytes[2]; // owned; per state: live, then peak, of each arena
    int n_states;
    struct move * moves; // owned
    int n_moves;
    struct step * steps; // owned; n * BEAM
    size_t limit; // bytes; peaks must be smaller
};

// --------------------------------------------------------------------------------------------------------------- lists

struct pair {
    int owner, value;
};

typedef GB_VEC(struct pair) pairs_t;

static bool add_pair(pairs_t * pairs, int owner, int value) {
    return gb_vec_push(pairs, ((struct pair){ owner, value }));
}

// Keeps the order in which pairs were added.
static bool make_list(struct list * list, int n_owners, const pairs_t * pairs) {
    list->start = gb_calloc((size_t) n_owners + 2, sizeof(int));
    list->data = gb_calloc(pairs->n + 1, sizeof(int));
    if (!list->start || !list->data) {
        return false;
    }
    for (size_t k = 0; k < pairs->n; k++) {
        list->start[pairs->data[k].owner + 2]++;
    }
    for (int i = 2; i < n_owners + 2; i++) {
        list->start[i] += list->start[i - 1];
    }
    for (size_t k = 0; k < pairs->n; k++) {
        list->data[list->start[pairs->data[k].owner + 1]++] = pairs->data[k].value;
    }
    return true;
}

static void free_list(struct list * list) {
    gb_free(list->start);
    gb_free(list->data);
}

// --------------------------------------------------------------------------------------------------------------- graph

static bool writes(const struct ggml_tensor * node) { return gb_op_computes(node->op); }

// The storage of the node's slot s. NONE: it is not to be placed.
static int storage_of(const struct graph * g, int node, int s) {
    const int32_t id = g->apart.ids[(size_t) node * GB_LIVE_SLOTS + (size_t) s];
    return id < 0 ? NONE : (int) g->apart.item_of[id];
}

// The last node that wrote a piece of memory, and a chain of the nodes that have read it since. By
// owner, placed or not.
struct last {
    int writer, readers; // readers: the newest link
};

struct link {
    int node, next;
};

struct history {
    struct gb_ptrmap index; // owner -> index in `last`
    GB_VEC(struct last) last;
    GB_VEC(struct link) links;
};

static void free_history(struct history * h) {
    gb_ptrmap_free(&h->index);
    gb_vec_free(&h->last);
    gb_vec_free(&h->links);
}

// Records that `node` uses the memory of `root`. A reader comes after the last writer. A writer
// comes after all uses since the last write. Readers of the same content may be exchanged.
static bool touch(struct history * h, pairs_t * before, const struct ggml_tensor * root, int node, bool write) {
    int64_t at = gb_ptrmap_get(&h->index, root);
    if (at == GB_PTRMAP_ABSENT) {
        at = (int64_t) h->last.n;
        if (!gb_vec_push(&h->last, ((struct last){ NONE, NONE })) || !gb_ptrmap_set(&h->index, root, at)) {
            return false;
        }
    }
    struct last * last = &h->last.data[at];
    bool ok = last->writer == NONE || last->writer == node || add_pair(before, node, last->writer);
    if (write) {
        for (int k = last->readers; ok && k != NONE; k = h->links.data[k].next) {
            ok = h->links.data[k].node == node || add_pair(before, node, h->links.data[k].node);
        }
        *last = (struct last){ node, NONE };
        return ok;
    }
    ok = ok && gb_vec_push(&h->links, ((struct link){ node, last->readers }));
    last->readers = (int) h->links.n - 1;
    return ok;
}

// Custom operators keep their order, because they may use memory that is no source.
static bool find_order(struct graph * g, struct history * h, pairs_t * before) {
    int custom = NONE;
    bool ok = gb_ptrmap_reserve(&h->index, (size_t) g->n);
    for (int i = 0; ok && i < g->n; i++) {
        const struct ggml_tensor * node = g->in->nodes[i];
        for (int s = 0; ok && s < GGML_MAX_SRC; s++) {
            ok = node->src[s] == NULL || node->src[s] == node || touch(h, before, gb_root(node->src[s]), i, false);
        }
        ok = ok && touch(h, before, gb_root(node), i, writes(node));
        if (ok && gb_op_is_custom(node->op)) {
            ok = custom == NONE || add_pair(before, i, custom);
            custom = i;
        }
    }
    return ok;
}

// A view begins no storage, but its readers must come after it.
static bool order_by_sources(struct graph * g, struct gb_ptrmap * position, pairs_t * before) {
    bool ok = gb_ptrmap_reserve(position, (size_t) g->n);
    for (int i = 0; ok && i < g->n; i++) {
        const struct ggml_tensor * node = g->in->nodes[i];
        for (int s = 0; ok && s <= GGML_MAX_SRC; s++) {
            const struct ggml_tensor * src = s < GGML_MAX_SRC ? node->src[s] : node->view_src;
            const int64_t at = src && src != node ? gb_ptrmap_get(position, src) : GB_PTRMAP_ABSENT;
            ok = at == GB_PTRMAP_ABSENT || add_pair(before, i, (int) at);
        }
        ok = ok && gb_ptrmap_set(position, node, i);
    }
    return ok;
}

// A linear search: a node uses at most GB_LIVE_SLOTS storages.
static bool is_among(const pairs_t * pairs, size_t from, int value) {
    for (size_t k = from; k < pairs->n; k++) {
        if (pairs->data[k].value == value) {
            return true;
        }
    }
    return false;
}

// Lists the storages of each node, the nodes of each storage, and the storage that begins with each node.
static bool find_storages(struct graph * g, pairs_t * storages, pairs_t * touched_by) {
    bool ok = true;
    for (int i = 0; ok && i < g->n; i++) {
        const struct ggml_tensor * node = g->in->nodes[i];
        const size_t from = storages->n;
        g->makes[i] = NONE;
        for (int s = 0; ok && s < GB_LIVE_SLOTS; s++) {
            const int id = storage_of(g, i, s);
            if (id != NONE && !is_among(storages, from, id)) {
                ok = add_pair(storages, i, id) && add_pair(touched_by, id, i);
            }
        }
        const int own = storage_of(g, i, GGML_MAX_SRC);
        if (own != NONE && g->apart.items[own].tensor == node && !g->apart.items[own].from_start) {
            g->makes[i] = own;
        }
    }
    return ok;
}

// Collects the input of the search. Computes lifetimes without results in place; `is_in_place`
// decides these per state.
static enum ggml_status know_graph(struct graph * g, const struct gb_liveness_input * in) {
    struct gb_liveness_input apart = *in;
    apart.no_join = true;
    *g = (struct graph){ .in = in, .n = in->n_nodes };
    GB_TRY(gb_liveness_compute(&apart, &g->apart));
    for (size_t k = 0; k < g->apart.n_items; k++) {
        g->n_arenas = GB_MAX(g->n_arenas, g->apart.items[k].arena + 1);
    }
    pairs_t before = { 0 }, storages = { 0 }, touched_by = { 0 };
    struct history h = { 0 };
    struct gb_ptrmap position = { 0 };
    g->makes = gb_calloc((size_t) g->n + 1, sizeof(*g->makes));
    const bool ok = g->makes && find_order(g, &h, &before) && order_by_sources(g, &position, &before) &&
                    find_storages(g, &storages, &touched_by) && make_list(&g->before, g->n, &before) &&
                    make_list(&g->storages, g->n, &storages) &&
                    make_list(&g->touched_by, (int) g->apart.n_items, &touched_by);
    free_history(&h);
    gb_ptrmap_free(&position);
    gb_vec_free(&before);
    gb_vec_free(&storages);
    gb_vec_free(&touched_by);
    return ok ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}

static void free_graph(struct graph * g) {
    gb_liveness_free(&g->apart);
    free_list(&g->before);
    free_list(&g->storages);
    free_list(&g->touched_by);
    gb_free(g->makes);
}

// -------------------------------------------------------------------------------------------------------------- states

static bool has_run(const struct state * s, int node) {
    const int i = node - s->first;
    return i < 0 || (i < WINDOW && (s->done[i / 64] >> (i % 64) & 1) != 0);
}

// True if all nodes that must come before it have run.
static bool can_run(const struct graph * g, const struct state * s, int node) {
    for (int k = g->before.start[node]; k < g->before.start[node + 1]; k++) {
        if (!has_run(s, g->before.data[k])) {
            return false;
        }
    }
    return true;
}

// True if no other node will use the storage. Tests the last users first, because they have most
// probably not run.
static bool dies_in(const struct graph * g, const struct state * s, int storage, int node) {
    for (int k = g->touched_by.start[storage + 1]; k-- > g->touched_by.start[storage];) {
        if (g->touched_by.data[k] != node && !has_run(s, g->touched_by.data[k])) {
            return false;
        }
    }
    return !g->apart.items[storage].to_end;
}

// True if the node reuses the memory of a source of equal size, by the rule of plans.
static bool is_in_place(const struct graph * g, const struct state * s, int node) {
    const struct ggml_tensor * t = g->in->nodes[node];
    const int32_t * ids = g->apart.ids + (size_t) node * GB_LIVE_SLOTS;
    const struct gb_live_item * own = &g->apart.items[g->makes[node]];
    for (int k = 0; k < GGML_MAX_SRC; k++) {
        const int id = t->src[k] && gb_plan_can_write_over(t, k) ? storage_of(g, node, k) : NONE;
        if (id != NONE && id != g->makes[node] && g->apart.items[id].arena == own->arena &&
            g->apart.items[id].size == own->size && dies_in(g, s, id, node) && gb_live_reads_in_place(t, ids, ids[k])) {
            return true;
        }
    }
    return false;
}

// Updates the bytes alive and the peak of each arena after the node.
static void count_bytes(const struct graph * g, const struct state * s, size_t * bytes, int node) {
    size_t *live = bytes, *peak = bytes + g->n_arenas;
    const int made = g->makes[node];
    if (made != NONE) {
        const struct gb_live_item * own = &g->apart.items[made];
        const size_t first = is_in_place(g, s, node) ? own->size : 0;
        live[own->arena] += own->size;
        peak[own->arena] = GB_MAX(peak[own->arena], live[own->arena] - first);
    }
    for (int k = g->storages.start[node]; k < g->storages.start[node + 1]; k++) {
        const int id = g->storages.data[k];
        if (dies_in(g, s, id, node)) {
            live[g->apart.items[id].arena] -= g->apart.items[id].size;
        }
    }
}

static size_t sum_of(const size_t * bytes, int n) {
    size_t sum = 0;
    for (int i = 0; i < n; i++) {
        sum += bytes[i];
    }
    return sum;
}

static uint64_t hash_of(int node) { // splitmix64; the sum over a set is its hash
    uint64_t x = ((uint64_t) node + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

// Adds the node to the set and advances `first`.
static void mark_run(struct state * s, int node) {
    const int i = node - s->first;
    s->done[i / 64] |= (uint64_t) 1 << (i % 64);
    s->hash += hash_of(node);
    while (s->done[0] & 1) {
        for (int w = 0; w < WORDS; w++) {
            s->done[w] = s->done[w] >> 1 | (w + 1 < WORDS ? s->done[w + 1] << 63 : 0);
        }
        s->first++;
    }
}

// Storages alive before the first node: content from outside.
static void start_bytes(const struct graph * g, size_t * bytes) {
    memset(bytes, 0, 2 * (size_t) g->n_arenas * sizeof(*bytes));
    for (size_t k = 0; k < g->apart.n_items; k++) {
        const struct gb_live_item * item = &g->apart.items[k];
        bytes[item->arena] += item->from_start ? item->size : 0;
    }
    memcpy(bytes + g->n_arenas, bytes, (size_t) g->n_arenas * sizeof(*bytes));
}

// -------------------------------------------------------------------------------------------------------------- search

static size_t * bytes_of(const struct search * s, int which, int state) {
    return s->bytes[which] + (size_t) state * 2 * (size_t) s->g->n_arenas;
}

// Compares by peak, then by bytes alive, then by the given order.
static int by_promise(const void * pa, const void * pb) {
    const struct move *a = pa, *b = pb;
    if (a->peak_sum != b->peak_sum) {
        return a->peak_sum < b->peak_sum ? -1 : 1;
    }
    if (a->live_sum != b->live_sum) {
        return a->live_sum < b->live_sum ? -1 : 1;
    }
    if (a->node != b->node) {
        return a->node < b->node ? -1 : 1;
    }
    return a->parent < b->parent ? -1 : a->parent > b->parent;
}

// Keeps the best moves of a state, which begin at `from`.
static void add_move(struct search * s, int from, const struct move * move) {
    int worst = from;
    if (move->peak_sum >= s->limit) {
        return;
    }
    if (s->n_moves - from < READY_MAX) {
        s->moves[s->n_moves++] = *move;
        return;
    }
    for (int k = from + 1; k < s->n_moves; k++) {
        worst = by_promise(&s->moves[k], &s->moves[worst]) > 0 ? k : worst;
    }
    if (by_promise(move, &s->moves[worst]) < 0) {
        s->moves[worst] = *move;
    }
}

// Lists the moves of a state. If a node raises neither peak nor bytes alive, it is the only move.
static void find_moves(struct search * s, int which, int state) {
    const struct graph * g = s->g;
    const struct state * from = &s->states[which][state];
    const int n_old = s->n_moves, arenas = g->n_arenas;
    size_t * trial = bytes_of(s, which, BEAM); // the entry after those of all states
    const int window = GB_MIN(g->n, from->first + WINDOW);
    for (int node = from->first; node < window; node++) {
        if (has_run(from, node) || !can_run(g, from, node)) {
            continue;
        }
        memcpy(trial, bytes_of(s, which, state), 2 * (size_t) arenas * sizeof(*trial));
        count_bytes(g, from, trial, node);
        const struct move move = { state, node, from->hash + hash_of(node), sum_of(trial + arenas, arenas),
            sum_of(trial, arenas) };
        const bool harmless = move.peak_sum <= from->peak_sum && move.live_sum <= from->live_sum;
        s->n_moves = harmless ? n_old : s->n_moves;
        add_move(s, n_old, &move);
        if (harmless) {
            return;
        }
    }
}

// Compares only hashes, because a collision merely drops a state.
static bool is_new(const struct state * states, int n, const struct move * move) {
    for (int i = 0; i < n; i++) {
        if (states[i].hash == move->hash) {
            return false; // an equal set has a peak that is not higher
        }
    }
    return true;
}

// Makes the states of the next step. False: no state is left.
static bool advance(struct search * s, int which, int step) {
    const struct graph * g = s->g;
    int n = 0;
    s->n_moves = 0;
    for (int i = 0; i < s->n_states; i++) {
        find_moves(s, which, i);
    }
    qsort(s->moves, (size_t) s->n_moves, sizeof(*s->moves), by_promise);
    for (int k = 0; k < s->n_moves && n < BEAM; k++) {
        const struct move * move = &s->moves[k];
        if (is_new(s->states[!which], n, move)) {
            struct state * to = &s->states[!which][n];
            *to = s->states[which][move->parent];
            memcpy(bytes_of(s, !which, n), bytes_of(s, which, move->parent), 2 * (size_t) g->n_arenas * sizeof(size_t));
            count_bytes(g, &s->states[which][move->parent], bytes_of(s, !which, n), move->node);
            mark_run(to, move->node);
            to->peak_sum = move->peak_sum;
            to->live_sum = move->live_sum;
            s->steps[(size_t) step * BEAM + (size_t) n++] = (struct step){ move->parent, move->node };
        }
    }
    s->n_states = n;
    return n > 0;
}

// The state in which no node has run.
static void first_state(struct search * s) {
    s->n_states = 1;
    s->states[0][0] = (struct state){ .first = 0 };
    start_bytes(s->g, bytes_of(s, 0, 0));
    s->states[0][0].live_sum = sum_of(bytes_of(s, 0, 0), s->g->n_arenas);
    s->states[0][0].peak_sum = s->states[0][0].live_sum;
}

// The peak of the given order, as the search counts it.
static size_t given_peak(struct search * s) {
    struct state state = { .first = 0 };
    size_t * bytes = bytes_of(s, 0, 0);
    start_bytes(s->g, bytes);
    for (int node = 0; node < s->g->n; node++) {
        count_bytes(s->g, &state, bytes, node);
        mark_run(&state, node);
    }
    return sum_of(bytes + s->g->n_arenas, s->g->n_arenas);
}

// Runs one node per step. If no state is left, every path exceeds the peak of the given order,
// which is kept.
static enum ggml_status find_path(struct search * s, int * order, bool * found) {
    const int n = s->g->n;
    *found = false;
    s->limit = given_peak(s);
    first_state(s);
    for (int step = 0; step < n; step++) {
        GB_TRY(gb_check_poll());
        if (!advance(s, step % 2, step)) {
            return GGML_STATUS_SUCCESS;
        }
    }
    for (int step = n - 1, state = 0; step >= 0; step--) { // the first state is the best
        const struct step * back = &s->steps[(size_t) step * BEAM + (size_t) state];
        order[step] = back->node;
        state = back->parent;
    }
    *found = true;
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status search(const struct graph * g, int * order, bool * found) {
    const size_t row = 2 * (size_t) g->n_arenas;
    struct search s = { .g = g };
    s.moves = gb_calloc((size_t) BEAM * READY_MAX, sizeof(*s.moves));
    s.steps = gb_calloc((size_t) g->n * BEAM + 1, sizeof(*s.steps));
    bool ok = s.moves && s.steps;
    for (int i = 0; i < 2; i++) {
        s.states[i] = gb_calloc(BEAM, sizeof(*s.states[i]));
        s.bytes[i] = gb_calloc((BEAM + 1) * row + 1, sizeof(*s.bytes[i]));
        ok = ok && s.states[i] && s.bytes[i];
    }
    const enum ggml_status status = ok ? find_path(&s, order, found) : GGML_STATUS_ALLOC_FAILED;
    for (int i = 0; i < 2; i++) {
        gb_free(s.states[i]);
        gb_free(s.bytes[i]);
    }
    gb_free(s.moves);
    gb_free(s.steps);
    return status;
}

// -------------------------------------------------------------------------------------------------------------- result

// The largest loads of a list of nodes, summed.
static enum ggml_status measure(const struct gb_liveness_input * in, size_t * sum) {
    struct gb_liveness l;
    GB_TRY(gb_liveness_compute(in, &l));
    const enum ggml_status status = gb_liveness_load(&l, in->n_nodes, sum);
    gb_liveness_free(&l);
    return status;
}

// The largest loads in another order, summed. A plan has more results in place than the search
// counts, so this number decides.
static enum ggml_status measure_order(const struct gb_liveness_input * in, const int * order, size_t * sum) {
    struct ggml_tensor ** nodes = gb_calloc((size_t) in->n_nodes + 1, sizeof(*nodes));
    struct gb_liveness_input other = *in;
    if (nodes == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    for (int k = 0; k < in->n_nodes; k++) {
        nodes[k] = in->nodes[order[k]];
    }
    other.nodes = nodes;
    const enum ggml_status status = measure(&other, sum);
    gb_free(nodes);
    return status;
}

// Returns the given order.
static void keep_order(const struct gb_liveness_input * in, int * order, struct gb_reorder_result * result) {
    for (int i = 0; i < in->n_nodes; i++) {
        order[i] = i;
    }
    result->after = result->before;
    result->changed = false;
}

static enum ggml_status reorder(const struct gb_liveness_input * in, struct graph * g, int * order,
    struct gb_reorder_result * result) {
    GB_TRY(measure(in, &result->before));
    GB_TRY(know_graph(g, in));
    GB_TRY(search(g, order, &result->changed));
    if (result->changed) {
        GB_TRY(measure_order(in, order, &result->after));
    }
    if (!result->changed || result->after >= result->before) {
        keep_order(in, order, result);
    }
    return GGML_STATUS_SUCCESS;
}

enum ggml_status gb_reorder(const struct gb_liveness_input * in, int * order, struct gb_reorder_result * result) {
    GB_CHECK_ARG(in);
    GB_CHECK_ARG(order);
    GB_CHECK_ARG(result);
    struct graph g = { 0 };
    const enum ggml_status status = reorder(in, &g, order, result);
    free_graph(&g);
    return status;
}
