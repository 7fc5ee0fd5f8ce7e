"""Operators of ARRAY with each library: large numbers, NaN, quantized weights and wrong indices.

The tests in ``tests/python/ops`` also run on ARRAY, with NumPy and in ``tools/check_torch.sh`` with PyTorch.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import ggml_backend as gb
from array_devices import TEXTS, check, opened
from op_harness import Tolerance, array

pytestmark = pytest.mark.parametrize("text", TEXTS)

erf = np.vectorize(math.erf, otypes=[np.float64])


def gelu(x: Any) -> Any:
    near = np.clip(x, -20, 20)
    inner = near / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (near + 0.044715 * near**3)))
    return np.where(x < -20, -0.0, np.where(x > 20, x, inner))


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


UNARY = {
    "abs": np.abs, "neg": np.negative, "sgn": np.sign, "step": lambda x: (x > 0) * 1.0, "sqr": np.square,
    "tanh": np.tanh, "elu": lambda x: np.where(x > 0, x, np.expm1(x)), "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x * sigmoid(x), "gelu": gelu, "gelu_quick": lambda x: x * sigmoid(1.702 * x),
    "gelu_erf": lambda x: x / 2 * (1 + erf(x / np.sqrt(2))), "hardsigmoid": lambda x: np.clip((x + 3) / 6, 0, 1),
    "hardswish": lambda x: x * np.clip((x + 3) / 6, 0, 1), "exp": np.exp, "sigmoid": sigmoid, "sin": np.sin,
    "cos": np.cos, "softplus": lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),
}  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_large_arguments(text, name):
    x = array([-3e38, -1e30, -1e4, -100, -40, -14, -13.99, -9, 0, 9, 40, 100, 1e4])
    function = UNARY[name]
    if name == "sqr":
        x = array([-1e19, -1e4, 1e4, 1e19])
    check(text, getattr(gb.ops, name), [x], function, Tolerance(24), lambda x: np.maximum(1, np.abs(function(x))))


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


def test_soft_max_of_nan(text):
    x = array([[1, np.nan, 2], [np.inf, 0, 1], [-np.inf, -np.inf, -np.inf], [-np.inf, 0, 0]])
    want = np.array([[np.nan] * 3, [np.nan] * 3, [0, 0, 0], [0, 0.5, 0.5]])
    check(text, gb.ops.soft_max, [x], lambda x: want)


OF_TWO_AXES = {
    "add": lambda w, x: (w + x) * x, "sub": lambda w, x: x - w, "mul": lambda w, x: w * x, "div": lambda w, x: x / w,
    "scale": lambda w, x: w * 2.0 + x, "silu": lambda w, x: gb.ops.silu(w) + x, "exp": lambda w, x: gb.ops.exp(w) * x,
    "soft_max": lambda w, x: gb.ops.soft_max(w) * x, "rms_norm": lambda w, x: gb.ops.rms_norm(w) * x,
    "product": lambda w, x: gb.ops.mul_mat(w, x),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_TWO_AXES)
def test_a_gradient_may_have_fewer_axes_than_its_sources(text, name, rng):
    arrays = [rng.random(shape, np.float32) + 1 for shape in ((3, 4), (1, 3, 4))]
    found = []
    for device in (opened(text), gb.Backend("CPU")):
        with gb.Context() as ctx:
            tensors = [ctx.tensor(a.shape, name=n) for a, n in zip(arrays, "wx", strict=True)]
            y = OF_TWO_AXES[name](*tensors)
            with ctx.as_default():
                (slope,) = gb.grad(gb.ops.sum(y * y), tensors[:1])
            assert slope.shape == (3, 4) and device.supports(slope)
            graph, memory = ctx.graph(slope), ctx.allocate(device)
            for t, a in zip(tensors, arrays, strict=True):
                t.set(a)
            graph.compute(device)
            found.append(slope.numpy(copy=True))
            del memory
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-5)


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
