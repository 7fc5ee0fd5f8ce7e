// dlpack.c - making, checking and taking capsules, and tensors over arrays (dlpack.h).
#define Py_LIMITED_API 0x030a0000
#include <Python.h>

#include "dlpack.h"

#include <stdio.h>
#include <string.h>

#include "extension.h"
#include "placement.h"

// ------------------------------------------------------------------------------------------- what DLPack has in memory

// devices with host memory
enum { DL_CPU = 1, DL_CUDA_HOST = 3, DL_ROCM_HOST = 11 };
// codes of element types
enum { DL_INT = 0, DL_UINT = 1, DL_FLOAT = 2, DL_BFLOAT = 4, DL_COMPLEX = 5, DL_BOOL = 6 };
enum { DL_READ_ONLY = 1, DL_IS_COPIED = 2 };
enum { DL_MAJOR = 1, DL_MINOR = 0 };

struct dl_array {
    void * data;
    int32_t device_type, device_id;
    int32_t ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t * shape;
    int64_t * strides; // elements; NULL: contiguous
    uint64_t byte_offset;
};

struct dl_plain { // before 1.0
    struct dl_array array;
    void * context;
    void (*give_back)(struct dl_plain * self);
};

struct dl_versioned {
    uint32_t major, minor;
    void * context;
    void (*give_back)(struct dl_versioned * self);
    uint64_t flags;
    struct dl_array array;
};

// Names of capsules, before and after a reader has taken them.
static const char plain_name[] = "dltensor", plain_taken[] = "used_dltensor", versioned_name[] = "dltensor_versioned",
                  versioned_taken[] = "used_dltensor_versioned", owner_name[] = "ggml_backend.owner",
                  functions_name[] = "dlpack_exchange_api";

// C functions that a type of arrays offers, in version 1. Later versions point to this one.
struct dl_functions {
    uint32_t major, minor;
    struct dl_functions * before; // the earlier version; NULL: none
    int (*allocate)(void);                                         // not used here
    int (*export)(PyObject * array, struct dl_versioned ** found); // not 0: it has raised an exception
};

// Element types for NumPy, which has no bfloat16 and no blocks. Continues enum ggml_type.
enum { NUMPY_BITS = GGML_TYPE_COUNT, NUMPY_BYTES };

static const struct {
    uint8_t code, bits;
    int type;
} elements[] = {
    { DL_FLOAT, 32, GGML_TYPE_F32 },
    { DL_FLOAT, 16, GGML_TYPE_F16 },
    { DL_BFLOAT, 16, GGML_TYPE_BF16 },
    { DL_FLOAT, 64, GGML_TYPE_F64 },
    { DL_INT, 8, GGML_TYPE_I8 },
    { DL_INT, 16, GGML_TYPE_I16 },
    { DL_INT, 32, GGML_TYPE_I32 },
    { DL_INT, 64, GGML_TYPE_I64 },
    { DL_UINT, 16, NUMPY_BITS }, // only for exported arrays
    { DL_UINT, 8, NUMPY_BYTES },
};
enum { N_ELEMENTS = sizeof(elements) / sizeof(elements[0]), N_TAKEN = N_ELEMENTS - 2 };

// -------------------------------------------------------------------------------------------------------------- giving

struct given {
    union {
        struct dl_plain plain;
        struct dl_versioned versioned;
    } as; // must be the first member: readers hold its address
    struct gbpy_handle pin;
    PyObject * keeper; // strong; NULL: the pin keeps the memory
    int64_t shape[GGML_MAX_DIMS], strides[GGML_MAX_DIMS];
};

// Freeing the owner of the pin may wait for a device whose callbacks need the GIL, so the GIL is released meanwhile.
static void give_back(struct given * g) {
    if (!gbpy_is_ending()) {
        const PyGILState_STATE state = PyGILState_Ensure();
        Py_XDECREF(g->keeper);
        PyThreadState * saved = PyEval_SaveThread();
        gbpy_unpin(&g->pin);
        PyEval_RestoreThread(saved);
        PyGILState_Release(state);
    }
    gb_free(g);
}

static void give_back_plain(struct dl_plain * self) { give_back((struct given *) self); }
static void give_back_versioned(struct dl_versioned * self) { give_back((struct given *) self); }

// The destructor of capsules. A capsule that was taken has another name.
static void drop_given(PyObject * capsule) {
    const bool versioned = PyCapsule_IsValid(capsule, versioned_name);
    if (versioned || PyCapsule_IsValid(capsule, plain_name)) {
        give_back(PyCapsule_GetPointer(capsule, versioned ? versioned_name : plain_name));
    }
}

static struct dl_array * set_form(struct given * g, bool versioned, bool readonly, bool copied) {
    if (!versioned) {
        g->as.plain.give_back = give_back_plain;
        return &g->as.plain.array;
    }
    g->as.versioned.major = DL_MAJOR;
    g->as.versioned.minor = DL_MINOR;
    g->as.versioned.give_back = give_back_versioned;
    g->as.versioned.flags = (readonly ? DL_READ_ONLY : 0) | (copied ? DL_IS_COPIED : 0);
    return &g->as.versioned.array;
}

// False: DLPack has no such elements (blocks), or a stride is no whole number of elements.
static bool set_array(struct given * g, struct dl_array * d, const struct gbpy_array * array) {
    int e = 0;
    while (e < N_ELEMENTS && elements[e].type != array->type) {
        e++;
    }
    if (e == N_ELEMENTS) {
        return false;
    }
    const int64_t size = elements[e].bits / 8;
    for (int i = 0; i < array->ndim; i++) {
        g->shape[i] = array->shape[i];
        g->strides[i] = array->strides[i] / size;
        if (array->strides[i] % size != 0) {
            return false;
        }
    }
    *d = (struct dl_array){ .data = array->data,
        .device_type = DL_CPU,
        .ndim = array->ndim,
        .code = elements[e].code,
        .bits = elements[e].bits,
        .lanes = 1,
        .shape = g->shape,
        .strides = g->strides };
    return true;
}

// Puts the memory into a capsule. Gives it back if that fails.
static int append_given(struct given * g, bool versioned, uintptr_t list) {
    const PyGILState_STATE state = PyGILState_Ensure();
    PyObject * capsule = PyCapsule_New(g, versioned ? versioned_name : plain_name, drop_given);
    bool ok = capsule != NULL;
    if (!ok) {
        give_back(g);
    } else {
        ok = PyList_Append((PyObject *) list, capsule) == 0;
        Py_DecRef(capsule);
    }
    if (!ok) {
        PyErr_Clear(); // no memory
    }
    PyGILState_Release(state);
    return ok ? GGML_STATUS_SUCCESS : (int) gb_fail(GGML_STATUS_ALLOC_FAILED, "DLPack: out of memory");
}

// Describes the elements of the tensor. For NumPy, bfloat16 becomes uint16 and rows of blocks become bytes. False:
// NumPy needs special care, because there are no elements, or some of them overlap.
static bool describe(struct gbpy_array * a, const struct ggml_tensor * t, const struct gbpy_view * view, bool numpy) {
    const int64_t block = ggml_blck_size(t->type), size = (int64_t) ggml_type_size(t->type);
    int64_t bytes = size;
    *a = (struct gbpy_array){ .data = view->data, .type = t->type, .ndim = gb_tensor_ndim(t) };
    for (int i = 0; i < a->ndim; i++) {
        a->shape[i] = t->ne[a->ndim - 1 - i];
        a->strides[i] = (int64_t) t->nb[a->ndim - 1 - i];
        bytes = numpy && a->shape[i] > 0 && bytes <= INT64_MAX / a->shape[i] ? bytes * a->shape[i] : 0;
    }
    if (numpy && block > 1) {
        a->ndim = GB_MAX(a->ndim, 1);
        a->shape[a->ndim - 1] = t->ne[0] / block * size;
        a->strides[a->ndim - 1] = 1;
        a->type = NUMPY_BYTES;
        return bytes / block <= (int64_t) view->nbytes && bytes > 0;
    }
    a->type = numpy && t->type == GGML_TYPE_BF16 ? NUMPY_BITS : a->type;
    return !numpy || (bytes > 0 && bytes <= (int64_t) view->nbytes);
}

int gbpy_dlpack_give(const struct gbpy_handle * context, struct ggml_tensor * t, int form, uintptr_t list,
    const char * what) {
    struct gbpy_view view;
    struct gbpy_array array;
    const bool versioned = form != GBPY_PLAIN;
    struct given * g = GB_NEW(struct given);
    if (g == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    int status = gbpy_look(&g->pin, context, t, &view, what);
    if (status == GGML_STATUS_SUCCESS && (!view.host || (view.readonly && !versioned))) {
        status = view.host ? GBPY_IS_READONLY : GBPY_NOT_ON_HOST;
    }
    if (status == GGML_STATUS_SUCCESS && !(describe(&array, t, &view, form == GBPY_FOR_NUMPY) &&
                                             set_array(g, set_form(g, versioned, view.readonly, false), &array))) {
        status = GBPY_NOT_SHARED;
    }
    if (status != GGML_STATUS_SUCCESS) {
        gbpy_unpin(&g->pin);
        gb_free(g);
        return status;
    }
    return append_given(g, versioned, list);
}

int gbpy_dlpack_give_copy(const struct gbpy_array * array, bool versioned, uintptr_t keeper, uintptr_t list) {
    struct given * g = GB_NEW(struct given);
    if (g == NULL) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    if (!set_array(g, set_form(g, versioned, false, true), array)) {
        gb_free(g);
        return GBPY_NOT_SHARED;
    }
    const PyGILState_STATE state = PyGILState_Ensure();
    g->keeper = (PyObject *) keeper;
    Py_XINCREF(g->keeper);
    PyGILState_Release(state);
    return append_given(g, versioned, list);
}

// -------------------------------------------------------------------------------------------------------------- taking

static void drop_plain(PyObject * owner) {
    struct dl_plain * taken = PyCapsule_GetPointer(owner, owner_name);
    if (taken != NULL && taken->give_back != NULL) {
        taken->give_back(taken);
    }
}

static void drop_versioned(PyObject * owner) {
    struct dl_versioned * taken = PyCapsule_GetPointer(owner, owner_name);
    if (taken != NULL && taken->give_back != NULL) {
        taken->give_back(taken);
    }
}

static int find_type(const struct dl_array * d, int * type, const char * what) {
    static const char * const kinds[] = { [DL_INT] = "int",
        [DL_UINT] = "uint",
        [DL_FLOAT] = "float",
        [DL_BFLOAT] = "bfloat",
        [DL_COMPLEX] = "complex",
        [DL_BOOL] = "bool" };
    for (int e = 0; e < N_TAKEN; e++) {
        if (elements[e].code == d->code && elements[e].bits == d->bits && d->lanes == 1) {
            *type = elements[e].type;
            return GGML_STATUS_SUCCESS;
        }
    }
    char name[64];
    const size_t n = sizeof(kinds) / sizeof(kinds[0]);
    if (d->code < n && kinds[d->code] != NULL && d->lanes == 1) {
        snprintf(name, sizeof(name), d->code == DL_BOOL ? "%s" : "%s%d", kinds[d->code], d->bits);
    } else {
        snprintf(name, sizeof(name), "DLPack's code %d with %d bits and %d lanes", d->code, d->bits, d->lanes);
    }
    gb_fail(GGML_STATUS_INVALID_ARGUMENT, "%s: " GB_QUOTE("%s") " is not a dtype of tensors", what, name);
    return GBPY_NO_DTYPE;
}

// True if the addresses of all elements lie within the largest possible memory and do not wrap around. Only the maker
// of the array knows whether the memory exists.
static bool lies_in_memory(const struct gbpy_array * array, const struct dl_array * d) {
    const uint64_t most = (uint64_t) PTRDIFF_MAX >> (sizeof(void *) > 4 ? 8 : 0);
    uint64_t before = 0, behind = 0; // bytes from the first element to the lowest and to the highest element
    for (int i = 0; i < array->ndim; i++) {
        const int64_t step = array->strides[i];
        const uint64_t width = (uint64_t) (step < 0 ? -step : step), steps = (uint64_t) array->shape[i] - 1;
        if (width > 0 && steps > most / width) {
            return false;
        }
        *(step < 0 ? &before : &behind) += steps * width;
    }
    const uintptr_t base = (uintptr_t) d->data;
    return d->byte_offset <= most && before <= base + d->byte_offset &&
           behind + (uint64_t) ggml_type_size((enum ggml_type) array->type) <= most &&
           d->byte_offset + behind + ggml_type_size((enum ggml_type) array->type) <= UINTPTR_MAX - base;
}

static int read_array(struct gbpy_array * array, const struct dl_array * d, const char * what) {
    if (d->device_type != DL_CPU && d->device_type != DL_CUDA_HOST && d->device_type != DL_ROCM_HOST) {
        gb_fail(GGML_STATUS_UNSUPPORTED, "%s: the array is in memory of a device (DLPack's type %d, number %d)", what,
            (int) d->device_type, (int) d->device_id);
        return GBPY_NOT_ON_HOST;
    }
    GB_TRY(find_type(d, &array->type, what));
    GB_FAIL_IF(d->ndim < 0 || d->ndim > GGML_MAX_DIMS, GGML_STATUS_INVALID_ARGUMENT,
        "%s: the array has %d axes, tensors have at most %d", what, (int) d->ndim, GGML_MAX_DIMS);
    GB_FAIL_IF(d->ndim > 0 && d->shape == NULL, GGML_STATUS_INVALID_ARGUMENT, "%s: the array has no shape", what);
    array->ndim = d->ndim;
    int64_t stride = (int64_t) ggml_type_size((enum ggml_type) array->type), n = 1;
    bool empty = false;
    for (int i = d->ndim - 1; i >= 0; i--) {
        const int64_t size = d->shape[i], step = d->strides != NULL ? d->strides[i] : n;
        GB_FAIL_IF(size < 0 || step > INT64_MAX / stride || step < -(INT64_MAX / stride) ||
                       (size > 0 && n > INT64_MAX / stride / size),
            GGML_STATUS_INVALID_ARGUMENT, "%s: axis %d of the array has %lld elements with a stride of %lld", what, i,
            (long long) size, (long long) step);
        array->shape[i] = size;
        array->strides[i] = step * stride;
        n *= size > 0 ? size : 1;
        empty |= size == 0;
    }
    GB_FAIL_IF(d->data == NULL && !empty, GGML_STATUS_INVALID_ARGUMENT, "%s: the array has elements, and no memory",
        what);
    GB_FAIL_IF(!empty && !lies_in_memory(array, d), GGML_STATUS_INVALID_ARGUMENT,
        "%s: the array leaves the address space: it begins %llu bytes behind its memory's address", what,
        (unsigned long long) d->byte_offset);
    array->data = d->data != NULL && !empty ? (char *) d->data + d->byte_offset : d->data;
    return GGML_STATUS_SUCCESS;
}

// With the GIL. *pointer: the content of the capsule.
static int look_into(struct gbpy_array * array, PyObject * capsule, void ** pointer, bool * versioned,
    const char * what) {
    *versioned = PyCapsule_IsValid(capsule, versioned_name);
    GB_FAIL_IF(!*versioned && !PyCapsule_IsValid(capsule, plain_name), GGML_STATUS_INVALID_ARGUMENT,
        "%s: the array gave an invalid DLPack capsule, or one that was taken already", what);
    *pointer = PyCapsule_GetPointer(capsule, *versioned ? versioned_name : plain_name);
    if (!*versioned) {
        array->readonly = array->unversioned = true;
        return read_array(array, &((struct dl_plain *) *pointer)->array, what);
    }
    const struct dl_versioned * v = *pointer;
    GB_FAIL_IF(v->major != DL_MAJOR, GGML_STATUS_UNSUPPORTED,
        "%s: the array came by version %u.%u of DLPack; versions 1.x and those before are known", what, v->major,
        v->minor);
    array->readonly = (v->flags & DL_READ_ONLY) != 0;
    array->unversioned = false;
    return read_array(array, &v->array, what);
}

// With the GIL: takes what look_into found. Returns a new reference to its owner. NULL: out of memory, and nothing
// was taken.
static PyObject * take(PyObject * capsule, void * pointer, bool versioned) {
    PyObject * owner = PyCapsule_New(pointer, owner_name, NULL); // it gets a destructor when it owns the memory
    if (owner != NULL && (PyCapsule_SetName(capsule, versioned ? versioned_taken : plain_taken) != 0 ||
                             PyCapsule_SetDestructor(owner, versioned ? drop_versioned : drop_plain) != 0)) {
        Py_DecRef(owner);
        owner = NULL;
    }
    PyErr_Clear();
    return owner;
}

// The destructor of capsules of gbpy_dlpack_export.
static void drop_exported(PyObject * capsule) {
    if (PyCapsule_IsValid(capsule, versioned_name)) {
        struct dl_versioned * v = PyCapsule_GetPointer(capsule, versioned_name);
        if (v->give_back != NULL) {
            v->give_back(v);
        }
    }
}

bool gbpy_dlpack_export(uintptr_t functions, uintptr_t array, uintptr_t list) {
    const PyGILState_STATE state = PyGILState_Ensure();
    PyObject * capsule = NULL;
    struct dl_versioned * found = NULL;
    bool ok = false;
    if (PyCapsule_IsValid((PyObject *) functions, functions_name)) {
        const struct dl_functions * f = PyCapsule_GetPointer((PyObject *) functions, functions_name);
        while (f != NULL && f->major > DL_MAJOR) {
            f = f->before;
        }
        ok = f != NULL && f->major == DL_MAJOR && f->export != NULL && f->export((PyObject *) array, &found) == 0 &&
             found != NULL;
    }
    if (ok) {
        capsule = PyCapsule_New(found, versioned_name, drop_exported);
        if (capsule == NULL && found->give_back != NULL) {
            found->give_back(found);
        }
        ok = capsule != NULL && PyList_Append((PyObject *) list, capsule) == 0;
    }
    Py_DecRef(capsule);
    PyErr_Clear(); // the array's __dlpack__ reports the error
    PyGILState_Release(state);
    return ok;
}

int gbpy_dlpack_take(struct gbpy_array * array, uintptr_t capsule, uintptr_t list, const char * what) {
    const PyGILState_STATE state = PyGILState_Ensure();
    void * pointer = NULL;
    bool versioned = false;
    int status = look_into(array, (PyObject *) capsule, &pointer, &versioned, what);
    if (status == GGML_STATUS_SUCCESS) {
        PyObject * owner = take((PyObject *) capsule, pointer, versioned);
        if (owner == NULL || PyList_Append((PyObject *) list, owner) != 0) {
            status = gb_fail(GGML_STATUS_ALLOC_FAILED, "%s: out of memory", what);
            PyErr_Clear();
        }
        Py_DecRef(owner);
    }
    PyGILState_Release(state);
    return status;
}

// ------------------------------------------------------------------------------------------------- tensors over arrays

// How a view is made over elements in `span`: first by strides, then by a permutation of dimensions.
struct views {
    int64_t span; // elements from the first to the last, inclusive; 0: there are none
    bool adjacent; // no gaps, in order: no view is needed
    int64_t ne[GGML_MAX_DIMS];
    size_t nb[GGML_MAX_DIMS];
    int order[GGML_MAX_DIMS]; // dimension d becomes dimension order[d]
};

static int not_shared(const char * what, const char * reason, int axis, int64_t n) {
    if (axis >= 0) {
        gb_fail(GGML_STATUS_UNSUPPORTED, "%s: axis %d has a stride of %lld bytes, which no tensor has", what, axis,
            (long long) n);
    } else {
        gb_fail(GGML_STATUS_UNSUPPORTED, "%s: %s", what, reason);
    }
    return GBPY_NOT_SHARED;
}

static int find_span(struct views * v, const struct gbpy_array * a, const char * what) {
    const int64_t size = (int64_t) ggml_type_size((enum ggml_type) a->type);
    int64_t next = size;
    *v = (struct views){ .span = 1, .adjacent = true };
    for (int i = a->ndim - 1; i >= 0; i--) {
        if (a->shape[i] == 0) {
            *v = (struct views){ .span = 0, .adjacent = true };
            return GGML_STATUS_SUCCESS;
        }
        if (a->shape[i] == 1) {
            continue;
        }
        if (a->strides[i] < 0 || a->strides[i] % size != 0) {
            return not_shared(what, NULL, i, a->strides[i]);
        }
        v->adjacent &= a->strides[i] == next;
        next = a->strides[i] * a->shape[i]; // lies_in_memory has checked the size
        v->span += a->strides[i] / size * (a->shape[i] - 1);
    }
    return GGML_STATUS_SUCCESS;
}

// True if no two elements share an address. Goes through the axes by increasing stride: each step must be longer than
// the reach of all axes before it.
static bool is_apart(const struct gbpy_array * a) {
    bool done[GGML_MAX_DIMS] = { false };
    int64_t reach = 0;
    for (int n = 0; n < a->ndim; n++) {
        int least = -1;
        for (int i = 0; i < a->ndim; i++) {
            least = !done[i] && (least < 0 || a->strides[i] < a->strides[least]) ? i : least;
        }
        done[least] = true;
        if (a->shape[least] > 1) {
            if (a->strides[least] <= reach) {
                return false;
            }
            reach += a->strides[least] * (a->shape[least] - 1);
        }
    }
    return true;
}

// Views of the builders need adjacent elements on dimension 0: an axis of the array with that stride, or one of a
// single element.
static int find_views(struct views * v, const struct gbpy_array * a, const char * what) {
    if (!is_apart(a)) {
        return not_shared(what, "several elements of the array lie at one address", -1, 0);
    }
    const int64_t size = (int64_t) ggml_type_size((enum ggml_type) a->type);
    int inner = -1, n = 1;
    bool used[GGML_MAX_DIMS] = { false };
    for (int i = 0; i < a->ndim; i++) {
        inner = a->shape[i] > 1 && a->strides[i] == size ? i : inner;
    }
    v->ne[0] = inner >= 0 ? a->shape[inner] : 1;
    v->nb[0] = (size_t) size;
    v->order[0] = -1;
    if (inner >= 0) {
        v->order[0] = a->ndim - 1 - inner;
        used[a->ndim - 1 - inner] = true;
    }
    for (int i = a->ndim - 1; i >= 0; i--) {
        if (i == inner || a->shape[i] == 1) {
            continue;
        }
        if (n == GGML_MAX_DIMS) {
            return not_shared(what, "no tensor has gaps between the elements of all of its four axes", -1, 0);
        }
        v->ne[n] = a->shape[i];
        v->nb[n] = (size_t) a->strides[i];
        v->order[n++] = a->ndim - 1 - i;
        used[a->ndim - 1 - i] = true;
    }
    for (int d = 0; d < GGML_MAX_DIMS; d++) { // the other dimensions have one element
        if (d >= n) {
            v->ne[d] = 1;
            v->nb[d] = v->nb[d - 1];
        }
        for (int to = 0; (d >= n || v->order[d] < 0) && to < GGML_MAX_DIMS; to++) {
            if (!used[to]) {
                v->order[d] = to;
                used[to] = true;
                break;
            }
        }
    }
    return GGML_STATUS_SUCCESS;
}

// Memory of tensors without elements.
static char nothing[64];

static struct ggml_tensor * make_view(struct ggml_context * ctx, struct ggml_tensor * base, const struct views * v) {
    struct ggml_tensor * t =
        ggml_view_4d(ctx, base, v->ne[0], v->ne[1], v->ne[2], v->ne[3], v->nb[1], v->nb[2], v->nb[3], 0);
    const bool same = v->order[0] == 0 && v->order[1] == 1 && v->order[2] == 2;
    return t == NULL || same ? t : ggml_permute(ctx, t, v->order[0], v->order[1], v->order[2], v->order[3]);
}

// With the lock for placing tensors of the context.
static int make_tensor(struct gbpy_context * c, struct gbpy_buffer * b, const struct gbpy_array * a,
    const struct views * v, const char * name, struct ggml_tensor ** tensor) {
    int64_t ne[GGML_MAX_DIMS] = { 1, 1, 1, 1 };
    for (int i = 0; i < a->ndim && v->adjacent; i++) {
        ne[a->ndim - 1 - i] = a->shape[i];
    }
    ne[0] = v->adjacent ? ne[0] : v->span;
    struct ggml_tensor * base = ggml_new_tensor(c->memory.head.ptr, (enum ggml_type) a->type, GGML_MAX_DIMS, ne);
    if (base == NULL) {
        return ggml_last_status();
    }
    const ggml_backend_buffer_t buffer = b->memory.head.ptr;
    if (!gbpy_add_memory(c, &b->memory)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    GB_TRY((int) ggml_backend_tensor_alloc(buffer, base, ggml_backend_buffer_get_base(buffer)));
    struct ggml_tensor * t = v->adjacent ? base : make_view(c->memory.head.ptr, base, v);
    if (t == NULL) {
        return ggml_last_status();
    }
    gb_tensor_set_ndim(t, a->ndim);
    if (name != NULL || !v->adjacent) {
        ggml_set_name(t, name != NULL ? name : "");
    }
    *tensor = t;
    return GGML_STATUS_SUCCESS;
}

// Checks that the context can make the tensor, and finds how.
static int plan_sharing(struct gbpy_context * c, const struct gbpy_array * array, struct views * v, const char * what) {
    GB_FAIL_IF(c->memory.head.kind != GBPY_CONTEXT, GGML_STATUS_INVALID_STATE,
        "%s: the copy of a graph cannot be built on", what);
    GB_FAIL_IF(!ggml_get_no_alloc(c->memory.head.ptr), GGML_STATUS_INVALID_STATE,
        "%s: with allocate=True each tensor of the context gets memory of its own; use gb.Context()", what);
    GB_TRY(find_span(v, array, what));
    if (!v->adjacent) {
        GB_TRY(find_views(v, array, what));
    }
    const size_t size = ggml_type_size((enum ggml_type) array->type);
    if (v->span > 0 && (uintptr_t) array->data % GB_MIN(size, sizeof(int64_t)) != 0) {
        gb_fail(GGML_STATUS_UNSUPPORTED, "%s: the array begins at an address that is no multiple of %zu", what, size);
        return GBPY_NOT_SHARED;
    }
    return GGML_STATUS_SUCCESS;
}

struct sharing {       // how a tensor is made over an array
    const char * what; // begins the messages
    const char * name; // NULL: none
    int usage;         // of its buffer
    uintptr_t also; // another Python object to keep; 0: none
};

static int share(struct gbpy_context * c, const struct gbpy_array * array, const struct views * v, PyObject * owner,
    const struct sharing * how, struct ggml_tensor ** tensor) {
    struct gbpy_handle b = { 0 };
    struct gbpy_locks locks = { 0 };
    const size_t size = (size_t) v->span * ggml_type_size((enum ggml_type) array->type);
    int status = gbpy_open_host_buffer(&b, size > 0 ? array->data : nothing, size > 0 ? size : sizeof(nothing),
        how->usage, array->readonly, (uintptr_t) owner);
    if (status == GGML_STATUS_SUCCESS && how->also != 0 && !gbpy_keep(&b, how->also)) {
        status = GGML_STATUS_ALLOC_FAILED;
    }
    if (status == GGML_STATUS_SUCCESS) {
        status = gbpy_lock_to_place(&locks, how->what, NULL, 0, &c, 1);
    }
    if (status == GGML_STATUS_SUCCESS) {
        status = make_tensor(c, (struct gbpy_buffer *) b.object, array, v, how->name, tensor);
        gbpy_note_move();
    }
    gbpy_unlock(&locks);
    gbpy_release(&b);
    return status;
}

int gbpy_share_array(const struct gbpy_handle * context, const struct gbpy_array * array, uintptr_t owner,
    uintptr_t also, int usage, const char * name, struct ggml_tensor ** tensor, const char * what) {
    const struct sharing how = { .what = what, .name = name, .usage = usage, .also = also };
    struct gbpy_context * c = gbpy_context_of(context, what);
    struct views v;
    if (c == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    GB_TRY(plan_sharing(c, array, &v, what));
    return share(c, array, &v, (PyObject *) owner, &how, tensor);
}

int gbpy_dlpack_share(const struct gbpy_handle * context, uintptr_t capsule, bool mutable_too, uintptr_t also,
    int usage, const char * name, struct ggml_tensor ** tensor, const char * what) {
    const struct sharing how = { .what = what, .name = name, .usage = usage, .also = also };
    struct gbpy_context * c = gbpy_context_of(context, what);
    struct gbpy_array array;
    struct views v;
    PyObject * owner = NULL;
    void * pointer = NULL;
    bool versioned;
    if (c == NULL) {
        return GGML_STATUS_INVALID_STATE;
    }
    PyGILState_STATE state = PyGILState_Ensure();
    int status = look_into(&array, (PyObject *) capsule, &pointer, &versioned, what);
    if (status == GGML_STATUS_SUCCESS) {
        array.readonly = array.readonly && !(array.unversioned && mutable_too);
        status = plan_sharing(c, &array, &v, what);
    }
    if (status == GGML_STATUS_SUCCESS) {
        owner = take((PyObject *) capsule, pointer, versioned);
        status = owner != NULL ? status : (int) gb_fail(GGML_STATUS_ALLOC_FAILED, "%s: out of memory", what);
    }
    PyGILState_Release(state);
    if (status == GGML_STATUS_SUCCESS) {
        status = share(c, &array, &v, owner, &how, tensor);
        state = PyGILState_Ensure();
        Py_DecRef(owner);
        PyGILState_Release(state);
    }
    return status;
}
