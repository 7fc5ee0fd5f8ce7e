"""Several values as one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ... import ops
from ...tensor import Tensor
from ..build import Build, Val
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


def _flat(b: Build, x: Val) -> Tensor:
    return b.dense(x).reshape(math.prod(x.shape))
