"""Resizing, padding, rolling and columns, against NumPy."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest

import ggml_backend as gb
from op_harness import ALL_LAYOUTS, EXACT, FLOATS, Tolerance, array, check, covers, real, whole


def shares(n, out, mode, align, antialias):
    """[out, n]: the weights of the elements of one axis in each result."""
    weights = np.zeros((out, n))
    ratio = (out - 1) / (n - 1) if align and out > 1 and n > 1 else out / n
    for i in range(out):
        if mode == "nearest":
            weights[i, i * (n - 1) // (out - 1) if align and out > 1 and n > 1 else i * n // out] = 1
            continue
        centre = i / ratio if align else (i + 0.5) / ratio - 0.5
        if antialias:
            reach = max(1.0, 1 / ratio)
            near = np.maximum(0, 1 - np.abs(np.arange(n) - centre) / reach)
            weights[i] = near / near.sum()
            continue
        if mode == "bilinear":
            centre = max(centre, 0)
        left = int(np.floor(centre))
        t = centre - left

        def keys(u):
            if u <= 1:
                return 1.25 * u**3 - 2.25 * u**2 + 1
            return -0.75 * (u**3 - 5 * u**2 + 8 * u - 4)

        taps = {0: 1 - t, 1: t} if mode == "bilinear" else {k: keys(abs(t - k)) for k in (-1, 0, 1, 2)}
        for step, share in taps.items():
            weights[i, min(max(left + step, 0), n - 1)] += share
    return weights


def resized(size, mode="nearest", align_corners=False, antialias=False):
    def resize(x):
        y, w = (shares(n, m, mode, align_corners, antialias) for n, m in zip(x.shape[-2:], size, strict=True))
        return np.einsum("...hw,yh,xw->...yx", x, y, w)

    return resize


TERMS = Tolerance(terms=64)
SIZES = [((1, 2), (1, 4)), ((5, 7), (10, 14)), ((16, 9), (37, 5)), ((33, 40), (7, 8)), ((3, 3), (3, 3)),
         ((1, 5), (4, 1)), ((6, 1), (1, 9)), ((40, 600), (41, 601))]  # fmt: skip


@covers("INTERPOLATE")
@pytest.mark.parametrize(
    ("mode", "align", "antialias"),
    [*itertools.product(["nearest", "bilinear", "bicubic"], [False, True], [False]), ("bilinear", False, True)],
)
def test_interpolation(mode, align, antialias):
    options = {"mode": mode, "align_corners": align, "antialias": antialias}
    rule = EXACT if mode == "nearest" else TERMS
    for (old, new), layout, dtype in zip(SIZES, itertools.cycle(ALL_LAYOUTS), itertools.cycle(FLOATS)):
        x = real(2, 3, *old, layout=layout, dtype=dtype)
        largest = lambda x, new=new: np.full((2, 3, *new), 2.0)  # noqa: E731
        check(partial(gb.ops.interpolate, size=new, **options), [x], resized(new, **options), rule, magnitude=largest)


@covers("INTERPOLATE")
def test_interpolation_moves_integers_and_scales_by_a_factor():
    check(lambda x: gb.ops.interpolate(x, (5, 7)), [whole(2, 3, 4, low=-9, high=9)], resized((5, 7)), EXACT)
    for mode in ("bilinear", "bicubic"):
        check(
            partial(gb.ops.upscale, factor=3, mode=mode),
            [real(2, 4, 5)],
            resized((12, 15), mode),
            TERMS,
            magnitude=lambda x: np.full((2, 12, 15), 2.0),
        )


@pytest.mark.parametrize(("old", "new", "antialias"), [
    ((6, 40), (12, 80), False), ((5, 19), (20, 76), False), ((36, 80), (18, 40), True), ((36, 93), (12, 31), True),
    ((45, 96), (9, 24), True), ((30, 20), (10, 40), True), ((50, 70), (31, 44), True), ((50, 70), (31, 44), False),
])  # fmt: skip
def test_sizes_by_whole_factors_and_planes_that_get_fewer_rows(old, new, antialias):
    for mode, layout in itertools.product(["bilinear"] if antialias else ["bilinear", "bicubic"], ALL_LAYOUTS):
        options = {"mode": mode, "antialias": antialias}
        largest = lambda x: np.full((2, 3, *new), 2.0)  # noqa: E731
        x = real(2, 3, *old, layout=layout)
        check(partial(gb.ops.interpolate, size=new, **options), [x], resized(new, **options), TERMS, magnitude=largest)


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_large_images_bypass_the_caches(mode):
    """Of 8 MiB and more, with rows that begin at any address."""
    old, new = (561, 997), (1122, 1994)
    y, w = (shares(n, m, mode, False, False) for n, m in zip(old, new, strict=True))
    rule = EXACT if mode == "nearest" else TERMS
    largest = lambda x: np.full((1, *new), 2.0)  # noqa: E731
    check(
        partial(gb.ops.interpolate, size=new, mode=mode),
        [real(1, *old)],
        lambda x: y @ x @ w.T,
        rule,
        magnitude=largest,
    )


def test_no_size_is_off_by_one():
    for n in range(1, 60, 7):
        for out in range(1, 130, 3):
            x = array(np.arange(n))
            with gb.Context() as ctx, gb.Scheduler(gb.Backend("CPU", n_threads=1)) as sched:
                t = ctx.constant(x.values)
                y = gb.ops.interpolate(t, (1, out))
                sched.compute(ctx.graph(y))
                np.testing.assert_array_equal(y.numpy().ravel(), [i * n // out for i in range(out)])


def test_errors_of_interpolation_name_the_fault(ctx):
    x = ctx.tensor((3, 4, 5))
    with pytest.raises(gb.errors.InvalidArgumentError, match="antialias goes with mode bilinear"):
        gb.ops.interpolate(x, 3, "bicubic", antialias=True)
    with pytest.raises(gb.errors.InvalidArgumentError, match="antialias goes with mode bilinear"):
        gb.ops.interpolate(x, 3, "bilinear", antialias=True, align_corners=True)
    with pytest.raises(gb.errors.InvalidArgumentError, match="must be at least 0, is -1"):
        gb.ops.interpolate(x, -1)
    with pytest.raises(gb.errors.InvalidArgumentError, match="mode must be one of"):
        gb.ops.interpolate(x, 3, "linear")
    with pytest.raises(gb.errors.InvalidArgumentError, match="at least 1 to make other elements"):
        gb.ops.interpolate(ctx.tensor((0, 5)), 3)


PADS = [((0, 2),), ((1, 0),), ((1, 2), (3, 4)), ((2, 1), (0, 0), (1, 1)), ((1, 1), (2, 0), (0, 3), (5, 6)), (1, (2, 2))]


@covers("PAD", "PAD_EXT")
@pytest.mark.parametrize("mode", ["constant", "wrap"])
def test_padding_on_all_sides(mode):
    for amounts, layout, dtype in zip(PADS, itertools.cycle(ALL_LAYOUTS), itertools.cycle([*FLOATS, "int32"])):
        x = real(2, 3, 4, 5, low=-9, high=9, dtype=dtype, layout=layout if dtype != "int32" else "whole")
        pairs = [p if isinstance(p, tuple) else (0, p) for p in amounts]
        widths = [(0, 0)] * (4 - len(pairs)) + pairs
        check(lambda a, p=amounts: gb.ops.pad(a, p, mode), [x], lambda a, w=widths: np.pad(a, w, mode=mode), EXACT)
    check(
        lambda a: gb.ops.pad(a, ((13, 17),), "wrap"),
        [real(2, 3)],
        lambda a: np.pad(a, [(0, 0), (13, 17)], mode="wrap"),
        EXACT,
    )
    check(lambda a: gb.ops.pad(a, ((2, 1),)), [real(2, 0)], lambda a: np.pad(a, [(0, 0), (2, 1)]), EXACT)


@covers("PAD_REFLECT_1D")
def test_padding_by_reflection():
    for shape, p0, p1, layout in zip(
        [(4,), (3, 7), (2, 3, 64), (1, 1), (2, 2000)],
        (1, 6, 10, 0, 200),
        (2, 0, 63, 0, 1999),
        itertools.cycle(ALL_LAYOUTS),
    ):
        x = real(*shape, layout=layout)
        widths = [(0, 0)] * (len(shape) - 1) + [(p0, p1)]
        check(
            lambda a, p=(p0, p1): gb.ops.pad(a, (p,), "reflect"),
            [x],
            lambda a, w=widths: np.pad(a, w, mode="reflect"),
            EXACT,
        )


def test_errors_of_padding_name_the_fault(ctx):
    x = ctx.tensor((3, 4))
    with pytest.raises(gb.errors.InvalidArgumentError, match="must be from 0 to 3, is 4"):
        gb.ops.pad(x, ((4, 0),), "reflect")
    with pytest.raises(gb.errors.InvalidArgumentError, match="last axis only"):
        gb.ops.pad(x, ((1, 1), (1, 1)), "reflect")
    with pytest.raises(gb.errors.InvalidArgumentError, match="must not be negative"):
        gb.ops.pad(x, ((-1, 1),))
    with pytest.raises(gb.errors.InvalidArgumentError, match="at least 1 to make other elements"):
        gb.ops.pad(ctx.tensor((3, 0)), ((1, 1),), "wrap")


@covers("ROLL")
def test_rolling():
    for shift, axis, layout in [
        (1, -1, "whole"),
        (-2, 0, "padded"),
        ((3, -1), (1, 2), "permuted"),
        (70, (0, 3), "transposed"),
        (0, -1, "stepped"),
    ]:
        x = real(4, 3, 2, 5, layout=layout)
        check(lambda a, s=shift, i=axis: gb.ops.roll(a, s, i), [x], lambda a, s=shift, i=axis: np.roll(a, s, i), EXACT)
    check(lambda a: gb.ops.roll(a, 2), [whole(3, 7, low=0, high=9)], lambda a: np.roll(a, 2, -1), EXACT)
    check(lambda a: gb.ops.roll(a, 2), [real(3, 0)], lambda a: a, EXACT)


@covers("COL2IM_1D")
@pytest.mark.parametrize("dtype", FLOATS)
def test_adding_columns(dtype):
    for t, channels, k, stride, padding in [
        (1, 1, 1, 1, 0),
        (5, 3, 4, 2, 1),
        (40, 2, 16, 8, 4),
        (3, 2, 2, 5, 0),
        (100, 1, 600, 7, 3),
        (7, 4, 3, 3, 0),
    ]:

        def fold(columns, t=t, channels=channels, k=k, stride=stride, padding=padding):
            out = np.zeros((channels, (t - 1) * stride + k))
            for i, piece in enumerate(columns.reshape(t, channels, k)):
                out[:, i * stride : i * stride + k] += piece
            return out[:, padding : out.shape[1] - padding]

        build = partial(gb.ops.col2im_1d, channels=channels, stride=stride, padding=padding)
        check(build, [real(t, channels * k, dtype=dtype)], fold, Tolerance(n=-(-k // stride)), magnitude=fold)


@covers("IM2COL_3D")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_windows_of_volumes(dtype):
    for n, c, oc, size, kernel, s, p, d in [
        (1, 1, 1, (3, 3, 3), (2, 2, 2), 1, 0, 1),
        (2, 3, 2, (4, 6, 5), (3, 2, 3), (2, 1, 2), (1, 0, 1), 1),
        (1, 2, 4, (5, 9, 40), (1, 3, 20), 1, (0, 2, 3), (1, 2, 2)),
    ]:
        s, p, d = (v if isinstance(v, tuple) else (v,) * 3 for v in (s, p, d))

        def windows(a, x, n=n, c=c, kernel=kernel, s=s, p=p, d=d):
            x = np.pad(x.reshape(n, c, *x.shape[1:]), [(0, 0), (0, 0), *((q, q) for q in p)])
            reach = tuple(e * (k - 1) + 1 for k, e in zip(kernel, d, strict=True))
            seen = np.lib.stride_tricks.sliding_window_view(x, reach, axis=(2, 3, 4))
            seen = seen[:, :, :: s[0], :: s[1], :: s[2], :: d[0], :: d[1], :: d[2]]
            od, oh, ow = seen.shape[2:5]
            return seen.transpose(0, 2, 3, 4, 1, 5, 6, 7).reshape(n * od, oh, ow, -1)

        build = partial(gb.ops.im2col_3d, channels=c, stride=s, padding=p, dilation=d, dtype=dtype)
        data = real(n * c, *size, layout="padded", dtype="float16")
        check(build, [real(oc * c, *kernel), data], windows, EXACT, dtype=dtype)


def test_errors_of_columns_name_the_fault(ctx):
    with pytest.raises(gb.errors.InvalidArgumentError, match="must be a multiple of"):
        gb.ops.col2im_1d(ctx.tensor((3, 7)), 2, 1)
    with pytest.raises(gb.errors.InvalidArgumentError, match="leaves nothing of the 4 positions"):
        gb.ops.col2im_1d(ctx.tensor((2, 3)), 1, 1, 2)
    with pytest.raises(gb.errors.InvalidArgumentError, match="does not fit into the padded input"):
        gb.ops.im2col_3d(ctx.tensor((2, 3, 3, 3)), ctx.tensor((2, 3, 3, 2)), 2)
    with pytest.raises(gb.errors.InvalidArgumentError, match="must be a multiple of"):
        gb.ops.im2col_3d(ctx.tensor((3, 1, 1, 1)), ctx.tensor((4, 3, 3, 2)), 2)


def test_large_results_bypass_the_caches(ctx, cpu, rng):
    """Results of 8 MiB and more are stored by another kernel, with the same values."""
    x = rng.standard_normal((2, 1021, 2051), np.float32)
    t = ctx.tensor(x.shape)
    calls = {
        "pad": (gb.ops.pad(t, ((1033, 5), (7, 9))), np.pad(x, ((0, 0), (1033, 5), (7, 9)))),
        "wrap": (gb.ops.pad(t, ((1033, 5), (7, 9)), "wrap"), np.pad(x, ((0, 0), (1033, 5), (7, 9)), "wrap")),
        "reflect": (gb.ops.pad(t, ((2050, 99),), "reflect"), np.pad(x, ((0, 0), (0, 0), (2050, 99)), "reflect")),
        "nearest": (gb.ops.interpolate(t, (2042, 4102), "nearest"), x.repeat(2, 1).repeat(2, 2)),
    }
    graph, memory = ctx.graph(*(node for node, _ in calls.values())), ctx.allocate(cpu)
    t.set(x)
    graph.compute(cpu)
    for name, (node, want) in calls.items():
        assert node.nbytes >= 32 << 20
        assert np.array_equal(node.numpy(), want), name
    del memory
