"""Norms by length, running sums, triangles, constants and the largest elements, against NumPy."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest

import ggml_backend as gb
from op_harness import (  # fmt: skip
    ALL_LAYOUTS,
    EMPTY,
    EXACT,
    FLOATS,
    SHAPES,
    Built,
    Tolerance,
    array,
    both_ways,
    check,
    covers,
    cpus,
    real,
    sim,
)


def l2(x, eps):
    return x / np.maximum(np.sqrt((x * x).sum(-1, keepdims=True)), eps)


@covers("L2_NORM")
@pytest.mark.parametrize("dtype", FLOATS)
def test_l2_norm(dtype):
    for shape, layout in zip([*SHAPES, *EMPTY], itertools.cycle(ALL_LAYOUTS)):
        x = [real(*shape, dtype=dtype, layout=layout)]
        both_ways(partial(gb.ops.l2_norm, eps=1e-6), x, partial(l2, eps=float(np.float32(1e-6))), Tolerance(terms=6))
    check(partial(gb.ops.l2_norm, eps=10.0), [real(3, 40)], partial(l2, eps=10.0), Tolerance(terms=6))
    check(partial(gb.ops.l2_norm, eps=1e-6), [array(np.zeros((2, 5)))], lambda x: x, EXACT)
    check(
        gb.ops.l2_norm,
        [array([[3e30, 4e30], [3e-30, 4e-30]])],
        lambda x: np.array([[0.6, 0.8], [3e-18, 4e-18]]),
        Tolerance(terms=6),
    )
    assert gb.ops.l2_norm(gb.Context().tensor((2, 3)), axis=0).shape == (2, 3)


@covers("CUMSUM")
@pytest.mark.parametrize("dtype", FLOATS)
def test_cumsum(dtype):
    for shape, layout in zip([*SHAPES, *EMPTY, (2, 70001)], itertools.cycle(ALL_LAYOUTS)):
        x = [real(*shape, dtype=dtype, layout=layout)]
        check(gb.ops.cumsum, x, lambda x: np.cumsum(x, -1), Tolerance(terms=4), magnitude=lambda x: np.cumsum(x, -1))
    check(
        lambda x: gb.ops.cumsum(x, 0),
        [real(5, 3)],
        lambda x: np.cumsum(x, 0),
        Tolerance(terms=4),
        magnitude=lambda x: np.cumsum(x, 0),
    )


TRIANGLES = {
    "upper_diag": np.triu, "upper": partial(np.triu, k=1), "lower_diag": np.tril, "lower": partial(np.tril, k=-1),
}  # fmt: skip


@covers("TRI")
@pytest.mark.parametrize("kind", TRIANGLES)
def test_triangles(kind):
    for (n, *outer), dtype in zip([(1,), (7,), (3, 4), (33, 2, 3), (0,)], itertools.cycle([*FLOATS, "int32"])):
        layouts = ("whole", "padded", "transposed")
        for layout in layouts if dtype != "int32" else ("whole",):
            x = real(*outer, n, n, low=-9, high=9, dtype=dtype, layout=layout)
            check(partial(gb.ops.tri, kind=kind), [x], TRIANGLES[kind], EXACT)


def test_triangles_as_in_numpy(ctx):
    x = ctx.tensor((4, 4))
    assert gb.ops.tril(x, -1).op == gb.ops.triu(x).op == "TRI"
    with pytest.raises(gb.errors.InvalidArgumentError, match="k must be one of 0, 1, not 2"):
        gb.ops.triu(x, 2)
    with pytest.raises(gb.errors.InvalidArgumentError, match="must be square"):
        gb.ops.tril(ctx.tensor((3, 4)))


@covers("SOLVE_TRI")
def test_solving_with_a_lower_triangle():
    for n, m, *outer in [(1, 1), (5, 3), (64, 64, 2, 3), (33, 130), (17, 1, 4), (0, 3), (3, 0)]:
        a = real(*outer, n, n, low=-0.2, high=0.2)
        a.values[...] += np.eye(n, dtype=np.float32) * 1.5
        b = real(*outer, n, m, layout="padded" if m else "whole")
        check(
            gb.ops.solve_tri,
            [a, b],
            lambda a, b: np.linalg.solve(np.tril(a), b) if b.size else np.zeros(b.shape),
            Tolerance(terms=64, n=4 * n),
            magnitude=lambda a, b: np.full(b.shape, 4.0 + 8 * b.max(initial=0)),
        )
    poison = array([[2.0, np.nan], [1.0, 4.0]])
    check(gb.ops.solve_tri, [poison, array([[2.0], [9.0]])], lambda a, b: np.array([[1.0], [2.0]]), EXACT)


@covers("FILL")
def test_fill():
    for shape, dtype in zip([*SHAPES, *EMPTY, (3, 1100)], itertools.cycle(FLOATS)):
        x = [real(*shape, dtype=dtype)]
        check(lambda a: gb.ops.fill(a, 0.5), x, lambda a: np.full(a.shape, 0.5), EXACT)
        check(lambda a: gb.ops.fill(a, 0.5, inplace=True), x, lambda a: np.full(a.shape, 0.5), EXACT, writes=(0,))
    check(lambda a: gb.ops.fill(a, 2.0), [array([np.nan, 1.0])], lambda a: np.full(2, 2.0), EXACT)


@covers("ARANGE")
@pytest.mark.parametrize("numbers", [(0, 1, 0.4), (3, -2, -0.5), (-1.5, 100000, 1), (5, 6, 10)])
def test_arange(numbers):
    start, stop, step = numbers
    f = np.float32
    count = int(np.ceil((f(stop) - f(start)) / f(step)))
    want = float(f(start)) + float(f(step)) * np.arange(count)
    check(lambda x: gb.ops.arange(start, stop, step, context=x.context), [real(1)], lambda x: want, Tolerance(terms=1))


def test_arange_refuses_empty_ranges(ctx):
    for numbers in [(1, 1), (1, 0), (0, 1, -1), (0, 1, 0), (0, float("inf")), (float("nan"), 1)]:
        with pytest.raises(gb.errors.InvalidArgumentError, match="no values between start"):
            gb.ops.arange(*numbers, context=ctx)
    assert gb.ops.arange(5, context=ctx).shape == (5,)


@covers("TIMESTEP_EMBEDDING")
def test_timestep_embedding():
    for n, dim, period in [(1, 256, 10000), (7, 5, 100), (3, 1, 10000), (0, 4, 10), (300, 320, 10000)]:
        half = dim // 2

        def embed(t, dim=dim, half=half, period=period):
            angle = t[:, None] * float(period) ** (-np.arange(half) / max(half, 1))
            return np.concatenate([np.cos(angle), np.sin(angle), np.zeros((len(t), dim % 2))], 1)

        check(
            partial(gb.ops.timestep_embedding, dim=dim, max_period=period),
            [real(n, low=0, high=1000)],
            embed,
            Tolerance(terms=2),
            magnitude=lambda t, dim=dim: np.ones((len(t), dim)),
        )


@covers("TOP_K")
@pytest.mark.parametrize("dtype", FLOATS)
def test_unsorted_top_k_finds_the_largest(dtype):
    shapes = [(1, 1), (3, 5, 3), (2, 128, 8), (2, 2, 200, 200), (4, 1000, 64), (1, 30000, 2048), (0, 4, 2)]
    for (*outer, n, k), layout in zip(shapes, itertools.cycle(ALL_LAYOUTS)):
        x = real(*outer, n, dtype=dtype, layout=layout)
        best = np.sort(x.exact, -1)[..., n - k :]

        def found(a, k=k):
            return gb.ops.top_k(a, k, sorted=False)

        run_top_k(found, x, best)


def run_top_k(build, given, best):
    for label, backend in [*cpus(), ("SIM", sim())]:
        built = Built(build, [given], backend)
        at = built.compute(backend)
        assert at.dtype == np.int32 and at.shape == best.shape, label
        assert all(len(set(row)) == len(row) for row in at.reshape(-1, at.shape[-1])), label
        np.testing.assert_array_equal(np.sort(np.take_along_axis(given.exact, at.astype(int), -1), -1), best, label)


@covers("TOP_K")
def test_unsorted_top_k_of_equal_elements_and_nan():
    x = array([[np.nan, 1.0, np.nan, 2.0, 2.0, 2.0, -np.inf]])
    run_top_k_set(x, 2, {3, 4})
    run_top_k_set(x, 4, {1, 3, 4, 5})
    run_top_k_set(x, 6, {0, 1, 3, 4, 5, 6})


def run_top_k_set(given, k, want):
    for label, backend in cpus():
        assert set(Built(lambda a: gb.ops.top_k(a, k, sorted=False), [given], backend).compute(backend)[0]) == want, (
            label
        )
