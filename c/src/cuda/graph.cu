// graph.cu - running graphs: node by node at first, as recorded CUDA graphs when they are repeated.
//
// A graph's signature determines its work: operators, parameters, types, shapes, strides, addresses,
// names that messages about wrong indices need, which results may be left out, and whether nodes may
// be fused. Its shape is a hash of its operators and types. The first graph of a shape is launched
// node by node. From the second on, the work is listed (queue.h) and made executable (replay.h). If an
// executable graph of the same shape exists, its parameters are changed instead. So the next step of a
// decoder, whose cache has grown, is one launch. A graph with a known signature is launched unchanged.
//
// Before a graph is launched or listed, a dry run measures its scratch memory. One block of that
// size is allocated.
//
// Invariant: an executable graph refers to the user's buffers and to scratch memory, and to no other
// memory of this module. So executable graphs are freed before scratch memory moves.
#include <stdlib.h>
#include <string.h>

#include <new>
#include <utility>

#include "cuda/graph.h"
#include "cuda/memory.h"
#include "cuda/op.h"
#include "cuda/replay.h"

namespace {

struct remembered {
    gb_array<unsigned char> signature;
    uint64_t shape;
    gb_replay replay; // exec is NULL: the graph was seen, not recorded
    uint64_t last_use;
};

} // namespace

struct gb_cuda_graphs {
    enum { N = 32 }; // capacity of `entries`
    remembered entries[N];
    int n = 0;
    uint64_t clock = 0;
    bool on = true;
    gb_array<unsigned char> signature; // of the current graph
    gb_array<ggml_tensor *> nodes;
    gb_task_list list;          // of the current graph
    bool edges_refused = false; // the driver has no dependent edges
    gb_cuda_graph_stats stats = {};
};

// ---------------------------------------------------------------------------------------------------------- signatures

namespace {

struct tensor_key {
    int32_t type, op;
    int64_t ne[GGML_MAX_DIMS];
    size_t nb[GGML_MAX_DIMS];
    const void * data;
};

tensor_key key_of(const ggml_tensor * t) {
    tensor_key k;
    memset(static_cast<void *>(&k), 0, sizeof(k));
    k.type = t->type;
    k.op = t->op;
    memcpy(k.ne, t->ne, sizeof(k.ne));
    memcpy(k.nb, t->nb, sizeof(k.nb));
    k.data = t->data;
    return k;
}

struct writer {
    gb_array<unsigned char> & to;
    bool ok = true;

    void put(const void * bytes, size_t size) {
        ok = ok && to.reserve(to.n + size);
        if (ok) {
            memcpy(to.data + to.n, bytes, size);
            to.n += size;
        }
    }
};

// True if a message about a wrong index may name `t`: indices are integers of a source. The kernel has the
// name as a parameter.
bool reads_indices(const ggml_tensor * t) {
    bool any = false;
    for (const ggml_tensor * src : t->src) {
        any = any || (src != nullptr && (src->type == GGML_TYPE_I32 || src->type == GGML_TYPE_I64));
    }
    return any;
}

bool write_signature(gb_cuda_graphs & g, bool fusing) {
    writer w{ g.signature };
    g.signature.n = 0;
    w.put(&fusing, sizeof(fusing));
    for (size_t i = 0; i < g.nodes.n; i++) {
        const ggml_tensor * t = g.nodes.data[i];
        const tensor_key k = key_of(t);
        const bool unseen = ggml_backend_may_leave_out(t);
        w.put(&k, sizeof(k));
        w.put(&unseen, sizeof(unseen));
        w.put(t->op_params, sizeof(t->op_params));
        if (reads_indices(t)) {
            w.put(t->name, strnlen(t->name, sizeof(t->name)));
        }
        for (int j = 0; j < GGML_MAX_SRC; j++) {
            const bool there = t->src[j] != nullptr;
            w.put(&there, 1);
            if (there) {
                const tensor_key s = key_of(t->src[j]);
                w.put(&s, sizeof(s));
            }
        }
    }
    return w.ok;
}

uint64_t mix(uint64_t h, uint64_t x) {
    h ^= x + 0x9e3779b97f4a7c15u + (h << 6) + (h >> 2);
    return h * 0xff51afd7ed558ccdu;
}

uint64_t shape_of(const gb_cuda_graphs & g) {
    uint64_t h = g.nodes.n;
    for (size_t i = 0; i < g.nodes.n; i++) {
        const ggml_tensor * t = g.nodes.data[i];
        h = mix(h, (uint64_t) t->op << 16 | (uint64_t) t->type);
        h = mix(h, t->src[0] != nullptr ? (uint64_t) t->src[0]->type : 99);
    }
    return h;
}

remembered * find_same(gb_cuda_graphs & g) {
    for (int i = 0; i < g.n; i++) {
        remembered & c = g.entries[i];
        if (c.signature.n == g.signature.n && memcmp(c.signature.data, g.signature.data, g.signature.n) == 0) {
            return &c;
        }
    }
    return nullptr;
}

bool has_seen(const gb_cuda_graphs & g, uint64_t shape) {
    bool seen = false;
    for (int i = 0; i < g.n; i++) {
        seen = seen || g.entries[i].shape == shape;
    }
    return seen;
}

// The least recently used executable graph that can become the current one.
remembered * find_like(gb_cuda_graphs & g, uint64_t shape) {
    remembered * best = nullptr;
    for (int i = 0; i < g.n; i++) {
        remembered & c = g.entries[i];
        if (c.replay.exec != nullptr && c.shape == shape && gb_replay_fits(c.replay, g.list) &&
            (best == nullptr || c.last_use < best->last_use)) {
            best = &c;
        }
    }
    return best;
}

void drop(remembered & c) {
    gb_replay_free(c.replay);
    c.signature.release();
    c = remembered();
}

// Graphs that were only seen are replaced first.
bool goes_before(const remembered & a, const remembered & b) {
    const bool a_seen = a.replay.exec == nullptr, b_seen = b.replay.exec == nullptr;
    return a_seen != b_seen ? a_seen : a.last_use < b.last_use;
}

// Stores the current graph, in place of another if the table is full.
remembered * remember(gb_cuda_graphs & g, uint64_t shape) {
    remembered * c = g.n < gb_cuda_graphs::N ? &g.entries[g.n] : &g.entries[0];
    for (int i = 0; g.n == gb_cuda_graphs::N && i < g.n; i++) {
        c = goes_before(g.entries[i], *c) ? &g.entries[i] : c;
    }
    if (g.n < gb_cuda_graphs::N) {
        g.n++;
    } else {
        drop(*c);
    }
    c->signature.swap(g.signature);
    c->shape = shape;
    c->last_use = ++g.clock;
    return c;
}

} // namespace

gb_cuda_graphs * gb_cuda_graphs_new(void) {
    gb_cuda_graphs * g = new (std::nothrow) gb_cuda_graphs;
    const char * on = getenv("GGML_CUDA_GRAPHS");
    if (g != nullptr) {
        g->on = on == nullptr || strcmp(on, "0") != 0;
    }
    return g;
}

// Frees the executable graphs, before memory that they refer to is freed.
static void forget_graphs(gb_cuda_graphs * g) {
    for (int i = 0; i < g->n; i++) {
        gb_replay_free(g->entries[i].replay); // a repeated graph is recorded again
    }
}

void gb_cuda_graphs_free(gb_cuda_graphs * g) {
    if (g != nullptr) {
        for (int i = 0; i < g->n; i++) {
            drop(g->entries[i]);
        }
        gb_task_list_free(g->list);
        g->signature.release();
        g->nodes.release();
        delete g;
    }
}

gb_cuda_graph_stats gb_cuda_graphs_stats(const gb_cuda_graphs * g) { return g->stats; }

void gb_cuda_graphs_set(gb_cuda_graphs * g, bool on) { g->on = on; }

// ------------------------------------------------------------------------------------------------------------ queueing

static enum ggml_status check_memory(const gb_cuda_backend & b, const ggml_tensor * node, const ggml_tensor * t) {
    if (t->data == nullptr || gb_cuda_device_of(t) != b.device) {
        return ggml_report_error(GGML_STATUS_INVALID_ARGUMENT,
            "%s: %s '%s': tensor '%s' is not in this device's memory", b.device->name, ggml_op_desc(node), node->name,
            t->name);
    }
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status check_node(const gb_cuda_backend & b, const ggml_tensor * node, bool placed) {
    const char * reason = gb_cuda_unsupported_reason(*b.device, node);
    if (reason != nullptr) {
        return ggml_report_error(GGML_STATUS_UNSUPPORTED, "%s: %s '%s': %s", b.device->name, ggml_op_desc(node),
            node->name, reason);
    }
    enum ggml_status status = placed ? check_memory(b, node, node) : GGML_STATUS_SUCCESS;
    for (int j = 0; placed && j < GGML_MAX_SRC && status == GGML_STATUS_SUCCESS; j++) {
        const ggml_tensor * src = node->src[j];
        if (src != nullptr && ggml_nelements(src) > 0) {
            status = check_memory(b, node, src);
        }
    }
    return status;
}

// Collects the nodes to compute. Finds every error of the graph before work is queued. `placed`: tensors have memory.
static enum ggml_status collect(const gb_cuda_backend & b, const ggml_cgraph * graph, bool placed,
    gb_array<ggml_tensor *> & nodes) {
    nodes.n = 0;
    if (!nodes.reserve((size_t) graph->n_nodes)) {
        return ggml_report_error(GGML_STATUS_ALLOC_FAILED, "%s: no host memory for a graph of %d nodes", b.device->name,
            graph->n_nodes);
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        ggml_tensor * node = graph->nodes[i];
        if (gb_cuda_is_view(node->op) || ggml_nelements(node) == 0) {
            continue;
        }
        const enum ggml_status status = check_node(b, node, placed);
        if (status != GGML_STATUS_SUCCESS) {
            return status;
        }
        nodes.data[nodes.n++] = node;
    }
    return GGML_STATUS_SUCCESS;
}

// Queues nodes from i on. Returns their number; -1: failed, reported.
static int queue_some(gb_cuda_backend & b, const gb_cuda_nodes & nodes, int i) {
    const gb_cuda_op * op = gb_cuda_op_get(nodes.node[i]->op);
    const size_t n_kept = b.kept.n;
    b.scratch.used = gb_cuda_kept_end(b);
    int n = op->fuse != nullptr && b.fusing ? op->fuse(b, nodes, i) : 0;
    if (b.kind == GB_CUDA_PLAN && n > 0) { // the run may decide otherwise
        b.kept.n = n_kept;
        b.scratch.used = gb_cuda_kept_end(b);
        n = 0;
    }
    return n != 0 ? n : op->run(b, nodes.node[i]) == GGML_STATUS_SUCCESS ? 1 : -1;
}

static enum ggml_status queue_nodes(gb_cuda_backend & b, const gb_array<ggml_tensor *> & list) {
    gb_cuda_nodes nodes = { list.data, (int) list.n, nullptr };
    int n = 0;
    if (!gb_cuda_note_readers(b.readers, nodes) || !b.choices.reserve(list.n)) {
        return ggml_report_error(GGML_STATUS_ALLOC_FAILED, "%s: no host memory for a graph of %d nodes", b.device->name,
            nodes.n);
    }
    nodes.next_reader = b.readers.data;
    b.nodes = &nodes;
    b.choices.n = 0;
    for (int i = 0; i < nodes.n; i++) {
        const gb_cuda_op * op = gb_cuda_op_get(nodes.node[i]->op);
        b.choices.data[b.choices.n++] = op->choose != nullptr ? op->choose(b, nodes.node[i]) : gb_cuda_choice{ -1, -1 };
    }
    gb_queue_settle(b.queue);
    b.kept.n = 0; // memory may have changed since the last graph
    for (int i = 0; i < nodes.n && n >= 0; i += n) {
        b.node = nodes.node[i];
        b.at = i;
        n = queue_some(b, nodes, i);
        gb_cuda_kept_settle(b, nodes, i, n);
    }
    b.node = nullptr;
    b.nodes = nullptr;
    return n >= 0 ? GGML_STATUS_SUCCESS : GGML_STATUS_FAILED;
}

// Measures scratch memory with a queue that drops its work.
static enum ggml_status measure(const gb_cuda_backend & b, const gb_array<ggml_tensor *> & nodes, enum gb_cuda_run kind,
    size_t * size) {
    gb_cuda_backend dry = {};
    dry.device = b.device;
    dry.queue = { nullptr, nullptr, true };
    dry.kind = kind;
    dry.fusing = kind == GB_CUDA_PLAN || b.fusing;
    dry.blas = b.blas;
    dry.scratch.memory = reinterpret_cast<char *>((uintptr_t) 1 << 40);
    dry.scratch.capacity = SIZE_MAX / 4;
    const enum ggml_status status = queue_nodes(dry, nodes);
    *size = dry.scratch.peak;
    dry.kept.release();
    dry.readers.release();
    dry.choices.release();
    return status;
}

enum ggml_status gb_cuda_graph_work_size(const gb_cuda_backend & b, const ggml_cgraph * graph, size_t * size) {
    gb_array<ggml_tensor *> nodes;
    enum ggml_status status = collect(b, graph, false, nodes);
    if (status == GGML_STATUS_SUCCESS) {
        status = measure(b, nodes, GB_CUDA_PLAN, size);
    }
    nodes.release();
    return status;
}

// Grows the scratch memory to `size` bytes. A new block waits for the stream and drops executable graphs, which refer
// to the old one. False on failure, reported; then there is no scratch memory.
static bool grow_scratch(gb_cuda_backend & b, size_t size) {
    gb_cuda_scratch_memory & s = b.scratch;
    if (size <= s.capacity) {
        return true;
    }
    const cudaError_t error = cudaStreamSynchronize(b.stream); // queued work may use the old block
    if (error != cudaSuccess) {
        gb_cuda_fail(b, "cudaStreamSynchronize", error);
        return false;
    }
    forget_graphs(b.graphs);
    gb_cuda_pool_free(b.device, s.memory, s.capacity);
    s.capacity = 0;
    s.memory = static_cast<char *>(gb_cuda_pool_alloc(b.device, size, &s.capacity));
    return s.memory != nullptr;
}

static enum ggml_status reserve_scratch(gb_cuda_backend & b) {
    size_t size = 0;
    const enum ggml_status status = measure(b, b.graphs->nodes, GB_CUDA_MEASURE, &size);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    return grow_scratch(b, size) ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}

// Lists the work of queue_nodes. False: not possible; the caller launches the graph node by node.
static bool list_work(gb_cuda_backend & b) {
    gb_cuda_graphs & g = *b.graphs;
    gb_task_list_clear(g.list);
    b.queue.list = &g.list;
    const enum ggml_status listed = queue_nodes(b, g.nodes);
    b.queue.list = nullptr;
    return listed == GGML_STATUS_SUCCESS && !g.list.broken && g.list.tasks.n > 0;
}

// Makes the listed work executable. If c has an executable graph, it fits the list. False: c has none.
static bool make_executable(gb_cuda_graphs & g, remembered & c, bool dependent) {
    if (c.replay.exec != nullptr && gb_replay_update(c.replay, g.list)) {
        g.stats.n_updated++;
        return true;
    }
    bool edges = dependent && !g.edges_refused;
    const bool tried = edges, made = gb_replay_make(c.replay, g.list, edges);
    g.edges_refused = g.edges_refused || tried != edges;
    g.stats.n_captured += made;
    return made;
}

static enum ggml_status launch(gb_cuda_backend & b, remembered & c) {
    c.last_use = ++b.graphs->clock;
    GB_CUDA_TRY(b, cudaGraphLaunch(c.replay.exec, b.stream));
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status queue_eagerly(gb_cuda_backend & b) {
    b.graphs->stats.n_eager++;
    return queue_nodes(b, b.graphs->nodes);
}

// The current graph, executable; NULL: launch it node by node.
static remembered * executable(gb_cuda_backend & b) {
    gb_cuda_graphs & g = *b.graphs;
    const uint64_t shape = shape_of(g);
    remembered * same = find_same(g);
    if (same == nullptr && !has_seen(g, shape)) {
        remember(g, shape);
        return nullptr;
    }
    if (!list_work(b)) {
        return nullptr;
    }
    if (same == nullptr) {
        remembered * like = find_like(g, shape);
        gb_replay taken = {};
        if (like != nullptr) {
            std::swap(taken, like->replay);
        }
        same = remember(g, shape);
        same->replay = taken;
    }
    return make_executable(g, *same, b.queue.dependent) ? same : nullptr;
}

enum ggml_status gb_cuda_graph_compute(gb_cuda_backend & b, const ggml_cgraph * graph) {
    enum { FEW = 2 }; // graphs of so few nodes gain nothing
    gb_cuda_graphs & g = *b.graphs;
    enum ggml_status status = collect(b, graph, true, g.nodes);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    b.fusing = ggml_graph_get_fusion();
    const bool worth = g.on && g.nodes.n > FEW && write_signature(g, b.fusing);
    remembered * same = worth ? find_same(g) : nullptr;
    if (same != nullptr && same->replay.exec != nullptr) {
        g.stats.n_replayed++;
        return launch(b, *same);
    }
    status = reserve_scratch(b);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    same = worth ? executable(b) : nullptr;
    return same != nullptr ? launch(b, *same) : queue_eagerly(b);
}
