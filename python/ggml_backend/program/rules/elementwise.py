"""Functions of each element, arithmetic, comparisons, choices, conversions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ... import ops
from ...tensor import Tensor
from ..build import Build, NoRule, Operand, Val
from . import INTEGERS, rule

_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": ops.relu, "sigmoid": ops.sigmoid, "tanh": ops.tanh, "exp": ops.exp, "expm1": ops.expm1, "log": ops.log,
    "sqrt": ops.sqrt, "sin": ops.sin, "cos": ops.cos, "floor": ops.floor, "ceil": ops.ceil, "trunc": ops.trunc,
    "silu": ops.silu, "hardswish": ops.hardswish, "hardsigmoid": ops.hardsigmoid,
    "log1p": lambda x: ops.log(ops.scale(x, 1.0, 1.0)),
    "rsqrt": lambda x: 1.0 / ops.sqrt(x),
    "reciprocal": lambda x: 1.0 / x,
    "mish": lambda x: x * ops.tanh(ops.softplus(x)),
    "log_sigmoid": lambda x: ops.neg(ops.softplus(ops.neg(x))),
}  # fmt: skip
"""Functions that take one value of floats, and nothing else."""

_OF_ALL: dict[str, Callable[[Tensor], Tensor]] = {"neg": ops.neg, "abs": ops.abs, "sign": ops.sgn, "sgn": ops.sgn}
"""Functions that keep integers exact."""


def _of_one(function: Callable[[Tensor], Tensor]) -> Callable[[Build, Val], Tensor]:
    def translated(b: Build, self: Val) -> Tensor:
        return function(b.dense(self))

    return translated


for _name, _function in _UNARY.items():
    rule(_name)(_of_one(_function))
for _name, _function in _OF_ALL.items():
    rule(_name, of="fi", arithmetic=True)(_of_one(_function))


@rule("gelu")
def gelu(b: Build, self: Val, approximate: str = "none") -> Tensor:
    return (ops.gelu if approximate == "tanh" else ops.gelu_erf)(b.dense(self))


@rule("ggml_backend.glu")
def glu(b: Build, self: Val, other: Val | None = None, op: Any = "swiglu", swapped: bool = False) -> Tensor:
    """A gated unit, which ``patterns.py`` finds."""

    def rows(x: Val) -> Tensor:
        return b.fold(x, -1, x.shape[-1]).contiguous() if x.ndim > 4 else b.dense(x)

    return ops.glu(rows(self), None if other is None else rows(other), op, swapped=swapped)


@rule("erf")
def erf(b: Build, self: Val) -> Tensor:
    """From GELU, which is x (1 + erf(x / sqrt 2)) / 2. Beyond 5, erf is 1 in float32."""
    x = ops.scale(ops.clamp(ops.dup(b.dense(self)), -5, 5), math.sqrt(2))
    y = ops.scale(ops.gelu_erf(x) / x, 2.0, -1.0)
    return ops.where(ops.equal(x, 0.0), 0.0, y)


@rule("elu")
def elu(b: Build, self: Val, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    x = b.dense(self)
    if (alpha, scale, input_scale) == (1, 1, 1):
        return ops.elu(x)
    below = ops.scale(ops.expm1(ops.scale(x, input_scale)), alpha)
    return ops.scale(ops.where(ops.step(x), x, below), scale)


@rule("leaky_relu")
def leaky_relu(b: Build, self: Val, negative_slope: float = 0.01) -> Tensor:
    return ops.leaky_relu(b.dense(self), negative_slope)


@rule("_prelu_kernel", "prelu")
def prelu(b: Build, self: Val, weight: Val) -> Tensor:
    x = b.dense(self)
    if weight.shape == b.result.shape:
        slope = b.together(weight)[0]
    else:
        n = math.prod(weight.shape)
        slope = b.fold(weight, *(n if i == 1 else 1 for i in range(min(self.ndim, 4)))) if n > 1 else b.fold(weight, 1)
        if self.ndim > 4:
            x = x.reshape(self.shape[0], n, -1)
            slope = b.fold(weight, 1, n, 1)
    below: Tensor = ops.relu(ops.neg(x)) * slope
    return ops.relu(x) - below


@rule("softplus")
def softplus(b: Build, self: Val, beta: float = 1, threshold: float = 20) -> Tensor:
    x = ops.scale(b.dense(self), beta)
    y = ops.where(ops.greater(x, float(threshold)), x, ops.softplus(x))
    return ops.scale(y, 1 / beta)


@rule("clamp", "hardtanh", of="fi")
def clamp(
    b: Build, self: Val, min: float | None = None, max: float | None = None, min_val: float = -1, max_val: float = 1
) -> Tensor:
    if b.node.op == "hardtanh":
        min, max = min_val, max_val
    low, high = -math.inf if min is None else min, math.inf if max is None else max
    if low > high:
        low = high
    if (low, high) == (0, math.inf):
        return ops.relu(b.dense(self))
    return ops.clamp(ops.dup(b.tensor(self)), low, high)


@rule("relu6")
def relu6(b: Build, self: Val) -> Tensor:
    return ops.clamp(ops.dup(b.tensor(self)), 0, 6)


@rule("clamp_min", of="fi")
def clamp_min(b: Build, self: Val, min: float) -> Tensor:
    return clamp(b, self, min)


@rule("clamp_max", of="fi")
def clamp_max(b: Build, self: Val, max: float) -> Tensor:
    return clamp(b, self, None, max)


# ---------------------------------------------------------------------------------------------------------- arithmetic


def _number(x: Operand) -> float | None:
    """The number that an operand is."""
    return x.number if isinstance(x, Val) else float(x)


def _scaled(b: Build, x: Operand, factor: float) -> Operand:
    """``factor x``, with the shape of x."""
    if factor == 1:
        return x
    if not isinstance(x, Val):
        return x * factor
    return Val(x.shape, x.dtype, ops.scale(b.dense(x), factor))


def _sum(b: Build, x: Operand, y: Operand) -> Tensor:
    p, q = _number(x), _number(y)
    if isinstance(x, Val) and q is not None:
        return ops.scale(b.dense(x), 1.0, q)
    if isinstance(y, Val) and p is not None:
        return ops.scale(b.dense(y), 1.0, p)
    s, t = b.together(x, y)
    made: Tensor = s + t
    return made


@rule("add.Tensor", "add.Scalar", of="fib", arithmetic=True)
def add(b: Build, self: Operand, other: Operand, alpha: float = 1) -> Tensor:
    if b.result.dtype == "bool":
        if alpha != 1:
            raise NoRule(f"booleans with alpha {alpha}")
        return either(b, self, other)
    return _sum(b, self, _scaled(b, other, alpha))


@rule("sub.Tensor", "sub.Scalar", of="fi", arithmetic=True)
def sub(b: Build, self: Operand, other: Operand, alpha: float = 1) -> Tensor:
    other = _scaled(b, other, alpha)
    if _number(other) is not None:
        return _sum(b, self, -_number(other))  # type: ignore[operator]
    p = _number(self)
    if p is not None and isinstance(other, Val):
        return ops.scale(b.dense(other), -1.0, p)
    s, t = b.together(self, other)
    made: Tensor = s - t
    return made


@rule("rsub.Tensor", "rsub.Scalar", of="fi", arithmetic=True)
def rsub(b: Build, self: Operand, other: Operand, alpha: float = 1) -> Tensor:
    return sub(b, other, self, alpha)


@rule("mul.Tensor", "mul.Scalar", of="fib", arithmetic=True)
def mul(b: Build, self: Operand, other: Operand) -> Tensor:
    p, q = _number(self), _number(other)
    if isinstance(self, Val) and q is not None:
        return ops.scale(b.dense(self), q)
    if isinstance(other, Val) and p is not None:
        return ops.scale(b.dense(other), p)
    return both(b, self, other)


def _quotient(b: Build, x: Operand, y: Operand) -> Tensor:
    s, t = b.together(x, y)
    made: Tensor = (s if isinstance(s, Tensor) else float(s)) / (t if isinstance(t, Tensor) else b.tensor(t))
    return made


@rule("div.Tensor", "div.Scalar", of="fib")
def div(b: Build, self: Operand, other: Operand) -> Tensor:
    return _quotient(b, self, other)


@rule("div.Tensor_mode", "div.Scalar_mode", "floor_divide", of="fi", arithmetic=True)
def div_rounded(b: Build, self: Operand, other: Operand, rounding_mode: str | None = "floor") -> Tensor:
    y = _quotient(b, self, other)
    return y if rounding_mode is None else ops.floor(y) if rounding_mode == "floor" else ops.trunc(y)


@rule("remainder.Tensor", "remainder.Scalar", of="fi", arithmetic=True)
def remainder(b: Build, self: Operand, other: Operand) -> Tensor:
    s, t = b.together(self, other)
    made: Tensor = s - ops.floor(_quotient(b, self, other)) * t
    return made


@rule("pow.Tensor_Scalar", of="fi", arithmetic=True)
def power(b: Build, self: Val, exponent: float) -> Tensor:
    x = b.dense(self)
    if exponent == 0.5:
        return ops.sqrt(x)
    if exponent == -0.5:
        return 1.0 / ops.sqrt(x)
    n = abs(int(exponent))
    if n != abs(exponent) or not 1 <= n <= 8 or (exponent < 0 and b.result.dtype in INTEGERS):
        raise NoRule(f"the exponent {exponent}")
    y = x
    for _ in range(n - 1):
        y = y * x if y is not x else ops.sqr(x)
    return y if exponent > 0 else 1.0 / y


@rule("pow.Scalar")
def power_of_number(b: Build, self: float, exponent: Val) -> Tensor:
    if self <= 0:
        raise NoRule(f"the base {self}")
    return ops.exp(ops.scale(b.dense(exponent), math.log(self)))


# ------------------------------------------------------------------------------------------------ comparisons, choices

_COMPARISONS: dict[str, Callable[[Any, Any], Tensor]] = {
    "eq": ops.equal, "ne": ops.not_equal, "lt": ops.less, "le": ops.less_equal, "gt": ops.greater,
    "ge": ops.greater_equal,
}  # fmt: skip


def _comparison(function: Callable[[Any, Any], Tensor]) -> Callable[[Build, Operand, Operand], Tensor]:
    def translated(b: Build, self: Operand, other: Operand) -> Tensor:
        s, t = b.together(self, other)
        return function(s, t if isinstance(t, Tensor) else float(t))

    return translated


for _name, _compared in _COMPARISONS.items():
    rule(f"{_name}.Tensor", f"{_name}.Scalar", of="fib", arithmetic=True)(_comparison(_compared))


@rule("logical_and", "bitwise_and.Tensor", "__and__.Tensor", of="b")
def both(b: Build, self: Operand, other: Operand) -> Tensor:
    s, t = b.together(self, other)
    made: Tensor = s * t
    return made


@rule("logical_or", "bitwise_or.Tensor", "__or__.Tensor", of="b")
def either(b: Build, self: Operand, other: Operand) -> Tensor:
    s, t = b.together(self, other)
    return ops.greater(s + t, 0.0)


@rule("logical_xor", "bitwise_xor.Tensor", of="b")
def one_of_two(b: Build, self: Operand, other: Operand) -> Tensor:
    return ops.not_equal(*b.together(self, other))


@rule("logical_not", of="fib")
def is_zero(b: Build, self: Val) -> Tensor:
    return ops.equal(b.dense(self), 0.0)


@rule("bitwise_not", of="b")
def negated(b: Build, self: Val) -> Tensor:
    return is_zero(b, self)


@rule("isnan")
def isnan(b: Build, self: Val) -> Tensor:
    x = b.dense(self)
    return ops.not_equal(x, x)


@rule("isinf")
def isinf(b: Build, self: Val) -> Tensor:
    return ops.equal(ops.abs(b.dense(self)), math.inf)


def _held(b: Build, number: float) -> float:
    """The number as the dtype of the result holds it."""
    dtype = b.result.dtype
    return float(bool(number)) if dtype == "bool" else float(int(number)) if dtype in INTEGERS else float(number)


def _choice(b: Build, condition: Val, x: Operand, y: Operand) -> Tensor:
    c, s, t = b.together(condition, *(v if isinstance(v, Val) else _held(b, v) for v in (x, y)))
    if not isinstance(s, Tensor) and not isinstance(t, Tensor):
        s = b.tensor(s)
    made = ops.where(c, s, t)
    if made.size != math.prod(b.result.shape):
        raise NoRule("a choice between two numbers for a smaller condition")
    return made


@rule("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar", of="fib")
def where(b: Build, condition: Val, self: Operand, other: Operand) -> Tensor:
    return _choice(b, condition, self, other)


@rule("masked_fill.Scalar", "masked_fill.Tensor", of="fib")
def masked_fill(b: Build, self: Val, mask: Val, value: Operand) -> Tensor:
    return _choice(b, mask, value, self)


@rule("maximum", of="fi")
def maximum(b: Build, self: Operand, other: Operand) -> Tensor:
    s, t = b.together(self, other)
    return _ordered(s, t, ops.less_equal)


@rule("minimum", of="fi")
def minimum(b: Build, self: Operand, other: Operand) -> Tensor:
    s, t = b.together(self, other)
    return _ordered(s, t, ops.greater_equal)


def _ordered(s: Tensor, t: Tensor, replaces: Callable[[Any, Any], Tensor]) -> Tensor:
    """``t`` where it replaces ``s``. A NaN in either stays."""
    return ops.where(ops.not_equal(t, t), t, ops.where(replaces(s, t), t, s))


# --------------------------------------------------------------------------------------------------------- conversions


@rule(
    "clone", "alias", "detach", "contiguous", "lift_fresh_copy", "dropout", "_to_copy", "to.dtype", of="fib",
)  # fmt: skip
def unchanged(
    b: Build,
    self: Val | None = None,
    input: Val | None = None,
    dtype: str | None = None,
    memory_format: Any = None,
    layout: Any = None,
    device: Any = None,
    non_blocking: bool = False,
    copy: bool = False,
    p: float = 0.5,
    train: bool = False,
) -> Tensor:
    """Copies and conversions. Graphs hold every dtype as float32."""
    x = self if self is not None else input
    if x is None or train:
        raise NoRule("dropout in training")
    to = b.result.dtype
    if to == x.dtype or x.dtype == "bool" or (to == "float32" and x.dtype in INTEGERS):
        return b.tensor(x)
    if to == "bool":
        return ops.not_equal(b.dense(x), 0.0)
    if to in ("int64", "int32"):
        return b.tensor(x) if x.dtype in INTEGERS else ops.trunc(b.dense(x))
    raise NoRule(f"a conversion from {x.dtype} to {to}")


@rule("fill.Scalar", of="fib")
def fill(b: Build, self: Val, value: float) -> Tensor:
    return ops.fill(b.dense(self), _held(b, value))
