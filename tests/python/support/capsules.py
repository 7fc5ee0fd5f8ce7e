"""DLPack by ctypes, from its specification: reads capsules of the package and makes capsules of
another library.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

PLAIN, VERSIONED = b"dltensor", b"dltensor_versioned"
READ_ONLY, IS_COPIED = 1, 2
CPU, CUDA = 1, 2
CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "complex": 5, "bool": 6}


class DLTensor(ctypes.Structure):
    _fields_: ClassVar = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Managed(ctypes.Structure):
    _fields_: ClassVar = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]


class ManagedVersioned(ctypes.Structure):
    _fields_: ClassVar = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p), ("deleter", DELETER),
        ("flags", ctypes.c_uint64), ("tensor", DLTensor),
    ]  # fmt: skip


api = ctypes.pythonapi
DESTRUCTOR = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
api.PyCapsule_New.restype = ctypes.py_object
api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
api.PyCapsule_GetName.restype = ctypes.c_char_p
api.PyCapsule_GetName.argtypes = [ctypes.py_object]
api.PyCapsule_GetPointer.restype = ctypes.c_void_p
api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


def name_of(capsule: Any) -> bytes:
    return bytes(api.PyCapsule_GetName(capsule))


@dataclass
class Said:
    """The contents of a capsule."""

    version: tuple[int, int] | None
    flags: int
    device: tuple[int, int]
    dtype: tuple[int, int, int]
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    data: int


def said(capsule: Any) -> Said:
    name = name_of(capsule)
    pointer = api.PyCapsule_GetPointer(capsule, name)
    managed: Any = (ManagedVersioned if name == VERSIONED else Managed).from_address(pointer)
    t = managed.tensor
    return Said(
        version=(managed.major, managed.minor) if name == VERSIONED else None,
        flags=managed.flags if name == VERSIONED else 0,
        device=(t.device_type, t.device_id),
        dtype=(t.code, t.bits, t.lanes),
        shape=tuple(t.shape[: t.ndim]),
        strides=tuple(t.strides[: t.ndim]),
        data=(t.data or 0) + t.byte_offset,
    )


KEPT: list[Any] = []
"""Objects behind capsules of :class:`Library`, kept until the end to find late uses."""


class Library:
    """An array of another library: a NumPy ``array`` whose description the other arguments change.
    ``deleted`` counts releases, one for each capsule. The class has no other protocol."""

    def __init__(self, array: np.ndarray[Any, Any], *, versioned: bool = True, **changes: Any) -> None:
        self.array, self.versioned, self.changes = array, versioned, changes
        self.deleted = self.given = 0
        self.asked: list[dict[str, Any]] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.changes.get("device_type", CPU), 0)

    def __dlpack__(self, **options: Any) -> Any:
        if not self.versioned and options:
            raise TypeError("no arguments")
        self.asked.append(options)
        self.given += 1
        return self.capsule()

    def _delete(self, address: int) -> None:
        self.deleted += 1

    def capsule(self) -> Any:
        name, drop = (VERSIONED if self.versioned else PLAIN), DESTRUCTOR(self._drop)
        KEPT.append(drop)
        return api.PyCapsule_New(self.managed(), name, ctypes.cast(drop, ctypes.c_void_p))

    def managed(self) -> int:
        """The address in a capsule."""
        a, change = self.array, self.changes
        managed: Any = ManagedVersioned() if self.versioned else Managed()
        shape = (ctypes.c_int64 * max(a.ndim, 1))(*a.shape)
        strides = (ctypes.c_int64 * max(a.ndim, 1))(*(s // a.itemsize for s in a.strides))
        kind = {"f": "float", "i": "int", "u": "uint", "c": "complex", "b": "bool"}[a.dtype.kind]
        managed.tensor = DLTensor(
            data=a.ctypes.data - change.get("byte_offset", 0), device_type=CPU, ndim=a.ndim, lanes=1,
            code=CODES[change.get("kind", kind)], bits=a.itemsize * 8,
            shape=ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64)),
            strides=ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64)),
        )  # fmt: skip
        managed.deleter = DELETER(self._delete)
        if self.versioned:
            managed.major = 1
        for name, value in change.items():
            target = managed if hasattr(managed, name) else managed.tensor
            if name != "kind":
                setattr(target, name, value)
        KEPT.append((self, managed, shape, strides))
        return ctypes.addressof(managed)

    def _drop(self, address: int) -> None:
        """The destructor of a capsule, by address. It frees the memory of an unused capsule."""
        get_name = ctypes.pythonapi["PyCapsule_GetName"]
        get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
        if get_name(address) in (PLAIN, VERSIONED):
            self.deleted += 1


EXPORT = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.c_void_p))


class Functions(ctypes.Structure):
    _fields_: ClassVar = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("before", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p), ("export", EXPORT), ("to_object", ctypes.c_void_p), ("look", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
    ]  # fmt: skip


def functions(export: Any, major: int = 1, before: Any = None, name: bytes = b"dlpack_exchange_api") -> Any:
    """The capsule ``__dlpack_c_exchange_api__`` of a type.

    export: a function from an array to the address of a managed tensor of DLPack 1.0, which may raise BufferError.
        None: the type has no such function
    """

    def exported(array: Any, out: Any) -> int:
        try:
            out[0] = export(array)
        except BufferError:
            return -1
        return 0

    function = EXPORT(exported) if export is not None else EXPORT()
    table = Functions(major=major, minor=3, export=function)
    table.before = api.PyCapsule_GetPointer(before, b"dlpack_exchange_api") if before is not None else None
    kept_name = ctypes.create_string_buffer(name)
    KEPT.append((table, function, kept_name, before))
    return api.PyCapsule_New(ctypes.addressof(table), kept_name, None)


def bfloat16(values: Any) -> np.ndarray[Any, Any]:
    """The bits of numbers that are exact in bfloat16."""
    wide = np.asarray(values, np.float32)
    bits = (wide.view(np.uint32) >> 16).astype(np.uint16)
    assert ((bits.astype(np.uint32) << 16).view(np.float32) == wide).all()
    return bits
