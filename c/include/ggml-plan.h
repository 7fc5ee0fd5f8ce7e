// ggml-plan.h - memory planning: offsets for buffers with known lifetimes, and graphs that need less
// memory by another order or by computing results again. ggml-alloc.h includes this header.
// docs/PLANNING.md has examples.
#ifndef GGML_PLAN_H
#define GGML_PLAN_H

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

// cdef: begin

// Finds offsets for n buffers. Buffer i is alive in [lower[i], upper[i]) and has size[i] bytes.
// Buffers that are alive at the same time do not overlap. The peak is never above that of in-order
// best fit.
//   alignment  a power of two
//   capacity   bytes; a plan of at most this size is good enough. 0: as small as possible. If no plan fits,
//              the call fails with ALLOC_FAILED, and offsets and info have the smallest plan found
//   budget_ms  milliseconds of search if heuristics miss the lower bound; 0: none. The budget is counted in steps.
//              If these take longer than the budget, the clock (processor time of the calling thread) ends the
//              search. Only then does the plan depend on the clock
struct ggml_plan_info {
    size_t peak;  // bytes; sizes are rounded up to the alignment
    size_t lower_bound; // most bytes alive at the same time. No plan has a smaller peak
    size_t best_fit; // the peak of in-order best fit, for comparison
    bool proved; // no plan has a smaller peak than this one
    double milliseconds; // wall time of the call
    size_t bound; // largest known lower bound: lower_bound, or a higher one that the search has proved
    bool searched; // bound > lower_bound
    bool unfinished; // not proved, and a larger budget would probably give a smaller peak
};
GGML_API enum ggml_status ggml_plan_memory(size_t n, const int64_t * lower, const int64_t * upper, const size_t * size,
    size_t alignment, size_t capacity, int64_t budget_ms, size_t * offsets, struct ggml_plan_info * info);

// The same with more options.
//   n_threads     threads that try several orders of buffers at once; 0 means 1. Does not change the plan, unless
//                 the clock ends the search
//   reproducible  only steps end the search, 500,000 per millisecond of the budget. So equal inputs, capacities and
//                 budgets give equal offsets and info (except milliseconds) on any machine and for any n_threads, if
//                 there is memory for the search. The steps may take longer than the budget (docs/PLANNING.md).
//                 Another version of the library may give another plan. Equal plans need IEEE 754 doubles in
//                 round-to-nearest mode; 32-bit x86 without SSE2 may give another plan
struct ggml_plan_options {
    size_t capacity;
    int64_t budget_ms;
    int n_threads;
    bool reproducible;
};
GGML_API enum ggml_status ggml_plan_memory_with(size_t n, const int64_t * lower, const int64_t * upper,
    const size_t * size, size_t alignment, const struct ggml_plan_options * options, size_t * offsets,
    struct ggml_plan_info * info);

// Returns a graph of the same tensors, in an order with fewer bytes alive at the same time if it
// finds one. cgraph does not change. The copy lives in ctx. The new order keeps dependences, so
// results are the same bits. Call it before the graph gets memory: tensors that have memory are
// left out of the sum. NULL on failure.
GGML_API struct ggml_cgraph * ggml_graph_reorder(struct ggml_context * ctx, struct ggml_cgraph * cgraph);

// Returns a graph with the same results that has at most max_bytes of results alive at the same time.
// Some results are dropped after a use and computed again before the next one (gradient
// checkpointing, rematerialization). cgraph and its tensors do not change.
//
// The new graph has the tensors of cgraph where it can, and clones: of nodes that run again, and of
// nodes that read a clone. Clones belong to ctx, which should be made with no_alloc. The result of a
// clone is the same bits, because it has the same operator and sources with the same values. Some
// nodes never run again: nodes that write into another tensor, custom operators, outputs, and nodes
// whose sources are overwritten before.
//
// counted: by node; true if max_bytes counts the result. Views do not count. NULL: nodes without
// memory count. Sizes are rounded up to 32 bytes. A plan may need a little more than the bytes alive,
// and memory for copies between devices. Returns NULL on failure. If max_bytes is below info->least,
// the status is ALLOC_FAILED, and *info is complete.
struct ggml_recompute_info {
    size_t before;      // most bytes alive at the same time in cgraph
    size_t after;       // the same in the new graph
    size_t least;       // smallest max_bytes that the search can meet
    size_t lower_bound; // no graph with these nodes in this order meets a smaller max_bytes
    double work;  // of cgraph: an operation counts 1, a byte read or written 8
    double again; // of the nodes that run again
    int n_again;  // number of nodes that run again, views not counted
    const int32_t * origins; // in ctx; by node of the new graph: the index in cgraph of the node with the same values
};
GGML_API struct ggml_cgraph * ggml_graph_recompute(struct ggml_context * ctx, struct ggml_cgraph * cgraph,
    size_t max_bytes, const bool * counted, struct ggml_recompute_info * info);

// The same for several limits: one search, and a graph for each limit. A higher limit never costs
// more. cgraph must outlive the search, and its nodes must not change. A graph outlives the search.
// To go through all choices, from cheap to tight, pass SIZE_MAX and then info->after - 1.
struct ggml_recompute;
GGML_API struct ggml_recompute * ggml_recompute_new(struct ggml_cgraph * cgraph, const bool * counted);
GGML_API struct ggml_cgraph * ggml_recompute_graph(struct ggml_recompute * search, struct ggml_context * ctx,
    size_t max_bytes, struct ggml_recompute_info * info);
GGML_API void ggml_recompute_free(struct ggml_recompute * search);

// cdef: end

#ifdef __cplusplus
}
#endif

#endif // GGML_PLAN_H
