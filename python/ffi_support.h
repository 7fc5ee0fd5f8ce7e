// ffi_support.h - the few things that the Python package does in C: walks over many tensors, and a stop flag that a compute
// thread may poll without the interpreter lock. Included by the generated module only; everything here is static.
#ifndef GBPY_FFI_SUPPORT_H
#define GBPY_FFI_SUPPORT_H

#include <string.h>

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"
#include "backend/backend.h"
#include "sched/sched.h"

#ifndef GBPY_VERSION
#    define GBPY_VERSION "0"
#    define GBPY_BUILD_TYPE ""
#endif

// The dimension count that Python shows is kept in the tensor, so that every handle of one tensor agrees on its shape:
// bits 4 to 6 of padding[0] are 0 (not known) or the count plus one (c/src/tensor/tensor.h says who owns which padding).
// Bit 7 says that the user's buffer in which the tensor lay is gone: then nobody may take it for one that was never placed.
enum { GBPY_NDIM_SHIFT = 4, GBPY_NDIM_MASK = 7, GBPY_LOST = 0x80 };

#define GBPY_PYTHON static // implemented in Python (ffi.def_extern)

// cdef: begin

struct gbpy_stop {
    volatile int stop; // set by anybody: the computation ends before its next node
    void *       handle; // NULL, or what gbpy_abort_py is called with
};

GBPY_PYTHON bool gbpy_abort_py(void * handle);
GBPY_PYTHON void gbpy_log(enum ggml_log_level level, const char * text, void * user_data);
GBPY_PYTHON bool gbpy_eval(struct ggml_tensor * t, bool ask, void * user_data);
GBPY_PYTHON bool gbpy_compare(int node_index, struct ggml_tensor * t1, struct ggml_tensor * t2, void * user_data);
GBPY_PYTHON void gbpy_custom1(struct ggml_tensor * dst, const struct ggml_tensor * a, int ith, int nth, void * userdata);
GBPY_PYTHON void gbpy_custom2(struct ggml_tensor * dst, const struct ggml_tensor * a, const struct ggml_tensor * b, int ith, int nth, void * userdata);
GBPY_PYTHON void gbpy_custom3(struct ggml_tensor * dst, const struct ggml_tensor * a, const struct ggml_tensor * b, const struct ggml_tensor * c, int ith, int nth, void * userdata);

static inline enum ggml_status gbpy_install_stop(struct ggml_backend * cpu, struct gbpy_stop * stop);
static inline const char *     gbpy_version(void);
static inline const char *     gbpy_build(void);

static inline void                         gbpy_set_ndim(struct ggml_tensor * t, int ndim);
static inline int                          gbpy_ndim(const struct ggml_tensor * t);
static inline struct ggml_backend_buffer * gbpy_buffer(const struct ggml_tensor * t);
static inline bool                         gbpy_refresh(struct ggml_tensor * t);
static inline bool                         gbpy_is_lost(const struct ggml_tensor * t);

static inline bool gbpy_sched_has(const struct ggml_backend_sched * sched, const struct ggml_tensor * t);
static inline void gbpy_sched_hold(struct ggml_backend_sched * sched, bool hold);
static inline size_t gbpy_sched_n_buffers(const struct ggml_backend_sched * sched);
static inline struct ggml_backend_buffer * gbpy_sched_buffer(const struct ggml_backend_sched * sched, size_t i);

static inline struct ggml_backend_buffer * gbpy_buffer_part(struct ggml_backend_buffer * buffer, size_t i);

static inline void gbpy_detach(struct ggml_context * ctx, const struct ggml_backend_buffer * buffer, bool views, bool lost);
static inline int  gbpy_graph_buffers(struct ggml_cgraph * graph, struct ggml_backend_buffer ** out, int cap);
static inline struct ggml_tensor * gbpy_graph_writer(struct ggml_cgraph * graph, const struct ggml_backend_buffer * buffer);
static inline struct ggml_tensor * gbpy_graph_unplaced(struct ggml_cgraph * graph);
static inline struct ggml_tensor * gbpy_graph_lost(struct ggml_cgraph * graph);
static inline int                  gbpy_graph_customs(struct ggml_cgraph * graph, struct ggml_tensor ** out, int cap);
static inline void                 gbpy_flag_leafs(struct ggml_cgraph * graph, bool keep);

// cdef: end

static inline bool gbpy_abort(void * data) {
    struct gbpy_stop * s = (struct gbpy_stop *) data;
    return s->stop || (s->handle && gbpy_abort_py(s->handle));
}

static inline enum ggml_status gbpy_install_stop(struct ggml_backend * cpu, struct gbpy_stop * stop) {
    return ggml_backend_cpu_set_abort_callback(cpu, gbpy_abort, stop);
}

static inline const char * gbpy_version(void) { return GBPY_VERSION; }

static inline const char * gbpy_build(void) {
#if defined(__clang__)
    return "clang " __clang_version__ ", " GBPY_BUILD_TYPE;
#elif defined(__GNUC__)
    return "gcc " __VERSION__ ", " GBPY_BUILD_TYPE;
#else
    return GBPY_BUILD_TYPE;
#endif
}

static inline void gbpy_set_ndim(struct ggml_tensor * t, int ndim) {
    const int others = t->padding[0] & ~(GBPY_NDIM_MASK << GBPY_NDIM_SHIFT);
    t->padding[0]    = (char) (others | (ndim + 1) << GBPY_NDIM_SHIFT);
}

// The count last set, or the number of dimensions that the sizes need.
static inline int gbpy_ndim(const struct ggml_tensor * t) {
    const int need = ggml_is_scalar(t) ? 0 : ggml_n_dims(t);
    const int kept = (t->padding[0] >> GBPY_NDIM_SHIFT & GBPY_NDIM_MASK) - 1;
    if (kept < 0) {
        return need > 0 ? need : 1;
    }
    return kept < need ? need : kept;
}

static inline struct ggml_backend_buffer * gbpy_buffer(const struct ggml_tensor * t) {
    return t->view_src && t->view_src->buffer ? t->view_src->buffer : t->buffer;
}

// A view made before its source was placed, or placed elsewhere, gets its place. False: the tensor has no memory.
static inline bool gbpy_refresh(struct ggml_tensor * t) {
    struct ggml_tensor * root = t->view_src ? t->view_src : t;
    if (!root->data) {
        return false;
    }
    char * data = (char *) root->data + (t == root ? 0 : t->view_offs);
    if (t->data == data && t->buffer == root->buffer) {
        return true;
    }
    t->data   = root->buffer ? NULL : data;
    t->buffer = NULL;
    return !root->buffer || ggml_backend_view_init(root->buffer, t) == GGML_STATUS_SUCCESS;
}

static inline bool gbpy_is_lost(const struct ggml_tensor * t) {
    const struct ggml_tensor * root = t->view_src ? t->view_src : t;
    return !root->data && (root->padding[0] & GBPY_LOST);
}

// Is the content of t, which lies in memory of the scheduler, still there? (Not when another graph uses its place.)
static inline bool gbpy_sched_has(const struct ggml_backend_sched * sched, const struct ggml_tensor * t) {
    const struct ggml_tensor * root = t->view_src ? t->view_src : t;
    const struct gb_sched_plan * p  = sched->current;
    if (gb_sched_leaf_is_bound(sched, root)) {
        return true;
    }
    const int64_t at = p ? gb_ptrmap_get(&p->map, root) : GB_PTRMAP_ABSENT;
    return at != GB_PTRMAP_ABSENT && p->key[at].data == root->data && p->key[at].buffer == root->buffer;
}

static inline void gbpy_sched_hold(struct ggml_backend_sched * sched, bool hold) { gb_sched_hold(sched, hold); }

// All buffers that the scheduler ever made; their handles live as long as it does.
static inline size_t gbpy_sched_n_buffers(const struct ggml_backend_sched * sched) { return sched->mems.n; }

static inline struct ggml_backend_buffer * gbpy_sched_buffer(const struct ggml_backend_sched * sched, size_t i) {
    return sched->mems.data[i]->buffer;
}

// A buffer is about to go: its tensors in ctx become unplaced. Views first (they find it through their source), in all contexts.
static inline void gbpy_detach(struct ggml_context * ctx, const struct ggml_backend_buffer * buffer, bool views, bool lost) {
    for (struct ggml_tensor * t = ggml_get_first_tensor(ctx); t; t = ggml_get_next_tensor(ctx, t)) {
        if ((t->view_src != NULL) == views && (t->buffer == buffer || gbpy_buffer(t) == buffer)) {
            t->buffer = NULL;
            t->data   = NULL;
            t->extra  = NULL;
            const int flag = lost && t->op == GGML_OP_NONE && !views ? GBPY_LOST : 0;
            t->padding[0]  = (char) ((t->padding[0] & ~GBPY_LOST) | flag);
        }
    }
}

static inline int gbpy_add_buffer(struct ggml_backend_buffer * b, struct ggml_backend_buffer ** out, int n, int cap) {
    for (int i = 0; i < n; i++) {
        if (out[i] == b) {
            return n;
        }
    }
    if (b && n < cap) {
        out[n++] = b;
    }
    return n;
}

static inline struct ggml_backend_buffer * gbpy_buffer_part(struct ggml_backend_buffer * buffer, size_t i) {
    return gb_multi_buffer_part(buffer, i);
}

// Different buffers that the nodes and leafs of a graph live in; at most cap.
static inline int gbpy_graph_buffers(struct ggml_cgraph * graph, struct ggml_backend_buffer ** out, int cap) {
    int n = 0;
    for (int i = 0; i < graph->n_leafs; i++) {
        n = gbpy_add_buffer(gbpy_buffer(graph->leafs[i]), out, n, cap);
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        n = gbpy_add_buffer(gbpy_buffer(graph->nodes[i]), out, n, cap);
    }
    return n;
}

static inline bool gbpy_is_view_op(enum ggml_op op) {
    return op == GGML_OP_NONE || op == GGML_OP_RESHAPE || op == GGML_OP_VIEW || op == GGML_OP_PERMUTE || op == GGML_OP_TRANSPOSE;
}

// The first node that would write into `buffer`; NULL if none.
static inline struct ggml_tensor * gbpy_graph_writer(struct ggml_cgraph * graph, const struct ggml_backend_buffer * buffer) {
    for (int i = 0; i < graph->n_nodes; i++) {
        struct ggml_tensor * t = graph->nodes[i];
        if (!gbpy_is_view_op(t->op) && gbpy_buffer(t) == buffer) {
            return t;
        }
    }
    return NULL;
}

// The first tensor of the graph that has no memory; NULL if none.
static inline struct ggml_tensor * gbpy_graph_unplaced(struct ggml_cgraph * graph) {
    for (int i = 0; i < graph->n_leafs; i++) {
        if (!graph->leafs[i]->data) {
            return graph->leafs[i];
        }
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        if (!graph->nodes[i]->data) {
            return graph->nodes[i];
        }
    }
    return NULL;
}

// The first tensor that the graph starts from and that lost its memory; NULL if none.
static inline struct ggml_tensor * gbpy_graph_lost(struct ggml_cgraph * graph) {
    for (int i = 0; i < graph->n_leafs; i++) {
        if (gbpy_is_lost(graph->leafs[i])) {
            return graph->leafs[i];
        }
    }
    for (int i = 0; i < graph->n_nodes; i++) { // views of what is not in the graph
        if (graph->nodes[i]->view_src && gbpy_is_lost(graph->nodes[i])) {
            return graph->nodes[i];
        }
    }
    return NULL;
}

// Unplaced leafs hold what the user sets: from the start, and with keep also to the end of the graph, so for the next run.
static inline void gbpy_flag_leafs(struct ggml_cgraph * graph, bool keep) {
    for (int i = 0; i < graph->n_leafs; i++) {
        struct ggml_tensor * t = graph->leafs[i];
        if (t->data || t->view_src) {
            continue;
        }
        ggml_set_input(t);
        if (keep) {
            ggml_set_output(t);
        }
    }
}

static inline bool gbpy_is_custom(const struct ggml_tensor * t) {
    return t->op == GGML_OP_MAP_CUSTOM1 || t->op == GGML_OP_MAP_CUSTOM2 || t->op == GGML_OP_MAP_CUSTOM3;
}

// Custom nodes of the graph; at most cap.
static inline int gbpy_graph_customs(struct ggml_cgraph * graph, struct ggml_tensor ** out, int cap) {
    int n = 0;
    for (int i = 0; i < graph->n_nodes && n < cap; i++) {
        if (gbpy_is_custom(graph->nodes[i])) {
            out[n++] = graph->nodes[i];
        }
    }
    return n;
}

#endif // GBPY_FFI_SUPPORT_H
