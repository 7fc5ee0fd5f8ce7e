// ffi_support.h - the few small things that the Python package does in C: walks over many tensors, strings of GGUF
// files, and the functions that C calls. Included by the generated module only; everything here is static. What needs
// to hold together is in core/.
#ifndef GBPY_FFI_SUPPORT_H
#define GBPY_FFI_SUPPORT_H

#include <stddef.h>
#include <string.h>

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"
#include "gguf/gguf_impl.h"
#include "backend/backend.h"
#include "base/mem.h"
#include "base/status.h"
#include "cpu/cpu.h"
#include "cpu/limits.h"
#include "data.h"
#include "ffi_build.h"
#include "ffi_files.h"
#include "ffi_mapped.h"
#include "later.h"
#include "tensor/tensor.h"

#ifndef GBPY_VERSION
#    define GBPY_VERSION    "0"
#    define GBPY_BUILD_TYPE ""
#endif

#define GBPY_PYTHON static // implemented in Python (ffi.def_extern)

// cdef: begin

GBPY_PYTHON bool gbpy_poll(void * data);  // lets Python's signal handlers run; true: one of them raised
GBPY_PYTHON bool gbpy_ask(void * handle); // an abort callback
GBPY_PYTHON void gbpy_log_line(enum ggml_log_level level, const char * text);
GBPY_PYTHON bool gbpy_eval(struct ggml_tensor * t, bool ask, void * user_data);
GBPY_PYTHON bool gbpy_compare(int node_index, struct ggml_tensor * t1, struct ggml_tensor * t2, void * user_data);
GBPY_PYTHON void gbpy_custom1(struct ggml_tensor * dst, const struct ggml_tensor * a, int ith, int nth,
    void * userdata);
GBPY_PYTHON void gbpy_custom2(struct ggml_tensor * dst, const struct ggml_tensor * a, const struct ggml_tensor * b,
    int ith, int nth, void * userdata);
GBPY_PYTHON void gbpy_custom3(struct ggml_tensor * dst, const struct ggml_tensor * a, const struct ggml_tensor * b,
    const struct ggml_tensor * c, int ith, int nth, void * userdata);

static inline void gbpy_log(enum ggml_log_level level, const char * text, void * user_data);

static inline const char * gbpy_version(void);
// of a broken rule, with marks (tensor/rule.h); "" if there is none
static inline const char * gbpy_last_reason(void);
static inline const char * gbpy_build(void);

static inline int  gbpy_graph_customs(struct ggml_cgraph * graph, void ** out, int cap);
static inline void gbpy_flag_leafs(struct ggml_cgraph * graph, bool keep);

static inline double gbpy_measure_limit(int what, const char * level, size_t bytes, int n_threads, int64_t ns,
    bool processor_time);

// the algorithm that is tried i-th for a product (cpu/cpu.h); *why: why it declines, or NULL: it takes the product
static inline const char * gbpy_product_algorithm(const struct ggml_tensor * node, const char * level, int i,
    const char ** why);

static inline bool gbpy_can_dequantize(enum ggml_type type);
static inline void gbpy_dequantize(enum ggml_type type, const void * src, float * dst, int64_t n);

struct gbpy_metadata { // made empty, with gbpy_gguf_free as its destructor
    struct gguf_context * ptr;
};

static inline bool             gbpy_gguf_make(struct gbpy_metadata * metadata);
static inline bool             gbpy_gguf_read(struct gbpy_metadata * metadata, const void * data, size_t size);
static inline void             gbpy_gguf_free(struct gbpy_metadata * metadata);
static inline const char *     gbpy_gguf_str(const struct gguf_context * ctx, int key_id, uint64_t * length);
static inline const char *     gbpy_gguf_strs(const struct gguf_context * ctx, int key_id, const uint64_t ** lengths);
static inline enum ggml_status gbpy_gguf_set_str(struct gguf_context * ctx, const char * key, const char * bytes,
    uint64_t length);
static inline enum ggml_status gbpy_gguf_set_strs(struct gguf_context * ctx, const char * key, const char * bytes,
    const uint64_t * lengths, uint64_t n);
static inline enum ggml_status gbpy_gguf_copy_pair(struct gguf_context * ctx, const struct gguf_context * src,
    int key_id);
static inline enum ggml_status gbpy_gguf_add_tensor(struct gguf_context * ctx, const char * name, enum ggml_type type,
    int n_dims, const int64_t * ne);
static inline enum ggml_status gbpy_gguf_copy_tensor(struct gguf_context * ctx, const struct gguf_context * src, int i,
    const char * name);
static inline bool             gbpy_gguf_is_opaque(const struct gguf_context * ctx, int i);
static inline void             gbpy_gguf_layout(struct gguf_context * ctx);

// cdef: end

static inline double gbpy_measure_limit(int what, const char * level, size_t bytes, int n_threads, int64_t ns,
    bool processor_time) {
    return gb_cpu_measure_limit((enum gb_cpu_limit) what, level, bytes, n_threads, ns, processor_time);
}

static inline const char * gbpy_product_algorithm(const struct ggml_tensor * node, const char * level, int i,
    const char ** why) {
    return gb_cpu_product_algorithm(node, level, i, why);
}

static inline void gbpy_log(enum ggml_log_level level, const char * text, void * user_data) {
    (void) user_data;
    const bool trust = gb_trust_tensors(false); // it may do anything
    gbpy_log_line(level, text);
    gb_trust_tensors(trust);
    gbpy_arm();
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

// Unplaced leafs hold what the user sets: from the start, and with keep also to the end of the graph, so for the next
// run.
static inline void gbpy_flag_leafs(struct ggml_cgraph * graph, bool keep) {
    for (int i = 0; i < graph->n_leafs; i++) {
        struct ggml_tensor * t = graph->leafs[i];
        if ((t->data && !gbpy_has_lost(t)) || t->view_src) {
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

// What the functions of the graph's custom nodes are called with; of at most cap nodes.
static inline int gbpy_graph_customs(struct ggml_cgraph * graph, void ** out, int cap) {
    struct params { // of a custom node, as the kernels have them
        void (*fun)(void);
        int    n_tasks;
        void * userdata;
    };
    int n = 0;
    for (int i = 0; i < graph->n_nodes && n < cap; i++) {
        if (gbpy_is_custom(graph->nodes[i])) {
            memcpy(&out[n++], (const char *) graph->nodes[i]->op_params + offsetof(struct params, userdata),
                sizeof(*out));
        }
    }
    return n;
}

// --------------------------------------------------------------------------------------------- quantized data and GGUF

static inline bool gbpy_can_dequantize(enum ggml_type type) {
    return type == GGML_TYPE_F32 || gb_to_float_of(type) != NULL;
}

// n elements, whole blocks, to floats.
static inline void gbpy_dequantize(enum ggml_type type, const void * src, float * dst, int64_t n) {
    const ggml_to_float_t to_float = gb_to_float_of(type);
    if (to_float == NULL) {
        gb_mapped_enter();
        memcpy(dst, src, (size_t) n * sizeof(float));
        gb_mapped_leave();
        return;
    }
    gb_mapped_enter();
    for (int64_t i = 0; i < n; i += 1 << 20) { // a multiple of every block
        const int part = n - i < 1 << 20 ? (int) (n - i) : 1 << 20;
        to_float((const char *) src + (size_t) (i / ggml_blck_size(type)) * ggml_type_size(type), dst + i, part);
    }
    gb_mapped_leave();
}

static inline bool gbpy_gguf_make(struct gbpy_metadata * metadata) {
    metadata->ptr = gguf_init_empty();
    return metadata->ptr != NULL;
}

static inline bool gbpy_gguf_read(struct gbpy_metadata * metadata, const void * data, size_t size) {
    const struct gguf_init_params params = { .no_alloc = true };
    metadata->ptr                        = gguf_init_from_buffer(data, size, params);
    return metadata->ptr != NULL;
}

static inline void gbpy_gguf_free(struct gbpy_metadata * metadata) {
    gguf_free(metadata->ptr);
    metadata->ptr = NULL;
}

// Strings with their lengths: they may contain NUL. The caller has checked key_id and type.
static inline const char * gbpy_gguf_str(const struct gguf_context * ctx, int key_id, uint64_t * length) {
    const struct gb_gguf_value * v = &ctx->kv.data[key_id].value;
    *length                        = v->n;
    return v->str;
}

// All strings of an array one after another, each followed by a NUL.
static inline const char * gbpy_gguf_strs(const struct gguf_context * ctx, int key_id, const uint64_t ** lengths) {
    const struct gb_gguf_value * v = &ctx->kv.data[key_id].value;
    *lengths                       = v->lengths;
    return (const char *) v->data;
}

static inline enum ggml_status gbpy_gguf_set_str(struct gguf_context * ctx, const char * key, const char * bytes,
    uint64_t length) {
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
static inline enum ggml_status gbpy_gguf_set_strs(struct gguf_context * ctx, const char * key, const char * bytes,
    const uint64_t * lengths, uint64_t n) {
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

static inline enum ggml_status gbpy_gguf_copy_pair(struct gguf_context * ctx, const struct gguf_context * src,
    int key_id) {
    return gb_gguf_copy_pair(ctx, src, (size_t) key_id);
}

static inline enum ggml_status gbpy_check_name(const char * name) {
    const size_t length = strlen(name);
    GB_FAIL_IF(length == 0 || length > GB_GGUF_MAX_KEY, GGML_STATUS_INVALID_ARGUMENT,
        "a tensor's name has %zu bytes, allowed are 1 .. %d", length, GB_GGUF_MAX_KEY);
    return GGML_STATUS_SUCCESS;
}

// What a file says of a tensor, whose name may be longer than those of ggml tensors. gbpy_gguf_layout gives it its
// offset.
static inline enum ggml_status gbpy_gguf_add_tensor(struct gguf_context * ctx, const char * name, enum ggml_type type,
    int n_dims, const int64_t * ne) {
    struct gb_gguf_tensor t = { .type = type, .n_dims = n_dims };
    GB_TRY(gbpy_check_name(name));
    memcpy(t.ne, ne, sizeof(t.ne));
    if (!gb_gguf_tensor_size(name, (uint32_t) type, GGML_MAX_DIMS, t.ne, &t.size)) {
        return GGML_STATUS_INVALID_ARGUMENT;
    }
    t.name = gb_strdup(name);
    return t.name ? gb_gguf_append_tensor(ctx, &t) : GGML_STATUS_ALLOC_FAILED;
}

static inline enum ggml_status gbpy_gguf_copy_tensor(struct gguf_context * ctx, const struct gguf_context * src, int i,
    const char * name) {
    GB_TRY(gbpy_check_name(name));
    return gb_gguf_copy_tensor(ctx, src, (size_t) i, name);
}

static inline bool gbpy_gguf_is_opaque(const struct gguf_context * ctx, int i) { return ctx->tensors.data[i].opaque; }

static inline void gbpy_gguf_layout(struct gguf_context * ctx) { gb_gguf_layout(ctx); }

#endif // GBPY_FFI_SUPPORT_H
