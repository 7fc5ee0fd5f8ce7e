// replay.cu - makes executable graphs node by node, and changes their nodes.
#include "cuda/replay.h"

#include <string.h>

#include <utility>

namespace {

struct parameters { // of a kernel node
    gb_array<void *> values;
    cudaKernelNodeParams node;
};

bool fill(parameters & p, const gb_task_list & list, const gb_task & t) {
    if (!p.values.reserve((size_t) t.n_values + 1)) {
        return false;
    }
    for (int i = 0; i < t.n_values; i++) {
        p.values.data[i] = list.bytes.data + list.offsets.data[t.first_value + (size_t) i];
    }
    p.node = cudaKernelNodeParams{};
    p.node.func = const_cast<void *>(t.function);
    p.node.gridDim = t.grid;
    p.node.blockDim = t.block;
    p.node.sharedMemBytes = (unsigned) t.shared;
    p.node.kernelParams = p.values.data;
    return true;
}

cudaMemsetParams zeros(const gb_task & t) {
    cudaMemsetParams p = {};
    p.dst = t.to;
    p.elementSize = 4;
    p.width = t.size / 4;
    p.height = 1;
    return p;
}

constexpr cudaError_t no_such_edge = cudaErrorNotSupported; // stands for any error of add_edge, whose code varies

// Lets `to` begin when every block of `from` has called gb_wait_for_earlier. Both are kernels.
cudaError_t add_edge(cudaGraph_t graph, cudaGraphNode_t from, cudaGraphNode_t to) {
#if CUDART_VERSION >= 12030
    cudaGraphEdgeData edge = {};
    edge.from_port = cudaGraphKernelNodePortProgrammatic;
    edge.type = cudaGraphDependencyTypeProgrammatic;
#endif
#if CUDART_VERSION >= 13000
    return cudaGraphAddDependencies(graph, &from, &to, &edge, 1);
#elif CUDART_VERSION >= 12030
    return cudaGraphAddDependencies_v2(graph, &from, &to, &edge, 1);
#else
    return cudaGraphAddDependencies(graph, &from, &to, 1); // older runtimes have full edges only
#endif
}

cudaError_t add_kernel(gb_replay & r, const cudaKernelNodeParams & node, size_t i, bool early) {
    cudaGraphNode_t * const nodes = r.nodes.data;
    if (!early) {
        return cudaGraphAddKernelNode(&nodes[i], r.graph, i > 0 ? &nodes[i - 1] : nullptr, i > 0 ? 1 : 0, &node);
    }
    const cudaError_t error = cudaGraphAddKernelNode(&nodes[i], r.graph, nullptr, 0, &node);
    return error != cudaSuccess                                       ? error
           : add_edge(r.graph, nodes[i - 1], nodes[i]) == cudaSuccess ? cudaSuccess
                                                                      : no_such_edge;
}

cudaError_t add_node(gb_replay & r, const gb_task_list & list, const gb_task & t, bool dependent, parameters & p) {
    const size_t i = r.nodes.n;
    const bool early = dependent && i > 0 && list.tasks.data[i - 1].kind == GB_TASK_KERNEL;
    const cudaGraphNode_t * after = i > 0 ? &r.nodes.data[i - 1] : nullptr;
    const size_t n = i > 0 ? 1 : 0;
    cudaGraphNode_t * node = &r.nodes.data[r.nodes.n++];
    const cudaMemsetParams clear = zeros(t);
    switch (t.kind) {
        case GB_TASK_KERNEL: return fill(p, list, t) ? add_kernel(r, p.node, i, early) : cudaErrorMemoryAllocation;
        case GB_TASK_COPY:
            return cudaGraphAddMemcpyNode1D(node, r.graph, after, n, t.to, t.from, t.size, cudaMemcpyDeviceToDevice);
        case GB_TASK_CLEAR: return cudaGraphAddMemsetNode(node, r.graph, after, n, &clear);
        case GB_TASK_LIBRARY: return cudaGraphAddChildGraphNode(node, r.graph, after, n, t.library);
    }
    return cudaErrorInvalidValue;
}

cudaError_t set_node(gb_replay & r, size_t i, const gb_task_list & list, const gb_task & t, parameters & p) {
    const cudaGraphNode_t node = r.nodes.data[i];
    const cudaMemsetParams clear = zeros(t);
    switch (t.kind) {
        case GB_TASK_KERNEL:
            return fill(p, list, t) ? cudaGraphExecKernelNodeSetParams(r.exec, node, &p.node)
                                    : cudaErrorMemoryAllocation;
        case GB_TASK_COPY:
            return cudaGraphExecMemcpyNodeSetParams1D(r.exec, node, t.to, t.from, t.size, cudaMemcpyDeviceToDevice);
        case GB_TASK_CLEAR: return cudaGraphExecMemsetNodeSetParams(r.exec, node, &clear);
        case GB_TASK_LIBRARY: return cudaGraphExecChildGraphNodeSetParams(r.exec, node, t.library);
    }
    return cudaErrorInvalidValue;
}

bool same_size(dim3 a, dim3 b) { return a.x == b.x && a.y == b.y && a.z == b.z; }

bool is_same(const gb_task_list & la, const gb_task & a, const gb_task_list & lb, const gb_task & b) {
    switch (a.kind) {
        case GB_TASK_KERNEL:
            return a.function == b.function && same_size(a.grid, b.grid) && same_size(a.block, b.block) &&
                   a.shared == b.shared && a.bytes == b.bytes &&
                   (a.bytes == 0 || memcmp(la.bytes.data + a.bytes_at, lb.bytes.data + b.bytes_at, a.bytes) == 0);
        case GB_TASK_COPY: return a.to == b.to && a.from == b.from && a.size == b.size;
        case GB_TASK_CLEAR: return a.to == b.to && a.size == b.size;
        case GB_TASK_LIBRARY: return false; // the work of a library cannot be compared
    }
    return false;
}

} // namespace

void gb_replay_free(gb_replay & r) {
    if (r.exec != nullptr) {
        (void) cudaGraphExecDestroy(r.exec);
    }
    if (r.graph != nullptr) {
        (void) cudaGraphDestroy(r.graph);
    }
    gb_task_list_free(r.list);
    r.nodes.release();
    r = gb_replay();
}

bool gb_replay_fits(const gb_replay & r, const gb_task_list & list) {
    bool fits = r.list.tasks.n == list.tasks.n;
    for (size_t i = 0; fits && i < list.tasks.n; i++) {
        fits = r.list.tasks.data[i].kind == list.tasks.data[i].kind;
    }
    return fits;
}

// Makes a graph of the list's tasks. On error there is no graph.
static cudaError_t make(gb_replay & r, const gb_task_list & list, bool dependent) {
    parameters p = {};
    cudaError_t error = r.nodes.reserve(list.tasks.n) ? cudaGraphCreate(&r.graph, 0) : cudaErrorMemoryAllocation;
    for (size_t i = 0; i < list.tasks.n && error == cudaSuccess; i++) {
        error = add_node(r, list, list.tasks.data[i], dependent, p);
    }
    if (error == cudaSuccess) {
        error = cudaGraphInstantiate(&r.exec, r.graph, 0);
    }
    p.values.release();
    if (error != cudaSuccess) {
        (void) cudaGetLastError();
        r.exec = nullptr;
        gb_replay_free(r);
    }
    return error;
}

bool gb_replay_make(gb_replay & r, gb_task_list & list, bool & dependent) {
    cudaError_t error = make(r, list, dependent);
    if (error == no_such_edge && dependent) {
        dependent = false;
        error = make(r, list, false);
    }
    if (error == cudaSuccess) {
        std::swap(r.list, list);
    }
    return error == cudaSuccess;
}

bool gb_replay_update(gb_replay & r, gb_task_list & list) {
    parameters p = {};
    cudaError_t error = cudaSuccess;
    for (size_t i = 0; i < list.tasks.n && error == cudaSuccess; i++) {
        if (!is_same(r.list, r.list.tasks.data[i], list, list.tasks.data[i])) {
            error = set_node(r, i, list, list.tasks.data[i], p);
        }
    }
    p.values.release();
    if (error != cudaSuccess) { // exec has a mix of old and new work
        (void) cudaGetLastError();
        gb_replay_free(r);
        return false;
    }
    std::swap(r.list, list);
    return true;
}
