// ggml-plan.h - planning memory before any is there: offsets for buffers with lifetimes, and orders of graphs that need
// less at once. ggml-alloc.h includes this header; docs/PLANNING.md explains the methods.
#ifndef GGML_PLAN_H
#define GGML_PLAN_H

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

// cdef: begin

// Static memory planning without tensors: offsets for n buffers of which buffer i is alive from lower[i] up to, not
// including, upper[i], so that no two alive together overlap and peak is small: never more than in-order best fit
// gives. alignment: a power of two.
//   capacity   0: as small as can be. Else a plan of at most so many bytes is good enough; if none is found,
//              ALLOC_FAILED, and offsets and info hold the smallest that was
//   budget_ms  for search where heuristics do not reach the lower bound; 0: none. It is spent in steps, not by the
//              clock (the calling thread's processor time), which ends what takes longer than the budget: the same
//              input gives the same plan where the clock does not
struct ggml_plan_info {
    size_t peak; // bytes; sizes count rounded up to the alignment
    size_t lower_bound; // most bytes alive at once: no plan has a smaller peak
    size_t best_fit; // the peak of in-order best fit, for comparison
    bool proved; // no plan has a smaller peak than this one
    double milliseconds; // that it took
    size_t bound; // no plan has a smaller peak than this either: the lower bound, or more
    bool searched; // it is more: shown by complete search, of all buffers or of those alive where most bytes are
    bool unfinished; // not proved, and a larger budget would probably give a smaller peak
};
GGML_API enum ggml_status ggml_plan_memory(size_t n, const int64_t * lower, const int64_t * upper, const size_t * size,
    size_t alignment, size_t capacity, int64_t budget_ms, size_t * offsets, struct ggml_plan_info * info);

// The same with more to choose.
//   n_threads     that try several orders of buffers at once; 0 as 1. Without the clock it changes no plan
//   reproducible  the steps alone end the search, 500,000 for each millisecond of the budget; the clock does not. So
//                 the same input, capacity and budget_ms give the same offsets, and the same info but for milliseconds,
//                 on any machine, busy or not, and for any n_threads, as long as there is memory for the search. The
//                 price is time: the steps may take longer than the budget (docs/PLANNING.md: how much). Another
//                 version of the library may give another plan. Of floating point a plan depends on sums, products,
//                 quotients and square roots of doubles, each rounded on its own as IEEE 754 says: neither libm nor
//                 -ffp-contract changes it, but a thread's rounding mode may, and 32-bit x86 without SSE2
struct ggml_plan_options {
    size_t capacity;
    int64_t budget_ms;
    int n_threads;
    bool reproducible;
};
GGML_API enum ggml_status ggml_plan_memory_with(size_t n, const int64_t * lower, const int64_t * upper,
    const size_t * size, size_t alignment, const struct ggml_plan_options * options, size_t * offsets,
    struct ggml_plan_info * info);

// A graph of the same nodes in an order in which fewer bytes are alive at once, if one is found, else in the same
// order. It refers to the tensors of cgraph, which is not changed; the copy lives in ctx. Each node comes after all
// that it needs, writes into memory that others use included, so results are the same bits. To be called before the
// graph gets memory: tensors that have some do not count. NULL on failure.
GGML_API struct ggml_cgraph * ggml_graph_reorder(struct ggml_context * ctx, struct ggml_cgraph * cgraph);

// cdef: end

#ifdef __cplusplus
}
#endif

#endif // GGML_PLAN_H
