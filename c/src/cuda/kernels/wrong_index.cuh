// wrong_index.cuh - notes an index out of range. index.cu reports it, see index.h.
#ifndef GB_CUDA_KERNELS_WRONG_INDEX_CUH
#define GB_CUDA_KERNELS_WRONG_INDEX_CUH

#include "cuda/index.h"
#include "cuda/launch.cuh"

struct gb_index_reader { // a kernel parameter; a recorded graph keeps it
    gb_cuda_index_note * note;
    const void * dst;
    int column, n_dims;   // as in gb_cuda_index_note
    bool experts, of_ids;
    int64_t limit; // indices must be below it
    char text[GB_CUDA_INDEX_TEXT];
};

// i1, i2, i3: position of the index in ids.
GB_DEVICE void gb_note_wrong_index(const gb_index_reader & r, int64_t id, int64_t i1, int64_t i2, int64_t i3) {
    gb_cuda_index_note * n = r.note;
    if (gb_atomic_add(&n->claimed, 1u) != 0) {
        return;
    }
    n->dst = r.dst;
    n->column = r.column;
    n->n_dims = r.n_dims;
    n->experts = r.experts;
    n->of_ids = r.of_ids;
    n->limit = r.limit;
    n->id = id;
    n->place[0] = i1, n->place[1] = i2, n->place[2] = i3;
    for (int i = 0; i < GB_CUDA_INDEX_TEXT; i++) {
        n->text[i] = r.text[i];
    }
    gb_fence_system();
    *(volatile int *) &n->complete = 1;
}

#endif // GB_CUDA_KERNELS_WRONG_INDEX_CUH
