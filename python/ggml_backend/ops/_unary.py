"""Elementwise functions of one tensor."""

from __future__ import annotations

from .._base.errors import expect_bool
from .._ffi import lib
from ..tensor._build import build, build_1
from ..tensor.tensor import Tensor
from ._form import FORMS, are, builds, choice, pick

__all__ = [
    "abs",
    "ceil",
    "clamp",
    "cos",
    "elu",
    "exp",
    "expm1",
    "floor",
    "gelu",
    "gelu_erf",
    "gelu_quick",
    "hardsigmoid",
    "hardswish",
    "leaky_relu",
    "log",
    "neg",
    "relu",
    "round",
    "scale",
    "sgn",
    "sigmoid",
    "sign",
    "silu",
    "silu_back",
    "sin",
    "softplus",
    "sqr",
    "sqrt",
    "square",
    "step",
    "tanh",
    "trunc",
    "unary",
    "xielu",
]


def _unary(op: str, a: Tensor, inplace: bool, name: str = "") -> Tensor:
    """``name``: the public function, if its name differs from the operator's."""
    return build_1(name or op, FORMS[op][0] if inplace is False else pick(op, inplace), a)


UNARY = {
    constant.removeprefix("GGML_UNARY_OP_").lower(): getattr(lib, constant)
    for constant in dir(lib)
    if constant.startswith("GGML_UNARY_OP_") and not constant.endswith("_COUNT")
}


@builds("ggml_unary", "ggml_unary_inplace")
def unary(a: Tensor, op: str, *, inplace: bool = False) -> Tensor:
    """An elementwise function by its name: ``"abs"``, ``"relu"``, ``"gelu"``, ..."""
    return build(op, pick("unary", inplace), (a,), choice("unary", "op", op, UNARY))


@builds("ggml_abs", "ggml_abs_inplace")
def abs(a: Tensor, *, inplace: bool = False) -> Tensor:
    """``|x|``"""
    return _unary("abs", a, inplace)


@builds("ggml_sgn", "ggml_sgn_inplace")
def sign(a: Tensor, *, inplace: bool = False) -> Tensor:
    """1, -1, or 0 for zero and NaN."""
    return _unary("sgn", a, inplace, "sign")


sgn = sign


@builds("ggml_neg", "ggml_neg_inplace")
def neg(a: Tensor, *, inplace: bool = False) -> Tensor:
    """``-x``"""
    return _unary("neg", a, inplace)


@builds("ggml_step", "ggml_step_inplace")
def step(a: Tensor, *, inplace: bool = False) -> Tensor:
    """``1 if x > 0 else 0``; 0 for NaN."""
    return _unary("step", a, inplace)


@builds("ggml_tanh", "ggml_tanh_inplace")
def tanh(a: Tensor, *, inplace: bool = False) -> Tensor:
    """Hyperbolic tangent."""
    return _unary("tanh", a, inplace)


@builds("ggml_elu", "ggml_elu_inplace")
def elu(a: Tensor, *, inplace: bool = False) -> Tensor:
    """``x if x > 0 else exp(x) - 1``"""
    return _unary("elu", a, inplace)


@builds("ggml_relu", "ggml_relu_inplace")
def relu(a: Tensor, *, inplace: bool = False) -> Tensor:
    """``0 if x < 0 else x``: NaN and -0 stay."""
    return _unary("relu", a, inplace)


@builds("ggml_gelu", "ggml_gelu_inplace")
def gelu(a: Tensor, *, inplace: bool = False) -> Tensor:
    """``x/2 (1 + tanh(sqrt(2/pi) x (1 + 0.044715 x^2)))``, the tanh form (Hendrycks and Gimpel 2016,
    arXiv:1606.08415)."""
    return _unary("gelu", a, inplace)


@builds("ggml_gelu_erf", "ggml_gelu_erf_inplace")
def gelu_erf(a: Tensor, *, inplace: bool = False) -> Tensor:
    """``x/2 (1 + erf(x / sqrt(2)))``, the exact form (arXiv:1606.08415)."""
    return _unary("gelu_erf", a, inplace)


@builds("ggml_gelu_quick", "ggml_gelu_quick_inplace")
def gelu_quick(a: Tensor, *, inplace: bool = False) -> Tensor:
    """``x sigmoid(1.702 x)`` (arXiv:1606.08415)."""
    return _unary("gelu_quick", a, inplace)


@builds("ggml_exp", "ggml_exp_inplace")
def exp(a: Tensor, *, inplace: bool = False) -> Tensor:
    """``e^x``; 0 below the smallest normal float32, infinity above the largest float32."""
    return _unary("exp", a, inplace)


@builds("ggml_sigmoid", "ggml_sigmoid_inplace")
def sigmoid(a: Tensor, *, inplace: bool = False) -> Tensor:
    """``1 / (1 + e^-x)``. The CPU gives 0 for results below 2^-125 (``x`` below -87)."""
    return _unary("sigmoid", a, inplace)


@builds("ggml_softplus", "ggml_softplus_inplace")
def softplus(a: Tensor, *, inplace: bool = False) -> Tensor:
    """``ln(1 + e^x)``."""
    return _unary("softplus", a, inplace)


@builds("ggml_expm1", "ggml_expm1_inplace")
def expm1(a: Tensor, *, inplace: bool = False) -> Tensor:
    """``e^x - 1``, accurate near 0."""
    return _unary("expm1", a, inplace)


@builds("ggml_floor", "ggml_floor_inplace")
def floor(a: Tensor, *, inplace: bool = False) -> Tensor:
    """The largest integer that is not above ``x``."""
    return _unary("floor", a, inplace)


@builds("ggml_ceil", "ggml_ceil_inplace")
def ceil(a: Tensor, *, inplace: bool = False) -> Tensor:
    """The smallest integer that is not below ``x``."""
    return _unary("ceil", a, inplace)


@builds("ggml_round", "ggml_round_inplace")
def round(a: Tensor, *, inplace: bool = False) -> Tensor:
    """The nearest integer. Halves are rounded away from 0; NumPy and PyTorch round them to even."""
    return _unary("round", a, inplace)


@builds("ggml_trunc", "ggml_trunc_inplace")
def trunc(a: Tensor, *, inplace: bool = False) -> Tensor:
    """``x`` without its fraction."""
    return _unary("trunc", a, inplace)


@builds("ggml_xielu")
def xielu(a: Tensor, alpha_n: float, alpha_p: float, beta: float = 0.5, eps: float = -1e-6) -> Tensor:
    """``p x^2 + beta x`` if ``x > 0``, else ``(exp(min(x, eps)) - 1 - x) n + beta x``, with ``p =
    softplus(alpha_p)`` and ``n = beta + softplus(alpha_n)`` (arXiv:2411.13010)."""
    return build_1("xielu", lib.ggml_xielu, a, alpha_n, alpha_p, beta, eps)


@builds("ggml_sin", "ggml_sin_inplace")
def sin(a: Tensor, *, inplace: bool = False) -> Tensor:
    """Sine of radians of any size; NaN of infinities."""
    return _unary("sin", a, inplace)


@builds("ggml_cos", "ggml_cos_inplace")
def cos(a: Tensor, *, inplace: bool = False) -> Tensor:
    """Cosine of radians of any size; NaN of infinities."""
    return _unary("cos", a, inplace)


@builds("ggml_silu", "ggml_silu_inplace")
def silu(a: Tensor, *, inplace: bool = False) -> Tensor:
    """``x sigmoid(x)``"""
    return _unary("silu", a, inplace)


@builds("ggml_silu_back")
def silu_back(a: Tensor, b: Tensor) -> Tensor:
    """Gradient of :func:`silu` at ``a``, given the gradient ``b`` of its result."""
    return build("silu_back", lib.ggml_silu_back, (a, b))


@builds("ggml_hardswish")
def hardswish(a: Tensor, *, inplace: bool = False) -> Tensor:
    """``x min(1, max(0, (x + 3) / 6))``"""
    if expect_bool(inplace, "hardswish: inplace"):
        return unary(a, "hardswish", inplace=True)
    return build_1("hardswish", lib.ggml_hardswish, a)


@builds("ggml_hardsigmoid")
def hardsigmoid(a: Tensor, *, inplace: bool = False) -> Tensor:
    """``min(1, max(0, (x + 3) / 6))``"""
    if expect_bool(inplace, "hardsigmoid: inplace"):
        return unary(a, "hardsigmoid", inplace=True)
    return build_1("hardsigmoid", lib.ggml_hardsigmoid, a)


@builds("ggml_leaky_relu")
def leaky_relu(a: Tensor, negative_slope: float = 0.01, *, inplace: bool = False) -> Tensor:
    """``max(x, 0) + negative_slope min(x, 0)``"""
    return build_1("leaky_relu", lib.ggml_leaky_relu, a, negative_slope, expect_bool(inplace, "leaky_relu: inplace"))


@builds("ggml_sqr", "ggml_sqr_inplace")
def square(a: Tensor, *, inplace: bool = False) -> Tensor:
    """``x^2``"""
    return _unary("sqr", a, inplace, "square")


sqr = square


@builds("ggml_sqrt", "ggml_sqrt_inplace")
def sqrt(a: Tensor, *, inplace: bool = False) -> Tensor:
    """Square root."""
    return _unary("sqrt", a, inplace)


@builds("ggml_log", "ggml_log_inplace")
def log(a: Tensor, *, inplace: bool = False) -> Tensor:
    """Natural logarithm."""
    return _unary("log", a, inplace)


@builds("ggml_clamp")
def clamp(a: Tensor, min: float, max: float) -> Tensor:
    """``max(min(x, max), min)``. Always in place: the node overwrites the memory of ``a``.

    To keep ``a``, write ``gb.ops.clamp(gb.ops.dup(a), min, max)``.
    """
    return build_1("clamp", lib.ggml_clamp, a, min, max)


@builds("ggml_scale", "ggml_scale_inplace", "ggml_scale_bias", "ggml_scale_bias_inplace")
def scale(a: Tensor, s: float, bias: float = 0.0, *, inplace: bool = False) -> Tensor:
    """``s x + bias``"""
    if not are((bias,), (0.0,)):
        return build_1("scale", pick("scale_bias", inplace), a, s, bias)
    return build_1("scale", pick("scale", inplace), a, s)
