"""Normalisation of rows and groups."""

from __future__ import annotations

from .._ffi import lib
from ..tensor._build import build, build_1
from ..tensor.tensor import Tensor
from ._form import along, are, builds, in_place, pick

__all__ = [
    "group_norm",
    "norm",
    "rms_norm",
    "rms_norm_back",
]


@builds("ggml_norm", "ggml_norm_inplace")
def norm(a: Tensor, eps: float = 1e-5, *, inplace: bool = False, axis: int = -1) -> Tensor:
    """``(x - mean) / sqrt(variance + eps)`` of each row (Ba et al. 2016, arXiv:1607.06450, without gain and bias), or
    along another axis, of which a copy is made: then the result is a view."""
    if not are((axis,), (-1,)):
        return along("norm", a, axis, lambda rows: norm(rows, eps, inplace=inplace), in_place(inplace))
    return build_1("norm", pick("norm", inplace), a, eps)


@builds("ggml_rms_norm", "ggml_rms_norm_inplace")
def rms_norm(a: Tensor, eps: float = 1e-5, *, inplace: bool = False, axis: int = -1) -> Tensor:
    """``x / sqrt(mean(x^2) + eps)`` of each row (Zhang and Sennrich 2019, arXiv:1910.07467, without gain), or along
    another axis, of which a copy is made: then the result is a view."""
    if not are((axis,), (-1,)):
        return along("rms_norm", a, axis, lambda rows: rms_norm(rows, eps, inplace=inplace), in_place(inplace))
    return build_1("rms_norm", pick("rms_norm", inplace), a, eps)


@builds("ggml_group_norm", "ggml_group_norm_inplace")
def group_norm(a: Tensor, n_groups: int, *, inplace: bool = False) -> Tensor:
    """``(..., channels, height, width)``: :func:`norm` over groups of ``ceil(channels / n_groups)`` channels, eps 1e-6
    (Wu and He 2018, arXiv:1803.08494)."""
    return build_1("group_norm", pick("group_norm", inplace), a, n_groups)


@builds("ggml_rms_norm_back")
def rms_norm_back(a: Tensor, b: Tensor, eps: float = 1e-5) -> Tensor:
    """Gradient of :func:`rms_norm` at ``a``, given the gradient ``b`` of its result."""
    return build("rms_norm_back", lib.ggml_rms_norm_back, (a, b), eps)
