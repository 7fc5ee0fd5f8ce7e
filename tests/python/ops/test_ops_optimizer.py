"""Steps of optimizers in place, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import ggml_backend as gb
from op_harness import LAYOUTS, Tolerance, array, check, covers, real

SHAPES = [(1,), (3, 5), (4, 129), (2, 3, 4, 33), (70, 300), (0, 3)]


def sgd(a, g, p):
    return a * (1 - p[0] * p[1]) - p[0] * g


def adamw(a, g, m, v, p):
    m, v = p[1] * m + (1 - p[1]) * g, p[2] * v + (1 - p[2]) * g * g
    return a * (1 - p[0] * p[4]) - p[0] * (m * p[5]) / (np.sqrt(v * p[6]) + p[3])


def positive(*shape):
    return array((np.random.default_rng(1).random(shape) + 0.1).astype(np.float32), "float32")


@covers("OPT_STEP_SGD")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_step_of_gradient_descent(shape):
    for layout in LAYOUTS:
        inputs = [real(*shape, layout=layout), real(*shape), positive(2)]
        check(gb.ops.opt_step_sgd, inputs, sgd, Tolerance(4), writes=(0,), magnitude=lambda a, g, p: abs(a) + abs(g))


@covers("OPT_STEP_ADAMW")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_step_of_adamw(shape):
    for layout in LAYOUTS:
        inputs = [real(*shape, layout=layout), real(*shape), real(*shape), positive(*shape), positive(7)]
        check(
            gb.ops.opt_step_adamw, inputs, adamw, Tolerance(40), writes=(0, 2, 3),
            magnitude=lambda a, g, m, v, p: abs(a) + (abs(m) + abs(g)) * (1 + 1 / np.sqrt(v)),
        )  # fmt: skip


def test_steps_change_the_means_too(cpu):
    """Three steps of AdamW with its usual numbers, by one graph."""
    rng = np.random.default_rng(2)
    a, g = rng.standard_normal((2, 6, 50)).astype(np.float32)
    with gb.Context() as ctx:
        weights, grad, m, v = (ctx.tensor(a.shape, name=name) for name in ("a", "g", "m", "v"))
        params = ctx.tensor((7,), name="params")
        graph = ctx.graph(gb.ops.opt_step_adamw(weights, grad, m, v, params))
        assert [node.op for node in graph.nodes] == ["OPT_STEP_ADAMW"] * 3
        memory = ctx.allocate(cpu)
        for t, x in ((weights, a), (grad, g), (m, 0 * a), (v, 0 * a)):
            t.set(x)
        want, mean, squares = a.astype(float), np.zeros(a.shape), np.zeros(a.shape)
        for t in range(1, 4):
            numbers = [1e-2, 0.9, 0.999, 1e-8, 0.1, 1 / (1 - 0.9**t), 1 / (1 - 0.999**t)]
            params.set(np.array(numbers, np.float32))
            graph.compute(cpu)
            mean, squares = 0.9 * mean + 0.1 * g, 0.999 * squares + 0.001 * g.astype(float) ** 2
            want = want * (1 - 1e-3) - 1e-2 * mean * numbers[5] / (np.sqrt(squares * numbers[6]) + 1e-8)
        np.testing.assert_allclose(weights.numpy(), want, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(m.numpy(), mean, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(v.numpy(), squares, rtol=1e-4, atol=1e-9)
        del memory


def test_steps_say_what_is_wrong(ctx):
    a, params = ctx.tensor((3, 4), name="a"), ctx.tensor((7,), name="params")
    with pytest.raises(gb.errors.InvalidArgumentError, match=r"axis -1 of a and grad must be equal \(4 != 5\)"):
        gb.ops.opt_step_adamw(a, ctx.tensor((3, 5)), a, a, params)
    with pytest.raises(gb.errors.InvalidArgumentError, match="axis -1 of params must be 7, is 2"):
        gb.ops.opt_step_adamw(a, a, a, a, ctx.tensor((2,)))
    with pytest.raises(gb.errors.InvalidArgumentError, match="axis -1 of params must be 2, is 7"):
        gb.ops.opt_step_sgd(a, a, params)
    with pytest.raises(gb.errors.InvalidArgumentError, match="a must be float32, is float16"):
        gb.ops.opt_step_sgd(ctx.tensor((3, 4), "f16"), a, ctx.tensor((2,)))
