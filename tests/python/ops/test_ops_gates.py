"""Gated linear units, rounding, expm1, xielu and scale with a bias, against NumPy."""

from __future__ import annotations

import itertools
import math
from functools import partial

import numpy as np
import pytest

import ggml_backend as gb
from conftest import fusion
from op_harness import ALL_LAYOUTS, EMPTY, EXACT, FLOATS, SHAPES, Tolerance, array, both_ways, check, covers, real

erf = np.vectorize(math.erf, otypes=[float])


def sigmoid(x):
    return 0.5 * (1 + np.tanh(x / 2))


ACTIVATIONS = {
    "reglu": lambda x: np.maximum(x, 0),
    "geglu": lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x * x))),
    "swiglu": lambda x: x * sigmoid(x),
    "geglu_erf": lambda x: x / 2 * (1 + erf(x / math.sqrt(2))),
    "geglu_quick": lambda x: x * sigmoid(1.702 * x),
}
SMOOTH = Tolerance(terms=24)


def even(shape):
    return (*shape[:-1], 2 * shape[-1])


def halves(x):
    return x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]


@covers("GLU")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gates(name, dtype):
    f, both = ACTIVATIONS[name], getattr(gb.ops, name)
    size = lambda x, g: np.abs(x) * np.abs(g)  # noqa: E731
    for shape, layout in zip([*SHAPES, *EMPTY, (3, 1100)], itertools.cycle(ALL_LAYOUTS)):
        of_two = [real(*shape, dtype=dtype, layout=layout), real(*shape, dtype=dtype)]
        check(both, of_two, lambda x, g: f(x) * g, SMOOTH, magnitude=size)
        check(partial(gb.ops.glu, op=name), of_two, lambda x, g: f(x) * g, SMOOTH, magnitude=size)
        one = [real(*even(shape), dtype=dtype, layout=layout)]
        check(both, one, lambda a: f(halves(a)[0]) * halves(a)[1], SMOOTH, magnitude=lambda a: size(*halves(a)))
        check(
            partial(both, swapped=True),
            one,
            lambda a: f(halves(a)[1]) * halves(a)[0],
            SMOOTH,
            magnitude=lambda a: size(*halves(a)),
        )


@covers("GLU")
def test_gate_of_gpt_oss():
    def gate(x, g, alpha=1.702, limit=7.0):
        x, g = np.minimum(x, limit), np.clip(g, -limit, limit)
        return x * sigmoid(alpha * x) * (g + 1)

    size = lambda x, g: np.abs(x) * (np.abs(g) + 1) + 1  # noqa: E731
    for shape in SHAPES:
        pair = [real(*shape, low=-12, high=12), real(*shape, low=-12, high=12)]
        check(gb.ops.swiglu_oai, pair, gate, SMOOTH, magnitude=size)
        check(
            partial(gb.ops.swiglu_oai, alpha=0.5, limit=3.0),
            pair,
            partial(gate, alpha=0.5, limit=3.0),
            SMOOTH,
            magnitude=size,
        )
    one = [real(3, 66, low=-12, high=12)]
    check(gb.ops.swiglu_oai, one, lambda a: gate(*halves(a)), SMOOTH, magnitude=lambda a: size(*halves(a)))


@covers("GLU")
def test_reglu_is_zero_for_any_gate_if_relu_is_zero():
    x = array([-1.0, 0.0, -0.0, 2.0, math.nan])
    g = array([math.inf, math.nan, -math.inf, 3.0, 1.0])
    check(gb.ops.reglu, [x, g], lambda x, g: np.array([0, 0, 0, 6, math.nan]), EXACT)


def test_gates_need_even_rows_and_equal_shapes(ctx):
    with pytest.raises(gb.errors.InvalidArgumentError, match=r"axis -1 of a must be even, is 5"):
        gb.ops.glu(ctx.tensor((3, 5)))
    with pytest.raises(gb.errors.InvalidArgumentError, match=r"must be equal \(4 != 6\)"):
        gb.ops.swiglu(ctx.tensor((3, 4)), ctx.tensor((3, 6)))
    with pytest.raises(gb.errors.InvalidArgumentError, match="op must be one of 'reglu'"):
        gb.ops.glu(ctx.tensor((3, 4)), op="gelu")
    with pytest.raises(gb.errors.InvalidArgumentError, match="exchange a and b"):
        gb.ops.glu(ctx.tensor((3, 4)), ctx.tensor((3, 4)), swapped=True)


def round_half_away(x):
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


INTEGERS = {"floor": np.floor, "ceil": np.ceil, "round": round_half_away, "trunc": np.trunc}
HARD = [0.5, -0.5, 1.5, 2.5, -2.5, 0.49999997, -0.49999997, 8388607.5, 8388608.0, -16777216.0, 3e38, -0.0, 1e-45]


@covers("FLOOR", "CEIL", "ROUND", "TRUNC")
@pytest.mark.parametrize("name", INTEGERS)
def test_rounding_to_integers(name):
    function, reference = getattr(gb.ops, name), INTEGERS[name]
    for shape, dtype in zip(SHAPES, itertools.cycle(FLOATS)):
        both_ways(function, [real(*shape, dtype=dtype, low=-9, high=9)], reference, EXACT)
    check(function, [array([*HARD, math.nan, math.inf, -math.inf])], reference, EXACT)


@covers("EXPM1")
def test_expm1():
    for shape, dtype in zip(SHAPES, itertools.cycle(FLOATS)):
        both_ways(gb.ops.expm1, [real(*shape, dtype=dtype, low=-9, high=9)], np.expm1, Tolerance(terms=8))
    near = [s * 10.0**e for e in range(-30, 2) for s in (1, -1)]
    check(
        gb.ops.expm1, [array([*near, 19.9, 20.1, 88.5, 89.5, -104, math.inf, -math.inf])], np.expm1, Tolerance(terms=8)
    )


@covers("XIELU")
def test_xielu():
    def xielu(x, alpha_n, alpha_p, beta, eps):
        low = (np.expm1(np.minimum(x, eps)) - x) * (beta + np.logaddexp(0, alpha_n)) + beta * x
        return np.where(x > 0, np.logaddexp(0, alpha_p) * x * x + beta * x, low)

    for shape, numbers in zip(SHAPES, itertools.cycle([(0.3, 0.7, 0.5, -1e-6), (25.0, -2.0, 0.1, -0.5)])):
        size = lambda x, n=numbers: (x * x + x + 1) * (2 + abs(n[0]))  # noqa: E731
        x = [real(*shape, low=-4, high=4)]
        check(partial(_xielu, numbers), x, lambda x, n=numbers: xielu(x, *n), Tolerance(terms=16), magnitude=size)


def _xielu(numbers, x):
    return gb.ops.xielu(x, *numbers)


@covers("SCALE_BIAS")
def test_scale_with_a_bias():
    for shape, dtype in zip([*SHAPES, *EMPTY], itertools.cycle(FLOATS)):
        scaled = lambda x, **o: gb.ops.scale(x, 0.37, -1.25, **o)  # noqa: E731
        wanted = lambda x: float(np.float32(0.37)) * x - 1.25  # noqa: E731
        both_ways(scaled, [real(*shape, dtype=dtype)], wanted, Tolerance(terms=2), magnitude=lambda x: x + 1.25)


def test_scale_without_a_bias_is_the_operator_of_all_backends(ctx):
    x = ctx.tensor((3, 4))
    assert gb.ops.scale(x, 2.0).op == "SCALE" and gb.ops.scale(x, 2.0, 0).op == "SCALE"
    assert gb.ops.scale(x, 2.0, 1).op == "SCALE_BIAS"


@pytest.mark.parametrize("rows", [1, 7])
def test_a_gate_is_fused_with_its_product(cpu, rng, rows):
    """The bits are those without fusion."""
    with gb.Context() as ctx:
        w1, w2 = (ctx.constant(rng.standard_normal((96, 64)).astype(np.float32)) for _ in range(2))
        x = ctx.constant(rng.standard_normal((rows, 64)).astype(np.float32))
        up, gate = x @ w2.T, x @ w1.T
        y = gb.ops.swiglu(gate, up)
        found, fusions = [], []
        for on in (False, True):
            with fusion(on), gb.Scheduler(cpu) as sched, sched.profile() as profile:
                sched.compute(ctx.graph(y))
                found.append(y.numpy(copy=True))
            fusions.append([step.fusion for step in profile.steps])
        assert fusions == [["", "", ""], ["", "product"]]
        np.testing.assert_array_equal(*found)
