"""Rows along other axes than the last: operations work along rows, so an axis is made the last one, with a copy, and
what is computed goes back.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Union

from .._base.errors import InvalidArgumentError
from ..tensor._build import context_of, told_as
from ..tensor.tensor import Tensor

__all__ = ["NAMES", "Axes", "along", "each_row", "in_place", "reduced"]

NAMES = ("dim", "keepdim"), "axis and keepdims are the names here"
"""For :func:`~ggml_backend.ops._form.without`."""

Axes = Union[int, "Sequence[int]", None]


def _axes(op: str, a: Tensor, axis: Axes, several: bool = True) -> list[int]:
    """Counted from the front, in order; None: all."""
    context_of(op, (a,))  # is it a tensor?
    if axis is None:
        return list(range(a.ndim))
    if isinstance(axis, bool):
        raise TypeError(f"{op}: axis must be an int, not bool")
    if isinstance(axis, (tuple, list)) and not axis:
        raise InvalidArgumentError(f"{op}: axis=() names no axis; axis=None is all of them")
    try:
        given = [operator.index(i) for i in (axis if isinstance(axis, (tuple, list)) else (axis,))]
    except TypeError:
        what = "an int, a tuple of ints or None" if several else "an int"
        raise TypeError(f"{op}: axis must be {what}, not {axis!r:.60}") from None
    for i in given:
        if not -a.ndim <= i < a.ndim:
            raise InvalidArgumentError(f"{op}: a {a.describe()}: there is no axis {i}")
    axes = sorted(i % a.ndim for i in given)
    if len(set(axes)) < len(axes):
        raise InvalidArgumentError(f"{op}: axis={axis} names an axis twice")
    return axes


def _last(a: Tensor, axes: list[int]) -> tuple[Tensor, list[int]]:
    """The tensor with these axes at the end, and the order in which its axes stand there."""
    order = [i for i in range(a.ndim) if i not in axes] + axes
    return (a if order == list(range(a.ndim)) else a.transpose(order).contiguous()), order


def along(op: str, a: Tensor, axis: int, row_by_row: Callable[[Tensor], Tensor], only_last: str = "") -> Tensor:
    """What ``row_by_row`` makes of the rows along that axis, in its place: a view where that is not the last one.
    ``only_last``: why it must be the last one, if it must."""
    given: object = axis
    if isinstance(given, (tuple, list)) or given is None:
        raise TypeError(f"{op}: axis must be an int, not {axis!r:.60}")
    rows, order = _last(a, _axes(op, a, axis, several=False))
    if rows is a:
        return row_by_row(a)
    if only_last:
        raise InvalidArgumentError(f"{op}: axis {axis} is not the last one, and {only_last}")
    with told_as(op, a):
        result = row_by_row(rows)
    return result.transpose([order.index(i) for i in range(len(order))])


def reduced(op: str, a: Tensor, axis: Axes, keepdims: bool, row_by_row: Callable[[Tensor], Tensor]) -> Tensor:
    """The reduction over these axes of ``row_by_row``, which makes of ``(..., n)`` as many elements as there are
    rows."""
    axes = _axes(op, a, axis)
    rows, _ = _last(a, axes)
    kept = [1 if i in axes else n for i, n in enumerate(a.shape)]
    left = [s for i, s in enumerate(a.shape) if i not in axes]
    if len(axes) != 1:
        rows = rows.reshape(*left, math.prod(a.shape[i] for i in axes))
    with told_as(op, a):
        result = row_by_row(rows)
    return result.reshape(*(kept if keepdims else left))


def in_place(inplace: bool) -> str:
    """For ``only_last``: along other axes rows are copied."""
    return "in place it works along that alone" if inplace else ""


def each_row(a: Tensor) -> Tensor:
    """All rows as those of one matrix."""
    return a if a.ndim == 2 else a.reshape(math.prod(a.shape[:-1]), a.shape[-1])
