"""Mapped model files, and the parts of a model that is split into several files.

Only its keys mark a file as a part: ``split.count`` is more than 1. Its name locates the other parts. So a
renamed part is an error, and a whole file may have any name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from .._base.errors import FileError, clear_error, raise_last
from .._base.mapped import check_file, map_file, watch_of
from .._ffi import ffi, lib
from ._values import decode, new_metadata, type_name, value_at

__all__ = ["Part", "is_one_of_several", "parts_of"]

Array = np.ndarray[Any, Any]

_NAME = re.compile(r"^(.*)-(\d{5})-of-(\d{5})(\.gguf)$", re.DOTALL | re.IGNORECASE)
_ALONE = "To look at this part alone, use open(source, part=True), or --part on the command line"


class Part:
    """One mapped file and its parsed metadata in C."""

    __slots__ = ("_known", "_meta", "data", "data_offset", "name", "path", "ptr")

    def __init__(self, source: Any, name: str, path: str | None = None) -> None:
        self.name: str = name
        self.path: str | None = None if path is None else os.path.abspath(path)
        self.data: Array = np.frombuffer(source, np.uint8)
        self._known = watch_of(source)  # for a mapping of the caller
        self._meta: Any = new_metadata()
        clear_error()
        if not lib.gbpy_gguf_read(
            self._meta, ffi.from_buffer(self.data) if self.data.size else ffi.NULL, self.data.nbytes
        ):
            raise_last(name)
        meta = self._meta
        self.ptr: Any = meta.ptr
        self.data_offset: int = lib.gguf_get_data_offset(self.ptr)

    def check(self) -> None:
        """Raises FileError if the file has shrunk since it was opened."""
        check_file(self.data, self.name)

    def names(self) -> Iterator[str]:
        """The names of its tensors."""
        for i in range(lib.gguf_get_n_tensors(self.ptr)):
            yield decode(ffi.string(lib.gguf_get_tensor_name(self.ptr, i)))

    def __len__(self) -> int:
        return int(lib.gguf_get_n_tensors(self.ptr))


def _number(part: Part, key: str) -> int | None:
    """An integer value among the keys; None if the key is missing."""
    index = lib.gguf_find_key(part.ptr, key.encode())
    if index < 0:
        return None
    value = value_at(part, index)
    if type(value) is not int:
        raise FileError(f"{part.name}: {key} is {type_name(part, index)}, it must be a whole number")
    if value < 0:
        raise FileError(f"{part.name}: {key} is {value}, it must not be negative")
    return value


def is_one_of_several(part: Part) -> bool:
    return (_number(part, "split.count") or 0) > 1


def parts_of(first: Part, path: str | None, writable: bool = False) -> list[Part]:
    """All parts of the model that a file belongs to, in order. For a whole model: only the file itself.

    path: path of the file; None if the file is in memory and so has no other parts beside it
    """
    count, number = _number(first, "split.count"), _number(first, "split.no")
    if count is None or count < 2:
        _check_total([first])
        return [first]
    found = None if path is None else _NAME.match(path)
    if found is None:
        which = "one" if number is None else f"part {number + 1}"
        raise FileError(
            f"{first.name}: this is {which} of the {count} parts of a split model (split.count = {count}),"
            f" with {len(first)} tensors{_of_all(first)}. The name does not say where the others are: put all parts"
            f" into one folder, as NAME-00001-of-{count:05d}.gguf and so on. {_ALONE}"
        )
    paths = [f"{found[1]}-{i:05d}-of-{found[3]}{found[4]}" for i in range(1, int(found[3]) + 1)]
    own = int(found[2]) - 1
    _check_numbers(first, own, len(paths))
    parts = [first if i == own else _sibling(p, first, len(paths), writable) for i, p in enumerate(paths)]
    for i, part in enumerate(parts):
        _check_numbers(part, i, len(parts))
    _check_total(parts)
    return parts


def _of_all(part: Part) -> str:
    total = _number(part, "split.tensors.count")
    return "" if total is None else f" of {total}"


def _sibling(path: str, first: Part, count: int, writable: bool) -> Part:
    try:
        return Part(map_file(path, writable=writable), path, path)
    except FileNotFoundError:
        raise FileError(f"{first.name}: a split model of {count} parts, of which {path} is missing. {_ALONE}") from None


def _check_numbers(part: Part, number: int, count: int) -> None:
    for key, expected in (("split.count", count), ("split.no", number)):
        found = _number(part, key)
        if found is not None and found != expected:
            raise FileError(f"{part.name}: {key} is {found}, the file name says {expected}. {_ALONE}")


def _check_total(parts: list[Part]) -> None:
    total, found = _number(parts[0], "split.tensors.count"), sum(map(len, parts))
    if total is not None and total != found:
        have = "the file has" if len(parts) == 1 else "the parts have"
        raise FileError(
            f"{parts[0].name}: the model is incomplete: split.tensors.count is {total}, {have} {found} tensors."
            f" {_ALONE}"
        )
