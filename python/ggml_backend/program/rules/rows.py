"""Elements picked by index."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ... import ops
from ...tensor import Tensor
from ..build import EXACT, Build, NoRule, Val
from ..folding import around
from . import rule


@rule("embedding", of="fi", matrix="weight")
def embedding(
    b: Build, weight: Val, indices: Val, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Tensor:
    return ops.get_rows(b.matrix(weight), b.indices(indices))


@rule("index_select", of="fib")
def index_select(b: Build, self: Val, dim: int, index: Val) -> Tensor:
    before, n, behind = around(self.shape, self.axis(dim))
    if before == 1:
        return ops.get_rows(b.fold(self, n, behind).contiguous(), b.indices(index))
    rows = b.indices(index).reshape(1, -1)
    return ops.get_rows(b.fold(self, before, n, behind).contiguous(), ops.repeat(rows, (before, rows.shape[1])))


@rule("gather", of="fib")
def gather(b: Build, self: Val, dim: int, index: Val, sparse_grad: bool = False) -> Tensor:
    axis = self.axis(dim)
    others = [i for i in range(self.ndim) if i != axis]
    if axis != self.ndim - 1 or any(self.shape[i] != index.shape[i] for i in others):
        raise NoRule("an axis that is not the last, or an index of another size")
    n, k = self.shape[axis], index.shape[axis]
    return ops.get_rows(b.fold(self, -1, n, 1).contiguous(), b.indices(index).reshape(-1, k))


@rule("index.Tensor", of="fib")
def index(b: Build, self: Val, indices: Sequence[Val | None]) -> Tensor:
    """Neighbouring axes picked by integers. The other axes stay."""
    at = [i for i, x in enumerate(indices) if x is not None]
    picked = [x for x in indices if x is not None]
    if at != [*range(at[0], at[0] + len(at))]:
        raise NoRule("indices of axes that are no neighbours")
    if any(x.dtype == "bool" for x in picked):
        raise NoRule("a mask as an index")
    first, last = at[0], at[-1] + 1
    sizes = self.shape[first:last]
    before, n, behind = math.prod(self.shape[:first]), math.prod(sizes), math.prod(self.shape[last:])
    ndim = len(b.result.shape) - (self.ndim - len(at))
    places = _places(b, picked, sizes, b.result.shape[first : first + ndim])
    if before == 1:
        return ops.get_rows(b.fold(self, n, behind).contiguous(), places)
    rows = ops.repeat(places.reshape(1, -1), (before, places.size))
    return ops.get_rows(b.fold(self, before, n, behind).contiguous(), rows)


def _places(b: Build, picked: list[Val], sizes: Sequence[int], shape: tuple[int, ...]) -> Tensor:
    """The flat index within the picked axes, as int32 in one axis.

    shape: to which the indices broadcast
    """
    if len(picked) == 1:
        return b.indices(picked[0], sizes[0])
    if math.prod(sizes) > EXACT:
        raise NoRule(f"{math.prod(sizes)} places, above {EXACT}")
    total: Tensor | None = None
    outside: Tensor | None = None
    for i, (x, n) in enumerate(zip(picked, sizes, strict=True)):
        if x.array is not None and ((x.array < -n) | (x.array >= n)).any():
            raise NoRule(f"an index that is not within {n} elements")
        t = ops.cast(b.indices(x, n), "float32")
        flat = b.repeated(Val(x.shape, x.dtype, t), shape).reshape(-1)
        step = ops.scale(flat, float(math.prod(sizes[i + 1 :])))
        total = step if total is None else total + step
        if x.array is None:
            wrong = ops.less(flat, 0.0) + ops.greater(flat, n - 1.0)
            outside = wrong if outside is None else outside + wrong
    assert total is not None
    if outside is not None:  # a flat index that is outside, too, so that it is an error
        total = ops.where(outside, float(math.prod(sizes)), total)
    return ops.cast(total, "int32")


@rule("index_put", of="fib")
def index_put(b: Build, self: Val, indices: Sequence[Val | None], values: Val, accumulate: bool = False) -> Tensor:
    """New elements in rows that are picked by integers, or one number where a mask is true.

    accumulate: add the elements. An index that is there several times adds several rows.
    """
    picked = [x for x in indices if x is not None]
    if accumulate and self.dtype not in ("float32", "int64", "int32"):
        raise NoRule(f"values that are added to {self.dtype}")
    if len(picked) < len(indices) or values.dtype != self.dtype:
        raise NoRule(f"indices of axes that are not the first, or {values.dtype} into {self.dtype}")
    if any(x.dtype == "bool" for x in picked):
        return _put_where(b, self, picked, values, accumulate)
    n, k = math.prod(self.shape[: len(picked)]), len(picked)
    shape = np.broadcast_shapes(*(x.shape for x in picked))
    places = _places(b, picked, self.shape[:k], shape)
    rows = b.repeated(values, (*shape, *self.shape[k:])).contiguous()
    flat = rows.reshape(places.size, -1)
    if accumulate:
        whole = b.fold(self, n, -1)
        return whole + ops.get_rows_back(flat, places, whole)
    return ops.set_rows(b.fold_to_write(self, n, flat.shape[1]), flat, places)


@rule("index_copy", of="fib")
def index_copy(b: Build, self: Val, dim: int, index: Val, source: Val) -> Tensor:
    before, n, behind = around(self.shape, self.axis(dim))
    places = b.indices(index)
    rows = b.fold(source, before, places.size, behind).contiguous()
    return ops.set_rows(b.fold_to_write(self, before, n, behind), rows, places.reshape(1, -1))


def _put_where(b: Build, x: Val, picked: list[Val], values: Val, accumulate: bool) -> Tensor:
    (mask, *others) = picked
    if others or math.prod(values.shape) != 1:
        raise NoRule("a mask beside other indices, or with several values")
    n = math.prod(mask.shape)
    whole, number = b.fold(x, n, -1), b.dense(values).reshape(1, 1)
    new = whole + number if accumulate else ops.repeat(number, whole.shape)
    return ops.where(ops.repeat(b.dense(mask).reshape(n, 1), whole.shape), new, whole)
