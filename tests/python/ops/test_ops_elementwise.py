"""Elementwise operations against NumPy."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import pytest

import ggml_backend as gb
from op_harness import (
    ALL_LAYOUTS,
    EMPTY,
    EXACT,
    FLOATS,
    LAYOUTS,
    SHAPES,
    Built,
    In,
    Tolerance,
    array,
    both_ways,
    check,
    covers,
    cpus,
    is_view,
    real,
    refuses,
    whole,
)  # fmt: skip

erf = np.vectorize(math.erf, otypes=[np.float64])


def gelu(x):
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x * x)))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def identity(x):
    return x


def tanh_of_gelu(x):  # 1 + tanh(t) near -1: the error is that of 1
    return np.abs(x)


def at_least_1(x):
    return np.fmax(1.0, np.abs(x))


def normal(function):
    """Flushes denormal results to 0."""

    def cut(x):
        y = function(x)
        return np.where(np.abs(y) < 2.0**-125, 0.0, y)

    return cut


# name: (reference, tolerance, magnitude or None, lowest and highest input)
# A product or sum has one rounding. A function of the C library, or its polynomial, has a few. The
# rounding of the argument of exp counts x times.
UNARY = {
    "abs": (np.abs, EXACT, None, (-2, 2)),
    "sgn": (np.sign, EXACT, None, (-2, 2)),
    "neg": (np.negative, EXACT, None, (-2, 2)),
    "step": (lambda x: (x > 0) * 1.0, EXACT, None, (-2, 2)),
    "floor": (np.floor, EXACT, None, (-9, 9)),
    "ceil": (np.ceil, EXACT, None, (-9, 9)),
    "trunc": (np.trunc, EXACT, None, (-9, 9)),
    "round": (lambda x: np.trunc(x + np.copysign(0.5, x)), EXACT, None, (-9, 9)),
    "expm1": (np.expm1, Tolerance(4), None, (-20, 20)),
    "tanh": (np.tanh, Tolerance(8), None, (-9, 9)),
    "elu": (lambda x: np.where(x > 0, x, np.expm1(x)), Tolerance(6), at_least_1, (-20, 5)),
    "relu": (lambda x: np.maximum(x, 0), EXACT, None, (-2, 2)),
    "gelu": (gelu, Tolerance(12), tanh_of_gelu, (-7, 7)),
    "gelu_erf": (lambda x: x / 2 * (1 + erf(x / math.sqrt(2))), Tolerance(12), identity, (-7, 7)),
    "gelu_quick": (
        lambda x: x * sigmoid(1.702 * x),
        Tolerance(12),
        lambda x: (1 + x) * x * sigmoid(1.702 * x),
        (-7, 7),
    ),
    "silu": (lambda x: x * sigmoid(x), Tolerance(12), lambda x: (1 + x) * x * sigmoid(x), (-20, 20)),
    "hardswish": (lambda x: x * np.clip((x + 3) / 6, 0, 1), Tolerance(6), identity, (-5, 5)),
    "hardsigmoid": (lambda x: np.clip((x + 3) / 6, 0, 1), Tolerance(6), at_least_1, (-5, 5)),
    "exp": (normal(np.exp), Tolerance(4), None, (-20, 20)),
    "sigmoid": (normal(sigmoid), Tolerance(8), None, (-20, 20)),
    "softplus": (normal(lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))), Tolerance(8), None, (-20, 20)),
    "sin": (np.sin, Tolerance(4), None, (-6e4, 6e4)),
    "cos": (np.cos, Tolerance(4), None, (-6e4, 6e4)),
    "sqr": (np.square, Tolerance(1), None, (-3, 3)),
    "sqrt": (np.sqrt, Tolerance(1), None, (0, 9)),
    "log": (np.log, Tolerance(4), lambda x: at_least_1(np.log(x)), (0.01, 9)),
}


def test_all_unary_functions_are_in_the_table():
    from ggml_backend.ops._unary import UNARY as BY_NAME

    assert set(BY_NAME) <= set(UNARY)


@covers(*(n.upper() for n in UNARY))
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", UNARY)
def test_unary(name, dtype):
    reference, tolerance, magnitude, (low, high) = UNARY[name]
    op = getattr(gb.ops, name)
    for shape, layout in itertools.chain(
        zip(SHAPES, itertools.cycle(ALL_LAYOUTS)), ((s, "whole") for s in EMPTY), (((3, 4, 5), y) for y in ALL_LAYOUTS)
    ):
        x = real(*shape, dtype=dtype, low=low, high=high, layout=layout)
        both_ways(op, [x], reference, tolerance, magnitude=magnitude, on_sim=shape == SHAPES[2])
    check(
        op, [real(67, 1031, dtype=dtype, low=low, high=high)], reference, tolerance, magnitude=magnitude, on_sim=False
    )


# Results for NaN, infinities, zeros of both signs, denormal and huge numbers. None: the formula
# does not define the result, but it must be equal at every position of a row, in vectors and in the
# remainder.
NAN, INF = math.nan, math.inf
TINY, HUGE = float(np.float32(1e-40)), float(np.finfo(np.float32).max)
SPECIAL = [
    NAN,
    INF,
    -INF,
    0.0,
    -0.0,
    TINY,
    -TINY,
    HUGE,
    -HUGE,
    1e-30,
    -1e-30,
    88.0,
    -88.0,
    104.0,
    -104.0,
    1e5,
    -1e5,
    6e-8,
    -6e-8,
]
NAN_BECOMES = {"sgn": 0.0, "step": 0.0, "relu": None, "hardswish": None, "hardsigmoid": None}
# 0 times infinity
LIMIT_OPEN = {("gelu", -INF), ("gelu_quick", -INF), ("silu", -INF), ("gelu_erf", -INF), ("hardswish", -INF)}


@pytest.mark.parametrize("name", UNARY)
def test_unary_special_values(name):
    reference, tolerance, magnitude, _ = UNARY[name]
    op = getattr(gb.ops, name)
    for value in SPECIAL:
        x = array([value] * 39)
        built = Built(op, [x], cpus()[0][1])
        with np.errstate(all="ignore"):
            want = float(reference(x.exact)[0])
            size = float(magnitude(np.abs(x.exact))[0]) if magnitude else abs(want)
        for label, backend in cpus():
            got = built.compute(backend)
            where = f"{name}({value!r}), {label}: {got}"
            assert np.array_equal(got, np.full(39, got[0]), equal_nan=True), where
            if math.isnan(value) and name in NAN_BECOMES:
                if NAN_BECOMES[name] is not None:
                    assert got[0] == NAN_BECOMES[name], where
            elif (name, value) in LIMIT_OPEN:
                assert got[0] == 0 or math.isnan(got[0]), where
            elif math.isnan(want):
                assert math.isnan(got[0]), where
            elif math.isinf(want) or abs(want) > HUGE:
                assert got[0] == math.copysign(INF, want), where
            else:
                allowed = tolerance.allowed(np.float64(want), np.float64(size), "float32")
                assert abs(float(got[0]) - want) <= allowed, f"{where}, not {want}"


@pytest.mark.parametrize(("name", "value", "sign"), [
    ("neg", 0.0, True), ("neg", -0.0, False), ("abs", -0.0, False), ("sqrt", -0.0, True), ("sqr", -0.0, False),
    ("tanh", -0.0, True), ("sin", -0.0, True), ("sin", 0.0, False),
])  # fmt: skip
def test_sign_of_zero(name, value, sign):
    built = Built(getattr(gb.ops, name), [array([value] * 19)], cpus()[0][1])
    for label, backend in cpus():
        got = built.compute(backend)
        assert (got == 0).all(), label
        assert (np.signbit(got) == sign).all(), label


@pytest.mark.parametrize("function", [np.exp, np.log, np.sin, np.cos, np.tanh, np.sqrt, np.square])
def test_functions_of_numpy(ctx, cpu, function):
    x = np.linspace(0.1, 2.1, 12, dtype=np.float32).reshape(3, 4)
    node = function(ctx.constant(x))
    assert isinstance(node, gb.Tensor)
    with gb.Scheduler(cpu) as sched:
        sched.compute(ctx.graph(node))
        np.testing.assert_allclose(node.numpy(), function(x.astype(np.float64)), rtol=4e-7)


def test_sin_and_cos_of_large_numbers():
    """Angles near multiples of a quarter turn, up to the largest float."""
    turns = np.concatenate([np.arange(1, 1000), 2.0 ** np.arange(10, 60), [1e5 / np.pi, 3e37]])
    x = np.concatenate([turns * (np.pi / 2), [3e38, -3.4e38, 131071.5, 131072, 131073, 1e5, -1e5, 1e22]])
    for function, want in ((gb.ops.sin, np.sin), (gb.ops.cos, np.cos)):
        check(function, [array(x)], want, Tolerance(4))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_results_outside_a_small_dtype(dtype):
    """Overflow gives infinity, underflow gives denormals and zero, ties round to even."""
    x = array([300.0, -300, 2.0**-13, 1e19 if dtype == "bfloat16" else 60000, 0.0, 1.0], dtype)
    check(gb.ops.sqr, [x], np.square, Tolerance(1))
    check(functools.partial(gb.ops.scale, s=1.0), [array([1.0, -1.5, 6e-8, 0.1], dtype)], identity, EXACT)


@covers("LEAKY_RELU", "CLAMP", "SCALE")
@pytest.mark.parametrize("layout", ALL_LAYOUTS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_with_parameters(dtype, layout):
    for shape in SHAPES:
        x = real(*shape, dtype=dtype, layout=layout)
        both_ways(
            lambda t, inplace: gb.ops.leaky_relu(t, 0.125, inplace=inplace),
            [x],
            lambda v: np.where(v > 0, v, 0.125 * v),
            Tolerance(1),
        )
        both_ways(lambda t, inplace: gb.ops.scale(t, -1.5, inplace=inplace), [x], lambda v: -1.5 * v, Tolerance(1))
        node = check(lambda t: gb.ops.clamp(t, -0.5, 1.0), [x], lambda v: np.clip(v, -0.5, 1), EXACT, writes=(0,))
        assert node.view_of is not None
    check(lambda t: gb.ops.scale(t, 0.0), [array([NAN, INF, -INF, 1.0] * 9)], lambda v: v * 0.0, EXACT)
    check(lambda t: gb.ops.clamp(t, -INF, INF), [array([INF, -INF, 1.0, HUGE] * 9)], identity, EXACT, writes=(0,))
    check(
        lambda t: gb.ops.leaky_relu(t, 0.5),
        [array([INF, -INF, 0.0, HUGE, -HUGE, TINY] * 9)],
        lambda v: np.where(v > 0, v, v / 2),
        Tolerance(1),
    )


@covers("SILU_BACK")
@pytest.mark.parametrize("dtype", FLOATS)
def test_silu_back(dtype):
    def reference(x, g):
        s = sigmoid(x)
        return g * s * (1 + x * (1 - s))

    for shape in SHAPES:
        for layout in ("whole", "padded", "permuted"):
            inputs = [real(*shape, dtype=dtype, low=-9, high=9, layout=layout), real(*shape, dtype=dtype)]
            check(gb.ops.silu_back, inputs, reference, Tolerance(12), magnitude=lambda x, g: g * (1 + x) ** 2)


# ----------------------------------------------------------------------------------------------------------- two inputs

BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}
# a's shape and b's, which repeats over it
REPEATS = [
    ((1,), (1,)), ((7,), (7,)), ((7,), (1,)), ((5, 3), (3,)), ((5, 3), (5, 1)), ((5, 3), (1, 1)), ((4, 6), (2, 3)),
    ((2, 3, 4, 5), (4, 5)),
    ((2, 3, 4, 5), (2, 3, 1, 5)), ((2, 3, 4, 5), (1, 3, 1, 5)), ((2, 3, 4, 5), (2, 1, 4, 1)), ((2, 3, 4, 5), (5,)),
    ((6, 2, 4, 66), (3, 1, 2, 33)),
    ((3, 1, 129), (3, 1, 129)), ((2, 3, 129), (129,)),
]  # fmt: skip
PAIRS = list(itertools.product(FLOATS, FLOATS))


@covers("ADD", "SUB", "MUL", "DIV")
@pytest.mark.parametrize(("first", "second"), PAIRS)
@pytest.mark.parametrize("name", BINARY)
def test_binary(name, first, second):
    """The result has a's dtype. The sum is computed in float32."""
    layouts = itertools.cycle(itertools.product(ALL_LAYOUTS, ALL_LAYOUTS))
    for shape, repeated in REPEATS:
        one, two = next(layouts)
        a, b = real(*shape, dtype=first, layout=one), real(*repeated, dtype=second, low=0.5, high=2, layout=two)
        both_ways(
            getattr(gb.ops, name),
            [a, b],
            lambda x, y, s=shape: BINARY[name](x, _tiled(y, s)),
            Tolerance(1),
            on_sim=shape == (4, 6),
        )


def _tiled(y, shape):
    y = y.reshape((1,) * (len(shape) - y.ndim) + y.shape)
    return np.tile(y, [n // m for n, m in zip(shape, y.shape, strict=True)])


@covers("ADD", "SUB", "MUL", "DIV")
@pytest.mark.parametrize("name", BINARY)
def test_binary_all_layouts(name):
    for one, two in itertools.product(ALL_LAYOUTS, ALL_LAYOUTS):
        for shape, repeated in (
            ((3, 4, 5), (3, 4, 5)),
            ((3, 4, 6), (4, 3)),
            ((5, 21), (5, 21)),
            ((3, 4, 5), (3, 1, 1)),
        ):
            inputs = [real(*shape, layout=one), real(*repeated, low=0.5, layout=two)]
            check(
                getattr(gb.ops, name),
                inputs,
                lambda x, y, s=shape: BINARY[name](x, _tiled(y, s)),
                Tolerance(1),
                on_sim=False,
            )


@covers("ADD", "SUB", "MUL", "DIV")
@pytest.mark.parametrize("name", BINARY)
def test_binary_large_and_empty(name):
    """Large enough that several threads take part."""
    for shape, repeated in (
        ((129, 1031), (129, 1031)),
        ((300, 517), (517,)),
        ((3, 50, 1001), (3, 1, 1001)),
        *((s, s) for s in EMPTY),
    ):
        inputs = [real(*shape), real(*repeated, low=0.5)]
        both_ways(
            getattr(gb.ops, name),
            inputs,
            lambda x, y, s=shape: BINARY[name](x, _tiled(y, s) if x.size else x),
            Tolerance(1),
            on_sim=False,
        )


@covers("ADD", "SUB", "MUL", "DIV")
@pytest.mark.parametrize("name", BINARY)
def test_binary_special_values(name):
    """Results follow IEEE 754, for every pair and at every position of a vector."""
    values = [v for v in SPECIAL if abs(v) != 104]
    pairs = list(itertools.product(values, values))
    for shift in (0, 5):
        a, b = (array(np.roll([p[i] for p in pairs], shift)) for i in (0, 1))
        with np.errstate(all="ignore"):
            want = BINARY[name](a.values, b.values)
        check(getattr(gb.ops, name), [a, b], lambda x, y, w=want: w.astype(np.float64), EXACT)


def test_in_place_with_equal_operands():
    x = real(5, 37)
    check(lambda t: gb.ops.add(t, t, inplace=True), [x], lambda v: 2 * v, EXACT, writes=(0,))
    check(lambda t: gb.ops.mul(t, t), [x], np.square, Tolerance(1))
    check(lambda t: gb.ops.sub(t, t, inplace=True), [x], np.zeros_like, EXACT, writes=(0,))
    check(lambda t: gb.ops.div(t, t), [real(5, 37, low=1)], np.ones_like, EXACT)


@covers("ADD1")
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_add1(first, second):
    for shape, layout in itertools.chain(zip(SHAPES, itertools.cycle(LAYOUTS)), [((3, 4, 5), y) for y in ALL_LAYOUTS]):
        both_ways(gb.ops.add1, [real(*shape, dtype=first, layout=layout), real(1, dtype=second)], np.add, Tolerance(1))


# add_cast: a is float16, bfloat16 or quantized. The result has the requested dtype.
ADD_CAST_REFUSED = {("float32", "float32"), ("float32", "float16"), ("float32", "bfloat16")}


@covers("ADD")
@pytest.mark.parametrize("result", FLOATS)
@pytest.mark.parametrize("first", FLOATS)
def test_add_cast(first, result):
    def build(x, y):
        return gb.ops.add_cast(x, y, result)

    for shape in SHAPES:
        inputs = [real(*shape, dtype=first, layout="padded"), real(*shape, layout="stepped")]
        if (first, result) in ADD_CAST_REFUSED:
            refuses(build, inputs)
        else:
            check(build, inputs, np.add, Tolerance(1), dtype=result)


@pytest.mark.parametrize("name", [*UNARY, "add", "mul"])
def test_integers_are_refused(name):
    inputs = [whole(3, 4, low=0, high=9)] * (2 if name in BINARY else 1)
    refuses(getattr(gb.ops, name), inputs)


# -------------------------------------------------------------------------------------------------------------- regions

# shape of a, of b, and where b begins in a
REGIONS = [
    ((7,), (3,), (2,)), ((7,), (7,), (0,)), ((5, 6), (2, 6), (2, 0)), ((5, 6), (3, 4), (1, 2)),
    ((5, 6), (1, 1), (4, 5)), ((4, 5, 6), (2, 3, 4), (1, 2, 1)),
    ((3, 4, 5, 6), (2, 3, 4, 5), (1, 1, 1, 1)), ((3, 4, 5, 6), (3, 4, 5, 6), (0, 0, 0, 0)), ((4, 33), (3, 33), (1, 0)),
    ((40, 2001), (39, 1999), (1, 1)),
]  # fmt: skip


@covers("ACC", "SET")
@pytest.mark.parametrize("layout", ["whole", "padded", "permuted"])
@pytest.mark.parametrize("name", ["acc", "set"])
def test_regions(name, layout):
    for shape, part, start in REGIONS:
        strides = np.zeros(shape, np.float32).strides
        offset = sum(i * s for i, s in zip(start, strides, strict=True))
        window = tuple(slice(i, i + n) for i, n in zip(start, part, strict=True))

        def reference(a, b, window=window):
            out = a.copy()
            out[window] = out[window] + b if name == "acc" else b
            return out

        def build(a, b, inplace, offset=offset, strides=strides, every=True):
            nb = {f"nb{i}": strides[len(strides) - 1 - i] for i in range(1, len(strides))} if every else {}
            return getattr(gb.ops, name)(a, b, offset, **nb, inplace=inplace)

        inputs = [real(*shape), real(*part, layout=layout)]
        both_ways(build, inputs, reference, Tolerance(1) if name == "acc" else EXACT)
        both_ways(functools.partial(build, every=False), inputs, reference, Tolerance(1) if name == "acc" else EXACT)


@covers("SET")
def test_set_2d():
    def reference(a, b):
        out = a.copy()
        out[1:4:2, 2:4] = b
        return out

    both_ways(
        lambda a, b, inplace: gb.ops.set(a, b, 4 * (6 + 2), nb1=4 * 12, inplace=inplace),
        [real(5, 6), real(2, 2)],
        reference,
        EXACT,
    )


@covers("SET")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32"])
def test_set_moves_any_dtype(dtype):
    def reference(a, b):
        return np.concatenate([a[:1], b, a[3:]])

    make = whole if dtype == "int32" else real
    size = 4 if dtype == "int32" else 2
    inputs = [make(5, 6, low=-99, high=99, dtype=dtype), make(2, 6, low=-99, high=99, dtype=dtype)]
    both_ways(lambda a, b, inplace: gb.ops.set(a, b, 6 * size, inplace=inplace), inputs, reference, EXACT)


def test_layouts_have_the_expected_strides():
    """Checks the test support: views have the expected strides."""
    for shape, layout in itertools.product(SHAPES, ALL_LAYOUTS):
        x: In = real(*shape, layout=layout)
        memory, cut = x.root()
        np.testing.assert_array_equal(cut(memory), x.values)
        assert np.isnan(memory).sum() == memory.size - x.values.size
        assert (
            (cut(memory).strides != x.values.strides or memory.size != x.values.size)
            or not is_view(layout, shape)
            or 1 in shape
        )
