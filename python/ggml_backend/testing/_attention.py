"""Cases of attention and rotary embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from .. import ops
from ._cases import Case, Sizes, a, b, call, f16, f32, ids, one
from ._tolerance import Rule

__all__ = ["of_attention"]


def _values(*x: Any) -> Any:
    """The magnitude: the largest of the averaged values."""
    return np.abs(x[2]).max(initial=0.0)


def _queries_in_bytes(*x: Any) -> Any:
    """The error of a result if each group of 32 numbers of a query is off by 1/254 of its largest. Scores are off by
    at most e then, so weights are off by a factor between c - s and c + s, with s = exp(e) sinh(e), for some c. The
    weighted differences of the values from the result add up to 0, so c does not matter. A sink has the value 0."""
    (q, k, v), y = x[:3], x[-1]
    groups = (-1, 32)
    steps = np.abs(q).reshape(*q.shape[:-1], *groups).max(-1) / 254
    sums = np.abs(k).reshape(*k.shape[:-1], *groups).sum(-1).repeat(q.shape[1] // k.shape[1], 1)
    off = (steps @ sums.swapaxes(-1, -2)).max(-1, initial=0.0).swapaxes(1, 2)[..., None] / np.sqrt(q.shape[-1])
    least, most = (f(v, axis=2, initial=0.0).repeat(q.shape[1] // v.shape[1], 1)[:, None] for f in (np.min, np.max))
    return np.exp(off) * np.sinh(off) * np.maximum(most - y, y - least)


def _gradients(*x: Any) -> Any:
    return np.abs(x[-1]).max(initial=0.0) + np.abs(x[3]).max(initial=0.0)


def _rows(*x: Any) -> Any:
    return np.abs(x[0]).max(-1, keepdims=True, initial=0.0) + np.abs(x[-1]).max(-1, keepdims=True, initial=0.0)


def of_attention(sizes: Sizes) -> Iterator[Case]:
    shapes = [(2, 3, 5, 8), (4, 33, 40, 64), (1, 1, 5, 8), (2, 70, 150, 32), (1, 1, 300, 128)]
    for heads, tokens, keys, size in sizes.some(shapes, 2, [(6, 50, 90, 32)]):
        rule = Rule("product", terms=40, n=4 * (size + keys), rounded=8, magnitude=_values)
        back = Rule("product", terms=200, n=16 * (size + keys), rounded=32, magnitude=_gradients)
        for masked in (False, True):
            inputs = (a(heads, tokens, size), b(heads, keys, size), b(heads, size, keys))
            yield call("flash_attn", rule, *inputs, masked=masked)
            yield call("flash_attn_back", back, *inputs, b(heads, tokens, size), masked=masked)
    yield from _of_today(sizes)
    for tokens, heads, size in sizes.some([(5, 2, 8), (1, 4, 64), (33, 3, 128)], 1, [(120, 6, 64)]):
        yield from _rotations(tokens, heads, size)


def _of_today(sizes: Sizes) -> Iterator[Case]:
    """Attention with grouped heads, masks, caps and sinks; softmax with sinks."""
    shapes = [(1, 4, 2, 3, 40, 64, 32), (2, 6, 3, 1, 300, 32, 32), (1, 2, 1, 37, 150, 64, 64)]
    for batch, heads, shared, n, m, dk, dv in sizes.some(shapes, 2, [(1, 8, 2, 40, 200, 64, 64)]):
        rule = Rule("product", terms=60, n=4 * (dk + m), rounded=8, magnitude=_values, in_bytes=_queries_in_bytes)
        inputs = (f32(batch, heads, n, dk), a(batch, shared, m, dk), b(batch, shared, m, dv))
        yield call("flash_attn_ext", rule, *inputs)
        yield call("flash_attn_ext", rule, *inputs, prec="f32")
        yield one("flash_attn_ext", rule, (*inputs, f16(n + 1, m), f32(heads)), _capped, "cap,mask,sinks")
    logits = (a(2, 4, 5, 33), f16(4, 6, 33), f32(4))
    yield one("soft_max", Rule(terms=60, n=33), logits, _with_sinks, "mask,sinks")


def _capped(q: Any, k: Any, v: Any, mask: Any, sinks: Any) -> Any:
    return ops.flash_attn_ext(q, k, v, mask, max_bias=4.0, softcap=3.0, sinks=sinks)


def _with_sinks(x: Any, mask: Any, sinks: Any) -> Any:
    return ops.soft_max(x, mask, 0.5, sinks=sinks)


def _rotations(tokens: int, heads: int, size: int) -> Iterator[Case]:
    x, at = a(tokens, heads, size), ids(np.arange(tokens) * 3)
    rule = Rule(terms=16 + 16 * tokens, magnitude=_rows)
    for mode in ("normal", "neox", "glm", "normal_exact", "neox_exact"):
        small = mode in ("normal", "neox") and tokens == 5
        yield call("rope", rule, x, at, layouts=small, inplace=small, mode=mode, n_ctx=64)
        extended: dict[str, Any] = {"freq_scale": 0.5, "n_ctx": 64, "ext_factor": 0.7, "n_orig_ctx": 32}
        yield call("rope", rule, x, at, mode=mode, n_dims=size // 2, **extended)
        yield call("rope_back", rule, x, at, mode=mode)
    factors = f32(size // 2, low=1.0, high=4.0)
    for mode in ("normal_exact", "neox_exact"):
        yield one("rope", rule, (x, at, factors), partial(_divided, mode=mode), f"factors,mode={mode}")
        yield call("rope", rule, x, at, mode=mode, n_dims=size // 2, offset=2 * (size // 8))
    four = ids(np.arange(4 * tokens) * 3 % 17)
    for mode in ("mrope", "imrope", "vision"):
        yield call("rope", rule, x, four, mode=mode, sections=(2, 1, 1, 0))
        yield call("rope_back", rule, x, four, mode=mode, sections=(2, 1, 1, 0))
    yield call("rope", rule, x, at, xpos_base=512.0, xpos_down=True)


def _divided(x: Any, at: Any, factors: Any, mode: Any) -> Any:
    return ops.rope(x, at, mode=mode, factors=factors)
