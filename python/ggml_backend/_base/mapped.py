"""Opens mapped files, and reads them safely even if they shrink.

Access to a page beyond the end of a shrunk file raises SIGBUS, which ends the process. C
(c/src/base/mapped.h) prevents this for its reads of registered mappings, and reports an error
afterwards. This module registers mappings, and guards reads by NumPy::

    with reading(view):
        copy = view.astype(np.float32)
"""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np

from .._ffi import ffi, lib
from .errors import FileError, check, raise_last
from .files import open_regular
from .handles import owned

__all__ = ["Mapping", "check_file", "map_file", "reading", "watch_of"]

_any = lib.gbpy_mapped_any
_check = lib.gbpy_mapped_check
_enter = lib.gbpy_mapped_enter
_leave = lib.gbpy_mapped_leave


def _watch(data: Any, size: int, offset: int, writable: bool, path: bytes | None) -> Any:
    watch = owned(ffi.new("struct gbpy_watch *"), lib.gbpy_mapped_forget)
    if not lib.gbpy_mapped_watch(watch, data, size, offset, writable, ffi.NULL if path is None else path):
        raise_last("mapped file")
    return watch


class Mapping(mmap.mmap):
    """A whole file, mapped, and registered in C as long as it has users."""

    known: Any = None


def map_file(path: str | os.PathLike[str], *, writable: bool = False) -> Any:
    """The bytes of a file: a :class:`Mapping`, or b"" for an empty file, which cannot be mapped.
    FileError unless it is a regular file.

    writable: the process may write to the memory. The file does not change.
    """
    name = os.fsdecode(path)
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size == 0:
            return b""
        try:
            mapping = Mapping(file.fileno(), 0, access=mmap.ACCESS_COPY if writable else mmap.ACCESS_READ)
        except ValueError:
            raise FileError(f"{name}: it became empty while it was opened") from None
    mapping.known = _watch(ffi.from_buffer(mapping), len(mapping), 0, writable, os.path.abspath(os.fsencode(name)))
    return mapping


def _mmap_of(value: Any) -> mmap.mmap | None:
    """The mapping under an array or a memoryview."""
    for _ in range(100):
        if isinstance(value, mmap.mmap):
            return value
        value = value.obj if isinstance(value, memoryview) else value.base if isinstance(value, np.ndarray) else None
        if value is None:
            break
    return None


def _place(address: int) -> tuple[int, bytes] | None:
    """The file and offset of an address, from the kernel's list of mappings (Linux)."""
    try:
        with open("/proc/self/maps", "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in lines:
        columns = line.split(None, 5)
        begin, end = (int(part, 16) for part in columns[0].split(b"-"))
        if begin <= address < end:
            named = len(columns) == 6 and columns[5].startswith(b"/")
            return (int(columns[2], 16) + address - begin, columns[5]) if named else None
    return None


def watch_of(value: Any) -> Any:
    """Registers the mapped file under an array, ``mmap`` or ``memoryview`` as long as the result lives.

    Also prevents ``close`` of the mapping, which NumPy's arrays do not. None if there is no mapped file, or if it is
    already registered.
    """
    found = _mmap_of(value)
    if found is None or isinstance(found, Mapping):
        return None
    readonly = memoryview(found).readonly
    data = ffi.from_buffer(found)
    if not len(data):
        return None
    place = _place(int(ffi.cast("uintptr_t", data)))
    offset, path = (0, None) if place is None else place
    return _watch(data, len(data), offset, not readonly, path), data


def _address(array: np.ndarray[Any, Any]) -> Any:
    return ffi.cast("void *", array.ctypes.data)  # NumPy's __array_interface__ crashes when memory is out


def check_file(array: np.ndarray[Any, Any], what: str) -> None:
    """Raises FileError if the array is in a registered file that has shrunk."""
    if _any() and array.size:
        check(_check(_address(array)), what)


class reading:
    """``with reading(array):`` guards reads of registered files by this thread. At the end of the
    block it raises if the file of the array has shrunk."""

    __slots__ = ("_array", "_guard", "_what")

    def __init__(self, array: np.ndarray[Any, Any], what: str = "numpy") -> None:
        self._array = array
        self._what = what
        self._guard: Any = None

    def __enter__(self) -> None:
        if _any():
            self._guard = guard = owned(ffi.new("struct gbpy_guard *"), _leave)
            _enter(guard)

    def __exit__(self, kind: object, *exc: object) -> None:
        if self._guard is not None:
            _leave(self._guard)
        if kind is None:
            check_file(self._array, self._what)
