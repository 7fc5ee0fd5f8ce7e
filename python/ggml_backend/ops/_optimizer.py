"""Steps of optimizers, which update weights in place."""

from __future__ import annotations

from .._ffi import lib
from ..tensor._build import build
from ..tensor.tensor import Tensor
from ._form import builds, dims

__all__ = ["opt_step_adamw", "opt_step_sgd"]


@builds("ggml_opt_step_adamw")
def opt_step_adamw(a: Tensor, grad: Tensor, m: Tensor, v: Tensor, params: Tensor) -> Tensor:
    """One step of AdamW. It overwrites ``a``, ``m`` and ``v``. The result is a view of ``a``.

    a, grad: the weights and their gradient
    m, v: running means of ``grad`` and of its square, zeros at first
    params: ``(7,)``: alpha, beta1, beta2, eps, wd, ``1 / (1 - beta1**t)`` and ``1 / (1 - beta2**t)``, where ``t``
        counts the steps from 1. It is an input, so one graph serves all steps.

    ``m = beta1 m + (1 - beta1) grad``, ``v = beta2 v + (1 - beta2) grad**2``, then ``a = a (1 - alpha wd) -
    alpha (m params[5]) / (sqrt(v params[6]) + eps)``.

    Nodes run in the order of the graph, and a gradient may read weights that another step overwrites. So pass
    the loss and all gradients to :meth:`Context.graph` before the steps.
    """
    labels = ("a", "grad", "m", "v", "params")
    return build(
        "opt_step_adamw",
        lib.ggml_opt_step_adamw,
        (a, grad, m, v, params),
        ndim=dims("opt_step_adamw", a),
        labels=labels,
    )


@builds("ggml_opt_step_sgd")
def opt_step_sgd(a: Tensor, grad: Tensor, params: Tensor) -> Tensor:
    """One step of gradient descent in place, ``a = a (1 - alpha wd) - alpha grad``. The result is a view of ``a``.

    params: ``(2,)``: alpha, wd. It is an input, so one graph serves all steps.

    Pass the loss and all gradients to :meth:`Context.graph` before the steps.
    """
    return build(
        "opt_step_sgd", lib.ggml_opt_step_sgd, (a, grad, params), ndim=dims("opt_step_sgd", a),
        labels=("a", "grad", "params"),
    )  # fmt: skip
