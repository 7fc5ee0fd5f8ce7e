"""Matrix products against NumPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import ggml_backend as gb
from op_harness import ALL_LAYOUTS, FLOATS, LAYOUTS, Tolerance, array, check, covers, real, refuses, whole

# Dtypes of products. b keeps float32 precision, but bfloat16 weights may round it unless full
# precision is requested.
TAKES = [
    ("float32", "float32"),
    ("float16", "float32"),
    ("float16", "float16"),
    ("bfloat16", "float32"),
    ("bfloat16", "bfloat16"),
]
REFUSES = [p for p in itertools.product(FLOATS, FLOATS) if p not in TAKES]


def rows_by_rows(a, b):
    """b @ a.T. Consecutive batches of b share one batch of a."""
    a = a.reshape((1,) * (max(a.ndim, b.ndim, 2) - a.ndim) + a.shape)
    flat = b.reshape((1,) * (a.ndim - b.ndim) + b.shape)
    for axis in range(a.ndim - 2):
        a = np.repeat(a, flat.shape[axis] // a.shape[axis], axis)
    y = flat @ a.swapaxes(-1, -2)
    return y.reshape(*b.shape[:-1], y.shape[-1]) if b.ndim > 1 else y.reshape(y.shape[-1])


def tolerance(k, weights="float32", data="float32"):
    """A sum of k products."""
    return Tolerance(n=k, rounded=1.0 if (weights, data) == ("bfloat16", "float32") else 0.0, rounded_to="bfloat16")


# (a's batch, b's batch), rows of a, rows of b, length: one, odd, multiples of vectors, larger than the blocks of the
# product
SIZES = [
    ((), (), 1, 1, 1), ((), (), 1, 1, 7), ((), (), 5, 1, 33), ((), (), 1, 9, 64), ((), (), 3, 5, 129),
    ((), (), 17, 13, 31), ((2,), (2,), 4, 3, 16),
    ((1,), (5,), 7, 2, 40), ((2,), (6,), 3, 1, 8), ((1, 2), (3, 4), 5, 7, 19), ((3, 1), (3, 4), 6, 5, 32),
    ((2, 2), (2, 2), 1, 1, 65), ((), (2, 3), 8, 8, 8),
    ((), (), 32, 16, 64), ((), (), 65, 33, 100),
]  # fmt: skip


@covers("MUL_MAT")
@pytest.mark.parametrize(("weights", "data"), TAKES)
def test_mul_mat(weights, data):
    layouts = itertools.cycle(itertools.product(LAYOUTS, LAYOUTS))
    for batch_a, batch_b, m, n, k in SIZES:
        one, two = next(layouts)
        inputs = [real(*batch_a, m, k, dtype=weights, layout=one), real(*batch_b, n, k, dtype=data, layout=two)]
        check(
            gb.ops.mul_mat, inputs, rows_by_rows, tolerance(k, weights, data), magnitude=rows_by_rows, dtype="float32"
        )
        check(
            lambda a, b: gb.ops.mul_mat(a, b, "f32"),
            inputs,
            rows_by_rows,
            tolerance(k),
            magnitude=rows_by_rows,
            dtype="float32",
            on_sim=False,
        )


@covers("MUL_MAT")
@pytest.mark.parametrize(("weights", "data"), TAKES)
def test_mul_mat_layouts(weights, data):
    """Both operands are permuted views, like heads of attention. Rows may have gaps."""
    for one, two in itertools.product(LAYOUTS, LAYOUTS):
        inputs = [real(3, 2, 5, 19, dtype=weights, layout=one), real(3, 4, 7, 19, dtype=data, layout=two)]
        check(
            gb.ops.mul_mat,
            inputs,
            rows_by_rows,
            tolerance(19, weights, data),
            magnitude=rows_by_rows,
            dtype="float32",
            on_sim=one == two,
        )


@covers("MUL_MAT")
@pytest.mark.parametrize(("weights", "data"), TAKES)
@pytest.mark.parametrize(
    ("m", "n", "k"), [(257, 130, 515), (400, 1, 1031), (1, 400, 1031), (33, 65, 2500), (128, 256, 64)]
)
def test_mul_mat_large(weights, data, m, n, k):
    """Larger than every block size, with several threads; also a single column or row."""
    inputs = [real(m, k, dtype=weights, layout="padded"), real(n, k, dtype=data)]
    check(
        gb.ops.mul_mat,
        inputs,
        rows_by_rows,
        tolerance(k, weights, data),
        magnitude=rows_by_rows,
        dtype="float32",
        on_sim=False,
    )


@covers("MUL_MAT")
def test_mul_mat_many_small():
    inputs = [real(4, 8, 33, 16, layout="permuted"), real(4, 16, 21, 16, layout="permuted")]
    check(gb.ops.mul_mat, inputs, rows_by_rows, tolerance(16), magnitude=rows_by_rows)


@covers("MUL_MAT")
def test_mul_mat_is_exact_on_small_integers():
    """Exact comparisons find errors below a tolerance."""
    for m, n, k in ((3, 5, 7), (64, 64, 64), (65, 31, 129), (130, 70, 300)):
        for weights, data in TAKES:
            a, b = whole(m, k, low=-3, high=4), whole(n, k, low=-3, high=4)
            inputs = [array(a.values, weights), array(b.values, data)]
            check(gb.ops.mul_mat, inputs, rows_by_rows, Tolerance(exact=True), dtype="float32", on_sim=False)


@covers("MUL_MAT")
def test_mul_mat_of_nothing():
    """A sum without terms is zero."""
    check(gb.ops.mul_mat, [real(3, 0), real(2, 0)], rows_by_rows, Tolerance(exact=True))
    check(gb.ops.mul_mat, [real(0, 4), real(2, 4)], rows_by_rows, Tolerance(exact=True))
    check(gb.ops.mul_mat, [real(3, 4), real(0, 4)], rows_by_rows, Tolerance(exact=True))


@covers("MUL_MAT")
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_mul_mat_special_values_stay_in_their_row(value):
    """A NaN in one row of a affects one column of the result, and padding of blocks affects
    nothing."""
    for m, n, k in ((1, 1, 1), (5, 3, 17), (33, 18, 70)):
        a, b = np.ones((m, k)), np.ones((n, k))
        a[m - 1, k - 1] = value
        want = np.full((n, m), float(k))
        want[:, m - 1] = value
        for dtype in FLOATS:
            check(
                gb.ops.mul_mat,
                [array(a, dtype), array(b)],
                lambda x, y, w=want: w,
                Tolerance(exact=True),
                dtype="float32",
            )


@pytest.mark.parametrize(("weights", "data"), REFUSES)
def test_mul_mat_refuses(weights, data):
    refuses(gb.ops.mul_mat, [real(3, 8, dtype=weights), real(2, 8, dtype=data)])


def test_mul_mat_refuses_a_transposed():
    refuses(gb.ops.mul_mat, [real(6, 8, layout="transposed"), real(2, 8)], gb.errors.InvalidArgumentError)
    refuses(gb.ops.mul_mat, [real(2, 3, 8), real(3, 3, 8)], gb.errors.InvalidArgumentError)


# ----------------------------------------------------------------------------------------------------------- mul_mat_id


@covers("MUL_MAT_ID")
@pytest.mark.parametrize(("weights", "data"), TAKES)
def test_mul_mat_id(weights, data):
    for experts, m, n, k, choices in (
        (1, 1, 1, 1, 1),
        (2, 5, 3, 7, 1),
        (3, 4, 9, 33, 2),
        (8, 17, 30, 64, 3),
        (4, 70, 50, 300, 2),
    ):
        for id, layout in ((0, "whole"), (choices - 1, "padded")):

            def build(ids, b, *matrices, id=id):
                return gb.ops.mul_mat_id(matrices, ids, id, b)

            def reference(ids, b, *matrices, id=id):
                return np.stack([matrices[i] @ row for i, row in zip(ids[:, id], b, strict=True)])

            matrices = [real(m, k, dtype=weights, layout=layout) for _ in range(experts)]
            inputs = [
                whole(n, choices, low=0, high=experts, layout=layout),
                real(n, k, dtype=data, layout=layout),
                *matrices,
            ]
            check(build, inputs, reference, tolerance(k, weights, data), magnitude=reference, dtype="float32")


@covers("MUL_MAT_ID")
def test_mul_mat_id_with_transposed_ids_and_idle_experts():
    def build(ids, b, *matrices):
        return gb.ops.mul_mat_id(matrices, ids, 1, b)

    def reference(ids, b, *matrices):
        return np.stack([matrices[i] @ row for i, row in zip(ids[:, 1], b, strict=True)])

    matrices = [real(6, 10) for _ in range(5)]
    inputs = [array([[0, 3], [1, 3], [2, 3], [0, 1]], "int32", "transposed"), real(4, 10), *matrices]
    check(build, inputs, reference, tolerance(10), magnitude=reference, dtype="float32")


@pytest.mark.parametrize("index", [-1, 2, 2**31 - 1])
def test_mul_mat_id_out_of_range(index):
    def build(ids, b, *matrices):
        return gb.ops.mul_mat_id(matrices, ids, 0, b)

    refuses(
        build, [array([[0], [index], [1]], "int32"), real(3, 8), real(4, 8), real(4, 8)], gb.errors.InvalidArgumentError
    )


# ------------------------------------------------------------------------------------------------------------- out_prod


def columns_by_columns(a, b):
    """b.T @ a. Consecutive batches of b share one batch of a."""
    for axis in range(a.ndim - 2):
        a = np.repeat(a, b.shape[axis] // a.shape[axis], axis)
    return b.swapaxes(-1, -2) @ a


@covers("OUT_PROD")
@pytest.mark.parametrize(("weights", "data"), TAKES)
def test_out_prod(weights, data):
    sizes = [
        ((), 1, 1, 1),
        ((), 5, 1, 7),
        ((), 33, 3, 1),
        ((2,), 4, 5, 6),
        ((2, 3), 7, 9, 5),
        ((), 129, 65, 40),
        ((), 257, 31, 300),
    ]
    every = [(((2, 3), 7, 9, 5), y) for y in ALL_LAYOUTS]
    for (batch, m, n, k), layout in [*zip(sizes, itertools.cycle(ALL_LAYOUTS), strict=False), *every]:
        a = real(*batch, k, m, dtype=weights, layout="whole" if layout == "transposed" else layout)
        inputs = [a, real(*batch, k, n, dtype=data, layout=layout)]
        check(gb.ops.out_prod, inputs, columns_by_columns, tolerance(k), magnitude=columns_by_columns, dtype="float32")


@covers("OUT_PROD")
def test_out_prod_shares_batches():
    inputs = [real(1, 2, 5, 3), real(2, 6, 5, 4)]
    check(gb.ops.out_prod, inputs, columns_by_columns, tolerance(5), magnitude=columns_by_columns)
