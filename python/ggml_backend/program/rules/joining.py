"""Several values as one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ... import ops
from ...tensor import Tensor
from ..build import Build, NoRule, Val
from ..folding import around
from . import rule

_WIDE = 16  # elements; shorter runs are copied faster as parts of rows


def _joined(b: Build, parts: Sequence[Val], axis: int) -> Tensor:
    before, _, behind = around(b.result.shape, axis)
    sizes = [x.shape[axis] for x in parts]
    if before == 1 or behind >= _WIDE:  # ggml joins along the last axis but two
        folded = [b.fold(x, before, n, 1, behind).contiguous() for x, n in zip(parts, sizes, strict=True)]
        return ops.concat(folded, axis=-3)
    total, at = sum(sizes) * behind, sizes[0] * behind
    y = ops.pad(b.fold(parts[0], before, at).contiguous(), ((0, 0), (0, total - at)))
    for x, n in zip(parts[1:], sizes[1:], strict=True):
        y = ops.set(y, b.fold(x, before, n * behind), 4 * at, nb1=4 * total, inplace=True)
        at += n * behind
    return y


@rule("cat", of="fib")
def cat(b: Build, tensors: Sequence[Val], dim: int = 0) -> Tensor:
    parts = [x for x in tensors if 0 not in x.shape]
    axis = parts[0].axis(dim)
    return b.tensor(parts[0]) if len(parts) == 1 else _joined(b, parts, axis)


@rule("stack", of="fib")
def stack(b: Build, tensors: Sequence[Val], dim: int = 0) -> Tensor:
    axis = dim % len(b.result.shape)
    parts = [Val((*x.shape[:axis], 1, *x.shape[axis:]), x.dtype, _flat(b, x)) for x in tensors]
    return _joined(b, parts, axis)


@rule("slice_scatter", of="fib")
def slice_scatter(
    b: Build, self: Val, src: Val, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    if step != 1:
        raise NoRule(f"the step {step}")
    axis = self.axis(dim)
    first, stop, _ = slice(start, end).indices(self.shape[axis])
    return _replaced(b, self, src, axis, first, max(first, stop))


@rule("select_scatter", of="fib")
def select_scatter(b: Build, self: Val, src: Val, dim: int, index: int) -> Tensor:
    axis = self.axis(dim)
    at = index % self.shape[axis]
    return _replaced(b, self, src, axis, at, at + 1)


def _replaced(b: Build, x: Val, new: Val, axis: int, first: int, stop: int) -> Tensor:
    """The value with new elements in a part of an axis."""
    if new.dtype != x.dtype:
        raise NoRule(f"{new.dtype} into {x.dtype}")
    before, n, behind = around(x.shape, axis)
    whole = b.fold(x, before, n, behind)
    parts = [(0, first, None), (first, stop, new), (stop, n, None)]
    vals = [
        Val((*x.shape[:axis], q - p, *x.shape[axis + 1 :]), x.dtype, whole[:, p:q] if part is None else b.dense(part))
        for p, q, part in parts
        if q > p
    ]
    return _joined(b, vals, axis)


def _flat(b: Build, x: Val) -> Tensor:
    return b.dense(x).reshape(math.prod(x.shape))
