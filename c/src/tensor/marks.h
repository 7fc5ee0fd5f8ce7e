// marks.h - facts about a tensor that the library stores beside the fields of ggml.h.
//
// The struct of a tensor is part of the binary interface and cannot grow, so marks are in its
// unused bytes. Each mark has one owner, and only the owner sets it. All code reads and writes
// marks through the functions below. No other file names those bytes
// (tests/c/tensor/check_marks.cmake).
//
//   mark        owner                          meaning                                          until
//   INPUT       the user: ggml_set_input       has its memory from the start of a graph         the tensor's end
//   OUTPUT      the user: ggml_set_output      keeps its memory to the end of a graph           the tensor's end
//   number of   the tensor's maker             dimensions that it was made with                 the tensor's end
//   dimensions
//   DERIVED     backward.c, ops.c              depends on a parameter, but the backward builder  the tensor's end
//                                              that made it, or its sources, gave it no gradient
//   CONSTANT    the Python package             an input made with its data                      the tensor's end
//   LOST        the Python package             the user's buffer of the tensor was freed        it is placed again
//   stamp       tensor allocators (tallocr.c)  which allocator placed it, in which generation   it is placed again
//   read once   planners of whole graphs       one slot of one node reads it, and its memory    it is placed again
//                                              is not read afterwards
//   content     the Python package             when it was set or computed (perf_cycles)        it is unplaced
//
// Threads share tensors. The first byte is changed bit by bit and may be read at any time. The
// stamp and "read once" belong to the thread that places the tensor.
#ifndef GB_TENSOR_MARKS_H
#define GB_TENSOR_MARKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/thread.h"
#include "ggml.h"

struct gb_marks { // lies over ggml_tensor::padding
    char state; // enum gb_tensor_flag, and the number of dimensions in the bits of GB_NDIM_BITS
    unsigned char allocator[3]; // number of the allocator; 0: none; low byte first
    unsigned char generation[4]; // of that allocator, low byte first; the highest bits are GB_ONCE_BITS
};
_Static_assert(sizeof(struct gb_marks) == sizeof(((struct ggml_tensor *) 0)->padding), "marks fill the unused bytes");
_Static_assert(offsetof(struct gb_marks, state) == 0 && _Alignof(struct gb_marks) == 1, "marks need no alignment");

static inline struct gb_marks * gb_marks_of(struct ggml_tensor * t) { return (struct gb_marks *) (void *) t->padding; }

static inline const struct gb_marks * gb_marks_in(const struct ggml_tensor * t) {
    return (const struct gb_marks *) (const void *) t->padding;
}

// --------------------------------------------------------------------------------------------------------------- flags

enum gb_tensor_flag {
    GB_TENSOR_INPUT = 0x01,
    GB_TENSOR_OUTPUT = 0x02,
    GB_TENSOR_DERIVED = 0x04,
    GB_TENSOR_CONSTANT = 0x08,
    GB_TENSOR_LOST = 0x80
};

static inline bool gb_tensor_has_flag(const struct ggml_tensor * t, enum gb_tensor_flag flag) {
    return (GB_READ_RELAXED(gb_marks_in(t)->state) & flag) != 0;
}

static inline void gb_tensor_set_flag(struct ggml_tensor * t, enum gb_tensor_flag flag) {
    GB_SET_BITS(gb_marks_of(t)->state, (char) flag);
}

static inline void gb_tensor_clear_flag(struct ggml_tensor * t, enum gb_tensor_flag flag) {
    GB_CLEAR_BITS(gb_marks_of(t)->state, (char) flag);
}

// Flags and the number of dimensions as one number, for comparisons.
static inline int gb_tensor_state(const struct ggml_tensor * t) {
    return (unsigned char) GB_READ_RELAXED(gb_marks_in(t)->state);
}

// Copies the flags and the number of dimensions from `from` to `t`, before other threads use `t`.
static inline void gb_tensor_copy_state(struct ggml_tensor * t, const struct ggml_tensor * from) {
    gb_marks_of(t)->state = GB_READ_RELAXED(gb_marks_in(from)->state);
}

static inline void gb_tensor_clear_marks(struct ggml_tensor * t) { *gb_marks_of(t) = (struct gb_marks) { 0 }; }

// ------------------------------------------------------------------------------------------------ number of dimensions

// The number of dimensions with which a tensor was made, 0 to 4. It counts sizes of 1 at the end,
// which ne does not distinguish from absent dimensions. Every tensor that the library makes has it,
// and copies keep it. It is stored as the number plus one. 0 means unknown, in structs that C
// programs fill in themselves.
enum { GB_NDIM_SHIFT = 4, GB_NDIM_BITS = 7 << GB_NDIM_SHIFT };
_Static_assert(((GB_TENSOR_INPUT | GB_TENSOR_OUTPUT | GB_TENSOR_DERIVED | GB_TENSOR_CONSTANT | GB_TENSOR_LOST) &
                   GB_NDIM_BITS) == 0,
    "no flag is a bit of the number of dimensions");

// -1: unknown. Call it before other threads use the tensor.
static inline void gb_tensor_set_ndim(struct ggml_tensor * t, int ndim) {
    struct gb_marks * marks = gb_marks_of(t);
    GB_WRITE_RELAXED(marks->state,
        (char) ((marks->state & ~GB_NDIM_BITS) | (int) (((unsigned) ndim + 1) << GB_NDIM_SHIFT & GB_NDIM_BITS)));
}

static inline bool gb_tensor_knows_ndim(const struct ggml_tensor * t) {
    return (gb_tensor_state(t) & GB_NDIM_BITS) != 0;
}

// At least the number of dimensions with a size other than 1, so that the sizes within it give the
// number of elements. (ggml_n_dims differs, because it also drops a size of 0.)
static inline int gb_tensor_ndim(const struct ggml_tensor * t) {
    const int kept = ((gb_tensor_state(t) & GB_NDIM_BITS) >> GB_NDIM_SHIFT) - 1;
    int need = GGML_MAX_DIMS;
    while (need > 0 && t->ne[need - 1] == 1) {
        need--;
    }
    return kept > GGML_MAX_DIMS || kept < need ? (kept < 0 && need == 0 ? 1 : need) : kept;
}

// ------------------------------------------------------------------------------------------------- where it was placed

// Allocator numbers have 24 bits, generations 30. Generations are only compared for equality. After
// a wrap-around an allocator may mistake a tensor for one of its own.
#define GB_STAMP_ALLOCATOR 0xffffffu
#define GB_STAMP_GENERATION 0x3fffffffu

enum { GB_ONCE = 0x80, GB_ONCE_SURELY = 0x40, GB_ONCE_BITS = GB_ONCE | GB_ONCE_SURELY };

// Allocator 0: no allocator may count the tensor's memory as its own. Placing a tensor always
// removes "read once".
static inline void gb_tensor_set_stamp(struct ggml_tensor * t, uint32_t allocator, uint32_t generation) {
    struct gb_marks * marks = gb_marks_of(t);
    for (int i = 0; i < 3; i++) {
        marks->allocator[i] = (unsigned char) (allocator >> 8 * i);
    }
    for (int i = 0; i < 4; i++) {
        marks->generation[i] = (unsigned char) ((generation & GB_STAMP_GENERATION) >> 8 * i);
    }
}

// True if this allocator has placed the tensor, and no allocator has placed it since.
static inline bool gb_tensor_has_stamp(const struct ggml_tensor * t, uint32_t allocator) {
    const unsigned char * a = gb_marks_in(t)->allocator;
    return ((uint32_t) a[0] | (uint32_t) a[1] << 8 | (uint32_t) a[2] << 16) == (allocator & GB_STAMP_ALLOCATOR);
}

static inline bool gb_tensor_is_of_generation(const struct ggml_tensor * t, uint32_t generation) {
    const unsigned char * g = gb_marks_in(t)->generation;
    const uint32_t kept = (uint32_t) g[0] | (uint32_t) g[1] << 8 | (uint32_t) g[2] << 16 | (uint32_t) g[3] << 24;
    return ((kept ^ generation) & GB_STAMP_GENERATION) == 0;
}

// A planner of a whole graph (a graph allocator, the scheduler) found that only one source of one
// node refers to this tensor, and that its memory is not read after that. A backend that computes
// the node together with its reader need not store it, if it is in an arena
// (ggml_backend_buffer::arena).
static inline bool gb_tensor_is_read_once(const struct ggml_tensor * t) {
    return (gb_marks_in(t)->generation[3] & GB_ONCE) != 0;
}

// The same for a snapshot's copy of the struct. Such a copy has no buffer. It was made when the
// tensor was known to be in an arena.
static inline bool gb_tensor_is_surely_read_once(const struct ggml_tensor * t) {
    return (gb_marks_in(t)->generation[3] & GB_ONCE_BITS) == GB_ONCE_BITS;
}

// Marks a copy of a tensor in a snapshot before other threads use it.
static inline void gb_tensor_set_surely_read_once(struct ggml_tensor * t, bool once) {
    unsigned char * last = &gb_marks_of(t)->generation[3];
    *last = (unsigned char) ((*last & ~GB_ONCE_BITS) | (once ? GB_ONCE_BITS : 0));
}

static inline void gb_tensor_set_read_once(struct ggml_tensor * t, bool once) {
    // Nothing is written to tensors without a mark, because threads share the user's tensors.
    if (once != gb_tensor_is_read_once(t)) {
        gb_marks_of(t)->generation[3] ^= GB_ONCE;
    }
}

// ------------------------------------------------------------------------------------------------------------- content

// The time when the content was set or computed, by a counter of the Python package. 0: there is no
// content. Stored in perf_cycles, which the library does not use otherwise.
static inline int64_t gb_tensor_content(const struct ggml_tensor * t) { return GB_READ_RELAXED(t->perf_cycles); }

static inline void gb_tensor_set_content(struct ggml_tensor * t, int64_t content) {
    GB_WRITE_RELAXED(t->perf_cycles, content);
}

// ------------------------------------------------------------------------------------------------ objects of a context

// The thread that made an object, as a number of context.c, for gb_context_drop. Never changes.
_Static_assert(sizeof(((struct ggml_object *) 0)->padding) == sizeof(uint32_t), "the thread's number fits");

static inline void gb_object_set_maker(struct ggml_object * object, uint32_t thread) {
    memcpy(object->padding, &thread, sizeof(thread));
}

static inline uint32_t gb_object_maker(const struct ggml_object * object) {
    uint32_t thread;
    memcpy(&thread, object->padding, sizeof(thread));
    return thread;
}

#endif // GB_TENSOR_MARKS_H
