"""Blocks of quantized formats as arrays that know their format."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dtypes import DType

__all__ = ["Blocks", "array_shape", "as_blocks"]


class Blocks(np.ndarray[Any, np.dtype[np.uint8]]):
    """The blocks of a quantized tensor, as functions of :func:`ggml_backend.custom` get them: uint8 of shape ``(...,
    blocks of a row, bytes of a block)``.

    ``gb.dequantize(blocks)`` makes float32 of the tensor's shape of them, also of some of them: ``blocks[2:5]``. What
    is computed from them (``blocks + 1``) is an array as any other, whose ``format`` is None.
    """

    _format: DType | None

    def __array_finalize__(self, obj: Any) -> None:
        """A view of whole blocks keeps the format; what is anything else, or was made anew (sorted, rolled), may have
        blocks no more."""
        known = getattr(obj, "_format", None)
        keeps = known is not None and self.base is not None and _has_blocks(self, known)
        self._format = known if keeps else None

    def copy(self, order: Any = "C") -> Blocks:
        """A copy in memory of its own, of the same format."""
        copied: Blocks = super().copy(order)
        copied._format = self.format
        return copied

    def sort(self, *args: Any, **options: Any) -> None:
        """Sorts in place, as NumPy's arrays do; these are no blocks then."""
        super().sort(*args, **options)
        self._format = None

    def partition(self, *args: Any, **options: Any) -> None:
        """Partitions in place, as NumPy's arrays do; these are no blocks then."""
        super().partition(*args, **options)
        self._format = None

    @property
    def format(self) -> DType | None:
        """The format of the tensor; None for what is not made of whole blocks any more."""
        known = self._format
        return known if known is not None and _has_blocks(self, known) else None

    def __repr__(self) -> str:
        known = self.format
        return super().__repr__() if known is None else f"{super().__repr__()[:-1]}, format={known.name})"

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        plain = np.asarray(array)
        return plain[()] if return_scalar else plain


def _has_blocks(array: np.ndarray[Any, Any], dtype: DType) -> bool:
    """Are its last elements, one after the other, the bytes of blocks?"""
    whole = array.dtype == np.uint8 and array.ndim > 0 and array.shape[-1] == dtype.itemsize
    return whole and (array.strides[-1] == 1 or array.size == 0)


def array_shape(dtype: DType, shape: tuple[int, ...]) -> tuple[int, ...]:
    """How functions of :func:`ggml_backend.custom` see a tensor of this shape."""
    if not dtype.is_quantized:
        return shape
    last = shape[-1] if shape else 1
    return (*shape[:-1], last // dtype.block_size, dtype.itemsize)


def as_blocks(rows: np.ndarray[Any, Any], dtype: DType) -> Blocks:
    """A view of the bytes of rows ``(..., bytes of a row)``."""
    blocks = rows.reshape(*rows.shape[:-1], rows.shape[-1] // dtype.itemsize, dtype.itemsize).view(Blocks)
    blocks._format = dtype
    return blocks
