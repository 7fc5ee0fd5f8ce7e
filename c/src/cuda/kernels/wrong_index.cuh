// wrong_index.cuh - what a kernel says of an index that is out of range (index.cu reports it).
//
// A backend has one note, in pinned memory of the host: nobody looks at it, or waits, until the queue is empty anyway.
// The first kernel that finds a wrong index writes the note, and until that was reported nobody else does.
#ifndef GB_CUDA_KERNELS_WRONG_INDEX_CUH
#define GB_CUDA_KERNELS_WRONG_INDEX_CUH

#include "cuda/index.h"
#include "cuda/launch.cuh"

struct gb_index_reader { // who reads indices, by value in the launch: a recorded graph keeps it
    gb_cuda_index_note * note;
    const void * dst;
    int which;     // of the tensor's parameters, for the message
    int64_t limit; // indices are below
    char text[GB_CUDA_INDEX_TEXT];
};

// place: where the index stands, in dimensions 1 to 3 of the result.
GB_DEVICE void gb_note_wrong_index(const gb_index_reader & r, int id, int64_t i1, int64_t i2, int64_t i3) {
    gb_cuda_index_note * n = r.note;
    if (gb_atomic_add(&n->claimed, 1u) != 0) {
        return;
    }
    n->dst = r.dst;
    n->which = r.which;
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
