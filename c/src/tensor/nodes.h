// nodes.h - nodes as a message. A process sends the nodes to compute. The receiver checks them and
// builds its own graph.
//
//  message  u32 n_tensors, n_nodes; the tensors; n_nodes x u32: the nodes' tensors, in the order of computing
//  tensor   a record and its sources (record.h); u32 flags; i32 root; u64 offset in the root; u64 memory, offset
//
// Roots and sources come before the tensors that name them. A tensor that is not among the nodes is
// a leaf. Instead of the data of a leaf, as in a graph file, a message holds its place: the number
// of a memory that both processes know, and an offset in it. Number 0 means no place, for a message
// that only asks whether a backend supports nodes. Flags mark tensors in memory for weights and
// results that need not be stored. So both processes fuse the same nodes.
#ifndef GB_TENSOR_NODES_H
#define GB_TENSOR_NODES_H

#include "base/vec.h"
#include "tensor/record.h"

enum { GB_NODES_HEAD_SIZE = 8, GB_NODES_TENSOR_SIZE = GB_RECORD_SIZE + GB_SOURCES_SIZE + 4 + 4 + 3 * 8 };

// The place of the bytes of a tensor that is not a view.
struct gb_nodes_place {
    uint64_t memory, offset; // memory 0: no place
    bool weights;            // the memory is for weights
    bool may_leave_out;      // it is a result that need not be stored
};

// Finds the place of a tensor. A failure is reported.
typedef enum ggml_status (*gb_nodes_find)(void * context, const struct ggml_tensor * t, struct gb_nodes_place * place);

typedef GB_VEC(uint8_t) gb_nodes_bytes;

// Appends the message of nodes to `bytes`. `named`: with the tensors' names. After a failure
// `bytes` may hold a part.
enum ggml_status gb_nodes_write(struct ggml_tensor * const * nodes, int n, bool named, gb_nodes_find find,
    void * context, gb_nodes_bytes * bytes);

// A memory that a message names, and the reader's buffer for it.
struct gb_nodes_memory {
    uint64_t number;
    bool weights;                        // one of its tensors is a weight
    struct ggml_backend_buffer * buffer;  // the reader sets these three
    char * base;
    size_t size;
};

// A graph that a message described. It is freed as a whole.
struct gb_nodes {
    struct ggml_cgraph graph;
    struct ggml_tensor * tensors;
    int n_tensors;
    struct gb_nodes_memory * memories;
    int n_memories;
    int * memory_of;    // by tensor; -1: in no memory
    uint64_t * offsets; // in that memory
};

// NULL with INVALID_ARGUMENT (reported): no builder could have made these nodes.
struct gb_nodes * gb_nodes_read(const uint8_t * bytes, size_t size);
// Places the tensors in the memories, whose buffers the caller has set. INVALID_ARGUMENT: a tensor
// is not inside its memory.
enum ggml_status gb_nodes_bind(struct gb_nodes * nodes);
void gb_nodes_free(struct gb_nodes * nodes);  // NULL is allowed

#endif // GB_TENSOR_NODES_H
