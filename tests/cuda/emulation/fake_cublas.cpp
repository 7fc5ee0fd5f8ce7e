// fake_cublas.cpp - a library with the functions of cuBLAS that the backend calls, for tests. It queues products on the
// emulation's streams and computes each element in double precision, as cuBLAS documents. Compiled with POOR it lacks
// the product.
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "emulation.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

enum { SUCCESS = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };

namespace {

struct fake_handle {
    void * stream;
    void * workspace;
    size_t workspace_size;
};

int n_products, n_handles, failing_after = -1, failing_with;

struct product {
    int op_a, op_b, m, n, k, a_type, b_type, a_column, b_column, c_column, count;
    const char * a;
    const char * b;
    float * c;
    long long a_next, b_next, c_next;
    float alpha, beta;
};

size_t size_of(int type) { return type == 0 ? 4 : 2; }

double element(const char * p, int type, long long i) {
    uint16_t h;
    float f;
    if (type == 0) {
        memcpy(&f, p + i * 4, 4);
        return f;
    }
    memcpy(&h, p + i * 2, 2);
    if (type == 14) {
        const uint32_t bits = (uint32_t) h << 16;
        memcpy(&f, &bits, 4);
        return f;
    }
    const int exponent = h >> 10 & 31, fraction = h & 1023;
    const double magnitude = exponent == 31 ? (fraction ? NAN : INFINITY)
                             : exponent     ? ldexp(1024 + fraction, exponent - 25)
                                            : ldexp(fraction, -24);
    return h & 0x8000 ? -magnitude : magnitude;
}

[[maybe_unused]] void multiply(const void * argument) {
    product p;
    memcpy(&p, argument, sizeof(p));
    for (int s = 0; s < p.count; s++) {
        const char * a = p.a + s * p.a_next * (long long) size_of(p.a_type);
        const char * b = p.b + s * p.b_next * (long long) size_of(p.b_type);
        float * c = p.c + s * p.c_next;
        for (int j = 0; j < p.n; j++) {
            for (int i = 0; i < p.m; i++) {
                double sum = 0;
                for (int k = 0; k < p.k; k++) {
                    sum +=
                        element(a, p.a_type, p.op_a ? (long long) i * p.a_column + k : (long long) k * p.a_column + i) *
                        element(b, p.b_type, p.op_b ? (long long) k * p.b_column + j : (long long) j * p.b_column + k);
                }
                float * to = c + (long long) j * p.c_column + i;
                *to = (float) (p.alpha * sum + (p.beta != 0 ? p.beta * (double) *to : 0));
            }
        }
    }
}

} // namespace

// ---- for tests

EXPORT int fake_cublas_products(void) { return n_products; }
EXPORT int fake_cublas_handles(void) { // that exist
    return n_handles;
}
EXPORT void fake_cublas_fail(int after, int status) { // a later call fails, after `after` more of any function below
    failing_after = after;
    failing_with = status;
}

static bool fails(void) { return failing_after >= 0 && failing_after-- == 0; }

// ---- the library

EXPORT int cublasCreate_v2(fake_handle ** handle) {
    if (fails()) {
        return failing_with;
    }
    *handle = new fake_handle();
    n_handles++;
    return SUCCESS;
}

EXPORT int cublasDestroy_v2(fake_handle * handle) {
    delete handle;
    n_handles--;
    return SUCCESS;
}

EXPORT int cublasSetStream_v2(fake_handle * handle, void * stream) {
    handle->stream = stream;
    handle->workspace = nullptr; // as documented
    return fails() ? failing_with : SUCCESS;
}

EXPORT int cublasSetWorkspace_v2(fake_handle * handle, void * workspace, size_t size) {
    handle->workspace = workspace;
    handle->workspace_size = size;
    return fails() ? failing_with : (uintptr_t) workspace % 256 != 0 ? INVALID_VALUE : SUCCESS;
}

EXPORT int cublasGetVersion_v2(fake_handle *, int * version) {
    *version = 130099;
    return fails() ? failing_with : SUCCESS;
}

#ifndef POOR
EXPORT int cublasGemmStridedBatchedEx(fake_handle * handle, int op_a, int op_b, int m, int n, int k, const void * alpha,
    const void * a, int a_type, int a_column, long long a_next, const void * b, int b_type, int b_column,
    long long b_next, const void * beta, void * c, int c_type, int c_column, long long c_next, int count, int compute,
    int algorithm) {
    if (fails()) {
        return failing_with;
    }
    if (handle->stream == nullptr || handle->workspace == nullptr || handle->workspace_size == 0) {
        return NOT_INITIALIZED; // a product that allocates cannot be recorded
    }
    if (op_a < 0 || op_a > 1 || op_b < 0 || op_b > 1 || m < 0 || n < 0 || k < 0 || count < 0 || c_column < m ||
        a_column < (op_a ? k : m) || b_column < (op_b ? n : k)) {
        return INVALID_VALUE;
    }
    if (a_type != b_type || (a_type != 0 && a_type != 2 && a_type != 14) || c_type != 0 || compute != 68 ||
        algorithm != -1) {
        return NOT_SUPPORTED;
    }
    product p = { op_a, op_b, m, n, k, a_type, b_type, a_column, b_column, c_column, count, (const char *) a,
        (const char *) b, (float *) c, a_next, b_next, c_next, 0, 0 };
    memcpy(&p.alpha, alpha, 4);
    memcpy(&p.beta, beta, 4);
    n_products++;
    return gb_emu_queue(handle->stream, multiply, &p, sizeof(p)) == 0 ? SUCCESS : 14;
}
#endif
