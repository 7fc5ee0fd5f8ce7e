"""Python operators and indexing of tensors mean what they mean in NumPy."""

from __future__ import annotations

import itertools
import operator

import numpy as np
import pytest

import ggml_backend as gb
from op_harness import ALL_LAYOUTS, EXACT, FLOATS, Tolerance, array, check, covers, real, refuses

OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
# NumPy's broadcasting, in both directions and in both at once
BROADCASTS = [
    ((1,), (1,)), ((5,), (5,)), ((5,), (1,)), ((1,), (5,)), ((3, 5), (5,)), ((5,), (3, 5)), ((3, 5), (3, 1)),
    ((3, 1), (3, 5)), ((3, 1), (1, 5)),
    ((1, 5), (3, 1)), ((3, 1), (5,)), ((2, 3, 4), (3, 4)), ((3, 4), (2, 3, 4)), ((2, 1, 4), (1, 3, 1)),
    ((2, 3, 4, 5), (3, 1, 5)), ((1, 3, 1, 5), (2, 1, 4, 1)),
    ((4,), (2, 3, 1, 1)), ((1, 1), (7,)), ((2, 1, 33), (3, 33)), ((), (3, 5)), ((3, 5), ()), ((), ()), ((0,), (1,)),
    ((3, 0), (1,)), ((1,), (3, 0)),
]  # fmt: skip


@covers("ADD", "SUB", "MUL", "DIV")
@pytest.mark.parametrize("symbol", OPERATORS)
def test_binary_operators_broadcast(symbol):
    op = OPERATORS[symbol]
    for one, two in BROADCASTS:
        check(op, [real(*one, low=0.5), real(*two, low=0.5)], op, Tolerance(1))
    for one, two in itertools.product(ALL_LAYOUTS, ALL_LAYOUTS):
        check(op, [real(3, 1, 5, low=0.5, layout=one), real(4, 5, low=0.5, layout=two)], op, Tolerance(1), on_sim=False)


@covers("ADD", "SUB", "MUL", "DIV", "SCALE")
@pytest.mark.parametrize("symbol", OPERATORS)
@pytest.mark.parametrize("other",
 [2, 0.5, -3.25, np.float32(1.5), np.arange(1, 6, dtype=np.float32), np.ones((3, 1), np.float32) * 2,
  [1.0, 2, 3, 4, 5]],
                         ids=lambda v: type(v).__name__ + str(np.shape(v)))  # fmt: skip
def test_binary_operators_with_numbers_and_arrays(symbol, other):
    op = OPERATORS[symbol]
    x = real(3, 5, low=0.5)
    value = np.asarray(other, np.float64)
    check(lambda t: op(t, other), [x], lambda v: op(v, value), Tolerance(2))
    check(lambda t: op(other, t), [x], lambda v: op(value, v), Tolerance(2))


@pytest.mark.parametrize("symbol", OPERATORS)
def test_shapes_that_do_not_broadcast_are_refused(symbol):
    for one, two in (((3,), (4,)), ((3, 5), (3,)), ((2, 3, 5), (2, 5)), ((0,), (3,))):
        refuses(OPERATORS[symbol], [real(*one), real(*two)], gb.errors.InvalidArgumentError)


@covers("NEG", "ABS", "SQR", "SQRT")
def test_unary_operators():
    x = real(3, 5, layout="transposed")
    check(operator.neg, [x], np.negative, EXACT)
    check(abs, [x], np.abs, EXACT)
    check(lambda t: t**2, [x], np.square, Tolerance(1))
    check(lambda t: t**0.5, [real(3, 5, low=0)], np.sqrt, Tolerance(1))
    check(lambda t: +t * 1, [x], lambda v: v, EXACT)


# ------------------------------------------------------------------------------------------------------ matrix products

# every kind of pair: vectors, matrices, batches on either side, batches of one, sizes of one
PRODUCTS = [
    ((1,), (1,)), ((5,), (5,)), ((3, 5), (5,)), ((5,), (5, 3)), ((3, 5), (5, 4)), ((1, 5), (5, 1)), ((3, 1), (1, 4)),
    ((1, 1), (1, 1)), ((2, 3, 5), (5,)),
    ((5,), (2, 5, 3)), ((2, 3, 5), (5, 4)), ((3, 5), (2, 5, 4)), ((2, 3, 5), (2, 5, 4)), ((1, 3, 5), (2, 5, 4)),
    ((2, 3, 5), (1, 5, 4)), ((2, 3, 4, 5), (5,)),
    ((5,), (2, 3, 5, 4)), ((2, 3, 4, 5), (5, 6)), ((4, 5), (2, 3, 5, 6)), ((2, 3, 4, 5), (2, 3, 5, 6)),
    ((2, 3, 4, 5), (3, 5, 6)), ((3, 4, 5), (2, 3, 5, 6)),
    ((2, 1, 4, 5), (1, 3, 5, 6)), ((1, 3, 4, 5), (2, 1, 5, 6)), ((2, 1, 4, 5), (3, 5, 6)), ((17, 33), (33, 65)),
    ((1, 1, 1, 5), (2, 3, 5, 6)), ((2, 1, 4, 5), (2, 3, 5, 6)),
]  # fmt: skip


@covers("MUL_MAT")
@pytest.mark.parametrize(("one", "two"), PRODUCTS, ids=str)
def test_matmul(one, two):
    for y1, y2 in [
        ("whole", "whole"),
        ("padded", "stepped"),
        ("permuted", "transposed"),
        ("transposed", "permuted"),
        ("offset", "padded"),
    ]:
        inputs = [real(*one, layout=y1), real(*two, layout=y2)]
        check(operator.matmul, inputs, np.matmul, Tolerance(n=one[-1]), magnitude=np.matmul)


@covers("MUL_MAT")
def test_matmul_all_layouts():
    for y1, y2 in itertools.product(ALL_LAYOUTS, ALL_LAYOUTS):
        for one, two in (((2, 3, 5), (2, 5, 4)), ((3, 5), (5, 4)), ((2, 1, 3, 5), (2, 5, 4))):
            inputs = [real(*one, layout=y1), real(*two, layout=y2)]
            check(operator.matmul, inputs, np.matmul, Tolerance(n=5), magnitude=np.matmul, on_sim=False)


@covers("MUL_MAT")
@pytest.mark.parametrize("weights", FLOATS)
def test_matmul_with_transposed_weights_copies_nothing(weights):
    inputs = [real(6, 9), real(4, 9, dtype=weights)]
    tolerance = Tolerance(n=9)
    node = check(lambda x, w: x @ w.T, inputs, lambda x, w: x @ w.T, tolerance, magnitude=lambda x, w: x @ w.T)
    assert node.op == "MUL_MAT"
    assert "CONT" not in {s.op for s in node.sources}
    batched = [real(2, 6, 9), real(2, 4, 9, dtype=weights)]
    check(
        lambda x, w: x @ w.swapaxes(-1, -2),
        batched,
        lambda x, w: x @ w.swapaxes(-1, -2),
        tolerance,
        magnitude=lambda x, w: x @ w.swapaxes(-1, -2),
    )
    check(lambda x, w: x @ w.swapaxes(-1, -2)[0], batched, lambda x, w: x @ w.swapaxes(-1, -2)[0], tolerance,
     magnitude=lambda x, w: x @ w.swapaxes(
        -1, -2)[0])  # fmt: skip


@covers("MUL_MAT")
def test_matmul_with_arrays():
    w, v = (np.random.default_rng(3).random(s).astype(np.float32) for s in ((5, 4), 3))
    check(
        lambda t: t @ w,
        [real(3, 5)],
        lambda x: x @ w.astype(np.float64),
        Tolerance(n=5),
        magnitude=lambda x: x @ np.abs(w),
    )
    check(
        lambda t: v @ t,
        [real(3, 5)],
        lambda x: v.astype(np.float64) @ x,
        Tolerance(n=3),
        magnitude=lambda x: np.abs(v) @ x,
    )


# -------------------------------------------------------------------------------------------------- indexing and shapes

N = None
INDICES = [
    0, -1, 1, slice(None), slice(1, 3), slice(-2, None), slice(None, None, 2), slice(1, None, 2), slice(5, 2),
    slice(0, 0), Ellipsis, N, (), (0, 1), (0, -1, 2),
    (slice(None), 1), (Ellipsis, 0), (Ellipsis, -1), (Ellipsis, slice(1, 3)), (Ellipsis, slice(None, None, 2)),
    (Ellipsis, slice(1, None, 3)), (0, Ellipsis, 1),
    (N, 0), (slice(None), N, 1), (Ellipsis, N), (slice(1, 2), slice(None), slice(2, 3)), (0, slice(None), slice(1, 4)),
    (slice(None, None, 2), 0, slice(0, 3, 2)),
    (1, 1, 1), (slice(None), slice(None, None, 2), slice(1, 2)), (np.int64(1), slice(None), np.int32(0)),
    (N, Ellipsis, 0), slice(-100, 100), (Ellipsis, N, 0), (slice(None), slice(-2, None)), slice(100, None),
]  # fmt: skip


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_indexing(index):
    """Indexing equals NumPy for each layout of the tensor."""
    for layout in ALL_LAYOUTS:
        for shape in ((3, 4, 5), (2, 3, 4)):
            x = real(*shape, layout=layout)
            check(lambda t: t[index] * 1, [x], lambda v: v[index], EXACT, on_sim=layout == "padded")
            check(lambda t: gb.ops.cont(t[index]), [x], lambda v: v[index], EXACT, on_sim=False)


@pytest.mark.parametrize("dtype", ["float16", "int32", "bfloat16", "int8"])
def test_indexing_any_dtype(dtype):
    x = array(np.arange(60).reshape(3, 4, 5), dtype)
    for index in INDICES:
        check(lambda t, i=index: gb.ops.cont(t[i]), [x], lambda v, i=index: v[i], EXACT, on_sim=False)


def test_indexing_in_chains():
    x = real(4, 6, 8)
    check(lambda t: t[1:][:, 2:5][..., 1:7:2] + 0.0, [x], lambda v: v[1:][:, 2:5][..., 1:7:2], EXACT)
    check(lambda t: t.T[2:6].T[::2] + 0.0, [x], lambda v: v.T[2:6].T[::2], EXACT)
    check(lambda t: t.transpose(1, 2, 0)[3, 1:, :2] + 0.0, [x], lambda v: v.transpose(1, 2, 0)[3, 1:, :2], EXACT)
    check(lambda t: t[2][3][4] + 0.0, [x], lambda v: v[2][3][4], EXACT)
    check(
        lambda t: sum(row[1] for row in t[0]),
        [x],
        lambda v: sum(row[1] for row in v[0]),
        Tolerance(8),
        magnitude=lambda v: 12.0,
    )


def test_index_errors():
    for index, error in (
        (3, IndexError),
        (-4, IndexError),
        ((0, 0, 5), IndexError),
        ((0, 0, 0, 0), ValueError),
        ("a", TypeError),
        (1.5, TypeError),
        (slice(None, None, -1), ValueError),
        ((Ellipsis, Ellipsis), ValueError),
        ([0, 1], TypeError),
    ):
        refuses(lambda t, i=index: gb.ops.cont(t[i]), [real(3, 4, 5)], error)


@covers("RESHAPE", "PERMUTE", "TRANSPOSE", "CONT")
@pytest.mark.parametrize("layout", ALL_LAYOUTS)
def test_shapes(layout):
    x = real(2, 3, 4, layout=layout)
    for shape in ((24,), (6, 4), (2, -1), (4, 3, 2), (-1,), (1, 2, 3, 4), (2, 2, 3, 2)):
        check(lambda t, s=shape: t.reshape(s), [x], lambda v, s=shape: v.reshape(s), EXACT)
        check(lambda t, s=shape: t.reshape(*s), [x], lambda v, s=shape: v.reshape(*s), EXACT, on_sim=False)
    for order in itertools.permutations(range(3)):
        check(lambda t, o=order: t.transpose(o), [x], lambda v, o=order: v.transpose(o), EXACT)
        check(
            lambda t, o=order: t.transpose(*o).contiguous(), [x], lambda v, o=order: v.transpose(o), EXACT, on_sim=False
        )
        check(
            lambda t, o=order: gb.ops.relu(t.transpose(o)),
            [x],
            lambda v, o=order: np.maximum(v.transpose(o), 0),
            EXACT,
            on_sim=False,
        )
    check(lambda t: t.T, [x], lambda v: v.T, EXACT)
    check(lambda t: t.swapaxes(0, -1), [x], lambda v: v.swapaxes(0, -1), EXACT)
    y = real(2, 3, 4, 5, layout=layout)
    for order in itertools.permutations(range(4)):
        check(lambda t, o=order: t.transpose(o), [y], lambda v, o=order: v.transpose(o), EXACT, on_sim=False)
