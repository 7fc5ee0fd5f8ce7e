"""The operators of ONNX in those of ATen.

A function takes the reader, the inputs (a known array, a value, or None for one that is left out) and the attributes.
It returns one result or a list. Optional results that no model needs are left out. Each module has the operators of a
theme. Importing this package fills ``OPERATORS``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import UnsupportedError
from ..network import Ref
from ..onnx_values import FOLDED, Attributes, Given, Known, broadcast, integers, numbers, product
from ..sizes import Size

if TYPE_CHECKING:
    from ..onnx import Reader

__all__ = [
    "FOLDED_ELEMENTS", "OPERATORS", "Function", "Inputs", "at", "axes_of", "binary", "filled", "folded", "front",
    "is_small", "known", "operator", "padded", "picked", "reduced", "unary", "viewed",
]  # fmt: skip


Inputs = Sequence[Given]
Function = Callable[["Reader", Inputs, Attributes], Any]
OPERATORS: dict[str, Function] = {}
FOLDED_ELEMENTS = 2**16  # larger constants are computed as weights are


def operator(*names: str) -> Callable[[Function], Function]:
    def register(function: Function) -> Function:
        for name in names:
            OPERATORS[name] = function
        return function

    return register


def folded(name: str, inputs: Inputs, a: Attributes) -> Any:
    """The result if everything is known and small, or None."""
    known = [x for x in inputs if isinstance(x, np.ndarray)]
    if name not in FOLDED or len(known) != len(inputs) or any(x.size > FOLDED_ELEMENTS for x in known):
        return None
    function = np.fmod if name == "Mod" and a.get("fmod") else FOLDED[name]
    return np.asarray(function(*known))


def at(inputs: Inputs, i: int) -> Given:
    return inputs[i] if i < len(inputs) else None


def known(given: Given, what: str) -> Known:
    if isinstance(given, np.ndarray):
        return given
    raise UnsupportedError(f"{what} depends on the values of the inputs")


def axes_of(inputs: Inputs, a: Attributes, i: int = 1) -> list[int] | None:
    """The axes of an operator: an attribute until opset 12, then an input."""
    given = at(inputs, i)
    if given is None:
        return [int(n) for n in a["axes"]] if "axes" in a else None
    return numbers(integers(given), "axes")


def front(axis: int, n: int) -> int:
    if not -n <= axis < max(n, 1):
        raise ValueError(f"axis {axis} of a value with {n} axes")
    return axis % max(n, 1)


# ----------------------------------------------------------------------------------------- nodes


def unary(r: Reader, op: str, x: Given, to: str | None = None, **more: Any) -> Ref:
    return r.emit(op, {"self": x, **more}, r.shape(x), to or r.dtype(x))


def binary(r: Reader, op: str, x: Given, y: Given, to: str | None = None, **more: Any) -> Ref:
    shape = broadcast([r.shape(x), r.shape(y)])
    return r.emit(op, {"self": x, "other": y, **more}, shape, to or r.dtype(x))


def viewed(r: Reader, x: Given, shape: Sequence[Size]) -> Any:
    if isinstance(x, np.ndarray) and all(isinstance(n, int) for n in shape):
        return x.reshape([int(n) for n in shape if isinstance(n, int)])
    return r.emit("view", {"self": x, "size": list(shape)}, shape, r.dtype(x))


def is_small(shape: Sequence[Size]) -> bool:
    """True for a fixed shape of a constant that is worth to keep."""
    total = product(shape)
    return isinstance(total, int) and total <= FOLDED_ELEMENTS and all(isinstance(n, int) for n in shape)


def filled(r: Reader, shape: Sequence[Size], number: Any, dtype: str) -> Any:
    if is_small(shape):
        return np.full(numbers(shape, "a constant"), number, dtype)
    return r.emit("full", {"size": list(shape), "fill_value": number}, shape, dtype)


def picked(r: Reader, x: Given, axis: int, places: Known) -> Ref:
    own = list(r.shape(x))
    own[axis] = len(places)
    return r.emit("index_select", {"self": x, "dim": axis, "index": places.astype(np.int64)}, own, r.dtype(x))


def padded(r: Reader, x: Given, pairs: Sequence[tuple[int, int]], value: float = 0.0, mode: str = "constant") -> Any:
    own = list(r.shape(x))
    if mode == "constant":
        last = list(pairs[::-1])
        while last and last[-1] == (0, 0):
            last.pop()
        if not last:
            return x
        shape = [n + p + q for n, (p, q) in zip(own, pairs, strict=True)]
        amounts = [n for pair in last for n in pair]
        return r.emit("constant_pad_nd", {"self": x, "pad": amounts, "value": value}, shape, r.dtype(x))
    if mode not in ("reflect", "edge", "wrap"):
        raise UnsupportedError(f"Pad with the mode {mode}")
    for axis, pair in enumerate(pairs):
        if pair != (0, 0):
            n = numbers([own[axis]], "Pad")[0]
            x = picked(r, x, axis, np.pad(np.arange(n), pair, mode))  # type: ignore[call-overload]
    return x


def reduced(r: Reader, op: str, x: Given, axes: Sequence[int], keep: bool, **more: Any) -> Ref:
    own = r.shape(x)
    at = {front(axis, len(own)) for axis in axes}
    shape = [1 if axis in at else n for axis, n in enumerate(own) if keep or axis not in at]
    return r.emit(op, {"self": x, "dim": sorted(at), "keepdim": keep, **more}, shape, r.dtype(x))


from . import elementwise, makers, products, recurrent, selecting, shapes, sums, windows  # noqa: E402, F401
