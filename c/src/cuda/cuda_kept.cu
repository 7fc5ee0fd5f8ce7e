// cuda_kept.cu - what several nodes of a graph share is made once: rows of activations that several products read,
// tables of sines and cosines.
//
// Kept things lie at the beginning of the scratch memory, one after the other as they are made; an operator's own
// scratch memory begins behind the last that lives. Which nodes want one is looked up in the graph when it is made and
// when it is used again, so nothing is kept for nobody.
//
// Invariant: what is kept is what would be made again now. In a dry run of tensors without memory nobody is known to
// write to a source, so there things live at least as long as they will, and their memory is enough.
#include <string.h>

#include "cuda.h"

enum { AHEAD = 64 }; // nodes that are looked at

gb_cuda_recipe gb_cuda_recipe_of(const ggml_tensor * t, const void * key, size_t key_size) {
    gb_cuda_recipe r;
    memset(static_cast<void *>(&r), 0, sizeof(r));
    r.source = t->view_src != nullptr ? t->view_src : t;
    r.offset = t->view_src != nullptr ? t->view_offs : 0;
    memcpy(r.key, key, key_size);
    return r;
}

static bool is_same(const gb_cuda_recipe & a, const gb_cuda_recipe & b) {
    return a.source == b.source && a.offset == b.offset && memcmp(a.key, b.key, sizeof(a.key)) == 0;
}

static bool is_source(const ggml_tensor * t, const gb_cuda_recipe & r) {
    return t != nullptr && (t->view_src != nullptr ? t->view_src : t) == r.source;
}

static bool writes_to(const gb_cuda_backend & b, const ggml_tensor * node, const ggml_tensor * source) {
    return b.kind != GB_CUDA_PLAN && gb_cuda_overlap(node, source);
}

// The last of the next nodes that has the recipe, or the one that is being queued.
static int last_of(const gb_cuda_backend & b, const gb_cuda_recipe & r,
    bool (*of)(const gb_cuda_backend & b, const ggml_tensor * node, gb_cuda_recipe * recipe)) {
    int last = b.at;
    if (b.nodes == nullptr || writes_to(b, b.nodes->node[b.at], r.source)) {
        return last;
    }
    const char * end = gb_cuda_data(r.source) + ggml_nbytes(r.source);
    for (int i = b.at + 1; i < b.nodes->n && i <= b.at + AHEAD; i++) {
        const ggml_tensor * node = b.nodes->node[i];
        gb_cuda_recipe      wanted;
        if (is_source(node->src[1], r) && of(b, node, &wanted) && is_same(wanted, r)) {
            last = i;
        }
        if (gb_cuda_data(node) < end && writes_to(b, node, r.source)) { // half of them need no second look
            break;
        }
    }
    return last;
}

void * gb_cuda_keep(gb_cuda_backend & b, const gb_cuda_recipe & recipe, size_t bytes,
    bool (*of)(const gb_cuda_backend & b, const ggml_tensor * node, gb_cuda_recipe * recipe), bool * there) {
    for (size_t i = 0; i < b.kept.n; i++) {
        gb_cuda_kept & kept = b.kept.data[i];
        if (is_same(kept.recipe, recipe)) {
            const int last = last_of(b, recipe, of);
            kept.last      = last > kept.last ? last : kept.last;
            *there         = true;
            return kept.memory;
        }
    }
    *there              = false;
    void * const memory = gb_cuda_scratch(b, bytes);
    const int    last   = memory != nullptr ? last_of(b, recipe, of) : b.at;
    if (last > b.at && b.kept.reserve(b.kept.n + 1)) {
        b.kept.data[b.kept.n++] = { recipe, memory, b.scratch.used, last };
    }
    return memory;
}

void gb_cuda_kept_settle(gb_cuda_backend & b, const gb_cuda_nodes & nodes, int i, int n) {
    size_t left = 0;
    for (size_t k = 0; k < b.kept.n; k++) {
        bool lives = b.kept.data[k].last >= i + n;
        for (int j = i; j < i + n && lives; j++) {
            lives = !writes_to(b, nodes.node[j], b.kept.data[k].recipe.source);
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
