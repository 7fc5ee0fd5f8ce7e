"""Normalization and softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ... import ops
from ...tensor import Tensor
from ..build import Build, NoRule, Val
from . import rule


def _affine(b: Build, y: Tensor, weight: Val | None, bias: Val | None, *shape: int) -> Tensor:
    """``y weight + bias``, with vectors in a shape that repeats over y."""
    if weight is not None:
        y = y * b.fold(weight, *shape)
    return y if bias is None else y + b.fold(bias, *shape)


@rule("native_layer_norm", "layer_norm")
def layer_norm(
    b: Build,
    input: Val,
    normalized_shape: Sequence[int],
    weight: Val | None = None,
    bias: Val | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> tuple[Tensor | None, ...]:
    n = math.prod(normalized_shape)
    y = ops.norm(b.fold(input, -1, n).contiguous(), eps)
    return (_affine(b, y, weight, bias, n), None, None)[: len(b.results)]


@rule("rms_norm", "_fused_rms_norm")
def rms_norm(
    b: Build, input: Val, normalized_shape: Sequence[int], weight: Val | None = None, eps: float | None = None
) -> tuple[Tensor | None, ...]:
    n = math.prod(normalized_shape)
    y = ops.rms_norm(b.fold(input, -1, n).contiguous(), float(np.finfo(np.float32).eps) if eps is None else eps)
    return (_affine(b, y, weight, None, n), None)[: len(b.results)]


@rule("native_group_norm", "group_norm")
def group_norm(
    b: Build,
    input: Val,
    num_groups: int = 1,
    weight: Val | None = None,
    bias: Val | None = None,
    eps: float = 1e-5,
    group: int = 0,
    N: int = 0,
    C: int = 0,
    HxW: int = 0,
    cudnn_enabled: bool = True,
) -> tuple[Tensor | None, ...]:
    n, c, groups = input.shape[0], input.shape[1], group or num_groups
    if c % groups:
        raise NoRule(f"{groups} groups of {c} channels")
    y = ops.group_norm(b.fold(input, n, c, 1, math.prod(input.shape[2:])).contiguous(), groups, eps)
    return (_affine(b, y, weight, bias, 1, c, 1, 1), None, None)[: len(b.results)]


@rule("_native_batch_norm_legit_no_training", "batch_norm")
def batch_norm(
    b: Build,
    input: Val,
    weight: Val | None = None,
    bias: Val | None = None,
    running_mean: Val | None = None,
    running_var: Val | None = None,
    momentum: float = 0.1,
    eps: float = 1e-5,
    training: bool = False,
    cudnn_enabled: bool = True,
) -> tuple[Tensor | None, ...]:
    if training or running_mean is None or running_var is None:
        raise NoRule("statistics of the batch")
    factor = 1 / np.sqrt(b.array(running_var, "running_var").astype(np.float64) + eps)
    if weight is not None:
        factor *= b.array(weight, "weight")
    shift = -b.array(running_mean, "running_mean") * factor
    if bias is not None:
        shift = shift + b.array(bias, "bias")
    n, c = input.shape[:2]
    x = b.fold(input, n, c, -1)
    y = x * b.constant(factor.reshape(1, c, 1)) + b.constant(shift.reshape(1, c, 1))
    return (y, None, None)[: len(b.results)]


def _along(b: Build, x: Val, dim: int) -> tuple[Tensor, list[int]]:
    """The value as rows along this axis, and its shape with this axis last."""
    return b.last(x, [dim]), [n for i, n in enumerate(x.shape) if i != x.axis(dim)] + [x.shape[x.axis(dim)]]


def _back(b: Build, y: Tensor, x: Val, dim: int, shape: list[int]) -> Tensor:
    """Moves the last axis of a value to the place of axis ``dim`` of x."""
    axis, n = x.axis(dim), x.ndim
    if axis == n - 1 or n == 0:
        return y
    order = [*range(axis), n - 1, *range(axis, n - 1)]
    moved = Val(tuple(shape), x.dtype, y.reshape(*shape) if n <= 4 else y)
    return b.permuted(moved, order)


@rule("_softmax", "softmax.int", "_safe_softmax")
def softmax(b: Build, self: Val, dim: int, half_to_float: bool = False, dtype: str | None = None) -> Tensor:
    if self.axis(dim) == self.ndim - 1:
        return ops.softmax(b.dense(self) if self.ndim <= 4 else b.fold(self, -1, self.shape[-1]).contiguous())
    rows, shape = _along(b, self, dim)
    return _back(b, ops.softmax(rows), self, dim, shape)


@rule("_log_softmax", "log_softmax.int")
def log_softmax(b: Build, self: Val, dim: int, half_to_float: bool = False, dtype: str | None = None) -> Tensor:
    rows, shape = _along(b, self, dim)
    rows = rows - ops.pool_1d(rows, "max", rows.shape[-1])
    return _back(b, rows - ops.log(ops.sum_rows(ops.exp(rows))), self, dim, shape)


@rule("cumsum", of="fib")
def cumsum(b: Build, self: Val, dim: int, dtype: str | None = None) -> Tensor:
    rows, shape = _along(b, self, dim)
    return _back(b, ops.cumsum(rows), self, dim, shape)
