"""Each operator of ARRAY, with each library, dtype and layout, against NumPy in float64."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest

import ggml_backend as gb
from array_devices import TEXTS, check, opened
from op_harness import ALL_LAYOUTS, EXACT, FLOATS, LAYOUTS, In, Tolerance, array, real, whole

pytestmark = pytest.mark.parametrize("text", TEXTS)

erf = np.vectorize(math.erf, otypes=[np.float64])


def gelu(x: Any) -> Any:
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


UNARY = {
    "abs": np.abs, "neg": np.negative, "sgn": np.sign, "step": lambda x: (x > 0) * 1.0, "sqr": np.square,
    "sqrt": lambda x: np.sqrt(np.abs(x)), "log": lambda x: np.log(np.abs(x)), "tanh": np.tanh,
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)), "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x * sigmoid(x), "gelu": gelu, "gelu_quick": lambda x: x * sigmoid(1.702 * x),
    "gelu_erf": lambda x: x / 2 * (1 + erf(x / np.sqrt(2))), "hardsigmoid": lambda x: np.clip((x + 3) / 6, 0, 1),
    "hardswish": lambda x: x * np.clip((x + 3) / 6, 0, 1), "exp": np.exp, "sigmoid": sigmoid, "sin": np.sin,
    "cos": np.cos, "softplus": lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),
}  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_tensor(text, name, dtype):
    positive = name in ("sqrt", "log")
    build = getattr(gb.ops, name)
    for layout in LAYOUTS:
        x = real(3, 5, 17, dtype=dtype, low=0.1 if positive else -9, high=9, layout=layout)
        # magnitudes of the summands
        size = np.exp if name == "exp" else lambda x: np.maximum(1, x)
        check(text, build, [x], UNARY[name], Tolerance(terms=24), size)


@pytest.mark.parametrize("name", [n for n in UNARY if n not in ("sqrt", "log")])
def test_functions_of_large_arguments(text, name):
    x = array([-3e38, -1e30, -1e4, -100, -40, -14, -13.99, -9, 0, 9, 40, 100, 1e4])
    tolerance = Tolerance(terms=24)
    function = {**UNARY, "gelu": lambda x: np.where(x < -20, -0.0, np.where(x > 20, x, gelu(np.clip(x, -20, 20))))}[
        name
    ]
    if name == "sqr":
        x = array([-1e19, -1e4, 1e4, 1e19])
    check(text, getattr(gb.ops, name), [x], function, tolerance, lambda x: np.maximum(1, np.abs(function(x))))


BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}


def repeated(b: Any, shape: tuple[int, ...]) -> Any:
    b = b.reshape((1,) * (len(shape) - b.ndim) + b.shape)
    return np.tile(b, [n // m for n, m in zip(shape, b.shape, strict=True)])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", BINARY)
def test_sums_and_products_of_elements(text, name, dtype):
    function, build = BINARY[name], getattr(gb.ops, name)
    for layout in LAYOUTS:
        a, b = real(2, 6, 8, dtype=dtype, layout=layout), real(2, 6, 8, dtype=dtype, low=0.5, layout=layout)
        check(text, build, [a, b], function, Tolerance(), lambda a, b: a + b)
    for shape in [(8,), (1, 8), (6, 1), (2, 1, 1), (1, 1, 1), (3, 8), (2, 4), (2, 3, 2), (1, 2, 8)]:
        a, b = real(2, 6, 8, dtype=dtype), real(*shape, dtype=dtype, low=0.5)
        check(text, build, [a, b], lambda a, b: function(a, repeated(b, a.shape)), Tolerance(),
              lambda a, b: np.abs(function(a, repeated(b, a.shape))) + a + repeated(b, a.shape))  # fmt: skip


COMPARE = {
    "equal": np.equal, "not_equal": np.not_equal, "less": np.less, "less_equal": np.less_equal,
    "greater": np.greater, "greater_equal": np.greater_equal,
}  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", COMPARE)
def test_comparisons(text, name, dtype):
    build, function = getattr(gb.ops, name), COMPARE[name]
    for layout in LAYOUTS:
        a = array(np.tile([1.0, 2, np.nan, -0.0], 6).reshape(2, 3, 4), dtype, layout)
        for b in (real(2, 3, 4, dtype=dtype, layout=layout), array([1.0, 3, np.nan, 0.0], dtype), array([1.0], dtype)):
            check(text, build, [a, b], lambda a, b: function(a, b) * 1.0, EXACT)


@pytest.mark.parametrize("dtype", FLOATS)
def test_where(text, dtype):
    for layout in LAYOUTS:
        a, b = real(2, 6, 8, dtype=dtype, layout=layout), real(2, 6, 8, dtype=dtype, layout=layout)
        for shape in [(2, 6, 8), (8,), (6, 1), (2, 1, 1), (1,)]:
            cond = array(np.resize([0.0, 1, -0.0, np.nan, 3], shape), dtype)
            check(text, gb.ops.where, [cond, a, b], lambda c, a, b: np.where(c != 0, a, b), EXACT)
            check(text, gb.ops.where, [cond, a, real(1, 8, dtype=dtype)], lambda c, a, b: np.where(c != 0, a, b), EXACT)


@pytest.mark.parametrize("dtype", FLOATS)
def test_operators_with_numbers(text, dtype):
    for layout in LAYOUTS:
        x = real(3, 5, 17, dtype=dtype, layout=layout)
        check(text, lambda x: gb.ops.scale(x, 0.3), [x], lambda x: np.float32(0.3) * x)
        check(text, lambda x: gb.ops.clamp(x, -0.5, 0.75), [x], lambda x: np.clip(x, -0.5, 0.75), EXACT, writes=[0])
        check(text, lambda x: gb.ops.leaky_relu(x, 0.1), [x], lambda x: np.where(x > 0, x, np.float32(0.1) * x))


def product(w: Any, x: Any) -> Any:
    w = w.reshape((1,) * (x.ndim - w.ndim) + w.shape)
    for axis in range(x.ndim - 2):
        w = np.repeat(w, x.shape[axis] // w.shape[axis], axis)
    return x @ w.swapaxes(-1, -2)


PRODUCTS = [
    ((5, 33), (7, 33)), ((5, 33), (33,)), ((5, 16), (2, 3, 7, 16)), ((2, 5, 16), (2, 7, 16)), ((2, 5, 16), (4, 7, 16)),
    ((2, 5, 16), (6, 1, 16)), ((2, 3, 5, 16), (2, 3, 4, 16)), ((1, 3, 5, 16), (2, 6, 4, 16)),
    ((2, 1, 5, 16), (4, 3, 1, 16)), ((1, 1), (1, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("weights", "values"), [(w, x) for w in FLOATS for x in FLOATS if w == x or x == "float32"])
@pytest.mark.parametrize(("w", "x"), PRODUCTS)
def test_products(text, w, x, weights, values):
    for layout in LAYOUTS:
        a, b = real(*w, dtype=weights, layout=layout), real(*x, dtype=values, layout=layout)
        tolerance = Tolerance(n=w[-1])
        reference = product if len(x) >= len(w) else lambda w, x: w @ x
        check(text, gb.ops.mul_mat, [a, b], reference, tolerance, reference)


@pytest.mark.parametrize("name", [d.name for d in gb.dtypes.dtypes.values() if d.is_quantized and d.name[:4] != "q8_1"])
def test_products_with_quantized_weights_and_rows_of_them(text, name, rng):
    """ARRAY rounds nothing, unlike the CPU."""
    dtype = gb.dtypes.as_dtype(name)
    if name == "q8_k":
        pytest.skip("Q8_K is for activations: no product takes it as weights")
    k, device = 2 * dtype.block_size, opened(text)
    floats = (rng.standard_normal((6, k)) / 4).astype(np.float32)
    blocks = gb.quantize(floats, dtype, np.ones(k, np.float32))
    wide = gb.dequantize(blocks, dtype).astype(np.float64)
    x = rng.standard_normal((5, k)).astype(np.float32)
    with gb.Context() as ctx:
        w, b, ids = ctx.tensor((6, k), dtype), ctx.tensor((5, k)), ctx.tensor((4,), gb.int32)
        y, rows = gb.ops.mul_mat(w, b), gb.ops.get_rows(w, ids)
        graph = ctx.graph(y, rows)
        assert device.supports(y) and device.supports(rows)
        memory = ctx.allocate(device)
        w.set(blocks)
        b.set(x)
        ids.set(np.array([5, 0, 3, 5], np.int32))
        graph.compute(device)
        limit = (k + 2) * 2.0**-24 * (np.abs(x.astype(np.float64)) @ np.abs(wide.T)).max()
        np.testing.assert_allclose(y.numpy(), x @ wide.T, rtol=0, atol=limit)
        np.testing.assert_array_equal(rows.numpy(), wide[[5, 0, 3, 5]].astype(np.float32))
        del memory


@pytest.mark.parametrize("dtype", [*FLOATS, "int32"])
def test_rows_of_tables(text, dtype):
    def table(*shape: int, layout: str = "whole") -> In:
        return whole(*shape, low=-99, high=99, layout=layout) if dtype == "int32" else real(
            *shape, dtype=dtype, layout=layout)  # fmt: skip

    for layout in LAYOUTS:
        check(text, gb.ops.get_rows, [table(9, 7, layout=layout), whole(5, low=0, high=9)], lambda a, i: a[i], EXACT)
        check(text, gb.ops.get_rows, [table(2, 9, 7, layout=layout), whole(2, 4, low=0, high=9, layout="padded")],
              lambda a, i: np.stack([a[k][i[k]] for k in range(2)]), EXACT)  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
def test_rows_that_are_written(text, dtype):
    def written(a: Any, b: Any, c: Any) -> Any:
        a = a.copy()
        a[c] = b
        return a

    for source in FLOATS:
        for layout in LAYOUTS:
            c = In(np.array([7, 0, 3], "int64" if layout == "whole" else "int32"))
            a, b = real(9, 7, dtype=dtype, layout=layout), real(3, 7, dtype=source, layout=layout)
            check(text, gb.ops.set_rows, [a, b, c], written, Tolerance(terms=1), writes=(0,))


@pytest.mark.parametrize("wrong", [-1, 9, 2**31 - 1])
def test_indices_out_of_range_are_an_error(text, wrong):
    device = opened(text)
    with gb.Context() as ctx:
        a, ids = ctx.tensor((9, 4), name="table"), ctx.tensor((3,), gb.int32, name="ids")
        y = gb.ops.get_rows(a, ids)
        y.name = "rows"
        graph, memory = ctx.graph(y), ctx.allocate(device)
        a.set(np.zeros((9, 4), np.float32))
        ids.set(np.array([0, wrong, 1], np.int32))
        with pytest.raises(gb.errors.InvalidArgumentError, match=r"out of range") as caught:
            graph.compute(device)
        assert "'rows'" in str(caught.value) + str(caught.value.__notes__)
        ids.set(np.array([0, 8, 1], np.int32))
        graph.compute(device)  # the device stays usable
        del memory


@pytest.mark.parametrize("dtype", FLOATS)
def test_norms(text, dtype):
    def norm(x: Any) -> Any:
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + np.float32(1e-5))

    def rms(x: Any) -> Any:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + np.float32(1e-5))

    for layout in LAYOUTS:
        for shape in [(3, 64), (2, 3, 4, 33), (5,)]:
            x = real(*shape, dtype=dtype, layout=layout)
            check(text, gb.ops.norm, [x], norm, Tolerance(terms=8, n=shape[-1]), lambda x: 1 + np.abs(norm(x)))
            check(text, gb.ops.rms_norm, [x], rms, Tolerance(terms=8, n=shape[-1]))


def soft_max(x: Any) -> Any:
    e = np.exp(x - np.where(np.isneginf(x.max(-1, keepdims=True)), 0, x.max(-1, keepdims=True)))
    total = e.sum(-1, keepdims=True)
    return e / np.where(total == 0, 1, total)


@pytest.mark.parametrize("dtype", FLOATS)
def test_soft_max(text, dtype):
    tolerance = Tolerance(terms=24, n=17)
    for shape in [(17,), (6, 17), (2, 6, 17), (2, 4, 6, 17)]:
        x = real(*shape, dtype=dtype)
        check(text, gb.ops.soft_max, [x], soft_max, tolerance)
        check(text, lambda x: gb.ops.soft_max(x, scale=0.25), [x], lambda x: soft_max(x / 4), tolerance)
        for rows in (6, 3, 1) if len(shape) > 1 else (1,):
            mask = real(rows, 17)
            mask.values[..., 3:9] = -np.inf
            mask.values[0] = -np.inf  # a fully masked row gives zeros
            check(text, lambda x, m: gb.ops.soft_max(x, m, 0.25), [x, mask],
                  lambda x, m, shape=shape, rows=rows: soft_max(
                      x / 4 + (np.tile(m, (shape[-2] // rows, 1)) if len(shape) > 1 else m[0])), tolerance)  # fmt: skip


def test_soft_max_with_linear_biases(text):
    x, mask = real(2, 12, 3, 9), array(-np.abs(np.arange(3)[:, None] - np.arange(9.0)))
    slopes = [2 ** (-(h + 1)) for h in range(8)] + [2 ** (-(2 * h + 1) / 2) for h in range(4)]
    bias = np.array(slopes)[:, None, None]
    check(text, lambda x, m: gb.ops.soft_max(x, m, 0.5, max_bias=8.0), [x, mask],
          lambda x, m: soft_max(x / 2 + bias * m), Tolerance(terms=32, n=9))  # fmt: skip


def test_soft_max_of_nan(text):
    x = array([[1, np.nan, 2], [np.inf, 0, 1], [-np.inf, -np.inf, -np.inf], [-np.inf, 0, 0]])
    want = np.array([[np.nan] * 3, [np.nan] * 3, [0, 0, 0], [0, 0.5, 0.5]])
    check(text, gb.ops.soft_max, [x], lambda x: want)


@pytest.mark.parametrize("dtype", FLOATS)
def test_masks_over_diagonals(text, dtype):
    for past in (0, 2):
        x = real(2, 4, 6, dtype=dtype, layout="offset")
        later = np.arange(6) > past + np.arange(4)[:, None]
        check(text, partial(gb.ops.diag_mask_inf, n_past=past), [x], lambda x, m=later: np.where(m, -np.inf, x), EXACT)
        check(text, partial(gb.ops.diag_mask_zero, n_past=past), [x], lambda x, m=later: np.where(m, 0, x), EXACT)


def rotated(x: Any, positions: Any, n: int, halves: bool, base: float, scale: float, magnitude: float) -> Any:
    angle = positions[:, None, None] * scale * base ** (-2 * np.arange(n // 2) / n)
    c, s = np.cos(angle) * magnitude, np.sin(angle) * magnitude
    one, two = (slice(0, n // 2), slice(n // 2, n)) if halves else (slice(0, n, 2), slice(1, n, 2))
    out = x.copy()
    out[..., one], out[..., two] = x[..., one] * c - x[..., two] * s, x[..., one] * s + x[..., two] * c
    return out


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("mode", ["normal_exact", "neox_exact", "normal", "neox"])
def test_rotations(text, mode, dtype):
    positions = whole(5, low=0, high=4000)
    for shape in [(5, 3, 16), (2, 5, 3, 16)]:
        for n in (16, 8) if mode != "normal" else (16,):
            scale = 1.0 if mode == "neox" else 0.5
            options = {"freq_base": 500000.0, "freq_scale": scale, "attn_factor": 1.25}
            for layout in LAYOUTS:
                x = real(*shape, dtype=dtype, layout=layout)
                check(text, lambda x, p, n=n, o=options: gb.ops.rope(x, p, n, mode, **o), [x, positions],
                      lambda x, p, n=n, s=scale: rotated(x, p, n, mode.startswith("neox"), 500000.0, s, 1.25),
                      Tolerance(terms=6), lambda x, p: 2.5 * np.ones_like(x) * x.max())  # fmt: skip


def test_rotations_in_place(text):
    x, positions = real(5, 3, 16), whole(5, low=0, high=40)
    check(text, lambda x, p: gb.ops.rope(x, p, 16, "normal_exact", inplace=True), [x, positions],
          lambda x, p: rotated(x, p, 16, False, 10000.0, 1.0, 1.0), Tolerance(terms=6),
          lambda x, p: 2 * np.ones_like(x) * x.max(), writes=[0])  # fmt: skip


@pytest.mark.parametrize("to", FLOATS)
@pytest.mark.parametrize("of", FLOATS)
def test_copies(text, of, to):
    for layout in ALL_LAYOUTS:
        x = real(2, 6, 8, dtype=of, layout=layout)
        check(text, gb.ops.cont, [x], lambda x: x, EXACT)
        check(text, lambda x: gb.ops.cast(x, to), [x], lambda x: x, EXACT if of == to else Tolerance())
        check(text, lambda x: gb.ops.cont(x, (4, 24)), [x], lambda x: x.reshape(4, 24), EXACT)
        for there in LAYOUTS:
            check(text, gb.ops.cpy, [x, real(2, 6, 8, dtype=to, layout=there)], lambda x, _: x,
                  EXACT if of == to else Tolerance(), writes=[1])  # fmt: skip


def test_rounding_to_fewer_bits(text):
    """Rounds to nearest, ties to even. Overflow is infinite, and NaN stays NaN."""
    values = np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8, -1 - 2.0**-8, 3.4e38, -3.4e38, 65520, 65519, np.nan, np.inf,
                       -np.inf, 2.0**-24, 2.0**-25, 1e-40, 0.0, -0.0])  # fmt: skip
    for dtype in ("float16", "bfloat16"):
        with np.errstate(over="ignore"):
            want = array(values.astype(np.float32), dtype).exact
        check(text, lambda x, d=dtype: gb.ops.cast(x, d), [array(values)], lambda x, w=want: w, EXACT)


@pytest.mark.parametrize("dtype", [*FLOATS, "int32", "int16"])
def test_repetition_and_concatenation(text, dtype):
    def some(*shape: int, layout: str = "whole") -> In:
        if dtype.startswith("int"):
            return whole(*shape, low=-99, high=99, dtype=dtype, layout=layout)
        return real(*shape, dtype=dtype, layout=layout)

    if dtype != "bfloat16":
        for layout in LAYOUTS:
            check(text, lambda x: gb.ops.repeat(x, (4, 6, 8)), [some(2, 3, 8, layout=layout)],
                  lambda x: np.tile(x, (2, 2, 1)), EXACT)  # fmt: skip
            check(text, lambda x: gb.ops.repeat(x, (2, 3, 4, 6)), [some(4, 3, layout=layout)],
                  lambda x: np.tile(x, (2, 3, 1, 2)), EXACT)  # fmt: skip
    if dtype in ("float32", "int32"):
        for layout in LAYOUTS:
            a, b = some(2, 3, 4, layout=layout), some(5, 3, 4, layout=layout)
            check(text, gb.ops.concat, [a, b], lambda a, b: np.concatenate([a, b], -3), EXACT)


@pytest.mark.parametrize("dtype", FLOATS)
def test_sums_of_rows(text, dtype):
    for layout in LAYOUTS:
        x = real(2, 3, 33, dtype=dtype, layout=layout)
        tolerance = Tolerance(terms=4, n=33)
        check(
            text,
            gb.ops.sum_rows,
            [x],
            lambda x: x.sum(-1, keepdims=True),
            tolerance,
            lambda x: x.sum(-1, keepdims=True),
        )
        check(
            text, gb.ops.mean, [x], lambda x: x.mean(-1, keepdims=True), tolerance, lambda x: x.mean(-1, keepdims=True)
        )


def test_sinks_without_a_mask(text):
    """As many sinks as a row has elements, so that a mistaken mask would fit."""

    def with_sinks(x: Any, sinks: Any) -> Any:
        e, sink = np.exp(x), np.exp(sinks)[:, None, None]
        return e / (e.sum(-1, keepdims=True) + sink)

    check(text, lambda x, s: gb.ops.soft_max(x, sinks=s), [real(2, 7, 3, 7), real(7)], with_sinks, Tolerance(32, 7))


def attended(q: Any, k: Any, v: Any, mask: Any, cap: float = 0.0) -> Any:
    """All tensors have four axes. Hidden keys are left out, so they may be NaN."""
    out = np.zeros((*q.shape[:3], v.shape[3]))
    for b, h, n in np.ndindex(*q.shape[:3]):
        keys, values = (t[b, h * t.shape[1] // q.shape[1]] for t in (k, v))
        seen = np.flatnonzero(mask[n] > -np.inf)
        score = keys[seen] @ q[b, h, n] / math.sqrt(q.shape[3])
        score = (cap * np.tanh(score / cap) if cap else score) + mask[n, seen]
        e = np.exp(score - score.max(initial=-1e30))
        out[b, h, n] = e @ values[seen] / (e.sum() or 1)
    return out.transpose(0, 2, 1, 3)


@pytest.mark.parametrize("cap", [0.0, 3.0])
@pytest.mark.parametrize("dtype", FLOATS)
def test_attention(text, dtype, cap):
    """With grouped heads, values shorter than keys, a query that sees nothing, and hidden keys that are NaN."""
    for layout in LAYOUTS:
        q, mask = real(2, 6, 5, 16), real(5, 9)
        k, v = real(2, 2, 9, 16, dtype=dtype, layout=layout), real(2, 2, 9, 8, dtype=dtype, layout=layout)
        mask.values[3], mask.values[:, 4:6], mask.values[0, 7:] = -np.inf, -np.inf, -np.inf
        for t in (k, v):
            t.values[:, :, 4:6] = np.nan
        check(text, lambda *t, c=cap: gb.ops.flash_attn_ext(*t, softcap=c), [q, k, v, mask],
              lambda *t, c=cap: attended(*t, cap=c), Tolerance(64, 9), lambda *t: 3.0)  # fmt: skip


@pytest.mark.parametrize("name", ["conv_2d", "conv_depthwise_2d"])
def test_convolutions(text, name):
    def convolved(w: Any, x: Any) -> Any:
        x = np.pad(x, ((0, 0), (0, 0), (2, 2), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], (2, 3))[:, :, ::2]
        return np.einsum("ocij,ncyxij->noyx" if name == "conv_2d" else "ocij,noyxij->noyx", w, windows)

    for layout in ALL_LAYOUTS:
        w, x = real(4, 1 if "depth" in name else 4, 3, 2), real(2, 4, 7, 9, layout=layout)
        check(text, lambda w, x: getattr(gb.ops, name)(w, x, stride=(2, 1), padding=(2, 1)), [w, x], convolved,
              Tolerance(n=24), lambda *t: 24.0)  # fmt: skip


@pytest.mark.parametrize("wrong", [-1, 3])
def test_a_state_out_of_range_is_an_error(text, wrong):
    device, shapes = opened(text), [(3, 4, 6, 5), (1, 2, 4, 6), (1, 2, 4), (4, 1), (1, 2, 2, 5), (1, 2, 2, 5)]
    with gb.Context() as ctx:
        tensors, ids = [ctx.tensor(shape) for shape in shapes], ctx.tensor((1,), gb.int32)
        y, _ = gb.ops.ssm_scan(*tensors, ids)
        graph, memory = ctx.graph(y), ctx.allocate(device)
        for t in tensors:
            t.set(np.ones(t.shape, np.float32))
        ids.set(np.array([wrong], np.int32))
        with pytest.raises(gb.errors.InvalidArgumentError, match="out of range"):
            graph.compute(device)
        ids.set(np.array([2], np.int32))
        graph.compute(device)
        assert np.isfinite(y.numpy()).all()
        del memory
