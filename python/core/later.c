// later.c - one kept exception, and the pending call that raises it on Python's main thread (later.h).
#define Py_LIMITED_API 0x030a0000
#include <Python.h>

#include "later.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "devices.h"
#include "world.h"

static _Atomic(PyObject *) kept; // a reference; NULL: none
static atomic_bool armed;        // Python was asked to call raise_kept

void gbpy_raise_later(uintptr_t error) {
    const PyGILState_STATE state = PyGILState_Ensure();
    PyObject * before = NULL;
    if (atomic_compare_exchange_strong(&kept, &before, (PyObject *) error)) {
        Py_IncRef((PyObject *) error); // the GIL keeps other threads from taking it
    }
    PyGILState_Release(state);
}

// Python calls this on its main thread, with the GIL.
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

static PyObject * interrupt; // a reference; only the main thread uses it; NULL: none
static atomic_bool put_off;  // it was not raised, because a function of a device was running

static int raise_interrupt(void * unused) {
    (void) unused;
    if (gbpy_in_device()) {
        atomic_store(&put_off, true);
        return 0;
    }
    PyObject * error = interrupt;
    interrupt = NULL;
    if (error == NULL) {
        return 0;
    }
    const bool reported = gbpy_outcome(0) != GBPY_INTERRUPTED; // the interrupted call reports it itself
    if (!reported) {
        PyObject * type = PyObject_Type(error);
        PyErr_SetObject(type, error);
        Py_DecRef(type);
    }
    Py_DecRef(error);
    return reported ? 0 : -1;
}

void gbpy_raise_interrupt_later(uintptr_t error) {
    const PyGILState_STATE state = PyGILState_Ensure();
    PyObject * before = interrupt;
    Py_IncRef((PyObject *) error);
    interrupt = (PyObject *) error;
    Py_DecRef(before);
    PyGILState_Release(state);
}

void gbpy_arm_interrupt(void) {
    Py_AddPendingCall(raise_interrupt, NULL); // if Python's list is full, the next call of C reports it
}

void gbpy_arm_interrupt_again(void) {
    if (atomic_load(&put_off) && atomic_exchange(&put_off, false)) {
        gbpy_arm_interrupt();
    }
}

void gbpy_arm(void) {
    if (atomic_load(&kept) != NULL && !atomic_exchange(&armed, true) && Py_AddPendingCall(raise_kept, NULL) != 0) {
        atomic_store(&armed, false); // Python's list is full: try again with the next message
    }
}
