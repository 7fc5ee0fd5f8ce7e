// kernel_test.h - shared by tests that launch kernels themselves: memory, a stream, copies.
#ifndef GB_TESTS_KERNEL_TEST_H
#define GB_TESTS_KERNEL_TEST_H

#include "cuda_test.h"
#include "cuda/launch.cuh"

#include <vector>

struct device_memory {
    void * p = nullptr;
    size_t size;
    explicit device_memory(size_t bytes) : size(bytes) { (void) cudaMalloc(&p, bytes); }
    ~device_memory() { (void) cudaFree(p); }
};

static cudaStream_t stream() {
    static cudaStream_t s = nullptr;
    if (s == nullptr) {
        (void) cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    }
    return s;
}

static gb_queue queue() { return { stream(), nullptr, false }; }

template <class T> static std::vector<T> read_back(const device_memory & m) {
    std::vector<T> host(m.size / sizeof(T));
    (void) cudaMemcpyAsync(host.data(), m.p, m.size, cudaMemcpyDeviceToHost, stream());
    CHECK_INT(cudaStreamSynchronize(stream()), cudaSuccess);
    return host;
}

template <class T> static void write(const device_memory & m, const std::vector<T> & host) {
    (void) cudaMemcpyAsync(m.p, host.data(), m.size, cudaMemcpyHostToDevice, stream());
    CHECK_INT(cudaStreamSynchronize(stream()), cudaSuccess);
}

#endif // GB_TESTS_KERNEL_TEST_H
