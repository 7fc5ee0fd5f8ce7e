"""Convolution, pooling, resampling and padding against NumPy. The references are plain loops over the kernel."""

from __future__ import annotations

import math

import numpy as np
import pytest

import ggml_backend as gb
from conftest import fusion
from op_harness import ALL_LAYOUTS, EXACT, FLOATS, LAYOUTS, Tolerance, check, covers, real, refuses, whole


def out_size(n, k, s, p, d):
    return (n + 2 * p - d * (k - 1) - 1) // s + 1


def windows(x, k, s, p, d):
    """x (n, c, h, w) as (n, oh, ow, c, kh, kw)"""
    n, c, h, w = x.shape
    oh, ow = (out_size(v, k[i], s[i], p[i], d[i]) for i, v in enumerate((h, w)))
    padded = np.zeros((n, c, h + 2 * p[0], w + 2 * p[1]))
    padded[:, :, p[0] : p[0] + h, p[1] : p[1] + w] = x
    out = np.empty((n, oh, ow, c, *k))
    for i, j in np.ndindex(oh, ow):
        for u, v in np.ndindex(*k):
            out[:, i, j, :, u, v] = padded[:, :, i * s[0] + u * d[0], j * s[1] + v * d[1]]
    return out


def conv2d(kernel, x, s=(1, 1), p=(0, 0), d=(1, 1)):
    return np.einsum("nijcuv,ocuv->noij", windows(x, kernel.shape[2:], s, p, d), kernel)


# kernel (oc, ic, kh, kw), data (n, ic, h, w), stride, padding, dilation
CASES_2D = [
    ((1, 1, 1, 1), (1, 1, 1, 1), (1, 1), (0, 0), (1, 1)), ((2, 3, 2, 3), (1, 3, 7, 9), (1, 1), (0, 0), (1, 1)),
    ((4, 3, 3, 3), (1, 3, 8, 8), (2, 1), (1, 0), (1, 1)), ((3, 2, 3, 2), (3, 2, 9, 8), (1, 3), (2, 1), (2, 1)),
    ((5, 1, 1, 5), (2, 1, 3, 11), (1, 2), (0, 2), (1, 2)), ((6, 4, 3, 3), (1, 4, 5, 5), (1, 1), (1, 1), (2, 2)),
    ((17, 8, 3, 3), (2, 8, 19, 21), (1, 1), (1, 1), (1, 1)), ((3, 2, 2, 2), (4, 2, 6, 6), (2, 2), (0, 0), (1, 1)),
]  # fmt: skip


@covers("IM2COL")
@pytest.mark.parametrize("data", FLOATS)
@pytest.mark.parametrize("case", CASES_2D, ids=str)
def test_im2col(case, data):
    """(n, oh, ow, ic * kh * kw), rounded to float16."""
    k, x, s, p, d = case
    for layout in ALL_LAYOUTS:

        def reference(kernel, v, k=k, s=s, p=p, d=d):
            out = windows(v, k[2:], s, p, d)
            return out.reshape(*out.shape[:3], -1).astype(np.float16).astype(np.float64)

        inputs = [real(*k, dtype="float16"), real(*x, dtype=data, layout=layout)]
        check(
            lambda a, b: gb.ops.im2col(a, b, s, p, d),
            inputs,
            reference,
            EXACT,
            dtype="float16",
            on_sim=layout == "padded",
        )


CASES_1D = [
    ((1, 1, 1), (1, 1, 1), 1, 0, 1), ((4, 3, 3), (1, 3, 9), 1, 0, 1), ((4, 3, 3), (2, 3, 10), 2, 1, 1),
    ((2, 5, 4), (3, 5, 17), 3, 2, 2),
    ((6, 2, 5), (1, 2, 5), 1, 4, 1), ((33, 16, 3), (2, 16, 70), 1, 1, 1),
]  # fmt: skip


def one_d(x):
    return x[:, :, None, :]


@covers("IM2COL")
@pytest.mark.parametrize("case", CASES_1D, ids=str)
def test_im2col_1d(case):
    k, x, s, p, d = case

    def reference(kernel, v):
        out = windows(one_d(v), (1, k[2]), (1, s), (0, p), (1, d))
        return out.reshape(out.shape[0], out.shape[2], -1).astype(np.float16).astype(np.float64)

    for layout in LAYOUTS:
        inputs = [real(*k, dtype="float16"), real(*x, layout=layout)]
        check(lambda a, b: gb.ops.im2col(a, b, s, p, d, is_2d=False), inputs, reference, EXACT, dtype="float16")


def folded(k, x, s, p, d):
    """Adds rows to an image of shape ``x``, place by place."""

    def fold(kernel, rows):
        n, c, h, w = x
        padded = np.zeros((n, c, h + 2 * p[0], w + 2 * p[1]))
        oh, ow = rows.shape[1:3]
        pieces = rows.reshape(n, oh, ow, c, *k[2:])
        for i, j, u, v in np.ndindex(oh, ow, *k[2:]):
            padded[:, :, i * s[0] + u * d[0], j * s[1] + v * d[1]] += pieces[:, i, j, :, u, v]
        return padded[:, :, p[0] : p[0] + h, p[1] : p[1] + w]

    return fold


@covers("IM2COL_BACK")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", CASES_2D, ids=str)
def test_rows_of_windows_return_to_their_places(case, dtype):
    k, x, s, p, d = case
    rows = (x[0], *windows(np.zeros(x), k[2:], s, p, d).shape[1:3], math.prod(k[1:]))
    for layout in LAYOUTS:
        inputs = [real(*k, dtype="float16"), real(*rows, dtype=dtype, layout=layout)]
        fold = folded(k, x, s, p, d)
        check(
            lambda a, b: gb.ops.im2col_back(a, b, x, s, p, d), inputs, fold, Tolerance(n=math.prod(k[2:])),
            magnitude=fold, dtype="float32", on_sim=layout == "padded",
        )  # fmt: skip


@covers("IM2COL_BACK")
@pytest.mark.parametrize("case", CASES_1D, ids=str)
def test_rows_of_lines_return_to_their_places(case):
    k, x, s, p, d = case
    fold_2d = folded((k[0], k[1], 1, k[2]), (x[0], x[1], 1, x[2]), (1, s), (0, p), (1, d))

    def fold(kernel, rows):
        return fold_2d(kernel, rows[:, None])[:, :, 0]

    length = (x[2] + 2 * p - d * (k[2] - 1) - 1) // s + 1
    inputs = [real(*k, dtype="float16"), real(x[0], length, k[1] * k[2])]
    check(
        lambda a, b: gb.ops.im2col_back(a, b, x, s, p, d, is_2d=False), inputs, fold, Tolerance(n=k[2]),
        magnitude=fold, dtype="float32",
    )  # fmt: skip


def products(kernel):
    return math.prod(kernel[1:])


@covers("CONV_2D")
@pytest.mark.parametrize("layout", ["whole", "padded"])
@pytest.mark.parametrize("case", CASES_2D, ids=str)
def test_conv_2d(case, layout):
    k, x, s, p, d = case
    inputs = [real(*k, dtype="float16"), real(*x, layout=layout)]

    def reference(a, b):
        return conv2d(a, b, s, p, d)

    check(
        lambda a, b: gb.ops.conv_2d(a, b, s, p, d),
        inputs,
        reference,
        Tolerance(n=products(k)),
        magnitude=reference,
        dtype="float32",
    )


@covers("CONV_2D")
def test_kernels_of_all_dtypes():
    """float32 kernels also work. bfloat16 is refused."""
    tolerance = Tolerance(n=18)
    check(gb.ops.conv_2d, [real(4, 3, 2, 3), real(2, 3, 5, 7)], conv2d, tolerance, magnitude=conv2d)
    check(gb.ops.conv_1d, [real(4, 3, 2), real(2, 3, 5)], lambda a, b: conv2d(a[:, :, None], one_d(b))[:, :, 0],
     tolerance, magnitude=lambda a, b: conv2d(
        a[:, :, None], one_d(b))[:, :, 0])  # fmt: skip
    refuses(gb.ops.conv_2d, [real(4, 3, 2, 3, dtype="bfloat16"), real(2, 3, 5, 7)])
    refuses(gb.ops.conv_1d, [real(4, 3, 2, dtype="bfloat16"), real(2, 3, 5)])


@covers("CONV_2D", "RESHAPE", "VIEW")
@pytest.mark.parametrize("groups", [1, 3])
def test_conv_1d_of_a_computed_tensor(groups):
    """The graph also computes the data of the convolution."""

    def reference(a, b):
        rows, channels = len(a) // groups, b.shape[-2] // groups
        parts = [
            conv2d(a[g * rows : (g + 1) * rows, :, None], one_d(np.square(b)[:, g * channels : (g + 1) * channels]))
            for g in range(groups)
        ]
        return np.concatenate(parts, 1)[:, :, 0]

    inputs = [real(6, 3 // groups, 2), real(2, 3, 5)]
    node = check(
        lambda k, x: gb.ops.conv_1d(k, gb.ops.sqr(x), groups=groups), inputs, reference, Tolerance(2, n=18),
        magnitude=reference,
    )  # fmt: skip
    assert "SQR" in {t.op for t in node.context.graph(node).nodes}


def exact(*shape):
    """Integers that float16 cannot hold, with sums of products that are exact in float32."""
    return np.random.default_rng(5).integers(-70001, 70001, shape).astype(np.float32)


@pytest.mark.parametrize("kernel", ["float16", "float32"])
def test_convolutions_never_round_float32(kernel):
    """This holds for every dtype of the kernel."""
    small = np.random.default_rng(6).integers(-3, 4, (4, 3, 2, 3)).astype(kernel)
    image, line = exact(2, 3, 7, 8), exact(2, 3, 9)
    ctx = gb.Context()
    k, x, k1, x1, each = map(ctx.constant, (small, image, small[:, :, 0], line, small[:3, :1]))
    double = [v.astype(np.float64) for v in (small, image, line)]
    results = {
        gb.ops.conv_2d(k, x, (2, 1), 1): conv2d(double[0], double[1], (2, 1), (1, 1)),
        gb.ops.conv_2d(k, x, stride="kernel"): conv2d(double[0], double[1], (2, 3)),
        gb.ops.conv_2d(k, x, padding="half"): conv2d(double[0], double[1], p=(1, 1)),
        gb.ops.conv_1d(k1, x1, 2, "half"): conv2d(double[0][:, :, :1], one_d(double[2]), (1, 2), (0, 1))[:, :, 0],
        gb.ops.conv_depthwise_2d(each, x): np.einsum(
            "nijcuv,cuv->ncij", windows(double[1], (2, 3), (1, 1), (0, 0), (1, 1)), double[0][:3, 0]
        ),
        gb.ops.im2col(k, x, dtype="float32"): windows(double[1], (2, 3), (1, 1), (0, 0), (1, 1)).reshape(2, 6, 6, -1),
    }
    with gb.Scheduler(gb.Backend("CPU", n_threads=2)) as scheduler:
        scheduler.compute(ctx.graph(*results))
        for result, expected in results.items():
            assert result.dtype == gb.float32
            np.testing.assert_array_equal(result.numpy(), expected)


@pytest.mark.parametrize("op", [gb.ops.conv_transpose_1d, gb.ops.conv_transpose_2d])
@pytest.mark.parametrize("kernel", ["float16", "float32"])
def test_transposed_convolutions_never_round_float32(op, kernel):
    axes = 1 if op is gb.ops.conv_transpose_1d else 2
    ctx = gb.Context()
    k = ctx.constant(np.ones((1, 1, *(1,) * axes), kernel))
    data = exact(*((1, 5) if axes == 1 else (1, 1, 3, 5)))
    y = op(k, ctx.constant(data))
    with gb.Scheduler(gb.Backend("CPU", n_threads=1)) as scheduler:
        scheduler.compute(ctx.graph(y))
        np.testing.assert_array_equal(y.numpy().reshape(data.shape), data)


@covers("CONV_2D")
def test_conv_2d_named_forms():
    k, x = (4, 3, 2, 3), (2, 3, 8, 9)
    inputs = [real(*k, dtype="float16"), real(*x)]
    tolerance = Tolerance(n=products(k))

    def patches(a, b):
        return conv2d(a, b, s=(2, 3))

    def half(a, b):
        return conv2d(a, b, p=(1, 1))

    check(
        lambda a, b: gb.ops.conv_2d(a, b, stride="kernel"),
        inputs,
        patches,
        tolerance,
        magnitude=patches,
        dtype="float32",
    )
    check(lambda a, b: gb.ops.conv_2d(a, b, padding="half"), inputs, half, tolerance, magnitude=half, dtype="float32")


@covers("CONV_2D")
@pytest.mark.parametrize("case", CASES_1D, ids=str)
def test_conv_1d(case):
    k, x, s, p, d = case
    tolerance = Tolerance(n=products(k))

    def reference(a, b):
        return conv2d(a[:, :, None, :], one_d(b), (1, s), (0, p), (1, d))[:, :, 0]

    def half(a, b):
        return conv2d(a[:, :, None, :], one_d(b), (1, s), (0, k[2] // 2), (1, d))[:, :, 0]

    for layout in ("whole", "padded"):
        inputs = [real(*k, dtype="float16"), real(*x, layout=layout)]
        check(
            lambda a, b: gb.ops.conv_1d(a, b, s, p, d),
            inputs,
            reference,
            tolerance,
            magnitude=reference,
            dtype="float32",
        )
        if x[2] + 2 * (k[2] // 2) > d * (k[2] - 1):
            check(
                lambda a, b: gb.ops.conv_1d(a, b, s, "half", d),
                inputs,
                half,
                tolerance,
                magnitude=half,
                dtype="float32",
            )


@covers("CONV_2D_DW")
@pytest.mark.parametrize(("c", "kernel", "n", "size", "s", "p", "d"), [
    (1, (1, 1), 1, (1, 1), (1, 1), (0, 0), (1, 1)), (3, (2, 3), 1, (8, 9), (1, 1), (0, 0), (1, 1)),
    (4, (3, 3), 2, (7, 9), (2, 1), (1, 1), (1, 1)),
    (5, (3, 2), 3, (9, 7), (1, 2), (2, 0), (2, 3)),
])  # fmt: skip
def test_conv_depthwise_2d(c, kernel, n, size, s, p, d):
    def reference(a, b):
        return np.einsum("nijcuv,cuv->ncij", windows(b, kernel, s, p, d), a[:, 0])

    inputs = [real(c, 1, *kernel, dtype="float16"), real(n, c, *size)]
    check(lambda a, b: gb.ops.conv_depthwise_2d(a, b, s, p, d), inputs, reference,
     Tolerance(n=math.prod(kernel)), magnitude=reference,
          dtype="float32")  # fmt: skip


@covers("CONV_2D")
@pytest.mark.parametrize(("groups", "per", "kernels"), [(2, 3, 4), (3, 1, 2), (7, 1, 1), (4, 5, 3)])
def test_groups_are_separate_convolutions(groups, per, kernels):
    def reference(a, b):
        parts = zip(np.split(a, groups), np.split(b, groups, axis=1), strict=True)
        return np.concatenate([conv2d(k, x, (2, 1), (1, 2)) for k, x in parts], axis=1)

    inputs = [real(groups * kernels, per, 3, 2), real(2, groups * per, 6, 7)]
    tolerance = Tolerance(n=6 * per)
    check(lambda a, b: gb.ops.conv_2d(a, b, (2, 1), (1, 2), groups=groups), inputs, reference, tolerance,
          magnitude=reference)  # fmt: skip
    lines = [real(groups * kernels, per, 3), real(2, groups * per, 9)]

    def line(a, b):
        parts = zip(np.split(a, groups), np.split(b, groups, axis=1), strict=True)
        return np.concatenate([conv2d(k[:, :, None], one_d(x)) for k, x in parts], axis=1)[:, :, 0]

    check(lambda a, b: gb.ops.conv_1d(a, b, groups=groups), lines, line, tolerance, magnitude=line)


def conv3d(kernel, x, channels, s, p, d, groups):
    """The definition: one term after another."""
    per = channels // groups
    k = kernel.reshape(-1, per, *kernel.shape[1:])
    x = np.pad(x.reshape(-1, channels, *x.shape[1:]), ((0, 0), (0, 0), *((v, v) for v in p)))
    outs = [(x.shape[2 + i] - d[i] * (k.shape[2 + i] - 1) - 1) // s[i] + 1 for i in range(3)]
    y = np.zeros((len(x), len(k), *outs))
    for o, at in np.ndindex(len(k), math.prod(k.shape[2:])):
        first = o // (len(k) // groups) * per
        place = np.unravel_index(at, k.shape[2:])
        cut = tuple(slice(place[i] * d[i], place[i] * d[i] + (outs[i] - 1) * s[i] + 1, s[i]) for i in range(3))
        y[:, o] += np.einsum(
            "nc...,c->n...", x[(slice(None), slice(first, first + per), *cut)], k[(o, slice(None), *place)]
        )
    return y.reshape(-1, *outs)


@covers("CONV_3D")
@pytest.mark.parametrize(("channels", "groups", "s", "p", "d"), [
    (3, 1, (1, 1, 1), (0, 0, 0), (1, 1, 1)), (4, 2, (1, 2, 1), (1, 0, 2), (1, 1, 2)),
    (2, 2, (2, 1, 3), (0, 1, 1), (2, 2, 1)),
])  # fmt: skip
def test_conv_3d(channels, groups, s, p, d):
    def reference(a, b):
        return conv3d(a, b, channels, s, p, d, groups)

    inputs = [real(4 * channels // groups, 2, 3, 2, dtype="float16"), real(2 * channels, 5, 7, 6)]
    check(lambda a, b: gb.ops.conv_3d(a, b, channels, s, p, d, groups), inputs, reference, Tolerance(n=12 * channels),
          magnitude=reference, dtype="float32")  # fmt: skip


def test_channels_that_do_not_fit_are_refused():
    refuses(lambda a, b: gb.ops.conv_2d(a, b, groups=2), [real(4, 3, 2, 3), real(2, 3, 5, 7)])
    refuses(lambda a, b: gb.ops.conv_2d(a, b, groups=3), [real(4, 1, 2, 3), real(2, 3, 5, 7)])
    refuses(lambda a, b: gb.ops.conv_2d(a, b, groups=0), [real(4, 3, 2, 3), real(2, 3, 5, 7)])
    refuses(lambda a, b: gb.ops.conv_3d(a, b, 4), [real(4, 3, 2, 3), real(2, 3, 5, 7)])
    refuses(lambda a, b: gb.ops.conv_3d(a, b, 0), [real(4, 3, 2, 3), real(2, 3, 5, 7)])
    refuses(lambda a, b: gb.ops.conv_3d(a, b, 2, stride=(1, 2)), [real(4, 3, 2, 3), real(2, 3, 5, 7)])


# ------------------------------------------------------------------------------------------------------ transposed


@covers("CONV_TRANSPOSE_1D")
@pytest.mark.parametrize("dtype", FLOATS)
def test_conv_transpose_1d(dtype):
    for ic, oc, k, w, s in ((1, 1, 1, 1, 1), (3, 4, 3, 7, 1), (2, 5, 4, 9, 3), (7, 1, 2, 5, 5), (33, 17, 5, 40, 2)):

        def reference(a, b, s=s):
            out = np.zeros((a.shape[1], (b.shape[1] - 1) * s + a.shape[2]))
            for i in range(b.shape[1]):
                out[:, i * s : i * s + a.shape[2]] += np.einsum("c,cok->ok", b[:, i], a)
            return out

        for one, two in (("whole", "whole"), ("padded", "stepped"), ("permuted", "padded")):
            inputs = [real(ic, oc, k, dtype=dtype, layout=one), real(ic, w, layout=two)]
            tolerance = Tolerance(n=ic * k)
            check(
                lambda a, b, s=s: gb.ops.conv_transpose_1d(a, b, s),
                inputs,
                reference,
                tolerance,
                magnitude=reference,
                dtype="float32",
            )


@covers("CONV_TRANSPOSE_2D")
@pytest.mark.parametrize("dtype", FLOATS)
def test_conv_transpose_2d(dtype):
    for n, ic, oc, k, size, s in (
        (1, 1, 1, (1, 1), (1, 1), 1),
        (1, 3, 4, (2, 3), (4, 5), 2),
        (3, 2, 5, (3, 3), (5, 4), 1),
        (2, 9, 7, (2, 2), (9, 8), 3),
    ):

        def reference(a, b, s=s):
            kh, kw = a.shape[2:]
            out = np.zeros((b.shape[0], a.shape[1], (b.shape[2] - 1) * s + kh, (b.shape[3] - 1) * s + kw))
            for i, j in np.ndindex(b.shape[2:]):
                out[:, :, i * s : i * s + kh, j * s : j * s + kw] += np.einsum("nc,couv->nouv", b[:, :, i, j], a)
            return out

        for one, two in (("whole", "whole"), ("offset", "padded"), ("whole", "permuted")):
            inputs = [real(ic, oc, *k, dtype=dtype, layout=one), real(n, ic, *size, layout=two)]
            tolerance = Tolerance(n=ic * math.prod(k))
            check(
                lambda a, b, s=s: gb.ops.conv_transpose_2d(a, b, s),
                inputs,
                reference,
                tolerance,
                magnitude=reference,
                dtype="float32",
            )


# -------------------------------------------------------------------------------------------------------------- pooling


def pool(v, op, k, s, p):
    """v (c, h, w). Maxima skip padding, means count it."""
    oh, ow = (int((v.shape[i + 1] + 2 * p[i] - k[i]) / s[i] + 1) for i in (0, 1))
    p = [int(n) for n in p]  # a fraction of padding counts in the size; windows begin at whole elements
    out = np.empty((v.shape[0], oh, ow))
    for c, i, j in np.ndindex(out.shape):
        rows = [r for r in range(i * s[0] - p[0], i * s[0] - p[0] + k[0]) if 0 <= r < v.shape[1]]
        cols = [q for q in range(j * s[1] - p[1], j * s[1] - p[1] + k[1]) if 0 <= q < v.shape[2]]
        part = v[c][np.ix_(rows, cols)]
        out[c, i, j] = part.sum() / math.prod(k) if op == "avg" else part.max(initial=-float(np.finfo(np.float32).max))
    return out


@covers("POOL_2D")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", ["max", "avg"])
def test_pool_2d(op, dtype):
    cases = [
        ((1, 1, 1), (1, 1), (1, 1), (0, 0)),
        ((2, 4, 6), (2, 3), (2, 3), (0, 0)),
        ((3, 7, 9), (3, 2), (2, 1), (1, 0)),
        ((1, 9, 7), (3, 3), (1, 2), (1, 1)),
        ((5, 33, 21), (2, 2), (2, 2), (1, 1)),
        ((2, 5, 5), (5, 5), (1, 1), (2, 2)),
        ((2, 6, 7), (3, 3), (2, 2), (0.5, 1.5)),
    ]
    for shape, k, s, p in cases:
        for layout in ALL_LAYOUTS if shape[0] == 3 else ("whole",):

            def reference(v, k=k, s=s, p=p):
                return pool(v, op, k, s, p)

            check(lambda t, k=k, s=s, p=p: gb.ops.pool_2d(t, op, k, s, p), [real(*shape, dtype=dtype, layout=layout)],
             reference,
                  Tolerance(n=math.prod(k)) if op == "avg" else Tolerance(0), magnitude=lambda v, k=k, s=s,
                  p=p: pool(v, "avg", k, s, p) if op == "avg" else
                  np.ones_like(pool(v, op, k, s, p)), dtype="float32")  # fmt: skip


@covers("POOL_1D")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", ["max", "avg"])
def test_pool_1d(op, dtype):
    for shape, k in (((1, 1), 1), ((3, 8), 2), ((5, 9), 3), ((2, 65), 5), ((70, 1000), 4)):

        def reference(v, k=k):
            parts = v[:, : v.shape[1] // k * k].reshape(v.shape[0], -1, k)
            return parts.mean(-1) if op == "avg" else parts.max(-1)

        for layout in ALL_LAYOUTS if shape[0] == 3 else ("whole",):
            x = real(*shape, dtype=dtype, layout=layout)
            check(lambda t, k=k: gb.ops.pool_1d(t, op, k), [x], reference, Tolerance(n=k) if op == "avg" else EXACT,
             magnitude=lambda v: np.full(
                reference(v).shape, 2.0), dtype="float32")  # fmt: skip


@covers("POOL_1D")
def test_pool_1d_with_stride_and_padding():
    for width, k, s, p in ((7, 3, 2, 0), (7, 3, 1, 1), (33, 4, 3, 2)):
        for op in ("max", "avg"):

            def reference(v, op=op, k=k, s=s, p=p):
                return pool(v[:, None], op, (1, k), (1, s), (0, p))[:, 0]

            check(
                lambda t, op=op, k=k, s=s, p=p: gb.ops.pool_1d(t, op, k, s, p),
                [real(4, width)],
                reference,
                Tolerance(n=k),
                magnitude=lambda v: 2.0,
            )


# ------------------------------------------------------------------------------------------------------ upscale and pad


def numbers(shape, dtype, layout):
    """Random values of the type."""
    if dtype == "int32":
        return whole(*shape, low=-9, high=9, layout=layout)
    return real(*shape, dtype=dtype, layout=layout)


@covers("UPSCALE")
@pytest.mark.parametrize("dtype", [*FLOATS, "int32"])
def test_upscale(dtype):
    for shape, factor in (((1, 1), 1), ((1, 1), 3), ((3, 5), 2), ((2, 3, 4, 5), 3), ((3, 40, 50), 2)):
        for layout in ALL_LAYOUTS:
            x = numbers(shape, dtype, layout)
            check(
                lambda t, f=factor: gb.ops.upscale(t, f),
                [x],
                lambda v, f=factor: v.repeat(f, -1).repeat(f, -2),
                EXACT,
                on_sim=layout == "padded",
            )


@covers("PAD")
@pytest.mark.parametrize("dtype", [*FLOATS, "int32"])
def test_pad(dtype):
    for shape, amounts in (
        ((1,), (1,)),
        ((3, 5), (0, 0)),
        ((3, 5), (1, 2)),
        ((2, 3, 4, 5), (1, 2, 3, 4)),
        ((2, 3, 4, 5), (0, 2, 0, 1)),
        ((30, 70), (40, 100)),
    ):
        for layout in ALL_LAYOUTS:
            x = numbers(shape, dtype, layout)
            check(
                lambda t, a=amounts: gb.ops.pad(t, a),
                [x],
                lambda v, a=amounts: np.pad(v, [(0, n) for n in a]),
                EXACT,
                on_sim=layout == "padded",
            )


@pytest.mark.parametrize("name", ["conv_1d", "conv_2d", "conv_transpose_1d", "conv_transpose_2d"])
def test_integer_kernels_are_refused(name):
    shape, data = ((3, 3, 3), (3, 9)) if name.endswith("1d") else ((3, 3, 3, 3), (1, 3, 9, 9))
    refuses(getattr(gb.ops, name), [whole(*shape, low=0, high=9), real(*data)])


# ------------------------------------------------------------------------------------------------------------ fused


def computed(build, fused, threads=2):
    """The result, and the kinds of the fused steps that computed it."""
    with gb.Backend("CPU", n_threads=threads) as backend:
        ctx = gb.Context()
        rng = np.random.default_rng(3)
        y = build(ctx, lambda *shape, dtype="float32": ctx.constant(rng.standard_normal(shape).astype(dtype)))
        with fusion(fused), gb.Scheduler(backend) as scheduler, scheduler.profile() as profile:
            scheduler.compute(ctx.graph(y))
            result = y.numpy(copy=True)
        return result, [step.fusion for step in profile.steps if step.fusion]


def check_columns(build):
    """IM2COL rounds to float16 with and without fusion."""
    (together, fusions), (apart, none) = computed(build, True), computed(build, False)
    assert (fusions, none) == (["columns"], [])
    np.testing.assert_allclose(together, apart, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("images", [1, 3])
def test_columns_and_their_product_are_one_step(dtype, images):
    def build(ctx, random):
        kernel, x = random(20, 6, 3, 3, dtype=dtype), gb.ops.relu(random(images, 6, 17, 15))
        rows = gb.ops.im2col(kernel, x, 1, 1)
        y = gb.ops.mul_mat(rows.reshape(-1, rows.shape[-1]), kernel.reshape(20, -1))
        return gb.ops.cont(y)  # the sources of the last node are never fused with it

    check_columns(build)


def test_columns_of_channels_are_one_step():
    def build(ctx, random):
        kernel, x = random(6, 1, 3, 3, dtype="float16"), gb.ops.relu(random(2, 6, 17, 15))
        rows = gb.ops.im2col(kernel, x.reshape(12, 1, 17, 15), 2, 1)
        return gb.ops.cont(gb.ops.mul_mat(kernel.reshape(1, 6, 1, 9), rows.reshape(2, 6, -1, 9)))

    check_columns(build)


@pytest.mark.parametrize("groups", [1, 6])
def test_bias_activation_and_residual_keep_their_bits(groups):
    def build(ctx, random):
        x = gb.ops.relu(random(2, 6, 33, 29))
        y = gb.ops.conv_2d(random(6, 6 // groups, 3, 3), x, padding=1, groups=groups)
        return gb.ops.silu(y * random(6, 1, 1) + random(6, 1, 1)) + x

    for threads in (1, 2):
        (together, fusions), (apart, none) = computed(build, True, threads), computed(build, False, threads)
        assert (fusions, none) == (["convolution"], [])
        np.testing.assert_array_equal(together, apart)


@pytest.mark.parametrize("read_again", [False, True])
@pytest.mark.parametrize(("channels", "groups", "size"), [(6, 1, (33, 29)), (6, 6, (33, 29)), (100, 1, (14, 14))])
def test_limits_behind_a_copy_keep_their_bits(channels, groups, size, read_again):
    """100 channels have several blocks of terms. The operators after a convolution wait for the last block."""

    def build(ctx, random):
        x = gb.ops.relu(random(2, channels, *size))
        y = gb.ops.conv_2d(random(channels, channels // groups, 3, 3), x, padding=1, groups=groups)
        y = y + random(channels, 1, 1)
        limited = gb.ops.clamp(gb.ops.dup(y), -0.5, 6)
        return gb.ops.cont(limited + y if read_again else limited)

    for threads in (1, 2):
        (together, fusions), (apart, none) = computed(build, True, threads), computed(build, False, threads)
        assert none == [] and (read_again or fusions == ["convolution"])
        np.testing.assert_array_equal(together, apart)
        assert read_again or together.min() == -0.5


CONVOLUTIONS = [  # channels of input and output, groups, side, stride, size: one case for each algorithm
    (24, 40, 1, 1, 1, (23, 27)),
    (9, 9, 9, 3, 2, (23, 27)),
    (9, 9, 9, 5, 1, (7, 7)),
    (9, 9, 9, 3, 1, (9, 130)),
    (5, 100, 1, 3, 2, (14, 14)),
    (5, 40, 1, 3, 1, (14, 14)),
]
ENDS = {
    "bias": lambda y, b, x: y + b,
    "bias, relu": lambda y, b, x: gb.ops.relu(y + b),
    "bias, residual": lambda y, b, x: y + b + x,
    "residual, bias": lambda y, b, x: y + x + b,
    "bias, residual first, clamp": lambda y, b, x: gb.ops.clamp(gb.ops.sqr(x) + (y + b), -1, 2),
    "two biases": lambda y, b, x: y + b + b,
    "two residuals": lambda y, b, x: y + x + x,
    "residual, relu": lambda y, b, x: gb.ops.relu(y + x),
    "relu": lambda y, b, x: gb.ops.relu(y),
    "relu, bias": lambda y, b, x: gb.ops.relu(y) + b,
    "relu, clamp": lambda y, b, x: gb.ops.clamp(gb.ops.relu(y), -1, 2),
    "copy": lambda y, b, x: gb.ops.dup(y),
    "bias, copy, clamp": lambda y, b, x: gb.ops.clamp(gb.ops.dup(y + b), 0, 6),
    "scale, bias": lambda y, b, x: y * 0.5 + b,
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("shape", CONVOLUTIONS)
def test_operators_that_one_pass_computes_keep_their_bits(shape, end):
    """The residual has NaN."""
    n_in, n_out, groups, side, stride, size = shape

    def build(ctx, random):
        x, kernel = gb.ops.relu(random(2, n_in, *size)), random(n_out, n_in // groups, side, side)
        y = gb.ops.conv_2d(kernel, x, stride, side // 2, groups=groups)
        residual = np.random.default_rng(5).standard_normal(y.shape, np.float32)
        residual[residual > 1] = np.nan
        return gb.ops.cont(ENDS[end](y, random(n_out, 1, 1), ctx.constant(residual)))

    for threads in (1, 2):
        (together, fusions), (apart, none) = computed(build, True, threads), computed(build, False, threads)
        assert "convolution" in fusions
        assert not none
        np.testing.assert_array_equal(together.view(np.int32), apart.view(np.int32))


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("padding", [0, 1, 1000])
def test_a_convolution_without_input_channels_gives_zeros(cpu, kernel, padding):
    with gb.Context() as ctx:
        w, x = ctx.tensor((6, 0, kernel, kernel)), ctx.tensor((1, 0, 8, 9))
        y = gb.ops.conv_2d(w, x, padding=padding)
        scheduler, graph = gb.Scheduler(cpu), ctx.graph(y)
        scheduler.allocate(graph)
        w.set(np.zeros(w.shape, np.float32))
        x.set(np.zeros(x.shape, np.float32))
        scheduler.compute(graph)
        assert y.size and not y.numpy().any()
