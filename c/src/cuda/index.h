// index.h - indices that a kernel finds out of range.
//
// A backend has one note in pinned host memory. The first kernel that finds a wrong index fills it
// (wrong_index.cuh). The note is reported once: by synchronize, by a read of memory with the wrong
// result, or by the next graph if the note is complete by then. As long as all indices are right, no
// call waits because of the note.
#ifndef GB_CUDA_INDEX_H
#define GB_CUDA_INDEX_H

#include "cuda/backend.h"

enum { GB_CUDA_INDEX_TEXT = 160 };

struct gb_cuda_index_note {
    unsigned claimed; // 0: all indices were in range
    int complete;     // the other fields are written
    int64_t id;       // the wrong index
    int column;       // MUL_MAT_ID: its column of ids; -1 for other operators, which use `place`
    int n_dims;       // of ids
    bool experts;     // the operator calls the index an expert
    bool of_ids;      // the message says that the index is in the source `ids`
    int64_t place[3]; // position of the index in ids
    int64_t limit;    // indices must be below it
    const void * dst;
    char text[GB_CUDA_INDEX_TEXT]; // the operator and its result
};

struct gb_index_reader; // kernels/wrong_index.cuh

gb_cuda_index_watch * gb_cuda_index_new(const char * device); // NULL on failure, reported
void gb_cuda_index_free(gb_cuda_index_watch * watch);

// A kernel that reads indices from the source `ids` takes this parameter, to fill the note.
gb_index_reader gb_cuda_index_reader(const gb_cuda_backend & b, const ggml_tensor * dst, const ggml_tensor * ids,
    int64_t limit);

// Call it when the queue is empty. False, reported once: there was a wrong index.
bool gb_cuda_index_check(gb_cuda_backend & b);
bool gb_cuda_index_is_noted(const gb_cuda_backend & b); // the note is complete; may be called at any time
// Call it when the device is idle. False, reported: a result in this memory was made with a wrong index.
bool gb_cuda_index_check_memory(const char * device, const char * memory, size_t size);

#endif // GB_CUDA_INDEX_H
