// ffi_support.h - the few things that the Python package does in C: walks over many tensors, and a stop flag that a compute
// thread may poll without the interpreter lock. Included by the generated module only; everything here is static.
#ifndef GBPY_FFI_SUPPORT_H
#define GBPY_FFI_SUPPORT_H

#include <stdatomic.h>
#include <string.h>

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"
#include "gguf/gguf_impl.h"
#include "backend/backend.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/thread.h"
#include "cpu/limits.h"
#include "ffi_build.h"
#include "sched/sched.h"

#ifndef GBPY_VERSION
#    define GBPY_VERSION "0"
#    define GBPY_BUILD_TYPE ""
#endif

// Bit 7 of padding[0] says that the user's buffer in which the tensor lay is gone: then nobody may take it for one that was never placed.
enum { GBPY_LOST = 0x80 };

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

// A backend as Python uses it: by one thread at a time.
struct gbpy_device;
enum {
    GBPY_AGAIN = 1000, // instead of a status: the thread has the device already, and calls from one of its own callbacks
    GBPY_MOVED = 1001, // tensors may have got or lost memory since the epoch that the caller knew
};
static inline struct gbpy_device * gbpy_device_new(struct ggml_backend * backend, struct gbpy_stop * stop);
static inline void                 gbpy_device_free(struct gbpy_device * d);
static inline bool                 gbpy_device_enter(struct gbpy_device * d);
static inline void                 gbpy_device_leave(struct gbpy_device * d);
static inline bool                 gbpy_device_is_busy(const struct gbpy_device * d);
static inline int                  gbpy_device_compute(struct gbpy_device * d, struct ggml_cgraph * graph, int64_t epoch);
static inline int64_t              gbpy_epoch(void);
static inline int64_t              gbpy_moved(void);
static inline int                  gbpy_device_compute_inside(struct gbpy_device * d, struct ggml_cgraph * graph);

static inline const char *     gbpy_version(void);
static inline const char *     gbpy_last_reason(void); // of a broken rule, with marks (tensor/rule.h); "" if there is none
static inline const char *     gbpy_build(void);

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

static inline double gbpy_measure_limit(int what, const char * level, size_t bytes, int n_threads, int64_t ns, bool processor_time);

static inline bool gbpy_can_dequantize(enum ggml_type type);
static inline void gbpy_dequantize(enum ggml_type type, const void * src, float * dst, int64_t n);

static inline const char *     gbpy_gguf_str(const struct gguf_context * ctx, int key_id, uint64_t * length);
static inline const char *     gbpy_gguf_strs(const struct gguf_context * ctx, int key_id, const uint64_t ** lengths);
static inline enum ggml_status gbpy_gguf_set_str(struct gguf_context * ctx, const char * key, const char * bytes, uint64_t length);
static inline enum ggml_status gbpy_gguf_set_strs(struct gguf_context * ctx, const char * key, const char * bytes, const uint64_t * lengths, uint64_t n);
static inline enum ggml_status gbpy_gguf_copy_pair(struct gguf_context * ctx, const struct gguf_context * src, int key_id);
static inline enum ggml_status gbpy_gguf_add_tensor(struct gguf_context * ctx, const char * name, enum ggml_type type, int n_dims, const int64_t * ne);
static inline enum ggml_status gbpy_gguf_copy_tensor(struct gguf_context * ctx, const struct gguf_context * src, int i, const char * name);
static inline bool             gbpy_gguf_is_opaque(const struct gguf_context * ctx, int i);
static inline void             gbpy_gguf_layout(struct gguf_context * ctx);

// cdef: end

static inline double gbpy_measure_limit(int what, const char * level, size_t bytes, int n_threads, int64_t ns, bool processor_time) {
    return gb_cpu_measure_limit((enum gb_cpu_limit) what, level, bytes, n_threads, ns, processor_time);
}

static inline bool gbpy_abort(void * data) {
    struct gbpy_stop * s = (struct gbpy_stop *) data;
    return s->stop || (s->handle && gbpy_abort_py(s->handle));
}

static inline enum ggml_status gbpy_install_stop(struct ggml_backend * cpu, struct gbpy_stop * stop) {
    return ggml_backend_cpu_set_abort_callback(cpu, gbpy_abort, stop);
}

struct gbpy_device {
    gb_mutex              mutex;
    _Atomic(const void *) owner; // the thread that has it, by the address of a variable of its own; NULL: none
    struct ggml_backend * backend; // borrowed, as is `stop`
    struct gbpy_stop *    stop;
};

static inline const void * gbpy_this_thread(void) {
    static _Thread_local char mine;
    return &mine;
}

// NULL: no memory.
static inline struct gbpy_device * gbpy_device_new(struct ggml_backend * backend, struct gbpy_stop * stop) {
    struct gbpy_device * d = (struct gbpy_device *) gb_calloc(1, sizeof(*d));
    if (d && !gb_mutex_init(&d->mutex)) {
        gb_free(d);
        return NULL;
    }
    if (d) {
        d->backend = backend;
        d->stop    = stop;
    }
    return d;
}

static inline void gbpy_device_free(struct gbpy_device * d) {
    gb_mutex_destroy(&d->mutex);
    gb_free(d);
}

// Waits until no other thread has the device. False: this one has it already.
static inline bool gbpy_device_enter(struct gbpy_device * d) {
    const void * me = gbpy_this_thread();
    if (atomic_load_explicit(&d->owner, memory_order_relaxed) == me) { // nobody else writes that
        return false;
    }
    gb_mutex_lock(&d->mutex);
    atomic_store_explicit(&d->owner, me, memory_order_relaxed);
    return true;
}

static inline void gbpy_device_leave(struct gbpy_device * d) {
    atomic_store_explicit(&d->owner, NULL, memory_order_relaxed);
    gb_mutex_unlock(&d->mutex);
}

static inline bool gbpy_device_is_busy(const struct gbpy_device * d) {
    return atomic_load_explicit(&d->owner, memory_order_relaxed) != NULL;
}

// Computes to the end. A wish to stop is served by then, whether it came in time or not.
static inline int gbpy_device_compute_inside(struct gbpy_device * d, struct ggml_cgraph * graph) {
    enum ggml_status status = GGML_STATUS_SUCCESS;
    if (!ggml_backend_graph_compute(d->backend, graph)) {
        status = ggml_last_status();
        status = status == GGML_STATUS_SUCCESS ? GGML_STATUS_FAILED : status;
    } else {
        status = ggml_backend_synchronize(d->backend);
    }
    d->stop->stop = 0;
    return status;
}

// Counts every time that tensors may have got or lost memory. Who moves tensors that a device works with has the device meanwhile.
static atomic_llong gbpy_epochs;

static inline int64_t gbpy_epoch(void) { return atomic_load(&gbpy_epochs); }
static inline int64_t gbpy_moved(void) { return atomic_fetch_add(&gbpy_epochs, 1) + 1; }

// The same with the device to itself, in one call from Python: a small graph takes no longer than its locks would. The caller keeps the memory
// alive in which the tensors lay at `epoch`: if that is not now, nothing is computed.
static inline int gbpy_device_compute(struct gbpy_device * d, struct ggml_cgraph * graph, int64_t epoch) {
    if (!gbpy_device_enter(d)) {
        return GBPY_AGAIN;
    }
    const int status = gbpy_epoch() == epoch ? gbpy_device_compute_inside(d, graph) : GBPY_MOVED;
    gbpy_device_leave(d);
    return status;
}

static inline const char * gbpy_last_reason(void) { return gb_last_reason(); }
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

// ---------------------------------------------------------------------------------------------------- quantized data and GGUF

static inline bool gbpy_can_dequantize(enum ggml_type type) {
    return type == GGML_TYPE_F32 || ggml_internal_get_type_traits(type).to_float != NULL;
}

// n elements, whole blocks, to floats.
static inline void gbpy_dequantize(enum ggml_type type, const void * src, float * dst, int64_t n) {
    const ggml_type_traits_t traits = ggml_internal_get_type_traits(type);
    if (traits.to_float == NULL) {
        memcpy(dst, src, (size_t) n * sizeof(float));
        return;
    }
    for (int64_t i = 0; i < n; i += 1 << 20) { // a multiple of every block
        const int part = n - i < 1 << 20 ? (int) (n - i) : 1 << 20;
        traits.to_float((const char *) src + (size_t) (i / traits.blck_size) * traits.type_size, dst + i, part);
    }
}

// Strings with their lengths: they may contain NUL. The caller has checked key_id and type.
static inline const char * gbpy_gguf_str(const struct gguf_context * ctx, int key_id, uint64_t * length) {
    const struct gb_gguf_value * v = &ctx->kv.data[key_id].value;
    *length = v->n;
    return v->str;
}

// All strings of an array one after another, each followed by a NUL.
static inline const char * gbpy_gguf_strs(const struct gguf_context * ctx, int key_id, const uint64_t ** lengths) {
    const struct gb_gguf_value * v = &ctx->kv.data[key_id].value;
    *lengths = v->lengths;
    return (const char *) v->data;
}

static inline enum ggml_status gbpy_gguf_set_str(struct gguf_context * ctx, const char * key, const char * bytes, uint64_t length) {
    struct gb_gguf_value value = { .type = GGUF_TYPE_STRING, .n = length };
    value.str                  = (char *) gb_malloc((size_t) length + 1);
    if (value.str == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    memcpy(value.str, bytes, (size_t) length);
    value.str[length] = '\0';
    return gb_gguf_put(ctx, key, &value);
}

// bytes: laid out as gbpy_gguf_strs gives them.
static inline enum ggml_status gbpy_gguf_set_strs(struct gguf_context * ctx, const char * key, const char * bytes, const uint64_t * lengths, uint64_t n) {
    struct gb_gguf_value value = { .type = GGUF_TYPE_ARRAY, .arr_type = GGUF_TYPE_STRING, .n = n };
    size_t               total = 0;
    for (uint64_t i = 0; i < n; i++) {
        total += (size_t) lengths[i] + 1;
    }
    char * data   = (char *) gb_malloc(total);
    value.data    = data;
    value.strs    = (char **) gb_calloc((size_t) n, sizeof(*value.strs));
    value.lengths = (uint64_t *) gb_calloc((size_t) n, sizeof(*value.lengths));
    if (data == NULL || value.strs == NULL || value.lengths == NULL) {
        gb_gguf_value_free(&value);
        return GGML_STATUS_ALLOC_FAILED;
    }
    memcpy(data, bytes, total);
    for (uint64_t i = 0; i < n; i++) {
        value.lengths[i] = lengths[i];
        value.strs[i]    = data;
        data += lengths[i] + 1;
    }
    return gb_gguf_put(ctx, key, &value);
}

static inline enum ggml_status gbpy_gguf_copy_pair(struct gguf_context * ctx, const struct gguf_context * src, int key_id) {
    return gb_gguf_copy_pair(ctx, src, (size_t) key_id);
}

static inline enum ggml_status gbpy_check_name(const char * name) {
    const size_t length = strlen(name);
    GB_FAIL_IF(length == 0 || length > GB_GGUF_MAX_KEY, GGML_STATUS_INVALID_ARGUMENT, GGML_STATUS_INVALID_ARGUMENT,
               "a tensor's name has %zu bytes, allowed are 1 .. %d", length, GB_GGUF_MAX_KEY);
    return GGML_STATUS_SUCCESS;
}

// What a file says of a tensor, whose name may be longer than those of ggml tensors. gbpy_gguf_layout gives it its offset.
static inline enum ggml_status gbpy_gguf_add_tensor(struct gguf_context * ctx, const char * name, enum ggml_type type, int n_dims, const int64_t * ne) {
    struct gb_gguf_tensor t = { .type = type, .n_dims = n_dims };
    GB_TRY(gbpy_check_name(name));
    memcpy(t.ne, ne, sizeof(t.ne));
    if (!gb_gguf_tensor_size(name, (uint32_t) type, GGML_MAX_DIMS, t.ne, &t.size)) {
        return GGML_STATUS_INVALID_ARGUMENT;
    }
    t.name = gb_strdup(name);
    return t.name ? gb_gguf_append_tensor(ctx, &t) : GGML_STATUS_ALLOC_FAILED;
}

static inline enum ggml_status gbpy_gguf_copy_tensor(struct gguf_context * ctx, const struct gguf_context * src, int i, const char * name) {
    GB_TRY(gbpy_check_name(name));
    return gb_gguf_copy_tensor(ctx, src, (size_t) i, name);
}

static inline bool gbpy_gguf_is_opaque(const struct gguf_context * ctx, int i) { return ctx->tensors.data[i].opaque; }

static inline void gbpy_gguf_layout(struct gguf_context * ctx) { gb_gguf_layout(ctx); }

#endif // GBPY_FFI_SUPPORT_H
