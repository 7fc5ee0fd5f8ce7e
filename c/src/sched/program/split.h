// split.h - cutting a node list into runs of one backend. Pure.
#ifndef GB_SCHED_PROGRAM_SPLIT_H
#define GB_SCHED_PROGRAM_SPLIT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/vec.h"

struct gb_split_range {
    int backend;
    int start, end; // nodes [start, end)
};

typedef GB_VEC(struct gb_split_range) gb_split_list;

// backend[i], computes[i] per node. Nodes that compute nothing never cut: they belong to the split they stand in,
// leading ones to the first. The ranges cover [0, n_nodes) without gaps. False when memory is out (reported); `out`
// must be empty.
bool gb_split_nodes(const int32_t * backend, const uint8_t * computes, int n_nodes, gb_split_list * out);

#endif // GB_SCHED_PROGRAM_SPLIT_H
