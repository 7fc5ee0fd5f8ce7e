"""Softmax and normalisation of rows, masks, linear biases, cross entropy, steps of optimizers."""

from __future__ import annotations

from typing import Any

from .._base.errors import InvalidArgumentError, check, expect_bool
from .._ffi import lib
from ..tensor._build import OF_FIRST, build, build_1, build_2, context_of
from ..tensor._operators import EPS_OF_2024
from ..tensor.tensor import Tensor
from ._form import along, are, builds, dims, in_place, pick

__all__ = [
    "alibi", "cross_entropy_loss", "cross_entropy_loss_back", "diag_mask_inf", "diag_mask_zero", "group_norm",
    "l2_norm", "norm", "opt_step_adamw", "opt_step_sgd", "rms_norm", "rms_norm_back", "soft_max", "soft_max_back",
    "softmax",
]  # fmt: skip


@builds("ggml_diag_mask_inf", "ggml_diag_mask_inf_inplace")
def diag_mask_inf(a: Tensor, n_past: int = 0, *, inplace: bool = False) -> Tensor:
    """-inf above the diagonal: element ``(..., i, j)`` with ``j > n_past + i``."""
    return build_1("diag_mask_inf", pick("diag_mask_inf", inplace), a, n_past)


@builds("ggml_diag_mask_zero", "ggml_diag_mask_zero_inplace")
def diag_mask_zero(a: Tensor, n_past: int = 0, *, inplace: bool = False) -> Tensor:
    """0 above the diagonal: element ``(..., i, j)`` with ``j > n_past + i``."""
    return build_1("diag_mask_zero", pick("diag_mask_zero", inplace), a, n_past)


@builds(
    "ggml_soft_max", "ggml_soft_max_inplace", "ggml_soft_max_ext", "ggml_soft_max_bias", "ggml_soft_max_bias_inplace"
)
def softmax(
    a: Tensor,
    mask: Tensor | None = None,
    scale: float = 1.0,
    *,
    inplace: bool = False,
    max_bias: float = 0.0,
    sinks: Tensor | None = None,
    axis: int = -1,
) -> Tensor:
    """``softmax(scale a + mask)`` of each row. ``a`` and ``mask`` are contiguous.

    mask: float32 or float16 ``(..., m, n)`` for ``a (..., heads, rows, n)``. If ``m >= rows``, row i of the mask
        is for row i of ``a``. Otherwise ``m`` divides ``rows``, and the mask repeats, as along its other axes.
    sinks: float32 ``(heads,)``: one more logit of each head, which adds to the sum and has no element in the result

    max_bias: if above 0, the mask is multiplied by the slope of the head. Heads are the axis before the last
        two of ``a``. A mask of negative distances gives the linear biases of ALiBi (Press et al. 2022,
        arXiv:2108.12409). The slope of head h of 8 is ``2 ** (-max_bias (h + 1) / 8)``.
    axis: if it is not the last, the tensor is copied and the result is a view. Not with a mask.

    A row of only -inf gives zeros. A row with NaN or +inf, even at a masked position, gives NaN
    everywhere.
    """
    if sinks is not None:
        if not are((axis,), (-1,)):
            raise InvalidArgumentError("softmax: sinks need axis=-1")
        context_of("softmax", (a, sinks), ("a", "sinks"))
        y = softmax(a, mask, scale, inplace=inplace, max_bias=max_bias)
        check(lib.ggml_soft_max_add_sinks(y._p, sinks._live()), "softmax")
        return y
    if not are((axis,), (-1,)):
        only_last = in_place(inplace) if mask is None else "a mask applies to rows along the last axis only"

        def row_by_row(rows: Tensor) -> Tensor:
            return softmax(rows, mask, scale, inplace=inplace, max_bias=max_bias)

        return along("softmax", a, axis, row_by_row, only_last)
    if mask is None and are((scale, max_bias), (1.0, 0.0)):
        return build_1("softmax", pick("soft_max", inplace), a)
    given: Any = mask
    if type(given) is int:  # other libraries take an axis here
        raise TypeError("softmax: mask must be a Tensor, not int; an axis is given by name: axis=...")
    if mask is None and not are((max_bias,), (0.0,)):
        raise InvalidArgumentError("softmax: max_bias needs a mask, which it multiplies")
    if expect_bool(inplace, "softmax: inplace"):
        numbers = (scale, max_bias)
        return build(
            "softmax", lib.ggml_soft_max_bias_inplace, (a, mask), *numbers, ndim=OF_FIRST, labels=("a", "mask")
        )
    if mask is None:
        return build("softmax", lib.ggml_soft_max_ext, (a, mask), scale, labels=("a", "mask"))
    if not are((max_bias,), (0.0,)):
        return build_2("softmax", lib.ggml_soft_max_bias, a, mask, scale, max_bias, ndim=OF_FIRST, labels=("a", "mask"))
    return build_2("softmax", lib.ggml_soft_max_ext, a, mask, scale, ndim=OF_FIRST, labels=("a", "mask"))


soft_max = softmax


@builds("ggml_soft_max_back", "ggml_soft_max_back_inplace", "ggml_soft_max_ext_back", "ggml_soft_max_ext_back_inplace")
def soft_max_back(a: Tensor, b: Tensor, scale: float = 1.0, *, inplace: bool = False) -> Tensor:
    """Gradient of :func:`softmax` with this scale, given the gradient ``a`` of its result and the result ``b``."""
    if not are((scale,), (1.0,)):
        return build("soft_max_back", pick("soft_max_ext_back", inplace), (a, b), scale, 0.0)
    return build("soft_max_back", pick("soft_max_back", inplace), (a, b))


@builds("ggml_alibi")
def alibi(a: Tensor, n_past: int, n_head: int, bias_max: float) -> Tensor:
    """Adds linear biases to ``a (n_head, rows, n)``, always in place (Press et al. 2022, arXiv:2108.12409).

    The bias of element ``j`` of a row is ``j`` times the slope of the head.
    """
    return build("alibi", lib.ggml_alibi, (a,), n_past, n_head, bias_max)


@builds("ggml_cross_entropy_loss", "ggml_cross_entropy_loss_eps")
def cross_entropy_loss(a: Tensor, b: Tensor, eps: float = 1e-9) -> Tensor:
    """``-mean over rows of sum(b log(p (1 - eps) + eps))`` with ``p = softmax(a)``, of shape ``()``.

    ``b`` holds the target probabilities.

    eps: below 1. 0 gives the exact cross entropy, ``-mean of sum(b log_softmax(a))``, for logits of any
        range. Elements with ``b`` 0 then add nothing. The default is the value of ggml of early 2024. It
        limits the cost of an element to 20.7, because it cannot represent probabilities below 1e-9.
        For 100,000 classes the result is off by 5 %.

    The gradient for the default eps is also that of early 2024, ``(p (1 - eps) + eps - b) / rows``. It
    is correct if the rows of ``b`` add up to 1. For any other eps the gradient is the derivative. For 0
    that is ``(p sum(b) - b) / rows``.
    """
    if are((eps,), (EPS_OF_2024,)):
        return build("cross_entropy_loss", lib.ggml_cross_entropy_loss, (a, b), ndim=0)
    return build("cross_entropy_loss", lib.ggml_cross_entropy_loss_eps, (a, b), eps, ndim=0)


@builds("ggml_cross_entropy_loss_back", "ggml_cross_entropy_loss_eps_back")
def cross_entropy_loss_back(a: Tensor, b: Tensor, c: Tensor, eps: float = 1e-9) -> Tensor:
    """Gradient of :func:`cross_entropy_loss` with respect to ``a``. ``c``, one element, is the gradient of
    the loss."""
    if are((eps,), (EPS_OF_2024,)):
        return build("cross_entropy_loss_back", lib.ggml_cross_entropy_loss_back, (a, b, c))
    return build("cross_entropy_loss_back", lib.ggml_cross_entropy_loss_eps_back, (a, b, c), eps)


@builds("ggml_norm", "ggml_norm_inplace")
def norm(a: Tensor, eps: float = 1e-5, *, inplace: bool = False, axis: int = -1) -> Tensor:
    """``(x - mean) / sqrt(variance + eps)`` of each row (Ba et al. 2016, arXiv:1607.06450, without gain and bias).

    axis: normalises along this axis. If it is not the last, the tensor is copied and the result is a view.
    """
    if not are((axis,), (-1,)):
        return along("norm", a, axis, lambda rows: norm(rows, eps, inplace=inplace), in_place(inplace))
    return build_1("norm", pick("norm", inplace), a, eps)


@builds("ggml_rms_norm", "ggml_rms_norm_inplace")
def rms_norm(a: Tensor, eps: float = 1e-5, *, inplace: bool = False, axis: int = -1) -> Tensor:
    """``x / sqrt(mean(x^2) + eps)`` of each row (Zhang and Sennrich 2019, arXiv:1910.07467, without gain).

    axis: normalises along this axis. If it is not the last, the tensor is copied and the result is a view.
    """
    if not are((axis,), (-1,)):
        return along("rms_norm", a, axis, lambda rows: rms_norm(rows, eps, inplace=inplace), in_place(inplace))
    return build_1("rms_norm", pick("rms_norm", inplace), a, eps)


@builds("ggml_l2_norm", "ggml_l2_norm_inplace")
def l2_norm(a: Tensor, eps: float = 1e-12, *, inplace: bool = False, axis: int = -1) -> Tensor:
    """``x / max(sqrt(sum(x^2)), eps)`` of each row, as ``torch.nn.functional.normalize``.

    axis: as for :func:`rms_norm`
    """
    if not are((axis,), (-1,)):
        return along("l2_norm", a, axis, lambda rows: l2_norm(rows, eps, inplace=inplace), in_place(inplace))
    return build_1("l2_norm", pick("l2_norm", inplace), a, eps)


@builds("ggml_group_norm", "ggml_group_norm_inplace", "ggml_group_norm_eps", "ggml_group_norm_eps_inplace")
def group_norm(a: Tensor, n_groups: int, eps: float = 1e-6, *, inplace: bool = False) -> Tensor:
    """:func:`norm` over groups of channels of ``(..., channels, height, width)``.

    A group has ``ceil(channels / n_groups)`` channels (Wu and He 2018, arXiv:1803.08494).
    """
    if are((eps,), (1e-6,)):
        return build_1("group_norm", pick("group_norm", inplace), a, n_groups)
    return build_1("group_norm", pick("group_norm_eps", inplace), a, n_groups, eps)


@builds("ggml_rms_norm_back")
def rms_norm_back(a: Tensor, b: Tensor, eps: float = 1e-5) -> Tensor:
    """Gradient of :func:`rms_norm` at ``a``, given the gradient ``b`` of its result."""
    return build("rms_norm_back", lib.ggml_rms_norm_back, (a, b), eps)


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
