"""Which functions of NumPy tensors take part in."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["numpy_function"]

_NUMPY_BINARY = {
    np.add: ("__add__", "__radd__"), np.subtract: ("__sub__", "__rsub__"), np.multiply: ("__mul__", "__rmul__"),
    np.true_divide: ("__truediv__", "__rtruediv__"), np.matmul: ("__matmul__", "__rmatmul__"),
}  # fmt: skip
_NUMPY_UNARY = {np.negative: "__neg__", np.positive: "__pos__", np.absolute: "__abs__"}


def numpy_function(kind: type, ufunc: Any, method: str, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """What NumPy's elementwise functions do with tensors, objects of ``kind``: the operators are the tensors', the rest
    is refused."""
    if method == "__call__" and not options:
        if ufunc in _NUMPY_BINARY:
            forward, reflected = _NUMPY_BINARY[ufunc]
            a, b = inputs
            return getattr(a, forward)(b) if isinstance(a, kind) else getattr(b, reflected)(a)
        if ufunc in _NUMPY_UNARY:
            return getattr(inputs[0], _NUMPY_UNARY[ufunc])()
        if ufunc in (np.equal, np.not_equal):  # as of tensors: is it the same one?
            same = isinstance(inputs[0], kind) and inputs[0] == inputs[1]
            return same if ufunc is np.equal else not same
    name = f"np.{ufunc.__name__}" + ("" if method == "__call__" else f".{method}")
    if "out" in options:
        raise TypeError(
            f"{name}: the result for a tensor is a node, which an array cannot take; write a = a + b, not a += b"
        )
    raise TypeError(
        f"{name}: NumPy computes at once, a tensor has data when its graph has run: use the functions of gb, or"
        " x.numpy()"
    )
