// dlpack.h - arrays of other libraries over a tensor's memory, and tensors over theirs, by DLPack.
//
// Export: a capsule of this package keeps the memory by a pin (data.h) or a Python object, as a NumPy array does. The
// reader that takes the capsule owns it. The reader may give it back on any thread, with or without the GIL, and even
// after the interpreter has ended: then nothing is freed any more. A capsule that nobody took gives the memory back
// itself.
//
// Import: a capsule of another library is checked before it is taken. If it is refused, it still belongs to the other
// library. Once taken, the capsule gets the name that says so. Its memory then belongs to an *owner*, a Python object
// that gives the memory back with its last reference. The tensor lies in a buffer that keeps the owner, and the
// context keeps the buffer.
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
    bool unversioned; // imported in a form without a read-only flag, so it counts as `readonly`
};

// Results of a call that could not do its task, without an error message unless noted.
enum {
    GBPY_NOT_ON_HOST = 1001, // the tensor, or (with a message) the array to import, is not on the host
    GBPY_IS_READONLY, // the reader has no flag for read-only memory
    GBPY_NO_DTYPE, // with a message that quotes the dtype of the array
    GBPY_NOT_SHARED, // DLPack has no such elements, or (with a message) no tensor has such strides
};

enum gbpy_dlpack_form {
    GBPY_PLAIN, // before DLPack 1.0
    GBPY_VERSIONED, // 1.0
    GBPY_FOR_NUMPY, // 1.0, with the bits of bfloat16 as uint16 and rows of blocks as bytes; GBPY_NOT_SHARED where NumPy
    // has to be asked with care: without elements, or if they overlap
};

// Appends a capsule to a list (its id). Checks the content and pins the memory like gbpy_look.
int gbpy_dlpack_give(const struct gbpy_handle * context, struct ggml_tensor * t, int form, uintptr_t list,
    const char * what);
// The same over memory that a Python object (its id) keeps and nobody else writes: a copy.
int gbpy_dlpack_give_copy(const struct gbpy_array * array, bool versioned, uintptr_t keeper, uintptr_t list);

// Appends a versioned capsule of an array (its id), made by the C functions of its type. The type offers them in
// another capsule (the id of its attribute __dlpack_c_exchange_api__, DLPack 1.3). Does not wait for a stream,
// because host memory needs none. False: they do not give it, and nothing is appended. The __dlpack__ of the array
// then reports the reason.
bool gbpy_dlpack_export(uintptr_t functions, uintptr_t array, uintptr_t list);

// Takes a capsule (the id of any object; other objects are refused) and appends the owner to a list (its id).
int gbpy_dlpack_take(struct gbpy_array * array, uintptr_t capsule, uintptr_t list, const char * what);

// Makes *tensor over the memory of an array, without a copy, in a buffer with this usage. `owner` and `also` (ids;
// also may be 0) are kept. The tensor is a view if there are gaps between elements. name may be NULL.
int gbpy_share_array(const struct gbpy_handle * context, const struct gbpy_array * array, uintptr_t owner,
    uintptr_t also, int usage, const char * name, struct ggml_tensor ** tensor, const char * what);
// The same over the memory of a capsule, which is taken. `mutable_too`: the array may be written if the capsule
// cannot say otherwise.
int gbpy_dlpack_share(const struct gbpy_handle * context, uintptr_t capsule, bool mutable_too, uintptr_t also,
    int usage, const char * name, struct ggml_tensor ** tensor, const char * what);

// cdef: end

#endif // GBPY_DLPACK_H
