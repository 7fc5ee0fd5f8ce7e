// queue.h - receives the work of operators: for a stream, for a list that becomes a graph, or for nothing (a dry run).
//
// Operators queue kernels (GB_LAUNCH), copies within the device, and zeros. Listed work is data.
// Listing makes no runtime call except for the shared memory of a kernel, so other users of the
// device cannot disturb it. Two lists can be compared. Only a library's work has to be captured.
//
// Invariant: work runs in order. If `dependent` is set, a kernel of the module that directly
// follows another may begin before that kernel has ended, and waits in the kernel
// (gb_wait_for_earlier in launch.cuh). Copies, zeros and a library's work wait for all earlier
// work, and work after them waits for them. A kernel after work of others on the stream also waits.
#ifndef GB_CUDA_QUEUE_H
#define GB_CUDA_QUEUE_H

#include <cuda_runtime.h>

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

// A growing array of trivial elements. Without memory it returns false and throws nothing.
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
    size_t first_value; // index of its first parameter in `offsets`
    int n_values;
    size_t bytes_at, bytes; // of its parameters, in the list's `bytes`
    void * to; // of a copy, of zeros
    const void * from; // of a copy
    size_t size; // bytes; of a copy, of zeros
    cudaGraph_t library; // owned; captured work of a library
};

struct gb_task_list {
    gb_array<gb_task> tasks;
    gb_array<size_t> offsets; // of parameters, in bytes
    gb_array<unsigned char> bytes; // a multiple of 16 for each parameter
    bool broken = false; // some work could not be listed; the list is useless
};

struct gb_queue {
    cudaStream_t stream; // not owned
    gb_task_list * list; // not owned; if set, work is listed
    bool nowhere; // a dry run (graph.cu): work is dropped
    bool dependent = false; // gb_cuda_device.dependent
    mutable bool after_kernel = false; // the last work on the stream is a kernel of this module
};

// The next work waits for everything on the stream, including work of others.
void gb_queue_settle(const gb_queue & queue);

// These do not fail while work is listed. On an error the list becomes broken; the direct launch reports the error.
cudaError_t gb_queue_kernel(const gb_queue & queue, const gb_kernel_launch & launch);
cudaError_t gb_queue_copy(const gb_queue & queue, void * to, const void * from, size_t size); // within the device
cudaError_t gb_queue_clear(const gb_queue & queue, void * to, size_t size); // size: a multiple of 4

// Between these calls a library may queue work. While work is listed, it is captured. If another
// user synchronizes the device, that breaks the capture; the list is then broken, without an error.
void gb_queue_begin_library(const gb_queue & queue);
void gb_queue_end_library(const gb_queue & queue);

void gb_task_list_clear(gb_task_list & list); // empty and not broken
void gb_task_list_free(gb_task_list & list);

#endif // GB_CUDA_QUEUE_H
