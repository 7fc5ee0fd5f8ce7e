// dlpack.h - arrays of other libraries over a tensor's memory, and tensors over theirs, as DLPack has it.
//
// Given: a capsule of ours keeps the memory as an array of NumPy's does, by a pin (data.h) or a Python object. Whoever
// takes the capsule owns that, and may give it back on any thread, with the GIL or without it, also when the
// interpreter has ended: then nothing is freed any more. A capsule that nobody took gives it back itself.
//
// Taken: a capsule of somebody else's is checked first, and what is refused stays theirs. Then it gets the name that
// says so, and its memory belongs to an *owner*, an object of Python's that gives it back with its last reference.
// A tensor that is put there lies in a buffer that keeps the owner: the context's, as any that it was given.
#ifndef GBPY_DLPACK_H
#define GBPY_DLPACK_H

#include "data.h"

// cdef: begin

struct gbpy_array { // in host memory; axes in NumPy's order
    void * data;
    int type; // an enum ggml_type without blocks
    int ndim;
    int64_t shape[GGML_MAX_DIMS];
    int64_t strides[GGML_MAX_DIMS]; // bytes
    bool readonly;
    bool unversioned; // of one that was taken: its form could not say that it may be written, so it is `readonly`
};

// Why a call failed that could have gone well: with a status of its own, and without a message.
enum {
    GBPY_NOT_ON_HOST = 1001, // the tensor, or (with a message) the array that was to be taken
    GBPY_IS_READONLY,        // and the reader knows no flag that says so
    GBPY_NOT_SHARED,         // elements that DLPack has not; or (with a message) that lie where no tensor's do
};

enum gbpy_dlpack_form {
    GBPY_PLAIN,     // before DLPack 1.0
    GBPY_VERSIONED, // 1.0
    GBPY_FOR_NUMPY, // 1.0, with the bits of bfloat16 as uint16 and rows of blocks as bytes; GBPY_NOT_SHARED where NumPy
    // has to be asked with care: without elements, or if they overlap
};

// Appends a capsule to a list (its id). Checks the content and pins the memory as gbpy_look does.
int gbpy_dlpack_give(const struct gbpy_handle * context, struct ggml_tensor * t, int form, uintptr_t list,
    const char * what);
// The same over memory that a Python object (its id) keeps, which nobody else writes: a copy.
int gbpy_dlpack_give_copy(const struct gbpy_array * array, bool versioned, uintptr_t keeper, uintptr_t list);

// Appends the capsule that an array (its id) gives by C functions of its type, which the type offers in another capsule
// (the id of its attribute __dlpack_c_exchange_api__, of DLPack 1.3): a versioned one, without waiting for a stream, as
// host memory wants none. False: they do not give it, and nothing is appended; the array's __dlpack__ says why.
bool gbpy_dlpack_export(uintptr_t functions, uintptr_t array, uintptr_t list);

// Takes a capsule (any object's id: what is none is refused), and appends the owner to a list (its id).
int gbpy_dlpack_take(struct gbpy_array * array, uintptr_t capsule, uintptr_t list, const char * what);

// *tensor: over the memory of an array, which `owner` and `also` (ids; also: or 0) keep, without a copy, in a buffer of
// that usage; it is a view where there are gaps between elements. NULL name: none.
int gbpy_share_array(const struct gbpy_handle * context, const struct gbpy_array * array, uintptr_t owner,
    uintptr_t also, int usage, const char * name, struct ggml_tensor ** tensor, const char * what);
// The same over that of a capsule, which is taken. `mutable_too`: where the capsule cannot say it, the array may be
// written.
int gbpy_dlpack_share(const struct gbpy_handle * context, uintptr_t capsule, bool mutable_too, uintptr_t also,
    int usage, const char * name, struct ggml_tensor ** tensor, const char * what);

// cdef: end

#endif // GBPY_DLPACK_H
