"""Elementwise operators."""

from __future__ import annotations

from functools import partial
from typing import Any

from .._nodes import Node
from ..device import op
from .family import FLOAT_NAMES, Family
from .layout import is_broadcast, ne, repeats, spread
from .library import Step

UNARY = (
    "abs", "neg", "sgn", "step", "sqr", "sqrt", "log", "tanh", "elu", "relu", "silu", "gelu", "gelu_quick", "gelu_erf",
    "hardsigmoid", "hardswish", "exp", "sigmoid", "sin", "cos", "softplus",
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


@op("scale", "clamp", "leaky_relu", dtypes=FLOAT_NAMES, prepare=True)
def with_numbers(device: Family, node: Node, out: Any, a: Any) -> Step:
    function, numbers = device.library.functions[node.op], tuple(node.params.values())

    def applied(x: Any, out: Any = None) -> Any:
        return function(x, *numbers, out=out)

    if device.library.reader(a, node.sources[0].dtype) is None and device.library.writer(out, node.dtype) is None:
        return partial(function, a, *numbers, out=out)
    return device.step_of(applied, node, out, (a,))
