"""Element by element: functions, arithmetic, comparisons, conversions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import UnsupportedError
from ..onnx_values import (
    NUMBERED,
    OTHER_FLOATS,
    Attributes,
    NeedsNumbers,
    broadcast,
)
from . import (
    OPERATORS,
    Function,
    Inputs,
    at,
    binary,
    known,
    operator,
    unary,
)

if TYPE_CHECKING:
    from ..onnx import Reader

_UNARY = {
    "Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh", "Exp": "exp", "Log": "log", "Sqrt": "sqrt", "Sin": "sin",
    "Cos": "cos", "Floor": "floor", "Ceil": "ceil", "Neg": "neg", "Abs": "abs", "Sign": "sign", "Erf": "erf",
    "Reciprocal": "reciprocal", "Softplus": "softplus", "HardSwish": "hardswish", "Mish": "mish", "Not": "logical_not",
}  # fmt: skip
_WITH_NUMBERS: dict[str, tuple[str, Mapping[str, tuple[str, Any]]]] = {
    "LeakyRelu": ("leaky_relu", {"negative_slope": ("alpha", 0.01)}),
    "Elu": ("elu", {"alpha": ("alpha", 1.0)}),
    "Selu": ("elu", {"alpha": ("alpha", 1.67326319217681884765625), "scale": ("gamma", 1.05070102214813232421875)}),
    "Gelu": ("gelu", {"approximate": ("approximate", "none")}),
}
"""Operators of one value. Each argument has the name of its attribute in ONNX, and the default value."""
_BINARY = {"Add": "add.Tensor", "Sub": "sub.Tensor", "Mul": "mul.Tensor"}
_COMPARED = {
    "Equal": "eq.Tensor", "Less": "lt.Tensor", "LessOrEqual": "le.Tensor", "Greater": "gt.Tensor",
    "GreaterOrEqual": "ge.Tensor", "And": "logical_and", "Or": "logical_or", "Xor": "logical_xor",
}  # fmt: skip


def _unary(op: str, arguments: Mapping[str, tuple[str, Any]]) -> Function:
    def function(r: Reader, i: Inputs, a: Attributes) -> Any:
        return unary(r, op, i[0], **{name: a.get(attribute, own) for name, (attribute, own) in arguments.items()})

    return function


def _binary(op: str, to: str | None) -> Function:
    return lambda r, i, a: binary(r, op, i[0], i[1], to)


OPERATORS |= {name: _unary(op, {}) for name, op in _UNARY.items()}
OPERATORS |= {name: _unary(op, arguments) for name, (op, arguments) in _WITH_NUMBERS.items()}
OPERATORS |= {name: _binary(op, None) for name, op in _BINARY.items()}
OPERATORS |= {name: _binary(op, "bool") for name, op in _COMPARED.items()}


@operator("Div")
def divide(r: Reader, i: Inputs, a: Attributes) -> Any:
    if "float" in r.dtype(i[0]):  # also bfloat16
        return binary(r, "div.Tensor", i[0], i[1])
    return binary(r, "div.Tensor_mode", i[0], i[1], rounding_mode="trunc")


@operator("Mod")
def modulo(r: Reader, i: Inputs, a: Attributes) -> Any:
    if a.get("fmod"):
        raise UnsupportedError("Mod with fmod=1")
    return binary(r, "remainder.Tensor", i[0], i[1])


@operator("Pow")
def power(r: Reader, i: Inputs, a: Attributes) -> Any:
    exponent = known(i[1], "the exponent of Pow")
    if exponent.size != 1:
        raise UnsupportedError("Pow with several exponents")
    return unary(r, "pow.Tensor_Scalar", i[0], exponent=float(exponent.reshape(-1)[0]))


def _several(op: str) -> Function:
    def joined(r: Reader, i: Inputs, a: Attributes) -> Any:
        total = i[0]
        for x in i[1:]:
            total = binary(r, op, total, x)
        return total

    return joined


OPERATORS |= {"Max": _several("maximum"), "Min": _several("minimum"), "Sum": _several("add.Tensor")}


@operator("Where")
def where(r: Reader, i: Inputs, a: Attributes) -> Any:
    shape = broadcast([r.shape(x) for x in i])
    return r.emit("where.self", {"condition": i[0], "self": i[1], "other": i[2]}, shape, r.dtype(i[1]))


@operator("Clip")
def clip(r: Reader, i: Inputs, a: Attributes) -> Any:
    low, high = a.get("min"), a.get("max")
    for place in (1, 2):
        given = at(i, place)
        if given is not None:
            number = float(known(given, "a limit of Clip").reshape(-1)[0])
            low, high = (number, high) if place == 1 else (low, number)
    if low is None and high is None:
        return i[0]
    return unary(r, "clamp", i[0], min=low, max=high)


@operator("HardSigmoid")
def hard_sigmoid(r: Reader, i: Inputs, a: Attributes) -> Any:
    alpha, beta = a.get("alpha", 0.2), a.get("beta", 0.5)
    if abs(alpha - 1 / 6) < 1e-6 and beta == 0.5:
        return unary(r, "hardsigmoid", i[0])
    scaled = unary(r, "add.Scalar", unary(r, "mul.Scalar", i[0], other=alpha), other=beta)
    return unary(r, "clamp", scaled, min=0.0, max=1.0)


@operator("PRelu")
def prelu(r: Reader, i: Inputs, a: Attributes) -> Any:
    below = binary(r, "mul.Tensor", unary(r, "clamp", i[0], max=0.0), i[1])
    return binary(r, "add.Tensor", unary(r, "relu", i[0]), below)


@operator("Softsign")
def softsign(r: Reader, i: Inputs, a: Attributes) -> Any:
    return binary(r, "div.Tensor", i[0], unary(r, "add.Scalar", unary(r, "abs", i[0]), other=1))


@operator("Identity", "Dropout")
def identity(r: Reader, i: Inputs, a: Attributes) -> Any:
    return i[0]


@operator("Cast", "CastLike")
def cast(r: Reader, i: Inputs, a: Attributes) -> Any:
    to = NUMBERED.get(int(a["to"])) if "to" in a else r.dtype(i[1])
    if to is None:
        raise UnsupportedError(f"a conversion to the type {a['to']}")
    to = "float32" if to in OTHER_FLOATS else to
    x = i[0]
    if isinstance(x, np.ndarray):
        if x.dtype == object and to not in ("int64", "int32"):
            raise NeedsNumbers("a size becomes a float")
        return x if x.dtype == object else x.astype(to)
    return x if r.dtype(x) == to else unary(r, "_to_copy", x, to, dtype=to)
