"""Reductions and norms along any axis, grouped products, and pools of batches, against NumPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import ggml_backend as gb

SHAPES = [(5,), (3, 4), (2, 3, 4), (2, 3, 4, 5)]
AXES = [(s, axes) for s in SHAPES for n in range(1, len(s) + 1) for axes in itertools.combinations(range(len(s)), n)]


@pytest.fixture
def given(ctx, rng):
    def make(*shape):
        array = rng.standard_normal(shape).astype(np.float32)
        return array, ctx.constant(array)

    return make


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("name", ["sum", "mean"])
@pytest.mark.parametrize(("shape", "axes"), AXES)
def test_sums_and_means(given, computed, name, shape, axes, keepdims):
    array, x = given(*shape)
    wanted = getattr(np, name)(array.astype(np.float64), axis=axes, keepdims=keepdims)
    for axis in (axes, tuple(i - len(shape) for i in reversed(axes)), *(axes if len(axes) == 1 else ())):
        got = computed(getattr(gb.ops, name)(x, axis, keepdims=keepdims))
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_reductions_with_keepdims(given, computed):
    array, x = given(2, 3, 4)
    got = computed(gb.ops.sum(x, keepdims=True))
    assert got.shape == (1, 1, 1)
    np.testing.assert_allclose(got.item(), array.sum(dtype=np.float64), rtol=1e-5)


@pytest.mark.parametrize(("shape", "axis"), [(s, i) for s in SHAPES for i in range(-len(s), len(s))])
def test_along_an_axis(given, computed, shape, axis):
    array, x = given(*shape)
    wide = array.astype(np.float64)
    e = np.exp(wide - wide.max(axis=axis, keepdims=True))
    np.testing.assert_allclose(
        computed(gb.ops.soft_max(x, axis=axis)), e / e.sum(axis=axis, keepdims=True), rtol=1e-4, atol=1e-6
    )
    centred = wide - wide.mean(axis=axis, keepdims=True)
    np.testing.assert_allclose(
        computed(gb.ops.norm(x, axis=axis)),
        centred / np.sqrt((centred**2).mean(axis=axis, keepdims=True) + 1e-5),
        rtol=1e-4,
        atol=1e-5,
    )
    np.testing.assert_allclose(
        computed(gb.ops.rms_norm(x, 1e-3, axis=axis)),
        wide / np.sqrt((wide**2).mean(axis=axis, keepdims=True) + 1e-3),
        rtol=1e-4,
        atol=1e-5,
    )
    np.testing.assert_array_equal(computed(gb.ops.argmax(x, axis=axis)), array.argmax(axis=axis))
    np.testing.assert_array_equal(
        computed(gb.ops.argmax(x, axis=axis, keepdims=True)), array.argmax(axis=axis, keepdims=True)
    )
    np.testing.assert_array_equal(computed(gb.ops.argsort(x, axis=axis)), array.argsort(axis=axis))


def test_a_scaled_soft_max_along_the_first_axis(given, computed):
    array, x = given(6, 5)
    e = np.exp(3.0 * array.astype(np.float64))
    np.testing.assert_allclose(computed(gb.ops.soft_max(x, scale=3.0, axis=0)), e / e.sum(axis=0), rtol=1e-4, atol=1e-6)


def test_no_copy_along_the_last_axis(given):
    _, x = given(3, 4)
    for y in (gb.ops.soft_max(x, axis=1), gb.ops.norm(x, axis=1), gb.ops.argsort(x, axis=1)):
        assert y.sources[0] == x


def test_sums_over_no_elements(ctx, computed):
    x = ctx.constant(np.zeros((2, 0, 3), np.float32))
    assert (computed(gb.ops.sum(x, axis=1)) == np.zeros((2, 3))).all()


@pytest.mark.parametrize(("a", "b"), [((8,), (2,)), ((8,), (4,)), ((6, 8), (3, 2)), ((2, 8), (2,)), ((8,), (1,))])
def test_heads_in_groups(given, computed, a, b):
    """Neighbouring heads of the first operand share one head of the second."""
    q, x = given(*a, 3, 5)
    k, y = given(*b, 5, 4)
    axes = k.astype(np.float64)
    for i, (n, m) in enumerate(zip(a[::-1], b[::-1], strict=False)):
        axes = np.repeat(axes, n // m, axis=axes.ndim - 3 - i)
    product = x @ y
    assert product.shape == (*a, 3, 4)
    np.testing.assert_allclose(computed(product), q.astype(np.float64) @ axes, rtol=1e-4, atol=1e-5)


def test_the_second_operand_cannot_have_more_heads(given):
    _, x = given(2, 3, 5)
    _, y = given(8, 5, 4)
    with pytest.raises(gb.errors.InvalidArgumentError, match=r"the batch axes \(2,\) and \(8,\) do not broadcast"):
        x @ y


@pytest.mark.parametrize("op", ["max", "avg"])
def test_pools_of_batches(given, computed, op):
    array, x = given(2, 3, 6, 8)
    windows = array.reshape(2, 3, 3, 2, 4, 2)
    wanted = windows.max(axis=(3, 5)) if op == "max" else windows.mean(axis=(3, 5))
    got = computed(gb.ops.pool_2d(x, op, 2))
    assert got.shape == (2, 3, 3, 4)
    np.testing.assert_allclose(got, wanted, rtol=1e-5)
    rows = array.reshape(2, 3, 6, 4, 2)
    got = computed(gb.ops.pool_1d(x, op, 2))
    assert got.shape == (2, 3, 6, 4)
    np.testing.assert_allclose(got, rows.max(axis=4) if op == "max" else rows.mean(axis=4), rtol=1e-5)


def test_a_mask_along_the_last_axis_by_its_number(given, computed):
    array, x = given(2, 3, 4)
    mask, m = given(3, 4)
    e = np.exp((array + mask).astype(np.float64))
    wanted = e / e.sum(-1, keepdims=True)
    for axis in (-1, 2):
        np.testing.assert_allclose(computed(gb.ops.soft_max(x, m, axis=axis)), wanted, rtol=1e-4, atol=1e-6)
