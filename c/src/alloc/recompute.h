// recompute.h - finds sequences of nodes with fewer bytes alive at the same time, in which some
// results are dropped and computed again before they are read again.
//
// The problem is rematerialization: Chen et al. 2016 (arXiv:1604.06174), Jain et al. 2020
// (Checkmate). It is NP-hard. The search works on integers; graph_recompute.c makes them from a
// graph.
#ifndef GB_ALLOC_RECOMPUTE_H
#define GB_ALLOC_RECOMPUTE_H

#include "alloc/liveness.h"

enum { GB_RECOMPUTE_NONE = -1 };

struct gb_recompute_node {
    int n_reads;
    int reads[GB_LIVE_SLOTS]; // storages that need their content, each once; not the one that it makes
    bool over[GB_LIVE_SLOTS]; // by read: the node may overwrite the storage if it dies here and has the same size
    int makes;   // the storage that begins with it; NONE: it makes none, or writes into another one
    double work; // price of running it again
};

struct gb_recompute_storage {
    size_t size;    // bytes
    int maker;      // NONE: its content comes from outside
    bool may_repeat; // the maker may run again: only it writes the storage, and it has no other effect
    bool to_end;    // needed after the last node
    int valid_until; // the maker computes the same bytes again before this node, and before all earlier ones
};

struct gb_recompute_input {
    const struct gb_recompute_node * nodes; // in order; each reads storages of earlier ones
    int n_nodes;
    const struct gb_recompute_storage * storages;
    int n_storages;
};

struct gb_recompute_choice {
    // Owned; node numbers. Each node occurs at least once, and after the makers of what it reads.
    // Nodes whose storage may not repeat, or is needed to the end, run once, in the given order
    int * sequence;
    int n;
    size_t peak;  // most bytes alive at the same time
    double again; // work of the repetitions
};

struct gb_recompute_result {
    struct gb_recompute_choice * choices; // owned; the peaks rise and the work falls. The last one is the given order
    int n_choices;
    size_t before;      // most bytes alive at the same time in the given order
    size_t least;       // smallest limit that a choice meets
    size_t lower_bound; // no such sequence has fewer bytes alive at the same time
    double work;        // of all nodes
};

// Finds sequences for all limits. Equal inputs give equal results. Frees nothing of the input. If it
// fails, the result has no choices, and need not be freed.
enum ggml_status gb_recompute(const struct gb_recompute_input * in, struct gb_recompute_result * result);

// The choice with the least work and a peak of at most `limit`. NULL: there is none. A higher limit
// never costs more work.
const struct gb_recompute_choice * gb_recompute_choose(const struct gb_recompute_result * result, size_t limit);

void gb_recompute_free(struct gb_recompute_result * result);

#endif // GB_ALLOC_RECOMPUTE_H
