"""Cases of convolutions, pools and other operators on windows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from .. import ops
from ._cases import Case, Sizes, a, b, call, one
from ._tolerance import ABSOLUTE, EXACT, Rule

__all__ = ["of_windows"]


def of_windows(sizes: Sizes) -> Iterator[Case]:
    for channels, h, w in sizes.some([(3, 8, 9), (1, 5, 5), (8, 12, 33)], 1, [(33, 30, 150)]):
        for k in sizes.some([2, 1, 3], 1, [3]):
            yield from _convolutions(channels, h, w, k)
        yield call("pool_1d", EXACT, a(channels, w), op="max", kernel=2)
        yield call("pool_1d", Rule(n=2, magnitude=ABSOLUTE), a(channels, w), op="avg", kernel=2)
        for mode, rule in (("max", EXACT), ("avg", Rule(n=9, magnitude=ABSOLUTE))):
            yield call("pool_2d", rule, a(channels, h, w), op=mode, kernel=(2, 3))
            yield call("pool_2d", rule, a(channels, h, w), op=mode, kernel=3, stride=2, padding=1)
    for h, w, n, size in sizes.some([(4, 5, 2, 3)], 1, [(40, 45, 33, 7)]):
        yield call("win_part", EXACT, a(h, w, n), window=size)
        yield one("win_unpart", EXACT, [a(h, w, n)], partial(_joined, w=w, h=h, size=size))
    for n, k in sizes.some([(3, 4)], 1, [(60, 33)]):
        yield call("get_rel_pos", EXACT, a(2 * n - 1, k), qh=n, kh=n)
    positions = Rule(terms=3, magnitude=ABSOLUTE)
    for n, h, w in sizes.some([(1, 2, 3)], 1, [(3, 14, 14)]):
        bias = (n, h, w, w)
        yield call("add_rel_pos", positions, a(n, h * w, w * w), b(*bias), b(*bias), inplace=True)
    for shape, groups in sizes.some([((4, 3, 3), 2), ((2, 6, 5, 7), 3)], 2, [((2, 13, 50, 60), 5)]):
        rule = Rule(terms=16, n=2 * shape[-1] * shape[-2] * shape[-3], magnitude=lambda x, y: 1 + abs(y))
        yield call("group_norm", rule, a(*shape), n_groups=groups, inplace=True)


def _joined(x: Any, w: int, h: int, size: int) -> Any:
    return ops.win_unpart(ops.win_part(x, size), w, h, size)


def _convolutions(channels: int, h: int, w: int, k: int) -> Iterator[Case]:
    image, line = b(2, channels, h, w), b(channels, w)
    over = Rule("product", n=channels * k * k, rounded=2, magnitude=ABSOLUTE)
    yield call("im2col", EXACT, a(6, channels, k, k), image)
    yield call("im2col", EXACT, a(6, channels, k, k), image, stride=(2, 1), padding=(1, 0), dilation=1)
    rows, folded = b(2, h - k + 1, w - k + 1, channels * k * k), Rule(n=k * k, magnitude=ABSOLUTE)
    yield call("im2col_back", folded, a(6, channels, k, k), rows, shape=(2, channels, h, w))
    rows = b(2, (h + 2 - k) // 2 + 1, w - k + 1, channels * k * k)
    options: Any = {"shape": (2, channels, h, w), "stride": (2, 1), "padding": (1, 0)}
    yield call("im2col_back", folded, a(6, channels, k, k), rows, **options)
    yield call("conv_2d", over, a(6, channels, k, k), image, padding=1)
    yield call("conv_2d", over, a(6, channels, k, k), image, stride="kernel")
    yield call("conv_depthwise_2d", over, a(channels, 1, k, k), image, padding=1)
    yield call("conv_1d", over, a(6, channels, k), line, stride=2, padding=1)
    yield call("conv_1d", over, a(6, channels, k), line, dilation=2)
    yield call("conv_2d", over, a(2 * channels, 1, k, k), image, padding=k, stride=2, groups=channels)
    yield call(
        "conv_3d",
        Rule("product", n=2 * k**3, rounded=2, magnitude=ABSOLUTE),
        a(6, k, k, k),
        b(4, k + 1, h, w),
        channels=2,
        padding=(0, 1, 1),
    )
    yield call("conv_transpose_1d", over, a(channels, 6, k), line, stride=2)
    yield call("conv_transpose_2d", over, a(channels, 6, k, k), b(1, channels, h, w), stride=2)
