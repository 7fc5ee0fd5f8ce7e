"""Results of Python functions for nodes.

Several results share the memory of one node. Here are their layout, and the checks and conversions of the
values that are written.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._base.errors import InvalidArgumentError
from .._base.errors.messages import kind_of
from ..dtypes import DType, as_dtype, float32
from ._arrays import _round_to_bfloat16, cast, to_array
from ._blocks import Blocks, array_shape, as_blocks, of_format
from ._shapes import MAX_DIMS, common_shape, ne_of, refuse_shape, shape_tuple

__all__ = [
    "Result", "apart", "blank", "expect_kind", "expect_written", "given_results", "ne_list",
    "parts_of", "returned", "write",
]  # fmt: skip

_FLOATS = {
    "float16": ("uint16", 0x7E5A), "bfloat16": ("uint16", 0x7FDA), "uint16": ("uint16", 0x7FDA),
    "float32": ("uint32", 0x7FC5A5A5), "float64": ("uint64", 0x7FF85A5A5A5A5A5A),
}  # fmt: skip
"""For each dtype a NaN that no computation produces, as an integer of the same size. uint16 stands for bfloat16
bits, because no tensor has uint16 elements."""


@functools.lru_cache(maxsize=64)
def _pattern(dtype: np.dtype[Any]) -> tuple[np.dtype[Any], int] | None:
    """The dtype and value with which to fill an array of floats; None for other arrays.

    They are cached, because NumPy takes microseconds to name a dtype.
    """
    found = _FLOATS.get(dtype.name)
    return None if found is None else (np.dtype(found[0]), found[1])


def blank(out: Any) -> None:
    """Fills an array with NaN, or with zeros if it has integers or blocks.

    An array of another library is filled if the library can assign a number to all elements.
    """
    if not isinstance(out, np.ndarray):
        with contextlib.suppress(Exception):
            out[...] = float("nan") if "float" in str(out.dtype) else 0
        return
    found = _pattern(out.dtype)
    if found is None:
        out[...] = 0
    else:
        out.view(found[0])[...] = found[1]


def expect_written(outs: Iterable[Any], what: str) -> None:
    """Raises InvalidArgumentError if an array of floats is unchanged since :func:`blank`.

    Other arrays, and arrays of other libraries, are not checked.
    """
    for out in outs:
        found = _pattern(out.dtype) if isinstance(out, np.ndarray) and out.size else None
        if found is not None:
            bits = out.view(found[0])
            if bits.item(0) == found[1] and bool((bits == found[1]).all()):
                raise InvalidArgumentError(
                    f"{what}: the function returned None and wrote nothing: return the result, or write it into the"
                    " first argument, out[...] = result"
                )


ALIGNMENT = 64
"""Alignment of each of several results, in bytes: a cache line, so that threads that write two results share none."""


class Result(NamedTuple):
    """One result of a custom operation."""

    dtype: DType
    shape: tuple[int, ...]
    offset: int
    """Bytes from the start of the node's memory."""
    nbytes: int

    def __str__(self) -> str:
        return f"{self.dtype.name} {self.shape}"

    @property
    def array_shape(self) -> tuple[int, ...]:
        """The shape of its array. For a quantized format: the shape of its blocks."""
        return array_shape(self.dtype, self.shape)


# ---------------------------------------------------------------------------------------------------- what is asked for


def _is_int(value: Any) -> bool:
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def _listed(shape: Any, dtype: Any) -> tuple[list[Any], list[Any], bool]:
    """Shapes and dtypes as lists of equal length, and True if several results were requested."""
    shapes = isinstance(shape, (list, tuple)) and not all(_is_int(n) for n in shape)
    dtypes = isinstance(dtype, (list, tuple))
    if not shapes and not dtypes:
        return [shape], [dtype], False
    n = len(shape if shapes else dtype)
    if n == 0:
        raise InvalidArgumentError("custom: dtype: an empty list asks for no result")
    if shapes and dtypes and len(dtype) != n:
        raise InvalidArgumentError(
            f"custom: shape has {n} entr{'ies' if n > 1 else 'y'} and dtype {len(dtype)}: each result needs one of both"
        )
    return list(shape) if shapes else [shape] * n, list(dtype) if dtypes else [dtype] * n, True


def given_results(shape: Any, dtype: Any, like: tuple[tuple[int, ...], DType] | None) -> tuple[list[Result], bool]:
    """The results that :func:`ggml_backend.ops.custom` was asked for, and True if they form a tuple.

    like: shape and dtype of the first source, the defaults; None without sources
    """
    shapes, dtypes, several = _listed(shape, dtype)
    results: list[Result] = []
    end = 0
    for s, d in zip(shapes, dtypes, strict=True):
        if s is None and like is None:
            raise InvalidArgumentError("custom: needs a shape, because there is no source whose shape the result has")
        size = shape_tuple(s, "custom: shape") if s is not None else like[0]  # type: ignore[index]
        element = as_dtype(d, "custom: dtype") if d is not None else (like[1] if like is not None else float32)
        ne_of(size, "custom")
        refuse_shape("custom", size, element)
        begin = -(-end // ALIGNMENT) * ALIGNMENT
        nbytes = math.prod(size) // element.block_size * element.itemsize
        results.append(Result(element, size, begin, nbytes))
        end = begin + nbytes
    if end >= 2**63:
        raise InvalidArgumentError(f"custom: the results are too large together: {end} bytes")
    return results, several


def ne_list(result: Result) -> list[int]:
    """The sizes in the order of C."""
    return [*reversed(result.shape), *[1] * (MAX_DIMS - len(result.shape))]


# ----------------------------------------------------------------------------------------------- where they are written


def parts_of(memory: np.ndarray[Any, Any], results: Sequence[Result]) -> tuple[np.ndarray[Any, Any], ...]:
    """An array for each result, over the bytes of the node."""
    data = memory.view(np.uint8)
    return tuple(_part(data[r.offset : r.offset + r.nbytes], r) for r in results)


def _part(data: np.ndarray[Any, Any], result: Result) -> np.ndarray[Any, Any]:
    dtype = result.dtype
    try:
        if dtype.is_quantized:
            return as_blocks(data.reshape(*result.array_shape[:-2], -1) if data.size else _empty_rows(result), dtype)
        return data.view(dtype.numpy).reshape(result.shape)
    except ValueError:
        raise InvalidArgumentError(f"NumPy cannot show an empty tensor of shape {result.shape}") from None


def _empty_rows(result: Result) -> np.ndarray[Any, Any]:
    shape = result.array_shape
    return np.empty((*shape[:-2], shape[-2] * shape[-1]), np.uint8)


# ------------------------------------------------------------------------------------------------- what may be written


def returned(value: Any, result: Result, what: str) -> Any:
    """The value that a function returned for a result: an array of any library, of the result's shape.

    A quantized result comes as blocks or as the bytes of its rows.
    """
    if not hasattr(value, "shape"):
        value = _as_numpy(value, what)
    if isinstance(value, Blocks) and value.format is not None:
        of_format(value, result.dtype, what)
    shape, wanted = tuple(value.shape), result.array_shape
    if shape == wanted:
        return value
    if result.dtype.is_quantized and shape == (*wanted[:-2], wanted[-2] * wanted[-1]):
        return value.reshape(wanted)
    raise InvalidArgumentError(f"{what} must have the shape {wanted}, not {shape}{_shape_hint(shape, result)}")


def _shape_hint(shape: tuple[int, ...], result: Result) -> str:
    if result.dtype.is_quantized:
        return f"; gb.quantize(value, {result.dtype.name!r}) makes its blocks" if shape == result.shape else ""
    return "; nothing is broadcast: out[...] = value does that" if _broadcasts(shape, result.shape) else ""


def _broadcasts(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    with contextlib.suppress(ValueError):
        return common_shape(shape, wanted) == wanted
    return False


def _as_numpy(value: Any, what: str) -> np.ndarray[Any, Any]:
    """An array of any library as a NumPy array."""
    try:
        array = to_array(value, what)
    except InvalidArgumentError:
        raise
    except Exception as error:  # from the other library, for example for a device array
        raise InvalidArgumentError(f"{what} cannot be this {kind_of(value)}: {error}") from None
    if not isinstance(value, np.ndarray) and array.dtype.kind not in "iubfc" and array.dtype.name != "bfloat16":
        raise InvalidArgumentError(f"{what} cannot be this {kind_of(value)}")
    return array


def apart(value: Any, memory: np.ndarray[Any, Any], what: str) -> np.ndarray[Any, Any]:
    """The returned value as a NumPy array. Copies it if it overlaps ``memory``, which is about to be written."""
    array = np.asarray(_as_numpy(value, what))
    return array.copy() if np.may_share_memory(array, memory) else array


def write(out: np.ndarray[Any, Any], value: Any, dtype: DType, what: str, *, broadcast: bool = False) -> None:
    """Writes a value that :func:`returned` has checked into the memory of a result.

    NumPy converts within a kind of numbers: float64 becomes float32, and no float becomes an integer.
    """
    array = np.asarray(_as_numpy(value, what))
    if array.shape != out.shape and not (broadcast and _broadcasts(array.shape, out.shape)):
        raise InvalidArgumentError(f"{what} must have the shape {out.shape}, and is an array of shape {array.shape}")
    if dtype.is_quantized:
        if array.dtype != np.uint8:
            raise InvalidArgumentError(
                f"{what} must be blocks as uint8, not {array.dtype}; gb.quantize(value, {dtype.name!r}) makes them"
            )
    elif dtype.name == "bfloat16":
        array = _bits(array, what)
    else:
        expect_kind(array, out.dtype, what)
    np.copyto(out, array, casting="same_kind")


def expect_kind(array: np.ndarray[Any, Any], dtype: np.dtype[Any], what: str) -> None:
    """Raises unless the conversion stays within a kind of numbers. Each integer must keep its value."""
    if array.dtype == dtype:
        return
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        raise InvalidArgumentError(
            f"{what} must be {dtype.name}, not {array.dtype}; array.astype(np.{dtype.name}) converts it"
        )
    if dtype.kind in "iu" and array.dtype.kind in "iu" and array.size and not np.can_cast(array.dtype, dtype):
        low, high, limits = array.min(), array.max(), np.iinfo(dtype)
        if int(low) < limits.min or int(high) > limits.max:
            raise InvalidArgumentError(
                f"{what} must be {dtype.name}, {limits.min} to {limits.max}, and has"
                f" {low if int(low) < limits.min else high}"
            )


def _bits(array: np.ndarray[Any, Any], what: str) -> np.ndarray[Any, Any]:
    """bfloat16 bits of an array. Floats are rounded. uint16 values are bits already."""
    if array.dtype.name == "bfloat16":
        return array.view(np.uint16)
    if array.dtype == np.uint16:
        return array
    if array.dtype.kind not in "iubf":
        raise InvalidArgumentError(f"{what} must be floats, or uint16 bits of bfloat16, not {array.dtype}")
    return _round_to_bfloat16(cast(array, np.float32)).reshape(array.shape)
