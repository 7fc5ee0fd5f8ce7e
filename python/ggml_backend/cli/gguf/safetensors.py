"""Reads safetensors files: their tensors, and views of the bytes. The header is not trusted. This
reader refuses every file that the package ``safetensors`` refuses."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from ..._base.errors import FileError
from ..._base.files import HEAD, file_kind, read_head
from ..._base.mapped import map_file, reading
from ..._base.text import line

__all__ = ["BITS", "SafeTensors", "Stored", "json_object", "product", "quoted"]

BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip
"""Bits of an element, for each dtype of the format."""
_KIND = "a safetensors file"
_MAX_HEADER = 100_000_000  # bytes, the limit of the format


class Stored(NamedTuple):
    """A tensor as the header describes it."""

    kind: str  #: the dtype's name in the file
    shape: tuple[int, ...]
    begin: int  #: bytes from the end of the header
    end: int


def quoted(name: object) -> str:
    """A name or value of a file in a message: shortened if it is long."""
    return line(repr(name), 100)


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {quoted(key)} occurs twice")
        found[key] = value
    return found


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON number")


def json_object(text: str, where: str) -> dict[str, Any]:
    """A JSON object without repeated keys. FileError for anything else."""
    try:
        value = json.loads(text, object_pairs_hook=_pairs, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise FileError(f"{where} is not JSON: {line(error, 200)}") from None
    if not isinstance(value, dict):
        raise FileError(f"{where} is not a JSON object")
    return value


class SafeTensors:
    """An open file: its ``metadata``, and its ``tensors`` by their names, in the order of the header."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._data = np.frombuffer(map_file(path), np.uint8)
        header = json_object(self._header(), f"{path}: at offset 8: the header")
        metadata = header.pop("__metadata__", None)
        self.metadata: dict[str, str] = self._metadata({} if metadata is None else metadata)
        self.tensors: dict[str, Stored] = {name: self._described(name, entry) for name, entry in header.items()}
        self._expect_covered()

    def _header(self) -> str:
        size = self._data.size
        head = read_head(self.path, HEAD)
        length = int.from_bytes(head[:8], "little")
        shorter = length > size - 8
        if length > _MAX_HEADER or (shorter and head[8:9] != b"{") or file_kind(head) not in (None, _KIND):
            raise self._wrong_kind(head)
        if shorter:
            missing = f"the header needs {length} bytes, the file has {size - 8} more"
            raise FileError(f"{self.path}: at offset 0: the file is incomplete: {missing}")
        self._start = 8 + length
        with reading(self._data, self.path):
            text = self._data[8 : self._start].tobytes()
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            place = f"at offset {8 + error.start}"
            raise FileError(f"{self.path}: {place}: the header is not JSON: {error.reason}") from None

    def _wrong_kind(self, head: bytes) -> FileError:
        kind = file_kind(head)
        if len(head) < 8 or (len(head) == 8 and kind is None):
            needed = "the header's length needs 8 bytes and the header more"
            kind = f"{kind or 'incomplete'}: it has {len(head)} bytes, {needed}"
        if kind is None:
            length, begin = int.from_bytes(head[:8], "little"), head[8:12].decode("latin-1")
            shown = f"the header's length would be {length}, and the header would begin with {begin!r}"
            return FileError(f"{self.path}: not a safetensors file: {shown}")
        hint = {"a GGUF file": "; gguf quantize reads it", "JSON text": "; name an index so that it ends in .json"}
        return FileError(f"{self.path}: not a safetensors file: it is {kind}{hint.get(kind, '')}")

    def _metadata(self, given: Any) -> dict[str, str]:
        if not isinstance(given, dict) or not all(isinstance(text, str) for text in given.values()):
            raise FileError(f"{self.path}: at offset 8: __metadata__ must map names to texts")
        return given

    def _described(self, name: str, entry: Any) -> Stored:
        what = f"{self.path}: tensor {quoted(name)}"
        try:
            kind, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        except (KeyError, TypeError, ValueError):
            raise FileError(f"{what}: needs dtype, shape and data_offsets") from None
        if not isinstance(kind, str) or kind not in BITS:
            raise FileError(f"{what}: safetensors has no dtype {quoted(kind)}")
        if not isinstance(shape, list) or not all(type(n) is int and 0 <= n < 2**64 for n in shape):
            raise FileError(f"{what}: shape {quoted(shape)}")
        if type(begin) is not int or type(end) is not int or not 0 <= begin <= end < 2**64:
            raise FileError(f"{what}: data_offsets {quoted(begin)} .. {quoted(end)} are not a range")
        if product(shape) * BITS[kind] != 8 * (end - begin):
            raise FileError(f"{what}: {end - begin} bytes are not {kind} of shape {quoted(tuple(shape))}")
        return Stored(kind, tuple(shape), begin, end)

    def _expect_covered(self) -> None:
        """Raises FileError unless the tensors cover the data without gaps, up to the end of the
        file."""
        size = self._data.size - self._start
        ordered = sorted(self.tensors.items(), key=lambda item: (item[1].begin, item[1].end))
        last = ordered[-1][1].end if ordered else 0
        if last > size:
            name, at = ordered[-1]
            raise FileError(
                f"{self.path}: the file is incomplete: {last - size} bytes are missing; tensor {quoted(name)} ends at"
                f" {at.end}, outside of the data, {size} bytes"
            )
        for (name, one), (other, following) in itertools.pairwise(ordered):
            if following.begin < one.end:
                raise FileError(f"{self.path}: tensors {quoted(name)} and {quoted(other)} overlap")
        ends = [0, *(one.end for _, one in ordered)]
        for end, begin in zip(ends, [*(one.begin for _, one in ordered), size], strict=True):
            if begin != end:
                raise FileError(f"{self.path}: bytes {end} .. {begin} of the data belong to no tensor")

    def bytes_of(self, name: str) -> np.ndarray[Any, Any]:
        """The bytes of a tensor, mapped."""
        stored = self.tensors[name]
        return self._data[self._start + stored.begin : self._start + stored.end]


def product(sizes: Iterable[int]) -> int:
    """Like ``math.prod``, but at most 2^80, because the format has no sizes beyond 2^64."""
    total = 1
    for n in sorted(sizes):
        total = min(total * n, 1 << 80)
    return total
