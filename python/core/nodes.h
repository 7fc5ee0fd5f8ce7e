// nodes.h - nodes as messages between processes (c/src/tensor/nodes.h), for devices that compute elsewhere.
#ifndef GBPY_NODES_H
#define GBPY_NODES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "devices.h"

// cdef: begin

struct gbpy_bytes { // made empty, with gbpy_bytes_free as destructor
    void * data;
    size_t size;
};
void gbpy_bytes_free(struct gbpy_bytes * bytes);

// Writes the message of n nodes, which lie in memory of the device with that handle. device NULL: writes a question
// about nodes, which then have no memory and no names. Returns a status.
int gbpy_nodes_write(void * device, struct ggml_tensor ** nodes, int n, struct gbpy_bytes * bytes);

// Writes the message of a graph for a file. The n_leafs tensors are its leafs with content, in the order of their
// numbers from 1. Other leafs must be among them, too. Returns a status.
int gbpy_graph_write(struct ggml_tensor ** nodes, int n, struct ggml_tensor ** leafs, int n_leafs,
    struct gbpy_bytes * bytes);

struct gb_nodes;
// Reads a message. NULL, with an error message: no builder could have made the graph.
struct gb_nodes * gbpy_nodes_read(const void * bytes, size_t size);
void gbpy_nodes_free(struct gb_nodes * nodes);
struct ggml_cgraph * gbpy_nodes_graph(struct gb_nodes * nodes);
// The memories that the message names. Set each before gbpy_nodes_bind, which puts the tensors there and returns a
// status.
int gbpy_nodes_n_memories(const struct gb_nodes * nodes);
uint64_t gbpy_nodes_memory(const struct gb_nodes * nodes, int i, bool * weights);
void gbpy_nodes_set_memory(struct gb_nodes * nodes, int i, struct ggml_backend_buffer * buffer, void * base,
    size_t size);
int gbpy_nodes_bind(struct gb_nodes * nodes);

// cdef: end

#endif // GBPY_NODES_H
