"""Comparisons of two tensors, and selection by a mask."""

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

    All comparisons take tensors, numbers and arrays. At least one operand is a tensor. Operands
    broadcast as in NumPy. Dtypes are float32, float16 and bfloat16 in any combination, or int32 with
    int32. (``a == b`` is True if both are the same tensor.)
    """
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
    """``a`` where ``cond`` is not 0, else ``b``. A NaN in ``cond`` selects ``a``.

    Elements are copied unchanged. A NaN that is not selected has no effect.

    cond: a tensor of float32, float16, bfloat16 or int32, such as a comparison; or an array of numbers or booleans
    a, b: tensors of one dtype: float32, float16, bfloat16 or int32. Numbers and arrays take the dtype of the
        other operand.

    At least one of the three is a tensor. They broadcast as in NumPy.
    """
    return chosen(cond, a, b)
