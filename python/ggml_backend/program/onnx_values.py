"""Values of an ONNX graph while it is read, and arithmetic on those that are known.

A value is a NumPy array that is known, or a :class:`Ref` to a value of the network. Arrays of integers may hold named
sizes: they have the dtype ``object``, and NumPy computes with them as with numbers. So a chain of ``Shape``,
``Gather``, ``Concat`` and ``Reshape`` becomes one shape with named sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .network import Ref
from .sizes import Formula, Size, largest, smallest

__all__ = [
    "FOLDED", "NUMBERED", "OTHER_FLOATS", "Known", "NeedsNumbers", "broadcast", "in_float32", "integers", "settled",
]  # fmt: skip

Known = np.ndarray[Any, Any]
Given = Known | Ref | None
Attributes = dict[str, Any]

NUMBERED = {1: "float32", 2: "uint8", 3: "int8", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "float16",
            11: "float64", 16: "bfloat16"}  # fmt: skip
"""Dtypes by their number in ONNX."""

OTHER_FLOATS = ("float16", "float64", "bfloat16")
"""Floats that programs compute in float32."""


class NeedsNumbers(Exception):
    """The graph depends on a named size in a way that needs its number."""


def settled(array: Any) -> Known:
    """An array of integers without named sizes as int64."""
    made = np.asarray(array)
    if made.dtype == object and not any(isinstance(n, Formula) for n in made.reshape(-1)):
        return made.astype(np.int64)
    return made


def in_float32(array: Known) -> Known:
    """The array, with floats as float32."""
    return array.astype(np.float32) if array.dtype.name in OTHER_FLOATS else array


def integers(given: Given) -> list[Size]:
    """The integers of a known value."""
    if not isinstance(given, np.ndarray):
        raise NeedsNumbers("a shape or an axis depends on the values of the inputs")
    return [n if isinstance(n, Formula) else int(n) for n in given.reshape(-1)]


def broadcast(shapes: Sequence[Sequence[Size]]) -> tuple[Size, ...]:
    """The common shape. ValueError: the shapes do not fit."""
    n = max((len(s) for s in shapes), default=0)
    found: list[Size] = []
    for axis in range(n):
        sizes = [s[axis - n + len(s)] for s in shapes if axis - n + len(s) >= 0]
        others = [m for i, m in enumerate(sizes) if m != 1 and m not in sizes[:i]]
        if len(others) > 1:
            if any(isinstance(m, Formula) for m in others):
                raise NeedsNumbers(f"sizes {' and '.join(map(str, others))} must be equal")
            raise ValueError(f"the shapes {[tuple(s) for s in shapes]} do not fit together")
        found.append(others[0] if others else 1)
    return tuple(found)


# -------------------------------------------------------------------------------------------- operators of known values


def _divided(p: Known, q: Known) -> Known:
    if p.dtype == object or q.dtype == object:
        whole: Known = p // q
        return whole
    if p.dtype.kind in "iu":
        whole = (np.sign(p) * np.sign(q) * (np.abs(p) // np.abs(q))).astype(p.dtype)
        return whole
    quotient: Known = p / q
    return quotient


def _compared(function: Callable[..., Any]) -> Callable[..., Known]:
    def compare(p: Known, q: Known) -> Known:
        if p.dtype == object or q.dtype == object:
            raise NeedsNumbers("the graph compares a size")
        found: Known = np.asarray(function(p, q))
        return found

    return compare


def _equal(p: Known, q: Known) -> Known:
    """Of sizes: a size with a name equals itself, and is not negative."""
    pairs = np.broadcast(p, q)
    for x, y in pairs if p.dtype == object or q.dtype == object else ():
        if x != y and not any(isinstance(n, (int, np.integer)) and n < 0 for n in (x, y)):
            raise NeedsNumbers("the graph compares a size")
    return np.asarray(p == q).astype(bool)


def _power(x: Known, exponent: Known) -> Known:
    return np.asarray(np.power(x, exponent)).astype(x.dtype)  # NumPy takes the wider dtype


def _extreme(of_sizes: Callable[[Size, Size], Size], function: Callable[..., Any]) -> Callable[..., Known]:
    def extreme(*arrays: Known) -> Known:
        total = arrays[0]
        for array in arrays[1:]:
            named = object in (total.dtype, array.dtype)
            total = np.asarray(np.frompyfunc(of_sizes, 2, 1)(total, array) if named else function(total, array))
        return total

    return extreme


FOLDED: dict[str, Callable[..., Any]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": _divided, "Mod": np.mod, "Equal": _equal,
    "Less": _compared(np.less), "LessOrEqual": _compared(np.less_equal), "Greater": _compared(np.greater),
    "GreaterOrEqual": _compared(np.greater_equal), "Not": np.logical_not, "And": np.logical_and, "Or": np.logical_or,
    "Where": np.where, "Min": _extreme(smallest, np.minimum), "Max": _extreme(largest, np.maximum), "Neg": np.negative,
    "Floor": np.floor, "Ceil": np.ceil, "Sqrt": np.sqrt, "Exp": np.exp, "Abs": np.abs, "Sin": np.sin, "Cos": np.cos,
    "Pow": _power, "Reciprocal": np.reciprocal, "Log": np.log,
}  # fmt: skip
"""Functions of known values, element by element."""


def product(sizes: Sequence[Size]) -> Size:
    total: Size = 1
    for n in sizes:
        total = total * n
    return total


def rounded_up(n: Size, m: Size) -> Size:
    return -(-n // m) if isinstance(n, int) else (n + m - 1) // m


def numbers(sizes: Sequence[Size], what: str) -> list[int]:
    """Sizes that must be numbers."""
    found = [n for n in sizes if isinstance(n, int)]
    if len(found) != len(sizes):
        raise NeedsNumbers(f"{what} has named sizes")
    return found
