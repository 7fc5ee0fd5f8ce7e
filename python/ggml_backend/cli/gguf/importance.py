"""The file of ``--imatrix``: the importances of the columns of each matrix, as calibration measured them."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np

from ..._base.errors import FileError, InvalidArgumentError
from ..._base.files import HEAD, file_kind, read_head
from ..._base.text import line
from ...gguf import GGUFFile, Writer
from ...gguf import open as open_gguf

__all__ = ["Importance"]

_SUMS, _COUNTS = ".in_sum2", ".counts"
Shape = tuple[int, ...]


class Importance:
    """Sums of squares (``NAME.in_sum2``) and counts (``NAME.counts``) for matrices of a model.

    The sums have one row for each matrix, with one value for each of its columns. Experts are several matrices in one
    tensor. A matrix whose count is 0 was never reached: its importances are 0, and it is quantized without importances.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        if file_kind(read_head(path, HEAD)) is None:
            raise FileError(
                f"--imatrix {line(path)}: not a GGUF file. llama.cpp wrote importances in a format of its own before:"
                " 'llama-imatrix --in-file OLD.dat -o NEW.gguf' converts such a file"
            )
        self.file: GGUFFile = open_gguf(path)
        self.found: list[str] = []
        self.missing: list[str] = []
        if not any(name.endswith(_SUMS) for name in self.file.tensors):
            raise InvalidArgumentError(
                f"--imatrix {line(path)}: the file is not an importance matrix: it has no tensor NAME{_SUMS}"
            )

    def of(self, name: str, shape: Shape) -> Any:
        """Importances of a tensor's columns, float64 ``(..., n)`` without the axis of rows; None if it has none."""
        if f"{name}{_SUMS}" not in self.file.tensors:
            self.missing.append(name)
            return None
        self.found.append(name)
        matrices, n = math.prod(shape[:-2]), shape[-1]
        sums = self._values(f"{name}{_SUMS}", name, shape, (matrices, n))
        counts: Any = 1.0
        if f"{name}{_COUNTS}" in self.file.tensors:
            counts = np.maximum(self._values(f"{name}{_COUNTS}", name, shape, (matrices, 1)), 1)
        return (sums / counts).reshape(*shape[:-2], n)

    def _values(self, entry: str, name: str, shape: Shape, needed: Shape) -> Any:
        """A tensor of the file, checked against the tensor of the model that it describes."""
        tensor = self.file.tensors[entry]
        what = f"--imatrix {line(self.path)}: tensor {entry!r}"
        found = tuple(tensor.shape)
        if math.prod(found) != math.prod(needed) or (needed[-1] > 1 and found[-1:] != needed[-1:]):
            raise InvalidArgumentError(
                f"{what} has shape {found}, which does not fit tensor {name!r} of shape {shape}: it needs {needed}"
            )
        plain = tensor.dtype.name in ("int8", "int16", "int32", "int64", "float64")
        values = (tensor.numpy() if plain else tensor.dequantize()).astype(np.float64).reshape(needed)
        wrong = ~(np.isfinite(values) & (values >= 0))
        if wrong.any():
            row, column = (int(i) for i in np.unravel_index(int(wrong.argmax()), needed))
            raise InvalidArgumentError(
                f"{what} for {name!r}: row {row}, column {column} is {values[row, column]:g}: it must be finite and at"
                " least 0"
            )
        return values

    def report(self) -> str | None:
        """A line about tensors without importances. Raises if the file names no tensor to
        quantize."""
        if not self.missing:
            return None if self.found else "no tensor is quantized: the importances are not used"
        if not self.found:
            raise InvalidArgumentError(
                f"--imatrix {line(self.path)}: the file has no importances for any of the {len(self.missing)} tensors"
                f" to quantize ({self.missing[0]!r}, ...): the file belongs to another model"
            )
        return f"{len(self.missing)} of {len(self.missing) + len(self.found)} tensors have no importances in the file"

    def describe(self, writer: Writer) -> None:
        """Adds the keys that describe the importances."""
        if not self.found:
            return
        writer.add("quantize.imatrix.file", os.fsencode(self.path))
        datasets = self.file.metadata.get("imatrix.datasets")
        if datasets is not None and len(datasets) > 0:
            writer.add("quantize.imatrix.dataset", str(datasets[0]))
        entries = sum(name.endswith(_SUMS) for name in self.file.tensors)
        writer.add("quantize.imatrix.entries_count", entries, "u32")
        chunks = self.file.metadata.get("imatrix.chunk_count")
        if isinstance(chunks, (int, np.integer)) and 0 <= chunks < 2**32:
            writer.add("quantize.imatrix.chunks_count", int(chunks), "u32")
