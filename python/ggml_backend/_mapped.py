"""Mapped files: opening them, and reading them although they may shrink meanwhile.

A page that a file has lost raises SIGBUS, which ends the process. The C side (c/src/base/mapped.h) keeps that from happening where it reads
a mapping that is known to it, and an error is raised afterwards. Here mappings are made known, and what NumPy reads for us is guarded:

    with reading(view):
        copy = view.astype(np.float32)
"""

from __future__ import annotations

import mmap
import os
import stat
from typing import Any

import numpy as np

from ._errors import FileError, check, non_null
from ._ffi import ffi, lib
from ._owned import owned

__all__ = ["Mapping", "check_file", "map_file", "reading", "watch_of"]

_any = lib.gbpy_mapped_any
_check = lib.gbpy_mapped_check
_guard = lib.gbpy_mapped_guard


def _watch(data: Any, size: int, offset: int, writable: bool, path: bytes | None) -> Any:
    pointer = non_null(lib.gbpy_mapped_watch(data, size, offset, writable, ffi.NULL if path is None else path), "mapped file")
    return owned(pointer, lib.gbpy_mapped_forget)


class Mapping(mmap.mmap):
    """A whole file, read-only, known to the C side for as long as anybody uses it."""

    _known: Any

    @classmethod
    def of(cls, descriptor: int, name: str | None) -> Mapping:
        """name: the path that it was opened by; None: not known."""
        try:
            self = cls(descriptor, 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise FileError(f"{name or 'a file'}: it became empty while it was opened") from None
        self._known = _watch(ffi.from_buffer(self), len(self), 0, False, None if name is None else os.path.abspath(os.fsencode(name)))
        return self

    def close(self) -> None:
        super().close()
        self._known = None


def map_file(path: str | os.PathLike[str] | int) -> Any:
    """The bytes of a file, by its path or descriptor: a :class:`Mapping`, or b"" of an empty one (which cannot be mapped). FileError: it is
    no regular file; nobody waits for the writer of a pipe."""
    if isinstance(path, int):
        return _map(path, None, f"file descriptor {path}")
    name = os.fsdecode(path)
    descriptor = os.open(name, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        return _map(descriptor, name, name)
    finally:
        os.close(descriptor)


def _map(descriptor: int, path: str | None, name: str) -> Any:
    info = os.fstat(descriptor)
    if not stat.S_ISREG(info.st_mode):
        raise FileError(f"{name}: {'a directory' if stat.S_ISDIR(info.st_mode) else 'not a regular file'}")
    return Mapping.of(descriptor, path) if info.st_size else b""


def _mmap_of(value: Any) -> mmap.mmap | None:
    """The mapping that an array, or a view of memory, shows a part of."""
    for _ in range(100):
        if isinstance(value, mmap.mmap):
            return value
        value = value.obj if isinstance(value, memoryview) else value.base if isinstance(value, np.ndarray) else None
        if value is None:
            break
    return None


def _place(address: int) -> tuple[int, bytes] | None:
    """Where in which file an address lies, by the kernel's list (Linux)."""
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
    """Makes the mapped file known in which an array, ``mmap`` or ``memoryview`` lies, for as long as the result lives. None: it lies in
    none, or in one that is known."""
    found = _mmap_of(value)
    if found is None or isinstance(found, Mapping):
        return None
    readonly = memoryview(found).readonly
    data = ffi.from_buffer(found)
    if not len(data):
        return None
    place = _place(int(ffi.cast("uintptr_t", data)))
    return _watch(data, len(data), 0 if place is None else place[0], not readonly, None if place is None else place[1])


def _address(array: np.ndarray[Any, Any]) -> Any:
    return ffi.cast("void *", array.ctypes.data)  # NumPy's __array_interface__ crashes when memory is out


def check_file(array: np.ndarray[Any, Any], what: str) -> None:
    """FileError if the array lies in a known file that has shrunk."""
    if _any() and array.size:
        check(_check(_address(array)), what)


class reading:
    """``with reading(array):`` what this thread reads of known files in the block is guarded, and checked at its end for the array."""

    __slots__ = ("_array", "_what")

    def __init__(self, array: np.ndarray[Any, Any], what: str = "numpy") -> None:
        self._array = array
        self._what = what

    def __enter__(self) -> None:
        _guard(True)

    def __exit__(self, kind: object, *exc: object) -> None:
        _guard(False)
        if kind is None:
            check_file(self._array, self._what)
