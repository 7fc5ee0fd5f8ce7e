// nodes.c - writes nodes as a message, and reads them (nodes.h).
#include "tensor/nodes.h"

#include <stdio.h>


enum { WEIGHTS = 1, LEFT_OUT = 2, MOST_TENSORS = 1 << 20 };

// --------------------------------------------------------------------------------------------------------------- write

// A message under construction: the numbered tensors, in order.
struct writer {
    struct gb_ptrmap numbers;
    GB_VEC(const struct ggml_tensor *) tensors;
    bool named;
    gb_nodes_find find;
    void * context;
    gb_nodes_bytes * bytes;
};

static uint8_t * grow(gb_nodes_bytes * bytes, size_t size) {
    if (!gb_vec_reserve(bytes, bytes->n + size)) {
        return NULL;
    }
    uint8_t * at = bytes->data + bytes->n;
    bytes->n += size;
    return at;
}

static bool put_u32(gb_nodes_bytes * bytes, uint32_t value) {
    uint8_t * at = grow(bytes, sizeof(value));
    if (at != NULL) {
        memcpy(at, &value, sizeof(value));
    }
    return at != NULL;
}

static int64_t number_of(const struct writer * w, const struct ggml_tensor * t) {
    return t != NULL ? gb_ptrmap_get(&w->numbers, t) : -1;
}

// Gives the tensor the next number, and appends it.
static enum ggml_status add_tensor(struct writer * w, const struct ggml_tensor * t, bool computes) {
    struct gb_nodes_place place = { .memory = 0 };
    const int64_t own = (int64_t) w->tensors.n;
    int64_t sources[GGML_MAX_SRC];
    char text[GB_DESCRIBE_SIZE];
    GB_TRY(w->find(w->context, t, &place));
    uint8_t * at = grow(w->bytes, GB_NODES_TENSOR_SIZE);
    if (at == NULL || !gb_vec_push(&w->tensors, t) || !gb_ptrmap_set(&w->numbers, t, own)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    for (int k = 0; k < GGML_MAX_SRC; k++) {
        sources[k] = -1;
    }
    if (computes) {
        gb_sources_find(t, &w->numbers, sources);
        GB_FAIL_IF(gb_sources_misfit(t->op, sources, own) >= 0, GGML_STATUS_INVALID_ARGUMENT,
            "nodes: a source of %s does not come before it", gb_describe(t, text));
    }
    const uint32_t flags = (place.weights ? WEIGHTS : 0) | (computes && place.may_leave_out ? LEFT_OUT : 0);
    const int32_t root = (int32_t) number_of(w, t->view_src);
    const uint64_t rest[3] = { t->view_src != NULL ? t->view_offs : 0, t->view_src != NULL ? 0 : place.memory,
        t->view_src != NULL ? 0 : place.offset };
    gb_record_write(t, !computes, w->named, at);
    gb_sources_write(sources, at + GB_RECORD_SIZE);
    at += GB_RECORD_SIZE + GB_SOURCES_SIZE;
    memcpy(at, &flags, 4);
    memcpy(at + 4, &root, 4);
    memcpy(at + 8, rest, sizeof(rest));
    return GGML_STATUS_SUCCESS;
}

// Writes a leaf after its root.
static enum ggml_status add_leaf(struct writer * w, const struct ggml_tensor * t) {
    if (t == NULL || number_of(w, t) >= 0) {
        return GGML_STATUS_SUCCESS;
    }
    if (t->view_src != NULL && number_of(w, t->view_src) < 0) {
        GB_TRY(add_tensor(w, t->view_src, false));
    }
    return add_tensor(w, t, false);
}

// Writes a node after its root and its sources.
static enum ggml_status add_node(struct writer * w, const struct ggml_tensor * t) {
    char text[GB_DESCRIBE_SIZE];
    GB_FAIL_IF(!gb_record_holds(t), GGML_STATUS_UNSUPPORTED, "nodes: %s calls a function of this program",
        gb_describe(t, text));
    if (number_of(w, t) >= 0) {
        return GGML_STATUS_SUCCESS; // an earlier node reads it; there it is a leaf
    }
    GB_TRY(add_leaf(w, t->view_src));
    for (int k = 0; k < GGML_MAX_SRC; k++) {
        if (t->src[k] != t) {
            GB_TRY(add_leaf(w, t->src[k]));
        }
    }
    return add_tensor(w, t, true);
}

static enum ggml_status write_message(struct writer * w, struct ggml_tensor * const * nodes, int n) {
    const size_t begin = w->bytes->n;
    if (grow(w->bytes, GB_NODES_HEAD_SIZE) == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    for (int i = 0; i < n; i++) {
        GB_TRY(add_node(w, nodes[i]));
    }
    for (int i = 0; i < n; i++) {
        if (!put_u32(w->bytes, (uint32_t) number_of(w, nodes[i]))) {
            return GGML_STATUS_ALLOC_FAILED;
        }
    }
    const uint32_t head[2] = { (uint32_t) w->tensors.n, (uint32_t) n };
    memcpy(w->bytes->data + begin, head, sizeof(head));
    return GGML_STATUS_SUCCESS;
}

enum ggml_status gb_nodes_write(struct ggml_tensor * const * nodes, int n, bool named, gb_nodes_find find,
    void * context, gb_nodes_bytes * bytes) {
    struct writer w = { .named = named, .find = find, .context = context, .bytes = bytes };
    const enum ggml_status status = write_message(&w, nodes, n);
    gb_ptrmap_free(&w.numbers);
    gb_vec_free(&w.tensors);
    return status;
}

// ---------------------------------------------------------------------------------------------------------------- read

static enum ggml_status malformed(const char * what, int i) {
    return gb_fail(GGML_STATUS_INVALID_ARGUMENT, "nodes: tensor %d: %s", i, what);
}

// A message that is being read. `known`: the index in `memories` of each number so far.
struct reader {
    struct gb_nodes * nodes;
    struct gb_ptrmap known; // by key_of a number
};

// Spreads the numbers. They are consecutive, and the map expects addresses as far apart as those of
// tensors.
static const void * key_of(uint64_t number) {
    const uintptr_t n = (uintptr_t) number;
    return (const void *) (n << 9 | n >> (8 * sizeof(n) - 9));
}

static enum ggml_status find_memory(struct reader * in, uint64_t number, bool weights, int * found) {
    struct gb_nodes * nodes = in->nodes;
    GB_FAIL_IF(number > UINTPTR_MAX, GGML_STATUS_INVALID_ARGUMENT, "nodes: there is no memory %llu",
        (unsigned long long) number);
    const void * key = key_of(number);
    const int64_t at = gb_ptrmap_get(&in->known, key);
    if (at == GB_PTRMAP_ABSENT) {
        if (!gb_ptrmap_set(&in->known, key, nodes->n_memories)) {
            return GGML_STATUS_ALLOC_FAILED;
        }
        nodes->memories[nodes->n_memories++] = (struct gb_nodes_memory){ .number = number };
    }
    *found = at == GB_PTRMAP_ABSENT ? nodes->n_memories - 1 : (int) at;
    nodes->memories[*found].weights |= weights;
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status read_sources(struct gb_nodes * nodes, int i, const uint8_t * bytes) {
    struct ggml_tensor * t = &nodes->tensors[i];
    int64_t numbers[GGML_MAX_SRC];
    gb_sources_read(bytes, numbers);
    const int misfit = gb_sources_misfit(t->op, numbers, i);
    GB_FAIL_IF(misfit >= 0, GGML_STATUS_INVALID_ARGUMENT, "nodes: source %d of tensor %d is number %lld", misfit, i,
        (long long) numbers[misfit]);
    for (int k = 0; k < GGML_MAX_SRC; k++) {
        t->src[k] = numbers[k] >= 0 ? &nodes->tensors[numbers[k]] : NULL;
    }
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status read_tensor(struct reader * in, int i, const uint8_t * bytes) {
    struct gb_nodes * nodes = in->nodes;
    struct ggml_tensor * t = &nodes->tensors[i];
    char wrong[GB_RECORD_WRONG_SIZE];
    uint32_t flags;
    int32_t root;
    uint64_t rest[3];
    if (!gb_record_read(bytes, t, wrong)) {
        return malformed(wrong, i);
    }
    GB_TRY(read_sources(nodes, i, bytes + GB_RECORD_SIZE));
    bytes += GB_RECORD_SIZE + GB_SOURCES_SIZE;
    memcpy(&flags, bytes, 4);
    memcpy(&root, bytes + 4, 4);
    memcpy(rest, bytes + 8, sizeof(rest));
    if (root < -1 || root >= i || rest[0] > SIZE_MAX) {
        return malformed("it is a view of a tensor that does not come before it", i);
    }
    t->view_src = root >= 0 ? &nodes->tensors[root] : NULL;
    t->view_offs = root >= 0 ? (size_t) rest[0] : 0;
    gb_tensor_set_surely_read_once(t, (flags & LEFT_OUT) != 0);
    GB_TRY(gb_tensor_check(t, "nodes"));
    GB_TRY(gb_node_check(t, "nodes"));
    if (root < 0 && rest[1] != 0) {
        nodes->offsets[i] = rest[2];
        return find_memory(in, rest[1], (flags & WEIGHTS) != 0, &nodes->memory_of[i]);
    }
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status read_message(struct reader * in, const uint8_t * bytes) {
    struct gb_nodes * nodes = in->nodes;
    for (int i = 0; i < nodes->n_tensors; i++) {
        nodes->memory_of[i] = -1;
        GB_TRY(read_tensor(in, i, bytes + GB_NODES_HEAD_SIZE + (size_t) i * GB_NODES_TENSOR_SIZE));
    }
    bytes += GB_NODES_HEAD_SIZE + (size_t) nodes->n_tensors * GB_NODES_TENSOR_SIZE;
    for (int i = 0; i < nodes->graph.n_nodes; i++) {
        uint32_t number;
        memcpy(&number, bytes + 4 * (size_t) i, 4);
        GB_FAIL_IF(number >= (uint32_t) nodes->n_tensors, GGML_STATUS_INVALID_ARGUMENT,
            "nodes: node %d is number %u of %d tensors", i, number, nodes->n_tensors);
        nodes->graph.nodes[i] = &nodes->tensors[number];
    }
    return GGML_STATUS_SUCCESS;
}

// Allocates memory for this many tensors and nodes. NULL: memory ran out (reported).
static struct gb_nodes * new_nodes(size_t n_tensors, size_t n_nodes) {
    struct gb_nodes * nodes = GB_NEW(struct gb_nodes);
    if (nodes == NULL) {
        return NULL;
    }
    nodes->n_tensors = (int) n_tensors;
    nodes->tensors = gb_calloc(n_tensors + 1, sizeof(*nodes->tensors));
    nodes->memories = gb_calloc(n_tensors + 1, sizeof(*nodes->memories));
    nodes->memory_of = gb_calloc(n_tensors + 1, sizeof(*nodes->memory_of));
    nodes->offsets = gb_calloc(n_tensors + 1, sizeof(*nodes->offsets));
    nodes->graph.nodes = gb_calloc(n_nodes + 1, sizeof(*nodes->graph.nodes));
    nodes->graph.size = nodes->graph.n_nodes = (int) n_nodes;
    if (!nodes->tensors || !nodes->memories || !nodes->memory_of || !nodes->offsets || !nodes->graph.nodes) {
        gb_nodes_free(nodes);
        return NULL;
    }
    return nodes;
}

struct gb_nodes * gb_nodes_read(const uint8_t * bytes, size_t size) {
    uint32_t head[2] = { 0, 0 };
    if (size >= GB_NODES_HEAD_SIZE) {
        memcpy(head, bytes, sizeof(head));
    }
    const bool fits = size >= GB_NODES_HEAD_SIZE && head[0] <= MOST_TENSORS && head[1] <= head[0] &&
                      size == GB_NODES_HEAD_SIZE + (size_t) head[0] * GB_NODES_TENSOR_SIZE + (size_t) head[1] * 4;
    GB_FAIL_IF_RETURNING(!fits, NULL, GGML_STATUS_INVALID_ARGUMENT,
        "nodes: %u tensors and %u nodes do not make %zu bytes", head[0], head[1], size);
    struct reader in = { .nodes = new_nodes(head[0], head[1]) };
    if (in.nodes != NULL && read_message(&in, bytes) != GGML_STATUS_SUCCESS) {
        gb_nodes_free(in.nodes);
        in.nodes = NULL;
    }
    gb_ptrmap_free(&in.known);
    return in.nodes;
}

enum ggml_status gb_nodes_bind(struct gb_nodes * nodes) {
    for (int i = 0; i < nodes->n_tensors; i++) {
        struct ggml_tensor * t = &nodes->tensors[i];
        struct ggml_tensor * root = t->view_src;
        if (root != NULL && root->data != NULL) {  // inside the root, as was checked
            t->buffer = root->buffer;
            t->data = (char *) root->data + t->view_offs;
        }
        if (nodes->memory_of[i] < 0) {
            continue;
        }
        const struct gb_nodes_memory * m = &nodes->memories[nodes->memory_of[i]];
        const uint64_t offset = nodes->offsets[i];
        const size_t nbytes = ggml_nbytes(t);
        GB_FAIL_IF(offset % gb_type_alignment(t->type) != 0, GGML_STATUS_INVALID_ARGUMENT,
            "nodes: tensor %d begins between two elements", i);
        GB_FAIL_IF(offset > m->size || nbytes > m->size - offset, GGML_STATUS_INVALID_ARGUMENT,
            "nodes: tensor %d lies outside of a memory of %zu bytes", i, m->size);
        t->buffer = m->buffer;
        t->data = m->base + offset;
    }
    return GGML_STATUS_SUCCESS;
}

void gb_nodes_free(struct gb_nodes * nodes) {
    if (nodes != NULL) {
        gb_free(nodes->tensors);
        gb_free(nodes->memories);
        gb_free(nodes->memory_of);
        gb_free(nodes->offsets);
        gb_free(nodes->graph.nodes);
        gb_free(nodes);
    }
}
