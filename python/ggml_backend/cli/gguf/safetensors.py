"""Safetensors files, as far as converting needs: names, shapes, and views of the mapped data. Nothing in the header is
trusted."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..._errors import FileError
from ..._files.mapped import map_file, reading
from ...dtypes import DType, dtypes

__all__ = ["SafeTensors"]

_DTYPES = {
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F64": "float64",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
}
_MAX_HEADER = 100_000_000  # bytes, the limit of the format


class SafeTensors:
    """An open file: ``metadata`` (of strings), ``names``, and :meth:`get`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._data = np.frombuffer(map_file(path), np.uint8)
        size = self._data.size
        if size < 8:
            raise FileError(f"{path}: at offset 0: the header's length needs 8 bytes, the file has {size}")
        with reading(self._data, path):
            length = int.from_bytes(self._data[:8].tobytes(), "little")
            if length > min(size - 8, _MAX_HEADER):
                raise FileError(
                    f"{path}: at offset 0: the header's length is {length}, the file has {size - 8} more bytes"
                )
            text = self._data[8 : 8 + length].tobytes()
        try:
            header = json.loads(text.decode())
        except (ValueError, RecursionError) as error:
            raise FileError(f"{path}: at offset 8: the header is no JSON: {error}") from None
        if not isinstance(header, dict):
            raise FileError(f"{path}: at offset 8: the header is no object")
        metadata = header.pop("__metadata__", None) or {}
        self.metadata: dict[str, str] = (
            {k: v for k, v in metadata.items() if isinstance(v, str)} if isinstance(metadata, dict) else {}
        )
        self._start = 8 + length
        self._tensors = {name: self._check(name, entry) for name, entry in header.items()}

    def _check(self, name: str, entry: Any) -> tuple[DType | None, str, tuple[int, ...], int, int]:
        what = f"{self.path}: tensor {name!r}"
        try:
            kind, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        except (KeyError, TypeError, ValueError):
            raise FileError(f"{what}: needs dtype, shape and data_offsets") from None
        if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
            raise FileError(f"{what}: shape {shape!r}")
        if type(begin) is not int or type(end) is not int or not 0 <= begin <= end <= self._data.size - self._start:
            raise FileError(
                f"{what}: data_offsets {begin!r} .. {end!r} are outside of the data, {self._data.size - self._start}"
                " bytes"
            )
        element = dtypes.get(_DTYPES.get(str(kind), ""))
        if element is not None and math.prod(shape) * element.itemsize != end - begin:
            raise FileError(f"{what}: {end - begin} bytes are no {kind} of shape {tuple(shape)}")
        return element, str(kind), tuple(shape), begin, end

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def get(self, name: str) -> tuple[np.ndarray[Any, Any], DType | None, str]:
        """The data (bfloat16: of uint16 bits), its format, None if there is none here, and its name in the file."""
        element, kind, shape, begin, end = self._tensors[name]
        data = self._data[self._start + begin : self._start + end]
        if element is None:
            return data, element, kind
        try:
            return np.ndarray(shape, element.numpy, data.data), element, kind
        except ValueError:  # too many dimensions, or beside a 0 a product that no address holds
            raise FileError(f"{self.path}: tensor {name!r}: NumPy has no arrays of shape {shape}") from None
