"""Convolutions, pools, and what else goes over windows of pictures, as cases."""

from __future__ import annotations

from collections.abc import Iterator

from .. import ops
from ._cases import Case, Sizes, a, b, call, one
from ._tolerance import ABSOLUTE, EXACT, Rule

__all__ = ["of_windows"]


def of_windows(sizes: Sizes) -> Iterator[Case]:
    for channels, h, w in sizes.some([(3, 8, 9), (1, 5, 5), (8, 12, 33)], 1):
        for k in sizes.some([2, 1, 3], 1):
            yield from _convolutions(channels, h, w, k)
        yield call("pool_1d", EXACT, a(channels, w), op="max", kernel=2)
        yield call("pool_1d", Rule(n=2, magnitude=ABSOLUTE), a(channels, w), op="avg", kernel=2)
        for mode, rule in (("max", EXACT), ("avg", Rule(n=9, magnitude=ABSOLUTE))):
            yield call("pool_2d", rule, a(channels, h, w), op=mode, kernel=(2, 3))
            yield call("pool_2d", rule, a(channels, h, w), op=mode, kernel=3, stride=2, padding=1)
    yield call("win_part", EXACT, a(4, 5, 2), window=3)
    yield one("win_unpart", EXACT, [a(4, 5, 2)], lambda x: ops.win_unpart(ops.win_part(x, 3), 5, 4, 3))
    yield call("get_rel_pos", EXACT, a(5, 4), qh=3, kh=3)
    positions = Rule(terms=3, magnitude=ABSOLUTE)
    yield call("add_rel_pos", positions, a(1, 6, 9), b(1, 2, 3, 3), b(1, 2, 3, 3), inplace=True)
    for shape, groups in (((4, 3, 3), 2), ((2, 6, 5, 7), 3)):
        rule = Rule(terms=16, n=2 * shape[-1] * shape[-2] * shape[-3], magnitude=lambda x, y: 1 + abs(y))
        yield call("group_norm", rule, a(*shape), n_groups=groups, inplace=True)


def _convolutions(channels: int, h: int, w: int, k: int) -> Iterator[Case]:
    image, line = b(2, channels, h, w), b(channels, w)
    over = Rule("product", n=channels * k * k, rounded=2, magnitude=ABSOLUTE)
    yield call("im2col", EXACT, a(6, channels, k, k), image)
    yield call("im2col", EXACT, a(6, channels, k, k), image, stride=(2, 1), padding=(1, 0), dilation=1)
    yield call("conv_2d", over, a(6, channels, k, k), image, padding=1)
    yield call("conv_2d", over, a(6, channels, k, k), image, stride="kernel")
    yield call("conv_depthwise_2d", over, a(channels, 1, k, k), image, padding=1)
    yield call("conv_1d", over, a(6, channels, k), line, stride=2, padding=1)
    yield call("conv_1d", over, a(6, channels, k), line, dilation=2)
    yield call("conv_transpose_1d", over, a(channels, 6, k), line, stride=2)
    yield call("conv_transpose_2d", over, a(channels, 6, k, k), b(1, channels, h, w), stride=2)
