"""Which functions of NumPy tensors take part in."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._ffi import lib
from ._build import build_1

__all__ = ["numpy_function"]

_NUMPY_BINARY = {
    np.add: ("__add__", "__radd__"), np.subtract: ("__sub__", "__rsub__"), np.multiply: ("__mul__", "__rmul__"),
    np.true_divide: ("__truediv__", "__rtruediv__"), np.matmul: ("__matmul__", "__rmatmul__"),
}  # fmt: skip
_NUMPY_COMPARE = {
    np.less: ("__lt__", "__gt__"), np.less_equal: ("__le__", "__ge__"), np.greater: ("__gt__", "__lt__"),
    np.greater_equal: ("__ge__", "__le__"),
}  # fmt: skip
_NUMPY_UNARY = {np.negative: "__neg__", np.positive: "__pos__", np.absolute: "__abs__"}
_NUMPY_FUNCTIONS = {
    np.exp: lib.ggml_exp, np.log: lib.ggml_log, np.sin: lib.ggml_sin, np.cos: lib.ggml_cos, np.tanh: lib.ggml_tanh,
    np.sqrt: lib.ggml_sqrt, np.square: lib.ggml_sqr,
}  # fmt: skip


def numpy_function(kind: type, ufunc: Any, method: str, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """What NumPy's elementwise functions do with tensors, objects of ``kind``: those that operators compute make nodes,
    the rest is refused."""
    if method == "__call__" and not options:
        operators = _NUMPY_BINARY.get(ufunc) or _NUMPY_COMPARE.get(ufunc)
        if operators is not None:
            forward, reflected = operators
            a, b = inputs
            return getattr(a, forward)(b) if isinstance(a, kind) else getattr(b, reflected)(a)
        if ufunc in _NUMPY_UNARY:
            return getattr(inputs[0], _NUMPY_UNARY[ufunc])()
        if ufunc in _NUMPY_FUNCTIONS:
            return build_1(ufunc.__name__, _NUMPY_FUNCTIONS[ufunc], inputs[0])
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
