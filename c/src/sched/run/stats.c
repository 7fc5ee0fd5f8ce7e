// stats.c - counts copies and waits for users.
#include <string.h>

#include "sched/program/program.h"
#include "sched/run/run.h"
#include "sched/sched.h"

// A root that a node writes has a version greater than 0.
enum ggml_backend_sched_reason gb_sched_reason(const struct gb_copy * copy) {
    if (copy->kept) {
        return GGML_BACKEND_SCHED_REASON_WEIGHT;
    }
    return copy->version > 0 ? GGML_BACKEND_SCHED_REASON_RESULT : GGML_BACKEND_SCHED_REASON_INPUT;
}

// Counts one transfer.
static void add(struct ggml_backend_sched_traffic * traffic, size_t bytes) {
    traffic->n++;
    traffic->bytes += bytes;
}

// A kept copy that is not due counts as up to date. A copy with merged copies counts once, with all
// bytes.
void gb_sched_count_copy(struct ggml_backend_sched * s, const struct gb_copy * copy, bool due) {
    if (copy->kept && !due) {
        add(&s->stats.up_to_date, copy->hi - copy->lo);
        return;
    }
    switch (gb_sched_reason(copy)) {
        case GGML_BACKEND_SCHED_REASON_WEIGHT: add(&s->stats.weights, copy->span); break;
        case GGML_BACKEND_SCHED_REASON_RESULT: add(&s->stats.results, copy->span); break;
        case GGML_BACKEND_SCHED_REASON_INPUT: add(&s->stats.inputs, copy->span); break;
        case GGML_BACKEND_SCHED_REASON_NONE: break;
    }
}

void gb_sched_count_back(struct ggml_backend_sched * s, const struct gb_write_back * back) {
    add(&s->stats.write_backs, ggml_nbytes(&back->from->tensor));
}

enum ggml_status ggml_backend_sched_get_stats(ggml_backend_sched_t sched, struct ggml_backend_sched_stats * stats) {
    GB_CHECK_ARG(sched);
    GB_CHECK_ARG(stats);
    *stats = sched->stats;
    return GGML_STATUS_SUCCESS;
}

enum ggml_status ggml_backend_sched_reset_stats(ggml_backend_sched_t sched) {
    GB_CHECK_ARG(sched);
    memset(&sched->stats, 0, sizeof(sched->stats));
    return GGML_STATUS_SUCCESS;
}
