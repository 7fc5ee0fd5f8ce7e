"""Norms, softmax, masks, ALiBi, rotary embedding and losses against NumPy."""

from __future__ import annotations

import functools
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
    both_ways,
    check,
    covers,
    real,
    refuses,
    whole,
)

ROWS = [*SHAPES, (3, 1000), (130, 515), (2, 3, 5, 331)]


def cases(layouts, shapes=ROWS):
    return [*zip(shapes, itertools.cycle(layouts), strict=False), *(((3, 4, 37), y) for y in layouts)]


def mean(x):
    return x.mean(-1, keepdims=True)


def total(x):
    return x.sum(-1, keepdims=True)


# ---------------------------------------------------------------------------------------------------------------- norms


@covers("NORM")
@pytest.mark.parametrize("dtype", FLOATS)
def test_norm(dtype):
    """Sums are double; mean and variance are rounded to float32. So x - mean has roundings of |x| +
    |mean|."""
    for eps in (1e-5, 0.1):
        for shape, layout in cases(ALL_LAYOUTS):
            x = real(*shape, dtype=dtype, low=-1, high=3, layout=layout)

            def reference(v, eps=eps):
                return (v - mean(v)) / np.sqrt(v.var(-1, keepdims=True) + eps)

            spread = np.sqrt(x.exact.var(-1, keepdims=True) + eps)
            both_ways(
                functools.partial(gb.ops.norm, eps=eps),
                [x],
                reference,
                Tolerance(8),
                magnitude=lambda v, d=spread: (np.abs(v) + mean(v)) / d,
            )


@covers("RMS_NORM")
@pytest.mark.parametrize("dtype", FLOATS)
def test_rms_norm(dtype):
    for eps in (1e-5, 0.1):
        for shape, layout in cases(ALL_LAYOUTS):
            x = real(*shape, dtype=dtype, layout=layout)
            both_ways(
                functools.partial(gb.ops.rms_norm, eps=eps),
                [x],
                lambda v, eps=eps: v / np.sqrt(mean(v * v) + eps),
                Tolerance(6 + shape[-1] ** 0.5),
            )


@covers("RMS_NORM_BACK")
@pytest.mark.parametrize("dtype", FLOATS)
def test_rms_norm_back(dtype):
    def reference(x, g):
        n = x.shape[-1]
        return (g - x * total(x * g) / (total(x * x) + n * 1e-5)) / np.sqrt(mean(x * x) + 1e-5)

    def magnitude(x, g):
        n = x.shape[-1]
        return (g + x * total(x * g) / (total(x * x) + n * 1e-5)) / np.sqrt(mean(x * x) + 1e-5)

    for shape, layout in cases(LAYOUTS):
        inputs = [real(*shape, dtype=dtype, layout=layout), real(*shape, dtype=dtype)]
        check(
            functools.partial(gb.ops.rms_norm_back, eps=1e-5),
            inputs,
            reference,
            Tolerance(8, n=shape[-1]),
            magnitude=magnitude,
        )


def test_rms_norm_back_is_the_derivative():
    """Checks the reference by central differences, so that formula and kernel do not share an
    error."""
    x, g = real(1, 9).exact, real(1, 9).exact

    def loss(v):
        return float((g * (v / np.sqrt(mean(v * v) + 0.01))).sum())

    h = 1e-6
    want = np.array([[(loss(x + h * e) - loss(x - h * e)) / (2 * h) for e in np.eye(9)]])
    slack = Tolerance(terms=2000)  # for the central differences
    check(
        functools.partial(gb.ops.rms_norm_back, eps=0.01),
        [array(x), array(g)],
        lambda a, b: want,
        slack,
        magnitude=lambda a, b: np.ones_like(a),
    )


@covers("GROUP_NORM")
@pytest.mark.parametrize("eps", [1e-6, 0.25])
@pytest.mark.parametrize("dtype", FLOATS)
def test_group_norm(dtype, eps):
    def grouped(v, groups, f):
        out = np.empty_like(v)
        step = -(-v.shape[-3] // groups)
        for i in np.ndindex(v.shape[:-3]):
            for c in range(0, v.shape[-3], step):
                out[i][c : c + step] = f(v[i][c : c + step])
        return out

    def normed(part):
        return (part - part.mean()) / math.sqrt(part.var() + eps)

    for shape, groups in (
        ((1, 1, 1), 1),
        ((4, 3, 5), 2),
        ((5, 3, 5), 2),
        ((2, 6, 7, 9), 3),
        ((7, 2, 2), 7),
        ((5, 2, 3), 4),
        ((32, 20, 31), 4),
        ((3, 2, 2), 1),
    ):
        for layout in ALL_LAYOUTS:
            x = real(*shape, dtype=dtype, low=-1, high=3, layout=layout)
            low = grouped(x.exact, groups, lambda p: np.full_like(p, math.sqrt(p.var() + eps)))
            both_ways(
                lambda t, inplace, g=groups: gb.ops.group_norm(t, g, eps, inplace=inplace), [x], lambda v,
                g=groups: grouped(v, g, normed), Tolerance(8),
                magnitude=lambda v, d=low, g=groups: (v + grouped(v, g, lambda p: np.full_like(p, p.mean()))) / d,
            )  # fmt: skip


@covers("NORM", "RMS_NORM")
def test_norms_of_large_and_tiny_numbers():
    """Squares are summed in double, without overflow or underflow."""
    for size in (1e18, 1e-18, 1.0):
        x = array(real(3, 65).values * np.float32(size))
        both_ways(
            functools.partial(gb.ops.rms_norm, eps=1e-30),
            [x],
            lambda v: v / np.sqrt(mean(v * v) + 1e-30),
            Tolerance(16),
        )
    x = array(real(2, 65).values + np.float32(1000))
    check(
        gb.ops.norm,
        [x],
        lambda v: (v - mean(v)) / np.sqrt(v.var(-1, keepdims=True) + 1e-5),
        Tolerance(8),
        magnitude=lambda v: 2 * v,
    )


# -------------------------------------------------------------------------------------------------------------- softmax


def softmax(x):
    top = x.max(-1, keepdims=True)
    e = np.exp(x - np.where(np.isinf(top), 0, top))
    s = total(e)
    return np.where(s > 0, e / np.where(s > 0, s, 1), 0)


def softmax_tolerance(n, largest):
    """exp has the error of its argument, up to twice the largest input. The sum has n terms."""
    return Tolerance(12 + 4 * largest, n=n)


@covers("SOFT_MAX")
@pytest.mark.parametrize("dtype", FLOATS)
def test_soft_max(dtype):
    for shape, layout in cases(("whole", "offset")):
        x = real(*shape, dtype=dtype, low=-5, high=5, layout=layout)
        both_ways(gb.ops.soft_max, [x], softmax, softmax_tolerance(shape[-1], 5))
        check(
            lambda t: gb.ops.soft_max(t, scale=0.25), [x], lambda v: softmax(0.25 * v), softmax_tolerance(shape[-1], 2)
        )


@covers("SOFT_MAX")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("mask_dtype", ["float32", "float16"])
def test_soft_max_with_a_mask(dtype, mask_dtype):
    """Row r uses row r modulo m of the mask. -inf gives exactly zero, also for a whole row."""
    for shape, m in (
        ((1, 1), 1),
        ((4, 7), 4),
        ((4, 7), 1),
        ((6, 33), 2),
        ((2, 3, 4, 65), 4),
        ((2, 3, 4, 65), 2),
        ((3, 40, 517), 40),
    ):
        n = shape[-1]
        x, mask = real(*shape, dtype=dtype, low=-3, high=3), real(m, n, dtype=mask_dtype, low=-2, high=2)
        mask.values[real(m, n).values > 1] = -np.inf
        mask.values[-1] = -np.inf if m > 1 else mask.values[-1]

        def reference(v, k):
            rows = v.reshape(-1, v.shape[-1])
            return softmax(0.5 * rows + k[np.arange(len(rows)) % len(k)]).reshape(v.shape)

        node = check(lambda t, k: gb.ops.soft_max(t, k, 0.5), [x, mask], reference, softmax_tolerance(n, 5))
        zero = np.isinf(mask.values[np.arange(x.values.size // n) % m])
        assert (node.shape == shape) and (zero.any() or n == 1)


@covers("SOFT_MAX")
def test_soft_max_of_special_values():
    inf = math.inf
    x = array([[0, -inf, 1, -inf, 2], [-inf] * 5, [1e30, -1e30, 1e30, 0, 0], [-1e30] * 5, [86, 0, -86, -200, 86]])
    check(gb.ops.soft_max, [x], softmax, Tolerance(40))
    y = array([[math.nan, 0, 1, 2, 3]])
    check(gb.ops.soft_max, [y], lambda v: np.full_like(v, math.nan), EXACT)


@pytest.mark.parametrize("level", [name for name, usable in gb.backend.cpu_levels().items() if usable])
def test_soft_max_of_the_cpu_flushes_denormals(level, ctx):
    """Other devices may keep denormal results."""
    x = ctx.from_numpy(np.array([[88, 0, -1, -15, 88], [0, -87.4, -100, -104, -1e9]], np.float32))
    y = gb.ops.soft_max(x)
    graph = ctx.graph(y)
    with gb.Backend("CPU", level=level) as cpu, gb.Scheduler(cpu) as sched:
        sched.compute(graph)
        assert y.tolist() == [[0.5, 0, 0, 0, 0.5], [1, 0, 0, 0, 0]]


@pytest.mark.parametrize("mask", ["bfloat16", "int32"])
def test_soft_max_refuses_masks_of_other_dtypes(mask):
    m = whole(2, 7, low=0, high=2) if mask == "int32" else real(2, 7, dtype=mask)
    refuses(lambda t, k: gb.ops.soft_max(t, k), [real(4, 7), m])


@pytest.mark.parametrize("op", [gb.ops.soft_max, gb.ops.diag_mask_inf, gb.ops.diag_mask_zero], ids=lambda f: f.__name__)
def test_operators_that_need_contiguous_sources(op):
    for layout in ("padded", "stepped", "transposed"):
        refuses(op, [real(3, 4, 7, layout=layout)], gb.errors.InvalidArgumentError)


@covers("SOFT_MAX_BACK")
@pytest.mark.parametrize("dtype", FLOATS)
def test_soft_max_back(dtype):
    for shape, layout in cases(("whole", "offset")):
        g = real(*shape, dtype=dtype, layout=layout)
        y = array(softmax(real(*shape).exact), dtype)
        both_ways(
            gb.ops.soft_max_back,
            [g, y],
            lambda d, s: s * (d - total(s * d)),
            Tolerance(4, n=shape[-1]),
            magnitude=lambda d, s: s * (d + total(s * d)),
        )


# --------------------------------------------------------------------------------------------------------- masks, ALiBi


@covers("DIAG_MASK_INF", "DIAG_MASK_ZERO")
@pytest.mark.parametrize("dtype", FLOATS)
def test_diag_mask(dtype):
    for shape, layout in cases(("whole", "offset")):
        for n_past in (0, 2, 1000):
            rows = 1 if len(shape) == 1 else shape[-2]
            keep = np.arange(shape[-1]) <= n_past + np.arange(rows)[:, None]
            keep = keep[0] if len(shape) == 1 else keep
            x = real(*shape, dtype=dtype, layout=layout)
            both_ways(
                functools.partial(gb.ops.diag_mask_inf, n_past=n_past),
                [x],
                lambda v, k=keep: np.where(k, v, -np.inf),
                EXACT,
                on_sim=n_past == 2,
            )
            both_ways(
                functools.partial(gb.ops.diag_mask_zero, n_past=n_past),
                [x],
                lambda v, k=keep: np.where(k, v, 0),
                EXACT,
                on_sim=False,
            )


@covers("DIAG_MASK_INF")
@pytest.mark.parametrize("layout", ["padded", "stepped"])
def test_diag_mask_in_place_in_a_view(layout):
    keep = np.arange(6) <= 1 + np.arange(5)[:, None]
    x = real(5, 6, layout=layout)
    check(
        lambda t: gb.ops.diag_mask_inf(t, 1, inplace=True),
        [x],
        lambda v: np.where(keep, v, -np.inf),
        EXACT,
        writes=(0,),
    )


@covers("ALIBI")
@pytest.mark.parametrize("n_head", [1, 2, 3, 8, 12, 71])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_alibi(n_head, layout):
    for batch in ((), (2,)) if n_head < 8 else ((),):  # slopes are counted over the heads of all batches
        for bias in (8.0, 1.5):

            def reference(v, bias=bias):
                h = 2 ** math.floor(math.log2(n_head))
                m0, m1 = 2 ** (-bias / h), 2 ** (-bias / (2 * h))
                heads = math.prod(v.shape[:-2])
                slopes = np.array([m0 ** (k + 1) if k < h else m1 ** (2 * (k - h) + 1) for k in range(heads)])
                return v + slopes.reshape(*v.shape[:-2], 1, 1) * np.arange(v.shape[-1])

            x = real(*batch, n_head, 3, 19, layout=layout)
            node = check(lambda t, b=bias: gb.ops.alibi(t, 5, n_head, b), [x], reference, Tolerance(8), writes=(0,),
                         magnitude=lambda v: v + v.shape[-1])  # fmt: skip
            assert node.view_of is not None


@covers("ALIBI")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_alibi_of_small_dtypes(dtype):
    def reference(v):
        return v + np.array([2.0**-4, 2.0**-8])[:, None, None] * np.arange(v.shape[-1])

    check(
        lambda t: gb.ops.alibi(t, 0, 2, 8.0),
        [real(2, 3, 19, dtype=dtype)],
        reference,
        Tolerance(8),
        writes=(0,),
        magnitude=lambda v: v + 19,
    )


# ----------------------------------------------------------------------------------------------------- rotary embedding


def corr_dims(n_dims, n_orig_ctx, base, beta_fast, beta_slow):
    def cd(beta):
        return n_dims * math.log(n_orig_ctx / (2 * math.pi * beta)) / (2 * math.log(base))

    return max(0.0, math.floor(cd(beta_fast))), min(n_dims - 1.0, math.ceil(cd(beta_slow)))


def rotation(
    p,
    j,
    i,
    *,
    n_dims,
    freq_base=1e4,
    freq_scale=1.0,
    ext_factor=0.0,
    attn_factor=1.0,
    beta_fast=32.0,
    beta_slow=1.0,
    n_orig_ctx=0,
    neox=False,
):
    """(C, S) of pair j at position p. i: index for the YaRN ramp"""
    extrapolated = p * freq_base ** (-2 * j / n_dims) * (freq_scale if neox else 1.0)
    angle, m = freq_scale * extrapolated, attn_factor
    if ext_factor:
        low, high = corr_dims(n_dims, n_orig_ctx, freq_base, beta_fast, beta_slow)
        ramp = 1 - min(1.0, max(0.0, (i // 2 - low) / max(0.001, high - low)))
        mix = ramp * ext_factor
        angle = angle * (1 - mix) + extrapolated * mix
        m = attn_factor * (1 + 0.1 * math.log(1 / freq_scale))
    return m * math.cos(angle), m * math.sin(angle)


def rope(x, positions, *, n_dims, mode, n_ctx=0, back=False, xpos_base=0.0, xpos_down=False, **scaling):
    """Rotates x (batch, tokens, heads, size) pair by pair."""
    y = x.copy()
    size = x.shape[-1]
    sign = -1 if back else 1

    def turn(t, a, b, c, s, zoom=1.0):
        x0, x1 = x[:, t, :, a], x[:, t, :, b]
        y[:, t, :, a] = (x0 * c - sign * x1 * s) * zoom
        y[:, t, :, b] = (sign * x0 * s + x1 * c) * zoom

    for t, p in enumerate(int(v) for v in positions):
        if mode & 4:
            for j in range(size // 4):
                step = 1e4 ** (-2 * j / n_dims)
                for first, pos in ((j, min(p, n_ctx - 2)), (j + n_dims, max(p - (n_ctx - 2), 0))):
                    turn(t, first, first + n_dims // 2, math.cos(pos * step), math.sin(pos * step))
        elif mode & 2:
            for j in range(n_dims // 2):
                turn(t, j, j + n_dims // 2, *rotation(p, j, 0, n_dims=n_dims, neox=True, **scaling))
        else:
            for j in range(size // 2):
                zoom = ((2 * j + 0.4 * size) / (1.4 * size)) ** (p / xpos_base) if xpos_base else 1.0
                turn(
                    t,
                    2 * j,
                    2 * j + 1,
                    *rotation(p, j, 2 * j, n_dims=n_dims, **scaling),
                    1 / zoom if xpos_down else zoom,
                )
    return y


def rope_magnitude(x, positions):
    return np.broadcast_to(2 * x.max(), x.shape)


def rope_tolerance(positions):
    """The largest angle is the largest position, with a few roundings. An error e of the angle
    changes an element by e |x|."""
    return Tolerance(terms=16 + 2 * float(np.max(positions)))


SCALINGS = [
    {}, {"freq_base": 500.0}, {"freq_scale": 0.25}, {"freq_base": 1e6, "freq_scale": 0.5, "attn_factor": 1.5},
    {"freq_scale": 0.25, "ext_factor": 1.0, "n_orig_ctx": 64, "beta_fast": 32.0, "beta_slow": 1.0},
    {"freq_scale": 0.5, "ext_factor": 0.6, "attn_factor": 0.8, "n_orig_ctx": 2048, "beta_fast": 16.0, "beta_slow": 2.0},
]  # fmt: skip


@covers("ROPE", "ROPE_BACK")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("scaling", SCALINGS, ids=str)
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_rope(mode, scaling, dtype):
    for (batch, tokens, heads, size), n_dims in (
        ((1, 1, 1, 2), 2),
        ((2, 5, 3, 8), 8),
        ((1, 4, 2, 34), 34),
        ((1, 3, 2, 20), 12),
        ((2, 7, 4, 64), 64),
    ):
        for layout in ("whole", "padded", "permuted") if size == 8 else ("stepped",):
            positions = whole(tokens, low=0, high=60)
            inputs = [real(batch, tokens, heads, size, dtype=dtype, layout=layout), positions]
            reference = functools.partial(rope, n_dims=n_dims, mode=mode, **scaling)
            tolerance = rope_tolerance(positions.values)
            both_ways(functools.partial(gb.ops.rope, n_dims=n_dims, mode=mode, **scaling), inputs, reference, tolerance,
             magnitude=rope_magnitude,
                      on_sim=size == 8)  # fmt: skip
            check(functools.partial(gb.ops.rope_back, n_dims=n_dims, mode=mode, **scaling), inputs,
             functools.partial(reference, back=True), tolerance,
                  magnitude=rope_magnitude, on_sim=False)  # fmt: skip


@covers("ROPE")
@pytest.mark.parametrize("dtype", FLOATS)
def test_rope_glm(dtype):
    for n_ctx, (batch, tokens, heads, size) in ((12, (1, 9, 2, 8)), (4, (2, 5, 3, 32)), (40, (1, 30, 1, 64))):
        positions = array(np.arange(tokens) + 3, "int32")
        inputs = [real(batch, tokens, heads, size, dtype=dtype), positions]
        reference = functools.partial(rope, n_dims=size // 2, mode=4, n_ctx=n_ctx)
        both_ways(functools.partial(gb.ops.rope, n_dims=size // 2, mode="glm", n_ctx=n_ctx), inputs, reference,
         rope_tolerance(positions.values),
                  magnitude=rope_magnitude)  # fmt: skip
    refuses(
        lambda t, p: gb.ops.rope_back(t, p, 4, 4),
        [real(1, 3, 2, 8), array([0, 1, 2], "int32")],
        gb.errors.InvalidArgumentError,
    )


@covers("ROPE", "ROPE_BACK")
@pytest.mark.parametrize("down", [False, True])
def test_rope_xpos(down):
    positions = array([0, 3, 17, 40], "int32")
    inputs = [real(2, 4, 3, 16), positions]
    options = {"xpos_base": 512.0, "xpos_down": down}
    reference = functools.partial(rope, n_dims=16, mode=0, **options)
    tolerance = rope_tolerance(positions.values)
    check(
        lambda t, p: gb.ops.rope(t, p, 16, inplace=True, **options),
        inputs,
        reference,
        tolerance,
        magnitude=rope_magnitude,
        writes=(0,),
    )
    check(
        lambda t, p: gb.ops.rope_back(t, p, 16, **options),
        inputs,
        functools.partial(reference, back=True),
        tolerance,
        magnitude=rope_magnitude,
    )


@covers("ROPE", "ROPE_BACK")
def test_rope_back_reverses_rope():
    """A rotation followed by its reverse gives the input: an oracle without a formula."""
    for mode in (0, 2):
        inputs = [real(2, 9, 4, 32), array(np.arange(9) * 5, "int32")]
        check(
            lambda t, p, m=mode: gb.ops.rope_back(gb.ops.rope(t, p, mode=m), p, mode=m),
            inputs,
            lambda x, p: x,
            Tolerance(40),
            magnitude=rope_magnitude,
        )


@covers("ROPE")
def test_rope_of_odd_heads_and_negative_positions():
    inputs = [real(1, 4, 2, 7), array([-3, 2, -1, 4], "int32")]
    reference = functools.partial(rope, n_dims=6, mode=2)
    check(lambda t, p: gb.ops.rope(t, p, 6, "neox"), inputs, reference, rope_tolerance([4]), magnitude=rope_magnitude)
    refuses(lambda t, p: gb.ops.rope(t, p, 6, "normal"), inputs, gb.errors.InvalidArgumentError)
    refuses(lambda t, p: gb.ops.rope(t, p, 5, "neox"), inputs, gb.errors.InvalidArgumentError)
    inputs[0] = real(1, 4, 2, 8)
    check(gb.ops.rope, inputs, functools.partial(rope, n_dims=8, mode=0), rope_tolerance([4]), magnitude=rope_magnitude)


@covers("ROPE")
def test_rope_far_positions():
    """Small angles stay exact at large positions: pair 31 of 32 at position 100000 has an angle of
    only 13 radians."""
    positions = array([0, 1, 4095, 100000], "int32")
    check(
        gb.ops.rope,
        [real(1, 4, 1, 64), positions],
        functools.partial(rope, n_dims=64, mode=0),
        rope_tolerance([1e5]),
        magnitude=rope_magnitude,
    )


# --------------------------------------------------------------------------------------------------------------- losses

EPS = 1e-9


def loss(a, b):
    p = softmax(a) * (1 - EPS) + EPS
    return -(b * np.log(p)).sum() / math.prod(a.shape[:-1])


@covers("CROSS_ENTROPY_LOSS", "CROSS_ENTROPY_LOSS_BACK")
@pytest.mark.parametrize("dtype", FLOATS)
def test_cross_entropy_loss(dtype):
    for shape in ((1,), (7,), (3, 5), (2, 3, 33), (70, 515), (2, 2, 2, 9)):
        n = shape[-1]
        a, b = real(*shape, dtype=dtype, low=-4, high=4), array(softmax(real(*shape).exact), dtype)
        tolerance = Tolerance(40, n=n + math.prod(shape[:-1]))
        check(
            gb.ops.cross_entropy_loss,
            [a, b],
            loss,
            tolerance,
            magnitude=lambda x, y, s=shape: (y * (12 + s[-1])).sum() / math.prod(s[:-1]),
        )

        def back(x, y, c, s=shape):
            return (softmax(x) * (1 - EPS) + EPS - y) * c / math.prod(s[:-1])

        def magnitude(x, y, c, s=shape):
            return (1 + y) * c / math.prod(s[:-1])

        check(
            gb.ops.cross_entropy_loss_back,
            [a, b, real(1, dtype=dtype)],
            back,
            softmax_tolerance(n, 4),
            magnitude=magnitude,
        )


@covers("CROSS_ENTROPY_LOSS")
def test_cross_entropy_loss_of_zero_probability():
    """A probability of zero costs -ln 1e-9, not infinity."""
    check(gb.ops.cross_entropy_loss, [array([[200.0, 0, 0]]), array([[0.0, 1, 0]])], loss, Tolerance(8))


@covers("ROPE", "ROPE_BACK")
@pytest.mark.parametrize("n_dims", [None, 2, 4, 8])
def test_rope_rotates_only_n_dims_elements_by_default(n_dims):
    """Pairs (2i, 2i+1) below n_dims are rotated, other elements stay, and freq_scale counts
    once."""
    options = {"freq_base": 2.0, "freq_scale": 0.5}
    turned = 8 if n_dims is None else n_dims

    def reference(x, positions, back=False):
        part = rope(x[..., :turned], positions, n_dims=turned, mode=0, back=back, **options)
        return np.concatenate([part, x[..., turned:]], axis=-1)

    inputs = [real(2, 3, 2, 8), array([1, 5, 9], "int32")]
    limits = {"tolerance": rope_tolerance([9]), "magnitude": rope_magnitude}
    check(lambda t, p: gb.ops.rope(t, p, n_dims, **options), inputs, reference, **limits)
    check(
        lambda t, p: gb.ops.rope_back(t, p, n_dims, **options),
        inputs,
        functools.partial(reference, back=True),
        **limits,
    )
