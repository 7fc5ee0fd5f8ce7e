"""Elementwise operators."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from .._nodes import Node
from ..device import op
from .family import FLOAT_NAMES, Family
from .layout import is_broadcast, ne, repeats, spread
from .library import F32, Step

UNARY = (
    "abs", "neg", "sgn", "step", "sqr", "sqrt", "log", "tanh", "elu", "relu", "silu", "gelu", "gelu_quick", "gelu_erf",
    "hardsigmoid", "hardswish", "exp", "sigmoid", "sin", "cos", "softplus", "expm1", "floor", "ceil", "round", "trunc",
)  # fmt: skip


def _repeats(node: Node) -> bool | str:
    a, b = node.sources
    return (
        ne(a.shape) == ne(node.shape) and repeats(b.shape, a.shape)
    ) or "operands whose shapes do not repeat to each other"


def _broadcasts(node: Node) -> bool | str:
    return (
        all(is_broadcast(ne(s.shape), ne(node.shape)) for s in node.sources)
        or "an operand that repeats along an axis of more than one element"
    )


@op("add", "sub", "mul", "div", dtypes=FLOAT_NAMES, when=_repeats, prepare=True, repeats=True)
def binary(device: Family, node: Node, out: Any, a: Any, b: Any) -> Step:
    if not is_broadcast(tuple(b.shape), tuple(a.shape)):
        out, a, b = spread(device.library, (out, a), b)
    return device.step_of(device.library.functions[node.op], node, out, (a, b))


@op("compare", dtypes=FLOAT_NAMES, when=_repeats, prepare=True, repeats=True)
def compare(device: Family, node: Node, out: Any, a: Any, b: Any) -> Step:
    if not is_broadcast(tuple(b.shape), tuple(a.shape)):
        out, a, b = spread(device.library, (out, a), b)
    return device.step_of(device.library.functions[node.params["comparison"]], node, out, (a, b))


@op("where", dtypes=FLOAT_NAMES, when=_broadcasts, prepare=True)
def where(device: Family, node: Node, out: Any, cond: Any, a: Any, b: Any) -> Step:
    return device.step_of(device.library.functions["where"], node, out, (cond, a, b))


@op(*UNARY, dtypes=FLOAT_NAMES, prepare=True)
def unary(device: Family, node: Node, out: Any, a: Any) -> Step:
    return device.step_of(device.library.functions[node.op], node, out, (a,))


@op("scale", "scale_bias", "clamp", "leaky_relu", "xielu", dtypes=FLOAT_NAMES, prepare=True)
def with_numbers(device: Family, node: Node, out: Any, a: Any) -> Step:
    function, numbers = device.library.functions[node.op], tuple(node.params.values())

    def applied(x: Any, out: Any = None) -> Any:
        return function(x, *numbers, out=out)

    if device.library.reader(a, node.sources[0].dtype) is None and device.library.writer(out, node.dtype) is None:
        return partial(function, a, *numbers, out=out)
    return device.step_of(applied, node, out, (a,))


_GATES = {
    "reglu": "relu", "geglu": "gelu", "swiglu": "silu", "geglu_erf": "gelu_erf", "geglu_quick": "gelu_quick",
    "swiglu_oai": "silu",
}  # fmt: skip
"""The function of the first half of each gate."""


def _is_gate(node: Node) -> bool | str:
    return node.params["op"] in _GATES or "an unknown gate"


@op("glu", dtypes=FLOAT_NAMES, when=_is_gate, prepare=True)
def glu(device: Family, node: Node, out: Any, a: Any, b: Any = None) -> Step:
    """``f(x) g`` of two sources, or of the halves of one."""
    p, n, dtype = node.params, node.shape[-1], node.sources[0].dtype
    x, g = (a[..., :n], a[..., n:]) if b is None else (a, b)
    if b is None and p["swapped"]:
        x, g = g, x
    functions, xp = device.library.functions, device.library.xp
    gate, multiply = functions[_GATES[p["op"]]], functions["mul"]
    alpha, limit = p["alpha"], p["limit"]

    def gated(x: Any, g: Any, out: Any = None) -> Any:
        return multiply(gate(x), g, out=out)

    def rectified(x: Any, g: Any) -> Any:  # 0, whatever the other half is
        return xp.where(x <= 0, xp.zeros_like(x), x * g)

    def limited(x: Any, g: Any) -> Any:
        x = xp.clip(x, None, limit)
        return x * functions["sigmoid"](x * alpha) * (xp.clip(g, -limit, limit) + 1)

    dtypes = (dtype, dtype if b is None else node.sources[1].dtype)
    if p["op"] == "reglu":
        return device.value_of(rectified, node, out, (x, g), dtypes)
    if p["op"] == "swiglu_oai":
        return device.value_of(limited, node, out, (x, g), dtypes)
    return device.step_of(gated, node, out, (x, g), dtypes)


@op("silu_back", dtypes=FLOAT_NAMES, prepare=True, in_place=True)
def silu_back(device: Family, node: Node, out: Any, x: Any, grad: Any) -> Step:
    sigmoid, xp = device.library.functions["sigmoid"], device.library.xp

    def back(x: Any, g: Any) -> Any:
        x = xp.clip(x, -1e4, 1e4)  # beyond, the derivative is 0 or 1; at infinity the formula is 0 times infinity
        s = sigmoid(x)
        return g * s * (1 + x * (1 - s))

    return device.value_of(back, node, out, (x, grad))


def _is_f32(node: Node) -> bool | str:
    return all(t.dtype.name == "float32" for t in (node, *node.sources)) or "tensors that are not float32"


@op("opt_step_sgd", dtypes=("float32",), when=_is_f32, prepare=True, in_place=True)
def opt_step_sgd(device: Family, node: Node, out: Any, a: Any, grad: Any, params: Any) -> Step:
    def stepped(a: Any, g: Any, p: Any) -> Any:
        return a * (1 - p[0] * p[1]) - p[0] * g

    return device.value_of(stepped, node, out, (a, grad, params))


@op("opt_step_adamw", dtypes=("float32",), when=_is_f32, prepare=True, in_place=True)
def opt_step_adamw(device: Family, node: Node, out: Any, a: Any, *others: Any) -> Step:
    """The running mean of the gradient, that of its square, or the weights."""
    part, xp = node.params["part"], device.library.xp

    def moved(mean: Any, g: Any, p: Any) -> Any:
        beta = p[1 + part]
        return beta * mean + (1 - beta) * (g * g if part else g)

    def stepped(a: Any, m: Any, v: Any, p: Any) -> Any:
        return a * (1 - p[0] * p[4]) - p[0] * (m * p[5]) / (xp.sqrt(v * p[6]) + p[3])

    return device.value_of(stepped if part == 2 else moved, node, out, (a, *others))


@op("add1", dtypes=FLOAT_NAMES, prepare=True, in_place=True)
def add1(device: Family, node: Node, out: Any, a: Any, b: Any) -> Step:
    b = device.library.strided(b, (1,) * len(out.shape), (0,) * len(out.shape))
    return device.step_of(device.library.functions["add"], node, out, (a, b))


@op("fill", dtypes=FLOAT_NAMES, prepare=True)
def fill(device: Family, node: Node, out: Any, a: Any) -> Step:
    """Does not read its source."""
    value = np.full((1,) * len(out.shape), node.params["value"], np.float32)
    return stored(device, node, out, value)


@op("arange", dtypes=FLOAT_NAMES, prepare=True)
def arange(device: Family, node: Node, out: Any) -> Step:
    p = node.params
    return stored(device, node, out, (p["start"] + p["step"] * np.arange(node.shape[-1])).astype(np.float32))


def stored(device: Family, node: Node, out: Any, value: Any) -> Step:
    """A step that stores float32 constants, which may broadcast."""
    library = device.library
    constant = library.constant(value)
    constant = library.strided(constant, out.shape, [
        s if n > 1 else 0 for n, s in zip(constant.shape, library.strides(constant), strict=True)
    ])  # fmt: skip
    return device.conversion(out, node.dtype, constant, F32)
