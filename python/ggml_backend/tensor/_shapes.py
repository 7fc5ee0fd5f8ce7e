"""Converts shapes, axes and indices of users to the numbers for C, or raises. Nothing here makes a node."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.errors import InvalidArgumentError
from .._base.errors.messages import kind_of
from .._ffi import ffi, lib
from ..dtypes import DType, as_dtype

if TYPE_CHECKING:
    from .tensor import Tensor

__all__ = [
    "MAX_DIMS",
    "common_shape",
    "given_dtype",
    "given_shape",
    "ne_of",
    "refuse_shape",
    "refuse_view",
    "region",
    "resolve_shape",
    "shape_tuple",
]

MAX_DIMS: int = lib.GGML_MAX_DIMS


def ne_of(shape: Sequence[int], what: str) -> Any:
    """A shape in NumPy order as ``int64_t[4]``."""
    if len(shape) > MAX_DIMS:
        raise InvalidArgumentError(
            f"{what}: the shape {tuple(shape)} has {len(shape)} axes, at most {MAX_DIMS} are possible"
        )
    try:
        return ffi.new("int64_t[4]", [operator.index(n) for n in reversed(shape)] + [1] * (MAX_DIMS - len(shape)))
    except OverflowError:
        raise InvalidArgumentError(f"{what}: the shape {tuple(shape)} is too large") from None


def common_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Like ``np.broadcast_shapes``, which fails for huge sizes beside a 0. Raises ValueError on a mismatch."""
    n = max(len(a), len(b))
    pairs = list(zip((1,) * (n - len(a)) + a, (1,) * (n - len(b)) + b, strict=True))
    if any(x != y and x != 1 and y != 1 for x, y in pairs):
        raise ValueError(f"{a} and {b} do not broadcast")
    return tuple(y if x == 1 else x for x, y in pairs)


def refuse_shape(what: str, shape: tuple[int, ...], dtype: DType) -> None:
    """Raises if no tensor of this dtype can have the shape."""
    if any(n < 0 for n in shape):
        raise InvalidArgumentError(f"{what}: the shape {shape} has a negative size")
    if (shape[-1] if shape else 1) % dtype.block_size:
        raise InvalidArgumentError(
            f"{what}: {dtype.name} stores rows in blocks of {dtype.block_size} elements; the last axis of the shape"
            f" {shape} is no multiple"
        )
    if math.prod(shape) * dtype.itemsize // dtype.block_size >= 2**63:
        raise InvalidArgumentError(f"{what}: the shape {shape} is too large")


def given_shape(shape: Any) -> tuple[int, ...]:
    """The shape argument of ``Context.tensor`` as a tuple."""
    try:
        return shape_tuple(shape, "shape")
    except TypeError:
        if isinstance(shape, np.ndarray) or hasattr(shape, "__array__"):
            hint = "; ctx.from_numpy(array) makes a tensor over an array, ctx.constant(array) one with a fixed value"
        elif isinstance(shape, str):
            hint = "; the order is tensor(shape, dtype, name)"
        else:
            hint = ""
        what = repr(shape) if isinstance(shape, (str, float, tuple, list)) else f"a {kind_of(shape)}"
        raise TypeError(f"Context.tensor: shape must be an int or a sequence of ints, not {what}{hint}") from None


def given_dtype(dtype: Any, size: tuple[int, ...]) -> DType:
    """The dtype argument of ``Context.tensor`` as a DType."""
    try:
        return as_dtype(dtype)
    except TypeError as error:
        reason = str(error)
        if isinstance(dtype, int):
            reason = (
                f"{dtype} is no dtype; a shape of several sizes is a tuple:"
                f" tensor(({', '.join([*map(str, size), str(dtype)])}))"
            )
        elif isinstance(dtype, str) and "; there are " in reason:
            reason = f"there is no dtype {dtype!r}; a name is given as tensor(shape, name={dtype!r})"
        raise TypeError(f"Context.tensor: {reason}") from None


def shape_tuple(shape: Any, what: str) -> tuple[int, ...]:
    """An int or a sequence of ints as a tuple. what: the function and its argument, for messages"""
    try:
        if isinstance(shape, (tuple, list)):
            return tuple(operator.index(n) for n in shape)
        return (operator.index(shape),)
    except TypeError:
        try:
            return tuple(operator.index(n) for n in shape)
        except TypeError:
            raise TypeError(f"{what} must be an int or a sequence of ints, not {shape!r:.60}") from None


def resolve_shape(t: Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The new shape of ``t`` with -1 replaced. Raises if ``t`` cannot have it."""
    known = math.prod(n for n in shape if n != -1)
    if shape.count(-1) > 1:
        reason = "only one size may be -1"
    elif any(n < -1 for n in shape):
        reason = "sizes are not negative"
    elif -1 not in shape:
        reason = "" if known == t.size else f"it has {t.size} elements, that shape {known}"
    elif known == 0:
        reason = "-1 has no single value beside a size of 0"
    else:
        reason = f"its {t.size} elements are no multiple of {known}" if t.size % known else ""
    if reason:
        raise InvalidArgumentError(f"reshape: {t.describe()} cannot become {shape}: {reason}")
    shape = tuple(t.size // known if n == -1 else n for n in shape)
    refuse_shape("reshape", shape, t.dtype)
    return shape


def region(t: Tensor, items: tuple[Any, ...]) -> tuple[list[int], list[int], int]:
    """Shape, strides and offset, in bytes, of ``t[items]``."""
    shape, strides = list(t.shape), list(t.strides)
    used = sum(1 for i in items if i is not None and i is not ...)
    if used > len(shape):
        raise InvalidArgumentError(f"x[...]: too many indices, {used} for the {len(shape)} axes of {t.describe()}")
    if sum(1 for i in items if i is ...) > 1:
        raise InvalidArgumentError("x[...]: only one ... is possible")
    if not any(i is ... for i in items):
        items = (*items, ...)
    new_shape: list[int] = []
    new_strides: list[int] = []
    offset = 0
    axis = 0
    for item in items:
        if item is None:
            new_shape.append(1)
            new_strides.append(0)
            continue
        if item is ...:
            rest = len(shape) - used
            new_shape += shape[axis : axis + rest]
            new_strides += strides[axis : axis + rest]
            axis += rest
            continue
        n, stride = shape[axis], strides[axis]
        whole = t.dtype.is_quantized and axis == len(shape) - 1  # rows of blocks are not cut
        if isinstance(item, slice):
            start, count, step = _bounds(t, item, n)
            if whole and (start, count) != (0, n):
                raise InvalidArgumentError(_blocks_cut(t))
            offset += start * stride if count else 0
            new_shape.append(count)
            new_strides.append(stride * step)
        else:
            position = _position(t, item)
            if whole:
                raise IndexError(_blocks_cut(t))
            if not -n <= position < n:
                raise IndexError(f"x[...]: index {position} is out of range for axis {axis} of {t.describe()}")
            offset += (position % n) * stride
        axis += 1
    return new_shape, new_strides, offset


def _bounds(t: Tensor, item: slice, n: int) -> tuple[int, int, int]:
    """The first index, the number of elements, and the step of a slice of an axis of ``n`` elements."""
    try:
        start, stop, step = item.indices(n)
    except TypeError:
        raise TypeError(f"x[...]: the bounds of a slice are integers or None, not those of {item}") from None
    if step < 0:
        raise InvalidArgumentError(f"x[...]: steps are positive, not {step}, in a view of {t.describe()}")
    return start, max(0, -(-(stop - start) // step)), step


def _position(t: Tensor, item: Any) -> int:
    """An integer index."""
    try:
        if isinstance(item, (bool, np.bool_)):
            raise TypeError
        return operator.index(item)
    except TypeError:
        picks = isinstance(item, (type(t), list, np.ndarray))
        hint = "; gb.ops.get_rows(x, ids) picks rows by int32 indices" if picks else ""
        raise TypeError(
            f"x[...]: a tensor is indexed by integers, slices, ... and None, not by {kind_of(item)}{hint}"
        ) from None


def _blocks_cut(t: Tensor) -> str:
    return (
        f"x[...]: rows of {t.describe()} are blocks of {t.dtype.block_size} elements, which cannot be cut: take whole"
        " rows"
    )


def refuse_view(op: str, t: Tensor, shape: tuple[int, ...], strides: Sequence[int], offset: int) -> None:
    """Raises with the reason if the view is impossible for one of the usual reasons."""
    if min([offset, *shape, *strides]) < 0:
        raise InvalidArgumentError(
            f"{op}: shape {shape}, strides {tuple(strides)} and offset {offset} must not be negative"
        ) from None
    end = (
        offset
        + t.dtype.row_nbytes(shape[-1])
        + sum((n - 1) * stride for n, stride in zip(shape[:-1], strides[:-1], strict=True))
    )
    if end > t.nbytes:
        reason = f"a view of shape {shape} would reach {end} bytes into {t.describe()}, which has {t.nbytes}"
        raise InvalidArgumentError(f"{op}: {reason}") from None
