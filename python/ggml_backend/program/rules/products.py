"""Matrix products and attention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ... import ops
from ...tensor import Tensor
from ..build import Build, NoRule, Val
from . import rule

_MANY_QUERIES, _MANY_KEYS = 8, 16
"""From here on, the CPU computes attention of several operators in one step, too."""


def _plus(b: Build, y: Tensor, bias: Val | None) -> Tensor:
    return y if bias is None else y + b.tensor(bias)


def _times_weight(b: Build, x: Tensor, weight: Val, transposed: bool = False) -> Tensor:
    """``x @ weight.T`` for rows x; ``x @ weight`` if transposed."""
    return ops.mul_mat(b.matrix(weight, transposed), x, prec=b.weights.precision)


@rule("linear", matrix="weight")
def linear(b: Build, input: Val, weight: Val, bias: Val | None = None) -> Tensor:
    if weight.ndim != 2:
        raise NoRule(f"a weight of shape {weight.shape}")
    return _plus(b, _times_weight(b, b.fold(input, -1, weight.shape[1]).contiguous(), weight), bias)


@rule("addmm", matrix="mat2")
def addmm(b: Build, self: Val, mat1: Val, mat2: Val, beta: float = 1, alpha: float = 1) -> Tensor:
    if (beta, alpha) != (1, 1):
        raise NoRule(f"beta {beta} and alpha {alpha}")
    return _times_weight(b, b.dense(mat1), mat2, transposed=True) + b.tensor(self)


@rule("mm", matrix="mat2")
def mm(b: Build, self: Val, mat2: Val) -> Tensor:
    return _times_weight(b, b.dense(self), mat2, transposed=True)


@rule("bmm")
def bmm(b: Build, self: Val, mat2: Val) -> Tensor:
    return b.tensor(self) @ b.tensor(mat2)


@rule("matmul", matrix="other")
def matmul(b: Build, self: Val, other: Val) -> Tensor:
    if self.ndim == 0 or other.ndim == 0:
        raise NoRule("a value without axes")
    if other.ndim == 2 and (other.weight or self.ndim != 2):
        return _times_weight(b, b.fold(self, -1, self.shape[-1]).contiguous(), other, transposed=True)
    x = self if self.ndim > 1 else Val((1, *self.shape), self.dtype, b.dense(self).reshape(1, -1))
    y = other if other.ndim > 1 else Val((*other.shape, 1), other.dtype, b.dense(other).reshape(-1, 1))
    batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    if len(batch) <= 2 and x.shape[:-2] == y.shape[:-2]:
        return b.tensor(x) @ b.tensor(y)
    n = math.prod(batch)
    s, t = (
        b.repeated(v, (*batch, *v.shape[-2:])).reshape(n, *v.shape[-2:])
        if math.prod(v.shape[:-2]) != n
        else b.fold(v, n, *v.shape[-2:])
        for v in (x, y)
    )
    return s @ t


@rule("baddbmm")
def baddbmm(b: Build, self: Val, batch1: Val, batch2: Val, beta: float = 1, alpha: float = 1) -> Tensor:
    y = b.tensor(batch1) @ b.tensor(batch2)
    if alpha != 1:
        y = ops.scale(y, alpha)
    if beta == 0:
        return y
    return y + (b.tensor(self) if beta == 1 else ops.scale(b.dense(self), beta))


def _mask(b: Build, mask: Val) -> Tensor:
    """An additive mask with four axes, from one of floats or booleans."""
    shape = (1,) * (4 - mask.ndim) + mask.shape
    if mask.array is not None:
        numbers = mask.array
        if mask.dtype == "bool":
            numbers = np.where(numbers, 0, -math.inf)
        t = b.constant(numbers.reshape(shape))
    else:
        t = b.fold(mask, *shape).contiguous()
        if mask.dtype == "bool":
            t = ops.where(t, 0.0, -math.inf)
    return t


@rule("scaled_dot_product_attention", "ggml_backend.attention", of="fb")
def attention(
    b: Build,
    query: Val,
    key: Val,
    value: Val,
    attn_mask: Val | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    softcap: float = 0.0,
) -> Tensor:
    """Consecutive heads of ``query`` share one of ``key``. softcap: of the scores, which ``attention.py`` finds."""
    wide = query.ndim > 4
    if dropout_p or query.ndim < 2 or (wide and (attn_mask is not None or enable_gqa)):
        raise NoRule(f"dropout {dropout_p}, {query.ndim} axes")
    if not enable_gqa and not query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
        raise NoRule("axes of a batch that repeat")
    n, m = query.shape[-2], key.shape[-2]
    values = (query, key, value)
    q, k, v = (b.fold(x, -1, *x.shape[-3:]) if wide else b.tensor(x) for x in values)
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    mask: Tensor | None = None
    if attn_mask is not None:
        if is_causal:
            raise NoRule("a mask that is also causal")
        mask = _mask(b, attn_mask)
        if mask.shape[-1] != m:
            mask = ops.repeat(mask, (*mask.shape[:-1], m))
    elif is_causal:
        mask = b.constant(np.where(np.tri(n, m, dtype=bool), 0, -math.inf))
    if softcap or n < _MANY_QUERIES or m < _MANY_KEYS:
        return _in_one_step(q, k, v, mask, factor, softcap)
    scores = ops.matmul(q, k.swapaxes(-1, -2))
    p = ops.softmax(scores) if mask is None and factor == 1 else ops.softmax(scores, mask, factor)
    return ops.matmul(p, v)


def _in_one_step(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, softcap: float) -> Tensor:
    """One operator, which reads values as they are. Devices fuse products of many queries and a softmax themselves."""
    q, k, v = (x if x.ndim == 4 else x.reshape(*(1,) * (4 - x.ndim), *x.shape) for x in (q, k, v))
    if mask is not None and mask.shape[-2] != q.shape[-2]:
        mask = ops.repeat(mask, (*mask.shape[:-2], q.shape[-2], mask.shape[-1]))
    return ops.flash_attn_ext(q, k, v, mask, scale, softcap=softcap).transpose(0, 2, 1, 3)


# ---------------------------------------------------------------------------------------------------- packed weights


@rule("ggml_backend.linear", of="fu")
def packed_linear(
    b: Build, x: Val, blocks: Val, bias: Val | None = None, format: str = "", precision: Any = "default"
) -> Tensor:
    w = b.blocks(blocks, format)
    return _plus(b, ops.mul_mat(w, b.fold(x, -1, w.shape[1]).contiguous(), prec=precision), bias)


@rule("ggml_backend.embedding", of="iu")
def packed_embedding(b: Build, ids: Val, blocks: Val, format: str = "", dtype: str = "float32") -> Tensor:
    return ops.get_rows(b.blocks(blocks, format), b.indices(ids))
