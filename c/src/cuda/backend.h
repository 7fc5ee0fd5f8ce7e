// backend.h - the state of a backend, its errors and its scratch memory.
#ifndef GB_CUDA_BACKEND_H
#define GB_CUDA_BACKEND_H

#include "cuda/device.h"
#include "cuda/keep.h"
#include "cuda/queue.h"

struct gb_cuda_graphs;      // graph.h
struct gb_cuda_blas;        // blas.h
struct gb_cuda_index_watch; // index.h
struct gb_cuda_nodes;       // op.h
struct gb_cuda_choice;      // op.h

struct gb_cuda_scratch_memory {
    char * memory;   // owned; in a dry run, an address that is never accessed
    size_t capacity; // bytes
    size_t used;     // bytes; kept data and the current operator
    size_t peak;     // bytes; largest `used`
};

enum gb_cuda_run {
    GB_CUDA_RUN,     // queues work
    GB_CUDA_MEASURE, // a dry run of a graph; makes the same decisions as the run
    GB_CUDA_PLAN,    // a dry run without memory of tensors; takes the larger size where two algorithms are possible
};

struct gb_cuda_backend {
    gb_cuda_device * device;
    cudaStream_t stream; // owned
    gb_queue queue;      // work of operators goes here: to the stream, or to a list
    enum gb_cuda_run kind;
    bool fusing; // nodes of the current graph may be computed together
    bool tf32;   // products of F32 may round their operands to tf32 (GGML_CUDA_TF32)
    bool failed; // after a sticky error; every call is refused
    char reason[512]; // of a failed backend: the message
    const ggml_tensor * node; // the node that is being queued, for messages; NULL between nodes
    gb_cuda_scratch_memory scratch;
    const gb_cuda_nodes * nodes; // of the graph that is being queued
    int at;                      // index of `node`
    gb_array<gb_cuda_kept> kept;
    gb_array<int> readers;       // memory of gb_cuda_nodes.next_reader
    gb_array<gb_cuda_choice> choices; // of each node: its algorithm
    gb_cuda_graphs * graphs;     // owned
    gb_cuda_blas * blas;         // owned; NULL: not used
    gb_cuda_index_watch * index; // owned; NULL in a dry run
    char blas_text[256];         // which cuBLAS is used, or why none; "": not requested
    // The same moment on the clocks of the device and of the host, for event_time.
    cudaEvent_t base_event; // NULL: not made yet
    int64_t base_ns;
};

// ---- state.cu

GGML_CALL const char * gb_cuda_backend_name(ggml_backend_t backend); // the hook; identifies backends of this module
bool gb_cuda_is_backend(ggml_backend_t backend);

bool gb_cuda_is_usable(gb_cuda_backend & b); // false after a sticky error, reported

// Reports a failed call with the current operator and its tensors. A sticky error marks the backend failed.
enum ggml_status gb_cuda_fail(gb_cuda_backend & b, const char * call, cudaError_t error);

// Returns from the enclosing function with the status, unless the call succeeds. `call` gives a
// cudaError_t, as GB_LAUNCH does.
#define GB_CUDA_TRY(backend, call)                            \
    do {                                                      \
        const cudaError_t gb_error_ = (call);                 \
        if (gb_error_ != cudaSuccess) {                       \
            return gb_cuda_fail((backend), #call, gb_error_); \
        }                                                     \
    } while (0)

// Returns device memory for the current operator, 256-aligned and disjoint from its other pieces; NULL on failure,
// reported. The next operator gets the same memory: the order of the stream separates them.
void * gb_cuda_scratch(gb_cuda_backend & b, size_t bytes);

#endif // GB_CUDA_BACKEND_H
