// ffi_support.h - small parts of the Python package in C: loops over many tensors, strings of GGUF files, and the
// Python functions that C calls. Only the generated module includes this file, so all functions are static. Calls
// that must not be interrupted halfway are in core/.
#ifndef GBPY_FFI_SUPPORT_H
#define GBPY_FFI_SUPPORT_H

#include <stddef.h>
#include <string.h>

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"
#include "extension.h"
#include "data.h"
#include "devices.h"
#include "ffi_build.h"
#include "ffi_files.h"
#include "ffi_mapped.h"
#include "later.h"

#ifndef GBPY_VERSION
#    define GBPY_VERSION "0"
#    define GBPY_BUILD_TYPE ""
#endif

#define GBPY_PYTHON static // implemented in Python (ffi.def_extern)

// cdef: begin

GBPY_PYTHON bool gbpy_poll(void * data); // runs Python's signal handlers; true: one of them raised an exception
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

GBPY_PYTHON void gbpy_custom(struct ggml_tensor * dst, int ith, int nth, void * userdata);

// the hooks of devices written in Python (core/devices.h)
GBPY_PYTHON int gbpy_device_open(void * entry, const char * params, struct gbpy_device_info * info, void ** device);
GBPY_PYTHON void gbpy_device_close(void * device);
GBPY_PYTHON int gbpy_device_alloc(void * device, size_t size, struct gbpy_memory_info * info, void ** memory);
GBPY_PYTHON void gbpy_device_free(void * memory);
GBPY_PYTHON int gbpy_device_settle(void * memory);
GBPY_PYTHON int gbpy_device_write(void * memory, size_t offset, const void * data, size_t size);
GBPY_PYTHON int gbpy_device_read(void * memory, size_t offset, void * data, size_t size);
GBPY_PYTHON int gbpy_device_fill(void * memory, int value, size_t size);
GBPY_PYTHON int gbpy_device_copy(void * to, size_t to_offset, void * from, size_t from_offset, size_t size,
    bool * done);
GBPY_PYTHON int gbpy_device_file_begin(void * memory, size_t offset, const struct ggml_backend_file_fill * part,
    void ** request);
GBPY_PYTHON int gbpy_device_file_end(void * request, bool wanted, bool * found);
GBPY_PYTHON int gbpy_device_file_keep(void * memory, size_t offset, const struct ggml_backend_file_fill * part);
GBPY_PYTHON int gbpy_device_work_size(void * device, struct ggml_cgraph * graph, size_t * size);
GBPY_PYTHON int gbpy_device_transfer(void * device, const struct gbpy_piece * to, const struct gbpy_piece * from,
    size_t size, bool * done);
GBPY_PYTHON int gbpy_device_refuses(void * device, const struct ggml_tensor * node, bool * refuses);
GBPY_PYTHON void * gbpy_device_compile(void * device, struct ggml_cgraph * graph);
GBPY_PYTHON int gbpy_device_run(void * compiled);
GBPY_PYTHON void gbpy_device_forget(void * compiled);
GBPY_PYTHON int gbpy_device_synchronize(void * device);
GBPY_PYTHON void * gbpy_device_event_new(void * device, bool timed);
GBPY_PYTHON void gbpy_device_event_free(void * event);
GBPY_PYTHON int gbpy_device_event_record(void * event);
GBPY_PYTHON int gbpy_device_event_wait(void * device, void * event);
GBPY_PYTHON int gbpy_device_event_synchronize(void * event);
GBPY_PYTHON int gbpy_device_event_time(void * event, int64_t * ns);

static inline void gbpy_log(enum ggml_log_level level, const char * text, void * user_data);

static inline const char * gbpy_version(void);
// The package that this process has imported, as a handle; NULL: none yet.
static inline void * gbpy_package(void);
static inline void gbpy_keep_package(void * handle);
// The last failure of this thread: its message without the names of C functions, with tensors and shapes in quotes
// (GB_QUOTE of base/status.h), and what is wrong as values. False if it has no values.
struct gbpy_fault { // base/fault.h
    const char * kind;
    const char * message; // of the row, with fields
    const char *a, *b;
    int a_dim, b_dim;
    int64_t number[5];
    double real;
    const char *t, *u, *name, *op;
};
static inline const char * gbpy_last_message(void);
static inline bool gbpy_last_fault(struct gbpy_fault * out);
static inline const char * gbpy_build(void);

static inline void * gbpy_custom_userdata(const struct ggml_tensor * node);
static inline int gbpy_graph_customs(struct ggml_cgraph * graph, void ** out, int cap);
static inline void gbpy_flag_leafs(struct ggml_cgraph * graph, bool keep);

static inline double gbpy_measure_limit(int what, const char * level, size_t bytes, int n_threads, int64_t ns,
    bool processor_time);

// The i-th algorithm that is tried for a product (cpu/cpu.h). *why: why it does not apply; NULL: it computes the
// product.
static inline const char * gbpy_product_algorithm(const struct ggml_tensor * node, const char * level, int i,
    const char ** why);

// The same for any backend; NULL without an error: the backend names no algorithms for the node.
static inline const char * gbpy_backend_algorithm(ggml_backend_t backend, const struct ggml_tensor * node, int i,
    const char ** why);

static inline bool gbpy_can_dequantize(enum ggml_type type);
static inline void gbpy_dequantize(enum ggml_type type, const void * src, float * dst, int64_t n);

struct gbpy_metadata { // made empty, with gbpy_gguf_free as its destructor
    struct gguf_context * ptr;
};

static inline bool gbpy_gguf_make(struct gbpy_metadata * metadata);
static inline bool gbpy_gguf_read(struct gbpy_metadata * metadata, const void * data, size_t size);
static inline void gbpy_gguf_free(struct gbpy_metadata * metadata);
static inline const char * gbpy_gguf_str(const struct gguf_context * ctx, int key_id, uint64_t * length);
static inline const char * gbpy_gguf_strs(const struct gguf_context * ctx, int key_id, const uint64_t ** lengths);
static inline enum ggml_status gbpy_gguf_set_str(struct gguf_context * ctx, const char * key, const char * bytes,
    uint64_t length);
static inline enum ggml_status gbpy_gguf_set_strs(struct gguf_context * ctx, const char * key, const char * bytes,
    const uint64_t * lengths, uint64_t n);
static inline const char * gbpy_gguf_nested(const struct gguf_context * ctx, int key_id, uint64_t * size);
static inline enum ggml_status gbpy_gguf_set_nested(struct gguf_context * ctx, const char * key, const char * bytes,
    uint64_t size, uint64_t n);
static inline enum ggml_status gbpy_gguf_copy_pair(struct gguf_context * ctx, const struct gguf_context * src,
    int key_id);
static inline enum ggml_status gbpy_gguf_add_tensor(struct gguf_context * ctx, const char * name, enum ggml_type type,
    int n_dims, const int64_t * ne);
static inline enum ggml_status gbpy_gguf_copy_tensor(struct gguf_context * ctx, const struct gguf_context * src, int i,
    const char * name);
static inline void gbpy_gguf_layout(struct gguf_context * ctx);

// cdef: end

static inline double gbpy_measure_limit(int what, const char * level, size_t bytes, int n_threads, int64_t ns,
    bool processor_time) {
    return gb_cpu_measure_limit((enum gb_cpu_limit) what, level, bytes, n_threads, ns, processor_time);
}

static inline const char * gbpy_product_algorithm(const struct ggml_tensor * node, const char * level, int i,
    const char ** why) {
    return gb_cpu_product_algorithm(node, level, i, why);
}

static inline const char * gbpy_backend_algorithm(ggml_backend_t backend, const struct ggml_tensor * node, int i,
    const char ** why) {
    return gb_backend_algorithm(backend, node, i, why);
}

static inline void gbpy_log(enum ggml_log_level level, const char * text, void * user_data) {
    (void) user_data;
    const bool trust = gb_trust_tensors(false); // the log function may do anything
    gbpy_log_line(level, text);
    gb_trust_tensors(trust);
    gbpy_arm();
}

static inline const char * gbpy_last_message(void) { return gb_last_message() + gb_last_failure()->text; }

static inline bool gbpy_last_fault(struct gbpy_fault * out) {
    const struct gb_fault * f = &gb_last_failure()->fault;
    *out = (struct gbpy_fault) { gb_fault_name(f->kind), gb_fault_message(f->kind), f->a, f->b, f->a_dim, f->b_dim,
        { 0 }, f->real, ggml_type_name(f->t), ggml_type_name(f->u), f->name, ggml_op_name(f->op) };
    memcpy(out->number, f->number, sizeof(out->number));
    return f->kind != GB_FAULT_NONE;
}

static inline const char * gbpy_version(void) { return GBPY_VERSION; }

static void * gbpy_package_handle; // protected by the import lock of Python
static inline void * gbpy_package(void) { return gbpy_package_handle; }
static inline void gbpy_keep_package(void * handle) { gbpy_package_handle = handle; }

static inline const char * gbpy_build(void) {
#if defined(__clang__)
    return "clang " __clang_version__ ", " GBPY_BUILD_TYPE;
#elif defined(__GNUC__)
    return "gcc " __VERSION__ ", " GBPY_BUILD_TYPE;
#else
    return GBPY_BUILD_TYPE;
#endif
}

// Marks leafs without memory as inputs, which keep their content from the start of a run. `keep`: also as outputs,
// which keep it to the end, for the next run.
static inline void gbpy_flag_leafs(struct ggml_cgraph * graph, bool keep) {
    for (int i = 0; i < graph->n_leafs; i++) {
        struct ggml_tensor * t = graph->leafs[i];
        if ((t->data && !gbpy_has_lost_memory(t)) || t->view_src) {
            continue;
        }
        ggml_set_input(t);
        if (keep) {
            ggml_set_output(t);
        }
    }
}

// The user data of a custom node; NULL: another node.
static inline void * gbpy_custom_userdata(const struct ggml_tensor * node) {
    struct params { // the parameters of a custom node, as the kernels read them
        void (*fun)(void);
        int n_tasks;
        void * userdata;
    };
    void * userdata = NULL;
    if (node->op == GGML_OP_CUSTOM || node->op == GGML_OP_MAP_CUSTOM1 || node->op == GGML_OP_MAP_CUSTOM2 ||
        node->op == GGML_OP_MAP_CUSTOM3) {
        memcpy(&userdata, (const char *) node->op_params + offsetof(struct params, userdata), sizeof(userdata));
    }
    return userdata;
}

// The user data of all custom nodes of the graph, at most cap. Returns their number.
static inline int gbpy_graph_customs(struct ggml_cgraph * graph, void ** out, int cap) {
    int n = 0;
    for (int i = 0; i < graph->n_nodes && n < cap; i++) {
        out[n] = gbpy_custom_userdata(graph->nodes[i]);
        n += out[n] != NULL;
    }
    return n;
}

// --------------------------------------------------------------------------------------------- quantized data and GGUF

static inline bool gbpy_can_dequantize(enum ggml_type type) {
    return type == GGML_TYPE_F32 || gb_to_float_of(type) != NULL;
}

// Converts n elements, in whole blocks, to floats.
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
    metadata->ptr = gguf_init_from_buffer(data, size, params);
    return metadata->ptr != NULL;
}

static inline void gbpy_gguf_free(struct gbpy_metadata * metadata) {
    gguf_free(metadata->ptr);
    metadata->ptr = NULL;
}

// See gguf/exact.h. The caller has checked key_id and type.
static inline const char * gbpy_gguf_str(const struct gguf_context * ctx, int key_id, uint64_t * length) {
    return gb_gguf_str(ctx, key_id, length);
}

static inline const char * gbpy_gguf_strs(const struct gguf_context * ctx, int key_id, const uint64_t ** lengths) {
    return gb_gguf_strs(ctx, key_id, lengths);
}

static inline enum ggml_status gbpy_gguf_set_str(struct gguf_context * ctx, const char * key, const char * bytes,
    uint64_t length) {
    return gb_gguf_set_str(ctx, key, bytes, length);
}

static inline enum ggml_status gbpy_gguf_set_strs(struct gguf_context * ctx, const char * key, const char * bytes,
    const uint64_t * lengths, uint64_t n) {
    return gb_gguf_set_strs(ctx, key, bytes, lengths, n);
}

static inline const char * gbpy_gguf_nested(const struct gguf_context * ctx, int key_id, uint64_t * size) {
    return gb_gguf_nested(ctx, key_id, size);
}

static inline enum ggml_status gbpy_gguf_set_nested(struct gguf_context * ctx, const char * key, const char * bytes,
    uint64_t size, uint64_t n) {
    return gb_gguf_set_nested(ctx, key, bytes, size, n);
}

static inline enum ggml_status gbpy_gguf_copy_pair(struct gguf_context * ctx, const struct gguf_context * src,
    int key_id) {
    return gb_gguf_copy_pair(ctx, src, (size_t) key_id);
}

static inline enum ggml_status gbpy_gguf_add_tensor(struct gguf_context * ctx, const char * name, enum ggml_type type,
    int n_dims, const int64_t * ne) {
    return gb_gguf_add_named(ctx, name, type, n_dims, ne);
}

static inline enum ggml_status gbpy_gguf_copy_tensor(struct gguf_context * ctx, const struct gguf_context * src, int i,
    const char * name) {
    return gb_gguf_copy_named(ctx, src, (size_t) i, name);
}

static inline void gbpy_gguf_layout(struct gguf_context * ctx) { gb_gguf_layout(ctx); }

#endif // GBPY_FFI_SUPPORT_H
