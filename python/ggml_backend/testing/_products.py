"""Cases of products: matrices with m rows of weights, n columns and length k; experts; outer
products."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import ops
from ._cases import Case, Sizes, a, b, call, f16, f32, ids, one
from ._tolerance import ABSOLUTE, Rule

__all__ = ["of_products"]

_SIZES = (
    *((5, 3, 64), (7, 1, 256), (64, 20, 256), (1, 1, 64), (130, 1, 512), (5, 2, 64), (33, 4, 512), (17, 9, 256)),
    *((31, 33, 256), (130, 65, 256), (96, 70, 33), (48, 130, 7), (3, 0, 64), (0, 3, 64)),
)

_EXPERTS = (
    *((3, 5, 64, 4, 2, 1), (9, 7, 256, 3, 4, 2), (2, 33, 64, 50, 1, 1), (70, 3, 512, 1, 8, 1)),
    (4, 20, 256, 40, 3, 3),
)
"""Experts, rows and columns of each, tokens, experts and rows of a token."""


def _rule(k: int) -> Rule:
    return Rule("product", n=k, rounded=2, magnitude=ABSOLUTE)


def of_products(sizes: Sizes) -> Iterator[Case]:
    for m, n, k in sizes.some(_SIZES, 3, [(300, 70, 129), (1000, 1, 257), (1, 1000, 257)]):
        small = 0 < m * n < 400 or m == 300
        yield call("mul_mat", _rule(k), a(m, k, low=-1, high=1), b(n, k, low=-1, high=1), layouts=small)
        yield call("mul_mat", _rule(k), a(m, k), f32(n, k), prec="f32")
        yield one("matmul", _rule(k), (f32(n, k), a(m, k)), _matmul)
    batches = [((2,), (6,)), ((3,), (3,)), ((2, 1), (2, 3)), ((1, 2), (3, 4))]
    for left, right in sizes.some(batches, 1, batches[:1]):
        for m, n, k in sizes.some([(5, 3, 64), (9, 1, 256), (40, 20, 256)], 1, [(40, 50, 33)]):
            yield call("mul_mat", _rule(k), a(*left, m, k), b(*right, n, k), layouts=m == 5)
    chosen = np.array([[1, 0], [0, 2], [2, 1], [1, 1], [0, 0]])
    for m, n, k in sizes.some([(5, 5, 64), (8, 1, 256), (33, 5, 512)], 1, [(150, 90, 129)]):
        inputs = (a(m, k), a(m, k), a(m, k), ids(np.resize(chosen, (n, 2))), f32(n, k))
        yield one("mul_mat_id", _rule(k), inputs, _experts)
    for e, m, k, tokens, used, rows in sizes.some(_EXPERTS, 2, [(16, 150, 129, 40, 2, 1)]):
        named = ids(np.arange(tokens * used).reshape(tokens, used) * 7 % max(e - 1, 1))
        yield call("mul_mat_experts", _rule(k), a(e, m, k, low=-1, high=1), f32(tokens, rows, k), named)
        rule = Rule(terms=1)
        yield call("add_id", rule, a(tokens, used, m), b(e, m), named, layouts=m == 5)
    for shape in sizes.some([(3, 4), (64, 33), (2, 5, 256), (70, 512)], 2, [(50, 300)]):
        yield call("out_prod", _rule(shape[-2]), a(*shape), b(*shape[:-1], 7), layouts=len(shape) == 2)
    for rows, hidden, inner in sizes.some([(3, 8, 6), (33, 64, 130)], 1, [(90, 64, 130)]):
        rule = Rule("product", terms=64, n=hidden + inner, rounded=6, magnitude=ABSOLUTE)
        inputs = (f16(rows, hidden), f16(inner, hidden), f32(inner), f16(hidden, inner), f32(hidden))
        yield call("flash_ff", rule, *inputs)


def _matmul(x: Any, w: Any) -> Any:
    return ops.matmul(x, w.T, prec="f32")


def _experts(p: Any, q: Any, r: Any, chosen: Any, x: Any) -> Any:
    return ops.mul_mat_id([p, q, r], chosen, 1, x)
