"""Comparisons of two tensors, and what is chosen by one."""

from __future__ import annotations

from typing import Any

from ..tensor._operators import chosen, compared
from ..tensor.tensor import Tensor, TensorLike
from ._form import builds

__all__ = [
    "equal",
    "greater",
    "greater_equal",
    "less",
    "less_equal",
    "not_equal",
    "where",
]


@builds("ggml_compare")
def equal(a: TensorLike, b: TensorLike) -> Tensor:
    """1 where ``a`` equals ``b``, else 0, as float32. NaN equals nothing.

    As all comparisons it takes tensors, numbers and arrays, one of them a tensor, which broadcast as in NumPy: float32,
    float16 and bfloat16 in any combination, or int32 with int32. (``a == b`` asks whether both are
    the same tensor.)"""
    return compared("==", a, b, "equal")


@builds("ggml_compare")
def not_equal(a: TensorLike, b: TensorLike) -> Tensor:
    """1 where ``a`` differs from ``b``, else 0, as float32; 1 for NaN. Operands as for :func:`equal`."""
    return compared("!=", a, b, "not_equal")


@builds("ggml_compare")
def less(a: TensorLike, b: TensorLike) -> Tensor:
    """``a < b``: 1 where it holds, else 0, as float32; 0 for NaN. Operands as for :func:`equal`."""
    return compared("<", a, b, "less")


@builds("ggml_compare")
def less_equal(a: TensorLike, b: TensorLike) -> Tensor:
    """``a <= b``: 1 where it holds, else 0, as float32; 0 for NaN. Operands as for :func:`equal`."""
    return compared("<=", a, b, "less_equal")


@builds("ggml_compare")
def greater(a: TensorLike, b: TensorLike) -> Tensor:
    """``a > b``: 1 where it holds, else 0, as float32; 0 for NaN. Operands as for :func:`equal`."""
    return compared(">", a, b, "greater")


@builds("ggml_compare")
def greater_equal(a: TensorLike, b: TensorLike) -> Tensor:
    """``a >= b``: 1 where it holds, else 0, as float32; 0 for NaN. Operands as for :func:`equal`."""
    return compared(">=", a, b, "greater_equal")


@builds("ggml_where")
def where(cond: Any, a: TensorLike, b: TensorLike) -> Tensor:
    """``a`` where ``cond`` is not 0 (NaN is not), else ``b``: moved as they are, a NaN that is not chosen does not
    show.

    cond: a tensor of float32, float16, bfloat16 or int32 (of a comparison, say), or an array of numbers or booleans
    a, b: tensors of one dtype, float32, float16, bfloat16 or int32; numbers and arrays take the dtype of the other one

    One of the three is a tensor; they broadcast as in NumPy."""
    return chosen(cond, a, b)
