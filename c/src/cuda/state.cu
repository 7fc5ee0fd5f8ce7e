// state.cu - identity, errors and scratch memory of a backend: the parts that operators need.
#include <stdio.h>
#include <string.h>

#include "cuda/op.h"

GGML_CALL const char * gb_cuda_backend_name(ggml_backend_t backend) {
    return static_cast<gb_cuda_backend *>(backend->context)->device->name;
}

bool gb_cuda_is_backend(ggml_backend_t backend) {
    return backend != nullptr && backend->iface.get_name == gb_cuda_backend_name;
}

// -------------------------------------------------------------------------------------------------------------- errors

bool gb_cuda_is_usable(gb_cuda_backend & b) {
    if (b.failed) {
        ggml_report_error(GGML_STATUS_DEVICE_ERROR, "%s: it failed before and cannot be used any more: %s",
            b.device->name, b.reason);
    }
    return !b.failed;
}

// Writes "MUL_MAT 'y' f32 [4, 2] of 'w' f16 [...], ...", as the library describes nodes; "" without a node.
static void describe_node(char * text, size_t size, const ggml_tensor * node) {
    char tensor[160];
    text[0] = '\0';
    if (node == nullptr) {
        return;
    }
    gb_cuda_describe(tensor, sizeof(tensor), node);
    size_t n = (size_t) snprintf(text, size, "%s %s", ggml_op_desc(node), tensor);
    for (int j = 0; j < GGML_MAX_SRC && node->src[j] != nullptr && n < size; j++) {
        gb_cuda_describe(tensor, sizeof(tensor), node->src[j]);
        n += (size_t) snprintf(text + n, size - n, "%s %s", j == 0 ? " of" : ",", tensor);
    }
}

enum ggml_status gb_cuda_fail(gb_cuda_backend & b, const char * call, cudaError_t error) {
    char node[640];
    describe_node(node, sizeof(node), b.node);
    char message[1024];
    snprintf(message, sizeof(message), "%.*s: %s (%s)%s%s", (int) strcspn(call, "("), call, cudaGetErrorString(error),
        cudaGetErrorName(error), node[0] != '\0' ? ", " : "", node);
    if (gb_cuda_is_sticky(error)) {
        if (!b.failed) {
            b.failed = true;
            snprintf(b.reason, sizeof(b.reason), "%.*s", (int) sizeof(b.reason) - 1, message);
        }
    } else {
        (void) cudaGetLastError();
    }
    const enum ggml_status status =
        error == cudaErrorMemoryAllocation ? GGML_STATUS_ALLOC_FAILED : GGML_STATUS_DEVICE_ERROR;
    return ggml_report_error(status, "%s: %s", b.device->name, message);
}

// ------------------------------------------------------------------------------------------------------------- scratch

void * gb_cuda_scratch(gb_cuda_backend & b, size_t bytes) {
    gb_cuda_scratch_memory & s = b.scratch;
    const size_t rounded = bytes > 0 ? (bytes + 255) / 256 * 256 : 256;
    if (bytes > SIZE_MAX / 4 || rounded > s.capacity - s.used) {
        ggml_report_error(GGML_STATUS_ALLOC_FAILED, "%s: scratch memory of %zu bytes: %zu of %zu are left",
            b.device->name, bytes, s.capacity - s.used, s.capacity);
        return nullptr;
    }
    void * memory = s.memory + s.used;
    s.used += rounded;
    s.peak = s.used > s.peak ? s.used : s.peak;
    return memory;
}
