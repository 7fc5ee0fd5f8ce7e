"""Shared parts of operation builders.

Declarations of the C builders, the in-place and the copying form of a builder, and checks of arguments
that many operations take.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, Union

import numpy as np

from .._base.errors import InvalidArgumentError, expect_bool
from .._base.errors.messages import close_matches
from .._ffi import lib
from ..tensor._build import context_of, reported_as
from ..tensor.tensor import Tensor

__all__ = [
    "BUILDERS", "FORMS", "Axes", "IntPair", "along", "are", "builds",
    "choice", "dims", "each_row", "in_place", "pair", "pick", "reduced",
]  # fmt: skip

_F = TypeVar("_F", bound=Callable[..., Any])
IntPair = Union[int, "tuple[int, int]"]
BUILDERS: dict[str, Callable[..., Any]] = {}
"""The Python function that calls each C builder."""


def builds(*names: str) -> Callable[[_F], _F]:
    """Declares the C builders that a function calls."""

    def register(function: _F) -> _F:
        for name in names:
            if not hasattr(lib, name):
                raise AttributeError(name)
            BUILDERS[name] = function
        return function

    return register


#: C builders with two forms: name ``x`` maps to ``(ggml_x, ggml_x_inplace)``.
FORMS: dict[str, tuple[Any, Any]] = {
    name[5:-8]: (getattr(lib, name[:-8]), getattr(lib, name))
    for name in dir(lib)
    if name.startswith("ggml_") and name.endswith("_inplace") and hasattr(lib, name[:-8])
}


def pick(name: str, inplace: bool) -> Any:
    form = FORMS[name]
    if inplace is False:
        return form[0]
    return form[
        expect_bool(inplace, f"{name.removesuffix('_custom').removesuffix('_1d').removesuffix('_2d')}: inplace")
    ]


def pair(op: str, name: str, value: IntPair) -> tuple[int, int]:
    """An int or (height, width) as (height, width)."""
    if isinstance(value, int):
        return value, value
    pair: Any = value if isinstance(value, (tuple, list)) else (value, value)
    try:
        first, second = pair
        return operator.index(first), operator.index(second)
    except (TypeError, ValueError):
        raise InvalidArgumentError(f"{op}: {name} must be an int or a pair of ints, not {value!r:.60}") from None


def are(given: tuple[Any, ...], defaults: tuple[Any, ...]) -> bool:
    """True if the arguments equal the defaults. False for anything but numbers, which C then refuses."""
    for value in given:
        if type(value) is not float and not isinstance(value, (int, float, np.integer, np.floating)):
            return False  # may be of any class, so it is not compared
    return given == defaults


def dims(op: str, t: Any, label: str = "a") -> int:
    """``t.ndim``. Raises TypeError if ``t`` is not a tensor."""
    if not isinstance(t, Tensor):
        context_of(op, (t,), (label,))
    return int(t.ndim)


def choice(op: str, name: str, value: str, choices: dict[str, int]) -> int:
    try:
        return choices[value]
    except (KeyError, TypeError):
        guess = close_matches(value, choices) if isinstance(value, str) else ""
        raise InvalidArgumentError(
            f"{op}: {name} must be one of {', '.join(map(repr, choices))}, not {value!r}{guess}"
        ) from None


Axes = Union[int, "Sequence[int]", None]


def _axes(op: str, a: Tensor, axis: Axes, several: bool = True) -> list[int]:
    """The axes as sorted non-negative ints. None stands for all axes."""
    context_of(op, (a,))  # raises TypeError if a is not a tensor
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
    """A view with these axes at the end, and the permutation that gives it."""
    order = [i for i in range(a.ndim) if i not in axes] + axes
    return (a if order == list(range(a.ndim)) else a.transpose(order).contiguous()), order


def along(op: str, a: Tensor, axis: int, row_by_row: Callable[[Tensor], Tensor], only_last: str = "") -> Tensor:
    """Applies ``row_by_row`` along an axis. The result is a view if it is not the last axis.

    only_last: why only the last axis is supported; "" if every axis is
    """
    given: object = axis
    if isinstance(given, (tuple, list)) or given is None:
        raise TypeError(f"{op}: axis must be an int, not {axis!r:.60}")
    rows, order = _last(a, _axes(op, a, axis, several=False))
    if rows is a:
        return row_by_row(a)
    if only_last:
        raise InvalidArgumentError(f"{op}: axis {axis} is not the last one, and {only_last}")
    with reported_as(op, a):
        result = row_by_row(rows)
    return result.transpose([order.index(i) for i in range(len(order))])


def reduced(op: str, a: Tensor, axis: Axes, keepdims: bool, row_by_row: Callable[[Tensor], Tensor]) -> Tensor:
    """Reduces ``a`` over these axes with ``row_by_row``, which maps ``(..., n)`` to one element a row."""
    axes = _axes(op, a, axis)
    rows, _ = _last(a, axes)
    kept = [1 if i in axes else n for i, n in enumerate(a.shape)]
    left = [s for i, s in enumerate(a.shape) if i not in axes]
    if len(axes) != 1:
        rows = rows.reshape(*left, math.prod(a.shape[i] for i in axes))
    with reported_as(op, a):
        result = row_by_row(rows)
    return result.reshape(*(kept if keepdims else left))


def in_place(inplace: bool) -> str:
    """The reason for ``only_last`` of an in-place operation: along other axes rows are copied."""
    return "inplace=True works along the last axis only" if inplace else ""


def each_row(a: Tensor) -> Tensor:
    """A view of ``a`` as one matrix that has all its rows."""
    return a if a.ndim == 2 else a.reshape(math.prod(a.shape[:-1]), a.shape[-1])
