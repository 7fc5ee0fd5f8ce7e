// ggml-program.h - runs program files: networks with their weights as GGUF files, which
// program.save of the Python package writes. docs/howto/from-c.md has an example.
//
// A file has a graph for each size that the program computed before it was saved. Other sizes need
// the Python package, which builds their graphs from the network in the file.
//
// A scheduler computes a graph of a program as any other graph:
//
//     ggml_program_t program = ggml_program_load("model.gguf", NULL);
//     struct ggml_cgraph * graph = ggml_program_graph(program, 0);
//     ggml_backend_sched_alloc_graph(sched, graph);
//     ggml_backend_tensor_set(ggml_program_input(program, 0, "image"), pixels, 0, size);
//     ggml_backend_sched_graph_compute(sched, graph);
//     ggml_backend_tensor_get(ggml_program_output(program, 0, "logits"), logits, 0, n_bytes);
//
// Inputs and outputs are F32, also ids and masks. A tensor has the shape of the model with at most
// four axes: the first axes of a larger shape are one.
//
// Files are untrusted: a damaged file is an error with a message, and its graphs can be computed
// without harm. Functions accept NULL: they return NULL, -1 or 0, and set the error.
//
// A program owns its graphs and tensors. Free schedulers that have computed them first. Several
// threads may read a program. They may compute different graphs at the same time, unless the graphs
// have states.
#ifndef GGML_PROGRAM_H
#define GGML_PROGRAM_H

#include "ggml-backend.h"

#ifdef __cplusplus
extern "C" {
#endif

// cdef: begin

typedef struct ggml_program * ggml_program_t;

// backend: gets a copy of the weights. NULL: the graphs read the weights in the mapped file, which
// must not change before ggml_program_free.
// A tensor that a graph writes is a state. It begins with the value in the file. All graphs of a
// program share it, and the file does not change. A state is in the memory of the backend, or of the
// CPU.
// NULL with IO_ERROR: the file cannot be read, is damaged, or is no program. NULL with UNSUPPORTED:
// the file has no graphs.
GGML_API ggml_program_t ggml_program_load(const char * path, ggml_backend_t backend);
GGML_API void ggml_program_free(ggml_program_t program); // NULL is allowed

GGML_API int ggml_program_n_graphs(ggml_program_t program);
// Graph 0 is that of the last computed size.
GGML_API struct ggml_cgraph * ggml_program_graph(ggml_program_t program, int graph);
// The number of the first graph whose named axes have these n sizes. -1: there is none, and the
// message lists the sizes that there are.
GGML_API int ggml_program_find(ggml_program_t program, const char * const * axes, const int64_t * sizes, int n);
// The size of a named axis in a graph. -1: the graph has no such axis.
GGML_API int64_t ggml_program_size(ggml_program_t program, int graph, const char * axis);

// Names are those of Python. An input that the model does not read, and a result that depends on no
// input, are not in the file. NULL: there is no such number or name.
GGML_API int ggml_program_n_inputs(ggml_program_t program, int graph);
GGML_API int ggml_program_n_outputs(ggml_program_t program, int graph);
GGML_API const char * ggml_program_input_name(ggml_program_t program, int graph, int i);
GGML_API const char * ggml_program_output_name(ggml_program_t program, int graph, int i);
GGML_API struct ggml_tensor * ggml_program_input(ggml_program_t program, int graph, const char * name);
GGML_API struct ggml_tensor * ggml_program_output(ggml_program_t program, int graph, const char * name);

// cdef: end

#ifdef __cplusplus
}
#endif

#endif // GGML_PROGRAM_H
