"""Gated linear units."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from .._base.errors import InvalidArgumentError, expect_bool
from .._ffi import ffi, lib
from ..tensor._build import build
from ..tensor._operators import GLU_OPS
from ..tensor.tensor import Tensor
from ._form import builds, choice

__all__ = ["geglu", "geglu_erf", "geglu_quick", "glu", "reglu", "swiglu", "swiglu_oai"]

GLU = {name: number for name, number in GLU_OPS.items() if name != "swiglu_oai"}
Gate = Literal["reglu", "geglu", "swiglu", "geglu_erf", "geglu_quick"]


@builds("ggml_glu", "ggml_glu_split")
def glu(a: Tensor, b: Tensor | None = None, op: Gate = "swiglu", *, swapped: bool = False) -> Tensor:
    """``f(x) g``, a gated linear unit (arXiv:2002.05202).

    One tensor ``(..., 2 n)`` gives ``(..., n)``: ``x`` is the first half of each row and ``g`` the second.
    Of two tensors of one shape and dtype, ``x`` is ``a`` and ``g`` is ``b``.

    op: ``"reglu"`` (``f`` is relu), ``"geglu"`` (gelu), ``"swiglu"`` (silu), ``"geglu_erf"``
        (gelu_erf), ``"geglu_quick"`` (gelu_quick)
    swapped: of one tensor, ``x`` is the second half
    """
    number, swapped = choice("glu", "op", op, GLU), expect_bool(swapped, "glu: swapped")
    if b is None:
        return build("glu", lib.ggml_glu, (a,), number, swapped)
    if swapped:
        raise InvalidArgumentError("glu: swapped is for one tensor; exchange a and b")
    return build("glu", lib.ggml_glu_split, (a, b), number)


_FORMS = ("", "_swapped", "_split")


def _gate(op: str, a: Tensor, b: Tensor | None, swapped: bool) -> Tensor:
    swapped = expect_bool(swapped, f"{op}: swapped")
    if b is None:
        form: Callable[..., Any] = getattr(lib, f"ggml_{op}_swapped" if swapped else f"ggml_{op}")
        return build(op, form, (a,))
    if swapped:
        raise InvalidArgumentError(f"{op}: swapped is for one tensor; exchange a and b")
    return build(op, getattr(lib, f"ggml_{op}_split"), (a, b))


@builds(*(f"ggml_reglu{form}" for form in _FORMS))
def reglu(a: Tensor, b: Tensor | None = None, *, swapped: bool = False) -> Tensor:
    """``relu(x) g``: 0 where ``x <= 0``, whatever ``g`` is. See :func:`glu`."""
    return _gate("reglu", a, b, swapped)


@builds(*(f"ggml_geglu{form}" for form in _FORMS))
def geglu(a: Tensor, b: Tensor | None = None, *, swapped: bool = False) -> Tensor:
    """``gelu(x) g`` with the tanh form of :func:`gelu`. See :func:`glu`."""
    return _gate("geglu", a, b, swapped)


@builds(*(f"ggml_swiglu{form}" for form in _FORMS))
def swiglu(a: Tensor, b: Tensor | None = None, *, swapped: bool = False) -> Tensor:
    """``silu(x) g``. See :func:`glu`."""
    return _gate("swiglu", a, b, swapped)


@builds(*(f"ggml_geglu_erf{form}" for form in _FORMS))
def geglu_erf(a: Tensor, b: Tensor | None = None, *, swapped: bool = False) -> Tensor:
    """``gelu_erf(x) g``. See :func:`glu`."""
    return _gate("geglu_erf", a, b, swapped)


@builds(*(f"ggml_geglu_quick{form}" for form in _FORMS))
def geglu_quick(a: Tensor, b: Tensor | None = None, *, swapped: bool = False) -> Tensor:
    """``gelu_quick(x) g``. See :func:`glu`."""
    return _gate("geglu_quick", a, b, swapped)


@builds("ggml_swiglu_oai")
def swiglu_oai(a: Tensor, b: Tensor | None = None, alpha: float = 1.702, limit: float = 7.0) -> Tensor:
    """``u sigmoid(alpha u) (w + 1)`` with ``u = min(x, limit)`` and ``w`` = ``g`` cut to ``[-limit, limit]``,
    the gate of gpt-oss. ``x`` and ``g`` as for :func:`glu`."""
    if b is None:
        return build("swiglu_oai", _oai_of_one, (a,), alpha, limit)
    return build("swiglu_oai", lib.ggml_swiglu_oai, (a, b), alpha, limit)


def _oai_of_one(context: Any, a: Any, alpha: float, limit: float) -> Any:
    return lib.ggml_swiglu_oai(context, a, ffi.NULL, alpha, limit)
