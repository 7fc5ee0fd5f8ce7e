"""Blocks of quantized formats as arrays that know their format."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._base.errors import InvalidArgumentError
from ..dtypes import DType, as_dtype

__all__ = ["Blocks", "array_shape", "as_blocks", "as_rows", "rows_of"]

Array = np.ndarray[Any, Any]


class Blocks(np.ndarray[Any, np.dtype[np.uint8]]):
    """The blocks of a quantized tensor: an array of uint8 that knows its ``format``.

    :func:`ggml_backend.quantize` makes them with the shape ``(..., bytes of a row)``. Functions of
    :func:`ggml_backend.ops.custom` get them with the shape ``(..., blocks of a row, bytes of a block)``.

    ``ctx.constant(blocks)``, ``ctx.from_numpy(blocks)`` and ``tensor.set(blocks)`` make or fill a tensor of the format.
    ``gb.dequantize(blocks)`` makes float32 of the tensor's shape, also of some rows: ``blocks[2:5]``. ``nbytes``,
    ``tobytes()`` and ``np.asarray(blocks)`` are those of an array of uint8. The result of arithmetic with blocks
    (``blocks + 1``) is a plain array. The ``format`` of a part of a row, or of a part of a block, is None.
    """

    _format: DType | None
    _of_rows: bool

    def __array_finalize__(self, obj: Any) -> None:
        """A view keeps the format if its last axis is that of ``obj``: whole rows, or whole blocks.

        A new array (sorted, rolled) may not hold blocks.
        """
        known = getattr(obj, "_format", None)
        self._of_rows = getattr(obj, "_of_rows", False)
        whole = known is not None and self.base is not None and _has_blocks(self, known, self._of_rows)
        self._format = known if whole and self.shape[-1] == obj.shape[-1] else None

    def copy(self, order: Any = "C") -> Blocks:
        """A copy of the same format, in its own memory."""
        copied: Blocks = super().copy(order)
        copied._format = self.format
        return copied

    def __copy__(self) -> Blocks:
        return self.copy()

    def __deepcopy__(self, memo: object) -> Blocks:
        return self.copy()

    def __reduce__(self) -> Any:
        """Pickled blocks keep their format."""
        known = self.format
        plain = np.asarray(self)
        return plain.__reduce__() if known is None else (_restored, (plain, known, self._of_rows))

    def sort(self, *args: Any, **options: Any) -> None:
        """Sorts in place, as NumPy does. The array loses its format."""
        super().sort(*args, **options)
        self._format = None

    def partition(self, *args: Any, **options: Any) -> None:
        """Partitions in place, as NumPy does. The array loses its format."""
        super().partition(*args, **options)
        self._format = None

    @property
    def format(self) -> DType | None:
        """The format of the blocks; None if the array no longer consists of whole blocks."""
        known = self._format
        return known if known is not None and _has_blocks(self, known, self._of_rows) else None

    def __repr__(self) -> str:
        known = self.format
        return super().__repr__() if known is None else f"{super().__repr__()[:-1]}, format={known.name})"

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        plain = np.asarray(array)
        return plain[()] if return_scalar else plain


def _has_blocks(array: Array, dtype: DType, of_rows: bool) -> bool:
    """True if the last elements, in order, are the bytes of whole blocks."""
    if array.dtype != np.uint8 or array.ndim == 0:
        return False
    n = array.shape[-1]
    return (n % dtype.itemsize == 0 if of_rows else n == dtype.itemsize) and (array.strides[-1] == 1 or array.size == 0)


def array_shape(dtype: DType, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The array shape in which functions of :func:`ggml_backend.ops.custom` see a tensor of this shape."""
    if not dtype.is_quantized:
        return shape
    last = shape[-1] if shape else 1
    return (*shape[:-1], last // dtype.block_size, dtype.itemsize)


def as_blocks(rows: Array, dtype: DType) -> Blocks:
    """A view of the bytes of rows ``(..., bytes of a row)``, with an axis for the blocks of a row."""
    blocks = rows.reshape(*rows.shape[:-1], rows.shape[-1] // dtype.itemsize, dtype.itemsize)
    return _restored(blocks, dtype, False)


def as_rows(rows: Array, dtype: DType) -> Blocks:
    """A view of the bytes of rows ``(..., bytes of a row)``, in the same shape."""
    return _restored(rows, dtype, True)


def _restored(array: Array, dtype: DType, of_rows: bool) -> Blocks:
    blocks = array.view(Blocks)
    blocks._format, blocks._of_rows = dtype, of_rows
    return blocks


def of_format(blocks: Blocks, dtype: DType | None, what: str) -> Array:
    """The bytes of the rows of blocks. Raises if their dtype differs from the given one."""
    known = blocks.format
    if known is None or (dtype is not None and dtype != known):
        fault = "these are not whole blocks" if known is None else f"these are blocks of {known.name}"
        raise InvalidArgumentError(
            f"{what}: {fault}, not of {dtype}; gb.dequantize(blocks) makes floats of blocks, gb.quantize(floats, dtype)"
            " blocks of another format"
        )
    rows = np.asarray(blocks)
    if blocks._of_rows or rows.ndim < 2:
        return rows
    return rows.reshape(*rows.shape[:-2], rows.shape[-2] * rows.shape[-1])


def rows_of(value: Any, dtype: Any, what: str) -> tuple[Array, DType, tuple[int, ...]] | None:
    """The bytes of rows, their format, and the shape of the elements.

    The value is :class:`Blocks`, or a uint8 array given with the dtype of its blocks. None for
    anything else.
    """
    element = None if dtype is None else as_dtype(dtype, what)
    if isinstance(value, Blocks) and value.format is not None:
        known, rows = value.format, of_format(value, element, what)
    else:
        if element is None or not isinstance(value, np.ndarray) or value.dtype != np.uint8 or value.ndim == 0:
            return None
        if not element.is_quantized and element.name != "bfloat16":
            return None
        known, rows = element, np.asarray(value)
    if rows.shape[-1] % known.itemsize:
        raise InvalidArgumentError(
            f"{what}: rows of {rows.shape[-1]} bytes are not whole blocks of {known.name}, of {known.itemsize} bytes"
        )
    return rows, known, (*rows.shape[:-1], rows.shape[-1] // known.itemsize * known.block_size)
