// keep.cu - keeps data that several nodes of a graph share, see keep.h.
//
// Kept data are at the beginning of scratch memory in the order in which they are made. An
// operator's own scratch memory begins after the last of them. gb_cuda_keep searches the graph for
// later nodes that need the data, so only needed data are kept. For a fast search,
// gb_cuda_note_readers links each node with the next node that reads the same tensor.
//
// The kernel that computes activations can also convert them (norm.cu). Then their memory is
// reserved from that node on. That depends on the graph alone, so a dry run of tensors without
// memory decides the same.
//
// Invariant: kept data equal what would be made again now. A dry run of tensors without memory
// detects no writes to sources. So it keeps data at least as long as the run does, and measures
// enough memory.
#include <string.h>

#include "cuda/op.h"

enum { AHEAD = 64 }; // nodes that are searched for readers

gb_cuda_recipe gb_cuda_recipe_of(const ggml_tensor * t, const void * key, size_t key_size) {
    gb_cuda_recipe r;
    memset(static_cast<void *>(&r), 0, sizeof(r));
    r.source = t->view_src != nullptr ? t->view_src : t;
    r.offset = t->view_src != nullptr ? t->view_offs : 0;
    memcpy(r.key, key, key_size);
    return r;
}

static bool is_same(const gb_cuda_recipe & a, const gb_cuda_recipe & b) {
    return a.source == b.source && a.offset == b.offset && a.other == b.other &&
           memcmp(a.key, b.key, sizeof(a.key)) == 0;
}

// The tensor that owns the memory of the node's second operand, or NULL.
static const ggml_tensor * source_of(const ggml_tensor * node) {
    const ggml_tensor * t = node->src[1];
    return t != nullptr && t->view_src != nullptr ? t->view_src : t;
}

static bool writes_to(const gb_cuda_backend & b, const ggml_tensor * node, const ggml_tensor * source) {
    return b.kind != GB_CUDA_PLAN && gb_cuda_overlap(node, source);
}

static bool writes_to_source(const gb_cuda_backend & b, const ggml_tensor * node, const gb_cuda_recipe & r) {
    return writes_to(b, node, r.source) || (r.other != nullptr && writes_to(b, node, r.other));
}

// True if one of the nodes [from, to) writes to a source.
static bool is_written(const gb_cuda_backend & b, const gb_cuda_recipe & r, int from, int to) {
    bool found = false;
    for (int i = from; i < to && !found; i++) {
        found = writes_to_source(b, b.nodes->node[i], r);
    }
    return found;
}

// The first node from i on that reads the source; `end` or more: none.
static int reader_from(const gb_cuda_nodes & nodes, const ggml_tensor * source, int i, int end) {
    while (i < end && source_of(nodes.node[i]) != source) {
        i++;
    }
    return i;
}

// Returns the last node that needs the data before their source is written again, or the current
// node. The search begins at `known`, which needs the data or is the last node that writes the source.
// made: the last node that writes the source before the data are made; -1: none.
static int last_of(const gb_cuda_backend & b, const gb_cuda_recipe & r, int known, int made,
    gb_cuda_recipe_getter * of) {
    if (b.nodes == nullptr) {
        return b.at;
    }
    const gb_cuda_nodes & nodes = *b.nodes;
    const int end = nodes.n - b.at > AHEAD ? b.at + AHEAD + 1 : nodes.n;
    int last = known > b.at ? known : b.at;
    int seen = made < last ? last : made + 1; // no node from there to `last` writes the source
    int i = reader_from(nodes, r.source, last, end);
    for (i = i == last ? nodes.next_reader[i] : i; i < end; i = nodes.next_reader[i]) {
        gb_cuda_recipe wanted;
        if (of(b, i, &wanted) && is_same(wanted, r)) {
            if (is_written(b, r, seen, i)) {
                break;
            }
            last = seen = i;
        }
    }
    return last;
}

bool gb_cuda_note_readers(gb_array<int> & memory, const gb_cuda_nodes & nodes) {
    size_t slots = 16;
    while (slots < 2 * (size_t) nodes.n) {
        slots *= 2;
    }
    if (!memory.reserve((size_t) nodes.n + slots)) {
        return false;
    }
    int * const next = memory.data;
    int * const first = next + nodes.n; // hash table of sources: index + 1 of the first node that reads each
    memset(first, 0, slots * sizeof(int));
    for (int i = nodes.n - 1; i >= 0; i--) {
        const ggml_tensor * source = source_of(nodes.node[i]);
        size_t s = (size_t) ((uintptr_t) source * 0x9e3779b97f4a7c15u >> 20) & (slots - 1);
        while (first[s] != 0 && source_of(nodes.node[first[s] - 1]) != source) {
            s = (s + 1) & (slots - 1);
        }
        next[i] = first[s] != 0 ? first[s] - 1 : nodes.n;
        first[s] = i + 1;
    }
    return true;
}

void * gb_cuda_keep(gb_cuda_backend & b, const gb_cuda_recipe & recipe, size_t bytes, gb_cuda_recipe_getter * of,
    bool * there) {
    for (size_t i = 0; i < b.kept.n; i++) {
        gb_cuda_kept & kept = b.kept.data[i];
        if (is_same(kept.recipe, recipe)) {
            kept.last = last_of(b, recipe, kept.last, -1, of);
            *there = kept.made;
            kept.made = true;
            return kept.memory;
        }
    }
    *there = false;
    void * const memory = gb_cuda_scratch(b, bytes);
    const int last = memory != nullptr ? last_of(b, recipe, b.at, -1, of) : b.at;
    if (last > b.at && b.kept.reserve(b.kept.n + 1)) {
        b.kept.data[b.kept.n++] = { recipe, memory, b.scratch.used, last, -1, true };
    }
    return memory;
}

gb_cuda_kept * gb_cuda_keep_ahead(gb_cuda_backend & b, const gb_cuda_recipe & recipe, size_t bytes,
    gb_cuda_recipe_getter * of, int written) {
    size_t left = 0;
    for (size_t i = 0; i < b.kept.n; i++) { // drops data of the old source
        if (!is_same(b.kept.data[i].recipe, recipe)) {
            b.kept.data[left++] = b.kept.data[i];
        }
    }
    b.kept.n = left;
    const int last = last_of(b, recipe, written, written, of);
    void * const memory = last > written && b.kept.reserve(left + 1) ? gb_cuda_scratch(b, bytes) : nullptr;
    if (memory == nullptr) {
        return nullptr;
    }
    b.kept.data[b.kept.n++] = { recipe, memory, b.scratch.used, last, written, false };
    return &b.kept.data[left];
}

void gb_cuda_kept_settle(gb_cuda_backend & b, const gb_cuda_nodes & nodes, int i, int n) {
    size_t left = 0;
    for (size_t k = 0; k < b.kept.n; k++) {
        bool lives = b.kept.data[k].last >= i + n;
        const int from = b.kept.data[k].written < i ? i : b.kept.data[k].written + 1;
        for (int j = from; j < i + n && lives; j++) {
            lives = !writes_to_source(b, nodes.node[j], b.kept.data[k].recipe);
        }
        if (lives) {
            b.kept.data[left++] = b.kept.data[k];
        }
    }
    b.kept.n = left;
}

size_t gb_cuda_kept_end(const gb_cuda_backend & b) {
    size_t end = 0;
    for (size_t i = 0; i < b.kept.n; i++) {
        end = b.kept.data[i].end > end ? b.kept.data[i].end : end;
    }
    return end;
}
