"""Inputs of a checked operator: shapes, dtypes, seeded values, and memory layouts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from .._base.errors import GgmlError
from ..dtypes import DType, dtypes
from ..ops import view
from ..tensor._quantize import dequantize, quantize
from ..tensor.context import Context
from ..tensor.tensor import Tensor

__all__ = [
    "FLOATS", "LAYOUTS", "POISON", "SPECIAL", "Array", "In", "Laid", "floats_of", "in_bytes", "laid", "shown",
    "values_of",
]  # fmt: skip

Array = np.ndarray[Any, Any]
Cut = Callable[[Any], Any]
FLOATS = ("float32", "float16", "bfloat16")
POISON = 0xFF
"""Fills memory that must not be read. It is NaN as any float, and far out of range as an index."""
LAYOUTS = ("padded", "offset", "permuted", "transposed")
"""Rows with gaps; a part of a larger tensor; transposed leading axes; transposed last axes."""
SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 3.0e38, -3.0e38, 1e-40, -1e-40, 88.0, -88.0, 65504.0)


def in_bytes(n: int) -> str:
    """A number of bytes as text."""
    return "1 byte" if n == 1 else f"{n} bytes"


@dataclass(frozen=True)
class In:
    """An input of a case.

    dtype: a name, ``"a"`` for every dtype, or ``"b"`` for every float
    low, high: range of random values
    values: these values instead of random ones
    special: NaN, infinities and limits of floats
    """

    shape: tuple[int, ...]
    dtype: str = "a"
    low: float = -2.0
    high: float = 2.0
    values: tuple[int, ...] | None = None
    special: bool = False

    @property
    def element(self) -> DType:
        return dtypes[self.dtype]

    @property
    def fits(self) -> bool:
        """True if its rows consist of whole blocks."""
        return not self.shape or self.shape[-1] % self.element.block_size == 0

    def typed(self, first: str, second: str) -> In:
        return replace(self, dtype={"a": first, "b": second}.get(self.dtype, self.dtype))


def shown(shape: tuple[int, ...]) -> str:
    """A shape in the name of a case: ``2x3``."""
    return "x".join(map(str, shape)) or "scalar"


def floats_of(given: In, rng: np.random.Generator) -> Array:
    """Random values, before conversion to the dtype."""
    found = (rng.random(given.shape) * (given.high - given.low) + given.low).astype(np.float32)
    if given.special and found.size:
        found.reshape(-1)[:] = np.resize(rng.permutation(np.array(SPECIAL, np.float32)), found.size)
    return found


def values_of(given: In, rng: np.random.Generator) -> tuple[Array, Array]:
    """The array for :meth:`Tensor.set`, and the values that its elements mean."""
    element = given.element
    if given.values is not None:
        array = np.array(given.values, element.numpy).reshape(given.shape)
        return array, array
    floats = floats_of(given, rng)
    if element.is_quantized:
        blocks = _blocks(element, floats)
        return blocks, dequantize(blocks, element) if blocks.size else floats
    if element.name == "bfloat16":
        bits = quantize(floats, element, on_invalid="nan").view(np.uint16).reshape(floats.shape)
        return bits, (bits.astype(np.uint32) << 16).view(np.float32)
    if element.numpy.kind == "i":
        array = (floats * 50).astype(element.numpy)
        return array, array
    with np.errstate(over="ignore"):
        array = floats.astype(element.numpy)
    return array, array


def _blocks(element: DType, floats: Array) -> Array:
    """Quantized rows; zeros for formats without a quantizer."""
    try:
        return quantize(floats, element, np.linspace(0.5, 1.5, floats.shape[-1], dtype=np.float32), n_threads=1)
    except GgmlError:
        return np.zeros((*floats.shape[:-1], element.row_nbytes(floats.shape[-1])), np.uint8)


# ---- layouts ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Laid:
    """A root tensor, the input as a view of it, and the bytes of the root."""

    root: Tensor
    tensor: Tensor
    memory: Array


def _plan(shape: tuple[int, ...], layout: str, block: int) -> tuple[tuple[int, ...], Cut]:
    """The shape of the root, and the cut that makes the input. block: elements of a block"""
    n = len(shape)
    if layout == "padded" and n > 1:
        return (*shape[:-1], shape[-1] + (3 if block == 1 else block)), lambda t: t[..., : shape[-1]]
    if layout == "offset":
        return (shape[0] + (2 if n > 1 else 2 * block), *shape[1:]), lambda t: t[
            (1 if n > 1 else block) : (1 if n > 1 else block) + shape[0]
        ]
    order = list(range(n))
    if layout == "permuted":
        order[:-1] = order[-2::-1]
    elif layout == "transposed":
        order[-2:] = order[:-3:-1]
    if order == sorted(order):
        return shape, lambda t: t
    inverse = tuple(int(i) for i in np.argsort(order))
    return tuple(shape[i] for i in order), lambda t: t.transpose(inverse)


def laid(ctx: Context, given: In, layout: str, array: Array) -> Laid:
    """A new tensor with these values in this layout."""
    element = given.element
    size, cut = _plan(given.shape, layout, element.block_size)
    root = ctx.tensor(size, element)
    if layout == "padded" and element.is_quantized:  # slices cannot cut blocks
        cut = partial(view, shape=given.shape, strides=root.strides)
    if layout == "whole":
        return Laid(root, root, array)
    bytes_of_rows = (*size[:-1], element.row_nbytes(size[-1])) if element.is_quantized else size
    memory = np.full(bytes_of_rows, np.array([POISON] * element.numpy.itemsize, np.uint8).view(element.numpy)[0])
    if element.is_quantized:
        _, cut_bytes = _plan(array.shape, layout, element.itemsize)
        cut_bytes(memory)[...] = array
    else:
        cut(memory)[...] = array
    return Laid(root, cut(root), memory)
