// graph.h - running graphs: node by node the first time, as recorded CUDA graphs later.
#ifndef GB_CUDA_GRAPH_H
#define GB_CUDA_GRAPH_H

#include "cuda/backend.h"

gb_cuda_graphs * gb_cuda_graphs_new(void); // NULL: no memory
void gb_cuda_graphs_free(gb_cuda_graphs * graphs);
void gb_cuda_graphs_set(gb_cuda_graphs * graphs, bool on); // off: no graph is recorded or replayed

typedef struct ggml_backend_cuda_graph_stats gb_cuda_graph_stats;
gb_cuda_graph_stats gb_cuda_graphs_stats(const gb_cuda_graphs * graphs);

enum ggml_status gb_cuda_graph_compute(gb_cuda_backend & b, const ggml_cgraph * graph);

// Bytes of scratch memory that the graph needs. Its tensors need no memory yet.
enum ggml_status gb_cuda_graph_work_size(const gb_cuda_backend & b, const ggml_cgraph * graph, size_t * size);

#endif // GB_CUDA_GRAPH_H
