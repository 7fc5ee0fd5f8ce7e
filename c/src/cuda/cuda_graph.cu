// cuda_graph.cu - running graphs: node by node at first, replayed as a CUDA graph when they come again.
//
// What a graph would queue follows from its signature alone: operators, parameters, types, shapes, strides, addresses
// and who may look, node by node. The first time a signature comes, its nodes are launched; the second time they are
// captured; from then on the executable graph is launched. A new signature with the operators of one that is executable
// takes that one's executable graph over, updated.
//
// Before a graph is launched or captured, a dry run measures its scratch memory, and there is one block of that size:
// nothing grows on the way.
//
// Invariant: a captured graph refers to scratch memory and to nothing else of ours, so it is forgotten before scratch
// memory moves.
#include <stdlib.h>
#include <string.h>

#include <new>

#include "cuda.h"
#include "launch.cuh"

namespace {

// A growing array of plain things; no memory is a false, not an exception.
template <class T> struct array {
    T *    data     = nullptr;
    size_t n        = 0;
    size_t capacity = 0;

    bool reserve(size_t wanted) {
        if (wanted <= capacity) {
            return true;
        }
        const size_t grown = wanted + wanted / 2 + 64;
        T *          moved = static_cast<T *>(realloc(static_cast<void *>(data), grown * sizeof(T)));
        if (moved == nullptr) {
            return false;
        }
        data     = moved;
        capacity = grown;
        return true;
    }
    void swap(array & other) {
        const array t = *this;
        *this         = other;
        other         = t;
    }
    void release() {
        free(static_cast<void *>(data));
        *this = array();
    }
};

struct captured {
    array<unsigned char> signature;
    uint64_t             shape; // of the operators alone: what an update needs to agree
    cudaGraphExec_t      exec;  // NULL: seen once
    uint64_t             last_use;
};

} // namespace

struct gb_cuda_graphs {
    enum { N = 16 }; // graphs that are remembered
    captured             entries[N];
    int                  n     = 0;
    uint64_t             clock = 0;
    bool                 on    = true;
    array<unsigned char> signature; // of the graph at hand
    array<ggml_tensor *> nodes;
    gb_cuda_graph_stats  stats = {};
};

// ---------------------------------------------------------------------------------------------------------- signatures

namespace {

struct tensor_key {
    int32_t      type, op;
    int64_t      ne[GGML_MAX_DIMS];
    size_t       nb[GGML_MAX_DIMS];
    const void * data;
};

tensor_key key_of(const ggml_tensor * t) {
    tensor_key k;
    memset(static_cast<void *>(&k), 0, sizeof(k));
    k.type = t->type;
    k.op   = t->op;
    memcpy(k.ne, t->ne, sizeof(k.ne));
    memcpy(k.nb, t->nb, sizeof(k.nb));
    k.data = t->data;
    return k;
}

struct writer {
    array<unsigned char> & to;
    bool                   ok = true;

    void put(const void * bytes, size_t size) {
        ok = ok && to.reserve(to.n + size);
        if (ok) {
            memcpy(to.data + to.n, bytes, size);
            to.n += size;
        }
    }
};

bool write_signature(gb_cuda_graphs & g, bool fusing) {
    writer w{ g.signature };
    g.signature.n = 0;
    w.put(&fusing, sizeof(fusing));
    for (size_t i = 0; i < g.nodes.n; i++) {
        const ggml_tensor * t      = g.nodes.data[i];
        const tensor_key    k      = key_of(t);
        const bool          unseen = ggml_backend_may_leave_out(t);
        w.put(&k, sizeof(k));
        w.put(&unseen, sizeof(unseen));
        w.put(t->op_params, sizeof(t->op_params));
        if (t->op == GGML_OP_GET_ROWS || t->op == GGML_OP_MUL_MAT_ID) { // messages about indices have it
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
    return (h * 0xff51afd7ed558ccdu) | 1; // 0 is no shape
}

// Graphs of the same shape are likely, not sure, to be updatable into each other: the runtime has the last word.
uint64_t shape_of(const gb_cuda_graphs & g) {
    uint64_t h = g.nodes.n;
    for (size_t i = 0; i < g.nodes.n; i++) {
        const ggml_tensor * t = g.nodes.data[i];
        h                     = mix(h, (uint64_t) t->op << 16 | (uint64_t) t->type);
        h                     = mix(h, t->src[0] != nullptr ? (uint64_t) t->src[0]->type : 99);
    }
    return h;
}

captured * find_same(gb_cuda_graphs & g) {
    for (int i = 0; i < g.n; i++) {
        captured & c = g.entries[i];
        if (c.signature.n == g.signature.n && memcmp(c.signature.data, g.signature.data, g.signature.n) == 0) {
            return &c;
        }
    }
    return nullptr;
}

captured * find_shape(gb_cuda_graphs & g, uint64_t shape) {
    captured * best = nullptr;
    for (int i = 0; i < g.n; i++) {
        captured & c = g.entries[i];
        if (c.exec != nullptr && c.shape == shape && (best == nullptr || c.last_use < best->last_use)) {
            best = &c;
        }
    }
    return best;
}

void drop(captured & c) {
    if (c.exec != nullptr) {
        (void) cudaGraphExecDestroy(c.exec);
    }
    c.signature.release();
    c = captured();
}

// Remembers the graph at hand, in place of the one that was not used for longest.
captured * remember(gb_cuda_graphs & g, uint64_t shape) {
    captured * c = g.n < gb_cuda_graphs::N ? &g.entries[g.n] : &g.entries[0];
    for (int i = 0; g.n == gb_cuda_graphs::N && i < g.n; i++) {
        c = g.entries[i].last_use < c->last_use ? &g.entries[i] : c;
    }
    if (g.n < gb_cuda_graphs::N) {
        g.n++;
        *c = captured();
    } else {
        drop(*c);
    }
    c->signature.swap(g.signature);
    c->shape = shape;
    return c;
}

} // namespace

gb_cuda_graphs * gb_cuda_graphs_new(void) {
    gb_cuda_graphs * g  = new (std::nothrow) gb_cuda_graphs;
    const char *     on = getenv("GGML_CUDA_GRAPHS");
    if (g != nullptr) {
        g->on = on == nullptr || strcmp(on, "0") != 0;
    }
    return g;
}

void gb_cuda_graphs_forget(gb_cuda_graphs * g) {
    for (int i = 0; i < g->n; i++) {
        drop(g->entries[i]);
    }
    g->n = 0;
}

void gb_cuda_graphs_free(gb_cuda_graphs * g) {
    if (g != nullptr) {
        gb_cuda_graphs_forget(g);
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

// The nodes that are computed. All that can be wrong with the graph is found before anything is queued. `placed`: they
// have memory.
static enum ggml_status collect(const gb_cuda_backend & b, const ggml_cgraph * graph, bool placed,
    array<ggml_tensor *> & nodes) {
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

// How many nodes from i on were queued; -1: failed, reported.
static int queue_some(gb_cuda_backend & b, const gb_cuda_nodes & nodes, int i) {
    const gb_cuda_op * op = gb_cuda_op_get(nodes.node[i]->op);
    b.scratch.used        = 0;
    int n                 = op->fuse != nullptr && b.fusing ? op->fuse(b, nodes, i) : 0;
    if (b.kind == GB_CUDA_PLAN && n > 0) { // it may be decided otherwise in the end
        b.scratch.used = 0;
        n              = 0;
    }
    return n != 0 ? n : op->run(b, nodes.node[i]) == GGML_STATUS_SUCCESS ? 1 : -1;
}

static enum ggml_status queue_nodes(gb_cuda_backend & b, const array<ggml_tensor *> & list) {
    const gb_cuda_nodes nodes = { list.data, (int) list.n };
    int                 n     = 0;
    for (int i = 0; i < nodes.n && n >= 0; i += n) {
        b.node = nodes.node[i];
        n      = queue_some(b, nodes, i);
    }
    b.node = nullptr;
    return n >= 0 ? GGML_STATUS_SUCCESS : GGML_STATUS_FAILED;
}

// Queues everything nowhere: what that takes of scratch memory, the same will take.
static enum ggml_status measure(const gb_cuda_backend & b, const array<ggml_tensor *> & nodes, enum gb_cuda_run kind,
    size_t * size) {
    gb_cuda_backend dry           = {};
    dry.device                    = b.device;
    dry.stream                    = GB_NOWHERE;
    dry.kind                      = kind;
    dry.fusing                    = kind == GB_CUDA_PLAN || b.fusing;
    dry.blas                      = b.blas;
    dry.scratch.memory            = reinterpret_cast<char *>((uintptr_t) 1 << 40);
    dry.scratch.capacity          = SIZE_MAX / 4;
    const enum ggml_status status = queue_nodes(dry, nodes);
    *size                         = dry.scratch.peak;
    return status;
}

enum ggml_status gb_cuda_graph_work_size(const gb_cuda_backend & b, const ggml_cgraph * graph, size_t * size) {
    array<ggml_tensor *> nodes;
    enum ggml_status     status = collect(b, graph, false, nodes);
    if (status == GGML_STATUS_SUCCESS) {
        status = measure(b, nodes, GB_CUDA_PLAN, size);
    }
    nodes.release();
    return status;
}

static enum ggml_status reserve_scratch(gb_cuda_backend & b) {
    size_t                 size   = 0;
    const enum ggml_status status = measure(b, b.graphs->nodes, GB_CUDA_MEASURE, &size);
    return status != GGML_STATUS_SUCCESS      ? status
           : gb_cuda_scratch_reserve(b, size) ? GGML_STATUS_SUCCESS
                                              : GGML_STATUS_ALLOC_FAILED;
}

// Records what queue_nodes would queue. NULL: it could not be recorded; the graph is launched node by node then.
static cudaGraph_t capture(gb_cuda_backend & b) {
    const std::lock_guard<std::mutex> held(gb_cuda_wait_lock(b.device));
    if (cudaStreamBeginCapture(b.stream, cudaStreamCaptureModeRelaxed) != cudaSuccess) {
        (void) cudaGetLastError();
        return nullptr;
    }
    const enum ggml_status queued = queue_nodes(b, b.graphs->nodes);
    cudaGraph_t            graph  = nullptr;
    const cudaError_t      ended  = cudaStreamEndCapture(b.stream, &graph);
    if (queued == GGML_STATUS_SUCCESS && ended == cudaSuccess) {
        return graph;
    }
    if (graph != nullptr) {
        (void) cudaGraphDestroy(graph);
    }
    (void) cudaGetLastError();
    return nullptr;
}

// Makes `c` executable: by updating `like`, which loses it, or, when that is NULL, from nothing. False: c stays as it
// was.
static bool make_executable(gb_cuda_backend & b, captured & c, captured * like) {
    cudaGraph_t graph = capture(b);
    if (graph == nullptr) {
        return false;
    }
    gb_cuda_graph_stats &         stats = b.graphs->stats;
    cudaGraphExecUpdateResultInfo info;
    if (like == nullptr) {
        if (cudaGraphInstantiate(&c.exec, graph, 0) != cudaSuccess) {
            c.exec = nullptr;
        }
        stats.n_captured += c.exec != nullptr;
    } else if (cudaGraphExecUpdate(like->exec, graph, &info) == cudaSuccess) {
        c.exec     = like->exec;
        like->exec = nullptr;
        stats.n_updated++;
    } else {
        like->shape = 0; // other kernels, though the operators agree: not tried again
    }
    if (c.exec == nullptr) {
        (void) cudaGetLastError();
    }
    (void) cudaGraphDestroy(graph);
    return c.exec != nullptr;
}

static enum ggml_status launch(gb_cuda_backend & b, captured & c) {
    c.last_use = ++b.graphs->clock;
    GB_CUDA_TRY(b, cudaGraphLaunch(c.exec, b.stream));
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status queue_eagerly(gb_cuda_backend & b) {
    b.graphs->stats.n_eager++;
    return queue_nodes(b, b.graphs->nodes);
}

enum ggml_status gb_cuda_graph_compute(gb_cuda_backend & b, const ggml_cgraph * graph) {
    enum { FEW = 2 }; // nodes that gain nothing
    gb_cuda_graphs & g      = *b.graphs;
    enum ggml_status status = collect(b, graph, true, g.nodes);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    b.fusing         = ggml_graph_get_fusion();
    const bool worth = g.on && g.nodes.n > FEW && write_signature(g, b.fusing);
    captured * same  = worth ? find_same(g) : nullptr;
    if (same != nullptr && same->exec != nullptr) {
        g.stats.n_replayed++;
        return launch(b, *same);
    }
    status = reserve_scratch(b);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    if (!worth) {
        return queue_eagerly(b);
    }
    same            = find_same(g); // all may have been forgotten
    captured * like = nullptr;
    if (same == nullptr) { // new; as the next step of a decoder is, whose cache has grown
        const uint64_t shape = shape_of(g);
        like                 = find_shape(g, shape);
        same                 = remember(g, shape);
        same->last_use       = ++g.clock;
        if (like == nullptr || like->exec == nullptr) {
            return queue_eagerly(b);
        }
    }
    if (!make_executable(b, *same, like)) {
        return gb_cuda_is_usable(b) ? queue_eagerly(b) : GGML_STATUS_DEVICE_ERROR;
    }
    return launch(b, *same);
}
