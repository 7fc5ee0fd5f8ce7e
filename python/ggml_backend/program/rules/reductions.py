"""Sums, means, extremes along axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union

from ... import ops
from ...tensor import Tensor
from ..build import Build, NoRule, Val
from . import rule

Axes = Union[int, "Sequence[int]", None]


def _rows(b: Build, x: Val, axes: Axes) -> Tensor:
    """The value as rows along these axes; without axes along all."""
    if isinstance(axes, int):
        return b.last(x, [axes])
    return b.last(x, axes or [*range(x.ndim)])


def _largest(rows: Tensor) -> Tensor:
    return ops.pool_1d(rows, "max", rows.shape[-1])


@rule("sum.dim_IntList", "sum", of="fib")
def total(b: Build, self: Val, dim: Axes = None, keepdim: bool = False, dtype: str | None = None) -> Tensor:
    return ops.sum_rows(_rows(b, self, dim))


@rule("mean.dim", "mean")
def mean(b: Build, self: Val, dim: Axes = None, keepdim: bool = False, dtype: str | None = None) -> Tensor:
    return ops.mean(_rows(b, self, dim))


@rule("var.correction", "var.dim", "std.correction")
def variance(
    b: Build, self: Val, dim: Axes = None, correction: float = 1, keepdim: bool = False, unbiased: bool = True
) -> Tensor:
    rows = _rows(b, self, dim)
    n, less = rows.shape[-1], correction if unbiased else 0
    if n <= less:
        raise NoRule(f"{n} elements with the correction {less}")
    y = ops.scale(ops.mean(ops.sqr(rows - ops.mean(rows))), n / (n - less))
    return ops.sqrt(y) if b.node.op.startswith("std") else y


@rule("linalg_vector_norm", "norm.ScalarOpt_dim")
def vector_norm(
    b: Build, self: Val, ord: float = 2, dim: Axes = None, keepdim: bool = False, dtype: str | None = None, p: float = 2
) -> Tensor:
    rows, order = _rows(b, self, dim), ord if ord != 2 else p
    if order == 2:
        return ops.sqrt(ops.sum_rows(ops.sqr(rows)))
    if order == 1:
        return ops.sum_rows(ops.abs(rows))
    if order == float("inf"):
        return _largest(ops.abs(rows))
    raise NoRule(f"the order {order}")


@rule("amax", of="fib")
def amax(b: Build, self: Val, dim: Axes = None, keepdim: bool = False) -> Tensor:
    return _largest(_rows(b, self, dim))


@rule("amin", of="fib")
def amin(b: Build, self: Val, dim: Axes = None, keepdim: bool = False) -> Tensor:
    return ops.neg(_largest(ops.neg(_rows(b, self, dim))))


@rule("max", of="fib")
def largest(b: Build, self: Val) -> Tensor:
    return _largest(_rows(b, self, None))


@rule("min", of="fib")
def smallest(b: Build, self: Val) -> Tensor:
    return amin(b, self)


@rule("any.dim", "any", "any.dims", of="fib")
def any_of(b: Build, self: Val, dim: Axes = None, keepdim: bool = False) -> Tensor:
    return _largest(ops.not_equal(_rows(b, self, dim), 0.0))


@rule("all.dim", "all", "all.dims", of="fib")
def all_of(b: Build, self: Val, dim: Axes = None, keepdim: bool = False) -> Tensor:
    return ops.equal(_largest(ops.equal(_rows(b, self, dim), 0.0)), 0.0)


@rule("argmax", of="fib")
def argmax(b: Build, self: Val, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The first of equal elements."""
    order = ops.argsort(_rows(b, self, dim), descending=True)
    return ops.cast(order[:, :1], "float32")


@rule("argmin", of="fib")
def argmin(b: Build, self: Val, dim: int | None = None, keepdim: bool = False) -> Tensor:
    order = ops.argsort(_rows(b, self, dim))
    return ops.cast(order[:, :1], "float32")


@rule("topk", of="fi")
def topk(
    b: Build, self: Val, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    """The first of equal elements come first."""
    return _sorted(b, self, dim, largest, k)


@rule("sort", "sort.stable", of="fi")
def sort(
    b: Build, self: Val, dim: int = -1, descending: bool = False, stable: bool | None = None
) -> tuple[Tensor, Tensor]:
    return _sorted(b, self, dim, descending, None)


def _sorted(b: Build, x: Val, dim: int, descending: bool, k: int | None) -> tuple[Tensor, Tensor]:
    """The first k elements of an axis in order, and their places."""
    axis = x.axis(dim)
    rows = b.last(x, [axis])
    order = ops.argsort(rows, descending)[:, :k].contiguous()
    values = ops.get_rows(rows.reshape(*rows.shape, 1), order)
    shape = (*(n for i, n in enumerate(x.shape) if i != axis), order.shape[1])
    back = [*range(axis), x.ndim - 1, *range(axis, x.ndim - 1)]

    def placed(t: Tensor) -> Tensor:
        flat = t.reshape(shape if len(shape) <= 4 else (-1, *shape[-3:]))
        return b.permuted(Val(shape, x.dtype, flat), back)

    return placed(values), placed(ops.cast(order, "float32"))
