// replay.h - executable graphs, made from lists of work.
//
// Each task becomes a node that depends on the previous one. Another list with tasks of the same kinds
// in the same order can use the graph: the parameters of the nodes that differ are set.
//
// A kernel node after another kernel node has a programmatic edge, as a dependent launch (queue.h).
// The edges depend on the kinds of tasks alone, so all lists that fit have the same edges.
#ifndef GB_CUDA_REPLAY_H
#define GB_CUDA_REPLAY_H

#include "cuda/queue.h"

struct gb_replay {
    cudaGraph_t graph = nullptr; // owned; its nodes identify the nodes of exec
    cudaGraphExec_t exec = nullptr; // owned; NULL: none
    gb_array<cudaGraphNode_t> nodes; // one for each task
    gb_task_list list; // the work of exec
};

// True if the list has tasks of the same kinds as r.
bool gb_replay_fits(const gb_replay & r, const gb_task_list & list);

// Takes the list's contents; exec must be NULL. False: exec is still NULL, and the runtime's error
// is cleared. dependent: kernels may begin early; becomes false if the driver refuses such edges,
// as drivers before 12.3 do.
bool gb_replay_make(gb_replay & r, gb_task_list & list, bool & dependent);

// Takes the contents of a list that fits. False: a node could not be changed, and r is empty.
bool gb_replay_update(gb_replay & r, gb_task_list & list);

void gb_replay_free(gb_replay & r);

#endif // GB_CUDA_REPLAY_H
