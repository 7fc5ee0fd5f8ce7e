"""Cases of attention and rotary embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ._cases import Case, Sizes, a, b, call, ids
from ._tolerance import Rule

__all__ = ["of_attention"]


def _values(*x: Any) -> Any:
    """The magnitude: the largest of the averaged values."""
    return np.abs(x[2]).max(initial=0.0)


def _gradients(*x: Any) -> Any:
    return np.abs(x[-1]).max(initial=0.0) + np.abs(x[3]).max(initial=0.0)


def _rows(x: Any, at: Any, y: Any) -> Any:
    return np.abs(x).max(-1, keepdims=True, initial=0.0) + np.abs(y).max(-1, keepdims=True, initial=0.0)


def of_attention(sizes: Sizes) -> Iterator[Case]:
    shapes = [(2, 3, 5, 8), (4, 33, 40, 64), (1, 1, 5, 8), (2, 70, 150, 32), (1, 1, 300, 128)]
    for heads, tokens, keys, size in sizes.some(shapes, 2, [(6, 50, 90, 32)]):
        rule = Rule("product", terms=40, n=4 * (size + keys), rounded=8, magnitude=_values)
        back = Rule("product", terms=200, n=16 * (size + keys), rounded=32, magnitude=_gradients)
        for masked in (False, True):
            inputs = (a(heads, tokens, size), b(heads, keys, size), b(heads, size, keys))
            yield call("flash_attn", rule, *inputs, masked=masked)
            yield call("flash_attn_back", back, *inputs, b(heads, tokens, size), masked=masked)
    for tokens, heads, size in sizes.some([(5, 2, 8), (1, 4, 64), (33, 3, 128)], 1, [(120, 6, 64)]):
        yield from _rotations(tokens, heads, size)


def _rotations(tokens: int, heads: int, size: int) -> Iterator[Case]:
    x, at = a(tokens, heads, size), ids(np.arange(tokens) * 3)
    rule = Rule(terms=16 + 16 * tokens, magnitude=_rows)
    for mode in ("normal", "neox", "glm", "normal_exact", "neox_exact"):
        small = mode in ("normal", "neox") and tokens == 5
        yield call("rope", rule, x, at, layouts=small, inplace=small, mode=mode, n_ctx=64)
        extended: dict[str, Any] = {"freq_scale": 0.5, "n_ctx": 64, "ext_factor": 0.7, "n_orig_ctx": 32}
        yield call("rope", rule, x, at, mode=mode, n_dims=size // 2, **extended)
        yield call("rope_back", rule, x, at, mode=mode)
    yield call("rope", rule, x, at, xpos_base=512.0, xpos_down=True)
