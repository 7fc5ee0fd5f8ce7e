"""NaN, infinities, signed zeros, denormals and the largest numbers: all kernel levels and devices
give equal results, with and without fusion. Also the accuracy of long rows, large logits and
stretched rotations.
"""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import pytest

import ggml_backend as gb
from conftest import unfused
from ggml_backend.ops._rope import ROPE_MODES
from op_harness import EXACT, Built, In, Tolerance, array, check, covers, cpus, random, real, sim

pytestmark = pytest.mark.slow

NAN, INF = math.nan, math.inf
SPECIAL = [NAN, INF, -INF, 0.0, -0.0, 1e-45, -1e-45, 1e-39, -1e-39, 1.1754944e-38, -1.1754944e-38, 3.4028235e38,
 -3.4028235e38, 1.0, -1.0, 3.0,
           -3.0, 88.0, -88.0, -100.0, -104.5, 1e30, -1e30, 127.5, -0.5]  # fmt: skip


def limits(f):
    """f, without warnings about infinity times zero."""

    def g(x):
        y = f(np.clip(x, -1e4, 1e4))
        return np.where(x < -1e4, 0.0, np.where(x > 1e4, x, y))

    return g


def sigmoid(x):
    return np.where(
        x < 0, np.exp(np.minimum(x, 0)) / (1 + np.exp(np.minimum(x, 0))), 1 / (1 + np.exp(-np.maximum(x, 0)))
    )


erfc = np.vectorize(math.erfc, otypes=[np.float64])
FUNCTIONS = {
    "abs": np.abs,
    "neg": np.negative,
    "sgn": lambda x: np.where(np.isnan(x), 0, np.sign(x)),
    "step": lambda x: (x > 0).astype(float),
    "relu": lambda x: np.where(x < 0, 0.0, x),
    "sqr": np.square,
    "sqrt": np.sqrt,
    "log": np.log,
    "tanh": np.tanh,
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "hardsigmoid": lambda x: np.where(np.isnan(x), x, np.clip((x + 3) / 6, 0, 1)),
    "hardswish": lambda x: np.where(np.isnan(x), x, np.where(x <= -3, 0.0, x * np.clip((x + 3) / 6, 0, 1))),
    "silu": limits(lambda x: x * sigmoid(x)),
    "gelu": limits(lambda x: x * sigmoid(2 * math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x * x))),
    "gelu_quick": limits(lambda x: x * sigmoid(1.702 * x)),
    "gelu_erf": limits(lambda x: x / 2 * erfc(-x / math.sqrt(2))),
    "exp": lambda x: np.where(np.exp(x) < 2.0**-126, 0.0, np.exp(x)),
    "sigmoid": lambda x: np.where(np.isnan(x), x, sigmoid(x)),
    "softplus": lambda x: np.where(np.isnan(x), x, np.fmax(x, 0) + np.log1p(np.exp(-np.abs(x)))),
    "sin": np.sin,
    "cos": np.cos,
    "leaky_relu": lambda x: np.where(x > 0, x, np.float64(np.float32(0.01)) * x),
}


def among(special, n, place, fill=0.5, rows=1):
    """Rows of n numbers with one special number at a position."""
    x = np.full((rows, n), fill, np.float32)
    x[:, place] = special
    return x


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name, dtype):
    values = np.asarray(SPECIAL * 5, np.float32)  # 125: every lane, full vectors and a remainder
    tolerance = Tolerance(terms=400)  # for exponents of a hundred; other tests have ordinary values
    with np.errstate(all="ignore"):
        node = check(
            getattr(gb.ops, name),
            [array(values, dtype)],
            FUNCTIONS[name],
            tolerance,
            magnitude=lambda x: np.fmax(np.abs(FUNCTIONS[name](x)), 2.0**-130),
        )
    if name == "relu" and dtype != "bfloat16":
        assert np.signbit(np.asarray(node.numpy(), np.float32))[4], "-0 stays"


@covers("SILU_BACK")
def test_silu_back():
    x = np.asarray([-INF, INF, NAN, 0, -1e30, 1e30, -200, 200], np.float32)
    want = [0, 1, NAN, 0.5, 0, 1, 0, 1]
    check(gb.ops.silu_back, [array(x), array(np.ones(8))], lambda x, dy: np.asarray(want), Tolerance(terms=4))


@covers("ARGMAX", "POOL_1D", "POOL_2D", "SUM_ROWS", "MEAN", "SUM")
@pytest.mark.parametrize("n", [1, 5, 16, 33, 70, 1100])
def test_reductions(n):
    def last_maximum(x):
        return np.asarray([np.flatnonzero(np.isnan(r) if np.isnan(r).any() else r == r.max())[-1] for r in x])

    places = {0, n // 2, n - 1}
    for a, b, place in itertools.product([NAN, INF, -INF, 3.4e38, -0.0], [NAN, INF, -INF, 0.5], places):
        x = among(a, n, place, b, 2)
        with np.errstate(all="ignore"):
            check(gb.ops.argmax, [In(x)], last_maximum, EXACT, dtype="int32", on_sim=n < 40)
            for op, reference in ((gb.ops.sum_rows, np.sum), (gb.ops.mean, np.mean)):
                check(
                    op,
                    [In(x)],
                    lambda x, f=reference: f(x, -1, keepdims=True),
                    Tolerance(n=n),
                    magnitude=lambda x, f=reference: f(np.abs(x), -1, keepdims=True),
                    on_sim=False,
                )
        if n % 5 == 0:
            check(
                lambda x: gb.ops.pool_1d(x, "max", 5),
                [In(x)],
                lambda x: x.reshape(2, -1, 5).max(-1),
                EXACT,
                on_sim=False,
            )


@covers("NORM", "RMS_NORM", "GROUP_NORM", "MEAN")
@pytest.mark.parametrize("n", [2, 17, 64, 600])
def test_norms_of_huge_and_tiny_rows(n):
    """Rows of any scale of float32: squares and sums must not overflow or vanish."""

    def mean_square(x, eps=1e-5):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)

    def norm(x, eps=1e-5):
        d = x - x.mean(-1, keepdims=True)
        return mean_square(d, eps)

    def cancelled(x, eps):
        """A factor for the tolerance: above 1 if values are much larger than their differences."""
        spread = np.sqrt(np.square(x - x.mean(-1, keepdims=True)).mean(-1, keepdims=True) + eps)
        return np.broadcast_to(np.maximum(1, np.abs(x).max(-1, keepdims=True) / (4 * spread)), x.shape)

    for scale in (1e-42, 1e-30, 1e-18, 1.0, 1e15, 1e25, 1e38):
        x = real(3, n, low=-1, high=1)
        while (cancelled(x.values.astype(np.float64), 0) >= 64).any():  # otherwise the tolerance would accept any error
            x = real(3, n, low=-1, high=1)
        x = In((x.values * np.float32(scale)).astype(np.float32))
        big = Tolerance(terms=60, n=n)
        check(gb.ops.norm, [x], norm, big, magnitude=lambda x: cancelled(x, 1e-5), on_sim=n == 17)
        check(gb.ops.rms_norm, [x], mean_square, big, magnitude=lambda x: np.ones_like(x), on_sim=n == 17)
        check(
            lambda x: gb.ops.group_norm(x.reshape(3, 1, n), 3),
            [x],
            lambda x: norm(x, 1e-6).reshape(3, 1, n),
            big,
            magnitude=lambda x: cancelled(x, 1e-6).reshape(3, 1, n),
            on_sim=False,
        )
        check(
            gb.ops.mean,
            [x],
            lambda x: x.mean(-1, keepdims=True),
            Tolerance(terms=4),
            magnitude=lambda x: np.abs(x).mean(-1, keepdims=True),
            on_sim=False,
        )
    check(gb.ops.mean, [In(np.full((2, n), 3e38, np.float32))], lambda x: x.mean(-1, keepdims=True), Tolerance(terms=2))


@covers("POOL_2D")
def test_windows_of_padding():
    x = np.full((1, 2, 2), -INF, np.float32)
    x[0, 0, 0] = NAN

    def windows(x):
        wide = np.pad(x, ((0, 0), (2, 2), (2, 2)), constant_values=-INF)
        return np.asarray([[[wide[0, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].max() for j in range(3)] for i in range(3)]])

    check(lambda x: gb.ops.pool_2d(x, "max", 2, 2, 2), [In(x)], windows, EXACT)


# -------------------------------------------------------------------------------------------------------------- softmax


def soft_max(x, mask=None, scale=1.0):
    t = x * np.float64(np.float32(scale)) + (0 if mask is None else np.tile(mask, (x.shape[0] // mask.shape[0], 1)))
    largest = t.max(-1, keepdims=True)  # NaN if any element is NaN
    e = np.exp(t - largest)
    return np.where(largest == -INF, 0.0, np.where(np.isfinite(largest), e / e.sum(-1, keepdims=True), NAN))


@covers("SOFT_MAX")
@pytest.mark.parametrize("scale", [1.0, 0.5, -10.0, 1e30])
@pytest.mark.parametrize("masked", [False, True])
def test_soft_max(masked, scale):
    pairs = list(itertools.product([NAN, INF, -INF, 3e38, -3e38, 0.0, 1e-45], [NAN, -INF, 3e38, -3e38, 1.0]))
    for n in (1, 4, 17, 64, 65):
        x = np.concatenate([among(a, n, n // 2, b) for a, b in pairs])
        masks = np.concatenate(
            [
                np.zeros((1, n)),
                np.full((1, n), -INF),
                among(-INF, n, n // 2, 0),
                among(0, n, n // 2, -INF),
                among(NAN, n, 0, -INF),
            ]
        )
        for mask in masks.astype(np.float32) if masked else [None]:
            inputs = [In(x)] if mask is None else [In(x), In(mask[None])]
            with np.errstate(all="ignore"):
                check(lambda x, m=None: gb.ops.soft_max(x, m, scale), inputs, functools.partial(soft_max, scale=scale),
                      Tolerance(terms=40, n=n), on_sim=n == 17)  # fmt: skip


@covers("SOFT_MAX")
@pytest.mark.parametrize("heads", [1, 4, 6, 12])
def test_soft_max_with_linear_biases(heads):
    """ALiBi as in its paper: powers of 2^(-8 / n) for n heads, n a power of two. Further heads take
    every second slope of 2 n heads."""
    floor = 2 ** int(math.log2(heads))
    slopes = [2 ** (-8 * (h + 1) / floor) for h in range(floor)] + [
        2 ** (-8 * (2 * h + 1) / (2 * floor)) for h in range(heads - floor)
    ]
    a = real(2, heads, 5, 33)
    distance = -np.abs(np.arange(33) - np.arange(5)[:, None] - 28).astype(np.float32)
    distance[:, -1] = -INF
    check(lambda a, m: gb.ops.soft_max(a, m, 0.5, max_bias=8.0), [a, In(distance)],
          lambda a, m: np.stack([np.stack([soft_max(x, slope * m, 0.5) for x,
           slope in zip(b, slopes, strict=True)]) for b in a]),
          Tolerance(terms=60, n=33))  # fmt: skip
    with gb.Context() as ctx, pytest.raises(gb.errors.InvalidArgumentError, match="max_bias needs a mask"):
        gb.ops.soft_max(ctx.tensor((4, 4), gb.float32), max_bias=8.0)


# ------------------------------------------------------------------------------------------------------ fused attention


def attention(ctx, k, q, v, mask, kind):
    """The chain of models: float32 scores, one of three masks, softmax, transposed values."""
    s = gb.ops.mul_mat(k, q)
    if kind == "causal":
        s = gb.ops.soft_max(gb.ops.diag_mask_inf(gb.ops.scale(s, 0.25), k.shape[-2] - q.shape[-2]))
    elif kind == "mask":
        s = gb.ops.soft_max(s, mask, 0.25)
    else:
        s = gb.ops.soft_max(gb.ops.add(gb.ops.scale(s, 0.25), mask))
    return gb.ops.mul_mat(v, s)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("kind", ["mask", "add", "causal"])
def test_fused_attention_shows_masked_values_like_the_chain(kind, dtype):
    """A NaN or infinity in masked keys and values has the same effect with and without fusion."""
    heads, n, m, d = 2, 20, 40, 16
    rng = random()
    seen = set()
    for where, value in itertools.product(["k", "v", "q", "mask", "nothing"], [NAN, INF, -INF, 60000.0]):
        for backend in [b for _, b in cpus()]:
            data = {"q": rng.standard_normal((heads, n, d)), "k": rng.standard_normal((heads, m, d)),
             "v": rng.standard_normal((heads, d, m)),
                    "mask": np.where(np.arange(m) > np.arange(n)[:, None] + m - n - 4, -INF, 0.0)}  # fmt: skip
            data["mask"][3] = -INF  # a fully masked row
            if where == "k":
                data["k"][0, m - 2, 3] = value  # masked for most queries
            elif where == "v":
                data["v"][1, 5, m - 1] = value
            elif where == "q":
                data["q"][1, 3, 2] = value
            elif where == "mask":
                data["mask"][2, m - 1] = value
            results = []
            for together in (True, False):
                with gb.Context() as ctx:
                    t = {
                        name: ctx.tensor(a.shape, dtype if name in "kv" else gb.float32, name=name)
                        for name, a in data.items()
                    }
                    y = attention(ctx, t["k"], t["q"], t["v"], t["mask"], kind)
                    graph = ctx.graph(y)
                    sched = gb.Scheduler([backend])
                    sched.allocate(graph)
                    with np.errstate(all="ignore"):
                        for name in t:
                            if not (name == "mask" and kind == "causal"):
                                t[name].set(
                                    data[name].astype(np.float16 if dtype == "float16" and name in "kv" else np.float32)
                                )
                        if together:
                            sched.compute(graph)
                        else:
                            with unfused():
                                sched.compute(graph)
                    results.append(y.numpy(copy=True))
            fused, alone = results
            np.testing.assert_array_equal(np.isnan(fused), np.isnan(alone), err_msg=f"{where} {value} {backend.level}")
            np.testing.assert_allclose(fused, alone, rtol=2e-4, atol=2e-5, err_msg=f"{where} {value}")
            seen.add(bool(np.isnan(alone).any()))
    assert seen == {True, False}


@covers("FLASH_ATTN")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("n", "m"), [(3, 5), (20, 40), (60, 600)])
def test_flash_attn_ignores_masked_values(n, m, dtype):
    def reference(q, k, v):
        out = np.empty_like(q)
        for h, i in itertools.product(range(q.shape[0]), range(n)):
            seen = m - n + i + 1
            out[h, i] = v[h, :, :seen] @ soft_max(q[h, i : i + 1] @ k[h, :seen].T, scale=1 / math.sqrt(q.shape[-1]))[0]
        return out

    for value, where in itertools.product([NAN, INF, 60000.0], ["k", "v"]):
        q, k, v = (real(*s, dtype=dtype) for s in ((2, n, 16), (2, m, 16), (2, 16, m)))
        (k.values if where == "k" else v.values)[(0, m - 2, 3) if where == "k" else (1, 5, m - 2)] = value
        with np.errstate(all="ignore"):
            check(lambda *t: gb.ops.flash_attn(*t, True), [q, k, v], reference,
             Tolerance(terms=200, n=16 + m, rounded=2, rounded_to=dtype), dtype="float32",
                  magnitude=lambda q, k, v: 1e4 * np.ones_like(q), on_sim=n == 20, on_cuda=where == "k")  # fmt: skip
            # masked values may have an effect there: docs/CUDA.md


# ------------------------------------------------------------------------------------- activations of quantized weights

FORMATS = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "mxfp4"]


@pytest.mark.parametrize("rows", [1, 3, 20])
@pytest.mark.parametrize("format", FORMATS)
def test_activations_near_the_limits(format, rows):
    """Rows are rounded within the bound, or NaN with a value of 2^100 or more, equally at every
    level."""
    rng = random()
    k, m = 512, 12
    weights = gb.quantize(rng.standard_normal((m, k)).astype(np.float32), format)
    w = gb.dequantize(weights, format).astype(np.float64)
    for largest in (1e-45, 2.0**-101, 2.0**-100, 1e-25, 1.0, 1e25, 2.0**99.9, 2.0**100, 1e38, INF, NAN):
        x = rng.uniform(-0.9, 0.9, (rows, k)) * (largest if math.isfinite(largest) else 1.0)
        x[0, 77] = largest
        x = x.astype(np.float32)
        for label, backend in cpus():
            with gb.Context() as ctx:
                a, b = ctx.tensor((m, k), format), ctx.tensor((rows, k), gb.float32)
                y = gb.ops.mul_mat(a, b)
                graph = ctx.graph(y)
                ctx.allocate(backend)
                a.set(weights)
                b.set(x)
                graph.compute(backend)
                got = y.numpy(copy=True)
            bad = ~(np.abs(x) < 2.0**100).all(-1)
            assert np.isnan(got[bad]).all() and np.isfinite(got[~bad]).all(), f"{format}, {largest}, {label}"
            groups = np.abs(np.nan_to_num(x.astype(np.float64), posinf=0)).reshape(rows, -1, 32).max(-1)
            sums = np.abs(w).reshape(m, -1, 32).sum(-1)
            bound = (groups / 254 + 2.0**-100) @ sums.T + 1e-5 * np.abs(np.nan_to_num(x, posinf=0)).astype(
                np.float64
            ) @ np.abs(w).T
            with np.errstate(all="ignore"):
                off = np.abs(got - x.astype(np.float64) @ w.T)
            assert (off[~bad] <= bound[~bad] * 1.001).all(), (
                f"{format}, {largest}, {label}: {(off / bound)[~bad].max()} of the bound"
            )


# ------------------------------------------------------------------------------------------------------------ long sums


@covers("MUL_MAT")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("n", [8192, 8193, 100_001, 1 << 22])
def test_sums_of_a_long_row(n, dtype):
    """Errors do not grow with the length: sums of positive terms are within 2e-6, at every
    level."""
    a, b = real(3, n, dtype=dtype, low=0), real(1, n, low=0)
    want = b.exact @ a.exact.T
    for label, backend in cpus():
        got = Built(gb.ops.mul_mat, [a, b], backend).compute(backend)
        assert np.abs(got / want - 1).max() < 2e-6, f"{label}: {np.abs(got / want - 1).max()}"


@covers("GET_ROWS_BACK")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_many_additions_to_a_row(dtype):
    n, columns, rows = 1 << 17, 70, 5
    a = real(n, columns, dtype=dtype, low=0)
    index = random().choice(rows, n, p=[0.9, 0.05, 0.05, 0, 0]).astype(np.int32)

    def reference(a, index, c):
        out = np.zeros((rows, columns))
        np.add.at(out, index, a)
        return out

    check(
        gb.ops.get_rows_back,
        [a, In(index), real(rows, columns)],
        reference,
        Tolerance(terms=40),
        dtype="float32",
        on_sim=False,
    )


def test_wrong_index_in_get_rows_back(ctx):
    a, b, c = ctx.tensor((3, 4), gb.float32), ctx.tensor((3,), gb.int32), ctx.tensor((2, 4), gb.float32)
    graph = ctx.graph(gb.ops.get_rows_back(a, b, c))
    backend = cpus()[1][1]
    ctx.allocate(backend)
    a.set(np.ones((3, 4), np.float32))
    for wrong in (2, -1, 2**31 - 1):
        b.set(np.asarray([0, wrong, 1], np.int32))
        with pytest.raises(gb.errors.InvalidArgumentError, match=f"index {wrong} at"):
            graph.compute(backend)


# ---------------------------------------------------------------------------------------------------- losses, rotations


def log_softmax(x):
    m = x.max(-1, keepdims=True)
    return x - m - np.log(np.exp(x - m).sum(-1, keepdims=True))


@covers("CROSS_ENTROPY_LOSS", "CROSS_ENTROPY_LOSS_BACK")
@pytest.mark.parametrize("eps", [0.0, 1e-9, 1e-3])
def test_cross_entropy(eps):
    def loss(a, b):
        p = np.exp(log_softmax(a))
        logs = log_softmax(a) if eps == 0 else np.log(p * (1 - eps) + eps)
        return -np.where(b == 0, 0, b * logs).sum(-1).mean()

    def back(a, b, c):
        p = np.exp(log_softmax(a))
        if eps == 1e-9:
            return (p * (1 - eps) + eps - b) * c / len(a)
        q = p * (1 - eps) + eps
        g = b * p / np.where(q == 0, 1, q) if eps else b
        return -(1 - eps) * (g - p * g.sum(-1, keepdims=True)) * c / len(a)

    for rows, n, far in ((1, 1, 1.0), (4, 7, 5.0), (3, 129, 200.0), (9, 33, 80.0)):
        a, b = real(rows, n, low=-far, high=far), real(rows, n, low=0, high=2 / n)
        if eps == 1e-9:
            b = In((b.values / b.values.sum(-1, keepdims=True)).astype(np.float32))
        check(lambda a, b: gb.ops.cross_entropy_loss(a, b, eps), [a, b], loss, Tolerance(terms=60, n=n))
        check(
            lambda a, b, c: gb.ops.cross_entropy_loss_back(a, b, c, eps),
            [a, b, real(1)],
            back,
            Tolerance(terms=60, n=n),
            magnitude=lambda a, b, c: np.ones_like(a),
        )


def test_far_logits(ctx):
    a, b = ctx.tensor((1, 4), gb.float32), ctx.tensor((1, 4), gb.float32)
    losses = [gb.ops.cross_entropy_loss(a, b), gb.ops.cross_entropy_loss(a, b, 0)]
    graph = ctx.graph(*losses)
    ctx.allocate(cpus()[0][1])
    a.set(np.asarray([[200, 0, -200, 100]], np.float32))
    b.set(np.asarray([[0, 0.5, 0.5, 0]], np.float32))
    graph.compute(cpus()[0][1])
    assert [float(t.numpy()) for t in losses] == [pytest.approx(20.723, abs=1e-3), 300.0]
    for wrong in (-1e-3, 1.0, NAN):
        with pytest.raises(gb.errors.InvalidArgumentError, match="eps must be at least 0 and below 1"):
            gb.ops.cross_entropy_loss(a, b, wrong)


def rotate(
    x,
    positions,
    neox,
    n_dims,
    freq_scale=1.0,
    freq_base=1e4,
    ext_factor=0.0,
    attn_factor=1.0,
    n_orig_ctx=0,
    beta_fast=32.0,
    beta_slow=1.0,
    back=False,
):
    """A reference with complex numbers: pair j is one number, rotated by its angle."""
    half = n_dims // 2
    j = np.arange(half)
    slow = freq_base ** (-2.0 * j / n_dims)  # radians for each position
    speed = freq_scale * slow
    m = attn_factor
    if ext_factor:
        low, high = (
            n_dims / 2 * math.log(n_orig_ctx / (2 * math.pi * beta)) / math.log(freq_base)
            for beta in (beta_fast, beta_slow)
        )
        low, high = max(0, math.floor(low)), min(n_dims - 1, math.ceil(high))
        mix = ext_factor * (1 - np.clip((j - low) / max(1e-3, high - low), 0, 1))
        speed = speed * (1 - mix) + slow * mix
        m *= 1 + 0.1 * math.log(1 / freq_scale)
    turn = m * np.exp(1j * positions[:, None] * speed)[:, None, :]
    first, second = (slice(0, half), slice(half, n_dims)) if neox else (slice(0, n_dims, 2), slice(1, n_dims, 2))
    y = x.copy()
    z = (x[..., first] + 1j * x[..., second]) * (turn.conj() if back else turn)
    y[..., first], y[..., second] = z.real, z.imag
    return y


STRETCHED = [
    {},
    {"freq_scale": 0.25},
    {"freq_scale": 0.25, "ext_factor": 1.0, "n_orig_ctx": 64},
    {"freq_scale": 0.5, "ext_factor": 0.6, "attn_factor": 0.8, "n_orig_ctx": 2048, "freq_base": 5e5},
]


@covers("ROPE", "ROPE_BACK")
@pytest.mark.parametrize("scaling", STRETCHED, ids=str)
@pytest.mark.parametrize("mode", ["normal_exact", "neox_exact"])
def test_exact_rotations(mode, scaling):
    for shape, n_dims in (((1, 5, 3, 64), 16), ((2, 4, 2, 34), 34), ((1, 3, 1, 9), 4), ((1, 7, 4, 64), 64)):
        x, positions = real(*shape), array(random().integers(0, 90, shape[1]), "int32")
        for function, back in ((gb.ops.rope, False), (gb.ops.rope_back, True)):
            check(functools.partial(function, n_dims=n_dims, mode=mode, **scaling), [x, positions],
                  functools.partial(rotate, neox=mode == "neox_exact", n_dims=n_dims, back=back, **scaling),
                  Tolerance(terms=200), magnitude=lambda x, p: np.full_like(x, 4.0))  # fmt: skip


@pytest.mark.parametrize("mode", ["normal_exact", "neox_exact"])
@pytest.mark.parametrize("n_dims", [16, 32])
def test_exact_rotations_into_a_cache(mode, n_dims):
    """A rotation fused with a copy to float16 equals a rotation followed by a copy."""
    results = []
    for together in (True, False):
        with gb.Context() as ctx:
            x, p = ctx.tensor((6, 3, 32), gb.float32), ctx.tensor((6,), gb.int32)
            cache = ctx.tensor((6, 3, 32), gb.float16)
            y = gb.ops.cpy(
                gb.ops.rope(gb.ops.scale(x, 0.5), p, n_dims, mode, freq_scale=0.25, n_orig_ctx=64, ext_factor=1.0),
                cache,
            )
            graph = ctx.graph(y)
            sched = gb.Scheduler([cpus()[0][1]])
            sched.allocate(graph)
            values = random().standard_normal((6, 3, 32)).astype(np.float32)
            x.set(values)
            p.set(np.arange(6, dtype=np.int32) * 9)
            if together:
                sched.compute(graph)
            else:
                with unfused():
                    sched.compute(graph)
            results.append(y.numpy(copy=True))
    assert results[0].tobytes() == results[1].tobytes()
    want = rotate(
        values[None].astype(np.float64) / 2,
        np.arange(6) * 9,
        mode == "neox_exact",
        n_dims,
        0.25,
        ext_factor=1.0,
        n_orig_ctx=64,
    )[0]
    np.testing.assert_allclose(results[0], want, atol=4e-3)


def test_old_and_exact_rotations_agree_without_scale(ctx):
    x, p = ctx.tensor((2, 5, 3, 32), gb.float32), ctx.tensor((5,), gb.int32)
    nodes = [gb.ops.rope(x, p, 32, mode) for mode in ("normal", "normal_exact", "neox", "neox_exact")]
    graph = ctx.graph(*nodes)
    ctx.allocate(cpus()[0][1])
    x.set(random().standard_normal((2, 5, 3, 32)).astype(np.float32))
    p.set(np.arange(5, dtype=np.int32) * 7)
    graph.compute(cpus()[0][1])
    a, b, c, d = (n.numpy(copy=True) for n in nodes)
    assert a.tobytes() == b.tobytes() and c.tobytes() == d.tobytes()
    with pytest.raises(gb.errors.InvalidArgumentError, match="GGML_ROPE_EXACT goes with mode 0 or 2"):
        gb.ops.rope(x, p, 16, 4 | ROPE_MODES["normal_exact"], n_ctx=9)


# -------------------------------------------------------------------------------------------------------------- experts


@pytest.mark.parametrize("format", ["float32", "q8_0"])
def test_experts_in_batches(format):
    rng = random()
    for batch, n, m, k in (((3,), 1, 5, 32), ((2, 3), 9, 17, 64), ((4,), 40, 8, 256)):
        data = [rng.standard_normal((m, k)).astype(np.float32) for _ in range(3)]
        blocks = data if format == "float32" else [gb.quantize(w, format) for w in data]
        exact = [np.asarray(w if format == "float32" else gb.dequantize(w, format), np.float64) for w in blocks]
        ids, x = rng.integers(0, 3, (n, 2)).astype(np.int32), rng.standard_normal((*batch, n, k)).astype(np.float32)
        want = np.stack([x[..., i, :].astype(np.float64) @ exact[e].T for i, e in enumerate(ids[:, 1])], -2)
        for _, backend in (*cpus(), ("SIM", sim())):
            with gb.Context() as own:
                ws = [own.tensor((m, k), format) for _ in data]
                t_ids, t_x = own.tensor((n, 2), gb.int32), own.tensor(x.shape, gb.float32)
                y = gb.ops.mul_mat_id(ws, t_ids, 1, t_x)
                graph = own.graph(y)
                own.allocate(backend)
                for w, b in zip(ws, blocks, strict=True):
                    w.set(b)
                t_ids.set(ids)
                t_x.set(x)
                graph.compute(backend)
                assert y.shape == (*batch, n, m)
                np.testing.assert_allclose(
                    y.numpy(copy=True), want, rtol=1e-5, atol=1e-4 if format == "float32" else 2.0
                )
