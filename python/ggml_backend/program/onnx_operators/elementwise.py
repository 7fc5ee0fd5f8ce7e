"""Element by element: functions, arithmetic, comparisons, conversions."""

from __future__ import annotations

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
    "Reciprocal": "reciprocal", "Softplus": "softplus", "HardSwish": "hardswish", "Mish": "mish",
}  # fmt: skip
_BINARY = {"Add": "add.Tensor", "Sub": "sub.Tensor", "Mul": "mul.Tensor"}
_COMPARED = {
    "Equal": "eq.Tensor", "Less": "lt.Tensor", "LessOrEqual": "le.Tensor", "Greater": "gt.Tensor",
    "GreaterOrEqual": "ge.Tensor", "And": "logical_and", "Or": "logical_or", "Xor": "logical_xor",
}  # fmt: skip
for _name, _op in _UNARY.items():
    operator(_name)(lambda r, i, a, op=_op: unary(r, op, i[0]))  # type: ignore[misc]
for _name, _op in _BINARY.items():
    operator(_name)(lambda r, i, a, op=_op: binary(r, op, i[0], i[1]))  # type: ignore[misc]
for _name, _op in _COMPARED.items():
    operator(_name)(lambda r, i, a, op=_op: binary(r, op, i[0], i[1], "bool"))  # type: ignore[misc]


@operator("Not")
def negated(r: Reader, i: Inputs, a: Attributes) -> Any:
    return unary(r, "logical_not", i[0])


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


@operator("LeakyRelu")
def leaky_relu(r: Reader, i: Inputs, a: Attributes) -> Any:
    return unary(r, "leaky_relu", i[0], negative_slope=a.get("alpha", 0.01))


@operator("Elu")
def elu(r: Reader, i: Inputs, a: Attributes) -> Any:
    return unary(r, "elu", i[0], alpha=a.get("alpha", 1.0))


@operator("Selu")
def selu(r: Reader, i: Inputs, a: Attributes) -> Any:
    alpha, gamma = a.get("alpha", 1.67326319217681884765625), a.get("gamma", 1.05070102214813232421875)
    return unary(r, "elu", i[0], alpha=alpha, scale=gamma)


@operator("Gelu")
def gelu(r: Reader, i: Inputs, a: Attributes) -> Any:
    return unary(r, "gelu", i[0], approximate=a.get("approximate", "none"))


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
