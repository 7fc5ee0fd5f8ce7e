// replay.h - a list of work as an executable graph, and the same graph with other work of the same kinds.
//
// A node is made for each task, one after the other; nothing is captured. Another list with tasks of the same kinds in
// the same order is taken over by setting the parameters of the nodes that differ; the rest of the graph stays.
//
// A kernel's node that follows another kernel's depends on it as a dependent launch does (queue.h). Which nodes do so
// follows from the kinds of tasks alone, so it is the same for every list that fits.
#ifndef GB_CUDA_REPLAY_H
#define GB_CUDA_REPLAY_H

#include "cuda/queue.h"

struct gb_replay {
    cudaGraph_t graph = nullptr;     // owned: its nodes are the names by which exec is changed
    cudaGraphExec_t exec = nullptr;  // owned; NULL: there is none
    gb_array<cudaGraphNode_t> nodes; // of the tasks
    gb_task_list list;               // what exec does
};

// Whether the list's tasks are of the kinds that r has.
bool gb_replay_fits(const gb_replay & r, const gb_task_list & list);

// Takes the list's contents, exec is NULL before. False: exec stays NULL, and the runtime's record has no error of it.
// dependent: kernels may begin before those before them have ended; becomes false where the driver refuses that, as
// one before 12.3 does.
bool gb_replay_make(gb_replay & r, gb_task_list & list, bool & dependent);

// Takes the contents of a list that fits. False: a node could not be changed, and r is as after gb_replay_free.
bool gb_replay_update(gb_replay & r, gb_task_list & list);

void gb_replay_free(gb_replay & r);

#endif // GB_CUDA_REPLAY_H
