// recompute_sequence.c - the peak and the work of a sequence (recompute_search.h).
#include "alloc/recompute_search.h"

void gb_recompute_free_sequence(struct gb_recompute_sequence * q) { gb_vec_free(&q->nodes); }

bool gb_recompute_copy(struct gb_recompute_sequence * to, const struct gb_recompute_sequence * from) {
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

// Finds the content that each node reads. Marks nodes whose content nobody reads: the storage was
// dropped before its first use. False: a node reads a storage before its maker.
static bool find_contents(struct gb_recompute_search * s, const struct gb_recompute_sequence * q) {
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
static size_t count_node(const struct gb_recompute_search * s, const struct gb_recompute_sequence * q, int k,
    size_t live, size_t * level) {
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

bool gb_recompute_count(struct gb_recompute_search * s, struct gb_recompute_sequence * q) {
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

bool gb_recompute_count_all(struct gb_recompute_search * s, struct gb_recompute_sequence * q) {
    s->skip.n = 0;
    return gb_vec_resize_zero(&s->skip, q->nodes.n) && gb_recompute_count(s, q);
}

void gb_recompute_compact(const struct gb_recompute_search * s, struct gb_recompute_sequence * q) {
    size_t n = 0;
    for (size_t k = 0; k < q->nodes.n; k++) {
        if (!s->skip.data[k]) {
            q->nodes.data[n++] = q->nodes.data[k];
        }
    }
    q->nodes.n = n;
}
