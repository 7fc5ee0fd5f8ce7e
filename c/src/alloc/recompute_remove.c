// recompute_remove.c - removes repetitions that are not needed (recompute_search.h).
#include "alloc/recompute_search.h"

#include <stdlib.h>
#include <string.h>

#include "base/current.h"
#include "base/mem.h"
#include "base/status.h"

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

// The first position at which memory can become free if position p is removed: its sources die
// earlier or are removed, too. Memory ran out: 0.
static int first_freed(struct gb_recompute_search * s, const struct gb_recompute_sequence * q, int p) {
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
static bool cannot_remove(struct gb_recompute_search * s, const struct gb_recompute_sequence * q, int p, size_t limit) {
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
static bool remove_each(struct gb_recompute_search * s, struct gb_recompute_sequence * q,
    const struct repetition * list, size_t n, size_t limit, bool * saved) {
    bool ok = true;
    for (size_t i = 0; ok && i < n; i++) {
        if (s->skip.data[list[i].position] || cannot_remove(s, q, list[i].position, limit)) {
            continue;
        }
        memcpy(saved, s->skip.data, q->nodes.n * sizeof(bool));
        s->skip.data[list[i].position] = true;
        ok = gb_check_poll() == GGML_STATUS_SUCCESS && gb_recompute_count(s, q);
        if (ok && q->peak > limit) {
            memcpy(s->skip.data, saved, q->nodes.n * sizeof(bool));
            ok = gb_recompute_count(s, q);
        }
    }
    return ok;
}

// Lists the positions at which a node runs that has run before. `ran`: by node, all false.
static size_t find_repetitions(const struct gb_recompute_search * s, const struct gb_recompute_sequence * q, bool * ran,
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

bool gb_recompute_remove(struct gb_recompute_search * s, struct gb_recompute_sequence * q, size_t limit) {
    struct repetition * list = gb_calloc(q->nodes.n + 1, sizeof(*list));
    bool * saved = gb_calloc(q->nodes.n + (size_t) s->in->n_nodes + 1, sizeof(*saved));
    bool ok = list && saved && gb_recompute_count_all(s, q);
    if (ok) {
        const size_t n = find_repetitions(s, q, saved, list);
        qsort(list, n, sizeof(*list), by_work);
        ok = remove_each(s, q, list, n, limit, saved);
        gb_recompute_compact(s, q);
    }
    gb_free(list);
    gb_free(saved);
    return ok;
}
