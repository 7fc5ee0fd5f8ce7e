// device_graph.h - a small graph with data from the host, computed on the first CUDA device.
#ifndef GB_TESTS_DEVICE_GRAPH_H
#define GB_TESTS_DEVICE_GRAPH_H

#include <string>
#include <vector>

#include "cuda_test.h"

struct device_graph {
    ggml_context * ctx;        // tensors with host memory
    std::vector<float> result; // of the last compute

    device_graph() { ctx = ggml_init({ (size_t) 64 << 20, NULL, false }); }
    ~device_graph() { ggml_free(ctx); }
    device_graph(const device_graph &) = delete;
    device_graph & operator=(const device_graph &) = delete;

    // False, with a failed check: the device does not compute it. before: NULL, or a graph to compute first.
    bool compute(ggml_tensor * dst, ggml_tensor * before = NULL) {
        ggml_backend_t cuda = cuda_open(0);
        ggml_cgraph * graph = ggml_new_graph(ctx);
        if (before != NULL) {
            ggml_build_forward_expand(graph, before);
        }
        ggml_build_forward_expand(graph, dst);
        const bool ok = cuda != NULL && compute_on(cuda, graph, dst);
        ggml_backend_free(cuda);
        return ok;
    }

  private:
    bool compute_on(ggml_backend_t cuda, ggml_cgraph * graph, const ggml_tensor * dst) {
        for (int i = 0; i < graph->n_nodes; i++) {
            if (!ggml_backend_supports_op(cuda, graph->nodes[i])) {
                test_fail(__FILE__, __LINE__, "%s: %s", ggml_op_name(graph->nodes[i]->op),
                    ggml_backend_unsupported_reason(cuda, graph->nodes[i]));
                return false;
            }
        }
        struct ggml_backend_graph_copy copy = ggml_backend_graph_copy(cuda, graph);
        if (copy.graph == NULL) {
            return false;
        }
        // reported for the graph without device memory
        const size_t reported = cuda_work_size(cuda, graph), before = cuda_free_memory(0);
        const bool ok = ggml_backend_graph_compute(cuda, copy.graph);
        cuda_check_work_size(ggml_op_name(dst->op), before - cuda_free_memory(0), reported, CUDA_WORK_EXACT);
        result.assign((size_t) ggml_nelements(dst), NAN);
        if (ok) {
            ggml_backend_tensor_get(copy.graph->nodes[copy.graph->n_nodes - 1], result.data(), 0,
                result.size() * sizeof(float));
        }
        ggml_backend_graph_copy_free(copy);
        return ok;
    }
};

#endif // GB_TESTS_DEVICE_GRAPH_H
