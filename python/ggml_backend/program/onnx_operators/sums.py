"""Sums, extremes and softmax along axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import UnsupportedError
from ..onnx_values import (
    Attributes,
    product,
)
from . import (
    OPERATORS,
    Function,
    Inputs,
    axes_of,
    front,
    known,
    operator,
    reduced,
    unary,
    viewed,
)

if TYPE_CHECKING:
    from ..onnx import Reader

_REDUCED = {
    "ReduceMean": "mean.dim", "ReduceSum": "sum.dim_IntList", "ReduceMax": "amax", "ReduceMin": "amin",
    "ReduceL2": "linalg_vector_norm",
}  # fmt: skip


def _reduced(op: str) -> Function:
    def function(r: Reader, i: Inputs, a: Attributes) -> Any:
        axes = axes_of(i, a)
        if not axes:
            if a.get("noop_with_empty_axes"):
                return i[0]
            axes = [*range(len(r.shape(i[0])))]
        return reduced(r, op, i[0], axes, bool(a.get("keepdims", 1)))

    return function


OPERATORS |= {name: _reduced(op) for name, op in _REDUCED.items()}


@operator("ReduceProd")
def reduce_prod(r: Reader, i: Inputs, a: Attributes) -> Any:
    x, axes = known(i[0], "ReduceProd"), axes_of(i, a)
    return np.prod(x, None if not axes else tuple(axes), keepdims=bool(a.get("keepdims", 1)))


def _place(op: str) -> Function:
    def function(r: Reader, i: Inputs, a: Attributes) -> Any:
        if a.get("select_last_index"):
            raise UnsupportedError(f"{op} of the last of equal elements")
        own, keep = r.shape(i[0]), bool(a.get("keepdims", 1))
        axis = front(int(a.get("axis", 0)), len(own))
        shape = [1 if j == axis else n for j, n in enumerate(own) if keep or j != axis]
        return r.emit(op, {"self": i[0], "dim": axis, "keepdim": keep}, shape, "int64")

    return function


OPERATORS |= {"ArgMax": _place("argmax"), "ArgMin": _place("argmin")}


@operator("CumSum")
def cumsum(r: Reader, i: Inputs, a: Attributes) -> Any:
    if a.get("exclusive") or a.get("reverse"):
        raise UnsupportedError("CumSum with exclusive or reverse")
    return unary(r, "cumsum", i[0], dim=int(known(i[1], "the axis of CumSum").reshape(-1)[0]))


def _softmax(op: str) -> Function:
    def function(r: Reader, i: Inputs, a: Attributes) -> Any:
        own = r.shape(i[0])
        axis = front(int(a.get("axis", -1 if r.opset >= 13 else 1)), len(own))
        if r.opset >= 13 or axis == len(own) - 1:
            return unary(r, op, i[0], dim=axis)
        flat = viewed(r, i[0], [product(own[:axis]), product(own[axis:])])  # one softmax over all axes behind
        return viewed(r, unary(r, op, flat, dim=1), own)

    return function


OPERATORS |= {"Softmax": _softmax("_softmax"), "LogSoftmax": _softmax("_log_softmax")}
