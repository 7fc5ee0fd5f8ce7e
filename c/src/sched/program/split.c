// split.c - cuts the node list into splits. A split begins where the backend changes.
#include "sched/assign/assign.h"
#include "sched/input/input.h"
#include "sched/program/program.h"

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

// Nodes that compute nothing have a backend, too, but do not begin a split.
enum ggml_status gb_sched_cut(const struct gb_sched_input * in, const struct gb_sched_assigned * assigned,
    struct gb_sched_program * program) {
    int32_t * backend = gb_calloc((size_t) in->n_nodes, sizeof(*backend));
    uint8_t * computes = gb_calloc((size_t) in->n_nodes, sizeof(*computes));
    gb_split_list ranges = { 0 };
    bool ok = backend && computes;
    for (int i = 0; ok && i < in->n_nodes; i++) {
        backend[i] = assigned->to[i].backend;
        computes[i] = in->ids.data[i].computes;
    }
    ok = ok && gb_split_nodes(backend, computes, in->n_nodes, &ranges);
    for (size_t k = 0; ok && k < ranges.n; k++) {
        const struct gb_split_range * r = &ranges.data[k];
        ok = gb_vec_push(&program->splits,
            ((struct gb_split){ .backend = r->backend, .start = r->start, .end = r->end }));
    }
    gb_free(backend);
    gb_free(computes);
    gb_vec_free(&ranges);
    return ok ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}
