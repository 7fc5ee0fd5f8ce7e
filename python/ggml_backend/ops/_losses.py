"""Losses of rows against target probabilities."""

from __future__ import annotations

from .._ffi import lib
from ..tensor._build import build
from ..tensor._choices import EPS_OF_2024
from ..tensor.tensor import Tensor
from ._form import are, builds

__all__ = [
    "cross_entropy_loss",
    "cross_entropy_loss_back",
]


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
