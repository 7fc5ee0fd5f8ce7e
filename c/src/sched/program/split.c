// split.c - a new split begins where the backend changes.
#include "sched/program/split.h"

bool gb_split_nodes(const int32_t * backend, const uint8_t * computes, int n_nodes, gb_split_list * out) {
    bool decided = false; // the current split has a node that computes
    for (int i = 0; i < n_nodes; i++) {
        struct gb_split_range * last = out->n > 0 ? &out->data[out->n - 1] : NULL;
        if (last != NULL && (!computes[i] || !decided || last->backend == backend[i])) {
            if (computes[i] && !decided) {
                last->backend = backend[i];
            }
            last->end = i + 1;
        } else if (!gb_vec_push(out, ((struct gb_split_range){ backend[i], i, i + 1 }))) {
            return false;
        }
        decided |= computes[i] != 0;
    }
    return true;
}
