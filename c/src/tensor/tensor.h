// tensor.h - functions on tensors beyond ggml.h: making them, layouts, graphs, descriptions for
// messages. marks.h has flags and other marks of a tensor.
//
//  tensor.c, context.c       tensors, views, layouts, names, flags; the pools that hold them
//  types.c                   element formats, from types.def and quant/formats.def
//  access.c, describe.c      single elements; a tensor as text in a message
//  fault_text.c              the message of an error, from its values (base/fault.h)
//  graph.c                   graphs;  graph_print.c, graph_file.c: printed, and as files
//  nodes.c, record.c         nodes as a message to another process (nodes.h); a tensor as bytes
//  backward.c, grad.c        derivatives of graphs: with the field grad, and as new tensors
//  derivatives.c,            the rules of operators; gradients.c: the sums, and what rules share
//  derivatives_layers.c, derivatives_conv.c
//  op_info.c                 the table of operators, from ops.def
//  ops.c, ops_<family>.c     builders, and their helpers (ops.h), with shapes.h for results
//  work.c                    operations and bytes of nodes (work.h)
//  numbers.h, marks.h        constants that all backends share; marks in a tensor's padding
//  check.c, check_conv.c     the rules of operators (check.h), built from rule.c
//  validate.c                checks of structs that a program may have written to
//
// Invariants of a tensor made by gb_tensor_new or gb_tensor_view: the type is valid, every size is
// >= 0, and the product of the sizes and the bytes fit into int64_t and size_t. view_src is NULL or
// a tensor that is not a view. The bytes that the tensor can access are inside the bytes of
// view_src.
#ifndef GB_TENSOR_TENSOR_H
#define GB_TENSOR_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "base/thread.h"
#include "ggml.h"
#include "tensor/marks.h"
#include "tensor/op_info.h"

// -------------------------------------------------------------------------------------------------------------- making

// A fresh contiguous tensor of 1 to 4 dimensions. The tensor stores their number (gb_tensor_ndim).
// The context owns it. NULL on a bad type, negative or overflowing sizes, or if memory runs out
// (reported).
struct ggml_tensor * gb_tensor_new(struct ggml_context * ctx, enum ggml_type type, int n_dims, const int64_t * ne);

// A view of `src` at byte offset `offs` (relative to src) with ne[n_dims] and nb[4] (nb NULL:
// contiguous). It has no name yet. `func` is the builder's name for messages. NULL if the view is
// not inside the root's bytes (reported).
struct ggml_tensor * gb_tensor_view(struct ggml_context * ctx, struct ggml_tensor * src, int n_dims, const int64_t * ne,
    const size_t * nb, size_t offs, const char * func);

// The gradient rule of builders whose operator has a derivative: if any result->src[i] has a
// gradient, result->grad becomes a fresh tensor of result's shape. Call it after src[] is set.
// Returns result. NULL if memory runs out (reported) or result is NULL.
struct ggml_tensor * gb_tensor_inherit_grad(struct ggml_context * ctx, struct ggml_tensor * result);

// `size` bytes from the context's pool, 16-byte aligned, valid as long as the context. NULL if it
// is full (reported).
void * gb_context_alloc(struct ggml_context * ctx, enum ggml_object_type type, size_t size);

// Drops an object, given by its payload, and all later objects of the calling thread. With it, a
// builder of several objects that fails half way restores the context. If other threads have made
// objects since, or a caller may still iterate from an object, the memory is not reused, and the
// objects only stop being tensors. Takes time proportional to the number of objects.
void gb_context_drop(struct ggml_context * ctx, void * payload);

// A number, at least `least`, for the automatic name of a leaf or node. It is larger than all
// earlier numbers of its kind in the context, so names differ. gb_context_number_taken records that
// a name uses this number already.
int gb_context_number(struct ggml_context * ctx, bool is_leaf, int least);
void gb_context_number_taken(struct ggml_context * ctx, bool is_leaf, int number);

// Makes a tensor object with the fields of *layout. Its data are `data_size` bytes in the context's
// scratch buffer (with this alignment), after the struct, or nowhere, as the context was made. With
// in_pool they always follow the struct. A view keeps layout->data.
struct ggml_tensor * gb_context_new_tensor(struct ggml_context * ctx, const struct ggml_tensor * layout,
    size_t data_size, size_t alignment, bool in_pool);

// True if the context owns its memory, and so can grow.
bool gb_context_is_growable(const struct ggml_context * ctx);
// True if the pointer is into the context's memory.
bool gb_context_has(const struct ggml_context * ctx, const void * pointer);

// ------------------------------------------------------------------------------------------------------------- layouts

// True if the type exists: in range and not retired.
static inline bool gb_type_is_valid(enum ggml_type type) {
    const uint64_t valid = 0
#define GB_TYPE(id, ...) | UINT64_C(1) << GGML_TYPE_##id
#include "tensor/types.def"
#undef GB_TYPE
        ;
    return (unsigned) type < GGML_TYPE_COUNT && (valid >> type & 1) != 0;
}
_Static_assert(GGML_TYPE_COUNT <= 64, "a bit for each type");

// The conversion of a row to floats, also for types that have none in the public traits. NULL:
// floats need no conversion, or the type has none.
ggml_to_float_t gb_to_float_of(enum ggml_type type);
// The bytes from the first element to the end of the last one, for any strides. False: they
// overflow.
bool gb_bytes_needed(const struct ggml_tensor * t, size_t * bytes);
// The largest power of two in the size of an element or block, at most 8. Addresses of elements are
// multiples of it.
size_t gb_type_alignment(enum ggml_type type);
// True if strides are multiples of the size of an element, and the first element is aligned within
// the root. In a blocked type the elements are whole blocks. Strides of dimensions with one element
// may be anything, because they are not used.
bool gb_elements_are_whole(const struct ggml_tensor * t);
// True if no two elements share a byte, so that every element can be written. Also false if rows
// interleave. The sizes must not overflow.
bool gb_elements_are_apart(const struct ggml_tensor * t);
// Elements of a row are contiguous: nb0 = type size.
bool gb_rows_contiguous(const struct ggml_tensor * t);
// True if an axis of size `small` can be repeated to size `large`. 0 repeats only to 0. Nothing
// repeats to a negative size.
static inline bool gb_size_divides(int64_t small, int64_t large) {
    return small == large || small == 1 || (small > 1 && large % small == 0);
}
// True if type, sizes and strides are the same.
bool gb_are_same_layout(const struct ggml_tensor * a, const struct ggml_tensor * b);

// True if the tensor is placed, and its bytes can be read and written through t->data.
bool gb_tensor_is_host(const struct ggml_tensor * t);

// The tensor that owns the memory: a view's source, else the tensor itself.
static inline struct ggml_tensor * gb_root(const struct ggml_tensor * t) {
    return t->view_src ? t->view_src : (struct ggml_tensor *) t;
}

// Places the tensor. A thread that reads the place at the same time, to build a view, sees the old
// place or the new one.
static inline void gb_tensor_put(struct ggml_tensor * t, struct ggml_backend_buffer * buffer, void * data) {
    GB_WRITE_RELAXED(t->buffer, buffer);
    GB_WRITE_RELAXED(t->data, data);
}

// True if t is not a view, or is at its source's current address. The source may have moved since
// the view was bound.
static inline bool gb_view_is_bound(const struct ggml_tensor * t) {
    return t->view_src == NULL || (uintptr_t) t->data == (uintptr_t) t->view_src->data + t->view_offs;
}

// Prefetches a tensor that a loop reaches soon: its operator, sources and marks. Tensors of a large
// graph are in no cache, so the loop would wait for each one.
enum { GB_TENSORS_AHEAD = 8 };
static inline void gb_tensor_prefetch(const struct ggml_tensor * t) {
#if defined(__GNUC__)
    __builtin_prefetch(&t->op);
    __builtin_prefetch(&t->src[0]);
    __builtin_prefetch(&t->src[GGML_MAX_SRC - 1]);
    __builtin_prefetch(&t->view_src);
    __builtin_prefetch((const char *) (t + 1) - 1);
#else
    (void) t;
#endif
}
// Prefetches the tensor that is far enough ahead of index i of n.
static inline void gb_tensor_prefetch_ahead(struct ggml_tensor * const * tensors, size_t n, size_t i) {
    if (i + GB_TENSORS_AHEAD < n) {
        gb_tensor_prefetch(tensors[i + GB_TENSORS_AHEAD]);
    }
}

// --------------------------------------------------------------------------------------------------------------- names

// Copies the current name. If another thread sets it at the same time, each eight bytes are old or
// new. Returns text.
const char * gb_tensor_read_name(const struct ggml_tensor * t, char text[GGML_MAX_NAME]);

// Names `t` "SRC (SUFFIX)", or with a second named tensor "SRC (SUFFIX of OTHER)". If src has no
// name, t gets none. Returns t. NULL for NULL.
struct ggml_tensor * gb_tensor_name_after(struct ggml_tensor * t, const struct ggml_tensor * src, const char * suffix,
    const struct ggml_tensor * other);

// Removes an incomplete character from the end of a UTF-8 text that was cut. Other texts stay
// unchanged.
void gb_cut_at_character(char * text);

// -------------------------------------------------------------------------------------------------------------- graphs

// Calls ggml_build_forward_expand for each of the n tensors, in order. On failure the graph is
// unchanged.
enum ggml_status gb_graph_expand(struct ggml_cgraph * graph, struct ggml_tensor * const * tensors, size_t n,
    const char * func);

// INVALID_ARGUMENT with a message of `func` unless the graph can be read: valid counts, and arrays
// without NULL.
enum ggml_status gb_graph_check(const struct ggml_cgraph * graph, const char * argument, const char * func);

// Programs in C may write to the fields of a tensor, so planning a graph validates its tensors once
// (validate.c). INVALID_ARGUMENT with a message of `func` unless type, operator and sizes are
// valid, nothing overflows, and a view lies inside its root.
enum ggml_status gb_tensor_check(const struct ggml_tensor * t, const char * func);
// INVALID_ARGUMENT unless a builder could have made the node, or nothing is computed for it.
enum ggml_status gb_node_check(const struct ggml_tensor * node, const char * func);

// For callers whose tensors were validated before, or made only by the library's own functions (the
// Python package). With `trust` the functions below skip validation in this thread. Returns the
// previous setting, which the caller restores.
bool gb_trust_tensors(bool trust);
bool gb_tensors_are_trusted(void);

// gb_tensor_check of each node and its sources. A NULL node is always reported.
enum ggml_status gb_tensors_check(struct ggml_tensor * const * nodes, int n, const char * func);
// The same for leafs and nodes of a graph, and gb_node_check of the nodes. Call gb_graph_check
// first.
enum ggml_status gb_graph_check_tensors(const struct ggml_cgraph * graph, const char * func);
// A static text that says why gb_node_check would fail. NULL if it would succeed.
const char * gb_node_mismatch(const struct ggml_tensor * node);

// Like ggml_graph_dump_dot. Writes the values of a small leaf only if `may_read` (NULL: always)
// confirms that no thread frees or writes its memory during the call.
enum ggml_status gb_graph_dump_dot(const struct ggml_cgraph * gb, const struct ggml_cgraph * gf, const char * filename,
    bool (*may_read)(const struct ggml_tensor * leaf, void * data), void * data);

// The slot of the key in a set of tensors, or a free slot for it. NULL: the set is full.
struct ggml_tensor ** gb_hash_set_slot(struct ggml_hash_set set, const struct ggml_tensor * key);

// Marks nodes and leafs that were put into the arrays directly as visited.
void gb_graph_mark_listed(struct ggml_cgraph * graph);

// ----------------------------------------------------------------------------------------------------------------- ops

// op_params are 32-bit words. Floats are stored as their bits.
static inline int32_t gb_op_param_i32(const struct ggml_tensor * t, int i) { return t->op_params[i]; }

static inline float gb_op_param_f32(const struct ggml_tensor * t, int i) {
    float f;
    memcpy(&f, &t->op_params[i], sizeof(f));
    return f;
}

// True if nothing is computed: for views, and for results without elements. A user's function is
// always called.
static inline bool gb_op_is_idle(const struct ggml_tensor * node) {
    return !gb_op_computes(node->op) || (ggml_nelements(node) == 0 && !gb_op_is_custom(node->op));
}

// ------------------------------------------------------------------------------------------------------------ messages

#define GB_DESCRIBE_SIZE 192
// Writes "'name' f32 [64, 128]", as a value (GB_QUOTE) of a message: sizes in the order of ne, one
// for each dimension. "NULL" for NULL. Returns buf.
char * gb_describe(const struct ggml_tensor * t, char buf[GB_DESCRIBE_SIZE]);
// Writes a node with its sources: "MUL_MAT 'y' f32 [64, 16] of 'w' f32 [128, 64], 'x' f32 [128, 16]". Returns buf.
char * gb_describe_node(const struct ggml_tensor * node, char * buf, size_t size);

#endif // GB_TENSOR_TENSOR_H
