"""Files with the state of an optimizer: weights, moments and numbers, as GGUF with a checksum of the data."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .._base.errors import FileError, InvalidArgumentError
from .._base.errors.messages import kind_of
from ..dtypes import float32
from ..gguf import GGUFFile, Writer
from ..gguf import open as open_gguf
from ..tensor.tensor import Tensor

__all__ = ["read_state", "write_state"]

Floats = npt.NDArray[np.float32]


def _checksum(arrays: Iterable[Floats]) -> int:
    value = 0
    for array in arrays:
        value = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, value)
    return value


def write_state(
    what: str,
    path: str | os.PathLike[str],
    kind: str,
    numbers: Mapping[str, float],
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, Any] | None,
) -> None:
    if metadata is not None and not isinstance(metadata, Mapping):
        raise TypeError(f"{what}: metadata must be a mapping, not {kind_of(metadata)}")
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    with Writer(path) as writer:
        writer.add("optim.kind", kind)
        for name, value in numbers.items():
            writer.add(f"optim.{name}", value, "u64" if name == "n_steps" else "f64")
        writer.add("optim.checksum", _checksum(arrays.values()), "u32")
        for key, value in (metadata or {}).items():
            if isinstance(key, str) and key.startswith("optim."):
                raise InvalidArgumentError(f"{what}: metadata: the key {key!r} begins with 'optim.', as the state's do")
            writer.add(key, value)
        for name, array in arrays.items():
            writer.add_tensor(name, array)


def read_state(
    what: str, path: str | os.PathLike[str], kind: str, names: Sequence[str], tensors: Mapping[str, Tensor]
) -> tuple[dict[str, float], dict[str, Floats]]:
    """The numbers and the arrays, for all of these tensors."""
    with open_gguf(path) as file:
        shown = f"{what}: {os.fsdecode(path)}" if isinstance(path, (str, os.PathLike)) else what
        found = file.metadata.get("optim.kind")
        if found is None:
            raise FileError(f"{shown} is not a state of an optimizer: it has no key 'optim.kind'")
        if found != kind:
            raise FileError(f"{shown} is the state of {found!r}, not of {kind}")
        numbers = {name: _number_of(shown, file, f"optim.{name}") for name in (*names, "n_steps")}
        if not isinstance(numbers["n_steps"], int):
            raise FileError(f"{shown}: the key 'optim.n_steps' must be a whole number, not {numbers['n_steps']!r:.60}")
        arrays = {name: _array_of(shown, file, name, tensor) for name, tensor in tensors.items()}
        if (rest := [name for name in file.tensors if name not in tensors]) != []:
            raise FileError(f"{shown} has the tensor {rest[0]!r}, which is none of this optimizer's")
        if _number_of(shown, file, "optim.checksum") != _checksum(arrays.values()):
            raise FileError(f"{shown} is damaged: the checksum of its data differs")
    return numbers, arrays


def _number_of(shown: str, file: GGUFFile, key: str) -> float:
    value = file.metadata.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise FileError(f"{shown}: the key {key!r} must be a number from 0 on, not {value!r:.60}")
    return value


def _array_of(shown: str, file: GGUFFile, name: str, tensor: Tensor) -> Floats:
    if name not in file.tensors:
        raise FileError(f"{shown} has no tensor {name!r}")
    stored = file.tensors[name]
    if stored.dtype != float32 or stored.shape != tensor.shape:
        raise FileError(f"{shown}: {name!r} is {stored.dtype.name} {stored.shape}, not {tensor.describe()}")
    return stored.numpy()
