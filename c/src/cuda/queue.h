// queue.h - where the work of an operator goes: a stream of the device, a list that becomes a graph, or nowhere.
//
// Operators hand over three things: launches of kernels (GB_LAUNCH), copies within the device, and zeros. What is
// listed is data: it makes no call of the runtime but for the shared memory of a kernel, so nobody else who uses the
// device can disturb it, and two lists can be compared. Only what a library queues for itself has to be captured.
//
// Invariant: the work of a list is done in its order, each piece after the one before it. Where `dependent` is set, a
// kernel that directly follows another kernel of ours may begin before that one has ended, and waits for it by itself
// (gb_wait_for_earlier in launch.cuh). Copies, zeros and what a library queues wait for all before them, and what
// follows these waits for them, as does the first kernel after anything that did not come through the queue.
#ifndef GB_CUDA_QUEUE_H
#define GB_CUDA_QUEUE_H

#include <cuda_runtime.h>

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

// A growing array of plain things; no memory is a false, not an exception.
template <class T> struct gb_array {
    T * data = nullptr;
    size_t n = 0;
    size_t capacity = 0;

    bool reserve(size_t wanted) {
        if (wanted <= capacity) {
            return true;
        }
        const size_t grown = wanted + wanted / 2 + 64;
        T * moved = static_cast<T *>(realloc(static_cast<void *>(data), grown * sizeof(T)));
        if (moved == nullptr) {
            return false;
        }
        data = moved;
        capacity = grown;
        return true;
    }
    void swap(gb_array & other) {
        const gb_array t = *this;
        *this = other;
        other = t;
    }
    void release() {
        free(static_cast<void *>(data));
        *this = gb_array();
    }
};

struct gb_kernel_launch {
    const void * function;
    dim3 grid, block;
    size_t shared;
    void ** values; // of the parameters
    const size_t * sizes;
    int n;
};

enum gb_task_kind { GB_TASK_KERNEL, GB_TASK_COPY, GB_TASK_CLEAR, GB_TASK_LIBRARY };

struct gb_task {
    enum gb_task_kind kind;
    const void * function; // kernel
    dim3 grid, block;
    size_t shared;
    size_t first_value; // number of its first parameter in the list's offsets
    int n_values;
    size_t bytes_at, bytes; // of its parameters, in the list's bytes
    void * to;              // copy, clear
    const void * from;      // copy
    size_t size;            // copy, clear
    cudaGraph_t library;    // owned: what a library queued
};

struct gb_task_list {
    gb_array<gb_task> tasks;
    gb_array<size_t> offsets;      // of parameters, in bytes
    gb_array<unsigned char> bytes; // a multiple of 16 for each parameter
    bool broken = false;           // something could not be listed: the list is of no use
};

struct gb_queue {
    cudaStream_t stream;               // not owned
    gb_task_list * list;               // not NULL: work is listed instead of queued; not owned
    bool nowhere;                      // a dry run (graph.cu): what is queued there is not
    bool dependent = false;            // gb_cuda_device.dependent
    mutable bool after_kernel = false; // of ours, the last that came to the stream
};

// What comes next waits for everything on the stream: others may have used it.
void gb_queue_settle(const gb_queue & queue);

// Where work is listed these do not fail: the list is broken, and whoever queues the work instead hears why.
cudaError_t gb_queue_kernel(const gb_queue & queue, const gb_kernel_launch & launch);
cudaError_t gb_queue_copy(const gb_queue & queue, void * to, const void * from, size_t size); // within the device
cudaError_t gb_queue_clear(const gb_queue & queue, void * to, size_t size);                   // size: a multiple of 4

// What a library queues on the stream in between belongs to the queue. While it is listed it is captured, which another
// user of the device who synchronizes it breaks: then the list is broken, and that is no error.
void gb_queue_begin_library(const gb_queue & queue);
void gb_queue_end_library(const gb_queue & queue);

void gb_task_list_clear(gb_task_list & list); // empty, and not broken
void gb_task_list_free(gb_task_list & list);

#endif // GB_CUDA_QUEUE_H
