"""Comparisons and ``where`` against NumPy, as functions, operators and ufuncs."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import ggml_backend as gb
from op_harness import ALL_LAYOUTS, EXACT, FLOATS, SHAPES, array, check, covers, real, whole  # fmt: skip

INF, NAN = math.inf, math.nan
COMPARE = {
    "equal": np.equal, "not_equal": np.not_equal, "less": np.less, "less_equal": np.less_equal,
    "greater": np.greater, "greater_equal": np.greater_equal,
}  # fmt: skip
HARD = [NAN, INF, -INF, 0.0, -0.0, 1e-45, -1e-45, 1.0, 3.4e38, -3.4e38]


def as_numbers(function):
    return lambda *x: function(*x).astype(np.float64)


@covers("COMPARE")
@pytest.mark.parametrize("dtype", [*FLOATS, "int32"])
@pytest.mark.parametrize("name", COMPARE)
def test_comparisons(name, dtype):
    def some(*shape, layout="whole"):
        if dtype == "int32":
            return whole(*shape, low=-2, high=3, layout=layout)
        return real(*shape, dtype=dtype, layout=layout)

    for shape, layout in zip(SHAPES, itertools.cycle(ALL_LAYOUTS)):
        check(
            getattr(gb.ops, name),
            [some(*shape, layout=layout), some(*shape)],
            as_numbers(COMPARE[name]),
            EXACT,
            dtype="float32",
        )
    for first, second in [((3, 4), (4,)), ((4,), (3, 4)), ((3, 1), (1, 4)), ((2, 1, 5), (3, 1)), ((1,), (1,))]:
        check(getattr(gb.ops, name), [some(*first), some(*second)], as_numbers(COMPARE[name]), EXACT, dtype="float32")


@pytest.mark.parametrize("name", COMPARE)
def test_comparisons_of_special_numbers(name):
    both = list(itertools.product(HARD, HARD))
    x, y = (array([pair[i] for pair in both]) for i in (0, 1))
    check(getattr(gb.ops, name), [x, y], as_numbers(COMPARE[name]), EXACT, dtype="float32")


@pytest.fixture
def run(cpu, ctx):
    with gb.Scheduler(cpu) as sched:

        def run(node):
            sched.compute(ctx.graph(node))
            return node.numpy(copy=True)

        yield run


X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)


HOW = {
    "less than a number": (lambda x: x < 0.5, np.less(X, 0.5)),
    "an array": (lambda x: x <= X[1], np.less_equal(X, X[1])),
    "a tensor": (lambda x: x > x[0], np.greater(X, X[0])),
    "a number first": (lambda x: 0.5 >= x, np.less_equal(X, 0.5)),  # noqa: SIM300
    "an array first": (lambda x: X[:, :1] < x, np.less(X[:, :1], X)),
    "greater": (lambda x: np.greater(x, 0), np.greater(X, 0)),
    "less_equal": (lambda x: np.less_equal(np.float32(1), x), np.less_equal(1, X)),
    "equal": (lambda x: gb.ops.equal(x, X), np.ones_like(X)),
    "not_equal": (lambda x: gb.ops.not_equal(X[2, 1], x), np.not_equal(X[2, 1], X)),
}


@pytest.mark.parametrize("name", HOW)
def test_numbers_and_arrays(ctx, run, name):
    how, want = HOW[name]
    got = run(how(ctx.constant(X)))
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, want)


def test_integers(ctx, run):
    ids = ctx.constant(np.array([5, 7, -1, 2**31 - 1], np.int32))
    np.testing.assert_array_equal(run(gb.ops.equal(ids, 7)), [0, 1, 0, 0])
    np.testing.assert_array_equal(run(ids >= np.array([5, 8, -2, 2**31 - 2])), [1, 0, 1, 1])
    np.testing.assert_array_equal(run(gb.ops.where(ids < 0, 0, ids)), [5, 7, 0, 2**31 - 1])
    with pytest.raises(gb.errors.InvalidArgumentError, match=r"equal: b is 2147483648, which an int32 cannot be"):
        gb.ops.equal(ids, 2**31)
    with pytest.raises(gb.errors.InvalidArgumentError, match="numbers that no int32 can be"):
        ids < np.array([2**40])  # noqa: B015
    with pytest.raises(gb.errors.InvalidArgumentError, match="both be int32, or both floats"):
        gb.ops.less(ids, 2.5)


@covers("WHERE")
@pytest.mark.parametrize("dtype", [*FLOATS, "int32"])
@pytest.mark.parametrize("cond", [*FLOATS, "int32"])
def test_where(cond, dtype):
    def some(*shape, dtype, layout="whole"):
        if dtype == "int32":
            return whole(*shape, low=-1, high=2, layout=layout)
        return real(*shape, dtype=dtype, layout=layout)

    def mask(*shape, layout="whole"):
        return (
            whole(*shape, low=0, high=2, layout=layout)
            if cond == "int32"
            else array(np.random.default_rng(sum(shape)).integers(0, 2, shape), cond)
        )

    def chosen(c, x, y):
        return np.where(c != 0, x, y)

    for shape, layout in zip(SHAPES, itertools.cycle(ALL_LAYOUTS)):
        inputs = [mask(*shape), some(*shape, dtype=dtype, layout=layout), some(*shape, dtype=dtype)]
        check(gb.ops.where, inputs, chosen, EXACT, dtype=dtype)
    for c, x, y in [((3, 4), (1,), (4,)), ((4,), (3, 1), (2, 1, 1)), ((3, 1), (3, 4), (3, 4)), ((1,), (2, 3), (3,))]:
        check(gb.ops.where, [mask(*c), some(*x, dtype=dtype), some(*y, dtype=dtype)], chosen, EXACT, dtype=dtype)


def test_unselected_elements_have_no_effect(ctx, run):
    x = ctx.constant(np.array([1, NAN, INF, 2], np.float32))
    np.testing.assert_array_equal(run(gb.ops.where([True, False, False, True], x, 0)), [1, 0, 0, 2])
    np.testing.assert_array_equal(run(gb.ops.where(gb.ops.equal(x, x), x, -1.0)), [1, -1, INF, 2])
    np.testing.assert_array_equal(run(gb.ops.where(x > 1, 1, -1)), [-1, -1, 1, 1])
    half = ctx.constant(np.array([1, 2], np.float16))
    node = gb.ops.where(np.array([0, 3]), half, -INF)
    assert node.dtype == gb.float16
    np.testing.assert_array_equal(run(node), [-INF, 2])


def test_wrong_arguments(ctx):
    x = ctx.constant(X, name="x")
    with pytest.raises(TypeError, match=r"where: cond must be a Tensor, not bool"):
        gb.ops.where(True, 1, 2)
    with pytest.raises(TypeError, match=r"where: cond must be a tensor, a number or an array, not bool"):
        gb.ops.where(True, x, 2)
    with pytest.raises(TypeError, match=r"less: a must be a Tensor, not int"):
        gb.ops.less(1, 2)
    with pytest.raises(
        gb.errors.InvalidArgumentError, match=r"where: .*'x'.* a \(float32\) and b \(float16\) must have the same type"
    ):
        gb.ops.where(x, x, ctx.tensor((4,), gb.float16))
    with pytest.raises(
        gb.errors.InvalidArgumentError,
        match=r"axis -1 of b \(3\) must divide the largest size of the operands there \(4\)",
    ):
        gb.ops.where(x, x, ctx.tensor((3,)))
    with pytest.raises(
        gb.errors.InvalidArgumentError, match=r"a < b: .*the shapes do not broadcast, axis -1 has 4 and 3"
    ):
        x < ctx.tensor((3,))  # noqa: B015
    with pytest.raises(TypeError, match="no truth value"):
        sorted([x, ctx.tensor((3, 4))])
