// index.cu - reports indices that kernels find out of range, see index.h.
#include <stdio.h>
#include <string.h>

#include <mutex>
#include <new>

#include "cuda/kernels/wrong_index.cuh"
#include "cuda/tensors.h"

struct gb_cuda_index_watch {
    gb_cuda_index_note * note; // owned, pinned
    bool reported; // the note was reported but not cleared
    gb_cuda_index_watch * next;
};

namespace {

struct {
    std::mutex lock;
    gb_cuda_index_watch * first = nullptr;
} watches; // of all backends

bool is_complete(const gb_cuda_index_watch * w) { return *static_cast<const volatile int *>(&w->note->complete) != 0; }

void report(const char * device, gb_cuda_index_watch * w) {
    const gb_cuda_index_note & n = *w->note;
    char where[128];
    if (n.column < 0) {
        size_t used = (size_t) snprintf(where, sizeof(where), "%s %lld at " GB_QUOTE_BEGIN "[%lld",
            n.experts ? "expert" : "index", (long long) n.id, (long long) n.place[0]);
        for (int d = 1; d < n.n_dims; d++) {
            used += (size_t) snprintf(where + used, sizeof(where) - used, ", %lld", (long long) n.place[d]);
        }
        snprintf(where + used, sizeof(where) - used, "]" GB_QUOTE_END "%s is", n.of_ids ? " of ids" : "");
    } else {
        snprintf(where, sizeof(where), "ids[%d] of row %lld is %lld, which is", n.column, (long long) n.place[0],
            (long long) n.id);
    }
    w->reported = true;
    ggml_report_error(GGML_STATUS_INVALID_ARGUMENT, "%s: %.*s: %s out of range 0..%lld", device, GB_CUDA_INDEX_TEXT,
        n.text, where, (long long) n.limit - 1);
}

} // namespace

gb_cuda_index_watch * gb_cuda_index_new(const char * device) {
    gb_cuda_index_watch * w = new (std::nothrow) gb_cuda_index_watch();
    void * memory = nullptr;
    if (w == nullptr) {
        ggml_report_error(GGML_STATUS_ALLOC_FAILED, "%s: no host memory for a backend", device);
        return nullptr;
    }
    const cudaError_t error =
        cudaHostAlloc(&memory, sizeof(gb_cuda_index_note), cudaHostAllocPortable | cudaHostAllocMapped);
    if (error != cudaSuccess) {
        gb_cuda_report(device, "cudaHostAlloc", error);
        delete w;
        return nullptr;
    }
    memset(memory, 0, sizeof(gb_cuda_index_note));
    w->note = static_cast<gb_cuda_index_note *>(memory);
    const std::lock_guard<std::mutex> held(watches.lock);
    w->next = watches.first;
    watches.first = w;
    return w;
}

void gb_cuda_index_free(gb_cuda_index_watch * w) {
    if (w == nullptr) {
        return;
    }
    {
        const std::lock_guard<std::mutex> held(watches.lock);
        gb_cuda_index_watch ** at = &watches.first;
        while (*at != w) {
            at = &(*at)->next;
        }
        *at = w->next;
    }
    (void) cudaFreeHost(w->note);
    delete w;
}

gb_index_reader gb_cuda_index_reader(const gb_cuda_backend & b, const ggml_tensor * dst, const ggml_tensor * ids,
    int64_t limit) {
    gb_index_reader r = {};
    r.note = b.index != nullptr ? b.index->note : nullptr; // NULL in a dry run
    r.dst = gb_cuda_data(dst);
    r.column = dst->op == GGML_OP_MUL_MAT_ID ? dst->op_params[0] : -1;
    r.n_dims = ggml_n_dims(ids) < 3 ? ggml_n_dims(ids) : 3;
    r.experts = dst->op == GGML_OP_MUL_MAT_EXPERTS;
    r.of_ids = r.experts || dst->op == GGML_OP_SSM_SCAN;
    r.limit = limit;
    char tensor[128];
    gb_cuda_describe(tensor, sizeof(tensor), dst);
    snprintf(r.text, sizeof(r.text), "%s %s", ggml_op_desc(dst), tensor);
    return r;
}

bool gb_cuda_index_check(gb_cuda_backend & b) {
    const std::lock_guard<std::mutex> held(watches.lock);
    gb_cuda_index_watch * w = b.index;
    if (w->note->claimed == 0) {
        return true;
    }
    const bool known = w->reported;
    if (!known) {
        report(b.device->name, w);
    }
    memset(static_cast<void *>(w->note), 0, sizeof(*w->note));
    w->reported = false;
    return known;
}

bool gb_cuda_index_is_noted(const gb_cuda_backend & b) { return is_complete(b.index); }

bool gb_cuda_index_check_memory(const char * device, const char * memory, size_t size) {
    const std::lock_guard<std::mutex> held(watches.lock);
    for (gb_cuda_index_watch * w = watches.first; w != nullptr; w = w->next) {
        const char * dst = is_complete(w) ? static_cast<const char *>(w->note->dst) : nullptr;
        if (dst != nullptr && dst >= memory && dst < memory + size && !w->reported) {
            report(device, w);
            return false;
        }
    }
    return true;
}
