"""Softmax of rows, and what is laid over rows before it: masks, linear biases."""

from __future__ import annotations

from typing import Any

from .._base.errors import InvalidArgumentError, expect_bool
from .._ffi import lib
from ..tensor._build import OF_FIRST, build, build_1, build_2
from ..tensor.tensor import Tensor
from ._axes import NAMES, along, in_place
from ._form import are, builds, pick, without

__all__ = [
    "alibi",
    "diag_mask_inf",
    "diag_mask_zero",
    "soft_max",
    "soft_max_back",
    "softmax",
]


@builds("ggml_diag_mask_inf", "ggml_diag_mask_inf_inplace")
def diag_mask_inf(a: Tensor, n_past: int = 0, *, inplace: bool = False) -> Tensor:
    """-inf above the diagonal: element ``(..., i, j)`` with ``j > n_past + i``."""
    return build_1("diag_mask_inf", pick("diag_mask_inf", inplace), a, n_past)


@builds("ggml_diag_mask_zero", "ggml_diag_mask_zero_inplace")
def diag_mask_zero(a: Tensor, n_past: int = 0, *, inplace: bool = False) -> Tensor:
    """0 above the diagonal: element ``(..., i, j)`` with ``j > n_past + i``."""
    return build_1("diag_mask_zero", pick("diag_mask_zero", inplace), a, n_past)


@builds("ggml_soft_max", "ggml_soft_max_inplace", "ggml_soft_max_ext", "ggml_soft_max_bias")
@without(*NAMES)
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
        return build_2(
            "softmax", lib.ggml_soft_max_bias, a, mask, scale, max_bias, ndim=OF_FIRST, labels=("a", "mask")
        )
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
