// report.h - what a plan decided, told in words and numbers. Nothing is decided here.
#ifndef GB_SCHED_REPORT_REPORT_H
#define GB_SCHED_REPORT_REPORT_H

#include "base/vec.h"
#include "ggml.h"

struct ggml_backend_sched;
struct gb_sched_plan;

struct gb_fallback { // a node that a better backend refuses
    int32_t node, refused_by;
    double  flops;
    size_t  n_copies, copied; // bytes
    char    reason[192];
};

typedef GB_VEC(struct gb_fallback) gb_fallback_list;

// fallback.c
enum ggml_status           gb_sched_find_fallbacks(struct ggml_backend_sched * s, struct gb_sched_plan * p);
const struct gb_fallback * gb_sched_fallback_of(const struct gb_sched_plan * p, int node); // NULL: it is none
// of what it reads; of its result, too
void gb_sched_count_copies(const struct gb_sched_plan * p, int node, bool of_result, size_t * n, size_t * bytes);

// explain.c
const char * gb_sched_explain(struct ggml_backend_sched * s, struct gb_sched_plan * p, int id);

#endif // GB_SCHED_REPORT_REPORT_H
