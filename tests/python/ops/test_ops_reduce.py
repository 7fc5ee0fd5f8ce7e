"""Sums, means, orderings, repetition and concatenation against NumPy."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import ggml_backend as gb
from op_harness import (
    ALL_LAYOUTS,
    EXACT,
    FLOATS,
    LAYOUTS,
    SHAPES,
    Tolerance,
    array,
    check,
    covers,
    real,
    refuses,
    whole,
)

LONG = [*SHAPES, (3, 1000), (1, 70001), (70, 1030), (1030, 1), (2, 3, 5, 331)]


def cases(layouts=LAYOUTS, shapes=LONG):
    """Every shape in some layout, and one shape in every layout."""
    return [*zip(shapes, itertools.cycle(layouts), strict=False), *(((3, 4, 37), y) for y in layouts)]


@covers("SUM", "SUM_ROWS", "MEAN")
@pytest.mark.parametrize("dtype", FLOATS)
def test_sums(dtype):
    """The accumulator is double or float32; the mean is float32."""
    for shape, layout in cases(ALL_LAYOUTS):
        x = real(*shape, dtype=dtype, layout=layout)
        n = shape[-1]
        check(gb.ops.sum, [x], np.sum, Tolerance(n=x.values.size), magnitude=np.sum)
        check(
            gb.ops.sum_rows,
            [x],
            lambda v: v.sum(-1, keepdims=True),
            Tolerance(n=n),
            magnitude=lambda v: v.sum(-1, keepdims=True),
        )
        check(
            gb.ops.mean,
            [x],
            lambda v: v.mean(-1, keepdims=True),
            Tolerance(n=n),
            magnitude=lambda v: v.mean(-1, keepdims=True),
            dtype="float32",
        )


def test_sums_of_nothing():
    check(gb.ops.sum, [real(0)], np.sum, EXACT)
    check(gb.ops.sum_rows, [real(3, 0)], lambda v: v.sum(-1, keepdims=True), EXACT)
    check(gb.ops.sum_rows, [real(0, 3)], lambda v: v.sum(-1, keepdims=True), EXACT)


@covers("SUM")
def test_sum_is_exact_where_float32_would_not_be():
    """A float32 accumulator stays at 2^24 when ones are added. The accumulator is a double."""
    x = array([2.0**24, *[1.0] * 4096])
    check(gb.ops.sum, [x], np.sum, EXACT)
    check(gb.ops.sum_rows, [x], lambda v: v.sum(-1, keepdims=True), EXACT)


@covers("SUM_ROWS")
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_sums_of_special_values(value):
    for n, i in ((1, 0), (7, 6), (40, 0), (40, 39), (131, 77)):
        x = np.ones((2, n))
        x[1, i] = value
        check(gb.ops.sum_rows, [array(x)], lambda v: v.sum(-1, keepdims=True), EXACT)
    check(gb.ops.sum_rows, [array([[math.inf, -math.inf] * 20])], lambda v: v.sum(-1, keepdims=True), EXACT)


def last_argmax(v):
    return v.shape[-1] - 1 - np.argmax(v[..., ::-1], axis=-1)


@covers("ARGMAX")
@pytest.mark.parametrize("dtype", FLOATS)
def test_argmax(dtype):
    """The last of equal maxima counts."""
    for shape, layout in cases(ALL_LAYOUTS, [(1, 1), (5, 3), (1, 33), (17, 129), (3, 1000), (600, 70)]):
        if len(shape) == 2:
            check(gb.ops.argmax, [real(*shape, dtype=dtype, layout=layout)], last_argmax, EXACT, dtype="int32")
            few = array(np.round(real(*shape).values), dtype, layout)
            check(gb.ops.argmax, [few], last_argmax, EXACT, dtype="int32")
    check(gb.ops.argmax, [array(np.full((3, 21), -math.inf), dtype)], last_argmax, EXACT, dtype="int32")


@covers("ARGSORT")
@pytest.mark.parametrize("dtype", FLOATS)
def test_argsort(dtype):
    """Equal values keep their order."""
    for shape, layout in cases(ALL_LAYOUTS):
        x = real(*shape, dtype=dtype, layout=layout)
        few = array(np.round(x.values.astype(np.float32)), dtype, layout)
        for v in (x, few):
            check(gb.ops.argsort, [v], lambda a: np.argsort(a, -1, kind="stable"), EXACT, dtype="int32")
            check(
                lambda t: gb.ops.argsort(t, descending=True),
                [v],
                lambda a: np.argsort(-a, -1, kind="stable"),
                EXACT,
                dtype="int32",
            )


@covers("ARGSORT")
def test_argsort_puts_nan_last():
    x = array([[3, math.nan, -math.inf, 1, math.nan, math.inf, -0.0, 0.0, 2]])
    order = np.array([[2, 6, 7, 3, 8, 0, 5, 1, 4]])
    check(gb.ops.argsort, [x], lambda a: order, EXACT, dtype="int32")
    back = np.array([[5, 0, 8, 3, 6, 7, 2, 1, 4]])
    check(lambda t: gb.ops.argsort(t, descending=True), [x], lambda a: back, EXACT, dtype="int32")


@covers("ARGSORT", "VIEW")
def test_top_k():
    for shape, k in (((1,), 1), ((7,), 3), ((5, 33), 33), ((2, 3, 4, 9), 4), ((300, 200), 5)):
        check(
            lambda t, k=k: gb.ops.top_k(t, k),
            [real(*shape)],
            lambda a, k=k: np.argsort(-a, -1, kind="stable")[..., :k],
            EXACT,
            dtype="int32",
        )


# -------------------------------------------------------------------------------------------- repetition, concatenation

TILES = [
    ((1,), (1,)), ((1,), (9,)), ((3,), (9,)), ((3,), (2, 3)), ((5, 3), (5, 3)), ((5, 3), (10, 9)), ((1, 3), (4, 3)),
    ((2, 1), (2, 33)),
    ((2, 3, 4, 5), (4, 3, 8, 15)), ((1, 1, 1, 7), (2, 3, 5, 7)), ((3, 1, 1), (3, 4, 65)), ((1,), (3, 70, 501)),
    ((1030,), (70, 2060)),
]  # fmt: skip
MOVED = ["float32", "float16", "bfloat16", "int32", "int16"]


def tiled(v, shape):
    v = v.reshape((1,) * (len(shape) - v.ndim) + v.shape)
    return np.tile(v, [n // m for n, m in zip(shape, v.shape, strict=True)])


@covers("REPEAT")
@pytest.mark.parametrize("dtype", MOVED)
def test_repeat(dtype):
    for (small, large), layout in [
        *zip(TILES, itertools.cycle(ALL_LAYOUTS), strict=False),
        *(((((2, 3, 5), (4, 9, 10))), y) for y in ALL_LAYOUTS),
    ]:
        x = (
            whole(*small, low=-99, high=99, dtype=dtype, layout=layout)
            if dtype.startswith("int")
            else real(*small, dtype=dtype, layout=layout)
        )
        check(lambda t, s=large: gb.ops.repeat(t, s), [x], lambda v, s=large: tiled(v, s), EXACT)


def folded(v, shape):
    """The sum of the tiles of v that have the shape."""
    shape = (1,) * (v.ndim - len(shape)) + shape
    split = v.reshape([m for n, s in zip(v.shape, shape, strict=True) for m in (n // s, s)])
    return split.sum(tuple(range(0, 2 * v.ndim, 2)))


@covers("REPEAT_BACK")
@pytest.mark.parametrize("dtype", FLOATS)
def test_repeat_back(dtype):
    for (small, large), layout in zip(TILES, itertools.cycle(ALL_LAYOUTS), strict=False):
        if small == large:  # no repetition: the tensor itself
            continue
        small = (1,) * (len(large) - len(small)) + small
        x = real(*large, dtype=dtype, layout=layout)
        tolerance = Tolerance(n=x.values.size // math.prod(small))
        check(
            lambda t, s=small: gb.ops.repeat_back(t, s),
            [x],
            lambda v, s=small: folded(v, s),
            tolerance,
            magnitude=lambda v, s=small: folded(v, s),
        )


@covers("CONCAT")
@pytest.mark.parametrize("dtype", MOVED)
def test_concat(dtype):
    shapes = [((2, 3, 4), (5, 3, 4)), ((1, 1, 1), (1, 1, 1)), ((2, 1, 3, 7), (2, 4, 3, 7)), ((3, 1, 65), (2, 1, 65)),
     ((8, 70, 130), (3, 70, 130)),
              ((2, 0, 3, 7), (2, 4, 3, 7))]  # fmt: skip
    for (one, two), (y1, y2) in itertools.product(shapes[:3], itertools.product(ALL_LAYOUTS, ALL_LAYOUTS)):
        _concat(dtype, one, two, y1, y2, -3)
    for one, two in shapes:
        _concat(dtype, one, two, "whole", "padded", -3)


def _concat(dtype, one, two, y1, y2, axis):
    def make(shape, layout):
        return (
            whole(*shape, low=-99, high=99, dtype=dtype, layout=layout)
            if dtype.startswith("int")
            else real(*shape, dtype=dtype, layout=layout)
        )

    check(
        lambda a, b: gb.ops.concat(a, b, axis),
        [make(one, y1), make(two, y2)],
        lambda a, b: np.concatenate([a, b], axis),
        EXACT,
    )


@covers("CONCAT")
@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1, -2, -3, -4])
def test_concat_along_any_axis(axis):
    one = [2, 3, 4, 5]
    two = list(one)
    two[axis] = 7
    _concat("float32", one, two, "padded", "whole", axis)
    if -3 <= axis < 3:
        two = [2, 3, 4]
        two[axis] = 1
        _concat("int32", [2, 3, 4], two, "whole", "stepped", axis)
    if -2 <= axis < 2:
        _concat("float32", [4, 4], [5, 4] if axis in (0, -2) else [4, 5], "whole", "whole", axis)
    if axis in (0, -1):
        _concat("float32", [4], [5], "whole", "offset", axis)


@pytest.mark.parametrize("name", ["sum", "sum_rows", "mean", "argmax", "argsort"])
def test_integers_are_refused(name):
    refuses(getattr(gb.ops, name), [whole(3, 4, low=0, high=9)])
