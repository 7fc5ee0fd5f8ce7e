"""Views and copies with another shape or order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ... import ops
from ...tensor import Tensor
from ..build import Build, NoRule, Val
from ..folding import around
from . import rule

ALL = "fib"


@rule(
    "view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "squeeze.dim", "squeeze.dims", "flatten.using_ints",
    "unflatten.int", "view_as", of=ALL,
)  # fmt: skip
def reshaped(b: Build, self: Val, **_: Any) -> Tensor:
    shape = b.result.shape
    if len(shape) > 4:
        return b.dense(self)
    return b.fold(self, *shape) if shape else b.fold(self, 1)


@rule("permute", of=ALL)
def permute(b: Build, self: Val, dims: Sequence[int]) -> Tensor:
    return b.permuted(self, [self.axis(axis) for axis in dims])


@rule("transpose.int", of=ALL)
def transpose(b: Build, self: Val, dim0: int, dim1: int) -> Tensor:
    order = [*range(self.ndim)]
    p, q = self.axis(dim0), self.axis(dim1)
    if order:
        order[p], order[q] = q, p
    return b.permuted(self, order)


@rule("t", "numpy_T", of=ALL)
def reversed_axes(b: Build, self: Val) -> Tensor:
    return b.permuted(self, [*range(self.ndim)][::-1])


@rule("movedim.intlist", of=ALL)
def movedim(b: Build, self: Val, source: Sequence[int], destination: Sequence[int]) -> Tensor:
    to = {self.axis(d): self.axis(s) for s, d in zip(source, destination, strict=True)}
    rest = iter([i for i in range(self.ndim) if i not in to.values()])
    return b.permuted(self, [to[i] if i in to else next(rest) for i in range(self.ndim)])


@rule("expand", "broadcast_to", "expand_as", of=ALL)
def expand(b: Build, self: Val, **_: Any) -> Tensor:
    return b.repeated(self, b.result.shape)


@rule("copy", of=ALL)
def copy(b: Build, self: Val, src: Val, non_blocking: bool = False) -> Tensor:
    if src.dtype != self.dtype:
        raise NoRule(f"{src.dtype} into {self.dtype}")
    return b.repeated(src, b.result.shape)


@rule("repeat", of=ALL)
def repeat(b: Build, self: Val, repeats: Sequence[int]) -> Tensor:
    own = (1,) * (len(repeats) - self.ndim) + self.shape
    t = b.tensor(self)
    for axis, n in enumerate(repeats):
        if n != 1:
            before, behind = math.prod(b.result.shape[:axis]), math.prod(own[axis:])
            t = ops.repeat(t.reshape(before, behind), (before, n * behind))
    return t


@rule("repeat_interleave.self_int", of=ALL)
def repeat_interleave(b: Build, self: Val, repeats: int, dim: int | None = None) -> Tensor:
    before, n, behind = around(self.shape, self.axis(dim)) if dim is not None else (1, math.prod(self.shape), 1)
    return ops.repeat(b.fold(self, before * n, 1, behind), (before * n, repeats, behind))


def _cut(b: Build, x: Val, axis: int, start: int, stop: int, step: int = 1) -> Tensor:
    """Part of an axis."""
    t = b.tensor(x)
    if (start, stop, step) == (0, x.shape[axis], 1):
        return t
    if x.ndim <= 4 and step == 1:
        if t.strides[-1] != t.dtype.itemsize:  # ggml has no view of such rows
            t = t.contiguous()
        return t[(slice(None),) * axis + (slice(start, stop),)]
    return b.fold(x, *around(x.shape, axis))[:, start:stop:step]


@rule("slice.Tensor", of=ALL)
def cut(b: Build, self: Val, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Tensor:
    axis = self.axis(dim)
    return _cut(b, self, axis, *slice(start, end, step).indices(self.shape[axis]))


@rule("select.int", of=ALL)
def select(b: Build, self: Val, dim: int, index: int) -> Tensor:
    axis = self.axis(dim)
    at = index % self.shape[axis]
    return _cut(b, self, axis, at, at + 1)


@rule("unbind.int", of=ALL)
def unbind(b: Build, self: Val, dim: int = 0) -> tuple[Tensor, ...]:
    axis = self.axis(dim)
    return tuple(_cut(b, self, axis, i, i + 1) for i in range(len(b.results)))


@rule("split_with_sizes", "split.Tensor", "chunk", "split.sizes", of=ALL)
def split(b: Build, self: Val, dim: int = 0, **_: Any) -> tuple[Tensor, ...]:
    axis, at, parts = self.axis(dim), 0, []
    for part in b.results:
        n = part.shape[axis]
        parts.append(_cut(b, self, axis, at, at + n))
        at += n
    return tuple(parts)


@rule("flip", of=ALL)
def flip(b: Build, self: Val, dims: Sequence[int]) -> Tensor:
    t = b.tensor(self)
    for dim in dims:
        before, n, behind = around(self.shape, self.axis(dim))
        t = _picked(b, t.reshape(before, n, behind), np.arange(n)[::-1])
    return t


def _picked(b: Build, t: Tensor, places: np.ndarray[Any, Any]) -> Tensor:
    """``(before, n, behind)``: these places of the middle axis."""
    before = t.shape[0]
    rows = b.context.constant(np.ascontiguousarray(np.broadcast_to(places, (before, len(places))), np.int32))
    return ops.get_rows(t, rows)


@rule("roll", of=ALL)
def roll(b: Build, self: Val, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    if not dims:
        return ops.roll(b.dense(self).reshape(-1), shifts[0], 0)
    t = b.tensor(self)
    for shift, dim in zip(shifts, dims, strict=True):
        axis = self.axis(dim)
        t = ops.roll(t, shift, axis) if self.ndim <= 4 else ops.roll(t.reshape(*around(self.shape, axis)), shift, 1)
    return t


@rule("constant_pad_nd", of=ALL)
def constant_pad(b: Build, self: Val, pad: Sequence[int], value: float = 0) -> Tensor:
    """The pairs of ``pad`` begin with the last axis. Negative amounts cut."""
    pairs = [(0, 0)] * (self.ndim - len(pad) // 2) + list(zip(pad[-2::-2], pad[-1::-2], strict=True))
    t, shape = b.tensor(self), list(self.shape)
    for axis, (before, behind) in enumerate(pairs):
        if before < 0 or behind < 0:
            n = shape[axis] - max(-behind, 0)
            t = t.reshape(*around(shape, axis))[:, max(-before, 0) : n].contiguous()
            shape[axis] = t.shape[1]
    added = [(max(before, 0), max(behind, 0)) for before, behind in pairs]
    if len(shape) <= 4:
        t = ops.pad(t.reshape(*shape).contiguous(), added)
    else:
        for axis, pair in enumerate(added):
            if pair != (0, 0):
                t = ops.pad(t.reshape(*around(shape, axis)).contiguous(), (pair, (0, 0)))
                shape[axis] = t.shape[1]
    if value == 0:
        return t
    if t.size != math.prod(b.result.shape):
        raise NoRule(f"{t.describe()} has not the shape {b.result.shape}")
    inside = np.zeros(b.result.shape, np.float32)
    inside[tuple(slice(p, n - q) for n, (p, q) in zip(inside.shape, added, strict=True))] = 1
    return ops.where(b.constant(inside.reshape(t.shape)), t.contiguous(), float(value))


@rule("pixel_shuffle")
def pixel_shuffle(b: Build, self: Val, upscale_factor: int) -> Tensor:
    *batch, c, h, w = self.shape
    r = upscale_factor
    split_up = Val((math.prod(batch), c // (r * r), r, r, h, w), self.dtype, b.dense(self))
    return b.permuted(split_up, (0, 1, 4, 2, 5, 3))


@rule("unfold", of=ALL)
def unfold(b: Build, self: Val, dimension: int, size: int, step: int) -> Tensor:
    """Windows of an axis, as a new last axis. Only windows side by side."""
    if size != step or self.shape[self.axis(dimension)] % size:
        raise NoRule("windows that overlap or leave a rest")
    axis = self.axis(dimension)
    shape = (*self.shape[:axis], self.shape[axis] // size, size, *self.shape[axis + 1 :])
    order = [i for i in range(len(shape)) if i != axis + 1] + [axis + 1]
    t = b.dense(self)
    return b.permuted(Val(shape, self.dtype, t.reshape(*shape) if len(shape) <= 4 else t), order)
