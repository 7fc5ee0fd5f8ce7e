// later.c - see later.h.
#define Py_LIMITED_API 0x030a0000
#include <Python.h>

#include "later.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

static _Atomic(PyObject *) kept;  // a reference; NULL: none
static atomic_bool         armed; // Python has been asked to call raise_kept

void gbpy_raise_later(uintptr_t error) {
    const PyGILState_STATE state  = PyGILState_Ensure();
    PyObject *             before = NULL;
    if (atomic_compare_exchange_strong(&kept, &before, (PyObject *) error)) {
        Py_IncRef((PyObject *) error); // nobody takes it without the GIL
    }
    PyGILState_Release(state);
}

// By Python, on its main thread, with the GIL.
static int raise_kept(void * unused) {
    (void) unused;
    atomic_store(&armed, false);
    PyObject * error = atomic_exchange(&kept, NULL);
    if (error == NULL) {
        return 0;
    }
    PyObject * type = PyObject_Type(error);
    PyErr_SetObject(type, error);
    Py_DecRef(type);
    Py_DecRef(error);
    return -1;
}

void gbpy_arm(void) {
    if (atomic_load(&kept) != NULL && !atomic_exchange(&armed, true) && Py_AddPendingCall(raise_kept, NULL) != 0) {
        atomic_store(&armed, false); // Python's list is full: with the next message
    }
}
