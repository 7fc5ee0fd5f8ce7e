"""Softmax of rows, and what is laid over rows before it: masks, linear biases."""

from __future__ import annotations

from typing import Any

from .._base.errors import InvalidArgumentError, expect_bool
from .._ffi import lib
from ..tensor._build import OF_FIRST, build, build_1, build_2
from ..tensor._operators import EPS_OF_2024
from ..tensor.tensor import Tensor
from ._form import along, are, builds, in_place, pick

__all__ = [
    "alibi", "cross_entropy_loss", "cross_entropy_loss_back", "diag_mask_inf", "diag_mask_zero",
    "soft_max", "soft_max_back", "softmax",
]  # fmt: skip


@builds("ggml_diag_mask_inf", "ggml_diag_mask_inf_inplace")
def diag_mask_inf(a: Tensor, n_past: int = 0, *, inplace: bool = False) -> Tensor:
    """-inf above the diagonal: element ``(..., i, j)`` with ``j > n_past + i``."""
    return build_1("diag_mask_inf", pick("diag_mask_inf", inplace), a, n_past)


@builds("ggml_diag_mask_zero", "ggml_diag_mask_zero_inplace")
def diag_mask_zero(a: Tensor, n_past: int = 0, *, inplace: bool = False) -> Tensor:
    """0 above the diagonal: element ``(..., i, j)`` with ``j > n_past + i``."""
    return build_1("diag_mask_zero", pick("diag_mask_zero", inplace), a, n_past)


@builds("ggml_soft_max", "ggml_soft_max_inplace", "ggml_soft_max_ext", "ggml_soft_max_bias")
def softmax(
    a: Tensor,
    mask: Tensor | None = None,
    scale: float = 1.0,
    *,
    inplace: bool = False,
    max_bias: float = 0.0,
    axis: int = -1,
) -> Tensor:
    """``softmax(scale a + mask)`` of each row. ``mask (m, n)`` repeats over the rows of ``a (..., n)``. Contiguous.

    max_bias: above 0 the mask is multiplied by the slope of the head, the axis before the last two of ``a``: a mask of
        negative distances gives the linear biases of ALiBi (Press et al. 2022, arXiv:2108.12409), for h of 8 heads ``2
        ** (-max_bias (h + 1) / 8)``.

    axis: of another one than the last, without a mask, a copy is made, and the result is a view.

    A row that is -inf everywhere gives zeros; one with NaN or +inf, at a masked place too, is NaN everywhere.
    """
    if not are((axis,), (-1,)):
        only_last = in_place(inplace) if mask is None else "a mask is laid over the rows along that alone"

        def row_by_row(rows: Tensor) -> Tensor:
            return softmax(rows, mask, scale, inplace=inplace, max_bias=max_bias)

        return along("softmax", a, axis, row_by_row, only_last)
    if mask is None and are((scale, max_bias), (1.0, 0.0)):
        return build_1("softmax", pick("soft_max", inplace), a)
    if expect_bool(inplace, "softmax: inplace"):
        raise InvalidArgumentError("softmax: with a mask or scale it cannot work in place")
    given: Any = mask
    if type(given) is int:  # an axis, elsewhere
        raise TypeError("softmax: mask must be a Tensor, not int; an axis is given by name: axis=...")
    if mask is None:
        if not are((max_bias,), (0.0,)):
            raise InvalidArgumentError("softmax: max_bias needs a mask, which it multiplies")
        return build("softmax", lib.ggml_soft_max_ext, (a, mask), scale, labels=("a", "mask"))
    if not are((max_bias,), (0.0,)):
        return build_2("softmax", lib.ggml_soft_max_bias, a, mask, scale, max_bias, ndim=OF_FIRST, labels=("a", "mask"))
    return build_2("softmax", lib.ggml_soft_max_ext, a, mask, scale, ndim=OF_FIRST, labels=("a", "mask"))


soft_max = softmax


@builds("ggml_soft_max_back", "ggml_soft_max_back_inplace")
def soft_max_back(a: Tensor, b: Tensor, *, inplace: bool = False) -> Tensor:
    """Gradient of :func:`softmax`, given the gradient ``a`` of its result and the result ``b``."""
    return build("soft_max_back", pick("soft_max_back", inplace), (a, b))


@builds("ggml_alibi")
def alibi(a: Tensor, n_past: int, n_head: int, bias_max: float) -> Tensor:
    """Adds linear biases to ``a (n_head, rows, n)``: ``j`` times the slope of the head (Press et al. 2022,
    arXiv:2108.12409). Always in place."""
    return build("alibi", lib.ggml_alibi, (a,), n_past, n_head, bias_max)


@builds("ggml_cross_entropy_loss", "ggml_cross_entropy_loss_eps")
def cross_entropy_loss(a: Tensor, b: Tensor, eps: float = 1e-9) -> Tensor:
    """``-mean over rows of sum(b log(p (1 - eps) + eps))`` with ``p = softmax(a)``, shape ``()``; ``b`` holds the
    target probabilities.

    eps: 0 gives the cross entropy itself, for logits however far apart: ``-mean of sum(b log_softmax(a))``, where an
        element whose ``b`` is 0 adds nothing. The default is what ggml of early 2024 computes: it cannot see
        probabilities below 1e-9 (no element costs more than 20.7), and is off by 5 % for 100,000 classes. Below 1.

    The gradient for the default is that of early 2024 too, ``(p (1 - eps) + eps - b) / rows``, right for rows of ``b``
    that add up to 1; for any other eps it is the derivative, ``(p sum(b) - b) / rows`` for 0.
    """
    if are((eps,), (EPS_OF_2024,)):
        return build("cross_entropy_loss", lib.ggml_cross_entropy_loss, (a, b), ndim=0)
    return build("cross_entropy_loss", lib.ggml_cross_entropy_loss_eps, (a, b), eps, ndim=0)


@builds("ggml_cross_entropy_loss_back", "ggml_cross_entropy_loss_eps_back")
def cross_entropy_loss_back(a: Tensor, b: Tensor, c: Tensor, eps: float = 1e-9) -> Tensor:
    """Gradient of :func:`cross_entropy_loss` with respect to ``a``, given the gradient ``c`` (one element) of its
    result."""
    if are((eps,), (EPS_OF_2024,)):
        return build("cross_entropy_loss_back", lib.ggml_cross_entropy_loss_back, (a, b, c))
    return build("cross_entropy_loss_back", lib.ggml_cross_entropy_loss_eps_back, (a, b, c), eps)
